"""Puts libkvc, libkvc_store where it can be built, and libkvc_cuda where make built it, into the wheel. The rest is in pyproject.toml.

In kvc's source, the libraries are those that make built in the parent folder; make is run if there is no libkvc. Elsewhere the wheel has
none, and the package uses the system's.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent
IN_SOURCE = (SOURCE / "Makefile").exists() and (SOURCE / "formats/api/kvc.h").exists()


def make(*targets):
    return subprocess.run(["make", "-s", "-j2", "CUDA=0", *targets], cwd=SOURCE).returncode == 0


def version():
    lines = (SOURCE / "formats/api/kvc.h").read_text().splitlines()
    return ".".join(line.split()[2] for line in lines if line.startswith("#define KVC_VERSION_"))


def libraries():
    """Returns the libraries by the names that they have in the wheel."""
    kvc, store = f"libkvc.so.{version()}", f"libkvc_store.so.{version()}"
    if not (SOURCE / kvc).exists() and not make(kvc):
        sys.exit(f"{kvc} could not be built: see above, and README.md, 'Install'")
    if not (SOURCE / store).exists() and not make("store"):
        print("the wheel has no libkvc_store, and thus no prefix store: see above", file=sys.stderr)
    major = version().split(".")[0]
    found = {f"libkvc.so.{major}": SOURCE / kvc, f"libkvc_store.so.{major}": SOURCE / store,
             f"libkvc_cuda.so.{major}": SOURCE / f"libkvc_cuda.so.{version()}", **{p.name: p for p in SOURCE.glob("kvc_store_*.so")}}
    return {name: path for name, path in found.items() if path.exists()}


class BuildWithLibraries(build_py):
    def run(self):
        super().run()
        folder = Path(self.build_lib) / "kvc" / "lib"
        shutil.rmtree(folder, ignore_errors=True)
        if not IN_SOURCE or self.editable_mode:
            return
        folder.mkdir(parents=True)
        for name, path in libraries().items():
            shutil.copy2(path, folder / name)


class PlatformWheel(bdist_wheel):
    """The wheel holds machine code, and no code of a Python version."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = not IN_SOURCE

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class WithCode(Distribution):
    def has_ext_modules(self):
        return IN_SOURCE


setup(distclass=WithCode, cmdclass={"build_py": BuildWithLibraries, "bdist_wheel": PlatformWheel})
