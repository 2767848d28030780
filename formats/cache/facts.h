/* facts.h: the metadata of a cache as typed facts, for code that decides by them. Not for storing
 * or printing metadata (meta.h), and not for facts of a weights file (formats/model/model.h).
 *
 * Facts are a copy: whoever changes metadata decodes them again. An operation decodes them once and
 * hands them on. */
#ifndef KVC_FACTS_H
#define KVC_FACTS_H

#include "codecs/rope.h"
#include "formats/cache/hidden_states.h"
#include "formats/cache/meta.h"

/* The file format that a cache was read from first: a .kvc keeps the format of the file that was
 * packed. */
enum kvc_source {
    KVC_SOURCE_OTHER, /* unknown, or a format without rules of its own */
    KVC_SOURCE_LLAMA, /* llama.cpp: sequences and sessions */
    KVC_SOURCE_SAFETENSORS,
    KVC_SOURCE_NPZ,
    KVC_SOURCE_MLX,
    KVC_SOURCE_TORCH,
    KVC_SOURCE_RAW,
    KVC_SOURCE_VLLM, /* folders of the ExampleConnector */
    KVC_SOURCE_VLLM_BLOCKS,
    KVC_SOURCE_LMCACHE,
    KVC_SOURCE_LMCACHE_GDS,
    KVC_SOURCE_HICACHE
};

struct kvc_facts {
    enum kvc_source source;

    enum kvc_pairing pairing; /* RoPE pairing of K */
    int pairing_assumed;      /* 1: the pairing is a habit of the source format, not recorded */
    /* 1: K is stored after RoPE, which is also assumed where the metadata do not say */
    int after_rope;
    enum kvc_rope_type rope_type;
    double theta;      /* base of the angles; 0: unknown */
    double factor;     /* scaling; 1: none, or unknown */
    uint64_t rotated;  /* rotated channels of a head, see kvc_facts_rotated() */
    int rotated_known; /* 0: `rotated` is 0 and means nothing */

    uint64_t tile[2]; /* Hadamard tiles by which K and V are rotated; 0: not rotated, or unknown */
    int tile_known[2];

    int heads_known;  /* 0: K and V with one head stand for an unknown number of KV heads */
    int layers_known; /* 0: layer numbers are in cache order */
    /* tokens of the sliding window, where a layer has no window of its own; 0: unknown */
    uint64_t window;
    enum kvc_hidden_place hidden_place;
    uint64_t tokens_first; /* position of the first token id */
    /* 1: rows were packed with a profile, and layers have the numbers that it gave them */
    int has_profile;

    /* Of the model; 0: unknown. */
    uint64_t layers, query_heads, kv_heads, head_dim, head_dim_v;
    const char *architecture; /* "": unknown; owned by the metadata */

    /* Of llama.cpp's files. */
    int had_tokens;      /* 1: the file had token ids */
    int plain_tokens;    /* 1: token ids are a plain list, not a server's */
    uint64_t cell_words; /* words of a cell before its sequence ids (M-RoPE) */
};

struct kvc_facts kvc_facts_of(const struct kvc_meta *meta);

/* Returns the rotated channels of a head of `dim` channels: all of them where the number is
 * unknown. */
uint64_t kvc_facts_rotated(const struct kvc_facts *facts, uint64_t dim);

#endif
