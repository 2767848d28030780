/* inputs.h: inputs of predictions, made of decoded blocks of earlier tensors. A block of a layer
 * may depend on the same block of the layer before it, recursively: all of them are decoded once,
 * from the first on, and the last ones are kept for the blocks that follow. Not for the arithmetic
 * (formats/model/predictor.h). */
#ifndef KVC_CONTAINER_INPUTS_H
#define KVC_CONTAINER_INPUTS_H

#include "codecs/ahead.h"
#include "formats/cache/cache.h"
#include "formats/model/predictor_part.h"

/* The inputs that a container keeps. For several threads. */
struct kvc_inputs;
struct kvc_inputs *kvc_inputs_new(struct kvc_error *e);
void kvc_inputs_free(struct kvc_inputs *k);
/* Lowers the bytes of inputs that are kept though nobody holds them, from 256 MiB. */
void kvc_inputs_set_kept(struct kvc_inputs *k, uint64_t bytes);

/* All that one block of a tensor stands on. */
struct kvc_inputs_held;

/* Decodes block `block` of a tensor into dst, with what it stands on. */
typedef int kvc_inputs_decode_fn(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                                 uint8_t *dst, const struct kvc_inputs_held *held,
                                 struct kvc_error *e);

/* Decodes all that a block stands on, and holds it until kvc_inputs_release(). `depth`: 0, or 1 +
 * that of the block for whose sake this one is decoded. Memory: the inputs of the blocks, one byte
 * a value. Returns NULL on failure. */
struct kvc_inputs_held *kvc_inputs_prepare(const struct kvc_cache *c, uint32_t tensor,
                                           uint64_t block, unsigned depth,
                                           kvc_inputs_decode_fn *decode, struct kvc_error *e);
void kvc_inputs_release(struct kvc_inputs_held *held);
/* Keeps inputs of the decoded rows of a block that others may stand on, so that it need not be
 * decoded for them again. Does nothing where that is not known, or without memory. */
void kvc_inputs_offer(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                      const uint8_t *rows);
unsigned kvc_inputs_depth(const struct kvc_inputs_held *held);

/* Reads which tensors the segment of a block is predicted from by a device. Returns 1, 0 where it
 * is from none or the CPU predicts it, or -1. */
int kvc_inputs_for_device(const struct kvc_cache *c, uint32_t tensor, uint64_t block,
                          struct kvc_ahead_inputs *to, struct kvc_error *e);
/* Finds what makes inputs of a tensor's rows, for devices: *angle of each of *half pairs, NULL
 * where RoPE rotates none. */
int kvc_inputs_made_by(const struct kvc_cache *c, uint32_t tensor, const struct kvc_small **small,
                       const double **angle, size_t *half, struct kvc_error *e);

/* The kvc_small_fn (predict_source.h) of what is held, its owner. */
int kvc_inputs_small(const void *held, uint32_t tensor, enum kvc_pairing rotation,
                     const uint64_t *row, size_t n, int8_t *to, size_t stride, struct kvc_error *e);

#endif
