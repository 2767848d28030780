#!/usr/bin/env python3
"""run.py [NAME]: runs the tests of the Python package, or those in test_NAME.py.

Prints what was skipped and why, and the number that passed as the last line.
"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
try:
    import numpy  # noqa: F401
except ImportError:
    print(f"SKIPPED: the Python package is not tested: {sys.executable} has no numpy\n0 passed, 0 failed, 1 skipped")
    sys.exit(0)
sys.path[:0] = [str(HERE), str(HERE.parent)]

pattern = f"test_{''.join(sys.argv[1:2])}*.py"
result = unittest.TextTestRunner(stream=sys.stdout).run(unittest.defaultTestLoader.discover(str(HERE), pattern))
failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
for reason in sorted({reason for _, reason in result.skipped}):
    print(f"SKIPPED: {reason}")
print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
sys.exit(failed != 0)
