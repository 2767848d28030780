"""Names of LMCache 0.5.7, lmcache/v1/distributed/api.py, as far as kvc's adapter uses them: where the bytes of an adapter are."""

from enum import Enum
from typing import NamedTuple


class MemorySegment(Enum):
    STORAGE = "storage"


class MemoryResidency(Enum):
    REMOTE = "remote"


class MemoryTags(NamedTuple):
    segment: MemorySegment
    residency: MemoryResidency
