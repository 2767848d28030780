/* root.c: the folder of a directory store. Spec: STORE.md, "Directory". Not for what is kept or
 * evicted. */
#include "formats/store/dir/root.h"

#include "formats/io/sink.h"
#include "formats/store/dir/below.h"
#include "formats/store/tier.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <time.h>
#include <unistd.h>

int kvc_root_fail(const struct kvc_root *r, int code, const char *what, struct kvc_error *e) {
    kvc_fail(e, code == ENOMEM ? KVC_ERR_MEMORY : KVC_ERR_IO, "%s: %s: %s", r->path, what,
             code == KVC_NO_FILE ? "it is no regular file"
             : code == ENOTDIR   ? "a link or a file is in the place of a folder"
                                 : strerror(code));
    const int passing = code == ENOSPC || code == EDQUOT || code == EROFS || code == EIO ||
                        code == ESTALE || code == ENOMEM || code == EMFILE || code == ENFILE ||
                        code == EACCES;
    if (e) e->severity = passing ? KVC_SEVERITY_RETRY : KVC_SEVERITY_ITEM;
    return -1;
}

void kvc_root_path(const struct kvc_object *o, char path[KVC_ROOT_PATH]) {
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    const char *hex = name + 2 * KVC_OBJECT_NS + 1;
    if (kvc_object_is_facts(o->kind)) snprintf(path, KVC_ROOT_PATH, "ns/%s", name);
    else snprintf(path, KVC_ROOT_PATH, "obj/%.2s/%.2s/%s", hex, hex + 2, name);
}

/* What a system call failed with, beside -1 of what is called. */
#define NO_LISTING (-2)

/* Calls `one` for the names of a folder, which is given by its path below the root. Returns
 * NO_LISTING with errno. */
static int each_name(const struct kvc_root *r, const char *folder,
                     int (*one)(void *state, int fd, const char *name), void *state) {
    const int fd = kvc_below_folder(r->fd, folder);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    int status = 0;
    const struct dirent *entry;
    if (!d) {
        const int code = errno;
        if (fd >= 0) close(fd);
        errno = code;
        return code == ENOENT ? 0 : NO_LISTING;
    }
    while (!status && (entry = readdir(d)) != NULL)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = one(state, fd, entry->d_name);
    closedir(d);
    return status;
}

/* --- opening --- */

/* Returns 1 if locks and shared memory work as on a disk of this machine. */
static int is_local(int fd) {
    static const unsigned long network[] = {0x6969,     0xff534d42, 0x517b,     0xfe534d42,
                                            0x65735546, 0x01021997, 0x0bd00bd0, 0x47504653,
                                            0x00c36400, 0x73757245, 0x5346414f, 0x7461636f};
    struct statfs fs;
    if (fstatfs(fd, &fs)) return 0;
    for (size_t i = 0; i < sizeof network / sizeof network[0]; i++)
        if ((unsigned long)fs.f_type == network[i]) return 0;
    return 1;
}

static int check_owner(const struct kvc_root *r, struct kvc_error *e) {
    struct stat st;
    if (fstat(r->fd, &st)) return kvc_root_fail(r, errno, "cannot be looked at", e);
    if (r->conf->shared) return 0;
    if (st.st_uid != geteuid())
        return kvc_fail(
            e, KVC_ERR_USAGE,
            "%s: the folder belongs to another user; a store that users share has shared=yes",
            r->path);
    if (st.st_mode & 022)
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: others can write the folder: chmod 700 it; a store that users share "
                        "has shared=yes",
                        r->path);
    return 0;
}

/* A configuration that was read. */
struct kvc_root_conf {
    struct kvc_conf conf;
    struct kvc_root_conf *next;
};

static int set_conf(struct kvc_root *r, const struct kvc_conf *c, struct kvc_error *e) {
    struct kvc_root_conf *x = malloc(sizeof *x);
    if (!x) return kvc_fail_memory(e, KVC_CONF_NAME);
    *x = (struct kvc_root_conf){.conf = *c, .next = r->confs};
    r->confs = x;
    r->conf = &x->conf;
    return 0;
}

static int read_conf(struct kvc_root *r, int fd, const struct stat *st, struct kvc_error *e) {
    char text[8192];
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n < 0) return kvc_root_fail(r, errno, KVC_CONF_NAME, e);
    text[n] = '\0';
    struct kvc_conf conf;
    if (kvc_conf_parse(&conf, text, e)) return kvc_error_prefix(e, r->path);
    if (set_conf(r, &conf, e)) return -1;
    r->conf_time = st->st_mtim;
    return 0;
}

static int refresh(struct kvc_root *r, struct kvc_error *e) {
    struct stat st;
    if (fstatat(r->fd, KVC_CONF_NAME, &st, AT_SYMLINK_NOFOLLOW)) {
        kvc_root_fail(r, errno, KVC_CONF_NAME, e);
        if (e) e->severity = KVC_SEVERITY_RETRY; /* of the whole tier, which was removed */
        return -1;
    }
    if (st.st_mtim.tv_sec == r->conf_time.tv_sec && st.st_mtim.tv_nsec == r->conf_time.tv_nsec)
        return 0;
    const int fd = kvc_below_open(r->fd, KVC_CONF_NAME, O_RDONLY, 0, &st);
    if (fd < 0) return kvc_root_fail(r, errno, KVC_CONF_NAME, e);
    const int status = read_conf(r, fd, &st, e);
    close(fd);
    return status;
}

int kvc_root_refresh(struct kvc_root *r, struct kvc_error *e) {
    pthread_mutex_lock(&r->lock);
    const int status = refresh(r, e);
    pthread_mutex_unlock(&r->lock);
    return status;
}

/* Writes the configuration. `replace` 0: unless there is one, for another process may make the
 * store at the same time. */
static int write_conf(struct kvc_root *r, const struct kvc_conf *c, int replace,
                      struct kvc_error *e) {
    char text[2048], name[64];
    kvc_conf_print(c, text, sizeof text);
    snprintf(name, sizeof name, "." KVC_CONF_NAME ".%lx%lx", (long)getpid(), (long)pthread_self());
    struct stat st;
    unlinkat(r->fd, name, 0); /* of a process that was killed */
    const int fd = kvc_below_open(r->fd, name, O_WRONLY | O_CREAT | O_EXCL, c->shared ? 0660 : 0600,
                                  &st);
    if (fd < 0) return kvc_root_fail(r, errno, "cannot write " KVC_CONF_NAME, e);
    int code = kvc_write_all(fd, text, strlen(text)) || fsync(fd) ? errno : 0;
    close(fd);
    if (!code && replace && renameat(r->fd, name, r->fd, KVC_CONF_NAME)) code = errno;
    if (!code && !replace && kvc_below_name(r->fd, name, KVC_CONF_NAME) && errno != EEXIST)
        code = errno;
    if (code || !replace) unlinkat(r->fd, name, 0);
    return code ? kvc_root_fail(r, code, "cannot write " KVC_CONF_NAME, e) : 0;
}

int kvc_root_configure(struct kvc_root *r, const struct kvc_conf *c, struct kvc_error *e) {
    return write_conf(r, c, 1, e) ? -1 : kvc_root_refresh(r, e);
}

static int is_other(void *state, int fd, const char *name) {
    (void)state, (void)fd;
    return strncmp(name, "." KVC_CONF_NAME ".", sizeof "." KVC_CONF_NAME) != 0;
}

/* Returns 1 if the folder has nothing in it but configurations that are being written. */
static int is_empty(const struct kvc_root *r) {
    return !each_name(r, ".", is_other, NULL);
}

static mode_t folder_mode(const struct kvc_root *r) {
    return r->conf->shared ? 0770 : 0700;
}

static int make_folders(const struct kvc_root *r, struct kvc_error *e) {
    static const char *const folder[] = {"obj", "ns", "trash", "bad"};
    for (size_t i = 0; i < sizeof folder / sizeof folder[0]; i++) {
        int fd = -1;
        if (!mkdirat(r->fd, folder[i], folder_mode(r)) || errno == EEXIST)
            fd = kvc_below_folder(r->fd, folder[i]);
        if (fd < 0) return kvc_root_fail(r, errno, folder[i], e);
        close(fd);
    }
    return 0;
}

/* Reads the configuration, which the options must not contradict. Returns 1 if there is none. */
static int read_old_conf(struct kvc_root *r, struct kvc_url *url, struct kvc_error *e) {
    struct stat st;
    const int fd = kvc_below_open(r->fd, KVC_CONF_NAME, O_RDONLY, 0, &st);
    if (fd < 0) return errno == ENOENT ? 1 : kvc_root_fail(r, errno, KVC_CONF_NAME, e);
    int status = read_conf(r, fd, &st, e);
    close(fd);
    struct kvc_conf wanted = status ? kvc_conf_default : *r->conf;
    if (!status && kvc_conf_take(&wanted, url, e) < 0) status = -1;
    if (!status && !kvc_conf_equal(&wanted, r->conf))
        return kvc_fail(e, KVC_ERR_USAGE,
                        "%s: the store is there already, with other limits: change them for all "
                        "with kvc-store config",
                        r->path);
    return status;
}

/* Reads the configuration, or writes that of a new store and reads what is there then: processes of
 * an engine make their store together. */
static int open_conf(struct kvc_root *r, struct kvc_url *url, struct kvc_error *e) {
    struct kvc_conf wanted = kvc_conf_default;
    int status = read_old_conf(r, url, e);
    if (status <= 0) return status;
    if (kvc_conf_take(&wanted, url, e) < 0) return -1;
    if (set_conf(r, &wanted, e) || check_owner(r, e)) return -1;
    if (is_empty(r) && write_conf(r, &wanted, 0, e)) return -1;
    status = read_old_conf(r, url, e);
    if (status <= 0) return status;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s: no store: the folder has files, and none is " KVC_CONF_NAME, r->path);
}

int kvc_root_open(struct kvc_root *r, struct kvc_url *url, struct kvc_error *e) {
    *r = (struct kvc_root){.fd = -1, .conf = &kvc_conf_default, .path = strdup(url->place)};
    pthread_mutex_init(&r->lock, NULL);
    if (!r->path) return kvc_fail_memory(e, "a path");
    int status = 0;
    if (mkdir(r->path, 0700) && errno != EEXIST)
        status = kvc_root_fail(r, errno, "cannot be made", e);
    if (!status && (r->fd = open(r->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
        status = errno == ELOOP || errno == ENOTDIR
                     ? kvc_fail(e, KVC_ERR_USAGE, "%s: no folder, but a link or a file", r->path)
                     : kvc_root_fail(r, errno, "cannot be opened", e);
    if (!status) status = open_conf(r, url, e);
    if (!status) status = check_owner(r, e);
    if (!status) status = make_folders(r, e);
    if (!status) r->local = is_local(r->fd);
    if (status) kvc_root_close(r);
    return status;
}

void kvc_root_close(struct kvc_root *r) {
    if (r->fd >= 0) close(r->fd);
    for (struct kvc_root_conf *x = r->confs, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    free(r->path);
    *r = (struct kvc_root){.fd = -1};
}

/* --- writing --- */

int kvc_root_create(const struct kvc_root *r, const struct kvc_object *o, struct kvc_root_file *f,
                    struct kvc_error *e) {
    const mode_t mode = r->conf->shared ? 0660 : 0600;
    const int folder = kvc_below_folder(r->fd, "obj");
    struct stat st;
    *f = (struct kvc_root_file){.fd = folder < 0 ? -1 : kvc_below_unnamed(folder, mode)};
    const int code = errno;
    if (folder >= 0) close(folder);
    if (f->fd >= 0) return 0;
    if (folder < 0 || code != EOPNOTSUPP)
        return kvc_root_fail(r, code, "cannot write an object", e);
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    snprintf(f->temporary, sizeof f->temporary, "trash/%.64s-%lx%lx", name, (long)getpid(),
             (long)pthread_self());
    f->fd = kvc_below_open(r->fd, f->temporary, O_RDWR | O_CREAT | O_EXCL, mode, &st);
    if (f->fd >= 0) return 0;
    f->temporary[0] = '\0';
    return kvc_root_fail(r, errno, "cannot write an object", e);
}

static int name_file(const struct kvc_root *r, const struct kvc_root_file *f, const char *path,
                     int replace) {
    if (f->temporary[0])
        return replace ? kvc_below_rename(r->fd, f->temporary, path)
                       : kvc_below_name(r->fd, f->temporary, path);
    if (!replace) return kvc_below_link(f->fd, r->fd, path);
    /* linkat() cannot replace: another name first */
    char other[KVC_ROOT_PATH];
    snprintf(other, sizeof other, "trash/new-%lx%lx", (long)getpid(), (long)pthread_self());
    kvc_below_remove(r->fd, other);
    if (kvc_below_link(f->fd, r->fd, other) || kvc_below_rename(r->fd, other, path)) return -1;
    return 0;
}

int kvc_root_link(const struct kvc_root *r, const struct kvc_object *o, struct kvc_root_file *f,
                  int replace, int *there, struct kvc_error *e) {
    char path[KVC_ROOT_PATH];
    struct stat st;
    kvc_root_path(o, path);
    const int known = !kvc_below_stat(r->fd, path, &st), code = known ? 0 : errno;
    *there = known && !replace;
    if (*there) return 0;
    if (code == KVC_NO_FILE && kvc_root_quarantine(r, o))
        return kvc_root_fail(r, errno, "cannot put aside what is no object", e);
    /* A file that has had a name and lost it gets no other one: what replaces is named once, in a
     * folder that is there. */
    int status = replace && kvc_below_make(r->fd, path, folder_mode(r))
                     ? -1
                     : name_file(r, f, path, replace);
    if (status && errno == ENOENT && !replace && !kvc_below_make(r->fd, path, folder_mode(r)))
        status = name_file(r, f, path, replace);
    *there = status && errno == EEXIST && !replace;
    return status && !*there ? kvc_root_fail(r, errno, "cannot name an object", e) : 0;
}

void kvc_root_drop(const struct kvc_root *r, struct kvc_root_file *f) {
    if (f->fd >= 0) close(f->fd);
    if (f->temporary[0]) kvc_below_remove(r->fd, f->temporary);
    *f = (struct kvc_root_file){.fd = -1};
}

/* --- reading, moving --- */

static void trash_path(const char *folder, const struct kvc_object *o, char path[KVC_ROOT_PATH]) {
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    snprintf(path, KVC_ROOT_PATH, "%s/%s", folder, name);
}

int kvc_root_read(const struct kvc_root *r, const struct kvc_object *o, struct stat *st) {
    char path[KVC_ROOT_PATH];
    kvc_root_path(o, path);
    const int fd = kvc_below_open(r->fd, path, O_RDONLY, 0, st);
    if (fd >= 0 || errno != ENOENT) return fd;
    trash_path("trash", o, path);
    return kvc_below_open(r->fd, path, O_RDONLY, 0, st);
}

int kvc_root_stat(const struct kvc_root *r, const struct kvc_object *o, struct stat *st) {
    char path[KVC_ROOT_PATH];
    kvc_root_path(o, path);
    return kvc_below_stat(r->fd, path, st);
}

int kvc_root_trash(const struct kvc_root *r, const struct kvc_object *o) {
    char path[KVC_ROOT_PATH], to[KVC_ROOT_PATH];
    struct stat st;
    kvc_root_path(o, path);
    if (kvc_below_stat(r->fd, path, &st))
        return errno == KVC_NO_FILE ? kvc_root_quarantine(r, o) : -1;
    trash_path("trash", o, to);
    if (!kvc_below_rename(r->fd, path, to)) return 0;
    /* a folder of this name is in the trash */
    return errno == EISDIR ? kvc_below_remove(r->fd, path) : -1;
}

int kvc_root_remove(const struct kvc_root *r, const struct kvc_object *o) {
    char path[KVC_ROOT_PATH];
    trash_path("trash", o, path); /* which is read, too */
    kvc_below_remove(r->fd, path);
    kvc_root_path(o, path);
    const int status = kvc_below_remove(r->fd, path);
    return status && errno == EISDIR ? kvc_root_quarantine(r, o) : status;
}

int kvc_root_touch(const struct kvc_root *r, const struct kvc_object *o,
                   const struct timespec times[2]) {
    char path[KVC_ROOT_PATH];
    kvc_root_path(o, path);
    return kvc_below_touch(r->fd, path, times);
}

int kvc_root_sync(const struct kvc_root *r, const char *path, struct kvc_error *e) {
    char folder[KVC_ROOT_PATH];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    const int fd = kvc_below_folder(r->fd, folder);
    if (fd < 0) return kvc_root_fail(r, errno, "cannot make a folder durable", e);
    const int status = fsync(fd) ? kvc_root_fail(r, errno, "cannot make a folder durable", e) : 0;
    close(fd);
    return status;
}

/* --- listing --- */

/* The newest of bad/ stay: so many. */
#define KEEP_BAD 16

struct oldest {
    char path[KVC_ROOT_PATH];
    struct timespec time;
    unsigned n;
};

static int find_oldest(void *state, int fd, const char *name) {
    struct oldest *o = state;
    struct stat st;
    if (strlen(name) > sizeof o->path - sizeof "bad/" ||
        fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW))
        return 0;
    if (S_ISDIR(st.st_mode)) return 0; /* somebody else has put something into it */
    if (!o->n++ || st.st_ctim.tv_sec < o->time.tv_sec ||
        (st.st_ctim.tv_sec == o->time.tv_sec && st.st_ctim.tv_nsec < o->time.tv_nsec)) {
        snprintf(o->path, sizeof o->path, "bad/%s", name);
        o->time = st.st_ctim;
    }
    return 0;
}

/* Moves something to bad/, under a name of its own if there is a folder of this name. */
static int put_aside(const struct kvc_root *r, const char *path, const struct kvc_object *o) {
    char to[KVC_ROOT_PATH];
    trash_path("bad", o, to);
    if (!kvc_below_rename(r->fd, path, to)) return 0;
    if (errno != EISDIR && errno != ENOTDIR && errno != ENOTEMPTY && errno != EEXIST) return -1;
    const size_t n = strlen(to);
    snprintf(to + n, sizeof to - n, "-%" PRIx64, (uint64_t)kvc_now());
    return kvc_below_rename(r->fd, path, to);
}

int kvc_root_quarantine(const struct kvc_root *r, const struct kvc_object *o) {
    char path[KVC_ROOT_PATH];
    kvc_root_path(o, path);
    int status = put_aside(r, path, o);
    if (status && errno == ENOENT) { /* it was read from the trash */
        trash_path("trash", o, path);
        status = put_aside(r, path, o);
    }
    struct oldest oldest = {.n = 0};
    if (!status && !each_name(r, "bad", find_oldest, &oldest) && oldest.n > KEEP_BAD)
        kvc_below_remove(r->fd, oldest.path);
    return status;
}

struct emptying {
    int64_t now, before;
    uint64_t gone, left;
};

/* Files that are being written or named have names of their own here. Nobody works on one for so
 * long, in seconds, without changing it. */
#define KEEP_TEMPORARY 60

/* Files of which the time is that far ahead are from before the clock was set back. */
static int is_old(const struct stat *st, int64_t now, int64_t limit) {
    return st->st_ctim.tv_sec <= limit || st->st_ctim.tv_sec > now + KEEP_TEMPORARY;
}

static int empty_one(void *state, int fd, const char *name) {
    struct emptying *x = state;
    struct kvc_object o;
    struct stat st;
    const int64_t old = x->now - KEEP_TEMPORARY;
    const int64_t limit = kvc_object_parse(name, &o) && old < x->before ? old : x->before;
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) || S_ISDIR(st.st_mode)) return 0;
    if (is_old(&st, x->now, limit) && !unlinkat(fd, name, 0)) x->gone += (uint64_t)st.st_size;
    else x->left += (uint64_t)st.st_size;
    return 0;
}

/* Returns the time by which a folder's files get theirs, which may be that of another machine. */
static int64_t time_of(const struct kvc_root *r, const char *folder) {
    struct timespec now; /* time() may be some milliseconds before the times of files */
    struct stat st;
    const int fd = kvc_below_folder(r->fd, folder);
    clock_gettime(CLOCK_REALTIME, &now);
    if (fd >= 0 && !futimens(fd, NULL) && !fstat(fd, &st)) now = st.st_ctim;
    if (fd >= 0) close(fd);
    return now.tv_sec;
}

int kvc_root_empty_trash(const struct kvc_root *r, int64_t seconds, uint64_t *gone, uint64_t *left,
                         struct kvc_error *e) {
    const int64_t now = time_of(r, "trash");
    struct emptying x = {.now = now, .before = now - seconds};
    if (each_name(r, "trash", empty_one, &x)) return kvc_root_fail(r, errno, "trash", e);
    *gone = x.gone;
    *left = x.left;
    return 0;
}

static int remove_conf(void *state, int fd, const char *name) {
    const int64_t *now = state;
    struct stat st;
    if (!is_other(NULL, fd, name) && !fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) &&
        is_old(&st, *now, *now - KEEP_TEMPORARY))
        unlinkat(fd, name, 0);
    return 0;
}

void kvc_root_remove_temporary(const struct kvc_root *r) {
    int64_t now = time_of(r, "trash");
    each_name(r, ".", remove_conf, &now);
}

struct walking {
    const struct kvc_root *root;
    kvc_root_seen *seen;
    void *state;
    struct kvc_error *e;
    struct kvc_root_strangers *strangers;
    char folder[KVC_ROOT_PATH]; /* that is being listed */
    size_t depth;
};

static int walk_one(void *state, int fd, const char *name);

static int walk_folder(struct walking *w, const char *name) {
    const size_t length = strlen(w->folder);
    snprintf(w->folder + length, sizeof w->folder - length, "/%s", name);
    w->depth++;
    const int status = each_name(w->root, w->folder, walk_one, w);
    w->depth--;
    w->folder[length] = '\0';
    return status;
}

static int walk_one(void *state, int fd, const char *name) {
    struct walking *w = state;
    struct kvc_object o;
    struct stat st;
    char path[KVC_ROOT_PATH] = "", is[KVC_ROOT_PATH + 256];
    if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW)) return 0; /* it has just gone */
    if (w->depth < 2 && strlen(name) == 2 && S_ISDIR(st.st_mode)) return walk_folder(w, name);
    if (!kvc_object_parse(name, &o)) kvc_root_path(&o, path);
    snprintf(is, sizeof is, "%s/%s", w->folder, name);
    if (strcmp(path, is) == 0) return w->seen(w->state, &o, &st, w->e);
    if (w->strangers && !w->strangers->n++)
        snprintf(w->strangers->first, KVC_ROOT_PATH, "%.*s", KVC_ROOT_PATH - 1, is);
    return 0;
}

int kvc_root_walk(const struct kvc_root *r, kvc_root_seen *seen, void *state,
                  struct kvc_root_strangers *strangers, struct kvc_error *e) {
    struct walking w = {
        .root = r, .seen = seen, .state = state, .e = e, .strangers = strangers, .folder = "obj"};
    if (strangers) *strangers = (struct kvc_root_strangers){.n = 0};
    int status = each_name(r, "obj", walk_one, &w);
    if (!status) {
        memcpy(w.folder, "ns", 3);
        w.depth = 2;
        status = each_name(r, "ns", walk_one, &w);
    }
    if (status == NO_LISTING) return kvc_root_fail(r, errno, "cannot be listed", e);
    return status < 0 ? -1 : 0;
}
