"""/probe/NAME and /api/v1/probes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import example_node as example
import pytest
import sample_reports as samples
from each_case import each_case
from sample_reports import STAMP
from serving import BEARER, TOKEN, ServedNode, ask, is_problem
from stores import read, write

from gpumon.cli.main import main
from gpumon.outputs.responses.probes import ProbeResponse, RunsResponse
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import ProbeRequest, ProbeResult, from_document
from gpumon.probe.core.state import ProbeState
from gpumon.server import probe
from gpumon.server.probe import PAGE_SIZE
from gpumon.state.report import Report
from gpumon.store import probe_runs
from gpumon.store.probe_runs import RunQuery
from gpumon.store.store import Store

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


def runs(count: int) -> tuple[ProbeResult, ...]:
    """One an hour, the newest last; those of odd hours are copies."""
    names = ("allreduce", "copy")
    return tuple(
        replace(example.run(hours), id=f"r{hours}", probe=names[hours % 2], log="pid 4711 of alice")
        for hours in reversed(range(count))
    )


def store(folder: Path, *results: ProbeResult) -> Path:
    path = folder / "gpumon.db"
    with Store.open(path) as one:
        for result in results:
            write(one, probe_runs.record, result)
    return path


def remembering(node: ServedNode, *results: ProbeResult) -> None:
    node.report = replace(samples.healthy(), probe=ProbeState(history=results))


def run_ids(port: int, query: str = "") -> list[str]:
    return [each["id"] for each in ask(port, f"/api/v1/probes?{query}").document["probes"]]


@each_case(
    ("query", "ids"),
    [
        ("limit=2", ["r0", "r1"]),
        ("since=3h30m", ["r0", "r1", "r2", "r3"]),
        ("since=3h30m&until=1h30m", ["r2", "r3"]),
        ("probe=copy&limit=2", ["r1", "r3"]),
        (f"until={STAMP.wall - 5 * 3600}&limit=1", ["r5"]),
        ("since=1m", []),
    ],
)
@each_case("stored", [True, False])
def test_runs_are_filtered(
    node: ServedNode, port: int, query: str, ids: list[str], tmp_path: Path, *, stored: bool
) -> None:
    """By probe, time and number, in the store and in the Report."""
    results = runs(8)
    remembering(node, *(() if stored else results))
    node.store = store(tmp_path, *results) if stored else None
    answer = ask(port, f"/api/v1/probes?{query}").document
    assert ([each["id"] for each in answer["probes"]], answer["complete"]) == (ids, stored)
    RunsResponse.model_validate(answer)


def test_runs_of_store_and_report_are_merged(node: ServedNode, port: int, tmp_path: Path) -> None:
    """A run of both is listed once."""
    old, both, unstored = runs(3)
    remembering(node, both, unstored)
    node.store = store(tmp_path, old, both)
    assert run_ids(port) == ["r0", "r1", "r2"]


def test_every_run_is_found_page_by_page(node: ServedNode, port: int, tmp_path: Path) -> None:
    """In one answer over several queries of the store, and in several answers by `until`."""
    count = 2 * PAGE_SIZE + 7
    remembering(node)
    node.store = store(tmp_path, *runs(count))
    assert run_ids(port, "limit=1000") == [f"r{hours}" for hours in range(count)]
    first = ask(port, "/api/v1/probes?limit=150").document["probes"]
    assert run_ids(port, f"limit=150&until={first[-1]['started']}") == [f"r{hours}" for hours in range(150, count)]


def test_stored_run_is_shown(node: ServedNode, port: int, tmp_path: Path) -> None:
    """The output of its ranks needs the token, and is in no list."""
    remembering(node)
    node.store = store(tmp_path, *runs(2))
    assert ask(port, "/api/v1/probes/r1").document["probe"] == "copy"
    assert b"alice" not in ask(port, "/api/v1/probes/r1").body + ask(port, "/api/v1/probes", headers=BEARER).body
    assert ask(port, "/api/v1/probes/r1", headers=BEARER).document["log"] == "pid 4711 of alice"
    assert is_problem(ask(port, "/api/v1/probes/r9"), 404)


def test_unreadable_run_is_skipped(tmp_path: Path) -> None:
    """Lists continue behind it."""
    path = store(tmp_path, *runs(3))
    with Store.open(path) as one:
        write(
            one,
            probe_runs.record,
            from_document({"id": "odd", "probe": "copy", "outcome": "ok", "started": STAMP.wall}),
        )
        with one.writing() as connection:
            connection.execute("UPDATE probe_runs SET run = '{}' WHERE id = 'odd'")
        page = read(one, probe_runs.find, RunQuery(limit=2))
        assert [each.id for each in page.results] == ["r0"]
        assert [each.id for each in read(one, probe_runs.find, RunQuery(before=page.last)).results] == ["r1", "r2"]


def test_history_reads_all_pages(
    node: ServedNode, port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No run is missing, and none is listed twice."""
    monkeypatch.setattr("gpumon.cli.probe.PAGE", 3)
    remembering(node, *runs(8))
    assert main(["probe", "history", "--json", f"--url=http://127.0.0.1:{port}"]) == 0
    assert [load["id"] for load in json.loads(capsys.readouterr().out)] == [f"r{hours}" for hours in range(8)]
