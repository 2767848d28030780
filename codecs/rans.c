/* rans.c: frequency tables and the frame of rANS streams. Spec: rans.md. Not for the loops over
 * symbols (kernels). */
#include "codecs/rans.h"

#include "codecs/little_endian.h"

#include <string.h>

enum { MAX_LEVEL = 40 }; /* of a frequency; more than 2^11 would need more */

/* Frequencies are stored as levels: 0 to 7 are themselves, from 8 on levels have three significant
 * bits. */
static unsigned level_frequency(unsigned level) {
    return level < 8 ? level : (4 + (level & 3)) << ((level >> 2) - 1);
}

/* The level nearest to x / 16, for x >= 0 below 2^16 * 16. */
static unsigned nearest_level(uint32_t x) {
    if (x < 8 * 16 - 8) return (x + 8) >> 4;
    /* e: of level_frequency, whose step is 2^e there; m: 4 to 8 */
    const unsigned top = 31 - (unsigned)__builtin_clz(x), e = top > 7 ? top - 6 : 1;
    const uint32_t m = (x + (UINT32_C(8) << e)) >> (4 + e);
    return (e + 1) * 4 + (m - 4);
}

/* Neither list has a branch for each symbol: which of them occur cannot be foreseen. */
unsigned kvc_rans_list_counted(uint16_t *list, const uint32_t *count, unsigned alphabet) {
    unsigned n = 0, s = 0;
    for (uint64_t four[4]; s + 8 <= alphabet; s += 8) {
        memcpy(four, count + s, sizeof four);
        if (!(four[0] | four[1] | four[2] | four[3])) continue;
        for (unsigned i = s; i < s + 8; i++) {
            list[n] = (uint16_t)i;
            n += count[i] != 0;
        }
    }
    for (; s < alphabet; s++)
        if (count[s]) list[n++] = (uint16_t)s;
    return n;
}

/* Lists the symbols whose frequencies are not 0, ascending, and returns their number. */
static unsigned list_used(uint16_t *list, const uint16_t *frequency, unsigned alphabet) {
    unsigned n = 0, s = 0;
    for (uint64_t two[2]; s + 8 <= alphabet; s += 8) {
        memcpy(two, frequency + s, sizeof two);
        if (!(two[0] | two[1])) continue;
        for (unsigned i = s; i < s + 8; i++) {
            list[n] = (uint16_t)i;
            n += frequency[i] != 0;
        }
    }
    for (; s < alphabet; s++)
        if (frequency[s]) list[n++] = (uint16_t)s;
    return n;
}

void kvc_rans_normalise(uint16_t *frequency, const uint32_t *count, unsigned alphabet,
                        unsigned bits) {
    const uint32_t whole = UINT32_C(1) << bits;
    uint16_t used[KVC_RANS_SYMBOLS];
    uint8_t level[KVC_RANS_SYMBOLS];
    uint64_t total = 0;
    uint32_t sum = 0, share[KVC_RANS_SYMBOLS]; /* of `whole`, in sixteenths */
    unsigned big = 0;
    memset(frequency, 0, alphabet * sizeof *frequency);
    const unsigned n = kvc_rans_list_counted(used, count, alphabet);
    for (unsigned i = 0; i < n; i++) {
        total += count[used[i]];
        if (count[used[i]] > count[big]) big = used[i];
    }
    for (unsigned i = 0; i < n; i++) {
        share[i] = (uint32_t)(((uint64_t)count[used[i]] << (bits + 4)) / total);
        level[i] = (uint8_t)nearest_level(share[i]);
        if (!level[i]) level[i] = 1;
        if (used[i] != big) sum += level_frequency(level[i]);
    }
    if (n == 1) { /* a frequency of the whole does not fit in a slot */
        frequency[big ^ 1] = 1;
        frequency[big] = (uint16_t)(whole - 1);
        return;
    }
    /* The most frequent symbol takes what is left. Where rounding left it little, those that gained
     * most give way; at last all are ones, of which there are at most `whole`. */
    uint32_t least = (uint32_t)(((uint64_t)count[big] << bits) / total / 2) + 1;
    while (sum + least > whole) {
        unsigned worst = n;
        int64_t most = INT64_MIN;
        for (unsigned i = 0; i < n; i++) {
            int64_t excess = (int64_t)level_frequency(level[i]) * 16 - (int64_t)share[i];
            if (used[i] != big && level[i] > 1 && excess > most) most = excess, worst = i;
        }
        if (worst == n) break;
        sum -= level_frequency(level[worst]);
        sum += level_frequency(--level[worst]);
    }
    for (unsigned i = 0; i < n; i++) frequency[used[i]] = (uint16_t)level_frequency(level[i]);
    frequency[big] = (uint16_t)(whole - sum);
}

/* --- tables --- */

/* parameters of the codes of differences and of runs of absent symbols */
enum { RICE = 2, RUN = 3 };

/* Returns the number of zeros that the n bytes at p begin with. */
static unsigned leading_zeros(const uint8_t *p, unsigned n) {
    unsigned i = 0;
    for (uint64_t eight; i + 8 <= n; i += 8) {
        memcpy(&eight, p + i, 8);
        if (eight) break;
    }
    while (i < n && !p[i]) i++;
    return i;
}

void kvc_rans_table_write(struct kvc_bits *out, const uint16_t *frequency, unsigned alphabet) {
    uint8_t level[KVC_RANS_SYMBOLS] = {0};
    unsigned big = 0, greatest = 0, before = 0, last = 0;
    /* 1: `big` is the symbol whose frequency is no level's, and therefore the largest */
    int found = 0;
    uint16_t used[KVC_RANS_SYMBOLS];
    const unsigned n = list_used(used, frequency, alphabet);
    for (unsigned i = 0; i < n; i++) {
        const unsigned s = used[i];
        level[s] = (uint8_t)nearest_level((uint32_t)frequency[s] * 16);
        if (level_frequency(level[s]) != frequency[s]) {
            big = s;
            found = 1;
        } else if (!found && level[s] > level[big]) {
            big = s;
        }
    }
    for (unsigned i = 0; i < n; i++) {
        const unsigned s = used[i];
        if (s == big) before = greatest;
        else if (level[s] > greatest) greatest = level[s];
    }
    /* the first of the largest levels marks it */
    if (level[big] < greatest) level[big] = (uint8_t)greatest;
    if (level[big] == before) level[big]++;
    struct kvc_bits_held held = kvc_bits_hold(out);
    for (unsigned s = 0; s < alphabet; s++) {
        kvc_bits_held_rice(&held, kvc_zigzag((int)level[s] - (int)last), RICE);
        last = level[s];
        if (!last) {
            unsigned run = leading_zeros(level + s + 1, alphabet - s - 1);
            kvc_bits_held_rice(&held, run, RUN);
            s += run;
        }
    }
    kvc_bits_release(out, &held);
}

int kvc_rans_table_read(struct kvc_bits *in, uint16_t *frequency, unsigned alphabet, unsigned bits,
                        struct kvc_error *e) {
    const uint32_t whole = UINT32_C(1) << bits;
    unsigned last = 0, greatest = 0, big = 0;
    uint32_t sum = 0;
    for (unsigned s = 0; s < alphabet; s++) {
        last += (unsigned)kvc_unzigzag(kvc_bits_get_rice(in, RICE));
        if (last > MAX_LEVEL)
            return kvc_fail(e, KVC_ERR_DAMAGED, "a frequency table has a level out of range");
        frequency[s] = (uint16_t)level_frequency(last);
        sum += frequency[s];
        if (last > greatest) {
            greatest = last;
            big = s;
        }
        if (!last) {
            unsigned run = kvc_bits_get_rice(in, RUN);
            if (run >= alphabet - s)
                return kvc_fail(e, KVC_ERR_DAMAGED, "a frequency table's run is too long");
            memset(frequency + s + 1, 0, run * sizeof *frequency);
            s += run;
        }
    }
    if (in->bad) return kvc_fail(e, KVC_ERR_DAMAGED, "a frequency table has no end");
    sum -= frequency[big];
    if (!sum || sum >= whole)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the frequencies of a table do not make 2^%u", bits);
    frequency[big] = (uint16_t)(whole - sum);
    return 0;
}

void kvc_rans_decoding_table(uint32_t *slots, const uint16_t *frequency, unsigned alphabet) {
    uint16_t used[KVC_RANS_SYMBOLS];
    const unsigned n = list_used(used, frequency, alphabet);
    for (unsigned k = 0; k < n; k++) {
        const unsigned s = used[k];
        const uint32_t slot = KVC_RANS_SLOT(s, 0, frequency[s]);
        for (unsigned i = 0; i < frequency[s]; i += KVC_RANS_SLACK)
            for (unsigned j = 0; j < KVC_RANS_SLACK; j++)
                slots[i + j] = slot + KVC_RANS_SLOT(0, i + j, 0);
        slots += frequency[s];
    }
}

void kvc_rans_encoding_table(struct kvc_rans_symbol *symbols, const uint16_t *frequency,
                             unsigned alphabet) {
    uint16_t used[KVC_RANS_SYMBOLS];
    const unsigned n = list_used(used, frequency, alphabet);
    unsigned first = 0;
    for (unsigned i = 0; i < n; i++) {
        const unsigned s = used[i];
        const uint32_t f = frequency[s];
        /* 2^(shift + 1) >= f */
        const unsigned shift = f > 1 ? 31 - (unsigned)__builtin_clz(f - 1) : 0;
        /* Rounded up, the reciprocal is exact for all 32-bit x when its error times f is at most
         * 2^shift; else rounded down, with x + 1. That of 1 is rounded down to 32 bits. */
        uint64_t power = UINT64_C(1) << (32 + shift), down = power / f, error = power - down * f;
        int up = f > 1 && (!error || f - error <= UINT64_C(1) << shift);
        symbols[s].reciprocal = (uint32_t)(f == 1 ? UINT32_MAX : up && error ? down + 1 : down);
        symbols[s].packed = KVC_RANS_PACKED(f, first, shift, !up);
        first += f;
    }
}

/* --- streams --- */

void kvc_rans_encode_begin(struct kvc_rans_encoder *r, unsigned lanes, uint8_t *end) {
    r->lanes = lanes;
    for (unsigned i = 0; i < lanes; i++) r->x[i] = KVC_RANS_START;
    r->next = end;
}

void kvc_rans_encode_end(const struct kvc_rans_encoder *r, uint8_t *states) {
    for (unsigned i = 0; i < r->lanes; i++) put_u32(states + 4 * i, r->x[i]);
}

int kvc_rans_decode_begin(struct kvc_rans_decoder *r, unsigned lanes, const uint8_t *states,
                          const uint8_t *words, size_t size, struct kvc_error *e) {
    r->lanes = lanes;
    for (unsigned i = 0; i < lanes; i++) {
        r->x[i] = get_u32(states + 4 * i);
        if (r->x[i] < KVC_RANS_START)
            return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream begins out of range");
    }
    r->next = words;
    r->end = words + size;
    r->missing = 0;
    return 0;
}

int kvc_rans_decode_end(const struct kvc_rans_decoder *r, struct kvc_error *e) {
    if (r->missing) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream is too short");
    if (r->next != r->end) return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream is too long");
    for (unsigned i = 0; i < r->lanes; i++)
        if (r->x[i] != KVC_RANS_START)
            return kvc_fail(e, KVC_ERR_DAMAGED, "an rANS stream does not end in its start state");
    return 0;
}
