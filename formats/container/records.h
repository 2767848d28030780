/* records.h: a container's records as its reader, decoder and checker share them. Not for users (container.h).
 *
 * Everything but the blocks is read and checked on opening; a block's hash is checked whenever it is decoded. */
#ifndef KVC_RECORDS_H
#define KVC_RECORDS_H

#include "codecs/program.h"
#include "codecs/recipe.h"
#include "formats/cache/cache.h"
#include "formats/container/container.h"
#include "formats/model/rebuild_source.h"

struct kvc_survey;

struct kvc_record {
    uint64_t offset;
    uint64_t size;
    uint32_t subject, number;
    uint8_t type;
    uint8_t doubtful; /* of a damaged file without an index: its header is damaged, or its bytes are */
};

/* What kvc_cache.impl of a container points at: see kvc_records_of(). */
struct kvc_records {
    const struct kvc_input *in;
    uint64_t size; /* bytes of the file; of a damaged one, up to where its records end */
    struct kvc_container_header header;
    struct kvc_record *record;
    uint64_t n_records, n_blocks; /* records in the file; BLOCK records among them */
    uint64_t *first_block;        /* by tensor: index into block_record */
    uint64_t *block_record;       /* record number of each block, tensor after tensor */
    uint64_t *first_side;         /* by tensor: index into side_record */
    uint64_t *side_record;        /* record number of each segment's side data; 0: it has none */
    struct kvc_pipeline *pipeline;
    char **pipeline_text;
    uint32_t n_pipelines;
    uint16_t *pipeline_of; /* by tensor */
    struct kvc_shape *shape; /* by tensor, as coded: the cache's own may have learnt how many heads a row is */
    struct kvc_projections projections; /* for rows that are rebuilt */
    enum kvc_pairing pairing;           /* of K, as coded: the user may have told the cache another */
    struct kvc_profile *profile;        /* that the file was packed with; NULL: not at hand */
    struct kvc_error no_profile;        /* why it is not */
    uint64_t profile_record;            /* that carries it; 0: none */
    uint64_t *chunk; /* record numbers of the SOURCE chunks */
    uint64_t n_chunks;
    uint64_t most_cells;       /* that the blocks can hold: the TABLE may not claim more */
    struct kvc_survey *survey; /* of a file opened though it is damaged: block_record may be KVC_NOWHERE then; else NULL */
    uint8_t *lost;             /* likewise, by part: nobody knows its cells */
};

/* The records of a cache that kvc_container_open() made; NULL of any other cache. */
struct kvc_records *kvc_records_of(const struct kvc_cache *c);
extern const char kvc_records_kind[]; /* `kind` of such a cache */
/* Fails, as the functions of container.h do of any other cache. */
int kvc_records_none(struct kvc_error *e);
/* Most cells and blocks of a damaged file, whose blocks no longer say how many there can be: 32 MB each to keep track of. */
#define KVC_SALVAGE_CELLS (UINT64_C(1) << 22)
#define KVC_SALVAGE_BLOCKS (UINT64_C(1) << 22)

/* Fills *e with what is wrong in a record at byte `offset`; callers put its number and content before it. */
int kvc_record_damaged(struct kvc_error *e, uint64_t offset, const char *what);
/* Puts "record 12 (LABEL): " before the message in *e; returns -1. */
int kvc_record_context(struct kvc_error *e, uint64_t record, const char *label);
#define kvc_record_context(...) kvc_failed(kvc_record_context(__VA_ARGS__))
/* Notes in *e that section `number` of the record is wrong; returns -1. */
int kvc_record_section(struct kvc_error *e, unsigned number);
#define kvc_record_section(...) kvc_failed(kvc_record_section(__VA_ARGS__))

/* Checks header, footer and their place; *index is the offset of the INDEX record. */
int kvc_records_frame(const struct kvc_input *in, uint64_t *index, struct kvc_error *e);
/* The two halves of that; the file has room for both. */
int kvc_records_header(const struct kvc_input *in, struct kvc_error *e);
int kvc_records_footer(const struct kvc_input *in, uint64_t *index, struct kvc_error *e);
/* Lays out the records that the INDEX record at `offset` lists. */
int kvc_records_index(struct kvc_records *k, uint64_t offset, struct kvc_error *e);

/* Sections of record i after checking its header against the index, its hash, its directory and its padding. The record stays
 * pinned, and its sections' bytes readable, until kvc_records_release(), which frees the list too (NULL for PAD). */
int kvc_records_sections(const struct kvc_records *k, uint64_t i, struct kvc_section **list, unsigned *n,
                         struct kvc_error *e);
void kvc_records_release(const struct kvc_records *k, uint64_t i, struct kvc_section *list);
/* The same of a copy of the record's bytes; the caller frees the list. */
int kvc_records_sections_of(const struct kvc_records *k, uint64_t i, const uint8_t *bytes, struct kvc_section **list, unsigned *n,
                            struct kvc_error *e);
/* Decodes a container section whose size only the directory tells; what it claims is bounded by what is stored. The
 * caller frees *bytes. */
int kvc_records_decode(const struct kvc_section *s, uint8_t **bytes, size_t *n, struct kvc_error *e);
/* The one section of type `section` that record i consists of, decoded. */
int kvc_records_single(const struct kvc_records *k, uint64_t i, uint8_t section, uint8_t **bytes, size_t *n,
                       struct kvc_error *e);

/* Steps of opening, for a whole file (reader.c) and a damaged one (salvage.c): an empty container; what one record says. */
struct kvc_cache *kvc_reader_new(const struct kvc_input *in, struct kvc_error *e);
int kvc_reader_table(struct kvc_cache *c, struct kvc_records *k, const uint8_t *p, size_t n, struct kvc_error *e);
int kvc_reader_cells(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
int kvc_reader_tokens(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
int kvc_reader_source(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
/* Where the blocks and the side data of each tensor begin among all; *due blocks are due, none has a record yet. */
int kvc_reader_count_blocks(struct kvc_cache *c, struct kvc_records *k, uint64_t *due, struct kvc_error *e);

/* "layer 3 K, tokens 256-511": the rows of blocks [block, end), at least one. */
void kvc_blocks_label(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint64_t end, char *text, size_t size);
/* 1 when nobody knows any more at which positions a tensor's rows stand. For caches of kvc_salvage_open() whose TABLE is whole. */
int kvc_survey_lost(const struct kvc_cache *c, uint32_t tensor);
/* Checks all of record i: its hash, its padding, of a BLOCK the digest of what it decodes to. */
int kvc_blocks_check(const struct kvc_cache *c, uint64_t i, struct kvc_error *e);

/* kvc_cache.read and .read_literal of a cache that came from a container. */
int kvc_blocks_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                    struct kvc_error *e);
int kvc_blocks_read_literal(const struct kvc_cache *c, uint64_t offset, uint64_t n, uint8_t *dst, struct kvc_error *e);

#endif
