"""The wheel: it holds the library, and the package in it uses that one."""

import os
import shutil
import subprocess
import sys
import unittest
import zipfile
from importlib import metadata

from common import ROOT, Case

from kvc import _lib

PYTHON = ROOT / "python"


def version(package):
    try:
        return [int(n) for n in metadata.version(package).split(".")[:2]]
    except metadata.PackageNotFoundError:
        return [0, 0]


MISSING = "" if version("setuptools") >= [70, 1] and version("pip") > [0, 0] else "the wheel is not tested: no pip, or no setuptools 70.1"


@unittest.skipIf(MISSING, MISSING)
class TestWheel(Case):
    def test_wheel(self):
        for folder in ("build", "kvc.egg-info"):
            self.addCleanup(shutil.rmtree, PYTHON / folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "pip", "-q", "wheel", "--no-build-isolation", "--no-deps", "-w", self.folder, str(PYTHON)],
                       check=True)
        wheel, = (name for name in os.listdir(self.folder) if name.endswith(".whl"))
        self.assertRegex(wheel, r"^kvc-[\d.]+-py3-none-linux_\w+\.whl$")
        with zipfile.ZipFile(self.path(wheel)) as z:
            self.assertIn(f"kvc/lib/libkvc.so.{_lib.MAJOR}", z.namelist())
            self.assertIn("kvc/py.typed", z.namelist())
            stored = f"kvc/lib/libkvc_store.so.{_lib.MAJOR}" in z.namelist()
            z.extractall(self.path("site"))
        where = {key: value for key, value in os.environ.items() if not key.startswith("KVC_")}
        code = f"import kvc; print(kvc.__file__); kvc.open({str(ROOT / 'samples/tiny.kvc')!r}).check()"
        if stored:
            code += "; kvc.Store('dir:store').close()"
        out = subprocess.run([sys.executable, "-c", code], env={**where, "PYTHONPATH": self.path("site")}, check=True,
                             stdout=subprocess.PIPE, text=True, cwd=self.folder)
        self.assertTrue(out.stdout.startswith(self.path("site")))


if __name__ == "__main__":
    unittest.main()
