/* store_move.c: kvc-store export, import and sync. */
#include "cli/store/store_tool.h"

#include <inttypes.h>

/* Takes the one namespace that is moved, if one is named. */
static int take_namespace(struct store_tool *t, struct store_namespaces *namespaces) {
    *namespaces = (struct store_namespaces){.n = 0};
    return t->ns || t->like ? store_take_namespaces(t, namespaces) : EXIT_SAME;
}

static void leave_out(void *state, const struct kvc_error *why) {
    struct store_tool *t = state;
    cli_progress_end(&t->progress);
    cli_error(why);
    t->left_out++;
}

/* Returns how a namespace, or everything, is moved. Begins to show progress. */
static struct kvc_store_move_options options_of(struct store_tool *t, const char *name,
                                                const struct store_namespaces *namespaces) {
    return (struct kvc_store_move_options){.size = sizeof(struct kvc_store_move_options),
                                           .ns = namespaces->n ? namespaces->item[0] : NULL,
                                           .progress = store_progress(t, name),
                                           .progress_state = t,
                                           .left_out = leave_out,
                                           .left_out_state = t};
}

static int say(struct store_tool *t, const struct kvc_store_moved *m, const char *done,
               int with_there) {
    char size[32], others[48] = "";
    cli_size_text(m->bytes, size);
    if (t->left_out) snprintf(others, sizeof others, "; %" PRIu64 " left out", t->left_out);
    if (t->json) {
        cli_json_u64(&t->report, "objects", m->objects);
        cli_json_u64(&t->report, "bytes", m->bytes);
        cli_json_u64(&t->report, "there", m->there);
        cli_json_u64(&t->report, "left_out", t->left_out);
    } else if (!t->quiet && with_there) {
        cli_warn("%" PRIu64 " object%s, %s, %s; %" PRIu64 " of them were there already%s",
                 m->objects, cli_s(m->objects), size, done, m->there, others);
    } else if (!t->quiet) {
        cli_warn("%" PRIu64 " object%s, %s, %s%s", m->objects, cli_s(m->objects), size, done,
                 others);
    }
    return t->left_out ? EXIT_DIFFER : EXIT_SAME;
}

int store_export(struct store_tool *t) {
    struct cli_output out = {.fd = -1};
    struct kvc_store_moved moved = {.size = sizeof moved};
    struct store_namespaces namespaces;
    int status = take_namespace(t, &namespaces);
    if (!status && cli_output_open(&out, t->output, t->force, 0600, t->e))
        status = store_trouble(t);
    if (!status) {
        const struct kvc_store_move_options o = options_of(t, t->store, &namespaces);
        status = kvc_store_export(t->s, &o, cli_output_write, &out, &moved, t->e);
        cli_progress_end(&t->progress);
        status = cli_output_end(&out, status, t->e) ? store_trouble(t) : EXIT_SAME;
    }
    store_free_namespaces(&namespaces);
    return status ? status : say(t, &moved, "written", 0);
}

static int import_all(struct store_tool *t, const struct kvc_store_archive *a) {
    static const struct store_namespaces all = {.n = 0};
    struct kvc_store_moved moved = {.size = sizeof moved};
    if (t->unmade && store_make(t, t->s)) return EXIT_TROUBLE;
    const struct kvc_store_move_options o = options_of(t, cli_name(t->operand[0]), &all);
    const int failed = kvc_store_import(t->s, a, &o, &moved, t->e);
    cli_progress_end(&t->progress);
    return failed ? store_trouble(t) : say(t, &moved, "read", 1);
}

int store_import(struct store_tool *t) {
    if (t->n != 1) return cli_usage("name the archive that kvc-store export wrote, or -");
    struct kvc_store_archive *a = kvc_store_archive_open(t->operand[0], t->e);
    const int status = a ? import_all(t, a) : store_trouble(t);
    kvc_store_archive_close(a);
    return status;
}

/* Copies objects to another store, which is made if it does not exist. */
static int sync_to(struct store_tool *t, struct kvc_store *to,
                   const struct store_namespaces *namespaces) {
    struct kvc_store_moved moved = {.size = sizeof moved};
    if (!to) return store_trouble(t);
    if (store_make(t, to)) return EXIT_TROUBLE;
    const struct kvc_store_move_options o = options_of(t, t->store, namespaces);
    const int failed = kvc_store_copy(t->s, to, &o, &moved, t->e);
    cli_progress_end(&t->progress);
    return failed ? store_trouble(t) : say(t, &moved, "read", 1);
}

int store_sync(struct store_tool *t) {
    struct store_namespaces namespaces;
    if (t->n != 1) return cli_usage("name the store that gets the objects of --store");
    int status = take_namespace(t, &namespaces);
    if (!status) {
        struct kvc_store *to = kvc_store_open(t->operand[0], &t->open, t->e);
        status = sync_to(t, to, &namespaces);
        kvc_store_close(to);
    }
    store_free_namespaces(&namespaces);
    return status;
}
