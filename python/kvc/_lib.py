"""Loads libkvc and libkvc_store, and declares what kvc.h and kvc_store.h declare. Not for users of the package."""

from __future__ import annotations

import ctypes as c
import operator
import os
import threading
from pathlib import Path
from typing import AbstractSet, Any, Callable, Dict, Iterable, List, Mapping, Optional

from .errors import Code, Error, error_of, kind_of
from .version import VERSION

MAJOR = VERSION.split(".")[0]
FOLDER = Path(__file__).resolve().parent / "lib"  # of the libraries that a wheel brings

u32, u64, i64, pointer, text = c.c_uint32, c.c_uint64, c.c_int64, c.c_void_p, c.c_char_p
META_FN = c.CFUNCTYPE(None, pointer, text, text, text)
DONE_FN = c.CFUNCTYPE(None, pointer, c.c_int)
WRITE_FN = c.CFUNCTYPE(c.c_int, pointer, pointer, c.c_size_t)
PUT_FN = c.CFUNCTYPE(c.c_int, pointer, u64, pointer, c.c_size_t)
NOTE_FN = c.CFUNCTYPE(None, pointer, c.c_int, text, text)
CHUNK_FN = c.CFUNCTYPE(c.c_int, pointer, u64, u64, pointer, c.c_size_t)
PROGRESS_FN = c.CFUNCTYPE(c.c_int, pointer, u64, u64)


def whole(name: str, value: Any, kind: Any = u64) -> int:
    """Returns a whole number that fits a type of C. `name` is what a message calls it."""
    bits = 8 * c.sizeof(kind)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind is i64 else (0, 2**bits)
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is a whole number, not {value!r}") from None
    if not low <= number < high:
        raise Error(Code.USAGE, f"{name} is a number from {low} to {high - 1}, not {number}")
    return number


class Sized(c.Structure):
    """A struct that begins with its size. Refuses numbers that its fields cannot hold, which ctypes cuts."""

    def __init__(self, **fields: Any) -> None:
        for name, kind, *_ in self._fields_:
            if kind in (u32, u64, i64) and name in fields:
                fields[name] = whole(name, fields[name], kind)
        super().__init__(size=c.sizeof(type(self)), **fields)


class OpenOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("format", text), ("set", pointer), ("model", text), ("kv_heads", u32), ("pairing", text),
                ("weights", text), ("profile", text), ("profile_folders", text), ("damaged", c.c_int), ("shared_profile", pointer),
                ("token_ids", pointer), ("n_token_ids", u64), ("no_verify", c.c_int), ("max_memory", u64), ("facts", pointer),
                ("shared_model", pointer), ("shared_weights", pointer), ("map", c.c_int), ("threads", c.c_uint), ("note", NOTE_FN),
                ("note_state", pointer)]


class SelectOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("first", u64), ("end", u64), ("layers", pointer), ("n_layers", u32), ("no_companions", c.c_int),
                ("whole", c.c_int), ("extras", pointer), ("n_extras", c.c_size_t), ("store_name", pointer), ("store_name_bytes", c.c_size_t)]


class TensorInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("part", text), ("role", text), ("dtype", text), ("layer", u32), ("stream", u32),
                ("snapshot", u32), ("rows", u64), ("heads", u64), ("dim", u64), ("row_bytes", u64)]


class CompareHow(Sized):
    _fields_ = [("size", c.c_size_t), ("first", u64), ("end", u64), ("layers", pointer), ("n_layers", u32), ("abs", c.c_double),
                ("rel", c.c_double), ("meta", c.c_int), ("meta_differs", META_FN), ("meta_state", pointer), ("attention", c.c_int),
                ("queries", pointer)]


class Comparison(Sized):
    _fields_ = [("size", c.c_size_t), ("tensors", u64), ("lone", u64), ("rows_only", u64 * 2), ("values", u64), ("differ", u64),
                ("unequal", u64), ("max_abs", c.c_double), ("rms", c.c_double), ("frobenius", c.c_double), ("cosine", c.c_double),
                ("tokens_differ", c.c_int), ("meta_differ", u64), ("queries", u64), ("logit_rms", c.c_double), ("kl", c.c_double),
                ("output_median", c.c_double), ("output_p99", c.c_double)]


class MemoryArray(c.Structure):
    _fields_ = [("role", text), ("layer", u32), ("dtype", text), ("heads", u64), ("dim", u64), ("data", pointer), ("page", i64),
                ("token", i64), ("head", i64), ("channel", i64), ("tokens", u64)]


class Memory(Sized):
    _fields_ = [("size", c.c_size_t), ("array_size", c.c_size_t), ("arrays", c.POINTER(MemoryArray)), ("n_arrays", c.c_size_t),
                ("tokens", u64), ("first_position", i64), ("page_size", u64), ("table", pointer), ("n_table", u64),
                ("first_slot", u64), ("positions", pointer), ("token_ids", pointer), ("n_token_ids", u64), ("facts", pointer)]


class LoadHow(Sized):
    _fields_ = [("size", c.c_size_t), ("threads", c.c_uint), ("convert", c.c_int), ("pairing", text),
                ("progress", PROGRESS_FN), ("progress_state", pointer), ("verify", c.c_int)]


class WriteOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("threads", c.c_uint), ("progress", PROGRESS_FN), ("progress_state", pointer), ("recipe", text),
                ("align", c.c_uint), ("no_verify", c.c_int), ("queries", pointer), ("dequantize", c.c_int), ("profile", text),
                ("embed_profile", c.c_int), ("force_profile", c.c_int), ("target_kld", c.c_double), ("target_ratio", c.c_double),
                ("max_output_error", c.c_double), ("max_logit_error", c.c_double), ("no_tokens", c.c_int), ("no_companions", c.c_int),
                ("pairing", text), ("set", pointer), ("lossy_metadata", c.c_int), ("shared_profile", pointer),
                ("put", PUT_FN), ("note", NOTE_FN), ("note_state", pointer), ("report", pointer), ("measure", c.c_int), ("exact", c.c_int),
                ("reuse", pointer), ("nearest", c.c_int), ("blocks", u64), ("stem", text), ("no_keys", c.c_int), ("base", pointer)]


class StoreOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("threads", c.c_uint), ("queue_bytes", u64), ("local_timeout_us", i64), ("timeout_us", i64),
                ("load_timeout_us", i64), ("key_file", text), ("backends", text), ("unmade", c.c_int)]


class StoreNamespaceOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("recipe", text), ("profile", text), ("chunk", u64), ("tenant_file", text),
                ("no_learning", c.c_int), ("model", text)]


class StoreNamespaceInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("lossless", c.c_int), ("fidelity", text), ("recipe", text), ("profile", pointer),
                ("profile_bytes", c.c_size_t)]


class PrefixExtra(c.Structure):
    _fields_ = [("position", u64), ("tag", c.c_uint), ("bytes", text), ("size", c.c_size_t)]


class StoreFindOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("timeout_us", i64), ("extras", c.POINTER(PrefixExtra)), ("n_extras", c.c_size_t)]


class StoreHitInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("tokens", u64), ("chunks", u64), ("bytes", u64), ("asked", u64), ("took_us", i64),
                ("late", c.c_int), ("tiers", text)]


class StoreLoadOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("first", u64), ("end", u64), ("timeout_us", i64), ("threads", c.c_uint), ("convert", c.c_int),
                ("pairing", text), ("progress", PROGRESS_FN), ("progress_state", pointer)]


class StoreName(c.Structure):
    _fields_ = [("bytes", text), ("size", c.c_size_t)]


class StorePutOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("wait", c.c_int), ("seconds", i64), ("pin", c.c_int), ("cost", c.c_double),
                ("extras", c.POINTER(PrefixExtra)), ("n_extras", c.c_size_t), ("done", DONE_FN), ("state", pointer), ("progress", PROGRESS_FN),
                ("progress_state", pointer), ("stored_bytes", pointer)]


class StoreDropOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("extras", c.POINTER(PrefixExtra)), ("n_extras", c.c_size_t), ("progress", PROGRESS_FN),
                ("progress_state", pointer)]


class StoreDropped(Sized):
    _fields_ = [("size", c.c_size_t), ("removed", u64), ("kept", u64), ("bytes", u64)]


# function: result, parameters; e is the struct kvc_error
_e, _f = pointer, pointer
KVC = {
    "kvc_version": (text,),
    "kvc_version_of_format": (c.c_uint,),
    "kvc_error_new": (pointer,),
    "kvc_error_free": (None, _e),
    "kvc_error_code": (c.c_int, _e),
    "kvc_error_severity": (c.c_int, _e),
    "kvc_error_offset": (u64, _e),
    "kvc_error_need": (c.c_int, _e),
    "kvc_error_message": (text, _e),
    "kvc_file_open": (_f, text, c.POINTER(OpenOptions), _e),
    "kvc_file_open_members": (_f, c.POINTER(text), c.c_size_t, c.POINTER(OpenOptions), _e),
    "kvc_file_open_memory": (_f, pointer, c.c_size_t, c.POINTER(OpenOptions), _e),
    "kvc_file_open_arrays": (_f, c.POINTER(Memory), _e),
    "kvc_file_select": (_f, _f, c.POINTER(SelectOptions), _e),
    "kvc_file_join": (_f, c.POINTER(pointer), c.c_size_t, text, _e),
    "kvc_file_close": (None, _f),
    "kvc_file_format": (text, _f),
    "kvc_file_meta_key": (text, _f, c.c_size_t),
    "kvc_file_meta_size": (c.c_size_t, _f, text),
    "kvc_file_meta": (pointer, _f, text, pointer, c.c_size_t),
    "kvc_file_tokens": (pointer, _f, c.POINTER(u64)),
    "kvc_file_match": (c.c_int, _f, pointer, u64, c.POINTER(u64), _e),
    "kvc_file_tensors": (u32, _f),
    "kvc_file_tensor": (c.c_int, _f, u32, c.POINTER(TensorInfo)),
    "kvc_file_position": (i64, _f, u32, u64),
    "kvc_file_read": (c.c_int, _f, u32, u64, u64, pointer, c.c_size_t, _e),
    "kvc_file_check": (c.c_int, _f, c.c_uint, _e),
    "kvc_file_load": (c.c_int, _f, c.POINTER(Memory), c.POINTER(LoadHow), _e),
    "kvc_file_compare": (c.c_int, _f, _f, c.POINTER(CompareHow), c.POINTER(Comparison), _e),
    "kvc_file_pack_memory": (c.c_int, _f, c.POINTER(WriteOptions), c.POINTER(pointer), c.POINTER(c.c_size_t), _e),
    "kvc_file_pack_fd": (c.c_int, _f, c.POINTER(WriteOptions), c.c_int, _e),
    "kvc_file_unpack": (c.c_int, _f, text, c.POINTER(WriteOptions), WRITE_FN, pointer, _e),
    "kvc_file_unpack_memory": (c.c_int, _f, text, c.POINTER(WriteOptions), pointer, c.c_size_t, c.POINTER(c.c_size_t), _e),
    "kvc_model_identity": (c.c_int, text, pointer, c.c_size_t, _e),
}
_s, _namespace, _hit = pointer, pointer, pointer
STORE = {
    "kvc_store_version": (text,),
    "kvc_store_open": (_s, text, c.POINTER(StoreOptions), _e),
    "kvc_store_close": (None, _s),
    "kvc_store_namespace_like": (_namespace, _s, _f, c.POINTER(StoreNamespaceOptions), _e),
    "kvc_store_namespace_named": (_namespace, _s, text, c.POINTER(StoreNamespaceOptions), _e),
    "kvc_store_namespace_close": (None, _namespace),
    "kvc_store_namespace_name": (text, _namespace),
    "kvc_store_namespace_facts": (text, _namespace),
    "kvc_store_namespace_chunk": (u64, _namespace),
    "kvc_store_namespace_describe": (c.c_int, _namespace, c.POINTER(StoreNamespaceInfo)),
    "kvc_store_find": (_hit, _namespace, pointer, u64, c.POINTER(StoreFindOptions), _e),
    "kvc_store_hit_free": (None, _hit),
    "kvc_store_hit_describe": (c.c_int, _hit, c.POINTER(StoreHitInfo)),
    "kvc_store_get": (_f, _hit, c.POINTER(StoreLoadOptions), _e),
    "kvc_store_get_whole": (_f, _namespace, pointer, u64, c.POINTER(StoreFindOptions), _e),
    "kvc_store_load": (i64, _hit, c.POINTER(Memory), c.POINTER(StoreLoadOptions), _e),
    "kvc_store_chunks": (i64, _hit, c.POINTER(StoreLoadOptions), CHUNK_FN, pointer, _e),
    "kvc_store_put": (c.c_int, _namespace, _f, c.POINTER(StorePutOptions), _e),
    "kvc_store_find_names": (i64, _namespace, c.POINTER(StoreName), c.c_size_t, pointer, c.POINTER(StoreFindOptions), _e),
    "kvc_store_put_name": (c.c_int, _namespace, c.POINTER(StoreName), _f, c.POINTER(StorePutOptions), _e),
    "kvc_store_get_name": (_f, _namespace, c.POINTER(StoreName), c.POINTER(StoreLoadOptions), _e),
    "kvc_store_load_name": (c.c_int, _namespace, c.POINTER(StoreName), c.POINTER(Memory), c.POINTER(StoreLoadOptions), _e),
    "kvc_store_drop_names": (c.c_int, _namespace, c.POINTER(StoreName), c.c_size_t, _e),
    "kvc_store_flush": (c.c_int, _s, i64),
    "kvc_store_pin": (c.c_int, _hit, i64, _e),
    "kvc_store_unpin": (c.c_int, _hit, _e),
    "kvc_store_expect": (None, _hit, i64),
    "kvc_store_evict_soon": (None, _hit),
    "kvc_store_drop": (i64, _namespace, _e),
    "kvc_store_drop_tokens": (c.c_int, _namespace, pointer, u64, c.POINTER(StoreDropOptions), c.POINTER(StoreDropped), _e),
    "kvc_store_stats": (c.c_size_t, _s, text, pointer, c.c_size_t),
}


def _fits(found: str) -> bool:
    """Returns whether a library has all that this package calls: it has the same first number, and is not older."""
    theirs, own = ([int(n) for n in version.split(".")[:2]] for version in (found, VERSION))
    return theirs[0] == own[0] and (theirs >= own if own[0] else theirs == own)


def _load(variable: str, name: str, functions: Any, version: str) -> c.CDLL:
    """Loads the library that the environment names, else the one of the wheel, else the system's."""
    own = FOLDER / name
    path = os.environ.get(variable) or (str(own) if own.exists() else name)
    try:
        library = c.CDLL(path)
        for function, (result, *parameters) in functions.items():
            f = getattr(library, function)
            f.restype, f.argtypes = result, parameters
    except (OSError, AttributeError) as problem:
        raise Error(Code.UNSUPPORTED, f"{path} cannot be loaded: {problem}. Install libkvc ('make install' in kvc's source), or name "
                                      f"the library in {variable}") from None
    found = getattr(library, version)().decode()
    if not _fits(found):
        raise Error(Code.UNSUPPORTED, f"{path} is version {found}, and this package is for {VERSION}: install the same version of both")
    return library


kvc = _load("KVC_LIBRARY", f"libkvc.so.{MAJOR}", KVC, "kvc_version")
_beside: Dict[str, c.CDLL] = {}
_lock = threading.Lock()


def beside(name: str, variable: str, functions: Any) -> c.CDLL:
    """Returns a library over libkvc, loaded at the first call: not everybody has it."""
    with _lock:
        if name not in _beside:
            library = _load(variable, f"{name}.so.{MAJOR}", functions, f"{name[3:]}_version")
            own, other = kvc.kvc_version().decode(), getattr(library, f"{name[3:]}_version")().decode()
            if own != other:  # they hand each other's handles around
                raise Error(Code.UNSUPPORTED, f"libkvc is {own} and {name} {other}: install the same version of both")
            _beside[name] = library
        return _beside[name]


def store() -> c.CDLL:
    """Returns libkvc_store."""
    return beside("libkvc_store", "KVC_STORE_LIBRARY", STORE)


def store_folder() -> Path:
    """Returns the folder of libkvc_store as far as it is known, beside which its backends may be."""
    named = os.environ.get("KVC_STORE_LIBRARY")
    return Path(named).resolve().parent if named else FOLDER


# what helps, by the number that kvc_error_need() returns
REMEDIES = {
    1: "open it with kv_heads= or model=",
    2: "open it with pairing= or model=",
    3: "open it with model=",
    4: "open it with weights=",
    5: "profile= names it, profile_folders= its folder",
    6: "give queries=, a File",
    7: "name a format to write",
    8: "name the format with format=",
    9: "say which arrays are K and V with settings={'map': ...}",
    10: "give pairing=, or open the file with model=",
    11: "give the recipe code:step=S, a preset or target_kld=",
    12: "pack it with dequantize=True",
    13: "force_profile=True packs it all the same",
    14: "lossy_metadata=True writes it without this",
    15: "give it with model=",
    16: "give it with profile=",
    17: "open it as a cache",
    18: "open it with damaged=True for what is whole of it",
    19: "open its files one by one",
    20: "open it with a larger max_memory=",
    21: "open it with facts={'scale.k': S, 'scale.v': S} (1: it stores the values themselves)",
}


class ErrorSlot:
    """A struct kvc_error for one call."""

    def __enter__(self) -> "ErrorSlot":
        self._as_parameter_ = kvc.kvc_error_new()
        return self

    def __exit__(self, *_: Any) -> None:
        kvc.kvc_error_free(self._as_parameter_)

    @property
    def code(self) -> int:
        return int(kvc.kvc_error_code(self._as_parameter_))

    def error(self) -> Error:
        e = self._as_parameter_
        offset, need = kvc.kvc_error_offset(e), kvc.kvc_error_need(e)
        message = kvc.kvc_error_message(e).decode(errors="replace")
        return error_of(self.code, f"{message}; {REMEDIES[need]}" if need in REMEDIES else message, kvc.kvc_error_severity(e), need,
                        None if offset == 2**64 - 1 else offset)


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function whose last parameter is the struct kvc_error. Raises the error if the result is NULL or negative."""
    with ErrorSlot() as e:
        result = function(*arguments, e)
        if (result is None or result < 0) and e.code:
            del arguments  # a traceback that is kept must not keep handles open
            raise e.error()
        return result


def find(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function that returns NULL where there is nothing. Raises only the error of a call that makes no sense."""
    with ErrorSlot() as e:
        result = function(*arguments, e)
        if result is None and e.code == Code.USAGE:
            del arguments
            raise e.error()
        return result


class Callback:
    """A function that the library calls in a `with`, whose end raises what the function raised: it cannot pass through the library."""

    def __init__(self, kind: Any, function: Callable[..., Any]) -> None:
        self._function = function
        self._failed: List[BaseException] = []
        self.pointer = kind(self._run)

    def _run(self, *arguments: Any) -> int:
        """Returns 0, or 1 to stop the library."""
        try:
            self._function(*arguments)
            return 0
        except BaseException as problem:
            self._failed.append(problem)
            return 1

    def __enter__(self) -> "Callback":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._failed:
            raise self._failed[0] from None


def encode(value: Any) -> Optional[bytes]:
    """Returns a text or a path as the library takes it. Refuses a NUL, where the library would end it."""
    if value is None:
        return None
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise Error(Code.USAGE, f"{value!r} has a NUL character")
    return encoded


def texts(items: Any) -> Optional["c.Array[c.c_char_p]"]:
    """Returns KEY=VALUE texts of a mapping as a NULL-terminated array."""
    if not items:
        return None
    if not isinstance(items, Mapping):
        raise TypeError(f"a mapping is asked for, as {{'KEY': 'VALUE'}}, not {kind_of(items)}")
    for key, value in items.items():
        if value is None:
            raise Error(Code.USAGE, f"'{key}' is None: leave out what is not known")
    lines = [encode(f"{key}={_value(value)}") for key, value in items.items()]
    return (text * (len(lines) + 1))(*lines, None)


def address(items: Any) -> Optional[c.c_void_p]:
    """Returns the address of an array, for a field that is NULL without one."""
    return None if items is None else c.cast(items, c.c_void_p)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return value.hex() if isinstance(value, bytes) else str(value)


def chosen_layers(layers: Optional[Iterable[int]], there: Iterable[int]) -> Optional[AbstractSet[int]]:
    """Returns the layers of a selection; None: all. Refuses those that are not `there`."""
    if layers is None:
        return None
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Iterable):
        raise TypeError(f"layers= takes a list of numbers, as [0, 1], not {layers!r}")
    chosen, known = frozenset(whole("a layer", i, u32) for i in layers), set(there)
    if chosen - known:
        raise Error(Code.USAGE, f"there is no layer {ranges(chosen - known)}: there are {ranges(known) or 'none'}")
    return chosen


def ranges(numbers: Iterable[int]) -> str:
    """Returns whole numbers as text: "0-3, 7"."""
    runs: List[List[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][1] == n - 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def flags(chosen: Optional[AbstractSet[int]]) -> Optional["c.Array[c.c_uint8]"]:
    """Returns layer numbers as the array of flags that selections take."""
    if chosen is None:
        return None
    n = max(chosen, default=0) + 1
    return (c.c_uint8 * n)(*(i in chosen for i in range(n)))
