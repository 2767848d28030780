/* records.h: a container's records, shared by its reader, decoder and checker. Not for users
 * (container.h).
 *
 * Everything except blocks is read and checked on opening. A block's hash is checked each time it
 * is decoded. */
#ifndef KVC_RECORDS_H
#define KVC_RECORDS_H

#include "codecs/program.h"
#include "codecs/recipe.h"
#include "formats/cache/cache.h"
#include "formats/container/container.h"
#include "formats/model/rebuild_source.h"

#include <pthread.h>
#include <stdatomic.h>

struct kvc_decoded;
struct kvc_survey;

struct kvc_record {
    uint64_t offset;
    uint64_t size;
    uint32_t subject, number;
    uint32_t check; /* low 32 bits of its check as the index says, if has_check */
    uint8_t type;
    uint8_t has_check;
    /* 1: in a damaged file without an index, its header or its bytes are damaged */
    uint8_t doubtful;
};

/* The impl of a container's cache: see kvc_records_of(). */
struct kvc_records {
    const struct kvc_input *in;
    uint64_t size; /* bytes of the file; of a damaged file, bytes up to the end of its records */
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
    /* By tensor, how the engine rotated its rows; half 0: it did not. Angles of the profile are
     * NULL until it is found. */
    struct kvc_rope_facts *turn;
    double **angles; /* n_angles arrays that the file has itself */
    uint32_t n_angles;
    /* by tensor, as coded: the cache's own may since have got another number of heads */
    struct kvc_shape *shape;
    uint64_t *before; /* by tensor: values of a row of the tensors before it in its part */
    struct kvc_projections projections; /* for rows that are rebuilt */
    struct kvc_decoded *rows;           /* blocks of which a part was read; kind: see blocks.c */
    struct kvc_decoded *inputs;         /* of predictions */
    _Atomic int predicts;               /* 1: a section INPUTS was read */
    /* of K, as coded: the caller may have set another in the metadata */
    enum kvc_pairing pairing;
    struct kvc_profile *profile; /* with which the file was packed; NULL: not found */
    struct kvc_error no_profile; /* why it was not found */
    /* number of the record that contains the profile; 0: none */
    uint64_t profile_record;
    uint64_t *chunk; /* record numbers of the SOURCE chunks */
    uint64_t n_chunks;
    pthread_mutex_t literal_lock; /* of the three below */
    uint8_t *literal;             /* the literal bytes read last: a source has many short ones */
    size_t literal_size;
    uint64_t literal_chunk; /* whose they are */
    uint64_t most_cells;    /* maximum that the blocks can hold: TABLE must not claim more */
    /* of a damaged file, in which block_record may be KVC_NOWHERE; else NULL */
    struct kvc_survey *survey;
    uint64_t max_memory; /* bytes that decoding may take */
    int verify;          /* 1: decoded rows are compared with their digests */
    /* 1: the bytes are a caller's memory, and the hashes of all records were found right */
    _Atomic int is_hashed;
    /* 1: the namespace in the metadata does not follow from the facts of the file */
    int other_space;
    uint8_t *lost; /* of a damaged file, by part: 1: its cells are lost */
};

/* Returns the records of a cache that kvc_container_open() made; NULL for any other cache. */
struct kvc_records *kvc_records_of(const struct kvc_cache *c);
static inline const struct kvc_pipeline *kvc_records_pipeline(const struct kvc_records *k,
                                                              uint32_t tensor) {
    return &k->pipeline[k->pipeline_of[tensor]];
}
extern const char kvc_records_kind[]; /* `kind` of such a cache */
/* Fails, because a cache is not a container's. */
int kvc_records_none(struct kvc_error *e);
/* Maximum cells and blocks of a damaged file, whose blocks do not bound their number: 32 MB of
 * memory each. */
#define KVC_SALVAGE_CELLS (UINT64_C(1) << 22)
#define KVC_SALVAGE_BLOCKS (UINT64_C(1) << 22)

/* Fails with what is wrong in a record at byte `offset`. Callers add the record by
 * kvc_record_context(). */
int kvc_record_damaged(struct kvc_error *e, uint64_t offset, const char *what);
/* Puts "record 12 (LABEL): " before the message in *e; returns -1. */
int kvc_record_context(struct kvc_error *e, uint64_t record, const char *label);
#define kvc_record_context(...) kvc_failed(kvc_record_context(__VA_ARGS__))
/* Notes in *e that section `number` of the record is wrong; returns -1. */
int kvc_record_section(struct kvc_error *e, unsigned number);
#define kvc_record_section(...) kvc_failed(kvc_record_section(__VA_ARGS__))

/* Checks header, footer and their place; *index is the offset of the INDEX record, `id` the content
 * id of the footer. */
int kvc_records_frame(const struct kvc_input *in, uint64_t *index, uint8_t id[KVC_CONTENT_ID],
                      struct kvc_error *e);
/* Notes the shapes of the tensors as they are coded. */
int kvc_records_take_shapes(struct kvc_records *k, const struct kvc_cache *c, struct kvc_error *e);
/* The two halves of kvc_records_frame(). The file must be large enough for header and footer. */
int kvc_records_header(const struct kvc_input *in, struct kvc_error *e);
int kvc_records_footer(const struct kvc_input *in, uint64_t *index, uint8_t id[KVC_CONTENT_ID],
                       struct kvc_error *e);
/* Lays out the records that the INDEX record at `offset` lists. */
int kvc_records_index(struct kvc_records *k, uint64_t offset, struct kvc_error *e);
/* Returns 1 if readers must know a record of this type, which they do. */
int kvc_record_is_critical(unsigned type);

/* Lists the sections of record i, after a check of its header against the index, its hash, its
 * directory and its padding. The record stays pinned, and the sections' bytes readable, until
 * kvc_records_release(), which also frees the list (NULL for PAD and unknown types). */
int kvc_records_sections(const struct kvc_records *k, uint64_t i, struct kvc_section **list,
                         unsigned *n, struct kvc_error *e);
void kvc_records_release(const struct kvc_records *k, uint64_t i, struct kvc_section *list);
/* The same for a copy of the record's bytes; the caller frees the list. */
int kvc_records_sections_of(const struct kvc_records *k, uint64_t i, const uint8_t *bytes,
                            struct kvc_section **list, unsigned *n, struct kvc_error *e);
/* Decodes one of the container's own sections, whose decoded size is bounded by its stored size.
 * The caller frees *bytes. */
int kvc_records_decode(const struct kvc_section *s, uint8_t **bytes, size_t *n,
                       struct kvc_error *e);
/* Decodes the only section, of type `section`, of record i. */
int kvc_records_single(const struct kvc_records *k, uint64_t i, uint8_t section, uint8_t **bytes,
                       size_t *n, struct kvc_error *e);

/* Steps of opening a whole file (reader.c) or a damaged one (salvage.c): an empty container, then
 * single records. */
struct kvc_cache *kvc_reader_new(const struct kvc_input *in, struct kvc_error *e);
int kvc_reader_table(struct kvc_cache *c, struct kvc_records *k, const uint8_t *p, size_t n,
                     struct kvc_error *e);
int kvc_reader_cells(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
int kvc_reader_tokens(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
int kvc_reader_source(struct kvc_cache *c, struct kvc_records *k, uint64_t i, struct kvc_error *e);
/* Fills first_block and first_side, and sets *due to the number of blocks of all tensors. No block
 * has a record yet. */
int kvc_reader_count_blocks(struct kvc_cache *c, struct kvc_records *k, uint64_t *due,
                            struct kvc_error *e);

/* Writes "layer 3 K, tokens 256:512": the rows of blocks [block, end), at least one block. */
void kvc_blocks_label(const struct kvc_cache *c, uint32_t tensor, uint64_t block, uint64_t end,
                      char *text, size_t size);
/* Puts "record 12 (layer 3 K, tokens 256:512): " before the message in *e; returns -1. */
int kvc_blocks_context(const struct kvc_cache *c, struct kvc_error *e, uint32_t tensor,
                       uint64_t block);
#define kvc_blocks_context(...) kvc_failed(kvc_blocks_context(__VA_ARGS__))
/* Returns 1 if the positions of a tensor's rows are lost. For caches of kvc_salvage_open() whose
 * TABLE is whole. */
int kvc_survey_lost(const struct kvc_cache *c, uint32_t tensor);
/* Checks all of record i: its hash, its padding, and the digest of the decoded values of a BLOCK.
 */
int kvc_blocks_check(const struct kvc_cache *c, uint64_t i, struct kvc_error *e);
/* Checks records i and i + 1 as kvc_blocks_check() does, at once. Returns 0, or 1 where each is to
 * be checked alone: that is no faster, or one is damaged. */
int kvc_blocks_check_two(const struct kvc_cache *c, uint64_t i);

/* kvc_cache.read of a cache that came from a container. */
int kvc_blocks_read(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                    uint8_t *dst, struct kvc_error *e);

/* --- the memory that decoding may take; FORMAT.md bounds a block by 2^30 bytes, and this bound is
 * the reader's own --- */

/* A thread that decodes is taken to hold eight blocks: of its own, of its stages, of its caller,
 * and those that wait to be written. Three quarters of the memory are for threads, the rest is for
 * blocks and inputs that are kept. */

/* kvc_cache.threads of a container: as many of the threads as find memory, at least 1. */
unsigned kvc_decode_memory_threads(const struct kvc_cache *c, unsigned threads);
/* Returns the bytes for blocks and inputs that are kept, of each. */
uint64_t kvc_decode_memory_kept(const struct kvc_cache *c);

#endif
