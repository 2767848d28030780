/* pack.h: a cache packed into a container as somebody asks for it: profile, queries, dequantised or not, with or without companions,
 * a target for the step. The one way to pack, for libkvc's users and the tools. Not for coding (container/) or for what is said about
 * it (cli/pack_say.c). */
#ifndef KVC_PACK_H
#define KVC_PACK_H

#include "formats/container/container.h"
#include "formats/file/rate.h"

/* What happens on the way, and may surprise. */
enum kvc_pack_note {
    KVC_PACK_ROTATION_UNKNOWN, /* K or V are dequantised, and nothing says whether they are Hadamard-rotated */
    KVC_PACK_PAIRING_CHOSEN,   /* the cache does not say how K is paired: the pairing that fits the profile is taken */
    KVC_PACK_PROFILE_UNUSED,   /* no stage of the recipe takes the profile */
    KVC_PACK_OTHER_QUERIES     /* the queries are those of other tokens */
};

/* How to pack. Zeros: losslessly, as it is. */
struct kvc_packing {
    struct kvc_pack_options options; /* but queries, profile, fit and keys, which come from below and from the cache */
    struct kvc_rate rate;            /* a target for the step; source_bytes is filled in */
    struct kvc_profile *profile;     /* NULL: none */
    int force_profile;               /* also where numbers say that the profile does not fit */
    int dequantize;                  /* K and V of block types become f16 first */
    int no_companions;               /* queries and hidden states are left out; stages still ask them */
    const struct kvc_cache *queries; /* another cache with queries; NULL: the cache's own */

    /* May be NULL. They get the cache as it is coded: check() before anything is written, where -1 with *e stops; coded() when all is
     * written, with the recipe whose step is settled. */
    void (*note)(void *state, enum kvc_pack_note note, const struct kvc_cache *c);
    int (*check)(void *state, const struct kvc_cache *c, struct kvc_error *e);
    void (*coded)(void *state, const struct kvc_cache *c, const struct kvc_recipe *recipe);
    void *state;
};

/* What came of it. */
struct kvc_packed {
    struct kvc_pack_report report;
    struct kvc_rate_report rated;
    struct kvc_fit fit;    /* of the profile, where `fitted` */
    int fitted;            /* the recipe takes the profile */
    int dequantized;       /* there was something to dequantise */
    int left_out;          /* there were companions, and they were left out */
    uint64_t source_bytes; /* of the source, without companions that were left out */
};

/* Packs a cache that was opened from a source of `source_bytes` bytes. The cache may learn facts from the profile. Messages do not name
 * the file. kvc_packed_free() also after a failure. */
int kvc_pack_cache(struct kvc_cache *c, uint64_t source_bytes, const struct kvc_packing *p, struct kvc_sink *out,
                   struct kvc_packed *done, struct kvc_error *e);
void kvc_packed_free(struct kvc_packed *done);

#endif
