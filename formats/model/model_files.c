/* model_files.c: shards, directories of weights, and the files beside them. Not for reading any of
 * them. */
#include "formats/model/model_files.h"

#include "codecs/memory.h"
#include "formats/io/safetensors_file.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_FILES 4096

/* Returns the first `size` bytes of `directory`, then `between` and `name`; NULL when out of
 * memory. */
static char *model_files_join(const char *directory, size_t size, const char *between,
                              const char *name) {
    size_t room = size + strlen(between) + strlen(name) + 1;
    char *joined = malloc(room);
    if (joined) snprintf(joined, room, "%.*s%s%s", (int)size, directory, between, name);
    return joined;
}

/* Takes over `path`, which may be NULL after a failed allocation. */
static int model_files_add(struct kvc_model_files *f, char *path, struct kvc_error *e) {
    char **grown = path ? kvc_realloc(f->path, f->n + 1, sizeof *grown) : NULL;
    if (!grown) {
        free(path);
        return kvc_fail_memory(e, "file names");
    }
    f->path = grown;
    f->path[f->n++] = path;
    return 0;
}

/* Returns the number of shards of "x-00002-of-00003.gguf" and where "00002" begins; 0 when the name
 * has another form. */
static unsigned shards_of(const char *path, size_t *at) {
    const char *suffix = kvc_name_ends_in(path, ".gguf") ? ".gguf" : ".safetensors",
               *const digits = "0123456789";
    char form[] = "00002-of-00003";
    size_t tail = strlen(form) + strlen(suffix), n = strlen(path);
    if (!kvc_name_ends_in(path, suffix) || n < tail) return 0;
    *at = n - tail;
    memcpy(form, path + *at, strlen(form));
    if (strspn(form, digits) != 5 || strncmp(form + 5, "-of-", 4) != 0 ||
        strspn(form + 9, digits) != 5)
        return 0;
    unsigned long shard = strtoul(form, NULL, 10), shards = strtoul(form + 9, NULL, 10);
    return shard && shard <= shards && shards <= MAX_FILES ? (unsigned)shards : 0;
}

static int list_shards(struct kvc_model_files *f, const char *path, unsigned shards, size_t at,
                       struct kvc_error *e) {
    for (unsigned i = 1; i <= shards; i++) {
        char *shard = strdup(path);
        if (shard) {
            char number[16];
            snprintf(number, sizeof number, "%05u", i);
            memcpy(shard + at, number, 5);
        }
        if (model_files_add(f, shard, e)) return -1;
    }
    return 0;
}

static int is_safetensors(const struct dirent *d) {
    return d->d_name[0] != '.' && kvc_name_ends_in(d->d_name, ".safetensors");
}

/* Compares by bytes, whatever the locale. */
static int model_files_by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Lists model.safetensors, or else all *.safetensors of a directory. */
static int list_directory(struct kvc_model_files *f, const char *path, struct kvc_error *e) {
    char *whole = model_files_join(path, strlen(path), "/", "model.safetensors");
    if (!whole) return kvc_fail_memory(e, "file names");
    if (access(whole, F_OK) == 0) return model_files_add(f, whole, e);
    free(whole);

    struct dirent **found;
    int n = scandir(path, &found, is_safetensors, model_files_by_name), status = 0;
    if (n < 0) return kvc_fail(e, KVC_ERR_IO, "cannot list the directory: %s", strerror(errno));
    if (!n)
        status = kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "no safetensors weights in this directory");
    if (n > MAX_FILES)
        status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "more than %d safetensors files", MAX_FILES);
    for (int i = 0; i < n; i++) {
        if (!status)
            status = model_files_add(f, model_files_join(path, strlen(path), "/", found[i]->d_name),
                                     e);
        free(found[i]);
    }
    free(found);
    return status;
}

int kvc_model_files_list(struct kvc_model_files *f, const char *path, struct kvc_error *e) {
    memset(f, 0, sizeof *f);
    struct stat st;
    if (stat(path, &st))
        return kvc_fail(e, KVC_ERR_IO, "cannot read the weights: %s", strerror(errno));
    size_t at;
    int is_dir = S_ISDIR(st.st_mode);
    unsigned shards = is_dir ? 0 : shards_of(path, &at);
    f->given = !is_dir && !shards;
    int status = is_dir   ? list_directory(f, path, e)
                 : shards ? list_shards(f, path, shards, at, e)
                          : model_files_add(f, strdup(path), e);
    if (status) kvc_model_files_free(f);
    return status;
}

void kvc_model_files_free(struct kvc_model_files *f) {
    for (size_t i = 0; i < f->n; i++) free(f->path[i]);
    free(f->path);
    memset(f, 0, sizeof *f);
}

int kvc_model_files_beside(const struct kvc_model_files *f, const char *name, uint64_t limit,
                           struct kvc_input *in, struct kvc_error *e) {
    const char *file = f->path[0];
    char *path = model_files_join(file, (size_t)(kvc_base_name(file) - file), "", name);
    if (!path) return kvc_fail_memory(e, "file names");
    int there = access(path, F_OK) == 0;
    int status = there ? kvc_input_open(in, path, e) : 0;
    free(path);
    if (!status && there) {
        if (in->size > limit)
            status = kvc_fail(e, KVC_ERR_UNSUPPORTED, "larger than %" PRIu64 " bytes", limit);
        else status = kvc_input_pin(in, 0, in->size, e);
        if (status) kvc_input_close(in);
    }
    return status ? kvc_error_prefix(e, name) : there;
}

int kvc_model_file_begins(const struct kvc_input *in, uint64_t *header, struct kvc_error *e) {
    uint8_t first[9] = {0};
    char why[64];
    const uint64_t have = in->size < sizeof first ? in->size : sizeof first;
    *header = 0;
    if (kvc_input_copy(in, 0, first, have, e)) return -1;
    if (memcmp(first, "GGUF", 4) == 0) return 0;
    *header = kvc_safetensors_begins(first, have, why, sizeof why);
    if (*header && *header <= in->size) return 0;
    return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "neither a GGUF nor a safetensors weights file");
}
