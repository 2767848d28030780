#!/usr/bin/env python3
"""make_iswa.py: a llama.cpp slot file of a made-up sliding-window model, for tests. Not for real caches.

    make_iswa.py FILE [--tokens N] [--window W] [--checkpoints C] [--full L] [--sliding L] [--swap]

GGSQ version 4 as llama-server writes it: the server's token list, a cache of L full layers with N cells,
one of L sliding-window layers that holds the last W positions, and C checkpoints ("SCKP" trailer), each a
copy of the window as it was some tokens earlier. One KV head of 64, f16; a value depends on layer, role and
position only, so checkpoints repeat what the live window still holds. --swap exchanges two cells."""
import argparse
import random
import struct


def row(layer, role, position):
    source = random.Random(layer * 1000003 + role * 500009 + position)
    return struct.pack("<64e", *(source.uniform(-4, 4) for _ in range(64)))


def body(layers, positions):
    out = struct.pack("<II", 1, len(positions))
    out += b"".join(struct.pack("<iIi", p, 1, 0) for p in positions)
    out += struct.pack("<IIII", 0, len(layers), 0, 0)
    for role in (0, 1):
        for layer in layers:
            out += struct.pack("<iQ", 1, 128) + b"".join(row(layer, role, p) for p in positions)
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--window", type=int, default=16)
    parser.add_argument("--checkpoints", type=int, default=1)
    parser.add_argument("--full", type=int, default=1)
    parser.add_argument("--sliding", type=int, default=2)
    parser.add_argument("--swap", action="store_true")
    o = parser.parse_args()
    full, sliding = list(range(o.full)), list(range(o.full, o.full + o.sliding))
    tokens = [(7919 * i + 13) % 50000 for i in range(o.tokens)]
    words = [-1, 1, len(tokens), *tokens, 0]
    live = list(range(o.tokens))
    if o.swap:
        live[0], live[1] = live[1], live[0]
    out = struct.pack(f"<III{len(words)}i", 0x67677371, 4, len(words), *words) + body(full, live)
    if sliding:
        out += body(sliding, list(range(max(0, o.tokens - o.window), o.tokens)))
    if o.checkpoints:
        out += b"SCKP" + struct.pack("<II", 1, o.checkpoints)
    for i in range(o.checkpoints):
        end = o.tokens - 4 * (o.checkpoints - i)
        window = list(range(max(0, end - o.window), end))
        data = struct.pack("<Ii", 0xaf143cd8, 0) + body(sliding, window)
        out += struct.pack("<qiiQ", end, window[0], window[-1], len(data)) + data + struct.pack("<QQ", 0, 0)
    with open(o.file, "wb") as f:
        f.write(out)


main()
