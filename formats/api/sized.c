/* sized.c: public structs whose first field is their size. */
#include "formats/api/sized.h"

#include <string.h>

static int unset(size_t size, const char *name, struct kvc_error *e) {
    if (size >= sizeof size) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "the field size of struct %s is not set: it must be sizeof(struct %s)", name,
                    name);
}

int kvc_sized_take(void *own, size_t size, const void *callers, const char *name,
                   struct kvc_error *e) {
    size_t given;
    memset(own, 0, size);
    if (callers) {
        memcpy(&given, callers, sizeof given);
        if (unset(given, name, e)) return -1;
        for (size_t i = size; i < given; i++)
            if (((const char *)callers)[i])
                return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                                "struct %s: the option at byte %zu is not supported by this "
                                "version of the library",
                                name, i);
        memcpy(own, callers, given < size ? given : size);
    }
    memcpy(own, &size, sizeof size);
    return 0;
}

int kvc_sized_give(void *callers, const void *own, size_t size, const char *name,
                   struct kvc_error *e) {
    size_t room;
    memcpy(&room, callers, sizeof room);
    if (unset(room, name, e)) return -1;
    memset((char *)callers + sizeof room, 0, room - sizeof room);
    memcpy((char *)callers + sizeof room, (const char *)own + sizeof room,
           (room < size ? room : size) - sizeof room);
    return 0;
}
