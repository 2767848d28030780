"""kvc: KV caches of language models as numpy arrays, torch tensors and .kvc files, and a store of prompts' prefixes.

    with kvc.open("prompt.kvc") as f:
        f.meta["model.name"], f.tokens, f.arrays()

`kvc.save`, `kvc.load` and `kvc.Prefix` are for transformers and need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import arrays, cuda
from .arrays import RawArray, dtype_name
from .compare import Comparison, compare
from .errors import Code, Error
from .file import File, Tensor, join, model_identity, open
from .pack import open_arrays, pack
from .store import Hit, Namespace, Store
from .version import VERSION as __version__

__all__ = ["Code", "Comparison", "Error", "File", "Hit", "Prefix", "RawArray", "Namespace", "Store", "Tensor", "compare",
           "cuda", "dtype_name", "join", "load", "model_identity", "open", "open_arrays", "pack", "save"]


if TYPE_CHECKING:
    from .hf import Prefix, load, save
else:

    def __getattr__(name):
        """Imports torch and transformers only for those who use them."""
        if name in ("save", "load", "Prefix"):
            from . import hf

            return getattr(hf, name)
        raise AttributeError(f"module 'kvc' has no attribute '{name}'")


def __dir__() -> list[str]:
    """Lists what the package offers, whether it is imported yet or not."""
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])
