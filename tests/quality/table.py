#!/usr/bin/env python3
"""table.py: how small the transform codec makes a model's caches at three qualities, beside its peers; one table for
each text and a summary against the targets below. README.md, "The table", says what each row and figure is.

    table.py [--model=smollm2|gemma|qwen] [-n N] [--texts=NAME,...] [--profile=FILE] [--rows=GROUP,...] [--json]
             [--tools=DIR] [--work=DIR] [--short]

For each text: the model makes the cache of its first N tokens (once; kept in the work folder), kvc-pack packs it,
kvc-unpack decodes it, and the model's predictions from the decoded cache are compared with those from the exact one.
A ratio is that of K and V at 16 bits a value to the whole .kvc file. Exit status: 0 every target called "must" is met,
1 one is missed, 2 trouble. Not for caches of others, nor for recipes at will: quality.py judges those.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import tempfile
import time

import lm  # before what else loads transformers

import safetensors
import torch
from safetensors.torch import load_file, save_file

import kvtc
from caches import Tools
from judged_texts import TEXTS, profile_texts

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.join(HERE, "../..")
SHORT = 64  # tokens of each continuation with --short
WIDE = 5  # points that enclose a KLD are no further apart than this
TRIES = 4  # points that are measured beyond the first ones for one KLD

PROFILES = {"smollm2": "smollm2-135m-instruct-predict.kvcp", "gemma": "gemma-3-270m.kvcp",
            "qwen": "qwen2.5-coder-1.5b-instruct.kvcp"}  # in samples/ or the work folder
GROUPS = "profile", "alone", "every", "presets", "queries", "bare", "peers", "kvtc"
ASKED_FOR = "kvtc",  # groups that take minutes before the first row
PRESETS = {"near-lossless": 0.003, "small": 0.01, "tiny": 0.03}
LOSSLESS = "split"
ALONE = "sink:4,derope@k,center,basis,steps,code"  # the presets without prediction
EVERY = "sink:4,derope@k,predict:every=8,center,basis,steps,code"
HADAMARD = "q4_0 + Hadamard"

# The figures to reach: (group, KLD, level): what it is called, then must and aim by model, for caches of TARGET_TOKENS
# or more. The level of the last is the KLD of q4_0 + Hadamard on the same text.
TARGET_TOKENS = 2048
GOALS = {("profile", "worst", 0.003): ("worst KLD .003", {"smollm2": (11.5, 15), "gemma": (7.0, 8.7)}),
         ("profile", "worst", 0.01): ("worst KLD .01", {"smollm2": (17, 23), "gemma": (11.5, 14.4)}),
         ("profile", "worst", 0.03): ("worst KLD .03", {"smollm2": (24, 34), "gemma": (15.5, 19.4)}),
         ("profile", "natural", 0.003): ("natural KLD .003", {"smollm2": (11.5, 16)}),
         ("queries", "natural", 0.01): ("no profile, queries: natural .01", {"smollm2": (9.5, 12)}),
         ("bare", "worst", HADAMARD): ("no facts: worst as q4_0 + Hadamard", {"smollm2": (3.56, 4.5)})}


# --- peers that kvc has no recipe for ---

def blocks_of_32(x):
    return x.reshape(*x.shape[:-1], -1, 32)


def q4_0(x):
    """ggml's: 16 steps around 0, the extreme value at -8; a half for each block of 32: 4.5 bits a value."""
    blocks = blocks_of_32(x)
    extreme = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    step = extreme / -8
    inverse = torch.where(step == 0, 0, 1 / step)
    return ((blocks * inverse + 8.5).floor().clamp(0, 15).sub(8) * step.half().float()).reshape(x.shape)


def q8_0(x):
    """ggml's: 255 steps, a half for each block of 32: 8.5 bits a value."""
    blocks = blocks_of_32(x)
    step = blocks.abs().amax(-1, keepdim=True) / 127
    inverse = torch.where(step == 0, 0, 1 / step)
    return ((blocks * inverse).round() * step.half().float()).reshape(x.shape)


def hadamard(size):
    """Orthogonal and its own inverse."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / math.sqrt(size)


def rotated(x, size, quantise):
    """quantise(), between a rotation of every `size` channels and its inverse."""
    matrix = hadamard(size)
    tiles = x.reshape(*x.shape[:-1], -1, size)
    return (quantise((tiles @ matrix).reshape(x.shape)).reshape(tiles.shape) @ matrix).reshape(x.shape)


def k_tile(size):
    """The largest power of two that divides size: how llama.cpp rotates K; V it rotates in tiles of 64."""
    return size & -size


BLOCK_PEERS = {"q8_0": (16 / 8.5, q8_0, q8_0),
               HADAMARD: (16 / 4.5, lambda k: rotated(k, k_tile(k.shape[-1]), q4_0), lambda v: rotated(v, 64, q4_0))}
PRESET_PEERS = {"KIVI-4": "kivi4", "GEAR-4": "gear4", "ZipCache": "zipcache"}


# --- caches ---

class Skip(Exception):
    """A text that cannot be judged; says why."""


def read_cache(path, n_layers):
    arrays = load_file(path)
    return ([arrays[f"layers.{i}.keys"].float() for i in range(n_layers)],
            [arrays[f"layers.{i}.values"].float() for i in range(n_layers)], arrays)


def save(arrays, path, facts):
    save_file({name: array.contiguous() for name, array in arrays.items()}, path + ".part", metadata=facts)
    os.replace(path + ".part", path)


def cache_arrays(model, keys, values, tokens, dtype=torch.bfloat16):
    """The arrays of a cache in transformers' layout, with the positions of layers that have a window."""
    arrays, n = {"tokens": tokens.int()}, len(tokens)
    for i, (k, v) in enumerate(zip(keys, values)):
        arrays[f"layers.{i}.keys"], arrays[f"layers.{i}.values"] = k.to(dtype), v.to(dtype)
    windows = {window for window in model.windows if window}
    if windows:
        arrays["sliding.positions"] = torch.arange(max(0, n - windows.pop() + 1), n)
    return arrays


def made_caches(model, name, text, n, work):
    """Paths of two files: the cache to pack, K, V and tokens; and the same with the last queries and the text's own
    continuation. They are made again when the text is another."""
    source, package = TEXTS[text]
    if not os.path.exists(source):
        raise Skip(f"{source} is missing" + (f": install {package}" if package else ""))
    with open(source, "rb") as f:
        data = f.read()
    plain, full = (os.path.join(work, f"{name}-{text}-{n}{end}.safetensors") for end in ("", ".queries"))
    sha256 = hashlib.sha256(data).hexdigest()
    if os.path.exists(plain) and os.path.exists(full):
        with safetensors.safe_open(full, "pt") as f:
            if (f.metadata() or {}).get("text.sha256") == sha256:
                return plain, full, sha256
    tokens = model.encode(data.decode("utf-8", "replace"))
    needed = n + lm.NATURAL_TOKENS
    if len(tokens) < needed:
        raise Skip(f"{len(tokens)} tokens, {needed} are needed")
    keys, values, queries = model.prefill(tokens[:n])
    arrays = cache_arrays(model, keys, values, tokens[:n])
    facts = {**model.facts(), "context": f"{os.path.basename(source)}, first {n} tokens"}
    save(arrays, plain, facts)
    arrays["continuation"] = tokens[n:needed].int()
    for i, q in enumerate(queries):
        arrays[f"queries.{i}"] = q.bfloat16()
    save(arrays, full, {**facts, "text.sha256": sha256})
    return plain, full, sha256


# --- measuring ---

def enclosing(points, measure, level):
    """The two neighbouring points between which measure reaches level; None when there are none. Where the curve
    crosses the level more than once, those of the smallest ratio count."""
    points = sorted(points, key=lambda p: p["ratio"])
    return next(((p, q) for p, q in zip(points, points[1:]) if p[measure] <= level <= q[measure]), None)


def between(p, q, measure, level):
    """How far from p to q level is, 0 to 1, by logarithms."""
    a, b = max(p[measure], 1e-9), q[measure]
    return math.log(level / a) / math.log(b / a) if a < b else 0


def ratio_at(points, measure, level):
    """The ratio where measure is level, by log-log interpolation; None when the points do not enclose it.

    >>> points = [{"ratio": 4, "worst": 0.001}, {"ratio": 16, "worst": 0.1}, {"ratio": 8, "worst": 0.01}]
    >>> round(ratio_at(points, "worst", 0.001), 6), round(ratio_at(points, "worst", 0.01 * 10 ** 0.5), 6)
    (4.0, 11.313708)
    >>> print(ratio_at(points, "worst", 0.2), ratio_at(points, "worst", 0.0005))
    None None
    """
    pair = enclosing(points, measure, level)
    if not pair:
        return None
    p, q = pair
    return p["ratio"] * (q["ratio"] / p["ratio"]) ** between(p, q, measure, level)


def next_target(points, measure, level):
    """The --target-kld of the next point to measure: one that is likely to enclose level, or to do so more tightly;
    None when the points do so well enough.

    >>> points = [{"target": 0.01, "worst": 0.02, "ratio": 8}, {"target": 0.03, "worst": 0.05, "ratio": 12}]
    >>> print(next_target(points, "worst", 0.03))
    None
    >>> next_target(points, "worst", 0.01), next_target(points, "worst", 0.1), next_target(points, "worst", 9)
    (0.004, 0.075, 0.15)
    >>> next_target([{"target": 0.01, "worst": 0.01, "ratio": 8}, {"target": 1, "worst": 1, "ratio": 80}], "worst", 0.1)
    0.1
    """
    pair = enclosing(points, measure, level)
    if pair:
        p, q = pair
        if q[measure] <= WIDE * p[measure]:
            return None
        t = min(max(between(p, q, measure, level), 0.25), 0.75)
        target = p["target"] * (q["target"] / p["target"]) ** t
    else:  # as if both grew alike, and a little further
        points = sorted(points, key=lambda p: p["ratio"])
        if points[0][measure] > level:
            target = points[0]["target"] * min(max(0.8 * level / points[0][measure], 1 / WIDE), 0.7)
        else:
            target = points[-1]["target"] * max(min(1.25 * level / points[-1][measure], WIDE), 1.4)
    return float(f"{target:.2g}")


def bare_preset(preset):
    """The row of a preset without a profile."""
    return f"{preset}, no profile, queries"


class Subject:
    """One text's cache, and the rows measured on it: dicts of figures."""

    def __init__(self, options, model, tools, text, scratch):
        self.model, self.tools, self.scratch, self.profile = model, tools, scratch, options.profile
        self.name, self.work = options.model, options.work
        self.plain, self.full, self.sha256 = made_caches(model, options.model, text, options.n, options.work)
        self.keys, self.values, arrays = read_cache(self.full, model.n_layers)
        self.bits16 = 2 * sum(x.numel() for x in self.keys + self.values)
        self.judge = lm.Judge(model, self.keys, self.values, arrays["tokens"].long(), arrays["continuation"].long(),
                              SHORT if options.short else None)
        self.rows = []

    def add(self, group, name, measure, **facts):
        """A row of what measure() returns; what the tools refuse is a row too, that says so."""
        start = time.time()
        row = {"group": group, "name": name, **facts}
        try:
            row |= measure()
            shown = f"ratio {row['ratio']:.3f}, worst KLD {row['worst']:.5f}, largest of a token {row['max']:.4f}"
        except ValueError as error:
            row["error"] = shown = str(error).splitlines()[-1]
        print(f"  {name}: {shown} ({time.time() - start:.0f} s)", file=sys.stderr, flush=True)
        self.rows.append(row)
        return row

    def packed(self, recipe, *options, source=None, profile=None, embed=False):
        """Figures of the cache, packed and decoded."""
        packed, decoded = (os.path.join(self.scratch, name) for name in ("packed.kvc", "decoded.safetensors"))
        facts = [f"--model={self.model.path}"] if not source else []
        if profile:
            facts.append(f"--profile={profile}")
        pack = ["--json", "-q", "-f", "-r", recipe, *options, *facts, "-o", packed, source or self.plain]
        report = json.loads(self.tools.run("kvc-pack", *pack))["files"][0]
        self.tools.run("kvc-unpack", "-q", "-f", *facts, "--to", "safetensors", "-o", decoded, packed)
        keys, values, _ = read_cache(decoded, self.model.n_layers)
        figures = {"bytes": os.path.getsize(packed), **self.judge.judge(keys, values)}
        figures["ratio"] = self.bits16 / figures["bytes"]
        figures |= {key: report[key] for key in ("step", "predicted_kld", "predicted_kld_recall") if key in report}
        if embed:
            self.tools.run("kvc-pack", "--embed-profile", *pack)
            figures["ratio_embedded"] = self.bits16 / os.path.getsize(packed)
        return figures

    def curve(self, group, label, measure, goals, targets):
        """Points of measure(target) at the targets, and at more until they enclose every goal (KLD, level)."""
        def point(target):
            row = self.add(group, label, lambda: measure(target), target=target)
            if "error" not in row:
                points.append(row)
            return "error" not in row

        points = [row for row in self.rows if row["group"] == group and "error" not in row]
        for target in targets:
            point(target)
        for kld, level in goals:
            for _ in range(TRIES):
                target = next_target(points, kld, level) if points else None
                if not target or not point(target):
                    break

    def goals(self, group):
        """(KLD, level) of a group's goals, where the level is known."""
        peer = next((row for row in self.rows if row["name"] == HADAMARD), {})
        levels = [(kld, peer.get("worst") if level == HADAMARD else level) for g, kld, level in GOALS if g == group]
        return [(kld, level) for kld, level in levels if level]

    def lossless(self):
        """Must change nothing but the rounding of sums: the check of everything between kvc-pack and the KLD."""
        row = self.add("lossless", LOSSLESS, lambda: self.packed(LOSSLESS))
        if row.get("worst", 1) > 1e-6:
            raise ValueError(f"recipe {LOSSLESS} is lossless, but {row.get('error') or 'the model sees a difference'}")

    def block_peers(self, names):
        for name in names:
            ratio, of_k, of_v = BLOCK_PEERS[name]
            self.add("peers", name, lambda: {"ratio": ratio, **self.judge.judge([of_k(k) for k in self.keys],
                                                                               [of_v(v) for v in self.values])})

    def kvtc_rows(self):
        """Rows of that codec, whose basis is the same for all texts; what it does not serve is a row that says so."""
        try:
            peer = kvtc.Kvtc(self.model, self.name, self.work)
        except ValueError as error:
            self.rows.append({"group": "kvtc", "name": "KVTC", "error": str(error)})
            return
        for number, nominal in enumerate(kvtc.NOMINAL):
            self.add("kvtc", f"KVTC, {nominal:g}", lambda: peer.measure(self.judge, self.keys, self.values, number))

    def measure(self, groups):
        self.lossless()
        if "peers" in groups or "bare" in groups:
            self.block_peers(BLOCK_PEERS if "peers" in groups else [HADAMARD])
        if "peers" in groups:
            for name, recipe in PRESET_PEERS.items():
                self.add("peers", name, lambda: self.packed(recipe, f"--queries={self.full}"))
        if "kvtc" in groups:
            self.kvtc_rows()
        if "profile" in groups or "presets" in groups:
            for preset, target in PRESETS.items():
                self.add("profile", preset, lambda: self.packed(preset, profile=self.profile, embed=True),
                         target=target)
        if "profile" in groups:
            self.add("lossless", "cross", lambda: self.packed("cross", profile=self.profile))
        if "presets" in groups:
            for preset in PRESETS:
                self.add("presets", bare_preset(preset), lambda: self.packed(preset, f"--queries={self.full}"))
        if "profile" in groups:
            self.curve("profile", "profile", lambda target: self.packed("small", f"--target-kld={target}",
                                                                        profile=self.profile),
                       self.goals("profile"), [])
        for group, label, recipe in (("alone", "without prediction", ALONE), ("every", "every=8", EVERY)):
            if group in groups:
                self.curve(group, label, lambda target, recipe=recipe: self.packed(
                    recipe, f"--target-kld={target}", profile=self.profile), self.goals("profile"), PRESETS.values())
        if "queries" in groups:
            self.curve("queries", "no profile, queries", lambda target: self.packed(
                "small", f"--target-kld={target}", f"--queries={self.full}"), self.goals("queries"), [0.01, 0.03])
        if "bare" in groups:
            bare = os.path.join(self.scratch, "bare.safetensors")
            save(load_file(self.plain), bare, None)
            self.curve("bare", "no facts", lambda target: self.packed("small", f"--target-kld={target}", source=bare),
                       self.goals("bare"), [0.01, 0.03])
            os.remove(bare)


# --- judging and printing ---

def summarise(options, subjects):
    """For each goal: its must and aim, the ratio of each text, and what the lowest of them reaches."""
    goals = []
    goals_of = dict(GOALS)
    for other, name in (("alone", "without prediction: "), ("every", "every=8: "), ("kvtc", "KVTC: ")):
        goals_of |= {(other, kld, level): (name + title, {}) for (g, kld, level), (title, _) in GOALS.items() if g == "profile"}
    for (group, kld, level), (title, targets) in goals_of.items():
        if group not in options.rows:
            continue
        must, aim = targets.get(options.model, (None, None)) if options.n >= TARGET_TOKENS else (None, None)
        ratios = {}
        for text, subject in subjects.items():
            at = level
            if level == HADAMARD:
                at = next(row["worst"] for row in subject.rows if row["name"] == HADAMARD)
            points = [row for row in subject.rows if row["group"] == group and "error" not in row]
            ratios[text] = ratio_at(points, kld, at)
        lowest = min((r or 0 for r in ratios.values()), default=0)
        met = None if must is None else "aim" if lowest >= aim else "must" if lowest >= must else "missed"
        goals.append({"goal": title, "must": must, "aim": aim, "ratios": ratios, "met": met})
    return goals


def cell(value, form):
    return format(value, form) if value is not None else "-"


def print_table(rows, gap="  "):
    """The first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        print(gap.join([row[0].ljust(widths[0])] + [c.rjust(w) for c, w in zip(row[1:], widths[1:])]).rstrip())
    print(flush=True)


def print_subject(options, model, text, subject):
    perplexity = ", ".join(f"{name} {value:.2f}" for name, value in subject.judge.perplexity.items())
    print(f"{model.title}, {text}: {os.path.basename(TEXTS[text][0])} (SHA-256 {subject.sha256[:16]}), "
          f"{options.n} tokens, K and V {subject.bits16} bytes; perplexity {perplexity}")
    table = [["row", "target", "predicted", "recall", "ratio", "embedded", "natural", "early", "middle", "worst",
              "p99.9", "max", "top-1 %"]]
    order = ["profile", "alone", "every", "presets", "queries", "bare", "peers", "kvtc", "lossless"]
    for row in sorted(subject.rows, key=lambda r: (order.index(r["group"]), r.get("ratio", 0))):
        if "error" in row:
            continue
        klds = [f"{row[name]:.5f}" for name in ("natural", "early", "middle", "worst")]
        table.append([row["name"], cell(row.get("target"), "g"), cell(row.get("predicted_kld"), ".5f"),
                      cell(row.get("predicted_kld_recall"), ".5f"), f"{row['ratio']:.2f}",
                      cell(row.get("ratio_embedded"), ".2f"), *klds, f"{row['p999']:.4f}", f"{row['max']:.4f}",
                      f"{100 * row['top1']:.1f}"])
    print_table(table)
    for row in subject.rows:
        if "error" in row:
            print(f"{row['name']}: {row['error']}\n")


def print_presets(subjects):
    print("Presets with the profile beside the file and inside, and without one but with the cache's queries")
    klds = ["text", "early", "middle", "p99.9", "max"]
    table = [["preset", "text", "ratio", "inside", *klds, "without: ratio", *klds]]
    for text, subject in subjects.items():
        for preset in PRESETS:
            line = [preset, text]
            for name in preset, bare_preset(preset):
                row = next(row for row in subject.rows if row["name"] == name)
                line.append(f"{row['ratio']:.2f}" if "ratio" in row else "-")
                if name == preset:
                    line.append(cell(row.get("ratio_embedded"), ".2f"))
                line += [cell(row.get(kld), ".4f") for kld in ("natural", "early", "middle", "p999", "max")]
            table.append(line)
    print_table(table)


def print_summary(options, subjects, goals):
    if "presets" in options.rows:
        print_presets(subjects)
    if not goals:
        return
    print(f"Ratio, {options.n} tokens, by text; the lowest counts")
    table = [["", "must", "aim", *subjects, "met"]]
    for goal in goals:
        ratios = [cell(goal["ratios"][text], ".2f") for text in subjects]
        table.append([goal["goal"], cell(goal["must"], "g"), cell(goal["aim"], "g"), *ratios, goal["met"] or "-"])
    print_table(table)
    if "profile" in options.rows:
        print("Presets as they are: ratio, worst KLD, the largest of a token")
        table = [["", *subjects]]
        for preset in PRESETS:
            rows = [next(row for row in subject.rows if row["name"] == preset) for subject in subjects.values()]
            table.append([preset, *("-" if "error" in r else f"{r['ratio']:.2f} {r['worst']:.4f} {r['max']:.2f}"
                                     for r in rows)])
        print_table(table)


def parse(arguments):
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("--model", choices=lm.MODELS, default="smollm2")
    parser.add_argument("-n", type=int, default=TARGET_TOKENS)
    parser.add_argument("--texts", default=",".join(TEXTS))
    parser.add_argument("--profile")
    parser.add_argument("--rows", default=",".join(group for group in GROUPS if group not in ASKED_FOR))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--tools", default=TOP)
    parser.add_argument("--work", default=os.path.join(TOP, "build/quality"))
    parser.add_argument("--short", action="store_true")
    options = parser.parse_args(arguments)
    for name, known in ("texts", TEXTS), ("rows", GROUPS):
        words = getattr(options, name).replace(",", " ").split()
        unknown = [word for word in words if word not in known]
        if unknown or not words:
            parser.error(f"--{name}: {unknown[0] if unknown else 'nothing'}: give some of {', '.join(known)}")
        setattr(options, name, words)
    if options.n < 2 * lm.RECALL_TOKENS:
        parser.error(f"-n: {2 * lm.RECALL_TOKENS} or more")
    if {"profile", "presets"} & set(options.rows) and not options.profile:
        folders = os.path.join(TOP, "samples"), options.work
        places = [os.path.join(folder, PROFILES[options.model]) for folder in folders]
        options.profile = next(filter(os.path.exists, places), None)
        if not options.profile:
            parser.error(f"no profile of {options.model} ({' or '.join(map(os.path.relpath, places))}): make one with "
                         "kvc-profile make, give --profile=FILE, or --rows without profile")
    return options


def main(arguments=None):
    options = parse(arguments)
    os.environ["KVC_PROFILE_PATH"] = "none"  # rows without a profile are to have none
    os.makedirs(options.work, exist_ok=True)
    tools, subjects, skipped = Tools(options.tools), {}, {}
    calibration = profile_texts(options.profile) if options.profile else []
    model = lm.LanguageModel(options.model, options.work)
    for text in options.texts:
        print(f"{options.model}, {text}, {options.n} tokens", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            try:
                if os.path.basename(TEXTS[text][0]) in calibration:
                    raise Skip("the profile was made of it")
                subject = Subject(options, model, tools, text, scratch)
            except Skip as why:
                skipped[text] = str(why)
                print(f"table.py: {text} is left out: {why}", file=sys.stderr)
                continue
            subject.measure(options.rows)
        subject.keys = subject.values = None  # of no more use, and large
        subject.judge.base = None
        subjects[text] = subject
        if not options.json:
            print_subject(options, model, text, subject)
    if not subjects:
        raise ValueError("no text is left")
    goals = summarise(options, subjects)
    if options.json:
        texts = {text: {"sha256": s.sha256, "bytes_16_bit": s.bits16, "perplexity": s.judge.perplexity, "rows": s.rows}
                 for text, s in subjects.items()}
        made = {"kvc": tools.run("kvc-pack", "--version").split()[-1], "torch": torch.__version__,
                "transformers": lm.transformers.__version__}
        if options.profile:
            with open(options.profile, "rb") as f:
                made["profile.sha256"] = hashlib.sha256(f.read()).hexdigest()
        json.dump({"model": model.title, "tokens": options.n, "short": options.short, "made": made, "texts": texts,
                   "left_out": skipped, "goals": goals}, sys.stdout, indent=2)
        print()
    else:
        print_summary(options, subjects, goals)
        for text, why in skipped.items():
            print(f"{text} is left out: {why}")
    return 1 if any(goal["met"] == "missed" for goal in goals) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        print(f"table.py: {error}", file=sys.stderr)
        sys.exit(2)
