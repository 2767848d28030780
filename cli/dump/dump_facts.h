/* dump_facts.h: the facts of the summary of a file. Not for printing them. */
#ifndef KVC_DUMP_FACTS_H
#define KVC_DUMP_FACTS_H

#include "cli/dump/dump.h"

/* A number that is equal in all layers, or mixed. */
struct dump_shared {
    uint64_t value;
    int seen, mixed;
};

/* The dtypes of one role, in order of layers. */
struct dump_dtypes {
    unsigned n;
    const char *name[4];
};

struct dump_part_facts {
    uint32_t layers;
    struct dump_dtypes k, v;
    struct dump_shared k_row, v_row;
    uint64_t bytes;
};

struct dump_unknown {
    const char *fact, *option; /* option NULL: no option supplies the fact */
};

struct dump_facts {
    const struct dump_file *f;
    uint64_t extras; /* number of items of prefix.extras */
    struct dump_shared heads, k_dim, v_dim;
    struct dump_dtypes k, v, others;
    uint32_t layers; /* layers that have K, V, latents or states */
    uint64_t checkpoints;
    uint64_t tensor_bytes;
    int has_k, has_sliding, window_known;
    struct dump_part_facts *part;
    unsigned n_unknown;
    struct dump_unknown unknown[12];
};

/* Collects all facts without reading values. 0, and the caller frees facts.part, or -1 and *e. */
int dump_facts_gather(struct dump_facts *x, const struct dump_file *f, struct kvc_error *e);
/* Writes "f16", or "f32,f16" for a mixture. NULL if there are no dtypes. */
const char *dump_dtypes_text(const struct dump_dtypes *d, char *text, size_t size);
/* Returns 1 if the value is known and equal in all layers. */
int dump_is_one(const struct dump_shared *s);
/* Returns "kvc", "llama.cpp GGSQ", ... */
const char *dump_format_name(const struct dump_file *f);
/* Returns the name of the next fingerprint from metadata entry *i on, and its value; NULL: none. */
const char *dump_fingerprint(const struct dump_file *f, size_t *i, struct kvc_meta_value *v);
/* Writes how the transform codec coded the first tensor of a role that it did; "": none. */
int dump_transform(const struct dump_file *f, const char *role, char *text, size_t size,
                   struct kvc_error *e);
/* Writes the positions of cells as "A:B", the position after the last being B. Returns `text`;
 * NULL: there are no cells. */
const char *dump_positions_text(const struct kvc_part_info *part, char *text, size_t size);
/* Returns bytes of the tensors divided by bytes of the file. */
double dump_ratio(const struct dump_facts *x);

#endif
