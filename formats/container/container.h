/* container.h: reading and writing .kvc files as FORMAT.md lays them out. Not for engine formats. */
#ifndef KVC_CONTAINER_H
#define KVC_CONTAINER_H

#include "codecs/program.h"
#include "codecs/recipe.h"
#include "formats/cache/cache.h"
#include "formats/model/profile_fit.h"
#include "formats/io/input.h"
#include "formats/model/profile.h"
#include "formats/io/sink.h"
#include "formats/model/weights.h"

#define KVC_FORMAT_VERSION 0

enum kvc_record_type {
    KVC_RECORD_META = 1,
    KVC_RECORD_TABLE = 2,
    KVC_RECORD_CELLS = 3,
    KVC_RECORD_TOKENS = 4,
    KVC_RECORD_SOURCE = 5,  /* extents and literals: the engine-private bytes */
    KVC_RECORD_SIDE = 6,    /* side data of a tensor's segment */
    KVC_RECORD_BLOCK = 7,   /* one block of one tensor */
    KVC_RECORD_PROFILE = 8,
    KVC_RECORD_PAD = 9,
    KVC_RECORD_INDEX = 10
};
const char *kvc_record_name(unsigned type);

struct kvc_pack_options {
    const struct kvc_recipe *recipe; /* NULL: the default */
    unsigned threads;   /* 0: one per core */
    int no_verify;      /* skip decoding what was encoded */
    unsigned align;     /* bytes: 16 (also 0), or a power of two up to 1 MiB: extents start on multiples of it */
    /* Queries for stages that ask attention: binary32, their channels paired as K's (view.h); NULL: the cache's own. */
    const struct kvc_cache *queries;
    const struct kvc_weights *weights; /* for stages that rebuild rows from hidden states; NULL: none */
    struct kvc_profile *profile;       /* for stages that take a profile; NULL: none */
    const struct kvc_fit *fit;         /* how well it fits (kvc_profile_settle); NULL: kvc_container_write() measures it itself,
                                        * and refuses a misfit */
    int embed_profile;                 /* carry it inside */
    int measure;        /* fill in the report's errors */
    int no_tokens;      /* leave token ids out, and the source's private bytes, which hold them (prefix keys stay) */
    const struct kvc_cache *keys; /* whose prefix keys to keep where no token ids are left to make them from; NULL: the cache's */
    void (*progress)(void *state, uint64_t done, uint64_t total); /* bytes of tensor data; may be NULL */
    void *progress_state;
};

struct kvc_pack_report {
    uint64_t tensor_bytes; /* of the tensors, decoded */
    uint64_t stored_bytes; /* size of the .kvc */
    uint64_t same_rows;    /* rows stored as references */
    uint64_t records, sections;
    int lossless;
    int uses_profile;      /* reading takes the options' profile */
    double error[2];       /* of K and of V, where measured: Frobenius norms of difference and source, their ratio; lossy rows */
};

/* Writes cache as a .kvc. The cache is read from several threads. `report` may be NULL. */
int kvc_container_write(const struct kvc_cache *cache, const struct kvc_pack_options *options,
                        struct kvc_sink *out, struct kvc_pack_report *report, struct kvc_error *e);

/* Opens a .kvc: checks header, footer, index and all records but the blocks', which are checked as they are read.
 * `in` must outlive the cache. */
struct kvc_cache *kvc_container_open(const struct kvc_input *in, struct kvc_error *e);
/* 1 when `c` came from kvc_container_open(). The functions below are for such caches. Given any other, as that of an engine's
 * file or a view of a container, those that take an error fail, setters do nothing, and the others return 0, NULL or "". */
int kvc_cache_is_container(const struct kvc_cache *c);

/* Gives it the model's weights, which must outlive it: for files whose K and V are rebuilt from hidden states. */
void kvc_container_set_weights(struct kvc_cache *c, const struct kvc_weights *weights);
/* Looks for the profile that a file names; NULL: nowhere but inside the file. A profile that the file carries inside comes
 * first. A missing profile is an error only once rows that need it are read. */
void kvc_container_set_profile(struct kvc_cache *c, const struct kvc_profile_places *places);
/* The profile that it was packed with, where that has been found; NULL otherwise. *embedded: it is carried inside. */
const struct kvc_profile *kvc_container_profile(const struct kvc_cache *c, int *embedded);
/* What the transform codec made of a tensor, in words: "K before RoPE, the profile's basis"; "" where it is not coded so. */
int kvc_container_transform(const struct kvc_cache *c, uint32_t tensor, char *text, size_t size, struct kvc_error *e);

/* What the file's header says: the version whose features it uses, the oldest reader that understands them, and the
 * alignment of its extents in bytes. */
struct kvc_container_header {
    unsigned write_version, read_version, align;
};
struct kvc_container_header kvc_container_header(const struct kvc_cache *c);

/* One record as `kvc-dump --sections` shows it. */
struct kvc_record_info {
    unsigned type;
    uint32_t tensor; /* of a BLOCK or SIDE record, else KVC_NONE */
    uint32_t block;
    uint64_t offset, size; /* in the file, header included */
    uint64_t rows;         /* rows of a BLOCK */
    uint64_t check, digest; /* digest: 0 for records without decoded values */
    unsigned n_sections;
};
uint64_t kvc_container_records(const struct kvc_cache *c);
/* Reads and checks the header and directory of record i, which must be below kvc_container_records(). `section` (may be NULL)
 * gets up to n_max entries. */
int kvc_container_record(const struct kvc_cache *c, uint64_t i, struct kvc_record_info *info,
                         struct kvc_section *section, unsigned n_max, struct kvc_error *e);
/* The canonical pipeline text of a tensor ("zstd"). */
const char *kvc_container_pipeline(const struct kvc_cache *c, uint32_t tensor);
/* 1 when every tensor's stages are lossless. */
int kvc_container_lossless(const struct kvc_cache *c);
/* Sum of the stored bytes of a tensor's records. */
uint64_t kvc_container_stored(const struct kvc_cache *c, uint32_t tensor);

/* --- blocks, for those who decode them elsewhere than on the CPU --- */

/* Where a block is stored. */
struct kvc_container_block {
    uint64_t record;       /* its number */
    uint64_t offset, size; /* bytes of the record in the file, header included */
};
/* All blocks of all tensors. */
uint64_t kvc_container_blocks(const struct kvc_cache *c);
struct kvc_container_block kvc_container_block(const struct kvc_cache *c, uint32_t tensor, uint64_t block);
/* The digest of decoded values that a block's record, whose bytes these are, has in its header. */
uint64_t kvc_container_block_digest(const uint8_t *record);
/* A tensor's shape as it was coded: the cache may have learnt since then how many heads a row has. */
const struct kvc_shape *kvc_container_coded_shape(const struct kvc_cache *c, uint32_t tensor);
/* Makes the program by which a device decodes a block (program.h). `bytes` is its record, which is checked here. Returns 0; 1
 * where a device cannot decode it, as a stage is not made for that or rows are references; -1 and *e when the record is damaged
 * or needs what is not at hand. */
int kvc_container_lower(const struct kvc_cache *c, uint32_t tensor, uint64_t block, const uint8_t *bytes, struct kvc_program *p,
                        struct kvc_error *e);
/* Fails with KVC_ERR_DAMAGED: `what` is wrong in a block. The message names its record, tensor and byte offset. */
int kvc_container_block_failed(const struct kvc_cache *c, uint32_t tensor, uint64_t block, const char *what, struct kvc_error *e);

/* Reads the whole file: every hash, every padding byte, every digest. `threads` 0: one per core. */
int kvc_container_check(const struct kvc_cache *c, unsigned threads, struct kvc_error *e);

/* Checks the records that reading every tensor and every literal does not touch: padding and skipped records. So a
 * whole read followed by this has noticed every flipped bit. */
int kvc_container_check_rest(const struct kvc_cache *c, struct kvc_error *e);

#endif
