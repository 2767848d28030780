/* channels.c: the channel model of `split`. Spec: channels.md. Not for coding the words (split.c).
 */
#include "codecs/stages/split/channels.h"

#include "codecs/bits.h"
#include "codecs/stages/split/expected_codes.h"
#include "kernels/float_bits.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { BIAS = 127, MIN_SPREAD = 1, MAX_SPREAD = 253, QUARTERS = 4, MAX_MEAN = 127 };

int kvc_channels_init(struct kvc_channels *c, size_t n, const struct kvc_word_format *format,
                      unsigned bits, struct kvc_error *e) {
    memset(c, 0, sizeof *c);
    c->n = n;
    c->format = format;
    c->bits = bits;
    float *p = calloc(8 * n + n / 2 + 1, sizeof *p); /* a row is bounded: no overflow */
    if (!p) return kvc_fail_memory(e, "the channel model");
    c->memory = p;
    c->value = p;
    c->partner = p + n;
    c->variance = p + 2 * n;
    c->cosine = p + 3 * n;
    c->sine = p + 4 * n;
    c->step_c = p + 5 * n;
    c->step_s = p + 6 * n;
    c->moved = p + 7 * n;
    c->spread = (uint8_t *)(p + 8 * n);
    c->mean = (int8_t *)(c->spread + n);
    return 0;
}

void kvc_channels_free(struct kvc_channels *c) {
    free(c->memory);
    memset(c, 0, sizeof *c);
}

/* --- rotation --- */

/* Returns the channel that rotates with channel d of a head, or d itself; *sign is the sign of its
 * part in d's mean. */
static size_t partner_of(const struct kvc_channels *c, size_t d, float *sign) {
    *sign = 0;
    if (c->turn == KVC_TURN_NONE || c->turn == KVC_TURN_AHEAD || d < c->first ||
        d - c->first >= 2 * (size_t)c->pairs)
        return d;
    size_t at = d - c->first;
    int second = c->turn == KVC_TURN_HALVES ? at >= c->pairs : (int)(at & 1);
    *sign = second ? 1.0f : -1.0f;
    if (c->turn == KVC_TURN_HALVES) return second ? d - c->pairs : d + c->pairs;
    return second ? d - 1 : d + 1;
}

void kvc_channels_flat(struct kvc_channels *c) {
    c->turn = KVC_TURN_NONE;
    c->first = c->pairs = 0;
    c->flat = 1;
}

/* Return the channels of a head that make pair i. */
static size_t first_of_pair(const struct kvc_channels *c, size_t i) {
    return c->first + (c->turn == KVC_TURN_HALVES ? i : 2 * i);
}
static size_t second_of_pair(const struct kvc_channels *c, size_t i) {
    return first_of_pair(c, i) + (c->turn == KVC_TURN_HALVES ? c->pairs : 1);
}

/* Sets the cosine and sine by which each pair rotates a row. */
static void set_steps(struct kvc_channels *c) {
    enum { AT_ONCE = 32 };
    double angle = (double)c->angle, x[AT_ONCE];
    float cosine[AT_ONCE], sine[AT_ONCE];
    for (size_t first = 0, n; first < c->pairs; first += n) {
        n = c->pairs - first < AT_ONCE ? c->pairs - first : AT_ONCE;
        for (size_t i = 0; i < n; i++, angle *= (double)c->ratio) x[i] = angle;
        kvc_kernels_get()->model_angles(cosine, sine, x, n);
        for (size_t i = 0; i < n; i++) {
            const size_t a = first_of_pair(c, first + i), b = second_of_pair(c, first + i);
            c->step_c[a] = c->step_c[b] = cosine[i];
            c->step_s[a] = c->step_s[b] = sine[i];
        }
    }
}

void kvc_channels_begin(struct kvc_channels *c) {
    const int turns = c->turn == KVC_TURN_HALVES || c->turn == KVC_TURN_INTERLEAVED;
    c->fresh = 1;
    c->row = 0;
    if (!turns) c->period = (uint32_t)c->n;
    for (size_t d = 0; d < c->period; d++)
        c->cosine[d] = c->step_c[d] = 1, c->sine[d] = c->step_s[d] = 0;
    if (turns) set_steps(c);
    if ((!c->format && c->turn != KVC_TURN_AHEAD) || c->flat) return;
    for (size_t k = 0; k < c->n; k++) {
        c->variance[k] = kvc_bits_to_float((uint32_t)c->spread[k] << 23);
        c->value[k] = (float)c->mean[k] * (sqrtf(c->variance[k]) * (1.0f / QUARTERS));
    }
    memset(c->partner, 0, c->n * sizeof *c->partner);
    for (size_t head = 0; turns && head < c->n; head += c->period) {
        const float *value = c->value + head;
        float *partner = c->partner + head;
        for (size_t i = 0; i < c->pairs; i++) {
            const size_t a = first_of_pair(c, i), b = second_of_pair(c, i);
            partner[a] = -value[b];
            partner[b] = value[a];
        }
    }
}

/* Rotates every pair by one row. */
static void channels_turn(struct kvc_channels *c) {
    kvc_kernels_get()->turn_halves(c->cosine, c->sine, c->step_c, c->step_s, c->period);
}

/* Compilers vectorise loops of 16 without aliasing by themselves. */
static void channels_add_rows(float *restrict to, const float *restrict a, const float *restrict b,
                              size_t n) {
    size_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (size_t i = k; i < k + 16; i++) to[i] = a[i] + b[i];
    for (; k < n; k++) to[k] = a[k] + b[k];
}

static void take_half(uint16_t *restrict bias, uint16_t half, size_t n) {
    size_t k = 0;
    for (; k + 16 <= n; k += 16)
        for (size_t i = k; i < k + 16; i++) bias[i] = (uint16_t)(bias[i] - half);
    for (; k < n; k++) bias[k] = (uint16_t)(bias[k] - half);
}

/* A bias of floats is the middle of its symbol: the word of the root less half a symbol. */
static void row_ahead(struct kvc_channels *c, uint16_t *bias, uint16_t *context,
                      unsigned context_shift) {
    const struct kvc_model_channels channels = {c->moved, c->partner, c->variance};
    const size_t row = c->row++, bytes = c->n / 32 * 34; /* of a row of q8_0 */
    channels_add_rows(c->moved, c->value, c->ahead + row * c->n, c->n);
    if (!c->format) {
        kvc_expected_codes(bias, context, c->moved, c->variance, c->scales + row * bytes, c->n,
                           context_shift);
        return;
    }
    struct kvc_word_format whole = *c->format;
    const uint16_t half = (uint16_t)(1u << whole.shift >> 1);
    whole.shift = 0;
    kvc_kernels_get()->model_words(bias, context, &channels, c->cosine, c->sine, c->n, c->period,
                                   &whole, context_shift);
    take_half(bias, half, c->n);
}

void kvc_channels_row(struct kvc_channels *c, uint16_t *bias, uint16_t *context,
                      unsigned context_shift) {
    if (c->turn == KVC_TURN_AHEAD) {
        row_ahead(c, bias, context, context_shift);
        return;
    }
    if (!c->fresh && c->turn == KVC_TURN_NONE) return;
    if (!c->fresh) channels_turn(c);
    c->fresh = 0;
    if (c->flat) {
        memset(bias, 0, c->n * sizeof *bias);
        memset(context, 0, c->n * sizeof *context);
        return;
    }
    if (!c->format) { /* codes: eight classes of width from the widest that `bits` bits can have */
        int least = BIAS + 2 * ((int)c->bits - 1) - KVC_CONTEXTS;
        for (size_t k = 0; k < c->n; k++) {
            int width = c->spread[k] - least;
            bias[k] = (uint16_t)(c->mean[k] & ((1 << c->bits) - 1));
            context[k] = (uint16_t)((width < 0              ? 0
                                     : width < KVC_CONTEXTS ? width
                                                            : KVC_CONTEXTS - 1)
                                    << context_shift);
        }
        return;
    }
    const struct kvc_model_channels channels = {c->value, c->partner, c->variance};
    kvc_kernels_get()->model_words(bias, context, &channels, c->cosine, c->sine, c->n, c->period,
                                   c->format, context_shift);
}

/* --- stored form --- */

size_t kvc_channels_write(const struct kvc_channels *c, uint8_t *bytes) {
    struct kvc_bits b = {.bytes = bytes};
    uint64_t sum = 0, spreads = 0, means = 0;
    for (size_t k = 0; k < c->n; k++) sum += c->spread[k];
    const int middle = (int)((sum + c->n / 2) / c->n);
    for (size_t k = 0; k < c->n; k++) {
        spreads += kvc_zigzag(c->spread[k] - middle);
        means += kvc_zigzag(c->mean[k]);
    }
    const unsigned spread_k = kvc_bits_rice_for(spreads, c->n),
                   mean_k = kvc_bits_rice_for(means, c->n);
    kvc_bits_put(&b, c->turn, 2);
    if (c->turn == KVC_TURN_HALVES || c->turn == KVC_TURN_INTERLEAVED) {
        kvc_bits_put(&b, c->period, 32);
        kvc_bits_put(&b, c->first, 32);
        kvc_bits_put(&b, c->pairs, 32);
        kvc_bits_put(&b, kvc_float_to_bits(c->angle), 32);
        kvc_bits_put(&b, kvc_float_to_bits(c->ratio), 32);
    }
    kvc_bits_put(&b, (uint32_t)middle, 8);
    kvc_bits_put(&b, spread_k, 4);
    kvc_bits_put(&b, mean_k, 4);
    struct kvc_bits_held held = kvc_bits_hold(&b);
    for (size_t k = 0; k < c->n; k++)
        kvc_bits_held_rice(&held, kvc_zigzag(c->spread[k] - middle), spread_k);
    for (size_t k = 0; k < c->n; k++) kvc_bits_held_rice(&held, kvc_zigzag(c->mean[k]), mean_k);
    kvc_bits_release(&b, &held);
    return (b.at + 7) / 8;
}

int kvc_channels_read(struct kvc_channels *c, int predicted, const uint8_t *bytes, size_t size,
                      struct kvc_error *e) {
    struct kvc_bits b = {.read = bytes, .limit = 8 * size};
    const unsigned how = kvc_bits_get(&b, 2);
    if (how == KVC_TURN_AHEAD ? !predicted : how != KVC_TURN_NONE && !c->format)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the channel model's rotation %u is unknown", how);
    c->turn = (enum kvc_turn)how;
    if (c->turn == KVC_TURN_HALVES || c->turn == KVC_TURN_INTERLEAVED) {
        c->period = kvc_bits_get(&b, 32);
        c->first = kvc_bits_get(&b, 32);
        c->pairs = kvc_bits_get(&b, 32);
        c->angle = kvc_bits_to_float(kvc_bits_get(&b, 32));
        c->ratio = kvc_bits_to_float(kvc_bits_get(&b, 32));
        if (!c->period || c->n % c->period)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the channel model's heads of %u channels do not make %zu", c->period,
                            c->n);
        if (!c->pairs || c->first > c->period || c->pairs > (c->period - c->first) / 2)
            return kvc_fail(e, KVC_ERR_DAMAGED,
                            "the channel model rotates %u pairs from channel %u of %u", c->pairs,
                            c->first, c->period);
        if (!(c->angle > 0 && c->angle <= 4 && c->ratio > 0 && c->ratio <= 1))
            return kvc_fail(e, KVC_ERR_DAMAGED, "the channel model's angles are out of range");
    }
    const int middle = (int)kvc_bits_get(&b, 8);
    const unsigned spread_k = kvc_bits_get(&b, 4), mean_k = kvc_bits_get(&b, 4);
    int out_of_range = spread_k > KVC_RICE_MOST || mean_k > KVC_RICE_MOST;
    for (size_t k = 0; k < c->n && !b.bad && !out_of_range; k++) {
        int spread = middle + kvc_unzigzag(kvc_bits_get_rice(&b, spread_k));
        out_of_range = spread < MIN_SPREAD || spread > MAX_SPREAD;
        c->spread[k] = (uint8_t)spread;
    }
    for (size_t k = 0; k < c->n && !b.bad && !out_of_range; k++) {
        int mean = kvc_unzigzag(kvc_bits_get_rice(&b, mean_k));
        out_of_range = mean < INT8_MIN || mean > INT8_MAX;
        c->mean[k] = (int8_t)mean;
    }
    if (out_of_range)
        return kvc_fail(e, KVC_ERR_DAMAGED, "the channel model has a number out of range");
    if (!kvc_bits_ended(&b))
        return kvc_fail(e, KVC_ERR_DAMAGED,
                        "the channel model does not end where its section does");
    return 0;
}

/* --- fitting --- */

/* Returns the integer nearest to log2(x) of a normal number; libm would take as long as the rest of
 * a block's model. */
static int nearest_log2(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    /* of sqrt(2), rounded up */
    const uint64_t mantissa = bits & ((UINT64_C(1) << 52) - 1), root = UINT64_C(0x6a09e667f3bcd);
    return (int)(bits >> 52) - 1023 + (mantissa >= root);
}

/* Returns 2^n, |n| < 1023. */
static double power_of_two(int n) {
    const uint64_t bits = (uint64_t)(1023 + n) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Stores a channel's mean and variance, the spread widened where the mean would not fit. */
static void set_channel(struct kvc_channels *c, size_t k, double mean, double variance) {
    double floor = mean * mean * 0x1p-20;
    int spread = MIN_SPREAD;
    if (variance < floor) variance = floor;
    if (variance > 0x1p-125) spread = BIAS + nearest_log2(variance);
    if (spread < MIN_SPREAD) spread = MIN_SPREAD;
    if (spread > MAX_SPREAD) spread = MAX_SPREAD;
    long quarters;
    while ((quarters = lrint(mean * QUARTERS / sqrt(power_of_two(spread - BIAS)))),
           labs(quarters) > MAX_MEAN)
        spread++;
    c->spread[k] = (uint8_t)spread;
    c->mean[k] = (int8_t)quarters;
}

/* Trials of rotary embeddings: the bases of known models, a few between them, one scaled by 8. */
#define HOPELESS 0.05      /* bits that two pairs must gain for the others to be looked at */
#define WORTH_TURNING 0.02 /* bits a value that rotating must save to pay for its steps */
enum { TRIALS = 16, PROBED_PAIRS = 4, PARTS = 16 };
/* Pairs that neither spin nor stand, in sixteenths of all. */
static const unsigned char probed_part[PROBED_PAIRS] = {2, 3, 4, 5};
static const struct {
    double angle, base;
} trial[TRIALS] = {{1, 1e4},   {1, 2.5e4}, {1, 5e4},   {1, 1e5},    {1, 1.3e5}, {1, 1.5e5},
                   {1, 2.5e5}, {1, 5e5},   {1, 6.4e5}, {1, 1e6},    {1, 1.6e6}, {1, 2e6},
                   {1, 5e6},   {1, 8e6},   {1, 1e7},   {0.125, 1e6}};

/* Cosine and sine of the angle of pair i in every trial. */
struct turns {
    float cosine[TRIALS], sine[TRIALS];
};

static void find_turns(struct turns *to, size_t i, size_t pairs) {
    for (unsigned k = 0; k < TRIALS; k++) {
        double w = trial[k].angle * pow(trial[k].base, -(double)i / (double)pairs);
        to->cosine[k] = (float)cos(w);
        to->sine[k] = (float)sin(w);
    }
}

/* Powers of whole sixteenths, which are enough for most heads: libm would take as long as the
 * trials. */
static struct turns part_turns[PARTS];
static pthread_once_t part_once = PTHREAD_ONCE_INIT;

static void fill_parts(void) {
    for (unsigned part = 0; part < PARTS; part++) find_turns(&part_turns[part], part, PARTS);
}

/* log2 of how much the best trial's turning means take off the energy of some pairs, against
 * resting means, and that trial in *best. x holds `rows` float rows of a head, `stride` apart. */
static double channels_probe(const float *x, size_t rows, size_t stride, size_t first, size_t pairs,
                             enum kvc_turn how, unsigned *best) {
    double gain[TRIALS] = {0}, most = 0;
    for (unsigned p = 0; p < PROBED_PAIRS; p++) {
        const size_t i = pairs * probed_part[p] / PARTS;
        struct turns turns = part_turns[probed_part[p]];
        if (pairs % PARTS) find_turns(&turns, i, pairs);
        size_t a = first + (how == KVC_TURN_HALVES ? i : 2 * i),
               b = how == KVC_TURN_HALVES ? a + pairs : a + 1;
        float re[TRIALS] = {0}, im[TRIALS] = {0}, c[TRIALS], s[TRIALS] = {0};
        double energy = 0, rest_a = 0, rest_b = 0;
        for (unsigned k = 0; k < TRIALS; k++) c[k] = 1;
        for (size_t t = 0; t < rows; t++) {
            float u = x[t * stride + a], v = x[t * stride + b];
            if (!(fabsf(u) < 0x1p50f && fabsf(v) < 0x1p50f)) continue;
            energy += (double)u * (double)u + (double)v * (double)v;
            rest_a += (double)u;
            rest_b += (double)v;
            for (unsigned k = 0; k < TRIALS; k++) {
                re[k] += u * c[k] + v * s[k];
                im[k] += v * c[k] - u * s[k];
                float next = c[k] * turns.cosine[k] - s[k] * turns.sine[k];
                s[k] = s[k] * turns.cosine[k] + c[k] * turns.sine[k];
                c[k] = next;
            }
        }
        double n = (double)rows, least = energy * 1e-6 + 1e-30;
        double rest = energy - (rest_a * rest_a + rest_b * rest_b) / n;
        for (unsigned k = 0; k < TRIALS; k++) {
            double left = energy -
                          ((double)re[k] * (double)re[k] + (double)im[k] * (double)im[k]) / n;
            gain[k] += log2((rest > least ? rest : least) / (left > least ? left : least));
            if (gain[k] > most) most = gain[k];
        }
        if (p == 1 && most < HOPELESS) return 0;
    }
    *best = 0;
    for (unsigned k = 1; k < TRIALS; k++)
        if (gain[k] > gain[*best]) *best = k;
    return gain[*best] / PROBED_PAIRS;
}

/* Finds how the channels of the first head rotate from row to row, if they do. */
static void find_turn(struct kvc_channels *c, const struct kvc_shape *shape, const float *x,
                      size_t rows) {
    /* Where a file does not say how many heads a row has, it comes as one. */
    static const size_t usual[] = {64, 128, 256, 96, 80, 112, 32};
    const size_t dim = (size_t)shape->dim;
    double most = 0.1;
    c->turn = KVC_TURN_NONE;
    c->first = c->pairs = 0;
    if (rows < 32) return;
    pthread_once(&part_once, fill_parts);
    for (unsigned u = 0; u <= sizeof usual / sizeof usual[0]; u++) {
        size_t period = u ? usual[u - 1] : dim, first = 0;
        if (u && (shape->heads > 1 || period >= dim || dim % period)) continue;
        if (period == 576) first = 512; /* DeepSeek's latent rows: RoPE on the last 64 only */
        const size_t pairs = (period - first) / 2;
        if (pairs < PARTS / 2) continue;
        for (int how = KVC_TURN_HALVES; how <= KVC_TURN_INTERLEAVED; how++) {
            unsigned best = 0;
            double gain = channels_probe(x, rows, c->n, first, pairs, (enum kvc_turn)how, &best);
            if (gain <= most) continue;
            most = gain;
            c->turn = (enum kvc_turn)how;
            c->period = (uint32_t)period;
            c->first = (uint32_t)first;
            c->pairs = (uint32_t)pairs;
            c->angle = (float)trial[best].angle;
            c->ratio = (float)pow(trial[best].base, -1.0 / (double)pairs);
        }
    }
}

/* The sums over rows 0 to n-1 of cos^2, sin^2 and cos * sin of angle * row, in closed form. */
static void turn_powers(double angle, size_t n, double power[3]) {
    double count = (double)n, s = sin(angle),
           most = fabs(s) > 1e-9 ? sin(count * angle) / s : count;
    double cosines = most * cos((count - 1) * angle), sines = most * sin((count - 1) * angle);
    power[0] = (count + cosines) / 2;
    power[1] = (count - cosines) / 2;
    power[2] = sines / 2;
}

/* Sets every channel to the rotating means of the sums over `tokens` rows, and the variance around
 * them; returns the bits that this saves against resting means, over one row. */
static double set_turning(struct kvc_channels *c, const struct kvc_model_sums *sums,
                          size_t tokens) {
    const double count = (double)tokens;
    double gain = 0;
    for (size_t d = 0; d < c->period; d++) {
        float sign;
        const size_t with = partner_of(c, d, &sign);
        double power[3];
        turn_powers(atan2((double)c->step_s[d], (double)c->step_c[d]), tokens, power);
        for (size_t head = 0; head < c->n; head += c->period) {
            const size_t k = head + d, other = head + with;
            const double cosines = (double)sums->cosines[k], sines = (double)sums->sines[k];
            const double square = (double)sums->square[k], sum = (double)sums->plain[k],
                         least = square * 1e-6 + 1e-30;
            const double mean = (cosines - (double)sign * (double)sums->sines[other]) / count;
            const double across = ((double)sign * (double)sums->cosines[other] +
                                   (double)(sign * sign) * sines) /
                                  count;
            const double left = square - 2 * (mean * cosines + across * sines) +
                                mean * mean * power[0] + across * across * power[1] +
                                2 * mean * across * power[2];
            const double rest = square - sum * sum / count;
            gain += log2((rest > least ? rest : least) / (left > least ? left : least)) / 2;
            set_channel(c, k, mean, (left > 0 ? left : 0) / count);
        }
    }
    return gain;
}

void kvc_channels_fit(struct kvc_channels *c, const struct kvc_shape *shape, const uint8_t *rows,
                      float *scratch) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const size_t n = c->n, tokens = (size_t)shape->tokens;
    float *plain = scratch, *x = plain + 4 * n;
    const struct kvc_model_sums sums = {plain, plain + n, plain + 2 * n, plain + 3 * n},
                                rest = {plain, plain + n, NULL, NULL};
    memset(plain, 0, 4 * n * sizeof *plain);
    for (size_t t = 0, some; t < tokens; t += some) {
        some = tokens - t < KVC_CHANNELS_ROWS ? tokens - t : KVC_CHANNELS_ROWS;
        info->to_f32(x, rows + t * n * info->size, some * n);
        if (!t) find_turn(c, shape, x, some);
        if (!t) kvc_channels_begin(c);
        if (c->turn == KVC_TURN_NONE)
            kvc_kernels_get()->model_sums(&rest, x, some, NULL, NULL, NULL, NULL, n, n);
        else
            kvc_kernels_get()->model_sums(&sums, x, some, c->cosine, c->sine, c->step_c, c->step_s,
                                          n, c->period);
    }
    if (c->turn != KVC_TURN_NONE && set_turning(c, &sums, tokens) > WORTH_TURNING * (double)n)
        return;
    c->turn = KVC_TURN_NONE;
    c->first = c->pairs = 0;
    for (size_t k = 0; k < n; k++) {
        const double count = (double)tokens, mean = (double)sums.plain[k] / count;
        const double variance = (double)sums.square[k] / count - mean * mean;
        set_channel(c, k, mean, variance > 0 ? variance : 0);
    }
}

int kvc_channels_fit_ahead(struct kvc_channels *c, const struct kvc_shape *shape,
                           const uint8_t *rows, float *scratch) {
    const struct kvc_dtype_info *info = kvc_dtype_info(shape->dtype);
    const size_t n = c->n, tokens = (size_t)shape->tokens;
    float *plain = scratch, *apart = plain + 2 * n, *x = plain + 4 * n;
    const struct kvc_model_sums own = {plain, plain + n, NULL, NULL},
                                left = {apart, apart + n, NULL, NULL};
    double gain = 0;
    memset(plain, 0, 4 * n * sizeof *plain);
    c->turn = KVC_TURN_AHEAD;
    c->first = c->pairs = 0;
    for (size_t t = 0, some; t < tokens; t += some) {
        some = tokens - t < KVC_CHANNELS_ROWS ? tokens - t : KVC_CHANNELS_ROWS;
        info->to_f32(x, rows + t * (n / info->block) * info->size, some * n / info->block);
        kvc_kernels_get()->model_sums(&own, x, some, NULL, NULL, NULL, NULL, n, n);
        for (size_t k = 0; k < some * n; k++) x[k] -= c->ahead[t * n + k];
        kvc_kernels_get()->model_sums(&left, x, some, NULL, NULL, NULL, NULL, n, n);
    }
    for (size_t k = 0; k < n; k++) {
        const double count = (double)tokens, mean = (double)left.plain[k] / count,
                     own_mean = (double)own.plain[k] / count;
        const double variance = (double)left.square[k] / count - mean * mean;
        const double own_variance = (double)own.square[k] / count - own_mean * own_mean;
        gain += log2((own_variance > 0 ? own_variance : 0) + 1e-30) -
                log2((variance > 0 ? variance : 0) + 1e-30);
        set_channel(c, k, mean, variance > 0 ? variance : 0);
    }
    if (gain > 0) return 1;
    c->turn = KVC_TURN_NONE;
    return 0;
}

/* sum += v, square += v * v over n codes v, those from `half` on less `whole`. */
static void add_codes(int32_t *restrict sum, int32_t *restrict square,
                      const uint16_t *restrict codes, size_t n, int32_t whole, int32_t half) {
    for (size_t k = 0; k < n; k++) {
        int32_t v = codes[k] - (codes[k] >= half ? whole : 0);
        sum[k] += v;
        square[k] += v * v;
    }
}

void kvc_channels_fit_codes(struct kvc_channels *c, const uint16_t *codes, size_t rows, int sign) {
    const int32_t whole = 1 << c->bits, half = sign ? whole / 2 : whole;
    /* not used by codes */
    int32_t *sum = (int32_t *)(void *)c->value, *square = (int32_t *)(void *)c->variance;
    memset(sum, 0, c->n * sizeof *sum);
    memset(square, 0, c->n * sizeof *square); /* of at most 256 rows of 8 bits */
    c->turn = KVC_TURN_NONE;
    c->first = c->pairs = 0;
    for (size_t t = 0; t < rows; t++) add_codes(sum, square, codes + t * c->n, c->n, whole, half);
    for (size_t k = 0; k < c->n; k++) {
        double mean = (double)sum[k] / (double)rows,
               variance = (double)square[k] / (double)rows - mean * mean;
        int spread = BIAS + (variance > 0x1p-20 ? (int)lrint(log2(variance)) : -20);
        c->spread[k] = (uint8_t)spread;
        c->mean[k] = (int8_t)lrint(mean);
    }
}
