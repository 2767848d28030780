/* kvc.h: libkvc's public interface: open cache files of any supported format, read their values,
 * pack and unpack.
 *
 * The library never prints, exits or aborts. Functions that can fail take a struct kvc_error (may
 * be NULL) and return NULL or -1 with it filled. A call changes no handle that it takes as const:
 * several threads may read, select, compare, pack and unpack one file at once, also with different
 * options. A thread that closes a handle must be the only one that uses it. Texts have numbers with
 * a point, in whatever locale the program is.
 *
 *   struct kvc_error *e = kvc_error_new();
 *   struct kvc_file *f = kvc_file_open("prefix.kvc", NULL, e);
 *   if (!f) fprintf(stderr, "%s\n", kvc_error_message(e));
 *
 * Structs of options and results begin with their size, which the caller sets: {.size = sizeof
 * options}. Later versions add fields at the end. Programs that were built with an earlier kvc.h
 * keep working: fields that they do not know are zero. A library that is older than the program
 * refuses fields that it does not know, where they are not zero. */
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_API __attribute__((visibility("default")))

/* --- version --- */

#define KVC_VERSION_MAJOR 0
#define KVC_VERSION_MINOR 1
#define KVC_VERSION_PATCH 0
KVC_API const char *kvc_version(void); /* of the library: "0.1.0" */
/* the container version this library writes and the newest it reads */
KVC_API unsigned kvc_version_of_format(void);

/* --- errors --- */

struct kvc_error;
/* NULL when out of memory; kvc_error_free(NULL) is legal */
KVC_API struct kvc_error *kvc_error_new(void);
KVC_API void kvc_error_free(struct kvc_error *e);
/* Stable numbers: 0 none, 10 usage, 20 memory, 21 input/output, 30 unknown format, 31 damaged, 32
 * unsupported, 33 not sliceable (a layer lacks these tokens: only the whole cache can be had), 40
 * another model, 50 verification failed. */
KVC_API int kvc_error_code(const struct kvc_error *e);
/* 0 retry later, 1 this item failed, 2 nothing more can be had from the file. */
KVC_API int kvc_error_severity(const struct kvc_error *e);
/* Byte offset in the input, or UINT64_MAX. */
KVC_API uint64_t kvc_error_offset(const struct kvc_error *e);
/* What the caller has to give for the call to succeed. Stable numbers: 0 nothing, 1 the number of
 * KV heads, 2 the RoPE pairing of K, 3 the model's weights file for its facts, 4 the same for its
 * values, 5 the profile that a file was packed with, 6 queries, 7 a format to write, 8 the format
 * of the input, 9 which arrays are K and V (`map` of the format), 10 the RoPE pairing to write, 11
 * a step or a target to find it by, 12 K and V that are not of block types (`dequantize`), 13
 * consent
 * (`force_profile`), 14 consent to lose what a format does not hold (`lossy_metadata`), 15, 16, 17
 * to give the file that the message names as the model's weights, as the profile, as the cache, 18
 * to open a file that was cut short for what is whole of it (`damaged`), 19 to open the files of
 * the folder one by one, 20 to allow more memory
 * (`max_memory`), 21 the scales of values of 8 bits (`facts`: scale.k and scale.v). */
KVC_API int kvc_error_need(const struct kvc_error *e);
/* Plain words that name the file, the place and what is wrong; owned by e. */
KVC_API const char *kvc_error_message(const struct kvc_error *e);

/* --- opening and looking --- */

struct kvc_file;
struct kvc_profile;

/* Facts that the caller knows and the file may lack. */
struct kvc_open_options {
    size_t size; /* of this struct */
    /* a name that kvc-pack --from takes, also with options: "raw:dtype=f16,..."; NULL: look */
    const char *format;
    /* "KEY=VALUE" for whatever format it is, NULL-terminated; NULL: none. kvc-pack(1) lists them */
    const char *const *set;
    const char *model; /* path of the model's weights, GGUF or safetensors; NULL: none */
    uint32_t kv_heads; /* number of KV heads; 0: as the file says */
    /* RoPE pairing of K: "halves", "interleaved", "none"; NULL: as the file says */
    const char *pairing;
    /* path of weights that K and V are rebuilt with (recipe project); NULL: none */
    const char *weights;
    /* path of the profile that a .kvc was packed with; NULL: it is looked for by its hash */
    const char *profile;
    /* Where it is looked for if it is not beside the .kvc: folders, separated by colons; NULL:
     * nowhere else. The library does not read the environment for it; the tools pass
     * $KVC_PROFILE_PATH here. */
    const char *profile_folders;
    /* open a .kvc that may be damaged anywhere, and look for all damage (kvc_file_survey) */
    int damaged;
    /* a profile that is open already, for files that were packed with it; NULL: none */
    struct kvc_profile *shared_profile;
    /* Token ids of a file that holds none: one for each of its tokens, or one for each position
     * from 0 on. Refused for a file that has other ids. NULL and 0: none. */
    const int32_t *token_ids;
    uint64_t n_token_ids;
    /* 0: whatever decodes rows of a .kvc (reading, unpacking, comparing and so on, but
     * kvc_file_load() only if asked) compares each block with its digest and fails where they
     * differ; 1: it does not, and takes less time by that of an XXH3 hash of the rows. */
    int no_verify;
    /* Bytes of memory that decoding a .kvc may take beside the caller's, of all threads together;
     * 0: a quarter of the machine's. Fewer threads decode where that is too little for all, and
     * blocks are refused (32) of which one thread could take more. */
    uint64_t max_memory;
    /* "KEY=VALUE": facts of the model and its values (kvc.5) that replace those of the file and of
     * `model`, as "scale.k=0.5", "rope.factor=4"; NULL-terminated; NULL: none. Keys that are no
     * facts are refused. */
    const char *const *facts;
};

/* Opens a file ("-": standard input), a folder or a tar archive. A .kvc of another model than
 * options->model is refused. Files are read, never mapped: a file that is cut short meanwhile is an
 * error, and no SIGBUS. */
KVC_API struct kvc_file *kvc_file_open(const char *path, const struct kvc_open_options *options,
                                       struct kvc_error *e);
/* Opens several files as the members of one cache. */
KVC_API struct kvc_file *kvc_file_open_members(const char *const *paths, size_t n,
                                               const struct kvc_open_options *options,
                                               struct kvc_error *e);
/* Opens bytes, which stay the caller's and must outlive the handle. */
KVC_API struct kvc_file *kvc_file_open_memory(const void *data, size_t size,
                                              const struct kvc_open_options *options,
                                              struct kvc_error *e);

/* A selection of tokens and layers. */
struct kvc_part_options {
    size_t size;           /* of this struct */
    uint64_t first, end;   /* positions [first, end); end 0: to the last */
    const uint8_t *layers; /* layers[i] != 0 keeps layer i < n_layers; NULL: all */
    uint32_t n_layers;
    int no_companions; /* leave out queries and hidden states */
    int whole; /* of a file opened as damaged: narrow the selection to the longest run of positions,
                * from its first one on, that is whole in all its layers; an error where nothing is
                * left */
};
/* Returns a handle of some tokens or layers of f, which must stay open. Nothing is copied. Refuses
 * positions that a sliding-window, recurrent or checkpoint part does not have. Such a handle can be
 * packed, and unpacked into a format that is named. A selection from a multiple of 256 on keeps its
 * prefix keys, and gets a parent (prefix.parent), where those of f are known from position 0 or its
 * parent on. */
KVC_API struct kvc_file *kvc_file_select(const struct kvc_file *f,
                                         const struct kvc_part_options *part, struct kvc_error *e);
/* Returns a handle of n files, which must stay open, as one cache. how "tokens" or NULL: the files
 * are consecutive blocks of one text, in order; positions must follow each other, or else all count
 * from 0 and the order of the files gives them. how "heads": the files hold the KV heads of the
 * tensor-parallel ranks 0, 1, ... for the same tokens. Refuses files of different layers, types,
 * shapes or facts, several streams, recurrent states and checkpoints. Token ids are left out unless
 * all files have them; queries and hidden states unless those of the files match. Nothing is
 * copied. Such a handle can be packed, and unpacked into a format that is named. */
KVC_API struct kvc_file *kvc_file_join(const struct kvc_file *const *files, size_t n,
                                       const char *how, struct kvc_error *e);
KVC_API void kvc_file_close(struct kvc_file *f); /* kvc_file_close(NULL) is legal */

KVC_API const char *kvc_file_format(const struct kvc_file *f); /* "kvc", "llama", ... */
/* Name of metadata entry i, or NULL past the last. */
KVC_API const char *kvc_file_meta_key(const struct kvc_file *f, size_t i);
/* Bytes that the value of a metadata key (kvc.5) takes as text, with the NUL at its end; 0 when the
 * key is absent. */
KVC_API size_t kvc_file_meta_size(const struct kvc_file *f, const char *key);
/* Writes the text into a caller's buffer of `size` bytes and returns the buffer. Returns NULL, and
 * makes the buffer empty, when the key is absent or when the text has no room: nothing is cut off.
 */
KVC_API const char *kvc_file_meta(const struct kvc_file *f, const char *key, char *text,
                                  size_t size);
/* Token ids, in order of position; owned by f; NULL and 0 when the file has none. They begin at
 * position 0, or where the metadata key tokens.first says. */
KVC_API const int32_t *kvc_file_tokens(const struct kvc_file *f, uint64_t *n);
/* Sets *common to the number of leading tokens that the cache shares with n token ids. Exact where
 * the file has token ids; where it has prefix keys only, whole runs of 256 tokens are found. In a
 * cache that begins later (metadata key prefix.parent) the tokens before it count too, if n and the
 * parent show that they are equal and the cache shares a token of its own; else 0. Tokens are
 * shared up to the first that stands for an image or the like (prefix.extras). */
KVC_API int kvc_file_match(const struct kvc_file *f, const int32_t *tokens, uint64_t n,
                           uint64_t *common, struct kvc_error *e);
/* Name and size of member i of the source; NULL past the last, and of a source that is one file.
 * `bytes` may be NULL. */
KVC_API const char *kvc_file_member(const struct kvc_file *f, uint32_t i, uint64_t *bytes);

/* One tensor: K or V of a layer, or a companion. */
struct kvc_tensor_info {
    size_t size;       /* of this struct; set by the caller */
    const char *part;  /* "live", "sliding", "recurrent", "checkpoint", "companion" */
    const char *role;  /* "K", "V", "latent", "R", "S", "queries", "hidden" */
    const char *dtype; /* "bf16", "q8_0", ... */
    uint32_t layer;
    uint32_t stream, checkpoint;
    uint64_t rows, heads, dim; /* one row per cell: heads x dim values */
    uint64_t row_bytes;        /* bytes of a canonical row: head-major, dim contiguous */
};
KVC_API uint32_t kvc_file_tensors(const struct kvc_file *f);
/* -1 when there is no tensor i, or info->size is not set. */
KVC_API int kvc_file_tensor(const struct kvc_file *f, uint32_t i, struct kvc_tensor_info *info);
/* Position of a tensor's row. Rows are sorted by position. `row` must be below info.rows. */
KVC_API int64_t kvc_file_position(const struct kvc_file *f, uint32_t tensor, uint64_t row);
/* Canonical rows [first, first + n) of a tensor into dst, which holds n * row_bytes bytes.
 *
 * A .kvc is decoded in blocks of up to 256 rows: a single row costs its whole block. For each
 * tensor, f keeps the last block that was read in part until it is closed. Reading row after row
 * therefore decodes every block once, while random access, or several threads that read single rows
 * of one tensor, decode blocks again. Reading many rows in one call is fastest. */
KVC_API int kvc_file_read(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n,
                          void *dst, struct kvc_error *e);
/* Reads everything and verifies every hash and digest of a .kvc; other formats have none and give
 * 0. threads 0: one per core. */
KVC_API int kvc_file_check(const struct kvc_file *f, unsigned threads, struct kvc_error *e);

/* Statistics of one head's values, as kvc-dump --stats prints them. Block types are dequantised,
 * not rotated back. Values of 8 bits are multiplied by their scales where these are known, and else
 * as they are stored. */
struct kvc_head_stats {
    size_t size; /* of this struct; set by the caller */
    uint64_t values, nan, inf;
    double mean, rms, max_abs; /* over finite values */
    /* channels whose rms is over 4 times the head's median channel rms */
    uint64_t outlier_channels;
    uint64_t worst_channel; /* the channel of largest rms */
    double worst_rms;
};
/* Fills head[0] to head[n - 1]; n is info.heads of the tensor. Reads all of the tensor. */
KVC_API int kvc_file_stats(const struct kvc_file *f, uint32_t tensor, struct kvc_head_stats *head,
                           uint64_t n, struct kvc_error *e);

/* --- damaged files --- */

/* What is damaged in a file that was opened as damaged. Texts belong to the file. */
struct kvc_survey_info {
    size_t size; /* of this struct; set by the caller */
    /* of the file, missing ones included; of these the damaged and missing ones */
    uint64_t records, damaged;
    uint64_t places;        /* damaged places, for kvc_file_damage() */
    int no_meta, no_tokens; /* metadata, token ids are lost */
    /* the source's own bytes are lost: only a named format can be written */
    int no_source;
    const char *layers,
        /* "0-6,8": whole layers; "0:512,768:2000": tokens whole in every layer, A:B without B;
           NULL: unknown */
        *tokens;
};
/* One damaged place: a record, the header, the footer, or bytes that belong to no record. */
struct kvc_damage_info {
    size_t size;            /* of this struct; set by the caller */
    const char *kind;       /* "BLOCK", "META" and so on, "header", "footer", "bytes" */
    const char *place;      /* in words: "layer 0 V, tokens 0:200"; "" if it belongs to no tensor */
    const char *reason;     /* in words */
    uint64_t record;        /* number in the file; UINT64_MAX: none, or a missing one */
    uint64_t offset, bytes; /* in the file; offset UINT64_MAX: missing */
};
/* -1 when the file was not opened as damaged, or info->size is not set. */
KVC_API int kvc_file_survey(const struct kvc_file *f, struct kvc_survey_info *info);
/* -1 when there is no place i, or info->size is not set. */
KVC_API int kvc_file_damage(const struct kvc_file *f, uint64_t i, struct kvc_damage_info *info);

/* --- models --- */

/* Writes the identity of the model of a weights file (GGUF, safetensors or a folder of them) as
 * text of at most 128 bytes with its NUL: what prefix keys (kvc.5) are chained over, the same for
 * all programs that ask kvc. */
KVC_API int kvc_model_identity(const char *weights, char *text, size_t size, struct kvc_error *e);

/* --- comparing --- */

/* Gets a metadata entry that differs: the text that each cache has, or NULL. */
typedef void kvc_meta_fn(void *state, const char *key, const char *a, const char *b);

struct kvc_compare_how {
    size_t size;           /* of this struct */
    uint64_t first, end;   /* positions [first, end); end 0: to the last */
    const uint8_t *layers; /* layers[i] != 0 compares layer i < n_layers; NULL: all */
    uint32_t n_layers;
    double abs,
        rel;  /* values are equal when |a - b| <= abs + rel * |b|; both 0: when their bits are */
    int meta; /* metadata: 0 is not compared; 1: entries that change the meaning of values in
               * memory, where both caches have them; 2: every entry, also one that a cache lacks */
    /* is called for each such entry that differs; NULL: they are counted only */
    kvc_meta_fn *meta_differs;
    void *meta_state;
    /* measure what the differences do to attention; needs queries */
    int attention;
    const struct kvc_file *queries; /* a file with queries; NULL: those of a, or of b */
};
struct kvc_comparison {
    size_t size;      /* of this struct; set by the caller */
    uint64_t tensors; /* that both caches have, and whose values can be compared */
    /* tensors that one cache lacks, or whose shapes do not let values be compared */
    uint64_t lone;
    uint64_t rows_only[2]; /* positions of live parts and others that only a, only b has */
    /* pairs of values that were compared, and of these those that are not equal */
    uint64_t values, differ;
    uint64_t unequal; /* tensors with such pairs */
    /* largest |a - b|, root mean square of a - b; over finite pairs of unequal tensors */
    double max_abs, rms;
    double frobenius, cosine; /* ||a - b|| / ||a||; a.b / (||a|| ||b||); likewise */
    int tokens_differ;        /* both have token ids, and these are not the same */
    uint64_t meta_differ;     /* metadata entries that differ */
    /* Of attention, over all queries of all heads: query vectors that were measured; root mean
     * square of the differences of logits; mean of KL(softmax of a || softmax of b) in nats; ||o of
     * a - o of b|| / ||o of a|| of the outputs o, the median and the 99th percentile. */
    uint64_t queries;
    double logit_rms, kl, output_median, output_p99;
};
/* Compares the values of two caches, row by row of equal positions, after bringing Hadamard
 * rotation, RoPE pairing and scales to one meaning as kvc-diff(1) does. Returns 0 when they are the
 * same, 1 when they differ, -1 with *e. `how` may be NULL. A selection that reaches nothing is an
 * error. A slot file of a model with sliding windows does not say which layers have them: open it
 * with `model`. */
KVC_API int kvc_file_compare(const struct kvc_file *a, const struct kvc_file *b,
                             const struct kvc_compare_how *how, struct kvc_comparison *result,
                             struct kvc_error *e);

/* --- caches in a program's memory --- */

/* K or V of a layer, as it lies in memory: the value of a token, head and channel is at data +
 * token * the stride of tokens + head * that of heads + channel * that of channels. With pages,
 * tokens count within their page, whose number times `page` is added. For block dtypes, a channel
 * is a block. No two values may share a byte. */
struct kvc_memory_array {
    /* "K", "V" or "latent"; "queries" (after RoPE), "hidden": to be packed only */
    const char *role;
    uint32_t layer; /* number in the model */
    const char *dtype;
    uint64_t heads, dim;
    void *data;
    uint64_t page, token, head, channel; /* strides, bytes */
    /* 0: as many as the memory has. Less: the last ones, as of a layer with a sliding window, or of
     * queries; not with pages. */
    uint64_t tokens;
};

/* A cache in memory, to be packed or filled. */
struct kvc_memory {
    size_t size;       /* of this struct */
    size_t array_size; /* sizeof(struct kvc_memory_array) */
    const struct kvc_memory_array *arrays;
    size_t n_arrays;
    uint64_t tokens;
    int64_t first_position; /* of the first token; the others follow */
    /* Pages: token i lies in slot first_slot + i; slot s lies in page table[s / page_size].
     * page_size 0: no pages. table NULL: the pages are 0, 1, 2, ... */
    uint64_t page_size;
    const uint32_t *table;
    uint64_t n_table, first_slot;

    /* Only to be packed: */
    const int64_t *positions; /* of all tokens; NULL: they follow first_position */
    const int32_t *token_ids; /* of positions first_position, + 1, ...; NULL: unknown */
    uint64_t n_token_ids;
    /* "KEY=VALUE": metadata (kvc.5), as "model.name=...", "rope.pairing=halves", "rope.theta=1e5";
     * NULL-terminated; NULL: none. */
    const char *const *facts;
};

/* Makes a handle of arrays in memory, which can be packed, read, compared and written as any other.
 * Nothing is copied: the arrays must stay as they are until the handle is closed; the structs and
 * the facts need not. */
KVC_API struct kvc_file *kvc_file_open_arrays(const struct kvc_memory *m, struct kvc_error *e);

/* Gets the progress of a call in bytes; `total` is 0 if it is unknown. Returns 0, or another number
 * to cancel the call. It is called in the thread of the caller. */
typedef int kvc_progress_fn(void *state, uint64_t done, uint64_t total);

struct kvc_load_how {
    size_t size;      /* of this struct */
    unsigned threads; /* 0: one per core */
    /* 1: floats of another dtype than the array's are rounded to it, block types are widened, and
     * values of 8 bits as well, times their scales (metadata scale.k, scale.v), which must be
     * known; 0: refused. */
    int convert;
    const char *pairing;       /* RoPE pairing of K in memory; NULL: as it is in the file */
    kvc_progress_fn *progress; /* gets the bytes that are in memory; NULL: none */
    void *progress_state;
    /* 1: compare each block with its digest, unless f was opened with no_verify; rows are then not
     * decoded in place */
    int verify;
};
/* Decodes the tokens from position m->first_position on into memory: m->tokens of them, in the
 * layers and roles of the arrays. A layer with a sliding window has the last tokens only: its array
 * needs as many. Where the file does not have all these positions in a layer, the error is 33: not
 * sliceable. After a failure the memory holds rubbish. options may be NULL. */
KVC_API int kvc_file_load(const struct kvc_file *f, const struct kvc_memory *m,
                          const struct kvc_load_how *options, struct kvc_error *e);

/* Where value (layer, K or V, page, token of the page, head, channel) of a pool lies, in bytes from
 * a base. */
struct kvc_pool_strides {
    int64_t layer, kv, page, token, head, dim;
};

/* How an engine lays out its pool of pages: the order of the axes, outermost first, out of L
 * (layer), 2 (K and V), B (page), T (token of a page), H (head), D (channel), C (K and V of a head
 * side by side); those before '/' are separate allocations. */
struct kvc_pool_layout {
    const char *name;   /* "vllm-flash" */
    const char *axes;   /* "L/2BTHD" */
    const char *k_axes; /* of K, where it lies otherwise than V; NULL: as V */
    const char *what;   /* "vLLM FlashAttention" */
};
/* The table of known layouts; NULL past its end. */
KVC_API const struct kvc_pool_layout *kvc_pool_layout_at(size_t i);
/* NULL: there is none of that name. */
KVC_API const struct kvc_pool_layout *kvc_pool_layout_find(const char *name);

/* Sizes of an engine's pool. */
struct kvc_pool {
    uint64_t layers, pages, page_size, heads, dim;
    uint64_t value_bytes; /* of one value: 1, 2 or 4 */
};
/* Strides of K and of V in a densely packed pool. Returns how many allocations it consists of: 1,
 * layers (layer 0, 1, ...) or 2 * layers (layer 0 K, layer 0 V, layer 1 K, ...), whatever the order
 * in which the engine itself lists them. Axes that a layout lacks, or that tell allocations apart,
 * get stride 0; without H the pool must have one head. -1 for sizes of 0, for values that are not
 * of 1, 2 or 4 bytes, and when an allocation would have more than 2^63 - 1 bytes. */
KVC_API int64_t kvc_pool_layout_strides(const struct kvc_pool_layout *layout,
                                        const struct kvc_pool *pool, struct kvc_pool_strides *k,
                                        struct kvc_pool_strides *v);
/* Fills the arrays of a pool, for struct kvc_memory with the pool's page_size: n of them, K and V
 * of layer 0, of layer 1, ..., or one latent for each layer. `array_size` is sizeof *arrays; bases
 * are the allocations. */
KVC_API int kvc_pool_arrays(const struct kvc_pool_layout *layout, const struct kvc_pool *pool,
                            const char *dtype, void *const *bases, uint64_t n_bases,
                            struct kvc_memory_array *arrays, size_t array_size, size_t n,
                            struct kvc_error *e);

/* --- writing --- */

/* Takes n bytes of output. Returns 0, or another number to stop with an input/output error. */
typedef int kvc_write_fn(void *state, const void *data, size_t n);

struct kvc_write_options {
    size_t size;               /* of this struct */
    unsigned threads;          /* 0: one per core; the bytes do not depend on it */
    kvc_progress_fn *progress; /* NULL: none */
    void *progress_state;

    /* For packing. */
    /* NULL: split, or cross with a profile that predicts; both are lossless */
    const char *recipe;
    unsigned align; /* alignment of extents in a .kvc; 0: none */
    int no_verify;  /* do not decode what was encoded */
    /* for recipes that ask attention: a file with queries; NULL: f's own */
    const struct kvc_file *queries;
    /* K and V of block dtypes and of 8 bits, times their scales, become f16 first */
    int dequantize;
    /* path of a profile to pack with, refused where it does not fit the cache; NULL: none */
    const char *profile;
    int embed_profile; /* carry it inside, so that the file stands alone */
    /* pack with the profile also where the cache's numbers say that it is another model's */
    int force_profile;
    /* For recipes with the stage code; 0: as the recipe says. At most one: an estimated drift in
     * nats; a ratio of the source's bytes to the .kvc's; an error of attention outputs (0.99 of
     * them) or of logits (root mean square), verified. */
    double target_kld, target_ratio, max_output_error, max_logit_error;
    int no_tokens;     /* leave token ids out, and with them the source's own bytes */
    int no_companions; /* leave queries and hidden states out, likewise */

    /* For unpacking into a format that is named. */
    /* RoPE pairing of K in what is written; NULL: the format's own, or as it is */
    const char *pairing;
    /* "KEY=VALUE" for the format, NULL-terminated; NULL: none. kvc-unpack(1) lists them */
    const char *const *set;
    /* 0: refuse to write a format that does not hold all of the cache (token ids, facts of the
     * model, queries and so on), with a message that lists what it does not hold, as kvc-unpack
     * does; 1: write it without them. */
    int lossy_metadata;

    /* for packing, instead of `profile`: one that is open already */
    struct kvc_profile *shared_profile;
};

/* Writes f as a .kvc. What a profile tells of the cache (the number of heads, layer numbers, the
 * pairing of K) is written into the .kvc and not noted in f. options may be NULL. */
KVC_API int kvc_file_pack(const struct kvc_file *f, const struct kvc_write_options *options,
                          kvc_write_fn *write, void *state, struct kvc_error *e);
/* The same into memory, which the caller frees with free(). */
KVC_API int kvc_file_pack_memory(const struct kvc_file *f, const struct kvc_write_options *options,
                                 void **data, size_t *size, struct kvc_error *e);
/* The same to a file descriptor, from its current position on. */
KVC_API int kvc_file_pack_fd(const struct kvc_file *f, const struct kvc_write_options *options,
                             int fd, struct kvc_error *e);
/* Writes the source that f was made from, byte for byte when it is lossless (format NULL), or
 * another layout: "llama", "vllm", "safetensors", "npz", "lmcache" and so on (kvc-unpack(1)), also
 * with options: "llama:version=3". Several members are written as a tar archive. options may be
 * NULL. */
KVC_API int kvc_file_unpack(const struct kvc_file *f, const char *format,
                            const struct kvc_write_options *options, kvc_write_fn *write,
                            void *state, struct kvc_error *e);
/* The same into `room` bytes of the caller's memory, where the tensors of a source that is one file
 * are decoded by all threads at once. *size gets the bytes of the output; more than `room` is an
 * error (10), after which the memory holds rubbish. With data NULL nothing is written, and *size
 * tells the bytes alone: at once of a source that is one file, or else with the work of writing
 * them. options may be NULL. */
KVC_API int kvc_file_unpack_memory(const struct kvc_file *f, const char *format,
                                   const struct kvc_write_options *options, void *data, size_t room,
                                   size_t *size, struct kvc_error *e);
/* Writes the members of the source (format NULL), or of a format that consists of several files
 * ("vllm"), as files below a folder that exists. A file that exists already is an error. options
 * may be NULL. */
KVC_API int kvc_file_unpack_folder(const struct kvc_file *f, const char *format, const char *path,
                                   const struct kvc_write_options *options, struct kvc_error *e);

/* --- profiles --- */

/* Opens a profile once for many files, which several threads may pack and open with it. Files hold
 * what they use: it may be closed while they are open. */
KVC_API struct kvc_profile *kvc_shared_profile_open(const char *path, struct kvc_error *e);
/* kvc_shared_profile_close(NULL) is legal */
KVC_API void kvc_shared_profile_close(struct kvc_profile *p);

/* A profile that is learnt from caches of one model, as by kvc-pack --learn-profile
 * (kvc-profile.5). */
struct kvc_learning;
KVC_API struct kvc_learning *kvc_learning_new(struct kvc_error *e);
KVC_API void kvc_learning_free(struct kvc_learning *l); /* kvc_learning_free(NULL) is legal */
/* Adds a cache; f may be closed afterwards. */
KVC_API int kvc_learning_add(struct kvc_learning *l, const struct kvc_file *f, struct kvc_error *e);
/* Writes the profile. */
KVC_API int kvc_learning_write(struct kvc_learning *l, kvc_write_fn *write, void *state,
                               struct kvc_error *e);

#ifdef __cplusplus
}
#endif

#endif
