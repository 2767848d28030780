#!/usr/bin/env python3
"""make_gguf.py: a GGUF file that describes a model and has one small tensor. Not a usable model.

    make_gguf.py FILE NAME LAYERS HEADS KV_HEADS HEAD_DIM [SEED [ARCHITECTURE WINDOW [PATTERN]]] [vocabulary=JSON] [fact=KEY=JSON]...

The architecture is llama unless given; WINDOW is the sliding window, PATTERN which layers have it: a number, or a digit for each.
vocabulary: a JSON list of the spelled tokens. fact: a further key of the architecture: a number, a text or a list of whole numbers."""
import json
import random
import struct
import sys


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def main():
    vocabulary = [a for a in sys.argv if a.startswith("vocabulary=")]
    facts = [a[5:].split("=", 1) for a in sys.argv if a.startswith("fact=")]
    sys.argv = [a for a in sys.argv if a not in vocabulary and not a.startswith("fact=")]
    path, name = sys.argv[1:3]
    layers, heads, kv_heads, head_dim = (int(a) for a in sys.argv[3:7])
    seed = int(sys.argv[7]) if len(sys.argv) > 7 else 0
    arch = sys.argv[8] if len(sys.argv) > 8 else "llama"
    keys = [("general.architecture", arch), ("general.name", name), (arch + ".block_count", layers),
            (arch + ".attention.head_count", heads), (arch + ".attention.head_count_kv", kv_heads),
            (arch + ".embedding_length", heads * head_dim), (arch + ".attention.key_length", head_dim),
            (arch + ".attention.value_length", head_dim), (arch + ".rope.dimension_count", head_dim),
            (arch + ".rope.freq_base", 100000.0)]
    if len(sys.argv) > 9:
        keys += [(arch + ".attention.sliding_window", int(sys.argv[9]))]
    if len(sys.argv) > 10:
        pattern = sys.argv[10]
        keys += [(arch + ".attention.sliding_window_pattern", int(pattern) if len(pattern) < 3 else [d == "1" for d in pattern])]
    keys += [("tokenizer.ggml.tokens", json.loads(v[len("vocabulary="):])) for v in vocabulary]
    keys += [(arch + "." + key, json.loads(value)) for key, value in facts]
    out = struct.pack("<IIQQ", 0x46554747, 3, 1, len(keys))
    for key, value in keys:
        out += text(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list) and value and isinstance(value[0], str):
            out += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(t) for t in value)
        elif isinstance(value, list) and value and not isinstance(value[0], bool):
            out += struct.pack("<IIQ", 9, 5, len(value)) + struct.pack(f"<{len(value)}i", *value)
        elif isinstance(value, list):
            out += struct.pack("<IIQ", 9, 7, len(value)) + bytes(value)
        elif isinstance(value, float):
            out += struct.pack("<If", 6, value)
        else:
            out += struct.pack("<II", 4, value)
    out += text("blk.0.attn_k.weight") + struct.pack("<IQQIQ", 2, 8, 8, 0, 0)
    out += b"\0" * (-len(out) % 32)
    numbers = random.Random(seed)
    out += struct.pack("<64f", *(numbers.uniform(-1, 1) for _ in range(64)))
    with open(path, "wb") as f:
        f.write(out)


main()
