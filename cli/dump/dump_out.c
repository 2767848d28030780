/* dump_out.c: prints tables as text, JSON, TSV or HTML. Not for their contents. */
#include "cli/dump/dump.h"
#include "cli/html/page.h"
#include "cli/text.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { MAX_COLUMNS = 24 }; /* of a table as HTML */
void dump_heading(struct dump_out *o, const char *row, const struct dump_column *columns) {
    const unsigned most = sizeof o->headed / sizeof o->headed[0];
    if (o->style != DUMP_TSV) return;
    for (unsigned i = 0; i < most; i++) {
        if (o->headed[i].row && strcmp(o->headed[i].row, row) != 0) continue;
        if (o->headed[i].column == columns) return;
        o->headed[i].row = row;
        o->headed[i].column = columns;
        break;
    }
    fprintf(o->out, "#%s", row);
    for (unsigned i = 0; columns[i].name; i++) fprintf(o->out, "\t%s", columns[i].name);
    fputc('\n', o->out);
}

void dump_begin(struct dump_out *o, const char *name) {
    static const struct dump_column columns[] = {{"name", 0}, {NULL, 0}};
    if (o->style == DUMP_JSON) {
        cli_report_file(&o->report, name);
    } else if (o->style == DUMP_TSV) {
        dump_heading(o, "file", columns);
        fputs("file\t", o->out);
        cli_print_safe(o->out, name);
        fputc('\n', o->out);
    } else if (o->several && o->style == DUMP_TEXT) {
        if (o->any) fputc('\n', o->out);
        cli_print_safe(o->out, name);
        fputs(":\n", o->out);
    }
    o->begun = o->any = 1;
    o->inner_heading = 0;
}

/* Ends the table of facts of a page. */
static void end_facts(struct dump_out *o) {
    if (o->in_facts) html_facts_end(o->out);
    o->in_facts = 0;
}

static void end(struct dump_out *o, const struct kvc_error *e) {
    if (!o->begun) return;
    /* a damaged file may stop a mode anywhere: the output must stay well-formed */
    while (o->depth) {
        if (o->table[o->depth].in_line) dump_row_end(o);
        dump_table_end(o);
    }
    end_facts(o);
    if (o->style == DUMP_JSON) {
        if (e) cli_json_error(&o->report.json, e);
        cli_report_file_end(&o->report);
    }
    o->begun = 0;
}

void dump_end(struct dump_out *o) {
    end(o, NULL);
}

void dump_failed(struct dump_out *o, const char *name, const struct kvc_error *e) {
    if (!o->begun && o->style == DUMP_JSON) cli_report_failed(&o->report, name, e);
    end(o, e);
}

void dump_group(struct dump_out *o, const char *name) {
    if (o->style == DUMP_JSON) cli_json_open(&o->report.json, name, '{');
    o->group = name;
}

void dump_group_end(struct dump_out *o) {
    if (o->style == DUMP_JSON) cli_json_close(&o->report.json);
    o->group = NULL;
}

/* Prints the name of a fact in text and TSV. */
static void lead(struct dump_out *o, const char *name) {
    static const struct dump_column columns[] = {{"name", 0}, {"value", 0}, {NULL, 0}};
    dump_heading(o, "fact", columns);
    if (o->style == DUMP_TEXT) fprintf(o->out, "%-13s ", name);
    else fprintf(o->out, "fact\t%s%s%s\t", o->group ? o->group : "", o->group ? "." : "", name);
}

static void fact(struct dump_out *o, const char *name, const char *text) {
    if (o->style == DUMP_HTML) {
        if (!o->in_facts) html_facts(o->out);
        o->in_facts = 1;
        html_fact(o->out, name, text);
        return;
    }
    lead(o, name);
    cli_print_safe(o->out, text);
    fputc('\n', o->out);
}

void dump_key_text(struct dump_out *o, const char *name, const char *v) {
    if (o->style == DUMP_JSON) cli_json_text(&o->report.json, name, v);
    else fact(o, name, v ? v : "-");
}

void dump_key_none(struct dump_out *o, const char *name) {
    dump_key_text(o, name, NULL);
}

void dump_key_u64(struct dump_out *o, const char *name, uint64_t v) {
    char text[32];
    snprintf(text, sizeof text, "%" PRIu64, v);
    if (o->style == DUMP_JSON) cli_json_u64(&o->report.json, name, v);
    else fact(o, name, text);
}

void dump_key_f64(struct dump_out *o, const char *name, double v) {
    char text[32];
    cli_double_text(v, text);
    if (o->style == DUMP_JSON) cli_json_f64(&o->report.json, name, v);
    else fact(o, name, text);
}

void dump_key_bool(struct dump_out *o, const char *name, int v) {
    if (o->style == DUMP_JSON) cli_json_bool(&o->report.json, name, v);
    else fact(o, name, v ? "true" : "false");
}

static void print_hex(struct dump_out *o, const uint8_t *v, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) fprintf(o->out, "%02x", v[i]);
}

void dump_key_hex(struct dump_out *o, const char *name, const uint8_t *v, uint64_t n) {
    if (o->style == DUMP_JSON) {
        cli_json_hex(&o->report.json, name, v, (size_t)n);
        return;
    }
    lead(o, name);
    print_hex(o, v, n);
    fputc('\n', o->out);
}

void dump_key_i32s(struct dump_out *o, const char *name, const int32_t *v, uint64_t n) {
    if (o->style == DUMP_JSON) {
        int compact = o->report.json.compact;
        cli_json_open(&o->report.json, name, '[');
        o->report.json.compact = 1;
        for (uint64_t i = 0; i < n; i++) cli_json_i64(&o->report.json, NULL, v[i]);
        cli_json_close(&o->report.json);
        o->report.json.compact = compact;
        return;
    }
    lead(o, name);
    for (uint64_t i = 0; i < n; i++) fprintf(o->out, "%s%" PRId32, i ? " " : "", v[i]);
    fputc('\n', o->out);
}

void dump_line(struct dump_out *o, const char *text) {
    if (o->style == DUMP_HTML) html_note(o->out, text);
    else fprintf(o->out, "%s\n", text);
}

/* Returns the kind of a column of a page. Narrow screens leave out what seldom differs between
 * rows. */
static unsigned html_kind(const struct dump_column *c) {
    static const char *const minor[] = {"roles",   "stream", "ckpt",      "window",
                                        "heads",   "k_dim",  "v_dim",     "k_dtype",
                                        "v_dtype", "cells",  "positions", "pipeline"};
    unsigned kind = c->width < 0 ? HTML_TEXT : HTML_NUMBER;
    for (size_t i = 0; i < sizeof minor / sizeof *minor; i++)
        if (strcmp(c->name, minor[i]) == 0) kind |= HTML_WIDE;
    return kind;
}

static void html_heading(struct dump_out *o, const struct dump_column *c) {
    struct html_column column[MAX_COLUMNS + 1] = {{NULL, 0}};
    for (unsigned i = 0; c[i].name && i < MAX_COLUMNS; i++)
        column[i] = (struct html_column){c[i].name, html_kind(&c[i])};
    end_facts(o);
    html_table(o->out, column);
}

static void end_line(struct dump_out *o, unsigned depth) {
    if (!o->table[depth].in_line) return;
    fputc('\n', o->out);
    o->table[depth].in_line = 0;
}

static void heading(struct dump_out *o, const struct dump_column *c) {
    fprintf(o->out, "%*s", 2 * (int)(o->depth - 1), "");
    for (unsigned i = 0; c[i].name; i++) {
        int last = !c[i + 1].name;
        fprintf(o->out, "%s%*s", i ? " " : "", last && c[i].width < 0 ? 0 : c[i].width, c[i].name);
    }
    fputc('\n', o->out);
}

void dump_table(struct dump_out *o, const char *key, const char *row,
                const struct dump_column *columns) {
    if (o->style == DUMP_JSON) {
        cli_json_open(&o->report.json, key, '[');
    } else {
        end_line(o, o->depth);
        dump_heading(o, row, columns);
    }
    o->depth++;
    o->table[o->depth].column = columns;
    o->table[o->depth].row = row;
    o->table[o->depth].in_line = 0;
    if (o->style == DUMP_HTML) html_heading(o, columns);
    if (o->style == DUMP_TEXT && (o->depth == 1 || !o->inner_heading)) heading(o, columns);
    if (o->depth > 1) o->inner_heading = 1;
}

void dump_table_end(struct dump_out *o) {
    o->depth--;
    if (o->style == DUMP_JSON) cli_json_close(&o->report.json);
    if (o->style == DUMP_HTML) html_table_end(o->out);
}

void dump_row(struct dump_out *o) {
    o->table[o->depth].at = 0;
    o->table[o->depth].in_line = 1;
    if (o->style == DUMP_JSON) {
        if (o->depth == 1) o->report.json.compact = 0;
        cli_json_open(&o->report.json, NULL, '{');
        o->report.json.compact = 1;
    } else if (o->style == DUMP_HTML) {
        fputs("<tr>", o->out);
    } else if (o->style == DUMP_TSV) {
        fputs(o->table[o->depth].row, o->out);
    } else {
        fprintf(o->out, "%*s", 2 * (int)(o->depth - 1), "");
    }
}

void dump_row_end(struct dump_out *o) {
    if (o->style == DUMP_JSON) {
        cli_json_close(&o->report.json);
        o->table[o->depth].in_line = 0;
        if (o->depth == 1) o->report.json.compact = 0;
    } else {
        if (o->style == DUMP_HTML) fputs("</tr>", o->out);
        end_line(o, o->depth);
    }
}

void dump_file_row(struct dump_out *o, const char *name, const char *row,
                   const struct dump_column *columns) {
    if (o->style == DUMP_JSON) {
        dump_begin(o, name);
        o->table[0].column = columns;
        o->table[0].at = 0;
        return;
    }
    if (!o->depth) dump_table(o, NULL, row, columns);
    dump_row(o);
}

void dump_file_row_end(struct dump_out *o, const char *name) {
    if (o->style == DUMP_JSON) return; /* the object has the name already */
    dump_text(o, name);
    dump_row_end(o);
}

static const struct dump_column *next_column(struct dump_out *o) {
    return &o->table[o->depth].column[o->table[o->depth].at++];
}

/* Prints the separator before a cell of a line. */
static void separate(struct dump_out *o, unsigned at) {
    if (o->style == DUMP_TSV) fputc('\t', o->out);
    else if (at) fputc(' ', o->out);
}

/* Prints a cell of text or TSV. */
static void cell(struct dump_out *o, const char *text) {
    unsigned at = o->table[o->depth].at;
    const struct dump_column *c = next_column(o);
    if (o->style == DUMP_HTML) {
        html_cell(o->out, html_kind(c), text);
        return;
    }
    separate(o, at);
    int length = (int)strnlen(text, 1000);
    if (o->style == DUMP_TEXT && length < c->width) fprintf(o->out, "%*s", c->width - length, "");
    size_t n = cli_print_safe(o->out, text);
    if (o->style == DUMP_TEXT && c->width < 0 && c[1].name && n < (size_t)-c->width)
        fprintf(o->out, "%*s", -c->width - (int)n, "");
}

void dump_u64(struct dump_out *o, uint64_t v) {
    char text[32];
    if (o->style == DUMP_JSON) {
        cli_json_u64(&o->report.json, next_column(o)->name, v);
        return;
    }
    snprintf(text, sizeof text, "%" PRIu64, v);
    cell(o, text);
}

void dump_i64(struct dump_out *o, int64_t v) {
    char text[32];
    if (o->style == DUMP_JSON) {
        cli_json_i64(&o->report.json, next_column(o)->name, v);
        return;
    }
    snprintf(text, sizeof text, "%" PRId64, v);
    cell(o, text);
}

void dump_f64(struct dump_out *o, double v) {
    char text[32];
    if (o->style == DUMP_JSON) {
        cli_json_f64(&o->report.json, next_column(o)->name, v);
        return;
    }
    if (o->style == DUMP_TEXT || o->style == DUMP_HTML) snprintf(text, sizeof text, "%.6g", v);
    else cli_double_text(v, text);
    cell(o, text);
}

void dump_text(struct dump_out *o, const char *v) {
    if (o->style == DUMP_JSON) cli_json_text(&o->report.json, next_column(o)->name, v);
    else cell(o, v ? v : "-");
}

void dump_short_text(struct dump_out *o, const char *text, size_t most) {
    char cut[64];
    if (!text || o->style != DUMP_TEXT || strlen(text) <= most) {
        dump_text(o, text);
        return;
    }
    size_t n = 0, next;
    while ((next = cli_utf8_length(text + n)) > 0 && n + next + 3 <= most) n += next;
    snprintf(cut, sizeof cut, "%.*s...", (int)n, text);
    dump_text(o, cut);
}

void dump_bool(struct dump_out *o, int v) {
    if (o->style == DUMP_JSON) cli_json_bool(&o->report.json, next_column(o)->name, v);
    else cell(o, v ? "true" : "false");
}

void dump_color(struct dump_out *o, enum cli_color color) {
    if (o->style == DUMP_TEXT && color != o->color) cli_color(&o->canvas, o->out, color);
    o->color = color;
}

void dump_yes(struct dump_out *o, int v) {
    if (o->style == DUMP_JSON) dump_bool(o, v);
    else cell(o, v ? "yes" : "no");
}

void dump_bytes(struct dump_out *o, uint64_t v) {
    char text[32];
    if (o->style != DUMP_TEXT) {
        dump_u64(o, v);
        return;
    }
    cli_size_text(v, text);
    cell(o, text);
}

void dump_ratio_cell(struct dump_out *o, double v) {
    char text[32];
    if (o->style != DUMP_TEXT) {
        dump_f64(o, v);
        return;
    }
    snprintf(text, sizeof text, "%.3f", v);
    cell(o, text);
}

void dump_hash(struct dump_out *o, uint64_t v) {
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, v);
    dump_text(o, text);
}

void dump_none(struct dump_out *o) {
    dump_text(o, NULL);
}

void dump_hex(struct dump_out *o, const uint8_t *v, uint64_t n) {
    if (o->style == DUMP_JSON) {
        cli_json_hex(&o->report.json, next_column(o)->name, v, (size_t)n);
        return;
    }
    separate(o, o->table[o->depth].at);
    next_column(o);
    print_hex(o, v, n);
}

void dump_floats(struct dump_out *o, const float *v, uint64_t n) {
    unsigned at = o->table[o->depth].at;
    const struct dump_column *c = next_column(o);
    char text[32];
    if (o->style == DUMP_JSON) cli_json_open(&o->report.json, c->name, '[');
    for (uint64_t i = 0; i < n; i++) {
        cli_float_text(v[i], text);
        if (o->style != DUMP_JSON) {
            separate(o, at);
            fputs(text, o->out);
        } else {
            /* cli_json_f64() would print more digits than a float has. */
            if (i) fputs(", ", o->out);
            cli_json_number(o->out, text, isfinite(v[i]));
            o->report.json.first = 0;
        }
    }
    if (o->style == DUMP_JSON) cli_json_close(&o->report.json);
}

void dump_u64s(struct dump_out *o, const uint8_t *v, uint64_t n) {
    unsigned at = o->table[o->depth].at;
    const struct dump_column *c = next_column(o);
    if (o->style == DUMP_JSON) cli_json_open(&o->report.json, c->name, '[');
    for (uint64_t i = 0; i < n; i++) {
        uint64_t number = 0;
        for (unsigned b = 8; b-- > 0;) number = number << 8 | v[8 * i + b];
        if (o->style == DUMP_JSON) {
            cli_json_u64(&o->report.json, NULL, number);
        } else {
            separate(o, at);
            fprintf(o->out, "%" PRIu64, number);
        }
    }
    if (o->style == DUMP_JSON) cli_json_close(&o->report.json);
}
