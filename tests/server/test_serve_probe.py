"""/probe/NAME: reading starts nothing, assertions for curl -f, runs for who has the token."""

from __future__ import annotations

from dataclasses import replace

import example_node as example
import pytest
import sample_reports as samples
from each_case import each_case
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.outputs.responses.probes import ProbeResponse
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeRequest, ProbeResult
from gpumon.probe.core.state import ProbeState
from gpumon.server import probe
from gpumon.state.report import Report

PATH = "/probe/allreduce"
OK = example.run(1)
SOME = example.part(0, 4, 5, 6, 7)
SKIP = replace(example.run(0), outcome="skipped", reason="busy", measurements=())


def ran(*history: ProbeResult) -> Report:
    ran = tuple(each for each in history if each.outcome != "skipped")
    probe = ProbeState(history=history, ran=ran, next_runs={"allreduce": samples.STAMP.wall})
    return replace(samples.healthy(), probe=probe)


def test_last_result_and_its_age(node: ServedNode, port: int) -> None:
    """The request starts no run."""
    answer = ask(port, PATH)
    assert (answer.status, answer.document["last"]["outcome"], node.requests) == (200, "ok", [])
    assert answer.document["age_seconds"] == pytest.approx(888.6)
    assert answer.document["next_run"] == "2025-11-20T12:45:00.000Z"


def test_before_any_run_the_answer_has_the_next_run(node: ServedNode, port: int) -> None:
    """202, with the time of the first run in the body and in Retry-After."""
    node.report = samples.before_any_run(samples.healthy())
    answer = ask(port, PATH)
    assert (answer.status, answer.document["last"]) == (202, None)
    assert answer.document["next_run"] == "2025-11-20T12:00:07.000Z"
    assert answer.headers["Retry-After"] == "7"


@each_case(
    ("history", "query", "reason"),
    [
        ((OK,), "", None),
        ((OK,), "&max_age=24h", None),
        ((OK,), "&max_age=1h10m", "longer than 1 h 10 min"),
        ((OK, SKIP), "&max_age=2h", None),
        ((SKIP,), "", "No run has measured"),
        ((OK, replace(example.run(0), outcome="wrong")), "", "ended wrong"),
        ((OK, replace(example.run(0), outcome="degraded")), "", "ended degraded"),
        ((OK, replace(example.run(0), outcome="timeout", reason="join")), "", "join"),
        ((replace(example.run(2), outcome="wrong"), SKIP), "", "ended wrong"),
        ((example.run(2, outcome="wrong"), SOME), "", f"Run {SOME.id} is newer and was ok, but had only 4 of 8 GPUs"),
        ((example.run(2, outcome="wrong"), OK, SOME), "", None),
    ],
)
def test_assertion(
    node: ServedNode, port: int, history: tuple[ProbeResult, ...], query: str, reason: str | None
) -> None:
    """200 if the last run that was not skipped ended well and is young enough, else 503 with the reason."""
    node.report = ran(*history)
    answer = ask(port, f"{PATH}?assert=ok{query}")
    if reason is None:
        assert answer.status == 200
    else:
        assert is_problem(answer, 503)
        assert reason in answer.document["detail"]
        assert answer.document["probe"]["last"]["id"] == history[-1].id


def test_assertion_fails_before_any_run(node: ServedNode, port: int) -> None:
    """`curl -f` must fail if no run has measured: 202 would pass."""
    node.report = samples.before_any_run(samples.healthy())
    assert is_problem(ask(port, f"{PATH}?assert=ok"), 503)


@each_case("text", ["24", "-1h", "1h 2m", "1.5h", "", "h", "1h2", "24hours", "9" * 400 + "d", "1h" + "9" * 5000 + "d"])
def test_invalid_max_age_is_an_error(port: int, text: str) -> None:
    """An assertion that cannot be parsed must not pass."""
    answer = ask(port, f"{PATH}?assert=ok&max_age={text.replace(' ', '%20')}")
    assert is_problem(answer, 400)
    assert "max_age" in answer.document["detail"]


@pytest.mark.parametrize("query", ["max_age=24h", "assert=ok&max-age=24h", "assert=fine"])
def test_incomplete_assertion_is_an_error(port: int, query: str) -> None:
    """max_age alone, a misspelled parameter, an unknown value."""
    assert ask(port, f"{PATH}?{query}").status in (400, 422)


@each_case(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": TOKEN},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": "Bearer \xfc"},
    ],
)
def test_run_needs_the_token(node: ServedNode, port: int, headers: dict[str, str]) -> None:
    """Coming from loopback grants nothing, and nothing is asked of the main loop."""
    answer = ask(port, PATH, "POST", headers)
    assert is_problem(answer, 401)
    assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="gpumon"')
    assert "--web.token-file" in answer.document["remedy"]
    assert not node.requests


def test_agent_without_a_token_refuses_writes(node: ServedNode, port: int) -> None:
    """An unreadable token file does not disable authentication."""
    node.token = None
    assert is_problem(ask(port, PATH, "POST", {"Authorization": "Bearer None"}), 503)
    assert not node.requests


def test_run_is_started(node: ServedNode, port: int) -> None:
    """202 with the id and the place of the result."""
    answer = ask(port, PATH, "POST", BEARER)
    assert (answer.status, answer.document) == (202, {"id": "run-1", "accepted": True})
    assert answer.headers["Location"] == "/api/v1/probes/run-1"
    assert node.requests == ["allreduce"]


def test_run_takes_no_parameter(node: ServedNode, port: int) -> None:
    """An unknown parameter starts no run."""
    answer = ask(port, f"{PATH}?backend=nccl", "POST", BEARER)
    assert is_problem(answer, 422)
    assert not node.requests


def test_second_request_joins_the_run(node: ServedNode, port: int) -> None:
    """While one is in progress its id is the answer."""
    node.answer = ProbeRequest(id="run-1", accepted=False)
    answer = ask(port, PATH, "POST", BEARER)
    assert (answer.status, answer.document) == (202, {"id": "run-1", "accepted": False})
    assert answer.headers["Location"] == "/api/v1/probes/run-1"


def test_refused_run_is_a_conflict(node: ServedNode, port: int) -> None:
    """409 with the reason, the remedy and the id of the skipped run."""
    node.answer = ProbeRequest(id="run-2", accepted=False, reason="busy", hint="Wait until the job has ended.")
    answer = ask(port, PATH, "POST", BEARER)
    assert is_problem(answer, 409)
    assert (answer.document["reason"], answer.document["remedy"]) == ("busy", "Wait until the job has ended.")
    assert answer.headers["Location"] == "/api/v1/probes/run-2"


def test_main_loop_that_does_not_answer_is_an_error(
    node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets 503 after a timeout."""
    monkeypatch.setattr(probe, "TIMEOUT_SECONDS", 0.05)
    node.answer = None
    assert is_problem(ask(port, PATH, "POST", BEARER), 503)


def test_unknown_probe_lists_the_existing_ones(node: ServedNode, port: int) -> None:
    """404 to read and to run, and no run is started."""
    for answer in (ask(port, "/probe/broadcast"), ask(port, "/probe/broadcast", "POST", BEARER)):
        assert is_problem(answer, 404)
        assert answer.document["probes"] == list(PROBES)
        assert "allreduce" in answer.document["remedy"]
    assert not node.requests


def test_probe_on_request_has_neither_schedule_nor_metrics(
    node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last run and progress are shown, and those of the all-reduce do not change."""
    monkeypatch.setitem(PROBES, "broadcast", replace(PROBES["allreduce"], name="broadcast"))
    other = replace(example.run(0), id="other", probe="broadcast", outcome="failed")
    state = replace(ran(OK, other).probe, running="run-9", running_probe="broadcast")
    node.report = replace(samples.healthy(), probe=state)
    shown = ask(port, "/probe/broadcast").document
    ProbeResponse.model_validate(shown)
    assert (shown["last"]["id"], shown["running"], shown["next_run"], shown["metrics"]) == (
        "other",
        "run-9",
        None,
        None,
    )
    assert is_problem(ask(port, "/probe/broadcast?assert=ok"), 503)
    all_reduce = ask(port, f"{PATH}?assert=ok").document
    assert (all_reduce["last"]["id"], all_reduce["running"]) == (OK.id, None)
