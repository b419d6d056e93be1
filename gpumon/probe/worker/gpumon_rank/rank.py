"""Runs one rank: takes the steps that the agent requests, and reports each stage that it reaches."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from gpumon_rank.channel import STOPPED, Reporter, StopRequest
from gpumon_rank.faults import Fault
from gpumon_rank.operations import TABLE, Operation, Pattern, RankContext, exchange


class Rank:
    """One rank of a pass. `stop`: has the queue of the steps that the agent requests, and its SIGTERM."""

    def __init__(self, orders: dict[str, Any], reporter: Reporter, fault: Fault, stop: StopRequest) -> None:
        self._orders = orders
        self._reporter = reporter
        self._fault = fault
        self._stop = stop
        self._rank: int = orders["rank"]
        self._ranks: int = orders["ranks"]
        self._on_gpu: bool = orders["device"] == "cuda"
        self._actions: dict[str, Callable[[dict[str, Any]], None]] = {
            "measure": self._measure_all,
            "pairs": self._measure_pairs,
            "misbehave": lambda step: self._fault.replace(step["fault"]),
        }

    def run(self) -> None:
        """Run all stages, and the steps that the agent requests. If torch is not installed, report that and return."""
        self._reporter.enter("import")
        if importlib.util.find_spec("torch") is None:
            self._reporter.frame(absent="torch")
            return
        self._import()
        self._reporter.enter("join")
        self._join()
        while True:
            step = self._stop.steps.get()
            self._stop.check()
            if step["do"] == "end":
                break
            self._actions[step["do"]](step)
            self._reporter.frame(stepped=step["number"] + 1)
        self._reporter.enter("end")
        self._barrier()
        self._reporter.frame(done=True)

    def _import(self) -> None:
        import torch  # noqa: PLC0415 - this may fail, and is slow: a stage of its own
        import torch.distributed  # noqa: PLC0415

        self._torch: Any = torch
        self._group: Any = torch.distributed
        versions = {"torch": str(torch.__version__), "python": platform.python_version()}
        if self._on_gpu and torch.distributed.is_nccl_available():
            versions["cuda"] = str(torch.version.cuda)
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        self._reporter.frame(versions=versions)

    def _join(self) -> None:
        timeout = timedelta(seconds=self._orders["timeout"])
        options: dict[str, Any] = {}
        if self._on_gpu:
            self._torch.cuda.init()  # gives the best error message
            self._torch.cuda.set_device(self._rank)
            # with a device_id torch 2.6.0 to 2.7.0 hung sometimes; without one, later versions guess the device
            if _version(self._torch.__version__) >= (2, 7, 1):
                options["device_id"] = self._torch.device("cuda", self._rank)
        self._device = self._torch.device("cuda", self._rank) if self._on_gpu else self._torch.device("cpu")
        event = self._torch.cuda.Event
        self._events = (event(enable_timing=True), event(enable_timing=True)) if self._on_gpu else None
        self._context = RankContext(
            torch=self._torch,
            group=self._group,
            rank=self._rank,
            ranks=self._ranks,
            device=self._device,
            fault=self._fault,
            stop=self._stop,
        )
        store = self._group.FileStore(self._orders["rendezvous"], self._ranks)
        store.set_timeout(timeout)
        self._group.init_process_group(
            self._orders["backend"],
            store=store,
            rank=self._rank,
            world_size=self._ranks,
            timeout=timeout,
            **options,
        )
        self._stop.abort = self._abort
        self._token = self._torch.zeros(1, device=self._device)

    def _abort(self) -> None:
        """Abort NCCL's communicator, and wait until no kernel runs. Gloo has no abort: on CPUs, end the process."""
        if not self._on_gpu:
            os._exit(STOPPED)  # there is no CUDA context, and the teardown of torch and gloo may abort the process
        self._group.group.WORLD._get_backend(self._device).abort()  # noqa: SLF001 - no public name
        self._torch.cuda.synchronize()

    # Steps

    def _measure_all(self, step: dict[str, Any]) -> None:
        kind = TABLE[step["operation"]]
        pattern = Pattern(self._torch, step["dtype"], self._device, self._ranks, summed=kind.SUMS)
        for index, size in enumerate(step["sizes"]):
            place = {"step": step["number"], "index": index, "sizes": len(step["sizes"]), "size": size}
            self._reporter.enter("allocate", **place)
            timed = kind(self._context, pattern, size)
            self._barrier()
            self._measure(step, timed, place)
            del timed
            if self._on_gpu:
                self._torch.cuda.empty_cache()  # torch would keep the buffers beside those of the next size

    def _measure(self, step: dict[str, Any], timed: Operation, place: dict[str, Any]) -> None:
        self._reporter.enter("warm_up", **place)
        timed.fill()
        for _ in range(step["warm_ups"]):
            self._time(timed)
        self._reporter.enter("measure", **place)
        seconds = []
        for operation in range(step["operations"]):
            self._reporter.progress(**place, operation=operation, operations=step["operations"])
            seconds.append(self._time(timed))
        self._reporter.enter("check", **place)
        self._barrier()
        wrong = timed.check(step["checks"])
        self._stop.check()
        self._reporter.frame(step=step["number"], size=place["size"], seconds=seconds, wrong=wrong)

    def _time(self, timed: Operation) -> float:
        """Run one operation together with the other ranks, and return the seconds that it took on this rank."""

        def operate() -> None:
            self._fault.delay()
            timed.operate()

        timed.prepare()
        self._barrier()
        if self._on_gpu:  # processes leave a barrier one after the other; the timed interval begins when this ends
            self._group.all_reduce(self._token)
        return self._seconds(operate)

    def _seconds(self, operation: Callable[[], None]) -> float:
        """Return the seconds of an operation; on a GPU, of its work on the current stream, without queueing it."""
        if self._events is None:
            begun = time.monotonic()
            operation()
            return time.monotonic() - begun
        start, stop = self._events
        start.record()
        operation()
        stop.record()
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1e3

    def _measure_pairs(self, step: dict[str, Any]) -> None:
        """Exchange data with the peers of this rank, round by round. All pairs of a round exchange at the same time."""
        pattern = Pattern(self._torch, step["dtype"], self._device, self._ranks, summed=False)
        elements = step["bytes"] // pattern.width
        out, received = (self._torch.empty(elements, dtype=pattern.dtype, device=self._device) for _ in range(2))
        for index, pairs in enumerate(step["rounds"]):
            self._reporter.enter("locate", step=step["number"], round=index, rounds=len(step["rounds"]))
            peer = next((b if a == self._rank else a for a, b in pairs if self._rank in (a, b)), None)
            self._barrier()
            if peer is not None:
                self._exchange_with(step, pattern, peer, out, received)

    def _exchange_with(self, step: dict[str, Any], pattern: Pattern, peer: int, out: Any, received: Any) -> None:
        def operate() -> None:
            self._stop.check()
            self._fault.delay(peer)
            exchange(self._group, out, peer, received, peer)

        pattern.fill(out, self._rank)
        received.zero_()
        self._fault.corrupt(out)
        for _ in range(step["warm_ups"]):
            operate()
        seconds = [self._seconds(operate) for _ in range(step["operations"])]
        wrong = {
            "wrong": pattern.count_wrong(received, peer),
            "wrong_send_elements": pattern.count_wrong(out, self._rank),
        }
        self._stop.check()
        direct = bool(self._torch.cuda.can_device_access_peer(self._rank, peer)) if self._on_gpu else None
        figures = {"seconds": seconds, **wrong, "direct": direct}
        self._reporter.frame(step=step["number"], peer=peer, **figures)

    def _barrier(self) -> None:
        self._stop.check()
        if self._on_gpu:
            self._group.barrier(device_ids=[self._rank])
        else:
            self._group.barrier()


def _version(text: str) -> tuple[int, ...]:
    """Return a version as numbers: (2, 10, 1) for 2.10.1+cu130."""
    return tuple(int(part) for part in text.partition("+")[0].split(".")[:3] if part.isdigit())
