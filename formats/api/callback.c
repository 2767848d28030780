/* callback.c: output to the functions of a caller. */
#include "formats/api/callback.h"

static int cancelled(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_IO, "cancelled by the caller");
}

int kvc_callback_progress(struct kvc_callback *c, uint64_t done, struct kvc_error *e) {
    c->done = done;
    if (!c->progress || !c->progress(c->progress_state, done, c->total)) return 0;
    c->cancelled = 1;
    return cancelled(e);
}

static int refused(struct kvc_error *e) {
    return kvc_fail(e, KVC_ERR_IO, "the output was refused");
}

static int write_on(void *state, const void *data, size_t n, struct kvc_error *e) {
    struct kvc_callback *c = state;
    if (c->cancelled) return cancelled(e);
    if (c->write && c->write(c->state, data, n)) return refused(e);
    return c->counts ? kvc_callback_progress(c, c->done + n, e) : 0;
}

static int put_on(void *state, uint64_t offset, const void *data, size_t n, struct kvc_error *e) {
    const struct kvc_callback *c = state;
    if (c->cancelled) return cancelled(e);
    return c->put(c->state, offset, data, n) ? refused(e) : 0;
}

struct kvc_sink kvc_callback_sink(struct kvc_callback *c) {
    return (struct kvc_sink){.write = c->put ? NULL : write_on,
                             .put = c->put ? put_on : NULL,
                             .state = c};
}
