"""The storage backend for SGLang's HiCache, with a host pool of its own and without SGLang."""

import json
import logging
import os
import re
import time
import types
import unittest
from unittest import mock

import numpy as np
from common import ROOT, Case, needs_store

import kvc
from kvc.connectors import base, sglang

random = np.random.default_rng(6)
LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 32, 16, 6
LAYOUTS = {"layer_first": "cl(pt)hd", "page_first": "c(pt)lhd", "page_first_direct": "cplthd", "page_head": "cphtld"}
RANK, ROPE = 48, 16
LATENT_LAYOUTS = ("layer_first", "page_first", "page_first_direct")
CONTENT = random.integers(0, 2**16, (2, LAYERS, PAGES, PAGE, HEADS, DIM)).astype(np.uint16)  # clpthd; all bits, NaN too
LATENTS = random.integers(0, 2**16, (LAYERS, PAGES, PAGE, RANK + ROPE)).astype(np.uint16)  # lptd
KEYS = [f"{i:064x}" for i in range(PAGES)]


class Pool:
    """A host pool as MHATokenToKVPoolHost of SGLang 0.5.23 has it: one buffer, and addresses of pieces."""

    def __init__(self, layout, content=None):
        order = LAYOUTS[layout].replace("(", "").replace(")", "")
        empty = np.zeros_like(CONTENT) if content is None else content
        self.kv_buffer = np.ascontiguousarray(empty.transpose(["clpthd".index(axis) for axis in order]))
        self.order, self.layout, self.page_size, self.size = order, layout, PAGE, PAGE * PAGES
        self.layer_num, self.head_num, self.head_dim, self.v_head_dim, self.dtype = LAYERS, HEADS, DIM, DIM, "torch.bfloat16"

    def content(self):
        return self.kv_buffer.transpose([self.order.index(axis) for axis in "clpthd"])

    def get_page_buffer_meta(self, indices):
        assert len(indices) % PAGE == 0
        base, token = self.kv_buffer.ctypes.data, HEADS * DIM * 2
        v = LAYERS * self.size * token
        addresses = []
        for first in indices.tolist()[::PAGE]:
            if self.layout == "layer_first":
                for layer in range(LAYERS):
                    k = base + first * token + layer * self.size * token
                    addresses += [k, k + v]
            else:
                k = base + first * LAYERS * token
                addresses += [k, k + v]
        return addresses, [PAGE * token * (1 if self.layout == "layer_first" else LAYERS)] * len(addresses)


class MLATokenToKVPoolHost:
    """A host pool of latents, as SGLang 0.5.23 has it: one buffer, and one piece a page, or one for each of its layers."""

    kv_lora_rank, qk_rope_head_dim, dsa_kv_cache_store_fp8 = RANK, ROPE, False

    def __init__(self, layout, content=None):
        order = LAYOUTS[layout].replace("(", "").replace(")", "").replace("c", "").replace("h", "")
        empty = np.zeros_like(LATENTS) if content is None else content
        self.kv_buffer = np.ascontiguousarray(empty.transpose(["lptd".index(axis) for axis in order]))
        self.order, self.layout, self.page_size, self.size = order, layout, PAGE, PAGE * PAGES
        self.layer_num, self.kv_cache_dim, self.dtype = LAYERS, RANK + ROPE, "torch.bfloat16"

    def content(self):
        return self.kv_buffer.transpose([self.order.index(axis) for axis in "lptd"])

    def get_page_buffer_meta(self, indices):
        assert len(indices) % PAGE == 0
        base, token, apart = self.kv_buffer.ctypes.data, self.kv_cache_dim * 2, self.layout == "layer_first"
        steps = range(LAYERS) if apart else [0]
        addresses = [base + first * token * (1 if apart else LAYERS) + layer * self.size * token
                     for first in indices.tolist()[::PAGE] for layer in steps]
        return addresses, [PAGE * token * (1 if apart else LAYERS)] * len(addresses)


def transfer(name, keys, numbers=(), policy="all_pages"):
    """A PoolTransfer of SGLang's."""
    return types.SimpleNamespace(name=name, keys=keys, host_indices=indices(*numbers) if numbers else None, hit_policy=policy)


def indices(*numbers):
    return np.concatenate([np.arange(PAGE) + n * PAGE for n in numbers])


ALL = indices(*range(PAGES))


@needs_store
class TestSglang(Case):
    def setUp(self):
        super().setUp()
        logging.getLogger("kvc").setLevel(logging.CRITICAL)
        self.addCleanup(logging.getLogger("kvc").setLevel, logging.NOTSET)

    def storage(self, pool=None, extra=None, **config):
        config = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1, "is_mla_model": False,
                  "model_name": "org/model", "should_split_heads": False, **config}
        extra = {"backend_name": "kvc", "module_path": "kvc.connectors.sglang", "class_name": "KvcStorage", "interface_v1": 1,
                 "levels": f"dir:{self.path('store')}", "deadline": 10, **(extra or {})}
        storage = sglang.KvcStorage(types.SimpleNamespace(extra_config=extra, **config), {})
        self.addCleanup(storage.close)
        if pool is not None:
            storage.register_mem_pool_host(pool)
        return storage

    def test_round_trip(self):
        """Pages come back bit by bit, in the same layout and in every other: the store has none."""
        for n, layout in enumerate(LAYOUTS):
            where = {"levels": f"dir:{self.path(layout)}"}
            pool = Pool(layout, CONTENT)
            storage = self.storage(pool, where)
            self.assertEqual(storage.batch_exists(KEYS), 0)
            self.assertEqual(storage.batch_set_v1(KEYS, ALL), [True] * PAGES)
            self.assertEqual(storage.batch_exists(KEYS), PAGES)
            self.assertTrue(storage.exists(KEYS[2]))
            self.assertTrue(np.array_equal(pool.content(), CONTENT))
            for other in LAYOUTS:
                pool = Pool(other)
                storage = self.storage(pool, where)
                self.assertEqual(storage.batch_get_v1(KEYS[3:5], indices(0, 5)), [True, True])
                self.assertTrue(np.array_equal(pool.content()[:, :, 0], CONTENT[:, :, 3]))
                self.assertTrue(np.array_equal(pool.content()[:, :, 5], CONTENT[:, :, 4]))
                self.assertFalse(pool.content()[:, :, 1:5].any())
        counts = storage.counters()
        self.assertEqual((counts["loaded_pages"], counts["loaded_bytes"]), (2, CONTENT.nbytes // PAGES * 2))

    def test_latents(self):
        """Pages of latents come back bit by bit, in the same layout and in every other.

        K and V of as many bytes are another namespace.
        """
        for layout in LATENT_LAYOUTS:
            where = {"levels": f"dir:{self.path(layout)}"}
            pool = MLATokenToKVPoolHost(layout, LATENTS)
            storage = self.storage(pool, where, is_mla_model=True)
            self.assertEqual(storage.batch_exists(KEYS), 0)
            self.assertEqual(storage.batch_set_v1(KEYS, ALL), [True] * PAGES)
            self.assertEqual(storage.batch_exists(KEYS), PAGES)
            self.assertTrue(np.array_equal(pool.content(), LATENTS))
            for other in LATENT_LAYOUTS:
                pool = MLATokenToKVPoolHost(other)
                storage = self.storage(pool, where, is_mla_model=True)
                self.assertEqual(storage.batch_get_v1(KEYS[3:5], indices(0, 5)), [True, True])
                self.assertTrue(np.array_equal(pool.content()[:, [0, 5]], LATENTS[:, [3, 4]]))
                self.assertFalse(pool.content()[:, 1:5].any())
            kept = storage._pools["kv"]
            self.assertIn("latent", kept.caches.namespace.facts)
            self.assertEqual(kept.pool.page_bytes, LATENTS.nbytes // PAGES)
            self.assertEqual(storage.counters()["loaded_bytes"], LATENTS.nbytes // PAGES * 2)
            self.assertNotIn("rope.pairing", kept.caches.facts)
            halves = base.Geometry(LAYERS, 1, (RANK + ROPE) // 2, "bf16")
            facts = base.facts_of_caches(halves, model="org/model")
            other = base.Caches(storage._kvc, halves, facts)
            self.assertNotEqual(other.namespace.name, kept.caches.namespace.name)

    def test_latents_of_ranks(self):
        """Latents are the same on all ranks of tensor parallelism.

        The first rank stores them, and all find them, with any number of ranks.
        """
        def rank(number, size=2, pool=None, **config):
            pool = pool or MLATokenToKVPoolHost("page_first", LATENTS)
            return self.storage(pool, is_mla_model=True, tp_rank=number, tp_size=size, **config)

        second = rank(1)
        self.assertEqual(second.batch_set_v1(KEYS, ALL), [True] * PAGES)  # as SGLang, which does not ask it to
        self.assertEqual((second.batch_exists(KEYS), second.counters()["store_pages"]), (0, 0))
        self.assertEqual(rank(0).batch_set_v1(KEYS, ALL), [True] * PAGES)
        for number, size in ((0, 2), (1, 2), (3, 4), (0, 1)):
            pool = MLATokenToKVPoolHost("page_first")
            self.assertEqual(rank(number, size, pool).batch_get_v1(KEYS, ALL), [True] * PAGES)
            self.assertTrue(np.array_equal(pool.content(), LATENTS))
        for config in ({"pp_rank": 1, "pp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}, {"model_name": "x"}):
            self.assertEqual(rank(0, **config).batch_exists(KEYS), 0)
        writer = rank(1, is_storage_writer=True)  # what SGLang says counts
        self.assertEqual((writer.batch_set_v1(KEYS, ALL), writer.counters()["store_pages"]), ([True] * PAGES, PAGES))

    def test_sidecars(self):
        """Pages of sliding windows and of draft models, by interface v2."""
        layouts = {"kv": "page_first", "swa": "layer_first", "draft": "page_head"}
        want = {"kv": CONTENT, "swa": CONTENT[::-1], "draft": CONTENT[:, ::-1]}

        def opened(pools):
            storage = self.storage(pools["kv"])
            for name, pool in pools.items():
                storage.register_mem_host_pool_v2(pool, types.SimpleNamespace(value=name))
            return storage

        def there(storage, *transfers):
            return tuple(storage.batch_exists_v2(KEYS, transfers))

        storage = opened({name: Pool(layout, want[name].copy()) for name, layout in layouts.items()})
        window = transfer("swa", KEYS[:2], policy="trailing_pages")
        drafts = transfer("draft", None)
        self.assertEqual(there(storage, window, drafts), (0, {}, []))
        self.assertEqual(storage.batch_set_v1(KEYS[:5], indices(0, 1, 2, 3, 4)), [True] * 5)
        self.assertEqual(there(storage), (5, {"kv": 5}, [1, 2, 3, 4, 5]))
        self.assertEqual(there(storage, window), (0, {"kv": 5}, []))
        some = transfer("swa", [KEYS[i] for i in (0, 2, 3)], (0, 2, 3))
        four = transfer("draft", KEYS[:4], (0, 1, 2, 3))
        self.assertEqual(storage.batch_set_v2([some, four]), {"swa": [True] * 3, "draft": [True] * 4})
        # a window of two pages: the first page alone, and the first four; of one page: the first three, too
        self.assertEqual(there(storage, window), (4, {"kv": 5, "swa": 4}, [1, 4]))
        self.assertEqual(there(storage, window, drafts), (4, {"kv": 5, "swa": 4, "draft": 4}, [1, 4]))
        self.assertEqual(there(storage, transfer("swa", None, policy="trailing_pages")),
                         (4, {"kv": 5, "swa": 4}, [1, 3, 4]))
        self.assertEqual(storage.batch_exists(KEYS), 5)
        pools = {name: Pool(layout) for name, layout in layouts.items()}
        again = opened(pools)
        self.assertEqual(again.batch_get_v1(KEYS[:4], indices(0, 1, 2, 3)), [True] * 4)
        self.assertEqual(again.batch_get_v2([transfer("swa", KEYS[2:5], (2, 3, 4)), four]),
                         {"swa": [True, True, False], "draft": [True] * 4})
        for name, numbers in (("kv", [0, 1, 2, 3]), ("swa", [2, 3]), ("draft", [0, 1, 2, 3])):
            self.assertTrue(np.array_equal(pools[name].content()[:, :, numbers], want[name][:, :, numbers]), name)
        again.clear()
        self.assertEqual((again.batch_exists(KEYS), there(again, window)), (0, (0, {}, [])))
        self.assertEqual(again.batch_get_v2([transfer("draft", KEYS[:1], (0,))]), {"draft": [False]})

    def test_sidecars_fail(self):
        """A transfer that makes no sense is one that failed, and leaves the others alone."""
        storage = self.storage(Pool("page_first", CONTENT))
        storage.register_mem_host_pool_v2(Pool("page_first", CONTENT), "draft")
        wrong = [transfer("swa", KEYS[:1], (0,)), transfer("draft", KEYS[:2], (0,)), transfer("draft_swa", [])]
        self.assertEqual(storage.batch_set_v2([*wrong, transfer("kv", KEYS[:2], (0, 1))]),
                         {"swa": [False], "draft": [False] * 2, "draft_swa": [], "kv": [True] * 2})
        self.assertEqual(storage.batch_get_v2([transfer("draft", KEYS[:2])]), {"draft": [False] * 2})
        for asked in (transfer("mamba", KEYS[:1]), transfer("draft", KEYS[:1], policy="block_groups")):
            self.assertEqual(tuple(storage.batch_exists_v2(KEYS, [asked])), (0, {}, []))
        self.assertEqual(storage.counters()["errors"], 6)

    def test_scales(self):
        """Pages of 8 bits: the pool does not tell their scales, and the configuration does, or they are shared with nobody."""
        pool = Pool("page_first", CONTENT)
        pool.dtype, pool.head_dim, pool.v_head_dim = "torch.float8_e4m3fn", 2 * DIM, 2 * DIM  # as many bytes
        for extra in ({"scale": {"k": 0.5, "v": 0.25}}, {"scale": 1}, {"scale_source": "here"}, {}):
            storage = self.storage(pool, extra)
            self.assertEqual(storage.batch_exists(KEYS), 0)
            self.assertEqual(storage.batch_set_v1(KEYS[:2], indices(0, 1)), [True, True])
            self.assertEqual(storage.batch_get_v1(KEYS[:2], indices(0, 1)), [True, True])
            self.assertEqual(self.storage(pool, extra).batch_exists(KEYS), 2 if extra else 0)
            self.assertEqual(sorted(name for name in storage._pools["kv"].caches.facts if name.startswith("scale")),
                             ["scale.k", "scale.v"] if "scale" in extra else ["scale.source"])
        self.assertTrue(np.array_equal(pool.content(), CONTENT))
        self.fails(kvc.Code.USAGE, "a scale is a number", self.storage, pool, {"scale": "half"})

    def test_stats(self):
        """What SGLang's metrics show: pages of each batch that were moved, and how fast, once. Batches of which nothing was are left out."""
        def metrics():
            return types.SimpleNamespace(prefetch_pgs=[], backup_pgs=[], prefetch_bandwidth=[], backup_bandwidth=[])

        pool = Pool("page_first", CONTENT)
        storage = self.storage(pool)
        self.assertIsNone(storage.get_stats())  # without SGLang
        with mock.patch.object(sglang, "StorageMetrics", metrics):
            self.assertEqual(vars(storage.get_stats()), vars(metrics()))
            storage.batch_set_v1(KEYS[:4], indices(0, 1, 2, 3))
            storage.batch_get_v1(KEYS[4:], indices(4, 5))
            storage.batch_get_v1(KEYS[3:5], indices(3, 4))
            storage.batch_get_v1(KEYS[:2], indices(0))  # indices of another number of pages
            before = time.perf_counter()
            storage.batch_get_v1(KEYS[:3], indices(0, 1, 2))
            longest = time.perf_counter() - before
            stats = storage.get_stats()
            self.assertEqual((stats.backup_pgs, stats.prefetch_pgs), ([4], [1, 3]))
            self.assertEqual((len(stats.backup_bandwidth), len(stats.prefetch_bandwidth)), (1, 2))
            self.assertGreaterEqual(stats.prefetch_bandwidth[1], 3 * CONTENT.nbytes / PAGES / longest / 1e9)
            self.assertEqual(vars(storage.get_stats()), vars(metrics()))
            for _ in range(3000):  # nobody asks
                storage._moved["backup"].append((1, 1.0))
            self.assertEqual(len(storage.get_stats().backup_pgs), 1024)

    def test_missing(self):
        pool = Pool("page_first_direct", CONTENT)
        storage = self.storage(pool)
        self.assertEqual(storage.batch_set_v1([KEYS[i] for i in (0, 1, 3)], indices(0, 1, 3)), [True] * 3)
        self.assertEqual(storage.batch_exists(KEYS), 2)  # as many as there are without a gap
        self.assertEqual(storage.batch_exists(KEYS[2:]), 0)
        self.assertEqual(storage.batch_exists([]), 0)
        self.assertEqual(storage.batch_get_v1(KEYS[:4], indices(0, 1, 2, 3)), [True, True, False, True])
        self.assertEqual((storage.get(KEYS[0]), storage.set(KEYS[5]), storage.batch_get(KEYS[:2]), storage.batch_set(KEYS[:2])),
                         (None, False, [None, None], False))

    def test_damage(self):
        pool = Pool("page_first_direct", CONTENT)
        storage = self.storage(pool)
        storage.batch_set_v1(KEYS, ALL)
        paths = self.objects(".named")
        self.assertEqual(len(paths), PAGES)
        self.damage(paths[0])
        pool.kv_buffer[:] = 0
        loaded = storage.batch_get_v1(KEYS, ALL)
        self.assertEqual(sorted(loaded), [False] + [True] * (PAGES - 1))
        bad = loaded.index(False)
        good = [i for i in range(PAGES) if i != bad]
        self.assertTrue(np.array_equal(pool.content()[:, :, good], CONTENT[:, :, good]))
        self.assertEqual((storage.counters()["not_loaded"], storage.counters()["store"]["bad_objects"]), (1, 1))
        self.assertEqual(storage.batch_exists(KEYS), bad)
        self.assertEqual(self.storage(Pool("page_first", CONTENT)).batch_set_v1(KEYS, ALL), [True] * PAGES)  # writes it again

    def test_a_page_fails(self):
        """A page that cannot be stored leaves the others of its batch alone."""
        storage = self.storage(Pool("page_first", CONTENT))
        namespace = storage._pools["kv"].caches.namespace
        put = namespace.put_name

        def failing(name, file, **options):
            if name.startswith(KEYS[2].encode()):
                raise kvc.Error(kvc.Code.IO, "the disk is gone")
            return put(name, file, **options)

        namespace.put_name = failing
        self.assertEqual(storage.batch_set_v1(KEYS, ALL), [True, True, False, True, True, True])
        self.assertEqual(storage.batch_exists(KEYS), 2)
        self.assertEqual(storage.counters()["errors"], 1)

    def test_broken_directory(self):
        storage = self.storage(Pool("page_first", CONTENT))
        os.rename(self.path("store/obj"), self.path("gone"))
        with open(self.path("store/obj"), "w"):
            pass
        self.assertEqual(storage.batch_set_v1(KEYS, ALL), [False] * PAGES)
        self.assertEqual((storage.batch_get_v1(KEYS, ALL), storage.batch_exists(KEYS)), ([False] * PAGES, 0))

    def test_ranks_and_models(self):
        self.storage(Pool("page_head", CONTENT)).batch_set_v1(KEYS, ALL)
        for config in ({"tp_rank": 1, "tp_size": 2}, {"pp_rank": 1, "pp_size": 2}, {"attn_cp_rank": 1, "attn_cp_size": 2}, {"model_name": "x"}):
            self.assertEqual(self.storage(Pool("page_head"), **config).batch_exists(KEYS), 0)
        wider = Pool("page_head")
        wider.dtype = "torch.float16"
        self.assertEqual(self.storage(wider).batch_exists(KEYS), 0)
        self.assertEqual(self.storage(Pool("page_head"), {"recipe": "kivi4"}).batch_exists(KEYS), 0)

    def test_wrong_sizes(self):
        """Nothing raises, and nothing is written where a page does not belong."""
        pool = Pool("page_first", CONTENT)
        storage = self.storage(pool)
        self.assertEqual(storage.batch_set_v1(KEYS, ALL[:-1]), [False] * PAGES)
        self.assertEqual(storage.batch_get_v1(KEYS, indices(0)), [False] * PAGES)
        whole = pool.get_page_buffer_meta
        pool.get_page_buffer_meta = lambda i: (whole(i)[0], [size // 2 for size in whole(i)[1]])
        self.assertEqual(storage.batch_set_v1(KEYS, ALL), [False] * PAGES)
        pool.get_page_buffer_meta = lambda i: (whole(i)[0][:-1], whole(i)[1][:-1])
        self.assertEqual(storage.batch_set_v1(KEYS, ALL), [False] * PAGES)
        self.assertEqual((storage.counters()["foreign"], storage.counters()["errors"]), (2 * PAGES, 4))
        self.assertEqual(self.storage().batch_exists(KEYS), 0)  # no pool was registered
        storage.close()
        self.assertEqual((storage.batch_get_v1(KEYS, ALL), storage.batch_exists(KEYS)), ([False] * PAGES, 0))

    def test_refused(self):
        def refuses(words, pool, code=kvc.Code.UNSUPPORTED, extra=None, **config):
            self.fails(code, words, self.storage, pool, extra, **config)

        packed = MLATokenToKVPoolHost("page_first")
        packed.kv_cache_dim = 656
        refuses("MLATokenToKVPoolHost, has latents of 656 values with scales", packed, is_mla_model=True)
        packed = MLATokenToKVPoolHost("page_first")
        packed.dsa_kv_cache_store_fp8 = True
        refuses("with scales", packed, is_mla_model=True)
        split = MLATokenToKVPoolHost("page_first")
        for layout in ("page_first_kv_split", "page_head", "page_unified"):
            split.layout = layout
            refuses(layout, split, is_mla_model=True)
        refuses("context parallelism", MLATokenToKVPoolHost("page_first"), is_mla_model=True, dcp_size=2)
        for name, value in (("placement", 1), ("_layer_shard_enabled", True)):
            parts = MLATokenToKVPoolHost("page_first")
            setattr(parts, name, value)
            refuses("parts of pages or of layers", parts, is_mla_model=True)
        refuses("has no latents, of a model of latent attention (MLA)", Pool("page_first"), is_mla_model=True)
        refuses("split by heads", Pool("page_head"), should_split_heads=True)
        refuses("unknown options: level;", Pool("page_first"), kvc.Code.USAGE, {"level": "dir:x"})
        other = Pool("page_first")
        other.layout = "page_unified"
        refuses("page_unified", other)
        other = Pool("page_first")
        other.v_head_dim = 8
        refuses("one width", other)
        other = Pool("page_first")
        other.get_page_buffer_meta = lambda i: (Pool.get_page_buffer_meta(other, i)[0][::2], [1])
        refuses("not of the geometry", other, kvc.Code.USAGE)
        refuses("'weights'", Pool("page_first"), kvc.Code.USAGE, model_name=None)
        storage = self.storage(Pool("page_first"))
        storage.register_mem_host_pool_v2(Pool("page_first"), "kv")
        for name in ("mamba", "indexer", "draft_indexer", "auxiliary_swa", "deepseek_v4_c4"):
            self.fails(kvc.Code.UNSUPPORTED, f"the host pool '{name}', a Pool, is not supported",
                       storage.register_mem_host_pool_v2, Pool("page_first"), name)
        two = self.storage(MLATokenToKVPoolHost("page_first"), is_mla_model=True, tp_rank=1, tp_size=2)
        two.register_mem_host_pool_v2(MLATokenToKVPoolHost("layer_first"), "draft")
        self.fails(kvc.Code.UNSUPPORTED, "the first of 2 ranks", two.register_mem_host_pool_v2, Pool("page_first"), "draft_swa")

    def test_page(self):
        """The example of SGLANG.md works, and README.md's table has every other option."""
        page = (ROOT / "python/SGLANG.md").read_text()
        extra = json.loads(re.search(r"<!-- read by .*? -->\n```json\n(.*?)```", page, re.S)[1])
        self.assertEqual(set(extra) - set(sglang.Options.names()), {"backend_name", "module_path", "class_name", "interface_v1"})
        self.storage(Pool("page_first"), {**extra, "levels": f"dir:{self.path('page')}"})
        self.explains("SGLANG.md", sglang.Options.names())

    def test_clear(self):
        storage = self.storage(Pool("page_first", CONTENT))
        storage.batch_set_v1(KEYS, ALL)
        storage.clear()
        self.assertEqual(storage.batch_exists(KEYS), 0)


if __name__ == "__main__":
    unittest.main()
