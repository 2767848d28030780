/* find_prefix.c: the tokens of a cache file that are in a store, as an open file.
 *
 *     cc find_prefix.c $(pkg-config --cflags --libs kvc_store) -o find_prefix
 *     ./find_prefix dir:/var/cache/kvc prompt.safetensors */
#include <inttypes.h>
#include <kvc_store.h>
#include <stdio.h>

int main(int argc, char **argv) { /* STORE FILE */
    struct kvc_error *e = kvc_error_new();
    const struct kvc_store_namespace_options o = {.size = sizeof o, .chunk = 256};
    struct kvc_store *s = argc > 2 ? kvc_store_open(argv[1], NULL, e) : NULL;
    struct kvc_file *f = s ? kvc_file_open(argv[2], NULL, e) : NULL, *g = NULL;
    struct kvc_store_namespace *ns = f ? kvc_store_namespace_like(s, f, &o, e) : NULL;
    const struct kvc_store_find_options how = {.size = sizeof how, .timeout_us = 1000000}; /* 1 s */
    struct kvc_store_hit_info info = {.size = sizeof info};
    struct kvc_store_hit *hit = NULL;
    uint64_t n = 0;
    const int32_t *tokens = f ? kvc_file_tokens(f, &n) : NULL;
    if (ns && tokens) hit = kvc_store_find(ns, tokens, n, &how, e);
    if (hit && !kvc_store_hit_describe(hit, &info) && info.tokens) g = kvc_store_get(hit, NULL, e);
    if (g)
        printf("%" PRIu64 " of %" PRIu64 " tokens, %u tensors\n", info.tokens, n,
               (unsigned)kvc_file_tensors(g));
    else if (argc < 3) fprintf(stderr, "Usage: find_prefix STORE FILE\n");
    else fprintf(stderr, "%s\n", kvc_error_code(e) ? kvc_error_message(e) : "nothing found");
    kvc_file_close(g); /* before the store, whose memory it uses */
    kvc_store_hit_free(hit);
    kvc_store_namespace_close(ns);
    kvc_file_close(f);
    kvc_store_close(s);
    kvc_error_free(e);
    return g ? 0 : 1;
}
