"""What vLLM tells of a model and of its caches: options, geometry, facts, and the namespaces that follow from them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .. import arrays
from ..arrays import Key
from ..errors import Code, Error
from ..facts import facts_of
from ..file import model_identity
from ..pack import open_arrays
from ..store import Namespace, Store
from . import vllm_pages
from .pages import dtype_of

_DEFAULTS: Dict[str, Any] = {"store": None, "recipe": None, "profile": None, "chunk": 0, "min_tokens": 0, "weights": None, "deadline": None,
                             "load_deadline": None, "key_file": None, "tenant_file": None, "memory": 4.0}


@dataclass(frozen=True)
class Options:
    """kv_connector_extra_config; VLLM.md has a table."""

    store: str
    recipe: Optional[str]
    profile: Optional[str]
    chunk: int
    min_tokens: int
    weights: Optional[str]
    deadline: Optional[float]
    load_deadline: Optional[float]
    key_file: Optional[str]
    tenant_file: Optional[str]
    memory: float  # GiB of caches that are read before their request is scheduled

    def open_store(self) -> Store:
        return Store(self.store, timeout=self.deadline, local_timeout=self.deadline, load_timeout=self.load_deadline,
                     key_file=self.key_file)


def options_of(vllm_config: Any) -> Options:
    given = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        raise Error(Code.USAGE, f"kv_connector_extra_config has unknown options: {', '.join(unknown)}; {', '.join(_DEFAULTS)} are known")
    if not given.get("store"):
        raise Error(Code.USAGE, 'kv_connector_extra_config lacks the tiers of the store, as in {"store": "dir:/var/cache/kvc"}')
    return Options(**{**_DEFAULTS, **given})


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
    if getattr(vllm_config.load_config, "load_format", None) == "dummy":
        raise Error(Code.UNSUPPORTED, "load_format=dummy is not supported: weights are random, and their caches would pass for the model's")
    if getattr(model, "is_encoder_decoder", False):
        raise Error(Code.UNSUPPORTED, "encoder-decoder models are not supported")


# --- geometry ---


@dataclass(frozen=True)
class Geometry:
    """The caches of one rank: its layers by number, the sizes of a block, and the layout of its values."""

    names: Tuple[str, ...]  # of layers, ascending by number
    layers: Tuple[int, ...]
    heads: int
    dim: int
    dtype: str
    block: int
    layout: str

    @property
    def page_bytes(self) -> int:
        """Bytes of a block in one layer."""
        return vllm_pages.page_bytes(self.heads, self.dim, self.block, self.dtype)

    @property
    def token_bytes(self) -> int:
        return len(self.layers) * self.page_bytes // self.block

    def views(self, buffer: Any, blocks: int) -> Dict[Key, Any]:
        """Returns K and V in a buffer [layers][blocks][page_bytes], of the layout vllm_pages.AXES."""
        size = len(self.layers) * blocks * self.page_bytes
        found = vllm_pages.views(memoryview(buffer).cast("B")[:size], len(self.layers), self.heads, self.dim, blocks * self.block,
                                 self.dtype, self.layout, page=self.block)
        if blocks == 1:  # one page has no axis of pages
            found = {key: array[None] for key, array in found.items()}
        return {(self.layers[i], role): array for (i, role), array in found.items()}


def layer_number(name: str) -> int:
    """Returns the number in a layer's name, as vLLM takes it: the first part between dots that is one."""
    for part in name.split("."):
        if re.fullmatch(r"\d+", part):
            return int(part)
    raise Error(Code.UNSUPPORTED, f"the layer '{name}' has no number")


def geometry_of(vllm_config: Any, kv_cache_config: Any) -> Geometry:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise Error(Code.UNSUPPORTED, f"the model has {len(groups)} groups of layers with caches of different kinds, which this connector "
                                      "does not support: use the secondary tier (VLLM.md)")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec" or getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None):
        raise Error(Code.UNSUPPORTED, f"layers of {type(spec).__name__} with a window or without full attention are not supported by this "
                                      "connector: use the secondary tier (VLLM.md)")
    if getattr(spec, "head_size_v", None) not in (None, spec.head_size):
        raise Error(Code.UNSUPPORTED, "heads of K and V of different sizes are not supported")
    numbers: List[Tuple[int, str]] = sorted((layer_number(name), name) for name in groups[0].layer_names)
    if len({number for number, _ in numbers}) != len(numbers):
        raise Error(Code.UNSUPPORTED, "two layers have the same number, as with a draft model, which is not supported")
    return Geometry(tuple(name for _, name in numbers), tuple(number for number, _ in numbers), spec.num_kv_heads, spec.head_size,
                    dtype_of(spec.dtype), spec.block_size, _cpu_layout(spec))


def _cpu_layout(spec: Any) -> str:
    """Returns the layout of a block. Nothing in the cache tells it: the instruction set of the attention kernels does."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa = _get_attn_isa(spec.dtype, spec.block_size, spec.head_size)
    if isa not in ("vec", "vec16"):
        raise Error(Code.UNSUPPORTED, f"vLLM's kernels for '{isa}' order K and V in a way that kvc does not know; those for vec and vec16 "
                                      "(AVX2, AVX-512) are supported")
    return isa


# --- facts and namespaces ---


def facts_of_vllm(vllm_config: Any, weights: Optional[str], rank: int) -> Dict[str, Any]:
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
    if parallel.tensor_parallel_size > 1:
        facts["shard"] = f"{rank}/{parallel.tensor_parallel_size}"
    return facts


def open_namespace(store: Store, options: Options, geometry: Geometry, facts: Dict[str, Any]) -> Namespace:
    """Opens the namespace of a rank's caches."""
    like = {(layer, role): arrays.empty((1, geometry.heads, geometry.dim), geometry.dtype) for layer in geometry.layers for role in "KV"}
    with open_arrays(like, facts=facts) as f:
        namespace = store.namespace(f, recipe=options.recipe, profile=options.profile, chunk=options.chunk, tenant_file=options.tenant_file)
    chunk = namespace.chunk
    if chunk % geometry.block:
        namespace.close()
        raise Error(Code.USAGE, f"chunks of {chunk} tokens are not whole blocks of {geometry.block}: set vLLM's block_size to a power of "
                                "two up to 256")
    return namespace
