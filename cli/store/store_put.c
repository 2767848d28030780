/* store_put.c: kvc-store put. */
#include "cli/store/store_tool.h"
#include "cli/text.h"

#include <inttypes.h>
#include <string.h>

/* How many tokens of a cache the store has. */
static uint64_t tokens_there(struct kvc_store_namespace *ns, const int32_t *tokens, uint64_t n) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_store_hit_info info = {.size = sizeof info};
    struct kvc_store_hit *hit = kvc_store_find(ns, tokens, n, &o, NULL);
    if (hit) kvc_store_hit_describe(hit, &info);
    kvc_store_hit_free(hit);
    if (info.tokens) return info.tokens;
    struct kvc_file *whole = kvc_store_get_whole(ns, tokens, n, &o, NULL);
    uint64_t there = 0;
    if (whole) kvc_file_tokens(whole, &there);
    kvc_file_close(whole);
    return there;
}

static void report_put(struct store_tool *t, const char *path, const struct kvc_store_namespace *ns,
                       uint64_t n, uint64_t there) {
    if (t->json) {
        cli_json_open(&t->report, NULL, '{');
        cli_json_text(&t->report, "file", path);
        cli_json_u64(&t->report, "tokens", n);
        cli_json_u64(&t->report, "stored", there);
        cli_json_u64(&t->report, "chunk", kvc_store_namespace_chunk(ns));
        cli_json_text(&t->report, "namespace", kvc_store_namespace_name(ns));
        cli_json_close(&t->report);
    } else if (!t->quiet) {
        cli_print_safe(stdout, path);
        printf(": %" PRIu64 " of %" PRIu64 " tokens, namespace %.16s\n", there, n,
               kvc_store_namespace_name(ns));
    }
}

/* Refuses a cache of which nothing would be stored. Sets *whole to the tokens that can be. Before a
 * store is made, a recipe is tried. */
static int check_put(struct store_tool *t, const char *path, struct kvc_file *f,
                     struct kvc_store_namespace *ns, uint64_t *whole) {
    uint64_t n;
    if (kvc_store_put_check(ns, f, t->unmade && t->of_namespace.recipe, whole, t->e))
        return EXIT_TROUBLE;
    if (*whole) return EXIT_SAME;
    kvc_file_tokens(f, &n);
    cli_warn("%s: %" PRIu64 " tokens are less than a chunk of %" PRIu64 ": nothing is stored%s",
             path, n, kvc_store_namespace_chunk(ns),
             n < 256 ? "" : "; --chunk makes chunks smaller");
    return EXIT_DIFFER;
}

/* Says why the store has no more chunks of what was put. */
static void explain_put(struct store_tool *t, struct kvc_store_namespace *ns, const int32_t *tokens,
                        uint64_t n, char *text, size_t size) {
    const struct kvc_store_find_options o = {.size = sizeof o, .timeout_us = 30000000};
    struct kvc_store_hit *hit = kvc_store_find(ns, tokens, n, &o, NULL);
    if (hit) store_explain(t, hit, text, size);
    kvc_store_hit_free(hit);
}

/* Puts an open cache, and asks the store what it has of it then: tiers may refuse chunks, or fail.
 */
static int put_file(struct store_tool *t, const char *path, struct kvc_file *f,
                    struct kvc_store_namespace *ns, uint64_t whole) {
    const struct kvc_store_put_options o = {.size = sizeof o,
                                            .wait = 1,
                                            .seconds = t->seconds,
                                            .pin = t->pin,
                                            .progress = store_show,
                                            .progress_state = t};
    const uint64_t refused = kvc_store_counter(t->s, "refused_objects");
    char reason[512] = "";
    uint64_t n = 0;
    const int32_t *tokens = kvc_file_tokens(f, &n);
    cli_progress_start(&t->progress, path, t->quiet);
    const int failed = kvc_store_put(ns, f, &o, t->e);
    cli_progress_end(&t->progress);
    if (failed) return EXIT_TROUBLE;
    const uint64_t there = tokens_there(ns, tokens, n);
    report_put(t, path, ns, n, there);
    if (there >= whole) return EXIT_SAME;
    if (kvc_error_code(t->e)) cli_error(t->e);
    else if (kvc_store_counter(t->s, "refused_objects") > refused)
        snprintf(reason, sizeof reason,
                 "refused: a directory at its limit expects fewer hits of the next chunk than of "
                 "what it has; "
                 "put it again, or raise max-size by kvc-store config");
    else explain_put(t, ns, tokens, n, reason, sizeof reason);
    cli_warn("%s: of %" PRIu64 " tokens in whole chunks the store has %" PRIu64 "%s%s", path, whole,
             there, *reason ? "; then: " : "", reason);
    return EXIT_DIFFER;
}

/* Makes the store before the first file is put. Returns an exit status; -1: it cannot be made, and
 * a message was printed. */
static int make_once(struct store_tool *t) {
    if (!t->unmade) return EXIT_SAME;
    if (store_make(t, t->s)) return -1;
    t->unmade = 0;
    return EXIT_SAME;
}

/* Puts a file. A store that does not exist is made once there is something to put. Returns as
 * make_once() does. */
static int put_one(struct store_tool *t, const char *path) {
    uint64_t whole;
    struct kvc_file *f = store_open_file(t, path);
    if (!f) return EXIT_TROUBLE;
    struct kvc_store_namespace *ns = kvc_store_namespace_like(t->s, f, &t->of_namespace, t->e);
    int status = ns ? check_put(t, path, f, ns, &whole) : EXIT_TROUBLE;
    if (!status) status = make_once(t);
    if (!status) status = put_file(t, path, f, ns, whole);
    if (status == EXIT_TROUBLE) {
        kvc_error_about(t->e, path);
        store_trouble(t);
    }
    kvc_store_namespace_close(ns);
    kvc_file_close(f);
    return status;
}

/* Waits for what the store learns of what was put, and says it. */
static void say_learnt(const struct store_tool *t) {
    const double start = cli_now();
    kvc_store_flush(t->s, 0);
    if (t->quiet) return;
    if (kvc_store_counter(t->s, "learnt_profiles"))
        cli_warn("learnt a profile of the model from what the store holds in %.0f s: caches are "
                 "packed with it from now on (--learn=no forbids it)",
                 cli_now() - start);
    else if (kvc_store_counter(t->s, "refused_profiles"))
        cli_warn("no profile could be learnt from what the store holds: caches are larger");
}

int store_put(struct store_tool *t) {
    int worst = EXIT_SAME;
    if (!t->n) return cli_usage("name the files that are put");
    if (t->json) cli_json_open(&t->report, "files", '[');
    for (int i = 0; i < t->n; i++) {
        const int status = put_one(t, t->operand[i]);
        if (status > worst) worst = status;
        if (status < 0) {
            worst = EXIT_TROUBLE;
            break;
        }
    }
    if (t->json) cli_json_close(&t->report);
    if (!t->unmade) say_learnt(t);
    return worst;
}
