"""Locates the rank, or the path between two ranks, that is slow or corrupts data, from exchanges of all pairs. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from gpumon.probe.core.evidence import (
    NO_OBSERVATIONS,
    OK,
    Ends,
    Observations,
    finding_sentences,
    findings,
    missing_access,
    name,
)
from gpumon.probe.core.passes import Pass, measurements, pairs
from gpumon.probe.core.plan import Measure
from gpumon.probe.core.result import Location, Pair

SLOW = 0.7
"""A rank or pair is slow if its bandwidth is below this share of the bandwidth of other ranks or pairs."""
APART = 2.0
"""A rank or pair is also slow if it is below the others by more than this many times their spread (max minus min)."""
MIN_APART = 0.03
"""Min gap for APART, as a share of the bandwidth of the fastest other pair."""
TWO = 2
"""Number of ends of a path. In a run on only two ranks, the slow one cannot be determined."""
MIN_SLOW_SHARE = 0.75
"""A rank is slow if more than this share of its pairs is slow."""
FOUR = 4
"""Min number of ranks with which the bandwidths of a rank can be compared with the spread of the other pairs (APART).
"""
AS_BUILT = ", but NVML reports no NVLinks there: the board may be built so, and the fault cannot be located"
NO_SINGLE_RANK = "No rank is clearly slower than all others: the fault cannot be located"
NO_PAIR = "No single pair is slower than the others: the fault cannot be located"
PAIRS_CORRECT = "Every pair alone exchanged correct data: the source of the wrong data cannot be located"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Blame:
    """The ranks to blame for a fault, none if it cannot be located, and a sentence that names them."""

    ranks: tuple[int, ...]
    sentence: str
    wrong: bool = False


def locate(run_pass: Pass, observations: Observations = NO_OBSERVATIONS) -> Location | None:
    """Return the location of the fault; None if the pass has no measurements that could show or locate a fault.

    `observations` may show the cause, or the GPU to blame if the exchanges do not.
    """
    measured, gpus = pairs(run_pass), run_pass.plan.gpus
    names = [name(uuid, observations) for uuid in gpus] or [f"rank {rank}" for rank in range(run_pass.plan.ranks)]
    blame = _blame(run_pass, measured, names, observations)
    if blame is None:
        return None
    lacks = missing_access({uuid: observations[uuid] for uuid in gpus if uuid in observations})
    blame = _with_access(run_pass, blame, lacks, names) or _with_cause(run_pass, blame, findings(observations), names)
    unreachable = [pair.ranks for pair in measured if pair.direct is False and any(each.direct for each in measured)]
    return Location(
        message=f"{blame.sentence}.",
        ranks=blame.ranks,
        gpus=tuple(gpus[rank] for rank in blame.ranks) if gpus else (),
        pairs=tuple(replace(pair, peer_access=_peer_access(run_pass, pair, observations)) for pair in measured),
        evidence=(
            *finding_sentences(observations),
            *(
                f"{name(a, observations)} and {name(b, observations)} {words}, by NVML."
                for (a, b), words in lacks.items()
            ),
            *(
                f"{names[a]} and {names[b]} cannot access each other's memory, as other pairs can."
                for a, b in unreachable
            ),
        ),
    )


def _with_access(run_pass: Pass, blame: _Blame, lacks: Mapping[Ends, str], names: Sequence[str]) -> _Blame | None:
    """Return the blame with a phrase on missing peer access (`lacks`); None if that does not explain the fault.

    If no rank is blamed, blame the GPU that all pairs without access have in common, or both GPUs of the only pair.
    """
    if not lacks:
        return None
    blamed = {run_pass.plan.gpus[rank] for rank in blame.ranks}
    own = {ends: words for ends, words in lacks.items() if blamed <= set(ends)}
    if blame.wrong or len(set(own.values())) != 1:
        return None
    words, common = next(iter(own.values())), set.intersection(*map(set, own))
    if not common:
        return None
    ranks = tuple(sorted(map(run_pass.plan.gpus.index, common)))
    if len(common) == TWO:
        others = "they" if len(blamed) != 1 else " and ".join(names[rank] for rank in ranks)
    else:
        others = f"it and {len(own)} others"
    if blamed:
        return replace(blame, sentence=f"{blame.sentence}: {others} {words}")
    two = f"{' and '.join(names[rank] for rank in ranks)} stand{'' if len(common) == TWO else 's'} out"
    return _Blame(ranks=ranks, sentence=f"{blame.sentence}; but {two}: {others} {words}")


def _with_cause(run_pass: Pass, blame: _Blame, odd: Mapping[str, Sequence[str]], names: Sequence[str]) -> _Blame:
    """Return the blame with findings about the blamed GPUs. If none is blamed, blame the only GPU with findings."""
    if blame.wrong or not odd:
        return blame
    if not blame.ranks and len(odd) == 1:
        [(gpu, words)] = odd.items()
        rank = run_pass.plan.gpus.index(gpu)
        sentence = f"{blame.sentence}; but {names[rank]} stands out: {words[0]}"
        return _Blame(ranks=(rank,), sentence=sentence)
    causes = {rank: odd[run_pass.plan.gpus[rank]][0] for rank in blame.ranks if run_pass.plan.gpus[rank] in odd}
    if not causes:
        return blame
    if len(blame.ranks) == 1:
        return replace(blame, sentence=f"{blame.sentence}: {causes[blame.ranks[0]]}")
    causes_text = "; ".join(f"of {names[rank]}, {word}" for rank, word in causes.items())
    return replace(blame, sentence=f"{blame.sentence}: {causes_text}")


def _blame_independent_rank(run_pass: Pass, names: Sequence[str]) -> _Blame | None:
    """Return the ranks with wrong elements, else the clearly slowest or only rank; None if the pass shows no fault."""
    wrong = tuple(account.rank for account in run_pass.accounts if any(sized.wrong for sized in account.sizes.values()))
    if wrong:
        named = " and ".join(names[rank] for rank in wrong)
        return _Blame(ranks=wrong, sentence=f"The wrong data is that of {named}", wrong=True)
    if len(run_pass.steps) == len(run_pass.plan.measures):
        return None
    if run_pass.plan.ranks == 1:
        return _Blame(ranks=(0,), sentence=f"Only {names[0]} took part")
    slow = _slowest_rank(run_pass)
    sentence = f"{names[slow[0]]} is slower than the others" if slow else NO_SINGLE_RANK
    return _Blame(ranks=slow, sentence=sentence)


def _slowest_rank(run_pass: Pass) -> tuple[int, ...]:
    """Return the one rank that is clearly slower than all others at the largest size of any step; () if none is."""
    for number, step in enumerate(run_pass.steps):
        if isinstance(step, Measure):
            sizes = [account.sizes.get((number, max(step.sizes))) for account in run_pass.accounts]
            times = sorted((statistics.median(sized.seconds), rank) for rank, sized in enumerate(sizes) if sized)
            if len(times) == run_pass.plan.ranks and times[-2][0] < SLOW * times[-1][0]:
                return (times[-1][1],)
    return ()


# Pairs


def _blame(run_pass: Pass, measured: Sequence[Pair], names: Sequence[str], observations: Observations) -> _Blame | None:
    if run_pass.plan.probe.alone or not measured:
        return _blame_independent_rank(run_pass, names) if run_pass.plan.probe.alone else None
    if any(any(pair.wrong_elements) for pair in measured):
        ranks = _wrong_ranks(measured, run_pass.plan.ranks)
        return _Blame(ranks=ranks, sentence=_wrong_sentence(ranks, measured, names), wrong=True)
    if any(measurement.wrong_elements for measurement in measurements(run_pass)):
        return _Blame(ranks=(), sentence=PAIRS_CORRECT, wrong=True)
    ranks = culprits(measured, run_pass.plan.ranks)
    sentence = _slow_sentence(run_pass, ranks, names)
    # only two of three GPUs may share an NVLink bridge or a CPU socket
    own = [pair for pair in measured if set(ranks) <= set(pair.ranks)]
    linked = all((_peer_access(run_pass, pair, observations) or {}).get("nvlink") == OK for pair in own)
    if run_pass.plan.gpus and ranks and run_pass.plan.ranks < FOUR and not linked:
        return _Blame(ranks=(), sentence=f"{sentence}{AS_BUILT}")
    return _Blame(ranks=ranks, sentence=sentence)


def culprits(measured: Sequence[Pair], ranks: int) -> tuple[int, ...]:
    """Return the slow ranks: one rank, or the two ends of a slow path; () if no rank and no path can be named."""
    if ranks == TWO:
        return ()
    ordered = sorted(measured, key=lambda pair: pair.bandwidth_bytes_per_second)
    ratios = [lower.bandwidth_bytes_per_second / upper.bandwidth_bytes_per_second for lower, upper in pairwise(ordered)]
    gap = min(ratios, default=1.0)  # the widest between two successive bandwidths
    slow = [pair.ranks for pair in ordered[: ratios.index(gap) + 1]] if gap < SLOW else []
    suspects = [
        rank
        for rank in range(ranks)
        if sum(rank in pair for pair in slow) > MIN_SLOW_SHARE * sum(rank in pair.ranks for pair in measured)
    ]
    if len(suspects) == 1:
        return (suspects[0],)
    if len(slow) == 1:
        return slow[0]
    return _distant_ranks(measured, ranks) if ranks >= FOUR else ()


def slow_pairs(measured: Sequence[Pair]) -> tuple[tuple[int, int], ...]:
    """Return the pairs slower than the faster half of all: with 4 ranks one slow rank slows half of the pairs."""
    ordered = sorted((pair.bandwidth_bytes_per_second for pair in measured), reverse=True)
    usual = statistics.median(ordered[: max(1, len(ordered) // 2)])
    return tuple(pair.ranks for pair in measured if pair.bandwidth_bytes_per_second < SLOW * usual)


def _distant_ranks(measured: Sequence[Pair], ranks: int) -> tuple[int, ...]:
    """Return the rank, or the pair, whose bandwidths are clearly below those of all other pairs; () if there is none.

    This finds a GPU that lost one of its many NVLinks: all its pairs are slower by the same small amount.
    """
    groups: Iterator[tuple[int, ...]] = ((rank,) for rank in range(ranks))
    for suspects in (*groups, *(pair.ranks for pair in measured)):
        own = [pair.bandwidth_bytes_per_second for pair in measured if set(suspects) <= set(pair.ranks)]
        others = [pair.bandwidth_bytes_per_second for pair in measured if not set(suspects) <= set(pair.ranks)]
        if not own or len(others) < TWO:
            continue
        gap, spread = min(others) - max(own), max(others) - min(others)
        if max(own) < SLOW * min(others) or gap > max(APART * spread, MIN_APART * max(others)):
            return suspects
    return ()


def _wrong_ranks(measured: Sequence[Pair], ranks: int) -> tuple[int, ...]:
    """Return the ranks to blame for wrong data; () if its source cannot be located.

    These are the ranks whose send buffer was wrong, else the ends of the only path with wrong data, else the ranks that
    sent wrong data to, or received it from, every other rank, else the rank that took part in every wrong transfer.
    """
    senders = {rank for pair in measured for rank, own in zip(pair.ranks, pair.wrong_send_elements, strict=True) if own}
    if senders:
        return tuple(sorted(senders))
    ways = set[tuple[int, int]]()
    for pair in measured:
        (a, b), (wrong_at_b, wrong_at_a) = pair.ranks, pair.wrong_elements
        ways |= {(a, b)} if wrong_at_b else set()
        ways |= {(b, a)} if wrong_at_a else set()
    if len({frozenset(way) for way in ways}) == 1:
        return tuple(sorted(next(iter(ways))))
    sources = {source for source, _ in ways if sum(way[0] == source for way in ways) == ranks - 1}
    sinks = {sink for _, sink in ways if sum(way[1] == sink for way in ways) == ranks - 1}
    for ends, place in ((sources, 0), (sinks, 1)):
        if ends and all(way[place] in ends for way in ways):
            return tuple(sorted(ends))
    common = set.intersection(*(set(way) for way in ways))
    return tuple(common)


def _wrong_sentence(ranks: Sequence[int], measured: Sequence[Pair], names: Sequence[str]) -> str:
    named = [names[rank] for rank in ranks]
    if any(any(pair.wrong_send_elements) for pair in measured):
        return f"Wrong data comes from {' and from '.join(named)}"
    if not named:
        return "Several ranks exchange wrong data: its source cannot be located"
    if len(named) == TWO:
        return f"Wrong data goes between {' and '.join(named)}: from one of them, or over their path"
    return f"Every exchange of wrong data is one with {' or '.join(named)}"


def _slow_sentence(run_pass: Pass, ranks: Sequence[int], names: Sequence[str]) -> str:
    if run_pass.plan.ranks == TWO:
        return "The slow one of two ranks cannot be located"
    named = [names[rank] for rank in ranks]
    if len(named) == 1:
        return f"{named[0]} is slow with every other"
    if named:
        return f"Only the path between {named[0]} and {named[1]} is slow"
    return NO_PAIR


def _peer_access(run_pass: Pass, pair: Pair, observations: Observations) -> Mapping[str, str] | None:
    """Return the peer access that NVML reports for a pair, by capability; None on the CPU, or if it was not read."""
    if not run_pass.plan.gpus:
        return None
    a, b = (run_pass.plan.gpus[rank] for rank in pair.ranks)
    return observations[a].last.peer_access.get(b) if a in observations else None
