/* diff_print_attention.c: prints the measures of attention as text, JSON or TSV. Not for measuring
 * (diff_attention.c). */
#include "cli/diff/diff_json.h"
#include "cli/kld_text.h"

#include <inttypes.h>
#include <string.h>

enum { MEASURES = 4 };

static void make_measures(struct kvc_attention *a, double m[MEASURES]) {
    m[0] = kvc_attention_logit_rms(a);
    m[1] = kvc_attention_kl(a);
    m[2] = kvc_attention_output(a, 0.5);
    m[3] = kvc_attention_output(a, 0.99);
}

static void tsv_measures(struct kvc_attention *a) {
    double m[MEASURES];
    char text[32];
    make_measures(a, m);
    printf("\t%" PRIu64, a->queries);
    for (int i = 0; i < MEASURES; i++) {
        cli_double_text(m[i], text);
        printf("\t%s", text);
    }
    putchar('\n');
}

static void text_measures(struct kvc_attention *a) {
    double m[MEASURES];
    make_measures(a, m);
    printf(" %10" PRIu64 " %12.6g %12.6g %12.6g %12.6g\n", a->queries, m[0], m[1], m[2], m[3]);
}

static void say_kl(double kl) {
    char text[160];
    if (kl > 0)
        printf("a kl of %.2g nats: %s\n", kl,
               cli_kld_text(CLI_KLD_ATTENTION, kl, text, sizeof text));
}

void diff_print_attention(struct diff_comparison *d) {
    static const char heading[] =
        "#attention\tpart\tstream\tlayer\thead\tqueries\tlogit_rms\tkl\toutput_median\toutput_p99";
    if (!d->attention) return;
    if (d->style == DIFF_JSON) {
        diff_json_attention(&d->report.json, &d->attended);
        return;
    }
    if (d->style == DIFF_TEXT)
        printf("%-20s %5s %10s %12s %12s %12s %12s\n", "attention", "head", "queries", "logit-rms",
               "kl", "out-median", "out-p99");
    for (size_t i = 0; i < d->attended.n; i++) {
        const struct kvc_attended_layer *l = &d->attended.layer[i];
        char label[128];
        diff_layers_label(l->k, l->k, label, sizeof label);
        /* without the role " K", because the measures are of K and V */
        label[strlen(label) - 2] = '\0';
        for (uint64_t h = 0; h < l->heads; h++) {
            if (d->style == DIFF_TSV) {
                diff_tsv_heading(d, DIFF_HEADED_ATTENTION, heading);
                printf("attention\t%s\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu64,
                       kvc_part_kind_name(l->k->parts->part[0]->kind), l->k->parts->part[0]->stream,
                       l->k->layer, h);
                tsv_measures(&l->head[h]);
            } else {
                printf("%-20s %5" PRIu64, label, h);
                text_measures(&l->head[h]);
            }
        }
    }
    if (d->style == DIFF_TSV) {
        diff_tsv_heading(d, DIFF_HEADED_ATTENTION, heading);
        fputs("attention\tall\t\t\t", stdout);
        tsv_measures(&d->attended.all);
    } else {
        printf("%-20s %5s", "all layers", "");
        text_measures(&d->attended.all);
        say_kl(kvc_attention_kl(&d->attended.all));
    }
}
