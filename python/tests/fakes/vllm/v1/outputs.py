from dataclasses import dataclass, field
from typing import Any


@dataclass
class KVConnectorOutput:
    kv_connector_worker_meta: Any = None
    kv_connector_stats: Any = None
    invalid_block_ids: set = field(default_factory=set)
