"""Programs that set a locale whose numbers have a comma: facts, files and stores are the same."""

import contextlib
import locale
import os
import shutil
import subprocess
import unittest

import numpy as np
from common import SAMPLES, Case, needs_store

import kvc

FACTS = {"rope.theta": 10000.5, "rope.type": "linear", "rope.factor": 2.5, "rope.pairing": "halves"}


class TestLocale(Case):
    @contextlib.contextmanager
    def commas(self):
        """A locale that localedef makes."""
        if not shutil.which("localedef"):
            raise unittest.SkipTest("there is no localedef to make a locale with")
        command = ["localedef", "-c", "-i", "de_DE", "-f", "UTF-8", self.path("de_DE.UTF-8")]
        subprocess.run(command, capture_output=True, check=False)
        before = os.environ.get("LOCPATH")
        os.environ["LOCPATH"] = self.folder
        try:
            locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
            self.assertEqual(locale.localeconv()["decimal_point"], ",")
            yield
        except locale.Error as problem:
            raise unittest.SkipTest("localedef has no de_DE") from problem
        finally:
            locale.setlocale(locale.LC_ALL, "C")
            os.environ.pop("LOCPATH")
            if before is not None:
                os.environ["LOCPATH"] = before

    def pack(self):
        keys = {(0, role): np.arange(4 * 2 * 8, dtype=np.float32).reshape(4, 2, 8) for role in "KV"}
        return bytes(kvc.pack(keys, facts=FACTS))

    def test_facts_and_files(self):
        due = self.pack()
        lossy = bytes(kvc.pack(SAMPLES / "tiny.kvc", recipe="code:step=0.0625"))
        with self.commas():
            packed = self.pack()
            self.assertEqual(packed, due)
            self.assertEqual(bytes(kvc.pack(SAMPLES / "tiny.kvc", recipe="code:step=0.0625")), lossy)
            with kvc.open(packed) as f:
                self.assertEqual({key: float(f.meta[key]) for key in ("rope.theta", "rope.factor")},
                                 {"rope.theta": 10000.5, "rope.factor": 2.5})

    @needs_store
    def test_a_store(self):
        with self.commas(), kvc.Store(f"dir:{self.path('s')}?min-free=0.5&max-size=1.5G&max-age=2.5d"):
            conf = self.path("s") + "/kvc-store.conf"
            with open(conf, encoding="utf-8") as f:
                self.assertIn("min-free = 0.5\n", f.read())
        with kvc.Store(f"dir:{self.path('s')}"):
            pass


if __name__ == "__main__":
    unittest.main()
