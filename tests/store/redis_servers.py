"""redis_servers.py: real redis-servers on loopback for tests, single or as a cluster, a client for their administration, and the driver of
a tier. All processes end with the test, however it ends."""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

SLOTS = 16384


def die_with_parent():
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):
        pass


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class ServerError(Exception):
    pass


class Client:
    """Sends one command at a time."""

    def __init__(self, port, timeout=10):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout)
        self.file = self.socket.makefile("rb")

    def __call__(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))
        return self.reply()

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ConnectionError("closed")
        kind, rest = line[:1], line[1:-2]
        if kind == b"-":
            raise ServerError(rest.decode())
        if kind == b"+":
            return rest.decode()
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]

    def close(self):
        self.file.close()
        self.socket.close()


class Server:
    """One redis-server."""

    def __init__(self, folder, *options, cluster=False):
        self.port = free_port()
        self.folder = os.path.join(folder, str(self.port))
        os.mkdir(self.folder)
        self.options = ["--port", self.port, "--bind", "127.0.0.1", "--save", "", "--dir", self.folder, *options]
        if cluster:
            self.options += ["--cluster-enabled", "yes", "--cluster-port", free_port(), "--cluster-node-timeout", 1000]
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            ["redis-server", *map(str, self.options)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent
        )
        for _ in range(200):
            try:
                Client(self.port).close()
                return
            except OSError:
                time.sleep(0.02)
        raise RuntimeError("redis-server does not start")

    def client(self):
        return Client(self.port)

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


class Cluster:
    """Three masters, with the slots in equal parts."""

    def __init__(self, folder, *options):
        self.servers = [Server(folder, *options, cluster=True) for _ in range(3)]
        for i, server in enumerate(self.servers):
            c = server.client()
            c("CLUSTER", "ADDSLOTSRANGE", i * SLOTS // 3, (i + 1) * SLOTS // 3 - 1)
            c("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
            if i:
                port = self.servers[0].options[self.servers[0].options.index("--cluster-port") + 1]
                c("CLUSTER", "MEET", "127.0.0.1", self.servers[0].port, port)
            c.close()
        self.wait()

    def wait(self, state="ok", seconds=15, servers=None):
        end = time.time() + seconds
        for server in servers or self.servers:
            c = server.client()
            while f"cluster_state:{state}" not in (text := c("CLUSTER", "INFO").decode()) or (
                state == "ok" and f"cluster_known_nodes:{len(self.servers)}" not in text
            ):
                if time.time() > end:
                    raise RuntimeError("the cluster does not become " + state)
                time.sleep(0.02)
            c.close()

    def url(self):
        return "redis://" + ",".join(f"127.0.0.1:{s.port}" for s in self.servers)

    def move(self, slot, to):
        """Moves a slot with its keys as redis-cli does. The owner is asked for from the target."""
        clients = [s.client() for s in self.servers]
        names = [c("CLUSTER", "MYID").decode() for c in clients]
        ranges = clients[0]("CLUSTER", "SLOTS")
        owner = next(r[2][3 - 1].decode() for r in ranges if r[0] <= slot <= r[1])
        source = names.index(owner)
        if source != to:
            clients[to]("CLUSTER", "SETSLOT", slot, "IMPORTING", owner)
            clients[source]("CLUSTER", "SETSLOT", slot, "MIGRATING", names[to])
            while keys := clients[source]("CLUSTER", "GETKEYSINSLOT", slot, 10):
                clients[source]("MIGRATE", "127.0.0.1", self.servers[to].port, "", 0, 5000, "KEYS", *keys)
            for c in (clients[to], clients[source], *clients):
                c("CLUSTER", "SETSLOT", slot, "NODE", names[to])
        for c in clients:
            c.close()

    def kill(self):
        for s in self.servers:
            s.kill()


class Tier:
    """The driver with one tier open."""

    def __init__(self, build, url, backend="redis", environment=None, wrap=()):
        self.process = subprocess.Popen(
            [*wrap, f"{build}/tests/store/tier_driver", f"{build}/kvc_store_{backend}.so"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            preexec_fn=die_with_parent,
        )
        self.opened = self(f"open {url}")

    def send(self, command):
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the driver ended with {self.process.wait()}")
        return json.loads(line)

    def __call__(self, command):
        self.send(command)
        return self.receive()

    def end(self):
        self.process.stdin.close()
        status = self.process.wait(30)
        self.process.stdout.close()
        if status:
            raise RuntimeError(f"the driver ended with {status}")


class Folder:
    """A temporary folder; signals end the test as exceptions do."""

    def __enter__(self):
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGALRM):
            signal.signal(number, lambda *_: exit(2))
        self.path = tempfile.mkdtemp(prefix="kvc-store-")
        return self.path

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)
