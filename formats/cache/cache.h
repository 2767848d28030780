/* cache.h: the cache model, into which every engine format is read and from which every format is
 * written. Importers build it; exporters and the container's writer walk it. Not for bytes of any
 * format.
 *
 * cache = metadata + tokens + parts[] + layers[] + tensors[]. A part is one consistent set of
 * cells; its layers own tensors; a tensor has one row per cell. Rows are read in *sorted order*:
 * cells by position, equal positions by cell number. So consumers see the order of tokens, in
 * whatever order the engine kept them. */
#ifndef KVC_CACHE_H
#define KVC_CACHE_H

#include "codecs/error.h"
#include "codecs/rope.h"
#include "codecs/tensor.h"
#include "formats/cache/meta.h"

#include <stddef.h>
#include <stdint.h>

/* The numbers of these enums are stored in .kvc files. */
enum kvc_part_kind {
    KVC_PART_LIVE = 0,     /* the attention cache itself */
    KVC_PART_WINDOW = 1,   /* a cache apart for layers with a sliding window */
    KVC_PART_STATE = 2,    /* of recurrent layers: R and S rows */
    KVC_PART_SNAPSHOT = 3, /* of a state or a window at an earlier position */
    KVC_PART_COMPANION = 4 /* queries and hidden states: data about a cache */
};
const char *kvc_part_kind_name(unsigned kind);

enum kvc_layer_kind {
    KVC_LAYER_FULL = 0,
    KVC_LAYER_WINDOW = 1,
    KVC_LAYER_LATENT = 2,
    KVC_LAYER_STATE = 3,
    KVC_LAYER_COMPANION = 4
};
const char *kvc_layer_kind_name(unsigned kind);

enum kvc_role {
    KVC_ROLE_K = 0,
    KVC_ROLE_V = 1,
    KVC_ROLE_LATENT = 2,
    KVC_ROLE_R = 3,
    KVC_ROLE_S = 4,
    KVC_ROLE_QUERIES = 5,
    KVC_ROLE_HIDDEN = 6
};
const char *kvc_role_name(unsigned role);

#define KVC_MAX_CELLS (UINT64_C(1) << 31)     /* per part; also bounds token counts */
#define KVC_POSITION_LIMIT (INT64_C(1) << 62) /* positions are below it, and above its negative */
#define KVC_BLOCK KVC_MAX_BLOCK_ROWS /* maximum rows of a block, and the grid of its positions */
#define KVC_RUN_BLOCKS 2 /* blocks in a read of many: some decoders are faster on two at once */
#define KVC_SEGMENT_BLOCKS 128 /* blocks in a segment: at most 32 768 rows */
#define KVC_NONE UINT32_MAX    /* "no such layer, tensor, ..." */

struct kvc_cells {
    uint64_t n;
    int64_t *pos;    /* by cell number, as the engine kept them */
    uint32_t *order; /* sorted index -> cell number; NULL when cells are sorted already */
    /* engine-private words (sequence ids, M-RoPE positions), concatenated; may be NULL */
    uint32_t *words;
    uint64_t *word_at; /* n + 1 offsets into words; NULL with words */
    uint64_t *block;   /* n_blocks + 1 sorted indices where blocks start */
    uint64_t n_blocks;
};

struct kvc_part {
    enum kvc_part_kind kind;
    uint32_t stream;   /* of an engine that keeps several, else 0 */
    uint32_t snapshot; /* number of the snapshot, else 0 */
    struct kvc_cells cells;
};

struct kvc_layer {
    uint32_t part;
    uint32_t index; /* layer number in the model, or in cache order when the engine does not say */
    enum kvc_layer_kind kind;
    uint32_t window;    /* sliding window in tokens; 0: none or unknown */
    uint32_t tensor[2]; /* K and V (or latent; R and S; companion); KVC_NONE when absent */
};

struct kvc_tensor {
    uint32_t layer;
    enum kvc_role role;
    struct kvc_shape shape; /* shape.tokens == cells of the layer's part */
    struct kvc_strides
        source;           /* layout in the source file: base + cell * token + head * head + ... */
    uint64_t source_size; /* bytes of the region that holds it in the source file */
};

/* Cells of one tensor in a region of the source. Cell c of [cell, cell + n) begins at byte offset +
 * (c - cell) * strides.token. */
struct kvc_place {
    uint32_t tensor;
    uint64_t cell, n;
    uint64_t offset;
    struct kvc_strides strides;
};

/* A range of bytes of the source: literal bytes, or a region that holds tensors by strides, with
 * literal bytes between them. */
struct kvc_extent {
    uint32_t member; /* number of the member that holds it; 0 if the source is one file */
    uint64_t size;   /* bytes */
    /* offset of its first literal byte among all literal bytes of the cache */
    uint64_t literal;
    /* places [place, place + n_places) of the cache; n_places 0: all bytes are literal */
    uint64_t place, n_places;
};

struct kvc_cache {
    struct kvc_meta meta;
    uint64_t n_tokens;
    /* token ids (positions: kvc_cache_token_positions()); NULL when the source has none */
    int32_t *tokens;
    /* [n_prefix_keys][KVC_KEY_BYTES] (prefix.h), from a .kvc; NULL: no keys are stored */
    uint8_t *prefix_keys;
    uint64_t n_prefix_keys;

    uint32_t n_parts, n_layers, n_tensors;
    struct kvc_part *part;
    struct kvc_layer *layer;   /* ordered by part */
    struct kvc_tensor *tensor; /* layer by layer, or in source file order */

    /* The layout of the source, from its first byte to its last: extents.h. */
    uint32_t n_members; /* 0: the source is one file */
    char **member;      /* their names */
    uint64_t n_extents; /* 0: the source cannot be put together again */
    struct kvc_extent *extent;
    uint64_t n_places;
    struct kvc_place *place;
    uint64_t literal_size;

    /* Reads rows [first, first + n) of a tensor in sorted order, canonical, into dst. May be called
     * from several threads at once. Fastest for whole blocks. */
    int (*read)(const struct kvc_cache *cache, uint32_t tensor, uint64_t first, uint64_t n,
                uint8_t *dst, struct kvc_error *e);
    /* Returns how many of `threads` threads (0: one per core) may read rows at a time, for want of
     * memory; NULL: all. */
    unsigned (*threads)(const struct kvc_cache *cache, unsigned threads);
    /* Reads literal bytes [offset, offset + n); fails unless a reader replaces it. */
    int (*read_literal)(const struct kvc_cache *cache, uint64_t offset, uint64_t n, uint8_t *dst,
                        struct kvc_error *e);
    void (*close)(struct kvc_cache *cache); /* frees impl; may be NULL */
    /* name of the reader that owns impl, for kvc_cache_impl(); or NULL */
    const char *kind;
    /* state of the reader; code that replaces it must set kind as well */
    void *impl;
};

/* Returns the state of the reader named `kind` if it made the cache, else NULL. Names are compared
 * by value: their addresses differ between copies of the library in one process. */
void *kvc_cache_impl(const struct kvc_cache *c, const char *kind);

/* Makes an empty cache, which the caller frees. kvc_cache_free(NULL) is legal. */
struct kvc_cache *kvc_cache_new(struct kvc_error *e);
void kvc_cache_free(struct kvc_cache *cache);
/* Makes an empty cache whose reader has a state of so many bytes, all zero, which close() frees. */
struct kvc_cache *kvc_cache_derived(size_t state, void (*close)(struct kvc_cache *cache),
                                    struct kvc_error *e);
/* Makes *own a cache that shares the rows, cells, token ids and source of `of`, which must outlive
 * it, and owns copies of its metadata, layers, tensors and places: code that adds facts to a cache
 * that belongs to somebody else adds them to such a copy. Ended by kvc_cache_disown(), also after a
 * failure; not by kvc_cache_free(). */
int kvc_cache_own_facts(struct kvc_cache *own, const struct kvc_cache *of, struct kvc_error *e);
void kvc_cache_disown(struct kvc_cache *own);

/* Builders append and return the new number, or KVC_NONE with *e filled. */
uint32_t kvc_cache_add_part(struct kvc_cache *c, enum kvc_part_kind kind, uint64_t cells,
                            struct kvc_error *e);
uint32_t kvc_cache_add_layer(struct kvc_cache *c, uint32_t part, uint32_t index,
                             enum kvc_layer_kind kind, struct kvc_error *e);
/* Checks `shape`, whose tokens must equal the part's cells, and sets layer->tensor[]. */
uint32_t kvc_cache_add_tensor(struct kvc_cache *c, uint32_t layer, enum kvc_role role,
                              const struct kvc_shape *shape, struct kvc_error *e);
/* Append the sorted rows [first, end) of a part, and a layer without its tensors. */
uint32_t kvc_cache_copy_part(struct kvc_cache *c, const struct kvc_part *from, uint64_t first,
                             uint64_t end, struct kvc_error *e);
uint32_t kvc_cache_copy_layer(struct kvc_cache *c, uint32_t part, const struct kvc_layer *from,
                              struct kvc_error *e);
int kvc_cache_set_tokens(struct kvc_cache *c, const int32_t *tokens, uint64_t n,
                         struct kvc_error *e);

/* Sorts the cells and cuts blocks; refuses positions beyond KVC_POSITION_LIMIT.
 * kvc_cache_add_part() gives positions 0, 1, ...; code that changes pos[] calls kvc_cells_arrange()
 * afterwards. kvc_cache_finish() does so for every part and checks that the model is consistent. */
int kvc_cells_arrange(struct kvc_cells *cells, struct kvc_error *e);
int kvc_cache_finish(struct kvc_cache *c, struct kvc_error *e);

/* Returns the positions of the n_tokens token ids, which the caller frees. If there are as many ids
 * as part 0 has cells, the positions are those of its rows (a llama.cpp sequence with a hole).
 * Otherwise they count from the metadata's tokens.first. */
int64_t *kvc_cache_token_positions(const struct kvc_cache *c, struct kvc_error *e);
/* Returns how many token ids are at positions first, first + 1, ... without a gap, if the first id
 * is at `first`; else 0. Prefix keys and prefix matching cover these. */
uint64_t kvc_cache_tokens_from(const struct kvc_cache *c, uint64_t first);

/* Returns how many of `threads` threads (0: one per core) may read rows of the cache at a time. */
unsigned kvc_cache_threads(const struct kvc_cache *c, unsigned threads);

/* Copies sorted rows [first, end) of `from`, positions and words, to the cells of `to` from number
 * `at` on. The cells before `at` must have been filled in this way. */
int kvc_cells_copy(struct kvc_cells *to, uint64_t at, const struct kvc_cells *from, uint64_t first,
                   uint64_t end, struct kvc_error *e);

/* Gives `heads` heads to K and V whose number of heads is unknown (heads = 1), and notes that the
 * number is known. Refuses rows that `heads` does not divide. The rows' bytes stay the same. */
int kvc_cache_set_heads(struct kvc_cache *c, uint32_t heads, struct kvc_error *e);

/* Returns the block after the run of up to KVC_RUN_BLOCKS blocks that begins with `block`. */
uint64_t kvc_cells_run_end(const struct kvc_cells *cells, uint64_t block);
/* Returns the rows that a run has at most. */
uint64_t kvc_cells_run_rows(const struct kvc_cells *cells);
/* Returns the block that contains sorted row `row`. */
uint64_t kvc_cells_block_of(const struct kvc_cells *cells, uint64_t row);
/* sorted index -> cell number */
uint32_t kvc_cell_at(const struct kvc_cells *cells, uint64_t sorted);
/* position of a sorted row */
int64_t kvc_cells_position(const struct kvc_cells *cells, uint64_t sorted);
/* Returns the first sorted row at a position of at least pos; n when there is none. */
uint64_t kvc_cells_row_from(const struct kvc_cells *cells, int64_t pos);

static inline const struct kvc_layer *kvc_tensor_layer(const struct kvc_cache *c, uint32_t tensor) {
    return &c->layer[c->tensor[tensor].layer];
}
static inline const struct kvc_part *kvc_tensor_part(const struct kvc_cache *c, uint32_t tensor) {
    return &c->part[kvc_tensor_layer(c, tensor)->part];
}
static inline const struct kvc_cells *kvc_tensor_cells(const struct kvc_cache *c, uint32_t tensor) {
    return &kvc_tensor_part(c, tensor)->cells;
}
/* Returns 1 for queries and hidden states. */
static inline int kvc_tensor_is_companion(const struct kvc_cache *c, uint32_t tensor) {
    return kvc_tensor_part(c, tensor)->kind == KVC_PART_COMPANION;
}
/* Returns 1 for parts whose rows the next token attends to: the live ones, and windows. */
static inline int kvc_part_is_attended(const struct kvc_part *part) {
    return part->kind == KVC_PART_LIVE || part->kind == KVC_PART_WINDOW;
}
uint64_t kvc_tensor_bytes(const struct kvc_tensor *t); /* canonical bytes of the whole tensor */
/* Writes "layer 3 K", "snapshot 1 layer 0 V", "layer 2 queries": for messages and tables. */
void kvc_tensor_label(const struct kvc_cache *c, uint32_t tensor, char *text, size_t size);
/* Returns the tensor of a role in the layer of an index in a part, or KVC_NONE. */
uint32_t kvc_cache_find_tensor(const struct kvc_cache *c, uint32_t part, uint32_t layer_index,
                               enum kvc_role role);
/* Returns the first queries of the layers of an index, or KVC_NONE. */
uint32_t kvc_cache_find_queries(const struct kvc_cache *c, uint32_t layer_index);

#endif
