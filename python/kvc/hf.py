"""Caches of transformers: save() and load() of a DynamicCache, and Prefix, a store of prefixes around generate(). Needs torch."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import transformers
from transformers import PretrainedConfig, cache_utils

from . import arrays, checks, devices, file
from ._lib import ranges
from .arrays import Key, Plane
from .errors import Code, Error, kind_of
from .facts import config_of, facts_of, fingerprint_of, pairing_of, pairing_of_architecture, rope_facts
from .file import File
from .handle import Unique
from .options import OpenOptions, PackOptions, Path, Unpack, check_names
from .pack import open_planes
from .store import Extra, Hit, Namespace, Store


def check_version(version: str = transformers.__version__) -> None:
    """Refuses a transformers whose caches, and what tells of RoPE, are others. Saving takes caches of 4.54 and later, which have layers."""
    if int(version.split(".")[0]) < 5:
        raise Error(Code.UNSUPPORTED, f"transformers {version} is not supported: 5.0 and later are. kvc.pack() takes a (K, V) for each layer "
                                      "of any, as to_legacy_cache() returns them, and kvc.open(path).arrays(torch=True) returns them")


_WINDOWS = "x-transformers.windows"  # metadata key: the window of each layer in tokens; 0: full attention, -1: no cache


# --- identity of a model ---


_PRIMES = 0x9E3779B97F4A7C15 - 2**64, 0xC2B2AE3D27D4EB4F - 2**64  # odd, as signed integers


def _sums(tensor: Any) -> List[int]:
    """Returns two sums over all bits of a tensor, modulo 2^64, that other values or another order change; made where the tensor is."""
    bits = tensor.detach().reshape(-1).contiguous().view(torch.uint8)
    if bits.storage_offset() % 8 or bits.numel() % 8:
        bits = torch.nn.functional.pad(bits, (0, -bits.numel() % 8)).clone()
    sums, at = [bits.numel(), 0], 0
    for words in bits.view(torch.int64).split(1 << 22):
        place = torch.arange(2 * at + 1, 2 * (at + len(words)) + 1, 2, device=words.device)
        for i, prime in enumerate(_PRIMES):
            mixed = words * prime
            sums[i] += int(((mixed ^ (mixed >> 29)) * (place * prime)).sum())
        at += len(words)
    return [x % 2**64 for x in sums]


# what a configuration says that changes no K and V
_IDLE = {"_name_or_path", "architectures", "attn_implementation", "_attn_implementation", "bos_token_id", "chunk_size_feed_forward", "dtype",
         "eos_token_id", "finetuning_task", "id2label", "initializer_range", "label2id", "output_attentions", "output_hidden_states",
         "pad_token_id", "problem_type", "return_dict", "torch_dtype", "transformers_version", "use_cache"}
_ADAPTER = ("_active_adapter", "_disable_adapters", "merged_adapters", "scaling")  # attributes of peft's layers


def _plain(value: Any) -> Any:
    """Returns a value of a configuration without what changes no K and V."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items() if key not in _IDLE}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return sorted(map(str, value)) if isinstance(value, (set, frozenset)) else value


def _adapters(model: Any) -> List[Any]:
    """Returns which adapters are in use, and how strongly: parameters do not tell."""
    return [[name, {key: _plain(own[key]) for key in _ADAPTER if key in own}]
            for name, own in ((name, vars(module)) for name, module in model.named_modules()) if "_active_adapter" in own]


def _digest(model: Any) -> str:
    """Returns a digest of all parameters and buffers, as they are in memory, of the configuration, and of the adapters in use.

    Buffers of RoPE whose angles depend on a length are of the last prompt; "rope.source" tells which are equal."""
    about = json.dumps([type(model).__name__, _plain(model.config.to_dict()), _adapters(model)], sort_keys=True, default=str)
    by_length = '"dynamic"' in about or '"longrope"' in about
    h = hashlib.sha256(about.encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if by_length and name.endswith("inv_freq"):
            continue
        if tensor.device.type == "meta":
            raise Error(Code.UNSUPPORTED, f"parameter {name} is not in memory; name the model's files with weights=")
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {_sums(tensor)}".encode())
    return h.hexdigest()


def _config(model: Any) -> Any:
    """Returns the configuration of the text model, of a model or of a configuration. Refuses what is neither."""
    if not hasattr(model, "config") and not isinstance(model, PretrainedConfig):
        name = f": AutoConfig.from_pretrained({model!r}) makes one of its name" if isinstance(model, str) else ""
        raise TypeError(f"a model of transformers or its configuration is asked for, not {kind_of(model)}{name}")
    return config_of(model)


# --- a DynamicCache as planes ---


def _cache_argument(model: Any) -> str:
    """Returns what a model calls its cache: from transformers 5.24 on "cache"; the older name warns, and ends with 5.40."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _window(i: int, layer: Any) -> int:
    """Returns the window of a layer, 0 for full attention, -1 for no cache. Refuses other classes by name."""
    kind = type(layer).__name__
    if kind == "DummyLayer":
        return -1
    if type(layer) is cache_utils.DynamicLayer:
        return 0
    if type(layer) is cache_utils.DynamicSlidingWindowLayer:
        if layer.sliding_window < 2:
            raise Error(Code.UNSUPPORTED, f"layer {i} of the cache has a window of fewer than 2 tokens, which is not supported: "
                                          "transformers keeps all tokens then, and does not say which of them count")
        return int(layer.sliding_window)
    raise Error(Code.UNSUPPORTED, f"layer {i} of the cache is a {kind}, which is not supported: DynamicLayer and "
                                  "DynamicSlidingWindowLayer are")


def _windows(cache: Any) -> List[int]:
    if type(cache) is not cache_utils.DynamicCache or cache.offloading:
        what = "a DynamicCache that is offloaded" if type(cache) is cache_utils.DynamicCache else f"a {type(cache).__name__}"
        raise Error(Code.UNSUPPORTED, f"the cache is {what}, which is not supported: a DynamicCache is")
    return [_window(i, layer) for i, layer in enumerate(cache.layers)]


def _layers_of(cache: Any) -> List[Tuple[Any, int]]:
    windows = _windows(cache)
    return list(zip(cache.layers, windows))


def _length(cache: Any) -> int:
    return max((layer.get_seq_length() for layer, window in _layers_of(cache) if window >= 0), default=0)


def _filled(cache: Any) -> Dict[int, Any]:
    """Returns the layers that have K and V, by number: a layer that uses the K and V of another one has none."""
    return {i: layer for i, (layer, window) in enumerate(_layers_of(cache)) if window >= 0 and layer.is_initialized and layer.keys.numel()}


def _planes(cache: Any) -> Dict[Key, Plane]:
    """Returns K and V of all layers. Nothing is copied but a cache on a device, to the CPU."""
    return {(i, role): arrays.describe(tensor.detach(), "BHTD") for i, layer in _filled(cache).items()
            for role, tensor in (("K", layer.keys), ("V", layer.values))}


def _facts(cache: Any, facts: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    windows = _windows(cache)
    sizes = {w for w in windows if w > 0}
    own: Dict[str, Any] = {**rope_facts(), _WINDOWS: ",".join(map(str, windows))}
    if len(sizes) == 1:
        own["sliding.window"] = sizes.pop()
    return {**own, **(facts or {})}


def open_cache(cache: Any, *, tokens: Any = None, first: int = 0, facts: Optional[Mapping[str, Any]] = None) -> File:
    """Returns a handle of a DynamicCache, for kvc.open_arrays()."""
    if not hasattr(cache, "layers"):
        check_version()
    ids = None if tokens is None else arrays.token_ids(tokens)
    planes, length, windows = _planes(cache), _length(cache), _windows(cache)
    checks.check_rows(planes, length, lambda layer: windows[layer])
    checks.check_ids(planes, length, ids, "BHTD")
    return open_planes(planes, tokens=length, first=first, ids=ids, facts=_facts(cache, facts))


def save(cache: Any, path: Path, tokens: Any = None, *, model: Any = None, facts: Optional[Mapping[str, Any]] = None,
         **options: Unpack[PackOptions]) -> int:
    """Saves a DynamicCache as a .kvc, and returns its bytes.

    `tokens` are the token ids, which may be one more than the cache has; `model`, a model or its configuration, adds its name, geometry and
    RoPE. Options are those of pack(): recipe, profile and so on.
    """
    check_names("save", options, PackOptions, ("tokens", "model", "facts"))
    if model is not None:
        _config(model)  # refuses what is none
    known = {} if model is None else facts_of(model)
    with open_cache(cache, tokens=tokens, facts={**known, **(facts or {})}) as f:
        return f.pack(path, **options)


def _fill(layer: Any, window: int, keys: torch.Tensor, values: torch.Tensor, length: int) -> None:
    """Gives a new layer K and V [tokens, heads, channels] of the last tokens of a cache of `length` tokens. Nothing is copied."""
    keys, values = (t.transpose(0, 1).unsqueeze(0) for t in (keys, values))
    layer.lazy_initialization(keys, values)
    if window > 0:
        layer.cumulative_length = length
        if not getattr(layer, "record_past", False):
            kept = min(length, window - 1)
            keys, values = (t[:, :, t.shape[2] - kept:] for t in (keys, values))
    layer.keys, layer.values = keys, values


def _layers(windows: Sequence[int]) -> List[Any]:
    kinds: Any = cache_utils
    return [kinds.DummyLayer() if w < 0 else kinds.DynamicSlidingWindowLayer(sliding_window=w) if w else kinds.DynamicLayer()
            for w in windows]


def _new_cache(windows: Sequence[int]) -> cache_utils.DynamicCache:
    cache: cache_utils.DynamicCache = cache_utils.DynamicCache()
    cache.layers = _layers(windows)
    if windows:
        cache.layer_class_to_replicate = None
    return cache


def load(path: Any, device: Any = "cpu", *, end: Optional[int] = None, dtype: Any = None, config: Any = None, threads: int = 0,
         **options: Unpack[OpenOptions]) -> cache_utils.DynamicCache:
    """Loads a cache file of any format as a DynamicCache on a device ("cpu", "cuda", "cuda:1"), of positions [0, end).

    A CUDA device decodes the file if it can, else the CPU does and torch copies: `kvc.cuda.stats` counts both.

    generate(ids, past_key_values=cache) computes the tokens that the cache lacks, of which there must be one. Layers are those that
    save() wrote, else those of `config`, a model or its configuration, else of full attention. Values of another type are rounded to
    `dtype`. Options are those of open(): profile, model, format, kv_heads, pairing. Fewer tokens of a cache with sliding windows cannot
    be had: Code.NOT_SLICEABLE. A file that lacks layers, begins after position 0, or has fewer rows than token ids, as a pruned cache
    without positions has, is refused: File.arrays() reads it.
    """
    check_version()
    check_names("load", options, OpenOptions, ("device", "end", "dtype", "config", "threads"))
    devices.place.find(device)  # refuses those that are not there
    rounded = arrays.dtype_of(dtype)
    with file.open(path, **options) as f:
        rotated = any(f.meta.get(key, "0") != "0" for key in ("hadamard.k", "hadamard.v"))
        if rotated and not any(t.dtype in arrays.BLOCKS for t in f.tensors):  # those are rotated back as they are rounded to `dtype`
            raise Error(Code.UNSUPPORTED, "the file has Hadamard-rotated values, which transformers does not read")
        whole = [t for t in f.tensors if t.role in "KV" and t.dtype in ("i8", "u8")]
        if whole and rounded is None:
            raise Error(Code.UNSUPPORTED, f"layer {whole[0].layer} {whole[0].role} is {whole[0].dtype}, numbers that a model does not "
                                          "compute with: dtype= asks for their values, which are these numbers times the file's scales")
        ids, stop = f.tokens, f.range()[1]
        if ids is not None and f.range()[0] == 0 and len(ids) > stop + 1:
            raise Error(Code.USAGE, f"{stop} rows beside {len(ids)} token ids: which tokens the rows are of is unknown. "
                                    "File.arrays() reads them")
        if f.meta.get(_WINDOWS):
            windows = [int(w) for w in f.meta[_WINDOWS].split(",")]
        elif config is not None:
            windows = _windows(cache_utils.DynamicCache(config=_config(config)))
        elif any(t.part == "window" for t in f.tensors):
            raise Error(Code.USAGE, "the file has layers with a sliding window; name the model's configuration with config=")
        else:
            windows = [0] * (1 + max((t.layer for t in f.tensors if t.role in "KV"), default=-1))
        pairing = _pairing(f, config)
        cache = _new_cache(windows)
        _take(f, cache, windows, end=end, dtype=rounded, pairing=pairing, threads=threads, device=device)
        return cache


def _pairing(f: File, config: Any) -> Optional[str]:
    """Returns the pairing that a model needs. None: that of the file, as of those that save() wrote."""
    if _WINDOWS in f.meta or f.meta.get("rope.pairing") == "none":
        return None
    pairing = pairing_of_architecture(f.meta.get("model.architecture")) if config is None else pairing_of(_config(config))
    return None if pairing == "none" else pairing


def _take(f: File, cache: Any, windows: Sequence[int], *, end: Optional[int] = None, **options: Any) -> int:
    """Decodes a file into the layers of a new cache, positions [0, end). Returns the number of its tokens."""
    _check_layers(f, windows)
    length = f.range()[1] if end is None else end
    found = f.arrays(torch=True, first=0, end=length, **options)
    for i in {layer for layer, _ in found}:
        held = found[i, "K"].shape[0]
        if held < min(length, windows[i] - 1 if windows[i] else length):
            raise Error(Code.NOT_SLICEABLE, f"layer {i} has the last {held} of {length} tokens only, which are too few for it")
        _fill(cache.layers[i], windows[i], found[i, "K"], found[i, "V"], length)
    return length


def _check_layers(f: File, windows: Sequence[int]) -> None:
    """Refuses a file that has not all layers of a model, or others, or not the first tokens: a model cannot go on from it."""
    layers, due = {layer for layer, role in f.keys() if role in "KV"}, {i for i, window in enumerate(windows) if window >= 0}
    other = "File.arrays() reads what is there"
    if not layers:
        raise Error(Code.UNSUPPORTED, f"the file has no K and V of tokens; {other}")
    if layers - due:
        raise Error(Code.OTHER_MODEL, f"the file has the layers {ranges(layers)}, and the model {ranges(due) or 'none'}; {other}")
    if due - layers:
        raise Error(Code.UNSUPPORTED, f"the file has the layers {ranges(layers)} only, and a model needs {ranges(due)} (config= tells "
                                      f"which layers of a model have a cache); {other}")
    missing = [f"{role} of layer {i}" for i in sorted(layers) for role in "KV" if (i, role) not in f]
    if missing:
        raise Error(Code.UNSUPPORTED, f"the file has no {missing[0]}, which a model needs; {other}")
    live = [t for t in f.tensors if t.part == "live" and t.rows]
    first = min((f.position(t.index, 0) for t in live), default=0)
    if first:
        raise Error(Code.UNSUPPORTED, f"the file begins at position {first}, and a model goes on from all tokens before; {other}")


# --- prefixes ---


class Prefix(Unique):
    """The prefixes of prompts of one model, in a store.

        with kvc.Store("dir:/var/cache/kvc") as store:
            prefix = kvc.Prefix(store, model)
            out = model.generate(ids, past_key_values=prefix.get(ids), return_dict_in_generate=True)
            prefix.put(out.past_key_values, out.sequences)

    The model is told apart by a digest of its parameters in memory, its configuration and the adapters in use, or by its `weights` file or
    folder, as all programs of kvc do. Make a new Prefix after a change of weights or adapters. `recipe`, `profile`, `chunk` and
    `tenant_file` are those of Store.namespace(), where `weights` also serve to learn a profile.

    Layers with a sliding window keep all tokens in memory while the cache of get() is used, so that prompts which begin alike share chunks.
    Without `keep_windows` they keep their window, and a cache longer than that is stored as a whole: for prompts that go on from its end.

    `loaded` are the tokens that get() returned last, `hit` is what it found in chunks, with the figures. Caches are on the device of the
    model: on CUDA devices those decode, or the CPU does and torch copies; `decoded` tells ("cuda:0", or "cpu: " and why).
    """

    _again = "make another with kvc.Prefix(store, model)"

    def __init__(self, store: Store, model: Any, *, weights: Optional[Path] = None, recipe: Optional[str] = None,
                 profile: Optional[Path] = None, chunk: int = 0, tenant_file: Optional[Path] = None, keep_windows: bool = True,
                 facts: Optional[Mapping[str, Any]] = None) -> None:
        if not isinstance(store, Store):
            made = f"kvc.Store({store!r})" if isinstance(store, str) else "kvc.Store('dir:FOLDER')"
            raise TypeError(f"kvc.Prefix takes a kvc.Store first, and not {kind_of(store)}: kvc.Prefix({made}, model)")
        if not hasattr(model, "named_parameters") or not hasattr(model, "config"):
            raise TypeError(f"kvc.Prefix needs a model of transformers, with its parameters, and not {kind_of(model)}")
        check_version()
        self.model = model
        # before 5.15 transformers has no layers that do
        self.keep_windows = keep_windows and hasattr(cache_utils.DynamicSlidingWindowLayer, "activate_past_recording")
        self._hit: Optional[Hit] = None
        self.loaded, self.decoded = 0, ""
        self._facts = {**facts_of(model), **self._identity(model, weights), **(facts or {})}
        cache = self._probe()
        self._windows = _windows(cache)
        self._shapes = {key: (p.dtype, p.heads, p.dim) for key, p in _planes(cache).items()}
        self._device = self._only_device(cache)
        self._facts = _facts(cache, self._facts)
        options: Dict[str, Any] = dict(recipe=recipe, profile=profile, chunk=chunk, tenant_file=tenant_file, model=weights)
        self.namespace: Namespace = self._open_namespace(store, 2, options)
        self.whole: Optional[Namespace] = None  # of caches in which layers have a window's tokens only
        if any(w > 0 for w in self._windows):
            self.whole = self._open_namespace(store, 1, options)

    def __repr__(self) -> str:
        chunk = "closed" if self.namespace.closed else f"chunks of {self.namespace.chunk} tokens"
        return f"<kvc.Prefix {type(self.model).__name__}, {chunk}, {self.loaded} tokens loaded>"

    @property
    def hit(self) -> Hit:
        """What get() found last in chunks."""
        if self._hit is None:
            raise Error(Code.USAGE, "nothing was found yet: get() looks for a prompt")
        return self._hit

    @staticmethod
    def _identity(model: Any, weights: Optional[Path]) -> Dict[str, str]:
        if weights is None:
            return {"model.name": f"{type(model).__name__} {_digest(model)}"}
        # files of weights do not tell adapters
        return {**fingerprint_of(weights), **({"model.adapters": _digest(model)} if _adapters(model) else {})}

    @staticmethod
    def _only_device(cache: Any) -> Optional[int]:
        """Returns the number of the CUDA device that all layers are on; None: the CPU."""
        layers = _filled(cache).values()
        found = {layer.keys.device for layer in layers}
        if len(found) > 1 or any(device.type not in ("cpu", "cuda") for device in found):
            names = ", ".join(sorted(map(str, found)))
            raise Error(Code.UNSUPPORTED, f"the model's caches are on {names}, which is not supported: the CPU or one CUDA device is")
        return next((devices.place.number(layer.keys) for layer in layers), None)

    def _probe(self) -> Any:
        """Computes one token, to see the layers, types and shapes that the model's cache has."""
        cache, name = cache_utils.DynamicCache(config=_config(self.model)), type(self.model).__name__
        if getattr(self.model.config, "is_encoder_decoder", False):
            raise Error(Code.UNSUPPORTED, f"{name} has an encoder, whose input its cache depends on, which is not supported")
        try:
            with torch.no_grad():
                self.model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=self.model.device), use_cache=True,
                           **{_cache_argument(self.model): cache})
        except ValueError as problem:  # it asks for a cache of its own
            raise Error(Code.UNSUPPORTED, f"{name} does not compute with a DynamicCache: {problem}") from problem
        n = _length(cache)
        if n != 1:  # as of prompt tuning
            raise Error(Code.UNSUPPORTED, f"the model's cache has {n} tokens after one was computed: which are those of a prompt is unknown"
                        if n else f"{name} keeps no K and V in a DynamicCache, and other caches are not supported")
        return cache

    def _open_namespace(self, store: Store, held: int, options: Mapping[str, Any]) -> Namespace:
        """Opens the namespace of caches of this model, of which layers with a window hold so many of 2 tokens."""
        like = {key: arrays.describe(arrays.empty((held if self._windows[key[0]] else 2, heads, dim), dtype))
                for key, (dtype, heads, dim) in self._shapes.items()}
        with open_planes(like, tokens=2, facts=self._facts) as f:
            return store.namespace(f, **options)

    def get(self, ids: Any, *, extras: Sequence[Extra] = ()) -> cache_utils.DynamicCache:
        """Returns a DynamicCache with the longest prefix of `ids` that the store has: empty if there is none, and never all of them.

        `extras` tell prompts apart whose tokens are equal, by hashes of images and the like: (position, 1, bytes).
        """
        tokens = arrays.token_ids(ids)[:-1]  # the last one must be computed
        cache = _new_cache(self._windows)
        layers: List[Any] = cache.layers
        for layer, window in zip(layers, self._windows):
            if window > 0 and self.keep_windows:
                layer.activate_past_recording()
        self.loaded, self.decoded = 0, ""
        self._hit = self.namespace.find(tokens, extras=extras)
        whole = self.whole.get_whole(tokens, extras=extras) if self.whole is not None else None
        if whole is not None:
            with whole:
                if whole.tokens is not None and len(whole.tokens) > self._hit.tokens:
                    self.loaded = _take(whole, cache, self._windows, device=self._device)
                    self.decoded = whole.decoded
                    return cache
        if self._hit.tokens:
            into = {key: arrays.empty((self._hit.tokens, heads, dim), dtype, True, self._device)
                    for key, (dtype, heads, dim) in self._shapes.items()}
            self.loaded = self._hit.load(into)
            self.decoded = self._hit.decoded
            for i in {layer for layer, _ in into} if self.loaded else ():
                _fill(cache.layers[i], self._windows[i], into[i, "K"][:self.loaded], into[i, "V"][:self.loaded], self.loaded)
        return cache

    def put(self, cache: Any, ids: Any, *, wait: bool = False, seconds: int = 0, pin: bool = False,
            extras: Sequence[Extra] = ()) -> int:
        """Puts the whole chunks of a cache, of which `ids` are the tokens or the first ones. Returns how many tokens these are.

        The cache may be used further. Without `wait` the store works in the background; Store.close() waits for it.
        """
        tokens, length = arrays.token_ids(ids), _length(cache)
        if _windows(cache) != self._windows:
            raise Error(Code.OTHER_MODEL, "the cache has other layers than the model")
        planes, namespace, n = _planes(cache), self.namespace, min(length, tokens.size)
        if any(p.tokens < length for p in planes.values()):
            if n < length:
                raise Error(Code.NOT_SLICEABLE, f"the cache has {length} tokens, ids names {n}, and layers with a window have the "
                                                "last ones only")
            namespace = self.whole or namespace
        else:
            n = n // namespace.chunk * namespace.chunk
            planes = {key: replace(p, tokens=n) for key, p in planes.items()}
        if not n:
            return 0
        with open_planes(planes, tokens=n, ids=tokens[:n].copy(), facts=self._facts) as f:
            return n if namespace.put(f, wait=wait, seconds=seconds, pin=pin, extras=extras) else 0

    def close(self) -> None:
        """Closes the namespaces; the store stays open."""
        for namespace in (self.namespace, self.whole):
            if namespace is not None:
                namespace.close()

    def __enter__(self) -> "Prefix":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
