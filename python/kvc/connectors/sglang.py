"""SGLang: pages of HiCache in a kvc store, as a storage backend of its own (interface v1).

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config '{"backend_name": "kvc",
      "module_path": "kvc.connectors.sglang", "class_name": "KvcStorage", "interface_v1": 1, "levels": "dir:/var/cache/kvc"}'

The host pool tells layers, heads, types and layout. Pages are read and written where they lie, by address and strides.
"""

from __future__ import annotations

import ctypes as c
import functools
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Deque, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from ..pack import open_arrays
from ..store import Space, Store
from .pages import Counters, Geometry, facts_of_pages, name_of, open_space, scale_facts

try:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage
except ImportError:  # without SGLang, for tests
    HiCacheStorage = object  # type: ignore[assignment,misc]
try:
    from sglang.srt.observability.metrics_collector import StorageMetrics
except ImportError:
    StorageMetrics = None  # type: ignore[assignment,misc]

_LAYERS_APART = "layer_first"  # a page is K and V of each layer, [tokens, heads, channels]
_ORDERS = {"page_first": "tlhd", "page_first_direct": "lthd", "page_head": "htld"}  # a page is K, then V, of all layers
_OPTIONS = {"levels", "recipe", "weights", "pairing", "tenant_file", "key_file", "threads", "deadline", "load_deadline", "seconds",
            "scale", "scale_source"}
_OF_SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base",
              "prefetch_timeout_per_ki_token", "hicache_storage_pass_prefix_keys", "tp_lcm_size"}


def _attempt(value: Callable[["KvcStorage", Sequence[str]], Any]) -> Callable:
    """Makes a method that never raises: an exception would end SGLang's thread. It returns value(self, keys) instead."""

    def wrap(method: Callable) -> Callable:
        @functools.wraps(method)
        def guarded(self: "KvcStorage", keys: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, keys, *arguments, **options)
            except Exception as problem:
                self._counters.trouble("errors", f"{method.__name__}: {problem}")
                return value(self, keys)

        return guarded

    return wrap


class KvcStorage(HiCacheStorage):
    """What SGLang's cache controller calls. Options are the keys of its extra config.

    Pools other than those of multi-head attention with K and V of one width are refused when they are registered.
    """

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        extra = {**(storage_config.extra_config or {}), **(kwargs or {})}
        o = {name: value for name, value in extra.items() if name not in _OF_SGLANG}
        unknown = sorted(set(o) - _OPTIONS)
        if unknown or "levels" not in o:
            raise Error(Code.USAGE, f"the extra config {'has unknown keys: ' + ', '.join(unknown) if unknown else 'lacks levels'}; "
                                    f"kvc's are {', '.join(sorted(_OPTIONS))}")
        self._log = logging.getLogger(__name__)
        self._counters = Counters(self._log, "lookup_pages", "found_pages", "load_pages", "loaded_pages", "loaded_bytes", "store_pages",
                                  "stored_pages", "stored_bytes", "not_loaded", "not_stored", "foreign", "errors")
        self._config, self._options = storage_config, o
        self._suffix = _suffix(storage_config)
        self._threads = int(o.get("threads", 4))
        deadline = float(o.get("deadline", 1.0))
        self._store = Store(o["levels"], deadline=deadline, local_deadline=deadline, load_deadline=float(o.get("load_deadline", 10.0)),
                            key_file=o.get("key_file"))
        self._loaders = ThreadPoolExecutor(self._threads, "kvc-sglang-load")
        self._storers = ThreadPoolExecutor(self._threads, "kvc-sglang-store")
        self._pool: Any = None
        self._moved: Dict[str, Deque[Tuple[int, float]]] = {name: deque(maxlen=1024) for name in ("prefetch", "backup")}

    # --- the pool ---

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the host pool, and opens the namespace of its pages. Raises if the pool is of a kind that is not supported."""
        pool = mem_pool_host
        geometry = _geometry(pool, self._config)
        o = self._options
        self._facts = facts_of_pages(geometry, model=self._config.model_name, weights=o.get("weights"), pairing=o.get("pairing"),
                               shard=_shard(self._config),
                               scales=scale_facts(geometry.dtype, o.get("scale"), o.get("scale_source"), log=self._log))
        self._space: Space = open_space(self._store, geometry, self._facts, recipe=o.get("recipe", "fast"), tenant_file=o.get("tenant_file"))
        self._geometry, self._pool, self.mem_pool_host = geometry, pool, pool
        self._pieces = 2 * geometry.layers if pool.layout == _LAYERS_APART else 2
        self._page_bytes = geometry.token_bytes * pool.page_size
        self._pages([""], np.arange(pool.page_size))  # refuses pools whose pages have other pieces

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Refuses pools beside that of K and V: they need interface v2."""
        if str(getattr(host_pool_name, "value", host_pool_name)) != "kv":
            raise Error(Code.UNSUPPORTED, f"the host pool '{host_pool_name}' is not supported: only K and V of multi-head attention are")

    def _pages(self, keys: Sequence[str], host_indices: Any) -> List[Dict[Key, np.ndarray]]:
        """Returns K and V of each page as arrays over the pool's memory."""
        size = self._pool.page_size
        if len(host_indices) != len(keys) * size:
            raise Error(Code.USAGE, f"{len(keys)} pages of {size} tokens have {len(host_indices)} indices")
        addresses, sizes = self._pool.get_page_buffer_meta(host_indices)
        n = self._pieces
        if len(addresses) != len(keys) * n or any(s * n != self._page_bytes for s in sizes):
            self._counters.trouble("foreign", f"pages of the pool are not {n} pieces of {self._page_bytes // n} bytes", len(keys))
            raise Error(Code.USAGE, "the pool's pages are not of the geometry that it was registered with")
        return [self._page(addresses[i:i + n]) for i in range(0, len(addresses), n)]

    def _page(self, addresses: Sequence[int]) -> Dict[Key, np.ndarray]:
        g, tokens, size = self._geometry, self._pool.page_size, self._page_bytes // self._pieces
        pieces = [g.bits((c.c_uint8 * size).from_address(address)) for address in addresses]
        if self._pool.layout == _LAYERS_APART:
            return {(i // 2, "KV"[i % 2]): g.arrange(piece, "thd", tokens) for i, piece in enumerate(pieces)}
        order = _ORDERS[self._pool.layout]
        return {(layer, role): rows for role, piece in zip("KV", pieces) for layer, rows in enumerate(g.arrange(piece, order, tokens))}

    def _name(self, key: str) -> bytes:
        return name_of(key + self._suffix)

    # --- interface v1 ---

    @_attempt(lambda self, keys: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        """Returns how many of the first pages are there, up to the first that is not."""
        self._counters.add("lookup_pages", len(keys))
        there = self._space.find_names([self._name(key) for key in keys]) if keys else []
        n = next((i for i, found in enumerate(there) if not found), len(keys))
        self._counters.add("found_pages", n)
        return n

    @_attempt(lambda self, keys: [False] * len(keys))
    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Decodes pages into the pool. False: it is not there, or damaged, and the page holds rubbish."""
        self._counters.add("load_pages", len(keys))
        return self._each("prefetch", self._loaders, self._load, keys, host_indices)

    @_attempt(lambda self, keys: [False] * len(keys))
    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        """Stores pages of the pool, and waits until each is stored or was not."""
        self._counters.add("store_pages", len(keys))
        return self._each("backup", self._storers, self._put, keys, host_indices)

    def _each(self, what: str, threads: ThreadPoolExecutor, work: Callable[..., bool], keys: List[str], host_indices: Any) -> List[bool]:
        """Does the work for each page. What a prompt begins with comes last, and is thus evicted last."""
        began = time.perf_counter()
        done = list(threads.map(work, reversed(keys), reversed(self._pages(keys, host_indices))))[::-1]
        if any(done):
            self._moved[what].append((sum(done), time.perf_counter() - began))
        return done

    @_attempt(lambda self, key: False)
    def _load(self, key: str, page: Dict[Key, np.ndarray]) -> bool:
        loaded = self._space.load_name(self._name(key), page, dtype=self._geometry.dtype, threads=1)
        if loaded:
            self._counters.add("loaded_pages")
            self._counters.add("loaded_bytes", self._page_bytes)
        else:
            self._counters.trouble("not_loaded", f"page {key} is not in the store, or damaged: it is computed again")
        return loaded

    @_attempt(lambda self, key: False)
    def _put(self, key: str, page: Dict[Key, np.ndarray]) -> bool:
        with open_arrays(page, dtype=self._geometry.dtype, facts=self._facts) as f:
            stored = self._space.put_name(self._name(key), f, seconds=int(self._options.get("seconds", 0)))
        if stored:
            self._counters.add("stored_pages")
            self._counters.add("stored_bytes", self._page_bytes)
        else:
            self._counters.trouble("not_stored", f"no level of the store keeps page {key}")
        return stored

    # --- the older interface, whose pages are tensors of their own ---

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Returns None: there is none. SGLang calls this only without "interface_v1": 1, which this backend needs."""
        self._counters.trouble("errors", 'set "interface_v1": 1 in the extra config: pages are not read by get()')
        return None

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Returns False: it was not stored. See get()."""
        self._counters.trouble("errors", 'set "interface_v1": 1 in the extra config: pages are not written by set()')
        return False

    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        return [self.get(key) for key in keys]

    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return all([self.set(key) for key in keys])

    # --- looking, ending ---

    def counters(self) -> Dict[str, Any]:
        """Returns the counters of this backend, and those of the store while it is open. get_stats() is for SGLang's own metrics."""
        return {**self._counters.read(), "store": None if self._store.closed else self._store.stats}

    def get_stats(self) -> Any:
        """Returns, for SGLang's metrics, pages and GB of values a second of each batch since it was asked last. None without SGLang."""
        if StorageMetrics is None:
            return None
        stats = StorageMetrics()
        for name, batches in self._moved.items():
            for pages, seconds in [batches.popleft() for _ in range(len(batches))]:
                getattr(stats, f"{name}_pgs").append(pages)
                getattr(stats, f"{name}_bandwidth").append(pages * self._page_bytes / seconds / 1e9)
        return stats

    def clear(self) -> None:
        """Removes the pages of this namespace: of this model and geometry, of all ranks."""
        try:
            self._space.drop()
        except Exception as problem:
            self._counters.trouble("errors", f"clear: {problem}")

    def close(self) -> None:
        """Waits for pages under way, and closes the store."""
        self._loaders.shutdown()
        self._storers.shutdown()
        self._log.info("kvc: %s", ", ".join(f"{name} {n}" for name, n in self._counters.read().items() if n))
        self._store.close()


def _geometry(pool: Any, config: Any) -> Geometry:
    """Returns the geometry of a host pool, or refuses the pool by name."""
    kind = type(pool).__name__
    if config.is_mla_model or hasattr(pool, "kv_lora_rank") or "MLA" in kind:
        raise Error(Code.UNSUPPORTED, f"the host pool is a {kind} of latent attention (MLA), which has no V and is not supported")
    if pool.layout != _LAYERS_APART and pool.layout not in _ORDERS:
        raise Error(Code.UNSUPPORTED, f"the layout '{pool.layout}' of the host pool is not supported: {_LAYERS_APART}, "
                                      f"{', '.join(_ORDERS)} are")
    if getattr(config, "should_split_heads", False):
        raise Error(Code.UNSUPPORTED, "pages that are split by heads (tp_lcm_size) are not supported")
    if getattr(pool, "v_head_dim", pool.head_dim) != pool.head_dim or not hasattr(pool, "get_page_buffer_meta"):
        raise Error(Code.UNSUPPORTED, f"the host pool is a {kind}, which is not supported: K and V must have one width, and addresses")
    return Geometry(pool.layer_num, pool.head_num, pool.head_dim, pool.dtype)


def _shard(config: Any) -> Optional[str]:
    return f"{config.tp_rank}/{config.tp_size}" if config.tp_size > 1 else None


def _suffix(config: Any) -> str:
    """Returns what tells apart the pages that ranks have of the same tokens."""
    parts = [f"tp{config.tp_rank}/{config.tp_size}", f"pp{getattr(config, 'pp_rank', 0)}/{getattr(config, 'pp_size', 1)}",
             f"cp{getattr(config, 'attn_cp_rank', 0)}/{getattr(config, 'attn_cp_size', 1)}"]
    return "@" + ",".join(parts)
