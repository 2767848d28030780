/* rans.h: frequency tables and streams of the 32-lane rANS coder, specified in rans.md. Not for the
 * meaning of symbols (the stages) or the inner loops (kernels/rans_state.h). */
#ifndef KVC_RANS_H
#define KVC_RANS_H

#include "codecs/bits.h"
#include "codecs/error.h"
#include "kernels/kernels.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_RANS_SYMBOLS (1 << KVC_RANS_SYMBOL_BITS)

/* Bytes of the words of a stream of n symbols at most, with the bytes below them that kernels may
 * touch. */
#define KVC_RANS_BOUND(n) (2 * (size_t)(n) + 16)
/* Bytes of one stored table at most (rans.md, "Tables"). */
#define KVC_RANS_TABLE_BOUND 6144

/* Lists the symbols whose counts are not 0, ascending, and returns their number. Most symbols of a
 * block do not occur. */
unsigned kvc_rans_list_counted(uint16_t *list, const uint32_t *count, unsigned alphabet);

/* Makes frequencies that sum to 2^bits, and that a table can hold, from counts of `alphabet`
 * symbols, an even number: the nearest numbers of three significant bits, at least 1 where the
 * count is not 0; the largest frequency is the rest. The number of counts above 0 must be from 1 to
 * 2^bits. */
void kvc_rans_normalise(uint16_t *frequency, const uint32_t *count, unsigned alphabet,
                        unsigned bits);

/* Appends a table of normalised frequencies, at most KVC_RANS_TABLE_BOUND bytes. */
void kvc_rans_table_write(struct kvc_bits *out, const uint16_t *frequency, unsigned alphabet);
/* Reads a table. Refuses a table that does not end within the limit, or whose frequencies do not
 * sum to 2^bits. */
int kvc_rans_table_read(struct kvc_bits *in, uint16_t *frequency, unsigned alphabet, unsigned bits,
                        struct kvc_error *e);

/* Make the tables of kernels: slots, as many as the frequencies sum to, with room for
 * KVC_RANS_SLACK more, which are overwritten; and a row per symbol. */
#define KVC_RANS_SLACK 8
void kvc_rans_decoding_table(uint32_t *slots, const uint16_t *frequency, unsigned alphabet);
void kvc_rans_encoding_table(struct kvc_rans_symbol *symbols, const uint16_t *frequency,
                             unsigned alphabet);

/* Begins a stream of `lanes` lanes (a power of two up to 32) whose words will end at `end`; rows
 * are then encoded from the last to the first. */
void kvc_rans_encode_begin(struct kvc_rans_encoder *r, unsigned lanes, uint8_t *end);
/* Writes the lanes' states, 4 * lanes bytes; r->next is the first of the words. */
void kvc_rans_encode_end(const struct kvc_rans_encoder *r, uint8_t *states);

/* Begins a stream with these states and `size` bytes of words. Refuses a state below 2^16. */
int kvc_rans_decode_begin(struct kvc_rans_decoder *r, unsigned lanes, const uint8_t *states,
                          const uint8_t *words, size_t size, struct kvc_error *e);
/* Refuses a stream that did not end in its start state with its last word. */
int kvc_rans_decode_end(const struct kvc_rans_decoder *r, struct kvc_error *e);

#endif
