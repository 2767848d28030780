"""A KV connector of vLLM 0.32 on CPUs: prefixes of prompts by their tokens, in a store that other engines share (VLLM.md).

    --kv-transfer-config '{"kv_connector": "KvcConnector", "kv_connector_module_path": "kvc.connectors.vllm_connector",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"store": "dir:/var/cache/kvc"}}'

vLLM makes it twice, for the scheduler and for each worker, maybe in several processes. The scheduler's side reads what the store has of a
prompt into memory and promises what is there; a worker copies it into its blocks. Nothing here raises after the start of the engine.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

from vllm.distributed.kv_transfer.kv_connector.v1.base import (KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole,
                                                               KVConnectorWorkerMetadata, SupportsHMA)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from . import vllm_model
from .base import Caches, Connection, guarded
from .vllm_jobs import COUNTERS, Load, Save
from .vllm_model import Options
from .vllm_scheduler import SchedulerSide
from .vllm_worker import WorkerSide

log = logging.getLogger("vllm.kvc")


@dataclass
class KvcMetadata(KVConnectorMetadata):
    """What the workers are to do in a step."""

    loads: List[Load] = field(default_factory=list)
    saves: List[Save] = field(default_factory=list)


@dataclass
class KvcWorkerMetadata(KVConnectorWorkerMetadata):
    """How many ranks have copied what was promised to a request, and whether one could not."""

    loaded: Dict[str, int]
    stopped: bool

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, KvcWorkerMetadata)
        names = {**self.loaded, **other.loaded}
        return KvcWorkerMetadata({name: self.loaded.get(name, 0) + other.loaded.get(name, 0) for name in names},
                                 self.stopped or other.stopped)


class KvcStats(KVConnectorStats):
    """Counters since they were read last; vLLM logs them."""

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, n in other.data.items():
            self.data[name] = self.data.get(name, 0) + n
        return self

    def reduce(self) -> Dict[str, Any]:
        return dict(self.data)

    def is_empty(self) -> bool:
        return not self.data


class KvcMetrics(KVConnectorPromMetrics):
    """The counters for Prometheus, one for each engine."""

    def __init__(self, vllm_config: Any, metric_types: Dict[Any, Any], labelnames: List[str],
                 per_engine_labelvalues: Dict[int, List[object]]) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters: Dict[str, Dict[int, Any]] = {}
        for name, meaning in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:kvc_{name}_total", documentation=f"kvc: {meaning}.", labelnames=labelnames)
            self._counters[name] = {engine: counter.labels(*values) for engine, values in per_engine_labelvalues.items()}

    def observe(self, transfer_stats_data: Dict[str, Any], engine_idx: int = 0) -> None:
        for name, n in transfer_stats_data.items():
            if name in self._counters:
                self._counters[name][engine_idx].inc(n)


class KvcConnector(KVConnectorBase_V1, SupportsHMA):
    """Both sides: only the methods of its role are called."""

    _cache_hit_source = CacheHitSource.DISK

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        vllm_model.refuse(vllm_config)
        transfer = vllm_config.kv_transfer_config
        options = Options.take(transfer.kv_connector_extra_config, "kv_connector_extra_config")
        pages, ranks = vllm_model.pages_of(kv_cache_config), vllm_config.parallel_config.tensor_parallel_size
        self._kvc = Connection(options, log, *COUNTERS)
        self._scheduler: Optional[SchedulerSide] = None
        self._worker: Optional[WorkerSide] = None

        def open_caches(rank: int) -> Caches:
            facts = vllm_model.facts_of_vllm(vllm_config, options.weights, rank)
            return vllm_model.open_caches(self._kvc, pages, facts, options.chunk)

        if role == KVConnectorRole.SCHEDULER:
            caches = [open_caches(rank) for rank in range(ranks)]
            self._scheduler = SchedulerSide(pages, [own.namespace for own in caches], options, self._kvc.counters,
                                            loads=transfer.is_kv_consumer, saves=transfer.is_kv_producer)
        else:
            rank = _rank(vllm_config)
            caches = [open_caches(rank)]
            self._worker = WorkerSide(pages, caches[0], self._kvc.counters, rank)
        log.info("kvc %s: store %s, namespace %s, chunks of %d tokens, blocks of %d (%s)", role.name.lower(), options.levels,
                 caches[0].namespace.name[:16], caches[0].namespace.chunk, pages.page, pages.layout)

    @property
    def requires_kv_delivery(self) -> bool:
        return False  # it is a cache: what is not saved is a later miss

    # --- scheduler ---

    @guarded(lambda *_, **__: (0, False), counted="read_failures")  # a failure is a miss
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        assert self._scheduler is not None
        return KvcMetadata(*self._scheduler.jobs(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        said = connector_output.kv_connector_worker_meta
        if isinstance(said, KvcWorkerMetadata):
            self._scheduler.taken(said.loaded)
            if said.stopped:
                self._scheduler.stop()

    def request_finished(self, request: Any, block_ids: List[int]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        assert self._scheduler is not None
        self._scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: Tuple[List[int], ...]) -> Tuple[bool, Optional[Dict[str, Any]]]:
        return self.request_finished(request, [])

    def reset_cache(self) -> bool:
        """Finds nothing any more of what is stored: vLLM asks for it when weights are changed in place."""
        assert self._scheduler is not None
        self._scheduler.reset()
        log.info("kvc: caches that were stored before are not used any more: a new generation begins")
        return True

    # --- worker ---

    def register_kv_caches(self, kv_caches: Dict[str, Any]) -> None:
        assert self._worker is not None
        self._worker.register(kv_caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        assert self._worker is not None
        self._worker.load(self._get_connector_metadata().loads)  # type: ignore[attr-defined]

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing to wait for: start_load_kv() has copied."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: wait_for_save() copies all layers, when the last of them is computed."""

    def wait_for_save(self) -> None:
        assert self._worker is not None
        self._worker.save(self._get_connector_metadata().saves)  # type: ignore[attr-defined]

    def get_block_ids_with_load_errors(self) -> Set[int]:
        assert self._worker is not None
        return self._worker.take_bad()

    def build_connector_worker_meta(self) -> Optional[KVConnectorWorkerMetadata]:
        assert self._worker is not None
        loaded, self._worker.loaded = self._worker.loaded, []
        return KvcWorkerMetadata({name: 1 for name in loaded}, self._worker.stopped) if loaded else None

    # --- both ---

    def get_kv_connector_stats(self) -> Optional[KVConnectorStats]:
        counts = self._kvc.counters.take()
        return KvcStats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data: Optional[Dict[str, Any]] = None) -> Optional[KVConnectorStats]:
        return KvcStats(data=data or {})

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, metric_types: Dict[Any, Any], labelnames: List[str],
                           per_engine_labelvalues: Dict[int, List[object]]) -> KVConnectorPromMetrics:
        return KvcMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Waits until what was saved is stored."""
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.close()
        self._kvc.close()


def _rank(vllm_config: Any) -> int:
    if vllm_config.parallel_config.tensor_parallel_size == 1:
        return 0
    from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

    return int(get_tensor_model_parallel_rank())
