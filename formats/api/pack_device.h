/* pack_device.h: packs K and V that lie in the memory of a device, which encodes them. Below
 * kvc_cuda.h, for any struct kvc_device, so that it can be tested without a GPU. Not for encoding
 * (formats/device/encoder.h). */
#ifndef KVC_PACK_DEVICE_H
#define KVC_PACK_DEVICE_H

#include "formats/api/kvc.h"
#include "formats/device/device.h"

struct kvc_pack_device_how {
    unsigned multiprocessors; /* that a launch may occupy; 0: all */
    void *stream;             /* of the device: its queued work comes before anything is read */
};
struct kvc_pack_device_result {
    uint64_t bytes; /* of K and V */
    uint64_t raw;   /* of these that were copied to the host as they are */
};

/* Packs the arrays of m, whose addresses are of the device's memory; the table of pages, positions
 * and token ids are of the host's. options may be NULL, but the recipe must be one that a device
 * encodes. `result` may be NULL. */
int kvc_pack_device(struct kvc_device *d, const struct kvc_memory *m,
                    const struct kvc_pack_device_how *how, const struct kvc_write_options *options,
                    kvc_write_fn *write, void *state, struct kvc_pack_device_result *result,
                    struct kvc_error *e);

#endif
