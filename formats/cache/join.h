/* join.h: one cache made of several without copying them: consecutive blocks of tokens, or the KV
 * heads of tensor-parallel ranks; and conversely the heads of one rank. Not for selections of
 * tokens and layers (view.h). Such caches have no extents, because no file is their source. The
 * operands, with their names, must outlive them. */
#ifndef KVC_JOIN_H
#define KVC_JOIN_H

#include "formats/cache/join_check.h"

/* What a caller may want to say of a joined cache. */
struct kvc_join_report {
    int by_order; /* no operand knows its positions: the order of the operands gave them */
    /* name of an operand without token ids, for which those of the others were left out; NULL: none
     * were */
    const char *no_ids;
    /* queries and hidden states were left out: those of the operands do not match */
    int left_out;
};

/* Joins blocks of one sequence, in the order of its tokens. The operands must have the same layers,
 * types, heads and channels, and consecutive positions. Operands that all begin at position 0 and
 * do not record positions follow each other in their order. Token ids are kept if all operands have
 * them. Refuses several streams, recurrent states and snapshots. */
struct kvc_cache *kvc_view_join(const struct kvc_join_operand *from, size_t n,
                                struct kvc_join_report *report, struct kvc_error *e);

/* Joins the KV heads of tensor-parallel ranks, in the order of the ranks. The operands must have
 * the same positions, layers, types and channels. Queries and hidden states are left out. If an
 * operand does not know its number of heads, nor does the result. */
struct kvc_cache *kvc_view_join_heads(const struct kvc_join_operand *from, size_t n,
                                      struct kvc_join_report *report, struct kvc_error *e);

/* Makes a view of the KV heads of rank `rank` of `ranks`, which must divide the number of heads.
 * Queries and hidden states are left out, and *left_out says if there were any. */
struct kvc_cache *kvc_view_shard(const struct kvc_cache *c, uint32_t rank, uint32_t ranks,
                                 int *left_out, struct kvc_error *e);

#endif
