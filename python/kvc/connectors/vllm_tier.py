"""vLLM 0.32: a secondary tier of OffloadingConnector, which keeps chunks of vLLM's host memory in a kvc store.

    {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10000000000, "block_size": 256,
        "secondary_tiers": [{"type": "KvcTier", "module_path": "kvc.connectors.vllm_tier", "store": "dir:/var/cache/kvc"}]}}

vLLM copies between device and host, and names chunks by hashes of their tokens and all before them; the tier packs host memory and unpacks
into it, in threads of its own. It lives in the scheduler's process, and no call of vLLM waits for it.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
from vllm.v1.kv_offload.base import (Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext, get_offload_block_hash,
                                     get_offload_group_idx)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ..errors import Code, Error
from ..file import Path as AnyPath
from ..file import model_identity
from . import vllm_model, vllm_pages
from .base import (Caches, Connection, Geometry, PageOptions, Workers, dtype_of, facts_of_caches,
                   scale_facts)
from .vllm_pages import Pages

log = logging.getLogger("vllm.kvc")  # below vLLM's own, whose level and handlers it has

_LAYOUTS = {"LBNHC": "T-H-2D", "LBHNC": "H-T-2D"}  # KVCacheLayout: K and V of a token and head lie side by side
_CLOSING = 10.0  # seconds that a shutdown waits for stores


@dataclass(frozen=True)
class Options(PageOptions):
    """What the tier's JSON has beside what vLLM takes; VLLM.md has a table."""

    store: ClassVar[str] = "store"
    profile: Optional[str] = None
    heads: int = 0
    dim: int = 0
    layout: str = ""
    waiting: int = 4096
    forget_on_reset: bool = False


def layout_of(config: Any, dim: int) -> str:
    """Returns the layout of pages that vLLM's configuration tells."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        import torch

        return vllm_pages.cpu_layout(getattr(torch, config.model.dtype), config.groups[0].tokens_per_block, dim)
    return _LAYOUTS.get(config.kv_cache_layout, str(config.kv_cache_layout))


def cache_type(config: Any) -> str:
    """Returns the type of what vLLM stores, which a kv_cache_dtype makes another than the model's."""
    from vllm.config import get_current_vllm_config_or_none

    told = getattr(getattr(get_current_vllm_config_or_none(), "cache_config", None), "cache_dtype", "auto")
    return dtype_of(config.model.dtype if told == "auto" else told)


def head_dim_of(model: str) -> int:
    """Returns the channels of a head of a model that vLLM names. 0: it cannot be known."""
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    if current is not None:
        return int(current.model_config.get_head_size())
    try:
        from transformers import AutoConfig

        text = AutoConfig.from_pretrained(model, local_files_only=True).get_text_config()
        return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
    except Exception as problem:  # a model without such a configuration
        log.info("kvc: the head size of %s is not known: %s", model, problem)
        return 0


def _scale_of(layer: Any, role: str) -> Any:
    """Returns the scale of a layer of vLLM, or those of its heads. None: it has none."""
    value = getattr(layer, f"_{role}_scale", None)
    value = value.tolist() if value is not None and hasattr(value, "tolist") else value
    return getattr(layer, f"_{role}_scale_float", None) if value is None else value


def engine_scales(names: Sequence[str], numbers: Sequence[int]) -> Optional[Dict[str, Any]]:
    """Returns the scales that vLLM's layers have, by role and number. None: the layers are in other processes, as with several workers, or
    the scales are found by the first prompts (calculate_kv_scales)."""
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    if current is None or getattr(getattr(current, "cache_config", None), "calculate_kv_scales", False):
        return None
    layers = getattr(getattr(current, "compilation_config", None), "static_forward_context", None) or {}
    found: Dict[str, List[Any]] = {role: [None] * (max(numbers) + 1) for role in "kv"}
    for name, number in zip(names, numbers):
        for role, scales in found.items():
            scales[number] = _scale_of(layers.get(name), role)
            if scales[number] is None:
                return None
    return found


def engine_model(model: str, weights: Optional[AnyPath]) -> Tuple[str, Optional[AnyPath], Optional[str]]:
    """Returns what tells the model apart: its name, with revision and quantisation where there are some, the files of its weights, unless
    vLLM quantises them, and the source of its RoPE, if vLLM's configuration is known. Refuses random weights."""
    from vllm.config import get_current_vllm_config_or_none

    current = get_current_vllm_config_or_none()
    told = getattr(current, "model_config", None)
    if told is None:
        return model, weights, None
    vllm_model.refuse_dummy(current)
    if quantization := getattr(told, "quantization", None):
        model, weights = f"{model_identity(weights) if weights else model} {quantization}", None
    if revision := getattr(told, "revision", None):
        model = f"{model}@{revision}"
    return model, weights, vllm_model.rope_source_of(current)


class Host(NamedTuple):
    """How chunks lie in host memory."""

    groups: List[Pages]
    blocks: int  # pages of a chunk
    cell: int  # bytes from the part of a worker to that of the next one
    parts: int  # workers that have a part of their own: each is stored by itself


def host_layout(spec: Any, heads: int, dim: int, layout: str) -> Host:
    """Works out how the chunks of a spec lie in host memory. Raises kvc.Error if that cannot be or is not supported."""
    config = spec.config
    parallel, blocks = config.parallel, config.cache.blocks_per_chunk
    dim = dim or head_dim_of(config.model.name)
    if not dim:
        raise Error(Code.USAGE, f"the head size of {config.model.name} is not known: set \"dim\" in the configuration of the tier")
    workers = 1 if config.canonical_layout or config.replicated_layout else parallel.world_size
    most = max(len(group.layer_names) for group in config.groups)
    bytes_per_block = config.worker_kv_bytes_per_block * (parallel.world_size if config.canonical_layout else 1)
    dtype = cache_type(config)
    block = config.groups[0].tokens_per_block
    heads = heads or bytes_per_block // (most * block * Geometry(1, 1, dim, dtype).token_bytes)
    groups = [_pages_of(group, heads, dim, dtype, layout or layout_of(config, dim)) for group in config.groups]
    for group in groups:
        if group.page_bytes * most != bytes_per_block:
            raise Error(Code.UNSUPPORTED, f"a block of vLLM has {bytes_per_block} bytes, and {most} layers of {heads} heads of {dim} have "
                                          "others: MLA, states, packed or quantised caches are not supported; \"heads\" and \"dim\" in "
                                          "the tier's configuration name those of a worker")
    return Host(groups, blocks, spec.cpu_page_size_per_worker, workers)


def _pages_of(group: Any, heads: int, dim: int, dtype: str, layout: str) -> Pages:
    """Returns the pages of a group. Layers whose names do not tell them apart are 0, 1, 2 ..."""
    names = list(group.layer_names)
    geometry = Geometry(len(names), heads, dim, dtype, numbers=vllm_pages.layer_numbers(names))
    return Pages(names, geometry, group.tokens_per_block, layout)


class _Lookup(AsyncLookupManager):
    """Asks the store in a thread of vLLM's, for all chunks of a request at once."""

    def __init__(self, tier: "KvcTier") -> None:
        self._tier = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: List[bytes], req_context: Any) -> Iterable[bool]:
        return self._tier.find(keys)


class _Job:
    """A transfer, whose chunks are worked on one by one."""

    def __init__(self, job: Any, store: bool) -> None:
        self.job, self.store = job, store
        self.keys = list(job.keys)
        self.left = len(self.keys)
        self.good: List[bytes] = []
        self.bytes = 0
        self.began = time.monotonic()

    def result(self) -> JobResult:
        whole = len(self.good) == len(self.keys)
        return JobResult(job_id=self.job.job_id, success=whole, successful_keys=tuple(self.good) if self.good and not whole else None,
                         transfer_time=time.monotonic() - self.began, transfer_bytes=self.bytes)


class KvcTier(SecondaryTierManager):
    """The tier. Its arguments after `tier_type` are those of the tier's JSON; VLLM.md explains them."""

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, *,
                 enable_kv_events: bool = False, locality: Optional[str] = None, **given: Any) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        self._events = self._events_of(offloading_spec) if enable_kv_events else None
        self._options = o = Options.take(given, "the tier")
        self._generation, self._closed = "", False
        self._host = host = host_layout(offloading_spec, o.heads, o.dim, o.layout)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._kvc = Connection(o, log, "hits", "lookups", "loaded", "not_loaded", "stored", "not_stored", "dropped")
        self.counters = self._kvc.counters
        self._caches = [self._open(pages, offloading_spec.config.model.name) for pages in host.groups]
        self._jobs: Dict[int, _Job] = {}
        self._finished: Deque[_Job] = deque()
        self._changed = threading.Condition()
        self._workers = Workers(o.threads, o.waiting, "kvc-tier")
        self._lookup = _Lookup(self)
        log.info("kvc: tier in %s, namespaces %s, chunks of %s tokens", o.levels,
                 ", ".join(caches.namespace.name[:16] for caches in self._caches),
                 ", ".join(str(pages.page * host.blocks) for pages in host.groups))

    @staticmethod
    def _events_of(spec: Any) -> Optional[List[OffloadingEvent]]:
        """Returns a list for events of what is stored. None: vLLM publishes none, and takes none from the list."""
        events = getattr(spec, "kv_events_config", None)  # older versions of vLLM have none
        if events is not None and events.enable_kv_cache_events:
            return []
        log.warning("kvc: enable_kv_events is set for the tier, and vLLM's own events are off (kv_events_config): there will be none")
        return None

    def _open(self, pages: Pages, model: str) -> Caches:
        """Opens the namespace of a group: model, types and geometry."""
        o, g = self._options, pages.geometry
        scale = o.scale
        if scale is None and scale_facts(g.dtype, 1):
            scale = engine_scales(pages.names, g.numbers)
        name, weights, rope = engine_model(model, o.weights or (model if Path(model).is_dir() else None))
        facts = facts_of_caches(g, model=name, weights=weights, pairing=o.pairing,
                                scales=scale_facts(g.dtype, scale, o.scale_source, log=log), rope_source=o.rope_source or rope)
        return Caches(self._kvc, g, facts, layout=vllm_pages.AXES)

    # --- names ---

    def _names(self, key: bytes) -> List[str]:
        """Returns the names of a chunk in the store, one for each worker: what vLLM's key and configuration tell of its place."""
        group = get_offload_group_idx(key)
        name = f"vllm {get_offload_block_hash(key).hex()} {group} {self._tokens(group)}"
        return [f"{name} {i}/{self._host.parts}{self._generation}" for i in range(self._host.parts)]

    def _tokens(self, group: int) -> int:
        """Returns the tokens of a chunk."""
        return self._host.groups[group].page * self._host.blocks

    def find(self, keys: Sequence[bytes]) -> List[bool]:
        """Says of each chunk whether the store has all of its parts. Waits, at most to the deadline of the store."""
        found = [True] * len(keys)
        for group, caches in enumerate(self._caches):
            at = [i for i, key in enumerate(keys) if get_offload_group_idx(key) == group]
            there = caches.find([name for i in at for name in self._names(keys[i])])
            for n, i in enumerate(at):
                found[i] = all(there[n * self._host.parts:(n + 1) * self._host.parts])
        self.counters.add(lookups=len(keys), hits=sum(found))
        return found

    # --- what vLLM asks ---

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        found = self._lookup.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def on_schedule_end(self, context: Any) -> None:
        self._lookup.flush()

    def on_request_finished(self, req_context: Any) -> None:
        self._lookup.cleanup(req_context.req_id)

    def submit_store(self, job_metadata: Any) -> None:
        self._submit(_Job(job_metadata, store=True))

    def submit_load(self, job_metadata: Any) -> None:
        self._submit(_Job(job_metadata, store=False))

    def get_finished_jobs(self) -> Iterable[JobResult]:
        with self._changed:
            done, self._finished = self._finished, deque()
        for job in done:
            if not job.store:  # what could not be loaded is missing for this request, or vLLM would try it again without end
                self._lookup.mark_miss(set(job.keys) - set(job.good))
            result = job.result()
            if job.store and result.success and job.keys and self._events is not None:  # as vLLM's own tiers: none of a job in part
                self._events.append(OffloadingEvent(keys=job.keys, medium=self.medium, removed=False, locality=self.locality))
            yield result

    def take_events(self) -> Iterable[OffloadingEvent]:
        """Returns what was stored since it was asked last."""
        if self._events is None:
            return ()
        taken, self._events = self._events, []
        return taken

    def drain_jobs(self) -> None:
        """Waits for all transfers. vLLM calls it when it resets its caches, and tells tiers so in no other way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs)
        if self._options.forget_on_reset:
            self.reset_cache()

    def reset_cache(self) -> None:
        """Finds nothing any more of what is stored, as the weights may have changed: a generation of names begins."""
        self._generation = f" {uuid.uuid4().hex}"
        log.info("kvc: caches that were stored before are not used any more: a new generation begins")

    def shutdown(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._changed:
            self._changed.wait_for(lambda: not self._jobs, _CLOSING)
        self._lookup.shutdown()
        self._workers.close()
        self._rows = np.empty((0, 0), np.uint8)  # vLLM cannot release its memory while it is in use
        self._kvc.close(_CLOSING)

    # --- chunks ---

    def _submit(self, job: _Job) -> None:
        if not job.keys:
            self._finished.append(job)
            return
        with self._changed:
            self._jobs[job.job.job_id] = job
        # The beginning of a prompt last: named caches are evicted by themselves, and without it the rest is of no use.
        for key, chunk in reversed(list(zip(job.keys, job.job.chunk_ids))):
            self._workers.submit(functools.partial(self._transfer, job, key, int(chunk)),
                                 functools.partial(self._drop, job, key), store=job.store)

    def _drop(self, job: _Job, key: bytes, why: str) -> None:
        self.counters.trouble("dropped", f"a chunk was neither stored nor loaded: {why}")
        self._done(job, key, False)

    def _transfer(self, job: _Job, key: bytes, chunk: int) -> None:
        """Stores or loads a chunk. Never raises: what goes wrong is a chunk that was not stored, or that is computed again."""
        good = False
        try:
            good = all([self._part(job, key, name, chunk, i) for i, name in enumerate(self._names(key))])
            self.counters.add(**{("" if good else "not_") + ("stored" if job.store else "loaded"): 1})
        except Exception as problem:
            self.counters.trouble("not_stored" if job.store else "not_loaded", f"kvc: {problem}")
        self._done(job, key, good)

    def _part(self, job: _Job, key: bytes, name: str, chunk: int, worker: int) -> bool:
        group = get_offload_group_idx(key)
        caches: Caches = self._caches[group]
        views = self._host.groups[group].views(self._rows[chunk, worker * self._host.cell:], self._host.blocks)
        if not job.store:
            return caches.load(name, views)
        tokens = self._tokens(group)
        end = job.job.req_context.get_offload_key_position(key) or tokens  # recipes with a profile need true positions
        return caches.put(name, views, first=end - tokens)

    def _done(self, job: _Job, key: bytes, good: bool) -> None:
        with self._changed:
            if good:
                job.good.append(key)
                group = get_offload_group_idx(key)
                job.bytes += self._caches[group].geometry.token_bytes * self._tokens(group) * self._host.parts
            job.left -= 1
            if not job.left:
                del self._jobs[job.job.job_id]
                self._finished.append(job)
                self._changed.notify_all()
