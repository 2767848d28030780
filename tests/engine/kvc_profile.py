"""kvc_profile.py: profiles, and the arithmetic of the stages that use them, for the second reader kvc_reader.py. Written from
kvc-profile(5), codecs/stages/derope/derope.md and cross.md alone. Not for sections of containers, which kvc_reader.py reads.
"""

import hashlib
import json
import math
import re
from fractions import Fraction

import numpy as np

HALVES, INTERLEAVED = 1, 2


class KvcError(Exception):
    """A file breaks a rule of its format."""


class Unsupported(KvcError):
    """A file has something that version 1 of its format does not define."""


def need(condition, what):
    if not condition:
        raise KvcError(what)


def supported(condition, what):
    if not condition:
        raise Unsupported(what)


class Profile:
    """A profile file. Arrays are those of the file, channels paired as halves, unless a pairing is asked for."""

    TYPES = {"F64": "<f8", "F32": "<f4", "I8": "i1"}
    METRICS = ("fisher", "query", "covariance")
    FEATURES = ()  # that `requires` may name

    def __init__(self, data):
        self.sha256 = hashlib.sha256(data).digest()
        size = int.from_bytes(data[:8], "little")
        need(len(data) >= 8 and size <= len(data) - 8, "profile: its header does not fit")
        try:
            self.header = json.loads(data[8 : 8 + size])
        except ValueError as e:
            raise KvcError(f"profile: {e}") from e
        self.data = data[8 + size :]
        meta = self.header.get("__metadata__", {})
        version, back = meta.get("kvc.profile"), meta.get("predictor.back")
        need(version, "profile: not a profile")
        supported(version in ("0", "1"), "profile: of a later version")
        for feature in meta.get("requires", "").split(",") if meta.get("requires") else ():
            supported(feature in self.FEATURES, f"profile: requires the feature '{feature}'")
        supported(meta.get("metric", "covariance") in self.METRICS, "profile: an unknown metric")
        need(re.fullmatch("[1-9][0-9]{0,3}", meta.get("model.layers", "")) and int(meta["model.layers"]) <= 4096, "profile: model.layers")
        need(version == "0" or back is None or re.fullmatch("[1-7]", back), "profile: predictor.back")
        self.back = int(back) if version == "1" and back else 0

    def get(self, name):
        """An array, or None."""
        if name not in self.header:
            return None
        entry = self.header[name]
        begin, end = entry["data_offsets"]
        need(entry["dtype"] in self.TYPES and 0 <= begin <= end <= len(self.data), f"profile: {name}")
        array = np.frombuffer(self.data[begin:end], self.TYPES[entry["dtype"]])
        need(array.size == math.prod(entry["shape"]), f"profile: {name}: bytes and shape disagree")
        need(np.isfinite(array).all() and (np.abs(array.astype(np.float64)) < 2.0**100).all(), f"profile: {name}: out of range")
        return array.reshape(entry["shape"])

    def angles(self, layer):
        return self.get(f"layers.{layer}.rope")

    def order(self, layer, role, dim, pairing):
        """Channel c of a head of the cache is channel order[c] of the profile."""
        order, angles = np.arange(dim), self.angles(layer)
        if role == "k" and pairing == INTERLEAVED and angles is not None:
            pairs = len(angles)
            need(2 * pairs <= dim, f"profile: more angles than pairs of channels in layer {layer}")
            order[0 : 2 * pairs : 2], order[1 : 2 * pairs : 2] = np.arange(pairs), pairs + np.arange(pairs)
        return order

    def channels(self, layer, role, name, pairing):
        """An array [heads, dim] of K or V with its channels in the order of the cache, or None."""
        array = self.get(f"layers.{layer}.{role}.{name}")
        return None if array is None else array[:, self.order(layer, role, array.shape[1], pairing)]

    def basis(self, layer, role, residual, pairing):
        """Rows of the decode matrices of all heads, float32 [heads, rows, channels], or None."""
        name = f"layers.{layer}.{role}.{'residual.' if residual else ''}"
        basis, scale = self.get(name + "basis"), self.get(name + "scale")
        if basis is None or scale is None:
            return None
        rows = basis.astype(np.float32) * scale[:, :, None]
        return rows[:, :, self.order(layer, role, rows.shape[2], pairing)]

    def inputs(self, layer, role):
        """Layer and role of each input of a predictor, in the order of its columns; None without a predictor."""
        if self.get(f"layers.{layer}.{role}.predictor") is None or not self.back:
            return None
        wanted = [(n, r) for n in range(layer - 1, max(layer - 1 - self.back, -1), -1) for r in "kv"]
        wanted += [(layer, "k")] if role == "v" else []
        return [(n, r) for n, r in wanted if self.get(f"layers.{n}.{r}.gain") is not None]


class Prediction:
    """A predictor of K or V of one layer in the order of the cache's channels."""

    def __init__(self, profile, layer, role, pairing):
        self.profile, self.layer, self.role, self.pairing = profile, layer, role, pairing
        self.inputs = profile.inputs(layer, role)
        need(self.inputs, f"profile: does not predict {role} of layer {layer}")
        self.mean, self.scale = (profile.channels(layer, role, x, pairing) for x in ("mean", "predictor.scale"))
        need(self.mean is not None and self.scale is not None, f"profile: {role} of layer {layer}: a predictor without mean and scale")
        small(self.mean, self.scale)
        gains = [profile.get(f"layers.{n}.{r}.gain") for n, r in self.inputs]
        self.widths = [gain.size for gain in gains]
        weights = profile.get(f"layers.{layer}.{role}.predictor")
        need(weights.shape == (self.mean.size, sum(self.widths)), f"profile: {role} of layer {layer}: shape of its predictor")
        rows = self.whole(layer, role, self.mean.shape)
        columns = np.concatenate([
            at + self.whole(n, r, gain.shape) for (n, r), gain, at in
            zip(self.inputs, gains, np.cumsum([0, *self.widths]))
        ])
        self.weights = weights[rows][:, columns].astype(np.int64)

    def whole(self, layer, role, shape):
        """The order of all channels of a row."""
        heads, dim = shape
        return (np.arange(heads)[:, None] * dim + self.profile.order(layer, role, dim, self.pairing)).reshape(-1)

    def input(self, i, x, rotation, positions):
        """u of input i: int64 [rows, channels] from its decoded rows x, float32 [rows, heads, dim]; rotation: pairing and angles of its tensor, or None."""
        layer, role = self.inputs[i]
        mean, gain = (self.profile.channels(layer, role, name, self.pairing) for name in ("mean", "gain"))
        need(mean is not None and mean.shape == gain.shape == x.shape[1:], f"profile: does not predict from {role} of layer {layer}")
        small(mean, gain)
        with np.errstate(all="ignore"):
            if rotation:
                x = rotate(x, positions, rotation[1], rotation[0], undo=True)
            scaled = np.rint((x - mean) * gain)
            return np.nan_to_num(np.clip(scaled, -127, 127), nan=0).astype(np.int64).reshape(len(x), -1)

    def value(self, inputs):
        """p of step 3, float32 [rows, heads, dim]."""
        sums = np.concatenate(inputs, axis=1) @ self.weights.T
        return sums.astype(np.float32).reshape(-1, *self.mean.shape) * self.scale + self.mean


def small(*arrays):
    for array in arrays:
        need((np.abs(array) < 2.0**40).all(), "profile: a number of a prediction is out of range")


def multiply(a, b):
    """Products of numbers (cosine, sine), each operation rounded."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def turns(angles, positions):
    """Cosines and sines of positions times angles, float32 [positions, pairs] each (derope.md, "Decoding")."""
    x = np.asarray(angles, np.float64)
    z, cos, sin = x * x, np.zeros_like(x), np.zeros_like(x)
    for k in range(10, -1, -1):
        cos = cos * z + float(Fraction((-1) ** k, math.factorial(2 * k)))
    for k in range(9, -1, -1):
        sin = sin * z + float(Fraction((-1) ** k, math.factorial(2 * k + 1)))
    base, one = (cos, x * sin), (np.ones_like(x), np.zeros_like(x))
    low = [one]
    for _ in range(15):
        low.append(multiply(low[-1], base))
    sixteenth = multiply(low[15], base)
    middle = [one]
    for _ in range(15):
        middle.append(multiply(middle[-1], sixteenth))
    step = multiply(middle[15], sixteenth)
    out = []
    for p in positions:
        high, power, bits = one, step, int(p) >> 8
        while bits:
            if bits & 1:
                high = multiply(high, power)
            power = multiply(power, power)
            bits >>= 1
        out.append(multiply(multiply(high, middle[int(p) >> 4 & 15]), low[int(p) & 15]))
    return (np.array([turn[i] for turn in out], np.float64).astype(np.float32) for i in (0, 1))


def rotate(x, positions, angles, pairing, undo=False):
    """Rows rotated to their positions, or back: float32 [rows, heads, dim]."""
    need(all(0 <= p < 1 << 32 for p in positions), "a row that is rotated has no position from 0 to 2^32 - 1")
    cos, sin = (a[:, None, :] for a in turns(angles, positions))
    sin = -sin if undo else sin
    n, pair = len(angles), np.arange(len(angles))
    u, v = (pair, n + pair) if pairing == HALVES else (2 * pair, 2 * pair + 1)
    out = x.copy()
    out[:, :, u] = x[:, :, u] * cos - x[:, :, v] * sin
    out[:, :, v] = x[:, :, v] * cos + x[:, :, u] * sin
    return out


def hadamard(x, tile):
    """Rows [rows, channels] with their Hadamard rotation, or without, in binary32 (cross.md)."""
    if not tile:
        return x
    out, half = x.reshape(-1, tile), 1
    while half < tile:
        pairs = out.reshape(-1, 2, half)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1)
        half *= 2
    return (out.reshape(-1, tile) * (np.float32(1) / np.sqrt(np.float32(tile)))).reshape(x.shape)
