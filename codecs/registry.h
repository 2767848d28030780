/* registry.h: finding a stage. Not for what a stage is (stage.h). */
#ifndef KVC_REGISTRY_H
#define KVC_REGISTRY_H

#include "codecs/stage.h"

/* Return a stage by its name, by its id, or number i of all; NULL when there is none. */
const struct kvc_stage *kvc_stage_find(const char *name);
const struct kvc_stage *kvc_stage_by_id(unsigned id);
const struct kvc_stage *kvc_stage_at(size_t i);
/* Stands for a stage that this kvc does not know, alone in a pipeline; its argument is the id. It
 * refuses all rows, and no recipe has it. */
extern const struct kvc_stage kvc_stage_unknown;

#endif
