#!/usr/bin/env python3
"""load_gpu.py: a .kvc into a transformers cache on the GPU, and on from there.

    load_gpu.py (--gguf FILE | --model DIR) [options] PREFIX.kvc

libkvc_cuda, called through ctypes, writes every layer's K and V straight into memory of PyTorch's tensors, [batch 1, heads,
tokens, channels], which become a DynamicCache: nothing is copied or computed anew. The model reads the text of --ask after the
prefix and goes on greedily. --reference computes the prefix too, as if there were no file, and compares: with a lossless file
of the same model, computed by the same program on the same device, the tokens are equal.

As a module: Library().load(path, dtype, device) gives a DynamicCache and the prefix's tokens.

Not for caches with latent, recurrent or sliding-window layers, for several sequences in a file, or for engines with pages
(vLLM, SGLang, TensorRT-LLM: other names of layouts, in formats/api/pool_layouts.c). Needs torch and transformers, accelerate and gguf
for --gguf; libkvc and libkvc_cuda, which $KVC_LIBRARY and $KVC_CUDA_LIBRARY name where they are not installed."""
import argparse
import ctypes
import ctypes.util
import inspect
import json
import os
import sys
import time

try:
    import torch
    import transformers
    from transformers.cache_utils import DynamicCache
    MISSING = None
except ImportError as e:  # main() reports it, after --help and wrong options
    MISSING = e

u8, u32, u64, i64 = ctypes.c_uint8, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_int64
csize, text, address = ctypes.c_size_t, ctypes.c_char_p, ctypes.c_void_p
DTYPES = {} if MISSING else {torch.float16: b"f16", torch.bfloat16: b"bf16", torch.float32: b"f32"}


class Failure(Exception):
    """What a library said."""


def struct(name, **fields):
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


# As kvc.h and kvc_cuda.h declare them.
TensorInfo = struct("TensorInfo", size=csize, part=text, role=text, dtype=text, layer=u32, stream=u32, snapshot=u32, rows=u64, heads=u64,
                    dim=u64, row_bytes=u64)
Strides = struct("Strides", layer=i64, kv=i64, page=i64, token=i64, head=i64, dim=i64, reserved=i64 * 2)
Pool = struct("Pool", layers=u64, pages=u64, page_size=u64, heads=u64, dim=u64, value_bytes=u64, reserved=u64 * 2)
Destination = struct("Destination", size=csize, layout=text, pool=Pool, strides=Strides, bases=ctypes.POINTER(u64), n_bases=u64, dtype=text,
                     table=ctypes.POINTER(u32), n_table=u64, first=u64, first_layer=u32)
Options = struct("Options", size=csize, device=ctypes.c_int, threads=ctypes.c_uint, slots=ctypes.c_uint, slot_bytes=u64,
                 multiprocessors=ctypes.c_uint, verify=ctypes.c_int, first=u64, end=u64, layers=ctypes.POINTER(u8),
                 n_layers=u32, profile=text, model=text, weights=text, direct=ctypes.c_int, profile_folders=text)


class Library:
    """libkvc, for what a file holds, and libkvc_cuda, for loading it."""

    def __init__(self, device=0):
        self.device = device
        self.kvc = ctypes.CDLL(os.environ.get("KVC_LIBRARY") or ctypes.util.find_library("kvc"))
        self.cuda = ctypes.CDLL(os.environ.get("KVC_CUDA_LIBRARY") or ctypes.util.find_library("kvc_cuda"))
        for name, result in (("kvc_error_new", address), ("kvc_error_message", text), ("kvc_file_open", address),
                             ("kvc_file_tokens", ctypes.POINTER(ctypes.c_int32)), ("kvc_file_position", i64)):
            getattr(self.kvc, name).restype = result
        self.cuda.kvc_cuda_plan_new.restype = address
        self.error = address(self.kvc.kvc_error_new())
        self.check(self.cuda.kvc_cuda_devices(self.error) > 0)

    def check(self, ok):
        if not ok:
            raise Failure(self.kvc.kvc_error_message(self.error).decode())
        return ok

    def look(self, path):
        """Layers, tokens, heads and channels of the file, and its tokens' ids."""
        file = address(self.check(self.kvc.kvc_file_open(os.fsencode(path), None, self.error)))
        try:
            info, n, places, layers = TensorInfo(ctypes.sizeof(TensorInfo)), u64(), set(), set()
            for i in range(self.kvc.kvc_file_tensors(file)):
                self.kvc.kvc_file_tensor(file, i, ctypes.byref(info))
                if info.part != b"companion":
                    first = self.kvc.kvc_file_position(file, i, u64(0))
                    last = self.kvc.kvc_file_position(file, i, u64(info.rows - 1))
                    places.add((info.part, info.stream, info.rows, info.heads, info.dim, first, last))
                    layers.add(info.layer)
            tokens = self.kvc.kvc_file_tokens(file, ctypes.byref(n))
            ids = tokens[:n.value] if n.value else []
        finally:
            self.kvc.kvc_file_close(file)
        if len(places) != 1:
            raise Failure(f"{path}: its layers are not all alike")
        part, _, rows, heads, dim, first, last = places.pop()
        if part != b"live" or (first, last) != (0, rows - 1):
            raise Failure(f"{path}: not the rows of one sequence from its first token")
        return len(layers), rows, heads, dim, ids[:rows]

    def load(self, path, dtype, device, profile=None, verify=True):
        """A DynamicCache of the file's rows, and the ids of their tokens ([] where the file has none)."""
        layers, tokens, heads, dim, ids = self.look(path)
        pairs = [[torch.empty(1, heads, tokens, dim, dtype=dtype, device=device) for _ in "KV"] for _ in range(layers)]
        bases = [x.data_ptr() for pair in pairs for x in pair]
        to = Destination(size=ctypes.sizeof(Destination), layout=b"transformers", bases=(u64 * len(bases))(*bases), n_bases=len(bases), dtype=DTYPES[dtype],
                         pool=Pool(layers, 1, tokens, heads, dim, dtype.itemsize))
        options = Options(size=ctypes.sizeof(Options), device=self.device, verify=verify, profile=profile and os.fsencode(profile))
        stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
        plan = address(self.check(self.cuda.kvc_cuda_plan_new(os.fsencode(path), ctypes.byref(options), ctypes.byref(to),
                                                              self.error)))
        try:
            self.check(self.cuda.kvc_cuda_load(plan, address(stream), self.error) == 0)
            self.check(self.cuda.kvc_cuda_finish(plan, self.error) == 0)
        finally:
            self.cuda.kvc_cuda_plan_free(plan)
        cache = DynamicCache()
        for i, (k, v) in enumerate(pairs):
            cache.update(k[:, :, :0], v[:, :, :0], i)  # makes the layer
            cache.layers[i].keys, cache.layers[i].values = k, v
        return cache, ids


def read(model, cache, ids):
    """Logits after the ids, which are read into the cache."""
    with torch.no_grad():  # from transformers 5.24 on the argument has a new name
        name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        return model(ids, **{name: cache}, use_cache=True, logits_to_keep=1).logits[:, -1]


def go_on(model, cache, ask, n):
    """n greedy tokens after the cache and the ids `ask`, and the clock when the first of them was known."""
    ids, answer, first = torch.tensor([ask], device=model.device), [], None
    for _ in range(n):
        ids = read(model, cache, ids).argmax(-1, keepdim=True)
        answer.append(ids.item())  # waits for the device
        first = first or time.perf_counter()
    return answer, first


def prefill(model, ids):
    cache = DynamicCache()
    read(model, cache, torch.tensor([ids], device=model.device))
    return cache


def compare(model, library, path, ask, n, profile=None, ids=None, reference=True):
    """Reload and, for `reference`, recomputing: tokens and seconds to the first of them."""
    start = time.perf_counter()
    cache, stored = library.load(path, model.dtype, model.device, profile)
    loaded = time.perf_counter() - start
    answer, first = go_on(model, cache, ask, n)
    report = {"tokens": cache.get_seq_length() - len(ask) - n + 1, "load": loaded, "reload, first token": first - start,
              "answer": answer}
    if reference:
        ids = ids or stored
        if len(ids) != report["tokens"]:
            raise Failure(f"{path}: its tokens' ids are not known")
        start = time.perf_counter()
        expected, first = go_on(model, prefill(model, ids), ask, n)
        same = next((i for i, (a, b) in enumerate(zip(answer, expected)) if a != b), n)
        report |= {"recompute, first token": first - start, "reference": expected, "tokens equal": same}
    return report


def main():
    parser = argparse.ArgumentParser(description="Loads a .kvc into a transformers cache on the GPU and generates.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--gguf", metavar="FILE", help="weights in GGUF")
    source.add_argument("--model", metavar="DIR", help="directory of a transformers model")
    parser.add_argument("--device", default="cuda:0", help="cuda:N (%(default)s)")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"), help="of model and cache")
    parser.add_argument("--profile", metavar="FILE", help="that the file was packed with, where it is not beside it")
    parser.add_argument("--ask", default=" In short:", metavar="TEXT", help="read after the prefix (%(default)r)")
    parser.add_argument("-n", type=int, default=32, help="tokens to generate (%(default)s)")
    parser.add_argument("--reference", action="store_true", help="compute the prefix as well, and compare")
    parser.add_argument("--json", action="store_true", help="print numbers, tokens and seconds as JSON")
    parser.add_argument("file", metavar="PREFIX.kvc")
    a = parser.parse_args()
    if MISSING:
        print(f"load_gpu.py: {MISSING}; it needs torch and transformers: pip install torch transformers", file=sys.stderr)
        return 2
    device = torch.device(a.device)
    try:
        if device.type == "cuda" and not torch.cuda.is_available():
            raise Failure("PyTorch finds no CUDA device")
        library = Library(device.index or 0)
        directory, file = os.path.split(os.path.abspath(a.gguf)) if a.gguf else (a.model, None)
        transformers.utils.logging.disable_progress_bar()
        where = {"pretrained_model_name_or_path": directory, "gguf_file": file, "local_files_only": True}
        tokenizer = transformers.AutoTokenizer.from_pretrained(**where)
        model = transformers.AutoModelForCausalLM.from_pretrained(**where, dtype=getattr(torch, a.dtype)).to(device).eval()
        go_on(model, DynamicCache(), tokenizer(a.ask).input_ids, 2)  # kernels are loaded at their first use
        report = compare(model, library, a.file, tokenizer(a.ask).input_ids, a.n, a.profile, reference=a.reference)
    except (Failure, OSError) as e:
        print(f"load_gpu.py: {e}", file=sys.stderr)
        return 2
    if a.json:
        print(json.dumps(report))
    else:
        print(tokenizer.decode(report["answer"]))
        for name, value in report.items():
            if isinstance(value, (int, float)):
                print(f"{name}: {value:.3f} s" if isinstance(value, float) else f"{name}: {value}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
