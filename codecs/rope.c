/* rope.c: tables of rotary position embedding and their use. Spec: derope.md, 3. */
#include "codecs/rope.h"

#include "codecs/memory.h"
#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

static const char *const type_names[] = {"unknown",  "default", "linear", "yarn", "llama3",
                                         "longrope", "mrope",   "imrope", "other"};

const char *kvc_rope_type_name(enum kvc_rope_type type) {
    return type_names[type];
}

enum kvc_rope_type kvc_rope_type_parse(const char *name) {
    for (int i = KVC_ROPE_TYPE_DEFAULT; i < KVC_ROPE_TYPE_OTHER; i++)
        if (strcmp(name, type_names[i]) == 0) return (enum kvc_rope_type)i;
    return *name ? KVC_ROPE_TYPE_OTHER : KVC_ROPE_TYPE_UNKNOWN;
}

enum { DIGIT = 16 };

int kvc_rope_angle_is_sane(double angle) {
    return angle >= 0 && angle <= 1;
}

/* Taylor's polynomials by Horner's rule: for 0 <= x <= 1 they miss by less than 2^-52. */
static void unit(double x, double *cosine, double *sine) {
    static const double even[] = {1.0 / 2432902008176640000.0,
                                  -1.0 / 6402373705728000.0,
                                  1.0 / 20922789888000.0,
                                  -1.0 / 87178291200.0,
                                  1.0 / 479001600.0,
                                  -1.0 / 3628800.0,
                                  1.0 / 40320.0,
                                  -1.0 / 720.0,
                                  1.0 / 24.0,
                                  -1.0 / 2.0,
                                  1.0};
    static const double odd[] = {-1.0 / 121645100408832000.0,
                                 1.0 / 355687428096000.0,
                                 -1.0 / 1307674368000.0,
                                 1.0 / 6227020800.0,
                                 -1.0 / 39916800.0,
                                 1.0 / 362880.0,
                                 -1.0 / 5040.0,
                                 1.0 / 120.0,
                                 -1.0 / 6.0,
                                 1.0};
    const double z = x * x;
    double c = even[0], s = odd[0];
    for (size_t i = 1; i < sizeof even / sizeof even[0]; i++) c = c * z + even[i];
    for (size_t i = 1; i < sizeof odd / sizeof odd[0]; i++) s = s * z + odd[i];
    *cosine = c;
    *sine = s * x;
}

/* to = a * b, complex numbers, cosines and then sines of each; to may be a or b. */
static void multiply(double *to, const double *a, const double *b, size_t half) {
    for (size_t i = 0; i < half; i++) {
        const double c = a[i] * b[i] - a[half + i] * b[half + i],
                     s = a[i] * b[half + i] + a[half + i] * b[i];
        to[i] = c;
        to[half + i] = s;
    }
}

static void set_one(double *to, size_t half) {
    for (size_t i = 0; i < half; i++) {
        to[i] = 1;
        to[half + i] = 0;
    }
}

/* Powers 0 to 15 of `base` into `to`; `next` becomes the 16th. */
static void digit(double *to, const double *base, double *next, size_t half) {
    set_one(to, half);
    for (size_t d = 1; d < DIGIT; d++)
        multiply(to + 2 * half * d, to + 2 * half * (d - 1), base, half);
    multiply(next, to + 2 * half * (DIGIT - 1), base, half);
}

int kvc_rope_init(struct kvc_rope *r, const double *angle, size_t half, enum kvc_pairing pairing,
                  struct kvc_error *e) {
    const size_t pair = 2 * half;
    double *room = kvc_alloc(pair, (2 * DIGIT + 4) * sizeof *room + sizeof(float));
    memset(r, 0, sizeof *r);
    if (!room) return kvc_fail_memory(e, "RoPE");
    r->pairing = pairing;
    r->half = half;
    r->low = room;
    r->middle = room + DIGIT * pair;
    r->step = room + 2 * DIGIT * pair;
    r->high = r->step + pair;
    r->both = r->high + pair;
    double *base = r->both + pair;
    r->cosine = (float *)(void *)(base + pair);
    r->sine = r->cosine + half;
    for (size_t i = 0; i < half; i++) unit(angle[i], &base[i], &base[half + i]);
    digit(r->low, base, r->high, half);
    digit(r->middle, r->high, r->step, half);
    r->high_of = r->both_of = -1;
    return 0;
}

void kvc_rope_free(struct kvc_rope *r) {
    free(r->low);
    r->low = NULL;
}

/* The step of 256 positions to the power n, its lowest bit first. */
static void power(struct kvc_rope *r, int64_t n) {
    double *base = r->both; /* is made anew afterwards */
    memcpy(base, r->step, 2 * r->half * sizeof *base);
    set_one(r->high, r->half);
    for (; n; n >>= 1) {
        if (n & 1) multiply(r->high, r->high, base, r->half);
        multiply(base, base, base, r->half);
    }
}

void kvc_rope_at(struct kvc_rope *r, int64_t position) {
    const size_t pair = 2 * r->half;
    if (r->both_of != position / DIGIT) {
        if (r->high_of != position / (DIGIT * DIGIT)) {
            r->high_of = position / (DIGIT * DIGIT);
            power(r, r->high_of);
        }
        r->both_of = position / DIGIT;
        multiply(r->both, r->high, r->middle + pair * (size_t)(r->both_of % DIGIT), r->half);
    }
    kvc_kernels_get()->angles(r->cosine, r->sine, r->both,
                              r->low + pair * (size_t)(position % DIGIT), r->half);
}

void kvc_rope_backwards(struct kvc_rope *r) {
    for (size_t i = 0; i < r->half; i++) r->sine[i] = -r->sine[i];
}

void kvc_rope_turn(struct kvc_rope *r, float *row, size_t heads, size_t dim) {
    const struct kvc_kernels *k = kvc_kernels_get();
    for (size_t h = 0; h < heads; h++, row += dim) {
        if (r->pairing == KVC_PAIRING_HALVES)
            k->turn_halves(row, row + r->half, r->cosine, r->sine, r->half);
        else k->turn_pairs(row, r->cosine, r->sine, r->half);
    }
}
