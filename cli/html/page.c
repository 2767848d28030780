/* page.c: the frame of HTML reports: head, escaping, tables, and writing the page. Not for pictures (svg.c). */
#include "cli/html/page.h"

#include "cli/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define DOCTYPE "<!doctype html>"

int html_may_write(const char *path, struct kvc_error *e) {
    char head[sizeof DOCTYPE] = "";
    if (strcmp(path, "-") == 0 || !cli_output_exists(path)) return 0;
    FILE *in = fopen(path, "re");
    const size_t n = in ? fread(head, 1, sizeof head - 1, in) : 0;
    if (in) fclose(in);
    if (n == sizeof head - 1 && strcasecmp(head, DOCTYPE) == 0) return 0;
    return kvc_fail(e, KVC_ERR_USAGE, "%s exists already and is no HTML page: --html replaces only pages", path);
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

void html_text(FILE *out, const char *text) {
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

void html_json(FILE *out, const char *id, const char *json) {
    fprintf(out, "<script type=\"application/json\" id=\"%s\">\n", id);
    for (; *json; json++) { /* outside of its strings JSON has none of these characters */
        if (*json == '<' || *json == '>' || *json == '&') fprintf(out, "\\u%04x", (unsigned)*json);
        else fputc(*json, out);
    }
    fputs("</script>\n", out);
}

static void lines(FILE *out, const char *const *line) {
    for (; *line; line++) fprintf(out, "%s\n", *line);
}

int html_begin(struct html_page *p, const char *title, struct kvc_error *e) {
    *p = (struct html_page){.out = NULL};
    p->out = open_memstream(&p->text, &p->size);
    if (!p->out) return kvc_fail_memory(e, "a page");
    fputs(DOCTYPE "\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>", p->out);
    html_text(p->out, title);
    fprintf(p->out,
            "</title>\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
            "script-src 'unsafe-inline'\">\n<meta name=\"generator\" content=\"%s %s\">\n<style>\n",
            cli_tool(), KVC_VERSION);
    lines(p->out, html_style);
    fputs("</style>\n</head>\n<body>\n<h1>", p->out);
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
    if (html_may_write(path, e) || cli_output_open(&o, strcmp(path, "-") == 0 ? NULL : path, 1, 0666, e)) return -1;
    if (kvc_sink_write(&o.sink, text, size, e) == 0 && cli_output_commit(&o, e) == 0) return 0;
    cli_output_abandon(&o);
    return -1;
}

int html_write(struct html_page *p, const char *path, struct kvc_error *e) {
    fputs("<script>\n", p->out);
    lines(p->out, html_script);
    fputs("</script>\n</body>\n</html>\n", p->out);
    int status = ferror(p->out) ? -1 : 0;
    if (fclose(p->out) || status) status = kvc_fail_memory(e, "a page");
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

static const char *class_of(unsigned kind) {
    static const char *const classes[] = {"", " class=\"n\"", " class=\"x\"", " class=\"n x\""};
    return classes[kind & 3];
}

void html_table(FILE *out, const struct html_column *columns) {
    fputs("<div class=\"scroll\"><table class=\"sort\">\n<thead><tr>", out);
    for (; columns->name; columns++) fprintf(out, "<th%s>%s</th>", class_of(columns->kind), columns->name);
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
