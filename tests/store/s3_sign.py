"""s3_sign.py DRIVER: signatures of the S3 backend, which libcurl makes, against a server that computes each one from the specification
of Signature Version 4. It needs nothing but Python: s3.py has real servers."""
import hashlib
import hmac
import http.server
import os
import sys
import threading
import urllib.parse

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import s3

MIB = 1 << 20
UPLOAD, TOKEN = "up+load/1=&%", "next+page/2= &%~"


def encode(text, kept=""):
    return urllib.parse.quote(urllib.parse.unquote_to_bytes(text), safe="-._~" + kept)


def signature(method, target, headers, secret):
    """Returns the signature of a request whose Authorization header tells what is signed: of the decoded path and query."""
    fields = dict(f.strip().split("=", 1) for f in headers["authorization"].split(" ", 1)[1].split(","))
    scope = fields["Credential"].split("/", 1)[1]
    path, _, query = target.partition("?")
    pairs = sorted((encode(k), encode(v)) for k, _, v in (p.partition("=") for p in query.split("&") if p))
    lines = [method, encode(path, "/"), "&".join(f"{k}={v}" for k, v in pairs)]
    lines += [f"{n}:{' '.join(headers[n].split())}" for n in fields["SignedHeaders"].split(";")]
    text = "\n".join(lines + ["", fields["SignedHeaders"], headers["x-amz-content-sha256"]])
    text = "\n".join(["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(text.encode("latin-1")).hexdigest()])
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), fields["Signature"]


def check_published():
    """The function above gives the signatures of two examples of Amazon's pages."""
    host, empty = "examplebucket.s3.amazonaws.com", hashlib.sha256(b"").hexdigest()
    for target, more, expected in (("/test.txt", {"range": "bytes=0-9"}, "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"),
                                   ("/?prefix=J&max-keys=2", {}, "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7")):
        headers = {"host": host, "x-amz-content-sha256": empty, "x-amz-date": "20130524T000000Z", **more}
        headers["authorization"] = ("AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
                                    f"SignedHeaders={';'.join(sorted(headers))},Signature=none")
        assert signature("GET", target, headers, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")[0] == expected, target


class Handler(http.server.BaseHTTPRequestHandler):
    """A bucket that takes everything, holds objects of 1000 zero bytes, and lists in two pages."""
    protocol_version = "HTTP/1.1"
    seen, wrong = [], []

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"1"', **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body if self.command != "HEAD" else b"")

    def check(self):
        headers = {k.lower(): v for k, v in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        expected, got = signature(self.command, self.path, headers, s3.SECRET)
        names = [k.lower() for k in self.headers.keys()]
        if got != expected or len(names) != len(set(names)):
            self.wrong.append((self.command, self.path, headers))
        if headers["x-amz-content-sha256"] not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            self.wrong.append(("a hash that is not the body's", self.path, headers))
        signed = headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
        self.seen.append((self.command, self.path, headers, signed, len(body)))
        return headers

    def do_GET(self):
        self.check()
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query))
        if query.get("list-type"):
            more = "" if query.get("continuation-token") == TOKEN else "<IsTruncated>true</IsTruncated><NextContinuationToken>" + TOKEN.replace(
                "&", "&amp;") + "</NextContinuationToken>"
            self.answer(200, f"<ListBucketResult>{more}</ListBucketResult>".encode())
        else:
            self.answer(206, bytes(1000), Content_Range="bytes 0-999/1000")

    def do_HEAD(self):
        self.check()
        self.answer(200 if self.path == "/" + s3.BUCKET else 404)

    def do_PUT(self):
        self.check()
        self.answer(200)

    def do_DELETE(self):
        self.check()
        self.answer(204)

    def do_POST(self):
        self.check()
        if "uploads=" in self.path:
            upload = UPLOAD.replace("&", "&amp;")
            self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode())
        else:
            self.answer(200, b"<CompleteMultipartUploadResult/>")

    def log_message(self, *_):
        pass


def requests_of(port, prefix, options, token):
    """Lets the backend send every request that it knows. Returns those that the server saw."""
    Handler.seen.clear()
    with s3.Driver(port, options, prefix=prefix, token=token) as d:
        s3.expect(d("facts"), [0])
        s3.expect(d("put 0 1 1000 9000"), [1, 0, 0])
        s3.expect(d("put 1 1 0 9000"), [1, 0, 0])
        s3.expect(d(f"put 2 1 {12 * MIB} 20000"), [1, 0, 0])
        d("get 0 1 1000 9000")
        s3.expect(d("find 10 40 9000"), [0, 0])
        s3.expect(d("walk"), [0, 0])
        s3.expect(d("walk 0"), [0, 0])
        s3.expect(d("drop 0 2 9000"), [0])
    return list(Handler.seen)


def main():
    check_published()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    tested = 0
    for prefix in ("p", "round trip/ä+b=c~d/%25%26,(e)*'!$%40:;%23%3f", "a//b"):
        for options, token in (("part=5M", ""), ("part=5M&sign-payload=no&region=eu-central-1", "tok+en/" * 200 + "==")):
            seen = requests_of(server.server_address[1], prefix, options, token)
            sent = {(method, "?" in path, "range" in headers, "if-none-match" in headers) for method, path, headers, _, _ in seen}
            assert {("GET", True, False, False), ("GET", False, True, False), ("HEAD", False, False, False), ("PUT", False, False, True),
                    ("PUT", True, False, False), ("POST", True, False, False), ("POST", True, False, True), ("DELETE", False, False, False)} <= sent, sent
            for method, path, headers, signed, size in seen:
                assert headers.get("x-amz-security-token", "") == token, (method, path)
                own = {"host", "authorization", "accept", "user-agent", "content-length", "expect"}
                assert set(headers) - own - {"connection"} == set(signed) - {"host"}, (method, path, headers, signed)
                unsigned = headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
                assert unsigned == (bool(token) and size > 0), (method, path, headers)
            assert not Handler.wrong, Handler.wrong[0]
            tested += len(seen)
    assert tested > 200, tested
    print("6 passed, 0 failed")


if __name__ == "__main__":
    s3.DRIVER = os.path.abspath(sys.argv[1])
    main()
