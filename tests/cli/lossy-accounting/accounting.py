#!/usr/bin/env python3
"""accounting.py: what the papers' presets make of caches of the papers' shapes, byte by byte. Not for quality.

    accounting.py        in an empty directory, with kvc-pack and kvc-dump in PATH

Values are normal noise: only what is coded without loss, or packed, depends on them. Each type of section must have the
size that the formulas here give: those of the papers where they have one, codecs/NAME.md else. Prints the published
sizes, the papers' accounting (codes, scales and least values of 16 bits, outliers of 32, factors and kept rows of 16) and
kvc's, in percent of f16.
"""
import json
import math
import os
import random
import struct
import subprocess
import sys
from array import array
from collections import Counter, namedtuple
from fractions import Fraction
from statistics import NormalDist

HEADS, DIM, QUERIES = 32, 128, 64  # LLaMA-2-7B
WIDTH = HEADS * DIM
BLOCK, GROUP = 256, 64

Published = namedtuple("Published", "preset tokens layers percent where")
PUBLISHED = [
    Published("kivi2", 900, 2, "22.7", "GEAR table 9, GSM8k"),
    Published("gear-l", 900, 2, "24.5", "GEAR table 9, GSM8k"),
    Published("gear", 900, 2, "28.5", "GEAR table 9, GSM8k"),
    Published("kcvt4", 900, 2, "27.5", "GEAR table 9, GSM8k"),
    Published("zipcache", 840, 2, "20.1", "ZipCache table 3"),
    Published("think", 1024, 2, "80", "ThinK 4.2"),
    Published("minicache", 1024, 4, "77.5", "MiniCache 4.3"),
    Published("minicache-kivi4", 1024, 4, "19.9", "MiniCache table D"),
]


# --- a cache ---

class Values:
    """Normal f16 values; each call takes some from elsewhere, so that no row occurs twice."""

    def __init__(self, n):
        normal = NormalDist()
        f16 = [struct.unpack("<H", struct.pack("<e", normal.inv_cdf((i + 0.5) / 65536)))[0] for i in range(65536)]
        self.pool = array("H", map(f16.__getitem__, array("H", random.Random(1).randbytes(2 * (n + 65536)))))
        self.at = 0
        if sys.byteorder == "big":
            self.pool.byteswap()

    def take(self, n):
        self.at += 2 * DIM + 77  # no multiple of a row
        return self.pool[self.at:self.at + n].tobytes()


def write_cache(name, tokens, layers):
    values, header, at = Values(tokens * WIDTH), {}, 0
    shapes = {f"layers.{i}.{what}": [1, HEADS, tokens, DIM] for i in range(layers) for what in ("keys", "values")}
    shapes.update({f"queries.{i}": [1, HEADS, QUERIES, DIM] for i in range(layers)})
    for key, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[key] = {"dtype": "F16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(name, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            f.write(values.take(math.prod(shape)))


# --- what the sections of one K or V must hold ---

def halves(n):
    """At most: codecs/floats.md."""
    return 2 * n + 9


class Sizes:
    """Bytes by section type: exact where they follow from the shape, else at the most; and bits by the paper's
    accounting. Blocks are numbers of rows."""

    def __init__(self):
        self.exact, self.most, self.paper = Counter(), Counter(), 0

    def lossless(self, rows, what="split"):
        self.most[what] += 2 * WIDTH * rows
        self.paper += 16 * WIDTH * rows

    def kept_at_end(self, rows):
        self.exact["TAIL"] += 2 * len(rows)
        self.lossless(sum(rows), "kept")

    def quant(self, role, rows, bits, g):
        """g: GROUP, or None where groups are whole channels of K and rows of V."""
        for n in rows:
            groups = (-(-n // g) if g else 1) * WIDTH if role == "K" else n * WIDTH // (g or WIDTH)
            self.exact["CODES"] += n * WIDTH * bits // 8
            self.most["PARAMS"] += 2 * halves(groups)
            self.paper += 32 * groups if g or role == "V" else 0
        self.paper += sum(rows) * WIDTH * bits + (0 if g or role == "V" else 32 * WIDTH)

    def outliers(self, role, rows, share):
        if role == "V":
            k = math.floor(WIDTH * share / 2)
            self.exact["OUTLIERS"] += sum(2 + n * 2 * k * (2 + 2) for n in rows)
            self.paper += sum(rows) * 2 * k * 32
            return
        # counts by block and channel; of equal values that would be one too many none is an outlier
        k = math.floor(sum(rows) * share / 2)
        self.exact["OUTLIERS"] += len(rows) * (2 + WIDTH) + 9 * WIDTH * 2 * k * (1 + 2) // 10
        self.most["OUTLIERS"] += WIDTH * 2 * k * (1 + 2) // 10 + 1
        self.paper += WIDTH * 2 * k * 32

    def lowrank(self, rows, rank):
        self.most["FACTOR_B"] += halves(HEADS * rank * DIM)
        self.most["FACTOR_A"] += sum(halves(n * HEADS * rank) for n in rows)
        self.paper += 16 * HEADS * rank * (DIM + sum(rows))


def blocks(first, end):
    """Rows from `first` to `end` - 1 in each block that has any."""
    cuts = [first, *range((first // BLOCK + 1) * BLOCK, end, BLOCK), end]
    return [b - a for a, b in zip(cuts, cuts[1:]) if b > a]


def first_kept(tokens, whole, tail=64):
    """The last tokens are kept, and what fills no group of `whole`."""
    return (tokens - tail) // whole * whole


def kivi(role, tokens, bits, whole=None, g=GROUP, tail=64):
    first, s = first_kept(tokens, whole or (GROUP if role == "K" else 1), tail), Sizes()
    s.kept_at_end(blocks(first, tokens))
    s.quant(role, blocks(0, first), bits, g)
    return s


def gear(role, tokens, bits, outliers):
    s, rows = kivi(role, tokens, bits, GROUP), blocks(0, first_kept(tokens, GROUP))
    if outliers:
        s.outliers(role, rows, outliers)
    s.lowrank(rows, 4)
    return s


def zipcache(role, tokens):
    s, rows = Sizes(), blocks(0, tokens)
    regular = math.floor(Fraction(2, 5) * tokens)
    bits = WIDTH * (4 * (tokens - regular) + 2 * regular)
    s.exact["CODES"] = bits // 8
    s.exact["MASK"] = sum(-(-n * HEADS // 8) for n in rows)
    s.exact["NORMS"] = len(rows) * (2 + WIDTH) if role == "V" else 0
    s.most["PARAMS"] = sum(4 * halves(WIDTH if role == "K" else n) for n in rows)
    # both classes: a scale and a minimum of each channel of K, of each row of V and a norm of each channel
    s.paper = bits + HEADS * tokens + (64 * WIDTH if role == "K" else 32 * tokens + 16 * WIDTH)
    return s


def think(role, tokens):
    s = Sizes()
    if role == "V":
        s.lossless(tokens)
        return s
    left = DIM - math.floor(DIM * Fraction(2, 5))
    s.kept_at_end([32])
    s.exact["MASK"] = WIDTH // 8
    s.most["split"] = 2 * HEADS * left * (tokens - 32)
    s.paper += 16 * HEADS * left * (tokens - 32) + WIDTH
    return s


def minicache(role, tokens, layer, layers, kivi_bits, kept):
    """`kept`: how many rows `merge` keeps in each block, of those that come to it."""
    s, end, second = Sizes(), tokens, (layer - layers // 2) % 2
    if layer < layers // 2 and kivi_bits:
        return kivi(role, tokens, kivi_bits)
    if layer < layers // 2:
        s.lossless(tokens)
        return s
    if kivi_bits:
        end = first_kept(tokens, GROUP if role == "K" else 1)
        s.kept_at_end(blocks(end, tokens))
    if sum(kept) != math.floor(Fraction(1, 20) * end):
        raise ValueError(f"merge keeps {sum(kept)} of {end} rows")
    rows = blocks(0, end)
    merged = [n - k for n, k in zip(rows, kept)]
    s.lossless(sum(kept), "kept")
    s.most["NORMS"] += sum(map(halves, merged))
    s.exact["MERGED" if second else "KEPT"] = 4 if second else sum(-(-n // 8) for n in rows)
    s.paper += 16 * sum(merged) + end / 2
    if not second and kivi_bits:
        s.quant(role, merged, kivi_bits, GROUP)
    elif not second:
        s.lossless(sum(merged))
    return s


def expected(preset, role, tokens, layer, layers, kept):
    return {
        "kivi2": lambda: kivi(role, tokens, 2),
        "gear-l": lambda: gear(role, tokens, 2, None),
        "gear": lambda: gear(role, tokens, 2, Fraction(2, 100)),
        "kcvt4": lambda: kivi(role, tokens, 4, 1, None, 20),
        "zipcache": lambda: zipcache(role, tokens),
        "think": lambda: think(role, tokens),
        "minicache": lambda: minicache(role, tokens, layer, layers, None, kept),
        "minicache-kivi4": lambda: minicache(role, tokens, layer, layers, 4, kept),
    }[preset]()


# --- what they do hold ---

OWN = {"tail": {"TAIL"}, "merge": {"KEPT", "MERGED", "NORMS"}}  # their other sections are rows that they keep


class Packed:
    def __init__(self, preset, source):
        self.name = preset + ".kvc"
        subprocess.run(["kvc-pack", "-q", "--no-verify", "-r", preset, "-o", self.name, source], check=True)
        self.records, self.stages = self.dump("sections")["records"], {}
        for x in self.dump("layers")["layers"]:
            lines = [[stage.split(":")[0] for stage in line.split(",")] for line in x["pipeline"].split("/")]
            if x["roles"] == "K,V":
                self.stages[f"layer {x['layer']} K"], self.stages[f"layer {x['layer']} V"] = lines[0], lines[-1]

    def dump(self, how):
        done = subprocess.run(["kvc-dump", "--json", "--" + how, self.name], check=True, capture_output=True)
        return json.loads(done.stdout)["files"][0]

    def sizes(self, tensor):
        """Stored bytes by type, those of rows without loss under `kept` and `split`."""
        sizes = Counter()
        for record in self.records:
            for section in record["sections"] if record["tensor"] == tensor else []:
                stage = self.stages[tensor][section["stage"]]
                own = stage != "split" and section["type"] in OWN.get(stage, {section["type"]})
                sizes[section["type"] if own else "kept" if stage in OWN else stage] += section["stored"]
        return sizes

    def kept(self, tensor):
        """How many rows `merge` keeps in each block: the bits of the KEPT sections."""
        kept = []
        with open(self.name, "rb") as f:
            for record in self.records:
                at = record["offset"] + 32 + 16 * len(record["sections"])
                for section in record["sections"] if record["tensor"] == tensor else []:
                    if section["type"] == "KEPT":
                        f.seek(at)
                        kept.append(bin(int.from_bytes(f.read(section["stored"]), "little")).count("1"))
                    at += -(-section["stored"] // 16) * 16
        return kept

    def whole(self):
        """Bytes of the file but for the records of queries."""
        return os.path.getsize(self.name) - sum(x["size"] for x in self.records if "queries" in (x["tensor"] or ""))


def judge(row, source):
    """Prints what is wrong; returns kvc's bytes in sections and in all, and the bits of the paper's accounting."""
    packed, stored, paper, good = Packed(row.preset, source), 0, 0, True
    for role in "KV":
        kept = packed.kept(f"layer {row.layers // 2} {role}")
        for layer in range(row.layers):
            tensor = f"layer {layer} {role}"
            want, got = expected(row.preset, role, row.tokens, layer, row.layers, kept), packed.sizes(tensor)
            for what in sorted(set(want.exact) | set(want.most) | set(got)):
                least, most = want.exact[what], want.exact[what] + want.most[what]
                if not least <= got[what] <= most:
                    print(f"{row.preset}: {tensor}: {what} takes {got[what]} bytes, not {least} to {most}")
                    good = False
            stored, paper = stored + sum(got.values()), paper + want.paper
    whole = packed.whole()
    if whole - stored > 0.01 * whole:
        print(f"{row.preset}: headers take {whole - stored} of {whole} bytes")
        good = False
    os.remove(packed.name)
    return stored, whole, paper, good


def main():
    source, good = None, True
    print("preset           tokens  published  paper's accounting  kvc's sections  kvc's file")
    for row in PUBLISHED:
        name = f"cache-{row.layers}-{row.tokens}"
        if name != source:
            if source:
                os.remove(source)
            write_cache(name, row.tokens, row.layers)
            source = name
        stored, whole, paper, ok = judge(row, source)
        good, f16 = good and ok, row.layers * 4 * row.tokens * WIDTH
        print(f"{row.preset:16} {row.tokens:6} {row.percent:>10} {paper / 8 / f16:19.1%} {stored / f16:15.1%} "
              f"{whole / f16:11.1%}   {row.where}")
    sys.exit(not good)


if __name__ == "__main__":
    main()
