/* tiers.c: finds the backend of a scheme. */
#include "formats/store/tiers.h"

#include "formats/store/dir/dir.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef KVC_BACKENDS
#define KVC_BACKENDS "/usr/local/lib/kvc"
#endif

/* Writes the path of a file beside this program: of a kvc that is not installed. */
static void own_path(const char *file, char *path, size_t size) {
    const ssize_t n = readlink("/proc/self/exe", path, size - 1);
    path[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash - path) : 0;
    snprintf(path + folder, size - folder, "/%s", file);
}

/* Loads the backend of a scheme: kvc_store_SCHEME.so. The second s at the end of a scheme means
 * TLS: rediss has redis' backend. */
static int load(const char *scheme, const char *folder, const struct kvc_tier_ops **ops,
                void **handle, struct kvc_error *e) {
    char path[4096], file[64];
    kvc_tier_entry *entry = NULL;
    const size_t n = strlen(scheme), tls = n > 2 && strcmp(scheme + n - 2, "ss") == 0;
    snprintf(file, sizeof file, "kvc_store_%.*s.so", (int)(n - tls), scheme);
    own_path(file, path, sizeof path);
    const int is_own = !folder && access(KVC_BACKENDS, F_OK) && access(path, F_OK) == 0;
    if (!is_own && snprintf(path, sizeof path, "%s/%s", folder ? folder : KVC_BACKENDS, file) >=
                       (int)sizeof path)
        return kvc_fail(e, KVC_ERR_USAGE, "the folder of backends has too long a name");
    if (access(path, F_OK))
        return kvc_fail(
            e, KVC_ERR_UNSUPPORTED,
            "there is no %s: this backend is not installed, or kvc was built without it", path);
    *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!*handle)
        return kvc_fail(e, KVC_ERR_UNSUPPORTED, "the backend cannot be loaded: %s", dlerror());
    void *symbol = dlsym(*handle, KVC_TIER_ENTRY);
    /* C has no conversion from an object's address to a function's */
    memcpy(&entry, &symbol, sizeof entry);
    *ops = entry ? entry() : NULL;
    if (*ops && (*ops)->abi == KVC_TIER_ABI) return 0;
    kvc_tier_unload(*handle);
    *handle = NULL;
    return kvc_fail(e, KVC_ERR_UNSUPPORTED, "%s: it is of another version of kvc", path);
}

int kvc_tier_find(const char *scheme, const char *folder, const struct kvc_tier_ops **ops,
                  void **handle, struct kvc_error *e) {
    *handle = NULL;
    *ops = &kvc_tier_dir;
    return strcmp(scheme, kvc_tier_dir.scheme) == 0 ? 0 : load(scheme, folder, ops, handle, e);
}

int kvc_tier_check(struct kvc_url *url, struct kvc_error *e) {
    struct kvc_conf c = kvc_conf_default;
    if (kvc_conf_take(&c, url, e) < 0 || kvc_url_rest(url, e)) return -1;
    return 0;
}

void kvc_tier_unload(void *handle) {
    if (handle) dlclose(handle);
}
