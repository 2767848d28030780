#!/usr/bin/env python3
"""make_files.py: makes the files of the conformance set (README.md), index.json and expected.txt. A second writer of the format,
made from formats/container/FORMAT.md alone and without a line of kvc's own code, so that a shared misreading shows.

    make_files.py             writes files that are not there yet, and the lists. A file that is there is never written again.
    make_files.py --explain   prints what each file is
    make_files.py --check     finds files that differ from their hash in index.json, that no case explains or that are missing, and
                              lists that are not what it would write

Standard library only; XXH3 and zstd come from the shared libraries that kvc uses as well.
"""
import copy
import ctypes
import ctypes.util
import hashlib
import json
import math
import pathlib
import re
import struct
import sys
from fractions import Fraction

HERE = pathlib.Path(__file__).resolve().parent
FILES = HERE / "files"
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import rules

xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash"))
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64
libzstd = ctypes.CDLL(ctypes.util.find_library("zstd"))
libzstd.ZSTD_compress.restype = libzstd.ZSTD_compressBound.restype = ctypes.c_size_t
libzstd.ZSTD_compress.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
libzstd.ZSTD_compressBound.argtypes = ctypes.c_size_t,
libzstd.ZSTD_decompress.restype = ctypes.c_size_t
libzstd.ZSTD_decompress.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t

NONE = 0xFFFFFFFF
META, TABLE, CELLS, TOKENS, SOURCE, SIDE, BLOCK, PROFILE, PAD, INDEX, SIGNATURE, SEALED = range(1, 13)
RAW, PLANE, PARAMS, CODES, ESCAPES, SAME, NEEDS = 1, 2, 3, 4, 5, 32, 33
S_META, S_TABLE, S_POSITIONS, S_WORDS, S_TOKENS, S_KEYS, S_EXTENTS, S_LITERALS, S_INDEX, S_PROFILE = range(40, 50)
S_SIGNATURE, OPTIONAL = 51, 128
F32, F16, BF16, F8E4M3, F8E5M2, U8, I8 = range(7)
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL = range(16, 22)
SIZES = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), F8E4M3: (1, 1), F8E5M2: (1, 1), U8: (1, 1), I8: (1, 1),
         Q8_0: (32, 34), Q4_0: (32, 18), Q4_1: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), IQ4_NL: (32, 18)}
ROLES = "K", "V", "latent", "R", "S", "queries", "hidden"
MAGIC, MAGIC_END = b"\x89KVC\r\n\x1a\n", b"\x89KVCEND\n"


def xxh3(data, seed=0):
    return xxhash.XXH3_64bits_withSeed(data, len(data), seed)


def zstd(data):
    room = libzstd.ZSTD_compressBound(len(data))
    out = ctypes.create_string_buffer(room)
    size = libzstd.ZSTD_compress(out, room, data, len(data), 3)
    return out.raw[:size]


def u8(*v):
    return struct.pack(f"<{len(v)}B", *v)


def u16(*v):
    return struct.pack(f"<{len(v)}H", *v)


def u32(*v):
    return struct.pack(f"<{len(v)}I", *v)


def u64(*v):
    return struct.pack(f"<{len(v)}Q", *v)


def varint(v):
    out = b""
    while v >= 128:
        out += u8(v & 127 | 128)
        v >>= 7
    return out + u8(v)


def svarint(v):
    return varint(v << 1 if v >= 0 else (-v << 1) - 1)


def f64(*v):
    return struct.pack(f"<{len(v)}d", *v)


def patch(data, at, new):
    return data[:at] + new + data[at + len(new):]


# --- stages: id and arguments ---

# Arguments in the order of the stages' pages: name, "" where recipes write the value alone; default, None where it must be given;
# and the words that it may be, int, float or bool.
ARGUMENTS = {
    2: [("level", 1, int)], 3: [("stream", 65536, int)], 6: [("", None, int)], 7: [("", None, int), ("whole", 1, int)],
    8: [("", None, ["kivi", "kcvt", "token", "zip"]), ("bits", None, int), ("g", 64, int), ("low", 2, int), ("clip", 0, bool),
        ("sym", 0, bool)],
    9: [("", None, float)], 10: [("r", None, int), ("layer", 0, bool), ("power", 0, int)],
    11: [("k", 0.0, float), ("v", 0.0, float), ("by", "query", ["query", "l1", "l2"]), ("mean", 0, bool), ("window", 32, int)],
    12: [("", None, float), ("norm", "code", ["code", "paper"]), ("by", "attention", ["attention", "knorm"])],
    13: [("", None, ["slerp", "mean", "maxnorm"]), ("t", 0.6, float), ("keep", 0.05, float), ("gamma", -1.0, float),
         ("from", 0.5, float), ("heads", 0, bool)],
    17: [("drop", 0.05, float), ("bits", 6, int), ("k", 0.18, float)],
    18: [("p", 0.5, float), ("c", 0.3, float), ("tail", 16, int), ("fine", 4, int)], 19: [("step", None, float), ("lanes", 32, int)],
    14: [("", None, ["hidden"]), ("norm", "auto", ["auto", "none", "rms"]), ("layers", 65536, int), ("every", 2, int), ("rank", 0, int)],
    20: [("stream", 65536, int), ("every", 0, int)], 21: [("every", 0, int)],
}


def stored_stage(number, recipe=""):
    """A stage with the arguments that a recipe gives it, as TABLE stores them."""
    flags = [name for name, _, kind in ARGUMENTS.get(number, []) if kind is bool]
    given = {}
    for x in filter(None, recipe.split(":")):
        key, equals, value = x.partition("=")
        given |= {key: value} if equals else {x: 1} if x in flags else {"": x}
    out = b""
    for name, default, kind in ARGUMENTS.get(number, []):
        value = given.get(name, default)
        out += (u8(kind.index(value)) if isinstance(kind, list) else varint(int(value)) if kind is int else
                f64(float(value)) if kind is float else u8(int(value)))
    return number, out


STORE, ZSTD, SPLIT, FAST = (stored_stage(i) for i in range(1, 5))


# --- sections, records, files ---

class Section:
    def __init__(self, kind, raw, coder=0, stage=255, index=0, stored=None, raw_size=None):
        self.kind, self.raw, self.coder, self.stage, self.index = kind, raw, coder, stage, index
        self.stored, self.raw_size = stored, raw_size  # None: as they follow from raw

    def bytes(self):
        if self.stored is not None:
            return self.stored
        return zstd(self.raw) if self.coder == 1 else self.raw

    def entry(self):
        size = len(self.raw) if self.raw_size is None else self.raw_size
        return u8(self.kind, self.coder, self.stage, self.index) + u32(len(self.bytes())) + u64(size)


class Record:
    gap = 0  # zero bytes that follow, which a sparse file does not store

    def __init__(self, kind, sections=(), subject=NONE, number=0, digest=0, flags=1, tail=b""):
        self.kind, self.sections, self.subject, self.number = kind, list(sections), subject, number
        self.digest, self.flags, self.tail = digest, flags, tail
        self.rows_digest = digest  # whatever the record says
        self.patches = []      # (offset, bytes) before the check is computed
        self.late_patches = []  # after: the check is wrong then

    def bytes(self):
        body = b"".join(s.entry() for s in self.sections)
        for s in self.sections:
            data = s.bytes()
            body += data + bytes(-len(data) % 16)
        body += self.tail
        head = u8(self.kind, self.flags) + u16(len(self.sections)) + u32((32 + len(body)) // 16)
        head += u32(self.subject, self.number) + u64(self.digest)
        both = head + bytes(8) + body
        for at, new in self.patches:
            both = patch(both, at, new)
        both = patch(both, 24, u64(xxh3(both[32:], xxh3(both[:24]))))
        for at, new in self.late_patches:
            both = patch(both, at, new)
        return both


class File:
    def __init__(self, records):
        self.records = records
        self.write, self.read, self.align, self.grid = 1, 1, 4, 8
        self.features, self.needed, self.writers = 0, 0, 0
        self.index = None      # a function on the list of index entries: type, size / 16, subject + 1, number, check
        self.columns = None    # a function on the columns of the index, lists of bytes
        self.index_coder = 0
        self.footer = {}       # index, size, id, magic, seed
        self.named, self.source = [], None  # layer and role of each tensor; the source file
        self.refused = set()   # tensors of which rows are refused, where all else can be read
        self.profile = None    # the bytes of a profile that lies beside
        self.weights = None    # those of weights
        self.gaps = []         # where in bytes() a gap follows, and its size

    def of(self, kind, n=0):
        return [r for r in self.records if r.kind == kind][n]

    def bytes(self):
        out = MAGIC + u16(self.write, self.read) + u8(self.align, self.grid) + u16(self.features) + u32(self.needed, self.writers)
        out += u64(xxh3(out))
        entries, content = [], hashlib.sha256(b"kvc content 1\n" + u32(self.grid, self.needed))
        for r in self.records:
            data = r.bytes()
            entries.append([r.kind, (len(data) + r.gap) // 16, 0 if r.subject == NONE else r.subject + 1, r.number,
                            struct.unpack("<I", data[24:28])[0]])
            if r.flags & 1:
                content.update(u32(r.kind, r.subject, r.number) + data[24:32])
            out += data
            if r.gap:
                self.gaps.append((len(out), r.gap))
        if self.index:
            entries = self.index(entries)
        columns = [[form(x[i]) for x in entries] for i, form in enumerate((u8, varint, varint, varint, u32))]
        columns = [[varint(len(entries))], *columns]
        if self.columns:
            columns = self.columns(columns)
        far = sum(n for _, n in self.gaps)
        at = len(out) + far
        raw = b"".join(b"".join(column) for column in columns)
        index = Record(INDEX, [Section(S_INDEX, raw, coder=self.index_coder)]).bytes()
        out += index
        footer = u64(self.footer.get("index", at), self.footer.get("size", len(out) + far + 64))
        footer += self.footer.get("id", content.digest()) + self.footer.get("magic", MAGIC_END)
        seed = struct.unpack("<Q", index[24:32])[0]
        return out + footer + u64(xxh3(footer, self.footer.get("seed", seed)))


# --- a cache ---

class Part:
    def __init__(self, positions, kind=0, stream=0, snapshot=0, words=None):
        self.positions, self.words = positions, words
        self.kind, self.stream, self.snapshot = kind, stream, snapshot
        self.order = sorted(range(len(positions)), key=lambda i: (positions[i], i))
        self.blocks = []
        window = None
        for row, cell in enumerate(self.order):
            if window != positions[cell] // 256 or row - self.blocks[-1] == 256:
                self.blocks.append(row)
            window = positions[cell] // 256


class Tensor:
    """rows: canonical rows by cell number; made up when not given."""
    def __init__(self, layer, role, dtype=F16, heads=2, dim=4, pipeline=0, rows=None, source=None, rotation=0):
        self.layer, self.role, self.dtype, self.pipeline, self.rotation = layer, role, dtype, pipeline, rotation
        self.heads, self.dim = heads, dim
        block, size = SIZES[dtype]
        self.row = heads * dim // block * size
        self.head = dim // block * size if dim % block == 0 else 0
        self.size = size
        self.rows, self.source = rows, source

    def fill(self, cells, salt):
        if self.rows is None:
            self.rows = [hashlib.shake_128(u32(salt, i)).digest(self.row) for i in range(cells)]


class Cache:
    def __init__(self, parts, layers, tensors, tokens=None, meta=(), pipelines=((STORE,),), literals=True, keys=None):
        """layers: (part, index, kind, window)."""
        self.parts, self.layers, self.tensors, self.tokens = parts, layers, tensors, tokens
        self.meta, self.pipelines, self.literals = dict(meta), pipelines, literals
        self.keys = keys
        self.rotations = []  # pairing, angles; or pairing, number of pairs of the profile
        self.more = 0, 0, 0  # bytes that entries of parts, layers and tensors are longer than their known fields
        self.same = {}  # (tensor, block): entries (row, count, tensor, block, row there)
        self.coded = {}  # tensor: what makes sections of it and its rows, where the stage's default will not do
        for i, t in enumerate(tensors):
            t.fill(len(self.part(t).positions), i)

    def part(self, t):
        return self.parts[self.layers[t.layer][0]]

    def region(self, t):
        """The tensor as the source file keeps it."""
        token, head, block = self.strides(t)
        out = bytearray(t.row * len(t.rows))
        for c, row in enumerate(t.rows):
            if not t.head:
                out[c * token:c * token + t.row] = row
                continue
            for h in range(t.heads):
                for b in range(t.head // t.size):
                    at = c * token + h * head + b * block
                    out[at:at + t.size] = row[h * t.head + b * t.size:][:t.size]
        return bytes(out)

    def strides(self, t):
        return t.source or (t.row, t.head, t.size)

    def meta_record(self):
        body = u32(len(self.meta))
        for key in sorted(self.meta):
            kind, value, *critical = self.meta[key]
            body += u8(len(key), kind, critical[0] if critical else 0, 0) + u32(len(value)) + key.encode() + value
        return Record(META, [Section(S_META, body)])

    def table_record(self):
        body = u32(len(self.parts), len(self.layers), len(self.tensors), len(self.pipelines), len(self.rotations))
        body += u16(24 + self.more[0], 16 + self.more[1], 64 + self.more[2], 0)
        for p in self.parts:
            body += u8(p.kind, 0, 0, 0) + u32(p.stream, p.snapshot, 0) + u64(len(p.positions)) + b"p" * self.more[0]
        for part, index, kind, window in self.layers:
            body += u32(part, index) + u8(kind, 0, 0, 0) + u32(window) + b"l" * self.more[1]
        for t in self.tensors:
            body += u32(t.layer) + u8(t.role, t.dtype) + u16(t.pipeline, t.rotation) + bytes(6) + u64(t.heads, t.dim)
            body += u64(*self.strides(t), t.row * len(t.rows)) + b"t" * self.more[2]
        for stages in self.pipelines:
            body += u8(len(stages))
            for number, arguments in stages:
                body += u16(number) + u8(len(arguments)) + arguments
        for pairing, angles in self.rotations:
            of_profile = isinstance(angles, int)
            body += u8(pairing, of_profile) + (u16(angles) if of_profile else u16(len(angles)) + f64(*angles))
        return Record(TABLE, [Section(S_TABLE, body)])

    def cells_record(self, i):
        p, body, expected, at = self.parts[i], b"", 0, 0
        while at < len(p.positions):
            end = at + 1
            while end < len(p.positions) and p.positions[end] == p.positions[end - 1] + 1:
                end += 1
            body += svarint(p.positions[at] - expected) + varint(end - at)
            expected, at = p.positions[end - 1] + 1, end
        sections = [Section(S_POSITIONS, body)]
        if p.words is not None:
            sections.append(Section(S_WORDS, b"".join(varint(len(w)) for w in p.words) +
                                    b"".join(u32(*w) for w in p.words)))
        return Record(CELLS, sections, subject=i)

    def source(self):
        """The source file's extents, and the file itself."""
        extents, literals, whole = varint(2 * len(self.tensors) + 1), b"", b""
        for i, t in enumerate(self.tensors):
            text = b"tensor %d follows\n" % i
            extents += varint(0) + varint(len(text)) + varint(i + 1)
            literals += text
            whole += text + self.region(t)
        extents += varint(0) + varint(4)
        return extents, literals + b"end\n", whole + b"end\n"

    def block_record(self, number, block):
        t = self.tensors[number]
        part = self.part(t)
        first = part.blocks[block]
        last = (part.blocks + [len(part.positions)])[block + 1]
        rows = [t.rows[part.order[r]] for r in range(first, last)]
        digest = sum(xxh3(row, first + i) for i, row in enumerate(rows)) % 2**64
        entries, sections = self.same.get((number, block), ()), []
        if entries:
            sections.append(Section(SAME, b"".join(u32(*x) for x in entries)))
        left = [row for i, row in enumerate(rows) if not any(x[0] <= i < x[0] + x[1] for x in entries)]
        stage = self.pipelines[t.pipeline][-1]
        if left and number in self.coded:
            sections += self.coded[number](t, left)
        elif left and stage in (SPLIT, FAST):
            sections += (Split if stage == SPLIT else Fast)(t, left).sections()
        elif left and stage == STORE:
            sections.append(Section(RAW, b"".join(left), stage=0))
        elif left:
            for i, plane in enumerate(planes(t, b"".join(left))):
                sections.append(Section(PLANE, plane, coder=1, stage=0, index=i))
        return Record(BLOCK, sections, subject=number, number=block, digest=digest)

    def file(self):
        if self.literals:
            extents, literals, whole = self.source()
            self.meta.setdefault("x-test.source", (2, u64(xxh3(whole))))
        records = [self.meta_record(), self.table_record()] + [self.cells_record(i) for i in range(len(self.parts))]
        sections = [Section(S_TOKENS, struct.pack(f"<{len(self.tokens)}i", *self.tokens))] if self.tokens else []
        if self.keys:
            sections.append(Section(S_KEYS, self.keys))
        if sections:
            records.append(Record(TOKENS, sections))
        if self.literals:
            records.append(Record(SOURCE, [Section(S_EXTENTS, extents), Section(S_LITERALS, literals)]))
        for i, t in enumerate(self.tensors):
            records += [self.block_record(i, b) for b in range(len(self.part(t).blocks))]
        f = File(records)
        f.named = [(self.layers[t.layer][1], ROLES[t.role]) for t in self.tensors]
        f.source = whole if self.literals else None
        return f


GROUPS = {F32: [1] * 4, F16: [1] * 2, BF16: [1] * 2, Q8_0: [1, 1, 32], Q4_0: [1, 1, 16], IQ4_NL: [1, 1, 16],
          Q4_1: [1, 1, 1, 1, 16], Q5_0: [1, 1, 4, 16], Q5_1: [1, 1, 1, 1, 4, 16]}


def planes(t, rows):
    at, out = 0, []
    for group in GROUPS.get(t.dtype, [1]):
        out.append(b"".join(rows[i + at:i + at + group] for i in range(0, len(rows), t.size)))
        at += group
    return out


def text(value):
    return 5, value.encode()


def small(**options):
    """What most files start from: one part of five cells, one layer, K and V of f16, stored."""
    options.setdefault("meta", {"producer": text("make_files"), "x-test.note": text("kept")})
    return Cache([Part([0, 1, 2, 3, 4])], [(0, 0, 0, 0)], [Tensor(0, 0), Tensor(0, 1)], tokens=[11, 12, 13, 14, 15],
                 **options)


def dtype_rows(n, row):
    """Rows that compress: few different bytes."""
    return [bytes((i * i + j) % 7 for j in range(row)) for i in range(n)]


def repeated(**options):
    """A window of three cells, a snapshot that repeats rows 1 and 2 of it, one snapshot more."""
    k, v = Tensor(0, 0), Tensor(0, 1)
    k.fill(3, 70)
    v.fill(3, 71)
    new = [hashlib.shake_128(u32(72, i)).digest(16) for i in range(2)]
    c = Cache([Part([7, 8, 9], kind=1), Part([8, 9, 10], kind=3), Part([9, 11], kind=3, snapshot=1)],
              [(0, 0, 1, 512), (1, 0, 1, 512), (2, 0, 1, 512)],
              [k, v, Tensor(1, 0, rows=k.rows[1:] + new[:1]), Tensor(1, 1, rows=v.rows[1:] + new[1:]),
               Tensor(2, 0, rows=[k.rows[2], new[0]]), Tensor(2, 1, rows=[v.rows[2], v.rows[2]])], **options)
    c.same = {(2, 0): [(0, 2, 0, 0, 1)], (3, 0): [(0, 2, 1, 0, 1)], (4, 0): [(0, 1, 0, 0, 2), (1, 1, 2, 0, 2)],
              (5, 0): [(0, 1, 1, 0, 2), (1, 1, 1, 0, 2)]}
    return c


def sourced(make, **options):
    """small() with another source file: make(cache) gives its extents, its literal bytes and all its bytes."""
    c = small(**options)
    c.source = lambda: make(c)
    return c


def region(size, *places):
    """The entry of a region, of small()'s two tensors. A place: tensor, cell, cells, offset, strides of token, head, block."""
    return varint(3) + varint(size) + varint(len(places)) + b"".join(varint(v) for place in places for v in place)


def member(name):
    return varint(4) + varint(len(name)) + name


def interleaved(c):
    """Rows of K and V by turns, with eight literal bytes after each pair."""
    entries = varint(2) + varint(0) + varint(5) + region(200, (0, 0, 5, 0, 40, 8, 2), (1, 0, 5, 16, 40, 8, 2))
    gaps = [b"pair %d.\n" % i for i in range(5)]
    rows = b"".join(k + v + gap for k, v, gap in zip(c.tensors[0].rows, c.tensors[1].rows, gaps))
    return entries, b"head\n" + b"".join(gaps), b"head\n" + rows


def pages(c):
    """K in two pages, the later one first, each in a region of its own; V with its heads apart, and four bytes between them."""
    k, v = c.tensors
    entries = varint(3) + region(32, (0, 3, 2, 0, 16, 8, 2)) + region(48, (0, 0, 3, 0, 16, 8, 2)) + \
        region(84, (1, 0, 5, 0, 8, 44, 2))
    heads = [b"".join(row[8 * h:8 * h + 8] for row in v.rows) for h in range(2)]
    return entries, b"v...", b"".join(k.rows[3:] + k.rows[:3]) + heads[0] + b"v..." + heads[1]


def members(c):
    """Three members: K after a line, V, and one without bytes."""
    entries = varint(6) + member(b"layer 0/keys.bin") + varint(0) + varint(5) + varint(1) + \
        member("größe.bin".encode()) + varint(2) + member(b"empty")
    return entries, b"keys\n", b"keys\n" + c.region(c.tensors[0]) + c.region(c.tensors[1])


# --- split and fast (codecs/stages/split/split.md, channels.md, rans.md, fast.md) ---

class Bits:
    """A string of bits, in each byte the lowest first."""
    def __init__(self):
        self.value = self.n = 0

    def put(self, v, n):
        self.value |= (v & 2**n - 1) << self.n
        self.n += n
        return self

    def rice(self, v, k):
        if v >> k >= 24:
            return self.put(2**24 - 1, 24).put(v, 16)
        return self.put(2**(v >> k) - 1, (v >> k) + 1).put(v, k)

    def bytes(self, multiple=1):
        return self.value.to_bytes(-(-self.n // (8 * multiple)) * multiple, "little")


def zigzag(v):
    return 2 * v if v >= 0 else -2 * v - 1


def f32(x):
    """x rounded to binary32, to nearest even."""
    return math.copysign(math.inf, x) if abs(x) >= 2.0**128 else struct.unpack("<f", struct.pack("<f", x))[0]


def float_bits(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


# of a dtype: bytes of a block before the words, bits of a word, shift, and of floats: sign bit, cut, rebias
WORDS = {F32: (2, 16, 6, 15, 22, 0), F16: (0, 16, 8, 15, 21, 112), BF16: (0, 16, 6, 15, 22, 0),
         F8E4M3: (0, 8, 0, 7, 20, 120), F8E5M2: (0, 8, 0, 7, 21, 112), U8: (0, 8, 0), I8: (0, 8, 0), Q8_0: (2, 8, 0),
         Q4_0: (2, 4, 0), IQ4_NL: (2, 4, 0), Q4_1: (4, 4, 0), Q5_0: (2, 5, 0), Q5_1: (4, 5, 0)}


def row_words(t, row):
    ahead, bits = WORDS[t.dtype][:2]
    out = []
    for at in range(0, len(row), t.size):
        block = row[at + ahead:at + t.size]
        if bits == 16:
            out += struct.unpack("<H", block)
        elif bits == 8:
            out += block
        else:
            fifth = int.from_bytes(block[:4], "little") if bits == 5 else 0
            for j in range(32):
                out.append(block[-16:][j % 16] >> j // 16 * 4 & 15 | (fifth >> j & 1) << 4)
    return out


class Model:
    """The channel model. turn: (1 halves or 2 interleaved, period, first, pairs, angle, ratio)."""
    def __init__(self, spreads, means, turn=None, middle=127, j=1, k=2):
        self.spreads, self.means, self.turn, self.middle, self.j, self.k = spreads, means, turn, middle, j, k

    def bits(self):
        b = Bits().put(self.turn[0] if self.turn else 0, 2)
        if self.turn:
            for v in self.turn[1:4]:
                b.put(v, 32)
            for v in self.turn[4:]:
                b.put(float_bits(v), 32)
        b.put(self.middle, 8).put(self.j, 4).put(self.k, 4)
        for v in self.spreads:
            b.rice(zigzag(v - self.middle), self.j)
        for v in self.means:
            b.rice(zigzag(v), self.k)
        return b

    def rows(self, dtype, count):
        """Of each row: the channels' biases and contexts."""
        n = len(self.spreads)
        if dtype not in (F32, F16, BF16, F8E4M3, F8E5M2):
            bits = WORDS[dtype][1]
            row = [(m % 2**bits, min(max(s - 117 - 2 * bits, 0), 7)) for s, m in zip(self.spreads, self.means)]
            return [row] * count
        shift, sign, cut, rebias = WORDS[dtype][2:]
        variance = [2.0**(s - 127) for s in self.spreads]
        value = [f32(m * f32(f32(math.sqrt(v)) * 0.25)) for m, v in zip(self.means, variance)]
        kind, period, first, pairs, angle, ratio = self.turn or (0, n, 0, 0, 0, 0)
        partner, step = [0.0] * n, [(1.0, 0.0)] * period
        for i in range(pairs):
            a = first + (i if kind == 1 else 2 * i)
            b = a + (pairs if kind == 1 else 1)
            term, sums = 1.0, [0.0, 0.0]
            for k in range(25):
                sums[k & 1] += -term if k & 2 else term
                term = (term * angle) / (k + 1)
            step[a] = step[b] = f32(sums[0]), f32(sums[1])
            angle = angle * ratio
            for head in range(0, n, period):
                partner[head + a], partner[head + b] = -value[head + b], value[head + a]
        out, c, s = [], [1.0] * period, [0.0] * period
        for _ in range(count):
            row = []
            for k in range(n):
                m = f32(f32(value[k] * c[k % period]) + f32(partner[k] * s[k % period]))
                q = float_bits(f32(f32(m * m) + variance[k]))
                r = max((q >> 1) + (127 << 22) - (rebias << 23), 0)
                bias = ((r + (1 << cut - 1)) >> cut) << shift & 2**sign - 1
                row.append((bias | float_bits(m) >> 31 << sign, min((q - float_bits(variance[k])) >> 22, 7)))
            out.append(row)
            c, s = ([f32(f32(x * C) - f32(y * S)) for x, y, (C, S) in zip(c, s, step)],
                    [f32(f32(y * C) + f32(x * S)) for x, y, (C, S) in zip(c, s, step)])
        return out


def level_frequency(level):
    return level if level < 8 else (4 + level % 4) << level // 4 - 1


def table_of(counts, bits):
    """Levels for these counts, and their frequencies: each its share or less, the most frequent the rest."""
    if len(counts) == 1:
        counts = {**counts, min({0, 1} - set(counts)): 0}
    total, big = sum(counts.values()), max(counts, key=lambda x: (counts[x], -x))
    levels = {}
    for x in counts:
        share = counts[x] * 2**bits // total
        levels[x] = max([v for v in range(1, 41) if level_frequency(v) <= share] or [1])
    levels[big] = max([levels[x] for x in counts if x != big] + [0]) + 1
    frequency = {x: level_frequency(levels[x]) for x in counts}
    frequency[big] = 2**bits - sum(frequency[x] for x in counts if x != big)
    assert 0 < frequency[big] < 2**bits
    return levels, frequency


def table_bits(b, levels, alphabet):
    last = s = 0
    while s < alphabet:
        level = levels.get(s, 0)
        b.rice(zigzag(level - last), 2)
        last, s = level, s + 1
        if level == 0:
            run = 0
            while s < alphabet and not levels.get(s, 0):
                run, s = run + 1, s + 1
            b.rice(run, 3)
    return b


def rans(rows, bits, lanes):
    """States and words of rows of (frequency, sum of those below)."""
    x, words = [1 << 16] * lanes, []
    for row in reversed(rows):
        for i in reversed(range(len(row))):
            f, c = row[i]
            y = x[i % lanes]
            if y >= f << 32 - bits:
                words.append(y & 0xffff)
                y >>= 16
            x[i % lanes] = (y // f << bits) + y % f + c
    return x, words[::-1]


def packed(values, width):
    """fast.md's packing; split's low bits are the same with width 6."""
    out = b""
    values = values + [0] * (-len(values) % 32)
    for at in range(0, len(values), 32):
        v, low = values[at:at + 32], 0
        for bits, stride in ((4, 16), (2, 8), (1, 4)):
            if width & bits:
                out += bytes(sum((v[i + j] >> low & 2**bits - 1) << bits * (j // stride) for j in range(0, 32, stride))
                             for i in range(stride))
                low += bits
    return out


class Split:
    """A block's rows by split, in the parts that make its sections."""
    def __init__(self, t, rows, model=None, bits=None, lanes=1, per=None, tables=None, zstd=0):
        ahead, width, self.shift = WORDS[t.dtype][:3]
        self.alphabet, self.coder = 1 << width - self.shift, zstd
        words = [row_words(t, row) for row in rows]
        self.ahead = [bytes(row[i + p] for row in rows for i in range(0, len(row), t.size)) for p in range(ahead)]
        self.bits = bits or max(8, (self.alphabet - 1).bit_length())
        self.lanes, self.per = lanes, per or len(rows)  # lanes: log2
        self.params = model.bits() if model else None
        expected = model.rows(t.dtype, len(rows)) if model else [[(0, 0)] * len(words[0])] * len(rows)
        symbols = [[((w - bias) % 2**width >> self.shift, context) for w, (bias, context) in zip(*x)]
                   for x in zip(words, expected)]
        self.low = [(w - bias) % 2**self.shift for x in zip(words, expected) for w, (bias, _) in zip(*x)]
        self.mask = tables or sum({1 << context for row in symbols for _, context in row})
        have = [c for c in range(8) if self.mask >> c & 1]
        serves = [max([h for h in have if h <= c] or have[:1]) for c in range(8)]
        counts = {c: {} for c in have}
        for row in symbols:
            for s, context in row:
                mine = counts[serves[context]]
                mine[s] = mine.get(s, 0) + 1
        self.tables, slots = {}, {}
        for c in have:
            self.tables[c], frequency = table_of(counts[c] or {0: 1}, self.bits)
            below = 0
            for s in sorted(frequency):
                slots[c, s] = frequency[s], below
                below += frequency[s]
        coded = [[slots[serves[context], s] for s, context in row] for row in symbols]
        streams = [rans(coded[i:i + self.per], self.bits, 1 << lanes) for i in range(0, len(rows), self.per)]
        self.states = [x for states, _ in streams for x in states]
        self.words = [u16(*w) for _, w in streams]
        self.sizes = None  # of the streams; None: as they are
        self.padding, self.tail = 0, b""
        self.table = None  # a function that puts other bits for the tables

    def codes(self):
        b = Bits().put(self.bits | self.lanes << 4, 8).put(self.mask, 8).put(self.per, 16)
        if self.table:
            self.table(b)
        else:
            for c in self.tables:
                table_bits(b, self.tables[c], self.alphabet)
        if self.padding:
            b.value |= 1 << b.n
        sizes = [len(w) for w in self.words] if self.sizes is None else self.sizes
        return b.bytes(4) + u32(*sizes) + u32(*self.states) + b"".join(self.words) + self.tail

    def sections(self):
        planes = [Section(PLANE, plane, self.coder, 0, i) for i, plane in enumerate(self.ahead)]
        params = [Section(PARAMS, self.params.bytes(), stage=0)] if self.params else []
        out = planes + params + [Section(CODES, self.codes(), stage=0)]
        if self.shift:
            low = bytes(self.low) if self.shift == 8 else packed(self.low, self.shift)
            out.append(Section(PLANE, low, self.coder, 0, len(planes)))
        return out


class Fast:
    """Likewise by fast. needless: values that are escaped all the same."""
    def __init__(self, t, rows, width=3, bias=None, needless=(), zstd=0):
        self.t, self.rows, self.width, self.coder, self.middle, self.k = t, rows, width, zstd, 120, 2
        if t.dtype not in (F32, F16, BF16):
            return
        m = 10 if t.dtype == F16 else 7
        words = [row_words(t, row) for row in rows]
        self.bias = bias or [max(min(row[i] >> m & 2**(15 - m) - 1 for row in words), 0) for i in range(len(words[0]))]
        if t.dtype == F16:
            self.middle = 12
        differences = [(w - (b << m)) % 65536 for row in words for w, b in zip(row, self.bias)]
        rotated = [(d << 1 | d >> 15) & 65535 for d in differences]
        self.low, high = bytes(r & 255 for r in rotated), [r >> 8 for r in rotated]
        self.escapes, after = b"", 0
        for i, h in enumerate(high):
            if h >> width or i in needless or i - after == 255 and any(x >> width for x in high[i:]):
                self.escapes += u8(i - after, h)
                after = i + 1
        self.codes = [h & 2**width - 1 for h in high]
        self.params = None

    def sections(self):
        if self.t.dtype not in (F32, F16, BF16):
            return [Section(RAW, b"".join(self.rows), stage=0)]
        ahead = 2 if self.t.dtype == F32 else 0
        out = [Section(PLANE, bytes(row[i + p] for row in self.rows for i in range(0, len(row), 4)), self.coder, 0, p)
               for p in range(ahead)]
        out += [Section(PARAMS, (self.params or self.bits()).bytes(), stage=0),
                Section(PLANE, self.low, self.coder, 0, ahead)]
        if self.escapes:
            out.append(Section(ESCAPES, self.escapes, stage=0))
        return out + [Section(CODES, packed(self.codes, self.width), self.coder, 0)]

    def bits(self):
        b = Bits().put(self.width, 4).put(self.k, 4).put(self.middle, 8)
        for v in self.bias:
            b.rice(zigzag(v - self.middle), self.k)
        return b


def value_bytes(dtype, x):
    if dtype == F16:
        return struct.pack("<e", x)
    return struct.pack("<f", x)[2 if dtype == BF16 else 0:]


def near(dtype, means, count, step=0.25):
    """Float rows around these means: n channels, each value a few steps away."""
    return [b"".join(value_bytes(dtype, m + step * ((7 * i * i + 5 * k + i * k) % 11 - 5)) for k, m in enumerate(means))
            for i in range(count)]


# --- the files: name, where a reader notices, words of its message, one sentence ---

CASES = []


def case(name, sentence, words="", where="open"):
    def add(make):
        CASES.append((name, where if words else "", words, sentence, make))
        return make
    return add


def good(name, sentence):
    return case("good-" + name, sentence)


def bad(name, words, sentence, where="open"):
    return case("bad-" + name, sentence, words, where)


def unsupported(name, words, sentence, where="open"):
    return case("unsupported-" + name, sentence, words, where)


def edited(change, base=small):
    """A file after change(file)."""
    f = base().file()
    return change(f) or f


def payload(kind, change, n=0, section=0):
    """A file in which the decoded bytes of one section are changed."""
    def make():
        f = small().file()
        s = f.of(kind, n).sections[section]
        s.raw = change(s.raw)
        return f
    return make


def table(change):
    return payload(TABLE, change)


# offsets in the table of small()
T_PART, T_LAYER, T_TENSOR, T_PIPELINE = 28, 52, 68, 196


def good_files():
    good("small", "One layer, five cells, K and V of f16, stored, with tokens and the source's literal bytes.")(
        lambda: small().file())
    good("no-parts", "Metadata and an empty table: no part, no tensor.")(
        lambda: Cache([], [], [], literals=False).file())
    good("empty", "A cache of no cells: its tensors have no blocks.")(
        lambda: Cache([Part([])], [(0, 0, 0, 0)], [Tensor(0, 0), Tensor(0, 1)]).file())
    good("one-token", "A cache of one cell.")(
        lambda: Cache([Part([0])], [(0, 3, 0, 0)], [Tensor(0, 0), Tensor(0, 1)], tokens=[7]).file())
    good("ragged-blocks", "Positions 250-515 and 1000: blocks of 6, 256, 4 and 1 rows.")(
        lambda: Cache([Part(list(range(250, 516)) + [1000])], [(0, 0, 0, 0)],
                      [Tensor(0, 0, F8E4M3, 1, 8), Tensor(0, 1, F8E4M3, 1, 8)]).file())
    good("full-block", "300 cells of one position: blocks of 256 and 44 rows.")(
        lambda: Cache([Part([5] * 300)], [(0, 0, 0, 0)], [Tensor(0, 0, U8, 1, 4)]).file())
    good("unordered", "Cells out of order, two of them with one position.")(
        lambda: Cache([Part([4, 2, 0, 3, 1, 2])], [(0, 0, 0, 0)], [Tensor(0, 0), Tensor(0, 1)]).file())
    good("negative-positions", "Positions on both sides of 0, which begins a block.")(
        lambda: Cache([Part([-2, -1, 0, 1])], [(0, 0, 0, 0)], [Tensor(0, 0), Tensor(0, 1)]).file())
    good("words", "Cells with engine-private words: none, one and three.")(
        lambda: Cache([Part([0, 1, 2], words=[[], [0], [0, 1, 2]])], [(0, 0, 0, 0)], [Tensor(0, 0)]).file())
    good("streams", "Two streams of one cache, each with its own cells.")(
        lambda: Cache([Part([0, 1, 2]), Part([0, 1], stream=1)], [(0, 0, 0, 0), (1, 0, 0, 0)],
                      [Tensor(0, 0), Tensor(0, 1), Tensor(1, 0), Tensor(1, 1)]).file())
    good("same", "Two snapshots whose rows refer to the window and to each other's own rows.")(
        lambda: repeated().file())
    good("same-zstd", "The same with coded rows in byte planes.")(
        lambda: repeated(pipelines=((ZSTD,),)).file())
    @good("same-index", "Two layers of one part with one index, and a stream between them that holds the same rows.")
    def _():
        rows = dtype_rows(3, 16)
        return Cache([Part([0, 1, 2]), Part([0, 1, 2], stream=1)], [(0, 0, 0, 0), (0, 0, 0, 0), (1, 0, 0, 0)],
                     [Tensor(0, 0, rows=rows), Tensor(2, 0, rows=rows), Tensor(1, 0, rows=rows)]).file()

    good("kinds", "Every part kind, layer kind and role.")(
        lambda: Cache([Part([0, 1]), Part([1], kind=1), Part([0], kind=2), Part([1], kind=3), Part([0, 1], kind=4)],
                      [(0, 0, 0, 0), (0, 1, 2, 0), (1, 0, 1, 8), (2, 0, 3, 0), (3, 0, 1, 8), (4, 0, 4, 0),
                       (4, 1, 4, 0)],
                      [Tensor(0, 0), Tensor(0, 1), Tensor(1, 2), Tensor(2, 0), Tensor(3, 3, F32), Tensor(3, 4, F32),
                       Tensor(4, 0), Tensor(5, 5), Tensor(6, 6)]).file())
    for name, stage in (("store", STORE), ("zstd", ZSTD)):
        good("dtypes-" + name, f"A layer of each dtype, coded with {name}.")(
            lambda stage=stage: Cache([Part([0, 1, 2])], [(0, i, 0, 0) for i in range(len(SIZES))],
                                      [Tensor(i, 0, d, 2, 32) for i, d in enumerate(SIZES)],
                                      pipelines=((stage,),)).file())
    good("blocks-across-heads", "Heads of 16 values in blocks of 32: only the source's token stride counts.")(
        lambda: Cache([Part([0, 1])], [(0, 0, 0, 0)], [Tensor(0, 0, Q8_0, 2, 16)]).file())
    good("heads-first", "The source holds [head][token][dim], and V transposed.")(
        lambda: Cache([Part([0, 1, 2])], [(0, 0, 0, 0)],
                      [Tensor(0, 0, source=(8, 24, 2)), Tensor(0, 1, source=(2, 24, 6))]).file())

    @good("planes", "Rows that compress: each plane is a zstd frame.")
    def _():
        rows = dtype_rows(64, 16)
        return Cache([Part(list(range(64)))], [(0, 0, 0, 0)], [Tensor(0, 0, rows=rows), Tensor(0, 1, rows=rows)],
                     pipelines=((ZSTD,),)).file()

    @good("zstd-raw", "The zstd stage keeps rows as RAW where planes gain nothing.")
    def _():
        f = small(pipelines=((ZSTD,),)).file()
        for r in f.records:
            if r.kind == BLOCK:
                raw = small().file().of(BLOCK, r.subject).sections[0].raw
                r.sections = [Section(RAW, raw, stage=0)]
        return f

    good("two-pipelines", "K stored, V with zstd:level=7.")(
        lambda: Cache([Part([0, 1, 2])], [(0, 0, 0, 0)], [Tensor(0, 0), Tensor(0, 1, pipeline=1)],
                      pipelines=((STORE,), (stored_stage(2, "level=7"),))).file())

    good("no-source", "Without SOURCE records: the source file cannot be put together again.")(
        lambda: small(literals=False).file())

    good("extents-interleaved", "Rows of K and V by turns in one region, with literal bytes between them.")(
        lambda: sourced(interleaved).file())
    good("extents-pages", "K in two places, the later cells first; a place whose heads lie apart.")(
        lambda: sourced(pages).file())
    good("extents-members", "A source of three files, one of them empty: `x-test.source` is of their bytes one after the other.")(
        lambda: sourced(members).file())

    for n in (255, 256, 257):
        @good(f"tokens-{n}", f"{n} tokens: K by split, V by zstd, another K by fast.")
        def _(n=n):
            rows = [near(BF16, MEANS, n), dtype_rows(n, 16), near(F16, MEANS, n)]
            ids = list(range(n))
            return Cache([Part(ids)], [(0, 0, 0, 0), (0, 1, 0, 0)],
                         [Tensor(0, 0, BF16, 1, 8, 0, rows[0]), Tensor(0, 1, F16, 1, 8, 1, rows[1]), Tensor(1, 0, F16, 2, 4, 2, rows[2])],
                         tokens=ids, pipelines=((SPLIT,), (ZSTD,), (FAST,)), keys=b"".join(prefix_keys(ids)),
                         meta={"prefix.identity": text("unknown")}).file()

    @good("dims", "Heads of 8 to 576 channels: one of K, two of V; latents of 576.")
    def _():
        dims = (8, 16, 64, 80, 96, 128, 192, 256, 512, 576)
        tensors = [Tensor(i, role, BF16, 1 + role, d, rows=near(BF16, (MEANS * 144)[:(1 + role) * d], 2))
                   for i, d in enumerate(dims) for role in (0, 1)]
        tensors.append(Tensor(len(dims), 2, F16, 1, 576, rows=near(F16, MEANS * 72, 2)))
        return Cache([Part([0, 1])], [(0, i, 0, 0) for i in range(len(dims))] + [(0, len(dims), 2, 0)], tensors,
                     pipelines=((SPLIT,),)).file()

    @good("align-unaligned", "The header says 4096, and BLOCK records begin at multiples of 16.")
    def _():
        f = small().file()
        f.align = 12
        return f

    @good("align-4k", "Extents start at multiples of 4096, with a PAD record before the first.")
    def _():
        f = small().file()
        f.align = 12
        first = f.records.index(f.of(BLOCK))
        gap = -(32 + sum(len(r.bytes()) for r in f.records[:first])) % 4096
        f.records.insert(first, Record(PAD, flags=0, tail=bytes(gap - 32)))
        return f

    good("unknown-record", "Ancillary records of unknown types, which are skipped, and a PROFILE.")(
        lambda: edited(lambda f: [f.records.insert(2, Record(200, [Section(99, b"whatever")], flags=0)),
                                  f.records.append(Record(PROFILE, [Section(98, b"later")], flags=0)),
                                  f.records.append(Record(201, flags=0))] and f))
    good("unknown-key", "Ancillary metadata keys that no reader knows, of every type: they are kept.")(
        lambda: small(meta={"x-test.note": text("kept"), "x-test.bool": (1, b"\1"), "x-test.u64": (2, u64(1)),
                            "x-test.i64": (3, u64(2**64 - 1)), "x-test.f64": (4, struct.pack("<d", 1.5)),
                            "x-test.bytes": (6, b"\0\1"), "x-test.u64s": (7, u64(1, 2))}).file())

    @good("write-version", "Written by version 9, readable from version 1 on.")
    def _():
        f = small().file()
        f.write = 9
        return f

    @good("own-zstd", "The container's own sections are zstd frames, the index too.")
    def _():
        f = small(meta={"x-test.note": text("kept"), "x-test.long": text("again " * 200)}).file()
        f.index_coder = 1
        for r in f.records:
            for s in r.sections:
                s.coder = int(s.stage == 255)
        return f


# --- prefix keys ---

def first_key(identity):
    return hashlib.sha256(b"kvc prefix 1\n" + identity).digest()


def extra_item(tag, offset, value, length=None):
    return u8(tag) + u32(offset) + u16(len(value) if length is None else length) + value


def extras(*items, version=1, count=None):
    """What the key of a block takes beside its token ids."""
    return u8(version) + u32(len(items) if count is None else count) + b"".join(items)


def prefix_keys(tokens, start=None, extra=None):
    """The keys of tokens after the key `start`; extra: block of these tokens -> its extras."""
    chain, out = start or first_key(b"unknown"), []
    for i in range(len(tokens) // 256):
        block = struct.pack("<256i", *tokens[256 * i:256 * i + 256])
        chain = hashlib.sha256(chain + block + (extra or {}).get(i, b"")).digest()
        out.append(chain)
    return out


def namespace(facts):
    """NS of the facts, by tag; a fact that is not given is unknown."""
    every = {**{tag: b"" for tag in range(1, 18)}, **facts}
    return hashlib.sha256(b"kvc namespace 1\n" + b"".join(u8(tag) + u32(len(every[tag])) + every[tag]
                                                          for tag in sorted(every))).digest()


LAYER = u8(1) + u8(0) + u32(0, 0) + u8(0) + u32(0)  # numbers known; live part, stream 0, index 0, full, no window
FEW = {1: b"unknown", 5: LAYER + u8(0, F16) + u64(2, 4), 16: b"lossless", 23: b""}
EIGHT = LAYER + u8(0, F8E4M3) + u64(2, 4)  # K of 8 bits
SPACES = {"few": FEW, "past": {**FEW, 16: b"quant:4 then prune", 17: bytes(range(64))},
          "scales": {**FEW, 5: EIGHT, 20: u8(1) + struct.pack("<2f", 0.5, 0.25)},
          "source": {**FEW, 5: EIGHT, 20: u8(0) + b"run 7"},
          "RoPE of ours": {**FEW, 23: b"ours"}, "RoPE of llama.cpp": {**FEW, 23: b"llama.cpp"},
          "RoPE that is known": {**{tag: x for tag, x in FEW.items() if tag != 23}, 8: b"llama3", 9: struct.pack("<f", 5e5), 24: b'{"factor":8}'}}
TWO_EXTRAS = extras(extra_item(1, 10, bytes(range(16))), extra_item(3, 255, b"user"))


def keyed(tokens, keys, **meta):
    """A cache of one cell with token ids and prefix keys; `_` stands for the point of metadata keys."""
    return Cache([Part([0])], [(0, 0, 0, 0)], [Tensor(0, 0)], tokens=tokens, keys=b"".join(keys),
                 meta={"prefix.identity": text("unknown"), **{k.replace("_", "."): v for k, v in meta.items()}})


def prefix_files():
    ids = list(range(768))
    chain = prefix_keys(ids)
    hash16 = bytes(range(16))
    two = TWO_EXTRAS

    def data(value):
        return 6, value

    def place(first, parent=chain[0]):
        return {"tokens_first": (2, u64(first)), "prefix_parent": data(parent)}

    good("keys", "600 token ids and the two prefix keys that follow from them.")(
        lambda: keyed(ids[:600], chain[:2]).file())
    good("keys-alone", "Prefix keys without the token ids.")(lambda: keyed(None, chain[:2]).file())
    for n in (255, 256, 512):
        good(f"keys-{n}", f"{n} token ids and the prefix keys that follow from them.")(
            lambda n=n: keyed(ids[:n], chain[:n // 256]).file())

    def nameless(cache):
        del cache.meta["prefix.identity"]
        return cache.file()
    good("keys-none", "600 token ids without an identity, and so without prefix keys.")(lambda: nameless(keyed(ids[:600], [])))
    bad("keys-identity", "without the metadata key", "Prefix keys without an identity.")(
        lambda: nameless(keyed(ids[:600], chain[:2])))
    bad("parent-identity", "without the metadata key", "A parent without an identity.")(
        lambda: nameless(keyed(ids[256:356], [], **place(256))))
    bad("keys-count", "prefix keys", "Three prefix keys for 600 tokens.")(
        lambda: keyed(ids[:600], chain[:2] + [bytes(32)]).file())
    bad("keys-missing", "prefix keys", "One prefix key for 600 tokens.")(lambda: keyed(ids[:600], chain[:1]).file())
    bad("keys-size", "no whole number", "Prefix keys of 33 bytes.")(lambda: keyed(None, [bytes(33)]).file())
    def no_keys(f):
        f.of(TOKENS).sections[-1].raw = b""
        return f
    bad("keys-empty", "without keys", "A section KEYS without keys, and no token ids.")(lambda: no_keys(keyed(None, chain[:1]).file()))
    bad("keys-empty-few", "without keys", "A section KEYS without keys beside 255 token ids.")(
        lambda: no_keys(keyed(ids[:255], chain[:1]).file()))

    def named(identity, kind=5, tokens=None, keys=2):
        c = keyed(tokens, prefix_keys(ids, first_key(identity))[:keys])
        c.meta["prefix.identity"] = kind, identity
        return c.file()
    good("identity", "An identity of 127 bytes, the longest.")(lambda: named(b"x" * 127))
    good("identity-type", "600 token ids, and an identity of bytes, which says nothing: no prefix keys.")(
        lambda: named(b"x", 6, ids[:600], 0))
    bad("identity-long", "more than 127 bytes", "An identity of 128 bytes, and keys from it.")(lambda: named(b"x" * 128))
    bad("identity-long-alone", "more than 127 bytes", "An identity of 200 bytes, and no keys.")(lambda: named(b"x" * 200, keys=0))
    bad("identity-bytes", "without the metadata key", "Prefix keys, and an identity of bytes.")(lambda: named(b"x", 6))
    bad("identity-empty", "without the metadata key", "Prefix keys, and an identity without a letter.")(lambda: named(b""))
    bad("parent-limit", "multiple of 256", "A parent at position 2^62.")(lambda: keyed(ids[:256], chain[:1], **place(1 << 62)).file())
    bad("tokens-first", "2^62", "Five token ids from position 2^62 - 4 on.")(
        lambda: small(meta={"tokens.first": (2, u64(2**62 - 4))}).file())
    bad("keys-other", "position 512 does not follow", "The second prefix key is another.", "check")(
        lambda: keyed(ids[:600], [chain[0], bytes(32)]).file())
    bad("keys-late", "prefix keys", "A prefix key of 256 token ids from position 256 on, without a parent.")(
        lambda: keyed(ids[256:512], chain[1:2], tokens_first=(2, u64(256))).file())
    good("keys-none-late", "256 token ids from position 256 on, without a parent: no prefix keys.")(
        lambda: keyed(ids[256:512], [], tokens_first=(2, u64(256))).file())

    good("parent", "Token ids from position 256 on, and the prefix keys that follow from a parent.")(
        lambda: keyed(ids[256:], chain[1:], **place(256)).file())
    good("parent-alone", "The same without the token ids.")(lambda: keyed(None, chain[1:], **place(256)).file())
    good("parent-few", "100 token ids after a parent: no prefix keys.")(lambda: keyed(ids[256:356], [], **place(256)).file())
    bad("parent-length", "prefix.parent", "A parent of 31 bytes.")(
        lambda: keyed(ids[256:512], chain[1:2], **place(256, chain[0][:31])).file())
    bad("parent-type", "prefix.parent", "A parent that is a text.")(
        lambda: keyed(ids[256:512], chain[1:2], tokens_first=(2, u64(256)), prefix_parent=text("x" * 32)).file())
    for name, first, sentence in (("first", 300, "A parent at position 300."), ("zero", 0, "A parent at position 0."),
                                  ("far", 1 << 63, "A parent at position 2^63.")):
        bad("parent-" + name, "multiple of 256", sentence)(lambda f=first: keyed(ids[:256], chain[:1], **place(f)).file())
    bad("parent-no-first", "multiple of 256", "A parent, and no position of the first token id.")(
        lambda: keyed(ids[:256], chain[:1], prefix_parent=data(chain[0])).file())
    def elsewhere(keys):
        """256 cells at positions 512 to 767, whose ids are said to begin at 256."""
        return Cache([Part(list(range(512, 768)))], [(0, 0, 0, 0)], [Tensor(0, 0, U8, 1, 1)], tokens=ids[:256], keys=keys,
                     meta={"prefix.identity": text("unknown"), "tokens.first": (2, u64(256)), "prefix.parent": data(chain[0])}).file()
    good("parent-elsewhere", "As many ids as cells, of which the first is not at the parent's position: no prefix keys.")(
        lambda: elsewhere(None))
    bad("keys-elsewhere", "prefix keys", "The same with a key.")(lambda: elsewhere(chain[1]))
    bad("parent-keys", "position 512 does not follow", "Prefix keys that do not follow from the parent.", "check")(
        lambda: keyed(ids[256:512], chain[1:2], **place(256, bytes(32))).file())

    good("extras", "512 token ids; the first block has extras at tokens 10 and 255.")(
        lambda: keyed(ids[:512], prefix_keys(ids[:512], extra={0: two}), prefix_extras=data(u64(0) + two)).file())

    def third():
        one = extras(extra_item(2, 0, hash16), extra_item(77, 0, b"?"))
        return keyed(ids[256:700], prefix_keys(ids[256:700], chain[0], {0: one}), **place(256),
                     prefix_extras=data(u64(256) + one + u64(512) + extras(extra_item(3, 187, b"user"))))
    good("extras-parent", "Extras after a parent, with a tag that no reader knows, and in a block that is not whole.")(
        lambda: third().file())
    bad("extras-keys", "position 256 does not follow", "Prefix keys that were computed without the extras.", "check")(
        lambda: keyed(ids[:512], chain[:2], prefix_extras=data(u64(0) + two)).file())

    def broken(name, words, sentence, value, tokens=ids[:512]):
        bad("extras-" + name, words, sentence)(
            lambda: keyed(tokens, chain[:2], prefix_extras=data(value)).file())
    one = extra_item(3, 4, b"x")
    broken("empty", "1048576", "Extras of no bytes.", b"")

    @bad("extras-huge", "1048576", "Extras of more than 1 048 576 bytes.")
    def _():
        value = b"".join(u64(256 * i) + extras(extra_item(3, 0, hashlib.shake_128(u8(i)).digest(30) * 2000)) for i in range(18))
        f = keyed(ids[:512], chain[:2], prefix_extras=data(value)).file()
        f.of(META).sections[0].coder = 1
        return f
    broken("block", "beyond its block", "An item at offset 256 of its block.", u64(0) + extras(extra_item(3, 256, b"x")))
    broken("beyond", "no token", "An item of token 512 of 512.", u64(512) + extras(extra_item(3, 0, b"x")))
    broken("no-tokens", "no token", "Extras without token ids.", u64(0) + extras(one), None)
    broken("cut-block", "cut short", "A block of 12 bytes.", u64(0) + u8(1) + u32(1)[:3])
    broken("cut-item", "cut short", "Six bytes of an item.", u64(0) + extras(one, one[:6]))
    broken("cut-bytes", "cut short", "An item whose bytes reach beyond the end.", u64(0) + extras(extra_item(3, 4, b"x", 2)))
    broken("count", "cut short", "Two items are announced, one is there.", u64(0) + extras(one, count=2))
    broken("trailing", "cut short", "A byte after the last block.", u64(0) + extras(one) + b"\0")
    broken("no-items", "no items", "A block of no items.", u64(0) + extras())
    broken("no-bytes", "an item is empty", "An item of no bytes.", u64(0) + extras(extra_item(3, 4, b"")))
    broken("tag", "tag 0", "An item of tag 0.", u64(0) + extras(extra_item(0, 4, b"x")))
    broken("hash", "fewer than 16", "A media hash of 15 bytes.", u64(0) + extras(extra_item(1, 4, hash16[:15])))
    broken("twice", "sorted and unique", "Two items of one offset and tag.", u64(0) + extras(one, one))
    broken("items-order", "sorted and unique", "Items in descending order.",
           u64(0) + extras(extra_item(3, 5, b"x"), extra_item(3, 4, b"x")))
    broken("blocks-order", "sorted and unique", "Block 1 before block 0.", u64(256) + extras(one) + u64(0) + extras(one))
    broken("position", "no multiple of 256", "A block at position 128.", u64(128) + extras(one))
    broken("version", "unknown version", "A block of version 2.", u64(0) + extras(one, version=2))
    bad("extras-type", "1048576", "Extras that are a text.")(
        lambda: keyed(ids[:512], chain[:2], prefix_extras=text("x")).file())

    few, past, scaled, theirs, of_ours, of_llama, known_rope = SPACES.values()
    eight = EIGHT
    good("space", "A namespace of few facts.")(lambda: keyed(None, chain[:2], prefix_space=data(namespace(few))).file())

    f64 = struct.Struct("<d").pack

    def roped(facts, **meta):
        return keyed(None, chain[:2], prefix_space=data(namespace(facts)), **meta).file()
    good("space-rope-source", "A namespace of unknown RoPE, of somebody who has a name.")(
        lambda: roped(of_ours, rope_source=text("ours"), source_format=text("llama.cpp GGSQ")))
    good("space-rope-format", "A namespace of unknown RoPE, of an engine.")(lambda: roped(of_llama, source_format=text("llama.cpp GGSQ")))
    scaling = {"rope_type": text("llama3"), "rope_theta": (4, f64(5e5)), "rope_scaling": text('{"factor":8}')}
    good("space-rope-scaling", "A namespace of RoPE that is known by what config.json says of the scaling.")(
        lambda: roped(known_rope, rope_source=text("ours"), **scaling))
    for name, sentence, facts, meta in (
            ("unknown", "Unknown RoPE that the namespace leaves out.", {k: v for k, v in few.items() if k != 23}, {}),
            ("other", "Unknown RoPE of somebody else.", of_ours, {"rope_source": text("theirs")}),
            ("factor", "YaRN without a factor is unknown.", {tag: x for tag, x in {**known_rope, 8: b"yarn"}.items() if tag != 24},
             {**scaling, "rope_type": text("yarn"), "rope_scaling": text("")})):
        bad(f"space-rope-{name}", "prefix.space", sentence, "check")(lambda facts=facts, meta=meta: roped(facts, **meta))
    good("space-past", "A namespace of lossless blocks, whose values went through two lossy recipes.")(
        lambda: keyed(None, chain[:2], prefix_space=data(namespace(past)), values_recipe=text("quant:4 then prune"),
                      values_profile=data(bytes(range(64)))).file())

    def of_8_bits(facts, dtype=F8E4M3, **meta):
        return Cache([Part([0])], [(0, 0, 0, 0)], [Tensor(0, 0, dtype)],
                     meta={"prefix.identity": text("unknown"), "prefix.space": data(namespace(facts)),
                           **{k.replace("_", "."): text(v) for k, v in meta.items()}}).file()
    @bad("space-no-recipe", "prefix.space", "A namespace of a lossy file that does not name its recipe.", "check")
    def _():
        x = Quant("token", 0, 4, 1, 2, 4, salt=150)
        c = Cache([Part([0])], [(0, 0, 0, 0)], [Tensor(0, 0, F16, 2, 4, rows=byte_rows(F16, x.matrix))],
                  pipelines=((quant("token:bits=4"),),),
                  meta={"prefix.identity": text("unknown"), "prefix.space": data(namespace({**FEW, 16: b""}))})
        c.coded = {0: lambda t, rows: x.sections}
        return c.file()

    good("space-scales", "A namespace of K of 8 bits, whose heads have scales.")(lambda: of_8_bits(scaled, scale_k="0.5:0.25"))
    good("space-scales-layer", "The same scales as those of layer 0 of a list.")(
        lambda: of_8_bits(scaled, scale_k="5e-1:25.0E-2,7,,3:4:5"))
    good("space-scales-source", "A namespace of unknown scales, of somebody who has a name.")(
        lambda: of_8_bits(theirs, scale_source="run 7"))
    good("space-scales-partly", "A list that has no scale of layer 0.")(
        lambda: of_8_bits(theirs, scale_k=",1", scale_source="run 7"))
    good("space-scales-other", "Scales that are of no dtype of the file.")(
        lambda: of_8_bits(few, F16, scale_k="0.5", scale_source="run 7"))
    wide = {**few, 21: u64(4096)}
    good("space-length", "A namespace that knows the context before scaling.")(
        lambda: keyed(None, chain[:2], **{"prefix_space": data(namespace(wide)), "rope_original-context": (2, u64(4096))}).file())
    for name, sentence, facts, meta in (
            ("unknown", "K of 8 bits has no namespace without scales.", {**few, 5: eight}, {}),
            ("none", "Scales that the namespace leaves out.", {**few, 5: eight}, {"scale_k": "0.5"}),
            ("wrong", "Scales of another file.", scaled, {"scale_k": "0.5:0.5"}),
            ("heads", "Scales of three heads, where there are two.", scaled, {"scale_k": "0.5:0.25:1"}),
            ("words", "Scales that are no numbers.", scaled, {"scale_k": "half"})):
        bad(f"space-scales-{name}", "prefix.space", sentence, "check")(lambda facts=facts, meta=meta: of_8_bits(facts, **meta))

    def known():
        tokenizer, adapters = bytes(range(32)), bytes(range(100, 132))
        facts = {1: b"mine", 2: tokenizer, 3: b"llama", 4: adapters, 6: b"post", 7: b"halves", 8: b"yarn",
                 9: struct.pack("<f", 5e5), 10: u64(64), 11: struct.pack("<f", 0.1), 12: u64(0), 13: u64(32), 14: u64(4096),
                 15: u64(0, 2), 16: b"lossless",
                 5: u8(0) +  # layers in the order of the cache
                 u8(0) + u32(0, 0) + u8(0) + u32(0) + u8(0, F16) + u64(2, 4) + u8(1, F32) + u64(0, 8) +
                 u8(0) + u32(0, 3) + u8(0) + u32(0) + u8(0, BF16) + u64(2, 4) +
                 u8(1) + u32(0, 1) + u8(1) + u32(512) + u8(0, F16) + u64(2, 4)}
        parts = [Part([0, 1]), Part([1], kind=1), Part([0], kind=4)]
        layers = [(0, 3, 0, 0), (0, 0, 0, 0), (1, 1, 1, 512), (2, 0, 4, 0)]
        tensors = [Tensor(0, 0, BF16), Tensor(1, 0), Tensor(1, 1, F32, heads=1, dim=8), Tensor(2, 0), Tensor(3, 5)]
        f64 = struct.Struct("<d").pack
        meta = {"prefix.identity": text("mine"), "tokenizer.sha256": data(tokenizer), "model.architecture": text("llama"),
                "model.adapters.sha256": data(adapters), "rope.k": text("post"), "rope.pairing": text("halves"),
                "rope.type": text("yarn"), "rope.theta": (4, f64(5e5)), "rope.dim": (2, u64(64)), "rope.factor": (4, f64(0.1)),
                "hadamard.k": (2, u64(0)), "hadamard.v": (2, u64(32)), "sliding.window": (2, u64(4096)), "shard.rank": (2, u64(0)), "shard.ranks": (2, u64(2)),
                "recipe": text("of an earlier file"), "cache.heads-known": (1, b"\0"), "cache.layers-known": (1, b"\0")}
        return Cache(parts, layers, tensors, meta={**meta, "prefix.space": data(namespace(facts))})
    good("space-known", "A namespace of all facts; layers of three kinds of part, out of order.")(lambda: known().file())
    bad("space-other", "prefix.space", "A namespace of another file.", "check")(
        lambda: keyed(None, chain[:2], prefix_space=data(namespace({**few, 3: b"llama"}))).file())
    bad("space-length", "prefix.space", "A namespace of 31 bytes.", "check")(
        lambda: keyed(None, chain[:2], prefix_space=data(namespace(few)[:31])).file())


def frame_files():
    def cut(name, words, sentence, change, where="open"):
        bad(name, words, sentence, where)(lambda: change(small().file().bytes()))
    cut("empty", "not a .kvc", "No bytes at all.", lambda b: b"")
    cut("magic", "not a .kvc", "One bit of the magic flipped.", lambda b: patch(b, 3, b"B"))
    cut("text-mode", "not a .kvc", "Sent in text mode: CR LF became LF.", lambda b: b.replace(b"\r\n", b"\n"))
    cut("cut-header", "truncated", "Cut after 40 bytes.", lambda b: b[:40])
    cut("cut-half", "truncated", "Cut in half.", lambda b: b[:len(b) // 2])
    cut("cut-last-byte", "truncated", "Without its last byte.", lambda b: b[:-1])
    cut("trailing-byte", "bytes follow the end", "One zero byte after the footer.", lambda b: b + b"\0")
    cut("twice", "the footer says", "The same file twice in a row.", lambda b: b + b)
    cut("header-check", "header: checksum", "A feature bit of the header is set without mending the check.",
        lambda b: patch(b, 14, b"\1"))
    cut("footer-check", "footer: checksum", "The footer's file size changed without mending the check.",
        lambda b: patch(b, len(b) - 56, b"\1"))
    cut("record-check", "checksum mismatch", "One bit of the metadata flipped.",
        lambda b: patch(b, 100, u8(b[100] ^ 4)))

    def file(name, words, sentence, change, where="open"):
        bad(name, words, sentence, where)(lambda: edited(change))

    def header(**values):
        return lambda f: f.__dict__.update(values)

    def spliced(kind, change, n=0):
        """A file in which a record is that of a file that differs by change(record)."""
        own, other = edited(lambda f: None), edited(lambda f: change(f.of(kind, n)))
        was, new = own.of(kind, n).bytes(), other.of(kind, n).bytes()
        assert was != new and len(was) == len(new)
        return own.bytes().replace(was, new)

    def other_values(record):
        raw = bytes(x ^ 1 for x in record.sections[0].raw)
        row = len(raw) // 5
        record.sections[0].raw = raw
        record.digest = sum(xxh3(raw[i * row:(i + 1) * row], i) for i in range(5)) % 2**64
    good("features", "Features of the header that a reader may ignore, and some for writers alone.")(
        lambda: edited(header(features=5, writers=1 << 31)))
    good("index-zstd", "The index is a zstd frame.")(lambda: edited(header(index_coder=1)))
    bad("spliced-block", "not the record that the index lists",
        "The block of V is that of another cache of the same shape; all else is right.", "read")(
        lambda: spliced(BLOCK, other_values, 1))
    bad("spliced-tokens", "not the record that the index lists", "The token ids are those of another cache.")(
        lambda: spliced(TOKENS, lambda r: setattr(r.sections[0], "raw", r.sections[0].raw[::-1])))
    file("footer-seed", "another index", "The footer's check is not seeded with that of the index.", header(footer={"seed": 0}))
    file("content-id", "content id", "The content id is that of another file.", header(footer={"id": bytes(31) + b"\1"}), "check")
    file("write-version", "below read version", "Written by version 0, for readers of version 1.", header(write=0))
    file("align-8", "alignment", "Extents aligned to 8 bytes.", header(align=3))
    file("align-2m", "alignment", "Extents aligned to 2 MiB.", header(align=21))
    file("footer-magic", "no footer", "Another magic in the footer.", header(footer={"magic": b"\x89KVCEND\r"}))
    file("footer-size", "the footer says", "The footer counts 16 bytes too many.",
         lambda f: f.footer.update(size=len(f.bytes()) + 16))
    file("footer-index-beyond", "index offset", "The index lies beyond the file.", header(footer={"index": 1 << 40}))
    file("footer-index-odd", "index offset", "The index begins at no multiple of 16.", header(footer={"index": 40}))
    file("footer-index-elsewhere", "another index", "The footer points at the metadata.",
         header(footer={"index": 32}))
    unsupported("read-version", "version 2", "Needs a reader of format version 2.")(lambda: edited(header(read=2, write=2)))
    unsupported("version-0", "version 0", "Says that it is of the drafts' version 0.")(lambda: edited(header(read=0, write=0)))
    unsupported("features", "features 00010000", "Needs a feature that this reader does not know.")(
        lambda: edited(header(needed=1 << 16)))
    unsupported("grid", "2^9", "Blocks of 512 positions.")(lambda: edited(header(grid=9)))

    # the index
    file("index-type", "disagree", "The index calls the TOKENS record a PROFILE, which readers skip.",
         header(index=lambda x: x[:3] + [[PROFILE] + x[3][1:]] + x[4:]), "check")
    file("index-type-unknown", "disagree", "The index gives the TOKENS record an unknown type.",
         header(index=lambda x: x[:3] + [[77] + x[3][1:]] + x[4:]))
    file("index-number", "disagree", "The index gives the CELLS record another number.",
         header(index=lambda x: x[:2] + [x[2][:3] + [1] + x[2][4:]] + x[3:]))
    file("index-size", "does not fit", "The index gives the last record more bytes than there are.",
         header(index=lambda x: x[:-1] + [[x[-1][0], x[-1][1] + 1] + x[-1][2:]]))
    file("index-tiny", "does not fit", "A record of 16 bytes.", header(index=lambda x: [[9, 1, 0, 0, 0]] + x))
    file("index-gap", "belong to no record", "The last record is missing in the index.", header(index=lambda x: x[:-1]))
    file("index-count", "number of records", "2^40 records.", header(columns=lambda x: [[varint(1 << 40)]] + x[1:]))
    file("index-none", "number of records", "An index of no bytes.", header(columns=lambda x: []))
    file("index-checks", "bytes of checks", "The index lacks the check of the last record.",
         header(columns=lambda x: x[:-1] + [x[-1][:-1]]))
    file("index-trailing", "bytes of checks", "A byte follows the checks.", header(columns=lambda x: x + [[b"\0"]]))
    file("index-cut", "cut short", "The index ends within its column of numbers.",
         header(columns=lambda x: x[:4] + [x[4][:-1]]))
    file("index-varint", "cut short", "A varint of the index is not in its shortest form.",
         header(columns=lambda x: x[:2] + [[b"\x9d\x80\0"] + x[2][1:]] + x[3:]))


def record_files():
    def file(name, words, sentence, change, where="open"):
        bad(name, words, sentence, where)(lambda: edited(change))

    def swap(kind, other):
        def change(f):
            i, j = f.records.index(f.of(kind)), f.records.index(f.of(other))
            f.records[i], f.records[j] = f.records[j], f.records[i]
        return change
    file("order-table-first", "META", "TABLE stands before META.", swap(META, TABLE))
    file("order-tokens-late", "not the record due", "TOKENS stands after SOURCE.", swap(TOKENS, SOURCE))
    file("order-blocks", "not the record due", "The block of V stands before the block of K.",
         lambda f: f.records.append(f.records.pop(-2)))
    file("two-metas", "TABLE", "Two META records.", lambda f: f.records.insert(1, copy.deepcopy(f.records[0])))
    file("two-indexes", "not the record due", "An INDEX record before the last.",
         lambda f: f.records.append(Record(INDEX, [Section(S_INDEX, b"")])))
    file("no-table", "TABLE", "No TABLE record.", lambda f: f.records.remove(f.of(TABLE)) or f)
    file("no-cells", "CELLS", "No CELLS record.", lambda f: f.records.remove(f.of(CELLS)) or f)
    file("no-records", "META", "Nothing but the index.", lambda f: f.records.clear() or f)
    file("missing-block", "blocks", "The block of V is missing.", lambda f: f.records.pop() and f)
    file("extra-block", "blocks", "A second block of V, which has five rows.",
         lambda f: f.records.append(Record(BLOCK, f.records[-1].sections, 1, 1)))
    file("cells-part", "CELLS", "CELLS of part 1, which is not there.", lambda f: setattr(f.of(CELLS), "subject", 1))
    bad("side-empty", "SIDE", "Side data without a section.", "read")(
        lambda: edited(lambda f: f.records.insert(f.records.index(f.of(BLOCK)), Record(SIDE, [], 0, 0))))
    file("side-record", "no stage", "Side data of a tensor whose stages have none.",
         lambda f: f.records.insert(len(f.records) - 2, Record(SIDE, [Section(10, b"mean")], 0, 0)), "read")
    unsupported("record-type", "type 77", "A critical record of type 77.")(
        lambda: edited(lambda f: f.records.insert(3, Record(77))))
    unsupported("record-sealed", "type 12", "A record that is kept for encrypted ones.")(
        lambda: edited(lambda f: f.records.insert(3, Record(SEALED))))
    good("signature", "A signature, and one by an algorithm that nobody knows.")(
        lambda: edited(lambda f: f.records.extend(
            Record(SIGNATURE, [Section(S_SIGNATURE, u8(kind, 4) + b"key1" + bytes(32))], flags=0) for kind in (1, 200))))
    good("no-digest", "A block whose flags say that it has no digest.")(
        lambda: edited(lambda f: f.of(BLOCK).__dict__.update(flags=3, digest=0)))
    file("no-digest-digest", "its flags", "A block whose flags say that it has no digest, and that has one.",
         lambda f: f.of(BLOCK).__dict__.update(flags=3), "read")
    good("section-optional", "Sections that a reader may skip, of the metadata and of a block's stage.")(
        lambda: edited(lambda f: (f.of(META).sections.append(Section(99, b"later", coder=OPTIONAL)),
                                  f.of(BLOCK).sections.append(Section(31, b"later", coder=OPTIONAL, stage=0))) and f))
    file("section-optional-known", "marked as one to skip", "The metadata's section is marked as one that a reader may skip.",
         lambda f: setattr(f.of(META).sections[0], "coder", OPTIONAL))
    file("section-optional-stage", "marked as one to skip", "A block's section RAW is marked as one that a reader may skip.",
         lambda f: setattr(f.of(BLOCK).sections[0], "coder", OPTIONAL), "read")
    file("section-optional-page", "marked as one to skip", "A section of a type that another stage has is marked as one to skip.",
         lambda f: f.of(BLOCK).sections.append(Section(PLANE, b"later", coder=OPTIONAL, stage=0)), "read")

    def profiled(name, sentence, change, words="", hashed=bytes(32)):
        """Files that name a profile, which no row needs."""
        case(("bad-" if words else "good-") + "profile-" + name, sentence, words)(
            lambda: edited(change, lambda: small(meta={"profile.sha256": (6, hashed)})))
    profile = Record(PROFILE, [Section(S_PROFILE, b"another")], flags=0)
    profiled("other", "A profile of another hash, which no row needs.", lambda f: f.records.insert(4, profile))
    profiled("sections", "A PROFILE record without a profile, which no row needs.",
             lambda f: f.records.insert(0, Record(PROFILE, [Section(98, b"later", 9, stored=b"later")], flags=0)))
    profiled("unnamed", "Two PROFILE records, one behind rows, where profile.sha256 has 31 bytes.",
             lambda f: f.records.insert(2, profile) or f.records.append(profile), hashed=bytes(31))
    profiled("twice", "Two PROFILE records.", lambda f: f.records.insert(2, profile) or f.records.insert(3, profile), "second of its type")
    profiled("late", "A PROFILE record behind the rows.", lambda f: f.records.append(profile), "behind rows")
    profiled("between", "A PROFILE record behind a block.", lambda f: f.records.insert(-1, profile), "behind rows")
    file("section-optional-first", "follows those", "A section that a reader may skip stands before another one.",
         lambda f: f.of(SOURCE).sections.insert(0, Section(99, b"later", coder=OPTIONAL)))
    unsupported("needs", "NEEDS", "Side data say that blocks stand on blocks before them.", "read")(
        lambda: edited(lambda f: f.refused.add(0) or
                       f.records.insert(len(f.records) - 2, Record(SIDE, [Section(NEEDS, u8(2, 4) + u32(1))], 0, 0))))
    good("signature-coder", "A signature by a byte coder that nobody knows.")(
        lambda: edited(lambda f: f.records.append(
            Record(SIGNATURE, [Section(S_SIGNATURE, b"later", 9, stored=b"later")], flags=0))))
    good("unknown-record-bytes", "A record of an unknown type whose bytes are no sections, and with all fields set.")(
        lambda: edited(lambda f: f.records.append(Record(200, subject=3, number=4, digest=5, flags=0, tail=b"no directory.   ")) or
                       f.records[-1].patches.append((2, u16(60000)))))
    good("optional-first", "Records that are not critical stand before META.")(
        lambda: edited(lambda f: f.records.__setitem__(slice(0, 0), [
            Record(PAD, flags=0, tail=bytes(16)), Record(SIGNATURE, [Section(S_SIGNATURE, u8(1, 0) + bytes(32))], flags=0),
            Record(200, flags=0), Record(PROFILE, [Section(S_PROFILE, b"later")], flags=0)])))
    unsupported("record-flags", "flag", "A reserved flag bit of the TABLE record is set.")(
        lambda: edited(lambda f: setattr(f.of(TABLE), "flags", 3)))
    unsupported("section-coder", "byte coder 9", "The metadata's byte coder is 9.")(
        lambda: edited(lambda f: f.of(META).sections[0].__dict__.update(coder=9, stored=f.of(META).sections[0].raw)))
    file("record-not-critical", "may skip it", "The TABLE record is not marked critical.",
         lambda f: setattr(f.of(TABLE), "flags", 0))
    file("meta-subject", "META", "META has a subject.", lambda f: setattr(f.of(META), "subject", 0))
    file("meta-number", "META", "META has a number.", lambda f: setattr(f.of(META), "number", 1))
    file("meta-digest", "META", "META has a digest.", lambda f: setattr(f.of(META), "digest", 1))
    file("cells-number", "CELLS", "CELLS has a number.", lambda f: setattr(f.of(CELLS), "number", 1))
    file("pad-sections", "PAD", "A PAD record with a section.",
         lambda f: f.records.append(Record(PAD, [Section(RAW, b"")], flags=0)), "check")
    file("pad-byte", "padding is not zero", "A byte of a PAD record is set.",
         lambda f: f.records.append(Record(PAD, flags=0, tail=bytes(31) + b"\1")), "check")
    file("skipped-check", "checksum mismatch", "A flipped bit in a record that readers skip.",
         lambda f: f.records.append(Record(200, [Section(99, b"skip")], flags=0)) or
         f.records[-1].late_patches.append((48, b"S")), "check")
    file("section-padding", "padding is not zero", "A byte between two sections is set.",
         lambda f: f.of(SOURCE).patches.append((len(f.of(SOURCE).bytes()) - 1, b"\1")))
    file("section-beyond", "beyond its record", "A section reaches beyond its record.",
         lambda f: f.of(META).patches.append((36, u32(1 << 20))))
    file("directory-beyond", "directory", "More directory entries than the record has bytes.",
         lambda f: f.of(META).patches.append((2, u16(60000))))
    file("record-slack", "follow its last section", "16 zero bytes after the last section.",
         lambda f: setattr(f.of(META), "tail", bytes(16)))
    file("meta-two-sections", "META", "META has a second section.",
         lambda f: f.of(META).sections.append(Section(S_META, u32(0))))
    file("section-unknown", "META", "META has a section of type 99 that readers may not skip.",
         lambda f: f.of(META).sections.append(Section(99, b"later")))
    file("meta-section", "META", "META holds a TABLE section.",
         lambda f: setattr(f.of(META).sections[0], "kind", S_TABLE))
    file("section-stage", "stage", "The metadata's section claims stage 0.",
         lambda f: setattr(f.of(META).sections[0], "stage", 0))
    file("store-size", "size", "A stored section claims more bytes than it holds.",
         lambda f: setattr(f.of(META).sections[0], "raw_size", 4096))
    file("bomb", "claims", "The metadata claims one byte more than 65 536 + 4 096 times what is stored.",
         lambda f: f.of(META).sections[0].__dict__.update(coder=1, 
             raw_size=65537 + 4096 * len(zstd(f.of(META).sections[0].raw))))
    file("zstd-frame", "zstd", "The metadata's zstd frame is broken.",
         lambda f: f.of(META).sections[0].__dict__.update(coder=1, stored=b"\x28\xb5\x2f\xfd broken"))
    file("zstd-short", "zstd frame", "The metadata's zstd frame holds less than it claims.",
         lambda f: f.of(META).sections[0].__dict__.update(coder=1, raw_size=len(f.of(META).sections[0].raw) + 1))
    file("zstd-long", "zstd", "The metadata's zstd frame holds more than it claims.",
         lambda f: f.of(META).sections[0].__dict__.update(coder=1, raw_size=len(f.of(META).sections[0].raw) - 1))

    def two_frames(f):
        s = f.of(META).sections[0]
        s.coder, s.stored = 1, zstd(s.raw[:20]) + zstd(s.raw[20:])
    file("zstd-two-frames", "frame", "The metadata is two zstd frames.", two_frames)

    def framed(name, sentence, change):
        """The metadata in a frame of one raw block: descriptor, window, content."""
        def make(f):
            s = f.of(META).sections[0]
            head = change(u8(0, 13 << 3))
            block = (len(s.raw) << 3 | 1).to_bytes(3, "little") + s.raw
            s.coder, s.stored = 1, b"\x28\xb5\x2f\xfd" + head + block
        return name, sentence, make
    name, sentence, make = framed("zstd-window", "The metadata's zstd frame has a window of 72 MiB.", lambda head: u8(0, 16 << 3 | 1))
    file(name, "window over 64 MiB", sentence, make)
    name, sentence, make = framed("zstd-dictionary", "The metadata's zstd frame names a dictionary.", lambda head: u8(1, 13 << 3, 7))
    file(name, "has a dictionary", sentence, make)
    good("zstd-window", "The metadata's zstd frame has a window of 64 MiB, the largest.")(
        lambda: edited(framed("", "", lambda head: u8(0, 16 << 3))[2]))


def own_files():
    def meta(name, words, sentence, value):
        bad("meta-" + name, words, sentence)(payload(META, lambda raw: value))

    def key(name, kind=5, value=b"x", critical=0, reserved=0):
        return u8(len(name), kind, critical, reserved) + u32(len(value)) + name.encode() + value
    meta("order", "not sorted", "The keys b, a.", u32(2) + key("b") + key("a"))
    meta("twice", "not sorted", "The key a twice.", u32(2) + key("a") * 2)
    meta("upper-case", "malformed", "The key A.", u32(1) + key("A"))
    meta("no-name", "malformed", "A key of no characters.", u32(1) + key(""))
    meta("bool", "'a'", "A bool of value 2.", u32(1) + key("a", 1, b"\2"))
    meta("u64", "'a'", "A u64 of 7 bytes.", u32(1) + key("a", 2, bytes(7)))
    meta("nul", "'a'", "A text with a NUL.", u32(1) + key("a", 5, b"x\0y"))
    meta("utf8", "'a'", "A text that is not UTF-8.", u32(1) + key("a", 5, b"\xc0\xaf"))
    unsupported("meta-type", "'a'", "A metadata value of type 8.")(payload(META, lambda raw: u32(1) + key("a", 8)))
    meta("cut", "cut short", "Two keys are announced, one is there.", u32(2) + key("a"))
    meta("trailing", "follow", "A byte after the last key.", u32(1) + key("a") + b"\0")
    unsupported("meta-critical", "'x-test.must'", "A critical key that this reader does not know.")(
        payload(META, lambda raw: u32(1) + key("x-test.must", critical=1)))
    unsupported("meta-critical-known", "'producer'", "A known key that is marked critical: no key of this version is.")(
        payload(META, lambda raw: u32(1) + key("producer", critical=1)))
    unsupported("meta-critical-bits", "reserved", "A reserved bit beside the one that marks a critical key.")(
        payload(META, lambda raw: u32(1) + key("a", critical=2)))
    unsupported("meta-reserved", "reserved", "A reserved byte of a metadata key is set.")(
        payload(META, lambda raw: u32(1) + key("a", reserved=1)))

    def tab(name, words, sentence, change):
        bad(name, words, sentence)(table(change))

    def at(offset, new):
        return lambda raw: patch(raw, offset, new)
    tab("table-cut", "cut short", "The table announces a tensor more than it holds.", at(8, u32(3)))
    tab("table-short", "cut short", "A table of 12 bytes.", lambda raw: raw[:12])
    tab("table-trailing", "follow the table", "A byte after the last pipeline.", lambda raw: raw + b"\0")
    tab("cells-beyond-blocks", "more than the blocks", "513 cells in two blocks.", at(T_PART + 16, u64(513)))
    tab("cells-huge", "more than the blocks", "2^63 cells.", at(T_PART + 16, u64(1 << 63)))
    tab("layer-part", "no part", "A layer of part 1, which is not there.", at(T_LAYER, u32(1)))
    tab("tensor-layer", "no layer", "A tensor of layer 1, which is not there.", at(T_TENSOR, u32(1)))
    tab("tensor-twice", "two tensors", "Two K of one layer.", at(T_TENSOR + 64 + 4, u8(0)))
    tab("tensor-pipeline", "no pipeline", "A tensor of pipeline 1, which is not there.", at(T_TENSOR + 6, u16(1)))
    tab("tensor-no-heads", "make no tensor", "A tensor of no heads.", at(T_TENSOR + 16, u64(0)))
    tab("tensor-overflow", "make no tensor", "2^40 heads of 2^40 values.", at(T_TENSOR + 16, u64(1 << 40, 1 << 40)))
    tab("tensor-row", "make no tensor", "A row of one byte more than 2^26.",
        lambda raw: patch(patch(raw, T_TENSOR + 16, u64(1, (1 << 26) + 1)), T_TENSOR + 5, u8(U8)))
    tab("tensor-rows", "make no tensor", "Five rows of 2^24 bytes in a block: more than 2^26.",
        lambda raw: patch(patch(raw, T_TENSOR + 16, u64(1, 1 << 24, 1 << 24, 1 << 24, 1, 5 << 24)), T_TENSOR + 5, u8(U8)))
    tab("tensor-block", "make no tensor", "Rows of 8 values in blocks of 32.", at(T_TENSOR + 5, u8(Q8_0)))
    tab("region-beyond", "beyond", "The source region is one byte too short.", at(T_TENSOR + 56, u64(79)))
    tab("region-stride", "beyond", "The last cell lies beyond the source region.", at(T_TENSOR + 32, u64(17)))
    tab("region-overlap", "beyond", "Cells overlap in the source region.", at(T_TENSOR + 32, u64(15)))
    tab("region-interleaved", "beyond", "Heads interleave with cells, and no two values share a byte.",
        lambda raw: patch(raw, T_TENSOR + 16, u64(2, 1, 4, 6, 2, 24)))
    tab("region-heads", "beyond", "A head stride of blocks that lie across heads.",
        lambda raw: patch(patch(raw, T_TENSOR + 5, u8(Q8_0)), T_TENSOR + 16, u64(2, 16, 34, 34, 34, 170)))
    tab("region-large", "beyond", "A source region of more than 2^48 bytes.", at(T_TENSOR + 56, u64(2**48 + 1)))

    @good("region-one-step", "Strides of one cell, one head and one value, which nobody looks at.")
    def _():
        return Cache([Part([0])], [(0, 0, 0, 0)], [Tensor(0, 0, F16, 1, 1, source=(1, 2**64 - 1, 0))]).file()

    def takes(name, sentence, number, recipe, dtype, heads, dim):
        """A tensor of no cells that a stage does not take."""
        stages = stored_stage(number, recipe), STORE
        bad("tensor-" + name, {5: "finite", 8: "quant", 9: "outlier", 10: "lowrank", 17: "basis"}[number], sentence)(
            lambda: Cache([Part([])], [(0, 0, 0, 0)], [Tensor(0, 0, dtype, heads, dim)], pipelines=(stages,)).file())
    takes("finite", "i8 by the stage finite.", 5, "", I8, 2, 4)
    takes("quant", "q8_0 by the stage quant.", 8, "kivi:bits=4", Q8_0, 1, 32)
    takes("basis", "Heads of 1025 channels by the stage basis.", 17, "", F16, 1, 1025)
    takes("lowrank", "Rows of 4097 channels by the stage lowrank, over all heads.", 10, "r=4:layer", F16, 17, 241)
    takes("outlier", "Rows of 65 537 channels by the stage outlier.", 9, "0.01", F16, 1, 65537)
    good("saliency-codes", "A tensor of q8_0 by the stage saliency, which takes any dtype, of no cells.")(
        lambda: Cache([Part([])], [(0, 0, 0, 0)], [Tensor(0, 0, Q8_0, 1, 32)], pipelines=((saliency("0.5"), STORE),)).file())

    def layer(name, words, sentence, *roles):
        case(("bad-" if words else "good-") + "layer-" + name, sentence, words)(
            lambda: Cache([Part([0])], [(0, 0, 0, 0), (0, 1, 0, 0)], [Tensor(0, 0), *(Tensor(1, role) for role in roles)]).file())
    layer("none", "no tensor", "A layer without a tensor.")
    layer("key-state", "beside", "A layer of K and S.", 0, 4)
    layer("value-hidden", "beside", "A layer of V and hidden states.", 1, 6)
    layer("key-latent", "two tensors", "A layer of K and a latent.", 0, 2)
    layer("latent-value", "beside", "A layer of a latent and V.", 2, 1)
    layer("companions", "two tensors", "A layer of queries and hidden states.", 5, 6)
    layer("convolution", "", "A layer of R alone.", 3)
    layer("recurrence", "", "A layer of S alone.", 4)
    layer("late-key", "", "A layer whose V stands before K.", 1, 0)
    tab("region-size", "region", "The source region of an 80-byte tensor is 2^47 bytes long.",
        at(T_TENSOR + 56, u64(1 << 47)))
    tab("pipeline-empty", "stages", "A pipeline of no stages.", at(T_PIPELINE, u8(0)))
    tab("pipeline-long", "stages", "A pipeline of 19 stages.", at(T_PIPELINE, u8(19)))
    tab("pipeline-cut", "cut short", "Arguments of a stage reach beyond the table.", at(T_PIPELINE + 3, u8(200)))
    tab("pipeline-terminal", "terminal", "Two terminal stages in a row.",
        lambda raw: raw[:T_PIPELINE] + u8(2) + (u16(1) + u8(0)) * 2)
    tab("pipelines", "too many pipelines", "1025 pipelines.",
        lambda raw: patch(raw, 12, u32(1025)) + raw[T_PIPELINE:] * 1024)

    def arguments(name, sentence, number, value):
        tab("arguments-" + name, "malformed", sentence,
            lambda raw: raw[:T_PIPELINE] + u8(1) + u16(number) + u8(len(value)) + value)
    arguments("range", "zstd:level=99.", 2, varint(99))
    arguments("none", "zstd without its level.", 2, b"")
    arguments("more", "A byte follows zstd's level.", 2, b"\1\0")
    arguments("varint", "A level in two bytes where one is enough.", 2, b"\x81\0")
    arguments("word", "quant with scheme 4.", 8, u8(4, 4, 64, 2, 0, 0))
    arguments("flag", "quant with a flag of 2.", 8, u8(0, 4, 64, 2, 2, 0))
    arguments("real-cut", "outlier with four bytes of a share.", 9, bytes(4))
    arguments("real-nan", "outlier with a share that is no number.", 9, f64(math.nan))
    arguments("real-range", "outlier with a share of 0.6.", 9, f64(0.6))
    arguments("exact", "lowrank with its argument exact, which is for encoders alone.", 10, b"\2\0\0\1")
    bad("arguments-step", "no step", "code with a step of 0.", "read")(
        table(lambda raw: raw[:T_PIPELINE] + u8(1) + u16(19) + u8(9) + f64(0) + u8(32)))
    unsupported("stage", "stage 99", "A pipeline with stage 99: all but the rows of its tensors can be read.", "read")(
        table(at(T_PIPELINE + 1, u16(99))))
    def by_unknown(c):
        c.pipelines = (c.pipelines[0], ((99, b"whatever"), STORE, (99, b"")))
        c.tensors[0].pipeline = 1
        f = c.file()
        f.refused = {i for i in range(len(c.tensors)) if i == 0 or any(x[2] == 0 for x in c.same.get((i, 0), ()))}
        return f
    unsupported("stage-one", "stage 99", "K with stage 99 twice in its pipeline: V can be read.", "read")(lambda: by_unknown(small()))
    @unsupported("stage-middle", "stage 99", "K by finite, stage 99 and store, whose section has its place.", "read")
    def _():
        f = by_unknown(small())
        f.of(BLOCK).sections = [Section(RAW, b"".join(small().tensors[0].rows), stage=2)]
        return f
    @unsupported("stage-sections", "byte coder 9", "K with stage 99, whose sections have types and a byte coder that no stage of today has.", "read")
    def _():
        f = by_unknown(small())
        f.of(BLOCK).sections = [Section(23, b"later", stage=0), Section(31, b"later", 9, 0, 1, stored=b"later")]
        f.records.insert(f.records.index(f.of(BLOCK, 0)), Record(SIDE, [Section(30, b"side", stage=0)], 0, 0))
        return f
    unsupported("stage-same", "stage 99", "K of a window with stage 99, and snapshots, some of whose rows are those of this K.", "read")(
        lambda: by_unknown(repeated()))
    unsupported("stage-experiment", "an experiment", "A pipeline with stage 32768, the first of experiments.", "read")(
        table(at(T_PIPELINE + 1, u16(32768))))
    unsupported("stage-private", "private", "A pipeline with stage 49152, the first private one.", "read")(
        table(at(T_PIPELINE + 1, u16(49152))))

    @good("table-longer", "Entries of parts, layers and tensors are longer than this version knows.")
    def _():
        c = small()
        c.more = 8, 4, 12
        return c.file()
    tab("table-shorter", "too short", "Entries of tensors are announced with 56 bytes.", at(24, u16(56)))

    def rotated_file(rotations, heads=2, dim=4):
        c = Cache([Part([0, 1])], [(0, 0, 0, 0)], [Tensor(0, 0, F16, heads, dim, rotation=1), Tensor(0, 1, F16, heads, dim)])
        c.rotations = rotations
        return c.file()
    good("rotation", "K with a rotation that no stage of its pipeline asks for.")(lambda: rotated_file([(2, [1.0, 0.125])]))
    good("rotation-profile", "The same with angles of a profile, which the rows do not need.")(lambda: rotated_file([(1, 2)]))
    for name, sentence, rotations in (("pairing", "A pairing of 3.", [(3, [0.5])]), ("none", "No pairs.", [(1, [])]),
                                      ("pairs", "Three pairs for heads of four channels.", [(1, [0.5] * 3)]),
                                      ("angle", "An angle that is no number.", [(1, [math.nan])]),
                                      ("angle-over", "An angle above 1.", [(1, [1.5])])):
        bad("rotation-" + name, {"pairs": "fewer channels", "angle": "angle", "angle-over": "angle"}.get(name, "out of range"),
            sentence)(lambda rotations=rotations: rotated_file(rotations))
    bad("rotation-missing", "no rotation", "K has rotation 1, and there is none.")(lambda: rotated_file([]))
    tab("rotations", "too many rotations", "1025 rotations.",
        lambda raw: patch(raw, 16, u32(1025)) + (u8(1, 1) + u16(1)) * 1025)
    tab("rotation-cut", "cut short", "A rotation without its angles.", lambda raw: patch(raw, 16, u32(1)) + u8(1, 0) + u16(2))
    unsupported("part-kind", "part kind 5", "A part of kind 5.")(table(at(T_PART, u8(5))))
    unsupported("layer-kind", "layer kind 5", "A layer of kind 5.")(table(at(T_LAYER + 8, u8(5))))
    unsupported("role", "role 7", "A tensor of role 7.")(table(at(T_TENSOR + 4, u8(7))))
    unsupported("dtype", "dtype 7", "A tensor of dtype 7.")(table(at(T_TENSOR + 5, u8(7))))
    unsupported("dtype-kept", "dtype 24", "A tensor of a dtype whose number is kept: mxfp8e4m3.")(table(at(T_TENSOR + 5, u8(24))))
    unsupported("table-reserved", "reserved", "The reserved bytes behind the sizes of entries are set.")(table(at(26, u16(1))))
    unsupported("tensor-reserved", "reserved", "A reserved byte of a tensor is set.")(table(at(T_TENSOR + 15, u8(1))))
    unsupported("part-reserved", "reserved", "A reserved byte of a part is set.")(table(at(T_PART + 1, u8(1))))
    unsupported("part-reserved-word", "reserved", "The reserved word of a part is set.")(
        table(at(T_PART + 12, u32(1))))
    unsupported("layer-reserved", "reserved", "A reserved byte of a layer is set.")(table(at(T_LAYER + 11, u8(1))))

    @bad("layer-order", "ordered", "A layer of part 1 stands before one of part 0.")
    def _():
        return Cache([Part([0]), Part([0], stream=1)], [(1, 0, 0, 0), (0, 0, 0, 0)],
                     [Tensor(0, 0), Tensor(1, 0)]).file()

    def positions(name, words, sentence, value):
        bad("positions-" + name, words, sentence)(payload(CELLS, lambda raw: value))
    positions("varint", "malformed", "A varint in more bytes than it needs.", b"\0\x85\0")
    positions("empty-run", "malformed", "A run of no positions.", b"\0\0\0\5")
    positions("too-many", "malformed", "A run of six positions for five cells.", b"\0\6")
    positions("cut", "malformed", "Positions of four cells for five.", b"\0\4")
    positions("trailing", "follow", "A run after the last cell.", b"\0\5\0\1")
    positions("overflow", "malformed", "The last position is beyond 63 bits.", svarint(2**63 - 3) + b"\5")
    positions("none", "malformed", "No positions at all.", b"")
    positions("limit", "2^62", "The last position is 2^62.", svarint(2**62 - 4) + b"\5")
    positions("limit-low", "2^62", "The first position is -2^62.", svarint(-2**62) + b"\5")
    good("positions-limits", "Positions next to -2^62 and 2^62.")(
        lambda: Cache([Part([1 - 2**62, 2**62 - 1])], [(0, 0, 0, 0)], [Tensor(0, 0)]).file())

    def words_file(name, message, sentence, value):
        @bad("words-" + name, message, sentence)
        def _():
            f = Cache([Part([0, 1], words=[[1], [2]])], [(0, 0, 0, 0)], [Tensor(0, 0)]).file()
            f.of(CELLS).sections[1].raw = value
            return f
    words_file("cut", "words", "Two words are announced, one follows.", b"\1\1" + u32(1))
    words_file("more", "words", "Three bytes after the last word.", b"\1\1" + u32(1, 2) + bytes(3))
    words_file("count", "words", "A cell of 2^40 words.", varint(1 << 40) + b"\1" + u32(1))
    bad("cells-sections", "CELLS", "WORDS stands before POSITIONS.")(
        lambda: edited(lambda f: f.of(CELLS).sections.insert(0, Section(S_WORDS, b"\0" * 5))))
    bad("tokens-size", "no whole number", "Token ids of 19 bytes.")(payload(TOKENS, lambda raw: raw[:-1]))
    good("tokens-no-ids", "A section TOKENS without ids.")(payload(TOKENS, lambda raw: b""))
    bad("tokens-none", "TOKENS", "A TOKENS record without sections.")(
        lambda: edited(lambda f: f.of(TOKENS).sections.clear() or f))

    def extents(name, words, sentence, value):
        bad("extents-" + name, words, sentence)(payload(SOURCE, lambda raw: value))
    literal = varint(0) + varint(40)
    extents("tensor-twice", "extent", "Tensor 0 occurs twice.", varint(3) + literal + b"\1\1")
    extents("tensor-missing", "every tensor", "Tensor 1 does not occur.", varint(2) + literal + b"\1")
    extents("tensor-unknown", "extent", "Tensor 2 occurs, which is not there.", varint(4) + literal + b"\1\2\3")
    extents("cut", "cut short", "Four extents are announced, three are there.", varint(4) + literal + b"\1\2")
    extents("trailing", "follow", "A byte after the last extent.", varint(3) + literal + b"\1\2\0")
    extents("none", "extents", "No extents.", varint(0))
    extents("count", "cut short", "2^60 extents.", varint(1 << 60) + literal)
    extents("overflow", "overflow", "Two literals of 2^63 bytes.", varint(4) + b"\0" + varint(1 << 63) + b"\1\0" + varint(1 << 63) + b"\2")
    bad("extents-canonical", "longer than the tensor", "The region of a tensor alone is 16 bytes longer than the tensor.")(
        table(at(T_TENSOR + 56, u64(96))))
    extents("empty-literal", "is empty", "A literal extent of no bytes.", varint(3) + b"\0\0\1\2")
    extents("two-literals", "continues", "Two literal extents in a row.", varint(4) + b"\0\1\0\1\1\2")
    extents("literals-missing", "LITERALS", "One literal byte more than LITERALS holds.",
            varint(3) + varint(0) + varint(41) + b"\1\2")
    extents("literals-chunk", "LITERALS", "More literal bytes than one chunk holds, and no second chunk.",
            varint(3) + varint(0) + varint((1 << 22) + 1) + b"\1\2")
    k, v, both = (0, 0, 5, 0, 16, 8, 2), (1, 0, 5, 80, 16, 8, 2), varint(1) + varint(2)
    extents("member-name", "relative path", "A member named ../x.", varint(4) + member(b"../x") + literal + both)
    extents("member-twice", "one name", "Two members of one name.", varint(5) + member(b"x") + literal + varint(1) + member(b"x") + varint(2))
    extents("member-late", "before the first member", "Literal bytes come before the first member.",
            varint(4) + literal + member(b"x") + both)
    extents("member-long", "name of a member", "A member's name of 4096 bytes.", varint(4) + member(b"x" * 4096) + literal + both)
    extents("region-none", "no places", "A region without places.", varint(4) + literal + both + region(8))
    extents("region-outside", "outside", "The last row of V reaches beyond its region.",
            varint(2) + literal + region(160, k, (1, 0, 5, 81, 16, 8, 2)))
    extents("region-overlap", "shares bytes", "K and V by turns, 24 bytes from row to row.",
            varint(2) + literal + region(160, (0, 0, 5, 0, 24, 8, 2), (1, 0, 5, 16, 24, 8, 2)))
    extents("region-size", "larger than", "A region larger than its places and the literal bytes left.",
            varint(2) + literal + region(1 << 40, k, v))
    extents("cell-missing", "every tensor", "The last cell of V is in no place.",
            varint(2) + literal + region(144, k, (1, 0, 4, 80, 16, 8, 2)))
    extents("cell-twice", "every tensor", "Cell 4 of K is in two places.",
            varint(2) + literal + region(176, k, v, (0, 4, 1, 160, 16, 8, 2)))
    extents("member-utf8", "relative path", "A member's name that is not UTF-8.", varint(4) + member(b"\xff") + literal + both)
    extents("region-interleaved", "outside", "Heads interleave with cells, and no two values share a byte.",
            varint(2) + literal + region(140, (0, 0, 5, 0, 12, 16, 2), v))
    extents("place-none", "outside", "A place of no cells.", varint(2) + literal + region(160, k, v, (1, 0, 0, 0, 16, 8, 2)))

    def placed(name, sentence, *strides):
        """K lies in a place, and TABLE has a row for where it lies as well."""
        @bad("extents-place-" + name, "canonical", sentence)
        def _():
            f = sourced(interleaved).file()
            table = f.of(TABLE).sections[0]
            table.raw = patch(table.raw, T_TENSOR + 32, u64(*strides))
            return f
    placed("strides", "K lies in a place, and its strides in TABLE are those.", 40, 8, 2, 200)
    placed("size", "K lies in a place, and TABLE gives it a region of 200 bytes.", 16, 8, 2, 200)

    @bad("extents-place-heads", "outside", "A place of blocks across heads with a head stride.")
    def _():
        c = Cache([Part([0, 1])], [(0, 0, 0, 0)], [Tensor(0, 0, Q8_0, 2, 16)])
        c.source = lambda: (varint(1) + varint(2) + varint(68) + varint(1) + b"".join(map(varint, (0, 0, 2, 0, 34, 17, 34))), b"",
                            b"".join(c.tensors[0].rows))
        f = c.file()
        f.of(SOURCE).sections.pop()
        return f

    def without_cells(entries):
        c = Cache([Part([])], [(0, 0, 0, 0)], [Tensor(0, 0)])
        c.source = lambda: (varint(1 + len(entries)) + varint(0) + varint(3) + b"".join(map(varint, entries)), b"end", b"end")
        return c.file()
    good("extents-without-cells", "A tensor without cells has a region alone.")(lambda: without_cells([1]))
    bad("extents-without-cells-twice", "every tensor", "A tensor without cells has two regions alone.")(lambda: without_cells([1, 1]))
    bad("extents-without-cells-none", "every tensor", "A tensor without cells has no region.")(lambda: without_cells([]))

    @bad("literals-first", "LITERALS", "The literal bytes stand in chunk 1, and chunk 0 has none.")
    def _():
        f = small().file()
        f.records.insert(f.records.index(f.of(SOURCE)) + 1, Record(SOURCE, [f.of(SOURCE).sections.pop()], number=1))
        return f
    good("source-bytes", "source.bytes is not the size of the source: no reader need compare it.")(
        lambda: small(meta={"source.bytes": (2, u64(7))}).file())
    bad("source-order", "out of order", "SOURCE begins with chunk 1.")(
        lambda: edited(lambda f: setattr(f.of(SOURCE), "number", 1)))
    bad("source-empty-chunk", "chunk 1", "A SOURCE chunk 1 without sections.")(
        lambda: edited(lambda f: f.records.insert(f.records.index(f.of(SOURCE)) + 1, Record(SOURCE, number=1))))
    bad("source-no-extents", "EXTENTS", "SOURCE without EXTENTS.")(
        lambda: edited(lambda f: f.of(SOURCE).sections.pop(0) and f))
    bad("source-literals-stage", "LITERALS", "LITERALS claims a stage.")(
        lambda: edited(lambda f: setattr(f.of(SOURCE).sections[1], "stage", 0)))
    @bad("literals-long", "LITERALS", "4 194 305 literal bytes in one chunk.")
    def _():
        f = small().file()
        extents, literals = f.of(SOURCE).sections
        extents.raw = varint(3) + varint(0) + varint((1 << 22) + 1) + b"\1\2"
        literals.raw, literals.coder = bytes((1 << 22) + 1), 1
        return f
    bad("literals-frame", "zstd", "The LITERALS section's zstd frame is broken.", "read")(
        lambda: edited(lambda f: f.of(SOURCE).sections[1].__dict__.update(coder=1, stored=b"broken")))


def block_files():
    def block(name, words, sentence, change, n=0, where="read", **options):
        def make():
            f = small(**options).file()
            change(f.of(BLOCK, n))
            return f
        bad("block-" + name, words, sentence, where)(make)

    planes_of = {"pipelines": ((ZSTD,),)}
    block("size", "RAW", "RAW holds a row less.", lambda r: setattr(r.sections[0], "raw", r.sections[0].raw[:-16]))
    block("section", "RAW", "A PLANE section where store keeps RAW.", lambda r: setattr(r.sections[0], "kind", PLANE))
    block("two-sections", "RAW", "Two RAW sections.", lambda r: r.sections.append(r.sections[0]))
    block("none", "RAW", "No sections at all.", lambda r: r.sections.clear())
    block("stage", "no stage", "RAW claims stage 1 of a pipeline of one.", lambda r: setattr(r.sections[0], "stage", 1))
    block("stray", "stage", "A section that belongs to no stage.",
          lambda r: r.sections.insert(0, Section(S_TOKENS, b"")))
    block("raw-index", "RAW", "RAW is number 1.", lambda r: setattr(r.sections[0], "index", 1))
    block("plane-missing", "PLANE", "One of two planes is missing.", lambda r: r.sections.pop(), **planes_of)
    block("plane-order", "PLANE", "The planes stand in the wrong order.", lambda r: r.sections.reverse(), **planes_of)
    block("plane-extra", "sections", "A third plane for f16.",
          lambda r: r.sections.append(Section(PLANE, b"", stage=0, index=2)), **planes_of)
    block("plane-size", "PLANE", "A plane is a byte short.",
          lambda r: setattr(r.sections[1], "raw", r.sections[1].raw[:-1]), **planes_of)
    block("plane-frame", "zstd", "A plane's zstd frame is broken.",
          lambda r: setattr(r.sections[1], "stored", b"broken"), **planes_of)
    block("plane-window", "window over 64 MiB", "A plane's zstd frame has a window of 72 MiB.",
          lambda r: r.sections[1].__dict__.update(stored=b"\x28\xb5\x2f\xfd" + u8(0, 16 << 3 | 1) +
                                                  (40 << 3 | 1).to_bytes(3, "little") + r.sections[1].raw), **planes_of)
    block("unknown", "sections", "A section of type 31 that readers may not skip.",
          lambda r: r.sections.append(Section(31, b"later", stage=0)), **planes_of)
    unsupported("block-coder", "byte coder 9", "A block's byte coder is 9: its rows cannot be read, all else can.", "read")(
        lambda: edited(lambda f: f.refused.add(0) or f.of(BLOCK).sections[0].__dict__.update(coder=9, stored=f.of(BLOCK).sections[0].raw)))
    block("check", "checksum mismatch", "One bit of V's rows flipped.",
          lambda r: r.late_patches.append((50, u8(r.bytes()[50] ^ 1))), n=1)
    block("digest", "digest", "The record's own check is right, but the digest of the rows is that of others.",
          lambda r: setattr(r, "digest", r.digest ^ 1), n=1, where="check")
    block("row", "digest", "A bit of V's last row differs, and the record's own check is right: the digest is that of the rows before.",
          lambda r: setattr(r.sections[0], "raw", r.sections[0].raw[:-1] + u8(r.sections[0].raw[-1] ^ 1)), n=1, where="check")

    def same(name, words, sentence, number, entries, where="read", change=None):
        @bad("same-" + name, words, sentence, where)
        def _():
            c = repeated()
            c.same[number, 0] = entries
            f = c.file()
            if change:
                change(f.of(BLOCK, number))
            return f
    same("reference", "references themselves", "Rows that the other block itself refers to elsewhere.", 4,
         [(0, 1, 2, 0, 1)])
    same("forward", "out of range", "Rows of a later tensor.", 2, [(0, 2, 4, 0, 0)])
    same("self", "out of range", "Rows of the tensor itself.", 2, [(0, 1, 2, 0, 1)])
    same("unknown", "out of range", "Rows of tensor 6, which is not there.", 2, [(0, 2, 6, 0, 0)])
    same("no-block", "not there", "Rows of block 1, which is not there.", 2, [(0, 2, 0, 1, 0)])
    same("no-row", "not there", "Rows 2-3 of three rows.", 2, [(0, 2, 0, 0, 2)])
    same("row", "out of range", "Row 3 of three rows.", 2, [(3, 1, 0, 0, 0)])
    same("count", "out of range", "No rows.", 2, [(0, 0, 0, 0, 1)])
    same("overflow", "out of range", "2^32 - 1 rows.", 2, [(1, NONE, 0, 0, 1)])
    same("overlap", "out of range", "Two entries for one row.", 2, [(0, 2, 0, 0, 1), (1, 1, 0, 0, 2)])
    same("descending", "out of range", "Entries in descending order.", 4, [(1, 1, 2, 0, 2), (0, 1, 0, 0, 2)])
    same("cut", "whole number of entries", "An entry of 19 bytes.", 2, [(0, 2, 0, 0, 1)],
         change=lambda r: setattr(r.sections[0], "raw", r.sections[0].raw[:-1]))
    same("empty", "whole number of entries", "A SAME section without entries.", 2, [(0, 2, 0, 0, 1)],
         change=lambda r: setattr(r.sections[0], "raw", b""))
    same("nothing-left", "no rows are left", "RAW follows although SAME names all rows.", 4,
         [(0, 1, 0, 0, 2), (1, 1, 2, 0, 2)], change=lambda r: r.sections.append(Section(RAW, b"", stage=0)))
    same("other-rows", "digest", "Rows of the right shape, but not the ones that were packed.", 2, [(0, 2, 0, 0, 0)],
         where="check")

    def other_shape(name, sentence, *shape):
        @bad("same-" + name, "not there", sentence, "read")
        def _():
            rows = dtype_rows(1, 16)
            c = Cache([Part([0], kind=1), Part([0], kind=3)], [(0, 0, 1, 0), (1, 0, 1, 0)],
                      [Tensor(0, 0, rows=rows), Tensor(1, 0, *shape, rows=rows)])
            c.same = {(1, 0): [(0, 1, 0, 0, 0)]}
            return c.file()
    other_shape("dtype", "Rows of another dtype.", BF16)
    other_shape("heads", "Rows of four heads of 2 values for two of 4.", F16, 4, 2)
    other_shape("dim", "Rows of one head of 8 values for two of 4.", F16, 1, 8)


def turning(turn, means, count):
    """Rows of bf16 whose means turn as the model says."""
    kind, period, first, pairs, angle, ratio = turn
    rows = []
    for row in range(count):
        m = list(means)
        for head in range(0, len(means), period):
            for i in range(pairs):
                a = head + first + (i if kind == 1 else 2 * i)
                b = a + (pairs if kind == 1 else 1)
                w = row * angle * ratio**i
                m[a], m[b] = (means[a] * math.cos(w) - means[b] * math.sin(w),
                              means[b] * math.cos(w) + means[a] * math.sin(w))
        rows.append(b"".join(value_bytes(BF16, x + ((5 * row + 3 * k) % 7 - 3) / 4) for k, x in enumerate(m)))
    return rows


MEANS = [4, -6, 0.5, 0, 30, -1, 2, -9]
SMALL = Model([127, 126, 125, 127, 128, 120, 127, 127], [16, -24, 3, 0, 120, -8, 8, -36])


def coded(tensors, coders, pipeline, count=5):
    """A file with a layer for each tensor, made by its coder."""
    layers = [(0, i, 0, 0) for i in range(len(tensors))]
    c = Cache([Part(list(range(count)))], layers, tensors, pipelines=((pipeline,),))
    c.coded = dict(enumerate(coders))
    return c.file()


def split_by(**options):
    return lambda t, rows: Split(t, rows, **options).sections()


def fast_by(**options):
    return lambda t, rows: Fast(t, rows, **options).sections()


def stage_files():
    good("dtypes-split", "A layer of each dtype by split, in the flat model.")(
        lambda: coded([Tensor(i, 0, d, 2, 32, rows=dtype_rows(3, 64 // SIZES[d][0] * SIZES[d][1]))
                       for i, d in enumerate(SIZES)], [], SPLIT, 3))
    good("dtypes-fast", "A layer of each dtype by fast, RAW but for f32, f16 and bf16.")(
        lambda: coded([Tensor(i, 0, d, 2, 32, rows=dtype_rows(3, 64 // SIZES[d][0] * SIZES[d][1]))
                       for i, d in enumerate(SIZES)], [], FAST, 3))

    @good("split-raw", "split keeps rows as RAW where it gains nothing.")
    def _():
        return coded([Tensor(0, 0, BF16)], [lambda t, rows: [Section(RAW, b"".join(rows), stage=0)]], SPLIT)

    @good("split-models", "Channel models of float dtypes: means of 0 to 30 spreads, contexts of all kinds.")
    def _():
        kinds = (F32, F16, BF16)
        return coded([Tensor(i, 0, d, rows=near(d, MEANS, 5)) for i, d in enumerate(kinds)],
                     [split_by(model=SMALL)] * len(kinds), SPLIT)

    @good("split-models-8-bit", "Channel models of f8e4m3 and f8e5m2 over all bytes.")
    def _():
        rows = [bytes(range(i, 256, 4)) for i in range(4)]
        model = Model([127 + k % 9 - 4 for k in range(64)], [5 * k - 120 if k < 48 else 0 for k in range(64)])
        return coded([Tensor(i, 0, d, 1, 64, rows=rows) for i, d in enumerate((F8E4M3, F8E5M2))],
                     [split_by(model=model)] * 2, SPLIT, 4)

    @good("split-models-codes", "Code models: means below 0 and of every width, contexts from 0 to 7.")
    def _():
        kinds, coders, tensors = (U8, I8, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL), [], []
        for i, d in enumerate(kinds):
            t = Tensor(i, 0, d, 1, 32)
            t.fill(3, 90 + i)
            bits = WORDS[d][1]
            tensors.append(t)
            coders.append(split_by(model=Model([115 + 2 * bits + k % 11 for k in range(32)],
                                               [(-1)**k * k * 2**bits // 64 for k in range(32)], middle=130)))
        return coded(tensors, coders, SPLIT, 3)

    @good("split-extremes", "Spreads of 1 and 253, means of -128, 127 and one spread, and biases beyond what f16 holds.")
    def _():
        model = Model([1, 253, 1, 253, 140, 200, 127, 90], [-128, 127, 127, -128, 127, -128, 4, -4], j=0, k=0)
        return coded([Tensor(i, 0, d) for i, d in enumerate((F32, F16, BF16))], [split_by(model=model)] * 3, SPLIT)

    for name, kind, turn in (("halves", 1, (1, 4, 0, 2, 1.0, 0.5)), ("interleaved", 2, (2, 4, 0, 2, 4.0, 1.0)),
                             ("part", 1, (1, 8, 2, 2, 0.25, 0.125))):
        good("split-turn-" + name, {"halves": "Means that turn, d with d + pairs, in two heads.",
                                    "interleaved": "Means that turn, 2i with 2i + 1, by the largest angle.",
                                    "part": "Means that turn in the middle of a head only."}[name])(
            lambda turn=turn: coded([Tensor(0, 0, BF16, rows=turning(turn, MEANS, 20))],
                                    [split_by(model=Model(SMALL.spreads, SMALL.means, turn))], SPLIT, 20))
    good("split-lanes", "1, 2, 4, 8, 16 and 32 lanes, rows shorter and longer than those.")(
        lambda: coded([Tensor(i, 0, BF16, 1, 11, rows=near(BF16, (MEANS * 2)[:11], 5)) for i in range(6)],
                      [split_by(lanes=i, per=3) for i in range(6)], SPLIT))
    good("split-table-bits", "Tables of 2^8, 2^9, 2^10 and 2^11 slots.")(
        lambda: coded([Tensor(i, 0, BF16, rows=near(BF16, MEANS, 5)) for i in range(4)],
                      [split_by(bits=8 + i) for i in range(4)], SPLIT))
    good("split-streams", "Streams of one row, of two and one left, and of all.")(
        lambda: coded([Tensor(i, 0, BF16, rows=near(BF16, MEANS, 5)) for i in range(3)],
                      [split_by(per=i, model=SMALL) for i in (1, 2, 5)], SPLIT))
    good("split-contexts", "Contexts without a table: they use the nearest below, or else the first.")(
        lambda: coded([Tensor(i, 0, BF16, rows=near(BF16, MEANS, 5)) for i in range(4)],
                      [split_by(tables=mask, model=SMALL) for mask in (1, 0x80, 0x48, 0xff)], SPLIT))
    good("split-zstd-planes", "Scales and low bits that are zstd frames.")(
        lambda: coded([Tensor(0, 0, F32, 2, 32, rows=dtype_rows(9, 256)),
                       Tensor(1, 0, Q8_0, 2, 32, rows=dtype_rows(9, 68)),
                       Tensor(2, 0, F16, 2, 32, rows=dtype_rows(9, 128))], [split_by(zstd=1)] * 3, SPLIT, 9))
    good("split-one-value", "One value.")(
        lambda: coded([Tensor(0, 0, BF16, 1, 1, rows=[b"\x80\x3f"])], [], SPLIT, 1))
    good("split-one-symbol", "Equal values: one symbol takes all slots but one.")(
        lambda: coded([Tensor(0, 0, BF16, 2, 16, rows=[b"\x80\x3f" * 32] * 9)], [], SPLIT, 9))

    good("fast-widths", "Codes of 1 to 7 bits.")(
        lambda: coded([Tensor(i, 0, BF16, rows=near(BF16, MEANS, 5)) for i in range(7)],
                      [fast_by(width=i + 1) for i in range(7)], FAST))
    good("fast-widths-16", "Codes of 1 to 7 bits for f16, whose codes have three bits of mantissa.")(
        lambda: coded([Tensor(i, 0, F16, rows=near(F16, MEANS, 5)) for i in range(7)],
                      [fast_by(width=i + 1) for i in range(7)], FAST))
    good("fast-biases", "Biases of 0 and 255, codes that wrap around.")(
        lambda: coded([Tensor(0, 0, BF16, rows=near(BF16, MEANS, 5))],
                      [fast_by(bias=[0, 255, 1, 254, 127, 128, 120, 130])], FAST))

    @good("fast-escapes", "Escapes at the first and last value, far apart, next to each other, and some without need.")
    def _():
        rows = [bytearray(b"\x80\x3f" * 300) for _ in range(4)]
        for row, k in ((0, 0), (0, 1), (0, 257), (3, 299)):
            rows[row][2 * k:2 * k + 2] = b"\x80\xff"
        return coded([Tensor(0, 0, BF16, 3, 100, rows=[bytes(r) for r in rows])],
                     [fast_by(width=1, bias=[127] * 300, needless=(2, 300, 301))], FAST, 4)
    good("fast-zstd", "Planes and codes that are zstd frames.")(
        lambda: coded([Tensor(0, 0, F32, 2, 32, rows=dtype_rows(9, 256)),
                       Tensor(1, 0, F16, 2, 32, rows=dtype_rows(9, 128))], [fast_by(zstd=1)] * 2, FAST, 9))

    def broken(stage, name, words, sentence, change=None, sections=None, dtype=BF16, means=MEANS, **options):
        """A file with K that change(coder) or sections(list) spoil."""
        def code(t, rows):
            x = (Split if stage == SPLIT else Fast)(t, rows, **options)
            if change:
                change(x)
            out = x.sections()
            if sections:
                out = sections(out) or out
            return out

        @bad(("split-" if stage == SPLIT else "fast-") + name, words, sentence, "read")
        def _():
            rows = near(dtype, means, 5) if dtype in (F32, F16, BF16) else None
            return coded([Tensor(0, 0, dtype, 1, 32 if SIZES[dtype][0] > 1 else 8, rows=rows)], [code], stage)

    def split(name, words, sentence, change=None, **options):
        options.setdefault("model", SMALL)
        broken(SPLIT, name, words, sentence, change, per=options.pop("per", 3), **options)

    def with_sections(change):
        return {"sections": change}

    def entry(i, **values):
        return with_sections(lambda x: x[i].__dict__.update(values))

    def raw(i, change):
        return with_sections(lambda x: setattr(x[i], "raw", change(x[i].raw)))

    def attribute(**values):
        return lambda x: x.__dict__.update(values)

    other_raw = [Section(RAW, bytes(80), stage=0, index=1)]
    # sections: PARAMS, CODES, PLANE for bf16; PLANE, PLANE, PARAMS, CODES, PLANE for f32
    split("no-codes", "CODES", "CODES is missing.", **with_sections(lambda x: x.pop(1) and None))
    split("no-low", "PLANE", "The low bits are missing.", **with_sections(lambda x: x.pop() and None))
    split("no-plane", "PLANE", "The first of the lower bytes of f32 is missing.", dtype=F32,
          **with_sections(lambda x: x.pop(0) and None))
    split("no-scales", "PLANE", "The scales of q8_0 are missing.", dtype=Q8_0, model=None,
          **with_sections(lambda x: x[2:]))
    split("extra-plane", "more than are due", "A plane after the low bits.",
          **with_sections(lambda x: x.append(Section(PLANE, bytes(40), stage=0, index=1))))
    split("extra-low", "more than are due", "Low bits for u8, which has none.", dtype=U8, model=None,
          **with_sections(lambda x: x.append(Section(PLANE, bytes(40), stage=0))))
    split("extra-escapes", "more than are due", "ESCAPES, which split does not have.",
          **with_sections(lambda x: x.append(Section(ESCAPES, bytes(2), stage=0))))
    split("two-params", "CODES", "PARAMS twice.", **with_sections(lambda x: x.insert(0, x[0])))
    split("two-codes", "PLANE", "CODES twice.", **with_sections(lambda x: x.insert(1, x[1])))
    split("raw-too", "CODES", "RAW before the other sections.",
          **with_sections(lambda x: x.insert(0, Section(RAW, bytes(80), stage=0))))
    split("raw-size", "RAW", "RAW holds a row less.",
          **with_sections(lambda x: [Section(RAW, bytes(64), stage=0)]))
    split("raw-index", "CODES", "RAW is number 1.", **with_sections(lambda x: other_raw))
    split("none", "CODES", "No sections at all.", **with_sections(lambda x: x.clear() or []))
    split("order", "CODES", "PLANE stands before CODES.", **with_sections(lambda x: x.insert(1, x.pop())))
    split("params-late", "PLANE", "PARAMS stands after CODES.", **with_sections(lambda x: x.insert(1, x.pop(0))))
    split("params-index", "PARAMS", "PARAMS is number 1.", **entry(0, index=1))
    split("codes-index", "CODES", "CODES is number 1.", **entry(1, index=1))
    split("low-index", "PLANE", "The low bits of bf16 are plane 1.", **entry(2, index=1))
    split("params-coder", "PARAMS", "PARAMS is a zstd frame.", **entry(0, coder=1))
    split("codes-coder", "CODES", "CODES is a zstd frame.", **entry(1, coder=1))
    split("params-size", "PARAMS", "PARAMS claims a byte more than is stored.",
          **with_sections(lambda x: setattr(x[0], "raw_size", len(x[0].raw) + 1)))
    split("codes-size", "CODES", "CODES claims a byte less than is stored.",
          **with_sections(lambda x: setattr(x[1], "raw_size", len(x[1].raw) - 1)))
    split("low-short", "PLANE", "The low bits are a byte short.", **raw(2, lambda b: b[:-1]))
    split("low-long", "PLANE", "A byte follows the low bits.", **raw(2, lambda b: b + b"\0"))
    split("low-frame", "zstd", "The zstd frame of the low bits is broken.",
          **entry(2, coder=1, stored=b"broken"))
    split("low-filling", "not filled up", "A bit of the last group of low bits is set beyond the last value.",
          **raw(2, lambda b: b[:-1] + u8(b[-1] | 0x80)))
    split("scales-short", "PLANE", "A scale is missing.", dtype=Q8_0, model=None,
          **raw(1, lambda b: b[:-1]))

    # the head of CODES
    split("codes-empty", "CODES", "CODES has no bytes.", **raw(1, lambda b: b""))
    split("codes-cut", "CODES", "CODES has three bytes.", **raw(1, lambda b: b[:3]))
    split("table-bits-7", "CODES", "P is 7.", attribute(bits=7))
    split("table-bits-12", "CODES", "P is 12.", attribute(bits=12))
    split("lanes", "CODES", "64 lanes.", attribute(lanes=6))
    split("no-tables", "CODES", "No context has a table.", attribute(mask=0, tables={}))
    split("no-rows", "CODES", "Streams of no rows.", attribute(per=0))
    split("rows", "CODES", "Streams of six rows in a block of five.", attribute(per=6))
    split("table-padding", "padding", "A padding bit after the tables is set.", attribute(padding=1))

    # tables
    def table(name, words, sentence, put):
        split("table-" + name, words, sentence, lambda x: x.__dict__.update(table=put, mask=1))
    table("level", "level", "A level of 41.", lambda b: b.rice(zigzag(41), 2).put(0, 400))
    table("level-negative", "level", "A level of -1.", lambda b: b.rice(zigzag(-1), 2).put(0, 400))
    table("one-symbol", "do not make", "One symbol: the others have nothing.",
          lambda b: table_bits(b, {5: 40}, 1024))
    table("nothing", "do not make", "No symbol has a frequency.", lambda b: table_bits(b, {}, 1024))
    table("sum", "do not make", "The others' frequencies sum to 2^P.",
          lambda b: table_bits(b, {1: 32, 2: 28, 3: 28, 4: 28, 5: 28}, 1024))
    table("run", "run", "A run to after the last symbol.", lambda b: b.rice(0, 2).rice(1024, 3).put(0, 400))
    table("long-form", "table", "The long form of a number that has a short one.",
          lambda b: b.put(2**24 - 1, 24).put(2, 16).put(0, 9000))
    split("table-cut", "table", "CODES ends within a table.",
          attribute(table=lambda b: b.rice(2, 2).rice(0, 2), sizes=(), states=(), words=(), mask=1))

    # streams
    split("stream-sizes-cut", "CODES", "CODES ends before the states.",
          attribute(states=(), words=()))
    split("stream-beyond", "CODES", "A stream reaches beyond the section.",
          lambda x: setattr(x, "sizes", [len(x.words[0]), len(x.words[1]) + 2]))
    split("stream-huge", "CODES", "A stream of 2^32 - 1 bytes.",
          lambda x: setattr(x, "sizes", [0xffffffff, len(x.words[1])]))
    split("stream-short", "too short", "The last stream lacks a word.",
          lambda x: setattr(x, "words", [x.words[0], x.words[1][:-2]]))
    split("stream-long", "too long", "The last stream has a word more.",
          lambda x: setattr(x, "words", [x.words[0], x.words[1] + b"\1\2"]))
    split("stream-odd", "half a word", "The last stream has a byte more.",
          lambda x: setattr(x, "words", [x.words[0], x.words[1] + b"\1"]))
    split("stream-border", "stream", "The first stream gives a word to the second.",
          lambda x: setattr(x, "sizes", [len(x.words[0]) - 2, len(x.words[1]) + 2]))
    split("codes-tail", "too long", "Four bytes follow the words.", attribute(tail=bytes(4)))
    split("state", "range", "A lane begins at 2^16 - 1.", lambda x: x.states.__setitem__(1, 65535))
    split("end-state", "start state", "A lane begins at another state, so that it does not end at 2^16.",
          lambda x: x.states.__setitem__(2, x.states[2] ^ 1 << 20))
    split("end-word", "stream", "A word is another.", lambda x: setattr(
        x, "words", [u8(x.words[0][0] ^ 16) + x.words[0][1:], x.words[1]]))

    # the channel model
    def params(name, words, sentence, dtype=BF16, **values):
        numbers = {**SMALL.__dict__, **values}
        split("params-" + name, words, sentence, lambda x: setattr(x, "params", Model(**numbers).bits()), dtype=dtype)
    params("turn", "rotation", "Turn 3.", turn=(3, 4, 0, 2, 1.0, 0.5))
    params("turn-codes", "rotation", "Codes of u8 that turn.", U8, turn=(1, 4, 0, 2, 1.0, 0.5))
    for name, sentence, turn in (
            ("period-0", "Heads of no channels.", (1, 0, 0, 2, 1.0, 0.5)),
            ("period", "Heads of 3 channels in rows of 8.", (1, 3, 0, 1, 1.0, 0.5)),
            ("period-16", "Heads of 16 channels in rows of 8.", (1, 16, 0, 1, 1.0, 0.5)),
            ("pairs-0", "No pairs turn.", (1, 4, 0, 0, 1.0, 0.5)),
            ("pairs", "Three pairs in a head of 4.", (1, 4, 0, 3, 1.0, 0.5)),
            ("pairs-huge", "2^31 pairs.", (1, 4, 0, 1 << 31, 1.0, 0.5)),
            ("first", "Two pairs from channel 1 of 4.", (1, 4, 1, 2, 1.0, 0.5)),
            ("first-huge", "A pair from channel 2^32 - 2 on.", (1, 4, 2**32 - 2, 1, 1.0, 0.5)),
            ("angle-0", "An angle of 0.", (1, 4, 0, 2, 0.0, 0.5)),
            ("angle", "An angle of 4.5.", (1, 4, 0, 2, 4.5, 0.5)),
            ("angle-negative", "An angle below 0.", (1, 4, 0, 2, -1.0, 0.5)),
            ("angle-nan", "An angle that is no number.", (1, 4, 0, 2, math.nan, 0.5)),
            ("ratio-0", "A ratio of 0.", (1, 4, 0, 2, 1.0, 0.0)),
            ("ratio", "A ratio of 1.5.", (1, 4, 0, 2, 1.0, 1.5)),
            ("ratio-nan", "A ratio that is no number.", (1, 4, 0, 2, 1.0, math.nan))):
        params(name, "channel model", sentence, turn=turn)
    params("j", "range", "j is 9.", j=9)
    params("k", "range", "k is 9.", k=9)
    params("spread-0", "range", "A spread of 0.", spreads=[127] * 7 + [0])
    params("spread-254", "range", "A spread of 254.", spreads=[254] + [127] * 7)
    params("mean-128", "range", "A mean of 128.", means=[0] * 7 + [128])
    params("mean-negative", "range", "A mean of -129.", means=[-129] + [0] * 7)

    def stored(name, sentence, change, words="channel model"):
        split("params-" + name, words, sentence,
              **raw(0, lambda b: change(b)))
    stored("padding", "The last padding bit is set.", lambda b: b[:-1] + u8(b[-1] | 0x80))
    stored("long", "A byte follows.", lambda b: b + b"\0")
    stored("short", "The last byte is missing.", lambda b: b[:-1])
    stored("empty", "No bytes.", lambda b: b"")
    long_form = Bits().put(0, 2).put(127, 8).put(1, 4).put(2, 4).put(2**24 - 1, 24).put(2, 16).put(0, 7 * 2 + 8 * 3)
    split("params-long-form", "channel model", "A spread in the long form although it has a short one.",
          attribute(params=long_form))

    # fast: PARAMS, PLANE, ESCAPES, CODES for bf16
    def fast(name, words, sentence, change=None, **options):
        broken(FAST, name, words, sentence, change, width=options.pop("width", 2), **options)
    fast("width-0", "PARAMS", "Codes of no bits.", attribute(width=0))
    fast("width-8", "PARAMS", "Codes of 8 bits.", attribute(width=8))
    fast("k", "PARAMS", "k is 9.", attribute(k=9))
    fast("bias-negative", "PARAMS", "A bias of -1.", lambda x: x.bias.__setitem__(7, -1))
    fast("bias", "PARAMS", "A bias of 256.", lambda x: x.bias.__setitem__(0, 256))
    fast("bias-16", "PARAMS", "A bias of 32 for f16.", lambda x: x.bias.__setitem__(0, 32), dtype=F16)
    for name, sentence, change in (
            ("padding", "The last padding bit of PARAMS is set.", lambda b: b[:-1] + u8(b[-1] | 0x80)),
            ("long", "A byte follows the biases.", lambda b: b + b"\0"),
            ("short", "The last byte of PARAMS is missing.", lambda b: b[:-1])):
        fast("params-" + name, "PARAMS", sentence, **raw(0, change))
    fast("params-coder", "PARAMS", "PARAMS is a zstd frame.", **entry(0, coder=1))
    fast("params-size", "PARAMS", "PARAMS claims a byte more than is stored.",
         **with_sections(lambda x: setattr(x[0], "raw_size", len(x[0].raw) + 1)))
    fast("no-params", "PARAMS", "PARAMS is missing.", **with_sections(lambda x: x.pop(0) and None))
    fast("no-low", "PLANE", "The low bytes are missing.", **with_sections(lambda x: x.pop(1) and None))
    fast("no-codes", "CODES", "CODES is missing.", **with_sections(lambda x: x.pop() and None))
    fast("no-plane", "PLANE", "The second of the lower bytes of f32 is missing.", dtype=F32,
         **with_sections(lambda x: x.pop(1) and None))
    fast("order", "more than are due", "CODES stands before ESCAPES.", **with_sections(lambda x: x.insert(2, x.pop())))
    fast("low-index", "PLANE", "The low bytes of bf16 are plane 1.", **entry(1, index=1))
    fast("low-short", "PLANE", "A low byte is missing.", **raw(1, lambda b: b[:-1]))
    fast("codes-short", "CODES", "A byte of the codes is missing.", **raw(3, lambda b: b[:-1]))
    fast("codes-frame", "zstd", "The zstd frame of the codes is broken.",
         **entry(3, coder=1, stored=b"broken"))
    fast("two-codes", "more than are due", "CODES twice.", **with_sections(lambda x: x.append(x[3])))
    fast("escapes-index", "ESCAPES", "ESCAPES is number 1.", **entry(2, index=1))
    fast("escapes-two", "CODES", "ESCAPES twice.", **with_sections(lambda x: x.insert(2, x[2])))
    fast("escapes-empty", "ESCAPES", "ESCAPES without pairs.", **raw(2, lambda b: b""))
    fast("escapes-odd", "ESCAPES", "Half a pair.", **raw(2, lambda b: b + b"\0"))
    fast("escapes-coder", "ESCAPES", "ESCAPES is a zstd frame.", **entry(2, coder=1))
    fast("escapes-size", "ESCAPES", "ESCAPES claims a pair more than is stored.",
         **with_sections(lambda x: setattr(x[2], "raw_size", len(x[2].raw) + 2)))
    fast("escapes-beyond", "escape", "An escape of the value after the last.",
         lambda x: setattr(x, "escapes", u8(39, 7, 0, 7)))
    fast("escapes-far", "escape", "An escape far beyond the block.", lambda x: setattr(x, "escapes", u8(255, 7)))
    fast("codes-filling", "not filled up", "A bit of the last group of codes is set beyond the last value.",
         **raw(3, lambda b: b[:-1] + u8(b[-1] | 0x80)))
    fast("dtype", "RAW", "Codes for u8, which fast keeps as it is.", dtype=U8,
         **with_sections(lambda x: [Section(PARAMS, b"\x13\x78", stage=0), Section(PLANE, bytes(40), stage=0),
                                    Section(CODES, bytes(24), stage=0)]))
    fast("raw-index", "PARAMS", "RAW is number 1.", **with_sections(lambda x: other_raw))
    fast("raw-size", "RAW", "RAW holds a row less.", **with_sections(lambda x: [Section(RAW, bytes(64), stage=0)]))
    fast("raw-too", "PARAMS", "RAW before the other sections.",
         **with_sections(lambda x: x.insert(0, Section(RAW, bytes(80), stage=0))))


# --- lossy stages (codecs/stages/finite/finite.md to merge.md, floats.md, kept.md) ---

MERGED, NORMS, KEPT, MASK, FACTOR_A, FACTOR_B, OUTLIERS = range(6, 13)
MEAN, SINK_ROWS, TAIL_ROWS, HIDDEN = 14, 16, 17, 20
FINITE, DEROPE, CENTER = stored_stage(5), stored_stage(15), stored_stage(16)


def sink(args):
    return stored_stage(6, args)


def tail(args):
    return stored_stage(7, args)


def quant(args):
    return stored_stage(8, args)


def outlier(args):
    return stored_stage(9, args)


def lowrank(args):
    return stored_stage(10, args)


def prune(args):
    return stored_stage(11, args)


def saliency(args):
    return stored_stage(12, args)


def merge(args):
    return stored_stage(13, args)


def project(args):
    return stored_stage(14, args)


def round32(exact):
    """A Fraction rounded once to binary32, to nearest even; None of these here overflows."""
    if exact == 0:
        return 0.0
    size, e = abs(exact), -149
    while size >= Fraction(2)**(e + 24):
        e += 1
    return math.copysign(float(round(size / Fraction(2)**e) * Fraction(2)**e), exact)


def number(dtype, x):
    """binary32 to the dtype, to nearest even; beyond f16's range its greatest finite value."""
    if dtype == F32:
        return struct.pack("<f", x)
    if dtype == F16:
        return struct.pack("<e", max(min(x, 65504.0), -65504.0))
    bits = float_bits(x)
    return u16(bits + 0x7fff + (bits >> 16 & 1) >> 16)


def numbers(dtype, data):
    """All values of some bytes as binary32."""
    if dtype == BF16:
        return [struct.unpack("<f", b"\0\0" + data[i:i + 2])[0] for i in range(0, len(data), 2)]
    size = SIZES[dtype][1]
    return list(struct.unpack(f"<{len(data) // size}{'f' if dtype == F32 else 'e'}", data))


def byte_rows(dtype, matrix):
    return [b"".join(number(dtype, x) for x in row) for row in matrix]


def some(n, salt, low, high):
    """n made-up integers from low to high."""
    data = hashlib.shake_128(u32(salt, n)).digest(2 * n)
    return [low + (data[2 * i] | data[2 * i + 1] << 8) % (high - low + 1) for i in range(n)]


def some_matrix(rows, width, salt, step=0.125):
    values = some(rows * width, salt, -40, 40)
    return [[step * v for v in values[i * width:(i + 1) * width]] for i in range(rows)]


def bits_of(flags):
    out = bytearray(-(-len(flags) // 8))
    for i, flag in enumerate(flags):
        out[i // 8] |= bool(flag) << i % 8
    return bytes(out)


def pack(values, width):
    return bytes(values) if width == 8 else packed(list(values), width)


class Halves:
    """Numbers as floats.md stores them, in the parts that make their bytes: halves times 2^e."""
    def __init__(self, halves, e=0, z=None, w=8, rotated=0, m=0):
        self.halves, self.e, self.w, self.rotated, self.m = halves, e, w, rotated, m
        low, upper = [h & 255 for h in halves], [h >> 8 for h in halves]
        if z is None:
            z = min([(v & -v).bit_length() - 1 if v else 8 for v in low] + [8])
        self.z = z
        if rotated:
            upper = [(v << 1 | v >> 7) & 255 for v in upper]
        codes = [(v - m) % 256 for v in upper]
        self.escapes = b"" if w == 8 else bytes(h >> 8 for h, c in zip(halves, codes) if c >= 2**w - 1)
        self.k = len(self.escapes)
        self.low = pack([v >> z for v in low], 8 - z) if z <= 8 else b""
        if w == 8:
            self.upper = bytes(upper)
        else:
            self.upper = pack([min(c, 2**w - 1) for c in codes], w)

    def values(self):
        return [round32(Fraction(struct.unpack("<e", u16(h))[0]) * Fraction(2)**self.e) for h in self.halves]

    def bytes(self):
        fields = struct.pack("<hBBBI", self.e, self.z, self.w | self.rotated << 7, self.m, self.k)
        return fields + self.low + self.upper + self.escapes


def halves_of(values, **form):
    """Halves of these numbers, rounded to what halves can be, with the exponent that the encoder takes."""
    e = max([math.frexp(v)[1] for v in values if v] or [15]) - 15
    return Halves([struct.unpack("<H", struct.pack("<e", v * 2.0**-e))[0] for v in values], e, **form)


class Quant:
    """What quant reads of one block: made-up codes, steps and minima, and what they decode to. salient: of each
    row the flags of its heads."""
    def __init__(self, scheme, role, bits, rows, heads, dim, g=64, low=2, sym=False, salient=None, salt=0, stage=0,
                 form=None):
        kind = {"kivi": ("tokens", "channels"), "kcvt": ("tokens", "row"), "token": ("channels", "channels"),
                "zip": ("tokens", "row")}[scheme][role]
        if scheme in ("kcvt", "zip"):
            g = max(rows, 1)
        self.rows, self.width, self.stage, self.sections = rows, heads * dim, stage, []
        self.matrix = [[0.0] * self.width for _ in range(rows)]
        if scheme == "zip" and role == 1:
            self.exponent, self.norm = -3, bytes(some(self.width, salt + 9, 0, 40))
            self.sections.append(Section(NORMS, struct.pack("<h", self.exponent) + self.norm, stage=stage))
        for i in range(2 if salient else 1):
            if salient:
                spans = [([t for t in range(rows) if bool(salient[t][h]) == (i == 0)], range(h * dim, h * dim + dim))
                         for h in range(heads)]
            elif kind == "channels" and dim % g:
                spans = [(range(rows), range(h * dim, h * dim + dim)) for h in range(heads)]
            else:
                spans = [(range(rows), range(self.width))]
            if any(len(s[0]) for s in spans):
                self.add(i, spans, kind, (bits, low)[i], g, sym, salt + 3 * i, form or {})
        if scheme == "zip" and role == 1:
            c = [round32(Fraction(8 + b % 8) * Fraction(2)**(self.exponent + b // 8)) for b in self.norm]
            self.matrix = [[f32(x * k) for x, k in zip(row, c)] for row in self.matrix]

    def add(self, i, spans, kind, bits, g, sym, salt, form):
        place = {}  # row, channel: its number among the class's steps
        n = 0
        for rows, channels in spans if kind != "row" else ():
            if kind == "tokens":
                for t in range(len(rows)):
                    for c in range(len(channels)):
                        place[rows[t], channels[c]] = n + t // g * len(channels) + c
                n += -(-len(rows) // g) * len(channels)
            else:
                groups = -(-len(channels) // g)
                for t in range(len(rows)):
                    for c in range(len(channels)):
                        place[rows[t], channels[c]] = n + t * groups + c // g
                n += len(rows) * groups
        if kind == "row":
            n = max(len(rows) for rows, _ in spans)
            place = {(t, c): j for rows, channels in spans for j, t in enumerate(rows) for c in channels}
        steps = Halves([0x3800 + 8 * v for v in some(n, salt + 1, 0, 255)], e=-4, **form)
        lows = Halves([0x3c00 + 4 * v | v % 2 << 15 for v in some(n, salt + 2, 0, 255)], e=-1, **form)
        codes, flat = {}, some(sum(len(r) * len(c) for r, c in spans), salt + 3, 0, 2**bits - 1)
        at = 0
        for rows, channels in spans:
            for t in rows:
                for c in channels:
                    codes[t, c], at = flat[at], at + 1
        step, low = steps.values(), lows.values()
        if sym:
            low = [round32(Fraction(s) * Fraction(1 - 2**bits, 2)) for s in step]
        for (t, c), code in codes.items():
            self.matrix[t][c] = f32(code * step[place[t, c]] + low[place[t, c]])
        self.sections += [Section(PARAMS, steps.bytes() + (b"" if sym else lows.bytes()), stage=self.stage, index=i),
                          Section(CODES, pack(flat, bits), stage=self.stage, index=i)]


def lowrank_of(coefficients, directions, rows, parts, dim, rank):
    """Each an object of Halves: the rows that they make."""
    a, b, out = coefficients.values(), directions.values(), []
    for t in range(rows):
        row = []
        for i in range(parts):
            for c in range(dim):
                y = 0.0
                for k in range(rank):
                    y = round32(Fraction(a[(t * parts + i) * rank + k]) * Fraction(b[(i * rank + k) * dim + c]) +
                                Fraction(y))
                row.append(y)
        out.append(row)
    return out


def raw_rows(dtype, matrix, stage):
    return Section(RAW, b"".join(byte_rows(dtype, matrix)), stage=stage)


def kept_rows(dtype, heads, dim, rows, stage, by=None):
    """kept.md: as split codes them; by: how, RAW where not given."""
    if by is None:
        return [Section(RAW, b"".join(rows), stage=stage)]
    out = Split(Tensor(0, 0, dtype, heads, dim), rows, **by).sections()
    for s in out:
        s.stage = stage
    return out


def lossy(blocks, pipelines, positions=range(5), layers=None, change=None, meta=()):
    """A file of tensors (layer, role, dtype, heads, dim, pipeline), each with the rows it decodes to, its block's
    sections and its side data, after change(file)."""
    tensors = [Tensor(*where[:5], pipeline=where[5] if len(where) > 5 else 0, rows=rows)
               for where, rows, _, _ in blocks]
    c = Cache([Part(list(positions))], layers or [(0, i, 0, 0) for i in range(max(t.layer for t in tensors) + 1)],
              tensors,
              pipelines=pipelines, meta=meta)
    c.coded = {i: (lambda t, rows, mine=sections: mine) for i, (_, _, sections, _) in enumerate(blocks)}
    f = c.file()
    for i, (_, _, _, side) in enumerate(blocks):
        if side:
            f.records.insert(f.records.index(f.of(BLOCK, i)), Record(SIDE, side, i, 0))
    return (change(f) or f) if change else f


def section(f, kind, index=0, tensor=0):
    """A section of a tensor's block or side data, by its type."""
    return [s for r in f.records if r.kind in (BLOCK, SIDE) and r.subject == tensor for s in r.sections
            if (s.kind, s.index) == (kind, index)][0]


def block_of(f, kind=BLOCK, tensor=0):
    return [r for r in f.records if r.kind == kind and r.subject == tensor][0]


def without(kind, index=0, tensor=0):
    def change(f):
        s = section(f, kind, index, tensor)
        for r in f.records:
            r.sections = [x for x in r.sections if x is not s]
        f.records = [r for r in f.records if r.kind != SIDE or r.sections]
    return change


def other_bytes(kind, new, index=0, tensor=0):
    def change(f):
        s = section(f, kind, index, tensor)
        s.raw = new(s.raw)
    return change


def other_entry(kind, **values):
    return lambda f: section(f, kind).__dict__.update(values)


def more(s, tensor=0, at=None, kind=BLOCK):
    def change(f):
        sections = block_of(f, kind, tensor).sections
        sections.insert(len(sections) if at is None else at, s)
    return change


def marks_of(salient):
    """saliency's section for these tokens, if any."""
    return [Section(MASK, bits_of([v for row in salient for v in row]), stage=0)] if salient else []


def quant_file(scheme, role, text, dtype=BF16, rows=5, heads=2, dim=8, change=None, **options):
    """One tensor by quant alone, or after saliency."""
    salient = options.get("salient")
    x = Quant(scheme, role, rows=rows, heads=heads, dim=dim, stage=int(salient is not None), **options)
    line = ((saliency("0.5"),) if salient else ()) + (quant(text),)
    return lossy([((0, role, dtype, heads, dim), byte_rows(dtype, x.matrix), marks_of(salient) + x.sections, [])],
                 (line,), range(rows), change=change)


MARKS = [[1, 0], [0, 0], [1, 1], [0, 1], [1, 0]]  # salient tokens of five rows and two heads


def quant_files():
    @good("quant-bits", "kivi with codes of 1 to 8 bits: K in groups of 2 tokens, the last of one; V of 3 channels.")
    def _():
        blocks, lines = [], []
        for bits in range(1, 9):
            for role, g in ((0, 2), (1, 3)):
                x, dtype = Quant("kivi", role, bits, 5, 2, 8, g=g, salt=10 * bits + role), (F32, F16, BF16)[bits % 3]
                blocks.append(((bits - 1, role, dtype, 2, 8, len(lines)), byte_rows(dtype, x.matrix), x.sections, []))
                lines.append((quant(f"kivi:bits={bits}:g={g}"),))
        return lossy(blocks, lines)

    for scheme in ("kcvt", "zip"):
        @good("quant-" + scheme, f"{scheme}, 4 bits: K and V of one class, and of two, heads of different counts.")
        def _(scheme=scheme):
            blocks, line = [], quant(scheme + ":bits=4")
            for classes, salient in enumerate((None, MARKS)):
                for role in (0, 1):
                    x = Quant(scheme, role, 4, 5, 2, 8, salient=salient, salt=100 + 2 * classes + role, stage=classes)
                    blocks.append(((classes, role, BF16, 2, 8, classes), byte_rows(BF16, x.matrix),
                                   marks_of(salient) + x.sections, []))
            return lossy(blocks, ((line,), (saliency("0.5"), line)))

    good("quant-token", "token: groups of 8 channels, which are whole heads.")(
        lambda: quant_file("token", 0, "token:bits=3:g=8", bits=3, g=8, salt=120))
    good("quant-token-across", "token: a group of 64 channels in heads of 8: one a head.")(
        lambda: quant_file("token", 1, "token:bits=3", bits=3, salt=121))
    good("quant-token-classes", "token, two classes of 5 and 3 bits, groups of 5 and 3 channels.")(
        lambda: quant_file("token", 0, "token:bits=5:g=5:low=3", bits=5, low=3, g=5, salt=122, salient=MARKS))
    good("quant-kivi-classes", "kivi, K, two classes, groups of 2 of a head's own tokens.")(
        lambda: quant_file("kivi", 0, "kivi:bits=6:g=2:low=1", bits=6, low=1, g=2, salt=123, salient=MARKS))
    good("quant-one-class", "A mask that calls every token salient: no sections of class 1.")(
        lambda: quant_file("kivi", 0, "kivi:bits=2", bits=2, salt=124, salient=[[1, 1]] * 5))
    good("quant-other-class", "A mask that calls none salient: no sections of class 0.")(
        lambda: quant_file("kivi", 0, "kivi:bits=2:low=5", bits=2, low=5, salt=125, salient=[[0, 0]] * 5))
    for scheme, role in (("kivi", 0), ("zip", 1)):
        good(f"quant-sym-{scheme}", f"{scheme}, {'KV'[role]}, ranges around 0: no minima.")(
            lambda scheme=scheme, role=role: quant_file(scheme, role, scheme + ":bits=3:sym", bits=3, sym=True,
                                                        salt=126))
    good("quant-many", "70 rows of 3 heads of 5 channels: more than one group of everything.")(
        lambda: quant_file("kivi", 0, "kivi:bits=7", rows=70, heads=3, dim=5, bits=7, salt=127, dtype=F16))

    @good("quant-f16-range", "Numbers beyond the range of f16, and just within.")
    def _():
        steps, lows = Halves([0x7bff, 0x4b80, 0x4c00, 0xcc00, 0x3c00]), Halves([0x7bff, 0x7bff, 0x7bff, 0xfbff, 0xfbff])
        matrix = [[f32(a + b) for a, b in zip(steps.values(), lows.values())]]
        sections = [Section(PARAMS, steps.bytes() + lows.bytes(), stage=0), Section(CODES, pack([1] * 5, 1), stage=0)]
        return lossy([((0, 0, F16, 1, 5), byte_rows(F16, matrix), sections, [])], ((quant("token:bits=1:g=1"),),),
                     range(1))

    @good("quant-nan", "Steps so large that codes from 2 on are infinity less infinity: a NaN that is computed is 7fc00000, 7fc0, 7e00, and "
          "one that finite keeps stays as it is.")
    def _():
        steps, blocks = Halves([0x7bff, 0xfbff, 0x7bff, 0x7bff], e=112), []
        forms = ((F32, ("000080ff", "0000807f", "0000c07f"), "0100a0ff"), (F16, ("fffb", "ff7b", "007e"), "01fd"),
                 (BF16, ("80ff", "807f", "c07f"), "a1ff"))
        for layer, (dtype, (low, high, nan), kept) in enumerate(forms):
            for role, last in ((0, nan), (1, kept)):
                row = bytes.fromhex(low + high + nan + last)
                sections = [Section(PARAMS, steps.bytes(), stage=role), Section(CODES, bytes([1, 0, 2, 255]), stage=role)]
                if role:
                    sections.insert(0, Section(ESCAPES, u32(3) + bytes.fromhex(kept), stage=0))
                blocks.append(((layer, role, dtype, 1, 4, role), [row], sections, []))
        sym = quant("token:bits=8:g=1:sym")
        return lossy(blocks, ((sym,), (FINITE, sym)), range(1))

    @good("quant-residual", "quant after quant, and split's rows of what both missed, in f16.")
    def _():
        x = Quant("kivi", 0, 2, 5, 2, 8, salt=130)
        y = Quant("token", 0, 4, 5, 2, 8, g=4, salt=131, stage=1)
        left = some_matrix(5, 16, 132, 2.0**-9)
        matrix = [[f32(a + f32(b + c)) for a, b, c in zip(*rows)] for rows in zip(x.matrix, y.matrix, left)]
        return lossy([((0, 0, F16, 2, 8), byte_rows(F16, matrix),
                       x.sections + y.sections + kept_rows(F16, 2, 8, byte_rows(F16, left), 2, {}), [])],
                     ((quant("kivi:bits=2"), quant("token:bits=4:g=4"), SPLIT),))

    def broken(name, words, sentence, change, scheme="kivi", role=0, text="kivi:bits=3", **options):
        options.setdefault("bits", 3)
        bad("quant-" + name, words, sentence, "read")(
            lambda: quant_file(scheme, role, text, salt=140, change=change, **options))
    broken("no-params", "PARAMS", "PARAMS is missing.", without(PARAMS))
    broken("no-codes", "CODES", "CODES is missing.", without(CODES))
    broken("params-index", "PARAMS", "PARAMS is number 1.", other_entry(PARAMS, index=1))
    broken("codes-coder", "CODES", "CODES is a zstd frame.", other_entry(CODES, coder=1))
    broken("codes-short", "CODES", "A byte of the codes is missing.", other_bytes(CODES, lambda b: b[:-1]))
    broken("codes-long", "CODES", "A byte follows the codes.", other_bytes(CODES, lambda b: b + b"\0"))
    broken("codes-filling", "not filled up", "A bit of the last group of codes is set beyond the last value.",
           other_bytes(CODES, lambda b: b[:-1] + u8(b[-1] | 0x80)))
    broken("params-short", "cut short", "The minima are missing.",
           other_bytes(PARAMS, lambda b: b[:len(b) // 2]))
    broken("params-long", "PARAMS", "A byte follows the minima.", other_bytes(PARAMS, lambda b: b + b"\0"))
    broken("sym-lows", "PARAMS", "Minima although ranges lie around 0.",
           other_bytes(PARAMS, lambda b: b + b), text="kivi:bits=3:sym", sym=True)
    broken("no-norms", "NORMS", "V of zip without norms.", without(NORMS), "zip", 1, "zip:bits=3")
    broken("k-norms", "PARAMS", "Norms of K.", more(Section(NORMS, bytes(18), stage=0), at=0), "zip", 0, "zip:bits=3")
    broken("norms-short", "NORMS", "A norm is missing.", other_bytes(NORMS, lambda b: b[:-1]), "zip", 1, "zip:bits=3")
    for name, e in (("low", -151), ("high", 101)):
        broken("norms-" + name, "exponent", f"Norms of exponent {e}.",
               other_bytes(NORMS, lambda b, e=e: struct.pack("<h", e) + b[2:]), "zip", 1, "zip:bits=3")
    broken("class-missing", "PARAMS", "The sections of class 1 are missing.",
           lambda f: without(PARAMS, 1)(f) or without(CODES, 1)(f), salient=MARKS)
    broken("class-extra", "more than are due", "Sections of class 1 although no token is of it.",
           more(Section(PARAMS, bytes(9), stage=1, index=1)), salient=[[1, 1]] * 5)
    broken("side", "more than are due", "Side data for quant, which has none.",
           lambda f: f.records.insert(f.records.index(block_of(f)),
                                      Record(SIDE, [Section(MEAN, b"12", stage=0)], 0, 0)))


def floats_files():
    """Every form of halves, as the steps of 40 groups."""
    def steps_file(*forms, change=None):
        """A layer each of K of one row by token, groups of one channel: value = step + 1, the codes being 1."""
        blocks = []
        for i, steps in enumerate(forms):
            n = len(steps.halves)
            matrix = [[f32(s + 1.0) for s in steps.values()]]
            params = Section(PARAMS, steps.bytes() + Halves([0x3c00] * n).bytes(), stage=0)
            if change:
                change(params, len(steps.bytes()))
            blocks.append(((i, 0, F32, 1, n), byte_rows(F32, matrix),
                           [params, Section(CODES, pack([1] * n, 1), stage=0)], []))
        return lossy(blocks, ((quant("token:bits=1:g=1"),),), range(1))

    spread = [0x3000 + 97 * i for i in range(40)]
    signs = [h ^ (i % 3 == 0) << 15 for i, h in enumerate(spread)]
    good("floats-zeros", "Lower bytes that end in 0 to 8 zero bits.")(
        lambda: steps_file(*(Halves([h >> z << z for h in spread], z=z) for z in range(9))))
    good("floats-widths", "Upper bytes in 1 to 8 bits, escapes between.")(
        lambda: steps_file(*(Halves(spread, w=w, m=0x31 * (w < 8)) for w in range(1, 9))))
    good("floats-rotated", "Rotated upper bytes in 1 to 7 bits, both signs, escapes between.")(
        lambda: steps_file(*(Halves(signs, w=w, rotated=1, m=0x61) for w in range(1, 8))))

    good("floats-edges", "Codes beyond 255; the exponents -126, of subnormal numbers, and 112; only escapes.")(
        lambda: steps_file(Halves([0xfa00, 0x0100, 0x0000, 0xfb80], w=3, m=0xfa),
                           Halves([0x0001, 0x0003, 0x83ff, 0x0400, 0x7bff], e=-126),
                           Halves([0x7bff, 0x3c00, 0xfbff], e=112),
                           Halves(spread, w=1, m=0)))

    def broken(name, words, sentence, change, **how):
        @bad("floats-" + name, words, sentence, "read")
        def _():
            x = Halves(spread, **how)
            change(x)
            return steps_file(x)

    def put(**values):
        return lambda x: x.__dict__.update(values)
    broken("exponent-low", "exponent", "The exponent -127.", lambda x: raw_exponent(x, -127))
    broken("exponent-high", "exponent", "The exponent 113.", lambda x: raw_exponent(x, 113))

    def raw_exponent(x, e):
        whole = x.bytes()
        x.bytes = lambda: struct.pack("<h", e) + whole[2:]
    broken("z", "out of range", "z is 9.", put(z=9))
    broken("w-0", "out of range", "w is 0.", lambda x: byte_at(x, 3, 0))
    broken("w-9", "out of range", "w is 9.", lambda x: byte_at(x, 3, 9))

    def byte_at(x, at, value):
        whole = x.bytes()
        x.bytes = lambda: patch(whole, at, u8(value))
    broken("w-8-rotated", "out of range", "w is 8, and bit 7 is set.", lambda x: byte_at(x, 3, 0x88))
    broken("w-8-m", "out of range", "w is 8, m is 1.", lambda x: byte_at(x, 4, 1))
    broken("low-filling", "not filled up", "A filling bit of the lower bytes is set.",
           lambda x: x.__dict__.update(z=4, low=pack([1] * 40, 4)[:-1] + b"\x80"))
    broken("upper-filling", "not filled up", "A filling bit of the upper bytes' codes is set.",
           lambda x: setattr(x, "upper", x.upper[:-1] + u8(x.upper[-1] | 0x80)), w=4, m=0x31)
    broken("escapes-many", "too many escapes", "An escape more than codes ask for.",
           lambda x: x.__dict__.update(escapes=x.escapes + b"1", k=x.k + 1), w=2, m=0x31)
    broken("escapes-few", "too few escapes", "An escape less than codes ask for.",
           lambda x: x.__dict__.update(escapes=x.escapes[:-1], k=x.k - 1), w=2, m=0x31)
    broken("escapes-huge", "out of range", "2^32 - 1 escapes.", put(k=0xffffffff), w=2, m=0x31)
    broken("infinity", "not finite", "A half that is infinite.", lambda x: setattr(x, "upper", x.upper[:-1] + b"\x7c"))
    broken("escape-infinity", "not finite", "An escape that makes a half infinite.",
           lambda x: setattr(x, "escapes", x.escapes[:-1] + b"\x7c"), w=2, m=0x31)

    @bad("floats-cut-codes", "cut short", "PARAMS ends within the codes.", "read")
    def _():
        return steps_file(Halves(spread), change=lambda params, n: setattr(params, "raw", params.raw[:n - 3]))


def ends_files():
    """finite, sink, tail: lossless, before store."""
    plain = [b"".join(number(BF16, 0.5 * ((5 * i + 3 * k) % 9 - 4)) for k in range(8)) for i in range(5)]

    def finite(dtype, places, wild, coder=0, change=None):
        rows = byte_rows(dtype, some_matrix(5, 8, 200))
        size, whole = SIZES[dtype][1], b"".join(rows)
        decoded = whole
        for p, w in zip(places, wild):
            decoded = patch(decoded, p * size, w)
        escapes = Section(ESCAPES, u32(*places) + b"".join(wild), coder, 0)
        decoded = [decoded[i:i + 8 * size] for i in range(0, len(decoded), 8 * size)]
        return lossy([((0, 0, dtype, 2, 4), decoded, ([escapes] if places else []) + [Section(RAW, whole, stage=1)],
                       [])],
                     ((FINITE, STORE),), change=change)
    good("finite", "NaN with a payload, an infinity and 2^50, first, in the middle and last.")(
        lambda: finite(F32, [0, 17, 39], [u32(0x7fc12345), u32(0xff800000), u32(0x58800000)]))
    good("finite-16", "f16: NaN and infinities.")(
        lambda: finite(F16, [3, 4, 5], [u16(0xfe01), u16(0x7c00), u16(0xfc00)]))
    good("finite-zstd", "Sixteen values of bf16, a zstd frame.")(
        lambda: finite(BF16, list(range(8, 24)), [u16(0x7fc0)] * 16, 1))

    def wild(name, words, sentence, change):
        bad("finite-" + name, words, sentence, "read")(
            lambda: finite(BF16, [3, 9], [u16(0x7fc0), u16(0xff80)], change=change))

    def places(*at):
        return other_bytes(ESCAPES, lambda b: u32(*at) + bytes(2 * len(at)))
    wild("descending", "out of place", "Indices 9, 3.", places(9, 3))
    wild("twice", "out of place", "One index twice.", places(3, 3))
    wild("beyond", "out of place", "Index 40 of 40 values.", places(3, 40))
    wild("size", "ESCAPES", "11 bytes.", other_bytes(ESCAPES, lambda b: b[:-1]))
    wild("empty", "ESCAPES", "ESCAPES without values.", other_bytes(ESCAPES, lambda b: b""))
    wild("claim", "ESCAPES", "A zstd frame that claims more values than the block has.",
         other_entry(ESCAPES, coder=1, raw_size=6 << 20))

    def ends(stage, kind, n, rows=plain, by=None, dtype=BF16, heads=2, dim=4, change=None):
        """n rows kept, the others stored."""
        kept, left = (rows[:n], rows[n:]) if kind == SINK_ROWS else (rows[len(rows) - n:], rows[:len(rows) - n])
        ahead = [Section(kind, u16(n), stage=0)] + kept_rows(dtype, heads, dim, kept, 0, by) if n else []
        raw = Section(RAW, b"".join(left), stage=1)
        return lossy([((0, 0, dtype, heads, dim), rows, ahead + [raw], [])], ((stage, STORE),), range(len(rows)),
                     change=change)
    good("sink", "Two first rows by split, the rest stored.")(
        lambda: ends(sink("2"), SINK_ROWS, 2, by={"model": SMALL}))
    good("tail", "Three last rows by split in the flat model.")(lambda: ends(tail("3"), TAIL_ROWS, 3, by={}))
    good("sink-q8_0", "A sink of q8_0: scales, codes.")(
        lambda: ends(sink("2"), SINK_ROWS, 2, dtype_rows(5, 68), {}, Q8_0, 2, 32))

    @good("sink-tail", "Sinks, then a tail, then quant of what is left, with values that finite takes out.")
    def _():
        x = Quant("token", 0, 4, 2, 2, 4, g=4, salt=210, stage=3)
        middle = byte_rows(BF16, x.matrix)
        middle[1] = patch(middle[1], 6, u16(0x7f80))
        rows = [plain[0]] + middle + plain[3:]
        sections = [Section(SINK_ROWS, u16(1), stage=0)] + kept_rows(BF16, 2, 4, rows[:1], 0) + \
            [Section(TAIL_ROWS, u16(2), stage=1)] + kept_rows(BF16, 2, 4, rows[3:], 1, {}) + \
            [Section(ESCAPES, u32(11) + u16(0x7f80), stage=2)] + x.sections
        return lossy([((0, 0, BF16, 2, 4), rows, sections, [])],
                     ((sink("1"), tail("2"), FINITE, quant("token:bits=4:g=4")),))

    @good("tail-all", "A tail of all rows: quant has none, and no sections.")
    def _():
        sections = [Section(TAIL_ROWS, u16(5), stage=0)] + kept_rows(BF16, 2, 4, plain, 0)
        return lossy([((0, 0, BF16, 2, 4), plain, sections, [])], ((tail("64"), quant("kivi:bits=2")),))

    @good("sink-all", "Sinks of all rows: the stage between has no section, and store one of no bytes.")
    def _():
        sections = [Section(SINK_ROWS, u16(5), stage=0)] + kept_rows(BF16, 2, 4, plain, 0) + [Section(RAW, b"", stage=2)]
        return lossy([((0, 0, BF16, 2, 4), plain, sections, [])], ((sink("5"), DEROPE, STORE),))

    def broken(name, words, sentence, change, stage=sink("2"), kind=SINK_ROWS):
        bad(name, words, sentence, "read")(lambda: ends(stage, kind, 2, by={}, change=change))
    for name, kind, stage in (("sink", SINK_ROWS, sink("2")), ("tail", TAIL_ROWS, tail("2"))):
        words = name.upper()
        for what, sentence, new in (("0", "No rows.", u16(0)), ("6", "Six of five rows.", u16(6)),
                                    ("short", "One byte.", b"\2")):
            broken(f"{name}-{what}", words, sentence, other_bytes(kind, lambda b, new=new: new), stage, kind)
    broken("sink-missing", "SINK", "Kept rows without their number.", without(SINK_ROWS))
    broken("kept-rows", "holds", "Three rows are announced, two are coded.", other_bytes(SINK_ROWS, lambda b: u16(3)))
    broken("kept-none", "CODES", "No sections of the kept rows.",
           lambda f: setattr(block_of(f), "sections", [s for s in block_of(f).sections if s.kind in (SINK_ROWS, RAW)]))


def outlier_files():
    def rows_of(role, index, values, dtype, size, heads=2, dim=4, rows=5, counts=False, change=None):
        """index: of each vector; the values that stand there, in order; counts: a count a vector."""
        x = Quant("token", role, 2, rows, heads, dim, salt=220 + role, stage=1)
        matrix, at = [row[:] for row in x.matrix], 0
        for v, inside in enumerate(index):
            for i in inside:
                t, c = (v, i) if role else (i, v)
                matrix[t][c], at = values[at], at + 1
        body = u16(0) + bytes(map(len, index)) if counts else u16(len(index[0]) // 2)
        body += b"".join((u8, u16)[size - 1](i) for inside in index for i in inside)
        body += b"".join(number(dtype, v) for v in values)
        return lossy([((0, role, dtype, heads, dim), byte_rows(dtype, matrix),
                       [Section(OUTLIERS, body, stage=0)] + x.sections, [])],
                     ((outlier("0.4"), quant("token:bits=2")),), range(rows), change=change)

    def k_file(change=None):
        return rows_of(0, [[c % 3, 4 - c % 2] for c in range(8)], [100.0 + 3 * i for i in range(16)], BF16, 1,
                       change=change)
    def counted(change=None):
        return rows_of(0, [[0, 1, 4], [], [3], [], [0, 1, 2, 3, 4], [2, 3], [], [4]],
                       [100.0 + 3 * i for i in range(12)], BF16, 1, counts=True, change=change)
    good("outlier-k", "Two of each channel of K.")(k_file)
    good("outlier-counts", "Channels of K with 0 to 5 outliers each.")(counted)
    good("outlier-counts-v", "Rows of V with 0 to 3, of 257 values.")(
        lambda: rows_of(1, [[0, 255, 256], []], [-9.0, 9.5, 1.0], F16, 2, 1, 257, 2, True))
    good("outlier-v", "Four of each row of V, in f32.")(
        lambda: rows_of(1, [[0, 2, 3, 7]] * 5, [1e9 + 1e3 * i for i in range(20)], F32, 1))
    good("outlier-256", "Rows of 256 values: indices of one byte.")(
        lambda: rows_of(1, [[0, 255]] * 2, [-9.0, 9.5, 1.0, -2.0], F16, 1, 1, 256, 2))
    good("outlier-257", "Rows of 257 values: indices of two.")(
        lambda: rows_of(1, [[0, 256], [255, 256]], [-9.0, 9.5, 1.0, -2.0], F16, 2, 1, 257, 2))

    def broken(name, words, sentence, change):
        bad("outlier-" + name, words, sentence, "read")(lambda: k_file(other_bytes(OUTLIERS, change)))
    broken("0", "OUTLIERS", "k is 0, and no counts follow.", lambda b: u16(0))
    broken("count", "outliers", "k is 3, of vectors of 5.", lambda b: u16(3) + bytes(8 * 6 * 3))
    broken("descending", "outlier", "Indices 4, 0.", lambda b: patch(b, 2, b"\4\0"))
    broken("twice", "outlier", "One index twice.", lambda b: patch(b, 2, b"\4\4"))
    broken("beyond", "outlier", "Index 5 of 5 values.", lambda b: patch(b, 3, b"\5"))
    broken("infinity", "finite", "An outlier that is infinite.", lambda b: b[:-2] + b"\x80\x7f")

    def miscounted(name, words, sentence, change):
        bad("outlier-" + name, words, sentence, "read")(lambda: counted(other_bytes(OUTLIERS, change)))
    miscounted("none", "outliers", "Every count is 0.", lambda b: bytes(10))
    miscounted("counts", "out of place", "Six of five values.", lambda b: patch(b, 6, b"\6") + bytes(3))
    miscounted("counts-cut", "OUTLIERS", "Seven counts of eight channels.", lambda b: b[:9])
    miscounted("counts-twice", "outlier", "One index twice.", lambda b: patch(b, 11, b"\0"))
    broken("short", "OUTLIERS", "The last value lacks a byte.", lambda b: b[:-1])
    broken("long", "OUTLIERS", "A byte follows the values.", lambda b: b + b"\0")


def lowrank_files():
    @unsupported("side-byte-coder", "byte coder 9", "The byte coder of side data is 9: another tensor can be read.", "read")
    def _():
        plain = some_matrix(5, 8, 233)
        f = lossy([((0, 0, F16, 2, 4, 0), byte_rows(F16, plain), [Section(FACTOR_A, halves_of([0.5] * 10).bytes(), stage=0)],
                    [Section(FACTOR_B, halves_of([0.5] * 8).bytes(), stage=0)]),
                   ((0, 1, F16, 2, 4, 1), byte_rows(F16, plain), [raw_rows(F16, plain, 0)], [])], ((lowrank("r=1"),), (STORE,)))
        side = f.of(SIDE, 0).sections[0]
        side.coder, side.stored = 9, side.raw
        f.refused = {0}
        return f

    def low(text, parts, dim, rank, residual=False, dtype=F16, heads=2, change=None):
        a = halves_of([v / 8 for v in some(5 * parts * rank, 230, -60, 60)], w=5, rotated=1, m=0xe0)
        b = halves_of([v / 64 for v in some(parts * rank * dim, 231, -63, 63)])
        matrix = lowrank_of(a, b, 5, parts, dim, rank)
        sections = [Section(FACTOR_A, a.bytes(), stage=0)]
        if residual:
            left = some_matrix(5, parts * dim, 232, 2.0**-7)
            sections.append(raw_rows(dtype, left, 1))
            matrix = [[f32(x + y) for x, y in zip(*rows)] for rows in zip(matrix, left)]
        return lossy([((0, 1, dtype, heads, parts * dim // heads), byte_rows(dtype, matrix), sections,
                       [Section(FACTOR_B, b.bytes(), stage=0)])],
                     ((lowrank(text),) + ((STORE,) if residual else ()),), change=change)
    good("lowrank", "Rank 3, a matrix a head.")(lambda: low("r=3", 2, 8, 3))
    good("lowrank-layer", "Rank 2 of whole rows, in f32.")(lambda: low("r=2:layer", 1, 16, 2, dtype=F32))
    good("lowrank-residual", "Rank 1, and what it missed, stored.")(lambda: low("r=1", 2, 8, 1, True))
    good("lowrank-dim", "Rank 9 of heads of 8 channels: 8 directions.")(lambda: low("r=9", 2, 8, 8))

    @good("lowrank-gear", "quant, and the low rank of what it missed.")
    def _():
        x = Quant("kivi", 0, 2, 5, 2, 4, salt=240)
        a, b = halves_of([v / 8 for v in some(10, 241, -9, 9)]), halves_of([v / 64 for v in some(8, 242, -63, 63)])
        matrix = [[f32(p + q) for p, q in zip(*rows)] for rows in zip(x.matrix, lowrank_of(a, b, 5, 2, 4, 1))]
        return lossy([((0, 0, BF16, 2, 4), byte_rows(BF16, matrix),
                       x.sections + [Section(FACTOR_A, a.bytes(), stage=1)],
                       [Section(FACTOR_B, b.bytes(), stage=1)])], ((quant("kivi:bits=2"), lowrank("r=1")),))

    def broken(name, words, sentence, change):
        bad("lowrank-" + name, words, sentence, "read")(lambda: low("r=2", 2, 8, 2, change=change))
    broken("no-side", "FACTOR_B", "No side data.", without(FACTOR_B))
    broken("no-coefficients", "FACTOR_A", "No coefficients.", without(FACTOR_A))
    broken("directions-index", "FACTOR_B", "FACTOR_B is number 1.", other_entry(FACTOR_B, index=1))
    broken("coefficients-short", "FACTOR_A", "Coefficients of four rows.", other_bytes(FACTOR_A, lambda b: b[:-1]))
    broken("directions-short", "FACTOR_B", "A byte of the directions is missing.",
           other_bytes(FACTOR_B, lambda b: b[:-1]))
    broken("two", "more than are due", "FACTOR_A twice.", lambda f: more(section(f, FACTOR_A))(f))
    bad("side-late", "not the record due", "Side data after its segment's first block.", "open")(
        lambda: low("r=2", 2, 8, 2, change=lambda f: f.records.append(f.records.pop(-2))))
    bad("side-twice", "not the record due", "Side data of a segment twice.", "open")(
        lambda: low("r=2", 2, 8, 2, change=lambda f: f.records.insert(-2, copy.deepcopy(block_of(f, SIDE)))))
    bad("side-segment", "not the record due", "Side data of segment 1 of a tensor that has one.", "open")(
        lambda: low("r=2", 2, 8, 2, change=lambda f: setattr(block_of(f, SIDE), "number", 1)))


def prune_files():
    out = [0, 1, 1, 0, 0,  1, 0, 0, 0, 1]

    def pruned(text, mean=None, dtype=BF16, role=0, change=None):
        """Heads of five channels, two of each left out."""
        kept = some_matrix(5, 6, 250)
        means = some_matrix(1, 4, 251)[0] if mean else [0.0] * 4
        matrix = []
        for row in kept:
            here, gone = iter(row), iter(means)
            matrix.append([next(gone) if flag else next(here) for flag in out])
        side = [Section(MASK, bits_of(out), stage=0)]
        if mean:
            side.append(Section(MEAN, b"".join(number(dtype, v) for v in means), stage=0))
        return lossy([((0, role, dtype, 2, 5), byte_rows(dtype, matrix), [raw_rows(dtype, kept, 1)], side)],
                     ((prune(text), STORE),), change=change)
    good("prune", "Two of five channels of each head left out, which come back as 0.")(lambda: pruned("k=0.4"))
    good("prune-mean", "They come back as their means, in f32.")(lambda: pruned("k=0.4:mean", True, F32))
    good("prune-v", "V, floor(5 * 0.5) channels of each head.")(lambda: pruned("v=0.5", role=1, dtype=F16))

    @good("prune-none", "A share that leaves out no channel of heads of two: no side data, and none of V.")
    def _():
        rows = byte_rows(BF16, some_matrix(5, 4, 252))
        raw = [Section(RAW, b"".join(rows), stage=1)]
        return lossy([((0, role, BF16, 2, 2), rows, raw, []) for role in (0, 1)], ((prune("k=0.4"), STORE),))

    @good("prune-quant", "quant of the channels that are left.")
    def _():
        x = Quant("token", 0, 4, 5, 2, 3, g=2, salt=253, stage=1)
        matrix = []
        for row in byte_rows(F16, x.matrix):
            here = iter(numbers(F16, row))
            matrix.append([0.0 if flag else next(here) for flag in out])
        return lossy([((0, 0, F16, 2, 5), byte_rows(F16, matrix), x.sections, [Section(MASK, bits_of(out), stage=0)])],
                     ((prune("k=0.4"), quant("token:bits=4:g=2")),))

    @bad("pipeline-prune-derope", "come after", "derope after prune: K without two of the five channels of each head, of which RoPE turns four.")
    def _():
        rows = byte_rows(BF16, some_matrix(5, 10, 254))
        c = Cache([Part(list(range(5)))], [(0, 0, 0, 0)], [Tensor(0, 0, BF16, 2, 5, rows=rows, rotation=1)],
                  pipelines=((prune("k=0.4"), DEROPE, STORE),))
        c.rotations = [(1, [1.0, 0.5])]
        c.coded = {0: lambda t, rows: [raw_rows(BF16, some_matrix(5, 6, 250), 2)]}
        f = c.file()
        f.records.insert(f.records.index(f.of(BLOCK, 0)), Record(SIDE, [Section(MASK, bits_of(out), stage=0)], 0, 0))
        return f

    def broken(name, words, sentence, change, text="k=0.4", mean=None):
        bad("prune-" + name, words, sentence, "read")(lambda: pruned(text, mean, change=change))

    def mask(*flags):
        return other_bytes(MASK, lambda b: bits_of(flags))
    broken("no-mask", "MASK", "No mask.", without(MASK))
    broken("mask-few", "MASK", "One channel of head 0, two of head 1.", mask(0, 1, 0, 0, 0, 1, 0, 0, 0, 1))
    broken("mask-filling", "MASK", "A filling bit of the mask is set.", mask(*out, 1))
    broken("mask-size", "MASK", "A mask of three bytes.", other_bytes(MASK, lambda b: b + b"\0"))
    broken("no-mean", "MEAN", "No means.", without(MEAN), "k=0.4:mean", True)
    broken("mean-size", "MEAN", "Three means.", other_bytes(MEAN, lambda b: b[:-2]), "k=0.4:mean", True)
    broken("mean-extra", "more than are due", "Means that the arguments do not ask for.",
           more(Section(MEAN, bytes(8), stage=0), kind=SIDE))
    broken("store-side", "more than are due", "Side data of the stage store, which has none.",
           more(Section(MEAN, bytes(8), stage=1), kind=SIDE))
    bad("prune-v-mask", "more than are due", "A mask of V, of which nothing is left out.", "read")(
        lambda: pruned("k=0.4", role=1))


def saliency_files():
    def told(flags, stages=(saliency("0.5"), STORE), change=None, heads=2):
        rows = byte_rows(BF16, some_matrix(5, 4 * heads, 260))
        sections = [Section(MASK, bits_of(flags), stage=0), Section(RAW, b"".join(rows), stage=len(stages) - 1)]
        return lossy([((0, 0, BF16, heads, 4), rows, sections, [])], (stages,), change=change)
    flags = [v for row in MARKS for v in row]
    good("saliency", "A mask, and rows as they were.")(lambda: told(flags))

    def broken(name, words, sentence, change):
        bad("saliency-" + name, words, sentence, "read")(lambda: told(flags, change=change))
    broken("no-mask", "MASK", "No mask.", without(MASK))
    broken("short", "MASK", "A mask of one byte for ten tokens and heads.", other_bytes(MASK, lambda b: b[:1]))
    broken("long", "MASK", "A mask of three bytes.", other_bytes(MASK, lambda b: b + b"\0"))
    broken("filling", "MASK", "A filling bit is set.", other_bytes(MASK, lambda b: b[:1] + u8(b[1] | 0x80)))
    bad("saliency-twice", "before", "saliency twice in a pipeline.", "read")(
        lambda: told(flags, (saliency("0.5"), saliency("0.4"), STORE),
                     more(Section(MASK, bits_of(flags), stage=1), at=1)))


def merge_files():
    keep = [0, 1, 0, 0, 1]

    def pair(text, kept=None, dtype=BF16, per=1, norms=True, ahead=(), change=None, rows=5, heads=2, dim=4,
             behind=STORE, second_line=0, layers=None, lines=None):
        """K of two layers: tensor 0 has what both have in common. `per` norms a row."""
        kept = kept or []
        own = [i for i in range(rows) if not (i < len(kept) and kept[i])]
        stage = len(ahead)
        common = some_matrix(len(own), heads * dim, 270, 2.0**-6)
        e = [numbers(dtype, row) for row in byte_rows(dtype, common)]
        blocks = []
        for which in (0, 1):
            exact = byte_rows(dtype, some_matrix(rows, heads * dim, 271 + which))
            n = halves_of([v / 4 for v in some(len(own) * per, 273 + which, 1, 99)], w=3 + which, m=0x70)
            sections = [Section(KEPT, bits_of(kept), stage=stage)] if any(kept) and not which else []
            if norms and own:
                sections.append(Section(NORMS, n.bytes(), stage=stage))
            if any(kept):
                sections += kept_rows(dtype, heads, dim, [exact[i] for i in range(rows) if kept[i]], stage,
                                      {} if which else None)
            if not which:
                sections.append(raw_rows(dtype, common, stage + 1))
            decoded = exact[:]
            for j, i in enumerate(own):
                scale = n.values()[j * per:(j + 1) * per] if norms else [1.0] * per
                decoded[i] = b"".join(number(dtype, f32(x * scale[c * per // len(e[j])])) for c, x in enumerate(e[j]))
            blocks.append(((which, 0, dtype, heads, dim, second_line * which), decoded, sections,
                           [Section(MERGED, u32(0), stage=stage)] if which else []))
        line = ahead + (merge(text), behind)
        return lossy(blocks, lines or (line,), range(rows), layers, change)
    good("merge", "slerp: two layers' rows, each with its norms, two rows kept as they are.")(
        lambda: pair("slerp", keep))
    good("merge-none-kept", "No row is kept: no KEPT.")(lambda: pair("slerp", dtype=F16))
    good("merge-heads", "A norm a head, in f32.")(lambda: pair("slerp:heads", keep, F32, 2))
    good("merge-mean", "mean stores no norms.")(lambda: pair("mean", keep, norms=False))
    good("merge-maxnorm", "Nor does maxnorm.")(lambda: pair("maxnorm:keep=0.4", keep, norms=False, dtype=F16))
    good("merge-all-kept", "Every row is kept: no norms, and an empty RAW.")(lambda: pair("slerp", [1] * 5))
    @good("merge-alone", "The first of a pair whose second is not in the file decodes alone.")
    def _():
        f = pair("slerp", keep)
        block = block_of(f)
        c = Cache([Part(list(range(5)))], [(0, 0, 0, 0)], [Tensor(0, 0, BF16)], pipelines=((merge("slerp"), STORE),),
                  literals=False)
        c.coded = {0: lambda t, rows: block.sections}
        g = c.file()
        g.records[-1] = block
        return g

    @good("merge-tail", "A tail of each layer's own before merge, quant after it.")
    def _():
        x = Quant("token", 1, 4, 3, 2, 4, g=4, salt=280, stage=2)
        common = byte_rows(F16, x.matrix)
        blocks = []
        for which in (0, 1):
            n = halves_of([v / 4 for v in some(3, 281 + which, 1, 20)])
            last = byte_rows(F16, some_matrix(2, 8, 283 + which))
            rows = [b"".join(number(F16, f32(v * s)) for v in numbers(F16, row)) for row, s in zip(common, n.values())]
            sections = [Section(TAIL_ROWS, u16(2), stage=0)] + kept_rows(F16, 2, 4, last, 0) + \
                [Section(NORMS, n.bytes(), stage=1)] + ([] if which else x.sections)
            blocks.append(((which, 1, F16, 2, 4), rows + last, sections,
                           [Section(MERGED, u32(0), stage=1)] if which else []))
        return lossy(blocks, ((tail("2"), merge("slerp"), quant("token:bits=4:g=4")),))

    @good("merge-profile", "Two layers of V around one direction, each with the means that a profile has of its own layer.")
    def _():
        profile, common, blocks = Profile(ANGLES), some_matrix(5, 12, 285), []
        for which in (0, 1):
            means = profile.mean[which, 1]
            rows = byte_rows(BF16, [[f32(x + m) for x, m in zip(row, means)] for row in common])
            blocks.append(((which, 1, BF16, 2, 6), rows, [] if which else [raw_rows(BF16, common, 2)],
                           [Section(MERGED, u32(0), stage=0)] if which else []))
        named = {"profile.sha256": (6, hashlib.sha256(profile.bytes()).digest())}
        f = lossy(blocks, ((merge("mean:from=0:keep=0"), CENTER, STORE),), meta=named)
        f.records.insert(f.records.index(f.of(BLOCK)), Record(PROFILE, [Section(S_PROFILE, profile.bytes())], flags=0))
        return f

    def broken(name, words, sentence, change, text="slerp", kept=tuple(keep), **options):
        bad("merge-" + name, words, sentence, "read")(lambda: pair(text, list(kept), change=change, **options))
    broken("kept-none", "KEPT", "KEPT keeps no row.", other_bytes(KEPT, lambda b: b"\0"))
    broken("kept-size", "KEPT", "KEPT of two bytes.", other_bytes(KEPT, lambda b: b + b"\0"))
    broken("kept-filling", "KEPT", "A filling bit of KEPT is set.", other_bytes(KEPT, lambda b: u8(b[0] | 0x80)))
    broken("second-kept", "NORMS", "KEPT in the second tensor's block.",
           more(Section(KEPT, bits_of(keep), stage=0), 1, 0))
    broken("no-norms", "NORMS", "The first tensor's norms are missing.", without(NORMS))
    broken("norms-short", "NORMS", "A byte of the norms is missing.", other_bytes(NORMS, lambda b: b[:-1]))
    broken("mean-norms", "CODES", "Norms, although mean has none.", more(Section(NORMS, bytes(9), stage=0), at=1),
           "mean", norms=False)
    broken("no-common", "RAW", "The first tensor's block has nothing in common.",
           lambda f: block_of(f).sections.pop() and None)
    broken("second-common", "no stage", "The second tensor's block has rows of a later stage.",
           lambda f: block_of(f, tensor=1).sections.append(block_of(f).sections[-1]))
    broken("no-side", "RAW", "The second tensor has no side data.", without(MERGED, tensor=1))
    for name, why, sentence, new in (("self", "first of a pair", "MERGED names the tensor itself.", u32(1)),
                                     ("later", "first of a pair", "MERGED names a later tensor.", u32(2)),
                                     ("size", "MERGED", "MERGED of five bytes.", bytes(5))):
        broken("merged-" + name, why, sentence, other_bytes(MERGED, lambda b, new=new: new, tensor=1))
    broken("merged-two", "MERGED", "MERGED twice.", lambda f: more(section(f, MERGED, tensor=1), 1, kind=SIDE)(f))
    broken("merged-pipeline", "first of a pair", "MERGED names a tensor of another pipeline.", None, second_line=1,
           lines=((merge("slerp"), STORE), (merge("slerp:t=0.5"), STORE)))

    @bad("merge-merged-part", "first of a pair", "MERGED names a tensor of another part.", "read")
    def _():
        f = pair("slerp", list(keep)).records
        blocks = [(r.sections, r.digest) for r in f if r.kind == BLOCK]
        side = [r for r in f if r.kind == SIDE][0]
        c = Cache([Part(list(range(5))), Part(list(range(5)), stream=1)], [(0, 0, 0, 0), (1, 0, 0, 0)],
                  [Tensor(0, 0, BF16), Tensor(1, 0, BF16)], pipelines=((merge("slerp"), STORE),))
        c.coded = {i: (lambda t, rows, i=i: blocks[i][0]) for i in (0, 1)}
        g = c.file()
        g.records.insert(len(g.records) - 1, side)
        return g

    @bad("merge-same", "SAME", "Rows of a pair's first block that repeat others.", "read")
    def _():
        return pair("slerp", list(keep), change=lambda f: more(Section(SAME, u32(0, 1, 0, 0, 0)), 1, 0)(f))
    bad("pipeline-merge-twice", "twice", "merge twice in a pipeline.")(
        lambda: pair("slerp", lines=((merge("slerp"), merge("slerp"), STORE),)))
    bad("pipeline-merge-late", "before", "lowrank, which looks at segments, before merge.")(
        lambda: pair("slerp", lines=((lowrank("r=1"), merge("slerp"), STORE),)))
    bad("pipeline-merge-outlier", "before", "outlier, which looks at a block, before merge.")(
        lambda: pair("slerp", lines=((outlier("0.4"), merge("slerp"), STORE),)))
    bad("pipeline-project-tail", "come after", "tail, which takes rows out, after project.")(
        lambda: pair("slerp", lines=((project("hidden"), tail("2"), STORE),)))
    bad("pipeline-open", "terminal", "A pipeline that ends with tail.")(
        lambda: pair("slerp", lines=((tail("2"),),)))


class Weights:
    """The weights of layer 0 of a model that are made up: of K and V, which have `out` channels, of hidden states of `d`."""
    def __init__(self, d=4, out=8, salt=600, biased=True, normed=True):
        self.d = d
        self.matrices = [some_matrix(out, d, salt + i) for i in (0, 1)]
        self.biases = [[v / 8 for v in some(out, salt + 2 + i, -9, 9)] if biased else None for i in (0, 1)]
        self.norm = [v / 8 for v in some(d, salt + 4, 1, 20)] if normed else None

    def bytes(self):
        """As a safetensors file with the names of transformers."""
        tensors = {}
        for what, matrix, bias in zip("kv", self.matrices, self.biases):
            tensors[f"self_attn.{what}_proj.weight"] = [len(matrix), self.d], [x for row in matrix for x in row]
            if bias:
                tensors[f"self_attn.{what}_proj.bias"] = [len(bias)], bias
        if self.norm:
            tensors["input_layernorm.weight"] = [self.d], self.norm
        header, body = {"__metadata__": {"architecture": "llama"}}, b""
        for name, (shape, values) in tensors.items():
            header["model.layers.0." + name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(body), len(body) + 4 * len(values)]}
            body += struct.pack(f"<{len(values)}f", *values)
        head = json.dumps(header).encode()
        return u64(len(head)) + head + body

    def fingerprint(self):
        out = b"kvc projection 0\n"
        for matrix, bias in zip(self.matrices, self.biases):
            out += b"".join(struct.pack("<f", row[i]) for i in range(self.d) for row in matrix)
            out += u8(1) + struct.pack(f"<{len(bias)}f", *bias) if bias else u8(0)
        return hashlib.sha256(out + (u8(1) + struct.pack(f"<{self.d}f", *self.norm) if self.norm else u8(0))).digest()

    def rebuilt(self, which, x, epsilon=None):
        """K or V of a hidden state, before RoPE; epsilon: of the norm, where there is one."""
        if epsilon is not None:
            sums = [0.0] * 8
            for i, v in enumerate(x):
                sums[i % 8] = f32(sums[i % 8] + f32(v * v))
            four = [f32(sums[i] + sums[i + 4]) for i in range(4)]
            mean = f32(f32(f32(four[0] + four[2]) + f32(four[1] + four[3])) / self.d)
            factor = f32(1 / f32(math.sqrt(f32(mean + epsilon))))
            x = [f32(f32(v * factor) * w) for v, w in zip(x, self.norm)]
        out = []
        for o, row in enumerate(self.matrices[which]):
            y = 0.0
            for v, w in zip(x, row):
                y = round32(Fraction(v) * Fraction(w) + Fraction(y))
            out.append(f32(y + self.biases[which][o]) if self.biases[which] else y)
        return out


def project_files():
    def side(norm=0, epsilon=0.0, filling=bytes(3), tensor=1, d=4, fingerprint=bytes(range(1, 33))):
        return u32(tensor, d) + fingerprint + u8(norm) + filling + struct.pack("<f", epsilon)

    def projected(name, words, sentence, value, role=0):
        @bad("project-" + name, words, sentence, "read")
        def _():
            states = byte_rows(F32, some_matrix(5, 4, 291))
            return lossy([((0, role, BF16, 2, 4), byte_rows(BF16, some_matrix(5, 8, 290)), [],
                           [Section(HIDDEN, value, stage=0)]),
                          ((1, 6, F32, 1, 4, 1), states, [Section(RAW, b"".join(states), stage=0)], [])],
                         ((project("hidden"),), (STORE,)), range(5), [(0, 0, 0, 0), (0, 0, 4, 0)])
    projected("empty", "HIDDEN", "HIDDEN of no bytes.", b"")
    projected("long", "HIDDEN", "A byte follows the epsilon.", side() + b"\0")
    projected("norm", "HIDDEN", "A norm of 2.", side(norm=2))
    projected("filling", "HIDDEN", "A byte between norm and epsilon is set.", side(filling=b"\0\0\1"))
    projected("epsilon", "HIDDEN", "An epsilon below 0.", side(epsilon=-1.0))
    projected("epsilon-infinite", "HIDDEN", "An epsilon that is not finite.", side(epsilon=math.inf))
    projected("zeros", "fingerprint", "K with the fingerprint of hidden states.", side(fingerprint=bytes(32)))

    def rebuilt(weights=Weights(), dtype=BF16, states=BF16, epsilon=0.0625, pairing=1, rest=False, heads=2, change=None, **how):
        """K and V of layer 0, rebuilt from the hidden states that enter it; K is turned."""
        positions = [9, 7, 8]
        hidden = byte_rows(states, some_matrix(3, weights.d, 610))
        part, beside = Part(positions), Part([] if "foreseen" in how else how.get("positions", positions), kind=4)
        norm = weights.norm and epsilon
        dim, tensors, coded, angles = len(weights.matrices[0]) // heads, [], {}, (1.0, 0.125)
        left = [some_matrix(3, heads * dim, 611 + v) for v in (0, 1)]
        for v in (0, 1):
            out = []
            for x, p, more in zip(hidden, positions, left[v]):
                y = weights.rebuilt(v, numbers(states, x), norm)
                if not v and pairing == 2:  # the weights are paired as halves
                    y = [y[h + i // 2 + i % 2 * dim // 2] for h in range(0, len(y), dim) for i in range(dim)]
                if not v:
                    y = rotated(y, dim, angles, pairing, p)
                out.append(b"".join(number(dtype, f32(a + b) if rest else a) for a, b in zip(y, more)))
            tensors.append(Tensor(0, v, dtype, heads, dim, rows=out, rotation=0 if v else 1))
            order = [byte_rows(dtype, left[v])[i] for i in part.order]
            coded[v] = (lambda t, rows, raw=b"".join(order): [Section(RAW, raw, stage=1)]) if rest else (lambda t, rows: [])
        tensors.append(Tensor(1, 6, states, how.get("state_heads", 1), weights.d // how.get("state_heads", 1), 1, rows=hidden))
        own, line = (0, (CROSS,)) if how.get("foreseen") else (1, (STORE,))
        c = Cache([part, beside], [(0, 0, 0, 0), (own, 0, 4, 0)], tensors, pipelines=((project("hidden"), STORE)[:2 if rest else 1], line),
                  meta={"rope.pairing": text("halves" if pairing == 1 else "interleaved"), "rope.k": text("post"),
                        **({"profile.sha256": (6, hashlib.sha256(Profile(ANGLES).bytes()).digest())} if not own else {})})
        if not own:
            coded[2] = lambda t, rows: [Section(RAW, b"".join(rows), stage=0)]
        c.meta |= how.get("meta", {})
        c.rotations, c.coded = [(pairing, list(angles))], coded
        c.same = how.get("same", {})
        f = c.file()
        data = side(int(bool(norm)), norm or 0.0, tensor=2, d=weights.d, fingerprint=weights.fingerprint())
        for v in (0, 1):
            f.records.insert(f.records.index(f.of(BLOCK, v)), Record(SIDE, [Section(HIDDEN, data, stage=0)], v, 0))
        f.weights = weights.bytes()
        return (change(f) or f) if change else f
    good("project", "K and V of bf16, rebuilt from hidden states before the norm, by weights with biases; K is turned.")(rebuilt)
    good("project-residual", "K and V of f32 with what the weights do not give, from states after the norm, without biases.")(
        lambda: rebuilt(Weights(salt=620, biased=False, normed=False), F32, F32, rest=True))
    good("project-interleaved", "K paired interleaved, of weights paired as halves; eight and more channels in a sum.")(
        lambda: rebuilt(Weights(11, 8, 630), F16, F32, pairing=2))

    @good("project-states", "Hidden states that are rebuilt from those of another layer, with what is left.")
    def _():
        a, b = some_matrix(3, 4, 640), some_matrix(3, 4, 641)
        c = Cache([Part([0, 1, 2], kind=4)], [(0, 0, 4, 0), (0, 1, 4, 0)],
                  [Tensor(0, 6, F32, 1, 4, rows=byte_rows(F32, [[f32(x + y) for x, y in zip(*z)] for z in zip(a, b)])),
                   Tensor(1, 6, F32, 1, 4, 1, rows=byte_rows(F32, a))], pipelines=((project("hidden"), STORE), (STORE,)))
        c.coded = {0: lambda t, rows: [Section(RAW, b"".join(byte_rows(F32, b)), stage=1)]}
        f = c.file()
        data = Section(HIDDEN, side(fingerprint=bytes(32)), stage=0)
        f.records.insert(f.records.index(f.of(BLOCK)), Record(SIDE, [data], 0, 0))
        return f

    def broken(name, words, sentence, change=None, **how):
        bad("project-" + name, words, sentence, "read")(lambda: rebuilt(change=change, **how))

    def hidden(at, new):
        return lambda f: f.of(SIDE).sections[0].__dict__.update(raw=patch(f.of(SIDE).sections[0].raw, at, new))
    broken("fingerprint", "other fingerprint", "Another fingerprint than that of the weights.", hidden(8, b"\xff\xff"))
    broken("tensor", "not one of hidden states", "K is to be rebuilt from V.", hidden(0, u32(1)))
    broken("tensor-none", "not one of hidden states", "K is to be rebuilt from tensor 3, which is not there.", hidden(0, u32(3)))
    broken("channels", "shape", "Hidden states of five channels, which have four.", hidden(4, u32(5)))
    broken("no-norm", "no norm", "A norm, and weights that have none.", lambda f: hidden(40, u8(1))(f), weights=Weights(normed=False))
    broken("pairing", "pairing", "rope.pairing is a word that means nothing.", meta={"rope.pairing": text("yarn")})
    broken("rope-dim", "cannot rotate", "rope.dim is five, of heads of four channels.", meta={"rope.dim": (2, u64(5))})
    broken("position", "no hidden state", "A row at a position without a hidden state.", positions=[9, 7, 6])
    def foreseen(f):
        """The hidden states in the cache's own part, predicted from the K that is rebuilt from them."""
        states = f.of(SIDE).sections[0]
        f.records.insert(f.records.index(f.of(BLOCK, 2)), Record(SIDE, [inputs_section([0])], 2, 0))
        f.records.insert(2, Record(PROFILE, [Section(S_PROFILE, Profile(ANGLES).bytes())], flags=0))
        assert states.raw[:4] == u32(2)
    broken("inputs", "INPUTS", "Hidden states that are predicted from the K that is rebuilt from them.", foreseen, foreseen=True)
    broken("circle", "SAME", "Hidden states that are rows of the K that is rebuilt from them.", weights=Weights(8, 8, 650), dtype=F32, states=F32,
           state_heads=2, same={(2, 0): [(0, 3, 0, 0, 0)]})


# --- derope, center, basis, steps, code ---

BASIS, STEPS, TABLES = 13, 15, 18


def numbered(values):
    return halves_of(values).bytes()


def derope_files():
    def unrotated(pairing=1, first=0, angles=(1.0, 0.125), dtype=BF16, named=None, step=3, line=(DEROPE, STORE)):
        part = Part([first + step * i for i in range(5)])
        before = some_matrix(5, 8, 500)
        rows = [b"".join(number(dtype, x) for x in rotated(row, 4, angles, pairing, max(p, 0)))
                for row, p in zip(before, part.positions)]
        c = Cache([part], [(0, 0, 0, 0)], [Tensor(0, 0, dtype, rows=rows, rotation=1), Tensor(0, 1, dtype)],
                  pipelines=(line,))
        c.rotations = [(pairing, list(angles) if named is None else named)]
        c.coded = {0: lambda t, rows: [raw_rows(dtype, before, 1)],
                   1: lambda t, rows: [Section(RAW, b"".join(rows), stage=1)]}
        return c.file()
    good("derope", "K before RoPE, pairs d and d + 2; V, which has no rotation.")(unrotated)
    good("derope-interleaved", "Pairs 2i and 2i + 1, of one angle, in f32; positions from 2^32 - 13 on.")(
        lambda: unrotated(2, 2**32 - 13, (0.75,), F32))
    bad("derope-position", "position", "Rows at positions from -25 to -13.", "read")(lambda: unrotated(first=-13, step=-3))
    bad("derope-far", "position", "Rows from position 2^32 on.", "read")(lambda: unrotated(first=2**32))
    bad("derope-profile", "profile", "The angles are those of a profile, and the file names none.", "read")(lambda: unrotated(named=2))
    bad("pipeline-derope-twice", "twice", "derope twice in a pipeline.")(lambda: unrotated(line=(DEROPE, DEROPE, STORE)))


def center_files():
    def centred(dtype=BF16, change=None):
        left, means = some_matrix(5, 8, 510), [v / 8 for v in some(8, 511, -200, 200)]
        rows = byte_rows(dtype, [[f32(x + m) for x, m in zip(row, means)] for row in left])
        return lossy([((0, 0, dtype, 2, 4), rows, [raw_rows(dtype, left, 1)], [Section(MEAN, numbered(means), stage=0)])],
                     ((CENTER, STORE),), change=change)
    good("center", "Means of the channels.")(centred)
    bad("center-none", "name no profile", "No MEAN, and no profile.", "read")(lambda: centred(change=without(MEAN)))
    bad("center-short", "MEAN", "A byte of the means is missing.", "read")(
        lambda: centred(change=other_bytes(MEAN, lambda b: b[:-1])))


def basis_files():
    def based(counts=None, bits=6, change=None):
        """counts: rows of the decode matrix of each of two heads of 4 channels; None: scales alone."""
        scales = [v / 64 for v in some(8, 520, 1, 100)]
        c = [[v / 4 if v % 5 else 0.0 for v in row] for row in (some(8, 521 + i, -40, 40) for i in range(5))]
        body = u8(counts is not None, bits) + numbered(scales)
        matrix = [[f32(x * w) for x, w in zip(row, scales)] for row in c]
        if counts is not None:
            weights = [v / 32 for v in some(sum(counts), 530, 1, 60)]
            codes = some(4 * sum(counts), 531, 0, 2**bits - 1)
            body += u16(*counts) + (numbered(weights) if weights else b"") + pack(codes, bits)
            rows = iter([[code - 2**(bits - 1) for code in codes[4 * i:4 * i + 4]] for i in range(len(weights))])
            matrices = [[next(rows) for _ in range(count)] for count in counts]
            matrix = []
            for row in c:
                y, at = [], 0
                for head, count in enumerate(counts):
                    values = [0.0] * 4
                    for j in range(count):
                        x = row[4 * head + j]
                        vector = [f32(f32(e * weights[at + j]) * w) for e, w in zip(matrices[head][j], scales[4 * head:])]
                        values = [round32(Fraction(x) * Fraction(m) + Fraction(v)) for m, v in zip(vector, values)] if x else values
                    y, at = y + values, at + count
                matrix.append(y)
        return lossy([((0, 0, F32, 2, 4), byte_rows(F32, matrix), [raw_rows(F32, c, 1)], [Section(BASIS, body, stage=0)])],
                     ((stored_stage(17), STORE),), change=change)
    good("basis-scales", "Scales of the channels, and no basis.")(based)
    good("basis", "Decode matrices of three rows and of four, six bits an element.")(lambda: based((3, 4)))
    good("basis-bits", "One row and none, eight bits an element.")(lambda: based((1, 0), 8))

    def broken(name, words, sentence, change):
        bad("basis-" + name, words, sentence, "read")(lambda: based((3, 4), change=change))
    broken("none", "name no profile", "No BASIS, and no profile.", without(BASIS))
    broken("kind", "BASIS", "A basis of kind 2.", other_bytes(BASIS, lambda b: patch(b, 0, u8(2))))
    broken("bits-3", "BASIS", "Elements of three bits.", other_bytes(BASIS, lambda b: patch(b, 1, u8(3))))
    broken("bits-9", "BASIS", "Elements of nine bits.", other_bytes(BASIS, lambda b: patch(b, 1, u8(9))))
    broken("short", "BASIS", "A byte of the elements is missing.", other_bytes(BASIS, lambda b: b[:-1]))
    broken("long", "BASIS", "A byte follows the elements.", other_bytes(BASIS, lambda b: b + b"\0"))
    broken("rows", "BASIS", "Five rows of a head of four channels.",
           other_bytes(BASIS, lambda b: b.replace(u16(3, 4), u16(3, 5))))


def fixed_tables():
    """Of each of code's tables the frequency of each symbol, as code.md prints them."""
    page = (HERE.parent.parent / "codecs/stages/code/code.md").read_text()
    out = []
    for escape, rest in re.findall(r"^ ?\d+: +(\d+); ([0-9 ]+)$", page, re.MULTILINE):
        half = [int(x) for x in rest.split()]
        out.append({127: int(escape), **{63 + r: f for r, f in enumerate(half)}, **{63 - r: f for r, f in enumerate(half)}})
    return out


class Coded:
    """A block of code, one lane: codes [row][head * dim] and the indices of components, which classes [row][head] lower."""
    def __init__(self, codes, indices, heads, classes=None, stage=0):
        tables, dim, slots, self.rest = fixed_tables(), len(indices) // heads, [], Bits()
        for t, row in enumerate(codes):
            line = []
            for c, code in enumerate(row):
                k = classes[t][c // dim] if classes else 0
                i = min(max(indices[c] - (5 * k + 1) // 2, 0), 63)
                low = -(-(i - 31) // 5) if i > 31 else 0
                table = tables[i - 5 * low]
                r = code + (1 << low >> 1) >> low if low else code
                symbol = 63 + r if 63 + r in table and abs(r) < 64 and 63 + r != 127 else 127
                line.append((table[symbol], sum(f for s, f in table.items() if s < symbol)))
                if symbol == 127:
                    z = zigzag(r)
                    self.rest.put(z.bit_length() - 1, 5).put(z, z.bit_length() - 1)
                if low:
                    self.rest.put(code + (1 << low - 1), low)
            slots.append(line)
        self.states, words = rans(slots, 11, 1)
        self.words, self.stage, self.dim, self.indices = u16(*words), stage, dim, indices

    def codes(self):
        return Section(CODES, u32(len(self.words)) + u32(*self.states) + self.words + self.rest.bytes(), stage=self.stage)

    def tables(self):
        b = Bits()
        for at in range(0, len(self.indices), self.dim):
            head = self.indices[at:at + self.dim]
            b.put(head[0], 6)
            for before, i in zip(head, head[1:]):
                b.rice(zigzag(before - i), 1)
        return Section(TABLES, b.bytes(), stage=self.stage)


def code_files():
    codes = [[0, 3, -70, 5, -1, 0, 40, -2000], [1, -2, 69, 300, 0, 0, -41, 8000], [0, 0, 0, -1, 2, -1, 12, 5],
             [-1, 4, -3, 2, 900, 0, -700, 1], [0, 1, 2, -300, 0, -1, 1, 31]]
    indices = [13, 20, 31, 40, 0, 8, 33, 63]

    def coded_file(change=None, indices=indices, codes=codes):
        x = Coded(codes, indices, 2)
        matrix = [[f32(c * 0.25) for c in row] for row in codes]
        return lossy([((0, 0, F32, 2, 4), byte_rows(F32, matrix), [x.codes()], [x.tables()])],
                     ((stored_stage(19, "step=0.25"),),), change=change)
    good("code", "Codes at their scales and far beyond them, escapes, low bits of one to seven.")(coded_file)
    good("code-step", "A step that binary32 rounds.")(
        lambda: lossy([((0, 1, F32, 2, 4), byte_rows(F32, [[f32(c * f32(0.1)) for c in row] for row in codes]),
                        [Coded(codes, indices, 2).codes()], [Coded(codes, indices, 2).tables()])],
                      ((stored_stage(19, "step=0.1"),),)))

    def stepped(change=None, other=0):
        """other: what the table has of the symbol 11."""
        classes = [[0, -6], [4, 1], [-1, 2], [3, -5], [-2, 0]]
        x = Coded(codes, indices, 2, classes, 1)
        symbols = [k + 6 for row in classes for k in row]
        counts = {v: symbols.count(v) for v in symbols} | ({11: other} if other else {})
        levels, frequency = table_of(counts, 8)
        below = {v: sum(f for u, f in frequency.items() if u < v) for v in frequency}
        states, words = rans([[(frequency[v], below[v]) for v in symbols[i:i + 2]] for i in range(0, 10, 2)], 8, 1)
        matrix = [[f32(f32(c * 0.25) * (f32(2.0**(classes[t][i // 4] / 2)) if classes[t][i // 4] else 1.0)) for i, c in enumerate(row)]
                  for t, row in enumerate(codes)]
        side = [Section(STEPS, table_bits(Bits(), levels, 12).bytes(), stage=0), x.tables()]
        return lossy([((0, 0, F32, 2, 4), byte_rows(F32, matrix), [Section(STEPS, u32(*states) + u16(*words), stage=0), x.codes()],
                       side)], ((stored_stage(18), stored_stage(19, "step=0.25")),), change=change)
    good("steps", "Classes of -6 to 4, then code: the classes lower or raise the indices.")(stepped)
    bad("steps-symbol", "STEPS", "The table has a symbol 11, which is no class.", "read")(lambda: stepped(other=1))
    bad("steps-no-table", "STEPS", "No table.", "read")(lambda: stepped(without(STEPS)))
    bad("steps-stream", "STEPS", "The lane begins at another state.", "read")(
        lambda: stepped(lambda f: block_of(f).sections[0].__dict__.update(raw=patch(block_of(f).sections[0].raw, 0, b"\xff"))))

    def broken(name, words, sentence, change, **options):
        bad("code-" + name, words, sentence, "read")(lambda: coded_file(change, **options))
    broken("index", "TABLES", "A component of index 64, after one of 63.", None, indices=[13, 20, 31, 40, 0, 8, 63, 64])
    broken("no-tables", "TABLES", "No indices.", without(TABLES))
    broken("tables-long", "TABLES", "A byte follows the indices.", other_bytes(TABLES, lambda b: b + b"\0"))
    broken("stream-short", "stream", "The stream lacks its last word.",
           other_bytes(CODES, lambda b: u32(int.from_bytes(b[:4], "little") - 2) + b[4:6 + int.from_bytes(b[:4], "little")] +
                       b[8 + int.from_bytes(b[:4], "little"):]))
    broken("state", "stream", "The lane begins at another state.", other_bytes(CODES, lambda b: patch(b, 4, u8(b[4] ^ 1))))
    broken("bits-left", "CODES", "A byte follows the low bits.", other_bytes(CODES, lambda b: b + b"\0"))
    broken("bits-short", "CODES", "The last byte of the low bits is missing.", other_bytes(CODES, lambda b: b[:-1]))
    broken("huge", "CODES", "A code of 2^24.", None, codes=[[0] * 8] * 4 + [[0] * 7 + [2**24]])


# --- cross, and the profiles it predicts with (codecs/stages/cross/cross.md, derope.md 3, kvc-profile(5)) ---

CROSS, PREDICT, INPUTS = stored_stage(20), stored_stage(21), 22
MISSING = 2**32 - 1


def float8(dtype, byte):
    """The value of a byte of f8e4m3 or f8e5m2 that is a number."""
    m = 3 if dtype == F8E4M3 else 2
    exponent, mantissa = byte >> m & 2**(7 - m) - 1, byte & 2**m - 1
    bias = 2**(6 - m) - 1
    size = (mantissa + (2**m if exponent else 0)) * 2.0**(max(exponent, 1) - bias - m)
    return -size if byte >> 7 else size


def any_numbers(dtype, data):
    """As numbers(), of 8-bit floats and u8 too."""
    if dtype == U8:
        return [float(b) for b in data]
    return [float8(dtype, b) for b in data] if dtype in (F8E4M3, F8E5M2) else numbers(dtype, data)


def any_bytes(dtype, row):
    """As byte_rows(), a row, of 8-bit floats and u8 too: the nearest number."""
    if dtype == U8:
        return bytes(int(x) for x in row)
    if dtype not in (F8E4M3, F8E5M2):
        return b"".join(number(dtype, x) for x in row)
    codes = [c for c in range(256) if c & 0x7f < (0x7f if dtype == F8E4M3 else 0x7c)]
    return bytes(min(codes, key=lambda c: (abs(float8(dtype, c) - x), c)) for x in row)


def q8_0_scales(row):
    return [struct.unpack("<e", row[at:at + 2])[0] for at in range(0, len(row), 34)]


def q8_0_numbers(row):
    return [f32(d * struct.unpack("b", row[at:at + 1])[0])
            for block, d in enumerate(q8_0_scales(row)) for at in range(34 * block + 2, 34 * block + 34)]


def q8_0_bytes(row):
    """As ggml quantises: the maximum size is code 127."""
    out = b""
    for at in range(0, len(row), 32):
        d = max(map(abs, row[at:at + 32])) / 127
        out += struct.pack("<e", d) + struct.pack("32b", *(round(x / d) for x in row[at:at + 32]))
    return out


def hadamard(row, tile):
    """A row with its Hadamard rotation, or without."""
    row, half = list(row), 1
    while half < tile:
        for i in range(len(row)):
            if not i & half:
                a, b = row[i], row[i + half]
                row[i], row[i + half] = f32(a + b), f32(a - b)
        half *= 2
    factor = f32(1 / f32(math.sqrt(tile))) if tile else 1.0
    return [f32(x * factor) for x in row]


def times(a, b):
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def turn_of(angle, position):
    """Cosine and sine of `position` times the angle, in binary32."""
    z = angle * angle
    cosine, sine = 1 / math.factorial(20), -1 / math.factorial(19)
    for k in range(18, -1, -2):
        cosine = cosine * z + (-1)**(k // 2) / math.factorial(k)
    for k in range(17, 0, -2):
        sine = sine * z + (-1)**(k // 2) / math.factorial(k)
    base = cosine, angle * sine

    def powers(x):
        out = [(1.0, 0.0)]
        while len(out) < 16:
            out.append(times(out[-1], x))
        return out
    low = powers(base)
    after = times(low[15], base)
    middle = powers(after)
    power, high, h = times(middle[15], after), (1.0, 0.0), position >> 8
    while h:
        if h & 1:
            high = times(high, power)
        power, h = times(power, power), h >> 1
    c, s = times(times(high, middle[position >> 4 & 15]), low[position & 15])
    return f32(c), f32(s)


def rotated(row, dim, angles, pairing, position, back=False):
    """A row of heads whose pairs turn to their position, or back from it."""
    row = list(row)
    for i, angle in enumerate(angles):
        c, s = turn_of(angle, position)
        s = -s if back else s
        for head in range(0, len(row), dim):
            a, b = (head + i, head + i + len(angles)) if pairing == 1 else (head + 2 * i, head + 2 * i + 1)
            u, v = row[a], row[b]
            row[a], row[b] = f32(f32(u * c) - f32(v * s)), f32(f32(v * c) + f32(u * s))
    return row


class Profile:
    """A profile of made-up numbers. angles: of each layer, none where it has no RoPE. Its numbers are in its own order, halves;
    what goes in and out of predictions is in the order of the cache, `pairing`."""
    def __init__(self, angles, heads=2, dim=6, version=1, pairing=1, salt=300, bare=(), residual=False):
        self.residual = residual  # it has bases of what predictions leave
        self.angles, self.heads, self.dim, self.version, self.pairing = angles, heads, dim, version, pairing
        self.bare = bare  # (layer, is V) without a basis, and half as wide
        self.mean, self.gain, self.weight, self.scale = {}, {}, {}, {}
        width = heads * dim
        for n in range(len(angles)):
            for v in (0, 1):
                wide = width // 2 if (n, v) in bare else width
                key = salt + 10 * n + 5 * v
                self.mean[n, v] = [f32(x / 7) for x in some(wide, key, -20, 20)]
                self.gain[n, v] = [f32(x / 3) for x in some(wide, key + 1, 10, 90)]
        for n, v in self.mean:
            inputs = sum(len(self.gain[x]) for x in self.inputs(n, v))
            if not inputs:
                continue
            rows = len(self.mean[n, v])
            self.weight[n, v] = [some(inputs, salt + 1000 + 100 * n + 50 * v + i, -128, 127) for i in range(rows)]
            self.scale[n, v] = [f32(x / 2**20) for x in some(rows, salt + 2000 + 2 * n + v, 20, 200)]

    def inputs(self, n, v):
        """What the predictor of a layer's K or V is made from: (layer, is V)."""
        return [(n - 1, 0), (n - 1, 1)][:2 * bool(n)] + [(n, 0)][:v]

    def place(self, v, values, n):
        """Numbers of the profile's channels in the order of the cache."""
        pairs = len(self.angles[n]) if not v and self.pairing == 2 else 0
        out = list(values)
        for head in range(0, len(values), self.dim):
            for i in range(pairs):
                out[head + 2 * i], out[head + 2 * i + 1] = values[head + i], values[head + pairs + i]
        return out

    def small(self, x, row, rotation, position):
        """The inputs that a decoded row of values gives."""
        n, v = x
        if not v and rotation:
            row = rotated(row, self.dim, self.angles[n], rotation, position, back=True)
        out = []
        for value, mean, gain in zip(row, self.place(v, self.mean[x], n), self.place(v, self.gain[x], n)):
            y = f32(f32(value - mean) * gain)
            out.append(0 if math.isnan(y) else round(max(min(y, 127.0), -127.0)))
        return out

    def predict(self, n, v, rows, rotation, position, turned=True):
        """One predicted row, K before RoPE unless `turned`. rows: the decoded values of each input's tensor, or None."""
        u = []
        for x, row in zip(self.inputs(n, v), rows):
            u += [0] * len(self.gain[x]) if row is None else self.small(x, row, rotation, position)
        out = []
        order = self.place(v, range(len(self.mean[n, v])), n)
        columns, at = [], 0
        for y in self.inputs(n, v):
            columns += [at + c for c in self.place(y[1], range(len(self.gain[y])), y[0])]
            at += len(self.gain[y])
        for i in order:
            s = sum(self.weight[n, v][i][c] * u[j] for j, c in enumerate(columns))
            out.append(f32(f32(f32(s) * self.scale[n, v][i]) + self.mean[n, v][i]))
        return rotated(out, self.dim, self.angles[n], rotation, position) if not v and rotation and turned else out

    def bytes(self):
        shape, tensors = [self.heads, self.dim], []
        for n, angles in enumerate(self.angles):
            if angles:
                tensors.append((f"{n}.rope", "F64", [len(angles)], struct.pack(f"<{len(angles)}d", *angles)))
            for v in (0, 1):
                name, own = f"{n}.{'kv'[v]}.", [len(self.mean[n, v]) // self.dim, self.dim]
                tensors.append((name + "mean", "F32", own, struct.pack(f"<{len(self.mean[n, v])}f", *self.mean[n, v])))
                if (n, v) not in self.bare:
                    identity = bytes(100 * (i == j) for _ in range(self.heads) for i in range(self.dim)
                                     for j in range(self.dim))
                    tensors.append((name + "basis", "I8", shape + [self.dim], identity))
                    tensors.append((name + "scale", "F32", shape, struct.pack("<f", 0.01) * self.heads * self.dim))
                if not self.version:
                    continue
                tensors.append((name + "gain", "F32", own, struct.pack(f"<{len(self.gain[n, v])}f", *self.gain[n, v])))
                if (n, v) in self.weight:
                    rows = self.weight[n, v]
                    tensors.append((name + "predictor", "I8", [len(rows), len(rows[0])],
                                    b"".join(struct.pack(f"<{len(row)}b", *row) for row in rows)))
                    tensors.append((name + "predictor.scale", "F32", own,
                                    struct.pack(f"<{len(rows)}f", *self.scale[n, v])))
                    if self.residual and (n, v) not in self.bare:
                        tensors.append((name + "residual.basis", "I8", shape + [self.dim], identity))
                        tensors.append((name + "residual.scale", "F32", shape,
                                        struct.pack("<f", 0.02) * self.heads * self.dim))
        tensors.sort(key=lambda t: ("F64", "F32", "I8").index(t[1]))
        facts = [("kvc.profile", str(self.version)), ("model.layers", str(len(self.angles))), ("model.name", "fixture")]
        if self.version:
            facts.append(("predictor.back", "1"))
        items, data = ['"__metadata__":{' + ",".join(f'"{k}":"{v}"' for k, v in facts) + "}"], b""
        for name, dtype, dims, values in tensors:
            items.append(f'"layers.{name}":{{"dtype":"{dtype}","shape":{str(dims).replace(" ", "")},'
                         f'"data_offsets":[{len(data)},{len(data) + len(values)}]}}')
            data += values
        header = ("{" + ",".join(items) + "}").encode()
        header += b" " * (-len(header) % 8)
        return u64(len(header)) + header + data


class Ahead(Model):
    """PARAMS with turn 3: of what the predicted rows leave."""
    def __init__(self, predicted, spreads, means, scales=(), **options):
        super().__init__(spreads, means, (3,), **options)
        self.predicted, self.scales = predicted, scales  # of q8_0: of each row

    def codes(self):
        """Of q8_0."""
        out = []
        for p, scales in zip(self.predicted, self.scales):
            row = []
            for i, (x, spread, mean) in enumerate(zip(p, self.spreads, self.means)):
                v, d = 2.0**(spread - 127), scales[i // 32]
                if d == 0 or not math.isfinite(d):
                    row.append((0, 0))
                    continue
                m = f32(f32(mean * f32(f32(math.sqrt(v)) * 0.25)) + x)
                code = round(max(min(f32(m / d), 127.0), -127.0))
                octave = (float_bits(v) - float_bits(f32(d * d)) >> 23) - 3
                row.append((code % 256, max(min(octave, 7), 0)))
            out.append(row)
        return out

    def rows(self, dtype, count):
        if dtype == Q8_0:
            return self.codes()
        _, width, shift, sign, cut, rebias = WORDS[dtype]
        drop, out = cut - shift, []
        for p in self.predicted:
            row = []
            for x, spread, mean in zip(p, self.spreads, self.means):
                v = 2.0**(spread - 127)
                m = f32(f32(mean * f32(f32(math.sqrt(v)) * 0.25)) + x)
                q = float_bits(f32(f32(m * m) + v))
                r = max((q >> 1) + (127 << 22) - (rebias << 23), 0)
                bias = (r + (1 << drop - 1) >> drop) & 2**sign - 1 | float_bits(m) >> 31 << sign
                bias = (bias - (2**shift // 2 if shift else 0)) % 2**16
                row.append((bias, min((q - float_bits(v)) >> 22, 7)))
            out.append(row)
        assert count == len(out)
        return out


def inputs_section(named):
    return Section(INPUTS, u32(*named), stage=0)


class Crossed:
    """A cache of a profile's layers, whose predicted rows lie near what is predicted. tensors: (layer, is V, dtype, how):
    how None: by cross; a matrix: stored; else a Quant. same: of tensors the entry of their block 0. options: of Split."""
    LINE = (CROSS,)
    BLOCKS = "aaaa", "afam", "arma"  # of tensors by turns, their blocks: ahead, flat, with a model as split's, RAW

    def __init__(self, profile, tensors, positions=(7, 8, 9), rotation=1, same=None, tile=None, **options):
        self.tile = tile  # Hadamard tiles of K and V in q8_0
        self.profile, self.tensors, self.positions, self.rotation, self.same = profile, tensors, positions, rotation, same or {}
        self.part = Part(list(positions))
        self.rows, self.coders, self.named = [], [], []
        self.meta = {"producer": text("make_files"), "profile.sha256": (6, hashlib.sha256(profile.bytes()).digest()),
                     "profile.model": text("fixture")}
        if any(profile.angles):
            self.meta["rope.pairing"] = text(("", "halves", "interleaved")[profile.pairing])
        if tile:
            self.meta |= {"hadamard.k": (2, u64(tile[0])), "hadamard.v": (2, u64(tile[1]))}
        number_of = {(n, v): i for i, (n, v, _, _) in enumerate(tensors)}
        for i, (n, v, dtype, how) in enumerate(tensors):
            named = [number_of.get(x, MISSING) for x in profile.inputs(n, v)]
            if how or not named:
                self.plain(i, dtype, how)
            else:
                self.predicted(i, named, options)

    def plain(self, i, dtype, how):
        matrix = how.matrix if isinstance(how, Quant) else how or \
            some_matrix(len(self.positions), self.profile.heads * self.profile.dim, 310 + i, 0.25)
        self.named.append([])
        self.rows.append([q8_0_bytes(row) if dtype == Q8_0 else any_bytes(dtype, row) for row in matrix])
        self.coders.append((lambda t, rows: how.sections) if isinstance(how, Quant) else
                           (lambda t, rows: [Section(RAW, b"".join(rows), stage=0)]) if how else split_by())

    def predicted(self, i, named, options):
        (n, v, dtype, _), width = self.tensors[i], self.profile.heads * self.profile.dim
        inputs = [None if x == MISSING else [self.numbers(x, row) for row in self.rows[x]] for x in named]
        ahead = [self.profile.predict(n, v, [x and x[c] for x in inputs], self.rotation, position)
                 for c, position in enumerate(self.positions)]
        if dtype == Q8_0:
            ahead = [hadamard(row, self.tile[v]) for row in ahead]
        noise = some_matrix(len(ahead), width, 330 + i, 0.0625)
        spreads, means = [127 + x for x in some(width, 360 + i, -3, 2)], some(width, 350 + i, -4, 4)
        self.named.append(named)
        values = [[x + y + m / 4 for x, y, m in zip(*row, means)] for row in zip(ahead, noise)]
        self.rows.append([q8_0_bytes(row) if dtype == Q8_0 else any_bytes(dtype, row) for row in values])
        if dtype == Q8_0:  # scales of 0, a NaN, an infinity, and below 0
            for c, scale in zip(range(1, len(values)), (b"\0\0", b"\1\x7e", b"\0\xfc", b"\0\xac")):
                self.rows[i][c] = scale + self.rows[i][c][2:]
        row, count, other, _, there = self.same.get(i, (0, 0, 0, 0, 0))
        self.rows[i][row:row + count] = self.rows[other][there:there + count]
        blocks = iter(zip(self.part.blocks, self.BLOCKS[i % 3]))

        def code(t, rows):
            first, kind = next(blocks)
            if kind == "r":
                return [Section(RAW, b"".join(rows), stage=0)]
            cells = [c for j, c in enumerate(self.part.order[first:]) if not row <= j < row + count][:len(rows)]
            scales = [q8_0_scales(self.rows[i][c]) for c in cells] if dtype == Q8_0 else ()
            model = {"a": Ahead([ahead[c] for c in cells], spreads, means, scales, middle=126, j=2, k=3),
                     "m": Model(spreads, means), "f": None}[kind]
            return Split(t, rows, model=model, **options).sections()
        self.coders.append(code)

    def numbers(self, x, row):
        """A decoded row of tensor x as its inputs see it."""
        _, v, dtype, _ = self.tensors[x]
        return hadamard(q8_0_numbers(row), self.tile[v]) if dtype == Q8_0 else any_numbers(dtype, row)

    def side(self, i, named):
        del i
        return [inputs_section(named)]

    def turns(self, n, v, rotations):
        """The rotation of K or V of a layer, which joins the list."""
        if v or not self.rotation or not self.profile.angles[n]:
            return 0
        rotation = self.rotation, len(self.profile.angles[n])
        if rotation not in rotations:
            rotations.append(rotation)
        return rotations.index(rotation) + 1

    def file(self, change=None, layers=None, parts=None, profile=None):
        """profile: the bytes of the PROFILE record, b"" for none."""
        indexes = sorted({n for n, *_ in self.tensors})
        rotations = []
        tensors = [Tensor(indexes.index(n), v, dtype, self.profile.heads, self.profile.dim,
                          2 if isinstance(how, Quant) else int(how is not None), rows, rotation=self.turns(n, v, rotations))
                   for (n, v, dtype, how), rows in zip(self.tensors, self.rows)]
        lines = (self.LINE, (STORE,), (quant("token:bits=4:g=4"),))
        c = Cache(parts or [self.part], layers or [(0, n, 0, 0) for n in indexes], tensors, meta=self.meta, pipelines=lines)
        c.rotations = rotations
        c.coded = dict(enumerate(self.coders))
        c.same = {(i, 0): [entry] for i, entry in self.same.items()}
        f = c.file()
        for i, named in enumerate(self.named):
            if named:
                side = Record(SIDE, self.side(i, named), i, 0)
                f.records.insert(f.records.index(block_of(f, tensor=i)), side)
        profile = self.profile.bytes() if profile is None else profile
        if profile:
            first = min(i for i, r in enumerate(f.records) if r.kind in (SIDE, BLOCK))
            f.records.insert(first, Record(PROFILE, [Section(S_PROFILE, profile)], flags=0))
        return (change(f) or f) if change else f


class Predicted(Crossed):
    """The same by derope, predict and store: what predictions leave is stored in the tensor's dtype."""
    LINE = (DEROPE, PREDICT, STORE)

    def __init__(self, profile, *rest, residual=True, **options):
        profile.residual = residual
        super().__init__(profile, *rest, **options)

    def plain(self, i, dtype, how):
        if how:
            super().plain(i, dtype, how)
            return
        n, v = self.tensors[i][:2]
        matrix = some_matrix(len(self.positions), self.profile.heads * self.profile.dim, 310 + i, 0.25)
        self.named.append([])
        self.store(i, n, v, dtype, matrix, [[0.0] * len(row) for row in matrix])

    def predicted(self, i, named, options):
        del options
        n, v, dtype, _ = self.tensors[i]
        inputs = [None if x == MISSING else [self.numbers(x, row) for row in self.rows[x]] for x in named]
        ahead = [self.profile.predict(n, v, [x and x[c] for x in inputs], self.rotation, position, turned=False)
                 for c, position in enumerate(self.positions)]
        self.named.append(named)
        self.store(i, n, v, dtype, some_matrix(len(ahead), len(ahead[0]), 330 + i, 0.0625), ahead)

    def store(self, i, n, v, dtype, left, ahead):
        """Rows of what is left, which the dtype holds exactly, and of what is predicted."""
        stored, rows = [any_bytes(dtype, row) for row in left], []
        for data, p, position in zip(stored, ahead, self.positions):
            row = [f32(x + y) for x, y in zip(any_numbers(dtype, data), p)]
            if not v and self.rotation:
                row = rotated(row, self.profile.dim, self.profile.angles[n], self.rotation, position)
            rows.append(any_bytes(dtype, row))
        self.rows.append(rows)
        order, blocks = self.part.order, iter(self.part.blocks)

        def code(t, rows):
            first = next(blocks)
            return [Section(RAW, b"".join(stored[c] for c in order[first:][:len(rows)]), stage=2)]
        self.coders.append(code)

    def side(self, i, named):
        inputs = inputs_section(named)
        inputs.stage = 1
        return [inputs]


ANGLES = [[1.0, 0.03125], [0.75, 0.1]]
FAR = (3, 70002, 254, 255, 256, 70001, 4, 511, 2**32 - 1)


def four(dtype, *how):
    """K and V of two layers."""
    return [(i // 2, i % 2, dtype, how[i] if i < len(how) else None) for i in range(4)]


def cross_files():
    good("cross", "K and V of two layers, V of the first from its K; blocks with turn 3, a model as split's, flat, RAW.")(
        lambda: Crossed(Profile(ANGLES), four(BF16, some_matrix(9, 12, 309, 0.25)), FAR).file())
    good("cross-interleaved", "f16 whose K is paired as 2i and 2i + 1; two lanes, streams of one row.")(
        lambda: Crossed(Profile(ANGLES, pairing=2, salt=400), four(F16), FAR, 2, lanes=1, per=1).file())
    good("cross-unrotated", "K that is not rotated, or unknown, with a profile that has angles.")(
        lambda: Crossed(Profile(ANGLES, salt=700), four(BF16), FAR, 0).file())
    good("cross-missing", "Missing inputs: V of the layer before, the whole layer before, all. A layer that RoPE leaves out.")(
        lambda: Crossed(Profile([ANGLES[0], [], [], ANGLES[1]], salt=500),
                        [(n, v, BF16, None) for n, v in ((0, 0), (1, 0), (1, 1), (3, 0), (3, 1))], FAR).file())
    good("cross-dtypes", "Layers of f32, f16, bf16, f8e4m3 and f8e5m2, without RoPE.")(
        lambda: Crossed(Profile([[]] * 5, 1, 4, salt=600),
                        [(n, v, d, None) for n, k, x in ((0, F16, F32), (1, F32, F16), (2, BF16, F8E4M3), (4, BF16, F8E5M2))
                         for v, d in enumerate((k, x))], rotation=0).file())
    good("cross-same", "Two rows of K that repeat V of the layer before, from which it is predicted.")(
        lambda: Crossed(Profile(ANGLES), four(BF16), (7, 8, 9, 10), same={2: (1, 2, 1, 0, 2)}).file())

    good("cross-q8_0", "q8_0, K and V Hadamard-rotated in tiles of 8 and 32; scales that are 0, negative or not finite.")(
        lambda: Crossed(Profile(ANGLES, 2, 16, salt=900), four(Q8_0), FAR, tile=(8, 32)).file())
    good("cross-q8_0-unrotated", "q8_0, not Hadamard-rotated, K paired as 2i and 2i + 1; one input in f16, predicted from none.")(
        lambda: Crossed(Profile(ANGLES, 2, 16, pairing=2, salt=1000), [(0, 0, F16, some_matrix(9, 32, 311)), *four(Q8_0)[1:]], FAR, 2,
                        tile=(0, 0)).file())

    def quantised(name, sentence, words="Hadamard", change=None, dtypes=(Q8_0,) * 4):
        @bad("cross-q8_0-" + name, words, sentence, "read")
        def _():
            x = Crossed(Profile(ANGLES, 2, 16, salt=900), [(i // 2, i % 2, d, None) for i, d in enumerate(dtypes)], tile=(8, 32))
            if change:
                change(x.meta)
            return x.file()
    quantised("unknown", "The metadata do not say whether K is Hadamard-rotated.", change=lambda m: m.pop("hadamard.k"))
    quantised("tile-6", "A Hadamard tile of 6.", change=lambda m: m.update({"hadamard.v": (2, u64(6))}))
    quantised("tile-64", "A Hadamard tile of 64 for rows of 32 values.", change=lambda m: m.update({"hadamard.k": (2, u64(64))}))
    quantised("floats", "V in bf16 that is predicted from K in q8_0.", "other tensors", dtypes=(Q8_0, BF16, Q8_0, BF16))

    @good("cross-inputs", "Inputs coded with loss, and stored ones with NaN, infinities, ties and values far beyond 127 steps.")
    def _():
        p, wild = Profile(ANGLES, 2, 4, salt=800), some_matrix(3, 8, 308)
        p.gain[0, 1][2] = 0.0
        for i in (0, 6, 7):  # inputs halfway between two
            p.gain[0, 1][i], p.mean[0, 1][i] = 4.0, 0.0
        wild[1] = [math.nan, math.inf, math.inf, -math.inf, f32(3e38), f32(-3e38), -0.0, f32(1e-44)]
        k = Quant("token", 0, 4, 3, 2, 4, g=4, salt=299)
        return Crossed(p, [(0, 0, BF16, k), (0, 1, F32, wild), (1, 0, BF16, None), (1, 1, F16, None)]).file()

    def broken(name, words, sentence, change=None, **options):
        """Of K and V of two layers; the tensor that change() is about is 3 where not said."""
        bad("cross-" + name, words, sentence, "read")(lambda: Crossed(Profile(ANGLES), four(BF16)).file(change, **options))

    def inputs(name, words, sentence, *named, tensor=3):
        broken("inputs-" + name, words, sentence, other_bytes(INPUTS, lambda b: u32(*named), tensor=tensor))

    for name, sentence, size in (("empty", "INPUTS of no bytes.", 0), ("short", "INPUTS of three bytes.", 3),
                                 ("cut", "INPUTS of an entry and a half.", 6)):
        broken("inputs-" + name, "INPUTS", sentence,
               other_bytes(INPUTS, lambda b, size=size: (b + bytes(8))[:size], tensor=3))
    inputs("many", "INPUTS", "17 entries.", 0, 1, 2, *[MISSING] * 14)
    inputs("self", "INPUTS", "K names itself.", 0, 2, tensor=2)
    inputs("later", "INPUTS", "K names V of its layer, which comes later.", 0, 3, tensor=2)
    inputs("beyond", "INPUTS", "A tensor 4, which is not there.", 0, 1, 4)
    inputs("role", "INPUTS", "V of the layer before where K is due, and K for V.", 1, 0, 2)
    inputs("layer", "INPUTS", "K of the layer before where its own is due.", 0, 1, 0)
    inputs("few", "INPUTS", "Two entries for a predictor of three inputs.", 0, 1)
    inputs("more", "INPUTS", "Four entries for a predictor of three inputs.", 0, 1, 2, MISSING)
    broken("inputs-index", "INPUTS", "INPUTS is number 1.", lambda f: section(f, INPUTS, tensor=3).__dict__.update(index=1))
    broken("inputs-coder", "INPUTS", "INPUTS is a zstd frame.", lambda f: section(f, INPUTS, tensor=3).__dict__.update(coder=1))
    broken("inputs-two", "more than are due", "INPUTS twice.", lambda f: more(section(f, INPUTS, tensor=3), 3, kind=SIDE)(f))
    broken("inputs-block", "CODES", "INPUTS in a block.", lambda f: more(section(f, INPUTS, tensor=3), 3, 0)(f))
    broken("inputs-missing", "rotation", "Turn 3 in a block of a segment without INPUTS.", without(INPUTS, tensor=3))
    broken("inputs-part", "INPUTS", "Tensors of another part.", layers=[(0, 0, 0, 0), (1, 1, 0, 0)],
           parts=[Part([7, 8, 9]), Part([7, 8, 9], stream=1)])
    broken("position", "position", "Rows from position -3 on.",
           lambda f: setattr(f.of(CELLS).sections[0], "raw", svarint(-3) + varint(3)))

    @bad("cross-inputs-dtype", "INPUTS", "K of u8 as an input.", "read")
    def _():
        return Crossed(Profile(ANGLES), [(0, 0, U8, [[float(x) for x in some(12, 305 + i, 0, 255)] for i in range(3)])] +
                       four(BF16)[1:]).file()

    @bad("cross-inputs-width", "does not predict", "K of 12 channels where the profile says 6.", "read")
    def _():
        return Crossed(Profile(ANGLES, bare=((0, 0),)), four(BF16)).file()

    # the profile
    @good("profile-beside", "A file that names its profile and does not carry it.")
    def _():
        x = Crossed(Profile(ANGLES), four(BF16))
        f = x.file(profile=b"")
        f.profile = x.profile.bytes()
        return f
    broken("profile-other", "not the one", "Another profile than the one named.", profile=Profile(ANGLES, salt=301).bytes())

    @bad("cross-profile-unnamed", "name no profile", "The metadata name no profile.", "read")
    def _():
        x = Crossed(Profile(ANGLES), four(BF16))
        del x.meta["profile.sha256"], x.meta["profile.model"]
        return x.file(profile=b"")
    bad("cross-profile-version-0", "does not predict", "A profile without predictors.", "read")(
        lambda: Crossed(Profile(ANGLES, version=0), four(BF16)).file())

    unsupported("cross-profile", "version '9'", "A profile of a later version.", "read")(
        lambda: edited(lambda f: f.refused.update((1, 2, 3)), lambda: Crossed(Profile(ANGLES, version=9), four(BF16))))

    @bad("cross-profile-columns", "does not fit", "A predictor of a column less than the layers before have channels.", "read")
    def _():
        p = Profile(ANGLES)
        x = Crossed(p, four(BF16))
        p.weight[1, 1] = [row[:-1] for row in p.weight[1, 1]]
        x.meta["profile.sha256"] = 6, hashlib.sha256(p.bytes()).digest()
        return x.file()

    @bad("cross-profile-gain", "out of range", "A gain of 2^40.", "read")
    def _():
        p = Profile(ANGLES)
        p.gain[1, 0][3] = 2.0**40
        return Crossed(p, four(BF16)).file()

    # a predicted block
    broken("codes-cut", "too short", "The stream lacks a word.", other_bytes(CODES, lambda b: b[:-2], tensor=3))
    broken("codes-flipped", "stream", "A bit of the stream's last word is another.",
           other_bytes(CODES, lambda b: b[:-1] + u8(b[-1] ^ 16), tensor=3))
    broken("params-long", "channel model", "A byte follows the model of turn 3.",
           other_bytes(PARAMS, lambda b: b + b"\0", tensor=3))
    broken("params-padding", "channel model", "The last padding bit of turn 3's PARAMS is set.",
           other_bytes(PARAMS, lambda b: b[:-1] + u8(b[-1] | 0x80), tensor=3))
    bad("split-params-ahead", "rotation", "Turn 3, which only cross has, and nothing else.", "read")(
        lambda: coded([Tensor(0, 0, BF16, rows=near(BF16, MEANS, 5))],
                      [split_by(model=Ahead([[0.0] * 8] * 5, SMALL.spreads, SMALL.means))], SPLIT))


def predict_files():
    good("predict", "K and V of two layers, before RoPE, V of the first from its K.")(
        lambda: Predicted(Profile(ANGLES), four(BF16), FAR).file())
    good("predict-interleaved", "f16 whose K is paired as 2i and 2i + 1.")(
        lambda: Predicted(Profile(ANGLES, pairing=2, salt=400), four(F16), FAR, 2).file())
    good("predict-unrotated", "K that is not rotated, or unknown, with a profile that has angles.")(
        lambda: Predicted(Profile(ANGLES, salt=700), four(F32), FAR, 0).file())
    good("predict-missing", "Missing inputs: V of the layer before, the whole layer before. A layer that RoPE leaves out.")(
        lambda: Predicted(Profile([ANGLES[0], [], [], ANGLES[1]], salt=500),
                          [(n, v, BF16, None) for n, v in ((0, 0), (1, 0), (1, 1), (3, 0), (3, 1))], FAR).file())

    @good("predict-inputs", "Predicted from rows coded with loss, and from rows with NaN and infinities.")
    def _():
        wild = some_matrix(3, 8, 308)
        wild[1] = [math.nan, math.inf, -math.inf, 0.0, f32(3e38), f32(-3e38), -0.0, f32(1e-44)]
        k = Quant("token", 0, 4, 3, 2, 4, g=4, salt=299)
        return Predicted(Profile(ANGLES, 2, 4, salt=800),
                         [(0, 0, BF16, k), (0, 1, F32, wild), (1, 0, BF16, None), (1, 1, F16, None)]).file()

    def broken(name, words, sentence, change=None, **options):
        bad("predict-" + name, words, sentence, "read")(lambda: Predicted(Profile(ANGLES), four(BF16), **options).file(change))

    broken("residual-missing", "basis for what is predicted", "A profile without bases of what predictions leave.",
           residual=False)

    @bad("predict-rope-kept", "before RoPE", "K with a rotation is predicted without derope before.", "read")
    def _():
        x = Predicted(Profile(ANGLES), four(BF16))
        x.LINE = FINITE, PREDICT, STORE
        return x.file()
    broken("block-section", "more than are due", "A block has a section of the stage.",
           lambda f: more(Section(INPUTS, u32(0), stage=1), 3, 0)(f))
    broken("inputs-later", "INPUTS", "K names V of its layer, which comes later.",
           other_bytes(INPUTS, lambda b: u32(0, 3), tensor=2))
    broken("inputs-role", "INPUTS", "V of the layer before where K is due.", other_bytes(INPUTS, lambda b: u32(1, 0, 2), tensor=3))
    broken("inputs-cut", "INPUTS", "INPUTS of an entry and a half.", other_bytes(INPUTS, lambda b: b[:6], tensor=3))


def lossy_files():
    for add in (quant_files, floats_files, ends_files, outlier_files, lowrank_files, prune_files, saliency_files,
                merge_files, project_files, derope_files, center_files, basis_files, code_files):
        add()


def cases():
    """All cases by name, each with an explanation: (name, where, words, sentence, make)."""
    for add in (good_files, prefix_files, frame_files, record_files, own_files, block_files, stage_files, lossy_files,
                cross_files, predict_files):
        add()
    names = [name for name, *_ in CASES]
    assert len(set(names)) == len(names), "two files have one name"
    for name, _, _, sentence, _ in CASES:
        assert len(sentence) > 1 and sentence.endswith("."), f"{name} has no explanation"
    return sorted(CASES, key=lambda x: x[0])


def expected(found):
    """expected.txt: for each file that is refused, when kvc's own reader does, and words of its message."""
    return "".join(f"{name}.kvc {where} {words}\n" for name, where, words, _, _ in found if where)


VERDICTS = {"good": "valid", "bad": "invalid", "unsupported": "unsupported"}


def must_come_out(f):
    """What a reader must find in a valid file, or in what it reads of another."""
    sums = [sum(r.rows_digest for r in f.records if r.kind == BLOCK and r.subject == i) % 2**64 for i in range(len(f.named))]
    tensors = enumerate(zip(f.named, sums))
    out = {"tensors": [[layer, role, f"{digest:016x}"] for i, ((layer, role), digest) in tensors if i not in f.refused]}
    if f.source is not None and not f.refused:
        out["source"] = hashlib.sha256(f.source).hexdigest()
    return out


class ZeroBlock(Record):
    """A BLOCK record of 256 rows of zeros, which are its gap."""
    def __init__(self, row, number):
        zeros = bytes(row)
        super().__init__(BLOCK, [Section(RAW, b"", stage=0)], 0, number,
                         sum(xxh3(zeros, 256 * number + i) for i in range(256)) % 2**64)
        self.gap = 256 * row

    def bytes(self):
        head = u8(BLOCK, 1) + u16(1) + u32((48 + self.gap) // 16) + u32(0, self.number) + u64(self.digest)
        entry = u8(RAW, 0, 0, 0) + u32(self.gap) + u64(self.gap)
        return head + u64(xxh3(entry + bytes(self.gap), xxh3(head))) + entry


def write_far(path):
    """Writes a sparse file of more than 4 GiB, and returns its entry of the index: 65 blocks of 64 MiB of zeros."""
    row, blocks = 1 << 18, 65
    c = Cache([Part(list(range(256 * blocks)))], [(0, 0, 0, 0)], [Tensor(0, 0, U8, 1, row, rows=range(256 * blocks))], literals=False)
    f = File([c.meta_record(), c.table_record(), c.cells_record(0), *(ZeroBlock(row, b) for b in range(blocks))])
    f.named, out, at = [(0, "K")], f.bytes(), 0
    with path.open("wb") as file:
        for end, gap in f.gaps:
            file.write(out[at:end])
            file.seek(gap, 1)
            at = end
        file.write(out[at:])
    return {"file": str(path), "verdict": "valid", "about": "More than 4 GiB of zeros.", **must_come_out(f)}


def golden_tensors(data):
    """The tensors of a file that kvc wrote, whose digests tests/golden compares with its own list."""
    at, table, digests = 32, b"", {}
    while data[at] != INDEX:
        kind, _, sections, units, subject, _, digest = struct.unpack_from("<BBHIIIQ", data, at)
        if kind == TABLE:
            _, coder, _, _, stored, size = struct.unpack_from("<BBBBIQ", data, at + 32)
            table = data[at + 32 + 16 * sections:][:stored]
            if coder:
                out = ctypes.create_string_buffer(size)
                assert libzstd.ZSTD_decompress(out, size, table, stored) == size
                table = out.raw
        if kind == BLOCK:
            digests[subject] = (digests.get(subject, 0) + digest) % 2**64
        at += 16 * units
    parts, layers, tensors = struct.unpack_from("<3I", table)
    index = [struct.unpack_from("<I", table, 28 + 24 * parts + 16 * i + 4)[0] for i in range(layers)]
    out = []
    for i in range(tensors):
        layer, role = struct.unpack_from("<IB", table, 28 + 24 * parts + 16 * layers + 64 * i)
        out.append([index[layer], ROLES[role], f"{digests[i]:016x}"])
    return out


def golden_files():
    """Entries of the index for the files of tests/golden."""
    text = (HERE.parent / "golden" / "golden.c").read_text()
    recipes = dict(re.findall(r'\{"([a-z0-9_-]+)",\s*"([^"]+)",\s*[A-Z]+,\s*[01]\}', text))
    for path in sorted((HERE.parent / "golden").glob("*.kvc")):
        data, recipe = path.read_bytes(), recipes[path.stem.rpartition("-v")[0]]
        yield {"file": f"../golden/{path.name}", "verdict": "valid", "about": f"What kvc wrote by the recipe {recipe}.", "rules": [],
               "sha256": hashlib.sha256(data).hexdigest(), "tensors": golden_tensors(data)}


def read_index():
    path = HERE / "index.json"
    return {x["file"]: x for x in json.loads(path.read_text())} if path.exists() else {}


def make_index(found, make_missing=False):
    """index.json as it should be. Hashes that it lists already stay."""
    listed, entries, faults = read_index(), [], []
    stored, made = {x.name for x in FILES.glob("*.kvc")}, {f"{name}.kvc" for name, *_ in found}
    if stored - made:
        faults.append(f"without an explanation: {' '.join(sorted(stored - made))}")
    for name, _, _, sentence, make in found:
        path, f = FILES / f"{name}.kvc", make()
        entry = {"file": f"files/{path.name}", "verdict": VERDICTS[name.split("-")[0]], "about": sentence, "rules": rules.of(name)}
        if make_missing and not path.exists() and entry["file"] not in listed:
            path.write_bytes(f if isinstance(f, bytes) else f.bytes())
            if getattr(f, "profile", None):
                path.with_suffix(".kvcp").write_bytes(f.profile)
            if getattr(f, "weights", None):
                path.with_suffix(".safetensors").write_bytes(f.weights)
        if not path.exists():
            faults.append(f"missing: {path.name}")
            continue
        entry["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        if path.with_suffix(".kvcp").exists():
            entry["profile"] = f"files/{path.stem}.kvcp"
        if path.with_suffix(".safetensors").exists():
            entry["weights"] = f"files/{path.stem}.safetensors"
        entries.append({**entry, **(must_come_out(f) if entry["verdict"] == "valid" or getattr(f, "refused", None) else {})})
    entries += golden_files()
    for x in entries:
        if x["sha256"] != listed.get(x["file"], x)["sha256"]:
            faults.append(f"not the file of that name that was made once: {x['file']}")
    faults += [f"listed, and no longer made: {name}" for name in sorted(set(listed) - {x["file"] for x in entries})]
    if faults:
        sys.exit("tests/conformance: " + "\n".join(faults))
    return "[\n" + ",\n".join(json.dumps(x, ensure_ascii=False) for x in entries) + "\n]\n"


def lists(found, make_missing=False):
    return {HERE / "index.json": make_index(found, make_missing), HERE / "expected.txt": expected(found)}


def check():
    for path, text in lists(cases()).items():
        if path.read_text() != text:
            sys.exit(f"tests/conformance/{path.name} is not what make_files.py writes")


def explain():
    for name, where, words, sentence, _ in cases():
        print(f"{name}.kvc: {sentence}" + (f" [{where}: {words}]" if where else ""))


def write():
    for path, text in lists(cases(), True).items():
        path.write_text(text)


if __name__ == "__main__":
    {(): write, ("--explain",): explain, ("--check",): check}[tuple(sys.argv[1:])]()
