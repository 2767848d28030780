"""K and V in the pages of vLLM's caches, as strided views of numpy, which kvc reads and fills without a copy.

A page has N tokens of one layer. Its layout is named by the order of its axes (T tokens, H heads, 2 K and V, D channels), as
formats/engines/ENGINES.md does for offloaded blocks, or, on CPUs, by the instruction set of vLLM's attention kernels: those of `vec` and
`vec16` (AVX2, AVX-512) keep K of a head as [D, T], then V as [T, D], whatever the shape of vLLM's tensor says.
"""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np

from .. import arrays
from ..arrays import Key
from ..errors import Code, Error
from .pages import dtype_of

AXES = "PTHD"  # of views with several pages: the `layout` that kvc.open_arrays() and Hit.load() are to be told

# Axes of a page, the outermost first, for K and for V. "2" is 0 for K and 1 for V.
_PAGES: Dict[str, Tuple[str, str]] = {
    "T-H-2D": ("TH2D", "TH2D"),
    "2-T-H-D": ("2THD", "2THD"),
    "H-T-2D": ("HT2D", "HT2D"),
    "2-H-T-D": ("2HTD", "2HTD"),
    "vec": ("H2DT", "H2TD"),
    "vec16": ("H2DT", "H2TD"),
}
LAYOUTS = tuple(_PAGES)


def page_bytes(heads: int, dim: int, page: int, dtype: Any) -> int:
    """Returns the bytes of K and V of a layer in a page of so many tokens."""
    return 2 * heads * dim * page * arrays.empty((0,), dtype_of(dtype)).itemsize


def views(buffer: Any, layers: int, heads: int, dim: int, tokens: int, dtype: Any, layout: str, *,
          page: int = 0) -> Dict[Key, np.ndarray]:
    """Returns K and V of each layer in a buffer of pages, by layer and role, as [tokens, heads, channels].

    The buffer has all pages of layer 0, then those of layer 1 and so on; bytes after them are left alone. `page` is the tokens of a
    page. With several pages the arrays are [pages, tokens, heads, channels], of the layout AXES. They can be written if the buffer can.
    """
    page = page or tokens
    if min(layers, heads, dim, tokens) < 1 or tokens % page:
        raise Error(Code.USAGE, f"{layers} layers of {heads} heads of {dim}, with {tokens} tokens in pages of {page}: sizes are above 0, and "
                                "pages are whole")
    values = _values(buffer, dtype_of(dtype), layers * 2 * heads * dim * tokens)
    sizes = {"L": layers, "P": tokens // page, "T": page, "H": heads, "2": 2, "D": dim}
    found: Dict[Key, np.ndarray] = {}
    for i, (role, axes) in enumerate(zip("KV", _axes(layout))):
        plane = _ordered(values, axes, sizes)[i]
        for layer in range(layers):
            found[layer, role] = plane[layer, 0] if page == tokens else plane[layer]
    return found


def _ordered(values: np.ndarray, axes: str, sizes: Dict[str, int]) -> np.ndarray:
    """Returns values of pages with these axes as [2, layers, pages, tokens, heads, channels]."""
    axes = "LP" + axes
    return values.reshape([sizes[axis] for axis in axes]).transpose([axes.index(axis) for axis in "2LPTHD"])


def _axes(layout: str) -> Tuple[str, str]:
    if layout not in _PAGES:
        raise Error(Code.UNSUPPORTED, f"pages of the layout '{layout}' are not supported, because kvc does not know the order of their "
                                      f"values; {', '.join(LAYOUTS)} are")
    return _PAGES[layout]


def _values(buffer: Any, dtype: str, n: int) -> np.ndarray:
    """Returns the first n values of a buffer, without a copy."""
    like = arrays.empty((0,), dtype)
    data = np.frombuffer(buffer, np.uint8)
    if data.size < n * like.itemsize:
        raise Error(Code.USAGE, f"a buffer of {data.size} bytes is too small for {n} values of {dtype}: heads, dim, tokens or dtype are "
                                "others")
    found = data[:n * like.itemsize].view(like.dtype)
    if isinstance(like, arrays.RawArray):
        found = found.view(arrays.RawArray)
        found.dtype_name = like.dtype_name
    return found
