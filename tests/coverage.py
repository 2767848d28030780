#!/usr/bin/env python3
"""coverage.py BUILD [-v]: prints how many lines of each room a run of the tests executed, from the files that a build with --coverage
left below BUILD, and compares the shares with FLOOR. Exit status 1 if a room is below its floor or has none. GCOV: the gcov of the
compiler (default: gcov). Run from the top folder."""
import collections
import json
import os
import subprocess
import sys

# Percent of the lines. A floor is two points below what was measured when it was last set.
FLOOR = {
    "cli": 93.6,
    "codecs": 96.7,
    "codecs/papers": 97.2,
    "codecs/stages": 97.2,
    "formats/api": 92.1,
    "formats/api/cuda": 86.7,
    "formats/cache": 94.0,
    "formats/compare": 97.1,
    "formats/container": 96.6,
    "formats/device": 92.4,
    "formats/engines": 96.0,
    "formats/file": 96.4,
    "formats/io": 95.5,
    "formats/model": 96.1,
    "kernels": 98.0,
    "kernels/device": 95.8,
}


def objects(build):
    for top in ("kernels", "codecs", "formats", "cli"):
        for folder, _, names in os.walk(os.path.join(build, top)):
            yield from (os.path.join(folder, n) for n in sorted(names) if n.endswith(".gcno"))


def room_of(path):
    """The folder; the tool folders of cli are one room with it, and those of the stages another."""
    folder = os.path.dirname(path)
    if folder.startswith("cli"):
        return "cli"
    return "/".join(folder.split("/")[:2]) if folder.startswith("codecs/") else folder


def read_lines(build):
    """{file: {line: times it was executed}} of the product's files; the counts of a header are added up over all files that
    include it. Files for AVX-512 are left out, as many machines lack it."""
    lines = collections.defaultdict(collections.Counter)
    gcov = os.environ.get("GCOV", "gcov")
    for path in objects(build):
        done = subprocess.run([gcov, "--json-format", "--stdout", path], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"coverage.py: {gcov} {path}: {done.stderr.strip()}")
        for text in done.stdout.splitlines():
            for file in json.loads(text)["files"]:
                name = os.path.normpath(file["file"])
                if name.startswith(("kernels/", "codecs/", "formats/", "cli/")) and not name.endswith("_avx512.c"):
                    for line in file["lines"]:
                        lines[name][line["line_number"]] += line["count"]
    return lines


def main():
    rooms = collections.defaultdict(lambda: [0, 0])
    lines = read_lines(sys.argv[1])
    if not lines:
        sys.exit(f"coverage.py: {sys.argv[1]} has no files of gcov")
    for name, counts in lines.items():
        room = rooms[room_of(name)]
        room[0] += sum(n > 0 for n in counts.values())
        room[1] += len(counts)
    failed = 0
    print(f"{'room':20} {'lines':>6} {'covered':>8} {'floor':>6}")
    for name, (covered, total) in sorted(rooms.items()):
        share, floor = 100 * covered / total, FLOOR.get(name)
        below = floor is None or share < floor
        failed += below
        print(f"{name:20} {total:6} {share:7.1f}% {'none' if floor is None else f'{floor}%':>6}{'  below its floor' if below else ''}")
    if "-v" in sys.argv:
        for name, counts in sorted(lines.items()):
            print(f"  {name}: not executed: {' '.join(str(i) for i in sorted(counts) if not counts[i])}")
    return failed != 0


sys.exit(main())
