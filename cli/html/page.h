/* page.h: the frame of HTML reports: one page without any other file, escaping, tables, and writing it. Not for pictures (svg.h)
 * or for what a report says (diff_report.c, dump_report.c). */
#ifndef KVC_HTML_PAGE_H
#define KVC_HTML_PAGE_H

#include "cli/cli.h"

/* A page is written into memory, and to its place when it is complete. */
struct html_page {
    FILE *out; /* of the caller's HTML */
    char *text;
    size_t size;
};

/* Lines of the style sheet and of the script that sorts tables; each ends with NULL. */
extern const char *const html_style[], *const html_script[];

/* Checks that a page may be written to `path` ("-": standard output): a file that exists must be an HTML page, so that a mistyped
 * command replaces no cache. Returns -1 and *e where not. */
int html_may_write(const char *path, struct kvc_error *e);

/* Begins a page of a title, which is also its first heading. */
int html_begin(struct html_page *p, const char *title, struct kvc_error *e);
/* Ends the page, and writes it to `path`. The page is freed on failure too. */
int html_write(struct html_page *p, const char *path, struct kvc_error *e);
/* Frees a page that is not written. */
void html_abandon(struct html_page *p);

/* Writes text of a file or of a user, also between the quotes of an attribute. &, <, >, " and ' are escaped; characters that HTML
 * does not allow or that a reader cannot see become \xNN, as cli_print_safe() prints them. */
void html_text(FILE *out, const char *text);
/* Formats and writes text, of up to 4095 bytes, as html_text() does. */
void html_say(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Embeds JSON, which is escaped so that nothing in it ends the script. */
void html_json(FILE *out, const char *id, const char *json);

/* Writes a heading of a section, with an anchor. */
void html_section(FILE *out, const char *id, const char *title);
/* Writes a note: dim text. */
void html_note(FILE *out, const char *text);

/* Tables. A column is of numbers or of text; narrow screens leave out a column that is `wide`. */
enum html_column_kind { HTML_TEXT = 0, HTML_NUMBER = 1, HTML_WIDE = 2 };
struct html_column {
    const char *name; /* the last column has NULL */
    unsigned kind;
};
void html_table(FILE *out, const struct html_column *columns); /* sortable */
void html_table_end(FILE *out);
/* Write a cell of a column; text NULL: "-". */
void html_cell(FILE *out, unsigned kind, const char *text);
void html_cell_u64(FILE *out, unsigned kind, uint64_t v);
void html_cell_f64(FILE *out, unsigned kind, double v); /* 4 digits */
/* Begin and end a list of facts; a fact without text is left out. */
void html_facts(FILE *out);
void html_fact(FILE *out, const char *name, const char *text);
void html_facts_end(FILE *out);

#endif
