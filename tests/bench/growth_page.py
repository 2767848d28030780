"""growth_page.py: curves of growth.py as one HTML page, without script or network. Not for the measuring."""

import html
import math

COLOURS = "#1f6fb5 #7fb2e0 #c4560c #ef9c57 #2f7d32 #7b3fa0".split()
WIDTH, HEIGHT, LEFT, TOP = 420, 240, 52, 12

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>kvc: cost as caches grow</title>
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.45 system-ui, sans-serif; max-width: 62rem; margin: auto; padding: 1rem; }
figure { display: inline-block; margin: 0 1rem 1rem 0; max-width: 100%; }
svg { max-width: 100%; height: auto; fill: currentColor; font-size: 11px; }
line { stroke: currentColor; stroke-opacity: .25; } polyline { fill: none; stroke-width: 2; }
</style>
"""


def round_up(x):
    """Returns the next of 1, 2, 5, 10, 20, ..."""
    unit = 10 ** math.floor(math.log10(x))
    return next(n * unit for n in (1, 2, 5, 10) if n * unit >= x)


def chart(caption, labels, curves):
    """Draws curves, {name: a number for each label}, from 0 up."""
    top = round_up(max((y for curve in curves.values() for y in curve), default=1) or 1)
    x = lambda i: LEFT + (i + 0.5) * (WIDTH - LEFT) / len(labels)
    y = lambda value: TOP + (1 - value / top) * (HEIGHT - TOP)
    out = [f'<figure><figcaption>{html.escape(caption)}</figcaption>'
           f'<svg viewBox="0 0 {WIDTH} {HEIGHT + 58}" width="{WIDTH}" role="img" aria-label="{html.escape(caption)}">']
    for part in range(5):
        value = top * part / 4
        out.append(f'<line x1="{LEFT}" x2="{WIDTH}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for i, label in enumerate(labels):
        out.append(f'<text x="{x(i):.1f}" y="{HEIGHT + 16}" text-anchor="middle">{html.escape(label)}</text>')
    for k, (name, curve) in enumerate(curves.items()):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(curve))
        at = LEFT + k % 3 * 120
        out.append(f'<polyline stroke="{COLOURS[k]}" points="{points}"/>')
        out += [f'<circle fill="{COLOURS[k]}" cx="{x(i):.1f}" cy="{y(value):.1f}" r="3"><title>{name}, {labels[i]}: {value:g}</title></circle>'
                for i, value in enumerate(curve)]
        out.append(f'<text fill="{COLOURS[k]}" x="{at}" y="{HEIGHT + 36 + k // 3 * 16}">{html.escape(name)}</text>')
    return "".join(out) + "</svg></figure>\n"


def write(path, machine, tables):
    """tables: [(title, columns, [(label, [(GB/s, MB) of each column])])]"""
    with open(path, "w", encoding="utf-8") as out:
        out.write(f"{HEAD}<h1>Cost as caches grow</h1><p>{html.escape(machine)}</p>\n")
        for title, columns, rows in tables:
            labels = [label for label, _ in rows]
            out.write(f"<h2>{html.escape(title)}</h2>\n")
            for what, unit in enumerate(("GB of cache per second", "most memory, MB, mapped input apart")):
                if rows:
                    out.write(chart(unit, labels, {c: [cells[i][what] for _, cells in rows] for i, c in enumerate(columns)}))
