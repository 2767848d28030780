"""judged_texts.py: the texts by which table.py and greedy.py judge recipes, and those a profile was computed from, by which
nothing is judged."""

import difflib
import os

from caches import read_header

HERE = os.path.dirname(os.path.abspath(__file__))

# name -> the file, and the Debian package that has it where it is missing
TEXTS = {"gpl3": ("/usr/share/common-licenses/GPL-3", "base-files"),
         "code": (difflib.__file__, "python3"),
         "german": (os.path.join(HERE, "texts/german.txt"), None),
         "table": ("/usr/share/zoneinfo/zone.tab", "tzdata"),
         "chat": (os.path.join(HERE, "texts/chat.txt"), None)}


def profile_texts(path):
    """The names of the texts that a profile was computed from."""
    try:
        facts = read_header(path)[0].get("__metadata__", {})
    except ValueError as error:
        raise ValueError(f"{path}: not a profile: {error}") from None
    return [name for key in ("texts", "predictor.texts") for name in facts.get(key, "").split(", ")]
