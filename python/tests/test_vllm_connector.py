"""The connector of vLLM in a small engine of the tests' own, with vLLM's names (fakes/vllm) and without torch.

What vLLM's connectors get wrong easily, and the test that holds it:
 1 a promise must be kept, for vLLM's default is to fail a request otherwise     test_damage, test_gone
 2 after a recomputation vLLM still counts what was promised                     test_counts
 3 several groups of layers: blocks cannot be reported                           test_vllm_model.py
 4 the last token must be computed; only multiples of a block                    test_whole_prompt, test_no_prompt_is_promised_whole
 5 what cannot be kept is reported, not raised, and never saved                  test_broken_promise, test_promise_without_memory
 6 new, running and resumed requests; prefill in pieces                          test_pieces, test_preemption
 7 blocks are reused when wait_for_save() returns                                test_copies
 8 the same prompt at the same time is saved once                                test_twice
 9 namespaces: model, revision, types, ranks, recipe                             test_vllm_model.py
10 hooks of single layers cost CUDA graphs                                       test_interface
11 three arguments                                                               test_interface
12 what tokens do not tell: LoRA, embeddings, media, cache_salt                  test_passed_by, test_extras
13 abort before a load, requests that are never scheduled                        test_abort
14 bad objects must not be promised again and again                              test_damage
15 caches on GPUs, other shapes, AMX                                             test_vllm_model.py
16 memory of what is read before it is scheduled                                 test_memory
17 weights that change while the engine runs                                     test_new_weights, test_reset_meanwhile
"""

import gc
import os
import pathlib
import sys
import threading
import time
import unittest
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

from common import Case, needs_store

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "fakes"))

from vllm.distributed.kv_transfer.kv_connector.v1 import SupportsHMA  # noqa: E402
from vllm.v1.core.sched.output import CachedRequestData, KVConnectorBlockState, SchedulerOutput  # noqa: E402
from vllm_engine_fake import BLOCK, Engine, Request  # noqa: E402

import kvc  # noqa: E402
from kvc.connectors import vllm_jobs, vllm_worker  # noqa: E402
from kvc.connectors.vllm_connector import COUNTERS, KvcConnector, KvcMetadata, KvcStats  # noqa: E402
from kvc.connectors.vllm_scheduler import Found, SchedulerSide, extras_of, passed_by  # noqa: E402

NOTHING = SchedulerOutput([], CachedRequestData(), {})
PROMPT = [7 * i * i % 997 + 2 for i in range(700)]


class Counter:
    """A counter of prometheus_client; `made` has the values of all by name and engine."""

    made = {}

    def __init__(self, name, documentation, labelnames):
        assert name.startswith("vllm:kvc_") and name.endswith("_total") and documentation and labelnames == ["engine"]
        self.key = (name[len("vllm:kvc_"):-len("_total")],)

    def labels(self, *values):
        child = Counter.__new__(Counter)
        child.key = (*self.key, *values)
        Counter.made[child.key] = 0
        return child

    def inc(self, n):
        Counter.made[self.key] += n


@needs_store
class TestConnector(Case):
    def setUp(self):
        super().setUp()
        self.extra = {"store": f"dir:{self.path('store')}", "chunk": 256, "deadline": 5}

    def engine(self, **changes):
        options = {key: changes.pop(key) for key in ("role", "revision") if key in changes}
        engine = Engine({**self.extra, **changes}, **options)
        self.addCleanup(engine.close)
        return engine

    def save(self, tokens=PROMPT, **changes):
        """Computes and saves a prompt in an engine of its own."""
        engine = Engine({**self.extra, **changes})
        engine.run(Request("first", tokens))
        engine.close()

    def load(self, tokens=PROMPT, external=512, engine=None, **changes):
        """Computes a prompt in a new engine, of which so many tokens are to come from the store."""
        engine = engine or self.engine()
        request = engine.run(Request("second", tokens, **changes))
        self.assertEqual(request.external, external)
        self.assertTrue(engine.right(request))
        return engine, request

    def counts(self, side):
        stats = side.get_kv_connector_stats()
        return {} if stats is None else stats.reduce()

    @contextmanager
    def waiting_readers(self, side):
        """Readers that begin at the end: a quick one would have read before matched() returns."""
        begin = threading.Event()
        held = [side._readers.submit(begin.wait, 30) for _ in range(side._readers._max_workers)]
        try:
            yield
        finally:
            begin.set()
        self.assertTrue(all(reader.result(30) for reader in held))

    def asks(self, side, request, computed):
        """Asks for a prompt that is to be read, and waits until it is."""
        with self.waiting_readers(side):
            self.assertIsNone(side.matched(request, computed))
        side._reading[request.request_id].future.result(30)

    # --- reuse ---

    def test_reload(self):
        engine, _ = self.load(external=0)
        engine.close()
        engine, request = self.load()
        self.assertEqual(len(engine.steps[-1].loads[0].blocks), 512 // BLOCK)
        self.assertEqual(sum(len(meta.saves) for meta in engine.steps), 0)
        self.assertEqual(engine.scheduler._scheduler._lent, {})
        engine.finish(request)
        self.load(PROMPT[:600] + [5] * 90)
        self.load(PROMPT[:300], 256)
        self.load([1] + PROMPT[1:], 0)

    def test_whole_prompt(self):
        """Of a prompt that is stored as a whole, the last block is computed."""
        self.save(PROMPT[:512])
        self.load(PROMPT[:512], 512 - BLOCK)
        self.load(PROMPT[:513], 512)

    def test_no_prompt_is_promised_whole(self):
        self.save()
        engine = self.engine()
        for n in range(500, 520, 3):
            request = engine.run(Request(f"of {n}", PROMPT[:n]))
            self.assertTrue(request.external % BLOCK == 0 and request.external < n and engine.right(request), n)
            engine.finish(request)

    def test_known_tokens(self):
        """What vLLM's own prefix cache has is not read, and what it drops meanwhile is read."""
        self.save()
        engine = self.engine()
        engine.known = 128
        engine, request = self.load(external=384, engine=engine)
        self.assertEqual(engine.steps[-1].loads[0].pages, 384 // BLOCK)
        engine.finish(request)
        side, request = engine.scheduler._scheduler, Request("third", PROMPT)
        self.asks(side, request, 128)
        self.assertEqual(side.matched(request, 192), 320)
        self.asks(side, request, 64)  # blocks of 128 were dropped: reads again
        self.assertEqual(side.matched(request, 64), 448)
        self.assertEqual(side.matched(request, 512), 0)

    # --- failures ---

    def test_damage(self):
        self.save()
        self.damage(*self.objects(".kv"))
        engine, request = self.load(external=0)
        engine.finish(request)
        searches = []
        find = kvc.Namespace.find
        with mock.patch.object(kvc.Namespace, "find", lambda *a, **o: searches.append(1) or find(*a, **o)):
            side, other = engine.scheduler._scheduler, Request("third", PROMPT)
            while side.matched(other, 0) is None:
                pass
            for _ in range(1000):  # a request that waits for blocks is asked for in each step
                self.assertLess(side.matched(other, 0), 700)
        self.assertEqual(len(searches), 1)
        engine.close()
        loaded = 0
        for _ in range(5):  # what is computed instead is saved once a bad chunk is put aside, which is a bit after it was read
            again = self.engine()
            request = again.run(Request("again", PROMPT))
            self.assertTrue(again.right(request))
            self.assertGreaterEqual(request.external, loaded)
            loaded = request.external
            again.close()
        self.assertEqual(loaded, 512)

    def test_gone(self):
        """Chunks that are found and gone when they are read are not promised."""
        self.save()
        for path in self.objects(".kv"):
            os.unlink(path)
        self.load(external=0)

    def test_store_fails(self):
        self.save()
        with mock.patch.object(kvc.Namespace, "find", side_effect=kvc.Error(kvc.Code.IO, "the network is down")):
            with self.assertLogs("vllm.kvc", "WARNING") as logged:
                engine, _ = self.load(external=0)
        self.assertIn("the network is down", logged.output[0])
        self.assertEqual(self.counts(engine.scheduler)["read_failures"], 1)
        with mock.patch.object(kvc.Namespace, "put", side_effect=kvc.Error(kvc.Code.IO, "the disk is full")):
            with self.assertLogs("vllm.kvc", "WARNING") as logged:
                self.save([3] * 300)
        self.assertIn("the disk is full", logged.output[0])

    def test_broken_promise(self):
        """A worker that cannot map the memory reports the blocks; its engine computes them, and what may be rubbish is not saved."""
        self.save()
        engine = self.engine()
        with mock.patch.object(vllm_worker, "borrow", side_effect=OSError("no such process")), self.assertLogs("vllm.kvc", "WARNING"):
            request = engine.run(Request("second", PROMPT + [9] * 200))
        self.assertEqual(request.external, 512)
        self.assertTrue(engine.right(request))
        self.assertEqual([len(meta.saves) for meta in engine.steps if meta.loads], [1])  # it would hold rubbish: the worker leaves it out
        self.assertEqual(len(self.objects(".kv")), 2)
        self.assertEqual(self.counts(engine.worker)["load_failures"], 1)
        self.load(external=0, engine=engine)  # no promise any more

    def test_promise_without_memory(self):
        engine = self.engine()
        request = engine.add(Request("second", PROMPT))
        request.blocks, request.state = list(range(11)), "running"
        blocks = SimpleNamespace(get_block_ids=lambda: (request.blocks,))
        engine.scheduler.update_state_after_alloc(request, blocks, 128)
        engine.worker.bind_connector_metadata(KvcMetadata(*engine.scheduler._scheduler.jobs(NOTHING)))
        with self.assertLogs("vllm.kvc", "WARNING"):
            engine.worker.start_load_kv(None)
        self.assertEqual(engine.worker.get_block_ids_with_load_errors(), {0, 1})
        self.assertEqual(engine.worker.get_block_ids_with_load_errors(), set())

    # --- the life of requests ---

    def test_pieces(self):
        engine = self.engine()
        request = engine.run(Request("first", PROMPT), budget=100)
        [at] = [i for i, meta in enumerate(engine.steps) if meta.saves]
        self.assertEqual(len(engine.steps) - at, 2)  # tokens 500 to 599, of seven pieces the last but one
        self.assertEqual(len(engine.steps[at].saves[0].tokens), 512)
        engine.finish(request)
        engine.close()
        self.load()

    def test_preemption(self):
        engine = self.engine()
        request = engine.add(Request("first", PROMPT))
        while not request.num_computed_tokens:
            engine.step(300)
        engine.preempt(request)
        engine.free.reverse()  # it gets other blocks
        engine.run(request)
        self.assertTrue(engine.right(request))
        self.assertEqual(sum(len(meta.saves) for meta in engine.steps), 1)
        engine.close()
        engine, request = self.load()
        engine.preempt(request)
        request.num_computed_tokens = 0
        engine.run(request)
        self.assertTrue(request.external == 512 and engine.right(request))

    def test_ranks_save_later(self):
        """Where one of several ranks could not load, what others compute in that step may be rubbish: it is saved when all have loaded."""
        self.save()
        engine = self.engine()
        engine.scheduler._scheduler._namespaces *= 2
        with mock.patch.object(SchedulerSide, "_read", lambda *a: Found(0, 256, 256, 4, [vllm_jobs.Lent(10**6)] * 2)):
            engine.run(Request("second", PROMPT), budget=444)
        self.assertEqual([(len(meta.loads), len(meta.saves)) for meta in engine.steps if meta.loads or meta.saves], [(1, 0)])
        engine.requests["second"].num_prompt_tokens += 9  # it is scheduled again
        engine.scheduler._scheduler._later = ["second", "gone"]
        output = SchedulerOutput([], CachedRequestData(), {"second": 1}, KVConnectorBlockState({"second"}, lambda _: (list(range(11)),)))
        [save] = engine.scheduler._scheduler.jobs(output)[1]
        self.assertEqual((save.request, len(save.tokens), save.blocks), ("second", 512, list(range(8))))

    def test_abort(self):
        self.save()
        engine = self.engine()
        side = engine.scheduler._scheduler
        request = engine.add(Request("gone", PROMPT))
        side.matched(request, 0)
        engine.finish(request)
        engine.finish(engine.add(Request("never asked for", PROMPT)))
        for table in (side._reading, side._requests, side._stored, side._lent):
            self.assertEqual(len(table), 0)
        self.load(engine=engine)

    def test_new_weights(self):
        """After a reset nothing of the old weights is found, with or without a salt. What is computed then is, until the next reset."""
        self.save()
        engine = self.engine()
        for weights in (5, 6):
            self.assertTrue(engine.change(weights))
            for salt, external in ((None, 0), ("s", 0), (None, 512), ("s", 512)):
                _, request = self.load(external=external, engine=engine, cache_salt=salt)
                engine.finish(request)
                self.stored(engine)
        self.assertEqual(len(self.objects(".kv")), 2 + 2 * 2 * 2)
        self.load()  # another engine has the old weights

    def test_reset_meanwhile(self):
        """What was read before a reset is read again; prompts that are half computed are saved if they are computed anew, and else not."""
        self.save()
        engine = self.engine()
        side, waiting = engine.scheduler._scheduler, Request("waiting", PROMPT)
        self.asks(side, waiting, 0)
        self.assertEqual(side.matched(waiting, 0), 512)
        half = engine.add(Request("half", PROMPT[1:]))
        while not half.num_computed_tokens:
            engine.step(300)
        self.assertTrue(engine.change(5, preempt=False))
        self.asks(side, waiting, 0)
        self.assertEqual(side.matched(waiting, 0), 0)
        engine.run(half)
        engine.finish(half)
        self.assertEqual(sum(len(meta.saves) for meta in engine.steps), 0)
        half = engine.add(Request("half", PROMPT[1:]))
        while not half.num_computed_tokens:
            engine.step(300)
        self.assertTrue(engine.change(6))
        engine.run(half)
        engine.finish(half)
        self.stored(engine)
        self.assertEqual(len(self.objects(".kv")), 4)
        self.load(PROMPT[1:], engine=engine)

    def stored(self, engine):
        """Waits until what is stored in the background is there."""
        while engine.worker._worker._waiting:
            time.sleep(0.001)

    def test_copies(self):
        """Blocks are other requests' when wait_for_save() returns."""
        engine, wait = self.engine(), threading.Event()
        put = kvc.Namespace.put
        with mock.patch.object(kvc.Namespace, "put", lambda *a, **o: wait.wait(10) and put(*a, **o)):
            engine.run(Request("first", PROMPT))
            for memory in engine.memory:
                memory[:] = 7
            wait.set()
            engine.close()
        self.load()

    def test_twice(self):
        engine, wait, puts = self.engine(), threading.Event(), []
        with mock.patch.object(kvc.Namespace, "put", lambda *a, **o: wait.wait(10) and puts.append(1) is None):
            for name in "first", "second":
                engine.finish(engine.run(Request(name, PROMPT)))
            wait.set()
            engine.close()
        self.assertEqual(len(puts), 1)

    def test_queue(self):
        engine, wait = self.engine(), threading.Event()
        with mock.patch.object(kvc.Namespace, "put", lambda *a, **o: wait.wait(10)), mock.patch.object(vllm_worker, "QUEUE_BYTES", 1):
            engine.run(Request("first", PROMPT))
            with self.assertLogs("vllm.kvc", "WARNING"):
                engine.run(Request("second", PROMPT[1:]))
            wait.set()
        self.assertEqual(self.counts(engine.worker)["dropped_saves"], 1)

    def test_roles(self):
        self.load(external=0, engine=self.engine(role="kv_consumer"))
        self.assertEqual(self.objects(".kv"), [])
        self.save()
        self.load(external=0, engine=self.engine(role="kv_producer"))
        self.load(engine=self.engine(role="kv_consumer"))

    def test_memory(self):
        """What is read before it is scheduled has a limit; one prompt alone may be larger."""
        self.save()
        self.save(PROMPT[1:])
        engine = self.engine(memory=1e-6)
        side = engine.scheduler._scheduler
        first, second = Request("first", PROMPT), Request("second", PROMPT[1:])
        with self.waiting_readers(side):
            self.assertIsNone(side.matched(first, 0))
            self.assertIsNone(side.matched(second, 0))
            self.assertNotIn("second", side._reading)
        side._reading["first"].future.result(30)
        self.assertIsNone(side.matched(second, 0))  # what was read is held until it is promised
        self.assertNotIn("second", side._reading)
        self.assertEqual(side.matched(first, 0), 512)
        side.finished("first")
        self.asks(side, second, 0)

    def test_lent_memory(self):
        lent = vllm_jobs.Lent(5000)
        lent.map[:3] = b"abc"
        name, found = lent.name, vllm_jobs.borrow(lent.name, 5000)
        self.assertEqual(bytes(found[:3]), b"abc")
        for wrong in (name, 9000), (name.replace("kvc-", "kvc-1"), 5000), ("/proc/self/fd/999999 kvc-1", 5000):
            with self.assertRaises(OSError):
                vllm_jobs.borrow(*wrong)
        before = len(os.listdir("/proc/self/fd"))
        del lent
        gc.collect()
        self.assertEqual(bytes(found[:3]), b"abc")  # it stays as long as it is mapped
        self.assertLess(len(os.listdir("/proc/self/fd")), before)

    # --- what tells prompts apart ---

    def test_passed_by(self):
        self.save()
        engine = self.engine()
        for change in ({"lora_request": object()}, {"prompt_embeds": object()}, {"prompt_is_token_ids": [True]}, {"pooling_params": object()}):
            request = engine.run(Request("other", PROMPT, **change))
            self.assertTrue(passed_by(request))
            self.assertEqual(request.external, 0)
            engine.finish(request)
        self.assertEqual(sum(len(meta.saves) for meta in engine.steps), 0)
        self.load(external=0, engine=engine, skip_reading_prefix_cache=True)

    def test_extras(self):
        def image(name, at=40):
            return SimpleNamespace(identifier=name, mm_position=SimpleNamespace(offset=at, length=8))

        engine = self.engine()
        engine.finish(engine.run(Request("image", PROMPT, mm_features=[image("a")])))
        engine.finish(engine.run(Request("salt", PROMPT, cache_salt="x")))
        engine.close()
        self.load(external=0, engine=self.engine(role="kv_consumer"))
        self.load(external=0, engine=self.engine(role="kv_consumer"), mm_features=[image("b")])
        self.load(external=0, engine=self.engine(role="kv_consumer"), cache_salt="y")
        self.load(engine=self.engine(), mm_features=[image("a")])
        self.load(engine=self.engine(), cache_salt="x")
        order = [at for at, _, _ in extras_of(Request("r", PROMPT, mm_features=[image("b", 90), image("a", 5)], cache_salt="s"))]
        self.assertEqual(order, [0, 5, 90])
        engine = self.engine()
        engine.run(Request("late image", PROMPT + [8] * 20, mm_features=[image("c", 705)]))  # after the whole chunks

    # --- the interface ---

    def test_interface(self):
        engine = self.engine()
        self.assertIsInstance(engine.scheduler, SupportsHMA)
        self.assertFalse(KvcConnector.requires_piecewise_for_cudagraph({}))
        self.assertFalse(engine.scheduler.requires_kv_delivery)
        engine.worker.wait_for_layer_load("x")
        engine.worker.save_kv_layer("x", None, None)
        self.assertEqual(engine.worker.get_finished(set()), (None, None))
        with self.assertLogs("vllm.kvc", "WARNING"):
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(SimpleNamespace(), 0), (0, False))
            self.assertEqual(engine.scheduler._scheduler.jobs(SimpleNamespace()), ([], []))

    def test_counts(self):
        engine = self.engine()
        engine.run(Request("first", PROMPT))
        engine.close()
        self.assertEqual((self.counts(engine.scheduler), self.counts(engine.worker)), ({"lookups": 1}, {"saved_tokens": 512}))
        engine, _ = self.load()
        stats = engine.scheduler.get_kv_connector_stats().aggregate(engine.worker.get_kv_connector_stats())
        self.assertEqual(stats.reduce(), {"lookups": 1, "hits": 1, "hit_tokens": 512, "loaded_tokens": 512})
        self.assertIsNone(engine.worker.get_kv_connector_stats())
        counter = Counter.made = {}
        metrics = KvcConnector.build_prom_metrics(SimpleNamespace(kv_transfer_config=None), {Counter: Counter}, ["engine"], {0: ["0"], 1: ["1"]})
        metrics.observe({**stats.to_dict(), "of a later version": 1}, 1)
        metrics.observe({"hits": 2}, 0)
        self.assertEqual({key: n for key, n in counter.items() if n},
                         {("lookups", "1"): 1, ("hits", "1"): 1, ("hit_tokens", "1"): 512, ("loaded_tokens", "1"): 512, ("hits", "0"): 2})
        self.assertEqual(len(counter), 2 * len(COUNTERS))
        again = KvcConnector.build_kv_connector_stats(dict(stats.data))
        again.reset()
        self.assertTrue(isinstance(again, KvcStats) and again.is_empty())


if __name__ == "__main__":
    unittest.main()
