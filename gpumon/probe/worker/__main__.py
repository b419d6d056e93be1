"""Runs one rank of a probe. Only this program and torch_report.py beside it import torch.

The agent runs it by its folder's path, with `-I`. The interpreter is Python 3.9 or later and need not have gpumon, so
the program uses only the standard library and torch. Its input is JSON lines: first a description of the rank
(`Plan.orders`), then one step at a time (probe/core/plan.py). It ends when its input closes. The first line also names
a descriptor, to which the program writes frames, one JSON object per line (probe/core/frames.py).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any

from gpumon_rank.channel import STOPPED, Reporter, StopRequest
from gpumon_rank.faults import Fault
from gpumon_rank.rank import Rank

PR_SET_PDEATHSIG = 1
INPUT = io.FileIO(0, closefd=False)  # a buffer has a lock, which aborts the end of the interpreter while a thread reads


def die_with(parent: int) -> bool:
    """Make the kernel kill this process when its parent ends. Return False if its parent is not process `parent`."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def raise_oom_score() -> None:
    """Make the kernel kill this process before the agent and before jobs if memory runs out."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:  # noqa: PTH123
        file.write("1000")


def read_steps(steps: queue.Queue[dict[str, Any]], reporter: Reporter) -> None:
    """Put each step into the queue. End this process when standard input closes (status 3) or a step is invalid (1)."""
    try:
        for line in iter(INPUT.readline, b""):
            steps.put(json.loads(line))
    except ValueError as error:
        reporter.frame(error=f"the agent sent an invalid step: {error}")
        os._exit(1)
    os._exit(3)


def main() -> int:
    """Run a rank. Return the exit status: 0, 1 for an error, 3 if its parent is not the agent, or STOPPED."""
    orders = json.loads(INPUT.readline())
    fault = Fault(orders["fault"], orders["rank"])
    reporter = Reporter(orders["result"], fault)
    if not die_with(orders["parent"]):
        reporter.frame(error="its parent is not the agent: probe.python must exec the interpreter, not start it")
        return 3
    raise_oom_score()
    stop = StopRequest()
    threading.Thread(target=read_steps, args=(stop.steps, reporter), daemon=True).start()
    try:
        Rank(orders, reporter, fault, stop).run()
    except Exception as error:  # noqa: BLE001 - every failure is a result
        if stop.received:  # or another rank has closed its connection on SIGTERM
            stop.finish()
            return STOPPED
        traceback.print_exc()
        reporter.frame(error=f"{type(error).__name__}: {error}"[:2000])
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if status == STOPPED:
        gc.freeze()  # to collect torch's objects takes a second
        sys.exit(status)  # closes the CUDA context; if that hangs, the agent sends SIGKILL
    os._exit(status)  # not through torch's teardown, which can hang: the result is sent, and the kernel frees the rest
