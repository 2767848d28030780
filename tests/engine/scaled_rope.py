"""scaled_rope.py: SmolLM2 with scaled RoPE, for test_engine.py: writes its GGUF file with other numbers, and computes K of layer 0,
whose input is the embedding of each token, by the formulas of ggml. Not for other models.
"""

import functools
import math

import gguf
import numpy as np

import server

DIM, HEADS, THETA = 64, 3, 100000.0
TEXT, NUMBER, COUNT = gguf.GGUFValueType.STRING, gguf.GGUFValueType.FLOAT32, gguf.GGUFValueType.UINT32
TABLE = 1 + np.arange(DIM // 2) / 4


def plain():
    return THETA ** (-np.arange(DIM // 2) / (DIM // 2))


def yarn(factor, original, fast=32, slow=1):
    """ggml/src/ggml-cpu/ops.cpp: rope_yarn, with an extrapolation factor of 1."""
    ends = [DIM * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(THETA)) for turns in (fast, slow)]
    low, high = max(0, math.floor(ends[0])), min(DIM - 1, math.ceil(ends[1]))
    kept = 1 - np.clip((np.arange(DIM // 2) - low) / max(0.001, high - low), 0, 1)
    return plain() / factor * (1 - kept) + plain() * kept


def length(factor, multiplier=1):
    return 1 + 0.1 * multiplier * math.log(factor)


def keys(kind, factor, original=None, **others):
    """Entries of a GGUF file below ARCHITECTURE.rope.scaling."""
    found = {"type": (kind, TEXT), "factor": (factor, NUMBER), **{k: (v, NUMBER) for k, v in others.items()}}
    return found | ({"original_context_length": (original, COUNT)} if original else {})


# what it is: architecture, keys, rope_freqs.weight, radians a position, length of K
CASES = {
    "a table and linear": ("llama", keys("linear", 2.0), TABLE, plain() / TABLE / 2, 1),
    "a table": ("llama", {}, TABLE, plain() / TABLE, 1),
    "YaRN, no original context": ("llama", keys("yarn", 4.0, attn_factor=0.5), None, yarn(4, 8192), 0.5 * length(4)),
    "YaRN, keys that LLaMA ignores": ("llama", keys("yarn", 16.0, 512, yarn_beta_fast=8.0, yarn_log_multiplier=0.7), None,
                                      yarn(16, 512), length(16)),
    "YaRN of Mistral 3": ("mistral3", keys("yarn", 16.0, 512, yarn_beta_fast=8.0, yarn_beta_slow=2.0, yarn_log_multiplier=0.7),
                          None, yarn(16, 512, 8, 2), length(16) / length(16, 0.7)),
}


@functools.cache
def source():
    """Entries of the model's file: name, value, type, type of items; and its reader."""
    reader = gguf.GGUFReader(server.model_path())
    array = gguf.GGUFValueType.ARRAY
    return [(f.name, f.contents(), f.types[0], f.types[-1] if f.types[0] == array else None) for f in reader.fields.values()
            if not f.name.startswith("GGUF.") and f.name != "general.architecture"], reader


def write(path, arch, scaling, table):
    entries, reader = source()
    writer = gguf.GGUFWriter(path, arch)
    for name, value, kind, items in entries:
        name = name.replace("llama.", arch + ".", 1) if name.startswith("llama.") else name
        writer.add_key_value(name, value, kind, sub_type=items)
    for name, (value, kind) in scaling.items():
        writer.add_key_value(f"{arch}.rope.scaling.{name}", value, kind)
    if table is not None:
        writer.add_tensor("rope_freqs.weight", table.astype(np.float32))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_shape=tensor.data.shape, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rotate(x, positions, angles):
    """Interleaved pairs of [tokens, heads, DIM]."""
    turn = (np.asarray(positions)[:, None] * angles)[:, None]
    a, b = x[..., 0::2], x[..., 1::2]
    return np.stack([a * np.cos(turn) - b * np.sin(turn), a * np.sin(turn) + b * np.cos(turn)], -1).reshape(x.shape)


def keys_before_rope(tokens):
    """K of layer 0 [tokens, heads, DIM]."""
    wanted = "token_embd.weight", "blk.0.attn_norm.weight", "blk.0.attn_k.weight"
    found = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in source()[1].tensors
             if t.name in wanted}
    hidden = found[wanted[0]][np.asarray(tokens)]
    inputs = hidden / np.sqrt((hidden * hidden).mean(1, keepdims=True) + 1e-5) * found[wanted[1]]
    return (inputs @ found[wanted[2]].T).reshape(len(hidden), HEADS, DIM)
