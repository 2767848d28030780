#!/usr/bin/env python3
"""memory.py TOOLS: the most memory that kvc-pack and kvc-unpack have at once, mapped input apart, with two threads, and how long
a container of very many records takes to open. Makes caches of up to 2 GB in $TMPDIR and removes them. Not a test.

Memory is RssAnon of /proc, looked at every 2 ms: Linux only. The values are normal noise, the same in each run.
"""

import array
import os
import random
import struct
import subprocess
import sys
import tempfile
import time

MB = 1e6


def geometry(layers, tokens, heads, dim):
    return f"--raw=dtype=bf16,layers={layers},tokens={tokens},heads={heads},dim={dim}"


def noise(path, size):
    """bf16 of normal noise: some 2 MB of it, again and again from other places."""
    r = random.Random(1)
    block = array.array("H", (struct.unpack("<I", struct.pack("<f", r.gauss(0, 1)))[0] >> 16 for _ in range(1 << 20)))
    if sys.byteorder == "big":
        block.byteswap()
    block = block.tobytes()
    with open(path, "wb") as f:
        while size:
            start = 2 * r.randrange(1 << 19)
            piece = block[start:start + size]
            f.write(piece)
            size -= len(piece)


def peak(*command):
    """Megabytes."""
    with open(os.devnull, "wb") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere)
        most = 0
        while process.poll() is None:
            try:
                with open(f"/proc/{process.pid}/status", encoding="ascii") as f:
                    most = max([most, *(int(line.split()[1]) for line in f if line.startswith("RssAnon"))])
            except OSError:
                pass
            time.sleep(0.002)
    if process.returncode:
        sys.exit(f"memory.py: exit status {process.returncode}: {' '.join(command)}")
    return most * 1024 / MB


def show(what, size, value):
    print(f"  {what:34}{size / MB:10.0f} MB{value:>12}", flush=True)


def main():
    tools = os.path.abspath(sys.argv[1])
    pack, unpack, dump = (os.path.join(tools, f"kvc-{t}") for t in ("pack", "unpack", "dump"))
    with tempfile.TemporaryDirectory(prefix="kvc-memory.") as folder:
        source, packed = os.path.join(folder, "a.raw"), os.path.join(folder, "a.kvc")
        print("Most memory at once, mapped input apart, two threads")
        for layers, tokens, heads, dim in (10, 10240, 12, 128), (32, 8192, 12, 128):
            size = layers * 2 * tokens * heads * dim * 2
            noise(source, size)
            raw = geometry(layers, tokens, heads, dim)
            for recipe in "split", "fast", "store":
                row = f"rows of {heads * dim * 2} bytes, {recipe}"
                most = peak(pack, "-q", "-f", "-T2", "-r", recipe, "--from=raw", raw, source, "-o", packed)
                show(f"pack, {row}", size, f"{most:.0f} MB")
                show(f"unpack, {row}", size, f"{peak(unpack, '-q', '-T2', '-c', packed):.0f} MB")
        layers, tokens = 32, 1 << 20
        size = layers * 2 * tokens * 16
        noise(source, size)
        subprocess.run([pack, "-q", "-f", "-r", "store", "--no-verify", "--from=raw", geometry(layers, tokens, 1, 8), source,
                        "-o", packed], check=True)
        os.remove(source)
        print("Opening a container of 262 144 blocks, the best of 9")
        best = 1e9
        for _ in range(9):
            start = time.perf_counter()
            subprocess.run([dump, packed], check=True, stdout=subprocess.DEVNULL)
            best = min(best, time.perf_counter() - start)
        show("kvc-dump", os.path.getsize(packed), f"{best:.2f} s")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: memory.py FOLDER_OF_THE_TOOLS")
    main()
