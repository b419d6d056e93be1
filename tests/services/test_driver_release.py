"""A release from the asking to the first reading after it, with real samplers on a simulated node."""

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
from gpumon.supervisor.deadlines import SamplerDeadlines

BUS_3 = "00000000:61:00.0"
HANG = "nvmlDeviceGetUtilizationRates"
OTHERS = EVERY - {3}
NOT_REPORTED = "cannot report by file that the release is complete"


@pytest.fixture
def fresh(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ReleasedNode]:
    one = ReleasedNode(tmp_path, deadlines=getattr(request, "param", SamplerDeadlines()))
    yield one
    one.stop()


@pytest.fixture
def node(fresh: ReleasedNode) -> ReleasedNode:
    fresh.start()
    fresh.until(lambda: fresh.up() == EVERY)
    return fresh


def wrong(reports: list[Report]) -> list[str]:
    """Everything that these Reports say is wrong: faults, GPUs that are not up, a driver that is down, alerts."""
    found = [f"{gpu.index} {gpu.fault}" for report in reports for gpu in report.gpus if gpu.fault or gpu.gpu.up == 0]
    found += ["nvml_up" for report in reports if report.node.nvml_up == 0]
    return found + [alert.rule for report in reports for alert in report.alerts if alert.state != RESOLVED]


def readings(gpu: Gpu) -> set[str]:
    """Rows that the driver gives and this GPU has."""
    named = {name for name, row in rows(Gpu).items() if type(row.source).__name__ != "Agent" and not row.identity}
    return {name for name in named if getattr(gpu, name) is not None}


@pytest.mark.slow
def test_a_released_node_has_no_sampler_and_ends_by_itself(node: ReleasedNode) -> None:
    """When the answer comes the sampler is gone; in time a fresh one reads, and at no moment anything was wrong."""
    (before,) = node.samplers_now()
    node.reports.clear()
    answer = node.release(4.0)
    assert (answer.refused, answer.holders) == ("", ())
    assert not node.samplers_now()

    report = node.report
    assert [state.gpu.up for state in report.gpus] == [None] * 8
    assert [state.gpu.released for state in report.gpus] == [1.0] * 8
    assert not any(set((state.gpu.fault or {}).values()) - {0.0} for state in report.gpus)
    assert not any(readings(state.gpu) or state.links for state in report.gpus)
    assert {state.gpu.name for state in report.gpus} == {"NVIDIA H100 80GB HBM3"}
    assert all(state.gpu.observed_seconds_total is not None for state in report.gpus)
    absent = (report.node.nvml_up, report.node.gpus_visible, report.node.gpus_on_pci_bus, report.driver.driver)
    assert absent == (None, None, None, None)
    assert report.node.snapshot_timestamp_seconds is None
    assert report.node.release_end_timestamp_seconds == report.windows[0].until
    assert report.node.gpus_expected == 8

    node.until(lambda: node.up() == EVERY)
    assert node.report.node.release_end_timestamp_seconds is None
    assert node.report.node.nvml_up == 1
    assert [state.gpu.released for state in node.report.gpus] == [0.0] * 8
    assert node.samplers_now().isdisjoint({before})
    node.until(lambda: (node.report.node.sampler_restarts_total or {}).get("release") == 1)
    assert not wrong(node.reports)


@pytest.mark.parametrize("fresh", [SamplerDeadlines(grace=60.0)], indirect=True)
def test_the_driver_is_shut_down_in_order(node: ReleasedNode) -> None:
    """The event set is freed and NVML shut down before the sampler ends."""
    node.suffer(delay={"nvmlShutdown": 1.1})  # the trace is written once a second
    assert node.release(50.0).holders == ()
    assert (node.calls("nvmlEventSetFree"), node.calls("nvmlShutdown")) == (1, 1)


@pytest.mark.parametrize("fresh", [SamplerDeadlines(grace=0.5)], indirect=True)
def test_a_shutdown_that_hangs_is_ended(node: ReleasedNode) -> None:
    """By SIGKILL, after a while."""
    node.suffer(hang=["nvmlShutdown"])
    assert node.release(50.0).holders == ()
    assert not node.samplers_now()
    node.simulate({})
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_one_released_gpu_is_left_alone_and_the_others_go_on(node: ReleasedNode) -> None:
    """No process opens it, its faults cause neither a hang nor an alert, and it is read again after the release."""
    node.reports.clear()
    answer = node.release(50.0, BUS_3)
    assert answer.holders == ()
    # Opening it would hang; the driver no longer counts it, and its neighbours' links to it are down.
    down = {"nvlinks": {0: {"state": "down"}}}
    node.simulate({3: {"hang": ["nvmlDevice*"], "uncounted": True}, 4: down})
    node.until(lambda: node.up() == OTHERS)
    node.until(lambda: node.report.node.gpus_visible == 7)
    released = node.gpu(3)
    assert (released.released, released.fault, released.gpu.up, released.gpu.released) == (True, None, None, 1.0)
    assert not readings(released.gpu)
    assert node.report.node.nvml_up == 1
    assert node.report.node.release_end_timestamp_seconds is not None

    node.simulate({})
    node.end(BUS_3)
    node.until(lambda: node.up() == EVERY)
    assert not node.gpu(3).released
    assert not wrong(node.reports)
    assert (node.report.node.sampler_restarts_total or {})["deadline"] == 0


def test_a_fault_from_before_stays_with_a_released_gpu(node: ReleasedNode) -> None:
    """Its alert does not resolve because the repair has begun, but because the GPU answers."""
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
    while_released = [report.alerts for report, one in zip(node.reports, states, strict=True) if one.released]
    assert all([alert.state for alert in alerts] == [FIRING] for alerts in while_released)


@pytest.mark.slow
def test_what_sigkill_does_not_end_is_named(node: ReleasedNode, tmp_path: Path) -> None:
    """The answer names the process and its call; the release stays active until the process has ended."""
    (sampler,) = node.samplers_now()
    with held(build(tmp_path), sampler):
        node.simulate({5: {"hang": [HANG]}})
        node.until(lambda: node.report.node.nvml_stuck_seconds)
        answer = node.release(50.0)
        (holder,) = answer.holders
        assert (holder.pid, holder.stuck) == (sampler, True)
        assert HANG in holder.description
        assert str(sampler) in (node.driver_release.notice or "")
        assert not node.samplers_now() - {sampler}
        trial = node.release(40.0, BUS_3)
        assert [one.pid for one in trial.holders] == [sampler]
    node.simulate({})
    node.until(lambda: not node.report.release_holders)
    assert node.driver_release.notice is None
    assert node.release(50.0).holders == ()
    node.end()
    node.until(lambda: node.up() == EVERY)


@pytest.mark.parametrize("fresh", [SamplerDeadlines(first_trial=0.2)], indirect=True)
def test_a_trial_holds_only_its_own_gpu(node: ReleasedNode) -> None:
    """A trial does not delay the release of another GPU, nor the sampler that of a quarantined GPU."""
    node.simulate({5: {"hang": [HANG]}})
    node.until(lambda: len(node.samplers.holders(frozenset({NODE}))) == 2)
    sampler, trial = (holder.pid for holder in node.samplers.holders(frozenset({NODE})))
    assert [holder.pid for holder in node.samplers.holders(frozenset({BUS_3}))] == [sampler]
    assert [holder.pid for holder in node.samplers.holders(frozenset({node.gpu(5).bus_id}))] == [trial]
    assert node.release(50.0, node.gpu(5).bus_id).holders == ()


def test_a_stuck_gpu_that_was_released_is_tried_at_once(node: ReleasedNode) -> None:
    """A reset may have repaired it, so the scheduled trial is not awaited."""
    node.simulate({3: {"hang": [HANG]}})
    node.until(lambda: node.gpu(3).fault == "stuck")
    assert not node.release(30.0, BUS_3).holders
    node.simulate({})
    node.end(BUS_3, by="command")
    node.until(lambda: node.up() == EVERY, 30.0)


def test_a_release_is_bounded(fresh: ReleasedNode) -> None:
    """Longer than is allowed, or no time at all, is refused with the setting that bounds it, and changes nothing."""
    for seconds in (0.0, -1.0, 61.0, float("inf"), float("nan")):
        answer = fresh.release(seconds)
        assert "release.max_seconds, which is 60" in answer.refused
        assert answer.remedy
    assert not fresh.releases()


def test_asked_again_a_release_begins_anew_and_ends_at_once_when_told_to(
    node: ReleasedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """One window a GPU and one of the node; each beginning and end is logged once, with who asked."""
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


def test_a_release_may_grow(node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    """From one GPU to the node: the sampler that went on for the others is no trouble while it ends."""
    assert node.release(50.0, BUS_3).holders == ()
    node.until(lambda: node.up() == OTHERS)
    assert node.release(50.0).holders == ()
    assert not node.samplers_now()
    assert not caplog.records
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_a_change_of_configuration_starts_no_sampler(node: ReleasedNode) -> None:
    """Nor does anything else that replaces it."""
    node.release(50.0)
    node.samplers.replace("configuration")
    turn_for(node.loop, 1.0)
    assert not node.samplers_now()
    assert node.releases()
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_a_probe_gives_way_and_none_begins(node: ReleasedNode) -> None:
    """The ranks are killed before the answer comes; the run is on record as skipped for maintenance."""
    began = node.probing.request()
    node.until(began.done)
    assert began.result().accepted
    assert not node.release(50.0, BUS_3).holders
    assert not node.probing.running
    assert [(one.outcome, one.reason) for one in node.kept] == [("skipped", "released")]

    refused = node.probing.request()
    node.until(refused.done)
    assert (refused.result().accepted, refused.result().reason) == (False, "released")
    node.end()
    node.until(lambda: node.up() == EVERY)


def test_another_driver_and_a_gpu_given_away_are_taken_up(node: ReleasedNode) -> None:
    """What was changed in the window is read afresh: version, number of GPUs, MIG; a GPU of vfio-pci is not missed."""
    node.release(50.0)
    node.simulate({7: {"bound": "vfio-pci"}, 2: {"mig": ["3g.40gb"]}}, driver_version="610.43.02")
    node.end()
    node.until(lambda: node.report.node.gpus_visible == 7)

    assert node.up() == EVERY - {7}
    assert node.report.driver.driver == "610.43.02"
    assert {state.index for state in node.report.gpus} == EVERY - {7}
    assert node.report.node.gpus_expected == 7
    assert node.gpu(2).gpu.mig_mode == 1


def test_a_library_that_no_longer_fits_is_told_after_the_release(node: ReleasedNode) -> None:
    """Upgraded without a reload of the module: nvml_up is 0 with the remedy; reloaded, everything is read."""
    node.release(50.0)
    node.simulate({}, driver="mismatch")
    node.end()
    node.until(lambda: node.report.node.nvml_up == 0)
    assert "reload the module or reboot" in node.report.notices["driver"]
    node.simulate({}, driver_version="610.43.02")
    node.until(lambda: node.up() == EVERY)


def test_a_release_continues_after_a_restart_of_the_agent(fresh: ReleasedNode) -> None:
    """The first sampler starts when the stored windows have been read, and a whole-node release starts none."""
    fresh.start_store()
    fresh.until(lambda: fresh.report.internal.restored)
    assert fresh.release(50.0, by="command").stored
    (stored,) = fresh.releases()
    fresh.persistence.close()

    again = ReleasedNode(fresh.folder)
    again.start()
    again.until(lambda: again.report.internal.restored)
    turn_for(again.loop, 1.0)
    assert not again.samplers_now()
    assert again.releases() == (stored,)
    again.end()
    again.until(lambda: again.up() == EVERY)
    again.stop()


def test_samplers_start_without_a_store_that_can_be_read(fresh: ReleasedNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPUs do not stay unobserved because a disk hangs."""
    monkeypatch.setattr(driver_release, "RECALL_SECONDS", 0.1)
    fresh.driver_release.start()
    fresh.until(lambda: fresh.up() == EVERY)
    assert not fresh.report.internal.restored


def touched(node: ReleasedNode, text: str = "", *, age: float = 0.0) -> None:
    """Write the marker whole, so old."""
    written = node.marker.with_suffix(".new")
    written.write_text(text)
    about = written.stat()
    os.utime(written, (about.st_atime, about.st_mtime - age))
    written.rename(node.marker)


def test_the_marker_file_releases_while_it_is_there(node: ReleasedNode) -> None:
    """Creating it ends the sampler and creates the done file; deleting it restarts the sampler."""
    touched(node)
    node.until(node.done.exists)
    assert not node.samplers_now()
    assert [(release.by, release.bus_id) for release in node.releases()] == [("marker", NODE)]

    node.done.unlink()  # by a script that means to wait for it
    node.until(node.done.exists)
    node.end()  # it is the file's to end
    assert node.releases()
    node.marker.unlink()
    node.until(lambda: node.up() == EVERY)
    assert not node.done.exists()


def test_the_marker_file_names_a_gpu_and_a_time(node: ReleasedNode) -> None:
    """Its age counts from the last modification; the release ends at its deadline even if the file remains."""
    node.reports.clear()
    touched(node, "gpu=3 for=50s\n", age=20)
    node.until(node.done.exists)
    (window,) = node.releases()
    assert (window.by, window.bus_id) == ("marker", BUS_3)
    assert window.seconds == pytest.approx(30, abs=5)
    node.until(lambda: node.up() == OTHERS)
    touched(node, "for=1s gpu=3")
    node.until(lambda: node.up() == EVERY)
    assert node.marker.exists()
    assert not node.done.exists()
    assert not wrong(node.reports)


def test_a_marker_of_a_clock_ahead_is_bounded_all_the_same(fresh: ReleasedNode) -> None:
    """A time of writing that is still to come counts as now, and no longer than is allowed."""
    touched(fresh, "for=10h", age=-1e6)
    fresh.driver_release.follow()
    (window,) = fresh.releases()
    assert window.seconds == pytest.approx(fresh.max_seconds, abs=1)


BAD_MARKERS: Mapping[str, Callable[[Path], object]] = {
    "a word": lambda path: path.write_text("please"),
    "no duration": lambda path: path.write_text("for=soon"),
    "no time": lambda path: path.write_text("for=0s"),
    "another node's GPU": lambda path: path.write_text("gpu=42"),
    "two GPUs": lambda path: path.write_text("gpu=1 gpu=2"),
    "a book": lambda path: path.write_text("for=5m" * 1000),
    "no text": lambda path: path.write_bytes(b"\xff\0"),
    "a FIFO": os.mkfifo,
    "a link": lambda path: path.symlink_to("scenario.yml"),
    "a folder": lambda path: path.mkdir(),
}


def test_a_marker_that_cannot_be_understood_releases_nothing(
    node: ReleasedNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The GPUs are still read; the error is logged once, and is a notice until the file is valid."""
    (sampler,) = node.samplers_now()
    for what, make in BAD_MARKERS.items():
        caplog.clear()
        make(node.marker)
        for _ in range(3):
            node.driver_release.follow()
        assert [record.getMessage() for record in caplog.records] == ["the marker file is invalid and releases nothing"], what
        assert str(node.marker) in (node.driver_release.notice or "")
        node.marker.rmdir() if node.marker.is_dir() else node.marker.unlink()
        node.driver_release.follow()
        assert node.driver_release.notice is None
    assert not any(in_force(report.windows) for report in node.reports)
    assert node.samplers_now() == {sampler}
    assert not node.done.exists()


def test_a_marker_that_is_too_old_does_not_count(fresh: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    """A file that a killed script left is logged with the advice to delete it, and releases nothing."""
    with caplog.at_level(logging.INFO, "gpumon.release"):
        touched(fresh, "for=5s", age=6)
        for _ in range(3):
            fresh.driver_release.follow()
    assert [record.getMessage() for record in caplog.records] == [
        "the marker file is too old and releases nothing: delete it"
    ]
    assert (fresh.releases(), fresh.driver_release.notice) == ((), None)


def test_a_marker_from_before_the_start_keeps_the_agent_off(fresh: ReleasedNode) -> None:
    """A driver is being installed when the agent starts: not even the first sampler is. A GPU is named by address."""
    touched(fresh)
    fresh.start()
    turn_for(fresh.loop, 1.0)
    assert not fresh.samplers_now()
    touched(fresh, f"gpu={BUS_3[4:].lower()}")
    fresh.until(lambda: len(fresh.up()) == 7)
    stand_in = fresh.gpu(3)
    assert (stand_in.uuid, stand_in.released, stand_in.fault) == (f"pci-{BUS_3.lower()}", True, None)
    fresh.marker.unlink()
    fresh.until(lambda: fresh.up() == EVERY)
    assert not wrong(fresh.reports)


def test_who_may_not_be_told_is_logged(node: ReleasedNode, caplog: pytest.LogCaptureFixture) -> None:
    """If the done file cannot be created, the log shows why."""
    node.done.mkdir()
    touched(node)
    node.until(lambda: node.releases() and not node.report.release_holders)
    node.until(lambda: NOT_REPORTED in caplog.text)
    [record] = (record for record in caplog.records if record.message == NOT_REPORTED)
    assert (record.levelno, vars(record)["path"]) == (logging.WARNING, str(node.done))
    node.done.rmdir()
