"""What connectors of engines that hand out pages by name share: geometry and views of a page, namespaces, workers, counters.

Such an engine gives bytes and a key, which says neither layers nor types nor positions: the engine's configuration does.
"""

from __future__ import annotations

import hashlib
import logging
import math
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from ..facts import fingerprint_of
from ..file import Path
from ..pack import open_arrays
from ..store import Namespace, Store

_BITS = {"f32": np.uint32, "f16": np.uint16, "bf16": np.uint16, "f8e4m3": np.uint8, "f8e5m2": np.uint8, "u8": np.uint8, "i8": np.uint8}
_OTHER_NAMES = {"float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3",
                "fp8_e4m3": "f8e4m3", "fp8": "f8e4m3", "float8_e5m2": "f8e5m2", "fp8_e5m2": "f8e5m2", "uint8": "u8", "int8": "i8"}
_PAIRINGS = ("halves", "interleaved", "none")
_EIGHT_BITS = ("f8e4m3", "f8e5m2", "u8", "i8")  # what an engine stores in them is divided by a scale that it keeps elsewhere
_LONGEST_NAME = 256  # bytes, of the store
_QUIET = 60.0  # seconds for which the same trouble is counted and not logged again


def dtype_of(name: Any) -> str:
    """Returns kvc's name of a type that engines call "torch.bfloat16", "BF16", "fp8_e4m3" and so on."""
    text = str(name).replace("torch.", "").lower()
    text = _OTHER_NAMES.get(text, text)
    if text not in _BITS:
        raise Error(Code.UNSUPPORTED, f"K and V of type {name} are not supported: {', '.join(_BITS)} are")
    return text


# --- geometry ---


@dataclass(frozen=True)
class Geometry:
    """K and V of a token: `layers`, KV `heads` of this rank, channels `dim` of a head, and the type of a value.

    With `latent` (latent attention, MLA) a layer has one latent of `dim` channels a token instead, and `heads` is 1.
    """

    layers: int
    heads: int
    dim: int
    dtype: str
    latent: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        for name in ("layers", "heads", "dim"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) <= 0:
                raise Error(Code.USAGE, f"{name} must be a whole number above 0, not {getattr(self, name)!r}")
        if self.latent and self.heads != 1:
            raise Error(Code.USAGE, f"a latent has 1 head, and heads is {self.heads}")

    @property
    def roles(self) -> Tuple[str, ...]:
        """The tensors of a layer, in the order in which engines keep them."""
        return ("latent",) if self.latent else ("K", "V")

    @property
    def token_bytes(self) -> int:
        return len(self.roles) * self.layers * self.heads * self.dim * np.dtype(_BITS[self.dtype]).itemsize

    def tokens(self, size: int) -> int:
        """Returns the number of tokens that so many bytes hold; 0 if they are no whole tokens."""
        return 0 if size % self.token_bytes else size // self.token_bytes

    def bits(self, buffer: Any) -> np.ndarray:
        """Returns the values in a buffer as bits, without a copy: numpy has no bfloat16."""
        return np.frombuffer(buffer, np.uint8).view(_BITS[self.dtype])

    def arrange(self, bits: np.ndarray, order: str, tokens: int) -> np.ndarray:
        """Returns a view whose axes are in the order l layers, c roles, t tokens, h heads, d channels, without those that `order` lacks.

        `order` names the axes as they lie in memory, the slowest first.
        """
        sizes = {"l": self.layers, "c": len(self.roles), "t": tokens, "h": self.heads, "d": self.dim}
        return bits.reshape([sizes[axis] for axis in order]).transpose([order.index(axis) for axis in sizes if axis in order])

    def views(self, buffer: Any, order: str = "lcthd") -> Dict[Key, np.ndarray]:
        """Returns the tensors of whole tokens in a buffer as arrays [tokens, heads, channels] of bits, without a copy."""
        bits = self.bits(buffer)
        tokens = self.tokens(bits.nbytes)
        if not tokens:
            raise Error(Code.USAGE, f"{bits.nbytes} bytes are no whole tokens of {self.token_bytes} bytes")
        whole = self.arrange(bits, order, tokens)
        return {(i, role): whole[i, c] for i in range(self.layers) for c, role in enumerate(self.roles)}


# --- scales of values of 8 bits ---


def _scale_text(scale: Any) -> str:
    """Returns a scale, those of layers, or lists of those of heads as kvc writes them: "0.5", "0.5,0.25", "0.5:0.4,0.3:0.2"."""

    def number(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not (0 < value < math.inf):
            raise Error(Code.USAGE, f"a scale is a number above 0, and not {value!r}")
        return f"{value:.9g}"  # binary32

    def layer(value: Any) -> str:
        if value is None:
            return ""
        heads = [number(one) for one in value] if isinstance(value, (list, tuple)) else [number(value)]
        return heads[0] if len(set(heads)) == 1 else ":".join(heads)

    layers = [layer(value) for value in scale] if isinstance(scale, (list, tuple)) else [number(scale)]
    if not any(layers):
        raise Error(Code.USAGE, f"there is no scale in {scale!r}")
    return layers[0] if len(set(layers)) == 1 else ",".join(layers)


def scale_facts(dtype: str, scale: Any = None, source: Optional[str] = None, *, log: Optional[logging.Logger] = None) -> Dict[str, str]:
    """Returns the facts of scales that caches of a type need; none for types of more than 8 bits.

    `scale` is a number, or {"k": ..., "v": ...} of numbers, of lists of those of layers, or of lists of lists of those of heads; 1 says that
    the engine stores the values themselves. Without it `source` says whose scales they are: only caches of the same source are shared. Without
    either, what is stored is of use to this process alone, which is logged.
    """
    if dtype not in _EIGHT_BITS:
        return {}
    if scale is not None:
        by_role = scale if isinstance(scale, Mapping) else {"k": scale, "v": scale}
        if sorted(by_role) != ["k", "v"]:
            raise Error(Code.USAGE, 'scales are a number, or {"k": ..., "v": ...}')
        return {f"scale.{role}": _scale_text(value) for role, value in sorted(by_role.items())}
    if not source:
        source = f"process {uuid.uuid4().hex}"
        if log is not None:
            log.warning("kvc: K and V are %s, whose scales the engine does not tell: what is stored is of use to this process alone. Set "
                        "\"scale\" (1, if the engine has none), or \"scale_source\", a name that all engines with the same scales share", dtype)
    return {"scale.source": source}


# --- namespaces ---


def facts_of_pages(geometry: Geometry, *, model: Optional[str] = None, weights: Optional[Path] = None, pairing: Optional[str] = None,
             shard: Optional[str] = None, scales: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    """Returns what is known of an engine's caches as metadata (kvc(5)).

    K is after RoPE. `weights` are the model's files, whose fingerprint identifies it; else its name does. `pairing` is assumed to be that
    of transformers, "halves", if it is not given; of latents it stays unknown, as their engines differ. `shard` is "rank/size", `scales`
    what scale_facts() returns.
    """
    if pairing not in (None, *_PAIRINGS):
        raise Error(Code.USAGE, f"the pairing '{pairing}' is not known: {', '.join(_PAIRINGS)} are")
    if not model and weights is None:
        raise Error(Code.USAGE, "the engine does not tell the model's name: name its files in 'weights'")
    latent = geometry.latent  # heads and channels of latents are not those of the model's K; their scales are those of K
    facts: Dict[str, Any] = {"model.name": model, "model.layers": geometry.layers, "model.kv-heads": None if latent else geometry.heads,
                             "model.head-dim": None if latent else geometry.dim, "rope.k": "post",
                             "rope.pairing": pairing or (None if latent else "halves"),
                             "rope.pairing-assumed": None if pairing or latent else True, "shard": shard, **(scales or {})}
    if latent:
        facts.pop("scale.v", None)
    if weights is not None:
        facts.update(fingerprint_of(weights))
    return {key: value for key, value in facts.items() if value not in (None, "")}


def open_namespace(store: Store, geometry: Geometry, facts: Mapping[str, Any], **options: Any) -> Namespace:
    """Opens the namespace of caches of a geometry and facts. Options are those of Store.namespace().

    A profile needs the positions of tokens: pages that begin elsewhere than they say do not fit it.
    """
    like = geometry.views(bytes(geometry.token_bytes))
    with open_arrays(like, dtype=geometry.dtype, facts=facts) as f:
        return store.namespace(f, **options)


def name_of(key: str) -> bytes:
    """Returns the name of a key's cache in the store: the key itself, or a digest of one that is too long."""
    name = key.encode()
    return name if len(name) <= _LONGEST_NAME else b"sha256:" + hashlib.sha256(name).hexdigest().encode()


# --- workers ---


class Workers:
    """A few threads, and two bounded queues. Loads, for which requests wait, go before stores, and have a thread to themselves."""

    def __init__(self, threads: int, waiting: int, name: str) -> None:
        if threads < 1 or waiting < 1:
            raise Error(Code.USAGE, "threads and waiting must be 1 or more")
        self._storing_at_most = max(1, threads - 1)
        self._waiting = waiting
        self._queues: Tuple[Deque[Callable[[], None]], Deque[Callable[[], None]]] = (deque(), deque())  # loads, stores
        self._storing = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, job: Callable[[], None], *, store: bool = False) -> bool:
        """Gives a job, which must not raise, to a thread. False: its queue is full, or closed."""
        with self._changed:
            queue = self._queues[store]
            if self._closed or len(queue) >= self._waiting:
                return False
            queue.append(job)
            self._changed.notify()
            return True

    def close(self) -> List[Callable[[], None]]:
        """Waits for the jobs under way, and returns those that were not begun."""
        with self._changed:
            self._closed = True
            left = [job for queue in self._queues for job in queue]
            for queue in self._queues:
                queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        return left

    def _take(self) -> Optional[Tuple[Callable[[], None], bool]]:
        """Waits for a job, and tells whether it is a store. None: there will be none."""
        with self._changed:
            while True:
                for store, queue in enumerate(self._queues):
                    if queue and not (store and self._storing >= self._storing_at_most):
                        self._storing += store
                        return queue.popleft(), bool(store)
                if self._closed:
                    return None
                self._changed.wait()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            job, store = taken
            job()
            if store:
                with self._changed:
                    self._storing -= 1
                    self._changed.notify()


# --- counters ---


class Counters:
    """Counts by name, and logs: each trouble once a minute at most, so that a store that is down does not fill the log."""

    def __init__(self, logger: logging.Logger, *names: str) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._counts: Dict[str, int] = dict.fromkeys(names, 0)
        self._logged: Dict[str, float] = {}

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] += n

    def trouble(self, name: str, message: str, n: int = 1) -> None:
        """Counts what went wrong, and says so unless the same was said lately."""
        now = time.monotonic()
        with self._lock:
            self._counts[name] += n
            say = now - self._logged.get(name, -_QUIET) >= _QUIET
            if say:
                self._logged[name] = now
        if say:
            self._logger.warning("%s (counted as '%s'; said once a minute)", message, name)

    def read(self) -> Dict[str, int]:
        with self._lock:
            return dict(self._counts)
