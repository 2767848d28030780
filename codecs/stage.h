/* stage.h: what a coding stage is. Not for the list of stages (registry.c) or their order (recipe.h).
 *
 * A stage takes a matrix (one block of rows of one tensor), emits typed sections and either consumes the
 * matrix (a terminal stage) or hands a reduced or residual one to the next. It sees rows and parameters,
 * never a file. Decoding runs a pipeline's stages backwards. */
#ifndef KVC_STAGE_H
#define KVC_STAGE_H

#include "codecs/error.h"
#include "codecs/tensor.h"

#include <stddef.h>
#include <stdint.h>

/* Section types: the numbers stand in .kvc files (formats/FORMAT.md, "Section types"). */
enum kvc_section_type {
    KVC_SECTION_RAW = 1,   /* canonical rows as they are */
    KVC_SECTION_PLANE = 2, /* one byte plane of the rows' blocks, or bits that are kept as they are */
    KVC_SECTION_PARAMS = 3, /* parameters of a model or quantiser */
    KVC_SECTION_CODES = 4,  /* codes of values: rANS tables and streams, packed bits */
    KVC_SECTION_ESCAPES = 5, /* values that have no code */
    KVC_SECTION_SAME = 32, /* rows that equal rows of an earlier record */
    KVC_SECTION_META = 40, /* typed metadata keys */
    KVC_SECTION_TABLE = 41, /* parts, layers, tensors, pipelines */
    KVC_SECTION_POSITIONS = 42,
    KVC_SECTION_WORDS = 43, /* engine-private words per cell */
    KVC_SECTION_TOKENS = 44,
    KVC_SECTION_KEYS = 45,    /* prefix keys */
    KVC_SECTION_EXTENTS = 46, /* how the source file is put together again */
    KVC_SECTION_LITERALS = 47, /* engine-private bytes */
    KVC_SECTION_INDEX = 48
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

/* One block of one tensor on its way through a pipeline. */
struct kvc_block {
    struct kvc_shape shape; /* shape.tokens is the number of rows */
    uint8_t *rows;          /* canonical rows, shape.tokens * row bytes; writable scratch of the caller */
};

/* Parsed arguments of one stage; each stage says in its spec what it keeps where. */
struct kvc_stage_args {
    int64_t i[8];
    double f[4];
};

enum kvc_stage_flags {
    KVC_STAGE_TERMINAL = 1, /* consumes the matrix: nothing follows it in a pipeline */
    KVC_STAGE_LOSSLESS = 2  /* every bit pattern comes back */
};

struct kvc_stage {
    uint16_t id;         /* stands for the arithmetic for ever: new arithmetic, new id */
    const char *name;    /* as recipes spell it */
    const char *summary; /* one line for --help and man pages */
    unsigned flags;

    /* Sets *args to the defaults and reads `text` ("level=1:x", may be empty, no stage name). */
    int (*parse)(const char *text, struct kvc_stage_args *args, struct kvc_error *e);
    /* The canonical text of *args, "" for the defaults; parse(print(x)) == x. */
    void (*print)(const struct kvc_stage_args *args, char *text, size_t size);
    /* 1 when the stage can take a tensor of this shape; else 0 and the reason in *e. NULL: it takes all. */
    int (*accepts)(const struct kvc_stage_args *args, const struct kvc_shape *shape, struct kvc_error *e);
    /* Adds this stage's sections for one block, `stage` being its position in the pipeline. */
    int (*encode)(const struct kvc_stage_args *args, struct kvc_block *block, uint8_t stage,
                  struct kvc_sections *out, struct kvc_error *e);
    /* Rebuilds block->rows from this stage's own sections (already checked against their hashes).
     * block->shape is set; rows of later stages are already in place. */
    int (*decode)(const struct kvc_stage_args *args, struct kvc_block *block,
                  const struct kvc_section *sections, size_t n, struct kvc_error *e);
};

/* The table (registry.c): by name, by id, by position; NULL past the end or when unknown. */
const struct kvc_stage *kvc_stage_find(const char *name);
const struct kvc_stage *kvc_stage_by_id(unsigned id);
const struct kvc_stage *kvc_stage_at(size_t i);

extern const struct kvc_stage kvc_stage_store;
extern const struct kvc_stage kvc_stage_zstd;
extern const struct kvc_stage kvc_stage_split;
extern const struct kvc_stage kvc_stage_fast;

#endif
