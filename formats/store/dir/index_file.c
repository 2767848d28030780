/* index_file.c: what SQLite needs of an operating system ("VFS"), for the one database of a store.
 * SQLite's own would follow links, wait for pipes, and take damaged pages for good ones.
 *
 * A page ends with the XXH3 of its other bytes, seeded with its number. The rollback journal has
 * pages with these checksums too. */
#include "formats/store/dir/index_file.h"

#include "formats/store/dir/below.h"
#include "formats/store/dir/root.h"
#include "formats/store/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#define PAGE 4096
#define SUM KVC_INDEX_SUM
/* bytes of the first page that are read before it is known how long pages are */
#define HEADER 100

/* Bytes that are locked, as SQLite's documents name them. */
#define PENDING INT64_C(0x40000000)
#define RESERVED (PENDING + 1)
#define SHARED (PENDING + 2)
#define SHARED_SIZE 510

struct file {
    sqlite3_file base;
    struct kvc_index_file *index;
    int fd, is_journal, lock;
    uint32_t page; /* of a journal: the number of the page that is read next */
};

static struct file *file_of(sqlite3_file *x) {
    return (struct file *)x;
}

static int index_file_failed(struct file *f, int code) {
    f->index->code = errno;
    return code;
}

static int close_file(sqlite3_file *x) {
    struct file *f = file_of(x);
    if (f->index->fd == f->fd) f->index->fd = -1;
    close(f->fd);
    return SQLITE_OK;
}

/* --- bytes --- */

static uint64_t sum_of(const uint8_t *page, uint32_t number) {
    return XXH3_64bits_withSeed(page, PAGE - SUM, number);
}

/* Says whether what was read of the file is what was written. */
static int is_whole(struct file *f, const uint8_t *data, int n, int64_t at) {
    uint64_t sum;
    if (f->is_journal && n == 4)
        f->page = (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 |
                  data[3];
    if (n != PAGE) return f->is_journal || at + n <= HEADER;
    memcpy(&sum, data + PAGE - SUM, sizeof sum);
    return sum == sum_of(data, f->is_journal ? f->page : (uint32_t)(at / PAGE) + 1);
}

static int index_file_read_file(sqlite3_file *x, void *data, int n, sqlite3_int64 at) {
    struct file *f = file_of(x);
    int done = 0;
    while (done < n) {
        const ssize_t got = pread(f->fd, (uint8_t *)data + done, (size_t)(n - done), at + done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return index_file_failed(f, SQLITE_IOERR_READ);
        if (!got) { /* SQLite takes what is missing for zeros */
            memset((uint8_t *)data + done, 0, (size_t)(n - done));
            return done && n == PAGE && !f->is_journal ? SQLITE_IOERR_DATA
                                                       : SQLITE_IOERR_SHORT_READ;
        }
        done += (int)got;
    }
    return is_whole(f, data, n, at) ? SQLITE_OK : SQLITE_IOERR_DATA;
}

static int index_file_write_file(sqlite3_file *x, const void *data, int n, sqlite3_int64 at) {
    struct file *f = file_of(x);
    if (n == PAGE && !f->is_journal) {
        /* The page in SQLite's memory gets its checksum, so that a journal into which it goes
         * later has it as well. */
        uint8_t *page = (uint8_t *)(uintptr_t)data;
        const uint64_t sum = sum_of(page, (uint32_t)(at / PAGE) + 1);
        memcpy(page + PAGE - SUM, &sum, sizeof sum);
    }
    for (int done = 0; done < n;) {
        const ssize_t put = pwrite(f->fd, (const uint8_t *)data + done, (size_t)(n - done),
                                   at + done);
        if (put > 0) done += (int)put;
        else if (put < 0 && errno != EINTR)
            return index_file_failed(f, errno == ENOSPC || errno == EDQUOT ? SQLITE_FULL
                                                                           : SQLITE_IOERR_WRITE);
    }
    return SQLITE_OK;
}

static int truncate_file(sqlite3_file *x, sqlite3_int64 size) {
    return ftruncate(file_of(x)->fd, size) ? index_file_failed(file_of(x), SQLITE_IOERR_TRUNCATE)
                                           : SQLITE_OK;
}

/* Does nothing: after a crash of the machine the index is looked through, and what it lacks is
 * in the files. */
static int sync_file(sqlite3_file *x, int flags) {
    (void)x, (void)flags;
    return SQLITE_OK;
}

static int size_of_file(sqlite3_file *x, sqlite3_int64 *size) {
    struct stat st;
    if (fstat(file_of(x)->fd, &st)) return index_file_failed(file_of(x), SQLITE_IOERR_FSTAT);
    *size = st.st_size;
    return SQLITE_OK;
}

/* --- locks --- */

/* Locks belong to the open file, not to the process: closing another descriptor of it releases
 * none. */
static int set_lock(struct file *f, short type, int64_t at, int64_t n) {
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = at, .l_len = n};
    if (!fcntl(f->fd, F_OFD_SETLK, &l)) return SQLITE_OK;
    return errno == EAGAIN || errno == EACCES ? SQLITE_BUSY
                                              : index_file_failed(f, SQLITE_IOERR_LOCK);
}

static int lock_shared(struct file *f) {
    int code = set_lock(f, F_RDLCK, PENDING, 1);
    if (code) return code;
    code = set_lock(f, F_RDLCK, SHARED, SHARED_SIZE);
    set_lock(f, F_UNLCK, PENDING, 1);
    return code;
}

/* A writer that waits for readers keeps the pending lock, so that no new ones come. */
static int lock_exclusive(struct file *f) {
    int code = f->lock < SQLITE_LOCK_PENDING ? set_lock(f, F_WRLCK, PENDING, 1) : SQLITE_OK;
    if (code) return code;
    f->lock = SQLITE_LOCK_PENDING;
    return set_lock(f, F_WRLCK, SHARED, SHARED_SIZE);
}

static int lock_file(sqlite3_file *x, int lock) {
    struct file *f = file_of(x);
    if (f->lock >= lock) return SQLITE_OK;
    const int code = lock == SQLITE_LOCK_SHARED     ? lock_shared(f)
                     : lock == SQLITE_LOCK_RESERVED ? set_lock(f, F_WRLCK, RESERVED, 1)
                                                    : lock_exclusive(f);
    if (!code) f->lock = lock;
    return code;
}

static int unlock_file(sqlite3_file *x, int lock) {
    struct file *f = file_of(x);
    if (f->lock <= lock) return SQLITE_OK;
    int code = SQLITE_OK;
    if (lock == SQLITE_LOCK_SHARED) code = set_lock(f, F_RDLCK, SHARED, SHARED_SIZE);
    const int other = set_lock(f, F_UNLCK, PENDING,
                               lock == SQLITE_LOCK_SHARED ? 2 : 2 + SHARED_SIZE);
    f->lock = lock;
    return code ? code : other;
}

static int check_reserved(sqlite3_file *x, int *is) {
    struct file *f = file_of(x);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = RESERVED, .l_len = 1};
    *is = f->lock > SQLITE_LOCK_SHARED;
    if (*is) return SQLITE_OK;
    if (fcntl(f->fd, F_OFD_GETLK, &l)) return index_file_failed(f, SQLITE_IOERR_CHECKRESERVEDLOCK);
    *is = l.l_type != F_UNLCK;
    return SQLITE_OK;
}

static int control(sqlite3_file *x, int what, void *value) {
    (void)x, (void)what, (void)value;
    return SQLITE_NOTFOUND;
}

static int characteristics(sqlite3_file *x) {
    (void)x;
    return SQLITE_IOCAP_POWERSAFE_OVERWRITE;
}

static const sqlite3_io_methods methods = {
    .iVersion = 1,
    .xClose = close_file,
    .xRead = index_file_read_file,
    .xWrite = index_file_write_file,
    .xTruncate = truncate_file,
    .xSync = sync_file,
    .xFileSize = size_of_file,
    .xLock = lock_file,
    .xUnlock = unlock_file,
    .xCheckReservedLock = check_reserved,
    .xFileControl = control,
    .xDeviceCharacteristics = characteristics,
};

/* --- files --- */

static int open_file(sqlite3_vfs *vfs, const char *name, sqlite3_file *x, int flags, int *out) {
    struct kvc_index_file *index = vfs->pAppData;
    struct file *f = file_of(x);
    struct stat st;
    *f = (struct file){.index = index, .is_journal = (flags & SQLITE_OPEN_MAIN_JOURNAL) != 0};
    if (!(flags & (SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL))) return SQLITE_CANTOPEN;
    f->fd = kvc_below_open(index->folder, name, O_RDWR | (flags & SQLITE_OPEN_CREATE ? O_CREAT : 0),
                           index->mode, &st);
    if (f->fd < 0) return index_file_failed(f, SQLITE_CANTOPEN);
    /* Whoever can write the folder can write the index. */
    if (!st.st_size && (st.st_mode & 0777) != index->mode) fchmod(f->fd, index->mode);
    if (!f->is_journal) index->fd = f->fd;
    if (out) *out = flags;
    f->base.pMethods = &methods;
    return SQLITE_OK;
}

static int remove_file(sqlite3_vfs *vfs, const char *name, int sync) {
    struct kvc_index_file *index = vfs->pAppData;
    (void)sync;
    if (!unlinkat(index->folder, name, 0)) return SQLITE_OK;
    index->code = errno;
    return errno == ENOENT ? SQLITE_IOERR_DELETE_NOENT : SQLITE_IOERR_DELETE;
}

/* No file is there but a journal: a damaged journal may name others. */
static int look(sqlite3_vfs *vfs, const char *name, int flags, int *is) {
    struct kvc_index_file *index = vfs->pAppData;
    struct stat st;
    (void)flags;
    *is = strcmp(name, KVC_INDEX_JOURNAL) == 0 && !kvc_below_stat(index->folder, name, &st) &&
          st.st_size;
    return SQLITE_OK;
}

static int full_name(sqlite3_vfs *vfs, const char *name, int n, char *to) {
    (void)vfs;
    return snprintf(to, (size_t)n, "%s", name) < n ? SQLITE_OK : SQLITE_CANTOPEN;
}

void kvc_index_file_init(struct kvc_index_file *f, int folder, mode_t mode) {
    *f = (struct kvc_index_file){.folder = folder, .mode = mode, .fd = -1};
    snprintf(f->name, sizeof f->name, "kvc-index-%" PRIxPTR, (uintptr_t)f);
}

int kvc_index_file_open(struct kvc_index_file *f, sqlite3 **db) {
    const int flags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX |
                      SQLITE_OPEN_PRIVATECACHE;
    const sqlite3_vfs *system = sqlite3_vfs_find("unix");
    *db = NULL;
    if (!system) return SQLITE_ERROR;
    f->vfs = *system; /* its clock and the like use nothing of it */
    f->vfs.iVersion = 2;
    f->vfs.szOsFile = sizeof(struct file);
    f->vfs.mxPathname = 64;
    f->vfs.pNext = NULL;
    f->vfs.zName = f->name;
    f->vfs.pAppData = f;
    f->vfs.xOpen = open_file;
    f->vfs.xDelete = remove_file;
    f->vfs.xAccess = look;
    f->vfs.xFullPathname = full_name;
    /* It is known by its name only while it is looked for: nothing stays in the host program. */
    int code = sqlite3_vfs_register(&f->vfs, 0);
    if (!code) code = sqlite3_open_v2(KVC_INDEX_NAME, db, flags, f->name);
    sqlite3_vfs_unregister(&f->vfs);
    return code;
}

int kvc_index_file_is_gone(const struct kvc_index_file *f) {
    struct stat is, named;
    return f->fd < 0 || fstat(f->fd, &is) ||
           fstatat(f->folder, KVC_INDEX_NAME, &named, AT_SYMLINK_NOFOLLOW) ||
           is.st_ino != named.st_ino || is.st_dev != named.st_dev;
}

/* The index goes first: a journal without it is of no use, and SQLite removes it. */
void kvc_index_file_remove(int folder) {
    static const char *const name[] = {KVC_INDEX_NAME, KVC_INDEX_JOURNAL};
    for (size_t i = 0; i < 2; i++)
        if (unlinkat(folder, name[i], 0) && errno != ENOENT &&
            unlinkat(folder, name[i], AT_REMOVEDIR)) {
            char to[64]; /* a folder with something in it */
            snprintf(to, sizeof to, "bad/%s-%" PRIx64, name[i], (uint64_t)kvc_now());
            kvc_below_rename(folder, name[i], to);
        }
}
