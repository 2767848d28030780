#!/usr/bin/env python3
"""vllm.py --tools BUILD_DIR [--quick] [CHECK...]: the connector of kvc in a real vLLM on a CPU (AVX2 or AVX-512), end to end.

Each check compares greedy continuations with that of an engine without a store. A small Llama with random weights in float32 shows
that the right tokens come, SmolLM2 what it saves. Each run of an engine is a new process.
"""

import argparse
import pathlib
import shutil
import statistics
import sys
import tempfile

import vllm_engine
from vllm_engine import Prompt

TOKENS, CHUNK, BLOCK = 700, 256, 128
PROMPT = [7 * i * i % 997 + 2 for i in range(TOKENS)]
FLOAT = {"dtype": "float32"}
QUICK = ["reload", "damage", "transformers"]
REST = ["processes", "ranks", "chunked", "trouble", "lossy", "gain", "misses"]


def connector(store, role="kv_both", policy="fail", **extra):
    """Returns kv_transfer_config. The policy is vLLM's default, under which a broken promise ends a request: none may be broken."""
    return {"kv_connector": "KvcConnector", "kv_connector_module_path": "kvc.connectors.vllm_connector", "kv_role": role,
            "kv_load_failure_policy": policy, "kv_connector_extra_config": {"store": store, "chunk": CHUNK, **extra}}


def ok(what):
    print(f"ok: {what}", flush=True)


def figure(what):
    print(f"figure: {what}", flush=True)


class Checks:
    def __init__(self, folder):
        self.folder = folder
        self.model = vllm_engine.make_model(folder, random=True)
        self.cold = self.run(None).outputs[0].tokens
        self.number = 0
        self.kept = None  # a store with the chunks of the prompt

    def store(self):
        self.number += 1
        return f"dir:{self.folder}/store{self.number}"

    def objects(self, store):
        return sorted(pathlib.Path(store.partition(":")[2].partition("?")[0]).rglob("obj/**/*.kv"))

    def run(self, config, prompts=None, model=None, **options):
        return vllm_engine.run(model or self.model, prompts or [Prompt(PROMPT)], config, **{**FLOAT, **options})

    def expect(self, result, cached, what, tokens=None, number=0):
        out = result.outputs[number]
        assert out.cached == cached, (what, out.cached, cached, result.lines("kvc:"))
        assert out.tokens == (tokens or self.cold), (what, out.tokens, tokens or self.cold)
        ok(what)

    def new_saved(self, **options):
        """Computes and saves the prompt. Returns the store."""
        store = self.store()
        self.run(connector(store), **options)
        assert len(self.objects(store)) == TOKENS // CHUNK, self.objects(store)
        return store

    def saved(self):
        """Returns a store of its own with the chunks of the prompt."""
        self.kept = self.kept or self.new_saved()
        store = self.store()
        shutil.copytree(self.kept[4:], store[4:])
        return store

    # --- checks ---

    def check_reload(self):
        store, other = self.saved(), PROMPT[:600] + [5] * 50
        self.expect(self.run(connector(store)), 512, "a new process loads 512 of 700 tokens, and continues alike")
        prompts = [Prompt(other), Prompt(PROMPT[:512]), Prompt(PROMPT[:300])]
        cold = self.run(None, prompts)
        warm = self.run(connector(store), [*prompts, Prompt(PROMPT, salt="a"), Prompt(PROMPT[:650], salt="b")])
        self.expect(warm, 512, "a prompt that goes on otherwise loads what it shares", cold.outputs[0].tokens, 0)
        self.expect(warm, 384, "of a prompt that is stored as a whole all blocks but the last are loaded", cold.outputs[1].tokens, 1)
        self.expect(warm, 256, "a shorter prompt loads its part", cold.outputs[2].tokens, 2)
        self.expect(warm, 0, "prompts with a cache_salt share nothing with others", number=3)
        assert warm.outputs[4].cached == 0, warm.outputs
        self.expect(self.run(connector(store), [Prompt(PROMPT, salt="a")]), 512, "a prompt with the same cache_salt loads its own")

    def check_processes(self):
        store = self.new_saved(variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, distributed_executor_backend="mp")
        warm = self.run(connector(store), variables={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, distributed_executor_backend="mp")
        self.expect(warm, 512, "scheduler and worker in processes of their own save and load")

    def check_ranks(self):
        """Two ranks of tensor parallelism, each with one of the two KV heads."""
        ranks = {"variables": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}, "distributed_executor_backend": "mp", "tensor_parallel_size": 2}
        store = self.store()
        cold = self.run(connector(store), **ranks)
        assert len(self.objects(store)) == 2 * (TOKENS // CHUNK), self.objects(store)
        self.expect(self.run(connector(store), **ranks), 512, "two ranks save and load their own heads", cold.outputs[0].tokens)
        for path in self.objects(store)[:1]:
            path.unlink()
        again = self.run(connector(store), **ranks).outputs[0]
        assert again.cached < 512 and again.tokens == cold.outputs[0].tokens, again
        ok("what one of two ranks lacks is computed by both")

    def check_chunked(self):
        small = {"max_num_batched_tokens": 192, "max_num_seqs": 2}
        store = self.new_saved(**small)
        self.expect(self.run(connector(store)), 512, "a prompt that was computed in pieces is saved once it is complete")
        self.expect(self.run(connector(store), **small), 512, "a prompt is loaded, and the rest computed in pieces")

    def check_damage(self):
        store = self.saved()
        self.flip(store, 1)
        self.expect(self.run(connector(store)), 256, "a damaged chunk ends the prefix before it, and no request fails")
        self.expect(self.run(connector(store)), 512, "a chunk that was damaged is saved again")
        self.flip(store, 0, 1)
        self.expect(self.run(connector(store)), 0, "without an undamaged chunk all is computed")
        for path in self.objects(store):
            path.unlink()
        self.expect(self.run(connector(store)), 0, "chunks that are gone when they are read are computed")

    def flip(self, store, *which):
        """Damages the chunks at these places of the prompt: they were written in this order."""
        paths = sorted(self.objects(store), key=lambda path: path.stat().st_mtime_ns)
        for i in which:
            data = bytearray(paths[i].read_bytes())
            data[len(data) // 2] ^= 1
            paths[i].write_bytes(data)

    def check_trouble(self):
        self.expect(self.run(connector("redis://127.0.0.1:1")), 0, "a store that is down: the same tokens")
        store = f"{self.store()}?max-size=64K"
        self.expect(self.run(connector(store)), 0, "a store that is full: the same tokens")
        assert not self.objects(store)
        failed = self.fails(connector("dir:/proc/nowhere"))
        assert "cannot be made" in failed, failed[-2000:]
        failed = self.fails(connector(self.store(), colour="red"))
        assert "unknown options: colour" in failed, failed[-2000:]
        ok("a store that cannot be made and unknown options are refused when the engine starts")

    def fails(self, config):
        try:
            self.run(config)
        except SystemExit as problem:
            return str(problem)
        raise AssertionError(f"{config} was accepted")

    def check_lossy(self):
        store = self.saved()
        lossy = connector(store, recipe="kivi4")
        self.expect(self.run(lossy), 0, "a lossy recipe is a namespace of its own")
        warm = self.run(lossy)
        assert warm.outputs[0].cached == 512 and len(warm.outputs[0].tokens) == 8, warm.outputs
        ok("what is stored with a lossy recipe is loaded")

    def check_transformers(self):
        store = self.saved()
        found, _ = vllm_engine.child("prefix", [str(self.model), store, PROMPT, len(self.cold), CHUNK])
        assert found == [512, self.cold], (found, self.cold)
        ok("transformers loads 512 tokens that vLLM saved, and continues alike")
        store = self.store()
        found, _ = vllm_engine.child("prefix", [str(self.model), store, PROMPT, len(self.cold), CHUNK])
        assert found == [0, self.cold], (found, self.cold)
        self.expect(self.run(connector(store)), 512, "vLLM loads 512 tokens that transformers saved, and continues alike")

    def check_gain(self):
        """SmolLM2 and a text, in float32 and in the bfloat16 that it is meant for.

        vLLM's kernels for bfloat16 do not give the same bits for a prompt at once and for its parts: the first token after a hit in vLLM's
        own prefix cache may be another. So the measure for bfloat16 is that cache with as many tokens, and in float32 the whole
        computation.
        """
        model = vllm_engine.make_model(self.folder)
        text, cached = vllm_engine.text_tokens(model, 2100), 2048
        for dtype in ("float32", "bfloat16"):
            if vllm_engine.unsupported(dtype):
                print(f"SKIPPED: SmolLM2: {vllm_engine.unsupported(dtype)}")
                continue
            store = self.store()
            cold, own = self.run(None, [Prompt(text, 24), Prompt(text, 24, keep=True)], model, dtype=dtype).outputs
            saved = self.run(connector(store), [Prompt(text, 24)], model, dtype=dtype)
            warm = self.run(connector(store), [Prompt(text, 24)], model, dtype=dtype)
            assert own.cached == cached and (dtype == "bfloat16" or own.tokens == cold.tokens), (own, cold)
            self.expect(warm, cached, f"SmolLM2 in {dtype}, {len(text)} tokens of text: the same 24 tokens", own.tokens)
            ttft, out = warm.outputs[0].ttft, saved.outputs[0]
            figure(f"{dtype}: TTFT {cold.ttft:.2f} s without the store, {out.ttft:.2f} s saving, {ttft:.2f} s loading {cached} of "
                   f"{len(text)} tokens: ratio {ttft / cold.ttft:.3f}; {own.ttft:.2f} s with vLLM's own prefix cache")
            for line in saved.lines("kvc: saved") + warm.lines("kvc:", "are stored") + warm.lines("kvc: loaded"):
                figure(f"{dtype}: " + line.partition("] ")[2])
            figure(f"{dtype}: {sum(path.stat().st_size for path in self.objects(store)) / 1e6:.1f} MB stored")

    def check_misses(self):
        """Requests that are looked up and miss, between requests that are not looked up, in one engine."""
        model, pairs, n = vllm_engine.make_model(self.folder), 12, 512
        prompts = [Prompt([(11 * i * i + 13 * k) % 4000 + 20 for i in range(n)], 1, skip=k % 2 == 1) for k in range(2 * pairs)]
        out = self.run(connector(self.store(), role="kv_consumer"), prompts, model, dtype="bfloat16").outputs
        assert all(o.cached == 0 for o in out), out
        ratios = [out[k].ttft / out[k + 1].ttft for k in range(0, 2 * pairs, 2)]
        figure(f"TTFT of a miss relative to a request that is not looked up, {n} tokens: median {statistics.median(ratios):.4f} of {pairs} "
               "pairs")
        both = self.run(connector(self.store()), prompts[:2], model, dtype="bfloat16")
        figure("saving a miss: " + both.lines("kvc: saved")[0].partition("] ")[2] + f"; TTFT {both.outputs[0].ttft:.2f} s")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path, help="folder of kvc-pack and the other tools; not used")
    options.add_argument("--quick", action="store_true", help="reload, damage and transformers only")
    options.add_argument("checks", nargs="*", help="some of: " + ", ".join(n[6:] for n in dir(Checks) if n.startswith("check_")))
    o = options.parse_args()
    if vllm_engine.unsupported("float32"):
        return print(f"SKIPPED: {vllm_engine.unsupported('float32')}")
    with tempfile.TemporaryDirectory(prefix="kvc-vllm-") as name:
        checks = Checks(pathlib.Path(name))
        for check in o.checks or (QUICK if o.quick else [*QUICK, *REST]):
            if check == "misses" and vllm_engine.unsupported("bfloat16"):
                print(f"SKIPPED: {check}: {vllm_engine.unsupported('bfloat16')}")
                continue
            getattr(checks, f"check_{check}")()


if __name__ == "__main__":
    sys.exit(main())
