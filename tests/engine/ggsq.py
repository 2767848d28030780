"""ggsq.py: reads llama.cpp slot files (GGSQ 3 and 4) of models with one attention cache, for the tests to
compare with. It shares nothing with kvc's own reader. Not for sliding-window or recurrent models.
"""

import struct

import numpy as np

MAGIC = 0x67677371
F16, Q8_0 = 1, 8
BLOCK = {0: (1, 4), F16: (1, 2), 30: (1, 2), Q8_0: (32, 34)}  # ggml type: values a block, bytes a block


class Slot:
    """version, words (the token array as stored), tokens, pos; tile: Hadamard tiles of K and V (None: not
    recorded); k, v: per layer (ggml type, uint8 [cells, row bytes]), rows in cell order."""

    def __init__(self, data):
        self.data, self.at = data, 0
        magic, self.version, n = self._take("III")
        assert magic == MAGIC and self.version in (3, 4), "no slot file of version 3 or 4"
        self.words = np.array(self._take(f"{n}i"), np.int32)
        # llama-server wraps the ids: -1, version 1, count, ids, number of media chunks
        wrapped = n >= 4 and self.words[0] == -1 and self.words[1] == 1
        self.tokens = self.words[3 : 3 + self.words[2]] if wrapped else self.words
        streams, cells = self._take("II")
        assert streams == 1, "more than one stream"
        self.pos = np.zeros(cells, np.int64)
        for i in range(cells):
            self.pos[i], n_seq = self._take("iI")
            self._take(f"{n_seq}i")
        self.transposed, self.layers = self._take("II")
        assert self.transposed in (0, 1)
        self.tile = self._take("II") if self.version >= 4 else None
        self.k = [self._rows() for _ in range(self.layers)]
        self.v = [self._columns() if self.transposed else self._rows() for _ in range(self.layers)]
        assert self.at == len(data), f"{len(data) - self.at} bytes after the cache"

    def _take(self, form):
        out = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return out

    def _bytes(self, *shape):
        n = int(np.prod(shape))
        assert n <= len(self.data) - self.at, "ends early"
        self.at += n
        return np.frombuffer(self.data, np.uint8, n, self.at - n).reshape(shape)

    def _rows(self):
        kind, row = self._take("iQ")
        return kind, self._bytes(len(self.pos), row)

    def _columns(self):
        kind, size, width = self._take("iII")
        columns = self._bytes(width, len(self.pos), size)
        return kind, np.ascontiguousarray(columns.transpose(1, 0, 2)).reshape(len(self.pos), -1)

    def values(self, which, layer, heads):
        """K ('k') or V of a layer as float32 [heads, cells, dim], as stored (rotated where tile is not 0)."""
        kind, rows = getattr(self, which)[layer]
        if kind == Q8_0:
            blocks = rows.reshape(-1, 34)
            scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
            x = scale * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)
        elif kind == 30:
            x = (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            x = rows.view("<f2" if kind == F16 else "<f4").astype(np.float32)
        return x.reshape(len(self.pos), heads, -1).transpose(1, 0, 2)


def read(path):
    with open(path, "rb") as f:
        return Slot(f.read())


def hadamard(x, tile):
    """Undoes (or does) the rotation of runs of `tile` values: Sylvester's matrix / sqrt(tile)."""
    if not tile:
        return x
    h = np.ones((1, 1), np.float32)
    while len(h) < tile:
        h = np.block([[h, h], [h, -h]])
    return (x.reshape(*x.shape[:-1], -1, tile) @ (h / np.sqrt(np.float32(tile)))).reshape(x.shape)


def halves(x):
    """RoPE pairs (2i, 2i+1), llama.cpp's for the llama family, to (i, i + D/2), transformers'."""
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)
