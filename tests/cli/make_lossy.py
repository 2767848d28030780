#!/usr/bin/env python3
"""make_lossy.py: a cache of a made-up model in safetensors, large enough for lossy recipes. Not for real caches.

    make_lossy.py FILE DTYPE TOKENS [QUERIES] [interleaved] [wild]

DTYPE is f32, f16 or bf16; 4 layers, 2 KV heads of 64, token ids. Keys are as in make_turning.py: a mean of each
channel, turned by RoPE, with noise; layers are alike, so that they can be merged. With QUERIES: 4 query heads at the last
so many positions. `interleaved`: RoPE pairs (2i, 2i + 1); else (i, i + 32). `wild`: NaN, infinities and 1e38 here and
there."""
import json
import math
import random
import struct
import sys

import made_rows
from made_rows import normal

name, dtype, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
options = sys.argv[4:]
queries = int(options.pop(0)) if options and options[0].isdigit() else 0
LAYERS, HEADS, QUERY_HEADS, DIM, HALF = 4, 2, 4, 64, 32


def pack(values):
    if dtype == "bf16":
        data, out = struct.pack("<%df" % len(values), *values), bytearray(2 * len(values))
        out[::2], out[1::2] = data[2::4], data[3::4]
        return bytes(out)
    return struct.pack("<%d%s" % (len(values), {"f32": "f", "f16": "e"}[dtype]), *values)


def turned(row, position):
    return made_rows.turned(row, made_rows.turns(position, 1e4, HALF), "interleaved" in options)


source, asking = random.Random(1), random.Random(2)  # K and V do not depend on the queries
mean = [[source.gauss(0, 1) * (4 if i % 13 == 0 else 1) for i in range(DIM)] for _ in range(QUERY_HEADS)]
base = [[0.5 * z for z in normal(source, HEADS * DIM)] for _ in range(tokens)]  # what layers have in common
arrays = {}
for layer in range(LAYERS):
    k, v, q = ([[] for _ in range(n)] for n in (HEADS, HEADS, QUERY_HEADS))
    for t in range(tokens):
        for h in range(HEADS):
            shared = base[t][h * DIM:(h + 1) * DIM]
            k[h] += turned([m + s + 0.2 * z for m, s, z in zip(mean[h], shared, normal(source, DIM))], t)
            v[h] += [s + 0.2 * z for s, z in zip(shared, normal(source, DIM))]
    for t in range(tokens - queries, tokens):
        for h in range(QUERY_HEADS):
            q[h] += turned([m + z for m, z in zip(mean[h], normal(asking, DIM))], t)
    if "wild" in options:
        k[0][5 * DIM + 3], k[1][300 * DIM], v[0][7], v[1][9 * DIM + 1] = math.nan, math.inf, -math.inf, math.nan
        if dtype != "f16":
            k[1][6 * DIM + 3], v[1][11] = 1e38, -1e38
    arrays[f"layers.{layer}.keys"] = [1, HEADS, tokens, DIM], dtype.upper(), pack(sum(k, []))
    arrays[f"layers.{layer}.values"] = [1, HEADS, tokens, DIM], dtype.upper(), pack(sum(v, []))
    if queries:
        arrays[f"queries.{layer}"] = [1, QUERY_HEADS, queries, DIM], dtype.upper(), pack(sum(q, []))
arrays["tokens"] = [tokens], "I32", struct.pack("<%di" % tokens, *(7919 * i % 50000 for i in range(tokens)))
header, body = {"__metadata__": {"rope_pairing": "interleaved" if "interleaved" in options else "halves"}}, b""
for key, (shape, kind, data) in arrays.items():
    header[key] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
    body += data
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(name, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
