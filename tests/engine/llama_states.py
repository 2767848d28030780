"""llama_states.py: small random models, and states that a real llama.cpp saves of them, by its C functions in the shared
object of xllamacpp. One build in a process. Not for servers (server.py).

    llama_states.py model ARCHITECTURE OUT.gguf          llama, qwen2vl, lfm2 or deepseek2
    llama_states.py save XLLAMACPP_FOLDER MODEL TOKENS OUT [SEQUENCES SEQUENCE]
        OUT.slot, OUT.session, OUT.state and OUT.sequence; with SEQUENCES, OUT.slot is of one of several streams
    llama_states.py load XLLAMACPP_FOLDER MODEL SLOT [SEQUENCES SEQUENCE]    prints the tokens that the engine restored
    llama_states.py again XLLAMACPP_FOLDER MODEL SLOT OUT    loads a slot and saves it: OUT.slot and others
"""

import ctypes
import glob
import os
import sys


def write_model(arch, path):
    import gguf
    import numpy

    width, layers, heads, kv_heads, ff, vocab = 64, 2, 2, 1, 32, 256
    rng = numpy.random.default_rng(1)
    w = gguf.GGUFWriter(path, arch)
    u32, f32 = w.add_uint32, w.add_float32
    for key, value in (
        ("context_length", 128), ("embedding_length", width), ("block_count", layers), ("feed_forward_length", ff),
        ("attention.head_count", heads), ("vocab_size", vocab), ("rope.dimension_count", width // heads),
    ):  # fmt: skip
        u32(f"{arch}.{key}", value)
    f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5)
    f32(arch + ".rope.freq_base", 10000.0)
    w.add_string("tokenizer.ggml.model", "no_vocab")

    def tensor(name, *shape):
        w.add_tensor(name + ".weight", rng.standard_normal(shape).astype(numpy.float32) * 0.1)

    tensor("token_embd", vocab, width)
    if arch == "lfm2":
        tensor("token_embd_norm", width)
        w.add_array(arch + ".attention.head_count_kv", [0, kv_heads])
        u32(arch + ".shortconv.l_cache", 3)
    else:
        u32(arch + ".attention.head_count_kv", 1 if arch == "deepseek2" else kv_heads)
        tensor("output", vocab, width)
        tensor("output_norm", width)
    if arch == "qwen2vl":
        w.add_array(arch + ".rope.dimension_sections", [4, 6, 6, 0])
    if arch == "deepseek2":
        rank, rope, nope, value, query_rank = 16, 8, 16, 16, 16
        w.kv_data[0].pop(arch + ".rope.dimension_count")
        for key, n in (
            ("rope.dimension_count", rope), ("attention.kv_lora_rank", rank), ("attention.q_lora_rank", query_rank), ("attention.key_length", rank + rope),
            ("attention.value_length", rank), ("attention.key_length_mla", nope + rope),
            ("attention.value_length_mla", value), ("leading_dense_block_count", layers), ("expert_feed_forward_length", ff),
            ("expert_count", 0), ("expert_used_count", 0), ("expert_shared_count", 0), ("expert_gating_func", 1),
        ):  # fmt: skip
            u32(f"{arch}.{key}", n)
        f32(arch + ".expert_weights_scale", 1.0)
    dim = width // heads
    for i in range(layers):
        b = f"blk.{i}."
        for name, rows, columns in (("ffn_gate", ff, width), ("ffn_up", ff, width), ("ffn_down", width, ff)):
            tensor(b + name, rows, columns)
        tensor(b + "ffn_norm", width)
        tensor(b + "attn_norm", width)
        if arch == "lfm2" and i == 0:
            tensor(b + "shortconv.conv", width, 3)
            tensor(b + "shortconv.in_proj", 3 * width, width)
            tensor(b + "shortconv.out_proj", width, width)
            continue
        if arch == "deepseek2":
            tensor(b + "attn_q_a", query_rank, width)
            tensor(b + "attn_q_a_norm", query_rank)
            tensor(b + "attn_q_b", heads * (nope + rope), query_rank)
            tensor(b + "attn_kv_a_mqa", rank + rope, width)
            tensor(b + "attn_kv_a_norm", rank)
            tensor(b + "attn_k_b", heads, rank, nope)
            tensor(b + "attn_v_b", heads, value, rank)
            tensor(b + "attn_output", width, heads * value)
            continue
        tensor(b + "attn_q", heads * dim, width)
        tensor(b + "attn_k", kv_heads * dim, width)
        tensor(b + "attn_v", kv_heads * dim, width)
        tensor(b + "attn_output", width, heads * dim)
        if arch == "lfm2":
            tensor(b + "attn_q_norm", dim)
            tensor(b + "attn_k_norm", dim)
        if arch == "qwen2vl":
            for name, n in (("attn_q", heads * dim), ("attn_k", kv_heads * dim), ("attn_v", kv_heads * dim)):
                w.add_tensor(b + name + ".bias", numpy.zeros(n, numpy.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Params(ctypes.Structure):
    """Parameters that are passed by value: larger than those of any build, which reads and writes the first bytes."""

    _fields_ = [("bytes", ctypes.c_uint32 * 128)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


class Engine:
    def __init__(self, folder, model, sequences=1):
        path = glob.glob(os.path.join(folder, "xllamacpp*.so"))[0]
        self.lib = lib = ctypes.CDLL(path)
        size, pointer, text = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
        tokens = ctypes.POINTER(ctypes.c_int32)
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, text, pointer)
        self.quiet = quiet(lambda level, words, data: None)
        for name, result, arguments in (
            ("model_default_params", Params, []),
            ("context_default_params", Params, []),
            ("model_load_from_file", pointer, [text, Params]),
            ("init_from_model", pointer, [pointer, Params]),
            ("decode", ctypes.c_int32, [pointer, Batch]),
            ("batch_init", Batch, [ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
            ("state_get_size", size, [pointer]),
            ("state_get_data", size, [pointer, pointer, size]),
            ("state_save_file", ctypes.c_bool, [pointer, text, tokens, size]),
            ("state_seq_get_size", size, [pointer, ctypes.c_int32]),
            ("state_seq_get_data", size, [pointer, pointer, size, ctypes.c_int32]),
            ("state_seq_save_file", size, [pointer, text, ctypes.c_int32, tokens, size]),
            ("state_seq_load_file", size, [pointer, text, ctypes.c_int32, tokens, size, ctypes.POINTER(size)]),
        ):
            function = getattr(lib, "llama_" + name)
            function.restype, function.argtypes = result, arguments
        if not os.environ.get("LLAMA_LOG"):
            lib.llama_log_set(self.quiet, None)
        lib.llama_backend_init()
        self.model = lib.llama_model_load_from_file(model.encode(), lib.llama_model_default_params())
        if not self.model:
            sys.exit(f"{path}: does not load {model}")
        p = lib.llama_context_default_params()
        p.bytes[0] = 128 * sequences  # n_ctx
        p.bytes[3] = sequences  # n_seq_max: each a stream
        self.context = lib.llama_init_from_model(self.model, p)
        if not self.context:
            sys.exit(f"{path}: makes no context")

    def decode(self, tokens, sequence):
        b = self.lib.llama_batch_init(len(tokens), 0, 1)
        b.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = token, i, 1, i + 1 == len(tokens)
            b.seq_id[i][0] = sequence
        if self.lib.llama_decode(self.context, b):
            sys.exit("llama_decode failed")

    def save(self, out, tokens, sequence):
        ids, n = (ctypes.c_int32 * len(tokens))(*tokens), len(tokens)
        if not self.lib.llama_state_seq_save_file(self.context, (out + ".slot").encode(), sequence, ids, n):
            sys.exit("llama_state_seq_save_file failed")
        if not self.lib.llama_state_save_file(self.context, (out + ".session").encode(), ids, n):
            sys.exit("llama_state_save_file failed")
        size = self.lib.llama_state_get_size(self.context)
        data = ctypes.create_string_buffer(size)
        size = self.lib.llama_state_get_data(self.context, data, size)
        with open(out + ".state", "wb") as f:
            f.write(data.raw[:size])
        size = self.lib.llama_state_seq_get_size(self.context, sequence)
        data = ctypes.create_string_buffer(size)
        size = self.lib.llama_state_seq_get_data(self.context, data, size, sequence)
        with open(out + ".sequence", "wb") as f:
            f.write(data.raw[:size])

    def load(self, path, sequence):
        room, n = 4096, ctypes.c_size_t(0)
        ids = (ctypes.c_int32 * room)()
        if not self.lib.llama_state_seq_load_file(self.context, path.encode(), sequence, ids, room, ctypes.byref(n)):
            sys.exit(f"{path}: the engine refuses it")
        return list(ids[: n.value])


def main():
    command, *rest = sys.argv[1:]
    if command == "model":
        write_model(*rest)
        return
    sequences, sequence = (int(n) for n in rest[-2:]) if len(rest) > (3 if command == "load" else 4) else (1, 0)
    engine = Engine(rest[0], rest[1], sequences)
    if command == "load":
        print(*engine.load(rest[2], sequence))
        return
    if command == "again":
        engine.save(rest[3], engine.load(rest[2], 0), 0)
        return
    tokens = [(37 * i + 11) % 250 for i in range(int(rest[2]))]
    engine.decode(tokens, sequence)
    engine.save(rest[3], tokens, sequence)


if __name__ == "__main__":
    main()
