/* encode_launch.h: what a launch of the device encoder works on: blocks of rows in an engine's
 * memory, in plain numbers and addresses of the device's memory. formats/device/encoder.c makes
 * them, encode_items.h runs them. C11 and CUDA C++17 both compile this. Not for the queue itself
 * (launch.h), whose targets are here the sources of rows.
 *
 * A block is encoded by two launches. The first one takes statistics: exponents of channels for
 * `fast`, ranges of groups for `quant`, digests of rows that decode unchanged. The host chooses
 * parameters from these by the same code as for the CPU. The second launch makes codes with the
 * parameters, and for `quant` the decoded rows and their digest. */
#ifndef KVC_ENCODE_LAUNCH_H
#define KVC_ENCODE_LAUNCH_H

#include "kernels/device/launch.h"

/* Values of a block that one item encodes: the words that fit a tile. Columns of an item that goes
 * down the rows. */
enum { KVC_ENCODE_TILE = KVC_DEVICE_TILE, KVC_ENCODE_COLUMNS = 128 };

/* Items: kinds, and their fields. `index` is the block. */
enum kvc_encode_item_kind {
    KVC_ENCODE_EXPONENTS = 1, /* column, columns: channels of the row, KVC_ENCODE_COLUMNS at most */
    KVC_ENCODE_FAST,          /* first: number of the tile */
    KVC_ENCODE_RANGES,        /* first, rows: groups */
    KVC_ENCODE_QUANT,         /* first: number of the tile */
    KVC_ENCODE_GATHER,        /* first, rows: rows of the block */
    KVC_ENCODE_DIGEST         /* as KVC_ITEM_DIGEST */
};

/* Escapes of a tile: entries [first, first + n) of the launch's list. An entry is the value's
 * number in the tile << 8 | high byte. */
struct kvc_encode_escapes {
    uint32_t first, n;
};

/* A block for codecs/stages/fast/fast.md. */
struct kvc_encode_fast {
    uint64_t bias;            /* u16 a channel: mean exponents; in the second launch the biases */
    uint64_t count;           /* u32[256]: values by exponent less mean */
    uint64_t low, codes;      /* bytes of all values, filled up to a multiple of 4; packed codes */
    uint64_t plane[2];        /* of f32, likewise, or 0 */
    uint64_t escapes;         /* struct kvc_encode_escapes a tile */
    uint64_t list, list_used; /* u32 entries of the launch; u32 */
    uint32_t mantissa, width;
};

/* A block for codecs/stages/quant/quant.md, one class. The second launch reads step, low and
 * inverse. */
struct kvc_encode_quant {
    /* binary32 a group: ranges; in the second launch, low is the minimum that a reader gets */
    uint64_t low, high;
    uint64_t step, inverse; /* binary32 a group */
    uint64_t beyond;        /* u32: becomes 1 if a value is not finite or not below 2^50 in size */
    uint64_t codes;         /* packed */
    uint64_t decoded;       /* rows as they are decoded, dense, in the tensor's dtype */
    uint32_t bits, axis, group;
    uint32_t by_head; /* 1: heads are spans of their own */
};

struct kvc_encode_block {
    uint32_t source;   /* number of its target */
    uint32_t first;    /* the source's row for the block's row 0 */
    uint32_t rows;     /* to be coded */
    uint32_t channels; /* of all heads */
    /* 1: four channels from a multiple of 4 on are adjacent, at a multiple of their size */
    uint32_t fours;
    uint64_t gathered; /* KVC_ENCODE_GATHER: dense rows */
    union {
        struct kvc_encode_fast fast;
        struct kvc_encode_quant quant;
    };
};

#endif
