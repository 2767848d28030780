#!/usr/bin/env python3
"""make_profile.py: from a causal language model and some texts to a kvc profile (OUT.kvcp, kvc-profile(5)).

    make_profile.py (--gguf FILE | --model DIR) [options] -o OUT.kvcp TEXT... [--more TEXT...]

A profile says how sensitive a model is to errors in its KV cache, and how its K and V are distributed. For every layer
and KV head it holds a basis in which a uniform step costs the same everywhere: with C the covariance of the rows of K
(before RoPE) or V, and M the Fisher metric E[g g^T], g being the gradient of log p(a token sampled from the model)
with respect to a row, the decode matrix is U^T M^(-1/2), U the eigenvectors of M^(1/2) C M^(1/2). So an error of 1 in
a coefficient weighs as much as an error of 1 in any other, in the model's own measure, the KL divergence of its output.
That output is the text's continuation and two places of the text said again, because answers quote what they were given.

kvc-profile then adds predictors of each layer from the layers before it (--back), learnt from caches of all texts.

The model is anything that transformers loads without the network, attends through its AttentionInterface, and rotates
channel i of K with i + R/2 (RoPE, also of several kinds or none in some layers). It runs on the CPU in float32, and is
not changed. What cannot be described is refused: the angles are checked against the model, and so is the cache.

Not for encoding caches, not for models with latent or recurrent attention, and not quick: 2048 + 1024 tokens of a text
go through the model forward, and 1024 of them twice backward. Texts should be of many kinds, five or more; only their
first tokens are used (--tokens of them and 512 more; of --more, which serve the predictors only, --predict-tokens).
The numbers depend on the texts given, so texts that serve to judge a profile must not be among them.

Needs torch, transformers and safetensors; gguf for --gguf; kvc-profile for predictors."""
import argparse
import hashlib
import math
import os
import re
import struct
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import transformers
    from safetensors.torch import save, save_file
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoTokenizer
    from transformers.cache_utils import DynamicCache
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
    MISSING = None
except ImportError as e:
    MISSING = e  # main() reports it, after --help

CONTINUATION = 512  # tokens whose prediction is measured; the metric is of their sum, so this is part of its unit
RECALL = 256        # tokens of the text that are said again, at each of RECALL_PLACES, for the same measurement
RECALL_PLACES = 0.05, 0.5  # where they begin, of the cached tokens
FIRST = 4           # the first tokens are attention sinks, unlike all others, and no part of any statistic
TAIL = 64           # queries are chosen among those of the last tokens
FLOOR = 1e-6        # least weight of a head, of the mean: one that nothing depends on has no metric of its own
TINY = 1e-100       # stands for no gradient at all where a logarithm or quotient is taken
SHIFT = 1000        # positions by which a text is moved to see how K turns
TOLERANCE = 5e-3    # of that check, and of the two ways to the same output


class Refusal(Exception):
    """The model or a text is not one this program can describe."""


# --- what attention sees -------------------------------------------------------------------------------------------

class Tap:
    """Keeps the query, key and value of every layer, as attention gets them: after RoPE, before any repetition."""

    def __init__(self):
        self.rows = None

    def __call__(self, module, query, key, value, attention_mask, **arguments):
        if arguments.get("s_aux") is not None:
            raise Refusal("attention with learned sinks is not supported")
        if self.rows is not None:
            self.rows[module.layer_idx] = tuple(x[0].detach() for x in (query, key, value))
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)

    def start(self):
        self.rows = {}

    def stop(self):
        rows, self.rows = self.rows, None
        return [rows[i] for i in sorted(rows)] if sorted(rows) == list(range(len(rows))) else []


TAP = Tap()


def forward(model, ids, first=0, **arguments):
    positions = torch.arange(first, first + ids.shape[1])[None]
    return model(input_ids=ids, position_ids=positions, **arguments)


# --- RoPE ----------------------------------------------------------------------------------------------------------

def rotate(x, angles, positions, sign=1):
    """Rows of x [..., n, D] turned to their positions (sign -1: back to before RoPE)."""
    if angles is None:
        return x
    half = len(angles)
    turn = positions.double()[:, None] * angles * sign
    c, s = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat([a * c - b * s, b * c + a * s, x[..., 2 * half:]], -1)


def rope_candidates(model, config):
    """The different angles per position that the model's rotary embeddings have, and None for a layer without."""
    text = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    kinds = [parameters] + [p for p in parameters.values() if isinstance(p, dict)]
    for kind in kinds:
        if kind.get("rope_type", kind.get("type")) in ("dynamic", "longrope", "su"):
            raise Refusal("RoPE whose angles depend on the length of the text is not supported")
    found = [None]
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name.endswith("inv_freq") and "original" not in name and buffer.dim() == 1:
                if not any(x is not None and torch.equal(x, buffer.double()) for x in found):
                    found.append(buffer.detach().double())
    return found


def find_angles(model, ids, candidates):
    """Per layer the angles by which its K turns with the position. The outputs of attention depend on distances only,
    so moving a text turns K of every layer and changes nothing else: this tells angles, rotated channels and pairing.
    A factor on cosine and sine (yarn's) stays in K and in the queries, which is as well: they meet only each other."""
    seen = []
    for first in (0, SHIFT):
        TAP.start()
        forward(model, ids, first, use_cache=False)
        seen.append([k for _, k, _ in TAP.stop()])
    angles = []
    for layer, (still, moved) in enumerate(zip(*seen)):
        errors = []
        for candidate in candidates:
            if candidate is not None and 2 * len(candidate) > still.shape[-1]:
                errors.append(math.inf)
                continue
            turned = rotate(still, candidate, torch.full((still.shape[-2],), SHIFT))
            errors.append(((turned - moved).norm() / moved.norm()).item())
        best = min(range(len(errors)), key=errors.__getitem__)
        if not errors[best] < TOLERANCE:
            raise Refusal(f"layer {layer}: K does not turn as RoPE with paired halves does "
                          f"(relative error {errors[best]:.2g})")
        angles.append(candidates[best])
    return angles


# --- statistics ----------------------------------------------------------------------------------------------------

class Sums:
    """Sums over texts for K or V of one layer: what mean, covariance and metric are made of. [H, D, D] each.

    How large a metric is varies little between most texts, but a rare one's may be a thousand times the others', in a
    few layers, and would decide alone in a plain mean. So a head's weight is the median of the texts' weights, and the
    form of its metric the mean of the texts' metrics, each of weight 1."""

    def __init__(self, heads, channels):
        self.count = 0
        self.sum = torch.zeros(heads, channels, dtype=torch.float64)
        self.products = torch.zeros(heads, channels, channels, dtype=torch.float64)
        self.text = torch.zeros(heads, channels, channels, dtype=torch.float64)  # the metric of the current text
        self.form = torch.zeros(heads, channels, channels, dtype=torch.float64)
        self.weights = []  # of each text, [H]

    def add_rows(self, x):
        x = x.double()
        self.count += x.shape[1]
        self.sum += x.sum(1)
        self.products += x.transpose(1, 2) @ x

    def add_gradients(self, g, share):
        g = g.double()
        self.text += g.transpose(1, 2) @ g * (share / g.shape[1])

    def end_text(self):
        weight = self.text.diagonal(dim1=1, dim2=2).mean(1)
        self.form += self.text / weight.clamp_min(TINY)[:, None, None]
        self.weights.append(weight)
        self.text.zero_()

    def mean(self):
        return self.sum / self.count

    def covariance(self):
        mean = self.mean()
        return self.products / self.count - mean[:, :, None] * mean[:, None, :]

    def weight(self):
        return torch.stack(self.weights).clamp_min(TINY).log().quantile(0.5, dim=0).exp()

    def metric(self):
        # a text in which a head had no gradient at all says nothing of the form
        texts = (torch.stack(self.weights) > 0).sum(0).clamp_min(1)
        return self.form * (self.weight() / texts)[:, None, None]


def first_seen(gradients):
    """The first cached token that reached any of these gradients [H, n, D]: earlier ones have left the window of a
    sliding layer, and their gradients are exactly 0. Nothing reached: 0, the layer does not matter."""
    seen = torch.zeros(gradients[0].shape[1], dtype=torch.bool)
    for g in gradients:
        seen |= (g != 0).any(2).any(0)
    return int(seen.int().argmax())


def continuation(model, ids, tokens, leaves):
    """Logits of tokens that follow a cache of `tokens` tokens, whose K and V are `leaves`."""
    cache = DynamicCache()
    for layer, (k, v) in enumerate(zip(leaves[::2], leaves[1::2])):
        cache.update(k[None], v[None], layer)
    with torch.enable_grad():
        return forward(model, ids, tokens, past_key_values=cache, use_cache=True).logits[0].float()


def add_gradients(gradients, layers, angles, positions, share):
    for layer, sums in enumerate(layers):
        k, v = gradients[2 * layer:2 * layer + 2]
        start = max(FIRST, first_seen((k, v)))
        sums["k"].add_gradients(rotate(k, angles[layer], positions, -1)[:, start:], share)
        sums["v"].add_gradients(v[:, start:], share)


def measure(model, ids, tokens, samples, generator, angles, layers):
    """One text: its rows and gradients into the sums of `layers`; returns its last queries, before RoPE, per layer."""
    with torch.no_grad():
        TAP.start()
        plain = forward(model, ids, use_cache=False, logits_to_keep=CONTINUATION).logits[0].float()
        rows = TAP.stop()
    positions = torch.arange(tokens)
    queries, leaves = [], []
    for layer, (q, k, v) in enumerate(rows):
        k, v = k[:, :tokens], v[:, :tokens]
        layers[layer]["k"].add_rows(rotate(k, angles[layer], positions, -1)[:, FIRST:])
        layers[layer]["v"].add_rows(v[:, FIRST:])
        queries.append(rotate(q[:, tokens - TAIL:tokens], angles[layer], positions[-TAIL:], -1))
        leaves += [k.clone().requires_grad_(), v.clone().requires_grad_()]
    del rows
    for place in (tokens, *(int(share * tokens) for share in RECALL_PLACES)):
        again = place < tokens
        logits = continuation(model, ids[:, place:place + (RECALL if again else CONTINUATION)], tokens, leaves)
        chances = logits.detach().softmax(-1)
        if not again:
            # The gradients are worth nothing if the model reads the cache in another way than this program fills it.
            difference = (chances - plain.softmax(-1)).abs().sum(-1).max().item()
            if not difference < TOLERANCE:
                raise Refusal(f"with its cache passed in the model answers differently (by {difference:.2g})")
            del plain
        for sample in range(samples):
            # Labels from the model itself, not the text's own: that makes it the Fisher metric of the KL divergence.
            label = torch.cat([torch.multinomial(p, 1, generator=generator) for p in chances.split(64)])
            slope = -chances  # of log p(label) with respect to the logits
            slope = slope.scatter_add(1, label, torch.ones_like(label, dtype=slope.dtype))
            gradients = torch.autograd.grad(logits, leaves, slope, retain_graph=sample + 1 < samples, allow_unused=True)
            gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, gradients)]
            add_gradients(gradients, layers, angles, positions, 1 / samples)
    for sums in layers:
        sums["k"].end_text()
        sums["v"].end_text()
    return queries


# --- the basis -----------------------------------------------------------------------------------------------------

def to_int8(x):
    """Rows of x as int8 with one float32 scale each; a row of zeros has the scale 0."""
    scale = (x.abs().amax(-1) / 127).float()
    divisor = torch.where(scale > 0, scale, torch.ones_like(scale)).to(x.dtype)
    return (x / divisor[..., None]).round().clamp(-127, 127).to(torch.int8), scale


def make_basis(covariance, metric, step):
    """Decode matrix as int8 rows and scales, and the variance of its coefficients; all of one layer's heads."""
    values, vectors = torch.linalg.eigh(metric)
    values = values.clamp_min(1e-12 * values.amax(-1, keepdim=True))  # rounding only: the metric is regularised
    root = vectors * values.sqrt()[:, None, :] @ vectors.transpose(1, 2)
    inverse_root = vectors / values.sqrt()[:, None, :] @ vectors.transpose(1, 2)
    axes = torch.linalg.eigh(root @ covariance @ root)[1].transpose(1, 2)  # rows
    decode = axes @ inverse_root * step
    # An eigenvector's sign is the solver's accident: take the one whose largest entry is positive.
    largest = decode.gather(2, decode.abs().argmax(2, keepdim=True))
    basis, scale = to_int8(decode * largest.sign())
    # The encoder will invert what the decoder has, so this is the inverse that counts.
    encode = torch.linalg.inv(basis.double() * scale.double()[..., None])
    variance = (encode * (covariance @ encode)).sum(1)
    variance, order = variance.sort(1, descending=True)
    basis = basis.gather(1, order[..., None].expand_as(basis))
    return basis, scale.gather(1, order), variance.float()


def finish(layers, regularisation, k_step):
    """All tensors but RoPE and queries."""
    tensors = {}
    for role, step in (("k", k_step), ("v", 1.0)):
        floor = FLOOR * torch.stack([x[role].weight().mean() for x in layers]).mean()
        for number, sums in enumerate(layers):
            s = sums[role]
            metric, weight = s.metric(), s.weight()
            extra = (regularisation * weight).clamp_min(floor)
            metric = metric + extra[:, None, None] * torch.eye(metric.shape[1], dtype=metric.dtype)
            basis, scale, variance = make_basis(s.covariance(), metric, step)
            prefix = f"layers.{number}.{role}."
            tensors[prefix + "mean"] = s.mean().float()
            tensors[prefix + "basis"] = basis
            tensors[prefix + "scale"] = scale
            tensors[prefix + "variance"] = variance
            tensors[prefix + "weight"] = (weight + extra).float()
    return tensors


def choose_queries(queries, number):
    """`number` of the queries [text][layer][heads, TAIL, D], evenly over texts and tokens; the same in all heads."""
    total = len(queries) * TAIL
    places = [divmod((2 * i + 1) * total // (2 * number), TAIL) for i in range(number)]
    return [torch.stack([queries[text][layer][:, token] for text, token in places], 1)
            for layer in range(len(queries[0]))]


# --- weights files -------------------------------------------------------------------------------------------------

GGUF_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def read_gguf_header(path):
    """The bytes before the tensor data, and the values that are single texts or numbers."""
    facts = {}
    with open(path, "rb") as f:
        def number(form):
            return struct.unpack("<" + form, f.read(struct.calcsize("<" + form)))[0]

        def value(kind):
            if kind == 8:
                return f.read(number("Q")).decode("utf-8", "replace")
            if kind == 9:
                of, n = number("I"), number("Q")
                if of in GGUF_SIZES:
                    f.seek(n * GGUF_SIZES[of], os.SEEK_CUR)
                else:
                    for _ in range(n):
                        value(of)
                return None
            data = f.read(GGUF_SIZES[kind])
            return int.from_bytes(data, "little") if kind in (0, 2, 4, 10) else None

        if f.read(4) != b"GGUF" or number("I") not in (2, 3):
            raise Refusal(f"{path}: not a GGUF file of version 2 or 3")
        tensors, pairs = number("Q"), number("Q")
        for _ in range(pairs):
            key = value(8)
            facts[key] = value(number("I"))
        for _ in range(tensors):
            value(8)
            f.seek(8 * number("I") + 12, os.SEEK_CUR)
        alignment, end = facts.get("general.alignment") or 32, f.tell()
    header = (end + alignment - 1) // alignment * alignment
    return (header if tensors else min(header, os.path.getsize(path))), facts


def weights_files(path):
    """The files of a model in the order in which a fingerprint takes them, and their kind."""
    if os.path.isdir(path):
        names = sorted(os.fsencode(x) for x in os.listdir(path) if x.endswith(".safetensors") and x[0] != ".")
        if b"model.safetensors" in names:
            names = [b"model.safetensors"]
        return [os.path.join(path, os.fsdecode(x)) for x in names], "safetensors"
    split = re.fullmatch(r"(.*-)(\d{5})-of-(\d{5})\.gguf", path, re.DOTALL)
    if split:
        return [f"{split[1]}{i + 1:05}-of-{split[3]}.gguf" for i in range(int(split[3]))], "gguf"
    return [path], "gguf"


def fingerprints(path):
    """SHA-256 over the weights files, of samples and of pieces, as section 2 of kvc's KEYS.md says."""
    files, kind = weights_files(path)
    if not files:
        return {}
    sums = {a: hashlib.sha256(f"kvc model {a} {n}\n{kind}\n".encode() + struct.pack("<I", len(files)))
            for a, n in (("sampled", 0), ("pieces", 1))}
    for name in files:
        size = os.path.getsize(name)
        with open(name, "rb") as f:
            header = read_gguf_header(name)[0] if kind == "gguf" else 8 + struct.unpack("<Q", f.read(8))[0]
            f.seek(0)
            for s in sums.values():
                s.update(struct.pack("<Q", size))
            sums["sampled"].update(f.read(header))
            rest = size - header
            if rest <= 64 * 4096:
                sums["sampled"].update(f.read())
            else:
                for i in range(64):
                    f.seek(header + i * (rest - 4096) // 63)
                    sums["sampled"].update(f.read(4096))
            f.seek(0)
            pieces = hashlib.sha256()
            while piece := f.read(1 << 24):
                pieces.update(hashlib.sha256(piece).digest())
            sums["pieces"].update(pieces.digest())
    return {f"model.fingerprint.{kind}.{a}": s.hexdigest() for a, s in sums.items()}


def window_facts(config, n_layers):
    """Which layers have a sliding window, where any has: a digit for each layer, 1 for those that have."""
    text = config.get_text_config()
    types = getattr(text, "layer_types", None)
    if not types or len(types) != n_layers or "sliding_attention" not in types:
        return {}
    facts = {"model.sliding-layers": "".join("01"[t == "sliding_attention"] for t in types)}
    return {**facts, "model.sliding-window": text.sliding_window} if getattr(text, "sliding_window", None) else facts


def model_facts(path, is_gguf, config):
    """Name and architecture as the weights themselves spell them."""
    if is_gguf:
        facts = read_gguf_header(path)[1]
        name, architecture = facts.get("general.name"), facts.get("general.architecture")
    else:
        name, architecture = getattr(config, "_name_or_path", None), config.model_type
        name = os.path.basename(os.path.abspath(name)) if name and name[0] in "/." else name
    return {"model.name": name or os.path.basename(os.path.abspath(path)), "model.architecture": architecture}


# --- predictors ----------------------------------------------------------------------------------------------------

def save_cache(model, ids, path, facts):
    """K and V of a text as transformers keeps them: of a layer with a window only the rows that the next token sees."""
    config, n = model.config.get_text_config(), ids.shape[1]
    types = getattr(config, "layer_types", None) or ["full_attention"]
    window = config.sliding_window if "sliding_attention" in types else None
    with torch.no_grad():
        TAP.start()
        forward(model, ids, use_cache=False, logits_to_keep=1)
        rows = TAP.stop()
    arrays = {}
    for layer, (_, k, v) in enumerate(rows):
        kept = min(n, window - 1) if window and types[layer] == "sliding_attention" else n
        arrays[f"layers.{layer}.keys"] = k[None, :, n - kept:].bfloat16().contiguous()
        arrays[f"layers.{layer}.values"] = v[None, :, n - kept:].bfloat16().contiguous()
    if window:
        arrays["sliding.positions"] = torch.arange(max(0, n - window + 1), n)
    save_file(arrays, path, metadata=facts)


def add_predictors(model, arguments, texts, base, facts):
    """Makes caches of the texts, and lets kvc-profile add what it learns from them to the profile."""
    with tempfile.TemporaryDirectory() as folder:
        caches = []
        for number, ids in enumerate(texts):
            caches.append(os.path.join(folder, f"{number}.safetensors"))
            save_cache(model, ids[:, :arguments.predict_tokens], caches[-1], facts)
        learn = [arguments.kvc_profile, "learn", "-f", f"--output={arguments.output}", f"--back={arguments.back}",
                 f"--profile={base}", *caches]
        if subprocess.run(learn, check=False).returncode:
            raise Refusal(f"{arguments.kvc_profile} could not learn predictors")


# --- the program ---------------------------------------------------------------------------------------------------

def load(arguments):
    transformers.utils.logging.disable_progress_bar()
    AttentionInterface.register("kvc-profile", TAP)
    AttentionMaskInterface.register("kvc-profile", sdpa_mask)
    if arguments.gguf:
        directory, file = os.path.split(os.path.abspath(arguments.gguf))
        source = {"pretrained_model_name_or_path": directory, "gguf_file": file}
    else:
        source = {"pretrained_model_name_or_path": arguments.model}
    tokenizer = AutoTokenizer.from_pretrained(**source, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(**source, local_files_only=True, dtype=torch.float32,
                                                 attn_implementation="kvc-profile").eval()
    model.requires_grad_(False)
    return tokenizer, model


def read_texts(tokenizer, names, tokens, least):
    """The first tokens of each text, checked before any work is done."""
    texts = []
    for name in names:
        with open(name, encoding="utf-8", errors="replace") as f:
            ids = tokenizer(f.read(), return_tensors="pt").input_ids[:, :tokens]
        if ids.shape[1] < least:
            raise Refusal(f"{name}: {ids.shape[1]} tokens, {least} are needed")
        texts.append(ids)
    return texts


def check_shapes(rows, config):
    text = config.get_text_config()
    if len(rows) != text.num_hidden_layers:
        raise Refusal(f"attention of {len(rows)} of {text.num_hidden_layers} layers was seen: the model shares, lacks "
                      "or hides attention in some")
    for layer, (q, k, v) in enumerate(rows):
        if [x.shape[0] for x in (q, k, v)] != [x.shape[0] for x in rows[0]] or k.shape[0] != v.shape[0]:
            raise Refusal(f"layer {layer}: not as many heads as layer 0")
        if k.shape[2] != rows[0][1].shape[2] or v.shape[2] != rows[0][2].shape[2]:
            raise Refusal(f"layer {layer}: heads of another size than in layer 0")


def log_spread(weights):
    """Layer means of weights, relative to the model's mean, as text."""
    per_layer = torch.stack([w.mean() for w in weights])
    relative = per_layer / per_layer.mean()
    return f"{relative.min():.3g} (layer {int(relative.argmin())}) to {relative.max():.3g} ({int(relative.argmax())})"


def make_profile(arguments):
    started = time.time()
    tokenizer, model = load(arguments)
    texts = read_texts(tokenizer, arguments.texts, *2 * [arguments.tokens + CONTINUATION])
    more = read_texts(tokenizer, arguments.more, arguments.predict_tokens, FIRST + 1)
    path = arguments.gguf or arguments.model
    with torch.no_grad():
        TAP.start()
        forward(model, texts[0][:, :8], use_cache=False)
        rows = TAP.stop()
        check_shapes(rows, model.config)
        angles = find_angles(model, texts[0][:, :48], rope_candidates(model, model.config))
    query_heads, heads = rows[0][0].shape[0], rows[0][1].shape[0]
    dim_k, dim_v = rows[0][1].shape[2], rows[0][2].shape[2]
    layers = [{"k": Sums(heads, dim_k), "v": Sums(heads, dim_v)} for _ in rows]
    print(f"{len(rows)} layers, {heads} KV heads, {query_heads} query heads, {dim_k} channels, "
          f"{len({None if a is None else tuple(a.tolist()) for a in angles})} kinds of RoPE; "
          f"{time.time() - started:.0f} s", file=sys.stderr)
    queries = []
    for i, (name, ids) in enumerate(zip(arguments.texts, texts)):
        begin = time.time()
        generator = torch.Generator().manual_seed(arguments.seed + i)
        queries.append(measure(model, ids, arguments.tokens, arguments.samples, generator, angles, layers))
        weights = [torch.stack([x[role].weights[-1].mean() for x in layers]).mean() for role in "kv"]
        print(f"{os.path.basename(name)}: weights K {weights[0]:.2e}, V {weights[1]:.2e}; {time.time() - begin:.0f} s",
              file=sys.stderr, flush=True)
    tensors = finish(layers, arguments.reg, arguments.k_step)
    for layer, chosen in enumerate(choose_queries(queries, arguments.queries)):
        tensors[f"layers.{layer}.queries"], tensors[f"layers.{layer}.queries.scale"] = to_int8(chosen)
        if angles[layer] is not None:
            tensors[f"layers.{layer}.rope"] = angles[layer].clone()  # safetensors stores no shared tensors
    if not all(x.isfinite().all() for x in tensors.values()):
        raise Refusal("a number is not finite")
    metadata = {"kvc.profile": "1", **model_facts(path, bool(arguments.gguf), model.config),
                "model.layers": len(rows), "model.kv-heads": heads, "model.heads": query_heads,
                "model.head-dim": dim_k, **({"model.head-dim-v": dim_v} if dim_v != dim_k else {}),
                **window_facts(model.config, len(rows)), **fingerprints(path), "metric": "fisher",
                "metric.recall": RECALL * len(RECALL_PLACES),
                "texts": ", ".join(os.path.basename(x) for x in arguments.texts), "tokens": arguments.tokens,
                **({"predictor.texts": ", ".join(os.path.basename(x) for x in arguments.texts + arguments.more)}
                   if arguments.back else {}),
                "made": f"make_profile.py, torch {torch.__version__}, transformers {transformers.__version__}, "
                        f"float32, {arguments.samples} samples of {CONTINUATION} tokens and of "
                        f"{len(RECALL_PLACES)} times {RECALL} said again, seed {arguments.seed}, "
                        f"median of texts, "
                        f"regularisation {arguments.reg:g}, K step {arguments.k_step:g}"}
    partial = arguments.output + ".partial"
    with open(partial, "wb") as f:
        f.write(save({name: x.contiguous() for name, x in tensors.items()},
                     {key: str(value) for key, value in metadata.items()}))
    if arguments.back:
        facts = {"n_layers": len(rows), "n_heads": query_heads, "n_kv_heads": heads, "head_dim": dim_k,
                 "dtype": "bfloat16", "k_rope": "post", "rope_pairing": "half"}
        add_predictors(model, arguments, texts + more, partial, {key: str(value) for key, value in facts.items()})
        os.remove(partial)
    else:
        os.replace(partial, arguments.output)
    for role in "kv":
        weights = [tensors[f"layers.{i}.{role}.weight"] for i in range(len(rows))]
        print(f"{role.upper()} weights of layers / mean: {log_spread(weights)}", file=sys.stderr)
    print(f"{arguments.output}: {os.path.getsize(arguments.output)} bytes, {time.time() - started:.0f} s",
          file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description="Makes a kvc profile from a causal language model and texts.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", metavar="FILE", help="weights in GGUF")
    source.add_argument("--model", metavar="DIR", help="directory of a transformers model")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of each text's cache (%(default)s)")
    parser.add_argument("--samples", type=int, default=2, help="sampled continuations of each text (%(default)s)")
    parser.add_argument("--queries", type=int, default=20, help="queries to keep of each head (%(default)s)")
    parser.add_argument("--reg", type=float, default=0.1,
                        help="regularisation of the metric, in its mean diagonal (%(default)s)")
    parser.add_argument("--k-step", type=float, default=1.4, help="step of K, that of V being 1 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the sampled continuations (%(default)s)")
    parser.add_argument("--back", type=int, default=1,
                        help="layers before a layer that it is predicted from, 0 to 7; 0: no predictors (%(default)s)")
    parser.add_argument("--more", nargs="+", default=[], metavar="TEXT", help="further texts, for the predictors only")
    parser.add_argument("--predict-tokens", type=int, default=1024, help="tokens of each text for them (%(default)s)")
    parser.add_argument("--kvc-profile", default="kvc-profile", help="the program that learns predictors (%(default)s)")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.kvcp")
    parser.add_argument("texts", nargs="+", metavar="TEXT")
    arguments = parser.parse_args()
    if arguments.tokens <= 2 * TAIL or arguments.samples < 1 or arguments.reg <= 0 or arguments.k_step <= 0 or \
            not 1 <= arguments.queries <= TAIL * len(arguments.texts) or not 0 <= arguments.back <= 7 or \
            arguments.predict_tokens <= FIRST:
        parser.error(f"--tokens more than {2 * TAIL}, --samples at least 1, --reg and --k-step above 0, --queries 1 to "
                     f"{TAIL} per text, --back 0 to 7, --predict-tokens more than {FIRST}")
    if MISSING:
        sys.exit(f"make_profile.py: {MISSING}; it needs torch, transformers 5 and safetensors, for --gguf also gguf: "
                 f"{sys.executable} -m pip install torch transformers safetensors gguf")
    try:
        make_profile(arguments)
    except (Refusal, OSError, ValueError) as e:
        sys.exit(f"make_profile.py: {e}")


if __name__ == "__main__":
    main()
