"""LMCache: chunks of its second level in a kvc store, by LMCache's adapter "native_plugin".

    {"type": "native_plugin", "module_path": "kvc.connectors.lmcache", "class_name": "KvcClient",
     "adapter_params": {"levels": "dir:/var/cache/kvc", "layers": 30, "heads": 3, "dim": 64, "dtype": "bfloat16"}}

LMCache hands out flat bytes and a key `model@rank@group@hash[@salt]`; adapter_params say what the bytes are. LMCache is not imported.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from .base import (Caches, Connection, Geometry, PageOptions, Workers, facts_of_caches,
                   scale_facts)

Completion = Tuple[int, bool, str, Optional[List[bool]]]  # number, success, error, result of each key
# [2, layers, tokens, heads * dim], [layers, tokens, heads * 2 * dim], [layers, tokens, dim] of latents
_ORDERS = {"2ltd": "clthd", "fused": "lthcd", "mla": "clthd"}
_SIZES = 1 << 16  # of stored chunks that nobody has asked for
_FORM = ("layers", "heads", "dim", "dtype", "layout")  # options that a group may have of its own
_COUNTERS = ("lookup_keys", "found_keys", "load_keys", "loaded_keys", "loaded_bytes", "store_keys", "stored_keys",
             "stored_bytes", "deleted_keys", "foreign", "not_loaded", "not_stored", "dropped", "errors")


@dataclass(frozen=True)
class Options(PageOptions):
    """adapter_params; LMCACHE.md has a table."""

    layers: Optional[int] = None
    heads: Optional[int] = None  # KV heads of a rank; latents have none
    dim: Optional[int] = None
    dtype: Any = None
    layout: str = "2ltd"
    chunk: Optional[int] = None  # tokens of every chunk
    groups: Optional[Mapping[str, Mapping[str, Any]]] = None  # what other object groups have, by number: {"1": {"layers": 4}}
    waiting: int = 1024
    deadline: float = 1.0
    load_deadline: float = 10.0
    seconds: int = 0
    log_seconds: float = 300.0


class _Chunk:
    """The form of the chunks of an object group: geometry, and the order of their axes."""

    def __init__(self, form: Mapping[str, Any]) -> None:
        unknown = sorted(set(form) - set(_FORM))
        if unknown:
            raise Error(Code.USAGE, f"a group has layers, heads, dim, dtype and layout, and no {unknown[0]}")
        layout, heads = form["layout"], form["heads"]
        if layout not in _ORDERS:
            raise Error(Code.USAGE, f"the layout '{layout}' is not known: {', '.join(_ORDERS)} are")
        latent = layout == "mla"
        self._order = _ORDERS[layout]
        self.geometry = Geometry(form["layers"], 1 if latent and heads is None else heads, form["dim"], form["dtype"], latent)

    def views(self, buffer: Any) -> Dict[Key, np.ndarray]:
        """Returns the tensors of a chunk by layer and role, without a copy."""
        return self.geometry.views(buffer, self._order)


class _Batch:
    """The keys of one submitted call. The last key that is done reports the call."""

    def __init__(self, number: int, size: int, each: bool, report: Callable[[Completion], None]) -> None:
        self.number, self._each, self._report = number, each, report
        self._results = [False] * size
        self._left = size
        self._error = ""
        self._lock = threading.Lock()
        if not size:
            report((number, True, "", [] if each else None))

    def done(self, at: int, results: Sequence[bool], error: str = "") -> None:
        """Takes the results of the keys from number `at` on."""
        with self._lock:
            self._results[at:at + len(results)] = results
            self._left -= len(results)
            self._error = self._error or error
            if self._left:
                return
        ok = self._each or all(self._results)
        self._report((self.number, ok, self._error, self._results if self._each else None))


class KvcClient:
    """What LMCache's NativeConnectorL2Adapter calls. No method waits, and none raises because of the store.

    `levels` is a store (kvc-store(1)); the other options are those of Options. Without `weights` the name in the keys identifies the model.
    """

    def __init__(self, levels: str, **given: Any) -> None:
        self._options = o = Options.take({"levels": levels, **given}, "adapter_params")
        own = {name: getattr(o, name) for name in _FORM}
        self._chunks = {0: _Chunk(own)}
        self._chunks.update({int(str(group), 16): _Chunk({**own, **other})
                             for group, other in (o.groups or {}).items()})
        log = _logger()
        self._scales = {dtype: scale_facts(dtype, o.scale, o.scale_source, log=log)
                        for dtype in {form.geometry.dtype for form in self._chunks.values()}}
        self.stored: Optional[Dict[str, int]] = None  # bytes of chunks by their keys, as they are stored, for whoever asks for them
        self._caches: Dict[Tuple[str, int], Caches] = {}
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._completions: List[Completion] = []
        self._number = 0
        self._closed = False
        self._logged = time.monotonic()
        self._kvc = Connection(o, log, *_COUNTERS)
        for form in self._chunks.values():  # a wrong recipe or file is said now, and not at each chunk
            self._open("any", form).namespace.close()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._workers = Workers(o.threads, o.waiting, "kvc-lmcache")

    # --- what LMCache calls ---

    def event_fd(self) -> int:
        """Returns a descriptor that is readable while there are completions."""
        return self._fd

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        self._kvc.counters.add(store_keys=len(keys))
        return self._move(keys, buffers, self._put, store=True)

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        self._kvc.counters.add(load_keys=len(keys))
        return self._move(keys, buffers, self._load)

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        self._kvc.counters.add(lookup_keys=len(keys))
        return self._ask(keys, self._find)

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        return self._ask(keys, self._drop)

    def drain_completions(self) -> List[Completion]:
        """Returns what was completed since the last call."""
        with self._lock:
            if not self._closed:
                try:
                    os.eventfd_read(self._fd)
                except BlockingIOError:
                    pass
            done, self._completions = self._completions, []
        return done

    def close(self) -> None:
        """Waits for chunks under way, whose buffers LMCache frees afterwards, answers the others, and closes the store."""
        with self._lock:
            if self._closed:
                return
        self._workers.close()
        with self._lock:
            self._closed = True
            os.close(self._fd)
        self._kvc.close()

    def stats(self) -> Dict[str, Any]:
        """Returns the counters of this adapter, and those of the store while it is open."""
        return self._kvc.stats()

    # --- jobs ---

    def _batch(self, size: int, each: bool) -> _Batch:
        with self._lock:
            self._number += 1
            number = self._number
        return _Batch(number, size, each, self._report)

    def _move(self, keys: Sequence[str], buffers: Sequence[Any], work: Callable[[str, Any], bool], store: bool = False) -> int:
        """Stores or loads each chunk by itself. What a prompt begins with comes last, and is thus evicted last."""
        batch = self._batch(len(keys), each=not store)
        for i in reversed(range(len(keys))):
            self._submit(batch, i, 1, functools.partial(self._one, work, keys[i], buffers[i]), store)
        return batch.number

    @staticmethod
    def _one(work: Callable[[str, Any], bool], key: str, buffer: Any) -> List[bool]:
        return [work(key, buffer)]

    def _ask(self, keys: Sequence[str], work: Callable[[Sequence[str]], List[bool]]) -> int:
        """Asks the store something of all keys at once."""
        batch = self._batch(len(keys), each=True)
        if keys:
            self._submit(batch, 0, len(keys), functools.partial(work, list(keys)))
        return batch.number

    def _submit(self, batch: _Batch, at: int, size: int, work: Callable[[], List[bool]], store: bool = False) -> None:
        """Has a worker do the work for some keys of a batch, and answer."""

        def run() -> None:
            try:
                batch.done(at, work())
            except Exception as problem:  # a worker must live, and LMCache must get its answer
                self._kvc.counters.trouble("errors", str(problem))
                batch.done(at, [False] * size, str(problem))

        def drop(why: str) -> None:
            self._kvc.counters.trouble("dropped", f"a chunk was neither stored nor loaded: {why}", size)
            batch.done(at, [False] * size, why)

        self._workers.submit(run, drop, store=store)

    def _report(self, completion: Completion) -> None:
        now = time.monotonic()
        with self._lock:
            self._completions.append(completion)
            if not self._closed:
                os.eventfd_write(self._fd, 1)
            say = now - self._logged >= self._options.log_seconds > 0
            if say:
                self._logged = now
        if say:
            self._kvc.log.info("kvc: %s", self._kvc.counters)

    # --- one chunk ---

    def _open(self, model: str, form: "_Chunk") -> Caches:
        o = self._options
        facts = facts_of_caches(form.geometry, model=model, weights=o.weights, pairing=o.pairing,
                                scales=self._scales[form.geometry.dtype], rope_source=o.rope_source)
        return Caches(self._kvc, form.geometry, facts, unit="chunk", counted="keys")

    def _of(self, key: str) -> Tuple[Caches, "_Chunk"]:
        """Returns where a key's chunk is kept, which is opened at the first key of its model and group, and its form."""
        parts = key.split("@")
        if len(parts) not in (4, 5):
            raise Error(Code.USAGE, f"the key '{key}' is not model@rank@group@hash")
        model, group = parts[0], int(parts[2], 16)
        if group not in self._chunks:
            raise Error(Code.USAGE, f"chunks of object group {group:x} have no geometry: name its layers in 'groups'")
        with self._opening:
            if (model, group) not in self._caches:
                self._caches[model, group] = self._open(model, self._chunks[group])
            return self._caches[model, group], self._chunks[group]

    def _fits(self, geometry: Geometry, key: str, buffer: Any) -> bool:
        size, due = memoryview(buffer).nbytes, self._options.chunk
        tokens = geometry.tokens(size)
        if tokens and due in (None, tokens):
            return True
        self._kvc.counters.trouble("foreign", f"chunk {key} has {size} bytes, which are not "
                                   f"{due or 'whole'} tokens of {geometry.token_bytes} bytes: see adapter_params")
        return False

    def _put(self, key: str, buffer: Any) -> bool:
        caches, form = self._of(key)
        if not self._fits(form.geometry, key, buffer):
            return False
        told: List[int] = []
        stored = caches.put(key, form.views(buffer), seconds=self._options.seconds, told=told)
        if stored and self.stored is not None and told[0]:
            if len(self.stored) >= _SIZES:
                self.stored.clear()
            self.stored[key] = told[0]
        return stored

    def _load(self, key: str, buffer: Any) -> bool:
        caches, form = self._of(key)
        return self._fits(form.geometry, key, buffer) and caches.load(key, form.views(buffer))

    def _by_caches(self, keys: Sequence[str]) -> Dict[Caches, List[int]]:
        """Returns the numbers of keys by where they are kept, without those that have no geometry."""
        found: Dict[Caches, List[int]] = {}
        for i, key in enumerate(keys):
            try:
                found.setdefault(self._of(key)[0], []).append(i)
            except (Error, ValueError) as problem:
                self._kvc.counters.trouble("foreign", str(problem))
        return found

    def _find(self, keys: Sequence[str]) -> List[bool]:
        results = [False] * len(keys)
        for caches, numbers in self._by_caches(keys).items():
            for i, there in zip(numbers, caches.find([keys[i] for i in numbers])):
                results[i] = there
        self._kvc.counters.add(found_keys=sum(results))
        return results

    def _drop(self, keys: Sequence[str]) -> List[bool]:
        """Removes chunks. All that are in no tier afterwards count as removed, as LMCache counts what it frees."""
        results = [False] * len(keys)
        for caches, numbers in self._by_caches(keys).items():
            names = [keys[i] for i in numbers]
            caches.drop(names)
            for i, there in zip(numbers, caches.find(names)):
                results[i] = not there
        self._kvc.counters.add(deleted_keys=sum(results))
        return results


def _logger() -> logging.Logger:
    """Returns a logger that appears where LMCache's own do, or the usual one without LMCache."""
    own = sys.modules.get("lmcache.logging")
    return own.init_logger(__name__) if own is not None else logging.getLogger(__name__)
