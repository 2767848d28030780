/* facts.h: the keys of metadata that kvc knows, and what they tell of a cache as typed values, for
 * code that decides by them. Not for storing or printing metadata (meta.h), and not for facts of a
 * weights file (formats/model/model.h).
 *
 * Every list of metadata holds its facts: c->meta.facts. The list is the stored form. Only meta.c
 * changes a list, and each change of an entry decodes the fact of its key (kvc_facts_note()). So
 * nobody decodes facts a second time, and facts are never older than the list. Code that supposes
 * other facts than a cache has changes a copy of the struct.
 *
 * To add a fact: its key in keys.h, a field here, a row of the table in facts.c. */
#ifndef KVC_FACTS_H
#define KVC_FACTS_H

#include "codecs/error.h"
#include "codecs/rope.h"

#include <stdint.h>

/* The types of values. The numbers are stored in .kvc files. */
enum kvc_meta_type {
    KVC_META_BOOL = 1,
    KVC_META_U64 = 2,
    KVC_META_I64 = 3,
    KVC_META_F64 = 4,
    KVC_META_TEXT = 5, /* UTF-8 without NUL */
    KVC_META_BYTES = 6,
    KVC_META_U64S = 7 /* array of u64 */
};

/* Where in a layer hidden states were taken, relative to the norm before attention. */
enum kvc_hidden_place { KVC_HIDDEN_UNKNOWN, KVC_HIDDEN_BEFORE_NORM, KVC_HIDDEN_AFTER_NORM };

#define KVC_SHARD_SET_BYTES 16

/* What a GGUF file says of scaled RoPE beyond what metadata hold. A zeroed struct says nothing. */
enum { KVC_ROPE_TABLE = 256 };
struct kvc_rope_table {
    enum {
        KVC_TABLE_NONE, /* the metadata tell the angles, or nothing does */
        KVC_TABLE_READ,
        KVC_TABLE_DAMAGED,
        /* one of two, which the engine chooses by the length that it was set to (longrope) */
        KVC_TABLE_OF_TWO
    } state;
    enum kvc_rope_type type;       /* rope.type of the model: with another one the table is void */
    uint32_t pairs;                /* of a head */
    float length;                  /* of rotated channels after RoPE, before it 1 */
    float divisor[KVC_ROPE_TABLE]; /* of the angle of each pair, by which it is divided */
};

/* A zeroed struct knows nothing. Texts and hashes, which have 32 bytes, are owned by the metadata;
 * NULL: unknown, or empty. */
struct kvc_facts {
    int of_llama;               /* 1: the file that the cache was read from first was llama.cpp's */
    struct kvc_rope_facts rope; /* of K; without the angles of a layer (layer_rope.h) */
    /* in memory alone: no entry of the list holds it; copies of the list have it */
    struct kvc_rope_table rope_table;

    uint64_t tile[2]; /* Hadamard tiles by which K and V are rotated; 0: not rotated, or unknown */
    int tile_known[2];

    int heads_unknown;  /* 1: K and V with one head stand for an unknown number of KV heads */
    int layers_unknown; /* 1: layer numbers are in cache order */
    /* tokens of the sliding window, where a layer has no window of its own; 0: unknown */
    uint64_t window;
    int window_assumed;  /* 1: layers are shorter than others, and no name says why */
    int positions_given; /* 1: the file says them, though it has more ids than rows */
    enum kvc_hidden_place hidden_place;
    uint64_t coordinates;  /* further ones of a position (M-RoPE): words that cells begin with */
    uint64_t tokens_first; /* position of the first token id */
    /* hash of the profile that rows were packed with: layers have the numbers that it gave them */
    const uint8_t *profile;
    const uint8_t *parent; /* the prefix key at tokens_first (prefix.h) */
    /* of a tensor-parallel shard, of `shard_ranks`; 0 ranks: of none, or unknown */
    uint64_t shard_rank, shard_ranks;
    const uint8_t *shard_set; /* KVC_SHARD_SET_BYTES bytes */
    const char *rows_used;    /* positions that are no padding */
    const char *scale[2];     /* of values of 8 bits: K and latents, V (scales.h) */
    const char *identity;     /* at the start of the chain of prefix keys (prefix.h) */

    /* Of the model; 0: unknown. */
    const char *model, *architecture, *adapters;
    uint64_t layers, query_heads, kv_heads, head_dim;
    uint64_t head_dim_v; /* of V, where it differs from head_dim */

    /* Of llama.cpp's files. */
    int had_tokens;   /* 1: the file had token ids */
    int plain_tokens; /* 1: token ids are a plain list, not a server's */
};

/* Decodes the fact of a key from its value of n bytes in the list, as meta.c keeps it; NULL: the
 * list has none. A value of another type than the key has counts as absent. For meta.c. */
void kvc_facts_note(struct kvc_facts *facts, const char *key, enum kvc_meta_type type,
                    const uint8_t *value, uint64_t n);

/* Returns the type that values of a key have; text for keys that kvc does not know. */
enum kvc_meta_type kvc_fact_type(const char *key);
/* Refuses a key that is no fact of the model and its values, and names similar ones. */
int kvc_fact_need(const char *key, struct kvc_error *e);
/* Refuses a text that somebody gives for a key: words that mean nothing, and keys that kvc keeps
 * for itself. */
int kvc_fact_value_check(const char *key, const char *value, struct kvc_error *e);

/* Checks the value of scale.k or scale.v: numbers above 0, of layers 0, 1, ... with ',' between
 * layers and ':' between heads; a layer without a number is unknown; one layer alone means all
 * layers, one number of a layer all its heads. Returns 0 or -1. */
int kvc_scales_check(const char *text);
/* Reads the numbers of a layer, which ends with ',' or the text. Counts them in *n, and keeps the
 * first `room`. Returns the rest, or NULL. */
const char *kvc_scales_layer(const char *text, float *scale, uint64_t room, uint64_t *n);

#endif
