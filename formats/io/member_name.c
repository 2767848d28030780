/* member_name.c: checks names of members. */
#include "formats/io/member_name.h"

#include "formats/io/printable.h"

#include <stdint.h>
#include <string.h>

int kvc_member_name_is_sane(const char *name, size_t n) {
    if (!n || n > KVC_MAX_MEMBER_NAME || strlen(name) != n) return 0;
    for (size_t i = 0, step; i < n; i += step) {
        step = kvc_utf8_length(name + i, n - i);
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
