/* error.h: how every layer reports errors. Not for printing them, which the tools do.
 *
 * A function that can fail returns 0 or -1 and, on -1, has filled the struct kvc_error of its
 * caller. */
#ifndef KVC_ERROR_H
#define KVC_ERROR_H

#include <stdint.h>

/* Stable numbers: they are part of the public interface (formats/api/kvc.h). */
enum kvc_code {
    KVC_OK = 0,
    KVC_ERR_USAGE = 10,   /* the request makes no sense */
    KVC_ERR_MEMORY = 20,  /* out of memory */
    KVC_ERR_IO = 21,      /* the system refused to read or write */
    KVC_ERR_UNKNOWN = 30, /* the input is no cache that kvc knows */
    /* the input breaks its own format: truncated, flipped, inconsistent */
    KVC_ERR_DAMAGED = 31,
    KVC_ERR_UNSUPPORTED = 32, /* valid, but this kvc cannot do it */
    /* a part of the cache is asked for that it does not have by itself: only the whole can be had
     */
    KVC_ERR_SLICE = 33,
    KVC_ERR_MODEL = 40, /* the cache belongs to another model */
    KVC_ERR_VERIFY = 50 /* encoded bytes do not decode to the same values */
};

/* How much of the caller's work is lost. */
enum kvc_severity {
    KVC_SEVERITY_RETRY, /* the same call may succeed later (memory, disk space) */
    KVC_SEVERITY_ITEM,  /* this record, tensor or option failed; the rest of the file is usable */
    KVC_SEVERITY_FILE   /* the rest of the file is unusable */
};

/* What the caller has to say, or to give, for the call to succeed: messages do not name the options
 * of a tool. Stable numbers, as those of enum kvc_code. */
enum kvc_need {
    KVC_NEED_NOTHING = 0,
    KVC_NEED_HEADS = 1,           /* the number of KV heads */
    KVC_NEED_PAIRING = 2,         /* the RoPE pairing of K */
    KVC_NEED_MODEL = 3,           /* the model's weights file, for its facts */
    KVC_NEED_WEIGHTS = 4,         /* the model's weights, for their values */
    KVC_NEED_PROFILE = 5,         /* the profile that a file was packed with */
    KVC_NEED_QUERIES = 6,         /* queries of the model's attention */
    KVC_NEED_FORMAT = 7,          /* a format to write other than the source's own */
    KVC_NEED_INPUT = 8,           /* the format of the input, which is never guessed */
    KVC_NEED_NAMES = 9,           /* which arrays are K and V (the option `map` of formats) */
    KVC_NEED_TARGET_PAIRING = 10, /* the RoPE pairing that the target keeps */
    KVC_NEED_STEP = 11,           /* a quantisation step, or a target to find it by */
    KVC_NEED_FLOATS = 12,         /* K and V that are not of block types */
    /* to do it all the same, though numbers say that a profile does not fit */
    KVC_NEED_CONSENT = 13,
    KVC_NEED_LOSSY = 14, /* to write a file that does not hold all of the cache */
    /* to give the file as the model's weights: it was given as something else */
    KVC_NEED_AS_MODEL = 15,
    KVC_NEED_AS_PROFILE = 16, /* the same, as the profile */
    KVC_NEED_AS_INPUT = 17,   /* the same, as the cache to be read */
    KVC_NEED_SALVAGE = 18,    /* to read what is whole of a file that was cut short */
    KVC_NEED_EACH = 19,       /* to take the files of a folder one by one */
    KVC_NEED_MEMORY = 20,     /* to allow more memory for decoding */
    KVC_NEED_SCALES = 21,     /* the scales of values of 8 bits (scale.k, scale.v) */
    /* the file beside which this one is kept, which is no cache itself */
    KVC_NEED_MAIN_FILE = 22
};

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
