/* diff_print.c: prints differences as text, JSON or TSV. Not for finding them. */
#include "cli/diff/diff.h"
#include "cli/text.h"

#include <inttypes.h>

const char *const diff_side[2] = {"A", "B"};

int diff_differs(const struct diff_comparison *d) {
    return d->facts || d->unequal;
}

int diff_may_end(const struct diff_comparison *d) {
    return d->quiet && !d->collected && diff_differs(d);
}

/* --- facts --- */

static void print_fact(const char *where, const char *what, const char *a, const char *b, const char *note) {
    printf("%s%s", where, *where ? " " : "");
    cli_print_safe(stdout, what);
    fputs(": ", stdout);
    for (int s = 0; s < 2; s++) {
        const char *value = s ? b : a;
        if (!value) continue;
        cli_print_safe(stdout, value);
        printf("%s%sin %s%s", *value ? " " : "", a && b ? "" : "only ", diff_side[s], !s && b ? ", " : "");
    }
    if (note) printf(" (%s)", note);
    putchar('\n');
}

static void json_fact(struct cli_json *j, const char *where, const char *what, const char *a, const char *b, const char *note) {
    cli_json_open(j, NULL, '{');
    cli_json_text(j, "where", where);
    cli_json_text(j, "what", what);
    cli_json_text(j, "a", a);
    cli_json_text(j, "b", b);
    cli_json_text(j, "note", note);
    cli_json_close(j);
}

static void tsv_fact(const char *where, const char *what, const char *a, const char *b, const char *note) {
    const char *const column[] = {where, what, a, b, note};
    fputs("fact", stdout);
    for (size_t i = 0; i < sizeof column / sizeof column[0]; i++) {
        putchar('\t');
        cli_print_safe(stdout, column[i] ? column[i] : "-");
    }
    putchar('\n');
}

void diff_fact(struct diff_comparison *d, const char *where, const char *what, const char *a, const char *b, const char *note) {
    d->facts++;
    if (d->collected) diff_collect_fact(d->collected, where, what, a, b, note);
    if (d->quiet) return;
    if (d->style == DIFF_JSON) json_fact(&d->report.json, where, what, a, b, note);
    else if (d->style == DIFF_TSV) {
        diff_tsv_heading(d, DIFF_HEADED_FACT, "#fact\twhere\twhat\ta\tb\tnote");
        tsv_fact(where, what, a, b, note);
    } else print_fact(where, what, a, b, note);
}

void diff_fact_u64(struct diff_comparison *d, const char *where, const char *what, uint64_t a, uint64_t b) {
    char text[2][24];
    snprintf(text[0], sizeof text[0], "%" PRIu64, a);
    snprintf(text[1], sizeof text[1], "%" PRIu64, b);
    diff_fact(d, where, what, text[0], text[1], NULL);
}

void diff_fact_presence(struct diff_comparison *d, const char *where, const char *what, int in_a, int in_b) {
    diff_fact(d, where, what, in_a ? "" : NULL, in_b ? "" : NULL, NULL);
}

/* --- values --- */

void diff_tsv_part(const struct kvc_tensor_pair *t) {
    const struct kvc_part *part = diff_part_of(t->parts);
    char checkpoint[16] = "-";
    if (part->kind == KVC_PART_CHECKPOINT) snprintf(checkpoint, sizeof checkpoint, "%" PRIu32, part->checkpoint);
    printf("%s\t%" PRIu32 "\t%s", kvc_part_kind_name(part->kind), part->stream, checkpoint);
}

/* Prints the columns of a TSV row that name the tensor. */
static void tsv_tensor(const struct kvc_tensor_pair *t, const char *type) {
    printf("%s\t", type);
    diff_tsv_part(t);
    printf("\t%" PRIu32 "\t%s\t", t->layer, kvc_role_name(t->role));
}

void diff_json_part(struct cli_json *j, const struct kvc_tensor_pair *t) {
    const struct kvc_part *part = diff_part_of(t->parts);
    cli_json_text(j, "part", kvc_part_kind_name(part->kind));
    cli_json_u64(j, "stream", part->stream);
    if (part->kind == KVC_PART_CHECKPOINT) cli_json_u64(j, "checkpoint", part->checkpoint);
    else cli_json_text(j, "checkpoint", NULL);
}

/* Opens the object of d->now, unless a reported value has opened it. */
static void json_tensor(struct diff_comparison *d) {
    if (d->opened) return;
    struct cli_json *j = &d->report.json;
    cli_json_open(j, NULL, '{');
    diff_json_part(j, d->now);
    cli_json_u64(j, "layer", d->now->layer);
    cli_json_text(j, "role", kvc_role_name(d->now->role));
    if (d->compare.report) cli_json_open(j, "values", '[');
    d->opened = 1;
}

static void json_value(struct diff_comparison *d, int64_t position, uint64_t head, uint64_t channel, double a, double b) {
    json_tensor(d);
    cli_json_open(&d->report.json, NULL, '{');
    cli_json_i64(&d->report.json, "position", position);
    cli_json_u64(&d->report.json, "head", head);
    cli_json_u64(&d->report.json, "channel", channel);
    cli_json_f64(&d->report.json, "a", a);
    cli_json_f64(&d->report.json, "b", b);
    cli_json_close(&d->report.json);
}

int diff_report_value(void *state, int64_t position, uint64_t head, uint64_t channel, double a, double b) {
    struct diff_comparison *d = state;
    char text[2][32], label[128];
    if (d->quiet || !d->count) return 1;
    d->count--;
    if (d->style == DIFF_JSON) {
        json_value(d, position, head, channel, a, b);
        return 0;
    }
    cli_float_text((float)a, text[0]);
    cli_float_text((float)b, text[1]);
    if (d->style == DIFF_TSV) {
        diff_tsv_heading(d, DIFF_HEADED_VALUE, "#value\tpart\tstream\tcheckpoint\tlayer\trole\tposition\thead\tchannel\ta\tb");
        tsv_tensor(d->now, "value");
        printf("%" PRId64 "\t%" PRIu64 "\t%" PRIu64 "\t%s\t%s\n", position, head, channel, text[0], text[1]);
    } else {
        diff_layers_label(d->now, d->now, label, sizeof label);
        printf("%s position %" PRId64 " head %" PRIu64 " channel %" PRIu64 ": %s in A, %s in B\n", label, position, head, channel,
               text[0], text[1]);
    }
    return 0;
}

static void json_measures(struct cli_json *j, const struct kvc_difference *x) {
    cli_json_f64(j, "max_abs", x->max_abs);
    cli_json_f64(j, "rms", x->rms);
    cli_json_f64(j, "frobenius", x->frobenius);
    cli_json_f64(j, "cosine", x->cosine);
}

static void tsv_measures(const struct kvc_difference *x) {
    const double v[] = {x->max_abs, x->rms, x->frobenius, x->cosine};
    char text[32];
    for (size_t i = 0; i < sizeof v / sizeof v[0]; i++) {
        cli_double_text(v[i], text);
        printf("\t%s", text);
    }
}

void diff_json_counts(struct cli_json *j, const struct kvc_difference *x) {
    cli_json_u64(j, "differ", x->differ);
    cli_json_u64(j, "values", x->values);
    cli_json_u64(j, "nonfinite", x->nonfinite);
    json_measures(j, x);
}

void diff_tsv_counts(const struct kvc_difference *x) {
    printf("%" PRIu64 "\t%" PRIu64 "\t%" PRIu64, x->differ, x->values, x->nonfinite);
    tsv_measures(x);
}

static void json_head(struct cli_json *j, uint64_t head, const struct kvc_difference *x) {
    cli_json_open(j, NULL, '{');
    cli_json_u64(j, "head", head);
    diff_json_counts(j, x);
    cli_json_close(j);
}

void diff_tsv_head(const struct kvc_tensor_pair *t, uint64_t head, const struct kvc_difference *x) {
    char text[2][32];
    tsv_tensor(t, "head");
    printf("%" PRIu64 "\t", head);
    diff_tsv_counts(x);
    if (x->differ) {
        cli_float_text((float)x->at_a, text[0]);
        cli_float_text((float)x->at_b, text[1]);
        printf("\t%" PRId64 "\t%" PRIu64 "\t%s\t%s\n", x->at_position, x->at_channel, text[0], text[1]);
    } else {
        fputs("\t\t\t\t\n", stdout);
    }
}

static void print_head(struct diff_comparison *d, uint64_t head, const struct kvc_difference *x) {
    char label[128];
    if (!d->headed)
        printf("%-20s %5s %10s %10s %12s %12s %12s %12s\n", "tensor", "head", "differ", "values", "max-abs", "rms", "frobenius",
               "cosine");
    d->headed = 1;
    diff_layers_label(d->now, d->now, label, sizeof label);
    printf("%-20s %5" PRIu64 " %10" PRIu64 " %10" PRIu64 " %12.6g %12.6g %12.6g %12.9f\n", label, head, x->differ, x->values,
           x->max_abs, x->rms, x->frobenius, x->cosine);
}

void diff_print_tensor(struct diff_comparison *d, const struct kvc_difference *head, int unequal) {
    if (d->quiet || d->groups.by || (!unequal && !d->verbose)) return;
    if (d->style == DIFF_JSON) {
        json_tensor(d);
        if (d->compare.report) cli_json_close(&d->report.json);
        cli_json_open(&d->report.json, "heads", '[');
    }
    for (uint64_t h = 0; h < d->now->heads; h++) {
        if (!head[h].differ && !d->verbose) continue;
        if (d->style == DIFF_JSON) json_head(&d->report.json, h, &head[h]);
        else if (d->style == DIFF_TSV) {
            diff_tsv_heading(d, DIFF_HEADED_HEAD, DIFF_TSV_HEAD);
            diff_tsv_head(d->now, h, &head[h]);
        } else print_head(d, h, &head[h]);
    }
    if (d->style == DIFF_JSON) {
        cli_json_close(&d->report.json);
        cli_json_close(&d->report.json);
    }
}

/* --- begin and end --- */

static void json_summary(struct diff_comparison *d) {
    cli_json_open(&d->report.json, "summary", '{');
    cli_json_bool(&d->report.json, "same", !diff_differs(d));
    cli_json_u64(&d->report.json, "facts", d->facts);
    cli_json_u64(&d->report.json, "tensors_differ", d->unequal);
    cli_json_u64(&d->report.json, "tensors", d->compared);
    cli_json_u64(&d->report.json, "differ", d->total.differ);
    cli_json_u64(&d->report.json, "values", d->values);
    cli_json_u64(&d->report.json, "nonfinite", d->total.nonfinite);
    if (d->unequal) json_measures(&d->report.json, &d->total);
    cli_json_close(&d->report.json);
}

static void tsv_summary(const struct diff_comparison *d) {
    puts("#summary\tresult\tfacts\ttensors_differ\ttensors\t" DIFF_TSV_COUNTS);
    printf("summary\t%s\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%" PRIu64,
           diff_differs(d) ? "differ" : "same", d->facts, d->unequal, d->compared, d->total.differ, d->values,
           d->total.nonfinite);
    if (d->unequal) tsv_measures(&d->total);
    else fputs("\t\t\t\t", stdout);
    putchar('\n');
}

static void print_summary(const struct diff_comparison *d) {
    const struct kvc_difference *x = &d->total;
    for (int s = 0; s < 2; s++) {
        cli_print_safe(stdout, d->file[s].input.name);
        putchar(' ');
    }
    printf("%s: %" PRIu64 " of %" PRIu64 " values in %" PRIu64 " of %" PRIu64 " tensors",
           diff_differs(d) ? "differ" : "are the same", x->differ, d->values, d->unequal, d->compared);
    if (d->facts) printf(", %" PRIu64 " other fact%s", d->facts, d->facts == 1 ? "" : "s");
    if (d->unequal) printf("; max-abs %.6g, rms %.6g, frobenius %.6g, cosine %.9f", x->max_abs, x->rms, x->frobenius, x->cosine);
    putchar('\n');
}

static void json_begin(struct diff_comparison *d, const char *a, const char *b) {
    cli_report_alone(&d->report, stdout);
    cli_json_text(&d->report.json, "a", a);
    cli_json_text(&d->report.json, "b", b);
}

void diff_begin(struct diff_comparison *d) {
    if (d->quiet || d->style != DIFF_JSON) return;
    json_begin(d, d->file[0].input.name, d->file[1].input.name);
    cli_json_open(&d->report.json, "facts", '[');
}

void diff_failed(struct diff_comparison *d, const char *a, const char *b, const struct kvc_error *e) {
    if (d->quiet || d->style != DIFF_JSON) return;
    if (!d->report.json.out) json_begin(d, a, b);
    cli_report_alone_end(&d->report, e);
}

void diff_begin_tensors(struct diff_comparison *d) {
    if (d->quiet || d->style != DIFF_JSON) return;
    cli_json_close(&d->report.json);
    if (d->groups.by) cli_json_text(&d->report.json, "by", kvc_group_name(d->groups.by));
    cli_json_open(&d->report.json, d->groups.by ? "groups" : "tensors", '[');
}

void diff_end(struct diff_comparison *d) {
    if (d->quiet) return;
    if (d->style == DIFF_JSON) {
        cli_json_close(&d->report.json);
        diff_print_attention(d);
        json_summary(d);
        cli_report_alone_end(&d->report, NULL);
        return;
    }
    diff_print_attention(d);
    if (diff_differs(d) || d->verbose) {
        if (d->style == DIFF_TSV) tsv_summary(d);
        else print_summary(d);
    }
    diff_draw_layers(d);
}
