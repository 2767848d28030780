/* meta_parse.h: metadata from text, by the type that a key has. Not for printing it (meta.h). */
#ifndef KVC_META_PARSE_H
#define KVC_META_PARSE_H

#include "formats/cache/meta.h"

/* Sets an entry from "KEY=VALUE". Keys that keys.h lists have their type there: numbers are
 * decimal, a bool is true or false, bytes are hex. The value of any other key is text. Keys that
 * the container keeps for itself are refused. */
int kvc_meta_parse(struct kvc_meta *m, const char *text, struct kvc_error *e);
/* Sets facts of a cache that somebody knows who did not write its file: "KEY=VALUE",
 * NULL-terminated; NULL: none. Refuses keys that are no facts, and names similar ones. What the
 * metadata said before is replaced. */
int kvc_facts_give(struct kvc_meta *m, const char *const *facts, struct kvc_error *e);

#endif
