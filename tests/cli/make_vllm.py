#!/usr/bin/env python3
"""make_vllm.py: writes an invented cache as vLLM's ExampleConnector does, or as one safetensors file, from the specification
alone.

    make_vllm.py PATH SHAPE [KEY=NUMBER...]

SHAPE is T-H-2D, T-2-H-D, 2-T-HD, T-C, cpu (T-H-2D out of blocks of `block` tokens of a CPU), safetensors, or blocks: and the shape
of a page, T-H-2D, 2-T-H-D, H-T-2D, 2-H-T-D or T-C, for what the OffloadingConnector writes: files of `pages` pages of `page` tokens.
The numbers: layers, tokens, heads, dim, block, page, pages, workers (of blocks without the canonical layout, each with a part of the heads).
The values follow from layer, K or V, token, head and channel alone, so that all shapes are one cache.
"""
import json
import pathlib
import struct
import sys


def value(layer, k, token, head, channel):
    mixed = (layer * 7 + k * 3 + token * 31 + head * 101 + channel * 11) * 2654435761 & 0xFFFFFFFF
    return struct.pack("<e", (mixed >> 20) / 256 - 8)


def safetensors(arrays):
    header, data = {}, b""
    for name, shape, values in arrays:
        header[name] = {"dtype": "F16", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def cpu_array(layer, n):
    """What save_kv_layer() takes out of a CPU's paged cache: rows of 2D values of a head that has K as [D, N], then V as [N, D]."""
    tokens, heads, dim, block = n["tokens"], n["heads"], n["dim"], n["block"]
    out = b""
    for begin in range(0, tokens, block):
        areas = []
        for head in range(heads):
            area = [value(layer, 0, begin + i, head, d) for d in range(dim) for i in range(block)]
            area += [value(layer, 1, begin + i, head, d) for i in range(block) for d in range(dim)]
            areas.append(area)
        for row in range(block):
            for area in areas:
                out += b"".join(area[row * 2 * dim:(row + 1) * 2 * dim])
    return out


def array(shape, layer, n):
    tokens, heads, dim = n["tokens"], n["heads"], n["dim"]

    def head(k, t, h):
        return b"".join(value(layer, k, t, h, d) for d in range(dim))

    def row(k, t):
        return b"".join(head(k, t, h) for h in range(heads))

    if shape == "cpu":
        return [tokens, heads, 2 * dim], cpu_array(layer, n)
    if shape == "T-H-2D":
        pieces = [head(k, t, h) for t in range(tokens) for h in range(heads) for k in (0, 1)]
        return [tokens, heads, 2 * dim], b"".join(pieces)
    if shape == "T-2-H-D":
        return [tokens, 2, heads, dim], b"".join(row(k, t) for t in range(tokens) for k in (0, 1))
    if shape == "2-T-HD":
        return [2, tokens, heads * dim], b"".join(row(k, t) for k in (0, 1) for t in range(tokens))
    return [tokens, heads * dim], b"".join(row(0, t) for t in range(tokens))


def page(shape, layer, begin, heads, n):
    """The page of a block and a layer with these heads."""
    tokens = range(begin, begin + n["page"])

    def head(k, t, h):
        return b"".join(value(layer, k, t, h, d) for d in range(n["dim"]))

    order = {
        "T-H-2D": ((k, t, h) for t in tokens for h in heads for k in (0, 1)),
        "2-T-H-D": ((k, t, h) for k in (0, 1) for t in tokens for h in heads),
        "H-T-2D": ((k, t, h) for h in heads for t in tokens for k in (0, 1)),
        "2-H-T-D": ((k, t, h) for k in (0, 1) for h in heads for t in tokens),
        "T-C": ((0, t, h) for t in tokens for h in heads),
    }[shape]
    return b"".join(head(*place) for place in order)


def write_blocks(path, shape, n):
    """config.json and a file for each chunk, named by a hash that does not sort as the tokens do."""
    names = [f"model.layers.{layer}.self_attn.attn" for layer in range(n["layers"])]
    config = {"model_name": "some/model", "tokens_per_hash": n["page"], "blocks_per_file": n["pages"], "tp_size": 1, "pp_size": 1, "pcp_size": 1,
              "dcp_size": 1, "dtype": "float16", "inference_engine": "vllm",
              "kv_cache_groups": [{"tokens_per_block": n["page"], "layer_names": names}],
              "canonical_format": "v1-hnd" if shape in ("H-T-2D", "2-H-T-D") else "v1-nhd"}
    if n["workers"]:
        del config["canonical_format"]
    workers = n["workers"] or 1
    own = n["heads"] // workers
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config, sort_keys=True, indent=2))
    chunk = n["page"] * n["pages"]
    for number, begin in enumerate(range(0, n["tokens"], chunk)):
        data = b"".join(page(shape, layer, at, range(worker * own, (worker + 1) * own), n) for worker in range(workers)
                        for layer in range(n["layers"]) for at in range(begin, begin + chunk, n["page"]))
        name = f"{(number * 7 + 5) % 16:x}{number:x}".ljust(64, "0")
        folder = path / "r0" / name[:3] / f"{name[3:5]}_g0"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.bin").write_bytes(data + bytes(-len(data) % 4096))


def main(path, shape, *numbers):
    n = {"layers": 3, "tokens": 16, "heads": 2, "dim": 4, "block": 8, "page": 4, "pages": 1, "workers": 0}
    n.update((key, int(number)) for key, number in (text.split("=") for text in numbers))
    if shape == "safetensors":
        arrays = []
        for layer in range(n["layers"]):
            for k, name in enumerate(("keys", "values")):
                rows = (value(layer, k, t, h, d) for h in range(n["heads"]) for t in range(n["tokens"]) for d in range(n["dim"]))
                arrays.append((f"layers.{layer}.{name}", [1, n["heads"], n["tokens"], n["dim"]], b"".join(rows)))
        pathlib.Path(path).write_bytes(safetensors(arrays))
        return
    if shape.startswith("blocks:"):
        write_blocks(pathlib.Path(path), shape[7:], n)
        return
    pathlib.Path(path).mkdir()
    for layer in range(n["layers"]):
        dims, data = array(shape, layer, n)
        name = f"model.layers.{layer}.self_attn.attn.safetensors"
        (pathlib.Path(path) / name).write_bytes(safetensors([("kv_cache", dims, data)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
