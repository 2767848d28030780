#!/usr/bin/env python3
"""make_undigested.py: a .kvc of which a block has another digest than its rows, and right checks. Status 77 without libxxhash.

    make_undigested.py FILE OUT BLOCK       BLOCK: which of the BLOCK records, from 0 on"""
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance"))
sys.dont_write_bytecode = True
try:
    import make_files as m
except (ImportError, OSError, AttributeError):
    sys.exit(77)


class Stored:
    """A record as it stands in a file."""
    gap = 0

    def __init__(self, data):
        self.data, self.kind, self.flags = data, data[0], data[1]
        self.subject, self.number = struct.unpack_from("<II", data, 8)

    def bytes(self):
        return self.data

    def spoil(self):
        head = m.patch(self.data[:24], 16, bytes([self.data[16] ^ 1]))
        self.data = head + m.u64(m.xxh3(self.data[32:], m.xxh3(head))) + self.data[32:]


data, wanted, at, records = pathlib.Path(sys.argv[1]).read_bytes(), int(sys.argv[3]), 32, []
while data[at] != m.INDEX:
    size = 16 * struct.unpack_from("<I", data, at + 4)[0]
    records.append(Stored(data[at:at + size]))
    at += size
[r for r in records if r.kind == m.BLOCK][wanted].spoil()
out = m.File(records)
out.align = data[12]
pathlib.Path(sys.argv[2]).write_bytes(out.bytes())
