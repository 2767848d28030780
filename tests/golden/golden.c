/* golden.c: proves that decoders still decode what earlier builds wrote.
 *
 *   golden DIR            every DIR/NAME-vN.kvc still opens, checks and gives the digests in DIR/digests.txt, and what
 *                         this build encodes without loss decodes to the same digests
 *   golden --update DIR   writes files for recipes that have none and the list of digests anew
 *
 * Encoded bytes are not compared: they depend on the version of libzstd, and those of lossy recipes on LAPACK and libm;
 * decoded values of a file never may. */
#include "codecs/stage.h"
#include "formats/container.h"
#include "formats/format.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 48, HOLE_AT = 30, VALUES = 16, MAX_LINES = 256 };

/* Recipes that have a file; lossy ones, of a cache of floats alone. Together they have every stage but `project`, which
 * needs weights (tests/cli). */
static const struct golden {
    const char *name, *recipe;
    int lossy;
} goldens[] = {
    {"store", "store", 0},
    {"zstd", "zstd", 0},
    {"split", "split", 0},
    {"fast", "fast", 0},
    {"ends", "sink:3,tail:5:whole=8,zstd", 0},
    {"kivi", "sink:2,quant:kivi:bits=3:g=8", 1},
    {"token", "quant:token:bits=5:g=7:sym,quant:token:bits=2:clip", 1},
    {"kcvt", "outlier:0.1,quant:kcvt:bits=8", 1},
    {"zip", "saliency:0.6:by=knorm,quant:zip:bits=4:low=1", 1},
    {"gear", "tail:4,outlier:0.05,quant:kivi:bits=2:g=16,lowrank:r=2", 1},
    {"lowrank", "lowrank:r=3:layer", 1},
    {"prune", "prune:k=0.4:v=0.3:by=l2:mean,fast", 1},
    {"merge", "tail:3,merge:slerp:from=0:keep=0.1,quant:token:bits=6:g=16", 1},
    {"merge-heads", "merge:slerp:from=0:heads", 1},
};

static const enum kvc_dtype dtypes[] = {KVC_F32,  KVC_F16,  KVC_BF16, KVC_F8E4M3, KVC_F8E5M2, KVC_U8,    KVC_I8,
                                        KVC_Q8_0, KVC_Q4_0, KVC_Q4_1, KVC_Q5_0,   KVC_Q5_1,   KVC_IQ4_NL};
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
            if (t == KVC_NONE || kvc_cache_map_tensor(c, t, *bytes + used, &e)) die("tensor", &e);
            size_t n = (size_t)kvc_tensor_bytes(&c->tensor[t]);
            fill(*bytes + used, n, t + 1);
            used += n;
        }
    }
    if (kvc_cache_finish(c, &e)) die("cache", &e);
    return c;
}

/* Two layers of each float dtype, K and V in 2 heads of 16, with a NaN, an infinity and a zero row. */
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
            if (t == KVC_NONE || kvc_cache_map_tensor(c, t, *bytes + used, &e)) die("tensor", &e);
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

/* Digest of a whole tensor, and a line that names it. */
static void describe(const struct kvc_cache *c, const char *name, uint32_t t, char *line, size_t size) {
    struct kvc_error e;
    uint64_t n = c->tensor[t].shape.tokens, row = kvc_row_bytes(&c->tensor[t].shape);
    uint8_t *rows = malloc((size_t)(n * row));
    if (!rows || c->read(c, t, 0, n, rows, &e)) die(name, &e);
    snprintf(line, size, "%s %s %s%s %016" PRIx64, name, kvc_dtype_info(c->tensor[t].shape.dtype)->name,
             kvc_role_name(c->tensor[t].role), c->n_tensors < 2 * N_DTYPES && c->tensor[t].layer % 2 ? "2" : "",
             kvc_digest_rows(rows, row, 0, n));
    free(rows);
}

static struct kvc_buffer encode(const struct kvc_cache *c, const char *recipe) {
    struct kvc_error e;
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    struct kvc_pack_options options = {.recipe = recipe, .threads = 1};
    if (kvc_container_write(c, &options, &sink, NULL, &e)) die(recipe, &e);
    return buffer;
}

/* Lines of digests of a .kvc, which must also pass its own check. */
static unsigned decode(const char *name, const struct kvc_input *in, char lines[][96]) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_container_open(in, &e);
    if (!c || kvc_container_check(c, 1, &e)) die(name, &e);
    unsigned n = c->n_tensors;
    for (uint32_t t = 0; t < n && t < MAX_LINES; t++) describe(c, name, t, lines[t], 96);
    kvc_cache_free(c);
    return n;
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
    uint8_t *bytes[2];
    struct kvc_cache *cache[2] = {make_cache(&bytes[0]), make_floats(&bytes[1])};
    snprintf(list, sizeof list, "%s/digests.txt", dir);
    FILE *out = update ? fopen(list, "w") : NULL;
    if (update && !out) die(list, NULL);
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        const struct golden *g = &goldens[i];
        struct kvc_buffer encoded = encode(cache[g->lossy], g->recipe);
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
            int ok = t < n && t < m && (g->lossy || strcmp(stored[t], fresh[t]) == 0) && (update || listed(list, stored[t]));
            if (update && ok) fprintf(out, "%s\n", stored[t]);
            if (!ok) printf("FAIL stored %s, encoded now %s, list %s\n", stored[t], fresh[t], list);
            passed += (unsigned)ok;
            failed += (unsigned)!ok;
        }
        free(encoded.data);
    }
    if (out && fclose(out)) die(list, NULL);
    for (int i = 0; i < 2; i++) {
        kvc_cache_free(cache[i]);
        free(bytes[i]);
    }
    printf("%u passed, %u failed\n", passed, failed);
    return failed != 0;
}
