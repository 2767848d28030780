/* fuzz_stages.c: the lossless stages of the registry, past the hashes. Eight bytes choose what is
 * done: either entries like a record's directory make sections out of the rest, which are decoded,
 * or the rest is rows, which are encoded and must come back. Whatever decodes must also encode and
 * come back. */
#include "tests/fuzz/any_recipe.h"

#include "formats/io/bytes.h"

enum { HEADER = 8, ENTRY = 8, MAX_SECTIONS = 12, SECTION_COST = 24 };
/* decoded and encoded at most: small ones run often */
enum { FEW_VALUES = 1 << 12, MANY_VALUES = 1 << 15 };
enum { ENCODE = 4 };  /* in byte 0, whose other bits choose the recipe */
enum { DTYPES = 13 }; /* byte 1 modulo them; what is above is an argument of the stage */

static const char *const recipes[] = {"split", "split:stream=1024", "fast",
                                      "split:stream=16777216"};
enum { LISTED = sizeof recipes / sizeof recipes[0] };
static const enum kvc_dtype dtypes[DTYPES] = {KVC_F32,  KVC_F16,  KVC_BF16,  KVC_F8E4M3, KVC_F8E5M2,
                                              KVC_U8,   KVC_I8,   KVC_Q8_0,  KVC_Q4_0,   KVC_Q4_1,
                                              KVC_Q5_0, KVC_Q5_1, KVC_IQ4_NL};

/* Sets the recipe to lossless terminal stage number `i` of the registry, counted round. */
static void take_stage(struct kvc_recipe *recipe, size_t i, uint8_t argument) {
    const unsigned both = KVC_STAGE_TERMINAL | KVC_STAGE_LOSSLESS;
    const struct kvc_stage *found[64];
    size_t n = 0, at = 0;
    for (size_t s = 0; kvc_stage_at(s) && n < sizeof found / sizeof found[0]; s++)
        if ((kvc_stage_at(s)->flags & both) == both) found[n++] = kvc_stage_at(s);
    recipe->n = 0;
    any_stage(recipe, found[i % n], &argument, 1, &at);
}

/* Makes a pipeline of a listed recipe, or after these of any lossless stage. */
static struct kvc_pipeline pipeline_of(unsigned choice, uint8_t argument) {
    struct kvc_recipe recipe;
    struct kvc_pipeline line;
    struct kvc_error e;
    if (choice >= LISTED) take_stage(&recipe, choice - LISTED, argument);
    if (choice < LISTED ? kvc_recipe_parse(recipes[choice], &recipe, &e)
                        : any_recipe_parse(&recipe, &e))
        fuzz_die("a recipe", &e);
    kvc_recipe_pipeline(&recipe, 0, 0, &line);
    return line;
}

/* The bytes of a section in memory of their own, so that reading one byte too far shows. */
static const uint8_t *copy(const uint8_t *bytes, size_t n) {
    return memcpy(fuzz_alloc(n), bytes, n);
}

static void drop(struct kvc_section *section, size_t n) {
    for (size_t i = 0; i < n; i++) free((uint8_t *)(uintptr_t)section[i].data);
}

static int decode(const struct kvc_pipeline *line, const struct kvc_shape *shape, uint8_t *rows,
                  const struct kvc_section *section, size_t n) {
    struct kvc_block block = {.shape = *shape, .rows = rows};
    struct kvc_error e = {.code = KVC_OK};
    int status = kvc_pipeline_decode(line, &block, section, n, &e);
    if (status && (!*e.message || (e.code != KVC_ERR_DAMAGED && e.code != KVC_ERR_UNSUPPORTED)))
        fuzz_die("refused without a word, or for a wrong reason", &e);
    return status;
}

/* `source`, the whole block, must come back and not grow. */
static void round_trip(const struct kvc_pipeline *line, const struct kvc_shape *shape,
                       const uint8_t *source, size_t size) {
    struct kvc_section section[MAX_SECTIONS];
    struct kvc_sections list;
    struct kvc_error e;
    uint8_t *rows = fuzz_alloc(size);
    struct kvc_block block = {.shape = *shape, .rows = rows};
    size_t stored = 0;
    memcpy(rows, source, size);
    kvc_sections_init(&list);
    if (kvc_pipeline_encode(line, &block, &list, &e)) fuzz_die("cannot encode", &e);
    kvc_sections_seal(&list);
    if (list.count > MAX_SECTIONS) fuzz_die("more sections than a stage has", NULL);
    for (size_t i = 0; i < list.count; i++) {
        section[i] = list.section[i];
        section[i].data = copy(section[i].data, section[i].size);
        stored += section[i].size + SECTION_COST;
    }
    if (stored > size + SECTION_COST) fuzz_die("a block grew", NULL);
    memset(rows, 0xa5, size);
    if (decode(line, shape, rows, section, list.count))
        fuzz_die("what was encoded is refused", NULL);
    if (memcmp(rows, source, size) != 0) fuzz_die("other rows came back", NULL);
    drop(section, list.count);
    kvc_sections_free(&list);
    free(rows);
}

/* Sections as the entries say: type, coder, stage, index, stored size, decoded size (u16). */
static void take_apart(const struct kvc_pipeline *line, const struct kvc_shape *shape,
                       const uint8_t *data, size_t size, unsigned count, size_t row_bytes) {
    struct kvc_section section[MAX_SECTIONS];
    const uint8_t *next = data + count * ENTRY, *end = data + size;
    const size_t n = (size_t)shape->tokens * row_bytes;
    if (size < count * ENTRY) return;
    for (unsigned i = 0; i < count; i++) {
        const uint8_t *entry = data + i * ENTRY;
        uint32_t stored = get_u16(entry + 4);
        if (stored > (size_t)(end - next)) stored = (uint32_t)(end - next);
        section[i] = (struct kvc_section){.type = entry[0],
                                          .coder = entry[1],
                                          .stage = entry[2],
                                          .index = entry[3],
                                          .size = stored,
                                          .raw_size = get_u16(entry + 6),
                                          .data = copy(next, stored)};
        next += stored;
    }
    uint8_t *rows = fuzz_alloc(n), *again = fuzz_alloc(n);
    memset(rows, 0, n); /* other bytes than below: all must be written */
    memset(again, 0xff, n);
    if (decode(line, shape, rows, section, count) == 0) {
        if (decode(line, shape, again, section, count)) fuzz_die("decodes once, not twice", NULL);
        if (memcmp(rows, again, n) != 0) fuzz_die("decodes to other rows the second time", NULL);
        round_trip(line, shape, rows, n);
    }
    free(rows);
    free(again);
    drop(section, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < HEADER) return 0;
    const struct kvc_dtype_info *info = kvc_dtype_info(dtypes[data[1] % DTYPES]);
    const struct kvc_pipeline line = pipeline_of((data[0] & 3u) | (data[0] >> 1 & ~3u),
                                                 data[1] / DTYPES);
    struct kvc_shape shape = {info->dtype, get_u16(data + 2) % (KVC_MAX_BLOCK_ROWS + 1),
                              data[4] % 8u + 1, get_u16(data + 5) % 1024u + 1};
    if (info->block > 1) shape.dim = (shape.dim + 31) / 32 * 32;
    if (!kvc_shape_check(&shape)) return 0;
    if (shape.tokens * shape.heads * shape.dim > (data[0] & ENCODE ? MANY_VALUES : FEW_VALUES))
        return 0;
    const size_t row_bytes = (size_t)kvc_row_bytes(&shape), n = (size_t)shape.tokens * row_bytes;
    if (!(data[0] & ENCODE)) {
        take_apart(&line, &shape, data + HEADER, size - HEADER, data[7] % (MAX_SECTIONS + 1),
                   row_bytes);
        return 0;
    }
    /* The bytes again and again, so that few make many rows; byte 7 is added each time. */
    uint8_t *rows = fuzz_alloc(n);
    const size_t given = size - HEADER;
    for (size_t i = 0; i < n; i++)
        rows[i] = (uint8_t)(given ? data[HEADER + i % given] + i / given * data[7] : data[7]);
    round_trip(&line, &shape, rows, n);
    free(rows);
    return 0;
}
