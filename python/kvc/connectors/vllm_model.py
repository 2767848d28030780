"""What vLLM tells of a model and of its caches: options, geometry, facts, and the namespaces that follow from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Optional

from ..errors import Code, Error
from ..facts import facts_of
from ..file import Path, model_identity
from . import base, vllm_pages
from .base import Caches, Connection, Geometry
from .vllm_pages import Pages


@dataclass(frozen=True)
class Options(base.Options):
    """kv_connector_extra_config; VLLM.md has a table."""

    store: ClassVar[str] = "store"
    recipe: Optional[str] = None
    profile: Optional[str] = None
    chunk: int = 0
    min_tokens: int = 0
    memory: float = 4.0  # GiB of caches that are read before their request is scheduled


# --- what is refused ---


def refuse(vllm_config: Any) -> None:
    """Refuses what this connector does not support, by name, when the engine starts."""
    parallel, model = vllm_config.parallel_config, vllm_config.model_config
    device = getattr(vllm_config.device_config, "device_type", "cpu")
    if device != "cpu":
        raise Error(Code.UNSUPPORTED, f"the connector is for vLLM on CPUs, and the device is '{device}': use the secondary tier (VLLM.md)")
    for name in ("pipeline_parallel_size", "decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise Error(Code.UNSUPPORTED, f"{name} above 1 is not supported: tensor_parallel_size is")
    if vllm_config.cache_config.cache_dtype not in ("auto", "float16", "bfloat16", "float32"):
        raise Error(Code.UNSUPPORTED, f"a cache of type {vllm_config.cache_config.cache_dtype} is not supported by this connector: leave "
                                      "kv_cache_dtype at auto, or use the secondary tier (VLLM.md)")
    refuse_dummy(vllm_config)
    if getattr(model, "is_encoder_decoder", False):
        raise Error(Code.UNSUPPORTED, "encoder-decoder models are not supported")


def refuse_dummy(vllm_config: Any) -> None:
    if getattr(getattr(vllm_config, "load_config", None), "load_format", None) == "dummy":
        raise Error(Code.UNSUPPORTED, "load_format=dummy is not supported: weights are random, and their caches would pass for the model's")


# --- geometry ---


def pages_of(kv_cache_config: Any) -> Pages:
    """Returns the caches of a rank: its layers by number, and the layout of its blocks."""
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Error(Code.UNSUPPORTED, f"the model has {len(groups)} groups of layers with caches of different kinds, which this connector "
                                      "does not support: use the secondary tier (VLLM.md)")
    if getattr(groups[0], "is_eagle_group", False):  # rows of its layers depend on the token that follows
        raise Error(Code.UNSUPPORTED, "a draft model with layers of its own is not supported by this connector")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec" or getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None):
        raise Error(Code.UNSUPPORTED, f"layers of {type(spec).__name__} with a window or without full attention are not supported by this "
                                      "connector: use the secondary tier (VLLM.md)")
    if getattr(spec, "head_size_v", None) not in (None, spec.head_size):
        raise Error(Code.UNSUPPORTED, "heads of K and V of different sizes are not supported")
    layers = sorted(zip(vllm_pages.layer_numbers(groups[0].layer_names), groups[0].layer_names))
    if not layers:
        raise Error(Code.UNSUPPORTED, "a layer has no number, or two have the same one, as with a draft "
                                      "model, which is not supported")
    geometry = Geometry(len(layers), spec.num_kv_heads, spec.head_size, spec.dtype,
                        numbers=[number for number, _ in layers])
    layout = vllm_pages.cpu_layout(spec.dtype, spec.block_size, spec.head_size)
    return Pages([name for _, name in layers], geometry, spec.block_size, layout)


# --- facts and namespaces ---


def rope_source_of(vllm_config: Any) -> Optional[str]:
    """Returns a name for RoPE whose angles depend on a length: vLLM takes one of the two lists of longrope by its longest context
    (phi3_long_rope_scaled_rope.py), and works out dynamic once. None: the model's configuration tells the angles."""
    model = vllm_config.model_config
    kind = str(facts_of(getattr(model, "hf_text_config", None)).get("rope.type"))
    return {"longrope": f"vllm, context {getattr(model, 'max_model_len', 0)}", "dynamic": "vllm"}.get(kind)


def facts_of_vllm(vllm_config: Any, weights: Optional[Path], rank: int) -> Dict[str, Any]:
    """Returns the facts of a rank's caches. Without tensor parallelism they are those of kvc.Prefix with the same weights."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    facts = facts_of(model.hf_text_config)
    facts.pop("model.name", None)
    local = weights or (model.model if os.path.exists(model.model) else None)
    identity = model_identity(local) if local else f"{model.model}@{model.revision}"
    key, _, value = identity.rpartition(":")
    quantized = getattr(model, "quantization", None)
    if key.startswith("model.fingerprint.") and not quantized:
        facts[key] = value
    else:
        facts["model.name"] = f"{identity} {model.dtype} {quantized or ''}".strip()
    if source := rope_source_of(vllm_config):
        facts["rope.source"] = source
    if parallel.tensor_parallel_size > 1:
        facts.update({"shard.rank": rank, "shard.ranks": parallel.tensor_parallel_size})
    return facts


def open_caches(kvc: Connection, pages: Pages, facts: Dict[str, Any], chunk: int) -> Caches:
    """Opens the namespace of a rank's caches."""
    caches = Caches(kvc, pages.geometry, facts, layout=vllm_pages.AXES, chunk=chunk)
    tokens = caches.namespace.chunk
    if tokens % pages.page:
        caches.namespace.close()
        raise Error(Code.USAGE, f"chunks of {tokens} tokens are not whole blocks of {pages.page}: set vLLM's block_size to a power of "
                                "two up to 256")
    return caches
