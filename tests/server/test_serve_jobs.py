"""The routes about owners of GPUs, and who may read their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from job_reports import POD, SETTINGS, SLURM, claim, owners
from reduced_reports import gpu_reading, healthy, reduce_all, snapshot
from serving import TOKEN, ServedNode, ask, is_problem
from stores import write

from gpumon.model.allocation import Allocation, HolderProcess, Owner
from gpumon.model.instant import Instant
from gpumon.outputs.node_text import motion
from gpumon.state.messages import Tick
from gpumon.store import allocations
from gpumon.store.store import Store

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def held(node: ServedNode, tmp_path: Path) -> ServedNode:
    node.report = owners(healthy(), mapped=(claim(SLURM, "GPU-0", "GPU-1"), claim(POD, "GPU-2")))
    node.store = tmp_path / "gpumon.db"
    with Store.open(node.store) as store:
        old = Allocation(
            uuid="GPU-2",
            source="mapping",
            owner=Owner(slurm_job_id="17", user="alice"),
            began=Instant("boot", 1.0, 5e8),
            last_wall=6e8,
            ended=True,
        )
        write(store, allocations.put, [old])
    return node


@pytest.mark.usefixtures("held")
def test_jobs_name_their_gpus(port: int) -> None:
    """/api/v1/jobs lists each owner with its GPUs, and a single one is found by its id."""
    document = ask(port, "/api/v1/jobs").document
    assert [(job["id"], job["gpus"]) for job in document["jobs"]] == [("slurm/4711", [0, 1]), ("pod/ml/train-0", [2])]
    assert ask(port, "/api/v1/jobs/slurm/4711").document == document["jobs"][0]
    assert is_problem(ask(port, "/api/v1/jobs/slurm/1"), 404)


@pytest.mark.usefixtures("held")
def test_names_of_users_need_the_token(port: int) -> None:
    """No document, page or metric has the name of a user or account, except for a client with the token."""
    paths = ("/api/v1/jobs", "/api/v1/jobs/slurm/4711", "/api/v1/allocations")
    for path in (*paths, "/api/v1/report", "/api/v1/events", "/metrics", "/metrics/dcgm", "/"):
        answer = ask(port, path)
        assert answer.status == 200
        assert b"alice" not in answer.body, path
        assert b"physics" not in answer.body, path
    for path in paths:
        assert b"alice" in ask(port, path, headers=AUTHORIZED).body, path


def test_allocations_are_found_in_the_store_and_in_memory(held: ServedNode, port: int) -> None:
    """/api/v1/allocations joins those of the Report with those of the store; without the store it says so."""
    answer = ask(port, "/api/v1/allocations", headers=AUTHORIZED).document
    assert [each["job"] for each in answer["allocations"]] == ["slurm/17", "slurm/4711", "slurm/4711", "pod/ml/train-0"]
    of_gpu = ask(port, "/api/v1/allocations?gpu=2&until=700000000", headers=AUTHORIZED).document
    assert [each["owner"]["user"] for each in of_gpu["allocations"]] == ["alice"]
    held.store = None
    answer = ask(port, "/api/v1/allocations?gpu=2").document
    assert ([each["job"] for each in answer["allocations"]], answer["complete"]) == (["pod/ml/train-0"], False)


@pytest.mark.usefixtures("held")
def test_an_answer_that_is_cut_is_not_complete(port: int) -> None:
    """With more allocations than `limit`, in the store and in memory, those that began first are left out."""
    for limit, jobs, complete in ((3, 3, False), (4, 4, True)):
        answer = ask(port, f"/api/v1/allocations?limit={limit}").document
        assert (len(answer["allocations"]), answer["complete"]) == (jobs, complete), limit
        assert answer["allocations"][-1]["job"] == "pod/ml/train-0"
    assert is_problem(ask(port, "/api/v1/allocations?limit=10001"), 422)


def test_the_page_shows_who_holds_the_gpus(held: ServedNode, port: int) -> None:
    """The status page has a table of owners; a hostile name is text there, not HTML."""
    held.report = owners(healthy(), mapped=(claim(Owner(slurm_job_id="<script>x"), "GPU-0"),))
    page = ask(port, "/").body.decode()
    assert '<th scope="row">slurm/&lt;script&gt;x</th>' in page
    assert "<td>mapping</td>" in page
    assert "<script>x" not in page
    assert json.loads(ask(port, "/api/v1/jobs").body)["free"] == [1, 2]
    held.report = owners(held.report, at=130.0)
    assert "<td>mapping?</td>" in ask(port, "/").body.decode()


@pytest.mark.parametrize(("state", "text"), [("D", "waits for storage"), ("S", "")])
def test_a_job_that_waits_for_storage_is_shown(held: ServedNode, port: int, state: str, text: str) -> None:
    """While a process of it is in state D, or its cgroup reads or writes, it is never found stalled."""
    processes = {"7": HolderProcess(owner=SLURM, state=state)}
    read = snapshot(gpu_reading(0, pids=(7,), pids_at=105.0), at=105.0)
    report = reduce_all(read, at=105.0, report=healthy(), terms=SETTINGS)
    report = owners(report, mapped=(claim(SLURM, "GPU-0"),), processes=processes)
    held.report = reduce_all(read, Tick(), at=111.0, report=report, terms=SETTINGS)
    (job,) = ask(port, "/api/v1/jobs").document["jobs"]
    assert motion(job) == text
    assert job["waits_for_storage"] is bool(text)
