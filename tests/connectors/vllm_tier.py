"""The secondary tier with the real vLLM on a CPU: SmolLM2 continues a prompt in new processes, from what the tier kept.

Prints `ok:` for each check and `figure:` for what was measured, in one run: times of the first token without a cache, with the tier, and with
vLLM's own `fs` tier. What is damaged, gone or foreign, and a store that takes nothing, must give the same tokens.
"""

import argparse
import ast
import collections
import glob
import os
import pathlib
import re
import tempfile

from vllm_engine import Prompt, make_model, run, text_tokens, unsupported

TOKENS, NEW, CHUNK = 2000, 16, 256


def connector(*tiers, chunk=CHUNK):
    extra = {"spec_name": "CpuSpec", "spec_module_path": "kvc.connectors.vllm_cpu", "cpu_bytes_to_use": 300_000_000, "block_size": chunk,
             "secondary_tiers": list(tiers)}
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra}


def tier(levels, chunk=CHUNK, **options):
    return connector({"type": "KvcTier", "module_path": "kvc.connectors.vllm_tier", "store": levels, **options}, chunk=chunk)


def counters(result):
    """Returns what Connection.close() logs when the tier ends: its counters above 0, then those of its store."""
    [line] = result.lines("kvc: ", "; store: {")
    own, store = re.search(r"kvc: (.*); store: (\{.*\})", line).groups()
    return collections.Counter({name: int(n) for name, n in re.findall(r"(\w+) (\d+)", own)}), ast.literal_eval(store)


def stored_bytes(folder):
    return sum(os.path.getsize(path) for path in glob.glob(f"{folder}/obj/*/*/*"))


def flip(path):
    os.chmod(path, 0o600)
    with open(path, "r+b") as f:
        f.seek(os.path.getsize(path) // 2)
        byte = f.read(1)
        f.seek(-1, 1)
        f.write(bytes([byte[0] ^ 1]))


class Test:
    def __init__(self, folder, quick):
        self.folder, self.model = folder, make_model(folder, random=quick)
        self.prompt = [7 * i * i % 997 + 2 for i in range(TOKENS)] if quick else text_tokens(self.model, TOKENS)
        self.whole = (TOKENS - 1) // CHUNK * CHUNK
        # unless it is told, vLLM takes a model in float32 as bfloat16, which CPUs with AMX lay out in a way of their own
        self.how = {"dtype": "float32" if quick else "bfloat16"}
        plain = run(self.model, [Prompt(self.prompt, NEW)], **self.how).outputs[0]
        self.tokens, self.cold = plain.tokens, plain.ttft

    def levels(self, name):
        return f"dir:{self.folder / name}?min-free=0"

    def run(self, kv, what, cached=None):
        result = run(self.model, [Prompt(self.prompt, NEW)], kv, **self.how)
        out = result.outputs[0]
        assert out.tokens == self.tokens, (what, out.tokens, self.tokens)
        assert cached is None or out.cached == cached, (what, out.cached, cached)
        print(f"ok: {what}: {out.cached} of {TOKENS} tokens from the tier, the same {NEW} tokens", flush=True)
        return result

    def again(self):
        """Stores with `split` and loads in a new process."""
        kv = tier(self.levels("split"), recipe="split")
        self.run(kv, "first run", 0)
        self.run(kv, "new process", self.whole)

    def recipes(self):
        """Stores and loads with lossless recipes, and with vLLM's own tier for comparison."""
        raw = {}
        for recipe, chunk in (("split", CHUNK), ("fast", CHUNK), ("fast", CHUNK // 2)):
            folder, whole = f"{recipe}-{chunk}" if chunk != CHUNK else recipe, (TOKENS - 1) // chunk * chunk
            if chunk not in raw:
                fs = connector({"type": "fs", "root_dir": str(self.folder / f"fs-{chunk}")}, chunk=chunk)
                self.run(fs, f"vLLM's own tier, chunks of {chunk}, first run")
                raw[chunk] = self.run(fs, f"vLLM's own tier, chunks of {chunk}, new process", whole).outputs[0].ttft
            kv = tier(self.levels(folder), chunk, recipe=recipe)
            first = self.run(kv, f"{recipe}, chunks of {chunk}, first run", 0)
            ttft = self.run(kv, f"{recipe}, chunks of {chunk}, new process", whole).outputs[0].ttft
            print(f"figure: {recipe}, chunks of {chunk}: first token after {ttft:.2f} s, {ttft / self.cold:.3f} of {self.cold:.2f} s without a "
                  f"cache, {ttft / raw[chunk]:.2f} of vLLM's own tier; {stored_bytes(self.folder / folder)} bytes; the first run "
                  f"{first.outputs[0].ttft / self.cold:.3f}", flush=True)

    def trouble(self):
        """Damages, removes and hides what `split` stored."""
        kv, paths = tier(self.levels("split"), recipe="split"), sorted(glob.glob(f"{self.folder}/split/obj/*/*/*.named"))
        flip(paths[len(paths) // 2])
        own, store = counters(self.run(kv, "a damaged chunk"))
        assert store["bad_objects"] == 1 and own["not_loaded"] == 1 and own["stored"] >= 1, (own, store)
        own, store = counters(self.run(kv, "the chunk is mended", self.whole))
        assert store["bad_objects"] == 0 and own["loaded"] == len(paths), (own, store)
        os.unlink(paths[0])
        own, store = counters(self.run(kv, "a chunk that the index knows is gone"))
        assert own["not_loaded"] == 1, own
        own, _ = counters(self.run(tier(self.levels("split"), recipe="kivi4"), "lossless chunks are not those of a lossy recipe", 0))
        assert own["hits"] == 0, own
        own, _ = counters(self.run(tier(f"dir:{self.folder / 'small'}?max-size=100K&min-free=0"), "a store that is too small"))
        assert own["not_stored"] > 0, own
        own, _ = counters(self.run(tier("redis://127.0.0.1:1"), "a store that is down", 0))
        assert own["stored"] == own["hits"] == 0 < own["not_stored"], own

    def lossy(self):
        kv = tier(self.levels("lossy"), recipe="kivi4")
        run(self.model, [Prompt(self.prompt, NEW)], kv, **self.how)
        out = run(self.model, [Prompt(self.prompt, NEW)], kv, **self.how).outputs[0]
        same = sum(a == b for a, b in zip(out.tokens, self.tokens))
        assert out.cached == self.whole and same >= NEW // 2, (out, self.tokens)
        print(f"ok: kivi4: {out.cached} tokens from {stored_bytes(self.folder / 'lossy')} bytes, {same} of {NEW} tokens the same", flush=True)


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path)
    options.add_argument("--quick", action="store_true", help="a small model with random weights, no measurements")
    quick = options.parse_args().quick
    reason = unsupported("float32" if quick else "bfloat16")
    if reason:
        return print(f"SKIPPED: {reason}")
    with tempfile.TemporaryDirectory() as name:
        test = Test(pathlib.Path(name), quick)
        if quick:
            test.again()
        else:
            test.recipes()
            test.lossy()
        test.trouble()


main()
