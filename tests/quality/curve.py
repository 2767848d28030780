#!/usr/bin/env python3
"""curve.py PAGE: prints README's picture, ratio against KLD of every preset, from the tables of man/kvc-quality.7.

The picture is written by hand in SVG, so that it has no dependency and equal tables give equal bytes."""

import math
import re
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 56, 16, 34, 46
KLD, RATIO = (0.001, 3.0), (1.0, 40.0)
SERIES = (("with the model's profile", "#1b6ca8"), ("without a profile, with queries", "#2a8f5a"), ("recipes of papers", "#b4532a"))


def rows(page):
    """Yields (series, preset, ratio, largest KLD) of the tables of the licence."""
    for line in open(page, encoding="utf-8"):
        cells = line.split()
        if len(cells) == 12 and re.fullmatch(r"[\d.]+", cells[1]) and "." in cells[11]:
            yield 2, cells[0], float(cells[1]), max(map(float, cells[6:9]))
        if len(cells) in (9, 10) and cells[1:3] in (["licence", "beside"], ["licence", "none"]):
            yield int(cells[2] == "none"), cells[0], float(cells[3]), max(map(float, cells[-5:-2]))


def x(kld):
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(kld / KLD[0]) / math.log(KLD[1] / KLD[0])


def y(ratio):
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(ratio / RATIO[0]) / math.log(RATIO[1] / RATIO[0])


def text(at_x, at_y, what, anchor="start", size=12):
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" font-size="{size}">{what}</text>'


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__.splitlines()[0])
    points = list(rows(sys.argv[1]))
    if len(points) < 15:
        sys.exit(f"{sys.argv[1]}: {len(points)} presets in its tables, and not at least 15")
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" fill="#222">',
           "<title>Ratio and KL divergence of every preset</title>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>']
    for ratio in (1, 2, 5, 10, 20, 40):
        out.append(f'<path d="M{LEFT} {y(ratio):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        out.append(text(LEFT - 6, y(ratio) + 4, str(ratio), "end"))
    for kld in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3):
        out.append(f'<path d="M{x(kld):.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        out.append(text(x(kld), HEIGHT - BOTTOM + 16, f"{kld:g}", "middle"))
    out.append(text((LEFT + WIDTH) / 2, HEIGHT - 8, "largest KLD of three continuations, nats per token", "middle"))
    out.append(text(8, TOP - 18, "ratio"))
    out.append(f'<path d="M{LEFT} {y(1.57):.1f}H{WIDTH - RIGHT}" stroke="#666" stroke-dasharray="4 3"/>')
    out.append(text(LEFT + 6, y(1.57) - 4, "lossless (split)", size=11))
    for number, (name, colour) in enumerate(SERIES):
        out.append(f'<circle cx="{LEFT + 60 + 220 * number}" cy="{TOP - 20}" r="4" fill="{colour}"/>')
        out.append(text(LEFT + 68 + 220 * number, TOP - 16, name))
        own = sorted((kld, ratio) for series, _, ratio, kld in points if series == number)
        if number < 2:
            line = "L".join(f"{x(kld):.1f} {y(ratio):.1f}" for kld, ratio in own)
            out.append(f'<path d="M{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    for series, preset, ratio, kld in points:
        left = preset in ("minicache-kivi4", "minicache", "gear4", "kivi4")
        out.append(f'<circle cx="{x(kld):.1f}" cy="{y(ratio):.1f}" r="4" fill="{SERIES[series][1]}"/>')
        out.append(text(x(kld) + (-7 if left else 7), y(ratio) + {"gear-l4": 13, "minicache-kivi4": 16}.get(preset, 4), preset,
                        "end" if left else "start", 11))
    print("\n".join([*out, "</svg>"]))


main()
