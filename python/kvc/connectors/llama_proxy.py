"""kvc-llama-proxy: stands in front of an unmodified llama-server, and keeps prefixes of prompts in a store of kvc.

For each completion it restores the longest stored prefix into a slot of the server, unless a slot holds as much, and passes the request on. After
the answer it saves the slot and puts it into the store. Whatever fails, the request is passed on as if there were no proxy.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, Union

import numpy as np

from .. import arrays
from .base import Counters
from .llama_http import Caller, ClientGone, Outcome, Refused, Room, Server
from .llama_model import Found, Served, Off, Prefixes, restore, save, state_of
from .llama_slots import Busy, Mark, Slot, SlotFolder, mark_of

if TYPE_CHECKING:
    from .llama_front import Client

CHAT = ("/chat/completions", "/v1/chat/completions")
COMPLETIONS = ("/completion", "/completions", "/v1/completions", *CHAT)
_GENERATED = re.compile(rb'"(?:predicted_n|completion_tokens)":\s*(\d+)')
_REUSED = re.compile(rb'"(?:cache_n|cached_tokens)":\s*(\d+)')

# counter and what it counts, as /kvc/metrics tells
COUNTERS = {
    "requests": "Completions that were asked for",
    "passed": "Completions that were passed on without the store",
    "hits": "Completions for which a stored prefix was restored",
    "slot_hits": "Completions of which a slot held as much as the store, or more",
    "prompt_tokens": "Tokens of prompts for which the store was asked",
    "restored_tokens": "Tokens that were restored from the store",
    "restored_bytes": "Bytes of slot files that were written for this",
    "restore_microseconds": "Time that finding and restoring took",
    "slot_tokens": "Tokens that slots held already",
    "unused_restores": "Restored prefixes that the server did not use",
    "saves": "Slots that were saved for the store",
    "saved_bytes": "Bytes of their files",
    "dropped": "Saved slots that the store's queue had no room for",
    "failures": "Failures of the store or of saving and restoring: the request was passed on all the same",
    "clients_gone": "Clients that went away before they had the answer",
    "server_errors": "Answers of the server with a status from 400 on, or none",
}


class Passed(Exception):
    """The store is not used for a request, and why."""


def plain(text: str) -> str:
    """Returns a text in which what a terminal may obey is written as \\xHH, as by the tools."""
    def escaped(c: str) -> str:
        return "".join(f"\\x{byte:02x}" for byte in c.encode(errors="surrogatepass"))

    return "".join(c if c.isprintable() and c != "\\" else escaped(c) for c in text)


def parsed_size(body: Union[bytes, bytearray]) -> int:
    """Returns a bound of the bytes that JSON takes when parsed: 8 a byte, 100 a list or item."""
    return 8 * len(body) + 100 * sum(map(body.count, b",:[{"))


def unsuited(body: Any) -> str:
    """Returns why the store is not used for a request, or an empty text."""
    if not isinstance(body, dict):
        return "not JSON"
    if body.get("id_slot", -1) not in (-1, None):
        return "id_slot"
    if body.get("cache_prompt") is False:
        return "cache_prompt"
    if body.get("lora"):
        return "lora"
    if any(body.get(key) not in (None, 1) for key in ("n", "n_cmpl", "best_of")):
        return "several answers"
    if body.get("multimodal_data") or body.get("image_data"):
        return "media"
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and any(not isinstance(part, dict) or part.get("type") != "text" for part in content):
            return "media"
    return ""


def prompt_tokens(caller: Caller, path: str, body: Dict[str, Any]) -> np.ndarray:
    """Returns the token ids of a request's prompt, as the server makes them of it."""
    prompt = body.get("prompt")
    if path in CHAT:
        prompt = caller.post("/apply-template", {key: value for key, value in body.items() if key != "stream"})["prompt"]
    elif isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        prompt = caller.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"]
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int and token >= 0 for token in prompt):
        raise Passed("prompt")  # several prompts, tokens mixed with texts, media
    return arrays.token_ids(prompt)


@dataclass
class Task:
    """A completion that has a slot."""

    caller: Caller
    served: Served
    tokens: np.ndarray
    slot: Slot
    held: int = 0  # tokens that the slot held
    found: Found = field(default_factory=Found)
    restored: int = 0


class Proxy:
    """What all connections share.

    `max_body` and `max_memory`: bytes of a request, and of all requests in memory. `max_tokens`:
    tokens of a slot that is saved. `wait`: seconds that a request waits for a slot.
    """

    def __init__(self, server: Server, prefixes: Prefixes, folder: SlotFolder, *, max_body: int,
                 max_memory: int, max_tokens: int, wait: float, verbose: bool = False) -> None:
        self.server, self.prefixes, self.slots, self.folder = server, prefixes, prefixes.slots, folder
        self.max_body, self.max_tokens, self.wait, self.verbose = max_body, max_tokens, wait, verbose
        self.room = Room(max_memory)
        self.counters = Counters(logging.getLogger(__name__), *COUNTERS)
        self.reasons: Dict[str, int] = {}
        self._idle = threading.Condition()
        self._working = 0
        self._said = ""

    # --- counting and telling ---

    def failed(self, what: str, problem: BaseException) -> None:
        self.counters.add(failures=1)
        self.say(f"{what}: {problem or type(problem).__name__}")

    def say(self, text: str) -> None:
        """Prints a line, unless it is the last one again."""
        if text != self._said or self.verbose:
            self._said = text
            with suppress(OSError, ValueError):  # a full disk, a closed pipe: requests go on
                print(f"kvc-llama-proxy: {plain(text)}", file=sys.stderr, flush=True)

    def stats(self) -> Dict[str, Any]:
        own = {**self.counters.read(), "passed_reasons": dict(self.reasons)}
        return {"proxy": own, "slots": self.slots.report(), "namespace": self.prefixes.name, "off": self.prefixes.why_off,
                "store": self.prefixes.store.stats}

    def metrics(self) -> str:
        named = ((f"kvc_llama_{name}_total", COUNTERS[name], value) for name, value in self.counters.read().items())
        lines = [f"# HELP {name} {what}\n# TYPE {name} counter\n{name} {value}\n" for name, what, value in named]
        return "".join(lines) + self.prefixes.store.prometheus()

    # --- a completion ---

    def complete(self, client: Client) -> None:
        """Passes a completion on, with what the store has of its prompt."""
        began, task, why = time.monotonic(), None, ""
        self._work(1)
        self.counters.add(requests=1)
        try:
            task = self._prepare(client)
        except Passed as reason:
            why = str(reason)
        except Off as reason:
            why = "off"
            self.say(f"the store is not used: {reason}")
        except Exception as problem:  # whatever it is, the request is alive
            why = "failure"
            self.failed("the store is not used for a request", problem)
        if why:
            self.counters.add(passed=1)
            with self._idle:
                self.reasons[why] = self.reasons.get(why, 0) + 1
        prepared, outcome = time.monotonic() - began, Outcome()
        try:
            client.pass_on(self.server, outcome, self._headers(task, why))
            self.counters.add(server_errors=not 0 < outcome.status < 400)
        except ClientGone:
            self.counters.add(clients_gone=1)
            raise
        finally:
            if task:
                self._finish_soon(task, outcome)
            else:
                self._work(-1)
            if self.verbose:
                self._tell(client, task, why, outcome, prepared, time.monotonic() - began)

    @staticmethod
    def _headers(task: Optional[Task], why: str) -> List[Tuple[str, str]]:
        if task is None:
            return [("x-kvc-passed", why)]
        return [("x-kvc-prefix", str(task.restored)), ("x-kvc-slot", str(task.held))]

    def _tell(self, client: Client, task: Optional[Task], why: str, outcome: Outcome,
              prepared: float, whole: float) -> None:
        used = f"slot {task.slot.number} held {task.held} of {task.tokens.size} tokens, {task.restored} restored" if task else f"passed: {why}"
        self.say(f"{client.path[:200]} {outcome.status} {used}; {1000 * prepared:.1f} ms, "
                 f"first byte {outcome.first:.3f} s, all {whole:.3f} s")

    def _prepare(self, client: Client) -> Task:
        """Takes a slot for a request, and restores what the store has of its prompt into it.

        Changes the request to ask for this slot.
        """
        if not client.reserve(parsed_size(client.body)):
            raise Passed("memory")
        try:
            request = json.loads(client.body)
        except ValueError:
            raise Passed("not JSON") from None
        reason = unsuited(request)
        if reason:
            raise Passed(reason)
        caller = self.server.caller(client.headers)
        try:
            served = self.prefixes.current(caller)
            tokens = prompt_tokens(caller, client.path.partition("?")[0], request)
            slot = self.slots.take(caller, tokens, self.wait)
        except Busy:
            raise Passed("busy") from None
        except Refused:
            raise Passed("refused") from None  # as the server will refuse the request itself
        try:
            task = Task(caller, served, tokens, slot, held=slot.common(tokens))
            self._restore(task)
            # without the shifted rows of n_cache_reuse: they are not those of the prompt, and would be stored as such
            request.update(id_slot=slot.number, cache_prompt=not slot.foreign, n_cache_reuse=0)
            client.body = json.dumps(request).encode()
            return task
        except BaseException:
            slot.forget()
            self.slots.give_back(slot)
            raise

    def _restore(self, task: Task) -> None:
        """Restores the prefix that the store has, unless the slot holds as much. A failure leaves a slot that is computed anew."""
        slot, began = task.slot, time.monotonic()
        try:
            task.found = self.prefixes.fetch(task.served, task.tokens, task.held)
            if task.found.name:
                task.restored = self._load(task, task.found.name)
        except Exception as problem:
            self.failed(f"nothing is restored into slot {slot.number}", problem)
        self.counters.add(
            prompt_tokens=task.tokens.size, slot_tokens=task.held, hits=task.restored > 0,
            slot_hits=task.held > 0 and not task.restored, restored_tokens=task.restored,
            restored_bytes=task.found.bytes if task.restored else 0,
            restore_microseconds=int(1e6 * (time.monotonic() - began)))

    def _load(self, task: Task, name: str) -> int:
        slot, task.held = task.slot, 0
        slot.forget()
        try:
            restored = restore(task.caller, slot, name)
        finally:
            self.folder.remove(name)
        if restored != task.found.tokens:
            raise ValueError(f"the server restored {restored} of {task.found.tokens} tokens")
        self.prefixes.check(task.caller, task.served)
        slot.foreign = False
        return restored

    # --- after the answer ---

    def _work(self, n: int) -> None:
        with self._idle:
            self._working += n
            self._idle.notify_all()

    def finish(self, seconds: float) -> bool:
        """Waits until completions are answered and their slots saved, at most so many seconds."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._working, seconds)

    def _finish_soon(self, task: Task, outcome: Outcome) -> None:
        """Finishes a completion in a thread of its own, or at once if none can be started: the slot must come back."""
        try:
            threading.Thread(target=self._finish, args=(task, outcome), daemon=True).start()
        except RuntimeError:
            self._finish(task, outcome)

    def _finish(self, task: Task, outcome: Outcome) -> None:
        """Saves the slot of an answered completion for the store, and gives it back."""
        try:
            self._keep(task, outcome)
        finally:
            self._work(-1)

    def _keep(self, task: Task, outcome: Outcome) -> None:
        name, slot = None, task.slot
        try:
            name = self._save(task, outcome)
        except Exception as problem:
            slot.forget()
            self.failed(f"slot {slot.number} is not stored", problem)
        finally:
            mark = slot.mark
            self.slots.give_back(slot)
        if name:
            try:
                self._put(task, name, mark)
            except Exception as problem:
                self.failed(f"slot {slot.number} is not stored", problem)
            finally:
                self.folder.remove(name)

    def _save(self, task: Task, outcome: Outcome) -> Optional[str]:
        """Returns the name of the file in which a slot was saved; None: the store has it all, or it is not certain what it holds."""
        slot = task.slot
        slot.forget()
        generated = _GENERATED.findall(outcome.tail)
        if outcome.status != 200 or not outcome.complete or not generated:
            return None
        reused = _REUSED.findall(outcome.tail)
        if reused and task.restored and int(reused[-1]) < min(task.restored, task.tokens.size - 1):
            self.counters.add(unused_restores=1)
        state = state_of(task.caller, slot)
        total = int(state.get("n_prompt_tokens", 0))
        if task.tokens.size + int(generated[-1]) + 1 >= int(state["n_ctx"]) or state.get("is_processing"):
            return None  # the context may have been shifted, or the slot is somebody else's now
        slot.holds(task.tokens, state)
        if not self._is_news(task, total):
            return None
        name = self.folder.name()
        try:
            save(task.caller, slot, name)
            self.prefixes.check(task.caller, task.served)
            if mark_of(state_of(task.caller, slot)) != slot.mark:  # a request that was passed on used it meanwhile
                raise ValueError("the slot was used by another request while it was saved")
        except BaseException:
            self.folder.remove(name)
            raise
        return name

    def _is_news(self, task: Task, total: int) -> bool:
        """Tells whether a slot of so many tokens has more than the store."""
        if total > self.max_tokens:
            return False
        if task.served.whole:
            return total >= task.found.tokens + self.prefixes.min_tokens
        chunk = task.served.namespace.chunk
        return total // chunk * chunk > task.found.tokens

    def _put(self, task: Task, name: str, mark: Optional[Mark]) -> None:
        self.counters.add(saves=1, saved_bytes=self.folder.size(name))
        taken, tokens = self.prefixes.put(task.served, name, task.tokens)
        self.slots.learn(task.slot, mark, tokens)
        if not taken:
            self.counters.add(dropped=1)


if __name__ == "__main__":
    from .llama_main import main

    sys.exit(main())
