/* salvage.h: damaged containers: a list of all damage, and the rows that are whole. Not for whole
 * containers (container.h).
 *
 * A damaged container is opened without trust in its index, header or footer. Rows are read as from
 * any other cache, but every block is compared with its digest, so that only the rows that were
 * packed are returned. */
#ifndef KVC_SALVAGE_H
#define KVC_SALVAGE_H

#include "formats/cache/cache.h"
#include "formats/io/input.h"
#include "formats/cache/format.h"
#include "formats/cache/view.h"

/* One damaged place: a record, header, footer, or bytes that belong to no record. */
struct kvc_damage {
    uint64_t record; /* number in the file; KVC_NOWHERE: not a record, or a missing one */
    /* "BLOCK", "META" and so on, "header", "footer", or "bytes": these belong to no record */
    const char *kind;
    int has_tensor; /* BLOCK and SIDE: the tensor is known, see the next three fields */
    enum kvc_part_kind part;
    uint32_t layer;
    enum kvc_role role;
    int has_tokens; /* positions of the rows that are lost with it: [first, end) */
    int64_t first, end;
    uint64_t offset, size; /* bytes in the file; offset KVC_NOWHERE: missing */
    char *place;           /* in words: "layer 0 V, tokens 0:200"; "" if it belongs to no tensor */
    char *reason;
};

struct kvc_survey {
    uint64_t records;          /* records of the file, missing ones included */
    uint64_t damaged;          /* damaged records, missing ones included */
    struct kvc_damage *damage; /* in file order; consecutive missing blocks are one entry */
    uint64_t n;
    int no_meta, no_tokens, no_source; /* metadata, token ids or the source's own bytes are lost */
    int gaps;                          /* bytes of the file belong to no record that can be read */
    /* why nothing can be read; code KVC_OK: something can be read */
    struct kvc_error unusable;
    /* why rows whose bytes are whole could not be decoded, as a missing profile; KVC_OK: none */
    struct kvc_error trouble;
    uint8_t *noted;                    /* by record: its damage is listed */
    uint8_t *whole;                    /* by block, tensor after tensor: its rows can be read */
    char *whole_layers, *whole_tokens; /* "0-6,8" and "0:512,768:2000": whole layers, and tokens
                                          whole in every layer; NULL: unknown, because nothing could
                                          be read or because of `trouble` */
};

/* Opens a container that may be damaged anywhere. Returns NULL if it has no record at all, or needs
 * a newer reader. `in` must outlive the cache. Rows may be read only if kvc_salvage_refusal()
 * returns NULL. */
struct kvc_cache *kvc_salvage_open(const struct kvc_input *in, struct kvc_error *e);
/* The same with the caller's weights and profile, as kvc_import() gives them to a whole container.
 */
struct kvc_cache *kvc_import_damaged(const struct kvc_input *in, const struct kvc_import_options *o,
                                     struct kvc_error *e);
/* Returns why nothing of such a cache can be read; NULL: something can. */
const struct kvc_error *kvc_salvage_refusal(const struct kvc_cache *c);
/* Reads and checks all of a cache from kvc_salvage_open(). May be called once. The cache owns the
 * survey. Returns NULL when out of memory. */
const struct kvc_survey *kvc_salvage_survey(struct kvc_cache *c, unsigned threads,
                                            struct kvc_error *e);
void kvc_survey_free(struct kvc_survey *s);

/* Returns 1 if every row of every tensor is whole. */
int kvc_survey_all_whole(const struct kvc_survey *s, const struct kvc_cache *c);
/* Narrows a selection to the longest run of positions, from its first one on, that is whole in all
 * K, V, latents and states of its layers. Leaves companions out if they are not whole there, and
 * snapshots if one is not whole. Returns -1 if no position is left. */
int kvc_survey_narrow(const struct kvc_survey *s, const struct kvc_cache *c,
                      struct kvc_selection *selection, struct kvc_error *e);

/* --- for salvage.c and survey.c --- */

/* Adds an entry; `place` and `reason` are copied. NULL: out of memory. */
struct kvc_damage *kvc_survey_add(struct kvc_survey *s, const char *kind, const char *place,
                                  const char *reason, struct kvc_error *e);
/* Adds the damage *why of record i, once. */
int kvc_survey_record(struct kvc_survey *s, const struct kvc_cache *c, uint64_t i,
                      const struct kvc_error *why, struct kvc_error *e);

#endif
