"""What the tests share: folders, and whether there is a libkvc_store."""

import json
import os
import shutil
import tempfile
import unittest
from pathlib import Path

import kvc
from kvc import _lib

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "samples"

try:
    _lib.store()
    NO_STORE = ""
except kvc.Error as problem:
    NO_STORE = str(problem)
needs_store = unittest.skipIf(NO_STORE, f"there is no libkvc_store: {NO_STORE}")


class Case(unittest.TestCase):
    """A test with a folder of its own."""

    def setUp(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="kvc-python-")
        self.addCleanup(shutil.rmtree, self.folder)

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def objects(self, suffix: str, store: str = "store"):
        """Returns the paths of a store's objects whose names end so."""
        return sorted(str(path) for path in Path(self.path(store)).rglob(f"*{suffix}"))

    def damage(self, *paths: str) -> None:
        """Flips a bit in the middle of each file."""
        for path in map(Path, paths):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)

    def weights(self) -> Path:
        """Returns a file of weights that has a fingerprint."""
        about = {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]}
        header = json.dumps({"model.layers.0.self_attn.k_proj.weight": about}).encode()
        path = Path(self.path("model.safetensors"))
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
        return path

    def explains(self, page: str, names) -> None:
        """A table of a page, or of README.md's part on other engines, has a row with each of these options."""
        shared = (ROOT / "python/README.md").read_text()
        text = (ROOT / "python" / page).read_text() + shared[shared.index("## Other engines"):]
        for name in names:
            self.assertRegex(text, rf"\n\| [^|]*`{name}`")

    def fails(self, code, words, function, *arguments, **options):
        """The call raises kvc.Error of this code, whose message has these words."""
        with self.assertRaises(kvc.Error) as caught:
            function(*arguments, **options)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertIn(words, str(caught.exception))
