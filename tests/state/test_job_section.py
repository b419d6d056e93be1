"""Tests of the section `jobs`: who holds the GPUs, since when, and how much of that time they are idle."""

from __future__ import annotations

from dataclasses import replace

from job_reports import POD, SETTINGS, SLURM, claim, owners
from reduced_reports import gpu_reading, healthy, reduce_all, snapshot, xid79_verdict
from sample_events import error_event

from gpumon.cli.jobs import table
from gpumon.health.verdict import HELD_BY
from gpumon.model.allocation import KINDS, HolderProcess, Owner
from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import HostSnapshot
from gpumon.outputs.problems import current_reason
from gpumon.outputs.responses.jobs import CONTRADICTED, JobsResponse
from gpumon.outputs.responses.report import EventResponse
from gpumon.state.messages import StoredState, Tick
from gpumon.state.report import Report
from gpumon.state.sections import samples


def polled(report: Report, at: float, pids: tuple[int, ...] = (), **values: object) -> Report:
    """Return the Report after a poll of GPU 0, with these processes on it."""
    reading = gpu_reading(0, pids=pids, pids_at=at, **values)
    gpu = replace(reading.gpu, processes=float(len(pids)))  # type: ignore[type-var]
    return reduce_all(snapshot(replace(reading, gpu=gpu), at=at), at=at, report=report, terms=SETTINGS)


def held(report: Report) -> dict[str, list[tuple[str, str]]]:
    """Return (source, key of the owner) of each allocation in force, by uuid."""
    result: dict[str, list[tuple[str, str]]] = {}
    for each in report.jobs.allocations:
        result.setdefault(each.uuid, []).append((each.source, each.owner.key))
    return result


def test_the_key_of_an_owner_begins_with_its_kind() -> None:
    owners_of_each_kind = [
        *(Owner(**{name: "x"}) for name in ("slurm_job_id", "pod_uid", "container_id", "systemd_unit", "user")),
        POD,
    ]
    assert {each.key.partition("/")[0] for each in owners_of_each_kind} == set(KINDS)


def test_a_mapping_file_takes_precedence_over_the_kubelet_and_processes() -> None:
    """Of several sources, the first one in the order mapping, kubelet, process names the owners of a GPU."""
    report = polled(healthy(), 105.0, (7,))
    processes = {"7": HolderProcess(owner=Owner(systemd_unit="x.service"), state="S")}
    report = owners(report, mapped=(claim(SLURM, "GPU-0"),), pods=(claim(POD, "GPU-0", "GPU-1"),), processes=processes)
    assert held(report) == {"GPU-0": [("mapping", "slurm/4711")], "GPU-1": [("kubelet", "pod/ml/train-0")]}


def test_the_cgroup_of_a_process_names_the_owner_without_another_source() -> None:
    """If neither mapping files nor the kubelet name an owner, the processes on the GPU do."""
    report = polled(healthy(), 105.0, (7,))
    report = owners(report, processes={"7": HolderProcess(owner=SLURM, state="R")})
    assert held(report) == {"GPU-0": [("process", "slurm/4711")]}
    assert report.jobs.known == {"GPU-0": True, "GPU-1": False, "GPU-2": False}


def test_an_unknown_device_is_shown_and_given_to_no_gpu() -> None:
    """A device in a claim that is no GPU of the node is listed as unresolved, and may be any GPU without an owner."""
    report = owners(healthy(), pods=(claim(POD, "GPU-9", "GPU-1"),))
    assert (held(report), report.jobs.unresolved) == ({"GPU-1": [("kubelet", "pod/ml/train-0")]}, ("GPU-9",))
    assert not any(report.jobs.known.values())


def test_a_gpu_is_not_free_beside_a_source_that_is_silent() -> None:
    """A kubelet that may not be read, or never answered, may have given it to a pod."""
    report = owners(polled(healthy(), 105.0), mapped=())
    assert JobsResponse.from_report(report).free == [0, 1, 2]
    report = owners(report, mapped=(), silent=True)
    assert JobsResponse.from_report(report).unknown == [0, 1, 2]


def test_a_gpu_has_a_set_of_owners() -> None:
    """Several pods that share a GPU are all its owners. Four of them, those held longest, are exported."""
    pods = tuple(claim(replace(POD, pod_name=f"p{n}"), "GPU-0", since=90.0 - n) for n in range(6))
    report = owners(healthy(), pods=pods)
    assert sorted(key for _, key in held(report)["GPU-0"]) == [f"pod/ml/p{n}" for n in range(6)]
    exported = {dict(each.labels)["pod_name"] for each in samples(report) if each.name == "gpumon_gpu_allocation_info"}
    assert exported == {"p2", "p3", "p4", "p5"}


def test_the_owners_of_a_node_that_are_exported_are_limited() -> None:
    """To 64 in all."""
    jobs = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),)).jobs
    spread = tuple(replace(jobs.allocations[0], uuid=f"GPU-{n}") for n in range(80))
    assert len(replace(jobs, allocations=spread).exported) == 64


def test_a_silent_source_frees_no_gpu() -> None:
    """An allocation whose source does not answer is neither in force nor ended, and continues if the source answers."""
    first = owners(healthy(), mapped=(claim(SLURM, "GPU-0", since=1e9),))
    silent = owners(first, at=120.0)
    assert (held(silent), [each.owner.key for each in silent.jobs.of_gpu("GPU-0")]) == ({}, ["slurm/4711"])
    document = JobsResponse.from_report(silent).document()
    assert (document["free"], document["unknown"], document["jobs"][0]["allocations"][0]["confirmed"]) == (
        [],
        [1, 2],
        False,
    )
    again = owners(silent, at=130.0, mapped=(claim(SLURM, "GPU-0"),))
    assert [each.began.wall for each in again.jobs.allocations] == [1e9]
    ended = owners(silent, at=130.0, mapped=())
    assert (ended.jobs.of_gpu("GPU-0"), [each.ended for each in ended.jobs.ended]) == ((), [True])


def test_an_allocation_continues_after_a_restart_of_the_agent() -> None:
    """A stored allocation of this boot goes on when its source names it again; one of another boot does not."""
    before = owners(healthy(), mapped=(claim(SLURM, "GPU-0"), claim(POD, "GPU-1")))
    stored = tuple(replace(each, held_seconds=50.0) for each in before.jobs.allocations)
    other = replace(stored[1], began=stored[1].began._replace(boot_id="other"))
    report = reduce_all(StoredState(allocations=(stored[0], other)), report=healthy(), terms=SETTINGS)
    report = owners(report, at=300.0, mapped=(claim(SLURM, "GPU-0"), claim(POD, "GPU-1")))
    assert [each.held_seconds for each in report.jobs.allocations] == [50.0, 0.0]


def test_an_allocation_does_not_end_before_its_gpu_is_read() -> None:
    """After a start of the agent, a source that names a GPU which was not read yet frees no GPU."""
    stored = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),)).jobs.allocations
    report = reduce_all(StoredState(allocations=stored), terms=SETTINGS)
    report = owners(report, mapped=())
    assert [each.owner for each in report.jobs.of_gpu("GPU-0")] == [SLURM]


def test_a_reader_that_hangs_frees_no_gpu() -> None:
    """While the reader is quarantined, nothing is in force and nothing has ended."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),))
    report = reduce_all(HostSnapshot(ended_at=120.0, values={"owners": None}), at=120.0, report=report, terms=SETTINGS)
    assert (report.jobs.allocations, len(report.jobs.suspended), report.jobs.ended) == ((), 1, ())


def test_the_time_of_an_owner_has_levels() -> None:
    """The observed time of an allocation counts as idle without a process, without a kernel, or cold."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),))
    report = reduce_all(Tick(), at=110.0, report=report, terms=SETTINGS)
    cold = {"power_watts": 100.0, "power_limit_watts": 700.0, "dram_active_ratio": 0.0}
    steps: tuple[tuple[tuple[int, ...], dict[str, object], dict[str, float]], ...] = (
        ((), {"increments": {"busy_seconds_total": 0.0}}, {}),
        ((7,), {"increments": {"busy_seconds_total": 0.0}}, {}),
        ((7,), {}, cold),
        ((7,), {}, {**cold, "power_watts": 600.0}),
    )
    for n, (pids, values, readings) in enumerate(steps):
        at = 111.0 + n
        base = gpu_reading(0)
        assert base.gpu is not None
        report = polled(report, at, pids, gpu=replace(base.gpu, **readings), **values)  # type: ignore[arg-type]
        report = reduce_all(Tick(), at=at, report=report, terms=SETTINGS)
    (allocation,) = report.jobs.allocations
    seconds = (allocation.no_process_seconds, allocation.no_kernel_seconds, allocation.cold_seconds)
    assert (*seconds, allocation.held_seconds, allocation.busy_seconds) == (1.0, 1.0, 1.0, 4.0, 1.0)
    exported = {(each.name, *dict(each.labels).values()): each.value for each in samples(report)}
    assert exported["gpumon_gpu_allocated_seconds_total", "0", "GPU-0"] == 4.0
    assert exported["gpumon_gpu_idle_seconds_total", "0", "GPU-0", "cold"] == 1.0
    assert exported["gpumon_gpu_allocated_seconds_total", "1", "GPU-1"] == 0.0


def test_owners_share_the_time_of_a_gpu() -> None:
    """Each of two owners of a GPU gets half of its time, and the GPU's own counters the whole."""
    report = owners(healthy(), pods=tuple(claim(replace(POD, pod_name=name), "GPU-0") for name in ("a", "b")))
    report = reduce_all(Tick(), at=110.0, report=report, terms=SETTINGS)
    report = reduce_all(Tick(), at=112.0, report=polled(polled(report, 111.0), 112.0), terms=SETTINGS)
    assert [each.held_seconds for each in report.jobs.allocations] == [1.0, 1.0]
    assert report.jobs.uses["GPU-0"].allocated_seconds_total == 2.0


def test_a_stranger_on_a_given_gpu_is_a_conflict() -> None:
    """A process that belongs to none of those to whom the GPU was given is shown, and changes no owner."""
    report = polled(healthy(), 105.0, (7, 8))
    processes = {
        "7": HolderProcess(owner=SLURM, state="R"),
        "8": HolderProcess(owner=Owner(container_id="c" * 64, user="mallory"), state="R"),
    }
    report = owners(report, mapped=(claim(SLURM, "GPU-0"),), processes=processes)
    assert held(report) == {"GPU-0": [("mapping", "slurm/4711")]}
    assert list(report.jobs.conflicts) == ["GPU-0"]
    service = HolderProcess(owner=Owner(systemd_unit="mps.service", user="root"), state="S")
    served = owners(report, at=110.5, mapped=(claim(SLURM, "GPU-0"),), processes={"7": service})
    assert not served.jobs.conflicts, "a service of root may work for the owner"
    pods = owners(report, at=111.0, pods=(claim(POD, "GPU-0"),), processes={"7": HolderProcess(owner=POD, state="R")})
    assert list(pods.jobs.conflicts) == ["GPU-0"], "the kubelet's pod has a cgroup with the uid of a pod"


def test_two_sources_that_disagree_are_a_conflict() -> None:
    """The owners are those of the first source; readers who may not know names get none."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),), pods=(claim(POD, "GPU-0"), claim(POD, "GPU-1")))
    assert held(report) == {"GPU-0": [("mapping", "slurm/4711")], "GPU-1": [("kubelet", POD.key)]}
    text = f"given to slurm/4711 (mapping), but also to {POD.key} (kubelet)"
    assert report.jobs.conflicts == {"GPU-0": text}
    assert JobsResponse.from_report(report).conflicts == {"GPU-0": CONTRADICTED}
    assert f"GPU 0: {text}." in table(JobsResponse.from_report(report, everything=True).document())


def test_allocations_that_end_together_are_all_kept_until_others_end() -> None:
    """So that each is stored as ended, however many owners shared the GPUs."""
    many = tuple(claim(Owner(slurm_job_id=str(number)), "GPU-0") for number in range(200))
    report = owners(owners(healthy(), mapped=many), at=120.0, mapped=())
    assert (len(report.jobs.ended), report.jobs.allocations) == (200, ())
    named = owners(healthy(), mapped=many).jobs.named_holders(0.0)
    assert named == {"GPU-0": "slurm/0, slurm/1, slurm/10, slurm/100, 196 more"}


def test_a_name_is_public_only_if_it_is_configured() -> None:
    """/metrics, and the API for a client without credentials, have only the names in jobs.labels."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"), claim(Owner(user="alice"), "GPU-1")))
    labels = [dict(each.labels) for each in samples(report) if each.name == "gpumon_gpu_allocation_info"]
    assert [(each["slurm_job_id"], each["user"], each["account"]) for each in labels] == [("4711", "", ""), ("",) * 3]
    public, everything = (
        JobsResponse.from_report(report, everything=every).model_dump_json() for every in (False, True)
    )
    assert ("alice" in public, "physics" in public, "4711" in public) == (False, False, True)
    assert ("alice" in everything, "physics" in everything) == (True, True)


def test_alerts_and_events_name_who_held_the_gpu() -> None:
    """The text of an alert and each event have the owners of the GPU at that time, by their public names."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0", since=1e9),))
    verdict = xid79_verdict("GPU-0")._replace(evidence={"xid": 79.0, HELD_BY: "slurm/4711"})
    report = replace(report, health=replace(report.health, open={verdict.key: verdict}))
    assert [each.description.rpartition(". ")[2] for each in report.alerts] == ["The GPU was held by slurm/4711."]
    (info,) = [dict(each.labels) for each in samples(report) if each.name == "gpumon_health_check_info"]
    assert info["reason"].endswith("The GPU was held by slurm/4711.")
    assert current_reason(verdict, report).endswith("The GPU was held by slurm/4711.")
    for reason, ends in (("slurm/4711 is idle.", "idle."), ("slurm/47111 is idle.", "held by slurm/4711.")):
        assert current_reason(verdict._replace(reason=reason), report).endswith(ends)
    times: dict[float, list[str]] = {1e9 - 5.0: [], 1e9 + 50.0: ["slurm/4711"], 1e9 + 110.0 + 60.0: []}
    for wall, holders in times.items():
        burst = error_event(1, uuid="GPU-0", last_wall=wall)
        assert EventResponse.from_burst(burst, report).owners == holders, wall


def test_the_motion_of_a_gpu_that_cannot_be_read_is_unknown() -> None:
    """Not the last one: neither in the API nor on /metrics."""
    report = owners(healthy(), mapped=(claim(SLURM, "GPU-0"),))
    working = Gpu(utilization_ratio=0.9, power_watts=500.0, memory_utilization_ratio=0.4)
    shown = []
    for at, gpu in ((111.0, working), (112.0, replace(working, power_watts=None))):
        report = reduce_all(snapshot(gpu_reading(0, gpu=gpu), at=at), Tick(), at=at, report=report, terms=SETTINGS)
        (job,) = JobsResponse.from_report(report).document()["jobs"]
        ratios = [each.value for each in samples(report) if each.name == "gpumon_job_moving_ratio"]
        shown.append((job["allocations"][0]["motion"], ratios))
    assert shown == [("moving", [1.0]), (None, [])]
