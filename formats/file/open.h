/* open.h: opens a file, a folder or bytes as a cache, and adds the facts of its model. The one way
 * in, for users of libkvc and the tools. Not for the formats (engines/, container/). */
#ifndef KVC_OPEN_H
#define KVC_OPEN_H

#include "formats/cache/format.h"
#include "formats/model/model.h"

/* Facts that the caller knows. All zero: none. */
struct kvc_opening {
    struct kvc_import_options import; /* kv_heads 0: the model's, if there is one */
    const struct kvc_model *model;    /* facts of the model's weights (model.h); NULL: none */
    /* 1: files are mapped, and a file that is truncated while it is open raises SIGBUS; 0: files
     * are read */
    int maps_files;
    int any_bytes; /* 1: do not refuse a pipe by its first bytes */
};

/* A cache and its source. The struct must not be moved: its fields point at each other. */
struct kvc_opened {
    struct kvc_input input; /* of a folder or several files: a name and no bytes */
    struct kvc_bundle bundle;
    struct kvc_cache *cache;
    const struct kvc_format *format;
    int has_model; /* 1: facts of the model came from its weights */
    /* why the model was compared only in part; "": it was compared by its fingerprint, or not at
     * all */
    char note[512];
};

/* Opens a path ("-": standard input), a folder, an archive, or bytes that stay the caller's and
 * outlive *f. A .kvc of another model than o->model is refused; facts of the model go into the
 * metadata of engines' files. Messages name the file. On failure *f is empty and needs no close. */
int kvc_open_path(struct kvc_opened *f, const char *path, const struct kvc_opening *o,
                  struct kvc_error *e);
/* The first half of that: opens the members, and leaves f->cache NULL. */
int kvc_open_bundle(struct kvc_opened *f, const char *path, const struct kvc_opening *o,
                    struct kvc_error *e);
int kvc_open_bytes(struct kvc_opened *f, const void *data, size_t size, const struct kvc_opening *o,
                   struct kvc_error *e);
/* Opens several files as the members of one cache. */
int kvc_open_members(struct kvc_opened *f, const char *const *path, size_t n,
                     const struct kvc_opening *o, struct kvc_error *e);
void kvc_close(struct kvc_opened *f);
/* Returns the size in bytes of the file, or of all members of a folder. */
uint64_t kvc_opened_size(const struct kvc_opened *f);

/* Adds the facts of its model to a cache. A .kvc must match (kvc_model_match), an engine's file
 * must have rows that fit the model's heads; then the facts are stored, and layers get the model's
 * numbers and windows (kvc_layers_settle). A .kvc that was packed with a profile keeps the numbers
 * it was packed with. `note` as in kvc_model_match(), "" for engine files. */
int kvc_model_apply(const struct kvc_model *m, struct kvc_cache *c, char *note, size_t size,
                    struct kvc_error *e);

#endif
