"""transformers_cache.py: a transformers forward pass over given tokens; its cache as safetensors. A program
of its own, so that torch is loaded by nothing else.

    python3 transformers_cache.py GGUF TOKENS.json OUT.safetensors [DTYPE]

The model computes in float32 and the cache is stored in float16; with DTYPE both are of that.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
NO_TORCH = 77  # exit status when torch, transformers or gguf is not installed

try:
    import accelerate  # noqa: F401  transformers reads GGUF files through these two
    import gguf  # noqa: F401
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, DynamicCache, logging
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(NO_TORCH)


def main(weights, tokens, out, dtype=None):
    logging.set_verbosity_error()
    torch.set_num_threads(os.cpu_count() or 1)
    with open(tokens, encoding="utf-8") as f:
        ids = torch.tensor([json.load(f)])
    model = AutoModelForCausalLM.from_pretrained(
        os.path.dirname(weights), gguf_file=os.path.basename(weights), dtype=getattr(torch, dtype or "float32")
    ).eval()
    cache = DynamicCache()
    with torch.no_grad():
        model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
    stored = getattr(torch, dtype or "float16")
    tensors = {"tokens": ids[0].to(torch.int32)}
    for i, layer in enumerate(cache.layers):
        tensors[f"layers.{i}.keys"] = layer.keys.to(stored).contiguous()
        tensors[f"layers.{i}.values"] = layer.values.to(stored).contiguous()
    save_file(tensors, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
