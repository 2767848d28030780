/* diff_print_groups.c: prints the errors of kvc-diff --by and --worst as text, JSON or TSV. Not for
 * summing them (formats/compare/groups.c). */
#include "cli/diff/diff_json.h"

#include <inttypes.h>
#include <string.h>


static void text_group(struct diff_comparison *d, const struct kvc_group *g) {
    const struct kvc_difference *x = &g->error;
    const enum kvc_group_by by = d->groups.by;
    char label[128];
    if (!d->headed) {
        printf("%-20s", by == KVC_GROUP_POSITION ? "part and role" : "tensor");
        if (by == KVC_GROUP_POSITION) printf(" %9s", "position");
        if (by == KVC_GROUP_HEAD || by == KVC_GROUP_CHANNEL) printf(" %5s", "head");
        if (by == KVC_GROUP_CHANNEL) printf(" %7s", "channel");
        printf(" %10s %10s %12s %12s %12s %12s\n", "differ", "values", "max-abs", "rms",
               "frobenius", "cosine");
    }
    d->headed = 1;
    if (by == KVC_GROUP_POSITION) {
        diff_part_label(g->pair->parts, label, sizeof label);
        const size_t n = strlen(label);
        snprintf(label + n, sizeof label - n, " %s", kvc_role_name(g->pair->role));
    } else {
        diff_layers_label(g->pair, g->pair, label, sizeof label);
    }
    printf("%-20s", label);
    if (by == KVC_GROUP_POSITION) printf(" %9" PRId64, g->position);
    if (by == KVC_GROUP_HEAD || by == KVC_GROUP_CHANNEL) printf(" %5" PRIu64, g->head);
    if (by == KVC_GROUP_CHANNEL) printf(" %7" PRIu64, g->channel);
    printf(" %10" PRIu64 " %10" PRIu64 " %12.6g %12.6g %12.6g %12.9f\n", x->differ, x->values,
           x->max_abs, x->rms, x->frobenius, x->cosine);
}

static void json_group(struct diff_comparison *d, const struct kvc_group *g) {
    const enum kvc_group_by by = d->groups.by;
    struct cli_json *j = &d->report.json;
    cli_json_open(j, NULL, '{');
    diff_json_part(j, g->pair);
    if (by != KVC_GROUP_POSITION) cli_json_u64(j, "layer", g->pair->layer);
    cli_json_text(j, "role", kvc_role_name(g->pair->role));
    if (by == KVC_GROUP_POSITION) cli_json_i64(j, "position", g->position);
    if (by == KVC_GROUP_HEAD || by == KVC_GROUP_CHANNEL) cli_json_u64(j, "head", g->head);
    if (by == KVC_GROUP_CHANNEL) cli_json_u64(j, "channel", g->channel);
    diff_json_counts(j, &g->error);
    cli_json_close(j);
}

static void tsv_group(struct diff_comparison *d, const struct kvc_group *g) {
    static const char *const headings[] = {
        [KVC_GROUP_LAYER] = "#layer\tpart\tstream\tsnapshot\tlayer\trole\t" DIFF_TSV_COUNTS,
        [KVC_GROUP_HEAD] = DIFF_TSV_HEAD,
        [KVC_GROUP_POSITION] =
            "#position\tpart\tstream\tsnapshot\trole\tposition\t" DIFF_TSV_COUNTS,
        [KVC_GROUP_CHANNEL] =
            "#channel\tpart\tstream\tsnapshot\tlayer\trole\thead\tchannel\t" DIFF_TSV_COUNTS,
    };
    const enum kvc_group_by by = d->groups.by;
    diff_tsv_heading(d, DIFF_HEADED_GROUPS, headings[by]);
    if (by == KVC_GROUP_HEAD) {
        diff_tsv_head(g->pair, g->head, &g->error);
        return;
    }
    printf("%s\t", kvc_group_name(by));
    diff_tsv_part(g->pair);
    if (by != KVC_GROUP_POSITION) printf("\t%" PRIu32, g->pair->layer);
    printf("\t%s", kvc_role_name(g->pair->role));
    if (by == KVC_GROUP_POSITION) printf("\t%" PRId64, g->position);
    if (by == KVC_GROUP_CHANNEL) printf("\t%" PRIu64 "\t%" PRIu64, g->head, g->channel);
    putchar('\t');
    diff_tsv_counts(&g->error);
    putchar('\n');
}

int diff_print_group(void *state, const struct kvc_group *g) {
    struct diff_comparison *d = state;
    if (d->quiet) return 0;
    if (d->style == DIFF_JSON) json_group(d, g);
    else if (d->style == DIFF_TSV) tsv_group(d, g);
    else text_group(d, g);
    return 0;
}
