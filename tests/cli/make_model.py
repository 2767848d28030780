#!/usr/bin/env python3
"""make_model.py FOLDER [SEED]: a random causal language model for transformers, which reads a byte
a token: two layers, two KV heads of 8. Needs torch. Not for anything that a model would say."""
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def main():
    folder, seed = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
                         initializer_range=0.2, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={x: i for i, x in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


main()
