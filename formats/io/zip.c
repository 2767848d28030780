/* zip.c: the central directory of a zip. */
#include "formats/io/zip.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"

#include <string.h>

enum { END = 22, LOCATOR = 20, END64 = 56, ENTRY = 46, LOCAL = 30, MOST_COMMENT = 65535 };

struct directory {
    uint64_t offset, size, entries;
};

/* Finds the end record, which only a comment may follow, and the offset of the directory. Returns 0
 * where there is none. */
static int find_directory(const struct kvc_input *in, struct directory *d, struct kvc_error *e) {
    uint8_t tail[LOCATOR + END], far[END64];
    uint64_t at = in->size < END ? 0 : in->size - END;
    const uint64_t lowest = at > MOST_COMMENT ? at - MOST_COMMENT : 0;
    if (in->size < END) return 0;
    if (kvc_input_pin(in, lowest, in->size - lowest, e)) return -1;
    while (at > lowest && memcmp(in->data + at, "PK\5\6", 4) != 0) at--;
    const int found = memcmp(in->data + at, "PK\5\6", 4) == 0;
    kvc_input_unpin(in, lowest, in->size - lowest);
    if (!found) return 0;
    if (kvc_input_copy(in, at, tail + LOCATOR, END, e)) return -1;
    *d = (struct directory){.offset = get_u32(tail + LOCATOR + 16),
                            .size = get_u32(tail + LOCATOR + 12),
                            .entries = get_u16(tail + LOCATOR + 10)};
    if (at < LOCATOR) return 1;
    if (kvc_input_copy(in, at - LOCATOR, tail, LOCATOR, e)) return -1;
    const uint64_t end = get_u64(tail + 8);
    if (memcmp(tail, "PK\6\7", 4) != 0 || end > in->size || in->size - end < END64) return 1;
    if (kvc_input_copy(in, end, far, END64, e)) return -1;
    if (memcmp(far, "PK\6\6", 4) == 0)
        *d = (struct directory){.offset = get_u64(far + 48),
                                .size = get_u64(far + 40),
                                .entries = get_u64(far + 32)};
    return 1;
}

/* Returns the 64-bit offset of a local header from the extra fields of an entry, where it follows
 * sizes that did not fit. */
static uint64_t far_offset(const uint8_t *entry, const uint8_t *extra, size_t n) {
    const unsigned skip = (get_u32(entry + 24) == UINT32_MAX ? 8u : 0u) +
                          (get_u32(entry + 20) == UINT32_MAX ? 8u : 0u);
    for (size_t at = 0; n - at >= 4;) {
        const size_t size = get_u16(extra + at + 2);
        if (size > n - at - 4) break;
        if (get_u16(extra + at) == 1)
            return size >= skip + 8 ? get_u64(extra + at + 4 + skip) : UINT64_MAX;
        at += 4 + size;
    }
    return UINT64_MAX;
}

static int compare_entries(const void *pa, const void *pb) {
    const struct kvc_zip_entry *a = pa, *b = pb;
    const int longer = (a->name_size > b->name_size) - (a->name_size < b->name_size);
    const int order = memcmp(a->name, b->name, longer > 0 ? b->name_size : a->name_size);
    return order ? order : longer;
}

/* Lists the entries, sorted by their names. */
static int read_entries(struct kvc_zip *z, size_t size, uint64_t most, struct kvc_error *e) {
    for (size_t at = 0;
         z->n < most && size - at >= ENTRY && memcmp(z->directory + at, "PK\1\2", 4) == 0;) {
        const uint8_t *p = z->directory + at;
        const size_t name = get_u16(p + 28), extra = get_u16(p + 30),
                     rest = name + extra + get_u16(p + 32);
        if (rest > size - at - ENTRY) break;
        struct kvc_zip_entry *grown = kvc_room_for_one(z->entry, z->n, sizeof *grown);
        if (!grown) return kvc_fail_memory(e, "a zip's directory");
        z->entry = grown;
        const uint64_t header = get_u32(p + 42);
        z->entry[z->n++] = (struct kvc_zip_entry){
            .name = (const char *)p + ENTRY,
            .name_size = name,
            .header = header == UINT32_MAX ? far_offset(p, p + ENTRY + name, extra) : header};
        at += ENTRY + rest;
    }
    if (z->n) qsort(z->entry, z->n, sizeof *z->entry, compare_entries);
    return 0;
}

int kvc_zip_open(struct kvc_zip *z, const struct kvc_input *in, struct kvc_error *e) {
    struct directory d;
    memset(z, 0, sizeof *z);
    const int found = find_directory(in, &d, e);
    if (found <= 0) return found;
    if (d.offset > in->size || d.size > in->size - d.offset) return 0;
    if (!(z->directory = kvc_alloc(d.size, 1))) return kvc_fail_memory(e, "a zip's directory");
    if (!kvc_input_copy(in, d.offset, z->directory, d.size, e) &&
        !read_entries(z, (size_t)d.size, d.entries, e))
        return 0;
    kvc_zip_close(z);
    return -1;
}

void kvc_zip_close(struct kvc_zip *z) {
    free(z->directory);
    free(z->entry);
    memset(z, 0, sizeof *z);
}

uint64_t kvc_zip_stored(const struct kvc_zip *z, const struct kvc_input *in, const char *name,
                        uint64_t size) {
    const struct kvc_zip_entry key = {.name = name, .name_size = strlen(name)};
    const struct kvc_zip_entry *x = z->n
                                        ? bsearch(&key, z->entry, z->n, sizeof key, compare_entries)
                                        : NULL;
    uint8_t h[LOCAL];
    if (!x || x->header > in->size || in->size - x->header < LOCAL ||
        kvc_input_copy(in, x->header, h, LOCAL, NULL))
        return 0;
    if (memcmp(h, "PK\3\4", 4) != 0 || get_u16(h + 8)) return 0; /* 0: stored */
    const uint64_t at = x->header + LOCAL + get_u16(h + 26) + get_u16(h + 28);
    return at <= in->size && size <= in->size - at ? at : 0;
}
