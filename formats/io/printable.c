/* printable.c: makes names from files printable, for messages. */
#include "formats/io/printable.h"

#include <string.h>

const char *kvc_name_show(const char *name, char *text, size_t size) {
    size_t n = 0;
    for (; name[n] && n + 1 < size; n++) text[n] = name[n] >= ' ' && name[n] <= '~' ? name[n] : '?';
    text[n] = 0;
    if (name[n] && n >= 3) memcpy(text + n - 3, "...", 3);
    return text;
}
