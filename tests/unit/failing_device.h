/* failing_device.h: a device whose n-th call fails, over another device, for the tests of what
 * devices decode and encode. Not for devices that work late. */
#ifndef FAILING_DEVICE_H
#define FAILING_DEVICE_H

#include "formats/device/device.h"

static struct failing {
    struct kvc_device *under;
    int left; /* calls until one fails */
} failing;

static inline int count_down(struct kvc_error *e) {
    return failing.left-- ? 0 : kvc_fail(e, KVC_ERR_IO, "the device fails");
}
#define FAILING(name, parameters, arguments)                       \
    static inline int name parameters {                            \
        return count_down(e) ? -1 : failing.under->name arguments; \
    }
FAILING(alloc, (struct kvc_device * d, size_t n, void **p, struct kvc_error *e), (d, n, p, e))
FAILING(alloc_host, (struct kvc_device * d, size_t n, void **p, struct kvc_error *e), (d, n, p, e))
FAILING(copy_in,
        (struct kvc_device * d, void *s, void *to, const void *from, size_t n, struct kvc_error *e),
        (d, s, to, from, n, e))
FAILING(copy_out,
        (struct kvc_device * d, void *s, void *to, const void *from, size_t n, struct kvc_error *e),
        (d, s, to, from, n, e))
FAILING(zero, (struct kvc_device * d, void *s, void *to, size_t n, struct kvc_error *e),
        (d, s, to, n, e))
FAILING(run,
        (struct kvc_device * d, void *s, const struct kvc_device_launch *l, unsigned limit,
         struct kvc_error *e),
        (d, s, l, limit, e))
FAILING(encode,
        (struct kvc_device * d, void *s, const struct kvc_device_launch *l, unsigned limit,
         struct kvc_error *e),
        (d, s, l, limit, e))
FAILING(event_new, (struct kvc_device * d, void **v, struct kvc_error *e), (d, v, e))
FAILING(event_record, (struct kvc_device * d, void *v, void *s, struct kvc_error *e), (d, v, s, e))
FAILING(event_wait, (struct kvc_device * d, void *v, struct kvc_error *e), (d, v, e))
FAILING(event_before, (struct kvc_device * d, void *v, void *s, struct kvc_error *e), (d, v, s, e))
FAILING(stream_new, (struct kvc_device * d, void **s, struct kvc_error *e), (d, s, e))

/* Returns the device whose calls go to `under`, until failing.left of them were made. */
static inline struct kvc_device failing_over(struct kvc_device *under) {
    struct kvc_device d = *under;
    failing.under = under;
    d.alloc = alloc, d.alloc_host = alloc_host, d.copy_in = copy_in, d.copy_out = copy_out,
    d.zero = zero;
    d.run = run, d.encode = encode, d.event_new = event_new, d.event_record = event_record,
    d.event_wait = event_wait;
    d.event_before = event_before, d.stream_new = stream_new;
    return d;
}

#endif
