/* store_progress.c: shows the progress of kvc-store's commands. Not for the line itself
 * (cli/progress.c). */
#include "cli/store/store_tool.h"
#include "formats/store/store.h"

int store_show(void *state, uint64_t done, uint64_t total) {
    struct store_tool *t = state;
    cli_progress_show(&t->progress, done, total);
    return 0;
}

static int add_bytes(void *state, const struct kvc_object *o, uint64_t bytes, int64_t used) {
    uint64_t *sum = state;
    (void)o, (void)used;
    *sum += bytes;
    return 0;
}

uint64_t store_show_walk(struct store_tool *t, struct kvc_tier *l, const uint8_t *ns) {
    struct kvc_error e;
    uint64_t bytes = 0;
    cli_progress_start(&t->progress, t->store, t->quiet);
    return t->progress.on && !l->ops->walk(l, ns, add_bytes, &bytes, &e) ? bytes : 0;
}
