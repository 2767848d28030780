/* stage.h: what a coding stage is. Not for the list of stages (registry.c), recipes (recipe.h) or running several stages
 * (pipeline.h).
 *
 * A stage takes a matrix (one block of rows of one tensor; a pair stage two layers'), emits typed sections and either
 * consumes the matrix (a terminal stage) or hands a reduced or residual one to the next. It sees rows, queries and
 * parameters, never a file. Decoding runs a pipeline's stages backwards. */
#ifndef KVC_STAGE_H
#define KVC_STAGE_H

#include "codecs/args.h"
#include "codecs/error.h"
#include "codecs/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Section types: the numbers stand in .kvc files (formats/container/FORMAT.md, "Section types"). */
enum kvc_section_type {
    KVC_SECTION_RAW = 1,   /* canonical rows as they are */
    KVC_SECTION_PLANE = 2, /* one byte plane of the rows' blocks, or bits that are kept as they are */
    KVC_SECTION_PARAMS = 3, /* parameters of a model or quantiser */
    KVC_SECTION_CODES = 4,  /* codes of values: rANS tables and streams, packed bits */
    KVC_SECTION_ESCAPES = 5, /* values that have no code */
    KVC_SECTION_MERGED = 6,   /* which tensor holds the merged direction of a pair */
    KVC_SECTION_NORMS = 7,    /* norms of rows */
    KVC_SECTION_KEPT = 8,     /* rows that are kept apart */
    KVC_SECTION_MASK = 9,     /* chosen channels, chosen tokens */
    KVC_SECTION_FACTOR_A = 10, /* low rank: coefficients of rows */
    KVC_SECTION_FACTOR_B = 11, /* low rank: directions */
    KVC_SECTION_OUTLIERS = 12, /* indices and values */
    KVC_SECTION_BASIS = 13,    /* how coefficients become channels */
    KVC_SECTION_MEAN = 14,     /* of channels */
    KVC_SECTION_STEPS = 15,    /* step classes of tokens */
    KVC_SECTION_SINK = 16,     /* how many first rows are kept as they are */
    KVC_SECTION_TAIL = 17,     /* how many last rows are */
    KVC_SECTION_TABLES = 18,   /* which frequency table codes what */
    KVC_SECTION_HIDDEN = 20,   /* which hidden states and weights rows are rebuilt from */
    KVC_SECTION_ROPE = 21,     /* how K was turned */
    KVC_SECTION_SAME = 32, /* rows that equal rows of an earlier record */
    KVC_SECTION_META = 40, /* typed metadata keys */
    KVC_SECTION_TABLE = 41, /* parts, layers, tensors, pipelines */
    KVC_SECTION_POSITIONS = 42,
    KVC_SECTION_WORDS = 43, /* engine-private words per cell */
    KVC_SECTION_TOKENS = 44,
    KVC_SECTION_KEYS = 45,    /* prefix keys */
    KVC_SECTION_EXTENTS = 46, /* how the source file is put together again */
    KVC_SECTION_LITERALS = 47, /* engine-private bytes */
    KVC_SECTION_INDEX = 48,
    KVC_SECTION_PROFILE = 49 /* a profile file */
};
/* The type's name in FORMAT.md's words, or NULL when unknown. */
const char *kvc_section_name(unsigned type);

/* Byte coders of a section: how its decoded bytes are stored. The numbers stand in .kvc files. */
enum kvc_coder {
    KVC_CODER_STORE = 0,
    KVC_CODER_ZSTD = 1 /* one zstd frame */
};
const char *kvc_coder_name(unsigned coder);

/* Bytes that a section costs a record: its directory entry and half its padding. */
#define KVC_SECTION_COST 24

/* `stage` of a section that belongs to the container, not to a stage. */
#define KVC_NO_STAGE 0xff

struct kvc_section {
    uint8_t type;      /* enum kvc_section_type */
    uint8_t coder;     /* enum kvc_coder */
    uint8_t stage;     /* position of its stage in the pipeline, or KVC_NO_STAGE */
    uint8_t index;     /* number among the stage's sections of this type */
    uint64_t raw_size; /* bytes after undoing the byte coder */
    uint32_t size;     /* stored bytes */
    const uint8_t *data; /* the stored bytes; owned by the list or by the mapped file */
};

/* A growing list of sections. Its bytes live in one buffer; .data is set by kvc_sections_seal(). */
struct kvc_sections {
    struct kvc_section *section;
    size_t count, capacity;
    uint8_t *bytes;
    size_t used, room;
    struct ZSTD_CCtx_s *zstd; /* kept from section to section, as making one costs more than a small section */
};

void kvc_sections_init(struct kvc_sections *list);
void kvc_sections_free(struct kvc_sections *list);
/* Forgets the sections, keeps the memory. */
void kvc_sections_clear(struct kvc_sections *list);

/* Appends `raw` (n bytes, fewer than 2^32), coded with zstd at `level` when that is smaller, else stored;
 * level 0 always stores. 0, or -1 when out of memory. */
int kvc_sections_add(struct kvc_sections *list, uint8_t type, uint8_t stage, uint8_t index,
                     const uint8_t *raw, size_t n, int level, struct kvc_error *e);
/* Sets every .data pointer; call after the last add. */
void kvc_sections_seal(struct kvc_sections *list);

/* Undoes the byte coder into dst, which holds exactly `n` bytes; refuses a section whose raw size is not n,
 * whose frame is damaged, or whose coder is unknown. */
int kvc_section_decode(const struct kvc_section *s, uint8_t *dst, size_t n, struct kvc_error *e);

/* The next section of a stage's own, which must have this type and index; *next moves past it. NULL and the reason in
 * *e when it is another or `end`. */
const struct kvc_section *kvc_section_take(const struct kvc_section **next, const struct kvc_section *end,
                                           unsigned type, unsigned index, struct kvc_error *e);
/* Whether a stage's n sections are canonical rows kept as they are, one RAW section; copies them out of it then: 1. 0 when
 * they are something else, -1 when that one section is not `size` stored bytes. */
int kvc_section_raw(const struct kvc_section *sections, size_t n, uint8_t *rows, size_t size, struct kvc_error *e);
/* 0 when a stage has taken all its sections. */
int kvc_section_none_left(const struct kvc_section *next, const struct kvc_section *end, struct kvc_error *e);
/* A section's n decoded bytes: in place where it is stored as it is, else in `room`; NULL and the reason in *e. */
const uint8_t *kvc_section_bytes(const struct kvc_section *s, uint8_t *room, size_t n, struct kvc_error *e);

/* Like kvc_section_take(), of a section that is never coded further: its bytes are s->data, s->size of them. */
const struct kvc_section *kvc_section_take_stored(const struct kvc_section **next, const struct kvc_section *end,
                                                  unsigned type, unsigned index, struct kvc_error *e);

/* Which tensors a stage of a recipe takes. */
enum kvc_select { KVC_SELECT_K = 1, KVC_SELECT_V = 2 };

/* What an encoder may ask about the tensor that a block belongs to. Rows are numbered in sorted order through the whole
 * tensor; channels of queries mean what those of K mean. */
struct kvc_encoding {
    uint64_t rows;           /* of the tensor */
    const int64_t *position; /* of each, ascending */
    /* Rows [first, first + n) of the layer's K or V (enum kvc_select) as binary32, and their heads and channels. */
    int (*read)(const struct kvc_encoding *x, unsigned role, uint64_t first, uint64_t n, float *dst, struct kvc_error *e);
    struct kvc_shape key, value;
    /* Queries of the layer after RoPE: [n_queries][query_heads][key.dim]; none: n_queries 0. */
    const float *query;
    const int64_t *query_position; /* ascending */
    uint64_t n_queries, query_heads;
    uint64_t first, segment_rows; /* the segment at hand: its first row, and how many */
    /* Pair stages: the tensor whose blocks hold what both have in common, and whether this is the other one. */
    uint32_t pair;
    int second, deeper; /* deeper: of the two layers this is the one with the higher number */
    /* What K and V of a layer both need and is dear: made once under the lock, freed by the owner of the encoding. */
    struct kvc_shared *shared;
    const struct kvc_rebuild_source *source; /* what rows may be rebuilt from (rebuild.h), or NULL */
    const struct kvc_rope_facts *rope;       /* of the layer's K (rope.h); NULL: nothing is known */
    /* Queries of other texts, out of a profile, as they would stand behind the last row; [profile_queries][query_heads of
     * the profile][key.dim]. */
    const float *profile_query;
    uint64_t profile_queries, profile_query_heads;
    uint64_t window;                         /* of sliding attention, in tokens; 0: none */
    const void *owner; /* of read() */
};

/* The one section that a stage has there, which must have this type, index 0, and be stored as it is; else NULL. */
const struct kvc_section *kvc_section_only(const struct kvc_section *sections, size_t n, unsigned type,
                                           struct kvc_error *e);

/* One block of one tensor on its way through a pipeline. */
struct kvc_block {
    struct kvc_shape shape; /* of the matrix as it stands; shape.tokens is the number of rows */
    enum kvc_dtype own;     /* the tensor's dtype; shape.dtype is that, or binary32 */
    uint8_t *rows;          /* its rows, row after row; writable scratch of the caller */
    unsigned role;          /* enum kvc_select, or 0 */
    /* 1: encoding, a later stage takes what this one hands on; decoding, rows holds what a later stage made. 0: what a
     * residual stage hands on is dropped, and rows holds nothing. */
    int residual;
    struct kvc_shape handed; /* decoding: of the matrix that the stage handed on; `shape` is what it is to become */
    enum kvc_dtype stands;   /* decoding: in which dtype that stands there. Of the pipeline. */
    uint8_t *salient;        /* [row][head] 1: salient; NULL: no stage has told tokens apart. Of the pipeline. */
    uint64_t *row; /* number of each row in the tensor; NULL: encoding, they are all there are; decoding, nobody asks */
    const struct kvc_rebuild *rebuild; /* for stages that rebuild: hidden states and weights, or NULL */
    const int64_t *position; /* decoding: of the tensor's rows from first_row on; NULL: nobody asks */
    uint64_t first_row;
    const struct kvc_profile_part *profile; /* what a profile knows of the tensor (profile_part.h), or NULL */
    int8_t *step; /* [row][head]: class of its step, in half octaves; NULL: no stage has told. Of the pipeline. */
    /* encoding only */
    const struct kvc_encoding *encoding;
    struct kvc_block *partner; /* pair stages: the other layer's block */
};

/* The number in the tensor, and the position, of row i of a block that is being encoded. */
static inline uint64_t kvc_block_row(const struct kvc_block *block, uint64_t i) {
    return block->row ? block->row[i] : i;
}
static inline int64_t kvc_block_position(const struct kvc_block *block, uint64_t i) {
    const uint64_t row = kvc_block_row(block, i);
    return block->encoding ? block->encoding->position[row] : block->position ? block->position[row - block->first_row]
                                                                                      : (int64_t)row;
}

/* A stage's stored sections: of a block, and of its segment. */
struct kvc_stored {
    const struct kvc_section *section, *side, *first; /* first: a pair's second tensor: the first one's, of the block */
    size_t n, n_side, n_first;
};

enum kvc_stage_flags {
    KVC_STAGE_TERMINAL = 1, /* consumes the matrix: nothing follows it in a pipeline */
    KVC_STAGE_LOSSLESS = 2, /* every bit pattern comes back */
    KVC_STAGE_FINITE = 4,   /* takes finite values only: the stage `finite` stands before the first of these */
    KVC_STAGE_FLOAT = 8,    /* takes and hands on binary32, whatever the tensor's dtype */
    KVC_STAGE_RESIDUAL = 16, /* hands on what it missed: a pipeline may end after it, which drops that */
    KVC_STAGE_LOOKS = 32,    /* sees a whole segment before it encodes the first block */
    KVC_STAGE_PAIR = 64,     /* takes two layers' matrices at once */
    KVC_STAGE_TAKES = 128,   /* takes rows out of the matrix */
    KVC_STAGE_REBUILDS = 256, /* asks for hidden states and weights, of the rows at hand */
    KVC_STAGE_HEADS = 512,    /* does something for each head: must know how many there are */
    KVC_STAGE_POSITIONS = 1024, /* asks where rows stand: no stage behind it takes rows out */
    KVC_STAGE_PROFILE = 2048, /* may need a profile to decode */
    KVC_STAGE_SAMPLES = 4096, /* is content to look at some of a long segment's blocks */
    KVC_STAGE_QUERIES = 8192  /* encodes by a profile's queries, where there are some */
};

struct kvc_program;

/* What stages did to a tensor, in words. NULL: no stage changed that. */
struct kvc_description {
    const char *values;      /* what the values are, after the name of the part: " before RoPE" */
    const char *coordinates; /* what they are coded in: "a basis of its own" */
};

struct kvc_stage {
    uint16_t id;         /* stands for the arithmetic for ever: new arithmetic, new id */
    const char *name;    /* as recipes spell it */
    const char *summary; /* one line for --help and man pages */
    unsigned flags;

    const struct kvc_arg *args; /* its arguments, n_args of them */
    unsigned n_args;
    /* Refuses arguments that exclude each other. NULL: none do. */
    int (*check)(const struct kvc_stage_args *args, struct kvc_error *e);
    /* 1 when the stage can take a tensor of this shape; else 0 and the reason in *e. NULL: it takes all. */
    int (*accepts)(const struct kvc_stage_args *args, const struct kvc_shape *shape, struct kvc_error *e);
    /* Pair stages: 1 when of `layers` layers the one with this index may be the first of a pair. */
    int (*pairs)(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers);
    /* Stages that rebuild: 1 when layer `layer` of `layers` has hidden states of its own; *rank: 0, or that at which they
     * are stored. */
    int (*keeps)(const struct kvc_stage_args *args, uint32_t layer, uint32_t layers, unsigned *rank);

    /* Stages that look: begin() makes the state for a segment, look() gets each of its blocks in order as the stages before
     * hand it on, settle() adds the segment's side sections; end() frees the state (NULL too). Where begin() makes no state
     * nothing need be looked at. */
    int (*begin)(const struct kvc_stage_args *args, const struct kvc_encoding *encoding, const struct kvc_block *like,
                 void **state, struct kvc_error *e);
    int (*look)(const struct kvc_stage_args *args, void *state, struct kvc_block *block, struct kvc_error *e);
    int (*settle)(const struct kvc_stage_args *args, void *state, uint8_t stage, struct kvc_sections *side,
                  struct kvc_error *e);
    void (*end)(void *state);
    /* Adds this stage's sections for one block, `stage` being its position in the pipeline, and makes of the block what
     * it hands on. */
    int (*encode)(const struct kvc_stage_args *args, void *state, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e);

    /* Says what the stage did to a tensor of this role (enum kvc_select), as its side sections have it. They are not checked
     * yet. NULL: nothing that a reader of the tensor's values wants to know. */
    void (*describe)(const struct kvc_stored *stored, unsigned role, struct kvc_description *description);

    /* Decoding, first stage first: makes block->shape (and ->salient) what the stage handed on. NULL: as it came. */
    int (*open)(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                struct kvc_error *e);
    /* Decoding, last stage first: rebuilds block->rows from what it handed on, which stands there, and from its own
     * sections (already checked against their hashes). */
    int (*decode)(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                  struct kvc_error *e);
    /* The same as a program of the device decoder (program.h): 0; 1 where that cannot do it; -1 when the sections are damaged.
     * block->rows is nothing. NULL: the CPU decodes blocks that have this stage. */
    int (*lower)(const struct kvc_stage_args *args, const struct kvc_stored *stored, struct kvc_block *block,
                 struct kvc_program *program, struct kvc_error *e);
};

/* Reads `text` ("level=1:x", may be empty, no stage name) into *args, with the fallbacks for what it does not give. */
int kvc_stage_parse(const struct kvc_stage *stage, const char *text, struct kvc_stage_args *args, struct kvc_error *e);
/* Prints the canonical text, "" for the fallbacks; parsing it gives the same arguments. */
void kvc_stage_print(const struct kvc_stage *stage, const struct kvc_stage_args *args, char *text, size_t size);
/* Appends `name` or `name:arguments` to a text of `size` bytes, NUL included. Returns -1 when it does not fit. */
int kvc_stage_append(char *text, size_t size, const struct kvc_stage *stage, const struct kvc_stage_args *args);

/* The table (registry.c): by name, by id, by position; NULL past the end or when unknown. */
const struct kvc_stage *kvc_stage_find(const char *name);
const struct kvc_stage *kvc_stage_by_id(unsigned id);
const struct kvc_stage *kvc_stage_at(size_t i);

extern const struct kvc_stage kvc_stage_store;
extern const struct kvc_stage kvc_stage_zstd;
extern const struct kvc_stage kvc_stage_split;
extern const struct kvc_stage kvc_stage_fast;
extern const struct kvc_stage kvc_stage_finite;
extern const struct kvc_stage kvc_stage_sink;
extern const struct kvc_stage kvc_stage_tail;
extern const struct kvc_stage kvc_stage_quant;
extern const struct kvc_stage kvc_stage_outlier;
extern const struct kvc_stage kvc_stage_lowrank;
extern const struct kvc_stage kvc_stage_prune;
extern const struct kvc_stage kvc_stage_saliency;
extern const struct kvc_stage kvc_stage_merge;
extern const struct kvc_stage kvc_stage_project;
extern const struct kvc_stage kvc_stage_derope;
extern const struct kvc_stage kvc_stage_center;
extern const struct kvc_stage kvc_stage_basis;
extern const struct kvc_stage kvc_stage_steps;
extern const struct kvc_stage kvc_stage_code;

#endif
