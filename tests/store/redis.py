#!/usr/bin/env python3
"""redis.py BUILD [TEST..]: the Redis tier against real redis-servers on loopback. Prints "N passed, N failed, N skipped"."""
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback

from redis_servers import Cluster, Folder, Tier, Server, SLOTS

BUILD = os.path.abspath(sys.argv[1])
MIB = 1 << 20
LATE = 1_000_000  # microseconds that a call may take beyond its deadline, on a machine whose cores do other work
tests = []


def test(f):
    tests.append(f)
    return f


class Failure(Exception):
    pass


def expect(reply, **wanted):
    for key, value in wanted.items():
        if reply.get(key) != value:
            raise Failure(f"{key} is not {value!r} in {reply}")
    return reply


def check(condition, what):
    if not condition:
        raise Failure(str(what))


def retry(reply, text=""):
    expect(reply, ok=False, severity="retry")
    check(text in reply["error"], reply)


def tier(url, **more):
    made = Tier(BUILD, url, **more)
    expect(made.opened, ok=True)
    return made


def round_trips(l):
    """Finds and their round trips until now."""
    words = expect(l("facts"), ok=True)["text"].split("; ")[1].split()
    return int(words[0]), int(words[3])


# --- what works ---


def round_trip(l):
    sizes = [0, 1, 7, 100, 65535, 65537, MIB - 1, MIB, MIB + 1, 3 * MIB, 20_000_000]
    expect(l("get 0 5"), ok=True, there=0, missing=5, order=True)
    for i, size in enumerate(sizes):
        expect(l(f"put {i} 1 {size}"), ok=True, there=0)
    expect(l(f"get 0 {len(sizes)}"), ok=True, there=len(sizes), wrong=0, bytes=sum(sizes), order=True)
    # an object of no bytes cannot be told from one that is not there
    expect(l("find 0 3"), ok=True, found=0)
    expect(l("find 1 30"), ok=True, found=len(sizes) - 1, bytes=sum(sizes))
    # dedupe, and taking the place of an object
    for i in (1, 10):
        expect(l(f"put {i} 1 {sizes[i]} seed=5"), ok=True, there=1)
        expect(l(f"get {i} 1"), ok=True, there=1, wrong=0)
        expect(l(f"put {i} 1 {sizes[i]} seed=5 replace=1"), ok=True, there=0)
        expect(l(f"get {i} 1 seed=5"), ok=True, there=1, wrong=0)
    expect(l("get 0 11 stop=3"), ok=True, there=3)
    expect(l("get 2 5 stop=4"), ok=True, there=4, wrong=0)
    # gaps
    expect(l("drop 4 2"), ok=True)
    expect(l("find 1 10"), ok=True, found=3)
    expect(l("get 2 5"), ok=True, there=3, missing=2, wrong=0, why=0, order=True)
    expect(l("quarantine 2"), ok=True)
    expect(l("get 2 1"), ok=True, there=0, missing=1)
    expect(l("drop 0 20"), ok=True)
    expect(l("walk"), ok=True, n=0)


@test
def single_server(folder):
    s = Server(folder)
    l = tier(f"redis://127.0.0.1:{s.port}/")
    round_trip(l)
    check("single server" in l("facts")["text"], l("facts"))
    l.end()
    l = tier(f"redis://localhost:{s.port}?db=3&prefix=a%3f*[x]:")
    expect(l("put 0 3 10"), ok=True)
    c = s.client()
    c("SELECT", 3)
    keys = c("KEYS", "*")
    check(len(keys) == 3 and all(k.startswith(b"a?*[x]:5151515151515151-") and k.endswith(b".kv") for k in keys), keys)
    c("SET", "a?*[x]:other", "1")
    c("SET", "aXX[x]:" + keys[0].decode()[7:], "1")
    expect(l("walk"), ok=True, n=3, bytes=30, used=3)
    l.end()
    s.kill()


@test
def cluster(folder):
    cluster = Cluster(folder)
    l = tier(cluster.url())
    round_trip(l)
    check("cluster of 3 masters" in l("facts")["text"], l("facts"))
    expect(l("put 100 512 1000"), ok=True, put=512)
    finds, trips = round_trips(l)
    times = []
    for _ in range(20):
        times.append(expect(l("find 100 512"), ok=True, found=512, bytes=512000)["us"])
    after = round_trips(l)
    check(after == (finds + 20, trips + 60), f"20 finds took {after[1] - trips} round trips of 3 masters")
    print(f"  find of 512 keys on 3 masters: {min(times) / 1000:.2f} ms, median {sorted(times)[10] / 1000:.2f} ms", flush=True)
    for gap in (500, 37, 0):
        expect(l(f"drop {100 + gap} 1"), ok=True)
        expect(l("find 100 512"), ok=True, found=gap)
    expect(l("find 100 0"), ok=True, found=0)
    expect(l("put 5000 40 10 space=7"), ok=True)
    expect(l("walk"), ok=True, n=549)
    expect(l("walk-space 7"), ok=True, n=40, bytes=400)
    expect(l("walk stop=5"), ok=True, n=5)
    # each by itself, with gaps, in one round trip for each master
    for gap in (137, 300):
        expect(l(f"drop {100 + gap} 1"), ok=True)
    finds, trips = round_trips(l)
    gaps = [0, 37, 137, 300, 500]
    expect(l("each 100 512"), ok=True, there=512 - len(gaps), sum=sum(range(512)) - sum(gaps))
    expect(l("each 2000 512"), ok=True, there=0)
    check(round_trips(l) == (finds + 2, trips + 6), f"{round_trips(l)} after {finds}, {trips}")
    # any one member is enough to begin with; further hosts may be dead
    other = tier(f"redis://127.0.0.1:1,127.0.0.1:{cluster.servers[2].port}")
    expect(other("find 101 30"), ok=True, found=30)
    other.end()
    retry(tier(cluster.url() + "?db=1")("find 0 1"), "SELECT")
    l.end()
    cluster.kill()


@test
def time_to_live(folder):
    s = Server(folder)
    c = s.client()
    l = tier(f"redis://127.0.0.1:{s.port}?ttl=300ms&prefix=")
    expect(l("put 0 1 10"), ok=True)
    expect(l("put 1 1 10 seconds=100"), ok=True)
    expect(l("put 2 1 10 pin=1"), ok=True)
    expect(l("put 3 1 10"), ok=True)
    expect(l("put 3 1 10 pin=1"), ok=True, there=1)
    expect(l("put 4 1 100000"), ok=True)
    expect(l("put 4 1 100000 pin=1"), ok=True, there=1)
    check([c("PTTL", k) for k in c("KEYS", "*")].count(-1) == 3, "objects that are to stay have an end of life")
    expect(l("drop 3 2"), ok=True)
    left = [c("PTTL", k) for k in sorted(c("KEYS", "*"), key=lambda k: c("PTTL", k))]
    check(left[0] == -1 and 0 < left[1] <= 300 and 99000 < left[2] <= 100000, left)
    expect(l(f"pin 0 1 {int(time.time()) + 50}"), ok=True)
    expect(l("pin 1 1 0"), ok=True)
    time.sleep(0.4)
    expect(l("find 0 1"), found=1)
    expect(l("find 1 1"), found=0)
    expect(l("find 2 1"), found=1)
    # finding counts as use for the server's eviction
    time.sleep(2.1)
    expect(l("walk"), n=2)
    l.end()
    s.kill()


@test
def finding_is_use(folder):
    s = Server(folder, "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru")
    c = s.client()
    l = tier(f"redis://127.0.0.1:{s.port}?prefix=")
    for command in ("find 0 1", "get 0 1"):
        expect(l("put 0 1 10 replace=1"), ok=True)
        key = c("KEYS", "*")[0]
        time.sleep(2.1)
        check(c("OBJECT", "IDLETIME", key) >= 2, "idle")
        expect(l(command), ok=True)
        check(c("OBJECT", "IDLETIME", key) == 0, command + " does not count as use")
    l.end()
    s.kill()


@test
def passwords(folder):
    s = Server(folder, "--requirepass", "a b\"c'")
    url = f"redis://127.0.0.1:{s.port}"
    retry(tier(url)("find 0 1"), "NOAUTH")
    l = tier(url, environment={"KVC_REDIS_PASSWORD": "wrong-one"})
    reply = l("find 0 1")
    retry(reply, "WRONGPASS")
    check("wrong-one" not in reply["error"], reply)
    l = tier(url, environment={"KVC_REDIS_PASSWORD": "a b\"c'"})
    expect(l("put 0 3 10"), ok=True)
    c = s.client()
    c("AUTH", "a b\"c'")
    c("ACL", "SETUSER", "kv", "on", ">secret", "~kvc:*", "+@all")
    path = os.path.join(folder, "password")
    with open(path, "w") as f:
        f.write("secret\n")
    os.chmod(path, 0o644)
    expect(Tier(BUILD, f"{url}?user=kv&password-file={path}").opened, ok=False, severity="item")
    os.chmod(path, 0o600)
    l = tier(f"{url}?user=kv&password-file={path}")
    expect(l("find 0 3"), ok=True, found=3)
    l.end()
    # no more rights than the page says
    words = "cluster|slots strlen get getrange set unlink scan asking info pexpire expireat persist select auth"
    c("ACL", "SETUSER", "few", "on", ">secret", "~kvc:*", "-@all", *("+" + word for word in words.split()))
    l = tier(f"{url}?user=few&password-file={path}&ttl=1h")
    expect(l("put 0 4 10 pin=1"), ok=True, there=3)
    expect(l("find 0 5"), ok=True, found=4)
    expect(l("get 0 5"), ok=True, there=4, wrong=0)
    expect(l("walk"), ok=True, n=4, bytes=40)
    expect(l(f"pin 0 2 {int(time.time()) + 9}"), ok=True)
    expect(l("pin 0 2 0"), ok=True)
    expect(l("facts"), ok=True, objects=-1)
    expect(l("drop 0 4"), ok=True)
    l.end()
    expect(tier(f"{url}?user=kv&password-file={path}")("put 0 3 10"), ok=True)
    retry(tier(f"{url}?user=kv&password-file={path}&prefix=other:")("put 0 1 5"), "NOPERM")
    s.kill()


@test
def wrong_options(_):
    for url in (
        "redis://",
        "redis://h:0",
        "redis://h:70000",
        "redis://h:12x",
        "redis://[::1",
        "redis://,",
        "redis://h/3",
        "redis://h?db=x",
        "redis://h?prefix={a}",
        "redis://h?ttl=-1",
        "redis://h?ttl=1m&colour=red",
        "redis://h?user=me",
        "redis://h?password-file=/nowhere",
        "redis://h?ca=/nowhere",
        "rediss://h?ca=/nowhere",
        "rediss://h?cert=/nowhere",
        "redis://h?timeout=0",
        "redis://me:pw@h",
    ):
        expect(Tier(BUILD, url, environment={"KVC_REDIS_PASSWORD": ""}).opened, ok=False, severity="item")


def make_certificate(folder):
    key, certificate = os.path.join(folder, "key"), os.path.join(folder, "certificate")
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(["openssl", *command.split(), "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key


@test
def tls(folder):
    if not shutil.which("openssl"):
        return "no openssl"
    certificate, key = make_certificate(folder)
    from redis_servers import free_port

    port = free_port()
    options = ("--tls-port", port, "--tls-cert-file", certificate, "--tls-key-file", key, "--tls-ca-cert-file", certificate)
    s = Server(folder, *options, "--tls-auth-clients", "optional")
    for host in ("127.0.0.1", "localhost"):
        l = tier(f"rediss://{host}:{port}?ca={certificate}")
        round_trip(l)
        l.end()
    retry(tier(f"rediss://127.0.0.1:{port}")("find 0 1"), "TLS: ")
    retry(tier(f"rediss://127.0.0.2:{port}?ca={certificate}")("find 0 1"))
    retry(tier(f"rediss://127.0.0.1:{s.port}?ca={certificate}")("find 0 1 deadline=500"))
    l = tier(f"rediss://127.0.0.1:{port}?ca={certificate}&cert={certificate}&key={key}")
    expect(l("put 100 10 100000"), ok=True)
    expect(l("load 0 40 3000000 threads=4 seconds=2"), wrong=0, errors=0)
    l.end()
    s.kill()


class Hangs(threading.Thread):
    """A server with TLS that closes each connection when a large value comes."""

    def __init__(self, certificate, key):
        super().__init__(daemon=True)
        self.settings = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.settings.load_cert_chain(certificate, key)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.start()

    def run(self):
        while True:
            try:
                s = self.settings.wrap_socket(self.listener.accept()[0], server_side=True)
                while b"SET" not in (data := s.recv(4096)):
                    s.sendall(b"-ERR This instance has cluster support disabled\r\n" if b"CLUSTER" in data else b":0\r\n")
                # its end, and then a reset, as bytes were not read
                plain = socket.socket(fileno=s.detach())
                plain.shutdown(socket.SHUT_WR)
                plain.close()
            except OSError:
                pass


@test
def tls_hangs_up(folder):
    """A lost connection is an error of the call, and no signal to the program."""
    if not shutil.which("openssl"):
        return "no openssl"
    certificate, key = make_certificate(folder)
    server = Hangs(certificate, key)
    for _ in range(4):
        l = tier(f"rediss://127.0.0.1:{server.port}?ca={certificate}")
        for _ in range(3):
            retry(l("put 0 1 40000000 check=0 deadline=5000"))
        l.end()


# --- what fails ---


@test
def refusals(folder):
    s = Server(folder, "--maxmemory", "30mb", "--maxmemory-policy", "noeviction")
    c = s.client()
    l = tier(f"redis://127.0.0.1:{s.port}?max-object=8M&prefix=")
    expect(l(f"put 0 1 {8 * MIB + 1}"), ok=False, severity="item")
    expect(l("put 0 3 1000"), ok=True)
    key = sorted(c("KEYS", "*"))[0]
    keys = {}
    for i in range(3):
        before = set(c("KEYS", "*"))
        expect(l(f"drop {i} 1"), ok=True)
        keys[i] = (before - set(c("KEYS", "*"))).pop()
    c("SET", keys[0], "x" * 1000)
    c("RPUSH", keys[1], "x")
    expect(l("get 0 3"), ok=True, there=1, wrong=1, missing=2, why=1)
    expect(l("find 0 3"), ok=True, found=1)
    expect(l("each 0 3"), ok=True, there=1, sum=0)
    expect(l("walk"), ok=True, n=2, bytes=1000)
    # what is no string is written over, by small and by large objects, and by those that stay
    for how in ("put 1 1 10", "put 1 1 100000", "put 1 1 10 pin=1", "put 1 1 100000 pin=1"):
        expect(l("drop 1 1"), ok=True)
        c("HSET", keys[1], "a", "b")
        expect(l(how), ok=True, there=0)
        check(c("TYPE", keys[1]) == "string", how)
    expect(l("put 1 1 10"), ok=True, there=1)
    expect(l("put 1 1 100000"), ok=True, there=1)
    # larger than what this tier reads
    c("SETRANGE", keys[2], 9 * MIB, "x")
    expect(l("get 2 1"), ok=True, there=0, missing=1, why=1)
    c("FLUSHALL")
    reply = l(f"put 0 40 {4 * MIB}")
    retry(reply, "OOM")
    check(0 < reply["put"] < 10, reply)
    n = reply["put"]
    expect(l(f"get 0 {n}"), ok=True, there=n, wrong=0)
    # a replica
    c("FLUSHALL")
    c("CONFIG", "SET", "replica-serve-stale-data", "yes")
    c("REPLICAOF", "127.0.0.1", "1")
    retry(l("put 0 1 10"), "READONLY")
    c("REPLICAOF", "NO", "ONE")
    expect(l("put 0 1 10"), ok=True)
    # the server closes idle connections
    c("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    expect(l("find 0 1"), ok=True, found=1)
    l.end()
    s.kill()
    check(key in keys.values(), key)


@test
def eviction_during_get(folder):
    s = Server(folder, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    c = s.client()
    l = tier(f"redis://127.0.0.1:{s.port}")
    stop = threading.Event()

    def fill():
        i = 0
        while not stop.is_set():
            c("SET", f"other{i % 1000}", "x" * 2_000_000)
            i += 1

    expect(l("put 0 10 6000000"), ok=True)
    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    there = 0
    for _ in range(10):
        reply = expect(l("get 0 10"), ok=True, wrong=0, order=True)
        check(reply["there"] + reply["missing"] == 10, reply)
        there += reply["there"]
        expect(l("put 0 10 6000000"), ok=True)
    stop.set()
    thread.join()
    expect(l("get 0 10"), ok=True, wrong=0)
    print(f"  {there} of 100 objects were there under eviction")
    l.end()
    s.kill()


@test
def changes_during_get(folder):
    """Objects are dropped and replaced by others of another size while they are read."""
    s = Server(folder)
    c = s.client()
    l = tier(f"redis://127.0.0.1:{s.port}?prefix=")
    expect(l("put 0 1 30000000"), ok=True)
    key = c("KEYS", "*")[0]
    whole = c("GET", key)
    stop = threading.Event()

    def change():
        while not stop.is_set():
            c("UNLINK", key)
            time.sleep(0.005)
            c("SET", key, whole[:12_000_000])
            time.sleep(0.005)
            c("SET", key, whole)
            time.sleep(0.1)

    thread = threading.Thread(target=change, daemon=True)
    thread.start()
    counts = {"there": 0, "missing": 0, "why": 0}
    end = time.time() + 3
    while time.time() < end:
        reply = expect(l("get 0 1"), ok=True)
        for k in counts:
            counts[k] += reply[k]
        # a whole object of the smaller size has the larger one's first bytes, which the driver calls wrong
        check(reply["missing"] or reply["bytes"] in (12_000_000, 30_000_000), reply)
        check(reply["bytes"] != 30_000_000 or reply["wrong"] == 0, reply)
    stop.set()
    thread.join()
    print(f"  {counts}")
    check(counts["there"] and counts["missing"], counts)
    l.end()
    s.kill()


@test
def slots_that_move(folder):
    cluster = Cluster(folder)
    l = tier(cluster.url())
    expect(l("load 0 200 3000000 threads=2 seconds=1"), wrong=0, errors=0)
    c = cluster.servers[0].client()
    slots = sorted({c("CLUSTER", "KEYSLOT", k) for s in cluster.servers for k in s.client()("KEYS", "*")})
    l.send("load 0 200 3000000 threads=6 seconds=8")
    end, moves = time.time() + 7, 0
    walker = tier(cluster.url())
    walker.send("walk")
    while time.time() < end:
        for i, slot in enumerate(slots):
            cluster.move(slot, (moves + i) % 3)
            if time.time() > end:
                break
        moves += 1
    expect(walker.receive(), ok=True)
    walker.end()
    reply = expect(l.receive(), wrong=0, errors=0)
    print(f"  {reply['calls']} calls during {moves} passes over {len(slots)} slots")
    # a slot whose keys are half moved: ASK
    clients = [s.client() for s in cluster.servers]
    names = [x("CLUSTER", "MYID").decode() for x in clients]
    expect(l("put 1000 100 2000000"), ok=True)
    for source in range(3):
        for r in clients[source]("CLUSTER", "SLOTS"):
            if r[2][2].decode() != names[source]:
                continue
            for slot in slots:
                if r[0] <= slot <= r[1]:
                    to = (source + 1) % 3
                    clients[to]("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
                    clients[source]("CLUSTER", "SETSLOT", slot, "MIGRATING", names[to])
                    keys = clients[source]("CLUSTER", "GETKEYSINSLOT", slot, 10)
                    if keys:
                        clients[source]("MIGRATE", "127.0.0.1", cluster.servers[to].port, "", 0, 5000, "KEYS", *keys)
    expect(l("walk"), ok=True)
    expect(l("get 1000 100"), ok=True, there=100, wrong=0, order=True)
    expect(l("find 1000 101"), ok=True, found=100)
    expect(l("put 2000 300 20"), ok=True, put=300)
    expect(l("drop 1000 100"), ok=True)
    l.end()
    cluster.kill()


@test
def killed_master(folder):
    cluster = Cluster(folder)
    l = tier(cluster.url())
    expect(l("put 0 300 1000"), ok=True)
    l.send("load 1000 300 100000 threads=4 seconds=4 deadline=1000")
    time.sleep(1)
    cluster.servers[1].kill()
    reply = expect(l.receive(), wrong=0)
    check(reply["errors"] > 0 and reply["us"] < 6_000_000, reply)
    cluster.wait("fail", servers=[cluster.servers[0], cluster.servers[2]])
    replies = [l("find 0 300 deadline=1000") for _ in range(5)]
    for reply in replies:
        retry(reply)
    check(min(reply["us"] for reply in replies) < 100_000, replies)
    # back, and empty
    cluster.servers[1].start()
    cluster.wait()
    end = time.time() + 35
    while not (reply := l("find 0 300 deadline=1000"))["ok"] and time.time() < end:
        time.sleep(0.1)
    expect(reply, ok=True)
    expect(l("put 0 300 1000 replace=1"), ok=True, put=300)
    expect(l("find 0 300"), ok=True, found=300)
    expect(l("get 0 300"), ok=True, there=300, wrong=0)
    l.end()
    cluster.kill()


@test
def replica_takes_over(folder):
    cluster = Cluster(folder)
    l = tier(cluster.url())
    replica = Server(folder, cluster=True)
    cluster.servers.append(replica)
    c, master = replica.client(), cluster.servers[1]
    bus = master.options[master.options.index("--cluster-port") + 1]
    c("CLUSTER", "MEET", "127.0.0.1", master.port, bus)
    cluster.wait()
    c("CLUSTER", "REPLICATE", master.client()("CLUSTER", "MYID"))
    expect(l("put 0 300 1000"), ok=True)
    end = time.time() + 20
    keys = master.client()("DBSIZE")
    while (c("DBSIZE") < keys or b"master_link_status:up" not in c("INFO", "replication")) and time.time() < end:
        time.sleep(0.05)
    master.kill()
    begin = time.time()
    while not (reply := l("find 0 300 deadline=200"))["ok"] and time.time() < begin + 20:
        time.sleep(0.05)
    expect(reply, ok=True, found=300)
    print(f"  after {time.time() - begin:.1f} s")
    expect(l("get 0 300"), ok=True, there=300, wrong=0)
    expect(l("put 1000 300 1000"), ok=True, put=300)
    l.end()
    cluster.kill()


@test
def stopped_master(folder):
    cluster = Cluster(folder, "--cluster-require-full-coverage", "no")
    l = tier(cluster.url())
    expect(l("put 0 300 1000"), ok=True)
    stopped = cluster.servers[2]
    stopped.signal(signal.SIGSTOP)
    first = l("find 0 300 deadline=50")
    retry(first)
    check(45_000 <= first["us"] < 50_000 + LATE, first)
    worst = 0
    for command in ("find 0 300 deadline=50", "get 0 300 deadline=50", "find 0 300 deadline=50"):
        reply = l(command)
        worst = max(worst, reply["us"])
        retry(reply)
    print(f"  first call {first['us'] / 1000:.1f} ms, then up to {worst / 1000:.2f} ms", flush=True)
    quick = min(l("find 0 300 deadline=50")["us"] for _ in range(5))
    check(quick < 20_000, quick)
    # a large value to a stopped server
    stopped.signal(signal.SIGCONT)
    end = time.time() + 8
    while not l("find 0 300 deadline=50")["ok"] and time.time() < end:
        time.sleep(0.05)
    expect(l("get 0 300"), ok=True, there=300, wrong=0)
    stopped.signal(signal.SIGSTOP)
    for i in range(9):
        reply = l(f"put {1000 + i} 1 50000000 deadline=1000")
        check(reply["us"] < 1_000_000 + LATE, reply)
    stopped.signal(signal.SIGCONT)
    l.end()
    cluster.kill()


@test
def nobody_there(_):
    l = tier("redis://127.0.0.1:1")
    for _ in range(3):
        retry(l("find 0 1 deadline=100"), "refused")
    reply = l("find 0 1 deadline=100")
    retry(reply, "left alone")
    time.sleep(1.3)
    retry(l("find 0 1 deadline=100"), "refused")
    retry(l("find 0 1 deadline=100"), "left alone")
    for command in ("put 0 1 10", "get 0 1", "drop 0 1", "walk", "facts", "quarantine 0"):
        retry(l(command))
    l.end()
    l = tier("redis://no-such-host.invalid")
    reply = l("find 0 1 deadline=300")
    retry(reply)
    check(reply["us"] < 300_000 + LATE, reply)


@test
def threads(folder):
    cluster = Cluster(folder)
    l = tier(cluster.url())
    reply = expect(l("load 0 100 4000000 threads=8 seconds=5"), wrong=0, errors=0)
    print(f"  {reply['calls']} calls, {reply['there']} objects read")
    l.end()
    cluster.kill()


# --- stores, by the tools ---


class Tools:
    """The tools of the build, in a folder with caches of noise: 6 chunks of 2 MiB each."""

    CHUNKS = 6

    def __init__(self, folder):
        self.folder = folder

    def run(self, tool, *words, status=0, **environment):
        done = subprocess.run([f"{BUILD}/{tool}", *map(str, words)], cwd=self.folder, capture_output=True, text=True,
                              env={**os.environ, "KVC_STORE_BACKENDS": BUILD, **environment})
        check(status is None or done.returncode == status, f"{tool} {words}: status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def store(self, url, *words, status=0):
        return self.run("kvc-store", "-s", url, *words, status=status)

    def cache(self, name, seed, common=0):
        """Makes a cache, whose first tokens are those of every cache."""
        tokens = 256 * self.CHUNKS
        with open(os.path.join(self.folder, "raw"), "wb") as f:
            f.write(os.urandom(2 * 2 * tokens * 8 * 128 * 2))
        with open(os.path.join(self.folder, name + ".ids"), "w") as f:
            f.write("\n".join(str(i if i < common else 1000 * seed + i % 997) for i in range(tokens)))
        self.run("kvc-pack", "-q", "-f", "--from=raw", f"--raw=dtype=f16,layers=2,tokens={tokens},heads=8,dim=128",
                 f"--token-ids={name}.ids", "-o", f"{name}.kvc", "raw")
        return name + ".kvc"

    def found(self, url, cache):
        name = cache.replace(".kvc", ".ids")
        text = self.run("kvc-store", "-s", url, "find", f"--tokens={name}", "--json", status=None)
        return json.loads(text)["tokens"] // 256

    def first_chunk(self, cache):
        """The name of a cache's first chunk: a directory with room for one takes that."""
        self.store("dir:one?max-size=3M", "-q", "put", "--chunk=256", cache, status=1)
        names = [n for _, _, files in os.walk(os.path.join(self.folder, "one", "obj")) for n in files]
        shutil.rmtree(os.path.join(self.folder, "one"))
        return names[0]


class Monitor:
    """What a server is asked."""

    def __init__(self, server):
        self.client = server.client()
        check(self.client("MONITOR") == "OK", "MONITOR")
        self.asker = server.client()

    def words(self, verb):
        """The chunks that a command was about until now, in order."""
        self.asker("ECHO", "here")
        keys = []
        while '"ECHO" "here"' not in (line := self.client.reply()):
            words = [w.strip('"') for w in line.split(" ")[3:]]
            if words[0].upper() == verb and words[1].endswith(".kv"):
                keys.append(words[1][len("kvc:") :])
        return keys


@test
def last_chunk_first(folder):
    """Chunks are put, and touched, from the last one on, so that a server that evicts what was used longest ago keeps beginnings."""
    s, tools = Server(folder), Tools(folder)
    url = f"redis://127.0.0.1:{s.port}"
    p = tools.cache("p", 1)
    first, m = tools.first_chunk(p), Monitor(s)
    tools.store(url, "put", "--chunk=256", p)
    keys = m.words("SET")
    check(len(keys) == tools.CHUNKS and keys[-1] == first, f"SET {keys}, and not {first} last")
    order = keys
    tools.store(url, "put", "--chunk=256", p)
    check(m.words("SET") == [], "chunks that are there are written again")
    for words in (["find", "--tokens=p.ids"], ["get", "--tokens=p.ids", "-o", "got.kvc", "-f"]):
        tools.store(url, *words)
        keys = m.words("STRLEN")
        check(keys[-tools.CHUNKS :] == order, f"{words}: {keys} does not end with {order}")
    tools.run("kvc-diff", "-q", p, "got.kvc")
    # what is missing in between comes back, and nothing else is written
    c = s.client()
    c("UNLINK", "kvc:" + order[2], "kvc:" + order[4])
    m.words("SET")
    tools.store(url, "put", "--chunk=256", p)
    check(m.words("SET") == [order[2], order[4]], "other chunks are written than are missing")
    # beside a directory, which takes the first chunk first; its chunks are not packed again
    c("FLUSHALL")
    tools.store(f"dir:d,{url}", "put", "--chunk=256", p)
    check(m.words("SET") == order and tools.found("dir:d", p) == tools.found(url, p) == tools.CHUNKS, "a chain")
    # copies to a faster tier are touched after they are written
    tools.store(f"{url},dir:d", "drop", "--like=p.kvc", "--chunk=256")
    tools.store("dir:d", "put", "--chunk=256", p)
    m.words("SET")
    tools.store(f"{url},dir:d", "get", "--tokens=p.ids", "-o", "got.kvc", "-f")
    check(sorted(m.words("SET")) == sorted(order), "copies")
    s.kill()


@test
def eviction_keeps_beginnings(folder):
    """A server with room for three prompts of 6 chunks: what was put last is there, from its beginning on, and its namespace."""
    tools = Tools(folder)
    caches = [tools.cache(f"p{i}", i) for i in range(4)]
    for policy in ("allkeys-lru", "allkeys-lru", "allkeys-lru", "allkeys-lfu"):
        s = Server(folder, "--maxmemory", "40mb", "--maxmemory-policy", policy)
        url, found = f"redis://127.0.0.1:{s.port}", []
        for p in caches:
            tools.run("kvc-store", "-s", url, "put", "--chunk=256", p, status=None)
            found.append(tools.found(url, p))
        print(f"  {policy}: {found} chunks of the prompt that was just put")
        if policy == "allkeys-lru":  # which is by seconds, and so by chance here: all is put within one
            check(min(found) >= 1 and sum(found) >= 3 * tools.CHUNKS, found)
        s.kill()


@test
def one_prompt(folder):
    """A prompt is removed from Redis and a directory; what another shares stays. The prefix's other keys stay, too."""
    s, tools = Server(folder), Tools(folder)
    url, c = f"redis://127.0.0.1:{s.port}", s.client()
    chain = f"dir:d,{url}"
    p, q = tools.cache("p", 1, common=600), tools.cache("q", 2, common=600)
    c("SET", "kvc:other", "x")
    tools.store(chain, "put", "--chunk=256", p, q)
    stats = json.loads(tools.store(url, "stats", "--json"))["tiers"][0]
    check(stats["objects"] == 2 * tools.CHUNKS - 2 + 1 and c("DBSIZE") == stats["objects"] + 1, stats)  # the prefix's, without others' keys
    check(f"{stats['objects']} object" in tools.store(url, "verify"), "verify")
    text = tools.store(chain, "drop", "--tokens=p.ids")
    check("4 chunks of " in text and "2 kept" in text, text)
    for store in ("dir:d", url):
        check((tools.found(store, p), tools.found(store, q)) == (2, tools.CHUNKS), store)
    check(c("DBSIZE") == tools.CHUNKS + 2, "keys")
    tools.store(url, "drop", "--tokens=q.ids")
    check((tools.found("dir:d", q), tools.found(url, q)) == (tools.CHUNKS, 0), "one tier")
    check(c("DBSIZE") == 2, "keys")
    s.kill()


@test
def full_server(folder):
    """A server that evicts nothing: what does not fit leaves nothing that nobody can find."""
    s, tools = Server(folder, "--maxmemory", "30mb", "--maxmemory-policy", "noeviction"), Tools(folder)
    url, c = f"redis://127.0.0.1:{s.port}", s.client()
    p, q = tools.cache("p", 1), tools.cache("q", 2)
    tools.store(url, "put", "--chunk=256", p)
    keys = sorted(c("KEYS", "*"))
    m = Monitor(s)
    check("OOM" in tools.store(url, "put", "--chunk=256", q, status=1), "no reason")
    check(len(m.words("SET")) > 1, "nothing fits, and nothing is to be removed")
    check(sorted(c("KEYS", "*")) == keys, "chunks without their first one are left")
    check(tools.found(url, p) == tools.CHUNKS and tools.found(url, q) == 0, "found")
    s.kill()


@test
def wrong_types(folder):
    """Lists and hashes under names of objects: verify tells of them, --repair removes them, put writes over them."""
    s, tools = Server(folder), Tools(folder)
    url, c = f"redis://127.0.0.1:{s.port}", s.client()
    p = tools.cache("p", 1)
    tools.store(url, "put", "--chunk=256", p)
    keys = c("KEYS", "*.kv")
    check("7 objects" in tools.store(url, "verify"), "verify")
    for make in (lambda key: c("RPUSH", key, "x"), lambda key: c("HSET", key, "a", "b")):
        for key in keys:
            c("UNLINK", key)
            make(key)
        check(tools.found(url, p) == 0, "found")
        for words in (["export", "-f", "-o", "all.tar"], ["sync", "dir:copy"]):
            text = tools.store(url, *words, status=1)
            check(text.count("WRONGTYPE") == tools.CHUNKS and "1 object, " in text and f"{tools.CHUNKS} left out" in text, text)
        text = tools.store(url, "verify", status=1)
        check(text.count("WRONGTYPE") == tools.CHUNKS and f"{tools.CHUNKS} bad" in text, text)
        tools.store(url, "verify", "--repair", status=1)
        check(c("DBSIZE") == 1, "they are not removed")
        tools.store(url, "verify")
        tools.store(url, "put", "--chunk=256", p)
        for key in keys:
            c("UNLINK", key)
            make(key)
        tools.store(url, "put", "--chunk=256", p)
        check(tools.found(url, p) == tools.CHUNKS, "put does not write over them")
    # facts of a namespace: nothing is found, but nothing fails
    facts = c("KEYS", "*.space")[0]
    c("UNLINK", facts)
    c("RPUSH", facts, "x")
    check("WRONGTYPE" in tools.store(url, "find", "--tokens=p.ids", status=1), "find")
    check("WRONGTYPE" in tools.store(url, "verify", "--repair", status=1), "verify")
    tools.store(url, "put", "--chunk=256", p)
    check(tools.found(url, p) == tools.CHUNKS, "facts")
    s.kill()


@test
def verify_goes_on(folder):
    """Of a chain, what can be read is verified; a server that does not answer has its objects neither called bad nor removed."""
    s, tools = Server(folder), Tools(folder)
    url, p = f"redis://127.0.0.1:{s.port}", tools.cache("p", 1)
    for store in ("dir:d", url):
        tools.store(store, "put", "--chunk=256", p)
    down = "redis://127.0.0.1:1?prefix"
    text = tools.store(f"{down}=a:,dir:d,{down}=b:,{url}", "verify", status=2)
    check(f"{2 * tools.CHUNKS + 2} objects in 4 tiers" in text and ": 0 bad" in text and text.count("refused") == 2, text)
    for i, key in enumerate(s.client()("KEYS", "*.kv")):
        s.client()("APPEND", key, "x" * (i << 20))
    text = tools.store(f"{url}?max-object=4M", "verify", "--repair", status=1)
    check(text.count("larger than max-object") == text.count("it may be good") == 4 and s.client()("DBSIZE") == tools.CHUNKS - 1 + 1, text)
    s.kill()


class Fake(threading.Thread):
    """A server that answers CLUSTER SLOTS as a single server does, and all else with given bytes."""

    def __init__(self, answer, delay=0.0, close=False):
        super().__init__(daemon=True)
        self.answer, self.delay, self.close_after = answer, delay, close
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.port = self.listener.getsockname()[1]
        self.connections = 0
        self.start()

    def run(self):
        while True:
            s, _ = self.listener.accept()
            self.connections += 1
            threading.Thread(target=self.serve, args=(s,), daemon=True).start()

    def serve(self, s):
        try:
            while data := s.recv(1 << 16):
                if b"CLUSTER" in data:
                    s.sendall(b"-ERR This instance has cluster support disabled\r\n")
                    continue
                time.sleep(self.delay)
                s.sendall(self.answer)
                if self.close_after:
                    s.close()
                    return
        except OSError:
            pass


class Elsewhere:
    """A cluster that says an object is empty, and sends its first slice from another node, with a pause within."""

    def __init__(self):
        self.listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.ports = [s.getsockname()[1] for s in self.listeners]
        self.sent, self.early = False, False
        for node in range(2):
            threading.Thread(target=self.accept, args=(node,), daemon=True).start()

    def accept(self, node):
        while True:
            threading.Thread(target=self.serve, args=(node, self.listeners[node].accept()[0]), daemon=True).start()

    def serve(self, node, s):
        with s, s.makefile("rb") as f:
            while line := f.readline():
                words = [f.read(int(f.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                if words[0] == b"CLUSTER":
                    s.sendall(b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % self.ports[0])
                elif words[0] == b"STRLEN":
                    s.sendall(b":0\r\n")
                elif words[0] == b"ASKING":
                    s.sendall(b"+OK\r\n")
                elif words[0] == b"GETRANGE" and node == 0:
                    s.sendall(b"-ASK %d 127.0.0.1:%d\r\n" % (slot_of(words[1]), self.ports[1]))
                elif words[0] == b"GETRANGE":
                    s.sendall(b"$%d\r\n" % MIB + b"x" * 100000)
                    time.sleep(0.3)
                    self.sent = True
                    s.sendall(b"x" * (MIB - 100000) + b"\r\n")
                elif words[0] == b"GET":
                    self.early |= not self.sent
                    s.sendall(b"$%d\r\n" % (4 * MIB) + b"y" * (4 * MIB) + b"\r\n")


def slot_of(key):
    crc = 0
    for byte in key:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc % SLOTS


@test
def one_writer(_):
    """What an object is read into is not moved while another node still writes there."""
    fake = Elsewhere()
    l = tier(f"redis://127.0.0.1:{fake.ports[0]}")
    reply = expect(l("get 0 1 check=0 deadline=5000"), ok=True, there=1, bytes=4 * MIB)
    check(not fake.early, f"the whole object is asked for while a slice is under way: {reply}")
    l.end()


@test
def bad_servers(_):
    answers = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00" * 100,
        b":12abc\r\n",
        b"$5\r\nabcdefgh\r\n",
        b"$-7\r\n",
        b"$99999999999999999999\r\n",
        b"*2147483647\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-MISCONF Redis is configured to save\r\n",
        b"-CLUSTERDOWN The cluster is down\r\n",
        b"-MOVED 1 nowhere\r\n",
        b"+OK\r\n",
        b"$3\r\nabc\r\n",
        b"",
    ]
    for answer in answers:
        fake = Fake(answer, close=True)
        l = tier(f"redis://127.0.0.1:{fake.port}")
        for command in ("find 0 1 deadline=300", "put 0 1 10 deadline=300", "get 0 1 deadline=300", "walk", "facts deadline=300"):
            reply = l(command)
            check("ok" in reply, reply)
            if command[0] in "fg" and answer not in (b"+OK\r\n", b"$3\r\nabc\r\n"):
                expect(reply, ok=False, severity="retry")
            check(reply["us"] < 500_000, reply)
        l.end()
    # a late reply is not taken for that of the next question
    fake = Fake(b":77\r\n", delay=0.1)
    l = tier(f"redis://127.0.0.1:{fake.port}")
    retry(l("find 0 1 deadline=10"), "time limit")
    n = fake.connections
    time.sleep(0.15)
    expect(l("find 0 1 deadline=1000"), ok=True, found=1, bytes=77)
    check(fake.connections == n + 1, fake.connections)
    # a list of keys without an end
    fake = Fake(b"*2\r\n$1\r\n7\r\n*0\r\n")
    l = tier(f"redis://127.0.0.1:{fake.port}?timeout=50ms")
    reply = l("walk")
    retry(reply, "does not end")
    check(3_000_000 <= reply["us"] < 3_000_000 + LATE, reply)
    l.end()
    # an answer to no question
    fake = Fake(b":1\r\n:2\r\n")
    l = tier(f"redis://127.0.0.1:{fake.port}")
    expect(l("find 0 1"), ok=True, bytes=1)
    expect(l("find 0 1"), ok=True, bytes=1)
    l.end()


def main():
    if not shutil.which("redis-server"):
        print("SKIPPED: there is no redis-server")
        print("0 passed, 0 failed, 1 skipped")
        return 0
    signal.alarm(400)
    passed = failed = skipped = 0
    for f in tests:
        if len(sys.argv) > 2 and f.__name__ not in sys.argv[2:]:
            continue
        begin = time.time()
        with Folder() as folder:
            try:
                why = f(folder)
                if why:
                    skipped += 1
                    print(f"SKIPPED: {f.__name__}: {why}")
                else:
                    passed += 1
                    print(f"ok {f.__name__} ({time.time() - begin:.1f} s)", flush=True)
            except Exception:
                failed += 1
                print(f"FAIL {f.__name__}", flush=True)
                traceback.print_exc()
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
