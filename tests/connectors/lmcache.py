#!/usr/bin/env python3
"""lmcache.py --tools DIR [--cache FILE]: kvc's adapter in LMCache's real storage manager, without a GPU.

Chunks go through the first level (memory) into the second (kvc), and come back in a new manager, byte for byte; a damaged chunk, a store
that is down and one that is full cost chunks, never wrong ones. FILE is a safetensors cache as transformers users save it; without it,
a cache of the size of SmolLM2-135M's is made from samples/prompt.safetensors.kvc.
"""
import argparse
import contextlib
import json
import os
import pathlib
import shutil
import socket
import statistics
import sys
import tempfile
import time

sys.path.pop(0)  # this folder, in which `lmcache` is this file
os.environ.setdefault("LMCACHE_LOG_LEVEL", "WARNING")

import torch
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec
from lmcache.v1.distributed.config import EvictionConfig, L1ManagerConfig, L1MemoryManagerConfig, StorageManagerConfig
from lmcache.v1.distributed.l2_adapters.config import add_l2_adapters_args, parse_args_to_l2_adapters_config
from lmcache.v1.distributed.storage_manager import StorageManager

import kvc

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOKENS, LAYERS, HEADS, DIM = 256, 30, 3, 64
WAIT, REPEATS = 60, 3


def made_cache():
    """Returns a cache like that of a real model: sample layers, scaled so that no two are equal."""
    with kvc.open(ROOT / "samples/prompt.safetensors.kvc") as f:
        sample = f.arrays(torch=True)
    kv = torch.empty(2, LAYERS, 7 * TOKENS, HEADS * DIM, dtype=torch.bfloat16)
    for i in range(LAYERS):
        for c, role in enumerate("KV"):
            rows = sample[(3, 16)[i % 2], role].reshape(512, -1).float()
            kv[c, i] = torch.cat([rows * (1 + 0.03 * i + 0.007 * n) for n in range(4)])[:7 * TOKENS].to(torch.bfloat16)
    return kv


def read_cache(path):
    from safetensors.torch import load_file

    found = load_file(path)
    planes = [[found[f"layers.{i}.{name}"][0].transpose(0, 1).flatten(1) for i in range(LAYERS)] for name in ("keys", "values")]
    return torch.stack([torch.stack(p) for p in planes])


class Chunks:
    """Chunks of a cache with their keys: [2, layers, tokens, heads * dim], or fused [layers, tokens, heads * 2 * dim]."""

    def __init__(self, kv, fused=False):
        if fused:
            kv = kv.unflatten(3, (HEADS, DIM)).permute(1, 2, 3, 0, 4).flatten(2)
        axis = kv.dim() - 2
        self.data = [part.contiguous() for part in kv.split(TOKENS, axis) if part.shape[axis] == TOKENS]
        self.layout = MemoryLayoutDesc([self.data[0].shape], [torch.bfloat16])
        rank = ObjectKey.ComputeKVRank(1, 0, 1, 0)
        self.keys = [ObjectKey(chunk_hash=bytes([i]) * 32, model_name="org/model", kv_rank=rank) for i in range(len(self.data))]
        self.bytes = sum(d.numel() * d.element_size() for d in self.data)


@contextlib.contextmanager
def manager(adapter):
    parser = argparse.ArgumentParser()
    add_l2_adapters_args(parser)
    l2 = parse_args_to_l2_adapters_config(parser.parse_args(["--l2-adapter", json.dumps(adapter)]))
    l1 = L1ManagerConfig(memory_config=L1MemoryManagerConfig(size_in_bytes=1 << 29, use_lazy=False, shm_name=""))
    own = StorageManager(StorageManagerConfig(l1_manager_config=l1, eviction_config=EvictionConfig("LRU"), l2_adapter_config=l2))
    try:
        yield own
    finally:
        own.close()


def kvc_adapter(levels, **options):
    return {"type": "native_plugin", "module_path": "kvc.connectors.lmcache", "class_name": "KvcClient",
            "adapter_params": {"levels": levels, "layers": LAYERS, "heads": HEADS, "dim": DIM, "dtype": "bfloat16", "deadline": 10, **options}}


def objects(folder, end):
    return sorted(p for p in pathlib.Path(folder).rglob("*" + end) if p.is_file() and not {"bad", "trash"} & set(p.parts))


def forget(folder):
    """Drops a folder's files from the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as f:
                os.fsync(f.fileno())
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def store(adapter, chunks, stored=None):
    """Puts chunks into the first level, and waits until stored() says that the second has them. Returns the seconds."""
    with manager(adapter) as m:
        begun = time.monotonic()
        reserved = m.reserve_write(chunks.keys, chunks.layout)
        for key, data in zip(chunks.keys, chunks.data):
            reserved[key].tensor.copy_(data)
        m.finish_write(chunks.keys)
        while stored is not None and not stored():
            assert time.monotonic() - begun < WAIT, "the second level did not get the chunks"
            time.sleep(0.005)
        took = time.monotonic() - begun
        if stored is None:
            time.sleep(2)  # for the failures of a store that is down
    return took


def load(adapter, chunks, expected=None, exact=True):
    """Prefetches chunks in a new manager, and compares the bytes of all that are there. Returns their number and the seconds."""
    with manager(adapter) as m:
        begun = time.monotonic()
        handle = m.submit_prefetch_task(PrefetchTaskSpec([GroupedObjectKeys(chunks.keys, 0, chunks.layout)]))
        assert m.wait_prefetch_status(handle, WAIT), "the prefetch did not end"
        took = time.monotonic() - begun
        found = m.query_prefetch_status(handle).l2_hit_count
        assert expected in (None, found), f"{found} chunks were found, and not {expected}"
        if found:
            with m.read_prefetched_results(chunks.keys[:found]) as results:
                for result, data in zip(results, chunks.data):
                    same = torch.equal(result.tensor.view(torch.uint8), data.view(torch.uint8))
                    assert same == exact, "a chunk has other bytes" if exact else "a chunk is not lossy"
            m.finish_read_prefetched(chunks.keys[:found])
    return found, took


def check_round_trip(folder, chunks):
    """All chunks come back. Prints figures beside those of LMCache's own adapter for files."""
    n = len(chunks.keys)
    folders = {name: folder / name for name in ("fs", "fast", "split")}
    adapters = {name: kvc_adapter(f"dir:{where}", recipe=name) for name, where in folders.items()}
    adapters["fs"] = {"type": "fs", "base_path": str(folders["fs"])}
    for name, adapter in adapters.items():
        missing = statistics.median(load(adapter, chunks, 0)[1] for _ in range(REPEATS))
        print(f"figure: {name}: prefetch of {n} chunks that are not there: {1000 * missing:.1f} ms")

    def size(name):
        return sum(p.stat().st_size for end in (".named", ".data") for p in objects(folders[name], end))

    for name, adapter in adapters.items():
        took = store(adapter, chunks, lambda: size(name) >= chunks.bytes // 2 and
                     len(objects(folders[name], ".data" if name == "fs" else ".named")) == n and (name != "fs" or size(name) == chunks.bytes))
        print(f"figure: {name}: {size(name)} bytes of {chunks.bytes} (ratio {chunks.bytes / size(name):.2f}), stored in {took:.3f} s")
    for what in "page cache", "disk":
        seconds = {name: [] for name in adapters}
        for _ in range(REPEATS):
            for name, adapter in adapters.items():
                if what == "disk":
                    forget(folders[name])
                seconds[name].append(load(adapter, chunks, n)[1])
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name in "fast", "split":
            print(f"figure: {name}: prefetch of {n} chunks from the {what}: {median[name]:.3f} s, LMCache's fs {median['fs']:.3f} s: "
                  f"ratio {median[name] / median['fs']:.2f} ({len(os.sched_getaffinity(0))} CPUs)")
    print(f"ok: {n} chunks came back byte for byte, {6 * REPEATS} times, each in a new manager")


def check_fused(folder, chunks):
    """The order in which LMCache keeps the caches of vLLM with K and V of a head side by side."""
    adapter = kvc_adapter(f"dir:{folder / 'fused'}", layout="fused")
    store(adapter, chunks, lambda: len(objects(folder / "fused", ".named")) == len(chunks.keys))
    load(adapter, chunks, len(chunks.keys))
    size = sum(p.stat().st_size for p in objects(folder / "fused", ".named"))
    print(f"ok: fused chunks come back byte for byte, ratio {chunks.bytes / size:.2f}")


class Latents(Chunks):
    """Chunks of latents, [layers, tokens, channels], as LMCache has those of latent attention."""

    def __init__(self, kv):
        super().__init__(kv)
        latents = kv.permute(1, 2, 0, 3).flatten(2)
        self.data = [part.contiguous() for part in latents.split(TOKENS, 1) if part.shape[1] == TOKENS]
        self.layout = MemoryLayoutDesc([self.data[0].shape], [torch.bfloat16])


def check_latents(folder, chunks):
    where = folder / "latents"
    adapter = kvc_adapter(f"dir:{where}", layout="mla", heads=1, dim=2 * HEADS * DIM)
    store(adapter, chunks, lambda: len(objects(where, ".named")) == len(chunks.keys))
    load(adapter, chunks, len(chunks.keys))
    with kvc.open(objects(where, ".named")[0]) as f:
        assert {(t.role, t.heads, t.dim) for t in f.tensors} == {("latent", 1, 2 * HEADS * DIM)}
    load(kvc_adapter(f"dir:{where}"), chunks, 0)
    print("ok: chunks of latents come back byte for byte, and are none of K and V")


def check_sizes(folder, chunks):
    """As an adapter of its own, kvc tells LMCache the bytes of chunks as they are stored."""
    where = folder / "sizes"
    own = {**kvc_adapter(f"dir:{where}"), "type": "plugin", "class_name": "KvcAdapter",
           "module_path": "kvc.connectors.lmcache_adapter"}
    own["adapter_params"]["max_capacity_gb"] = 1
    with manager(own) as m:
        [(_, adapter)] = m.l2_adapters()
        reserved = m.reserve_write(chunks.keys, chunks.layout)
        for key, data in zip(chunks.keys, chunks.data):
            reserved[key].tensor.copy_(data)
        m.finish_write(chunks.keys)
        end = time.monotonic() + WAIT
        while not adapter.get_usage().total_bytes_used:
            assert time.monotonic() < end, "the second level did not get the chunks"
            time.sleep(0.01)
        size = sum(p.stat().st_size for p in objects(where, ".named"))
        usage = adapter.get_usage()
        assert (usage.total_bytes_used, usage.total_capacity_bytes) == (size, 1 << 30), (usage, size)
        assert 0 < size < chunks.bytes
        status = adapter.report_status()
        assert status["is_healthy"] and status["type"] == "kvc" and status["kvc"]["stored_keys"] >= len(chunks.keys), status
        adapter.delete(chunks.keys[:2])
        size = sum(p.stat().st_size for p in objects(where, ".named"))
        assert adapter.get_usage().total_bytes_used == size and len(objects(where, ".named")) == len(chunks.keys) - 2
    load(own, chunks, 0)  # its first chunk is gone
    print("ok: as a plugin, kvc tells LMCache the bytes that chunks take, stored and deleted")


def check_damage(folder, chunks):
    """A chunk with a flipped byte ends the prefix before it; storing again puts it right."""
    adapter = kvc_adapter(f"dir:{folder / 'fast'}")
    path = objects(folder / "fast", ".named")[2]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    found, _ = load(adapter, chunks)
    assert found < len(chunks.keys), "a damaged chunk was loaded"
    store(adapter, chunks, lambda: len(objects(folder / "fast", ".named")) == len(chunks.keys))
    load(adapter, chunks, len(chunks.keys))
    print(f"ok: with a flipped byte in a chunk {found} chunks come back, all right; stored again, all do")


def check_lossy(folder, chunks):
    lossy = kvc_adapter(f"dir:{folder / 'lossy'}", recipe="kivi4")
    store(lossy, chunks, lambda: len(objects(folder / "lossy", ".named")) == len(chunks.keys))
    load(kvc_adapter(f"dir:{folder / 'lossy'}"), chunks, 0)
    took = load(lossy, chunks, len(chunks.keys), exact=False)[1]
    size = sum(p.stat().st_size for p in objects(folder / "lossy", ".named"))
    print("ok: lossy chunks load, and who asks for exact ones does not find them")
    print(f"figure: kivi4: ratio {chunks.bytes / size:.2f}, prefetch {took:.3f} s")


def check_failures(folder, chunks):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    down = kvc_adapter(f"redis://127.0.0.1:{port}", deadline=0.5)
    store(down, chunks)
    load(down, chunks, 0)
    print("ok: with a store that is down nothing is found, and LMCache goes on")
    second = kvc_adapter(f"dir:{folder / 'first'},redis://127.0.0.1:{port}", deadline=0.5)
    store(second, chunks, lambda: len(objects(folder / "first", ".named")) == len(chunks.keys))
    load(second, chunks, len(chunks.keys))
    print("ok: with only the second level down the first serves all chunks")
    full = kvc_adapter(f"dir:{folder / 'full'}?max-size=10M")
    store(full, chunks)
    found, _ = load(full, chunks)
    assert found < len(chunks.keys)
    assert sum(p.stat().st_size for p in objects(folder / "full", ".named")) <= 10 << 20
    print(f"ok: a store that is full keeps {found} chunks, all right")
    foreign = kvc_adapter(f"dir:{folder / 'fast'}", layers=LAYERS - 1)
    store(foreign, chunks)
    load(foreign, chunks, 0)
    print("ok: chunks of another geometry than adapter_params say are neither stored nor found")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path, required=True)
    options.add_argument("--cache", type=pathlib.Path)
    options = options.parse_args()
    kv = read_cache(options.cache) if options.cache else made_cache()
    chunks = Chunks(kv)
    with contextlib.ExitStack() as ends:
        folder = pathlib.Path(tempfile.mkdtemp(prefix="kvc-lmcache-"))
        ends.callback(shutil.rmtree, folder, ignore_errors=True)
        check_round_trip(folder, chunks)
        check_fused(folder, Chunks(kv, fused=True))
        check_latents(folder, Latents(kv))
        check_sizes(folder, chunks)
        check_damage(folder, chunks)
        check_lossy(folder, chunks)
        check_failures(folder, chunks)
    sys.stdout.flush()
    os._exit(0)  # LMCache's threads may keep the process


main()
