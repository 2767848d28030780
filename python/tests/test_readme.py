"""The examples of README.md, as they stand: each block goes on where the one before it ended."""

import doctest
import functools
import os
import re
import unittest
from unittest import mock

from common import NO_STORE, ROOT, SAMPLES, Case

README = (ROOT / "python/README.md").read_text()
MARK = r"<!-- run by python/tests/test_readme\.py(: transformers)? -->\n```pycon\n(.*?)```"


class TestReadme(Case):
    def test_examples(self):
        import kvc

        try:
            import transformers
            usable = int(transformers.__version__.split(".")[0]) >= 5 and not NO_STORE
        except ImportError:
            usable = False
        names, before = {"kvc": kvc}, os.getcwd()
        # on a busy machine the default deadlines make a hit a miss
        patient = functools.partial(kvc.Store, local_timeout=10, timeout=10, load_timeout=10)
        patched = mock.patch.object(kvc, "Store", patient)
        patched.start()
        self.addCleanup(patched.stop)
        os.symlink(SAMPLES, self.path("samples"))
        os.chdir(self.folder)
        self.addCleanup(os.chdir, before)
        blocks = re.findall(MARK, README, re.S)
        self.assertEqual(len(blocks), 3)
        report = []
        runner = doctest.DocTestRunner(verbose=False)
        for needs_transformers, text in blocks:
            if usable or not needs_transformers:
                test = doctest.DocTestParser().get_doctest(text, names, "README.md", None, None)
                runner.run(test, out=report.append, clear_globs=False)
                names = test.globs
        self.assertEqual("".join(report), "")


if __name__ == "__main__":
    unittest.main()
