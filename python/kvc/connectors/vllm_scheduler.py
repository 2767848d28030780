"""The scheduler's side of the vLLM connector: looks prompts up, reads what is found before it is promised, and says what to save."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple

from ..store import Extra, Namespace
from . import vllm_pages
from .base import Counters
from .vllm_jobs import Lent, Load, Save
from .vllm_model import Options
from .vllm_pages import Pages

log = logging.getLogger("vllm.kvc")


@dataclass
class Found:
    """What was read of a prompt: positions [first, end), for each rank. `stored` are the tokens that the store has."""

    first: int
    end: int = 0
    stored: int = 0
    pages: int = 0
    lent: List[Lent] = field(default_factory=list)


@dataclass
class Reading:
    """A prompt that is being looked up and read, from position `first` on."""

    first: int
    bytes: int  # at most
    future: "Future[Found]"
    computed: int = 0  # tokens that vLLM had when it asked last


def extras_of(request: Any, generation: bytes = b"") -> List[Extra]:
    """Returns what tells prompts of equal tokens apart: media, vLLM's cache_salt, and the generation of the weights."""
    extras: List[Extra] = []
    told = b"vllm cache_salt " + request.cache_salt.encode() if request.cache_salt else b""
    told += b"\0vllm generation " + generation if generation else b""
    if told:
        extras.append((0, 3, hashlib.sha256(told).digest()))
    for feature in request.mm_features:
        extras.append((feature.mm_position.offset, 1, hashlib.sha256(feature.identifier.encode()).digest()))
    return sorted(extras)


def passed_by(request: Any) -> bool:
    """Whether K and V of a request depend on more than tokens and extras."""
    return (request.prompt_token_ids is None or request.prompt_embeds is not None or request.prompt_is_token_ids is not None
            or request.lora_request is not None or request.pooling_params is not None)


class SchedulerSide:
    """Promises only what it holds in memory, checked and decoded. `namespaces` are those of the ranks."""

    def __init__(self, pages: Pages, namespaces: Sequence[Namespace], options: Options, counters: Counters, *,
                 loads: bool = True, saves: bool = True) -> None:
        self._pages, self._namespaces, self._options, self._counters = pages, namespaces, options, counters
        self._chunk = namespaces[0].chunk
        self._loads, self._saves = loads, saves
        self._limit = int(options.memory * 2**30)
        self._reading: Dict[str, Reading] = {}
        self._promised: List[Load] = []
        self._lent: Dict[str, Tuple[int, Found]] = {}  # ranks that have not taken it yet
        self._requests: Dict[str, Any] = {}
        self._stored: Dict[str, int] = {}
        self._later: List[str] = []  # prompts that are to be saved in the next step
        self._generation = b""  # those of the weights that the engine began with
        self._readers = ThreadPoolExecutor(2, "kvc-read")

    # --- looking up ---

    def matched(self, request: Any, computed: int) -> Optional[int]:
        """Returns how many tokens after those that vLLM has can be loaded. None: it is not known yet."""
        block, name = self._pages.page, request.request_id
        cap = min(request.num_prompt_tokens, request.num_tokens - 1) // block * block  # the last token must be computed
        if not self._loads or request.skip_reading_prefix_cache or cap - computed < max(self._options.min_tokens, 1):
            return 0
        if request.num_prompt_tokens < self._chunk:
            return 0
        if passed_by(request):
            return 0
        reading = self._reading.get(name)
        if reading is not None and reading.future.done() and computed < reading.first:
            reading = None  # vLLM dropped blocks of it since it asked first
        if reading is None:
            reading = self._start(request, computed, cap)
            if reading is None:
                return None
        reading.computed = computed
        if not reading.future.done():
            return None
        return max(0, reading.future.result().end - computed)

    def _start(self, request: Any, computed: int, cap: int) -> Optional[Reading]:
        """Begins to read, if there is memory for it or nothing else has any."""
        size = (cap - computed) * self._pages.geometry.token_bytes * len(self._namespaces)
        held = sum(r.bytes for name, r in self._reading.items() if name != request.request_id)
        if held and held + size > self._limit:
            return None
        self._counters.add(lookups=1)
        future = self._readers.submit(self._read, request.request_id, list(request.prompt_token_ids),
                                      extras_of(request, self._generation), computed, cap)
        reading = self._reading[request.request_id] = Reading(computed, size, future)
        future.add_done_callback(lambda done: setattr(reading, "bytes", _held(done)))
        return reading

    def _read(self, name: str, tokens: List[int], extras: List[Extra], first: int, cap: int) -> Found:
        """Finds and decodes, in a thread. Whatever fails is a shorter prefix, or none."""
        found, started = Found(first, first), time.perf_counter()
        try:
            hits = [namespace.find(tokens, extras=extras) for namespace in self._namespaces]
            found.stored = min(hit.tokens for hit in hits)
            end = min(found.stored, cap)
            if end - first >= max(self._options.min_tokens, 1):
                self._decode(found, hits, end)
            if found.end > first:
                self._counters.add(hits=1, hit_tokens=found.end - first)
                log.info("kvc: %s: %d of %d tokens are stored (%s), read from %d to %d, %.3f s", name, found.stored, len(tokens),
                         hits[0].tiers, first, found.end, time.perf_counter() - started)
        except Exception as problem:  # also MemoryError and OSError of the memory that is lent
            found = Found(first, first)
            self._counters.trouble("read_failures", f"kvc: {name}: the store was not read: {problem}")
        return found

    def _decode(self, found: Found, hits: Sequence[Any], end: int) -> None:
        """Decodes positions from found.first to end as blocks. What is damaged or gone ends them earlier."""
        pages, first = self._pages, found.first
        found.pages = (end - first) // pages.page
        found.end = end
        for hit in hits:
            lent = Lent((end - first) * pages.geometry.token_bytes)
            found.lent.append(lent)
            there = hit.load(pages.views(lent.map, found.pages), first=first, layout=vllm_pages.AXES,
                             dtype=pages.geometry.dtype)
            found.end = min(found.end, there // pages.page * pages.page)
        if found.end < end:
            found.stored = found.end  # the rest is to be saved again
        if found.end <= first:
            found.end = first
            found.lent.clear()

    # --- promising ---

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        """Notes which blocks get what was promised."""
        name = request.request_id
        self._requests[name] = request
        reading = self._reading.pop(name, None)
        found = reading.future.result() if reading is not None and reading.future.done() else None
        self._stored[name] = 0 if found is None else found.stored
        if not external:
            return
        block = self._pages.page
        first = reading.computed if reading is not None else request.num_computed_tokens
        ids = list(blocks.get_block_ids()[0][first // block:(first + external) // block])
        if found is None or first + external > found.end:
            self._promised.append(Load(name, ids, 0, 0, []))  # the worker reports these blocks
            return
        self._promised.append(Load(name, ids, (first - found.first) // block, found.pages, [lent.name for lent in found.lent]))
        self._lent[name] = (len(found.lent), found)

    def jobs(self, output: Any) -> Tuple[List[Load], List[Save]]:
        """Returns what the workers are to do in this step. It does not raise: what was promised must reach them."""
        loads, self._promised = self._promised, []
        saves: List[Save] = []
        try:
            if self._saves:
                names, self._later = [*self._later, *self._complete(output)], []
                if loads and len(self._namespaces) > 1:  # a rank does not know in this step whether another one could load
                    names, self._later = [], names
                saves = [self._save(name, output) for name in names if name in output.num_scheduled_tokens]
        except Exception as problem:
            self._counters.trouble("save_failures", f"kvc: prompts of this step are not saved: {problem}")
        return loads, saves

    def _complete(self, output: Any) -> Iterable[str]:
        """Yields prompts whose last whole chunk is computed in this step: after a recomputation or a resumption, again."""
        cached = output.scheduled_cached_reqs
        steps = [(r.req_id, r.num_computed_tokens) for r in output.scheduled_new_reqs]
        for name, computed in [*steps, *zip(cached.req_ids, cached.num_computed_tokens)]:
            request = self._requests.get(name)
            if request is None or passed_by(request) or self._stored.get(name, 0) >= self._whole(request):
                continue
            if computed < self._whole(request) <= computed + output.num_scheduled_tokens.get(name, 0):
                yield name

    def _whole(self, request: Any) -> int:
        """Returns the tokens of a prompt's whole chunks."""
        return int(request.num_prompt_tokens // self._chunk * self._chunk)

    def _save(self, name: str, output: Any) -> Save:
        request = self._requests[name]
        n = self._whole(request)
        blocks = output.kv_connector_block_state.get_block_ids(name)[0][:n // self._pages.page]
        return Save(name, list(request.prompt_token_ids[:n]), list(blocks),
                    [extra for extra in extras_of(request, self._generation) if extra[0] < n])

    # --- what the workers say ---

    def taken(self, loaded: Dict[str, int]) -> None:
        """Frees memory that so many ranks have copied."""
        for name, ranks in loaded.items():
            left, found = self._lent.pop(name, (0, None))
            if found is not None and left > ranks:
                self._lent[name] = (left - ranks, found)

    def reset(self) -> None:
        """Begins a generation, as of other weights: what is stored is not found any more. Prompts that are being computed are not saved."""
        self._generation = os.urandom(16)
        for reading in self._reading.values():
            reading.future.cancel()
        self._reading.clear()
        self._later.clear()
        self._stored = {name: request.num_prompt_tokens for name, request in self._requests.items()}  # until it is computed anew

    def stop(self) -> None:
        """Promises and saves nothing any more: memory could not be handed to a worker."""
        if self._loads or self._saves:
            log.warning("kvc: a worker could not load what was promised; the store is not used until the engine starts again")
        self._loads = self._saves = False

    def finished(self, name: str) -> None:
        """Forgets a request, which may be one that was never scheduled. What was lent for it stays until the workers have taken it."""
        reading = self._reading.pop(name, None)
        if reading is not None:
            reading.future.cancel()
        self._requests.pop(name, None)
        self._stored.pop(name, None)

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)


def _held(done: "Future[Found]") -> int:
    """Returns the bytes that a reading holds when it is over."""
    return 0 if done.cancelled() else sum(lent.size for lent in done.result().lent)
