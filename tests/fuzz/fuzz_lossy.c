/* fuzz_lossy.c: the lossy stages and those that stand before them, past the hashes. 16 bytes choose
 * a recipe (a listed one, a preset, or any stages of the registry), a shape and what the rest is:
 * rows of one or two layers, which are encoded and decoded, or instructions that damage the
 * sections of such an encoding, or put its stages in an order that no encoder makes, before they
 * are decoded. */
#include "tests/fuzz/any_recipe.h"

#include "codecs/eigen.h"
#include "codecs/floats.h"
#include "codecs/presets.h"
#include "codecs/profile_part.h"
#include "codecs/rebuild.h"
#include "codecs/rope.h"
#include "codecs/shared.h"
#include "formats/io/bytes.h"

#include <math.h>

enum { HEADER = 16, CHANGE = 4, MAX_CHANGES = 32, MAX_SECTIONS = 64 };
enum {
    MAX_VALUES = 1 << 13,
    MAX_BLOCKS = 4,
    MAX_QUERIES = 8,
    IN = 5,
    HIDDEN_TENSOR = 7,
    PAIR_TENSOR = 3
};

static const char *const own_recipes[] = {
    "quant:kivi:bits=2",
    "quant:kivi:bits=1:g=1",
    "quant:kivi:bits=3:g=32:clip",
    "quant:kivi:bits=5:sym",
    "quant:kcvt:bits=4",
    "quant:kcvt:bits=8:sym:clip",
    "quant:token:bits=6:g=7",
    "quant:token:bits=7:g=65536",
    "quant:zip:bits=4",
    "quant:zip:bits=2:sym",
    "quant:kivi:bits=2,split",
    "quant:token:bits=1,store",
    "quant:zip:bits=1,zstd",
    "quant:kivi:bits=2,quant:token:bits=4",
    "quant:zip:bits=3,quant:zip:bits=3:clip,fast",
    "saliency:0.5,quant:kivi:bits=4",
    "saliency:0.3:by=knorm,quant:kivi:bits=8:low=1:g=3",
    "saliency:0.5:norm=paper,quant:token:bits=3:low=6:g=5",
    "saliency:0.9,quant:kcvt:bits=5:low=3:clip",
    "saliency:0:by=knorm,quant:zip:bits=4",
    "saliency:1:by=knorm,quant:zip:bits=4:sym",
    "saliency:0.6,split",
    "sink:2,saliency:0.5:by=knorm,quant:zip:bits=4:low=1,lowrank:r=1",
    "outlier:0.1,quant:zip:bits=2",
    "outlier:0.5",
    "outlier:0.02,split",
    "outlier:0.3,outlier:0.1,quant:kcvt:bits=2",
    "outlier:0.05,lowrank:r=2",
    "lowrank:r=1",
    "lowrank:r=3:layer",
    "lowrank:r=2:power=2",
    "lowrank:r=4:layer:power=1,quant:kivi:bits=2",
    "lowrank:r=2,lowrank:r=1,split",
    "prune:k=0.5:v=0.3",
    "prune:k=0.95:v=0.95:by=l1:mean",
    "prune:k=0.4:by=l2:mean,quant:kivi:bits=4",
    "prune:v=0.7:mean:window=2",
    "prune:k=0.1:v=0.1:by=l2,prune:k=0.5",
    "merge:slerp:from=0",
    "merge:mean:from=0:keep=0.3",
    "merge:maxnorm:from=0:gamma=0.2",
    "merge:slerp:from=0:heads:t=1:keep=0",
    "merge:slerp:from=0:t=0:keep=1",
    "merge:slerp:from=0,prune:k=0.5:v=0.5:by=l1,quant:token:bits=4",
    "sink:1,tail:3,merge:slerp:from=0:heads,quant:kcvt:bits=3",
    "merge:slerp:from=0,tail:4,saliency:0.5:by=knorm,quant:zip:bits=4",
    "merge:slerp:from=0,lowrank:r=2",
    "merge:mean:from=0,sink:2,outlier:0.1,quant:kivi:bits=2,lowrank:r=1:layer",
    "sink:3",
    "tail:5",
    "tail:2:whole=4",
    "sink:300",
    "tail:300,quant:kivi:bits=1",
    "sink:2,tail:2,sink:4,tail:4",
    "finite",
    "finite,zstd",
    "finite,sink:2,finite,fast",
    ("sink:2,tail:3:whole=2,finite,prune:k=0.5:v=0.5:by=l1,outlier:0.1,quant:kivi:bits=2:g=5,"
     "lowrank:r=2:layer,split"),
    "project:hidden",
    "project:hidden:norm=rms",
    "project:hidden:norm=none,quant:kivi:bits=2",
    "project:hidden,split",
    "sink:2,tail:3,project:hidden",
    "project:hidden:norm=rms,lowrank:r=1",
    "project:hidden:norm=none,quant:token:bits=8,zstd",
    "derope,center,basis,steps,code:step=0.1",
    "sink:2,tail:3,derope,center,basis:drop=0,steps,code:step=0.05",
    "derope,center,basis:drop=0:bits=4,steps:p=2:c=0.001:fine=6,code:step=0.5:lanes=1",
    "center,basis:drop=0:bits=8:k=0.01,code:step=0.001:lanes=2",
    "code:step=0.00001",
    "code:step=1000000:lanes=4",
    "steps:tail=9:fine=6,code:step=3:lanes=8",
    "steps:p=1.5:c=1000:tail=0,basis,code:step=0.02:lanes=16",
    "derope,code:step=0.7",
    "derope",
    "center",
    "basis:drop=1,zstd",
    "basis:drop=0",
    "steps",
    "center,quant:kivi:bits=2",
    "derope,quant:token:bits=4,lowrank:r=1",
    "basis:drop=0,outlier:0.1,code:step=0.2",
    "center,center,code:step=0.2",
    "saliency:0.5:by=knorm,derope,center,basis,code:step=0.3",
    "merge:slerp:from=0,derope,center,basis,code:step=0.1",
    "prune:k=0.5:v=0.5:by=l1,code:step=0.01",
};
enum { OWN = sizeof own_recipes / sizeof own_recipes[0] };

/* Byte 1. PROFILE: a profile of K and V is available; LOST: not for decoding; ROTATED: K is rotated
 * by angles of byte 12. */
enum {
    DAMAGE = 1,
    VALUES = 2,
    SECOND = 4,
    PROFILE = 8,
    LOST = 16,
    ROTATED = 32,
    WINDOW = 64,
    REORDER = 128
};
/* Byte 2 % FILLS: what the bytes of the rest are as values. */
enum { ANY_BITS, SMALL, MIXED, CONSTANT, FILLS };

struct layer {
    uint8_t *rows[2]; /* K, V */
};

struct job {
    struct kvc_pipeline line;
    struct kvc_shape shape[2];
    struct layer layer[2];
    unsigned which; /* 0 K, 1 V */
    int64_t *position;
    float query[MAX_QUERIES * 4 * 80 * 2];
    int64_t query_position[MAX_QUERIES];
    uint64_t n_queries, group;
    uint64_t block_rows, blocks;
    struct kvc_rebuild_source source;
    struct kvc_rebuild rebuild;
    struct kvc_profile_part part;
    const struct kvc_profile_part *profile; /* NULL: there is none */
    float *known;                           /* all numbers of the profile */
    double angle[40];
    struct kvc_rope_facts rope;
    uint64_t window;
    float *weight, *hidden;
    float bias[4 * 80], norm[IN];
    int pair; /* a pair stage, and both layers */
    int lost; /* the profile is not available for decoding */
};

/* The encoding of one layer's K or V. */
struct coding {
    const struct job *job;
    unsigned layer;
    struct kvc_shared shared;
    struct kvc_encoding encoding;
    struct kvc_encoder encoder;
    struct kvc_sections block[MAX_BLOCKS];
};

static uint64_t rows_of(const struct job *j, uint64_t b) {
    const uint64_t left = j->shape[0].tokens - b * j->block_rows;
    return left < j->block_rows ? left : j->block_rows;
}

static size_t width_of(const struct job *j, unsigned which) {
    return (size_t)(j->shape[which].heads * j->shape[which].dim);
}

/* --- what is coded --- */

/* Makes a recipe of stage number `choice` of the registry, counted round, and up to two more, which
 * the bytes choose. Returns -1 where they do not go together. */
static int any_recipe(unsigned choice, const uint8_t *data, size_t size, struct kvc_recipe *recipe,
                      struct kvc_error *e) {
    size_t n = 0, at = 1;
    while (kvc_stage_at(n)) n++;
    recipe->n = 0;
    any_stage(recipe, kvc_stage_at(choice % n), data, size, &at);
    for (unsigned more = any_byte(data, size, 0) % 3; more; more--) {
        const size_t next = any_byte(data, size, at++);
        any_stage(recipe, kvc_stage_at(next % n), data, size, &at);
    }
    return any_recipe_parse(recipe, e);
}

/* Makes the pipeline of a listed recipe, of a preset, or after these of any stages. Returns -1
 * where these do not go together. */
static int make_pipeline(unsigned choice, unsigned select, const uint8_t *data, size_t size,
                         struct kvc_pipeline *line) {
    struct kvc_recipe recipe;
    struct kvc_error e;
    unsigned presets = 0;
    while (kvc_preset_at(presets)) presets++;
    if (choice >= OWN + presets) {
        if (any_recipe(choice - OWN - presets, data, size, &recipe, &e)) return -1;
        kvc_recipe_pipeline(&recipe, select, 0, line);
        if (kvc_pipeline_check(line, &e)) return -1;
    } else {
        const char *text = choice < OWN ? own_recipes[choice] : kvc_preset_at(choice - OWN)->recipe;
        if (kvc_recipe_parse(text, &recipe, &e)) fuzz_die(text, &e);
        kvc_recipe_pipeline(&recipe, select, 0, line);
        if (kvc_pipeline_check(line, &e)) fuzz_die(text, &e);
    }
    /* a preset asks for a KLD, which kvc-pack turns into a step */
    for (unsigned i = 0; i < line->n; i++) {
        double kld;
        if (line->step[i].stage == &kvc_stage_code &&
            kvc_stage_code.step(&line->step[i].args, &kld) <= 0)
            kvc_stage_code.set_step(&line->step[i].args, 0.1);
    }
    return 0;
}

/* One value out of the byte at `data`, as byte 2 says. */
static float value_of(unsigned fill, const uint8_t *data, const uint8_t *header) {
    static const float special[8] = {NAN,      INFINITY, -INFINITY, 3e38f,
                                     -0x1p50f, 1e-40f,   -0.0f,     65504};
    if (fill == CONSTANT) return (float)(int8_t)header[15];
    if (fill == MIXED && *data >= 248) return special[*data - 248];
    return (float)(int8_t)*data * (header[15] & 1 ? 0.37f : 0x1p-9f);
}

static void fill_rows(struct job *j, uint8_t *rows, unsigned which, unsigned salt,
                      const uint8_t *header, const uint8_t *data, size_t size) {
    const struct kvc_shape *s = &j->shape[which];
    const size_t n = (size_t)s->tokens * width_of(j, which),
                 bytes = (size_t)(s->tokens * kvc_row_bytes(s));
    const unsigned fill = header[2] % FILLS;
    float *x = fuzz_alloc(n * sizeof *x);
    for (size_t i = 0; i < (fill == ANY_BITS ? bytes : n); i++) {
        const size_t at = i + salt * 29; /* again and again, so that few make many rows */
        const uint8_t byte = (uint8_t)(size ? data[at % size] + at / size * header[14]
                                            : at * header[14]);
        if (fill == ANY_BITS) rows[i] = byte;
        else x[i] = value_of(fill, &byte, header);
    }
    if (fill != ANY_BITS && s->dtype == KVC_F32) memcpy(rows, x, bytes);
    else if (fill != ANY_BITS) kvc_from_floats(rows, x, n, s->dtype);
    free(x);
}

static int give_hidden(const struct kvc_rebuild *x, uint32_t from, const uint64_t *row, size_t n,
                       size_t in, float *dst, struct kvc_error *e) {
    const struct job *j = x->owner;
    if (from != HIDDEN_TENSOR || in != IN)
        return kvc_fail(e, KVC_ERR_DAMAGED, "no such hidden states");
    for (size_t i = 0; i < n; i++) memcpy(dst + i * in, j->hidden + row[i] * IN, IN * sizeof *dst);
    return 0;
}

static int give_matrix(const struct kvc_rebuild *x, size_t in, struct kvc_matrix *m,
                       struct kvc_error *e) {
    const struct job *j = x->owner;
    if (in != IN) return kvc_fail(e, KVC_ERR_OTHER_MODEL, "no such weights");
    const size_t out = width_of(j, j->which);
    float *copy = fuzz_alloc(IN * out * sizeof *copy); /* so that reading beyond shows */
    memcpy(copy, j->weight, IN * out * sizeof *copy);
    *m = (struct kvc_matrix){.weight = copy,
                             .bias = j->group & 1 ? j->bias : NULL,
                             .norm = j->norm,
                             .epsilon = 1e-5f,
                             .fingerprint = {1, 2, 3},
                             .hold = copy};
    return 0;
}

static void release_matrix(const struct kvc_rebuild *x, struct kvc_matrix *m) {
    (void)x;
    free(m->hold);
}

static void make_source(struct job *j, const uint8_t *header) {
    const size_t out = width_of(j, j->which);
    j->weight = fuzz_alloc(IN * out * sizeof *j->weight);
    j->hidden = fuzz_alloc((size_t)j->shape[0].tokens * IN * sizeof *j->hidden);
    for (size_t i = 0; i < IN * out; i++) j->weight[i] = (float)((i * i + header[15]) % 17) / 8 - 1;
    for (size_t i = 0; i < j->shape[0].tokens * IN; i++)
        j->hidden[i] = (float)((i * 7 + header[14]) % 23) / 8 - 1;
    for (size_t i = 0; i < out; i++) j->bias[i] = (float)(i % 5);
    for (size_t i = 0; i < IN; i++) j->norm[i] = 1 + (float)i / 4;
    j->rebuild = (struct kvc_rebuild){.owner = j,
                                      .position = j->position,
                                      .hidden = give_hidden,
                                      .matrix = give_matrix,
                                      .release = release_matrix};
    j->source = (struct kvc_rebuild_source){.rebuild = &j->rebuild,
                                            .from = HIDDEN_TENSOR,
                                            .in = IN,
                                            .normed = header[13] % 3 - 1,
                                            .rope = {.type = KVC_ROPE_TYPE_DEFAULT,
                                                     .theta = 10000,
                                                     .dim = j->shape[0].dim / 2 * 2,
                                                     .pairing = header[12] % 3}};
}

static void make_queries(struct job *j, const uint8_t *header) {
    const uint64_t rows = j->shape[0].tokens;
    j->n_queries = header[11] % (MAX_QUERIES + 1);
    j->group = 1 + (header[11] >> 7);
    if (j->n_queries > rows) j->n_queries = rows;
    const size_t n = (size_t)(j->n_queries * j->group) * width_of(j, 0);
    for (size_t i = 0; i < n; i++)
        j->query[i] = header[10] == 255 && i % 7 == 3 ? NAN
                      : header[10] == 254             ? 3e38f
                                                      : (float)((i * 13 + header[10]) % 19) / 4 - 2;
    for (uint64_t q = 0; q < j->n_queries; q++)
        j->query_position[q] = j->position[rows - j->n_queries + q];
}

/* Makes the knowledge of a profile about K or V: matrices near the identity, their inverses, and
 * the rotation of K. */
static void make_knowledge(struct job *j, const uint8_t *header) {
    const size_t heads = (size_t)j->shape[j->which].heads, dim = (size_t)j->shape[j->which].dim,
                 width = heads * dim;
    const size_t half = (size_t)j->shape[0].dim / 2, queries = j->group * width_of(j, 0);
    const size_t pairs = half ? 1 + header[12] / 3 % half : 0;
    for (size_t i = 0; i < pairs; i++)
        j->angle[i] = pow(header[12] & 1 ? 10000 : 1, -(double)i / (double)pairs);
    if (header[1] & ROTATED)
        j->rope = (struct kvc_rope_facts){.pairing = header[12] % 3,
                                          .half = pairs,
                                          .angle = pairs ? j->angle : NULL,
                                          .of_profile = (header[1] & PROFILE) != 0};
    j->window = header[1] & WINDOW ? 1 + header[13] : 0;
    if (!(header[1] & PROFILE)) return;
    double *square = fuzz_alloc(dim * dim * sizeof *square);
    struct kvc_error e;
    j->known = fuzz_alloc((width + 2 * width * dim + 2 * queries) * sizeof *j->known);
    float *basis = j->known + width, *inverse = basis + width * dim, *query = inverse + width * dim;
    for (size_t i = 0; i < width; i++) j->known[i] = (float)((i * 5 + header[14]) % 31) / 4 - 4;
    for (size_t i = 0; i < 2 * queries; i++) query[i] = (float)((i * 11 + header[10]) % 29) / 6 - 2;
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < dim * dim; i++) {
            const float own = i / dim == i % dim ? 2 : 0,
                        other = (float)((i * i + h + header[14]) % 37) / 37 - 0.5f;
            basis[h * dim * dim + i] = (own + other / (float)dim) * (float)(1 + i / dim % 3);
            square[i] = (double)basis[h * dim * dim + i];
        }
        if (kvc_invert(square, dim, &e)) fuzz_die("no inverse", &e);
        for (size_t i = 0; i < dim * dim; i++) inverse[h * dim * dim + i] = (float)square[i];
    }
    free(square);
    j->part = (struct kvc_profile_part){.heads = heads,
                                        .dim = dim,
                                        .mean = j->known,
                                        .basis = basis,
                                        .half = j->which ? 0 : j->rope.half,
                                        .angle = j->which ? NULL : j->rope.angle,
                                        .inverse = inverse,
                                        .query = query,
                                        .query_heads = j->group * j->shape[0].heads,
                                        .n_queries = 2};
    j->profile = &j->part;
}

static void free_job(struct job *j) {
    for (unsigned i = 0; i < 4; i++) free(j->layer[i / 2].rows[i % 2]);
    free(j->known);
    free(j->position);
    free(j->weight);
    free(j->hidden);
    free(j);
}

/* NULL when the bytes name no shape that is small enough, or stages that do not go together. */
static struct job *make_job(const uint8_t *header, const uint8_t *data, size_t size) {
    static const enum kvc_dtype dtypes[] = {KVC_F32, KVC_F16, KVC_BF16};
    static const int64_t starts[] = {0, 250, -3, 1};
    const int64_t far = header[9] & 64 ? INT64_C(1) << 31 : 0;
    struct job *j = fuzz_alloc(sizeof *j);
    memset(j, 0, sizeof *j);
    j->which = (header[1] & VALUES) != 0;
    const struct kvc_shape key = {dtypes[header[3] % 3], header[4] + UINT64_C(1),
                                  header[5] % 4 + UINT64_C(1), header[6] % 80 + UINT64_C(1)};
    j->shape[0] = j->shape[1] = key;
    if (header[7] & 1) j->shape[1].dim = header[7] % 80 + UINT64_C(1);
    if (key.tokens * width_of(j, 0) > MAX_VALUES || key.tokens * width_of(j, 1) > MAX_VALUES ||
        make_pipeline(header[0], j->which ? KVC_SELECT_V : KVC_SELECT_K, data, size, &j->line)) {
        free(j);
        return NULL;
    }
    j->block_rows = header[8] ? header[8] : 256;
    if (j->block_rows * MAX_BLOCKS < key.tokens)
        j->block_rows = (key.tokens + MAX_BLOCKS - 1) / MAX_BLOCKS;
    j->blocks = (key.tokens + j->block_rows - 1) / j->block_rows;
    j->position = fuzz_alloc((size_t)key.tokens * sizeof *j->position);
    for (uint64_t t = 0; t < key.tokens; t++)
        j->position[t] = far + starts[header[9] % 4] + (int64_t)t / (1 + (header[9] >> 7));
    for (unsigned i = 0; i < 4; i++) {
        const struct kvc_shape *s = &j->shape[i % 2];
        j->layer[i / 2].rows[i % 2] = fuzz_alloc((size_t)(s->tokens * kvc_row_bytes(s)));
        fill_rows(j, j->layer[i / 2].rows[i % 2], i % 2, i, header, data, size);
    }
    make_queries(j, header);
    make_source(j, header);
    make_knowledge(j, header);
    j->pair = kvc_pipeline_first(&j->line, KVC_STAGE_PAIR) < j->line.n;
    return j;
}

/* --- encoding --- */

static int read_rows(const struct kvc_encoding *x, unsigned role, uint64_t first, uint64_t n,
                     float *dst, struct kvc_error *e) {
    const struct coding *c = x->owner;
    const unsigned which = role == KVC_SELECT_V;
    const struct kvc_shape *s = &c->job->shape[which];
    (void)e;
    if (first + n > s->tokens) fuzz_die("rows are asked for that are not there", NULL);
    kvc_to_floats(dst, c->job->layer[c->layer].rows[which] + first * kvc_row_bytes(s),
                  (size_t)n * width_of(c->job, which), s->dtype);
    return 0;
}

struct own_block {
    struct kvc_block block;
    uint64_t row[256];
};

static void load(const struct job *j, unsigned layer, uint64_t b, struct own_block *own) {
    const struct kvc_shape *s = &j->shape[j->which];
    const uint64_t n = rows_of(j, b), first = b * j->block_rows;
    own->block = (struct kvc_block){.shape = *s,
                                    .row = own->row,
                                    .role = j->which ? KVC_SELECT_V : KVC_SELECT_K,
                                    .rows = fuzz_alloc((size_t)(n * kvc_row_bytes(s))),
                                    .profile = j->profile};
    own->block.shape.tokens = n;
    memcpy(own->block.rows, j->layer[layer].rows[j->which] + first * kvc_row_bytes(s),
           (size_t)(n * kvc_row_bytes(s)));
    for (uint64_t i = 0; i < n; i++) own->row[i] = first + i;
}

enum pass { SHAPE, LOOK, BLOCK };

/* Gives a block to kvc_encoder_shape() or kvc_encoder_look() of a step, or to kvc_encoder_block();
 * *shape gets its shape afterwards. -1: the quantisation step is too fine for its values. */
static int pass(struct coding *c, uint64_t b, enum pass what, unsigned step,
                struct kvc_sections *out, struct kvc_shape *shape) {
    struct own_block own, other = {.block = {.rows = NULL}};
    struct kvc_error e;
    load(c->job, c->layer, b, &own);
    if (c->job->pair) {
        load(c->job, !c->layer, b, &other);
        own.block.partner = &other.block;
    }
    uint8_t *const rows[2] = {own.block.rows, other.block.rows};
    const int status = what == SHAPE  ? kvc_encoder_shape(&c->encoder, step, &own.block, &e)
                       : what == LOOK ? kvc_encoder_look(&c->encoder, step, &own.block, &e)
                                      : kvc_encoder_block(&c->encoder, &own.block, out, &e);
    if (status && e.need != KVC_NEED_STEP) fuzz_die("cannot encode", &e);
    *shape = own.block.shape;
    free(rows[0]);
    free(rows[1]);
    return status;
}

/* 0 when a stage will not have this tensor. */
static int encode(struct coding *c, const struct job *j, unsigned layer) {
    const unsigned pair = kvc_pipeline_first(&j->line, KVC_STAGE_PAIR);
    struct kvc_block like = {.role = j->which ? KVC_SELECT_V : KVC_SELECT_K, .profile = j->profile};
    struct kvc_shape shape;
    struct kvc_error e = {.code = KVC_OK};
    memset(c, 0, sizeof *c);
    c->job = j;
    c->layer = layer;
    if (kvc_shared_init(&c->shared, &e)) fuzz_die("no lock", &e);
    c->encoding = (struct kvc_encoding){.rows = j->shape[0].tokens,
                                        .position = j->position,
                                        .read = read_rows,
                                        .key = j->shape[0],
                                        .value = j->shape[1],
                                        .query = j->query,
                                        .query_position = j->query_position,
                                        .n_queries = j->n_queries,
                                        .query_heads = j->group * j->shape[0].heads,
                                        .segment_rows = j->shape[0].tokens,
                                        .pair = PAIR_TENSOR,
                                        .second = layer == 1,
                                        .deeper = layer == 1,
                                        .shared = &c->shared,
                                        .source = &j->source,
                                        .rope = &j->rope,
                                        .window = j->window,
                                        .profile_query = j->part.query,
                                        .profile_queries = j->part.n_queries,
                                        .profile_query_heads = j->part.query_heads,
                                        .owner = c};
    kvc_encoder_init(&c->encoder, &j->line, &c->encoding);
    for (uint64_t b = 0; b < j->blocks; b++) kvc_sections_init(&c->block[b]);
    if (!kvc_pipeline_accepts(&j->line, &j->shape[j->which], &e)) return 0;
    for (unsigned i = 0; i < j->line.n && (layer == 0 || i <= pair); i++) {
        if (!(j->line.step[i].stage->flags & KVC_STAGE_LOOKS)) continue;
        like.shape = j->shape[j->which];
        like.shape.tokens = 0;
        for (uint64_t b = 0; b < j->blocks && !like.shape.tokens; b++)
            if (pass(c, b, SHAPE, i, NULL, &like.shape)) return 0;
        if (kvc_encoder_begin(&c->encoder, i, &like, &e)) {
            if (!*e.message || e.code != KVC_ERR_UNSUPPORTED)
                fuzz_die("not begun without a word, or for a wrong reason", &e);
            return 0;
        }
        for (uint64_t b = 0; b < j->blocks && j->line.step[i].stage->look; b++)
            if (pass(c, b, LOOK, i, NULL, &shape)) return 0;
        if (kvc_encoder_settle(&c->encoder, i, &e)) fuzz_die("cannot settle", &e);
    }
    for (uint64_t b = 0; b < j->blocks; b++) {
        if (pass(c, b, BLOCK, 0, &c->block[b], &shape)) return 0;
        kvc_sections_seal(&c->block[b]);
    }
    return 1;
}

static void free_coding(struct coding *c) {
    kvc_encoder_free(&c->encoder);
    kvc_shared_free(&c->shared);
    for (uint64_t b = 0; b < c->job->blocks; b++) kvc_sections_free(&c->block[b]);
}

/* --- sections of their own --- */

/* Sections whose bytes lie in memory of their own, so that reading one byte too far shows. */
struct list {
    struct kvc_section section[MAX_SECTIONS];
    size_t n;
};

static void take(struct list *to, const struct kvc_sections *from) {
    if (from->count > MAX_SECTIONS / 2) fuzz_die("more sections than any recipe here has", NULL);
    for (size_t i = 0; i < from->count; i++) {
        struct kvc_section *s = &to->section[to->n++];
        *s = from->section[i];
        s->data = memcpy(fuzz_alloc(s->size), s->data, s->size);
    }
}

static void drop(struct list *list) {
    for (size_t i = 0; i < list->n; i++) free((uint8_t *)(uintptr_t)list->section[i].data);
    list->n = 0;
}

static void resize(struct kvc_section *s, uint32_t size) {
    uint8_t *bytes = fuzz_alloc(size);
    memset(bytes, 0, size);
    memcpy(bytes, s->data, size < s->size ? size : s->size);
    free((uint8_t *)(uintptr_t)s->data);
    s->data = bytes;
    s->size = size;
}

/* One change of one section: four bytes say which, what and how. */
static void damage(struct list *list, const uint8_t *how) {
    if (!list->n) return;
    struct kvc_section *s = &list->section[how[0] % list->n],
                       *other = &list->section[how[2] % list->n], keep;
    uint8_t *bytes = (uint8_t *)(uintptr_t)s->data;
    const size_t at = s->size ? (how[2] | (size_t)(how[1] & 0xf0) << 4) % s->size : 0;
    switch (how[1] & 15) {
    case 0:
    case 1:
    case 2:
        if (s->size) bytes[at] ^= how[3];
        break;
    case 3:
        if (s->size) bytes[at] = how[3];
        break;
    case 4: /* both sizes, as in a record of a stored section */
        resize(s, how[3] & 1 ? s->size + 1 + how[2] % 40
                             : s->size - (s->size < how[2] + 1u ? s->size : how[2] + 1u));
        s->raw_size = s->size;
        break;
    case 5: s->raw_size += (uint64_t)(int64_t)(int8_t)how[2]; break;
    case 6: resize(s, s->size ? s->size - 1 : 0); break;
    case 7:
        keep = *s;
        *s = *other;
        *other = keep;
        break;
    case 8: s->type = how[2]; break;
    case 9: s->coder ^= how[2] & 1; break;
    case 10: s->index = how[2]; break;
    case 11: s->stage = how[2] % KVC_MAX_STEPS; break;
    case 12: /* twice */
        if (list->n == MAX_SECTIONS) break;
        keep = *s;
        keep.data = memcpy(fuzz_alloc(keep.size), keep.data, keep.size);
        memmove(s + 1, s, (size_t)(list->section + list->n++ - s) * sizeof *s);
        *s = keep;
        break;
    case 13: /* another's bytes */
        if (s == other) break;
        free(bytes);
        s->data = memcpy(fuzz_alloc(other->size), other->data, other->size);
        s->size = other->size;
        s->raw_size = other->raw_size;
        break;
    case 14:
        if (at + 4 <= s->size) put_u32(bytes + at, UINT32_MAX >> how[3] % 32);
        break;
    default: /* away */
        free(bytes);
        memmove(s, s + 1, (size_t)(list->section + --list->n - s) * sizeof *s);
    }
}

/* --- other orders of stages --- */

/* Gives a list the sections of the steps that order[] names, as those of steps 0 to n - 1. */
static void reorder_sections(struct list *list, const unsigned *order, unsigned n) {
    struct list was = *list;
    list->n = 0;
    for (unsigned k = 0; k < n; k++)
        for (size_t i = 0; i < was.n && list->n < MAX_SECTIONS; i++) {
            struct kvc_section s = was.section[i];
            if (s.stage != order[k]) continue;
            s.stage = (uint8_t)k;
            s.data = memcpy(fuzz_alloc(s.size), s.data, s.size);
            list->section[list->n++] = s;
        }
    drop(&was);
}

/* Exchanges, removes or repeats steps, as three bytes say: order[] gets the old numbers of the
 * steps that are left, whose number is returned. */
static unsigned other_order(unsigned n, const uint8_t *how, unsigned order[KVC_MAX_STEPS + 1]) {
    const unsigned a = how[0] % n, b = how[1] % n;
    unsigned left = 0;
    for (unsigned i = 0; i < n; i++) {
        const unsigned step = i == a ? b : i == b ? a : i;
        if (how[2] % 3 == 1 && i == a) continue;
        order[left++] = how[2] % 3 ? i : step;
        if (how[2] % 3 == 2 && i == b) order[left++] = a;
    }
    return left;
}

/* Puts the steps of a pipeline into another order, with their sections in all lists. Returns -1
 * where readers refuse the order. */
static int reorder(struct kvc_pipeline *line, const struct kvc_shape *shape,
                   struct list *const lists[4], const uint8_t *how) {
    const struct kvc_pipeline was = *line;
    unsigned order[KVC_MAX_STEPS + 1];
    const unsigned n = other_order(was.n, how, order);
    struct kvc_error e;
    if (!n || n > KVC_MAX_STEPS) return -1;
    line->n = n;
    for (unsigned i = 0; i < n; i++) line->step[i] = was.step[order[i]];
    for (unsigned i = 0; i < 4; i++) reorder_sections(lists[i], order, n);
    return kvc_pipeline_check(line, &e) || !kvc_pipeline_accepts(line, shape, &e) ? -1 : 0;
}

/* --- decoding --- */

/* What decoding a block needs: its own sections, its segment's, and those of a pair's first tensor.
 */
struct coded {
    struct list own, side, first, first_side;
};

static void take_block(struct coded *x, const struct coding *c, const struct coding *first,
                       uint64_t b) {
    memset(x, 0, sizeof *x);
    take(&x->own, &c->block[b]);
    take(&x->side, &c->encoder.side);
    if (!first) return;
    take(&x->first, &first->block[b]);
    take(&x->first_side, &first->encoder.side);
}

static void drop_coded(struct coded *x) {
    drop(&x->own);
    drop(&x->side);
    drop(&x->first);
    drop(&x->first_side);
}

/* The block's rows, on a ground of `ground`; NULL when they are refused. */
static uint8_t *decode(const struct job *j, const struct coded *x, int second, uint64_t b,
                       int ground, struct kvc_error *e) {
    const size_t n = (size_t)(rows_of(j, b) * kvc_row_bytes(&j->shape[j->which]));
    uint64_t row[256];
    struct kvc_block block = {.shape = j->shape[j->which],
                              .rows = memset(fuzz_alloc(n), ground, n),
                              .row = row,
                              .role = j->which ? KVC_SELECT_V : KVC_SELECT_K,
                              .rebuild = &j->rebuild,
                              .profile = j->lost ? NULL : j->profile,
                              .position = j->position + b * j->block_rows,
                              .first_row = b * j->block_rows};
    const struct kvc_coded own = {x->own.section, x->side.section, x->own.n, x->side.n},
                           first = {x->first.section, x->first_side.section, x->first.n,
                                    x->first_side.n};
    uint8_t *rows = block.rows;
    *e = (struct kvc_error){.code = KVC_OK};
    block.shape.tokens = rows_of(j, b);
    for (uint64_t i = 0; i < block.shape.tokens; i++) row[i] = b * j->block_rows + i;
    if (kvc_pipeline_decode_record(&j->line, &block, &own, second ? &first : NULL, e) == 0)
        return rows;
    if (!*e->message || (e->code != KVC_ERR_DAMAGED && e->code != KVC_ERR_UNSUPPORTED &&
                         e->code != KVC_ERR_OTHER_MODEL))
        fuzz_die("refused without a word, or for a wrong reason", e);
    free(rows);
    return NULL;
}

static uint8_t *decode_twice(const struct job *j, const struct coded *x, int second, uint64_t b,
                             struct kvc_error *e) {
    uint8_t *again = decode(j, x, second, b, 0xff, e), *rows = decode(j, x, second, b, 0, e);
    if (!rows != !again) fuzz_die("decodes once, not twice", NULL);
    if (rows &&
        memcmp(rows, again, (size_t)(rows_of(j, b) * kvc_row_bytes(&j->shape[j->which]))) != 0)
        fuzz_die("decodes to other rows the second time", NULL);
    free(again);
    return rows;
}

static const struct kvc_section *find(const struct coded *x, unsigned stage, unsigned type) {
    for (size_t i = 0; i < x->own.n; i++)
        if (x->own.section[i].stage == stage && x->own.section[i].type == type)
            return &x->own.section[i];
    return NULL;
}

static void must_equal(const uint8_t *a, const uint8_t *b, size_t n, const char *what) {
    if (memcmp(a, b, n) != 0) fuzz_die(what, NULL);
}

/* Outliers stand in the block as they came when no stage before has changed values: left[] are the
 * rows that reached the stage. */
static void check_outliers(const struct job *j, const struct kvc_section *s, const uint8_t *was,
                           const uint8_t *is, const uint64_t *left, size_t n_left) {
    const size_t width = width_of(j, j->which),
                 size = (size_t)kvc_row_bytes(&j->shape[j->which]) / width;
    const size_t vectors = j->which ? n_left : width, length = j->which ? width : n_left,
                 wide = length > 256 ? 2 : 1;
    const size_t all = 2 * (size_t)get_u16(s->data);
    const uint8_t *count = s->data + 2, *p = all ? count : count + vectors;
    for (size_t v = 0; v < vectors; v++)
        for (size_t k = 0; k < (all ? all : count[v]); k++, p += wide) {
            const size_t i = wide == 2 ? get_u16(p) : *p;
            const size_t at = (j->which ? left[v] * width + i : left[i] * width + v) * size;
            must_equal(was + at, is + at, size, "an outlier is another");
        }
}

/* Rows and values that stages keep as they are must be the same; all others finite where they were.
 */
static void check_kept(const struct job *j, const struct coded *x, unsigned layer, uint64_t b,
                       const struct coded *kept_of, const uint8_t *is) {
    const struct kvc_shape *s = &j->shape[j->which];
    const size_t row = (size_t)kvc_row_bytes(s), width = width_of(j, j->which),
                 n = (size_t)rows_of(j, b) * width;
    const uint8_t *was = j->layer[layer].rows[j->which] + b * j->block_rows * row;
    uint64_t left[256];
    size_t n_left = (size_t)rows_of(j, b);
    int changed = 0, finite = 0;
    if (kvc_pipeline_lossless(&j->line))
        must_equal(was, is, n_left * row, "lossless stages lose something");
    for (size_t i = 0; i < n_left; i++) left[i] = i;
    for (unsigned i = 0; i < j->line.n; i++) {
        const struct kvc_stage *stage = j->line.step[i].stage;
        const struct kvc_section *section = NULL;
        uint8_t gone[256] = {0};
        size_t now = 0;
        if (stage == &kvc_stage_sink && (section = find(x, i, KVC_SECTION_SINK)))
            memset(gone, 1, get_u16(section->data));
        else if (stage == &kvc_stage_tail && (section = find(x, i, KVC_SECTION_TAIL)))
            memset(gone + n_left - get_u16(section->data), 1, get_u16(section->data));
        else if (stage == &kvc_stage_merge && (section = find(kept_of, i, KVC_SECTION_KEPT)))
            for (size_t k = 0; k < n_left; k++) gone[k] = section->data[k / 8] >> k % 8 & 1;
        else if (stage == &kvc_stage_outlier && !changed &&
                 (section = find(x, i, KVC_SECTION_OUTLIERS)))
            check_outliers(j, section, was, is, left, n_left);
        for (size_t k = 0; k < n_left; k++) {
            if (!gone[k]) left[now++] = left[k];
            else if (!changed)
                must_equal(was + left[k] * row, is + left[k] * row, row, "a kept row is another");
        }
        n_left = now;
        finite |= stage == &kvc_stage_finite && !changed;
        changed |= !(stage->flags & KVC_STAGE_LOSSLESS) && stage != &kvc_stage_saliency &&
                   stage != &kvc_stage_outlier;
        if (stage == &kvc_stage_merge) break; /* the following stages code both layers */
    }
    float *before = fuzz_alloc(n * sizeof *before), *after = fuzz_alloc(n * sizeof *after);
    kvc_to_floats(before, was, n, s->dtype);
    kvc_to_floats(after, is, n, s->dtype);
    for (size_t i = 0; i < n; i++) {
        const size_t size = row / width;
        if (finite && !(fabsf(before[i]) < 0x1p50f))
            must_equal(was + i * size, is + i * size, size, "a wild value is another");
        if (isfinite(before[i]) && !isfinite(after[i]))
            fuzz_die("a finite value comes back as none", NULL);
    }
    free(before);
    free(after);
}

static void round_trip(const struct job *j, const struct coding *c) {
    for (unsigned layer = 0; layer <= (unsigned)j->pair; layer++)
        for (uint64_t b = 0; b < j->blocks; b++) {
            struct coded x, first = {.own = {.n = 0}};
            struct kvc_error e;
            take_block(&x, &c[layer], layer ? &c[0] : NULL, b);
            if (layer) take_block(&first, &c[0], NULL, b);
            uint8_t *rows = decode_twice(j, &x, layer == 1, b, &e);
            if (!rows) fuzz_die("what was encoded is refused", &e);
            check_kept(j, &x, layer, b, layer ? &first : &x, rows);
            free(rows);
            drop_coded(&x);
            drop_coded(&first);
        }
}

static void take_apart(const struct job *of, const struct coding *c, const uint8_t *header,
                       const uint8_t *data, size_t size) {
    struct job *j = memcpy(fuzz_alloc(sizeof *j), of, sizeof *j); /* the encoder has its stages */
    const int second = j->pair && header[1] & SECOND;
    struct coded x;
    struct kvc_error e;
    const uint64_t b = header[13] % j->blocks;
    const size_t first = header[1] & REORDER && size >= CHANGE;
    j->lost = (header[1] & LOST) != 0;
    take_block(&x, &c[second], second ? &c[0] : NULL, b);
    struct list *const lists[] = {&x.own, &x.side, &x.first, &x.first_side};
    if (!first || !reorder(&j->line, &j->shape[j->which], lists, data)) {
        for (size_t i = first; i < MAX_CHANGES && (i + 1) * CHANGE <= size; i++)
            damage(lists[(data[i * CHANGE] >> 5) % (second ? 4 : 2)], data + i * CHANGE);
        const int pair = kvc_pipeline_first(&j->line, KVC_STAGE_PAIR) < j->line.n;
        free(decode_twice(j, &x, second && pair, b, &e));
    }
    drop_coded(&x);
    free(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEADER) return 0;
    /* damaged are encodings of the same few bytes, so that the rest can be all instructions */
    const int harm = data[1] & DAMAGE;
    struct job *j = make_job(data, harm ? data : data + HEADER, harm ? HEADER : size - HEADER);
    struct coding *c = fuzz_alloc(2 * sizeof *c);
    if (j) {
        /* the first is begun with all stages, and the second with those before the pair */
        const int first = encode(&c[0], j, 0), second = first && j->pair;
        if (second && !encode(&c[1], j, 1)) fuzz_die("one of a pair is taken, the other not", NULL);
        if (first && harm) take_apart(j, c, data, data + HEADER, size - HEADER);
        else if (first) round_trip(j, c);
        free_coding(&c[0]);
        if (second) free_coding(&c[1]);
        free_job(j);
    }
    free(c);
    return 0;
}
