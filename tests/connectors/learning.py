"""learning.py: what the tests of stores that learn a profile by themselves have in common: prompts, and the wait. Not a test itself."""

import os
import sysconfig
import time
from pathlib import Path

LIBRARY = Path(sysconfig.get_path("stdlib"))
LICENSES = Path("/usr/share/common-licenses")
TEXTS = [LICENSES / "MPL-2.0", LICENSES / "GFDL-1.3", LICENSES / "Apache-2.0", LIBRARY / "argparse.py", LIBRARY / "tarfile.py",
         LIBRARY / "typing.py", LIBRARY / "pydoc_data/topics.py", LIBRARY / "turtle.py", Path("/usr/share/zoneinfo/tzdata.zi"),
         LIBRARY / "subprocess.py", LIBRARY / "ast.py", LIBRARY / "statistics.py"]
TOKENS, TAIL, APART = 2000, 24, 61  # of a prompt; of a question; between where questions take theirs
TOOK = 3600 if os.environ.get("KVC_LLAMA_MODEL") else 600  # seconds, at most, of learning on a busy machine


def wait_for_profile(stats_of, folder, own):
    """Waits until the store has learnt, and its chunks are a tenth of `own`. Returns the bytes of chunks and of the profile."""
    began = time.monotonic()
    while True:
        stats = stats_of()
        packed = sum(path.stat().st_size for path in Path(folder).rglob("*.kv"))
        if stats["learnt_profiles"] and packed < own / 10 or time.monotonic() - began > TOOK:
            break
        time.sleep(0.5)
    assert (stats["learnt_profiles"], stats["refused_profiles"]) == (1, 0), stats
    print(f"ok: the store has learnt a profile by itself, {time.monotonic() - began:.0f} s after the last prompt", flush=True)
    return packed, sum(path.stat().st_size for path in Path(folder).rglob("*.kvcp"))
