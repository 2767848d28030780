#!/usr/bin/env python3
"""cut_cache.py: the first tokens and layers of a transformers cache in safetensors. Not for other layouts.

    cut_cache.py INPUT OUTPUT TOKENS [LAYERS]

Attention is causal: the first T rows of K and V are those of a T-token cache."""
import json
import re
import struct
import sys


def main():
    source, target, tokens = sys.argv[1], sys.argv[2], int(sys.argv[3])
    layers = int(sys.argv[4]) if len(sys.argv) > 4 else 1 << 30
    with open(source, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        data = f.read()
    metadata = header.pop("__metadata__", None)
    out, body = {}, b""
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = t["data_offsets"]
        layer = re.fullmatch(r"layers\.(\d+)\.(keys|values)", name)
        if layer and int(layer[1]) < layers:
            b, heads, rows, dim = t["shape"]
            width = (end - begin) // (heads * rows)
            starts = [begin + h * rows * width for h in range(heads)]
            kept = b"".join(data[start:start + tokens * width] for start in starts)
            shape = [b, heads, tokens, dim]
        elif name == "tokens":
            kept = data[begin:begin + 4 * tokens]
            shape = [tokens]
        else:
            continue
        out[name] = {"dtype": t["dtype"], "shape": shape, "data_offsets": [len(body), len(body) + len(kept)]}
        body += kept
    if metadata:
        out = {"__metadata__": metadata, **out}
    text = json.dumps(out, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(target, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


main()
