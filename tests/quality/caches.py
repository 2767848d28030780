"""caches.py: cache files in and out, and kvc's tools. What is no safetensors file of transformers' layout goes through
kvc-unpack; the bytes of safetensors are read here, so that the exact cache is not seen through the code that is judged.
"""

import json
import os
import struct
import subprocess

import numpy as np

from model import Cache


class Tools:
    """kvc's tools in a folder."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, tool, *arguments, ok=(0,)):
        """Standard output; ValueError with the tool's own words when its exit status is not in ok."""
        done = subprocess.run([os.path.join(self.folder, tool), *arguments], capture_output=True, text=True)
        if done.returncode not in ok:
            raise ValueError(done.stderr.strip() or f"{tool}: exit status {done.returncode}")
        return done.stdout

    def pack(self, recipe, source, target, model, queries=None):
        """kvc-pack's report."""
        how = [f"--model={model.path}"] + ([f"--queries={queries}"] if queries else [])
        return json.loads(self.run("kvc-pack", "--json", "-q", "-f", "-r", recipe, *how, "-o", target, source))["files"][0]

    def kv_bytes(self, packed):
        """What the records of K and V take in a .kvc."""
        layers = json.loads(self.run("kvc-dump", "--layers", "--json", packed))["files"][0]["layers"]
        return sum(layer["stored"] for layer in layers if layer["roles"] == "K,V")

    def attention(self, exact, decoded, model, queries=None):
        """kvc-diff's measures of what attention makes of the differences."""
        how = [f"--queries={queries}" if queries else "--attention", f"--model={model.path}", "--json"]
        return json.loads(self.run("kvc-diff", *how, exact, decoded, ok=(0, 1)))["attention_total"]


# --- safetensors ---

def bf16_to_f32(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def f32_to_bf16(x):
    """Rounded to nearest, ties to even; finite values only."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4"}


def read_header(path):
    """The header of a safetensors file or a profile, a dict, and where the tensors' bytes begin."""
    with open(path, "rb") as f:
        size = int.from_bytes(f.read(8), "little")
        if size > os.path.getsize(path):
            raise ValueError(f"{path}: no safetensors file: its header is longer than the file")
        return json.loads(f.read(size)), 8 + size


def read_safetensors(path):
    """name -> array; bf16 becomes float32. Tensors of other types are left out."""
    data = np.memmap(path, np.uint8, "r")
    header, start = read_header(path)
    arrays = {}
    for name, t in header.items():
        if name == "__metadata__" or t["dtype"] not in DTYPES:
            continue
        begin, end = (start + offset for offset in t["data_offsets"])
        array = np.frombuffer(data[begin:end].tobytes(), DTYPES[t["dtype"]]).reshape(t["shape"])
        arrays[name] = bf16_to_f32(array) if t["dtype"] == "BF16" else array
    return arrays


def write_safetensors(path, arrays, metadata, f16=False):
    """arrays: name -> array of float32, stored as bf16, or with f16 as that, or int32."""
    floats = (lambda x: ("F16", x)) if f16 else (lambda x: ("BF16", f32_to_bf16(x)))
    header, body = {"__metadata__": metadata}, []
    at = 0
    for name, array in arrays.items():
        dtype, array = ("I32", array) if array.dtype == np.int32 else floats(array)
        body.append(array.astype(DTYPES[dtype]).tobytes())
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [at, at + len(body[-1])]}
        at += len(body[-1])
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(body))


# --- caches ---

class CacheFile:
    """A cache file as the model takes it. tokens and continuation are None where the file has none."""

    def __init__(self, path, model, tools, scratch):
        self.path = path
        arrays = self.read(path, model, tools, scratch)
        try:
            self.cache = Cache(*([arrays[f"layers.{i}.{name}"][0].astype(np.float32) for i in range(model.n_layers)]
                                 for name in ("keys", "values")))
        except KeyError as missing:
            raise ValueError(f"{path}: no {missing.args[0]}: not a cache of {model.path}") from None
        self.n_tokens = self.cache.keys[0].shape[1]
        shape = (model.n_kv_heads, self.n_tokens, model.head_dim)
        if f"layers.{model.n_layers}.keys" in arrays or any(x.shape != shape for both in self.cache for x in both):
            raise ValueError(f"{path}: layers or shapes differ from those of {model.path}")
        if not np.array_equal(arrays.get("positions", np.arange(self.n_tokens)).ravel(), np.arange(self.n_tokens)):
            raise ValueError(f"{path}: positions are not 0, 1, 2 and so on: no continuation can be run")
        if not all(np.isfinite(x).all() for both in self.cache for x in both):
            raise ValueError(f"{path}: NaN or infinity in K or V: no model can be run from it")
        self.tokens, self.continuation = arrays.get("tokens"), arrays.get("continuation")
        n_vocabulary = len(model.embedding)
        if any(t is not None and np.any((t < 0) | (t >= n_vocabulary)) for t in (self.tokens, self.continuation)):
            raise ValueError(f"{path}: token ids that {model.path} does not have")
        self.has_queries = "queries.0" in arrays

    @staticmethod
    def read(path, model, tools, scratch):
        if path.endswith(".safetensors"):
            arrays = read_safetensors(path)
            if "layers.0.keys" in arrays:
                return arrays
        converted = os.path.join(scratch, "converted.safetensors")
        tools.run("kvc-unpack", "-q", "-f", f"--model={model.path}", "--to", "safetensors", "-o", converted, path)
        return read_safetensors(converted)


def write_made_cache(path, model, tokens, continuation=None, context=None, f16=False):
    """The model's own cache of tokens, K and V and the last 64 queries rounded to bf16 or f16, in transformers' layout."""
    cache, queries = model.prefill(tokens)
    write_cache(path, model, cache, tokens, queries, continuation, context, f16)
    return cache


def write_cache(path, model, cache, tokens, queries=(), continuation=None, context=None, f16=False):
    """A cache that model computed from tokens, and by layer the queries of its last tokens; the rest as above."""
    arrays = {"tokens": np.asarray(tokens, np.int32)}
    if continuation is not None:
        arrays["continuation"] = np.asarray(continuation, np.int32)
    for i in range(model.n_layers):
        arrays[f"layers.{i}.keys"], arrays[f"layers.{i}.values"] = cache.keys[i][None], cache.values[i][None]
    for i, q in enumerate(queries):
        arrays[f"queries.{i}"] = q[None]
    facts = {"n_layers": model.n_layers, "n_heads": model.n_heads, "n_kv_heads": model.n_kv_heads,
             "head_dim": model.head_dim, "k_rope": "post", "rope_pairing": "half", "rope_type": "default",
             "rope_dim": model.head_dim, "rope_theta": model.theta, "dtype": "float16" if f16 else "bfloat16",
             "model": f"{model.field('general.name')} ({os.path.basename(model.path)} dequantised to float32)"}
    if context:
        facts["context"] = context
    write_safetensors(path, arrays, {name: str(fact) for name, fact in facts.items()}, f16)
