/* list.c: lists what a namespace has in all tiers, and removes what is listed. Not for what goes
 * and what stays (drop.c, learn.c). */
#include "formats/store/store.h"

#include "codecs/memory.h"

#include <stdlib.h>
#include <string.h>

#define BATCH 1000         /* objects that one call removes */
#define REMOVING 600000000 /* microseconds of a call */

int kvc_listed_by_key(const void *a, const void *b) {
    const struct kvc_listed *x = a, *y = b;
    const int order = memcmp(x->object.key, y->object.key, sizeof x->object.key);
    return order ? order : (x->tier > y->tier) - (x->tier < y->tier);
}

int kvc_list_add(struct kvc_list *x, const struct kvc_listed *item) {
    struct kvc_listed *more = kvc_room_for_one(x->item, x->n, sizeof *more);
    if (!more) return -1;
    x->item = more;
    x->item[x->n++] = *item;
    return 0;
}

struct walk {
    struct kvc_list *list;
    unsigned tier;
    int failed;
};

static int see(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct walk *w = state;
    (void)used;
    w->failed = kvc_list_add(w->list,
                             &(struct kvc_listed){.object = *o, .bytes = size, .tier = w->tier});
    return w->failed;
}

int kvc_list_namespace(const struct kvc_store_namespace *ns, struct kvc_list *list,
                       struct kvc_error *e) {
    const struct kvc_store *s = ns->store;
    struct walk w = {.list = list};
    for (; w.tier < s->n_tiers; w.tier++) {
        struct kvc_tier *l = s->tier[w.tier].tier;
        if (l->ops->walk(l, ns->hash, see, &w, e)) return -1;
        if (w.failed) return kvc_fail_memory(e, "a list of objects");
    }
    return 0;
}

int kvc_list_remove(struct kvc_store *s, const struct kvc_list *x, struct kvc_error *e) {
    struct kvc_object *o = malloc(BATCH * sizeof *o);
    int status = o ? 0 : kvc_fail_memory(e, "a list of objects");
    for (unsigned tier = 0; tier < s->n_tiers && !status; tier++) {
        struct kvc_tier *l = s->tier[tier].tier;
        size_t n = 0;
        for (size_t i = 0; i < x->n && !status; i++) {
            if (x->item[i].tier == tier) o[n++] = x->item[i].object;
            if (!n || (n < BATCH && i + 1 < x->n)) continue;
            status = l->ops->drop(l, o, n, kvc_now() + REMOVING, e);
            n = 0;
        }
    }
    free(o);
    return status;
}

void kvc_list_touch(struct kvc_store *s, const struct kvc_object *o, size_t n) {
    for (unsigned i = 0; i < s->n_tiers && n; i++)
        if (s->tier[i].ops->last_first) kvc_store_notify(s, i, KVC_OP_TOUCH, o, n, 0);
}
