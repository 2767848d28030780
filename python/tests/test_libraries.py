"""libkvc, libkvc_store and libkvc_cuda in one process: one copy of libkvc serves all, and handles cross between them."""

import ctypes
import os
import unittest

import numpy as np
from common import Case, needs_store

import kvc
from kvc import _lib

KV = {(i, role): np.arange(300 * 2 * 8, dtype=np.float16).reshape(300, 2, 8) % 7 + i for i in range(2) for role in "KV"}


def address(library, function):
    return ctypes.cast(getattr(library, function), ctypes.c_void_p).value


@needs_store
class TestLibraries(Case):
    def test_one_copy_of_libkvc(self):
        others = [_lib.store()]
        if os.environ.get("KVC_FAKE_CUDA"):
            others.append(ctypes.CDLL(os.environ["KVC_FAKE_CUDA"]))
        for library in others:  # the loader looks for a name in a library, then in those that it needs
            for function in ("kvc_file_open", "kvc_file_check", "kvc_records_of"):
                self.assertEqual(address(library, function), address(_lib.kvc, function), (library, function))
        with open("/proc/self/maps") as maps:
            self.assertEqual(len({line.split()[-1] for line in maps if "/libkvc.so" in line}), 1)

    def test_a_handle_of_the_store_is_as_any_other(self):
        with kvc.Store(f"dir:{self.path('store')}", timeout=10, local_timeout=10) as store:
            with kvc.open_arrays(KV, facts={"model.name": "m", "rope.pairing": "halves"}) as f:
                namespace = store.namespace(f)
                self.assertTrue(namespace.put_name(b"name", f))
            with namespace.get_name(b"name") as f:
                f.check()
                self.assertTrue(all(np.array_equal(f.arrays()[key], KV[key]) for key in KV))
                again = f.pack(recipe="fast")
                into = {key: np.zeros_like(a) for key, a in KV.items()}
                f.load(into)
                self.assertTrue(all(np.array_equal(into[key], KV[key]) for key in KV))
        with kvc.open(again) as f:
            f.check()


if __name__ == "__main__":
    unittest.main()
