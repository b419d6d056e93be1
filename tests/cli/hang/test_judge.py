"""Conclusions from evidence: recordings of real gloo jobs, and values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from each_case import each_case

from gpumon.cli.hang.dump import recording
from gpumon.cli.hang.evidence import (
    NO_PROCESS,
    CodeLine,
    Evidence,
    GroupStatus,
    RankEvidence,
    RecordedOperation,
    Recording,
)
from gpumon.cli.hang.judge import conclude

RECORDINGS = Path(__file__).with_name("recordings")
USER = CodeLine("/job/train.py", 7, "step")
WAITING = (CodeLine("/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce"), USER)


def recorded(name: str, **changed: Any) -> Evidence:
    """Return the evidence of a recorded gloo job."""
    ranks = json.loads((RECORDINGS / f"{name}.json").read_text())
    rows = (
        RankEvidence(int(rank), "n1", int(rank) + 100, "S", recording=recording(each)) for rank, each in ranks.items()
    )
    return replace(Evidence(name, tuple(rows), size=len(ranks)), **changed)


def rank(
    number: int,
    enqueued: int,
    completed: int,
    *,
    group: str = "0",
    members: Sequence[int] = (0, 1, 2),
    backend: str = "gloo",
    description: str = "",
    **changed: Any,
) -> RankEvidence:
    """Return a rank whose recorder has the operations of one group from the first on."""
    operations = tuple(
        RecordedOperation(group, each, f"{backend}:all_reduce", each <= completed, sizes="4 Float")
        for each in range(1, enqueued + 1)
    )
    status = GroupStatus(group, description, tuple(members), enqueued, completed)
    own = Recording("2.10", (status,), operations)
    return RankEvidence(number, "n1", number + 100, "S", recording=own, **changed)


def named(evidence: Evidence) -> list[int]:
    return [suspect.rank for suspect in conclude(evidence).suspects]


def with_states(states: str) -> Evidence:
    """Return ranks that wait, with these process states; those that cannot answer have no recording."""
    rows = [
        rank(number, 5, 4, members=range(len(states))) if state in "SD" else RankEvidence(number, "n1", number + 100)
        for number, state in enumerate(states)
    ]
    return Evidence(
        "job", tuple(replace(row, state=state) for row, state in zip(rows, states, strict=True)), size=len(states)
    )


@each_case(
    "name, suspects, summary",
    [
        ("sleeping_in_pairs", [2], "held up by rank 2"),
        ("order_of_three", [1], "rank 1 calls another collective than the others"),
        ("order_of_two", [], "no rank can be named: either side may be wrong"),
        ("peer_in_recv", [], "no rank can be named: each rank that is behind may itself wait for another one"),
    ],
)
def test_recorded_jobs(name: str, suspects: list[int], summary: str) -> None:
    """The culprit of a real gloo job is named, or none: of two ranks either may call the wrong collective."""
    conclusion = conclude(recorded(name))
    assert ([each.rank for each in conclusion.suspects], conclusion.summary[: len(summary)]) == (suspects, summary)


def test_a_stack_shows_which_rank_waits_in_recv() -> None:
    """Gloo records no send and recv: the stack exonerates the rank in recv, and the other one is named."""
    stacks = {0: (USER,), 1: WAITING, 2: WAITING}
    job = recorded("peer_in_recv")
    assert named(replace(job, ranks=tuple(replace(each, stack=stacks[each.rank]) for each in job.ranks))) == [0]


@each_case(
    "states, suspects, summary",
    [
        ("STS", [1], "held up by rank 1, whose process is stopped"),
        ("SXS", [1], "held up by rank 1, whose process is gone"),
        ("SZS", [1], "held up by rank 1, whose process is gone"),
        ("SXXS", [], "no rank can be named: which of ranks 1-2 failed first"),
        ("TTT", [], "no rank can be named: every process is stopped"),
        ("STX", [1, 2], "held up by ranks 1-2, whose process is stopped"),
        ("SSS", [], "no rank can be named: each rank entered the collective"),
    ],
)
def test_states_of_processes(states: str, suspects: list[int], summary: str) -> None:
    """One process that is gone or stopped is the culprit; if several are gone, the first one is unknown."""
    conclusion = conclude(with_states(states))
    assert ([each.rank for each in conclusion.suspects], conclusion.summary[: len(summary)]) == (suspects, summary)


def test_a_process_that_is_gone_while_none_waits_is_not_named() -> None:
    """It may have ended normally; a rank that waits for it shows that it did not."""
    quiet = Evidence("job", (rank(0, 5, 5), RankEvidence(1, "n1", state=NO_PROCESS)), size=2)
    conclusion = conclude(quiet)
    assert (conclusion.suspects, conclusion.summary) == (
        (),
        "no rank can be named: rank 1 has ended, and no rank waits for it: perhaps normally",
    )
    (waited_for,) = conclude(with_states("SXS")).suspects
    assert waited_for.reasons == ("it has no process",)


def test_a_job_that_ends_while_it_is_read_has_no_suspect() -> None:
    """Ranks end one after the other when a peer fails: the first one that is gone may be innocent."""
    assert named(with_states("SXS")) == [1]
    assert named(replace(with_states("SXS"), ending=True)) == []


def test_a_rank_behind_beside_a_rank_without_process_is_not_named() -> None:
    """Either may have failed first."""
    behind = Evidence("job", (rank(0, 5, 4), rank(1, 4, 4), RankEvidence(2, "n1", state=NO_PROCESS)), size=3)
    assert named(behind) == []
    assert "which of ranks 1-2 failed first" in conclude(behind).summary


def test_a_rank_that_waits_elsewhere_is_not_named() -> None:
    """Rank 1 is behind in the world because it waits for rank 2 in another group."""
    inner = rank(1, 9, 8, group="7", members=(1, 2)).recording
    outer = rank(1, 4, 4).recording
    assert inner is not None
    assert outer is not None
    both = Recording("2.10", outer.groups + inner.groups, outer.operations + inner.operations)
    ranks = (rank(0, 5, 4), replace(rank(1, 4, 4), recording=both), rank(2, 8, 8, group="7", members=(1, 2)))
    conclusion = conclude(Evidence("job", ranks, size=3))
    assert [each.rank for each in conclusion.suspects] == [2]
    assert "gloo:all_reduce 9 of group 7" in conclusion.suspects[0].reasons[0]
    unread = conclude(Evidence("job", (*ranks[:2], RankEvidence(2, "n1", 102, "S")), size=3))
    assert (unread.suspects, unread.summary) == ((), "no rank can be named: others wait for rank 2, not read")


def test_pipeline_groups_are_not_compared() -> None:
    """Their counts differ between healthy members."""
    for description, suspects in (("TENSOR_MODEL_PARALLEL_GROUP", [1]), ("PIPELINE_MODEL_PARALLEL_GROUP", [])):
        counts = enumerate((5, 3, 5))
        ranks = (rank(each, count, 3, backend="nccl", description=description) for each, count in counts)
        assert named(Evidence("job", tuple(ranks))) == suspects


def test_a_rank_that_does_not_observe_its_gpu_is_named() -> None:
    """Its peers completed two collectives with its data, and it has both pending."""
    ranks = (rank(0, 9, 8, backend="nccl"), rank(1, 9, 6, backend="nccl"), rank(2, 9, 8, backend="nccl"))
    assert named(Evidence("job", ranks)) == [1]
    one = (ranks[0], rank(1, 9, 7, backend="nccl"), ranks[2])
    assert named(Evidence("job", one)) == []


def test_a_thread_that_holds_the_gil_is_named() -> None:
    """The worker server answers, but with no traceback; a rank that waits for others is exonerated."""
    answered = [rank(each, 5, 5, traceback_answered=each != 2) for each in range(3)]
    assert named(Evidence("job", tuple(answered))) == [2]
    waiting = (rank(0, 4, 4, traceback_answered=True), *answered[1:2], rank(2, 5, 4, traceback_answered=False))
    assert named(Evidence("job", waiting)) == [0]


@each_case(
    "shares, suspects",
    [
        ([(0.5, 0.6), (0.0, 0.1), (0.5, 0.5)], [1]),
        ([(0.5, 0.6), (0.0, 0.3), (0.5, 0.5)], []),
        ([(0.5, 0.6), (0.0, 0.1), (0.5, 0.2)], []),
        ([(0.5, 0.6), (0.0, 0.1), (0.0, 0.0)], []),
        ([(0.5, 0.6), (0.0, 0.1), ()], []),
    ],
)
def test_a_slow_rank_waits_at_no_sample(shares: list[tuple[float, ...]], suspects: list[int]) -> None:
    """Both halves of the samples of all ranks must agree; a rank of a moving job is not named for being behind."""
    ranks = tuple(rank(each, 5 - each % 2, 4, moving=True, waiting_shares=own) for each, own in enumerate(shares))
    assert named(Evidence("job", ranks)) == suspects
    nccl = (rank(each, 5, 4, moving=True, waiting_shares=own, backend="nccl") for each, own in enumerate(shares))
    assert named(Evidence("job", tuple(nccl))) == []


def test_stacks_alone_name_the_one_rank_outside_of_torch() -> None:
    """Without recorders; not if a stack changed or a second rank is outside."""
    rows = [
        RankEvidence(each, "n1", each, "S", stack=(USER,) if each == 1 else WAITING, stack_unchanged=True)
        for each in range(3)
    ]
    conclusion = conclude(Evidence("job", tuple(rows)))
    assert [(each.rank, each.line) for each in conclusion.suspects] == [(1, USER)]
    assert named(Evidence("job", (*rows[:2], replace(rows[2], stack_unchanged=False)))) == []
    assert named(Evidence("job", (*rows[:2], replace(rows[2], stack=(USER,))))) == []
    assert any("TORCH_FR_BUFFER_SIZE" in line for line in conclusion.next_time)


def test_the_age_of_a_wait_is_reported() -> None:
    """The operator sees whether a rank is behind for seconds or for minutes."""
    job = recorded("sleeping_in_pairs")
    recorder = job.ranks[0].recording
    assert recorder is not None
    at = recorder.pending[0].enqueued_at
    assert at is not None
    (suspect,) = conclude(replace(job, read_at=at + 90)).suspects
    assert suspect.reasons[0].endswith("awaited by ranks 0-1, 3 for 90 s")
