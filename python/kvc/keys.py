"""Metadata keys that callers give as facts of a cache (kvc(5)). Refuses those that kvc does not know, which are misspelt ones."""

from __future__ import annotations

import difflib
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

from .errors import Code, Error

KNOWN = (
    "model.name", "model.architecture", "model.layers", "model.heads", "model.kv-heads",
    "model.head-dim", "model.head-dim-v", "model.adapters", "model.adapters.sha256",
    "tokenizer.sha256", "rope.k", "rope.pairing", "rope.pairing-assumed", "rope.type", "rope.theta",
    "rope.dim", "rope.factor", "rope.original-context", "rope.scaling", "rope.sections", "rope.source", "scale.k", "scale.v", "scale.source",
    "hadamard.k", "hadamard.v", "hidden.states", "sliding.window", "page.size", "shard.rank", "shard.ranks", "shard.set",
    "cache.heads-known", "cache.layers-known", "positions.given", "rows.used", "sliding.assumed",
    "prefix.identity", "prefix.parent", "prefix.extras",
    "prefix.space", "values.recipe", "values.profile", "values.content", "store.name",
)
BEGINS = ("model.fingerprint.", "x-")  # keys of programs begin with x-
OWN = ("producer", "source.", "profile.", "recipe", "tokens.first", "llama.", "cells.")  # libkvc sets them
CHOICES: Dict[str, Tuple[str, ...]] = {
    "rope.k": ("post", "pre"),
    "rope.pairing": ("halves", "interleaved", "none"),
    "rope.type": ("default", "linear", "yarn", "llama3", "longrope", "dynamic", "mrope", "imrope"),
}


def hint(name: str, known: Iterable[str]) -> str:
    """Returns "; did you mean 'recipe'?", or nothing if no known name is like it."""
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean '{close[0]}'?" if close else ""


def check(facts: Optional[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    """Returns facts whose keys kvc knows. Those that libkvc sets are left to libkvc to refuse."""
    if facts is not None and not isinstance(facts, Mapping):
        raise TypeError(f"facts= is a mapping, as {{'model.name': 'm'}}, not {facts!r}")
    for key, value in (facts or {}).items():
        if not isinstance(key, str):
            raise TypeError(f"a fact has a text for a key, not {key!r}")
        if key not in KNOWN and not key.startswith(BEGINS + OWN):
            raise Error(Code.USAGE, f"kvc knows no fact '{key}'{hint(key, KNOWN)} (FORMAT.md, 7, lists them; your own begin with 'x-')")
        if key in CHOICES and value not in CHOICES[key]:
            raise Error(Code.USAGE, f"the fact '{key}' is {value!r}, and not one of {', '.join(CHOICES[key])}"
                                    f"{hint(str(value), CHOICES[key])}")
    return facts
