#!/usr/bin/env python3
"""lossless.py: ratios of a model's caches by lossless stages, with the profile for those that predict: N tokens of each text of
judged_texts.py, from which the profile was not made, in bf16 and in f16. The ratio is that of all rows to the container, headers counted,
the profile not.

    lossless.py [--model=smollm2|gemma|qwen] [-n N] [--texts=NAME,...] [--stages=STAGE,...] --profile=FILE [--tools=DIR] [--work=DIR]

Exit status: 0 ok, 2 trouble. Not for stages that lose (table.py).
"""

import argparse
import json
import os
import sys
import tempfile

import lm  # before what else loads transformers

import torch

from caches import Tools
from judged_texts import TEXTS, profile_texts
from table import cache_arrays, save

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
HERE = os.path.dirname(os.path.abspath(__file__))


def ratio(tools, stage, profile, cache, packed):
    report = tools.run("kvc-pack", "-q", "-f", "--json", "-r", stage, f"--profile={profile}", "-o", packed, cache)
    tools.run("kvc-unpack", "-q", "-t", f"--profile={profile}", packed)
    return json.loads(report)["files"][0]["ratio"]


def parse():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--model", choices=lm.MODELS, default="smollm2")
    parser.add_argument("-n", type=int, default=2048)
    parser.add_argument("--texts", default=",".join(TEXTS))
    parser.add_argument("--stages", default="split,cross,cross:every=8")
    parser.add_argument("--profile", required=True)
    parser.add_argument("--tools", default=os.path.join(HERE, "../.."))
    parser.add_argument("--work", default=os.path.join(HERE, "../../build/quality"))
    return parser.parse_args()


def main():
    options = parse()
    stages, tools = options.stages.split(","), Tools(options.tools)
    learnt = profile_texts(options.profile)
    os.makedirs(options.work, exist_ok=True)
    model = lm.LanguageModel(options.model, options.work)
    print(f"{'text':8} {'dtype':5}" + "".join(f" {stage:>14}" for stage in stages), flush=True)
    for name in options.texts.replace(",", " ").split():
        path = TEXTS[name][0]
        if os.path.basename(path) in learnt:
            raise ValueError(f"the profile was made of {path}")
        with open(path, encoding="utf-8", errors="replace") as f:
            tokens = model.encode(f.read())[:options.n]
        if len(tokens) < options.n:
            print(f"{name:8} left out: {len(tokens)} tokens, {options.n} are needed")
            continue
        keys, values, _ = model.prefill(tokens)
        with tempfile.TemporaryDirectory() as scratch:
            cache, packed = (os.path.join(scratch, end) for end in ("cache.safetensors", "packed.kvc"))
            for dtype, kind in DTYPES.items():
                save(cache_arrays(model, keys, values, tokens, kind), cache, model.facts() | {"dtype": str(kind)[6:]})
                ratios = [ratio(tools, stage, options.profile, cache, packed) for stage in stages]
                print(f"{name:8} {dtype:5}" + "".join(f" {r:14.3f}" for r in ratios), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        print(f"lossless.py: {error}", file=sys.stderr)
        sys.exit(2)
