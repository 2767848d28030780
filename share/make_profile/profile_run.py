"""profile_run.py: from a model and texts to a profile: what is measured in which order, and
what is told meanwhile. Not for the measuring (fisher.py), nor for what an interrupted run
leaves (run_state.py)."""
import hashlib
import json
import os
import subprocess
import sys
import time

import torch
import transformers
from safetensors.torch import save

from causal_model import (TAP, check_shapes, find_angles, forward, load_model, load_tokenizer,
                          read_texts)
from fisher import (CONTINUATION, FIRST, RECALL, RECALL_PLACES, TAIL, Sums, choose_queries, finish,
                    measure, to_int8)
from model_files import Refusal, fingerprints, model_facts, window_facts
from run_state import RunState


class Progress:
    """Lines on standard error, with the time that is left if the rest goes on as what this run
    did."""

    def __init__(self, quiet, work):
        self.quiet, self.left, self.done = quiet, work, 0
        self.begin = self.last = time.monotonic()

    def say(self, text):
        if not self.quiet:
            print(text, file=sys.stderr, flush=True)

    def skip(self, work):
        self.left -= work

    def start(self):
        self.begin = self.last = time.monotonic()

    def step(self, text, work):
        now = time.monotonic()
        self.done += work
        self.left -= work
        left = (now - self.begin) / self.done * self.left
        more = f", {duration(left)} left" if self.left else ""
        self.say(f"{text}; {now - self.last:.0f} s{more}")
        self.last = now


def duration(seconds):
    minutes = int(seconds / 60 + 0.5)
    if minutes < 1:
        return "less than a minute"
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"


def profile_bytes(tensors, metadata):
    """A safetensors file whose bytes follow from what is in it: save() has metadata in any
    order."""
    data = save(tensors, metadata)
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header["__metadata__"] = dict(sorted(metadata.items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + size:]


def digest(ids):
    return hashlib.sha256(ids.numpy().tobytes()).hexdigest()


class ProfileRun:
    """Texts and the model of one run."""

    def __init__(self, arguments):
        self.arguments = arguments
        if arguments.threads:
            torch.set_num_threads(arguments.threads)
        measured = arguments.measure or len(arguments.texts)
        self.names = arguments.texts[:measured], arguments.texts[measured:]
        tokenizer = load_tokenizer(arguments.model)
        self.texts = read_texts(tokenizer, self.names[0], *2 * [arguments.tokens + CONTINUATION])
        self.more = read_texts(tokenizer, self.names[1], arguments.predict_tokens, FIRST + 1)
        self.prints = fingerprints(arguments.model)
        self.state = self.open_state()
        self.model = None

    def open_state(self):
        a = self.arguments
        model = os.path.basename(os.path.abspath(a.model))
        facts = {"model": [model, self.prints or os.path.abspath(a.model)]}
        for name, value in (("tokens", a.tokens), ("samples", a.samples), ("seed", a.seed),
                            ("weights", self.weights_kind())):
            facts[name] = [value, value]
        texts = [[name, digest(ids)] for name, ids in zip(self.names[0], self.texts)]
        return RunState(a.state or a.output + ".making", facts, texts)

    def weights_kind(self):
        return "float32" if self.arguments.float32 else "bfloat16"

    # --- the model ---

    def load(self):
        self.model = load_model(self.arguments.model, self.arguments.float32)
        with torch.no_grad():
            TAP.start()
            forward(self.model, self.texts[0][:, :8], use_cache=False)
            rows = TAP.stop()
            check_shapes(rows, self.model.config)
            self.angles = find_angles(self.model, self.texts[0][:, :48])
        self.query_heads, self.heads = rows[0][0].shape[0], rows[0][1].shape[0]
        self.dim_k, self.dim_v = rows[0][1].shape[2], rows[0][2].shape[2]
        self.n_layers = len(rows)

    # --- sums of all texts ---

    def measure_texts(self, done, kept, progress, work):
        """Returns the sums of each layer, and the queries of each text."""
        a = self.arguments
        layers = [{"k": Sums(self.heads, self.dim_k), "v": Sums(self.heads, self.dim_v)}
                  for _ in range(self.n_layers)]
        queries = []
        if kept:
            for key, sums in self.each_sum(layers):
                names = [x for x in kept if x.startswith(key)]
                sums.go_on({x[len(key):]: kept[x] for x in names})
            queries = [[kept[f"queries.{text}.{layer}"] for layer in range(self.n_layers)]
                       for text in range(done)]
        else:
            self.keep(layers, queries)
        for i in range(done, len(self.texts)):
            generator = torch.Generator().manual_seed(a.seed + i)
            queries.append(measure(self.model, self.texts[i], a.tokens, a.samples, generator,
                                   self.angles, layers))
            self.keep(layers, queries)
            weights = [torch.stack([x[role].weights[-1].mean() for x in layers]).mean()
                       for role in "kv"]
            name, of = os.path.basename(self.names[0][i]), f"text {i + 1} of {len(self.texts)}"
            progress.step(f"{name}: {of}, weights K {weights[0]:.2e}, V {weights[1]:.2e}", work)
        return layers, queries

    def each_sum(self, layers):
        for layer, roles in enumerate(layers):
            for role, sums in roles.items():
                yield f"{layer}.{role}.", sums

    def keep(self, layers, queries):
        tensors = {key + name: x for key, sums in self.each_sum(layers)
                   for name, x in sums.kept().items()}
        for text, of_text in enumerate(queries):
            tensors |= {f"queries.{text}.{layer}": x for layer, x in enumerate(of_text)}
        of_text = self.n_layers * self.query_heads * TAIL * self.dim_k * 4
        self.state.keep(len(queries), tensors, of_text)

    # --- the profile without predictors ---

    def base(self, layers, queries):
        a = self.arguments
        tensors = finish(layers, a.reg, a.k_step)
        for layer, chosen in enumerate(choose_queries(queries, a.queries)):
            prefix = f"layers.{layer}."
            tensors[prefix + "queries"], tensors[prefix + "queries.scale"] = to_int8(chosen)
            if self.angles[layer] is not None:
                # safetensors stores no shared tensors
                tensors[prefix + "rope"] = self.angles[layer].clone()
        if not all(x.isfinite().all() for x in tensors.values()):
            raise Refusal("a number is not finite")
        return tensors

    def metadata(self):
        a, measured, every = self.arguments, self.names[0], sum(self.names, [])
        return {
            "kvc.profile": "1", **model_facts(a.model, self.model.config),
            "model.layers": self.n_layers, "model.kv-heads": self.heads,
            "model.heads": self.query_heads, "model.head-dim": self.dim_k,
            **({"model.head-dim-v": self.dim_v} if self.dim_v != self.dim_k else {}),
            **window_facts(self.model.config, self.n_layers), **self.prints,
            "metric": "fisher", "metric.recall": RECALL * len(RECALL_PLACES),
            "texts": ", ".join(os.path.basename(x) for x in measured), "tokens": a.tokens,
            "predictor.texts": ", ".join(os.path.basename(x) for x in every),
            "made": f"kvc-profile make, torch {torch.__version__}, transformers "
                    f"{transformers.__version__}, weights in {self.weights_kind()}, {a.samples} "
                    f"samples of {CONTINUATION} tokens and of {len(RECALL_PLACES)} times {RECALL} "
                    f"said again, seed {a.seed}, median of texts, regularisation {a.reg:g}, "
                    f"K step {a.k_step:g}"}

    # --- predictors ---

    def cache_key(self, ids):
        return hashlib.sha256(f"{digest(ids)} {ids.shape[1]}".encode()).hexdigest()

    def make_cache(self, ids, key):
        """K and V of a text as transformers keeps them: of a layer with a window only the rows
        that the next token sees."""
        config, n = self.model.config.get_text_config(), ids.shape[1]
        types = getattr(config, "layer_types", None) or ["full_attention"]
        window = config.sliding_window if "sliding_attention" in types else None
        with torch.no_grad():
            TAP.start()
            forward(self.model, ids, use_cache=False, logits_to_keep=1)
            rows = TAP.stop()
        arrays = {}
        for layer, (_, k, v) in enumerate(rows):
            sliding = window and types[layer] == "sliding_attention"
            kept = min(n, window - 1) if sliding else n
            arrays[f"layers.{layer}.keys"] = k[None, :, n - kept:].bfloat16().contiguous()
            arrays[f"layers.{layer}.values"] = v[None, :, n - kept:].bfloat16().contiguous()
        if window:
            arrays["sliding.positions"] = torch.arange(max(0, n - window + 1), n)
        facts = {"n_layers": self.n_layers, "n_heads": self.query_heads, "n_kv_heads": self.heads,
                 "head_dim": self.dim_k, "dtype": "bfloat16", "k_rope": "post",
                 "rope_pairing": "half"}
        return self.state.keep_cache(key, arrays, {key: str(value) for key, value in facts.items()})

    def make_caches(self, progress):
        a, caches = self.arguments, []
        texts = [ids[:, :a.predict_tokens] for ids in self.texts + self.more]
        for i, (name, ids) in enumerate(zip(sum(self.names, []), texts)):
            key = self.cache_key(ids)
            found = self.state.find_cache(key)
            if found:
                progress.skip(ids.shape[1])
            caches.append(found or self.make_cache(ids, key))
            if not found:
                of = f"cache {i + 1} of {len(texts)}"
                progress.step(f"{os.path.basename(name)}: {of}", ids.shape[1])
        return caches

    def learn(self, base, caches):
        """Lets kvc-profile add what it learns from the caches. Returns its exit status."""
        a = self.arguments
        command = [a.kvc_profile, "learn", f"--back={a.back}", f"--profile={base}"]
        command += ["-q"] if a.quiet else []
        command += ["-f"] if a.force else []
        command += [f"--threads={a.threads}"] if a.threads else []
        command += [f"--json={a.json}" if a.json == "lines" else "--json"] if a.json else []
        command += ["-o", a.output] if a.output else []
        sys.stdout.flush()
        return subprocess.run(command + ["--", *caches], check=False).returncode

    # --- all of it ---

    def run(self):
        """Returns an exit status."""
        a = self.arguments
        done, kept = self.state.open(a.resume, a.force)
        # tokens through the model; a backward pass computes layers again, and then their gradients
        said = CONTINUATION + RECALL * len(RECALL_PLACES)
        work = a.tokens + CONTINUATION + said * (1 + 2 * a.samples)
        caches = sum(min(x.shape[1], a.predict_tokens) for x in self.texts + self.more)
        progress = Progress(a.quiet, work * (len(self.texts) - done) + caches)
        if done:
            progress.say(f"{done} of {len(self.texts)} texts are measured in {self.state.folder}")
        progress.say(f"loading {a.model}")
        self.load()
        progress.say(f"{self.n_layers} layers, {self.heads} KV heads, {self.query_heads} query "
                     f"heads, {self.dim_k} channels; weights in {self.weights_kind()}; "
                     f"{time.monotonic() - progress.begin:.0f} s to load them")
        progress.start()
        layers, queries = self.measure_texts(done, kept, progress, work)
        tensors = {name: x.contiguous() for name, x in self.base(layers, queries).items()}
        metadata = {key: str(value) for key, value in self.metadata().items()}
        base = self.state.keep_base(profile_bytes(tensors, metadata))
        for role in "kv":
            weights = [tensors[f"layers.{i}.{role}.weight"] for i in range(self.n_layers)]
            progress.say(f"{role.upper()} weights of layers / mean: {log_spread(weights)}")
        status = self.learn(base, self.make_caches(progress))
        if status:
            raise Refusal(f"kvc-profile learn failed; what was measured is in {self.state.folder}: "
                          "--resume goes on with it")
        if not a.keep:
            self.state.remove()
        return status


def log_spread(weights):
    """Layer means of weights, relative to the model's mean, as text."""
    per_layer = torch.stack([w.mean() for w in weights])
    relative = per_layer / per_layer.mean()
    low, high = int(relative.argmin()), int(relative.argmax())
    return f"{relative[low]:.3g} (layer {low}) to {relative[high]:.3g} ({high})"
