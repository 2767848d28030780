/* libarchive.c: loads libarchive. */
#include "formats/io/libarchive.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* The interface of libarchive 3, which archive.h describes. */
#define NAME "libarchive.so.13"

struct kvc_libarchive kvc_libarchive;

static int find_function(void *library, const char *name, void *function, size_t size,
                         struct kvc_error *e) {
    void *address = dlsym(library, name);
    /* C has no conversion from an object's address to a function's */
    memcpy(function, &address, size);
    return address
               ? 0
               : kvc_fail(e, KVC_ERR_UNSUPPORTED, NAME " has no %s; libarchive 3 is needed", name);
}

/* The library is kept for the life of the process. */
static int libarchive_load(struct kvc_error *e) {
    void *library = dlopen(NAME, RTLD_NOW | RTLD_LOCAL);
    int status = library ? 0
                         : kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                    "archives and compressed files are read and written by "
                                    "libarchive 3, which cannot be loaded: %s",
                                    dlerror());
#define FIND(name)                                                              \
    if (!status)                                                                \
        status = find_function(library, "archive_" #name, &kvc_libarchive.name, \
                               sizeof kvc_libarchive.name, e);
    KVC_LIBARCHIVE_FUNCTIONS(FIND)
#undef FIND
    return status;
}

int kvc_libarchive_load(struct kvc_error *e) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static int is_loaded;
    pthread_mutex_lock(&lock);
    const int status = is_loaded ? 0 : libarchive_load(e);
    is_loaded = !status;
    pthread_mutex_unlock(&lock);
    return status;
}
