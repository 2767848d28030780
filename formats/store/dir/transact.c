/* transact.c: transactions of a directory store's index, which make a broken index anew; and the
 * emptying of the trash, of which the index knows how much it holds. Not for cleaning (clean.c). */
#include "formats/store/dir/dir.h"
#include "formats/store/dir/below.h"

#include <errno.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

int kvc_dir_fill(struct kvc_dir *d, struct kvc_error *e) {
    struct kvc_dir_counts counts;
    return kvc_dir_clean(d, &(struct kvc_dir_clean){.max_size = UINT64_MAX}, &counts, e);
}

int kvc_dir_run(struct kvc_dir *d, int writes, kvc_instant deadline, kvc_dir_work *work,
                void *state, struct kvc_error *e) {
    struct kvc_index *ix = writes ? d->index : d->reader;
    for (int tries = 0, made;; tries++) {
        struct kvc_index_txn *t = kvc_index_begin_until(ix, writes, deadline, e);
        int status = t ? work(d, t, state, e) : -1;
        if (t && status) kvc_index_abort(t);
        else if (t) status = kvc_index_commit(t, e);
        if (!status || tries) return status;
        if (kvc_index_renew(ix, &made, e) || (made && kvc_dir_fill(d, e))) return -1;
        if (e) e->code = KVC_OK;
    }
}

/* --- the trash --- */

/* What is known of the trash. */
struct tidying {
    uint64_t before, limit, left;
};

static int ask_trash(struct kvc_dir *d, struct kvc_index_txn *t, void *state, struct kvc_error *e) {
    struct tidying *x = state;
    (void)e;
    x->before = kvc_index_sums(t)->trash;
    x->limit = kvc_dir_limit(d, kvc_index_sums(t)->bytes);
    return 0;
}

/* Takes what is left, and what others have evicted meanwhile; an object that was evicted twice
 * has one file. */
static int note_trash(struct kvc_dir *d, struct kvc_index_txn *t, void *state,
                      struct kvc_error *e) {
    const struct tidying *x = state;
    struct kvc_index_sums *sums = kvc_index_sums(t);
    (void)d, (void)e;
    sums->trash = x->left + (sums->trash > x->before ? sums->trash - x->before : 0);
    return 0;
}

int kvc_dir_tidy(struct kvc_dir *d, struct kvc_error *e) {
    const int64_t now = (int64_t)time(NULL);
    struct tidying x = {.before = 0};
    uint64_t gone;
    if (kvc_dir_run(d, 0, INT64_MAX, ask_trash, &x, e)) return -1;
    const int all = x.before > x.limit / 20;
    if (!x.before || (!all && __atomic_load_n(&d->trash_seen, __ATOMIC_RELAXED) == now)) return 0;
    __atomic_store_n(&d->trash_seen, now, __ATOMIC_RELAXED);
    const int fd = kvc_below_folder(d->root.fd, "trash");
    if (fd < 0) return kvc_root_fail(&d->root, errno, "trash", e);
    int status = 0;
    if (!flock(fd, LOCK_EX | LOCK_NB)) { /* else somebody else does it */
        status = kvc_root_empty_trash(&d->root, all ? -1 : d->root.conf->grace, &gone, &x.left, e);
        if (!status) status = kvc_dir_run(d, 1, INT64_MAX, note_trash, &x, e);
    }
    close(fd);
    return status;
}
