"""The worker's side of the vLLM connector: copies into and out of blocks, and putting caches into the store."""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Set, Tuple

import numpy as np

from ..errors import Code, Error
from .base import Caches, Counters
from .vllm_jobs import Load, Save, borrow
from .vllm_pages import Pages

log = logging.getLogger("vllm.kvc")
QUEUE_BYTES = 1 << 30  # of copies that wait to be put; what is more is dropped


class WorkerSide:
    """Copies of one rank. What fails is reported and ends the connector's work: blocks that may hold rubbish are never put."""

    def __init__(self, pages: Pages, caches: Caches, counters: Counters, rank: int) -> None:
        self._pages, self._caches, self._counters, self._rank = pages, caches, counters, rank
        self._owners: List[Any] = []
        self._layers: List[np.ndarray] = []  # [blocks, page_bytes] of each
        self._bad: Set[int] = set()
        self.stopped = False
        self.loaded: List[str] = []
        self._lock = threading.Lock()
        self._waiting: Dict[Tuple[Any, ...], int] = {}  # bytes of copies that are being put
        self._putting = ThreadPoolExecutor(1, "kvc-put")

    def register(self, kv_caches: Dict[str, Any]) -> None:
        """Takes the caches of vLLM's layers. Refuses those that are not as the engine's configuration says."""
        own = self._pages
        missing = [name for name in own.names if name not in kv_caches]
        if missing:
            raise Error(Code.UNSUPPORTED, f"vLLM registers no cache of the layer {missing[0]}")
        self._owners = [kv_caches[name] for name in own.names]
        self._layers = [_blocks(name, owner, own) for name, owner in zip(own.names, self._owners)]

    # --- loading ---

    def load(self, loads: List[Load]) -> None:
        for job in loads:
            started = time.perf_counter()
            try:
                if self.stopped:
                    raise Error(Code.IO, "an earlier load failed")
                self._copy_in(job)
            except Exception as problem:  # a promise that is not kept must be reported, whatever the reason
                self._bad.update(job.blocks)
                self.stopped = True
                self._counters.trouble("load_failures", f"kvc: the cache of {job.request} was not loaded, and "
                                                        f"the store is not used any more: {problem}")
            else:
                tokens = len(job.blocks) * self._pages.page
                self._counters.add(loaded_tokens=tokens)
                log.info("kvc: loaded %d tokens of %s, %.3f s", tokens, job.request, time.perf_counter() - started)
            self.loaded.append(job.request)

    def _copy_in(self, job: Load) -> None:
        if not job.lent:
            raise Error(Code.IO, "it is not in memory any more")
        shape = (len(self._layers), job.pages, self._pages.page_bytes)
        pages = borrow(job.lent[self._rank], shape[0] * shape[1] * shape[2]).reshape(shape)
        for layer, own in zip(self._layers, pages):
            layer[job.blocks] = own[job.first_page:job.first_page + len(job.blocks)]

    def take_bad(self) -> Set[int]:
        bad, self._bad = self._bad, set()
        return bad

    # --- saving ---

    def save(self, saves: List[Save]) -> None:
        """Copies blocks, which may be used otherwise when this returns, and puts them in the background."""
        for job in saves:
            if self.stopped:
                return
            try:
                self._copy_out(job)
            except Exception as problem:
                self._not_saved(job, problem)

    def _copy_out(self, job: Save) -> None:
        key = (tuple(job.tokens), tuple(job.extras))
        size = len(self._layers) * len(job.blocks) * self._pages.page_bytes
        with self._lock:
            if key in self._waiting:
                return
            if self._waiting and sum(self._waiting.values()) + size > QUEUE_BYTES:
                return self._not_saved(job, f"{sum(self._waiting.values())} bytes wait to be stored", "dropped_saves")
            self._waiting[key] = size
        started = time.perf_counter()
        try:
            copy = np.empty((len(self._layers), len(job.blocks), self._pages.page_bytes), np.uint8)
            for layer, own in zip(self._layers, copy):
                np.take(layer, job.blocks, axis=0, out=own)
            self._putting.submit(self._put, key, job, copy, time.perf_counter() - started)
        except BaseException:
            self._done(key)
            raise

    def _put(self, key: Tuple[Any, ...], job: Save, copy: np.ndarray, copied: float) -> None:
        started = time.perf_counter()
        try:
            with self._caches.open(self._pages.views(copy, len(job.blocks)), tokens=job.tokens) as f:
                stored = self._caches.namespace.put(f, extras=job.extras)
            if not stored:
                raise Error(Code.IO, "the store's queue is full")
            self._counters.add(saved_tokens=len(job.tokens))
            log.info("kvc: saved %d tokens of %s: copied in %.3f s, stored in %.3f s", len(job.tokens), job.request, copied,
                     time.perf_counter() - started)
        except Exception as problem:
            self._not_saved(job, problem)
        finally:
            self._done(key)

    def _not_saved(self, job: Save, why: Any, counted: str = "save_failures") -> None:
        self._counters.trouble(counted, f"kvc: the cache of {job.request} was not saved: {why}")

    def _done(self, key: Tuple[Any, ...]) -> None:
        with self._lock:
            del self._waiting[key]

    def close(self) -> None:
        """Waits until what was saved is stored."""
        self._putting.shutdown()


def _blocks(name: str, tensor: Any, pages: Pages) -> np.ndarray:
    """Returns the cache of a layer as [blocks, bytes of a block], without a copy. vLLM's tensor is [blocks, heads, tokens, K and V]."""
    device = str(tensor.device).partition(":")[0]
    if device != "cpu":
        raise Error(Code.UNSUPPORTED, f"the cache of {name} is on the device '{device}': use the secondary tier (VLLM.md)")
    g = pages.geometry
    inner = (g.heads, pages.page, 2 * g.dim)
    shape, strides, size = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    dense = (inner[1] * inner[2], inner[2], 1)
    if len(shape) != 4 or shape[1:] != inner or strides[1:] != dense or inner[0] * dense[0] * size != pages.page_bytes:
        raise Error(Code.UNSUPPORTED, f"the cache of {name} is {shape} of {tensor.dtype} with the strides {strides}, and [blocks, {g.heads}, "
                                      f"{pages.page}, {2 * g.dim}] of {g.dtype} was expected")
    span = (shape[0] - 1) * strides[0] * size + pages.page_bytes
    data = np.frombuffer((ctypes.c_uint8 * span).from_address(tensor.data_ptr()), np.uint8)
    return np.lib.stride_tricks.as_strided(data, (shape[0], pages.page_bytes), (strides[0] * size, 1))
