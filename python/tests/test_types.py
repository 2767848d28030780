"""Types, as mypy --strict sees them: the package, the examples of README.md, and calls that it must find wrong. Skipped without mypy."""

import doctest
import importlib.util
import os
import re
import subprocess
import sys
import unittest

from common import ROOT, Case

PACKAGE = ROOT / "python/kvc"
NO_MYPY = "" if importlib.util.find_spec("mypy") else "types are not checked: there is no mypy"

# engines count as unknown, installed or not: what is checked is kvc, and in seconds
CONFIG = """[mypy]
strict = True
[mypy-kvc.connectors.*]
disallow_subclassing_any = False
warn_unused_ignores = False
[mypy-torch.*,transformers.*,ml_dtypes.*,vllm.*,lmcache.*,sglang.*,h11.*]
follow_imports = skip
ignore_missing_imports = True
"""

# what the README's reader has already
BEFORE = {"pycon": "import kvc\n", "python": """from typing import Any, Dict, Tuple
import kvc
f: kvc.File
prefix: kvc.Prefix
into: Dict[Tuple[int, str], Any]
model: Any
ids: Any
options: Dict[str, Any]
"""}

CALLS = '''
from typing import Any, Dict, Tuple
import numpy as np
from numpy.typing import NDArray
import kvc

kv: Dict[Tuple[int, str], NDArray[Any]] = {}
data: bytes = kvc.pack(kv, recipe="kivi4", threads=2)
size: int = kvc.pack(kv, "a.kvc", tokens=[1, 2], profile=None)
with kvc.open("a.kvc", pairing="halves") as f:
    kv = f.arrays(dtype=np.float32, layers=[1])
    one: NDArray[Any] = f[1, "K"]
    two: NDArray[Any] = f.read(0)
    for layer, role in f:
        print(layer + 1, role.lower(), len(f), (layer, role) in f)
    data, size = f.pack(), f.pack("b.kvc", embed_profile=True)
    size = f.unpack("x", "npz", lossy_metadata=True)
    f.nothing                                                                   # wrong: attr-defined
    f.pack(recepie="small")                                                     # wrong: call-arg|call-overload
    f.pack(threads="2")                                                         # wrong: arg-type|call-overload
    f.unpack("x", recipe="small")                                               # wrong: call-arg
    kvc.pack(kv, recepie="small")                                               # wrong: call-arg|call-overload
    kvc.save(None, "x", recepie="small")                                        # wrong: call-arg
    kvc.load("x", paring="halves")                                              # wrong: call-arg
    kvc.open("x", paring="halves")                                              # wrong: call-arg
    size = kvc.pack(kv)                                                         # wrong: assignment
    data = f.pack("x")                                                          # wrong: assignment
    f[0]                                                                        # wrong: index
    wrong: int = f.arrays()                                                     # wrong: assignment
    wrong = f.tokens                                                            # wrong: assignment
    f.source.path                                                               # wrong: union-attr
with kvc.Store("dir:x") as store, store.namespace(f) as namespace:
    hit = namespace.find([1])
    size, text = hit.tokens, hit.tiers
    size = hit.tiers                                                           # wrong: assignment
    store.nothing                                                               # wrong: attr-defined
prefix = kvc.Prefix(store, None)
size, text = prefix.loaded, prefix.hit.tiers
kvc.Prefix("dir:x", None)                                                       # wrong: arg-type
kvc.nothing                                                                     # wrong: attr-defined
text = kvc.annotations                                                          # wrong: attr-defined|assignment
try:
    kvc.open("none")
except kvc.Error as problem:
    text, size = problem.message, problem.severity
'''


def examples():
    """Returns the code of README.md, by kind: blocks that go on where the one before ended, and the block for GPUs."""
    text = (ROOT / "python/README.md").read_text()
    parse = doctest.DocTestParser().get_examples
    blocks = re.findall(r"```(pycon|python)\n(.*?)```", text, re.S)
    return {"pycon": "".join(e.source for kind, block in blocks if kind == "pycon" for e in parse(block)),
            "python": "".join(block for kind, block in blocks if kind == "python")}


@unittest.skipIf(NO_MYPY, NO_MYPY)
class TestTypes(Case):
    def mypy(self, *files):
        """Returns what mypy finds wrong, by file: (line, kind)."""
        with open(self.path("mypy.ini"), "w") as out:
            out.write(CONFIG)
        where = {**os.environ, "MYPYPATH": str(ROOT / "python")}
        done = subprocess.run([sys.executable, "-m", "mypy", "--config-file", self.path("mypy.ini"), "--cache-dir", self.path("cache"),
                               "--no-error-summary", *files], capture_output=True, text=True, env=where, cwd=self.folder)
        self.assertEqual(done.stderr, "")
        found = {}
        for line in done.stdout.splitlines():
            match = re.fullmatch(r"(.*?):(\d+): error: .*\[([\w-]+)\]", line)
            if match:
                found.setdefault(os.path.basename(match[1]), []).append((int(match[2]), match[3]))
            else:
                self.assertIn(": note: ", line)
        self.assertEqual(done.returncode, 1 if found else 0)
        return found, done.stdout

    def test_types(self):
        """The package and the examples are right, and only the lines of CALLS that say so are wrong."""
        for kind, code in examples().items():
            self.assertIn("kvc.", code)
            with open(self.path(f"{kind}_blocks.py"), "w") as out:
                out.write(BEFORE[kind] + code)
        with open(self.path("calls.py"), "w") as out:
            out.write(CALLS)
        found, text = self.mypy("pycon_blocks.py", "python_blocks.py", "calls.py", *map(str, sorted(PACKAGE.rglob("*.py"))))
        due = {i: match[1] for i, line in enumerate(CALLS.splitlines(), 1) if (match := re.search(r"# wrong: (\S+)", line))}
        self.assertGreater(len(due), 15)
        wrong = {line: kind for line, kind in found.pop("calls.py", [])}
        self.assertEqual(found, {}, text)
        self.assertEqual(sorted(wrong), sorted(due), text)
        for line, kind in wrong.items():
            self.assertIn(kind, due[line].split("|"), text)


if __name__ == "__main__":
    unittest.main()
