/* kvc_comparing.h: two caches compared step by step, as kvc-diff does: facts, tensors, heads, rows
 * and channels, attention. Included by kvc_inspect.h, which begins a comparison. kvc_file_compare()
 * of kvc.h gives the sums alone. */
#ifndef KVC_COMPARING_STEPS_H
#define KVC_COMPARING_STEPS_H

#include "kvc_error.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kvc_error;
struct kvc_comparing;

/* The errors of pairs of values: of a head, a tensor, a channel, a position, or all. A pair is
 * finite when neither value is NaN or infinite; measures are over finite pairs. Fixed. */
struct kvc_difference {
    uint64_t values;     /* pairs that were compared */
    uint64_t differ;     /* pairs that do not count as equal */
    uint64_t nonfinite;  /* of these, pairs that are not finite */
    double max_abs;      /* largest |a - b| */
    double rms;          /* root mean square of a - b */
    double frobenius;    /* ||a - b|| / ||a||; 0 when both are 0, infinite when only ||a|| is */
    double cosine;       /* a.b / (||a|| ||b||); 1 when both norms are 0, 0 when one is */
    int64_t at_position; /* of the first pair that differs; unset when differ is 0 */
    uint64_t at_channel;
    double at_a, at_b;
    /* finite pairs in the sums below; 0 in tensors whose bytes are all equal */
    uint64_t finite;
    double aa, bb, ab, dd; /* sums of a^2, b^2, ab and (a - b)^2 */
    uint64_t reserved[4];  /* 0 */
};
/* Adds `part` to `total` (zeroed at first) and computes total's measures again. */
KVC_API void kvc_difference_add(struct kvc_difference *total, const struct kvc_difference *part);

/* Octaves of magnitudes: octave i has 2^(i - KVC_OCTAVE_0) to below twice this number. Any finite
 * value of float32, and the difference of any two, has an octave. */
#define KVC_OCTAVES 279
#define KVC_OCTAVE_0 149
/* Sums over finite pairs of values. Fixed. */
struct kvc_error_sum {
    double dd, aa; /* of (a - b)^2 and of a^2 */
};
/* The errors of one tensor by row, by channel and by size. They stay 0 for a tensor whose stored
 * bytes are equal: its values are not looked at. */
struct kvc_error_sums {
    size_t size;                   /* of this struct; set by the caller */
    uint64_t rows, channels;       /* matched rows, and values of a row: heads before channels */
    struct kvc_error_sum *row;     /* for each matched row, in order */
    struct kvc_error_sum *channel; /* for each value of a row */
    uint64_t octave[KVC_OCTAVES], zero, nonfinite; /* of |a - b| */
};
/* Frees what it points to, also of one that was never filled but for its size; NULL is legal.
 * Likewise the others below. */
KVC_API void kvc_error_sums_free(struct kvc_error_sums *s);

/* Matching tensors of two caches, a and b: of equal stream, snapshot, layer and role. The library
 * alone makes them. */
struct kvc_compared {
    size_t size;      /* of this struct in the library */
    size_t number;    /* for kvc_comparing_pair() */
    const char *part; /* "live", "window", "state", "snapshot", "companion" */
    uint32_t stream, snapshot;
    size_t parts; /* tensors of equal number have the same matched rows */
    uint32_t layer;
    const char *role;
    uint32_t tensor[2]; /* UINT32_MAX: that cache has none */
    uint32_t window[2]; /* sliding window, tokens; 0: none or unknown */
    uint64_t heads;     /* 0: values cannot be compared */
    uint64_t rows;      /* that both have */
    /* Of tensors that can be compared: values of a row, bytes of the rows of a. */
    uint64_t channels, bytes;
};
/* Write "snapshot 1", "live stream 2"; and "snapshot 1 layers 0-29 K" for tensors of one part
 * and role. */
KVC_API void kvc_compared_part(const struct kvc_compared *t, char *text, size_t size);
KVC_API void kvc_compared_label(const struct kvc_compared *first, const struct kvc_compared *last,
                                char *text, size_t size);

/* By what errors are summed. */
enum kvc_group_by {
    KVC_GROUP_NONE,
    KVC_GROUP_LAYER,    /* part, layer, role */
    KVC_GROUP_HEAD,     /* part, layer, role, head */
    KVC_GROUP_POSITION, /* part, role, position: over layers and heads */
    KVC_GROUP_CHANNEL,  /* part, layer, role, head, channel: over positions */
    KVC_GROUP_FORCE = 0x7fffffff
};
/* The largest `worst`. */
#define KVC_GROUPS_WORST (UINT64_C(1) << 16)
struct kvc_group {
    size_t size; /* of this struct in the library */
    /* its part and role; its layer, unless the group is a position */
    const struct kvc_compared *pair;
    uint64_t head, channel; /* 0 unless the group is a head or a channel */
    int64_t position;       /* 0 unless the group is a position */
    struct kvc_difference error;
};
/* Gets each group. Returns 0, or -1 to stop. */
typedef int kvc_group_fn(void *state, const struct kvc_group *g);
/* Called for each pair that differs, in order of rows, heads and channels. Returning non-zero ends
 * the reporting, not the comparison. */
typedef int kvc_report_fn(void *state, int64_t position, uint64_t head, uint64_t channel, double a,
                          double b);

/* What is wanted beside the errors of heads. */
struct kvc_compare_detail {
    size_t size; /* of this struct */
    enum kvc_group_by by;
    /* give the `worst` groups of the largest relative error (frobenius) alone; 0: all, in order */
    uint64_t worst;
    int all;              /* also groups without a difference */
    kvc_group_fn *group;  /* with the group `by`; NULL: not wanted */
    kvc_report_fn *value; /* NULL: not wanted */
    void *state;
};

/* The steps of a comparison, in their order; each may be left out, but aligning before values. */

/* Gets a fact that differs: `what` of `where` ("": the whole cache) is `a` in one cache and `b` in
 * the other; NULL: absent. `note` may be NULL. */
typedef void kvc_fact_fn(void *state, const char *where, const char *what, const char *a,
                         const char *b, const char *note);
/* Compares token ids, metadata, parts, positions, shapes, dtypes and windows, and with `meta` 2
 * private bytes and companions. */
KVC_API int kvc_comparing_facts(struct kvc_comparing *c, kvc_fact_fn *fact, void *state,
                                struct kvc_error *e);
/* Brings the channels of both to one meaning. `note` (may be NULL) gets what was done, on a
 * failure too; `guessed`: it was a guess of the RoPE pairing, which the caller may know. */
KVC_API int kvc_comparing_align(struct kvc_comparing *c,
                                void (*note)(void *state, const char *text, int guessed),
                                void *state, struct kvc_error *e);
/* Pair i, in order of parts, layers and roles; NULL past the last. It lives as long as c. */
KVC_API const struct kvc_compared *kvc_comparing_pair(const struct kvc_comparing *c, size_t i);
/* Compares a pair that has heads and rows. Returns the errors of its heads, which the caller frees
 * with free(), and their sum in *all; NULL with *e. `sums` (may be NULL) must be freed, and is
 * empty after a failure. */
KVC_API struct kvc_difference *
kvc_comparing_tensor(struct kvc_comparing *c, const struct kvc_compared *pair,
                     struct kvc_difference *all, struct kvc_error_sums *sums, struct kvc_error *e);
/* Gives the groups that are left, after the last pair. */
KVC_API int kvc_comparing_groups_end(struct kvc_comparing *c, struct kvc_error *e);
/* Writes the positions of the matched rows of a pair, pair->rows of them, into `size` bytes. */
KVC_API int kvc_comparing_positions(const struct kvc_comparing *c, const struct kvc_compared *pair,
                                    int64_t *position, size_t size, struct kvc_error *e);

/* A bounded sample of the finite pairs of values of a head. */
struct kvc_head_sample {
    size_t size;       /* of this struct; set by the caller */
    uint64_t values;   /* finite pairs of the head */
    size_t n, n_worst; /* pairs in `value` and in `worst` */
    float (*value)[2]; /* spread evenly over matched rows and channels; owned */
    float (*worst)[2]; /* the pairs with the largest |a - b| above 0, the largest first; owned */
};
/* Takes at most `most` and `most_worst` pairs of a head of a pair that has heads and rows. The
 * sample must be freed, and is empty after a failure. */
KVC_API int kvc_comparing_sample(const struct kvc_comparing *c, const struct kvc_compared *pair,
                                 uint64_t head, size_t most, size_t most_worst,
                                 struct kvc_head_sample *out, struct kvc_error *e);
KVC_API void kvc_head_sample_free(struct kvc_head_sample *s);

/* Measures of attention, as in struct kvc_comparison; 0 when nothing was measured. */
struct kvc_attention_measures {
    size_t size; /* of this struct; set by the caller */
    uint64_t queries;
    double logit_rms, kl, output_median, output_p99;
};
/* Returns 1 if the queries were estimated, as neither cache has any. */
KVC_API int kvc_comparing_estimated(const struct kvc_comparing *c);
/* Measures what the differences do to attention; needs queries. */
KVC_API int kvc_comparing_attention(struct kvc_comparing *c, struct kvc_error *e);
/* Returns K of layer i that was measured, and *m of a KV head; NULL past the last layer or head,
 * where m->size is not set, and where c is NULL, likewise below. */
KVC_API const struct kvc_compared *kvc_comparing_attended(struct kvc_comparing *c, size_t i,
                                                          uint64_t head,
                                                          struct kvc_attention_measures *m);
/* Fills *m with the measures over all layers and heads, 0 where there are none. -1 when m->size is
 * not set. */
KVC_API int kvc_comparing_attended_all(struct kvc_comparing *c, struct kvc_attention_measures *m);
/* Returns K of the layer, and *head, whose attention changes most by KL divergence; NULL: none. */
KVC_API const struct kvc_compared *kvc_comparing_worst(struct kvc_comparing *c, uint64_t *head,
                                                       struct kvc_attention_measures *m);

/* The probabilities of one query, over the n rows that it sees. */
struct kvc_attention_weights {
    size_t size;      /* of this struct; set by the caller */
    uint64_t head;    /* query head */
    int64_t position; /* of the query */
    double kl;        /* KL(p of a || p of b), nats */
    uint64_t n;       /* 0: no query sees a row */
    int64_t *at;      /* positions of the rows, ascending; owned */
    float *p[2];      /* of a and of b; owned */
};
/* Finds, of the queries that read that worst head, the one with the largest KL divergence, or with
 * `last` of those at the last position from which a row is seen. *out must be freed, and is empty
 * after a failure. */
KVC_API int kvc_comparing_query(struct kvc_comparing *c, int last,
                                struct kvc_attention_weights *out, struct kvc_error *e);
KVC_API void kvc_attention_weights_free(struct kvc_attention_weights *w);

/* kvc_comparing_free(NULL) is legal. */
KVC_API void kvc_comparing_free(struct kvc_comparing *c);

#ifdef __cplusplus
}
#endif

#endif
