"""made_rows.py: rows of made-up models for make_transform.py and make_lossy.py. Half the time of the command line tests was here."""
import math


def normal(source, n):
    """An even number of draws as source.gauss(0, 1) makes them, without its calls."""
    out = []
    for _ in range(n // 2):
        turn, size = source.random() * math.tau, math.sqrt(-2 * math.log(1 - source.random()))
        out += math.cos(turn) * size, math.sin(turn) * size
    return out


def turned(row, pairs, interleaved):
    """A row behind RoPE: `pairs` has the cosine and the sine of each pair's angle. Pairs of `row` are halves."""
    half = len(row) // 2
    low, high = row[:half], row[half:]
    a = [x * c - y * s for x, y, (c, s) in zip(low, high, pairs)]
    b = [x * s + y * c for x, y, (c, s) in zip(low, high, pairs)]
    return [x for pair in zip(a, b) for x in pair] if interleaved else a + b
