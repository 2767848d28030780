/* container.h: reads, writes, describes and checks .kvc files. Spec: FORMAT.md. Not for engine
 * formats, or for single blocks on devices (device_blocks.h). */
#ifndef KVC_CONTAINER_H
#define KVC_CONTAINER_H

#include "codecs/recipe.h"
#include "formats/cache/cache.h"
#include "formats/model/profile_fit.h"
#include "formats/io/input.h"
#include "formats/model/profile.h"
#include "formats/io/sink.h"
#include "formats/model/weights.h"

#define KVC_FORMAT_VERSION 1
#define KVC_CONTENT_ID 32 /* bytes */

enum kvc_record_type {
    KVC_RECORD_META = 1,
    KVC_RECORD_TABLE = 2,
    KVC_RECORD_CELLS = 3,
    KVC_RECORD_TOKENS = 4,
    KVC_RECORD_SOURCE = 5, /* extents and literals: the engine-private bytes */
    KVC_RECORD_SIDE = 6,   /* side data of a tensor's segment */
    KVC_RECORD_BLOCK = 7,  /* one block of one tensor */
    KVC_RECORD_PROFILE = 8,
    KVC_RECORD_PAD = 9,
    KVC_RECORD_INDEX = 10,
    KVC_RECORD_SIGNATURE = 11,
    KVC_RECORD_SEALED = 12 /* reserved for encrypted records */
};
const char *kvc_record_name(unsigned type);

struct kvc_base;        /* base.h */
struct kvc_block_coder; /* device_blocks.h */

struct kvc_pack_options {
    const struct kvc_recipe *recipe; /* NULL: the default */
    unsigned threads;                /* 0: one per core */
    int no_verify;                   /* skip decoding what was encoded */
    /* bytes: a power of two from 16 (also 0) to 1 MiB; runs of BLOCK records begin at multiples of
     * it */
    unsigned align;
    /* Queries for stages that compute attention: binary32, channels paired as K's (view.h); NULL:
     * the cache's own. */
    const struct kvc_cache *queries;
    /* for stages that rebuild rows from hidden states; NULL: none */
    const struct kvc_weights *weights;
    struct kvc_profile *profile; /* for stages that take a profile; NULL: none */
    const struct kvc_fit *fit;   /* its fit to the cache (kvc_profile_settle); NULL: unknown */
    int embed_profile;           /* store the profile in the file */
    int measure;                 /* fill in the report's errors */
    /* store the namespace (prefix.space), as is done where the cache has one */
    int space;
    /* leave out token ids, and the source's private bytes, which contain them (prefix keys stay) */
    int no_tokens;
    int no_keys; /* leave out prefix keys, prefix.* but for extras of token ids, shard.set */
    /* cache whose prefix keys are kept if `cache` has no token ids; NULL: the cache itself */
    const struct kvc_cache *keys;
    /* A container whose rows are the first rows of the cache: its blocks are copied where they are
     * coded alone and by the same pipeline, instead of coded again. Refused for lossy tensors of
     * which more than the last block cannot be copied. NULL: none. */
    const struct kvc_cache *reuse;
    /* A base that was compared with the cache (base.h), by whose recipe it is packed; rows that
     * cannot stay as they are there are taken off. NULL: none. */
    struct kvc_base *base;
    /* bytes of tensor data; may be NULL */
    void (*progress)(void *state, uint64_t done, uint64_t total);
    void *progress_state;
    /* Encodes the blocks; what it encodes is neither verified nor measured. NULL: the CPU encodes.
     */
    const struct kvc_block_coder *coder;
};

struct kvc_pack_report {
    uint64_t tensor_bytes; /* of the tensors, decoded */
    uint64_t stored_bytes; /* size of the .kvc */
    uint64_t same_rows;    /* rows stored as references */
    uint64_t records, sections;
    int lossless;
    int uses_profile; /* 1: reading the file needs the options' profile */
    /* of K and of V, if measured: Frobenius norm of error over that of source, of lossy rows */
    double error[2];
};

/* Writes cache as a .kvc. The cache is read from several threads. `report` may be NULL. */
int kvc_container_write(const struct kvc_cache *cache, const struct kvc_pack_options *options,
                        struct kvc_sink *out, struct kvc_pack_report *report, struct kvc_error *e);

/* Opens a .kvc. Checks header, footer, index and all records except blocks, which are checked when
 * they are read. `in` must outlive the cache. */
struct kvc_cache *kvc_container_open(const struct kvc_input *in, struct kvc_error *e);
/* Returns 1 if `c` came from kvc_container_open(). The functions below are for such caches. For
 * other caches (of an engine's file, or a view of a container) functions that take an error fail,
 * setters do nothing, and the rest return 0, NULL or "". */
int kvc_cache_is_container(const struct kvc_cache *c);

/* Sets the model's weights, which must outlive the cache. For files whose K and V are rebuilt from
 * hidden states. */
void kvc_container_set_weights(struct kvc_cache *c, const struct kvc_weights *weights);
/* Returns a copy of the struct of an open container, whose rows are decoded without being compared
 * with their digests. It lives as long as *c, and is not freed. */
struct kvc_cache kvc_container_unverified(const struct kvc_cache *c);
/* Sets the bytes of memory that decoding may take (records.h); 0: the default, which is set
 * at first. Before rows are read. */
void kvc_container_set_memory(struct kvc_cache *c, uint64_t bytes);
/* Refuses to hold `bytes` at a time, beside decoding, where they are more than that memory. */
int kvc_container_may_hold(const struct kvc_cache *c, uint64_t bytes, struct kvc_error *e);
/* Searches for the profile that a file names: in the file, then in `places`, which may be NULL. A
 * missing profile is an error only when rows that need it are read. */
void kvc_container_set_profile(struct kvc_cache *c, const struct kvc_profile_places *places);
/* Returns the profile that the file was packed with, or NULL if it was not found. *embedded: 1 if
 * the file contains it. */
struct kvc_profile *kvc_container_profile(const struct kvc_cache *c, int *embedded);
/* Describes the transform of a tensor in words: "K before RoPE, the profile's basis"; "" if the
 * tensor has none. */
int kvc_container_transform(const struct kvc_cache *c, uint32_t tensor, char *text, size_t size,
                            struct kvc_error *e);

/* The file's header: the format version whose features the file uses, the oldest version of readers
 * that understand them, and the alignment in bytes of runs of BLOCK records. */
struct kvc_container_header {
    unsigned write_version, read_version, align;
    uint32_t writers;                   /* features that only writers need to know */
    uint8_t content_id[KVC_CONTENT_ID]; /* of the footer; zeros where it is damaged */
};
struct kvc_container_header kvc_container_header(const struct kvc_cache *c);

/* One record, for tables of records. */
struct kvc_record_info {
    unsigned type;
    uint32_t tensor; /* of a BLOCK or SIDE record, else KVC_NONE */
    uint32_t block;
    uint64_t offset, size;  /* in the file, header included */
    uint64_t rows;          /* rows of a BLOCK */
    uint64_t check, digest; /* digest: 0 for records without decoded values */
    unsigned n_sections;
};
uint64_t kvc_container_records(const struct kvc_cache *c);
/* Reads and checks the header and directory of record i, which must be below
 * kvc_container_records(). `section` (may be NULL) gets up to n_max entries. */
int kvc_container_record(const struct kvc_cache *c, uint64_t i, struct kvc_record_info *info,
                         struct kvc_section *section, unsigned n_max, struct kvc_error *e);
/* Returns the canonical pipeline text of a tensor ("zstd"). */
const char *kvc_container_pipeline(const struct kvc_cache *c, uint32_t tensor);
/* Returns 1 if every tensor's stages are lossless. */
int kvc_container_lossless(const struct kvc_cache *c);
/* Returns the stored bytes of a tensor's records. */
uint64_t kvc_container_stored(const struct kvc_cache *c, uint32_t tensor);

/* Decodes n sorted rows of a tensor, from row `first` on, to their places in a layout of tokens in
 * sorted order; stages that can put them there without a copy. `rows` has room for n rows.
 * places->first is the token of row `first`. Rows of a damaged block may be written before it is
 * refused. */
int kvc_container_place(const struct kvc_cache *c, uint32_t tensor, uint64_t first, uint64_t n,
                        const struct kvc_row_places *places, uint8_t *rows, struct kvc_error *e);

/* Reads the whole file and checks every hash, padding byte and digest. `threads` 0: one per core.
 */
int kvc_container_check(const struct kvc_cache *c, unsigned threads, struct kvc_error *e);
/* Does the same, and calls progress() with stored bytes of checked records, on the calling thread.
 * NULL: it is not called. */
int kvc_container_check_shown(const struct kvc_cache *c, unsigned threads,
                              void (*progress)(void *state, uint64_t done, uint64_t total),
                              void *state, struct kvc_error *e);

/* Checks every record's hash, without decoding anything. Records in a caller's memory, which does
 * not change, are not hashed again when they are read. */
int kvc_container_check_hashes(const struct kvc_cache *c, struct kvc_error *e);

/* Checks the records that are not read with tensors and literals: padding and skipped records.
 * Reading everything and then checking the rest detects every flipped bit. */
int kvc_container_check_rest(const struct kvc_cache *c, struct kvc_error *e);

#endif
