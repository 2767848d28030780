"""kvtc.py: KVTC (arXiv 2511.01815), the best published codec of KV caches, for table.py to measure beside kvc. Written
from descriptions of it, not NVIDIA's program; where these leave a choice, it is the one that favours KVTC.

K, with RoPE undone, and V of a token are a row each: all layers, heads and channels side by side. A basis is computed
once for a model: principal axes of the rows of calibration texts, the first SINKS tokens of each left out. A cache's
rows are projected on it. Groups of 1 to 1 024 neighbouring components have 0, 2, 4 or 8 bits a value, as a dynamic
programme over calibration rows chose for a number of bits a token; the codes of a group lie together, with a shift and
a scale of 16 bits for each token, and go through DEFLATE. The first SINKS and last RECENT tokens stay as they are.

Nobody decodes these bytes: they are made to be counted, and values are restored from what was packed into them. Not for
layers with a sliding window, nor for RoPE of other types than the default.
"""

import os
import subprocess
import sys
import tempfile
import zlib

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
SINKS, RECENT = 4, 128
TEXT_TOKENS, TEXT_CHARACTERS, SHORTEST = 1024, 12000, 200
NOMINAL = 3, 4.5, 8, 13, 20  # of 16 bits a value, before DEFLATE; half of the bits are K's
STARTS = {1: 1, 16: 4, 64: 4, 256: 16, 1024: 64}  # sizes of groups, and of what their starts are multiples
BITS = {"none": 0, "int2": 2, "int4": 4, "fp8": 8, "plain": 8}  # plain: fp8 without shift and scale
UNIT = 2  # all costs are even
JUDGED = 800  # calibration rows by which groups are chosen
LEAST_SCALE = 6e-8  # of a half


# --- groups of components ---

def kinds(size):
    """A value alone is restored by its shift: int4 and fp8 would add nothing to int2."""
    return ("int2", "plain") if size == 1 else ("int2", "int4", "fp8", "plain")


def cost(kind, size):
    """Bits for each token."""
    return size * BITS[kind] + (0 if kind == "plain" else 32)


def quantise(x, kind):
    """Rows of a group: codes of one byte each, and the shift and scale of each row, as halves; None for plain fp8.

    >>> x = torch.tensor([[0.0, 1.0, 2.0, 3.0], [5.0, 5.0, 5.0, 5.0]])
    >>> codes, *affine = quantise(x, "int2")
    >>> codes.tolist(), torch.equal(restore(codes, *affine, "int2"), x)
    ([[0, 1, 2, 3], [0, 0, 0, 0]], True)
    """
    if kind == "plain":
        return x.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), None, None
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    shift = ((low + high) / 2 if kind == "fp8" else low).half()
    y = x - shift.float()
    most = 448 if kind == "fp8" else 2 ** BITS[kind] - 1
    scale = (y.abs().amax(1, keepdim=True) / most).clamp_min(LEAST_SCALE).half()
    y = y / scale.float()
    if kind == "fp8":
        return y.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8), shift, scale
    return y.round().clamp(0, most).to(torch.uint8), shift, scale


def restore(codes, shift, scale, kind):
    y = codes.view(torch.float8_e4m3fn).float() if BITS[kind] == 8 else codes.float()
    return y if kind == "plain" else y * scale.float() + shift.float()


def packed(codes, kind):
    """Codes as bytes: component after component, tokens side by side."""
    flat = codes.numpy().T.reshape(-1)
    each = 8 // BITS[kind]
    flat = np.concatenate([flat, np.zeros(-len(flat) % each, np.uint8)]).reshape(-1, each)
    return sum(flat[:, i] << (i * BITS[kind]) for i in range(each)).astype(np.uint8).tobytes()


def errors(x):
    """What each group adds to the squared error of projected rows where it is kept: (size, kind, start) -> a negative
    number."""
    found = {}
    for size, step in STARTS.items():
        for start in range(0, x.shape[1] - size + 1, step):
            group = x[:, start:start + size]
            for kind in kinds(size):
                rest = group - restore(*quantise(group, kind), kind)
                found[size, kind, start] = rest.square().sum().item() - group.square().sum().item()
    return found


def plans(found, n, limits):
    """The best groups (start, size, kind) of n components for each limit of bits a token.

    >>> plans({(1, k, i): -e for i, e in enumerate((9, 1, 4)) for k in ("int2", "plain")}, 3, (8, 16, 7))
    [[(0, 1, 'plain')], [(0, 1, 'plain'), (2, 1, 'plain')], []]
    """
    choices = [(1, "none")] + [(size, kind) for size in STARTS for kind in kinds(size)]
    room = max(limits) // UNIT + 1
    best = [np.zeros(room)] + [None] * n
    chosen = np.zeros((n + 1, room), np.int8)
    for i in range(n):
        here, best[i] = best[i], None
        for number, (size, kind) in enumerate(choices):
            gain = 0 if kind == "none" else found.get((size, kind, i))
            taken = 0 if kind == "none" else cost(kind, size) // UNIT
            if gain is None or taken >= room:
                continue
            if best[i + size] is None:
                best[i + size] = np.full(room, np.inf)
            there, new = best[i + size][taken:], here[:room - taken] + gain
            better = new < there
            there[better] = new[better]
            chosen[i + size][taken:][better] = number
    return [walk_back(chosen, choices, n, limit // UNIT) for limit in limits]


def walk_back(chosen, choices, n, left):
    groups = []
    while n > 0:
        size, kind = choices[chosen[n, left]]
        n -= size
        if kind != "none":
            left -= cost(kind, size) // UNIT
            groups.append((n, size, kind))
    return groups[::-1]


# --- calibration ---

def turned(x, theta, sign):
    """K [layers, heads, tokens, channels] with RoPE, of pairs half a head apart, done (1) or undone (-1)."""
    half = x.shape[-1] // 2
    angles = torch.arange(x.shape[2]).double()[:, None] * theta ** (-torch.arange(half, dtype=torch.float64) / half)
    c, s = angles.cos().float(), sign * angles.sin().float()
    p, q = x[..., :half], x[..., half:]
    return torch.cat([p * c - q * s, q * c + p * s], -1)


def to_rows(x):
    """[layers, heads, tokens, channels] -> [tokens, all]"""
    return x.permute(2, 0, 1, 3).reshape(x.shape[2], -1)


def stacked(layers):
    return torch.cat([x.float() for x in layers])


class Kvtc:
    """The bases of a model, which are kept in the folder `work`."""

    def __init__(self, model, name, work):
        rope = model.config.rope_parameters
        if any(model.windows) or rope.get("rope_type") != "default":
            raise ValueError("KVTC is measured with RoPE of type default alone, and without windows")
        self.model, self.theta = model, rope["rope_theta"]
        path = os.path.join(work, f"{name}.kvtc")
        if not os.path.exists(path):
            torch.save([self.basis(rows) for rows in self.calibration(name)], path + ".part")
            os.replace(path + ".part", path)
        self.bases = torch.load(path)

    def calibration(self, name):
        """Rows of K and of V of the texts that a profile of kvc is made of, in bfloat16."""
        rows = [], []
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(["sh", os.path.join(HERE, "profile_texts.sh"), name, folder], check=True, text=True,
                                  stdout=subprocess.PIPE, env=os.environ | {"PYTHON": sys.executable})
            for path in filter(None, made.stdout.split("\n")):
                with open(path, encoding="utf-8", errors="replace") as f:
                    ids = self.model.encode(f.read(TEXT_CHARACTERS))[:TEXT_TOKENS]
                if len(ids) < SHORTEST:
                    continue
                keys, values, _ = self.model.prefill(ids)
                rows[0].append(to_rows(turned(stacked(keys), self.theta, -1))[SINKS:].bfloat16())
                rows[1].append(to_rows(stacked(values))[SINKS:].bfloat16())
        for of_role in rows:
            yield torch.cat(of_role)

    def basis(self, rows):
        mean = rows.mean(0, dtype=torch.float64).float()
        n = rows.shape[1]
        products = torch.zeros(n, n)
        for block in rows.split(4096):
            centred = block.float() - mean
            products += centred.T @ centred
        axes = torch.linalg.eigh(products / len(rows))[1].flip(1).contiguous()
        judged = (rows[::max(1, len(rows) // JUDGED)].float() - mean) @ axes
        limits = [int(16 * n / ratio) for ratio in NOMINAL]
        return {"mean": mean, "axes": axes, "plans": plans(errors(judged), n, limits)}

    # --- a cache ---

    def coded(self, rows, basis, groups):
        """Restores rows, and counts the bytes they have."""
        x = (rows - basis["mean"]) @ basis["axes"]
        y, codes, affine = torch.zeros_like(x), [], []
        for start, size, kind in groups:
            q, shift, scale = quantise(x[:, start:start + size], kind)
            y[:, start:start + size] = restore(q, shift, scale, kind)
            codes.append(packed(q, kind))
            affine += [] if kind == "plain" else [shift, scale]
        halves = torch.cat(affine).numpy().view(np.uint8).reshape(-1, 2) if affine else np.zeros((0, 2), np.uint8)
        streams = b"".join(codes), np.ascontiguousarray(halves.T).tobytes()  # high and low bytes apart
        return y @ basis["axes"].T + basis["mean"], sum(len(zlib.compress(s, 6)) for s in streams)

    def code(self, layers, role, number):
        """K (role 0) or V (1) of a cache by layer, restored, and the bytes of what is not raw."""
        x = stacked(layers)
        rows = to_rows(x if role else turned(x, self.theta, -1))
        middle = slice(SINKS, len(rows) - RECENT)
        rows[middle], size = self.coded(rows[middle], self.bases[role], self.bases[role]["plans"][number])
        y = rows.reshape(x.shape[2], x.shape[0], x.shape[1], x.shape[3]).permute(1, 2, 0, 3)
        y = (y if role else turned(y, self.theta, 1)).bfloat16().float()
        y[:, :, :SINKS], y[:, :, -RECENT:] = x[:, :, :SINKS], x[:, :, -RECENT:]
        return list(y[:, None]), size

    def measure(self, judge, keys, values, number):
        """Figures for one of NOMINAL. The ratio is that of an endless prompt: raw tokens do not count."""
        k, v = (self.code(layers, role, number) for role, layers in enumerate((keys, values)))
        tokens = keys[0].shape[2]
        coded = sum(x.numel() for x in keys + values) * 2 * (tokens - SINKS - RECENT) / tokens
        return {"ratio": coded / (k[1] + v[1]), **judge.judge(k[0], v[0])}


if __name__ == "__main__":
    raise SystemExit("kvtc.py: table.py --rows=kvtc measures with it")
