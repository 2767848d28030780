/* ends.c: rows at one end of a block kept as they are, for `sink` and `tail`. Spec: sink.md, tail.md. */
#include "codecs/ends.h"

#include "codecs/kept.h"
#include "codecs/program.h"

#include <string.h>

static void mark(uint8_t *mask, uint64_t rows, uint64_t n, unsigned type) {
    memset(mask, 0, (size_t)rows);
    memset(mask + (type == KVC_SECTION_SINK ? 0 : rows - n), 1, (size_t)n);
}

int kvc_ends_encode(struct kvc_block *block, uint64_t rows, unsigned type, uint8_t stage, struct kvc_sections *out,
                    struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    const uint8_t bytes[2] = {(uint8_t)(rows & 255), (uint8_t)(rows >> 8)};
    if (!rows) return 0;
    mark(mask, block->shape.tokens, rows, type);
    if (kvc_sections_add(out, (uint8_t)type, stage, 0, bytes, sizeof bytes, 0, e)) return -1;
    return kvc_kept_encode(block, mask, stage, out, e);
}

/* How many rows the first section says are kept; 0 rows without any section. */
static int read_count(const struct kvc_stored *stored, uint64_t rows, unsigned type, uint64_t *n, struct kvc_error *e) {
    *n = 0;
    if (stored->n_side) return kvc_section_none_left(stored->side, stored->side + stored->n_side, e);
    if (!stored->n) return 0;
    const struct kvc_section *next = stored->section, *s;
    if (!(s = kvc_section_take_stored(&next, next + stored->n, type, 0, e))) return -1;
    if (s->size != 2) return kvc_fail(e, KVC_ERR_DAMAGED, "%s is not a number of two bytes", kvc_section_name(type));
    *n = s->data[0] | (uint64_t)s->data[1] << 8;
    if (*n && *n <= rows) return 0;
    return kvc_fail(e, KVC_ERR_DAMAGED, "%s keeps %llu of %llu rows", kvc_section_name(type), (unsigned long long)*n,
                    (unsigned long long)rows);
}

int kvc_ends_open(struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_count(stored, block->shape.tokens, type, &n, e)) return -1;
    mark(mask, block->shape.tokens, n, type);
    kvc_kept_open(block, mask);
    return 0;
}

int kvc_ends_decode(struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_count(stored, block->shape.tokens, type, &n, e)) return -1;
    if (!n) return 0;
    mark(mask, block->shape.tokens, n, type);
    return kvc_kept_decode(block, mask, stored->section + 1, stored->n - 1, e);
}

int kvc_ends_lower(const struct kvc_block *block, unsigned type, const struct kvc_stored *stored, struct kvc_program *program,
                   struct kvc_error *e) {
    uint8_t mask[KVC_MAX_BLOCK_ROWS];
    uint64_t n;
    if (read_count(stored, block->shape.tokens, type, &n, e)) return -1;
    if (!n) return 0;
    mark(mask, block->shape.tokens, n, type);
    return kvc_program_kept(program, &block->shape, mask, stored->section + 1, stored->n - 1, e);
}
