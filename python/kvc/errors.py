"""Errors of kvc as Python exceptions."""

from __future__ import annotations

from enum import IntEnum
from typing import Optional


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
    """

    def __init__(self, code: int, message: str, *, severity: int = 1, need: int = 0, offset: Optional[int] = None) -> None:
        super().__init__(message)
        self.code = Code(code) if code in Code._value2member_map_ else code
        self.message = message
        self.severity = severity
        self.need = need
        self.offset = offset

    def __reduce__(self):
        return _rebuild, (int(self.code), self.message, self.severity, self.need, self.offset)


def _rebuild(code: int, message: str, severity: int, need: int, offset: Optional[int]) -> Error:
    return Error(code, message, severity=severity, need=need, offset=offset)
