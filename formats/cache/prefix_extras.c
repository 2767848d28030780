/* prefix_extras.c: reads and writes the metadata key prefix.extras. Spec: KEYS.md, "What token ids
 * do not say". */
#include "formats/cache/prefix_extras.h"

#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/io/bytes.h"

#include <stdlib.h>
#include <string.h>

#define ENTRY 13 /* bytes of a block before its items: position, version, count */
#define ITEM 7   /* bytes of an item before its own */
#define VERSION 1

static int prefix_extras_refuse(struct kvc_error *e, const char *what) {
    return kvc_fail(e, KVC_ERR_DAMAGED, "metadata key '" KVC_KEY_PREFIX_EXTRAS "': %s", what);
}

/* Reads one item at *at and moves *at to its end. *before is offset and tag of the item before it
 * in the block. */
static int read_item(const uint8_t **at, const uint8_t *end, int64_t *before, struct kvc_error *e) {
    const uint8_t *p = *at;
    if (end - p < ITEM) return prefix_extras_refuse(e, "an item is cut short");
    const uint8_t tag = p[0];
    const uint32_t offset = get_u32(p + 1);
    const uint16_t size = get_u16(p + 5);
    if (!tag) return prefix_extras_refuse(e, "an item has tag 0");
    if (offset >= KVC_PREFIX_TOKENS)
        return prefix_extras_refuse(e, "an item lies beyond its block of 256 tokens");
    if (!size || end - p - ITEM < size)
        return prefix_extras_refuse(e, size ? "an item is cut short" : "an item is empty");
    if (tag <= KVC_EXTRA_EMBEDDINGS && size < KVC_MIN_EXTRA_HASH)
        return prefix_extras_refuse(e, "a hash has fewer than 16 bytes");
    const int64_t order = (int64_t)offset << 8 | tag;
    if (order <= *before) return prefix_extras_refuse(e, "items are not sorted and unique");
    *before = order;
    *at = p + ITEM + size;
    return 0;
}

/* Reads the block at *at and moves *at to its end. *lowest is the lowest position that the block
 * may have. */
static int read_block(const uint8_t **at, const uint8_t *end, uint64_t *lowest,
                      struct kvc_error *e) {
    const uint8_t *p = *at;
    if (end - p < ENTRY) return prefix_extras_refuse(e, "a block is cut short");
    const uint64_t position = get_u64(p);
    uint32_t count = get_u32(p + 9);
    int64_t before = -1;
    if (position % KVC_PREFIX_TOKENS || position > INT64_MAX)
        return prefix_extras_refuse(e, "a block begins at no multiple of 256");
    if (position < *lowest) return prefix_extras_refuse(e, "blocks are not sorted and unique");
    if (p[8] != VERSION) return prefix_extras_refuse(e, "a block has an unknown version");
    if (!count) return prefix_extras_refuse(e, "a block has no items");
    *lowest = position + KVC_PREFIX_TOKENS;
    for (*at = p + ENTRY; count; count--)
        if (read_item(at, end, &before, e)) return -1;
    return 0;
}

int kvc_extras_of(const struct kvc_meta *meta, struct kvc_extras *x, struct kvc_error *e) {
    const struct kvc_meta_entry *entry = kvc_meta_find(meta, KVC_KEY_PREFIX_EXTRAS);
    uint64_t lowest = 0;
    *x = (struct kvc_extras){0};
    if (!entry) return 0;
    if (entry->type != KVC_META_BYTES || !entry->size || entry->size > KVC_MAX_EXTRAS)
        return prefix_extras_refuse(e, "is not 1 to 1048576 bytes");
    *x = (struct kvc_extras){entry->value, entry->value + entry->size};
    for (const uint8_t *at = x->at; at < x->end;)
        if (read_block(&at, x->end, &lowest, e)) return -1;
    return 0;
}

/* Returns the end of the block at p, which was checked. */
static const uint8_t *block_end(const uint8_t *p) {
    uint32_t count = get_u32(p + 9);
    for (p += ENTRY; count; count--) p += ITEM + get_u16(p + 5);
    return p;
}

uint64_t kvc_extras_first(const struct kvc_extras *x) {
    return x->at < x->end ? get_u64(x->at) + get_u32(x->at + ENTRY + 1) : UINT64_MAX;
}

const uint8_t *kvc_extras_take(struct kvc_extras *x, uint64_t position, size_t *n) {
    while (x->at < x->end && get_u64(x->at) < position) x->at = block_end(x->at);
    if (x->at >= x->end || get_u64(x->at) != position) return NULL;
    const uint8_t *bytes = x->at + 8;
    x->at = block_end(x->at);
    *n = (size_t)(x->at - bytes);
    return bytes;
}

int kvc_extras_list(const struct kvc_meta *meta, struct kvc_extra **item, size_t *n,
                    struct kvc_error *e) {
    struct kvc_extras x;
    *item = NULL;
    *n = 0;
    if (kvc_extras_of(meta, &x, e)) return -1;
    *item = kvc_alloc((uint64_t)(x.end - x.at) / (ITEM + 1) + 1, sizeof **item);
    if (!*item) return kvc_fail_memory(e, "extras of tokens");
    while (x.at < x.end) {
        const uint64_t position = get_u64(x.at);
        uint32_t count = get_u32(x.at + 9);
        for (x.at += ENTRY; count; count--) {
            const uint16_t size = get_u16(x.at + 5);
            (*item)[(*n)++] = (struct kvc_extra){position + get_u32(x.at + 1), x.at[0], size,
                                                 x.at + ITEM};
            x.at += ITEM + size;
        }
    }
    return 0;
}

/* Writes the items into `bytes`, which has room. Returns the number of bytes. */
static size_t put_items(uint8_t *bytes, const struct kvc_extra *item, size_t n) {
    uint8_t *p = bytes, *block = NULL;
    for (size_t i = 0; i < n; i++) {
        const uint64_t offset = item[i].position % KVC_PREFIX_TOKENS,
                       position = item[i].position - offset;
        if (!block || get_u64(block) != position) {
            block = p;
            put_u64(block, position);
            block[8] = VERSION;
            put_u32(block + 9, 0);
            p += ENTRY;
        }
        put_u32(block + 9, get_u32(block + 9) + 1);
        p[0] = item[i].tag;
        put_u32(p + 1, (uint32_t)offset);
        put_u16(p + 5, item[i].size);
        memcpy(p + ITEM, item[i].bytes, item[i].size);
        p += ITEM + item[i].size;
    }
    return (size_t)(p - bytes);
}

int kvc_extras_store(struct kvc_meta *meta, const struct kvc_extra *item, size_t n,
                     struct kvc_error *e) {
    struct kvc_meta checked = {0};
    struct kvc_extras x;
    uint64_t most = 0;
    if (!n) {
        kvc_meta_remove(meta, KVC_KEY_PREFIX_EXTRAS);
        return 0;
    }
    for (size_t i = 0; i < n; i++) most += ENTRY + ITEM + item[i].size;
    uint8_t *bytes = kvc_alloc(most, 1);
    if (!bytes) return kvc_fail_memory(e, "extras of tokens");
    const size_t size = put_items(bytes, item, n);
    int status = kvc_meta_set_bytes(&checked, KVC_KEY_PREFIX_EXTRAS, bytes, size, e);
    if (!status && (status = kvc_extras_of(&checked, &x, e)) && e) e->code = KVC_ERR_USAGE;
    if (!status) status = kvc_meta_set_bytes(meta, KVC_KEY_PREFIX_EXTRAS, bytes, size, e);
    kvc_meta_free(&checked);
    free(bytes);
    return status;
}
