"""Decoding and encoding on CUDA devices by libkvc_cuda (kvc_cuda.h): compressed bytes cross the bus.

`File.load()`, `Hit.load()`, `kvc.load()` and `kvc.Prefix` use it for arrays on a device. What it cannot do (the library is not there, the
file is no .kvc, a stage is not for devices ...) the CPU decodes, and torch copies the same values to the device: `stats` counts both
ways, and the `decoded` of a File, Hit or Prefix tells which way it was and why.
"""

from __future__ import annotations

import contextlib
import ctypes as c
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple, TypeVar

from . import _lib, arrays, checks, devices
from ._lib import Sized, call, encode, i64, pointer, text, u32, u64
from .arrays import Key, Plane
from .errors import Code, Error

if TYPE_CHECKING:
    from .file import File

__all__ = ["decode", "list_devices", "pack", "stats"]

Result = TypeVar("Result")


class Pool(c.Structure):
    _fields_ = [("layers", u64), ("pages", u64), ("page_size", u64), ("heads", u64), ("dim", u64), ("value_bytes", u64),
                ("reserved", u64 * 2)]


class PoolStrides(c.Structure):
    _fields_ = [("layer", i64), ("kv", i64), ("page", i64), ("token", i64), ("head", i64), ("dim", i64), ("reserved", i64 * 2)]


class CudaDestination(Sized):
    _fields_ = [("size", c.c_size_t), ("layout", text), ("pool", Pool), ("strides", PoolStrides), ("bases", c.POINTER(u64)),
                ("n_bases", u64), ("dtype", text), ("table", c.POINTER(u32)), ("n_table", u64), ("first", u64), ("first_layer", u32)]


class CudaOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("device", c.c_int), ("threads", c.c_uint), ("slots", c.c_uint), ("slot_bytes", u64),
                ("multiprocessors", c.c_uint), ("verify", c.c_int), ("first", u64), ("end", u64), ("layers", pointer),
                ("n_layers", u32), ("profile", text), ("model", text), ("weights", text), ("direct", c.c_int),
                ("profile_folders", text)]


class CudaPlanInfo(Sized):
    _fields_ = [("size", c.c_size_t), ("stored", u64), ("decoded", u64), ("on_host", u64), ("device_bytes", u64), ("tensors", u32),
                ("seconds", c.c_double)]


class CudaTensor(Sized):
    _fields_ = [("size", c.c_size_t), ("tensor", u32), ("layer", u32), ("role", text), ("dtype", text), ("address", u64),
                ("tokens", u64), ("heads", u64), ("dim", u64), ("token", i64), ("head", i64), ("position", i64)]


class CudaPackOptions(Sized):
    _fields_ = [("size", c.c_size_t), ("device", c.c_int), ("multiprocessors", c.c_uint), ("stream", pointer)]


class CudaPacked(Sized):
    _fields_ = [("size", c.c_size_t), ("bytes", u64), ("raw", u64)]


CUDA = {
    "kvc_cuda_version": (text,),
    "kvc_cuda_build": (text,),
    "kvc_cuda_devices": (c.c_int, pointer),
    "kvc_cuda_device_text": (c.c_int, c.c_int, pointer, c.c_size_t, pointer),
    "kvc_cuda_plan_new": (pointer, text, c.POINTER(CudaOptions), c.POINTER(CudaDestination), pointer),
    "kvc_cuda_plan_free": (None, pointer),
    "kvc_cuda_plan_describe": (c.c_int, pointer, c.POINTER(CudaPlanInfo)),
    "kvc_cuda_plan_tensor": (c.c_int, pointer, u32, c.POINTER(CudaTensor)),
    "kvc_cuda_load": (c.c_int, pointer, pointer, pointer),
    "kvc_cuda_finish": (c.c_int, pointer, pointer),
    "kvc_cuda_pack": (c.c_int, c.POINTER(_lib.Memory), c.POINTER(CudaPackOptions), c.POINTER(_lib.WriteOptions), _lib.WRITE_FN, pointer,
                      c.POINTER(CudaPacked), pointer),
}

_lock = threading.Lock()
# Loads by the way they went, and the bytes that they wrote; `on_host` are bytes that the CPU decoded for the device.
stats: Dict[str, int] = {"device": 0, "device_bytes": 0, "on_host": 0, "cpu": 0, "cpu_bytes": 0}


def kvc_cuda() -> c.CDLL:
    """Returns libkvc_cuda: $KVC_CUDA_LIBRARY, the wheel's, or the system's."""
    return _lib.beside("libkvc_cuda", "KVC_CUDA_LIBRARY", CUDA)


def list_devices() -> List[str]:
    """Returns what libkvc_cuda says about each CUDA device: "NVIDIA H200, 139 GiB, sm_90"."""
    cuda, found = kvc_cuda(), []
    for i in range(call(cuda.kvc_cuda_devices)):
        about = c.create_string_buffer(256)
        call(cuda.kvc_cuda_device_text, i, about, len(about))
        found.append(about.value.decode())
    return found


# --- sources ---


@dataclass(frozen=True)
class Source:
    """A .kvc that libkvc_cuda can open by its path."""

    path: str
    profile: Optional[bytes] = None
    model: Optional[bytes] = None
    weights: Optional[bytes] = None
    profile_folders: Optional[bytes] = None
    state: Optional[Tuple[int, ...]] = None  # of the file when it was opened; None: it cannot change

    def check(self) -> None:
        """Refuses a file that was replaced since it was opened."""
        if self.state is not None and file_state(self.path) != self.state:
            raise Error(Code.UNSUPPORTED, f"{self.path} was changed since it was opened")


def file_state(path: Any) -> Optional[Tuple[int, ...]]:
    """Returns what tells a file from one that takes its place; None: it is no file."""
    try:
        s = os.stat(path)
    except OSError:
        return None
    return s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns


@contextlib.contextmanager
def in_memory(data: int, size: int, **options: Any) -> Iterator[Source]:
    """Gives `size` bytes at an address a path, for the time of a `with`."""
    fd = os.memfd_create("kvc", os.MFD_CLOEXEC)
    try:
        view = memoryview((c.c_char * size).from_address(data))
        while view:
            view = view[os.write(fd, view):]
        yield Source(f"/proc/self/fd/{fd}", **options)
    finally:
        os.close(fd)


# --- plans ---


@dataclass(frozen=True)
class _Range:
    """Positions that are decoded into planes of which slot 0 is the position `origin`."""

    origin: int
    first: int
    end: int


def _groups(views: Mapping[Key, Plane]) -> List[Dict[Key, Plane]]:
    """Returns planes that one destination can describe: equal sizes, types and strides, on one device."""
    groups: Dict[Any, Dict[Key, Plane]] = {}
    for key, v in views.items():
        alike = (v.device, v.tokens, v.heads, v.dim, v.dtype, v.strides, v.page, v.page_stride)
        groups.setdefault(alike, {})[key] = v
    return list(groups.values())


def _destination(group: Mapping[Key, Plane], slot: int, convert: bool) -> CudaDestination:
    """Returns the struct of planes of a group: pages, or one page of all tokens, and a base for K and V of each layer."""
    v, low = next(iter(group.values())), min(layer for layer, _ in group)
    layers = max(layer for layer, _ in group) - low + 1
    bases = (u64 * (2 * layers))()
    for (layer, role), plane in group.items():
        bases[2 * (layer - low) + (role == "V")] = plane.data
    page, (token, head, dim) = v.page or v.tokens, v.strides
    rounded = v.dtype.encode() if convert and v.dtype in ("f32", "f16", "bf16") else None  # as the CPU does it
    return CudaDestination(pool=Pool(layers, v.tokens // page, page, v.heads, v.dim), bases=bases, n_bases=len(bases), dtype=rounded,
                           strides=PoolStrides(0, 0, v.page_stride, token, head, dim), first=slot, first_layer=low)


def _check(plan: int, group: Mapping[Key, Plane], at: _Range) -> None:
    """Refuses a plan that would not write each row of the planes: the CPU's decoder then tells what is wrong."""
    found, i, t = {}, 0, CudaTensor()
    while kvc_cuda().kvc_cuda_plan_tensor(plan, i, c.byref(t)) == 0:
        found[t.layer, t.role.decode()] = (t.tokens, t.position, t.dtype.decode())
        i += 1
    if found != {key: (at.end - at.first, at.first, v.dtype) for key, v in group.items()}:
        raise Error(Code.UNSUPPORTED, "the file's tensors at these positions are not those of the arrays, or of another type")


def _run(source: Source, group: Mapping[Key, Plane], at: _Range, convert: bool, stream: Optional[int]) -> None:
    """Decodes into the planes of a group, and waits for the device."""
    cuda, number = kvc_cuda(), next(iter(group.values())).device or 0
    chosen = _lib.flags({layer for layer, _ in group})
    o = CudaOptions(device=number, verify=1, first=at.first, end=at.end, layers=_lib.address(chosen),
                    n_layers=len(chosen) if chosen else 0, profile=source.profile, model=source.model, weights=source.weights, profile_folders=source.profile_folders)
    to = _destination(group, at.first - at.origin, convert)
    plan = call(cuda.kvc_cuda_plan_new, encode(source.path), c.byref(o), c.byref(to))
    try:
        _check(plan, group, at)
        source.check()
        call(cuda.kvc_cuda_load, plan, devices.place.stream(number) if stream is None else stream)
        call(cuda.kvc_cuda_finish, plan)
        info = CudaPlanInfo()
        cuda.kvc_cuda_plan_describe(plan, c.byref(info))
    finally:
        cuda.kvc_cuda_plan_free(plan)
    count(device_bytes=info.decoded, on_host=info.on_host)


def run(source: Source, views: Mapping[Key, Plane], *, first: int, end: int, part: Optional[Tuple[int, int]] = None,
        convert: bool = False, stream: Optional[int] = None) -> None:
    """Decodes into planes of devices that hold positions [first, end), or the last of them, the positions of `part` only."""
    for group in _groups(views):
        origin = max(first, end - next(iter(group.values())).tokens)
        at = _Range(origin, max(origin, part[0]), min(end, part[1])) if part else _Range(origin, origin, end)
        if at.first < at.end:
            _run(source, group, at, convert, stream)


def count(**numbers: int) -> None:
    with _lock:
        for name, n in numbers.items():
            stats[name] += n


def decode(file: "File", into: Any, *, first: int = 0, tokens: Optional[int] = None, layout: Optional[str] = None,
           dtype: Any = None, convert: bool = False, pairing: Optional[str] = None, stream: Optional[int] = None) -> None:
    """Decodes into arrays on devices as File.load() does, on the devices alone: raises kvc.Error if they cannot.

    `into` has arrays, or a `kvc.arrays.Plane` with address and strides for each. `stream` is a cudaStream_t; by default torch's current
    one. All is decoded, and digests are compared, when it returns.
    """
    views = arrays.planes(into, layout, dtype, to_fill=True)
    if any(v.device is None for v in views.values()):
        raise Error(Code.UNSUPPORTED, "an array is in the CPU's memory, and devices fill their own")
    if file.source is None:
        raise Error(Code.UNSUPPORTED, "devices decode a .kvc that kvc.open() opened by its path, and no other file, selection or join")
    if pairing is not None and pairing != file.meta.get("rope.pairing"):
        raise Error(Code.UNSUPPORTED, "devices do not change the pairing of RoPE")
    total = max((v.tokens for v in views.values()), default=0) if tokens is None else tokens
    _check_positions(file, views)
    run(file.source, views, first=first, end=first + total, convert=convert, stream=stream)
    count(device=1)


def _check_positions(file: "File", views: Mapping[Key, Plane]) -> None:
    """Refuses positions that repeat or are missing, because a device takes all rows from the first to the last."""
    position = _lib.kvc.kvc_file_position
    parts = {(t.part, t.rows): t.index for t in file.tensors if (t.layer, t.role) in views and t.rows}
    for (part, rows), tensor in parts.items():
        start = position(file.pointer, tensor, 0)
        if any(position(file.pointer, tensor, row) != start + row for row in range(rows)):
            raise Error(Code.UNSUPPORTED, f"positions of the file's {part} rows repeat or are missing")


def pack(cache: Any, recipe: str = "fast", *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
         layout: Optional[str] = None, dtype: Any = None, threads: int = 0, align: int = 0,
         stream: Optional[int] = None) -> bytes:
    """Returns a .kvc of arrays on one device, which encodes them: the same bytes as of kvc.pack(), which copies the arrays to the CPU.

    `cache` has arrays by layer and role, or a `kvc.arrays.Plane` for each; `tokens`, `first`, `facts`, `layout` and `dtype` are as of
    kvc.open_arrays(). Raises kvc.Error where no device encodes `recipe`: "fast", "kivi2", "kivi4", "kcvt4" and most of "quant" it does.
    `stream` is a cudaStream_t, whose queued work comes first; by default torch's current one.
    """
    views = arrays.planes(cache, layout, dtype, to_fill=True)
    number = next((v.device for v in views.values()), None)
    if number is None:
        raise Error(Code.UNSUPPORTED, "the arrays are in the CPU's memory, which kvc.pack() packs")
    ids = None if tokens is None else arrays.token_ids(tokens)
    checks.check_arrays(views, layout, ids, facts)
    m = arrays.memory(views, first=first, ids=ids, facts=facts, device=number)
    o = CudaPackOptions(device=number, stream=devices.place.stream(number) if stream is None else stream)
    how, packed = _lib.WriteOptions(recipe=encode(recipe), threads=threads, align=align), CudaPacked()
    pieces: List[bytes] = []
    with _lib.Callback(_lib.WRITE_FN, lambda _, data, size: pieces.append(c.string_at(data, size))) as take:
        call(kvc_cuda().kvc_cuda_pack, c.byref(m), c.byref(o), c.byref(how), take.pointer, None, c.byref(packed))
    return b"".join(pieces)


# --- the device or the CPU ---


def on_devices(views: Mapping[Key, Plane]) -> str:
    """Returns the devices that planes are on: "cuda:0"; empty if there are none."""
    return ",".join(f"cuda:{n}" for n in sorted({v.device for v in views.values() if v.device is not None}))


def either(into: Any, layout: Optional[str], dtype: Any, by_device: Callable[[], Result],
           by_cpu: Callable[[Mapping[Key, Plane]], Result]) -> Tuple[Result, str]:
    """Calls by_device(). If that fails, by_cpu() decodes into memory of the CPU, from which torch copies. Returns the result and the way.

    An error of by_cpu() is raised, because the CPU's decoder knows what is wrong with a file.
    """
    views = arrays.planes(into, layout, dtype, to_fill=True)
    try:
        return by_device(), on_devices(views)
    except Error as problem:
        why = problem
    staged: Dict[Key, Any] = {}
    flat = arrays.flatten(into)
    try:
        tensors = {key: devices.place.tensor(flat[key]) for key, v in views.items() if v.device is not None}
        staged = {key: devices.place.stage(t) for key, t in tensors.items()}
    except Error as problem:
        raise Error(Code.UNSUPPORTED, f"the device cannot decode: {why.message}; and the CPU cannot: {problem.message}") from None
    result = by_cpu({**views, **arrays.planes(staged, layout, dtype, to_fill=True)})
    for key, tensor in tensors.items():
        tensor.copy_(staged[key])
    count(cpu=1, cpu_bytes=sum(t.numel() * t.element_size() for t in tensors.values()))
    return result, f"cpu: {why.message}"
