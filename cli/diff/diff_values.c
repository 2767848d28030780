/* diff_values.c: kvc-diff's comparison, step by step, which the library does; counts what differs
 * and passes it to the printer. Not for printing (diff_print.c). */
#include "cli/diff/diff.h"

#include <stdlib.h>

int diff_start(struct diff_comparison *d, struct kvc_error *e) {
    d->how.queries = d->queries;
    d->steps = kvc_comparing_new(d->file[0].cache, d->file[1].cache, &d->how, &d->detail, e);
    if (d->steps && kvc_comparing_estimated(d->steps) && !d->quiet)
        cli_warn("queries estimated from K, V and the weights");
    if (d->steps) return 0;
    switch (kvc_error_need(e)) {
    case KVC_NEED_LAYERS:
        return cli_usage_error(e, "--layers: neither file has any of these layers");
    case KVC_NEED_POSITIONS:
        return cli_usage_error(e, "--tokens: neither file has any of these positions");
    case KVC_NEED_QUERIES:
        return kvc_error_set(e, KVC_ERR_UNSUPPORTED, KVC_NEED_NOTHING, "%s",
                             d->queries ? kvc_error_message(e)
                                        : "--attention: neither file has queries; give one that "
                                          "has: --queries=FILE, or the model: --model=FILE");
    default: return -1;
    }
}

/* Says how channels were aligned. */
static void aligned(void *state, const char *text, int guessed) {
    struct diff_comparison *d = state;
    char said[600];
    snprintf(said, sizeof said, "%s%s", text, guessed ? " (--pairing=P,Q decides it)" : "");
    if (!d->quiet) cli_warn("%s", said);
    if (d->collected) diff_collect_fact(d->collected, NULL, said, NULL, NULL, NULL);
}

static int compare_tensors(struct diff_comparison *d, const struct kvc_compared *pair,
                           struct kvc_error *e) {
    struct kvc_error_sums sums = {.size = sizeof sums};
    struct kvc_difference all, *head;
    d->now = pair;
    d->opened = 0;
    head = kvc_comparing_tensor(d->steps, pair, &all, d->collected ? &sums : NULL, e);
    int status = head ? 0 : -1;
    if (head) {
        d->compared++;
        d->values += all.values;
        if (all.differ) {
            d->unequal++;
            kvc_difference_add(&d->total, &all);
        }
        cli_progress_end(&d->progress);
        diff_print_tensor(d, head, all.differ != 0);
        status = diff_note_layer(d, pair, &all, e);
    }
    if (!status && d->collected)
        status = diff_collect_tensor(d->collected, pair, head, &all, &sums, e);
    kvc_error_sums_free(&sums);
    free(head);
    return status;
}

static int compare_values(struct diff_comparison *d, struct kvc_error *e) {
    const struct kvc_compared *pair;
    uint64_t done = 0, total = 0;
    int status = 0;
    for (size_t i = 0; (pair = kvc_comparing_pair(d->steps, i)) != NULL; i++) total += pair->bytes;
    cli_progress_start(&d->progress, d->file[0].source.name, d->quiet);
    for (size_t i = 0; !status && (pair = kvc_comparing_pair(d->steps, i)) != NULL; i++) {
        if (diff_may_end(d)) break;
        if (pair->heads && pair->rows) status = compare_tensors(d, pair, e);
        if (!status) cli_progress_show(&d->progress, done += pair->bytes, total);
    }
    cli_progress_end(&d->progress);
    return status || d->quiet ? status : kvc_comparing_groups_end(d->steps, e);
}

int diff_compare(struct diff_comparison *d, struct kvc_error *e) {
    diff_begin(d);
    if (kvc_comparing_facts(d->steps, diff_fact, d, e)) return -1;
    if (diff_may_end(d)) return 0;
    diff_begin_tensors(d);
    if (kvc_comparing_align(d->steps, aligned, d, e) || compare_values(d, e)) return -1;
    if (d->how.attention && kvc_comparing_attention(d->steps, e))
        return kvc_error_about(e, "--attention");
    diff_end(d);
    return 0;
}
