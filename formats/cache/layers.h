/* layers.h: layer numbers and sliding windows, as the model counts them. Not for finding the
 * model's facts (model.h, profile.h), and not for rows. */
#ifndef KVC_LAYERS_H
#define KVC_LAYERS_H

#include "formats/cache/cache.h"
#include "formats/cache/facts.h"

#define KVC_MAX_PATTERN 4096 /* layers */

/* The layers of a model that have a sliding window. */
struct kvc_layer_pattern {
    uint32_t n;                       /* layers of the model; 0: the pattern is unknown */
    uint32_t window;                  /* tokens of the window; 0: unknown */
    uint8_t sliding[KVC_MAX_PATTERN]; /* 1: layer i has a window */
};

/* Fills the pattern of models that repeat every `period` layers, of which the last has no window.
 * Layer i has a window if i % period < period - 1 (llama.cpp, llama_hparams::set_swa_pattern).
 * period 0: all layers have one. */
void kvc_pattern_repeat(struct kvc_layer_pattern *p, uint32_t layers, uint32_t period,
                        uint32_t window);

/* Returns 1 where the layer numbers of a cache are not the model's: llama.cpp keeps layers without
 * and with a window in two caches, and both count from 0. */
int kvc_layers_ambiguous(const struct kvc_cache *c);

/* Fails with KVC_ERR_OTHER_MODEL if kvc_layers_ambiguous(), and says what would help. For code that
 * finds layers by number. */
int kvc_layers_need_numbers(const struct kvc_cache *c, struct kvc_error *e);

/* Gives the layers of a cache the numbers, kinds and windows of the pattern, and notes in the
 * metadata that the numbers are known. A cache whose layer numbers are known keeps them. Returns 1
 * if all is known. Returns 0 and changes nothing if the pattern does not match the cache's numbers
 * of layers; -1 and *e when out of memory. */
int kvc_layers_settle(struct kvc_cache *c, const struct kvc_layer_pattern *p, struct kvc_error *e);

/* If the layer numbers of `c` are not the model's, takes the numbers from another cache of the
 * model that has them, provided that the numbers of layers match. Returns -1 and *e when out of
 * memory. For caches that are to be compared. */
int kvc_layers_borrow(struct kvc_cache *c, const struct kvc_cache *from, struct kvc_error *e);

/* Returns the tokens of a layer's sliding window; 0 if it has none or the size is unknown. */
uint64_t kvc_layer_window(const struct kvc_facts *facts, const struct kvc_layer *layer);

#endif
