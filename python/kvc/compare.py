"""Comparing two caches, as kvc-diff(1) does."""

from __future__ import annotations

import ctypes as c
from dataclasses import dataclass, field
from typing import Any, List, Optional, Sequence, Tuple

from . import _lib
from ._lib import call, kvc
from .file import File, _file, open


@dataclass(frozen=True)
class Comparison:
    """How two caches differ; struct kvc_comparison of kvc.h explains the figures. It is true if they are the same."""

    same: bool
    tensors: int
    lone: int
    rows_only: Tuple[int, int]
    values: int
    differ: int
    unequal: int
    max_abs: float
    rms: float
    frobenius: float
    cosine: float
    tokens_differ: bool
    meta_differ: int
    queries: int
    logit_rms: float
    kl: float
    output_median: float
    output_p99: float
    meta: List[Tuple[str, Optional[str], Optional[str]]] = field(default_factory=list)  # (key, text of a, text of b)

    def __bool__(self) -> bool:
        return self.same


def compare(a: Any, b: Any, *, first: int = 0, end: int = 0, layers: Optional[Sequence[int]] = None, abs: float = 0, rel: float = 0,
            meta: int = 0, attention: bool = False, queries: Optional[File] = None) -> Comparison:
    """Compares two open caches or paths, row by row of equal positions.

    Values are equal when |a - b| <= abs + rel * |b|, else when their bits are. `meta` is 1 to compare metadata that change the meaning of
    values, 2 for all. `attention` measures what the differences do to attention; it takes the queries of `queries`, a or b, or,
    where none has any and a was opened with its model, an estimate from K and V of a.
    """
    if not isinstance(a, File):
        with open(a) as f:
            return compare(f, b, first=first, end=end, layers=layers, abs=abs, rel=rel, meta=meta, attention=attention, queries=queries)
    if not isinstance(b, File):
        with open(b) as f:
            return compare(a, f, first=first, end=end, layers=layers, abs=abs, rel=rel, meta=meta, attention=attention, queries=queries)
    differing: List[Tuple[str, Optional[str], Optional[str]]] = []

    def take(_: Any, key: bytes, of_a: Optional[bytes], of_b: Optional[bytes]) -> None:
        texts = [None if x is None else x.decode(errors="replace") for x in (of_a, of_b)]
        differing.append((key.decode(), texts[0], texts[1]))

    asked = None if queries is None else _file(queries).pointer
    chosen, result = _lib.flags(_lib.chosen_layers(layers, (t.layer for f in (a, b) for t in f.tensors))), _lib.Comparison()
    with _lib.Callback(_lib.META_FN, take) as back:
        how = _lib.CompareHow(first=first, end=end, layers=_lib.address(chosen), n_layers=len(chosen) if chosen else 0, abs=abs,
                              rel=rel, meta=meta, meta_differs=back.pointer, attention=attention, queries=asked)
        status = call(kvc.kvc_file_compare, a.pointer, b.pointer, c.byref(how), c.byref(result))
    figures = {name: getattr(result, name) for name, *_ in result._fields_[1:]}
    figures.update(rows_only=tuple(result.rows_only), tokens_differ=bool(result.tokens_differ))
    return Comparison(same=status == 0, meta=differing, **figures)
