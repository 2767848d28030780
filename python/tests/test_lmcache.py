"""The adapter of LMCache, called as LMCache calls it, with buffers of its own and without LMCache."""

import collections
import importlib
import json
import logging
import os
import re
import select
import socket
import sys
import threading
import unittest
from unittest import mock

import numpy as np
from common import ROOT, Case, needs_store

import kvc
from kvc import _lib
from kvc.connectors import base, lmcache

random = np.random.default_rng(5)
LAYERS, HEADS, DIM, TOKENS = 3, 2, 64, 128
GEOMETRY = dict(layers=LAYERS, heads=HEADS, dim=DIM, dtype="float16")
SIZE = 2 * LAYERS * TOKENS * HEADS * DIM * 2


def chunk(tokens=TOKENS, layers=LAYERS):
    return bytearray(random.normal(size=(2, layers, tokens, HEADS * DIM)).astype(np.float16).tobytes())


def key(i, model="org/model", rank=0x01010000, group=0, salt=""):
    return f"{model}@{rank:08x}@{group:x}@{i:064x}" + (f"@{salt}" if salt else "")


CHUNKS = {key(i): chunk() for i in range(5)}
CHUNKS.update({key(1, model="other"): chunk(), key(1, rank=0x02010001): chunk(), key(1, salt="tenant"): chunk(),
               key(1, salt="s" * 128, model="m" * 200): chunk(), key(7): chunk(40)})  # the last is a shorter one
KEYS = list(CHUNKS)


class Caller:
    """Calls a client and waits for its answers, as LMCache's adapter does."""

    def __init__(self, client):
        self.client = client
        self.answers = {}
        self.poll = select.poll()
        self.poll.register(client.event_fd(), select.POLLIN)

    def __call__(self, method, *arguments):
        number = getattr(self.client, method)(*arguments)
        while number not in self.answers:
            assert self.poll.poll(30_000), f"{method} did not answer"
            for done, *answer in self.client.drain_completions():
                self.answers[done] = answer
        return self.answers.pop(number)

    def put(self, chunks):
        return self("submit_batch_set", list(chunks), [memoryview(b) for b in chunks.values()])

    def get(self, keys, size=None):
        """Returns the chunks that were loaded, by key."""
        buffers = [bytearray(size or len(CHUNKS.get(k, bytes(SIZE)))) for k in keys]
        ok, error, each = self("submit_batch_get", keys, [memoryview(b) for b in buffers])
        assert ok and len(each) == len(keys)
        return {k: b for k, b, loaded in zip(keys, buffers, each) if loaded}

    def exists(self, keys):
        return self("submit_batch_exists", keys)[2]


@needs_store
@unittest.skipIf(not hasattr(os, "eventfd"), "LMCache's adapter needs Python 3.10, which has os.eventfd")
class TestLmcache(Case):
    def setUp(self):
        super().setUp()
        logging.getLogger("kvc").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("kvc").setLevel, logging.NOTSET)

    def client(self, levels=None, **options):
        client = lmcache.KvcClient(levels or f"dir:{self.path('store')}", **{**GEOMETRY, "deadline": 10, **options})
        self.addCleanup(client.close)
        return Caller(client)

    def test_round_trip(self):
        call = self.client()
        self.assertEqual(call.exists(KEYS), [False] * len(KEYS))
        self.assertEqual(call.get(KEYS), {})
        self.assertEqual(call.put(CHUNKS), [True, "", None])
        self.assertEqual(call.exists([*KEYS, key(99)]), [True] * len(KEYS) + [False])
        self.assertEqual(call.get([*KEYS, key(99)]), CHUNKS)
        call.client.close()
        again = self.client()  # another process would see the same
        self.assertEqual(again.get(KEYS), CHUNKS)
        stats = again.client.stats()
        self.assertEqual((stats["loaded_keys"], stats["loaded_bytes"]), (len(KEYS), sum(map(len, CHUNKS.values()))))
        self.assertEqual((stats["not_loaded"], stats["store"]["bad_objects"]), (0, 0))
        self.assertEqual(again.put({}), [True, "", None])
        self.assertEqual(again.get([]), {})

    def test_scales(self):
        """Chunks of 8 bits are found by clients of the same scales, or of the same source of unknown ones, and by no others."""
        data = {key(1): bytearray(random.bytes(SIZE // 2))}
        many = ({"scale": 0.5}, {"scale": 0.25}, {"scale": {"k": 0.5, "v": [0.5, 0.5, 1]}}, {"scale_source": "a"}, {"scale_source": "b"}, {})
        for i, options in enumerate(many):
            call = self.client(dtype="fp8_e4m3", **options)
            self.assertEqual(call.exists(list(data)), [False], options)
            self.assertEqual(call.put(data)[0], True)
            self.assertEqual(call.get(list(data), SIZE // 2), data)
            again = self.client(dtype="fp8_e4m3", **options)
            self.assertEqual(again.exists(list(data)), [bool(options)])  # without options a client has a namespace of its own
            self.assertEqual(len(self.objects(".named")), i + 1)
        self.fails(kvc.Code.USAGE, "scale", self.client, dtype="fp8_e4m3", scale=-1)
        with kvc.open(self.objects(".named")[0]) as f:
            self.assertTrue(any(name in f.meta for name in ("scale.k", "scale.source")))

    def test_types_and_layouts(self):
        for dtype, size in (("bfloat16", 2), ("float32", 4), ("uint8", 1), ("float8_e4m3fn", 1)):
            for layout in ("2ltd", "fused"):
                data = {key(1): bytearray(random.bytes(SIZE // 2 * size))}  # NaN and all other bits
                call = self.client(dtype=dtype, layout=layout)
                self.assertEqual(call.put(data)[0], True)
                self.assertEqual(call.get(list(data), len(data[key(1)])), data)
                call("submit_batch_delete", list(data))

    def test_latents(self):
        """Latents come back bit by bit, as latents. K and V of as many bytes are another namespace."""
        mla = {"heads": None, "dim": 576, "layout": "mla"}
        size = LAYERS * TOKENS * 576 * 2
        for dtype, bytes_of in (("float16", 2), ("bfloat16", 2), ("fp8_e4m3", 1)):
            data = {key(i): bytearray(random.bytes(size // 2 * bytes_of)) for i in range(3)}  # NaN and all other bits
            call = self.client(dtype=dtype, scale=1, **mla)
            self.assertEqual(call.put(data)[0], True)
            again = self.client(dtype=dtype, scale=1, **{**mla, "heads": 1})
            self.assertEqual(again.get(list(data), size // 2 * bytes_of), data)
            halves = self.client(dtype=dtype, scale=1, heads=1, dim=288)
            self.assertEqual(halves.exists(list(data)), [False] * 3)
            self.assertEqual(again.put({key(9): bytearray(size // 2 * bytes_of - 2)})[0], False)
            again("submit_batch_delete", list(data)[1:])
        with kvc.open(self.objects(".named")[0]) as f:
            self.assertEqual([(t.role, t.heads, t.dim) for t in f.tensors], [("latent", 1, 576)] * LAYERS)
        rows = np.frombuffer(data[key(0)], np.uint8).reshape(LAYERS, TOKENS, 1, 576)
        views = lmcache._Chunk({"layers": LAYERS, "dtype": "fp8_e4m3", **mla}).views(data[key(0)])
        self.assertTrue(all(np.array_equal(views[i, "latent"], rows[i]) for i in range(LAYERS)))
        self.fails(kvc.Code.USAGE, "a latent has 1 head, and heads is 2", self.client, layout="mla")
        self.fails(kvc.Code.USAGE, "heads must be a whole number above 0, not None", self.client, heads=None)

    def test_views(self):
        """K and V are labelled as they lie in LMCache's chunk."""
        x = random.normal(size=(2, LAYERS, TOKENS, HEADS, DIM)).astype(np.float16)
        views = base.Geometry(**GEOMETRY).views(x.tobytes(), "clthd")
        self.assertTrue(all(np.array_equal(views[i, role].view(np.float16), x[c, i]) for i in range(LAYERS) for c, role in enumerate("KV")))

    def test_delete(self):
        call = self.client()
        call.put(CHUNKS)
        self.assertEqual(call("submit_batch_delete", KEYS[:2]), [True, "", [True, True]])
        self.assertEqual(call.exists(KEYS[:3]), [False, False, True])
        self.assertEqual(call.put({KEYS[0]: CHUNKS[KEYS[0]]})[0], True)
        self.assertEqual(call.get(KEYS[:1]), {KEYS[0]: CHUNKS[KEYS[0]]})

    def test_damage(self):
        """A flipped byte is a chunk that is not there, and storing it again puts it right."""
        call = self.client()
        one = {KEYS[0]: CHUNKS[KEYS[0]]}
        call.put(one)
        [path] = self.objects(".named")
        self.damage(path)
        self.assertEqual(call.get(KEYS[:1]), {})
        stats = call.client.stats()
        self.assertEqual((stats["not_loaded"], stats["store"]["bad_objects"]), (1, 1))
        self.assertEqual(call.exists(KEYS[:1]), [False])  # else LMCache would ask for it again and again
        self.assertEqual(call.put(one)[0], True)
        self.assertEqual(call.get(KEYS[:1]), one)

    def test_foreign_geometry(self):
        call = self.client()
        call.put(CHUNKS)
        other = self.client(heads=1, dim=2 * DIM)  # the same bytes
        self.assertEqual(other.exists(KEYS), [False] * len(KEYS))
        self.assertEqual(other.get(KEYS), {})
        for options in ({"dtype": "bfloat16"}, {"pairing": "interleaved"}, {"weights": self.weights()}):
            self.assertEqual(self.client(**options).get(KEYS), {})

    def test_wrong_sizes(self):
        call = self.client(chunk=TOKENS)
        self.assertEqual(call.put({key(1): chunk()[:-2], key(2): chunk()})[0], False)
        self.assertEqual(call.put({key(3): chunk(40)})[0], False)  # whole tokens, but not `chunk`
        self.assertEqual(call.exists([key(1), key(2), key(3)]), [False, True, False])
        self.assertEqual(call.get([key(2)], SIZE - 2), {})
        self.assertEqual(call.get([key(2)], SIZE * 2), {})
        self.assertEqual(call.client.stats()["foreign"], 4)
        self.assertEqual(self.client().get([key(2)], SIZE * 2), {})  # whole tokens, but more than the chunk has

    def test_groups(self):
        data = {key(1, group=10): chunk(layers=1)}
        call = self.client()
        self.assertEqual(call.put(data)[0], False)
        self.assertEqual(call.exists([*data, "no key"]), [False, False])
        self.assertGreater(call.client.stats()["foreign"], 0)
        call = self.client(groups={"a": {"layers": 1}, "b": {"layers": 2, "heads": None, "dim": 96, "layout": "mla"}})
        self.assertEqual(call.put(data)[0], True)
        self.assertEqual(call.get(list(data), SIZE // LAYERS), data)
        data = {key(1, group=11): bytearray(random.bytes(2 * TOKENS * 96 * 2))}
        self.assertEqual(call.put(data)[0], True)
        self.assertEqual(call.get(list(data), 2 * TOKENS * 96 * 2), data)

    def test_full_store(self):
        """What does not fit is not stored, and what is there stays right."""
        call = self.client(f"dir:{self.path('store')}?max-size=300K")
        for k in KEYS:
            call.put({k: CHUNKS[k]})
        there = dict(zip(KEYS, call.exists(KEYS)))
        self.assertTrue(0 < sum(there.values()) < len(KEYS))
        self.assertEqual(call.get(KEYS), {k: CHUNKS[k] for k in KEYS if there[k]})

    def test_full_store_keeps_the_beginning(self):
        """Of a prompt whose chunks do not all fit, the first ones stay: the others are of no use without them."""
        call = self.client(f"dir:{self.path('store')}?max-size=300K", threads=1)
        data = {key(i): chunk() for i in range(8)}
        call.put(data)
        there = call.exists(list(data))
        self.assertTrue(0 < sum(there) < len(data))
        self.assertEqual(there, sorted(there, reverse=True))

    def test_broken_directory(self):
        call = self.client()
        os.rename(self.path("store/obj"), self.path("gone"))
        with open(self.path("store/obj"), "w"):
            pass  # no folder can be made there, not even by root
        ok, error, each = call.put(CHUNKS)
        self.assertEqual((ok, each), (False, None))
        self.assertEqual(call.get(KEYS), {})
        stats = call.client.stats()
        self.assertEqual((stats["stored_keys"], stats["not_stored"] + stats["errors"]), (0, len(KEYS)))

    @unittest.skipIf(not (_lib.store_folder() / "kvc_store_redis.so").exists(), "there is no kvc_store_redis.so beside libkvc_store")
    def test_store_down(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]  # closed again: nobody listens
        call = self.client(f"dir:{self.path('store')},redis://127.0.0.1:{port}", deadline=1)
        call.put(CHUNKS)
        self.assertEqual(call.exists([*KEYS, key(99)]), [True] * len(KEYS) + [False])
        self.assertEqual(call.get(KEYS), CHUNKS)
        call = self.client(f"redis://127.0.0.1:{port}", deadline=1)
        self.assertEqual(call.put(CHUNKS)[0], False)
        self.assertEqual(call.exists(KEYS), [False] * len(KEYS))
        self.assertEqual(call.get(KEYS), {})

    def test_threads(self):
        """Several threads submit; each number is answered once."""
        call = self.client(threads=3)
        numbers, lock = [], threading.Lock()

        def submit():
            for k, buffer in CHUNKS.items():
                number = call.client.submit_batch_set([k], [memoryview(buffer)])
                with lock:
                    numbers.append(number)

        threads = [threading.Thread(target=submit) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        done = []
        while len(done) < len(numbers):
            self.assertTrue(call.poll.poll(30_000))
            done += call.client.drain_completions()
        self.assertEqual(sorted(d[0] for d in done), sorted(numbers))
        self.assertTrue(all(d[1] for d in done), done)
        self.assertEqual(call.get(KEYS), CHUNKS)

    def test_events(self):
        call = self.client()
        self.assertEqual(call.poll.poll(0), [])
        call.client.submit_batch_exists(KEYS)
        self.assertEqual(len(call.poll.poll(30_000)), 1)
        self.assertEqual(len(call.client.drain_completions()), 1)
        self.assertEqual((call.poll.poll(0), call.client.drain_completions()), ([], []))

    def test_close(self):
        """Every call gets its answer, also those that close() finds waiting, and nothing touches a buffer afterwards."""
        call = self.client(threads=1)
        many = [call.client.submit_batch_set([key(i)], [memoryview(chunk())]) for i in range(40)]
        call.client.close()
        call.client.close()
        answers = {number: ok for number, ok, _, _ in call.client.drain_completions()}
        self.assertEqual(sorted(answers), many)
        stats = call.client.stats()
        self.assertEqual(stats["stored_keys"] + stats["dropped"], 40)
        self.assertEqual(stats["stored_keys"], sum(answers.values()))
        number = call.client.submit_batch_get(KEYS[:1], [memoryview(chunk())])
        self.assertEqual(call.client.drain_completions()[0][::3], (number, [False]))

    def test_full_queue(self):
        call = self.client(threads=1, waiting=2)
        numbers = [call.client.submit_batch_set([key(i)], [memoryview(chunk())]) for i in range(30)]
        done = {}
        while len(done) < len(numbers):
            self.assertTrue(call.poll.poll(30_000))
            done.update({d[0]: d[1] for d in call.client.drain_completions()})
        self.assertEqual(call.client.stats()["dropped"], list(done.values()).count(False))

    def test_sizes(self):
        """As a plugin of its own, the adapter tells LMCache what chunks take in the store: stored, stored again, deleted."""
        fakes = str(ROOT / "python/tests/fakes")
        with mock.patch.dict(sys.modules), mock.patch.object(sys, "path", [fakes, *sys.path]):
            module = importlib.import_module("kvc.connectors.lmcache_adapter")
        adapter_class = module.KvcAdapter
        Key = collections.namedtuple("Key", "model chunk")
        keys = [Key("m", bytes([i]) * 32) for i in range(3)]
        chunks = [chunk() for _ in keys]
        params = {"levels": f"dir:{self.path('store')}", "max_capacity_gb": 2, "deadline": 10, **GEOMETRY}
        adapter = adapter_class(params, l1_memory_desc=None)
        self.addCleanup(adapter.close)
        self.assertEqual((adapter.capacity, params["max_capacity_gb"]), (2, 2))
        self.assertEqual([tag.value for tag in adapter.tags], ["storage", "remote"])
        with mock.patch.object(module, "api", object()):  # as before LMCache 0.5.7, which has no tags
            self.assertEqual(module._tags(), {})
        self.assertTrue(adapter.store(keys, chunks))
        sizes = sum(map(os.path.getsize, self.objects(".named")))
        self.assertTrue(0 < sizes < 3 * SIZE)
        self.assertEqual((adapter.used, sum(adapter.told[0])), (sizes, sizes))
        self.assertTrue(adapter.store(keys[:2], chunks[:2]))  # there already
        self.assertEqual((adapter.used, adapter.told[1], adapter.client.stored), (sizes, [0, 0], {}))
        adapter.delete(keys[1:])
        self.assertEqual(adapter.used, sum(map(os.path.getsize, self.objects(".named"))))
        self.assertTrue(adapter.store(keys[1:], chunks[1:]))
        self.assertEqual(adapter.used, sizes)
        # of a batch that failed nobody asks for the bytes of the chunk that was stored
        self.assertFalse(adapter.store([keys[0], Key("m", b"x" * 32)], [chunks[0], b"xyz"]))
        self.assertEqual(len(adapter.client.stored), 1)
        other = adapter_class(params)  # what another process has stored
        self.addCleanup(other.close)
        self.assertTrue(other.store(keys, chunks))
        self.assertEqual(other.used, sizes)
        with mock.patch.object(lmcache, "_SIZES", 1):
            adapter.delete(keys)
            self.assertTrue(adapter.store(keys, chunks))
        self.assertEqual(adapter.used, 2 * SIZE + adapter.told[-1][adapter.told[-1].index(min(adapter.told[-1]))])
        status = adapter.report_status()
        self.assertEqual((status["is_healthy"], status["type"], status["kvc"]["stored_keys"]), (True, "kvc", 11))

    def test_lossy(self):
        """A lossy recipe is a namespace of its own: who asks for exact chunks does not get its chunks."""
        lossy, exact = self.client(recipe="near-lossless"), self.client()
        one = {KEYS[0]: CHUNKS[KEYS[0]]}
        self.assertEqual(lossy.put(one)[0], True)
        found = np.frombuffer(lossy.get(KEYS[:1])[KEYS[0]], np.float16).astype(np.float32)
        was = np.frombuffer(one[KEYS[0]], np.float16).astype(np.float32)
        self.assertGreater(np.dot(found, was) / np.linalg.norm(found) / np.linalg.norm(was), 0.99)
        self.assertEqual(exact.exists(KEYS[:1]), [False])
        self.assertEqual(exact.get(KEYS[:1]), {})
        self.assertEqual(exact.put(one)[0], True)
        self.assertEqual(exact.get(KEYS[:1]), one)

    def test_log(self):
        """Trouble is logged once, and counted each time."""
        logging.getLogger("kvc").setLevel(logging.NOTSET)
        call = self.client()
        with self.assertLogs("kvc.connectors.lmcache") as log:
            for k in KEYS:
                call.get([k])
            call.client.close()
        self.assertEqual([r.levelname for r in log.records], ["WARNING", "INFO"])
        self.assertIn("computed again", log.output[0])
        self.assertIn(f"not_loaded {len(KEYS)}", log.output[1])

    def test_page(self):
        """The example of LMCACHE.md works, and its table or that of README.md has every option."""
        page = (ROOT / "python/LMCACHE.md").read_text()
        adapter, plugin = map(json.loads, re.findall(r"<!-- read by .*? -->\n```json\n(.*?)```", page, re.S))
        self.assertEqual(plugin["adapter_params"], {"max_capacity_gb": 50, **adapter["adapter_params"]})
        self.assertTrue((ROOT / "python" / (plugin["module_path"].replace(".", "/") + ".py")).exists())
        options = {**adapter["adapter_params"], "levels": f"dir:{self.path('page')}"}
        made = getattr(importlib.import_module(adapter["module_path"]), adapter["class_name"])(**options)
        made.close()
        self.explains("LMCACHE.md", lmcache.Options.names())

    def test_usage(self):
        self.fails(kvc.Code.USAGE, "the layout 'kv' is not known: 2ltd, fused, mla are", self.client, layout="kv")
        self.fails(kvc.Code.USAGE, "and no layer", self.client, groups={"1": {"layer": 2}})
        self.fails(kvc.Code.UNSUPPORTED, "int4", self.client, dtype="int4")
        self.fails(kvc.Code.USAGE, "heads", self.client, heads=0)
        self.fails(kvc.Code.USAGE, "nonsense", self.client, recipe="nonsense")
        self.fails(kvc.Code.IO, "nowhere", self.client, weights=self.path("nowhere"))
        self.fails(kvc.Code.IO, "cannot be made", self.client, "dir:/proc/nowhere")


if __name__ == "__main__":
    unittest.main()
