/* format.h: the table of file formats: a row {name, probe, import, export} each. Not for the
 * container's inside (container.h). A new engine format is one file, one paragraph of ENGINES.md
 * and one row of KVC_FORMATS. */
#ifndef KVC_FORMAT_H
#define KVC_FORMAT_H

#include "formats/cache/cache.h"
#include "formats/cache/facts.h"
#include "formats/cache/rope_names.h"
#include "formats/io/bundle.h"
#include "formats/io/member_sink.h"
#include "formats/io/sink.h"

struct kvc_weights;

/* An option of a format, for reading or for writing: "KEY=VALUE", after the format's name and a
 * colon, or alone. */
enum kvc_option_kind {
    KVC_OPTION_TEXT,
    /* a number from `min` to `max`; K, M or G after it: times 1024, 1024^2, 1024^3 */
    KVC_OPTION_COUNT,
    KVC_OPTION_FLAG, /* "KEY" alone */
    KVC_OPTION_LIST  /* texts: the option may be given several times */
};
struct kvc_format_option {
    const char *key;
    enum kvc_option_kind kind;
    uint64_t min, max;
    const char *value; /* name of the value in help texts */
    const char *tool;  /* an option of the tools that means the same, without "--"; NULL: none */
    const char *help;  /* for help texts, which wrap it */
};
#define KVC_MAX_FORMAT_OPTIONS 8

/* The value of an option; an importer finds it at the option's position in its row's table. */
struct kvc_option_value {
    const char *text;        /* NULL: not given */
    uint64_t count;          /* 0: not given; of a flag 1 */
    const char *const *list; /* NULL-terminated, never NULL */
};

/* Facts that the caller knows and the file may not. Zero means "not given". */
struct kvc_import_options {
    /* a row's name, also with options: "raw:dtype=f16,tokens=9"; skips probing. NULL: probe */
    const char *format;
    /* "KEY=VALUE" for any format, NULL-terminated; formats without the option ignore it */
    const char *const *set;
    const struct kvc_option_value *value; /* for importers, by kvc_import(): of the row's options */
    /* for files that do not say (llama.cpp); kvc_import() applies it */
    uint32_t kv_heads;
    enum kvc_pairing pairing; /* RoPE pairing of K, likewise */
    int latent;               /* 1: the model may keep latents and no V, likewise */
    /* .kvc: of the model, if K and V are rebuilt from hidden states; must outlive the cache */
    const struct kvc_weights *weights;
    /* .kvc: path of the profile that the file was packed with; NULL: it is searched for */
    const char *profile;
    /* .kvc: folders to search for the profile after the file's own, joined by colons; NULL: those
     * where profiles stay to be had */
    const char *profile_folders;
    struct kvc_profile *open_profile; /* .kvc: a profile that is open already; NULL: none */
    int no_verify;                    /* .kvc: do not compare decoded rows with their digests */
    /* .kvc: bytes that decoding may take, container.h; 0: the default */
    uint64_t max_memory;
    /* .kvc: the file may be damaged (salvage.h); only with `format` "kvc" */
    int salvage;
    const char *const *facts; /* "KEY=VALUE", which replace those of the file and of its model
                                 (facts.h), NULL-terminated; NULL: none */
};

struct kvc_export_options {
    enum kvc_pairing pairing; /* 0: the convention of the target, if it has one */
    /* "KEY=VALUE,KEY=VALUE" for the target, as after its name and a colon; NULL: none */
    const char *own;
    /* "KEY=VALUE" for whatever target it is, NULL-terminated; NULL: none */
    const char *const *set;
    const struct kvc_option_value *value; /* for exporters, by kvc_export() */
};

/* What a format does not store. */
enum kvc_format_lack {
    KVC_LACKS_TOKENS = 0x1, /* token ids */
    /* positions of rows, so rows must be those of positions 0, 1, 2, ... */
    KVC_LACKS_POSITIONS = 0x2,
    KVC_LACKS_COORDINATES = 0x4, /* further coordinates of cells (M-RoPE) */
    KVC_LACKS_LAYERS = 0x8,      /* numbers of layers */
    KVC_LACKS_WINDOWS = 0x10,    /* sliding windows of layers that hold all tokens */
    KVC_LACKS_COMPANIONS = 0x20, /* queries and hidden states */
    KVC_LACKS_SNAPSHOTS = 0x40,  /* parts of kind KVC_PART_SNAPSHOT */
    KVC_LACKS_NAME = 0x80,       /* the model's name */
    KVC_LACKS_FACTS = 0x100,     /* other facts of the model, RoPE and the source */
    KVC_LACKS_PAIRING = 0x200,   /* the pairing of K, which readers take to be halves */
    KVC_LACKS_ROTATION = 0x400,  /* Hadamard rotation, which stays in the values */
    /* that a fact is unknown: heads, rotation and pairing are taken to be the format's own */
    KVC_LACKS_UNKNOWNS = 0x800,
    KVC_LACKS_SHAPES = 0x1000, /* types and shapes that differ between tensors */
    KVC_LACKS_SCALES = 0x2000, /* scales of values of 8 bits */
    KVC_LACKS_METADATA = KVC_LACKS_NAME | KVC_LACKS_FACTS | KVC_LACKS_WINDOWS | KVC_LACKS_SCALES
};

struct kvc_format {
    const char *name;    /* as users spell it */
    const char *summary; /* one line */
    const char *suffix;  /* default file name suffix, with the dot */

    /* up to KVC_MAX_FORMAT_OPTIONS; the last has no key */
    const struct kvc_format_option *import_options, *export_options;
    /* an option of the tools that takes all import options at once, without "--"; NULL: none */
    const char *tool;
    unsigned lacks; /* enum kvc_format_lack bits, of what is written */
    /* 0 for dtypes that are written as float32; NULL: all are written as they are */
    int (*keeps)(enum kvc_dtype dtype);
    /* why a source's own bytes may be missing though nothing was left out; NULL: they never are */
    const char *no_source;
    /* Returns 1 if a file of this format is as it is written without options, so that its own bytes
     * may be returned instead. NULL: it always is. */
    int (*is_default)(const struct kvc_cache *c);
    /* 1: a cache of this format may consist of several members; 0: it is one file */
    int takes_members;

    /* Returns 1 if the bytes look like this format, -1 if only their beginning does, else 0. If not
     * 1, `why` gets the reason. Must be cheap, and trust nothing. */
    int (*probe)(const struct kvc_bundle *b, char *why, size_t size);
    /* Builds the model over the members' bytes; the bundle must outlive the cache. NULL: cannot
     * import. */
    struct kvc_cache *(*import)(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                struct kvc_error *e);
    /* Writes the cache in this format: as one file, or as members. A row has at most one of the
     * two; a format with neither cannot be written. */
    int (*export)(const struct kvc_cache *c, const struct kvc_export_options *o,
                  struct kvc_sink *out, struct kvc_error *e);
    int (*export_members)(const struct kvc_cache *c, const struct kvc_export_options *o,
                          const struct kvc_member_sink *out, struct kvc_error *e);
};

/* Returns the row of a name, which may have options after a colon; NULL: there is none. */
const struct kvc_format *kvc_format_find(const char *name);
const struct kvc_format *kvc_format_at(size_t i); /* NULL past the end */
/* Returns the row of the file that a cache came from first, or NULL. */
const struct kvc_format *kvc_format_of_source(const struct kvc_cache *c);

/* For kvc_input_open_how(), with the import options as `state` (or NULL): refuses an input whose
 * first bytes are of no format. An input whose format o->format names is not examined. */
int kvc_format_sniff(const struct kvc_input *head, const void *state, struct kvc_error *e);

/* Makes a bundle of a file: of its members, if the file is an archive and the named format, if any,
 * takes members; else of the file itself. The file must outlive the bundle. */
int kvc_bundle_of(struct kvc_bundle *b, const struct kvc_input *in,
                  const struct kvc_import_options *o, struct kvc_error *e);

/* Finds the format by probing, or takes o->format, and imports. *format gets the row. For an
 * unknown input, the message shows its first bytes, and says why a format refused it whose
 * beginning it has; for several files, why every format of several files did. Messages begin with
 * the bundle's name. */
struct kvc_cache *kvc_import(const struct kvc_bundle *b, const struct kvc_import_options *o,
                             const struct kvc_format **format, struct kvc_error *e);

/* The same for one file, which must outlive the cache: with all rows, or with one. */
struct kvc_cache *kvc_import_file(const struct kvc_input *in, const struct kvc_import_options *o,
                                  const struct kvc_format **format, struct kvc_error *e);
struct kvc_cache *kvc_format_import(const struct kvc_format *f, const struct kvc_input *in,
                                    const struct kvc_import_options *o, struct kvc_error *e);
int kvc_format_probe(const struct kvc_format *f, const struct kvc_input *in, char *why,
                     size_t size);

int kvc_format_is_written(const struct kvc_format *f); /* 1: the format can be written */
/* Writes a cache in a format that can be written; members become a tar archive. o may be NULL. */
int kvc_export(const struct kvc_format *f, const struct kvc_cache *c,
               const struct kvc_export_options *o, struct kvc_sink *out, struct kvc_error *e);
/* The same to members, or to out->out where the format is one file. */
int kvc_export_members(const struct kvc_format *f, const struct kvc_cache *c,
                       const struct kvc_export_options *o, const struct kvc_member_sink *out,
                       struct kvc_error *e);

/* All formats, in the order in which input is probed. The text source.format in the metadata of a
 * cache begins with the name of its format. */
#define KVC_FORMATS(ROW) \
    ROW(kvc)             \
    ROW(llama)           \
    ROW(vllm)            \
    ROW(vllm_blocks)     \
    ROW(mlx)             \
    ROW(lmcache_gds)     \
    ROW(safetensors)     \
    ROW(torch)           \
    ROW(npz)             \
    ROW(lmcache)         \
    ROW(hicache)         \
    ROW(raw)
#define KVC_DECLARE(NAME) extern const struct kvc_format kvc_format_##NAME;
KVC_FORMATS(KVC_DECLARE)
#undef KVC_DECLARE

#endif
