/* page.h: the frame of HTML reports: one page without any other file, from the template
 * share/page.html, whose script draws the pictures from JSON in the page. Escaping, tables, JSON,
 * and writing the page. Not for what a report says (diff_report.c, dump_report.c). */
#ifndef KVC_HTML_PAGE_H
#define KVC_HTML_PAGE_H

#include "cli/cli.h"
#include "formats/api/kvc_inspect.h"

/* Lines of the template; the last is followed by NULL. The Makefile makes it from share/page.html.
 */
extern const char *const html_template[];

/* A page is written into memory, and to its place when it is complete. */
struct html_page {
    FILE *out; /* of the caller's HTML */
    char *text;
    size_t size;
    const char *const *rest; /* of the template */
};

/* Checks that a page may be written to `path` ("-": standard output): a file that exists must be an
 * HTML page, so that a mistyped command replaces no cache. Returns -1 and *e where not. */
int html_may_write(const char *path, struct kvc_error *e);

/* Begins a page of a title, which is also its first heading. */
int html_begin(struct html_page *p, const char *title, struct kvc_error *e);
/* Ends the page, and writes it to `path`. The page is freed on failure too. */
int html_write(struct html_page *p, const char *path, struct kvc_error *e);
/* Frees a page that is not written. */
void html_abandon(struct html_page *p);

/* Formats and writes text of a file or of a user, of up to 4095 bytes, also between the quotes of
 * an attribute. &, <, >, " and ' are escaped; characters that HTML does not allow or that a reader
 * cannot see become \xNN, as cli_print_safe() prints them. */
void html_say(FILE *out, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Writes the place of the pictures, which the script fills. */
void html_pictures(FILE *out);
/* Writes a heading of a section, with an anchor. */
void html_section(FILE *out, const char *id, const char *title);
/* Writes a note: dim text. */
void html_note(FILE *out, const char *text);

/* JSON that the page embeds: it is written into memory, and its <, > and & are escaped when it is
 * added to the page, so that nothing in it ends the script. */
struct html_data {
    struct cli_json json; /* on one line; a report of its own writes to json.out */
    char *text;
    size_t size;
};
int html_data_begin(struct html_data *d, struct kvc_error *e);
/* Frees the data; unless `status` says that it is not complete, adds it to the page as the element
 * script#ID. Returns the status. */
int html_data_end(struct html_data *d, int status, FILE *page, const char *id, struct kvc_error *e);
/* Writes a number of a picture with 5 digits. */
void html_number(struct cli_json *j, const char *key, double v);
/* Writes the keys "join" and "rows" of a matrix of numbers of 0 or more; a number below 0 is
 * absent: null. Beyond 256 columns neighbours are joined, `join` at a time: the largest number is
 * written, NaN before any. */
void html_matrix(struct cli_json *j, const double *value, uint64_t rows, uint64_t columns);
/* Writes the keys "first" and "count" of a histogram: the numbers of values from 2^first on, up to
 * the last that is not 0. */
void html_octaves(struct cli_json *j, const uint64_t count[KVC_OCTAVES]);

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
