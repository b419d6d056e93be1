"""Concludes which ranks hold up a job. Pure: evidence in, Conclusion out.

A rank is named only with evidence of its own. If the evidence is incomplete or contradicts itself, none is named.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpumon.cli.hang.evidence import NO_PROCESS, CodeLine, Evidence, RankEvidence
from gpumon.cli.hang.wait_graph import Wait, WaitGraph

DEAD = {NO_PROCESS: "has no process", "Z": "has exited (state Z)"}
STOPPED = {"T": "is stopped (state T: SIGSTOP, or a frozen job)", "t": "is stopped by a debugger (state t)"}
_LIBRARY = re.compile(r"/torch/|/lib/python[\d.]+/(?!site-packages|dist-packages)|^<")
"""Matches names of files that are not the job's own code."""
_MAX_SLOW, _MIN_OTHERS = 0.17, 0.4
"""Maximum share of samples in which a slow rank waits, and minimum share in which every other rank waits."""
_RING = "set TORCH_FR_BUFFER_SIZE=2000 and TORCH_NCCL_TRACE_BUFFER_SIZE=2000: up to torch 2.10 the recorder is off"
_SERVER = "start a worker server in each rank, which answers while the job hangs: see docs/explain.md"
_STACKS = "install py-spy (gpumon[explain]) and run as root, for the line of code of a rank that does not answer"
_ALL_RANKS = "collect the dumps of all ranks in one folder, and pass it with --from"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A rank that holds up the job, and the evidence."""

    rank: int
    host: str
    pid: int | None
    gpu: str | None
    reasons: tuple[str, ...]
    line: CodeLine | None


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The result of `gpumon explain` for one job. Without suspects `summary` states why none is named."""

    summary: str
    suspects: tuple[Suspect, ...]
    collective: str
    """The operation in which the other ranks wait; empty if there is none."""
    sizes: str
    waiting: tuple[int, ...]
    next_time: tuple[str, ...]


_Reasons = Mapping[int, Sequence[str]]
"""Reasons by suspect; empty: no rank can be named."""


def conclude(evidence: Evidence) -> Conclusion:
    """Return the conclusion about a job."""
    graph, moving = WaitGraph(evidence), any(each.moving for each in evidence.ranks)
    hung = {} if moving else _hung(evidence, graph)
    summary, reasons = (
        _by_mismatch(graph)
        or _by_state(evidence, graph, hung)
        or (hung and (f"held up by {names(hung)}", hung))
        or (_slow(evidence) if moving else (f"no rank can be named: {_why_none(graph)}", {}))
    )
    waits = [] if moving else [*(graph.roots[rank] for rank in reasons if rank in graph.roots), *graph.waits]
    named = [each for each in evidence.ranks if each.rank in reasons]
    return Conclusion(
        summary,
        tuple(Suspect(e.rank, e.host, e.pid, e.gpu, tuple(reasons[e.rank]), line_of_code(e)) for e in named),
        collective=str(waits[0].operation) if waits else "",
        sizes=waits[0].operation.sizes if waits else "",
        waiting=tuple(sorted({wait.rank for wait in waits} - set(reasons))),
        next_time=tuple(_next_time(evidence)),
    )


def _by_mismatch(graph: WaitGraph) -> tuple[str, _Reasons] | None:
    """Return what different collectives at one sequence number prove; None if there are none."""
    if (mismatch := graph.mismatch()) is None:
        return None
    where, sides = mismatch
    (common, many), (name, few), *others = sides
    if others or len(few) > 1 or len(many) == 1:
        shown = "; ".join(f"{name}: {names(ranks)}" for name, ranks in sides)
        return f"no rank can be named: either side may be wrong at {where} ({shown})", {}
    reason = f"it calls {name} as {where}, where {names(many)} call {common}"
    return f"rank {few[0]} calls another collective than the others", {few[0]: [reason]}


def _by_state(evidence: Evidence, graph: WaitGraph, hung: _Reasons) -> tuple[str, _Reasons] | None:
    """Return what the states of processes prove; None if no process is stopped or gone."""
    dead = {each.rank: f"it {DEAD[each.state]}" for each in evidence.ranks if each.state in DEAD}
    stopped = {each.rank: f"it {STOPPED[each.state]}" for each in evidence.ranks if each.state in STOPPED}
    if len(stopped) > 1 and len(stopped) + len(dead) == len(evidence.ranks):
        return "no rank can be named: every process is stopped, so the job as a whole was suspended", {}
    if evidence.ending or len(dead) > 1 or (dead and hung):
        ranks = dead if len(dead) > 1 or not hung else {*dead, *hung}
        which = f"of {names(ranks)}" if ranks else "rank"
        return f"no rank can be named: which {which} failed first is not recorded", {}
    if dead and not stopped and not graph.waits:
        return f"no rank can be named: {names(dead)} has ended, and no rank waits for it: perhaps normally", {}
    if not (named := {rank: [reason] for rank, reason in (dead | stopped).items()}):
        return None
    return f"held up by {names(named)}, whose process is {'stopped' if stopped else 'gone'}", named


def _hung(evidence: Evidence, graph: WaitGraph) -> _Reasons:
    """Return the ranks that keep a job from moving, by its recorders, tracebacks and stacks."""
    reasons: dict[int, list[str]] = defaultdict(list)
    for rank, wait in _roots(evidence, graph).items():
        waiting = {each.rank: each.operation.enqueued_at for each in graph.waits if rank in each.behind}
        since = min((at for at in waiting.values() if at is not None), default=None)
        age = f" for {evidence.read_at - since:.0f} s" if evidence.read_at is not None and since is not None else ""
        reasons[rank].append(f"it did not enqueue {wait.operation}, awaited by {names(waiting)}{age}")
    for rank, (operation, last) in graph.overtaken().items():
        missed = f"{operation} and later ones up to {last}, which other members completed with its data"
        reasons[rank].append(f"it did not observe the end of {missed}: its GPU or its CUDA context failed")
    for rank in _holding_gil(evidence.ranks, graph):
        reasons[rank].append("a thread holds its GIL: its worker server answers, but returns no traceback")
    for rank in () if graph.recordings else _outside(evidence.ranks):
        reasons[rank].append("it is outside of torch.distributed at both samples, and all others are inside")
    return reasons


def _roots(evidence: Evidence, graph: WaitGraph) -> dict[int, Wait]:
    """Return the roots of the wait graph without those whose stack shows that they wait for a peer nevertheless."""
    roots = {
        each: graph.roots[each.rank] for each in evidence.ranks if each.rank in graph.roots and not _is_inside(each)
    }
    if graph.unrecorded and (len(roots) > 1 or not all(each.stack for each in roots)):
        return {}
    return {each.rank: wait for each, wait in roots.items()}


def _is_inside(rank: RankEvidence) -> bool:
    """Return whether the innermost call in the job's code is one of torch.distributed, by the stack."""
    calls = itertools.takewhile(lambda line: _LIBRARY.search(line.file), rank.stack or ())
    return any("/torch/distributed/" in line.file for line in calls)


def _holding_gil(ranks: Iterable[RankEvidence], graph: WaitGraph) -> list[int]:
    answers = {each.rank: each.traceback_answered for each in ranks if each.traceback_answered is not None}
    silent = [rank for rank, answered in answers.items() if not answered and rank not in graph.waiting]
    return silent if len(silent) * 2 <= len(answers) else []


def _outside(ranks: Sequence[RankEvidence]) -> list[int]:
    """Return the one rank whose stack is outside of torch.distributed, if all stacks were read and did not change."""
    outside = [each for each in ranks if not _is_inside(each)]
    own = [each.rank for each in outside if each.stack and "/torch/" not in each.stack[0].file]
    same = len(ranks) > 1 and all(each.stack and each.stack_unchanged for each in ranks)
    return own if same and len(own) == len(outside) == 1 else []


def _slow(evidence: Evidence) -> tuple[str, _Reasons]:
    """Return the rank that waits for no other rank in a job that moves, if all samples agree."""
    shares = {each.rank: each.waiting_shares for each in evidence.ranks}
    slow = [rank for rank, halves in shares.items() if halves and max(halves) <= _MAX_SLOW]
    others = [share for rank, halves in shares.items() if rank not in slow for share in halves]
    blocking = all(each.recording and each.recording.blocking for each in evidence.ranks)
    if len(slow) != 1 or min(others, default=0) < _MIN_OTHERS or not blocking or not all(shares.values()):
        return "no rank can be named: the job moves, and none is slower than all others at each sample", {}
    share = f"{max(shares[slow[0]]):.0%} of the samples, the others in {min(others):.0%} to {max(others):.0%}"
    return f"the job moves, slowed down by rank {slow[0]}", {slow[0]: [f"it waits for others in {share}"]}


def _why_none(graph: WaitGraph) -> str:
    unread = {rank for wait in graph.waits for rank in wait.unread}
    if not graph.recordings:
        return "no flight recorder was read"
    if unread:
        return f"others wait for {names(unread)}, not read"
    if any(wait.behind for wait in graph.waits):
        return "each rank that is behind may itself wait for another one"
    if graph.waits:
        return "each rank entered the collective in which it waits: look at the network and the GPUs"
    return "no rank waits in a collective that can be compared"


def _next_time(evidence: Evidence) -> Iterator[str]:
    """Yield what to set before the next hang, by what was not read in this one."""
    live = [each for each in evidence.ranks if each.pid is not None and each.state not in DEAD]
    recordings = [each.recording for each in evidence.ranks if each.recording is not None]
    if not any(recording.operations for recording in recordings):
        yield _RING
    if any(each.recording is None and each.state not in STOPPED for each in live):
        yield _SERVER
    if any(each.stack is None for each in live):
        yield _STACKS
    if {rank for each in recordings for group in each.groups for rank in group.ranks} - evidence.numbers:
        yield _ALL_RANKS


def line_of_code(rank: RankEvidence) -> CodeLine | None:
    """Return the innermost line of the job's own code in the stack or, without one, in its last operation."""
    operations = rank.recording.operations if rank.recording is not None else ()
    stack = rank.stack or (operations[-1].stack if operations else ())
    return next((line for line in stack if not _LIBRARY.search(line.file)), next(iter(stack), None))


def names(ranks: Iterable[int]) -> str:
    """Return ranks as text, such as `ranks 0-2, 5`."""
    numbers = set(ranks)
    starts = sorted(each for each in numbers if each - 1 not in numbers)
    ends = sorted(each for each in numbers if each + 1 not in numbers)
    spans = [str(first) if first == last else f"{first}-{last}" for first, last in zip(starts, ends, strict=True)]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(spans)}"
