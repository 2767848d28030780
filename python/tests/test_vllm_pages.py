"""Pages of vLLM's caches as views: where each value lies, and that kvc reads and fills them."""

import unittest

import numpy as np
from common import Case

import kvc
from kvc.connectors import vllm_pages

LAYERS, HEADS, DIM, PAGE, PAGES = 2, 3, 32, 8, 4
TOKENS = PAGE * PAGES


def place(layout, role, token, head, channel):
    """Returns where a value lies in a page, as formats/engines/ENGINES.md says it."""
    v = role == "V"
    return {"T-H-2D": (token * HEADS + head) * 2 * DIM + v * DIM + channel,
            "2-T-H-D": ((v * PAGE + token) * HEADS + head) * DIM + channel,
            "H-T-2D": (head * PAGE + token) * 2 * DIM + v * DIM + channel,
            "2-H-T-D": ((v * HEADS + head) * PAGE + token) * DIM + channel,
            }.get(layout, head * 2 * PAGE * DIM + (PAGE * DIM + token * DIM + channel if v else channel * PAGE + token))


class TestPages(Case):
    def views(self, buffer, layout, **options):
        return vllm_pages.views(buffer, LAYERS, HEADS, DIM, TOKENS, "float16", layout, page=PAGE, **options)

    def test_places(self):
        values = np.arange(LAYERS * PAGES * 2 * PAGE * HEADS * DIM, dtype=np.uint16)
        for layout in vllm_pages.LAYOUTS:
            found = self.views(values, layout)
            self.assertEqual(len(found), 2 * LAYERS)
            for (layer, role), array in found.items():
                for at in [(0, 0, 0, 0), (1, 0, 0, 1), (2, 3, 1, 0), (3, 7, 2, 31)]:
                    expected = (layer * PAGES + at[0]) * 2 * PAGE * HEADS * DIM + place(layout, role, *at[1:])
                    self.assertEqual(array.view(np.uint16)[at], expected, (layout, layer, role, at))

    def test_one_page(self):
        values = np.arange(LAYERS * 2 * TOKENS * HEADS * DIM + 100, dtype=np.uint16)
        for layout in vllm_pages.LAYOUTS:
            whole = vllm_pages.views(values, LAYERS, HEADS, DIM, TOKENS, "torch.bfloat16", layout)
            self.assertEqual({a.shape for a in whole.values()}, {(TOKENS, HEADS, DIM)})
            self.assertEqual(kvc.dtype_name(whole[0, "K"]), "bf16")

    def test_read_and_fill(self):
        """kvc packs pages where they lie, and fills them with what it packed."""
        random = np.random.default_rng(5)
        for layout in vllm_pages.LAYOUTS:
            source, copy = (bytearray(LAYERS * PAGES * vllm_pages.page_bytes(HEADS, DIM, PAGE, "half") + 64) for _ in range(2))
            there, new = self.views(source, layout), self.views(copy, layout)
            expected = {}
            for key, array in there.items():
                expected[key] = random.normal(size=(TOKENS, HEADS, DIM)).astype(np.float16)
                array[:] = expected[key].reshape(array.shape)
            with kvc.open_arrays(there, layout=vllm_pages.AXES, tokens=range(TOKENS)) as f, kvc.open(kvc.pack(f)) as packed:
                found = packed.arrays()
                self.assertTrue(all(np.array_equal(found[key], a) for key, a in expected.items()), layout)
                packed.load(new, layout=vllm_pages.AXES)
            self.assertEqual(source, copy, layout)

    def test_errors(self):
        buffer = bytearray(LAYERS * PAGES * vllm_pages.page_bytes(HEADS, DIM, PAGE, "float16"))
        for isa in ("amx", "neon"):
            self.fails(kvc.Code.UNSUPPORTED, f"'{isa}'", self.views, buffer, isa)
        self.fails(kvc.Code.USAGE, "too small", self.views, buffer[:-1], "vec")
        self.fails(kvc.Code.USAGE, "whole", vllm_pages.views, buffer, LAYERS, HEADS, DIM, 9, "half", "vec", page=PAGE)
        mixed = {**self.views(buffer, "vec"), (0, "K"): np.zeros((TOKENS, HEADS, DIM), np.float16)[None]}
        self.fails(kvc.Code.USAGE, "pages", kvc.open_arrays, mixed, layout=vllm_pages.AXES)


if __name__ == "__main__":
    unittest.main()
