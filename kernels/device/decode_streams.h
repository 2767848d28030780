/* decode_streams.h: jobs, which run before rows: numbers out of halves, slots of rANS tables, and
 * the symbols of rANS streams, one warp a stream and one lane a lane of the stream (codecs/rans.md,
 * channels.md, floats.md, codecs/stages/split/split.md, code.md). launch.h has their operands. The
 * code that made a job checked the sizes that bound its reads; whatever depends on decoded data is
 * checked here. One source for GPU and host. Not for rows (decode_rows.h). */
#ifndef KVC_DECODE_STREAMS_H
#define KVC_DECODE_STREAMS_H

#include "kernels/device/decode_values.h"
#include "kernels/rans_state.h"

/* Bits below this lane's. */
#define KVC_BEFORE(mask) ((mask) & ((1u << lane) - 1))

/* Makes binary32 of numbers stored as halves (floats.md). */
KVC_DEVICE uint32_t kvc_job_halves(const struct kvc_device_job *job) {
    const struct kvc_halves_job *h = &job->halves;
    const uint8_t *lower = KVC_BYTES(h->lower), *codes = KVC_BYTES(h->codes),
                  *escapes = KVC_BYTES(h->escapes);
    float *to = (float *)(uintptr_t)h->to;
    const uint32_t n = h->n, zeros = h->zeros, width = h->width, base = h->base,
                   rotated = h->rotated;
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
                KVC_AT(wild) = at >= h->n_escapes;
                upper = KVC_AT(wild) ? 0 : escapes[at];
            } else if (width < 8) {
                upper = (upper + base) & 255u;
                if (rotated) upper = (upper >> 1 | upper << 7) & 255u;
            }
            if (i < n) {
                const uint32_t low = zeros == 8 ? 0 : kvc_unpack(lower, i, 8 - zeros) << zeros;
                KVC_AT(wild) |= (upper & 0x7cu) == 0x7cu;
                to[i] = kvc_times(kvc_from_half(upper << 8 | low), h->scale);
            }
        }
        used += kvc_count_bits(mask);
        if (kvc_ballot(wild)) fault = KVC_FAULT_NUMBER;
    }
    return used == h->n_escapes ? fault : KVC_FAULT_NUMBER;
}

/* Makes the slots of a decoding table (rans_state.h). */
KVC_DEVICE uint32_t kvc_job_slots(const struct kvc_device_job *job) {
    const uint32_t *entry = KVC_WORDS(job->slots.entry);
    uint32_t *to = (uint32_t *)(uintptr_t)job->slots.to;
    for (uint32_t i = 0; i < job->slots.n; i++) {
        const uint32_t symbol = entry[i] & 0xffffu, frequency = entry[i] >> 16;
        KVC_EACH_LANE {
            for (uint32_t j = lane; j < frequency; j += KVC_LANES)
                to[j] = KVC_RANS_SLOT(symbol, j, frequency);
        }
        to += frequency;
    }
    return 0;
}

/* An rANS stream; each lane has its state. */
struct kvc_stream {
    const uint8_t *words;
    uint32_t size, next; /* bytes; next exceeds size when words were missing */
    uint32_t lanes, bits;
};

KVC_DEVICE void kvc_stream_begin(struct kvc_stream *s, uint64_t words, uint32_t size,
                                 uint32_t lanes, uint32_t bits) {
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

/* Takes one symbol for each of the first `active` lanes, by the table at table + base. Lanes whose
 * state falls below 2^16 take a word each, in ascending order. */
KVC_DEVICE void kvc_stream_take(struct kvc_stream *s, uint32_t *state, uint32_t *symbol,
                                const uint32_t *table, const uint32_t *base, uint32_t active) {
    KVC_LANE_VAR(uint32_t, hungry);
    KVC_EACH_LANE {
        KVC_AT(hungry) = 0;
        if (lane < active) {
            const uint32_t x = KVC_OF(state),
                           slot = table[KVC_OF(base) + (x & ((1u << s->bits) - 1))];
            KVC_OF(symbol) = slot & 1023u;
            KVC_OF(state) = (slot >> 21) * (x >> s->bits) + (slot >> 10 & 2047u);
            KVC_AT(hungry) = KVC_OF(state) < KVC_RANS_START;
        }
    }
    const uint32_t mask = kvc_ballot(hungry);
    KVC_EACH_LANE {
        if (KVC_AT(hungry)) {
            const uint32_t at = s->next + 2 * kvc_count_bits(KVC_BEFORE(mask));
            KVC_OF(state) = KVC_OF(state) << 16 |
                            (at + 2 <= s->size ? kvc_aligned16(s->words + at) : 0);
        }
    }
    s->next += 2 * kvc_count_bits(mask);
    /* keeps the count of missing words within 32 bits */
    if (s->next > s->size + 2 * KVC_LANES) s->next = s->size + 2 * KVC_LANES;
}

/* Loads the lanes' states. Returns 0 when a stream may begin with them, else the fault. */
KVC_DEVICE uint32_t kvc_stream_load(const struct kvc_stream *s, uint32_t *state, uint64_t states) {
    KVC_LANE_VAR(uint32_t, bad);
    KVC_EACH_LANE {
        KVC_OF(state) = lane < s->lanes ? kvc_load32(KVC_BYTES(states) + 4 * lane) : KVC_RANS_START;
        KVC_AT(bad) = KVC_OF(state) < KVC_RANS_START;
    }
    return kvc_ballot(bad) ? KVC_FAULT_STREAM : 0;
}

/* Returns 0 when every lane has its final state and every word was taken, else the fault. */
KVC_DEVICE uint32_t kvc_stream_end(const struct kvc_stream *s, const uint32_t *state) {
    KVC_LANE_VAR(uint32_t, bad);
    KVC_EACH_LANE {
        KVC_AT(bad) = KVC_OF(state) != KVC_RANS_START;
    }
    return kvc_ballot(bad) || s->next != s->size ? KVC_FAULT_STREAM : 0;
}

/* --- split: words of a stream, with the channel model --- */

/* Rotates the cosines and sines of a head's channels by one row. */
KVC_DEVICE void kvc_model_turn_row(const struct kvc_device_job *job, uint32_t *cosine,
                                   uint32_t *sine) {
    const uint32_t period = job->split.period;
    const float *step = KVC_FLOATS(job->split.turn);
    KVC_LANES_MEET(); /* all lanes have read the previous row */
    KVC_EACH_LANE {
        for (uint32_t d = lane; d < period; d += KVC_LANES) {
            const float c = kvc_as_float(cosine[d]), s = kvc_as_float(sine[d]);
            cosine[d] = kvc_as_bits(
                kvc_add(kvc_times(c, step[d]), -kvc_times(s, step[period + d])));
            sine[d] = kvc_as_bits(kvc_add(kvc_times(s, step[d]), kvc_times(c, step[period + d])));
        }
    }
    KVC_LANES_MEET();
}

/* Returns bias | context << 16 of a word whose channel is at m. */
KVC_DEVICE uint32_t kvc_model_word(const struct kvc_word_form *f, float m, float variance) {
    const uint32_t square = kvc_as_bits(kvc_add(kvc_times(m, m), variance)),
                   steps = (square - kvc_as_bits(variance)) >> 22;
    const uint32_t sign = f->sign_cut & 255u, cut = f->sign_cut >> 8;
    const int32_t root = (int32_t)(square >> 1) + (127 << 22) - (int32_t)(f->rebias << 23);
    const uint32_t magnitude = ((uint32_t)(root < 0 ? 0 : root) + (1u << cut >> 1)) >>
                                   cut << f->shift &
                               ((1u << sign) - 1);
    return magnitude | (kvc_as_bits(m) >> 31) << sign | (steps < 7 ? steps : 7) << 16;
}

/* Makes the channel model (channels.md) as streams use it. */
KVC_DEVICE uint32_t kvc_job_model(const struct kvc_device_job *job) {
    const int8_t *mean = (const int8_t *)(uintptr_t)job->model.mean;
    const uint8_t *spread = KVC_BYTES(job->model.spread);
    const uint32_t n = job->model.channels, bits = job->model.word_bits, kind = job->model.kind,
                   period = job->model.period;
    const uint32_t start = job->model.first, pairs = job->model.pairs,
                   halves = (kind & KVC_MODEL_TURN) == 1;
    const struct kvc_word_form form = job->model.form;
    const float quarter = kvc_as_float(0x3e800000u);
    float *value = (float *)(uintptr_t)job->model.to, *partner = value + n, *variance = partner + n;
    uint32_t *model = (uint32_t *)(uintptr_t)job->model.to;
    KVC_EACH_LANE {
        for (uint32_t i = lane; i < n; i += KVC_LANES) {
            if (kind & KVC_MODEL_CODES) {
                const int32_t width = (int32_t)spread[i] - (int32_t)(117 + 2 * bits);
                const uint32_t context = (uint32_t)(width < 0 ? 0 : width < 7 ? width : 7);
                model[i] = ((uint32_t)(int32_t)mean[i] & ((1u << bits) - 1)) | context << 16;
                continue;
            }
            const float wide = kvc_as_float((uint32_t)spread[i] << 23);
            const float m = kvc_times((float)mean[i], kvc_times(kvc_root(wide), quarter));
            if (!(kind & (KVC_MODEL_TURN | KVC_MODEL_AHEAD))) {
                model[i] = kvc_model_word(&form, m, wide);
                continue;
            }
            const uint32_t at = i % period - start;
            float other = 0;
            if (i % period >= start && at < 2 * pairs) {
                const uint32_t second = halves ? at >= pairs : at & 1, apart = halves ? pairs : 1;
                const uint32_t j = second ? i - apart : i + apart;
                other = kvc_times((float)mean[j],
                                  kvc_times(kvc_root(kvc_as_float((uint32_t)spread[j] << 23)),
                                            quarter));
                if (!second) other = -other;
            }
            value[i] = m;
            partner[i] = other;
            variance[i] = wide;
        }
    }
    return 0;
}

/* Decodes the words of one stream of `split`. `cosine` and `sine` have room for `period` words
 * each. */
KVC_DEVICE uint32_t kvc_job_split(const struct kvc_device_job *job, uint32_t *cosine,
                                  uint32_t *sine) {
    const uint32_t channels = job->split.channels, lanes = job->split.lanes;
    const uint32_t turns = job->split.kind & KVC_MODEL_TURN,
                   ahead = job->split.kind & KVC_MODEL_AHEAD;
    const uint32_t period = job->split.period;
    const struct kvc_word_form form = job->split.form;
    const uint32_t shift = form.shift, mask = (1u << job->split.word_bits) - 1;
    const uint8_t *low = KVC_BYTES(job->split.low);
    /* resting: in a row */
    const uint32_t *resting = KVC_WORDS(job->split.model), *slots = KVC_WORDS(job->split.slots);
    const float *value = KVC_FLOATS(job->split.model);
    uint16_t *to = (uint16_t *)(uintptr_t)job->split.to;
    struct kvc_stream s;
    KVC_LANE_VAR(uint32_t, state);
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, model);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, channel); /* of its head */
    kvc_stream_begin(&s, job->split.words, job->split.size, lanes, job->split.table_bits);
    if (kvc_stream_load(&s, KVC_LANES_OF(state), job->split.states)) return KVC_FAULT_STREAM;
    if (turns) {
        KVC_EACH_LANE {
            for (uint32_t d = lane; d < period; d += KVC_LANES) {
                cosine[d] = kvc_as_bits(1);
                sine[d] = 0;
            }
        }
        KVC_LANES_MEET();
        for (uint32_t t = 0; t < job->split.first; t++) kvc_model_turn_row(job, cosine, sine);
    }
    if (ahead) resting += (uint64_t)job->split.first * channels;
    for (uint32_t t = job->split.first; t < job->split.first + job->split.rows; t++) {
        if (turns && t != job->split.first) kvc_model_turn_row(job, cosine, sine);
        KVC_EACH_LANE {
            KVC_AT(channel) = turns ? lane % period : 0;
        }
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
                KVC_AT(base) = (job->split.tables >> (KVC_AT(model) >> 16) * 4 & 15u) << s.bits;
            }
            kvc_stream_take(&s, KVC_LANES_OF(state), KVC_LANES_OF(symbol), slots,
                            KVC_LANES_OF(base), active);
            KVC_EACH_LANE {
                if (lane < active) {
                    const uint64_t i = (uint64_t)t * channels + first + lane;
                    const uint32_t below = shift == 8 ? low[i]
                                           : shift    ? kvc_unpack(low, (uint32_t)i, shift)
                                                      : 0;
                    to[i] = (uint16_t)(((KVC_AT(symbol) << shift) + (KVC_AT(model) & 0xffffu) +
                                        below) &
                                       mask);
                }
            }
        }
        if (ahead) resting += channels;
    }
    return kvc_stream_end(&s, KVC_LANES_OF(state));
}

/* --- code: coefficients --- */

/* A string of bits; each byte has its lowest bit first. */
struct kvc_bit_string {
    const uint8_t *bytes;
    uint64_t at, limit; /* bits */
};

/* Returns the next n <= 31 bits; zeros past the end, which `at` then shows. */
KVC_DEVICE uint32_t kvc_next_bits(struct kvc_bit_string *b, uint32_t n) {
    uint64_t window = 0;
    for (uint32_t i = 0; i < 5; i++)
        if (b->at / 8 + i < b->limit / 8) window |= (uint64_t)b->bytes[b->at / 8 + i] << 8 * i;
    window >>= b->at % 8;
    b->at += n;
    return (uint32_t)(window & ((UINT64_C(1) << n) - 1));
}

enum {
    KVC_CODE_LAST_WHOLE = 31,
    KVC_CODE_OCTAVE = 5,
    KVC_CODE_INDICES = 64,
    KVC_CODE_CENTRE = 63,
    KVC_CODE_ESCAPES = 127,
    KVC_CODE_TABLE_BITS = 11
};

/* Decodes the coefficients of one stream of `code`. */
KVC_DEVICE uint32_t kvc_job_code(const struct kvc_device_job *job) {
    const uint32_t lanes = job->code.lanes, heads = job->code.heads, dim = job->code.dim;
    const uint8_t *index = KVC_BYTES(job->code.index);
    const uint32_t *slots = KVC_WORDS(job->code.slots);
    const int8_t *step_of = (const int8_t *)(uintptr_t)job->code.step_class;
    float *to = (float *)(uintptr_t)job->code.to;
    struct kvc_bit_string extra = {KVC_BYTES(job->code.extra), 0,
                                   8 * (uint64_t)job->code.extra_size};
    struct kvc_stream s;
    uint32_t fault = 0;
    KVC_LANE_VAR(uint32_t, state);
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, shift);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, more);
    kvc_stream_begin(&s, job->code.words, job->code.size, lanes, KVC_CODE_TABLE_BITS);
    if (kvc_stream_load(&s, KVC_LANES_OF(state), job->code.states)) return KVC_FAULT_STREAM;
    for (uint32_t row = 0; row < job->code.rows * heads; row++, to += dim) {
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
                        KVC_AT(shift) = (uint32_t)(i - KVC_CODE_LAST_WHOLE + KVC_CODE_OCTAVE - 1) /
                                        KVC_CODE_OCTAVE;
                    KVC_AT(base) = ((uint32_t)i - KVC_CODE_OCTAVE * KVC_AT(shift))
                                   << KVC_CODE_TABLE_BITS;
                }
            }
            kvc_stream_take(&s, KVC_LANES_OF(state), KVC_LANES_OF(symbol), slots,
                            KVC_LANES_OF(base), active);
            KVC_EACH_LANE {
                if (lane < active) {
                    to[first + lane] = kvc_times((float)((int32_t)KVC_AT(symbol) - KVC_CODE_CENTRE),
                                                 job->code.step);
                    KVC_AT(more) = KVC_AT(shift) || KVC_AT(symbol) == KVC_CODE_ESCAPES;
                }
            }
            /* their extra bits, one lane after the other */
            for (uint32_t left = kvc_ballot(more); left; left &= left - 1) {
                const uint32_t from = kvc_lowest_bit(left), t = kvc_from_lane(shift, from);
                int64_t r = (int64_t)kvc_from_lane(symbol, from) - KVC_CODE_CENTRE;
                if (r == KVC_CODE_ESCAPES - KVC_CODE_CENTRE) {
                    const uint32_t length = kvc_next_bits(&extra, 5),
                                   z = 1u << length | kvc_next_bits(&extra, length);
                    r = z & 1 ? -(int64_t)(z / 2) - 1 : (int64_t)(z / 2);
                }
                if (t) r = r * (1 << t) + (int64_t)kvc_next_bits(&extra, t) - (1 << (t - 1));
                if (r >= 1 << 24 || r <= -(1 << 24)) {
                    fault = KVC_FAULT_NUMBER;
                    r = 0;
                }
                KVC_EACH_LANE {
                    if (lane == from) to[first + lane] = kvc_times((float)r, job->code.step);
                }
            }
        }
    }
    if (extra.at > extra.limit || extra.limit - extra.at >= 8 ||
        kvc_next_bits(&extra, (uint32_t)(extra.limit - extra.at)))
        fault |= KVC_FAULT_STREAM;
    return fault | kvc_stream_end(&s, KVC_LANES_OF(state));
}

#endif
