"""link.py FILE PORT RATE: the time to load chunks of 256 tokens of a cache from Redis, packed by a store and as they are.

Both use four connections, and both end in the same arrays. Prints the median of nine rounds, which change places. Not for the rate of the
link: link.sh sets it.
"""

import pathlib
import socket
import statistics
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "python"))
import kvc  # noqa: E402

THREADS, CHUNK, ROUNDS = 4, 256, 9


class Redis:
    """A connection that sets and gets values, used by one thread at a time."""

    def __init__(self, port):
        for _ in range(50):
            try:
                self._socket = socket.create_connection(("127.0.0.1", port))
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb")
        self.lock = threading.Lock()

    def _send(self, *words):
        self._socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words))

    def set(self, key, value):
        self._send(b"SET", key, value)
        assert self._file.readline() == b"+OK\r\n"

    def get_into(self, key, array):
        self._send(b"GET", key)
        assert int(self._file.readline()[1:]) == array.nbytes
        view, at = memoryview(array).cast("B"), 0
        while at < len(view):
            at += self._file.readinto(view[at:])
        self._file.read(2)


def main():
    path, port, rate = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with kvc.open(path) as f:
        found = f.arrays()
        dtype, n = f.tensors[0].dtype, min(a.shape[0] for a in found.values()) // CHUNK
    keys, (_, heads, dim) = sorted(found), next(iter(found.values())).shape
    rows = np.stack([np.stack([found[k][i * CHUNK:(i + 1) * CHUNK] for k in keys]) for i in range(n)])  # [chunk, array, token, head, channel]
    out = np.zeros_like(rows)
    links = [Redis(port) for _ in range(THREADS)]
    for i in range(n):
        links[0].set(b"raw %d" % i, rows[i].tobytes())

    def views(array):
        return {key: array[j] for j, key in enumerate(keys)}

    def raw(i):
        with links[i % THREADS].lock:
            links[i % THREADS].get_into(b"raw %d" % i, out[i])

    with ThreadPoolExecutor(THREADS) as pool:
        for recipe in ("fast", "split"):
            store = kvc.Store(f"redis://127.0.0.1:{port}", timeout=30, load_timeout=30)
            for i in range(n):
                with kvc.open_arrays(views(rows[i]), dtype=dtype, facts={"model.name": recipe}) as f:
                    namespace = namespace if i else store.namespace(f, recipe=recipe)
                    assert namespace.put_name(b"%d" % i, f)

            def packed(i):
                assert namespace.load_name(b"%d" % i, views(out[i]), dtype=dtype, threads=1)

            times = {raw: [], packed: []}
            for _ in range(ROUNDS):
                for load in times:
                    out[...] = 0
                    began = time.perf_counter()
                    list(pool.map(load, range(n)))
                    times[load].append(time.perf_counter() - began)
                    assert np.array_equal(out.view(np.uint8), rows.view(np.uint8))
            a, b = (statistics.median(times[load]) for load in (raw, packed))
            print(f"{rate}: {rows.nbytes / 1e6:.1f} MB as they are {1000 * a:.0f} ms, {recipe} {1000 * b:.0f} ms, ratio {b / a:.2f}")
            store.close()


main()
