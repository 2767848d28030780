"""Memory of CUDA devices as Python programs hold it: tensors of torch, and arrays with __cuda_array_interface__.

Not for decoding (cuda.py).
"""

from __future__ import annotations

import itertools
import operator
import sys
from typing import Any, Optional, Sequence, Tuple

import numpy as np

from .errors import Code, Error


def is_torch(array: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(array, torch.Tensor)


class Place:
    """Says what memory of a device is, makes it, and copies it. Tests put the host in its place."""

    def number(self, array: Any) -> Optional[int]:
        """Returns the number of the CUDA device that an array is on; None: it is on no such device."""
        if is_torch(array):
            return (array.device.index or 0) if array.device.type == "cuda" else None
        if not hasattr(array, "__cuda_array_interface__"):
            return None
        return int(getattr(getattr(array, "device", None), "id", 0))  # CuPy says which one; the interface itself does not

    def find(self, device: Any) -> Optional[int]:
        """Returns the number of the device that "cuda", "cuda:1" or a torch.device names, or a number; None: the CPU."""
        if device is None or isinstance(device, int) or str(device) == "cpu":
            return device if isinstance(device, int) else None
        kind, _, number = str(device).partition(":")
        if kind != "cuda" or (number and not number.isdigit()):
            raise Error(Code.UNSUPPORTED, f"the device '{device}' is not supported: 'cpu', 'cuda' and 'cuda:N' are")
        torch = _torch(f"the device '{device}'")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= count:
            raise Error(Code.UNSUPPORTED, f"the device '{device}' cannot be used: torch finds {count or 'no'} CUDA devices")
        return int(number) if number else torch.cuda.current_device()

    def empty(self, shape: Sequence[int], dtype: Any, number: int) -> Any:
        """Returns a new tensor on a device."""
        return _torch("memory of a device").empty(tuple(shape), dtype=dtype, device=f"cuda:{number}")

    def stream(self, number: int) -> Optional[int]:
        """Returns the stream that torch computes on now; None: the default stream."""
        torch = sys.modules.get("torch")
        return torch.cuda.current_stream(number).cuda_stream or None if torch is not None and torch.cuda.is_initialized() else None

    def tensor(self, array: Any) -> Any:
        """Returns an array of a device as a tensor of the same memory."""
        if is_torch(array):
            return array.detach()
        number = self.number(array)
        if number is None:
            raise Error(Code.UNSUPPORTED, "memory of a device that is given by its address cannot be copied to")
        return _torch("a copy to a device").as_tensor(array, device=f"cuda:{number}")

    def stage(self, tensor: Any) -> Any:
        """Returns a new tensor of the CPU with the shape and type of one of a device."""
        return _torch("a copy to a device").empty(tensor.shape, dtype=tensor.dtype)

    def to_host(self, array: Any) -> Any:
        """Returns a copy of an array of a device in the CPU's memory."""
        return self.tensor(array).cpu()


class Foreign:
    """An array of another package, by its __cuda_array_interface__."""

    def __init__(self, owner: Any) -> None:
        about = owner.__cuda_array_interface__
        self.owner = owner
        self.address, read_only = about["data"]
        self.shape: Tuple[int, ...] = tuple(about["shape"])
        self.dtype = np.dtype(about["typestr"])
        self.strides: Tuple[int, ...] = tuple(about.get("strides") or _dense(self.shape, self.dtype.itemsize))
        if read_only:
            raise Error(Code.USAGE, "an array of a device that is to be filled is read-only")


def _dense(shape: Tuple[int, ...], size: int) -> Tuple[int, ...]:
    """Returns the strides of axes without gaps between them, the last one innermost."""
    outwards = itertools.accumulate(reversed(shape), operator.mul, initial=size)
    return tuple(outwards)[:-1][::-1]


def _torch(what: str) -> Any:
    try:
        import torch
    except ImportError as problem:
        raise Error(Code.UNSUPPORTED, f"{what} needs torch, which cannot be imported: {problem}") from None
    return torch


place = Place()
