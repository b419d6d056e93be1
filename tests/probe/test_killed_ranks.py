"""KilledRanks recognizes the Xids of ranks that the agent has killed, and no others."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from rank_runs import HANG, PREAMBLE, QUICK, Probing, make_plan

from gpumon.clock import boot_clock
from gpumon.collectors.kernel_log.watch import KernelLogWatch
from gpumon.model.error_event import NVML, XID, ErrorObservation
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import Plan
from gpumon.probe.core.preflight import Skip
from gpumon.runner.rank_process import KilledRanks

GPUS = ("GPU-0", "GPU-1")
PID = 4711


class ChannelDriver:
    """A driver that removes the channels of processes which end while their kernels run.

    It logs an Xid 45 for each, in the form of drivers since 470 (leptonai/gpud, components/accelerator/nvidia/xid).
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._records = 0
        log.touch()

    def clean_up(self, pids: Iterable[int]) -> None:
        for bus, pid in enumerate(pids):
            self._records += 1
            line = f"NVRM: Xid (PCI:0000:{bus + 1:02x}:00): 45, pid={pid}, name=python3, Ch 00000008"
            with self._log.open("a") as log:
                log.write(f"4,{self._records},{int(boot_clock() * 1e6)},-;{line}\n")


def xid(code: int = 45, *, gpu: str = GPUS[0], later: float = 0.0, **attributes: Any) -> ErrorObservation:
    at = boot_clock() + later
    return ErrorObservation(
        kind=XID, code=code, bus_id="", at=at, since=at, wall=time.time() + later, source=NVML, uuid=gpu, **attributes
    )


@pytest.fixture
def read(tmp_path: Path) -> Callable[[], list[ErrorObservation]]:
    """Return a reader of the kernel log."""
    observations: list[ErrorObservation] = []
    (tmp_path / "kmsg").touch()
    watch = KernelLogWatch(tmp_path / "kmsg", "boot-1")
    watch.resume(None)

    def read_all() -> list[ErrorObservation]:
        observations.extend(watch.read())
        return observations

    return read_all


def _plan(folder: Path, script: str) -> Plan:
    """Return a plan for ranks on two GPUs, which a script without torch never opens."""
    (folder / "worker.py").write_text(PREAMBLE + script)
    return make_plan(replace(QUICK, worker=folder / "worker.py"), GPUS, python=sys.executable, deadline=20.0)


def test_xids_of_ranks_that_give_way_to_a_job_are_own(
    tmp_path: Path, read: Callable[[], list[ErrorObservation]]
) -> None:
    """A run that a job interrupts causes Xids of its ranks, which differ from those of the job by their pids."""
    probing, driver = Probing(), ChannelDriver(tmp_path / "kmsg")
    read()

    def interrupt(_: Progress) -> None:
        probing.ranks.abort(Skip(reason="busy", hint="a job has come"))

    result = probing.run(_plan(tmp_path, HANG), interrupt)
    assert result.outcome == "skipped"
    driver.clean_up((*sorted(probing.pids), PID))
    killed = probing.ranks.killed
    assert [(each.pid == PID, killed.has_caused(each)) for each in read()] == [
        (False, True),
        (False, True),
        (True, False),
    ]
    assert killed.has_caused(xid(gpu=GPUS[1]))
    assert not killed.has_caused(xid(gpu="GPU-2"))


def test_xids_of_a_rank_that_fails_are_not_own(tmp_path: Path) -> None:
    """Only the ranks that were killed because another one failed cause Xids: that of the failed rank is evidence."""
    probing = Probing()
    failing = 'if orders["rank"] == 1:\n    sys.exit(1)\n' + HANG
    assert probing.run(_plan(tmp_path, failing)).outcome == "failed"
    assert [probing.ranks.killed.has_caused(xid(gpu=gpu)) for gpu in GPUS] == [True, False]


@each_case(
    "attributes, own",
    [
        ({}, True),
        ({"code": 43, "later": 30.0}, True),
        ({"pid": PID}, True),
        ({"pid": PID + 1}, False),
        ({"code": 31}, False),
        ({"code": 79, "pid": PID}, False),
        ({"gpu": GPUS[1]}, False),
        ({"later": -5.0}, False),
        ({"later": 200.0}, False),
        ({"pid": PID, "text": "Ch 00000001 caused by previous Xid 149"}, False),
    ],
)
def test_the_window_and_the_process_decide(attributes: dict[str, Any], *, own: bool) -> None:
    """Only Xids 43 and 45 count as own, within a minute of the kill, of its GPU and, if the log names it, its pid."""
    killed = KilledRanks()
    killed.add(PID, GPUS[0])
    assert killed.has_caused(xid(**attributes)) is own


def test_pids_of_another_namespace_are_not_compared() -> None:
    """In a container the kernel log has other pids, so the GPU alone decides."""
    killed = KilledRanks()
    killed.add(PID, GPUS[0])
    assert killed.has_caused(xid(pid=PID + 1), same_pids=False)
