"""A rank of a gloo job with a fault: `python rank.py FAULT CULPRIT SEED`, with the environment of torchrun.

After an exception the process stays alive, like the ranks of an NCCL job, which wait for their timeout.
"""

from __future__ import annotations

import ctypes
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer

FAULT, CULPRIT, SEED = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOUR = 3600


def fail(step: int) -> None:
    """Act as the fault demands; the signals of `stopped` and `killed` come from outside."""
    if FAULT == "raising":
        raise ValueError(f"planted at step {step}")
    if FAULT == "exiting":
        os._exit(1)
    elif FAULT == "gil":
        ctypes.PyDLL(None).sleep(HOUR)
    elif FAULT in {"sleeping", "send", "stopped", "killed"}:
        time.sleep(HOUR)
    elif FAULT == "slow":
        time.sleep(0.2)


def run_step(number: int, fault_step: int, tensor: torch.Tensor, pair: dist.ProcessGroup | None) -> None:
    """Compute, reduce over the pair of this rank if there is one, and over all ranks."""
    time.sleep(0.01)
    faulty = RANK == CULPRIT and number >= fault_step
    if faulty:
        if number == fault_step:
            print("ready", flush=True)
        fail(number)
    if pair is not None:
        dist.all_reduce(tensor, group=pair)
    if FAULT == "send" and RANK == CULPRIT:
        dist.send(tensor, (CULPRIT + 1) % SIZE)
    elif FAULT == "send" and RANK == (CULPRIT + 1) % SIZE:
        dist.recv(tensor, CULPRIT)
    if FAULT == "order" and faulty:
        dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    if FAULT == "order" and not faulty:
        dist.broadcast(tensor, 0)


def main() -> None:
    """Run steps until the fault ends them."""
    server = _WorkerServer(os.environ["WORKER_SOCKET"]) if "WORKER_SOCKET" in os.environ else None
    dist.init_process_group("gloo")
    odd = bool(SEED % 2)
    rng = random.Random(SEED)  # noqa: S311 - a fault that can be repeated
    fault_step = rng.randrange(5, 40)
    tensor = torch.ones(rng.choice([1, 256, 4096]), rng.choice([1, 3]))
    pairs = [dist.new_group([first, first + 1]) for first in range(0, SIZE - 1, 2)] if odd else []
    pair = pairs[RANK // 2] if len(pairs) > RANK // 2 else None
    print("running", flush=True)
    try:
        for number in range(10**9):
            run_step(number, fault_step, tensor, pair)
    except (RuntimeError, ValueError) as error:
        print(f"failed: {error}", file=sys.stderr, flush=True)
        time.sleep(HOUR)
    del server


main()
