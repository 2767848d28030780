/* diff_print.c: prints differences as text, JSON or TSV. Not for finding them, and not for the
 * objects of JSON (diff_json.c). */
#include "cli/diff/diff.h"
#include "cli/text.h"

#include <inttypes.h>
#include <string.h>

const char *const diff_side[2] = {"A", "B"};
const char *const diff_group_name[] = {"", "layer", "head", "position", "channel"};

int diff_may_end(const struct diff_comparison *d) {
    return d->quiet && !d->collected && diff_differs(d);
}

/* --- facts --- */

static void print_fact(const char *where, const char *what, const char *a, const char *b,
                       const char *note) {
    printf("%s%s", where, *where ? " " : "");
    cli_print_safe(stdout, what);
    fputs(": ", stdout);
    for (int s = 0; s < 2; s++) {
        const char *value = s ? b : a;
        if (!value) continue;
        cli_print_safe(stdout, value);
        printf("%s%sin %s%s", *value ? " " : "", a && b ? "" : "only ", diff_side[s],
               !s && b ? ", " : "");
    }
    if (note) printf(" (%s)", note);
    putchar('\n');
}

static void tsv_fact(const char *where, const char *what, const char *a, const char *b,
                     const char *note) {
    const char *const column[] = {where, what, a, b, note};
    fputs("fact", stdout);
    for (size_t i = 0; i < sizeof column / sizeof column[0]; i++) {
        putchar('\t');
        cli_print_safe(stdout, column[i] ? column[i] : "-");
    }
    putchar('\n');
}

void diff_fact(void *state, const char *where, const char *what, const char *a, const char *b,
               const char *note) {
    struct diff_comparison *d = state;
    d->facts++;
    if (d->collected) diff_collect_fact(d->collected, where, what, a, b, note);
    if (d->quiet) return;
    if (d->style == DIFF_JSON) diff_json_fact(&d->report.json, where, what, a, b, note);
    else if (d->style == DIFF_TSV) {
        diff_tsv_heading(d, DIFF_HEADED_FACT, "#fact\twhere\twhat\ta\tb\tnote");
        tsv_fact(where, what, a, b, note);
    } else print_fact(where, what, a, b, note);
}

/* --- values --- */

void diff_tsv_part(const struct kvc_compared *t) {
    char snapshot[16] = "-";
    if (strcmp(t->part, "snapshot") == 0)
        snprintf(snapshot, sizeof snapshot, "%" PRIu32, t->snapshot);
    printf("%s\t%" PRIu32 "\t%s", t->part, t->stream, snapshot);
}

/* Prints the columns of a TSV row that name the tensor. */
static void tsv_tensor(const struct kvc_compared *t, const char *type) {
    printf("%s\t", type);
    diff_tsv_part(t);
    printf("\t%" PRIu32 "\t%s\t", t->layer, t->role);
}

/* Opens the object of d->now, unless a reported value has opened it. */
static void json_tensor(struct diff_comparison *d) {
    if (d->opened) return;
    diff_json_tensor(&d->report.json, d->now);
    if (d->detail.value) cli_json_open(&d->report.json, "values", '[');
    d->opened = 1;
}

static void json_value(struct diff_comparison *d, int64_t position, uint64_t head, uint64_t channel,
                       double a, double b) {
    json_tensor(d);
    cli_json_open(&d->report.json, NULL, '{');
    cli_json_i64(&d->report.json, "position", position);
    cli_json_u64(&d->report.json, "head", head);
    cli_json_u64(&d->report.json, "channel", channel);
    cli_json_f64(&d->report.json, "a", a);
    cli_json_f64(&d->report.json, "b", b);
    cli_json_close(&d->report.json);
}

int diff_report_value(void *state, int64_t position, uint64_t head, uint64_t channel, double a,
                      double b) {
    struct diff_comparison *d = state;
    char text[2][32], label[128];
    if (d->quiet || !d->count) return 1;
    d->count--;
    if (d->style == DIFF_JSON) {
        json_value(d, position, head, channel, a, b);
        return 0;
    }
    cli_float_text((float)a, text[0]);
    cli_float_text((float)b, text[1]);
    if (d->style == DIFF_TSV) {
        diff_tsv_heading(
            d, DIFF_HEADED_VALUE,
            "#value\tpart\tstream\tsnapshot\tlayer\trole\tposition\thead\tchannel\ta\tb");
        tsv_tensor(d->now, "value");
        printf("%" PRId64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t%s\n", position, head, channel, text[0],
               text[1]);
    } else {
        kvc_compared_label(d->now, d->now, label, sizeof label);
        printf("%s position %" PRId64 " head %" PRIu64 " channel %" PRIu64 ": %s in A, %s in B\n",
               label, position, head, channel, text[0], text[1]);
    }
    return 0;
}

static void tsv_measures(const struct kvc_difference *x) {
    const double v[] = {x->max_abs, x->rms, x->frobenius, x->cosine};
    char text[32];
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        cli_double_text(v[i], text);
        printf("\t%s", text);
    }
}

void diff_tsv_counts(const struct kvc_difference *x) {
    printf("%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, x->differ, x->values, x->nonfinite);
    tsv_measures(x);
}

void diff_tsv_head(const struct kvc_compared *t, uint64_t head, const struct kvc_difference *x) {
    char text[2][32];
    tsv_tensor(t, "head");
    printf("%" PRIu64 "\t", head);
    diff_tsv_counts(x);
    if (x->differ) {
        cli_float_text((float)x->at_a, text[0]);
        cli_float_text((float)x->at_b, text[1]);
        printf("\t%" PRId64 "\t%" PRIu64 "\t%s\t%s\n", x->at_position, x->at_channel, text[0],
               text[1]);
    } else {
        fputs("\t\t\t\t\n", stdout);
    }
}

static void print_head(struct diff_comparison *d, uint64_t head, const struct kvc_difference *x) {
    char label[128];
    if (!d->headed)
        printf("%-20s %5s %10s %10s %12s %12s %12s %12s\n", "tensor", "head", "differ", "values",
               "max-abs", "rms", "frobenius", "cosine");
    d->headed = 1;
    kvc_compared_label(d->now, d->now, label, sizeof label);
    printf("%-20s %5" PRIu64 " %10" PRIu64 " %10" PRIu64 " %12.6g %12.6g %12.6g %12.9f\n", label,
           head, x->differ, x->values, x->max_abs, x->rms, x->frobenius, x->cosine);
}

void diff_print_tensor(struct diff_comparison *d, const struct kvc_difference *head, int unequal) {
    if (d->quiet || d->detail.by || (!unequal && !d->verbose)) return;
    if (d->style == DIFF_JSON) {
        json_tensor(d);
        if (d->detail.value) cli_json_close(&d->report.json);
        cli_json_open(&d->report.json, "heads", '[');
    }
    for (uint64_t h = 0; h < d->now->heads; h++) {
        if (!head[h].differ && !d->verbose) continue;
        if (d->style == DIFF_JSON) diff_json_head(&d->report.json, h, &head[h]);
        else if (d->style == DIFF_TSV) {
            diff_tsv_heading(d, DIFF_HEADED_HEAD, DIFF_TSV_HEAD);
            diff_tsv_head(d->now, h, &head[h]);
        } else print_head(d, h, &head[h]);
    }
    if (d->style == DIFF_JSON) {
        cli_json_close(&d->report.json);
        cli_json_close(&d->report.json);
    }
}

/* --- begin and end --- */

static void tsv_summary(const struct diff_comparison *d) {
    puts("#summary\tresult\tfacts\ttensors_differ\ttensors\t" DIFF_TSV_COUNTS);
    printf("summary\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64,
           diff_differs(d) ? "differ" : "same", d->facts, d->unequal, d->compared, d->total.differ,
           d->values, d->total.nonfinite);
    if (d->unequal) tsv_measures(&d->total);
    else fputs("\t\t\t\t", stdout);
    putchar('\n');
}

static void print_summary(const struct diff_comparison *d) {
    const struct kvc_difference *x = &d->total;
    for (int s = 0; s < 2; s++) {
        cli_print_safe(stdout, d->file[s].source.name);
        putchar(' ');
    }
    printf("%s: %" PRIu64 " of %" PRIu64 " values in %" PRIu64 " of %" PRIu64 " tensors",
           diff_differs(d) ? "differ" : "are the same", x->differ, d->values, d->unequal,
           d->compared);
    if (d->facts) printf(", %" PRIu64 " other fact%s", d->facts, cli_s(d->facts));
    if (d->unequal)
        printf("; max-abs %.6g, rms %.6g, frobenius %.6g, cosine %.9f", x->max_abs, x->rms,
               x->frobenius, x->cosine);
    if (x->nonfinite) printf(", %" PRIu64 " not finite", x->nonfinite);
    putchar('\n');
}

static void json_begin(struct diff_comparison *d, const char *a, const char *b) {
    cli_report_alone(&d->report, stdout);
    cli_json_text(&d->report.json, "a", a);
    cli_json_text(&d->report.json, "b", b);
}

void diff_begin(struct diff_comparison *d) {
    d->reached = DIFF_AT_FACTS;
    if (d->quiet || d->style != DIFF_JSON) return;
    json_begin(d, d->file[0].source.name, d->file[1].source.name);
    cli_json_open(&d->report.json, "facts", '[');
}

void diff_failed(struct diff_comparison *d, const char *a, const char *b,
                 const struct kvc_error *e) {
    if (d->quiet || d->style != DIFF_JSON) return;
    if (!d->report.json.out) json_begin(d, a, b);
    cli_report_alone_end(&d->report, e);
}

void diff_begin_tensors(struct diff_comparison *d) {
    d->reached = DIFF_AT_TENSORS;
    if (d->quiet || d->style != DIFF_JSON) return;
    cli_json_close(&d->report.json);
    if (d->detail.by) cli_json_text(&d->report.json, "by", diff_group_name[d->detail.by]);
    cli_json_open(&d->report.json, d->detail.by ? "groups" : "tensors", '[');
}

void diff_end(struct diff_comparison *d) {
    d->reached = DIFF_AT_END;
    if (d->quiet) return;
    if (d->style == DIFF_JSON) {
        cli_json_close(&d->report.json);
        diff_print_attention(d);
        diff_json_summary(&d->report.json, d);
        cli_report_alone_end(&d->report, NULL);
        return;
    }
    diff_print_attention(d);
    if (diff_differs(d) || d->verbose) {
        if (d->style == DIFF_TSV) tsv_summary(d);
        else print_summary(d);
    }
    diff_draw_layers(d);
}
