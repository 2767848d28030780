/* closed_loop.h: inputs of predictions for an encoder, made of the rows that its own lossy output
 * decodes to, so that encoder and reader predict alike. Not for readers (inputs.h) or for the
 * arithmetic (formats/model/predictor.h).
 *
 * Several threads encode tensors at once. A thread that needs the inputs of a block waits for the
 * thread that encodes the block; tensors are handed out in their order and are predicted from lower
 * ones, so that some thread can always go on. */
#ifndef KVC_CLOSED_LOOP_H
#define KVC_CLOSED_LOOP_H

#include "codecs/rope.h"
#include "formats/container/plan.h"
#include "formats/model/profile.h"

struct kvc_loop;

/* Makes *loop, NULL where no tensor is predicted from lossy ones. All arguments must outlive it.
 * `rotation`: how K of the cache is rotated, or UNKNOWN. Memory: one byte a value of the tensors
 * that others still wait for. */
int kvc_loop_new(struct kvc_loop **loop, const struct kvc_cache *c, const struct kvc_plan *plan,
                 struct kvc_profile *profile, enum kvc_pairing pairing, enum kvc_pairing rotation,
                 struct kvc_error *e);
void kvc_loop_free(struct kvc_loop *loop);

/* Makes inputs of the decoded rows of a block, all of them, where a tensor is predicted from them.
 */
int kvc_loop_publish(struct kvc_loop *loop, uint32_t tensor, uint64_t block, const uint8_t *rows,
                     struct kvc_error *e);
/* Says that blocks [block, end) of a tensor are encoded, or that this failed. Those who wait for
 * them then fail as well. */
void kvc_loop_done(struct kvc_loop *loop, uint32_t tensor, uint64_t block, uint64_t end,
                   int failed);

/* Waits for inputs of n rows of one block of a tensor, and copies them to to[i * stride + channel].
 */
int kvc_loop_small(struct kvc_loop *loop, uint32_t tensor, const uint64_t *row, size_t n,
                   int8_t *to, size_t stride, struct kvc_error *e);

#endif
