#!/usr/bin/env python3
"""cuda_stubs.py TORCH_LIB OUT: makes stand-ins for CUDA's libraries, so that PyPI's torch starts without 2.7 GB of them.

torch's libraries name CUDA's as needed, with the versions of their symbols, and the loader of the system wants to find them, called or
not. A stand-in defines each missing function, which returns an error of CUDA. torch then sees a machine without GPUs. To be used with
LD_LIBRARY_PATH=OUT. Needs gcc and binutils.
"""

import pathlib
import re
import subprocess
import sys

CUDA = re.compile(r"lib(cu|nv|nccl)")
ERROR = 999  # cudaErrorUnknown
TEXT = re.compile(r"(?!cu[A-Z]).*Error(String|Name)")  # functions that return a text, which torch reads


def run(*command):
    return subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True).stdout


def names(library, which):
    """Returns the names of the symbols that a library defines or lacks, without their versions."""
    lines = run("nm", "-D", which, library).splitlines()
    return {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] not in "wv"}


def needed(library):
    """Returns the versions of symbols by each CUDA library that a library needs."""
    text = run("objdump", "-p", library)
    found = {name: set() for name in re.findall(r"NEEDED\s+(\S+)", text) if CUDA.match(name)}
    for name, lines in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
        if name in found:
            found[name] |= {line.split()[-1] for line in lines.splitlines()}
    return found


def make(torch_lib, out):
    """Makes the stand-ins in a folder. Returns how many functions they have, and their names."""
    libraries = sorted(pathlib.Path(torch_lib).glob("lib*.so*"))
    versions = {}
    for library in libraries:
        for name, own in needed(library).items():
            versions.setdefault(name, set()).update(own)
    missing = set().union(*(names(library, "--undefined-only") for library in libraries))
    missing -= set().union(*(names(library, "--defined-only") for library in libraries))
    functions = sorted(name for name in missing if re.fullmatch(r"_*(cu|nv|nccl|Cu|Nv)\w*", name))
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    code = out / "stubs.c"
    code.write_text("".join(f'const char *{name}(void) {{ return "no CUDA"; }}\n' if TEXT.fullmatch(name) else
                            f"int {name}(void) {{ return {ERROR}; }}\n" for name in functions))
    for name, own in versions.items():
        script = out / "versions"
        script.write_text("".join(f"{version} {{ {'' if i else '*; '}}};\n" for i, version in enumerate(sorted(own) or [name])))
        run("gcc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,--version-script={script}", f"-Wl,-soname,{name}", "-o", out / name, code)
    return len(functions), sorted(versions)


if __name__ == "__main__":
    print("{} functions, {}".format(*make(*sys.argv[1:3])))
