/* offsets.h: the container's offsets and limits, for its reader and writer. Spec: FORMAT.md.
 *
 *  header            record header        directory entry     footer
 *  0  magic[8]       0  type, flags       0 type, coder       0  index offset u64
 *  8  write u16      2  sections u16      2 stage, index      8  file size u64
 *  10 read u16       4  size / 16 u32     4 stored u32        16 content id[32]
 *  12 align log2     8  subject u32       8 decoded u64       48 magic[8]
 *  13 grid log2      12 number u32                            56 check u64
 *  14 features u16   16 digest u64
 *  16 needed u32     24 check u64
 *  20 writers u32
 *  24 check u64 */
#ifndef KVC_LAYOUT_H
#define KVC_LAYOUT_H

#include "formats/io/bytes.h"
#include "kernels/kernels.h"

#include <xxhash.h>

#define KVC_MAGIC "\x89KVC\r\n\x1a\n"
#define KVC_MAGIC_END "\x89KVCEND\n"

enum {
    KVC_HEADER_SIZE = 32,
    KVC_FOOTER_SIZE = 64,
    KVC_RECORD_HEADER = 32,
    KVC_DIRECTORY_ENTRY = 16,
    KVC_UNIT = 16,
    KVC_RECORD_CRITICAL = 1,     /* flag */
    KVC_RECORD_NO_DIGEST = 2,    /* flag of BLOCK: rows may differ between machines */
    KVC_SECTION_OPTIONAL = 0x80, /* with the coder: readers may skip the section */
    KVC_GRID_LOG2 = 8,           /* of the positions of a block */
    KVC_TABLE_HEADER = 28,
    KVC_PART_ENTRY = 24,
    KVC_LAYER_ENTRY = 16,
    KVC_TENSOR_ENTRY = 64,
    KVC_SAME_ENTRY = 20,
    KVC_LITERAL_CHUNK = 1 << 22,
    KVC_EXTENT_BYTES = 1 << 20,
    KVC_MAX_PIPELINES = 1024,
    KVC_MIN_ALIGN_LOG2 = 4,
    KVC_MAX_ALIGN_LOG2 = 20
};

/* Returns the maximum decoded bytes of a container section of `stored` bytes (FORMAT.md 4). */
static inline uint64_t kvc_section_limit(uint32_t stored) {
    return 65536 + 4096 * (uint64_t)stored;
}

static inline uint64_t kvc_round_up(uint64_t n, uint64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Returns the check of a whole record: the hash of its body, with the hash of its header as the
 * seed. */
static inline uint64_t kvc_record_check(const uint8_t *record, uint64_t size) {
    return kvc_kernels_get()->hash(record + KVC_RECORD_HEADER, (size_t)size - KVC_RECORD_HEADER,
                                   XXH3_64bits(record, 24));
}

/* A SAME entry: rows of a block that equal earlier rows. */
struct kvc_same {
    uint32_t row, count, tensor, block, there;
};

#endif
