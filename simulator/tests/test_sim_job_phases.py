"""Jobs with phases: what NVML, /proc and io.stat report while a job works, waits, is idle or has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pynvml
import pytest
from each_case import each_case
from gpumon_sim.infiniband import SimulatedTree, open_tree
from gpumon_sim.observe import CLOCK_STEP
from gpumon_sim.physics import Body, Course, LoadPhase, Workload
from gpumon_sim.profiles import PROFILES
from simulated import SimulatedNvml, simulated_node

CGROUP = "/slurm/uid_1000/job_7/step_0"
PHASES = "{do: work, seconds: 100}, {do: idle, seconds: 50, process: D, read_bytes: 1000}, {do: spin, seconds: 50}"
JOB = f"jobs: [{{start: 100, end: 1000, repeat: true, cgroup: {CGROUP}, phases: [{PHASES}]}}]"
RANKS = f"""
jobs:
  - {{gpus: [0, 1, 2], cgroup: {CGROUP}, phases: [{{do: work, seconds: 100, read_bytes: 5}}, {{do: spin}}]}}
  - {{gpus: [3], cgroup: {CGROUP}, phases: [{{do: work, seconds: 100, read_bytes: 2}}, {{do: gone}}]}}
"""
SM, TENSOR, DRAM, PCIE, NVLINK = 2, 5, 10, 20, 60
GRAPHICS = 1
RECEIVED = 139


def gpm(simulation: SimulatedNvml, handle: Any, *metrics: int) -> list[float]:
    """Return GPM metrics over the next ten seconds."""
    question = pynvml.c_nvmlGpmMetricsGet_t()
    question.version, question.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(metrics)
    question.sample1 = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())
    simulation.now += 10.0
    question.sample2 = pynvml.nvmlGpmSampleGet(handle, pynvml.nvmlGpmSampleAlloc())
    for entry, metric in zip(question.metrics, metrics, strict=False):
        entry.metricId = metric
    return [metric.value for metric in pynvml.nvmlGpmMetricsGet(question).metrics[: len(metrics)]]


def watts(simulation: SimulatedNvml, handle: Any, since: int) -> list[float]:
    powers = []
    for second in range(30):
        simulation.now = float(since + second)
        powers.append(pynvml.nvmlDeviceGetPowerUsage(handle) / 1000)
    return powers


@each_case("profile", ["h100x8", "a100x8", "gb200x4"])
def test_a_kernel_that_waits_is_busy_cold_and_silent(profile: str, tmp_path: Path) -> None:
    """Utilization is 100 %, power low and flat, the clock that of a busy GPU; nothing moves over memory or links."""
    with simulated_node(profile, tmp_path / "s.yml", text=JOB) as simulation:
        handle = simulation.handles()[0]
        working, idle, spinning = (watts(simulation, handle, since) for since in (110, 210, 260))
        share = (sum(spinning) - sum(idle)) / (sum(working) - sum(idle))
        assert 0.12 <= share <= 0.25
        assert max(spinning) - min(spinning) < 0.01 * max(spinning)
        assert max(working) - min(working) > 0.05 * max(working)
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
        assert pynvml.nvmlDeviceGetUtilizationRates(handle).memory <= 1
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) == 1
        assert pynvml.nvmlDeviceGetClockInfo(handle, 1) > pynvml.nvmlDeviceGetMaxClockInfo(handle, 1) - CLOCK_STEP
        assert pynvml.nvmlDeviceGetPcieThroughput(handle, 0) == 0
        if PROFILES[profile].board.gpm:
            active = gpm(simulation, handle, GRAPHICS, SM, TENSOR, DRAM, PCIE, NVLINK)
            assert active == [100.0, 100.0, 0.0, pytest.approx(0.5), 0.0, 0.0]
        if not PROFILES[profile].board.nvlink5:
            before = received(handle)
            simulation.now = 299.0
            assert received(handle) == before
            simulation.now = 301.0
            assert received(handle) > before


def received(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetFieldValues(handle, [(RECEIVED, 0xFFFFFFFF)])[0].value.ullVal)


def test_phases_are_repeated_until_the_end(tmp_path: Path) -> None:
    """Each cycle is like the first, also far from the start; afterwards there is no process."""
    with simulated_node(scenario=tmp_path / "s.yml", text=JOB) as simulation:
        handle = simulation.handles()[5]

        def look(at: float) -> tuple[bool, int, int]:
            simulation.now = at
            use = pynvml.nvmlDeviceGetUtilizationRates(handle)
            return use.gpu > 85, use.memory, len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))

        for start in (100, 300, 500, 700):
            works, *rest = [look(start + into) for into in (1, 101, 149, 151, 199)]
            assert (works[0], works[1] > 50, rest) == (True, True, [(False, 0, 1)] * 2 + [(True, 0, 1)] * 2)
        assert [look(at) for at in (99.0, 1000.0, 1e6)] == [(False, 0, 0)] * 3


def test_energy_is_the_integral_of_a_power_that_dips() -> None:
    """In a phase with dips too, the energy counter is the integral of the power, which stays in its bounds."""
    body = Body(idle=70.0, full=760.0, limit=700.0, cool=34.0, per_watt=0.05)
    course = Course(body, Workload(2.0, (LoadPhase(20, 0.95, dips=True), LoadPhase(10, 0.0, spins=True))))
    points = [course.at(n / 100).point for n in range(3201)]
    powers = [point.power for point in points]
    energies = [sum(powers[:n]) / 100 for n in range(len(powers))]
    assert [point.energy for point in points] == pytest.approx(energies, rel=1e-2, abs=10)
    assert body.idle - 1e-6 <= min(powers)
    assert max(powers) <= body.limit
    assert points[-1].spin_seconds == pytest.approx(10)
    assert points[-1].load_seconds == pytest.approx(19)


def tree(folder: Path, text: str, now: float) -> SimulatedTree:
    scenario = folder / "scenario.yml"
    scenario.write_text(text)
    return open_tree("h100x8", scenario=scenario, epoch=0.0, clock=lambda: now)


def pids(folder: Path, text: str, now: float) -> list[list[int]]:
    """Return the processes that NVML lists, by GPU."""
    with simulated_node(scenario=folder / "s.yml", text=text, now=now) as simulation:
        return [
            [process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)]
            for handle in simulation.handles()
        ]


def stat(files: SimulatedTree, pid: int) -> tuple[str, int, str]:
    """Return state, CPU ticks and start time of a process."""
    fields = files.read(f"proc/{pid}/stat").split()
    assert fields[:2] == [str(pid), "(python3)"]
    return fields[2], int(fields[13]) + int(fields[14]), fields[21]


@each_case(
    ("now", "state", "word", "ticks"),
    [
        (150.0, "R", "running", 5000),
        (210.0, "D", "disk sleep", 10000),
        (260.0, "R", "running", 11000),
        (410.0, "D", "disk sleep", 25000),
    ],
)
def test_a_process_has_the_state_and_the_cpu_time_of_its_phases(
    now: float, state: str, word: str, ticks: int, tmp_path: Path
) -> None:
    """Both stat and status have the state, and user and system time add up; the start time never changes."""
    [pid] = pids(tmp_path, JOB, now)[0]
    files = tree(tmp_path, JOB, now)
    assert stat(files, pid) == (state, ticks, "1000")
    assert f"State:\t{state} ({word})\n" in files.read(f"proc/{pid}/status")


@each_case(("process", "ticks"), [("R", 1000), ("S", 20), ("T", 0), ("D", 0), ("Z", 0)])
def test_cpu_time_follows_from_the_state(process: str, ticks: int, tmp_path: Path) -> None:
    """A process that runs uses its core, one that sleeps hardly any, and the others none, unless `cpu` is set."""
    text = f"jobs: [{{phases: [{{do: idle, process: {process}}}]}}]"
    [pid] = pids(tmp_path, text, 10.0)[0]
    assert stat(tree(tmp_path, text, 10.0), pid)[:2] == (process, ticks)
    text = f"jobs: [{{phases: [{{do: idle, process: {process}, cpu: 0.5}}]}}]"
    assert stat(tree(tmp_path, text, 10.0), pid)[:2] == (process, 500)


def test_the_cgroup_counts_what_its_jobs_read(tmp_path: Path) -> None:
    """io.stat adds up the reads of all jobs with the cgroup, and is there while one of them is."""
    io = f"sys/fs/cgroup{CGROUP}/io.stat"
    assert "rbytes=50000 " in tree(tmp_path, JOB, 270.0).read(io)
    assert "rbytes=60000 " in tree(tmp_path, JOB, 410.0).read(io)
    assert tree(tmp_path, RANKS, 50.0).read(io).startswith("8:0 rbytes=350 wbytes=0 rios=")
    assert "rbytes=700 " in tree(tmp_path, RANKS, 500.0).read(io)
    for now in (99.0, 1000.0):
        with pytest.raises(FileNotFoundError):
            tree(tmp_path, JOB, now).read(io)


def test_ranks_of_one_job_can_differ(tmp_path: Path) -> None:
    """A rank that is gone has no process in NVML and in /proc, while the others wait for it."""
    before, after = (pids(tmp_path, RANKS, now) for now in (99.0, 101.0))
    assert [len(each) for each in before] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [len(each) for each in after] == [1, 1, 1, 0, 0, 0, 0, 0]
    files = tree(tmp_path, RANKS, 101.0)
    assert {files.read(f"proc/{pid}/cgroup") for [pid] in after[:3]} == {f"0::{CGROUP}"}
    with pytest.raises(FileNotFoundError):
        files.read(f"proc/{before[3][0]}/stat")


def test_the_ports_of_a_job_that_waits_are_silent(tmp_path: Path) -> None:
    """Traffic of a port stops with the work of the GPU next to it."""
    counter = "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data"
    sent = [int(tree(tmp_path, JOB, now).read(counter)) for now in (150.0, 200.0, 299.0, 310.0)]
    assert 0 < sent[0] < sent[1] == sent[2] < sent[3]


def test_a_phase_has_its_own_load(tmp_path: Path) -> None:
    """A phase of work may have another load than the job."""
    text = "jobs: [{load: 0.9, phases: [{do: work, seconds: 50}, {do: work, load: 0.3}]}]"
    with simulated_node(scenario=tmp_path / "s.yml", text=text, now=40.0) as simulation:
        handle = simulation.handles()[0]
        assert 88 <= pynvml.nvmlDeviceGetUtilizationRates(handle).gpu <= 92
        simulation.now = 60.0
        assert 28 <= pynvml.nvmlDeviceGetUtilizationRates(handle).gpu <= 32
