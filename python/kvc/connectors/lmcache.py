"""LMCache: chunks of its second level in a kvc store, by LMCache's adapter "native_plugin".

    {"type": "native_plugin", "module_path": "kvc.connectors.lmcache", "class_name": "KvcClient",
     "adapter_params": {"levels": "dir:/var/cache/kvc", "layers": 30, "heads": 3, "dim": 64, "dtype": "bfloat16"}}

LMCache hands out flat bytes and a key `model@rank@group@hash[@salt]`; adapter_params say what the bytes are. LMCache is not imported.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from ..file import Path
from ..pack import open_arrays
from ..store import Namespace, Store
from .pages import Counters, Geometry, Workers, facts_of_pages, name_of, open_namespace, scale_facts

Completion = Tuple[int, bool, str, Optional[List[bool]]]  # number, success, error, result of each key
# [2, layers, tokens, heads * dim], [layers, tokens, heads * 2 * dim], [layers, tokens, dim] of latents
_ORDERS = {"2ltd": "clthd", "fused": "lthcd", "mla": "clthd"}
_SIZES = 1 << 16  # of stored chunks that nobody has asked for


class _Chunk:
    """The form of the chunks of an object group: geometry, and the order of their axes."""

    def __init__(self, form: Mapping[str, Any]) -> None:
        unknown = sorted(set(form) - {"layers", "heads", "dim", "dtype", "layout"})
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


def _last_first(keys: Sequence[str]) -> range:
    """Returns the order in which chunks are used: what a prompt begins with comes last, and is thus evicted last."""
    return range(len(keys) - 1, -1, -1)


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


class _Job:
    """Some keys of a batch, for a worker."""

    def __init__(self, batch: _Batch, at: int, size: int, work: Callable[[], Sequence[bool]], counters: Counters) -> None:
        self._batch, self._at, self._size, self._work, self._counters = batch, at, size, work, counters

    def __call__(self) -> None:
        try:
            self._batch.done(self._at, self._work())
        except Exception as problem:  # a worker must live, and LMCache must get its answer
            self._counters.trouble("errors", str(problem))
            self._batch.done(self._at, [False] * self._size, str(problem))

    def drop(self, why: str) -> None:
        """Answers that nothing was done."""
        self._counters.trouble("dropped", f"a chunk was neither stored nor loaded: {why}", self._size)
        self._batch.done(self._at, [False] * self._size, why)


class KvcClient:
    """What LMCache's NativeConnectorL2Adapter calls. No method waits, and none raises because of the store.

    `levels` is a store (kvc-store(1)). `layers`, `heads` (KV heads of a rank), `dim` and `dtype` are the geometry of a chunk, `layout` its
    order; latents (layout "mla") have no `heads`. `groups` has what other object groups have in another way, by their numbers:
    {"1": {"layers": 4}}. `chunk`, if given, are the tokens of every chunk. `weights` are the model's files;
    without them the name in the keys identifies the model. `scale` and `scale_source` are for types of
    8 bits (pages.scale_facts()).
    """

    def __init__(self, levels: str, *, layers: int, dim: int, dtype: str, heads: Optional[int] = None,
                 layout: str = "2ltd", chunk: Optional[int] = None,
                 groups: Optional[Mapping[str, Mapping[str, Any]]] = None, recipe: str = "fast",
                 weights: Optional[Path] = None, pairing: Optional[str] = None, scale: Any = None,
                 scale_source: Optional[str] = None, tenant_file: Optional[Path] = None,
                 key_file: Optional[Path] = None, threads: int = 4, waiting: int = 1024,
                 deadline: float = 1.0, load_deadline: float = 10.0, seconds: int = 0,
                 log_seconds: float = 300.0) -> None:
        own = {"layers": layers, "heads": heads, "dim": dim, "dtype": dtype, "layout": layout}
        self._chunks = {0: _Chunk(own)}
        self._chunks.update({int(str(group), 16): _Chunk({**own, **other}) for group, other in (groups or {}).items()})
        self._tokens, self._seconds, self._log_seconds = chunk, seconds, log_seconds
        self._namespace_options = {"recipe": recipe, "tenant_file": tenant_file}
        self._log = _logger()
        self._about = {"pairing": pairing, "weights": weights}
        self._scales = {dtype: scale_facts(dtype, scale, scale_source, log=self._log)
                        for dtype in {form.geometry.dtype for form in self._chunks.values()}}
        self._counters = Counters(self._log, "lookup_keys", "found_keys", "load_keys", "loaded_keys", "loaded_bytes", "store_keys",
                                  "stored_keys", "stored_bytes", "deleted_keys", "foreign", "not_loaded", "not_stored", "dropped", "errors")
        self.stored: Optional[Dict[str, int]] = None  # bytes of chunks by their keys, as they are stored, for whoever asks for them
        self._namespaces: Dict[Tuple[str, int], Tuple[Namespace, Dict[str, Any]]] = {}
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._completions: List[Completion] = []
        self._number = 0
        self._closed = False
        self._logged = time.monotonic()
        self._store = Store(levels, timeout=deadline, local_timeout=deadline, load_timeout=load_deadline, key_file=key_file)
        for own_chunk in self._chunks.values():  # a wrong recipe or file is said now, and not at each chunk
            open_namespace(self._store, own_chunk.geometry, self._facts(own_chunk.geometry, "any"), **self._namespace_options).close()
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._workers = Workers(threads, waiting, "kvc-lmcache")

    # --- what LMCache calls ---

    def event_fd(self) -> int:
        """Returns a descriptor that is readable while there are completions."""
        return self._fd

    def submit_batch_set(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        self._counters.add("store_keys", len(keys))
        batch = self._batch(len(keys), each=False)
        for i in _last_first(keys):
            self._submit(batch, i, 1, lambda key=keys[i], buffer=buffers[i]: [self._put(key, buffer)], store=True)
        return batch.number

    def submit_batch_get(self, keys: Sequence[str], buffers: Sequence[Any]) -> int:
        self._counters.add("load_keys", len(keys))
        batch = self._batch(len(keys), each=True)
        for i in _last_first(keys):
            self._submit(batch, i, 1, lambda key=keys[i], buffer=buffers[i]: [self._load(key, buffer)])
        return batch.number

    def submit_batch_exists(self, keys: Sequence[str]) -> int:
        self._counters.add("lookup_keys", len(keys))
        batch = self._batch(len(keys), each=True)
        self._submit(batch, 0, len(keys), lambda keys=list(keys): self._find(keys))
        return batch.number

    def submit_batch_delete(self, keys: Sequence[str]) -> int:
        batch = self._batch(len(keys), each=True)
        self._submit(batch, 0, len(keys), lambda keys=list(keys): self._drop(keys))
        return batch.number

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
        for job in self._workers.close():
            job.drop("the adapter was closed")  # type: ignore[attr-defined]
        with self._lock:
            self._closed = True
            os.close(self._fd)
        self._log.info("%s", self._summary())
        for namespace, _ in self._namespaces.values():
            namespace.close()
        self._store.close()

    def stats(self) -> Dict[str, Any]:
        """Returns the counters of this adapter, and those of the store while it is open."""
        return {**self._counters.read(), "store": None if self._store.closed else self._store.stats}

    # --- jobs ---

    def _batch(self, size: int, each: bool) -> _Batch:
        with self._lock:
            self._number += 1
            number = self._number
        return _Batch(number, size, each, self._report)

    def _submit(self, batch: _Batch, at: int, size: int, work: Callable[[], Sequence[bool]], store: bool = False) -> None:
        if size:
            job = _Job(batch, at, size, work, self._counters)
            if not self._workers.submit(job, store=store):
                job.drop("too many chunks wait")

    def _report(self, completion: Completion) -> None:
        now = time.monotonic()
        with self._lock:
            self._completions.append(completion)
            if not self._closed:
                os.eventfd_write(self._fd, 1)
            say = now - self._logged >= self._log_seconds > 0
            if say:
                self._logged = now
        if say:
            self._log.info("%s", self._summary())

    def _summary(self) -> str:
        return "kvc: " + ", ".join(f"{name} {n}" for name, n in self._counters.read().items() if n)

    # --- one chunk ---

    def _chunk(self, key: str) -> Tuple[str, int, "_Chunk"]:
        """Returns model, group and the form of the chunk of a key."""
        parts = key.split("@")
        if len(parts) not in (4, 5):
            raise Error(Code.USAGE, f"the key '{key}' is not model@rank@group@hash")
        group = int(parts[2], 16)
        if group not in self._chunks:
            raise Error(Code.USAGE, f"chunks of object group {group:x} have no geometry: name its layers in 'groups'")
        return parts[0], group, self._chunks[group]

    def _facts(self, geometry: Geometry, model: str) -> Dict[str, Any]:
        return facts_of_pages(geometry, model=model, scales=self._scales[geometry.dtype], **self._about)

    def _namespace(self, key: str) -> Tuple[Namespace, Dict[str, Any], "_Chunk"]:
        """Returns the namespace of a key, which is opened at the first key of its model and group."""
        model, group, chunk = self._chunk(key)
        with self._opening:
            if (model, group) not in self._namespaces:
                facts = self._facts(chunk.geometry, model)
                self._namespaces[model, group] = open_namespace(self._store, chunk.geometry, facts, **self._namespace_options), facts
            namespace, facts = self._namespaces[model, group]
        return namespace, facts, chunk

    def _fits(self, geometry: Geometry, key: str, buffer: Any) -> bool:
        size = memoryview(buffer).nbytes
        tokens = geometry.tokens(size)
        if tokens and (self._tokens is None or tokens == self._tokens):
            return True
        self._counters.trouble("foreign", f"chunk {key} has {size} bytes, which are not "
                                          f"{self._tokens or 'whole'} tokens of {geometry.token_bytes} bytes: see adapter_params")
        return False

    def _put(self, key: str, buffer: Any) -> bool:
        namespace, facts, chunk = self._namespace(key)
        if not self._fits(chunk.geometry, key, buffer):
            return False
        told: List[int] = []
        with open_arrays(chunk.views(buffer), dtype=chunk.geometry.dtype, facts=facts) as f:
            stored = namespace.put_name(name_of(key), f, seconds=self._seconds, told=told)
        if stored and self.stored is not None and told[0]:
            if len(self.stored) >= _SIZES:
                self.stored.clear()
            self.stored[key] = told[0]
        if stored:
            self._counters.add("stored_keys")
            self._counters.add("stored_bytes", memoryview(buffer).nbytes)
        else:
            self._counters.trouble("not_stored", f"no tier of the store keeps chunk {key}")
        return stored

    def _load(self, key: str, buffer: Any) -> bool:
        namespace, _, chunk = self._namespace(key)
        if not self._fits(chunk.geometry, key, buffer):
            return False
        loaded = namespace.load_name(name_of(key), chunk.views(buffer), dtype=chunk.geometry.dtype, threads=1)
        if loaded:
            self._counters.add("loaded_keys")
            self._counters.add("loaded_bytes", memoryview(buffer).nbytes)
        else:
            self._counters.trouble("not_loaded", f"chunk {key} is not in the store, or damaged: it is computed again")
        return loaded

    def _by_namespace(self, keys: Sequence[str]) -> Dict[Namespace, List[int]]:
        """Returns the numbers of keys by namespace, without those that have no geometry."""
        found: Dict[Namespace, List[int]] = {}
        for i, key in enumerate(keys):
            try:
                found.setdefault(self._namespace(key)[0], []).append(i)
            except (Error, ValueError) as problem:
                self._counters.trouble("foreign", str(problem))
        return found

    def _find(self, keys: Sequence[str]) -> List[bool]:
        results = [False] * len(keys)
        for namespace, numbers in self._by_namespace(keys).items():
            for i, there in zip(numbers, namespace.find_names([name_of(keys[i]) for i in numbers])):
                results[i] = there
        self._counters.add("found_keys", sum(results))
        return results

    def _drop(self, keys: Sequence[str]) -> List[bool]:
        """Removes chunks. All that are in no tier afterwards count as removed, as LMCache counts what it frees."""
        results = [False] * len(keys)
        for namespace, numbers in self._by_namespace(keys).items():
            names = [name_of(keys[i]) for i in numbers]
            namespace.drop_names(names)
            for i, there in zip(numbers, namespace.find_names(names)):
                results[i] = not there
        self._counters.add("deleted_keys", sum(results))
        return results


def _logger() -> logging.Logger:
    """Returns a logger that appears where LMCache's own do, or the usual one without LMCache."""
    own = sys.modules.get("lmcache.logging")
    return own.init_logger(__name__) if own is not None else logging.getLogger(__name__)
