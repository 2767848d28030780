"""Opening, reading, packing and comparing, with numpy alone."""

import hashlib
import os
import pickle
import shutil
import unittest
from pathlib import Path
from unittest import mock

import numpy as np
from common import ROOT, SAMPLES, Case

import kvc
from kvc import _lib, arrays

random = np.random.default_rng(1)


def layout_of(values, order, spare):
    """Returns `values` [T, H, D] as a view of larger memory whose axes lie in another order."""
    sizes = [n + s for n, s in zip(values.shape, spare)]
    memory = np.zeros([sizes[i] for i in order], values.dtype)
    view = memory.transpose(np.argsort(order))[tuple(slice(s, s + n) for n, s in zip(values.shape, spare))]
    view[...] = values
    return memory, view


class TestOpen(Case):
    def test_looking(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            self.assertEqual(f.format, "kvc")
            self.assertEqual(f.tokens.tolist(), [42185, 28807, 35185, 49126])
            self.assertEqual(f.meta["rope.pairing"], "halves")
            self.assertIn("model.name", f.meta)
            for key in ("no.such.key", "model.name\0", "\udcff", "", 1, None, b"model.name"):
                self.assertNotIn(key, f.meta)
                self.assertIsNone(f.meta.get(key))
            self.assertEqual(len(f.meta), len(dict(f.meta)))
            t = f.tensors[3]
            self.assertEqual((t.role, t.part, t.dtype, t.layer, t.rows, t.heads, t.dim, t.row_bytes),
                             ("V", "live", "bf16", 1, 4, 3, 64, 384))
            self.assertEqual([f.position(3, row) for row in range(4)], [0, 1, 2, 3])
            self.assertEqual(f.match([42185, 28807, 7]), 2)
            f.check()
        self.assertTrue(f.closed)
        self.assertIn("closed", repr(f))
        f.close()

    def test_bytes_and_members(self):
        data = (SAMPLES / "tiny.kvc").read_bytes()
        for source in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
            with kvc.open(source) as f:
                self.assertEqual(len(f.tensors), 4)
        with kvc.open([SAMPLES / "tiny.safetensors"]) as f:
            self.assertEqual(len(f.tensors), 4)
        self.assertTrue(kvc.compare(kvc.pack(SAMPLES / "tiny.safetensors"), kvc.pack([SAMPLES / "tiny.safetensors"])))

    def test_errors(self):
        self.fails(kvc.Code.IO, "no-such-file", kvc.open, self.path("no-such-file"))
        for data in (b"no cache at all", b""):
            self.fails(kvc.Code.UNKNOWN_FORMAT, "", kvc.open, data)
        damaged = bytearray((SAMPLES / "tiny.kvc").read_bytes())
        damaged[5000] ^= 1
        with kvc.open(damaged) as f:
            self.fails(kvc.Code.DAMAGED, "", f.check)
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            self.fails(kvc.Code.USAGE, "no rows", f.read, 0, 3, 2)
            self.fails(kvc.Code.USAGE, "no tensor 9", f.read, 9)
            self.fails(kvc.Code.NOT_SLICEABLE, "positions", f.arrays, end=9)
        self.fails(kvc.Code.USAGE, "closed", f.check)
        again = pickle.loads(pickle.dumps(kvc.Error(33, "text", offset=7)))
        self.assertEqual((again.code, again.message, again.offset), (kvc.Code.NOT_SLICEABLE, "text", 7))

    def test_facts_of_the_caller(self):
        """Scales of values of 8 bits: given when a file is packed, or when it is opened."""
        codes = np.full((4, 2, 8), 0x40, np.uint8)  # 2 in f8e4m3
        packed = kvc.pack({(0, role): codes for role in "KV"}, dtype="f8e4m3")
        mine = np.zeros((4, 2, 8), np.float32)
        with kvc.open(packed) as f:
            self.fails(kvc.Code.UNSUPPORTED, "a scale that nothing tells", f.load, {(0, "K"): mine}, convert=True)
        with kvc.open(packed, facts={"scale.k": 0.5, "scale.v": "0.25:4"}) as f:
            f.load({(0, "K"): mine}, convert=True)
            self.assertTrue((mine == 1).all())
            f.load({(0, "V"): mine}, convert=True)
            self.assertTrue((mine[:, 0] == 0.5).all() and (mine[:, 1] == 8).all())
        self.fails(kvc.Code.USAGE, "did you mean scale.k", kvc.open, packed, facts={"scale.q": 1})

    def test_close_order(self):
        f = kvc.open(SAMPLES / "tiny.kvc")
        part = f.select(1, 3, layers=[1])
        joined = kvc.join([part])
        f.close()
        self.assertTrue(part.closed and joined.closed)

    def test_tokens_of_a_file_without(self):
        packed = kvc.pack({(0, role): np.zeros((4, 2, 8), np.float32) for role in "KV"})
        with kvc.open(packed) as f:
            self.assertIsNone(f.tokens)
        with kvc.open(packed, tokens=range(4)) as f:
            self.assertEqual(f.tokens.tolist(), [0, 1, 2, 3])


class TestValues(Case):
    def test_types(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            bits, floats = f.arrays(), f.arrays(dtype="f32")
            self.assertEqual(set(bits), {(i, role) for i in range(2) for role in "KV"})
            for key, values in floats.items():
                raw = bits[key]
                self.assertEqual((values.dtype, values.shape, kvc.dtype_name(raw)), (np.float32, (4, 3, 64), "bf16"))
                wide = np.asarray(raw).view(np.uint16).astype(np.uint32) << 16
                self.assertTrue(np.array_equal(wide.view(np.float32), values))
            self.assertTrue(np.array_equal(f.read(0, 1, 2), bits[0, "K"][1:3]))
        with kvc.open(SAMPLES / "slot-q4_1-q5_0.bin", kv_heads=3) as f:
            blocks = f.arrays(layers=[2])
            self.assertEqual((blocks[2, "K"].shape, blocks[2, "V"].shape), ((16, 3, 2, 20), (16, 3, 2, 22)))
            with kvc.open(kvc.pack(blocks)) as again:
                self.assertTrue(np.array_equal(again.arrays()[2, "K"], blocks[2, "K"]))

    def test_parts(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            whole = f.arrays()
            with f.select(1, 3, layers=[1]) as part:
                found = part.arrays()
                self.assertEqual({key: a.shape for key, a in found.items()}, {(1, "K"): (2, 3, 64), (1, "V"): (2, 3, 64)})
                self.assertTrue(np.array_equal(found[1, "K"], whole[1, "K"][1:3]))
            self.assertTrue(np.array_equal(f.arrays(first=1, end=3)[1, "V"], whole[1, "V"][1:3]))
            with f.select(0, 2) as a, f.select(2, 4) as b, kvc.join([a, b]) as joined:
                self.assertTrue(kvc.compare(f, joined))

    def test_load_into_strides(self):
        """Values come into arrays of any strides, and nothing else of their memory changes."""
        for dtype in (np.float32, np.float16, np.uint8):
            for _ in range(40):
                tokens, heads, dim = (int(random.integers(1, n)) for n in (300, 5, 20))
                source = {(0, role): random.integers(0, 200, (tokens, heads, dim)).astype(dtype) for role in "KV"}
                skipped = int(random.integers(0, tokens))
                targets, due = {}, {}
                for key, values in source.items():
                    order, spare = random.permutation(3), random.integers(0, 3, 3)
                    due[key] = layout_of(values[skipped:], order, spare)
                    targets[key] = layout_of(np.zeros_like(values[skipped:]), order, spare)
                with kvc.open(kvc.pack(source, layout="THD")) as f:
                    f.load({key: view for key, (_, view) in targets.items()}, first=skipped)
                for key in source:
                    self.assertTrue(np.array_equal(targets[key][0], due[key][0]))

    def test_load_errors(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            good = f.arrays()
            self.fails(kvc.Code.USAGE, "conversion", f.load, {(0, "K"): np.empty((4, 3, 64), np.float32)})
            f.load({(0, "K"): np.empty((4, 3, 64), np.float32)}, convert=True)
            self.fails(kvc.Code.USAGE, "no K in layer 7", f.load, {(7, "K"): good[0, "K"]})
            self.fails(kvc.Code.USAGE, "channels", f.load, {(0, "K"): good[0, "K"][:, :, :5]})
            frozen = good[0, "K"].copy()
            frozen.flags.writeable = False
            self.fails(kvc.Code.USAGE, "read-only", f.load, {(0, "K"): frozen})
            self.fails(kvc.Code.USAGE, "numpy array", f.load, {(0, "K"): [[[1.0]]]})


class TestPack(Case):
    def test_strides(self):
        """Arrays of all layouts give the same container, without a copy of the caller's."""
        tokens, heads, dim = 300, 3, 8
        kv = {(i, role): random.normal(size=(tokens, heads, dim)).astype(np.float16) for i in range(2) for role in "KV"}
        ids = list(range(1000, 1000 + tokens))
        packed = kvc.pack(kv, tokens=ids, facts={"model.name": "m"})
        for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0)):
            views = {key: layout_of(values, order, (2, 1, 3))[1] for key, values in kv.items()}
            self.assertEqual(kvc.pack(views, tokens=ids, facts={"model.name": "m"}), packed)
        names = {f"layers.{i}.{name}": kv[i, role].transpose(1, 0, 2)[None] for i in range(2) for name, role in (("keys", "K"), ("values", "V"))}
        self.assertEqual(kvc.pack(names, tokens=ids, facts={"model.name": "m"}), packed)
        pairs = [(kv[i, "K"].transpose(1, 0, 2), kv[i, "V"].transpose(1, 0, 2)) for i in range(2)]
        self.assertEqual(kvc.pack(pairs, tokens=np.array([ids]), facts={"model.name": "m"}, layout="htd"), packed)
        backwards = {key: values[::-1].copy()[::-1] for key, values in kv.items()}  # negative strides are copied
        self.assertEqual(kvc.pack(backwards, tokens=ids, facts={"model.name": "m"}), packed)

    def test_no_copy(self):
        kv = {(0, role): np.zeros((4, 2, 8), np.float32) for role in "KV"}
        with kvc.open_arrays(kv) as f:
            kv[0, "K"][2, 1, 3] = 7
            self.assertEqual(f.arrays()[0, "K"][2, 1, 3], 7)

    def test_pruned_base(self):
        """A cache that goes on from a pruned one keeps its rows, and leaves out the same channels of the others."""
        for recipe in ("prune:k=0.3:by=l1:mean", "prune:k=0.3:v=0.5:by=l2:mean", "prune:k=0.3:by=l1"):
            new = {(0, role): random.normal(size=(1500, 2, 32)).astype(np.float32) for role in "KV"}
            with kvc.open(kvc.pack({key: values[:300] for key, values in new.items()}, recipe=recipe)) as base:
                old = base.arrays()
                grown = {key: np.concatenate([old[key], values[300:]]) for key, values in new.items()}
                packed = kvc.pack(grown, base=base)
            with kvc.open(packed) as f:
                f.check()
                for key, values in f.arrays().items():
                    self.assertTrue(np.array_equal(values[:300], old[key]), (recipe, key))
                kept = f[0, "K"][400] == grown[0, "K"][400]
                self.assertTrue(np.array_equal(kept.sum(axis=1), [23, 23]), recipe)

    def test_no_keys(self):
        kv = {(0, role): np.zeros((300, 1, 4), np.float32) for role in "KV"}
        for keys in (True, False):
            for tokens in (True, False):
                with kvc.open(kvc.pack(kv, tokens=range(300), keep_keys=keys, keep_tokens=tokens)) as f:
                    self.assertEqual("prefix.identity" in f.meta, keys)
                    self.assertEqual(f.match(range(300)) if keys or tokens else 0, 300 if tokens else 256 if keys else 0)

    def test_sliding(self):
        kv = {(0, "K"): np.ones((20, 2, 8), np.float32), (0, "V"): np.ones((20, 2, 8), np.float32),
              (1, "K"): np.full((5, 2, 8), 3, np.float32), (1, "V"): np.full((5, 2, 8), 4, np.float32)}
        with kvc.open(kvc.pack(kv, tokens=range(20), facts={"sliding.window": 6})) as f:
            self.assertEqual({t.layer: t.part for t in f.tensors}, {0: "live", 1: "window"})
            again = f.arrays()
            self.assertTrue(all(np.array_equal(again[key], kv[key]) for key in kv))
            self.fails(kvc.Code.NOT_SLICEABLE, "layer 1", f.arrays, end=18)

    def test_all_sliding(self):
        """Where all layers have a window, positions tell the length of the text, and no array does."""
        kv = {(i, role): np.arange(n * 4, dtype=np.float32).reshape(n, 1, 4) + i for i, n in enumerate((6, 4)) for role in "KV"}
        m = arrays.memory(arrays.planes(kv), tokens=20, facts={"sliding.window": 7})
        with kvc.File._of(_lib.call(_lib.kvc.kvc_file_open_arrays, m), m) as g, kvc.open(g.pack()) as f:
            self.assertEqual({t.part for t in f.tensors}, {"window"})
            for h in (f, g):
                self.assertEqual(h.range()[1], 20)
                self.assertEqual({key: array.shape[0] for key, array in h.arrays(first=0).items()}, {key: len(kv[key]) for key in kv})
                self.assertTrue(np.array_equal(h.arrays(first=0, end=20)[1, "V"], kv[1, "V"]))
                for end in (19, 14, 10, 4):
                    self.fails(kvc.Code.NOT_SLICEABLE, "", h.arrays, first=0, end=end)

    def test_recipes_and_files(self):
        kv = {(0, role): random.normal(size=(256, 2, 32)).astype(np.float32) for role in "KV"}
        bits = {key: (values.view(np.uint32) >> 16).astype(np.uint16) for key, values in kv.items()}
        self.fails(kvc.Code.UNSUPPORTED, "dtype=", kvc.pack, bits)
        path = self.path("a.kvc")
        size = kvc.pack(bits, path, dtype="bf16", recipe="kivi4")
        self.assertEqual(os.stat(path).st_size, size)
        self.assertEqual(os.listdir(self.folder), ["a.kvc"])
        with kvc.open(path) as f:
            result = kvc.compare(kvc.open_arrays(bits, dtype="bf16"), f)
            self.assertFalse(result)
            self.assertGreater(result.cosine, 0.99)
            self.assertEqual(f.tensors[0].dtype, "bf16")
        self.assertTrue(kvc.compare(path, path, meta=2))
        self.fails(kvc.Code.USAGE, "recipe", kvc.pack, kv, self.path("b.kvc"), recipe="no-such-recipe")
        self.fails(kvc.Code.USAGE, "layout", kvc.pack, kv, layout="TX")
        self.fails(kvc.Code.UNSUPPORTED, "batch of 2", kvc.pack, [(np.zeros((2, 3, 4, 8), np.float32),) * 2])
        self.fails(kvc.Code.USAGE, "no layer", kvc.pack, {"keys": kv[0, "K"]})
        self.fails(kvc.Code.USAGE, "32 bits", kvc.pack, kv, tokens=[2**40])
        self.fails(kvc.Code.USAGE, "one sequence", kvc.pack, kv, tokens=[[1, 2], [3, 4]])
        self.assertEqual(os.listdir(self.folder), ["a.kvc"])

    def test_unpack(self):
        path = self.path("tiny.safetensors")
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            self.assertEqual(f.unpack(path), 6960)
            self.fails(kvc.Code.USAGE, "", f.unpack, self.path("x"), "no-such-format")
            self.assertGreater(f.unpack(self.path("tiny.npz"), "npz", lossy_metadata=True), 0)
            self.assertEqual(f.unpack_into(), 6960)
            room = bytearray(7000)
            self.assertEqual(f.unpack_into(room), 6960)
            self.assertEqual(room, Path(path).read_bytes() + bytes(40))
            self.fails(kvc.Code.USAGE, "longer than the memory", f.unpack_into, room[:6959])
            self.assertRaises(TypeError, f.unpack_into, bytes(7000))
        self.assertEqual((SAMPLES / "tiny.safetensors").read_bytes(), Path(path).read_bytes())

    def test_compare(self):
        a = {(0, role): np.ones((4, 2, 8), np.float32) for role in "KV"}
        b = {key: values + np.float32(0.5) for key, values in a.items()}
        with kvc.open_arrays(a, facts={"model.name": "a"}) as f, kvc.open_arrays(b, facts={"model.name": "b"}) as g:
            result = kvc.compare(f, g, meta=2)
            self.assertEqual((result.same, result.tensors, result.differ, result.max_abs), (False, 2, 128, 0.5))
            self.assertIn(("model.name", "a", "b"), result.meta)
            self.assertTrue(kvc.compare(f, g, abs=0.6))
            self.assertEqual(kvc.compare(f, g, first=1, end=2, layers=[0]).values, 32)


class TestProfiles(Case):
    def setUp(self):
        super().setUp()
        was = {name: os.environ.get(name) for name in ("KVC_PROFILE_PATH", "XDG_DATA_HOME")}
        self.addCleanup(lambda: [self.set(name, value) for name, value in was.items()])
        self.set("KVC_PROFILE_PATH", None)
        self.set("XDG_DATA_HOME", self.path("data"))

    @staticmethod
    def set(name, value):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def test_folders(self):
        """A profile is found where profiles stay to be had; other folders take their place."""
        profile = SAMPLES / "smollm2-135m-instruct-predict.kvcp"
        with kvc.open(SAMPLES / "transformers-16.safetensors") as f:
            data = f.pack(recipe="small", profile=profile)
        digest = hashlib.sha256(profile.read_bytes()).hexdigest()

        def is_found(**options):
            try:
                with kvc.open(data, **options) as f:
                    f.arrays()
            except kvc.Error as e:
                self.assertEqual((e.code, e.need), (kvc.Code.OTHER_MODEL, 5))
                self.assertIn(digest, e.message)
                return False
            return True

        if os.path.exists("/usr/local/share/kvc/profiles") or os.path.exists("/usr/share/kvc/profiles"):
            self.skipTest("profiles are installed")
        self.assertFalse(is_found())
        self.assertTrue(is_found(profile=profile))
        self.assertTrue(is_found(profile_folders=[SAMPLES]))
        folder = Path(self.path("data/kvc/profiles"))
        folder.mkdir(parents=True)
        shutil.copy(profile, folder / f"{digest}.kvcp")
        self.assertTrue(is_found())
        self.assertTrue(is_found(profile_folders=None))
        self.assertFalse(is_found(profile_folders=[]))
        self.assertFalse(is_found(profile_folders=[self.path("other"), self.folder]))
        for one in (str(SAMPLES), os.fsencode(SAMPLES), SAMPLES):
            self.assertTrue(is_found(profile_folders=one))
        self.assertTrue(is_found(profile_folders=["", self.path("other"), SAMPLES]))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        os.mkdir("none")
        shutil.copy(profile, "none")
        self.assertTrue(is_found(profile_folders=["none"]))  # a folder of this name, not the end of the list
        self.fails(kvc.Code.USAGE, "has a colon", kvc.open, data, profile_folders=[f"{SAMPLES}:x"])
        self.assertRaises(TypeError, kvc.open, data, profile_folders=[None])
        self.set("KVC_PROFILE_PATH", "none")
        self.assertFalse(is_found())
        self.set("KVC_PROFILE_PATH", str(SAMPLES))
        self.assertTrue(is_found())


class TestLimits(Case):
    def test_digests(self):
        """Rows that differ from their digest are refused, unless that is not wanted; loads compare if asked."""
        path = ROOT / "tests/conformance/files/bad-block-row.kvc"
        with kvc.open(path) as f:
            with self.assertRaises(kvc.Error) as raised:
                f.unpack(self.path("out"))
            self.assertEqual(raised.exception.code, kvc.Code.DAMAGED)
            rows = {(0, "V"): np.zeros((5, 2, 4), np.float16)}
            f.load(rows)
            self.assertRaises(kvc.Error, f.load, rows, verify=True)
        with kvc.open(path, verify=False) as f:
            f.unpack(self.path("out"))
            self.assertTrue(os.path.exists(self.path("out")))

    def test_memory(self):
        """A block that needs more memory than is allowed is refused; looking at the file needs none."""
        with kvc.open(SAMPLES / "tiny.kvc", max_memory=1 << 10) as f:
            self.assertGreater(len(f.tensors), 0)
            with self.assertRaises(kvc.Error) as raised:
                f.unpack(self.path("out"))
            self.assertEqual((raised.exception.code, raised.exception.need), (kvc.Code.UNSUPPORTED, 20))


class TestPackage(unittest.TestCase):
    def test_version(self):
        header = (ROOT / "formats/api/kvc.h").read_text()
        numbers = [line.split()[2] for line in header.splitlines() if line.startswith("#define KVC_VERSION_")]
        self.assertEqual(kvc.__version__, ".".join(numbers))

    def test_fitting(self):
        """A later library of the same first number serves; of 0.x that of the same second one."""
        with mock.patch.object(_lib, "VERSION", "1.2.3"):
            self.assertEqual([v for v in ("0.9.0", "1.1.9", "1.2.0", "1.10.0", "2.2.3") if _lib._fits(v)], ["1.2.0", "1.10.0"])
        with mock.patch.object(_lib, "VERSION", "0.9.0"):
            self.assertEqual([v for v in ("0.8.0", "0.9.4", "0.10.0", "1.9.0") if _lib._fits(v)], ["0.9.4"])


if __name__ == "__main__":
    unittest.main()
