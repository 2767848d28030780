/* code_cost.c: costs of codes, from the fixed tables. */
#include "codecs/stages/code/code_cost.h"

#include "codecs/stages/code/code_plan.h"

#include <math.h>
#include <pthread.h>

static uint32_t size_of_bin(unsigned bin) {
    if (bin < KVC_CODE_FINE_BINS) return bin;
    const unsigned octave = (bin - KVC_CODE_FINE_BINS) / 8 + 6,
                   part = (bin - KVC_CODE_FINE_BINS) % 8;
    return (8 + part) << (octave - 3);
}

/* Bits of a code of this size, of either sign, at an index, whose table has frequencies f. */
static double cost_of(unsigned index, const uint16_t *f, uint32_t size) {
    const unsigned shift = kvc_code_shift(index);
    const uint32_t r = (size + (shift ? 1u << (shift - 1) : 0)) >> shift;
    const unsigned found = r < KVC_CODE_MIDDLE ? f[KVC_CODE_MIDDLE + r] : 0;
    if (found) return KVC_CODE_BITS - log2(found) + shift;
    return KVC_CODE_BITS - log2(f[KVC_CODE_ESCAPE]) + KVC_CODE_LENGTH_BITS + log2(r) + 2 + shift;
}

static double cost_table[KVC_CODE_INDICES][KVC_CODE_BINS];
static pthread_once_t cost_once = PTHREAD_ONCE_INIT;

static void make_costs(void) {
    for (unsigned i = 0; i < KVC_CODE_INDICES; i++) {
        uint16_t frequency[KVC_CODE_SYMBOLS];
        kvc_code_frequencies(frequency, kvc_code_table(i));
        for (unsigned b = 0; b < KVC_CODE_BINS; b++)
            cost_table[i][b] = cost_of(i, frequency, size_of_bin(b));
    }
}

const double *kvc_code_costs(unsigned index) {
    pthread_once(&cost_once, make_costs);
    return cost_table[index];
}
