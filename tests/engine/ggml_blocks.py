"""Prints the table of tests/unit/test_ggml_blocks.c: SHA-256 of blocks of ggml's types as gguf-py dequantises them.

    python3 -m pip install gguf numpy && python3 tests/engine/ggml_blocks.py

Blocks are numbers of the generator below, which the test has, too. Scales in binary16 are below 2."""
import hashlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

BLOCKS = 64
# offsets of binary16 in a block: ggml/src/ggml-common.h
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "IQ4_NL": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_XS": [0]}


def numbers(n):
    x, out = 1, bytearray()
    for _ in range(n):
        x = (x * 6364136223846793005 + 1442695040888963407) % 2**64
        out.append(x >> 56)
    return out


for name, halves in HALVES.items():
    kind = GGMLQuantizationType[name]
    values, size = GGML_QUANT_SIZES[kind]
    data = np.frombuffer(numbers(BLOCKS * size), np.uint8).reshape(BLOCKS, size).copy()
    for at in halves:
        data[:, at + 1] &= 0xbf
    floats = quants.dequantize(data, kind).astype("<f4")
    assert floats.size == BLOCKS * values and np.isfinite(floats).all()
    print(f'    {{{kind.value}, "{hashlib.sha256(floats.tobytes()).hexdigest()}"}}, /* {name.lower()} */')
