/* import.h: what importers share: the members that they read, the extents of the others, and the
 * begin and end of a cache. Not for the bytes of any format. */
#ifndef KVC_IMPORT_H
#define KVC_IMPORT_H

#include "formats/cache/format.h"

/* --- options --- */

/* Rows of tables of options. */
#define KVC_TEXT_OPTION(KEY, VALUE) \
    { .key = (KEY), .kind = KVC_OPTION_TEXT, .value = (VALUE) }
#define KVC_COUNT_OPTION(KEY, MIN, MAX, VALUE) \
    { .key = (KEY), .kind = KVC_OPTION_COUNT, .min = (MIN), .max = (MAX), .value = (VALUE) }
#define KVC_LATENT_OPTION                                                                     \
    {                                                                                         \
        .key = "latent", .kind = KVC_OPTION_FLAG, .tool = "latent",                           \
        .help = "the model has latent attention, and the cache no V (llama, hicache, arrays)" \
    }

/* --- members --- */

/* Returns 1 if a member is read: the one file, or of several those with a suffix of a list that
 * ends with NULL, but for what macOS keeps beside them. Others are kept as literal bytes. */
int kvc_member_is_read(const struct kvc_bundle *b, size_t i, const char *const *suffixes);
/* Returns 1 for members that file systems of macOS keep beside the files (._NAME, .DS_Store). */
int kvc_member_is_beside(const char *name);
/* Returns the path of the one file, which may be NULL, or the name of a member. */
const char *kvc_member_path(const struct kvc_bundle *b, size_t i);
/* Puts the name of a member before a message, but not that of the one file. Returns -1. */
int kvc_member_failed(const struct kvc_bundle *b, size_t i, struct kvc_error *e);

/* Probes the members that are read until one is of the format. `none` is the reason where there
 * are none. Returns what `probe` returned last, as kvc_format.probe does. */
int kvc_members_probe(const struct kvc_bundle *b, const char *const *suffixes, const char *none,
                      int (*probe)(const struct kvc_bundle *b, size_t i, const struct kvc_input *in,
                                   char *why, size_t size),
                      char *why, size_t size);

/* Opens a member, and begins its extents where the source has several. NULL and *e on failure. */
const struct kvc_input *kvc_member_begin(struct kvc_cache *c, const struct kvc_bundle *b, size_t i,
                                         struct kvc_error *e);
/* Adds a member that is not read. */
int kvc_member_literal(struct kvc_cache *c, const struct kvc_bundle *b, size_t i,
                       struct kvc_error *e);

/* Returns 1 if a file begins as safetensors, with a header of at most `most` bytes of JSON that
 * contains one of the words, which end with NULL; without words, any header. *n gets its bytes. */
int kvc_member_header(const struct kvc_input *in, uint64_t most, const char *const *words,
                      uint64_t *n);
/* Opens the file of a path or, in a bundle of several, the member of a name, for what lies beside a
 * cache. *own holds the file, which the caller closes if `own` is returned. NULL: there is none. */
const struct kvc_input *kvc_member_beside(const struct kvc_bundle *b, const char *name,
                                          struct kvc_input *own);

/* --- the cache --- */

/* Makes an empty cache whose tensors can be mapped (mapped.h). */
struct kvc_cache *kvc_import_begin(struct kvc_error *e);
/* Returns the cache if `status` is 0; else frees it, which may be NULL, and returns NULL. */
struct kvc_cache *kvc_import_end(struct kvc_cache *c, int status);

/* Adds a live part of `tokens` cells at positions from `first` on. */
int kvc_import_cells(struct kvc_cache *c, uint64_t tokens, uint64_t first, struct kvc_error *e);
/* Adds n layers with numbers from `first` on to the last part. */
int kvc_import_layers(struct kvc_cache *c, uint32_t first, uint64_t n, int latent,
                      struct kvc_error *e);

/* Returns the dtype that torch, vLLM or LMCache names so, also after "torch."; NULL: none does. */
const struct kvc_dtype_info *kvc_import_dtype(const char *name);
/* Returns the name that vLLM writes for a dtype; NULL: its caches have no such values. */
const char *kvc_import_dtype_name(enum kvc_dtype dtype);

/* Sets the metadata that most formats share: format, size in bytes, heads and layers known, no
 * Hadamard rotation. The pairing is o->pairing when given, else `pairing`, else none. `assumed` is
 * 1 where nothing in the file says the pairing. */
int kvc_import_meta(struct kvc_cache *c, const char *format, const struct kvc_bundle *b,
                    const struct kvc_import_options *o, enum kvc_pairing pairing, int assumed,
                    struct kvc_error *e);
/* The same of K as transformers pairs it, because the engine does so, though no file says it.
 * Latents are not known to be paired. */
int kvc_import_meta_assumed(struct kvc_cache *c, const char *format, const struct kvc_bundle *b,
                            const struct kvc_import_options *o, int latent, struct kvc_error *e);

#endif
