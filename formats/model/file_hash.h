/* file_hash.h: a hash over all bytes of a weights file, for the full fingerprint of a model. Not
 * for the fingerprint itself (model.h). KEYS.md, "Model fingerprint". */
#ifndef KVC_FILE_HASH_H
#define KVC_FILE_HASH_H

#include "formats/io/hash.h"
#include "formats/io/input.h"

/* Writes the hash of a file, made in pieces by all cores. The hash of a large file is remembered
 * below $XDG_CACHE_HOME or ~/.cache, as long as the file's path, number, size and times stay. A
 * folder that cannot be written is no error: the file is hashed each time. */
int kvc_file_hash(const struct kvc_input *in, uint8_t out[KVC_SHA256_BYTES], struct kvc_error *e);

#endif
