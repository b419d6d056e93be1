"""Real gloo jobs with a fault: the right rank is named, or none."""

from __future__ import annotations

import json

import pytest

from benchmarks.explain.job import gloo_job
from gpumon.cli.hang.collect import read_jobs
from gpumon.cli.hang.judge import conclude
from gpumon.cli.hang.stacks import find_py_spy
from gpumon.cli.main import main

pytest.importorskip("torch")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("stopped", "it is stopped (state T"),
        ("killed", "it has no process"),
        ("slow", "it waits for others in "),
        ("raising", "it did not enqueue gloo:all_reduce "),
        ("gil", "it did not enqueue gloo:all_reduce "),
        ("order", "it calls gloo:broadcast"),
    ],
)
def test_the_culprit_of_a_job_is_named(fault: str, reason: str) -> None:
    """With its process and the evidence, and no other rank is named.

    None may be named if a rank is slow on a busy host, or if its death has ended the wait of all others.
    """
    with gloo_job(fault, culprit=1, size=3, seed=2) as job:
        (read,), _ = read_jobs(str(job.ranks[0].pid))
    suspects = conclude(read).suspects
    assert [each.rank for each in suspects] == [1] or (fault in {"slow", "killed"} and not suspects)
    assert all(each.reasons[0].startswith(reason) for each in suspects)
    assert all(each.pid == job.ranks[1].pid for each in suspects if fault != "killed")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")
def test_a_job_without_worker_servers_is_judged_by_its_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    """py-spy shows the rank outside of torch.distributed, as soon as the others are inside."""
    with gloo_job("sleeping", culprit=1, size=2, seed=2, server=False) as job:
        while main(["explain", str(job.ranks[0].pid), "--json"]):
            (shown,) = json.loads(capsys.readouterr().out)["jobs"]
            assert shown["conclusion"]["suspects"] == []
    (shown,) = json.loads(capsys.readouterr().out)["jobs"]
    (suspect,) = shown["conclusion"]["suspects"]
    assert (suspect["rank"], suspect["line"]["function"]) == (1, "fail")
    assert any("worker server" in line for line in shown["conclusion"]["next_time"])
