/* diff_json.c: the objects of kvc-diff's JSON. Not for when they are printed (diff_print.c) and not
 * for groups of errors (diff_print_groups.c). */
#include "cli/diff/diff.h"

#include <string.h>

void diff_json_fact(struct cli_json *j, const char *where, const char *what, const char *a,
                    const char *b, const char *note) {
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "where", where);
    cli_json_text(j, "what", what);
    cli_json_text(j, "a", a);
    cli_json_text(j, "b", b);
    cli_json_text(j, "note", note);
    cli_json_close(j);
}

/* --- tensors --- */

void diff_json_part(struct cli_json *j, const struct kvc_compared *t) {
    cli_json_text(j, "part", t->part);
    cli_json_u64(j, "stream", t->stream);
    if (strcmp(t->part, "snapshot") == 0) cli_json_u64(j, "snapshot", t->snapshot);
    else cli_json_text(j, "snapshot", NULL);
}

void diff_json_tensor(struct cli_json *j, const struct kvc_compared *t) {
    cli_json_open(j, NULL, '{');
    diff_json_part(j, t);
    cli_json_u64(j, "layer", t->layer);
    cli_json_text(j, "role", t->role);
}

static void measures(struct cli_json *j, const struct kvc_difference *x) {
    cli_json_f64(j, "max_abs", x->max_abs);
    cli_json_f64(j, "rms", x->rms);
    cli_json_f64(j, "frobenius", x->frobenius);
    cli_json_f64(j, "cosine", x->cosine);
}

void diff_json_counts(struct cli_json *j, const struct kvc_difference *x) {
    cli_json_u64(j, "differ", x->differ);
    cli_json_u64(j, "values", x->values);
    cli_json_u64(j, "nonfinite", x->nonfinite);
    measures(j, x);
}

void diff_json_head(struct cli_json *j, uint64_t head, const struct kvc_difference *x) {
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "head", head);
    diff_json_counts(j, x);
    cli_json_close(j);
}

/* --- attention --- */

static void attention_measures(struct cli_json *j, const struct kvc_attention_measures *m) {
    cli_json_u64(j, "queries", m->queries);
    cli_json_f64(j, "logit_rms", m->logit_rms);
    cli_json_f64(j, "kl", m->kl);
    cli_json_f64(j, "output_median", m->output_median);
    cli_json_f64(j, "output_p99", m->output_p99);
}

void diff_json_attention(struct cli_json *j, struct kvc_comparing *c) {
    struct kvc_attention_measures m = {.size = sizeof m};
    const struct kvc_compared *k;
    cli_json_open(j, "attention", '[');
    for (size_t i = 0; kvc_comparing_attended(c, i, 0, &m); i++)
        for (uint64_t h = 0; (k = kvc_comparing_attended(c, i, h, &m)) != NULL; h++) {
            cli_json_open(j, NULL, '{');
            cli_json_text(j, "part", k->part);
            cli_json_u64(j, "stream", k->stream);
            cli_json_u64(j, "layer", k->layer);
            cli_json_u64(j, "head", h);
            attention_measures(j, &m);
            cli_json_close(j);
        }
    cli_json_close(j);
    cli_json_open(j, "attention_total", '{');
    kvc_comparing_attended_all(c, &m);
    attention_measures(j, &m);
    cli_json_close(j);
}

/* --- the summary, and all of it --- */

void diff_json_summary(struct cli_json *j, const struct diff_comparison *d) {
    cli_json_open(j, "summary", '{');
    cli_json_bool(j, "same", !diff_differs(d));
    cli_json_u64(j, "facts", d->facts);
    cli_json_u64(j, "tensors_differ", d->unequal);
    cli_json_u64(j, "tensors", d->compared);
    cli_json_u64(j, "differ", d->total.differ);
    cli_json_u64(j, "values", d->values);
    cli_json_u64(j, "nonfinite", d->total.nonfinite);
    if (d->unequal) measures(j, &d->total);
    cli_json_close(j);
}

static void facts(struct cli_json *j, const struct diff_collected *c) {
    cli_json_open(j, "facts", '[');
    for (size_t i = 0; i < c->n_facts; i++)
        if (c->fact[i].where)
            diff_json_fact(j, c->fact[i].where, c->fact[i].what, c->fact[i].a, c->fact[i].b,
                           c->fact[i].note);
    cli_json_close(j);
}

static void tensors(struct cli_json *j, const struct diff_collected *c, int verbose) {
    cli_json_open(j, "tensors", '[');
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct diff_collected_tensor *t = &c->tensor[i];
        if (!t->all.differ && !verbose) continue;
        diff_json_tensor(j, t->pair);
        cli_json_open(j, "heads", '[');
        for (uint64_t h = 0; h < t->pair->heads; h++)
            if (t->head[h].differ || verbose) diff_json_head(j, h, &t->head[h]);
        cli_json_close(j);
        cli_json_close(j);
    }
    cli_json_close(j);
}

void diff_json_collected(struct diff_comparison *d, const struct kvc_error *why, FILE *out) {
    struct cli_report r = {.lines = 1};
    struct cli_json *j = &r.json;
    cli_report_alone(&r, out);
    cli_json_text(j, "a", d->file[0].source.name);
    cli_json_text(j, "b", d->file[1].source.name);
    if (d->reached >= DIFF_AT_FACTS) facts(j, d->collected);
    if (d->reached >= DIFF_AT_TENSORS) tensors(j, d->collected, d->verbose);
    if (d->reached >= DIFF_AT_END && d->how.attention) diff_json_attention(j, d->steps);
    if (d->reached >= DIFF_AT_END) diff_json_summary(j, d);
    cli_report_alone_end(&r, why);
}
