/* profile_state.h: an open profile and its tensors. Only for the files profile*.c and predictor.c;
 * others use profile.h. */
#ifndef KVC_PROFILE_STATE_H
#define KVC_PROFILE_STATE_H

#include "codecs/profile_part.h"
#include "formats/io/hash.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/predictor_part.h"

#include <pthread.h>

/* layers at most; orders of K's channels: halves, interleaved */
enum { KVC_PROFILE_LAYERS = 4096, KVC_PROFILE_VARIANTS = 2 };

/* A prepared part. Inverse and queries are there once an encoder asked for the part. */
struct kvc_profile_slot {
    struct kvc_profile_part part, residual;
    float *memory, *inverse, *query, *residual_memory, *residual_inverse;
    int made;
};

/* A prepared predictor, and what makes inputs of its own rows. */
struct kvc_predictor_slot {
    struct kvc_predictor predictor;
    struct kvc_small small;
    int8_t *weight;
    float *numbers, *small_numbers;
    int made, small_made;
};

struct kvc_profile {
    uint8_t *data;
    size_t size;
    struct kvc_safetensors header;
    uint8_t sha256[KVC_SHA256_BYTES];
    const char *model;
    char *path; /* NULL: opened from bytes */
    uint32_t layers;
    int old;         /* of version 0, which has no predictors */
    unsigned back;   /* layers before a layer from which it is predicted; 0: none */
    unsigned metric; /* enum kvc_profile_metric */
    uint32_t recall; /* tokens of repeated text in the metric */
    double **angle;  /* by layer, NULL where there is none */
    size_t *half;
    struct kvc_profile_slot *slot;        /* [layer][K, V][as halves, interleaved] */
    struct kvc_predictor_slot *predictor; /* likewise */
    pthread_mutex_t lock;
    unsigned holders; /* under the lock; the first is whoever opened it */
};

struct kvc_profile_array {
    const uint8_t *data;
    uint64_t dim[3];
    unsigned rank;
};

/* Finds the tensor "layers.N.WHAT". Returns 1; 0 when it is not there; -1 when it is not what it
 * should be. */
int kvc_profile_array(const struct kvc_profile *p, uint32_t layer, const char *what,
                      const char *dtype, unsigned rank, struct kvc_profile_array *a,
                      struct kvc_error *e);
/* Does the same for numbers [head][channel] of K or V, which must be finite and at least `minimum`.
 */
int kvc_profile_numbers(const struct kvc_profile *p, uint32_t layer, int is_v, const char *name,
                        float minimum, struct kvc_profile_array *a, struct kvc_error *e);
/* Checks that all numbers of a tensor are finite and at least `minimum`. `what` names it in
 * messages. */
int kvc_profile_finite(const struct kvc_profile_array *a, float minimum, const char *what,
                       uint32_t layer, struct kvc_error *e);
/* Returns the place in a cache of channel d of a head, whose channels are paired as halves in the
 * file. */
size_t kvc_profile_place(size_t d, size_t half, int interleaved);

#endif
