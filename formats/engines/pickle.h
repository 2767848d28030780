/* pickle.h: the values that a Python pickle describes, as data: nothing is looked up, called or
 * run. Not for the meaning of classes and functions, which the caller knows (torch.c).
 *
 * Opcodes of protocols 2 to 5 are read, as far as torch.save() and pickle.dump() write them for
 * plain data. Whatever else a pickle contains is refused. */
#ifndef KVC_PICKLE_H
#define KVC_PICKLE_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_PICKLE_MAX (UINT64_C(16) << 20) /* maximum size of a pickle */

enum kvc_pickle_kind {
    KVC_PICKLE_NONE,
    KVC_PICKLE_BOOL,   /* integer: 0 or 1 */
    KVC_PICKLE_INT,    /* integer */
    KVC_PICKLE_FLOAT,  /* its value is not kept */
    KVC_PICKLE_TEXT,   /* text, n bytes of UTF-8, unchecked */
    KVC_PICKLE_OCTETS, /* its bytes are not kept */
    KVC_PICKLE_LIST,   /* n items */
    KVC_PICKLE_TUPLE,  /* n items */
    KVC_PICKLE_DICT,   /* n items: key, value, key, value, ... */
    KVC_PICKLE_GLOBAL, /* text: "module.name", of a class or function */
    /* an object: function(arguments), with `state` and, like a dict, n items */
    KVC_PICKLE_CALL,
    KVC_PICKLE_PERSISTENT /* an object outside of the pickle; arguments: its id */
};

/* Values are named by their numbers, because a value may occur in several places, and even within
 * itself. */
struct kvc_pickle_value {
    enum kvc_pickle_kind kind;
    uint32_t function, arguments; /* values */
    uint32_t state;               /* value that was given to the object; 0: none */
    int64_t integer;
    const char *text; /* not ended by a NUL, except of a GLOBAL */
    uint64_t n;
    uint32_t *item;
};

struct kvc_pickle {
    struct kvc_pickle_value *value; /* number 0 is None */
    uint32_t n;
    uint32_t root;
};

/* Returns 0 where a pickle may name the class or function "module.name"; else -1 and *e. */
typedef int kvc_pickle_allows(const char *name, struct kvc_error *e);

/* Reads the pickle of `size` bytes at `bytes`, which must outlive *p. On failure *p is empty. */
int kvc_pickle_read(struct kvc_pickle *p, const uint8_t *bytes, uint64_t size,
                    kvc_pickle_allows *allows, struct kvc_error *e);
void kvc_pickle_free(struct kvc_pickle *p);

#endif
