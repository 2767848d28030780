/* transform.c: the transform codec on caches made up here, of 64 and 128 channels a head: whole,
 * and how much of decoding each stage takes. Not for real caches (lossy.c) or for quality
 * (tests/quality). */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "codecs/rope.h"
#include "formats/cache/mapped.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "formats/model/predictor.h"
#include "formats/model/profile_learn.h"
#include "formats/container/plan.h"
#include "formats/file/rate.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_ROWS = 2048,
    MOST_LAYERS = 4,
    RECIPES = 6,
    WHOLE = 4,
    ALL = RECIPES + 2,
    ENCODE = 0,
    DECODE = 1
};
#define RATIO 12.0 /* where KLDs of 0.01 lie */
/* of components' deviations: what makes about a quarter of the codes non-zero there */
#define DECAY 0.08

struct made {
    struct kvc_cache *cache;
    struct kvc_profile *profile;
    uint8_t *values, *to;
    size_t bytes;
};

struct packed {
    const struct made *made;
    const char *recipe;
    /* with the profile, for decoding; what encoding is timed on, without it */
    struct kvc_buffer buffer, again;
    struct kvc_input in;
    struct kvc_cache *cache;
};

static size_t rows(void) {
    return quick ? MOST_ROWS / 16 : MOST_ROWS;
}

/* Two are the fewest of which a profile learns to predict one from the other. */
static size_t layers(void) {
    return quick ? 2 : MOST_LAYERS;
}

/* --- a cache --- */

static float normal(uint64_t *state) {
    float sum = 0;
    for (int i = 0; i < 12; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (float)(*state >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

/* Fills rows in bf16 whose components decrease, as those of real heads do, rotated by a Hadamard
 * matrix. */
static void fill(uint8_t *to, size_t heads, size_t dim, struct kvc_rope *rope, uint64_t *state) {
    float *row = need_memory(heads * dim * sizeof *row);
    for (int64_t t = 0; t < (int64_t)rows(); t++) {
        for (size_t i = 0; i < heads * dim; i++)
            row[i] = normal(state) * expf(-(float)DECAY * (float)(i % dim));
        kvc_hadamard(row, heads * dim, dim);
        if (rope) {
            kvc_rope_at(rope, t);
            kvc_rope_turn(rope, row, heads, dim);
        }
        kvc_kernels_get()->f32_to_bf16(to + (size_t)t * heads * dim * 2, row, heads * dim);
    }
    free(row);
}

static void make(struct made *m, size_t heads, size_t dim) {
    struct kvc_error e;
    struct kvc_rope rope;
    uint64_t state = 1;
    double angle[128];
    const struct kvc_shape shape = {.dtype = KVC_BF16,
                                    .tokens = rows(),
                                    .heads = heads,
                                    .dim = dim};
    const size_t size = rows() * heads * dim * 2;
    for (size_t i = 0; i < dim / 2; i++) angle[i] = pow(1e5, -2.0 * (double)i / (double)dim);
    m->bytes = size * layers() * 2;
    m->values = need_memory(m->bytes);
    m->to = need_memory(size);
    m->cache = kvc_cache_new(&e);
    if (!m->cache || kvc_rope_init(&rope, angle, dim / 2, 1, &e)) give_up("a cache", e.message);
    kvc_cache_add_part(m->cache, KVC_PART_LIVE, rows(), &e);
    if (kvc_cache_map(m->cache, NULL, NULL, &e)) give_up("a cache", e.message);
    for (uint32_t l = 0; l < layers(); l++) {
        kvc_cache_add_layer(m->cache, 0, l, KVC_LAYER_FULL, &e);
        for (uint32_t r = 0; r < 2; r++) {
            uint8_t *values = m->values + (2 * l + r) * size;
            const uint32_t t = kvc_cache_add_tensor(m->cache, l, (enum kvc_role)r, &shape, &e);
            fill(values, heads, dim, r ? NULL : &rope, &state);
            if (t == KVC_NONE) give_up("a cache", e.message);
            m->cache->tensor[t].source = (struct kvc_strides){heads * dim * 2, dim * 2, 2};
            m->cache->tensor[t].source_size = size;
            if (kvc_cache_map_memory(m->cache, t, values, &e)) give_up("a cache", e.message);
        }
    }
    kvc_rope_free(&rope);
    struct kvc_meta *meta = &m->cache->meta;
    if (kvc_cache_finish(m->cache, &e) ||
        kvc_meta_set_text(meta, KVC_KEY_ROPE_PAIRING, "halves", &e) ||
        kvc_meta_set_text(meta, KVC_KEY_ROPE_TYPE, "default", &e) ||
        kvc_meta_set_f64(meta, KVC_KEY_ROPE_THETA, 1e5, &e))
        give_up("a cache", e.message);
    struct kvc_learner *learner = kvc_learner_new(&e);
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    if (learner) kvc_learner_predict(learner, 1, NULL);
    if (!learner || kvc_learner_add(learner, m->cache, NULL, &e) ||
        kvc_learner_write(learner, &sink, &e) ||
        !(m->profile = kvc_profile_open_memory(buffer.data, buffer.n, &e)))
        give_up("a profile", e.message);
    kvc_learner_free(learner);
    free(buffer.data);
}

/* --- jobs --- */

static void pack(const struct packed *p, struct kvc_buffer *to, int embed) {
    struct kvc_error e;
    const struct kvc_pack_options options = {.recipe = recipe_of(p->recipe),
                                             .threads = 1,
                                             .profile = p->made->profile,
                                             .embed_profile = embed};
    to->n = 0;
    struct kvc_sink sink = kvc_sink_buffer(to);
    if (kvc_container_write(p->made->cache, &options, &sink, NULL, &e))
        give_up(p->recipe, e.message);
}

static void encode(struct job *job) {
    struct packed *p = job->what;
    pack(p, &p->again, 0);
}

static void decode(struct job *job) {
    const struct packed *p = job->what;
    struct kvc_error e;
    for (uint32_t t = 0; t < p->cache->n_tensors; t++)
        if (p->cache->read(p->cache, t, 0, rows(), p->made->to, &e)) give_up(p->recipe, e.message);
}

static void copy(struct job *job) {
    const struct made *m = job->what;
    for (size_t t = 0; t < 2 * layers(); t++)
        memcpy(m->to, m->values + t * (m->bytes / 2 / layers()), m->bytes / 2 / layers());
}

/* Returns the products of bytes that predictions of all tensors take. */
static double products(const struct made *m) {
    double sum = 0;
    for (uint32_t t = 0; t < m->cache->n_tensors; t++) {
        const struct kvc_predictor *p = NULL;
        struct kvc_error e;
        if (kvc_profile_predictor(m->profile, m->cache->layer[m->cache->tensor[t].layer].index,
                                  m->cache->tensor[t].role, KVC_PAIRING_HALVES, &p, &e))
            give_up("a predictor", e.message);
        if (p) sum += (double)rows() * (double)p->matrix.outputs * (double)p->matrix.inputs;
    }
    return sum;
}

/* Prints which share of the time that predictions add to decoding their products take at least. */
static void print_share(const struct made *m, const struct line *all,
                        const struct line *predicted) {
    const double peak = bench_peak(), of = products(m), whole = predicted->job[DECODE].best,
                 before = all->job[DECODE].best;
    if (peak == 0 || whole <= before) return;
    printf("    products: %.1f 10^9 a second at most (registers only); of predictions %.1f: %.2f "
           "of it, "
           "with all stages %.2f\n",
           peak, of / (whole - before) / 1e9, of / (whole - before) / 1e9 / peak,
           of / whole / 1e9 / peak);
}

static void race_head(size_t heads, size_t dim) {
    static const char *const stages[RECIPES] = {"code",
                                                "steps,code",
                                                "basis,steps,code",
                                                "center,basis,steps,code",
                                                "derope@k,center,basis,steps,code",
                                                "derope@k,predict,center,basis,steps,code"};
    static const char *const what[RECIPES] = {"rANS, store", "+ steps",     "+ basis",
                                              "+ means",     "+ RoPE: all", "+ prediction"};
    /* without and with prediction across layers */
    static const char *const lossless[ALL - RECIPES] = {"split", "cross"};
    static char text[ALL][256], settled[512];
    struct made m;
    struct packed packed[ALL];
    struct line lines[ALL + 1];
    struct kvc_error e;
    make(&m, heads, dim);
    const struct kvc_pack_options options = {.recipe = recipe_of(stages[WHOLE]),
                                             .profile = m.profile};
    const struct kvc_rate rate_wanted = {.ratio = RATIO, .row_bytes = m.bytes};
    struct kvc_rate_report report;
    struct kvc_recipe chosen;
    if (kvc_rate_settle(m.cache, &options, &rate_wanted, &chosen, &report, &e) ||
        kvc_recipe_print(&chosen, settled, sizeof settled))
        give_up("a step", e.message);
    const char *code = strrchr(settled, ',');
    memset(lines, 0, sizeof lines);
    lines[0] = (struct line){.name = "memcpy",
                             .bytes = m.bytes,
                             .job = {{.run = copy, .what = &m}}};
    for (size_t i = 0; i < ALL; i++) {
        if (i < RECIPES)
            snprintf(text[i], sizeof text[i], "%.*s%s", (int)(strlen(stages[i]) - strlen("code")),
                     stages[i], code + 1);
        else snprintf(text[i], sizeof text[i], "%s", lossless[i - RECIPES]);
        packed[i] = (struct packed){.made = &m, .recipe = text[i]};
        pack(&packed[i], &packed[i].buffer, 1);
        kvc_input_memory(&packed[i].in, "a pack", packed[i].buffer.data, packed[i].buffer.n);
        if (!(packed[i].cache = kvc_format_import(&kvc_format_kvc, &packed[i].in, NULL, &e)))
            give_up(text[i], e.message);
        lines[i + 1] = (struct line){.bytes = m.bytes,
                                     .job = {{.run = i >= WHOLE ? encode : NULL,
                                              .what = &packed[i]},
                                             {.run = decode, .what = &packed[i]}}};
    }
    race(lines, ALL + 1);
    const double whole = rate(&lines[0], ENCODE);
    printf(
        "\nTransform codec, %zu heads of %zu channels, bf16 %.1f MB at ratio %.1f, one core: GB/s "
        "(to memcpy), container and\n"
        "hashes in. Each line has one stage more; what comes before codes what it gets, at the "
        "same step. Inputs of predictions\n"
        "are kept from one time to the next. Encoding names the profile and does not store it.\n",
        heads, dim, (double)m.bytes / 1e6, report.ratio);
    printf("    %-16s%9.3f\n", "memcpy", whole);
    for (size_t i = 0; i < RECIPES; i++)
        printf("    decode %-16s%9.3f (%.3f)\n", what[i], rate(&lines[i + 1], DECODE),
               rate(&lines[i + 1], DECODE) / whole);
    print_share(&m, &lines[WHOLE + 1], &lines[RECIPES]);
    for (size_t i = WHOLE; i < RECIPES; i++)
        printf("    encode %-16s%9.3f (%.3f)\n", i == WHOLE ? "all, verified" : what[i],
               rate(&lines[i + 1], ENCODE), rate(&lines[i + 1], ENCODE) / whole);
    for (size_t i = RECIPES; i < ALL; i++)
        printf("    lossless: %-6s%9.3f (%.3f) decoded, %.3f (%.3f) encoded\n", text[i],
               rate(&lines[i + 1], DECODE), rate(&lines[i + 1], DECODE) / whole,
               rate(&lines[i + 1], ENCODE), rate(&lines[i + 1], ENCODE) / whole);
    fflush(stdout);
    for (size_t i = 0; i < ALL; i++) {
        kvc_cache_free(packed[i].cache);
        kvc_input_close(&packed[i].in);
        free(packed[i].buffer.data);
        free(packed[i].again.data);
    }
    kvc_cache_free(m.cache);
    kvc_profile_free(m.profile);
    free(m.values);
    free(m.to);
}

void bench_transform(void) {
    race_head(3, 64);
    race_head(quick ? 2 : 8, 128);
}
