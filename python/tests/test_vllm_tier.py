"""The secondary tier of vLLM, with stand-ins for vLLM's classes and numpy memory. tests/connectors/vllm_tier.py has the real engine."""

import importlib
import os
import shutil
import sys
import time
import unittest
from types import SimpleNamespace as Fake
from unittest import mock

import numpy as np
from common import Case, needs_store

import kvc

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "fakes"))
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium  # noqa: E402
from vllm.v1.kv_offload.tiering.base import TransferJob  # noqa: E402

from kvc.connectors import vllm_pages  # noqa: E402
from kvc.connectors.base import Geometry  # noqa: E402
from kvc.connectors.vllm_tier import KvcTier, Options  # noqa: E402

LAYERS, HEADS, DIM, PAGE = 3, 2, 16, 32


class Request:
    """vLLM's ReqContext: it knows at which token each chunk ends."""

    def __init__(self, name, ends=None):
        self.req_id, self._ends = name, ends or {}

    def get_offload_key_position(self, key):
        return self._ends.get(key)


REQUEST = Request("r")


def key(i, group=0):
    return bytes([i]) * 32 + group.to_bytes(4, "big")


def spec(*, groups=1, blocks=1, workers=1, canonical=False, model="a/model", dtype="bfloat16", layout="LBNHC"):
    """What vLLM tells a tier. A group has the layers i, i + groups, i + 2 * groups."""
    block = PAGE * Geometry(LAYERS, HEADS, DIM, dtype).token_bytes
    names = [tuple(f"model.layers.{i * groups + g}.self_attn.attn" for i in range(LAYERS)) for g in range(groups)]
    config = Fake(groups=[Fake(tokens_per_block=PAGE, layer_names=n, group_id=g) for g, n in enumerate(names)],
                  worker_kv_bytes_per_block=block, model=Fake(name=model, dtype=dtype), cache=Fake(blocks_per_chunk=blocks, tokens_per_hash=PAGE),
                  parallel=Fake(world_size=workers), canonical_layout=canonical, replicated_layout=False, kv_cache_layout=layout)
    return Fake(config=config, cpu_page_size_per_worker=block * blocks)


def memory(s, chunks=8, seed=None):
    """Host memory of a spec, with 64 bytes after each chunk that are not the tier's."""
    size = s.cpu_page_size_per_worker * s.config.parallel.world_size + 64
    if seed is None:
        return np.zeros((chunks, size), np.uint8)
    values = np.random.default_rng(seed).normal(size=(chunks, size // 2)).astype(np.float32)
    return (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@needs_store
class TestTier(Case):
    def tier(self, s, rows, store=None, **options):
        tier = KvcTier(s, memoryview(rows), "KvcTier", **{"store": store or f"dir:{self.path('store')}?min-free=0", "dim": DIM, "threads": 2,
                                                         "load_deadline": 30, "deadline": 30, **options})
        self.addCleanup(tier.shutdown)
        return tier

    def run_job(self, tier, keys, chunks, store):
        job = TransferJob(7, keys, np.array(chunks), not store, REQUEST)
        (tier.submit_store if store else tier.submit_load)(job)
        tier.drain_jobs()
        [result] = tier.get_finished_jobs()
        self.assertEqual(result.job_id, 7)
        return result

    def lookups(self, tier, keys, request=REQUEST):
        found = [tier.lookup(k, request) for k in keys]
        tier.on_schedule_end(None)
        return found, [tier.lookup(k, request) for k in keys]

    def there_and_back(self, s, keys, **options):
        """Stores chunks 0, 1, ... and loads them into other places of a new tier's memory."""
        rows, n = memory(s, seed=1), len(keys)
        self.assertTrue(self.run_job(self.tier(s, rows, **options), keys, range(n), True).success)
        into = memory(s)
        tier = self.tier(s, into, **options)
        self.assertEqual(self.lookups(tier, keys), ([LookupResult.RETRY] * n, [LookupResult.HIT] * n))
        result = self.run_job(tier, keys, range(7, 7 - n, -1), False)
        self.assertTrue(result.success)
        self.assertIsNone(result.successful_keys)
        self.assertEqual(result.transfer_bytes, n * (into.shape[1] - 64))
        self.assertTrue(np.array_equal(into[7:7 - n:-1, :-64], rows[:n, :-64]))
        self.assertFalse(into[:, -64:].any() or into[:8 - n].any())

    def test_layouts(self):
        for i, layout in enumerate(vllm_pages.LAYOUTS):
            for blocks in (1, 4):
                with self.subTest(layout=layout, blocks=blocks):
                    store = f"dir:{self.path(f'store-{i}-{blocks}')}?min-free=0"
                    self.there_and_back(spec(blocks=blocks), [key(1), key(2), key(3)], layout=layout, store=store)
        self.there_and_back(spec(layout="LBHNC", dtype="float32", model="another"), [key(1)])

    def test_workers(self):
        """Without the canonical layout each worker's heads are an object; with it the heads of all are one."""
        store = f"dir:{self.path('store')}?min-free=0&index=no"
        self.there_and_back(spec(workers=2), [key(1), key(2)], store=store)
        self.assertEqual(len(self.objects(".named")), 4)
        shutil.rmtree(self.path("store"))
        self.there_and_back(spec(workers=2, canonical=True), [key(1), key(2)], store=store)
        self.assertEqual(len(self.objects(".named")), 2)

    def test_a_part_that_is_missing(self):
        s = spec(workers=2)
        tier = self.tier(s, memory(s, seed=1), store=f"dir:{self.path('store')}?min-free=0&index=no")
        self.run_job(tier, [key(1)], [0], True)
        os.unlink(self.objects(".named")[0])
        self.assertEqual(self.lookups(tier, [key(1)])[1], [LookupResult.MISS])
        self.assertFalse(self.run_job(tier, [key(1)], [1], False).success)
        self.assertTrue(self.run_job(tier, [key(1)], [0], True).success)  # it is put again
        self.assertTrue(self.run_job(tier, [key(1)], [1], False).success)

    def test_groups(self):
        self.there_and_back(spec(groups=2, blocks=2), [key(1, 0), key(1, 1), key(2, 0)])
        with kvc.open(self.objects(".named")[0]) as f:
            self.assertIn({t.layer for t in f.tensors}, ({0, 2, 4}, {1, 3, 5}))
            self.assertEqual(f.meta["model.name"], "a/model")

    def test_positions(self):
        """A chunk has the positions that vLLM tells, and is loaded without them."""
        s = spec(blocks=2)
        tier = self.tier(s, memory(s, seed=1))
        tier.submit_store(TransferJob(1, [key(1)], np.array([0]), False, Request("x", {key(1): 640})))
        tier.drain_jobs()
        self.assertTrue(next(iter(tier.get_finished_jobs())).success)
        with kvc.open(self.objects(".named")[0]) as f:
            self.assertEqual(f.position(0, 0), 640 - 2 * PAGE)
        self.assertTrue(self.run_job(tier, [key(1)], [3], False).success)

    def test_damage(self):
        """The other chunks of the job are kept, the bad one is missing from then on, and storing it again mends it."""
        s, keys = spec(), [key(1), key(2), key(3)]
        rows = memory(s, seed=2)
        tier = self.tier(s, rows)
        self.run_job(tier, keys, [0, 1, 2], True)
        self.damage(self.objects(".named")[1])
        self.assertEqual(self.lookups(tier, keys)[1], [LookupResult.HIT] * 3)
        result = self.run_job(tier, keys, [5, 6, 7], False)
        self.assertFalse(result.success)
        self.assertEqual(len(result.successful_keys), 2)
        [bad] = set(keys) - set(result.successful_keys)
        for request in (REQUEST, Request("another")):  # or vLLM would load it again and again
            self.assertEqual(self.lookups(tier, [bad], request)[1], [LookupResult.MISS])
        self.assertEqual(tier.counters.read()["not_loaded"], 1)
        self.assertEqual(tier._kvc.store.stats["bad_objects"], 1)
        tier.on_request_finished(REQUEST)
        tier.on_request_finished(Request("another"))
        self.assertTrue(self.run_job(tier, [bad], [keys.index(bad)], True).success)
        self.assertEqual(self.lookups(tier, [bad])[1], [LookupResult.HIT])
        self.assertTrue(self.run_job(tier, [bad], [7], False).success)
        self.assertTrue(np.array_equal(rows[7, :-64], rows[keys.index(bad), :-64]))

    def test_gone_between(self):
        s = spec()
        tier = self.tier(s, memory(s, seed=1))
        self.run_job(tier, [key(1)], [0], True)
        self.assertEqual(self.lookups(tier, [key(1)])[1], [LookupResult.HIT])
        os.unlink(self.objects(".named")[0])
        result = self.run_job(tier, [key(1)], [1], False)
        self.assertEqual((result.success, result.successful_keys), (False, None))
        self.assertEqual(self.lookups(tier, [key(1)])[1], [LookupResult.MISS])

    def test_foreign(self):
        """Chunks of another model, type, size, layout of workers or recipe are not found under the same hash."""
        s = spec()
        self.run_job(self.tier(s, memory(s, seed=1)), [key(1)], [0], True)
        for other, options in ((spec(model="b"), {}), (spec(dtype="float16"), {}), (spec(blocks=2), {}), (spec(workers=2), {}),
                               (spec(), {"recipe": "kivi4"}), (spec(), {"heads": HEADS // 2, "dim": 2 * DIM})):
            self.assertEqual(self.lookups(self.tier(other, memory(other), **options), [key(1)])[1], [LookupResult.MISS])
        self.assertEqual(self.lookups(self.tier(s, memory(s)), [key(1), key(2)])[1], [LookupResult.HIT, LookupResult.MISS])

    def test_lossy(self):
        s = spec(dtype="float16", blocks=4)
        rows = memory(s)
        rows[:4] = np.random.default_rng(1).normal(size=(4, rows.shape[1] // 2)).astype(np.float16).view(np.uint8)
        tier = self.tier(s, rows, recipe="kivi4")
        self.assertTrue(self.run_job(tier, [key(1)], [0], True).success)
        self.assertTrue(self.run_job(tier, [key(1)], [5], False).success)
        a, b = (rows[i, :-64].view(np.float16).astype(np.float32) for i in (0, 5))
        self.assertFalse(np.array_equal(a, b))
        self.assertLess(np.abs(a - b).max(), 0.5)

    def engine(self, k, v, **cache):
        """Has vLLM tell its layers, whose scales these are: numbers, or one for each layer."""
        def scales(values):
            return values if isinstance(values, list) else [values] * LAYERS

        layers = {f"model.layers.{i}.self_attn.attn": Fake(_k_scale_float=a, _v_scale=np.array(b, np.float32))
                  for i, (a, b) in enumerate(zip(scales(k), scales(v)))}
        config = Fake(cache_config=Fake(cache_dtype="auto", calculate_kv_scales=False), compilation_config=Fake(static_forward_context=layers))
        vars(config.cache_config).update(cache)
        patched = mock.patch("vllm.config.get_current_vllm_config_or_none", lambda: config)
        patched.start()
        self.addCleanup(patched.stop)
        return patched

    def test_identity(self):
        """Engines of one model name share nothing if vLLM quantises the weights, takes another revision, or another RoPE by its context."""
        def tier(**model):
            told = {"quantization": None, "revision": None, "max_model_len": 4096, "get_head_size": lambda: DIM,
                    "hf_text_config": Fake(rope_parameters={"rope_type": "default"}), **model}
            config = Fake(cache_config=Fake(cache_dtype="auto"), load_config=Fake(load_format=told.pop("load_format", "auto")),
                          model_config=Fake(**told))
            with mock.patch("vllm.config.get_current_vllm_config_or_none", lambda: config):
                return self.tier(s, memory(s))._caches[0].namespace.name

        s, long = spec(), Fake(rope_parameters={"rope_type": "longrope"})
        names = [tier(), tier(quantization="fp8"), tier(revision="v2"), tier(hf_text_config=long), tier(hf_text_config=long, max_model_len=9999)]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(self.tier(s, memory(s))._caches[0].namespace.name, names[0])  # as where the configuration is not known
        with self.assertRaisesRegex(kvc.Error, "dummy"):
            tier(load_format="dummy")

    def test_scales(self):
        """Chunks of 8 bits are shared by engines of the same scales: those of the options, or of vLLM's layers."""
        keys = [key(1)]
        for n, options in enumerate(({"scale": 0.5}, {"scale": {"k": [0.5, 0.25, 1], "v": 2}}, {"scale_source": "here"})):
            s = spec(dtype="fp8")
            self.assertEqual(self.lookups(self.tier(s, memory(s), **options), keys)[1], [LookupResult.MISS])
            self.there_and_back(s, keys, **options)
            self.assertEqual(len(self.objects(".named")), n + 1)
        s = spec(dtype="fp8")
        with self.assertLogs("vllm.kvc", "WARNING"):
            tier = self.tier(s, memory(s, seed=1))
        self.assertTrue(self.run_job(tier, keys, [0], True).success)
        self.assertEqual(self.lookups(self.tier(s, memory(s)), keys)[1], [LookupResult.MISS])  # a namespace of its own

        engine = self.engine([0.5, 0.25, 1], 2)
        tier = self.tier(s, memory(s))
        self.assertEqual({name: fact for name, fact in tier._caches[0].facts.items() if name.startswith("scale")},
                         {"scale.k": "0.5,0.25,1", "scale.v": "2"})
        self.assertEqual(self.lookups(tier, keys)[1], [LookupResult.HIT])  # as the options said
        engine.stop()
        engine = self.engine([0.5, 0.25, 2], [[1, 2], [3, 4], [5, 5]], cache_dtype="fp8_e4m3")
        tier = self.tier(spec(dtype="fp8"), memory(s))
        self.assertEqual((tier._caches[0].facts["scale.v"], tier._host.groups[0].geometry.dtype), ("1:2,3:4,5", "f8e4m3"))
        self.assertEqual(self.lookups(tier, keys)[1], [LookupResult.MISS])
        engine.stop()
        engine = self.engine(1, 1, calculate_kv_scales=True)  # they are not yet what they will be
        with self.assertLogs("vllm.kvc", "WARNING"):
            self.assertIn("scale.source", self.tier(s, memory(s))._caches[0].facts)
        engine.stop()
        engine = self.engine([1, None, 1], 1)
        with self.assertLogs("vllm.kvc", "WARNING"):
            self.assertIn("scale.source", self.tier(s, memory(s))._caches[0].facts)

    def test_a_type_that_the_cache_has(self):
        """vLLM may tell the model's type, where kv_cache_dtype is another: half the heads of twice the bytes would fit as well."""
        s = spec(dtype="fp8")
        s.config.model.dtype = "bfloat16"
        self.engine(1, 1, cache_dtype="fp8_e4m3")
        geometry = self.tier(s, memory(s))._host.groups[0].geometry
        self.assertEqual((geometry.dtype, geometry.heads), ("f8e4m3", HEADS))

    def test_nobody_keeps_it(self):
        """A level that is too small, one that is down, and a folder that is gone: the job ends, and it is counted."""
        s = spec()
        for store in (f"dir:{self.path('small')}?max-size=64&min-free=0", f"dir:{self.path('gone')}?min-free=0"):
            tier = self.tier(s, memory(s, seed=1), store=store)
            shutil.rmtree(self.path("gone"), ignore_errors=True)
            self.assertFalse(self.run_job(tier, [key(1), key(2)], [0, 1], True).success)
            self.assertEqual(tier.counters.read()["not_stored"], 2)
            self.assertFalse(self.run_job(tier, [key(1)], [0], False).success)
            self.assertEqual(self.lookups(tier, [key(1)])[1], [LookupResult.MISS])

    def test_queue(self):
        s = spec()
        tier = self.tier(s, memory(s, 64, seed=1), threads=1, waiting=2)
        for n in range(8):
            tier.submit_store(TransferJob(n, [key(n, 0), key(n + 100, 0)], np.array([n, n + 8]), False, REQUEST))
        tier.drain_jobs()
        done = {result.job_id: result for result in tier.get_finished_jobs()}
        self.assertEqual(sorted(done), list(range(8)))
        counts = tier.counters.read()
        self.assertGreater(counts["dropped"], 0)
        self.assertEqual(counts["dropped"] + counts["stored"], 16)
        self.assertEqual(len(self.objects(".named")), counts["stored"])
        self.assertEqual(self.run_job(tier, [], [], False).success, True)

    def test_shutdown(self):
        """What was submitted is stored, and vLLM can release its memory."""
        s = spec()
        rows = memory(s, seed=1)
        view = memoryview(rows)
        tier = KvcTier(s, view, "KvcTier", store=f"dir:{self.path('store')}?min-free=0", dim=DIM)
        tier.submit_store(TransferJob(1, [key(i) for i in range(8)], np.arange(8), False, REQUEST))
        tier.shutdown()
        self.assertEqual(len(self.objects(".named")), 8)
        tier.shutdown()  # vLLM may ask again
        self.assertTrue(next(iter(tier.get_finished_jobs())).success)
        view.release()

    def test_events(self):
        """vLLM publishes what was stored and where, if it publishes events at all: whole jobs, as of its own tiers, and each once."""
        s = spec()
        s.kv_events_config = Fake(enable_kv_cache_events=True)
        tier = self.tier(s, memory(s, seed=1), enable_kv_events=True, locality="REMOTE")
        self.assertEqual(tier.locality, Locality.REMOTE)
        self.assertEqual(list(tier.take_events()), [])
        self.run_job(tier, [key(1), key(2)], [0, 1], True)
        self.run_job(tier, [key(1)], [5], False)
        put = kvc.Namespace.put_name
        with mock.patch.object(kvc.Namespace, "put_name", lambda namespace, name, f, **_: b"03" * 32 not in name and put(namespace, name, f)):
            self.assertFalse(self.run_job(tier, [key(3), key(4)], [2, 3], True).success)
            self.run_job(tier, [key(3)], [2], True)
        self.run_job(tier, [], [], True)
        self.run_job(tier, [key(4)], [3], True)
        told = [(event.keys, event.medium, event.removed, event.locality) for event in tier.take_events()]
        self.assertEqual(told, [(keys, Medium.STORAGE, False, Locality.REMOTE) for keys in ([key(1), key(2)], [key(4)])])
        self.assertEqual(list(tier.take_events()), [])
        tier = self.tier(s, memory(s, seed=1), locality="LOCAL")
        self.run_job(tier, [key(1)], [0], True)
        self.assertEqual((tier.locality, list(tier.take_events())), (Locality.LOCAL, []))
        s.kv_events_config = Fake(enable_kv_cache_events=False)
        with self.assertLogs("vllm.kvc", "WARNING"):
            tier = self.tier(s, memory(s, seed=1), enable_kv_events=True)
        self.run_job(tier, [key(1)], [0], True)
        self.assertEqual((tier.locality, list(tier.take_events())), (None, []))
        self.assertRaises(ValueError, self.tier, s, memory(s), locality="NEAR")
        s = spec()  # of a vLLM that has no such configuration
        self.assertFalse(hasattr(s, "kv_events_config"))
        with mock.patch("logging.Logger.warning") as warned:
            self.assertEqual(list(self.tier(s, memory(s), enable_kv_events=True).take_events()), [])
        warned.assert_called_once()

    def test_reset(self):
        """With forget_on_reset what is stored before a reset is not found after it, also in what a request asked for before."""
        for workers in (1, 2):
            s = spec(workers=workers)
            rows, before, store = memory(s, seed=1), Request("before"), f"dir:{self.path(f'of-{workers}')}?min-free=0&index=no"
            tier = self.tier(s, rows, store, forget_on_reset=True)
            for round in range(3):
                self.assertEqual(self.lookups(tier, [key(1)], before)[1], [LookupResult.MISS])
                tier.on_request_finished(before)
                tier.submit_store(TransferJob(round, [key(1)], np.array([round]), False, REQUEST))
                while not list(tier.get_finished_jobs()):
                    time.sleep(0.001)
                asked = Request(f"asked {round}")
                self.assertEqual(self.lookups(tier, [key(1)], asked)[1], [LookupResult.HIT])
                tier.submit_load(TransferJob(round, [key(1)], np.array([7]), True, asked))
                tier.drain_jobs()  # vLLM resets
                self.assertTrue(next(iter(tier.get_finished_jobs())).success)
                self.assertTrue(np.array_equal(rows[7, :-64], rows[round, :-64]))
                self.assertFalse(self.run_job(tier, [key(1)], [6], False).success)
                tier.on_request_finished(asked)
            self.assertTrue(np.array_equal(rows[6], memory(s, seed=1)[6]))
            again = self.tier(s, rows, store, forget_on_reset=True)  # a new engine has the weights of its files
            self.assertTrue(self.run_job(again, [key(1)], [6], False).success)
            self.assertTrue(np.array_equal(rows[6, :-64], rows[0, :-64]))

    def test_refused(self):
        s = spec()
        self.fails(kvc.Code.UNSUPPORTED, "BHLNC", self.tier, spec(layout="BHLNC"), memory(s))
        self.fails(kvc.Code.USAGE, '"dim"', self.tier, s, memory(s), dim=0)
        s.config.worker_kv_bytes_per_block += 2
        self.fails(kvc.Code.UNSUPPORTED, "MLA", self.tier, s, memory(s))

    def test_cpu_worker(self):
        """Copies pages between vLLM's cache and host memory as vLLM 0.32 asks for it, and 0.33, whose loads may be expedited."""
        torch = Fake(from_numpy=lambda array: array, arange=np.arange)  # arrays in place of tensors
        region = Fake(create_next_worker_view=lambda size: Fake(unflatten=lambda axis, shape: host), cleanup=lambda: None)
        parts = {"cpu.shared_offload_region": {"SharedOffloadRegion": object}, "tiering.spec": {"TieringOffloadingSpec": object}}
        modules = {f"vllm.v1.kv_offload.{name}": Fake(**names) for name, names in parts.items()}
        with mock.patch.dict(sys.modules, torch=torch, **modules):
            worker_class = importlib.import_module("kvc.connectors.vllm_cpu").CpuWorker
            sys.modules.pop("kvc.connectors.vllm_cpu")  # it holds the arrays' module
        device, host = np.arange(8 * 16, dtype=np.uint8).reshape(8, 16), np.zeros((4, 2, 16), np.uint8)  # two blocks a chunk
        caches = Fake(tensors=[Fake(tensor=device, page_size_bytes=16)], group_data_refs=[[Fake(tensor_idx=0, page_size_bytes=16)]])
        worker, was = worker_class(caches, region, 2), device.copy()
        blocks = Fake(block_ids=np.array([5, 2, 7]), group_sizes=[3], block_indices=[1])  # the first is the second block of its chunk
        chunks = Fake(block_ids=np.array([3, 1]))
        self.assertTrue(worker.submit_store(1, blocks, chunks))
        self.assertTrue(np.array_equal(host[[3, 1, 1], [1, 0, 1]], was[[5, 2, 7]]) and not host[3, 0].any())
        for options in {}, {"expedited": True}:
            device[:] = 0
            self.assertTrue(worker.submit_load(2, chunks, blocks, **options))
            self.assertTrue(np.array_equal(device[[5, 2, 7]], was[[5, 2, 7]]) and not device[[0, 1, 3, 4, 6]].any())
        done = [(job.job_id, job.success, job.transfer_size) for job in worker.get_finished()]
        self.assertEqual(done, [(1, True, 48), (2, True, 48), (2, True, 48)])
        worker.shutdown()

    def test_page(self):
        self.explains("VLLM.md", [*Options.names(), "enable_kv_events", "locality"])

    def test_layer_numbers(self):
        numbers = vllm_pages.layer_numbers
        self.assertEqual(numbers(["model.layers.3.self_attn.attn", "model.layers.11.self_attn.attn"]), [3, 11])
        self.assertEqual((numbers(["a.1.self", "a.1.cross"]), numbers(["attn", "x.2.y"])), ([], []))
        s = spec()
        s.config.groups[0].layer_names = ("a.1.self", "a.1.cross", "attn")  # they are 0, 1, 2
        self.there_and_back(s, [key(1)])
        with kvc.open(self.objects(".named")[0]) as f:
            self.assertEqual({t.layer for t in f.tensors}, {0, 1, 2})


if __name__ == "__main__":
    unittest.main()
