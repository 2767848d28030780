#!/usr/bin/env python3
"""greedy.py: how many tokens of a greedy answer stay the same when the model runs from a decoded cache, and what the KLD
is there; README.md, "Greedy answers", says what each figure is.

    greedy.py [--texts=NAME,...] [--starts=N] [--profile=FILE] [--tools=DIR]

Each text is cut at some starts into prompts of 512 and 1024 tokens. The model generates 64 tokens from the exact cache of
each; then kvc-pack packs the cache with each recipe, kvc-unpack decodes it, and the model predicts the same 64 tokens from
the decoded cache. Up to the first token it would choose otherwise, that is its own greedy answer. Exit status: 0 ok, 2
trouble; it sets no bounds.
"""

import blas  # noqa: F401 (before numpy)

import argparse
import hashlib
import os
import sys
import tempfile
import time
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from caches import CacheFile, Tools, write_cache
from judged_texts import TEXTS, profile_texts
from model import Cache, Model
from quality import HERE, compare_logits, log_softmax, of_tokens, print_table, tail_cells
from tokenizer import Tokenizer

LENGTHS = 512, 1024  # tokens of the prompts; one more follows each, from which the answer is generated
COUNT = 64  # tokens generated
SPECIAL = "<|im_start|>", "<|im_end|>"
WITH_PROFILE = "near-lossless", "small", "tiny"
RECIPES = *WITH_PROFILE, "kivi4", "kivi2"
CONTROL = "split"  # lossless
SHOWN = "small"  # its answers are shown beside the exact ones,
SHOWN_TEXTS = "gpl3", "german", "chat"  # of these texts,
SHOWN_AFTER = 24  # from so many tokens before the prompt's end on
KLDS = 0, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, np.inf  # classes of prompts

# One recipe on one prompt. kld: of each token of the exact answer; same: tokens before the first that differs, of COUNT;
# top1: share of positions with the same first choice; choice: at the first difference the exact cache's probabilities of
# its own token and of the other, or None
Answer = namedtuple("Answer", "ratio kld same top1 choice")


# --- ggml's blocks of 32 ---

def in_blocks(x, quantise):
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    return quantise(blocks).reshape(x.shape).astype(np.float32)


def inverse(step):
    return np.divide(1, step, out=np.zeros_like(step), where=step != 0)


def q8_0(blocks):
    """255 steps, a half for each block: 8.5 bits a value."""
    step = np.abs(blocks).max(axis=-1, keepdims=True) / 127
    return np.round(blocks * inverse(step)) * step.astype(np.float16)


def q4_0(blocks):
    """16 steps around 0, the extreme value at -8; a half for each block: 4.5 bits a value."""
    step = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], -1) / -8
    return (np.clip(np.floor(blocks * inverse(step) + 8.5), 0, 15) - 8) * step.astype(np.float16)


BLOCK_TYPES = {"q8_0": (16 / 8.5, q8_0), "q4_0": (16 / 4.5, q4_0)}


# --- measuring ---

class Prompt:
    """The first n tokens of a cut and its exact cache, bf16, in a file."""

    def __init__(self, model, tools, folder, name, ids, n, made):
        """ids: the cut; made: its cache, in float32, of which the first n tokens count."""
        self.name, self.n, self.next, self.tokens = name, n, ids[n], ids[:n]
        self.made = Cache(*([x[:, :n] for x in both] for both in made))
        self.path = os.path.join(folder, f"{name}.safetensors")
        write_cache(self.path, model, self.made, self.tokens, context=name)
        self.exact = CacheFile(self.path, model, tools, folder).cache
        self.bits16 = 2 * sum(x.size for both in self.exact for x in both)

    def answered(self, model, generated):
        """Keeps the exact cache's answer, and its predictions when that is given as text."""
        self.generated = generated
        self.said = np.array([self.next, *generated[:-1]])
        self.logits = model.forward(self.said, self.exact).logits


def first_difference(same):
    """How many are true before the first that is not.

    >>> first_difference([True, True, False, True]), first_difference([True, True])
    (2, 2)
    """
    return next((i for i, s in enumerate(same) if not s), len(same))


def judge(model, prompt, cache, ratio):
    logits = model.forward(prompt.said, cache).logits
    kld, equal, _ = compare_logits(prompt.logits, logits, prompt.said)
    same, choice = first_difference(equal), None
    if same < len(equal):
        p = np.exp(log_softmax(prompt.logits[same]))
        choice = p.max(), p[logits[same].argmax()]
    return Answer(ratio, kld, same, equal.mean(), choice)


def decoded(model, tools, prompt, recipe, profile):
    """The cache that the packed file returns, and the ratio of K and V at 16 bits to the whole file."""
    with tempfile.TemporaryDirectory() as scratch:
        packed, target = (os.path.join(scratch, name) for name in ("packed.kvc", "decoded.safetensors"))
        facts = [f"--profile={profile}"] if recipe in WITH_PROFILE else []
        tools.run("kvc-pack", "-q", "-r", recipe, *facts, "-o", packed, prompt.path)
        tools.run("kvc-unpack", "-q", *facts, "--to", "safetensors", "-o", target, packed)
        return CacheFile(target, model, tools, scratch).cache, prompt.bits16 / os.path.getsize(packed)


def judge_prompt(model, tools, prompt, profile):
    """Row -> Answer; and the cache of SHOWN."""
    cache, _ = decoded(model, tools, prompt, CONTROL, profile)
    if not all(np.array_equal(x, y) for pair in zip(cache, prompt.exact) for x, y in zip(*pair)):
        raise ValueError(f"{prompt.name}: recipe {CONTROL} is lossless, but its decoded cache is not the exact one")
    answers = {"float32": judge(model, prompt, prompt.made, 0.5)}
    for name, (ratio, quantise) in BLOCK_TYPES.items():
        cache = Cache(*([in_blocks(x, quantise) for x in both] for both in prompt.exact))
        answers[name] = judge(model, prompt, cache, ratio)
    shown = None
    for recipe in RECIPES:
        cache, ratio = decoded(model, tools, prompt, recipe, profile)
        answers[recipe] = judge(model, prompt, cache, ratio)
        if recipe == SHOWN:
            shown = cache
    return answers, shown


def cuts(ids, count):
    """count equally spaced cuts of the longest prompt and the token after it, the first and the last at the text's ends.

    >>> [list(cut)[::1024] for cut in cuts(range(2000), 3)]
    [[0, 1024], [487, 1511], [975, 1999]]
    """
    room = len(ids) - max(LENGTHS) - 1
    starts = [room * i // max(count - 1, 1) for i in range(count)]
    return [ids[start:start + max(LENGTHS) + 1] for start in starts]


def measure_text(model, tools, tokenizer, text, options, pool, folder):
    """A list of row -> Answer, one for each prompt, and an example or None."""
    with open(TEXTS[text][0], "rb") as f:
        data = f.read()
    ids = tokenizer.encode(data.decode("utf-8", "replace"), SPECIAL)
    if len(ids) <= max(LENGTHS):
        raise ValueError(f"{TEXTS[text][0]}: {len(ids)} tokens, more than {max(LENGTHS)} are needed")
    print(f"{text}: {os.path.basename(TEXTS[text][0])}, {len(ids)} tokens, SHA-256 {hashlib.sha256(data).hexdigest()[:16]}",
          flush=True)
    pieces = cuts(ids, options.starts)
    made = list(pool.map(lambda piece: model.prefill(piece[:-1])[0], pieces))
    prompts = [Prompt(model, tools, folder, f"{text}-{n}-{i}", piece, n, cache)
               for n in LENGTHS for i, (piece, cache) in enumerate(zip(pieces, made))]
    generated = model.generate([p.exact for p in prompts], [p.next for p in prompts], COUNT)
    list(pool.map(lambda prompt, tokens: prompt.answered(model, tokens), prompts, generated))
    results = list(pool.map(lambda prompt: judge_prompt(model, tools, prompt, options.profile), prompts))
    example = make_example(model, tokenizer, prompts, results) if text in SHOWN_TEXTS else None
    return [answers for answers, _ in results], example


def make_example(model, tokenizer, prompts, results):
    """Both answers, as lines to print, to the prompt whose first difference is the median one, of those that have a
    difference; None when there is none."""
    different = sorted((answers[SHOWN].same, i) for i, (answers, _) in enumerate(results) if answers[SHOWN].same < COUNT)
    if not different:
        return None
    same, i = different[len(different) // 2]
    prompt, answer = prompts[i], results[i][0][SHOWN]
    other = model.generate([results[i][1]], [prompt.next], COUNT)[0]
    if first_difference(other == prompt.generated) != same:
        raise ValueError(f"{prompt.name}: the generated answer differs elsewhere than the predicted one")
    parts = {"prompt": [*prompt.tokens[-SHOWN_AFTER:], prompt.next], "equal": other[:same],
             "exact": prompt.generated[same:], SHOWN: other[same:]}
    return "\n".join([f"{prompt.name}: {same} tokens are equal; KLD {answer.kld.mean():.4f}, of a token {answer.kld.max():.4f} "
                      "at most; then the exact cache gives its token "
                      f"{100 * answer.choice[0]:.0f} % and the other {100 * answer.choice[1]:.0f} %",
                      *(f"  {name + ':':8}{tokenizer.decode(ids)!r}" for name, ids in parts.items())])


# --- printing ---

def figures(answers):
    """Cells of a list of Answers, as in HEADS."""
    same = [a.same for a in answers]
    choices = [a.choice for a in answers if a.choice]
    return [*(f"{q:.0f}" for q in np.percentile(same, [25, 50, 75], method="inverted_cdf")),
            f"{100 * np.mean(np.array(same) == COUNT):.0f}", f"{100 * np.mean([a.top1 for a in answers]):.1f}",
            *([f"{100 * p:.0f}" for p in np.median(choices, axis=0)] if choices else ["-", "-"])]


HEADS = ["equal 1/4", "1/2", "3/4", f"all {COUNT} %", "top-1 %", "own %", "other %"]


def print_results(results):
    rows = [["recipe", "ratio", "KLD", "p99.9", "max", *HEADS]]
    for name in results[0]:
        answers = [answers[name] for answers in results]
        kld = of_tokens(np.concatenate([a.kld for a in answers]))
        rows.append([name, f"{np.mean([a.ratio for a in answers]):.2f}", f"{kld['kld']:.5f}", *tail_cells(kld)[1:],
                     *figures(answers)])
    print(f"{len(results)} prompts, {COUNT} tokens each, by recipe")
    print_table(rows)
    rows = [["KLD of the prompt", "answers", "p99.9", "max", *HEADS]]
    for low, high in zip(KLDS, KLDS[1:]):
        answers = [a for answers in results for a in answers.values() if low <= a.kld.mean() < high]
        if answers:
            kld = of_tokens(np.concatenate([a.kld for a in answers]))
            rows.append([f"{low:g} to {high:g}", str(len(answers)), *tail_cells(kld)[1:], *figures(answers)])
    print("The same answers of all recipes, by KLD")
    print_table(rows)


def parse(arguments):
    top = os.path.join(HERE, "../..")
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--texts", default=" ".join(TEXTS))
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--profile", default=os.path.join(top, "samples/smollm2-135m-instruct-predict.kvcp"))
    parser.add_argument("--tools", default=top)
    options = parser.parse_args(arguments)
    options.texts = options.texts.replace(",", " ").split()
    unknown = [text for text in options.texts if text not in TEXTS]
    if unknown or not options.texts:
        parser.error(f"--texts: {unknown[0] if unknown else 'nothing'}: give some of {', '.join(TEXTS)}")
    if options.starts < 1:
        parser.error("--starts: 1 or more")
    return options


def main(arguments=None):
    options, start = parse(arguments), time.time()
    os.environ["KVC_PROFILE_PATH"] = "none"  # the other recipes are to have no profile
    calibration = profile_texts(options.profile)
    model, tools = Model(), Tools(options.tools)
    tokenizer = Tokenizer(model)
    results, examples = [], []
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for text in options.texts:
            path, package = TEXTS[text]
            if not os.path.exists(path) or os.path.basename(path) in calibration:
                why = "the profile was computed from it" if os.path.exists(path) else f"install {package}"
                print(f"{text} is left out: {path}: {why}")
                continue
            with tempfile.TemporaryDirectory() as folder:
                answers, example = measure_text(model, tools, tokenizer, text, options, pool, folder)
            results += answers
            examples += [example] if example else []
    if not results:
        raise ValueError("no text is left")
    print()
    print_results(results)
    print(f"Answers from the exact cache and from the one of {SHOWN}, where they first differ")
    print(*examples, sep="\n")
    print(f"\n{time.time() - start:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        print(f"greedy.py: {error}", file=sys.stderr)
        sys.exit(2)
