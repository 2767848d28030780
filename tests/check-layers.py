#!/usr/bin/env python3
"""check-layers.py [BUILD | --size]: checks that the sources keep the order of rooms, in the tree of the current folder.

A room is a folder, or the files that a pattern names; ROOMS lists what each room may use. Checked are
- the #include lines, and with BUILD (a folder of object files) also the symbols, which show what was declared by hand;
- cycles between files, by the same arrows;
- file names, which are unique, so that a name in a message or a comment means one file;
- the lengths of files and functions: a longer one gives its reason in the file's first comment ("Longer than ...");
- numbers: text is read and printed with a point in any locale, by codecs/number.h and formats/io/json_text.h alone.
- the door: the tools and the store include public headers alone (the store also helpers), and call what these declare;
- results: a function that takes a struct kvc_error returns -1 when it fails, never the 1 of `a(e) || b(e)` (codecs/error.h).
Prints every violation, and exits with 1 if there is any. --size: prints the lines of each room beside its budget, and checks no more."""
import fnmatch
import os
import re
import subprocess
import sys

MAX_FILE, MAX_FUNCTION = 700, 80

# room: (files, rooms that it may use). The first pattern that matches a file decides.
ROOMS = {
    "errors": (["formats/api/kvc_error.h", "formats/api/kvc_comparing.h"], []),
    "kernels/device": (["kernels/device/*"], ["kernels"]),
    "kernels": (["kernels/*"], ["kernels/device"]),
    "codecs/stages": (["codecs/stages/*"], ["codecs", "kernels", "kernels/device"]),
    "codecs/papers": (["codecs/papers/*"], ["codecs", "codecs/stages", "kernels"]),
    "codecs/recipes": (
        ["codecs/registry.*", "codecs/recipe.*", "codecs/presets.*"],
        ["codecs", "codecs/stages", "codecs/papers", "kernels"],
    ),
    "codecs": (["codecs/*"], ["kernels", "kernels/device"]),
    "formats/io": (["formats/io/*"], []),
    "formats/cache": (["formats/cache/*"], ["formats/io"]),
    "formats/engines": (["formats/engines/*"], ["formats/cache", "formats/io"]),
    "formats/model": (["formats/model/*"], ["formats/cache", "formats/io"]),
    "formats/compare": (["formats/compare/*"], ["formats/cache", "formats/io"]),
    "formats/container": (["formats/container/*"], ["formats/model", "formats/cache", "formats/io"]),
    "formats/device/cuda": (["formats/device/cuda/*"], ["formats/device"]),
    "formats/device": (["formats/device/*"], ["formats/container", "formats/model", "formats/cache", "formats/io"]),
    "formats/store/backends": (
        ["formats/store/*/*"],
        ["formats/store/tier", "formats/api", "formats/io"],
    ),
    "formats/store/tier": (
        ["formats/store/tier.*", "formats/store/object.*", "formats/store/url.*"],
        ["formats/api", "formats/io"],
    ),
    "formats/store": (
        ["formats/store/*"],
        ["formats/store/tier", "formats/store/backends", "formats/api", "formats/io"],
    ),
    "formats/file": (
        ["formats/file/*"],
        ["formats/container", "formats/engines", "formats/model", "formats/compare", "formats/cache", "formats/io"],
    ),
    "formats/arguments": (["formats/api/sized.*"], []),
    "formats/api": (
        ["formats/api/*", "formats/api/cuda/*"],
        [
            "formats/file",
            "formats/device",
            "formats/device/cuda",
            "formats/container",
            "formats/engines",
            "formats/model",
            "formats/compare",
            "formats/cache",
            "formats/io",
        ],
    ),
    "cli/store": (["cli/store/*", "cli/kvc-store.c"], ["cli", "formats/api"]),
    "cli/profile": (["cli/profile/*", "cli/kvc-profile.c"], ["cli", "cli/inside", "formats/api"]),
    "cli/inside": (
        ["cli/dump/*", "cli/diff/*", "cli/html/*", "cli/kvc-dump.c", "cli/kvc-diff.c"],
        ["cli", "formats/api"],
    ),
    "cli": (["cli/*"], ["formats/api"]),
}
# What programs are given, and the rooms that have nothing else of the library, but each other.
PUBLIC = [f"formats/api/{name}.h" for name in ("kvc", "kvc_inspect", "kvc_comparing", "kvc_store", "kvc_cuda", "kvc_error")]
OUTSIDE = ["cli", "cli/inside", "cli/profile", "cli/store", "formats/store", "formats/store/tier", "formats/store/backends"]
# What libraries of the family have too: helpers that know nothing of caches.
HELPERS = {
    room: ["codecs/error.*", "codecs/memory.*", "codecs/number.*", "codecs/near.*", "formats/io/*", "formats/api/sized.*"]
    for room in ("formats/store", "formats/store/tier", "formats/store/backends")
}
# Most lines of each room. A change that needs more raises the number here, and says why in a comment after it.
BUDGET = {
    "kernels": 5050,  # products of predictions by AVX-VNNI and by AMX; rows of equations
    "kernels/device": 3400,
    # numbers that look random; spare contexts of zstd; equations in blocks that stay in the caches; rows that keep their codes;
    # rows that are stored as they are, from the stages; which values measurements leave out; a LAPACK that finds too few
    "codecs": 5815,  # weights rounded for each other: profiles two thirds as large compressed
    "codecs/recipes": 450,
    "codecs/stages": 6500,
    "codecs/papers": 2040,
    # members of a zip by name
    "formats/io": 3460,  # limits of control groups, read once
    # sets of shards, RoPE that is unknown, or told by a table, the past of values with a base, rows as a base has them;
    # ids that a range would give to other rows; files that repeat the one before, RoPE by a length, what joins take the first of
    "formats/cache": 6480,
    "formats/engines": 10310,  # ids of the rows alone; layers with K or V alone
    # folders of profiles, the one for new ones, and the choice of one; a hash of all weights by all cores; queries
    # estimated from weights, of all common types and scalings of RoPE; gradients of a model, which took torch; names in order;
    # pairs and counts of hostile profiles; caches of other models than the weights; the margin of what is learnt
    "formats/model": 9900,  # units of weights by what prediction leaves
    # checks of arguments; the steps of a comparison, and what differs beside values, which were kvc-diff's; layers that two caches
    # divide into other parts; positions that several pairs of parts tell, once
    "formats/compare": 3050,
    # version 1: content id, rotations, binary arguments, what blocks stand on, refusals of what no writer makes; packing with a base; layers and tensors that are alike, sorted;
    # scores of a coder of another layer, and merged layers without a profile
    "formats/container": 7730,
    "formats/file": 2455,  # lists of token ids and files of some tokens each, which were the tools'; when queries are estimated
    "formats/device": 3440,
    "formats/device/cuda": 500,
    "formats/arguments": 200,
    # checks of arguments; what the tools and the store did by themselves; weights for queries; folders of profiles, and
    # how one fits; targets that make no sense; why a descriptor is not written; what a move leaves out; rows of windows and of
    # whole layers apart; caches of other models than the weights
    "formats/api": 6740,
    # checks of arguments; tiers, checks and moves of objects, which were in kvc-store; profiles that a store learns, and that
    # its recipes share; links by which open handles find what was moved; what a move or a check goes on after; facts
    # that are gone while a program puts; two processes that move at one time
    "formats/store": 5690,
    "formats/store/tier": 770,  # memory of objects, which is kept; objects by kind, namespace and key, which three files made
    # what doctor and stat asked of directories; lives and pins of what is put again, and of named caches; each of many names in one
    # call; what a hostile server must not do; full disks, and clocks that are set back
    "formats/store/backends": 9360,
    "cli": 5860,  # packing with a base; how profiles are learnt and kept; -0 in JSON; -V -v names what predicts; names that are not durable
    "cli/profile": 710,  # make, which runs a program in Python
    "cli/store": 1670,  # nouns after the number 1
    "cli/inside": 5430,  # statistics of no values
    "errors": 290,  # the structs of kvc_comparing.h, which were in formats/compare
}
# Every room of formats may use the layers below it.
BELOW = ["formats/arguments", "codecs", "codecs/recipes", "codecs/stages", "codecs/papers", "kernels", "kernels/device"]
# What only some rooms may see, whatever ROOMS says.
PRIVATE = {
    "formats/container/offsets.h": ["formats/container"],
    "formats/container/records.h": ["formats/container"],
    "formats/device/cuda/*": ["formats/device/cuda", "formats/api"],
}
# They are installed alone, and may include what is installed beside them.
ALONE = {"formats/api/kvc.h": ["kvc_error.h"], "formats/api/kvc_error.h": [], "formats/api/kvc_comparing.h": ["kvc_error.h"], "formats/api/kvc_inspect.h": ["kvc.h", "kvc_comparing.h"], "formats/api/kvc_cuda.h": ["kvc.h"], "formats/api/kvc_store.h": ["kvc.h"]}

errors = []


# A function that a public header declares.
DECLARED = re.compile(r"^KVC_[A-Z_]*API [^(;]*?\b(kvc_\w+)\(", re.M)


def room_of(path):
    for name, (patterns, _) in ROOMS.items():
        if any(fnmatch.fnmatch(path, p) for p in patterns):
            return name
    return None


def may_use(a, b):
    allowed = ROOMS[a][1] + (BELOW if a.startswith("formats/") else [])
    return b in (a, "errors") or b in allowed


def sources():
    for top in ("kernels", "codecs", "formats", "cli"):
        for folder, _, names in os.walk(top):
            for n in names:
                if n.endswith((".c", ".h", ".cu", ".def")):
                    yield os.path.join(folder, n)


def stem(path):
    """A .c and its .h are one file as far as cycles go."""
    return path.rsplit(".", 1)[0]


def is_inside(f, other):
    """1 if a file is of a room that has public headers alone, and the other one is of none of these, and no helper."""
    helpers = HELPERS.get(room_of(f), [])
    return room_of(f) in OUTSIDE and room_of(other) not in OUTSIDE and not any(fnmatch.fnmatch(other, p) for p in helpers)


def check_arrow(a, b, why, seen):
    room, other = room_of(a), room_of(b)
    if not room or not other:
        errors.append(f"{a if not room else b} is in no room: ROOMS in tests/check-layers.py has the list")
    elif not may_use(room, other):
        errors.append(f"{a} ({room}) {why}, of {other}: {room} may not use it")
    for pattern, rooms in PRIVATE.items():
        if fnmatch.fnmatch(b, pattern) and room not in rooms:
            errors.append(f"{a} ({room}) {why}, which only {', '.join(rooms)} may see")
    if stem(a) != stem(b):
        seen.setdefault(stem(a), set()).add(stem(b))


def check_includes(files):
    arrows = {}
    for f in files:
        for i, line in enumerate(open(f), 1):
            m = re.match(r'\s*#\s*include\s*"([^"]+)"', line)
            if not m:
                continue
            if m.group(1) in ALONE.get(f, []):
                continue
            if f in ALONE:
                errors.append(f"{f}:{i}: it is installed alone and may include nothing of the project")
            elif m.group(1) not in files:
                errors.append(f'{f}:{i}: "{m.group(1)}" is no file, as seen from the top folder')
            else:
                check_arrow(f, m.group(1), f"line {i} includes {m.group(1)}", arrows)
            if is_inside(f, m.group(1)) and m.group(1) not in PUBLIC:
                errors.append(f"{f}:{i}: {m.group(1)} is no public header: {room_of(f)} has {', '.join(PUBLIC)}")
    return arrows


def check_symbols(build):
    """Objects of the library and of the tools: who uses what of whom."""
    defined, used, arrows = {}, [], {}
    objects = {os.path.join(build, stem(f) + ".o"): f for f in sorted(sources()) if f.endswith(".c")}
    there = [o for o in objects if os.path.exists(o)]
    listed = subprocess.run(["nm", "-gA", *there], check=True, capture_output=True, text=True).stdout if there else ""
    for line in listed.splitlines():
        o, symbol = line.split(":", 1)
        *_, kind, name = symbol.split()
        if kind == "U":
            used.append((objects[o], name))
        else:
            defined.setdefault(name, objects[o])
    if not used:
        errors.append(f"{build} has no object files of this tree")
    public = {name for header in PUBLIC if os.path.exists(header) for name in DECLARED.findall(open(header).read())}
    for f, name in used:
        if name not in defined or (room_of(f) in OUTSIDE and name in public):
            continue
        if is_inside(f, defined[name]):
            errors.append(f"{f} uses {name}, which no public header declares")
        else:
            check_arrow(f, defined[name], f"uses {name} of {defined[name]}", arrows)
    return arrows


def check_cycles(arrows, kind):
    """Names each group of files that reach each other (Tarjan's components)."""
    index, low, stack, on, groups = {}, {}, [], set(), []

    def visit(v):
        index[v] = low[v] = len(index)
        stack.append(v)
        on.add(v)
        for w in arrows.get(v, ()):
            if w not in index:
                visit(w)
                low[v] = min(low[v], low[w])
            elif w in on:
                low[v] = min(low[v], index[w])
        if low[v] == index[v]:
            group = []
            while not group or group[-1] != v:
                group.append(stack.pop())
                on.discard(group[-1])
            if len(group) > 1:
                groups.append(sorted(group))

    sys.setrecursionlimit(10000)
    for v in sorted(arrows):
        if v not in index:
            visit(v)
    for g in groups:
        errors.append(f"a cycle of files by {kind}: {' '.join(g)}")


def check_names(files):
    seen = {}
    for f in sorted(files):
        other = seen.setdefault(os.path.basename(f), f)
        if other != f:
            errors.append(f"{f} and {other} have one name: file names are unique")


def check_lengths(files):
    for f in files:
        lines = open(f).read().split("\n")
        head = "\n".join(lines[: next((i + 1 for i, s in enumerate(lines) if "*/" in s), 1)])
        excused = "Longer than" in head
        if len(lines) - 1 > MAX_FILE and not excused:
            errors.append(f"{f} has {len(lines) - 1} lines: {MAX_FILE} at most, or a reason in its first comment")
        start = head = None  # of the function, and of the lines that may be its head
        for i, s in enumerate(lines):
            if re.match(r"[A-Za-z_]", s):
                head = i if "(" in s and "=" not in s and not s.endswith(";") else None
            if head is not None and s.endswith("{"):
                start, head = head, None
            elif s.startswith("}") and start is not None:
                if i - start + 1 > MAX_FUNCTION and not excused:
                    errors.append(f"{f}:{start + 1}: a function of {i - start + 1} lines: {MAX_FUNCTION} at most")
                start = None
            elif s.endswith(";") or not s:
                head = None


# An int function that takes an error; its body is the group.
CONTRACT = re.compile(r"^[a-z][\w ]*\bint \**\w+\([^;{}]*\bstruct kvc_error \*\w+[^;{}]*\) \{$(.*?)^\}$", re.M | re.S)


def plain(text):
    """The source with comments and literals blank; lines stay where they are."""
    blank = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(blank, lambda m: re.sub(r"[^\n]", " ", m.group()), text, flags=re.S)


def outermost(expression):
    """The expression without what its calls are given, but for a last argument `e`: "a(e)||b()?-1:0"."""
    text, inner = "".join(expression.split()), re.compile(r"\(([^()]*)\)")
    while text.startswith("(") and outermost_end(text) == len(text) - 1:
        text = text[1:-1]
    while (m := inner.search(text)) is not None:
        text = text[: m.start()] + ("<e>" if m.group(1) == "e" or m.group(1).endswith(",e") else "<>") + text[m.end() :]
    return text


def outermost_end(text):
    """Where the parenthesis ends that the text begins with."""
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if not depth:
            return i
    return None


def is_one(expression):
    """1 if a failure of a call in the expression makes it 1: a(e) || b(e), !a(e), c ? a(e) || b(e) : 0; not in a condition."""
    results = re.split(r"[?:]", outermost(expression))
    results = results if len(results) == 1 else results[1:]  # of conditions in a row, too many are looked at
    return any("<e>" in r and ("||" in r or "&&" in r or r.startswith("!")) for r in results)


def check_results(files):
    for f in sorted(files):
        text = plain(open(f).read())
        for m in CONTRACT.finditer(text):
            for s in re.finditer(r"\b(?:return\b|(\w+) \|?= )([^;]*);", m.group(1)):
                if not is_one(s.group(2)) or (s.group(1) and not re.search(rf"\breturn {s.group(1)};", m.group(1))):
                    continue
                line = text.count("\n", 0, m.start(1) + s.start()) + 1
                errors.append(f"{f}:{line}: a failure is returned as 1 here: functions with a struct kvc_error return -1")


# Calls that follow the locale of the program, and the files that may make them.
LOCAL = re.compile(r"\b(strto(?:d|f|ld)|atof|localeconv|setlocale|json_load\w*|json_dump\w*)\(")
POINTS = ["codecs/number.c", "formats/io/json_text.c", "cli/numbers.c"]
FLOAT = re.compile(r"%[-+ #0]*[0-9*]*(?:\.[0-9*]*)?l?[aefgAEFG]")
ERRORS = ["kvc_fail", "kvc_fail_at", "kvc_fail_need"]  # print with a point


def caller_of(text, at):
    """The name of the innermost call whose arguments position `at` is among."""
    depth = 0
    while at > 0 and depth < 1:
        at -= 1
        depth += (text[at] == "(") - (text[at] == ")")
    return re.search(r"\w*$", text[:at]).group()


def check_numbers(files):
    for f in sorted(files):
        source = open(f).read()
        text = plain(source)
        found = [] if f in POINTS else [(m.start(), m.group(1)) for m in LOCAL.finditer(text)]
        if not f.startswith("cli/"):  # the tools set no locale of numbers
            for m in re.finditer(r'"(?:\\.|[^"\\\n])*"', re.sub(r"/\*.*?\*/", lambda c: " " * len(c.group()), source, flags=re.S)):
                if FLOAT.search(m.group().replace("%%", "")) and f not in POINTS and caller_of(text, m.start()) not in ERRORS:
                    found.append((m.start(), m.group()))
        for at, what in found:
            errors.append(f"{f}:{source.count(chr(10), 0, at) + 1}: {what} follows the locale: codecs/number.h and json_text.h do not")


def print_sizes():
    """Returns 1 if a room is over its budget, or has none."""
    lines = dict.fromkeys(BUDGET, 0)
    for f in sources():
        room = room_of(f)
        lines[room] = lines.get(room, 0) + sum(1 for _ in open(f))
    over = [room for room, n in lines.items() if n > BUDGET.get(room, 0)]
    for room, n in lines.items():
        print(f"{room:24} {n:6} of {BUDGET.get(room, 0):6}{' OVER' if room in over else ''}")
    print(f"{'all':24} {sum(lines.values()):6} of {sum(BUDGET.values()):6}")
    if over:
        print(f"check-layers.py: over the budget: {', '.join(over)}: take something out, or raise BUDGET and say why", file=sys.stderr)
    return bool(over)


def main():
    if sys.argv[1:] == ["--size"]:
        return print_sizes()
    files = set(sources())
    check_names(files)
    check_cycles(check_includes(files), "#include")
    if len(sys.argv) > 1:
        check_cycles(check_symbols(sys.argv[1]), "symbols")
    check_lengths(sorted(files))
    check_results(files)
    check_numbers(files)
    for e in dict.fromkeys(errors):
        print(e, file=sys.stderr)
    if not errors:
        print("layers: ok")
    return bool(errors)


sys.exit(main())
