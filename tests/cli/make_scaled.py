"""make_scaled.py NAME DTYPE [SCALE_K SCALE_V]: writes NAME, a safetensors file of 2 layers, 2 heads, 8 tokens of 8 channels.

DTYPE F8_E4M3: the codes of some numbers; I8, U8: small integers; F32: the values that these numbers are, times the scales: one number, or
one for each layer ("0.5,0.25"), or for each head of each ("0.5:0.25,2:4").
"""

import json
import struct
import sys

LAYERS, HEADS, TOKENS, DIM = 2, 2, 8, 8
NUMBERS = [0.5, 1, 2, 3, 4, 1.5, 0, 0.25]
CODES = [0x30, 0x38, 0x40, 0x44, 0x48, 0x3C, 0x00, 0x28]  # of f8e4m3
INTEGERS = [1, 2, 3, 4, 5, 6, 0, 7]


def scale_of(text, layer, head):
    layers = text.split(",")
    heads = layers[layer if len(layers) > 1 else 0].split(":")
    return float(heads[head if len(heads) > 1 else 0])


def values(dtype, integers, scale, layer):
    out = b""
    for head in range(HEADS):
        for i in range(TOKENS * DIM):
            if dtype == "F8_E4M3":
                out += bytes([CODES[i % 8]])
            elif dtype == "F32":
                number = (INTEGERS if integers else NUMBERS)[i % 8]
                out += struct.pack("<f", number * scale_of(scale, layer, head))
            else:
                out += bytes([INTEGERS[i % 8]])
    return out


def main():
    name, dtype, *scales = sys.argv[1:]
    integers = "integers" in scales
    scales = [s for s in scales if s != "integers"] or ["1", "1"]
    header, data = {}, b""
    for layer in range(LAYERS):
        for role, scale in zip(("key", "value"), scales):
            rows = values(dtype, integers, scale, layer)
            header[f"past_key_values.{layer}.{role}"] = {
                "dtype": dtype,
                "shape": [1, HEADS, TOKENS, DIM],
                "data_offsets": [len(data), len(data) + len(rows)],
            }
            data += rows
    text = json.dumps(header).encode()
    with open(name, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


main()
