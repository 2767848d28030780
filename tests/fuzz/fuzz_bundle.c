/* fuzz_bundle.c: caches of several members, from any bytes of a tar archive. What is imported is packed, and all members must come
 * back. */
#include "tests/fuzz/fuzz.h"

/* The members one after another: only their bytes are compared, as archives differ in their headers. */
static int begin(void *state, const char *name, uint64_t size, struct kvc_error *e) {
    (void)state, (void)name, (void)size, (void)e;
    return 0;
}

static int finish(void *state, struct kvc_error *e) {
    (void)state, (void)e;
    return 0;
}

static void write_all(const struct kvc_cache *c, struct kvc_buffer *to) {
    struct kvc_sink out = kvc_sink_buffer(to);
    const struct kvc_member_sink members = {.out = &out, .begin = begin, .finish = finish};
    struct kvc_error e;
    if (kvc_source_write_members(c, 1, &members, &e)) fuzz_die("cannot write the members", &e);
}

/* Compares the members that a cache gives back with those of the archive. */
static void compare(const struct kvc_cache *c, const struct kvc_bundle *b) {
    struct kvc_buffer back = {0};
    size_t at = 0;
    write_all(c, &back);
    if (c->n_members != b->n) fuzz_die("another number of members came back", NULL);
    for (size_t i = 0; i < b->n; i++) {
        struct kvc_error e;
        const struct kvc_input *in = kvc_bundle_open(b, i, &e);
        if (!in) fuzz_die("a member cannot be opened again", &e);
        if (strcmp(c->member[i], b->member[i].name) != 0) fuzz_die("another name came back", NULL);
        if (in->size > back.n - at || (in->size && memcmp(in->data, back.data + at, (size_t)in->size) != 0))
            fuzz_die("another member came back", NULL);
        at += (size_t)in->size;
    }
    if (at != back.n) fuzz_die("more bytes came back", NULL);
    free(back.data);
}

static void round_trip(const struct kvc_cache *c, const struct kvc_bundle *b) {
    const struct kvc_pack_options options = {.recipe = recipe_of("store"), .threads = 1};
    struct kvc_buffer packed = {0};
    struct kvc_sink out = kvc_sink_buffer(&packed);
    struct kvc_input in;
    struct kvc_error e;
    compare(c, b);
    if (kvc_container_write(c, &options, &out, NULL, &e)) fuzz_die("cannot pack", &e);
    kvc_input_memory(&in, "packed", packed.data, packed.n);
    struct kvc_cache *d = kvc_container_open(&in, &e);
    if (!d) fuzz_die("cannot open what was packed", &e);
    compare(d, b);
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_bundle b;
    struct kvc_input in;
    struct kvc_error e = {.code = KVC_OK};
    uint64_t digest;
    kvc_input_memory(&in, "input", data, size);
    if (!kvc_bundle_archive(&b, &in, &e)) {
        struct kvc_cache *c = kvc_import(&b, NULL, NULL, &e);
        if (c && fuzz_is_small(c)) {
            if (fuzz_read(c, &digest, &e)) fuzz_die("an imported cache cannot be read", &e);
            if (c->n_extents && c->n_members) round_trip(c, &b);
        }
        if (!c && !*e.message) fuzz_die("refused without a word", NULL);
        kvc_cache_free(c);
        kvc_bundle_close(&b);
    } else if (!*e.message) fuzz_die("refused without a word", NULL);
    kvc_input_close(&in);
    return 0;
}
