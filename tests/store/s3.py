"""s3.py DRIVER: the S3 backend with real servers and with a proxy that makes faults. Servers come from PyPI, into build/store-s3.

In every test: no wrong byte, no call that takes longer than its deadline and a little, no upload left half done."""
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import s3_servers
from s3_proxy import Fault, Proxy
from s3_servers import BUCKET, KEY, SECRET

MIB = 1 << 20
LATE = 1000  # ms that a call may take beyond its deadline, on a machine whose cores do other work


class Driver:
    """An open tier. Calls return the numbers of the answer, its milliseconds and its message."""

    def __init__(self, port, options="", scheme="http", key=KEY, prefix="p", host="127.0.0.1", token=""):
        env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_") and not k.lower().endswith("_proxy")}
        env["HOME"] = "/nonexistent"
        if key:
            env.update(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=SECRET, AWS_SESSION_TOKEN=token)
        url = f"s3://{BUCKET}/{prefix}?endpoint={scheme}://{host}:{port}{'&' if options else ''}{options}"
        self.process = subprocess.Popen([DRIVER, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        self.ready = self.process.stdout.readline()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            assert self.process.wait(20) == 0, f"the driver ended with {self.process.returncode}"
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __call__(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"{command}: the driver is gone"
        numbers, ms, message = line.rstrip("\n").split(" | ")
        assert SECRET not in message
        words = numbers.split(" ")[1:]
        return [int(w) if w.lstrip("-").isdigit() else w for w in words], float(ms), message


def expect(got, numbers, within=None):
    assert got[0][: len(numbers)] == numbers, f"{got} instead of {numbers}"
    if within:
        assert got[1] < within + LATE, f"took {got[1]} ms of {within}"


# --- every server ---


def test_round_trip(port):
    with Driver(port, prefix="round trip/ä+b") as d:
        expect(d("facts"), [0])
        for first, n, size in ((0, 40, 10000), (100, 1, 8 * MIB), (101, 1, 8 * MIB + 1), (102, 1, 33 * MIB), (103, 1, 0)):
            expect(d(f"put {first} {n} {size} 20000"), [n, 0, 0])
            expect(d(f"put {first} {n} {size} 20000"), [0, n, 0])
            d("reopen")
            expect(d(f"put {first} {n} {size} 20000"), [0, n, 0])
            expect(d(f"get {first} {n} {size} 20000"), [n, 0, 0, 0, 0])
            d("reopen")
            expect(d(f"get {first} {n} {size} 20000"), [n, 0, 0, 0, 0])
        expect(d("get 38 4 10000 5000"), [2, 0, 2, 0, 0])
        expect(d("put 0 2 10000 5000 replace"), [2, 0, 0])
        expect(d("walk"), [44, 40 * 10000 + 49 * MIB + 1])
        expect(d("drop 0 200 20000"), [0])
        expect(d("drop 0 200 20000"), [0])
        expect(d("walk"), [0, 0])
    assert s3_servers.uploads(port) == 0


def test_find(port):
    with Driver(port, prefix="find") as d:
        expect(d("put 0 512 100 60000"), [512, 0, 0])
        expect(d("find 0 512 9000"), [512, 0, 0, 0])
        d("reopen")
        expect(d("find 0 512 9000"), [512, 0, 2])
        expect(d("find 0 512 9000"), [512, 0, 0, 0])
        expect(d("find 0 520 9000"), [512, 0, 1, 8])
        expect(d("find 400 31 9000"), [31, 0, 0])
        d("reopen")
        expect(d("find 500 31 9000"), [12, 0, 1, 31])
        expect(d("find 1000 1000 9000"), [0, 0, 1])
        d("bad 505")
        expect(d("find 500 31 9000"), [5, 0, 1])
        expect(d("find 500 5 9000"), [5, 0, 0])
        # another process removes one: the get decides, and it is known from then on
        with Driver(port, prefix="find") as other:
            expect(other("drop 502 1 1000"), [0])
        expect(d("find 500 5 9000"), [5, 0, 0])
        expect(d("get 500 5 100 9000"), [4, 0, 1, 0, 0])
        expect(d("find 500 5 9000"), [2, 0, 1])
    with Driver(port, "remember=0", prefix="find") as d:
        expect(d("find 0 20 9000"), [20, 0, 1])
        expect(d("find 0 20 9000"), [20, 0, 1])
        # a rule of the bucket has removed the beginning, which was written first
        expect(d("drop 0 3 1000"), [0])
        for n in (20, 40, 400):
            expect(d(f"find 0 {n} 9000"), [0, 0])
        expect(d("find 3 400 9000"), [400, 0])


def test_each(port):
    with Driver(port, prefix="each") as d:
        for first in (0, 3, 298, 511):
            expect(d(f"put {first} 1 100 9000"), [1, 0, 0])
        d("reopen")
        expect(d("each 0 512 30000"), [4, 0 + 3 + 298 + 511, 0, 2, 512])
        expect(d("each 0 512 30000"), [4, 0 + 3 + 298 + 511, 0, 2, 508])
        d("bad 3")
        expect(d("each 0 4 9000"), [1, 0, 0, 1, 3])
        expect(d("each 298 1 9000"), [1, 0, 0, 0, 0])


def test_walk_pages(port):
    with Driver(port, prefix="pages") as d:
        expect(d("put 0 1100 3 60000"), [1100, 0, 0])
        expect(d(f"put {1 << 20} 5 7 60000"), [5, 0, 0])
        expect(d("walk"), [1105, 3335])
        expect(d("walk 0"), [1100, 3300])
        expect(d(f"walk {1 << 20}"), [5, 35])
        used = d("walk")[0][2]
        assert abs(used - time.time()) < 600, used
        expect(d("drop 0 1100 60000"), [0])
        expect(d("walk"), [5])


def test_walk_without_end(_):
    with Driver(PROXY.port, "stall=50ms", prefix="pages") as d:
        PROXY.set(Fault("pages", "GET"))
        got = d("walk")
        expect(got, [0, 0, 0, -1], 3000)
        assert "does not end" in got[2], got


def test_threads(port):
    with Driver(port, prefix="threads") as d:
        expect(d("put 0 30 300000 60000"), [30, 0, 0])
        expect(d("get 0 31 300000 60000 8"), [240, 0, 8, 0, 0])


def test_quarantine_kept(port):
    with Driver(port, "delete=no", prefix="kept") as d:
        expect(d("put 0 10 100 9000"), [10, 0, 0])
        d("bad 4")
        expect(d("find 0 10 9000"), [4])
        expect(d("get 3 3 100 9000"), [2, 0, 1])
        expect(d("walk"), [10])
        expect(d("put 4 1 100 9000"), [1, 0, 0])
        expect(d("find 0 10 9000"), [10])


def test_two_writers(port):
    with Driver(port, prefix="two") as a, Driver(port, prefix="two") as b:
        sums = [0, 0, 0]
        for size in (1000, 17 * MIB):
            threads, results = [], []
            for d in (a, b):
                threads.append(threading.Thread(target=lambda d=d: results.append(d(f"put {size} 3 {size} 30000"))))
                threads[-1].start()
            for t in threads:
                t.join()
            sums = [sum(r[0][k] for r in results) for k in range(3)]
            assert sums[2] == 0 and sums[0] + sums[1] == 6, results
            expect(a(f"get {size} 3 {size} 30000"), [3, 0, 0, 0, 0])
    time.sleep(0.3)
    assert s3_servers.uploads(port) == 0


# --- credentials ---


def test_refused(port):
    with Driver(port, key=None) as d:
        got = d("put 0 1 10 2000")
        expect(got, [0, 0, 1])
        assert "no credentials" in got[2], got
    with Driver(port, key="WRONG") as d:
        got = d("put 0 1 10 2000")
        expect(got, [0, 0, 1])
        assert "403" in got[2], got


def test_credential_files(port):
    folder = tempfile.mkdtemp(dir=SCRATCH)
    path = os.path.join(folder, "credentials")
    with open(path, "w") as f:
        f.write(f"[default]\naws_access_key_id = none\naws_secret_access_key=x\n[kvc]\n# more\naws_access_key_id={KEY}\naws_secret_access_key = {SECRET}\n")
    os.chmod(path, 0o644)
    assert "chmod 600" in refused(port, f"credentials-file={path}&profile=kvc")
    os.chmod(path, 0o600)
    assert "no profile [other]" in refused(port, f"credentials-file={path}&profile=other")
    assert "no file" in refused(port, f"credentials-file={path}x")
    with Driver(port, f"credentials-file={path}&profile=kvc", key=None) as d:
        expect(d("facts"), [0])
    with Driver(port, f"credentials-file={path}") as d:
        expect(d("facts"), [-1])


def refused(port, options):
    with Driver(port, options) as d:
        assert d.ready.startswith("refused"), d.ready
        return d.ready


def test_options(port):
    for options, text in {"nothing=1": "no option 'nothing'", "part=1M": "part is from", "tries=0": "tries is from", "style=x": "neither path nor host",
                          "region=a%20b": "region", "condition=x": "neither header nor head", "stall=1ms": "at least 10ms"}.items():
        assert text in refused(port, options), options


# --- faults ---


def test_storm(port):
    for code, status in (("SlowDown", 503), ("InternalError", 500), ("TooManyRequests", 429), ("RequestTimeout", 400)):
        with Driver(PROXY.port, prefix="storm") as d:
            PROXY.set(Fault("status", times=5, status=status, code=code))
            expect(d("put 0 2 1000 9000"), [2, 0, 0] if status == 503 else [0, 2, 0])
            PROXY.set(Fault("status", times=4, status=status, code=code))
            expect(d("get 0 2 1000 9000"), [2, 0, 0, 0, 0])
            d("reopen")
            PROXY.set(Fault("status", times=20, status=status, code=code))
            if status != 400: # an answer to HEAD has no body that says more
                expect(d("find 0 31 9000"), [2, 0])
    with Driver(PROXY.port, prefix="storm") as d:
        PROXY.set(Fault("status", status=503, code="SlowDown"))
        expect(d("get 0 2 1000 500"), [0, 0, 0, 0, -1], 500)
        got = d("get 0 2 1000 500")
        assert "left alone" in got[2], got
        PROXY.set(Fault("status", times=1, status=503, code="SlowDown", headers={"Retry-After": "1"}))
        time.sleep(1.3)
        got = d("get 0 2 1000 3000")
        expect(got, [2, 0, 0, 0, 0], 3000)
        assert got[1] > 900, got
        PROXY.set(Fault("status", times=1, status=503, code="SlowDown", headers={"Retry-After": "30"}))
        got = d("get 0 1 1000 3000")
        expect(got, [0, 0, 0, 0, -1])
        assert got[1] < 2500, got # it does not wait for the deadline
    with Driver(PROXY.port, prefix="storm") as d: # without a deadline
        PROXY.set(Fault("status", status=503, code="SlowDown", headers={"Retry-After": "99999999"}))
        for command in ("get 0 1 1000 0", "walk", "drop 0 1 0"):
            d("reopen")
            got = d(command)
            assert "SlowDown: it asks to wait for 99999999 s" in got[2], got


def test_bodies(port):
    with Driver(port, prefix="bodies") as d:
        expect(d("put 0 1 20000000 9000"), [1, 0, 0])
        expect(d("put 1 1 30000 9000"), [1, 0, 0])
    for fault in ({"kind": "cut"}, {"kind": "cut", "share": 0}, {"kind": "cut", "share": 0.9999}, {"kind": "reset"}, {"kind": "lose"},
                  {"kind": "endless"}, {"kind": "endless", "share": 1}, {"kind": "none", "headers": {"Content-Length": "29999"}},
                  {"kind": "none", "headers": {"Content-Range": "bytes 0-29998/30000"}},
                  {"kind": "none", "headers": {"Content-Range": "bytes 1-30000/30001"}}, {"kind": "none", "headers": {"Content-Range": "nonsense"}}):
        kind = fault.pop("kind")
        with Driver(PROXY.port, prefix="bodies") as d:
            fault_ = PROXY.set(Fault(kind, "GET", times=2, **fault))
            expect(d("get 1 1 30000 5000"), [1, 0, 0, 0, 0])
            assert fault_.met >= 1, (kind, fault)
            d("reopen")
            PROXY.set(Fault(kind, "GET", times=3, spare=1, **fault))
            expect(d("get 0 1 20000000 9000"), [1, 0, 0, 0, 0])
        with Driver(PROXY.port, "tries=3", prefix="bodies") as d:
            PROXY.set(Fault(kind, "GET", **fault))
            got = d("get 1 1 30000 5000")
            assert got[0][:3] == [0, 0, 0] and (got[0][3] == 1) != (got[0][4] == -1), (kind, fault, got)
            PROXY.set(Fault(kind, "GET", **fault))
            d("reopen")
            got = d("get 0 1 20000000 5000")
            assert got[0][:3] == [0, 0, 0] and (got[0][3] == 1) != (got[0][4] == -1), (kind, fault, got)
    with Driver(PROXY.port, prefix="bodies") as d:
        PROXY.set(Fault("long", "GET", times=1))
        expect(d("get 1 1 30000 5000"), [1, 0, 0, 0, 0])
        expect(d("get 1 1 30000 5000"), [1, 0, 0, 0, 0])


def test_etags(port):
    with Driver(port, prefix="etags") as d:
        expect(d("put 0 1 30000000 9000"), [1, 0, 0])
    with Driver(PROXY.port, prefix="etags") as d:
        PROXY.set(Fault("etag", "GET", times=2))
        expect(d("get 0 1 30000000 9000"), [1, 0, 0, 0, 0])
        PROXY.set(Fault("etag", "GET", times=2))
        expect(d("get 0 1 30000000 9000"), [1, 0, 0, 0, 0])
        PROXY.set(Fault("etag", "GET"))
        got = d("get 0 1 30000000 9000")
        expect(got, [0, 0, 0, 1, 0])
        assert "changes while it is read" in got[2], got
    # an object of another size than remembered
    with Driver(PROXY.port, prefix="etags") as d, Driver(port, prefix="etags") as other:
        PROXY.set()
        expect(d("find 0 1 2000"), [1])
        expect(other("put 0 1 20000001 9000 replace"), [1])
        expect(d("get 0 1 20000001 9000"), [1, 0, 0, 0, 0])
        expect(other("put 0 1 70 9000 replace"), [1])
        expect(d("get 0 1 70 9000"), [1, 0, 0, 0, 0])


def test_size_lies(port):
    with Driver(port, prefix="lies") as d:
        expect(d("put 0 1 1000 9000"), [1, 0, 0])
    with Driver(PROXY.port, prefix="lies") as d:
        for total in (2 << 30, 1 << 62, 999):
            PROXY.set(Fault("none", "GET", headers={"Content-Range": f"bytes 0-999/{total}"}))
            got = d("get 0 1 1000 1000")
            assert got[0][:3] == [0, 0, 0], got
        d("reopen")
        PROXY.set(Fault("none", "HEAD", headers={"Content-Length": str(900 << 20)}))
        expect(d("find 0 1 1000"), [1, 0])
        PROXY.set()
        expect(d("get 0 1 1000 3000"), [1, 0, 0, 0, 0])
        with open(f"/proc/{d.process.pid}/status") as f:
            peak = int(next(line for line in f if line.startswith("VmHWM")).split()[1])
        assert peak < 400000, f"{peak} kB of memory for sizes that were only claimed"


def test_slow(port):
    with Driver(port, prefix="slow") as d:
        expect(d("put 0 3 1000000 9000"), [3, 0, 0])
    with Driver(PROXY.port, prefix="slow") as d:
        PROXY.set(Fault("slow", "GET", bytes=5000))
        got = d("get 0 3 1000000 700")
        expect(got, [0, 0, 0, 0, -1], 700)
        assert got[1] > 650 and "deadline" in got[2], got
    with Driver(PROXY.port, prefix="slow") as d:
        PROXY.set(Fault("stall"))
        expect(d("find 0 3 100"), [0, -1], 100)
        got = d("find 0 3 100")
        assert "left alone" in got[2], got
        time.sleep(1.3)
        expect(d("put 9 1 1000 200"), [0, 0, 1], 200)
        got = d("get 0 1 1000000 200")
        assert "left alone" in got[2], got
        PROXY.set()
        time.sleep(2.6)
        expect(d("get 0 3 1000000 3000"), [3, 0, 0, 0, 0])
    with Driver(PROXY.port, "stall=1s", prefix="slow") as d: # that bytes come is not enough
        for command in ("get 0 1 1000000 0", "walk"):
            PROXY.set(Fault("slow", "GET", bytes=10))
            d("reopen")
            got = d(command)
            assert "Operation too slow" in got[2], got
    with Driver(PROXY.port, "stall=300ms&hedge=no", prefix="slow") as d:
        PROXY.set(Fault("stall", times=2))
        got = d("get 0 3 1000000 0")
        expect(got, [3, 0, 0, 0, 0], 3000)


def second_request_wins(d, method, command, numbers):
    """Checks that a request which stalls is overtaken by its second one. On a busy machine a request
    that is only late has a second one, too, and the stall meets that: then the first one wins, and
    the command is tried again."""
    won = d("stats")[0][4]
    for _ in range(5):
        PROXY.set(Fault("stall", method, times=1))
        expect(d(command), numbers, 1500)
        if d("stats")[0][4] > won:
            return
    raise AssertionError(f"{command}: no second request won in five tries: {d('stats')}")


def test_hedging(port):
    with Driver(PROXY.port, prefix="hedge") as d:
        PROXY.set()
        expect(d("put 0 40 1000 9000"), [40, 0, 0])
        expect(d("get 0 40 1000 9000"), [40, 0, 0, 0, 0])
        second_request_wins(d, "GET", "get 0 3 1000 9000", [3, 0, 0, 0, 0])
        PROXY.set(Fault("late", "GET", times=1, seconds=0.2))
        expect(d("get 0 3 1000 9000"), [3, 0, 0, 0, 0])
    with Driver(PROXY.port, "remember=0", prefix="hedge") as d:
        for method, command, numbers in (("HEAD", "find 0 1 9000", [1, 0]), ("GET", "walk", [40, 40000])):
            for _ in range(16):
                expect(d(command), numbers)
            second_request_wins(d, method, command, numbers)
    with Driver(PROXY.port, "hedge=no", prefix="hedge") as d:
        PROXY.set(Fault("late", "GET", seconds=0.2))
        got = d("get 0 3 1000 9000")
        expect(got, [3, 0, 0, 0, 0])
        assert d("stats")[0][3] == 0


def test_conditions(port):
    with Driver(PROXY.port, prefix="conditions") as d:
        PROXY.set()
        expect(d("put 0 1 1000 9000"), [1, 0, 0])
        assert PROXY.log[-1][2].get("if-none-match") == "*"
        d("reopen")
        expect(d("put 0 1 1000 9000"), [0, 1, 0])
        PROXY.set(Fault("status", "PUT", times=1, status=412, code="PreconditionFailed"))
        expect(d("put 1 1 1000 9000"), [0, 1, 0])
        PROXY.set(Fault("status", "PUT", times=2, status=409, code="ConditionalRequestConflict"))
        expect(d("put 2 1 1000 9000"), [1, 0, 0])
        d("reopen")
        PROXY.set(Fault("status", "PUT", times=1, status=409, code="ConditionalRequestConflict"))
        expect(d("put 2 1 1000 9000"), [0, 1, 0])
        # the answer to the first attempt is lost: the second one finds it there
        PROXY.set(Fault("lose", "PUT", times=1))
        expect(d("put 3 1 1000 9000"), [0, 1, 0])
        expect(d("get 3 1 1000 9000"), [1, 0, 0, 0, 0])
        PROXY.set(Fault("status", "PUT", times=1, status=501, code="NotImplemented"))
        expect(d("put 4 2 1000 9000"), [2, 0, 0])
        assert "if-none-match" not in PROXY.log[-1][2]
        PROXY.set(Fault("status", "PUT", status=403, code="AccessDenied"))
        expect(d("put 7 1 1000 9000"), [0, 0, 1])
    with Driver(PROXY.port, "condition=head", prefix="conditions") as d:
        PROXY.set()
        expect(d("put 0 1 1000 9000"), [0, 1, 0])
        expect(d("put 8 1 1000 9000"), [1, 0, 0])
        assert not any("if-none-match" in r[2] for r in PROXY.log)


def test_parts(port):
    size = 33 * MIB
    with Driver(PROXY.port, "part=8M", prefix="parts") as d:
        for i, fault in enumerate((
                Fault("reset", "PUT", "partNumber=2", times=1), Fault("lose", "PUT", "partNumber=3", times=1), Fault("status", "PUT", "partNumber", times=2, status=503),
                Fault("lose", "POST", "uploadId", times=1), Fault("status", "POST", "uploadId", times=1, status=500, code="InternalError"),
                Fault("status", "POST", "uploadId", times=1, status=200, code="InternalError"))):
            PROXY.set(fault)
            got = d(f"put {i} 1 {size} 20000")
            assert got[0] == [1, 0, 0] or (got[0] == [0, 1, 0] and fault.kind == "lose"), got # the lost answer was a good one
            assert fault.met
        PROXY.set()
        expect(d(f"get 0 6 {size} 20000"), [6, 0, 0, 0, 0])
        expect(d("walk"), [6])
        for i, fault in enumerate((
                Fault("status", "PUT", "partNumber=2", status=403, code="AccessDenied"), Fault("status", "POST", "uploadId", status=400, code="InvalidPart"),
                Fault("status", "POST", "uploadId", status=412, code="PreconditionFailed"))):
            PROXY.set(fault)
            expect(d(f"put {10 + i} 1 {size} 20000"), [0, 1, 0] if fault.how["status"] == 412 else [0, 0, 1])
        PROXY.set(Fault("stall", "PUT", "partNumber=4"))
        expect(d(f"put 20 1 {size} 1500"), [0, 0, 1], 1500)
        PROXY.set(Fault("status", "DELETE", status=503, times=3))
        for _ in range(50):
            time.sleep(0.1)
            if s3_servers.uploads(port) == 0:
                break
        assert s3_servers.uploads(port) == 0
        expect(d("walk"), [6])
        d("reopen")
        expect(d(f"put 0 1 {size} 20000"), [0, 1, 0])
        # what is left is removed when the tier is closed
        PROXY.set(Fault("stall", "PUT", "partNumber=4"), Fault("status", "DELETE", status=503, times=2))
        expect(d(f"put 21 1 {size} 1000"), [0, 0, 1], 1000)
        PROXY.set()
    assert s3_servers.uploads(port) == 0


def test_clock(port):
    for seconds, text in ((7200, "s ahead of this machine's"), (-7200, "s behind this machine's")):
        for command in ("find 0 1 3000", "get 0 1 1000 3000"):
            with Driver(PROXY.port) as d:
                PROXY.set(Fault("skew", seconds=seconds))
                got = d(command)
                assert text in got[2] and "set the one that is wrong" in got[2] and got[0][-1] != 0, got
                assert len(PROXY.log) == 1, PROXY.log
    with Driver(PROXY.port) as d: # S3 accepts 15 minutes
        PROXY.set(Fault("skew", seconds=600))
        expect(d("find 0 20 3000"), [0, 0, 1, 20])


def test_hung_server(port):
    with Driver(port, prefix="hung") as d:
        expect(d("put 0 3 1000 9000"), [3, 0, 0])
        SERVER.pause(True)
        try:
            d("reopen")
            expect(d("find 0 31 50"), [0, -1], 50)
            for command in ("find 0 31 50", "get 0 3 1000 100", "put 9 1 1000 100", "drop 0 1 100"):
                got = d(command)
                assert "left alone" in got[2], got
        finally:
            SERVER.pause(False)
        time.sleep(1.3)
        expect(d("get 0 3 1000 5000"), [3, 0, 0, 0, 0])
    with Driver(s3_servers.free_ports(1)[0]) as d:
        expect(d("get 0 1 1000 200"), [0, 0, 0, 0, -1], 200)
    with Driver(1, host="no-such-host.invalid") as d:
        expect(d("get 0 1 1000 200"), [0, 0, 0, 0, -1], 200)


def test_tls(port):
    folder = tempfile.mkdtemp(dir=SCRATCH)
    cert, key = os.path.join(folder, "cert.pem"), os.path.join(folder, "key.pem")
    if not shutil.which("openssl"):
        raise Skip("there is no openssl")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
                    "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    proxy = Proxy(port, context)
    with Driver(proxy.port, f"ca-file={cert}", "https", prefix="tls") as d:
        expect(d("put 0 3 100000 9000"), [3, 0, 0])
        assert proxy.log[-1][2]["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        expect(d("get 0 3 100000 9000"), [3, 0, 0, 0, 0])
    with Driver(proxy.port, f"ca-file={cert}&sign-payload=yes", "https", prefix="tls") as d:
        expect(d("put 3 1 100000 9000"), [1, 0, 0])
        assert len(proxy.log[-1][2]["x-amz-content-sha256"]) == 64
    with Driver(proxy.port, "", "https", prefix="tls") as d:
        got = d("get 0 3 100000 9000")
        expect(got, [0, 0, 0, 0, -1])
        assert "certificate" in got[2], got
    with Driver(proxy.port, f"ca-file={cert}", "http", prefix="tls") as d:
        expect(d("get 0 3 100000 700"), [0, 0, 0, 0, -1], 700)


class Skip(Exception):
    pass


EVERY_SERVER = [test_round_trip, test_find, test_each, test_walk_pages, test_threads, test_quarantine_kept, test_two_writers]
ONE_SERVER = [test_walk_without_end, test_refused, test_credential_files, test_options, test_storm, test_bodies, test_etags, test_size_lies, test_slow, test_hedging,
              test_conditions, test_parts, test_clock, test_hung_server, test_tls]


def run(tests, port, name):
    passed = failed = skipped = 0
    for test in tests:
        if WANTED and not any(w in test.__name__ for w in WANTED):
            continue
        begun = time.monotonic()
        try:
            test(port)
            passed += 1
            print(f"ok   {name} {test.__name__} {time.monotonic() - begun:.1f} s", flush=True)
        except Skip as why:
            skipped += 1
            print(f"SKIPPED: {name} {test.__name__}: {why}")
        except Exception as e:
            failed += 1
            import traceback

            traceback.print_exc(limit=-3)
            print(f"FAIL {name} {test.__name__}: {type(e).__name__}: {e}", flush=True)
    return passed, failed, skipped


def main():
    global PROXY, SERVER
    env, why = s3_servers.environment(os.path.abspath("build/store-s3"))
    if not env:
        print(f"SKIPPED: {why}")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    total = [0, 0, 0]
    for make, tests in ((s3_servers.seaweedfs, EVERY_SERVER + ONE_SERVER), (s3_servers.moto, EVERY_SERVER)):
        folder = tempfile.mkdtemp(dir=SCRATCH)
        SERVER = make(env, folder)
        try:
            SERVER.wait()
            PROXY = Proxy(SERVER.port)
            total = [a + b for a, b in zip(total, run(tests, SERVER.port, SERVER.name))]
        finally:
            SERVER.stop()
    print("{} passed, {} failed, {} skipped".format(*total))
    return int(total[1] > 0)


if __name__ == "__main__":
    import signal

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))
    DRIVER, WANTED = os.path.abspath(sys.argv[1]), sys.argv[2:]
    SCRATCH = tempfile.mkdtemp(prefix="kvc-s3.")
    try:
        status = main()
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    sys.exit(status)
