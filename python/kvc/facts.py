"""Facts of a model that change its caches, from its weights and from its configuration as transformers and vLLM have it."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from .errors import Code, Error
from .file import Path, model_identity


def config_of(model: Any) -> Any:
    """Returns the configuration of the text model, of a model or of a configuration."""
    config = getattr(model, "config", model)
    return config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config


def facts_of(model: Any) -> Dict[str, Any]:
    """Returns what a model or its configuration tells of its caches, as metadata (kvc(5))."""
    config = config_of(model)
    rope = getattr(config, "rope_parameters", None) or {}
    if any(isinstance(value, Mapping) for value in rope.values()):
        rope = {}  # layers of several kinds: no one value is true for all
    facts = {
        "model.name": getattr(config, "_name_or_path", "") or getattr(getattr(model, "config", model), "_name_or_path", ""),
        "model.architecture": getattr(config, "model_type", None),
        "model.layers": getattr(config, "num_hidden_layers", None),
        "model.heads": getattr(config, "num_attention_heads", None),
        "model.kv-heads": getattr(config, "num_key_value_heads", None),
        "model.head-dim": getattr(config, "head_dim", None),
        "rope.theta": rope.get("rope_theta"),
        "rope.type": rope.get("rope_type") if rope.get("rope_type") in ("default", "linear", "yarn", "llama3", "longrope") else None,
        "rope.factor": rope.get("factor"),
        "rope.k": "post",
        "rope.pairing": "halves",
        "rope.pairing-assumed": True,
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def fingerprint_of(weights: Path) -> Dict[str, str]:
    """Returns the fact that identifies a model by the files of its weights. Refuses files that give no fingerprint of the weights."""
    key, _, value = model_identity(weights).rpartition(":")
    if not key.startswith("model.fingerprint."):
        raise Error(Code.UNSUPPORTED, f"{weights} gives no fingerprint of the weights")
    return {key: value}
