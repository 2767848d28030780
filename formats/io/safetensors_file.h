/* safetensors_file.h: the header of a safetensors file, read strictly and written. Not for what
 * tensors mean: caches (formats/engines), weights and profiles (formats/model).
 *
 *   offset | size | name
 *        0 |    8 | n, little-endian
 *        8 |    n | JSON object: "__metadata__" {text: text}, per tensor "name": {dtype, shape,
 * data_offsets} 8 + n |      | data, from which offsets count
 *
 * The reader takes the bytes of the header and the size of the file, wherever they come from. */
#ifndef KVC_SAFETENSORS_FILE_H
#define KVC_SAFETENSORS_FILE_H

#include "codecs/error.h"
#include "formats/io/sink.h"

#include <stddef.h>
#include <stdint.h>

/* maximum bytes of JSON, as in the reference library */
#define KVC_SAFETENSORS_HEADER UINT64_C(100000000)

struct json_t; /* of jansson */
struct kvc_input;

/* An element type of safetensors. */
struct kvc_safetensors_type {
    const char *name;
    unsigned bits;
    int dtype; /* enum kvc_dtype; -1: kvc has none for these values */
};
/* Find a type by its name or by enum kvc_dtype. NULL: safetensors has no such type. */
const struct kvc_safetensors_type *kvc_safetensors_type_by_name(const char *name);
const struct kvc_safetensors_type *kvc_safetensors_type_of(int dtype);

/* --- reading --- */

struct kvc_safetensors_tensor {
    const char *name;
    const char *dtype;                       /* as in the file */
    const struct kvc_safetensors_type *type; /* NULL: unknown, see KVC_SAFETENSORS_ANY_DTYPE */
    uint64_t rank;
    const uint64_t *dim; /* the last varies fastest */
    uint64_t begin, end; /* offsets from the start of the data */
};

/* A header that was read. Pointers in it live until kvc_safetensors_free(). */
struct kvc_safetensors {
    uint64_t data_at, data_size; /* of the data in the file, bytes */
    size_t n;
    struct kvc_safetensors_tensor *tensor; /* in the order of their data */
    size_t *by_name;                       /* numbers of tensors, sorted by name */
    uint64_t *dims;
    struct json_t *root;
};

/* How strictly a header is read, beyond what holds for all: no key occurs twice, an entry has its
 * three keys and no others, data lies inside the file and does not overlap, bytes agree with the
 * shape, metadata are texts. */
enum {
    KVC_SAFETENSORS_NO_HOLES = 1, /* each tensor begins where the one before it ends */
    KVC_SAFETENSORS_NO_REST = 2,  /* the data end with the last tensor */
    /* dtypes that safetensors does not know are accepted, and any number of bytes for them */
    KVC_SAFETENSORS_ANY_DTYPE = 4,
    KVC_SAFETENSORS_COVERED = KVC_SAFETENSORS_NO_HOLES | KVC_SAFETENSORS_NO_REST
};

/* Returns the bytes of the header with its length, at most 8 + KVC_SAFETENSORS_HEADER, or 0 and a
 * reason in `why` where a file does not begin as safetensors do. `have` counts the bytes at `head`:
 * 9 are enough. */
uint64_t kvc_safetensors_begins(const uint8_t *head, uint64_t have, char *why, size_t size);

/* Reads the header of a file of `file_size` bytes. At least as many bytes as
 * kvc_safetensors_begins() returns are at `head`, or all of the file if it has fewer.
 * KVC_ERR_UNKNOWN_FORMAT: it does not begin as safetensors do; KVC_ERR_DAMAGED: it breaks the
 * format. On failure *s is empty. */
int kvc_safetensors_read(struct kvc_safetensors *s, const uint8_t *head, uint64_t file_size,
                         unsigned strictness, struct kvc_error *e);
/* Reads the header of an input, and pins the bytes of the header meanwhile. */
int kvc_safetensors_read_input(struct kvc_safetensors *s, const struct kvc_input *in,
                               unsigned strictness, struct kvc_error *e);
void kvc_safetensors_free(struct kvc_safetensors *s);

/* Finds a tensor; NULL where there is none of this name. */
const struct kvc_safetensors_tensor *kvc_safetensors_find(const struct kvc_safetensors *s,
                                                          const char *name);
/* Returns 1 where the header has "__metadata__", be it empty. */
int kvc_safetensors_has_metadata(const struct kvc_safetensors *s);
/* Returns a text of "__metadata__"; NULL where there is none of this key. */
const char *kvc_safetensors_text(const struct kvc_safetensors *s, const char *key);

/* --- writing --- */

/* A header that grows as tensors are added, whose data follow each other in the order of adding. */
struct kvc_safetensors_writer {
    struct json_t *root, *metadata;
    uint64_t data_size; /* bytes of data so far */
};

int kvc_safetensors_writer_init(struct kvc_safetensors_writer *w, struct kvc_error *e);
void kvc_safetensors_writer_free(struct kvc_safetensors_writer *w);
/* Adds a text to the metadata, or replaces it. Both are UTF-8. */
int kvc_safetensors_add_text(struct kvc_safetensors_writer *w, const char *key, const char *text,
                             struct kvc_error *e);
/* Adds all texts of the metadata of a file that was read. */
int kvc_safetensors_copy_texts(struct kvc_safetensors_writer *w, const struct kvc_safetensors *from,
                               struct kvc_error *e);
/* Adds a tensor. `type` is a name of kvc_safetensors_type_by_name(). */
int kvc_safetensors_add(struct kvc_safetensors_writer *w, const char *name, const char *type,
                        const uint64_t *dim, unsigned rank, struct kvc_error *e);
/* Writes the length and the JSON, metadata first, with spaces up to a multiple of 8. The caller
 * then writes the data. */
int kvc_safetensors_write(const struct kvc_safetensors_writer *w, struct kvc_sink *out,
                          struct kvc_error *e);

#endif
