/* svg_map.c: the map of a file as inline SVG. Not for what the segments are (dump_report.c). */
#include "cli/html/svg_map.h"

#include "cli/html/page.h"

#include <string.h>

enum { ROWS = 16, ROW_BYTES = 4096, ROW_HEIGHT = 17, WIDTH = 1000, MAX_SEGMENTS = 3000 };

static size_t join(struct svg_segment *s, size_t n, int groups) {
    size_t to = 0;
    for (size_t i = 0; i < n; i++) {
        struct svg_segment *last = to ? &s[to - 1] : NULL;
        if (last && strcmp(last->color, s[i].color) == 0 && (last->group == s[i].group || !groups) &&
            last->offset + last->size == s[i].offset)
            last->size += s[i].size;
        else s[to++] = s[i];
    }
    return to;
}

size_t svg_map_join(struct svg_segment *s, size_t n) {
    n = join(s, n, 1);
    return n > MAX_SEGMENTS ? join(s, n, 0) : n;
}

/* Writes the pieces of a segment, one a row. */
static void segment(FILE *out, const struct svg_segment *s, uint64_t row_bytes) {
    char size[32];
    cli_size_text(s->size, size);
    fputs("<g>", out);
    for (uint64_t at = s->offset, end = s->offset + s->size; at < end;) {
        const uint64_t row = at / row_bytes, next = (row + 1) * row_bytes, stop = end < next ? end : next;
        const double scale = (double)WIDTH / (double)row_bytes;
        fprintf(out, "<rect class=\"%s%s%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\".84\"/>", s->color ? "f" : "lost",
                s->color ? s->color : "", s->group & 1 ? " odd" : "", (double)(at - row * row_bytes) * scale, (double)row + 0.08,
                (double)(stop - at) * scale);
        at = stop;
    }
    fputs("<title>", out);
    html_say(out, "%s, %s from byte %llu on", s->title, size, (unsigned long long)s->offset);
    fputs("</title></g>\n", out);
}

void svg_map(FILE *out, const char *label, uint64_t size, const struct svg_segment *s, size_t n) {
    uint64_t rows = size / ROW_BYTES + 1;
    if (rows > ROWS) rows = ROWS;
    const uint64_t row_bytes = size / rows + 1;
    char text[32];
    uint64_t drawn = 0; /* the end of what is drawn */
    fprintf(out, "<div class=\"grid\"><svg class=\"side\" height=\"%d\" aria-hidden=\"true\">", (int)rows * ROW_HEIGHT);
    for (uint64_t row = 0; row < rows; row++) {
        cli_size_text(row * row_bytes, text);
        fprintf(out, "<text x=\"100%%\" y=\"%.1f\" text-anchor=\"end\">%s</text>", ((double)row + 0.5) * ROW_HEIGHT + 4, text);
    }
    fprintf(
        out,
        "</svg>\n<svg class=\"area\" height=\"%d\" viewBox=\"0 0 %d %d\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"",
        (int)rows * ROW_HEIGHT, WIDTH, (int)rows);
    html_text(out, label);
    fputs("\">\n", out);
    /* Of very many segments only those are drawn, a little too wide, that do not lie below the one before. */
    const uint64_t narrow = n > MAX_SEGMENTS ? row_bytes / 200 : 0;
    for (size_t i = 0; i < n; i++) {
        struct svg_segment part = s[i];
        if (part.offset + part.size <= drawn) continue;
        if (part.offset > drawn + narrow)
            segment(out, &(struct svg_segment){.offset = drawn, .size = part.offset - drawn, .title = "unknown"}, row_bytes);
        if (part.size < narrow) part.size = narrow < size - part.offset ? narrow : size - part.offset;
        segment(out, &part, row_bytes);
        drawn = part.offset + part.size;
    }
    fputs("</svg></div>\n", out);
}
