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
from ..pack import open_arrays
from ..store import Namespace
from . import vllm_pages
from .vllm_jobs import Counts, Load, Save, borrow
from .vllm_model import Geometry

log = logging.getLogger("vllm.kvc")
QUEUE_BYTES = 1 << 30  # of copies that wait to be put; what is more is dropped


class WorkerSide:
    """Copies of one rank. What fails is reported and ends the connector's work: blocks that may hold rubbish are never put."""

    def __init__(self, geometry: Geometry, namespace: Namespace, facts: Dict[str, Any], rank: int) -> None:
        self._geometry, self._namespace, self._facts, self._rank = geometry, namespace, facts, rank
        self._owners: List[Any] = []
        self._layers: List[np.ndarray] = []  # [blocks, page_bytes] of each
        self._bad: Set[int] = set()
        self.stopped = False
        self.loaded: List[str] = []
        self.counts = Counts()
        self._lock = threading.Lock()
        self._waiting: Dict[Tuple[Any, ...], int] = {}  # bytes of copies that are being put
        self._putting = ThreadPoolExecutor(1, "kvc-put")

    def register(self, kv_caches: Dict[str, Any]) -> None:
        """Takes the caches of vLLM's layers. Refuses those that are not as the engine's configuration says."""
        g = self._geometry
        missing = [name for name in g.names if name not in kv_caches]
        if missing:
            raise Error(Code.UNSUPPORTED, f"vLLM registers no cache of the layer {missing[0]}")
        self._owners = [kv_caches[name] for name in g.names]
        self._layers = [_pages(name, owner, g) for name, owner in zip(g.names, self._owners)]

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
                self.counts.add("load_failures")
                log.warning("kvc: the cache of %s was not loaded, and the store is not used any more: %s", job.request, problem)
            else:
                tokens = len(job.blocks) * self._geometry.block
                self.counts.add("loaded_tokens", tokens)
                log.info("kvc: loaded %d tokens of %s, %.3f s", tokens, job.request, time.perf_counter() - started)
            self.loaded.append(job.request)

    def _copy_in(self, job: Load) -> None:
        if not job.lent:
            raise Error(Code.IO, "it is not in memory any more")
        shape = (len(self._layers), job.pages, self._geometry.page_bytes)
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
                self.counts.add("save_failures")
                log.warning("kvc: the cache of %s was not saved: %s", job.request, problem)

    def _copy_out(self, job: Save) -> None:
        key = (tuple(job.tokens), tuple(job.extras))
        size = len(self._layers) * len(job.blocks) * self._geometry.page_bytes
        with self._lock:
            if key in self._waiting:
                return
            if self._waiting and sum(self._waiting.values()) + size > QUEUE_BYTES:
                self.counts.add("dropped_saves")
                log.warning("kvc: the cache of %s was not saved: %d bytes wait to be stored", job.request, sum(self._waiting.values()))
                return
            self._waiting[key] = size
        started = time.perf_counter()
        try:
            copy = np.empty((len(self._layers), len(job.blocks), self._geometry.page_bytes), np.uint8)
            for layer, own in zip(self._layers, copy):
                np.take(layer, job.blocks, axis=0, out=own)
            self._putting.submit(self._put, key, job, copy, time.perf_counter() - started)
        except BaseException:
            self._done(key)
            raise

    def _put(self, key: Tuple[Any, ...], job: Save, copy: np.ndarray, copied: float) -> None:
        started = time.perf_counter()
        try:
            views = self._geometry.views(copy, len(job.blocks))
            with open_arrays(views, tokens=job.tokens, facts=self._facts, layout=vllm_pages.AXES) as f:
                stored = self._namespace.put(f, extras=job.extras)
            if not stored:
                raise Error(Code.IO, "the store's queue is full")
            self.counts.add("saved_tokens", len(job.tokens))
            log.info("kvc: saved %d tokens of %s: copied in %.3f s, stored in %.3f s", len(job.tokens), job.request, copied,
                     time.perf_counter() - started)
        except Exception as problem:
            self.counts.add("save_failures")
            log.warning("kvc: the cache of %s was not saved: %s", job.request, problem)
        finally:
            self._done(key)

    def _done(self, key: Tuple[Any, ...]) -> None:
        with self._lock:
            del self._waiting[key]

    def close(self) -> None:
        """Waits until what was saved is stored."""
        self._putting.shutdown()


def _pages(name: str, tensor: Any, g: Geometry) -> np.ndarray:
    """Returns the cache of a layer as [blocks, bytes of a block], without a copy. vLLM's tensor is [blocks, heads, tokens, K and V]."""
    device = str(tensor.device).partition(":")[0]
    if device != "cpu":
        raise Error(Code.UNSUPPORTED, f"the cache of {name} is on the device '{device}': use the secondary tier (VLLM.md)")
    inner = (g.heads, g.block, 2 * g.dim)
    shape, strides, size = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
    dense = (inner[1] * inner[2], inner[2], 1)
    if len(shape) != 4 or shape[1:] != inner or strides[1:] != dense or inner[0] * dense[0] * size != g.page_bytes:
        raise Error(Code.UNSUPPORTED, f"the cache of {name} is {shape} of {tensor.dtype} with the strides {strides}, and [blocks, {g.heads}, "
                                      f"{g.block}, {2 * g.dim}] of {g.dtype} was expected")
    span = (shape[0] - 1) * strides[0] * size + g.page_bytes
    data = np.frombuffer((ctypes.c_uint8 * span).from_address(tensor.data_ptr()), np.uint8)
    return np.lib.stride_tricks.as_strided(data, (shape[0], g.page_bytes), (strides[0] * size, 1))
