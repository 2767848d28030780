/* write_sections.h: the records of a .kvc that are not blocks, in the order of FORMAT.md. Not for
 * the frame of records (record_write.h). */
#ifndef KVC_WRITE_SECTIONS_H
#define KVC_WRITE_SECTIONS_H

#include "formats/container/container.h"
#include "formats/container/plan.h"
#include "formats/container/record_write.h"

int kvc_write_meta(struct kvc_record_writer *w, const struct kvc_meta *meta, struct kvc_error *e);
/* `turn`: by tensor, how the engine rotated its rows; half 0: it did not. */
int kvc_write_table(struct kvc_record_writer *w, const struct kvc_cache *c,
                    const struct kvc_plan *plan, const struct kvc_rope_facts *turn,
                    struct kvc_error *e);
int kvc_write_cells(struct kvc_record_writer *w, const struct kvc_cache *c, struct kvc_error *e);
/* Writes token ids and prefix keys. A .kvc that is packed again without token ids keeps the keys
 * that it has. */
int kvc_write_tokens(struct kvc_record_writer *w, const struct kvc_cache *c,
                     const struct kvc_pack_options *options, const struct kvc_meta *meta,
                     struct kvc_error *e);
/* Writes how the source is put together, and its private bytes; nothing where the cache does not
 * know. */
int kvc_write_source(struct kvc_record_writer *w, const struct kvc_cache *c, struct kvc_error *e);

#endif
