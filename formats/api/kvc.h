/* kvc.h: libkvc's public interface: open cache files of any supported format, read their values, pack and unpack.
 *
 * The library never prints, exits or aborts. Functions that can fail take a struct kvc_error (may be NULL) and return
 * NULL or -1 with it filled. Handles are not shared between threads while one of them changes them; reading values
 * through kvc_file_read() from several threads at once is safe.
 *
 *   struct kvc_error *e = kvc_error_new();
 *   struct kvc_file *f = kvc_file_open("prefix.kvc", NULL, e);
 *   if (!f) fprintf(stderr, "%s\n", kvc_error_message(e));
 */
#ifndef KVC_H
#define KVC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_API __attribute__((visibility("default")))

/* --- version --- */

KVC_API const char *kvc_version(void);        /* "0.1.0" */
KVC_API unsigned kvc_version_of_format(void); /* the container version this library writes and the newest it reads */

/* --- errors --- */

struct kvc_error;
KVC_API struct kvc_error *kvc_error_new(void); /* NULL when out of memory; kvc_error_free(NULL) is legal */
KVC_API void kvc_error_free(struct kvc_error *e);
/* Stable numbers: 0 none, 10 usage, 20 memory, 21 input/output, 30 unknown format, 31 damaged, 32 unsupported,
 * 40 another model, 50 verification failed. */
KVC_API int kvc_error_code(const struct kvc_error *e);
/* 0 retry later, 1 this item failed, 2 nothing more can be had from the file. */
KVC_API int kvc_error_severity(const struct kvc_error *e);
/* Byte offset in the input, or UINT64_MAX. */
KVC_API uint64_t kvc_error_offset(const struct kvc_error *e);
/* Plain words that name the file, the place and what to do; owned by e. */
KVC_API const char *kvc_error_message(const struct kvc_error *e);

/* --- opening and looking --- */

struct kvc_file;

/* What the caller knows and files do not say; all zero for nothing. Zero-initialise: fields may be added. */
struct kvc_open_options {
    const char *format;  /* "kvc", "llama", "safetensors", "npz"; NULL: look */
    const char *model;   /* path of the model's weights, GGUF or safetensors; NULL: none */
    uint32_t kv_heads;   /* number of KV heads; 0: as the file says */
    const char *pairing; /* RoPE pairing of K: "halves", "interleaved", "none"; NULL: as the file says */
    const char *weights; /* path of weights that K and V are rebuilt with (recipe project); NULL: none */
    const char *profile; /* path of the profile that a .kvc was packed with; NULL: it is looked for by its hash */
    const char *profile_folders; /* where it is looked for if it is not beside the .kvc: folders, separated by colons; NULL: nowhere
                                    else. The library reads no environment; the tools pass $KVC_PROFILE_PATH here */
};

/* Opens and maps a file ("-": standard input). A .kvc of another model than options->model is refused. */
KVC_API struct kvc_file *kvc_file_open(const char *path, const struct kvc_open_options *options, struct kvc_error *e);
/* The same over bytes that stay the caller's and must outlive the handle. */
KVC_API struct kvc_file *kvc_file_open_memory(const void *data, size_t size, const struct kvc_open_options *options,
                                              struct kvc_error *e);
KVC_API void kvc_file_close(struct kvc_file *f); /* kvc_file_close(NULL) is legal */

KVC_API const char *kvc_file_format(const struct kvc_file *f); /* "kvc", "llama", ... */
/* Bytes that the value of a metadata key (kvc.5) takes as text, with the NUL at its end; 0 when the key is absent. */
KVC_API size_t kvc_file_meta_size(const struct kvc_file *f, const char *key);
/* Writes the text into a caller's buffer of `size` bytes and returns the buffer. Returns NULL, and makes the buffer empty, when
 * the key is absent or when the text has no room: nothing is cut off. */
KVC_API const char *kvc_file_meta(const struct kvc_file *f, const char *key, char *text, size_t size);
/* Token ids of positions 0, 1, ...; owned by f; NULL and 0 when the file has none. */
KVC_API const int32_t *kvc_file_tokens(const struct kvc_file *f, uint64_t *n);

/* One tensor: K or V of a layer, or a companion. */
struct kvc_tensor_info {
    const char *part;  /* "live", "sliding", "recurrent", "checkpoint", "companion" */
    const char *role;  /* "K", "V", "latent", "R", "S", "queries", "hidden" */
    const char *dtype; /* "bf16", "q8_0", ... */
    uint32_t layer;
    uint32_t stream, checkpoint;
    uint64_t rows, heads, dim; /* one row per cell: heads x dim values */
    uint64_t row_bytes;        /* bytes of a canonical row: head-major, dim contiguous */
};
KVC_API uint32_t kvc_file_tensors(const struct kvc_file *f);
/* -1 when there is no tensor i. */
KVC_API int kvc_file_tensor(const struct kvc_file *f, uint32_t i, struct kvc_tensor_info *info);
/* Position of a tensor's row. Rows are sorted by position. `row` must be below info.rows. */
KVC_API int64_t kvc_file_position(const struct kvc_file *f, uint32_t tensor, uint64_t row);
/* Canonical rows [first, first + n) of a tensor into dst, which holds n * row_bytes bytes.
 *
 * A .kvc is decoded in blocks of up to 256 rows: a single row costs its whole block. For each tensor, f keeps the last block that
 * was read in part until it is closed. Reading row after row therefore decodes every block once, while random access, or several
 * threads that read single rows of one tensor, decode blocks again. Reading many rows in one call is fastest. */
KVC_API int kvc_file_read(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n, void *dst,
                          struct kvc_error *e);
/* Reads everything and verifies every hash and digest of a .kvc; other formats have none and give 0. threads 0: one
 * per core. */
KVC_API int kvc_file_check(const struct kvc_file *f, unsigned threads, struct kvc_error *e);

/* --- writing --- */

/* Takes n bytes of output; returns 0, or anything else to stop with an input/output error. */
typedef int kvc_write_fn(void *state, const void *data, size_t n);

struct kvc_write_options {
    const char *recipe; /* for packing; NULL: the default, which is lossless */
    unsigned threads;   /* 0: one per core; the bytes do not depend on it */
    unsigned align;     /* alignment of extents in a .kvc; 0: none */
    int no_verify;      /* do not decode what was encoded */
    const struct kvc_file *queries; /* for recipes that ask attention: a file with queries; NULL: f's own */
    int dequantize;     /* K and V of block dtypes become f16 first */
    const char *profile; /* path of a profile to pack with, refused where it does not fit the cache; NULL: none */
    int embed_profile;   /* carry it inside, so that the file stands alone */
    int force_profile;   /* pack with the profile also where the cache's numbers say that it is another model's */
    /* For recipes with the stage code; 0: as the recipe says. At most one: an estimated drift in nats; a ratio of the source's
     * bytes to the .kvc's; an error of attention outputs (0.99 of them) or of logits (root mean square), verified. */
    double target_kld, target_ratio, max_output_error, max_logit_error;
};

/* Writes f as a .kvc. options may be NULL. */
KVC_API int kvc_file_pack(const struct kvc_file *f, const struct kvc_write_options *options, kvc_write_fn *write,
                          void *state, struct kvc_error *e);
/* Writes the file that f was made from, byte for byte when it is lossless (format NULL), or another layout
 * ("llama", "safetensors", "npz", "raw"). */
KVC_API int kvc_file_unpack(const struct kvc_file *f, const char *format, const struct kvc_write_options *options,
                            kvc_write_fn *write, void *state, struct kvc_error *e);

#ifdef __cplusplus
}
#endif

#endif
