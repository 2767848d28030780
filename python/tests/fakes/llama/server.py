"""A stand-in for llama-server: its HTTP API, with slots whose K and V follow from the tokens and are saved as real slot files.

Generated text depends on all tokens of the prompt, and is "WRONG" if a slot holds other rows than these tokens have.
"""

from __future__ import annotations

import json
import os
import secrets
import struct
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

import kvc

LAYERS, HEADS, DIM, WINDOW = 2, 1, 8, 8


def rows(tokens):
    """Returns K and V of each layer, in which every token depends on all before it."""
    sums = np.cumsum(np.asarray(tokens, np.int64)) % 2000
    return {(layer, role): np.repeat((sums + layer + 9 * (role == "V")).astype(np.float16), DIM).reshape(-1, HEADS, DIM)
            for layer in range(LAYERS) for role in "KV"}


def write_model(path, name="fake", tensors=("blk.0.attn_k.weight",)):
    """Writes a GGUF without weights that are of use, for the facts and the fingerprint of a model."""
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    numbers = {"block_count": LAYERS, "attention.head_count": HEADS, "attention.head_count_kv": HEADS, "embedding_length": DIM * HEADS,
               "context_length": 4096}
    keys = [text("general.architecture") + struct.pack("<I", 8) + text("llama"), text("general.name") + struct.pack("<I", 8) + text(name)]
    keys += [text(f"llama.{key}") + struct.pack("<II", 4, value) for key, value in numbers.items()]
    weights = (name.encode() * 64)[:64]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys)
    for tensor in tensors:
        head += text(tensor) + struct.pack("<IQQIQ", 2, 4, 4, 0, 0)
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + weights)


class FakeServer(ThreadingHTTPServer):
    """`answers` has (status, body) for paths that fail, `calls` counts requests by path, `gate` holds back tokens of streams."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, folder, model, slots=2, context=4096, window=False, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.folder, self.model, self.context, self.window = str(folder), str(model), context, window
        self.slots = [{"tokens": [], "rows": None, "task": None, "lock": threading.Lock()} for _ in range(slots)]
        self.boot = secrets.token_hex(8)
        self.answers, self.calls, self.bodies = {}, Counter(), []
        self.adapters, self.tasks, self.cut = [], 0, threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request, client_address):
        pass

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def stop(self):
        self.shutdown()
        self.server_close()

    # --- the model ---

    def compute(self, number, tokens, reuse):
        """Fills a slot with the prompt. Returns how many of its tokens were there."""
        slot = self.slots[number]
        n = 0
        while reuse and n < min(len(tokens) - 1, len(slot["tokens"])) and tokens[n] == slot["tokens"][n]:
            n += 1
        new = rows(tokens)
        if n:
            for key, old in slot["rows"].items():
                new[key][:n] = old[:n]
        slot.update(tokens=list(tokens), rows=new)
        return n

    def generate(self, number, n):
        """Returns n tokens after those of a slot, which then holds all but the last."""
        slot = self.slots[number]
        right = all(np.array_equal(slot["rows"][key], a) for key, a in rows(slot["tokens"]).items())
        made = []
        for _ in range(n):
            made.append((sum(slot["tokens"]) * 31 + len(slot["tokens"])) % 26 + ord("a"))
            slot["tokens"] = slot["tokens"] + made[-1:]
        slot["tokens"] = slot["tokens"][:-1] if n else slot["tokens"]
        slot["rows"] = rows(slot["tokens"]) if right else {key: np.resize(a, (len(slot["tokens"]), HEADS, DIM))
                                                           for key, a in slot["rows"].items()}
        return made if right else [ord(c) for c in "WRONG"]

    def save(self, number, path):
        slot = self.slots[number]
        cache = {key: a[-WINDOW:] if self.window and key[0] else a for key, a in slot["rows"].items()}
        facts = {"model.architecture": "llama", "rope.pairing": "interleaved", "sliding.window": WINDOW}
        with kvc.open_arrays(cache, tokens=slot["tokens"], facts=facts) as f:
            f.unpack(path, "llama", lossy_metadata=True)

    def restore(self, number, path):
        with kvc.open(path, model=self.model) as f:
            tokens, held = f.tokens.tolist(), f.arrays()
        full = rows(tokens)
        for key, a in held.items():
            full[key][len(tokens) - a.shape[0]:] = a
        self.slots[number].update(tokens=tokens, rows=full)
        return len(tokens)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def send(self, status, value, **headers):
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def answer(self):
        s, path = self.server, self.path.partition("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        s.calls[self.path] += 1
        if self.path in s.answers:
            return self.send(*s.answers[self.path])
        if path.startswith("/slots/"):
            return self.slot(int(path.split("/")[2]), json.loads(data or b"{}"))
        if path == "/props":
            return self.send(200, {"model_path": s.model, "total_slots": len(s.slots), "media_marker": s.boot})
        if path == "/slots":
            return self.send(200, [{"id": i, "n_ctx": s.context, "id_task": slot["task"], "n_prompt_tokens": len(slot["tokens"]),
                                    "is_processing": slot["lock"].locked()} for i, slot in enumerate(s.slots)])
        if path == "/lora-adapters":
            return self.send(200, s.adapters)
        if path == "/tokenize":
            return self.send(200, {"tokens": [ord(c) for c in json.loads(data)["content"]]})
        if path == "/apply-template":
            return self.send(200, {"prompt": "".join(m["content"] for m in json.loads(data)["messages"]) + "#"})
        if path in ("/completion", "/v1/completions", "/v1/chat/completions"):
            return self.complete(path, json.loads(data))
        self.send(200, data, **{"X-Echo": f"{self.command} {self.path} {self.headers.get('X-Mine', '')}"})

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = answer

    def slot(self, number, body):
        s, action = self.server, self.path.partition("action=")[2]
        path = os.path.join(s.folder, body.get("filename", ""))
        with s.slots[number]["lock"]:
            if action == "erase":
                s.slots[number].update(tokens=[], rows=None)
                return self.send(200, {"n_erased": 1})
            if action == "save":
                if s.slots[number]["tokens"]:
                    s.save(number, path)
                return self.send(200, {"n_saved": len(s.slots[number]["tokens"])})
            try:
                return self.send(200, {"n_restored": s.restore(number, path)})
            except Exception as problem:
                s.slots[number].update(tokens=[], rows=None)
                self.send(400, {"error": {"code": 400, "message": f"Unable to restore slot: {problem}"}})

    def complete(self, path, body):
        s = self.server
        s.bodies.append(body)
        prompt = body.get("prompt")
        if path.endswith("chat/completions"):
            prompt = "".join(m["content"] if isinstance(m["content"], str) else "?" for m in body["messages"]) + "#"
        tokens = [ord(c) for c in prompt] if isinstance(prompt, str) else [t if type(t) is int else 0 for t in prompt]
        number = max(0, body.get("id_slot", 0))
        with s.slots[number]["lock"]:
            s.tasks += 1
            s.slots[number]["task"] = s.tasks
            cached = s.compute(number, tokens, body.get("cache_prompt", True))
            made = s.generate(number, body.get("n_predict", 4))
            timings = {"cache_n": cached, "prompt_n": len(tokens) - cached, "predicted_n": len(made)}
            whole = self.stream(made) if body.get("stream") else time.sleep(body.get("seconds", 0))
        if body.get("stream"):  # a server lets a slot go before its last words are read
            return whole and self.end(timings)
        self.send(200, {"content": "".join(map(chr, made)), "id_slot": number, "timings": timings})

    def stream(self, made):
        """Sends tokens. Returns whether the client took them."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for token in made:
                while not self.server.gate.wait(0.02):
                    self.connection.setblocking(False)
                    try:
                        if not self.connection.recv(1):
                            raise BrokenPipeError
                    except BlockingIOError:
                        pass
                    finally:
                        self.connection.setblocking(True)
                self.event({"content": chr(token)})
            return True
        except OSError:
            self.server.cut.set()
            return False

    def end(self, timings):
        try:
            self.event({"content": "", "stop": True, "timings": timings})
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.cut.set()

    def event(self, value):
        data = f"data: {json.dumps(value)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
