"""One rank of a plain all-reduce with torch.distributed over gloo on the CPU, for comparison.

Start it once per rank as torchrun does, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; its
arguments are sizes in bytes. Rank 0 prints the bus bandwidth of each size as JSON. It does not use gpumon and does not
verify data.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

WARM_UPS = 5
OPERATIONS = 20


def time_operation(buffer: torch.Tensor) -> float:
    dist.barrier()
    began = time.perf_counter()
    dist.all_reduce(buffer)
    return time.perf_counter() - began


def bus_bandwidth(size: int) -> float:
    """Return bytes per second, from the median of the operations; the slowest rank determines each duration."""
    buffer = torch.ones(size // 4)
    for _ in range(WARM_UPS):
        time_operation(buffer)
    times = torch.tensor([time_operation(buffer) for _ in range(OPERATIONS)], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    ranks = int(dist.get_world_size())
    median = float(statistics.median(times.tolist()))
    return size / median * 2 * (ranks - 1) / ranks


def main() -> None:
    dist.init_process_group("gloo")
    found = {size: bus_bandwidth(int(size)) for size in sys.argv[1:]}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
