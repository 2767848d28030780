/* index_file.h: the file of a store's index under SQLite. Every page has a checksum, so that
 * damage is an error; files are opened below the store's folder, never mapped, and locked by
 * their descriptors. Not for what is in the file (index.c). */
#ifndef KVC_STORE_INDEX_FILE_H
#define KVC_STORE_INDEX_FILE_H

#include <sqlite3.h>
#include <sys/types.h>

#define KVC_INDEX_SUM 8 /* bytes at the end of a page */

struct kvc_index_file {
    sqlite3_vfs vfs;
    char name[40]; /* of the vfs */
    int folder;
    mode_t mode;
    int fd;   /* of the open index; -1: none */
    int code; /* errno of the last system call that failed, or 0 */
};

void kvc_index_file_init(struct kvc_index_file *f, int folder, mode_t mode);
/* Opens the index, and makes it if it is not there. Returns a code of SQLite. */
int kvc_index_file_open(struct kvc_index_file *f, sqlite3 **db);
/* Says whether the index that is open is no longer in the folder. */
int kvc_index_file_is_gone(const struct kvc_index_file *f);
/* Removes an index and its journal. Nobody may be using them. */
void kvc_index_file_remove(int folder);

#endif
