/* block_cache.c: keeps the last block of each tensor of which only a part was read. */
#include "formats/cache/block_cache.h"

#include "codecs/memory.h"

#include <stdatomic.h>
#include <string.h>

struct block {
    uint64_t number;
    uint8_t bytes[];
};

struct kvc_block_cache {
    const struct kvc_cache *cache;
    _Atomic(uint64_t) bytes;        /* of the blocks that are kept */
    _Atomic(struct block *) kept[]; /* by tensor */
};

struct kvc_block_cache *kvc_block_cache_new(const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_block_cache *b = kvc_alloc_zeros(1, sizeof *b +
                                                       (uint64_t)c->n_tensors * sizeof b->kept[0]);
    if (b) b->cache = c;
    else kvc_fail_memory(e, "blocks");
    return b;
}

void kvc_block_cache_free(struct kvc_block_cache *b) {
    for (uint32_t t = 0; b && t < b->cache->n_tensors; t++) free(b->kept[t]);
    free(b);
}

/* Takes the block that is kept for a tensor, or NULL. */
static struct block *block_cache_take(struct kvc_block_cache *b, uint32_t tensor, uint64_t bytes) {
    struct block *kept = atomic_exchange(&b->kept[tensor], NULL);
    if (kept) atomic_fetch_sub(&b->bytes, bytes);
    return kept;
}

/* Keeps a block for a tensor in place of another one, or frees it where the blocks that are kept
 * would be too many bytes. */
static void block_cache_keep(struct kvc_block_cache *b, uint32_t tensor, struct block *block,
                             uint64_t bytes) {
    const uint64_t most = b->cache->kept_bytes;
    if (atomic_fetch_add(&b->bytes, bytes) + bytes > most && most) {
        atomic_fetch_sub(&b->bytes, bytes);
        free(block);
        return;
    }
    struct block *other = atomic_exchange(&b->kept[tensor], block);
    if (other) atomic_fetch_sub(&b->bytes, bytes);
    free(other);
}

/* Reads rows [first, first + n) of one block, through the block that is kept for the tensor. */
static int read_part(struct kvc_block_cache *b, uint32_t tensor, uint64_t number, uint64_t first,
                     uint64_t n, uint8_t *dst, struct kvc_error *e) {
    const struct kvc_cache *c = b->cache;
    const uint64_t *const start = &kvc_tensor_part(c, tensor)->cells.block[number],
                          row = kvc_row_bytes(&c->tensor[tensor].shape);
    const uint64_t bytes = row * KVC_BLOCK;
    struct block *kept = block_cache_take(b, tensor, bytes);
    const int was_kept = kept != NULL;
    int status = 0;
    if (!kept && !(kept = malloc(sizeof *kept + (size_t)bytes)))
        return kvc_fail_memory(e, "a block");
    if (!was_kept || kept->number != number)
        status = c->read(c, tensor, start[0], start[1] - start[0], kept->bytes, e);
    kept->number = number;
    if (!status) memcpy(dst, kept->bytes + (first - start[0]) * row, (size_t)(n * row));
    if (status) free(kept);
    else block_cache_keep(b, tensor, kept, bytes);
    return status;
}

int kvc_block_cache_read(struct kvc_block_cache *b, uint32_t tensor, uint64_t first, uint64_t n,
                         uint8_t *dst, struct kvc_error *e) {
    const struct kvc_cache *c = b->cache;
    const struct kvc_cells *cells = &kvc_tensor_part(c, tensor)->cells;
    for (uint64_t i = n ? kvc_cells_block_of(cells, first) : 0; n; i++) {
        const uint64_t end = cells->block[i + 1],
                       block_cache_take = end - first < n ? end - first : n;
        if (block_cache_take == end - cells->block[i]
                ? c->read(c, tensor, first, block_cache_take, dst, e)
                : read_part(b, tensor, i, first, block_cache_take, dst, e))
            return -1;
        dst += block_cache_take * kvc_row_bytes(&c->tensor[tensor].shape);
        first += block_cache_take;
        n -= block_cache_take;
    }
    return 0;
}
