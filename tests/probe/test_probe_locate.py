"""Who is named, from what every two ranks exchanged alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from each_case import each_case

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.evidence import GpuSample, add_samples
from gpumon.probe.core.frames import Account, Progress, Sized
from gpumon.probe.core.locate import AS_BUILT, NO_PAIR, NO_SINGLE_RANK, PAIRS_CORRECT, locate
from gpumon.probe.core.next_step import MAX_TRIES, next_step
from gpumon.probe.core.passes import Pass, pairs
from gpumon.probe.core.plan import Pairs, make_plans, rounds
from gpumon.probe.core.probes import PROBES
from gpumon.probe.core.result import Location

BYTES = 1 << 28
USUAL = 1e-3
"""Seconds of an exchange."""
JUDGE = Judge(probe="allreduce", backend="nccl")

Seconds = Callable[[int, int], float]
Wrong = Callable[[int, int], int]


def exchanged(ranks: int, seconds: Seconds, wrong: Wrong = lambda _a, _b: 0, spoilt: int | None = None) -> Pass:
    """All pairs once. `wrong(a, b)`: elements that came to b wrong from a; what `spoilt` gives was so before."""
    plan = make_plans(PROBES["allreduce"], [f"GPU-{n}" for n in range(ranks)], python="python3")[0]
    step = Pairs(bytes=BYTES, rounds=rounds(ranks))
    return Pass(
        plan=plan,
        steps=(step,),
        accounts=[
            Account(
                progress=Progress(rank=rank),
                pairs={
                    (0, peer): Sized(
                        seconds=(seconds(min(rank, peer), max(rank, peer)),) * 8,
                        wrong=wrong(peer, rank),
                        spoilt=int(rank == spoilt),
                    )
                    for peer in range(ranks)
                    if peer != rank
                },
            )
            for rank in range(ranks)
        ],
    )


def located(one: Pass) -> Location:
    location = locate(one)
    assert location is not None
    return location


def noisy(seed: int, spread: float, slower: Callable[[int, int], float]) -> Seconds:
    """Each pair takes the usual time, give or take, and so many times as long."""
    generator = random.Random(seed)  # noqa: S311 - the same every time
    kept: dict[tuple[int, int], float] = {}
    return lambda a, b: kept.setdefault((a, b), USUAL * generator.uniform(1, 1 + spread) * slower(a, b))


def with_rank(bad: int, times: float) -> Seconds:
    """So many times as long as usual for each pair of this rank."""
    return lambda a, b: times if bad in (a, b) else 1.0


def on_path(path: tuple[int, int], times: float) -> Seconds:
    """So many times as long as usual for this pair."""
    return lambda a, b: times if (a, b) == path else 1.0


@pytest.mark.parametrize(("ranks", "spread", "times"), [(4, 0.2, 2.0), (8, 0.2, 2.0), (4, 0.01, 1.06), (8, 0.01, 1.06)])
def test_a_slow_rank_is_named(ranks: int, spread: float, times: float) -> None:
    """It is slow with every other one; whether it takes twice as long, or a twentieth more."""
    for seed in range(20):
        bad = seed % ranks
        location = located(exchanged(ranks, noisy(seed, spread, with_rank(bad, times))))
        assert location.ranks == (bad,), (seed, location)
        assert location.gpus == (f"GPU-{bad}",)


def three(seconds: Seconds, *links: tuple[int, int]) -> Location:
    """Of three GPUs, between these of which NVML tells of NVLinks."""
    ends = [(0, 1), (0, 2), (1, 2)]
    one = exchanged(3, seconds)
    linked = {pair: {"nvlink": "ok" if pair in links else "not_supported"} for pair in ends}
    sights = [
        GpuSample(
            index=rank,
            uuid=uuid,
            at=1.0,
            peer_access={one.plan.gpus[sum(pair) - rank]: linked[pair] for pair in ends if rank in pair},
        )
        for rank, uuid in enumerate(one.plan.gpus)
    ]
    location = locate(one, add_samples({}, sights))
    assert location is not None
    return location


def test_of_three_that_are_all_linked_the_slow_one_or_path_is_named() -> None:
    """Where links say that it should be as fast as the others, and it is clearly not."""
    ends = [(0, 1), (0, 2), (1, 2)]
    for seed in range(20):
        bad = seed % 3
        assert three(noisy(seed, 0.2, with_rank(bad, 2.0)), *ends).ranks == (bad,), seed
        assert three(noisy(seed, 0.2, on_path(ends[bad], 2.0)), *ends).ranks == ends[bad], seed


@pytest.mark.parametrize("spread", [0.06, 0.2])
def test_of_three_that_differ_by_noise_nobody_is_named(spread: float) -> None:
    """How far two pairs are from each other does not tell how far a third may be."""
    for seed in range(200):
        location = three(noisy(seed, spread, lambda *_: 1.0), (0, 1), (0, 2), (1, 2))
        assert location.ranks == (), (seed, location)


@pytest.mark.parametrize("links", [((0, 1),), ()])
def test_of_three_the_one_without_nvlinks_is_not_named(links: tuple[tuple[int, int], ...]) -> None:
    """Two have a bridge, or a socket of their own; the third is as fast as it ever was."""
    location = three(noisy(0, 0.05, with_rank(2, 10.0)), *links)
    assert location.ranks == ()
    assert location.sentence == f"GPU 2 (GPU-2) is slow with every other{AS_BUILT}."


def test_on_the_cpu_ranks_are_named_by_their_numbers() -> None:
    """They have no GPUs, and NVML nothing to say of them."""
    [plan] = make_plans(PROBES["allreduce"], (), python="python3", cpu_ranks=4)
    for seconds, ranks, sentence in (
        (with_rank(2, 2.0), (2,), "rank 2 is slow with every other."),
        (on_path((0, 1), 2.0), (0, 1), "Only the path between rank 0 and rank 1 is slow."),
        (even, (), f"{NO_PAIR}."),
    ):
        location = located(replace(exchanged(4, seconds), plan=plan))
        assert (location.ranks, location.gpus, location.sentence) == (ranks, (), sentence)


@pytest.mark.parametrize("times", [2.0, 1.2])
def test_a_slow_path_is_named(times: float) -> None:
    """Two that are slow only with each other."""
    paths = [pair for together in rounds(8) for pair in together]
    for seed, path in enumerate(paths):
        location = located(exchanged(8, noisy(seed, 0.05, on_path(path, times))))
        assert location.ranks == path, (seed, location)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_nobody_is_named_where_no_pair_stands_apart(ranks: int) -> None:
    """Ordinary differences blame nobody, and neither do those of boards whose pairs are linked in two ways."""
    for seed in range(20):
        for slower in (lambda *_: 1.0, lambda a, b: 1.0 if a // 2 == b // 2 else 4.0):
            location = located(exchanged(ranks, noisy(seed, 0.1, slower)))
            assert location.ranks == (), (seed, location)
            assert "cannot be located" in location.sentence


def of(times: dict[tuple[int, int], float]) -> Seconds:
    """So many times as long as usual for these pairs."""
    return lambda a, b: USUAL * times.get((a, b), 1.0)


@pytest.mark.parametrize(
    "times",
    [
        {(0, 1): 1.025, (0, 2): 1.05, (0, 3): 1.075, (1, 2): 1.1, (1, 3): 1.2},
        {(0, 1): 2.0, (0, 2): 2.0},
        {(0, 1): 1.02, (0, 2): 1.02, (0, 3): 1.02},
    ],
    ids=["one after the other", "two of three", "by a fiftieth"],
)
def test_a_little_is_not_enough_to_blame(times: dict[tuple[int, int], float]) -> None:
    """Neither pairs that differ by degrees, nor a rank that is slow with some, nor what is hardly to be seen."""
    location = located(exchanged(4, of(times)))
    assert location.ranks == (), location


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({(0, 3): 110.0, (0, 2): 16.0, (2, 3): 0.5}, (0, 3)),
        ({(0, 3): 110.0, (1, 3): 100.0, (2, 3): 120.0, (0, 2): 30.0, (0, 1): 25.0}, (3,)),
    ],
    ids=["path", "rank"],
)
def test_a_gap_between_pairs_that_are_well_does_not_hide_who_is_slow(
    times: dict[tuple[int, int], float], named: tuple[int, ...]
) -> None:
    """On a busy host it may be the widest: what is far beyond all of them is slow all the same."""
    location = located(exchanged(4, of(times)))
    assert location.ranks == named, location


def even(_a: int, _b: int) -> float:
    return USUAL


def test_who_held_wrong_data_itself_is_named() -> None:
    """What was wrong before it left cannot have been spoilt on its way."""
    location = located(exchanged(4, even, lambda a, _: int(a == 2), spoilt=2))
    assert location.ranks == (2,)
    assert location.sentence == "Wrong data comes from GPU GPU-2."


@each_case(
    ("wrong", "named"),
    [
        (lambda a, _: int(a == 2), (2,)),
        (lambda _, b: int(b == 2), (2,)),
        (lambda a, b: int(2 in (a, b)), (2,)),
        (lambda a, _: int(a in (1, 2)), (1, 2)),
        (lambda a, b: int((a, b) == (1, 3)), (1, 3)),
        (lambda a, b: int((a, b) in ((1, 3), (0, 2))), ()),
    ],
    ids=["sends", "receives", "both", "two send", "path", "two paths"],
)
def test_who_stands_at_one_end_of_all_wrong_data_is_named(wrong: Wrong, named: tuple[int, ...]) -> None:
    """All that one sends, or all that it receives, is wrong; on one path alone either end may be to blame."""
    location = located(exchanged(4, even, wrong))
    assert location.ranks == named, location
    assert ("cannot be located" in location.sentence) == (not named)


def test_wrong_sums_of_ranks_that_exchange_right_data_blame_nobody() -> None:
    """What goes wrong only when all add up is not to be found by pairs, and not a matter of their speed."""
    one = exchanged(4, lambda *two: 9 * USUAL if 2 in two else USUAL)
    [measure] = one.plan.measures
    sizes = {(1, size): Sized(seconds=(USUAL,) * 20, wrong=1) for size in measure.sizes}
    told = [replace(account, sizes=sizes) for account in one.accounts]
    location = located(replace(one, steps=(*one.steps, measure), accounts=told))
    assert (location.ranks, location.sentence) == ((), f"{PAIRS_CORRECT}.")


def test_a_pair_that_looks_slow_is_tried_again_before_it_is_named() -> None:
    """The others need not be; what was a disturbance is gone by then, and after three tries the search ends."""
    one = exchanged(4, lambda a, b: 3 * USUAL if (a, b) in ((0, 1), (2, 3)) else USUAL)
    planned = len(one.plan.measures)
    assert planned == 1
    step = next_step(shifted(one, planned), JUDGE)
    assert isinstance(step, Pairs)
    assert sorted(pair for together in step.rounds for pair in together) == [(0, 1), (2, 3)]
    for tries in range(2, MAX_TRIES + 1):
        step = next_step(shifted(one, planned, tries=tries), JUDGE)
        assert (step is None) == (tries == MAX_TRIES)
    assert next_step(shifted(exchanged(4, even), planned), JUDGE) is None


def test_a_slow_rank_is_tried_twice() -> None:
    """It can be named at once; that it is slow again makes it sure."""
    one = exchanged(4, with_rank(2, 2.0))
    assert next_step(shifted(one, 1), JUDGE) is not None
    assert next_step(shifted(one, 1, tries=2), JUDGE) is None


def test_of_several_tries_the_fastest_counts() -> None:
    """Whichever it was; wrong data is not forgotten."""
    fast, slow = exchanged(3, even, lambda a, _: int(a == 0)), exchanged(3, of({(0, 1): 5.0}))
    for first, second in ((fast, slow), (slow, fast)):
        told = [
            replace(account, pairs={**account.pairs} | {(1, peer): sized for (_, peer), sized in again.pairs.items()})
            for account, again in zip(first.accounts, second.accounts, strict=True)
        ]
        found = pairs(replace(fast, steps=[*fast.steps, *fast.steps], accounts=told))
        assert {one.ranks: one.bandwidth for one in found} == dict.fromkeys(
            [(0, 1), (0, 2), (1, 2)], pytest.approx(BYTES / USUAL)
        )
        assert {one.ranks: one.wrong for one in found} == {(0, 1): (1, 0), (0, 2): (1, 0), (1, 2): (0, 0)}


def test_a_pair_besides_those_of_the_slow_rank_is_tried_until_it_is_known() -> None:
    """Rank 3 can be named, but why (0, 1) samples_taken slow is open."""
    one = exchanged(4, of({(0, 3): 5.0, (1, 3): 5.0, (2, 3): 5.0, (0, 1): 2.0}))
    assert located(one).ranks == (3,)
    step = next_step(shifted(one, 1, tries=2), JUDGE)
    assert isinstance(step, Pairs)
    assert (0, 1) in [pair for together in step.rounds for pair in together]
    assert next_step(shifted(one, 1, tries=MAX_TRIES), JUDGE) is None


def test_the_fastest_exchange_of_a_pair_counts() -> None:
    """A busy host holds up most of them, but what every exchange waits for is slow."""
    one = exchanged(4, with_rank(2, 2.0))
    held_up = [
        replace(
            account,
            pairs={
                key: replace(sized, seconds=(*(9 * USUAL + second for second in sized.seconds[1:]), sized.seconds[0]))
                for key, sized in account.pairs.items()
            },
        )
        for account in one.accounts
    ]
    assert pairs(replace(one, accounts=held_up)) == pairs(one)


def shifted(one: Pass, planned: int, tries: int = 1) -> Pass:
    """As if the planned measuring came before, and all that was tried again was the same."""
    accounts = [
        Account(
            progress=account.progress,
            pairs={(planned + n, peer): sized for (_, peer), sized in account.pairs.items() for n in range(tries)},
        )
        for account in one.accounts
    ]
    return Pass(plan=one.plan, steps=(*one.plan.measures, *list(one.steps) * tries), accounts=accounts)


def copied(*seconds: float, wrong: int | None = None, repeated: bool = True) -> Pass:
    """Copies of which each rank takes so long; a drop was seen and measured again."""
    gpus = [f"GPU-{rank}" for rank in range(len(seconds))]
    plan = make_plans(PROBES["copy"], gpus, python="python3")[0]
    steps = (*plan.measures, plan.measures[0]) if repeated else plan.measures
    return Pass(
        plan=plan,
        steps=steps,
        accounts=[
            Account(
                progress=Progress(rank=rank),
                sizes={
                    (number, size): Sized(seconds=(one,) * 20, wrong=int(rank == wrong))
                    for number, step in enumerate(steps)
                    for size in step.sizes
                },
            )
            for rank, one in enumerate(seconds)
        ],
    )


def test_of_ranks_that_act_alone_each_one_is_judged_by_itself() -> None:
    """Copies need no pairs: the GPU is named that is slow, or whose data is wrong."""
    assert locate(copied(USUAL, USUAL, 3 * USUAL, repeated=False)) is None
    assert located(copied(USUAL, USUAL, 3 * USUAL)).ranks == (2,)
    assert located(copied(USUAL, 3 * USUAL, 3 * USUAL)).sentence == f"{NO_SINGLE_RANK}."
    assert located(copied(USUAL, 3 * USUAL)).ranks == (1,)
    assert located(copied(USUAL)).sentence == "Only GPU GPU-0 took part."
    assert located(copied(USUAL, USUAL, wrong=1, repeated=False)).ranks == (1,)
    assert next_step(copied(USUAL, USUAL, wrong=1, repeated=False), JUDGE) is None
