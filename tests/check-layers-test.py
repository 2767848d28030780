#!/usr/bin/env python3
"""check-layers-test.py: tests check-layers.py on a small tree into which one fault at a time is put.

Every fault must be reported by a line that names it, with exit status 1; the tree without a fault, and changes that keep the rules,
must pass. Prints "N passed, N failed". Run from the top folder. CC: the compiler of the objects (default: cc)."""
import os
import shlex
import subprocess
import sys
import tempfile

CHECK = os.path.abspath("tests/check-layers.py")
CC = shlex.split(os.environ.get("CC", "cc"))


def put(path, text, mode="w"):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, mode, encoding="utf-8") as f:
        f.write(text)


# What faults are put into or refer to, by their names in the tree that check-layers.py knows.
TREE = [
    "formats/api/kvc.h",
    "formats/api/kvc_cuda.h",
    "formats/api/kvc_error.h",
    "formats/api/kvc_store.h",
    "formats/api/kvc_file.h",
    "formats/cache/view.c",
    "formats/cache/view.h",
    "formats/container/container.h",
    "formats/container/records.h",
    "formats/device/load.c",
]


def include(path, header):
    put(path, f'#include "{header}"\n', "a")


def compiled(path, text):
    """Writes a source file and its object below objects/."""
    put(path, text)
    target = os.path.join("objects", path[:-2] + ".o")
    os.makedirs(os.path.dirname(target), exist_ok=True)
    subprocess.run([*CC, "-c", "-o", target, path], check=True)


def nothing():
    pass


def wrong_room():
    include("formats/cache/view.c", "formats/container/container.h")


def private_header():
    include("formats/device/load.c", "formats/container/records.h")


def no_such_file():
    include("formats/cache/view.c", "view.h")


def installed_header():
    include("formats/api/kvc.h", "formats/cache/view.h")


def tool_inside():
    include("cli/made_tool.c", "formats/api/kvc.h")
    include("cli/made_tool.c", "formats/api/kvc_file.h")


def store_tool_inside():
    put("formats/store/store.h", "/* a header */\n")
    include("cli/store/made.c", "formats/store/store.h")


def store_inside():
    put("formats/io/hash.h", "/* a helper */\n")
    include("formats/store/made.c", "formats/io/hash.h")
    include("formats/store/made.c", "formats/cache/view.h")


def tool_outside():
    include("cli/made_tool.c", "formats/api/kvc.h")
    put("formats/api/kvc.h", "KVC_API int kvc_made(void);\n")
    compiled("cli/made_user.c", USER)
    compiled("formats/api/made_maker.c", MAKER)


def tool_by_hand():
    compiled("cli/made_user.c", USER)
    compiled("formats/api/made_maker.c", MAKER)


def unknown_room():
    include("formats/attic/old.c", "formats/cache/view.h")


def cycle():
    put("formats/io/first_made.h", '#include "formats/io/second_made.h"\n')
    put("formats/io/second_made.h", '#include "formats/io/first_made.h"\n')


def one_name():
    put("formats/engines/view.c", "/* A second view.c. */\n")


USER = "extern int kvc_made(void);\nint kvc_user(void);\nint kvc_user(void) { return kvc_made(); }\n"
MAKER = "int kvc_made(void);\nint kvc_made(void) { return 1; }\n"


def hand_declared():
    compiled("formats/io/made_user.c", USER)
    compiled("formats/container/made_maker.c", MAKER)


def declared_downwards():
    compiled("formats/container/made_user.c", USER)
    compiled("formats/io/made_maker.c", MAKER)


def symbol_cycle():
    compiled("formats/io/made_user.c", USER + "int kvc_again(void);\nint kvc_again(void) { return 0; }\n")
    compiled("formats/io/made_maker.c", "int kvc_again(void);\n" + MAKER.replace("return 1", "return kvc_again()"))


def no_objects():
    os.makedirs("objects")


def lines(n):
    return "/* A long file. */\n" + "\n" * (n - 1)


def function(n, head="int kvc_long(void) {\n"):
    return "/* A long function. */\n" + head + "\n" * (n - 1 - head.count("\n")) + "}\n"


def long_file():
    put("formats/io/made_long.c", lines(701))


def allowed_file():
    put("formats/io/made_long.c", lines(700))


def excused_file():
    put("formats/io/made_long.c", lines(701).replace("A long file.", "Longer than 700 lines: a test."))


def long_function():
    put("formats/io/made_long.c", function(81))


def long_function_of_two_lines():
    put("formats/io/made_long.c", function(81, "int kvc_long(int a,\n             int b) {\n"))


def allowed_function():
    put("formats/io/made_long.c", function(80))


def result(body):
    """A function of the contract of codecs/error.h, with one statement a line from the second line on."""
    lines = "".join(f"    {s}\n" for s in body)
    return lambda: put(
        "formats/io/made_result.c",
        f"static int put(struct made *m, struct kvc_error *e) {{\n{lines}}}\n\n"
        "/* A predicate: it has no error, and is 1 or 0. */\nstatic int any(int a, int b) {\n    return f(a, e) || f(b, e);\n}\n",
    )


returns_one = result(["return first(m, e) || second(m->b[(1)], sizeof(int), e);"])
returns_one_chosen = result(["if (m->n) return 0;", "return m->both ? first(m, e) || second(m, e) : second(m, e);"])
returns_one_later = result(["int status = 0;", "status = first(m, \"a || b\", e) ||", "         second(m, e);", "return status;"])
returns_one_negated = result(["return !first(m, e);"])
returns_right = result([
    "int status = first(m, e) || second(m, e) ? -1 : 0, one = first(m, e) || 0;",
    "if (first(m, e) || second(m, e)) return -1;",
    "/* return first(m, e) || second(m, e); */",
    "if (one) return kvc_fail(e, m->a || m->b);",
    "return status ? first(m, e) : m->a || m->b;",
])


def number(body, path="formats/io/made_number.c"):
    return lambda: put(path, f"static void put(double v) {{\n    {body}\n}}\n")


# name, fault, the line that reports it (None: nothing is reported), folder of objects
CASES = [
    ("a tree without a fault", nothing, None, None),
    ("an include of a room above", wrong_room, "formats/cache/view.c (formats/cache) line ", None),
    ("an include of a private header", private_header, "formats/container/records.h, which only formats/container may see", None),
    ("an include that is not from the top folder", no_such_file, '"view.h" is no file, as seen from the top folder', None),
    ("an installed header with an include", installed_header, "it is installed alone", None),
    ("a tool that includes a private header", tool_inside, "cli/made_tool.c:2: formats/api/kvc_file.h is no public header", None),
    ("kvc-store that includes a header of the store", store_tool_inside, "cli/store/made.c (cli/store) line 1 includes formats/store/store.h", None),
    ("a store that includes a header of the library", store_inside, "formats/store/made.c:2: formats/cache/view.h is no public header", None),
    ("a tool on the public header", tool_outside, None, "objects"),
    ("a tool that calls a private function", tool_by_hand, "cli/made_user.c uses kvc_made, which no public header declares", "objects"),
    ("a file in no room", unknown_room, "formats/attic/old.c is in no room", None),
    ("a cycle of includes", cycle, "a cycle of files by #include: formats/io/first_made formats/io/second_made", None),
    ("two files of one name", one_name, "formats/engines/view.c and formats/cache/view.c have one name", None),
    ("a symbol declared by hand", hand_declared, "formats/io/made_user.c (formats/io) uses kvc_made", "objects"),
    ("a symbol of a room below", declared_downwards, None, "objects"),
    ("a cycle of symbols", symbol_cycle, "a cycle of files by symbols: formats/io/made_maker formats/io/made_user", "objects"),
    ("a folder without objects", no_objects, "objects has no object files of this tree", "objects"),
    ("a file of 701 lines", long_file, "formats/io/made_long.c has 701 lines", None),
    ("a file of 700 lines", allowed_file, None, None),
    ("a file of 701 lines with its reason", excused_file, None, None),
    ("a function of 81 lines", long_function, "formats/io/made_long.c:2: a function of 81 lines", None),
    ("a function of 81 lines, two of them its head", long_function_of_two_lines, "made_long.c:2: a function of 81", None),
    ("a function of 80 lines", allowed_function, None, None),
    ("a failure returned as 1", returns_one, "formats/io/made_result.c:2: a failure is returned as 1", None),
    ("a failure returned as 1 by one branch", returns_one_chosen, "made_result.c:3: a failure is returned as 1", None),
    ("a failure returned as 1 by a variable", returns_one_later, "made_result.c:3: a failure is returned as 1", None),
    ("a failure returned as 0", returns_one_negated, "made_result.c:2: a failure is returned as 1", None),
    ("failures returned as -1", returns_right, None, None),
    ("a number read by the locale", number("v = strtod(text, NULL);"), "made_number.c:2: strtod follows the locale", None),
    ("a number printed by the locale", number('snprintf(t, n, "%d "\n "%-8.3g", i, v);'), "made_number.c:3: ", None),
    ("JSON read by the locale", number("json_loads(text, 0, NULL);", "cli/made_number.c"), "made_number.c:2: json_loads", None),
    ("numbers with a point", number('kvc_fail(e, c, v > 0 ? "%g" : "", v); /* strtod("%g") */ f("%d %%g", i);'), None, None),
]


def fault_of(case):
    """Runs check-layers.py on a tree with the fault in it; returns what is wrong with its answer, or None."""
    _, fault, report, objects = case
    start = os.getcwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            for path in TREE:
                put(path, f"/* {path} */\n")
            fault()
            done = subprocess.run(
                [sys.executable, CHECK, *([objects] if objects else [])], capture_output=True, text=True, check=False
            )
        finally:
            os.chdir(start)
    said = done.stderr.splitlines()
    if not report:
        return None if done.returncode == 0 and done.stdout == "layers: ok\n" else done.stderr
    if done.returncode != 1 or not any(report in s for s in said):
        return f"exit status {done.returncode}, expected 1 and: {report}\n{done.stderr}"
    return None


def main():
    failed = 0
    for case in CASES:
        wrong = fault_of(case)
        if wrong:
            failed += 1
            print(f"FAIL {case[0]}: {wrong}", file=sys.stderr)
    print(f"{len(CASES) - failed} passed, {failed} failed")
    return failed != 0


sys.exit(main())
