/* page.c: the frame of HTML reports: escaping, tables, JSON, and writing the page. Not for
 * pictures: the script of share/page.html draws them. */
#include "cli/html/page.h"

#include "cli/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DOCTYPE "<!doctype html>"
enum { MAX_COLUMNS = 256 }; /* of a matrix */

int html_may_write(const char *path, struct kvc_error *e) {
    char head[sizeof DOCTYPE] = "";
    if (strcmp(path, "-") == 0 || !cli_output_exists(path)) return 0;
    FILE *in = fopen(path, "re");
    const size_t n = in ? fread(head, 1, sizeof head - 1, in) : 0;
    if (in) fclose(in);
    if (n == sizeof head - 1 && strcasecmp(head, DOCTYPE) == 0) return 0;
    return cli_usage_error(e, "%s exists already and is no HTML page: --html replaces only pages",
                           path);
}

/* Returns how HTML writes a character of its syntax, or NULL. */
static const char *entity(char c) {
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '"': return "&quot;";
    case '\'': return "&#39;";
    default: return NULL;
    }
}

/* Writes text as html_say() does. */
static void html_text(FILE *out, const char *text) {
    while (*text) {
        char character[5] = "";
        const size_t length = cli_utf8_length(text), n = length ? length : 1;
        memcpy(character, text, n);
        text += n;
        if (entity(*character)) fputs(entity(*character), out);
        else cli_print_safe(out, character);
    }
}

void html_say(FILE *out, const char *format, ...) {
    char text[4096];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    html_text(out, text);
}

/* Writes the template up to a line that is only a mark; NULL: to its end. */
static void until(struct html_page *p, const char *mark) {
    for (; *p->rest && (!mark || strcmp(*p->rest, mark) != 0); p->rest++)
        fprintf(p->out, "%s\n", *p->rest);
    if (*p->rest) p->rest++;
}

int html_begin(struct html_page *p, const char *title, struct kvc_error *e) {
    *p = (struct html_page){.rest = html_template};
    p->out = open_memstream(&p->text, &p->size);
    if (!p->out) return cli_no_memory(e, "a page");
    until(p, "@title@");
    fputs("<title>", p->out);
    html_text(p->out, title);
    fprintf(p->out, "</title>\n<meta name=\"generator\" content=\"%s %s\">\n", cli_tool(),
            KVC_VERSION);
    until(p, "@body@");
    fputs("<h1>", p->out);
    html_text(p->out, title);
    fputs("</h1>\n", p->out);
    return 0;
}

void html_abandon(struct html_page *p) {
    if (p->out) fclose(p->out);
    free(p->text);
    *p = (struct html_page){.out = NULL};
}

static int write_text(const char *path, const char *text, size_t size, struct kvc_error *e) {
    struct cli_output o;
    if (html_may_write(path, e) ||
        cli_output_open(&o, strcmp(path, "-") == 0 ? NULL : path, 1, 0666, e))
        return -1;
    return cli_output_end(&o, cli_output_write(&o, text, size), e);
}

int html_write(struct html_page *p, const char *path, struct kvc_error *e) {
    until(p, NULL);
    int status = ferror(p->out) ? -1 : 0;
    if (fclose(p->out) || status) status = cli_no_memory(e, "a page");
    p->out = NULL;
    if (!status) status = write_text(path, p->text, p->size, e);
    html_abandon(p);
    return status;
}

void html_section(FILE *out, const char *id, const char *title) {
    fprintf(out, "<h2 id=\"%s\">%s</h2>\n", id, title);
}

void html_note(FILE *out, const char *text) {
    fputs("<p class=\"note\">", out);
    html_text(out, text);
    fputs("</p>\n", out);
}

void html_pictures(FILE *out) {
    fputs("<div id=\"pictures\"><noscript><p class=\"note\">The script of this page, which draws "
          "pictures, is blocked; the tables "
          "need none.</p></noscript></div>\n",
          out);
}

/* --- data --- */

int html_data_begin(struct html_data *d, struct kvc_error *e) {
    *d = (struct html_data){.text = NULL};
    FILE *out = open_memstream(&d->text, &d->size);
    if (!out) return cli_no_memory(e, "the data of a page");
    cli_json_start(&d->json, out);
    d->json.lines = 1;
    return 0;
}

/* Writes JSON, which has the characters of HTML's syntax in its strings alone. */
static void embed(FILE *page, const char *id, const char *json, size_t n) {
    fprintf(page, "<script type=\"application/json\" id=\"%s\">\n", id);
    for (size_t i = 0; i < n; i++) {
        if (json[i] == '<' || json[i] == '>' || json[i] == '&')
            fprintf(page, "\\u%04x", (unsigned)json[i]);
        else fputc(json[i], page);
    }
    fputs("\n</script>\n", page);
}

int html_data_end(struct html_data *d, int status, FILE *page, const char *id,
                  struct kvc_error *e) {
    if (fclose(d->json.out) && !status) status = cli_no_memory(e, "the data of a page");
    if (!status) embed(page, id, d->text, d->size);
    free(d->text);
    return status;
}

void html_number(struct cli_json *j, const char *key, double v) {
    char text[32];
    if (isfinite(v)) {
        snprintf(text, sizeof text, "%.5g", v);
        cli_parse_f64(text, &v);
    }
    cli_json_f64(j, key, v);
}

static double larger(double a, double b) {
    return isnan(a) || isnan(b) ? (double)NAN : fmax(a, b);
}

void html_matrix(struct cli_json *j, const double *value, uint64_t rows, uint64_t columns) {
    const uint64_t join = columns / MAX_COLUMNS + (columns % MAX_COLUMNS != 0);
    cli_json_u64(j, "join", join);
    cli_json_open(j, "rows", '[');
    for (uint64_t y = 0; y < rows; y++) {
        cli_json_open(j, NULL, '[');
        for (uint64_t x = 0; x < columns; x += join) {
            double most = value[y * columns + x];
            for (uint64_t i = x + 1; i < columns && i < x + join; i++)
                most = larger(most, value[y * columns + i]);
            if (most < 0) cli_json_text(j, NULL, NULL);
            else html_number(j, NULL, most);
        }
        cli_json_close(j);
    }
    cli_json_close(j);
}

void html_octaves(struct cli_json *j, const uint64_t count[KVC_OCTAVES]) {
    int first = 0, end = KVC_OCTAVES;
    while (first < end && !count[first]) first++;
    while (end > first && !count[end - 1]) end--;
    cli_json_i64(j, "first", first - KVC_OCTAVE_0);
    cli_json_open(j, "count", '[');
    for (int i = first; i < end; i++) cli_json_u64(j, NULL, count[i]);
    cli_json_close(j);
}

/* --- tables --- */

static const char *class_of(unsigned kind) {
    static const char *const classes[] = {"", " class=\"n\"", " class=\"x\"", " class=\"n x\""};
    return classes[kind & 3];
}

void html_table(FILE *out, const struct html_column *columns) {
    fputs("<div class=\"scroll\"><table class=\"sort\">\n<thead><tr>", out);
    for (; columns->name; columns++)
        fprintf(out, "<th%s>%s</th>", class_of(columns->kind), columns->name);
    fputs("</tr></thead>\n<tbody>\n", out);
}

void html_table_end(FILE *out) {
    fputs("</tbody></table></div>\n", out);
}

void html_cell(FILE *out, unsigned kind, const char *text) {
    fprintf(out, "<td%s>", class_of(kind));
    html_text(out, text ? text : "-");
    fputs("</td>", out);
}

void html_cell_u64(FILE *out, unsigned kind, uint64_t v) {
    fprintf(out, "<td%s>%" PRIu64 "</td>", class_of(kind), v);
}

void html_cell_f64(FILE *out, unsigned kind, double v) {
    char text[32];
    if (isfinite(v)) snprintf(text, sizeof text, "%.4g", v);
    else cli_double_text(v, text);
    html_cell(out, kind, text);
}

void html_facts(FILE *out) {
    fputs("<table class=\"facts\"><tbody>\n", out);
}

void html_fact(FILE *out, const char *name, const char *text) {
    if (!text) return;
    fputs("<tr><th>", out);
    html_text(out, name);
    fputs("</th><td>", out);
    html_text(out, text);
    fputs("</td></tr>\n", out);
}

void html_facts_end(FILE *out) {
    fputs("</tbody></table>\n", out);
}
