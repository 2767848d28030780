#!/usr/bin/env python3
"""reload.py: what a reload saves: time to the first token from a .kvc against computing the prefix anew, on a real device.

    reload.py [--tokens=8192] [--tools=DIR] [--device=cuda:0] [--quick]

A Llama of about 1 billion random but fixed weights, bf16, reads random tokens; its cache is saved as safetensors, packed with
several recipes, and loaded by samples/python/load_gpu.py, which goes on greedily with and without the file. Prints JSON; exit
status 1 when a lossless file gives other tokens. Random weights say nothing about quality: how many tokens of lossy files
agree is no measure of them. --quick, with --device=cpu and the library of tests/cuda/fake.c as $KVC_CUDA_LIBRARY: a small
model, to test this program. Needs torch, transformers and safetensors."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import save_file

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "samples", "python"))
import load_gpu  # noqa: E402

RECIPES = {"split": True, "fast": True, "small": False}  # lossless?
ASK, ANSWER, RUNS = 16, 32, 5


def make_model(device, quick, tokens):
    size = dict(hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=16, num_key_value_heads=8)
    small = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
    config = transformers.LlamaConfig(vocab_size=32000, head_dim=64 if quick else 128, max_position_embeddings=2 * tokens,
                                      **(small if quick else size))
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    return model.to(device)


def save_cache(model, ids, path):
    cache = load_gpu.prefill(model, ids)
    tensors = {"tokens": torch.tensor(ids, dtype=torch.int32)}
    for i, layer in enumerate(cache.layers):
        tensors[f"layers.{i}.keys"] = layer.keys.contiguous().cpu()
        tensors[f"layers.{i}.values"] = layer.values.contiguous().cpu()
    save_file(tensors, path)


def measure(model, library, path, ids, ask):
    """Medians of several runs after a first one, of which only the tokens count."""
    runs = [load_gpu.compare(model, library, path, ask, ANSWER, ids=ids) for _ in range(RUNS + 1)]
    seconds = {name: statistics.median(x[name] for x in runs[1:]) for name in runs[0] if isinstance(runs[0][name], float)}
    equal = min(x["tokens equal"] for x in runs)
    spread = {name: [min(x[name] for x in runs[1:]), max(x[name] for x in runs[1:])] for name in seconds}
    return {"bytes": os.path.getsize(path), "seconds": seconds, "spread": spread, "tokens equal": equal, "of": ANSWER,
            "times as fast": seconds["recompute, first token"] / seconds["reload, first token"]}


def main():
    parser = argparse.ArgumentParser(description="Time to first token: reload against recompute.")
    parser.add_argument("--tokens", type=int, default=8192, help="of the prefix (%(default)s)")
    parser.add_argument("--tools", default=ROOT, metavar="DIR", help="where kvc-pack and the libraries are (the checkout)")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--quick", action="store_true", help="a small model and 512 tokens")
    a = parser.parse_args()
    for variable, name in (("KVC_LIBRARY", "libkvc.so."), ("KVC_CUDA_LIBRARY", "libkvc_cuda.so.")):
        found = [x for x in os.listdir(a.tools) if x.startswith(name)]
        if variable not in os.environ and found:
            os.environ[variable] = os.path.join(a.tools, found[0])
    tokens, device, wrong = 512 if a.quick else a.tokens, torch.device(a.device), []
    library = load_gpu.Library(device.index or 0)
    model = make_model(device, a.quick, tokens)
    drawn = torch.randint(32000, (tokens + ASK,), generator=torch.Generator().manual_seed(2)).tolist()
    ids, ask = drawn[:tokens], drawn[tokens:]
    report = {"device": torch.cuda.get_device_name(device) if device.type == "cuda" else a.device, "tokens": tokens,
              "parameters": sum(x.numel() for x in model.parameters()), "torch": torch.__version__, "runs": RUNS, "files": {}}
    with tempfile.TemporaryDirectory(prefix="kvc-reload.") as folder:
        def path(name):
            return os.path.join(folder, name)

        def pack(*arguments):
            # model.safetensors beside its config.json: kvc-pack learns from it how K is rotated
            subprocess.run([os.path.join(a.tools, "kvc-pack"), "-q", "-f", "--model", path("model.safetensors"), *arguments,
                            path("cache.safetensors")], check=True)

        model.save_pretrained(folder, max_shard_size="1000GB")
        save_cache(model, ids, path("cache.safetensors"))
        report["bytes"] = os.path.getsize(path("cache.safetensors"))
        subprocess.run([os.path.join(a.tools, "kvc-profile"), "learn", "-q", "-f", "--model", path("model.safetensors"),
                        "-o", path("learned.kvcp"), path("cache.safetensors")], check=True)
        for recipe, lossless in RECIPES.items():
            file = path(recipe + ".kvc")
            pack("-r", recipe, *(() if lossless else ("--profile", path("learned.kvcp"), "--embed-profile")), "-o", file)
            report["files"][recipe] = result = measure(model, library, file, ids, ask)
            if lossless and result["tokens equal"] < ANSWER:
                wrong.append(recipe)
    report["wrong"] = wrong
    print(json.dumps(report, indent=2))
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (load_gpu.Failure, OSError, subprocess.CalledProcessError) as e:
        print(f"reload.py: {e}", file=sys.stderr)
        sys.exit(2)
