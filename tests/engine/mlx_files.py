#!/usr/bin/env python3
"""mlx_files.py --tools DIR: kvc and the prompt caches of mlx-lm, on a CPU.

Caches of random classes, types and lengths, saved by mlx-lm, come back byte for byte and have the values that were put in; mlx-lm loads
what kvc writes, and goes on from there. K is the position of its token, V minus that.
"""
import argparse
import importlib.util
import pathlib
import random
import subprocess
import sys
import tempfile
import types

import mlx.core as mx
import numpy as np

TRIALS = 40


def load_cache_module():
    """mlx_lm.models.cache alone: the package around it needs transformers."""
    [folder] = importlib.util.find_spec("mlx_lm").submodule_search_locations
    package = types.ModuleType("alone")
    package.__path__ = [f"{folder}/models"]
    base = types.ModuleType("alone.base")
    base.create_causal_mask = None
    sys.modules.update({"alone": package, "alone.base": base})
    spec = importlib.util.spec_from_file_location("alone.cache", f"{folder}/models/cache.py")
    module = sys.modules["alone.cache"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")


def fill(caches, heads, dim, dtype, choose):
    """Puts some tokens into the caches: a prompt, then a few at a time."""
    position = 0
    for n in [choose([1, 3, 7])] + [choose([1, 1, 1, 2, 5]) for _ in range(choose(range(12)))]:
        rows = np.arange(position, position + n, dtype=np.float32).reshape(1, 1, n, 1) + np.zeros((1, heads, n, dim), np.float32)
        for cache in caches:
            cache.update_and_fetch(mx.array(rows).astype(dtype), mx.array(-rows).astype(dtype))
        position += n
    return position


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path, required=True)
    tools, choose, written = options.parse_args().tools, random.Random(1).choice, 0
    mlx = load_cache_module()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        saved, packed, plain, back = (folder / n for n in ("saved.safetensors", "packed.kvc", "plain.safetensors", "back"))
        for trial in range(TRIALS):
            heads, dim, dtype = choose([1, 2, 3]), choose([4, 8]), choose([mx.bfloat16, mx.float16, mx.float32])
            keep, most = choose([0, 1, 4]), choose([5, 8, 16, 300])
            make = choose([mlx.KVCache, mlx.ConcatenateKVCache, lambda: mlx.RotatingKVCache(most, keep=keep)])
            caches = [make() for _ in range(choose([1, 2, 11]))]
            end = fill(caches, heads, dim, dtype, choose)
            mlx.save_prompt_cache(str(saved), caches, {"model": "m"} if trial % 2 else {})
            run(tools / "kvc-pack", "-q", "-f", "-o", packed, saved)
            run(tools / "kvc-unpack", "-q", "-f", "-o", back, packed)
            assert saved.read_bytes() == back.read_bytes(), "bytes differ"
            run(tools / "kvc-unpack", "-q", "-f", "--lossy-metadata", "--to=safetensors", "-o", plain, packed)
            arrays = mx.load(str(plain))
            at = np.array(arrays["positions"]) if "positions" in arrays else np.arange(arrays["layers.0.keys"].shape[2])
            assert at[-1] == end - 1
            for i in range(len(caches)):
                for kind, sign in ("keys", 1), ("values", -1):
                    rows = np.array(arrays[f"layers.{i}.{kind}"].astype(mx.float32))
                    assert (rows == sign * at.reshape(1, 1, -1, 1)).all(), (trial, i, kind)
            if "positions" in arrays:
                continue
            run(tools / "kvc-unpack", "-q", "-f", "--lossy-metadata", "--to=mlx:model=a/path", "-o", back, packed)
            back.rename(folder / "new.safetensors")
            loaded, metadata = mlx.load_prompt_cache(str(folder / "new.safetensors"), return_metadata=True)
            assert len(loaded) == len(caches) and metadata["model"] == "a/path", metadata
            for cache in loaded:
                assert cache.offset == end and (np.array(cache.keys.astype(mx.float32))[0, 0, :end, 0] == at).all()
                row = mx.zeros((1, heads, 1, dim), dtype)
                assert cache.update_and_fetch(row, row)[0].shape[2] == end + 1
            written += 1
    print(f"mlx-lm: {TRIALS} caches read, {written} written and continued: ok")


main()
