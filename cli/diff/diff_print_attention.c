/* diff_print_attention.c: prints the measures of attention as text, JSON or TSV. Not for measuring
 * (formats/compare). */
#include "cli/diff/diff.h"
#include "cli/kld_text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static void tsv_measures(const struct kvc_attention_measures *a) {
    const double m[] = {a->logit_rms, a->kl, a->output_median, a->output_p99};
    char text[32];
    printf("\t%" PRIu64, a->queries);
    for (size_t i = 0; i < sizeof m / sizeof *m; i++) {
        cli_double_text(m[i], text);
        printf("\t%s", text);
    }
    putchar('\n');
}

/* Takes the sign of what is not a number, which arithmetic gives it or not. */
static double unsigned_nan(double v) {
    return isnan(v) ? (double)NAN : v;
}

static void text_measures(const struct kvc_attention_measures *a) {
    printf(" %10" PRIu64 " %12.6g %12.6g %12.6g %12.6g\n", a->queries, unsigned_nan(a->logit_rms),
           unsigned_nan(a->kl), unsigned_nan(a->output_median), unsigned_nan(a->output_p99));
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
    struct kvc_attention_measures m = {.size = sizeof m};
    const struct kvc_compared *k;
    if (!d->how.attention) return;
    if (d->style == DIFF_JSON) {
        diff_json_attention(&d->report.json, d->steps);
        return;
    }
    if (d->style == DIFF_TEXT)
        printf("%-20s %5s %10s %12s %12s %12s %12s\n", "attention", "head", "queries", "logit-rms",
               "kl", "out-median", "out-p99");
    for (size_t i = 0; kvc_comparing_attended(d->steps, i, 0, &m); i++)
        for (uint64_t h = 0; (k = kvc_comparing_attended(d->steps, i, h, &m)) != NULL; h++) {
            if (d->style == DIFF_TSV) {
                diff_tsv_heading(d, DIFF_HEADED_ATTENTION, heading);
                printf("attention\t%s\t%" PRIu32 "\t%" PRIu32 "\t%" PRIu64, k->part, k->stream,
                       k->layer, h);
                tsv_measures(&m);
                continue;
            }
            char label[128];
            kvc_compared_label(k, k, label, sizeof label);
            /* without the role " K", because the measures are of K and V */
            label[strlen(label) - 2] = '\0';
            printf("%-20s %5" PRIu64, label, h);
            text_measures(&m);
        }
    kvc_comparing_attended_all(d->steps, &m);
    if (d->style == DIFF_TSV) {
        diff_tsv_heading(d, DIFF_HEADED_ATTENTION, heading);
        fputs("attention\tall\t\t\t", stdout);
        tsv_measures(&m);
    } else {
        printf("%-20s %5s", "all layers", "");
        text_measures(&m);
        say_kl(m.kl);
    }
}
