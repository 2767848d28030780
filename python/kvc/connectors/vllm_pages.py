"""K and V in the pages of vLLM's caches, and what vLLM tells of layers and layouts.

A page has N tokens of one layer. Its layout is named by the order of its axes (T tokens, H heads, 2
K and V, D channels), as formats/engines/ENGINES.md does for offloaded blocks, or, on CPUs, by the
instruction set of vLLM's attention kernels: those of `vec` and `vec16` (AVX2, AVX-512) keep K of a
head as [D, T], then V as [T, D], whatever the shape of vLLM's tensor says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Sequence

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from .base import Geometry

AXES = "PTHD"  # of views: the `layout` of kvc.open_arrays() and Hit.load()

# Axes of all pages as they lie in memory, of K and of V where they differ: see Geometry.views().
LAYOUTS = {
    "T-H-2D": "lpthcd",
    "2-T-H-D": "lpcthd",
    "H-T-2D": "lphtcd",
    "2-H-T-D": "lpchtd",
    "vec": "lphcdt,lphctd",
    "vec16": "lphcdt,lphctd",
}


@dataclass(frozen=True)
class Pages:
    """The caches of a group of layers: their names, the tokens of a page, and the layout of a page."""

    names: Sequence[str]
    geometry: Geometry
    page: int
    layout: str

    def __post_init__(self) -> None:
        if self.layout not in LAYOUTS:
            raise Error(Code.UNSUPPORTED, f"vLLM's pages of the layout '{self.layout}' are not supported, because kvc "
                                          f"does not know the order of their values: {', '.join(LAYOUTS)} are")

    @property
    def page_bytes(self) -> int:
        """Bytes of a page of one layer."""
        return self.geometry.token_bytes // self.geometry.layers * self.page

    def views(self, buffer: Any, pages: int) -> Dict[Key, np.ndarray]:
        """Returns K and V at the begin of a buffer [layers][pages][page_bytes], as arrays of the layout AXES.

        K of all layers comes first: chunks in stores are packed in this order.
        """
        size = self.geometry.layers * pages * self.page_bytes
        data = memoryview(buffer).cast("B")[:size]
        found = self.geometry.views(data, LAYOUTS[self.layout], self.page)
        return dict(sorted(found.items(), key=lambda item: item[0][1]))


def layer_numbers(names: Sequence[str]) -> List[int]:
    """Returns the numbers in names as "model.layers.3.self_attn.attn"; none if they do not tell layers apart."""
    found = [next((int(part) for part in name.split(".") if part.isdecimal()), -1) for name in names]
    return found if -1 not in found and len(set(found)) == len(found) else []


def cpu_layout(dtype: Any, block: int, dim: int) -> str:
    """Returns the layout of vLLM on a CPU. Nothing in the cache tells it: the attention kernel decides it."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return str(_get_attn_isa(dtype, block, dim))
