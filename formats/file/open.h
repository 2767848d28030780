/* open.h: a file opened as a cache, with what is known of its model. Not for the formats (engines/, container/). */
#ifndef KVC_OPEN_H
#define KVC_OPEN_H

#include "formats/model/model.h"

/* What --model does to a cache just imported: a .kvc must match (kvc_model_match), an engine's file must have rows that
 * fit the model's heads; then the facts are stored, and layers get the model's numbers and windows (kvc_layers_settle). A .kvc
 * that was packed with a profile keeps the numbers it was packed with. `note` as in kvc_model_match(), "" for engine files. */
int kvc_model_apply(const struct kvc_model *m, struct kvc_cache *c, char *note, size_t size, struct kvc_error *e);

#endif
