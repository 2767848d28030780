#!/usr/bin/env python3
"""abi-test.py RECORDED: tests abi.py: changes of a recorded interface, and of headers, one at a time. Each fault must be reported by words
that name it; additions must pass. Prints "N passed, N failed". Run from the top folder."""
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("abi", "tests/abi.py")
abi = importlib.util.module_from_spec(spec)
spec.loader.exec_module(abi)

OLD = """\
constant KVC_KEY_BYTES = 32
enum kvc_code: KVC_OK = 0
struct kvc_options: 24 bytes, may grow
field kvc_options.size: at 0, 8 bytes: size_t
field kvc_options.name: at 8, 8 bytes: const char *
field kvc_options.flag: at 16, 4 bytes: int
struct kvc_pair: 16 bytes, fixed
field kvc_pair.a: at 0, 8 bytes: uint64_t
field kvc_pair.b: at 8, 8 bytes: uint64_t
type kvc_fn: int(void *)
function kvc_open of kvc.h: struct kvc_file *(const char *)
"""
# what is replaced, by what, and words of the report; "": it is well
CHANGES = [
    ("", "", ""),
    ("constant KVC_KEY_BYTES = 32", "constant KVC_KEY_BYTES = 64", "KVC_KEY_BYTES is '64', and was '32'"),
    ("constant KVC_KEY_BYTES = 32\n", "", "constant KVC_KEY_BYTES is gone"),
    ("KVC_OK = 0", "KVC_OK = 1", "KVC_OK is '1'"),
    ("KVC_OK = 0", "KVC_OK = 0\nenum kvc_code: KVC_MORE = 1", ""),
    ("flag: at 16, 4 bytes: int", "flag: at 16, 4 bytes: int\nfield kvc_options.more: at 24, 8 bytes: uint64_t", ""),
    ("flag: at 16, 4 bytes: int", "flag: at 16, 4 bytes: int\nfield kvc_options.more: at 20, 4 bytes: int", "new at byte 20"),
    ("name: at 8", "name: at 16", "kvc_options.name is 'at 16"),
    ("const char *\nfield", "char *\nfield", "kvc_options.name is"),
    ("field kvc_options.flag: at 16, 4 bytes: int\n", "", "field kvc_options.flag is gone"),
    ("24 bytes, may grow", "32 bytes, may grow", ""),
    ("24 bytes, may grow", "16 bytes, may grow", "struct kvc_options is '16 bytes"),
    ("24 bytes, may grow", "24 bytes, fixed", "struct kvc_options is '24 bytes, fixed'"),
    ("16 bytes, fixed", "24 bytes, fixed", "struct kvc_pair is '24 bytes"),
    ("b: at 8, 8 bytes: uint64_t", "b: at 8, 8 bytes: uint64_t\nfield kvc_pair.c: at 16, 8 bytes: int64_t",
     "kvc_pair.c is new, and its struct is fixed"),
    ("int(void *)", "int(void *, int)", "type kvc_fn is"),
    ("(const char *)", "(const char *, int)", "function kvc_open of kvc.h is"),
    ("function kvc_open of kvc.h: struct kvc_file *(const char *)\n", "", "kvc_open of kvc.h is gone"),
    ("function kvc_open", "function kvc_also of kvc.h: int(void)\nfunction kvc_open", ""),
]

HEADER = """\
#ifndef KVC_H
#define KVC_H
#define KVC_API __attribute__((visibility("default")))
#define KVC_VERSION_MAJOR 1
#define KVC_MOST 7 /* a comment; with a semicolon */
/* struct kvc_none { int x; }; */
struct kvc_file;
struct kvc_many {
    size_t size;
    const char *text,
        *other; /* two */
    uint64_t row[KVC_MOST], n;
    float (*pair)[2];
    void (*done)(void *state, int stored);
};
typedef char kvc_text[65];
typedef int kvc_each_fn(void *state, const struct kvc_file *f);
enum kvc_kind { KVC_A = 1, KVC_B };
KVC_API struct kvc_file *
kvc_open(const char *const *paths, size_t n, uint8_t key[32],
         void (*note)(void *state, const char *text), void *state);
KVC_API int kvc_set(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
KVC_API void kvc_nothing(void);
#endif
"""
READ = {
    "functions": {
        "kvc_open": "struct kvc_file *(const char *const *, size_t, uint8_t[32], void(*)(void *, const char *), void *)",
        "kvc_set": "int(int, const char *, ...)",
        "kvc_nothing": "void(void)",
    },
    "callbacks": {"kvc_text": "char[65]", "kvc_each_fn": "int(void *, const struct kvc_file *)"},
    "structs": {
        "kvc_many": [("size_t", "size"), ("const char *", "text"), ("const char *", "other"), ("uint64_t[KVC_MOST]", "row"),
                     ("uint64_t", "n"), ("float(*)[2]", "pair"), ("void(*)(void *, int)", "done")]
    },
    "enums": {"kvc_kind": ["KVC_A", "KVC_B"]},
    "constants": ["KVC_MOST"],
}


def main(recorded):
    passed, failed = 0, 0

    def expect(what, good, told):
        nonlocal passed, failed
        passed, failed = passed + bool(good), failed + (not good)
        if not good:
            print(f"{what}: {told!r}")

    old = abi.parsed(OLD.splitlines())
    expect("what is recorded", len(old) == 11, old)
    for before, after, words in CHANGES:
        assert not before or OLD.count(before) == 1, before
        faults = [*abi.compare(old, abi.parsed((OLD.replace(before, after) if before else OLD).splitlines()))]
        expect(after or before, not faults if not words else len(faults) == 1 and words in faults[0], faults)
    interface = abi.Interface({"kvc": HEADER})
    for part, want in READ.items():
        expect(part, getattr(interface, part) == want, getattr(interface, part))
    with open(recorded, encoding="utf-8") as f:
        lines = f.read().splitlines()
    expect(f"{recorded}: lines that are understood", len(abi.parsed(lines)) == len(lines) > 900, len(lines))
    print(f"{passed} passed, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
