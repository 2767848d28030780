#!/usr/bin/env python3
"""make_corpus.py: makes the seed corpus of the fuzz targets: real engine files cut down to a layer or two and a few
cells, forms that no real file shows, and the small damaged files.

    make_corpus.py DATA CORPUS

DATA is the directory with the real files (llama.cpp/, hf/, damaged/), CORPUS is tests/fuzz/corpus. The container's
seeds are the good files of tests/conformance/files, each behind the byte that chooses the mode. Only the standard library is
needed. Files that fuzzing found (crash-*) are left alone.
"""
import collections
import io
import json
import math
import pathlib
import pickle
import struct
import sys
import tarfile
import types
import zipfile

BLOCK = {0: 4, 1: 2, 30: 2, 8: 34, 2: 18, 3: 20, 6: 22, 7: 24, 20: 18}  # bytes of a block by ggml type
BLOCKED = {8, 2, 3, 6, 7, 20}
LAYERS, CELLS, VALUES, TOKENS = 2, 5, 32, 6

# what an S3 server sends, and names of levels, each after the byte that chooses the target
S3 = {
    "headers": "\0HTTP/1.1 206 Partial Content\r\nETag: \"abc-2\"\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/1000\r\n"
               "Date: Fri, 24 May 2013 00:00:00 GMT\r\nRetry-After: 7\r\nServer: any\r\nx-amz-bucket-region: eu-west-1\r\n\r\n",
    "listing": "\1<?xml version=\"1.0\"?><ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><IsTruncated>true</IsTruncated>"
               "<EncodingType>url</EncodingType><NextContinuationToken>a</NextContinuationToken><Contents><Key>p%2Fa+b</Key>"
               "<LastModified>2013-05-24T00:00:00.000Z</LastModified><Size>12</Size></Contents></ListBucketResult>",
    "error": "\2<Error><Code>SlowDown</Code><Message>less &amp; slower</Message></Error>",
    "upload": "\2<InitiateMultipartUploadResult><UploadId>abc</UploadId></InitiateMultipartUploadResult>",
    "doctype": "\2<!DOCTYPE a [<!ENTITY x \"y\">]><Error><Code>&x;</Code></Error>",
    "level": "\3s3://bucket/a/b?endpoint=http://127.0.0.1:9000/x&region=eu-west-1&style=path&range=1M&remember=5m&anonymous=yes",
}


class Reader:
    def __init__(self, data, at=0):
        self.data, self.at = data, at

    def bytes(self, n):
        self.at += n
        assert self.at <= len(self.data)
        return self.data[self.at - n:self.at]

    def u32(self):
        return struct.unpack("<I", self.bytes(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.bytes(8))[0]


def u8(*values):
    return bytes(values)


def u32(*values):
    return struct.pack(f"<{len(values)}I", *values)


def u64(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def cut_tensor(r, cells, keep, transposed):
    kind = r.u32()
    size = BLOCK[kind]
    width = size * (1 if kind in BLOCKED else VALUES)
    if transposed:
        element, channels = r.u32(), r.u32()
        columns = [r.bytes(cells * element)[:keep * element] for _ in range(channels)]
        return u32(kind, element, VALUES) + b"".join(columns[:VALUES])
    row = r.u64()
    rows = [r.bytes(row)[:width] for _ in range(cells)]
    return u32(kind) + u64(width) + b"".join(rows[:keep])


def cut_body(r, tiles):
    """One attention cache: streams, cells, K and V."""
    streams = r.u32()
    out = u32(streams)
    for _ in range(streams):
        cells = r.u32()
        keep = min(cells, CELLS)
        out += u32(keep)
        for cell in range(cells):
            head = r.bytes(4)
            ids = r.u32()
            head += u32(ids) + r.bytes(4 * ids)
            # the last ones, so that what is out of order at the end stays
            if cell >= cells - keep:
                out += head
        if not cells:
            continue
        transposed, layers = r.u32(), r.u32()
        n = min(layers, LAYERS)
        out += u32(transposed, n) + (r.bytes(8) if tiles else b"")
        for role in (0, 1):
            for layer in range(layers):
                tensor = cut_tensor(r, cells, keep, role and transposed)
                if layer < n:
                    out += tensor
    return out


def cut_tokens(r):
    n = r.u32()
    words = list(struct.unpack(f"<{n}i", r.bytes(4 * n)))
    if words[:2] == [-1, 1]:
        words = [-1, 1, TOKENS] + words[3:3 + TOKENS] + [0]
    else:
        words = words[:TOKENS]
    return struct.pack(f"<I{len(words)}i", len(words), *words)


def cut_llama(data):
    r = Reader(data)
    head = r.bytes(8)
    version = head[4]
    out = head + cut_tokens(r)
    if head[:4] == b"nsgg":
        n = r.u32()
        out += u32(n) + r.bytes(n)
    tiles = version in (4, 11)
    while r.at < len(data) and data[r.at:r.at + 4] != b"SCKP":
        out += cut_body(r, tiles)
    if r.at < len(data):
        r.bytes(8)
        count = r.u32()
        out += b"SCKP" + u32(1, count)
        for _ in range(count):
            out += r.bytes(16)
            size = r.u64()
            inner = Reader(r.bytes(size))
            body = inner.bytes(8) + cut_body(inner, tiles)
            out += u64(len(body)) + body
            for _ in range(2):
                n = r.u64()
                out += u64(n) + r.bytes(n)
    assert r.at == len(data)
    return out


def tensor(kind, row, cells):
    return u32(kind) + u64(row) + bytes((7 * i + kind) & 255 for i in range(row * cells))


def built_llama():
    """Layouts of the engine's source that no real file here shows."""
    tokens = u32(3, 11, 12, 13)
    cells = b"".join(u32(i, 1, 0) for i in range(3))
    attention = u32(1, 3) + cells + u32(0, 1) + tensor(1, 8, 3) + tensor(1, 8, 3)
    latent = u32(1, 3) + cells + u32(0, 2) + tensor(1, 8, 3) * 2
    recurrent = u32(1) + u32(2, 0) + u32(0, 2) + tensor(0, 16, 1) * 4
    m_rope = u32(1, 2) + u32(0, 1, 5, 6, 0) + u32(1, 1, 5, 7, 0) + u32(0, 1) + tensor(1, 4, 2) * 2
    ple = u32(1, 2) + u32(0, 1, 5, 6, 9, 0) + u32(1, 1, 5, 7, 9, 0) + u32(0, 1) + tensor(1, 4, 2) * 2
    empty = u32(1, 0)
    checkpoint = b"SCKP" + u32(1, 1) + u64(1) + u32(0, 0) + u64(len(recurrent) + 8)
    checkpoint += u32(0xAF143CD8, 0) + recurrent + u64(0, 0)
    head2, head3 = b"qsgg" + u32(2) + tokens, b"qsgg" + u32(3) + tokens
    head9 = b"nsgg" + u32(9) + tokens + u32(5) + b"llama"
    return {
        "ggsq": {"v2-dense": head2 + attention, "v2-m-rope": head2 + m_rope, "v3-ple": head3 + ple,
                 "v3-hybrid": head3 + attention + recurrent, "v3-recurrent": head3 + recurrent,
                 "v3-latent": head3 + latent, "v3-empty": head3 + empty,
                 "v3-hybrid-checkpoint": head3 + attention + recurrent + checkpoint},
        "ggsn": {"v9-dense": head9 + attention, "v9-empty": head9 + empty,
                 "v9-hybrid": head9 + attention + recurrent},
    }


def safetensors(arrays, metadata=None):
    header, body = ({"__metadata__": metadata} if metadata else {}), b""
    for name, kind, shape, data in arrays:
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return u64(len(text)) + text + body


def cut_safetensors(data, tokens=4, dim=8):
    """Layer 0 of a real file: K, V, queries and tokens, with fewer tokens and channels."""
    size, = struct.unpack("<Q", data[:8])
    header, body, out = json.loads(data[8:8 + size]), data[8 + size:], []
    for name, x in header.items():
        if name not in ("layers.0.keys", "layers.0.values", "queries.0", "tokens"):
            continue
        raw = body[x["data_offsets"][0]:x["data_offsets"][1]]
        if name == "tokens":
            out.append((name, x["dtype"], [tokens], raw[:4 * tokens]))
            continue
        _, h, t, d = x["shape"]
        width = len(raw) // (h * t * d)
        rows = [raw[(i * t + j) * d * width:][:dim * width] for i in range(h) for j in range(tokens)]
        out.append((name, x["dtype"], [1, h, tokens, dim], b"".join(rows)))
    return safetensors(out, header.get("__metadata__"))


def npy(descr, shape, data):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


def npz(arrays, method=zipfile.ZIP_STORED):
    f = io.BytesIO()
    with zipfile.ZipFile(f, "w", method) as z:
        for name, descr, shape, data in arrays:
            z.writestr(zipfile.ZipInfo(name + ".npy"), npy(descr, shape, data), method)
    return f.getvalue()


def named(form, kind, width, tokens=(3, 3)):
    """K and V of two layers under one of the naming conventions."""
    out = []
    for layer, n in enumerate(tokens):
        for role in (0, 1):
            name = form[role].format(i=layer)
            out.append((name, kind, (1, 2, n, 4), bytes((31 * i + role) & 127 for i in range(8 * n * width))))
    return out


LAYER_NAMES = ("layers.{i}.keys", "layers.{i}.values")
CACHE_NAMES = ("key_cache.{i}", "value_cache.{i}")
PAST_NAMES = ("past_key_values.{i}.key", "past_key_values.{i}.value")

RECIPES = ["zstd", "store", "zstd:level=9", "store@k,zstd@v", "zstd:level=19@l0-15@l20@k,store", "store@k@v@l3",
           "zstd:level=20", "store,,zstd", "nosuch", "store@l9-3", "@k", "zstd:", "store@l4294967295", "zstd@x",
           "sink:4,tail:64:whole=32,quant:kivi:bits=2:g=32:clip:sym",
           "quant:kcvt:bits=8@k,quant:token:bits=1:low=3@v",
           "outlier:0.02,quant:zip:bits=4,lowrank:r=4:layer:power=2,split",
           "prune:k=0.4:v=0.25:by=l2:mean:window=9,fast", "saliency:0.6:norm=paper:by=knorm,quant:zip:bits=4",
           "finite,merge:slerp:t=0.5:keep=0.1:from=0.25:heads", "merge:mean:gamma=0.3",
           "project:hidden:norm=rms:layers=8:every=3:rank=64", "quant:kivi", "quant:kivi:bits=9", "tail:0",
           "outlier:nan", "merge:slerp:keep=0.1:gamma=0.1", "prune", "lowrank:r=257", "merge:slerp,merge:mean",
           "kivi2", "kivi4@k", "gear", "gear4", "gear-l", "gear-l4", "kcvt4", "zipcache", "think", "think-kivi",
           "minicache", "minicache-kivi4", "hidden", "sink:2,kivi2,split", "kivi2:bits=2", "gear5",
           "sink:1," * 15 + "merge:slerp", "sink:1," * 16 + "merge:slerp"]


LOSSY = 102  # recipes of fuzz_lossy.c, presets included; then come the stages of the registry
STAGES = 21


def lossy():
    """For each recipe of fuzz_lossy.c rows of one kind, and damage of each kind to sections of a recipe."""
    out = {}
    for i in range(LOSSY):
        value, fill, dtype = i & 1, (1, 2, 0, 1, 3)[i % 5], i % 3
        shape = bytes([i * 37 % 60 + 3, i % 3, i * 11 % 20 + 1, i % 2 * 15])  # rows, heads, channels, of V
        more = bytes([(0, 8, 20)[i % 3], (0, 1, 2, 3, 128)[i % 5], i, 133 if i % 4 else 2, i % 3, i % 3, 1 + 2 * i,
                      1 + i])
        rows = bytes((j * j * 7 + 13 * i + j) & 255 for j in range(24))
        known = (0, 8, 32, 40, 96, 104)[i // 2 % 6]  # a profile, RoPE, a window
        out[f"rows-{i:02}"] = bytes([i, 2 * value + known, fill, dtype]) + shape + more + rows
        harm = bytes((3 * i + j * j) & 31 | (64 if j % 4 == 0 and i % 3 == 0 else 0) for j in range(4 * (1 + i % 3)))
        known = (0, 40, 56, 32, 64, 24)[i // 2 % 6]  # and the profile lost
        out[f"harm-{i:02}"] = bytes([i, 2 * value + 1 + 4 * (i // 2 % 2) + known, 1, dtype]) + shape + more + \
            harm[:1] + u8(i % 16) + harm[2:]
    for i in range(2 * STAGES):
        # how many stages follow, and bytes that choose them and arguments
        rows = u8(i % 3) + bytes((i * i * 29 + j * j * 11 + 37 * j) & 255 for j in range(40))
        shape = bytes([i * 7 % 60 + 3, i % 3, i * 11 % 20 + 1, 0])
        out[f"stage-{i:02}"] = bytes([LOSSY + i, 8 + i % 2 * 2, 1, i % 3]) + shape + bytes(8) + rows
    return out


def profiles():
    """Profiles of a layer or two, whole and otherwise: kvc-profile(5)."""
    def part(layer, role, heads, dim):
        numbers = struct.pack(f"<{heads * dim}f", *((7 * i % 13) / 8 - 0.75 for i in range(heads * dim)))
        matrix = bytes(90 if i // dim % dim == i % dim else i * i % 23 for i in range(heads * dim * dim))
        scale = struct.pack(f"<{heads * dim}f", *(0.01 * (1 + i) for i in range(heads * dim)))
        at = f"layers.{layer}.{role}."
        return [(at + "mean", "F32", [heads, dim], numbers), (at + "basis", "I8", [heads, dim, dim], matrix),
                (at + "scale", "F32", [heads, dim], scale)]

    def rope(layer, pairs):
        return [(f"layers.{layer}.rope", "F64", [pairs], struct.pack(f"<{pairs}d", *(0.1 ** i for i in range(pairs))))]

    def queries(layer, heads, n, dim):
        at, scale = f"layers.{layer}.queries", struct.pack(f"<{heads * n}f", *[0.02] * (heads * n))
        return [(at, "I8", [heads, n, dim], bytes(17 * i & 255 for i in range(heads * n * dim))),
                (at + ".scale", "F32", [heads, n], scale)]

    def gain(layer, role, heads, dim):
        return [(f"layers.{layer}.{role}.gain", "F32", [heads, dim], struct.pack(f"<{heads * dim}f", *[20] * (heads * dim)))]

    def predictor(layer, role, heads, dim, inputs):
        at, scale = f"layers.{layer}.{role}.predictor", struct.pack(f"<{heads * dim}f", *[0.01] * (heads * dim))
        return [(at, "I8", [heads * dim, inputs], bytes(13 * i & 255 for i in range(heads * dim * inputs))),
                (at + ".scale", "F32", [heads, dim], scale)]

    names = {"kvc.profile": "1", "model.layers": "2", "model.name": "seed", "metric": "fisher"}
    input_alone = [a for a in part(0, "k", 2, 4) if "mean" in a[0]] + gain(0, "k", 2, 4)
    predicted = input_alone + part(1, "v", 1, 4) + predictor(1, "v", 1, 4, 8)
    whole = rope(0, 3) + part(0, "k", 2, 8) + part(0, "v", 2, 6) + queries(0, 4, 2, 8) + part(1, "v", 1, 4)
    out = {
        "whole": safetensors(whole, names),
        "v-alone": safetensors(part(1, "v", 2, 4), names),
        "k-without-rope": safetensors(part(0, "k", 1, 4) + queries(0, 3, 1, 4), names),
        "all-turned": safetensors(rope(1, 2) + part(1, "k", 1, 4), {**names, "metric": "query"}),
        "queries-without-k": safetensors(rope(0, 3) + part(0, "v", 1, 4) + queries(0, 2, 1, 6), names),
        "too-many-pairs": safetensors(rope(0, 8) + part(0, "v", 1, 4) + queries(0, 2, 1, 4), names),
        "no-inverse": safetensors([(n, k, s, bytes(len(d)) if "scale" in n else d) for n, k, s, d in whole], names),
        "nan": safetensors([(n, k, s, b"\xff" * len(d) if "mean" in n else d) for n, k, s, d in whole], names),
        "no-mean": safetensors([a for a in whole if "mean" not in a[0]], names),
        "no-layers": safetensors(whole, {"kvc.profile": "1"}),
        "version-0": safetensors(whole, {**names, "kvc.profile": "0"}),
        "predictor": safetensors(rope(0, 2) + predicted, {**names, "predictor.back": "1"}),
        "predictor-too-many-pairs": safetensors(rope(0, 7) + predicted, {**names, "predictor.back": "1"}),
        "metric-recall": safetensors(whole, {**names, "metric.recall": "1e300"}),
        "predictor-back": safetensors(whole, {**names, "predictor.back": "1"}),
        "requires": safetensors(whole, {**names, "requires": "lanes,more"}),
        "metric": safetensors(whole, {**names, "metric": "other"}),
        "no-profile": safetensors(whole, {"format": "pt"}),
    }
    out["cut"] = out["whole"][:-30]
    return out


def tar(members, kind=tarfile.USTAR_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=kind) as archive:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def bundles():
    """Archives of a layer a file: as they should be, and with what a reader must refuse."""
    def layer(i):
        return safetensors([(f"layers.{i}.{part}", "F16", [1, 1, 3, 2], bytes(range(12))) for part in ("keys", "values")])
    two = [("0.safetensors", layer(0)), ("1.safetensors", layer(1))]
    return {
        "two": tar(two),
        "two-pax": tar([("d\u00e9/0.safetensors", layer(0)), ("d\u00e9/1.safetensors", layer(1))], tarfile.PAX_FORMAT),
        "other-files": tar(two + [("notes.txt", b"notes"), ("empty", b"")]),
        "same-name": tar([two[0], two[0]]),
        "same-layer": tar([two[0], ("1.safetensors", layer(0))]),
        "outside": tar([("../0.safetensors", layer(0))]),
        "cut": tar(two)[:1200],
        "no-cache": tar([("notes.txt", b"notes")]),
        "lmcache-layers": tar([(f"m@1@0@ab@half@{i}.data", lmcache_header(2, 2, (3, 2, 4), bytes(range(i, i + 48))))
                               for i in (10, 2)] + [("notes", b"notes")]),
        "lmcache-chunks": tar([(f"m@1@0@{i}@half.data", lmcache_header(1, 6, (2, 1, 3, 4), bytes(24))) for i in "ab"]),
        "lmcache-gds": tar([("d/m.kvcache.safetensors", lmcache_gds()), ("d/m.kvcache.safetensors.metadata", lmcache_gds()[:4096])]),
    }


def beside():
    """Archives of K in one file and V in another, and of caches with what engines keep beside them."""
    half = lambda **more: Tensor("0", "HalfStorage", (1, 1, 3, 2), (6, 6, 2, 1), **more)
    parts = {"pt": torch_file([half(), half()], {"0": bytes(range(12))}), "npz": npz([(f"arr_{i}", "<f2", (1, 1, 3, 2), bytes(12)) for i in (0, 1)]),
             "safetensors": safetensors([(str(i), "F16", [1, 1, 3, 2], bytes(12)) for i in (0, 1)]), "npy": npy("<f2", (2, 1, 1, 3, 2), bytes(24))}
    out = {"pair-" + kind: tar([(f"keys.{kind}", data), (f"values.{kind}", data)]) for kind, data in parts.items()}
    out["mlx-ids"] = tar([("e.safetensors", mlx_files()["031"]), ("e_tokens.bin", u32(1, 2, 3)), ("index.json", b"{}")])
    out["slot-checkpoints"] = tar([("a.bin.checkpoints", b"LSCKPT2"), ("a.bin", built_llama()["ggsq"]["v2-dense"])])
    shape = b'{"shape": [2, 1, 3, 4], "dtype": "torch.float16", "fmt": 2, "size": 48}'
    out["lmcache-disk"] = tar([("m@1@0@ab@half.pt", bytes(range(48))), ("m@1@0@ab@half.meta", shape)])
    return out


def stacked():
    """Arrays of all layers, of which fuzz_arrays_as() says the axes."""
    both = lambda shape, first, second: [(name, kind, shape, bytes(math.prod(shape) * width)) for name, kind, width in (first, second)]
    return {"stacked": [("cache", "U16", (2, 2, 1, 2, 3, 2), bytes(range(96)))], "axes": both((2, 3, 1, 2, 2), ("keys", "F16", 2), ("values", "F16", 2)),
            "bits": both((2, 1, 3, 2), ("layers.0.keys", "U8", 1), ("layers.0.values", "U8", 1)), "pairs": [("7", "F16", (3, 2, 2, 1), bytes(range(24)))]}


def vllm():
    """Archives of folders of vLLM's ExampleConnector, each behind the byte that chooses the options."""
    def folder(shape, layers=(0, 1), kind="F16", name="model.layers.%d.self_attn.attn.safetensors"):
        size = 1 if kind == "U8" else 2
        for n in shape:
            size *= n
        return [(name % i, safetensors([("kv_cache", kind, list(shape), bytes((7 * i + j) & 255 for j in range(size)))]))
                for i in layers]
    packed = folder((8, 2, 4))
    return {
        "packed": b"\0" + tar(packed),
        "packed-pax": b"\0" + tar(packed + [("notes.txt", b"notes")], tarfile.PAX_FORMAT),
        "fp8": b"\0" + tar(folder((8, 2, 4), kind="U8")),
        "split": b"\0" + tar(folder((4, 2, 2, 3))),
        "latent": b"\0" + tar(folder((4, 6))),
        "rows": b"\3" + tar(folder((2, 4, 8))),
        "rows-heads": b"\x13" + tar(folder((2, 4, 8))),
        "two-readings": b"\0" + tar(folder((2, 4, 8))),
        "two-tokens": b"\1" + tar(folder((2, 4, 8))),
        "cpu-4": b"\5" + tar(folder((8, 2, 4))),
        "cpu-8": b"\6" + tar(folder((16, 3, 4))),
        "cpu-part": b"\6" + tar(folder((12, 3, 4))),
        "gap": b"\0" + tar(folder((8, 2, 4), (0, 2, 11))),
        "gap-said": b"\4" + tar(folder((8, 2, 4), (0, 2, 11))),
        "no-number": b"\0" + tar(folder((8, 2, 4), (0,), name="layer%d.safetensors")),
        "same-layer": b"\0" + tar(packed + folder((8, 2, 4), name="m.%d.safetensors")),
        "other-tokens": b"\0" + tar(packed[:1] + folder((4, 2, 4), (1,))),
        "no-tokens": b"\0" + tar(folder((0, 2, 4))),
        "cut": b"\0" + tar(packed)[:1100],
    }


def vllm_blocks():
    """Archives of blocks of vLLM's OffloadingConnector, each behind the byte that chooses the options."""
    def archive(family, size, dtype="torch.float16", layers=2, files=2, **more):
        names = [f"model.layers.{i}.self_attn.attn" for i in range(layers)]
        config = {"kv_cache_groups": [{"tokens_per_block": 4, "layer_names": names}], "dtype": dtype, "model_name": "m",
                  "canonical_format": f"v1-{family}", **more}
        config = {key: value for key, value in config.items() if value is not None}
        members = [("config.json", json.dumps(config).encode())]
        members += [(f"r0/{i}00/00_g0/{i}0.bin", bytes((11 * i + j) & 255 for j in range(size))) for i in range(files)]
        return tar(members)
    return {
        "packed": b"\0" + archive("nhd", 8192, layers=65),
        "halves": b"\1" + archive("nhd", 4096, layers=32),
        "heads-first": b"\2" + archive("hnd", 4096, "bfloat16", layers=32),
        "chunk": b"\3" + archive("hnd", 256, layers=2),
        "latent": b"\4" + archive("nhd", 64 * 64, layers=64, files=1),
        "dtype": b"\5" + archive("nhd", 70, "what"),
        "two-files": b"\1" + archive("nhd", 4096, layers=32, files=3),
        "no-shape": b"\6" + archive("nhd", 4096),
        "huge": b"\7" + archive("hnd", 4096),
        "no-layers": b"\0" + archive("nhd", 4096, layers=0),
        "stored": b"\0" + archive("nhd", 4096, storage_format="x"),
        "other-size": b"\0" + archive("nhd", 100),
        "worker": b"\x80" + archive("nhd", 8192, layers=32, canonical_format=None),
    }


def lmcache_header(fmt, dtype, shape, data):
    """LMCache's FSConnector: length, memory format, dtype, four sizes."""
    return struct.pack("<7i", len(data), fmt, dtype, *shape, *[0] * (4 - len(shape))) + data


def lmcache():
    """Chunks in every layout, and what a reader must refuse."""
    rows = lambda n: bytes((7 * i * i + i) & 255 for i in range(n))
    return {
        "2ltd": lmcache_header(1, 3, (2, 3, 4, 6), rows(288)),
        "2ltd-f32": lmcache_header(1, 4, (2, 1, 3, 2), rows(48)),
        "t2d": lmcache_header(2, 2, (5, 2, 4), rows(80)),
        "2td-fp8": lmcache_header(3, 7, (2, 3, 4), rows(24)),
        "mla": lmcache_header(6, 3, (1, 2, 3, 5), rows(60)),
        "mla-layer": lmcache_header(6, 8, (3, 5), rows(15)),
        "fused": lmcache_header(1, 1, (1, 2, 3, 8), rows(96)),
        "binary": lmcache_header(4, 6, (9, 0, 0, 0), rows(9)),
        "hidden": lmcache_header(8, 3, (3, 2), rows(12)),
        "f64": lmcache_header(1, 5, (2, 1, 1, 1), rows(16)),
        "groups": struct.pack("<12i", 20, 1, 6, 2, 1, 1, 2, 6, 2, 1, 2, 4) + rows(20),
        "cut": lmcache_header(1, 3, (2, 3, 4, 6), rows(288))[:-1],
        "no-header": rows(96),
        "no-header-24": rows(24),
    }


def lmcache_gds(dtype="BF16", shape=(2, 3, 4, 6), fmt=1, data=None, **more):
    """LMCache's GdsBackend: one array in a header of 4096 bytes."""
    size = math.prod(shape) * {"BF16": 2, "F16": 2, "F32": 4, "F8E4M3FN": 1, "F64": 8}[dtype]
    entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size], "fmt": fmt,
             "__metadata__": {"lmcache_version": "1"}, **more}
    text = json.dumps({"kvcache": entry}).encode().ljust(4088)
    return u64(4088) + text + (data if data is not None else bytes(i & 255 for i in range(size)))


def gds():
    short = {"kvcache": {"dtype": "U8", "shape": [2, 1, 1, 3], "data_offsets": [0, 6], "fmt": 1}}
    text = json.dumps(short).encode()
    return {
        "bf16": lmcache_gds(), "fp8": lmcache_gds("F8E4M3FN"), "f64": lmcache_gds("F64"),
        "t2d": lmcache_gds("F16", (3, 2, 4), 2), "mla": lmcache_gds("F32", (1, 2, 3, 4), 6),
        "fused": lmcache_gds("F16", (1, 2, 3, 4), 1), "cut": lmcache_gds(data=bytes(5)),
        "groups": lmcache_gds(shapes=[[2, 3, 4, 6]], dtypes=["BF16"]), "short": u64(len(text)) + text + bytes(6),
    }


class Tensor:
    """A tensor as torch.save() pickles it: a call of a function of torch, whose storage is an object outside of the pickle."""
    def __init__(self, key, kind, size, stride, offset=0, count=None, dtype=None):
        self.key, self.kind, self.size, self.stride, self.offset, self.dtype = key, kind, size, stride, offset, dtype
        self.count = count or math.prod(size)

    def __reduce__(self):
        args = (Storage(self.key, self.kind, self.count), self.offset, self.size, self.stride, False, collections.OrderedDict())
        return (STUBS["_rebuild_tensor_v3"], args + (STUBS[self.dtype],)) if self.dtype else (STUBS["_rebuild_tensor_v2"], args)


class Storage:
    def __init__(self, key, kind, count):
        self.id = ("storage", STUBS[kind], key, "cpu", count)


def stub(module, name):
    """A class or function of a package that need not be installed, which pickle finds under its name."""
    parts = module.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    made = type(name, (), {"__module__": module})
    setattr(sys.modules[module], name, made)
    return made


STUBS = {name: stub(module, name) for module, name in (
    ("torch", "FloatStorage"), ("torch", "HalfStorage"), ("torch", "BFloat16Storage"), ("torch", "LongStorage"), ("torch", "ShortStorage"),
    ("torch", "float8_e4m3fn"), ("torch", "uint16"), ("torch", "Size"), ("torch.storage", "UntypedStorage"), ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_tensor_v3"), ("torch._utils", "_rebuild_parameter"),
    ("transformers.cache_utils", "DynamicCache"), ("transformers.cache_utils", "DynamicLayer"),
    ("transformers.cache_utils", "DynamicSlidingWindowLayer"))}


def torch_file(value, storages, protocol=2, method=zipfile.ZIP_STORED):
    class Pickler(pickle.Pickler):
        def persistent_id(self, x):
            return x.id if isinstance(x, Storage) else None
    text, f = io.BytesIO(), io.BytesIO()
    Pickler(text, protocol).dump(value)
    with zipfile.ZipFile(f, "w", method) as z:
        members = [("data.pkl", text.getvalue()), ("byteorder", b"little")]
        for name, data in members + [(f"data/{key}", data) for key, data in storages.items()] + [("version", b"3\n")]:
            z.writestr(zipfile.ZipInfo("x/" + name), data, method)
    return f.getvalue()


def torch_files():
    """Files of torch.save(): dicts, lists, classes, views, and what a reader must refuse."""
    def tensors(kind, width, dtype=None, size=(1, 2, 3, 4), stride=(24, 12, 4, 1), first=0):
        count = math.prod(size) * (width if dtype else 1)
        made = [Tensor(str(first + i), kind, size, stride, count=count, dtype=dtype) for i in range(4)]
        return made, {str(first + i): bytes((7 * k + i) & 127 for k in range(math.prod(size) * width)) for i in range(4)}
    f16, half = tensors("HalfStorage", 2)
    f32, full = tensors("FloatStorage", 4)
    f8, byte = tensors("UntypedStorage", 1, "float8_e4m3fn")
    ids = {"9": u64(1, 2, 3)}
    flat = {f"layers.{i}.{part}": f16[2 * i + k] for i in (0, 1) for k, part in enumerate(("keys", "values"))}
    fused = [Tensor("0", "BFloat16Storage", (1, 2, 3, 4), (48, 24, 8, 1), 4 * k, 48) for k in (0, 1)]
    turned = [Tensor(str(k), "FloatStorage", (1, 2, 3, 4), (24, 4, 8, 1), 0, 24) for k in (0, 1)]
    def layer(name, i, **more):
        x = STUBS[name]()
        x.__dict__.update(keys=f32[2 * i], values=f32[2 * i + 1], is_initialized=True, **more)
        return x
    cache = STUBS["DynamicCache"]()
    cache.__dict__.update(layers=[layer("DynamicSlidingWindowLayer", 0, cumulative_length=9, sliding_window=4),
                                  layer("DynamicSlidingWindowLayer", 1, cumulative_length=9, sliding_window=4)])
    loop = []
    loop.append(loop)
    class Evil:
        def __reduce__(self):
            return print, ("run",)
    return {
        "flat": torch_file({**flat, "tokens": Tensor("9", "LongStorage", (3,), (1,))}, {**half, **ids}),
        "pairs-4": torch_file(((f16[0], f16[1]), (f16[2], f16[3])), half, 4),
        "lists-5": torch_file({"key_cache": f32[::2], "value_cache": f32[1::2], "tokens": Tensor("9", "LongStorage", (1, 3), (3, 1)),
                               "other": [None, True, 1.5, -1, 1 << 40, b"bytes", "text", (), (1, 2), {}]}, {**full, **ids}, 5),
        "fp8": torch_file(collections.OrderedDict((f"layers.0.{p}", f8[k]) for k, p in enumerate(("keys", "values"))), byte),
        "sliding": torch_file(cache, full, 3),
        "fused": torch_file(((fused[0], fused[1]),), {"0": bytes(range(96))}),
        "turned": torch_file({"past_key_values": [turned]}, {k: full[k] for k in "01"}),
        "empty": torch_file({**flat, **{f"layers.2.{p}": Tensor(k, "HalfStorage", (1, 2, 0, 4), (8, 4, 4, 1), count=0)
                                        for k, p in (("4", "keys"), ("5", "values"))}}, {**half, "4": b"", "5": b""}),
        "skipped": torch_file({f"{p}_cache": [f16[k], Tensor(str(4 + k), "FloatStorage", (0,), (1,), count=0), f16[2 + k]]
                               for k, p in enumerate(("key", "value"))}, {**half, "4": b"", "5": b""}),
        "deflate": torch_file(flat, half, method=zipfile.ZIP_DEFLATED),
        "same-bytes": torch_file({**flat, "layers.1.keys": f16[0]}, half),
        "endless": torch_file([loop, flat], half),
        "other-function": torch_file({**flat, "x": Evil()}, half),
        "beyond": torch_file({**flat, "layers.0.keys": Tensor("0", "HalfStorage", (1, 2, 3, 4), (24, 12, 4, 1), 1, 24)}, half),
    }


def mlx_files():
    """Prompt caches of mlx-lm, in both layouts."""
    def layer(i, rows, state=()):
        out = [(f"{i}.{k}", "BF16", [1, 2, rows, 4], bytes((5 * n + k) & 127 for n in range(16 * rows))) for k in (0, 1)]
        return out + [(f"{i}.{k + 2}", "I32", [], u32(n)) for k, n in enumerate(state)]
    return {
        "031": safetensors(layer(0, 3) + layer(1, 3), {"0.0": "", "0.1": "", "1.model": "m", "2.0": "KVCache", "2.1": "KVCache"}),
        "031-rotating": safetensors(layer(0, 5), {"0.0.0": "1", "0.0.1": "5", "0.0.2": "9", "0.0.3": "3", "2.0": "RotatingKVCache"}),
        "032": safetensors(layer(0, 8, (3,)) + layer(1, 5, (3, 1, 9, 3)),
                           {"0.model": "m", "1.0": "KVCache", "1.1": "RotatingKVCache", "2.0": "", "2.1.0": "0.2", "2.1.1": "scalar"}),
        "032-short": safetensors(layer(0, 8, (3,)) + layer(1, 5, (3, 0, 5, 3)) + layer(2, 3, (3, 0, 4, 3)),
                                 {"1.0": "KVCache", "1.1": "RotatingKVCache", "1.2": "RotatingKVCache", "2.0": ""}),
        "032-wrapped": safetensors(layer(0, 5, (9, 0, 5, 2)), {"1.0": "RotatingKVCache", "2.0": ""}),
        "quantized": safetensors([("0.0.0", "U32", [1, 1, 1, 1], bytes(4))], {"2.0": "QuantizedKVCache"}),
        "beyond": safetensors(layer(0, 3, (4,)), {"1.0": "KVCache", "2.0": ""}),
    }


def redis():
    """What a Redis server may send, after the byte that chooses the question: 0 find, 1 get, 2 put, 3 drop, 4 walk, 5 facts, 6 each; 8: slots."""
    single = b"-ERR This instance has cluster support disabled\r\n"
    key = b"kvc:" + b"0" * 16 + b"-" + b"0" * 64 + b".kv"
    scan = b"*2\r\n$1\r\n0\r\n*1\r\n$%d\r\n%s\r\n" % (len(key), key)
    slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$9\r\n127.0.0.1\r\n:1\r\n$2\r\nid\r\n"
    value = b":5\r\n$5\r\nabcde\r\n"
    yield "find", b"\0" + b":5\r\n:1048577\r\n:0\r\n" + b":7\r\n" * 2
    yield "get", b"\1" + value * 5
    yield "get-large", b"\1" + b":100000\r\n$100000\r\n"[:20] + b":3\r\n$100\r\n" + b"x" * 100 + b"\r\n" + value
    yield "get-missing", b"\1" + value + b":0\r\n$0\r\n\r\n" + value * 3 + b"$-1\r\n"
    yield "put", b"\2+OK\r\n"
    yield "put-there", b"\2$-1\r\n"
    yield "moved", b"\2-MOVED 3999 127.0.0.1:1\r\n"
    yield "ask", b"\0-ASK 3999 :1\r\n" + b"-TRYAGAIN x\r\n" * 4
    yield "drop", b"\3:1\r\n:0\r\n-WRONGTYPE x\r\n-OOM x\r\n-CLUSTERDOWN x\r\n"
    yield "walk", b"\4" + scan + b"-ERR x\r\n:3\r\n:77\r\n-ERR x\r\n"
    yield "facts", b"\5:3\r\n$21\r\nredis_version:7.0.15\n\r\n$30\r\nused_memory:55\r\nmaxmemory:100\n\r\n"
    yield "each", b"\6:3\r\n:0\r\n-WRONGTYPE x\r\n:1\r\n:77\r\n"
    yield "single", b"\x08" + single
    yield "cluster", b"\x08" + slots


def write(folder, name, data):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)


def main(source, corpus):
    for path in sorted((source / "llama.cpp").glob("*.bin")):
        data = path.read_bytes()
        write(corpus / ("ggsn" if data[:4] == b"nsgg" else "ggsq"), path.stem, cut_llama(data))
    for target, files in built_llama().items():
        for name, data in files.items():
            write(corpus / target, name, data)
    for name in ("smol-argparse-f16", "smol-gpl3"):
        data = (source / "hf" / f"{name}.safetensors").read_bytes()
        write(corpus / "safetensors", name, cut_safetensors(data))
    ids = ("tokens", "I32", (3,), u32(1, 2, 3))
    hidden = ("hidden.0", "F32", (1, 3, 2), bytes(24))
    for name, arrays in {
        "f32": named(CACHE_NAMES, "F32", 4) + [ids],
        "fp8": named(PAST_NAMES, "F8_E4M3", 1),
        "u8": named(LAYER_NAMES, "U8", 1) + [("other", "I64", (1,), bytes(8))],
        "sliding": named(LAYER_NAMES, "BF16", 2, (5, 2)) + [hidden],
    }.items():
        write(corpus / "safetensors", name, safetensors([(n, k, list(s), d) for n, k, s, d in arrays]))
    ids = ("tokens", "<i4", (3,), u32(1, 2, 3))
    for name, arrays, method in (
            ("f32", named(LAYER_NAMES, "<f4", 4) + [ids], zipfile.ZIP_STORED),
            ("f16-deflate", named(CACHE_NAMES, "<f2", 2), zipfile.ZIP_DEFLATED),
            ("bf16", named(PAST_NAMES, "|V2", 2), zipfile.ZIP_STORED),
            ("u8-sliding", named(LAYER_NAMES, "|u1", 1, (5, 2)), zipfile.ZIP_STORED),
            ("ids64", named(LAYER_NAMES, "|i1", 1) + [("tokens", "<i8", (3,), u64(1, 2, 3))], zipfile.ZIP_DEFLATED)):
        write(corpus / "npz", name, npz(arrays, method))
    for i, text in enumerate(RECIPES):
        write(corpus / "recipe", f"{i:02}", text.encode())
    for name, data in lossy().items():
        write(corpus / "lossy", name, data)
    for name, arrays in stacked().items():
        write(corpus / "safetensors", name, safetensors([(n, k, list(s), d) for n, k, s, d in arrays]))
        descr = {"U16": "<u2", "F16": "<f2", "U8": "|u1"}
        write(corpus / "npz", name, npz([(n, descr[k], s, d) for n, k, s, d in arrays]))
    for name, data in {**bundles(), **beside()}.items():
        write(corpus / "bundle", name, data)
    for name, data in vllm().items():
        write(corpus / "vllm", name, data)
    for name, data in vllm_blocks().items():
        write(corpus / "vllm_blocks", name, data)
    for name, data in torch_files().items():
        write(corpus / "torch", name, data)
        with zipfile.ZipFile(io.BytesIO(data)) as z:
            write(corpus / "torch", name + ".pkl", z.read("x/data.pkl"))
    for name, data in redis():
        write(corpus / "redis", name, data)
    for name, data in mlx_files().items():
        write(corpus / "mlx", name, data)
    for name, data in profiles().items():
        write(corpus / "profile", name, data)
    for target, files in {"lmcache": lmcache(), "lmcache_gds": gds(),
                          "hicache": {str(n): bytes(7 * i & 255 for i in range(n)) for n in (48, 7)}}.items():
        for name, data in files.items():
            write(corpus / target, name, data)
    for name, text in S3.items():
        write(corpus / "store_s3", name, text.encode())
    for path in sorted((source / "damaged").glob("bad-*")):
        data, target = path.read_bytes(), {".bin": "ggsq", ".safetensors": "safetensors"}.get(path.suffix)
        if target and 0 < len(data) <= 10240:
            write(corpus / target, path.name, data)
    for path in sorted((corpus.parent.parent / "conformance/files").glob("good-*.kvc")):
        data = path.read_bytes()
        if len(data) <= 4096 or path.stem in ("good-cross", "good-cross-inputs", "good-cross-same"):
            write(corpus / "container", path.stem + "-checks", b"\x01" + data)
            write(corpus / "container", path.stem + "-index", b"\x02" + data)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
