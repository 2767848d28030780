#!/usr/bin/env python3
"""memory-numpy.py LIBKVC: caches in memory through libkvc.so, against numpy: 500 random layouts, each packed, opened and loaded into
another. Prints the number that passed. Skips, with a line, where there is no numpy."""

import ctypes as c
import sys

try:
    import numpy as np
except ImportError:
    print("skip memory-numpy: there is no numpy\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)

u64, i64, p = c.c_uint64, c.c_int64, c.c_void_p


class Array(c.Structure):
    _fields_ = [("role", c.c_char_p), ("layer", c.c_uint32), ("dtype", c.c_char_p), ("heads", u64), ("dim", u64), ("data", p),
                ("page", u64), ("token", u64), ("head", u64), ("channel", u64), ("tokens", u64)]


class Memory(c.Structure):
    _fields_ = [("size", c.c_size_t), ("array_size", c.c_size_t), ("arrays", c.POINTER(Array)), ("n_arrays", c.c_size_t),
                ("tokens", u64), ("first_position", i64), ("page_size", u64), ("table", p), ("n_table", u64), ("first_slot", u64),
                ("positions", p), ("token_ids", p), ("n_token_ids", u64), ("facts", p)]


kvc = c.CDLL(sys.argv[1])
kvc.kvc_error_new.restype = p
kvc.kvc_error_message.restype = c.c_char_p
kvc.kvc_error_message.argtypes = [p]
for name in ("kvc_file_open_arrays", "kvc_file_open_memory"):
    getattr(kvc, name).restype = p
error = kvc.kvc_error_new()
random = np.random.default_rng(1)


def check(good):
    if not good:
        sys.exit(f"memory-numpy: {kvc.kvc_error_message(error).decode()}")


def layout(tokens, heads, dim, dtype):
    """A view [token][head][channel] of random memory, its axes in a random order, cut out of a larger array."""
    order = random.permutation(3)
    sizes = np.array([tokens, heads, dim])
    spare = random.integers(0, 3, 3)
    memory = random.integers(0, 250, (sizes + spare)[order]).astype(dtype)
    starts = [random.integers(0, s + 1) for s in spare]
    view = memory.transpose(np.argsort(order))
    return memory, view[tuple(slice(a, a + n) for a, n in zip(starts, sizes))]


def describe(views, names, dtype, tokens, first):
    arrays = (Array * len(views))()
    for i, v in enumerate(views):
        arrays[i] = Array(b"V" if i % 2 else b"K", i // 2, names[dtype], v.shape[1], v.shape[2], v.ctypes.data, 0, *v.strides, 0)
    return Memory(c.sizeof(Memory), c.sizeof(Array), arrays, len(views), tokens, first), arrays


def main():
    names = {np.float16: b"f16", np.float32: b"f32", np.uint8: b"u8"}
    for n in range(500):
        dtype = list(names)[random.integers(3)]
        tokens, heads, dim = (int(random.integers(1, k)) for k in (400, 5, 40))
        first, skipped = int(random.integers(0, 900)), int(random.integers(0, tokens))
        source = [layout(tokens, heads, dim, dtype) for _ in range(4)]
        target = [layout(tokens - skipped, heads, dim, dtype) for _ in range(4)]
        due = [np.array(memory) for memory, _ in target]
        memory, keep = describe([v for _, v in source], names, dtype, tokens, first)
        f = kvc.kvc_file_open_arrays(c.byref(memory), p(error))
        check(f)
        data, size = p(), c.c_size_t()
        check(kvc.kvc_file_pack_memory(p(f), None, c.byref(data), c.byref(size), p(error)) == 0)
        g = kvc.kvc_file_open_memory(data, size, None, p(error))
        check(g)
        into, keep_too = describe([v for _, v in target], names, dtype, tokens - skipped, first + skipped)
        check(kvc.kvc_file_load(p(g), c.byref(into), None, p(error)) == 0)
        for (whole, view), (_, wanted), before in zip(target, source, due):
            after = np.array(whole)
            if not np.array_equal(view, wanted[skipped:]):
                sys.exit(f"memory-numpy: layout {n}: other values")
            view[...] = 0
            at_values = whole != after
            rest = ~at_values & (after != before) & (after != 0)
            if rest.any():
                sys.exit(f"memory-numpy: layout {n}: bytes between the values changed")
        kvc.kvc_file_close(p(g))
        kvc.kvc_file_close(p(f))
        c.CDLL(None).free(data)
        assert keep is not keep_too
    print("500 passed, 0 failed")


main()
