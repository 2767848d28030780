"""What the scheduler's side of the vLLM connector hands to the worker's, which may be another process: jobs, and memory."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from dataclasses import dataclass
from typing import Dict, List

import numpy as np

from ..store import Extra


_numbers = itertools.count(1)


class Lent:
    """Memory that another process of this machine maps, by the number of a descriptor. It lives as long as someone has it mapped."""

    _fd = -1

    def __init__(self, size: int) -> None:
        self.size = size
        self._title = f"kvc-{next(_numbers)}"
        self._fd = os.memfd_create(self._title)
        os.posix_fallocate(self._fd, 0, size)  # an error here, rather than a signal when it is written
        self.map = mmap.mmap(self._fd, size)

    @property
    def name(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._fd} {self._title}"

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def borrow(name: str, size: int) -> np.ndarray:
    """Maps memory that was lent. It is told by its title too, because numbers of descriptors are used again."""
    path, _, title = name.partition(" ")
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if os.readlink(f"/proc/self/fd/{fd}").split()[0] != f"/memfd:{title}" or os.fstat(fd).st_size < size:
            raise OSError(f"{path} is not the memory {title} of {size} bytes")
        return np.frombuffer(mmap.mmap(fd, size, prot=mmap.PROT_READ), np.uint8)
    finally:
        os.close(fd)


@dataclass
class Load:
    """Blocks that were promised, and the memory of each rank that they are copied from: [layers][pages][page_bytes]."""

    request: str
    blocks: List[int]
    first_page: int  # that of the first block
    pages: int
    lent: List[str]


@dataclass
class Save:
    """The whole chunks of a prompt."""

    request: str
    tokens: List[int]
    blocks: List[int]
    extras: List[Extra]


class Counts:
    """Counters that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Dict[str, int] = {}

    def add(self, name: str, n: int = 1) -> None:
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + n

    def take(self) -> Dict[str, int]:
        """Returns what was counted since it was taken last."""
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts
