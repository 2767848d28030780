/* kvc.h: libkvc's public interface: open cache files of any supported format, read their values,
 * pack and unpack.
 *
 * The library never prints, exits or aborts. Functions that can fail take a struct kvc_error (may
 * be NULL) and return NULL or -1 with it filled. After another result it says nothing, and may have
 * changed; but for functions whose comment tells of it. A call changes no handle that it takes as
 * const: several threads may read, select, compare, pack and unpack one file at once, also with
 * different options. A thread that closes a handle must be the only one that uses it. Texts have
 * numbers with a point, in whatever locale the program is.
 *
 * A pointer that may be NULL is said to be so. Functions with a struct kvc_error refuse another one
 * that is NULL (10), with a message that names the argument. Other functions return -1 where the
 * struct for their results is NULL; their handles and texts must be there. Memory for rows,
 * values, positions and keys has its size in bytes beside it: where it is too small, nothing is
 * written, and the message says what is needed (10). Texts for people that do not fit are cut at
 * the end; names, paths and values are not cut: the text is empty, or what is returned says so.
 *
 *   struct kvc_error *e = kvc_error_new();
 *   struct kvc_file *f = kvc_file_open("prefix.kvc", NULL, e);
 *   if (!f) fprintf(stderr, "%s\n", kvc_error_message(e));
 *
 * Structs of options and results begin with their size, which the caller sets: {.size = sizeof
 * options}. In an array that a function fills, the size of the first element is that of all, and
 * the function sets the others. Later versions add fields at the end. Programs that were built with
 * an earlier kvc.h keep working: fields that they do not know are zero. A library that is older
 * than the program refuses fields that it does not know, where they are not zero. Structs that the
 * library owns begin with their size in the library. Structs without a size are fixed, but for
 * kvc_memory_array, whose size is told beside it: they keep their fields in all versions, and
 * `reserved` ones are 0.
 *
 * Rows are told by (first, n): n of them from row `first` on. Positions are told by [first, end);
 * in options, end 0 is "to the last". Strides are bytes, of type int64_t. Kinds of parts and
 * layers, roles, dtypes and RoPE pairings are words, the same as in the tools, in metadata and in
 * other languages; a later version may return words that a program does not know.
 *
 * Longer than 700 lines: it is all of the interface. */
#ifndef KVC_H
#define KVC_H

#include "kvc_error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- version --- */

#define KVC_VERSION_MAJOR 1
#define KVC_VERSION_MINOR 0
#define KVC_VERSION_PATCH 0
KVC_API const char *kvc_version(void); /* of the library: "MAJOR.MINOR.PATCH" */
/* the container version this library writes and the newest it reads */
KVC_API unsigned kvc_version_of_format(void);

/* --- errors --- */

struct kvc_error;
/* NULL when out of memory; kvc_error_free(NULL) is legal */
KVC_API struct kvc_error *kvc_error_new(void);
KVC_API void kvc_error_free(struct kvc_error *e);
/* These tell what is in e. NULL, which kvc_error_new() returned: memory is short. */
KVC_API enum kvc_code kvc_error_code(const struct kvc_error *e);
KVC_API enum kvc_severity kvc_error_severity(const struct kvc_error *e);
/* Byte offset in the input, or UINT64_MAX. */
KVC_API uint64_t kvc_error_offset(const struct kvc_error *e);
KVC_API enum kvc_need kvc_error_need(const struct kvc_error *e);
/* Plain words that name the file, the place and what is wrong; owned by e. */
KVC_API const char *kvc_error_message(const struct kvc_error *e);
/* A program's own errors, for one way of reporting: fills e (may be NULL) with a message in the
 * form of printf(). Returns -1. */
KVC_API int kvc_error_set(struct kvc_error *e, enum kvc_code code, enum kvc_need need,
                          const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Puts "name: " before the message, unless it begins so already. Returns -1. e may be NULL. */
KVC_API int kvc_error_about(struct kvc_error *e, const char *name);
/* Copies an error, if neither is NULL. */
KVC_API void kvc_error_copy(struct kvc_error *to, const struct kvc_error *from);

/* What a call did that its caller may want to know, and that is no error. Stable numbers. */
enum kvc_note {
    KVC_NOTE_MODEL = 1,       /* the model was compared only in part: there are no fingerprints */
    KVC_NOTE_BY_ORDER = 2,    /* files were joined in their order: they do not record positions */
    KVC_NOTE_NO_TOKENS = 3,   /* files were joined without token ids, which not all have */
    KVC_NOTE_NO_QUERIES = 4,  /* the same, without queries and hidden states */
    KVC_NOTE_UNROTATED = 10,  /* packing: Hadamard rotation is unknown: nothing is rotated back */
    KVC_NOTE_PAIRING = 11,    /* K is taken as paired in the way that fits the profile */
    KVC_NOTE_NO_STAGE = 12,   /* no stage of the recipe uses the profile */
    KVC_NOTE_ROWS = 13,       /* rows are doubtful: padding, zeros, other token ids */
    KVC_NOTE_OTHER_TEXT = 14, /* the queries are those of other tokens */
    /* packing: the recipe asks for queries, and the file has none. They were estimated from K, V
     * and the weights that the file was opened with; or could not be */
    KVC_NOTE_ESTIMATED = 15,
    KVC_NOTE_NOT_ESTIMATED = 16,
    KVC_NOTE_NO_BASE = 17, /* packing: no row is as the base has it: all are coded anew */
    KVC_NOTE_TWICE = 18,   /* the values went through a lossy recipe before, and lose more */
    /* rows are packed in the order, dtype and RoPE pairing of the base, without the source's own
     * bytes */
    KVC_NOTE_AS_BASE = 19,
    KVC_NOTE_LOST = 20,            /* unpacking: the format does not hold all of the cache */
    KVC_NOTE_CASTS = 21,           /* values are written in another type */
    KVC_NOTE_SNAPSHOTS = 22,       /* snapshots are not written */
    KVC_NOTE_NO_POSITIONS = 23,    /* only names of files tell the order of blocks */
    KVC_NOTE_HEADS_UNKNOWN = 24,   /* a row is written as one head */
    KVC_NOTE_ROTATION_KEPT = 25,   /* K or V may be rotated, and are written as they are */
    KVC_NOTE_PAIRING_UNKNOWN = 26, /* K is written as it is */
    /* the source's own bytes are not there: a new file of its format is written; 28: they were left
     * out with the token ids; 29: the format has none */
    KVC_NOTE_NEW_FILE = 27,
    KVC_NOTE_NEW_FILE_NO_TOKENS = 28,
    KVC_NOTE_NEW_FILE_OF_FORMAT = 29,
    KVC_NOTE_FORCE = 0x7fffffff
};
/* Gets a note: its number, the name of the file it is about, and a line of text. */
typedef void kvc_note_fn(void *state, enum kvc_note number, const char *name, const char *text);

/* Gets the progress of a call in bytes; `total` is 0 if it is unknown. Returns 0, or another number
 * to cancel the call. It is called in the thread of the caller. */
typedef int kvc_progress_fn(void *state, uint64_t done, uint64_t total);

/* --- opening and looking --- */

struct kvc_file;
/* Opened once for many files, which several threads may use them for; may be closed while those
 * files are open: */
struct kvc_profile;
/* these must stay open as long as the files: */
struct kvc_model;   /* facts of a model's weights file */
struct kvc_weights; /* their values */

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
    /* Where it is looked for if it is not beside the .kvc: folders, separated by colons; "":
     * nowhere else. NULL: the folders of $KVC_PROFILE_PATH, the user's and the installed one
     * (kvc-profile(5)). */
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
     * 0: a quarter of the machine's, or of a control group's limit, as in a container. Fewer
     * threads decode where that is too little for all, and blocks are refused (32) of which one
     * thread could take more. */
    uint64_t max_memory;
    /* "KEY=VALUE": facts of the model and its values (kvc.5) that replace those of the file and of
     * `model`, as "scale.k=0.5", "rope.factor=4"; NULL-terminated; NULL: none. Keys that are no
     * facts are refused. */
    const char *const *facts;
    /* `model` and `weights` that are open already; NULL: none */
    const struct kvc_model *shared_model;
    const struct kvc_weights *shared_weights;
    /* 1: files are mapped. Faster; but a file that is cut short raises SIGBUS, which the program
     * must catch. */
    int map;
    unsigned threads; /* of looking for damage; 0: one per core */
    kvc_note_fn *note;
    void *note_state;
};

/* Opens a file ("-": standard input), a folder or a tar archive. A .kvc of another model than
 * options->model is refused. Files are read, and mapped only if options->map says so: a file that
 * is cut short meanwhile is an error, and no SIGBUS. */
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

/* What stands at a position beside its token: the hash of an image, of embeddings, or the program's
 * own (kvc.5, prefix.extras). */
enum kvc_prefix_tag {
    KVC_PREFIX_MEDIA = 1,
    KVC_PREFIX_EMBEDDINGS = 2,
    KVC_PREFIX_OWN = 3, /* the program's */
    KVC_PREFIX_FORCE = 0x7fffffff
};
/* Fixed: what a prefix key takes of it never changes (kvc.5). */
struct kvc_prefix_extra {
    uint64_t position;
    enum kvc_prefix_tag tag;
    const void *bytes;
    size_t size;
};
/* A selection of tokens and layers. */
struct kvc_select_options {
    size_t size;           /* of this struct */
    uint64_t first, end;   /* positions [first, end); end 0: to the last */
    const uint8_t *layers; /* layers[i] != 0 keeps layer i < n_layers; NULL: all */
    uint32_t n_layers;
    int no_companions; /* leave out queries and hidden states */
    int whole; /* of a file opened as damaged: narrow the selection to the longest run of positions,
                * from its first one on, that is whole in all its layers; an error where nothing is
                * left */
    /* What its metadata are to say: extras in the place of f's; the name of a cache in a store,
     * store.name. NULL and 0: as those of f. */
    const struct kvc_prefix_extra *extras;
    size_t n_extras;
    const void *store_name;
    size_t store_name_bytes;
};
/* Returns a handle of some tokens or layers of f, which must stay open. Nothing is copied. Refuses
 * positions that a window, state or snapshot part does not have. Such a handle can be
 * packed, and unpacked into a format that is named. A selection from a multiple of 256 on keeps its
 * prefix keys, and gets a parent (prefix.parent), where those of f are known from position 0 or its
 * parent on. */
KVC_API struct kvc_file *kvc_file_select(const struct kvc_file *f,
                                         const struct kvc_select_options *part,
                                         struct kvc_error *e);
/* Returns a handle of n files, which must stay open, as one cache. how "tokens" or NULL: the files
 * are consecutive blocks of one text, in order; positions must follow each other, or else all count
 * from 0 and the order of the files gives them. how "heads": the files hold the KV heads of the
 * tensor-parallel ranks 0, 1, ... for the same tokens. Refuses files of different layers, types,
 * shapes or facts, several streams, recurrent states and snapshots. Token ids are left out unless
 * all files have them; queries and hidden states unless those of the files match. Nothing is
 * copied. Such a handle can be packed, and unpacked into a format that is named. */
KVC_API struct kvc_file *kvc_file_join(const struct kvc_file *const *files, size_t n,
                                       const char *how, struct kvc_error *e);
struct kvc_join_options {
    size_t size;     /* of this struct */
    const char *how; /* as above */
    /* 1: the blocks of the first file, a .kvc, will be copied (`reuse` of kvc_write_options) */
    int keeps_first;
    /* of the joined cache, as in kvc_open_options: heads of all ranks are compared with the model
     */
    const struct kvc_model *shared_model;
    const char *const *facts;
    const int32_t *token_ids;
    uint64_t n_token_ids;
    kvc_note_fn *note;
    void *note_state;
    const char *name; /* for messages; NULL: by the names of the files */
};
KVC_API struct kvc_file *kvc_file_join_by(const struct kvc_file *const *files, size_t n,
                                          const struct kvc_join_options *options,
                                          struct kvc_error *e);
/* Returns a handle of the KV heads of rank 0, 1, ... of `ranks`, which must divide the number of
 * heads; queries and hidden states, which have no KV heads, are left out. f must stay open. */
KVC_API struct kvc_file *kvc_file_shard(const struct kvc_file *f, uint32_t rank, uint32_t ranks,
                                        struct kvc_error *e);
KVC_API void kvc_file_close(struct kvc_file *f); /* kvc_file_close(NULL) is legal */
/* Gives a handle what it reads from, as the bytes of kvc_file_open_memory(): release(owned) is
 * called at the end of kvc_file_close(). Once for a handle. */
KVC_API void kvc_file_own(struct kvc_file *f, void *owned, void (*release)(void *owned));
/* Gives a .kvc the profile that it was packed with, open as long as the file, before rows are read.
 * Does nothing to another cache. Another profile is refused when rows are read. */
KVC_API void kvc_file_give_profile(struct kvc_file *f, struct kvc_profile *p);

KVC_API const char *kvc_file_format(const struct kvc_file *f); /* "kvc", "llama", ... */
/* Where a file came from. Texts belong to it. */
struct kvc_source_info {
    size_t size;        /* of this struct; set by the caller */
    const char *name;   /* for messages: the path, "(stdin)", "a.bin and 2 more" */
    uint64_t bytes;     /* of the file after decompression, or of all its members */
    const char *filter; /* "gzip", "xz", "zstd": it was compressed; "" */
    int is_file;        /* it is one file: no folder, archive or joined files */
    uint32_t members;   /* of the source; 0: it is one file */
    int packed;         /* it is a .kvc, whole */
    int has_bytes;      /* the source's own bytes can be given back */
};
/* -1 when info->size is not set. */
KVC_API int kvc_file_source(const struct kvc_file *f, struct kvc_source_info *info);
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
 * position 0, or where the metadata key tokens.first says. n may be NULL. */
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
    const char *part;  /* "live", "window", "state", "snapshot", "companion" */
    const char *role;  /* "K", "V", "latent", "R", "S", "queries", "hidden" */
    const char *dtype; /* "bf16", "q8_0", ... */
    uint32_t layer;
    uint32_t stream, snapshot;
    uint64_t rows, heads, dim; /* one row per cell: heads x dim values */
    uint64_t row_bytes;        /* bytes of a canonical row: head-major, dim contiguous */
};
KVC_API uint32_t kvc_file_tensors(const struct kvc_file *f);
/* -1 when there is no tensor i, or info->size is not set. */
KVC_API int kvc_file_tensor(const struct kvc_file *f, uint32_t i, struct kvc_tensor_info *info);
/* Position of a tensor's row. Rows are sorted by position. `row` must be below info.rows. */
KVC_API int64_t kvc_file_position(const struct kvc_file *f, uint32_t tensor, uint64_t row);
/* Canonical rows [first, first + n) of a tensor into dst, which has `size` bytes: n * row_bytes are
 * needed, and fewer are refused.
 *
 * A .kvc is decoded in blocks of up to 256 rows: a single row costs its whole block. For each
 * tensor, f keeps the last block that was read in part until it is closed. Reading row after row
 * therefore decodes every block once, while random access, or several threads that read single rows
 * of one tensor, decode blocks again. Reading many rows in one call is fastest. */
KVC_API int kvc_file_read(const struct kvc_file *f, uint32_t tensor, uint64_t first, uint64_t n,
                          void *dst, size_t size, struct kvc_error *e);
/* Reads everything and verifies every hash and digest of a .kvc; other formats have none and give
 * 0. threads 0: one per core. */
KVC_API int kvc_file_check(const struct kvc_file *f, unsigned threads, struct kvc_error *e);
/* Verifies every hash of a .kvc, and decodes nothing. Bytes of kvc_file_open_memory() must not
 * change afterwards: they are not hashed again when rows are read. */
KVC_API int kvc_file_check_hashes(const struct kvc_file *f, struct kvc_error *e);
/* Refuses a cache whose rows may be those of other tokens than its ids, or of none: padding, zeros.
 */
KVC_API int kvc_file_check_rows(const struct kvc_file *f, struct kvc_error *e);
/* Checks an open file in the place of kvc_file_check(). */
typedef int kvc_check_fn(void *state, const struct kvc_file *f, struct kvc_error *e);
struct kvc_check_options {
    size_t size;               /* of this struct */
    unsigned threads;          /* 0: one per core */
    kvc_progress_fn *progress; /* gets bytes; returns 0, as it cannot cancel; NULL: none */
    void *progress_state;
    kvc_check_fn *check; /* NULL: kvc_file_check() */
    void *check_state;
};
struct kvc_check_report {
    size_t size; /* of this struct; set by the caller */
    /* the file is a .kvc by its first bytes, its name or the options; other formats have no
     * checksums, and are only opened */
    int has_checksums;
    /* of a damaged .kvc, for kvc_file_survey() and kvc_file_damage(); the caller closes it. NULL:
     * the error says all */
    struct kvc_file *damaged;
};
/* Opens a path and checks it. Returns 0: it is whole; 1: it is a damaged .kvc, and *e has the first
 * damage, without the file's name; -1: trouble. `report` may be NULL. */
KVC_API int kvc_check(const char *path, const struct kvc_open_options *options,
                      const struct kvc_check_options *how, struct kvc_check_report *report,
                      struct kvc_error *e);

/* Statistics of one head's values, as kvc-dump --stats prints them. Block types are dequantised,
 * not rotated back. Values of 8 bits are multiplied by their scales where these are known, and else
 * as they are stored. */
struct kvc_head_stats {
    size_t size; /* of this struct; set by the caller */
    uint64_t values, nan, inf;
    double mean, rms, max_abs; /* over finite values; 0 without any: nan + inf are all values */
    /* channels whose rms is over 4 times the head's median channel rms */
    uint64_t outlier_channels;
    uint64_t worst_channel; /* the channel of largest rms */
    double worst_rms;
};
/* Fills head[0] to head[n - 1], of which the caller has set head[0].size; n is info.heads of the
 * tensor. Reads all of the tensor. */
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
    int whole; /* every row is whole */
};
/* One damaged place: a record, the header, the footer, or bytes that belong to no record. */
struct kvc_damage_info {
    size_t size;            /* of this struct; set by the caller */
    const char *kind;       /* "BLOCK", "META" and so on, "header", "footer", "bytes" */
    const char *place;      /* in words: "layer 0 V, tokens 0:200"; "" if it belongs to no tensor */
    const char *reason;     /* in words */
    uint64_t record;        /* number in the file; UINT64_MAX: none, or a missing one */
    uint64_t offset, bytes; /* in the file; offset UINT64_MAX: missing */
    const char *part, *role; /* of the tensor (kvc_tensor_info); NULL: none is known */
    uint32_t layer;
    int has_tokens; /* positions [first, end) are lost with it */
    int64_t first, end;
};
/* -1 when the file was not opened as damaged, or info->size is not set. */
KVC_API int kvc_file_survey(const struct kvc_file *f, struct kvc_survey_info *info);
/* -1 when there is no place i, or info->size is not set. */
KVC_API int kvc_file_damage(const struct kvc_file *f, uint64_t i, struct kvc_damage_info *info);

/* --- models --- */

/* Writes the identity of the model of a weights file (GGUF, safetensors or a folder of them) as
 * text of at most 128 bytes with its NUL: what prefix keys (kvc.5) are chained over, the same for
 * all programs that ask kvc. Reads every byte of the weights, with all cores. The hash of a large
 * file is remembered in $XDG_CACHE_HOME/kvc/weights or ~/.cache/kvc/weights until the file changes.
 */
KVC_API int kvc_model_identity(const char *weights, char *text, size_t size, struct kvc_error *e);

/* Open a weights file once for many files: for its facts, with a fingerprint of samples, and
 * with `full` of every byte, as kvc_model_identity(); for its values. A path in kvc_open_options is
 * opened with `full`. */
KVC_API struct kvc_model *kvc_shared_model_open(const char *path, int full, struct kvc_error *e);
KVC_API void kvc_shared_model_close(struct kvc_model *m);
KVC_API struct kvc_weights *kvc_shared_weights_open(const char *path, struct kvc_error *e);
KVC_API void kvc_shared_weights_close(struct kvc_weights *w);
/* Reads token ids from a file ("-": standard input): numbers in text, the JSON of an engine, 32-bit
 * numbers in a file that is named *tokens.bin, or a cache file, opened with the options. The caller
 * frees *ids with free(). No ids are an error. */
KVC_API int kvc_token_ids_read(const char *path, const struct kvc_open_options *options,
                               int32_t **ids, uint64_t *n, struct kvc_error *e);

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
    /* a file with queries; NULL: those of a, or of b, or where both have none and a was opened with
     * `model` or `weights`, an estimate from K and V of a */
    const struct kvc_file *queries;
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
    int64_t page, token, head, channel; /* strides, bytes; below 0 they are refused */
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
    /* of positions first_position, + 1, ...; as many as tokens: in the order of these positions;
     * NULL: unknown */
    const int32_t *token_ids;
    uint64_t n_token_ids;
    /* "KEY=VALUE": metadata (kvc.5), as "model.name=...", "rope.pairing=halves", "rope.theta=1e5";
     * NULL-terminated; NULL: none. */
    const char *const *facts;
};

/* Makes a handle of arrays in memory, which can be packed, read, compared and written as any other.
 * Nothing is copied: the arrays must stay as they are until the handle is closed; the structs and
 * the facts need not. */
KVC_API struct kvc_file *kvc_file_open_arrays(const struct kvc_memory *m, struct kvc_error *e);

struct kvc_load_how {
    size_t size;      /* of this struct */
    unsigned threads; /* 0: one per core */
    /* 1: floats of another dtype than the array's are rounded to it, block types are widened, and
     * values of 8 bits as well, times their scales (metadata scale.k, scale.v), which must be
     * known; 0: refused. Blocks of the array's dtype are copied. */
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
 * a base. Fixed. */
struct kvc_pool_strides {
    int64_t layer, kv, page, token, head, dim;
    int64_t reserved[2]; /* 0 */
};

/* How an engine lays out its pool of pages: the order of the axes, outermost first, out of L
 * (layer), 2 (K and V), B (page), T (token of a page), H (head), D (channel), C (K and V of a head
 * side by side); those before '/' are separate allocations. The library alone makes them. */
struct kvc_pool_layout {
    size_t size;        /* of this struct in the library */
    const char *name;   /* "vllm-flash" */
    const char *axes;   /* "L/2BTHD" */
    const char *k_axes; /* of K, where it lies otherwise than V; NULL: as V */
    const char *what;   /* "vLLM FlashAttention" */
};
/* The table of known layouts; NULL past its end. */
KVC_API const struct kvc_pool_layout *kvc_pool_layout_at(size_t i);
/* NULL: there is none of that name. */
KVC_API const struct kvc_pool_layout *kvc_pool_layout_find(const char *name);

/* Sizes of an engine's pool. Fixed. */
struct kvc_pool {
    uint64_t layers, pages, page_size, heads, dim;
    uint64_t value_bytes; /* of one value: 1, 2 or 4 */
    uint64_t reserved[2]; /* 0 */
};
/* Strides of K and of V in a densely packed pool. Returns how many allocations it consists of: 1,
 * layers (layer 0, 1, ...) or 2 * layers (layer 0 K, layer 0 V, layer 1 K, ...), whatever the order
 * in which the engine itself lists them. Axes that a layout lacks, or that tell allocations apart,
 * get stride 0; without H the pool must have one head. -1 for sizes of 0, for values that are not
 * of 1, 2 or 4 bytes, where `reserved` is not 0, and when an allocation would have more than 2^63 -
 * 1 bytes. */
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

/* Takes n bytes of output. Returns 0, or another number to stop with an input/output error. May be
 * NULL where the options have another one (put). */
typedef int kvc_write_fn(void *state, const void *data, size_t n);
/* Takes n bytes of output that begin at an offset, from any thread and in any order. Returns as
 * kvc_write_fn does. */
typedef int kvc_put_fn(void *state, uint64_t offset, const void *data, size_t n);

/* The fit of a profile to the numbers of a layer: mean square of coefficients of K and of V to the
 * profile's. Fixed. */
struct kvc_layer_fit {
    uint32_t layer;
    uint32_t reserved; /* 0 */
    double ratio[2];
    double reserved_too[2]; /* 0 */
};
/* What was written. Texts and layers are freed by kvc_write_report_free(), also before the report
 * is filled again. */
struct kvc_write_report {
    size_t size;    /* of this struct; set by the caller */
    uint64_t bytes; /* of the output */
    /* For packing. */
    /* of all rows in the source's types, without companions that were left out: ratios are of them;
     * of these, those of the last rows that are zeros */
    uint64_t row_bytes, zero_bytes;
    uint64_t tensor_bytes; /* of the rows that were coded */
    uint64_t records, sections;
    uint64_t same_rows; /* stored as references to others */
    int lossless;       /* the rows that were coded */
    int dequantized;    /* they are not the source's own: K or V were dequantised */
    int no_companions;  /* queries and hidden states were left out */
    int needs_profile;  /* to be read */
    /* of the stage code: the step, 0: there is no such stage; estimated drift of the text's own
     * continuation and of recall, 0: unknown; the error that was asked for, measured */
    double step, kld[2], target_error;
    /* with `measure`: error left in K and in V, relative, of lossy rows; the recipe with its step;
     * which tensors it left as they were, as "K of layers 0-14,20; V of layer 3" */
    double error[2];
    const char *recipe, *exact;
    const char *fit; /* "good", "doubtful", "bad", "unknown"; NULL: no stage uses a profile */
    double fit_ratio[2];
    const struct kvc_layer_fit *layers;
    uint32_t n_layers;
    void *owned;
    /* with a base: rows of the tensors of attention that stay as it has them, and all their rows */
    uint64_t base_rows, rows;
};
/* Frees what the report points to, also of one that was never filled but for its size. NULL is
 * legal. */
KVC_API void kvc_write_report_free(struct kvc_write_report *r);

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
    /* for recipes that ask attention: a file with queries; NULL: f's own, or where f has none and
     * was opened with `model` or `weights`, an estimate from K and V */
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

    kvc_put_fn *put; /* takes the output in the place of the write function, faster; NULL: none */
    kvc_note_fn *note;
    void *note_state;
    struct kvc_write_report *report; /* NULL: none is wanted */
    /* For packing. */
    int measure; /* measure errors for the report, which takes time */
    int exact;   /* refuse a recipe that would lose values */
    /* a .kvc whose rows are the first of f, and whose blocks are copied as they are; NULL: none */
    const struct kvc_file *reuse;
    /* For unpacking. */
    /* 1: format NULL also writes a new file of the source's format, with equal values, where the
     * source's own bytes are not there; and a format that is the source's own, without options
     * here and without settings, facts and ids at opening, gives the source's own bytes where they
     * have the layout that is written */
    int nearest;
    /* write files of so many tokens each, named STEM-POSITION, with a format that is named; 0: one
     * file */
    uint64_t blocks;
    const char *stem; /* NULL: "block" */
    /* For packing: leave out prefix keys and what else confirms a guess of the text */
    int no_keys;
    /* For packing a cache that came out of a .kvc, and may have grown since: this .kvc. First rows
     * that are as it has them, bit by bit, keep its blocks, and the others are coded as its own
     * were, so that no row goes through a lossy recipe twice. Recipe, profile and step are those of
     * the base: no recipe, target or other profile is given beside it. NULL: none. */
    const struct kvc_file *base;
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

/* What unpacking will write. */
struct kvc_target_info {
    size_t size;        /* of this struct; set by the caller */
    const char *format; /* NULL: the source's own bytes */
    const char *suffix; /* usual for its files, with the dot; NULL likewise */
    int members;        /* several files: a folder or an archive */
    uint64_t bytes;     /* of the source, or about those of the values; 0: unknown */
};
KVC_API int kvc_file_target(const struct kvc_file *f, const char *format,
                            const struct kvc_write_options *options, struct kvc_target_info *info,
                            struct kvc_error *e);

/* --- profiles --- */

/* Opens a profile once for many files, which several threads may pack and open with it. Files hold
 * what they use: it may be closed while they are open. */
KVC_API struct kvc_profile *kvc_shared_profile_open(const char *path, struct kvc_error *e);
/* The same of its bytes, which are copied. */
KVC_API struct kvc_profile *kvc_shared_profile_open_memory(const void *data, size_t size,
                                                           struct kvc_error *e);
/* kvc_shared_profile_close(NULL) is legal */
KVC_API void kvc_shared_profile_close(struct kvc_profile *p);
/* Returns the profile, of those in the folders where profiles stay to be had (kvc-profile(5)), with
 * which f is best packed by the recipe in `options`: of the same weights where both have a
 * fingerprint, else of the same shape and RoPE, and of a good fit to the values. NULL where there
 * is none, or the recipe takes none: *e is 0 then. */
KVC_API struct kvc_profile *kvc_shared_profile_choose(const struct kvc_file *f,
                                                      const struct kvc_write_options *options,
                                                      struct kvc_error *e);
/* Returns how a profile fits f, by facts and values, as packing measures it: "good", "doubtful",
 * "unknown" (neither has what could be measured), or "bad", with which packing refuses it. Of
 * `options`, which may be NULL, `dequantize` and `threads` count. NULL with *e for a request that
 * makes no sense. */
KVC_API const char *kvc_shared_profile_fit(struct kvc_profile *p, const struct kvc_file *f,
                                           const struct kvc_write_options *options,
                                           struct kvc_error *e);
/* Opens the profile of this hash, from these folders; `model`, its name, is for the message, and
 * may be NULL. */
KVC_API struct kvc_profile *kvc_shared_profile_find(const uint8_t sha256[32], const char *model,
                                                    struct kvc_error *e);
/* Returns 1 if readers of the .kvc at `path` (NULL: of bytes in no folder) find the profile without
 * being told of it. Otherwise 0, and `command` gets a command of the shell that puts the file of
 * the profile where they do; "" if there is none. */
KVC_API int kvc_shared_profile_kept(const struct kvc_profile *p, const char *path, char *command,
                                    size_t size);
/* Writes the path of the folder that new profiles are put into, whether it exists or not: the
 * user's, or the first of $KVC_PROFILE_PATH where the user's is not searched. Returns 0 if there is
 * none, or no room for it. */
KVC_API int kvc_shared_profile_folder(char *path, size_t size);
/* Takes the path of a file. Returns other than 0 to end the visits. */
typedef int kvc_profile_visit_fn(void *state, const char *path);
/* Visits the files *.kvcp of the folders of profiles, in the order in which these are searched.
 * Returns what ended the visits, or 0. */
KVC_API int kvc_shared_profile_visit(kvc_profile_visit_fn *visit, void *state);
struct kvc_profile_info {
    size_t size;       /* of this struct; set by the caller */
    const char *model; /* ""; texts belong to the profile */
    uint8_t sha256[32];
    const char *metric; /* "fisher", "query", "covariance" */
    int predicts;       /* layers from others: the default recipe uses it */
    const char *path;   /* of its file */
    const void *data;   /* its file, which belongs to it */
    size_t bytes;
};
KVC_API int kvc_shared_profile_describe(const struct kvc_profile *p, struct kvc_profile_info *info);

/* A profile that is learnt from caches of one model, as by kvc-profile learn
 * (kvc-profile.5). */
struct kvc_learning;
KVC_API struct kvc_learning *kvc_learning_new(struct kvc_error *e);
/* Returns from how many tokens of caches of different texts a profile is worth learning. *of_one
 * gets up to how many of one cache count; those beyond *most, all together, improve it little, and
 * take time in proportion. Either may be NULL. */
KVC_API uint64_t kvc_learning_least(uint64_t *most, uint64_t *of_one);
/* Returns `back` (below) that suits caches like f: predictors take memory, time and bytes of the
 * profile in proportion to the square of a row's values. */
KVC_API unsigned kvc_learning_back(const struct kvc_file *f);
struct kvc_learning_options {
    size_t size;   /* of this struct */
    unsigned back; /* predict each layer from so many before it, at most 7; 0: not at all */
    /* a profile, open as long as the learning, to which predictors are added; NULL: all is learnt
     */
    struct kvc_profile *base;
    int force_profile; /* add also from caches that do not fit it */
    unsigned threads;  /* at most; 0: one per core */
    /* Asked while gradients are measured, which takes minutes for large models: 1 goes on without
     * those of the cache. NULL: never. */
    int (*stop)(void *state);
    void *stop_state;
};
/* kvc_learning_new() predicts each layer from the one before. */
KVC_API struct kvc_learning *kvc_learning_start(const struct kvc_learning_options *options,
                                                struct kvc_error *e);
KVC_API void kvc_learning_free(struct kvc_learning *l); /* kvc_learning_free(NULL) is legal */
/* Adds a cache; f may be closed afterwards. KVC_ERR_OTHER_MODEL, and nothing is added, where the
 * weights that f was opened with make other K and V of its tokens. After an error in what is added
 * the learning is of no use, and all that is asked of it fails. */
KVC_API int kvc_learning_add(struct kvc_learning *l, const struct kvc_file *f, struct kvc_error *e);
/* Writes the profile. */
KVC_API int kvc_learning_write(struct kvc_learning *l, kvc_write_fn *write, void *state,
                               struct kvc_error *e);
/* Opens the profile, as from its bytes: what a reader would refuse is no profile. */
KVC_API struct kvc_profile *kvc_learning_profile(struct kvc_learning *l, struct kvc_error *e);
struct kvc_learning_info {
    size_t size;     /* of this struct; set by the caller */
    int has_queries; /* of every layer; without, files come out larger */
    int knows_rope;  /* of all caches; without, K is learnt as it is rotated */
    /* caches without queries, whose queries were estimated from K, V and the weights that the file
     * was opened with; why those of another could not be, "" if they could. The text is the
     * learning's. */
    unsigned estimated;
    const char *not_estimated;
    /* of every layer: what predictions say of errors in the first caches, by the weights; without,
     * files come out larger. Why those of a cache are not known, "" if they are: likewise */
    int has_gradients;
    const char *not_measured;
};
KVC_API int kvc_learning_describe(const struct kvc_learning *l, struct kvc_learning_info *info);

/* --- prefixes and namespaces, for stores of caches --- */

#define KVC_PREFIX_TOKENS 256 /* of a run, which has a key (kvc.5, "Prefix keys") */
#define KVC_KEY_BYTES 32
#define KVC_IDENTITY_BYTES 128 /* of the text of kvc_model_identity() */
#define KVC_RECIPE_BYTES 2048  /* of a recipe with its NUL, at most, in all versions */

/* Which prefix a cache holds. Pointers belong to the file. */
struct kvc_prefix_info {
    size_t size;           /* of this struct; set by the caller */
    uint64_t first;        /* position of its first token id */
    uint64_t end;          /* the position after its last row */
    const uint8_t *parent; /* the key at `first`; NULL: it begins at 0, or the key is unknown */
    const uint8_t *keys;   /* of its runs, KVC_KEY_BYTES each */
    uint64_t n_keys;
    int can_be_cut;         /* no layer keeps a window or a state */
    int is_complete;        /* every layer has rows of exactly the tokens that it has ids of */
    const void *name;       /* in a store (store.name); NULL: none */
    size_t name_bytes;      /* of it */
    const uint8_t *profile; /* SHA-256 of a profile that decoding needs and that is missing; NULL */
};
KVC_API int kvc_file_prefix(const struct kvc_file *f, struct kvc_prefix_info *info);
/* Refuses a cache whose keys do not follow from its parent, tokens and extras. */
KVC_API int kvc_file_check_prefix(const struct kvc_file *f, struct kvc_error *e);
/* Writes the n / KVC_PREFIX_TOKENS keys of tokens from position 0 on, after an identity, into
 * `size` bytes, KVC_KEY_BYTES for each. `start` (NULL: nobody asks) gets the key before the first
 * run. */
KVC_API int kvc_prefix_chain(const char *identity, const int32_t *tokens, uint64_t n,
                             const struct kvc_prefix_extra *extras, size_t n_extras,
                             uint8_t start[KVC_KEY_BYTES], uint8_t *keys, size_t size,
                             struct kvc_error *e);
/* The same of the first n tokens of a file, with its extras. */
KVC_API int kvc_file_prefix_chain(const struct kvc_file *f, const char *identity, uint64_t n,
                                  uint8_t *keys, size_t size, struct kvc_error *e);

/* A namespace: all facts, beside the tokens, by which a cache can stand for another one (kvc.5,
 * "Namespace"). */
struct kvc_namespace_facts {
    size_t size;               /* of this struct; set by the caller */
    uint8_t ns[KVC_KEY_BYTES]; /* the hash of the facts */
    char identity[KVC_IDENTITY_BYTES];
    char fidelity[KVC_RECIPE_BYTES]; /* "lossless", or the recipe that the values went through */
    uint8_t tenant[KVC_KEY_BYTES];
    int has_tenant;
    uint64_t chunk;                /* tokens of a store's object */
    int lossless;                  /* the recipe that caches are packed with loses nothing */
    char recipe[KVC_RECIPE_BYTES]; /* its text, with the step that packing finds; "": none was given
                                    */
};
struct kvc_namespace_options {
    size_t size;                        /* of this struct */
    const char *recipe;                 /* that caches are packed with; NULL: a lossless one */
    struct kvc_profile *shared_profile; /* that it packs with; NULL: none */
    uint64_t chunk;                     /* 0: by the size of a token, 256 to 1024 */
    const uint8_t *tenant;              /* KVC_KEY_BYTES of a secret; NULL: none */
};
#define KVC_NAMESPACE_TEXT 65536 /* bytes of the text of a namespace, at most */
/* Returns the facts of the namespace of f, once it is packed, as text that a store keeps, a line
 * each; the caller frees it with free(). f needs no tokens and no rows. With options, as a store
 * has them, refuses RoPE that depends on a length and lacks a rope.source. */
KVC_API char *kvc_namespace_of(const struct kvc_file *f,
                               const struct kvc_namespace_options *options,
                               struct kvc_namespace_facts *facts, struct kvc_error *e);
/* Reads such a text, and computes the namespace of what it says. */
KVC_API int kvc_namespace_read(const char *text, size_t size, struct kvc_namespace_facts *facts,
                               struct kvc_error *e);
/* Finds what two such texts differ in, from *at on, which begins with 0. Writes "dtype (bf16 here,
 * f16 there)". Returns 0 when there is nothing more. */
KVC_API int kvc_namespace_differ(const char *here, const char *there, size_t *at, char *text,
                                 size_t size);
/* Computes the namespace of a .kvc as it is. `tenant` as above. */
KVC_API int kvc_file_namespace(const struct kvc_file *f, uint64_t chunk, const uint8_t *tenant,
                               uint8_t ns[KVC_KEY_BYTES], struct kvc_error *e);
/* Returns 1 if values that a recipe coded are of a fidelity: a step that packing finds is no
 * difference. */
KVC_API int kvc_recipe_has_fidelity(const char *recipe, const char *fidelity);

/* --- what this library knows, for help texts and lists --- */

/* Format i; -1 past the last, or when info->size is not set. */
struct kvc_format_info {
    size_t size;      /* of this struct; set by the caller */
    const char *name; /* as kvc_open_options and kvc_file_unpack() take it */
    const char *what; /* in a line */
    const char *suffix;
    int written; /* it can be written as well as read */
    /* an option of the tools that takes all options of reading, without "--"; NULL: none */
    const char *tool;
};
KVC_API int kvc_format_describe(size_t i, struct kvc_format_info *info);
/* Option i of reading, or of writing, a format; -1 past the last. */
struct kvc_format_option_info {
    size_t size;       /* of this struct; set by the caller */
    const char *key;   /* "KEY=VALUE" in `set` */
    const char *value; /* a word for it */
    int is_flag;       /* "KEY" alone */
    const char *tool;  /* an option of the tools that means the same; NULL: none */
    const char *what;  /* in a line */
};
KVC_API int kvc_format_option_describe(const char *format, int writing, size_t i,
                                       struct kvc_format_option_info *info);
/* Checks a format "NAME:KEY=VALUE,KEY=VALUE", and those of `set` (NULL: none) that are its options.
 */
KVC_API int kvc_format_check(const char *format, int writing, const char *const *set,
                             struct kvc_error *e);
/* Checks a fact "KEY=VALUE" (`facts` of kvc_open_options). */
KVC_API int kvc_fact_check(const char *fact, struct kvc_error *e);
/* Names of presets, whose meaning in a line *what gets (may be NULL), and of stages: both are
 * recipes. NULL past the last. */
KVC_API const char *kvc_preset_name(size_t i, const char **what);
KVC_API const char *kvc_stage_name(size_t i);
struct kvc_recipe_info {
    size_t size;  /* of this struct; set by the caller */
    int lossy;    /* some stage is */
    int rebuilds; /* K and V from hidden states */
    int profiled; /* a profile of the model serves some stage */
};
/* Reads a recipe; -1 with *e where it is none. info may be NULL. */
KVC_API int kvc_recipe_describe(const char *recipe, struct kvc_recipe_info *info,
                                struct kvc_error *e);
/* Kernels: name i of those in this build, NULL past the last; and those that are used. */
KVC_API const char *kvc_kernel_name(size_t i);
struct kvc_kernels_info {
    size_t size;      /* of this struct; set by the caller */
    const char *name; /* NULL: $KVC_KERNEL names none that this CPU can run */
    const char *rans_encode, *rans_decode;
    int by_trial;            /* these were found by a trial */
    const char *predictions; /* the kernels that multiply for these */
};
KVC_API int kvc_kernels_describe(struct kvc_kernels_info *info);
/* Writes the names that resemble `word` most, of those that `names` lists with a NULL at its end,
 * as "kivi2, kivi4"; "" where none does. Returns text. */
KVC_API const char *kvc_similar_names(const char *word, const char *const *names, char *text,
                                      size_t size);

#ifdef __cplusplus
}
#endif

#endif
