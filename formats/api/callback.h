/* callback.h: the caller's functions that take output and hear of progress, as a sink. Not for
 * users. */
#ifndef KVC_CALLBACK_H
#define KVC_CALLBACK_H

#include "formats/api/kvc.h"
#include "formats/io/sink.h"

struct kvc_callback {
    kvc_write_fn *write;       /* NULL: output goes nowhere */
    kvc_put_fn *put;           /* in its place; NULL: none */
    kvc_progress_fn *progress; /* NULL: none */
    void *state, *progress_state;
    /* bytes of output; total 0: unknown. Unused in packing, which counts tensor bytes */
    uint64_t total, done;
    int counts, cancelled;
};

/* Tells the caller of `done` bytes. Returns -1 where it cancels, as does every later write. */
int kvc_callback_progress(struct kvc_callback *c, uint64_t done, struct kvc_error *e);
struct kvc_sink kvc_callback_sink(struct kvc_callback *c);

#endif
