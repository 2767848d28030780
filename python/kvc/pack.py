"""Packing caches that a program holds in memory."""

from __future__ import annotations

import ctypes as c
from typing import Any, Mapping, Optional, Union, overload

from . import arrays, checks, file
from ._lib import call, kvc
from .file import File
from .options import PackOptions, Path, Unpack, check_names


def open_arrays(cache: Any, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
                layout: Optional[str] = None, dtype: Any = None) -> File:
    """Returns a handle of arrays, which can be packed, read, compared and put as any other. Only what is on a device is copied, to the CPU.

    `cache` has numpy arrays or tensors by (layer, role) or by names as "layers.0.keys", or a (K, V) for each layer, or is a
    DynamicCache of transformers. The arrays must stay as they are until the handle is closed. `layout` names their axes: "THD" for
    [tokens, heads, channels], "BHTD" for transformers' [1, heads, tokens, channels]; by default by the number of axes, unless that gives
    more heads than tokens. `dtype` says what bits in uint16 or uint8 are ("bf16").

    `first` is the position of the first token, `tokens` are ids from there on, as many as there are tokens or one more. `facts` are
    metadata (kvc(5)): {"model.name": ..., "rope.pairing": "halves", "rope.theta": 1e5}. Layers of fewer tokens have the last ones, by a
    sliding window, whose tokens the fact "sliding.window" tells.
    """
    if _is_transformers(cache):
        from . import hf

        _refuse("a DynamicCache", layout=layout, dtype=dtype)
        return hf.open_cache(cache, tokens=tokens, first=first, facts=facts)
    ids = None if tokens is None else arrays.token_ids(tokens)
    planes = arrays.planes(cache, layout, dtype)
    checks.check_arrays(planes, layout, ids, facts)
    return open_planes(planes, first=first, ids=ids, facts=facts)


def open_planes(planes: Mapping[arrays.Key, arrays.Plane], **about: Any) -> File:
    """Returns a handle of arrays that are described and checked. `about` are the arguments of arrays.memory()."""
    m = arrays.memory(planes, **about)
    return File._of(call(kvc.kvc_file_open_arrays, c.byref(m)), m)


@overload
def pack(source: Any, path: None = None, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
         layout: Optional[str] = None, dtype: Any = None, **options: Unpack[PackOptions]) -> bytes: ...


@overload
def pack(source: Any, path: Path, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
         layout: Optional[str] = None, dtype: Any = None, **options: Unpack[PackOptions]) -> int: ...


def pack(source: Any, path: Optional[Path] = None, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
         layout: Optional[str] = None, dtype: Any = None, **options: Unpack[PackOptions]) -> Union[bytes, int]:
    """Packs a cache into a .kvc: returns its bytes, or, written to `path`, how many they are.

    `source` is what open_arrays() takes, with its arguments, an open File, or what open() takes. Options: `recipe` (kvc-recipes(7); by
    default lossless), `profile`, `embed_profile`, `force_profile`, `threads`, `align`, `verify`, `queries` (a File), `dequantize`,
    `target_kld`, `target_ratio`, `max_output_error`, `max_logit_error`, `keep_tokens`, `keep_keys`, `keep_companions`,
    `base` (an open .kvc that the cache came out of and may have grown since: rows that are as it has them, bit by bit, keep its blocks,
    and the others are coded by its recipe as its own were).
    """
    check_names("pack", options, PackOptions, ("tokens", "first", "facts", "layout", "dtype"))
    if isinstance(source, File):
        _refuse("an open File", tokens=tokens, first=first or None, facts=facts, layout=layout, dtype=dtype)
        return source.pack(path, **options)
    if _is_opened(source):
        _refuse("a file", first=first or None, facts=facts, layout=layout, dtype=dtype)
        with file.open(source, tokens=tokens) as f:
            return f.pack(path, **options)
    with open_arrays(source, tokens=tokens, first=first, facts=facts, layout=layout, dtype=dtype) as f:
        return f.pack(path, **options)


def _is_opened(source: Any) -> bool:
    """Says whether open() is for it: paths, bytes, file objects."""
    one = source[0] if isinstance(source, (list, tuple)) and source else source
    return isinstance(one, (str, bytes, bytearray, memoryview)) or hasattr(one, "__fspath__") or hasattr(one, "read")


def _is_transformers(cache: Any) -> bool:
    """Says whether a cache is for hf.py. A DynamicCache of early versions, which is none of `layers`, is a (K, V) for each layer; other caches
    of those, as quantised ones, count as such by a part of their tokens."""
    if isinstance(cache, Mapping):
        return False
    early = type(cache).__name__ != "DynamicCache" and any(c.__module__ == "transformers.cache_utils" for c in type(cache).__mro__)
    return hasattr(cache, "layers") or early


def _refuse(what: str, **given: Any) -> None:
    """Refuses arguments that say something about arrays where there are none."""
    for name, value in given.items():
        if value is not None:
            raise TypeError(f"{name}= is for arrays, and the cache is {what}")
