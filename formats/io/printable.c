/* printable.c: makes names from files printable, for messages. */
#include "formats/io/printable.h"

#include <stdint.h>
#include <string.h>

size_t kvc_utf8_length(const void *text, size_t n) {
    const uint8_t *s = text;
    const uint8_t c = n ? *s : 0x80;
    const size_t length = c < 0x80                ? 1
                          : c >= 0xc2 && c < 0xe0 ? 2
                          : c >= 0xe0 && c < 0xf0 ? 3
                          : c >= 0xf0 && c < 0xf5 ? 4
                                                  : 0;
    if (length > n) return 0;
    for (size_t i = 1; i < length; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xf0 && s[1] < 0x90)) return 0; /* overlong */
    if ((c == 0xed && s[1] > 0x9f) || (c == 0xf4 && s[1] > 0x8f)) return 0;
    return length;
}

const char *kvc_name_show(const char *name, char *text, size_t size) {
    size_t n = 0;
    for (; name[n] && n + 1 < size; n++) text[n] = name[n] >= ' ' && name[n] <= '~' ? name[n] : '?';
    text[n] = 0;
    if (name[n] && n >= 3) memcpy(text + n - 3, "...", 3);
    return text;
}
