/* view.h: caches derived from a cache without copying it: a range of tokens, some layers, another
 * RoPE pairing, values as float32, block types dequantised. Not for writing them. The parent must
 * outlive the view. */
#ifndef KVC_VIEW_H
#define KVC_VIEW_H

#include "formats/cache/cache.h"
#include "formats/cache/facts.h"
#include "formats/cache/rope_names.h"

struct kvc_selection {
    uint64_t first, end;   /* positions [first, end); end 0: all */
    const uint8_t *layers; /* layers[i] != 0 keeps model layer i < n_layers; NULL: all */
    uint32_t n_layers;
    int no_companions; /* leaves out queries and hidden states */
    int no_snapshots;  /* leaves out snapshots */
};

/* Makes a view of the selection. Refuses a token range without rows, and a token range for window,
 * state and snapshot parts unless every position of the range is still there; such a view has no
 * extents, because it is not the source file. */
struct kvc_cache *kvc_view_select(const struct kvc_cache *c, const struct kvc_selection *s,
                                  struct kvc_error *e);

/* Makes a view with K in another RoPE pairing: a permutation inside each head over the first
 * rope.dim channels. Needs a known pairing, a known number of heads and K without Hadamard
 * rotation; refuses block dtypes, whose 32 values share a scale: these need kvc_view_float() first.
 */
struct kvc_cache *kvc_view_pairing(const struct kvc_cache *c, enum kvc_pairing to,
                                   struct kvc_error *e);
/* The same, with facts that the caller assumes. */
struct kvc_cache *kvc_view_pairing_as(const struct kvc_cache *c, const struct kvc_facts *facts,
                                      enum kvc_pairing to, struct kvc_error *e);

/* Makes a view with every tensor as float32: block types dequantised and, where the Hadamard tile
 * is known, rotated back; values of 8 bits times their scales. Reading K or V of 8 bits fails where
 * their scales are unknown (scales.h). */
struct kvc_cache *kvc_view_float(const struct kvc_cache *c, struct kvc_error *e);
/* The same, with Hadamard tiles that the caller assumes. */
struct kvc_cache *kvc_view_float_as(const struct kvc_cache *c, const struct kvc_facts *facts,
                                    struct kvc_error *e);

/* Makes a view with K, V and latents of block types and of 8 bits as f16, rounded to nearest even,
 * and rotated back where the Hadamard tile is known. Other tensors stay as they are. Such a view
 * has no extents. Refuses values of 8 bits without known scales. */
struct kvc_cache *kvc_view_dequantize(const struct kvc_cache *c, struct kvc_error *e);
/* Returns 1 if kvc_view_dequantize() would change anything. */
int kvc_cache_is_quantized(const struct kvc_cache *c);

/* Makes a view of a cache whose queries are needed: float32, with channels paired as `of_k`. */
struct kvc_cache *kvc_view_queries(const struct kvc_cache *c, enum kvc_pairing of_k,
                                   struct kvc_error *e);
int kvc_cache_has_queries(const struct kvc_cache *c);

#endif
