"""kvc as users of numpy, torch and Python's files expect it: types by their names, files as mappings, errors of the system, completion."""

import io
import mmap
import os
import pickle
import subprocess
import sys
import unittest

import numpy as np
from common import ROOT, SAMPLES, Case, needs_store

import kvc

try:
    import torch
except ImportError:
    torch = None
TINY = SAMPLES / "tiny.kvc"


class TestTypes(Case):
    def test_names(self):
        names = {"f32": ["f32", "float32", "<f4", np.float32, np.dtype("f4"), "torch.float32"],
                 "f16": ["f16", "float16", np.float16, np.dtype(np.float16)]}
        if torch is not None:
            names["f32"].append(torch.float32)
            names["f16"] += [torch.float16, torch.half]
        bits = {(0, role): np.zeros((4, 2, 8), np.uint16) for role in "KV"}
        with kvc.open(TINY) as f:
            for due, all_names in names.items():
                for name in all_names:
                    self.assertEqual(kvc.dtype_name(f.arrays(dtype=name)[0, "K"]), due)
                    self.assertEqual(kvc.dtype_name(name), due)
                    into = np.zeros((4, 3, 64), np.float32 if due == "f32" else np.float16)
                    f.load({(0, "K"): into}, dtype=name, convert=True)
                    self.assertTrue(into.any())
            for name in ["bf16", "bfloat16"] + ([torch.bfloat16] if torch is not None else []):
                with kvc.open_arrays(bits, dtype=name) as g:
                    self.assertEqual(g.tensors[0].dtype, "bf16")
                self.assertEqual(kvc.dtype_name(f.arrays(dtype=name)[0, "K"]), "bf16")
            for wrong in ("f64", np.float64, "complex", float, 5, "f8", [1]):  # numpy's f8 has 64 bits
                self.fails(kvc.Code.USAGE, "no type of kvc: f32, f16", f.arrays, dtype=wrong)
                self.fails(kvc.Code.USAGE, "no type of kvc", kvc.pack, bits, dtype=wrong)
        self.assertEqual(kvc.dtype_name(np.dtype(np.int8)), "i8")
        self.fails(kvc.Code.UNSUPPORTED, "float64", kvc.dtype_name, np.zeros(1))

    @unittest.skipIf(torch is None, "tensors are not tested: there is no torch")
    def test_tensors(self):
        with kvc.open(TINY) as f:
            for name in ("f16", np.float16, torch.float16):
                self.assertEqual(f.arrays(torch=True, dtype=name)[0, "K"].dtype, torch.float16)

    @unittest.skipIf(torch is None, "tensors are not tested: there is no torch")
    def test_negated_tensors(self):
        """torch keeps a sign beside the memory of some views: of the imaginary part of a conjugate."""
        views = {(0, role): torch.conj(torch.randn(4, 2, 8, dtype=torch.complex64)).imag for role in "KV"}
        self.assertTrue(views[0, "K"].is_neg())
        with kvc.open_arrays(views) as f:
            for key, view in views.items():
                self.assertTrue(np.array_equal(f[key], view.resolve_neg().numpy()))
            self.fails(kvc.Code.USAGE, "negated", f.load, views)

    @needs_store
    def test_store(self):
        kv = {(0, role): np.ones((300, 2, 16), np.float16) for role in "KV"}
        into = {key: np.zeros((256, 2, 16), np.float32) for key in kv}
        named = {key: np.zeros((300, 2, 16), np.float32) for key in kv}
        with kvc.Store(f"dir:{self.path('s')}", local_timeout=10) as store, kvc.open_arrays(kv, tokens=range(300)) as f:
            with store.namespace(f, chunk=256) as namespace:
                namespace.put(f)
                namespace.put_name(b"n", f)
                self.assertEqual(namespace.find(range(300)).load(into, dtype=np.float32, convert=True), 256)
                self.assertTrue(namespace.load_name(b"n", named, dtype="float32", convert=True))
        self.assertTrue(all(a.all() for a in [*into.values(), *named.values()]))


class TestMappings(Case):
    def test_file(self):
        with kvc.open(TINY) as f:
            due = f.arrays()
            self.assertEqual(len(f), 4)
            self.assertEqual(list(f), [(0, "K"), (0, "V"), (1, "K"), (1, "V")])
            self.assertEqual((f.keys(), f.range()), (list(f), (0, 4)))
            self.assertTrue((1, "K") in f and (7, "K") not in f and "K" not in f)
            for key, array in dict(f).items():
                self.assertTrue(np.array_equal(array, due[key]))
                self.assertEqual(kvc.dtype_name(array), kvc.dtype_name(due[key]))
            for key in ((7, "K"), (0, "Q")):
                with self.assertRaises(KeyError) as caught:
                    f[key]
                self.assertIn("there are K, V of the layers 0-1", str(caught.exception))
            for key in (0, "K", slice(2)):
                self.assertRaises(TypeError, lambda: f[key])
            with f.select(1, 3, layers=[1]) as part:
                self.assertEqual((list(part), part.range()), ([(1, "K"), (1, "V")], (1, 3)))
                self.assertTrue(np.array_equal(part[1, "V"], due[1, "V"][1:3]))

    def test_file_objects(self):
        data = TINY.read_bytes()
        with kvc.open(TINY) as due:
            with open(TINY, "rb") as raw, kvc.open(raw) as f:
                self.assertTrue(kvc.compare(f, due))
            with open(TINY, "rb") as raw, mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                mapped.seek(100)  # memory, whose position does not matter
                with kvc.open(mapped) as f:
                    self.assertTrue(kvc.compare(f, due))
            rest = io.BytesIO(b"before" + data)
            rest.seek(6)
            with kvc.open(rest) as f:
                self.assertTrue(kvc.compare(f, due))
            with open(TINY, "rb") as raw, kvc.open(kvc.pack(raw)) as f:
                self.assertTrue(kvc.compare(f, due))
        with open(TINY, encoding="latin-1") as text:
            with self.assertRaises(TypeError) as caught:
                kvc.open(text)
        self.assertIn("mode 'rb'", str(caught.exception))
        with self.assertRaises(TypeError) as caught:
            kvc.open({(0, "K"): np.ones(3)})
        self.assertIn("kvc.open_arrays() takes arrays", str(caught.exception))


class TestErrors(Case):
    def also(self, kind, number, function, *arguments, **options):
        """The error is kvc's, and the system's of this class."""
        for expected in (kvc.Error, kind):
            with self.assertRaises(expected) as caught:
                function(*arguments, **options)
            problem = caught.exception
            self.assertEqual((problem.code, problem.errno), (kvc.Code.IO, number))
            self.assertEqual(str(problem), problem.message)
            again = pickle.loads(pickle.dumps(problem))
            self.assertEqual((type(again), again.message, again.errno), (type(problem), problem.message, number))
        return problem

    def test_reading(self):
        problem = self.also(FileNotFoundError, 2, kvc.open, self.path("none"))
        self.assertEqual(problem.message, f"{self.path('none')}: No such file or directory")
        self.also(FileNotFoundError, 2, kvc.open, [self.path("none")])
        self.also(FileNotFoundError, 2, kvc.open, TINY, model=self.path("none"))
        self.also(FileNotFoundError, 2, kvc.pack, self.path("none"))
        self.also(FileNotFoundError, 2, kvc.compare, TINY, self.path("none"))
        self.also(FileNotFoundError, 2, kvc.model_identity, self.path("none"))
        self.also(NotADirectoryError, 20, kvc.open, TINY / "x")
        with self.assertRaises(kvc.Error) as caught:
            kvc.open(b"no cache")
        self.assertNotIsInstance(caught.exception, OSError)

    def test_permission(self):
        """In a child that is not root, who may read everything."""
        os.chmod(self.folder, 0o755)
        with open(self.path("a"), "w"):
            os.chmod(self.path("a"), 0)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.getuid() == 0:
                    os.setuid(65534)
                self.also(PermissionError, 13, kvc.open, self.path("a"))
                self.also(PermissionError, 13, kvc.pack, {(0, "K"): np.ones((4, 2, 8), np.float32)}, "/b.kvc")
                status = 0
            finally:
                os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_texts(self):
        """The class follows from the text of the errno."""
        from kvc.errors import error_of

        for number, kind in ((13, PermissionError), (21, IsADirectoryError), (17, FileExistsError), (111, ConnectionRefusedError),
                             (28, OSError)):
            problem = error_of(kvc.Code.IO, f"x: y: {os.strerror(number)}")
            self.assertIsInstance(problem, kind)
            self.assertEqual(problem.errno, number)
        for code, text in ((kvc.Code.USAGE, f"x: {os.strerror(2)}"), (kvc.Code.IO, f"{os.strerror(2)}: it is odd")):
            self.assertIs(type(error_of(code, text)), kvc.Error)

    def test_writing(self):
        with kvc.open(TINY) as f:
            self.also(FileNotFoundError, 2, f.pack, self.path("none/a.kvc"))
            self.also(FileNotFoundError, 2, f.unpack, self.path("none/a"))
            os.mkdir(self.path("folder"))
            problem = self.also(IsADirectoryError, 21, f.pack, self.path("folder"))
            self.assertEqual(problem.message, f"{self.path('folder')}: Is a directory")
        self.assertEqual(os.listdir(self.folder), ["folder"])

    def test_remedies(self):
        """Errors name the arguments that help."""
        slot = SAMPLES / "slot-f16.bin"
        with kvc.open(slot, kv_heads=3) as f:
            self.fails(kvc.Code.USAGE, "pairing of K is unknown", f.arrays, pairing="halves")
            self.fails(kvc.Code.USAGE, "; open it with pairing= or model=", f.arrays, pairing="halves")
        with kvc.open(TINY) as f:
            self.fails(kvc.Code.UNSUPPORTED, "; lossy_metadata=True writes it without this", f.unpack, self.path("x.npz"), "npz")
        self.assertEqual(os.listdir(self.folder), [])

    def test_options(self):
        """A misspelt option is named, and the one that is like it."""
        kv = {(0, role): np.ones((4, 2, 8), np.float32) for role in "KV"}
        with kvc.open(TINY) as f:
            def pack(**options):
                return kvc.pack(kv, **options)

            def unpack(**options):
                return f.unpack(self.path("x"), **options)

            for function, name, due in ((pack, "recepie", "pack() got an unexpected keyword argument 'recepie'; did you mean 'recipe'?"),
                                        (pack, "layuot", "pack() got an unexpected keyword argument 'layuot'; did you mean 'layout'?"),
                                        (f.pack, "profil", "pack() got an unexpected keyword argument 'profil'; did you mean 'profile'?"),
                                        (f.pack, "tokens", "pack() got an unexpected keyword argument 'tokens'; did you mean 'keep_tokens'?"),
                                        (f.pack, "lossy_metadata", "pack() got an unexpected keyword argument 'lossy_metadata'"),
                                        (unpack, "paring", "unpack() got an unexpected keyword argument 'paring'; did you mean 'pairing'?"),
                                        (f.unpack_into, "recipe", "unpack_into() got an unexpected keyword argument 'recipe'")):
                with self.assertRaises(TypeError) as caught:
                    function(**{name: "x"})
                self.assertEqual(str(caught.exception), due)
        self.assertEqual(os.listdir(self.folder), [])


class TestNames(Case):
    def test_dir(self):
        """dir(kvc) lists all that the package offers, and no more, before any of it is used."""
        code = "import kvc, sys; print([n for n in dir(kvc) if n[0] != '_'] == sorted(kvc.__all__), 'Prefix' in dir(kvc), 'torch' in sys.modules)"
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "python")})
        self.assertEqual((out.stdout, out.stderr), ("True True False\n", ""))
        self.assertLessEqual({"__version__", "__doc__", "__all__", "__file__"}, set(dir(kvc)))
        for name in set(kvc.__all__) - {"Prefix", "load", "save"}:
            self.assertTrue(hasattr(kvc, name), name)

    @needs_store
    def test_reprs(self):
        place = self.path("store")
        with kvc.Store(f"dir:{place}?max-size=1G", local_timeout=10) as store:
            self.assertEqual(repr(store), f"<kvc.Store dir:{place}>")
            with kvc.open_arrays({(0, "K"): np.ones((4, 2, 8), np.float32)}) as f, store.namespace(f, chunk=256) as namespace:
                self.assertEqual(repr(namespace), f"<kvc.Namespace {namespace.name[:16]}, chunks of 256 tokens>")
                with namespace.find([1, 2, 3]) as hit:
                    self.assertEqual(repr(hit), "<kvc.Hit 0 of 0 tokens>")
            self.assertEqual(repr(namespace), "<kvc.Namespace closed>")
        self.assertEqual(repr(store), "<kvc.Store closed>")

    def test_no_secrets(self):
        """Neither users and passwords nor options are shown."""
        from kvc.store import _shown

        self.assertEqual(_shown("dir:/a@b,redis://me:p@ss:w@h1:6379,h2?password=x,s3://bucket/prefix?key=k"),
                         "dir:/a@b,redis://h1:6379,h2,s3://bucket/prefix")

    def test_other_kinds(self):
        for wrong in (5, None, b"dir:x"):
            self.assertRaises(TypeError, kvc.Store, wrong)


if __name__ == "__main__":
    unittest.main()
