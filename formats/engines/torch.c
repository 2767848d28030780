/* torch.c: files of torch.save(): a zip with a pickle that describes tensors, and their storages. Not for opcodes of pickles
 * (pickle.c). */
#include "formats/engines/torch.h"

#include "codecs/dtype.h"
#include "formats/engines/arrays_read.h"
#include "formats/io/bytes.h"

#include <stdio.h>
#include <string.h>

const struct kvc_torch_type kvc_torch_types[] = {
    {"torch.FloatStorage", "torch.float32", "float32", KVC_F32, 4, 0},
    {"torch.HalfStorage", "torch.float16", "float16", KVC_F16, 2, 0},
    {"torch.BFloat16Storage", "torch.bfloat16", "bfloat16", KVC_BF16, 2, 0},
    {"torch.ByteStorage", "torch.uint8", "uint8", KVC_U8, 1, 0},
    {"torch.CharStorage", "torch.int8", "int8", KVC_I8, 1, 0},
    {"torch.IntStorage", "torch.int32", "int32", -1, 4, 1},
    {"torch.LongStorage", "torch.int64", "int64", -1, 8, 1},
    {"torch.DoubleStorage", "torch.float64", "float64", -1, 8, 0},
    {"torch.ShortStorage", "torch.int16", "int16", -1, 2, 0},
    {"torch.BoolStorage", "torch.bool", "bool", -1, 1, 0},
    {KVC_TORCH_UNTYPED, "torch.float8_e4m3fn", "float8_e4m3fn", KVC_F8E4M3, 1, 0},
    {KVC_TORCH_UNTYPED, "torch.float8_e5m2", "float8_e5m2", KVC_F8E5M2, 1, 0},
    {NULL, NULL, NULL, -1, 0, 0},
};

/* Recognises a zip whose first member is NAME/data.pkl. */
static int probe(const struct kvc_bundle *b, char *why, size_t size) {
    static const char member[] = "/data.pkl";
    const size_t n = sizeof member - 1;
    const struct kvc_input *in = b->one.in;
    uint8_t head[30], end[sizeof member];
    snprintf(why, size, "no zip that begins with data.pkl");
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    const size_t name = get_u16(head + 26);
    return memcmp(head, "PK\3\4", 4) == 0 && name >= n && in->size >= 30 + name &&
           !kvc_input_copy(in, 30 + name - n, end, n, NULL) && memcmp(end, member, n) == 0;
}

const struct kvc_format kvc_format_torch = {
    .name = "torch",
    .summary = "tensors of torch.save()",
    .suffix = ".pt",
    .import_options = kvc_arrays_options,
    .source = KVC_SOURCE_TORCH,
    .lacks = KVC_LACKS_UNKNOWNS,
    .no_source = "the bytes of a PyTorch file with compressed members are not recorded",
    .probe = probe,
    .import = kvc_torch_read,
    .export = kvc_torch_write,
};
