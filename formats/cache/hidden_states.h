/* hidden_states.h: where in a layer the hidden states of a cache were taken, as its metadata say. Not for finding or reading
 * their tensors (formats/model/rebuild_source.h). */
#ifndef KVC_HIDDEN_STATES_H
#define KVC_HIDDEN_STATES_H

#include "formats/cache/meta.h"

/* Relative to the norm before attention. The numbers are those of codecs/rebuild.h. */
enum kvc_hidden_place { KVC_HIDDEN_UNKNOWN = -1, KVC_HIDDEN_BEFORE_NORM = 0, KVC_HIDDEN_AFTER_NORM = 1 };

/* Reads the metadata key hidden.states, which is a text in the source file's own words: "after ... norm" or "before ... norm",
 * whatever stands between and around. KVC_HIDDEN_UNKNOWN where the text has neither or contradicts itself. */
enum kvc_hidden_place kvc_hidden_place(const struct kvc_meta *meta);
/* The same of a text. */
enum kvc_hidden_place kvc_hidden_place_parse(const char *text);

#endif
