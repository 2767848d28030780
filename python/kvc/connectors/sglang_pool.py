"""Host pools of SGLang's HiCache: which are supported, their geometry, and the arrays of their pages.

Not for the store.
"""

from __future__ import annotations

import ctypes as c
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ..arrays import Key
from ..errors import Code, Error
from .base import Geometry

KV = "kv"
SIDECARS = (
    "swa",
    "draft",
    "draft_swa",
)  # SGLang's names of pools beside that of K and V, which are pools of the same classes
# a page has a piece for each layer and each of K and V, [tokens, heads, channels]
_LAYERS_APART = "layer_first"
_ORDERS = {
    "page_first": "tlhd",
    "page_first_direct": "lthd",
    "page_head": "htld",
}  # a page has a piece for K, one for V, with all layers


class HostPool:
    """A host pool of SGLang's that was registered as `name`. Refuses pools of other kinds by name.

    A pool of latent attention (MLA) has one latent a layer instead of K and V.
    """

    def __init__(self, pool: Any, name: str, config: Any) -> None:
        self.name = name
        self.geometry = _geometry(pool, name, config)
        self._pool = pool
        roles = len(self.geometry.roles)
        self._pieces = roles * self.geometry.layers if pool.layout == _LAYERS_APART else roles
        self.page_bytes = self.geometry.token_bytes * pool.page_size
        self.suffix = _suffix(name, config)
        self.pages(1, np.arange(pool.page_size))  # refuses pools whose pages have other pieces

    def pages(self, n: int, host_indices: Any) -> List[Dict[Key, np.ndarray]]:
        """Returns the tensors of each of n pages as arrays over the pool's memory."""
        size, count = self._pool.page_size, 0 if host_indices is None else len(host_indices)
        if count != n * size:
            raise Error(Code.USAGE, f"{n} pages of {size} tokens have {count} indices")
        addresses, sizes = self._pool.get_page_buffer_meta(host_indices)
        k = self._pieces
        if len(addresses) != n * k or any(s * k != self.page_bytes for s in sizes):
            raise Foreign(
                f"pages of the host pool '{self.name}' are not {k} pieces "
                f"of {self.page_bytes // k} bytes",
                n,
            )
        return [self._page(addresses[i : i + k]) for i in range(0, len(addresses), k)]

    def _page(self, addresses: Sequence[int]) -> Dict[Key, np.ndarray]:
        g, tokens, size = self.geometry, self._pool.page_size, self.page_bytes // self._pieces
        pieces = [g.bits((c.c_uint8 * size).from_address(address)) for address in addresses]
        n = len(g.roles)
        if self._pool.layout == _LAYERS_APART:
            return {
                (i // n, g.roles[i % n]): g.arrange(piece, "thd", tokens)
                for i, piece in enumerate(pieces)
            }
        order = _ORDERS[self._pool.layout]
        return {
            (layer, role): rows
            for role, piece in zip(g.roles, pieces)
            for layer, rows in enumerate(g.arrange(piece, order, tokens))
        }


class Foreign(Error):
    """Pages that are not of the geometry of their pool."""

    def __init__(self, what: str, pages: int) -> None:
        super().__init__(
            Code.USAGE, f"{what}: they are not of the geometry that the pool was registered with"
        )
        self.pages = pages


def is_writer(config: Any) -> bool:
    """Says whether this rank stores pages.

    Latents are the same on all ranks of tensor parallelism, and the first stores them for all.
    """
    return bool(
        not config.is_mla_model or getattr(config, "is_storage_writer", config.tp_rank == 0)
    )


def shard_of(config: Any) -> Optional[Tuple[int, int]]:
    """Returns the rank and the number of ranks of tensor parallelism, where each has heads of its own."""
    return (
        (config.tp_rank, config.tp_size)
        if config.tp_size > 1 and not config.is_mla_model
        else None
    )


def _suffix(name: str, config: Any) -> str:
    """Returns what tells apart the pages that pools and ranks have of the same tokens."""
    parts = [] if config.is_mla_model else [f"tp{config.tp_rank}/{config.tp_size}"]
    parts += [
        f"pp{getattr(config, 'pp_rank', 0)}/{getattr(config, 'pp_size', 1)}",
        f"cp{getattr(config, 'attn_cp_rank', 0)}/{getattr(config, 'attn_cp_size', 1)}",
    ]
    return ("" if name == KV else f".{name}") + "@" + ",".join(parts)


def _geometry(pool: Any, name: str, config: Any) -> Geometry:
    """Returns the geometry of a host pool, or refuses the pool by name."""
    kind, latent = type(pool).__name__, hasattr(pool, "kv_lora_rank")
    if name != KV and name not in SIDECARS:
        _refuse(
            f"the host pool '{name}', a {kind}, is not supported: {', '.join((KV, *SIDECARS))} are"
        )
    parts = max(getattr(of, "dcp_size", 1) for of in (config, pool)) > 1
    if parts or hasattr(pool, "placement") or getattr(pool, "_layer_shard_enabled", False):
        _refuse(
            f"the host pool '{name}', a {kind}, has parts of pages or of layers (decode context "
            "parallelism), which are not supported"
        )
    if getattr(config, "should_split_heads", False):
        _refuse("pages that are split by heads (tp_lcm_size) are not supported")
    orders = [
        _LAYERS_APART,
        *(layout for layout in _ORDERS if not (latent and "h" == _ORDERS[layout][0])),
    ]
    if getattr(pool, "layout", None) not in orders:
        _refuse(
            f"the layout '{getattr(pool, 'layout', None)}' of the host pool '{name}', a {kind}, "
            f"is not supported: {', '.join(orders)} are"
        )
    return _latents(pool, name, kind) if latent else _keys_and_values(pool, name, kind, config)


def _latents(pool: Any, name: str, kind: str) -> Geometry:
    width = pool.kv_lora_rank + pool.qk_rope_head_dim
    if getattr(pool, "dsa_kv_cache_store_fp8", False) or pool.kv_cache_dim != width:
        _refuse(
            f"the host pool '{name}', a {kind}, has latents of {pool.kv_cache_dim} values with "
            "scales among them, and not of the model's "
            f"{pool.kv_lora_rank} + {pool.qk_rope_head_dim}: they are not supported"
        )
    return Geometry(pool.layer_num, 1, width, pool.dtype, latent=True)


def _keys_and_values(pool: Any, name: str, kind: str, config: Any) -> Geometry:
    if config.is_mla_model and (name == KV or config.tp_size > 1):
        _refuse(
            f"the host pool '{name}' is a {kind}, which has no latents, of a model of latent "
            "attention (MLA): SGLang has the first of "
            f"{config.tp_size} ranks store it for all, and it is not supported"
        )
    if (
        not all(hasattr(pool, what) for what in ("head_num", "head_dim", "get_page_buffer_meta"))
        or getattr(pool, "v_head_dim", pool.head_dim) != pool.head_dim
    ):
        _refuse(
            f"the host pool '{name}' is a {kind}, which is not supported: K and V must have one "
            "width, and addresses"
        )
    return Geometry(pool.layer_num, pool.head_num, pool.head_dim, pool.dtype)


def _refuse(why: str) -> None:
    raise Error(Code.UNSUPPORTED, why)
