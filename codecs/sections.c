/* sections.c: the list of sections a record is made of, and their byte coders. Not for their
 * meaning. */
#include "codecs/sections.h"

#include "codecs/memory.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

const char *kvc_section_name(unsigned type) {
    switch (type) {
    case KVC_SECTION_RAW: return "RAW";
    case KVC_SECTION_PLANE: return "PLANE";
    case KVC_SECTION_PARAMS: return "PARAMS";
    case KVC_SECTION_CODES: return "CODES";
    case KVC_SECTION_ESCAPES: return "ESCAPES";
    case KVC_SECTION_MERGED: return "MERGED";
    case KVC_SECTION_NORMS: return "NORMS";
    case KVC_SECTION_KEPT: return "KEPT";
    case KVC_SECTION_MASK: return "MASK";
    case KVC_SECTION_FACTOR_A: return "FACTOR_A";
    case KVC_SECTION_FACTOR_B: return "FACTOR_B";
    case KVC_SECTION_OUTLIERS: return "OUTLIERS";
    case KVC_SECTION_BASIS: return "BASIS";
    case KVC_SECTION_MEAN: return "MEAN";
    case KVC_SECTION_STEPS: return "STEPS";
    case KVC_SECTION_SINK: return "SINK";
    case KVC_SECTION_TAIL: return "TAIL";
    case KVC_SECTION_TABLES: return "TABLES";
    case KVC_SECTION_HIDDEN: return "HIDDEN";
    case KVC_SECTION_INPUTS: return "INPUTS";
    case KVC_SECTION_SAME: return "SAME";
    case KVC_SECTION_META: return "META";
    case KVC_SECTION_TABLE: return "TABLE";
    case KVC_SECTION_POSITIONS: return "POSITIONS";
    case KVC_SECTION_WORDS: return "WORDS";
    case KVC_SECTION_TOKENS: return "TOKENS";
    case KVC_SECTION_KEYS: return "KEYS";
    case KVC_SECTION_EXTENTS: return "EXTENTS";
    case KVC_SECTION_LITERALS: return "LITERALS";
    case KVC_SECTION_INDEX: return "INDEX";
    case KVC_SECTION_PROFILE: return "PROFILE";
    case KVC_SECTION_SIGNATURE: return "SIGNATURE";
    case KVC_SECTION_NEEDS: return "NEEDS";
    default: return NULL;
    }
}

const char *kvc_coder_name(unsigned coder) {
    switch (coder) {
    case KVC_CODER_STORE: return "store";
    case KVC_CODER_ZSTD: return "zstd";
    default: return NULL;
    }
}

void kvc_sections_init(struct kvc_sections *list) {
    memset(list, 0, sizeof *list);
}

void kvc_sections_free(struct kvc_sections *list) {
    free(list->section);
    free(list->bytes);
    ZSTD_freeCCtx(list->zstd);
    kvc_sections_init(list);
}

void kvc_sections_clear(struct kvc_sections *list) {
    list->count = 0;
    list->used = 0;
}

static int grow(struct kvc_sections *list, size_t more) {
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 8;
        struct kvc_section *section = kvc_realloc(list->section, capacity, sizeof *section);
        if (!section) return -1;
        list->section = section;
        list->capacity = capacity;
    }
    if (list->room - list->used < more) {
        size_t room = (list->used + more) * 3 / 2;
        uint8_t *bytes = realloc(list->bytes, room);
        if (!bytes) return -1;
        list->bytes = bytes;
        list->room = room;
    }
    return 0;
}

int kvc_sections_add(struct kvc_sections *list, uint8_t type, uint8_t stage, uint8_t index,
                     const uint8_t *raw, size_t n, int level, struct kvc_error *e) {
    if (n > UINT32_MAX)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "a section of %zu bytes is over the 4 GiB limit",
                        n);
    size_t room = level && n ? ZSTD_compressBound(n) : n;
    if (grow(list, room)) return kvc_fail_memory(e, "a section");
    struct kvc_section s = {.type = type,
                            .coder = KVC_CODER_STORE,
                            .stage = stage,
                            .index = index,
                            .raw_size = n,
                            .size = (uint32_t)n};
    if (level && n) {
        if (!list->zstd && !(list->zstd = ZSTD_createCCtx())) return kvc_fail_memory(e, "zstd");
        size_t size = ZSTD_compressCCtx(list->zstd, list->bytes + list->used, room, raw, n, level);
        if (!ZSTD_isError(size) && size < n) {
            s.coder = KVC_CODER_ZSTD;
            s.size = (uint32_t)size;
        }
    }
    if (s.coder == KVC_CODER_STORE && n) memcpy(list->bytes + list->used, raw, n);
    list->used += s.size;
    list->section[list->count++] = s;
    return 0;
}

void kvc_sections_seal(struct kvc_sections *list) {
    size_t at = 0;
    for (size_t i = 0; i < list->count; i++) {
        /* all may be empty */
        list->section[i].data = list->bytes ? list->bytes + at : (const uint8_t *)"";
        at += list->section[i].size;
    }
}

/* Contexts of zstd that no thread uses at present. Making one asks the CPU for its features, which
 * takes tens of microseconds in a virtual machine: longer than decoding most sections. */
static ZSTD_DCtx *_Atomic spare[16];
enum { SPARE = sizeof spare / sizeof spare[0] };

static size_t decode_zstd(uint8_t *dst, size_t n, const struct kvc_section *s) {
    ZSTD_DCtx *context = NULL, *none = NULL;
    for (int i = 0; i < SPARE && !context; i++) context = atomic_exchange(&spare[i], NULL);
    if (!context) context = ZSTD_createDCtx();
    if (!context) return ZSTD_decompress(dst, n, s->data, s->size); /* which tells of memory */
    const size_t got = ZSTD_decompressDCtx(context, dst, n, s->data, s->size);
    for (int i = 0; i < SPARE; i++, none = NULL)
        if (atomic_compare_exchange_strong(&spare[i], &none, context)) return got;
    ZSTD_freeDCtx(context);
    return got;
}

__attribute__((destructor)) static void free_spare(void) {
    for (int i = 0; i < SPARE; i++) ZSTD_freeDCtx(atomic_exchange(&spare[i], NULL));
}

/* Returns 1 where a zstd frame has no dictionary and a window of at most 2^26 bytes (RFC 8878,
 * 3.1.1.1), or is too short to tell. */
static int frame_is_plain(const uint8_t *p, size_t n) {
    enum { DESCRIPTOR = 4, WINDOW = 5, DICTIONARY = 3, SINGLE_SEGMENT = 0x20, MOST_LOG2 = 26 };
    if (n <= WINDOW) return 1;
    if (p[DESCRIPTOR] & DICTIONARY) return 0;
    const unsigned log2 = 10 + (p[WINDOW] >> 3);
    return p[DESCRIPTOR] & SINGLE_SEGMENT || log2 < MOST_LOG2 ||
           (log2 == MOST_LOG2 && !(p[WINDOW] & 7));
}

int kvc_section_decode(const struct kvc_section *s, uint8_t *dst, size_t n, struct kvc_error *e) {
    const char *name = kvc_section_name(s->type);
    if (!name) name = "unknown";
    if (s->raw_size != n)
        return kvc_fail(e, KVC_ERR_DAMAGED, "section %s holds %llu bytes where %zu are due", name,
                        (unsigned long long)s->raw_size, n);
    switch (s->coder) {
    case KVC_CODER_STORE:
        if (s->size != n)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section %s: stored size and decoded size differ",
                            name);
        if (n) memcpy(dst, s->data, n);
        return 0;
    case KVC_CODER_ZSTD: {
        if (!frame_is_plain(s->data, s->size))
            return kvc_fail(
                e, KVC_ERR_DAMAGED,
                "section %s: no zstd frame, or one that has a dictionary or a window over "
                "64 MiB",
                name);
        if (ZSTD_findFrameCompressedSize(s->data, s->size) != s->size)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section %s is not one whole zstd frame", name);
        size_t got = decode_zstd(dst, n, s);
        if (ZSTD_isError(got))
            return kvc_fail(e, KVC_ERR_DAMAGED, "section %s: zstd: %s", name,
                            ZSTD_getErrorName(got));
        if (got != n)
            return kvc_fail(e, KVC_ERR_DAMAGED, "section %s: the zstd frame is too short", name);
        return 0;
    }
    default:
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "section %s: byte coder %u is unknown", name,
                        s->coder);
    }
}

const struct kvc_section *kvc_section_take(const struct kvc_section **next,
                                           const struct kvc_section *end, unsigned type,
                                           unsigned index, struct kvc_error *e) {
    const struct kvc_section *s = *next;
    if (s == end || s->type != type || s->index != index) {
        kvc_fail(e, KVC_ERR_DAMAGED, "%s section %u is missing", kvc_section_name(type), index);
        return NULL;
    }
    ++*next;
    return s;
}

const struct kvc_section *kvc_section_take_stored(const struct kvc_section **next,
                                                  const struct kvc_section *end, unsigned type,
                                                  unsigned index, struct kvc_error *e) {
    const struct kvc_section *s = kvc_section_take(next, end, type, index, e);
    if (s && (s->coder != KVC_CODER_STORE || s->raw_size != s->size)) {
        kvc_fail(e, KVC_ERR_DAMAGED, "%s section %u is not stored as it is", kvc_section_name(type),
                 index);
        return NULL;
    }
    return s;
}

int kvc_section_none_left(const struct kvc_section *next, const struct kvc_section *end,
                          struct kvc_error *e) {
    if (next == end) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "%zu sections more than are due, the first of type %u",
                    (size_t)(end - next), next->type);
}

const struct kvc_section *kvc_section_only(const struct kvc_section *sections, size_t n,
                                           unsigned type, struct kvc_error *e) {
    const struct kvc_section *next = sections, *end = n ? sections + n : sections;
    const struct kvc_section *s = kvc_section_take_stored(&next, end, type, 0, e);
    return s && !kvc_section_none_left(next, end, e) ? s : NULL;
}

const uint8_t *kvc_section_bytes(const struct kvc_section *s, uint8_t *room, size_t n,
                                 struct kvc_error *e) {
    if (s->coder == KVC_CODER_STORE && s->size == n && s->raw_size == n) return s->data;
    return kvc_section_decode(s, room, n, e) ? NULL : room;
}
