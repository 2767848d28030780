"""LMCache: kvc's client as an adapter of its own, by LMCache's hook "plugin".

    {"type": "plugin", "module_path": "kvc.connectors.lmcache_adapter", "class_name": "KvcAdapter",
     "adapter_params": {"max_capacity_gb": 50, "levels": "dir:/var/cache/kvc", "layers": 30,
                        "heads": 3, "dim": 64, "dtype": "bfloat16"}}

LMCache's adapter for clients ("native_plugin") counts the bytes of chunks before they are packed, and
so its limits and quotas evict too early. This adapter tells LMCache the bytes of chunks as they are
stored. Needs LMCache.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

from lmcache.v1.distributed import api
from lmcache.v1.distributed.l2_adapters.native_connector_l2_adapter import (
    NativeConnectorL2Adapter,
    _object_key_to_string,
)

from .lmcache import KvcClient


class KvcAdapter(NativeConnectorL2Adapter):
    """LMCache's adapter for clients over a KvcClient, whose options are the keys of `params`.

    `max_capacity_gb` is LMCache's limit, of bytes as they are stored; 0: none.
    """

    def __init__(self, params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        options = dict(params)
        capacity = options.pop("max_capacity_gb", 0)
        self._packed: Dict[Any, int] = (
            {}
        )  # by LMCache's keys; only its own thread for completions uses it
        self._kvc = KvcClient(**options)
        self._kvc.stored = {}
        super().__init__(self._kvc, max_capacity_gb=capacity, type_name="kvc", **_tags())

    def _notify_keys_stored(self, keys: List[Any], sizes: List[int]) -> None:
        """Tells LMCache of chunks that were stored. Those that it knows already have the size 0."""
        assert self._kvc.stored is not None
        for key, size in zip(keys, sizes):
            stored = self._kvc.stored.pop(_object_key_to_string(key), size)
            if size:
                self._packed[key] = stored
        own = [self._packed[key] if size else 0 for key, size in zip(keys, sizes)]
        super()._notify_keys_stored(keys, own)

    def _notify_keys_deleted(self, keys: List[Any], sizes: List[int]) -> None:
        """Tells LMCache of chunks that were removed, with the sizes that it was told before."""
        own = [self._packed.pop(key, size) for key, size in zip(keys, sizes)]
        super()._notify_keys_deleted(keys, own)

    def report_status(self) -> Dict[str, Any]:
        """Returns LMCache's status with the counters of the client and of the store."""
        return {**super().report_status(), "kvc": self._kvc.stats()}


def _tags() -> Dict[str, Any]:
    """Returns where the bytes are, which LMCache asks from 0.5.7 on: where those of its own "native_plugin" are."""
    tags = getattr(api, "MemoryTags", None)
    return {"memory_tags": tags(api.MemorySegment.STORAGE, api.MemoryResidency.REMOTE)} if tags else {}
