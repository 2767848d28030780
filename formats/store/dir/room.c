/* room.c: makes room in a directory store: its limit, and eviction. Spec: STORE.md, "Eviction". Not
 * for the choice of what goes (policy.c), nor for the trash (transact.c). */
#include "formats/store/dir/dir.h"
#include "formats/store/dir/policy.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>

struct kvc_object kvc_dir_object(const uint8_t *key, const struct kvc_index_record *r) {
    struct kvc_object o = {.kind = (enum kvc_object_kind)r->kind};
    memcpy(o.ns, r->ns, sizeof o.ns);
    memcpy(o.key, key, sizeof o.key);
    return o;
}

uint64_t kvc_dir_limit(const struct kvc_dir *d, uint64_t bytes) {
    const struct kvc_conf *c = d->root.conf;
    uint64_t limit = c->max_size ? c->max_size : UINT64_MAX;
    struct statvfs fs;
    if (c->min_free > 0 && !fstatvfs(d->root.fd, &fs) && fs.f_blocks) {
        const double block = (double)fs.f_frsize,
                     spare = (double)fs.f_bavail * block -
                             c->min_free / 100 * (double)fs.f_blocks * block;
        const double most = (double)bytes + spare;
        if (most < (double)limit) limit = most > 0 ? (uint64_t)most : 0;
    }
    return limit;
}

int kvc_dir_evict(struct kvc_dir *d, struct kvc_index_txn *t, const uint8_t *key,
                  const struct kvc_index_record *r, struct kvc_error *e) {
    const struct kvc_object o = kvc_dir_object(key, r);
    if (!kvc_root_trash(&d->root, &o)) kvc_index_sums(t)->trash += r->size;
    else if (errno != ENOENT) return kvc_root_fail(&d->root, errno, "cannot evict an object", e);
    return kvc_policy_evicted(t, key, r, e);
}

int kvc_dir_make_room(struct kvc_dir *d, struct kvc_index_txn *t, uint64_t limit,
                      const struct kvc_policy_choice *choice, struct kvc_error *e) {
    uint8_t key[KVC_OBJECT_KEY];
    struct kvc_index_record r;
    while ((choice->ns ? kvc_index_namespace_bytes(t, choice->ns) : kvc_index_sums(t)->bytes) >
           limit) {
        const int found = kvc_policy_victim(t, choice, key, &r, e);
        if (found < 0) return -1;
        if (!found) {
            kvc_fail(e, KVC_ERR_IO,
                     "%s: there is no room: the limit is %" PRIu64
                     " bytes, and what is there is pinned",
                     d->root.path, limit);
            if (e) e->severity = KVC_SEVERITY_ITEM; /* of this object: the tier itself is well */
            return -1;
        }
        if (choice->own && memcmp(key, choice->own, sizeof key) == 0)
            return kvc_policy_evicted(t, key, &r, e) ? -1 : 1;
        if (kvc_dir_evict(d, t, key, &r, e)) return -1;
    }
    return 0;
}

int kvc_dir_adopt(struct kvc_index_txn *t, const struct kvc_object *o,
                  const struct kvc_object *parent, const struct stat *st, struct kvc_error *e) {
    struct kvc_index_record old, r = {.kind = (uint8_t)o->kind,
                                      .size = (uint64_t)st->st_size,
                                      .created = st->st_mtim.tv_sec,
                                      .used = st->st_mtim.tv_sec,
                                      .cost = 1};
    const int found = kvc_index_get(t, o->key, &old, e);
    if (found < 0) return -1;
    if (found && !old.ghost) return 0;
    memcpy(r.ns, o->ns, sizeof r.ns);
    if (parent) {
        r.has_parent = 1;
        memcpy(r.parent, parent->key, sizeof r.parent);
    }
    kvc_policy_tick(t, r.size);
    return kvc_policy_insert(t, o->key, found ? &old : NULL, &r, e);
}
