#!/usr/bin/env python3
"""make_cache.py: the KV cache of a text's first N tokens, as transformers users keep it, for quality.py.

    make_cache.py TEXT N -o OUT.safetensors [--continuation=N] [--f16] [--model=GGUF]

TEXT is a file of UTF-8 text; N tokens go into the cache, the next ones (512) into `continuation`. K, V and the queries
of the last 64 tokens are bf16, or f16. Not for other layouts: kvc-unpack --to makes those.
"""

import blas  # noqa: F401 (before numpy)

import argparse
import os
import sys

from caches import write_made_cache
from model import Model
from tokenizer import Tokenizer


def make(model, text, n, n_continuation, target, f16):
    """ValueError when the text is too short."""
    with open(text, encoding="utf-8") as f:
        ids = Tokenizer(model).encode(f.read())
    if len(ids) < n + n_continuation:
        raise ValueError(f"{text}: {len(ids)} tokens, but {n} + {n_continuation} are needed; "
                         "give a longer text, a smaller N or --continuation=N")
    context = f"{os.path.basename(text)}, first {n} tokens"
    write_made_cache(target, model, ids[:n], ids[n:n + n_continuation], context, f16)


def main():
    parser = argparse.ArgumentParser(usage="make_cache.py TEXT N -o OUT [--continuation=N] [--f16] [--model=GGUF]")
    parser.add_argument("text")
    parser.add_argument("n", type=int)
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--continuation", type=int, default=512)
    parser.add_argument("--f16", action="store_true")
    parser.add_argument("--model")
    options = parser.parse_args()
    if options.n < 1 or options.continuation < 0:
        parser.error("N must be 1 or more, --continuation 0 or more")
    make(Model(options.model), options.text, options.n, options.continuation, options.output, options.f16)


if __name__ == "__main__":
    try:
        main()
    except (OSError, ValueError) as error:
        sys.exit(f"make_cache.py: {error}")
