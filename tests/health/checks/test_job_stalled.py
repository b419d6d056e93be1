"""The check job_stalled: GPUs of a job that have moved and do not any more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from each_case import each_case
from judging import Ward
from typing_extensions import Self

from gpumon.fleet.alert_rules import MAX_WAIT_SECONDS
from gpumon.health.check_row import MINUTE
from gpumon.health.checks.jobs import MAX_CPU, MAX_IO
from gpumon.health.policy import Policy
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.table import BY_NAME, LIMITS
from gpumon.health.verdict import Level, Verdict
from gpumon.model.allocation import Allocation, HolderProcess, Owner
from gpumon.model.instant import Instant
from gpumon.outputs.problems import problems
from gpumon.state import job_pace
from gpumon.state.sections import samples

OWNER = Owner(slurm_job_id="4711", user="alice")
JOB = "job/slurm/4711"
LOADS: Mapping[str, Mapping[str, Any]] = {
    "work": {"utilization_ratio": 0.99, "power_watts": 600.0, "dram_active_ratio": 0.4, "tensor_active_ratio": 0.3},
    "spin": {"utilization_ratio": 1.0, "power_watts": 160.0, "dram_active_ratio": 0.0, "tensor_active_ratio": 0.0},
    "idle": {"utilization_ratio": 0.0, "power_watts": 75.0, "dram_active_ratio": 0.0, "tensor_active_ratio": 0.0},
    "hot": {"utilization_ratio": 1.0, "power_watts": 500.0, "dram_active_ratio": 0.0, "tensor_active_ratio": 0.0},
}


class JobWard(Ward):
    """A node whose GPUs are held by a job with one process a GPU."""

    def __init__(self, gpus: int = 4, thresholds: Mapping[str, float | None] | None = None) -> None:
        policy = Policy(thresholds=thresholds or {}, disabled=frozenset(BY_NAME) - {"job_stalled", "gpu_spin"})
        super().__init__(gpus=gpus, ports=0, policy=policy)
        windows = {window.metric: window.seconds for window in BY_NAME["gpu_spin"].windows}
        self.report = replace(self.report, samples=SampleHistory(windows=windows))
        self._processes: dict[str, HolderProcess] = {}
        self._cpu: dict[str, float] = {}
        began = Instant(self.report.boot_id, self.at, self.wall)
        held = tuple(
            Allocation(uuid=each.uuid, source="mapping", owner=OWNER, began=began, last_wall=self.wall)
            for each in self.report.gpus
        )
        jobs = replace(self.report.jobs, allocations=held, names=frozenset({"slurm_job_id"}))
        self.report = replace(self.report, jobs=jobs)
        self.load("work")

    def load(self, name: str, *gpus: int, process: str | None = "R", cpu: float = 1.0, io: float = 0.0) -> Self:
        """Set the load of these GPUs, by default of all, and the state of their processes; None ends them."""
        for index in gpus or range(len(self.report.gpus)):
            pid = str(100 + index)
            pids = () if process is None else (int(pid),)
            self.gpu(index, state={"pids": pids, "link_rates": {}}, processes=float(len(pids)), **LOADS[name])
            self._cpu[pid] = cpu
            if process is None:
                self._processes.pop(pid, None)
            else:
                self._processes[pid] = HolderProcess(owner=OWNER, state=process, cpu_seconds=0.0, io_bytes=io)
        return self

    def look(self) -> Self:
        """Let the processes use CPU time, and determine the motions, as the section `jobs` does at each tick."""
        for pid, each in self._processes.items():
            used = (each.cpu_seconds or 0.0) + 10 * self._cpu[pid]
            self._processes[pid] = replace(each, cpu_seconds=used, io_bytes=2 * (each.io_bytes or 0.0))
        jobs = self.report.jobs
        jobs = replace(jobs, processes=job_pace.processes(jobs, self._processes, self.at))
        jobs = job_pace.determine_motions(jobs, self.report.gpus, self.terms.policy, self.moment)
        self.report = replace(self.report, jobs=jobs)
        return super().look()

    @property
    def stall(self) -> Verdict | None:
        return self.report.health.open.get(("job_stalled", JOB))


def moved(gpus: int = 4, **thresholds: float | None) -> JobWard:
    """Return a node whose job has moved for a quarter of an hour."""
    ward = JobWard(gpus, thresholds)
    ward.go_on(15 * MINUTE)
    return ward


@each_case(
    ("load", "process", "cpu", "io", "active"),
    [
        ("work", "R", 1.0, 0.0, 1.0),
        ("spin", "R", 1.0, 0.0, 0.0),
        ("idle", "R", 1.0, 0.0, 1.0),
        ("idle", "D", 0.0, 0.0, 1.0),
        ("idle", "S", 0.0, 2e7, 1.0),
        ("idle", "S", 0.0, 0.0, 0.0),
        ("idle", "T", 0.0, 0.0, 0.0),
        ("idle", None, 0.0, 0.0, 0.0),
    ],
)
def test_a_node_is_active_if_others_may_wait_for_it(
    load: str, process: str | None, cpu: float, io: float, active: float
) -> None:
    """Its first GPU works, or is idle while its process is not known to wait; the others wait in a collective."""
    ward = moved().load("spin").load(load, 0, process=process, cpu=cpu, io=io).go_on(60)
    (metrics,) = (each.value for each in samples(ward.report) if each.name == "gpumon_job_active")
    assert metrics == active


PAGE = Path(__file__).parents[3] / "docs" / "jobs.md"
CONSTANTS = {
    "tensor cores": f"{job_pace.MIN_TENSOR:.0%}",
    "NVLink": f"{job_pace.MIN_LINKS:.0%} of its typical traffic",
    "utilization of an idle GPU": f"{job_pace.MAX_IDLE:.0%}",
    "typical power and traffic": f"mean over {job_pace.TYPICAL_SECONDS / MINUTE:.0f} minutes",
    "readings missing for": f"{job_pace.GAP_SECONDS:.0f} s",
    "CPU time of a process that waits": f"{MAX_CPU:g} s a second",
    "disk traffic of a cgroup": f"{MAX_IO / 1e6:.0f} MB/s",
    "another node of the job is active": f"{MAX_WAIT_SECONDS / MINUTE:.0f} minutes",
}


def test_the_limits_on_the_page_are_those_in_force() -> None:
    """Each row of the table in docs/jobs.md has the default of the threshold of its name, or the constant."""
    text = PAGE.read_text().partition("| limit | value | reason |")[2].partition("\n\n")[0]
    rows = [row.split("|")[1:3] for row in text.splitlines()[2:]]
    shown = {name.strip().replace(" %", "%"): value.strip().replace(" %", "%") for name, value in rows}
    for name in (each.strip("`") for each in shown if each.startswith("`")):
        default = LIMITS[name].default
        assert default is not None
        value = f"{default / MINUTE:g} minutes" if name.endswith("_seconds") else f"{default:g}"
        assert shown[f"`{name}`"] == value, name
    assert {name: shown[name] for name in CONSTANTS} == CONSTANTS


def test_a_collective_that_hangs_stalls_its_job() -> None:
    """The verdict is on the job, has its GPUs and their last motion, and is cleared a minute after it moves again."""
    ward = moved()
    ward.load("spin").go_on(170)
    assert ward.stall is None
    verdict = ward.go_on(20).stall
    assert verdict is not None
    assert (verdict.level, verdict.reason) == (
        Level.WARN,
        "Its GPUs have not moved for 3.0 minutes. GPU 0, 1, 2, 3: busy without work.",
    )
    assert verdict.evidence["seconds_since_moving"] == "GPU 0 190, GPU 1 190, GPU 2 190, GPU 3 190"
    ward.go_on(60 * MINUTE)
    assert ward.stall is not None
    ward.load("work").go_on(50)
    assert ward.stall is not None
    assert ward.go_on(30).stall is None


@each_case(
    ("process", "cpu", "seconds", "reason"),
    [
        (None, 0.0, 190, "its process has ended"),
        ("T", 0.0, 190, "its process is stopped (state T)"),
        ("S", 0.02, 610, "no CPU time"),
    ],
)
def test_the_odd_one_out_is_named(process: str | None, cpu: float, seconds: float, reason: str) -> None:
    """An idle GPU whose process is blocked, while the other GPUs wait, is part of the reason; if in doubt, later."""
    ward = moved().load("spin", 0, 1, 2).load("idle", 3, process=process, cpu=cpu)
    assert ward.go_on(seconds - 30).stall is None
    verdict = ward.go_on(30).stall
    assert verdict is not None
    assert verdict.reason.endswith(f" minutes. GPU 0, 1, 2: busy without work. GPU 3: idle, {reason}.")


@each_case(
    ("load", "process", "cpu", "io"),
    [
        ("idle", "S", 0.02, 0.0),
        ("idle", "T", 0.0, 0.0),
        ("idle", None, 0.0, 0.0),
        ("spin", "D", 0.0, 0.0),
        ("spin", "S", 0.0, 2e6),
        ("hot", "R", 1.0, 0.0),
        ("work", "R", 1.0, 0.0),
    ],
)
def test_a_job_that_waits_for_something_else_is_not_stalled(
    load: str, process: str | None, cpu: float, io: float
) -> None:
    """All GPUs idle, the job suspended or ended, a wait for a disk, and other power as before are no stall."""
    assert moved().load(load, process=process, cpu=cpu, io=io).go_on(20 * MINUTE).stall is None


def test_a_rank_that_works_on_its_cpu_is_waited_for() -> None:
    """While one rank compiles or saves a checkpoint, the others wait for it in a collective."""
    ward = moved().load("spin", 0, 1, 2).load("idle", 3, process="R", cpu=1.0)
    assert ward.go_on(20 * MINUTE).stall is None


def test_idle_gpus_with_a_stopped_rank_are_stalled() -> None:
    """If all GPUs are idle, a process that is stopped while others are not proves the stall."""
    ward = moved().load("idle", process="S", cpu=0.0).load("idle", 2, process="T", cpu=0.0)
    verdict = ward.go_on(610).stall
    assert verdict is not None
    assert verdict.reason.endswith("GPU 0, 1, 3: idle, no CPU time. GPU 2: idle, its process is stopped (state T).")


@each_case("ended", [1, 2, 3, 4])
def test_a_job_that_ends_rank_by_rank_is_not_stalled(ended: int) -> None:
    """If all GPUs are idle, one process of four that has ended proves the stall; two or more, a normal end."""
    ward = moved().load("idle", process="S", cpu=0.0).load("idle", *range(ended), process=None)
    assert (ward.go_on(610).stall is not None) == (ended == 1)


def test_a_job_that_never_moved_is_not_stalled() -> None:
    """A job is compared with its own past: at least ten minutes of it."""
    ward = JobWard()
    ward.go_on(8 * MINUTE)
    assert ward.load("spin").go_on(20 * MINUTE).stall is None


def test_a_job_that_waited_longer_before_gets_more_time() -> None:
    """Twice the longest wait after which the job moved again, and ten minutes if it has only one GPU."""
    ward = moved()
    ward.load("spin").go_on(150)
    ward.load("work").go_on(60)
    assert ward.load("spin").go_on(280).stall is None
    assert ward.go_on(40).stall is not None
    alone = moved(gpus=1)
    assert alone.load("spin").go_on(590).stall is None
    assert alone.go_on(20).stall is not None


def test_a_stall_inhibits_the_checks_of_its_gpus_and_is_inhibited_by_a_lost_gpu() -> None:
    """One alert for one cause."""
    ward = moved()
    ward.load("spin").go_on(20 * MINUTE)
    assert {verdict.check for verdict in ward.report.health.primary} == {"job_stalled"}
    assert ward.report.health.open["gpu_spin", ward.report.gpus[0].uuid].inhibited_by == ("job_stalled", JOB)
    (alert,) = ward.report.alerts
    (problem,) = (each for each in problems(ward.report) if each.title.startswith("Job "))
    for text in (alert.action, problem.action):
        assert text.startswith(f"`gpumon explain {JOB.removeprefix('job/')}` on the node")


def test_a_verdict_outlasts_a_restart_of_the_agent() -> None:
    """The past of the job is unknown then: the verdict stays until the job moves."""
    ward = moved()
    ward.load("spin").go_on(200)
    ward.report = replace(ward.report, jobs=replace(ward.report.jobs, paces={}))
    assert ward.go_on(20 * MINUTE).stall is not None
    assert ward.load("work").go_on(90).stall is None


def test_time_in_which_the_host_was_suspended_does_not_count() -> None:
    """The GPUs were not observed meanwhile."""
    ward = moved()
    ward.load("spin").go_on(20)
    ward.pause(300)
    assert ward.go_on(60).stall is None


def test_a_reading_that_fails_does_not_restart_the_wait() -> None:
    """A longer gap does."""
    for gap, stalled in ((10, True), (60, False)):
        ward = moved()
        ward.load("spin").go_on(120)
        ward.gpu(0, power_watts=None)
        ward.go_on(gap)
        assert (ward.load("spin").go_on(180 - gap).stall is not None) == stalled


def test_a_job_in_other_process_namespaces_is_judged_by_its_gpus_only() -> None:
    """In a container, NVML lists no process of the job: an idle GPU proves nothing then."""
    ward = moved()
    ward.processes(contained=True)
    assert ward.load("spin", 0, 1, 2).load("idle", 3, process=None).go_on(20 * MINUTE).stall is None


def test_a_wait_that_ends_with_a_pause_counts_too() -> None:
    """The longest wait is the time from the first still reading to the next motion."""
    ward = moved()
    ward.load("spin").go_on(150)
    ward.load("idle").go_on(20)
    ward.load("work").go_on(60)
    assert ward.load("spin").go_on(320).stall is None


def test_a_job_that_shares_a_gpu_keeps_its_verdict() -> None:
    """It is not evaluated meanwhile; and a stalled job costs the node no point of its score."""
    ward = moved()
    ward.load("spin").go_on(200)
    assert ward.report.health.score == 100.0
    jobs = ward.report.jobs
    other = replace(jobs.allocations[0], owner=Owner(slurm_job_id="4712"))
    ward.report = replace(ward.report, jobs=replace(jobs, allocations=(*jobs.allocations, other), known={"GPU": True}))
    assert ward.go_on(20 * MINUTE).stall is not None


def test_an_ended_job_has_no_verdict() -> None:
    """When the job has ended, its verdict is cleared; a silent source keeps it."""
    ward = moved()
    ward.load("spin").go_on(200)
    jobs = ward.report.jobs
    silent = replace(jobs, allocations=(), suspended={each.key: each for each in jobs.allocations})
    ward.report = replace(ward.report, jobs=silent)
    assert ward.go_on(20 * MINUTE).stall is not None
    ward.report = replace(ward.report, jobs=replace(jobs, allocations=(), known={"GPU": True}))
    assert ward.go_on(20).stall is None


def test_a_threshold_can_be_set_or_be_off() -> None:
    """health.thresholds.min_stall_seconds."""
    ward = moved(min_stall_seconds=60.0)
    assert ward.load("spin").go_on(80).stall is not None
    ward = moved(min_stall_seconds=None)
    assert ward.load("spin").go_on(20 * MINUTE).stall is None
    ward = moved()
    assert ward.load("spin").go_on(200).stall is not None
    ward.terms = replace(ward.terms, policy=replace(ward.terms.policy, thresholds={"min_stall_seconds": None}))
    assert ward.go_on(90).stall is None
