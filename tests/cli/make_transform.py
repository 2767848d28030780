#!/usr/bin/env python3
"""make_transform.py: caches of a made-up model in safetensors, and its profile, for the transform codec. Not for real ones.

    make_transform.py cache FILE TOKENS [queries=N] [hidden] [other] [dtype=bf16] [interleaved] [no-rope] [pre] [text=N] [ids=N]
        [MODEL]
    make_transform.py slot FILE TOKENS [window=N] [text=N] [ids=N] [MODEL]
    make_transform.py profile FILE [sliding-facts] [metric=fisher] [no-queries] [no-rope] [name=NAME] [fingerprint=KIND.ALGORITHM=HEX] [MODEL]

MODEL is what all must agree on: layers=3 heads=2 dim=32 theta=10000 seed=1 sliding=000 local=10000; `sliding` has a digit for each
layer, 1 for those with a window, whose RoPE has the base `local`. A slot is llama.cpp's: layers without a window, then those with one, of
which only the last `window` tokens are there; f16, channels paired as halves. `sliding-facts`: the profile says which layers have a window. A row of K or V is a mean and a sum of `dim` orthogonal
directions of falling size; K is turned by RoPE behind that. The profile holds those means and directions.
Two query heads read a KV head. `text` chooses the rows, `ids` the token ids; `hidden` and `other` add hidden states and an array that is no part
of a cache; `no-rope`: nothing turns, and no file says so; `pre`: K before RoPE, which the file says;
interleaved: channels 2i and 2i + 1 are a pair, else i and i + dim / 2."""
import json
import math
import operator
import random
import struct
import sys

import made_rows
from made_rows import normal

what, name = sys.argv[1], sys.argv[2]
words = sys.argv[3:]
tokens = int(words.pop(0)) if what != "profile" else 0
flags = {w for w in words if "=" not in w}
options = dict(w.split("=", 1) for w in words if "=" in w)
LAYERS, HEADS, DIM, THETA, SEED = (
    int(options.get(k, d)) for k, d in (("layers", 3), ("heads", 2), ("dim", 32), ("theta", 10000), ("seed", 1)))
HALF, GROUP = DIM // 2, 2
SLIDING, LOCAL, WINDOW = (options.get("sliding", "0" * LAYERS), int(options.get("local", THETA)), int(options.get("window", tokens)))
GAIN = 60.0  # what a coefficient of 1 in the profile makes of K and V; presets have steps of a hundredth
dtype = options.get("dtype", "bf16")


def pack(kind, values):
    if kind == "BF16":  # rounded to nearest even
        words = struct.unpack("<%dI" % len(values), struct.pack("<%df" % len(values), *values))
        return struct.pack("<%dH" % len(words), *[(w + 0x7fff + (w >> 16 & 1)) >> 16 for w in words])
    return struct.pack("<%d%s" % (len(values), {"F64": "d", "F32": "f", "F16": "e", "I32": "i", "I8": "b"}[kind]), *values)


def write(metadata, arrays):
    header, body = {"__metadata__": metadata}, b""
    for key, (kind, shape, values) in arrays.items():
        data = pack(kind, values)
        header[key] = {"dtype": kind, "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(name, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)


def dot(a, b):
    return sum(map(operator.mul, a, b))


def directions(source):
    """Orthogonal rows: Gram-Schmidt."""
    rows = []
    while len(rows) < DIM:
        row = [source.gauss(0, 1) for _ in range(DIM)]
        for other in rows:
            share = dot(row, other)
            row = [x - share * y for x, y in zip(row, other)]
        size = math.sqrt(dot(row, row))
        rows.append([x / size for x in row])
    return rows


class Rows:
    """The distribution of one head's rows."""

    def __init__(self, source):
        self.mean = [source.gauss(0, 1) * (6 if i % 11 == 0 else 1) for i in range(DIM)]
        self.rows = directions(source)
        self.columns = list(zip(*self.rows))
        self.size = [0.2 + 2 * 0.85 ** j for j in range(DIM)]

    def draw(self, source):
        c = list(map(operator.mul, normal(source, DIM), self.size))
        return [m + dot(c, column) for m, column in zip(self.mean, self.columns)]


def base_of(layer):
    return LOCAL if SLIDING[layer] == "1" else THETA


def turned(row, position, layer=0):
    pairs = [(1, 0)] * HALF if flags & {"no-rope", "pre"} else made_rows.turns(position, base_of(layer), HALF)
    return made_rows.turned(row, pairs, "interleaved" in flags)


model = random.Random(SEED)
heads = [[{"k": Rows(model), "v": Rows(model)} for _ in range(HEADS)] for _ in range(LAYERS)]
query_mean = [[[model.gauss(0, 0.3) for _ in range(DIM)] for _ in range(GROUP * HEADS)] for _ in range(LAYERS)]


def query(layer, head, source):
    return [m + source.gauss(0, 0.2) for m in query_mean[layer][head]]


def make_cache():
    text, asking = random.Random(options.get("text", "1")), random.Random(2)  # K and V do not depend on the queries
    kind, queries, arrays = dtype.upper(), int(options.get("queries", 0)), {}
    for layer in range(LAYERS):
        for role, plural in (("k", "keys"), ("v", "values")):
            values = []
            for h in range(HEADS):
                for t in range(tokens):
                    row = heads[layer][h][role].draw(text)
                    values += turned(row, t, layer) if role == "k" else row
            arrays[f"layers.{layer}.{plural}"] = kind, [1, HEADS, tokens, DIM], values
        if queries:
            arrays[f"queries.{layer}"] = kind, [1, GROUP * HEADS, queries, DIM], [
                x for h in range(GROUP * HEADS) for t in range(tokens - queries, tokens)
                for x in turned(query(layer, h, asking), t, layer)]
        if "hidden" in flags:
            arrays[f"hidden.{layer}"] = kind, [tokens, DIM], [asking.gauss(0, 1) for _ in range(tokens * DIM)]
    if "other" in flags:
        arrays["other"] = "F32", [7], [asking.gauss(0, 1) for _ in range(7)]
    arrays["tokens"] = "I32", [tokens], [(7919 * i + int(options.get("ids", 0))) % 50000 for i in range(tokens)]
    facts = {"rope_pairing": "interleaved" if "interleaved" in flags else "halves", "model": options.get("name", "made-up"),
             "n_layers": str(LAYERS)}
    if "no-rope" not in flags:
        facts |= {"k_rope": "pre" if "pre" in flags else "post", "rope_type": "default", "rope_theta": str(THETA), "rope_dim": str(DIM)}
    write(facts, arrays)


def make_profile():
    asking, arrays = random.Random(3), {}
    for layer in range(LAYERS):
        prefix = f"layers.{layer}."
        if "no-rope" not in flags:
            arrays[prefix + "rope"] = "F64", [HALF], [base_of(layer) ** (-i / HALF) for i in range(HALF)]
        for role in "kv":
            parts = [heads[layer][h][role] for h in range(HEADS)]
            largest = [[max(map(abs, row)) for row in p.rows] for p in parts]
            arrays[prefix + role + ".mean"] = "F32", [HEADS, DIM], [x for p in parts for x in p.mean]
            arrays[prefix + role + ".basis"] = "I8", [HEADS, DIM, DIM], [
                round(127 * x / m) for p, most in zip(parts, largest) for row, m in zip(p.rows, most) for x in row]
            arrays[prefix + role + ".scale"] = "F32", [HEADS, DIM], [GAIN * m / 127 for most in largest for m in most]
            arrays[prefix + role + ".variance"] = "F32", [HEADS, DIM], [(s / GAIN) ** 2 for p in parts for s in p.size]
            arrays[prefix + role + ".weight"] = "F32", [HEADS], [1 / GAIN ** 2] * HEADS
        if "no-queries" not in flags:
            n, values, scales = 8, [], []
            for h in range(GROUP * HEADS):
                for _ in range(n):
                    row = query(layer, h, asking)
                    scales.append(max(map(abs, row)) / 127)
                    values += [round(x / scales[-1]) for x in row]
            arrays[prefix + "queries"] = "I8", [GROUP * HEADS, n, DIM], values
            arrays[prefix + "queries.scale"] = "F32", [GROUP * HEADS, n], scales
    facts = {"kvc.profile": "1", "model.name": options.get("name", "made-up"), "model.architecture": "llama",
             "model.layers": str(LAYERS), "model.kv-heads": str(HEADS), "model.heads": str(GROUP * HEADS),
             "model.head-dim": str(DIM), "metric": options.get("metric", "fisher"), "texts": "made-up", "tokens": "600",
             "made": "make_transform.py"}
    if "sliding-facts" in flags:
        facts |= {"model.sliding-layers": SLIDING, "model.sliding-window": str(WINDOW)}
    if "fingerprint" in options:
        which, digits = options["fingerprint"].split("=")
        facts["model.fingerprint." + which] = digits
    write(facts, arrays)


def body(layers, rows, positions):
    """One of the slot's caches: cells, then K of all its layers, then V."""
    out = struct.pack("<II", 1, len(positions)) + b"".join(struct.pack("<iIi", p, 1, 0) for p in positions)
    out += struct.pack("<IIII", 0, len(layers), 0, 0)
    for role in "kv":
        for layer in layers:
            values = [x for p in positions for x in rows[layer, role][p]]
            out += struct.pack("<iQ", 1, 2 * HEADS * DIM) + pack("F16", values)
    return out


def make_slot():
    text, rows = random.Random(options.get("text", "1")), {}
    for layer in range(LAYERS):
        for role in "kv":
            of_heads = [[heads[layer][h][role].draw(text) for _ in range(tokens)] for h in range(HEADS)]
            rows[layer, role] = [[x for rows_of_head in of_heads for x in (
                turned(rows_of_head[t], t, layer) if role == "k" else rows_of_head[t])] for t in range(tokens)]
    words = [-1, 1, tokens, *((7919 * i + int(options.get("ids", 0))) % 50000 for i in range(tokens)), 0]
    out = struct.pack(f"<III{len(words)}i", 0x67677371, 4, len(words), *words)
    out += body([i for i in range(LAYERS) if SLIDING[i] == "0"], rows, range(tokens))
    if "1" in SLIDING:
        out += body([i for i in range(LAYERS) if SLIDING[i] == "1"], rows, range(max(0, tokens - WINDOW), tokens))
    with open(name, "wb") as f:
        f.write(out)


{"cache": make_cache, "slot": make_slot, "profile": make_profile}[what]()
