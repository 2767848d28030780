#!/usr/bin/env python3
"""redis_bench.py BUILD: rates of the Redis tier on loopback, beside redis-benchmark's SET and GET of values of the same size, on the same
server in the same run. JSON lines."""
import json
import subprocess
import sys

from redis_servers import Cluster, Folder, Tier, Server

BUILD = sys.argv[1]
MIB = 1 << 20
BYTES = 512 * MIB


def benchmark(port, size, n, connections):
    command = f"redis-benchmark -p {port} -d {size} -n {n} -c {connections} -r {n} --csv -t set,get"
    rows = subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout.splitlines()
    rates = {row.split(",")[0].strip('"').lower(): float(row.split(",")[1].strip('"')) for row in rows[1:]}
    return {kind: rate * size / 1e9 for kind, rate in rates.items()}


def median(values):
    return sorted(values)[len(values) // 2]


def rates(tier, size, n):
    put, get = [], []
    for _ in range(5):
        tier(f"drop 0 {n}")
        put.append(n * size / tier(f"put 0 {n} {size} check=0")["us"] / 1e3)
        reply = tier(f"get 0 {n} check=0")
        assert reply["there"] == n, reply
        get.append(reply["bytes"] / reply["us"] / 1e3)
    return {"put": median(put), "get": median(get)}


with Folder() as folder:
    single, cluster = Server(folder), Cluster(folder)
    tiers = {"single": Tier(BUILD, f"redis://127.0.0.1:{single.port}"), "3 masters": Tier(BUILD, cluster.url())}
    for size in (MIB, 4 * MIB, 16 * MIB):
        n = BYTES // size
        row = {"MiB": size // MIB}
        for c in (1, 4):
            single.client()("FLUSHALL")
            row[f"redis-benchmark -c {c}"] = benchmark(single.port, size, n, c)
        single.client()("FLUSHALL")
        for name, tier in tiers.items():
            row[name] = rates(tier, size, n)
            tier(f"drop 0 {n}")
        print(json.dumps(row, default=str), flush=True)
    for name, tier in tiers.items():
        tier("put 10000 512 1000 check=0")
        times = sorted(tier("find 10000 512")["us"] for _ in range(200))
        print(json.dumps({"find of 512": name, "ms": {"min": times[0] / 1e3, "median": times[100] / 1e3, "p99": times[197] / 1e3}}))
