/* format.h: the table of file formats: a row {name, probe, import, export} each. Not for the container's
 * inside (container.h). A new engine format is one file, one spec paragraph and one row in formats.c. */
#ifndef KVC_FORMAT_H
#define KVC_FORMAT_H

#include "formats/cache/cache.h"
#include "formats/cache/rope_pairing.h"
#include "formats/io/input.h"
#include "formats/io/sink.h"

struct kvc_weights;

/* What the caller knows better than the file. Zero means "not given". */
struct kvc_import_options {
    const char *format;       /* a row's name: skip probing; NULL: probe */
    const char *const *map;   /* safetensors, npz: "keys=PATTERN" and so on, NULL-terminated */
    uint32_t kv_heads;        /* where the file does not say (llama.cpp): kvc_import() applies it */
    enum kvc_pairing pairing; /* RoPE pairing of K, likewise */
    int latent;               /* llama.cpp: the cache has no V (latent attention); cannot be told from a cut file */
    const struct kvc_weights *weights; /* .kvc: of the model, where K and V are rebuilt from hidden states; outlives it */
    const char *profile;               /* .kvc: path of the profile that it was packed with; NULL: look for it */
    const char *profile_folders;       /* .kvc: where to look for it beside the file's own folder, separated by colons; or NULL */
    int salvage;                       /* .kvc: it may be damaged: see salvage.h; with `format` "kvc" */
    /* raw: the whole geometry */
    const char *raw_dtype;
    const char *raw_order; /* permutation of "lcthd": layer, k/v, token, head, dim; see raw.c */
    uint64_t raw_layers, raw_tokens, raw_heads, raw_dim, raw_offset;
};

struct kvc_export_options {
    enum kvc_pairing pairing;    /* 0: the target's own convention where it has one */
    uint32_t llama_version;      /* 0: newest that fits */
};

struct kvc_format {
    const char *name;    /* as --from and --to take it */
    const char *summary; /* one line */
    const char *suffix;  /* default file name suffix, with the dot */

    /* 1 when the bytes look like this format, else 0 and the reason in `why`. Cheap; trusts nothing. */
    int (*probe)(const struct kvc_input *in, char *why, size_t size);
    /* Builds the model over in's mapping, which must outlive the cache. NULL: cannot import. */
    struct kvc_cache *(*import)(const struct kvc_input *in, const struct kvc_import_options *o, struct kvc_error *e);
    /* Writes the cache in this format. NULL: cannot export. */
    int (*export)(const struct kvc_cache *c, const struct kvc_export_options *o, struct kvc_sink *out,
                  struct kvc_error *e);
};

const struct kvc_format *kvc_format_find(const char *name);
const struct kvc_format *kvc_format_at(size_t i); /* NULL past the end */

/* For kvc_input_open_sniffed(), with the import options as `state` (or NULL): refuses what no format begins with. What
 * o->format names is not looked at. */
int kvc_format_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e);

/* Probes (or takes o->format) and imports. `*format` says which row. An unknown input's message lists what was
 * tried and why each refused. Messages carry in->name. */
struct kvc_cache *kvc_import(const struct kvc_input *in, const struct kvc_import_options *o,
                             const struct kvc_format **format, struct kvc_error *e);

extern const struct kvc_format kvc_format_kvc;
extern const struct kvc_format kvc_format_llama;
extern const struct kvc_format kvc_format_safetensors;
extern const struct kvc_format kvc_format_npz;
extern const struct kvc_format kvc_format_raw;

/* Writes the source's own file again, byte for byte when the cache is lossless (c->n_extents != 0). */
int kvc_source_write(const struct kvc_cache *c, unsigned threads, struct kvc_sink *out, struct kvc_error *e);

#endif
