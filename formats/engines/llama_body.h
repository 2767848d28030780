/* llama_body.h: the bodies of llama.cpp's saved states: cells, tensors, recurrent states,
 * checkpoints. Not for heads, tokens and the choice of a reading (llama.c), nor for callers of
 * the format. */
#ifndef KVC_LLAMA_BODY_H
#define KVC_LLAMA_BODY_H

#include "formats/cache/cache.h"
#include "formats/io/input.h"

/* the begin of one sequence without a head, and of a checkpoint */
#define KVC_LLAMA_MEMORY 0xaf143cd8u

enum kvc_llama_structure {
    KVC_LLAMA_ATTENTION,
    KVC_LLAMA_TWICE, /* layers with sliding windows follow in a second body */
    KVC_LLAMA_HYBRID,
    KVC_LLAMA_RECURRENT,
    KVC_LLAMA_STRUCTURES
};

/* One reading: what the bytes may mean where the file does not say. */
struct kvc_llama_reading {
    int outputs; /* 1: ids of outputs, logits and embeddings come first */
    /* 1: a body begins with its number of streams; 0: it is one stream, and cells may name no
     * sequence */
    int streams;
    int tiles;    /* 1: Hadamard tiles are recorded */
    unsigned ext; /* extension words of a cell: 0, 2 or 3 */
    int has_v;    /* 0: latent attention keeps no V */
    enum kvc_llama_structure structure;
};

struct kvc_llama_parser {
    struct kvc_window *bytes;
    uint64_t at, end;
    int one_sequence; /* 1: all cells are of the sequence that was saved */
    struct kvc_llama_reading r;
    struct kvc_cache *cache; /* NULL: only check that the reading fits */
    uint64_t literal;        /* bytes before this offset have extents already */
    struct kvc_error *e;

    /* Results. */
    uint64_t tile_k, tile_v;
    int quantised[2], transposed; /* quantised: K, V */
    uint64_t streams;             /* of the attention cache */
    /* the only stream that has cells; KVC_NONE: none has, or several have */
    uint32_t sole;
    /* lists of cells and tensors that were valid, to compare trials; tensors */
    uint64_t understood, fit_tensors;
};

/* Read some bytes; `what` is for the message that there is no room for them. taken: returns the
 * last n bytes that were read. */
int kvc_llama_take(struct kvc_llama_parser *p, uint64_t n, const char *what);
int kvc_llama_take_u32(struct kvc_llama_parser *p, uint32_t *v, const char *what);
const uint8_t *kvc_llama_taken(const struct kvc_llama_parser *p, uint64_t n);

/* Reads everything after the head by the reading p->r, up to exactly the end, and builds p->cache
 * if there is one. */
int kvc_llama_state(struct kvc_llama_parser *p);

#endif
