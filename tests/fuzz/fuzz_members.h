/* fuzz_members.h: what the fuzz targets of caches of several members share: getting the members
 * back. Not for single files. */
#ifndef FUZZ_MEMBERS_H
#define FUZZ_MEMBERS_H

#include "tests/fuzz/fuzz.h"

/* The members one after another: only their bytes are compared, as archives differ in their
 * headers. */
static inline int fuzz_begin_member(void *state, const char *name, uint64_t size,
                                    struct kvc_error *e) {
    (void)state, (void)name, (void)size, (void)e;
    return 0;
}

static inline int fuzz_finish_member(void *state, struct kvc_error *e) {
    (void)state, (void)e;
    return 0;
}

/* Compares the members that a cache gives back with those of the archive. */
static inline void fuzz_compare_members(const struct kvc_cache *c, const struct kvc_bundle *b) {
    struct kvc_buffer back = {0};
    struct kvc_sink out = kvc_sink_buffer(&back);
    const struct kvc_member_sink members = {.out = &out,
                                            .begin = fuzz_begin_member,
                                            .finish = fuzz_finish_member};
    struct kvc_error e;
    size_t at = 0;
    if (kvc_source_write_members(c, 1, &members, &e)) fuzz_die("cannot write the members", &e);
    if (c->n_members != b->n) fuzz_die("another number of members came back", NULL);
    for (size_t i = 0; i < b->n; i++) {
        const struct kvc_input *in = kvc_bundle_open(b, i, &e);
        if (!in) fuzz_die("a member cannot be opened again", &e);
        if (strcmp(c->member[i], b->member[i].name) != 0) fuzz_die("another name came back", NULL);
        if (in->size > back.n - at ||
            (in->size && memcmp(in->data, back.data + at, (size_t)in->size) != 0))
            fuzz_die("another member came back", NULL);
        at += (size_t)in->size;
    }
    if (at != back.n) fuzz_die("more bytes came back", NULL);
    free(back.data);
}

/* Packs a cache of members, opens the result, and compares members and rows, whose digest is given.
 */
static inline void fuzz_members_round_trip(const struct kvc_cache *c, const struct kvc_bundle *b,
                                           uint64_t digest) {
    const struct kvc_pack_options options = {.recipe = recipe_of("store"), .threads = 1};
    struct kvc_buffer packed = {0};
    struct kvc_sink out = kvc_sink_buffer(&packed);
    struct kvc_input in;
    struct kvc_error e;
    uint64_t got;
    fuzz_compare_members(c, b);
    if (kvc_container_write(c, &options, &out, NULL, &e)) fuzz_die("cannot pack", &e);
    kvc_input_memory(&in, "packed", packed.data, packed.n);
    struct kvc_cache *d = kvc_container_open(&in, &e);
    if (!d) fuzz_die("cannot open what was packed", &e);
    if (fuzz_read(d, &got, &e)) fuzz_die("cannot read what was packed", &e);
    if (got != digest) fuzz_die("other rows came back", NULL);
    fuzz_compare_members(d, b);
    kvc_cache_free(d);
    kvc_input_close(&in);
    free(packed.data);
}

/* Imports the members of a tar archive, then reads, packs and exports the cache. */
static inline void fuzz_archive(const uint8_t *data, size_t size,
                                const struct kvc_import_options *o) {
    struct kvc_bundle b;
    struct kvc_input in;
    struct kvc_error e = {.code = KVC_OK};
    uint64_t digest;
    kvc_input_memory(&in, "input", data, size);
    if (!kvc_bundle_archive(&b, &in, &e)) {
        struct kvc_cache *c = kvc_import(&b, o, NULL, &e);
        if (c && fuzz_is_small(c)) {
            if (fuzz_read(c, &digest, &e)) fuzz_die("an imported cache cannot be read", &e);
            if (c->n_extents && c->n_members) fuzz_members_round_trip(c, &b, digest);
            fuzz_export(c, size);
        }
        if (!c && !*e.message) fuzz_die("refused without a word", NULL);
        kvc_cache_free(c);
        kvc_bundle_close(&b);
    } else if (!*e.message) fuzz_die("refused without a word", NULL);
    kvc_input_close(&in);
}

#endif
