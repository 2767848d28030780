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
    const struct kvc_opened *file;
    const struct kvc_cache *c;
    const struct kvc_meta *meta;
    size_t extras; /* number of items of prefix.extras */
    int is_container, heads_known;
    struct dump_shared heads, k_dim, v_dim;
    struct dump_dtypes k, v, others;
    uint32_t layers; /* layers that have K, V, latents or states */
    uint64_t snapshots;
    uint64_t tensor_bytes;
    int has_k, has_window, window_known;
    struct dump_part_facts *part;
    unsigned n_unknown;
    struct dump_unknown unknown[12];
};

/* Collects all facts without reading values. 0, and the caller frees facts.part, or -1 and *e. */
int dump_facts_gather(struct dump_facts *x, const struct kvc_opened *f, struct kvc_error *e);
/* Writes "f16", or "f32,f16" for a mixture. NULL if there are no dtypes. */
const char *dump_dtypes_text(const struct dump_dtypes *d, char *text, size_t size);
/* Returns 1 if the value is known and equal in all layers. */
int dump_is_one(const struct dump_shared *s);
/* Returns "kvc", "llama.cpp GGSQ", ... */
const char *dump_format_name(const struct dump_facts *x);
/* Returns 1 if positions ascend in the engine's own order of cells. */
int dump_is_ascending(const struct kvc_cells *cells);
/* Writes the positions of cells as "A:B", the position after the last being B. Returns `text`;
 * NULL: there are no cells. */
const char *dump_positions_text(const struct kvc_cells *cells, char *text, size_t size);
/* Returns bytes of the tensors divided by bytes of the file. */
double dump_ratio(const struct dump_facts *x);

#endif
