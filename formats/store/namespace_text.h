/* namespace_text.h: the text that a store keeps of a namespace: its facts, a line each. Not for
 * computing them (formats/cache/prefix_space.h). STORE.md, "Namespaces". */
#ifndef KVC_NAMESPACE_TEXT_H
#define KVC_NAMESPACE_TEXT_H

#include "formats/cache/prefix_space.h"

#define KVC_NAMESPACE_TEXT 65536 /* bytes of a text, at most */

/* What a reader needs of the facts. */
struct kvc_namespace_facts {
    uint8_t ns[KVC_KEY_BYTES];
    char identity[KVC_IDENTITY_BYTES];
    char fidelity[2048];
    uint8_t tenant[KVC_KEY_BYTES];
    int has_tenant;
    uint64_t chunk;
};

/* Writes the text of the namespace of c with these metadata; the caller frees it. */
char *kvc_namespace_text_write(const struct kvc_cache *c, const struct kvc_meta *meta,
                               const struct kvc_space *more, uint8_t *ns, struct kvc_error *e);
/* Reads a text, and computes the namespace of what it says. */
int kvc_namespace_text_read(const char *text, size_t size, struct kvc_namespace_facts *facts,
                            struct kvc_error *e);
/* Finds what two texts differ in: the next line of `a` whose fact `b` has otherwise, from *at on.
 * Writes "dtype: bf16 and f16". 0: none. */
int kvc_namespace_text_differ(const char *a, const char *b, size_t *at, char *text, size_t size);

#endif
