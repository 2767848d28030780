"""Pages of vLLM's caches as views: where each value lies, and that kvc reads and fills them."""

import unittest

import numpy as np
from common import Case

import kvc
from kvc.connectors.base import Geometry
from kvc.connectors.vllm_pages import AXES, LAYOUTS, Pages

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
    def pages(self, layout, dtype="float16"):
        return Pages([], Geometry(LAYERS, HEADS, DIM, dtype), PAGE, layout)

    def test_places(self):
        values = np.arange(LAYERS * PAGES * 2 * PAGE * HEADS * DIM + 100, dtype=np.uint16)  # the last are others'
        for layout in LAYOUTS:
            for pages in (1, PAGES):
                found = self.pages(layout, "torch.bfloat16").views(values, pages)
                self.assertEqual({a.shape for a in found.values()}, {(pages, PAGE, HEADS, DIM)})
                self.assertEqual(len(found), 2 * LAYERS)
                for (layer, role), array in found.items():
                    for at in [(0, 0, 0, 0), (1, 0, 0, 1), (2, 3, 1, 0), (3, 7, 2, 31)][:pages]:
                        due = (layer * pages + at[0]) * 2 * PAGE * HEADS * DIM + place(layout, role, *at[1:])
                        self.assertEqual(array[at], due % 2**16, (layout, layer, role, at))

    def test_read_and_fill(self):
        """kvc packs pages where they lie, and fills them with what it packed."""
        random = np.random.default_rng(5)
        for layout in LAYOUTS:
            pages = self.pages(layout)
            source, copy = (bytearray(LAYERS * PAGES * pages.page_bytes + 64) for _ in range(2))
            there, new = pages.views(source, PAGES), pages.views(copy, PAGES)
            expected = {}
            for key, array in there.items():
                expected[key] = random.normal(size=(TOKENS, HEADS, DIM)).astype(np.float16)
                array[:] = expected[key].view(np.uint16).reshape(array.shape)
            with kvc.open_arrays(there, layout=AXES, dtype="f16", tokens=range(TOKENS)) as f, kvc.open(kvc.pack(f)) as packed:
                found = packed.arrays()
                self.assertTrue(all(np.array_equal(found[key], a) for key, a in expected.items()), layout)
                packed.load(new, layout=AXES, dtype="f16")
            self.assertEqual(source, copy, layout)

    def test_errors(self):
        for isa in ("amx", "neon"):
            self.fails(kvc.Code.UNSUPPORTED, f"'{isa}'", self.pages, isa)
        pages = self.pages("vec")
        buffer = bytearray(LAYERS * PAGES * pages.page_bytes)
        self.fails(kvc.Code.USAGE, "no whole pages", pages.views, buffer[:-1], PAGES)
        self.fails(kvc.Code.USAGE, "no whole pages of 8 tokens", pages.geometry.views, buffer[:-4 * HEADS * DIM * LAYERS], "lpthcd", PAGE)
        mixed = {**pages.views(buffer, PAGES), (0, "K"): np.zeros((TOKENS, HEADS, DIM), np.uint16)[None]}
        self.fails(kvc.Code.USAGE, "pages", kvc.open_arrays, mixed, layout=AXES, dtype="f16")


if __name__ == "__main__":
    unittest.main()
