#!/usr/bin/env python3
"""quality.py: judges decoded KV caches by what the real model makes of them; README.md says what every figure is.

    quality.py [-r RECIPE]... [--against=DECODED]... [--tools=DIR] [--model=GGUF] FILE...

Packs each FILE with each recipe (kvc-pack -r), decodes it, and runs the model from the decoded cache over three
continuations beside a run from the exact one. --against judges a file that something else decoded. Exit status: 0 ok,
1 a lossless recipe changed something, 2 trouble. It sets no bounds for lossy recipes: the reader judges.
"""

import blas  # noqa: F401 (before numpy)

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from caches import CacheFile, Tools, write_made_cache
from model import Model

HERE = os.path.dirname(os.path.abspath(__file__))
RECALL_FROM, RECALL_TOKENS = 100, 256
FOREIGN = 0.5  # a cache further from the model's own than this is of another model, or wrongly paired


# --- measures ---

def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(axis=-1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=-1, keepdims=True))
    return x


def compare_logits(exact, decoded, tokens):
    """KLD by position, positions with the same first choice, and the two perplexities of what follows each position."""
    kld, same, nll = [], [], np.zeros(2)
    labels = tokens[1:]
    for i in range(0, len(exact), 64):  # blocks: the vocabulary in float64 is large
        p, q = log_softmax(exact[i:i + 64]), log_softmax(decoded[i:i + 64])
        kld.extend((np.exp(p) * (p - q)).sum(axis=-1))
        same.extend(p.argmax(axis=-1) == q.argmax(axis=-1))
        next_tokens = labels[i:i + 64]
        for which, x in enumerate((p, q)):
            nll[which] -= x[np.arange(len(next_tokens)), next_tokens].sum()
    return np.array(kld), np.array(same), np.exp(nll / max(len(labels), 1))


def of_tokens(kld):
    """What is said of KLDs of tokens: their mean, two percentiles and the largest."""
    p99, p999 = np.percentile(kld, [99, 99.9])
    return {"kld": kld.mean(), "kld_p99": p99, "kld_p99.9": p999, "kld_max": kld.max()}


def relative_error(exact, decoded):
    """Mean over layers of the Frobenius norms' ratio; a layer of zeros counts by its difference."""
    return np.mean([np.linalg.norm(x - y) / (np.linalg.norm(x) or 1) for x, y in zip(exact, decoded)])


# --- continuations ---

def continuations(cache_file):
    """name -> tokens that stand behind the cache."""
    tokens, n = cache_file.tokens, cache_file.n_tokens
    found = {}
    if cache_file.continuation is not None and len(cache_file.continuation):
        found["text"] = cache_file.continuation
    for name, start in ("early", min(RECALL_FROM, n // 4)), ("middle", n // 2):
        found[name] = tokens[start:start + RECALL_TOKENS]
    return found


class Judge:
    """One exact cache, its three runs, and whatever is compared with it."""

    def __init__(self, path, model, tools, scratch):
        self.path, self.model, self.tools, self.scratch = path, model, tools, scratch
        self.exact = CacheFile(path, model, tools, scratch)
        if self.exact.tokens is None or len(self.exact.tokens) != self.exact.n_tokens:
            raise ValueError(f"{path}: not one token id for each row: its prefix cannot be said again")
        made = os.path.join(scratch, "made.safetensors")
        own = write_made_cache(made, model, self.exact.tokens)
        self.queries = None if self.exact.has_queries else made
        self.distance = [relative_error(*pair) for pair in zip(own, self.exact.cache)]
        if max(self.distance) > FOREIGN:
            raise ValueError(f"{path}: K and V are {self.distance[0]:.0%} and {self.distance[1]:.0%} from what "
                             f"{model.path} makes of its tokens: a cache of another model, or K's pairs are others")
        self.tokens = continuations(self.exact)
        self.logits = self.each(lambda name: self.run(name, self.exact.cache))

    def each(self, work):
        """continuation -> work(continuation), side by side."""
        with ThreadPoolExecutor(min(os.cpu_count() or 1, len(self.tokens))) as pool:
            return dict(zip(self.tokens, pool.map(work, self.tokens)))

    def run(self, name, cache):
        return self.model.forward(self.tokens[name], cache).logits

    def judge(self, decoded_path):
        """A dict of figures; `runs` holds those of the continuations."""
        decoded = CacheFile(decoded_path, self.model, self.tools, self.scratch)
        if decoded.n_tokens != self.exact.n_tokens:
            raise ValueError(f"{decoded_path}: {decoded.n_tokens} tokens, but {self.path} has {self.exact.n_tokens}")
        attention = self.tools.attention(self.path, decoded_path, self.model, self.queries)
        pairs = [pair for both in zip(self.exact.cache, decoded.cache) for pair in zip(*both)]
        figures = {"same": all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in pairs),
                   "k": relative_error(self.exact.cache.keys, decoded.cache.keys),
                   "v": relative_error(self.exact.cache.values, decoded.cache.values),
                   "median": attention["output_median"], "p99": attention["output_p99"], "runs": {}}

        def compare(name):
            return compare_logits(self.logits[name], self.run(name, decoded.cache), self.tokens[name])

        compared = self.each(compare)
        for name, (kld, same, perplexity) in compared.items():
            figures["runs"][name] = {**of_tokens(kld), "kld_any": bool(kld.any()), "top1": same.mean(),
                                     "perplexity": perplexity[0], "change": perplexity[1] / perplexity[0] - 1}
        figures["all"] = of_tokens(np.concatenate([kld for kld, _, _ in compared.values()]))
        figures["worst"] = max(figures["runs"].values(), key=lambda run: run["kld"])
        return figures

    def judge_recipe(self, recipe):
        packed = os.path.join(self.scratch, "packed.kvc")
        report = self.tools.pack(recipe, self.path, packed, self.model, self.queries)
        figures = self.judge(packed)
        values = sum(x.size for both in self.exact.cache for x in both)
        figures["ratio"] = 2 * values / self.tools.kv_bytes(packed)
        figures["file_ratio"] = os.path.getsize(self.path) / os.path.getsize(packed)
        figures["lossless"] = report["lossless"]
        return figures


def changed(figures):
    """Whether anything at all differs from the exact cache."""
    return (not figures["same"] or figures["p99"] > 0 or figures["median"] > 0
            or any(run["kld_any"] for run in figures["runs"].values()))


# --- printing ---

def print_table(rows):
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip())
    print()


TAIL = "KLD p99", "KLD p99.9", "KLD max"


def tail_cells(run):
    """Cells below TAIL, of what of_tokens() returned."""
    return [f"{run[name]:.4f}" for name in ("kld_p99", "kld_p99.9", "kld_max")]


def print_figures(judge, all_figures):
    distances = " and ".join(f"{d:.2%}" for d in judge.distance)
    print(f"{judge.path}: {judge.exact.n_tokens} tokens; K and V {distances} from this model's own"
          + ("; queries are the model's" if judge.queries else ""))
    rows = [["recipe", "ratio", "file ratio", "K error", "V error", "attn median", "attn p99", "KLD", *TAIL, "top-1 %"]]
    for name, f in all_figures:
        ratios = [f"{f[r]:.3f}" if r in f else "-" for r in ("ratio", "file_ratio")]
        errors = [f"{f[e]:.4f}" for e in ("k", "v", "median", "p99")]
        worst = f["worst"]
        rows.append([name, *ratios, *errors, f"{worst['kld']:.5f}", *tail_cells(worst), f"{100 * worst['top1']:.1f}"])
    print_table(rows)
    names = list(judge.tokens)
    rows = [["preset", "ratio", "K", "V", "attn", "p99", *names, "p99.9", "max", "top-1"]]
    for name, f in all_figures:
        rows.append([name, f"{f['ratio']:.2f}" if "ratio" in f else "-", *(f"{f[e]:.3f}" for e in ("k", "v", "median", "p99")),
                     *(f"{f['runs'][n]['kld']:.4f}" for n in names), *tail_cells(f["all"])[1:],
                     f"{100 * f['worst']['top1']:.1f}"])
    print_table(rows)
    rows = [["recipe", "continuation", "tokens", "KLD", *TAIL, "top-1 %", "PPL", "PPL change %"]]
    for name, f in all_figures:
        for which, run in f["runs"].items():
            rows.append([name, which, str(len(judge.tokens[which])), f"{run['kld']:.5f}", *tail_cells(run),
                         f"{100 * run['top1']:.1f}", f"{run['perplexity']:.3f}", f"{100 * run['change']:+.2f}"])
    print_table(rows)


def main(arguments=None):
    parser = argparse.ArgumentParser(usage=__doc__.splitlines()[2].strip())
    parser.add_argument("-r", "--recipe", action="append", default=[])
    parser.add_argument("--against", action="append", default=[])
    parser.add_argument("--tools", default=os.path.join(HERE, "../.."))
    parser.add_argument("--model")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    if not options.recipe and not options.against:
        parser.error("nothing to judge: give -r RECIPE or --against=DECODED")
    model, tools = Model(options.model), Tools(options.tools)
    wrong = 0
    for path in options.files:
        with tempfile.TemporaryDirectory() as scratch:
            judge = Judge(path, model, tools, scratch)
            recipes = [(recipe, judge.judge_recipe(recipe)) for recipe in options.recipe]
            others = [(os.path.basename(other), judge.judge(other)) for other in options.against]
        print_figures(judge, recipes + others)
        for recipe, figures in recipes:
            if figures["lossless"] and changed(figures):
                wrong += 1
                print(f"quality.py: {path}: recipe {recipe} is lossless, but its decoded cache is not the exact one, "
                      "or this machine's arithmetic does not repeat", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        print(f"quality.py: {error}", file=sys.stderr)
        sys.exit(2)
