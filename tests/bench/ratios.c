/* ratios.c: bytes of all rows to bytes of whole containers, headers included, beside zstd and
 * ZipNN. Not for rates (files.c) or lossy recipes (lossy.c): these figures are the same on every
 * machine. */
#include "tests/bench/bench.h"
#include "tests/recipe_text.h"

#include "formats/container/container.h"
#include "formats/cache/format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

static const char *const recipes[] = {"store", "fast", "split", "zstd", "zstd:level=19"};
enum { RECIPES = sizeof recipes / sizeof recipes[0], STORE = 0, SPLIT = 2 };

/* Bytes of the container; *rest: of what is not coded rows: metadata, private bytes, headers, the
 * index. */
static size_t packed_size(const struct kvc_cache *cache, const char *recipe, size_t *rest) {
    struct kvc_error e;
    const struct kvc_pack_options options = {.recipe = recipe_of(recipe)};
    struct kvc_buffer buffer = {0};
    struct kvc_sink sink = kvc_sink_buffer(&buffer);
    struct kvc_input in;
    if (kvc_container_write(cache, &options, &sink, NULL, &e)) give_up(recipe, e.message);
    kvc_input_memory(&in, recipe, buffer.data, buffer.n);
    struct kvc_cache *packed = kvc_container_open(&in, &e);
    if (!packed) give_up(recipe, e.message);
    *rest = buffer.n;
    for (uint64_t i = 0; i < kvc_container_records(packed); i++) {
        struct kvc_record_info info;
        struct kvc_section section[256];
        if (kvc_container_record(packed, i, &info, section, 256, &e)) give_up(recipe, e.message);
        for (unsigned s = 0; info.tensor != KVC_NONE && s < info.n_sections && s < 256; s++)
            *rest -= section[s].size;
    }
    const size_t size = buffer.n;
    kvc_cache_free(packed);
    kvc_input_close(&in);
    free(buffer.data);
    return size;
}

static size_t zstd_size(const struct kvc_input *in, int level) {
    const size_t room = ZSTD_compressBound((size_t)in->size);
    void *bytes = need_memory(room);
    const size_t size = ZSTD_compress(bytes, room, in->data, (size_t)in->size, level);
    if (ZSTD_isError(size)) give_up("zstd", ZSTD_getErrorName(size));
    free(bytes);
    return size;
}

/* The dtype of the first K or V; "" without any. */
static const char *dtype_name(const struct kvc_cache *c) {
    for (uint32_t t = 0; t < c->n_tensors; t++)
        if (c->tensor[t].role == KVC_ROLE_K || c->tensor[t].role == KVC_ROLE_V)
            return kvc_dtype_info(c->tensor[t].shape.dtype)->name;
    return "";
}

static size_t bytes_of_rows(const struct kvc_cache *c) {
    size_t bytes = 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) bytes += kvc_tensor_bytes(&c->tensor[t]);
    return bytes;
}

static void print_ratio(size_t bytes, size_t coded) {
    if (coded) printf("%10.3f", (double)bytes / (double)coded);
    else printf("%10s", "-");
}

static void print_file(const char *path, const struct kvc_input *in,
                       const struct kvc_cache *cache) {
    const char *slash = strrchr(path, '/');
    const size_t bytes = bytes_of_rows(cache);
    size_t rest[RECIPES], size[RECIPES];
    for (unsigned r = 0; r < RECIPES; r++) size[r] = packed_size(cache, recipes[r], &rest[r]);
    printf("  %-32s%10zu", slash ? slash + 1 : path, (size_t)in->size);
    for (unsigned r = 0; r < RECIPES; r++) print_ratio(bytes, size[r]);
    print_ratio(bytes, zstd_size(in, 1));
    print_ratio(bytes, zstd_size(in, 19));
    print_ratio(bytes, zipnn_file(dtype_name(cache), path));
    printf("%10.2f%10.2f\n", 100.0 * (double)rest[STORE] / (double)size[STORE],
           100.0 * (double)rest[SPLIT] / (double)size[SPLIT]);
    fflush(stdout);
}

void bench_ratios(char **paths, int n) {
    printf("\nWhole files, headers included: ratio; zs:19: the stage zstd:level=19. Last: what is "
           "not coded rows, in %% "
           "of the .kvc\n"
           "  %-32s%10s%10s%10s%10s%10s%10s%10s%10s%10s%10s%10s\n",
           "", "bytes", "store", "fast", "split", "zstd", "zs:19", "zstd -1", "zstd -19", "ZipNN",
           "of store", "of split");
    for (int i = 0; i < n; i++) {
        struct kvc_input in;
        struct kvc_cache *cache = open_cache(&in, paths[i]);
        print_file(paths[i], &in, cache);
        kvc_cache_free(cache);
        kvc_input_close(&in);
    }
}
