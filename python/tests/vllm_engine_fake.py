"""A small engine for tests of the vLLM connector: schedules as vLLM does, and computes rows that follow from all tokens before them."""

import time
from types import SimpleNamespace
from typing import Any, Dict, List

import numpy as np
from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.v1.core.sched.output import CachedRequestData, KVConnectorBlockState, NewRequestData, SchedulerOutput
from vllm.v1.outputs import KVConnectorOutput

from kvc.connectors.base import Geometry
from kvc.connectors.vllm_connector import KvcConnector
from kvc.connectors.vllm_pages import Pages

LAYERS, HEADS, DIM, BLOCK, BLOCKS = 2, 2, 32, 64, 40


class Tensor:
    """What the connector asks of a torch tensor."""

    def __init__(self, array: np.ndarray, device: str = "cpu") -> None:
        self.array, self.device, self.dtype, self.shape = array, device, "torch.float16", array.shape

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def element_size(self) -> int:
        return self.array.itemsize

    def stride(self):
        return tuple(s // self.array.itemsize for s in self.array.strides)


class FullAttentionSpec(SimpleNamespace):
    pass


def cache_config(**changes: Any) -> SimpleNamespace:
    spec = FullAttentionSpec(**{"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM, "head_size_v": DIM,
                                "dtype": "torch.float16", "sliding_window": None, "attention_chunk_size": None, **changes})
    names = [f"model.layers.{i}.self_attn.attn" for i in range(LAYERS)]
    return SimpleNamespace(num_blocks=BLOCKS, kv_cache_groups=[SimpleNamespace(layer_names=names, kv_cache_spec=spec)])


def vllm_config(extra: Dict[str, Any], role: str = "kv_both", tp: int = 1, **model: Any) -> SimpleNamespace:
    text = SimpleNamespace(model_type="llama", num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=HEADS * tp,
                           head_dim=DIM, rope_parameters={"rope_theta": 1e4, "rope_type": "default"})
    return SimpleNamespace(
        model_config=SimpleNamespace(**{"model": "a/model", "revision": None, "dtype": "torch.float16", "hf_text_config": text,
                                        "quantization": None, "is_encoder_decoder": False, **model}),
        parallel_config=SimpleNamespace(tensor_parallel_size=tp, pipeline_parallel_size=1, decode_context_parallel_size=1,
                                        prefill_context_parallel_size=1),
        cache_config=SimpleNamespace(cache_dtype="auto", block_size=BLOCK), load_config=SimpleNamespace(load_format="auto"),
        device_config=SimpleNamespace(device_type="cpu"),
        kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra, is_kv_producer=role != "kv_consumer",
                                           is_kv_consumer=role != "kv_producer"))


class Request(SimpleNamespace):
    def __init__(self, name: str, tokens: List[int], **changes: Any) -> None:
        super().__init__(**{"request_id": name, "prompt_token_ids": tokens, "num_prompt_tokens": len(tokens), "num_tokens": len(tokens),
                            "num_computed_tokens": 0, "prompt_embeds": None, "prompt_is_token_ids": None, "mm_features": [],
                            "lora_request": None, "pooling_params": None, "cache_salt": None, "skip_reading_prefix_cache": False,
                            "blocks": [], "state": "waiting", "external": 0, **changes})


def rows(tokens: List[int], layer: int, role: str, weights: int = 0) -> np.ndarray:
    """K or V of a prompt: each row follows from all tokens up to its own, and from the weights."""
    sums = np.cumsum((np.asarray(tokens, np.int64) + weights) * (np.arange(len(tokens)) % 17 + 1)) % 1009
    at = np.arange(HEADS * DIM).reshape(HEADS, DIM)
    return ((sums[:, None, None] + 31 * at + 7 * layer + (500 if role == "V" else 0)) % 2039).astype(np.float16)


class Engine:
    """An engine of one rank. `steps` are what the connector was told in each step."""

    def __init__(self, extra: Dict[str, Any], **options: Any) -> None:
        config = vllm_config(extra, **options)
        self.scheduler = KvcConnector(config, KVConnectorRole.SCHEDULER, cache_config())
        self.worker = KvcConnector(config, KVConnectorRole.WORKER, cache_config())
        self.memory = [np.zeros((BLOCKS, HEADS, BLOCK, 2 * DIM), np.float16) for _ in range(LAYERS)]
        self.worker.register_kv_caches({f"model.layers.{i}.self_attn.attn": Tensor(a) for i, a in enumerate(self.memory)})
        pages = Pages([""], Geometry(1, HEADS, DIM, "half"), BLOCK, "vec")
        self.views = [{key: bits.view(np.float16) for key, bits in pages.views(a, BLOCKS).items()} for a in self.memory]
        self.free, self.requests, self.steps = list(range(BLOCKS)), {}, []
        self.known = 0  # tokens that this engine's own prefix cache has of each request
        self.weights = 0

    def row(self, request: Request, first: int, end: int) -> Dict[Any, np.ndarray]:
        """Returns K and V in the blocks of a request, by layer and role."""
        at = np.arange(first, end)
        blocks = np.asarray(request.blocks)[at // BLOCK]
        return {(layer, role): view[0, role][blocks, at % BLOCK] for layer, view in enumerate(self.views) for role in "KV"}

    def compute(self, request: Request, first: int, end: int) -> None:
        at = np.arange(first, end)
        blocks = np.asarray(request.blocks)[at // BLOCK]
        for layer, view in enumerate(self.views):
            for role in "KV":
                view[0, role][blocks, at % BLOCK] = rows(request.prompt_token_ids, layer, role, self.weights)[first:end]

    def right(self, request: Request) -> bool:
        """Whether all rows of a prompt are those that it has without a store."""
        found = self.row(request, 0, request.num_prompt_tokens)
        return all(np.array_equal(a, rows(request.prompt_token_ids, *key, self.weights)) for key, a in found.items())

    def add(self, request: Request) -> Request:
        self.requests[request.request_id] = request
        return request

    def finish(self, request: Request) -> None:
        del self.requests[request.request_id]
        self.free += request.blocks
        self.scheduler.request_finished_all_groups(request, (request.blocks,))

    def preempt(self, request: Request) -> None:
        self.free += request.blocks
        request.blocks, request.state, request.num_computed_tokens = [], "preempted", 0

    def change(self, weights: int, preempt: bool = True) -> bool:
        """Changes the weights in place, and resets as vLLM does with reset_connector=True; `preempt`: with reset_running_requests=True."""
        self.weights = weights
        for request in self.requests.values() if preempt else ():
            self.preempt(request)
        return self.scheduler.reset_cache() is not False

    def step(self, budget: int = 10**6) -> SchedulerOutput:
        new, cached, scheduled = [], CachedRequestData(), {}
        for r in self.requests.values():
            if r.state in ("waiting", "preempted"):
                external, later = self.scheduler.get_num_new_matched_tokens(r, self.known)
                assert later is False
                if external is None:
                    continue
                r.blocks = [self.free.pop() for _ in range(-(-r.num_prompt_tokens // BLOCK))]
                r.external, r.num_computed_tokens = external, self.known + external
                blocks = SimpleNamespace(get_block_ids=lambda r=r: (list(r.blocks),))
                self.scheduler.update_state_after_alloc(r, blocks, external)
                self.compute(r, 0, self.known)
            n = min(budget, r.num_prompt_tokens - r.num_computed_tokens)
            if n <= 0:
                continue
            scheduled[r.request_id] = n
            if r.state == "waiting":
                new.append(NewRequestData(r.request_id, r.prompt_token_ids, (list(r.blocks),), r.num_computed_tokens))
            else:
                cached.req_ids.append(r.request_id)
                cached.num_computed_tokens.append(r.num_computed_tokens)
                cached.new_block_ids.append((list(r.blocks),) if r.state == "preempted" else None)
            r.state = "running"
        state = KVConnectorBlockState(set(scheduled), lambda name: (list(self.requests[name].blocks),))
        output = SchedulerOutput(new, cached, scheduled, state)
        self.forward(output, self.scheduler.build_connector_meta(output))
        return output

    def forward(self, output: SchedulerOutput, meta: Any) -> None:
        self.steps.append(meta)
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)
        for name, n in output.num_scheduled_tokens.items():
            r = self.requests[name]
            self.compute(r, r.num_computed_tokens, r.num_computed_tokens + n)
        self.worker.wait_for_save()
        bad = self.worker.get_block_ids_with_load_errors()
        said = self.worker.build_connector_worker_meta()
        self.worker.clear_connector_metadata()
        for name, n in output.num_scheduled_tokens.items():
            r = self.requests[name]
            r.num_computed_tokens += n
            first = next((i for i, block in enumerate(r.blocks) if block in bad), None)
            if first is not None:
                r.num_computed_tokens = first * BLOCK  # kv_load_failure_policy=recompute
        self.scheduler.update_connector_output(KVConnectorOutput(kv_connector_worker_meta=said, invalid_block_ids=bad))

    def run(self, request: Request, budget: int = 10**6) -> Request:
        """Computes a prompt. Its blocks stay until finish()."""
        self.add(request)
        for _ in range(20000):
            self.step(budget)
            if request.num_computed_tokens >= request.num_prompt_tokens:
                return request
            time.sleep(0.0005)
        raise AssertionError("the prompt was not scheduled")

    def close(self) -> None:
        self.worker.shutdown()
        self.scheduler.shutdown()
