/* sections.h: typed sections, what a record is made of: their types, their byte coders, and lists
 * of them. Not for what is in them (the stages, formats/container/FORMAT.md). */
#ifndef KVC_SECTIONS_H
#define KVC_SECTIONS_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Section types. The numbers are stored in .kvc files (formats/container/FORMAT.md, "Section
 * types"). */
enum kvc_section_type {
    KVC_SECTION_RAW = 1,       /* canonical rows, unchanged */
    KVC_SECTION_PLANE = 2,     /* one byte plane of the rows' blocks, or bits that no model codes */
    KVC_SECTION_PARAMS = 3,    /* parameters of a model or quantiser */
    KVC_SECTION_CODES = 4,     /* codes of values: rANS tables and streams, packed bits */
    KVC_SECTION_ESCAPES = 5,   /* values that have no code */
    KVC_SECTION_MERGED = 6,    /* the tensor that holds the merged direction of a pair */
    KVC_SECTION_NORMS = 7,     /* norms of rows */
    KVC_SECTION_KEPT = 8,      /* rows that are kept apart */
    KVC_SECTION_MASK = 9,      /* chosen channels, chosen tokens */
    KVC_SECTION_FACTOR_A = 10, /* low rank: coefficients of rows */
    KVC_SECTION_FACTOR_B = 11, /* low rank: directions */
    KVC_SECTION_OUTLIERS = 12, /* indices and values */
    KVC_SECTION_BASIS = 13,    /* how coefficients become channels */
    KVC_SECTION_MEAN = 14,     /* means of channels */
    KVC_SECTION_STEPS = 15,    /* step classes of tokens */
    KVC_SECTION_SINK = 16,     /* number of first rows that are kept unchanged */
    KVC_SECTION_TAIL = 17,     /* number of last rows that are kept unchanged */
    KVC_SECTION_TABLES = 18,   /* indices of frequency tables */
    KVC_SECTION_HIDDEN = 20,   /* the hidden states and weights that rows are rebuilt from */
    KVC_SECTION_INPUTS = 22,   /* the tensors that rows are predicted from */
    KVC_SECTION_SAME = 32,     /* rows that equal rows of an earlier record */
    KVC_SECTION_NEEDS = 33,    /* what blocks stand on; of stages to come */
    KVC_SECTION_META = 40,     /* typed metadata keys */
    KVC_SECTION_TABLE = 41,    /* parts, layers, tensors, pipelines */
    KVC_SECTION_POSITIONS = 42,
    KVC_SECTION_WORDS = 43, /* engine-private words per cell */
    KVC_SECTION_TOKENS = 44,
    KVC_SECTION_KEYS = 45,     /* prefix keys */
    KVC_SECTION_EXTENTS = 46,  /* how the source file is put together again */
    KVC_SECTION_LITERALS = 47, /* engine-private bytes */
    KVC_SECTION_INDEX = 48,
    KVC_SECTION_PROFILE = 49, /* a profile file */
    KVC_SECTION_SIGNATURE = 51
};
/* Returns the type's name in FORMAT.md's words, or NULL when it is unknown. */
const char *kvc_section_name(unsigned type);

/* Byte coders: how the bytes of a section are stored. The numbers are stored in .kvc files. */
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
    uint8_t type;        /* enum kvc_section_type */
    uint8_t coder;       /* enum kvc_coder */
    uint8_t stage;       /* position of its stage in the pipeline, or KVC_NO_STAGE */
    uint8_t index;       /* number among the stage's sections of this type */
    uint8_t optional;    /* 1: a reader that does not know its type skips it */
    uint64_t raw_size;   /* bytes after undoing the byte coder */
    uint32_t size;       /* stored bytes */
    const uint8_t *data; /* the stored bytes; owned by the list or by the mapped file */
};

/* --- writing --- */

/* A growing list of sections. Their bytes are in one buffer; kvc_sections_seal() sets .data. */
struct kvc_sections {
    struct kvc_section *section;
    size_t count, capacity;
    uint8_t *bytes;
    size_t used, room;
    /* kept from section to section: making one costs more than a small section */
    struct ZSTD_CCtx_s *zstd;
};

void kvc_sections_init(struct kvc_sections *list);
void kvc_sections_free(struct kvc_sections *list);
/* Removes the sections and keeps the memory. */
void kvc_sections_clear(struct kvc_sections *list);

/* Appends `raw` (n bytes, fewer than 2^32), coded by zstd at `level` when that is smaller, else
 * stored; level 0 always stores. Returns 0, or -1 when out of memory. */
int kvc_sections_add(struct kvc_sections *list, uint8_t type, uint8_t stage, uint8_t index,
                     const uint8_t *raw, size_t n, int level, struct kvc_error *e);
/* Sets every .data pointer; to be called after the last add. */
void kvc_sections_seal(struct kvc_sections *list);

/* --- reading --- */

/* Undoes the byte coder into dst, which has room for exactly `n` bytes. Refuses a section whose raw
 * size is not n, whose frame is damaged, or whose coder is unknown. */
int kvc_section_decode(const struct kvc_section *s, uint8_t *dst, size_t n, struct kvc_error *e);

/* Takes the next section of a stage and moves *next past it. Returns NULL when it is `end`, or has
 * another type or index. */
const struct kvc_section *kvc_section_take(const struct kvc_section **next,
                                           const struct kvc_section *end, unsigned type,
                                           unsigned index, struct kvc_error *e);
/* The same for a section that must be stored without a coder: its bytes are s->data, s->size of
 * them. */
const struct kvc_section *kvc_section_take_stored(const struct kvc_section **next,
                                                  const struct kvc_section *end, unsigned type,
                                                  unsigned index, struct kvc_error *e);
/* Returns the only section, which must have this type, index 0, and be stored without a coder; NULL
 * when there is another, or none. */
const struct kvc_section *kvc_section_only(const struct kvc_section *sections, size_t n,
                                           unsigned type, struct kvc_error *e);
/* Returns 0 when a stage has taken all its sections. */
int kvc_section_none_left(const struct kvc_section *next, const struct kvc_section *end,
                          struct kvc_error *e);
/* Returns the n bytes of a section: in place when they are stored, else decoded into `room`; NULL
 * when it is damaged. */
const uint8_t *kvc_section_bytes(const struct kvc_section *s, uint8_t *room, size_t n,
                                 struct kvc_error *e);

#endif
