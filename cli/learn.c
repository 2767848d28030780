/* learn.c: learns a profile from cache files, and writes files of profiles. Not for the options of
 * learning (kvc-profile.c), nor for when kvc-pack learns (pack_learn.c). */
#include "cli/learn.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".kvcp"
/* the letters that mkstemp() replaces, with a dot */
#define RANDOM ".XXXXXX"
enum { PATH_BYTES = 4096, ABANDONED = 3600 /* seconds, after which no writer is alive */ };

/* --- learning --- */

/* Finds the tensor of K or V that has most rows. Returns them. */
static uint64_t find_longest(const struct kvc_file *f, uint32_t *longest) {
    struct kvc_tensor_info t = {.size = sizeof t};
    uint64_t rows = 0;
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++) {
        if ((strcmp(t.role, "K") != 0 && strcmp(t.role, "V") != 0) || t.rows <= rows) continue;
        *longest = i;
        rows = t.rows;
    }
    return rows;
}

uint64_t cli_learn_rows(const struct kvc_file *f) {
    uint32_t longest;
    return find_longest(f, &longest);
}

/* Selects the first rows of a file, as many of its longest layer. NULL: it has no more, has
 * queries, which are of its last tokens, or cannot be cut, as where windows hold its last tokens
 * alone. */
static struct kvc_file *begin_of(const struct kvc_file *f, uint64_t most) {
    struct kvc_tensor_info t = {.size = sizeof t};
    uint32_t longest = 0;
    if (!most || find_longest(f, &longest) <= most) return NULL;
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &t); i++)
        if (strcmp(t.role, "queries") == 0) return NULL;
    const int64_t first = kvc_file_position(f, longest, 0),
                  last = kvc_file_position(f, longest, most - 1);
    if (first < 0) return NULL;
    const struct kvc_select_options part = {.size = sizeof part,
                                            .first = (uint64_t)first,
                                            .end = (uint64_t)last + 1};
    return kvc_file_select(f, &part, NULL);
}

static int learn_from(struct kvc_learning *l, const struct cli_learn_from *from, const char *path,
                      struct kvc_error *e) {
    struct kvc_file *f = cli_open(path, from->input, e);
    struct kvc_file *begin = f ? begin_of(f, from->most) : NULL;
    const int status = f ? kvc_learning_add(l, begin ? begin : f, e) : -1;
    kvc_file_close(begin);
    kvc_file_close(f);
    return status;
}

/* Returns 1 for a cache that can be left out, after a note. */
static int leave_out(const struct cli_learn_from *from, size_t i, struct kvc_error *e) {
    if (!from->left_out || kvc_error_code(e) != KVC_ERR_OTHER_MODEL) return 0;
    from->left_out[i] = 1;
    if (!from->quiet) cli_warn("%s (nothing is learnt from it)", kvc_error_message(e));
    return 1;
}

/* Says why nothing came from the weights, as far as there are some. */
static void say_not_measured(const struct kvc_learning_info *info) {
    const char *why = *info->not_measured ? info->not_measured : info->not_estimated;
    if (!info->has_gradients && *why) cli_warn("gradients cannot be measured: %s", why);
}

/* Says what came from the weights that no file had. A profile that is extended keeps its own. */
static void say_weights(const struct kvc_learning_info *info) {
    if (info->estimated && !info->has_gradients)
        cli_warn("queries estimated from K, V and the weights");
    if (*info->not_estimated) cli_warn("queries cannot be estimated: %s", info->not_estimated);
    if (info->has_gradients) cli_warn("gradients measured by the weights");
    else if (*info->not_measured) say_not_measured(info);
}

struct kvc_profile *cli_learn(const struct cli_learn_from *from,
                              const struct kvc_learning_options *how,
                              struct kvc_learning_info *info, struct kvc_error *e) {
    struct kvc_learning *l = kvc_learning_start(how, e);
    struct kvc_profile *p = NULL;
    int status = l ? 0 : -1;
    for (size_t i = 0; i < from->n && !status; i++) {
        if (from->progress && from->progress->on) cli_progress_show(from->progress, i, from->n);
        status = learn_from(l, from, from->path[i], e);
        if (status && leave_out(from, i, e)) status = 0;
    }
    if (!status) p = kvc_learning_profile(l, e);
    if (p) kvc_learning_describe(l, info);
    if (p && !how->base && !from->input->quiet) say_weights(info);
    if (p && from->left_out && !from->quiet) say_not_measured(info);
    info->not_estimated = info->not_measured = ""; /* the texts are the learning's */
    kvc_learning_free(l);
    return p;
}

/* --- files --- */

int cli_profile_write(const struct kvc_profile *p, const char *path, int force, unsigned mode,
                      struct kvc_error *e) {
    struct kvc_profile_info info = {.size = sizeof info};
    struct cli_output out;
    kvc_shared_profile_describe(p, &info);
    if (cli_output_open(&out, path, force, mode, e)) return -1;
    return cli_output_end(&out, cli_output_write(&out, info.data, info.bytes), e);
}

/* Returns 1 for the name of a temporary file of output.c: ".HASH.kvcp.XXXXXX". */
static int is_temporary(const char *name) {
    const size_t n = strlen(name), m = strlen(SUFFIX), r = strlen(RANDOM);
    return *name == '.' && n > 1 + m + r && name[n - r] == '.' &&
           memcmp(name + n - r - m, SUFFIX, m) == 0;
}

/* Removes temporary files of the folder of `path` whose writers were killed long ago. */
static void clear_folder(const char *path) {
    char file[PATH_BYTES];
    struct stat st;
    const int n = (int)(strrchr(path, '/') - path);
    if (snprintf(file, sizeof file, "%.*s", n, path) >= PATH_BYTES) return;
    DIR *d = opendir(file);
    for (const struct dirent *entry; d && (entry = readdir(d));) {
        if (!is_temporary(entry->d_name) ||
            snprintf(file, sizeof file, "%.*s/%s", n, path, entry->d_name) >= PATH_BYTES)
            continue;
        if (!lstat(file, &st) && S_ISREG(st.st_mode) && st.st_mtime + ABANDONED < time(NULL))
            unlink(file);
    }
    if (d) closedir(d);
}

static int is_kept(const char *path, const uint8_t sha256[32]) {
    struct kvc_profile_info info = {.size = sizeof info};
    struct kvc_profile *p = cli_output_exists(path) ? kvc_shared_profile_open(path, NULL) : NULL;
    const int same = p && !kvc_shared_profile_describe(p, &info) &&
                     memcmp(info.sha256, sha256, sizeof info.sha256) == 0;
    kvc_shared_profile_close(p);
    return same;
}

/* Writes the path of a profile's file in the folder of new profiles. */
static int path_of(const struct kvc_profile_info *info, char path[PATH_BYTES],
                   struct kvc_error *e) {
    size_t n;
    if (!kvc_shared_profile_folder(path, PATH_BYTES - 80))
        return cli_usage_error(e, "there is no folder for profiles: set HOME, or let "
                                  "KVC_PROFILE_PATH name one");
    n = strlen(path);
    path[n++] = '/';
    for (size_t i = 0; i < sizeof info->sha256; i++, n += 2)
        snprintf(path + n, 3, "%02x", info->sha256[i]);
    strcpy(path + n, SUFFIX);
    return 0;
}

char *cli_profile_keep(const struct kvc_profile *p, unsigned mode, struct kvc_error *e) {
    struct kvc_profile_info info = {.size = sizeof info};
    char path[PATH_BYTES];
    struct stat st;
    kvc_shared_profile_describe(p, &info);
    if (path_of(&info, path, e) || cli_make_folders(path, e)) return NULL;
    clear_folder(path);
    if (!is_kept(path, info.sha256)) {
        if (!lstat(path, &st) && !S_ISREG(st.st_mode)) {
            cli_io_error(e, "%s is no file: remove it", path);
            return NULL;
        }
        /* a file that is there is another one under this name, or was written meanwhile */
        if (cli_profile_write(p, path, 1, mode, e)) return NULL;
    }
    char *kept = strdup(path);
    if (!kept) cli_no_memory(e, "a path");
    return kept;
}
