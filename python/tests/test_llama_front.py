"""kvc-llama-proxy and clients that are malformed, slow, greedy or many; what passes unchanged."""

import contextlib
import http.client
import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import tracemalloc
import unittest
from unittest import mock

from common import ROOT
from llama_case import Front, ProxyCase

from kvc.connectors import llama_proxy

if Front:
    from kvc.connectors.llama_front import Client

GET = b"GET /else HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /else HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


class FrontCase(ProxyCase):
    def connect(self, front=None):
        sock = socket.create_connection((front or self.front).server_address, 30)
        self.addCleanup(sock.close)
        return sock

    def raw(self, data, front=None):
        """Sends these bytes and nothing more. Returns all that comes until the connection ends."""
        sock = self.connect(front)
        sock.sendall(data)
        return self.rest(sock)

    def rest(self, sock):
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := sock.recv(1 << 16):
                data += piece
        return data

    def status(self, answer):
        return int(re.match(rb"HTTP/1.1 (\d+) \w+", answer)[1]) if answer else None

    def wait(self, condition):
        for _ in range(1000):
            if condition():
                return
            time.sleep(0.01)
        self.fail("this does not come true")

    size = 1 << 30  # of the proxy's room

    def taken(self, n):
        """Waits until the requests that are in memory have n bytes."""
        self.wait(lambda: self.size - self.proxy.room._free == n)


class TestStrict(FrontCase):
    def test_refused(self):
        """Requests that a server may understand in another way are refused, and do not reach it."""
        self.proxy.max_body = 1 << 16
        for status, request in (
            (400, GET + b"X: a\rInjected: 1\r\n\r\n"),
            (400, GET + b"X: a\0b\r\n\r\n"),
            (400, GET + b"X\r: a\r\n\r\n"),
            (400, GET + b"X y: a\r\n\r\n"),
            (400, GET + b"X : a\r\n\r\n"),
            (400, GET + b"nothing\r\n\r\n"),
            (400, GET.replace(b"Host", b" Host") + b"\r\n"),
            (400, b"GET /else HTTP/1.1\r\n\r\n"),
            (400, GET + b"Host: y\r\n\r\n"),
            (400, GET.replace(b"else", b"\xff") + b"\r\n"),
            (400, GET.replace(b"else", b"\0") + b"\r\n"),
            (400, GET.replace(b"else", b"\x1b[31m") + b"\r\n"),
            (400, GET.replace(b"else", b"a b") + b"\r\n"),
            (400, b"POST /completion?\x1b[31m HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"),
            (400, GET.replace(b"/else", b"http://169.254.169.254/x") + b"\r\n"),
            (400, GET.replace(b"/else", self.server.url.encode() + b"/else") + b"\r\n"),
            (400, GET.replace(b"/else", b"*") + b"\r\n"),
            (400, GET.replace(b"/else", b"else") + b"\r\n"),
            (501, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
            (501, b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n"),
            (501, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            (400, b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03"),
            (413, POST + b"Content-Length: 99999999999999999999\r\n\r\n"),
            (400, POST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n"),
            (400, POST + b"Content-Length: -1\r\n\r\n"),
            (400, POST + b"Content-Length: +2\r\n\r\nab"),
            (400, POST + b"Content-Length: 0x2\r\n\r\nab"),
            (400, POST + b"Content-Length: 1_0\r\n\r\n" + bytes(10)),
            (400, POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc"),
            (400, POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + END),
            (501, POST + b"Content-Length: 2\r\nTransfer-Encoding: xchunked\r\n\r\nab"),
            (501, POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + END),
            (400, CHUNKED + b"0x2\r\nab\r\n" + END),
            (400, CHUNKED + b"1_0\r\n" + bytes(16) + b"\r\n" + END),
            (400, CHUNKED + b"-5\r\n\r\n"),
            (400, CHUNKED + b"+2\r\nab\r\n" + END),
            (400, CHUNKED + b"\r\n" + END),
            (400, CHUNKED + b"2\r\nabXX" + END),
            (400, CHUNKED + b"2\r\nab\n" + END),
            (400, CHUNKED + b"f" * 30 + b"\r\n"),
            (413, CHUNKED + b"f" * 16 + b"\r\n" + bytes(1 << 17)),
            (431, GET + b"X: " + b"a" * 70000),
            (431, GET + b"X: a\r\n" * 101 + b"\r\n"),
            (431, CHUNKED + b"0\r\n" + b"X: a\r\n" * 20000),
            (400, CHUNKED + b"0\r\nX: a\rb\r\n\r\n"),
        ):
            with self.subTest(request=request[:120]):
                answer = self.raw(request)
                self.assertEqual(self.status(answer), status, answer)
                head, _, body = answer.partition(b"\r\n\r\n")
                self.assertIn(b"Connection: close", head)
                self.assertEqual(json.loads(body)["error"]["code"], status)
                self.assertEqual(sum(self.server.calls.values()), 0)
        self.assertEqual(self.said, [])
        self.assertEqual(self.status(self.raw(GET + b"X: a\r\nConnection: close\r\n\r\n")), 200)
        self.assertEqual(self.server.calls["/else"], 1)
        self.taken(0)

    def test_head(self):
        """A refusal of HEAD has no body."""
        answer = self.raw(b"HEAD * HTTP/1.1\r\nHost: x\r\n\r\n")
        self.assertEqual((self.status(answer), answer.partition(b"\r\n\r\n")[2]), (400, b""))

    def test_expect(self):
        """100 Continue is sent only for a body that is taken."""
        self.proxy.max_body = 1000
        expect = POST + b"Connection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
        self.assertEqual(self.status(self.raw(expect % 1001)), 413)
        sock = self.connect()
        sock.sendall(expect % 2)
        self.assertEqual(self.status(sock.recv(100)), 100)
        sock.sendall(b"ab")
        answer = self.rest(sock)
        self.assertEqual((self.status(answer), answer[-2:]), (200, b"ab"))

    def test_refusal_arrives(self):
        """A client that first sends its whole request can do so, and gets the answer."""
        self.proxy.max_body = 1000
        sock = self.connect()
        sock.sendall(POST + b"Content-Length: 50000\r\n\r\n")
        for _ in range(5):
            time.sleep(0.05)
            sock.sendall(bytes(10000))
        self.assertEqual(self.status(self.rest(sock)), 413)

    def test_early_answer(self):
        """A server that answers, and closes, before it has read the body: its answer arrives."""
        early = b"HTTP/1.1 413 Payload Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"

        def answer(listening):
            sock, _ = listening.accept()
            sock.recv(100)
            sock.sendall(early)
            time.sleep(0.3)
            sock.close()

        with socket.create_server(("127.0.0.1", 0)) as listening:
            threading.Thread(target=answer, args=(listening,), daemon=True).start()
            self.proxy.server.port = listening.getsockname()[1]
            body = bytes(20_000_000)
            self.assertEqual(self.status(self.raw(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                                                  % len(body) + body)), 413)

    def test_log(self):
        """Nothing that a server or a client sends is printed as it is."""
        self.assertEqual(
            llama_proxy.plain("a\x1b[31m\\\r\n\x7f\x9b\u2028\u202eé \udcff"),
            r"a\x1b[31m\x5c\x0d\x0a\x7f\xc2\x9b\xe2\x80\xa8\xe2\x80\xaeé \xed\xb3\xbf",
        )
        proxy, front = self.start_proxy()
        del proxy.say
        for n in range(2):
            self.server.answers[f"/slots/{n}?action=save"] = (400, b"\x1b[31mno\r\n")
        proxy.verbose = True
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(self.ask(path="/completion?a\\b", front=front).status, 200)
            self.wait(lambda: said.getvalue().count("\n") == 2)
        lines = said.getvalue().splitlines()
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("\\x1b[31mno\\x0d\\x0a (400)", lines[0])
        self.assertIn("/completion?a\\x5cb 200 ", lines[1])


class RawServer:
    """A server that keeps the bytes of a request, and answers with bytes."""

    def __init__(self, answer):
        self.socket, self.answer, self.request = socket.create_server(("127.0.0.1", 0)), answer, b""
        threading.Thread(target=self.serve, daemon=True).start()

    @property
    def url(self):
        return "http://127.0.0.1:%d" % self.socket.getsockname()[1]

    def serve(self):
        connection, _ = self.socket.accept()
        with connection:
            while not self.request.endswith(b"END"):
                self.request += connection.recv(1 << 16)
            connection.sendall(self.answer)


class TestUnchanged(FrontCase):
    def through(self, request, answer):
        """Returns what a server got of this request, and the client of its answer."""
        server = RawServer(answer)
        self.addCleanup(server.socket.close)
        _, front = self.start_proxy("--server", server.url)
        got = self.raw(request, front)
        return server.request, got, server.url[7:].encode()

    def test_bytes(self):
        """Names, values and bodies pass as they are, but for the headers of a connection."""
        kept = (
            b'X-Latin: \xe9\xff\r\nx-TWICE: 1\r\nx-TWICE: 2\r\nCookie: a=b; c="d"\r\n'
            b"Accept-Encoding: gzip\r\nContent-Encoding: gzip\r\nAuthorization: Bearer k\r\n"
        )
        body = bytes(range(256)) * 500 + b"END"
        length = b"Content-Length: %d\r\n" % len(body)
        dropped = (
            b"Connection: close, X-Mine\r\nX-Mine: 1\r\nConnection: x-other\r\nX-Other: 2\r\n"
            b"TE: trailers\r\nUpgrade: websocket\r\nKeep-Alive: 5\r\n"
        )
        chunks = b"".join(
            b"%X;x=y\r\n%b\r\n" % (len(part), part)
            for part in (body[:1], body[1:70000], body[70000:])
        )
        back = b"Server: S\r\nX-Back: \xe9\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n"
        for framed in (
            length + b"\r\n" + body,
            b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nT: 1\r\n\r\n",
        ):
            request, answer, name = self.through(
                b"PUT //a/../%2f%7E?q=%00&r=# HTTP/1.1\r\nHost: other\r\n"
                + kept
                + dropped
                + framed,
                b"HTTP/1.1 299 All Right\r\n"
                + back
                + b"Content-Length: 4\r\nConnection: close\r\n\r\n\0\xff\r\n",
            )
            self.assertEqual(
                request,
                b"PUT //a/../%2f%7E?q=%00&r=# HTTP/1.1\r\nHost: "
                + name
                + b"\r\n"
                + kept
                + b"Connection: close\r\n"
                + length
                + b"\r\n"
                + body,
            )
            self.assertEqual(
                answer,
                b"HTTP/1.1 299 All Right\r\n"
                + back
                + b"Content-Length: 4\r\nConnection: close\r\n\r\n\0\xff\r\n",
            )

    def test_wrong_answers(self):
        """An answer that is no HTTP is 502; one that breaks off has no end for the client."""
        request = (
            b"POST /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nEND"
        )
        for answer in (
            b"",
            b"SSH-2.0\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        ):
            self.assertEqual(self.status(self.through(request, answer)[1]), 502, answer)
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        for answer in (
            head + b"2\r\nab\r\n",
            head + b"2\r\nab\r\n0x1\r\na\r\n" + END,
            head + b"2\r\nabXX" + END,
        ):
            got = self.through(request, answer)[1]
            self.assertEqual(
                (self.status(got), got.partition(b"\r\n\r\n")[2]), (200, b"2\r\nab\r\n"), answer
            )
        got = self.through(
            request, b"HTTP/1.1 103 Early\r\nLink: x\r\n\r\n" + head + b"2\r\nab\r\n" + END
        )[1]
        self.assertEqual(
            (self.status(got), got.partition(b"\r\n\r\n")[2]), (200, b"2\r\nab\r\n" + END)
        )

    def test_keep_alive(self):
        """Requests that are sent ahead are answered in order. A refusal ends the connection."""
        requests = b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % i for i in range(20))
        answer = self.raw(requests + b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n" + GET + b"\r\n")
        self.assertEqual(
            [int(n) for n in re.findall(rb"X-Echo: GET /(\d+)", answer)], list(range(20))
        )
        self.assertEqual(re.findall(rb"HTTP/1.1 (\d+)", answer), [b"200"] * 20 + [b"400"])


class TestLimits(FrontCase):
    size = 30000
    options = ("--max-memory=30000", "--max-connections=6")

    def test_small_chunks(self):
        """A body in chunks of two bytes takes as much memory as it is large, or a little more."""
        self.proxy.room.give_back(1 << 20)
        data = b"2\r\nab\r\n" * 50000
        sock = self.connect()
        sock.sendall(CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        sock.sendall(data + END)
        answer = self.rest(sock)
        peak = tracemalloc.get_traced_memory()[1]
        self.assertEqual(
            (self.status(answer), len(answer.partition(b"\r\n\r\n")[2])), (200, 100000)
        )
        self.assertLess(peak, 2 << 20)

    def test_memory(self):
        """Bodies of all connections together have a limit. Only what is over it is refused."""
        first = self.connect()
        first.sendall(POST + b"Content-Length: 20000\r\n\r\n" + bytes(19000))
        self.taken(19000)
        second = POST + b"Connection: close\r\nContent-Length: 20000\r\n\r\n" + bytes(20000)
        answer = self.raw(second)
        self.assertEqual(self.status(answer), 503)
        self.assertIn(b"--max-memory", answer)
        self.assertEqual(self.status(self.raw(second.replace(b"20000", b"9000")[:-11000])), 200)
        first.sendall(bytes(1000))
        self.assertEqual(self.status(first.recv(1 << 16)), 200)
        self.assertEqual(self.status(self.raw(second)), 200)
        first.close()
        self.taken(0)

    def test_memory_of_a_client_that_went(self):
        for end in (b"", b"XX"):
            sock = self.connect()
            sock.sendall(CHUNKED + b"4e20\r\n" + bytes(19000))
            self.taken(19000)
            sock.sendall(bytes(1000) + end)
            sock.close()
            self.taken(0)

    def test_json(self):
        """JSON that would take more memory when it is parsed is not parsed, but passed on."""
        body = json.dumps({"prompt": "a" * 300, "x": [[]] * 200})
        answer = self.request("POST", "/completion", body)
        self.assertEqual((answer.status, answer.headers["x-kvc-passed"]), (200, "memory"))
        self.assertEqual(self.server.bodies[-1], json.loads(body))
        self.assertEqual(self.ask("a" * 300).prefix, 0)
        self.taken(0)

    def test_parsed_size(self):
        """The bound is one for what takes most memory."""
        for value in (
            [[]] * 50000,
            [{}] * 50000,
            {f"{i:x}": {} for i in range(30000)},
            ["ab"] * 50000,
            [[[[[]]]]] * 20000,
            {"a": "\U0001f600" + "b" * 200000},
            list(range(1000, 60000)),
        ):
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
            tracemalloc.start()
            parsed = json.loads(text)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            self.assertEqual(parsed, value)
            self.assertLess(peak, llama_proxy.parsed_size(text) + 10000, text[:40])

    def test_connections(self):
        """Many connections that send their requests slowly do not keep others from being served."""
        before = threading.active_count()
        slow = [self.connect() for _ in range(20)]
        for i, sock in enumerate(slow):
            with contextlib.suppress(OSError):
                sock.sendall((GET, POST + b"Content-Length: 9\r\n\r\n", b"")[i % 3])
        self.assertEqual(self.request("GET", "/else").status, 200)
        self.wait(lambda: threading.active_count() - before <= 6)
        closed = 0
        for sock in slow:
            sock.setblocking(False)
            try:
                closed += not sock.recv(1)
            except BlockingIOError:
                pass
            except OSError:
                closed += 1
        self.assertGreaterEqual(closed, 14)
        self.assertLess(closed, 20)

    def test_connections_at_work(self):
        """Connections with a request that is answered are not closed: a new one is."""
        self.server.gate.clear()
        self.addCleanup(self.server.gate.set)
        streams = []
        for _ in range(6):
            connection = http.client.HTTPConnection(*self.front.server_address, timeout=30)
            self.addCleanup(connection.close)
            connection.request(
                "POST", "/completion", json.dumps({"prompt": "a", "stream": True, "id_slot": 0})
            )
            streams.append(connection)
        self.wait(lambda: self.proxy.reasons.get("id_slot") == 6)
        self.assertEqual(self.raw(b""), b"")
        self.server.gate.set()
        for connection in streams:
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            self.assertIn(b'"stop": true', answer.read())
        self.assertEqual(self.request("GET", "/else").status, 200)

    def test_times(self):
        """A whole request has a time, however often a byte of it comes."""

        def drip(sock):
            with contextlib.suppress(OSError):
                for _ in range(100):
                    sock.sendall(b"a")
                    time.sleep(0.05)

        for name, start in (
            ("head_time", GET + b"X: "),
            ("body_time", POST + b"Content-Length: 999\r\n\r\n"),
            ("body_time", CHUNKED + b"4;"),
        ):
            with mock.patch.object(Client, name, 0.4):
                sock = self.connect()
                sock.sendall(start)
                threading.Thread(target=drip, args=(sock,), daemon=True).start()
                began = time.monotonic()
                self.assertEqual(self.status(self.rest(sock)), 408)
                self.assertLess(time.monotonic() - began, 4)
        for name, start in (("head_time", b""), ("idle_time", GET + b"\r\n")):
            with mock.patch.object(Client, name, 0.4):
                began = time.monotonic()
                answer = self.raw(start)
                self.assertEqual(self.status(answer), 200 if start else None)
                self.assertLess(time.monotonic() - began, 4)
        self.assertEqual(self.said, [])


class TestPackage(unittest.TestCase):
    def test_no_h11(self):
        """Without h11 the program says what to install."""
        code = (
            "import sys; sys.modules['h11'] = None; from kvc.connectors import llama_main as m; "
            "sys.exit(m.main(sys.argv[1:]))"
        )
        where = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
        ended = subprocess.run(
            [sys.executable, "-c", code, "--store=dir:/proc/none", "--slots=/none"],
            env=where,
            capture_output=True,
            text=True,
        )
        text = (
            "kvc-llama-proxy: h11 is not installed: pip install 'kvc[proxy]', "
            "or apt-get install python3-h11\n"
        )
        self.assertEqual((ended.returncode, ended.stdout, ended.stderr), (2, "", text))


if __name__ == "__main__":
    unittest.main()
