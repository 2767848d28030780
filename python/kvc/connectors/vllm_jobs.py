"""What the scheduler's side of the vLLM connector hands to the worker's, which may be another process: jobs, and memory."""

from __future__ import annotations

import itertools
import mmap
import os
from dataclasses import dataclass
from typing import List

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

# Of KvcStats, as Prometheus shows them: vllm:kvc_NAME_total.
COUNTERS = {
    "lookups": "prompts that were looked up",
    "hits": "prompts of which the store had more than vLLM",
    "hit_tokens": "tokens that these could load",
    "loaded_tokens": "tokens that were loaded",
    "saved_tokens": "tokens that were packed and stored",
    "load_failures": "prompts whose blocks were computed in place of loaded",
    "save_failures": "prompts that could not be stored",
    "read_failures": "prompts whose chunks could not be read",
    "dropped_saves": "prompts that were not saved because too much waited",
}
