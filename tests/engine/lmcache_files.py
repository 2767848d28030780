#!/usr/bin/env python3
"""lmcache_files.py --tools DIR: kvc and the files of LMCache's FSConnector and GdsBackend, without a GPU.

Chunks that LMCache stores have the values of a safetensors file and come back byte for byte; LMCache reads what kvc writes.
"""
import argparse
import asyncio
import pathlib
import subprocess
import sys
import tempfile
import types

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
from lmcache.v1.storage_backend import gds_backend
from lmcache.v1.storage_backend.connector.fs_connector import FSConnector
from safetensors.torch import save_file

try:
    from lmcache.inprocess.v1 import protocol
except ImportError:  # before 0.5.7
    from lmcache.v1 import protocol

LAYERS, TOKENS, HEADS, DIM = 4, 40, 2, 16


def run(*command):
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")


def memory(tensor, layout):
    """What LMCache's allocator returns."""
    tensor = tensor.contiguous()
    raw = tensor.flatten().view(torch.uint8)
    return TensorMemoryObj(raw, MemoryObjMetadata(shape=tensor.shape, dtype=tensor.dtype, address=0, phy_size=raw.numel(), ref_count=1,
                                                  pin_count=0, fmt=layout, shapes=[tensor.shape], dtypes=[tensor.dtype]), None)


def allocate(shapes, dtypes, layout):
    shape, dtype = (shapes[0], dtypes[0]) if isinstance(shapes, list) else (shapes, dtypes)
    return memory(torch.zeros(shape, dtype=dtype), layout)


def connector(folder):
    """A connector of one folder, without the engine around it."""
    protocol.init_remote_metadata_info(1)
    fs = FSConnector.__new__(FSConnector)
    fs.base_paths, fs.relative_tmp_dir, fs.use_odirect, fs.save_chunk_meta, fs.read_ahead_size = [folder], None, False, True, None
    fs.remote_metadata_bytes = protocol.get_remote_metadata_bytes()
    fs.local_cpu_backend = types.SimpleNamespace(allocate=allocate)
    return fs


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tools", type=pathlib.Path, required=True)
    tools = options.parse_args().tools
    torch.manual_seed(1)
    key = CacheEngineKey(model_name="org/model", world_size=1, worker_id=0, chunk_hash=0x5EED, dtype=torch.bfloat16)
    k, v = torch.randn(2, LAYERS, TOKENS, HEADS * DIM).to(torch.bfloat16)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plain, packed, back = folder / "plain.safetensors", folder / "packed.kvc", folder / "back"
        heads = lambda rows: rows.reshape(1, TOKENS, HEADS, DIM).transpose(1, 2).contiguous()
        save_file({f"layers.{i}.{kind}": heads(rows[i]) for i in range(LAYERS) for kind, rows in (("keys", k), ("values", v))}, plain)

        def check(path):
            """Packs a file of LMCache, compares it, and unpacks the same bytes."""
            run(tools / "kvc-pack", "-q", "-f", f"--kv-heads={HEADS}", "-o", packed, path)
            run(tools / "kvc-diff", packed, plain)
            run(tools / "kvc-unpack", "-q", "-o", back, packed)
            run("diff", "-r", path, back)
            run("rm", "-r", back)

        (folder / "fs").mkdir()
        fs = connector(folder / "fs")
        asyncio.run(fs.put(key, memory(torch.stack([k, v]), MemoryFormat.KV_2LTD)))
        [path] = (folder / "fs").iterdir()
        check(path)
        path.unlink()
        run(tools / "kvc-unpack", "-q", "--to=lmcache", "-o", path, plain)
        got = asyncio.run(fs.get(key))
        assert torch.equal(got.tensor, torch.stack([k, v])) and got.metadata.fmt == MemoryFormat.KV_2LTD
        print("FSConnector: all layers, both ways: ok")

        for layout, dim in (MemoryFormat.KV_T2D, 1), (MemoryFormat.KV_2TD, 0):
            own = folder / layout.name
            own.mkdir()
            fs.base_paths = [own]
            parts = key.split_layers(LAYERS)
            for i, part in enumerate(parts):
                asyncio.run(fs.put(part, memory(torch.stack([k[i], v[i]], dim), layout)))
            check(own)
            path = fs._get_file_path(parts[2])
            path.unlink()
            run(tools / "kvc-unpack", "-q", "--lossy-metadata", f"--to=lmcache:fmt={layout.name[3:].lower()}", "--layers=2", "-o", path, plain)
            assert torch.equal(asyncio.run(fs.get(parts[2])).tensor, torch.stack([k[2], v[2]], dim))
            print(f"FSConnector: layers as {layout.name}, both ways: ok")

        path = folder / "chunk.kvcache.safetensors"
        header = gds_backend.pack_metadata(torch.stack([k, v]), fmt=MemoryFormat.KV_2LTD, lmcache_version="1")
        path.write_bytes(header + torch.stack([k, v]).flatten().view(torch.uint8).numpy().tobytes())
        check(path)
        run(tools / "kvc-unpack", "-q", "--to=lmcache-gds", "-o", folder / "new.kvcache.safetensors", plain)
        shape, dtype, size, layout, _ = gds_backend.unpack_metadata((folder / "new.kvcache.safetensors").read_bytes()[:4096])
        assert (shape, dtype, layout) == ((2, LAYERS, TOKENS, HEADS * DIM), torch.bfloat16, MemoryFormat.KV_2LTD), (shape, dtype, layout)
        assert path.read_bytes() == (folder / "new.kvcache.safetensors").read_bytes()
        print("GdsBackend: both ways: ok")


main()
