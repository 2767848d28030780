#!/usr/bin/env python3
"""requantise.py: a GGUF file whose matrices of attention are rounded to a type of ggml, for queries.sh.

    requantise.py IN.gguf TYPE OUT.gguf    TYPE: f16, q4_K, ...

The matrices are quantised by ggml itself (out of xllamacpp), without an importance matrix. Rows that are no whole number of blocks,
which a file cannot hold, are quantised one after the other as if they were one row, and stored in f32 as the type rounds them.
Tensors other than those of attention are left out.
"""

import ctypes
import sys

import gguf
import numpy as np
import xllamacpp.xllamacpp

WANTED = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_norm.weight", "attn_q.bias", "attn_k.bias", "attn_v.bias")


def quantised(values, kind):
    """The blocks of values, bytes."""
    library = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    library.ggml_quantize_init(kind.value)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    values = np.ascontiguousarray(values, np.float32)
    to = np.zeros(values.size // block * size, np.uint8)
    quantise = library.ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    quantise.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    if quantise(kind.value, values.ctypes.data, to.ctypes.data, 0, 1, values.size, None) != to.size:
        sys.exit(f"requantise.py: ggml does not quantise to {kind.name}")
    return to


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__.split("\n\n")[1].strip())
    source, name, target = sys.argv[1:]
    kind = gguf.GGMLQuantizationType[name.upper()]
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, arch)
    for field in reader.fields.values():
        if field.name.startswith(arch + ".") and field.types[0] != gguf.GGUFValueType.ARRAY:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        if not tensor.name.endswith(WANTED):
            continue
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, values)
        elif kind == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(tensor.name, values.astype(np.float16))
        else:
            blocks = quantised(values, kind)
            if values.shape[1] % gguf.GGML_QUANT_SIZES[kind][0]:
                writer.add_tensor(tensor.name, gguf.quants.dequantize(blocks, kind).reshape(values.shape))
            else:
                writer.add_tensor(tensor.name, blocks.reshape(values.shape[0], -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
