/* torch_write.c: writes K and V as a file of torch.save(): a dict of contiguous tensors, which
 * torch.load(weights_only=True) reads. Not for reading such files (torch.c). */
#include "formats/engines/torch.h"

#include "formats/engines/arrays_write.h"
#include "formats/io/bytes.h"
#include "formats/io/zip_write.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct kvc_torch_type kvc_torch_types[] = {
    {"torch.FloatStorage", "torch.float32", "float32", KVC_F32, 4, 0, 0},
    {"torch.HalfStorage", "torch.float16", "float16", KVC_F16, 2, 0, 0},
    {"torch.BFloat16Storage", "torch.bfloat16", "bfloat16", KVC_BF16, 2, 0, 0},
    {"torch.ByteStorage", "torch.uint8", "uint8", KVC_U8, 1, 0, 1},
    {"torch.CharStorage", "torch.int8", "int8", KVC_I8, 1, 0, 1},
    {"torch.IntStorage", "torch.int32", "int32", -1, 4, 1, 0},
    {"torch.LongStorage", "torch.int64", "int64", -1, 8, 1, 0},
    {"torch.DoubleStorage", "torch.float64", "float64", -1, 8, 0, 0},
    {"torch.ShortStorage", "torch.int16", "int16", -1, 2, 0, 1},
    {"torch.BoolStorage", "torch.bool", "bool", -1, 1, 0, 0},
    {KVC_TORCH_UNTYPED, "torch.float8_e4m3fn", "float8_e4m3fn", KVC_F8E4M3, 1, 0, 0},
    {KVC_TORCH_UNTYPED, "torch.float8_e5m2", "float8_e5m2", KVC_F8E5M2, 1, 0, 0},
    {KVC_TORCH_UNTYPED, "torch.uint16", "uint16", -1, 2, 0, 1},
    {NULL, NULL, NULL, -1, 0, 0, 0},
};

#define FOLDER "archive/" /* as torch.save() names it where it does not know the file's name */
enum { ALIGN = 64 };      /* of storages, as torch.save() aligns them, for torch.load(mmap=True) */

int kvc_torch_keeps(enum kvc_dtype dtype) {
    for (const struct kvc_torch_type *t = kvc_torch_types; t->dtype; t++)
        if (t->kvc == (int)dtype) return 1;
    return 0;
}

static const struct kvc_torch_type *type_of(const struct kvc_arrays_item *item) {
    const int is_int = item->kind != KVC_NAME_TENSOR;
    const struct kvc_torch_type *t = kvc_torch_types;
    while (is_int ? !t->is_int || t->size != item->size : t->kvc != (int)item->dtype) t++;
    return t;
}

/* --- the pickle, protocol 2 --- */

struct pickler {
    struct kvc_sink to;
    struct kvc_error *e;
    int failed;
};

static void put(struct pickler *p, const void *bytes, size_t n) {
    if (!p->failed && kvc_sink_write(&p->to, bytes, n, p->e)) p->failed = 1;
}

static void put_text(struct pickler *p, const char *text) {
    uint8_t head[5] = {'X'};
    put_u32(head + 1, (uint32_t)strlen(text));
    put(p, head, sizeof head);
    put(p, text, strlen(text));
}

/* Writes an integer of 63 bits. */
static void put_integer(struct pickler *p, uint64_t n) {
    uint8_t bytes[10] = {n > INT32_MAX ? 0x8a : 'J', 8};
    if (n > INT32_MAX) put_u64(bytes + 2, n);
    else put_u32(bytes + 1, (uint32_t)n);
    put(p, bytes, n > INT32_MAX ? 10 : 5);
}

static void put_global(struct pickler *p, const char *full) {
    const char *name = strrchr(full, '.') + 1;
    put(p, "c", 1);
    put(p, full, (size_t)(name - 1 - full));
    put(p, "\n", 1);
    put(p, name, strlen(name));
    put(p, "\n", 1);
}

static void put_counts(struct pickler *p, const uint64_t *count, unsigned n) {
    put(p, "(", 1);
    for (unsigned i = 0; i < n; i++) put_integer(p, count[i]);
    put(p, "t", 1);
}

/* Writes a name, and the call that makes its tensor of storage number i. */
static void put_item(struct pickler *p, const struct kvc_arrays_item *item, size_t i) {
    const struct kvc_torch_type *type = type_of(item);
    const int untyped = strcmp(type->storage, KVC_TORCH_UNTYPED) == 0;
    uint64_t stride[4], elements = 1;
    char key[24];
    for (unsigned k = item->rank; k-- > 0; elements *= item->dim[k]) stride[k] = elements;
    snprintf(key, sizeof key, "%zu", i);
    put_text(p, item->name);
    put_global(p, untyped ? "torch._utils._rebuild_tensor_v3" : "torch._utils._rebuild_tensor_v2");
    put(p, "((", 2);
    put_text(p, "storage");
    put_global(p, type->storage);
    put_text(p, key);
    put_text(p, "cpu");
    put_integer(p, elements); /* of an untyped storage: bytes, of which each element has one */
    put(p, "tQ", 2);
    put_integer(p, 0);
    put_counts(p, item->dim, item->rank);
    put_counts(p, stride, item->rank);
    put(p, "\x89", 1);
    put_global(p, "collections.OrderedDict");
    put(p, ")R", 2);
    if (untyped) put_global(p, type->dtype);
    put(p, "tR", 2);
}

static int write_pickle(struct kvc_zip_writer *zip, const struct kvc_arrays *list,
                        struct kvc_error *e) {
    struct kvc_buffer bytes = {NULL, 0, 0};
    struct pickler p = {.to = kvc_sink_buffer(&bytes), .e = e};
    put(&p, "\x80\x02}(", 4);
    for (size_t i = 0; i < list->n; i++) put_item(&p, &list->item[i], i);
    put(&p, "u.", 2);
    const int status = p.failed
                           ? -1
                           : kvc_zip_add(zip, FOLDER "data.pkl", bytes.data, bytes.n, ALIGN, e);
    free(bytes.data);
    return status;
}

/* --- the file --- */

static int torch_write_write_file(struct kvc_zip_writer *zip, const struct kvc_arrays *list,
                                  struct kvc_error *e) {
    char name[48];
    if (write_pickle(zip, list, e) || kvc_zip_add(zip, FOLDER "byteorder", "little", 6, ALIGN, e))
        return -1;
    for (size_t i = 0; i < list->n; i++) {
        uint8_t *bytes;
        snprintf(name, sizeof name, FOLDER "data/%zu", i);
        int status = kvc_arrays_read(list, i, &bytes, e);
        if (!status) status = kvc_zip_add(zip, name, bytes, list->item[i].bytes, ALIGN, e);
        free(bytes);
        if (status) return -1;
    }
    if (kvc_zip_add(zip, FOLDER "version", "3\n", 2, ALIGN, e)) return -1;
    if (kvc_zip_finish(zip, e)) return -1;
    return 0;
}

/* Writes the tensors of arrays_write.h under their names. Metadata are not written. */
int kvc_torch_write(const struct kvc_cache *c, const struct kvc_export_options *o,
                    struct kvc_sink *out, struct kvc_error *e) {
    struct kvc_arrays list;
    struct kvc_zip_writer zip;
    if (kvc_arrays_list(&list, c, o, kvc_torch_keeps, KVC_IDS_FROM_0, e)) return -1;
    kvc_zip_writer_init(&zip, out);
    const int status = torch_write_write_file(&zip, &list, e);
    kvc_zip_writer_free(&zip);
    kvc_arrays_free(&list);
    return status;
}
