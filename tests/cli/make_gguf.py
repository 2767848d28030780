#!/usr/bin/env python3
"""make_gguf.py: a GGUF file that describes a llama model and has one small tensor. Not a usable model.

    make_gguf.py FILE NAME LAYERS HEADS KV_HEADS HEAD_DIM [SEED]"""
import random
import struct
import sys


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def main():
    path, name = sys.argv[1:3]
    layers, heads, kv_heads, head_dim = (int(a) for a in sys.argv[3:7])
    seed = int(sys.argv[7]) if len(sys.argv) > 7 else 0
    keys = [("general.architecture", "llama"), ("general.name", name), ("llama.block_count", layers),
            ("llama.attention.head_count", heads), ("llama.attention.head_count_kv", kv_heads),
            ("llama.embedding_length", heads * head_dim), ("llama.attention.key_length", head_dim),
            ("llama.attention.value_length", head_dim), ("llama.rope.dimension_count", head_dim),
            ("llama.rope.freq_base", 100000.0)]
    out = struct.pack("<IIQQ", 0x46554747, 3, 1, len(keys))
    for key, value in keys:
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, float):
            out += struct.pack("<If", 6, value)
        else:
            out += struct.pack("<II", 4, value)
    out += text("token_embd.weight") + struct.pack("<IQIQ", 1, 64, 0, 0)
    out += b"\0" * (-len(out) % 32)
    numbers = random.Random(seed)
    out += struct.pack("<64f", *(numbers.uniform(-1, 1) for _ in range(64)))
    with open(path, "wb") as f:
        f.write(out)


main()
