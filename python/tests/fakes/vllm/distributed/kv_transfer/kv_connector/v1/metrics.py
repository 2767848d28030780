from dataclasses import dataclass, field
from typing import Any, Dict


@dataclass
class KVConnectorStats:
    data: Dict[str, Any] = field(default_factory=dict)

    def to_dict(self):
        return self.data

    def reset(self):
        raise NotImplementedError

    def aggregate(self, other):
        raise NotImplementedError

    def reduce(self):
        raise NotImplementedError

    def is_empty(self):
        raise NotImplementedError


class KVConnectorPromMetrics:
    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        self._counter_cls = next(kind for name, kind in metric_types.items() if name.__name__ == "Counter")
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues
