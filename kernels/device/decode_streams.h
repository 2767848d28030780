/* decode_streams.h: what the device decoder makes before it can make rows: numbers out of halves, slots of rANS tables, and the
 * symbols of rANS streams, a warp a stream and a lane a lane (codecs/rans.md, split.md, channels.md, code.md, floats.md). One
 * source for GPU and host. Jobs bound what they read by the sizes that their makers checked; what depends on the data itself is
 * checked here. Not for rows (decode_rows.h). */
#ifndef KVC_DECODE_STREAMS_H
#define KVC_DECODE_STREAMS_H

#include "kernels/device/decode_values.h"
#include "kernels/rans_state.h"

/* Bits below this lane's. */
#define KVC_BEFORE(mask) ((mask) & ((1u << lane) - 1))

/* Numbers stored as halves (floats.md) become binary32.
 * at: lower bytes, codes of upper bytes, escapes, the numbers. n: how many, zeros, width, base, rotated, escapes. f[0]: 2^E. */
KVC_DEVICE uint32_t kvc_job_halves(const struct kvc_device_job *job) {
    const uint8_t *lower = KVC_BYTES(job->at[0]), *codes = KVC_BYTES(job->at[1]), *escapes = KVC_BYTES(job->at[2]);
    float *to = (float *)(uintptr_t)job->at[3];
    const uint32_t n = job->n[0], zeros = job->n[1], width = job->n[2], base = job->n[3], rotated = job->n[4];
    uint32_t used = 0, fault = 0;
    for (uint32_t first = 0; first < n; first += KVC_LANES) {
        KVC_LANE_VAR(uint32_t, code);
        KVC_LANE_VAR(uint32_t, escaped);
        KVC_LANE_VAR(uint32_t, wild);
        KVC_EACH_LANE {
            const uint32_t i = first + lane;
            KVC_AT(code) = i < n ? kvc_unpack(codes, i, width) : 0;
            KVC_AT(escaped) = i < n && width < 8 && KVC_AT(code) == (1u << width) - 1;
        }
        const uint32_t mask = kvc_ballot(escaped);
        KVC_EACH_LANE {
            const uint32_t i = first + lane;
            uint32_t upper = KVC_AT(code);
            KVC_AT(wild) = 0;
            if (KVC_AT(escaped)) {
                const uint32_t at = used + kvc_count_bits(KVC_BEFORE(mask));
                KVC_AT(wild) = at >= job->n[5];
                upper = KVC_AT(wild) ? 0 : escapes[at];
            } else if (width < 8) {
                upper = (upper + base) & 255u;
                if (rotated) upper = (upper >> 1 | upper << 7) & 255u;
            }
            if (i < n) {
                const uint32_t low = zeros == 8 ? 0 : kvc_unpack(lower, i, 8 - zeros) << zeros;
                KVC_AT(wild) |= (upper & 0x7cu) == 0x7cu;
                to[i] = kvc_times(kvc_from_half(upper << 8 | low), job->f[0]);
            }
        }
        used += kvc_count_bits(mask);
        if (kvc_ballot(wild)) fault = KVC_FAULT_NUMBER;
    }
    return used == job->n[5] ? fault : KVC_FAULT_NUMBER;
}

/* Slots of a decoding table (rans_state.h) out of its symbols.
 * at: u32 each, symbol | frequency << 16, ascending; the slots, as many as the frequencies sum to. n: symbols. */
KVC_DEVICE uint32_t kvc_job_slots(const struct kvc_device_job *job) {
    const uint32_t *entry = KVC_WORDS(job->at[0]);
    uint32_t *to = (uint32_t *)(uintptr_t)job->at[1];
    for (uint32_t i = 0; i < job->n[0]; i++) {
        const uint32_t symbol = entry[i] & 0xffffu, frequency = entry[i] >> 16;
        KVC_EACH_LANE {
            for (uint32_t j = lane; j < frequency; j += KVC_LANES) to[j] = KVC_RANS_SLOT(symbol, j, frequency);
        }
        to += frequency;
    }
    return 0;
}

/* An rANS stream on its way; states are the lanes'. */
struct kvc_stream {
    const uint8_t *words;
    uint32_t size, next; /* bytes; next may be beyond size when words were missing */
    uint32_t lanes, bits;
};

KVC_DEVICE void kvc_stream_begin(struct kvc_stream *s, uint64_t words, uint32_t size, uint32_t lanes, uint32_t bits) {
    s->words = KVC_BYTES(words);
    s->size = size;
    s->next = 0;
    s->lanes = lanes;
    s->bits = bits;
}

#ifdef __CUDACC__
#define KVC_LANES_OF(x) (&(x))
#define KVC_OF(x) (*(x))
#else
#define KVC_LANES_OF(x) (x)
#define KVC_OF(x) ((x)[lane])
#endif

/* The first `active` lanes take a symbol each, with the table at table + base; lanes whose state falls below 2^16 take a word,
 * ascending. */
KVC_DEVICE void kvc_stream_take(struct kvc_stream *s, uint32_t *state, uint32_t *symbol, const uint32_t *table,
                                const uint32_t *base, uint32_t active) {
    KVC_LANE_VAR(uint32_t, hungry);
    KVC_EACH_LANE {
        KVC_AT(hungry) = 0;
        if (lane < active) {
            const uint32_t x = KVC_OF(state), slot = table[KVC_OF(base) + (x & ((1u << s->bits) - 1))];
            KVC_OF(symbol) = slot & 1023u;
            KVC_OF(state) = (slot >> 21) * (x >> s->bits) + (slot >> 10 & 2047u);
            KVC_AT(hungry) = KVC_OF(state) < KVC_RANS_START;
        }
    }
    const uint32_t mask = kvc_ballot(hungry);
    KVC_EACH_LANE {
        if (KVC_AT(hungry)) {
            const uint32_t at = s->next + 2 * kvc_count_bits(KVC_BEFORE(mask));
            KVC_OF(state) = KVC_OF(state) << 16 | (at + 2 <= s->size ? kvc_aligned16(s->words + at) : 0);
        }
    }
    s->next += 2 * kvc_count_bits(mask);
    if (s->next > s->size + 2 * KVC_LANES) s->next = s->size + 2 * KVC_LANES; /* missing words do not add up beyond 32 bits */
}

/* Loads the lanes' states; 0 when they are what a stream may begin with. */
KVC_DEVICE uint32_t kvc_stream_load(const struct kvc_stream *s, uint32_t *state, uint64_t states) {
    KVC_LANE_VAR(uint32_t, bad);
    KVC_EACH_LANE {
        KVC_OF(state) = lane < s->lanes ? kvc_load32(KVC_BYTES(states) + 4 * lane) : KVC_RANS_START;
        KVC_AT(bad) = KVC_OF(state) < KVC_RANS_START;
    }
    return kvc_ballot(bad) ? KVC_FAULT_STREAM : 0;
}

/* 0 when every lane is where it should end, and every word was taken. */
KVC_DEVICE uint32_t kvc_stream_end(const struct kvc_stream *s, const uint32_t *state) {
    KVC_LANE_VAR(uint32_t, bad);
    KVC_EACH_LANE { KVC_AT(bad) = KVC_OF(state) != KVC_RANS_START; }
    return kvc_ballot(bad) || s->next != s->size ? KVC_FAULT_STREAM : 0;
}

/* --- split: words of a stream, with the channel model --- */

/* Cosines and sines of a head's channels go from one row to the next. */
KVC_DEVICE void kvc_model_turn_row(const struct kvc_device_job *job, uint32_t *cosine, uint32_t *sine) {
    const uint32_t period = job->n[8];
    const float *step = KVC_FLOATS(job->at[5]);
    KVC_LANES_MEET(); /* all have read the row before */
    KVC_EACH_LANE {
        for (uint32_t d = lane; d < period; d += KVC_LANES) {
            const float c = kvc_as_float(cosine[d]), s = kvc_as_float(sine[d]);
            cosine[d] = kvc_as_bits(kvc_add(kvc_times(c, step[d]), -kvc_times(s, step[period + d])));
            sine[d] = kvc_as_bits(kvc_add(kvc_times(s, step[d]), kvc_times(c, step[period + d])));
        }
    }
    KVC_LANES_MEET();
}

/* How words are made of numbers: u32 sign bit | cut << 8, rebias, low bits. */
struct kvc_word_form {
    uint32_t sign_cut, rebias, shift;
};

/* Bias and context of a word whose channel lies at m, in the low and the high half. */
KVC_DEVICE uint32_t kvc_model_word(const struct kvc_word_form *f, float m, float variance) {
    const uint32_t square = kvc_as_bits(kvc_add(kvc_times(m, m), variance)), steps = (square - kvc_as_bits(variance)) >> 22;
    const uint32_t sign = f->sign_cut & 255u, cut = f->sign_cut >> 8;
    const int32_t root = (int32_t)(square >> 1) + (127 << 22) - (int32_t)(f->rebias << 23);
    const uint32_t magnitude = ((uint32_t)(root < 0 ? 0 : root) + (1u << cut >> 1)) >> cut << f->shift & ((1u << sign) - 1);
    return magnitude | (kvc_as_bits(m) >> 31) << sign | (steps < 7 ? steps : 7) << 16;
}

/* The channel model (channels.md), as streams take it: where channels rest, bias and context of each (u32); where they turn, the
 * value, the partner and the variance of each (binary32, three arrays).
 * at: means (i8), spreads (u8), the model. n: channels, bits of a word, kind of model, period, first channel that turns << 16 |
 * pairs, and struct kvc_word_form. */
KVC_DEVICE uint32_t kvc_job_model(const struct kvc_device_job *job) {
    const int8_t *mean = (const int8_t *)(uintptr_t)job->at[0];
    const uint8_t *spread = KVC_BYTES(job->at[1]);
    const uint32_t n = job->n[0], bits = job->n[1], kind = job->n[2], period = job->n[3];
    const uint32_t start = job->n[4] >> 16, pairs = job->n[4] & 0xffffu, halves = (kind & KVC_MODEL_TURN) == 1;
    const struct kvc_word_form form = {job->n[5], job->n[6], job->n[7]};
    const float quarter = kvc_as_float(0x3e800000u);
    float *value = (float *)(uintptr_t)job->at[2], *partner = value + n, *variance = partner + n;
    uint32_t *model = (uint32_t *)(uintptr_t)job->at[2];
    KVC_EACH_LANE {
        for (uint32_t i = lane; i < n; i += KVC_LANES) {
            if (kind & KVC_MODEL_CODES) {
                const int32_t width = (int32_t)spread[i] - (int32_t)(117 + 2 * bits);
                model[i] = ((uint32_t)(int32_t)mean[i] & ((1u << bits) - 1)) | (uint32_t)(width < 0 ? 0 : width < 7 ? width : 7) << 16;
                continue;
            }
            const float wide = kvc_as_float((uint32_t)spread[i] << 23);
            const float m = kvc_times((float)mean[i], kvc_times(kvc_root(wide), quarter));
            if (!(kind & KVC_MODEL_TURN)) {
                model[i] = kvc_model_word(&form, m, wide);
                continue;
            }
            const uint32_t at = i % period - start;
            float other = 0;
            if (i % period >= start && at < 2 * pairs) {
                const uint32_t second = halves ? at >= pairs : at & 1, apart = halves ? pairs : 1, j = second ? i - apart : i + apart;
                other = kvc_times((float)mean[j], kvc_times(kvc_root(kvc_as_float((uint32_t)spread[j] << 23)), quarter));
                if (!second) other = -other;
            }
            value[i] = m;
            partner[i] = other;
            variance[i] = wide;
        }
    }
    return 0;
}

/* Words of one stream of `split`, as u16 into the matrix that holds them. The stream's words begin at an even address.
 * at: states, words, slots of all tables, low bits, the model (0: all biases and contexts are 0), a row's turn (cosines, then sines,
 * `period` each), the words. n: bytes of words, lanes, bits of tables, channels of a row, first row, rows, bits of a word, kind of
 * model, period, table of each context (4 bits each), and struct kvc_word_form.
 * `cosine`, `sine`: room for `period` words each. */
KVC_DEVICE uint32_t kvc_job_split(const struct kvc_device_job *job, uint32_t *cosine, uint32_t *sine) {
    const uint32_t channels = job->n[3], lanes = job->n[1], turns = job->n[7] & KVC_MODEL_TURN, period = job->n[8];
    const struct kvc_word_form form = {job->n[10], job->n[11], job->n[12]};
    const uint32_t shift = form.shift, mask = (1u << job->n[6]) - 1;
    const uint8_t *low = KVC_BYTES(job->at[3]);
    const uint32_t *resting = KVC_WORDS(job->at[4]);
    const float *value = KVC_FLOATS(job->at[4]);
    uint16_t *to = (uint16_t *)(uintptr_t)job->at[6];
    struct kvc_stream s;
    KVC_LANE_VAR(uint32_t, state);
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, model);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, channel); /* of its head */
    kvc_stream_begin(&s, job->at[1], job->n[0], lanes, job->n[2]);
    if (kvc_stream_load(&s, KVC_LANES_OF(state), job->at[0])) return KVC_FAULT_STREAM;
    if (turns) {
        KVC_EACH_LANE {
            for (uint32_t d = lane; d < period; d += KVC_LANES) {
                cosine[d] = kvc_as_bits(1);
                sine[d] = 0;
            }
        }
        KVC_LANES_MEET();
        for (uint32_t t = 0; t < job->n[4]; t++) kvc_model_turn_row(job, cosine, sine);
    }
    for (uint32_t t = job->n[4]; t < job->n[4] + job->n[5]; t++) {
        if (turns && t != job->n[4]) kvc_model_turn_row(job, cosine, sine);
        KVC_EACH_LANE { KVC_AT(channel) = turns ? lane % period : 0; }
        for (uint32_t first = 0; first < channels; first += lanes) {
            const uint32_t active = channels - first < lanes ? channels - first : lanes;
            KVC_EACH_LANE {
                KVC_AT(model) = 0;
                if (lane < active && turns) {
                    const uint32_t i = first + lane, d = KVC_AT(channel);
                    const float turned = kvc_times(value[channels + i], kvc_as_float(sine[d]));
                    const float m = kvc_add(kvc_times(value[i], kvc_as_float(cosine[d])), turned);
                    KVC_AT(model) = kvc_model_word(&form, m, value[2 * channels + i]);
                    KVC_AT(channel) += lanes;
                    while (KVC_AT(channel) >= period) KVC_AT(channel) -= period;
                } else if (lane < active && resting) {
                    KVC_AT(model) = resting[first + lane];
                }
                KVC_AT(base) = (job->n[9] >> (KVC_AT(model) >> 16) * 4 & 15u) << s.bits;
            }
            kvc_stream_take(&s, KVC_LANES_OF(state), KVC_LANES_OF(symbol), KVC_WORDS(job->at[2]), KVC_LANES_OF(base), active);
            KVC_EACH_LANE {
                if (lane < active) {
                    const uint64_t i = (uint64_t)t * channels + first + lane;
                    const uint32_t below = shift == 8 ? low[i] : shift ? kvc_unpack(low, (uint32_t)i, shift) : 0;
                    to[i] = (uint16_t)(((KVC_AT(symbol) << shift) + (KVC_AT(model) & 0xffffu) + below) & mask);
                }
            }
        }
    }
    return kvc_stream_end(&s, KVC_LANES_OF(state));
}

/* --- code: coefficients --- */

/* A string of bits, the lowest of each byte first. */
struct kvc_bit_string {
    const uint8_t *bytes;
    uint64_t at, limit; /* bits */
};

/* The next n <= 31 bits; zeros past the end, where `at` shows it. */
KVC_DEVICE uint32_t kvc_next_bits(struct kvc_bit_string *b, uint32_t n) {
    uint64_t window = 0;
    for (uint32_t i = 0; i < 5; i++)
        if (b->at / 8 + i < b->limit / 8) window |= (uint64_t)b->bytes[b->at / 8 + i] << 8 * i;
    window >>= b->at % 8;
    b->at += n;
    return (uint32_t)(window & ((UINT64_C(1) << n) - 1));
}

enum { KVC_CODE_LAST_WHOLE = 31, KVC_CODE_OCTAVE = 5, KVC_CODE_INDICES = 64, KVC_CODE_CENTRE = 63, KVC_CODE_ESCAPES = 127,
       KVC_CODE_TABLE_BITS = 11 };

/* Coefficients of one stream of `code`, as binary32.
 * at: states, words, slots of the fixed tables, the string of bits behind the words, indices of components, step classes (i8 of
 * each row and head; 0: none), the coefficients. n: bytes of words, lanes, rows, heads, components, bytes of the string.
 * f[0]: the step. */
KVC_DEVICE uint32_t kvc_job_code(const struct kvc_device_job *job) {
    const uint32_t lanes = job->n[1], heads = job->n[3], dim = job->n[4];
    const uint8_t *index = KVC_BYTES(job->at[4]);
    const int8_t *step_of = (const int8_t *)(uintptr_t)job->at[5];
    float *to = (float *)(uintptr_t)job->at[6];
    struct kvc_bit_string extra = {KVC_BYTES(job->at[3]), 0, 8 * (uint64_t)job->n[5]};
    struct kvc_stream s;
    uint32_t fault = 0;
    KVC_LANE_VAR(uint32_t, state);
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, shift);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, more);
    kvc_stream_begin(&s, job->at[1], job->n[0], lanes, KVC_CODE_TABLE_BITS);
    if (kvc_stream_load(&s, KVC_LANES_OF(state), job->at[0])) return KVC_FAULT_STREAM;
    for (uint32_t row = 0; row < job->n[2] * heads; row++, to += dim) {
        const uint8_t *own = index + row % heads * dim;
        const int32_t step = step_of ? step_of[row] : 0;
        const int32_t moved = (KVC_CODE_OCTAVE * (step + 16) + 1) / 2 - 40;
        for (uint32_t first = 0; first < dim; first += lanes) {
            const uint32_t active = dim - first < lanes ? dim - first : lanes;
            KVC_EACH_LANE {
                KVC_AT(more) = KVC_AT(shift) = KVC_AT(base) = 0;
                if (lane < active) {
                    int32_t i = (int32_t)own[first + lane] - moved;
                    i = i < 0 ? 0 : i < KVC_CODE_INDICES ? i : KVC_CODE_INDICES - 1;
                    if (i > KVC_CODE_LAST_WHOLE)
                        KVC_AT(shift) = (uint32_t)(i - KVC_CODE_LAST_WHOLE + KVC_CODE_OCTAVE - 1) / KVC_CODE_OCTAVE;
                    KVC_AT(base) = ((uint32_t)i - KVC_CODE_OCTAVE * KVC_AT(shift)) << KVC_CODE_TABLE_BITS;
                }
            }
            kvc_stream_take(&s, KVC_LANES_OF(state), KVC_LANES_OF(symbol), KVC_WORDS(job->at[2]), KVC_LANES_OF(base), active);
            KVC_EACH_LANE {
                if (lane < active) {
                    to[first + lane] = kvc_times((float)((int32_t)KVC_AT(symbol) - KVC_CODE_CENTRE), job->f[0]);
                    KVC_AT(more) = KVC_AT(shift) || KVC_AT(symbol) == KVC_CODE_ESCAPES;
                }
            }
            KVC_LANES_MEET();
            for (uint32_t left = kvc_ballot(more); left; left &= left - 1) { /* what they have besides, one after the other */
                const uint32_t from = kvc_lowest_bit(left), t = kvc_from_lane(shift, from);
                int64_t r = (int64_t)kvc_from_lane(symbol, from) - KVC_CODE_CENTRE;
                if (r == KVC_CODE_ESCAPES - KVC_CODE_CENTRE) {
                    const uint32_t length = kvc_next_bits(&extra, 5), z = 1u << length | kvc_next_bits(&extra, length);
                    r = z & 1 ? -(int64_t)(z / 2) - 1 : (int64_t)(z / 2);
                }
                if (t) r = r * (1 << t) + (int64_t)kvc_next_bits(&extra, t) - (1 << (t - 1));
                if (r >= 1 << 24 || r <= -(1 << 24)) {
                    fault = KVC_FAULT_NUMBER;
                    r = 0;
                }
                KVC_EACH_LANE {
                    if (lane == from) to[first + lane] = kvc_times((float)r, job->f[0]);
                }
            }
        }
    }
    if (extra.at > extra.limit || extra.limit - extra.at >= 8 || kvc_next_bits(&extra, (uint32_t)(extra.limit - extra.at)))
        fault |= KVC_FAULT_STREAM;
    return fault | kvc_stream_end(&s, KVC_LANES_OF(state));
}

#endif
