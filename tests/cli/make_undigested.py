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


data, wanted, at = bytearray(open(sys.argv[1], "rb").read()), int(sys.argv[3]), 32
while True:  # records: type, flags, sections, units of 16 bytes, subject, number, digest, check
    kind, size = data[at], 16 * struct.unpack_from("<I", data, at + 4)[0]
    if kind == 7 and not wanted:
        break
    wanted -= kind == 7
    at += size
data[at + 16] ^= 1
struct.pack_into("<Q", data, at + 24, xxh3(bytes(data[at + 32:at + size]), xxh3(bytes(data[at:at + 24]))))
open(sys.argv[2], "wb").write(data)
