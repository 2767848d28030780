/* store_find.c: kvc-store get and find, and the namespaces and tokens that commands take. */
#include "cli/store/store_tool.h"
#include "cli/text.h"
#include "codecs/recipe.h"
#include "codecs/memory.h"
#include "formats/store/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- namespaces --- */

void store_free_namespaces(struct store_namespaces *namespaces) {
    for (size_t i = 0; i < namespaces->n; i++) kvc_store_namespace_close(namespaces->item[i]);
    free(namespaces->item);
    *namespaces = (struct store_namespaces){.n = 0};
}

static int add_namespace(struct store_namespaces *namespaces, struct kvc_store_namespace *ns) {
    struct kvc_store_namespace **more = kvc_room_for_one(namespaces->item, namespaces->n,
                                                         sizeof *more);
    if (!more) {
        kvc_store_namespace_close(ns);
        return -1;
    }
    namespaces->item = more;
    namespaces->item[namespaces->n++] = ns;
    return 0;
}

struct names {
    char (*name)[2 * KVC_OBJECT_KEY + 1];
    size_t n;
    int failed;
};

static int see_name(void *state, unsigned tier, const char *name, uint64_t bytes, int64_t used) {
    struct names *x = state;
    struct kvc_object o;
    char hex[2 * KVC_OBJECT_KEY + 1];
    (void)tier, (void)bytes, (void)used;
    if (kvc_object_parse(name, &o) || o.kind != KVC_OBJECT_NAMESPACE) return 0;
    kvc_hex(o.key, sizeof o.key, hex);
    for (size_t i = 0; i < x->n; i++)
        if (strcmp(x->name[i], hex) == 0) return 0;
    void *more = kvc_room_for_one(x->name, x->n, sizeof *x->name);
    x->failed = !more;
    if (!more) return 1;
    x->name = more;
    memcpy(x->name[x->n++], hex, sizeof hex);
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

/* Opens all namespaces of the store that the caller can read: not those of other tenants. */
static int take_all(struct store_tool *t, struct store_namespaces *namespaces) {
    struct kvc_error e;
    struct names names = {.n = 0};
    int status = EXIT_SAME;
    /* a slower tier is down: the faster ones may do */
    if (kvc_store_walk(t->s, NULL, see_name, &names, &e)) {
        cli_error(&e);
        if (!names.n) status = EXIT_TROUBLE;
    }
    if (names.failed) status = EXIT_TROUBLE;
    if (names.n) qsort(names.name, names.n, sizeof *names.name, by_name);
    for (size_t i = 0; i < names.n && !status; i++) {
        struct kvc_store_namespace *ns = kvc_store_namespace_named(t->s, names.name[i],
                                                                   &t->of_namespace, &e);
        if (ns && add_namespace(namespaces, ns)) status = EXIT_TROUBLE;
        if (ns) continue;
        const int damaged =
            e.code == KVC_ERR_DAMAGED ||
            e.code ==
                KVC_ERR_VERIFY; /* or not signed: one that anybody wrote must not hide the others */
        if (damaged) kvc_error_prefix(&e, names.name[i]);
        if (!damaged && e.code != KVC_ERR_USAGE) status = store_trouble(&e);
        else if (damaged ? !t->quiet : t->verbose) cli_error(&e);
    }
    free(names.name);
    return status;
}

/* Refuses a recipe that is none: no namespace would have it, and the search would only find
 * nothing. */
static int check_recipe(const struct store_tool *t) {
    struct kvc_recipe recipe;
    struct kvc_error e;
    return t->of_namespace.recipe && kvc_recipe_parse(t->of_namespace.recipe, &recipe, &e)
               ? store_trouble(&e)
               : EXIT_SAME;
}

int store_take_namespaces(struct store_tool *t, struct store_namespaces *namespaces) {
    struct kvc_error e;
    struct kvc_store_namespace *ns = NULL;
    *namespaces = (struct store_namespaces){.n = 0};
    if (check_recipe(t)) return EXIT_TROUBLE;
    if (!t->ns && !t->like) return take_all(t, namespaces);
    if (t->ns && t->like) return cli_usage("name one namespace: --namespace=NAME or --like=FILE");
    if (t->ns) {
        ns = kvc_store_namespace_named(t->s, t->ns, &t->of_namespace, &e);
    } else {
        struct kvc_file *like = store_open_file(t, t->like);
        if (!like) return EXIT_TROUBLE;
        ns = kvc_store_namespace_like(t->s, like, &t->of_namespace, &e);
        kvc_file_close(like);
    }
    if (!ns) return store_trouble(&e);
    return add_namespace(namespaces, ns) ? EXIT_TROUBLE : EXIT_SAME;
}

/* --- finding --- */

int store_take_tokens(struct store_tool *t) {
    struct kvc_error e;
    if (!t->tokens) return cli_usage("name the tokens: --tokens=FILE");
    if (t->ids.id || !cli_token_ids(&t->ids, t->tokens, &t->input, &e)) return EXIT_SAME;
    free(t->ids.id);
    t->ids.id = NULL;
    return store_trouble(&e);
}

int store_find_longest(struct store_tool *t, const struct store_namespaces *namespaces,
                       struct kvc_store_hit **hit) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_error e;
    uint64_t best = 0;
    *hit = NULL;
    int status = store_take_tokens(t);
    for (size_t i = 0; i < namespaces->n && !status; i++) {
        struct kvc_store_hit *h = kvc_store_find(namespaces->item[i], t->ids.id, t->ids.n, &o, &e);
        struct kvc_store_hit_info info = {.size = sizeof info};
        if (!h) {
            status = store_trouble(&e);
            break;
        }
        kvc_store_hit_info(h, &info);
        /* of equal prefixes, an exact one */
        if (info.tokens > best || (*hit && info.tokens == best && namespaces->item[i]->lossless &&
                                   !(*hit)->ns->lossless)) {
            kvc_store_hit_free(*hit);
            *hit = h;
            best = info.tokens;
        } else {
            kvc_store_hit_free(h);
        }
    }
    return status;
}

static void print_hit(struct store_tool *t, const struct kvc_store_hit *hit) {
    struct kvc_store_hit_info info = {.size = sizeof info};
    char size[32];
    if (hit) kvc_store_hit_info(hit, &info);
    if (t->json) {
        cli_json_u64(&t->report, "tokens", info.tokens);
        cli_json_u64(&t->report, "chunks", info.chunks);
        cli_json_u64(&t->report, "bytes", info.bytes);
        cli_json_u64(&t->report, "asked", info.asked);
        cli_json_i64(&t->report, "microseconds", info.took_us);
        cli_json_bool(&t->report, "late", info.late);
        cli_json_text(&t->report, "tiers", info.tiers);
        cli_json_text(&t->report, "namespace", hit ? kvc_store_namespace_name(hit->ns) : NULL);
        cli_json_bool(&t->report, "lossless", hit && hit->ns->lossless);
        return;
    }
    if (t->quiet) return;
    cli_size_text(info.bytes, size);
    if (hit)
        printf("%" PRIu64 " tokens in %" PRIu64 " chunks of %s (%s), namespace %.16s%s%s\n",
               info.tokens, info.chunks, size, info.tiers, kvc_store_namespace_name(hit->ns),
               hit->ns->lossless ? "" : ", lossy: ", hit->ns->lossless ? "" : hit->ns->recipe);
    else printf("0 tokens\n");
}

/* Says why less was read than was found, and what to do. */
static void explain_loss(const struct kvc_error *e) {
    const char *advice = "an object cannot be read at present";
    if (e->code == KVC_OK) advice = "what was found is not there any more";
    else if (e->code == KVC_ERR_VERIFY)
        advice = "objects without the right signature are not used; is the key file right?";
    else if (e->code == KVC_ERR_UNSUPPORTED) advice = "a later kvc may read the object";
    else if (e->code != KVC_ERR_MEMORY && e->code != KVC_ERR_IO)
        advice = "the object is damaged, and taken out of the store; kvc-store put stores it again";
    if (e->code) cli_error(e);
    cli_warn("%s", advice);
}

/* Finds the longest cache that cannot be cut. NULL, with messages about what is bad, if there is
 * none. */
static struct kvc_file *find_whole(struct store_tool *t, const struct store_namespaces *namespaces,
                                   const struct kvc_store_namespace **of) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_file *best = NULL;
    uint64_t most = 0, n;
    struct kvc_error e;
    if (store_take_tokens(t)) return NULL;
    for (size_t i = 0; i < namespaces->n; i++) {
        struct kvc_file *f = kvc_store_get_whole(namespaces->item[i], t->ids.id, t->ids.n, &o, &e);
        if (!f && e.code) explain_loss(&e);
        if (f) kvc_file_tokens(f, &n);
        if (f && n > most) {
            kvc_file_close(best);
            best = f;
            most = n;
            *of = namespaces->item[i];
        } else {
            kvc_file_close(f);
        }
    }
    return best;
}

static void print_whole(struct store_tool *t, const struct kvc_file *f,
                        const struct kvc_store_namespace *ns) {
    uint64_t n = 0;
    kvc_file_tokens(f, &n);
    if (t->json) {
        cli_json_u64(&t->report, "tokens", n);
        cli_json_bool(&t->report, "whole", 1);
        cli_json_text(&t->report, "namespace", kvc_store_namespace_name(ns));
    } else {
        printf("%" PRIu64 " tokens in one object, namespace %.16s\n", n,
               kvc_store_namespace_name(ns));
    }
}

int store_find(struct store_tool *t) {
    struct store_namespaces namespaces;
    struct kvc_store_hit *hit = NULL;
    const struct kvc_store_namespace *ns = NULL;
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &hit);
    struct kvc_file *whole = !status && !hit ? find_whole(t, &namespaces, &ns) : NULL;
    if (whole) print_whole(t, whole, ns);
    else if (!status) print_hit(t, hit);
    if (!status && !hit && !whole) status = EXIT_DIFFER;
    kvc_file_close(whole);
    kvc_store_hit_free(hit);
    store_free_namespaces(&namespaces);
    return status;
}

/* --- getting --- */

/* A file that is written. */
struct writing {
    struct store_tool *t;
    uint64_t expected; /* bytes; 0: unknown */
};

static int show_written(void *state, uint64_t done, uint64_t total) {
    const struct writing *w = state;
    return store_show(w->t, done, total ? total : w->expected);
}

static int store_find_write_file(struct store_tool *t, const struct kvc_file *f) {
    struct kvc_error e;
    struct cli_output out;
    struct writing w = {.t = t};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .progress = show_written,
                                          .progress_state = &w,
                                          .lossy_metadata = t->lossy_metadata,
                                          .no_verify = 1};
    for (uint32_t i = 0; i < f->cache->n_tensors; i++)
        w.expected += kvc_tensor_bytes(&f->cache->tensor[i]);
    if (cli_output_open(&out, t->output, t->force, 0666, &e)) return store_trouble(&e);
    cli_progress_start(&t->progress, t->output ? t->output : t->tokens, t->quiet);
    int status = t->to && strcmp(t->to, "kvc") != 0
                     ? kvc_file_unpack(f, t->to, &how, cli_output_write, &out, &e)
                     : kvc_file_pack(f, &how, cli_output_write, &out, &e);
    cli_progress_end(&t->progress);
    status = cli_output_end(&out, status, &e);
    return status ? store_trouble(&e) : EXIT_SAME;
}

/* Reads what was found. NULL: a message was printed. */
static struct kvc_file *read_hit(struct store_tool *t, struct kvc_store_hit *hit) {
    const struct kvc_store_load_options o = {.size = sizeof o,
                                             .timeout_us = 600000000,
                                             .progress = store_show,
                                             .progress_state = t};
    const uint64_t chunk = hit->ns->chunk, found = hit->chunks * chunk;
    struct kvc_error e;
    cli_progress_start(&t->progress, t->store, t->quiet);
    struct kvc_file *f = kvc_store_get(hit, &o, &e);
    cli_progress_end(&t->progress);
    const uint64_t read = f ? hit->chunks * chunk : 0;
    if (read == found || (f && t->quiet)) return f;
    explain_loss(&e);
    cli_warn("%" PRIu64 " tokens were found, and %" PRIu64 " of them read", found, read);
    return f;
}

int store_get(struct store_tool *t) {
    struct store_namespaces namespaces;
    struct kvc_store_hit *hit = NULL;
    const struct kvc_store_namespace *ns = NULL;
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &hit);
    struct kvc_file *f = status ? NULL : hit ? read_hit(t, hit) : find_whole(t, &namespaces, &ns);
    if (!status && !hit && !f && !t->quiet)
        cli_warn("the store has no prefix of these tokens; kvc-store why says more");
    if (!status) status = f ? store_find_write_file(t, f) : EXIT_DIFFER;
    if (f && !status && t->output && hit) print_hit(t, hit);
    else if (f && !status && t->output) print_whole(t, f, ns);
    else if (t->json) print_hit(t, NULL);
    kvc_file_close(f);
    kvc_store_hit_free(hit);
    store_free_namespaces(&namespaces);
    return status;
}
