/* diff_report.c: the HTML report of kvc-diff: its order, the verdict, facts and tables. Not for the
 * data of its pictures (diff_data.c). */
#include "cli/diff/diff.h"

#include "cli/dump/dump.h"
#include "cli/html/page.h"
#include "cli/kld_text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Writes "layer 3 V". */
static void label_of(const struct kvc_compared *pair, char *text, size_t size) {
    kvc_compared_label(pair, pair, text, size);
}

/* --- the verdict --- */

static void say_number(FILE *out, double v) {
    if (isfinite(v)) html_say(out, "%.3g", v);
    else fputs("infinite", out);
}

/* Writes the relative error of each role over the tensors that differ. */
static void say_roles(FILE *out, const struct diff_collected *c) {
    int any = 0;
    for (unsigned role = 0; role < DIFF_ROLES; role++) {
        struct kvc_difference all = {0};
        for (size_t i = 0; i < c->n_tensors; i++)
            if (c->tensor[i].all.differ && strcmp(c->tensor[i].pair->role, dump_roles[role]) == 0)
                kvc_difference_add(&all, &c->tensor[i].all);
        if (all.differ == all.nonfinite) continue;
        html_say(out, "%s %s ", any ? "," : "; relative error", dump_roles[role]);
        say_number(out, all.frobenius);
        any = 1;
    }
    fputs(". ", out);
}

static void say_worst(FILE *out, const struct diff_collected *c) {
    const struct diff_worst worst = diff_collect_worst(c);
    char label[128];
    if (!worst.tensor) return;
    label_of(worst.tensor->pair, label, sizeof label);
    fprintf(out, "<span class=\"worst\">The worst is <a href=\"#t%zu\">",
            (size_t)(worst.tensor - c->tensor));
    const struct kvc_difference *head = &worst.tensor->head[worst.head];
    html_say(out, "%s head %" PRIu64 ": ", label, worst.head);
    if (head->nonfinite)
        html_say(out, "%" PRIu64 " value%s not finite", head->nonfinite, cli_s(head->nonfinite));
    else say_number(out, head->frobenius);
    fputs("</a>.</span> ", out);
}

static void say_attention(FILE *out, struct kvc_comparing *c) {
    char text[160];
    uint64_t head;
    struct kvc_attention_measures all = {.size = sizeof all}, worst = {.size = sizeof worst};
    const struct kvc_compared *k = kvc_comparing_worst(c, &head, &worst);
    if (!k) return;
    kvc_comparing_attended_all(c, &all);
    html_say(out,
             "Attention drifts by %.3g nats (mean KL divergence of %" PRIu64
             " queries), most in layer %" PRIu32 " head %" PRIu64 ": %.3g nats. ",
             all.kl, all.queries, k->layer, head, worst.kl);
    if (!(all.kl > 0)) return;
    html_say(out, "With %.2g nats %s. ", all.kl,
             cli_kld_text(CLI_KLD_ATTENTION, all.kl, text, sizeof text));
    html_say(out, "An error of K counts only where it moves attention, one of V only where "
                  "attention goes: the worst K or V need not be "
                  "the worst attention. ");
}

static void verdict(struct diff_comparison *d, FILE *out, const struct kvc_error *why) {
    const struct diff_collected *c = d->collected;
    const struct kvc_difference *x = &d->total;
    fprintf(out, "<p class=\"verdict%s\">", why ? " bad" : "");
    if (why)
        html_say(out, "The comparison stopped, so this report is not complete: %s. ",
                 kvc_error_message(why));
    if (d->unequal) {
        html_say(out,
                 "A and B differ in %" PRIu64 " of %" PRIu64 " values, in %" PRIu64 " of %" PRIu64
                 " tensor%s",
                 x->differ, d->values, d->unequal, d->compared, cli_s(d->compared));
        say_roles(out, c);
        say_worst(out, c);
        if (x->nonfinite)
            html_say(out, "%" PRIu64 " of the pairs that differ are not finite. ", x->nonfinite);
    } else {
        html_say(out, "All %" PRIu64 " values of %" PRIu64 " tensor%s are the same. ", d->values,
                 d->compared, cli_s(d->compared));
    }
    if (d->facts)
        html_say(out, "%" PRIu64 " other fact%s. ", d->facts,
                 d->facts == 1 ? " differs" : "s differ");
    say_attention(out, d->steps);
    fputs("</p>\n", out);
}

/* --- facts --- */

/* Writes the summaries of both files, as kvc-dump has them. Damage was reported where the values
 * were compared. */
static void files(const struct diff_comparison *d, FILE *out) {
    struct dump_options options = {.part = KVC_NO_NUMBER};
    fputs("<div class=\"sides\">\n", out);
    for (int s = 0; s < 2; s++) {
        struct dump_out o = {.out = out, .style = DUMP_HTML};
        fputs("<div><h3>", out);
        html_say(out, "%s: %.1000s", diff_side[s], d->file[s].source.name);
        fputs("</h3>\n", out);
        dump_summary(&o, &d->file[s], &options, NULL);
        dump_end(&o);
        fputs("</div>\n", out);
    }
    fputs("</div>\n", out);
}

static void facts(const struct diff_collected *c, FILE *out) {
    static const struct html_column columns[] = {{"where", HTML_TEXT},
                                                 {"fact", HTML_TEXT},
                                                 {"A", HTML_TEXT},
                                                 {"B", HTML_TEXT},
                                                 {"note", HTML_TEXT | HTML_WIDE},
                                                 {NULL, 0}};
    size_t n = 0;
    for (size_t i = 0; i < c->n_facts; i++) {
        if (!c->fact[i].where) html_note(out, c->fact[i].what);
        else n++;
    }
    if (!n) return;
    fputs("<h3>Facts that differ</h3>\n", out);
    html_table(out, columns);
    for (size_t i = 0; i < c->n_facts; i++) {
        const struct diff_collected_fact *f = &c->fact[i];
        if (!f->where) continue;
        fputs("<tr>", out);
        html_cell(out, HTML_TEXT, f->where);
        html_cell(out, HTML_TEXT, f->what);
        html_cell(out, HTML_TEXT, f->a && !*f->a ? "yes" : f->a);
        html_cell(out, HTML_TEXT, f->b && !*f->b ? "yes" : f->b);
        html_cell(out, HTML_TEXT | HTML_WIDE, f->note ? f->note : "");
        fputs("</tr>\n", out);
    }
    html_table_end(out);
}

/* --- tables --- */

static uint64_t worst_head(const struct diff_collected_tensor *t) {
    uint64_t worst = 0;
    for (uint64_t h = 1; h < t->pair->heads; h++)
        if (t->head[h].frobenius > t->head[worst].frobenius) worst = h;
    return worst;
}

static void tensors(const struct diff_collected *c, FILE *out) {
    static const struct html_column columns[] = {
        {"tensor", HTML_TEXT},
        {"differ", HTML_NUMBER | HTML_WIDE},
        {"values", HTML_NUMBER | HTML_WIDE},
        {"rel. error", HTML_NUMBER},
        {"max-abs", HTML_NUMBER | HTML_WIDE},
        {"rms", HTML_NUMBER | HTML_WIDE},
        {"cosine", HTML_NUMBER | HTML_WIDE},
        {"worst head", HTML_NUMBER},
        {"its error", HTML_NUMBER},
        {NULL, 0},
    };
    html_section(out, "tensors", "All tensors");
    html_table(out, columns);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct diff_collected_tensor *t = &c->tensor[i];
        const uint64_t head = worst_head(t);
        char text[128];
        label_of(t->pair, text, sizeof text);
        fprintf(out, "<tr id=\"t%zu\">", i);
        html_cell(out, HTML_TEXT, text);
        html_cell_u64(out, HTML_NUMBER | HTML_WIDE, t->all.differ);
        html_cell_u64(out, HTML_NUMBER | HTML_WIDE, t->all.values);
        html_cell_f64(out, HTML_NUMBER, t->all.frobenius);
        html_cell_f64(out, HTML_NUMBER | HTML_WIDE, t->all.max_abs);
        html_cell_f64(out, HTML_NUMBER | HTML_WIDE, t->all.rms);
        snprintf(text, sizeof text, "%.6f", t->all.cosine);
        html_cell(out, HTML_NUMBER | HTML_WIDE, text);
        html_cell_u64(out, HTML_NUMBER, head);
        html_cell_f64(out, HTML_NUMBER, t->head[head].frobenius);
        fputs("</tr>\n", out);
    }
    html_table_end(out);
}

static void attention(struct kvc_comparing *c, FILE *out) {
    static const struct html_column columns[] = {{"layer", HTML_NUMBER},
                                                 {"head", HTML_NUMBER},
                                                 {"queries", HTML_NUMBER | HTML_WIDE},
                                                 {"KL, nats", HTML_NUMBER},
                                                 {"logit rms", HTML_NUMBER},
                                                 {"output median", HTML_NUMBER | HTML_WIDE},
                                                 {"output p99", HTML_NUMBER},
                                                 {NULL, 0}};
    struct kvc_attention_measures m = {.size = sizeof m};
    const struct kvc_compared *k;
    if (!kvc_comparing_attended(c, 0, 0, &m)) return;
    html_section(out, "attention", "Attention by head");
    html_table(out, columns);
    for (size_t i = 0; kvc_comparing_attended(c, i, 0, &m); i++)
        for (uint64_t h = 0; (k = kvc_comparing_attended(c, i, h, &m)) != NULL; h++) {
            fputs("<tr>", out);
            html_cell_u64(out, HTML_NUMBER, k->layer);
            html_cell_u64(out, HTML_NUMBER, h);
            html_cell_u64(out, HTML_NUMBER | HTML_WIDE, m.queries);
            html_cell_f64(out, HTML_NUMBER, m.kl);
            html_cell_f64(out, HTML_NUMBER, m.logit_rms);
            html_cell_f64(out, HTML_NUMBER | HTML_WIDE, m.output_median);
            html_cell_f64(out, HTML_NUMBER, m.output_p99);
            fputs("</tr>\n", out);
        }
    html_table_end(out);
}

/* --- the page --- */

/* Embeds what --json prints. */
static int embed_json(struct diff_comparison *d, FILE *out, const struct kvc_error *why,
                      struct kvc_error *e) {
    struct html_data json;
    if (html_data_begin(&json, e)) return -1;
    diff_json_collected(d, why, json.json.out);
    return html_data_end(&json, 0, out, "kvc-diff", e);
}

static int embed_data(struct diff_comparison *d, FILE *out, struct kvc_error *e) {
    struct html_data data;
    if (html_data_begin(&data, e)) return -1;
    cli_json_open(&data.json, NULL, '{');
    const int status = diff_report_data(d, &data.json, e);
    cli_json_close(&data.json);
    return html_data_end(&data, status, out, "pictures-data", e);
}

static int contents(struct diff_comparison *d, FILE *out, const struct kvc_error *why,
                    struct kvc_error *e) {
    verdict(d, out, why);
    html_pictures(out);
    html_section(out, "files", "The two files");
    files(d, out);
    facts(d->collected, out);
    tensors(d->collected, out);
    attention(d->steps, out);
    if (d->collected->failed) return cli_no_memory(e, "a report");
    if (embed_json(d, out, why, e) || embed_data(d, out, e)) return -1;
    return 0;
}

int diff_report(struct diff_comparison *d, const struct kvc_error *why, struct kvc_error *e) {
    struct html_page p;
    char title[1024];
    snprintf(title, sizeof title, "kvc-diff: %.480s, %.480s", d->file[0].source.name,
             d->file[1].source.name);
    if (html_begin(&p, title, e)) return -1;
    if (contents(d, p.out, why, e)) {
        html_abandon(&p);
        return -1;
    }
    return html_write(&p, d->html, e);
}
