#!/usr/bin/env python3
"""make_attention.py: a tiny cache in safetensors whose attention can be worked out by hand. Not for real caches.

    make_attention.py FILE a|b [queries] [interleaved] [window]

2 layers, 2 KV heads of 4 channels, 4 tokens, f32. K is 0; V is the token's number, from 1, in channel 0. b has ln 3 in
K of layer 0, head 0, token 0, channel 1, and 3 in V of layer 0, head 1, token 2, channel 1.

With `queries`: 4 query heads at the last 2 positions. The odd ones are 0 and see all tokens alike; the even ones have 2
in channel 1, so that their logits are channel 1 of K. `interleaved`: the same with RoPE pairs (2i, 2i + 1), in which
channel 1 stands third.

With `window`: layer 1 has the last 3 tokens and a window of 2, which the metadata tell; b has ln 3 in K of layer 1, head 0, token 1 alone."""
import json
import math
import struct
import sys

name, side, options = sys.argv[1], sys.argv[2], sys.argv[3:]
LAYERS, HEADS, QUERY_HEADS, TOKENS, QUERIES, DIM = 2, 2, 4, 4, 2, 4
PAIRED = 2 if "interleaved" in options else 1


def array(heads, tokens, value):
    return heads, tokens, [value(h, t, c) for h in range(heads) for t in range(tokens) for c in range(DIM)]


arrays, window = {}, "window" in options
for layer in range(LAYERS):
    if window and layer:
        kept = lambda value: array(HEADS, TOKENS - 1, lambda h, t, c: value(h, t + 1, c))
        arrays[f"layers.{layer}.keys"] = kept(lambda h, t, c: math.log(3) if side == "b" and (h, t, c) == (0, 1, PAIRED) else 0)
        arrays[f"layers.{layer}.values"] = kept(lambda h, t, c: t + 1 if c == 0 else 0)
    changed = side == "b" and layer == 0 and not window
    arrays.setdefault(f"layers.{layer}.keys", array(
        HEADS, TOKENS, lambda h, t, c: math.log(3) if changed and (h, t, c) == (0, 0, PAIRED) else 0))
    arrays.setdefault(f"layers.{layer}.values", array(
        HEADS, TOKENS, lambda h, t, c: t + 1 if c == 0 else 3 if changed and (h, t, c) == (1, 2, 1) else 0))
    if "queries" in options:
        arrays[f"queries.{layer}"] = array(QUERY_HEADS, QUERIES, lambda h, t, c: 2 if h % 2 == 0 and c == PAIRED else 0)
header, body = {"__metadata__": {"rope_pairing": "interleaved" if "interleaved" in options else "halves",
                                 **({"sliding_window": "2"} if window else {})}}, b""
for key, (heads, tokens, values) in arrays.items():
    data = struct.pack("<%df" % len(values), *values)
    header[key] = {"dtype": "F32", "shape": [1, heads, tokens, DIM], "data_offsets": [len(body), len(body) + len(data)]}
    body += data
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(name, "wb") as f:
    f.write(struct.pack("<Q", len(text)) + text + body)
