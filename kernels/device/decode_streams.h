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

#ifdef __CUDACC__
#define KVC_LANES_OF(x) (&(x))
#define KVC_OF(x) (*(x))
#else
#define KVC_LANES_OF(x) (x)
#define KVC_OF(x) ((x)[lane])
#endif

/* Bytes of a string that lanes hold: each lane four, and four of as many that follow. Taking from
 * them needs no load, whose latency would be that of every symbol. */
enum { KVC_HELD = 4 * KVC_LANES };
struct kvc_held {
    const uint8_t *bytes;
    uint32_t size, at; /* of the string; the first byte that is held */
    KVC_LANE_VAR(uint32_t, now);
    KVC_LANE_VAR(uint32_t, after);
};

/* Loads what follows the bytes that are held: zeros past the end. */
KVC_DEVICE void kvc_held_ahead(struct kvc_held *h) {
    KVC_EACH_LANE {
        const uint64_t first = (uint64_t)(h->at + KVC_HELD) + 4 * lane;
        KVC_AT(h->after) = 0;
        KVC_UNROLL for (uint32_t i = 0; i < 4; i++) if (first + i < h->size)
            KVC_AT(h->after) |= (uint32_t)h->bytes[first + i] << 8 * i;
    }
}

KVC_DEVICE void kvc_held_move(struct kvc_held *h) {
    h->at += KVC_HELD;
    KVC_EACH_LANE {
        KVC_AT(h->now) = KVC_AT(h->after);
    }
    kvc_held_ahead(h);
}

KVC_DEVICE void kvc_held_begin(struct kvc_held *h, uint64_t bytes, uint32_t size) {
    h->bytes = KVC_BYTES(bytes);
    h->size = size;
    h->at = 0u - KVC_HELD;
    kvc_held_ahead(h);
    kvc_held_move(h);
}

/* An rANS stream; each lane has its state. */
struct kvc_stream {
    struct kvc_held words;
    uint32_t next; /* byte; exceeds words.size when words were missing */
    uint32_t lanes, bits;
};

KVC_DEVICE void kvc_stream_begin(struct kvc_stream *s, uint64_t words, uint32_t size,
                                 uint32_t lanes, uint32_t bits) {
    kvc_held_begin(&s->words, words, size);
    s->next = 0;
    s->lanes = lanes;
    s->bits = bits;
}

/* Loads the slot of each of the first `active` lanes from the table at table + base. What a caller
 * loads next arrives after it, while the slots are at work. */
KVC_DEVICE void kvc_stream_look(const struct kvc_stream *s, const uint32_t *state, uint32_t *slot,
                                const uint32_t *table, const uint32_t *base, uint32_t active) {
    KVC_EACH_LANE {
        KVC_OF(slot) = lane < active ? table[KVC_OF(base) + (KVC_OF(state) & ((1u << s->bits) - 1))]
                                     : 0;
    }
}

/* Takes the symbol of its slot for each of the first `active` lanes. Lanes whose state falls below
 * 2^16 take a word each, in ascending order. */
KVC_DEVICE void kvc_stream_take(struct kvc_stream *s, uint32_t *state, uint32_t *symbol,
                                const uint32_t *slot, uint32_t active) {
    struct kvc_held *const held = &s->words;
    KVC_LANE_VAR(uint32_t, hungry);
    KVC_LANE_VAR(uint32_t, half); /* number of the lane's word among those that are held */
    KVC_LANE_VAR(uint32_t, holder);
    KVC_LANE_VAR(uint32_t, pair);
    KVC_LANE_VAR(uint32_t, later);
    KVC_EACH_LANE {
        const uint32_t x = KVC_OF(slot);
        KVC_OF(symbol) = x & 1023u;
        if (lane < active)
            KVC_OF(state) = (x >> 21) * (KVC_OF(state) >> s->bits) + (x >> 10 & 2047u);
        KVC_AT(hungry) = lane < active && KVC_OF(state) < KVC_RANS_START;
    }
    const uint32_t mask = kvc_ballot(hungry), taken = 2 * kvc_count_bits(mask);
    KVC_EACH_LANE {
        KVC_AT(half) = (s->next - held->at) / 2 + kvc_count_bits(KVC_BEFORE(mask));
        KVC_AT(holder) = KVC_AT(half) / 2 % KVC_LANES;
    }
    KVC_GATHER(pair, held->now, holder);
    if (s->next - held->at + taken > KVC_HELD) {
        KVC_GATHER(later, held->after, holder);
        KVC_EACH_LANE {
            if (KVC_AT(half) >= KVC_HELD / 2) KVC_AT(pair) = KVC_AT(later);
        }
        kvc_held_move(held);
    }
    KVC_EACH_LANE {
        if (KVC_AT(hungry))
            KVC_OF(state) = KVC_OF(state) << 16 |
                            (KVC_AT(pair) >> (KVC_AT(half) & 1u) * 16 & 0xffffu);
    }
    s->next += taken;
    /* keeps the count of missing words within 32 bits; no byte past the end is held but as 0 */
    if (s->next > held->size + 2 * KVC_LANES) s->next = held->size + 2 * KVC_LANES;
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
    return kvc_ballot(bad) || s->next != s->words.size ? KVC_FAULT_STREAM : 0;
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

/* A stream of `split` that is decoded. */
struct kvc_split_state {
    struct kvc_stream stream;
    KVC_LANE_VAR(uint32_t, state);
};

/* Decodes the words of a row. `whole`, a constant: all lanes have words in each step, and a step
 * begins a group of low bits. */
KVC_DEVICE void kvc_split_row(const struct kvc_split_job *job, struct kvc_split_state *s,
                              uint32_t row, const uint32_t *cosine, const uint32_t *sine,
                              const uint32_t whole) {
    const uint32_t channels = job->channels, lanes = whole ? KVC_LANES : s->stream.lanes;
    const uint32_t turns = job->kind & KVC_MODEL_TURN, period = job->period, tables = job->tables;
    const struct kvc_word_form form = job->form;
    const uint32_t shift = form.shift, mask = (1u << job->word_bits) - 1;
    const uint64_t begin = (uint64_t)row * channels;
    const uint32_t *slots = KVC_WORDS(job->slots);
    /* of channels that rest in their rows, or of this row */
    const uint32_t *resting = KVC_WORDS(job->model + (job->kind & KVC_MODEL_AHEAD ? 4 * begin : 0));
    const float *value = KVC_FLOATS(job->model);
    const uint8_t *low = KVC_BYTES(job->low);
    uint16_t *to = (uint16_t *)(uintptr_t)job->to + begin;
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, model);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, channel); /* of its head */
    KVC_LANE_VAR(uint32_t, slot);
    KVC_LANE_VAR(struct kvc_packed, below);
    KVC_EACH_LANE {
        KVC_AT(channel) = turns ? lane % period : 0;
    }
    KVC_ROLLED for (uint32_t first = 0; first < channels; first += lanes) {
        const uint32_t active = whole                      ? KVC_LANES
                                : channels - first < lanes ? channels - first
                                                           : lanes;
        /* of low bits: in groups of 32, or a byte each */
        const uint32_t group = (uint32_t)(begin + first);
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
            KVC_AT(base) = (tables >> (KVC_AT(model) >> 16) * 4 & 15u) << s->stream.bits;
        }
        kvc_stream_look(&s->stream, KVC_LANES_OF(s->state), KVC_LANES_OF(slot), slots,
                        KVC_LANES_OF(base), active);
        KVC_EACH_LANE {
            const struct kvc_packed none = {0, 0, 0};
            KVC_AT(below) = none;
            if (lane < active && shift)
                KVC_AT(below) = whole ? kvc_packed_load(low + (uint64_t)(group / 32) * 4 * shift,
                                                        lane, shift, 0)
                                      : kvc_packed_load(low, group + lane, shift, 0);
        }
        kvc_stream_take(&s->stream, KVC_LANES_OF(s->state), KVC_LANES_OF(symbol),
                        KVC_LANES_OF(slot), active);
        KVC_EACH_LANE {
            if (lane < active) {
                const uint32_t at = whole ? lane : group + lane,
                               under = shift ? kvc_packed_value(KVC_AT(below), at, shift, 0) : 0;
                to[first + lane] = (uint16_t)(((KVC_AT(symbol) << shift) +
                                               (KVC_AT(model) & 0xffffu) + under) &
                                              mask);
            }
        }
    }
}

/* Decodes the words of one stream of `split`. `cosine` and `sine` have room for `period` words
 * each. */
KVC_DEVICE uint32_t kvc_job_split(const struct kvc_device_job *of, uint32_t *cosine,
                                  uint32_t *sine) {
    const struct kvc_split_job *job = &of->split;
    const uint32_t channels = job->channels, first = job->first, end = first + job->rows,
                   period = job->period, turns = job->kind & KVC_MODEL_TURN;
    const uint32_t whole = job->lanes == KVC_LANES && channels % KVC_LANES == 0;
    struct kvc_split_state s;
    kvc_stream_begin(&s.stream, job->words, job->size, job->lanes, job->table_bits);
    if (kvc_stream_load(&s.stream, KVC_LANES_OF(s.state), job->states)) return KVC_FAULT_STREAM;
    if (turns) {
        KVC_EACH_LANE {
            for (uint32_t d = lane; d < period; d += KVC_LANES) {
                cosine[d] = kvc_as_bits(1);
                sine[d] = 0;
            }
        }
        KVC_LANES_MEET();
        for (uint32_t t = 0; t < first; t++) kvc_model_turn_row(of, cosine, sine);
    }
    for (uint32_t t = first; t < end; t++) {
        if (turns && t != first) kvc_model_turn_row(of, cosine, sine);
        if (whole) kvc_split_row(job, &s, t, cosine, sine, 1);
        else kvc_split_row(job, &s, t, cosine, sine, 0);
    }
    return kvc_stream_end(&s.stream, KVC_LANES_OF(s.state));
}

/* --- code: coefficients --- */

/* A string of bits; each byte has its lowest bit first. */
struct kvc_bit_string {
    struct kvc_held held;
    uint64_t at, limit; /* bits */
};

KVC_DEVICE void kvc_bits_begin(struct kvc_bit_string *b, uint64_t bytes, uint32_t size) {
    kvc_held_begin(&b->held, bytes, size);
    b->at = 0;
    b->limit = 8 * (uint64_t)size;
}

/* Moves on by n bits, 8 * KVC_HELD at most. */
KVC_DEVICE void kvc_bits_skip(struct kvc_bit_string *b, uint32_t n) {
    b->at += n;
    if ((uint32_t)(b->at / 8) - b->held.at >= KVC_HELD) kvc_held_move(&b->held);
}

/* Gives each lane the 32 bits that begin `skip` bits, 8 * KVC_HELD - 64 at most, after the next;
 * zeros past the end, which `at` shows once they are skipped. */
KVC_DEVICE void kvc_bits_at(const struct kvc_bit_string *b, const uint32_t *skip, uint32_t *bits) {
    const uint32_t begin = (uint32_t)(b->at - 8 * (uint64_t)b->held.at);
    KVC_LANE_VAR(uint32_t, word);
    KVC_LANE_VAR(uint32_t, next);
    KVC_LANE_VAR(uint32_t, now);
    KVC_LANE_VAR(uint32_t, now_next);
    KVC_LANE_VAR(uint32_t, after);
    KVC_LANE_VAR(uint32_t, after_next);
    KVC_EACH_LANE {
        KVC_AT(word) = (begin + KVC_OF(skip)) / 32 % KVC_LANES;
        KVC_AT(next) = (KVC_AT(word) + 1) % KVC_LANES;
    }
    KVC_GATHER(now, b->held.now, word);
    KVC_GATHER(now_next, b->held.now, next);
    KVC_GATHER(after, b->held.after, word);
    KVC_GATHER(after_next, b->held.after, next);
    KVC_EACH_LANE {
        const uint32_t i = begin + KVC_OF(skip), n = i % 32;
        const uint32_t low = i < 8 * KVC_HELD ? KVC_AT(now) : KVC_AT(after),
                       high = i + 32 < 8 * KVC_HELD ? KVC_AT(now_next) : KVC_AT(after_next);
        KVC_OF(bits) = n ? low >> n | high << (32 - n) : low;
    }
}

/* Returns the next n <= 31 bits; zeros past the end, which `at` then shows. */
KVC_DEVICE uint32_t kvc_next_bits(struct kvc_bit_string *b, uint32_t n) {
    KVC_LANE_VAR(uint32_t, skip);
    KVC_LANE_VAR(uint32_t, bits);
    KVC_EACH_LANE {
        KVC_AT(skip) = 0;
    }
    kvc_bits_at(b, KVC_LANES_OF(skip), KVC_LANES_OF(bits));
    kvc_bits_skip(b, n);
    return kvc_from_lane(bits, 0) & ((1u << n) - 1);
}

enum {
    KVC_CODE_LAST_WHOLE = 31,
    KVC_CODE_OCTAVE = 5,
    KVC_CODE_INDICES = 64,
    KVC_CODE_CENTRE = 63,
    KVC_CODE_ESCAPES = 127,
    KVC_CODE_TABLE_BITS = 11
};

/* Takes the extra bits of lanes among which some escape, whose bits say how many they are: one lane
 * after the other. */
KVC_DEVICE uint32_t kvc_code_escapes(struct kvc_bit_string *extra, const uint32_t *symbol,
                                     const uint32_t *shift, int32_t *code, uint32_t active) {
    KVC_LANE_VAR(uint32_t, more);
    KVC_LANE_VAR(uint32_t, own);
    uint32_t fault = 0;
    KVC_EACH_LANE {
        KVC_AT(own) = KVC_OF(symbol) | KVC_OF(shift) << 16;
        KVC_AT(more) = lane < active && (KVC_OF(shift) || KVC_OF(symbol) == KVC_CODE_ESCAPES);
    }
    for (uint32_t left = kvc_ballot(more); left; left &= left - 1) {
        const uint32_t from = kvc_lowest_bit(left), both = kvc_from_lane(own, from), t = both >> 16;
        int64_t r = (int64_t)(both & 0xffffu) - KVC_CODE_CENTRE;
        if (r == KVC_CODE_ESCAPES - KVC_CODE_CENTRE) {
            const uint32_t length = kvc_next_bits(extra, 5),
                           z = 1u << length | kvc_next_bits(extra, length);
            r = z & 1 ? -(int64_t)(z / 2) - 1 : (int64_t)(z / 2);
        }
        if (t) r = r * (1 << t) + (int64_t)kvc_next_bits(extra, t) - (1 << (t - 1));
        if (r >= 1 << 24 || r <= -(1 << 24)) {
            fault = KVC_FAULT_NUMBER;
            r = 0;
        }
        KVC_EACH_LANE {
            if (lane == from) KVC_OF(code) = (int32_t)r;
        }
    }
    return fault;
}

/* Makes codes of symbols and of their extra bits, those of one lane after those of another. */
KVC_DEVICE uint32_t kvc_code_extra(struct kvc_bit_string *extra, const uint32_t *symbol,
                                   const uint32_t *shift, int32_t *code, uint32_t active) {
    KVC_LANE_VAR(uint32_t, escapes);
    KVC_LANE_VAR(uint32_t, more);
    KVC_LANE_VAR(uint32_t, skip);
    KVC_LANE_VAR(uint32_t, bits);
    KVC_EACH_LANE {
        KVC_OF(code) = (int32_t)KVC_OF(symbol) - KVC_CODE_CENTRE;
        KVC_AT(escapes) = lane < active && KVC_OF(symbol) == KVC_CODE_ESCAPES;
        KVC_AT(more) = KVC_AT(skip) = KVC_OF(shift);
    }
    if (kvc_ballot(escapes)) return kvc_code_escapes(extra, symbol, shift, code, active);
    if (!kvc_ballot(more)) return 0;
    const uint32_t total = KVC_PREFIX_SUM(skip);
    KVC_EACH_LANE {
        KVC_AT(skip) -= KVC_AT(more);
    }
    kvc_bits_at(extra, KVC_LANES_OF(skip), KVC_LANES_OF(bits));
    kvc_bits_skip(extra, total);
    KVC_EACH_LANE {
        const uint32_t t = KVC_AT(more);
        if (t)
            KVC_OF(code) = KVC_OF(code) * (1 << t) + (int32_t)(KVC_AT(bits) & ((1u << t) - 1)) -
                           (1 << (t - 1));
    }
    return 0;
}

/* Decodes the coefficients of one stream of `code`. */
KVC_DEVICE uint32_t kvc_job_code(const struct kvc_device_job *job) {
    const uint32_t lanes = job->code.lanes, heads = job->code.heads, dim = job->code.dim;
    const uint32_t rows = job->code.rows * heads;
    const uint8_t *index = KVC_BYTES(job->code.index);
    const uint32_t *slots = KVC_WORDS(job->code.slots);
    const int8_t *step_of = (const int8_t *)(uintptr_t)job->code.step_class;
    float *to = (float *)(uintptr_t)job->code.to;
    const float unit = job->code.step;
    struct kvc_bit_string extra;
    struct kvc_stream s;
    uint32_t fault = 0;
    KVC_LANE_VAR(uint32_t, state);
    KVC_LANE_VAR(uint32_t, symbol);
    KVC_LANE_VAR(uint32_t, shift);
    KVC_LANE_VAR(uint32_t, base);
    KVC_LANE_VAR(uint32_t, slot);
    KVC_LANE_VAR(uint32_t, coming); /* index of the next step */
    KVC_LANE_VAR(int32_t, code);
    KVC_EACH_LANE {
        KVC_AT(coming) = rows && lane < dim ? index[lane] : 0;
    }
    kvc_bits_begin(&extra, job->code.extra, job->code.extra_size);
    kvc_stream_begin(&s, job->code.words, job->code.size, lanes, KVC_CODE_TABLE_BITS);
    if (kvc_stream_load(&s, KVC_LANES_OF(state), job->code.states)) return KVC_FAULT_STREAM;
    for (uint32_t row = 0, head = 0; row < rows; row++, to += dim) {
        const uint8_t *own = index + head * dim;
        head = head + 1 < heads ? head + 1 : 0;
        const int32_t step = step_of ? step_of[row] : 0;
        const int32_t moved = (KVC_CODE_OCTAVE * (step + 16) + 1) / 2 - 40;
        for (uint32_t first = 0; first < dim; first += lanes) {
            const uint32_t active = dim - first < lanes ? dim - first : lanes;
            KVC_EACH_LANE {
                KVC_AT(shift) = KVC_AT(base) = 0;
                if (lane < active) {
                    int32_t i = (int32_t)KVC_AT(coming) - moved;
                    i = i < 0 ? 0 : i < KVC_CODE_INDICES ? i : KVC_CODE_INDICES - 1;
                    if (i > KVC_CODE_LAST_WHOLE)
                        KVC_AT(shift) = (uint32_t)(i - KVC_CODE_LAST_WHOLE + KVC_CODE_OCTAVE - 1) /
                                        KVC_CODE_OCTAVE;
                    KVC_AT(base) = ((uint32_t)i - KVC_CODE_OCTAVE * KVC_AT(shift))
                                   << KVC_CODE_TABLE_BITS;
                }
            }
            kvc_stream_look(&s, KVC_LANES_OF(state), KVC_LANES_OF(slot), slots, KVC_LANES_OF(base),
                            active);
            /* indices of the next step, which may be the first of the next row */
            const uint32_t more_here = first + lanes < dim, then = more_here ? first + lanes : 0;
            const uint8_t *next = more_here ? own : index + head * dim;
            KVC_EACH_LANE {
                KVC_AT(coming) = then + lane < dim ? next[then + lane] : 0;
            }
            kvc_stream_take(&s, KVC_LANES_OF(state), KVC_LANES_OF(symbol), KVC_LANES_OF(slot),
                            active);
            fault |= kvc_code_extra(&extra, KVC_LANES_OF(symbol), KVC_LANES_OF(shift),
                                    KVC_LANES_OF(code), active);
            KVC_EACH_LANE {
                if (lane < active) to[first + lane] = kvc_times((float)KVC_AT(code), unit);
            }
        }
    }
    if (extra.at > extra.limit || extra.limit - extra.at >= 8 ||
        kvc_next_bits(&extra, (uint32_t)(extra.limit - extra.at)))
        fault |= KVC_FAULT_STREAM;
    return fault | kvc_stream_end(&s, KVC_LANES_OF(state));
}

#endif
