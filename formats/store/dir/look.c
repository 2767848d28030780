/* look.c: what a directory tells of itself: what it knows of an object, its configuration, and
 * whether its file system and its folders are as they should be. Not for cleaning (room.c). */
#include "formats/store/dir/dir.h"

#include "codecs/number.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

/* --- objects --- */

/* Returns 1 if the object was put aside. */
static int is_aside(const struct kvc_dir *d, const struct kvc_object *o,
                    struct kvc_store_object_info *info) {
    char name[KVC_OBJECT_NAME];
    struct stat st;
    kvc_object_name(o, name);
    snprintf(info->path, sizeof info->path, "bad/%s", name);
    if (fstatat(d->root.fd, info->path, &st, AT_SYMLINK_NOFOLLOW)) return 0;
    info->state = KVC_STORE_PUT_ASIDE;
    info->aside = st.st_ctim.tv_sec;
    return 1;
}

int kvc_dir_record(struct kvc_tier *l, const struct kvc_object *o,
                   struct kvc_store_object_info *info, struct kvc_error *e) {
    struct kvc_dir *d = (struct kvc_dir *)l;
    struct kvc_index_record r;
    struct kvc_index_txn *t = d->index ? kvc_index_begin(d->index, 0, e) : NULL;
    const int known = t ? kvc_index_get(t, o->key, &r, e) : d->index ? -1 : 0;
    kvc_index_abort(t);
    if (known < 0) return -1;
    if (!known && is_aside(d, o, info)) return 1;
    if (!d->index)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: the store has no index", d->root.path);
    if (!known) return 0;
    info->state = r.ghost ? KVC_STORE_REMEMBERED : KVC_STORE_STORED;
    kvc_root_path(o, info->path);
    info->bytes = r.size;
    info->uses = r.uses;
    info->many = r.uses == KVC_INDEX_USES;
    info->depth = r.depth;
    info->children = r.children;
    info->used = r.used;
    info->pinned = r.pinned;
    info->expires = r.expires;
    return 1;
}

/* --- configuration --- */

/* Takes "KEY=VALUE" into a configuration. */
static int take_item(struct kvc_conf *c, const char *text, struct kvc_error *e) {
    struct kvc_url url = {.scheme = "config", .text = strdup(text), .n = 1};
    if (!url.text) return kvc_fail_memory(e, "a configuration");
    char *value = strchr(url.text, '=');
    int status = value ? 0 : kvc_fail(e, KVC_ERR_USAGE, "'%s' is not KEY=VALUE", text);
    if (value) *value++ = '\0';
    url.option[0] = (struct kvc_url_option){.key = url.text, .value = value};
    if (!status && (kvc_conf_take(c, &url, e) < 0 || kvc_url_rest(&url, e))) status = -1;
    kvc_url_free(&url);
    return status;
}

int kvc_dir_configure(struct kvc_tier *l, const char *const *set, char *text, size_t size,
                      struct kvc_error *e) {
    struct kvc_root *r = &((struct kvc_dir *)l)->root;
    struct kvc_conf c = *r->conf;
    for (const char *const *item = set; item && *item; item++)
        if (take_item(&c, *item, e)) return -1;
    if (set && *set && kvc_root_configure(r, &c, e)) return -1;
    kvc_conf_print(&c, text, size);
    return 0;
}

/* --- examining --- */

/* Takes what is found. */
struct findings {
    kvc_store_finding_fn *fn;
    void *state;
};

static void find(const struct findings *x, int good, const char *what, const char *more) {
    x->fn(x->state, good, what, more);
}

/* What stands in the place of objects. */
struct no_files {
    uint64_t n;
    char first[KVC_ROOT_PATH];
};

static int see_object(void *state, const struct kvc_object *o, const struct stat *st,
                      struct kvc_error *e) {
    struct no_files *x = state;
    (void)e;
    if (!S_ISREG(st->st_mode) && !x->n++) kvc_root_path(o, x->first);
    return 0;
}

/* Looks for what is no object, and for links in the place of folders. */
static void examine_names(const struct findings *x, const struct kvc_root *r) {
    struct no_files no_files = {.n = 0};
    struct kvc_root_strangers others;
    struct kvc_error e;
    char text[KVC_ROOT_PATH + 100] = "";
    if (kvc_root_walk(r, see_object, &no_files, &others, &e)) {
        find(x, 0, "folders", e.message);
        return;
    }
    if (no_files.n)
        snprintf(text, sizeof text, "%" PRIu64 " are none, as %s: kvc-store gc puts them aside",
                 no_files.n, no_files.first);
    find(x, !no_files.n, "objects are files", text);
    snprintf(text, sizeof text, "%s", others.first);
    if (others.n > 1) snprintf(text, sizeof text, "%" PRIu64 ", as %s", others.n, others.first);
    find(x, !others.n, others.n ? "what is no object" : "nothing else is in the folders", text);
}

/* Tries to begin a file. */
static void examine_writing(const struct findings *x, const struct kvc_root *r) {
    static const struct kvc_object any = {.kind = KVC_OBJECT_CHUNK};
    struct kvc_root_file f;
    struct kvc_error e;
    if (kvc_root_create(r, &any, &f, &e)) {
        find(x, 0, "files can be written", e.message);
        return;
    }
    find(x, 1, *f.temporary ? "no files without names" : "files without names (O_TMPFILE)",
         *f.temporary ? "temporary names are used" : "");
    kvc_root_drop(r, &f);
}

void kvc_dir_examine(struct kvc_tier *l, kvc_store_finding_fn *fn, void *state) {
    const struct kvc_dir *d = (const struct kvc_dir *)l;
    const struct kvc_root *r = &d->root;
    const struct findings x = {.fn = fn, .state = state};
    struct statvfs fs;
    char text[128], least[32];
    examine_writing(&x, r);
    examine_names(&x, r);
    find(&x, r->local, "file system of this machine",
         r->local ? "" : "no index: limits are kept by kvc-store gc only");
    find(&x, d->index || !r->conf->indexed, "index", d->index ? "" : "none");
    if (fstatvfs(r->fd, &fs)) return;
    const double free_share = fs.f_blocks ? 100. * (double)fs.f_bavail / (double)fs.f_blocks : 0;
    const unsigned tenths = (unsigned)(10 * free_share + .5);
    kvc_number_print(least, sizeof least, 6, r->conf->min_free);
    snprintf(text, sizeof text, "%u.%u %% free, %s %% are to stay free", tenths / 10, tenths % 10,
             least);
    find(&x, free_share > r->conf->min_free, "room on the file system", text);
    snprintf(text, sizeof text, "%" PRIu64 " left", (uint64_t)fs.f_favail);
    find(&x, !fs.f_files || fs.f_favail > 10000, "inodes", fs.f_files ? text : "");
}
