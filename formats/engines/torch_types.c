/* torch_types.c: the table of PyTorch's element types. */
#include "formats/engines/torch_types.h"

#include "codecs/dtype.h"

#include <stddef.h>

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
