"""The listening side of kvc-llama-proxy: reads requests of clients, and passes them on.

HTTP/1.1 is h11's on both sides. It is strict, and returns names and values as they came.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import threading
import time
from contextlib import contextmanager, suppress
from http import HTTPStatus
from socketserver import ThreadingTCPServer
from typing import Any, Dict, Iterator, Optional, Sequence, Tuple, Union

import h11

from .llama_http import ClientGone, Outcome, Refused, Server
from .llama_proxy import COMPLETIONS, Proxy

_HOP = {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te",
        b"proxy-connection", b"trailer", b"transfer-encoding", b"upgrade"}  # of one connection
_REPLACED = {b"host", b"content-length", b"expect"}  # in requests that are passed on
_METHODS = {b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"}
_PIECE = 1 << 16  # bytes that are received or sent at once
_HEAD = 1 << 16  # bytes of a request's line and headers, and of its trailers
_HEADERS = 100  # of a request
_TAIL = 1 << 14  # bytes of the end of an answer that are kept
_CLOSE = ("Connection", "close")

Headers = Sequence[Tuple[Any, Any]]


class Peer:
    """One end of a connection: a socket, and h11's state of the connection."""

    def __init__(self, sock: socket.socket, role: Any, timeout: float) -> None:
        sock.settimeout(timeout)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock, self.http = sock, h11.Connection(role, _HEAD)

    def send(self, *events: Any) -> None:
        self.sock.sendall(b"".join(self.http.send(event) for event in events))

    def next(self, end: float, client: Optional[socket.socket] = None) -> Any:
        """Returns the next event of the other end. `end`, `client` and errors: see receive()."""
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.receive(end, client)
        return event

    def receive(self, end: float, client: Optional[socket.socket] = None) -> bool:
        """Receives bytes of the other end. Returns False if the other end has closed its side.

        TimeoutError: nothing came until the time `end`. ClientGone: `client`, the connection of
        the client for whom the bytes are, was closed before.
        """
        watched = select.poll()
        watched.register(self.sock, select.POLLIN)
        if client:
            watched.register(client, select.POLLIN)
        while True:
            ready = {fd for fd, _ in watched.poll(max(0, end - time.monotonic()) * 1000)}
            if not ready:
                raise TimeoutError("nothing came in time")
            if self.sock.fileno() in ready:
                data = self.sock.recv(_PIECE)
                self.http.receive_data(data)
                return bool(data)
            with suppress(OSError):
                if client and client.recv(1, socket.MSG_PEEK):
                    watched.unregister(client)  # its next request, which hides the end
                    continue
            raise ClientGone


class Client(Peer):
    """A connection of a client, and its request, whose body may be replaced."""

    head_time = 30  # seconds for a whole line with headers, and until a new connection sends it
    body_time = 300  # seconds for a whole body
    idle_time = 300  # seconds that a connection may wait for its next request
    take_time = 300  # seconds for the client to take a piece of an answer

    def __init__(self, sock: socket.socket, front: "Front") -> None:
        super().__init__(sock, h11.SERVER, self.take_time)
        self._front, self._proxy, self._reserved = front, front.proxy, 0
        self.method, self.path = b"", ""
        self.body: Union[bytes, bytearray] = b""
        self._headers: Any = ()

    def serve(self) -> None:
        """Answers requests until the connection ends."""
        wait = self.head_time
        try:
            while self._serve_one(wait):
                self.http.start_next_cycle()
                wait = self.idle_time
        except Refused as refused:
            self._refuse(refused.status, refused.text, [_CLOSE])
            self._drain()
        finally:
            self._free()

    def _serve_one(self, wait: float) -> bool:
        """Answers a request that begins within so many seconds. False: no other can follow."""
        with self._front.reading(self.sock):
            if not self._begins(time.monotonic() + wait):
                return False
            self._read()
        path = self.path.partition("?")[0]
        if path == "/kvc/stats" and self.method == b"GET":
            self._answer(200, json.dumps(self._proxy.stats()), "application/json")
        elif path == "/kvc/metrics" and self.method == b"GET":
            self._answer(200, self._proxy.metrics(), "text/plain; version=0.0.4")
        elif path in COMPLETIONS and self.method == b"POST":
            self._proxy.complete(self)
        else:
            self.pass_on(self._proxy.server, Outcome())
        return self.http.our_state is self.http.their_state is h11.DONE

    # --- reading ---

    def _begins(self, end: float) -> bool:
        try:
            return bool(self.http.trailing_data[0]) or self.receive(end)
        except TimeoutError:
            return False

    def _read(self) -> None:
        """Reads a whole request. Refused: it is malformed, too large or too slow."""
        self.method = b""
        head = self._event(time.monotonic() + self.head_time)
        self.method, self._headers = head.method, head.headers
        if len(head.headers) > _HEADERS:
            raise Refused(431, f"the request has more than {_HEADERS} headers")
        if head.method not in _METHODS:
            raise Refused(501, "the method is not supported")
        if not head.target.startswith(b"/"):
            raise Refused(400, "the target of the request is no path")
        self.path = head.target.decode("ascii")
        named = dict(head.headers)
        if b"content-length" in named and b"transfer-encoding" in named:
            raise Refused(400, "the request has both Content-Length and Transfer-Encoding")
        self._check_size(int(named.get(b"content-length", b"0")))
        if self.http.they_are_waiting_for_100_continue:
            self.send(h11.InformationalResponse(status_code=100, reason=b"Continue", headers=[]))
        body, end = bytearray(), time.monotonic() + self.body_time
        while type(event := self._event(end)) is h11.Data:
            self._check_size(len(body) + len(event.data))
            if not self.reserve(len(event.data)):
                raise Refused(503, "the requests of all clients are too large (--max-memory)")
            body += event.data
        self.body = body

    def _event(self, end: float) -> Any:
        try:
            return self.next(end)
        except TimeoutError:
            raise Refused(408, "the request did not come in time") from None
        except h11.RemoteProtocolError as problem:
            raise Refused(problem.error_status_hint, str(problem)[:200]) from None
        except ValueError:  # of int(): h11 before 0.15 takes any number of digits
            raise Refused(400, "the Content-Length has too many digits") from None

    def _check_size(self, size: int) -> None:
        limit = self._proxy.max_body
        if size > limit:
            raise Refused(413, f"the request is larger than {limit} bytes (--max-body)")

    def reserve(self, n: int) -> bool:
        """Takes n bytes of the proxy's room until the request is sent on. False: less is free."""
        taken = self._proxy.room.take(n)
        self._reserved += n if taken else 0
        return taken

    def _free(self) -> None:
        self.body = b""
        self._proxy.room.give_back(self._reserved)
        self._reserved = 0

    def _drain(self) -> None:
        """Reads for a second what still comes: a connection closed at once may lose its answer."""
        end = time.monotonic() + 1
        self.sock.settimeout(1)
        self.sock.shutdown(socket.SHUT_WR)
        while time.monotonic() < end and self.sock.recv(_PIECE):
            pass

    # --- answering ---

    def send(self, *events: Any) -> None:
        try:
            super().send(*events)
        except OSError:
            raise ClientGone from None

    def _refuse(self, status: int, text: str, extra: Headers = ()) -> None:
        """Answers with an error in the form of llama-server's."""
        kind = "invalid_request_error" if status < 500 else "server_error"
        error = {"code": status, "message": f"kvc-llama-proxy: {text}", "type": kind}
        self._answer(status, json.dumps({"error": error}), "application/json", extra)

    def _answer(self, status: int, text: str, kind: str, extra: Headers = ()) -> None:
        data, reason = text.encode(), HTTPStatus(status).phrase
        headers = [("Content-Type", kind), ("Content-Length", str(len(data))), *extra]
        body = [] if self.method == b"HEAD" else [h11.Data(data=data)]
        answer = h11.Response(status_code=status, reason=reason, headers=headers)
        self.send(answer, *body, h11.EndOfMessage())

    # --- passing on ---

    @property
    def headers(self) -> Dict[str, str]:
        """The first header of each name, in lower case."""
        pairs = reversed(list(self._headers))
        return {name.decode("ascii"): value.decode("latin-1") for name, value in pairs}

    def pass_on(self, server: Server, outcome: Outcome, extra: Headers = ()) -> None:
        """Passes the request on, and the answer back as it comes, with `extra` headers.

        Fills `outcome`. ClientGone: the client went away. The server's connection is closed then,
        which ends the server's work.
        """
        try:
            with socket.create_connection((server.host, server.port), 10) as sock:
                self._exchange(Peer(sock, h11.CLIENT, server.timeout), server, outcome, extra)
        except (OSError, h11.ProtocolError) as problem:
            if outcome.status:
                return  # the client's connection ends without the end of the answer, too
            status = 504 if isinstance(problem, TimeoutError) else 502
            self._refuse(status, f"llama-server at {server.name} does not answer: {problem!r}")

    def _exchange(self, peer: Peer, server: Server, outcome: Outcome, extra: Headers) -> None:
        def following() -> Any:
            return peer.next(time.monotonic() + server.timeout, self.sock)

        began = time.monotonic()
        self._send_on(peer, server)
        while type(answer := following()) is h11.InformationalResponse:
            pass
        outcome.status, outcome.first = answer.status_code, time.monotonic() - began
        headers = [pair for pair in answer.headers.raw_items() if pair[0].lower() not in _HOP]
        self.send(h11.Response(status_code=answer.status_code, reason=answer.reason,
                               headers=[*headers, *extra]))
        while type(event := following()) is h11.Data:
            outcome.tail = (outcome.tail + event.data)[-_TAIL:]
            self.send(event)
        self.send(h11.EndOfMessage())
        outcome.complete = True

    def _send_on(self, peer: Peer, server: Server) -> None:
        """Sends the request to the server, and frees its body."""
        left_out, has_length = _HOP | _REPLACED, bool(self.body)
        for name, value in self._headers:
            has_length |= name in (b"content-length", b"transfer-encoding")
            if name == b"connection":
                left_out |= {word.strip().lower() for word in value.split(b",")}
        headers = [pair for pair in self._headers.raw_items() if pair[0].lower() not in left_out]
        headers += [("Host", server.name), _CLOSE]
        if has_length:
            headers.append(("Content-Length", str(len(self.body))))
        target = server.prefix + self.path
        peer.send(h11.Request(method=self.method, target=target, headers=headers))
        with suppress(ConnectionError):  # a server may answer, and close, before it has read the body
            for piece in peer.http.send_with_data_passthrough(h11.Data(data=self.body)):
                peer.sock.sendall(piece)  # without copying it
            peer.send(h11.EndOfMessage())
        self._free()


class Front(ThreadingTCPServer):
    """The listening socket, with a thread for each of up to `limit` connections.

    If there are more, the connection that has waited longest for a whole request is closed.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128
    block_on_close = False

    def __init__(self, address: Tuple[str, int], proxy: Proxy, limit: int) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, Client)  # type: ignore[arg-type]  # finish_request() makes it
        self.proxy, self.limit = proxy, limit
        self._lock, self._open = threading.Lock(), 0
        self._reading: Dict[socket.socket, None] = {}  # in the order in which they began to wait

    @contextmanager
    def reading(self, sock: socket.socket) -> Iterator[None]:
        """Notes that a connection waits for a whole request."""
        with self._lock:
            self._reading[sock] = None
        try:
            yield
        finally:
            with self._lock:
                self._reading.pop(sock, None)

    def verify_request(self, sock: Any, address: Any) -> bool:
        """Counts a connection, and closes another if there are too many. False: none can be."""
        with self._lock:
            self._open += 1
            longest = next(iter(self._reading), None)
            with suppress(OSError):
                if self._open > self.limit and longest:
                    del self._reading[longest]
                    longest.shutdown(socket.SHUT_RDWR)
            return self._open <= self.limit or longest is not None

    def finish_request(self, sock: Any, address: Any) -> None:
        Client(sock, self).serve()

    def shutdown_request(self, sock: Any) -> None:
        super().shutdown_request(sock)
        with self._lock:
            self._open -= 1

    def handle_error(self, sock: Any, address: Any) -> None:
        problem = sys.exc_info()[1]
        if not isinstance(problem, (OSError, ClientGone)):
            self.proxy.say(f"a request of {address[0]}: {problem!r}")
