"""Simulated values change in time and agree with each other."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pynvml
import pytest
from gpumon_sim import workload
from gpumon_sim.physics import Body, Course, Job, LoadPhase, Workload
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import simulated_node

from gpumon.clock import boot_clock

BODY = Body(idle=70.0, full=760.0, limit=700.0, cool=34.0, per_watt=0.05)
PHASES = st.lists(st.tuples(st.floats(0.5, 60), st.floats(0, 1)), min_size=1, max_size=6)


def trapezium(course: Course, end: float, step: float = 0.01) -> float:
    """Return the energy as a numerical integral of the power."""
    powers = [course.at(n * step).point.power for n in range(int(end / step) + 1)]
    return step * (sum(powers) - (powers[0] + powers[-1]) / 2)


@settings(max_examples=30)
@given(PHASES, st.floats(0, 20))
def test_energy_is_the_integral_of_power(phases: list[tuple[float, float]], lead: float) -> None:
    """The energy counter is the integral of the power under any load."""
    course = Course(BODY, Workload(lead, tuple(LoadPhase(*phase) for phase in phases)))
    assert course.at(30.0).point.energy == pytest.approx(trapezium(course, 30.0), rel=1e-3)


@pytest.mark.parametrize("load", [workload.default_workload(0), workload.busy(0), workload.IDLE])
def test_integrals_are_continuous_over_days(load: Workload) -> None:
    """No counter jumps or falls from the first second to the thirtieth day."""
    course = Course(BODY, load)
    times = sorted({0.0, 39.9, 40.1, 3600.0, 86_400.0, 2_592_000.0} | {cycle * 1234.5 for cycle in range(60)})
    for time in times:
        for near in (time, time + 0.05):
            now, soon = course.at(near).point, course.at(near + 0.1).point
            assert 0.1 * BODY.idle * 0.99 <= soon.energy - now.energy <= 0.1 * BODY.limit * 1.01
            assert 0 <= soon.load_seconds - now.load_seconds <= 0.1001
            assert 0 <= soon.capped_seconds - now.capped_seconds <= 0.1001
            assert abs(soon.temperature - now.temperature) < 0.5


def test_power_follows_the_load_with_a_delay() -> None:
    """After one second of full load power has made 63 % of the change, and it never exceeds the limit."""
    course = Course(BODY, Workload(10.0, (LoadPhase(100, 1.0),)))
    assert course.at(10.0).point.power == 70.0
    assert course.at(11.0).point.power == pytest.approx(70 + 630 * (1 - math.exp(-1)))
    assert course.at(100.0).point.power == pytest.approx(700.0)
    assert course.at(100.0).point.capped_seconds == pytest.approx(90.0)
    assert course.at(109.9).point.temperature == pytest.approx(34 + 0.05 * 630, abs=1.0)
    assert course.at(112.0).phase.load == 0


def test_jobs_that_overlap_share_the_gpu() -> None:
    """Loads and memory of jobs add up, the load to at most 1, and each job is a process."""
    runs = [
        workload.ScenarioJob(start=0, end=20, load=0.7, memory=0.8),
        workload.ScenarioJob(start=10, load=0.6, memory=0.8, gpus=(1,)),
    ]
    both, one = workload.of_jobs(runs, 1), workload.of_jobs(runs, 0)
    assert [(phase.seconds, phase.load) for phase in both.phases] == [(10, 0.7), (10, 1.0), (math.inf, 0.6)]
    assert both.phases[1].jobs == (Job(0, 0.5), Job(1, 0.5))
    assert Course(BODY, both).at(1e6).phase.jobs == (Job(1, 0.8),)
    assert Course(BODY, one).at(1e6).phase.jobs == ()


def everything(simulation: Any) -> list[tuple[Any, ...]]:
    return [
        (
            pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            pynvml.nvmlDeviceGetPowerUsage(handle),
            pynvml.nvmlDeviceGetTemperatureV(handle, 0),
            pynvml.nvmlDeviceGetTotalEnergyConsumption(handle),
            [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)],
            pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle),
            pynvml.nvmlDeviceGetClockInfo(handle, 1),
        )
        for handle in simulation.handles()
    ]


def test_the_node_is_idle_for_forty_seconds_and_busy_afterwards() -> None:
    """No process runs at first; then each GPU has a job for minutes, with pauses."""
    with simulated_node() as simulation:
        held = []
        for second in range(1300):
            simulation.now = float(second)
            processes = [pynvml.nvmlDeviceGetComputeRunningProcesses(handle) for handle in simulation.handles()]
            held.append(sum(map(len, processes)))
        assert set(held[:40]) == {0}
        assert set(held[41:250]) == {8}
        changes = [n for n in range(1, len(held)) if held[n] != held[n - 1]]
        lengths = [later - earlier for earlier, later in pairwise(changes)]
        assert all(240 <= job <= 400 for job in lengths[::2])
        assert all(59 <= pause <= 121 for pause in lengths[1::2])
        assert len(lengths) >= 5


def test_readings_follow_the_job() -> None:
    """An idle GPU has low clocks, the idle reason and low power; a busy GPU does not, and becomes hotter."""
    with simulated_node(now=30.0) as simulation:
        for use, power, *_, processes, events, clock in everything(simulation):
            assert (use, processes, events, clock) == (0, [], 0x1, 345)
            assert 60_000 < power < 80_000
        simulation.now = 70.0
        early = everything(simulation)
        simulation.now = 130.0
        late = everything(simulation)
        for (use, power, temperature, energy, pids, events, clock), before in zip(late, early, strict=True):
            assert use >= 88
            assert power > 600_000
            assert temperature > before[2]
            assert 60 * 300_000 < energy - before[3] <= 60 * 700_000
            assert pids == before[4] != []
            assert events in {0x0, 0x4}
            assert clock == (1980 if events == 0 else 1875)


def test_mean_power_covers_the_last_second() -> None:
    """Mean power is the energy of the last second, so that it follows the current power with a delay."""
    with simulated_node() as simulation:
        handle = simulation.handles()[0]
        for second in (41.0, 46.5, 47.0, 100.0):
            simulation.now = second - 1.0
            before = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
            simulation.now = second
            [mean, instant] = [f.value.uiVal for f in pynvml.nvmlDeviceGetFieldValues(handle, [185, 186])]
            assert mean == pytest.approx(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before, abs=2)
            if second == 46.5:  # half a second after the start of the load
                assert instant > mean * 1.1


def test_the_power_cap_counts_its_time() -> None:
    """The counter of the power cap increases exactly while its event is active."""
    with simulated_node() as simulation:
        handle = simulation.handles()[0]
        for second in range(40, 400):
            active, counts = [], []
            for simulation.now in (second + 0.0, second + 0.1):
                active.append(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle) & 0x4)
                counts.append(pynvml.nvmlDeviceGetFieldValues(handle, [74])[0].value.ullVal)
            if active[0] == active[1]:
                grown = counts[1] - counts[0]
                assert grown == pytest.approx(100_000_000 if active[0] else 0, abs=10)


READ = """
import sys, pynvml
from pathlib import Path
from gpumon_sim.library import open_node
node = open_node("h100x8", scenario=Path(sys.argv[2]), epoch=float(sys.argv[1]))
pynvml.nvmlLib = node.library
pynvml.nvmlInit()
for index in range(pynvml.nvmlDeviceGetCount()):
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pids = [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
    print(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetTotalEnergyConsumption(handle), *pids)
"""


def test_two_processes_read_the_same_node(tmp_path: Path) -> None:
    """The counters of a second process are between two readings of the first; UUIDs and PIDs are the same."""
    scenario = tmp_path / "s.yml"
    scenario.write_text("busy: true\nseed: 3\n")
    epoch = str(boot_clock() - 1000)

    def read() -> list[list[str]]:
        command = [sys.executable, "-c", READ, epoch, str(scenario)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return [line.split() for line in done.stdout.splitlines()]

    first, second, third = read(), read(), read()
    assert len(first) == 8
    for a, b, c in zip(first, second, third, strict=True):
        assert a[0] == b[0] == c[0]
        assert a[2:] == b[2:] == c[2:] != []
        assert int(a[1]) < int(b[1]) < int(c[1])
        assert int(c[1]) - int(a[1]) < 60 * 700_000
