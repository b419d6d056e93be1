"""/api/v1/maintenance, its command, and how page, terminal and documents show that the node is in maintenance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import sample_reports as samples
from each_case import each_case
from sample_reports import report_document
from sample_windows import MAINTENANCE, window
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.cli.main import main
from gpumon.model.request import RequestResult
from gpumon.model.time_window import WindowRequest, WindowSelection
from gpumon.outputs import terminal
from gpumon.state.report import Report

PATH = "/api/v1/maintenance"
WALL = samples.STAMP.wall
SHOWN = {
    "since": "2025-11-20T11:50:00.000Z",
    "until": "2025-11-20T13:50:00.000Z",
    "reason": "new power supply",
    "by": "command",
}


def node_in_maintenance(reason: str = "new power supply") -> Report:
    boot = samples.STAMP.boot
    one = window(MAINTENANCE, start=WALL - 600, start_at=boot - 600, seconds=7200.0, reason=reason)
    return replace(samples.healthy(), windows=(one,))


def start(seconds: float, by: str) -> WindowRequest:
    return WindowRequest(kind=MAINTENANCE, seconds=seconds, reason="new power supply", by=by)


def end(by: str) -> WindowSelection:
    return WindowSelection(kind=MAINTENANCE, by=by)


@pytest.fixture
def flags(port: int, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={tmp_path / 'token'}"]


def test_reading_maintenance_needs_no_token(node: ServedNode, port: int) -> None:
    """Every client can read it, alone and in the node and health documents; null means that there is none."""
    assert ask(port, PATH).document == {"maintenance": None}
    node.report = node_in_maintenance()
    for path in (PATH, "/api/v1/node", "/api/v1/health"):
        assert ask(port, path).document["maintenance"] == SHOWN


@each_case("method", ["POST", "DELETE"])
@each_case(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer no"}, 401), (BEARER | {"Origin": "http://elsewhere.example"}, 403)],
)
def test_changing_maintenance_needs_the_token(
    node: ServedNode, port: int, method: str, headers: dict[str, str], status: int
) -> None:
    """Maintenance needs the token because it silences alerts."""
    query = "?for_seconds=5&reason=no" if method == "POST" else ""
    assert is_problem(ask(port, PATH + query, method, headers), status)
    assert node.asked == []


def test_start_and_end_are_sent_to_the_main_loop(node: ServedNode, port: int) -> None:
    """The request has the reason and the client."""
    asked = f"{PATH}?for_seconds=7200&reason={quote('new power supply')}"
    assert ask(port, asked, "POST", BEARER).document == {"maintenance": None, "stored": True}
    assert ask(port, PATH, "DELETE", BEARER).status == 200
    assert node.asked == [(start(7200.0, "api"),), (end("api"),)]


@each_case("query", ["", "?for_seconds=5", "?reason=x", "?for_seconds=0&reason=x", "?for_seconds=5&reason=x&gpu=3"])
def test_an_invalid_maintenance_is_refused(node: ServedNode, port: int, query: str) -> None:
    """Maintenance applies to the whole node, and needs an end and a reason."""
    assert is_problem(ask(port, PATH + query, "POST", BEARER), 422)
    assert node.asked == []


def test_a_refusal_of_the_main_loop_is_returned(node: ServedNode, port: int) -> None:
    """The error names the setting that limits the maintenance."""
    node.let_go = RequestResult(
        refused="9 s is not between 0 and maintenance.max_seconds, which is 8.", remedy="Ask for less."
    )
    answer = ask(port, f"{PATH}?for_seconds=9&reason=x", "POST", BEARER)
    assert is_problem(answer, 400)
    assert "maintenance.max_seconds" in answer.document["detail"]


def test_the_command_starts_shows_and_ends_maintenance(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints one line, or JSON."""
    assert main(["maintenance", flags[0]]) == 0
    assert capsys.readouterr().out == "The node is not in maintenance.\n"
    assert main(["maintenance", "start", "--for", "1h30m", "--reason", "new power supply", *flags]) == 0
    node.report = node_in_maintenance()
    assert node.asked == [(start(5400.0, "command"),)]
    capsys.readouterr()
    assert main(["maintenance", flags[0]]) == 0
    output = "In maintenance until 2025-11-20 13:50:00 UTC, by command: new power supply. No alert pages.\n"
    assert capsys.readouterr().out == output
    assert main(["maintenance", "end", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {"maintenance": SHOWN, "stored": True}
    node.let_go = RequestResult(stored=False)
    assert main(["maintenance", "end", *flags]) == 0
    assert "The store cannot be written now." in capsys.readouterr().out
    assert node.asked[1:] == [(end("command"),), (end("command"),)]


@each_case(
    ("arguments", "told"),
    [
        (["start", "--for", "soon", "--reason", "x"], "--for 'soon' is not a duration: write 90s, 5m or 1h30m"),
        (
            ["start", "--for", "2h", "--reason", " "],
            'A maintenance needs a reason. Give it as a short text: --reason "new power supply".',
        ),
        (["start", "--for", "2h", "--reason", "a\nb"], "characters that cannot be printed"),
    ],
)
def test_the_command_refuses_incomplete_arguments(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    """The command reports a missing argument before it sends a request."""
    assert main(["maintenance", *arguments, *flags]) == 2
    assert told in capsys.readouterr().err
    assert node.asked == []


def test_page_and_terminal_begin_with_the_maintenance(node: ServedNode, port: int) -> None:
    """The page and the terminal show first that no alert pages, and escape the reason."""
    node.report = node_in_maintenance("swap <b>GPU 3</b>")
    page = ask(port, "/").body.decode()
    assert ">In maintenance until 2025-11-20 13:50:00 UTC, for 1 h 50 min more" in page
    assert "swap &lt;b&gt;GPU 3&lt;/b&gt;. No alert pages." in page
    _, first, *_ = terminal.status(report_document(node_in_maintenance()), 120, color=False).splitlines()
    assert first.startswith("In maintenance until 2025-11-20 13:50:00 UTC, for 1 h 50 min more, by command: new")
