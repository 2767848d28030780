/* text.c: prints text of files safely. Not for JSON's escapes (json.c). */
#include "cli/text.h"

/* Returns 1 if the n bytes after s[0] are continuation bytes; stops at a NUL. */
static int continued(const unsigned char *s, size_t n) {
    for (size_t i = 1; i <= n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    return 1;
}

size_t cli_utf8_length(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2) return 0; /* continuation bytes, and two bytes for a character of one byte */
    if (s[0] < 0xe0) return continued(s, 1) ? 2 : 0;
    if (s[0] < 0xf0) {
        if (!continued(s, 2)) return 0;
        if (s[0] == 0xe0 && s[1] < 0xa0) return 0;  /* too long a form */
        if (s[0] == 0xed && s[1] >= 0xa0) return 0; /* surrogates */
        return 3;
    }
    if (s[0] > 0xf4 || !continued(s, 3)) return 0;
    if (s[0] == 0xf0 && s[1] < 0x90) return 0;  /* too long a form */
    if (s[0] == 0xf4 && s[1] >= 0x90) return 0; /* beyond U+10FFFF */
    return 4;
}

static int is_plain(const unsigned char *s, size_t n) {
    if (n == 1) return s[0] >= 0x20 && s[0] != 0x7f && s[0] != '\\';
    if (n == 2) return !(s[0] == 0xc2 && s[1] < 0xa0);
    /* U+2028 to U+202E, U+2066 to U+2069: new lines, and writing backwards */
    if (n == 3 && s[0] == 0xe2)
        return !(s[1] == 0x80 && s[2] >= 0xa8 && s[2] <= 0xae) &&
               !(s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9);
    return n > 0;
}

size_t cli_print_safe(FILE *out, const char *text) {
    size_t printed = 0;
    while (*text) {
        const unsigned char *s = (const unsigned char *)text;
        size_t n = cli_utf8_length(text);
        if (is_plain(s, n)) {
            fwrite(text, 1, n, out);
            printed += n;
            text += n;
        } else {
            fprintf(out, "\\x%02x", s[0]);
            printed += 4;
            text++;
        }
    }
    return printed;
}
