/* store_move.c: kvc-store export, import and sync. */
#include "cli/store/store_tool.h"
#include "formats/io/bundle.h"
#include "formats/store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Where objects of a walk go: a tar archive, or a tier. */
struct moving {
    struct store_tool *t;
    struct kvc_tier *from, *to;
    const struct kvc_member_sink *members;
    uint64_t n, bytes, there;
    uint64_t total; /* bytes, of progress; 0: unknown */
    int failed;
};

static void store_move_count(struct moving *m, uint64_t bytes) {
    m->n++;
    m->bytes += bytes;
    store_show(m->t, m->bytes, m->total);
}

struct taken {
    void *data;
    size_t size;
};

static int store_move_take(void *state, size_t i, void *data, size_t size,
                           const struct kvc_error *why) {
    struct taken *x = state;
    (void)i, (void)why;
    *x = (struct taken){.data = data, .size = size};
    return 0;
}

static int move_bytes(struct moving *m, const struct kvc_object *o, const struct taken *x,
                      struct kvc_error *e) {
    static const struct kvc_tier_put how = {.parent = NULL};
    char name[KVC_OBJECT_NAME];
    int there = 0;
    if (m->to) {
        if (m->to->ops->put(m->to, o, x->data, x->size, &how, kvc_now() + 600000000, &there, e))
            return -1;
        m->there += there == 1;
        return 0;
    }
    kvc_object_name(o, name);
    if (m->members->begin(m->members->state, name, x->size, e)) return -1;
    if (kvc_sink_write(m->members->out, x->data, x->size, e)) return -1;
    if (m->members->finish(m->members->state, e)) return -1;
    return 0;
}

static int move(void *state, const struct kvc_object *o, uint64_t size, int64_t used) {
    struct moving *m = state;
    struct taken x = {.data = NULL};
    struct kvc_error e;
    (void)size, (void)used;
    int status = m->from->ops->get(m->from, o, 1, kvc_now() + 600000000, store_move_take, &x, &e);
    if (!status && x.data) {
        status = move_bytes(m, o, &x, &e);
        store_move_count(m, x.size);
    }
    free(x.data);
    if (status) cli_progress_end(&m->t->progress);
    if (status) store_trouble(&e);
    m->failed |= status != 0;
    return status;
}

/* Takes the one namespace that is moved, if one is named. */
static int take_namespace(struct store_tool *t, struct store_namespaces *namespaces) {
    *namespaces = (struct store_namespaces){.n = 0};
    return t->ns || t->like ? store_take_namespaces(t, namespaces) : EXIT_SAME;
}

static int walk(struct moving *m, const struct store_namespaces *namespaces) {
    struct kvc_error e;
    const uint8_t *ns = namespaces->n ? namespaces->item[0]->hash : NULL;
    m->total = store_show_walk(m->t, m->from, ns);
    const int failed = m->from->ops->walk(m->from, ns, move, m, &e);
    cli_progress_end(&m->t->progress);
    if (failed) store_trouble(&e);
    return failed || m->failed ? EXIT_TROUBLE : EXIT_SAME;
}

static int say(struct moving *m, const char *done) {
    char size[32];
    cli_size_text(m->bytes, size);
    if (m->t->json) {
        cli_json_u64(&m->t->report, "objects", m->n);
        cli_json_u64(&m->t->report, "bytes", m->bytes);
        cli_json_u64(&m->t->report, "there", m->there);
    } else if (!m->t->quiet && m->to) {
        cli_warn("%" PRIu64 " objects, %s, %s; %" PRIu64 " of them were there already", m->n, size,
                 done, m->there);
    } else if (!m->t->quiet) {
        cli_warn("%" PRIu64 " objects, %s, %s", m->n, size, done);
    }
    return EXIT_SAME;
}

static int write_out(void *state, const void *data, size_t n, struct kvc_error *e) {
    return cli_output_write(state, data, n) ? cli_output_error(state, e) : 0;
}

int store_export(struct store_tool *t) {
    struct cli_output out = {.fd = -1};
    struct kvc_member_sink members;
    struct kvc_error e;
    struct moving m = {.t = t, .from = t->s->tier[0].tier, .members = &members};
    struct store_namespaces namespaces;
    int status = take_namespace(t, &namespaces);
    if (!status && cli_output_open(&out, t->output, t->force, 0600, &e)) status = store_trouble(&e);
    struct kvc_sink sink = {.write = write_out, .state = &out};
    struct kvc_tar *tar = status ? NULL : kvc_tar_open(&sink, &members, &e);
    if (!status) status = tar ? walk(&m, &namespaces) : store_trouble(&e);
    store_free_namespaces(&namespaces);
    if (tar && kvc_tar_close(tar, status ? -1 : 0, &e) && !status) status = store_trouble(&e);
    if (cli_output_end(&out, status, &e) && !status) status = store_trouble(&e);
    return status ? status : say(&m, "written");
}

/* Reads the name of a member of an archive, which is that of an object. */
static int read_name(const struct kvc_bundle *b, size_t i, struct kvc_object *o,
                     struct kvc_error *e) {
    const char *path = b->member[i].name ? b->member[i].name : b->name, *slash = strrchr(path, '/');
    if (!kvc_object_parse(slash ? slash + 1 : path, o)) return 0;
    return kvc_fail(e, KVC_ERR_UNKNOWN, "%s: this is no name of an object of a store", path);
}

static int import_member(struct moving *m, const struct kvc_bundle *b, size_t i,
                         struct kvc_error *e) {
    struct kvc_object o;
    const struct kvc_input *in = read_name(b, i, &o, e) ? NULL : kvc_bundle_open(b, i, e);
    if (!in) return -1;
    struct taken x = {.data = malloc((size_t)in->size + 1), .size = (size_t)in->size};
    if (!x.data) return kvc_fail_memory(e, "an object");
    int status = kvc_input_read(in, 0, x.data, x.size, e);
    if (!status) status = move_bytes(m, &o, &x, e);
    free(x.data);
    store_move_count(m, x.size);
    return status;
}

/* Puts the members of an archive. All names are read before a store is made. */
static int import_all(struct moving *m, const struct kvc_bundle *b) {
    struct kvc_object o;
    struct kvc_error e;
    int failed = 0;
    for (size_t i = 0; i < b->n; i++)
        if (read_name(b, i, &o, &e)) return store_trouble(&e);
    if (!m->t->s && store_open(m->t, 0)) return EXIT_TROUBLE;
    m->to = m->t->s->tier[0].tier;
    cli_progress_start(&m->t->progress, b->name, m->t->quiet);
    m->total = kvc_bundle_size(b);
    for (size_t i = 0; i < b->n && !failed; i++) failed = import_member(m, b, i, &e);
    cli_progress_end(&m->t->progress);
    return failed ? store_trouble(&e) : EXIT_SAME;
}

int store_import(struct store_tool *t) {
    struct kvc_opened f = {.cache = NULL};
    struct kvc_error e;
    struct moving m = {.t = t};
    const struct kvc_opening o = {.any_bytes = 1};
    if (t->n != 1) return cli_usage("name the archive that kvc-store export wrote, or -");
    if (kvc_open_bundle(&f, t->operand[0], &o, &e)) return store_trouble(&e);
    const int status = import_all(&m, &f.bundle);
    kvc_close(&f);
    return status ? status : say(&m, "read");
}

int store_sync(struct store_tool *t) {
    struct store_namespaces namespaces;
    if (t->n != 1) return cli_usage("name the store that gets the objects of --store");
    int status = take_namespace(t, &namespaces);
    struct kvc_store *to = status ? NULL : store_open_tiers(t, t->operand[0]);
    if (!status && !to) status = EXIT_TROUBLE;
    struct moving m = {.t = t, .from = t->s->tier[0].tier, .to = to ? to->tier[0].tier : NULL};
    if (!status) status = walk(&m, &namespaces);
    store_free_namespaces(&namespaces);
    kvc_store_close(to);
    return status ? status : say(&m, "read");
}
