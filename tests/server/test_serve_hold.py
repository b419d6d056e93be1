"""/api/v1/probes/hold, its command, and how page, terminal and documents show that probes are kept away."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import sample_reports as samples
from each_case import each_case
from sample_reports import report_document
from sample_windows import HOLD, window
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.cli.main import main
from gpumon.model.request import DeviceHolder, RequestResult
from gpumon.model.time_window import WindowRequest, WindowSelection
from gpumon.outputs import terminal
from gpumon.outputs.responses.windows import HoldResponse
from gpumon.outputs.window_sentences import holds
from gpumon.state.report import Report

PATH = "/api/v1/probes/hold"
WALL = samples.STAMP.wall
SINCE, UNTIL = "2025-11-20T11:55:00.000Z", "2025-11-20T12:10:00.000Z"
SHOWN = {
    "until": UNTIL,
    "holders": [{"owner": "4711", "reason": "prolog", "by": "command", "since": SINCE, "until": UNTIL}],
}
SAID = "No probe runs until 2025-11-20 12:10:00 UTC{}: held by command for 4711 (prolog)."


def report_with_holds(*owners: str, reason: str = "prolog") -> Report:
    """Return a report with one hold for each owner, started five minutes ago for fifteen."""
    holds = tuple(
        window(HOLD, start=WALL - 300, start_at=samples.STAMP.boot - 300, seconds=900.0, reason=reason, owner=owner)
        for owner in owners
    )
    return replace(samples.healthy(), windows=holds)


def start(seconds: float, reason: str, owner: str, by: str) -> WindowRequest:
    return WindowRequest(kind=HOLD, seconds=seconds, reason=reason, owner=owner, by=by)


def end(owner: str, by: str) -> WindowSelection:
    return WindowSelection(kind=HOLD, owner=owner, by=by)


@pytest.fixture
def flags(port: int, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={tmp_path / 'token'}"]


def test_reading_holds_needs_no_token(node: ServedNode, port: int) -> None:
    """Every client can read the holds, alone and beside the last result; null means that there is none."""
    assert ask(port, PATH).document == {"hold": None}
    node.report = report_with_holds("4711")
    for path in (PATH, "/probe/allreduce"):
        assert ask(port, path).document["hold"] == SHOWN


@each_case("method", ["POST", "DELETE"])
@each_case(
    ("headers", "status"),
    [({}, 401), ({"Authorization": "Bearer no"}, 401), (BEARER | {"Origin": "http://elsewhere.example"}, 403)],
)
def test_changing_a_hold_needs_the_token(
    node: ServedNode, port: int, method: str, headers: dict[str, str], status: int
) -> None:
    """A hold needs the token because it could hide a bad link."""
    query = "?for_seconds=5" if method == "POST" else ""
    assert is_problem(ask(port, PATH + query, method, headers), status)
    assert node.asked == []


def test_hold_and_unhold_are_sent_to_the_main_loop(node: ServedNode, port: int) -> None:
    """The request has the owner, the reason and the client; owner and reason are optional."""
    asked = f"{PATH}?for_seconds=900&owner=4711&reason={quote('prolog of 4711')}"
    assert ask(port, asked, "POST", BEARER).document == {"hold": None, "stored": True}
    assert ask(port, f"{PATH}?for_seconds=60", "POST", BEARER).status == 200
    assert ask(port, f"{PATH}?owner=4711", "DELETE", BEARER).status == 200
    assert ask(port, PATH, "DELETE", BEARER).status == 200
    assert node.asked == [
        (start(900.0, "prolog of 4711", "4711", "api"),),
        (start(60.0, "", "", "api"),),
        (end("4711", "api"),),
        (end("", "api"),),
    ]


@pytest.mark.parametrize("query", ["", "?for_seconds=0", "?for_seconds=inf", "?for_seconds=5&gpu=3"])
def test_an_invalid_hold_is_refused(node: ServedNode, port: int, query: str) -> None:
    """A hold applies to the whole node and needs an end."""
    assert is_problem(ask(port, PATH + query, "POST", BEARER), 422)
    assert node.asked == []


def test_a_refusal_of_the_main_loop_is_returned(node: ServedNode, port: int) -> None:
    """The error names the setting that limits the hold."""
    refused = "9 s is not between 0 and probe.max_hold_seconds, which is 8."
    node.let_go = RequestResult(refused=refused, remedy="Ask for less.")
    answer = ask(port, f"{PATH}?for_seconds=9", "POST", BEARER)
    assert is_problem(answer, 400)
    assert "probe.max_hold_seconds" in answer.document["detail"]


def test_a_remaining_probe_process_is_an_error(
    node: ServedNode, port: int, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command names the process and exits with 1, so that no job starts."""
    node.report = report_with_holds("4711")
    node.let_go = RequestResult(holders=(DeviceHolder(pid=99, description="rank 99 of the probe", stuck=True),))
    answer = ask(port, f"{PATH}?for_seconds=9", "POST", BEARER)
    assert is_problem(answer, 409)
    assert (answer.document["holders"][0]["pid"], answer.document["hold"]) == (99, SHOWN)
    assert main(["probe", "hold", "--owner", "4711", *flags]) == 1
    captured = capsys.readouterr()
    assert (captured.out, "rank 99 of the probe" in captured.err, "Drain the node and reboot it" in captured.err) == (
        "",
        True,
        True,
    )


def test_unread_gpus_are_an_error(
    node: ServedNode, port: int, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command fails if the GPUs have not been read since the hold began."""
    node.let_go = RequestResult(not_readable="NVML has not been read.")
    answer = ask(port, f"{PATH}?for_seconds=9", "POST", BEARER)
    assert is_problem(answer, 409)
    assert (answer.document["detail"], answer.document["holders"]) == ("NVML has not been read.", [])
    assert main(["probe", "hold", *flags]) == 1
    captured = capsys.readouterr()
    assert (captured.out, "NVML has not been read." in captured.err) == ("", True)


def test_an_agent_that_does_not_respond_is_an_error(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command fails because a running agent may still use the GPUs."""
    monkeypatch.setattr("gpumon.cli.probe.PATIENCE_SECONDS", 0.3)
    node.let_go = None
    assert main(["probe", "hold", *flags]) == 1
    assert "timed out" in capsys.readouterr().err


@each_case("form", [[], ["--json"]])
def test_an_answer_without_a_hold_is_not_certain(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str], form: list[str]
) -> None:
    """The command exits with 1, also with --json, because a probe may start before the job does."""
    assert node.report.windows == ()
    assert main(["probe", "hold", *form, *flags]) == 1
    captured = capsys.readouterr()
    assert (captured.out, "no hold is in force" in captured.err) == ("", True)


def test_the_command_starts_and_ends_a_hold(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints two lines, or JSON."""
    node.report = report_with_holds("4711")
    assert main(["probe", "hold", "--for", "1h30m", "--owner", "4711", "--reason", "prolog", *flags]) == 0
    assert capsys.readouterr().out == f"{SAID.format('')}\nNo process of a probe is on a GPU.\n"
    assert main(["probe", "hold", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out) == {"hold": SHOWN, "stored": True}
    node.let_go = RequestResult(stored=False)
    assert main(["probe", "hold", *flags]) == 0
    assert "The store cannot be written now." in capsys.readouterr().out
    node.report = samples.healthy()
    assert main(["probe", "unhold", "--owner", "4711", *flags]) == 0
    assert capsys.readouterr().out.startswith("No hold is in force.\n")
    first, second, _, last = (asked for (asked,) in node.asked)
    assert (first, last) == (start(5400.0, "prolog", "4711", "command"), end("4711", "command"))
    assert second == start(900.0, "", "", "command")


@each_case(
    ("arguments", "message"),
    [
        (["hold", "--for", "soon"], "--for 'soon' is not a duration: write 90s, 5m or 1h30m"),
        (["hold", "--owner", "x" * 101], "101 characters"),
        (["hold", "--reason", "a\nb"], "characters that cannot be printed"),
    ],
)
def test_the_command_refuses_invalid_arguments(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """The command reports an invalid argument before it sends a request."""
    assert main(["probe", *arguments, *flags]) == 2
    assert message in capsys.readouterr().err
    assert node.asked == []


def test_page_and_terminal_show_the_hold_beside_the_probe(node: ServedNode, port: int) -> None:
    """The page and the terminal show the hold beside the probe and escape its reason."""
    node.report = report_with_holds("4711", reason="job <b>4711</b>")
    assert "by command for 4711 (job &lt;b&gt;4711&lt;/b&gt;)." in ask(port, "/").body.decode()
    shown = terminal.status(report_document(report_with_holds("4711")), 120, color=False)
    assert SAID.format(", for 10 min more") in shown.splitlines()


def test_only_the_first_holders_are_listed() -> None:
    """The page lists three holders and the number of the others."""
    many = HoldResponse.from_report(report_with_holds(*map(str, range(5)), reason=""))
    assert many is not None
    [said] = holds(many.document())
    assert said.endswith("held by command for 0; by command for 1; by command for 2; and 2 more.")
