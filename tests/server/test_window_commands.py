"""The commands for time windows, and how page and terminal show windows."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from sample_reports import report_document
from sample_windows import HOLD, MAINTENANCE, RELEASE, window
from serving import TOKEN, ServedNode, ask

from gpumon.cli.main import main
from gpumon.model import time_window
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import COMMAND, MARKER, NODE, TimeWindow, WindowKind, WindowRequest, WindowSelection
from gpumon.outputs import terminal
from gpumon.outputs.node_text import holds
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.state.report import Report

WALL, BOOT = samples.STAMP.wall, samples.STAMP.boot
BUS_ID = example_parts.bus_id(3)
STUCK = DeviceHolder(pid=4711, description="sampler 4711 in nvmlDeviceGetTemperature on 00000000:30:00.0", stuck=True)
DURATION_ERROR = "--for 'soon' is not a duration: write 90s, 5m or 1h30m"
HELD = "No probe runs until 2025-11-20 12:10:00 UTC{}: held by command for 4711 (prolog)."
RELEASED = "GPU 3 is released until 12:04:00 UTC, for 4 min more, by command."
Run = Callable[..., int]


def report_with(kind: WindowKind, minutes: float, *owners: str, reason: str, age: float = 5.0) -> Report:
    """Return a report with one window for each owner that started `age` minutes ago."""
    start, start_at = WALL - 60 * age, BOOT - 60 * age
    windows = tuple(
        window(kind, start=start, start_at=start_at, seconds=60 * minutes, owner=owner, reason=reason)
        for owner in owners
    )
    return replace(samples.healthy(), windows=windows)


def node_in_maintenance(reason: str = "new power supply") -> Report:
    return report_with(MAINTENANCE, 120.0, "", reason=reason, age=10.0)


def report_with_holds(*owners: str, reason: str = "prolog") -> Report:
    return report_with(HOLD, 15.0, *owners, reason=reason)


def release(bus_id: str = NODE, by: str = COMMAND) -> TimeWindow:
    return window(RELEASE, start=WALL - 60, start_at=BOOT - 60, seconds=300.0, bus_id=bus_id, by=by)


def released_node(*windows: TimeWindow, holders: tuple[DeviceHolder, ...] = ()) -> Report:
    """Return the healthy node while these windows are in force."""
    report = changed(samples.healthy(), windows=windows, release_holders=holders)
    scopes = time_window.released_scopes(windows)
    shown = Gpu(name="NVIDIA H100", released=1.0, fault=dict.fromkeys(FAULTS, 0.0))
    gpus = tuple(
        replace(gpu, released=True, gpu=shown, links={}) if scopes & {NODE, gpu.bus_id} else gpu for gpu in report.gpus
    )
    return changed(report, gpus=gpus)


def start(kind: WindowKind, seconds: float, **attributes: str) -> tuple[WindowRequest]:
    return (WindowRequest(kind=kind, seconds=seconds, by=COMMAND, **attributes),)


def end(kind: WindowKind, **attributes: str) -> tuple[WindowSelection]:
    return (WindowSelection(kind=kind, by=COMMAND, **attributes),)


@pytest.fixture
def run(port: int, tmp_path: Path) -> Run:
    """Run a command against the served node and return its exit code."""
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    flags = [f"--url=http://127.0.0.1:{port}", f"--token-file={tmp_path / 'token'}"]
    return lambda *arguments: main([*arguments, *flags])


@each_case(
    ("arguments", "message"),
    [
        (["probe", "hold", "--for", "soon"], DURATION_ERROR),
        (["probe", "hold", "--owner", "x" * 101], "101 characters"),
        (["probe", "hold", "--reason", "a\nb"], "characters that cannot be printed"),
        (["maintenance", "start", "--for", "soon", "--reason", "x"], DURATION_ERROR),
        (
            ["maintenance", "start", "--for", "2h", "--reason", " "],
            'A maintenance needs a reason. Give it as a short text: --reason "new power supply".',
        ),
        (["maintenance", "start", "--for", "2h", "--reason", "a\nb"], "characters that cannot be printed"),
        (["release", "--for", "5"], "--for '5' is not a duration: write 90s, 5m or 1h30m"),
        (["release", "--for", "0s"], "is not a duration"),
        (["release", "--gpu", "3"], "--gpu needs another flag"),
        (["release", "--for", "5m", "--gpu", "42"], "There is no GPU '42'"),
    ],
)
def test_invalid_arguments_change_nothing(
    node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err
    assert node.asked == []


def test_release_starts_shows_and_ends(node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the deadline and that no process holds the GPU; the agent records the command as source."""
    hold = report_with_holds("4711").windows
    node.report = replace(released_node(release(BUS_ID)), windows=(release(BUS_ID), *hold))
    assert run("release", "--for", "5m", "--gpu", "3") == 0
    assert capsys.readouterr().out == f"{RELEASED}\nNo process of gpumon has a released GPU open.\n"
    assert run("release") == 0
    assert capsys.readouterr().out == f"{RELEASED}\n"
    node.report = samples.healthy()
    assert run("release", "--end", "--gpu", "3") == 0
    assert capsys.readouterr().out == "No GPU is released.\n"
    assert run("release", "--end", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"windows": [], "stored": True}
    assert node.asked == [start(RELEASE, 300.0, bus_id=BUS_ID), end(RELEASE, bus_id=BUS_ID), end(RELEASE)]


def test_release_fails_if_a_process_remains(node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints the process and exits with 1, so that a script stops before the reset."""
    node.let_go, node.report = RequestResult(holders=(STUCK,)), released_node(release(), holders=(STUCK,))
    assert run("release", "--for", "5m") == 1
    shown = capsys.readouterr()
    assert f"gpumon: Still held by {STUCK.description}." in shown.err
    assert shown.out == "Every GPU is released until 12:04:00 UTC, for 4 min more, by command.\n"
    node.let_go, node.report = RequestResult(), released_node(release(by=MARKER))
    assert run("release", "--end") == 1
    assert "The marker file still exists" in capsys.readouterr().err


def test_a_release_that_ends_while_it_starts_is_no_success(
    node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints why, and the code 1 stops a script that would reset a GPU."""
    node.let_go = RequestResult(not_readable="The window was ended.")
    assert run("release", "--for", "5m") == 1
    output = capsys.readouterr()
    assert (output.out, "The window was ended." in output.err) == ("No GPU is released.\n", True)


def test_maintenance_starts_shows_and_ends(node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints one line, about the window that ends last, or JSON."""
    assert run("maintenance") == 0
    assert capsys.readouterr().out == "The node is not in maintenance.\n"
    assert run("maintenance", "start", "--for", "1h30m", "--reason", "new power supply") == 0
    capsys.readouterr()
    node.report = node_in_maintenance()
    shorter = report_with(MAINTENANCE, 60.0, "other", reason="fans").windows
    node.report = replace(node.report, windows=(*node.report.windows, *shorter))
    assert run("maintenance") == 0
    output = "In maintenance until 2025-11-20 13:50:00 UTC, by command: new power supply. No alert pages.\n"
    assert capsys.readouterr().out == output
    assert run("maintenance", "end", "--json") == 0
    assert [each["reason"] for each in json.loads(capsys.readouterr().out)["windows"]] == ["new power supply", "fans"]
    node.let_go = RequestResult(stored=False)
    assert run("maintenance", "end") == 0
    assert "The store cannot be written now." in capsys.readouterr().out
    assert node.asked == [start(MAINTENANCE, 5400.0, reason="new power supply"), end(MAINTENANCE), end(MAINTENANCE)]


def test_hold_starts_and_ends(node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints two lines, or JSON."""
    node.report = report_with_holds("4711")
    assert run("probe", "hold", "--for", "1h30m", "--owner", "4711", "--reason", "prolog") == 0
    assert capsys.readouterr().out == f"{HELD.format('')}\nNo process of a probe is on a GPU.\n"
    assert run("probe", "hold", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert ([each["owner"] for each in document["windows"]], document["stored"]) == (["4711"], True)
    node.let_go = RequestResult(stored=False)
    assert run("probe", "hold") == 0
    assert "The store cannot be written now." in capsys.readouterr().out
    node.report = samples.healthy()
    assert run("probe", "unhold", "--owner", "4711") == 0
    assert capsys.readouterr().out.startswith("No hold is in force.\n")
    assert run("probe", "unhold") == 0
    assert node.asked == [
        start(HOLD, 5400.0, owner="4711", reason="prolog"),
        start(HOLD, 900.0),
        start(HOLD, 900.0),
        end(HOLD, owner="4711"),
        end(HOLD, owner=""),
    ]


@each_case(
    ("result", "messages"),
    [
        (RequestResult(holders=(STUCK,)), [STUCK.description, "Drain the node and reboot it"]),
        (RequestResult(not_readable="NVML has not been read."), ["NVML has not been read."]),
        (RequestResult(), ["no hold is in force"]),
    ],
)
def test_a_hold_that_is_not_certain_is_an_error(
    node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str], result: RequestResult, messages: list[str]
) -> None:
    """The command exits with 1, also with --json, so that no job starts beside a probe."""
    node.let_go = result
    for form in ([], ["--json"]):
        assert run("probe", "hold", *form) == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert all(message in captured.err for message in messages)


def test_an_agent_that_does_not_respond_is_an_error(
    node: ServedNode, run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold fails because a running agent may still use the GPUs."""
    monkeypatch.setattr("gpumon.cli.probe.PATIENCE_SECONDS", 0.3)
    node.let_go = None
    assert run("probe", "hold") == 1
    assert "timed out" in capsys.readouterr().err


def test_page_shows_a_release_without_a_fault(node: ServedNode, port: int) -> None:
    """The page shows a banner with the remaining time, and no row of a released GPU as a fault."""
    node.report = released_node(release(BUS_ID, MARKER))
    page = ask(port, "/").body.decode()
    assert "GPU 3 is released until 12:04:00 UTC, for 4 min more, by marker." in page
    assert '<tr role="row" class="released">' in page
    assert "faulted" not in page
    assert "<b>7 of 7</b> <span>all respond, 1 released</span>" in page
    assert "No problems." in page
    assert ask(port, "/api/v1/gpus/3").document["state"] == "released"
    node.report = released_node(release())
    page = ask(port, "/").body.decode()
    assert "Every GPU is released until" in page
    assert "<b>released</b> <span>not monitored</span>" in page


def test_terminal_shows_a_release() -> None:
    shown = terminal.status(report_document(released_node(release(BUS_ID))), 120, color=False)
    assert shown.splitlines()[1] == RELEASED
    assert "7 of 7 GPUs up, 1 released" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("3 "))
    assert line.endswith("  RELEASED.")
    every = terminal.status(report_document(released_node(release())), 120, color=False)
    assert "· 8 released ·" in every


def test_page_and_terminal_begin_with_the_maintenance(node: ServedNode, port: int) -> None:
    """The page and the terminal show first that no alert pages, and escape the reason."""
    node.report = node_in_maintenance("swap <b>GPU 3</b>")
    page = ask(port, "/").body.decode()
    assert ">In maintenance until 2025-11-20 13:50:00 UTC, for 1 h 50 min more" in page
    assert "swap &lt;b&gt;GPU 3&lt;/b&gt;. No alert pages." in page
    _, first, *_ = terminal.status(report_document(node_in_maintenance()), 120, color=False).splitlines()
    assert first.startswith("In maintenance until 2025-11-20 13:50:00 UTC, for 1 h 50 min more, by command: new")


def test_page_and_terminal_show_the_hold_beside_the_probe(node: ServedNode, port: int) -> None:
    node.report = report_with_holds("4711", reason="job <b>4711</b>")
    assert "by command for 4711 (job &lt;b&gt;4711&lt;/b&gt;)." in ask(port, "/").body.decode()
    shown = terminal.status(report_document(report_with_holds("4711")), 120, color=False)
    assert HELD.format(", for 10 min more") in shown.splitlines()


def test_only_the_first_holders_are_listed() -> None:
    """The page lists three holders and the number of the others."""
    many = HoldResponse.from_report(report_with_holds(*map(str, range(5)), reason=""))
    assert many is not None
    [said] = holds(many.document()["holders"])
    assert said.endswith("held by command for 0; by command for 1; by command for 2; and 2 more.")
