"""vLLM 0.32: offloading between vLLM's cache and host memory on machines without a GPU, with plain copies, which vLLM's own worker refuses.

"spec_name": "CpuSpec", "spec_module_path": "kvc.connectors.vllm_cpu" takes the place of "TieringOffloadingSpec", so that tiers can be used
and tested on a CPU. One worker; not for machines with a GPU.
"""

from __future__ import annotations

import time
from typing import Any, List, Set

import numpy as np
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class CpuWorker(OffloadingWorker):
    """Copies pages at once, in the call that submits them."""

    def __init__(self, caches: Any, region: SharedOffloadRegion, blocks: int) -> None:
        self._device = [t.tensor for t in caches.tensors]
        self._host = [region.create_next_worker_view(blocks * t.page_size_bytes).unflatten(1, (blocks, t.page_size_bytes))
                      for t in caches.tensors]
        self._groups = caches.group_data_refs
        self._region, self._blocks = region, blocks
        self._finished: List[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec.block_ids, store=True)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any, expedited: bool = False) -> bool:
        """Loads at once, as vLLM 0.33 asks for loads that its step waits for."""
        return self._copy(job_id, dst_spec, src_spec.block_ids, store=False)

    def get_finished(self) -> List[TransferResult]:
        finished, self._finished = self._finished, []
        return finished

    def wait(self, job_ids: Set[int]) -> None:
        pass

    def shutdown(self) -> None:
        self._host.clear()
        self._region.cleanup()

    def _copy(self, job_id: int, spec: Any, chunks: np.ndarray, store: bool) -> bool:
        """Copies the blocks of each group. The first one may stand in the middle of its chunk."""
        began, size, block, chunk = time.monotonic(), 0, 0, 0
        for refs, n, first in zip(self._groups, spec.group_sizes, spec.block_indices):
            skip = first % self._blocks
            own = -(-(skip + n) // self._blocks) if n else 0
            slots = torch.from_numpy(np.repeat(chunks[chunk:chunk + own], self._blocks)[skip:skip + n].astype(np.int64))
            places = torch.from_numpy(np.tile(np.arange(self._blocks), own)[skip:skip + n])
            blocks = torch.from_numpy(spec.block_ids[block:block + n].astype(np.int64))
            for ref in refs:
                device, host, page = self._device[ref.tensor_idx], self._host[ref.tensor_idx], ref.page_size_bytes
                if store:
                    host[slots, places, :page] = device[blocks, :page]
                else:
                    device[blocks, :page] = host[slots, places, :page]
                size += n * page
            block, chunk = block + n, chunk + own
        self._finished.append(TransferResult(job_id, True, size, time.monotonic() - began))
        return True


class CpuSpec(TieringOffloadingSpec):
    """TieringOffloadingSpec with this worker."""

    def get_worker(self, kv_caches: Any) -> CpuWorker:
        if not self._worker:
            if self.config.parallel.world_size != 1:
                raise ValueError("CpuSpec has one worker: set the tensor and pipeline parallel sizes to 1")
            region = SharedOffloadRegion(engine_id=self._engine_id, num_chunks=self.num_chunks, rank=0,
                                         kv_bytes_per_chunk=self.kv_bytes_per_chunk, cpu_page_size=self.cpu_page_size_per_worker)
            self._worker: Any = CpuWorker(kv_caches, region, self.blocks_per_chunk)
        return self._worker
