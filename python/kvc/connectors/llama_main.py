"""The command line of kvc-llama-proxy."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from typing import List, Optional

from ..errors import Error
from ..store import Store
from ..version import VERSION
from .llama_http import Server
from .llama_model import Off, Prefixes
from .llama_proxy import Proxy
from .llama_slots import SlotFolder, Slots

_LOOK = 0.5  # seconds between looks for a signal
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def size(text: str) -> int:
    """Returns the bytes of a size as "64M"."""
    digits = text.rstrip("KMGT")
    if not digits.isdecimal() or text[len(digits):] not in _UNITS:
        raise argparse.ArgumentTypeError(f"'{text}' is no size: a number and K, M, G or T")
    return int(digits) * _UNITS[text[len(digits):]]


def positive(text: str) -> int:
    """Returns a number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is no number from 1 on")
    return int(text)


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="kvc-llama-proxy", description="Keeps prefixes of the prompts of an unmodified llama-server in a store.")
    add = p.add_argument
    add("-s", "--store", required=True, help="the store: dir:/var/cache/kvc,redis://host; kvc-store(1)")
    add("--slots", required=True, metavar="FOLDER", help="the server's --slot-save-path; on tmpfs it costs no disk writes")
    add("--server", default="http://127.0.0.1:8080", metavar="URL", help="the llama-server (%(default)s)")
    add("--listen", default="127.0.0.1:8081", metavar="HOST:PORT", help="where clients connect (%(default)s)")
    add("--model", metavar="FILE", help="the weights, if the path that the server tells cannot be read here")
    add("-r", "--recipe", default="fast", help="how chunks are coded; kvc-recipes(7) (%(default)s, which is lossless)")
    add("--profile", metavar="FILE", help="a profile that the recipe needs")
    add("--chunk", type=int, default=0, metavar="N", help="tokens of a chunk, a multiple of 256 (by the size of a token)")
    add("--tenant-file", metavar="FILE", help="a secret that keeps caches apart from those of others")
    add("--key-file", metavar="FILE", help="a secret that objects are signed with")
    add("--min-tokens", type=int, default=256, metavar="N", help="restore only if this saves so many tokens (%(default)s)")
    add("--max-tokens", type=int, default=1 << 20, metavar="N", help="save no slots of more tokens (%(default)s)")
    add("--max-body", type=size, default="64M", metavar="SIZE", help="of a request (%(default)s)")
    add("--max-memory", type=size, default="1G", metavar="SIZE",
        help="of all requests in memory (%(default)s)")
    add("--max-connections", type=positive, default=256, metavar="N",
        help="of clients (%(default)s)")
    add("--queue", type=size, default="1G", metavar="SIZE", help="caches that wait to be stored; more are dropped (%(default)s)")
    add("-T", "--threads", type=int, default=2, metavar="N", help="threads that pack and read (%(default)s)")
    add("--wait", type=float, default=60, metavar="S", help="seconds that a request waits for a slot (%(default)s)")
    add("--deadline", type=float, default=0.25, metavar="S", help="seconds for finding a prefix (%(default)s)")
    add("--load-deadline", type=float, default=10, metavar="S", help="seconds for reading it (%(default)s)")
    add("--timeout", type=float, default=3600, metavar="S", help="seconds that the server may take to begin its answer (%(default)s)")
    add("--grace", type=float, default=10, metavar="S", help="seconds to store what waits, after SIGTERM (%(default)s)")
    add("-v", "--verbose", action="store_true", help="a line for each completion")
    add("-V", "--version", action="version", version=f"kvc-llama-proxy {VERSION}")
    return p


def open_proxy(o: argparse.Namespace) -> Proxy:
    """Opens what the options name."""
    store = Store(o.store, threads=o.threads, queue_bytes=o.queue, local_timeout=o.deadline, timeout=o.deadline,
                  load_timeout=o.load_deadline, key_file=o.key_file)
    folder = SlotFolder(o.slots)
    prefixes = Prefixes(store, Slots(), folder, model=o.model, min_tokens=o.min_tokens, wait=o.wait, recipe=o.recipe, profile=o.profile,
                        chunk=o.chunk, tenant_file=o.tenant_file)
    return Proxy(Server(o.server, o.timeout), prefixes, folder, max_body=o.max_body,
                 max_memory=o.max_memory, max_tokens=o.max_tokens, wait=o.wait, verbose=o.verbose)


def look_ahead(proxy: Proxy) -> None:
    """Opens the namespace before the first request. If the server is not there yet, or wants a key, the first request does it."""
    try:
        proxy.prefixes.current(proxy.server.caller({}))
        proxy.say(f"namespace {proxy.prefixes.name[:16]}")
    except Off as reason:
        proxy.say(f"the store is not used: {reason}")
    except Exception as problem:
        proxy.say(f"the server does not answer yet: {problem}")


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs until SIGTERM or SIGINT."""
    o = parser().parse_args(arguments)
    try:
        from .llama_front import Front
    except ImportError as problem:
        if problem.name != "h11":
            raise
        print("kvc-llama-proxy: h11 is not installed: pip install 'kvc[proxy]', "
              "or apt-get install python3-h11", file=sys.stderr)
        return 2
    host, _, port = o.listen.rpartition(":")
    try:
        proxy = open_proxy(o)
        front = Front((host.strip("[]") or "127.0.0.1", int(port)), proxy, o.max_connections)
    except (Error, OSError, ValueError, OverflowError) as problem:
        print(f"kvc-llama-proxy: {problem}", file=sys.stderr)
        return 2
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    threading.Thread(target=front.serve_forever, daemon=True).start()
    proxy.say(f"{o.listen} in front of {o.server}")
    threading.Thread(target=look_ahead, args=(proxy,), daemon=True).start()  # a server that hangs must not keep a signal waiting
    while not ended.wait(_LOOK):  # the system may give a signal to another thread, which does not wake this one
        pass
    front.shutdown()
    front.server_close()
    proxy.finish(o.grace)
    proxy.prefixes.store.close(o.grace)
    return 0
