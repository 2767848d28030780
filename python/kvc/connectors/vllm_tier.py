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
import re
import threading
import time
import uuid
from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Deque, Dict, Iterable, List, NamedTuple, Optional, Sequence

import numpy as np
from vllm.v1.kv_offload.base import (Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext, get_offload_block_hash,
                                     get_offload_group_idx)
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from ..arrays import Key
from ..errors import Code, Error
from ..pack import open_arrays
from ..store import Namespace, Store
from . import vllm_pages
from .pages import Counters, Geometry, Workers, dtype_of, facts_of_pages, scale_facts

log = logging.getLogger("vllm.kvc")  # below vLLM's own, whose level and handlers it has

_LAYOUTS = {"LBNHC": "T-H-2D", "LBHNC": "H-T-2D"}  # KVCacheLayout: K and V of a token and head lie side by side
_CLOSING = 10.0  # seconds that a shutdown waits for stores


def layout_of(config: Any, dim: int) -> str:
    """Returns the layout of pages that vLLM's configuration tells. On a CPU its attention kernel decides it."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        import torch
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        return str(_get_attn_isa(getattr(torch, config.model.dtype), config.groups[0].tokens_per_block, dim))
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


def layer_numbers(names: Sequence[str]) -> List[int]:
    """Returns the numbers in names as "model.layers.3.self_attn.attn", or 0, 1, 2, ... if they do not tell layers apart."""
    found = [re.search(r"\.(\d+)\.", name) for name in names]
    numbers = [int(match[1]) for match in found if match]
    return numbers if len(set(numbers)) == len(names) else list(range(len(names)))


def _scale_of(layer: Any, role: str) -> Any:
    """Returns the scale of a layer of vLLM, or those of its heads. None: it has none."""
    value = getattr(layer, f"_{role}_scale", None)
    value = value.tolist() if hasattr(value, "tolist") else value
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


class Pages:
    """K and V of the chunks of a group of layers in a row of vLLM's host memory."""

    def __init__(self, group: Any, heads: int, dim: int, dtype: str, layout: str, blocks: int) -> None:
        self.names = list(group.layer_names)
        self.layers = layer_numbers(self.names)
        self.page = group.tokens_per_block
        self.geometry = Geometry(len(self.layers), heads, dim, dtype)
        self.tokens = self.page * blocks
        self.size = self.tokens * self.geometry.token_bytes
        self._layout = layout

    def views(self, row: np.ndarray) -> Dict[Key, np.ndarray]:
        """Returns K and V in a row by layer and role."""
        g = self.geometry
        found = vllm_pages.views(row, g.layers, g.heads, g.dim, self.tokens, g.dtype, self._layout, page=self.page)
        return {(self.layers[i], role): array for (i, role), array in found.items()}

    @property
    def axes(self) -> str:
        """The axes of the views."""
        return "THD" if self.tokens == self.page else vllm_pages.AXES


class Host(NamedTuple):
    """How chunks lie in host memory."""

    groups: List[Pages]
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
    per_head = vllm_pages.page_bytes(1, dim, config.groups[0].tokens_per_block, dtype) * most
    heads = heads or bytes_per_block // per_head
    groups = [Pages(group, heads, dim, dtype, layout or layout_of(config, dim), blocks) for group in config.groups]
    for group in groups:
        if group.geometry.token_bytes * group.page * most != bytes_per_block * len(group.layers):
            raise Error(Code.UNSUPPORTED, f"a block of vLLM has {bytes_per_block} bytes, and {most} layers of {heads} heads of {dim} have "
                                          "others: MLA, states, packed or quantised caches are not supported; \"heads\" and \"dim\" in "
                                          "the tier's configuration name those of a worker")
        group.views(np.zeros(group.size, np.uint8))  # refuses layouts that are not known
    return Host(groups, spec.cpu_page_size_per_worker, workers)


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

    def __init__(self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, *, store: str,
                 recipe: str = "fast", profile: Optional[str] = None, weights: Optional[str] = None, heads: int = 0, dim: int = 0,
                 layout: str = "", pairing: Optional[str] = None, scale: Any = None, scale_source: Optional[str] = None, threads: int = 4,
                 waiting: int = 4096, deadline: Optional[float] = None, load_deadline: Optional[float] = None,
                 key_file: Optional[str] = None, tenant_file: Optional[str] = None, forget_on_reset: bool = False,
                 enable_kv_events: bool = False, locality: Optional[str] = None) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.locality = None if locality is None else Locality(locality)
        self._events = self._events_of(offloading_spec) if enable_kv_events else None
        self._forgets, self._generation, self._closed = forget_on_reset, "", False
        self._host = host_layout(offloading_spec, heads, dim, layout)
        self._rows = np.asarray(primary_kv_view).view(np.uint8)
        self._store = Store(store, timeout=deadline, load_timeout=load_deadline, key_file=key_file)
        model = offloading_spec.config.model.name
        weights = weights or (model if Path(model).is_dir() else None)
        self._facts = [facts_of_pages(group.geometry, model=model, weights=weights, pairing=pairing,
                                      scales=self._scales(group, scale, scale_source)) for group in self._host.groups]
        self._namespaces = [self._open(group, facts, recipe=recipe, profile=profile, tenant_file=tenant_file)
                        for group, facts in zip(self._host.groups, self._facts)]
        self.counters = Counters(log, "hits", "lookups", "loaded", "not_loaded", "stored", "not_stored", "dropped")
        self._jobs: Dict[int, _Job] = {}
        self._finished: Deque[_Job] = deque()
        self._changed = threading.Condition()
        self._workers = Workers(threads, waiting, "kvc-tier")
        self._lookup = _Lookup(self)
        log.info("kvc: tier in %s, namespaces %s, chunks of %s tokens", store, ", ".join(n.name[:16] for n in self._namespaces),
                 ", ".join(str(group.tokens) for group in self._host.groups))

    @staticmethod
    def _events_of(spec: Any) -> Optional[List[OffloadingEvent]]:
        """Returns a list for events of what is stored. None: vLLM publishes none, and takes none from the list."""
        events = getattr(spec, "kv_events_config", None)  # older versions of vLLM have none
        if events is not None and events.enable_kv_cache_events:
            return []
        log.warning("kvc: enable_kv_events is set for the tier, and vLLM's own events are off (kv_events_config): there will be none")
        return None

    @staticmethod
    def _scales(group: Pages, scale: Any, source: Optional[str]) -> Dict[str, str]:
        """Returns the facts of scales: what the configuration says, else what vLLM's layers have."""
        dtype = group.geometry.dtype
        if scale is None and scale_facts(dtype, 1):
            scale = engine_scales(group.names, group.layers)
        return scale_facts(dtype, scale, source, log=log)

    def _open(self, group: Pages, facts: Dict[str, Any], **options: Any) -> Namespace:
        """Opens the namespace of a group: model, types and geometry."""
        with open_arrays(group.views(np.zeros(group.size, np.uint8)), layout=group.axes, dtype=group.geometry.dtype, facts=facts) as f:
            return self._store.namespace(f, **options)

    # --- names ---

    def _names(self, key: bytes) -> List[bytes]:
        """Returns the names of a chunk in the store, one for each worker: what vLLM's key and configuration tell of its place."""
        group = get_offload_group_idx(key)
        name = f"vllm {get_offload_block_hash(key).hex()} {group} {self._host.groups[group].tokens}"
        return [f"{name} {i}/{self._host.parts}{self._generation}".encode() for i in range(self._host.parts)]

    def find(self, keys: Sequence[bytes]) -> List[bool]:
        """Says of each chunk whether the store has all of its parts. Waits, at most to the deadline of the store."""
        found = [True] * len(keys)
        for group, namespace in enumerate(self._namespaces):
            at = [i for i, key in enumerate(keys) if get_offload_group_idx(key) == group]
            names = [name for i in at for name in self._names(keys[i])]
            there = namespace.find_names(names)
            for n, i in enumerate(at):
                found[i] = all(there[n * self._host.parts:(n + 1) * self._host.parts])
        self.counters.add("lookups", len(keys))
        self.counters.add("hits", sum(found))
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
        if self._forgets:
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
        for task in self._workers.close():
            task.func.__self__._done(task.args[0], task.args[1], False)  # type: ignore[attr-defined]
        self._rows = np.empty((0, 0), np.uint8)  # vLLM cannot release its memory while it is in use
        log.info("kvc: %s; store: %s", self.counters.read(), self._store.stats)
        self._store.close(_CLOSING)

    # --- chunks ---

    def _submit(self, job: _Job) -> None:
        if not job.keys:
            self._finished.append(job)
            return
        with self._changed:
            self._jobs[job.job.job_id] = job
        # The beginning of a prompt last: named caches are evicted by themselves, and without it the rest is of no use.
        for key, chunk in reversed(list(zip(job.keys, job.job.chunk_ids))):
            if not self._workers.submit(functools.partial(self._transfer, job, key, int(chunk)), store=job.store):
                self.counters.trouble("dropped", "too many chunks wait to be stored or loaded")
                self._done(job, key, False)

    def _transfer(self, job: _Job, key: bytes, chunk: int) -> None:
        """Stores or loads a chunk. Never raises: what goes wrong is a chunk that was not stored, or that is computed again."""
        good = False
        try:
            good = all([self._part(job, key, name, chunk, i) for i, name in enumerate(self._names(key))])
            self.counters.add(("stored" if good else "not_stored") if job.store else "loaded" if good else "not_loaded")
        except Exception as problem:
            self.counters.trouble("not_stored" if job.store else "not_loaded", f"kvc: {problem}")
        self._done(job, key, good)

    def _part(self, job: _Job, key: bytes, name: bytes, chunk: int, worker: int) -> bool:
        group = get_offload_group_idx(key)
        pages, namespace = self._host.groups[group], self._namespaces[group]
        views = pages.views(self._rows[chunk, worker * self._host.cell:])
        if not job.store:
            return namespace.load_name(name, views, layout=pages.axes, dtype=pages.geometry.dtype, threads=1)
        end = job.job.req_context.get_offload_key_position(key) or pages.tokens  # recipes with a profile need true positions
        with open_arrays(views, first=end - pages.tokens, layout=pages.axes, dtype=pages.geometry.dtype, facts=self._facts[group]) as f:
            return namespace.put_name(name, f)

    def _done(self, job: _Job, key: bytes, good: bool) -> None:
        with self._changed:
            if good:
                job.good.append(key)
                job.bytes += self._host.groups[get_offload_group_idx(key)].size * self._host.parts
            job.left -= 1
            if not job.left:
                del self._jobs[job.job.job_id]
                self._finished.append(job)
                self._changed.notify_all()
