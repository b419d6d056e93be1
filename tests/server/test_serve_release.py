"""/api/v1/release, its command, and how page and terminal show what is released."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from each_case import each_case
from sample_reports import report_document
from sample_windows import RELEASE, window
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.cli.main import main
from gpumon.model import time_window
from gpumon.model.gpu import FAULTS, Gpu
from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import NODE, TimeWindow, WindowRequest, WindowSelection
from gpumon.outputs import terminal
from gpumon.server import window_requests
from gpumon.state.report import Report

PATH = "/api/v1/release"
WALL = samples.STAMP.wall
STUCK = DeviceHolder(pid=4711, description="sampler 4711 in nvmlDeviceGetTemperature on 00000000:30:00.0", stuck=True)


def release(bus_id: str = NODE, by: str = "api") -> TimeWindow:
    return window(RELEASE, start=WALL - 60, start_at=samples.STAMP.boot - 60, seconds=300.0, bus_id=bus_id, by=by)


def start(bus_id: str, seconds: float, by: str = "api") -> tuple[WindowRequest]:
    return (WindowRequest(kind=RELEASE, seconds=seconds, bus_id=bus_id, by=by),)


def end(bus_id: str | None, by: str = "api") -> tuple[WindowSelection]:
    return (WindowSelection(kind=RELEASE, bus_id=bus_id, by=by),)


def released_node(*windows: TimeWindow, holders: tuple[DeviceHolder, ...] = ()) -> Report:
    """Return the healthy node while these windows are in force."""
    report, scopes = (
        changed(samples.healthy(), windows=windows, release_holders=holders),
        time_window.released_scopes(windows),
    )
    shown = Gpu(name="NVIDIA H100", released=1.0, fault=dict.fromkeys(FAULTS, 0.0))
    gpus = tuple(
        replace(gpu, released=True, gpu=shown, links={}) if scopes & {NODE, gpu.bus_id} else gpu for gpu in report.gpus
    )
    return changed(report, gpus=gpus)


@pytest.fixture
def flags(port: int, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={tmp_path / 'token'}"]


def test_reading_releases_needs_no_token_and_names_no_process(node: ServedNode, port: int) -> None:
    """Processes are shown only with the token; the node document contains the same windows."""
    assert ask(port, PATH).document == {"released": False, "windows": []}
    node.report = released_node(release(example_parts.bus_id(3)), holders=(STUCK,))
    answer = ask(port, PATH).document
    assert answer == {
        "released": True,
        "windows": [
            {
                "gpu": 3,
                "uuid": example_parts.uuid(3),
                "pci_bus_id": example_parts.bus_id(3),
                "by": "api",
                "since": "2025-11-20T11:59:00.000Z",
                "until": "2025-11-20T12:04:00.000Z",
                "remaining_seconds": 240,
            }
        ],
    }
    assert ask(port, PATH, headers=BEARER).document["holders"] == [STUCK.description]
    assert ask(port, "/api/v1/node").document["releases"] == answer["windows"]
    assert ask(port, f"/api/v1/gpus/{3}").document["state"] == "released"


@each_case("method", ["POST", "DELETE"])
@each_case(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer no"}, 401), (BEARER | {"Origin": "http://elsewhere.example"}, 403)],
)
def test_changing_a_release_needs_the_token(
    node: ServedNode, port: int, method: str, headers: dict[str, str], status: int
) -> None:
    """A request without the token never reaches the main loop."""
    query = "?for_seconds=5" if method == "POST" else ""
    assert is_problem(ask(port, PATH + query, method, headers), status)
    assert node.asked == []


@pytest.mark.parametrize("name", ["3", example_parts.uuid(3), example_parts.bus_id(3), "0000:30:00.0", "30:00.0"])
def test_a_gpu_is_named_by_index_uuid_or_address(node: ServedNode, port: int, name: str) -> None:
    """The response arrives when no process holds the GPU."""
    answer = ask(port, f"{PATH}?for_seconds=300&gpu={name}", "POST", BEARER)
    assert (answer.status, node.asked) == (200, [start(example_parts.bus_id(3), 300.0)])
    assert ask(port, f"{PATH}?gpu={name}", "DELETE", BEARER).status == 200
    assert node.asked[1:] == [end(example_parts.bus_id(3))]


def test_the_release_of_a_removed_gpu_is_ended_by_its_address(node: ServedNode, port: int) -> None:
    """A GPU bound to another driver is not in the inventory, but its release can be ended by PCI address."""
    report = released_node(release(example_parts.bus_id(3)))
    node.report = changed(report, gpus=tuple(gpu for gpu in report.gpus if gpu.index != 3))
    assert is_problem(ask(port, f"{PATH}?gpu=3", "DELETE", BEARER), 404)
    assert ask(port, f"{PATH}?gpu=0000:30:00.0", "DELETE", BEARER).status == 200
    assert node.asked == [end(example_parts.bus_id(3))]


def test_without_a_gpu_the_request_applies_to_the_node(node: ServedNode, port: int) -> None:
    """A request without a GPU releases the node, or ends every release."""
    ask(port, f"{PATH}?for_seconds=5", "POST", BEARER)
    ask(port, PATH, "DELETE", BEARER)
    assert node.asked == [start(NODE, 5), end(None)]


@each_case(
    ("query", "status"),
    [
        ("", 422),
        ("?for_seconds=0", 422),
        ("?for_seconds=-1", 422),
        ("?for_seconds=nan", 422),
        ("?for_seconds=inf", 422),
        ("?for_seconds=5m", 422),
        ("?for_seconds=5&gpus=3", 422),
        ("?for_seconds=5&gpu=42", 404),
    ],
)
def test_an_invalid_release_is_refused(node: ServedNode, port: int, query: str, status: int) -> None:
    """A misspelled parameter must not release the whole node."""
    assert is_problem(ask(port, PATH + query, "POST", BEARER), status)
    assert node.asked == []


def test_too_long_a_release_is_refused(node: ServedNode, port: int) -> None:
    """The error names the setting that limits the duration."""
    node.let_go = RequestResult(
        refused="7200 s is not between 0 and release.max_seconds, which is 1800.", remedy="Ask for less."
    )
    answer = ask(port, f"{PATH}?for_seconds=7200", "POST", BEARER)
    assert is_problem(answer, 400)
    assert "release.max_seconds" in answer.document["detail"]


def test_a_remaining_process_is_named(node: ServedNode, port: int) -> None:
    """409 has pid, call and GPU, so that a script does not go on to a reset that would hang."""
    node.let_go = RequestResult(holders=(STUCK,))
    node.report = released_node(release(), holders=(STUCK,))
    answer = ask(port, f"{PATH}?for_seconds=300", "POST", BEARER)
    assert is_problem(answer, 409)
    assert STUCK.description in answer.document["detail"]
    assert answer.document["holders"] == [{"pid": 4711, "message": STUCK.description, "stuck": True}]
    assert answer.document["release"]["windows"]
    assert "reboot it" in answer.document["remedy"]


def test_a_release_that_ends_while_it_starts_is_no_success(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints why, and the code 1 stops a script that would reset a GPU."""
    node.let_go = RequestResult(not_readable="The window was ended.")
    assert main(["release", "--for", "5m", *flags]) == 1
    output = capsys.readouterr()
    assert (output.out, "The window was ended." in output.err) == ("No GPU is released.\n", True)


def test_a_marker_is_not_ended_by_request(node: ServedNode, port: int) -> None:
    """A release by marker file ends only when the file is removed."""
    node.report = released_node(release(by="marker"))
    for query in ("", "?gpu=3"):
        answer = ask(port, PATH + query, "DELETE", BEARER)
        assert is_problem(answer, 409)
        assert "release.marker" in answer.document["remedy"]


def test_a_marker_of_another_gpu_is_no_error(node: ServedNode, port: int) -> None:
    """The release of a GPU is ended although the marker file releases another one."""
    node.report = released_node(release(example_parts.bus_id(3), by="marker"))
    assert ask(port, f"{PATH}?gpu=2", "DELETE", BEARER).status == 200
    assert is_problem(ask(port, f"{PATH}?gpu=3", "DELETE", BEARER), 409)


def test_a_main_loop_that_does_not_respond_is_an_error(
    node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets an error after a timeout."""
    monkeypatch.setattr(window_requests, "MAIN_LOOP_TIMEOUT_SECONDS", 0.05)
    node.let_go = None
    assert is_problem(ask(port, f"{PATH}?for_seconds=5", "POST", BEARER), 503)


def test_other_methods_list_the_allowed_ones(port: int) -> None:
    """405 lists the allowed methods, DELETE among them."""
    answer = ask(port, PATH, "PUT", BEARER)
    assert is_problem(answer, 405)
    assert answer.headers["Allow"] == "GET, HEAD, POST, DELETE"


def test_command_releases_shows_and_ends(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the deadline and that no process holds the GPU; the agent records the command as source."""
    node.report = released_node(release(example_parts.bus_id(3), "command"))
    assert main(["release", "--for", "5m", "--gpu", "3", *flags]) == 0
    line = "GPU 3 is released until 12:04:00 UTC, for 4 min more, by command.\n"
    assert capsys.readouterr().out == line + "No process of gpumon has a released GPU open.\n"
    assert main(["release", *flags]) == 0
    assert capsys.readouterr().out == line
    node.report = samples.healthy()
    assert main(["release", "--end", "--gpu", "3", *flags]) == 0
    assert capsys.readouterr().out == "No GPU is released.\n"
    assert main(["release", "--end", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {"released": False, "windows": [], "holders": []}
    bus_id = example_parts.bus_id(3)
    assert node.asked == [start(bus_id, 300.0, "command"), end(bus_id, "command"), end(None, "command")]


def test_command_fails_if_a_process_remains(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints the process and exits with 1, so that a script stops before the reset."""
    node.let_go, node.report = RequestResult(holders=(STUCK,)), released_node(release(), holders=(STUCK,))
    assert main(["release", "--for", "5m", *flags]) == 1
    shown = capsys.readouterr()
    assert f"gpumon: Still held by {STUCK.description}." in shown.err
    assert shown.out == "Every GPU is released until 12:04:00 UTC, for 4 min more, by api.\n"
    node.let_go, node.report = RequestResult(), released_node(release(by="marker"))
    assert main(["release", "--end", *flags]) == 1
    assert "The marker file still exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--for", "5"], "--for '5' is not a duration: write 90s, 5m or 1h30m"),
        (["--for", "0s"], "is not a duration"),
        (["--gpu", "3"], "--gpu needs another flag"),
        (["--for", "5m", "--gpu", "42"], "There is no GPU '42'"),
    ],
)
def test_command_refuses_invalid_arguments(
    node: ServedNode, flags: list[str], arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command exits with 2 and releases nothing."""
    assert main(["release", *arguments, *flags]) == 2
    assert complaint in capsys.readouterr().err
    assert node.asked == []


def test_page_shows_a_release_without_a_fault(node: ServedNode, port: int) -> None:
    """The page shows a banner with the remaining time, and no row of a released GPU as a fault."""
    node.report = released_node(release(example_parts.bus_id(3), "marker"))
    page = ask(port, "/").body.decode()
    assert "GPU 3 is released until 12:04:00 UTC, for 4 min more, by marker." in page
    assert '<tr role="row" class="released">' in page
    assert "faulted" not in page
    assert "<b>7 of 7</b> <span>all respond, 1 released</span>" in page
    assert "No problems." in page
    node.report = released_node(release())
    page = ask(port, "/").body.decode()
    assert "Every GPU is released until" in page
    assert "<b>released</b> <span>not monitored</span>" in page


def test_terminal_shows_a_release() -> None:
    """The terminal shows the release first and in the line of the GPU."""
    shown = terminal.status(report_document(released_node(release(example_parts.bus_id(3)))), 120, color=False)
    assert shown.splitlines()[1] == "GPU 3 is released until 12:04:00 UTC, for 4 min more, by api."
    assert "7 of 7 GPUs up, 1 released" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("3 "))
    assert line.endswith("  RELEASED.")
    every = terminal.status(report_document(released_node(release())), 120, color=False)
    assert "· 8 released ·" in every
