"""HTTP of kvc-llama-proxy: calls of its own to llama-server, and requests and answers passed on as they are."""

from __future__ import annotations

import http.client
import json
import select
import socket
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple
from urllib.parse import urlsplit

from ..errors import Code, Error

_HOP = {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding",
        "upgrade"}  # headers of one connection, which are not passed on
_PIECE = 1 << 16
_TAIL = 1 << 14  # bytes of the end of an answer that are kept: the figures stand there
_KEYS = ("Authorization", "X-Api-Key")


class Refused(Exception):
    """An answer other than 200: of the server to a call (502: it gave none), or for a request that is not passed on."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{text} ({status})")
        self.status, self.text = status, text


class ClientGone(Exception):
    """The client closed its connection."""


class Server:
    """A llama-server, by its address. `timeout` are the seconds that it may take to answer a request that is passed on."""

    def __init__(self, url: str, timeout: float, call_timeout: float = 60) -> None:
        parts = urlsplit(url if "://" in url else "http://" + url)
        if parts.scheme != "http" or not parts.hostname or parts.query or parts.fragment:
            raise Error(Code.USAGE, f"'{url}' is no address of a llama-server: http://HOST:PORT")
        self.host, self.port, self.prefix = parts.hostname, parts.port or 80, parts.path.rstrip("/")
        self.timeout, self.call_timeout = timeout, call_timeout

    def connect(self, timeout: float) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        connection.connect()
        connection.sock.settimeout(timeout)
        return connection

    def caller(self, headers: Mapping[str, str]) -> "Caller":
        """Returns what makes calls with the key of a client's request."""
        return Caller(self, {name: headers[name] for name in _KEYS if name in headers})


class Caller:
    """Calls of the proxy itself, with the API key of the client that they are made for: nobody gets more than the server allows."""

    def __init__(self, server: Server, headers: Dict[str, str]) -> None:
        self._server, self._headers = server, headers

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def post(self, path: str, body: Any) -> Any:
        return self._call("POST", path, json.dumps(body).encode())

    def _call(self, method: str, path: str, body: Optional[bytes]) -> Any:
        connection = None
        try:
            connection = self._server.connect(self._server.call_timeout)
            connection.request(method, self._server.prefix + path, body, {**self._headers, "Content-Type": "application/json"})
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as problem:
            raise Refused(502, f"{method} {path}: {problem!r}") from None
        finally:
            if connection is not None:
                connection.close()
        if answer.status != 200:
            raise Refused(answer.status, f"{method} {path}: {data[:300].decode(errors='replace')}")
        return json.loads(data)


# --- requests ---


def read_body(handler: BaseHTTPRequestHandler, limit: int) -> bytes:
    """Reads the body of a client's request. Refused: it is larger than the limit, or its length makes no sense."""
    if "chunked" in handler.headers.get("Transfer-Encoding", "").lower():
        return _read_chunks(handler, limit)
    text = handler.headers.get("Content-Length", "0").strip()
    if not text.isdecimal():
        raise Refused(400, "the Content-Length is no number")
    return _read(handler, int(text), limit)


def _read(handler: BaseHTTPRequestHandler, size: int, limit: int) -> bytes:
    if size > limit:
        raise Refused(413, f"the request is larger than {limit} bytes, the limit of this proxy (--max-body)")
    data = handler.rfile.read(size)
    if len(data) < size:
        raise ClientGone
    return data


def _read_chunks(handler: BaseHTTPRequestHandler, limit: int) -> bytes:
    pieces, total = [], 0
    while True:
        line = handler.rfile.readline(1024)
        try:
            size = int(line.split(b";")[0], 16)
        except ValueError:
            raise Refused(400, "the request has a chunk without a size") from None
        if size <= 0:
            break
        pieces.append(_read(handler, size, limit - total))
        total += size
        handler.rfile.readline(1024)
    while handler.rfile.readline(_PIECE).strip():  # trailers
        pass
    return b"".join(pieces)


def send_json(handler: BaseHTTPRequestHandler, status: int, value: Any) -> None:
    send_text(handler, status, json.dumps(value), "application/json")


def send_text(handler: BaseHTTPRequestHandler, status: int, text: str, kind: str) -> None:
    data = text.encode()
    handler.send_response_only(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(data)))
    _end_headers(handler)
    if handler.command != "HEAD":
        _write(handler, data)


def send_refusal(handler: BaseHTTPRequestHandler, status: int, text: str) -> None:
    """Answers with an error in the form of llama-server's."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    send_json(handler, status, {"error": {"code": status, "message": f"kvc-llama-proxy: {text}", "type": kind}})


# --- passing on ---


@dataclass
class Outcome:
    """What became of a request that was passed on."""

    status: int = 0  # that the server answered; 0: it did not
    complete: bool = False  # its answer ended, and the client has it
    tail: bytes = b""
    first: float = 0  # seconds until the first byte


def pass_on(handler: BaseHTTPRequestHandler, server: Server, body: bytes, outcome: Outcome,
            extra: Sequence[Tuple[str, str]] = ()) -> None:
    """Passes a request on with this body, and the answer back as it comes, with `extra` headers. `outcome` is filled.

    If the client goes away, the connection to the server is closed, which ends the server's work. ClientGone is raised then.
    """
    connection = answer = None
    began = time.monotonic()
    try:
        try:
            connection = server.connect(server.timeout)
            sock = connection.sock  # the connection forgets it as the answer begins
            _send(handler, connection, server, body)
            _wait(sock, handler.connection, server.timeout)
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as problem:
            late = isinstance(problem, TimeoutError)
            send_refusal(handler, 504 if late else 502, f"llama-server at {server.host}:{server.port} does not answer: {problem!r}")
            return
        outcome.status, outcome.first = answer.status, time.monotonic() - began
        _relay(handler, answer, outcome, extra, lambda: _wait_for_more(answer, sock, handler.connection, server.timeout))
    finally:
        for end in (answer, connection):
            if end is not None:
                end.close()


def _send(handler: BaseHTTPRequestHandler, connection: http.client.HTTPConnection, server: Server, body: bytes) -> None:
    named = {name.strip().lower() for name in handler.headers.get("Connection", "").split(",")}
    connection.putrequest(handler.command, server.prefix + handler.path, skip_accept_encoding=True)
    for name, value in handler.headers.items():
        if name.lower() not in _HOP | named | {"host", "content-length", "expect"}:
            connection.putheader(name, value)
    if body or "Content-Length" in handler.headers:
        connection.putheader("Content-Length", str(len(body)))
    connection.putheader("Connection", "close")
    connection.endheaders(body or None)


def _wait(server: socket.socket, client: socket.socket, timeout: float) -> None:
    """Waits until the server sends something. Raises ClientGone if the client goes away before."""
    watched = select.poll()
    watched.register(server, select.POLLIN)
    watched.register(client, select.POLLIN)
    end = time.monotonic() + timeout
    while True:
        ready = {fd for fd, _ in watched.poll(max(0, end - time.monotonic()) * 1000)}
        if not ready:
            raise TimeoutError(f"no answer in {timeout:g} s")
        if server.fileno() in ready:
            return
        try:
            if not client.recv(1, socket.MSG_PEEK):
                raise ClientGone
        except OSError:
            raise ClientGone from None
        watched.unregister(client)  # it sent its next request ahead: its end cannot be seen any more


def _wait_for_more(answer: http.client.HTTPResponse, server: socket.socket, client: socket.socket, timeout: float) -> None:
    """Waits until more of an answer can be read, as _wait(): a stream is silent while the server computes the prompt."""
    if answer.fp is None:
        return
    server.setblocking(False)
    try:
        there = answer.fp.peek(1)
    finally:
        server.settimeout(timeout)
    if not there:
        _wait(server, client, timeout)


def _relay(handler: BaseHTTPRequestHandler, answer: http.client.HTTPResponse, outcome: Outcome, extra: Sequence[Tuple[str, str]],
           wait: Callable[[], None]) -> None:
    text = answer.getheader("Content-Length")
    length = int(text) if text is not None and text.isdecimal() else None
    empty = handler.command == "HEAD" or answer.status in (204, 304)
    chunked = length is None and not empty and handler.request_version != "HTTP/1.0"
    handler.send_response_only(answer.status, answer.reason)
    for name, value in [*answer.getheaders(), *extra]:
        if name.lower() not in _HOP:
            handler.send_header(name, value)
    if chunked:
        handler.send_header("Transfer-Encoding", "chunked")
    elif length is None and not empty:
        handler.close_connection = True
    _end_headers(handler)
    received = 0
    while not empty and received != length:  # a client that has all of it may be gone
        try:
            wait()
            piece = answer.read1(_PIECE)
        except (OSError, http.client.HTTPException):
            handler.close_connection = True  # without the last chunk: the client sees that the answer was cut
            return
        if not piece:
            break
        received += len(piece)
        outcome.tail = (outcome.tail + piece)[-_TAIL:]
        _write(handler, b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if not empty and length is not None and received < length:
        handler.close_connection = True
        return
    if chunked:
        _write(handler, b"0\r\n\r\n")
    outcome.complete = True


def _end_headers(handler: BaseHTTPRequestHandler) -> None:
    if handler.close_connection:
        handler.send_header("Connection", "close")
    try:
        handler.end_headers()
    except OSError:
        raise ClientGone from None


def _write(handler: BaseHTTPRequestHandler, data: bytes) -> None:
    try:
        handler.wfile.write(data)
    except OSError:
        raise ClientGone from None
