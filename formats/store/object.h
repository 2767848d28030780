/* object.h: names of what a prefix store keeps: chunks of caches, states, namespaces, profiles. Not
 * for how keys come about (namespace.c), nor for where objects lie (tier.h). STORE.md, "Objects".
 */
#ifndef KVC_OBJECT_H
#define KVC_OBJECT_H

#include <stddef.h>
#include <stdint.h>

#define KVC_OBJECT_KEY 32
#define KVC_OBJECT_NS 8

enum kvc_object_kind {
    KVC_OBJECT_CHUNK,     /* a .kvc of the tokens of one chunk: "kv" */
    KVC_OBJECT_STATE,     /* a .kvc of a whole cache that cannot be cut: "state" */
    KVC_OBJECT_NAMESPACE, /* the facts of a namespace, as text: "space" */
    KVC_OBJECT_PROFILE,   /* a profile: "kvcp" */
    KVC_OBJECT_NAMED,     /* a .kvc under a name that the program chose: "named" */
    KVC_OBJECT_LEARNT     /* which profile was learnt from a namespace, as text: "learnt" */
};
#define KVC_OBJECT_KINDS 6

/* Returns 1 for a kind that is a few lines of text about a namespace, which no tier evicts for its
 * limits; for a kind that is a cache. */
static inline int kvc_object_is_facts(enum kvc_object_kind kind) {
    return kind == KVC_OBJECT_NAMESPACE || kind == KVC_OBJECT_LEARNT;
}
static inline int kvc_object_is_cache(enum kvc_object_kind kind) {
    return kind != KVC_OBJECT_PROFILE && !kvc_object_is_facts(kind);
}

struct kvc_object {
    enum kvc_object_kind kind;
    uint8_t ns[KVC_OBJECT_NS]; /* the first bytes of the namespace; of a profile 0 */
    uint8_t key[KVC_OBJECT_KEY];
};

/* Fills an object. `ns` NULL: it is of no namespace. */
struct kvc_object kvc_object_of(enum kvc_object_kind kind, const uint8_t *ns, const uint8_t *key);

/* Room for a name with its NUL: "0123456789abcdef-" and 64 hex digits, "." and the kind. */
#define KVC_OBJECT_NAME 96

/* Writes the name, which consists of lower-case hex digits and the words above. */
void kvc_object_name(const struct kvc_object *o, char text[KVC_OBJECT_NAME]);
/* Reads a name. -1: it is none, in any detail. */
int kvc_object_parse(const char *text, struct kvc_object *o);
int kvc_object_equal(const struct kvc_object *a, const struct kvc_object *b);

#endif
