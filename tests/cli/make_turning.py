#!/usr/bin/env python3
"""make_turning.py: raw K and V of a made-up model whose keys RoPE has turned, for tests. Not for real caches.

    make_turning.py FILE DTYPE TOKENS      f32, f16 or bf16; one layer, 2 heads of 64

Prints the geometry for --raw. Channels i and i + 32 of a head of K are a mean of their own turned by position *
10000^(-i / 32), with noise; those of V stay where they are."""
import random
import struct
import sys

import made_rows

name, dtype, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
HEADS, DIM, HALF = 2, 64, 32


def pack(values):
    if dtype == "bf16":
        return b"".join(struct.pack("<f", v)[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), {"f32": "f", "f16": "e"}[dtype]), *values)


source = random.Random(1)
means = [[source.gauss(0, 3) for _ in range(DIM)] for _ in range(HEADS)]
k, v = [], []
for t in range(tokens):
    for mean in means:
        row = [m + source.gauss(0, 0.5) for m in mean]
        v += row
        k += made_rows.turned(row, made_rows.turns(t, 1e4, HALF), interleaved=False)
with open(name, "wb") as f:
    f.write(pack(k) + pack(v))
print(f"dtype={dtype},layers=1,tokens={tokens},heads={HEADS},dim={DIM}")
