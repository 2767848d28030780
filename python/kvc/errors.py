"""Errors of kvc as Python exceptions."""

from __future__ import annotations

import errno
import os
from enum import IntEnum
from typing import Any, Dict, Optional, Tuple, Type, Union


class Code(IntEnum):
    """Kinds of errors: the stable numbers of kvc_error_code() in kvc.h."""

    USAGE = 10
    MEMORY = 20
    IO = 21
    UNKNOWN_FORMAT = 30
    DAMAGED = 31
    UNSUPPORTED = 32
    NOT_SLICEABLE = 33
    OTHER_MODEL = 40
    VERIFY = 50


class Error(Exception):
    """An error of libkvc, or of this package.

    `code` is a number of kvc.h (`Code`), `message` a sentence for people, `offset` the byte of the input or None. `severity` is 0 if
    trying again may help, 1 if this item failed, 2 if nothing more can be had from the file. `need` is a number of kvc.h for what the
    caller has to give, 0 if nothing would help.

    An error that the system gave (Code.IO) is also the OSError that Python has for it, as FileNotFoundError or PermissionError, with
    its `errno`.
    """

    def __init__(self, code: int, message: str, *, severity: int = 1, need: int = 0, offset: Optional[int] = None) -> None:
        super().__init__(message)
        self.code: Union[Code, int] = Code(code) if code in Code._value2member_map_ else code
        self.message = message
        self.severity = severity
        self.need = need
        self.offset = offset

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:
        return error_of, (int(self.code), self.message, self.severity, self.need, self.offset)


def error_of(code: int, message: str, severity: int = 1, need: int = 0, offset: Optional[int] = None) -> Error:
    """Returns an error, as an OSError too if it is of the system, whose text of an errno then ends the message."""
    number = _numbers().get(message.rpartition(": ")[2]) if code == Code.IO else None
    if number is None:
        return Error(code, message, severity=severity, need=need, offset=offset)
    problem = _class_of(type(OSError(number, "")))(code, message, severity=severity, need=need, offset=offset)
    problem.errno, problem.strerror = number, os.strerror(number)  # type: ignore[attr-defined]
    return problem


def error_of_system(problem: OSError, path: Any) -> Error:
    """Returns the error of a failure of the system at a path."""
    return error_of(Code.IO, f"{os.fsdecode(path)}: {os.strerror(problem.errno or errno.EIO)}")


def kind_of(value: Any) -> str:
    """Returns what a message calls a value of the wrong class: "an int", "a tuple"."""
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _numbers() -> Dict[str, int]:
    return {os.strerror(number): number for number in errno.errorcode}


def _class_of(base: Type[OSError]) -> Type[Error]:
    """Returns the class of errors that are also of a class of OSError."""
    if base not in _classes:
        kind: Type[Error] = type(base.__name__, (Error, base), {"__module__": __name__, "__doc__": Error.__doc__})
        _classes[base] = kind
    return _classes[base]


_classes: Dict[Type[OSError], Type[Error]] = {}
