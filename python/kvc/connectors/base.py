"""What connectors share: options, geometry and facts of caches, their namespaces, workers, counters.

A connector is one file over these: the classes that its engine asks for. They say where K and V of
a page lie and what it is called; an engine's key tells neither layers nor types nor positions.
Whatever fails in a store is counted, and is a miss for the engine: see guarded().
"""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import threading
import time
import uuid
from collections import deque
from dataclasses import Field, dataclass, fields
from typing import (Any, Callable, ClassVar, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Type,
                    TypeVar)

import numpy as np

from .. import arrays
from ..arrays import Key
from ..errors import Code, Error
from ..facts import fingerprint_of, rope_facts
from ..file import File, Path
from ..pack import open_arrays
from ..store import Namespace, Store

_OTHER_NAMES = {"float": "f32", "half": "f16", "fp8": "f8e4m3", "fp8_e4m3": "f8e4m3",
                "fp8_e5m2": "f8e5m2"}
_TYPES = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "u8", "i8")
_EIGHT_BITS = _TYPES[3:]  # an engine divides what it stores in them by a scale that it keeps elsewhere
_LONGEST_NAME = 256  # bytes, of the store
_QUIET = 60.0  # seconds for which the same trouble is counted and not logged again


# --- options ---

SomeOptions = TypeVar("SomeOptions", bound="Options")


@dataclass(frozen=True)
class Options:
    """Options of all connectors. That of one has its own fields beside them, and other defaults."""

    levels: str = ""  # kvc-store(1)
    recipe: Optional[str] = "fast"
    weights: Optional[Path] = None  # the model's files, whose fingerprint identifies it
    deadline: Optional[float] = None  # seconds of a look-up; None: the store's
    load_deadline: Optional[float] = None
    key_file: Optional[Path] = None
    tenant_file: Optional[Path] = None

    store: ClassVar[str] = "levels"  # what the engine's configuration calls `levels`

    @classmethod
    def names(cls) -> Dict[str, Field[Any]]:
        """Returns the options by the names that they have in a configuration."""
        return {cls.store if field.name == "levels" else field.name: field for field in fields(cls)}

    @classmethod
    def take(cls: Type[SomeOptions], given: Mapping[str, Any], where: str) -> SomeOptions:
        """Returns options that an engine's configuration has. Refuses others, and wrong numbers."""
        known = cls.names()
        unknown = sorted(set(given) - set(known))
        if unknown or not given.get(cls.store):
            wrong = f"has unknown options: {', '.join(unknown)}" if unknown else f"lacks '{cls.store}'"
            raise Error(Code.USAGE, f"{where} {wrong}; kvc's are {', '.join(known)}")
        return cls(**{known[name].name: _number(name, value, getattr(known[name].type, "__name__", str(known[name].type)))
                      for name, value in given.items()})

    def open_store(self) -> Store:
        return Store(self.levels, timeout=self.deadline, local_timeout=self.deadline,
                     load_timeout=self.load_deadline, key_file=self.key_file)


_KINDS = {"int": int, "Optional[int]": int, "float": float, "Optional[float]": float}


def _number(name: str, value: Any, annotation: str) -> Any:
    """Returns the value of an option, as a number if it is annotated as one."""
    kind = _KINDS.get(annotation)
    if kind is None or value is None:
        return value
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise Error(Code.USAGE, f"{name} is a number, not {value!r}") from None


@dataclass(frozen=True)
class PageOptions(Options):
    """Options of connectors of engines that hand out pages by name."""

    pairing: Optional[str] = None
    scale: Any = None  # see scale_facts()
    scale_source: Optional[str] = None
    rope_source: Optional[str] = None
    threads: int = 4


# --- geometry ---


def dtype_of(name: Any) -> str:
    """Returns kvc's name of a type that engines call "torch.bfloat16", "BF16", "fp8_e4m3" and so on."""
    text = str(name).replace("torch.", "").lower()
    found = arrays.name_of(_OTHER_NAMES.get(text, text))
    if found not in _TYPES:
        raise Error(Code.UNSUPPORTED, f"K and V of type {name} are not supported: {', '.join(_TYPES)} are")
    return found


@dataclass(frozen=True)
class Geometry:
    """K and V of a token: `layers`, KV `heads` of this rank, channels `dim` of a head, and the type of a value.

    With `latent` (latent attention, MLA) a layer has one latent of `dim` channels a token instead, and `heads` is 1.
    `numbers` are those of the layers in the model, if they are not 0, 1, 2 ...
    """

    layers: int
    heads: int
    dim: int
    dtype: str
    latent: bool = False
    numbers: Sequence[int] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype_of(self.dtype))
        object.__setattr__(self, "numbers", tuple(self.numbers or range(self.layers or 0)))
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
    def _itemsize(self) -> int:
        return int(arrays.empty((0,), self.dtype).itemsize)

    @property
    def token_bytes(self) -> int:
        return len(self.roles) * self.layers * self.heads * self.dim * self._itemsize

    def tokens(self, size: int) -> int:
        """Returns the number of tokens that so many bytes hold; 0 if they are no whole tokens."""
        return 0 if size % self.token_bytes else size // self.token_bytes

    def bits(self, buffer: Any) -> np.ndarray:
        """Returns the values in a buffer as bits, without a copy: numpy has no bfloat16."""
        return np.frombuffer(buffer, np.uint8).view(f"u{self._itemsize}")

    def arrange(self, bits: np.ndarray, order: str, tokens: int, page: int = 0) -> np.ndarray:
        """Returns a view whose axes are in the order l layers, c roles, p pages, t tokens of a page, h heads, d channels.

        `order` names the axes as they lie in memory, the slowest first; the view lacks those that it lacks.
        """
        sizes = {"l": self.layers, "c": len(self.roles), "p": tokens // (page or tokens),
                 "t": page or tokens, "h": self.heads, "d": self.dim}
        return bits.reshape([sizes[axis] for axis in order]).transpose(
            [order.index(axis) for axis in sizes if axis in order])

    def views(self, buffer: Any, order: str = "lcthd", page: int = 0) -> Dict[Key, np.ndarray]:
        """Returns the tensors of whole tokens in a buffer as arrays of bits, without a copy.

        They are [tokens, heads, channels], or [pages, tokens, heads, channels] if `order` has
        pages, of `page` tokens. `order` is that of all roles, or of K and of V: "lphcdt,lphctd".
        """
        size = memoryview(buffer).nbytes
        tokens = self.tokens(size)
        if not tokens or tokens % (page or tokens):
            unit = f"pages of {page} tokens" if page else "tokens"
            raise Error(Code.USAGE, f"{size} bytes are no whole {unit} of {self.token_bytes} bytes")
        bits = self.bits(buffer)
        orders = order.split(",") if "," in order else [order] * len(self.roles)
        whole = [self.arrange(bits, own, tokens, page) for own in orders]
        return {(number, role): whole[c][i, c] for i, number in enumerate(self.numbers)
                for c, role in enumerate(self.roles)}


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


# --- facts and namespaces ---


def facts_of_caches(geometry: Geometry, *, model: Optional[str] = None, weights: Optional[Path] = None,
                    pairing: Optional[str] = None, shard: Optional[Tuple[int, int]] = None,
                    scales: Optional[Mapping[str, str]] = None, rope_source: Optional[str] = None) -> Dict[str, Any]:
    """Returns what is known of an engine's caches as metadata (kvc(5)).

    K is after RoPE. `weights` are the model's files, whose fingerprint identifies it; else its name
    does. The `pairing` of latents stays unknown if it is not given, as their engines differ.
    `shard` are rank and number of ranks, `scales` what scale_facts() returns, `rope_source` a name that
    all engines with the same RoPE share: K of another RoPE than the model's is told apart by it alone.
    """
    if not model and weights is None:
        raise Error(Code.USAGE, "the engine does not tell the model's name: name its files in 'weights'")
    facts: Dict[str, Any] = {"model.name": model, "model.layers": geometry.layers,
                             "rope.source": rope_source, **rope_facts(pairing), **(scales or {})}
    if geometry.latent:  # their scales are those of K
        facts.pop("scale.v", None)
        if not pairing:
            facts = {key: value for key, value in facts.items() if not key.startswith("rope.pairing")}
    else:  # heads and channels of latents are not those of the model's K
        facts.update({"model.kv-heads": geometry.heads, "model.head-dim": geometry.dim})
    if shard:
        facts["shard.rank"], facts["shard.ranks"] = shard
    if weights is not None:
        facts.update(fingerprint_of(weights))
    return {key: value for key, value in facts.items() if value not in (None, "")}


class Caches:
    """Caches of one geometry and one model in the store of a connector: their namespace, and its caches by name.

    `layout` are the axes of arrays, "THD" or "PTHD". `chunk` are the tokens of a chunk, for caches that are found by tokens. With a
    `unit` ("page") what is stored and loaded is counted: stored_pages, stored_bytes, not_stored and so on.
    """

    def __init__(self, owner: "Connection", geometry: Geometry, facts: Mapping[str, Any], *,
                 layout: str = "THD", chunk: int = 0, unit: str = "", counted: str = "") -> None:
        self.geometry, self.facts, self.layout = geometry, facts, layout
        self._counters, self._unit, self._counted = owner.counters, unit, counted
        o = owner.options
        shape = (0, geometry.heads, geometry.dim)  # a namespace follows from shapes and facts
        like = {(number, role): arrays.empty(shape, geometry.dtype)
                for number in geometry.numbers for role in geometry.roles}
        with open_arrays(like, facts=facts, layout="THD") as f:
            self.namespace: Namespace = owner.store.namespace(f, recipe=o.recipe, profile=getattr(o, "profile", None),
                                                  chunk=chunk, tenant_file=o.tenant_file, model=o.weights)

    def open(self, views: Mapping[Key, np.ndarray], **options: Any) -> File:
        """Returns a handle of arrays of this geometry. Options are those of kvc.open_arrays()."""
        return open_arrays(views, layout=self.layout, dtype=self.geometry.dtype, facts=self.facts,
                           **options)

    def find(self, names: Sequence[str]) -> List[bool]:
        """Says of each name whether the store has it."""
        return self.namespace.find_names([name_of(name) for name in names])

    def drop(self, names: Sequence[str]) -> None:
        """Removes caches; those that are not there are no error."""
        self.namespace.drop_names([name_of(name) for name in names])

    def put(self, name: str, views: Mapping[Key, np.ndarray], *, first: int = 0,
            **options: Any) -> bool:
        """Stores a cache, and waits for it. Options are those of Namespace.put_name().

        A profile needs the positions of tokens: pages that begin elsewhere than at `first` do not fit it.
        """
        with self.open(views, first=first) as f:
            done = self.namespace.put_name(name_of(name), f, **options)
        return self._count("stored", done, name, views, "no tier of the store keeps {}")

    def load(self, name: str, views: Mapping[Key, np.ndarray]) -> bool:
        """Decodes a cache into arrays. False: it is not there, or damaged, and they hold rubbish."""
        done = self.namespace.load_name(name_of(name), views, layout=self.layout,
                                    dtype=self.geometry.dtype, threads=1)
        return self._count("loaded", done, name, views,
                           "{} is not in the store, or damaged: it is computed again")

    def _count(self, what: str, done: bool, name: str, views: Mapping[Key, np.ndarray],
               trouble: str) -> bool:
        if self._unit and done:
            size = sum(view.nbytes for view in views.values())
            self._counters.add(**{f"{what}_{self._counted}": 1, f"{what}_bytes": size})
        elif self._unit:
            self._counters.trouble(f"not_{what}", trouble.format(f"{self._unit} {name}"))
        return done


def name_of(key: str) -> bytes:
    """Returns the name of a key's cache in the store: the key itself, or a digest of one that is too long."""
    name = key.encode()
    return name if len(name) <= _LONGEST_NAME else b"sha256:" + hashlib.sha256(name).hexdigest().encode()


class Connection:
    """What a connector has as long as its engine runs: options, the store, counters."""

    def __init__(self, options: Options, logger: logging.Logger, *names: str) -> None:
        self.options, self.log = options, logger
        self.counters = Counters(logger, *names)
        self.store = options.open_store()

    def stats(self) -> Dict[str, Any]:
        """Returns the counters, and those of the store while it is open."""
        return {**self.counters.read(), "store": None if self.store.closed else self.store.stats}

    def close(self, seconds: float = 10) -> None:
        """Logs the counters, and closes the store, which stores what waits for so long at most."""
        if not self.store.closed:
            self.log.info("kvc: %s; store: %s", self.counters, self.store.stats)
        self.store.close(seconds)


Method = TypeVar("Method", bound=Callable[..., Any])


def guarded(instead: Callable[..., Any], counted: str = "errors") -> Callable[[Method], Method]:
    """Makes a method that never raises, as an exception would end a thread of the engine.

    What is raised is a trouble of self._kvc, a Connection, and instead() is returned, of the same
    arguments.
    """

    def wrap(method: Any) -> Any:
        @functools.wraps(method)
        def never_raises(self: Any, *arguments: Any, **options: Any) -> Any:
            try:
                return method(self, *arguments, **options)
            except Exception as problem:
                self._kvc.counters.trouble(counted, f"{method.__name__}: {problem}")
                return instead(self, *arguments, **options)

        return never_raises

    return wrap


# --- workers ---


Job = Tuple[Callable[[], None], Callable[[str], None]]


class Workers:
    """A few threads, and two bounded queues. Loads, for which requests wait, go before stores, and have a thread to themselves."""

    def __init__(self, threads: int, waiting: int, name: str) -> None:
        if threads < 1 or waiting < 1:
            raise Error(Code.USAGE, "threads and waiting must be 1 or more")
        self._storing_at_most = max(1, threads - 1)
        self._waiting = waiting
        self._queues: Tuple[Deque[Job], Deque[Job]] = (deque(), deque())  # loads, stores
        self._storing = 0
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._work, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None], drop: Callable[[str], None], *,
               store: bool = False) -> None:
        """Has a thread call work(), which must not raise. If that cannot be, drop(why) is called: the queue is full, or closed meanwhile."""
        with self._changed:
            queue = self._queues[store]
            taken = not self._closed and len(queue) < self._waiting
            if taken:
                queue.append((work, drop))
                self._changed.notify()
        if not taken:
            drop("too much waits to be stored or loaded")

    def close(self) -> None:
        """Waits for the work under way, and drops what was not begun."""
        with self._changed:
            self._closed = True
            left = [drop for queue in self._queues for _, drop in queue]
            for queue in self._queues:
                queue.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        for drop in left:
            drop("the engine ends")

    def _take(self) -> Optional[Tuple[Callable[[], None], bool]]:
        """Waits for work, and tells whether it is a store. None: there will be none."""
        with self._changed:
            while True:
                for store, queue in enumerate(self._queues):
                    if queue and not (store and self._storing >= self._storing_at_most):
                        self._storing += store
                        return queue.popleft()[0], bool(store)
                if self._closed:
                    return None
                self._changed.wait()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            work, store = taken
            work()
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

    def __str__(self) -> str:
        return ", ".join(f"{name} {n}" for name, n in self.read().items() if n) or "nothing counted"

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, n in counts.items():
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

    def take(self) -> Dict[str, int]:
        """Returns what was counted since it was taken last, and forgets it."""
        with self._lock:
            counts = {name: n for name, n in self._counts.items() if n}
            self._counts = dict.fromkeys(self._counts, 0)
        return counts
