/* kvc_file.h: the fields of kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

#include "formats/api/kvc.h"
#include "formats/container/salvage.h"
#include "formats/file/open.h"
#include "formats/model/weights.h"

struct kvc_file {
    /* of a selection only the cache; of joined files only the format and the cache */
    struct kvc_opened opened;
    const struct kvc_file *of; /* the whole file that this is a selection of; NULL: it is whole */
    /* opened.cache, which nobody changes once the handle is made: a handle is const to several
     * threads at once. */
    const struct kvc_cache *cache;
    const char *name;                  /* for messages */
    uint64_t bytes;                    /* of arrays in memory; 0: the source is a file */
    struct kvc_weights *weights;       /* its own; NULL: none */
    const struct kvc_weights *rebuild; /* for rows that are rebuilt: its own, or the caller's */
    char *model;                       /* path of its model's weights; NULL: not known */
    /* of a file opened as damaged; the cache owns it. NULL: it was opened as whole */
    const struct kvc_survey *survey;
    /* the container of which a read of all rows of this handle leaves records unread; NULL: there
     * is none, or the handle has not all rows */
    const struct kvc_cache *rest;
    int is_part; /* 1: of its source's rows, so that it has no bytes of the source */
    int is_told; /* 1: who opened it said what the source does not, or says otherwise */
    /* checks the rest of a handle whose rows were checked as they were loaded; NULL: all is checked
     * the usual way */
    int (*check)(const struct kvc_file *f, unsigned threads, struct kvc_error *e);
    /* the files that this one consists of; NULL: it is not joined */
    const struct kvc_file **joined;
    size_t n_joined;
    char *joined_name; /* owns `name` of joined files */
    /* what the file's rows are read from, freed after it by free_owned(); NULL: nothing */
    void *owned;
    void (*free_owned)(void *owned);
};

/* A caller's options of opening, and what was opened for them. */
struct kvc_file_opening {
    struct kvc_open_options options;
    struct kvc_opening how;
    struct kvc_model *model;     /* of options.model */
    struct kvc_weights *weights; /* of options.weights, which a handle may take */
};
/* Reads the options, and opens the model and weights that they name. kvc_file_opening_end() in any
 * case. */
int kvc_file_opening_begin(struct kvc_file_opening *o, const struct kvc_open_options *callers,
                           struct kvc_error *e);
void kvc_file_opening_end(struct kvc_file_opening *o);

/* Returns an empty handle of a view of f; NULL: no memory. */
struct kvc_file *kvc_file_view(const struct kvc_file *f, struct kvc_error *e);

/* Returns the file that was opened. */
static inline const struct kvc_file *kvc_file_whole(const struct kvc_file *f) {
    return f->of ? f->of : f;
}

/* Reads a caller's name of a RoPE pairing. NULL leaves *pairing as it is. */
static inline int kvc_file_pairing(const char *name, enum kvc_pairing *pairing,
                                   struct kvc_error *e) {
    if (!name) return 0;
    *pairing = kvc_pairing_parse(name);
    if (*pairing) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "there is no RoPE pairing '%s'", name);
}

#endif
