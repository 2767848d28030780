/* kvc_inspect.h: what is inside cache files: typed metadata, parts, layers, cells, the places of
 * bytes, values for people to look at; profiles and weights files; where two caches differ. What
 * kvc-dump and kvc-diff show. The rules of kvc.h apply. */
#ifndef KVC_INSPECT_H
#define KVC_INSPECT_H

#include "kvc.h"
#include "kvc_comparing.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVC_NO_NUMBER UINT32_MAX /* no such layer, tensor and so on */

/* --- facts --- */

/* What is known of a file beside its metadata. Texts belong to the file. */
struct kvc_file_facts {
    size_t size;     /* of this struct; set by the caller */
    uint64_t tokens; /* of the ids, or else rows of the first part */
    uint32_t parts, layers, tensors;
    int heads_unknown;  /* K and V with one head have an unknown number of KV heads */
    int layers_unknown; /* layers are numbered in the order of the cache */
    int has_model;      /* it was opened with facts of the model's weights */
    /* K, V or latents are stored in 8 bits; the scales of all of them are known */
    int scaled, scales_known;
    uint64_t prefix_keys; /* that are stored */
    uint64_t pieces;      /* for kvc_file_piece() */
    /* Of a .kvc: the format version whose features it uses, the oldest version of readers that
     * understand these, the alignment of runs of blocks in bytes. */
    unsigned write_version, read_version, align;
    int lossless; /* all tensors are */
    /* the profile that decoding needs: "inside", "found" or "missing"; NULL: none */
    const char *profile;
    uint8_t content_id[32]; /* of a .kvc: the hash that names what it holds; zeros: none */
};
/* -1 when facts->size is not set. */
KVC_API int kvc_file_describe(const struct kvc_file *f, struct kvc_file_facts *facts);
/* Checks prefix.extras, and counts its items. */
KVC_API int kvc_file_extras(const struct kvc_file *f, uint64_t *n, struct kvc_error *e);

/* A value of metadata (kvc.5). Texts and bytes belong to the file. */
struct kvc_meta_value {
    size_t size;      /* of this struct; set by the caller */
    const char *type; /* "bool", "u64", "i64", "f64", "text", "bytes", "u64s", ""; NULL: absent */
    int critical;
    uint64_t u64; /* of "bool" too */
    int64_t i64;
    double f64;
    const char *text; /* NULL: it is none */
    /* of "bytes", and of "u64s" in little-endian order; else NULL */
    const uint8_t *bytes;
    uint64_t n_bytes;
};
/* -1, and *v zero but for its size, when the key is absent. */
KVC_API int kvc_file_meta_value(const struct kvc_file *f, const char *key,
                                struct kvc_meta_value *v);

/* A part: a set of cells with its layers. */
struct kvc_part_info {
    size_t size;      /* of this struct; set by the caller */
    const char *kind; /* "live", "window", "state", "snapshot", "companion" */
    uint32_t stream, snapshot;
    uint64_t cells;
    int64_t first, last; /* the positions of its first and its last cell, where there are cells */
    int ascending;       /* positions ascend in the engine's own order of cells */
};
/* -1 when there is no part i, or info->size is not set; likewise below. */
KVC_API int kvc_file_part(const struct kvc_file *f, uint32_t i, struct kvc_part_info *info);

struct kvc_layer_info {
    size_t size;      /* of this struct; set by the caller */
    uint32_t part;    /* for kvc_file_part() */
    uint32_t layer;   /* number in the model */
    const char *kind; /* "full", "window", "latent", "state", "companion" */
    uint32_t window;  /* tokens; 0: none or unknown */
    /* K and V, or a latent, or others, for kvc_file_tensor(); KVC_NO_NUMBER: none */
    uint32_t tensor[2];
};
KVC_API int kvc_file_layer(const struct kvc_file *f, uint32_t i, struct kvc_layer_info *info);

/* What kvc_file_tensor() does not say of a tensor. */
struct kvc_tensor_more {
    size_t size;          /* of this struct; set by the caller */
    uint32_t part, layer; /* for kvc_file_part() and kvc_file_layer() */
    uint64_t bytes;       /* of all rows */
    /* of a .kvc: bytes of its records, and its pipeline; else 0 and NULL */
    uint64_t stored;
    const char *pipeline;
    char label[96]; /* "snapshot 1 layer 0 V" */
};
KVC_API int kvc_file_tensor_more(const struct kvc_file *f, uint32_t i, struct kvc_tensor_more *m);
/* Writes how the transform codec coded a tensor, "K before RoPE, the profile's basis"; "" where it
 * did not. */
KVC_API int kvc_file_transform(const struct kvc_file *f, uint32_t tensor, char *text, size_t size,
                               struct kvc_error *e);
/* Writes what is doubtful about the rows, and what to do, as a line; "" where nothing is, or where
 * the last rows cannot be decoded. `tool` goes before the option that helps: "kvc-pack ". */
KVC_API const char *kvc_file_doubts(const struct kvc_file *f, const char *tool, char *text,
                                    size_t size);

/* A cell by its number in the engine's own order. */
struct kvc_cell_info {
    size_t size; /* of this struct; set by the caller */
    int64_t position;
    const uint32_t *words; /* engine-private ones; NULL: the part has none */
    uint64_t n_words;
};
KVC_API int kvc_file_cell(const struct kvc_file *f, uint32_t part, uint64_t cell,
                          struct kvc_cell_info *info);
/* Returns the positions of kvc_file_tokens(), which the caller frees with free(); NULL with *e. */
KVC_API int64_t *kvc_file_token_positions(const struct kvc_file *f, struct kvc_error *e);

/* What kvc_file_match() finds, and how. */
struct kvc_match_info {
    size_t size; /* of this struct; set by the caller */
    uint64_t common;
    uint64_t first; /* position at which the cache begins */
    int by_keys;    /* by prefix keys, not by token ids */
};
KVC_API int kvc_file_match_how(const struct kvc_file *f, const int32_t *tokens, uint64_t n,
                               struct kvc_match_info *info, struct kvc_error *e);

/* --- the places of bytes --- */

/* A piece of a file: a record of a .kvc, or an extent of another source. Extents follow each other
 * from byte 0 on. */
struct kvc_piece_info {
    size_t size;      /* of this struct; set by the caller */
    const char *kind; /* "BLOCK", "META" and so on; "tensor", "region", "literal" */
    uint32_t tensor;  /* whose rows or side data it has; KVC_NO_NUMBER: none, or several */
    uint64_t bytes;
    uint64_t places; /* of a region: runs of values in it */
    /* Of a record. */
    int side;             /* it has side data */
    uint64_t offset;      /* in the file */
    uint64_t block, rows; /* number of its block or segment in the tensor; rows of a block */
    uint64_t check, digest;
    int has_digest;
    uint32_t sections;
};
/* A section of a record. */
struct kvc_piece_section {
    size_t size; /* of this struct; set by the caller */
    const char *type, *coder;
    int stage; /* of the pipeline; -1: none */
    unsigned index;
    uint64_t stored, decoded; /* bytes */
};
/* Reads and checks the directory of a record. `section` (may be NULL) gets up to `room` of
 * them, of which the caller has set section[0].size; a record has at most 65536. */
KVC_API int kvc_file_piece(const struct kvc_file *f, uint64_t i, struct kvc_piece_info *info,
                           struct kvc_piece_section *section, size_t room, struct kvc_error *e);

/* --- values --- */

/* The values of rows [first, first + n) as floats, of info.heads * info.dim each, into dst, which
 * has `size` bytes: block types are dequantised, values of 8 bits multiplied by their scales where
 * these are known. */
KVC_API int kvc_file_read_floats(const struct kvc_file *f, uint32_t tensor, uint64_t first,
                                 uint64_t n, float *dst, size_t size, struct kvc_error *e);

/* Values of a tensor by channel and by size. */
struct kvc_value_spread {
    size_t size;             /* of this struct; set by the caller */
    uint64_t rows, channels; /* rows that were read, and values of a row */
    double *rms;             /* of each channel; NaN where no value is finite */
    /* of magnitudes, as in kvc_comparing.h; other: NaN and infinite */
    uint64_t octave[KVC_OCTAVES], zero, other;
    struct kvc_error *error; /* why it could not be read; NULL: it was */
};
/* Fills spread[i] for tensor[i], by all threads at once; all rows where these are at most
 * most_rows, else of about so many blocks, spread evenly. The caller has set spread[0].size. `done`
 * (NULL: none) gets the number of each that was read, in order. Freed by kvc_value_spread_free(),
 * after a failure too, unless it was the size that is not set. */
KVC_API int kvc_file_value_spread(const struct kvc_file *f, const uint32_t *tensor, size_t n,
                                  uint64_t most_rows, void (*done)(void *state, size_t i),
                                  void *state, struct kvc_value_spread *spread,
                                  struct kvc_error *e);
KVC_API void kvc_value_spread_free(struct kvc_value_spread *spread, size_t n); /* NULL is legal */

/* --- comparing --- */

/* If the layer numbers of f are not the model's, takes them from another cache of the model that
 * has them. Before f is used. */
KVC_API int kvc_file_borrow_layers(struct kvc_file *f, const struct kvc_file *from,
                                   struct kvc_error *e);
/* Begins a comparison of files that stay open: finds the tensors that match. As
 * kvc_file_compare(), but that nothing is compared yet (kvc_comparing.h). `detail` may be NULL. */
KVC_API struct kvc_comparing *kvc_comparing_new(const struct kvc_file *a, const struct kvc_file *b,
                                                const struct kvc_compare_how *how,
                                                const struct kvc_compare_detail *detail,
                                                struct kvc_error *e);

/* --- profiles and models --- */

/* Returns a text of a profile's metadata, kvc-profile(5); "" where there is none. */
KVC_API const char *kvc_shared_profile_text(const struct kvc_profile *p, const char *key);
/* Returns the numbers of layers, and of bytes. */
KVC_API uint32_t kvc_shared_profile_layers(const struct kvc_profile *p, uint64_t *bytes);

/* Opens a file for its facts as kvc_shared_model_open() does, also one without attention. */
KVC_API struct kvc_model *kvc_shared_model_look(const char *path, struct kvc_error *e);
/* Facts of a weights file. 0 and "": unknown, or not the same in all layers. Texts and hashes
 * belong to the model. */
struct kvc_model_info {
    size_t size;        /* of this struct; set by the caller */
    const char *format; /* "gguf", "safetensors" */
    const char *name, *architecture;
    uint64_t layers, heads, kv_heads, head_dim, head_dim_v, window;
    const char *pairing, *rope_type; /* pairing NULL: unknown */
    double rope_theta, rope_factor;
    uint64_t rope_dim, rope_original;
    const uint8_t *tokenizer, *fingerprint; /* SHA-256; NULL: it has none */
};
KVC_API int kvc_shared_model_describe(const struct kvc_model *m, struct kvc_model_info *info);

/* The texts of a model's tokens. */
struct kvc_token_texts;
/* Reads the vocabulary of a model; *texts is NULL where its files hold none. */
KVC_API int kvc_shared_texts_open(const char *model, struct kvc_token_texts **texts,
                                  struct kvc_error *e);
KVC_API void kvc_shared_texts_close(struct kvc_token_texts *t);
/* Writes the bytes of a token with a NUL after them, and returns 1; 0: there is no such token.
 * Bytes 0, and bytes beyond the size, are left out. t may be NULL: there are no texts. */
KVC_API int kvc_shared_text(const struct kvc_token_texts *t, int64_t id, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
