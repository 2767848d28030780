/* kvc_error.h: the numbers of libkvc's errors, which stay the same in all versions. Included by
 * kvc.h, which has the functions. And the mark of what is exported. */
#ifndef KVC_ERROR_NUMBERS_H
#define KVC_ERROR_NUMBERS_H

#define KVC_API __attribute__((visibility("default")))

/* Later versions may give numbers that a program does not know, in all enums. Their last one,
 * KVC_..._FORCE, is never given: it has compilers, also those of C++, keep room for all. */

/* What kind of error it is. */
enum kvc_code {
    KVC_OK = 0,
    KVC_ERR_USAGE = 10,          /* the request makes no sense */
    KVC_ERR_MEMORY = 20,         /* out of memory */
    KVC_ERR_IO = 21,             /* the system refused to read or write */
    KVC_ERR_UNKNOWN_FORMAT = 30, /* the input is no cache that kvc knows */
    /* the input breaks its own format: truncated, flipped, inconsistent */
    KVC_ERR_DAMAGED = 31,
    KVC_ERR_UNSUPPORTED = 32, /* valid, but this kvc cannot do it */
    /* a part of the cache is asked for that it does not have by itself: only the whole can be had
     */
    KVC_ERR_NOT_SLICEABLE = 33,
    KVC_ERR_OTHER_MODEL = 40, /* the cache belongs to another model */
    KVC_ERR_VERIFY = 50,      /* encoded bytes do not decode to the same values */
    KVC_CODE_FORCE = 0x7fffffff
};

/* How much of the caller's work is lost. */
enum kvc_severity {
    KVC_SEVERITY_RETRY = 0, /* the same call may succeed later (memory, disk space) */
    KVC_SEVERITY_ITEM =
        1, /* this record, tensor or option failed; the rest of the file is usable */
    KVC_SEVERITY_FILE = 2, /* the rest of the file is unusable */
    KVC_SEVERITY_FORCE = 0x7fffffff
};

/* What the caller has to say, or to give, for the call to succeed: messages do not name the options
 * of a tool. In brackets: the option of kvc.h. */
enum kvc_need {
    KVC_NEED_NOTHING = 0,
    KVC_NEED_HEADS = 1,           /* the number of KV heads (kv_heads) */
    KVC_NEED_PAIRING = 2,         /* the RoPE pairing of K (pairing) */
    KVC_NEED_MODEL = 3,           /* the model's weights file, for its facts (model) */
    KVC_NEED_WEIGHTS = 4,         /* the model's weights, for their values (weights) */
    KVC_NEED_PROFILE = 5,         /* the profile that a file was packed with (profile) */
    KVC_NEED_QUERIES = 6,         /* queries of the model's attention */
    KVC_NEED_FORMAT = 7,          /* a format to write other than the source's own */
    KVC_NEED_INPUT = 8,           /* the format of the input, which is never guessed */
    KVC_NEED_NAMES = 9,           /* which arrays are K and V (the option `map` of formats) */
    KVC_NEED_TARGET_PAIRING = 10, /* the RoPE pairing that the target keeps */
    KVC_NEED_STEP = 11,           /* a quantisation step, or a target to find it by */
    KVC_NEED_FLOATS = 12,         /* K and V that are not of block types (dequantize) */
    /* to do it all the same, though numbers say that a profile does not fit (force_profile) */
    KVC_NEED_CONSENT = 13,
    /* to write a file that does not hold all of the cache (lossy_metadata) */
    KVC_NEED_LOSSY = 14,
    /* to give the file as the model's weights: it was given as something else */
    KVC_NEED_AS_MODEL = 15,
    KVC_NEED_AS_PROFILE = 16, /* the same, as the profile */
    KVC_NEED_AS_INPUT = 17,   /* the same, as the cache to be read */
    /* to read what is whole of a file that was cut short (damaged) */
    KVC_NEED_SALVAGE = 18,
    KVC_NEED_EACH = 19,   /* to take the files of a folder one by one */
    KVC_NEED_MEMORY = 20, /* to allow more memory for decoding (max_memory) */
    KVC_NEED_SCALES = 21, /* scales of values of 8 bits (facts scale.k, scale.v) */
    /* the file beside which this one is kept, which is no cache itself */
    KVC_NEED_MAIN_FILE = 22,
    KVC_NEED_EXACT = 23,     /* a recipe that loses nothing: one was asked for (exact) */
    KVC_NEED_LAYERS = 24,    /* other layers: a selection reaches none */
    KVC_NEED_POSITIONS = 25, /* other positions, likewise */
    KVC_NEED_FORCE = 0x7fffffff
};

#endif
