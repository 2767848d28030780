/* root.h: the folder of a directory store: its layout, the paths in it, and files that appear whole
 * or not at all. Every path is reached from the folder's descriptor without following links
 * (below.h), and consists of hex digits. Not for what is kept or evicted (dir.c, policy.h).
 * STORE.md, "Directory". */
#ifndef KVC_STORE_ROOT_H
#define KVC_STORE_ROOT_H

#include "formats/store/dir/conf.h"
#include "formats/store/object.h"

#include <pthread.h>
#include <sys/stat.h>

struct kvc_root_conf;
struct kvc_root {
    int fd;     /* of the folder */
    char *path; /* for messages */
    /* the last that was read; earlier ones stay, as other threads may be using them */
    const struct kvc_conf *_Atomic conf;
    struct kvc_root_conf *confs;
    pthread_mutex_t lock;      /* of the two above and below */
    struct timespec conf_time; /* when the file changed that `conf` was read from */
    int local;                 /* the file system is this machine's: an index can lie in it */
};

/* Opens a store's folder; makes it if it does not exist or is empty. Refuses a folder that is no
 * store, that is a link, or that others own or can write. Options in `url` are those of the file:
 * they make a new store with these, and must not contradict an old one. */
int kvc_root_open(struct kvc_root *r, struct kvc_url *url, struct kvc_error *e);
void kvc_root_close(struct kvc_root *r);
/* Reads the configuration again if another process has changed it. */
int kvc_root_refresh(struct kvc_root *r, struct kvc_error *e);
/* Writes the configuration. */
int kvc_root_configure(struct kvc_root *r, const struct kvc_conf *c, struct kvc_error *e);

/* What lies in a root beside objects and the configuration. */
#define KVC_INDEX_NAME "index.sqlite"
#define KVC_INDEX_JOURNAL KVC_INDEX_NAME "-journal"

/* Writes the path of an object below the root. */
#define KVC_ROOT_PATH 128
void kvc_root_path(const struct kvc_object *o, char path[KVC_ROOT_PATH]);

/* A file that is being written. It has no name before kvc_root_link(), where the file system can do
 * that; else a temporary one. */
struct kvc_root_file {
    int fd;
    char temporary[KVC_ROOT_PATH]; /* "": none */
};
int kvc_root_create(const struct kvc_root *r, const struct kvc_object *o, struct kvc_root_file *f,
                    struct kvc_error *e);
/* Names the file. Sets *there to 1 if the name is taken, and leaves that one, unless it is no
 * regular file: this is moved to bad/. */
int kvc_root_link(const struct kvc_root *r, const struct kvc_object *o, struct kvc_root_file *f,
                  int replace, int *there, struct kvc_error *e);
/* closes it; one without a name is gone */
void kvc_root_drop(const struct kvc_root *r, struct kvc_root_file *f);

/* Opens an object to be read, also one in the trash. Returns a descriptor; -1 with errno, which is
 * KVC_NO_FILE (below.h) for what is no regular file. */
int kvc_root_read(const struct kvc_root *r, const struct kvc_object *o, struct stat *st);
int kvc_root_stat(const struct kvc_root *r, const struct kvc_object *o, struct stat *st);
/* Move an object to the trash or to bad/, where what is no regular file goes in any case. 0, or -1
 * with errno. */
int kvc_root_trash(const struct kvc_root *r, const struct kvc_object *o);
int kvc_root_quarantine(const struct kvc_root *r, const struct kvc_object *o);
int kvc_root_remove(const struct kvc_root *r, const struct kvc_object *o);
int kvc_root_touch(const struct kvc_root *r, const struct kvc_object *o,
                   const struct timespec times[2]);
/* Makes the folder durable that a path is in. */
int kvc_root_sync(const struct kvc_root *r, const char *path, struct kvc_error *e);

/* Removes what has been in the trash for more than `seconds`; adds up the bytes of what went and of
 * what stays. */
int kvc_root_empty_trash(const struct kvc_root *r, int64_t seconds, uint64_t *gone, uint64_t *left,
                         struct kvc_error *e);
/* Removes configurations whose writers were killed. */
void kvc_root_remove_temporary(const struct kvc_root *r);
/* Calls `seen` for every object; also for what has the name of an object and is no regular file.
 * What has other names is counted. */
struct kvc_root_strangers {
    uint64_t n;
    char first[KVC_ROOT_PATH]; /* path of one of them; "" if there is none */
};
typedef int kvc_root_seen(void *state, const struct kvc_object *o, const struct stat *st,
                          struct kvc_error *e);
int kvc_root_walk(const struct kvc_root *r, kvc_root_seen *seen, void *state,
                  struct kvc_root_strangers *strangers, struct kvc_error *e);

/* Fails with what a failed system call says. A disk that is full, read-only or broken can be tried
 * again later. */
int kvc_root_fail(const struct kvc_root *r, int code, const char *what, struct kvc_error *e);

#endif
