#!/usr/bin/env python3
"""make_queries.py: a made-up model whose attention has known inputs, for queries that are estimated. Not a usable model.

    make_queries.py [text=N] [TOKENS]

Writes into the current folder: model/ (safetensors, config.json), model.gguf (LLaMA, pairs interleaved, as llama.cpp's converter leaves them),
table.gguf (the same with another base of RoPE, and a table that makes up for it),
noq/ (model/ without the matrix of queries), and of TOKENS tokens the caches `with` (K, V and queries of all tokens) and `without`
(K and V), in f32, pairs in halves. 2 layers, 2 KV heads and 4 query heads of 16 channels, inputs of 72 channels."""
import json
import math
import os
import random
import struct
import sys

LAYERS, KV, QUERY, DIM, IN, THETA = 2, 2, 4, 16, 72, 10000.0
options = dict(a.split("=", 1) for a in sys.argv[1:] if "=" in a)
tokens = int(next((a for a in sys.argv[1:] if "=" not in a), 300))
random.seed(1)


def matrix(rows):
    return [[random.gauss(0, 0.3) for _ in range(IN)] for _ in range(rows)]


def flat(rows):
    return [v for row in rows for v in row]


def floats(values):
    return struct.pack("<%df" % len(values), *values)


def write_safetensors(path, arrays, metadata=None):
    header, body = {"__metadata__": metadata} if metadata else {}, b""
    for key, (shape, values) in arrays.items():
        data = floats(values)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def interleaved(rows):
    """Rows of heads in the order of interleaved pairs."""
    return [rows[h + i // 2 + i % 2 * DIM // 2] for h in range(0, len(rows), DIM) for i in range(DIM)]


def write_gguf(path, arrays, theta=THETA):
    def text(s):
        return struct.pack("<Q", len(s)) + s.encode()
    counts = {"block_count": LAYERS, "attention.head_count": QUERY, "attention.head_count_kv": KV, "embedding_length": IN,
              "attention.key_length": DIM, "attention.value_length": DIM, "rope.dimension_count": DIM}
    numbers = {"rope.freq_base": theta, "attention.layer_norm_rms_epsilon": 1e-5}
    out = struct.pack("<IIQQ", 0x46554747, 3, len(arrays), 1 + len(counts) + len(numbers))
    out += text("general.architecture") + struct.pack("<I", 8) + text("llama")
    out += b"".join(text("llama." + k) + struct.pack("<II", 4, v) for k, v in counts.items())
    out += b"".join(text("llama." + k) + struct.pack("<If", 6, v) for k, v in numbers.items())
    body = b""
    for key, (shape, values) in arrays.items():
        out += text(key) + struct.pack("<I", len(shape)) + struct.pack("<%dQ" % len(shape), *reversed(shape))
        out += struct.pack("<IQ", 0, len(body))
        body += floats(values)
        body += b"\0" * (-len(body) % 32)
    with open(path, "wb") as f:
        f.write(out + b"\0" * (-len(out) % 32) + body)


def heads_of(w, u, position):
    """A row W u, RoPE rotated by the position."""
    row = [sum(map(float.__mul__, weights, u)) for weights in w]
    for h in range(0, len(row), DIM):
        for i in range(DIM // 2):
            angle = position * THETA ** (-2 * i / DIM)
            a, b = row[h + i], row[h + i + DIM // 2]
            row[h + i] = a * math.cos(angle) - b * math.sin(angle)
            row[h + i + DIM // 2] = a * math.sin(angle) + b * math.cos(angle)
    return row


def by_head(rows, heads):
    """[token][head * channel] as [1][head][token][channel], as transformers keeps caches."""
    return [1, heads, len(rows), DIM], [v for h in range(heads) for row in rows for v in row[h * DIM:(h + 1) * DIM]]


layers = [{"k": matrix(KV * DIM), "v": matrix(KV * DIM), "q": matrix(QUERY * DIM), "norm": [random.uniform(0.5, 1.5) for _ in range(IN)]}
          for _ in range(LAYERS)]
hf, gguf, cache, queries = {}, {}, {}, {}
random.seed(int(options.get("text", 1)))
for n, layer in enumerate(layers):
    for role in "kvq":
        shape = [len(layer[role]), IN]
        hf["model.layers.%d.self_attn.%s_proj.weight" % (n, role)] = shape, flat(layer[role])
        gguf["blk.%d.attn_%s.weight" % (n, role)] = shape, flat(layer[role] if role == "v" else interleaved(layer[role]))
    hf["model.layers.%d.input_layernorm.weight" % n] = gguf["blk.%d.attn_norm.weight" % n] = [IN], layer["norm"]
    rows = {"k": [], "v": [], "q": []}
    topics = [[random.gauss(0, 1) for _ in range(IN)] for _ in range(6)]  # of which inputs are made, and noise
    for t in range(tokens):
        u = [sum(parts) + random.gauss(0, 0.5) for parts in zip(*random.sample(topics, 2))]
        length = math.sqrt(sum(x * x for x in u) / IN)
        u = [x / length * g for x, g in zip(u, layer["norm"])]
        for role in "kvq":
            rows[role].append(heads_of(layer[role], u, 0 if role == "v" else t))
    cache["layers.%d.keys" % n] = by_head(rows["k"], KV)
    cache["layers.%d.values" % n] = by_head(rows["v"], KV)
    queries["queries.%d" % n] = by_head(rows["q"], QUERY)
facts = {"format": "kvc", "rope_pairing": "half"}
write_safetensors("with", {**cache, **queries}, facts)
write_safetensors("without", cache, facts)
for folder in "model", "noq":
    os.makedirs(folder, exist_ok=True)
    write_safetensors(folder + "/model.safetensors", {k: v for k, v in hf.items() if folder == "model" or "q_proj" not in k})
    with open(folder + "/config.json", "w") as f:
        json.dump({"model_type": "llama", "num_hidden_layers": LAYERS, "num_attention_heads": QUERY, "num_key_value_heads": KV,
                   "head_dim": DIM, "hidden_size": IN, "rope_theta": THETA, "rms_norm_eps": 1e-5}, f)
write_gguf("model.gguf", gguf)
table = [(THETA / 100) ** (2 * i / DIM) for i in range(DIM // 2)]
write_gguf("table.gguf", {**gguf, "rope_freqs.weight": ([DIM // 2], table)}, 100)
