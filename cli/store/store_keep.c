/* store_keep.c: kvc-store gc, verify, pin, unpin and drop. */
#include "cli/store/store_tool.h"
#include "codecs/memory.h"
#include "formats/cache/keys.h"
#include "formats/container/container.h"
#include "formats/model/profile.h"
#include "formats/store/dir/dir.h"
#include "formats/store/namespace_text.h"
#include "formats/store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- gc --- */

static void print_counts(struct store_tool *t, const struct kvc_dir_counts *c) {
    char size[32], evicted[32], trash[32];
    /* objects were counted before some were evicted */
    const uint64_t objects = t->dry_run ? c->objects : c->objects - c->evicted;
    const uint64_t bytes = t->dry_run ? c->bytes : c->bytes - c->evicted_bytes;
    cli_size_text(bytes, size);
    cli_size_text(c->evicted_bytes, evicted);
    cli_size_text(c->trash_bytes, trash);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_u64(&t->report, "objects", objects);
        cli_json_u64(&t->report, "bytes", bytes);
        cli_json_u64(&t->report, "adopted", c->adopted);
        cli_json_u64(&t->report, "missing", c->missing);
        cli_json_u64(&t->report, "evicted", c->evicted);
        cli_json_u64(&t->report, "evicted_bytes", c->evicted_bytes);
        cli_json_u64(&t->report, "expired", c->expired);
        cli_json_u64(&t->report, "trash_bytes", c->trash_bytes);
        cli_json_u64(&t->report, "strangers", c->strangers);
        cli_json_close(&t->report);
        return;
    }
    if (t->quiet) return;
    printf("%" PRIu64 " objects, %s; ", objects, size);
    if (t->dry_run) printf("would evict %s, %" PRIu64 " objects have expired", evicted, c->expired);
    else
        printf("evicted %" PRIu64 " (%s), %" PRIu64 " of them expired", c->evicted, evicted,
               c->expired);
    printf("; %s in the trash\n", trash);
    if (c->adopted || c->missing)
        printf("the index lacked %" PRIu64 " files, and %" PRIu64 " of its records had none\n",
               c->adopted, c->missing);
    if (c->strangers)
        printf("%" PRIu64 " files in the store's folders are no objects\n", c->strangers);
}

int store_gc(struct store_tool *t) {
    const struct kvc_dir_clean how = {.max_size = t->max_size,
                                      .older = t->older,
                                      .dry_run = t->dry_run};
    int any = 0, status = EXIT_SAME;
    if (t->json) cli_json_open(&t->report, "directories", '[');
    for (unsigned i = 0; i < t->s->n_tiers && !status; i++) {
        struct kvc_dir_counts counts;
        struct kvc_error e;
        if (t->s->tier[i].ops != &kvc_tier_dir) continue;
        any = 1;
        if (kvc_dir_clean((struct kvc_dir *)t->s->tier[i].tier, &how, &counts, &e))
            status = store_trouble(&e);
        else print_counts(t, &counts);
    }
    if (t->json) cli_json_close(&t->report);
    return any ? status
               : cli_usage(
                     "kvc-store gc is for directories; Redis and S3 expire objects by themselves");
}

/* --- verify --- */

struct verifying {
    struct store_tool *t;
    struct store_namespaces namespaces; /* those that can be read */
    unsigned tier;
    struct kvc_object *bad;
    size_t n_bad;
    uint64_t n, bytes;
    uint64_t total; /* bytes of the tier, of progress; 0: unknown */
    uint64_t seen;  /* bytes of the tier that were read */
    int failed;
};

/* Checks that the tokens of a chunk give its name, if its namespace can be read: that of a tenant
 * cannot. */
static int check_name(const struct verifying *v, const struct kvc_object *o,
                      const struct kvc_cache *c, struct kvc_error *e) {
    struct kvc_object own;
    for (size_t i = 0; i < v->namespaces.n; i++) {
        const struct kvc_store_namespace *ns = v->namespaces.item[i];
        if (memcmp(ns->hash, o->ns, sizeof o->ns) != 0) continue;
        const int chunk = c->n_prefix_keys == ns->chunk / KVC_PREFIX_TOKENS;
        if (chunk && kvc_chunk_object(ns, c->prefix_keys, 0, &own, e)) return -1;
        if (!chunk || !kvc_object_equal(&own, o))
            return kvc_fail(e, KVC_ERR_DAMAGED, "its tokens are of another name");
    }
    return 0;
}

/* The same of a named cache, which says its name. */
static int check_chosen_name(const struct verifying *v, const struct kvc_object *o,
                             const struct kvc_cache *c, struct kvc_error *e) {
    const struct kvc_meta_entry *entry = kvc_meta_find(&c->meta, KVC_KEY_STORE_NAME);
    struct kvc_object own;
    if (!entry) return kvc_fail(e, KVC_ERR_DAMAGED, "it does not say its name");
    const struct kvc_store_name name = {entry->value, entry->size};
    for (size_t i = 0; i < v->namespaces.n; i++) {
        if (memcmp(v->namespaces.item[i]->hash, o->ns, sizeof o->ns) != 0) continue;
        if (kvc_named_object(v->namespaces.item[i], &name, &own, e)) return -1;
        if (!kvc_object_equal(&own, o))
            return kvc_fail(e, KVC_ERR_DAMAGED, "it is of another name");
    }
    return 0;
}

/* Checks an object by itself: that it is whole, and that its own tokens give its name. */
static int check_chunk(const struct verifying *v, const struct kvc_object *o, const void *data,
                       size_t size, struct kvc_error *e) {
    const struct kvc_open_options open = {.size = sizeof open,
                                          .format = "kvc",
                                          .profile_folders = ""}; /* no rows are read */
    if (kvc_chunk_signature(v->t->s, o, data, &size, e)) return -1;
    struct kvc_file *f = kvc_file_open_memory(data, size, &open, e);
    if (!f) return -1;
    int status = kvc_container_check_hashes(f->cache, e);
    if (!status) status = kvc_prefix_verify(f->cache, e);
    if (!status && o->kind == KVC_OBJECT_CHUNK) status = check_name(v, o, f->cache, e);
    if (!status && o->kind == KVC_OBJECT_NAMED) status = check_chosen_name(v, o, f->cache, e);
    kvc_file_close(f);
    return status;
}

static int check_bytes(const struct verifying *v, const struct kvc_object *o, const void *data,
                       size_t size, struct kvc_error *e) {
    const struct kvc_store *s = v->t->s;
    struct kvc_namespace_facts facts;
    if (o->kind == KVC_OBJECT_CHUNK || o->kind == KVC_OBJECT_STATE || o->kind == KVC_OBJECT_NAMED)
        return check_chunk(v, o, data, size, e);
    if (kvc_chunk_signature(s, o, data, &size, e)) return -1;
    if (o->kind == KVC_OBJECT_NAMESPACE) {
        if (kvc_namespace_text_read(data, size, &facts, e)) return -1;
        return memcmp(facts.ns, o->key, sizeof facts.ns)
                   ? kvc_fail(e, KVC_ERR_DAMAGED, "its facts are of another name")
                   : 0;
    }
    struct kvc_profile *p = kvc_profile_open_memory(data, size, e);
    const int same = p && memcmp(kvc_profile_sha256(p), o->key, KVC_SHA256_BYTES) == 0;
    kvc_profile_free(p);
    return !p ? -1 : same ? 0 : kvc_fail(e, KVC_ERR_DAMAGED, "its hash is another than its name");
}

static int store_keep_take_bytes(void *state, size_t i, void *data, size_t size,
                                 const struct kvc_error *why) {
    void **to = state;
    (void)i;
    to[0] = data;
    memcpy(to[1], &size, sizeof size);
    if (why) memcpy(to[2], why, sizeof *why);
    return 0;
}

static int see(void *state, const struct kvc_object *o, uint64_t bytes, int64_t used) {
    struct verifying *v = state;
    struct kvc_tier *l = v->t->s->tier[v->tier].tier;
    size_t size = 0;
    struct kvc_error e = {.code = KVC_OK};
    void *to[3] = {NULL, &size, &e};
    (void)bytes, (void)used;
    int status = l->ops->get(l, o, 1, kvc_now() + 60000000, store_keep_take_bytes, to, &e);
    if (!status && !to[0] && !e.code) return 0; /* it has just gone */
    if (!status && to[0]) status = check_bytes(v, o, to[0], size, &e);
    free(to[0]);
    v->n++;
    v->bytes += size;
    v->seen += size;
    store_show(v->t, v->seen, v->total);
    if (!status && !e.code) return 0;
    cli_progress_end(&v->t->progress);
    kvc_chunk_blame(o, &e);
    cli_warn("%s", e.message);
    struct kvc_object *more = kvc_room_for_one(v->bad, v->n_bad, sizeof *more);
    v->failed |= !more;
    if (!more) return 1;
    v->bad = more;
    v->bad[v->n_bad++] = *o;
    return 0;
}

/* Reads the objects of all tiers. */
static int verify_tiers(struct verifying *v) {
    struct kvc_error e;
    for (; v->tier < v->t->s->n_tiers; v->tier++) {
        struct kvc_tier *l = v->t->s->tier[v->tier].tier;
        const size_t before = v->n_bad;
        v->total = store_show_walk(v->t, l, NULL);
        v->seen = 0;
        const int failed = l->ops->walk(l, NULL, see, v, &e);
        cli_progress_end(&v->t->progress);
        if (failed) return store_trouble(&e);
        if (v->failed) return EXIT_TROUBLE;
        for (size_t i = before; i < v->n_bad && v->t->repair; i++)
            if (l->ops->quarantine && l->ops->quarantine(l, &v->bad[i], &e)) store_trouble(&e);
    }
    return EXIT_SAME;
}

int store_verify(struct store_tool *t) {
    struct verifying v = {.t = t};
    const int quiet = t->quiet;
    char size[32];
    t->quiet = 1; /* damaged facts are reported as objects */
    int status = store_take_namespaces(t, &v.namespaces);
    t->quiet = quiet;
    if (!status) status = verify_tiers(&v);
    store_free_namespaces(&v.namespaces);
    free(v.bad);
    if (status) return status;
    cli_size_text(v.bytes, size);
    if (t->json) {
        cli_json_u64(&t->report, "objects", v.n);
        cli_json_u64(&t->report, "bytes", v.bytes);
        cli_json_u64(&t->report, "bad", v.n_bad);
    } else if (!t->quiet) {
        char tiers[32] = "";
        if (t->s->n_tiers > 1) snprintf(tiers, sizeof tiers, " in %u tiers", t->s->n_tiers);
        printf("%" PRIu64 " objects%s, %s: %zu bad%s\n", v.n, tiers, size, v.n_bad,
               v.n_bad && t->repair ? ", put aside" : "");
    }
    return v.n_bad ? EXIT_DIFFER : EXIT_SAME;
}

/* --- pins --- */

static int change_pin(struct store_tool *t, int pin) {
    struct store_namespaces namespaces;
    struct kvc_store_hit *hit = NULL;
    struct kvc_error e;
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &hit);
    if (!status && !hit) {
        cli_warn("the store has no prefix of these tokens");
        status = EXIT_DIFFER;
    }
    if (hit && (pin ? kvc_store_pin(hit, t->seconds, &e) : kvc_store_unpin(hit, &e)))
        status = store_trouble(&e);
    if (hit && t->json) cli_json_u64(&t->report, "tokens", hit->chunks * hit->ns->chunk);
    if (hit && !status && !t->quiet && !t->json)
        printf("%" PRIu64 " tokens %s\n", (uint64_t)(hit->chunks * hit->ns->chunk),
               pin ? "pinned" : "unpinned");
    kvc_store_hit_free(hit);
    store_free_namespaces(&namespaces);
    return status;
}

int store_pin(struct store_tool *t) {
    return change_pin(t, 1);
}

int store_unpin(struct store_tool *t) {
    return change_pin(t, 0);
}

/* --- drop --- */

/* Removes a namespace. */
static int drop_namespace(struct store_tool *t, struct kvc_store_namespace *ns) {
    struct kvc_error e;
    const int64_t n = kvc_store_drop(ns, &e);
    if (n < 0) return store_trouble(&e);
    if (t->json) cli_json_i64(&t->report, "objects", n);
    else if (!t->quiet) printf("%" PRId64 " objects removed\n", n);
    return n ? EXIT_SAME : EXIT_DIFFER;
}

/* Removes a prompt from a namespace. Adds up what was removed and kept. */
static int drop_prompt(struct store_tool *t, struct kvc_store_namespace *ns,
                       struct kvc_store_dropped *sum) {
    const struct kvc_store_drop_options o = {.size = sizeof o,
                                             .progress = store_show,
                                             .progress_state = t};
    struct kvc_store_dropped d = {.size = sizeof d};
    struct kvc_error e;
    char size[32];
    cli_progress_start(&t->progress, ns->name, t->quiet);
    const int failed = kvc_store_drop_tokens(ns, t->ids.id, t->ids.n, &o, &d, &e);
    cli_progress_end(&t->progress);
    if (failed) return store_trouble(&e);
    sum->removed += d.removed;
    sum->kept += d.kept;
    if (!d.removed && !d.kept) return EXIT_SAME;
    cli_size_text(d.bytes, size);
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "namespace", ns->name);
        cli_json_u64(&t->report, "removed", d.removed);
        cli_json_u64(&t->report, "kept", d.kept);
        cli_json_u64(&t->report, "bytes", d.bytes);
        cli_json_close(&t->report);
    } else if (!t->quiet) {
        printf("namespace %.16s: %" PRIu64 " chunks of %s%s removed", ns->name, d.removed, size,
               t->s->n_tiers > 1 ? " in all tiers" : "");
        if (d.kept) printf(", %" PRIu64 " kept, after which other prompts go on", d.kept);
        printf("\n");
    }
    return EXIT_SAME;
}

static int drop_tokens(struct store_tool *t, const struct store_namespaces *namespaces) {
    struct kvc_store_dropped sum = {.size = sizeof sum};
    int status = store_take_tokens(t);
    if (status) return status;
    if (t->json) cli_json_open(&t->report, "namespaces", '[');
    for (size_t i = 0; i < namespaces->n && !status; i++)
        status = drop_prompt(t, namespaces->item[i], &sum);
    if (t->json) cli_json_close(&t->report);
    if (status || sum.removed) return status;
    if (sum.kept && !t->quiet)
        cli_warn("longer prompts begin with these tokens; to remove one, give all of its tokens");
    else if (!t->quiet) cli_warn("the store has no chunk of these tokens");
    return EXIT_DIFFER;
}

int store_drop(struct store_tool *t) {
    struct store_namespaces namespaces;
    if (!t->ns && !t->like && !t->tokens)
        return cli_usage(
            "name the prompt (--tokens=FILE), or the namespace (--namespace=NAME or --like=FILE)");
    int status = store_take_namespaces(t, &namespaces);
    if (!status && t->tokens) status = drop_tokens(t, &namespaces);
    for (size_t i = 0; i < namespaces.n && !status && !t->tokens; i++)
        status = drop_namespace(t, namespaces.item[i]);
    store_free_namespaces(&namespaces);
    return status;
}
