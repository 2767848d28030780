#!/usr/bin/env python3
"""make_undigested.py: a .kvc of which a block has another digest than its rows, and a right check. Needs libxxhash.

    make_undigested.py FILE OUT BLOCK       BLOCK: which of the BLOCK records, from 0 on"""
import ctypes
import ctypes.util
import struct
import sys

name = ctypes.util.find_library("xxhash")
if not name:
    sys.exit(77)
xxhash = ctypes.CDLL(name)
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64


def xxh3(data, seed=0):
    return xxhash.XXH3_64bits_withSeed(data, len(data), seed)


def mend(at, size):
    """Sets the check of the record at `at`, which it returns."""
    check = xxh3(bytes(data[at + 32:at + size]), xxh3(bytes(data[at:at + 24])))
    struct.pack_into("<Q", data, at + 24, check)
    return check


def size_at(at):
    return 16 * struct.unpack_from("<I", data, at + 4)[0]


BLOCK, CHECKS = 7, 50
data, wanted, at, number = bytearray(open(sys.argv[1], "rb").read()), int(sys.argv[3]), 32, 0
while data[at] != BLOCK or wanted:  # records: type, flags, sections, units of 16 bytes, subject, number, digest, check
    wanted -= data[at] == BLOCK
    at += size_at(at)
    number += 1
data[at + 16] ^= 1
check = mend(at, size_at(at))
index = struct.unpack_from("<Q", data, len(data) - 32)[0]
entries = struct.unpack_from("<H", data, index + 2)[0]
place, seed = index + 32 + 16 * entries, 0
for i in range(entries):  # sections: type, coder, stage, index, stored bytes, decoded bytes
    kind, coder, _, _, stored = struct.unpack_from("<BBBBI", data, index + 32 + 16 * i)
    if kind == CHECKS:
        assert not coder
        struct.pack_into("<I", data, place + 4 * number, check & 0xffffffff)
        seed = mend(index, size_at(index))
    place += -(-stored // 16) * 16
struct.pack_into("<Q", data, len(data) - 8, xxh3(bytes(data[-32:-8]), seed))
open(sys.argv[2], "wb").write(data)
