"""Text for the terminal: what is wrong first, no line too long, nothing that steers the terminal."""

from __future__ import annotations

import json
from dataclasses import replace

import example_node as example
import example_parts
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_reports import report_document

from gpumon.health.node_health import Health
from gpumon.health.products import Basis, Expectation
from gpumon.model.error_event import SXID
from gpumon.model.gpu import Gpu
from gpumon.outputs import terminal
from gpumon.outputs.terminal import _probe_lines
from gpumon.probe.core.state import ProbeState
from gpumon.state.report import Report

ALL = {
    "healthy": samples.healthy(),
    "troubled": samples.troubled_node(),
    "without_driver": samples.without_driver(),
    "partitioned": samples.partitioned_node(),
    "grace": samples.grace(),
    "disconnected": samples.disconnected_node(),
    "excluding": samples.excluding(3),
    "without_gpus": samples.without_gpus(),
    "before_any_run": samples.before_any_run(samples.healthy()),
}


def status(report: Report, width: int = 100) -> str:
    return terminal.status(report_document(report), width, color=False)


def table(report: Report, width: int = 100) -> str:
    return terminal.table(report_document(report), width, color=False)


def test_status_begins_with_the_problems() -> None:
    """The problems come before the table of GPUs, each with its action and runbook."""
    text = status(samples.lost(3))
    problem, action, runbook, rest = (
        text.index(word) for word in ("GPU 3: The GPU fell", "Do: ", "Runbook: gpumon runbook GpuLost", "GPU  NAME")
    )
    assert problem < action < runbook < rest
    assert "7 of 8 GPUs up" in text


def test_status_of_a_healthy_node() -> None:
    """It states that there are no problems."""
    assert "No problems." in status(samples.healthy())


def test_status_shows_missing_gpus_before_the_verdict() -> None:
    """After a boot it shows how many GPUs are missing; a missing GPU of the inventory is named."""
    whole = samples.healthy()
    seven = changed(whole, gpus=whole.gpus[:7], node=replace(whole.node, gpus_visible=7.0))
    seven = changed(seven, expectation=Expectation(count=8, basis=Basis.PRODUCT))
    assert "1 expected GPU not reported by the driver" in status(seven)
    assert "The driver counts 7; 8 are expected, as on other hosts with this product." in status(seven)
    assert "No problems." not in status(seven)
    named = changed(seven, gpus=samples.with_fault(whole, 7, "missing", "not listed").gpus)
    assert "that should be here" not in status(named)


def test_status_is_unknown_before_the_first_evaluation() -> None:
    """An agent that has just started does not report that there are no problems."""
    started = replace(samples.healthy(), health=Health())
    known = report_document(started)
    assert (known["node"]["state"], known["health"]["level"]) == ("unknown", "unknown")
    assert "Unknown: no check has run since the agent started." in status(started)
    assert "No problems." not in status(started)
    lost = replace(samples.lost(3), health=replace(samples.lost(3).health, evaluated=None))
    assert report_document(lost)["node"]["state"] == "critical"
    assert "1 problem." in status(lost)


def test_first_line_names_a_simulated_node() -> None:
    """Simulated GPUs cannot be mistaken for real ones."""
    assert "SIMULATED h100x8" in status(samples.simulated_report()).splitlines()[0]
    assert "SIMULATED h100x8" in table(samples.simulated_report()).splitlines()[0]


def test_missing_driver_is_named() -> None:
    assert "libnvidia-ml.so.1" in status(samples.without_driver())
    assert "libnvidia-ml.so.1" in table(samples.without_driver())


def test_absent_reading_is_not_a_zero() -> None:
    """A GPU without a utilization reading is not idle."""
    report = samples.healthy(1)
    bare = changed(report, gpus=(replace(report.gpus[0], gpu=Gpu(name="A GPU", up=1.0)),))
    (line,) = [line for line in table(bare).splitlines() if "A GPU" in line]
    assert "n/a" in line
    assert "0 %" not in line


def test_stuck_gpu_has_its_line() -> None:
    lines = [line for line in table(samples.stuck(5)).splitlines() if "NVIDIA H100" in line]
    assert len(lines) == 8
    assert "STUCK for 10 min" in lines[5]


def test_instances_are_below_their_gpu() -> None:
    """Each MIG instance is shown with its readings."""
    lines = table(samples.partitioned_node(), 160).splitlines()
    (first,) = (number for number, line in enumerate(lines) if "MIG 1/0 1g.10gb" in line)
    assert lines[first - 1].startswith("0 ")
    assert "SM 81 %" in lines[first]
    assert "12.2 GiB of 39.5 GiB" in lines[first]
    assert len([line for line in lines if "  MIG " in line]) == 9


def test_links_are_summarized_and_faults_are_named() -> None:
    """There is one summary, and a sentence for each GPU, fabric and port with a fault."""
    assert "\nNVLinks: 144 of 144 up.\nInfiniBand and RoCE: 8 of 8 ports up.\n" in status(samples.healthy())
    assert "\nNVLinks: 36 of 36 up, 36 unknown.\n" in status(samples.partitioned_node())
    bad = status(samples.disconnected_node())
    assert "GPU 2: the fabric registration is in progress." in bad
    assert "GPU 4: the fabric registration failed with NVML error 999." in bad
    assert "GPU 6: fabric unhealthy: route unhealthy." in bad
    assert "7 of 8 ports up.\nmlx5_3/1 (InfiniBand) is down." in bad
    assert "GPU 1: NVLinks 4, 5 down; NVLink 4 has 3 recovery errors;" in status(samples.troubled_node(), 200)
    assert "NVLink" not in table(samples.without_gpus())


def test_links_without_a_state_are_not_counted() -> None:
    """Links with MIG on are not 0 of 0; a stopped service is named."""
    dark = example_parts.gpu(0)
    dark = replace(dark, links={link: replace(one, up=None) for link, one in dark.links.items()})
    report = samples.healthy()
    said = table(changed(report, gpus=(dark,), node=replace(report.node, fabric_manager_up=0.0, imex_up=1.0)))
    assert "\nThe NVIDIA fabric manager is not running.\nNVLinks: 18, state unknown.\n" in said
    assert "IMEX" not in said


def test_excluded_gpu_is_named() -> None:
    """It is neither counted as up nor missing."""
    report = samples.excluding(3)
    for text in (status(report), table(report)):
        assert "7 of 7 GPUs up, 1 excluded" in text.splitlines()[0]
        assert f"GPU at {example_parts.bus_id(3)}: excluded by the configuration." in text
    assert "No problems." in status(report)
    assert "excluded" not in status(samples.healthy())


@given(width=st.integers(60, 240), name=st.sampled_from(sorted(ALL)))
@settings(max_examples=60)
def test_no_gpu_line_is_longer_than_the_terminal(width: int, name: str) -> None:
    """Columns are left out and texts are cut: a table never wraps."""
    lines = [line for line in table(ALL[name], width).splitlines() if "NVIDIA H100" in line or line.startswith("GPU ")]
    assert all(len(line) <= width for line in lines)


def test_escape_sequences_of_a_driver_stay_text() -> None:
    """A name cannot clear the screen or change the title of the window."""
    report = samples.lost(3)
    evil = "\x1b]0;owned\x07\x1b[2J\r\n"
    gpus = tuple(
        replace(gpu, gpu=replace(gpu.gpu, name=evil), detail=evil if gpu.fault else "", uuid=evil)
        for gpu in report.gpus
    )
    text = status(changed(report, gpus=gpus, notices={"store": evil}), 400)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "\r" not in text


@each_case("name", sorted(ALL))
def test_color_does_not_change_the_text(name: str) -> None:
    """Without the color codes the text is the same."""
    whole = report_document(ALL[name])
    colored = terminal.status(whole, 100, color=True)
    for code in ("31", "32", "33", "2", "1", "0"):
        colored = colored.replace(f"\x1b[{code}m", "")
    assert colored == terminal.status(whole, 100, color=False)


@each_case("name", sorted(ALL))
def test_status_is_the_same_over_http(name: str) -> None:
    """A report that was encoded as JSON prints the same text."""
    whole = report_document(ALL[name])
    parts = {key: whole[key] for key in terminal.STATUS}
    assert terminal.status(json.loads(json.dumps(parts)), 100, color=False) == status(ALL[name])


def test_partial_run_does_not_hide_the_current_result() -> None:
    """The result of all GPUs is shown before that of a later run on some of them."""
    found, some = example.run(3, outcome="wrong"), example.part(1, 4, 5, 6, 7)
    text = status(replace(samples.healthy(), probe=ProbeState(history=(found, some), ran=(found, some))))
    assert "All-reduce probe: wrong, 3 h 14 min ago, is still the result of all its GPUs.\n" in text
    assert f"  Run {some.id} is newer and was ok, but had only 4 of 8 GPUs (4 to 7).\n" in text
    assert "ok, 1 h 14 min ago: busbw 474 GB/s at 8 GiB, 4 of 8 GPUs (4 to 7), nccl." in text


def test_recent_errors_are_shown() -> None:
    """Newest first, with count, meaning and action; historical and cancelled errors are left out."""
    event = example.event()
    often = replace(event, id="often", code=13, kmsg=812, last=event.last._replace(wall=samples.STAMP.wall - 5))
    switch = replace(event, id="switch", kind=SXID, code=20034, bus_id="0000:c1:00.0", uuid=None, fatal=True)
    left_out = (
        replace(event, id="history", code=48, historical=True),
        replace(event, id="over", code=163, cancelled_wall=samples.STAMP.wall),
        replace(event, id="old", code=62, first=event.first._replace(wall=1e9), last=event.last._replace(wall=1e9)),
    )
    text = status(changed(samples.healthy(), events=(*left_out, switch, event, often)))

    assert (
        "Errors of the last day, newest first:\n"
        "WARNING  Xid 13 on GPU 0: Graphics engine exception\n"
        "  812 times from 2025-11-20 11:50:00 to 2025-11-20 11:59:55 UTC\n"
        "  Do: restart the application\n"
        "CRITICAL  Xid 79 on GPU 0: The GPU has fallen off the bus\n"
        "  2025-11-20 11:50:00 UTC\n"
        "  Do: drain the node and reboot it\n"
        "CRITICAL  SXid 20034 on NVSwitch 0000:c1:00.0: A link of an NVSwitch went down\n"
    ) in text
    assert not any(f"Xid {code} " in text for code in (48, 163, 62))


def test_only_the_newest_errors_are_shown() -> None:
    """The status names the URL of the others."""
    events = tuple(replace(example.event(), id=str(code), code=code) for code in range(8))
    text = status(changed(samples.healthy(), events=events))

    assert text.count(" on GPU 0: ") == 5
    assert "3 more: /api/v1/events?since=1d" in text
    assert "Errors of the last day" not in status(samples.healthy())


def live(report: Report, width: int = 160, height: int = 40) -> list[str]:
    return terminal.live(report_document(report), width, height, color=False).splitlines()


@each_case("name", ALL)
def test_a_live_view_fits_the_terminal(name: str) -> None:
    """It has no more lines than the terminal, and ends with the key that ends it."""
    for height in (8, 24, 60):
        lines = live(ALL[name], height=height)
        assert len(lines) <= height
        assert lines[-1] == "q: end"


def test_a_live_view_has_bars() -> None:
    """They are filled as far as the reading; a GPU that does not answer has none."""
    up, lost = (next(line for line in live(samples.lost(3)) if line.startswith(f"{gpu}  ")) for gpu in (0, 3))
    assert up.count("[") == 3
    assert "█" in up
    assert "[" not in lost.partition(":")[0]


def test_a_narrow_live_view_shows_each_action_and_no_bars() -> None:
    """In 80 columns and 24 lines an action is complete, however many links are listed, and there are no bars."""
    lost, disconnected = samples.lost(3), samples.disconnected_node()
    pairs = zip(lost.gpus, disconnected.gpus, strict=True)
    lost = changed(
        lost, gpus=tuple(replace(gpu, fabric=other.fabric) for gpu, other in pairs), ports=disconnected.ports
    )
    (problem,) = report_document(lost)["node"]["problems"]
    lines = live(lost, width=80, height=24)
    assert all(len(line) <= 80 for line in lines if line.startswith(("CRITICAL", "0  ")))
    assert problem["action"] in " ".join(line.strip() for line in lines)
    assert "[" not in next(line for line in lines if line.startswith("0  "))


def test_problems_without_room_are_counted() -> None:
    """The last line of the problems states how many are not shown."""
    problems = len(report_document(ALL["troubled"])["node"]["problems"])
    assert problems > 3
    lines = live(ALL["troubled"], height=20)
    shown = sum(line.startswith(("CRITICAL", "WARNING", "INFO")) for line in lines)
    assert f"{problems - shown} more: gpumon status" in lines


@each_case(
    ("running", "next_run", "words"),
    [
        (None, "2026-11-20T12:00:07.000Z", "has not run yet. The first run is due at 2026-11-20T12:00:07.000Z."),
        (None, "2026-11-20T11:59:50.000Z", "has not run yet."),
        ("run", "2026-11-20T18:00:00.000Z", "a run is in progress."),
        (None, None, "has not run yet."),
    ],
)
def test_a_first_run_of_the_probe_is_due_or_in_progress(running: str | None, next_run: str | None, words: str) -> None:
    """A due time in the past, and that of the run after the one in progress, is not shown."""
    probe = {"hold": None, "last": None, "next_run": next_run, "running": running}
    lines = list(_probe_lines(probe, "2026-11-20T12:00:00.000Z", 80, color=False))
    assert lines == [f"All-reduce probe: {words}"]


def test_a_run_in_progress_is_shown_before_the_last_run() -> None:
    """The last run is an earlier one, even if its end or skip was a minute ago."""
    whole = report_document(samples.healthy())
    whole["probe"]["running"] = "6b80d101c465"
    lines = terminal.status(whole, 100, color=False).splitlines()
    shown = [line for line in lines if line.startswith("All-reduce probe: ")]
    assert shown[0] == "All-reduce probe: a run is in progress."
    assert " ago" in shown[1]
