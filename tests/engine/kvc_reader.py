"""kvc_reader.py: a small second reader of .kvc files, written from formats/container/FORMAT.md and codecs/*.md alone,
to show that those pages are enough. It reads a whole file into memory, checks everything and rebuilds the
source file. Not for daily use: it is slow and trusts its memory to be larger than the file.

    python3 kvc_reader.py [--profile=PROFILE] FILE.kvc [SOURCE]
                                                 checks FILE.kvc; writes the file it was made from to SOURCE
    python3 kvc_reader.py --digests FILE.kvc [PROFILE [WEIGHTS]]
                                                 what the conformance set asks (tests/conformance/README.md)
"""

import copy
import hashlib
import json
import os
import re
import struct
import sys
from fractions import Fraction

import numpy as np
import xxhash
import zstandard

from kvc_profile import HALVES, INTERLEAVED, KvcError, Prediction, Profile, Unsupported, hadamard, need, rotate, supported

VERSION = 1
MAGIC = b"\x89KVC\r\n\x1a\n"
END_MAGIC = b"\x89KVCEND\n"
NONE = 0xFFFFFFFF

META, TABLE, CELLS, TOKENS, SOURCE, SIDE, BLOCK, PROFILE, PAD, INDEX, SIGNATURE = range(1, 12)
(
    S_RAW,
    S_PLANE,
    S_PARAMS,
    S_CODES,
    S_ESCAPES,
    S_MERGED,
    S_NORMS,
    S_KEPT,
    S_MASK,
    S_FACTOR_A,
    S_FACTOR_B,
    S_OUTLIERS,
    S_BASIS,
    S_MEAN,
    S_STEPS,
    S_SINK,
    S_TAIL,
    S_TABLES,
    S_HIDDEN,
    S_INPUTS,
    S_SAME,
    S_NEEDS,
    S_META,
    S_TABLE,
    S_POSITIONS,
    S_WORDS,
    S_TOKENS,
    S_KEYS,
    S_EXTENTS,
    S_LITERALS,
    S_INDEX,
    S_PROFILE,
    S_SIGNATURE,
) = (*range(1, 19), 20, 22, 32, 33, *range(40, 50), 51)
CONTAINER_TYPES = {S_SAME, S_NEEDS, *range(S_META, S_PROFILE + 1), S_SIGNATURE}
STAGE_TYPES = {*range(S_RAW, S_TABLES + 1), S_HIDDEN, S_INPUTS}
# The sections a record may have, in their order; those of CONTAINER_OPTIONAL may be missing.
CONTAINER_SECTIONS = {
    META: [S_META],
    TABLE: [S_TABLE],
    CELLS: [S_POSITIONS, S_WORDS],
    TOKENS: [S_TOKENS, S_KEYS],
    PROFILE: [S_PROFILE],
    INDEX: [S_INDEX],
    SIGNATURE: [S_SIGNATURE],
}
CONTAINER_OPTIONAL = {S_WORDS, S_TOKENS, S_KEYS}
CRITICAL = {META, TABLE, CELLS, TOKENS, SOURCE, SIDE, BLOCK, INDEX}
LITERAL_CHUNK = 4194304
POSITIONS_END = 1 << 62
REGION_BYTES = 1 << 48

STORE, ZSTD, SPLIT, FAST, FINITE, SINK, TAIL, QUANT, OUTLIER, LOWRANK, PRUNE, SALIENCY, MERGE = range(1, 14)
PROJECT = 14
DEROPE, CENTER, BASIS, STEPS, CODE, CROSS, PREDICT = range(15, 22)
TERMINAL = {STORE, ZSTD, SPLIT, FAST, CODE, CROSS}
MAY_END = {QUANT, LOWRANK, PROJECT}  # hand on what they missed; nothing need stand behind them
FLOATS_ONLY = {FINITE, QUANT, OUTLIER, LOWRANK, PRUNE, MERGE, PROJECT, DEROPE, CENTER, BASIS, STEPS, CODE, PREDICT}
LOSSY = {QUANT, OUTLIER, LOWRANK, PRUNE, MERGE, PROJECT, DEROPE, CENTER, BASIS, STEPS, CODE, PREDICT}
LOOKS = {OUTLIER, LOWRANK, PRUNE, SALIENCY, DEROPE, CENTER, BASIS, STEPS, CODE, CROSS, PREDICT}  # at segments
# These take and hand on the dtype, and so round what follows, even where they take nothing out.
TAKE_DTYPE = {FINITE, SINK, TAIL, PRUNE, SALIENCY, MERGE}
FLOATS = {"f32", "f16", "bf16"}
MOST_CHANNELS = {OUTLIER: 65536, LOWRANK: 4096, BASIS: 1024}
SEGMENT = 128  # blocks
V_ROLE = 1
LATENT_ROLE = 2
HIDDEN_ROLE = 6
ROLES = {0: "k", 1: "v"}  # that a profile describes
ROLES_OF_LAYERS = [0], [1], [0, 1], [2], [3], [4], [3, 4], [5], [6]
ROLE_NAMES = "K", "V", "latent", "R", "S", "queries", "hidden"

# Arguments of the stages in the order of their pages: name ("" where only the value stands), what it may be (a tuple
# of words, integers from - to, reals from - to, or None: a flag), default, which may lie outside of that (... where there is none).
ARGUMENTS = {
    STORE: [],
    ZSTD: [("level", (1, 19), 1)],
    SPLIT: [("stream", (1024, 1 << 24), 65536)],
    FAST: [],
    FINITE: [],
    SINK: [("", (1, 1 << 20), ...)],
    TAIL: [("", (1, 1 << 20), ...), ("whole", (1, 65536), 1)],
    QUANT: [
        ("", ("kivi", "kcvt", "token", "zip"), ...),
        ("bits", (1, 8), ...),
        ("g", (1, 65536), 64),
        ("low", (1, 8), 2),
        ("clip", None, False),
        ("sym", None, False),
    ],
    OUTLIER: [("", (0.0001, 0.5), ...)],
    LOWRANK: [("r", (1, 256), ...), ("layer", None, False), ("power", (0, 64), 0)],
    PRUNE: [
        ("k", (0.0, 0.95), Fraction(0)),
        ("v", (0.0, 0.95), Fraction(0)),
        ("by", ("query", "l1", "l2"), "query"),
        ("mean", None, False),
        ("window", (1, 65536), 32),
    ],
    SALIENCY: [
        ("", (0.0, 1.0), ...),
        ("norm", ("code", "paper"), "code"),
        ("by", ("attention", "knorm"), "attention"),
    ],
    MERGE: [
        ("", ("slerp", "mean", "maxnorm"), ...),
        ("t", (0.0, 1.0), Fraction("0.6")),
        ("keep", (0.0, 1.0), Fraction("0.05")),
        ("gamma", (0.0, 1.0), Fraction(-1)),
        ("from", (0.0, 1.0), Fraction("0.5")),
        ("heads", None, False),
    ],
    PROJECT: [
        ("", ("hidden",), ...),
        ("norm", ("auto", "none", "rms"), "auto"),
        ("layers", (0, 65536), 65536),
        ("every", (1, 64), 2),
        ("rank", (0, 4096), 0),
    ],
    DEROPE: [],
    CENTER: [],
    BASIS: [
        ("drop", (0.0, 1000000.0), Fraction("0.05")),
        ("bits", (4, 8), 6),
        ("k", (0.01, 100.0), Fraction("0.18")),
    ],
    STEPS: [
        ("p", (0.0, 2.0), Fraction("0.5")),
        ("c", (0.001, 1000.0), Fraction("0.3")),
        ("tail", (0, 65536), 16),
        ("fine", (0, 6), 4),
    ],
    CODE: [("step", (0.0, 1000000.0), ...), ("lanes", (1, 32), 32)],
    CROSS: [("stream", (1024, 1 << 24), 65536), ("every", (0, 4096), 0)],
    PREDICT: [("every", (0, 4096), 0)],
}

# number: name, values a block, bytes a block, the zstd stage's byte groups
DTYPES = {
    0: ("f32", 1, 4, (1, 1, 1, 1)),
    1: ("f16", 1, 2, (1, 1)),
    2: ("bf16", 1, 2, (1, 1)),
    3: ("f8e4m3", 1, 1, (1,)),
    4: ("f8e5m2", 1, 1, (1,)),
    5: ("u8", 1, 1, (1,)),
    6: ("i8", 1, 1, (1,)),
    16: ("q8_0", 32, 34, (1, 1, 32)),
    17: ("q4_0", 32, 18, (1, 1, 16)),
    18: ("q4_1", 32, 20, (1, 1, 1, 1, 16)),
    19: ("q5_0", 32, 22, (1, 1, 4, 16)),
    20: ("q5_1", 32, 24, (1, 1, 1, 1, 4, 16)),
    21: ("iq4_nl", 32, 18, (1, 1, 16)),
}
# What split takes a value's word for: bytes before the words, bits of a word, its low bits.
SPLIT_WORDS = {
    "bf16": (0, 16, 6),
    "f16": (0, 16, 8),
    "f32": (2, 16, 6),
    "f8e4m3": (0, 8, 0),
    "f8e5m2": (0, 8, 0),
    "u8": (0, 8, 0),
    "i8": (0, 8, 0),
    "q8_0": (2, 8, 0),
    "q4_0": (2, 4, 0),
    "iq4_nl": (2, 4, 0),
    "q4_1": (4, 4, 0),
    "q5_0": (2, 5, 0),
    "q5_1": (4, 5, 0),
}
# How the channel model makes a bias for them: sign bit, cut, shift, rebias. The other dtypes are codes.
FLOAT_BIAS = {
    "bf16": (15, 22, 6, 0),
    "f32": (15, 22, 6, 0),
    "f16": (15, 21, 8, 112),
    "f8e4m3": (7, 20, 0, 120),
    "f8e5m2": (7, 21, 0, 112),
}
FAST_MANTISSA = {"bf16": 7, "f32": 7, "f16": 10}


def xxh3(data, seed=0):
    return xxhash.xxh3_64_intdigest(data, seed)


class Bytes:
    """Takes numbers off the front of a byte string; every read is checked."""

    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def take(self, n):
        need(n <= len(self.data) - self.at, f"{self.what}: ends early")
        self.at += n
        return self.data[self.at - n : self.at]

    def unpack(self, form):
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def one(self, form):
        return self.unpack(form)[0]

    def varint(self):
        value, shift = 0, 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                need(byte or shift == 0, f"{self.what}: a varint is not in its shortest form")
                need(value < 1 << 64, f"{self.what}: a varint exceeds 64 bits")
                return value
            shift += 7
            need(shift < 70, f"{self.what}: a varint exceeds 10 bytes")

    def svarint(self):
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def end(self):
        need(self.at == len(self.data), f"{self.what}: {len(self.data) - self.at} bytes too many")


def plain_frame(data):
    """No dictionary, and a window of at most 2^26 bytes (RFC 8878, 3.1.1.1)."""
    if len(data) < 6:
        return True
    single, window = data[4] & 32, (1 << 10 + (data[5] >> 3)) * (8 + (data[5] & 7)) // 8
    return not data[4] & 3 and (single or window <= 1 << 26)


class Section:
    def __init__(self, entry, data):
        self.type, self.coder, self.stage, self.index, self.stored, self.size = entry
        self.optional, self.coder = self.coder & 128, self.coder & 127
        self.data = data

    def decode(self):
        if self.coder == 0:
            need(self.stored == self.size, f"section type {self.type}: stored and decoded size differ")
            return self.data
        if self.stage == 255:
            need(
                self.size <= 65536 + 4096 * self.stored,
                f"section type {self.type}: decoded size out of bounds",
            )
        need(plain_frame(self.data), f"section type {self.type}: a frame with a dictionary, or too large a window")
        try:
            one_frame = zstandard.ZstdDecompressor().decompressobj()
            out = one_frame.decompress(self.data)
        except zstandard.ZstdError as e:
            raise KvcError(f"section type {self.type}: {e}") from e
        need(
            one_frame.eof and not one_frame.unused_data, f"section type {self.type}: not one whole zstd frame"
        )
        need(len(out) == self.size, f"section type {self.type}: another decoded size than the directory says")
        return out


class Record:
    """One record: header, directory and sections, all checked against its hash."""

    def __init__(self, data, at, end):
        where = f"record at {at}"
        need(at % 16 == 0 and end - at >= 32, f"{where}: no room for a header")
        self.at = at
        self.type, self.flags, n, units, self.subject, self.number, self.digest, check = struct.unpack_from(
            "<BBHIIIQQ", data, at
        )
        self.check = check
        self.size = units * 16
        need(32 <= self.size <= end - at, f"{where}: its size does not fit the file")
        body = data[at + 32 : at + self.size]
        need(xxh3(body, xxh3(data[at : at + 24])) == check, f"{where}: checksum mismatch")
        self.has_digest = not self.flags & 2
        supported(self.flags & ~(3 if self.type == BLOCK else 1) == 0, f"{where}: reserved flags")
        need(self.type != BLOCK or self.has_digest or self.digest == 0, f"{where}: has a digest, against its flags")
        self.where, self.sections, self.refused = where, [], None
        if self.type not in range(META, SIGNATURE + 1):
            supported(not self.flags & 1, f"{where}: unknown critical record type {self.type}")
            return
        need(self.flags & 1 == (self.type in CRITICAL), f"{where}: wrong critical flag")
        need(self.type in (BLOCK, SIDE, CELLS) or self.subject == NONE, f"{where}: has a subject")
        need(self.type in (BLOCK, SIDE, SOURCE) or self.number == 0, f"{where}: has a number")
        need(self.type == BLOCK or self.digest == 0, f"{where}: has a digest")
        need(16 * n <= len(body), f"{where}: its directory does not fit")
        used = 16 * n
        for i in range(n):
            entry = struct.unpack_from("<BBBBIQ", body, 16 * i)
            need(entry[4] <= len(body) - used, f"{where}: section {i} does not fit")
            self.sections.append(Section(entry, body[used : used + entry[4]]))
            padded = (entry[4] + 15) // 16 * 16
            need(
                padded <= len(body) - used and not any(body[used + entry[4] : used + padded]),
                f"{where}: non-zero padding after section {i}",
            )
            used += padded
        if self.type == PAD:
            need(n == 0 and not any(body), f"{where}: PAD is not empty")
        else:
            need(used == len(body), f"{where}: bytes after the last section")
        self._skip_optional()

    def _skip_optional(self):
        """Leaves out sections that a reader may skip: this version knows none."""
        known = [s for s in self.sections if not s.optional]
        need(known == self.sections[: len(known)], f"{self.where}: a section behind those to skip")
        for s in self.sections[len(known) :]:
            types = CONTAINER_TYPES if s.stage == 255 else STAGE_TYPES
            need(s.type not in types, f"{self.where}: a known section to skip")
        self.sections = known
        self.refused = next((f"section type {s.type}: unknown coder {s.coder}" for s in known if s.coder > 1), None)
        if self.type not in (BLOCK, SIDE, PROFILE, SIGNATURE):
            self.usable()

    def usable(self):
        """Refuses a record with a coder that this version does not know."""
        supported(self.refused is None, f"{self.where}: {self.refused}")

    def container_sections(self):
        """Type -> decoded bytes, for records whose sections belong to no stage."""
        self.usable()
        if self.type == SOURCE:
            allowed = [S_EXTENTS, S_LITERALS] if self.number == 0 else [S_LITERALS]
            optional = {S_LITERALS} if self.number == 0 else set()
        else:
            allowed, optional = CONTAINER_SECTIONS[self.type], CONTAINER_OPTIONAL
        types = [s.type for s in self.sections]
        need(
            types == [t for t in allowed if t in types] and all(t in types or t in optional for t in allowed),
            f"{self.where}: wrong sections {types}",
        )
        need(
            all(s.stage == 255 and s.index == 0 for s in self.sections),
            f"{self.where}: a section claims a stage",
        )
        return {s.type: s.decode() for s in self.sections}


class Part:
    """Cells: positions as the engine kept them, order[sorted row] = cell, block[i] = first row of block i."""

    def __init__(self, kind, stream, snapshot, cells):
        self.kind, self.stream, self.snapshot, self.cells = kind, stream, snapshot, cells
        self.pos = self.order = self.block = self.words = None

    def read_cells(self, sections):
        r = Bytes(sections[S_POSITIONS], "POSITIONS")
        pos, following, seen = [], 0, 0
        while seen < self.cells:
            first, length = following + r.svarint(), r.varint()
            need(1 <= length <= self.cells - seen, "POSITIONS: a run is empty or too long")
            need(-POSITIONS_END < first and first + length <= POSITIONS_END, "POSITIONS: beyond 2^62")
            pos.append(np.arange(first, first + length, dtype=np.int64))
            following, seen = first + length, seen + length
        r.end()
        self.pos = np.concatenate(pos) if pos else np.zeros(0, np.int64)
        self.order = np.argsort(self.pos, kind="stable")
        self.block = [0]
        grid = self.pos[self.order] // 256
        for row in range(1, self.cells):
            if grid[row] != grid[row - 1] or row - self.block[-1] == 256:
                self.block.append(row)
        self.block = self.block + [self.cells] if self.cells else [0]
        if S_WORDS in sections:
            r = Bytes(sections[S_WORDS], "WORDS")
            counts = [r.varint() for _ in range(self.cells)]
            need(sum(counts) <= len(r.data), "WORDS: ends early")
            self.words = [r.unpack(f"{n}I") for n in counts]
            r.end()


class Tensor:
    def __init__(self, fields, layer):
        (
            _,
            self.role,
            dtype,
            self.pipeline,
            self.rotation,
            _,
            self.heads,
            self.dim,
            self.token,
            self.head,
            self.step,
            self.source_size,
        ) = fields
        self.layer = layer
        supported(dtype in DTYPES, f"TABLE: unknown dtype {dtype}")
        supported(self.role <= 6, f"TABLE: unknown role {self.role}")
        self.dtype, self.values, self.bytes, self.groups = DTYPES[dtype]
        self.dtype_number = dtype
        need(
            self.heads >= 1 and self.dim >= 1 and self.heads * self.dim % self.values == 0,
            "TABLE: a row is no whole number of blocks",
        )
        self.row_blocks = self.heads * self.dim // self.values
        self.row_bytes = self.row_blocks * self.bytes
        self.rows = layer.part.cells
        need(
            self.row_bytes <= 1 << 26 and self.row_bytes * self.rows <= 1 << 48,
            "TABLE: a tensor is too large",
        )
        need(self.source_size <= REGION_BYTES, "TABLE: a region of more than 2^48 bytes")
        self.check_strides("TABLE", self.source_size, self.rows, self.token, self.head, self.step)
        self.block = {}  # decoded blocks; of refused ones why
        self.same = {}  # per block: which of its rows are SAME rows

    def shape(self):
        return self.heads, self.dim, self.dtype

    def refused(self):
        """Why rows of it are refused, of the first; None: all are decoded."""
        return next((rows for rows in self.block.values() if isinstance(rows, Unsupported)), None)

    def canonical(self):
        """All rows in sorted order: uint8 [rows, row_bytes]."""
        if self.refused():
            raise self.refused()
        return np.concatenate([self.block[b] for b in sorted(self.block)]) if self.block else np.zeros((0, self.row_bytes), np.uint8)

    def check_strides(self, what, room, n, token, head, step):
        """Strides (FORMAT.md 5) of n cells within `room` bytes."""
        if not n:
            return
        axes, reach = [(token, n)], self.row_bytes
        if self.dim % self.values:
            need((head, step) == (0, self.bytes), f"{what}: strides of blocks across heads")
        else:
            axes, reach = [(token, n), (head, self.heads), (step, self.dim // self.values)], self.bytes
        for stride, steps in sorted(axis for axis in axes if axis[1] > 1):
            need(stride >= reach, f"{what}: a stride does not clear what the shorter ones reach")
            reach += (steps - 1) * stride
        need(reach <= room, f"{what}: strides reach beyond the region")

    def is_canonical(self):
        """Whether its row of TABLE says nothing of where it lies."""
        head = 0 if self.dim % self.values else self.dim // self.values * self.bytes
        return (self.token, self.head, self.step, self.source_size) == (
            self.row_bytes, head, self.bytes, self.rows * self.row_bytes)

    def layout(self, rows, token, head, step):
        """Shape and strides of the bytes of rows in a region."""
        if self.dim % self.values:
            shape, strides = (rows, 1, 1, self.row_bytes), (token, 0, 0, 1)
        else:
            shape, strides = (rows, self.heads, self.dim // self.values, self.bytes), (token, head, step, 1)
        return shape, [stride if steps > 1 else 0 for stride, steps in zip(strides, shape)]

    def place(self, region, covered, cell, n, offset, token, head, step):
        """Puts the rows of cells [cell, cell + n) where they lie in a region, and marks their bytes."""
        shape, strides = self.layout(n, token, head, step)
        need(n >= 1 and cell + n <= self.rows and offset <= len(region), "EXTENTS: a place lies outside")
        self.check_strides("EXTENTS", len(region) - offset, n, token, head, step)
        view = np.lib.stride_tricks.as_strided
        marks = view(covered[offset:], shape, strides)
        need(not marks.any(), "EXTENTS: two values share a byte")
        marks += 1
        need((marks == 1).all(), "EXTENTS: two values share a byte")
        by_cell = np.empty((self.rows, self.row_bytes), np.uint8)
        by_cell[self.layer.part.order] = self.canonical()
        view(region[offset:], shape, strides)[:] = by_cell[cell : cell + n].reshape(shape)


class Layer:
    def __init__(self, part, index, kind, window):
        self.part, self.index, self.kind, self.window = part, index, kind, window


class Weights:
    """The weights of a model: the bytes of a safetensors file of binary32, as transformers names them, K paired as halves."""

    def __init__(self, data):
        r = Bytes(data, "weights")
        size = r.one("Q")
        try:
            self.header = json.loads(r.take(size))
        except ValueError as e:
            raise KvcError(f"weights: {e}") from e
        self.data = data[8 + size :]

    def get(self, layer, name):
        found = self.header.get(f"model.layers.{layer}.{name}")
        if found is None:
            return None
        need(found["dtype"] == "F32", f"weights: {name} is not F32")
        first, end = found["data_offsets"]
        return np.frombuffer(self.data[first:end], "<f4").reshape(found["shape"])

    def projection(self, layer):
        """Of K and of V the matrix [in][out] and the bias, or None; the weights of the norm, or None."""
        out = []
        for name in ("k_proj", "v_proj"):
            matrix = self.get(layer, f"self_attn.{name}.weight")
            need(matrix is not None, f"weights: no {name} of layer {layer}")
            out.append((matrix.T, self.get(layer, f"self_attn.{name}.bias")))
        return *out, self.get(layer, "input_layernorm.weight")

    @staticmethod
    def hashed(projection):
        """What the fingerprint is of."""
        out = b"kvc projection 0\n"
        for matrix, bias in projection[:2]:
            out += np.ascontiguousarray(matrix).tobytes() + (b"\0" if bias is None else b"\1" + bias.tobytes())
        return out + (b"\0" if projection[2] is None else b"\1" + projection[2].tobytes())


class Kvc:
    """A whole .kvc file. meta: key -> value; tokens: ids or None; keys: prefix keys. A profile that the file names is in the file, or
    `profile`, the bytes of one; weights: the bytes of those that its rows are rebuilt with."""

    def __init__(self, data, profile=None, weights=None):
        data = bytes(data)
        self.weights = Weights(weights) if weights else None
        end = self._read_frame(data)
        records = self._read_records(data, end)
        first = [r for r in records if r.type in CRITICAL]
        kinds = [r.type for r in first]
        order = [BLOCK if kind == SIDE else kind for kind in kinds]  # side data stand among the blocks
        need(order == sorted(order), "records out of order")
        need(kinds[:2] == [META, TABLE], "META and TABLE are not the first critical records")
        need(
            kinds.count(META) == kinds.count(TABLE) == 1 and kinds.count(TOKENS) <= 1, "a record occurs twice"
        )
        self.meta = read_meta(first[0].container_sections()[S_META])
        self._find_profile(records, profile)
        self._read_table(first[1].container_sections()[S_TABLE], kinds.count(BLOCK))
        cells = [r for r in first if r.type == CELLS]
        need([r.subject for r in cells] == list(range(len(self.parts))), "CELLS records and parts disagree")
        for part, record in zip(self.parts, cells):
            part.read_cells(record.container_sections())
        self.tokens, self.keys = None, []
        for record in first:
            if record.type == TOKENS:
                self._read_tokens(record.container_sections())
        self._check_keys()
        self._check_space()
        self.extents, self.literals, self.members = None, b"", []
        self._read_source([r for r in first if r.type == SOURCE])
        self._read_blocks([r for r in first if r.type in (SIDE, BLOCK)])

    def _find_profile(self, records, given):
        """Where the profile is that rows may need: in a record, or `given`, its bytes."""
        self.profile, self._profile = None, lambda: None
        if "profile.sha256" not in self.meta:
            return  # PROFILE is skipped, as it is not critical
        self._profile = lambda: given
        kinds = [r.type for r in records]
        before = [i for i, kind in enumerate(kinds) if kind in (SIDE, BLOCK)][:1]
        for i in (i for i, kind in enumerate(kinds) if kind == PROFILE):
            need(kinds.index(PROFILE) == i and not (before and before[0] < i), "PROFILE occurs twice, or after rows")
            self._profile = lambda: records[i].container_sections()[S_PROFILE]

    def _read_frame(self, data):
        need(len(data) >= 64 + 64, "shorter than the smallest .kvc")
        magic, write, read, align, grid, _, self.needed, _, check = struct.unpack_from("<8sHHBBHIIQ", data)
        need(magic == MAGIC, "not a .kvc file")
        need(xxh3(data[:24]) == check, "header: checksum mismatch")
        supported(1 <= read <= VERSION, f"needs a reader of version {read}")
        need(read <= write, f"header: write version {write} is below read version {read}")
        need(4 <= align <= 20, "header: alignment")
        supported(grid == 8, f"header: blocks of 2^{grid} positions")
        supported(self.needed == 0, f"header: needs unknown features {self.needed:08x}")
        index, size, self.content_id, magic, check = struct.unpack_from("<QQ32s8sQ", data, len(data) - 64)
        need(magic == END_MAGIC, "the file is cut: no footer")
        need(32 <= index <= len(data) - 96 and index % 16 == 0, "footer: index offset out of bounds")
        seal = struct.unpack_from("<Q", data, index + 24)[0]
        need(xxh3(data[-64:-8], seal) == check, "footer: damaged")
        need(size == len(data), "the file is longer or shorter than its footer says")
        self.align = 1 << align
        return index

    def _read_records(self, data, end):
        index = Record(data, end, len(data) - 64)
        need(index.type == INDEX and end + index.size == len(data) - 64, "the INDEX is not the last record")
        r = Bytes(index.container_sections()[S_INDEX], "INDEX")
        n = r.varint()
        need(n <= len(r.data), "INDEX: more records than bytes")
        types = list(r.take(n))
        columns = [[r.varint() for _ in range(n)] for _ in range(3)]
        entries = list(zip(types, *columns, r.unpack(f"{n}I")))
        r.end()
        records, at = [], 32
        content = hashlib.sha256(b"kvc content 1\n" + struct.pack("<II", 8, self.needed))
        while at < end:
            record = Record(data, at, end)
            need(record.type != INDEX, "a second INDEX")
            subject = 0 if record.subject == NONE else record.subject + 1
            mine = record.type, record.size // 16, subject, record.number, record.check & 0xFFFFFFFF
            need(len(records) < n and entries[len(records)] == mine, f"INDEX and {record.where} disagree")
            if record.flags & 1:
                content.update(struct.pack("<IIIQ", record.type, record.subject, record.number, record.check))
            records.append(record)
            at += record.size
        need(len(records) == n, "INDEX: more records than there are")
        need(content.digest() == self.content_id, "footer: not the content id of these records")
        need(len(records) >= 2, "no META and TABLE")
        return records

    def _read_table(self, data, n_blocks):
        r = Bytes(data, "TABLE")
        n_parts, n_layers, n_tensors, n_pipelines, n_rotations, *sizes, zero = r.unpack("5I4H")
        need(n_pipelines <= 1024 and n_rotations <= 1024, "TABLE: too many pipelines or rotations")
        supported(not zero, "TABLE: a reserved field")
        more = [size - known for size, known in zip(sizes, (24, 16, 64))]
        need(min(more) >= 0, "TABLE: entries are too short")
        self.parts, self.layers, self.tensors, self.pipelines = [], [], [], []
        for _ in range(n_parts):
            kind, zeros, stream, snapshot, zero, cells = r.unpack("B3sIIIQ")
            r.take(more[0])
            supported(kind <= 4 and not any(zeros) and not zero, f"TABLE: part kind {kind}, or reserved bytes of a part")
            need(cells <= 1 << 31, "TABLE: too many cells")
            self.parts.append(Part(kind, stream, snapshot, cells))
        total = sum(p.cells for p in self.parts)
        need(total <= 256 * n_blocks, "TABLE: more cells than the blocks can hold")
        before = 0
        for _ in range(n_layers):
            part, index, kind, zeros, window = r.unpack("IIB3sI")
            r.take(more[1])
            need(before <= part < n_parts, "TABLE: a layer of another part")
            supported(kind <= 4 and not any(zeros), f"TABLE: layer kind {kind}, or reserved bytes of a layer")
            self.layers.append(Layer(self.parts[part], index, kind, window))
            before = part
        for _ in range(n_tensors):
            fields = r.unpack("IBBHH6sQQQQQQ")
            r.take(more[2])
            need(fields[0] < n_layers and fields[3] < n_pipelines and fields[4] <= n_rotations, "TABLE: bad tensor")
            supported(not any(fields[5]), "TABLE: reserved bytes of a tensor")
            self.tensors.append(Tensor(fields, self.layers[fields[0]]))
        for layer in self.layers:
            roles = sorted(t.role for t in self.tensors if t.layer is layer)
            need(roles in ROLES_OF_LAYERS, f"TABLE: a layer has the roles {roles}")
        for _ in range(n_pipelines):
            stages = []
            for _ in range(r.one("B")):
                stage, length = r.unpack("HB")
                stages.append((stage, Bytes(r.take(length), f"TABLE: arguments of stage {stage}")))
            need(1 <= len(stages) <= 18, f"TABLE: {len(stages)} stages")
            if all(stage in ARGUMENTS for stage, _ in stages):  # else its rows are refused
                stages = [(stage, read_arguments(stage, arguments)) for stage, arguments in stages]
                check_pipeline([stage for stage, _ in stages])
            self.pipelines.append(stages)
        self.rotations = [read_rotation(r) for _ in range(n_rotations)]
        r.end()
        for tensor in self.tensors:
            if tensor.rotation:
                need(2 * self.rotations[tensor.rotation - 1][2] <= tensor.dim, "TABLE: more pairs than channels")
        for tensor in self.tensors:
            pipeline = self.pipelines[tensor.pipeline]
            for stage, args in pipeline if self.unknown_stage(pipeline) is None else ():
                need(stage not in FLOATS_ONLY or tensor.dtype in FLOATS, f"TABLE: {stage} of {tensor.dtype}")
                channels = tensor.dim if stage == BASIS or stage == LOWRANK and not args["layer"] else tensor.heads * tensor.dim
                need(channels <= MOST_CHANNELS.get(stage, channels), f"TABLE: {stage} of {channels} channels")

    @staticmethod
    def unknown_stage(pipeline):
        return next((stage for stage, _ in pipeline if stage not in ARGUMENTS), None)

    def _read_tokens(self, sections):
        need(sections, "TOKENS: empty record")
        if S_TOKENS in sections:
            need(len(sections[S_TOKENS]) % 4 == 0, "TOKENS: ragged")
            self.tokens = np.frombuffer(sections[S_TOKENS], "<i4")
        if S_KEYS in sections:
            keys = sections[S_KEYS]
            need(keys and len(keys) % 32 == 0, "KEYS: none, or ragged")
            self.keys = [keys[i : i + 32] for i in range(0, len(keys), 32)]
            need("prefix.identity" in self.meta, "prefix keys without prefix.identity")

    def _check_space(self):
        """Checks the namespace (KEYS.md 1)."""
        if "prefix.space" not in self.meta or any(self.unknown_stage(x) is not None for x in self.pipelines):
            return

        def known(key, kind):
            value = self.meta.get(key)
            return value if isinstance(value, kind) else kind()

        def number(key, form="<Q"):
            value = self.meta.get(key)
            if form == "<f":
                with np.errstate(all="ignore"):
                    return b"" if value is None else np.array(value, "<f4").tobytes()
            return b"" if value is None else struct.pack(form, value)

        lossy = any(stage in LOSSY for stages in self.pipelines for stage, _ in stages)
        need(not lossy or known("recipe", str), "prefix.space: of a lossy file without recipe")
        fidelity = [known("values.recipe", str), known("recipe", str) if lossy else ""]
        profiles = known("values.profile", bytes) + (known("profile.sha256", bytes) if lossy else b"")
        facts = [
            known("prefix.identity", str) or prefix_identity(self.meta),
            known("tokenizer.sha256", bytes),
            known("model.architecture", str),
            known("model.adapters.sha256", bytes),
            self._layers_fact(),
            known("rope.k", str),
            known("rope.pairing", str),
            known("rope.type", str),
            number("rope.theta", "<f"),
            number("rope.dim"),
            number("rope.factor", "<f"),
            number("hadamard.k"),
            number("hadamard.v"),
            number("sliding.window"),
            number("shard.rank") + number("shard.ranks") if {"shard.rank", "shard.ranks"} <= set(self.meta) else b"",
            " then ".join(filter(None, fidelity)) or "lossless",
            profiles,
        ]
        items = dict(enumerate(facts, 1))
        if scales := self._scales_fact():
            items[20] = scales
        if "rope.original-context" in self.meta:
            items[21] = number("rope.original-context")
        if "rope.sections" in self.meta:
            items[22] = struct.pack(f"<{len(self.meta['rope.sections'])}Q", *self.meta["rope.sections"])
        if not self._rope_is_known():
            items[23] = known("rope.source", str) or known("source.format", str).split(" ")[0]
        if known("rope.scaling", str):
            items[24] = self.meta["rope.scaling"]
        space = b"kvc namespace 1\n"
        for tag, fact in items.items():
            fact = fact.encode() if isinstance(fact, str) else fact
            space += struct.pack("<BI", tag, len(fact)) + fact
        need(self.meta["prefix.space"] == hashlib.sha256(space).digest(), "prefix.space: not the namespace of the file")

    def _rope_is_known(self):
        if (self.meta.get("rope.k") or "post") != "post" or self.meta.get("rope.pairing") == "none":
            return True
        if not self.meta.get("rope.type") or not self.meta.get("rope.theta", 0) > 0:
            return False
        scaled = self.meta["rope.type"] not in ("default", "mrope", "imrope")
        return not scaled or self.meta.get("rope.factor", 0) > 0 or bool(self.meta.get("rope.scaling"))

    @staticmethod
    def _is_scaled(tensor):
        """K, V and latents of f8e4m3, f8e5m2, u8, i8."""
        return tensor.role <= LATENT_ROLE and 3 <= tensor.dtype_number <= 6

    def _scales(self, tensor):
        """The scale of each head, or None (FORMAT.md 7)."""
        text = self.meta.get("scale.v" if tensor.role == V_ROLE else "scale.k")
        if not isinstance(text, str):
            return None
        number = r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?"
        need(re.fullmatch(rf"({number}(:{number})*)?(,({number}(:{number})*)?)*", text), "scale.k or scale.v: no list")
        layers = [[float(n) for n in layer.split(":")] if layer else [] for layer in text.split(",")]
        single = [struct.unpack("<f", struct.pack("<f", n))[0] for scales in layers for n in scales]
        need(all(0 < n < float("inf") for n in single), "scale.k or scale.v: no number above 0")
        if len(layers) > 1 and tensor.layer.index >= len(layers):
            return None
        scales = layers[tensor.layer.index if len(layers) > 1 else 0]
        need(len(scales) in (0, 1, tensor.heads), "scale.k or scale.v: of another number of heads")
        return None if not scales else scales * tensor.heads if len(scales) == 1 else scales

    def _scales_fact(self):
        out = b"\1"
        for layer in self._layers_in_order():
            for t in sorted((t for t in self.tensors if t.layer is layer and self._is_scaled(t)), key=lambda t: t.role):
                scales = self._scales(t)
                if scales is None:
                    need(self.meta.get("scale.source"), "prefix.space: of values of 8 bits without known scales")
                    return b"\0" + self.meta["scale.source"].encode()
                out += struct.pack(f"<{t.heads}f", *scales)
        return out if len(out) > 1 else b""

    def _layers_in_order(self):
        layers = [x for x in self.layers if x.part.kind in (0, 1, 2)]
        return sorted(layers, key=lambda x: (x.part.kind, x.part.stream, x.index))

    def _layers_fact(self):
        out = struct.pack("<B", self.meta.get("cache.layers-known", True))
        heads_known = self.meta.get("cache.heads-known", True)
        for layer in self._layers_in_order():
            out += struct.pack("<BIIBI", layer.part.kind, layer.part.stream, layer.index, layer.kind, layer.window)
            for t in sorted((t for t in self.tensors if t.layer is layer), key=lambda t: t.role):
                unknown = not heads_known and t.heads == 1 and t.role <= V_ROLE
                out += struct.pack("<BBQQ", t.role, t.dtype_number, 0 if unknown else t.heads, t.dim)
        return out

    def _check_keys(self):
        """Checks the keys against the tokens."""
        first, parent = 0, self.meta.get("prefix.parent")
        need(len(self.meta.get("prefix.identity", "").encode()) <= 127, "prefix.identity: too long")
        ids = 0 if self.tokens is None else len(self.tokens)
        need(self.meta.get("tokens.first", 0) + ids <= POSITIONS_END, "tokens.first: beyond 2^62")
        extras = read_extras(self.meta["prefix.extras"]) if "prefix.extras" in self.meta else {}
        if parent is not None:
            first = self.meta.get("tokens.first", 0)
            need(isinstance(parent, bytes) and len(parent) == 32 and 0 < first < POSITIONS_END and first % 256 == 0, "prefix.parent: length or tokens.first")
        need(parent is None or "prefix.identity" in self.meta, "prefix.parent without prefix.identity")
        need(self.tokens is not None or not extras, "prefix.extras without token ids")
        if self.tokens is None:
            return
        n = len(self.tokens)
        at = self.meta.get("tokens.first", 0) + np.arange(n, dtype=np.uint64).astype(object)
        if self.parts and self.parts[0].kind == 0 and self.parts[0].cells == n:
            at = self.parts[0].pos[self.parts[0].order]
        n = next((i for i in range(n) if at[i] != first + i), n)
        for position, items in extras.items():
            need(
                all(first <= position + offset < first + n for offset in items[1]), "prefix.extras: of no token"
            )
        if "prefix.identity" not in self.meta:
            need(not self.keys, "KEYS: without prefix.identity")
            return
        want = prefix_keys(self.meta["prefix.identity"], self.tokens[:n], first, parent, extras) if n >= 256 else []
        need(self.keys == want, "KEYS: not the keys of these tokens")

    def _read_source(self, records):
        if not records:
            return
        need([r.number for r in records] == list(range(len(records))), "SOURCE chunks out of order")
        chunks = [r.container_sections() for r in records]
        literals = [c[S_LITERALS] for c in chunks if S_LITERALS in c]
        need(
            all(len(c) == LITERAL_CHUNK for c in literals[:-1])
            and all(0 < len(c) <= LITERAL_CHUNK for c in literals),
            "LITERALS: wrong chunk size",
        )
        need(len(literals) == len(chunks) or not literals, "LITERALS: missing in a chunk")
        self.literals = b"".join(literals)
        r = Bytes(chunks[0][S_EXTENTS], "EXTENTS")
        self.extents = []  # (member or None, size, places); without places: literal bytes
        member = None
        entries = r.varint()
        need(entries, "EXTENTS: none")
        for _ in range(entries):
            which = r.varint()
            if which == len(self.tensors) + 2:
                need(member is not None or not self.extents, "EXTENTS: bytes before the first member")
                try:
                    member = r.take(r.varint()).decode()
                except UnicodeDecodeError as e:
                    raise KvcError("EXTENTS: a member's name is not UTF-8") from e
                parts = member.split("/")
                need(not {"", ".", ".."} & set(parts) and len(member.encode()) <= 4095, "EXTENTS: bad name of a member")
                need(all(ord(c) >= 32 and ord(c) != 127 for c in member), "EXTENTS: bad name of a member")
                self.members.append(member)
            elif which == len(self.tensors) + 1:
                size = r.varint()
                places = [tuple(r.varint() for _ in range(7)) for _ in range(r.varint())]
                need(places and 1 <= size <= REGION_BYTES, "EXTENTS: a region without places, or its size")
                for t, _, n, *_ in places:
                    need(t < len(self.tensors) and n <= self.tensors[t].rows, "EXTENTS: no such tensor or cells")
                    need(self.tensors[t].is_canonical(), "EXTENTS: a place of a tensor with strides in TABLE")
                self.extents.append((member, size, places))
            elif which:
                need(which <= len(self.tensors), "EXTENTS: no such tensor")
                t = self.tensors[which - 1]
                need(t.source_size == t.rows * t.row_bytes, "EXTENTS: a tensor's region is longer than the tensor")
                place = (which - 1, 0, t.rows, 0, t.token, t.head, t.step)
                self.extents.append((member, t.source_size, [place]))
            else:
                need(
                    not self.extents or self.extents[-1][2] or self.extents[-1][0] != member,
                    "EXTENTS: literal bytes twice in a row",
                )
                size = r.varint()
                need(size, "EXTENTS: no literal bytes")
                self.extents.append((member, size, []))
        r.end()
        due = sum(size for _, size, _ in self.extents) - sum(t.rows * t.row_bytes for t in self.tensors)
        need(due == len(self.literals), "EXTENTS and LITERALS disagree")
        need(len(set(self.members)) == len(self.members), "EXTENTS: two members of one name")
        cells = [[] for _ in self.tensors]
        for _, _, places in self.extents:
            for t, cell, n, *_ in places:
                need(t < len(self.tensors), "EXTENTS: no such tensor")
                cells[t].append((cell, n))
        for t, runs in zip(self.tensors, cells):
            at = 0
            need(t.rows or len(runs) == 1, "EXTENTS: not every tensor exactly once")
            for cell, n in sorted(runs):
                need(cell == at and (n or not t.rows), "EXTENTS: not every cell exactly once")
                at += n
            need(runs and at == t.rows, "EXTENTS: not every tensor exactly once")

    def _read_blocks(self, records):
        want = [
            (t, b) for t, tensor in enumerate(self.tensors) for b in range(len(tensor.layer.part.block) - 1)
        ]
        blocks = [r for r in records if r.type == BLOCK]
        need(
            [(r.subject, r.number) for r in blocks] == want, "BLOCK records missing, doubled or out of order"
        )
        self._read_sides(records)
        self._block_of = {(r.subject, r.number): r for r in blocks}
        self._decoding = set()
        for r in blocks:
            try:
                self.rows_of(r.subject, r.number)
            except Unsupported:
                pass  # these rows, and those that stand on them

    def rows_of(self, t, number):
        """The decoded rows of a block."""
        tensor = self.tensors[t]
        if number not in tensor.block:
            need((t, number) not in self._decoding, f"tensor {t}: rows stand on themselves")
            self._decoding.add((t, number))
            record = self._block_of[t, number]
            first, last = tensor.layer.part.block[number : number + 2]
            try:
                rows = self._decode_block(record, tensor, last - first)
                digest = sum(xxh3(row.tobytes(), first + i) for i, row in enumerate(rows)) % (1 << 64)
                need(not record.has_digest or digest == record.digest, f"{record.where}: digest mismatch")
                tensor.block[number] = rows
            except Unsupported as e:
                tensor.block[number] = e
        if isinstance(tensor.block[number], Unsupported):
            raise tensor.block[number]
        return tensor.block[number]

    def rows_at(self, t, numbers, positions):
        """Rows of a tensor by their numbers, which must have these positions."""
        part = self.tensors[t].layer.part
        need(numbers[-1] < part.cells and (part.pos[part.order][numbers] == positions).all(), f"tensor {t}: no row of a position")
        blocks = np.searchsorted(part.block, numbers, "right") - 1
        return np.stack([self.rows_of(t, int(b))[n - part.block[b]] for n, b in zip(numbers, blocks)])

    def _read_sides(self, records):
        """side[tensor, segment] = what its stages keep there."""
        found = {}
        for i, record in enumerate(records):
            if record.type == SIDE:
                following = records[i + 1] if i + 1 < len(records) else None
                need(
                    following is not None
                    and following.type == BLOCK
                    and (following.subject, following.number) == (record.subject, SEGMENT * record.number),
                    f"{record.where}: SIDE does not stand before its segment's first block",
                )
                need(record.sections, f"{record.where}: SIDE without sections")
                found[record.subject, record.number] = record
        self.side = {}
        for t, tensor in enumerate(self.tensors):
            for segment in range((len(tensor.layer.part.block) - 1 + SEGMENT - 1) // SEGMENT):
                record = found.get((t, segment))
                try:
                    self._keep_side(t, segment, self._read_side(t, tensor, record))
                except Unsupported as e:
                    self.side[t, segment] = e
        self.merged = {}  # first tensor and block of a pair: which rows are kept, and the Block before its later stages

    def _keep_side(self, t, segment, side):
        """Checks the other tensors that side data name."""
        self.side[t, segment] = side
        if "inputs" in side:
            self._check_inputs(t, segment, side["inputs"])
        if "first" in side:
            self._check_pair(t, side["first"])
            need(
                "first" not in self._side_of(side["first"], segment, {}),
                f"MERGED: tensor {side['first']} is the second one of a pair itself",
            )

    def _read_side(self, t, tensor, record):
        pipeline = self.pipelines[tensor.pipeline]
        unknown = self.unknown_stage(pipeline)
        supported(unknown is None, f"tensor {t}: unknown stage {unknown}")
        if record:
            record.usable()
        return read_side(pipeline, tensor, record, f"tensor {t}")

    def _side_of(self, t, segment, otherwise=None):
        """The side data of a segment; `otherwise` of one whose rows are refused."""
        side = self.side[t, segment]
        if not isinstance(side, Unsupported):
            return side
        if otherwise is not None:
            return otherwise
        raise side

    def _check_pair(self, second, first):
        need(first < second, f"MERGED: tensor {first} is not lower than {second}")
        a, b = self.tensors[first], self.tensors[second]
        need(
            a.layer.part is b.layer.part
            and a.shape() == b.shape()
            and (a.pipeline, a.role) == (b.pipeline, b.role),
            f"MERGED: tensors {first} and {second} do not pair",
        )

    def named_profile(self):
        if self.profile is None:
            data = self._profile()
            need(data is not None, "rows need a profile that was not given")
            profile = Profile(data)
            need(profile.sha256 == self.meta["profile.sha256"], "the profile is not the one that the file names")
            self.profile = profile
        return self.profile

    def rotation(self, t):
        """Pairing and angles of a tensor's rotation, or None."""
        tensor = self.tensors[t]
        if not tensor.rotation:
            return None
        pairing, angles, pairs = self.rotations[tensor.rotation - 1]
        if angles is None:
            angles = self.named_profile().angles(tensor.layer.index)
            need(angles is not None and len(angles) == pairs, f"tensor {t}: the profile has not its angles")
        return pairing, angles

    def projection(self, tensor, channels, fingerprint):
        """The matrix of K or V [in][out] in the order of the cache, its bias and the weights of the norm, or None."""
        need(self.weights, "rows need weights that were not given")
        layer = [t for t in self.tensors if t.layer is tensor.layer]
        need([t.role for t in sorted(layer, key=lambda t: t.role)] == [0, 1], "a layer without K or V is rebuilt")
        keyed = self.weights.projection(tensor.layer.index)
        for (matrix, _), t in zip(keyed[:2], sorted(layer, key=lambda t: t.role)):
            need(matrix.shape == (channels, t.heads * t.dim), "the weights are of another shape")
        key = next(t for t in layer if t.role == 0)
        pairing = self.meta.get("rope.pairing")
        need(pairing in ("halves", "interleaved", "none"), "rope.pairing is unknown, and K is rebuilt")
        turned = self.meta.get("rope.dim") or (0 if pairing == "none" else key.dim)
        need(turned <= key.dim and turned % 2 == 0, "rope.dim: not an even number of the channels of a head")
        half = turned // 2
        need(hashlib.sha256(self.weights.hashed(keyed)).digest() == fingerprint, "other weights than those of the file")
        matrix, bias = keyed[tensor.role]
        if tensor.role == 0 and pairing == "interleaved":  # the file pairs channels as halves
            order = np.arange(key.heads * key.dim).reshape(key.heads, key.dim)
            order[:, : 2 * half] = np.stack([order[:, :half], order[:, half : 2 * half]], axis=2).reshape(key.heads, -1)
            matrix, bias = matrix[:, order.reshape(-1)], None if bias is None else bias[order.reshape(-1)]
        return matrix, bias, keyed[2]

    def pairing(self):
        """How a profile pairs the channels of the cache."""
        return {"interleaved": INTERLEAVED}.get(self.meta.get("rope.pairing"), HALVES)

    def _check_inputs(self, t, segment, named):
        """The rules of INPUTS in codecs/stages/cross/cross.md."""
        tensor, pairing = self.tensors[t], self.pairing()
        role = ROLES.get(tensor.role)
        need(role, f"INPUTS: of tensor {t}, neither K nor V")
        prediction = Prediction(self.named_profile(), tensor.layer.index, role, pairing)
        need(len(named) == len(prediction.inputs), f"INPUTS: of tensor {t}: not as many as the profile has")
        need(prediction.mean.shape == (tensor.heads, tensor.dim), f"INPUTS: of tensor {t}: other channels than in the profile")
        if any(stage == PREDICT for stage, _ in self.pipelines[tensor.pipeline]):
            residual = self.named_profile().basis(tensor.layer.index, role, True, pairing)
            need(residual is not None, f"INPUTS: of tensor {t}: the profile has no basis of what is left")
        for (layer, role), width, other in zip(prediction.inputs, prediction.widths, named):
            if other == NONE:
                continue
            need(other < t, f"INPUTS: tensor {other} is not lower than {t}")
            o = self.tensors[other]
            fits = o.dtype in FLOATS or o.dtype == tensor.dtype == "q8_0"
            need(o.layer.part is tensor.layer.part and fits, f"INPUTS: tensor {other} is of another part or dtype")
            need(
                (o.layer.index, ROLES.get(o.role), o.heads * o.dim) == (layer, role, width),
                f"INPUTS: tensor {other} is not what the profile predicts tensor {t} from",
            )
        self.side[t, segment]["prediction"] = prediction

    def tile(self, tensor):
        """The Hadamard tile of rows of q8_0."""
        key = "hadamard.v" if tensor.role == V_ROLE else "hadamard.k"
        tile = self.meta.get(key)
        fits = isinstance(tile, int) and tile & (tile - 1) == 0 and (tile == 0 or tensor.heads * tensor.dim % tile == 0)
        need(fits, f"{key}: missing, or no tile of these rows, which are predicted")
        return tile

    def predicted(self, t, block, at):
        """What is predicted of rows `at` of a block: float32 [rows, heads, dim], K before RoPE; and their positions."""
        tensor, side = self.tensors[t], self.side[t, block // SEGMENT]
        named, prediction = side["inputs"], side["prediction"]
        positions = tensor.layer.part.pos[tensor.layer.part.order][tensor.layer.part.block[block] + at]
        need((positions >= 0).all() and (positions < 1 << 32).all(), "a predicted row has no position from 0 to 2^32 - 1")
        inputs = []
        for i, other in enumerate(named):
            if other == NONE:
                inputs.append(np.zeros((len(at), prediction.widths[i]), np.int64))
                continue
            o = self.tensors[other]
            if o.dtype == "q8_0":
                blocks = self.rows_of(other, block)[at].reshape(-1, o.bytes)
                with np.errstate(all="ignore"):
                    rows = floats_of(blocks[:, :2], "f16")[:, None] * blocks[:, 2:].view(np.int8).astype(np.float32)
                    rows = hadamard(rows.reshape(len(at), -1), self.tile(o))
            else:
                rows = floats_of(self.rows_of(other, block)[at], o.dtype)
            rows = rows.reshape(len(at), o.heads, o.dim)
            inputs.append(prediction.input(i, rows, self.rotation(other), positions))
        return prediction.value(inputs), positions

    def _decode_block(self, record, tensor, n):
        rows = np.zeros((n, tensor.row_bytes), np.uint8)
        same = np.zeros(n, bool)
        stages = record.sections
        record.usable()
        side = self._side_of(record.subject, record.number // SEGMENT)
        merges = any(stage == MERGE for stage, _ in self.pipelines[tensor.pipeline])
        pair = side.get("first", record.subject) if merges else None
        if "first" in side:
            self.rows_of(pair, record.number)
        if stages and stages[0].type == S_SAME:
            need(pair is None, f"{record.where}: a pair's block has SAME")
            need(tensor.role != HIDDEN_ROLE, f"{record.where}: hidden states have SAME")
            need(stages[0].stage == 255 and stages[0].index == 0, "SAME: claims a stage")
            self._copy_same(stages[0].decode(), record.subject, rows, same)
            stages = stages[1:]
        tensor.same[record.number] = same
        left = int(n - same.sum())
        if left:
            block = Block(self.pipelines[tensor.pipeline], stages, side, record.where)
            block.role_v = tensor.role == V_ROLE
            block.kvc, block.tensor, block.number = self, record.subject, record.number
            block.at = np.flatnonzero(~same)
            if pair is not None:
                block.merged, block.key = self.merged, (pair, record.number)
                block.is_first = pair == record.subject
            matrix = Matrix(tensor.dtype, left, tensor.heads, tensor.dim)
            rows[~same] = matrix.packed(block.decode(0, matrix))
        else:
            need(not stages, f"{record.where}: stage sections without rows")
        return rows

    def _copy_same(self, data, subject, rows, same):
        r, free = Bytes(data, "SAME"), 0
        while r.at < len(data):
            row, count, t, b, there = r.unpack("5I")
            need(row >= free and count >= 1 and row + count <= len(rows), "SAME: rows out of order or bounds")
            need(
                t < subject and self.tensors[t].shape() == self.tensors[subject].shape(), "SAME: unfit tensor"
            )
            other = self.tensors[t]
            need(b < len(other.layer.part.block) - 1, "SAME: no such rows")
            need(there + count <= len(self.rows_of(t, b)), "SAME: no such rows")
            need(
                not other.same[b][there : there + count].any(),
                "SAME: refers to rows that are SAME themselves",
            )
            rows[row : row + count] = other.block[b][there : there + count]
            same[row : row + count] = True
            free = row + count
        need(free, "SAME: empty")

    def refuse_rows(self):
        """Fails where rows cannot be read, of whatever tensor."""
        for tensor in self.tensors:
            tensor.canonical()

    def sources(self):
        """The members this .kvc was made from, name -> bytes; of one file, None -> bytes."""
        need(self.extents is not None, "this .kvc does not hold its source file's private bytes")
        out = {name: [] for name in self.members or [None]}
        at = 0
        for member, size, places in self.extents:
            region, covered = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
            for t, *place in places:
                if self.tensors[t].rows:
                    self.tensors[t].place(region, covered, *place)
            gaps = np.flatnonzero(covered == 0)
            need(at + len(gaps) <= len(self.literals), "EXTENTS and LITERALS disagree")
            region[gaps] = np.frombuffer(self.literals[at : at + len(gaps)], np.uint8)
            at += len(gaps)
            out[member].append(region.tobytes())
        need(at == len(self.literals), "EXTENTS and LITERALS disagree")
        return {name: b"".join(pieces) for name, pieces in out.items()}

    def source(self):
        """The file this .kvc was made from."""
        need(not self.members, "this .kvc was made from several files")
        return self.sources()[None]


def read_arguments(stage, r):
    """Arguments of a stage, name -> value."""
    values = {name: read_argument(r, allowed, default) for name, allowed, default in ARGUMENTS[stage]}
    r.end()
    if stage == PRUNE:
        need(values["k"] or values["v"], "TABLE: prune leaves nothing out")
    if stage == CODE:
        need(values["step"] > 0 and values["lanes"] & (values["lanes"] - 1) == 0, "TABLE: code: step or lanes")
    if stage == MERGE:
        one_rule = values["gamma"] == -1 or values["keep"] == Fraction(0.05)
        need(one_rule, "TABLE: merge with keep and gamma")
    return values


def read_argument(r, allowed, default):
    if allowed is None:
        value = r.one("B")
        need(value <= 1, f"{r.what}: a flag is {value}")
        return bool(value)
    if isinstance(allowed[0], str):
        value = r.one("B")
        need(value < len(allowed), f"{r.what}: there is no word {value}")
        return allowed[value]
    real = isinstance(allowed[0], float)
    value = r.one("d") if real else r.varint()
    need(allowed[0] <= value <= allowed[1] or value == default, f"{r.what}: {value} is out of bounds")
    return Fraction(value) if real else value


def check_pipeline(stages):
    need(stages[-1] in TERMINAL | MAY_END, f"TABLE: nothing consumes what stage {stages[-1]} hands on")
    need(not TERMINAL & set(stages[:-1]), "TABLE: stages behind a terminal one")
    for stage in (SALIENCY, DEROPE, STEPS, CROSS, PREDICT, MERGE):
        need(stages.count(stage) <= 1, f"TABLE: stage {stage} twice")
    if MERGE in stages:
        before = stages[: stages.index(MERGE)]
        need(not LOOKS & set(before), "TABLE: merge behind a stage that looks at segments")
    for stage in (PROJECT, DEROPE, STEPS, PREDICT):
        if stage in stages:
            after = stages[stages.index(stage) + 1 :]
            need(not {SINK, TAIL, MERGE} & set(after), "TABLE: rows taken out behind a stage that asks for positions")
    if PRUNE in stages:
        counts = {DEROPE, CENTER, BASIS, STEPS, CROSS, PREDICT, PROJECT} & set(stages[stages.index(PRUNE) :])
        need(not counts, f"TABLE: stages {counts} behind prune")
    need(PREDICT not in stages or not {CROSS, MERGE} & set(stages), "TABLE: predict together with cross or merge")


class Matrix:
    """The shape of what a stage sees of one block: rows x heads x dim of a dtype. The rows themselves are
    uint8 [rows, row_bytes] in the dtype or float32 [rows, heads, dim]."""

    def __init__(self, dtype, rows, heads, dim):
        self.dtype, self.rows, self.heads, self.dim = dtype, rows, heads, dim
        _, self.values, self.bytes, self.groups = next(d for d in DTYPES.values() if d[0] == dtype)
        self.channels = heads * dim
        self.row_blocks = heads * dim // self.values
        self.row_bytes = self.row_blocks * self.bytes

    def of(self, rows=None, dim=None):
        rows, dim = self.rows if rows is None else rows, self.dim if dim is None else dim
        return Matrix(self.dtype, rows, self.heads, dim)

    def floats(self, x):
        """x as float32 [rows, heads, dim]; exact."""
        if x.dtype == np.float32:
            return x
        return floats_of(x, self.dtype).reshape(self.rows, self.heads, self.dim)

    def packed(self, x):
        """x in the dtype, uint8 [rows, row_bytes]; rounded to nearest even."""
        return x if x.dtype == np.uint8 else bytes_of(x, self.dtype).reshape(self.rows, self.row_bytes)


def floats_of(data, dtype):
    """Bytes of a float dtype as float32 of any shape."""
    data = np.ascontiguousarray(data).reshape(-1)
    if dtype == "bf16":
        return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return data.view("<f2" if dtype == "f16" else "<f4").astype(np.float32)


def bytes_of(x, dtype):
    x = np.ascontiguousarray(x).reshape(-1)
    x = np.where(np.isnan(x), np.uint32(0x7FC00000).view(np.float32), x).astype(np.float32)
    if dtype == "f32":
        return x.astype("<f4").view(np.uint8)
    if dtype == "f16":
        with np.errstate(all="ignore"):
            halves = x.astype("<f2")
        beyond = np.isinf(halves)
        return np.where(beyond, np.copysign(np.float16(65504), halves), halves).astype("<f2").view(np.uint8)
    bits = x.view(np.uint32).astype(np.uint64)
    bits = np.where(np.isnan(x), bits, bits + 0x7FFF + (bits >> 16 & 1))
    return (bits >> 16).astype("<u2").view(np.uint8)


def fma_short(a, b, y):
    """fma() of numbers a and b of at most 11 bits, faster."""
    product = a * b
    out = product + y
    odd = ((np.abs(product) < np.float32(2.0**-126)) & (a != 0) & (b != 0)) | ~np.isfinite(product)
    # elsewhere the product is exact, and the sum's is the only rounding
    return np.where(odd, fma(a, b, y), out) if odd.any() else out


def normed(x, scale, epsilon):
    """Rows of hidden states by RMSNorm, in the order of sums of project.md."""
    sums = np.zeros((len(x), 8), np.float32)
    for i in range(x.shape[1]):
        sums[:, i % 8] += x[:, i] * x[:, i]
    four = sums[:, :4] + sums[:, 4:]
    mean = ((four[:, 0] + four[:, 2]) + (four[:, 1] + four[:, 3])) / np.float32(x.shape[1])
    factor = np.float32(1) / np.sqrt(mean + epsilon)
    return x * factor[:, None] * scale


def projected(x, matrix, bias):
    """Rows times [in][out], and the bias."""
    y = np.zeros((len(x), matrix.shape[1]), np.float32)
    for i, row in enumerate(matrix):
        y = fma(x[:, i, None], row[None], y)
    return y if bias is None else y + bias


def fma(a, b, y):
    """a * b + y in binary32 with one rounding."""
    p, z = np.broadcast_arrays(a.astype(np.float64) * b, y.astype(np.float64))
    total = p + z
    rest = total - p
    error = (p - (total - rest)) + (z - rest)
    bits = total.view(np.int64)  # rounded to odd: then rounding to binary32 is as of the exact sum
    inexact = (error != 0) & (bits & 1 == 0) & np.isfinite(total)
    return np.where(inexact, np.nextafter(total, np.copysign(np.inf, error)), total).astype(np.float32)


class Floats:
    """codecs/floats.md: takes n halves with a common exponent off the front of bytes."""

    def __init__(self, data, what):
        self.r = Bytes(data.tobytes(), what)

    def take(self, n):
        r = self.r
        exponent, zeros, width, middle, k = r.unpack("hBBBI")
        rotated, width = width >> 7, width & 127
        need(-126 <= exponent <= 112 and zeros <= 8, f"{r.what}: exponent or zero bits out of range")
        need(1 <= width <= 8 and k <= n, f"{r.what}: width or escapes out of range")
        need(width < 8 or not (rotated or middle or k), f"{r.what}: bytes as they are, with a code")
        low, high = self.packed(8 - zeros, n) << zeros, self.packed(width, n)
        if width < 8:
            escaped = high == (1 << width) - 1
            need(escaped.sum() == k, f"{r.what}: {escaped.sum()} escapes, not {k}")
            high = high + middle & 255
            if rotated:
                high = high >> 1 | (high & 1) << 7
            high[escaped] = np.frombuffer(r.take(k), np.uint8)
        halves = (high << 8 | low).astype(np.uint16).view(np.float16)
        need(np.isfinite(halves).all(), f"{r.what}: a half is not finite")
        return (halves.astype(np.float64) * 2.0**exponent).astype(np.float32)

    def packed(self, width, n):
        """n numbers of `width` bits."""
        if not width:
            return np.zeros(n, np.int64)
        data = np.frombuffer(self.r.take(n if width == 8 else packed_size(width, n)), np.uint8)
        return (data if width == 8 else unpack(data, width, n, self.r.what)).astype(np.int64)

    def end(self):
        self.r.end()


def take_floats(sections, kind, index, *counts):
    """A stored section of halves: an array of each count."""
    r = Floats(sections.take(kind, index, stored=True), f"{sections.where}: section {kind}.{index}")
    out = [r.take(n) for n in counts]
    r.end()
    return out


def take_bits(sections, kind, n, what):
    """A stored section of n bits, the lowest of a byte first: bool [n]."""
    data = sections.take(kind, 0, (n + 7) // 8, stored=True)
    bits = np.unpackbits(data, bitorder="little").astype(bool)
    need(not bits[n:].any(), f"{sections.where}: {what}: filling bits are not zero")
    return bits[:n]


def pruned(args, role_v, dim):
    return int(dim * (args["v"] if role_v else args["k"]))


def read_side(pipeline, tensor, record, where):
    """Side data of one segment: stage -> what it keeps there; "first" -> a pair's first tensor."""
    sections = record.sections if record else []
    where = record.where if record else where
    supported(not sections or sections[0].stage != 255 or sections[0].type != S_NEEDS, f"{where}: NEEDS, which no reader of version 1 knows")
    staged = by_stage(sections, len(pipeline), where)
    dim, side = tensor.dim, {}
    for i, (stage, args) in enumerate(pipeline):
        left = Sections(staged[i], where)
        if stage == MERGE and left.has(S_MERGED):
            side["first"] = int.from_bytes(left.take(S_MERGED, 0, 4, stored=True).tobytes(), "little")
        elif "first" in side:
            pass  # what stands behind merge is in the first tensor's records
        elif stage == PRUNE and pruned(args, tensor.role == V_ROLE, dim):
            out = pruned(args, tensor.role == V_ROLE, dim)
            mask = take_bits(left, S_MASK, tensor.heads * dim, "MASK").reshape(tensor.heads, dim)
            need((mask.sum(axis=1) == out).all(), f"{where}: MASK leaves out another number of channels")
            size = tensor.bytes
            count = tensor.heads * out * size
            mean = left.take(S_MEAN, 0, count, stored=True) if args["mean"] else np.zeros(count, np.uint8)
            side[i] = mask, mean.reshape(-1, size)
            dim -= out
        elif stage == LOWRANK:
            heads = 1 if args["layer"] else tensor.heads
            width = tensor.heads * dim // heads
            rank = min(args["r"], width)
            side[i] = take_floats(left, S_FACTOR_B, 0, heads * rank * width)[0].reshape(heads, rank, width)
        elif stage == PROJECT:
            side[i] = read_hidden(left.take(S_HIDDEN, 0, stored=True), tensor.role, where)
        elif stage in (CROSS, PREDICT) and left.has(S_INPUTS):
            side["inputs"] = read_inputs(left.take(S_INPUTS, 0, stored=True), where)
        elif stage == CENTER and left.has(S_MEAN):
            side[i] = take_floats(left, S_MEAN, 0, tensor.heads * dim)[0].reshape(tensor.heads, dim)
        elif stage == BASIS and left.has(S_BASIS):
            side[i] = read_basis(left.take(S_BASIS, 0, stored=True), tensor.heads, dim, f"{where}: BASIS")
        elif stage == STEPS:
            bits = Bits(left.take(S_STEPS, 0, stored=True), f"{where}: STEPS")
            side[i] = Rans([rans_table(bits, 12, 8)], 8)
            need(bits.pad(1) == len(bits.data), f"{where}: STEPS: bytes too many")
            need(11 not in side[i].symbol, f"{where}: STEPS: a symbol without a class")
        elif stage == CODE:
            side[i] = read_indices(left.take(S_TABLES, 0, stored=True), tensor.heads, dim, f"{where}: TABLES")
        left.end()
    return side


def read_rotation(r):
    """Pairing; angles or None, where they are those of the profile; pairs."""
    pairing, of_profile, pairs = r.unpack("BBH")
    need(pairing in (HALVES, INTERLEAVED) and of_profile <= 1, f"{r.what}: pairing or place of the angles")
    need(pairs >= 1, f"{r.what}: a rotation without pairs")
    angles = None if of_profile else np.array(r.unpack(f"{pairs}d"))
    need(angles is None or ((angles >= 0) & (angles <= 1)).all(), f"{r.what}: an angle out of range")
    return pairing, angles, pairs


def read_hidden(data, role, where):
    """codecs/papers/project/project.md: the tensor of hidden states, fingerprint of the weights or None, with a norm, epsilon"""
    r = Bytes(data.tobytes(), f"{where}: HIDDEN")
    tensor, channels, fingerprint, norm, filling, epsilon = r.unpack("II32sB3sf")
    r.end()
    need(norm <= 1 and not any(filling) and 0 <= epsilon < float("inf"), f"{r.what}: norm, filling bytes or epsilon")
    need(1 <= channels <= 1 << 24, f"{r.what}: channels")
    copies = not any(fingerprint)
    need(copies == (role > LATENT_ROLE) and not (copies and norm), f"{r.what}: fingerprint or norm of something else")
    return tensor, channels, None if copies else fingerprint, norm, np.float32(epsilon)


def read_inputs(data, where):
    """codecs/stages/cross/cross.md: a tensor or NONE for each input"""
    r = Bytes(data.tobytes(), f"{where}: INPUTS")
    named = r.unpack(f"{len(data) // 4}I")
    r.end()
    need(1 <= len(named) <= 16, f"{r.what}: number of tensors")
    return named


def read_basis(data, heads, dim, what):
    """codecs/stages/basis/basis.md: scales of channels; rows of the decode matrix of each head, or None"""
    f = Floats(data, what)
    kind, bits = f.r.unpack("BB")
    need(kind <= 1 and 4 <= bits <= 8, f"{what}: kind or bits")
    scales = f.take(heads * dim).reshape(heads, dim)
    matrices = None
    if kind == 1:
        rows = f.r.unpack(f"{heads}H")
        need(max(rows) <= dim, f"{what}: more rows than channels")
        total = sum(rows)
        scale_of = f.take(total) if total else np.zeros(0, np.float32)
        codes = f.packed(bits, total * dim).reshape(total, dim) - (1 << bits - 1)
        head_of = np.repeat(np.arange(heads), rows)
        whole = codes.astype(np.float32) * scale_of[:, None] * scales[head_of]
        matrices = np.split(whole, np.cumsum(rows)[:-1])
    f.end()
    return scales, matrices


def read_indices(data, heads, dim, what):
    """codecs/stages/code/code.md: the index of each component of each head"""
    bits, out = Bits(data, what), np.zeros((heads, dim), np.int64)
    for head in out:
        head[0] = bits.take(6)
        for i in range(1, dim):
            head[i] = head[i - 1] - bits.zigzag(1)
    need(bits.pad(1) == len(bits.data), f"{what}: bytes too many")
    need(out.min() >= 0 and out.max() <= 63, f"{what}: an index out of range")
    return out


def fixed_tables():
    """The frequency tables that the page of `code` prints."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "codecs", "stages", "code", "code.md")
    with open(path, encoding="utf-8") as f:
        text = f.read()
    tables = []
    for row in re.findall(r"^ ?\d+: +(\d+;[0-9 ]+(?:\n {9}[0-9 ]+)*)", text, re.MULTILINE):
        escape, half = row.split(";")
        half = [int(x) for x in half.split()]
        table = np.zeros(128, int)
        table[127] = int(escape)
        table[63:63 + len(half)] = half
        table[63 - len(half) + 1:64] = half[::-1]
        tables.append(table)
    digest = hashlib.sha256(np.array(tables, "<u2").tobytes()).hexdigest()
    need(digest in text, "the tables of code.md do not have the hash that it names")
    return Rans(tables, 11)


def by_stage(sections, n, where):
    """The sections of each of n stages, which stand in their order."""
    stages = [s.stage for s in sections]
    in_order = stages == sorted(stages) and all(i < n for i in stages)
    need(in_order, f"{where}: sections out of order or of other stages: {stages}")
    return [[s for s in sections if s.stage == i] for i in range(n)]


class Block:
    """The stage sections of one block, decoded from the last stage to the first."""

    def __init__(self, pipeline, sections, side, where):
        self.pipeline, self.side, self.where = pipeline, side, where
        self.sections = by_stage(sections, len(pipeline), where)
        self.salient = None  # bool [rows, heads] of the rows that reach the stage, once `saliency` is passed
        self.classes = None  # int [rows, heads], once `steps` is passed
        self.key, self.merged, self.is_first, self.role_v = None, None, False, False
        # the file; the tensor and the number of the block; which of its rows reach the stage
        self.kvc, self.tensor, self.number, self.at = None, 0, 0, None

    def decode(self, i, m):
        """What went into stage i, a matrix m; None behind the last stage."""
        if i == len(self.pipeline):
            return None
        stage, args = self.pipeline[i]
        sections = Sections(self.sections[i], self.where)
        if not m.rows:
            if stage in (STORE, ZSTD):  # whose sections are empty
                return decode_terminal(stage, self.sections[i], m, self.where)
            need(not self.sections[i], f"{self.where}: sections without rows")
            if stage != MERGE or self.is_first:  # the first tensor of a pair has the sections of later stages
                self.decode(i + 1, m)
            return np.zeros((0, m.row_bytes), np.uint8)
        if stage in TERMINAL - {CODE}:
            ahead = self.ahead(m) if stage == CROSS and "inputs" in self.side else None
            return decode_terminal(stage, self.sections[i], m, self.where, ahead)
        decode = {
            FINITE: self.finite,
            SINK: self.sink,
            TAIL: self.tail,
            QUANT: self.quant,
            OUTLIER: self.outlier,
            LOWRANK: self.lowrank,
            PRUNE: self.prune,
            SALIENCY: self.saliency,
            MERGE: self.merge,
            DEROPE: self.derope,
            CENTER: self.center,
            BASIS: self.basis,
            STEPS: self.steps,
            CODE: self.code,
            PREDICT: self.predict,
            PROJECT: self.project,
        }[stage]
        with np.errstate(all="ignore"):
            out = decode(i, m, args, sections)
        return m.packed(out) if stage in TAKE_DTYPE else out

    def finite(self, i, m, _, sections):
        """codecs/stages/finite/finite.md"""
        if not sections.has(S_ESCAPES):
            sections.end()
            return self.decode(i + 1, m)
        what = f"{self.where}: ESCAPES"
        need(sections.left[0].size <= m.rows * m.channels * (4 + m.bytes), f"{what}: too large")
        data = sections.take(S_ESCAPES, 0)
        sections.end()
        k, ragged = divmod(len(data), 4 + m.bytes)
        need(k and not ragged, f"{what}: size")
        at = data[: 4 * k].view("<u4").astype(np.int64)
        need((np.diff(at) > 0).all() and at[-1] < m.rows * m.channels, f"{what}: indices")
        out = m.packed(self.decode(i + 1, m)).copy()
        out.reshape(-1, m.bytes)[at] = data[4 * k :].reshape(k, m.bytes)
        return out

    def kept(self, m, sections, kept):
        """codecs/stages/ends/kept.md: the kept rows between what later stages left of the others."""
        rows = np.zeros((m.rows, m.row_bytes), np.uint8)
        n = int(kept.sum())
        self.at = self.at[~kept]
        if n:
            rows[kept] = decode_terminal(SPLIT, sections.left, m.of(rows=n), self.where)
        else:
            sections.end()
        return rows

    def ends(self, i, m, sections, kind, first):
        """sink and tail: their number of rows at the block's beginning or end."""
        if not sections.has(kind):
            sections.end()
            return self.decode(i + 1, m)
        n = int(sections.take(kind, 0, 2, stored=True).view("<u2")[0])
        need(1 <= n <= m.rows, f"{self.where}: {n} of {m.rows} rows are kept")
        kept = np.zeros(m.rows, bool)
        kept[slice(n) if first else slice(m.rows - n, m.rows)] = True
        rows = self.kept(m, sections, kept)
        if self.salient is not None:
            self.salient = self.salient[~kept]
        others = m.of(rows=m.rows - n)
        rows[~kept] = others.packed(self.decode(i + 1, others))
        return rows

    def sink(self, i, m, _, sections):
        return self.ends(i, m, sections, S_SINK, True)

    def tail(self, i, m, _, sections):
        return self.ends(i, m, sections, S_TAIL, False)

    def saliency(self, i, m, _, sections):
        """codecs/papers/saliency/saliency.md"""
        self.salient = take_bits(sections, S_MASK, m.rows * m.heads, "MASK").reshape(m.rows, m.heads)
        sections.end()
        return self.decode(i + 1, m)

    def prune(self, i, m, _, sections):
        """codecs/papers/prune/prune.md"""
        sections.end()
        if i not in self.side:
            return self.decode(i + 1, m)
        mask, mean = self.side[i]
        rows = np.zeros((m.rows, m.heads, m.dim, m.bytes), np.uint8)
        rows[:, mask] = mean
        others = m.of(dim=int(m.dim - mask[0].sum()))
        left = others.packed(self.decode(i + 1, others))
        rows[:, ~mask] = left.reshape(m.rows, -1, m.bytes)
        return rows.reshape(m.rows, -1)

    def outlier(self, i, m, _, sections):
        """codecs/papers/outlier/outlier.md"""
        x = m.floats(self.decode(i + 1, m))
        if not sections.has(S_OUTLIERS):
            sections.end()
            return x
        what = f"{self.where}: OUTLIERS"
        data = sections.take(S_OUTLIERS, 0, stored=True).tobytes()
        sections.end()
        x = x.reshape(m.rows, -1)
        vectors = (x if self.role_v else x.T).copy()
        n, length = vectors.shape
        r = Bytes(data, what)
        k = r.one("H")
        need(2 * k <= length, f"{what}: takes {k} of {length} at each end")
        count = np.full(n, 2 * k) if k else np.frombuffer(r.take(n), np.uint8).astype(np.int64)
        total = int(count.sum())
        need(total > 0, f"{what}: there are none")
        width = "u1" if length <= 256 else "<u2"
        at = np.frombuffer(r.take(total * int(width[-1])), width).astype(np.int64)
        values = floats_of(np.frombuffer(r.take(total * m.bytes), np.uint8), m.dtype)
        r.end()
        need(np.isfinite(values).all(), f"{what}: not finite")
        first = np.cumsum(count) - count
        for vector, begin, size in zip(vectors, first, count):
            here = at[begin : begin + size]
            need((np.diff(here) > 0).all() and (here < length).all(), f"{what}: indices")
            vector[here] = values[begin : begin + size]
        return np.ascontiguousarray(vectors if self.role_v else vectors.T).reshape(m.rows, m.heads, m.dim)

    def lowrank(self, i, m, args, sections):
        """codecs/papers/lowrank/lowrank.md"""
        b = self.side[i]
        heads, rank, width = b.shape
        a = take_floats(sections, S_FACTOR_A, 0, m.rows * heads * rank)[0].reshape(m.rows, heads, rank)
        sections.end()
        y = np.zeros((m.rows, heads, width), np.float32)
        for k in range(rank):
            y = fma_short(a[:, :, k, None], b[None, :, k], y)
        return self.plus(i, m, y.reshape(m.rows, m.heads, m.dim))

    def plus(self, i, m, x):
        rest = self.decode(i + 1, m)
        return x if rest is None else x + m.floats(rest)

    def project(self, i, m, _, sections):
        """codecs/papers/project/project.md"""
        sections.end()
        tensor, channels, fingerprint, norm, epsilon = self.side[i]
        kvc, own = self.kvc, self.kvc.tensors[self.tensor]
        need(tensor < len(kvc.tensors) and tensor != self.tensor, f"{self.where}: no tensor of hidden states")
        source = kvc.tensors[tensor]
        fits = source.role == HIDDEN_ROLE and source.dtype in FLOATS and source.heads * source.dim == channels
        need(fits, f"{self.where}: another tensor than one of hidden states")
        need(PROJECT not in [stage for stage, _ in kvc.pipelines[source.pipeline]], f"{self.where}: hidden states that are rebuilt")
        part = own.layer.part
        rows = part.block[self.number] + self.at
        positions = part.pos[part.order][rows]
        need((positions >= 0).all(), f"{self.where}: a position below 0")
        x = floats_of(kvc.rows_at(tensor, rows, positions), source.dtype).reshape(len(rows), channels)
        if fingerprint is None:
            need(channels == m.channels, f"{self.where}: hidden states of another size")
            y = x
        else:
            matrix, bias, scale = kvc.projection(own, channels, fingerprint)
            need(scale is not None or not norm, f"{self.where}: the weights have no norm")
            y = projected(normed(x, scale, epsilon) if norm else x, matrix, bias)
        y = y.reshape(m.rows, m.heads, m.dim)
        if fingerprint is not None and (rotation := kvc.rotation(self.tensor)):
            y = rotate(y, positions, rotation[1], rotation[0])
        return self.plus(i, m, np.where(np.isfinite(y), y, np.float32(0)))

    def merge(self, i, m, args, sections):
        """codecs/papers/merge/merge.md"""
        if self.is_first:
            kept = np.zeros(m.rows, bool)
            if sections.has(S_KEPT):
                kept = take_bits(sections, S_KEPT, m.rows, "KEPT")
                need(kept.any(), f"{self.where}: KEPT keeps no row")
        else:
            need(self.key in self.merged, f"{self.where}: the pair's first tensor is not merged here")
            kept, first = self.merged[self.key]
            need(len(kept) == m.rows, f"{self.where}: not as many rows as the pair's first tensor")
        others = m.of(rows=int(m.rows - kept.sum()))
        norms = None
        if args[""] == "slerp" and others.rows:
            heads = m.heads if args["heads"] else 1
            norms = take_floats(sections, S_NORMS, 0, others.rows * heads)[0].reshape(others.rows, heads, 1)
        rows = self.kept(m, sections, kept)
        if self.is_first:
            self.merged[self.key] = kept, copy.copy(self)
            merged = others.packed(self.decode(i + 1, others))
        else:  # of the first one's sections, with what is known of this tensor
            need(not any(self.sections[i + 1 :]), f"{self.where}: sections that the pair's first tensor has")
            again = copy.copy(first)
            again.tensor = self.tensor
            merged = others.packed(again.decode(i + 1, others))
        if norms is not None:
            merged = others.packed(others.floats(merged) * norms)
        rows[~kept] = merged
        return rows

    def quant(self, i, m, args, sections):
        """codecs/stages/quant/quant.md"""
        scheme, group = args[""], args["g"]
        how = {"kivi": "tokens", "kcvt": "all", "token": "channels", "zip": "all"}[scheme]
        if self.role_v:
            how = {"kivi": "channels", "kcvt": "row", "token": "channels", "zip": "row"}[scheme]
        norms = None
        if scheme == "zip" and self.role_v:
            norms = self.channel_norms(sections.take(S_NORMS, 0, 2 + m.channels, stored=True))
        x = np.zeros((m.rows, m.heads, m.dim), np.float32)
        if self.salient is None:
            spans = [(slice(None), slice(None))]
            if how == "channels" and m.dim % group:
                spans = [(slice(None), h) for h in range(m.heads)]
            classes = [(args["bits"], spans)]
        else:
            classes = [
                (bits, [(np.flatnonzero(self.salient[:, h] == salient), h) for h in range(m.heads)])
                for bits, salient in ((args["bits"], True), (args["low"], False))
            ]
        for c, (bits, where) in enumerate(classes):
            shapes = [(len(x[span]), x[span].size // max(len(x[span]), 1)) for span in where]
            if not any(rows for rows, _ in shapes):
                continue
            params = [params_of(how, shape, group) for shape in shapes]
            count = max(n for n, _ in shapes) if how == "row" else sum(n * k for n, k in params)
            given = take_floats(sections, S_PARAMS, c, *([count] if args["sym"] else [count, count]))
            steps = given[0]
            lows = steps * np.float32(-((1 << bits) - 1) / 2) if args["sym"] else given[1]
            total = sum(n * k for n, k in shapes)
            codes = sections.take(S_CODES, c, total if bits == 8 else packed_size(bits, total), stored=True)
            if bits < 8:
                codes = unpack(codes, bits, total, f"{self.where}: CODES.{c}")
            codes, at, used = codes.astype(np.float32), 0, 0
            for span, (n, k), (pn, pk) in zip(where, shapes, params):
                code = codes[at : at + n * k].reshape(n, k)
                at += n * k
                if how == "row":
                    step, low = steps[:n, None], lows[:n, None]
                else:
                    step, low = (v[used : used + pn * pk].reshape(pn, pk) for v in (steps, lows))
                    used += pn * pk
                    if how == "channels":
                        step, low = (np.repeat(v, group, axis=1)[:, :k] for v in (step, low))
                    else:
                        length = group if how == "tokens" else max(n, 1)
                        step, low = (np.repeat(v, length, axis=0)[:n] for v in (step, low))
                x[span] = (code * step + low).reshape(x[span].shape)
        sections.end()
        if norms is not None:
            x = x * norms.reshape(m.heads, m.dim)
        return self.plus(i, m, x)

    def channel_norms(self, data):
        exponent = int(data[:2].view("<i2")[0])
        need(-150 <= exponent <= 100, f"{self.where}: NORMS: exponent {exponent}")
        code = data[2:].astype(np.int64)
        return np.ldexp((8 + code % 8).astype(np.float64), exponent + code // 8).astype(np.float32)


    def facts(self):
        """The profile; layer and role there; pairing."""
        tensor = self.kvc.tensors[self.tensor]
        need(tensor.role in ROLES, f"{self.where}: neither K nor V, without data of its own")
        pairing = self.kvc.pairing()
        return self.kvc.named_profile(), tensor.layer.index, ROLES[tensor.role], pairing

    def ahead(self, m):
        """codecs/stages/cross/cross.md, steps 1 to 4: float32 [rows, channels]"""
        value, positions = self.kvc.predicted(self.tensor, self.number, self.at)
        if rotation := self.kvc.rotation(self.tensor):
            value = rotate(value, positions, rotation[1], rotation[0])
        value = value.reshape(m.rows, m.channels)
        return hadamard(value, self.kvc.tile(self.kvc.tensors[self.tensor])) if m.dtype == "q8_0" else value

    def predict(self, i, m, _, sections):
        """codecs/stages/predict/predict.md"""
        sections.end()
        x = m.floats(self.decode(i + 1, m))
        if "inputs" in self.side:
            turned = self.kvc.tensors[self.tensor].rotation
            before = DEROPE in [stage for stage, _ in self.pipeline[:i]]
            need(not turned or before, f"{self.where}: K is predicted, and not before RoPE")
            x = x + self.kvc.predicted(self.tensor, self.number, self.at)[0]
        return x

    def derope(self, i, m, _, sections):
        """codecs/stages/derope/derope.md"""
        sections.end()
        x = m.floats(self.decode(i + 1, m))
        if rotation := self.kvc.rotation(self.tensor):
            pairing, angles = rotation
            part = self.kvc.tensors[self.tensor].layer.part
            x = rotate(x, part.pos[part.order][part.block[self.number] + self.at], angles, pairing)
        return x

    def center(self, i, m, _, sections):
        """codecs/stages/center/center.md"""
        sections.end()
        x, mean = m.floats(self.decode(i + 1, m)), self.side.get(i)
        if mean is None and "inputs" in self.side and self.predicts_before(i):
            mean = np.zeros((m.heads, m.dim), np.float32)
        if mean is None:
            profile, layer, role, pairing = self.facts()
            mean = profile.channels(layer, role, "mean", pairing)
            need(mean is not None and mean.shape == (m.heads, m.dim), f"{self.where}: the profile has not these means")
        return x + mean

    def predicts_before(self, i):
        return any(stage == PREDICT for stage, _ in self.pipeline[:i])

    def basis(self, i, m, _, sections):
        """codecs/stages/basis/basis.md"""
        sections.end()
        c = m.floats(self.decode(i + 1, m))
        if i in self.side:
            scales, matrices = self.side[i]
            if matrices is None:
                return c * scales
        else:
            profile, layer, role, pairing = self.facts()
            matrices = profile.basis(layer, role, "inputs" in self.side and self.predicts_before(i), pairing)
            fits = matrices is not None and matrices.shape == (m.heads, m.dim, m.dim)
            need(fits, f"{self.where}: the profile has not this basis")
        y = np.zeros((m.rows, m.heads, m.dim), np.float32)
        for h, rows in enumerate(matrices):
            for j, row in enumerate(rows):
                some = c[:, h, j] != 0
                y[some, h] = fma(c[some, h, j, None], row[None], y[some, h])
        return y

    def steps(self, i, m, _, sections):
        """codecs/stages/steps/steps.md"""
        r = Bytes(sections.take(S_STEPS, 0, stored=True).tobytes(), f"{self.where}: STEPS")
        sections.end()
        states = r.unpack("I")
        need((len(r.data) - r.at) % 2 == 0, f"{r.what}: half a word")
        words = r.unpack(f"{(len(r.data) - r.at) // 2}H")
        symbols = self.side[i].decode(np.zeros((m.rows, m.heads), np.int64), states, words, r.what)
        self.classes = symbols - 6
        weight = (2.0 ** (self.classes / 2)).astype(np.float32)
        return m.floats(self.decode(i + 1, m)) * weight[:, :, None]

    def code(self, i, m, args, sections):
        """codecs/stages/code/code.md"""
        what = f"{self.where}: CODES"
        r = Bytes(sections.take(S_CODES, 0, stored=True).tobytes(), what)
        sections.end()
        classes = np.zeros((m.rows, m.heads), np.int64) if self.classes is None else self.classes
        index = np.clip(self.side[i] - ((5 * classes + 1) // 2)[:, :, None], 0, 63)
        t = np.where(index < 32, 0, -((31 - index) // 5))
        lanes = int(args["lanes"])
        while lanes > 1 and index.size < 512 * lanes:
            lanes //= 2
        size = r.one("I")
        states = r.unpack(f"{lanes}I")
        need(size % 2 == 0, f"{what}: half a word")
        words = np.frombuffer(r.take(size), "<u2").tolist()
        table = (index - 5 * t).reshape(-1, m.dim)  # a head of a row begins with lane 0
        symbols = TABLES.decode(table, states, words, what).reshape(-1)
        bits, codes = Bits(r.take(len(r.data) - r.at), what), []
        for symbol, low in zip(symbols.tolist(), t.reshape(-1).tolist()):
            value = symbol - 63
            if symbol == 127:
                n = bits.take(5)
                value = 1 << n | bits.take(n)
                value = value >> 1 ^ -(value & 1)
            if low:
                value = (value << low) + bits.take(low) - (1 << low - 1)
            need(abs(value) < 1 << 24, f"{what}: a code of 2^24 or more")
            codes.append(value)
        need(bits.pad(1) == len(bits.data), f"{what}: bits are left")
        step = np.float32(float(args["step"]))
        return np.array(codes, np.float32).reshape(m.rows, m.heads, m.dim) * step


def params_of(how, shape, group):
    """Rows and columns of a span's parameters."""
    n, k = shape
    if how == "channels":
        return n, -(-k // group)
    return (-(-n // group) if how == "tokens" else min(n, 1)), k


def decode_terminal(stage, sections, m, where, ahead=None):
    """Rows of one block as the pages of the stages say: codecs/stages/store/store.md, zstd.md, split.md, fast.md; cross.md with `ahead`,
    what is predicted of each value."""
    raw_only = stage == STORE or stage == FAST and m.dtype not in FAST_MANTISSA
    if raw_only or [s.type for s in sections] == [S_RAW]:
        need(
            [(s.type, s.coder, s.index) for s in sections] == [(S_RAW, 0, 0)], f"{where}: not one RAW section"
        )
        data = sections[0].decode()
        need(len(data) == m.rows * m.row_bytes, f"{where}: RAW has another size than the rows")
        return np.frombuffer(data, np.uint8).reshape(m.rows, m.row_bytes)
    if stage in (SPLIT, CROSS):
        return decode_split(Sections(sections, where), m, m.rows, ahead).reshape(m.rows, m.row_bytes)
    decode = {ZSTD: decode_zstd, FAST: decode_fast}[stage]
    return decode(Sections(sections, where), m, m.rows).reshape(m.rows, m.row_bytes)


class Sections:
    """The sections of one block's stage, to be taken in order."""

    def __init__(self, sections, where):
        self.left, self.where = list(sections), where

    def has(self, kind):
        return bool(self.left) and self.left[0].type == kind

    def take(self, kind, index, size=None, stored=False):
        """The next section's bytes. size: what they must be; stored: not compressed."""
        need(self.has(kind) and self.left[0].index == index, f"{self.where}: no section {kind}.{index} here")
        section = self.left.pop(0)
        need(section.coder == 0 or not stored, f"{self.where}: section {kind}.{index} is compressed")
        need(
            size is None or section.size == size,
            f"{self.where}: section {kind}.{index} has another size than the rows",
        )
        return np.frombuffer(section.decode(), np.uint8)

    def end(self):
        need(not self.left, f"{self.where}: too many sections")


def decode_zstd(sections, tensor, n):
    """codecs/stages/zstd/zstd.md: uint8 [blocks, bytes a block]"""
    blocks = n * tensor.row_blocks
    planes = [
        sections.take(S_PLANE, i, blocks * group).reshape(blocks, group)
        for i, group in enumerate(tensor.groups)
    ]
    sections.end()
    return np.concatenate(planes, axis=1)


class Bits:
    """A string of bits, in each byte the lowest first, and the codes of codecs/rans.md in it."""

    def __init__(self, data, what):
        self.data, self.at, self.what = bytes(data), 0, what

    def take(self, n):
        need(n <= 8 * len(self.data) - self.at, f"{self.what}: ends early")
        value = 0
        for i in range(n):
            value |= (self.data[self.at >> 3] >> (self.at & 7) & 1) << i
            self.at += 1
        return value

    def rice(self, k):
        ones = 0
        while ones < 24 and self.take(1):
            ones += 1
        if ones < 24:
            return ones << k | self.take(k)
        value = self.take(16)
        need(value >> k >= 24, f"{self.what}: a number is not in its shortest form")
        return value

    def zigzag(self, k):
        value = self.rice(k)
        return (value >> 1) ^ -(value & 1)

    def pad(self, unit):
        """Zero bits up to a multiple of `unit` bytes; where that is."""
        need(not self.take(-self.at % (8 * unit)), f"{self.what}: padding is not zero")
        return self.at // 8


def unpack(data, width, count, what):
    """`count` numbers of `width` bits, as codecs/stages/fast/fast.md packs them, 32 in a group."""
    groups = data.reshape(-1, 4 * width)
    values, shift, at = np.zeros((len(groups), 32), np.uint8), 0, 0
    for bits in (4, 2, 1):
        if width & bits:
            piece = groups[:, at : at + 4 * bits]
            for k in range(8 // bits):
                values[:, 4 * bits * k :][:, : 4 * bits] |= (piece >> bits * k & (1 << bits) - 1) << shift
            shift, at = shift + bits, at + 4 * bits
    values = values.reshape(-1)
    need(not values[count:].any(), f"{what}: padding is not zero")
    return values[:count]


def packed_size(width, count):
    return (count + 31) // 32 * 4 * width


def decode_fast(sections, tensor, n):
    """codecs/stages/fast/fast.md: uint8 [values, bytes a value]"""
    channels, count, mantissa = tensor.row_blocks, n * tensor.row_blocks, FAST_MANTISSA[tensor.dtype]
    planes = [sections.take(S_PLANE, i, count) for i in range(tensor.bytes - 2)]
    bits = Bits(sections.take(S_PARAMS, 0, stored=True), f"{sections.where}: PARAMS")
    width, k, middle = bits.take(4), bits.take(4), bits.take(8)
    need(1 <= width <= 7 and k <= 8, f"{bits.what}: width or k out of range")
    bias = np.array([middle + bits.zigzag(k) for _ in range(channels)], np.int64)
    need(
        bias.min() >= 0 and bias.max() < 1 << (15 - mantissa),
        f"{bits.what}: bias out of range",
    )
    need(bits.pad(1) == len(bits.data), f"{bits.what}: bytes too many")
    low = sections.take(S_PLANE, tensor.bytes - 2, count)
    escapes = np.zeros((0, 2), np.uint8)
    if sections.has(S_ESCAPES):
        escapes = sections.take(S_ESCAPES, 0, stored=True)
        need(len(escapes) and len(escapes) % 2 == 0, f"{sections.where}: ESCAPES: not whole pairs")
        escapes = escapes.reshape(-1, 2)
    codes = sections.take(S_CODES, 0, packed_size(width, count))
    sections.end()
    high = unpack(codes, width, count, f"{sections.where}: CODES")
    at = np.cumsum(escapes[:, 0].astype(np.int64) + 1) - 1
    need(not len(at) or at[-1] < count, f"{sections.where}: ESCAPES: beyond the block")
    high[at] = escapes[:, 1]
    rotated = high.astype(np.int64) << 8 | low
    words = (rotated >> 1 | rotated << 15) + np.tile(bias << mantissa, n) & 0xFFFF
    return np.column_stack([*planes, words & 255, words >> 8]).astype(np.uint8)


class Model:
    """codecs/stages/split/channels.md: bias and context of every value of a block, both [rows, channels]."""

    def __init__(self, rows, channels):
        """The flat model."""
        self.rows, self.channels = rows, channels
        self.bias = np.zeros((rows, channels), np.int64)
        self.context = np.zeros((rows, channels), np.int64)

    def read(self, data, dtype, what, ahead, scales):
        bits, n = Bits(data, what), self.channels
        turn = bits.take(2)
        need(not turn or dtype in FLOAT_BIAS or (turn, dtype) == (3, "q8_0"), f"{what}: this turn is not known here")
        need(turn < 3 or ahead is not None, f"{what}: turn 3 without a prediction")
        turning = None
        if turn in (1, 2):
            turning = Turning(turn, bits, n)
        middle, j, k = bits.take(8), bits.take(4), bits.take(4)
        need(j <= 8 and k <= 8, f"{what}: j or k out of range")
        spread = np.array([middle + bits.zigzag(j) for _ in range(n)], np.int64)
        mean = np.array([bits.zigzag(k) for _ in range(n)], np.int64)
        need(spread.min() >= 1 and spread.max() <= 253, f"{what}: spread out of range")
        need(mean.min() >= -128 and mean.max() <= 127, f"{what}: mean out of range")
        need(bits.pad(1) == len(data), f"{what}: bytes too many")
        if dtype in FLOAT_BIAS:
            self.of_floats(spread, mean, turning, ahead if turn == 3 else None, *FLOAT_BIAS[dtype])
        elif turn == 3:
            self.of_q8_0(spread, mean, ahead, scales)
        else:
            width = SPLIT_WORDS[dtype][1]
            self.bias[:] = mean % (1 << width)
            self.context[:] = np.clip(spread - (117 + 2 * width), 0, 7)

    def of_q8_0(self, spread, mean, ahead, scales):
        """codecs/stages/cross/cross.md: `scales`: float32 [rows, blocks of a row]"""
        variance_bits = (spread << 23).astype(np.uint32)
        value = mean.astype(np.float32) * (np.sqrt(variance_bits.view(np.float32)) * np.float32(0.25))
        d = np.repeat(scales, 32, axis=1)
        known = np.isfinite(d) & (d != 0)
        with np.errstate(all="ignore"):
            code = np.rint(np.clip((value + ahead) / d, -127, 127))
            unit = (d * d).view(np.uint32).astype(np.int64)
        octave = (variance_bits.astype(np.int64) - unit >> 23) - 3
        self.bias[known] = code[known].astype(np.int64) & 255
        self.context[known] = np.clip(octave, 0, 7)[known]

    def of_floats(self, spread, mean, turning, ahead, sign_bit, cut, shift, rebias):
        variance_bits = (spread << 23).astype(np.uint32)
        variance = variance_bits.view(np.float32)
        value = mean.astype(np.float32) * (np.sqrt(variance) * np.float32(0.25))
        rows = turning.rows(value, self.rows) if turning else [value] * self.rows
        if ahead is not None:
            rows = [value + p for p in ahead]
        for row, m in enumerate(rows):
            with np.errstate(over="ignore"):
                q = m * m + variance
            q_bits = q.view(np.uint32).astype(np.int64)
            self.context[row] = np.minimum((q_bits - variance_bits) >> 22, 7)
            r = np.maximum((q_bits >> 1) + (127 << 22) - (rebias << 23), 0)
            if ahead is None:
                magnitude = (r + (1 << (cut - 1))) >> cut << shift
            else:  # a whole word, of which the difference has low bits
                magnitude = (r + (1 << (cut - shift - 1))) >> (cut - shift)
            magnitude &= (1 << sign_bit) - 1  # kept below the sign bit: what reaches it or lies above is cut
            self.bias[row] = np.signbit(m).astype(np.int64) << sign_bit | magnitude
            if ahead is not None and shift:
                self.bias[row] -= 1 << shift - 1


class Turning:
    """The channels of a head whose means turn from row to row."""

    def __init__(self, turn, bits, channels):
        self.period, first, pairs = (bits.take(32) for _ in range(3))
        angle, ratio = np.array([bits.take(32), bits.take(32)], np.uint32).view(np.float32)
        need(self.period and channels % self.period == 0, f"{bits.what}: period does not divide the channels")
        need(pairs >= 1 and first + 2 * pairs <= self.period, f"{bits.what}: pairs beyond the period")
        need(0 < angle <= 4 and 0 < ratio <= 1, f"{bits.what}: angle or ratio out of range")
        pair = np.arange(pairs)
        self.one = first + (pair if turn == 1 else 2 * pair)
        self.other = self.one + (pairs if turn == 1 else 1)
        w = np.empty(pairs, np.float64)
        w[0] = angle
        for i in range(1, pairs):
            w[i] = w[i - 1] * np.float64(ratio)
        sums, term = [np.zeros(pairs), np.zeros(pairs)], np.ones(pairs)  # cosine, sine
        for k in range(25):
            sums[k & 1] = sums[k & 1] - term if k & 2 else sums[k & 1] + term
            term = term * w / (k + 1)
        self.cos, self.sin = np.ones(self.period, np.float32), np.zeros(self.period, np.float32)
        for channel in (self.one, self.other):
            self.cos[channel], self.sin[channel] = (x.astype(np.float32) for x in sums)

    def rows(self, value, n):
        """m of each row, float32 [channels]"""
        heads = value.reshape(-1, self.period)
        partner = np.zeros_like(heads)
        partner[:, self.one], partner[:, self.other] = -heads[:, self.other], heads[:, self.one]
        c, s = np.ones(self.period, np.float32), np.zeros(self.period, np.float32)
        for _ in range(n):
            yield (heads * c + partner * s).reshape(-1)
            c, s = c * self.cos - s * self.sin, s * self.cos + c * self.sin


def rans_table(bits, alphabet, p):
    """The frequencies of one table (codecs/rans.md)."""
    levels, level = [], 0
    while len(levels) < alphabet:
        level += bits.zigzag(2)
        need(0 <= level <= 40, f"{bits.what}: a level above 40 or below 0")
        levels.append(level)
        if level == 0:
            zeros = bits.rice(3)
            need(zeros <= alphabet - len(levels), f"{bits.what}: zeros beyond the alphabet")
            levels += [0] * zeros
    special = levels.index(max(levels))
    f = [v if v < 8 else (4 + v % 4) << (v // 4 - 1) for v in levels]
    f[special] = 0
    need(0 < sum(f) < 1 << p, f"{bits.what}: the other frequencies sum to {sum(f)}")
    f[special] = (1 << p) - sum(f)
    return np.array(f, np.int64)


class Rans:
    """Decodes streams with the tables of all contexts side by side: entry context << p | slot."""

    def __init__(self, tables, p):
        self.p, self.symbol, self.f, self.offset = p, [], [], []
        for f in tables:
            symbol = np.repeat(np.arange(len(f)), f)
            below = np.cumsum(f) - f
            self.symbol += symbol.tolist()
            self.f += f[symbol].tolist()
            self.offset += (np.arange(1 << p) - below[symbol]).tolist()

    def decode(self, contexts, states, words, what):
        """contexts [rows, symbols], states of the lanes, words: the symbols, [rows, symbols]"""
        p, mask, lanes = self.p, (1 << self.p) - 1, len(states)
        symbol, f, offset = self.symbol, self.f, self.offset
        need(min(states) >= 1 << 16, f"{what}: a state below 2^16")
        states, words, out = list(states), iter(words), []
        for row in (contexts << p).tolist():
            lane = 0
            for context in row:
                x = states[lane]
                slot = context | x & mask
                out.append(symbol[slot])
                x = f[slot] * (x >> p) + offset[slot]
                if x < 1 << 16:
                    word = next(words, None)
                    need(word is not None, f"{what}: out of words")
                    x = x << 16 | word
                states[lane] = x
                lane = (lane + 1) % lanes
        need(all(x == 1 << 16 for x in states), f"{what}: a lane does not end at 2^16")
        need(next(words, None) is None, f"{what}: words are left")
        return np.array(out, np.int64).reshape(contexts.shape)


def rans_codes(data, context, alphabet, what):
    """The symbols in a CODES section of split, [rows, channels] as `context` is."""
    need(len(data) >= 4, f"{what}: ends early")
    p, log_lanes, with_table, step = data[0] & 15, data[0] >> 4, data[1], data[2] | data[3] << 8
    rows = len(context)
    need(8 <= p <= 11 and log_lanes <= 5, f"{what}: P or lanes out of range")
    need(with_table, f"{what}: no table")
    need(1 <= step <= rows, f"{what}: rows in a stream out of range")
    bits = Bits(data[4:], what)
    tables = [rans_table(bits, alphabet, p) for _ in range(with_table.bit_count())]
    # A context without a table uses that of the nearest lower one, or else the first.
    table_of = np.array([max(0, (with_table & (2 << c) - 1).bit_count() - 1) for c in range(8)])
    r = Bytes(data[4 + bits.pad(4) :], what)
    starts = range(0, rows, step)
    sizes = r.unpack(f"{len(starts)}I")
    states = [r.unpack(f"{1 << log_lanes}I") for _ in starts]
    rans, out = Rans(tables, p), []
    for start, size, state in zip(starts, sizes, states):
        need(size % 2 == 0, f"{what}: half a word")
        words = np.frombuffer(r.take(size), "<u2").tolist()
        out.append(rans.decode(table_of[context[start : start + step]], state, words, what))
    r.end()
    return np.concatenate(out)


def decode_split(sections, tensor, n, ahead=None):
    """codecs/stages/split/split.md, and cross.md with `ahead`: uint8 [blocks, bytes a block]"""
    n_planes, width, shift = SPLIT_WORDS[tensor.dtype]
    blocks = n * tensor.row_blocks
    planes = [sections.take(S_PLANE, i, blocks) for i in range(n_planes)]
    model = Model(n, tensor.heads * tensor.dim)
    if sections.has(S_PARAMS):
        what = f"{sections.where}: PARAMS"
        scales = None
        if tensor.dtype == "q8_0":
            scales = floats_of(np.column_stack(planes), "f16").reshape(n, -1)
        model.read(sections.take(S_PARAMS, 0, stored=True), tensor.dtype, what, ahead, scales)
    codes = sections.take(S_CODES, 0, stored=True).tobytes()
    words = rans_codes(codes, model.context, 1 << (width - shift), f"{sections.where}: CODES") << shift
    if shift:
        size = words.size if shift == 8 else packed_size(shift, words.size)
        low = sections.take(S_PLANE, n_planes, size)
        if shift < 8:
            low = unpack(low, shift, words.size, f"{sections.where}: PLANE")
        words += low.reshape(words.shape)
    sections.end()
    words = (words + model.bias & (1 << width) - 1).reshape(blocks, -1)
    return np.column_stack([*planes, word_bytes(words, width)]).astype(np.uint8)


def word_bytes(words, width):
    """The bytes of a block's words [blocks, values], without the planes before them."""
    if width == 16:
        return np.concatenate([words & 255, words >> 8], axis=1)
    if width == 8:
        return words
    nibbles = words[:, :16] & 15 | (words[:, 16:] & 15) << 4
    fifth = np.packbits(words >> 4, axis=1, bitorder="little") if width == 5 else nibbles[:, :0]
    return np.concatenate([fifth, nibbles], axis=1)


TABLES = fixed_tables()
META_TYPES = {1: "?", 2: "Q", 3: "q", 4: "d"}
# Keys whose values mean something only where they have the type (FORMAT.md 7), and bytes.
KEY_TYPES = {
    name: kind
    for kind, names in {
        1: "rope.pairing-assumed sliding.assumed positions.given cache.heads-known cache.layers-known llama.transposed-v",
        2: """source.version source.bytes model.layers model.heads model.kv-heads model.head-dim model.head-dim-v rope.dim rope.original-context
            hadamard.k hadamard.v sliding.window page.size shard.rank shard.ranks tokens.first llama.streams llama.stream
            cells.coordinates""",
        4: "rope.theta rope.factor profile.fit-k profile.fit-v",
        5: """producer source.format recipe model.name model.architecture model.adapters rope.k rope.pairing rope.type
            rope.scaling rope.source prefix.identity llama.token-form profile.model profile.fit values.recipe hidden.states rows.used
            source.arrays scale.k scale.v scale.source""",
        6: "model.adapters.sha256 tokenizer.sha256 shard.set profile.sha256 values.profile values.content store.name",
        7: "rope.sections",
    }.items()
    for name in names.split()
}


def says_nothing(name, kind, value):
    """Of a known key: a value of another type than the key has, or of no bytes."""
    if name.startswith("model.fingerprint.") or name == "profile.sha256":
        return kind != 6 or len(value) != 32
    return name in KEY_TYPES and (kind != KEY_TYPES[name] or not value)


def read_meta(data):
    r, meta, before = Bytes(data, "META"), {}, b""
    for _ in range(r.one("I")):
        length, kind, critical, zero, size = r.unpack("BBBBI")
        key, value = r.take(length), r.take(size)
        name = key.decode("ascii", "replace")
        need(
            length and all(c in b"abcdefghijklmnopqrstuvwxyz0123456789._-" for c in key),
            f"META: bad key {name}",
        )
        need(key > before, f"META: {name}: order")
        supported(critical <= 1 and zero == 0, f"META: {name}: reserved bits")
        supported(not critical, f"META: {name} is critical, and no key of this version is")
        before = key
        supported(1 <= kind <= 7, f"META: {name}: unknown type {kind}")
        if kind in META_TYPES:
            need(size == struct.calcsize("<" + META_TYPES[kind]), f"META: {name}: wrong size")
            need(kind != 1 or value in (b"\0", b"\1"), f"META: {name}: not a bool")
            meta[name] = struct.unpack("<" + META_TYPES[kind], value)[0]
        elif kind == 5:
            need(b"\0" not in value, f"META: {name}: NUL in text")
            try:
                meta[name] = value.decode("utf-8")
            except UnicodeDecodeError as e:
                raise KvcError(f"META: {name}: not UTF-8") from e
        elif kind == 6:
            meta[name] = value
        else:
            need(size % 8 == 0, f"META: {name}: ragged")
            meta[name] = list(struct.unpack(f"<{size // 8}Q", value))
        if says_nothing(name, kind, value):
            del meta[name]
    r.end()
    return meta


def read_extras(data):
    """position of a block -> (the bytes that its key takes, the offsets of its items)"""
    extras, r, before = {}, Bytes(data, "prefix.extras"), -256
    need(isinstance(data, bytes) and 0 < len(data) <= 1 << 20, "prefix.extras: type or length")
    while r.at < len(data):
        position = r.one("Q")
        need(position % 256 == 0 and position > before, "prefix.extras: position or order of blocks")
        begin, before = r.at, position
        version, count = r.unpack("BI")
        need(version == 1 and count, "prefix.extras: version or number of items")
        order, offsets = (-1, 0), []
        for _ in range(count):
            tag, offset, length = r.unpack("BIH")
            need(tag and offset < 256 and length and (offset, tag) > order, "prefix.extras: bad item")
            need(tag > 2 or length >= 16, "prefix.extras: a short hash")
            order = offset, tag
            offsets.append(offset)
            r.take(length)
        extras[position] = data[begin : r.at], offsets
    return extras


def prefix_keys(identity, tokens, first=0, parent=None, extras=None):
    key, keys = parent or hashlib.sha256(b"kvc prefix 1\n" + identity.encode()).digest(), []
    for i in range(len(tokens) // 256):
        extra = (extras or {}).get(first + 256 * i, (b"", ()))[0]
        key = hashlib.sha256(key + np.asarray(tokens[256 * i : 256 * i + 256], "<i4").tobytes() + extra).digest()
        keys.append(key)
    return keys


def prefix_identity(meta):
    """The identity that a writer with the token ids must use (KEYS.md 1)."""

    def finish(text):
        lora = meta.get("model.adapters", "")
        return text + ("+lora:" + hashlib.sha256(lora.encode()).hexdigest()[:16] if lora else "")

    for algorithm in ("pieces", "sampled"):
        for kind in ("gguf", "safetensors"):
            value = meta.get(f"model.fingerprint.{kind}.{algorithm}")
            if value is not None:
                return finish(f"model.fingerprint.{kind}.{algorithm}:{value.hex()}")
    if meta.get("model.name"):
        facts = meta["model.name"].encode() + b"\0" + meta.get("model.architecture", "").encode() + b"\0"
        facts += struct.pack(
            "<3Q", *(meta.get(k, 0) for k in ("model.layers", "model.kv-heads", "model.head-dim"))
        )
        return finish("model:" + hashlib.sha256(facts).hexdigest())
    return finish("unknown")


def read(path, profile=None, weights=None):
    """Reads a file; `profile` and `weights` are paths, or None."""

    def bytes_of(name):
        if not name:
            return None
        with open(name, "rb") as f:
            return f.read()

    return Kvc(bytes_of(path), bytes_of(profile), bytes_of(weights))


def digests(path, profile=None, weights=None):
    """Prints the digest of each tensor, and SHA-256 of the source; returns 0, 1 for an invalid file, 2 for one of a later version."""
    try:
        kvc = read(path, profile, weights)
        for t in kvc.tensors:
            if not t.refused():
                digest = sum(xxh3(row.tobytes(), i) for i, row in enumerate(t.canonical())) % (1 << 64)
                print(t.layer.index, ROLE_NAMES[t.role], f"{digest:016x}")
        kvc.refuse_rows()
        if kvc.extents is not None:
            print("source", hashlib.sha256(b"".join(kvc.sources().values())).hexdigest())
    except (KvcError, OSError) as e:
        print(f"kvc_reader.py: {path}: {e}", file=sys.stderr)
        return 2 if isinstance(e, Unsupported) else 1
    return 0


def main(args):
    if args[:1] == ["--digests"] and len(args) in (2, 3, 4):
        return digests(*args[1:])
    profile = None
    if args and args[0].startswith("--profile="):
        profile = args.pop(0).partition("=")[2]
    if len(args) not in (1, 2):
        print("Usage: kvc_reader.py [--profile=PROFILE] FILE.kvc [SOURCE]", file=sys.stderr)
        return 2
    try:
        kvc = read(args[0], profile)
        kvc.refuse_rows()
        for key, value in kvc.meta.items():
            print(f"{key} = {value.hex() if isinstance(value, bytes) else value}")
        counts = f"{len(kvc.parts)} parts, {len(kvc.layers)} layers, {len(kvc.tensors)} tensors"
        print(f"{counts}: every check passed")
        if len(args) == 2:
            with open(args[1], "wb") as f:
                f.write(kvc.source())
    except (KvcError, OSError) as e:
        print(f"kvc_reader.py: {args[0]}: {e}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
