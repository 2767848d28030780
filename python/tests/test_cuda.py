"""Decoding on a device: the code for GPUs runs on the host ($KVC_FAKE_CUDA), in memory that says it is a device's. No GPU is needed."""

import os
import unittest
from unittest import mock

import numpy as np
from common import SAMPLES, Case, needs_store

import kvc
import test_hf
from kvc import _lib, arrays, cuda, devices

try:
    import torch
except ImportError:
    torch = None
FAKE = os.environ.get("KVC_FAKE_CUDA", "")
NO_FAKE = "" if os.path.exists(FAKE) else "decoding on a device is not tested: KVC_FAKE_CUDA names no library ('make check-python' does)"
NO_TORCH = "tensors on a device are not tested: there is no torch" if torch is None else ""
PROFILE = SAMPLES / "smollm2-135m-instruct-predict.kvcp"


class Memory:
    """A device's array of another package: numpy's memory and an interface of CUDA."""

    def __init__(self, array):
        self.array = array
        about = dict(array.__array_interface__)
        self.__cuda_array_interface__ = {**about, "typestr": array.dtype.str, "version": 3}


class HostPlace(devices.Place):
    """All tensors are a device's but those that this makes for the CPU."""

    def __init__(self):
        self.host = []  # kept, so that no other tensor gets their addresses

    def number(self, array):
        if not devices.is_torch(array):
            return super().number(array)
        return None if any(array.data_ptr() == h.data_ptr() for h in self.host) else 0

    def find(self, device):
        return device if isinstance(device, int) else None if device in (None, "cpu") else 0

    def empty(self, shape, dtype, number):
        return torch.empty(tuple(shape), dtype=dtype)

    def stage(self, tensor):
        self.host.append(super().stage(tensor))
        return self.host[-1]

    def to_host(self, array):
        self.host.append(array.detach().clone())
        return self.host[-1]


class DeviceCase(Case):
    """A test with the library for the host, and counters that begin at 0."""

    def setUp(self):
        super().setUp()
        self.use(FAKE)
        for name in cuda.stats:
            cuda.stats[name] = 0

    def use(self, library):
        _lib._beside.pop("libkvc_cuda", None)
        self.enterContext_(mock.patch.dict(os.environ, KVC_CUDA_LIBRARY=library))

    def enterContext_(self, context):
        context.__enter__()
        self.addCleanup(context.__exit__, None, None, None)

    def ways(self):
        return cuda.stats["device"], cuda.stats["cpu"]


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


@unittest.skipIf(NO_FAKE, NO_FAKE)
class TestDevice(DeviceCase):
    def same(self, f, dtype=None, transposed=False, **part):
        """Each value that the device decodes is the CPU's, bit by bit."""
        due = f.arrays(dtype=dtype, **part)
        first = part.get("first", 0)
        mine = {}
        for key, a in due.items():
            shape = (1, a.shape[1], a.shape[0], a.shape[2]) if transposed else a.shape
            mine[key] = Memory(np.zeros(shape, np.asarray(a).dtype))
        name = kvc.dtype_name(next(iter(due.values())))
        f.load(mine, first=first, convert=dtype is not None, dtype=name)
        self.assertEqual(f.decoded, "cuda:0")
        for key, a in due.items():
            got = mine[key].array
            self.assertTrue(np.array_equal(bits(got[0].transpose(1, 0, 2) if transposed else got), bits(a)), key)

    def test_packing(self):
        """What the device packs is what the CPU packs of the same arrays."""
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            due = f.arrays(end=300)
        name = kvc.dtype_name(next(iter(due.values())))
        facts = {"model.name": "test", "rope.pairing": "halves"}
        mine = {key: Memory(np.array(a)) for key, a in due.items()}
        for recipe in ("fast", "kivi2", "kivi4", "kcvt4"):
            want = kvc.pack(due, recipe=recipe, first=5, facts=facts)
            self.assertEqual(cuda.pack(mine, recipe, first=5, facts=facts, dtype=name), want, recipe)
        with self.assertRaisesRegex(kvc.Error, "no device encodes 'split'"):
            cuda.pack(mine, "split", dtype=name)
        with self.assertRaisesRegex(kvc.Error, "which kvc.pack.. packs"):
            cuda.pack(due)
        last = list(due)[-1]
        mixed = {**mine, last: due[last]}
        with self.assertRaisesRegex(kvc.Error, "memory of"):
            cuda.pack(mixed, dtype=name)

    def test_files(self):
        """Lossless, lossy and predicted files, in the layouts of kvc and of transformers, whole and in part."""
        prompt = SAMPLES / "prompt.safetensors.kvc"
        lossy = {"small": {"recipe": "small"}, "kivi4": {"recipe": "kivi4"}, "fast": {"recipe": "fast"},
                 "zstd": {"recipe": "zstd"}, "near-lossless": {"recipe": "near-lossless", "profile": PROFILE},
                 "predicted": {"profile": PROFILE}}
        files = [(SAMPLES / "tiny.kvc", None), (prompt, None)]
        with kvc.open(prompt) as f:
            for name, options in lossy.items():
                f.pack(self.path(name), **options)
                files.append((self.path(name), options.get("profile")))
        for path, profile in files:
            with kvc.open(path, profile=profile) as f:
                for dtype in (None, "f32", "f16"):
                    for transposed in (False, True):
                        self.same(f, dtype, transposed)
                n = f.tensors[0].rows
                self.same(f, first=n // 3, end=n - 1)
                self.same(f, layers=[f.tensors[0].layer])
        self.assertEqual(cuda.stats["cpu"], 0)
        self.assertEqual(cuda.stats["device"], 8 * len(files))
        self.assertGreater(cuda.stats["on_host"], 0)  # the stage zstd

    def test_rounding(self):
        """Values beyond f16, infinities and NaN are rounded as the CPU does it."""
        odd = np.array([1e30, -1e30, 65504, 65520, 70000, np.inf, -np.inf, np.nan, 1e-30, 0.1], np.float32)
        kv = {(0, role): np.resize(odd, (40, 1, 8)) for role in "KV"}
        kvc.pack(kv, self.path("odd.kvc"))
        with kvc.open(self.path("odd.kvc")) as f:
            for dtype in (None, "f16", "bf16"):
                self.same(f, dtype)

    def test_strides_and_windows(self):
        """Planes by address and strides, of which a layer has the last tokens only."""
        kv = {(i, role): np.random.default_rng(i).normal(size=(9 if i else 50, 2, 8)).astype(np.float16) for i in range(2) for role in "KV"}
        kvc.pack(kv, self.path("w.kvc"), facts={"sliding.window": 10})
        pool = np.zeros((2, 2, 50, 2, 16), np.float16)
        into = {(i, role): arrays.Plane(pool, pool[i, "KV".index(role)].ctypes.data, "f16", len(kv[i, role]), 2, 8, (64, 32, 4), device=0)
                for i, role in kv}
        with kvc.open(self.path("w.kvc")) as f:
            cuda.decode(f, into, stream=0)
        for (i, role), a in kv.items():
            self.assertTrue(np.array_equal(pool[i, "KV".index(role), :len(a), :, ::2], a))
        self.assertEqual(pool[..., 1::2].max(), 0)

    def test_pages(self):
        """Pages of tokens, as engines keep them, from any position on, and more memory than tokens."""
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            due = f.arrays(first=3, end=103)
            pools = {key: np.zeros((7, a.shape[1], 16, a.shape[2]), np.uint16) for key, a in due.items()}
            f.load({key: Memory(a) for key, a in pools.items()}, first=3, tokens=100, layout="PHTD", dtype="bf16")
            self.assertEqual(f.decoded, "cuda:0")
            for key, a in due.items():
                got = pools[key].transpose(0, 2, 1, 3).reshape(112, *a.shape[1:])
                self.assertTrue(np.array_equal(bits(got[:100]), bits(a)) and not got[100:].any())

    def test_cannot(self):
        """What a device cannot do raises in kvc.cuda, with the reason."""
        source = kvc.open(SAMPLES / "tiny.kvc")
        self.addCleanup(source.close)
        due = source.arrays()
        mine = {key: Memory(np.zeros_like(np.asarray(a))) for key, a in due.items()}
        name = kvc.dtype_name(due[0, "K"])
        with source.select(0, 4) as part:
            self.fails(kvc.Code.UNSUPPORTED, "selection", cuda.decode, part, mine, dtype=name)
        self.fails(kvc.Code.UNSUPPORTED, "pairing", cuda.decode, source, mine, dtype=name, pairing="interleaved")
        self.fails(kvc.Code.UNSUPPORTED, "CPU's memory", cuda.decode, source, {(0, "K"): np.zeros((4, 3, 64), np.float16)})
        self.fails(kvc.Code.UNSUPPORTED, "not those of the arrays", cuda.decode, source, mine, dtype=name, first=1, tokens=4)
        with mock.patch.dict(os.environ, KVC_FAKE_DEVICES="0"):
            self.fails(kvc.Code.UNSUPPORTED, "there is none", cuda.decode, source, mine, dtype=name)
        self.assertEqual(len(cuda.list_devices()), 1)
        by_address = {key: arrays.Plane(None, 0, name, 4, 3, 64, (384, 128, 2), device=0) for key in due}
        self.fails(kvc.Code.UNSUPPORTED, "and the CPU cannot: memory of a device that is given by its address", source.load, by_address)
        one = {(0, "K"): mine[0, "K"]}
        self.fails(kvc.Code.USAGE, "address 0", cuda.decode, source, one, dtype=name)

    def test_scales(self):
        """Values of 8 bits are decoded as they are; a device converts them only if their scales are 1."""
        path = self.path("a.kvc")
        codes = np.full((8, 1, 8), 0x40, np.uint8)  # 2 in f8e4m3
        kv = {(0, role): codes for role in "KV"}
        for facts, code, words in (({}, kvc.Code.UNSUPPORTED, "a scale that nothing tells"),
                                   ({"scale.k": 0.5, "scale.v": 0.5}, kvc.Code.UNSUPPORTED, "only the CPU multiplies"),
                                   ({"scale.k": 1, "scale.v": 1}, None, "")):
            kvc.pack(kv, path, dtype="f8e4m3", facts=facts)
            with kvc.open(path) as f:
                mine = {key: Memory(np.zeros_like(codes)) for key in kv}
                cuda.decode(f, mine, dtype="f8e4m3")
                self.assertTrue(all(np.array_equal(mine[key].array, codes) for key in kv))
                wide = {key: Memory(np.zeros(codes.shape, np.float16)) for key in kv}
                if code is None:
                    cuda.decode(f, wide, dtype="f16", convert=True)
                    self.assertTrue(all((wide[key].array == 2).all() for key in kv))
                else:
                    self.fails(code, words, cuda.decode, f, wide, dtype="f16", convert=True)

    def test_replaced(self):
        """A file that took the place of the open one is not read by the device."""
        path = self.path("a.kvc")
        kv = {(0, role): np.ones((8, 1, 8), np.float32) for role in "KV"}
        kvc.pack(kv, path)
        with kvc.open(path) as f:
            kvc.pack({key: a * 2 for key, a in kv.items()}, path)
            mine = {key: Memory(np.zeros_like(a)) for key, a in kv.items()}
            self.fails(kvc.Code.UNSUPPORTED, "was changed", cuda.decode, f, mine)

    def test_repeated_positions(self):
        class Repeats:
            """kvc_file_position() of an image's rows, which share a position."""

            @staticmethod
            def kvc_file_position(handle, tensor, row):
                return row // 2

        with kvc.open(SAMPLES / "tiny.kvc") as f:
            views = dict.fromkeys(f.arrays())
            cuda._check_positions(f, views)
            tensors = f.tensors
            with mock.patch.object(cuda._lib, "kvc", Repeats), mock.patch.object(kvc.File, "tensors", tensors):
                self.fails(kvc.Code.UNSUPPORTED, "repeat", cuda._check_positions, f, views)


@unittest.skipIf(NO_FAKE, NO_FAKE)
@unittest.skipIf(NO_TORCH, NO_TORCH)
class TestTensors(DeviceCase):
    def setUp(self):
        super().setUp()
        self.enterContext_(mock.patch.object(devices, "place", HostPlace()))

    def check(self, f, mine, way, ways):
        for key, a in f.arrays().items():
            self.assertTrue(np.array_equal(mine[key].view(torch.uint8).numpy(), bits(a)), key)
        self.assertTrue(f.decoded.startswith(way), f.decoded)
        self.assertEqual(self.ways(), ways)

    def test_arrays(self):
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            self.fails(kvc.Code.USAGE, "torch=True", f.arrays, device="cuda")
            self.check(f, f.arrays(torch=True, device="cuda"), "cuda:0", (1, 0))

    def test_by_cpu(self):
        """Without the library, without a device and for other files the CPU decodes the same."""
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            self.use("/nowhere/libkvc_cuda.so")
            self.check(f, f.arrays(torch=True, device="cuda"), "cpu: /nowhere/libkvc_cuda.so cannot be loaded", (0, 1))
            self.use(FAKE)
            with mock.patch.dict(os.environ, KVC_FAKE_DEVICES="0"):
                self.check(f, f.arrays(torch=True, device="cuda"), "cpu: CUDA cannot be used", (0, 2))
            with f.select(0, 100) as part:
                self.check(part, part.arrays(torch=True, device="cuda"), "cpu: devices decode a .kvc", (0, 3))
        with kvc.open(SAMPLES / "transformers-16.safetensors") as f:
            self.check(f, f.arrays(torch=True, device="cuda"), "cpu: devices decode a .kvc", (0, 4))
        self.assertGreater(cuda.stats["cpu_bytes"], 0)

    def test_errors(self):
        """Errors are those of the CPU's decoder."""
        data = bytearray((SAMPLES / "prompt.safetensors.kvc").read_bytes())
        data[len(data) // 2] ^= 1
        with open(self.path("bad.kvc"), "wb") as out:
            out.write(data)
        with kvc.open(self.path("bad.kvc")) as f:
            self.fails(kvc.Code.DAMAGED, "", f.arrays, torch=True, device="cuda")
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            self.fails(kvc.Code.USAGE, "ask for a conversion", f.load, {(0, "K"): torch.zeros(4, 3, 64, dtype=torch.float64).float(),
                                                                        (0, "V"): torch.zeros(4, 3, 64)})
            self.assertEqual(self.ways(), (0, 0))

    def test_pack(self):
        """Tensors of a device are copied to the CPU."""
        kv = {(0, role): torch.randn(20, 2, 8) for role in "KV"}
        with kvc.open(kvc.pack(kv)) as f:
            for key, t in kv.items():
                self.assertTrue(np.array_equal(f.arrays()[key], t.numpy()))

    def test_real_place(self):
        """Without a GPU, torch has none, and says so."""
        if not torch.cuda.is_available():
            place = devices.Place()
            self.fails(kvc.Code.UNSUPPORTED, "no CUDA devices", place.find, "cuda:3")
            self.assertIsNone(place.stream(0))
            self.assertIsNone(place.number(torch.zeros(1)))
        self.fails(kvc.Code.UNSUPPORTED, "'mps'", devices.Place().find, "mps")


@needs_store
@unittest.skipIf(NO_FAKE, NO_FAKE)
class TestStore(DeviceCase):
    TOKENS = 700

    def open(self, kv, ids, **options):
        self.store = kvc.Store(f"dir:{self.path('store')}", local_timeout=10)
        self.addCleanup(self.store.close)
        with kvc.open_arrays(kv, tokens=ids, facts={"model.name": "m", "rope.pairing": "halves", "rope.theta": 1e5}) as f:
            namespace = self.store.namespace(f, chunk=256, **options)
            namespace.put(f)
        return namespace

    def both(self, namespace, ids, kv):
        """What the device makes of a hit, and what the CPU makes of it."""
        mine = {key: Memory(np.zeros((512, *a.shape[1:]), a.dtype)) for key, a in kv.items()}
        due = {key: np.zeros((512, *a.shape[1:]), a.dtype) for key, a in kv.items()}
        with namespace.find(ids) as hit:
            self.assertEqual((hit.load(due), hit.decoded), (512, ""))
            self.assertEqual((hit.load(mine), hit.decoded), (512, "cuda:0"))
            for key, a in due.items():
                self.assertTrue(np.array_equal(bits(mine[key].array), bits(a)))
                mine[key].array[...] = 0
            self.assertEqual(hit.load({key: Memory(m.array[300:400]) for key, m in mine.items()}, first=300), 400)
            for key, a in due.items():
                self.assertTrue(np.array_equal(bits(mine[key].array[300:400]), bits(a[300:400])))
                self.assertEqual(np.count_nonzero(bits(mine[key].array[:300])), 0)
        return due

    def test_chunks(self):
        random = np.random.default_rng(3)
        kv = {(i, role): random.normal(size=(self.TOKENS, 2, 16)).astype(np.float16) for i in range(2) for role in "KV"}
        ids = random.integers(0, 1000, self.TOKENS)
        due = self.both(self.open(kv, ids), ids, kv)
        self.assertTrue(all(np.array_equal(a, kv[key][:512]) for key, a in due.items()))
        self.both(self.open(kv, ids, recipe="kivi4"), ids, kv)
        self.assertEqual(self.ways(), (4, 0))

    def test_chunks_with_a_profile(self):
        """A chunk names its profile, which the device gets from the namespace's path."""
        with kvc.open(SAMPLES / "prompt.safetensors.kvc") as f:
            self.store = kvc.Store(f"dir:{self.path('store')}", local_timeout=10)
            self.addCleanup(self.store.close)
            namespace, ids = self.store.namespace(f, chunk=256, recipe="small", profile=PROFILE), f.tokens
            namespace.put(f)
            due = {key: np.zeros(a.shape, np.uint16) for key, a in f.arrays().items()}
        mine = {key: Memory(np.zeros_like(a)) for key, a in due.items()}
        with namespace.find(ids) as hit:
            self.assertEqual(hit.load(due, dtype="bf16"), 512)
            self.assertEqual((hit.load(mine, dtype="bf16"), hit.decoded), (512, "cuda:0"))
        self.assertTrue(all(np.array_equal(bits(mine[key].array), bits(a)) for key, a in due.items()))

    def test_damage(self):
        """A damaged chunk is not given to the device."""
        random = np.random.default_rng(3)
        kv = {(0, role): random.normal(size=(self.TOKENS, 2, 16)).astype(np.float16) for role in "KV"}
        ids = random.integers(0, 1000, self.TOKENS)
        namespace = self.open(kv, ids)
        self.damage(*self.objects(".kv"))
        mine = {key: Memory(np.zeros((512, *a.shape[1:]), a.dtype)) for key, a in kv.items()}
        self.assertEqual(namespace.find(ids).load(mine), 0)
        self.assertGreater(self.store.stats["bad_objects"], 0)


@needs_store
@unittest.skipIf(NO_FAKE, NO_FAKE)
@unittest.skipIf(test_hf.MISSING, test_hf.MISSING)
class TestTransformers(DeviceCase):
    """A model whose tensors are a device's, as far as kvc can tell."""

    def setUp(self):
        super().setUp()
        self.enterContext_(mock.patch.object(devices, "place", HostPlace()))
        self.store = kvc.Store(f"dir:{self.path('store')}", local_timeout=10)
        self.addCleanup(self.store.close)

    def goes_on(self, model, prefix, ids, loaded, way):
        out = test_hf.generate(model, ids, prefix.get(ids))
        self.assertTrue(torch.equal(out.sequences, test_hf.generate(model, ids).sequences))
        self.assertEqual(prefix.loaded, loaded)
        self.assertTrue(prefix.decoded.startswith(way) if way else not prefix.decoded, prefix.decoded)
        return out

    def test_load(self):
        model, ids = test_hf.llama(), test_hf.prompt(90)
        due = test_hf.cache_of(model, ids)
        kvc.save(due, self.path("a.kvc"), tokens=ids, model=model)
        for library, ways in ((FAKE, (1, 0)), ("/nowhere", (1, 1))):
            self.use(library)
            mine = kvc.load(self.path("a.kvc"), device="cuda")
            self.assertEqual(self.ways(), ways)
            for a, b in zip(mine.layers, due.layers):
                self.assertTrue(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values))

    def test_prefix(self):
        for make in (test_hf.llama, test_hf.gemma):
            model, ids = make(), test_hf.prompt(600)
            prefix = kvc.Prefix(self.store, model, chunk=256)
            out = self.goes_on(model, prefix, ids, 0, "")
            self.assertEqual(prefix.put(out.past_key_values, out.sequences, wait=True), 512)
            self.goes_on(model, prefix, ids, 512, "cuda:0")
            self.use("/nowhere")
            self.goes_on(model, prefix, ids, 512, "cpu: /nowhere cannot be loaded")
            self.use(FAKE)

    def test_whole(self):
        """Caches with windows are stored as a whole, which the CPU decodes."""
        model, ids = test_hf.gemma(), test_hf.prompt(600)
        prefix = kvc.Prefix(self.store, model, chunk=256, keep_windows=False)
        out = self.goes_on(model, prefix, ids, 0, "")
        n = prefix.put(out.past_key_values, out.sequences, wait=True)
        longer = torch.cat([out.sequences, test_hf.prompt(50, seed=3)], dim=1)
        self.goes_on(model, prefix, longer, n, "cpu: devices decode a .kvc")

    def test_devices(self):
        model = test_hf.llama()
        split = test_hf.cache_of(model, test_hf.prompt(5))
        split.layers[1].keys = split.layers[1].keys.to("meta")
        self.fails(kvc.Code.UNSUPPORTED, "cpu, meta", kvc.Prefix._only_device, split)
        self.assertEqual(kvc.Prefix._only_device(test_hf.cache_of(model, test_hf.prompt(5))), 0)


if __name__ == "__main__":
    unittest.main()
