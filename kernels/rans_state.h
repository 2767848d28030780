/* rans_state.h: the state of 32-lane interleaved rANS, which the kernels of all instruction sets
 * share. The format is specified in codecs/rans.md. Not for making and checking tables and streams
 * (codecs/rans.c).
 *
 * The lowest `bits` bits of a lane's state x give its symbol; then
 * x = frequency * (x >> bits) + (x & mask) - (sum of the frequencies of lower symbols), and a lane
 * whose state fell below 2^16 takes the next 16-bit word (Duda, arXiv:1311.2540; the interleaving
 * is Giesen's, arXiv:1402.3392). */
#ifndef KVC_RANS_KERNELS_H
#define KVC_RANS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* at most; short streams have fewer lanes, as each lane's state costs four bytes */
#define KVC_RANS_LANES 32
/* every lane's state before the first and after the last symbol */
#define KVC_RANS_START (UINT32_C(1) << 16)
#define KVC_RANS_MAX_BITS 11 /* of a table: frequencies sum to 2^bits */
#define KVC_RANS_MIN_BITS 8
#define KVC_RANS_SYMBOL_BITS 10 /* symbols are below 2^10 */

/* One slot of a decoding table of 2^bits slots: symbol | (slot - first slot of the symbol) << 10 |
 * frequency << 21. */
#define KVC_RANS_SLOT(symbol, offset, frequency) \
    ((uint32_t)(symbol) | (uint32_t)(offset) << 10 | (uint32_t)(frequency) << 21)

struct kvc_rans_decoder {
    uint32_t x[KVC_RANS_LANES];
    unsigned lanes;            /* a power of two */
    const uint8_t *next, *end; /* words not yet taken, two bytes each */
    size_t missing;            /* words that were read beyond the end, as 0 */
};

/* How one symbol is encoded: the quotient x / frequency is ((x + add) * reciprocal) >> (32 +
 * shift), exact for every x < 2^32 - 2^21 (Granlund and Montgomery 1994, by whichever rounding of
 * the reciprocal is close enough). */
struct kvc_rans_symbol {
    uint32_t reciprocal;
    /* frequency | first slot << 11 | shift << 22 | add << 26; a frequency of 0 cannot be encoded */
    uint32_t packed;
};
#define KVC_RANS_PACKED(frequency, first, shift, add)                            \
    ((uint32_t)(frequency) | (uint32_t)(first) << 11 | (uint32_t)(shift) << 22 | \
     (uint32_t)(add) << 26)

struct kvc_rans_encoder {
    uint32_t x[KVC_RANS_LANES];
    unsigned lanes;
    uint8_t *next; /* words are written downwards from here */
};

#endif
