"""make_refused.py: writes files that kvc refuses into the current folder, and prints for each its name and the options that kvc-pack gets.
formats/engines/REFUSED.md says what people do with them."""
import json
import os
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "fuzz"))
import make_corpus as corpus
from make_corpus import Tensor, npz, safetensors, torch_file

DATA = bytes(range(64)) * 64
MADE = []


def put(name, data, options=""):
    if "/" in name:
        os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as f:
        f.write(data)
    MADE.append((name, options))


def arrays(shape, kind="F16", size=2, names=("layers.0.keys", "layers.0.values")):
    count = 1
    for n in shape:
        count *= n
    return [(name, kind, list(shape), DATA[:count * size]) for name in names]


def slot(version, kinds=(1, 1), layers=1, tokens=4):
    out = struct.pack("<3I", 0x67677371, version, tokens) + struct.pack(f"<{tokens}i", *range(tokens)) + struct.pack("<2I", 1, tokens)
    out += b"".join(struct.pack("<iIi", i, 1, 0) for i in range(tokens)) + struct.pack("<4I", 0, layers, 0, 0)
    for kind in kinds:
        out += (struct.pack("<iQ", kind, 64) + DATA[:64 * tokens]) * layers
    return out


def half(key, stride, count):
    return Tensor(key, "HalfStorage", (1, 2, 4, 8), stride, count=count)


# llama.cpp
put("newer.slot", slot(5))
put("fork.slot", slot(4, kinds=(133, 133)))
put("mla.slot", slot(4, kinds=(1,)))
# arrays
put("batch.safetensors", safetensors(arrays((2, 2, 4, 8))))
put("double.safetensors", safetensors(arrays((1, 2, 4, 8), "F64", 8)))
put("weights.safetensors", safetensors(arrays((8, 8), names=("model.layers.0.self_attn.k_proj.weight", "model.layers.0.mlp.up_proj.weight"))))
put("flat.safetensors", safetensors(arrays((4, 16))))
put("latent.safetensors", safetensors(arrays((1, 1, 4, 8), names=("layers.0.keys",))))
put("names.npz", npz([(name, "<f2", (1, 2, 4, 8), DATA[:128]) for name in ("attention_a", "attention_b")]))
# mlx-lm
for name in ("QuantizedKVCache", "ChunkedKVCache", "BatchKVCache", "ArraysCache"):
    put(name + ".safetensors", safetensors([(f"0.{k}", "F16", [1, 2, 4, 8], DATA[:128]) for k in (0, 1)], {"1.0": name, "2.0": ""}))
# PyTorch
cache = corpus.stub("transformers.cache_utils", "StaticCache")()
cache.__dict__.update(layers=[])
put("static.pt", torch_file(cache, {}))
cache = corpus.stub("transformers.cache_utils", "EncoderDecoderCache")()
cache.__dict__.update(layers=[])
put("encoder.pt", torch_file(cache, {}))
put("program.pt", torch_file({"x": corpus.stub("os", "system")()}, {}))
view = {"layers": [{"keys": half("0", (32, 0, 8, 1), 32), "values": half("1", (64, 32, 8, 1), 64)}]}
put("expanded.pt", torch_file(view, {"0": DATA[:64], "1": DATA[:128]}))
cache = corpus.STUBS["DynamicCache"] = corpus.stub("transformers.cache_utils", "DynamicCache")
cache = cache()
cache.__dict__.update(layers=[corpus.stub("transformers.cache_utils", "LinearAttentionLayer")()])
put("hybrid.pt", torch_file(cache, {}))
put("old.pt", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + bytes(60))
put("cache.pkl", b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01K\x02e.")
# engines
put("cachegen.data", struct.pack("<7i", 64, 4, 3, 1, 1, 1, 64) + DATA[:64], "--from=lmcache")
put("groups/config.json", json.dumps({"model_name": "m", "dtype": "float16", "canonical_format": "v1-nhd", "kv_cache_groups": [
    {"tokens_per_block": 16, "layer_names": ["model.layers.0.attn"]}, {"tokens_per_block": 16, "layer_names": ["model.layers.1.attn"]}]}).encode(),
    "--from=vllm-blocks:shape=T-H-2D,heads=2,dim=8,in-order")
put("flash/layer.0.safetensors", safetensors([("kv_cache", "F16", [2, 2, 16], DATA[:128])]))
for i in range(2):
    put(f"hashes/{str(i) * 64}.bin", DATA[:1024], "--from=hicache:layout=page_first,dtype=f16,layers=1,heads=2,dim=16,page=8")
MADE.pop()
# files that are none
put("model.gguf", b"GGUF" + bytes(60))
put("pointer.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 5242880\n")
put("page.safetensors", b"<!DOCTYPE html><html><head><title>404</title></head></html>\n")
put("error.bin", b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>")
put("table.parquet", b"PAR1" + bytes(60))
put("model.onnx", b"\x08\x08\x12\x07pytorch\x1a" + bytes(60))
put("config.json", b'{"model_type": "llama", "hidden_size": 64}')
put("x.bz2", b"BZh9" + bytes(60))
put("nothing", b"")
put("unknown", bytes((7 * i + 200) % 256 for i in range(64)))
for name, options in MADE:
    print(os.path.dirname(name) or name, options)
