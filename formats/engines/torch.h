/* torch.h: files of torch.save(): reading (torch_read.c) and writing (torch_write.c). Not for
 * probing (torch.c). */
#ifndef KVC_TORCH_H
#define KVC_TORCH_H

#include "formats/cache/format.h"

extern const char *const kvc_torch_suffixes[];
struct kvc_cache *kvc_torch_read(const struct kvc_bundle *b, const struct kvc_import_options *o,
                                 struct kvc_error *e);
int kvc_torch_keeps(enum kvc_dtype dtype); /* 0: a dtype becomes float32 */
int kvc_torch_write(const struct kvc_cache *c, const struct kvc_export_options *o,
                    struct kvc_sink *out, struct kvc_error *e);

#endif
