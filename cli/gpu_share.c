/* gpu_share.c: shares device memory between processes: lends it (--to=ipc), or decodes into borrowed memory (--into). Not for
 * reading the list of borrowed memory (handles.c). */
#include "cli/gpu.h"
#include "cli/handles.h"

#include "codecs/dtype.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- lending --- */

static int print_tensor(struct cli_json *j, const struct cli_load *l, uint32_t i, struct kvc_error *e) {
    const struct cli_cuda *cuda = l->device->cuda;
    struct kvc_cuda_tensor t = {.size = sizeof t};
    uint8_t handle[KVC_CUDA_HANDLE];
    uint64_t offset;
    if (cuda->plan_tensor(l->plan, i, &t)) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "no tensor %u", i);
    if (cuda->export(l->plan, i, handle, &offset, e)) return -1;
    const struct kvc_dtype_info *info = kvc_dtype_by_name(t.dtype);
    if (!info) return kvc_fail(e, KVC_ERR_UNSUPPORTED, "values of an unknown type: %s", t.dtype);
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "layer", t.layer);
    cli_json_text(j, "role", t.role);
    cli_json_text(j, "dtype", t.dtype);
    cli_json_hex(j, "handle", handle, sizeof handle);
    cli_json_u64(j, "offset", offset);
    cli_json_u64(j, "tokens", t.tokens);
    cli_json_u64(j, "heads", t.heads);
    cli_json_u64(j, "dim", t.dim);
    cli_json_open(j, "strides", '[');
    cli_json_i64(j, NULL, t.token);
    cli_json_i64(j, NULL, t.head);
    cli_json_i64(j, NULL, info->size);
    cli_json_close(j);
    cli_json_i64(j, "position", t.position);
    cli_json_close(j);
    return 0;
}

/* Writes the line to memory first, because an incomplete line must not be printed. */
static char *line_of(const struct cli_load *l, const char *path, struct kvc_error *e) {
    char *line = NULL;
    size_t n = 0;
    struct cli_json j;
    int status = 0;
    FILE *out = open_memstream(&line, &n);
    if (!out) {
        kvc_fail_memory(e, "a list of handles");
        return NULL;
    }
    cli_json_start(&j, out);
    j.compact = 1;
    cli_json_open(&j, NULL, '{');
    cli_json_text(&j, "device", l->device->name);
    cli_json_text(&j, "file", path);
    cli_json_open(&j, "tensors", '[');
    for (uint32_t i = 0; !status && i < l->info.tensors; i++) status = print_tensor(&j, l, i, e);
    cli_json_close(&j);
    cli_json_close(&j);
    cli_json_end(&j);
    if (fclose(out) && !status) status = kvc_fail_memory(e, "a list of handles");
    if (!status) return line;
    free(line);
    return NULL;
}

int cli_device_lend(const struct cli_load *l, const char *path, struct kvc_error *e) {
    char *line = line_of(l, path, e), ignored[256];
    int status = line && (fputs(line, stdout) < 0 || fflush(stdout)) ? -1 : 0;
    if (status) kvc_fail(e, KVC_ERR_IO, "standard output: %s", strerror(errno));
    free(line);
    if (!line || status) return -1;
    ssize_t n;
    do n = read(STDIN_FILENO, ignored, sizeof ignored);
    while (n > 0 || (n < 0 && errno == EINTR));
    return 0;
}

/* --- borrowing --- */

/* Opened handles. CUDA refuses to open a handle twice, so equal handles share an address. */
struct borrowed {
    const struct cli_device *device;
    const struct cli_handles *list;
    uint64_t *opened;  /* for each base: address of its handle */
    uint64_t *address; /* for each base: address with the offset */
    uint8_t *owner;    /* for each base: 1 if the handle was opened for this base */
    uint64_t n;        /* number of finished bases */
};

static void give_back(struct borrowed *b) {
    struct kvc_error ignored;
    for (uint64_t i = 0; i < b->n; i++)
        if (b->owner[i]) b->device->cuda->close_handle(b->device->number, b->opened[i], &ignored);
    free(b->opened);
    free(b->address);
    free(b->owner);
}

static int borrow_one(struct borrowed *b, uint64_t i, struct kvc_error *e) {
    const struct cli_base *base = b->list->base;
    uint64_t same = 0;
    while (same < i && memcmp(base[same].handle, base[i].handle, KVC_CUDA_HANDLE) != 0) same++;
    b->owner[i] = same == i;
    if (same < i) b->opened[i] = b->opened[same];
    else if (b->device->cuda->open_handle(b->device->number, base[i].handle, &b->opened[i], e)) return -1;
    b->n = i + 1;
    if (__builtin_add_overflow(b->opened[i], base[i].offset, &b->address[i]))
        return kvc_fail(e, KVC_ERR_USAGE, "an offset is larger than the address space");
    return 0;
}

static int borrow(struct borrowed *b, struct kvc_error *e) {
    size_t n = (size_t)b->list->n_bases;
    b->opened = calloc(n, sizeof *b->opened);
    b->address = calloc(n, sizeof *b->address);
    b->owner = calloc(n, sizeof *b->owner);
    if (!b->opened || !b->address || !b->owner) return kvc_fail_memory(e, "handles");
    for (uint64_t i = 0; i < n; i++)
        if (borrow_one(b, i, e)) return -1;
    return 0;
}

int cli_device_into(struct cli_load *l, const struct cli_device *device, const char *path, const char *handles,
                    const struct kvc_cuda_options *options, struct kvc_error *e) {
    struct cli_handles list;
    if (cli_handles_read(&list, handles, e)) return -1;
    struct borrowed b = {.device = device, .list = &list};
    int status = borrow(&b, e);
    if (status) kvc_error_prefix(e, handles);
    struct kvc_cuda_destination to = list.destination;
    to.bases = b.address;
    to.n_bases = list.n_bases;
    if (!status) status = cli_load(l, device, path, options, &to, e);
    if (!status) cli_load_free(l);
    give_back(&b);
    cli_handles_free(&list);
    return status;
}
