"""What the tests share: folders, and whether there is a libkvc_store."""

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

    def fails(self, code, words, function, *arguments, **options):
        """The call raises kvc.Error of this code, whose message has these words."""
        with self.assertRaises(kvc.Error) as caught:
            function(*arguments, **options)
        self.assertEqual(caught.exception.code, code, caught.exception)
        self.assertIn(words, str(caught.exception))
