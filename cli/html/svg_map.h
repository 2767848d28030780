/* svg_map.h: the map of a file as inline SVG: segments of bytes to scale, in rows. Not for other pictures (svg.h). */
#ifndef KVC_HTML_SVG_MAP_H
#define KVC_HTML_SVG_MAP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct svg_segment {
    uint64_t offset, size; /* bytes */
    const char *color;     /* a letter of the style sheet; NULL: bytes that cannot be read */
    uint32_t group;        /* neighbours of one color and group are one segment; groups alternate between two shades */
    char title[128];
};

/* Joins neighbours of one color and group, and if there are then more than a page can show, also those of one color. The title of
 * a joined segment is that of its first. Returns the number of segments that are left. */
size_t svg_map_join(struct svg_segment *s, size_t n);
/* Writes the map of a file of `size` bytes from segments in ascending order. */
void svg_map(FILE *out, const char *label, uint64_t size, const struct svg_segment *s, size_t n);

#endif
