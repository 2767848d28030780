/* made.c: made-up caches; see made.h. */
#include "tests/cuda/made.h"
#include "tests/recipe_text.h"

#include "codecs/floats.h"
#include "codecs/rope.h"
#include "formats/cache/mapped.h"
#include "formats/container/container.h"
#include "formats/cache/keys.h"
#include "formats/model/profile_learn.h"
#include "formats/file/rate.h"
#include "kernels/kernels.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { NORMALS = 1 << 16, MOST_THREADS = 16, AT_ONCE = 2048, LEARNED = 1024, WIDEST = 256 };
#define THETA 1e5
#define DECAY 0.08f /* of components' deviations, before a Hadamard matrix mixes them */

/* --- values --- */

/* Runs of AT_ONCE rows of the tensors, which threads take in turn. */
struct filling {
    const struct made *made;
    float normal[NORMALS]; /* drawn from over and over */
    uint64_t runs;         /* of a tensor */
    uint64_t seed;
    float mean;
    atomic_uint_fast64_t next;
    atomic_int failed;
};

static unsigned draw(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*state >> 40);
}

static float normal(uint64_t *state) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += (float)draw(state) * 0x1p-24f;
    return sum - 6;
}

static void make_angles(double *angle, size_t half) {
    for (size_t i = 0; i < half; i++) angle[i] = pow(THETA, -(double)i / (double)half);
}

/* Where a tensor's values begin. */
static uint64_t place(const struct made *m, uint32_t t) {
    uint64_t at = 0;
    for (uint32_t i = 0; i < t; i++) at += kvc_tensor_bytes(&m->cache->tensor[i]);
    return at;
}

/* Fills rows [first, end) of a tensor: components that decrease, mixed, spread by channel, rotated.
 */
static int fill_rows(const struct filling *f, uint32_t t, uint64_t first, uint64_t end) {
    const struct kvc_tensor *tensor = &f->made->cache->tensor[t];
    const struct kvc_shape *s = &tensor->shape;
    const size_t heads = (size_t)s->heads, dim = (size_t)s->dim, width = heads * dim,
                 row_bytes = (size_t)kvc_row_bytes(s);
    const int turned = tensor->role == KVC_ROLE_K, mixed = !(dim & (dim - 1));
    double angle[WIDEST];
    struct kvc_rope rope = {0};
    uint64_t state = f->seed + t, rows = f->seed + ((uint64_t)t << 40) + first;
    uint8_t *to = f->made->values + (size_t)place(f->made, t);
    float *row = malloc(3 * width * sizeof *row), *decay = row + width, *spread = decay + width;
    if (turned) make_angles(angle, dim / 2);
    if (!row || (turned && kvc_rope_init(&rope, angle, dim / 2, 1, NULL))) {
        free(row);
        return -1;
    }
    for (size_t i = 0; i < width; i++) {
        decay[i] = mixed ? expf(-DECAY * (float)(i % dim)) : 1;
        spread[i] = expf(0.6f * normal(&state));
    }
    for (uint64_t r = first; r < end; r++) {
        for (size_t i = 0; i < width; i++) row[i] = f->normal[draw(&rows) % NORMALS] * decay[i];
        if (mixed) kvc_hadamard(row, width, dim);
        for (size_t i = 0; i < width; i++) row[i] = (row[i] + (turned ? f->mean : 0)) * spread[i];
        if (turned) {
            kvc_rope_at(&rope, (int64_t)r);
            kvc_rope_turn(&rope, row, heads, dim);
        }
        kvc_from_floats(to + (size_t)r * row_bytes, row, width, s->dtype);
    }
    if (turned) kvc_rope_free(&rope);
    free(row);
    return 0;
}

static void *fill(void *state) {
    struct filling *f = state;
    const struct kvc_cache *c = f->made->cache;
    for (uint64_t i; (i = atomic_fetch_add(&f->next, 1)) < f->runs * c->n_tensors &&
                     !atomic_load(&f->failed);) {
        const uint32_t t = (uint32_t)(i / f->runs);
        const uint64_t first = i % f->runs * AT_ONCE, left = c->tensor[t].shape.tokens - first;
        if (fill_rows(f, t, first, first + (left < AT_ONCE ? left : AT_ONCE)))
            atomic_store(&f->failed, 1);
    }
    return NULL;
}

static int fill_all(const struct made *m, float mean, uint64_t seed, struct kvc_error *e) {
    pthread_t thread[MOST_THREADS];
    struct filling *f = calloc(1, sizeof *f);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    long n = 0;
    uint64_t state = 1;
    if (!f) return kvc_fail_memory(e, "values");
    f->made = m;
    f->seed = seed;
    f->mean = mean;
    f->runs = (m->cache->tensor[0].shape.tokens + AT_ONCE - 1) / AT_ONCE;
    for (size_t i = 0; i < NORMALS; i++) f->normal[i] = normal(&state);
    while (n + 1 < cores && n < MOST_THREADS && !pthread_create(&thread[n], NULL, fill, f)) n++;
    fill(f);
    while (n) pthread_join(thread[--n], NULL);
    const int failed = atomic_load(&f->failed);
    free(f);
    return failed ? kvc_fail_memory(e, "values") : 0;
}

/* --- caches --- */

static int add_tensor(struct made *m, uint32_t layer, enum kvc_role role,
                      const struct made_shape *s, struct kvc_error *e) {
    const struct kvc_shape shape = {.dtype = s->dtype,
                                    .tokens = s->tokens,
                                    .heads = s->heads,
                                    .dim = role == KVC_ROLE_V ? s->dim_v : s->dim_k};
    const uint32_t t = kvc_cache_add_tensor(m->cache, layer, role, &shape, e);
    if (t == KVC_NONE) return -1;
    m->cache->tensor[t].source = kvc_strides_canonical(&shape);
    m->cache->tensor[t].source_size = kvc_tensor_bytes(&m->cache->tensor[t]);
    m->bytes += kvc_tensor_bytes(&m->cache->tensor[t]);
    return 0;
}

static int make(struct made *m, const struct made_shape *s, uint64_t seed, struct kvc_error *e) {
    const int latent = !s->dim_v;
    if (s->dim_k > WIDEST)
        return kvc_fail(e, KVC_ERR_USAGE, "a made-up head has at most %d channels", WIDEST);
    if (!(m->cache = kvc_cache_new(e)) ||
        kvc_cache_add_part(m->cache, KVC_PART_LIVE, s->tokens, e) == KVC_NONE ||
        kvc_cache_map(m->cache, NULL, NULL, e))
        return -1;
    for (uint32_t l = 0; l < s->layers; l++) {
        if (kvc_cache_add_layer(m->cache, 0, l, latent ? KVC_LAYER_LATENT : KVC_LAYER_FULL, e) ==
                KVC_NONE ||
            add_tensor(m, l, latent ? KVC_ROLE_LATENT : KVC_ROLE_K, s, e) ||
            (!latent && add_tensor(m, l, KVC_ROLE_V, s, e)))
            return -1;
    }
    if (!(m->values = malloc((size_t)m->bytes))) return kvc_fail_memory(e, "values");
    if (fill_all(m, s->mean, seed, e)) return -1;
    for (uint32_t t = 0; t < m->cache->n_tensors; t++)
        if (kvc_cache_map_memory(m->cache, t, m->values + place(m, t), e)) return -1;
    struct kvc_meta *meta = &m->cache->meta;
    if (kvc_cache_finish(m->cache, e)) return -1;
    if (latent) return 0;
    if (kvc_meta_set_text(meta, KVC_KEY_ROPE_PAIRING, "halves", e)) return -1;
    if (kvc_meta_set_text(meta, KVC_KEY_ROPE_TYPE, "default", e)) return -1;
    return kvc_meta_set_f64(meta, KVC_KEY_ROPE_THETA, THETA, e);
}

/* A profile of LEARNED tokens of the same channels' spreads. */
static int learn(struct made *m, const struct made_shape *shape, struct kvc_error *e) {
    struct made_shape few = *shape;
    struct made other = {0};
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    struct kvc_learner *learner = kvc_learner_new(e);
    few.tokens = LEARNED;
    int status = !learner || make(&other, &few, 1, e) ||
                 kvc_learner_add(learner, other.cache, NULL, e) ||
                 kvc_learner_write(learner, &sink, e);
    if (!status) status = !(m->profile = kvc_profile_open_memory(buffer.data, buffer.n, e));
    kvc_learner_free(learner);
    made_free(&other);
    free(buffer.data);
    return status ? -1 : 0;
}

int made_new(struct made *m, const struct made_shape *shape, int with_profile,
             struct kvc_error *e) {
    memset(m, 0, sizeof *m);
    if (make(m, shape, 1, e)) return -1;
    return with_profile ? learn(m, shape, e) : 0;
}

void made_free(struct made *m) {
    kvc_cache_free(m->cache);
    kvc_profile_free(m->profile);
    free(m->values);
    memset(m, 0, sizeof *m);
}

/* --- files --- */

int made_pack(const struct kvc_cache *cache, const char *recipe, struct kvc_profile *profile,
              const char *path, struct kvc_error *e) {
    struct kvc_pack_options options = {.recipe = recipe_of(recipe),
                                       .profile = profile,
                                       .embed_profile = profile != NULL,
                                       .no_verify = 1};
    struct kvc_rate rate = {0};
    struct kvc_rate_report report;
    struct kvc_recipe settled;
    for (uint32_t t = 0; t < cache->n_tensors; t++)
        rate.row_bytes += kvc_tensor_bytes(&cache->tensor[t]);
    if (kvc_rate_settle(cache, &options, &rate, &settled, &report, e)) return -1;
    options.recipe = &settled;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    struct kvc_sink sink = kvc_sink_fd(&fd);
    const int status = kvc_container_write(cache, &options, &sink, NULL, e);
    if (close(fd) && !status) return kvc_fail(e, KVC_ERR_IO, "%s: %s", path, strerror(errno));
    return status;
}
