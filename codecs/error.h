/* error.h: how every layer reports errors. Not for printing them, which the tools do.
 *
 * A function that can fail returns 0 or -1 and, on -1, has filled the struct kvc_error of its
 * caller. */
#ifndef KVC_ERROR_H
#define KVC_ERROR_H

#include "formats/api/kvc_error.h" /* the numbers, which are public */

#include <stdint.h>

#define KVC_NOWHERE UINT64_MAX

struct kvc_error {
    enum kvc_code code;
    enum kvc_severity severity;
    uint64_t offset;    /* byte offset in the input, or KVC_NOWHERE */
    uint64_t record;    /* record number in a .kvc, or KVC_NOWHERE */
    uint64_t section;   /* section number in the record, or KVC_NOWHERE */
    enum kvc_need need; /* what would help */
    char message[1024]; /* plain words: what, where, what to do; no newline */
};

/* Fills *e (when not NULL) and returns -1, so that "return kvc_fail(...)" reads well. */
int kvc_fail(struct kvc_error *e, enum kvc_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The same with a byte offset, which is also appended to the message. */
int kvc_fail_at(struct kvc_error *e, enum kvc_code code, uint64_t offset, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* The same as kvc_fail(), and says what would help. */
int kvc_fail_need(struct kvc_error *e, enum kvc_code code, enum kvc_need need, const char *format,
                  ...) __attribute__((format(printf, 4, 5)));

/* Puts "prefix: " before the message of *e; returns -1. */
int kvc_error_prefix(struct kvc_error *e, const char *prefix);

/* Reports that there is no memory for `what`; returns -1. */
int kvc_fail_memory(struct kvc_error *e, const char *what);

/* Repeats in the caller's file that a failing function returns -1. The compiler then sees that the
 * caller does not use results that the function left unset, and does not warn of them. */
static inline int kvc_failed(int status) {
    (void)status;
    return -1;
}
#define kvc_fail(...) kvc_failed(kvc_fail(__VA_ARGS__))
#define kvc_fail_at(...) kvc_failed(kvc_fail_at(__VA_ARGS__))
#define kvc_fail_need(...) kvc_failed(kvc_fail_need(__VA_ARGS__))
#define kvc_error_prefix(...) kvc_failed(kvc_error_prefix(__VA_ARGS__))
#define kvc_fail_memory(...) kvc_failed(kvc_fail_memory(__VA_ARGS__))

#endif
