/* weights_tensors.h: the open files of a model's weights, and the tensors of a layer in them. Not
 * for converting their values (weights.c, weights_product.c). */
#ifndef KVC_WEIGHTS_TENSORS_H
#define KVC_WEIGHTS_TENSORS_H

#include "codecs/dtype.h"
#include "codecs/error.h"
#include "formats/cache/format.h"
#include "formats/io/input.h"
#include "formats/io/safetensors_file.h"
#include "formats/model/gguf.h"

#include <stddef.h>
#include <stdint.h>

#define KVC_WEIGHTS_RANK 4 /* dimensions of a tensor at most */

/* One file of the model. */
struct kvc_weights_part {
    struct kvc_input in;
    int is_gguf;
    struct kvc_gguf gguf;
    struct kvc_safetensors safetensors;
};

struct kvc_weights {
    struct kvc_weights_part *part;
    size_t n;
    char arch[64]; /* general.architecture, or config.json's model_type; "" unknown */
    enum kvc_pairing pairing;
    float epsilon;
};

/* What a layer has for K and V, for queries, and for the rest of it; then what the model has once.
 */
enum kvc_weight {
    KVC_WEIGHT_K,
    KVC_WEIGHT_K_BIAS,
    KVC_WEIGHT_V,
    KVC_WEIGHT_V_BIAS,
    KVC_WEIGHT_NORM,
    KVC_WEIGHT_NORM_BIAS,
    KVC_WEIGHT_K_NORM,
    KVC_WEIGHT_Q,
    KVC_WEIGHT_Q_BIAS,
    KVC_WEIGHT_Q_NORM,
    KVC_WEIGHT_OUT,             /* of attention */
    KVC_WEIGHT_ATTENTION_AFTER, /* norm of what attention adds; of llama's files that before GATE */
    KVC_WEIGHT_FFN_NORM,
    KVC_WEIGHT_GATE,
    KVC_WEIGHT_UP,
    KVC_WEIGHT_DOWN,
    KVC_WEIGHT_FFN_AFTER, /* norm of what DOWN adds */
    KVC_WEIGHT_EMBEDDING,
    KVC_WEIGHT_LAST_NORM,
    KVC_WEIGHT_LOGITS,
    KVC_WEIGHTS
};

/* How values are stored: those of caches (codecs/dtype.h), and ggml's types that only weights have.
 */
struct kvc_weights_type {
    const char *name;     /* as ggml spells it */
    uint32_t block, size; /* values in one block, and its bytes */
    void (*to_f32)(float *dst, const uint8_t *src, size_t blocks);
};

/* A tensor that was found. All of its bytes lie inside the file. */
struct kvc_weights_tensor {
    char name[128];
    const char *file;
    uint64_t rank, dim[KVC_WEIGHTS_RANK]; /* the last varies fastest */
    struct kvc_weights_type type;
    const struct kvc_input *in;
    uint64_t offset, bytes; /* of the values in the file; pin them before reading */
};

/* Two orders of output channels. The first `rotated` channels of each head of `dim` are in pairs.
 */
struct kvc_weights_order {
    uint64_t dim, rotated;
    enum kvc_pairing from, to;
};

/* Returns the channel of the old order that is at `channel` in the new order. Pair i is channels 2i
 * and 2i + 1 interleaved, i and i + rotated / 2 in halves. */
static inline uint64_t kvc_weights_channel(const struct kvc_weights_order *o, uint64_t channel) {
    const uint64_t i = channel % o->dim, head = channel - i, half = o->rotated / 2;
    if (o->from == o->to || i >= o->rotated) return channel;
    if (o->from == KVC_PAIRING_INTERLEAVED) return head + (i < half ? 2 * i : 2 * (i - half) + 1);
    return head + (i % 2 ? half + i / 2 : i / 2);
}

struct kvc_weights_naming; /* how a family of files names tensors */

/* Opens the file at `path` as the next part: KVC_ERR_UNKNOWN_FORMAT where it is neither a GGUF nor
 * safetensors, KVC_ERR_DAMAGED where its header is malformed or it is of another kind than the
 * first part. Messages do not name `path`. */
int kvc_weights_add_part(struct kvc_weights *w, const char *path, struct kvc_error *e);
void kvc_weights_part_close(struct kvc_weights_part *part);
/* Returns 1 where the parts are GGUF files, 0 where they are safetensors. */
int kvc_weights_are_gguf(const struct kvc_weights *w);

/* Finds the layer's K, and with it the naming of the file. NULL where no naming finds K, or K
 * cannot be used. */
const struct kvc_weights_naming *kvc_weights_find_k(const struct kvc_weights *w, uint32_t layer,
                                                    struct kvc_weights_tensor *k,
                                                    struct kvc_error *e);
/* Returns 1 when the file has the tensor, 0 when not, -1 when it cannot be used. t->name is set
 * where the naming has one. */
int kvc_weights_find(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                     enum kvc_weight which, uint32_t layer, struct kvc_weights_tensor *t,
                     struct kvc_error *e);
/* Loads the n factors of a norm (weights.c). Returns 1 where there is one, 0 where not, -1 where it
 * cannot be used. On failure *norm may be set, and is the caller's to free in every case. */
int kvc_weights_norm(const struct kvc_weights *w, const struct kvc_weights_naming *naming,
                     enum kvc_weight which, uint32_t layer, uint64_t n, float **norm,
                     struct kvc_error *e);
/* Fails because there is no tensor of this name. */
int kvc_weights_missing(const struct kvc_weights *w, const char *name, struct kvc_error *e);

#endif
