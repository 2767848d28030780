"""architectures.py: caches of many model classes of transformers through kvc.save(), kvc.load() and kvc.Prefix. Models are tiny and random.

    python3 architectures.py [NAME...]

Prints a line for each model of the table: its name, the layers of its cache, and what was found. What the table does not expect is written to
stderr at the end, and the exit status is 1. Needs KVC_LIBRARY, KVC_STORE_LIBRARY, and python/ in PYTHONPATH.

A cache of TOKENS tokens is saved and loaded, and decoding goes on: the logits of STEPS steps must be those of a cache that never left memory,
bit by bit. load(end=) and Prefix leave tokens to compute, at which sums come out in another order: the most likely tokens must be equal, and the
logits to NEAR. A model whose logits do not depend on its cache would show nothing, and fails.
"""

import os
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
NO_TORCH = 77  # exit status when torch or transformers is not installed

try:
    import torch
    import transformers
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(NO_TORCH)

import kvc

TOKENS, CHUNK, WINDOW, STEPS, NEAR = 300, 256, 32, 2, 1e-3
CUT = "NOT_SLICEABLE"

SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16, vocab_size=160,
             max_position_embeddings=640, sliding_window=WINDOW, initializer_range=0.3, pad_token_id=0, bos_token_id=1, eos_token_id=None,
             num_experts=4, num_local_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
LATENT = dict(kv_lora_rank=32, q_lora_rank=24, qk_rope_head_dim=16, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4, n_routed_experts=4,
              n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1)
HALF = ["sliding_attention", "full_attention"] * 2
PER_LAYER = dict(vocab_size_per_layer_input=160, hidden_size_per_layer_input=16)
MAMBA = dict(mamba_n_heads=8, mamba_d_head=16, mamba_d_state=8, mamba_n_groups=1, mamba_expand=2)

# --- the table: the class, what its configuration is given beyond SMALL, and what becomes of its caches ---

# all parts of a cache can be had
FULL = [
    ("Llama", {}), ("Gemma", {}), ("Qwen2", {}), ("Qwen3", {}), ("Qwen3Moe", {}), ("Phi", {}), ("GPTNeoX", {}), ("Cohere", {}), ("Olmo2", {}),
    ("Granite", {}), ("Glm4", {}), ("Nemotron", {}), ("SmolLM3", {}), ("StableLm", {}), ("Arcee", {}), ("Apertus", {}), ("HunYuanDenseV1", {}),
    ("GPT2LMHeadModel", dict(n_positions=640)), ("OPT", dict(ffn_dim=96, word_embed_proj_dim=64)),
    ("Bloom", dict(n_layer=4, n_head=4)),  # ALiBi: K without positions
    ("Falcon", dict(alibi=False)),  # one head of K and V
    ("GPTBigCode", dict(n_positions=640)),
    ("DeepseekV3", LATENT),  # wider K than V
    ("Mistral", dict(sliding_window=None)),
    ("Gemma3", dict(layer_types=HALF, sliding_window=TOKENS)),  # windows that hold all tokens
]
# layers with a window beside others: a part can be had while windows hold all of it
WINDOWS = [
    ("Gemma2", {}), ("Gemma3", dict(layer_types=HALF)), ("GptOss", {}), ("Cohere2", {}), ("Olmo3", dict(layer_types=HALF)),
    ("Qwen2", dict(use_sliding_window=True, max_window_layers=2)), ("Exaone4", dict(layer_types=HALF)),
    ("Gemma3n", dict(layer_types=HALF, laurel_rank=8, activation_sparsity_pattern=None, num_kv_shared_layers=0, **PER_LAYER)),
    ("Gemma3n", dict(num_hidden_layers=6, layer_types=HALF + HALF[:2], laurel_rank=8, activation_sparsity_pattern=None, num_kv_shared_layers=2,
                     **PER_LAYER)),  # two layers use K and V of others
    ("Gemma4", dict(layer_types=HALF, global_head_dim=32, **PER_LAYER)),  # layers of two widths
    ("Gemma4", dict(layer_types=HALF, global_head_dim=32, attention_k_eq_v=True, num_global_key_value_heads=1, **PER_LAYER)),
    ("Gemma3", dict(layer_types=HALF, sliding_window=TOKENS - 1)),  # and that lack one
]
# all layers have a window: no array tells the length of the text
SLIDING = [
    ("Mistral", {}), ("Ministral", {}), ("Mixtral", {}), ("Phi3", {}), ("Phimoe", {}), ("Starcoder2", {}),
    ("Gemma3", dict(layer_types=["sliding_attention"] * 4)), ("Mistral", dict(sliding_window=2)),
]
# refused, by the name of the layer: its cache is more than K and V of tokens
REFUSED = [
    ("Mamba2", dict(num_heads=8, state_size=8, n_groups=1, head_dim=16), "LinearAttentionLayer"),
    ("Bamba", dict(attn_layer_indices=[1, 3], **MAMBA), "LinearAttentionLayer"),
    ("Jamba", dict(attn_layer_period=2, attn_layer_offset=1, **MAMBA), "LinearAttentionLayer"),
    ("FalconH1", dict(mamba_d_ssm=128, **MAMBA), "LinearAttentionAndFullAttentionLayer"),
    ("Lfm2", dict(layer_types=["conv", "full_attention"] * 2), "LinearAttentionLayer"),
    ("Qwen3Next", dict(layer_types=["linear_attention", "full_attention"] * 2, linear_num_key_heads=2, linear_num_value_heads=4,
                       linear_key_head_dim=16, linear_value_head_dim=16, shared_expert_intermediate_size=32), "LinearAttentionLayer"),
    ("DeepseekV32", dict(index_head_dim=16, index_n_heads=2, index_topk=16, **LATENT), "DynamicIndexedLayer"),
]


def make(name, more):
    """Returns a model of a class of transformers, which is "LlamaForCausalLM" for "Llama"."""
    kind = getattr(transformers, name, None) if name.endswith("Model") else getattr(transformers, name + "ForCausalLM")
    config = kind.config_class
    known = set(getattr(config, "__dataclass_fields__", ())) | set(getattr(config, "attribute_map", ()))
    torch.manual_seed(1)
    return kind(config(**{**{key: value for key, value in SMALL.items() if key in known}, **more})).eval()


def decode(model, cache, ids):
    """Computes what the cache lacks of ids, and goes on greedily. Returns the logits of each step."""
    found = []
    for _ in range(STEPS):
        with torch.no_grad():
            out = model(input_ids=ids[:, cache.get_seq_length():], past_key_values=cache, use_cache=True)
        found.append(out.logits[0, -1].float())
        ids = torch.cat([ids, found[-1].argmax().reshape(1, 1)], dim=1)
    return torch.stack(found)


class Checks:
    """What is tried with the caches of a model."""

    def __init__(self, model, folder):
        self.model, self.folder = model, folder
        self.ids = torch.randint(2, 158, (1, TOKENS), generator=torch.Generator().manual_seed(2))
        self.due = decode(model, self.cache(TOKENS - 1), self.ids)
        alone = decode(model, self.new(), self.ids[:, -1:])
        assert not self.near(alone), "the logits do not depend on the cache"

    def new(self):
        return transformers.DynamicCache(config=self.model.config)

    def cache(self, n):
        cache = self.new()
        with torch.no_grad():
            self.model(input_ids=self.ids[:, :n], past_key_values=cache, use_cache=True)
        assert cache.get_seq_length() == n
        return cache

    def near(self, logits):
        return torch.equal(logits.argmax(-1), self.due.argmax(-1)) and bool((logits - self.due).abs().max() < NEAR * self.due.abs().max())

    def save(self, n):
        path = os.path.join(self.folder, f"{n}.kvc")
        kvc.save(self.cache(n), path, tokens=self.ids[:, :n], model=self.model)
        return path

    def whole(self):
        """The cache of all tokens but the last."""
        path = self.save(TOKENS - 1)
        for config in (None, self.model):
            cache = kvc.load(path, config=config)
            assert cache.get_seq_length() == TOKENS - 1, f"{cache.get_seq_length()} of {TOKENS - 1} tokens were loaded"
            assert torch.equal(decode(self.model, cache, self.ids), self.due), "other logits after save and load"

    def part(self, n, end):
        """A part of a cache of n tokens: whether it was had, and was right."""
        try:
            cache = kvc.load(self.save(n), end=end)
        except kvc.Error as e:
            return e.code.name
        assert cache.get_seq_length() == end, f"load(end={end}) gave {cache.get_seq_length()} tokens"
        assert self.near(decode(self.model, cache, self.ids)), f"other logits after load(end={end}) of {n} tokens"
        return "equal"

    def prefix(self):
        with kvc.Store(f"dir:{self.folder}/store?min-free=0", local_timeout=30) as store:
            for keep in (True, False):  # then chunks are cut to windows
                with kvc.Prefix(store, self.model, chunk=CHUNK, keep_windows=keep) as prefix:
                    if keep:
                        cache = prefix.get(self.ids)
                        decode(self.model, cache, self.ids)
                        assert prefix.put(cache, self.ids, wait=True) == CHUNK
                    cache = prefix.get(self.ids)
                    assert (prefix.loaded, cache.get_seq_length()) == (CHUNK, CHUNK), f"{prefix.loaded} tokens came from the store"
                    assert self.near(decode(self.model, cache, self.ids)), f"other logits after Prefix(keep_windows={keep})"


def check(name, more, long, short):
    """Says what became of the caches of a model; raises what is wrong. `long` and `short`: load(end=) of caches beyond windows, and below."""
    with tempfile.TemporaryDirectory(prefix="kvc-architectures.") as folder:
        checks = Checks(make(name, more), folder)
        kinds = [type(layer).__name__ for layer in checks.new().layers]
        checks.whole()
        window = more.get("sliding_window", WINDOW) or WINDOW
        for n, end, due in ((TOKENS - 1, TOKENS // 2, long), (min(window, TOKENS) - 1, 1 + window // 3, short)):
            found = checks.part(n, end) if end < n else due
            assert found == due, f"load(end={end}) of {n} tokens: {found}, and not {due}"
        checks.prefix()
    return f"{shown(kinds)}: equal" + (f"; load(end=) of long caches: {long}" if long != "equal" else "")


def check_refused(name, more, kind):
    """Says by which words a cache is refused, with a layer that its class names."""
    model = make(name, more)
    cache = transformers.DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=torch.arange(2, 42)[None], past_key_values=cache, use_cache=True)
    with tempfile.TemporaryDirectory(prefix="kvc-architectures.") as folder, kvc.Store(f"dir:{folder}/store?min-free=0") as store:
        for call in (lambda: kvc.save(cache, os.path.join(folder, "c.kvc"), model=model), lambda: kvc.Prefix(store, model)):
            try:
                call()
            except kvc.Error as e:
                assert e.code.name == "UNSUPPORTED" and f"is a {kind}, which is not supported" in str(e), str(e)
            else:
                raise AssertionError("it was not refused")
        assert os.listdir(folder) == ["store"], "something was left behind"
    return f"refused: a {kind}"


def shown(kinds):
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))


def main(names):
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = [(name, check, (more, *due)) for group, due in ((FULL, ("equal", "equal")), (WINDOWS, (CUT, "equal")), (SLIDING, (CUT, "equal")))
            for name, more in group]
    rows += [(name, check_refused, (more, kind)) for name, more, kind in REFUSED]
    wrong = []
    for name, function, arguments in rows:
        if names and name not in names:
            continue
        try:
            print(f"{name}: {function(name, *arguments)}", flush=True)
        except Exception as problem:
            wrong.append(f"{name} {arguments[0]}: {type(problem).__name__}: {problem}")
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
