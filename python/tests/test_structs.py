"""The structs of _lib.py and cuda.py are those of kvc.h, kvc_store.h and kvc_cuda.h.

Sizes, and the place and size of each field, are as a C compiler has them.
"""

import ctypes
import os
import re
import shutil
import subprocess
import unittest

from common import ROOT, Case

from kvc import _lib, cuda

CC = os.environ.get("CC", "cc").split()
HEADERS = [ROOT / "formats/api" / name for name in ("kvc.h", "kvc_store.h", "kvc_cuda.h")]


def c_name(struct):
    return "kvc" + re.sub("[A-Z]", lambda m: "_" + m[0].lower(), struct.__name__)


@unittest.skipUnless(shutil.which(CC[0]), "there is no C compiler")
class TestStructs(Case):
    def test_fields(self):
        declared = {**vars(_lib), **vars(cuda)}
        structs = [s for s in declared.values() if isinstance(s, type) and issubclass(s, ctypes.Structure)
                   and s not in (_lib.Sized, ctypes.Structure)]
        self.assertGreater(len(structs), 12)
        lines, due = [], []
        for s in structs:
            lines.append(f'printf("%zu\\n", sizeof(struct {c_name(s)}));')
            due.append(str(ctypes.sizeof(s)))
            for name, _ in s._fields_:
                field = f"((struct {c_name(s)} *)0)->{name}"
                lines.append(f'printf("%zu %zu\\n", offsetof(struct {c_name(s)}, {name}), sizeof {field});')
                due.append(f"{getattr(s, name).offset} {getattr(s, name).size}")
        with open(self.path("sizes.c"), "w") as f:
            f.write("#include <stdio.h>\n#include <kvc_store.h>\n#include <kvc_cuda.h>\n"
                    "int main(void) {\n" + "\n".join(lines) + "\nreturn 0; }\n")
        subprocess.run([*CC, f"-I{ROOT / 'formats/api'}", "-o", self.path("sizes"), self.path("sizes.c")], check=True)
        self.assertEqual(subprocess.run([self.path("sizes")], stdout=subprocess.PIPE, check=True, text=True).stdout.split("\n")[:-1], due)

    def test_functions(self):
        """Each function that is declared here is in the header, with as many parameters."""
        text = re.sub(r"/\*.*?\*/", "", "".join(h.read_text() for h in HEADERS), flags=re.S)
        for name, (_, *parameters) in {**_lib.KVC, **_lib.STORE, **cuda.CUDA}.items():
            found = re.search(rf"\b{name}\(([^)]*)\)", text)
            self.assertIsNotNone(found, name)
            self.assertEqual(0 if found[1] == "void" else found[1].count(",") + 1, len(parameters), name)


if __name__ == "__main__":
    unittest.main()
