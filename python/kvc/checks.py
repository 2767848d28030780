"""Refuses caches in memory whose arrays, token ids and facts do not belong together, before they are packed. Not for reading files."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Tuple

import numpy as np

from . import keys
from .arrays import BLOCKS, Key, Plane
from .errors import Code, Error

_COMPANIONS = ("queries", "hidden")  # they may be of fewer tokens
_OTHER = {"THD": "HTD", "BHTD": "BTHD"}  # what the axes of an array may be instead


def check_arrays(planes: Mapping[Key, Plane], layout: Optional[str], ids: Optional[np.ndarray],
                 facts: Optional[Mapping[str, Any]]) -> None:
    """Refuses arrays of a caller. `layout` is what the caller said of their axes; None: nothing."""
    facts = keys.check(facts) or {}
    window = _number(facts.get("sliding.window"))
    tokens = max((p.tokens for (_, role), p in planes.items() if role not in _COMPANIONS), default=0)
    if layout is None and tokens:
        _check_axes(planes, tokens, _number(facts.get("model.kv-heads")), ids)
    check_rows(planes, tokens, lambda layer: window)
    check_ids(planes, tokens, ids, layout)


def check_rows(planes: Mapping[Key, Plane], tokens: int, window: Callable[[int], int]) -> None:
    """Refuses a cache of no layers, and layers that lack tokens. `window(layer)` are the tokens of a sliding window, 0 without one."""
    own = {key: p for key, p in planes.items() if key[1] not in _COMPANIONS}
    if not own:
        raise Error(Code.USAGE, "the cache is empty: it has no K and V")
    for (layer, role), p in own.items():
        other = own.get((layer, "K"), p)
        if p.tokens != other.tokens:
            raise Error(Code.USAGE, f"layer {layer} has {other.tokens} tokens in K and {p.tokens} in {role}")
    for (layer, _), p in own.items():
        if p.tokens < tokens and not window(layer):
            raise Error(Code.USAGE, f"layer {layer} has {p.tokens} tokens, and the cache has {tokens}: a layer with a sliding window "
                                    "needs the fact 'sliding.window', in tokens")
        if p.tokens < min(tokens, window(layer) - 1):
            raise Error(Code.USAGE, f"layer {layer} has the last {p.tokens} of {tokens} tokens, and its window of {window(layer)} "
                                    f"needs {min(tokens, window(layer) - 1)}")


def check_ids(planes: Mapping[Key, Plane], tokens: int, ids: Optional[np.ndarray], layout: Optional[str]) -> None:
    """Refuses token ids of another number of tokens. One may be more: the last one need not be computed yet."""
    if ids is None or ids.size in (tokens, tokens + 1):
        return
    heads, axes = _shape(planes)
    other = f"; if {heads} are its tokens, and not its heads, layout='{_OTHER[axes]}' says so" if axes in _OTHER else ""
    swapped = layout is None and ids.size in (heads, heads + 1)
    raise Error(Code.USAGE, f"the cache has {tokens} tokens, and tokens= names {ids.size}: as many, or one more, are taken"
                            f"{other if swapped else ''}")


def _check_axes(planes: Mapping[Key, Plane], tokens: int, kv_heads: int, ids: Optional[np.ndarray]) -> None:
    """Refuses arrays that look as if heads were taken for tokens. Ids are as many as tokens, or one more."""
    heads, axes = _shape(planes)
    doubtful = tokens < heads if ids is None else ids.size == heads == tokens + 1
    if axes in _OTHER and (heads > kv_heads if kv_heads else doubtful):
        raise Error(Code.USAGE, f"the arrays have {tokens} tokens and {heads} heads if their layout is '{axes}': say so with "
                                f"layout='{axes}', or name another, as '{_OTHER[axes]}'")


def _shape(planes: Mapping[Key, Plane]) -> Tuple[int, str]:
    """Returns the fewest heads of a layer, and the layout that arrays of so many axes have if nobody tells it."""
    return min(p.heads for p in planes.values()), max((_axes_of(p) for p in planes.values()), key=len)


def _axes_of(plane: Plane) -> str:
    n = len(getattr(plane.owner, "shape", ())) - (plane.dtype in BLOCKS)
    return {3: "THD", 4: "BHTD"}.get(n, "")


def _number(value: Any) -> int:
    """Returns the number that a fact is; 0 if there is none, or libkvc will refuse it."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return 0
