/* model_files.h: which files a model consists of, and the files beside them. Not for what is in
 * them: facts (model.h), weights (weights.h). KEYS.md, "Model fingerprint", defines the list. */
#ifndef KVC_MODELFILES_H
#define KVC_MODELFILES_H

#include "codecs/error.h"
#include "formats/io/input.h"
#include "formats/io/member_name.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_MAX_CONFIG_BYTES (UINT64_C(16) << 20) /* of a config.json */

/* The files that hold a model's weights, in the order in which they are hashed. */
struct kvc_model_files {
    char **path;
    size_t n;
    /* 1: the path that was asked for is the one file itself; 0: a directory or a shard was */
    int given;
};

/* Lists the files that `path` names: a file; all shards of a file whose name ends in
 * NNNNN-of-MMMMM.gguf (or .safetensors); of a directory model.safetensors, else all *.safetensors.
 * Only names: shards may be absent. On failure *f is empty; messages do not name `path`. */
int kvc_model_files_list(struct kvc_model_files *f, const char *path, struct kvc_error *e);
void kvc_model_files_free(struct kvc_model_files *f);

/* Opens `name` in the directory of the weights, with all of its bytes pinned. Returns 1; 0 when
 * there is no such file; -1 on failure. Refuses more than `limit` bytes. */
int kvc_model_files_beside(const struct kvc_model_files *f, const char *name, uint64_t limit,
                           struct kvc_input *in, struct kvc_error *e);

/* Looks at the first bytes of a weights file. *header gets the size of a safetensors header with
 * its length, in bytes, which lies in the file; 0 for a GGUF file. KVC_ERR_UNKNOWN_FORMAT: the file
 * is neither. */
int kvc_model_file_begins(const struct kvc_input *in, uint64_t *header, struct kvc_error *e);

#endif
