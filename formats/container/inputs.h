/* inputs.h: inputs of predictions, made of decoded blocks of earlier tensors: for a reader, which
 * decodes these blocks first, and for an encoder, which makes the inputs of the rows that its own
 * lossy output decodes to, so that both predict alike. Not for the arithmetic
 * (formats/model/predictor.h). */
#ifndef KVC_CONTAINER_INPUTS_H
#define KVC_CONTAINER_INPUTS_H

#include "codecs/ahead.h"
#include "formats/container/plan.h"
#include "formats/model/profile.h"

/* --- for readers --- */

#define KVC_INPUTS_BYTES (UINT64_C(256) << 20) /* that a container keeps at most */

/* All that one block of a tensor depends on: the same block of earlier tensors, recursively. */
struct kvc_inputs_held;

/* Decodes block `block` of a tensor into dst, with the inputs that it depends on. */
typedef int kvc_inputs_decode_fn(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                                 uint8_t *dst, const struct kvc_inputs_held *held,
                                 struct kvc_error *e);

/* Decodes all that a block depends on, from the first tensor on, and holds it until
 * kvc_inputs_release(). `depth`: 0, or 1 + that of the block for whose sake this one is decoded.
 * Memory: the inputs of the blocks, one byte a value. Returns NULL on failure. */
struct kvc_inputs_held *kvc_inputs_prepare(const struct kvc_cache *c, uint32_t tensor,
                                           uint64_t block, unsigned depth,
                                           kvc_inputs_decode_fn *decode, struct kvc_error *e);
void kvc_inputs_release(struct kvc_inputs_held *held);
/* Keeps inputs of the decoded rows of a block on which others may depend, so that it need not be
 * decoded for them again. Does nothing where that is not known, or without memory. */
void kvc_inputs_offer(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                      const uint8_t *rows);
unsigned kvc_inputs_depth(const struct kvc_inputs_held *held);
/* The kvc_small_fn (predict_source.h) of the inputs that are held, its owner. */
int kvc_inputs_small(const void *held, uint32_t tensor, const uint64_t *row, size_t n, int8_t *to,
                     size_t stride, struct kvc_error *e);

/* --- for encoders --- */

/* The inputs from lossy tensors. Several threads encode tensors at once. A thread that needs the
 * inputs of a block waits for the thread that encodes the block; tensors are handed out in their
 * order and are predicted from lower ones, so that some thread can always go on. */
struct kvc_loop;

/* Makes *loop, NULL where no tensor is predicted from lossy ones. All arguments must outlive it.
 * `turn`: by tensor, how the engine rotated its rows. Memory: one byte a value of the tensors
 * that others still wait for. */
int kvc_loop_new(struct kvc_loop **loop, const struct kvc_cache *c, const struct kvc_plan *plan,
                 struct kvc_profile *profile, const struct kvc_rope_facts *turn,
                 struct kvc_error *e);
void kvc_loop_free(struct kvc_loop *loop);
/* Makes inputs of all decoded rows of a block, where a tensor is predicted from them. */
int kvc_loop_publish(struct kvc_loop *loop, uint32_t tensor, uint64_t block, const uint8_t *rows,
                     struct kvc_error *e);
/* Says that blocks [block, end) of a tensor are encoded, or that this failed. Threads that wait for
 * them then fail as well. */
void kvc_loop_done(struct kvc_loop *loop, uint32_t tensor, uint64_t block, uint64_t end,
                   int failed);
/* Waits for inputs of n rows of one block of a tensor, and copies them to to[i * stride + channel].
 */
int kvc_loop_small(struct kvc_loop *loop, uint32_t tensor, const uint64_t *row, size_t n,
                   int8_t *to, size_t stride, struct kvc_error *e);

#endif
