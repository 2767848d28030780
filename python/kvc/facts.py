"""Facts of a model that change its caches, from its weights and from its configuration as transformers and vLLM have it."""

from __future__ import annotations

import json
from typing import Any, Dict, Mapping, Optional

from .errors import Code, Error
from .file import Path, model_identity
from .keys import CHOICES


def config_of(model: Any) -> Any:
    """Returns the configuration of the text model, of a model or of a configuration."""
    config = getattr(model, "config", model)
    if not hasattr(config, "get_text_config"):
        return config
    try:
        return config.get_text_config(decoder=True)
    except ValueError as problem:  # it has several
        raise Error(Code.UNSUPPORTED, f"a {type(config).__name__} does not tell which text model is meant: {problem}") from None


def _told(config: Any, name: str) -> Any:
    """Returns an attribute of a configuration. None: there is none, or one for each layer, for which transformers raises a RuntimeError."""
    try:
        return getattr(config, name, None)
    except Exception:  # a fact is left out, whatever the reason
        return None


def rope_facts(pairing: Optional[str] = None) -> Dict[str, Any]:
    """Returns the facts of K after RoPE. Without a `pairing` it is assumed to be that of transformers and vLLM."""
    if pairing not in (None, *CHOICES["rope.pairing"]):
        raise Error(Code.USAGE, f"the pairing '{pairing}' is not known: {', '.join(CHOICES['rope.pairing'])} are")
    assumed = {} if pairing else {"rope.pairing-assumed": True}
    return {"rope.k": "post", "rope.pairing": pairing or "halves", **assumed}


# transformers rotates halves but in the first list, by model_type or the GGUF architecture, and nothing in the second. These are the lists
# of formats/cache/rope_names.c
_INTERLEAVED = ("chatglm", "codegen", "cohere", "cohere2", "cohere2_moe", "cohere2moe", "command-r", "ernie4_5", "ernie4_5-moe",
                "ernie4_5_moe", "ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "glm", "glm4", "glm4v", "glm4v_text", "glm_ocr", "glm_ocr_text",
                "gptj", "helium", "llama4", "llama4_text", "moonshine", "roformer")
_UNROTATED = ("arwkv7", "biogpt", "bloom", "ctrl", "glm5-next", "gpt2", "gpt_bigcode", "gpt_neo", "jais", "jamba", "kimi-k3", "kimi-linear",
              "mamba", "mamba2", "mpt", "nemotron_h", "nemotron_h_moe", "openai-gpt", "opt", "refact", "rwkv6", "rwkv6qwen2", "rwkv7",
              "starcoder", "xglm")


def pairing_of_architecture(name: Any) -> str:
    """Returns the pairing in which transformers keeps K of an architecture."""
    return "interleaved" if name in _INTERLEAVED else "none" if name in _UNROTATED else "halves"


def _is_latent(config: Any) -> bool:
    return isinstance(_told(config, "kv_lora_rank"), int)


def pairing_of(config: Any) -> str:
    """Returns the pairing in which transformers and vLLM keep K of a model. Of latent attention, transformers keeps latents as K since 5.19,
    which do not rotate; before, K of which only the last channels do, which no other engine has."""
    if _is_latent(config) or _told(config, "alibi") is True:
        return "none"
    return pairing_of_architecture(_told(config, "model_type"))


def _rotated(config: Any, rope: Mapping[str, Any]) -> Optional[int]:
    """Returns how many channels RoPE rotates. None: all of a head, or it is unknown."""
    kind = rope.get("rope_type", rope.get("type"))
    channels, part = _told(config, "rotary_dim"), rope.get("partial_rotary_factor", _told(config, "partial_rotary_factor"))
    if isinstance(channels, int):
        return channels
    head, hidden, heads = (_told(config, name) for name in ("head_dim", "hidden_size", "num_attention_heads"))
    if not isinstance(head, int) and isinstance(hidden, int) and isinstance(heads, int) and heads:
        head = hidden // heads
    if not isinstance(part, (int, float)) or not 0 < part < 1 or not isinstance(head, int) or kind not in (None, *CHOICES["rope.type"]):
        return None
    return int(head * part)


_SCALING = ("rope_type", "type", "factor", "original_max_position_embeddings", "mrope_section", "mrope_interleaved", "rope_theta",
            "partial_rotary_factor")


def _scaling(rope: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns what a configuration says of RoPE's scaling. What has no key of its own is one JSON object, as libkvc writes it."""
    kind = rope.get("rope_type", rope.get("type"))
    sections = rope.get("mrope_section")
    sections = tuple(sections) if isinstance(sections, (list, tuple)) and all(isinstance(n, int) for n in sections) else ()
    if sections and kind in (None, "default", "mrope"):
        kind = "imrope" if rope.get("mrope_interleaved") else "mrope"
    more = {key: value for key, value in rope.items() if key not in _SCALING}
    try:
        text = json.dumps(more, separators=(",", ":"), sort_keys=True) if more else ""
    except (TypeError, ValueError):  # values that config.json could not hold
        text = ""
    return {
        "rope.type": kind if kind in CHOICES["rope.type"] else None,
        "rope.factor": rope.get("factor"),
        "rope.original-context": rope.get("original_max_position_embeddings"),
        "rope.sections": sections,
        "rope.scaling": text,
    }


def facts_of(model: Any) -> Dict[str, Any]:
    """Returns what a model or its configuration tells of its caches, as metadata (kvc(5)). What differs between layers is left out."""
    config = config_of(model)
    rope = _told(config, "rope_parameters")
    rope = rope if isinstance(rope, Mapping) else {}
    scaling, latent, pairing = _scaling(rope), _is_latent(config), pairing_of(config)
    kinds = any(isinstance(value, Mapping) for value in rope.values())
    if kinds:
        rope = {}  # layers of several kinds: no one value is true for all
    facts = {
        "model.name": _told(config, "_name_or_path") or _told(getattr(model, "config", model), "_name_or_path"),
        "model.architecture": _told(config, "model_type"),
        "model.layers": _told(config, "num_hidden_layers"),
        "model.heads": _told(config, "num_attention_heads"),
        # the cache of latents has others
        "model.kv-heads": None if latent else _told(config, "num_key_value_heads"),
        "model.head-dim": None if latent else _told(config, "head_dim"),
        "rope.theta": rope.get("rope_theta"),
        "rope.dim": None if kinds or pairing == "none" else _rotated(config, rope),
        **scaling,
        **rope_facts(),
        "rope.pairing": pairing,
    }
    return {key: value for key, value in facts.items() if isinstance(value, (str, int, float, tuple)) and value not in ("", ())}


def fingerprint_of(weights: Path) -> Dict[str, str]:
    """Returns the fact that identifies a model by the files of its weights. Refuses files that give no fingerprint of the weights."""
    key, _, value = model_identity(weights).rpartition(":")
    if not key.startswith("model.fingerprint."):
        raise Error(Code.UNSUPPORTED, f"{weights} gives no fingerprint of the weights")
    return {key: value}
