/* move.c: moves objects as they are: to another store, into a tar archive and out of it. Not for
 * what they hold. */
#include "formats/store/store.h"

#include "formats/api/sized.h"
#include "formats/io/bundle.h"
#include "formats/io/member_sink.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOVE_TIME 600000000 /* microseconds, of an object */

/* Where objects go: the first tier of a store, or an archive. */
struct moving {
    struct kvc_store *from, *to;
    const struct kvc_member_sink *members; /* `to` NULL */
    struct kvc_store_move_options options;
    struct kvc_store_moved sum;
    uint64_t total; /* bytes, of progress; 0: unknown */
    int failed;
    struct kvc_error *e;
};

static int begin(struct moving *m, const struct kvc_store_move_options *options) {
    return kvc_sized_take(&m->options, sizeof m->options, options, "kvc_store_move_options", m->e);
}

/* Leaves an object out of which alone something is wrong. -1: everything ends. */
static int leave_out(struct moving *m, const struct kvc_object *o, struct kvc_error *why) {
    if (why->severity == KVC_SEVERITY_RETRY || !m->options.left_out) {
        if (m->e) *m->e = *why;
        return -1;
    }
    kvc_chunk_blame(o, why);
    m->options.left_out(m->options.left_out_state, why);
    return 0;
}

static int put_bytes(struct moving *m, const struct kvc_object *o, struct kvc_bytes *bytes) {
    static const struct kvc_tier_put how = {.parent = NULL};
    struct kvc_error why;
    const int put = kvc_store_put_tier(m->to, 0, o, bytes, &how, kvc_now() + MOVE_TIME, &why);
    if (put < 0) return leave_out(m, o, &why);
    m->sum.there += put == KVC_PUT_SHARED;
    m->sum.objects++;
    m->sum.bytes += bytes->size;
    return 0;
}

static int write_member(struct moving *m, const struct kvc_object *o,
                        const struct kvc_bytes *bytes) {
    char name[KVC_OBJECT_NAME];
    kvc_object_name(o, name);
    if (m->members->begin(m->members->state, name, bytes->size, m->e)) return -1;
    if (kvc_sink_write(m->members->out, bytes->data, bytes->size, m->e)) return -1;
    if (m->members->finish(m->members->state, m->e)) return -1;
    m->sum.objects++;
    m->sum.bytes += bytes->size;
    return 0;
}

static int move_bytes(struct moving *m, const struct kvc_object *o, struct kvc_bytes *bytes) {
    const int status = m->to ? put_bytes(m, o, bytes) : write_member(m, o, bytes);
    if (m->options.progress) m->options.progress(m->options.progress_state, m->sum.bytes, m->total);
    return status;
}

/* --- out of a store --- */

static int move_one(void *state, const struct kvc_object *o, uint64_t listed, int64_t used) {
    struct moving *m = state;
    struct kvc_error why = {.code = KVC_OK};
    struct kvc_bytes *bytes = kvc_store_read_tier(m->from, 0, o, kvc_now() + MOVE_TIME, &why);
    (void)listed, (void)used;
    if (bytes) m->failed = move_bytes(m, o, bytes) != 0;
    else if (why.code) m->failed = leave_out(m, o, &why) != 0;
    kvc_bytes_release(bytes);
    return m->failed;
}

static int move_all(struct moving *m) {
    const struct kvc_store_namespace *ns = m->options.ns;
    struct kvc_tier *l = m->from->tier[0].tier;
    if (m->options.progress) m->total = kvc_store_bytes(m->from, 0, ns);
    if (l->ops->walk(l, ns ? ns->hash : NULL, move_one, m, m->e)) return -1;
    return m->failed ? -1 : 0;
}

int kvc_store_copy(struct kvc_store *from, struct kvc_store *to,
                   const struct kvc_store_move_options *options, struct kvc_store_moved *moved,
                   struct kvc_error *e) {
    if (KVC_NULL(e, from, to)) return -1;
    if (kvc_sized_check(moved, "kvc_store_moved", e)) return -1;
    struct moving m = {.from = from, .to = to, .e = e};
    if (begin(&m, options) || move_all(&m)) return -1;
    return moved ? kvc_sized_give(moved, &m.sum, sizeof m.sum, "kvc_store_moved", e) : 0;
}

/* --- archives --- */

struct output {
    kvc_write_fn *write;
    void *state;
};

static int write_out(void *state, const void *data, size_t n, struct kvc_error *e) {
    const struct output *out = state;
    if (!out->write(out->state, data, n)) return 0;
    return kvc_fail(e, KVC_ERR_IO, "the caller stopped the output");
}

int kvc_store_export(struct kvc_store *s, const struct kvc_store_move_options *options,
                     kvc_write_fn *write, void *state, struct kvc_store_moved *moved,
                     struct kvc_error *e) {
    if (KVC_NULL(e, s)) return -1;
    if (!write) return kvc_null_function(e, __func__, "write");
    if (kvc_sized_check(moved, "kvc_store_moved", e)) return -1;
    struct output out = {.write = write, .state = state};
    struct kvc_sink sink = {.write = write_out, .state = &out};
    struct kvc_member_sink members;
    struct moving m = {.from = s, .members = &members, .e = e};
    if (begin(&m, options)) return -1;
    struct kvc_tar *tar = kvc_tar_open(&sink, &members, e);
    if (!tar) return -1;
    if (kvc_tar_close(tar, move_all(&m), e)) return -1;
    return moved ? kvc_sized_give(moved, &m.sum, sizeof m.sum, "kvc_store_moved", e) : 0;
}

struct kvc_store_archive {
    struct kvc_input input; /* not of a folder */
    struct kvc_bundle bundle;
    struct kvc_object *object; /* of each member */
};

void kvc_store_archive_close(struct kvc_store_archive *a) {
    if (!a) return;
    kvc_bundle_close(&a->bundle);
    kvc_input_close(&a->input);
    free(a->object);
    free(a);
}

/* Returns 1 for an archive of no members, as the export of an empty store: its end, which is two
 * blocks of zeros, stands at its begin. */
static int is_empty(const struct kvc_input *in) {
    static const uint8_t zeros[1024];
    uint8_t begin[sizeof zeros];
    return in->size >= sizeof begin && !kvc_input_copy(in, 0, begin, sizeof begin, NULL) &&
           memcmp(begin, zeros, sizeof begin) == 0;
}

static int open_members(struct kvc_store_archive *a, const char *path, struct kvc_error *e) {
    static const struct kvc_input_how how = {.read = 1};
    struct stat st;
    if (strcmp(path, "-") != 0 && !stat(path, &st) && S_ISDIR(st.st_mode)) {
        kvc_input_memory(&a->input, path, "", 0);
        return kvc_bundle_folder(&a->bundle, path, 0, &how, e);
    }
    if (kvc_input_open_how(&a->input, path, &how, e)) return -1;
    if (is_empty(&a->input)) return 0;
    if (kvc_input_is_archive(&a->input)) return kvc_bundle_archive(&a->bundle, &a->input, e);
    kvc_bundle_file(&a->bundle, &a->input);
    return 0;
}

/* Reads the names of the members, which are those of objects. */
static int read_names(struct kvc_store_archive *a, struct kvc_error *e) {
    const struct kvc_bundle *b = &a->bundle;
    if (!(a->object = calloc(b->n + 1, sizeof *a->object))) return kvc_fail_memory(e, "names");
    for (size_t i = 0; i < b->n; i++) {
        const char *path = b->member[i].name ? b->member[i].name : b->name,
                   *slash = strrchr(path, '/');
        if (kvc_object_parse(slash ? slash + 1 : path, &a->object[i]))
            return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                            "%s: this is no name of an object of a store", path);
    }
    return 0;
}

struct kvc_store_archive *kvc_store_archive_open(const char *path, struct kvc_error *e) {
    if (KVC_NULL(e, path)) return NULL;
    struct kvc_store_archive *a = calloc(1, sizeof *a);
    if (!a) {
        kvc_fail_memory(e, "an archive");
        return NULL;
    }
    kvc_input_memory(&a->input, path, "", 0);
    if (!open_members(a, path, e) && !read_names(a, e)) return a;
    kvc_store_archive_close(a);
    return NULL;
}

static int import_member(struct moving *m, const struct kvc_store_archive *a, size_t i) {
    const struct kvc_input *in = kvc_bundle_open(&a->bundle, i, m->e);
    void *data = in ? malloc((size_t)in->size + 1) : NULL;
    if (in && !data) kvc_fail_memory(m->e, "an object");
    if (!data || kvc_input_read(in, 0, data, (size_t)in->size, m->e)) {
        free(data);
        return -1;
    }
    struct kvc_bytes *bytes = kvc_bytes_of(data, (size_t)in->size);
    if (!bytes) return kvc_fail_memory(m->e, "an object");
    const int status = move_bytes(m, &a->object[i], bytes);
    kvc_bytes_release(bytes);
    return status;
}

int kvc_store_import(struct kvc_store *s, const struct kvc_store_archive *a,
                     const struct kvc_store_move_options *options, struct kvc_store_moved *moved,
                     struct kvc_error *e) {
    if (KVC_NULL(e, s, a)) return -1;
    if (kvc_sized_check(moved, "kvc_store_moved", e)) return -1;
    struct moving m = {.to = s, .total = kvc_bundle_size(&a->bundle), .e = e};
    if (begin(&m, options)) return -1;
    for (size_t i = 0; i < a->bundle.n; i++)
        if (import_member(&m, a, i)) return -1;
    return moved ? kvc_sized_give(moved, &m.sum, sizeof m.sum, "kvc_store_moved", e) : 0;
}
