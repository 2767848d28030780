"""made_rows.py: rows of made-up models, for make_transform.py, make_lossy.py and make_turning.py."""
import functools
import math


def normal(source, n):
    """An even number of draws as source.gauss(0, 1) makes them, without its calls."""
    out = []
    for _ in range(n // 2):
        turn, size = source.random() * math.tau, math.sqrt(-2 * math.log(1 - source.random()))
        out += math.cos(turn) * size, math.sin(turn) * size
    return out


@functools.cache
def turns(position, base, half):
    """Cosine and sine of the angle by which RoPE turns each of `half` pairs."""
    angles = [position * base ** (-i / half) for i in range(half)]
    return list(zip(map(math.cos, angles), map(math.sin, angles)))


def turned(row, pairs, interleaved):
    """A row behind RoPE, by what turns() returns. Pairs of `row` are halves."""
    half = len(row) // 2
    low, high = row[:half], row[half:]
    a = [x * c - y * s for x, y, (c, s) in zip(low, high, pairs)]
    b = [x * s + y * c for x, y, (c, s) in zip(low, high, pairs)]
    return [x for pair in zip(a, b) for x in pair] if interleaved else a + b
