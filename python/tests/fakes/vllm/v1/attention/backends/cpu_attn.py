ISA = "vec"  # a test sets it


def _get_attn_isa(dtype, block_size, head_size=None, kv_cache_dtype=None):
    return ISA
