#!/usr/bin/env python3
"""sglang.py --tools DIR: kvc's storage backend with SGLang's own memory cache, without a GPU.

Base class, factory, host pools and file backend are SGLang's. What SGLang imports beside them (kernels,
servers, models) is replaced by stand-ins, so its wheel and torch suffice. Random operations are compared
with those of HiCacheFile, which keeps bare pages. The cache controller and servers are not run.
"""

import argparse
import importlib.machinery
import os
import pathlib
import random
import sys
import tempfile
import types
from unittest.mock import MagicMock

sys.path.pop(0)  # this folder, in which `sglang` is this file

import torch

OWN = (
    "sglang.srt.mem_cache",
    "sglang.srt.environ",
)  # of SGLang, and beside its packages what is not replaced
LAYERS, HEADS, DIM, RANK, ROPE, PAGE, PAGES = 3, 2, 16, 48, 16, 16, 24


class Replacement(types.ModuleType):
    __path__: list = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name.startswith(("is_", "use_", "_is")):
            return lambda *a, **k: False
        return (lambda f=None, **k: f or (lambda g: g)) if name == "jit" else MagicMock(name=name)


class Replace:
    """Finds modules of SGLang and of GPUs that this test does without."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        root = name.partition(".")[0]
        if root in ("triton", "sgl_kernel", "flashinfer") or (
            root == "sglang" and name != "sglang.srt" and not name.startswith(OWN)
        ):
            return importlib.machinery.ModuleSpec(name, Replace, is_package=True)
        return None

    @staticmethod
    def create_module(spec):
        return Replacement(spec.name)

    @staticmethod
    def exec_module(module):
        pass


def import_sglang():
    """Imports SGLang's memory cache, with stand-ins for the rest."""
    folder = next(
        pathlib.Path(entry) / "sglang"
        for entry in sys.path
        if (pathlib.Path(entry) / "sglang/srt").is_dir()
    )
    package = types.ModuleType("sglang")
    package.__path__ = [str(folder)]
    sys.modules["sglang"] = package
    sys.meta_path.insert(0, Replace)
    torch.cuda.is_current_stream_capturing = lambda: False
    import sglang.srt.mem_cache.pool_host.base as base

    base.host_memory_budget_bytes = lambda n: 1 << 40


import_sglang()
from sglang.srt.mem_cache.device_pool_info import MLABufferInfo
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheFile,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory

import kvc

KEYS = [f"{i:064x}" for i in range(PAGES)]
BOUNDS = {
    "pin_memory": False,
    "device_capacity_tokens": PAGE * (PAGES - 1),
    "start_layer": 0,
    "end_layer": LAYERS,
}


def made(pool):
    """Fills a host pool with all kinds of bits."""
    for tensor in pool.kv_buffer if isinstance(pool.kv_buffer, (list, tuple)) else [pool.kv_buffer]:
        tensor.view(torch.uint8).random_(0, 256)
    return pool


def mha(layout, dtype=torch.bfloat16, layers=LAYERS):
    buffers = [torch.zeros(PAGE, HEADS, DIM, dtype=dtype) for _ in range(layers)]
    pointers = torch.zeros(layers, dtype=torch.int64)
    info = types.SimpleNamespace(
        scales=None,
        validate=lambda: None,
        transfer_buffers=None,
        head_num=HEADS,
        head_dim=DIM,
        v_head_dim=DIM,
        dtype=dtype,
        device=torch.device("cpu"),
        buffers=types.SimpleNamespace(
            k=buffers, v=buffers, k_data_ptrs=pointers, v_data_ptrs=pointers
        ),
    )
    return made(MHATokenToKVPoolHost(info, 1.0, 0, PAGE, layout, **BOUNDS))


def mla_info(dtype, layers, width, packed=False):
    buffers = tuple(torch.zeros(PAGE, 1, width, dtype=dtype) for _ in range(layers))
    return MLABufferInfo(
        buffers=buffers,
        data_ptrs=torch.zeros(layers, dtype=torch.int64),
        layer_indices=tuple(range(layers)),
        device_layer_num=layers,
        page_size=PAGE,
        kv_lora_rank=RANK,
        qk_rope_head_dim=ROPE,
        kv_cache_dim=width,
        dtype=dtype,
        device=torch.device("cpu"),
        packed_fp8=packed,
    )


def mla(
    layout,
    dtype=torch.bfloat16,
    layers=LAYERS,
    drafts=0,
    width=RANK + ROPE,
    packed=False,
    **options,
):
    return made(
        MLATokenToKVPoolHost(
            mla_info(dtype, layers, width, packed),
            1.0,
            0,
            PAGE,
            layout,
            target_layer_num=layers,
            override_kv_cache_dim=width,
            draft_buffer_infos=[mla_info(dtype, 1, width, packed) for _ in range(drafts)],
            **BOUNDS,
            **options,
        )
    )


def config(latent, rank=0, size=1, **extra):
    own = {
        "backend_name": "kvc",
        "module_path": "kvc.connectors.sglang",
        "class_name": "KvcStorage",
        "interface_v1": 1,
        "scale": 1,
        **extra,
    }
    return HiCacheStorageConfig(
        tp_rank=rank,
        tp_size=size,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=latent,
        enable_storage_metrics=False,
        is_page_first_layout=False,
        model_name="org/model",
        extra_config=own,
    )


def opened(folder, pool, sidecars=None, **options):
    """Returns kvc's backend as SGLang makes it and registers its pools."""
    latent = options.pop("latent", isinstance(pool, MLATokenToKVPoolHost))
    storage = StorageBackendFactory.create_backend(
        "dynamic", config(latent, levels=f"dir:{folder}?min-free=0", **options), pool
    )
    storage.register_mem_pool_host(pool)
    for name, own in {PoolName.KV: pool, **(sidecars or {})}.items():
        storage.register_mem_host_pool_v2(own, name)
    storage.on_host_pools_registered()
    return storage


def indices(numbers):
    return torch.cat([torch.arange(n * PAGE, (n + 1) * PAGE) for n in numbers])


def page(pool, number):
    return pool.get_data_page(number * PAGE, flat=True).clone().view(torch.uint8)


def check_layouts(folder):
    """Pages of latents come back bit by bit in all layouts and types, from any to any."""
    count = 0
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.float8_e4m3fn):
        layouts = ("layer_first", "page_first", "page_first_direct")
        for layout in layouts:
            where = folder / f"{dtype}-{layout}"
            pool = mla(layout, dtype, drafts=layout != "layer_first")
            writer = opened(where, pool)
            assert writer.batch_exists(KEYS) == 0
            assert writer.batch_set_v1(KEYS[:6], indices(range(6))) == [True] * 6
            assert (writer.batch_exists(KEYS), writer.batch_exists(KEYS[3:])) == (6, 3)
            before = pool.kv_buffer.clone().view(torch.uint8)
            for other in layouts:
                to = mla(other, dtype, drafts=layout != "layer_first")
                reader = opened(where, to)
                assert (
                    reader.batch_get_v1(KEYS[:8], indices(range(9, 17))) == [True] * 6 + [False] * 2
                )
                for n in range(6):
                    assert torch.equal(
                        rows(pool, n), rows(to, 9 + n)
                    ), f"{dtype} from {layout} to {other}: a page has other bytes"
                    count += 1
                reader.close()
            assert torch.equal(before, pool.kv_buffer.view(torch.uint8))
            writer.close()
    print(f"ok: {count} pages of latents, in 5 types, from each of 3 layouts to each")


def rows(pool, number):
    """Returns a page of latents as [layers, tokens, bytes], whatever the layout."""
    first, data = number * PAGE, pool.kv_buffer
    if pool.layout == "layer_first":
        return data[:, first : first + PAGE, 0].contiguous().view(torch.uint8)
    if pool.layout == "page_first":
        return data[first : first + PAGE, :, 0].transpose(0, 1).contiguous().view(torch.uint8)
    return data[number, :, :, 0].contiguous().view(torch.uint8)


def check_ranks(folder):
    """One rank stores latents, and all find them; ranks of K and V are apart."""
    first, second = (
        opened(folder / "latent", mla("page_first"), rank=rank, size=2) for rank in (0, 1)
    )
    assert (
        second.batch_set_v1(KEYS[:2], indices([0, 1])) == [True, True]
        and first.batch_exists(KEYS[:2]) == 0
    )
    assert (
        first.batch_set_v1(KEYS[:2], indices([0, 1])) == [True, True]
        and second.batch_exists(KEYS[:2]) == 2
    )
    assert second.batch_get_v1(KEYS[:2], indices([4, 5])) == [True, True]
    assert torch.equal(rows(second.mem_pool_host, 4), rows(first.mem_pool_host, 0))
    first.close()
    second.close()
    first, second = (
        opened(folder / "heads", mha("page_first"), rank=rank, size=2) for rank in (0, 1)
    )
    assert (
        first.batch_set_v1(KEYS[:2], indices([0, 1])) == [True, True]
        and second.batch_exists(KEYS[:2]) == 0
    )
    first.close()
    second.close()
    print("ok: latents are stored by the first rank for all, K and V by each")


def check_random(folder, main, sidecars):
    """Random operations of interfaces v1 and v2 have the results of SGLang's own file backend."""
    pools = {PoolName.KV: main, **sidecars}
    storage = opened(folder / "kvc", main, sidecars)
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder / "file")
    oracle = HiCacheFile(config(isinstance(main, MLATokenToKVPoolHost)))
    for name, pool in pools.items():
        oracle.register_mem_host_pool_v2(pool, name)
    r, kept, found, loaded = random.Random(7), {}, 0, 0
    for _ in range(300):
        start = r.randrange(PAGES - 8)
        keys = KEYS[start : start + r.randrange(1, 8)]
        numbers = r.sample(range(PAGES), len(keys))
        chosen = [
            PoolTransfer(name=name, keys=keys, host_indices=indices(numbers))
            for name in pools
            if r.random() < 0.7
        ]
        if r.random() < 0.35:
            for transfer in chosen:
                for key, n in zip(keys, numbers):
                    kept.setdefault(
                        (transfer.name, key), page(pools[transfer.name], n)
                    )  # a page of a hash is what it was
            assert storage.batch_set_v2(chosen) == oracle.batch_set_v2(chosen)
        elif r.random() < 0.5:
            asked = [
                PoolTransfer(
                    name=name,
                    keys=r.choice([None, keys[:1], keys[:2]]),
                    hit_policy=r.choice([PoolHitPolicy.ALL_PAGES, PoolHitPolicy.TRAILING_PAGES]),
                )
                for name in sidecars
            ]
            mine, theirs = storage.batch_exists_v2(keys, asked), oracle.batch_exists_v2(keys, asked)
            assert mine == theirs, (mine, theirs)
            assert storage.batch_exists(keys) == oracle.batch_exists(keys)
            found += mine.kv_hit_pages > 0
        else:
            results = storage.batch_get_v2(chosen)
            for transfer in chosen:
                assert results[transfer.name] == [(transfer.name, key) in kept for key in keys]
                for key, n, good in zip(keys, numbers, results[transfer.name]):
                    assert not good or torch.equal(
                        page(pools[transfer.name], n), kept[transfer.name, key]
                    ), "a page has other bytes"
                    loaded += good
    assert found and loaded
    storage.clear()
    assert storage.batch_exists_v2(KEYS, []).kv_hit_pages == 0
    storage.close()
    print(
        f"ok: 300 random operations as HiCacheFile, {type(main).__name__} with {', '.join(sidecars)}: "
        f"{loaded} pages loaded, {found} prefixes found"
    )


def check_files(folder):
    """Pages as SGLang's file backend writes them are read as kvc's format hicache says."""
    count = 0
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = str(folder)
    pools = [mla(layout) for layout in ("layer_first", "page_first", "page_first_direct")]
    pools += [
        mha(layout) for layout in ("layer_first", "page_first", "page_first_direct", "page_head")
    ]
    for pool in pools:
        latent = isinstance(pool, MLATokenToKVPoolHost)
        files = HiCacheFile(config(latent))
        files.clear()
        for n in range(3):
            assert files.set(KEYS[n], pool.get_data_page(n * PAGE, flat=True))
        form = f"hicache:layout={pool.layout},dtype=bf16,layers={LAYERS},page={PAGE},"
        for n in range(3):
            [path] = folder.glob(KEYS[n] + "*")
            with kvc.open(
                path,
                format=form
                + (f"dim={RANK + ROPE},latent" if latent else f"heads={HEADS},dim={DIM}"),
            ) as f:
                found = f.arrays(torch=True)
            assert sorted(found) == [
                (i, role) for i in range(LAYERS) for role in (["latent"] if latent else "KV")
            ]
            for (i, role), rows_of in found.items():
                assert torch.equal(
                    rows_of.contiguous().view(torch.uint8).flatten(),
                    of_layer(pool, n, i, role).flatten(),
                )
            count += len(found)
            if latent:
                try:
                    kvc.open(path, format=form + f"heads=1,dim={(RANK + ROPE) // 2}").close()
                except kvc.Error as problem:
                    assert "latent" in str(problem), problem
                else:
                    raise AssertionError("a latent was cut into K and V")
    print(
        f"ok: {count} tensors of pages that HiCacheFile wrote, in 3 layouts of latents and 4 of K "
        "and V"
    )


def of_layer(pool, number, layer, role):
    """Returns K, V or the latent of a layer of a page as bytes, by the strides of the host pool."""
    if role == "latent":
        return rows(pool, number)[layer]
    first, data = number * PAGE, pool.kv_buffer["KV".index(role)]
    if pool.layout == "layer_first":
        data = data[layer, first : first + PAGE]
    elif pool.layout == "page_first":
        data = data[first : first + PAGE, layer]
    elif pool.layout == "page_first_direct":
        data = data[number, layer]
    else:
        data = data[number, :, :, layer].transpose(0, 1)
    return data.contiguous().view(torch.uint8)


def check_refused(folder):
    """Pools that are not supported end the attachment with their name."""

    def refuses(words, pool, **options):
        try:
            opened(folder / "refused", pool, **options)
        except kvc.Error as problem:
            assert problem.code == kvc.Code.UNSUPPORTED and words in str(problem), problem
            return
        raise AssertionError(f"{words}: the pool was taken")

    refuses("656 values with scales", mla("page_first", torch.uint8, width=656, packed=True))
    refuses("page_unified", mla("page_unified"))
    refuses("context parallelism", mla("page_first", dcp_size=2))
    refuses("of layers", mla("page_first", layer_shard_enabled=True))
    refuses("has no latents", mha("page_first"), latent=True)
    refuses(
        "the first of 2 ranks",
        mla("page_first"),
        sidecars={PoolName.DRAFT: mha("page_first")},
        size=2,
    )
    for name in PoolName:
        if name not in (PoolName.KV, PoolName.SWA, PoolName.DRAFT, PoolName.DRAFT_SWA):
            refuses(
                f"the host pool '{name}'", mha("page_first"), sidecars={name: mha("page_first")}
            )
    print("ok: pools that are not supported are refused by name")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tools", type=pathlib.Path, required=True)
    parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        check_layouts(folder)
        check_ranks(folder)
        (folder / "mha").mkdir()
        (folder / "mla").mkdir()
        check_random(
            folder / "mha",
            mha("page_first"),
            {
                PoolName.SWA: mha("page_first_direct", layers=2),
                PoolName.DRAFT: mha("layer_first", torch.float16, 1),
            },
        )
        check_random(
            folder / "mla",
            mla("layer_first"),
            {PoolName.DRAFT: mla("page_first", layers=1), PoolName.DRAFT_SWA: mha("page_head")},
        )
        (folder / "files").mkdir()
        check_files(folder / "files")
        check_refused(folder)


main()
