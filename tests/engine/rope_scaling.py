"""Prints the table of tests/unit/test_rope_scaling.c: angles of scaled RoPE as transformers computes them.

    python3 -m pip install torch transformers && python3 tests/engine/rope_scaling.py

Of each case eight angles, of pairs half / 8 apart, and the factor on cosine and sine."""
import json

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

KNOWN = ("rope_type", "rope_theta", "factor", "original_max_position_embeddings")
CASES = [
    (64, dict(rope_type="llama3", rope_theta=5e5, factor=32.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192)),
    (32, dict(rope_type="llama3", rope_theta=1e4, factor=4.0, low_freq_factor=2.0, high_freq_factor=8.0, original_max_position_embeddings=1024)),
    (128, dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768)),
    (64, dict(rope_type="yarn", rope_theta=1.5e5, factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False, original_max_position_embeddings=4096)),
    (32, dict(rope_type="yarn", rope_theta=1e4, factor=16.0, beta_fast=16.0, beta_slow=2.0, mscale=1.0, mscale_all_dim=0.8,
              original_max_position_embeddings=2048)),
    (32, dict(rope_type="yarn", rope_theta=1e4, factor=8.0, attention_factor=1.5, original_max_position_embeddings=1024)),
    (32, dict(rope_type="linear", rope_theta=1e4, factor=3.0)),
]

for dim, rope in CASES:
    config = LlamaConfig(hidden_size=4 * dim, num_attention_heads=4, head_dim=dim, rope_parameters=dict(rope), max_position_embeddings=131072)
    angles, length = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu")
    more = {k: v for k, v in rope.items() if k not in KNOWN}
    more = json.dumps(json.dumps(more, separators=(",", ":"))) if more else "NULL"
    print(f'    {{"{rope["rope_type"]}", {rope["rope_theta"]}, {rope["factor"]}, {rope.get("original_max_position_embeddings", 0)}, {more}, {dim},')
    print(f'     {length:.9g}, {{{", ".join(f"{v:.9g}" for v in angles[::dim // 16].tolist())}}}}},')
