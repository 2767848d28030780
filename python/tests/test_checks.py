"""What makes no sense is refused, with a message that says what to do, and nothing is written."""

import ctypes
import os
import re
import unittest

import numpy as np
from common import ROOT, SAMPLES, Case

import kvc
from kvc import keys

USAGE = kvc.Code.USAGE


def cache(tokens=4, heads=2, layers=1, **sizes):
    """K and V [tokens, heads, 8]; `sizes` are the tokens of single layers or arrays: L1=2, K0=3."""
    found = {(i, role): np.ones((tokens, heads, 8), np.float32) for i in range(layers) for role in "KV"}
    for name, n in sizes.items():
        for key in found:
            if name == f"L{key[0]}" or name == f"{key[1]}{key[0]}":
                found[key] = found[key][:n]
    return found


class CheckCase(Case):
    def refused(self, words, source, code=USAGE, **options):
        """Neither pack() to a file nor to memory, nor open_arrays(), take it."""
        self.fails(code, words, kvc.pack, source, **options)
        self.fails(code, words, kvc.pack, source, self.path("out.kvc"), **options)
        self.fails(code, words, kvc.open_arrays, source, **options)
        self.assertEqual(os.listdir(self.folder), [])

    def taken(self, source, **options):
        with kvc.open(kvc.pack(source, **options)) as f:
            return [a.shape[:2] for a in f.arrays().values()]


class TestArrays(CheckCase):
    def test_empty(self):
        for nothing in ({}, []):
            self.refused("the cache is empty: it has no K and V", nothing)
        self.refused("no K and V", {(0, "queries"): np.ones((4, 2, 8), np.float32)})
        self.assertEqual(self.taken({(0, "K"): np.ones((4, 2, 8), np.float32)}), [(4, 2)])  # K alone is documented

    def test_bits(self):
        x = np.linspace(-2, 2, 64).reshape(4, 2, 8)
        for dtype, name in ((np.float16, "bf16"), (np.int32, "f32"), (">f4", "f32"), (">u2", "bf16"), (np.float32, "f16"),
                            (np.int8, "f8e4m3"), (">i2", "bf16")):
            self.refused("dtype= says what unsigned integers hold", {(0, "K"): x.astype(dtype)}, dtype=name)
        for dtype in np.uint16, np.int16:
            self.assertEqual(self.taken({(0, "K"): x.astype(dtype)}, dtype="bf16"), [(4, 2)])
        with kvc.open(kvc.pack({(0, "K"): x.astype(np.uint16)}, dtype="bf16")) as f:
            bits = f.arrays()[0, "K"]
        if isinstance(bits, kvc.arrays.RawArray):  # without ml_dtypes: what is computed of bits is none
            self.assertEqual([kvc.arrays.RawArray, "bf16"], [type(bits[1:]), bits[1:].dtype_name])
            self.assertIs(type(bits + 1), np.ndarray)
            self.assertIsNone(bits.astype(np.uint32).dtype_name)

    def test_axes_and_ids(self):
        swapped = {(0, role): np.ones((4, 5, 8), np.float32) for role in "KV"}
        self.refused("5 heads", swapped, tokens=range(5))
        self.refused("5 heads", swapped, tokens=range(5), facts={"model.kv-heads": 4})
        self.assertEqual(len(self.taken(swapped, tokens=range(5), layout="HTD")), 2)
        self.assertEqual(self.taken(swapped, tokens=range(4), facts={"model.kv-heads": 5}), [(4, 5)] * 2)

    def test_targets(self):
        for name in ("target_kld", "target_ratio", "max_output_error", "max_logit_error"):
            for value in (-1, float("nan"), float("inf")):
                self.fails(USAGE, "is not a number of 0 or more", kvc.pack, cache(), recipe="kivi4", **{name: value})

    def test_full_disk(self):
        full = os.open("/dev/full", os.O_WRONLY)
        self.addCleanup(os.close, full)
        options, kept = kvc.options.pack_options(recipe="store")
        with kvc.open_arrays(cache()) as f, self.assertRaisesRegex(OSError, "No space left on device"):
            kvc._lib.call(kvc._lib.kvc.kvc_file_pack_fd, f.pointer, ctypes.byref(options), full)

    def test_no_file(self):
        fifo = self.path("fifo")
        os.mkfifo(fifo)
        self.fails(USAGE, "neither a file nor a new name", kvc.pack, cache(), fifo)
        self.assertEqual(os.listdir(self.folder), ["fifo"])

    def test_pairs(self):
        k = np.ones((4, 2, 8), np.float32)
        self.refused("item 1 of the cache is a tuple of 3, and no pair (K, V)", [(k, k), (k, k, k)])
        self.refused("item 0 of the cache is a list of 1", [[k]])
        self.refused("item 0 of the cache is an int", [5])
        for name in ("text", 5, None):
            self.assertRaises(TypeError, kvc.open_arrays, name)
        self.assertEqual(self.taken([[k, k]]), [(4, 2)] * 2)

    def test_keys(self):
        k = np.ones((4, 2, 8), np.float32)
        for key in ("keys", "layers.x.keys", (0,), (0, 1), 7, ("K", 0, 1)):
            self.refused("names no layer and role", {key: k})
        self.refused("a layer is a number from 0 to 4294967295, not -1", {(-1, "K"): k})
        self.refused("roles K, V", {(0, "Q"): k})
        self.refused("K of layer 0 comes twice", {"layers.0.keys": k, "0.K": k})
        self.assertRaises(TypeError, kvc.open_arrays, {("K", "0"): k})
        self.assertEqual(self.taken({(np.int64(0), "keys"): k, "0.V": k}), [(4, 2)] * 2)

    def test_rows(self):
        """Layers of fewer tokens need a window, K and V are of one length, and no window lacks tokens."""
        self.refused("layer 1 has 2 tokens, and the cache has 4: a layer with a sliding window needs the fact 'sliding.window'",
                     cache(layers=2, L1=2))
        self.refused("layer 0 has 3 tokens in K and 4 in V", cache(layers=2, K0=3))
        self.refused("layer 1 has 4 tokens in K and 2 in V", cache(layers=2, V1=2), facts={"sliding.window": 2})
        self.refused("layer 1 has the last 2 of 4 tokens, and its window of 10 needs 4", cache(layers=2, L1=2),
                     facts={"sliding.window": 10})
        self.refused("its window of 4 needs 3", cache(6, layers=2, L1=2), facts={"sliding.window": "4"})
        for window in (2, 3):
            self.assertEqual(self.taken(cache(layers=2, L1=2), facts={"sliding.window": window}), [(4, 2)] * 2 + [(2, 2)] * 2)
        queries = {**cache(), (0, "queries"): np.ones((2, 4, 8), np.float32)}  # companions may be of fewer tokens
        self.assertEqual(self.taken(queries), [(4, 2)] * 2)

    def test_ids(self):
        for ids in ([1, 2], range(3), range(6), range(9), []):
            self.refused(f"the cache has 4 tokens, and tokens= names {len(ids)}", cache(), tokens=ids)
        self.refused("the cache has 4 tokens, and tokens= names 3", cache(layers=2, L1=2), tokens=[1, 2, 3], facts={"sliding.window": 2})
        for n in (4, 5):  # the last one may be of a token that is not computed yet
            with kvc.open(kvc.pack(cache(), tokens=range(n))) as f:
                self.assertEqual(f.tokens.size, n)
        self.assertEqual(self.taken(cache(layers=2, L1=2), tokens=range(5), facts={"sliding.window": 2}), [(4, 2)] * 2 + [(2, 2)] * 2)
        with self.assertRaises(TypeError) as caught:
            kvc.pack(cache(), tokens={"input_ids": [1, 2, 3, 4]})
        self.assertIn("['input_ids']", str(caught.exception))

    def test_axes(self):
        """Heads are not taken for tokens without being told."""
        htd = cache(3, heads=40)  # [3 heads, 40 tokens, channels]
        words = "the arrays have 3 tokens and 40 heads if their layout is 'THD'"
        self.refused(words, htd)
        self.refused("'HTD'", htd, facts={"model.name": "m"})
        told = "the cache has 3 tokens, and tokens= names {}: as many, or one more, are taken; if 40 are its tokens, and not its heads, " \
               "layout='HTD' says so"
        self.refused(told.format(40), htd, tokens=range(40))
        self.refused(told.format(41), htd, tokens=range(41))
        self.refused("if 3 are its tokens, and not its heads, layout='HTD' says so", cache(4, heads=3), tokens=range(3))
        self.refused(words, htd, facts={"model.kv-heads": 3})
        self.refused("40 tokens and 3 heads", cache(40, heads=3), facts={"model.kv-heads": 2})  # as if [40 heads, 3 tokens]
        self.assertEqual(self.taken(htd, layout="HTD", tokens=range(40)), [(40, 3)] * 2)
        self.assertEqual(self.taken(htd, layout="THD"), [(3, 40)] * 2)
        self.assertEqual(self.taken(htd, tokens=range(3)), [(3, 40)] * 2)
        self.assertEqual(self.taken(htd, facts={"model.kv-heads": 40}), [(3, 40)] * 2)
        self.assertEqual(self.taken(cache(3, heads=3)), [(3, 3)] * 2)
        bthd = {key: a[None] for key, a in cache(40, heads=3).items()}  # 4 axes are transformers' [1, heads, tokens, channels]
        self.refused("the arrays have 3 tokens and 40 heads if their layout is 'BHTD'", bthd)
        self.assertEqual(self.taken(bthd, layout="BTHD"), [(40, 3)] * 2)
        with kvc.open(SAMPLES / "slot-q4_1-q5_0.bin", kv_heads=3) as f:  # block types have an axis more
            blocks = f.arrays(layers=[2], first=0, end=2)
        self.refused("2 tokens and 3 heads if their layout is 'THD'", blocks)
        self.assertEqual(kvc.open_arrays(blocks, layout="THD").tensors[0].heads, 3)

    def test_arguments_that_do_nothing(self):
        """What says something about arrays is refused where there are none."""
        with kvc.open(SAMPLES / "tiny.kvc") as f:
            for options in ({"tokens": range(4)}, {"first": 3}, {"facts": {}}, {"layout": "THD"}, {"dtype": "f32"}):
                for source in (f, SAMPLES / "tiny.kvc"):
                    if "tokens" not in options or source is f:
                        with self.assertRaises(TypeError) as caught:
                            kvc.pack(source, **options)
                        self.assertIn(f"{next(iter(options))}= is for arrays", str(caught.exception))

    def test_on_a_device(self):
        """kvc.cuda.pack() refuses the same."""
        from test_cuda import Memory

        mine = {key: Memory(a) for key, a in cache(3, heads=40).items()}
        self.fails(USAGE, "'HTD'", kvc.cuda.pack, mine)
        self.fails(USAGE, "names 2", kvc.cuda.pack, mine, layout="THD", tokens=[1, 2])


class TestFacts(CheckCase):
    def test_unknown(self):
        self.refused("kvc knows no fact 'rope.thetaa'; did you mean 'rope.theta'?", cache(), facts={"rope.thetaa": "1"})
        self.refused("did you mean 'model.kv-heads'?", cache(), facts={"model.kv_heads": 2})
        self.refused("kvc knows no fact 'zzzz' (FORMAT.md, 7, lists them; your own begin with 'x-')", cache(), facts={"zzzz": 2})
        self.refused("'model.name' is None", cache(), facts={"model.name": None})
        self.refused("'rope.pairing' is 'half', and not one of halves, interleaved, none; did you mean 'halves'?", cache(),
                     facts={"rope.pairing": "half"})
        self.refused("NUL", cache(), facts={"model.name": "a\0b"})
        for wrong in ("model.name=m", ["model.name"], {1: 2}):
            self.assertRaises(TypeError, kvc.pack, cache(), facts=wrong)
        self.refused("kvc sets this key itself", cache(), facts={"recipe": "fast"})
        with kvc.open(kvc.pack(cache(), facts={"x-mine.note": "n", "model.fingerprint.gguf.sampled": bytes(32), "rope.theta": 1e4})) as f:
            self.assertEqual((f.meta["x-mine.note"], f.meta["rope.theta"]), ("n", "10000"))

    def test_list(self):
        """The keys are those of keys.h."""
        text = (ROOT / "formats/cache/keys.h").read_text()
        due = re.findall(r'#define KVC_KEY_\w+ "([^"]+)"', text)
        self.assertGreater(len(due), 40)
        own = {key for key in due if key.startswith(keys.OWN)}
        self.assertEqual(set(due) - own - {"model.fingerprint."}, set(keys.KNOWN))
        source = (ROOT / "formats/cache/facts.c").read_text()
        refused = re.search(r"own\[\] = \{(.*?)\}", source, re.S)[1]
        self.assertEqual(len(refused.split(",")), len(keys.OWN))


class TestSelections(CheckCase):
    def test_layers(self):
        with kvc.open(SAMPLES / "tiny.kvc") as f, kvc.open(SAMPLES / "tiny.kvc") as g:
            for use in (lambda n: f.arrays(layers=n), lambda n: f.select(0, 2, layers=n), lambda n: kvc.compare(f, g, layers=n)):
                self.fails(USAGE, "there is no layer 99: there are 0-1", use, [99])
                self.fails(USAGE, "there is no layer 2-3, 7: there are 0-1", use, [0, 7, 3, 2])
                self.fails(USAGE, "a layer is a number from 0", use, [-1])
                for wrong in (1, "1", [1.5], ["1"]):
                    self.assertRaises(TypeError, use, wrong)
            self.assertEqual(set(f.arrays(layers=np.array([1]))), {(1, "K"), (1, "V")})
            self.assertEqual(set(f.arrays(layers=(n for n in (0, 1)))), set(f))

    def test_numbers(self):
        """Numbers that C would cut are refused."""
        path = SAMPLES / "tiny.kvc"
        with kvc.open(path) as f:
            self.fails(USAGE, "no tensor 4294967296", f.read, 2**32)
            self.fails(USAGE, "no tensor -1", f.read, -1)
            for words, use in (("threads", lambda: f.check(-1)), ("threads", lambda: f.arrays(threads=-1)),
                               ("threads", lambda: f.pack(threads=2**32)), ("align", lambda: f.pack(align=-1)),
                               ("kv_heads", lambda: kvc.open(path, kv_heads=-1)), ("end", lambda: kvc.compare(f, f, end=-1)),
                               ("first", lambda: kvc.compare(f, f, first=-1)), ("threads", lambda: f.unpack_into(threads=-1))):
                self.fails(USAGE, f"{words} is a number from 0 to", use)
            self.fails(USAGE, "positions -1", f.select, -1)
            self.assertRaises(TypeError, f.pack, threads=1.5)

    def test_texts(self):
        """A NUL would end a text early."""
        for use in (lambda: kvc.open(f"{SAMPLES}/tiny.kvc\0x"), lambda: kvc.open([f"{SAMPLES}/tiny.kvc\0x"]), lambda: kvc.Store("dir:x\0y"),
                    lambda: kvc.pack(cache(), recipe="fast\0er"), lambda: kvc.open(SAMPLES / "tiny.kvc", profile_folders=["a\0"])):
            self.fails(USAGE, "has a NUL character", use)
        self.fails(USAGE, "a list of no paths", kvc.open, [])


if __name__ == "__main__":
    unittest.main()
