"""Driver releases from the request to the first reading afterwards, with real samplers on a simulated node."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from loops import turn_for
from released_node import EVERY, ReleasedNode
from unkillable import build, held

from gpumon.health.alert import FIRING, RESOLVED
from gpumon.model.gpu import Gpu
from gpumon.model.reading import rows
from gpumon.model.time_window import NODE, in_force
from gpumon.services import driver_release
from gpumon.state.report import Report
from gpumon.supervisor.deadlines import Deadlines

BUS_3 = "00000000:61:00.0"
HANG = "nvmlDeviceGetUtilizationRates"
OTHERS = EVERY - {3}
NOT_REPORTED = "cannot report by file that the release is complete"


@pytest.fixture
def stopped_node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReleasedNode]:
    created = ReleasedNode(tmp_path, deadlines=getattr(request, "param", Deadlines()))
    yield created
    created.stop()


@pytest.fixture
def node(stopped_node: ReleasedNode) -> ReleasedNode:
    stopped_node.start()
    stopped_node.until(lambda: stopped_node.up() == EVERY)
    return stopped_node


def faults_and_alerts(reports: list[Report]) -> list[str]:
    """Return the faults, GPUs that are not up, driver failures and alerts of these Reports."""
    findings = [f"{gpu.index} {gpu.fault}" for report in reports for gpu in report.gpus if gpu.fault or gpu.gpu.up == 0]
    findings += ["nvml_up" for report in reports if report.node.nvml_up == 0]
    return findings + [alert.rule for report in reports for alert in report.alerts if alert.state != RESOLVED]


def reported_fields(gpu: Gpu) -> set[str]:
    """Return the names of the fields that the driver reports for this GPU."""
    named = {name for name, row in rows(Gpu).items() if type(row.source).__name__ != "Agent" and not row.identity}
    return {name for name in named if getattr(gpu, name) is not None}


@pytest.mark.slow
def test_a_node_release_stops_the_sampler_until_its_deadline(node: ReleasedNode) -> None:
    """A released node has no sampler and no readings; a new sampler polls it after the deadline without alerts."""
    (before,) = node.sampler_pids()
    node.reports.clear()
    answer = node.release(4.0)
    assert (answer.refused, answer.holders) == ("", ())
    assert not node.sampler_pids()

    report = node.report
    assert [state.gpu.up for state in report.gpus] == [None] * 8
    assert [state.gpu.released for state in report.gpus] == [1.0] * 8
    assert not any(set((state.gpu.fault or {}).values()) - {0.0} for state in report.gpus)
    assert not any(reported_fields(state.gpu) or state.links for state in report.gpus)
    assert {state.gpu.name for state in report.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert all(state.gpu.observed_seconds_total is not None for state in report.gpus)
    absent = (report.node.nvml_up, report.node.gpus_visible, report.node.gpus_on_pci_bus, report.driver.driver)
    assert absent == (None, None, None, None)
    assert report.node.snapshot_timestamp_seconds is None
    assert report.node.release_end_timestamp_seconds == report.windows[0].deadline.wall
    assert report.node.gpus_expected == 8

    node.until(lambda: node.up() == EVERY)
    assert node.report.node.release_end_timestamp_seconds is None
    assert node.report.node.nvml_up == 1
    assert [state.gpu.released for state in node.report.gpus] == [0.0] * 8
    assert node.sampler_pids().isdisjoint({before})
    node.until(lambda: (node.report.node.sampler_restarts_total or {}).get("release") == 1)
    assert not faults_and_alerts(node.reports)


@pytest.mark.parametrize("stopped_node", [Deadlines(grace=60.0)], indirect=True)
def test_the_driver_is_shut_down_in_order(node: ReleasedNode) -> None:
    """The sampler frees the event set and shuts NVML down before it ends."""
    node.simulate_node_faults(delay={"nvmlShutdown": 1.1})  # the trace is written once a second
    assert node.release(50.0).holders == ()
    assert (node.calls("nvmlEventSetFree"), node.calls("nvmlShutdown")) == (1, 1)


@pytest.mark.parametrize("stopped_node", [Deadlines(grace=0.5)], indirect=True)
def test_a_shutdown_that_hangs_is_ended(node: ReleasedNode) -> None:
    node.simulate_node_faults(hang=["nvmlShutdown"])
    assert node.release(50.0).holders == ()
    assert not node.sampler_pids()
    node.simulate({})
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_a_released_gpu_is_not_opened_and_the_others_are_polled(node: ReleasedNode) -> None:
    """No process opens a released GPU, its faults cause no alert, and it is read again after the release."""
    node.reports.clear()
    answer = node.release(50.0, BUS_3)
    assert answer.holders == ()
    # To open the GPU would hang; the driver does not count it, and the links of its neighbours to it are down.
    down = {"nvlinks": {0: {"state": "down"}}}
    node.simulate({3: {"hang": ["nvmlDevice*"], "uncounted": True}, 4: down})
    node.until(lambda: node.up() == OTHERS)
    node.until(lambda: node.report.node.gpus_visible == 7)
    released = node.gpu(3)
    assert (released.released, released.fault, released.gpu.up, released.gpu.released) == (True, None, None, 1.0)
    assert not reported_fields(released.gpu)
    assert node.report.node.nvml_up == 1
    assert node.report.node.release_end_timestamp_seconds is not None

    node.simulate({})
    node.end(BUS_3)
    node.until(lambda: node.up() == EVERY)
    assert not node.gpu(3).released
    assert not faults_and_alerts(node.reports)
    assert (node.report.node.sampler_restarts_total or {})["deadline"] == 0


def test_a_fault_remains_during_a_release(node: ReleasedNode) -> None:
    """The alert of a released GPU remains active until the GPU answers after the release."""
    node.simulate({3: {"reset_required": True, "lost": True}})
    node.until(lambda: node.gpu(3).fault == "lost")
    node.until(lambda: [alert.rule for alert in node.report.alerts if alert.state == FIRING] == ["GpuLost"])
    node.reports.clear()
    assert not node.release(50.0, BUS_3).holders
    node.simulate({})
    node.until(lambda: len(node.reports) > 10)
    node.end(BUS_3)
    node.until(lambda: node.up() == EVERY)

    states = [next(gpu for gpu in report.gpus if gpu.index == 3) for report in node.reports]
    assert all(state.fault == "lost" for state in states if state.released)
    while_released = [report.alerts for report, state in zip(node.reports, states, strict=True) if state.released]
    assert all([alert.state for alert in alerts] == [FIRING] for alerts in while_released)


@pytest.mark.slow
def test_an_unkillable_sampler_is_named_in_the_answer(node: ReleasedNode, tmp_path: Path) -> None:
    """The answer names the process and its call, and the notice remains until the process has ended."""
    (sampler,) = node.sampler_pids()
    with held(build(tmp_path), sampler):
        node.simulate({5: {"hang": [HANG]}})
        node.until(lambda: node.report.node.nvml_stuck_seconds)
        answer = node.release(50.0)
        (holder,) = answer.holders
        assert (holder.pid, holder.stuck) == (sampler, True)
        assert HANG in holder.description
        assert str(sampler) in (node.driver_release.notice or "")
        assert not node.sampler_pids() - {sampler}
        trial = node.release(40.0, BUS_3)
        assert [entry.pid for entry in trial.holders] == [sampler]
    node.simulate({})
    node.until(lambda: not node.report.inventory.release_holders)
    assert node.driver_release.notice is None
    assert node.release(50.0).holders == ()
    node.end()
    node.until(lambda: node.up() == EVERY)


@pytest.mark.parametrize("stopped_node", [Deadlines(first_trial=0.2)], indirect=True)
def test_a_trial_holds_only_its_own_gpu(node: ReleasedNode) -> None:
    """A trial does not delay the release of another GPU, nor the sampler the release of a quarantined GPU."""
    node.simulate({5: {"hang": [HANG]}})
    node.until(lambda: len(node.samplers.holders(frozenset({NODE}))) == 2)
    sampler, trial = (holder.pid for holder in node.samplers.holders(frozenset({NODE})))
    assert [holder.pid for holder in node.samplers.holders(frozenset({BUS_3}))] == [sampler]
    assert [holder.pid for holder in node.samplers.holders(frozenset({node.gpu(5).bus_id}))] == [trial]
    assert node.release(50.0, node.gpu(5).bus_id).holders == ()


def test_a_stuck_gpu_that_was_released_is_tried_at_once(node: ReleasedNode) -> None:
    """A stuck GPU is tried immediately after its release, because a reset may have repaired it."""
    node.simulate({3: {"hang": [HANG]}})
    node.until(lambda: node.gpu(3).fault == "stuck")
    assert not node.release(30.0, BUS_3).holders
    node.simulate({})
    node.end(BUS_3, by="command")
    node.until(lambda: node.up() == EVERY, 30.0)


def test_a_repeated_release_replaces_the_first_and_ends_on_request(
    node: ReleasedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """A second release of the same scope replaces the first; each start and end is logged once with its requester."""
    with caplog.at_level(logging.INFO, "gpumon"):
        node.release(20.0, by="command")
        node.release(40.0, by="command")
        assert [round(release.seconds) for release in node.releases()] == [40]
        node.release(30.0, BUS_3)
        assert len(node.releases()) == 2
        assert node.driver_release.notice is None
        node.end(NODE)
        node.until(lambda: node.up() == OTHERS)
        node.end(by="command")
        node.until(lambda: node.up() == EVERY)
    records = [record for record in caplog.records if record.getMessage().startswith("release ")]
    assert [(record.getMessage(), record.__dict__["by"], record.__dict__["gpu"][:3]) for record in records] == [
        ("release started: the agent closes the driver", "command", "all"),
        ("release replaced", "command", "all"),
        ("release started: the agent closes the driver", "api", "3 ("),
        ("release ended", "command", "all"),
        ("release ended", "api", "3 ("),
    ]
    assert [record.__dict__["ended_by"] for record in records[3:]] == ["api", "command"]


def test_a_gpu_release_can_extend_to_the_node(node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    """A node release after a GPU release ends the remaining sampler without a warning."""
    assert node.release(50.0, BUS_3).holders == ()
    node.until(lambda: node.up() == OTHERS)
    assert node.release(50.0).holders == ()
    assert not node.sampler_pids()
    assert not caplog.records
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_a_change_of_configuration_starts_no_sampler(node: ReleasedNode) -> None:
    """No replacement of the sampler starts one during a node release."""
    node.release(50.0)
    node.samplers.replace("configuration")
    turn_for(node.loop, 1.0)
    assert not node.sampler_pids()
    assert node.releases()
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_a_release_ends_a_probe_run_and_prevents_others(node: ReleasedNode) -> None:
    """A release kills the ranks before its answer, records the run as skipped, and prevents other runs."""
    began = node.probing.request()
    node.until(began.done)
    assert began.result().accepted
    assert not node.release(50.0, BUS_3).holders
    assert not node.probing.running
    assert [(result.outcome, result.reason) for result in node.results] == [("skipped", "released")]

    refused = node.probing.request()
    node.until(refused.done)
    assert (refused.result().accepted, refused.result().reason) == (False, "released")
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_changes_during_a_release_are_read_afterwards(node: ReleasedNode) -> None:
    """Driver version, GPU count and MIG mode are read again after a release; a vfio-pci GPU is not expected."""
    node.release(50.0)
    node.simulate({7: {"bound": "vfio-pci"}, 2: {"mig": ["3g.40gb"]}}, driver_version="610.43.02")
    node.end()
    node.until(lambda: node.report.node.gpus_visible == 7)

    assert node.up() == EVERY - {7}
    assert node.report.driver.driver == "610.43.02"
    assert {state.index for state in node.report.gpus} == EVERY - {7}
    assert node.report.node.gpus_expected == 7
    assert node.gpu(2).gpu.mig_mode == 1


def test_a_driver_mismatch_is_reported_after_the_release(node: ReleasedNode) -> None:
    """After an upgrade without a module reload nvml_up is 0 with the remedy, until the module is reloaded."""
    node.release(50.0)
    node.simulate({}, driver="mismatch")
    node.end()
    node.until(lambda: node.report.node.nvml_up == 0)
    assert "reload the module or reboot" in node.report.notices["driver"]
    node.simulate({}, driver_version="610.43.02")
    node.until(lambda: node.up() == EVERY)


def test_a_release_continues_after_a_restart_of_the_agent(stopped_node: ReleasedNode) -> None:
    """The first sampler starts only after the stored windows have been read, and not during a node release."""
    stopped_node.start_store()
    stopped_node.until(lambda: stopped_node.report.agent.restored)
    assert stopped_node.release(50.0, by="command").stored
    (stored,) = stopped_node.releases()
    stopped_node.persistence.close()

    again = ReleasedNode(stopped_node.folder)
    again.start()
    again.until(lambda: again.report.agent.restored)
    turn_for(again.loop, 1.0)
    assert not again.sampler_pids()
    assert again.releases() == (stored,)
    again.end()
    again.until(lambda: again.up() == EVERY)
    again.stop()


def test_samplers_start_if_the_store_cannot_be_read(
    stopped_node: ReleasedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_release, "RECALL_SECONDS", 0.1)
    stopped_node.driver_release.start()
    stopped_node.until(lambda: stopped_node.up() == EVERY)
    assert not stopped_node.report.agent.restored


def write_marker(node: ReleasedNode, text: str = "", *, age: float = 0.0) -> None:
    """Replace the marker file by one of this age."""
    written = node.marker.with_suffix(".new")
    written.write_text(text)
    status = written.stat()
    os.utime(written, (status.st_atime, status.st_mtime - age))
    written.rename(node.marker)


def test_the_marker_file_releases_the_node_while_it_exists(node: ReleasedNode) -> None:
    """The marker file ends the sampler and creates the done file; its deletion restarts the sampler."""
    write_marker(node)
    node.until(node.done.exists)
    assert not node.sampler_pids()
    assert [(release.by, release.bus_id) for release in node.releases()] == [("marker", NODE)]

    node.done.unlink()  # as by a script that waits for it
    node.until(node.done.exists)
    node.end()  # only the deletion of the file ends its release
    assert node.releases()
    node.marker.unlink()
    node.until(lambda: node.up() == EVERY)
    assert not node.done.exists()


def test_a_marker_file_can_name_a_gpu_and_a_duration(node: ReleasedNode) -> None:
    """The release ends at the file's modification time plus its duration, even if the file remains."""
    node.reports.clear()
    write_marker(node, "gpu=3 for=50s\n", age=20)
    node.until(node.done.exists)
    (window,) = node.releases()
    assert (window.by, window.bus_id) == ("marker", BUS_3)
    assert window.seconds == pytest.approx(30, abs=5)
    node.until(lambda: node.up() == OTHERS)
    write_marker(node, "for=1s gpu=3")
    node.until(lambda: node.up() == EVERY)
    assert node.marker.exists()
    assert not node.done.exists()
    assert not faults_and_alerts(node.reports)


def test_a_marker_with_a_future_time_is_bounded(stopped_node: ReleasedNode) -> None:
    write_marker(stopped_node, "for=10h", age=-1e6)
    stopped_node.driver_release.follow()
    (window,) = stopped_node.releases()
    assert window.seconds == pytest.approx(stopped_node.max_seconds, abs=1)


BAD_MARKERS: Mapping[str, Callable[[Path], object]] = {
    "a word": lambda path: path.write_text("please"),
    "no duration": lambda path: path.write_text("for=soon"),
    "no time": lambda path: path.write_text("for=0s"),
    "another node's GPU": lambda path: path.write_text("gpu=42"),
    "two GPUs": lambda path: path.write_text("gpu=1 gpu=2"),
    "a long text": lambda path: path.write_text("for=5m" * 1000),
    "no text": lambda path: path.write_bytes(b"\xff\0"),
    "a FIFO": os.mkfifo,
    "a link": lambda path: path.symlink_to("scenario.yml"),
    "a folder": lambda path: path.mkdir(),
}


def test_an_invalid_marker_releases_nothing(node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    """An invalid marker is logged once and is a notice until the file is valid; the GPUs are still polled."""
    (sampler,) = node.sampler_pids()
    for case, create in BAD_MARKERS.items():
        caplog.clear()
        create(node.marker)
        for _ in range(3):
            node.driver_release.follow()
        assert [record.getMessage() for record in caplog.records] == [
            "the marker file is invalid and releases nothing"
        ], case
        assert str(node.marker) in (node.driver_release.notice or "")
        node.marker.rmdir() if node.marker.is_dir() else node.marker.unlink()
        node.driver_release.follow()
        assert node.driver_release.notice is None
    assert not any(in_force(report.windows) for report in node.reports)
    assert node.sampler_pids() == {sampler}
    assert not node.done.exists()


def test_an_expired_marker_releases_nothing(stopped_node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gpumon.release"):
        write_marker(stopped_node, "for=5s", age=6)
        for _ in range(3):
            stopped_node.driver_release.follow()
    assert [record.getMessage() for record in caplog.records] == [
        "the marker file is too old and releases nothing: delete it"
    ]
    assert (stopped_node.releases(), stopped_node.driver_release.notice) == ((), None)


def test_a_marker_from_before_the_start_prevents_the_first_sampler(stopped_node: ReleasedNode) -> None:
    """With a marker at its start the agent starts no sampler; a marker may name a GPU by its address."""
    write_marker(stopped_node)
    stopped_node.start()
    turn_for(stopped_node.loop, 1.0)
    assert not stopped_node.sampler_pids()
    write_marker(stopped_node, f"gpu={BUS_3[4:].lower()}")
    stopped_node.until(lambda: len(stopped_node.up()) == 7)
    stand_in = stopped_node.gpu(3)
    assert (stand_in.uuid, stand_in.released, stand_in.fault) == (f"pci-{BUS_3.lower()}", True, None)
    stopped_node.marker.unlink()
    stopped_node.until(lambda: stopped_node.up() == EVERY)
    assert not faults_and_alerts(stopped_node.reports)


def test_a_done_file_that_cannot_be_created_is_logged(node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    node.done.mkdir()
    write_marker(node)
    node.until(lambda: node.releases() and not node.report.inventory.release_holders)
    node.until(lambda: NOT_REPORTED in caplog.text)
    [record] = (record for record in caplog.records if record.message == NOT_REPORTED)
    assert (record.levelno, vars(record)["path"]) == (logging.WARNING, str(node.done))
    node.done.rmdir()
