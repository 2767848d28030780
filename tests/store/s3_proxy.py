"""s3_proxy.py: a proxy between an S3 client and a server that makes faults: it answers by itself, cuts bodies, changes headers, slows
down, stalls and resets connections. For s3.py, which says which request meets which fault."""
import asyncio
import socket
import struct
import threading
import time
from email.utils import formatdate


class Fault:
    """A fault of the next `times` requests that match: of a method, and with a text in their target. The first so many are spared."""

    def __init__(self, kind, method=None, text="", times=1 << 30, spare=0, **how):
        self.kind, self.method, self.text, self.times, self.spare, self.how = kind, method, text, times, spare, how
        self.met = 0

    def meets(self, method, target):
        if self.times <= 0 or (self.method and method != self.method) or self.text not in target:
            return False
        if self.spare > 0:
            self.spare -= 1
            return False
        self.times -= 1
        self.met += 1
        return True


ERROR = '<?xml version="1.0"?><Error><Code>{}</Code><Message>made by the proxy</Message></Error>'


PAGE = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{}</NextContinuationToken></ListBucketResult>"


class Proxy:
    def __init__(self, port, tls=None):
        self.upstream, self.tls, self.faults, self.log = port, tls, [], []
        self.etags = 0
        self.loop = asyncio.new_event_loop()
        ready = threading.Event()
        threading.Thread(target=self._run, args=(ready,), daemon=True).start()
        ready.wait()

    def _run(self, ready):
        asyncio.set_event_loop(self.loop)
        server = self.loop.run_until_complete(asyncio.start_server(self._client, "127.0.0.1", 0, ssl=self.tls, limit=1 << 20))
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        self.loop.run_forever()

    def set(self, *faults):
        self.faults, self.log = list(faults), []
        return faults[0] if faults else None

    async def _client(self, reader, writer):
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError, OSError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _head(reader):
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = text[:-4].split("\r\n")
        return first, [tuple(s.strip() for s in line.split(":", 1)) for line in lines]

    @staticmethod
    def _value(headers, name, otherwise=None):
        return next((v for k, v in headers if k.lower() == name), otherwise)

    async def _request(self, reader, writer):
        first, headers = await self._head(reader)
        method, target, _ = first.split(" ")
        size = int(self._value(headers, "content-length", 0))
        fault = next((f for f in self.faults if f.meets(method, target)), None)
        self.log.append((method, target, dict((k.lower(), v) for k, v in headers), fault.kind if fault else None))
        if fault and fault.kind == "reset":
            return self._reset(writer)
        if fault and fault.kind == "stall":
            await asyncio.sleep(60)
            return False
        body = await reader.readexactly(size) if size else b""
        if fault and fault.kind == "status":
            return await self._answer(writer, method, fault.how["status"], fault.how.get("code", ""), fault.how.get("headers", {}))
        if fault and fault.kind == "pages":
            page = PAGE.format(fault.met).encode()
            return await self._send(writer, method, "HTTP/1.1 200 OK", [("Content-Length", str(len(page)))], page, None)
        if fault and fault.kind == "skew":
            return await self._skew(writer, method, headers, fault.how["seconds"])
        status, answer, data = await self._forward(first, headers, body, method)
        if fault and fault.kind == "lose":
            return self._reset(writer)
        return await self._send(writer, method, status, answer, data, fault)

    async def _forward(self, first, headers, body, method):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.upstream, limit=1 << 20)
        try:
            lines = [first] + [f"{k}: {v}" for k, v in headers if k.lower() != "connection"] + ["connection: close", "", ""]
            writer.write("\r\n".join(lines).encode("latin-1") + body)
            status, answer = await self._head(reader)
            while status.split(" ")[1] == "100":
                status, answer = await self._head(reader)
            data = b"" if method == "HEAD" else await reader.read(-1)
            if method != "HEAD" and self._value(answer, "transfer-encoding") == "chunked":
                whole, rest = b"", data
                while rest:
                    size, rest = rest.split(b"\r\n", 1)
                    whole, rest = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :] if int(size, 16) else b""
                data = whole
                answer = [(k, v) for k, v in answer if k.lower() != "transfer-encoding"] + [("Content-Length", str(len(data)))]
            return status, answer, data
        finally:
            writer.close()

    async def _send(self, writer, method, status, headers, data, fault):
        kind = fault.kind if fault else None
        headers = [(k, v) for k, v in headers if k.lower() != "connection"]

        def change(name, value):
            headers[:] = [(k, v) for k, v in headers if k.lower() != name.lower()] + [(name, value)]

        for name, value in fault.how.get("headers", {}).items() if fault else ():
            change(name, value)
        if kind == "etag":
            self.etags += 1
            change("ETag", f'"{self.etags:032x}"')
        if kind == "endless":  # its end is that of the connection
            status, headers = "HTTP/1.1 200 OK", [("Connection", "close")]
        writer.write("\r\n".join([status] + [f"{k}: {v}" for k, v in headers] + ["", ""]).encode("latin-1"))
        if kind in ("cut", "endless"):
            writer.write(data[: int(len(data) * fault.how.get("share", 0.5))])
            await writer.drain()
            return False
        if kind == "long":
            data += b"x" * 4096
        if kind == "slow":
            for i in range(0, len(data), fault.how["bytes"]):
                writer.write(data[i : i + fault.how["bytes"]])
                await writer.drain()
                await asyncio.sleep(0.05)
        elif kind == "late":
            await asyncio.sleep(fault.how["seconds"])
            writer.write(data)
        else:
            writer.write(data)
        await writer.drain()
        return kind != "long"

    async def _answer(self, writer, method, status, code, headers):
        body = ERROR.format(code).encode() if method != "HEAD" else b""
        lines = [f"HTTP/1.1 {status} Made", f"Content-Length: {len(body)}", "Content-Type: application/xml"]
        lines += [f"{k}: {v}" for k, v in headers.items()] + ["", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()
        return True

    async def _skew(self, writer, method, headers, seconds):
        """A server whose clock is ahead by so many seconds, and whose bucket is empty."""
        import calendar

        clock = time.time() + seconds
        asked = calendar.timegm(time.strptime(self._value(headers, "x-amz-date"), "%Y%m%dT%H%M%SZ"))
        status, code = (403, "RequestTimeTooSkewed") if abs(clock - asked) > 900 else (404, "NoSuchKey")
        return await self._answer(writer, method, status, code, {"Date": formatdate(clock, usegmt=True)})

    @staticmethod
    def _reset(writer):
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
        return False
