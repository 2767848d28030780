#!/usr/bin/env python3
"""vllm_files.py --tools DIR: kvc and the files of vLLM's connectors, on a CPU with AVX2 or AVX-512.

A small Llama with random weights continues a prompt. What vLLM's ExampleConnector saves is packed, unpacked and compared with K and V
of transformers; from what kvc writes of transformers' cache, a new vLLM continues with the same tokens. The names and the config.json of
offloaded blocks that kvc writes are those of vLLM's FileMapper.
"""
import argparse
import filecmp
import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TOKENS, BLOCK, NEW = 300, 128, 8
STORED = (TOKENS - 1) // BLOCK * BLOCK
PROMPT = [7 * i * i % 997 + 2 for i in range(TOKENS)]


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_model(folder):
    """Saves the model, and K and V of the stored tokens as transformers computes them."""
    import torch
    from safetensors.torch import save_file
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024))
    model.float().save_pretrained(folder / "model")
    cache = DynamicCache()
    with torch.no_grad():
        model(torch.tensor([PROMPT[:STORED]]), past_key_values=cache)
    arrays = {}
    for i, layer in enumerate(cache.layers):
        arrays |= {f"layers.{i}.keys": layer.keys.contiguous(), f"layers.{i}.values": layer.values.contiguous()}
    save_file(arrays, folder / "transformers.safetensors")


def generate(folder, store):
    """Prints the number of tokens that came from the store, and the new tokens."""
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    connector = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both",
                                 kv_connector_extra_config={"shared_storage_path": str(store)})
    llm = LLM(model=str(folder / "model"), dtype="float32", enforce_eager=True, max_model_len=512, max_num_seqs=2, skip_tokenizer_init=True,
              kv_transfer_config=connector, distributed_executor_backend="uni")
    how = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, detokenize=False)
    out = llm.generate([{"prompt_token_ids": PROMPT}], how, use_tqdm=False)[0]
    print("RESULT", json.dumps([out.num_cached_tokens, list(out.outputs[0].token_ids)]))


def generated(folder, store):
    """The same in a process of its own, which has no prefix cache."""
    text = run(sys.executable, __file__, "--tools", "-", "--generate", folder, store)
    return json.loads(next(line for line in text.splitlines() if line.startswith("RESULT"))[7:])


def check_blocks(tools, folder):
    from vllm.v1.kv_offload.file_mapper import FileMapper
    for shape in ("T-H-2D", "2-T-H-D", "H-T-2D", "2-H-T-D"):
        root = folder / shape
        run(tools / "kvc-unpack", "-q", f"--to=vllm-blocks:shape={shape},page=16,chunk=64,model=a/model", "-o", root,
            folder / "transformers.safetensors")
        [config] = glob.glob(f"{root}/*/config.json")
        fields = json.load(open(config))
        mapper = FileMapper(str(root), parallel_agnostic=True, rank=0, **fields)
        assert mapper.get_config_file_path() == config, (mapper.get_config_file_path(), config)
        assert open(config).read() == json.dumps(mapper.get_run_config(), indent=2, sort_keys=True), config
        run(tools / "kvc-pack", "-q", f"--from=vllm-blocks:shape={shape},heads=2,dim=64,chunk=64,in-order", "-o", f"{root}.kvc", root)
        run(tools / "kvc-diff", f"{root}.kvc", folder / "transformers.safetensors")
    print("offloaded blocks: folders, config.json and values: ok")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path, required=True)
    options.add_argument("--generate", nargs=2, type=pathlib.Path)
    o = options.parse_args()
    os.environ.update({"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
                       "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    if o.generate:
        generate(*o.generate)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_model(folder)
        cold, tokens = generated(folder, folder / "store")
        [saved] = (folder / "store").iterdir()
        packed, halves = folder / "saved.kvc", "--pairing=halves"
        run(o.tools / "kvc-pack", "-q", f"--from=vllm:cpu-block={BLOCK}", halves, "-o", packed, saved)
        run(o.tools / "kvc-diff", "--abs=1e-4", packed, folder / "transformers.safetensors")
        print(f"ExampleConnector: {STORED} tokens as transformers has them: ok")
        run(o.tools / "kvc-unpack", "-q", "-o", folder / "back", packed)
        for file in saved.iterdir():
            assert filecmp.cmp(file, folder / "back" / file.name, shallow=False), file
        print("ExampleConnector: the same bytes again: ok")
        (folder / "new").mkdir()
        run(o.tools / "kvc-unpack", "-q", "--lossy-metadata", f"--to=vllm:cpu-block={BLOCK}", "-o", folder / "new" / saved.name,
            folder / "transformers.safetensors")
        warm, again = generated(folder, folder / "new")
        assert (cold or 0) < STORED <= warm and tokens == again, (cold, tokens, warm, again)
        print(f"ExampleConnector: {warm} tokens from a cache of transformers, then the same {NEW} tokens: ok")
        check_blocks(o.tools, folder)


main()
