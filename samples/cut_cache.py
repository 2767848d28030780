#!/usr/bin/env python3
"""cut_cache.py: some tokens and layers of a transformers cache in safetensors. Not for other layouts.

    cut_cache.py INPUT OUTPUT TOKENS [LAYERS]

TOKENS is N, the first N tokens, or A:B, those at positions A to B-1; LAYERS is a list like 0-1,16, by default all. Attention is
causal: the first rows of K and V are those of a shorter cache. Layers keep their numbers. INPUT's queries are those of its last
tokens; OUTPUT has those of its own tokens when TOKENS reaches INPUT's end from a position above 0, and then `positions` too."""
import json
import re
import struct
import sys


def read(path):
    """The tensors' header and bytes, and the file's metadata."""
    with open(path, "rb") as f:
        size = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(size))
        return header, f.read(), header.pop("__metadata__", None)


def write(path, tensors, metadata):
    """tensors: (name, dtype, shape, bytes)."""
    header, at = {"__metadata__": metadata} if metadata else {}, 0
    for name, dtype, shape, data in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(t[3] for t in tensors))


def layer_set(text):
    ends = [item.split("-") for item in text.split(",")]
    return {layer for item in ends for layer in range(int(item[0]), int(item[-1]) + 1)}


def main():
    source, target, tokens = sys.argv[1:4]
    layers = layer_set(sys.argv[4]) if len(sys.argv) > 4 else None
    first, end = (int(n) for n in tokens.split(":")) if ":" in tokens else (0, int(tokens))
    header, data, metadata = read(source)
    n_tokens = header["tokens"]["shape"][0]
    out = []
    for name, t in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = t["data_offsets"]
        if name == "tokens":
            out.append((name, t["dtype"], [end - first], data[begin + 4 * first:begin + 4 * end]))
            continue
        found = re.fullmatch(r"layers\.(\d+)\.(?:keys|values)|queries\.(\d+)", name)
        if not found or layers is not None and int(found[1] or found[2]) not in layers:
            continue
        if found[2] and (first == 0 or end != n_tokens):
            continue
        batch, heads, rows, dim = t["shape"]
        width = (stop - begin) // (heads * rows)
        from_row, to_row = max(0, first - (n_tokens - rows)), end - (n_tokens - rows)
        kept = b"".join(data[begin + (h * rows + from_row) * width:begin + (h * rows + to_row) * width] for h in range(heads))
        out.append((name, t["dtype"], [batch, heads, to_row - from_row, dim], kept))
    if first:
        out.append(("positions", "I32", [end - first], struct.pack(f"<{end - first}i", *range(first, end))))
    write(target, out, metadata)


if len(sys.argv) not in (4, 5):
    sys.exit("Usage: cut_cache.py INPUT OUTPUT TOKENS [LAYERS]")
main()
