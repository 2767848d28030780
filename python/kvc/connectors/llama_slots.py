"""The slots of a llama-server: which one a prompt takes, what each holds, and the files in which they are saved."""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

import numpy as np

from .. import file
from ..errors import Code, Error
from ..file import File

_SIMILAR = 0.1  # of a prompt: a slot that shares less is not preferred, as in llama-server
_PREFIX, _SUFFIX = "kvc-", ".bin"
_STALE = 600  # seconds after which a file of a proxy that was killed is removed

Mark = Tuple[Any, Any]


class Busy(Exception):
    """All slots are in use."""


def common(a: np.ndarray, b: np.ndarray) -> int:
    """Returns the number of leading tokens that are equal."""
    n = min(a.size, b.size)
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if different.size else n


def mark_of(state: Mapping[str, Any]) -> Mark:
    """Returns what changes whenever somebody uses the slot, the server empties it, or starts again."""
    return state.get("id_task"), state.get("n_prompt_tokens")


@dataclass
class Slot:
    """A slot, and the tokens that it is known to begin with."""

    number: int
    context: int = 0  # tokens that fit
    tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int32))
    mark: Optional[Mark] = None  # what the server said of it when it held these tokens
    foreign: bool = True  # it may hold rows that were computed in other ways than in order
    taken: bool = False
    processing: bool = False  # for somebody else
    used: float = 0

    def forget(self) -> None:
        self.tokens, self.mark, self.foreign = np.empty(0, np.int32), None, True

    def holds(self, tokens: np.ndarray, state: Mapping[str, Any]) -> None:
        self.tokens, self.mark, self.foreign = tokens, mark_of(state), False

    def common(self, tokens: np.ndarray) -> int:
        """Returns how many of the tokens it holds."""
        return common(self.tokens, tokens)


class Slots:
    """All slots of a server. A slot is taken for a request, and given back when it was saved."""

    def __init__(self) -> None:
        self._slots: Dict[int, Slot] = {}
        self._changed = threading.Condition()

    def take(self, caller: Any, tokens: np.ndarray, timeout: float) -> Slot:
        """Takes the slot that shares the longest prefix with the tokens, else the one that was not used for the longest time.

        Busy: none became free in time.
        """
        asked = time.monotonic()
        states = caller.get("/slots")
        with self._changed:
            self._update(states, asked)
            if not self._changed.wait_for(lambda: any(not slot.taken for slot in self._slots.values()), timeout):
                raise Busy
            slot = max((slot for slot in self._slots.values() if not slot.taken), key=lambda slot: self._rank(slot, tokens))
            slot.taken = True
            return slot

    @staticmethod
    def _rank(slot: Slot, tokens: np.ndarray) -> Tuple[bool, int, float]:
        shared = common(slot.tokens, tokens)
        return not slot.processing, shared if shared >= _SIMILAR * tokens.size else 0, -slot.used

    def _update(self, states: Iterable[Mapping[str, Any]], asked: float) -> None:
        """Forgets what slots held that are not as they were left. States of slots that were in use since `asked` are too old."""
        numbers = set()
        for state in states:
            number = int(state["id"])
            numbers.add(number)
            slot = self._slots.setdefault(number, Slot(number))
            if slot.taken or slot.used > asked:
                continue
            slot.context, slot.processing = int(state.get("n_ctx", 0)), bool(state.get("is_processing"))
            if slot.mark != mark_of(state):
                slot.forget()
                slot.foreign = state.get("n_prompt_tokens") != 0 and state.get("id_task") not in (None, -1)
        for number in [n for n, slot in self._slots.items() if n not in numbers and not slot.taken]:
            del self._slots[number]

    def give_back(self, slot: Slot) -> None:
        with self._changed:
            slot.taken, slot.used = False, time.monotonic()
            self._changed.notify_all()

    def learn(self, slot: Slot, mark: Optional[Mark], tokens: np.ndarray) -> None:
        """Notes all tokens of a slot, unless it was used again since it had this mark."""
        with self._changed:
            if not slot.taken and slot.mark == mark:
                slot.tokens = tokens

    def forget(self) -> None:
        """Forgets what all slots hold: the server is another."""
        with self._changed:
            for slot in self._slots.values():
                slot.forget()

    def report(self) -> Dict[str, Dict[str, Any]]:
        with self._changed:
            return {str(n): {"tokens": int(slot.tokens.size), "taken": slot.taken} for n, slot in sorted(self._slots.items())}


class SlotFolder:
    """The server's --slot-save-path. Names of files cannot be guessed, and they are removed as soon as they were read."""

    def __init__(self, folder: str) -> None:
        if not os.path.isdir(folder):
            raise Error(Code.USAGE, f"{folder} is no folder: name the --slot-save-path of llama-server")
        self.folder = folder
        self._remove_stale()

    def _remove_stale(self) -> None:
        for entry in os.scandir(self.folder):
            ours = entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX) and len(entry.name) == len(self.name())
            if ours and entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < time.time() - _STALE:
                self.remove(entry.name)

    @staticmethod
    def name() -> str:
        return f"{_PREFIX}{secrets.token_hex(16)}{_SUFFIX}"

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def size(self, name: str) -> int:
        return os.path.getsize(self.path(name))

    def remove(self, name: str) -> None:
        try:
            os.unlink(self.path(name))
        except FileNotFoundError:
            pass


# --- streams: with several slots and no --kv-unified, a slot's cells are in the stream of its number ---


def open_slot(path: str, model: str, facts: Optional[Mapping[str, Any]] = None) -> File:
    """Opens a saved slot as the cache of one sequence, whatever the number of the slot."""
    return file.open(path if count_streams(path) == 1 else _open_stream(path), format="llama", model=model, facts=facts)


def _open_stream(path: str) -> memoryview:
    """Returns a slot file as if its server had one stream. Nothing is copied but its head."""
    with open(path, "rb") as f:
        at, streams = _streams(f)
        data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
    before = next((i for i in range(streams) if data[at + 4 + 4 * i:at + 8 + 4 * i] != bytes(4)), streams - 1)
    head = data[:at] + struct.pack("<I", 1)
    data[4 * before:4 * before + len(head)] = head  # the words of the empty streams before it are left out
    return memoryview(data)[4 * before:len(data) - 4 * (streams - 1 - before)]


def add_streams(path: str, streams: int) -> None:
    """Makes a slot file of one stream one for a server with so many."""
    if streams > 1:
        with open(path, "r+b") as f:
            at, _ = _streams(f)
            f.seek(at)
            f.write(struct.pack("<I", streams))
            f.seek(0, os.SEEK_END)
            f.write(bytes(4 * (streams - 1)))


def count_streams(path: str) -> int:
    with open(path, "rb") as f:
        return _streams(f)[1]


def _streams(f: Any) -> Tuple[int, int]:
    """Returns where a slot file (GGSQ) has the number of its streams, and this number."""
    f.seek(0)
    magic, _, words = struct.unpack("<4sII", f.read(12))
    f.seek(4 * words, os.SEEK_CUR)
    count = f.read(4)
    if magic != b"qsgg" or len(count) < 4:
        raise Error(Code.DAMAGED, f"{f.name} is no slot of llama-server")
    return 12 + 4 * words, struct.unpack("<I", count)[0]
