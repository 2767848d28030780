#!/usr/bin/env python3
"""test_quality.py BUILD_DIR: is the harness itself right? Its model against transformers' numbers and against itself,
its tokenizer and measures against known answers, its verdicts against caches that are wrong on purpose."""

import blas  # noqa: F401 (before numpy)

import contextlib
import io
import os
import sys
import tempfile
import unittest

import numpy as np

import greedy
import quality
from caches import CacheFile, Tools, bf16_to_f32, f32_to_bf16, write_made_cache, write_safetensors
from model import Cache, Model
from tokenizer import Tokenizer

TOP = os.path.join(quality.HERE, "../..")
SAMPLE = os.path.join(TOP, "samples/transformers-16.safetensors")
TEXT = "It's 2026, we'll see:  x = 10²;\n\n\tnaïve café 漢字 🙂 don't  \n  "
TEXT_IDS = [1589, 506, 216, 34, 32, 34, 38, 28, 392, 3060, 963, 42, 216, 1792, 446, 216, 33, 32, 19133, 43, 1116, 197,
            3546, 46494, 37366, 17097, 137, 112, 36518, 47526, 1326, 982, 256, 11181]  # llama.cpp's, of October 2026


class Quality(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.tools = Model(), Tools(sys.argv[1])
        cls.tokenizer = Tokenizer(cls.model)
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.sample = CacheFile(SAMPLE, cls.model, cls.tools, cls.folder.name)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def write(self, name, cache, tokens):
        arrays = {"tokens": tokens}
        for i, (k, v) in enumerate(zip(*cache)):
            arrays[f"layers.{i}.keys"], arrays[f"layers.{i}.values"] = k[None], v[None]
        write_safetensors(self.path(name), arrays, {})
        return self.path(name)

    def test_tokens(self):
        self.assertEqual(self.tokenizer.encode(TEXT), TEXT_IDS)
        self.assertEqual(self.tokenizer.encode(""), [])
        self.assertEqual(self.tokenizer.decode(TEXT_IDS), TEXT)
        chat = "<|im_start|>user\nHi<|im_end|>"
        ids = self.tokenizer.encode(chat, greedy.SPECIAL)
        self.assertEqual((ids[0], ids[-1], ids[1:-1]), (1, 2, self.tokenizer.encode("user\nHi")))
        self.assertEqual(self.tokenizer.decode(ids), chat)
        self.assertEqual(self.tokenizer.decode(self.tokenizer.encode(chat)), chat)

    def test_model_makes_what_transformers_made(self):
        cache, _ = self.model.prefill(self.sample.tokens)
        for mine, theirs in zip(cache, self.sample.cache):
            rounded = [bf16_to_f32(f32_to_bf16(x)) for x in mine]
            self.assertLess(quality.relative_error(theirs, rounded), 3e-4)
            self.assertGreater(np.mean([np.mean(x == y) for x, y in zip(rounded, theirs)]), 0.99)

    def test_from_a_cache_as_without(self):
        with open(os.path.join(TOP, "LICENSE"), encoding="utf-8") as f:
            ids = self.tokenizer.encode(f.read())[:700]
        whole = self.model.forward(ids).logits[600:]
        cache, queries = self.model.prefill(ids[:600])  # more than a block of prefill()
        self.assertEqual(queries[0].shape, (self.model.n_heads, 64, self.model.head_dim))
        after = self.model.forward(ids[600:], cache).logits
        furthest, rms = np.abs(after - whole).max(), np.sqrt(np.mean(whole ** 2))
        kld, same, _ = quality.compare_logits(whole, after, ids[600:])
        print(f"from a float32 cache and without one: logits of rms {rms:.1f} differ by {furthest:.1e} at most, "
              f"mean KLD {kld.mean():.1e}, top-1 {same.mean():.0%}")
        self.assertLess(furthest / rms, 1e-4)
        self.assertLess(kld.mean(), 1e-8)
        short = Cache(*([x[:, 1:] for x in both] for both in cache))  # a row less: everything one position off
        self.assertGreater(np.abs(self.model.forward(ids[600:], short).logits - whole).max() / rms, 1e-2)

    def test_generates_as_from_the_beginning(self):
        texts = [list(self.sample.tokens[:n]) for n in (9, 14)]  # caches of different lengths, together
        caches = [self.model.prefill(ids[:-1])[0] for ids in texts]
        copies = [[x.copy() for x in cache.values] for cache in caches]
        generated = self.model.generate(caches, [ids[-1] for ids in texts], 6)
        for ids, answer in zip(texts, generated):
            for token in answer:
                self.assertEqual(self.model.forward(ids).logits[-1].argmax(), token)
                ids.append(token)
        for cache, copy in zip(caches, copies):
            self.assertTrue(all(np.array_equal(x, y) for x, y in zip(cache.values, copy)))

    def test_greedy_finds_the_first_difference(self):
        ids = [int(i) for i in self.sample.tokens]
        prompt = greedy.Prompt(self.model, self.tools, self.folder.name, "prompt", ids, 12, self.model.prefill(ids)[0])
        prompt.answered(self.model, self.model.generate([prompt.exact], [prompt.next], 24)[0])
        same = greedy.judge(self.model, prompt, prompt.exact, 1)
        self.assertEqual((same.kld.shape, same.kld.any(), same.same, same.top1, same.choice), ((24,), False, 24, 1, None))
        wrong = Cache([-x for x in prompt.exact.keys], prompt.exact.values)
        answer = greedy.judge(self.model, prompt, wrong, 1)
        other = self.model.generate([wrong], [prompt.next], 24)[0]
        self.assertLess(answer.same, 24)
        self.assertEqual(greedy.first_difference(other == prompt.generated), answer.same)
        self.assertGreater(answer.kld.mean(), 0.01)
        self.assertGreater(answer.choice[0], answer.choice[1])

    def test_block_types(self):
        x = np.linspace(-4, 3.5, 64, dtype=np.float32).reshape(1, 64)  # its 16 values in steps of a half
        x = np.round(2 * x) / 2
        np.testing.assert_array_equal(greedy.in_blocks(x[:, :32], greedy.q4_0), x[:, :32])
        np.testing.assert_array_equal(greedy.in_blocks(0 * x, greedy.q8_0), 0 * x)
        error = np.abs(greedy.in_blocks(x, greedy.q8_0) - x).max()
        self.assertTrue(0 < error < 4 / 127)

    def test_measures(self):
        p = np.log([[0.75, 0.25], [0.75, 0.25]]) + [[5.0], [-5.0]]
        q = np.log([[0.25, 0.75], [0.75, 0.25]])
        kld, same, perplexity = quality.compare_logits(p, q, np.array([0, 1]))
        np.testing.assert_allclose(kld, [0.5 * np.log(3), 0], atol=1e-15)
        self.assertEqual(list(same), [False, True])
        np.testing.assert_allclose(perplexity, [4, 4 / 3])
        found = quality.of_tokens(np.arange(2001) / 2)
        self.assertEqual(list(found), ["kld", "kld_p99", "kld_p99.9", "kld_max"])
        np.testing.assert_allclose(list(found.values()), [500, 990, 999, 1000])
        exact, decoded = [np.array([3.0, 4.0]), np.ones(4)], [np.array([3.0, 3.0]), np.ones(4)]
        self.assertAlmostEqual(quality.relative_error(exact, decoded), 0.1)

    def test_bf16_rounds_to_even(self):
        x = np.array([1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -20, -2.5], np.float32)
        self.assertEqual(list(bf16_to_f32(f32_to_bf16(x))), [1, 1, 1 + 2 ** -6, 1 + 2 ** -7, -2.5])

    def test_continuations(self):
        class File:
            continuation, tokens, n_tokens = np.arange(7), np.arange(1024), 1024

        found = quality.continuations(File)
        self.assertEqual({name: (t[0], len(t)) for name, t in found.items()},
                         {"text": (0, 7), "early": (100, 256), "middle": (512, 256)})
        File.continuation, File.tokens, File.n_tokens = None, np.arange(16), 16
        self.assertEqual({name: (t[0], len(t)) for name, t in quality.continuations(File).items()},
                         {"early": (4, 12), "middle": (8, 8)})

    def test_one_changed_value_is_seen(self):
        judge = quality.Judge(SAMPLE, self.model, self.tools, self.folder.name)
        self.assertFalse(quality.changed(judge.judge(SAMPLE)))
        cache = Cache(*([x.copy() for x in both] for both in judge.exact.cache))
        cache.keys[3][1, 5, 7] += 1
        figures = judge.judge(self.write("one.safetensors", cache, judge.exact.tokens))
        self.assertTrue(quality.changed(figures))
        self.assertTrue(figures["k"] > 0 and figures["v"] == 0)
        self.assertTrue(all(run["kld"] > 0 for run in figures["runs"].values()))
        runs = figures["runs"].values()
        self.assertEqual(figures["all"]["kld_max"], max(run["kld_max"] for run in runs))
        self.assertTrue(all(run["kld_max"] >= run["kld_p99.9"] >= run["kld_p99"] for run in runs))

    def test_foreign_cache_is_refused(self):
        turned = Cache([x.reshape(3, 16, 2, 32).swapaxes(2, 3).reshape(3, 16, 64) for x in self.sample.cache.keys],
                       [x.copy() for x in self.sample.cache.values])
        path = self.write("turned.safetensors", turned, self.sample.tokens)
        with self.assertRaisesRegex(ValueError, "cache of another model"):
            quality.Judge(path, self.model, self.tools, self.folder.name)
        turned.values[4][2, 15, 0] = np.nan
        with self.assertRaisesRegex(ValueError, "NaN or infinity"):
            path = self.write("nan.safetensors", turned, self.sample.tokens)
            CacheFile(path, self.model, self.tools, self.folder.name)
        with self.assertRaisesRegex(ValueError, "layers.2.keys"):
            CacheFile(os.path.join(TOP, "samples/tiny.safetensors"), self.model, self.tools, self.folder.name)

    def test_made_cache_is_read_by_kvc(self):
        path = self.path("again.safetensors")
        write_made_cache(path, self.model, self.sample.tokens, self.sample.tokens[:3])
        again = CacheFile(path, self.model, self.tools, self.folder.name)
        self.assertEqual((list(again.tokens), list(again.continuation)),
                         (list(self.sample.tokens), list(self.sample.tokens[:3])))
        self.assertTrue(again.has_queries)
        self.assertLess(self.tools.attention(SAMPLE, path, self.model)["output_p99"], 0.01)

    def test_exit_status(self):
        class Tampered(quality.Judge):
            def judge(self, decoded_path):
                self.exact.cache.values[0][0, 0, 0] += 1  # the decoded cache is no longer the exact one
                return super().judge(decoded_path)

        arguments = ["--tools", sys.argv[1], "-r", "store", SAMPLE]
        model, judge = quality.Model, quality.Judge
        quality.Model = lambda path: self.model
        output = io.StringIO()
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                self.assertEqual(quality.main(arguments), 0)
                quality.Judge = Tampered
                self.assertEqual(quality.main(arguments), 1)
        finally:
            quality.Model, quality.Judge = model, judge
        self.assertIn("recipe store is lossless, but", output.getvalue())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("Usage: test_quality.py BUILD_DIR [unittest's arguments]")
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
