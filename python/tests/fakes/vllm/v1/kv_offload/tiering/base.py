"""Names and signatures of vLLM 0.32, vllm/v1/kv_offload/tiering/base.py, as far as the tier uses them."""

from dataclasses import dataclass
from typing import Any, Collection, Optional


@dataclass
class TransferJob:
    job_id: int
    keys: Collection[bytes]
    chunk_ids: Any
    is_promotion: bool
    req_context: Any


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Optional[Collection[bytes]] = None
    transfer_time: Optional[float] = None
    transfer_bytes: Optional[int] = None


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._offloading_spec, self._primary_kv_view, self.tier_type = offloading_spec, primary_kv_view, tier_type
        self.locality = None

    def take_events(self):
        return ()
