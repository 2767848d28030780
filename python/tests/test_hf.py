"""transformers: tiny models with random weights go on as if nothing had been saved and loaded. Without downloads."""

import copy
import os
import pickle
import unittest

import numpy as np
from common import Case, SAMPLES, needs_store

import kvc

try:
    import torch
    import transformers
    from transformers import DynamicCache

    from kvc import hf

    MISSING = "" if int(transformers.__version__.split(".")[0]) >= 5 else "transformers is older than 5"
except ImportError as problem:
    MISSING = f"transformers is not tested: {problem}"
if not MISSING:
    torch.set_num_threads(1)
NEW = 8
CHUNK = 256


def sizes():
    return dict(vocab_size=128, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
                max_position_embeddings=2048, pad_token_id=0, eos_token_id=None, bos_token_id=None)


def llama(seed=0, **more):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_hidden_layers=3, **sizes(), **more)).eval()


def gemma(seed=0, window=32):
    """A model with sliding windows in all layers but one."""
    torch.manual_seed(seed)
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        num_hidden_layers=4, layer_types=kinds, sliding_window=window, **sizes())).eval()


def sliding(name, config=None, window=32, **more):
    """Returns a function that makes a model whose layers all have a window."""
    def make():
        torch.manual_seed(0)
        kind = getattr(transformers, config or f"{name}Config")
        return getattr(transformers, f"{name}ForCausalLM")(kind(**{"num_hidden_layers": 3, "sliding_window": window, **sizes(), **more})).eval()
    return make


def gemma4(**more):
    """A model whose layers with full attention have wider heads, and maybe fewer."""
    torch.manual_seed(0)
    return transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**{
        **sizes(), "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 32,
        "global_head_dim": 32, "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 16, **more})).eval()


def gemma3n():
    """A model whose last two layers use K and V of layers before them."""
    torch.manual_seed(0)
    return transformers.Gemma3nForCausalLM(transformers.Gemma3nTextConfig(
        **sizes(), num_hidden_layers=6, layer_types=["sliding_attention", "full_attention"] * 3, sliding_window=32, num_kv_shared_layers=2,
        laurel_rank=8, activation_sparsity_pattern=None, vocab_size_per_layer_input=128, hidden_size_per_layer_input=16)).eval()


def generate(model, ids, cache=None):
    return model.generate(ids, attention_mask=torch.ones_like(ids), past_key_values=cache, max_new_tokens=NEW, min_new_tokens=NEW,
                          do_sample=False, return_dict_in_generate=True)


def prompt(n, seed=1):
    return torch.randint(1, 128, (1, n), generator=torch.Generator().manual_seed(seed))


def cache_of(model, ids, cache=None):
    cache = DynamicCache(config=model.config) if cache is None else cache
    with torch.no_grad():
        model(ids, **{hf._cache_argument(model): cache})
    return cache


@unittest.skipIf(MISSING, MISSING)
class TestFiles(Case):
    def goes_on(self, model, saved, total):
        ids = prompt(total)
        due = generate(model, ids).sequences
        cache = cache_of(model, ids[:, :saved])
        path = self.path(f"{saved}.kvc")
        kvc.save(cache, path, tokens=ids[:, :saved], model=model)
        again = kvc.load(path)
        for a, b in zip(cache.layers, again.layers):
            self.assertIs(type(a), type(b))
            if a.keys is None:  # it uses those of another layer
                continue
            self.assertEqual(a.get_seq_length(), b.get_seq_length())
            self.assertTrue(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values))
        self.assertTrue(torch.equal(generate(model, ids, again).sequences, due))
        return path

    def test_full(self):
        for dtype in (torch.float32, torch.bfloat16):
            model = llama().to(dtype)
            path = self.goes_on(model, 90, 100)
            with kvc.open(path) as f:
                self.assertEqual(f.meta["model.architecture"], "llama")
                self.assertEqual(f.meta["rope.theta"], "10000")
                self.assertEqual(f.tokens.size, 90)
                tensors = f.arrays(torch=True)
                self.assertEqual(tensors[0, "K"].dtype, dtype)
            cut = kvc.load(path, end=64)
            self.assertEqual(cut.get_seq_length(), 64)
            ids = prompt(100)
            self.assertTrue(torch.equal(generate(model, ids, cut).sequences, generate(model, ids).sequences))

    def test_pairing(self):
        """K of models that pair channels otherwise, or rotate some of them, comes back as it was out of another format, and facts say so."""
        for name, more, due in (("Cohere", {}, ("interleaved", None)), ("Glm4", {}, ("interleaved", "8")),
                                ("GPTNeoX", dict(rotary_pct=0.25), ("halves", "4")), ("Bloom", dict(n_head=4), ("none", None))):
            torch.manual_seed(0)
            kind = getattr(transformers, name + "ForCausalLM")
            known = set(getattr(kind.config_class, "__dataclass_fields__", ())) | set(kind.config_class.attribute_map)
            model = kind(kind.config_class(**{key: value for key, value in sizes().items() if key in known}, num_hidden_layers=2,
                                           **more)).eval()
            path, cache = self.goes_on(model, 50, 60), cache_of(model, prompt(60)[:, :50])
            with kvc.open(path) as f:
                self.assertEqual((f.meta["rope.pairing"], f.meta.get("rope.dim")), due)
                f.unpack(self.path("other.safetensors"), "safetensors", lossy_metadata=True)
            for config in (None, model):
                again = kvc.load(self.path("other.safetensors"), config=config)
                for a, b in zip(cache.layers, again.layers):
                    self.assertTrue(torch.equal(a.keys, b.keys) and torch.equal(a.values, b.values))

    def test_versions(self):
        """Caches of a transformers that is too old are refused, if not those that are a (K, V) for each layer."""
        hf.check_version("5.0.0")
        self.fails(kvc.Code.UNSUPPORTED, "transformers 4.57.3 is not supported: 5.0 and later are", hf.check_version, "4.57.3")
        pairs = [(torch.ones(1, 2, 5, 16),) * 2] * 2
        for name in ("QuantizedCache", "DynamicCache"):  # of the first only what is not quantised yet
            early = type(name, (list,), {"__module__": "transformers.cache_utils"})(pairs)
            if name == "DynamicCache":
                with kvc.open_arrays(early) as f:
                    self.assertEqual(len(f), 4)
            else:
                self.fails(kvc.Code.UNSUPPORTED, "QuantizedCache", kvc.pack, early)

    def save_again(self, path, model, more):
        """Loads a file, goes on with more tokens, and saves it with the file as its base. Returns the cache, the rows that were loaded, and
        the new file."""
        cache, new = kvc.load(path), path + ".kvc"
        due = [(layer.keys.clone(), layer.values.clone()) for layer in cache.layers]
        if more.numel():
            cache_of(model, more, cache)
        with kvc.open(path) as old:
            kvc.save(cache, new, model=model, base=old)
        return cache, due, new

    def test_again(self):
        """Saved with loss and loaded again and again, and continued in between, rows stay as they came out first."""
        ids, path, end = prompt(400), self.path("0.kvc"), 250
        model = llama().to(torch.bfloat16)
        kvc.save(cache_of(model, ids[:, :end]), path, model=model, recipe="small")
        for more in (0, 3, 40, 0, 100):
            cache, due, path = self.save_again(path, model, ids[:, end:end + more])
            for (k, v), layer in zip(due, kvc.load(path).layers):
                self.assertTrue(torch.equal(k, layer.keys[:, :, :end]) and torch.equal(v, layer.values[:, :, :end]))
            end += more
        self.assertEqual(kvc.load(path).get_seq_length(), end)
        kvc.save(kvc.load(path), self.path("anew.kvc"), model=model, recipe="small")
        self.assertFalse(torch.equal(kvc.load(path).layers[0].keys, kvc.load(self.path("anew.kvc")).layers[0].keys))
        with kvc.open(path) as old:
            self.fails(kvc.Code.USAGE, "base", kvc.save, cache, self.path("no.kvc"), model=model, recipe="tiny", base=old)

    def test_again_with_windows(self):
        """Rows that are left in windows, which move on, stay as they came out first."""
        model, path, ids, end = gemma().to(torch.bfloat16), self.path("0.kvc"), prompt(200), 90
        kvc.save(cache_of(model, ids[:, :end]), path, model=model, recipe="small")
        for more in (0, 1, 7, 0, 20, 40):
            _, due, path = self.save_again(path, model, ids[:, end:end + more])
            end += more
            for (k, v), layer in zip(due, kvc.load(path).layers):
                gone = k.shape[2] + more - layer.keys.shape[2]
                self.assertEqual(gone, more if layer.is_sliding else 0)
                left = max(0, k.shape[2] - gone)
                self.assertTrue(torch.equal(k[:, :, gone:], layer.keys[:, :, :left]))
                self.assertTrue(torch.equal(v[:, :, gone:], layer.values[:, :, :left]))

    def test_sliding(self):
        for saved in (20, 31, 32, 33, 90):  # shorter than the window, as long, longer
            path = self.goes_on(gemma(), saved, 100)
        self.fails(kvc.Code.NOT_SLICEABLE, "layer 0", kvc.load, path, end=64)
        self.assertEqual(kvc.load(self.path("20.kvc"), end=10).get_seq_length(), 10)

    def test_pack_takes_a_cache(self):
        model, ids = llama(), prompt(40)
        cache = cache_of(model, ids)
        with kvc.open(kvc.pack(cache, tokens=ids)) as f, kvc.open_arrays(cache, tokens=ids) as g:
            self.assertTrue(kvc.compare(f, g))
        tensors = {(i, role): t[0] for i, layer in enumerate(cache.layers) for role, t in (("K", layer.keys), ("V", layer.values))}
        with kvc.open_arrays(tensors, layout="HTD") as f, kvc.open_arrays(cache) as g:
            self.assertTrue(kvc.compare(f, g))

    def test_tokens(self):
        out = generate(llama(), prompt(30))
        kvc.save(out.past_key_values, self.path("a.kvc"), tokens=out.sequences)  # the last token has no row yet
        self.fails(kvc.Code.USAGE, "names 5", kvc.save, out.past_key_values, self.path("b.kvc"), tokens=[1, 2, 3, 4, 5])

    def test_files_of_engines(self):
        mine = kvc.load(SAMPLES / "slot-f16.bin", dtype=torch.float32, kv_heads=3, pairing="interleaved")
        theirs = kvc.load(SAMPLES / "transformers-16.safetensors", dtype=torch.float32)
        self.assertEqual(len(mine.layers), 30)
        for a, b in zip(mine.layers, theirs.layers):  # K has another RoPE pairing in the slot
            self.assertLess(float((a.keys - b.keys).norm() / b.keys.norm()), 0.05)
        rounded = kvc.load(SAMPLES / "slot-q4_1-q5_0.bin", dtype=torch.float16, kv_heads=3, pairing="interleaved")
        self.assertLess(float((rounded.layers[9].values.float() - theirs.layers[9].values).norm() / theirs.layers[9].values.norm()), 0.2)
        self.fails(kvc.Code.UNSUPPORTED, "q4_1", kvc.load, SAMPLES / "slot-q4_1-q5_0.bin", kv_heads=3, pairing="interleaved")
        self.fails(kvc.Code.USAGE, "the RoPE pairing of K is unknown; open it with pairing= or model=", kvc.load, SAMPLES / "slot-f16.bin",
                   kv_heads=3)
        for name in ("f16", np.float16, "float16", "torch.float16"):
            self.assertEqual(kvc.load(SAMPLES / "transformers-16.safetensors", dtype=name).layers[0].keys.dtype, torch.float16)

    def test_all_sliding(self):
        """A cache of layers that all have a window has the length of its text, which no array tells."""
        for make in (sliding("Gemma3", "Gemma3TextConfig", layer_types=["sliding_attention"] * 3), sliding("Mistral"), sliding("Phi3"),
                     sliding("Starcoder2"), sliding("Ministral")):
            model = make()
            for saved in (20, 31, 32, 33, 90):
                path = self.goes_on(model, saved, 100)
                self.assertEqual(kvc.load(path).get_seq_length(), saved)
                with kvc.open(path) as f:
                    self.assertEqual(f.range(), (max(0, saved - 31), saved))
                kvc.save(kvc.load(path), path, model=model)  # once more, without ids
                self.assertEqual(kvc.load(path, end=saved).get_seq_length(), saved)
            for end in (89, 59, 31, 5):
                self.fails(kvc.Code.NOT_SLICEABLE, "", kvc.load, path, end=end)
            self.assertEqual(kvc.load(self.path("31.kvc"), end=5).get_seq_length(), 5)

    def test_windows_of_two_sizes(self):
        """Layers of a shorter window end the parts that can be had."""
        ids, cache = prompt(60), DynamicCache(config=sliding("Mistral")().config)
        cache_of(sliding("Mistral")(), ids, cache)
        cache.layers[1].sliding_window, cache.layers[1].keys, cache.layers[1].values = 16, *(
            t[:, :, -15:] for t in (cache.layers[1].keys, cache.layers[1].values))
        kvc.save(cache, self.path("two.kvc"), tokens=ids)
        again = kvc.load(self.path("two.kvc"))
        self.assertEqual([(layer.keys.shape[2], layer.get_seq_length()) for layer in again.layers], [(31, 60), (15, 60), (31, 60)])
        self.fails(kvc.Code.NOT_SLICEABLE, "", kvc.load, self.path("two.kvc"), end=59)

    def test_unlike_layers(self):
        """Layers of other widths, layers that use K and V of others: facts that are not true for all are left out."""
        for model, lacks in ((gemma4(), {"model.head-dim"}), (gemma4(num_global_key_value_heads=1, attention_k_eq_v=True),
                                                              {"model.head-dim", "model.kv-heads"}),
                             (gemma4(num_kv_shared_layers=2), {"model.head-dim"}), (gemma3n(), set())):
            path = self.goes_on(model, 50, 60)
            with kvc.open(path) as f:
                self.assertEqual({"model.head-dim", "model.kv-heads", "model.layers", "model.heads"} - set(f.meta), lacks)

    def test_parts(self):
        """A model cannot go on from some layers, or from later tokens: no cache pretends that it can."""
        model, ids = llama(), prompt(600)
        kvc.save(cache_of(model, ids), self.path("whole.kvc"), tokens=ids, model=model)
        with kvc.open(self.path("whole.kvc")) as f:
            for name, words, part in (("layers", "the file has the layers 0, 2 only, and a model needs 0-2", dict(layers=[0, 2])),
                                      ("last", "the file has the layers 2 only, and a model needs 0-2", dict(layers=[2])),
                                      ("later", "the file begins at position 256", dict(first=256))):
                with f.select(**{"first": 0, **part}) as g:
                    g.pack(self.path(name))
                self.fails(kvc.Code.UNSUPPORTED, words, kvc.load, self.path(name))
            with kvc.open_arrays({(i, "K"): f[i, "K"] for i in range(3)}) as g:
                g.pack(self.path("k"))
        self.fails(kvc.Code.UNSUPPORTED, "the file has no V of layer 0", kvc.load, self.path("k"), pairing="halves")
        with kvc.open(SAMPLES / "transformers-16.safetensors") as f, f.select(layers=[3, 16]) as g:
            g.pack(self.path("two"))
        self.fails(kvc.Code.UNSUPPORTED, "the file has the layers 3, 16 only, and a model needs 0-16", kvc.load, self.path("two"))
        self.fails(kvc.Code.UNSUPPORTED, "layers 0-2 only, and a model needs 0-3", kvc.load,
                   self.bare(self.path("whole.kvc")), config=transformers.LlamaConfig(num_hidden_layers=4, **sizes()))
        self.fails(kvc.Code.OTHER_MODEL, "layers 0-2, and the model 0-1", kvc.load,
                   self.bare(self.path("whole.kvc")), config=transformers.LlamaConfig(num_hidden_layers=2, **sizes()))

    def bare(self, path):
        """Returns a file of the same arrays, without what save() knows of layers."""
        with kvc.open(path) as f:
            kvc.pack(f.arrays(), self.path("bare.kvc"), facts={"rope.pairing": "halves"})
        return self.path("bare.kvc")

    def test_nonsense(self):
        """Empty caches, layers that lack tokens, ids of other texts, and models that are none are refused; nothing is written."""
        model, ids = llama(), prompt(30)
        cache, path = cache_of(model, ids), self.path("a.kvc")
        for empty in (DynamicCache(), DynamicCache(config=model.config)):
            self.fails(kvc.Code.USAGE, "the cache is empty", kvc.save, empty, path)
            self.fails(kvc.Code.USAGE, "the cache is empty", kvc.pack, empty)
        for n in (5, 29, 32):
            self.fails(kvc.Code.USAGE, f"names {n}", kvc.save, cache, path, tokens=prompt(n))
        cut = cache_of(model, ids)
        cut.layers[1].keys, cut.layers[1].values = cut.layers[1].keys[:, :, :7], cut.layers[1].values[:, :, :7]
        self.fails(kvc.Code.USAGE, "layer 1 has 7 tokens, and the cache has 30", kvc.save, cut, path)
        sliding = cache_of(gemma(window=16), ids)
        sliding.layers[0].keys, sliding.layers[0].values = sliding.layers[0].keys[:, :, -7:], sliding.layers[0].values[:, :, -7:]
        self.fails(kvc.Code.USAGE, "layer 0 has the last 7 of 30 tokens, and its window of 16 needs 15", kvc.save, sliding, path)
        sliding.layers[0].keys = sliding.layers[0].keys[:, :, -5:]
        self.fails(kvc.Code.USAGE, "layer 0 has 5 tokens in K and 7 in V", kvc.save, sliding, path)
        bare = kvc.pack({(i, r): np.ones((4, 2, 8), np.float32) for i in range(2) for r in "KV"}, facts={"rope.pairing": "halves"})
        for call, words in ((lambda: kvc.save(cache, path, model="org/name"), "AutoConfig.from_pretrained('org/name')"),
                            (lambda: kvc.save(cache, path, model=5), "not an int"), (lambda: kvc.load(bare, config="x"), "from_pretrained('x')"),
                            (lambda: kvc.save(cache, path, recepie="small"),
                             "save() got an unexpected keyword argument 'recepie'; did you mean 'recipe'?"),
                            (lambda: kvc.load(path, paring="halves"), "did you mean 'pairing'?"),
                            (lambda: kvc.pack(cache, layout="BHTD"), "layout= is for arrays, and the cache is a DynamicCache")):
            with self.assertRaises(TypeError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        self.assertEqual(os.listdir(self.folder), [])
        kvc.save(cache, path, model=model.config)
        with kvc.open(path) as f:
            self.assertEqual(f.meta["model.architecture"], "llama")

    def test_whole_numbers(self):
        """K and V of 8 bits are no values: they are loaded with a type to round to, and with their scales."""
        arrays = {f"layers.{i}.{name}": torch.full((1, 2, 5, 16), i + 1, dtype=torch.int8) for i in range(2) for name in ("keys", "values")}
        torch.save(arrays, self.path("c.pt"))
        self.fails(kvc.Code.UNSUPPORTED, "layer 0 K is i8, numbers that a model does not compute with", kvc.load, self.path("c.pt"))
        self.fails(kvc.Code.UNSUPPORTED, "whose values have a scale that nothing tells", kvc.load, self.path("c.pt"), dtype="float16")
        cache = kvc.load(self.path("c.pt"), dtype="float16", facts={"scale.k": 0.5, "scale.v": 2})
        self.assertEqual([(x.keys.dtype, float(x.keys[0, 1, 4, 3]), float(x.values.max())) for x in cache.layers],
                         [(torch.float16, 0.5, 2.0), (torch.float16, 1.0, 4.0)])

    def test_pruned(self):
        """Rows of a pruned cache beside the ids of the whole prompt: a model would go on at other positions."""
        arrays = {f"layers.{i}.{name}": torch.ones((1, 2, 12, 16)) for i in range(2) for name in ("keys", "values")}
        for n, good in ((12, 1), (13, 1), (20, 0)):
            torch.save({**arrays, "tokens": torch.arange(n)}, self.path("c.pt"))
            if good:
                self.assertEqual(kvc.load(self.path("c.pt")).get_seq_length(), 12)
            else:
                self.fails(kvc.Code.USAGE, "12 rows beside 20 token ids", kvc.load, self.path("c.pt"))

    def test_refused(self):
        model, ids = llama(), prompt(20)
        cache = cache_of(model, ids)
        path = self.path("a.kvc")
        kvc.save(cache, path)
        self.fails(kvc.Code.UNSUPPORTED, "'cuda'", kvc.load, path, device="cuda")
        static = transformers.StaticCache(config=model.config, max_cache_len=64)
        self.fails(kvc.Code.UNSUPPORTED, "StaticCache", kvc.save, static, path)
        self.fails(kvc.Code.UNSUPPORTED, "EncoderDecoderCache", kvc.save, transformers.EncoderDecoderCache(cache, cache), path)
        from transformers.cache_utils import DynamicIndexedLayer, LinearAttentionLayer
        for kind in (DynamicIndexedLayer, LinearAttentionLayer):
            other = DynamicCache()
            other.layers = [*cache.layers, kind()]
            self.fails(kvc.Code.UNSUPPORTED, f"layer 3 of the cache is a {kind.__name__}", kvc.save, other, path)
        model = sliding("Mistral", window=1)()
        self.fails(kvc.Code.UNSUPPORTED, "layer 0 of the cache has a window of fewer than 2 tokens", kvc.save, cache_of(model, ids), path)
        self.fails(kvc.Code.UNSUPPORTED, "batch of 2", kvc.save, cache_of(llama(), ids.repeat(2, 1)), path)
        meta = {(0, "K"): torch.empty(4, 2, 8, device="meta")}
        self.fails(kvc.Code.UNSUPPORTED, "'meta'", kvc.pack, meta)


@needs_store
@unittest.skipIf(MISSING, MISSING)
class TestPrefix(Case):
    def open(self, model, **options):
        store = kvc.Store(f"dir:{self.path('store')}", local_timeout=10)
        self.addCleanup(store.close)
        return store, kvc.Prefix(store, model, chunk=CHUNK, **options)

    def test_other_weights(self):
        """One number of a weight, of a buffer, or of RoPE: another model, whose caches are others."""
        def names(model, change):
            store, prefix = self.open(model)
            first = prefix.namespace.name
            change(model)
            again = kvc.Prefix(store, model, chunk=CHUNK)
            self.assertNotEqual(first, again.namespace.name)

        def weight(model):
            model.model.embed_tokens.weight.data[77, 13] += 1

        def order(model):
            rows = model.model.layers[1].self_attn.k_proj.weight.data
            rows[[3, 4]] = rows[[4, 3]]

        def buffer(model):
            model.scales[5] = 2

        def norm(model):
            model.config.rms_norm_eps = 0.5

        def adapter(model):
            model.model.layers[0].mlp._active_adapter = ["b"]

        def strength(model):
            model.model.layers[0].mlp.scaling["a"] = 0.25

        def off(model):
            model.model.layers[0].mlp._disable_adapters = True

        def rope(model):
            model.config.rope_parameters["full_attention"].update(rope_type="linear", factor=8.0)

        quantised = llama()
        quantised.register_buffer("scales", torch.ones(7))
        for model, change in ((llama(), weight), (llama(), order), (quantised, buffer), (gemma(), rope), (llama(), norm)):
            names(model, change)
        for change in (adapter, strength, off):
            model = llama()
            vars(model.model.layers[0].mlp).update(_active_adapter=["a"], _disable_adapters=False, scaling={"a": 2.0})  # as peft's layers
            names(model, change)
        store, prefix = self.open(llama())
        self.assertEqual(prefix.namespace.name, kvc.Prefix(store, llama(), chunk=CHUNK).namespace.name)

    def round_trip(self, make):
        model, ids = make(), prompt(600)
        due = generate(model, ids).sequences
        store, prefix = self.open(model)
        out = generate(model, ids, prefix.get(ids))
        self.assertEqual((prefix.loaded, prefix.hit.tokens), (0, 0))
        self.assertTrue(torch.equal(out.sequences, due))
        self.assertEqual(prefix.put(out.past_key_values, out.sequences), 2 * CHUNK)
        store.close()
        store, prefix = self.open(make())  # as another process would
        again = generate(prefix.model, ids, prefix.get(ids))
        self.assertEqual((prefix.loaded, prefix.hit.tiers), (2 * CHUNK, f"dir {2 * CHUNK}"))
        self.assertTrue(torch.equal(again.sequences, due))
        self.assertEqual(prefix.put(again.past_key_values, again.sequences, wait=True), 2 * CHUNK)
        self.assertEqual(store.stats["put_objects"], 0)  # they are there
        longer = torch.cat([ids[:, :300], prompt(100, seed=2)], dim=1)  # another prompt, which begins alike
        self.assertTrue(torch.equal(generate(model, longer, prefix.get(longer)).sequences, generate(model, longer).sequences))
        self.assertEqual(prefix.loaded, CHUNK)
        exact = ids[:, :CHUNK]  # never the whole prompt
        self.assertEqual(prefix.get(exact).get_seq_length(), 0)
        return store, prefix, ids

    def test_cache_argument(self):
        """Models are given their cache by the name that their transformers has for it."""
        class Old:
            def forward(self, input_ids, past_key_values=None, **kwargs):
                pass

        class New:
            def forward(self, input_ids, cache=None, **kwargs):
                pass

        self.assertEqual((hf._cache_argument(Old()), hf._cache_argument(New())), ("past_key_values", "cache"))
        named = "cache" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (5, 24) else "past_key_values"
        self.assertEqual(hf._cache_argument(llama()), named)

    def test_wrong_use(self):
        """Arguments in the wrong place are named, copies refused, and a Prefix says what it is."""
        store, prefix = self.open(llama())
        self.assertEqual(repr(prefix), f"<kvc.Prefix LlamaForCausalLM, chunks of {CHUNK} tokens, 0 tokens loaded>")
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with self.assertRaises(TypeError) as caught:
                attempt(prefix)
            self.assertIn("cannot be copied or pickled: make another with kvc.Prefix(store, model)", str(caught.exception))
        for arguments, words in ((("dir:x", prefix.model), "takes a kvc.Store first, and not a str: kvc.Prefix(kvc.Store('dir:x'), model)"),
                                 ((prefix.model, store), "takes a kvc.Store first, and not a LlamaForCausalLM"),
                                 ((store, "name"), "needs a model of transformers, with its parameters, and not a str"),
                                 ((store, prefix.model.config), "and not a LlamaConfig")):
            with self.assertRaises(TypeError) as caught:
                kvc.Prefix(*arguments)
            self.assertIn(words, str(caught.exception))
        self.fails(kvc.Code.USAGE, "get() looks for a prompt", lambda: prefix.hit)
        prefix.close()
        self.assertIn("closed", repr(prefix))
        self.fails(kvc.Code.USAGE, "this Namespace is closed", prefix.get, prompt(300))

    def test_full(self):
        store, prefix, ids = self.round_trip(llama)
        other = kvc.Prefix(store, llama(seed=5), chunk=CHUNK)  # other weights of the same shape
        self.assertEqual(other.get(ids).get_seq_length(), 0)
        self.fails(kvc.Code.OTHER_MODEL, "other layers", prefix.put, cache_of(gemma(), ids), ids)
        prefix.close()
        self.assertTrue(prefix.namespace.closed)

    def test_sliding(self):
        store, prefix, ids = self.round_trip(gemma)
        narrow = kvc.Prefix(store, prefix.model, chunk=CHUNK, keep_windows=False)
        cache = narrow.get(ids)
        self.assertEqual([layer.keys.shape[2] for layer in cache.layers], [31, 31, 2 * CHUNK, 31])
        out = generate(prefix.model, ids, cache)
        self.assertTrue(torch.equal(out.sequences, generate(prefix.model, ids).sequences))
        # it is put as a whole, and found by a prompt that goes on from it
        self.assertEqual(narrow.put(out.past_key_values, out.sequences, wait=True), 600 + NEW - 1)
        longer = torch.cat([out.sequences, prompt(50, seed=3)], dim=1)
        due = generate(prefix.model, longer).sequences
        for again in (narrow, prefix):
            self.assertTrue(torch.equal(generate(prefix.model, longer, again.get(longer)).sequences, due))
            self.assertEqual(again.loaded, 600 + NEW - 1)
        self.fails(kvc.Code.NOT_SLICEABLE, "the last ones only", narrow.put, out.past_key_values, ids)

    def test_rope_by_length(self):
        """transformers turns K by another base, or another list, at each length: a store has no namespace for such caches."""
        for rope in ({"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0] * 8,
                                                               "long_factor": [2.0] * 8, "original_max_position_embeddings": 64}):
            torch.manual_seed(0)
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(), num_hidden_layers=2, rope_parameters={
                "rope_theta": 1e4, **rope})).eval()
            with kvc.Store(f"dir:{self.path('store')}") as store:
                self.fails(kvc.Code.UNSUPPORTED, "rope.source", kvc.Prefix, store, model)
                facts = {"rope.source": "prompts of more than 64 tokens"}
                before = kvc.Prefix(store, model, facts=facts)
                model(torch.ones((1, 100), dtype=torch.long))  # sets the list
                self.assertEqual(kvc.Prefix(store, model, facts=facts).namespace.name, before.namespace.name)

    def test_all_sliding(self):
        """A prompt that is longer than all windows comes back as long as it was, from chunks or as a whole."""
        for name in ("Mistral", "Phi3"):
            with self.subTest(name):
                store, prefix, ids = self.round_trip(sliding(name))
                narrow = kvc.Prefix(store, prefix.model, chunk=CHUNK, keep_windows=False)
                cache = narrow.get(ids)
                self.assertEqual([layer.keys.shape[2] for layer in cache.layers], [31, 31, 31])
                self.assertEqual(cache.get_seq_length(), 2 * CHUNK)
                out = generate(prefix.model, ids, cache)
                self.assertTrue(torch.equal(out.sequences, generate(prefix.model, ids).sequences))
                self.assertEqual(narrow.put(out.past_key_values, out.sequences, wait=True), 600 + NEW - 1)
                longer = torch.cat([out.sequences, prompt(50, seed=3)], dim=1)
                due = generate(prefix.model, longer).sequences
                for again in (narrow, prefix):
                    cache = again.get(longer)
                    self.assertEqual((again.loaded, cache.get_seq_length()), (600 + NEW - 1,) * 2)
                    self.assertTrue(torch.equal(generate(prefix.model, longer, cache).sequences, due))

    def test_unlike_layers(self):
        for make in (gemma4, lambda: gemma4(num_kv_shared_layers=2), gemma3n):
            self.round_trip(make)

    def test_short_windows(self):
        """A cache that is shorter than its windows is cut into chunks as any other."""
        model = gemma(window=1024)
        ids = prompt(300)
        store, prefix = self.open(model, keep_windows=False)
        self.assertEqual(prefix.put(cache_of(model, ids), ids, wait=True), CHUNK)
        out = generate(model, ids, prefix.get(ids))
        self.assertEqual(prefix.loaded, CHUNK)
        self.assertTrue(torch.equal(out.sequences, generate(model, ids).sequences))

    def test_weights_file(self):
        model, ids = llama(), prompt(300)
        model.save_pretrained(self.path("model"))
        store, prefix = self.open(model, weights=self.path("model"))
        self.assertIn("safetensors.pieces", prefix.namespace.facts)
        self.assertEqual(prefix.put(cache_of(model, ids), ids, wait=True), CHUNK)
        again = transformers.LlamaForCausalLM.from_pretrained(self.path("model"))
        self.assertEqual(kvc.Prefix(store, again, weights=self.path("model"), chunk=CHUNK).get(ids).get_seq_length(), CHUNK)

    def test_adapters_beside_weights(self):
        """Files of weights do not tell which adapters a model has."""
        model, ids = llama(), prompt(300)
        model.save_pretrained(self.path("model"))
        store, prefix = self.open(model, weights=self.path("model"))
        prefix.put(cache_of(model, ids), ids, wait=True)
        vars(model.model.layers[0].mlp).update(_active_adapter=["a"], _disable_adapters=False, scaling={"a": 2.0})
        self.assertEqual(kvc.Prefix(store, model, weights=self.path("model"), chunk=CHUNK).get(ids).get_seq_length(), 0)

    def test_tokens_of_the_model(self):
        """A model that puts tokens of its own before a prompt, as by prompt tuning: rows are not those of the ids."""
        class Tuned(transformers.LlamaForCausalLM):
            def forward(self, input_ids=None, **options):
                return super().forward(input_ids=torch.cat([input_ids[:, :1], input_ids], dim=1), **options)

        model = Tuned(llama().config).eval()
        with kvc.Store(f"dir:{self.path('store')}") as store:
            self.fails(kvc.Code.UNSUPPORTED, "the model's cache has 2 tokens after one", kvc.Prefix, store, model)

    def test_other_models(self):
        """Models whose caches are none of K and V by tokens alone are refused by a message."""
        small = dict(d_model=32, num_heads=2)
        t5 = transformers.T5ForConditionalGeneration(transformers.T5Config(**small, d_kv=16, d_ff=32, num_layers=1, vocab_size=64))
        rwkv = transformers.RwkvForCausalLM(transformers.RwkvConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)).eval()
        own = transformers.MiniMaxForCausalLM(transformers.MiniMaxConfig(**sizes(), num_hidden_layers=2, num_local_experts=2)).eval()
        with kvc.Store(f"dir:{self.path('store')}") as store:
            for model, words in ((t5, "T5ForConditionalGeneration has an encoder"), (rwkv, "keeps no K and V in a DynamicCache"),
                                 (own, "MiniMaxForCausalLM does not compute with a DynamicCache")):
                self.fails(kvc.Code.UNSUPPORTED, words, kvc.Prefix, store, model)

    def test_extras(self):
        model, ids, image = llama(), prompt(300), [(5, 1, bytes(16))]
        store, prefix = self.open(model)
        prefix.put(cache_of(model, ids), ids, wait=True, extras=image)
        self.assertEqual((prefix.get(ids).get_seq_length(), prefix.get(ids, extras=image).get_seq_length()), (0, CHUNK))

    def test_damage(self):
        """A damaged chunk is computed again."""
        model, ids = llama(), prompt(600)
        store, prefix = self.open(model)
        prefix.put(cache_of(model, ids), ids, wait=True)
        from pathlib import Path
        for path in Path(self.path("store")).rglob("*.kv"):
            data = bytearray(path.read_bytes())
            data[3000] ^= 4
            path.write_bytes(data)
        out = generate(model, ids, prefix.get(ids))
        self.assertEqual((prefix.hit.tokens, prefix.loaded), (2 * CHUNK, 0))
        self.assertTrue(torch.equal(out.sequences, generate(model, ids).sequences))


if __name__ == "__main__":
    unittest.main()
