#!/usr/bin/env python3
"""make_hidden.py FILE [HEADS]: a safetensors cache of 4 layers with the hidden states that it was made from and the
weights (wk.N, wv.N): 300 tokens, d_model 24, HEADS (3) heads of 8 channels, f32; the states of neighbouring layers are alike.
"""
import json
import math
import random
import struct
import sys

LAYERS, TOKENS, D, DIM, THETA = 4, 300, 24, 8, 10000.0
heads = int(sys.argv[2]) if len(sys.argv) > 2 else 3
random.seed(7)


def rope(row, position):
    for h in range(heads):
        for i in range(DIM // 2):
            angle = position * THETA ** (-2 * i / DIM)
            u, v = row[h * DIM + i], row[h * DIM + i + DIM // 2]
            row[h * DIM + i] = u * math.cos(angle) - v * math.sin(angle)
            row[h * DIM + i + DIM // 2] = v * math.cos(angle) + u * math.sin(angle)
    return row


def rounded(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


base = [[random.gauss(0, 1) for _ in range(D)] for _ in range(TOKENS)]
tensors = {}
for layer in range(LAYERS):
    base = [[rounded(x + random.gauss(0, 0.05)) for x in row] for row in base]
    made = {}
    for what in "kv":
        w = [[rounded(random.gauss(0, D ** -0.5)) for _ in range(D)] for _ in range(heads * DIM)]
        rows = [[sum(a * b for a, b in zip(x, out)) for out in w] for x in base]
        made[what] = [rope(row, t) for t, row in enumerate(rows)] if what == "k" else rows
        tensors[f"w{what}.{layer}"] = ([heads * DIM, D], [x for out in w for x in out])
    for name, what in ("keys", "k"), ("values", "v"):
        by_head = [x for h in range(heads) for row in made[what] for x in row[h * DIM:(h + 1) * DIM]]
        tensors[f"layers.{layer}.{name}"] = ([1, heads, TOKENS, DIM], by_head)
    tensors[f"hidden.{layer}"] = ([1, TOKENS, D], [x for row in base for x in row])

header = {"__metadata__": {"rope_type": "default", "rope_theta": str(THETA), "rope_dim": str(DIM), "rope_pairing": "half",
                           "k_rope": "post", "hidden": "input of k_proj and v_proj, after the attention RMSNorm"}}
body = b""
for name, (shape, values) in tensors.items():
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + 4 * len(values)]}
    body += struct.pack(f"<{len(values)}f", *values)
text = json.dumps(header).encode()
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
