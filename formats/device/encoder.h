/* encoder.h: encodes blocks on a device that has the rows in its memory, for the writer of
 * containers (struct kvc_block_coder). Only encoded bytes, statistics and rows that no kernel codes
 * are copied to the host. Works on any struct kvc_device. Not for where rows lie
 * (formats/api/pack_device.c) or for the arithmetic (kernels/device/encode_items.h). Design:
 * DEVICE.md, "From a device". */
#ifndef KVC_ENCODER_H
#define KVC_ENCODER_H

#include "formats/container/device_blocks.h"
#include "formats/device/device.h"

struct kvc_device_encoder;

struct kvc_device_encoder_options {
    unsigned multiprocessors; /* that a launch may occupy; 0: all */
    /* the caller's: its work that is queued when the encoder is made comes before any launch */
    void *stream;
};

/* `source` has an entry for each tensor of the cache: row i of the tensor is its row i. It must
 * outlive the encoder, as the device must. */
struct kvc_device_encoder *kvc_device_encoder_new(struct kvc_device *d,
                                                  const struct kvc_device_target *source,
                                                  const struct kvc_device_encoder_options *options,
                                                  struct kvc_error *e);
void kvc_device_encoder_free(struct kvc_device_encoder *x); /* NULL is allowed */

/* Returns the coder for struct kvc_pack_options, which lives as long as the encoder. */
const struct kvc_block_coder *kvc_device_encoder_coder(struct kvc_device_encoder *x);

/* Copies rows [first, first + n) of a tensor of this shape to dst, canonical. `x` is a struct
 * kvc_device_encoder. */
int kvc_device_encoder_read(void *x, uint32_t tensor, uint64_t first, uint64_t n, uint8_t *dst,
                            struct kvc_error *e);
/* Returns the bytes of rows that were copied to the host as they are. */
uint64_t kvc_device_encoder_raw(const struct kvc_device_encoder *x);

#endif
