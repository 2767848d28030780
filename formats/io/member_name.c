/* member_name.c: checks names of members. */
#include "formats/io/member_name.h"

#include <stdint.h>
#include <string.h>

/* Returns the bytes of the UTF-8 character at s, a text that ends with a NUL; 0 where there is no
 * character. */
static size_t utf8_length(const uint8_t *s) {
    const uint8_t c = s[0];
    const size_t n = c < 0x80                ? 1
                     : c >= 0xc2 && c < 0xe0 ? 2
                     : c >= 0xe0 && c < 0xf0 ? 3
                     : c >= 0xf0 && c < 0xf5 ? 4
                                             : 0;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    const int too_long = (c == 0xe0 && s[1] < 0xa0) || (c == 0xf0 && s[1] < 0x90);
    /* a surrogate, above U+10FFFF */
    const int no_character = (c == 0xed && s[1] >= 0xa0) || (c == 0xf4 && s[1] >= 0x90);
    return too_long || no_character ? 0 : n;
}

int kvc_member_name_is_sane(const char *name, size_t n) {
    if (!n || n > KVC_MAX_MEMBER_NAME || strlen(name) != n) return 0;
    for (size_t i = 0, step; i < n; i += step) {
        step = utf8_length((const uint8_t *)name + i);
        if (!step || (uint8_t)name[i] < ' ' || name[i] == 0x7f) return 0;
    }
    for (const char *part = name;; part++) {
        const size_t size = strcspn(part, "/");
        if (!size || (size == 1 && part[0] == '.') ||
            (size == 2 && part[0] == '.' && part[1] == '.'))
            return 0;
        part += size;
        if (!*part) return 1;
    }
}
