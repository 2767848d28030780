/* sized.c: required arguments, and public structs whose first field is their size. */
#include "formats/api/sized.h"

#include <inttypes.h>
#include <string.h>

int kvc_null_argument(struct kvc_error *e, const char *function, const char *names,
                      const void *const *argument, size_t n) {
    for (size_t i = 0; i < n; i++) {
        names += strspn(names, ", ");
        const size_t length = strcspn(names, ",");
        if (!argument[i])
            return kvc_fail(e, KVC_ERR_USAGE, "%s(): %.*s is NULL", function, (int)length, names);
        names += length;
    }
    return 0;
}

int kvc_short_argument(struct kvc_error *e, const char *function, const char *name, size_t size,
                       uint64_t n, uint64_t each) {
    if (!each || n <= size / each) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "%s(): %s has %zu bytes, and %" PRIu64 " * %" PRIu64 " are needed", function,
                    name, size, n, each);
}

int kvc_null_function(struct kvc_error *e, const char *function, const char *name) {
    return kvc_fail(e, KVC_ERR_USAGE, "%s(): %s is NULL", function, name);
}

static int unset(size_t size, const char *name, struct kvc_error *e) {
    if (size >= sizeof size) return 0;
    return kvc_fail(e, KVC_ERR_USAGE,
                    "the field size of struct %s is not set: it must be sizeof(struct %s)", name,
                    name);
}

/* Copies `given` bytes, of which those beyond `size` must be 0. */
static int take_fields(void *own, size_t size, const void *callers, size_t given, const char *name,
                       struct kvc_error *e) {
    memset(own, 0, size);
    for (size_t i = size; i < given; i++)
        if (((const char *)callers)[i])
            return kvc_fail(e, KVC_ERR_UNSUPPORTED,
                            "struct %s: the option at byte %zu is not supported by this version of "
                            "the library",
                            name, i);
    memcpy(own, callers, given < size ? given : size);
    return 0;
}

int kvc_sized_take(void *own, size_t size, const void *callers, const char *name,
                   struct kvc_error *e) {
    size_t given;
    memset(own, 0, size);
    if (callers) {
        memcpy(&given, callers, sizeof given);
        if (unset(given, name, e) || take_fields(own, size, callers, given, name, e)) return -1;
    }
    memcpy(own, &size, sizeof size);
    return 0;
}

int kvc_sized_take_at(void *own, size_t size, const void *callers, size_t stride, size_t i,
                      const char *name, struct kvc_error *e) {
    return take_fields(own, size, (const char *)callers + i * stride, stride, name, e);
}

int kvc_sized_give(void *callers, const void *own, size_t size, const char *name,
                   struct kvc_error *e) {
    size_t room;
    if (!callers) return kvc_fail(e, KVC_ERR_USAGE, "there is no struct %s for the results", name);
    memcpy(&room, callers, sizeof room);
    if (unset(room, name, e)) return -1;
    memset((char *)callers + sizeof room, 0, room - sizeof room);
    memcpy((char *)callers + sizeof room, (const char *)own + sizeof room,
           (room < size ? room : size) - sizeof room);
    return 0;
}

int kvc_sized_check(const void *callers, const char *name, struct kvc_error *e) {
    size_t room;
    if (!callers) return 0;
    memcpy(&room, callers, sizeof room);
    return unset(room, name, e);
}

void *kvc_sized_at(void *callers, size_t i) {
    size_t room;
    memcpy(&room, callers, sizeof room);
    return (char *)callers + i * room;
}

int kvc_sized_give_at(void *callers, size_t i, const void *own, size_t size, const char *name,
                      struct kvc_error *e) {
    size_t room;
    if (!callers) return kvc_sized_give(NULL, own, size, name, e);
    void *at = kvc_sized_at(callers, i);
    memcpy(&room, callers, sizeof room);
    if (i) memcpy(at, &room, sizeof room); /* the first is read by other threads */
    return kvc_sized_give(at, own, size, name, e);
}

void kvc_sized_clear(void *callers) {
    size_t room;
    memcpy(&room, callers, sizeof room);
    if (room > sizeof room) memset((char *)callers + sizeof room, 0, room - sizeof room);
}
