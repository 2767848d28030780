/* diff_scatter.c: the picture of the values of the worst head in the report of kvc-diff. Not for heatmaps (diff_pictures.c) and
 * curves (diff_curves.c). */
#include "cli/html/diff_report.h"

#include "cli/html/page.h"
#include "cli/html/svg_scatter.h"
#include "codecs/memory.h"
#include "formats/compare/head_sample.h"

#include <inttypes.h>
#include <stdlib.h>

enum { MOST = 2000, MOST_WORST = 50 };

/* Turns pairs into points: the value in A, and the error. */
static void make_points(const float (*pair)[2], size_t n, double (*to)[2]) {
    for (size_t i = 0; i < n; i++) {
        to[i][0] = (double)pair[i][0];
        to[i][1] = (double)pair[i][1] - (double)pair[i][0];
    }
}

static void caption(FILE *out, const char *head, const struct kvc_head_sample *s) {
    fputs("<figure><figcaption>", out);
    html_say(out, "%s: the error b \xe2\x88\x92 a of values (vertical) by the value a (horizontal). ", head);
    if (s->n < s->values)
        html_say(out, "%zu of %" PRIu64 " values, spread evenly over positions and channels, and the %zu with the largest errors",
                 s->n, s->values, s->n_worst);
    else html_say(out, "All %zu values; the largest errors, %zu, are marked", s->n, s->n_worst);
    fputs("</figcaption>\n", out);
}

static int draw(FILE *out, const char *head, const struct kvc_head_sample *s, struct kvc_error *e) {
    double(*at)[2] = kvc_alloc(s->n + s->n_worst, sizeof *at), (*worst)[2] = at ? at + s->n : NULL;
    char label[256];
    if (!at) return kvc_fail_memory(e, "a picture of values");
    make_points((const float(*)[2])s->value, s->n, at);
    make_points((const float(*)[2])s->worst, s->n_worst, worst);
    const struct svg_points points[] = {{"values", "k", s->n, (const double(*)[2])at},
                                        {"the largest errors", "v", s->n_worst, (const double(*)[2])worst}};
    snprintf(label, sizeof label, "Errors of the values of %s", head);
    caption(out, head, s);
    svg_scatter(out,
                &(struct svg_scatter){.label = label, .x_word = "value in A", .points = points, .n_points = s->n_worst ? 2 : 1});
    fputs("</figure>\n", out);
    free(at);
    return 0;
}

int diff_report_values(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    const struct diff_worst worst = diff_collect_worst(d->collected);
    struct kvc_head_sample s;
    char tensor[128], head[160];
    if (!worst.tensor) return 0;
    int status = kvc_head_sample_take(d->cache, worst.tensor->pair, worst.head, MOST, MOST_WORST, &s, e);
    diff_layers_label(worst.tensor->pair, worst.tensor->pair, tensor, sizeof tensor);
    snprintf(head, sizeof head, "%s head %" PRIu64, tensor, worst.head);
    if (!status && s.n) {
        html_section(out, "values", "Values of the worst head");
        status = draw(out, head, &s, e);
    }
    kvc_head_sample_free(&s);
    return status;
}
