"""The model that a llama-server serves, as a namespace of the store: its prefixes as slot files, and its slots as prefixes."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple

import numpy as np

from ..errors import Code, Error
from ..file import File
from ..store import Namespace, Store
from .llama_http import Caller, Refused
from .llama_slots import Slot, SlotFolder, Slots, add_streams, count_streams, open_slot

_RETRY = 10  # seconds until what failed is tried again
_NOT_NOW = (401, 403, 502, 503)  # a client without the key, a server that starts: the next request may do better
_PROBE = [1]  # the prompt of one token that shows what a slot of this server is like


class Off(Exception):
    """The store is not used for this server, or this request, and why."""


@dataclass
class Served:
    """The caches of one model in the store."""

    namespace: Namespace
    model: str  # path of its weights
    whole: bool  # layers keep a window or a state: caches are stored as they are
    streams: int  # that the server's slot files have
    facts: Dict[str, Any]  # what they do not tell


@dataclass
class Found:
    """A prefix that the store has. `name` is its slot file; None: it is not worth restoring."""

    tokens: int = 0
    name: Optional[str] = None
    bytes: int = 0


class Prefixes:
    """Prefixes of the model that the server serves at the moment.

    Nothing of one model reaches another: the server is asked before each use whether it is still what it was. `options` are those of
    Store.namespace(); `model` names the weights, for as long as the server tells the path that it told first.
    """

    def __init__(self, store: Store, slots: Slots, folder: SlotFolder, *, model: Optional[str] = None, min_tokens: int = 256,
                 wait: float = 60, **options: Any) -> None:
        self.store, self.slots, self.folder = store, slots, folder
        self.min_tokens = min_tokens
        self._model, self._told, self._wait, self._options = model, "", wait, options
        self._lock = threading.Lock()
        self._props: Optional[Dict[str, Any]] = None
        self._served: Optional[Served] = None
        self._why, self._again = "", 0.0

    @property
    def name(self) -> str:
        return self._served.namespace.name if self._served else ""

    @property
    def why_off(self) -> str:
        return "" if self._served else self._why

    def current(self, caller: Caller) -> Served:
        """Returns the namespace of what the server serves now. Off: there is none."""
        props = self._ask(caller)  # not in turn: each would wait in vain for a server that hangs
        with self._lock:
            if props != self._props:  # the answer may be older than what another request noted meanwhile
                props = self._ask(caller)
            if props != self._props:  # another server, or it was started again
                self._props, self._served, self._again = props, None, 0
                self.slots.forget()
            if self._served is None and time.monotonic() >= self._again:
                try:
                    self._served = self._open(caller, props)
                except (Off, Error, Refused, OSError, ValueError, KeyError) as problem:
                    if isinstance(problem, Refused) and problem.status in _NOT_NOW:
                        raise
                    self._why = str(problem)
                    self._again = time.monotonic() + _RETRY
            if self._served is None:
                raise Off(self._why)
            return self._served

    def check(self, caller: Caller, served: Served) -> None:
        """Raises Off if the server is not the one any more that this namespace was opened for. Takes no lock: who looks at a server that is
        another waits, with the lock, for a slot that the caller may have."""
        if self._ask(caller) != self._props or self._served is not served:
            raise Off("the server was started again")

    @staticmethod
    def _ask(caller: Caller) -> Dict[str, Any]:
        """Returns what the server tells of itself: its model, and a word that is another whenever it is started."""
        props: Dict[str, Any] = caller.get("/props")
        props.pop("is_sleeping", None)
        return props

    # --- opening ---

    def _open(self, caller: Caller, props: Dict[str, Any]) -> Served:
        told = str(props.get("model_path", ""))
        self._told = self._told or told
        model = self._model if self._model and told == self._told else told
        if not os.access(model, os.R_OK):
            raise Off(f"the server's model '{model}' cannot be read: " + (f"--model is that of {self._told}" if self._model
                                                                         else "name its file with --model"))
        if caller.get("/lora-adapters"):
            raise Off("the server has adapters, which change K and V: prefixes are not kept")
        path = self.folder.path(self._probe(caller))
        try:
            streams = count_streams(path)
            facts = self._facts(caller, path, model)
            with open_slot(path, model, facts) as like:
                whole = any(t.part in ("window", "state") for t in like.tensors)
                self._check(like, whole, streams, path)
                return Served(self.store.namespace(like, model=model, **self._options), model, whole, streams, facts)
        finally:
            self.folder.remove(os.path.basename(path))

    @staticmethod
    def _facts(caller: Caller, path: str, model: str) -> Dict[str, Any]:
        """Returns what slots do not tell: the context of a server, by which llama.cpp takes one of the two lists of longrope."""
        with open_slot(path, model) as like:
            by_length = like.meta.get("rope.type") == "longrope"
        return {"rope.source": f"llama.cpp, context {caller.get('/slots')[0]['n_ctx']}"} if by_length else {}

    @staticmethod
    def _check(like: File, whole: bool, streams: int, path: str) -> None:
        """Raises why slots of this server cannot be restored from the store."""
        if like.meta.get("llama.transposed-v") == "true" and not whole:
            raise Off("the server keeps V transposed: start it with --flash-attn on")
        if whole and streams > 1:
            raise Off("the model has layers with a window or a state, and the server's slots have a stream each: start it with --kv-unified")
        if not whole:
            like.unpack(path, "llama")

    def _probe(self, caller: Caller) -> str:
        """Saves a slot to see what it is like: as it is, or, if it is empty, with one token. Returns the name of the file."""
        slot = self.slots.take(caller, np.empty(0, np.int32), self._wait)
        name = self.folder.name()
        try:
            if not save(caller, slot, name):
                caller.post("/completion", {"prompt": _PROBE, "n_predict": 0, "id_slot": slot.number})
                save(caller, slot, name)
        except BaseException:
            self.folder.remove(name)
            raise
        finally:
            slot.forget()
            self.slots.give_back(slot)
        if not os.path.exists(self.folder.path(name)):
            raise Off(f"the server does not save slots in {self.folder.folder}: name its --slot-save-path with --slots")
        return name

    # --- reading and writing ---

    def fetch(self, served: Served, tokens: np.ndarray, held: int) -> Found:
        """Finds the longest prefix that the store has, and writes it as a slot file if it is worth more than what a slot holds."""
        asked = tokens[:-1]  # the last one must be computed
        if served.whole:
            file = served.namespace.get_whole(asked)
        else:
            with served.namespace.find(asked) as hit:
                if hit.tokens < held + self.min_tokens:
                    return Found(hit.tokens)
                file = hit.get()
        if file is None:
            return Found()  # what is damaged or gone is stored again
        with file:
            found = _length(file)
            if found < held + self.min_tokens:
                return Found(found)
            name = self.folder.name()
            try:
                size = file.unpack(self.folder.path(name), None if served.whole else "llama")
                add_streams(self.folder.path(name), 1 if served.whole else served.streams)
            except BaseException:
                self.folder.remove(name)
                raise
        return Found(found, name, size)

    def put(self, served: Served, name: str, prompt: np.ndarray) -> Tuple[bool, np.ndarray]:
        """Puts a saved slot in the background. Returns whether the store took it, and its tokens."""
        file = open_slot(self.folder.path(name), served.model, served.facts)
        try:
            tokens = file.tokens
            if tokens is None or tokens.size < prompt.size or not np.array_equal(tokens[:prompt.size], prompt):
                raise Error(Code.VERIFY, "the slot does not begin with the prompt, and is not stored")
            return served.namespace.put(file, wait=False), tokens
        finally:
            file.close()  # does nothing while it is the store's


def _length(file: File) -> int:
    """Returns the number of a cache's tokens."""
    tokens = file.tokens
    return 0 if tokens is None else len(tokens)


def save(caller: Caller, slot: Slot, name: str) -> int:
    """Saves a slot. Returns the number of its tokens."""
    return int(caller.post(f"/slots/{slot.number}?action=save", {"filename": name})["n_saved"])


def restore(caller: Caller, slot: Slot, name: str) -> int:
    """Restores a slot. Returns the number of its tokens."""
    return int(caller.post(f"/slots/{slot.number}?action=restore", {"filename": name})["n_restored"])


def state_of(caller: Caller, slot: Slot) -> Dict[str, Any]:
    """Returns what the server says of a slot."""
    return next(state for state in caller.get("/slots") if state["id"] == slot.number)
