"""SGLang: pages of HiCache in a kvc store, as a storage backend of its own (interfaces v1 and v2).

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvc",
      "module_path": "kvc.connectors.sglang", "class_name": "KvcStorage", "interface_v1": 1, "levels": "dir:/var/cache/kvc"}'

The host pool tells layers, heads, types and layout. Pages are read and written where they lie, by address and strides.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Sequence, Set, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from .base import Caches, Connection, PageOptions, facts_of_caches, guarded, scale_facts
from .sglang_pool import KV, Foreign, HostPool, is_writer, shard_of

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolTransferResult
except ImportError:  # without SGLang, for tests
    HiCacheStorage = object  # type: ignore[assignment,misc]

    class PoolTransferResult(NamedTuple):  # type: ignore[no-redef]
        kv_hit_pages: int
        extra_pool_hit_pages: Dict[str, int]
        restorable_prefix_pages: List[int]
try:
    from sglang.srt.observability.metrics_collector import StorageMetrics
except ImportError:
    StorageMetrics = None  # type: ignore[assignment,misc]

_OF_SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base",
              "prefetch_timeout_per_ki_token", "hicache_storage_pass_prefix_keys", "tp_lcm_size"}
_COUNTERS = ("lookup_pages", "found_pages", "load_pages", "loaded_pages", "loaded_bytes", "store_pages", "stored_pages",
             "stored_bytes", "not_loaded", "not_stored", "foreign", "errors")


@dataclass(frozen=True)
class Options(PageOptions):
    """kvc's keys of the extra config; SGLANG.md has a table."""

    deadline: float = 1.0
    load_deadline: float = 10.0
    seconds: int = 0


def _none_of(storage: "KvcStorage", keys: Sequence[str], *_: Any, **__: Any) -> List[bool]:
    return [False] * len(keys)


class KvcStorage(HiCacheStorage):
    """What SGLang's cache controller calls. Options are the keys of its extra config.

    Pools other than those of K and V of one width, or of latents, are refused when they are registered.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = {**(storage_config.extra_config or {}), **(kwargs or {})}
        given = {name: value for name, value in extra.items() if name not in _OF_SGLANG}
        self._options = Options.take(given, "the extra config")
        self._kvc = Connection(self._options, logging.getLogger(__name__), *_COUNTERS)
        self._config = storage_config
        self._loaders = ThreadPoolExecutor(self._options.threads, "kvc-sglang-load")
        self._storers = ThreadPoolExecutor(self._options.threads, "kvc-sglang-store")
        self._pools: Dict[str, _Kept] = {}
        self._moved: Dict[str, Deque[Tuple[int, float]]] = {name: deque(maxlen=1024) for name in ("prefetch", "backup")}

    # --- the pools ---

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the host pool, and opens the namespace of its pages. Raises if the pool is of a kind that is not supported."""
        self._open(mem_pool_host, KV)
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Takes a host pool beside that of K and V: sliding windows, draft models. Other pools are refused by name."""
        name = _text(host_pool_name)
        if name != KV:  # SGLang has registered that one before
            self._open(host_pool, name)

    def _open(self, host_pool: Any, name: str) -> None:
        pool, o = HostPool(host_pool, name, self._config), self._options
        scales = scale_facts(pool.geometry.dtype, o.scale, o.scale_source, log=self._kvc.log)
        facts = facts_of_caches(pool.geometry, model=self._config.model_name, weights=o.weights,
                                pairing=o.pairing, shard=shard_of(self._config), scales=scales,
                                rope_source=o.rope_source)
        caches = Caches(self._kvc, pool.geometry, facts, unit="page", counted="pages")
        self._pools[name] = _Kept(pool, caches)

    def _kept(self, name: str) -> "_Kept":
        if name not in self._pools:
            raise Error(Code.USAGE, f"no host pool '{name}' was registered")
        return self._pools[name]

    def _find(self, name: str, keys: Sequence[str]) -> List[bool]:
        """Says of each page whether the store has it."""
        kept = self._kept(name)
        return kept.caches.find([kept.name_of(key) for key in keys])

    # --- interface v1: pages of K and V, or of latents ---

    @guarded(lambda *_, **__: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """Returns how many of the first pages are there, up to the first that is not."""
        self._kvc.counters.add(lookup_pages=len(keys))
        n = _first(self._find(KV, keys))
        self._kvc.counters.add(found_pages=n)
        return n

    @guarded(_none_of)
    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Decodes pages into the pool. False: it is not there, or damaged, and the page holds rubbish."""
        return self._timed("prefetch", self._get, keys, host_indices)

    @guarded(_none_of)
    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Stores pages of the pool, and waits until each is stored or was not.

        True for all where another rank stores them for this one.
        """
        return self._timed("backup", self._set, keys, host_indices)

    def _timed(self, what: str, move: Callable[..., List[bool]], keys: List[str], host_indices: Any) -> List[bool]:
        began = time.perf_counter()
        done = move(KV, keys, host_indices)
        if any(done):
            self._moved[what].append((sum(done), time.perf_counter() - began))
        return done

    # --- interface v2: pages of other pools beside them ---

    @guarded(lambda *_, **__: PoolTransferResult(0, {}, []))
    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        """Returns how many of the first pages can be used with what other pools have for them.

        Also how many each pool has, and all numbers of first pages that can be used.
        """
        pages = self.batch_exists(keys)
        found = {KV: pages} if pages else {}
        lengths = list(range(1, pages + 1))
        for transfer in (pool_transfers or []) if pages else []:
            good = _lengths(self._find(_text(transfer.name), keys[:pages]), transfer)
            if good:
                found[transfer.name] = max(good)
            lengths = [n for n in lengths if n in good]
        return PoolTransferResult(lengths[-1] if lengths else 0, found, lengths)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Decodes pages of each transfer into its pool."""
        return {transfer.name: self._transfer(transfer.keys or [], self._get, transfer) for transfer in transfers}

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> Dict[str, List[bool]]:
        """Stores pages of each transfer."""
        return {transfer.name: self._transfer(transfer.keys or [], self._set, transfer) for transfer in transfers}

    @guarded(_none_of)
    def _transfer(self, keys: List[str], move: Callable[..., List[bool]], transfer: Any) -> List[bool]:
        return move(_text(transfer.name), keys, transfer.host_indices)

    # --- pages ---

    def _get(self, name: str, keys: List[str], host_indices: Any) -> List[bool]:
        self._kvc.counters.add(load_pages=len(keys))
        return self._each(self._loaders, self._load, name, keys, host_indices)

    def _set(self, name: str, keys: List[str], host_indices: Any) -> List[bool]:
        if not is_writer(self._config):
            return [True] * len(keys)
        self._kvc.counters.add(store_pages=len(keys))
        return self._each(self._storers, self._put, name, keys, host_indices)

    def _each(self, threads: ThreadPoolExecutor, work: Callable[..., bool], name: str, keys: List[str],
              host_indices: Any) -> List[bool]:
        """Does the work for each page. What a prompt begins with comes last, and is thus evicted last."""
        kept = self._kept(name)
        try:
            pages = kept.pool.pages(len(keys), host_indices)
        except Foreign as problem:
            self._kvc.counters.trouble("foreign", str(problem), problem.pages)
            raise
        return list(threads.map(work, reversed(keys), reversed(pages), itertools.repeat(kept)))[::-1]

    @guarded(lambda *_: False)
    def _load(self, key: str, page: Dict[Key, np.ndarray], kept: "_Kept") -> bool:
        return kept.caches.load(kept.name_of(key), page)

    @guarded(lambda *_: False)
    def _put(self, key: str, page: Dict[Key, np.ndarray], kept: "_Kept") -> bool:
        return kept.caches.put(kept.name_of(key), page, seconds=self._options.seconds)

    # --- the older interface, whose pages are tensors of their own ---

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Returns None: there is none. SGLang calls this only without "interface_v1": 1, which this backend needs."""
        self._kvc.counters.trouble("errors", 'set "interface_v1": 1 in the extra config: pages are not read by get()')
        return None

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Returns False: it was not stored. See get()."""
        self._kvc.counters.trouble("errors", 'set "interface_v1": 1 in the extra config: pages are not written by set()')
        return False

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        return [self.get(key) for key in keys]

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return all([self.set(key) for key in keys])

    # --- looking, ending ---

    def counters(self) -> Dict[str, Any]:
        """Returns the counters of this backend, and those of the store while it is open. get_stats() is for SGLang's own metrics."""
        return self._kvc.stats()

    def get_stats(self) -> Any:
        """Returns, for SGLang's metrics, pages and GB of values a second of each batch since it was asked last. None without SGLang."""
        if StorageMetrics is None:
            return None
        stats, size = StorageMetrics(), self._pools[KV].pool.page_bytes if KV in self._pools else 0
        for name, batches in self._moved.items():
            for pages, seconds in [batches.popleft() for _ in range(len(batches))]:
                getattr(stats, f"{name}_pgs").append(pages)
                getattr(stats, f"{name}_bandwidth").append(pages * size / seconds / 1e9)
        return stats

    def clear(self) -> None:
        """Removes the pages of the namespaces of all pools: of this model and geometry, of all ranks."""
        for kept in list(self._pools.values()):
            try:
                kept.caches.namespace.drop()
            except Exception as problem:
                self._kvc.counters.trouble("errors", f"clear: {problem}")

    def close(self) -> None:
        """Waits for pages under way, and closes the store."""
        self._loaders.shutdown()
        self._storers.shutdown()
        self._kvc.close()


@dataclass(frozen=True)
class _Kept:
    """A host pool, and its pages in the store."""

    pool: HostPool
    caches: Caches

    def name_of(self, key: str) -> str:
        return key + self.pool.suffix


def _text(name: Any) -> str:
    """Returns the name of a pool, which SGLang has as an enumeration."""
    return str(getattr(name, "value", name))


def _first(there: Sequence[bool]) -> int:
    """Returns the number of pages up to the first that is missing."""
    return next((i for i, found in enumerate(there) if not found), len(there))


def _lengths(there: Sequence[bool], transfer: Any) -> Set[int]:
    """Returns the numbers of first pages for which a pool has what they need.

    These are all of them, or the last of them: as many as the transfer has keys.
    """
    policy = _text(transfer.hit_policy)
    if policy == "all_pages":
        return set(range(1, _first(there) + 1))
    if policy != "trailing_pages":
        raise Error(Code.UNSUPPORTED, f"the policy {policy} of the pool '{transfer.name}' is not supported")
    window = max(1, len(transfer.keys or ()))
    return {n for n in range(1, len(there) + 1) if all(there[max(0, n - window):n])}
