"""A llama-server: its address, the proxy's own calls to it, the result of passing a request on."""

from __future__ import annotations

import http.client
import json
import threading
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional
from urllib.parse import urlsplit

from ..errors import Code, Error

_KEYS = ("authorization", "x-api-key")


class Refused(Exception):
    """A status that is not 200: the server's for a call (502: none), the proxy's for a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status, self.text = status, text


class ClientGone(Exception):
    """The client closed its connection."""


@dataclass
class Outcome:
    """The result of passing a request on."""

    status: int = 0  # of the server's answer; 0: no answer
    complete: bool = False  # the answer ended, and the client has it
    tail: bytes = b""  # the end of the answer, which has the figures
    first: float = 0  # seconds until the first byte


class Room:
    """Memory for the requests of all connections together, in bytes."""

    def __init__(self, size: int) -> None:
        self._free, self._lock = size, threading.Lock()

    def take(self, n: int) -> bool:
        """Tells whether n bytes were free; they are taken then."""
        with self._lock:
            if n > self._free:
                return False
            self._free -= n
            return True

    def give_back(self, n: int) -> None:
        with self._lock:
            self._free += n


class Server:
    """A llama-server. `timeout`: seconds of silence before and in an answer that is passed on."""

    def __init__(self, url: str, timeout: float, call_timeout: float = 60) -> None:
        parts = urlsplit(url if "://" in url else "http://" + url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise Error(Code.USAGE, f"'{url}' is no address of a llama-server: http://HOST:PORT")
        self.host, self.port = parts.hostname, parts.port or 80
        self.name, self.prefix = parts.netloc.rpartition("@")[2], parts.path.rstrip("/")
        self.timeout, self.call_timeout = timeout, call_timeout

    def caller(self, headers: Mapping[str, str]) -> "Caller":
        """Returns what makes calls with the key in a client's headers (names in lower case)."""
        return Caller(self, {name: headers[name] for name in _KEYS if name in headers})


class Caller:
    """Calls of the proxy itself, with a client's key: nobody gets more than the server allows."""

    def __init__(self, server: Server, headers: Dict[str, str]) -> None:
        self._server, self._headers = server, headers

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, json.dumps(body).encode())

    def _call(self, method: str, path: str, body: Optional[bytes]) -> Any:
        server = self._server
        connection = http.client.HTTPConnection(server.host, server.port, timeout=10)
        try:
            connection.connect()
            connection.sock.settimeout(server.call_timeout)
            headers = {**self._headers, "Content-Type": "application/json"}
            connection.request(method, server.prefix + path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise Refused(502, f"{method} {path}: {problem!r}") from None
        finally:
            connection.close()
        if answer.status != 200:
            raise Refused(answer.status, f"{method} {path}: {data[:300].decode(errors='replace')}")
        return json.loads(data)
