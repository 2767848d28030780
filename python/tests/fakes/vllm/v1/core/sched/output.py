from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Set, Tuple


@dataclass
class NewRequestData:
    req_id: str
    prompt_token_ids: Optional[List[int]]
    block_ids: Tuple[List[int], ...]
    num_computed_tokens: int


@dataclass
class CachedRequestData:
    req_ids: List[str] = field(default_factory=list)
    resumed_req_ids: Set[str] = field(default_factory=set)
    new_block_ids: List[Optional[Tuple[List[int], ...]]] = field(default_factory=list)
    num_computed_tokens: List[int] = field(default_factory=list)


@dataclass
class KVConnectorBlockState:
    req_ids: Set[str]
    resolve_block_ids: Callable[[str], Tuple[List[int], ...]]
    boundary_state_offloads: Dict[str, Any] = field(default_factory=dict)

    def get_block_ids(self, req_id):
        return self.resolve_block_ids(req_id) if req_id in self.req_ids else None


@dataclass
class SchedulerOutput:
    scheduled_new_reqs: List[NewRequestData]
    scheduled_cached_reqs: CachedRequestData
    num_scheduled_tokens: Dict[str, int]
    kv_connector_block_state: Optional[KVConnectorBlockState] = None
    finished_req_ids: Set[str] = field(default_factory=set)
