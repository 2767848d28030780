"""make_arrays.py: writes caches as arrays as people have them, and files that are none, into the current folder. Not for files
that a test compares with an engine's (samples/)."""
import collections
import itertools
import json
import math
import os
import random
import struct
import sys
import tarfile
import zipfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "fuzz"))
import make_corpus as corpus
from make_corpus import Tensor, npy, npz, safetensors, torch_file

rng = random.Random(1)
FACTS = {"rope_theta": "10000", "model": "tiny", "rope_pairing": "halves"}


def put(name, data):
    if os.path.dirname(name):
        os.makedirs(os.path.dirname(name), exist_ok=True)
    with open(name, "wb") as f:
        f.write(data)


def values(n):
    """n values of f16 between 1/4 and 2, of both signs."""
    return b"".join(bytes((rng.randrange(256), rng.choice((0x34, 0x38, 0x3C)) | rng.choice((0, 0x80)))) for _ in range(n))


def ids(n):
    return struct.pack(f"<{n}i", *(7 + i % 900 for i in range(n)))


def rows(tokens, heads=2, dim=16, zeros=0):
    """[1, heads, tokens + zeros, dim], of which the last rows are zeros."""
    return b"".join(values(tokens * dim) + bytes(2 * zeros * dim) for _ in range(heads))


def layers(tokens, n=2, zeros=0, kind="F16", dim=16):
    return [(f"layers.{i}.{part}", kind, [1, 2, tokens + zeros, dim], rows(tokens, dim=dim, zeros=zeros)) for i in range(n)
            for part in ("keys", "values")]


def cut(array, keep):
    """The named rows of an array [1, 2, T, D]."""
    name, kind, (_, heads, tokens, dim), data = array
    row = 2 * dim
    return (name, kind, [1, heads, len(keep), dim],
            b"".join(data[(h * tokens + t) * row:(h * tokens + t + 1) * row] for h in range(heads) for t in keep))


def of_rows():
    full = layers(512)
    tokens = ("tokens", "I32", [512], ids(512))
    kept = sorted(rng.sample(range(512), 300))
    put("full.safetensors", safetensors(full + [tokens], FACTS))
    put("pruned.safetensors", safetensors([cut(a, kept) for a in full] + [tokens], FACTS))
    put("first.safetensors", safetensors([cut(a, range(300)) for a in full] + [tokens, ("positions", "I64", [300],
                                         struct.pack("<300q", *range(300)))], FACTS))
    put("sampled.safetensors", safetensors(full + [("tokens", "I32", [513], ids(513))], FACTS))
    put("prompt.safetensors", safetensors(full + [("tokens", "I32", [400], ids(400))], FACTS))
    put("static.safetensors", safetensors(layers(300, zeros=212) + [("tokens", "I32", [300], ids(300))], FACTS))
    put("static-padded.safetensors", safetensors(layers(300, zeros=212) + [tokens], FACTS))
    put("static-bare.safetensors", safetensors(layers(300, zeros=212), FACTS))
    put("zeros.safetensors", safetensors(layers(0, zeros=512) + [tokens], FACTS))
    mask = lambda text: ("attention_mask", "I64", [1, len(text)], struct.pack(f"<{len(text)}q", *map(int, text)))
    put("padded.safetensors", safetensors(full + [tokens, mask("0" * 100 + "1" * 412)], FACTS))
    put("padded-right.safetensors", safetensors(full + [tokens, mask("1" * 400 + "0" * 112)], FACTS))
    put("padded-between.safetensors", safetensors(full + [tokens, mask("1" * 100 + "0" * 12 + "1" * 400)], FACTS))
    put("padded-bool.safetensors", safetensors(full + [tokens, ("attention_mask", "BOOL", [512], bytes(100) + b"\1" * 412)], FACTS))
    numbers = lambda name, list_: (name, "I64", [1, len(list_)], struct.pack(f"<{len(list_)}q", *list_))
    added = ("attention_mask", "F16", [1, 1, 1, 512], struct.pack("<512e", *[-65504.0] * 100, *[0.0] * 412))
    put("padded-added.safetensors", safetensors(full + [tokens, added], FACTS))
    put("padded-ids.safetensors", safetensors(full + [tokens, mask("0" * 100 + "1" * 412),
                                                      numbers("position_ids", [1] * 100 + list(range(412)))], FACTS))
    put("kept.safetensors", safetensors([cut(a, kept) for a in full] + [tokens, numbers("position_ids", kept)], FACTS))
    put("plain.safetensors", safetensors(full + [tokens, numbers("position_ids", list(range(512)))], FACTS))
    sections = ("position_ids", "I64", [3, 1, 512], struct.pack("<1536q", *range(512), *range(512), *range(512)))
    put("sections.safetensors", safetensors(full + [tokens, sections], FACTS))
    put("masked-all.safetensors", safetensors(full + [tokens, mask("1" * 512)], FACTS))
    short = layers(512, 1) + [(n.replace("0", "1"), *rest) for n, *rest in layers(300, 1)]
    put("pyramid.safetensors", safetensors(short + [tokens], FACTS))
    put("window.safetensors", safetensors(short + [tokens], {**FACTS, "sliding_window": "300"}))


def of_places():
    """Rows that are not in the order of their positions, each with its token id; positions with gaps, and below 0."""
    numbers = lambda name, list_: (name, "I64", [1, len(list_)], struct.pack(f"<{len(list_)}q", *list_))
    full, own = layers(512), [(7 * i * i + 3 * i) % 901 for i in range(513)]
    queries = ("queries.0", "F16", [1, 2, 512, 16], rows(512))
    order = rng.sample(range(512), 512)  # of row k of the file: its position
    mixed, theirs = [cut(a, order) for a in full], [own[i] for i in order]
    put("sorted.safetensors", safetensors(full + [queries, numbers("tokens", own[:512])], FACTS))
    put("mixed.safetensors", safetensors(mixed + [cut(queries, order), numbers("input_ids", theirs),
                                                  numbers("position_ids", order)], FACTS))
    put("named.safetensors", safetensors(mixed + [cut(queries, order), numbers("tokens", theirs), numbers("positions", order)],
                                         FACTS))
    put("sampled.safetensors", safetensors(mixed + [cut(queries, order), numbers("input_ids", theirs + own[512:]),
                                                    numbers("position_ids", order)], FACTS))
    put("mixed.npz", npz([(name, "<f2" if kind == "F16" else "<i8", tuple(shape), data) for name, kind, shape, data in
                          mixed + [cut(queries, order), numbers("input_ids", theirs), numbers("position_ids", order)]]))
    data, dump = {}, {}
    for i, (name, kind, shape, bytes_) in enumerate(mixed + [cut(queries, order), numbers("input_ids", theirs),
                                                             numbers("position_ids", order)]):
        data[str(i)] = bytes_
        dump[name] = Tensor(str(i), "HalfStorage" if kind == "F16" else "LongStorage", tuple(shape), steps(shape),
                            count=math.prod(shape))
    put("mixed.pt", torch_file(dump, data))
    # 100 rows of padding, of positions below 0 by the mask, and an id more than rows
    padded = numbers("position_ids", [1] * 100 + list(range(412)))
    mask = numbers("attention_mask", [0] * 100 + [1] * 412)
    put("padded.safetensors", safetensors(full + [numbers("input_ids", [0] * 100 + own[:413]), mask, padded], FACTS))
    put("unpadded.safetensors", safetensors([cut(a, range(100, 512)) for a in full] + [numbers("tokens", own[:412])], FACTS))
    few, places = layers(20), list(range(10)) + list(range(30, 40))
    other = own[:15] + [7] + own[16:20]
    put("gaps.safetensors", safetensors(few + [numbers("tokens", own[:20]), numbers("positions", places)], FACTS))
    put("gaps-other.safetensors", safetensors(few + [numbers("tokens", other), numbers("positions", places)], FACTS))
    put("late.safetensors", safetensors(few + [numbers("tokens", own[:20]), numbers("positions", list(range(10, 30)))], FACTS))
    put("late-other.safetensors", safetensors(few + [numbers("tokens", other), numbers("positions", list(range(10, 30)))],
                                              FACTS))
    put("below.safetensors", safetensors(few + [numbers("tokens", own[:20]), numbers("positions", list(range(-5, 15)))], FACTS))


def of_scales():
    scales = [(f"layers.{i}.{part}_scale", "F16", [1, 2, 20, 1], values(40)) for i in range(2) for part in ("keys", "values")]
    arrays = layers(20)
    put("scales.safetensors", safetensors(arrays + scales, FACTS))
    put("scales.npz", npz([(n, "<f2", tuple(s), d) for n, _, s, d in arrays + scales]))
    tensor = lambda key, n, size=None: Tensor(key, "HalfStorage", size or (1, 2, n, 4), (8 * n, 4 * n, 4, 1))
    four = tuple((tensor(f"{i}0", 12), tensor(f"{i}1", 12), tensor(f"{i}2", 30), tensor(f"{i}3", 30)) for i in range(2))
    put("encoder.pt", torch_file(four, {f"{i}{k}": values(8 * (12 if k < 2 else 30)) for i in range(2) for k in range(4)}))


def halves(names, n=12):
    """Tensors of torch for a dict or list of names, and their storages; all [1, 2, n, 4]."""
    made = {name: Tensor(str(i), "HalfStorage", (1, 2, n, 4), (8 * n, 4 * n, 4, 1)) for i, name in enumerate(names)}
    return made, {str(i): values(8 * n) for i in range(len(names))}


def numbers(key, data, n, size):
    return Tensor(key, "LongStorage", size, (n, 1)), {key: struct.pack(f"<{n}q", *data)}


def of_facts():
    made, stored = halves(["k0", "v0", "k1", "v1"])
    pairs = ((made["k0"], made["v0"]), (made["k1"], made["v1"]))
    for name, n in (("ids", 12), ("ids-sampled", 13), ("ids-step", 1)):
        tokens, more = numbers("9", range(n), n, (1, n))
        mask, mores = numbers("8", [1] * n, n, (1, n))
        put(name + ".pt", torch_file({"past_key_values": pairs, "input_ids": tokens, "attention_mask": mask}, {**stored, **more, **mores}))
    tokens, more = numbers("9", range(12), 12, (1, 12))
    put("ids-named.pt", torch_file({"past_key_values": pairs, "prompt": tokens}, {**stored, **more}))
    cache = corpus.stub("transformers.cache_utils", "DynamicCache")()
    set_ = set()
    cache.__dict__.update(training=True, _parameters=collections.OrderedDict(), _non_persistent_buffers_set=set_, _seen_tokens=12,
                          key_cache=[made["k0"], made["k1"]], value_cache=[made["v0"], made["v1"]])
    put("module.pt", torch_file(cache, stored))

    def layer(i, **more):
        x = corpus.STUBS["DynamicSlidingWindowLayer" if more else "DynamicLayer"]()
        x.__dict__.update(keys=made[f"k{i}"], values=made[f"v{i}"], is_initialized=True, **more)
        return x
    new = corpus.STUBS["DynamicCache"] = corpus.stub("transformers.cache_utils", "DynamicCache")
    cache = new()
    cache.__dict__.update(layers=[layer(0, cumulative_length=40, sliding_window=12), layer(1, cumulative_length=40, sliding_window=12)])
    put("slides.pt", torch_file(cache, stored))
    ring = [(f"0.{k}", "F16", [1, 2, 8, 16], rows(8)) for k in (0, 1)]
    ring += [(f"0.{k}", "I32", [], struct.pack("<i", n)) for k, n in ((2, 20), (3, 0), (4, 8), (5, 4))]
    put("rotating.safetensors", safetensors(ring, {"1.0": "RotatingKVCache", "2.0": ""}))


def of_names():
    one, whole = rows(12), [1, 2, 12, 16]
    for name, key, value in (("present", "present.{}.key", "present.{}.value"), ("k_cache", "k_cache.{}", "v_cache.{}"),
                             ("behind", "{}_keys", "{}_values"), ("blocks", "model.blocks.{}.attn.k", "model.blocks.{}.attn.v"),
                             ("pairs", "cache.{}.0", "cache.{}.1")):
        arrays = [(form.format(i), one) for i in range(2) for form in (key, value)]
        put(name + ".safetensors", safetensors([(n, "F16", whole, d) for n, d in arrays], FACTS))
        put(name + ".npz", npz([(n, "<f2", tuple(whole), d) for n, d in arrays], zipfile.ZIP_DEFLATED))
    several = [f"{room}.past_key_values.{part}_cache.{i}" for room in ("lm", "tts_lm", "neg_lm") for part in ("key", "value") for i in range(2)]
    made, stored = halves(several)
    rooms = {room: {"past_key_values": {f"{part}_cache": [made[f"{room}.past_key_values.{part}_cache.{i}"] for i in range(2)]
                                        for part in ("key", "value")}} for room in ("lm", "tts_lm", "neg_lm")}
    put("several.pt", torch_file(rooms, stored))
    stacked = [("keys", "F16", [2, *whole], one * 2), ("values", "F16", [2, *whole], one * 2)]
    put("stacked.safetensors", safetensors(stacked))
    put("stacked.npz", npz([(n, "<f2", tuple(s), d) for n, _, s, d in stacked]))
    put("unnamed.npz", npz([(f"arr_{i}", "<f2", tuple(whole), one) for i in range(4)]))
    put("one.pt", torch_file(Tensor("0", "HalfStorage", (1, 2, 12, 4), (96, 48, 4, 1)), {"0": values(96)}))
    made, stored = halves("012")
    put("parts/keys.pt", torch_file(list(made.values()), stored))
    put("parts/values.pt", torch_file(list(made.values()), stored))
    put("heads.safetensors", safetensors(layers(12), FACTS))
    put("latent.safetensors", safetensors([(f"layers.{i}.keys", "F16", [1, 1, 12, 16], rows(12, 1)) for i in range(2)], FACTS))


def axes(order, layers, planes):
    """Bytes of [1, 2, 12, 16] f16 arrays of layers and planes, the axes in an order of the letters lcbhtd, slowest first; and the shape."""
    n = {"l": len(layers), "c": len(planes), "b": 1, "h": 2, "t": 12, "d": 16}
    data = bytearray()
    for at in itertools.product(*(range(n[axis]) for axis in order)):
        i = {"l": 0, "c": 0, "h": 0, "t": 0, "d": 0, **dict(zip(order, at))}
        whole = layers[i["l"]][planes[i["c"]]]
        at = 2 * ((i["h"] * 12 + i["t"]) * 16 + i["d"])
        data += whole[at:at + 2]
    return bytes(data), [n[axis] for axis in order]


def steps(shape):
    """Strides of torch, in elements."""
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))


def of_stacked():
    whole = [(rows(12), rows(12)) for _ in range(3)]
    put("want.safetensors", safetensors([(f"layers.{i}.{part}", "F16", [1, 2, 12, 16], whole[i][p]) for i in range(3)
                                         for p, part in enumerate(("keys", "values"))]))

    def write(name, arrays):
        put(name + ".safetensors", safetensors([(n, "F16", s, d) for n, d, s in arrays]))
        put(name + ".npz", npz([(n, "<f2", tuple(s), d) for n, d, s in arrays]))
        put(name + ".pt", torch_file({n: Tensor(n, "HalfStorage", tuple(s), steps(s)) for n, _, s in arrays}, {n: d for n, d, _ in arrays}))
    for order in ("lbhtd", "lhtd", "blhtd", "lbthd", "tlhd", "dtlh"):
        write("apart-" + order, [(part, *axes(order, whole, [p])) for p, part in enumerate(("keys", "values"))])
    for order in ("lcbhtd", "lchtd", "clbhtd", "clhtd", "ltchd", "tlchd"):
        write("both-" + order, [("cache", *axes(order, whole, [0, 1]))])
    for order in ("bthd", "thd"):
        write("layers-" + order, [(f"layers.{i}.{part}", *axes(order, whole[i:], [p])) for i in range(3)
                                  for p, part in enumerate(("keys", "values"))])
    write("pairs-cbhtd", [(f"kv_{i}", *axes("cbhtd", whole[i:], [0, 1])) for i in range(3)])
    data, shape = axes("lcbhtd", whole, [0, 1])
    put("alone.pt", torch_file(Tensor("0", "HalfStorage", tuple(shape), steps(shape)), {"0": data}))
    put("two.npz", npz([(f"arr_{p}", "<f2", tuple(s), d) for p in (0, 1) for d, s in [axes("lbhtd", whole, [p])]]))

    def files(folder, ending, of):
        for p, part in enumerate(("keys", "values")):
            put(f"{folder}/{part}.{ending}", of(p))
    one = [1, 2, 12, 16]
    files("list-pt", "pt", lambda p: torch_file([Tensor(str(i), "HalfStorage", tuple(one), steps(one)) for i in range(3)],
                                                {str(i): whole[i][p] for i in range(3)}))
    files("list-npz", "npz", lambda p: npz([(f"arr_{i}", "<f2", tuple(one), whole[i][p]) for i in range(3)]))
    files("deflated-npz", "npz", lambda p: npz([(f"arr_{i}", "<f2", tuple(one), whole[i][p]) for i in range(3)], zipfile.ZIP_DEFLATED))
    files("list-safetensors", "safetensors", lambda p: safetensors([(str(i), "F16", one, whole[i][p]) for i in range(3)]))
    files("named-npz", "npz", lambda p: npz([(f"layer_{i}", "<f2", tuple(one), whole[i][p]) for i in range(3)]))
    data, shape = axes("lbhtd", whole, [0]), axes("lbhtd", whole, [1])
    array = lambda p: npy("<f2", tuple((data, shape)[p][1]), (data, shape)[p][0])
    files("stacked-npy", "npy", array)
    for i in range(3):
        put(f"layers-pt/layer_{i}.pt", torch_file((Tensor("k", "HalfStorage", tuple(one), steps(one)), Tensor("v", "HalfStorage", tuple(one), steps(one))),
                                                  {"k": whole[i][0], "v": whole[i][1]}))
    put("list-pt/README.txt", b"three layers\n")
    put("k-v/k.pt", open("list-pt/keys.pt", "rb").read())
    put("k-v/v.pt", open("list-pt/values.pt", "rb").read())
    put("caches/a.npz", npz([(f"layers.0.{part}", "<f2", tuple(one), whole[0][0]) for part in ("keys", "values")]))
    put("caches/b.npz", npz([(f"layers.0.{part}", "<f2", tuple(one), whole[1][0]) for part in ("keys", "values")]))


def of_bits():
    """K and V as integers that are the bits of bf16, as numpy users save them, and of 8-bit floats."""
    shape, one = [1, 2, 12, 16], rows(12)
    names = [f"layers.{i}.{part}" for i in range(2) for part in ("keys", "values")]
    put("bf16.safetensors", safetensors([(n, "BF16", shape, one) for n in names]))
    put("f16.safetensors", safetensors([(n, "F16", shape, one) for n in names]))
    for kind, descr, more in (("I16", "<i2", {}), ("U16", "<u2", {"dtype": "uint16", "count": len(one)})):
        tensor = lambda n: Tensor(n, "UntypedStorage" if more else "ShortStorage", tuple(shape), steps(shape), **more)
        put(f"{kind}.safetensors", safetensors([(n, kind, shape, one) for n in names]))
        put(f"{kind}.npz", npz([(n, descr, tuple(shape), one) for n in names]))
        put(f"{kind}.pt", torch_file({n: tensor(n) for n in names}, {n: one for n in names}))
    eight = bytes(rng.randrange(0x20, 0x60) for _ in range(2 * 12 * 16))
    put("U8.npz", npz([(n, "|u1", tuple(shape), eight) for n in names]))
    put("f8.safetensors", safetensors([(n, "F8_E4M3", shape, eight) for n in names]))
    put("mixed.safetensors", safetensors([(n, "I16" if "keys" in n else "F16", shape, one) for n in names]))
    put("stacked.npz", npz([("cache", "<u2", (2, 2, *shape), one * 4)]))
    header = json.dumps({"__metadata__": None, **{n: {"dtype": "BF16", "shape": shape, "data_offsets": [i * len(one), (i + 1) * len(one)]}
                                                  for i, n in enumerate(names)}}).encode()
    put("null.safetensors", struct.pack("<Q", len(header)) + header + one * 4)


def of_folders():
    apple = bytes.fromhex("0005160700020000") + b"Mac OS X        " + bytes(16)
    for i in range(2):
        name = f"model.layers.{i}.self_attn.attn.safetensors"
        put("prompt/" + name, safetensors([("kv_cache", "F16", [16, 2, 2, 64], values(16 * 2 * 2 * 64))]))
        put("prompt/._" + name, apple)
    put("prompt/.DS_Store", b"\0\0\0\1Bud1")
    for i in range(2):
        put(f"sharded/part-{i}.safetensors", safetensors(layers(12)[2 * i:2 * i + 2], FACTS))
        put(f"sharded/._part-{i}.safetensors", apple)
    put("._alone.safetensors", apple)
    with tarfile.open("prompt.tar", "w") as t:
        t.add("prompt")
    with zipfile.ZipFile("prompt.zip", "w") as z:
        for i in range(2):
            z.write(f"prompt/model.layers.{i}.self_attn.attn.safetensors")
    entry = lambda: safetensors([(f"{i}.{j}", "F16", [1, 2, 12, 16], rows(12)) for i in range(2) for j in range(2)],
                                {"0.0": "", "0.1": "", "2.0": "KVCache", "2.1": "KVCache"})
    put("mlx/entry_0.safetensors", entry())
    put("mlx/entry_1.safetensors", entry())
    put("mlx/entry_0_tokens.bin", struct.pack("<12i", *range(12)))
    put("mlx/index.json", b'{"entries": []}')
    chunk = b"".join(bytes((rng.randrange(256), rng.choice((0x3F, 0xBF)))) for _ in range(2 * 3 * 12 * 64))
    put("disk/vllm@-models-Qwen2.5@1@0@be2349cd.pt", chunk)
    put("disk/vllm@-models-Qwen2.5@1@0@be2349cd.meta", b'{"shape": [2, 3, 12, 64], "dtype": "torch.bfloat16"}')
    put("pages/" + 64 * "a" + "_DeepSeek-V2.bin", values(2 * 16 * 576))
    put("lfs.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 5242880\n")
    put("page.safetensors", b"<!DOCTYPE html><html><head><title>404</title></head></html>\n")
    put("page.pt", b"<html><body>Sign in</body></html>\n")
    put("cache.pkl", b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01K\x02e.")
    put("old.pkl", b"\x80\x02]q\x00(K\x01K\x02e.")


{"rows": of_rows, "places": of_places, "scales": of_scales, "facts": of_facts, "names": of_names, "stacked": of_stacked, "bits": of_bits, "folders": of_folders}[sys.argv[1]]()
