"""What connectors share: workers, scales, options, namespaces, caches by name, and what a failure does."""

import logging
import os
import threading
import types
import unittest
from dataclasses import dataclass
from typing import ClassVar

from common import Case, needs_store

import kvc
from kvc.connectors import base


class TestBase(Case):
    def test_loads_go_first(self):
        """Stores that hang leave a thread to loads, and what was not begun is handed back."""
        workers = base.Workers(2, 3, "test")
        hang, begun, done, dropped = threading.Event(), threading.Event(), [], []

        def store():
            begun.set()
            hang.wait(30)

        workers.submit(store, dropped.append, store=True)
        self.assertTrue(begun.wait(30))
        for _ in range(4):
            workers.submit(lambda: done.append("store"), dropped.append, store=True)
        self.assertEqual(dropped, ["too much waits to be stored or loaded"])
        loaded = threading.Event()
        workers.submit(loaded.set, dropped.append)
        self.assertTrue(loaded.wait(30))
        self.assertEqual(done, [])
        threading.Timer(0.05, hang.set).start()
        workers.close()
        self.assertEqual(len(dropped[1:]) + len(done), 3)
        self.assertEqual(set(dropped[1:]) - {"the engine ends"}, set())
        workers.submit(loaded.clear, dropped.append)
        self.assertTrue(loaded.is_set() and len(dropped) + len(done) == 5)

    def test_scales(self):
        facts = base.scale_facts
        self.assertEqual(facts("bf16", 0.5, "x"), {})
        self.assertEqual(facts("f8e4m3", 1), {"scale.k": "1", "scale.v": "1"})
        self.assertEqual(facts("u8", {"k": 0.1, "v": [0.5, 0.25]}), {"scale.k": "0.1", "scale.v": "0.5,0.25"})
        self.assertEqual(facts("i8", {"k": [[1, 2.5], None, 3], "v": [2, 2]}), {"scale.k": "1:2.5,,3", "scale.v": "2"})
        self.assertEqual(facts("f8e5m2", {"k": [[0.5, 0.5]], "v": (1e-9,)}), {"scale.k": "0.5", "scale.v": "1e-09"})
        self.assertEqual(facts("f8e4m3", None, "node 7"), {"scale.source": "node 7"})
        with self.assertLogs("kvc.test", logging.WARNING) as logged:
            one, two = (facts("f8e4m3", log=logging.getLogger("kvc.test")) for _ in range(2))
        self.assertIn("scale_source", logged.output[0])
        self.assertEqual((sorted(one), sorted(two)), (["scale.source"], ["scale.source"]))
        self.assertNotEqual(one, two)
        for wrong in (0, -1, "1", True, float("inf"), float("nan"), [], [None], {"k": 1}, {"k": 1, "v": [[1, "x"]]}, {"k": 1, "v": 2, "q": 3}):
            with self.subTest(scale=wrong), self.assertRaises(kvc.Error) as caught:
                facts("f8e4m3", wrong)
            self.assertEqual(caught.exception.code, kvc.Code.USAGE)

    def test_types(self):
        names = {"torch.bfloat16": "bf16", "BF16": "bf16", "half": "f16", "float": "f32", "fp8_e5m2": "f8e5m2",
                 "torch.float8_e4m3fn": "f8e4m3", "fp8": "f8e4m3", "int8": "i8", "uint8": "u8", "f32": "f32"}
        self.assertEqual({name: base.dtype_of(name) for name in names}, names)
        for name in ("int4", "q8_0", "float64", "uint16", None):
            self.fails(kvc.Code.UNSUPPORTED, f"of type {name} are not", base.dtype_of, name)

    def test_options(self):
        """Numbers may be texts; what is no option is refused, also the field behind another name."""
        @dataclass(frozen=True)
        class Own(base.PageOptions):
            store: ClassVar[str] = "where"
            deadline: float = 1.0
            seconds: int = 3
            chunk: "Optional[int]" = None

        o = Own.take({"where": "dir:x", "deadline": "2.5", "threads": 2.0, "seconds": None, "chunk": "256"}, "the file")
        self.assertEqual(o.chunk, 256)
        self.assertEqual((o.levels, o.deadline, o.threads, o.seconds, o.recipe), ("dir:x", 2.5, 2, None, "fast"))
        for given, words in (({"where": "x", "levels": "y"}, "the file has unknown options: levels; kvc's are where, recipe"),
                             ({"recipe": "fast"}, "the file lacks 'where'"), ({"where": ""}, "lacks 'where'"),
                             ({"where": "x", "deadline": "soon"}, "deadline is a number, not 'soon'"),
                             ({"where": "x", "seconds": [1]}, "seconds is a number, not [1]")):
            self.fails(kvc.Code.USAGE, words, Own.take, given, "the file")

    def test_guarded(self):
        """A method of an engine's interface never raises, however it is called, and says the same trouble once."""
        class Owner:
            def __init__(self, logger):
                self._kvc = types.SimpleNamespace(counters=base.Counters(logger, "errors", "done"))

            @base.guarded(lambda self, keys, more=0: [more] * len(keys))
            def ask(self, keys, more=0):
                self._kvc.counters.add(done=1)
                return 1 // more

        with self.assertLogs("kvc.test", logging.WARNING) as logged:
            owner = Owner(logging.getLogger("kvc.test"))
            self.assertEqual((owner.ask("ab"), owner.ask(keys="abc", more=0), owner.ask("a", 1)), ([0, 0], [0] * 3, 1))
        self.assertEqual(len(logged.output), 1)
        self.assertIn("ask: integer division", logged.output[0])
        counters = owner._kvc.counters
        self.assertEqual((str(counters), counters.take(), counters.take()), ("errors 2, done 3", {"errors": 2, "done": 3}, {}))
        self.assertRaises(KeyError, counters.add, other=1)

    def test_usage(self):
        self.assertRaises(kvc.Error, base.Workers, 0, 1, "test")
        geometry = base.Geometry(2, 1, 8, "f16")
        self.fails(kvc.Code.USAGE, "pairing 'pairs'", base.facts_of_caches, geometry, model="m", pairing="pairs")
        self.fails(kvc.Code.USAGE, "name its files", base.facts_of_caches, geometry)
        self.fails(kvc.Code.USAGE, "63 bytes are no whole tokens", geometry.views, bytes(63))


@needs_store
class TestCaches(Case):
    def test_namespace(self):
        """A namespace follows from geometry and facts: it is that of caches with rows, and of no others."""
        kvc_ = base.Connection(base.Options(f"dir:{self.path('store')}"), logging.getLogger("kvc.test"))
        self.addCleanup(kvc_.close)
        names = set()
        for geometry in (base.Geometry(2, 3, 16, "bf16"), base.Geometry(2, 3, 16, "bf16", numbers=(4, 7)),
                         base.Geometry(2, 1, 16, "fp8", latent=True), base.Geometry(2, 3, 16, "half")):
            facts = base.facts_of_caches(geometry, model="m", scales=base.scale_facts(geometry.dtype, 0.5))
            caches = base.Caches(kvc_, geometry, facts)
            with caches.open(geometry.views(bytes(5 * geometry.token_bytes))) as f, kvc_.store.namespace(f, recipe="fast") as like:
                self.assertEqual(caches.namespace.name, like.name)
            names.add(caches.namespace.name)
        self.assertEqual(len(names), 4)

    def test_by_name(self):
        """Stored, found, loaded and removed by name, however long; what is not there is counted, and said."""
        kvc_ = base.Connection(base.Options(f"dir:{self.path('store')}", deadline=10, load_deadline=10),
                               logging.getLogger("kvc.test"), "stored_pages", "stored_bytes", "not_stored", "loaded_pages",
                               "loaded_bytes", "not_loaded")
        geometry = base.Geometry(2, 1, 16, "bf16")
        caches = base.Caches(kvc_, geometry, {"model.name": "m"}, unit="page", counted="pages")
        data, into = os.urandom(8 * geometry.token_bytes), bytearray(8 * geometry.token_bytes)
        names = ["a", "b" * 300]
        self.assertEqual(caches.find(names), [False, False])
        self.assertTrue(all(caches.put(name, geometry.views(data)) for name in names))
        self.assertEqual(caches.find(names), [True, True])
        self.assertTrue(caches.load(names[1], geometry.views(into)))
        self.assertEqual(bytes(into), data)
        caches.drop(names[:1])
        with self.assertLogs("kvc.test", logging.WARNING) as logged:
            self.assertFalse(caches.load("a", geometry.views(into)))
        self.assertIn("page a is not in the store", logged.output[0])
        stats = kvc_.stats()
        self.assertIn("bad_objects", stats.pop("store"))
        self.assertEqual(stats, {"stored_pages": 2, "stored_bytes": 2 * len(data), "not_stored": 0, "loaded_pages": 1,
                                 "loaded_bytes": len(data), "not_loaded": 1})
        with self.assertLogs("kvc.test", logging.INFO) as logged:
            kvc_.close()
            kvc_.close()
        [line] = logged.output  # tests/connectors/vllm_tier.py reads it
        self.assertRegex(line, rf"kvc: stored_pages 2, stored_bytes {2 * len(data)}, loaded_pages 1, loaded_bytes {len(data)}, "
                               r"not_loaded 1; store: \{.*'bad_objects': 0, .*\}$")
        self.assertIsNone(kvc_.stats()["store"])


if __name__ == "__main__":
    unittest.main()
