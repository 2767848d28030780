/* kvc_file.h: the fields of kvc.h's struct kvc_file. Not for users. */
#ifndef KVC_FILE_H
#define KVC_FILE_H

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
    const char *name; /* for messages */
    uint64_t bytes;   /* of arrays in memory; 0: the source is a file */
    struct kvc_weights *weights;
    /* of a file opened as damaged; the cache owns it. NULL: it was opened as whole */
    const struct kvc_survey *survey;
    /* the files that this one consists of; NULL: it is not joined */
    const struct kvc_file **joined;
    size_t n_joined;
    char *joined_name; /* owns `name` of joined files */
    /* what the file's rows are read from, freed after it by free_owned(); NULL: nothing */
    void *owned;
    void (*free_owned)(void *owned);
};

/* Returns the file that was opened. */
static inline const struct kvc_file *kvc_file_whole(const struct kvc_file *f) {
    return f->of ? f->of : f;
}

/* Reads a caller's name of a RoPE pairing. NULL leaves *pairing as it is. */
static inline int kvc_file_pairing(const char *name, enum kvc_pairing *pairing,
                                   struct kvc_error *e) {
    if (!name || kvc_pairing_parse(name, pairing)) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "there is no RoPE pairing '%s'", name);
}

#endif
