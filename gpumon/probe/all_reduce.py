"""One rank of the all-reduce probe: the only file that imports torch.

It is run by its path, in isolated mode, by a Python that need not have gpumon: standard library and torch alone,
Python 3.9 and later. Its orders are one JSON line on standard input (see `Plan.orders`); when that input ends, so does
the rank. What it finds goes, one JSON object a line, to the descriptor that the orders name (see `account.take`).
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import platform
import signal
import statistics
import sys
import threading
import time
import traceback
from datetime import timedelta
from typing import Any

ELEMENT_BYTES = 4
PATTERN = 1021
"""Elements repeat after this many, a prime, so that a block in the wrong place cannot look right."""
TILE = PATTERN * 1024
PROGRESS_INTERVAL = 0.1
PR_SET_PDEATHSIG = 1


class Reporter:
    """The way out: frames on their own descriptor, away from what libraries print."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._next_progress = 0.0
        self.stage = "start"

    def frame(self, **values: object) -> None:
        os.write(self._descriptor, json.dumps(values).encode() + b"\n")

    def enter(self, stage: str, **values: object) -> None:
        self.stage = stage
        self.frame(stage=stage, **values)

    def progress(self, **values: object) -> None:
        """As `enter`, for the current stage, but not more than ten times a second."""
        now = time.monotonic()
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL
            self.frame(stage=self.stage, **values)


class Rank:
    """One of the processes that reduce together."""

    def __init__(self, orders: dict[str, Any], reporter: Reporter) -> None:
        self._orders = orders
        self._reporter = reporter
        self._rank: int = orders["rank"]
        self._ranks: int = orders["ranks"]
        self._on_gpu: bool = orders["device"] == "cuda"
        self._fault, self._fault_seconds = fault_of(orders["fault"], self._rank)
        self._uses = 0
        # A sum over ranks multiplies the values by their number: refilled before they leave the range of float32.
        self._uses_of_a_fill = max(1, int(math.log(1e38 / (PATTERN + self._ranks)) / math.log(max(2, self._ranks))))

    def run(self) -> None:
        """Every stage in turn. Raises whatever torch does."""
        self._reporter.enter("import")
        if importlib.util.find_spec("torch") is None:
            self._reporter.frame(absent="torch")
            return
        self._import()
        self._reporter.enter("join")
        self._join()
        self._reporter.enter("allocate")
        self._allocate()
        for index, size in enumerate(self._orders["sizes"]):
            self._measure(index, size)
        self._reporter.enter("end")
        self._barrier()
        self._reporter.frame(done=True)

    def _import(self) -> None:
        import torch  # noqa: PLC0415 - this may fail, and is slow: a stage of its own
        import torch.distributed  # noqa: PLC0415

        self._torch: Any = torch
        self._distributed: Any = torch.distributed
        versions = {"torch": str(torch.__version__), "python": platform.python_version()}
        if self._on_gpu and torch.distributed.is_nccl_available():
            versions["cuda"] = str(torch.version.cuda)
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        self._reporter.frame(versions=versions)

    def _join(self) -> None:
        timeout = timedelta(seconds=self._orders["timeout"])
        options: dict[str, Any] = {}
        if self._on_gpu:
            self._torch.cuda.init()  # says best why it cannot
            self._torch.cuda.set_device(self._rank)
            # With a device_id, torch 2.6.0 to 2.7.0 hung now and then; without one, later ones guess the device.
            if self._torch.__version__ >= "2.7.1":
                options["device_id"] = self._torch.device("cuda", self._rank)
        self._store = self._distributed.TCPStore(
            self._orders["address"],
            self._orders["port"],
            self._ranks,
            self._rank == 0,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=self._orders["listen"],
        )
        self._distributed.init_process_group(
            self._orders["backend"],
            store=self._store,
            rank=self._rank,
            world_size=self._ranks,
            timeout=timeout,
            **options,
        )

    def _allocate(self) -> None:
        torch = self._torch
        device = torch.device("cuda", self._rank) if self._on_gpu else torch.device("cpu")
        self._buffer = torch.empty(max(self._orders["sizes"]) // ELEMENT_BYTES, dtype=torch.float32, device=device)
        self._tile = torch.arange(PATTERN, dtype=torch.float32, device=device).repeat(TILE // PATTERN)
        self._expected = self._tile * self._ranks + self._ranks * (self._ranks + 1) // 2
        if self._on_gpu:
            self._start = torch.cuda.Event(enable_timing=True)
            self._stop = torch.cuda.Event(enable_timing=True)
        self._barrier()

    def _measure(self, index: int, size: int) -> None:
        elements = self._buffer[: size // ELEMENT_BYTES]
        place = {"size": index, "sizes": len(self._orders["sizes"]), "bytes": size}
        self._reporter.enter("warm_up", **place)
        self._fill(elements)
        warm_ups = [self._timed(elements) for _ in range(self._orders["warm_ups"])]
        operations = self._operations(index, statistics.median(warm_ups))
        self._reporter.enter("measure", **place)
        seconds = []
        for operation in range(operations):
            self._reporter.progress(**place, operation=operation, operations=operations)
            seconds.append(self._timed(elements))
        self._reporter.enter("check", **place)
        self._reporter.frame(bytes=size, seconds=seconds, wrong=self._wrong(elements))

    def _operations(self, index: int, expected_seconds: float) -> int:
        """How many to time. Rank 0 tells the others through the store, since the collective itself is on trial."""
        most, least, budget = (self._orders[key] for key in ("operations", "least_operations", "seconds_per_size"))
        if budget is None:
            return int(most)
        key = f"operations/{index}"
        if self._rank == 0:
            self._store.set(key, str(max(least, min(most, int(budget / max(expected_seconds, 1e-9))))))
        return int(self._store.get(key))

    def _timed(self, elements: Any) -> float:
        """Seconds that one operation took on this rank."""
        if self._uses >= self._uses_of_a_fill:
            self._fill(elements)
        self._uses += 1
        self._barrier()
        if not self._on_gpu:
            begun = time.monotonic()
            self._reduce(elements)
            return time.monotonic() - begun
        self._start.record()
        self._reduce(elements)
        self._stop.record()
        self._stop.synchronize()
        return float(self._start.elapsed_time(self._stop)) / 1e3

    def _reduce(self, elements: Any) -> None:
        if self._fault == "sleep":
            time.sleep(self._fault_seconds)
        self._distributed.all_reduce(elements)

    def _barrier(self) -> None:
        if self._on_gpu:
            self._distributed.barrier(device_ids=[self._rank])
        else:
            self._distributed.barrier()

    def _fill(self, elements: Any) -> None:
        """Small whole numbers: their sum over the ranks is exact in float32."""
        for chunk in elements.split(TILE):
            chunk.copy_(self._tile[: len(chunk)]).add_(self._rank + 1)
        self._uses = 0

    def _wrong(self, elements: Any) -> int:
        """How many elements one more operation leaves wrong on this rank."""
        self._fill(elements)
        if self._fault == "corrupt":
            elements[len(elements) // 2] += 1
        self._barrier()
        self._distributed.all_reduce(elements)
        return sum(int((chunk != self._expected[: len(chunk)]).sum()) for chunk in elements.split(TILE))


def fault_of(text: str, rank: int) -> tuple[str, float]:
    """The fault that tests order, and its seconds, if it is for this rank: `corrupt:RANK` or `sleep:RANK:SECONDS`."""
    kind, _, rest = text.partition(":")
    whom, _, seconds = rest.partition(":")
    if kind not in {"", "corrupt", "sleep"}:
        raise ValueError(f"no such fault: {text}")
    return (kind, float(seconds or 0)) if whom == str(rank) else ("", 0.0)


def die_with(parent: int) -> bool:
    """Have the kernel end this process with its parent, whatever it is doing. False if the parent has gone already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def end_with_input() -> None:
    """Wait for the end of standard input, then end the process."""
    while os.read(0, 4096):
        pass
    os._exit(3)


def main() -> int:
    """Run a rank. Answers its exit status."""
    orders = json.loads(sys.stdin.buffer.readline())
    reporter = Reporter(orders["result"])
    if not die_with(orders["parent"]):
        reporter.frame(error="its parent is not the agent: probe.python must exec the interpreter, not start it")
        return 3
    threading.Thread(target=end_with_input, daemon=True).start()
    try:
        Rank(orders, reporter).run()
    except Exception as error:  # noqa: BLE001 - every failure is a result
        traceback.print_exc()
        reporter.frame(error=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # not through torch's teardown, which can hang: the result is out, the kernel frees the rest
