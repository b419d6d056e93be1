from __future__ import annotations

from dataclasses import replace

import pytest

from gpumon.probe.situation import GpuUse, Situation
from gpumon.report import Memory, Report
from gpumon.snapshot.node import Node
from gpumon.supervisor.due import FIND_SECONDS, IDLE_LOOK_SECONDS, LOOK_SECONDS, pause

LOOKED = Report(started=0.0, node=Node(snapshot_timestamp_seconds=1.0), memory=Memory(recalled=True))
GPUS = tuple(GpuUse(index=n, uuid=f"GPU-{n}", processes=0.0, idle_seconds=480.0) for n in range(2))
IDLE = Situation(gpus=GPUS, expected=2, scheduled=True, idle_seconds=480.0)
SOON = replace(IDLE, idle_seconds=600.0)


@pytest.mark.parametrize(
    ("report", "now", "waited", "seconds"),
    [
        (LOOKED, IDLE, 0.0, None),
        (replace(LOOKED, node=Node()), IDLE, 3600.0, LOOK_SECONDS),
        (replace(LOOKED, memory=Memory()), IDLE, 0.0, LOOK_SECONDS),
        (LOOKED, replace(IDLE, schedulers=None), 1.0, LOOK_SECONDS),
        (LOOKED, replace(IDLE, schedulers=None), FIND_SECONDS + 1, None),
        (LOOKED, replace(IDLE, schedulers=None, gated=True), 0.0, None),
        (LOOKED, replace(IDLE, schedulers=None, simulated=True), 0.0, None),
        (LOOKED, SOON, 0.0, IDLE_LOOK_SECONDS),
        (LOOKED, replace(SOON, idle_seconds=482.0), 0.0, 2.0),
        (LOOKED, SOON, 600.0 + FIND_SECONDS + 1, None),
        (LOOKED, replace(SOON, gpus=(replace(GPUS[0], processes=1.0), GPUS[1])), 0.0, None),
        (LOOKED, replace(SOON, enabled=False), 0.0, None),
    ],
)
def test_a_run_that_is_due_waits_for_what_passes_by_itself(
    report: Report, now: Situation, waited: float, seconds: float | None
) -> None:
    """For a first look at the GPUs, at the store and for schedulers, and for idleness; not for a job to end."""
    assert pause(report, now, waited) == seconds
