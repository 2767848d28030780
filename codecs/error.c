/* error.c: filling struct kvc_error. */
#include "codecs/error.h"

#include "codecs/number.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static enum kvc_severity severity_of(enum kvc_code code) {
    switch (code) {
    case KVC_ERR_MEMORY:
    case KVC_ERR_IO: return KVC_SEVERITY_RETRY;
    case KVC_ERR_USAGE:
    case KVC_ERR_UNSUPPORTED:
    case KVC_ERR_VERIFY:
    case KVC_ERR_OTHER_MODEL: return KVC_SEVERITY_ITEM;
    default: return KVC_SEVERITY_FILE;
    }
}

__attribute__((format(printf, 4, 0))) static void
fill(struct kvc_error *e, enum kvc_code code, uint64_t offset, const char *format, va_list ap) {
    e->code = code;
    e->severity = severity_of(code);
    e->offset = offset;
    e->record = KVC_NOWHERE;
    e->section = KVC_NOWHERE;
    e->need = KVC_NEED_NOTHING;
    const struct kvc_point point = kvc_point_begin();
    vsnprintf(e->message, sizeof e->message, format, ap);
    kvc_point_end(&point);
}

int(kvc_fail)(struct kvc_error *e, enum kvc_code code, const char *format, ...) {
    if (e) {
        va_list ap;
        va_start(ap, format);
        fill(e, code, KVC_NOWHERE, format, ap);
        va_end(ap);
    }
    return -1;
}

int(kvc_fail_at)(struct kvc_error *e, enum kvc_code code, uint64_t offset, const char *format,
                 ...) {
    if (e) {
        va_list ap;
        va_start(ap, format);
        fill(e, code, offset, format, ap);
        va_end(ap);
        size_t used = strlen(e->message);
        snprintf(e->message + used, sizeof e->message - used, " (at byte %" PRIu64 ")", offset);
    }
    return -1;
}

int(kvc_fail_need)(struct kvc_error *e, enum kvc_code code, enum kvc_need need, const char *format,
                   ...) {
    if (e) {
        va_list ap;
        va_start(ap, format);
        fill(e, code, KVC_NOWHERE, format, ap);
        va_end(ap);
        e->need = need;
    }
    return -1;
}

int(kvc_error_prefix)(struct kvc_error *e, const char *prefix) {
    if (e) {
        char old[sizeof e->message];
        memcpy(old, e->message, sizeof old);
        int n = snprintf(e->message, sizeof e->message, "%s: ", prefix);
        size_t used = n < 0 ? 0 : (size_t)n;
        if (used < sizeof e->message)
            snprintf(e->message + used, sizeof e->message - used, "%s", old);
    }
    return -1;
}

int(kvc_fail_memory)(struct kvc_error *e, const char *what) {
    return kvc_fail(e, KVC_ERR_MEMORY, "out of memory for %s", what);
}
