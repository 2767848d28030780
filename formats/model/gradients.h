/* gradients.h: how much a model's predictions mind errors in the rows of a cache: gradients of
 * log-probabilities of tokens that the model itself samples, by the weights. Spec: GRADIENTS.md.
 * Not for what is made of them (profile_learn.h). */
#ifndef KVC_GRADIENTS_H
#define KVC_GRADIENTS_H

#include "formats/cache/cache.h"
#include "formats/model/weights.h"

/* The runs through the model: the cache's last tokens again, and two places of its text said again
 * after its end. */
enum { KVC_GRADIENTS_RUNS = 3 };

/* Gradients with respect to the rows of a layer. */
struct kvc_gradients {
    const struct kvc_cache *c; /* whose rows are binary32 */
    uint32_t layer;            /* its number in c */
    uint64_t weights;          /* in its matrices */
    size_t query_heads;
    const float *queries; /* of the first run, after RoPE: [tokens][query_heads * dim of K] */
    struct {
        uint64_t tokens;    /* whose log-probabilities are summed */
        int64_t position;   /* of the first */
        int again;          /* they repeat a place of the text */
        uint64_t rows;      /* that the tokens could see: the first of the sorted rows */
        const float *of[2]; /* K after RoPE and V: [rows][heads * dim] */
    } run[KVC_GRADIENTS_RUNS];
};
/* What went through the model. */
struct kvc_gradients_pass;
/* What is done with the gradients of each layer, the last first. */
struct kvc_gradients_taker {
    int (*take)(void *state, const struct kvc_gradients *g, struct kvc_error *e);
    int (*stop)(void *state); /* asked before each layer: 1 ends the work; NULL: never */
    void *state, *stop_state;
};

/* Takes the runs through the model, and compares K and V of the weights with those of the cache,
 * which must stay until the pass is freed. By `threads` threads at most (0: one per core); not the
 * same on every machine. KVC_ERR_UNSUPPORTED where the cache has no token ids or lacks rows, or the
 * model is of another kind than those of GRADIENTS.md; KVC_ERR_OTHER_MODEL where K and V differ. */
struct kvc_gradients_pass *kvc_gradients_begin(const struct kvc_cache *c,
                                               const struct kvc_weights *w, unsigned threads,
                                               const struct kvc_gradients_taker *to,
                                               struct kvc_error *e);
/* Measures the gradients on the way back. */
int kvc_gradients_end(struct kvc_gradients_pass *p, struct kvc_error *e);
void kvc_gradients_free(struct kvc_gradients_pass *p); /* kvc_gradients_free(NULL) is legal */
/* Compares the first layers alone, which takes little time: another model differs in these. */
int kvc_gradients_compare(const struct kvc_cache *c, const struct kvc_weights *w, unsigned threads,
                          struct kvc_error *e);

#endif
