/* fuzz_container.c: .kvc files from any bytes. The first byte's two low bits say how far they are
 * mended, to get past the hashes: 0 not at all; 1 every check, as the records stand; 2 the index
 * and the footer as well. */
#include "tests/fuzz/mend.h"

#include "formats/cache/view.h"
#include "formats/container/salvage.h"

/* What a reader does beside reading block by block. Bits of the input's size choose. */
enum { STORE = 1, ALIGN = 2, PLAIN = 4, HASHED = 8, PAST = 16, AGAIN = 32 };

/* Reads all rows of a tensor at once, for which blocks may be decoded in pairs, and to their places
 * in another layout. Returns 0 where some row cannot be read. */
static int read_at_once(const struct kvc_cache *c, uint32_t t, size_t choice, uint64_t *digest) {
    const struct kvc_cache plain = kvc_container_unverified(c);
    struct kvc_shape shape = c->tensor[t].shape;
    const size_t row = (size_t)kvc_row_bytes(&shape);
    struct kvc_error e;
    shape.tokens = kvc_tensor_part(c, t)->cells.n;
    const size_t size = (size_t)shape.tokens * row;
    uint8_t *rows = fuzz_alloc(size), *spare = fuzz_alloc(size), *to = fuzz_alloc(size);
    struct kvc_row_places places = {.base = to,
                                    .strides = kvc_strides_heads_first(&shape),
                                    .past = (choice & PAST) != 0};
    if (!kvc_strides_check(&shape, &places.strides, size)) /* blocks may straddle heads */
        places.strides = kvc_strides_canonical(&shape);
    const int read = !c->read(c, t, 0, shape.tokens, rows, &e);
    const int placed = !kvc_container_place(choice & PLAIN ? &plain : c, t, 0, shape.tokens,
                                            &places, spare, &e);
    if (read && !placed) fuzz_die("rows can be read, but not to their places", &e);
    if (read) {
        kvc_rows_scatter(spare, rows, &shape, &places.strides, 0, shape.tokens, 0);
        if (memcmp(spare, to, size) != 0) fuzz_die("other rows at their places", NULL);
        *digest += kvc_digest_rows(rows, row, 0, shape.tokens) * (t + 1);
    }
    free(rows);
    free(spare);
    free(to);
    return read;
}

/* Packs a cache again as it was packed: its blocks are copied where that can be. */
static void pack_again(const struct kvc_cache *c, uint64_t digest) {
    struct kvc_recipe recipe;
    struct kvc_buffer packed = {0};
    struct kvc_sink out = kvc_sink_buffer(&packed);
    struct kvc_input in;
    struct kvc_error e;
    int embedded;
    uint64_t got;
    if (!c->n_tensors || kvc_recipe_parse(kvc_container_pipeline(c, 0), &recipe, &e)) return;
    const struct kvc_pack_options options = {.recipe = &recipe,
                                             .threads = 1,
                                             .profile = (struct kvc_profile *)(uintptr_t)
                                                 kvc_container_profile(c, &embedded),
                                             .embed_profile = 1,
                                             .reuse = c};
    if (!kvc_container_write(c, &options, &out, NULL, &e)) {
        kvc_input_memory(&in, "packed", packed.data, packed.n);
        struct kvc_cache *d = kvc_container_open(&in, &e);
        if (!d) fuzz_die("cannot open what was packed again", &e);
        kvc_container_set_profile(d, NULL);
        if (kvc_container_check(d, 1, &e)) fuzz_die("what was packed again is damaged", &e);
        if (fuzz_read(d, &got, &e)) fuzz_die("cannot read what was packed again", &e);
        if (got != digest && kvc_container_lossless(d))
            fuzz_die("other rows came back when packed again", NULL);
        kvc_cache_free(d);
        kvc_input_close(&in);
    } else if (!*e.message) {
        fuzz_die("not packed again without a word", NULL);
    }
    free(packed.data);
}

/* Names what a table of records and tensors shows. */
static void show(const struct kvc_cache *c) {
    struct kvc_error e;
    struct kvc_record_info info;
    struct kvc_section section[8];
    char text[160];
    kvc_container_header(c);
    for (uint64_t i = 0; i < kvc_container_records(c); i++)
        kvc_container_record(c, i, &info, section, 8, &e);
    for (uint32_t t = 0; t < c->n_tensors; t++) {
        if (!kvc_container_stored(c, t) != !kvc_tensor_part(c, t)->cells.n ||
            !*kvc_container_pipeline(c, t))
            fuzz_die("a tensor without records or pipeline", NULL);
        kvc_container_transform(c, t, text, sizeof text, &e);
    }
}

/* Puts the source file together, whose layout the file says. */
static void restore(const struct kvc_cache *c, int whole) {
    struct kvc_buffer bytes = {0};
    struct kvc_sink out = kvc_sink_buffer(&bytes);
    struct kvc_error e = {.message = ""};
    if (c->n_extents && kvc_source_write(c, 1, &out, &e) && whole)
        fuzz_die("what is whole cannot be put together", &e);
    free(bytes.data);
}

static void walk(const struct kvc_cache *c, size_t choice) {
    struct kvc_error e;
    uint64_t digest, at_once = 0;
    int same = 1;
    show(c);
    if (!fuzz_is_small(c)) return;
    if (choice & HASHED) kvc_container_check_hashes(c, &e);
    int readable = fuzz_read(c, &digest, &e) == 0, rest = kvc_container_check_rest(c, &e) == 0;
    for (uint32_t t = 0; t < c->n_tensors; t++) same &= read_at_once(c, t, choice, &at_once);
    if (readable && (!same || at_once != digest))
        fuzz_die("rows differ when all are read at once", NULL);
    restore(c, readable && rest);
    if (kvc_container_check(c, 1, &e)) return;
    if (!readable || !rest) fuzz_die("a checked file cannot be read", &e);
    fuzz_round_trip(c, digest, NULL, 0, choice & (STORE | ALIGN));
    if (choice & AGAIN) pack_again(c, digest);
    fuzz_export(c, choice);
}

/* Reads what a survey says is whole from a position on. */
static void read_whole(const struct kvc_cache *c, const struct kvc_survey *s, size_t choice) {
    struct kvc_selection part = {.first = choice % 300};
    struct kvc_error e;
    uint64_t digest;
    if (kvc_survey_narrow(s, c, &part, &e)) return;
    struct kvc_cache *view = kvc_view_select(c, &part, &e);
    if (view && fuzz_read(view, &digest, &e)) fuzz_die("a whole part cannot be read", &e);
    kvc_cache_free(view);
}

/* The same bytes as a damaged file: what can be read must be what the survey calls whole. */
static void salvage(const struct kvc_input *in, size_t choice) {
    struct kvc_error e;
    struct kvc_cache *c = kvc_salvage_open(in, &e);
    if (!c) return;
    if (!kvc_salvage_refusal(c)) kvc_container_set_profile(c, NULL);
    if (kvc_salvage_refusal(c) || fuzz_is_small(c)) {
        const struct kvc_survey *s = kvc_salvage_survey(c, 1, &e);
        uint64_t digest;
        if (s && !kvc_salvage_refusal(c) && !s->no_source) {
            if (kvc_survey_all_whole(s, c) != !fuzz_read(c, &digest, &e))
                fuzz_die("what is whole cannot be read, or the other way round", &e);
            read_whole(c, s, choice);
        }
    }
    kvc_cache_free(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_input in;
    struct kvc_error e;
    if (!size) return 0;
    struct file f = mend(data + 1, size - 1, (data[0] & 3) % MODES);
    kvc_input_memory(&in, "input", f.data, f.size);
    struct kvc_cache *c = kvc_container_open(&in, &e);
    if (c) kvc_container_set_profile(c, NULL); /* of the file itself */
    if (c) walk(c, size);
    else if (!*e.message) fuzz_die("refused without a word", NULL);
    kvc_cache_free(c);
    salvage(&in, size);
    kvc_input_close(&in);
    free(f.data);
    return 0;
}
