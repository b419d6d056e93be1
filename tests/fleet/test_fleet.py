"""`gpumon fleet` and live views: what they show, and how they end."""

from __future__ import annotations

import contextlib
import json
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote_plus

import pytest
from agents import free_port
from each_case import each_case
from live_terminal import Terminal
from servers import HttpRequest, http_server

from gpumon.cli.live_view import ENTER
from gpumon.cli.main import main
from gpumon.fleet.fleet import _problems
from gpumon.fleet.prometheus_api import MALFORMED

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


@contextlib.contextmanager
def serving(text: str | Callable[[str], str]) -> Iterator[str]:
    """Serve a text, or the text that a function returns for the path of a request. Return the URL."""

    def answer(request: HttpRequest) -> tuple[int, bytes]:
        return 200, (text if isinstance(text, str) else text(unquote_plus(request.path))).encode()

    with http_server(answer) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(params=["<html>", "{}", "[]"])
def stranger(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Return the URL of a web server that is no Prometheus, and its answer."""
    with serving(request.param) as url:
        yield url, request.param


def prometheus(up: str, level: str, time: str = "0") -> Callable[[str], str]:
    """Return a function that answers the queries of the fleet. The values are JSON."""

    def answer(path: str) -> str:
        value = up if "query=up{" in path else level if "> 0 or" in path else time
        metric = '{"instance": "n:1", "check": "gpu_lost"}'
        if "alertmanagers" in path:
            return '{"data": {"activeAlertmanagers": [{"url": 7}, {"url": "http://[::1"}]}}'
        found = "kube" not in path
        return f'{{"data": {{"result": [{f"""{{"metric": {metric}, "value": [0, {value}]}}""" * found}]}}}}'

    return answer


@each_case("level", ['"NaN"', "NaN", '"+Inf"', '"-1"', '"1e308"', '"2.5"', f'"{"9" * 400}"'])
def test_a_level_that_is_none_is_unknown(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    """So are times that are none. The node is not ok."""
    with serving(prometheus('"1"', level, level)) as url:
        assert main(["fleet", "--prometheus", url]) == 0
    assert capsys.readouterr().out.startswith("1 node: 0 ok, 1 unknown\n")


def test_a_verdict_of_level_ok_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """And a node whose `up` is NaN has no answer."""
    with serving(prometheus('"1"', '"0"')) as url:
        assert main(["fleet", "--prometheus", url]) == 0
    with serving(prometheus('"NaN"', '"0"')) as url:
        assert main(["fleet", "--prometheus", url]) == 0
    first, _, rest = capsys.readouterr().out.partition("\n")
    assert (first, rest.splitlines()[0]) == ("1 node: 1 ok", "1 node: 0 ok, 1 no answer")


@each_case("value", ['"boom"', "null", "[]", "9" * 400, "[" * 100_000, '0]}, {"metric": [], "value": [0, 1'])
def test_an_answer_of_another_shape_is_an_error(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It names the server's answer, and prints no node as ok."""
    with serving(prometheus('"1"', value)) as url:
        assert main(["fleet", "--prometheus", url]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "is not that of a Prometheus" in printed.err) == ("", True)


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


def test_an_answer_of_too_many_values_is_no_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Empty lists take 30 times the memory of their text, for each of the agents that are asked at the same time."""
    with serving(f'{{"verdicts": [], "maintenance": null, "more": [{"[]," * 200_000}[]]}}') as url:
        (tmp_path / "hosts").write_text(url.removeprefix("http://"))
        assert main(["fleet", "--json", "--hosts", str(tmp_path / "hosts")]) == 0
    [problem] = json.loads(capsys.readouterr().out)["problems"]
    assert problem["level"] == "no answer"
    assert "more than 2 MiB or too many values" in problem["reason"]


def test_the_first_alertmanagers_of_many_are_asked() -> None:
    """A Prometheus that lists hundreds, each without an answer, cannot hold up the command."""
    addresses: list[str] = []
    asked: list[str] = []
    answer = prometheus('"1"', '"0"')

    def count(path: str) -> str:
        asked.append(path)
        listed = [{"url": f"{addresses[0]}/{number}/alerts"} for number in range(100)]
        return json.dumps({"data": {"activeAlertmanagers": listed}}) if "alertmanagers" in path else answer(path)

    with serving(count) as url:
        addresses.append(url)
        assert main(["fleet", "--prometheus", url]) == 0
    assert [path for path in asked if "silences" in path] == [f"/{number}/silences" for number in range(8)]


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
