#!/usr/bin/env python3
"""growth.py TOOLS [GB,GB... [PAGE]]: how packing, unpacking, checking and comparing go as caches grow: by size, by tokens, by threads. GB of cache per
second of the clock, and the most memory, mapped input apart; PAGE gets the curves. Not for the rates of stages (bench.c), and not a test.

Makes caches in $TMPDIR and removes them. A size for which there is no room there is left out, with a line that says so. The values are normal
noise, of 32 layers with 8 heads of 128.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time

import growth_page
from memory import geometry, noise, peak

HEADS, DIM, LAYERS, GB = 8, 128, 32, 1e9
TOKENS = 2048, 8192, 32768, 131072
SIZES = "1,4,16,64"
COLUMNS = "split, pack", "split, unpack", "fast, pack", "fast, unpack", "check", "diff"


def bytes_of(layers, tokens):
    return layers * 2 * tokens * HEADS * DIM * 2


class Growth:
    def __init__(self, tools, folder):
        self.tool = {t: os.path.join(tools, f"kvc-{t}") for t in ("pack", "unpack", "dump", "diff")}
        self.tables = []
        self.source, self.split, self.fast = (os.path.join(folder, name) for name in ("a.raw", "split.kvc", "fast.kvc"))

    def rate(self, size, *command):
        """GB/s and megabytes of a command."""
        start = time.perf_counter()
        most = peak(*command)
        return size / GB / (time.perf_counter() - start), most

    def head(self, title):
        self.tables.append((title, COLUMNS, []))
        print(f"{title}\n  {'':22}" + "".join(f"  {c:14}" for c in COLUMNS) + f"\n  {'':22}" + "    GB/s     MB " * len(COLUMNS))

    def row(self, label, layers, tokens, threads):
        size, t = bytes_of(layers, tokens), f"-T{threads}"
        raw = geometry(layers, tokens, HEADS, DIM)
        cells = []
        for recipe, packed in ("split", self.split), ("fast", self.fast):
            cells.append(self.rate(size, self.tool["pack"], "-q", "-f", t, "-r", recipe, "--from=raw", raw, self.source, "-o", packed))
            cells.append(self.rate(size, self.tool["unpack"], "-q", t, "-c", packed))
        cells.append(self.rate(size, self.tool["dump"], "--check", t, self.fast))
        cells.append(self.rate(2 * size, self.tool["diff"], "-q", self.split, self.fast))
        self.tables[-1][2].append((label.split(",")[0].replace(" tokens", ""), cells))
        print(f"  {label:22}" + "".join(f"  {rate:6.2f} {most:6.0f} " for rate, most in cells), flush=True)

    def make(self, layers, tokens):
        """Returns 0 where there is no room for the cache and its containers."""
        size = bytes_of(layers, tokens)
        if shutil.disk_usage(os.path.dirname(self.source)).free < 3 * size:
            print(f"  {size / GB:.1f} GB: no room for it and its containers", flush=True)
            return 0
        noise(self.source, size)
        return 1

    def remove(self):
        for path in self.source, self.split, self.fast:
            if os.path.exists(path):
                os.remove(path)


def main():
    cores = os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="kvc-growth.") as folder:
        g = Growth(os.path.abspath(sys.argv[1]), folder)
        g.head(f"By size, {LAYERS} layers, {cores} threads")
        for gb in (sys.argv[2] if len(sys.argv) > 2 else SIZES).split(","):
            tokens = max(1, round(float(gb) * GB / bytes_of(LAYERS, 1)))
            if g.make(LAYERS, tokens):
                g.row(f"{float(gb):.0f} GB, {tokens} tokens", LAYERS, tokens, cores)
            g.remove()
        g.head(f"By tokens, 4 layers, {cores} threads")
        for tokens in TOKENS:
            if g.make(4, tokens):
                g.row(f"{tokens} tokens", 4, tokens, cores)
            g.remove()
        g.head("By threads, 1 GB")
        tokens = round(GB / bytes_of(LAYERS, 1))
        if g.make(LAYERS, tokens):
            threads = 1
            while threads <= min(16, cores):
                g.row(f"{threads}", LAYERS, tokens, threads)
                threads *= 2
    if len(sys.argv) > 3:
        growth_page.write(sys.argv[3], f"{cores} cores; {LAYERS} layers of {HEADS} heads of {DIM} channels, bf16, normal noise", g.tables)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3, 4):
        sys.exit("Usage: growth.py FOLDER_OF_THE_TOOLS [GB,GB... [PAGE]]")
    main()
