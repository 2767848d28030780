from dataclasses import dataclass, field
from typing import Any, Dict


@dataclass
class KVConnectorStats:
    data: Dict[str, Any] = field(default_factory=dict)

    def reset(self):
        raise NotImplementedError

    def aggregate(self, other):
        raise NotImplementedError

    def reduce(self):
        raise NotImplementedError

    def is_empty(self):
        raise NotImplementedError
