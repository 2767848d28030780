"""Handles own C pointers: copies, pickles, addresses, closing twice, other threads and processes, and the end of the interpreter.

What would crash the interpreter runs in one of its own.
"""

import copy
import gc
import os
import pickle
import subprocess
import sys
import threading
import unittest
import unittest.mock
import weakref

import numpy as np
from common import ROOT, SAMPLES, Case, needs_store

import kvc
from kvc import arrays
from kvc.handle import Handle, Unique

FACTS = {"model.name": "m", "rope.pairing": "halves"}


def cache(tokens=300, layers=1):
    return {(i, role): np.ones((tokens, 2, 16), np.float32) for i in range(layers) for role in "KV"}


class HandleCase(Case):
    def runs(self, code, out=""):
        """A program of kvc ends well, and prints this."""
        code = f"import os, sys, threading, numpy as np, kvc\nSAMPLES, FOLDER = {str(SAMPLES)!r}, {self.folder!r}\n" + code
        where = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=where)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, out, ""))

    def refuses_copies(self, thing, words):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps, lambda x: copy.deepcopy([x]), lambda x: pickle.dumps({1: x})):
            with self.assertRaises(TypeError) as caught:
                attempt(thing)
            self.assertIn("cannot be copied or pickled", str(caught.exception))
            self.assertIn(words, str(caught.exception))


class TestCopies(HandleCase):
    def test_file(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            due = f.tokens.tolist()
            with f.select(0, 2) as part, kvc.join([f]) as joined, kvc.open_arrays(cache(), tokens=range(300)) as g:
                for one in (f, part, joined, g):
                    self.refuses_copies(one, "open the path again")
            for one in (f.meta, {"a": f}):
                self.assertRaises(TypeError, copy.deepcopy, one)
            self.assertEqual(f.tokens.tolist(), due)
        self.refuses_copies(f, "open the path again")  # a closed one as well

    def test_planes(self):
        """A plane is an address; its copy would point into memory that the copy does not own."""
        plane = arrays.describe(np.ones((4, 2, 8), np.float32))
        self.refuses_copies(plane, "describe the copied array")

    def test_raw_arrays(self):
        """Arrays may be copied: the name of their type comes along."""
        with kvc.open(SAMPLES / "slot-q4_1-q5_0.bin", kv_heads=3) as f:
            a = f.arrays(layers=[2])[2, "K"]
        self.assertEqual(kvc.dtype_name(a), "q4_1")
        for again in (copy.copy(a), copy.deepcopy(a), pickle.loads(pickle.dumps(a)), pickle.loads(pickle.dumps([a]))[0]):
            self.assertEqual(kvc.dtype_name(again), "q4_1")
            self.assertTrue(np.array_equal(again, a))

    @needs_store
    def test_store(self):
        with kvc.Store(f"dir:{self.path('store')}") as store, kvc.open_arrays(cache(), tokens=range(300), facts=FACTS) as f:
            with store.namespace(f) as namespace, namespace.find(range(300)) as hit:
                self.refuses_copies(store, "kvc.Store()")
                self.refuses_copies(namespace, "Store.namespace()")
                self.refuses_copies(hit, "Namespace.find()")

    def test_all_classes(self):
        """Each class that holds a pointer refuses copies, and says what to do."""
        kinds, found = [Unique], []
        while kinds:
            kind = kinds.pop()
            kinds += kind.__subclasses__()
            found.append(kind)
        names = {kind.__name__ for kind in found}
        self.assertLessEqual({"File", "Store", "Namespace", "Hit", "Plane"}, names)
        for kind in found:
            if kind.__name__[0] != "_" and kind not in (Unique, Handle):
                self.assertTrue(kind._again, kind)


class TestConstructors(HandleCase):
    def test_no_addresses(self):
        """No handle is made of a number or a text, and nothing is freed when the program ends."""
        code = """
for make, arguments in ((kvc.File, ("x",)), (kvc.File, (12345,)), (kvc.File, ()), (kvc.Namespace, (12345, None)), (kvc.Hit, (12345, None)),
                        (kvc.Store, (12345,)), (kvc.File, (b"x", 1, 2))):
    try:
        make(*arguments)
    except TypeError as problem:
        print(problem)
empty = [kind.__new__(kind) for kind in (kvc.File, kvc.Namespace, kvc.Hit, kvc.Store)]
for one in empty:
    one.close()
    assert one.closed
    try:
        one.pointer
    except kvc.Error as problem:
        print(problem)
"""
        self.runs(code, "kvc.File cannot be called: kvc.open() opens a path\n" * 3
                  + "kvc.Namespace cannot be called: Store.namespace() opens a namespace\nkvc.Hit cannot be called: Namespace.find() finds tokens\n"
                  "a store is named by a text, as 'dir:/var/cache/kvc', not by an int\n"
                  "kvc.File cannot be called: kvc.open() opens a path\n"
                  "this File is closed\nthis Namespace is closed\nthis Hit is closed\nthis Store is closed\n")

    def test_wrong_objects(self):
        """What takes a File takes nothing else."""
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            for attempt in (lambda: kvc.join([f, "x"]), lambda: kvc.compare(f, f, queries=5), lambda: f.pack(queries="x"),
                            lambda: f.pack(base=5), lambda: kvc.open(f), lambda: kvc.open(5), lambda: kvc.open(None)):
                self.assertRaises(TypeError, attempt)


class TestClosing(HandleCase):
    def test_after_close(self):
        f = kvc.open(SAMPLES / "tiny.kvc")
        g = kvc.open(SAMPLES / "tiny.kvc")
        into = f.arrays()
        f.close()
        f.close()
        self.assertTrue(f)
        self.assertEqual(repr(f), "<kvc.File closed>")
        for use in (lambda: f.tokens, lambda: f.format, lambda: f.meta["x"], lambda: list(f.meta), lambda: f.tensors, lambda: f.arrays(),
                    lambda: f.load(into), lambda: f.read(0), lambda: f[0, "K"], lambda: len(f), lambda: list(f), lambda: f.select(0, 1),
                    lambda: f.match([1]), f.check, f.pack, lambda: f.pack(self.path("x")), lambda: f.unpack(self.path("x")),
                    f.unpack_into, lambda: kvc.join([f]), lambda: kvc.compare(f, g), lambda: kvc.compare(g, f), f.keys, f.range,
                    lambda: kvc.compare(g, g, queries=f), lambda: g.pack(queries=f), lambda: f.position(0, 0), lambda: kvc.pack(f)):
            self.fails(kvc.Code.USAGE, "this File is closed", use)
        self.assertEqual(os.listdir(self.folder), [])
        g.close()

    def test_parents(self):
        """A part lives on its file, which is closed after it, in whatever order the last references go."""
        for order in (0, 1):
            f = kvc.open(SAMPLES / "tiny.kvc")
            part = f.select(1, 3)
            joined = kvc.join([part])
            due = f.arrays()[1, "V"][1:3]
            file = weakref.ref(f)
            if order:
                del f, part
                gc.collect()
                self.assertTrue(np.array_equal(joined.arrays()[1, "V"], due))
                del joined
            else:
                joined.cycle = [part, f, joined]
                del f, part, joined
                gc.collect()
            gc.collect()
            self.assertIsNone(file())

    def test_memory_is_kept(self):
        """Arrays and bytes that a handle reads from stay while it is open, and no longer."""
        a = cache(4)
        owner = weakref.ref(a[0, "K"])
        f = kvc.open_arrays(a, tokens=range(4))
        del a
        gc.collect()
        self.assertEqual(f[0, "K"].sum(), 4 * 2 * 16)
        f.close()
        gc.collect()
        self.assertIsNone(owner())
        data = bytearray((SAMPLES / "tiny.kvc").read_bytes())
        f = kvc.open(data)
        self.assertRaises(BufferError, data.append, 0)
        part = f.select(0, 2)
        f.close()
        data.append(0)
        self.assertTrue(part.closed)

    def test_error_keeps_nothing_open(self):
        """A traceback that somebody keeps does not keep what a closed handle had."""
        data = bytearray((SAMPLES / "tiny.kvc").read_bytes())
        data[5000] ^= 1
        f = kvc.open(data)
        try:
            f.check()
        except kvc.Error as problem:
            kept = problem
        f.close()
        data.append(0)
        self.assertEqual(kept.code, kvc.Code.DAMAGED)

    def test_closed_by_another_thread(self):
        """A call that runs keeps its handle until it ends."""
        code = """
kv = {(i, r): np.random.default_rng(i).normal(size=(3000, 4, 64)).astype(np.float16) for i in range(4) for r in "KV"}
packed = kvc.pack(kv)
for _ in range(20):
    f = kvc.open(packed)
    part, begun = f.select(0, 2900), threading.Event()
    def work():
        begun.set()
        try:
            for _ in range(1000):
                part.check(1)
                f.arrays(threads=1)
        except kvc.Error as problem:
            assert problem.message == "this File is closed", problem.message
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    begun.wait()
    f.close()
    assert part.closed
    for t in threads:
        t.join()
print("good")
"""
        self.runs(code, "good\n")

    def test_end_of_the_interpreter(self):
        """Globals, cycles, and threads that still run when the program ends."""
        code = """
f = kvc.open(SAMPLES + "/tiny.kvc")
part = f.select(0, 2)
g = kvc.open_arrays({(0, r): np.ones((300, 2, 16), np.float32) for r in "KV"}, tokens=range(300), facts={"model.name": "m"})
cycle = [f, part, g]
cycle.append(cycle)
sys.kept = kvc.open(SAMPLES + "/tiny.kvc")
def work():
    while True:
        f.check(1)
        g.pack()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
"""
        self.runs(code)

    @needs_store
    def test_end_with_a_store(self):
        code = """
g = kvc.open_arrays({(0, r): np.ones((600, 2, 16), np.float32) for r in "KV"}, tokens=range(600), facts={"model.name": "m"})
store = kvc.Store(f"dir:{FOLDER}/store", local_timeout=10)
namespace = store.namespace(g, chunk=256)
hit = namespace.find(range(600))
namespace.put(g, wait=False)
sys.kept = [store, namespace, hit]
def work():
    try:
        while True:
            namespace.find(range(600))
    except kvc.Error as problem:
        assert problem.message == "this Namespace is closed", problem.message
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
"""
        self.runs(code)
        with kvc.Store(f"dir:{self.path('store')}", local_timeout=10) as store, kvc.open_arrays(cache(), facts={"model.name": "m"}) as f:
            self.assertEqual(store.namespace(f, chunk=256).find(range(600)).tokens, 512)

    @needs_store
    def test_store_is_closed_by_another_thread(self):
        code = """
g = kvc.open_arrays({(0, r): np.ones((600, 2, 16), np.float32) for r in "KV"}, tokens=range(600), facts={"model.name": "m"})
for _ in range(10):
    store = kvc.Store(f"dir:{FOLDER}/store", local_timeout=10)
    namespace = store.namespace(g, chunk=256)
    namespace.put(g)
    begun = threading.Event()
    def work():
        try:
            while True:
                hit = namespace.find(range(600))
                hit.load({(0, r): np.empty((512, 2, 16), np.float32) for r in "KV"})
                begun.set()
        except kvc.Error as problem:
            assert "is closed" in problem.message, problem.message
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    begun.wait()
    store.close()
    for t in threads:
        t.join()
print("good")
"""
        self.runs(code, "good\n")


class TestForks(HandleCase):
    def test_file(self):
        """A forked child reads a file, and closes it for itself."""
        code = """
f = kvc.open(SAMPLES + "/tiny.kvc")
due = f.arrays()[1, "V"].copy()
child = os.fork()
if child == 0:
    assert np.array_equal(f[1, "V"], due)
    f.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
f.check()
assert np.array_equal(f[1, "V"], due)
print("good")
"""
        self.runs(code, "good\n")

    @needs_store
    def test_store(self):
        """A forked child is refused, and does not wait for threads that it does not have."""
        code = """
g = kvc.open_arrays({(0, r): np.ones((600, 2, 16), np.float32) for r in "KV"}, tokens=range(600), facts={"model.name": "m"})
store = kvc.Store(f"dir:{FOLDER}/store", local_timeout=10)
namespace = store.namespace(g, chunk=256)
namespace.put(g)
hit = namespace.find(range(600))
child = os.fork()
if child == 0:
    for use in (lambda: namespace.find(range(600)), lambda: namespace.put(g), lambda: store.namespace(g), store.flush, lambda: store.stats,
                hit.get, hit.pin, namespace.drop, lambda: namespace.find_names([b"x"]), hit.evict_soon,
                lambda: namespace.put(g, wait=False)):
        try:
            use()
            os._exit(3)
        except kvc.Error as problem:
            if "belongs to the process that opened it" not in problem.message:
                os._exit(4)
    with kvc.Store(f"dir:{FOLDER}/store", local_timeout=10) as own:
        assert own.namespace(g, chunk=256).find(range(600)).tokens == 512
    hit.close(); namespace.close(); store.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
assert namespace.find(range(600)).tokens == 512
print("good")
"""
        self.runs(code, "good\n")


class TestCallbacks(HandleCase):
    def test_interrupted_writing(self):
        """What a callback raises ends the call: no output lacks a piece."""
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            def interrupted(fd, data):
                raise KeyboardInterrupt

            with unittest.mock.patch("os.write", interrupted):
                self.assertRaises(KeyboardInterrupt, f.unpack, self.path("x"))

            def full(fd, data):
                raise OSError(28, "full")

            with unittest.mock.patch("os.write", full):
                with self.assertRaises(OSError) as caught:
                    f.unpack(self.path("x"))
                self.assertIsInstance(caught.exception, kvc.Error)
                self.assertEqual(caught.exception.errno, 28)
        self.assertEqual(os.listdir(self.folder), [])

    def test_threads_pack(self):
        """Several threads read and pack one file."""
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            due, failed = f.pack(), []

            def work():
                try:
                    for _ in range(3):
                        assert f.pack() == due
                except BaseException as problem:
                    failed.append(problem)

            threads = [threading.Thread(target=work) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual(failed, [])


if __name__ == "__main__":
    unittest.main()
