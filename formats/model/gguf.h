/* gguf.h: the header of a GGUF weights file: metadata and tensor infos. Not for the weights
 * (weights.h), and not for what the metadata means (model.c). Versions 2 and 3, little-endian. */
#ifndef KVC_GGUF_H
#define KVC_GGUF_H

#include "codecs/error.h"
#include "formats/io/input.h"

#include <stddef.h>
#include <stdint.h>

enum kvc_gguf_type {
    KVC_GGUF_U8 = 0,
    KVC_GGUF_I8 = 1,
    KVC_GGUF_U16 = 2,
    KVC_GGUF_I16 = 3,
    KVC_GGUF_U32 = 4,
    KVC_GGUF_I32 = 5,
    KVC_GGUF_F32 = 6,
    KVC_GGUF_BOOL = 7,
    KVC_GGUF_STRING = 8,
    KVC_GGUF_ARRAY = 9,
    KVC_GGUF_U64 = 10,
    KVC_GGUF_I64 = 11,
    KVC_GGUF_F64 = 12
};

/* A key and its value. A single value is stored as an array of one item, with `array` 0. */
struct kvc_gguf_entry {
    const char *key; /* not NUL-terminated */
    uint64_t key_size;
    uint32_t type; /* of the items */
    int array;
    uint64_t count;       /* items */
    const uint8_t *items; /* as in the file; every item lies inside it */
};

#define KVC_GGUF_RANK 4
/* bytes of a header at most; real ones have up to 20 MB */
#define KVC_GGUF_HEADER (UINT64_C(1) << 30)

/* Info of a tensor. Its data begin inside the file. The caller checks that they end inside the
 * file, too: the number of bytes depends on the type. */
struct kvc_gguf_tensor {
    uint32_t type, rank; /* type: ggml's number */
    /* the first varies fastest; 1 beyond the rank; no dimension is 0, the product is below 2^63 */
    uint64_t dim[KVC_GGUF_RANK];
    uint64_t offset; /* of the data in the file */
};

/* A header. Its pointers point into the bytes of the input, which must outlive it. */
struct kvc_gguf {
    uint32_t version;
    uint64_t n_entries, n_tensors;
    struct kvc_gguf_entry *entry;
    const uint8_t *tensors; /* the tensor infos, checked */
    /* each of them, sorted by name; those of one name as in the file */
    const uint8_t **by_name;
    uint64_t data_offset; /* where tensor data begins: the size of the header */
};

/* Reads and checks the whole header: counts, types, string lengths, duplicate keys, alignment,
 * tensor offsets. The header stays pinned until the input is closed. On failure *g is empty and
 * nothing stays pinned. */
int kvc_gguf_open(struct kvc_gguf *g, const struct kvc_input *in, struct kvc_error *e);
void kvc_gguf_close(struct kvc_gguf *g);

const struct kvc_gguf_entry *kvc_gguf_find(const struct kvc_gguf *g, const char *key);
/* Returns a whole number that is not negative: the value of `key`, or the number that all items of
 * its array equal. Returns `otherwise` when the key is absent, is no whole number, or has items
 * that differ (*differ, which may be NULL, is then 1). */
uint64_t kvc_gguf_u64(const struct kvc_gguf *g, const char *key, uint64_t otherwise, int *differ);
/* Reads item i of an entry, i below its count, as a whole number; BOOL as 0 or 1. Returns 0 when
 * the item is negative or no number. */
int kvc_gguf_item(const struct kvc_gguf_entry *entry, uint64_t i, uint64_t *v);
/* Returns an F32 or F64 value, or `otherwise`. */
double kvc_gguf_f64(const struct kvc_gguf *g, const char *key, double otherwise);
/* Returns the bytes of a string (not NUL-terminated), or NULL. */
const char *kvc_gguf_text(const struct kvc_gguf *g, const char *key, uint64_t *size);
/* Walks an array of strings: start at entry->items, call entry->count times. */
const char *kvc_gguf_next_string(const uint8_t **at, uint64_t *size);
/* Walks the tensors: start at g->tensors, call g->n_tensors times. Returns the name (not
 * NUL-terminated). */
const char *kvc_gguf_next_tensor(const uint8_t **at, uint64_t *size, uint32_t *rank);
/* Returns 1 when the file has a tensor of this name. */
int kvc_gguf_has_tensor(const struct kvc_gguf *g, const char *name);
/* The same; fills *t with the first of this name. */
int kvc_gguf_tensor(const struct kvc_gguf *g, const char *name, struct kvc_gguf_tensor *t);
/* Returns a tensor type as ggml spells it: "q6_K"; NULL when this kvc does not know the number. */
const char *kvc_gguf_type_name(uint32_t type);

#endif
