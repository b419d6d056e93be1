"""/api/v1/probes and `gpumon probe history`: as far back as the store goes, without the store too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import example_node as example
import pytest
import sample_reports as samples
from each_case import each_case
from sample_reports import STAMP
from serving import BEARER, ServedNode, ask, is_problem
from stores import read, write

from gpumon.cli.main import main
from gpumon.outputs.responses.probes import RunsResponse
from gpumon.probe.core.result import ProbeResult, from_document
from gpumon.probe.core.state import ProbeState
from gpumon.server.probe_history import PAGE_SIZE
from gpumon.store import probe_runs
from gpumon.store.probe_runs import RunQuery
from gpumon.store.store import Store


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
