/* rope_scaling.c: how scaled RoPE changes angles and lengths. Not for the angles of a layer
 * (layer_rope.c). Formulas: transformers, modeling_rope_utils.py; YaRN: arXiv 2309.00071, section
 * 3; of llama.cpp, ggml/src/ggml-cpu/ops.cpp (rope_yarn) and src/llama-context.cpp
 * (yarn_attn_factor). */
#include "formats/model/rope_scaling.h"

#include "formats/io/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define TURN 6.283185307179586 /* radians */

/* --- formulas --- */

/* Angles of pairs with few turns in the original context are divided by the factor, those with many
 * stay, and those between change gradually (Llama 3.1). */
static void scale_llama3(const struct kvc_rope_facts *rope, double original, double low,
                         double high, size_t half, double *divisor) {
    for (size_t i = 0; i < half; i++) {
        const double turns = original * pow(rope->theta, -(double)i / (double)half) / TURN,
                     kept = fmin(fmax((turns - low) / (high - low), 0), 1);
        divisor[i] = 1 / ((1 - kept) / rope->factor + kept);
    }
}

struct yarn {
    double fast, slow; /* turns in the original context: more stay, fewer are divided */
    int whole;         /* 1: the ramp begins and ends at pairs */
};

/* Returns the pair that makes so many turns in the original context. */
static double pair_of(const struct kvc_rope_facts *rope, size_t half, double turns) {
    return (double)half * log((double)rope->original / (turns * TURN)) / log(rope->theta);
}

static void scale_yarn(const struct kvc_rope_facts *rope, const struct yarn *y, size_t half,
                       double *divisor) {
    double first = pair_of(rope, half, y->fast), last = pair_of(rope, half, y->slow);
    if (y->whole) {
        first = floor(first);
        last = ceil(last);
    }
    first = fmax(first, 0);
    last = fmin(last, 2 * (double)half - 1);
    for (size_t i = 0; i < half; i++) {
        const double ramp = ((double)i - first) / fmax(last - first, 0.001),
                     divided = fmin(fmax(ramp, 0), 1);
        divisor[i] = 1 / (divided / rope->factor + (1 - divided));
    }
}

/* Returns YaRN's factor of lengths, which makes logits larger in longer contexts. */
static double yarn_length(double factor, double multiplier) {
    return factor <= 1 ? 1 : 0.1 * multiplier * log(factor) + 1;
}

/* --- metadata --- */

/* Reads a number above 0 of an object; `otherwise` where it is missing or null, NaN where it makes
 * no sense. */
static double number_of(const json_t *object, const char *key, double otherwise) {
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return otherwise;
    const double number = json_number_value(v);
    return number > 0 && isfinite(number) ? number : (double)NAN;
}

static int llama3(const struct kvc_rope_facts *rope, const json_t *more, size_t half,
                  double *divisor) {
    /* of Llama 3.1, 3.2 and 3.3; llama.cpp's converter has the same defaults */
    const double low = number_of(more, "low_freq_factor", 1),
                 high = number_of(more, "high_freq_factor", 4),
                 original = rope->original ? (double)rope->original : 8192;
    if (!(low < high)) return 0;
    scale_llama3(rope, original, low, high, half, divisor);
    return 1;
}

static int yarn(const struct kvc_rope_facts *rope, const json_t *more, size_t half, double *divisor,
                double *length) {
    const struct yarn y = {.fast = number_of(more, "beta_fast", 32),
                           .slow = number_of(more, "beta_slow", 1),
                           .whole = !json_is_false(json_object_get(more, "truncate"))};
    const double over = number_of(more, "mscale", 0), under = number_of(more, "mscale_all_dim", 0);
    *length = yarn_length(rope->factor, 1);
    if (over > 0 && under > 0)
        *length = yarn_length(rope->factor, over) / yarn_length(rope->factor, under);
    *length = number_of(more, "attention_factor", *length);
    if (!rope->original || !(y.fast > y.slow) || isnan(over) || isnan(under) || isnan(*length))
        return 0;
    scale_yarn(rope, &y, half, divisor);
    return 1;
}

int kvc_rope_scaling(const struct kvc_rope_facts *rope, size_t half, double *divisor,
                     double *length) {
    *length = 1;
    if (!(rope->factor >= 1)) return 0;
    json_t *more = rope->scaling ? kvc_json_load(rope->scaling, strlen(rope->scaling),
                                                 JSON_REJECT_DUPLICATES, NULL)
                                 : NULL;
    int known = 0;
    switch (rope->type) {
    case KVC_ROPE_TYPE_LLAMA3: known = llama3(rope, more, half, divisor); break;
    case KVC_ROPE_TYPE_YARN: known = yarn(rope, more, half, divisor, length); break;
    case KVC_ROPE_TYPE_DEFAULT:
    case KVC_ROPE_TYPE_LINEAR:
    case KVC_ROPE_TYPE_MROPE:
    case KVC_ROPE_TYPE_IMROPE:
        for (size_t i = 0; i < half; i++) divisor[i] = rope->factor;
        known = 1;
        break;
    default: break;
    }
    json_decref(more);
    return known;
}

/* --- GGUF files --- */

static double key_of(const struct kvc_gguf *g, const char *arch, const char *name,
                     double otherwise) {
    char key[160];
    snprintf(key, sizeof key, "%s.rope.scaling.%s", arch, name);
    return kvc_gguf_f64(g, key, otherwise);
}

/* Reads a tensor of binary32 numbers above 0, one for each pair. Returns -1 where it is none. */
static int read_divisors(struct kvc_rope_table *table, const struct kvc_gguf_tensor *t,
                         const struct kvc_input *in) {
    const uint64_t bytes = t->dim[0] * sizeof table->divisor[0];
    if (t->type != 0 || t->rank != 1 || t->dim[0] > KVC_ROPE_TABLE || t->offset > in->size ||
        bytes > in->size - t->offset || kvc_input_read(in, t->offset, table->divisor, bytes, NULL))
        return -1;
    table->pairs = (uint32_t)t->dim[0];
    for (uint32_t i = 0; i < table->pairs; i++)
        if (!(table->divisor[i] > 0) || !isfinite(table->divisor[i])) return -1;
    return 0;
}

/* Makes the table of YaRN as llama.cpp computes it. Of architectures that cache K and V, it reads
 * other numbers than the usual ones for Mistral 3, and ignores these keys for LLaMA
 * (tests/engine/test_engine.py, scaled_rope). */
static int read_yarn(struct kvc_rope_table *table, const struct kvc_gguf *g, const char *arch,
                     const struct kvc_rope_facts *known) {
    struct kvc_rope_facts copy = *known, *rope = &copy;
    const int reads = strcmp(arch, "mistral3") == 0;
    const struct yarn y = {reads ? key_of(g, arch, "yarn_beta_fast", 32) : 32,
                           reads ? key_of(g, arch, "yarn_beta_slow", 1) : 1, 1};
    const double under = reads ? key_of(g, arch, "yarn_log_multiplier", 0) : 0,
                 length = key_of(g, arch, "attn_factor", 1) * yarn_length(rope->factor, 1) /
                          (under > 0 ? yarn_length(rope->factor, under) : 1);
    const uint64_t half = rope->dim / 2;
    double divisor[KVC_ROPE_TABLE];
    char key[160];
    snprintf(key, sizeof key, "%s.context_length", arch);
    if (!rope->original) rope->original = kvc_gguf_u64(g, key, 0, NULL);
    if (!(rope->factor >= 1) || !rope->original || !(rope->theta > 1) || !half ||
        half > KVC_ROPE_TABLE || !(y.slow > 0) || !(y.fast > y.slow) || !isfinite(y.fast) ||
        !(length > 0) || !isfinite(length))
        return -1;
    scale_yarn(rope, &y, (size_t)half, divisor);
    for (uint64_t i = 0; i < half; i++) table->divisor[i] = (float)divisor[i];
    table->pairs = (uint32_t)half;
    table->length = (float)length;
    return 0;
}

void kvc_rope_table_gguf(struct kvc_rope_table *table, const struct kvc_gguf *g,
                         const struct kvc_input *in, const char *arch,
                         const struct kvc_rope_facts *rope) {
    struct kvc_gguf_tensor t;
    *table = (struct kvc_rope_table){.type = rope->type, .length = 1};
    if (kvc_gguf_has_tensor(g, "rope_factors_long.weight")) {
        table->state = KVC_TABLE_OF_TWO;
        return;
    }
    int bad;
    if (rope->type == KVC_ROPE_TYPE_YARN) bad = read_yarn(table, g, arch, rope);
    else if (kvc_gguf_tensor(g, "rope_freqs.weight", &t)) bad = read_divisors(table, &t, in);
    else return;
    table->state = bad ? KVC_TABLE_DAMAGED : KVC_TABLE_READ;
    for (uint32_t i = 0; i < table->pairs && rope->type == KVC_ROPE_TYPE_LINEAR; i++)
        table->divisor[i] *= (float)rope->factor;
}
