"""causal_model.py: the model whose profile is made, in as little memory as it can run in: its
weights stay in bfloat16 while arithmetic is float32, and layers are computed again in the
backward pass. What attention sees of a text, and how RoPE turns K. Not for statistics
(fisher.py)."""
import functools
import inspect
import math
import os

import torch
import transformers
from torch.utils.checkpoint import checkpoint
from transformers import (AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM,
                          AutoTokenizer)
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils import quantization_config

from model_files import Refusal

SHIFT = 1000              # positions by which a text is moved to see how K turns
TOLERANCE = 5e-3          # of that check, and of the two ways to the same output
FLOAT32_VALUES = 1 << 24  # weights that are float32 at a time, if a matrix has more


# --- what attention sees --------------------------------------------------------------------------

class Tap:
    """Keeps K and V of every layer, and some of the queries, as attention gets them: after RoPE,
    before any repetition."""

    def __init__(self):
        self.rows = None

    def __call__(self, module, query, key, value, attention_mask, **arguments):
        if arguments.get("s_aux") is not None:
            raise Refusal("attention with learned sinks is not supported")
        if self.rows is not None:
            kept = query[0, :, self.queries].detach().clone()  # a view would keep all of them
            self.rows[module.layer_idx] = kept, key[0].detach(), value[0].detach()
        return sdpa_attention_forward(module, query, key, value, attention_mask, **arguments)

    def start(self, queries=slice(0, 1)):
        self.rows, self.queries = {}, queries

    def stop(self):
        rows, self.rows = self.rows, None
        return [rows[i] for i in sorted(rows)] if sorted(rows) == list(range(len(rows))) else []


TAP = Tap()


class GivenCache(DynamicCache):
    """K and V of a text, behind which others are read and none is kept: a layer that is
    computed again finds the same cache."""

    def __init__(self, leaves):
        super().__init__()
        for layer, (k, v) in enumerate(zip(leaves[::2], leaves[1::2])):
            super().update(k[None], v[None], layer)

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        k, v = self.layers[layer_idx].keys, self.layers[layer_idx].values
        return torch.cat([k, key_states], -2), torch.cat([v, value_states], -2)


def forward(model, ids, first=0, cache=None, **arguments):
    # the older name ends with transformers 5.40, the newer one came with 5.24
    renamed = "cache" in inspect.signature(model.forward).parameters
    arguments["cache" if renamed else "past_key_values"] = cache
    positions = torch.arange(first, first + ids.shape[1])[None]
    return model(input_ids=ids, position_ids=positions, **arguments)


# --- memory ---------------------------------------------------------------------------------------

class Product(torch.autograd.Function):
    """x W' + b in float32, W being bfloat16: W becomes float32 a part at a time, in both
    directions."""

    @staticmethod
    def parts(weight):
        rows = max(1, FLOAT32_VALUES // weight.shape[1])
        for i in range(0, weight.shape[0], rows):
            yield i, weight[i:i + rows].float()

    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(weight)
        out = x.new_empty(*x.shape[:-1], weight.shape[0])
        for i, part in Product.parts(weight):
            out[..., i:i + len(part)] = x @ part.T
        return out if bias is None else out.add_(bias)

    @staticmethod
    def backward(ctx, gradient):
        weight, = ctx.saved_tensors
        total = 0
        for i, part in Product.parts(weight):
            total = total + gradient[..., i:i + len(part)] @ part
        return total, None, None


def keep_bfloat16(model):
    """Lets a model that was loaded in bfloat16 compute in float32. Only the weights of
    products and embeddings, which are most of a model, stay bfloat16."""
    halves = set()
    for module in model.modules():
        if type(module).forward is torch.nn.Linear.forward:
            module.forward = functools.partial(
                lambda m, x: Product.apply(x, m.weight, m.bias), module)
            halves.add(id(module.weight))
        elif isinstance(module, torch.nn.Embedding):
            module.register_forward_hook(lambda m, given, out: out.float())
            halves.add(id(module.weight))
    for parameter in model.parameters():
        if id(parameter) not in halves:
            parameter.data = parameter.data.float()
    return model


def compute_layers_again(model):
    """Lets the backward pass compute each layer a second time, so that no more than one layer's
    intermediate results are in memory."""
    def again(run, *args, **kwargs):
        if not torch.is_grad_enabled():
            return run(*args, **kwargs)
        return checkpoint(run, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)

    for module in model.modules():
        if isinstance(module, GradientCheckpointingLayer):
            module.forward = functools.partial(again, module.forward)
    return model


# --- loading --------------------------------------------------------------------------------------

def source_of(path):
    if os.path.isdir(path):
        return {"pretrained_model_name_or_path": path, "local_files_only": True}
    directory, file = os.path.split(os.path.abspath(path))
    return {"pretrained_model_name_or_path": directory, "gguf_file": file, "local_files_only": True}


def load_tokenizer(path):
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    return AutoTokenizer.from_pretrained(**source_of(path))


def load_model(path, float32):
    AttentionInterface.register("kvc-profile", TAP)
    AttentionMaskInterface.register("kvc-profile", sdpa_mask)
    how = source_of(path)
    packed = getattr(quantization_config, "GgufConfig", None)
    if packed and "dequantize" in inspect.signature(packed).parameters and "gguf_file" in how:
        # products of packed weights have no gradient
        how["quantization_config"] = packed(dequantize=True)
    dtype = torch.float32 if float32 else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(**how, dtype=dtype,
                                                 attn_implementation="kvc-profile")
    model.eval().requires_grad_(False)
    return compute_layers_again(model if float32 else keep_bfloat16(model))


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
        raise Refusal(f"attention of {len(rows)} of {text.num_hidden_layers} layers was seen: the "
                      "model shares, lacks or hides attention in some")
    for layer, (q, k, v) in enumerate(rows):
        if [x.shape[0] for x in (q, k, v)] != [x.shape[0] for x in rows[0]] or \
                k.shape[0] != v.shape[0]:
            raise Refusal(f"layer {layer}: not as many heads as layer 0")
        if k.shape[2] != rows[0][1].shape[2] or v.shape[2] != rows[0][2].shape[2]:
            raise Refusal(f"layer {layer}: heads of another size than in layer 0")


# --- RoPE -----------------------------------------------------------------------------------------

def rotate(x, angles, positions, sign=1):
    """Rows of x [..., n, D] turned to their positions (sign -1: back to before RoPE)."""
    if angles is None:
        return x
    half = len(angles)
    turn = positions.double()[:, None] * angles * sign
    c, s = turn.cos().to(x.dtype), turn.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:2 * half]
    return torch.cat([a * c - b * s, b * c + a * s, x[..., 2 * half:]], -1)


def rope_candidates(model):
    """The different angles per position that the model's rotary embeddings have, and None for
    a layer without."""
    text = model.config.get_text_config()
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


def find_angles(model, ids):
    """Per layer the angles by which its K turns with the position. The outputs of attention
    depend on distances only, so moving a text turns K of every layer and changes nothing else:
    this tells angles, rotated channels and pairing. A factor on cosine and sine (yarn's) stays
    in K and in the queries, which is as well: they meet only each other."""
    candidates, seen = rope_candidates(model), []
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
