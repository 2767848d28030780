/* diff_strips.c: draws the relative errors of layers below the summary of kvc-diff. Not for numbers
 * (diff_print.c). */
#include "cli/diff/diff.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int diff_note_layer(struct diff_comparison *d, const struct kvc_compared *pair,
                    const struct kvc_difference *all, struct kvc_error *e) {
    if (!d->canvas.plots || d->quiet || d->style != DIFF_TEXT) return 0;
    struct diff_layer *grown = cli_room_for_one(d->layer, d->n_layers, sizeof *grown);
    if (!grown) return cli_no_memory(e, "the errors of layers");
    d->layer = grown;
    d->layer[d->n_layers++] = (struct diff_layer){pair, all->frobenius};
    return 0;
}

/* Good caches of 8 bits differ by less than a percent, of 4 bits by up to a tenth. */
static enum cli_color color_of(double error) {
    return error < 0.01 ? CLI_GREEN : error < 0.1 ? CLI_YELLOW : CLI_RED;
}

/* Draws the layers of one part and role, which begin at `first`. */
static void draw(const struct diff_comparison *d, size_t first, double largest, double *value) {
    const struct kvc_compared *pair = d->layer[first].pair, *last = pair, *worst = pair;
    double most = 0;
    char label[128], end[32], error[32];
    size_t n = 0;
    for (size_t i = first; i < d->n_layers; i++) {
        const struct kvc_compared *p = d->layer[i].pair;
        if (p->parts != pair->parts || strcmp(p->role, pair->role) != 0) continue;
        value[n++] = d->layer[i].error;
        last = p;
        if (d->layer[i].error > most) {
            most = d->layer[i].error;
            worst = p;
        }
    }
    kvc_compared_label(pair, last, label, sizeof label);
    snprintf(end, sizeof end, "layer %" PRIu32, worst->layer);
    snprintf(error, sizeof error, "%.3g", most);
    printf("%-20s ", label);
    cli_strip(&d->canvas, stdout, value, n, largest, color_of);
    printf("  largest %s%s%s\n", error, most > 0 ? ", " : "", most > 0 ? end : "");
}

void diff_draw_layers(const struct diff_comparison *d) {
    double largest = 0;
    if (!d->n_layers) return;
    double *value = calloc(d->n_layers, sizeof *value);
    if (!value) return; /* a picture is not worth an error */
    for (size_t i = 0; i < d->n_layers; i++)
        if (d->layer[i].error > largest) largest = d->layer[i].error;
    if (largest > 0) puts("relative error by layer:");
    for (size_t i = 0; i < d->n_layers && largest > 0; i++) {
        size_t before = 0;
        while (before < i && (d->layer[before].pair->parts != d->layer[i].pair->parts ||
                              strcmp(d->layer[before].pair->role, d->layer[i].pair->role) != 0))
            before++;
        if (before == i) draw(d, i, largest, value);
    }
    free(value);
}
