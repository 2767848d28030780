"""Options of packing, unpacking and opening, as type checkers see them, and as structs of the library."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Iterable, Mapping, Optional, Sequence, Tuple, TypedDict, Union

from . import _lib, keys
from ._lib import encode

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:
    from typing_extensions import Unpack
else:
    Unpack = None  # annotations are not evaluated
if TYPE_CHECKING:
    from .file import File

Path = Union[str, "os.PathLike[str]"]
__all__ = ["OpenOptions", "PackOptions", "Path", "Unpack", "UnpackOptions", "check_names", "pack_options", "unpack_options"]


class PackOptions(TypedDict, total=False):
    """Options of packing. None is as good as leaving one out."""

    recipe: Optional[str]  # kvc-recipes(7); by default lossless
    profile: Optional[Path]
    embed_profile: bool
    force_profile: bool
    threads: int  # 0: one for each core
    align: int
    verify: bool  # decode what was encoded
    queries: Optional["File"]
    dequantize: bool
    target_kld: float  # of these four, one
    target_ratio: float
    max_output_error: float
    max_logit_error: float
    keep_tokens: bool
    keep_keys: bool
    keep_companions: bool
    base: Optional["File"]  # an open .kvc that the cache came out of: rows that are as it has them keep its blocks


class UnpackOptions(TypedDict, total=False):
    """Options of unpacking."""

    threads: int  # 0: one for each core
    pairing: Optional[str]  # of K in what is written: "halves", "interleaved", "none"
    settings: Optional[Mapping[str, Any]]  # of the format (kvc-unpack(1))
    lossy_metadata: bool  # write a format that does not hold all of the cache


class OpenOptions(TypedDict, total=False):
    """Options of opening: those of kvc.open()."""

    format: Optional[str]
    settings: Optional[Mapping[str, Any]]
    model: Optional[Path]
    kv_heads: int
    pairing: Optional[str]
    weights: Optional[Path]
    profile: Optional[Path]
    profile_folders: Optional[Sequence[Path]]  # None: the folders of profiles (kvc-profile(5)); (): none
    damaged: bool
    tokens: Any
    verify: bool
    max_memory: int  # bytes; 0: a quarter of the machine's
    facts: Optional[Mapping[str, Any]]


def check_names(function: str, options: Mapping[str, Any], known: Any, others: Iterable[str] = ()) -> None:
    """Refuses options that are not those of a TypedDict. `others` are further names that the function takes."""
    names = {*known.__annotations__, *others}
    for name in options:
        if name not in names:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'{keys.hint(name, names)}")


def pack_options(*, recipe: Optional[str] = None, profile: Optional[Path] = None, embed_profile: bool = False,
                 force_profile: bool = False, threads: int = 0, align: int = 0, verify: bool = True,
                 queries: Optional["File"] = None, dequantize: bool = False, target_kld: float = 0, target_ratio: float = 0,
                 max_output_error: float = 0, max_logit_error: float = 0, keep_tokens: bool = True,
                 keep_keys: bool = True, keep_companions: bool = True,
                 base: Optional["File"] = None) -> Tuple[_lib.WriteOptions, Any]:
    """Returns struct kvc_write_options for packing, and what it refers to."""
    asked = None if queries is None else queries.pointer
    old = None if base is None else base.pointer
    o = _lib.WriteOptions(threads=threads, recipe=encode(recipe), align=align, no_verify=not verify, queries=asked,
                          dequantize=dequantize, profile=encode(profile), embed_profile=embed_profile,
                          force_profile=force_profile, target_kld=target_kld, target_ratio=target_ratio,
                          max_output_error=max_output_error, max_logit_error=max_logit_error, no_tokens=not keep_tokens,
                          no_companions=not keep_companions, no_keys=not keep_keys, base=old)
    return o, (asked, old)


def unpack_options(*, threads: int = 0, pairing: Optional[str] = None, settings: Optional[Mapping[str, Any]] = None,
                   lossy_metadata: bool = False) -> Tuple[_lib.WriteOptions, Any]:
    """Returns struct kvc_write_options for unpacking, and what it refers to."""
    lines = _lib.texts(settings)
    o = _lib.WriteOptions(threads=threads, pairing=encode(pairing), set=_lib.address(lines), lossy_metadata=lossy_metadata)
    return o, lines
