/* pack_by.h: packs an open file by another coder of blocks than the CPU's (kvc_pack.c). Not for
 * users. */
#ifndef KVC_PACK_BY_H
#define KVC_PACK_BY_H

#include "formats/api/kvc.h"
#include "formats/container/container.h"

/* Packs as kvc_file_pack() does. `coder` NULL: the CPU encodes. */
int kvc_file_pack_by(const struct kvc_file *f, const struct kvc_write_options *options,
                     const struct kvc_block_coder *coder, kvc_write_fn *write, void *state,
                     struct kvc_error *e);

#endif
