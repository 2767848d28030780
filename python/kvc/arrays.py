"""Numpy arrays and torch tensors as memory of libkvc: by address and strides, without a copy."""

from __future__ import annotations

import ctypes as c
import re
import sys
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from . import _lib, devices, keys
from .devices import is_torch
from .errors import Code, Error, kind_of
from .handle import Unique

Key = Tuple[int, str]  # layer and role

_NUMPY = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8)}
_BITS = {"bf16": np.dtype(np.uint16), "f8e4m3": np.dtype(np.uint8), "f8e5m2": np.dtype(np.uint8)}  # without ml_dtypes
BLOCKS = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "iq4_nl": 18}  # bytes of 32 values
_TORCH = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2", "u8": "uint8",
          "i8": "int8"}
try:
    import ml_dtypes
except ImportError:
    pass
else:
    _NUMPY.update(bf16=np.dtype(ml_dtypes.bfloat16), f8e4m3=np.dtype(ml_dtypes.float8_e4m3fn), f8e5m2=np.dtype(ml_dtypes.float8_e5m2))
_NAMES = {dtype: name for name, dtype in _NUMPY.items()}
_OF_TORCH = {theirs: own for own, theirs in _TORCH.items()}
_ROLES = {"keys": "K", "values": "V"}


class RawArray(np.ndarray):
    """Bits of a type that numpy does not have; `dtype_name` says which: "bf16" in uint16, "f8e4m3" in uint8, "q8_0" in blocks of bytes."""

    dtype_name: Optional[str] = None

    def __array_finalize__(self, other: Any) -> None:
        self.dtype_name = getattr(other, "dtype_name", None) if getattr(other, "dtype", None) == self.dtype else None

    def __array_wrap__(self, array: Any, context: Any = None, return_scalar: bool = False) -> Any:
        """What is computed of bits are bits no more."""
        plain = np.asarray(array)
        return plain[()] if return_scalar else plain

    def __reduce__(self) -> Any:
        own: Any = super().__reduce__()
        return own[0], own[1], (*own[2], self.dtype_name)

    def __setstate__(self, state: Any) -> None:
        *own, self.dtype_name = state
        super().__setstate__(tuple(own))


def dtype_name(array: Any) -> str:
    """Returns kvc's name of the type of an array's values: "bf16", "f16" and so on. A type is taken, too."""
    named = getattr(array, "dtype_name", None)
    if isinstance(named, str):
        return named
    dtype = array if isinstance(array, type) else getattr(array, "dtype", array)
    name = name_of(dtype)
    if name is None:
        raise Error(Code.UNSUPPORTED, f"values of type {dtype} are not supported: {', '.join(_TORCH)} are; say what uint16 or uint8 "
                                      "bits are with dtype=")
    return name


def name_of(dtype: Any) -> Optional[str]:
    """Returns kvc's name of a type of values, as kvc, numpy, torch or their texts name it; None: it has none."""
    text = str(dtype).replace("torch.", "")
    if text in _TORCH or text in BLOCKS:
        return text
    if text in _OF_TORCH:
        return _OF_TORCH[text]
    try:
        return _NAMES.get(np.dtype(dtype))
    except TypeError:
        return None


def dtype_of(dtype: Any) -> Optional[str]:
    """Returns kvc's name of a type that a caller names: "f16", "float16", np.float16, torch.float16; None stays None."""
    if dtype is None:
        return None
    name = name_of(dtype)
    if name is None:
        raise Error(Code.USAGE, f"dtype={dtype!r} is no type of kvc: {', '.join([*_TORCH, *BLOCKS])} are")
    return name


def empty(shape: Sequence[int], dtype: Any, torch: bool = False, device: Optional[int] = None) -> Any:
    """Returns an array for values of kvc's type `dtype`, on a device a tensor; the last axis of block types is cut into blocks of bytes."""
    dtype = dtype_of(dtype)
    if dtype in BLOCKS:
        shape, own = (*shape[:-1], shape[-1] // 32, BLOCKS[dtype]), np.dtype(np.uint8)
    else:
        own = _NUMPY.get(dtype) or _BITS.get(dtype)  # type: ignore[assignment]
    if torch or device is not None:
        return _empty_tensor(shape, dtype, device)
    if own is None:
        raise Error(Code.UNSUPPORTED, f"this package does not know the type {dtype}")
    if dtype in _NUMPY:
        return np.empty(shape, own)
    array = np.empty(shape, own).view(RawArray)
    array.dtype_name = dtype
    return array


def _empty_tensor(shape: Sequence[int], dtype: str, device: Optional[int]) -> Any:
    import torch

    if dtype not in _TORCH:
        raise Error(Code.UNSUPPORTED, f"torch has no type {dtype}; ask for another with dtype='f16'")
    if device is not None:
        return devices.place.empty(shape, getattr(torch, _TORCH[dtype]), device)
    return torch.empty(tuple(shape), dtype=getattr(torch, _TORCH[dtype]))


@dataclass(frozen=True)
class Plane(Unique):
    """K or V of a layer as it lies in memory."""

    _again = "it is an address; describe the copied array"
    owner: Any  # keeps the memory
    data: int
    dtype: str
    tokens: int
    heads: int
    dim: int
    strides: Tuple[int, int, int]  # bytes from a token, a head, a channel (a block, of block types) to the next
    page: int = 0  # tokens of a page; 0: no pages, of which `tokens` are all
    page_stride: int = 0  # bytes from a page to the next
    device: Optional[int] = None  # number of the CUDA device whose memory it is; None: the CPU's


def _locate(array: Any, to_fill: bool) -> Tuple[Any, int, List[int]]:
    """Returns an array whose memory can be taken as it lies, its address, and its strides in bytes."""
    if is_torch(array):
        if array.layout != sys.modules["torch"].strided:
            raise Error(Code.UNSUPPORTED, f"a tensor has the layout {array.layout}, which has no strides")
        array, size = array.detach(), array.element_size()
        if array.is_neg():  # as of the imaginary part of a conjugate: its memory has the values with the other sign
            if to_fill:
                raise Error(Code.USAGE, "a tensor that is to be filled is a negated view of its memory")
            array = array.resolve_neg()
        return array, array.data_ptr(), [s * size for s in array.stride()]
    if isinstance(array, devices.Foreign):
        return array, array.address, list(array.strides)
    array = array if to_fill else np.asanyarray(array)
    if not isinstance(array, np.ndarray):
        raise Error(Code.USAGE, f"what is filled is a numpy array or a torch tensor, not {kind_of(array)}")
    if to_fill and (not array.flags.writeable or any(s < 0 for s in array.strides)):
        raise Error(Code.USAGE, "an array that is to be filled is read-only or has negative strides")
    if any(s < 0 for s in array.strides):
        array = array.copy()
    return array, array.ctypes.data, list(array.strides)


def describe(array: Any, layout: Optional[str] = None, dtype: Any = None, to_fill: bool = False) -> Plane:
    """Describes an array or tensor. `layout` names its axes: T tokens, H heads, D channels, B a batch of one, P pages of
    T tokens each, as engines keep them.

    Those on a device are copied to the CPU, unless they are to be filled, which is for CUDA devices only.
    """
    device = devices.place.number(array)
    if device is not None and not to_fill:
        array, device = devices.place.to_host(array), None
    elif device is not None and not is_torch(array):
        array = devices.Foreign(array)
    elif device is None and is_torch(array) and array.device.type != "cpu":
        if to_fill or array.device.type == "meta":
            raise Error(Code.UNSUPPORTED, f"a tensor is on the device '{array.device}'; the CPU and CUDA devices are supported")
        array = array.detach().cpu()
    array, address, strides = _locate(array, to_fill)
    name = dtype_of(dtype) or dtype_name(array)
    _check_bits(array, name)
    shape = list(array.shape)
    if name in BLOCKS:
        if len(shape) < 2 or shape[-1] != BLOCKS[name] or strides[-1] != 1:
            raise Error(Code.USAGE, f"the last axis of {name} is the {BLOCKS[name]} bytes of a block, one after the other")
        shape, strides = [*shape[:-2], shape[-2] * 32], strides[:-1]
    elif name not in _TORCH:
        raise Error(Code.UNSUPPORTED, f"this package does not know the type {name}")
    elif array.dtype.itemsize != (_NUMPY.get(name) or _BITS[name]).itemsize:  # type: ignore[attr-defined]
        raise Error(Code.USAGE, f"values of type {array.dtype} cannot be the bits of {name}")
    axes = (layout or {2: "TD", 3: "THD", 4: "BHTD"}.get(len(shape), "")).upper()
    if len(axes) != len(shape) or len(set(axes)) != len(axes) or not {"T", "D"} <= set(axes) <= set("BPTHD"):
        raise Error(Code.USAGE, f"an array of {len(shape)} axes cannot have the layout '{axes}': name each axis, as in 'THD' or 'BHTD'")
    at = {axis: i for i, axis in enumerate(axes)}
    if "B" in at and shape[at["B"]] != 1:
        raise Error(Code.UNSUPPORTED, f"an array has a batch of {shape[at['B']]} sequences; a cache is one sequence")

    def of(axis: str, values: List[int], default: int) -> int:
        return values[at[axis]] if axis in at else default

    page = of("T", shape, 1) if "P" in at else 0
    return Plane(array, address, name, of("P", shape, 1) * of("T", shape, 1), of("H", shape, 1), of("D", shape, 1),
                 (of("T", strides, 0), of("H", strides, 0), of("D", strides, 0)), page, of("P", strides, 0), device)


def _check_bits(array: Any, name: str) -> None:
    """Refuses numbers of another type, where dtype= says what the bits are that unsigned integers hold, or int16, as which torch shows
    bf16 to numpy."""
    held = array.dtype_name if isinstance(array, RawArray) and array.dtype_name else name_of(array.dtype)
    text = str(array.dtype).replace("torch.", "")  # of the other byte order, numpy calls them ">u2"
    if held != name and "uint" not in text and text != "int16":
        raise Error(Code.USAGE, f"values of type {text} are not the bits of {name}: dtype= says what unsigned integers hold, or int16")


def flatten(arrays: Any) -> Dict[Key, Any]:
    """Returns arrays by layer and role: of a mapping with such keys or with names as "layers.0.keys", or of (K, V) for each layer."""
    flat: Dict[Key, Any] = {}
    if isinstance(arrays, Mapping):
        for name, array in arrays.items():
            key = key_of(name)
            if key in flat:
                raise Error(Code.USAGE, f"{key[1]} of layer {key[0]} comes twice")
            flat[key] = array
        return flat
    if isinstance(arrays, (str, bytes)) or not hasattr(arrays, "__iter__"):
        raise TypeError(f"a cache is arrays by (layer, role), or a (K, V) for each layer, not {_shown(arrays)}")
    for i, pair in enumerate(arrays):
        if not hasattr(pair, "__len__") or len(pair) != 2:
            raise Error(Code.USAGE, f"item {i} of the cache is {_shown(pair)}, and no pair (K, V) of layer {i}")
        flat[i, "K"], flat[i, "V"] = pair
    return flat


def _shown(value: Any) -> str:
    """Returns what a message calls a value that is out of place."""
    return kind_of(value) + (f" of {len(value)}" if hasattr(value, "__len__") else "")


def key_of(name: Any) -> Key:
    """Returns the layer and role that a key of a mapping, or a name as "layers.0.keys", says."""
    match = re.fullmatch(r"(?:layers\.)?(\d+)\.(\w+)", name) if isinstance(name, str) else None
    if match:
        name = int(match[1]), match[2]
    if not isinstance(name, tuple) or len(name) != 2 or not isinstance(name[1], str):
        raise Error(Code.USAGE, f"{name!r} names no layer and role: 'layers.0.keys', or the key (0, 'K')")
    return _lib.whole("a layer", name[0], _lib.u32), _ROLES.get(name[1], name[1])


def planes(arrays: Any, layout: Optional[str] = None, dtype: Any = None, to_fill: bool = False) -> Dict[Key, Plane]:
    """Describes all arrays of a cache; what is described already stays as it is."""
    return {key: array if isinstance(array, Plane) else describe(array, layout, dtype, to_fill) for key, array in flatten(arrays).items()}


def token_ids(tokens: Any) -> np.ndarray:
    """Returns token ids of a list, an array or a tensor as a row of int32."""
    if isinstance(tokens, Mapping):
        raise TypeError(f"token ids are a list, an array or a tensor, not {_shown(tokens)}: of a tokenizer's output take "
                        "['input_ids']")
    if is_torch(tokens):
        tokens = tokens.detach().cpu().numpy()
    ids = np.asarray(tokens)
    if ids.ndim == 2 and ids.shape[0] == 1:
        ids = ids[0]
    if ids.ndim != 1:
        raise Error(Code.USAGE, f"token ids are one sequence, not an array of shape {ids.shape}")
    if ids.size and (ids.dtype.kind not in "iu" or ids.min() < -(2**31) or ids.max() >= 2**31):
        raise Error(Code.USAGE, "token ids are whole numbers of 32 bits")
    return np.ascontiguousarray(ids, np.int32)


def memory(views: Mapping[Key, Plane], *, tokens: Optional[int] = None, first: int = 0, ids: Optional[np.ndarray] = None,
           facts: Any = None, device: Optional[int] = None) -> _lib.Memory:
    """Returns the struct kvc_memory of planes; it keeps alive what it refers to. Arrays with fewer tokens have the last ones.

    All planes must be memory of the device of this number; None: of the CPU.
    """
    items = (_lib.MemoryArray * len(views))()
    total = max((v.tokens for v in views.values()), default=0) if tokens is None else tokens
    for item, ((layer, role), v) in zip(items, views.items()):
        if v.device != device:
            where = "the CPU" if v.device is None else f"cuda:{v.device}"
            user = "the CPU" if device is None else f"cuda:{device}"
            raise Error(Code.USAGE, f"{role} of layer {layer} is memory of {where}, which {user} cannot use")
        item.role, item.layer, item.dtype, item.heads, item.dim = role.encode(), layer, v.dtype.encode(), v.heads, v.dim
        item.data, (item.token, item.head, item.channel), item.page = v.data, v.strides, v.page_stride
        item.tokens = v.tokens if v.tokens < total else 0
        if total and not v.tokens:
            raise Error(Code.USAGE, f"{role} of layer {layer} has no tokens, and others have {total}")
    pages = {v.page for v in views.values()}
    if len(pages) > 1:
        raise Error(Code.USAGE, "arrays of one cache have pages of the same number of tokens, or none has pages")
    lines = _lib.texts(keys.check(facts))
    m = _lib.Memory(array_size=c.sizeof(_lib.MemoryArray), arrays=items, n_arrays=len(views), tokens=total, first_position=first,
                    page_size=max(pages, default=0))
    if ids is not None:
        m.token_ids, m.n_token_ids = ids.ctypes.data, ids.size
    m.facts = _lib.address(lines)
    m.keep = (items, lines, ids, [v.owner for v in views.values()])
    return m

