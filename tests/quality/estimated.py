#!/usr/bin/env python3
"""estimated.py: what the weights are worth where a profile is learnt (formats/model/GRADIENTS.md): profiles that kvc-profile learns from
eight caches of 1 024 tokens with true queries, with the weights, which give gradients and estimated queries, and with neither, by the
largest of three mean KLDs at equal ratios, the 99.9th percentile and the largest KLD of a token beside it.

    estimated.py [--model=smollm2|gemma|qwen|FILE.gguf] [-n N] [--texts=NAME,...] [--ratios=R,...] [--limit=N] [--tools=DIR] [--work=DIR]

Caches of N tokens (2 048) of texts of judged_texts.py are packed, which have no queries. --limit: only so many tokens of each
continuation. Exit status: 0 ok, 2 trouble. Not for other recipes (table.py).
"""

import argparse
import os
import sys

import lm  # before what else loads transformers

from caches import Tools
from judged_texts import TEXTS
from table import cache_arrays, ratio_at, read_cache, save

LEARNT = 1024
LIBRARY = os.path.dirname(argparse.__file__)
LICENSES = "/usr/share/common-licenses"
TO_LEARN = [os.path.join(LICENSES, name) for name in ("MPL-2.0", "GFDL-1.3", "Apache-2.0")] + [
    os.path.join(LIBRARY, name) for name in ("argparse.py", "tarfile.py", "typing.py", "pydoc_data/topics.py", "subprocess.py")]
LEVELS = 0.003, 0.01


def cache_of(model, text, n, extra, path):
    """Makes two files of the first n tokens of a text: path with the last queries, and path.plain.safetensors without."""
    plain = path + ".plain.safetensors"
    if os.path.exists(path) and os.path.exists(plain):
        return path, plain
    with open(text, encoding="utf-8", errors="replace") as f:
        tokens = model.encode(f.read())
    if len(tokens) < n + extra:
        sys.exit(f"estimated.py: {text}: {len(tokens)} tokens, {n + extra} are needed")
    keys, values, queries = model.prefill(tokens[:n])
    arrays = cache_arrays(model, keys, values, tokens[:n])
    save(arrays, plain, model.facts())
    arrays |= {f"queries.{i}": q.bfloat16() for i, q in enumerate(queries)}
    save(arrays | {"continuation": tokens[n:n + extra].int()}, path, model.facts())
    return path, plain


def with_facts(tools, model, path):
    """The cache as a container that has the model's facts, as the RoPE of each kind of layer, and not its weights."""
    packed = path + ".kvc"
    tools.run("kvc-pack", "-q", "-f", f"--model={model.path}", "-o", packed, path)
    return packed


def learn(tools, model, work, files):
    """The three profiles: name -> path."""
    how = {"true": [with_facts(tools, model, full) for full, _ in files], "weights": [f"--model={model.path}", *(plain for _, plain in files)],
           "none": [with_facts(tools, model, plain) for _, plain in files]}
    profiles = {name: os.path.join(work, f"{name}.kvcp") for name in how}
    for name, arguments in how.items():
        tools.run("kvc-profile", "learn", "-q", "-f", "-o", profiles[name], *arguments)
    return profiles


def judge(judged, tools, model, work, plain, profile, ratio):
    packed, back = os.path.join(work, "packed.kvc"), os.path.join(work, "back.safetensors")
    tools.run("kvc-pack", "-q", "-f", "-r", "small", f"--target-ratio={ratio}", f"--profile={profile}", "-o", packed, plain)
    tools.run("kvc-unpack", "-q", "-f", "--to=safetensors", "-o", back, packed)
    keys, values, arrays = read_cache(back, model.n_layers)
    size = sum(x.numel() * 2 for name, x in arrays.items() if name.endswith((".keys", ".values")))
    return {"ratio": size / os.path.getsize(packed), **judged.judge(keys, values)}


def main():
    p = argparse.ArgumentParser(description="What the weights are worth.")
    p.add_argument("--model", default="smollm2")
    p.add_argument("-n", type=int, default=2048)
    p.add_argument("--texts", default="code,german")
    p.add_argument("--ratios", default="8,10,14,20")
    p.add_argument("--limit", type=int)
    p.add_argument("--tools", default=os.path.join(os.path.dirname(__file__), "../.."))
    p.add_argument("--work", default="build/quality")
    o = p.parse_args()
    if o.model.endswith(".gguf"):
        lm.MODELS[o.model] = ("gguf", lambda folder: os.path.abspath(o.model), os.path.basename(o.model)[:-5])
    work = os.path.join(o.work, "estimated-" + os.path.basename(o.model))
    os.makedirs(work, exist_ok=True)
    os.environ["KVC_PROFILE_PATH"] = "none"
    tools, model = Tools(os.path.abspath(o.tools)), lm.LanguageModel(o.model, o.work)
    files = [cache_of(model, text, LEARNT, 0, os.path.join(work, f"learn-{i}.safetensors")) for i, text in enumerate(TO_LEARN)]
    profiles = learn(tools, model, work, files)
    for text in o.texts.split(","):
        full, plain = cache_of(model, TEXTS[text][0], o.n, lm.NATURAL_TOKENS, os.path.join(work, f"{text}-{o.n}.safetensors"))
        keys, values, arrays = read_cache(full, model.n_layers)
        judged = lm.Judge(model, keys, values, arrays["tokens"].long(), arrays["continuation"].long(), o.limit)
        heads = [f"{name:>9}" + "".join(f"{head:>8}" for head in ("p99.9", "max")) for name in profiles]
        print(f"\n{text}: worst of three mean KLDs, and of all tokens\n{'ratio':>6} " + " ".join(heads), flush=True)
        points = {name: [] for name in profiles}
        for ratio in map(float, o.ratios.split(",")):
            for name, profile in profiles.items():
                points[name].append(judge(judged, tools, model, work, plain, profile, ratio))
            print(f"{ratio:6g} " + " ".join("{worst:9.5f}{p999:8.4f}{max:8.4f}".format(**points[name][-1]) for name in profiles), flush=True)
        for level in LEVELS:
            found = {name: ratio_at(points[name], "worst", level) for name in profiles}
            print(f"{level:6g} " + " ".join(f"{f'{r:.2f}' if r else '-':>9}{'':16}" for r in found.values()).rstrip() + "  (ratios)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        print(f"estimated.py: {error}", file=sys.stderr)
        sys.exit(2)
