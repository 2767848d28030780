"""The prefix store: prefixes of prompts in a directory, Redis or S3, found again by their tokens."""

from __future__ import annotations

import ctypes as c
import itertools
import json
import os
import re
import threading
import weakref
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from . import _lib, arrays, cuda
from ._lib import call, encode
from .arrays import Key, Plane
from .errors import Code, Error, kind_of
from .file import File, _file
from .handle import Handle
from .options import Path

_END = 10  # seconds, at most, for calls under way when the process ends
Extra = Tuple[int, int, bytes]  # position, tag (1 media, 2 embeddings, 3 your own), a hash of 16 bytes or more


def _microseconds(seconds: Optional[float]) -> int:
    if seconds is None:
        return 0
    if not 0 <= seconds <= 1e9:
        raise Error(Code.USAGE, f"a time of {seconds} seconds: from 0 to 1e9 are taken; None is none")
    return max(1, int(seconds * 1e6))


def _extras(extras: Sequence[Extra]) -> Any:
    if not extras:
        return None
    items = [_lib.PrefixExtra(_lib.whole("the position of an extra", at), _lib.whole("the tag of an extra", tag, _lib.u32), value,
                             len(value)) for at, tag, value in extras]
    return (_lib.PrefixExtra * len(items))(*items)


class _InStore(Handle):
    """A handle of a store, whose threads only the process has that opened it."""

    _process = 0

    def _hold(self, address: int, close: Callable[[int], None], *keep: Any, parents: Sequence[Handle] = (),
              held: Sequence[c.c_void_p] = ()) -> None:
        process = self._process = os.getpid()

        def close_here(address: int) -> None:
            if os.getpid() == process:
                close(address)

        super()._hold(address, close_here, *keep, parents=parents, held=held)

    @property
    def pointer(self) -> c.c_void_p:
        if not self.closed and self._process != os.getpid():
            raise Error(Code.USAGE, f"this {type(self).__name__} belongs to the process that opened it: open the store in this one")
        return super().pointer


class Store(_InStore):
    """A chain of tiers, the fastest first: Store("dir:/var/cache/kvc,redis://h1"). kvc-store(1) lists the options of each.

    Whatever fails in a store makes a prefix shorter and is counted (`stats`). `timeout` and `load_timeout` are seconds. Several threads may
    use a store; a process that was forked must open its own.
    """

    _again = "open its tiers again with kvc.Store()"

    def __init__(self, tiers: str, *, threads: int = 0, queue_bytes: int = 0, local_timeout: Optional[float] = None,
                 timeout: Optional[float] = None, load_timeout: Optional[float] = None, key_file: Optional[Path] = None,
                 backends: Optional[Path] = None) -> None:
        if not isinstance(tiers, str):
            raise TypeError(f"a store is named by a text, as 'dir:/var/cache/kvc', not by {kind_of(tiers)}")
        self._library = _lib.store()
        beside = _lib.store_folder()
        if backends is None and any(beside.glob("kvc_store_*.so")):
            backends = beside
        o = _lib.StoreOptions(threads=threads, queue_bytes=queue_bytes, local_timeout_us=_microseconds(local_timeout),
                              timeout_us=_microseconds(timeout), load_timeout_us=_microseconds(load_timeout), key_file=encode(key_file),
                              backends=encode(backends))
        self._putting = _Putting()
        self._tiers = _shown(tiers)
        self._hold(call(self._library.kvc_store_open, encode(tiers), c.byref(o)), _closer(self._library, self._putting))
        _open.add(self)

    def __repr__(self) -> str:
        return f"<kvc.Store {'closed' if self.closed else self._tiers}>"

    def namespace(self, like: Any, *, recipe: Optional[str] = None, profile: Optional[Path] = None, chunk: int = 0,
              tenant_file: Optional[Path] = None, learn: bool = True, model: Optional[Path] = None) -> "Namespace":
        """Opens a namespace: that of caches that can stand for the File `like`, or one that is there, by the first digits of its name.

        `recipe` packs the chunks (lossless by default), `chunk` is their tokens (a multiple of 256). A lossy recipe that a profile
        serves, without one, has the store learn it, better with the weights in the file or folder `model`; without `learn` it
        packs without.
        """
        o = _lib.StoreNamespaceOptions(recipe=encode(recipe), profile=encode(profile), chunk=chunk, tenant_file=encode(tenant_file),
                                       no_learning=not learn, model=encode(model))
        if not isinstance(like, (File, str)):
            raise TypeError(f"a namespace is that of an open kvc.File, or named by hex digits, not by {kind_of(like)}")
        pointer = self.pointer
        try:
            if isinstance(like, File):
                address = call(self._library.kvc_store_namespace_like, pointer, like.pointer, c.byref(o))
            else:
                address = call(self._library.kvc_store_namespace_named, pointer, encode(like), c.byref(o))
            return Namespace._of_store(address, self, pointer)
        finally:
            del pointer  # a traceback that is kept must not keep the store open

    def flush(self, timeout: Optional[float] = None) -> bool:
        """Waits until everything that was put is stored, at most so many seconds. False: the time is over."""
        return bool(self._library.kvc_store_flush(self.pointer, _microseconds(timeout)) == 0)

    @property
    def stats(self) -> Dict[str, Any]:
        """Counters since the store was opened: lookups, hit_tokens, bad_objects and so on."""
        counters: Dict[str, Any] = json.loads(self._stats("json"))
        return counters

    def prometheus(self) -> str:
        """The counters in the text form of Prometheus."""
        return self._stats("prometheus")

    def _stats(self, form: str) -> str:
        size = 4096
        while True:
            text = c.create_string_buffer(size)
            needed = self._library.kvc_store_stats(self.pointer, form.encode(), text, size)
            if needed <= size:
                return text.value.decode()
            size = needed + 256  # counters may have grown

    def close(self, timeout: Optional[float] = 10) -> None:
        """Waits until everything that was put is stored, at most so many seconds (None: without end), and closes the store."""
        if not self.closed:
            self._putting.timeout = _microseconds(timeout)
        super().close()


_open: "weakref.WeakSet[Store]" = weakref.WeakSet()


def _close_all() -> None:
    """Stores what waits to be put before the process ends, and lets calls end that threads make which nobody joins."""
    stores = [store for store in _open if not store.closed and store._process == os.getpid()]
    for store in stores:
        store.close(store._putting.timeout / 1e6 or None)
    for store in stores:
        store._putting.ended.wait(store._putting.timeout / 1e6 + _END if store._putting.timeout else None)


weakref.finalize(Store, _close_all)  # at the end of the process: after it, no finalizer runs, which closes a store


def _shown(tiers: str) -> str:
    """Returns the tiers of a store without the user names, passwords and options in their addresses."""
    return re.sub(r"//[^,]*@", "//", re.sub(r"\?[^,]*", "", tiers))


def _closer(library: c.CDLL, putting: "_Putting") -> Callable[[int], None]:
    """Returns what closes a store, which needs `putting` until then."""

    def close(address: int) -> None:
        library.kvc_store_flush(address, putting.timeout)
        library.kvc_store_close(address)
        putting.ended.set()

    return close


class Namespace(_InStore):
    """A namespace of a store: caches of one model that can stand for each other. Store.namespace() opens it."""

    _again = "open the namespace again with Store.namespace()"
    _made_by = "Store.namespace() opens a namespace"
    _library: c.CDLL
    store: Store
    _profile: Optional[int]  # a file in memory

    @classmethod
    def _of_store(cls, address: int, store: Store, pointer: c.c_void_p) -> "Namespace":
        self = cls.__new__(cls)
        self._library = store._library
        self.store, self._profile = store, None
        self._hold(address, self._library.kvc_store_namespace_close, parents=[store], held=[pointer])
        return self

    def __repr__(self) -> str:
        return f"<kvc.Namespace {'closed' if self.closed else f'{self.name[:16]}, chunks of {self.chunk} tokens'}>"

    @property
    def name(self) -> str:
        return str(self._library.kvc_store_namespace_name(self.pointer), "utf-8")

    @property
    def facts(self) -> str:
        """The facts that its caches have in common, a line each."""
        return str(self._library.kvc_store_namespace_facts(self.pointer), "utf-8")

    @property
    def chunk(self) -> int:
        """The tokens of a chunk: only whole chunks are found."""
        return int(self._library.kvc_store_namespace_chunk(self.pointer))

    def _profile_path(self) -> Optional[str]:
        """Returns a path of the profile that chunks are packed with."""
        info = _lib.StoreNamespaceInfo()
        self._library.kvc_store_namespace_describe(self.pointer, c.byref(info))
        if self._profile is None and info.profile:
            self._profile = os.memfd_create("kvc-profile", os.MFD_CLOEXEC)
            weakref.finalize(self, os.close, self._profile)
            with os.fdopen(os.dup(self._profile), "wb") as out:
                out.write((c.c_char * info.profile_bytes).from_address(info.profile))
        return None if self._profile is None else f"/proc/self/fd/{self._profile}"

    def find(self, tokens: Any, *, timeout: Optional[float] = None, extras: Sequence[Extra] = ()) -> "Hit":
        """Finds the longest prefix of the tokens that the store has, in whole chunks. A hit of 0 tokens is none.

        `extras` tell prompts apart whose tokens are equal, as those with images: they have the position and a hash of each.
        """
        ids = arrays.token_ids(tokens)
        o = _lib.StoreFindOptions(timeout_us=_microseconds(timeout), extras=_extras(extras), n_extras=len(extras))
        pointer = self.pointer
        try:
            address = call(self._library.kvc_store_find, pointer, ids.ctypes.data, ids.size, c.byref(o))
            return Hit._of_namespace(address, self, pointer)
        finally:
            del pointer  # a traceback that is kept must not keep the store open

    def get_whole(self, tokens: Any, *, timeout: Optional[float] = None, extras: Sequence[Extra] = ()) -> Optional[File]:
        """Reads the longest cache that the tokens begin with, of those that are put whole because layers keep a window.

        None: there is none.
        """
        ids = arrays.token_ids(tokens)
        o = _lib.StoreFindOptions(timeout_us=_microseconds(timeout), extras=_extras(extras), n_extras=len(extras))
        return _found(_lib.find(self._library.kvc_store_get_whole, self.pointer, ids.ctypes.data, ids.size, c.byref(o)))

    def put(self, file: File, *, wait: bool = True, seconds: int = 0, pin: bool = False, cost: float = 0,
            extras: Sequence[Extra] = ()) -> bool:
        """Puts the whole chunks of a cache with token ids that begins at position 0. False: the queue was full, and it was dropped.

        A cache with layers that keep a window is put as it is, for get_whole().

        Without `wait` the file passes to the store, which closes it when it is packed; until then the arrays of the file must stay as
        they are.
        """
        items = _extras(extras)
        o = _lib.StorePutOptions(wait=wait, seconds=seconds, pin=pin, cost=cost, extras=items, n_extras=len(extras))
        if wait:
            return bool(call(self._library.kvc_store_put, self.pointer, _file(file).pointer, c.byref(o)) == 0)
        putting = self.store._putting
        number = putting.begin(_file(file), items, self)
        o.done, o.state = putting.done, number
        status = -1
        try:
            status = call(self._library.kvc_store_put, self.pointer, file.pointer, c.byref(o))
        finally:
            if status:
                putting.give_back(number)
        return bool(status == 0)

    # --- caches by names that the program chose, for engines that hand out hashes instead of tokens ---

    def find_names(self, names: Sequence[bytes], *, timeout: Optional[float] = None) -> List[bool]:
        """Says of each name whether the store has a cache of it. What is not known after the timeout counts as missing."""
        if not names:
            return []
        o = _lib.StoreFindOptions(timeout_us=_microseconds(timeout))
        there = (c.c_uint8 * len(names))()
        call(self._library.kvc_store_find_names, self.pointer, _names(names), len(names), there, c.byref(o))
        return [bool(x) for x in there]

    def put_name(self, name: bytes, file: File, *, seconds: int = 0, pin: bool = False, cost: float = 0,
                 told: Optional[List[int]] = None) -> bool:
        """Puts a cache under a name of 1 to 256 bytes, as one object, and returns when it is stored. It needs no tokens.

        Caches of one name must be the same. False: no tier keeps it, which `stats` counts. The list `told` gets the bytes of the object, as
        it is stored, at its end; 0 if it was there and its tier does not tell.
        """
        size = c.c_uint64()
        o = _lib.StorePutOptions(seconds=seconds, pin=pin, cost=cost, stored_bytes=c.addressof(size))
        stored = call(self._library.kvc_store_put_name, self.pointer, _names([name]), _file(file).pointer, c.byref(o)) == 0
        if told is not None:
            told.append(size.value)
        return bool(stored)

    def get_name(self, name: bytes, *, timeout: Optional[float] = None) -> Optional[File]:
        """Reads the cache of a name. None: there is none, or it is damaged."""
        o = _lib.StoreLoadOptions(timeout_us=_microseconds(timeout))
        return _found(_lib.find(self._library.kvc_store_get_name, self.pointer, _names([name]), c.byref(o)))

    def load_name(self, name: bytes, into: Any, *, layout: Optional[str] = None, dtype: Any = None, convert: bool = False,
                  pairing: Optional[str] = None, timeout: Optional[float] = None, threads: int = 0) -> bool:
        """Decodes the cache of a name straight into arrays or CPU tensors (File.load()), whose index 0 gets its first position.

        False: there is none, or it is damaged; the arrays hold rubbish then.
        """
        m = arrays.memory(arrays.planes(into, layout, dtype, to_fill=True))
        o = _lib.StoreLoadOptions(timeout_us=_microseconds(timeout), threads=threads, convert=convert, pairing=encode(pairing))
        return bool(call(self._library.kvc_store_load_name, self.pointer, _names([name]), c.byref(m), c.byref(o)) == 1)

    def drop_names(self, names: Sequence[bytes]) -> None:
        """Removes the caches of names; those that are not there are no error."""
        if names:
            call(self._library.kvc_store_drop_names, self.pointer, _names(names), len(names))

    def drop(self) -> int:
        """Removes everything of the namespace. Returns the number of objects: its chunks and its facts."""
        return int(call(self._library.kvc_store_drop, self.pointer))

    def drop_tokens(self, tokens: Any, *, extras: Sequence[Extra] = ()) -> Tuple[int, int]:
        """Removes the chunks of one prompt from all tiers. Returns how many, and how many stay as other prompts go on after them."""
        ids = arrays.token_ids(tokens)
        o, dropped = _lib.StoreDropOptions(extras=_extras(extras), n_extras=len(extras)), _lib.StoreDropped()
        call(self._library.kvc_store_drop_tokens, self.pointer, ids.ctypes.data, ids.size, c.byref(o), c.byref(dropped))
        return dropped.removed, dropped.kept


def _found(address: Optional[int]) -> Optional[File]:
    return None if address is None else File._of(address)


def _names(names: Sequence[bytes]) -> Any:
    return (_lib.StoreName * len(names))(*(_lib.StoreName(name, len(name)) for name in names))


class _Putting:
    """Files that a store reads in the background, by number. The library's callback refers to this object only."""

    def __init__(self) -> None:
        self.timeout = _microseconds(10)  # of closing the store
        self.ended = threading.Event()  # the store is closed, and calls nothing back
        self._held: Dict[int, Tuple[Any, ...]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.done = _lib.DONE_FN(lambda state, stored: self.give_back(state).close())

    def begin(self, file: File, *held: Any) -> int:
        """Takes a file away from its owner: neither close() nor the end of the program closes it now."""
        file.pointer  # refuses a closed one
        if file._taken or len(file._made) or file._parents:
            raise Error(Code.USAGE, "a file that is being put, that has selections, or that is one or a join is put with wait=True")
        with self._lock:
            number = next(self._numbers)
            self._held[number] = (file, *held)
        file._taken = True
        return number

    def give_back(self, number: int) -> File:
        with self._lock:
            file: File = self._held.pop(number)[0]
        file._taken = False
        return file


class Hit(_InStore):
    """What a store has of a prompt. It is to be used soon (30 s in a directory), and by one thread. Namespace.find() makes it."""

    _again = "find the tokens again with Namespace.find()"
    _made_by = "Namespace.find() finds tokens"
    _library: c.CDLL
    _namespace: Namespace
    decoded = ""  # what load() onto a device was decoded by: "cuda:0", or "cpu: " and why

    @classmethod
    def _of_namespace(cls, address: int, namespace: Namespace, pointer: c.c_void_p) -> "Hit":
        self = cls.__new__(cls)
        self._library, self._namespace = namespace._library, namespace
        self._hold(address, self._library.kvc_store_hit_free, parents=[namespace], held=[pointer])
        self._read()
        return self

    def _read(self) -> None:
        info, pointer = _lib.StoreHitInfo(), self.pointer  # held while the text is read
        self._library.kvc_store_hit_describe(pointer, c.byref(info))
        self.tokens: int = info.tokens
        self.chunks: int = info.chunks
        self.bytes: int = info.bytes
        self.asked: int = info.asked  # tokens in whole chunks that were looked for
        self.seconds: float = info.took_us / 1e6
        self.late = bool(info.late)  # the timeout ended the search
        self.tiers: str = (info.tiers or b"").decode()  # "dir 1024, redis 512": tokens by tier

    def __repr__(self) -> str:
        return f"<kvc.Hit {self.tokens} of {self.asked} tokens{f' ({self.tiers})' if self.tiers else ''}>"

    def get(self, *, first: int = 0, end: int = 0, timeout: Optional[float] = None, threads: int = 0) -> Optional[File]:
        """Returns what was found as one cache, whose rows are decoded when they are read.

        None: nothing of it can be had any more, and `stats` counts why.
        """
        o = _lib.StoreLoadOptions(first=first, end=end, timeout_us=_microseconds(timeout), threads=threads)
        return _found(_lib.find(self._library.kvc_store_get, self.pointer, c.byref(o)))

    def load(self, into: Any, *, first: int = 0, layout: Optional[str] = None, dtype: Any = None, convert: bool = False,
             pairing: Optional[str] = None, timeout: Optional[float] = None, threads: int = 0) -> int:
        """Decodes straight into arrays or tensors (File.load()), of which index 0 gets position `first`.

        Returns the position up to which everything is there: `first` if nothing is. What lies after it in the arrays is rubbish. Tensors
        may be on CUDA devices, as for File.load(); `decoded` tells who decoded.
        """
        views = arrays.planes(into, layout, dtype, to_fill=True)

        def by_cpu(planes: Mapping[Key, Plane]) -> int:
            m = arrays.memory(planes, first=first)
            o = _lib.StoreLoadOptions(first=first, end=first + m.tokens, timeout_us=_microseconds(timeout), threads=threads,
                                      convert=convert, pairing=encode(pairing))
            with _lib.ErrorSlot() as e:
                there = int(self._library.kvc_store_load(self.pointer, c.byref(m), c.byref(o), e))
                if there < 0:
                    raise e.error()
                return there

        if not cuda.on_devices(views):
            return by_cpu(views)
        there, self.decoded = cuda.either(into, layout, dtype, lambda: self._load_on_device(views, first, convert, pairing, timeout),
                                          by_cpu)
        return there

    def _load_on_device(self, views: Mapping[Key, Plane], first: int, convert: bool, pairing: Optional[str],
                        timeout: Optional[float]) -> int:
        """Decodes the checked bytes of each chunk on devices. Raises kvc.Error if they cannot."""
        total = max((v.tokens for v in views.values()), default=0)
        cuda.kvc_cuda()  # before anything is read
        if pairing is not None or not total or first > self.asked or any(v.device is None or v.tokens != total for v in views.values()):
            raise Error(Code.UNSUPPORTED, "devices decode chunks as they are, into arrays of one length on devices")
        there = first

        def take(_: Any, at: int, tokens: int, data: int, size: int) -> None:
            nonlocal there
            with cuda.in_memory(data, size, profile=encode(self._namespace._profile_path())) as source:
                cuda.run(source, views, first=first, end=first + total, part=(at, at + tokens), convert=convert)
            there = min(at + tokens, first + total)

        o = _lib.StoreLoadOptions(first=first, end=first + total, timeout_us=_microseconds(timeout))
        back = _lib.Callback(_lib.CHUNK_FN, take)
        try:
            with _lib.ErrorSlot() as e, back:
                if self._library.kvc_store_chunks(self.pointer, c.byref(o), back.pointer, None, e) < 0:
                    raise e.error()
        except (Error, OSError) as problem:
            raise Error(Code.UNSUPPORTED, f"a chunk cannot be decoded by the device: {problem}") from None
        cuda.count(device=1)
        return there

    def pin(self, seconds: int = 0) -> None:
        """Keeps what was found for so many seconds; 0: for good."""
        call(self._library.kvc_store_pin, self.pointer, _lib.whole("seconds", seconds, _lib.i64))

    def unpin(self) -> None:
        call(self._library.kvc_store_unpin, self.pointer)

    def expect(self, seconds: int) -> None:
        """Says that the prefix will be asked for again within so many seconds."""
        self._library.kvc_store_expect(self.pointer, _lib.whole("seconds", seconds, _lib.i64))

    def evict_soon(self) -> None:
        """Makes the chunks that no other prompt shares the first to be evicted."""
        self._library.kvc_store_evict_soon(self.pointer)
