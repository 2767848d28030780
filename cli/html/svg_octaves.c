/* svg_octaves.c: a histogram of sizes by octave. */
#include "cli/html/svg_octaves.h"

#include "cli/html/svg.h"
#include "codecs/memory.h"

#include <math.h>
#include <stdlib.h>

int svg_octaves_range(struct svg_octaves *o) {
    o->low = KVC_ERROR_OCTAVES;
    o->high = 0;
    for (size_t r = 0; r < o->n_rows; r++)
        for (unsigned i = 0; i < KVC_ERROR_OCTAVES; i++) {
            if (!o->row[r].count[i]) continue;
            if (i < o->low) o->low = i;
            if (i > o->high) o->high = i;
        }
    return o->low <= o->high;
}

int svg_octaves(FILE *out, const struct svg_octaves *o, struct kvc_error *e) {
    const unsigned n = o->high - o->low + 1;
    struct svg_scale scale = {.high = 0};
    size_t drawn = 0;
    double *y = kvc_alloc(o->n_rows * (uint64_t)n, sizeof *y);
    struct svg_series *series = kvc_alloc(o->n_rows, sizeof *series);
    const int status = y && series ? 0 : kvc_fail_memory(e, "a histogram");
    for (size_t r = 0; r < o->n_rows && !status; r++) {
        const struct svg_octave_row *row = &o->row[r];
        double *to = y + drawn * n;
        if (!(row->whole > 0)) continue;
        for (unsigned i = 0; i < n; i++) {
            to[i] = 100 * (double)row->count[o->low + i] / row->whole;
            scale.high = fmax(scale.high, to[i]);
        }
        series[drawn++] = (struct svg_series){row->name, row->color, to};
    }
    if (!status) {
        fprintf(out, "<figure><figcaption>%s</figcaption>\n", o->caption);
        svg_lines(out, &(struct svg_lines){.label = o->label,
                                           .x_word = o->x_word,
                                           .n = n,
                                           .series = series,
                                           .n_series = drawn,
                                           .scale = scale,
                                           .x_first = (double)o->low - KVC_ERROR_OCTAVE_0,
                                           .x_step = 1,
                                           .log2 = 1});
        fputs("</figure>\n", out);
    }
    free(series);
    free(y);
    return status;
}
