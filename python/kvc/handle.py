"""Handles of the library: what owns a C pointer, and when it is closed. Not for users of the package."""

from __future__ import annotations

import ctypes as c
import weakref
from typing import Any, Callable, NoReturn, Optional, Sequence, Tuple, TypeVar

from .errors import Code, Error

Self = TypeVar("Self", bound="Handle")


class Unique:
    """What cannot be copied or pickled, because a copy would use memory that is not its own."""

    _again = ""  # what to do instead

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"a kvc.{type(self).__name__} cannot be copied or pickled: {self._again}")


class _Address(c.c_void_p):
    """The address of a struct of the library. The struct is closed when the last reference to this object is gone: calls hold one, so
    that none of them, in whatever thread, loses its struct. `keep` is what the struct reads from."""

    keep: Tuple[Any, ...] = ()


def _close(close: Callable[[int], None], address: int, held: Sequence[Any]) -> None:
    close(address)


class Handle(Unique):
    """A handle of the library. It is closed by close(), at the end of a `with`, or when nobody uses it any more.

    Handles that were made from it are closed before it. A call that runs in another thread ends before its handle is closed.
    """

    _made_by = ""
    _owner: Optional[_Address] = None
    _parents: Tuple["Handle", ...] = ()
    _taken = False  # by a store, which closes it

    def __init__(self, *_: Any, **__: Any) -> None:
        raise TypeError(f"kvc.{type(self).__name__} cannot be called: {self._made_by}")

    def _hold(self, address: int, close: Callable[[int], None], *keep: Any, parents: Sequence["Handle"] = (),
              held: Sequence[c.c_void_p] = ()) -> None:
        """Becomes the owner of a struct, which close(address) closes, and which reads from `keep` and from `parents`.

        `held` are the pointers of the parents, with which the struct was made: a parent may be closed since.
        """
        owner = _Address(address)
        owner.keep = keep
        # the finalizer holds the parents' structs also where a collection finds all of them at once
        weakref.finalize(owner, _close, close, address, list(held)).atexit = False  # the end of the process closes what is left
        self._owner, self._parents = owner, tuple(parents)
        self._made: "weakref.WeakValueDictionary[int, Handle]" = weakref.WeakValueDictionary()
        del owner
        for parent in parents:
            parent._made[id(self)] = self
        for parent in parents:  # after they know of it: whoever closes them meanwhile closes it too
            if parent.closed:
                self.close()
                parent.pointer  # raises

    @property
    def pointer(self) -> c.c_void_p:
        """The address of the library's struct, for its functions. The struct is there as long as this object."""
        if self._owner is None:
            raise Error(Code.USAGE, f"this {type(self).__name__} is closed")
        return self._owner

    @property
    def closed(self) -> bool:
        return self._owner is None

    def close(self) -> None:
        """Closes the handle, and those that were made from it. Closing twice is allowed."""
        if self._taken or self._owner is None:
            return
        owner, self._owner, self._parents = self._owner, None, ()
        for made in self._made.valuerefs():
            other = made()
            if other is not None:
                other.close()
        del owner  # closes the struct, if no call uses it

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
