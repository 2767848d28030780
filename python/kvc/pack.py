"""Packing caches that a program holds in memory."""

from __future__ import annotations

import ctypes as c
from typing import Any, Mapping, Optional, Union

from . import arrays, file
from ._lib import call, kvc
from .file import File, Path


def open_arrays(cache: Any, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
                layout: Optional[str] = None, dtype: Optional[str] = None) -> File:
    """Returns a handle of arrays, which can be packed, read, compared and put as any other. Only what is on a device is copied, to the CPU.

    `cache` has numpy arrays or tensors by (layer, role) or by names as "layers.0.keys", or a (K, V) for each layer, or is a
    DynamicCache of transformers. The arrays must stay as they are until the handle is closed. `layout` names their axes: "THD" for
    [tokens, heads, channels], "BHTD" for transformers' [1, heads, tokens, channels]; by default by the number of axes. `dtype` says what
    bits in uint16 or uint8 are ("bf16"). `first` is the position of the first token, `tokens` are ids from there on, `facts` are metadata
    (kvc(5)): {"model.name": ..., "rope.pairing": "halves", "rope.theta": 1e5}.
    """
    if hasattr(cache, "layers"):
        from . import hf

        return hf.open_cache(cache, tokens=tokens, first=first, facts=facts)
    ids = None if tokens is None else arrays.token_ids(tokens)
    m = arrays.memory(arrays.planes(cache, layout, dtype), first=first, ids=ids, facts=facts)
    return File(call(kvc.kvc_file_open_arrays, c.byref(m)), m)


def pack(source: Any, path: Optional[Path] = None, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None,
         layout: Optional[str] = None, dtype: Optional[str] = None, **options: Any) -> Union[bytes, int]:
    """Packs a cache into a .kvc: returns its bytes, or, written to `path`, how many they are.

    `source` is what open_arrays() takes, with its arguments, an open File, or what open() takes. Options: `recipe` (kvc-recipes(7); by
    default lossless), `profile`, `embed_profile`, `force_profile`, `threads`, `align`, `verify`, `queries` (a File), `dequantize`,
    `target_kld`, `target_ratio`, `max_output_error`, `max_logit_error`, `keep_tokens`, `keep_companions`.
    """
    if isinstance(source, File):
        return source.pack(path, **options)
    one = source[0] if isinstance(source, (list, tuple)) and source else source
    if isinstance(one, (str, bytes, bytearray, memoryview)) or hasattr(one, "__fspath__"):
        with file.open(source, tokens=tokens) as f:
            return f.pack(path, **options)
    with open_arrays(source, tokens=tokens, first=first, facts=facts, layout=layout, dtype=dtype) as f:
        return f.pack(path, **options)
