"""What the connector of vLLM refuses when the engine starts, and what tells its caches apart. With stand-ins, as test_vllm_connector.py."""

import logging
import pathlib
import sys
import unittest
from types import SimpleNamespace
from unittest import mock

import numpy as np
from common import Case, needs_store

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "fakes"))

from vllm.distributed import parallel_state  # noqa: E402
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole  # noqa: E402
from vllm.v1.attention.backends import cpu_attn  # noqa: E402
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput  # noqa: E402
from vllm_engine_fake import BLOCK, BLOCKS, DIM, HEADS, LAYERS, Request, Tensor, cache_config, vllm_config  # noqa: E402

import kvc  # noqa: E402
from kvc.connectors import vllm_jobs, vllm_model  # noqa: E402
from kvc.connectors.base import Connection  # noqa: E402
from kvc.connectors.vllm_connector import KvcConnector  # noqa: E402

NOTHING = SchedulerOutput([], CachedRequestData(), {})
PROMPT = [7 * i * i % 997 + 2 for i in range(700)]


@needs_store
class TestModel(Case):
    def setUp(self):
        super().setUp()
        self.extra = {"store": f"dir:{self.path('store')}", "chunk": 256, "deadline": 5}

    def test_namespaces(self):
        def name(extra=None, tp=1, rank=0, spec=None, **model):
            config = vllm_config({**self.extra, **(extra or {})}, tp=tp, **model)
            options = vllm_model.Options.take(config.kv_transfer_config.kv_connector_extra_config, "it")
            facts = vllm_model.facts_of_vllm(config, options.weights, rank)
            kvc = Connection(options, logging.getLogger("test"))
            self.addCleanup(kvc.close)
            pages = vllm_model.pages_of(cache_config(**(spec or {})))
            return vllm_model.open_caches(kvc, pages, facts, options.chunk).namespace.name

        names = [name(), name(model="b/model"), name(revision="1"), name(dtype="torch.float32"), name(spec={"dtype": "torch.bfloat16"}),
                 name(tp=2), name(tp=2, rank=1), name({"recipe": "near-lossless"}), name(quantization="fp8"), name({"chunk": 512}),
                 name(spec={"num_kv_heads": 1})]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual(name(), name({"recipe": "fast"}))  # lossless recipes are two ways to the same rows

    def test_longrope(self):
        """vLLM takes one of two lists of divisors by its longest context: caches of two contexts are told apart."""
        def source(kind, context):
            text = SimpleNamespace(model_type="phi3", rope_parameters={"rope_theta": 1e4, "rope_type": kind})
            return vllm_model.facts_of_vllm(vllm_config({}, hf_text_config=text, max_model_len=context), None, 0).get("rope.source")

        self.assertEqual([source("longrope", 4096), source("longrope", 131072)], ["vllm, context 4096", "vllm, context 131072"])
        self.assertEqual([source("dynamic", 4096), source("yarn", 4096)], ["vllm", None])

    def test_page(self):
        self.explains("VLLM.md", vllm_model.Options.names())

    def test_weights(self):
        """Local weights are told by their fingerprint, as all programs of kvc do; quantised ones are others."""
        weights = self.weights()
        key, _, value = kvc.model_identity(weights).rpartition(":")
        for config, named in (vllm_config({}), str(weights)), (vllm_config({}, model=str(weights)), None):
            facts = vllm_model.facts_of_vllm(config, named, 0)
            self.assertEqual((facts[key], facts.get("model.name")), (value, None))
        self.assertIn(value, vllm_model.facts_of_vllm(vllm_config({}, quantization="fp8"), str(weights), 0)["model.name"])

    def test_ranks(self):
        """Of two ranks, each loads its own heads; the prefix is what both have."""
        caches = {}
        for number in range(2):
            config = vllm_config({**self.extra}, tp=2)
            scheduler = KvcConnector(config, KVConnectorRole.SCHEDULER, cache_config())
            workers = []
            for rank in range(2):
                with mock.patch.object(parallel_state, "RANK", rank):
                    workers.append(KvcConnector(config, KVConnectorRole.WORKER, cache_config()))
                memory = [np.full((BLOCKS, HEADS, BLOCK, 2 * DIM), 10 * rank + i + 1, np.float16) * (number == 0) for i in range(LAYERS)]
                workers[rank].register_kv_caches({f"model.layers.{i}.self_attn.attn": Tensor(a) for i, a in enumerate(memory)})
                caches[rank] = memory
            if number == 0:
                for worker in workers:
                    worker._worker.save([vllm_jobs.Save("a", PROMPT[:512], list(range(8)), [])])
            else:
                request = Request("b", PROMPT)
                while scheduler.get_num_new_matched_tokens(request, 0)[0] is None:
                    pass
                scheduler.update_state_after_alloc(request, SimpleNamespace(get_block_ids=lambda: (list(range(20, 31)),)), 512)
                loads = scheduler._scheduler.jobs(NOTHING)[0]
                for rank, worker in enumerate(workers):
                    worker._worker.load(loads)
                    self.assertTrue(all((caches[rank][i][20:28] == 10 * rank + i + 1).all() for i in range(LAYERS)))
                said = workers[0].build_connector_worker_meta().aggregate(workers[1].build_connector_worker_meta())
                self.assertEqual((said.loaded, said.stopped), ({"b": 2}, False))
                scheduler.update_connector_output(SimpleNamespace(kv_connector_worker_meta=said))
                self.assertEqual(scheduler._scheduler._lent, {})
            for connector in (*workers, scheduler):
                connector.shutdown()

    def test_refused(self):
        def make(config, cache=None):
            return KvcConnector(config, KVConnectorRole.WORKER, cache or cache_config())

        def changed(**changes):
            config = vllm_config(self.extra)
            for path, value in changes.items():
                part, _, name = path.partition("__")
                setattr(getattr(config, part), name, value)
            return config

        groups, draft = cache_config(), cache_config()
        groups.kv_cache_groups *= 2
        draft.kv_cache_groups[0].is_eagle_group = True  # as vLLM 0.33 marks it
        no = kvc.Code.UNSUPPORTED
        self.fails(no, "draft model", make, vllm_config(self.extra), draft)
        self.fails(no, "secondary tier", make, vllm_config(self.extra), groups)
        self.fails(no, "window", make, vllm_config(self.extra), cache_config(sliding_window=512))
        self.fails(no, "different sizes", make, vllm_config(self.extra), cache_config(head_size_v=16))
        self.fails(no, "'cuda'", make, changed(device_config__device_type="cuda"))
        self.fails(no, "pipeline_parallel_size", make, changed(parallel_config__pipeline_parallel_size=2))
        self.fails(no, "fp8", make, changed(cache_config__cache_dtype="fp8"))
        self.fails(no, "dummy", make, changed(load_config__load_format="dummy"))
        with mock.patch.object(cpu_attn, "ISA", "amx"):
            self.fails(no, "'amx'", make, vllm_config(self.extra))
        self.fails(kvc.Code.USAGE, "store", make, vllm_config({}))
        self.fails(kvc.Code.USAGE, "unknown options: colour", make, vllm_config({**self.extra, "colour": 1}))
        self.fails(kvc.Code.USAGE, "not whole blocks", make, vllm_config(self.extra), cache_config(block_size=96))

    def test_register(self):
        worker = KvcConnector(vllm_config(self.extra), KVConnectorRole.WORKER, cache_config())
        names = cache_config().kv_cache_groups[0].layer_names
        good = np.zeros((BLOCKS, HEADS, BLOCK, 2 * DIM), np.float16)
        no = kvc.Code.UNSUPPORTED
        self.fails(no, "'cuda'", worker.register_kv_caches, {name: Tensor(good, "cuda:0") for name in names})
        self.fails(no, "was expected", worker.register_kv_caches, {name: Tensor(good.transpose(0, 2, 1, 3)) for name in names})
        self.fails(no, "was expected", worker.register_kv_caches, {name: Tensor(good.astype(np.float32)) for name in names})
        self.fails(no, "no cache of the layer", worker.register_kv_caches, {names[0]: Tensor(good)})


if __name__ == "__main__":
    unittest.main()
