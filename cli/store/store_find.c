/* store_find.c: kvc-store get and find, and the namespaces and tokens that commands take. */
#include "cli/store/store_tool.h"

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
    struct kvc_store_namespace **more = cli_room_for_one(namespaces->item, namespaces->n,
                                                         sizeof *more);
    if (!more) {
        kvc_store_namespace_close(ns);
        return -1;
    }
    namespaces->item = more;
    namespaces->item[namespaces->n++] = ns;
    return 0;
}

/* Opens a namespace of the store, unless it is another tenant's, of another fidelity, or damaged.
 */
static int take_named(struct store_tool *t, const char *name, struct store_namespaces *namespaces) {
    struct kvc_store_namespace *ns = kvc_store_namespace_named(t->s, name, &t->of_namespace, t->e);
    const enum kvc_code code = kvc_error_code(t->e);
    if (ns) return add_namespace(namespaces, ns) ? EXIT_TROUBLE : EXIT_SAME;
    /* or not signed: one that anybody wrote must not hide the others */
    const int damaged = code == KVC_ERR_DAMAGED || code == KVC_ERR_VERIFY;
    if (damaged) kvc_error_about(t->e, name);
    if (!damaged && code != KVC_ERR_USAGE) return store_trouble(t);
    if (damaged ? !t->quiet : t->verbose) cli_error(t->e);
    return EXIT_SAME;
}

/* Opens all namespaces of the store that the caller can read. */
static int take_all(struct store_tool *t, struct store_namespaces *namespaces) {
    kvc_store_namespace_text *name;
    size_t n;
    int status = EXIT_SAME;
    /* a slower tier is down: the faster ones may do */
    if (kvc_store_namespaces(t->s, &name, &n, t->e)) {
        cli_error(t->e);
        if (!n) status = EXIT_TROUBLE;
    }
    for (size_t i = 0; i < n && !status; i++) status = take_named(t, name[i], namespaces);
    free(name);
    return status;
}

/* Refuses a recipe that is none: no namespace would have it, and the search would only find
 * nothing. */
static int check_recipe(const struct store_tool *t) {
    if (!t->of_namespace.recipe) return EXIT_SAME;
    return kvc_recipe_describe(t->of_namespace.recipe, NULL, t->e) ? store_trouble(t) : EXIT_SAME;
}

struct kvc_store_namespace_info store_namespace_info(const struct kvc_store_namespace *ns) {
    struct kvc_store_namespace_info info = {.size = sizeof info};
    kvc_store_namespace_describe(ns, &info);
    return info;
}

int store_take_namespaces(struct store_tool *t, struct store_namespaces *namespaces) {
    struct kvc_store_namespace *ns = NULL;
    *namespaces = (struct store_namespaces){.n = 0};
    if (check_recipe(t)) return EXIT_TROUBLE;
    if (!t->ns && !t->like) return take_all(t, namespaces);
    if (t->ns && t->like) return cli_usage("name one namespace: --namespace=NAME or --like=FILE");
    if (t->ns) {
        ns = kvc_store_namespace_named(t->s, t->ns, &t->of_namespace, t->e);
    } else {
        struct kvc_file *like = store_open_file(t, t->like);
        if (!like) return EXIT_TROUBLE;
        ns = kvc_store_namespace_like(t->s, like, &t->of_namespace, t->e);
        kvc_file_close(like);
    }
    if (!ns) return store_trouble(t);
    return add_namespace(namespaces, ns) ? EXIT_TROUBLE : EXIT_SAME;
}

/* --- finding --- */

int store_take_tokens(struct store_tool *t) {
    if (!t->tokens) return cli_usage("name the tokens: --tokens=FILE");
    if (t->ids.id || !cli_token_ids(&t->ids, t->tokens, &t->input, t->e)) return EXIT_SAME;
    free(t->ids.id);
    t->ids.id = NULL;
    return store_trouble(t);
}

struct kvc_store_hit_info store_hit_info(const struct kvc_store_hit *hit) {
    struct kvc_store_hit_info info = {.size = sizeof info};
    if (hit) kvc_store_hit_describe(hit, &info);
    return info;
}

/* Compares a hit with the best so far. Above 0: it is better, longer, or of equal ones an exact
 * one; 0: as good. */
static int compare(const struct kvc_store_hit *hit, const struct kvc_store_namespace *ns,
                   const struct store_found *best) {
    const uint64_t tokens = store_hit_info(hit).tokens, most = store_hit_info(best->hit).tokens;
    if (tokens != most || !best->hit) return tokens > most ? 1 : -1;
    return store_namespace_info(ns).lossless - store_namespace_info(best->ns).lossless;
}

int store_find_longest(struct store_tool *t, const struct store_namespaces *namespaces,
                       struct store_found *found) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    *found = (struct store_found){.hit = NULL};
    int status = store_take_tokens(t);
    for (size_t i = 0; i < namespaces->n && !status; i++) {
        struct kvc_store_namespace *ns = namespaces->item[i];
        struct kvc_store_hit *hit = kvc_store_find(ns, t->ids.id, t->ids.n, &o, t->e);
        if (!hit) {
            status = store_trouble(t);
            break;
        }
        const int better = compare(hit, ns, found);
        kvc_store_hit_free(better > 0 ? found->hit : hit);
        if (better > 0) *found = (struct store_found){.hit = hit, .ns = ns};
        if (better == 0) found->equal = ns;
    }
    return status;
}

static void print_hit(struct store_tool *t, const struct store_found *found) {
    const struct kvc_store_hit_info info = store_hit_info(found->hit);
    struct kvc_store_namespace_info ns = {.lossless = 0};
    const char *name = found->hit ? kvc_store_namespace_name(found->ns) : NULL;
    char size[32];
    if (found->hit) ns = store_namespace_info(found->ns);
    if (t->json) {
        cli_json_u64(&t->report, "tokens", info.tokens);
        cli_json_u64(&t->report, "chunks", info.chunks);
        cli_json_u64(&t->report, "bytes", info.bytes);
        cli_json_u64(&t->report, "asked", info.asked);
        cli_json_f64(&t->report, "seconds", (double)info.took_us / 1e6);
        cli_json_bool(&t->report, "late", info.late);
        cli_json_text(&t->report, "tiers", info.tiers);
        cli_json_text(&t->report, "namespace", name);
        cli_json_bool(&t->report, "lossless", ns.lossless);
        return;
    }
    if (t->quiet) return;
    cli_size_text(info.bytes, size);
    if (name)
        printf("%" PRIu64 " token%s in %" PRIu64 " chunk%s of %s (%s), namespace %.16s%s%s\n",
               info.tokens, cli_s(info.tokens), info.chunks, cli_s(info.chunks), size, info.tiers,
               name, ns.lossless ? "" : ", lossy: ", ns.lossless ? "" : ns.recipe);
    else printf("0 tokens\n");
}

/* Says why less was read than was found, and what to do. */
static void explain_loss(const struct kvc_error *e) {
    const enum kvc_code code = kvc_error_code(e);
    const char *advice = "an object cannot be read at present";
    if (code == KVC_OK) advice = "what was found is not there any more";
    else if (code == KVC_ERR_VERIFY)
        advice = "objects without the right signature are not used; is the key file right?";
    else if (code == KVC_ERR_UNSUPPORTED) advice = "a later kvc may read the object";
    else if (code != KVC_ERR_MEMORY && code != KVC_ERR_IO)
        advice = "the object is damaged, and taken out of the store; kvc-store put stores it again";
    if (code) cli_error(e);
    cli_warn("%s", advice);
}

/* Finds the longest cache that cannot be cut. NULL, with messages about what is bad, if there is
 * none. */
static struct kvc_file *find_whole(struct store_tool *t, const struct store_namespaces *namespaces,
                                   const struct kvc_store_namespace **of) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_file *best = NULL;
    uint64_t most = 0, n;
    if (store_take_tokens(t)) return NULL;
    for (size_t i = 0; i < namespaces->n; i++) {
        struct kvc_file *f = kvc_store_get_whole(namespaces->item[i], t->ids.id, t->ids.n, &o,
                                                 t->e);
        if (!f && kvc_error_code(t->e)) explain_loss(t->e);
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
        printf("%" PRIu64 " token%s in one object, namespace %.16s\n", n, cli_s(n),
               kvc_store_namespace_name(ns));
    }
}

int store_find(struct store_tool *t) {
    struct store_namespaces namespaces;
    struct store_found found = {.hit = NULL};
    const struct kvc_store_namespace *ns = NULL;
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &found);
    struct kvc_file *whole = !status && !found.hit ? find_whole(t, &namespaces, &ns) : NULL;
    if (whole) print_whole(t, whole, ns);
    else if (!status) print_hit(t, &found);
    if (!status && !found.hit && !whole) status = EXIT_DIFFER;
    kvc_file_close(whole);
    kvc_store_hit_free(found.hit);
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

static uint64_t row_bytes(const struct kvc_file *f) {
    struct kvc_tensor_info info = {.size = sizeof info};
    uint64_t bytes = 0;
    for (uint32_t i = 0; !kvc_file_tensor(f, i, &info); i++) bytes += info.rows * info.row_bytes;
    return bytes;
}

static int store_find_write_file(struct store_tool *t, const struct kvc_file *f) {
    struct cli_output out;
    struct writing w = {.t = t, .expected = row_bytes(f)};
    const struct kvc_write_options how = {.size = sizeof how,
                                          .progress = show_written,
                                          .progress_state = &w,
                                          .lossy_metadata = t->lossy_metadata,
                                          .no_verify = 1};
    if (cli_output_open(&out, t->output, t->force, 0666, t->e)) return store_trouble(t);
    cli_progress_start(&t->progress, t->output ? t->output : t->tokens, t->quiet);
    int status = t->to && strcmp(t->to, "kvc") != 0
                     ? kvc_file_unpack(f, t->to, &how, cli_output_write, &out, t->e)
                     : kvc_file_pack(f, &how, cli_output_write, &out, t->e);
    cli_progress_end(&t->progress);
    status = cli_output_end(&out, status, t->e);
    return status ? store_trouble(t) : EXIT_SAME;
}

/* Reads what was found. NULL: a message was printed. */
static struct kvc_file *read_hit(struct store_tool *t, struct kvc_store_hit *hit) {
    const struct kvc_store_load_options o = {.size = sizeof o,
                                             .timeout_us = 600000000,
                                             .progress = store_show,
                                             .progress_state = t};
    const uint64_t found = store_hit_info(hit).tokens;
    cli_progress_start(&t->progress, t->store, t->quiet);
    struct kvc_file *f = kvc_store_get(hit, &o, t->e);
    cli_progress_end(&t->progress);
    const uint64_t read = f ? store_hit_info(hit).tokens : 0;
    if (read == found || (f && t->quiet)) return f;
    explain_loss(t->e);
    cli_warn("%" PRIu64 " tokens were found, and %" PRIu64 " of them read", found, read);
    return f;
}

int store_get(struct store_tool *t) {
    struct store_namespaces namespaces;
    struct store_found found = {.hit = NULL};
    const struct kvc_store_namespace *ns = NULL;
    struct kvc_file *f = NULL;
    int status = store_take_namespaces(t, &namespaces);
    if (!status) status = store_find_longest(t, &namespaces, &found);
    if (!status) f = found.hit ? read_hit(t, found.hit) : find_whole(t, &namespaces, &ns);
    if (!status && !found.hit && !f && !t->quiet)
        cli_warn("the store has no prefix of these tokens; kvc-store why says more");
    if (f && found.equal && !t->quiet)
        cli_warn("namespace %.16s, of another model, type or step, has as many tokens: "
                 "--namespace=NAME or --like=FILE chooses",
                 kvc_store_namespace_name(found.equal));
    if (!status) status = f ? store_find_write_file(t, f) : EXIT_DIFFER;
    if (f && !status && t->output && found.hit) print_hit(t, &found);
    else if (f && !status && t->output) print_whole(t, f, ns);
    else if (t->json) print_hit(t, &(struct store_found){.hit = NULL});
    kvc_file_close(f);
    kvc_store_hit_free(found.hit);
    store_free_namespaces(&namespaces);
    return status;
}
