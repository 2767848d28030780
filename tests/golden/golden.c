/* golden.c: proves that decoders still decode what earlier builds wrote.
 *
 *   golden DIR            every DIR/NAME-vN.kvc still opens, checks and gives the digests in
 * DIR/digests.txt, and what this build encodes without loss decodes to the same digests golden
 * --update DIR   writes files for recipes that have none and the list of digests anew
 *
 * Encoded bytes are not compared: they depend on the version of libzstd, and those of lossy recipes
 * on LAPACK and libm; decoded values of a file never may. */
#include "codecs/stage.h"
#include "formats/cache/mapped.h"
#include "tests/quantised.h"
#include "tests/recipe_text.h"
#include "formats/container/container.h"
#include "formats/cache/format.h"
#include "formats/cache/keys.h"
#include "kernels/kernels.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 48, HOLE_AT = 30, VALUES = 16, MAX_LINES = 256 };
/* of the caches for the transform codec */
enum { LONG = 320, LAYERS = 2, HEADS = 2, QUERIES = 8, GROUP = 2 };

/* The caches. DTYPES, RELATED and QUANTISED serve what is lossless, all others what is not. */
enum { DTYPES, FLOATS, TURNED, ASKED, RELATED, QUANTISED, CACHES };

/* Recipes that have a file. Together they have every stage but `project`, which needs weights
 * (tests/cli). */
static const struct golden {
    const char *name, *recipe;
    int cache, profile; /* profile: coded with one, which the file carries */
} goldens[] = {
    {"store", "store", DTYPES, 0},
    {"zstd", "zstd", DTYPES, 0},
    {"split", "split", DTYPES, 0},
    {"fast", "fast", DTYPES, 0},
    {"ends", "sink:3,tail:5:whole=8,zstd", DTYPES, 0},
    {"kivi", "sink:2,quant:kivi:bits=3:g=8", FLOATS, 0},
    {"token", "quant:token:bits=5:g=7:sym,quant:token:bits=2:clip", FLOATS, 0},
    {"kcvt", "outlier:0.1,quant:kcvt:bits=8", FLOATS, 0},
    {"zip", "saliency:0.6:by=knorm,quant:zip:bits=4:low=1", FLOATS, 0},
    {"gear", "tail:4,outlier:0.05,quant:kivi:bits=2:g=16,lowrank:r=2", FLOATS, 0},
    {"lowrank", "lowrank:r=3:layer", FLOATS, 0},
    {"prune", "prune:k=0.4:v=0.3:by=l2:mean,fast", FLOATS, 0},
    {"merge", "tail:3,merge:slerp:from=0:keep=0.1,quant:token:bits=6:g=16", FLOATS, 0},
    {"merge-heads", "merge:slerp:from=0:heads", FLOATS, 0},
    {"scales", "center,basis,steps:fine=6,code:step=0.004:lanes=4", FLOATS, 0},
    {"own-basis", "sink:4,derope@k,center,basis,steps,code:step=0.1", TURNED, 0},
    {"own-basis-queries",
     "sink:4,tail:2,derope@k,center,basis:bits=5:drop=0.02,steps:p=1:c=0.05,code:step=0.05", ASKED,
     0},
    {"codes", "code:step=0.01@k,code:step=1.5@v", TURNED, 0},
    {"profile", "sink:4,derope@k,center,basis,steps,code:step=0.2", TURNED, 1},
    {"cross", "cross", RELATED, 1},
    {"cross-q8_0", "cross", QUANTISED, 1},
    {"predict", "sink:4,derope@k,predict,center,basis,steps,code:step=0.2", RELATED, 1},
};

static const enum kvc_dtype dtypes[] = {KVC_F32,  KVC_F16,  KVC_BF16,  KVC_F8E4M3, KVC_F8E5M2,
                                        KVC_U8,   KVC_I8,   KVC_Q8_0,  KVC_Q4_0,   KVC_Q4_1,
                                        KVC_Q5_0, KVC_Q5_1, KVC_IQ4_NL};
#define N_DTYPES (sizeof dtypes / sizeof dtypes[0])

static void die(const char *what, const struct kvc_error *e) {
    fprintf(stderr, "golden: %s: %s\n", what, e ? e->message : "failed");
    exit(2);
}

/* Bytes that look like values: skewed high bytes, noisy low ones; the same on every machine. */
static void fill(uint8_t *p, size_t n, uint32_t seed) {
    uint32_t x = seed * 2654435761u + 12345;
    for (size_t i = 0; i < n; i++) {
        x = x * 1664525 + 1013904223;
        p[i] = (uint8_t)(i % 2 ? 0x3c + (x >> 30) : x >> 24);
    }
}

/* A layer per dtype, K in 2 heads of 16, V in one of 32; positions with a hole, so two blocks. */
static struct kvc_cache *make_cache(uint8_t **bytes) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    uint32_t part = c ? kvc_cache_add_part(c, KVC_PART_LIVE, TOKENS, &e) : KVC_NONE;
    size_t used = 0;
    *bytes = malloc(2 * N_DTYPES * (size_t)TOKENS * 2 * VALUES * 4);
    if (part == KVC_NONE || !*bytes || kvc_cache_map(c, NULL, NULL, &e)) die("cache", &e);
    for (int i = HOLE_AT; i < TOKENS; i++) c->part[part].cells.pos[i] += 1000;
    for (uint32_t i = 0; i < N_DTYPES; i++) {
        uint32_t layer = kvc_cache_add_layer(c, part, i, KVC_LAYER_FULL, &e);
        for (enum kvc_role role = KVC_ROLE_K; role <= KVC_ROLE_V; role++) {
            struct kvc_shape shape = {dtypes[i], TOKENS, role == KVC_ROLE_K ? 2 : 1,
                                      role == KVC_ROLE_K ? VALUES : 2 * VALUES};
            uint32_t t = kvc_cache_add_tensor(c, layer, role, &shape, &e);
            if (t == KVC_NONE || kvc_cache_map_memory(c, t, *bytes + used, &e)) die("tensor", &e);
            size_t n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
            fill(*bytes + used, n, t + 1);
            used += n;
        }
    }
    if (kvc_cache_finish(c, &e)) die("cache", &e);
    return c;
}

/* Two layers of each float dtype, K and V in 2 heads of 16, with a NaN, an infinity and a zero row.
 */
static struct kvc_cache *make_floats(uint8_t **bytes) {
    static const uint8_t wild[4] = {0x01, 0x80, 0xc0, 0x7f};
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    uint32_t part = c ? kvc_cache_add_part(c, KVC_PART_LIVE, TOKENS, &e) : KVC_NONE;
    size_t used = 0;
    *bytes = malloc(3 * 4 * (size_t)TOKENS * 2 * VALUES * 4);
    if (part == KVC_NONE || !*bytes || kvc_cache_map(c, NULL, NULL, &e)) die("cache", &e);
    for (int i = HOLE_AT; i < TOKENS; i++) c->part[part].cells.pos[i] += 1000;
    for (uint32_t i = 0; i < 6; i++) {
        uint32_t layer = kvc_cache_add_layer(c, part, i, KVC_LAYER_FULL, &e);
        for (enum kvc_role role = KVC_ROLE_K; role <= KVC_ROLE_V; role++) {
            const struct kvc_shape shape = {dtypes[i / 2], TOKENS, 2, VALUES};
            const size_t size = kvc_dtype_info(shape.dtype)->size;
            uint32_t t = kvc_cache_add_tensor(c, layer, role, &shape, &e);
            if (t == KVC_NONE || kvc_cache_map_memory(c, t, *bytes + used, &e)) die("tensor", &e);
            size_t n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
            fill(*bytes + used, n, t + 100);
            memcpy(*bytes + used + 77 * size, wild + 4 - size, size);
            memset(*bytes + used + 20 * 2 * VALUES * size, 0, 2 * VALUES * size);
            used += n;
        }
    }
    if (kvc_cache_finish(c, &e)) die("cache", &e);
    return c;
}

/* A number from -1 to 1 of a run of them. */
static float next_number(uint32_t *x) {
    *x = *x * 1664525 + 1013904223;
    return (float)(int32_t)(*x >> 8 & 0xffff) / 32768 - 1;
}

/* Two layers of halves, K and V in 2 heads of 16 whose channels follow three, K rotated in
 * interleaved pairs; with the queries of the layers if `which` is ASKED. If it is RELATED the
 * channels of all layers follow the same three. */
static struct kvc_cache *make_turned(uint8_t **bytes, int which) {
    const int asked = which == ASKED;
    struct kvc_error e;
    struct kvc_cache *c = kvc_cache_new(&e);
    uint32_t part = c ? kvc_cache_add_part(c, KVC_PART_LIVE, LONG, &e) : KVC_NONE, x = 1;
    uint32_t aside = asked && c ? kvc_cache_add_part(c, KVC_PART_COMPANION, QUERIES, &e) : 0;
    *bytes = malloc(LAYERS * ((size_t)LONG * 2 + QUERIES * GROUP) * HEADS * VALUES * 2);
    uint8_t *to = *bytes;
    if (part == KVC_NONE || aside == KVC_NONE || !to || kvc_cache_map(c, NULL, NULL, &e))
        die("cache", &e);
    for (int i = 100; i < LONG; i++) c->part[part].cells.pos[i] += 1000;
    for (int i = 0; i < QUERIES && asked; i++) c->part[aside].cells.pos[i] += LONG + 1000 - QUERIES;
    if (kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_PAIRING, "interleaved", &e) ||
        kvc_meta_set_text(&c->meta, KVC_KEY_ROPE_TYPE, "default", &e) ||
        kvc_meta_set_f64(&c->meta, KVC_KEY_ROPE_THETA, 10000, &e))
        die("metadata", &e);
    for (uint32_t i = 0; i < LAYERS * (asked ? 2 : 1); i++) { /* companions follow the layers */
        const int is_query = i >= LAYERS;
        uint32_t layer = kvc_cache_add_layer(c, is_query ? aside : part, i % LAYERS,
                                             is_query ? KVC_LAYER_COMPANION : KVC_LAYER_FULL, &e);
        for (unsigned v = 0; v < (is_query ? 1 : 2); v++) {
            const struct kvc_shape shape = {KVC_F16, is_query ? QUERIES : LONG,
                                            is_query ? HEADS * GROUP : HEADS, VALUES};
            const int64_t *position = c->part[is_query ? aside : part].cells.pos;
            const enum kvc_role role = is_query ? KVC_ROLE_QUERIES : v ? KVC_ROLE_V : KVC_ROLE_K;
            uint32_t t = kvc_cache_add_tensor(c, layer, role, &shape, &e);
            if (t == KVC_NONE || kvc_cache_map_memory(c, t, to, &e)) die("tensor", &e);
            for (uint64_t row = 0; row < shape.tokens * shape.heads; row++) {
                float common[3], head[VALUES];
                uint32_t of_row = (uint32_t)row * 2654435761u;
                for (int k = 0; k < 3; k++)
                    common[k] = next_number(which == RELATED ? &of_row : &x);
                for (size_t d = 0; d < VALUES; d++)
                    head[d] = common[d % 3] * (float)(1 + d % 5) + (float)(d % 4) +
                              next_number(&x) / 16;
                for (size_t d = 0; d < VALUES && !v; d += 2) {
                    const double turn = (double)position[row / shape.heads] *
                                        pow(10000, -(double)d / VALUES);
                    const float a = head[d], b = head[d + 1], cosine = (float)cos(turn),
                                sine = (float)sin(turn);
                    head[d] = a * cosine - b * sine;
                    head[d + 1] = b * cosine + a * sine;
                }
                for (size_t d = 0; d < VALUES; d++, to += 2) {
                    const uint16_t half = kvc_float_to_half(head[d]);
                    memcpy(to, &half, 2);
                }
            }
        }
    }
    if (kvc_cache_finish(c, &e)) die("cache", &e);
    return c;
}

/* A profile of that cache's model, of nothing but numbers in a row: matrices near the identity,
 * angles of base 10 000; predictors that say of each channel of K and V what it was in the layer
 * before. */
static struct kvc_profile *make_profile(void) {
    static const struct {
        const char *name, *dtype, *shape;
        size_t n;
    } tensors[] = {
        {"rope", "F64", "8", VALUES / 2},
        {"k.mean", "F32", "2,16", HEADS * VALUES},
        {"k.scale", "F32", "2,16", HEADS * VALUES},
        {"k.basis", "I8", "2,16,16", HEADS * VALUES * VALUES},
        {"v.mean", "F32", "2,16", HEADS * VALUES},
        {"v.scale", "F32", "2,16", HEADS * VALUES},
        {"v.basis", "I8", "2,16,16", HEADS * VALUES * VALUES},
        {"queries.scale", "F32", "4,2", HEADS * GROUP * 2},
        {"queries", "I8", "4,2,16", HEADS * GROUP * 2 * VALUES},
        {"k.gain", "F32", "2,16", HEADS * VALUES},
        {"v.gain", "F32", "2,16", HEADS * VALUES},
        {"k.predictor", "I8", "32,64", HEADS * VALUES * HEADS * VALUES * 2},
        {"v.predictor", "I8", "32,96", HEADS * VALUES * HEADS * VALUES * 3},
        {"k.predictor.scale", "F32", "2,16", HEADS * VALUES},
        {"v.predictor.scale", "F32", "2,16", HEADS * VALUES},
        {"k.residual.scale", "F32", "2,16", HEADS * VALUES},
        {"v.residual.scale", "F32", "2,16", HEADS * VALUES},
        {"k.residual.basis", "I8", "2,16,16", HEADS * VALUES * VALUES},
        {"v.residual.basis", "I8", "2,16,16", HEADS * VALUES * VALUES},
    };
    static char header[8192];
    static uint8_t data[16384], file[8 + sizeof header + sizeof data];
    uint32_t x = 7;
    size_t used = 0,
           n = (size_t)snprintf(header, sizeof header,
                                "{\"__metadata__\":{\"kvc.profile\":\"1\",\"predictor.back\":\"1\","
                                "\"model.layers\":\"%d\",\"model.name\":\"golden\"}",
                                LAYERS);
    struct kvc_error e;
    for (unsigned i = 0; i < LAYERS * sizeof tensors / sizeof tensors[0]; i++) {
        const unsigned layer = i % LAYERS, which = i / LAYERS;
        const int is_byte = strcmp(tensors[which].dtype, "I8") == 0;
        const int is_scale = strstr(tensors[which].name, "scale") != NULL;
        const size_t size = is_byte ? 1 : which ? 4 : 8, end = used + tensors[which].n * size;
        const int is_predictor = strstr(tensors[which].name, "predictor") != NULL;
        const int is_gain = strstr(tensors[which].name, "gain") != NULL,
                  is_v = *tensors[which].name == 'v';
        if ((is_predictor || strstr(tensors[which].name, "residual")) && !layer) continue;
        if (end > sizeof data) die("profile", NULL);
        n += (size_t)snprintf(
            header + n, sizeof header - n,
            ",\"layers.%u.%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", layer,
            tensors[which].name, tensors[which].dtype, tensors[which].shape, used, end);
        for (size_t k = 0; used < end; k++, used += size) {
            const int diagonal = strstr(tensors[which].name, "basis") &&
                                 k / VALUES % VALUES == k % VALUES;
            const float number = next_number(&x);
            const float real = is_gain        ? 20
                               : is_predictor ? 0.0005f
                               : is_scale     ? 0.02f + number / 100
                                              : number;
            const double angle = pow(10000, -(double)k / (VALUES / 2));
            /* of K, of V before it, of its own K */
            const size_t width = HEADS * VALUES, inputs = (is_v ? 3 : 2) * width;
            const int same = is_predictor && k % inputs == k / inputs + (is_v ? width : 0);
            const int8_t code = (int8_t)(diagonal || same ? 100
                                         : is_predictor   ? number * 2
                                                          : number * 20);
            if (!which) memcpy(data + used, &angle, size);
            else if (is_byte) memcpy(data + used, &code, size);
            else memcpy(data + used, &real, size);
        }
    }
    header[n++] = '}';
    for (unsigned b = 0; b < 8; b++) file[b] = (uint8_t)((uint64_t)n >> 8 * b & 255);
    memcpy(file + 8, header, n);
    memcpy(file + 8 + n, data, used);
    struct kvc_profile *p = kvc_profile_open_memory(file, 8 + n + used, &e);
    if (!p) die("profile", &e);
    return p;
}

/* Digest of a whole tensor, and a line that names it. */
static void describe(const struct kvc_cache *c, const char *name, uint32_t t, char *line,
                     size_t size) {
    struct kvc_error e;
    uint64_t n = c->tensor[t].shape.tokens, row = kvc_row_bytes(&c->tensor[t].shape);
    uint8_t *rows = malloc((size_t)(n * row));
    if (!rows || c->read(c, t, 0, n, rows, &e)) die(name, &e);
    snprintf(line, size, "%s %s %s%s %016" PRIx64, name,
             kvc_dtype_info(c->tensor[t].shape.dtype)->name, kvc_role_name(c->tensor[t].role),
             c->n_tensors < 2 * N_DTYPES && c->tensor[t].layer % 2 ? "2" : "",
             kvc_digest_rows(rows, row, 0, n));
    free(rows);
}

static struct kvc_buffer encode(const struct kvc_cache *c, const char *recipe,
                                struct kvc_profile *profile) {
    struct kvc_error e;
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    struct kvc_pack_options options = {.recipe = recipe_of(recipe),
                                       .threads = 1,
                                       .profile = profile,
                                       .embed_profile = profile != NULL};
    if (kvc_container_write(c, &options, &sink, NULL, &e)) die(recipe, &e);
    return buffer;
}

/* Lines of digests of a .kvc, which must also pass its own check. */
static unsigned decode(const char *name, const struct kvc_input *in, char lines[][96]) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_container_open(in, &e);
    if (c) kvc_container_set_profile(c, NULL);
    if (!c || kvc_container_check(c, 1, &e)) die(name, &e);
    unsigned n = c->n_tensors;
    for (uint32_t t = 0; t < n && t < MAX_LINES; t++) describe(c, name, t, lines[t], 96);
    kvc_cache_free(c);
    return n;
}

/* Returns 1 for caches whose recipes are lossless, so that their values are those of the cache. */
static int is_exact(int which) {
    return which == DTYPES || which == RELATED || which == QUANTISED;
}

static int listed(const char *path, const char *line) {
    char text[96];
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && !found && fgets(text, sizeof text, f)) {
        text[strcspn(text, "\n")] = '\0';
        found = strcmp(text, line) == 0;
    }
    if (f) fclose(f);
    return found;
}

static void write_file(const char *path, const struct kvc_buffer *b) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(b->data, 1, b->n, f) != b->n || fclose(f)) die(path, NULL);
}

int main(int argc, char **argv) {
    int update = argc == 3 && strcmp(argv[1], "--update") == 0;
    if (argc != 2 + update) {
        fprintf(stderr, "usage: golden [--update] DIR\n");
        return 2;
    }
    const char *dir = argv[1 + update];
    static char stored[MAX_LINES][96], fresh[MAX_LINES][96];
    char list[4096];
    unsigned passed = 0, failed = 0;
    uint8_t *bytes[CACHES];
    struct kvc_cache *cache[CACHES] = {make_cache(&bytes[DTYPES]), make_floats(&bytes[FLOATS]),
                                       make_turned(&bytes[TURNED], TURNED),
                                       make_turned(&bytes[ASKED], ASKED),
                                       make_turned(&bytes[RELATED], RELATED)};
    cache[QUANTISED] = quantised_cache(cache[RELATED], (const uint64_t[]){VALUES, 2},
                                       &bytes[QUANTISED]);
    struct kvc_profile *profile = make_profile();
    snprintf(list, sizeof list, "%s/digests.txt", dir);
    FILE *out = update ? fopen(list, "w") : NULL;
    if (update && !out) die(list, NULL);
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const struct golden *g = &goldens[i];
        struct kvc_buffer encoded = encode(cache[g->cache], g->recipe, g->profile ? profile : NULL);
        struct kvc_input in;
        struct kvc_error e;
        char path[4096], name[64];
        snprintf(name, sizeof name, "%s-v%d", g->name, KVC_FORMAT_VERSION);
        snprintf(path, sizeof path, "%s/%s.kvc", dir, name);
        FILE *there = fopen(path, "rb");
        if (there) fclose(there);
        else if (update) write_file(path, &encoded);
        if (kvc_input_open(&in, path, &e)) die(path, &e);
        unsigned n = decode(name, &in, stored);
        kvc_input_close(&in);
        kvc_input_memory(&in, name, encoded.data, encoded.n);
        unsigned m = decode(name, &in, fresh);
        kvc_input_close(&in);
        for (unsigned t = 0; t < n || t < m; t++) {
            int ok = t < n && t < m && (!is_exact(g->cache) || strcmp(stored[t], fresh[t]) == 0) &&
                     (update || listed(list, stored[t]));
            if (update && ok) fprintf(out, "%s\n", stored[t]);
            if (!ok) printf("FAIL stored %s, encoded now %s, list %s\n", stored[t], fresh[t], list);
            passed += (unsigned)ok;
            failed += (unsigned)!ok;
        }
        free(encoded.data);
    }
    if (out && fclose(out)) die(list, NULL);
    kvc_profile_free(profile);
    for (int i = 0; i < CACHES; i++) {
        kvc_cache_free(cache[i]);
        free(bytes[i]);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
