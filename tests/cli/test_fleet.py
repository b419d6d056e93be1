"""`gpumon fleet` and live views: what they show, and how they end."""

from __future__ import annotations

import sys
import termios
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from agents import free_port
from each_case import each_case
from live_terminal import Terminal

from gpumon.cli.fleet_sources import MALFORMED, _problems
from gpumon.cli.live_view import ENTER
from gpumon.cli.main import main

FLEET = (sys.executable, "-m", "gpumon", "fleet")


def test_a_live_view_ends_with_q_and_restores_the_terminal(tmp_path: Path) -> None:
    """It is renewed on a screen of its own; after it the terminal reads lines again."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"127.0.0.1:{free_port()}\n")
    terminal = Terminal(*FLEET, "--hosts", str(hosts), "--watch", "100ms")
    terminal.wait_for("no answer")
    terminal.wait_for("1 node: ", times=3)
    assert terminal.press("q") == 0
    assert terminal.shown.startswith(ENTER)
    assert termios.tcgetattr(terminal.keyboard) == terminal.before


@pytest.fixture(params=["<html>", "{}", "[]"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the URL of a web server that is no Prometheus, and its answer."""

    class PageSource(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(request.param.encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = HTTPServer(("127.0.0.1", 0), PageSource)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", request.param
    server.shutdown()
    server.server_close()


@each_case(
    ("arguments", "message"),
    [
        ([], "one of the arguments --prometheus --hosts is required"),
        (["--prometheus", "prometheus:9090"], "'prometheus:9090' is not a URL: write it as http://"),
        (["--prometheus", "http://[::1"], "'http://[::1' is not a URL"),
        (["--prometheus", "http://prometheus:99999"], "'http://prometheus:99999' is not a URL"),
        (["--prometheus", "http://127.0.0.1:1"], "no response from http://127.0.0.1:1"),
        (["--hosts", "/nowhere"], "cannot read /nowhere"),
        (["--hosts", "/dev/null"], "there is no host in /dev/null"),
        (["--hosts", "/dev/null", "--watch"], "there is no host in /dev/null"),
    ],
)
def test_what_cannot_be_read_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names the input and what to write."""
    try:
        code = main(["fleet", *arguments])
    except SystemExit as ended:
        code = int(ended.code or 0)
    assert code == 2
    assert message in capsys.readouterr().err


def test_a_server_that_is_no_prometheus_is_named(stranger: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The start of its answer is shown."""
    url, answer = stranger
    assert main(["fleet", "--prometheus", url]) == 2
    assert f"is not that of a Prometheus: 200 {answer}" in capsys.readouterr().err


def test_an_odd_host_does_not_hide_the_others(
    stranger: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name or port that is not valid, and a server that is no agent, are lines of the list."""
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{stranger[0].removeprefix('http://')}\ngpu..1\n{'x' * 80}\ngpu:99999\ngpu:abc\n")
    assert main(["fleet", "--hosts", str(hosts)]) == 0
    assert capsys.readouterr().out.startswith("5 nodes: 0 ok, 5 no answer\n")


@each_case(
    "changed",
    [
        {"level": "boom"},
        {"level": ["fail"]},
        {"level": "ok"},
        {"reason": None},
        {"action": {}},
        {"gpu": None, "device": 7},
        {"since": 5},
    ],
)
def test_a_verdict_of_another_type_is_a_problem_of_its_node_only(changed: dict[str, object]) -> None:
    """The node is listed as one without an answer, as the agent of another version is."""
    verdict = {"gpu": 0, "device": "GPU-1", "level": "fail", "reason": "r", "action": "none"}
    health = {"verdicts": [{**verdict, "since": "2026-11-28T00:00:00Z", **changed}], "maintenance": None}
    with pytest.raises(MALFORMED):
        list(_problems("gpu-1", health))


def test_a_live_view_needs_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a pipe the command would never end."""
    hosts = tmp_path / "hosts"
    hosts.write_text("gpu-1\n")
    assert main(["fleet", "--hosts", str(hosts), "--watch"]) == 2
    assert "--watch needs a terminal" in capsys.readouterr().err
