/* error_sums.c: sums of the errors of one tensor by row, by channel and by size. Not for drawing
 * them (cli/html). */
#include "formats/compare/error_sums.h"

#include "codecs/memory.h"
#include "formats/api/sized.h"

#include <math.h>
#include <stdlib.h>

static void add(struct kvc_error_sum *total, const struct kvc_error_sum *part) {
    total->dd += part->dd;
    total->aa += part->aa;
}

int kvc_error_sums_start(struct kvc_error_sums *s, uint64_t rows, uint64_t channels,
                         struct kvc_error *e) {
    *s = (struct kvc_error_sums){.size = sizeof *s, .rows = rows, .channels = channels};
    s->row = kvc_alloc_zeros(rows, sizeof *s->row);
    s->channel = kvc_alloc_zeros(channels, sizeof *s->channel);
    if (!s->row || !s->channel) {
        kvc_error_sums_free(s);
        return kvc_fail_memory(e, "sums of errors");
    }
    return 0;
}

void kvc_error_sums_free(struct kvc_error_sums *s) {
    if (!s) return;
    free(s->row);
    free(s->channel);
    kvc_sized_clear(s);
}

unsigned kvc_error_octave(double error) {
    const int octave = ilogb(error) + KVC_OCTAVE_0;
    return octave < 0 ? 0 : octave < KVC_OCTAVES ? (unsigned)octave : KVC_OCTAVES - 1;
}

void kvc_error_sums_values(struct kvc_error_sums *s, uint64_t row, uint64_t first, const float *a,
                           const float *b, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(a[i]) || !isfinite(b[i])) {
            s->nonfinite++;
            continue;
        }
        const double x = (double)a[i], apart = fabs(x - (double)b[i]);
        const struct kvc_error_sum one = {apart * apart, x * x};
        add(&s->row[row], &one);
        add(&s->channel[first + i], &one);
        if (apart > 0) s->octave[kvc_error_octave(apart)]++;
        else s->zero++;
    }
}
