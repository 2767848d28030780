#!/usr/bin/env python3
"""make_bomb.py: a small .kvc of zeros that decodes to far more: K and V of one layer, f16, coded by zstd. Status 77 without libxxhash.

    make_bomb.py FILE ROW_BYTES BLOCKS [digests]     blocks have 256 rows; without `digests` those are 0, and rows do not match them"""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
sys.dont_write_bytecode = True
try:
    import make_files as m
except (ImportError, OSError, AttributeError):
    sys.exit(77)


def frame(n):
    """A zstd frame of n zeros: blocks that repeat a byte."""
    out, most = struct.pack("<IBQ", 0xfd2fb528, 0xe0, n), 128 << 10
    while n:
        size = min(n, most)
        n -= size
        out += struct.pack("<I", (n == 0) | 1 << 1 | size << 3)[:3] + b"\0"
    return out


path, row, blocks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
tensors = [m.Tensor(0, role, heads=1, dim=row // 2, rows=range(256 * blocks)) for role in (0, 1)]
c = m.Cache([m.Part(list(range(256 * blocks)))], [(0, 0, 0, 0)], tensors, meta={"producer": m.text("make_bomb")},
            pipelines=((m.ZSTD,),), literals=False)
source = m.varint(3) + m.varint(0) + m.varint(1) + m.varint(1) + m.varint(2)  # a byte, K, V
records = [c.meta_record(), c.table_record(), c.cells_record(0),
           m.Record(m.SOURCE, [m.Section(m.S_EXTENTS, source), m.Section(m.S_LITERALS, b"\n")])]
plane, zeros = frame(128 * row), bytes(row) if "digests" in sys.argv else None
for number in range(2):
    for block in range(blocks):
        digest = sum(m.xxh3(zeros, 256 * block + i) for i in range(256)) % 2**64 if zeros else 0
        sections = [m.Section(m.PLANE, b"", coder=1, stage=0, index=i, stored=plane, raw_size=128 * row) for i in (0, 1)]
        records.append(m.Record(m.BLOCK, sections, subject=number, number=block, digest=digest))
pathlib.Path(path).write_bytes(m.File(records).bytes())
