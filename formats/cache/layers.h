/* layers.h: layer numbers and sliding windows, as the model counts them. Not for where the model's facts come from (model.h,
 * profile.h), and not for rows. */
#ifndef KVC_LAYERS_H
#define KVC_LAYERS_H

#include "formats/cache/cache.h"
#include "formats/cache/facts.h"

#define KVC_MAX_PATTERN 4096 /* layers */

/* Which layers of a model have a sliding window. */
struct kvc_layer_pattern {
    uint32_t n;                       /* layers of the model; 0: the pattern is unknown */
    uint32_t window;                  /* tokens of the window; 0: unknown */
    uint8_t sliding[KVC_MAX_PATTERN]; /* 1: layer i has a window */
};

/* Fills the pattern of models whose layers repeat every `period` layers, the last of them without a window: layer i has one
 * where i % period < period - 1 (llama.cpp, llama_hparams::set_swa_pattern). period 0: all layers have one. */
void kvc_pattern_repeat(struct kvc_layer_pattern *p, uint32_t layers, uint32_t period, uint32_t window);

/* Returns 1 where the layer numbers of a cache are not the model's: llama.cpp keeps layers without and with a window in two
 * caches, and both count from 0. */
int kvc_layers_ambiguous(const struct kvc_cache *c);

/* KVC_ERR_MODEL, with what to do about it, where kvc_layers_ambiguous(). For those who look layers up by number. */
int kvc_layers_need_numbers(const struct kvc_cache *c, struct kvc_error *e);

/* Gives the layers of a cache the numbers, kinds and windows of the pattern, and notes in the metadata that the numbers are
 * known. A cache whose layer numbers are known keeps them. Returns 1 where nothing is left to know, 0 where the pattern does
 * not go with the cache's numbers of layers, which stays as it was; -1 and *e when out of memory. */
int kvc_layers_settle(struct kvc_cache *c, const struct kvc_layer_pattern *p, struct kvc_error *e);

/* Gives a cache whose layer numbers are not the model's those of another cache of the model, where that one knows them and the
 * numbers of layers go together. -1 and *e when out of memory. For caches that are to be compared. */
int kvc_layers_borrow(struct kvc_cache *c, const struct kvc_cache *from, struct kvc_error *e);

/* Tokens of a layer's sliding window, 0 where it has none or nobody knows it. */
uint64_t kvc_layer_window(const struct kvc_facts *facts, const struct kvc_layer *layer);

#endif
