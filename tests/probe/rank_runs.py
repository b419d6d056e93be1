"""Helpers for tests that run probes as the agent does: a loop, rank processes and worker scripts without torch."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import Plan, Run, make_plans
from gpumon.probe.core.probes import KIB, MIB, PROBES
from gpumon.probe.core.result import ProbeResult
from gpumon.runner import ranks
from gpumon.runner.ranks import TERM_PATIENCE, Ranks
from gpumon.runner.run import Phase, Prepared, ProbeRun, Surroundings
from gpumon.supervisor import child_process
from gpumon.supervisor.loop import Loop

ALL_REDUCE = PROBES["allreduce"]
QUICK = replace(ALL_REDUCE, cpu=replace(ALL_REDUCE.cpu, sizes=(KIB, MIB)))
KILLING = TERM_PATIENCE + ranks.KILL_PATIENCE + child_process.REAP_INTERVAL + 10.0
"""Seconds within which a run ends: the agent's own waits plus a reserve for a busy machine."""
STARTED = 3.0
"""Deadline in seconds within which a rank without torch has started, even on a busy machine."""

PREAMBLE = """
import json, os, signal, sys, time
orders = json.loads(sys.stdin.readline())
def send(**frame):
    os.write(orders["result"], json.dumps(frame).encode() + b"\\n")
"""
HANG = """
send(stage="measure", index=0, sizes=1, size=1024)
while True:
    time.sleep(60)
"""


JUDGE = Judge(probe="allreduce", backend="gloo")


def make_plan(*arguments: Any, **more: Any) -> Plan:
    """Return the plan of the first pass."""
    return make_plans(*arguments, **more)[0]


def start_run(
    ranks: Ranks,
    run: Run,
    plans: Sequence[Plan],
    judge: Judge,
    *,
    on_result: Callable[[ProbeResult], None],
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> ProbeRun:
    """Start a run without preflight, gate and GPUs."""
    surroundings = Surroundings(prepare=lambda: Prepared(plans, judge), on_progress=on_progress, on_result=on_result)
    probe_run = ProbeRun(ranks, run, plans[0].probe, surroundings)
    probe_run.start()
    return probe_run


class Probing:
    """A loop with its ranks; `run` turns the loop until the result arrives."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.ranks = Ranks(self.loop)
        self.current: ProbeRun | None = None
        self.progress: list[Progress] = []
        self.pids: set[int] = set()
        self.results: list[ProbeResult] = []

    def run(
        self, plan: Plan, on_progress: Callable[[Progress], None] = lambda _: None, judge: Judge = JUDGE
    ) -> ProbeResult:
        def record_progress(progress: Progress) -> None:
            self.progress.append(progress)
            self.pids |= self.ranks.pids
            on_progress(progress)

        def record_result(result: ProbeResult) -> None:
            self.results.append(result)
            self.loop.stop()

        limit = self.loop.call_after(150, self.loop.stop)
        run = Run(id="one", trigger="request", started=time.time())
        self.current = start_run(self.ranks, run, [plan], judge, on_progress=record_progress, on_result=record_result)
        self.loop.run()
        limit.cancel()
        [result] = self.results
        assert self.current.phase is Phase.CONCLUDED
        return result


def make_script_plan(path: Path, script: str, *, deadline: float = 20.0) -> Plan:
    """Return a plan whose ranks run a script that implements the protocol without torch."""
    path.write_text(PREAMBLE + script)
    return make_plan(replace(QUICK, worker=path), (), python=sys.executable, deadline=deadline)


def have_ended(pids: set[int]) -> bool:
    """Return whether there were processes and all of them have ended."""
    return bool(pids) and not any(Path(f"/proc/{pid}").exists() for pid in pids)
