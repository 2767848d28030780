#!/usr/bin/env python3
"""make_files.py: makes the .kvc files beside it and their README.md. A second writer of the format, made from
formats/FORMAT.md alone and without a line of kvc's own code, so that a shared misreading shows.

    make_files.py [DIRECTORY]

Standard library only; XXH3 and zstd come from the shared libraries that kvc uses as well.
"""
import copy
import ctypes
import ctypes.util
import hashlib
import pathlib
import struct
import sys

xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash"))
xxhash.XXH3_64bits_withSeed.restype = ctypes.c_uint64
xxhash.XXH3_64bits_withSeed.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint64
libzstd = ctypes.CDLL(ctypes.util.find_library("zstd"))
libzstd.ZSTD_compress.restype = libzstd.ZSTD_compressBound.restype = ctypes.c_size_t
libzstd.ZSTD_compress.argtypes = ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int
libzstd.ZSTD_compressBound.argtypes = ctypes.c_size_t,

NONE = 0xFFFFFFFF
META, TABLE, CELLS, TOKENS, SOURCE, SIDE, BLOCK, PROFILE, PAD, INDEX = range(1, 11)
RAW, PLANE, SAME = 1, 2, 32
S_META, S_TABLE, S_POSITIONS, S_WORDS, S_TOKENS, S_KEYS, S_EXTENTS, S_LITERALS, S_INDEX = range(40, 49)
F32, F16, BF16, F8E4M3, F8E5M2, U8, I8 = range(7)
Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, IQ4_NL = range(16, 22)
SIZES = {F32: (1, 4), F16: (1, 2), BF16: (1, 2), F8E4M3: (1, 1), F8E5M2: (1, 1), U8: (1, 1), I8: (1, 1),
         Q8_0: (32, 34), Q4_0: (32, 18), Q4_1: (32, 20), Q5_0: (32, 22), Q5_1: (32, 24), IQ4_NL: (32, 18)}
STORE, ZSTD = (1, b""), (2, b"")  # stages: id and arguments
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


def patch(data, at, new):
    return data[:at] + new + data[at + len(new):]


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
    def __init__(self, kind, sections=(), subject=NONE, number=0, digest=0, flags=1, tail=b""):
        self.kind, self.sections, self.subject, self.number = kind, list(sections), subject, number
        self.digest, self.flags, self.tail = digest, flags, tail
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
        self.write, self.read, self.align, self.reserved = 0, 0, 4, bytes(11)
        self.index = None      # a function on the list of index entries
        self.index_coder = 0
        self.footer = {}       # index, size, magic

    def of(self, kind, n=0):
        return [r for r in self.records if r.kind == kind][n]

    def bytes(self):
        out = MAGIC + u16(self.write, self.read) + u8(self.align) + self.reserved
        out += u64(xxh3(out))
        entries = []
        for r in self.records:
            data = r.bytes()
            entries.append([r.kind, len(data) // 16, 0 if r.subject == NONE else r.subject + 1, r.number])
            out += data
        if self.index:
            entries = self.index(entries)
        raw = b"".join(x if isinstance(x, bytes) else b"".join(map(varint, x)) for x in entries)
        at = len(out)
        out += Record(INDEX, [Section(S_INDEX, raw, coder=self.index_coder)]).bytes()
        footer = u64(self.footer.get("index", at), self.footer.get("size", len(out) + 32))
        footer += self.footer.get("magic", MAGIC_END)
        return out + footer + u64(xxh3(footer))


# --- a cache ---

class Part:
    def __init__(self, positions, kind=0, stream=0, checkpoint=0, words=None):
        self.positions, self.words = positions, words
        self.kind, self.stream, self.checkpoint = kind, stream, checkpoint
        self.order = sorted(range(len(positions)), key=lambda i: (positions[i], i))
        self.blocks = []
        window = None
        for row, cell in enumerate(self.order):
            if window != positions[cell] // 256 or row - self.blocks[-1] == 256:
                self.blocks.append(row)
            window = positions[cell] // 256


class Tensor:
    """rows: canonical rows by cell number; made up when not given."""
    def __init__(self, layer, role, dtype=F16, heads=2, dim=4, pipeline=0, rows=None, source=None):
        self.layer, self.role, self.dtype, self.pipeline = layer, role, dtype, pipeline
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
        self.same = {}  # (tensor, block): entries (row, count, tensor, block, row there)
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
        body = u32(len(self.parts), len(self.layers), len(self.tensors), len(self.pipelines))
        for p in self.parts:
            body += u8(p.kind, 0, 0, 0) + u32(p.stream, p.checkpoint, 0) + u64(len(p.positions))
        for part, index, kind, window in self.layers:
            body += u32(part, index) + u8(kind, 0, 0, 0) + u32(window)
        for t in self.tensors:
            body += u32(t.layer) + u8(t.role, t.dtype) + u16(t.pipeline) + u64(t.heads, t.dim)
            body += u64(*self.strides(t), t.row * len(t.rows))
        for stages in self.pipelines:
            body += u8(len(stages))
            for number, text in stages:
                body += u16(number) + u8(len(text)) + text
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
        if left and self.pipelines[t.pipeline][-1][0] == 1:
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
        return File(records)


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
    """A sliding part of three cells, a checkpoint that repeats rows 1 and 2 of it, one checkpoint more."""
    k, v = Tensor(0, 0), Tensor(0, 1)
    k.fill(3, 70)
    v.fill(3, 71)
    new = [hashlib.shake_128(u32(72, i)).digest(16) for i in range(2)]
    c = Cache([Part([7, 8, 9], kind=1), Part([8, 9, 10], kind=3), Part([9, 11], kind=3, checkpoint=1)],
              [(0, 0, 1, 512), (1, 0, 1, 512), (2, 0, 1, 512)],
              [k, v, Tensor(1, 0, rows=k.rows[1:] + new[:1]), Tensor(1, 1, rows=v.rows[1:] + new[1:]),
               Tensor(2, 0, rows=[k.rows[2], new[0]]), Tensor(2, 1, rows=[v.rows[2], v.rows[2]])], **options)
    c.same = {(2, 0): [(0, 2, 0, 0, 1)], (3, 0): [(0, 2, 1, 0, 1)], (4, 0): [(0, 1, 0, 0, 2), (1, 1, 2, 0, 2)],
              (5, 0): [(0, 1, 1, 0, 2), (1, 1, 1, 0, 2)]}
    return c


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


def unsupported(name, words, sentence):
    return case("unsupported-" + name, sentence, words)


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
T_PART, T_LAYER, T_TENSOR, T_PIPELINE = 16, 40, 56, 168


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
    good("same", "Two checkpoints whose rows refer to the sliding cache and to each other's own rows.")(
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
                      pipelines=((STORE,), ((2, b"level=7"),))).file())

    def keys(identity, tokens):
        chain, out = hashlib.sha256(b"kvc prefix 0\n" + identity).digest(), b""
        for i in range(0, len(tokens) - 255, 256):
            chain = hashlib.sha256(chain + struct.pack("<256i", *tokens[i:i + 256])).digest()
            out += chain
        return out
    ids = list(range(600))

    def with_keys(tokens, value):
        return Cache([Part([0])], [(0, 0, 0, 0)], [Tensor(0, 0)], tokens=tokens, keys=value,
                     meta={"prefix.identity": text("unknown")})
    good("keys", "600 token ids and the two prefix keys that follow from them.")(
        lambda: with_keys(ids, keys(b"unknown", ids)).file())
    good("keys-alone", "Prefix keys without the token ids.")(
        lambda: with_keys(None, keys(b"unknown", ids)).file())
    bad("keys-count", "prefix keys", "Three prefix keys for 600 tokens.")(
        lambda: with_keys(ids, keys(b"unknown", ids) + bytes(32)).file())
    bad("keys-missing", "prefix keys", "One prefix key for 600 tokens.")(
        lambda: with_keys(ids, keys(b"unknown", ids)[:32]).file())
    bad("keys-size", "no whole number", "Prefix keys of 33 bytes.")(
        lambda: with_keys(None, bytes(33)).file())

    good("no-source", "Without SOURCE records: the source file cannot be put together again.")(
        lambda: small(literals=False).file())

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

    @good("write-version", "Written by version 9, readable from version 0 on.")
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
    cut("header-check", "header: checksum", "A reserved bit of the header is set without mending the check.",
        lambda b: patch(b, 13, b"\1"))
    cut("footer-check", "footer: checksum", "The footer's file size changed without mending the check.",
        lambda b: patch(b, len(b) - 24, b"\1"))
    cut("record-check", "checksum mismatch", "One bit of the metadata flipped.",
        lambda b: patch(b, 100, u8(b[100] ^ 4)))

    def file(name, words, sentence, change, where="open"):
        bad(name, words, sentence, where)(lambda: edited(change))

    def header(**values):
        return lambda f: f.__dict__.update(values)
    file("align-8", "alignment", "Extents aligned to 8 bytes.", header(align=3))
    file("align-2m", "alignment", "Extents aligned to 2 MiB.", header(align=21))
    file("footer-magic", "no footer", "Another magic in the footer.", header(footer={"magic": b"\x89KVCEND\r"}))
    file("footer-size", "the footer says", "The footer counts 16 bytes too many.",
         lambda f: f.footer.update(size=len(f.bytes()) + 16))
    file("footer-index-beyond", "index offset", "The index lies beyond the file.", header(footer={"index": 1 << 40}))
    file("footer-index-odd", "index offset", "The index begins at no multiple of 16.", header(footer={"index": 40}))
    file("footer-index-elsewhere", "does not point at the INDEX", "The footer points at the metadata.",
         header(footer={"index": 32}))
    for name, field in (("read-version", {"read": 1, "write": 1}), ):
        unsupported(name, "version 1", "Needs a reader of format version 1.")(
            lambda field=field: edited(header(**field)))
    unsupported("header-reserved", "reserved byte 23", "The last reserved byte of the header is set.")(
        lambda: edited(header(reserved=bytes(10) + b"\1")))

    # the index
    file("index-type", "disagree", "The index calls the TOKENS record a PROFILE, which readers skip.",
         header(index=lambda x: x[:3] + [[PROFILE] + x[3][1:]] + x[4:]), "check")
    file("index-number", "disagree", "The index gives the CELLS record another number.",
         header(index=lambda x: x[:2] + [x[2][:3] + [1]] + x[3:]))
    file("index-size", "does not fit", "The index gives the last record more bytes than there are.",
         header(index=lambda x: x[:-1] + [[x[-1][0], x[-1][1] + 1] + x[-1][2:]]))
    file("index-tiny", "does not fit", "A record of 16 bytes.", header(index=lambda x: [[9, 1, 0, 0]] + x))
    file("index-gap", "belong to no record", "The last record is missing in the index.", header(index=lambda x: x[:-1]))
    file("index-cut", "cut short", "The last entry of the index lacks its number.",
         header(index=lambda x: x[:-1] + [b"".join(map(varint, x[-1][:3]))]))
    file("index-varint", "cut short", "A varint of the index is not in its shortest form.",
         header(index=lambda x: [b"\x81\x00" + b"".join(map(varint, x[0][1:]))] + x[1:]))


def record_files():
    def file(name, words, sentence, change, where="open"):
        bad(name, words, sentence, where)(lambda: edited(change))

    def swap(kind, other):
        def change(f):
            i, j = f.records.index(f.of(kind)), f.records.index(f.of(other))
            f.records[i], f.records[j] = f.records[j], f.records[i]
        return change
    file("order-table-first", "META", "TABLE stands before META.", swap(META, TABLE))
    file("order-tokens-late", "not the record due", "TOKENS stands behind SOURCE.", swap(TOKENS, SOURCE))
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
    file("side-record", "SIDE", "A SIDE record: no stage of version 0 has side data.",
         lambda f: f.records.insert(len(f.records) - 2, Record(SIDE, [Section(10, b"mean")], 0, 0)))
    unsupported("record-type", "type 77", "A critical record of type 77.")(
        lambda: edited(lambda f: f.records.insert(3, Record(77))))
    unsupported("record-flags", "flag", "A reserved flag bit of the TABLE record is set.")(
        lambda: edited(lambda f: setattr(f.of(TABLE), "flags", 3)))
    unsupported("section-coder", "byte coder 9", "The metadata's byte coder is 9.")(
        lambda: edited(lambda f: f.of(META).sections[0].__dict__.update(coder=9, stored=f.of(META).sections[0].raw)))
    file("record-not-critical", "critical flag", "The TABLE record is not marked critical.",
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
    file("record-slack", "follow its last section", "16 zero bytes behind the last section.",
         lambda f: setattr(f.of(META), "tail", bytes(16)))
    file("meta-two-sections", "META", "META has a second section.",
         lambda f: f.of(META).sections.append(Section(S_META, u32(0))))
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
    meta("type", "'a'", "A value of type 8.", u32(1) + key("a", 8))
    meta("cut", "cut short", "Two keys are announced, one is there.", u32(2) + key("a"))
    meta("trailing", "follow", "A byte behind the last key.", u32(1) + key("a") + b"\0")
    unsupported("meta-critical", "'x-test.must'", "A critical key that this reader does not know.")(
        payload(META, lambda raw: u32(1) + key("x-test.must", critical=1)))
    unsupported("meta-reserved", "reserved", "A reserved byte of a metadata key is set.")(
        payload(META, lambda raw: u32(1) + key("a", reserved=1)))

    def tab(name, words, sentence, change):
        bad(name, words, sentence)(table(change))

    def at(offset, new):
        return lambda raw: patch(raw, offset, new)
    tab("table-cut", "cut short", "The table announces a tensor more than it holds.", at(8, u32(3)))
    tab("table-short", "cut short", "A table of 12 bytes.", lambda raw: raw[:12])
    tab("table-trailing", "follow the table", "A byte behind the last pipeline.", lambda raw: raw + b"\0")
    tab("cells-beyond-blocks", "more than the blocks", "513 cells in two blocks.", at(T_PART + 16, u64(513)))
    tab("cells-huge", "more than the blocks", "2^63 cells.", at(T_PART + 16, u64(1 << 63)))
    tab("layer-part", "no part", "A layer of part 1, which is not there.", at(T_LAYER, u32(1)))
    tab("tensor-layer", "no layer", "A tensor of layer 1, which is not there.", at(T_TENSOR, u32(1)))
    tab("tensor-twice", "two tensors", "Two K of one layer.", at(T_TENSOR + 56 + 4, u8(0)))
    tab("tensor-pipeline", "no pipeline", "A tensor of pipeline 1, which is not there.", at(T_TENSOR + 6, u16(1)))
    tab("tensor-no-heads", "make no tensor", "A tensor of no heads.", at(T_TENSOR + 8, u64(0)))
    tab("tensor-overflow", "make no tensor", "2^40 heads of 2^40 values.", at(T_TENSOR + 8, u64(1 << 40, 1 << 40)))
    tab("tensor-row", "make no tensor", "A row of one byte more than 2^28.",
        lambda raw: patch(patch(raw, T_TENSOR + 8, u64(1, (1 << 28) + 1)), T_TENSOR + 5, u8(U8)))
    tab("tensor-block", "make no tensor", "Rows of 8 values in blocks of 32.", at(T_TENSOR + 5, u8(Q8_0)))
    tab("region-beyond", "beyond", "The source region is one byte too short.", at(T_TENSOR + 48, u64(79)))
    tab("region-stride", "beyond", "The last cell lies beyond the source region.", at(T_TENSOR + 24, u64(17)))
    tab("region-overlap", "beyond", "Cells overlap in the source region.", at(T_TENSOR + 24, u64(15)))
    tab("region-size", "region", "The source region of an 80-byte tensor is 2^47 bytes long.",
        at(T_TENSOR + 48, u64(1 << 47)))
    tab("pipeline-empty", "stages", "A pipeline of no stages.", at(T_PIPELINE, u8(0)))
    tab("pipeline-long", "stages", "A pipeline of 18 stages.", at(T_PIPELINE, u8(18)))
    tab("pipeline-cut", "cut short", "Arguments of a stage reach beyond the table.", at(T_PIPELINE + 3, u8(200)))
    tab("pipeline-terminal", "terminal", "Two terminal stages in a row.",
        lambda raw: raw[:T_PIPELINE] + u8(2) + (u16(1) + u8(0)) * 2)
    tab("pipeline-arguments", "malformed", "zstd:level=99.",
        lambda raw: raw[:T_PIPELINE] + u8(1) + u16(2) + u8(8) + b"level=99")
    tab("pipelines", "too many pipelines", "1025 pipelines.",
        lambda raw: patch(raw, 12, u32(1025)) + raw[T_PIPELINE:] * 1024)
    tab("pipeline-canonical", "canonical", "zstd:level=1, whose canonical text is empty.",
        lambda raw: raw[:T_PIPELINE] + u8(1) + u16(2) + u8(7) + b"level=1")
    unsupported("stage", "stage id 99", "A pipeline with stage 99.")(table(at(T_PIPELINE + 1, u16(99))))
    unsupported("part-kind", "part kind 5", "A part of kind 5.")(table(at(T_PART, u8(5))))
    unsupported("layer-kind", "layer kind 5", "A layer of kind 5.")(table(at(T_LAYER + 8, u8(5))))
    unsupported("role", "role 7", "A tensor of role 7.")(table(at(T_TENSOR + 4, u8(7))))
    unsupported("dtype", "dtype 7", "A tensor of dtype 7.")(table(at(T_TENSOR + 5, u8(7))))
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
    positions("trailing", "follow", "A run behind the last cell.", b"\0\5\0\1")
    positions("overflow", "malformed", "The last position is beyond 63 bits.", svarint(2**63 - 3) + b"\5")
    positions("none", "malformed", "No positions at all.", b"")

    def words_file(name, message, sentence, value):
        @bad("words-" + name, message, sentence)
        def _():
            f = Cache([Part([0, 1], words=[[1], [2]])], [(0, 0, 0, 0)], [Tensor(0, 0)]).file()
            f.of(CELLS).sections[1].raw = value
            return f
    words_file("cut", "words", "Two words are announced, one follows.", b"\1\1" + u32(1))
    words_file("more", "words", "Three bytes behind the last word.", b"\1\1" + u32(1, 2) + bytes(3))
    words_file("count", "words", "A cell of 2^40 words.", varint(1 << 40) + b"\1" + u32(1))
    bad("cells-sections", "CELLS", "WORDS stands before POSITIONS.")(
        lambda: edited(lambda f: f.of(CELLS).sections.insert(0, Section(S_WORDS, b"\0" * 5))))
    bad("tokens-size", "no whole number", "Token ids of 19 bytes.")(payload(TOKENS, lambda raw: raw[:-1]))
    bad("tokens-none", "TOKENS", "A TOKENS record without sections.")(
        lambda: edited(lambda f: f.of(TOKENS).sections.clear() or f))

    def extents(name, words, sentence, value):
        bad("extents-" + name, words, sentence)(payload(SOURCE, lambda raw: value))
    literal = varint(0) + varint(40)
    extents("tensor-twice", "extent", "Tensor 0 occurs twice.", varint(3) + literal + b"\1\1")
    extents("tensor-missing", "every tensor", "Tensor 1 does not occur.", varint(2) + literal + b"\1")
    extents("tensor-unknown", "extent", "Tensor 2 occurs, which is not there.", varint(4) + literal + b"\1\2\3")
    extents("cut", "cut short", "Four extents are announced, three are there.", varint(4) + literal + b"\1\2")
    extents("trailing", "follow", "A byte behind the last extent.", varint(3) + literal + b"\1\2\0")
    extents("none", "extents", "No extents.", varint(0))
    extents("count", "cut short", "2^60 extents.", varint(1 << 60) + literal)
    extents("overflow", "overflow", "Two literals of 2^63 bytes.", varint(4) + b"\0" + varint(1 << 63) + b"\1\0" + varint(1 << 63) + b"\2")
    extents("empty-literal", "is empty", "A literal extent of no bytes.", varint(3) + b"\0\0\1\2")
    extents("two-literals", "continues", "Two literal extents in a row.", varint(4) + b"\0\1\0\1\1\2")
    extents("literals-missing", "LITERALS", "One literal byte more than LITERALS holds.",
            varint(3) + varint(0) + varint(41) + b"\1\2")
    extents("literals-chunk", "LITERALS", "More literal bytes than one chunk holds, and no second chunk.",
            varint(3) + varint(0) + varint((1 << 22) + 1) + b"\1\2")
    bad("source-order", "out of order", "SOURCE begins with chunk 1.")(
        lambda: edited(lambda f: setattr(f.of(SOURCE), "number", 1)))
    bad("source-empty-chunk", "chunk 1", "A SOURCE chunk 1 without sections.")(
        lambda: edited(lambda f: f.records.insert(f.records.index(f.of(SOURCE)) + 1, Record(SOURCE, number=1))))
    bad("source-no-extents", "EXTENTS", "SOURCE without EXTENTS.")(
        lambda: edited(lambda f: f.of(SOURCE).sections.pop(0) and f))
    bad("source-literals-stage", "LITERALS", "LITERALS claims a stage.")(
        lambda: edited(lambda f: setattr(f.of(SOURCE).sections[1], "stage", 0)))
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
    block("stage", "RAW", "RAW claims stage 1 of a pipeline of one.", lambda r: setattr(r.sections[0], "stage", 1))
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
    block("check", "checksum mismatch", "One bit of V's rows flipped.",
          lambda r: r.late_patches.append((50, u8(r.bytes()[50] ^ 1))), n=1)
    block("digest", "digest", "The record's own check is right, but the digest of the rows is that of others.",
          lambda r: setattr(r, "digest", r.digest ^ 1), n=1, where="check")

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
    same("cut", "whole entries", "An entry of 19 bytes.", 2, [(0, 2, 0, 0, 1)],
         change=lambda r: setattr(r.sections[0], "raw", r.sections[0].raw[:-1]))
    same("empty", "whole entries", "A SAME section without entries.", 2, [(0, 2, 0, 0, 1)],
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


README = """# Container files

Small .kvc files that every reader must take (`good-`), refuse as broken (`bad-`) or refuse as beyond it
(`unsupported-`). `make_files.py` writes them and this page from `formats/FORMAT.md`, without kvc's own code;
`tests/unit/test_files.c` reads the tables below and holds the reader to them.

A good file opens, reads whole and passes `--check`. Where it holds the key `x-test.source`, that is the XXH3 of its
source file, which must come back. Any other file is refused by a message that contains the words given, when it is
opened, when its rows and literals are read, or when `--check` reads all of it.
"""


def main(directory):
    for add in (good_files, frame_files, record_files, own_files, block_files):
        add()
    names = [name for name, *_ in CASES]
    assert len(set(names)) == len(names)
    page = README
    for group, title in (("good", "Good"), ("bad", "Bad"), ("unsupported", "Unsupported")):
        page += f"\n## {title}\n"
        page += "| file | |\n| --- | --- |\n" if group == "good" else \
                "| file | refused at | words | |\n| --- | --- | --- | --- |\n"
        for name, where, words, sentence, make in sorted(CASES, key=lambda x: x[0]):
            if name.split("-")[0] != group:
                continue
            data = make()
            (directory / f"{name}.kvc").write_bytes(data if isinstance(data, bytes) else data.bytes())
            page += f"| {name}.kvc | " + (f"{where} | {words} | " if where else "") + f"{sentence} |\n"
    (directory / "README.md").write_text(page)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent))
