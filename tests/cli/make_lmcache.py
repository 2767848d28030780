"""make_lmcache.py: one cache in the files of LMCache and SGLang's HiCache, and as safetensors, written from their layouts alone.

usage: make_lmcache.py FOLDER
"""
import json
import os
import struct
import sys

L, T, H, D, PAGE = 3, 40, 2, 16, 8
KEY = "org-SEP-model@1@0@5eed@half"


def value(c, layer, t, h, d):
    return struct.pack("<e", ((layer * 7 + c * 31 + t * 3 + h * 13 + d * 5) % 97 - 48) / 32)


def order(axes, layers=range(L), tokens=range(T)):
    """The values with these axes, slowest first."""
    ranges = {"l": layers, "c": range(2), "t": tokens, "h": range(H), "d": range(D)}

    def walk(left, at):
        if not left:
            return value(at["c"], at["l"], at["t"], at["h"], at["d"])
        return b"".join(walk(left[1:], {**at, left[0]: i}) for i in ranges[left[0]])
    return walk(axes, {})


def header(fmt, shape, data):
    return struct.pack("<7i", len(data), fmt, 2, *shape, *[0] * (4 - len(shape))) + data


def write(folder, name, data):
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def main(folder):
    chunk = order("clthd")
    arrays, data = {}, b""
    for layer in range(L):
        for c, name in enumerate(("keys", "values")):
            rows = b"".join(value(c, layer, t, h, d) for h in range(H) for t in range(T) for d in range(D))
            arrays[f"layers.{layer}.{name}"] = {"dtype": "F16", "shape": [1, H, T, D],
                                                "data_offsets": [len(data), len(data) + len(rows)]}
            data += rows
    text = json.dumps(arrays).encode()
    write(folder, "hf.safetensors", struct.pack("<Q", len(text)) + text + data)
    write(folder, KEY + ".data", header(1, (2, L, T, H * D), chunk))
    write(folder, "fused.data", header(1, (1, L, T, 2 * H * D), order("lthcd")))
    write(folder, "array.pt", chunk)
    for layer in range(L):
        write(folder, f"layers/{KEY}@{layer}.data", header(2, (T, 2, H * D), order("ltchd", layers=[layer])))
    entry = {"dtype": "F16", "shape": [2, L, T, H * D], "data_offsets": [0, len(chunk)], "fmt": 1,
             "__metadata__": {"lmcache_version": "1"}}
    head = struct.pack("<Q", 4088) + json.dumps({"kvcache": entry}).encode().ljust(4088)
    name = "gds/" + KEY.replace("-SEP-", "%2F").replace("@", "%40") + ".kvcache.safetensors"
    write(folder, name, head + chunk)
    write(folder, name + ".metadata", head)
    for layout, axes in (("layer_first", "clthd"), ("page_first", "ctlhd"), ("page_head", "chtld")):
        for page in range(T // PAGE):
            write(folder, f"{layout}/{page}.bin", order(axes, tokens=range(page * PAGE, (page + 1) * PAGE)))


if __name__ == "__main__":
    main(sys.argv[1])
