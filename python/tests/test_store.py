"""The prefix store in a directory, with numpy alone."""

import os
import subprocess
import sys
import unittest

import numpy as np
from common import ROOT, Case, needs_store

import kvc

random = np.random.default_rng(2)
FACTS = {"model.name": "a model", "rope.pairing": "halves"}
TOKENS = 700
KV = {(i, role): random.normal(size=(TOKENS, 2, 16)).astype(np.float16) for i in range(2) for role in "KV"}
IDS = random.integers(0, 1000, TOKENS)


@needs_store
class TestStore(Case):
    def setUp(self):
        super().setUp()
        self.store = kvc.Store(f"dir:{self.path('store')}", timeout=10, local_timeout=10)
        self.addCleanup(self.store.close)
        with kvc.open_arrays(KV, tokens=IDS, facts=FACTS) as f:
            self.namespace = self.store.namespace(f, chunk=256)

    def open_arrays(self, **options):
        return kvc.open_arrays(KV, tokens=IDS, facts=FACTS, **options)

    def put(self):
        with self.open_arrays() as f:
            self.assertTrue(self.namespace.put(f))

    def test_round_trip(self):
        self.assertEqual(self.namespace.find(IDS).tokens, 0)
        self.put()
        with self.namespace.find(IDS) as hit:
            self.assertEqual((hit.tokens, hit.chunks, hit.asked, hit.late, hit.tiers), (512, 2, 512, False, "dir 512"))
            into = {key: np.zeros((2, 512, 16), np.float16).transpose(1, 0, 2) for key in KV}
            self.assertEqual(hit.load(into), 512)
            self.assertTrue(all(np.array_equal(into[key], KV[key][:512]) for key in KV))
            self.assertEqual(hit.load({key: a[300:] for key, a in into.items()}, first=300), 512)
            file = hit.get()
        with file:
            self.assertEqual(file.tokens.tolist(), IDS[:512].tolist())
            self.assertTrue(np.array_equal(file.arrays()[1, "V"], KV[1, "V"][:512]))
        other = IDS.copy()
        other[400] += 1
        self.assertEqual(self.namespace.find(other).tokens, 256)
        stats = self.store.stats
        self.assertEqual((stats["put_objects"], stats["loaded_tokens"] > 0), (2, True))
        self.assertIn("kvc_store_lookups_total", self.store.prometheus())

    def test_names(self):
        names = [b"model@0@\x00\xff", b"other"]
        pages = {key: np.ascontiguousarray(a[:100].transpose(1, 2, 0)) for key, a in KV.items()}  # heads, channels, tokens
        with kvc.open_arrays(pages, layout="HDT", facts=FACTS) as f:
            self.assertTrue(self.namespace.put_name(names[0], f))
        self.assertEqual(self.namespace.find_names(names), [True, False])
        into = {key: np.zeros_like(a) for key, a in pages.items()}
        self.assertTrue(self.namespace.load_name(names[0], into, layout="HDT"))
        self.assertTrue(all(np.array_equal(into[key], pages[key]) for key in pages))
        self.assertFalse(self.namespace.load_name(names[1], into, layout="HDT"))
        with self.namespace.get_name(names[0]) as f:
            self.assertTrue(np.array_equal(f.arrays()[1, "V"], KV[1, "V"][:100]))
        self.assertIsNone(self.namespace.get_name(names[1]))
        self.fails(kvc.Code.USAGE, "1 to 256 bytes", self.namespace.find_names, [b""])
        tool = [ROOT / "kvc-store", "-s", f"dir:{self.path('store')}", "verify"]
        self.assertEqual(subprocess.run(tool, capture_output=True).returncode, 0)
        self.namespace.drop_names(names)
        self.assertEqual(self.namespace.find_names(names), [False, False])

    def test_learning(self):
        """With a recipe that takes a profile, caches are exact until the store has learnt it, and small then."""
        scale = np.logspace(0, -1.5, 16)
        texts = [{key: (random.normal(size=(1024, 2, 16)) * scale).astype(np.float16) for key in KV} for _ in range(10)]
        ids = [np.arange(1024) + 2000 * i for i in range(10)]
        into = {key: np.zeros((1024, 2, 16), np.float16) for key in KV}

        def put(namespace, i):
            with kvc.open_arrays(texts[i], tokens=ids[i], facts=FACTS) as f:
                self.assertTrue(namespace.put(f))

        def is_exact(namespace, i):
            with namespace.find(ids[i]) as hit:
                self.assertEqual((hit.tokens, hit.load(into)), (1024, 1024))
            self.assertTrue(np.allclose(into[0, "K"].astype(float), texts[i][0, "K"], atol=0.5))
            return np.array_equal(into[0, "K"], texts[i][0, "K"])

        with kvc.open_arrays(texts[0], facts=FACTS) as like:
            namespace = self.store.namespace(like, recipe="small", chunk=256)
            plain = self.store.namespace(like, recipe="small", chunk=256, learn=False)
        for i in range(3):
            put(namespace, i)
        self.assertTrue(self.store.flush(60) and is_exact(namespace, 0))
        for i in range(3, 10):
            put(namespace, i)
        self.assertTrue(self.store.flush(60))
        self.assertEqual([self.store.stats[c] for c in ("learnt_profiles", "refused_profiles")], [1, 0])
        self.assertFalse(any(is_exact(namespace, i) for i in range(10)))
        put(plain, 0)
        self.assertFalse(is_exact(plain, 0))
        self.assertEqual(self.store.stats["learnt_profiles"], 1)

    def test_background(self):
        f = self.open_arrays()
        self.assertTrue(self.namespace.put(f, wait=False))
        f.close()  # it is the store's now
        self.assertTrue(self.store.flush(10))
        self.assertTrue(f.closed)
        self.assertEqual(self.namespace.find(IDS).tokens, 512)
        with self.open_arrays() as f, f.select(0, 512) as part:
            self.fails(kvc.Code.USAGE, "wait=True", self.namespace.put, part, wait=False)

    def test_names_and_hints(self):
        self.put()
        with self.store.namespace(self.namespace.name[:16]) as again:
            self.assertEqual((again.name, again.chunk), (self.namespace.name, 256))
            self.assertTrue(again.facts.startswith("kvc namespace 1\n"))
        hit = self.namespace.find(IDS)
        for wrong in (1.5, "1", 2**63):
            self.assertRaises((TypeError, kvc.Error), hit.pin, wrong)
            self.assertRaises((TypeError, kvc.Error), hit.expect, wrong)
        for wrong in (float("inf"), float("nan"), -1):
            self.fails(kvc.Code.USAGE, "a time of", self.namespace.find, IDS, timeout=wrong)
        hit.pin(60)
        hit.unpin()
        hit.expect(30)
        hit.evict_soon()
        self.assertEqual(self.namespace.drop(), 3)
        self.assertEqual(self.namespace.find(IDS).tokens, 0)
        self.fails(kvc.Code.USAGE, "", self.store.namespace, "ffff")

    def test_drop_tokens(self):
        self.put()
        other = IDS.copy()
        other[300] += 1
        with kvc.open_arrays(KV, tokens=other, facts=FACTS) as f:
            self.namespace.put(f)
        self.assertEqual(self.namespace.drop_tokens(IDS[:256]), (0, 1))
        self.assertEqual(self.namespace.drop_tokens(IDS), (1, 1))
        self.assertEqual((self.namespace.find(IDS).tokens, self.namespace.find(other).tokens), (256, 512))
        self.assertEqual(self.namespace.drop_tokens(other), (2, 0))
        self.assertEqual(self.namespace.drop_tokens(other), (0, 0))

    def test_extras(self):
        image = [(3, 1, bytes(range(32)))]
        with self.open_arrays() as f:
            self.namespace.put(f, extras=image)
        self.assertEqual(self.namespace.find(IDS).tokens, 0)
        self.assertEqual(self.namespace.find(IDS, extras=image).tokens, 512)

    def test_whole(self):
        """A cache with a window is one object, for prompts that go on from its end."""
        facts = {**FACTS, "sliding.window": 5}
        for layer in range(2):
            sliding = {key: a[-5:] if key[0] == layer else a for key, a in KV.items()}
            with kvc.open_arrays(sliding, tokens=IDS, facts=facts) as f, self.store.namespace(f) as namespace:
                self.assertIsNone(namespace.get_whole(IDS))
                self.assertTrue(namespace.put(f))
                self.assertIsNone(namespace.get_whole(IDS[:-1]))
                with namespace.get_whole([*IDS, 7, 8, 9]) as found:
                    self.assertTrue(kvc.compare(f, found))
                with kvc.open_arrays(sliding, tokens=[*IDS, 7], facts=facts) as longer:  # the last token has no row yet
                    self.assertTrue(namespace.put(longer))
                self.assertIsNone(namespace.get_whole(IDS))
                self.assertEqual(len(namespace.get_whole([*IDS, 7, 8]).tokens), TOKENS + 1)
                self.fails(kvc.Code.USAGE, "names 699", kvc.open_arrays, sliding, tokens=IDS[:-1], facts=facts)
                with kvc.open_arrays(sliding, facts=facts) as unknown:
                    self.fails(kvc.Code.USAGE, "token ids", namespace.put, unknown)

    def test_damage(self):
        """A chunk with a flipped bit is a shorter prefix, and counted."""
        self.put()
        chunks = self.objects(".kv")
        self.assertEqual(len(chunks), 2)
        self.damage(*chunks)
        hit = self.namespace.find(IDS)
        self.assertEqual(hit.tokens, 512)
        self.assertEqual(hit.load({key: np.zeros((512, 2, 16), np.float16) for key in KV}), 0)
        self.assertIsNone(self.namespace.find(IDS).get())
        self.assertGreater(self.store.stats["bad_objects"], 0)

    def test_get_of_damage(self):
        """A chunk that fails when it is read as a file is a miss like others; only a wrong call raises."""
        self.put()
        hit = self.namespace.find(IDS)
        self.damage(*self.objects(".kv"))
        self.fails(kvc.Code.USAGE, "empty", hit.get, first=9, end=8)
        self.assertIsNone(hit.get())
        self.assertGreater(self.store.stats["bad_objects"], 0)

    def test_stored_bytes(self):
        """put_name() tells the bytes of its object, also where it was there already."""
        told = []
        with kvc.open_arrays(KV, facts=FACTS) as f:
            self.assertTrue(self.namespace.put_name(b"a", f, told=told) and self.namespace.put_name(b"a", f, told=told))
        [size] = map(os.path.getsize, self.objects(".named"))
        self.assertEqual(told, [size, size])

    def test_errors(self):
        self.fails(kvc.Code.IO, "cannot be made", kvc.Store, "dir:/proc/nowhere")
        with kvc.open_arrays(KV, facts=FACTS) as f:
            self.fails(kvc.Code.USAGE, "token ids", self.namespace.put, f)
        sliding = {**KV, (1, "K"): KV[1, "K"][-5:], (1, "V"): KV[1, "V"][-5:]}
        self.put()
        hit = self.namespace.find(IDS)
        self.fails(kvc.Code.NOT_SLICEABLE, "last tokens", hit.load, sliding)
        self.store.close()
        self.assertTrue(hit.closed and self.namespace.closed)
        self.fails(kvc.Code.USAGE, "closed", self.namespace.find, IDS)

    def test_end_of_a_program(self):
        """What was put in the background is stored by a program that closes nothing, and a forked process does not hang."""
        code = f"""
import os, sys, kvc, numpy as np
kv = {{(0, role): np.ones((600, 2, 16), np.float32) for role in "KV"}}
store = kvc.Store("dir:{self.path('other')}")
f = kvc.open_arrays(kv, tokens=range(600), facts={{"model.name": "m"}})
namespace = store.namespace(f, chunk=256)
namespace.put(f, wait=False)
if os.fork() == 0:
    sys.exit(0)
os.wait()
"""
        where = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env=where)
        with kvc.Store(f"dir:{self.path('other')}", local_timeout=10) as store:
            with kvc.open_arrays({(0, r): np.ones((1, 2, 16), np.float32) for r in "KV"}, layout="THD", facts={"model.name": "m"}) as f:
                self.assertEqual(store.namespace(f, chunk=256).find(range(600)).tokens, 512)


if __name__ == "__main__":
    unittest.main()
