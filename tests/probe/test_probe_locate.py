"""Location of a slow or wrong rank from the exchanges of all pairs."""

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
"""Usual seconds of an exchange."""
JUDGE = Judge(probe="allreduce", backend="nccl")

Seconds = Callable[[int, int], float]
Wrong = Callable[[int, int], int]


def pass_over_pairs(
    ranks: int, seconds: Seconds, wrong: Wrong = lambda _a, _b: 0, faulty_sender: int | None = None
) -> Pass:
    """Return a pass over all pairs. `wrong(a, b)` counts wrong elements from a to b, which `faulty_sender` sent."""
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
                        wrong_send_elements=int(rank == faulty_sender),
                    )
                    for peer in range(ranks)
                    if peer != rank
                },
            )
            for rank in range(ranks)
        ],
    )


def location_of(run_pass: Pass) -> Location:
    location = locate(run_pass)
    assert location is not None
    return location


def noisy_seconds(seed: int, spread: float, slower: Callable[[int, int], float]) -> Seconds:
    """Return the usual time of each pair with noise, multiplied by `slower`."""
    generator = random.Random(seed)  # noqa: S311 - the same every time
    drawn: dict[tuple[int, int], float] = {}
    return lambda a, b: drawn.setdefault((a, b), USUAL * generator.uniform(1, 1 + spread) * slower(a, b))


def slow_rank(bad: int, times: float) -> Seconds:
    """Return a factor of `times` for each pair of this rank."""
    return lambda a, b: times if bad in (a, b) else 1.0


def slow_path(path: tuple[int, int], times: float) -> Seconds:
    """Return a factor of `times` for this pair."""
    return lambda a, b: times if (a, b) == path else 1.0


@pytest.mark.parametrize(("ranks", "spread", "times"), [(4, 0.2, 2.0), (8, 0.2, 2.0), (4, 0.01, 1.06), (8, 0.01, 1.06)])
def test_a_slow_rank_is_named(ranks: int, spread: float, times: float) -> None:
    """A rank that is slow in all its pairs is named, whether by a factor of two or by six percent."""
    for seed in range(20):
        bad = seed % ranks
        location = location_of(pass_over_pairs(ranks, noisy_seconds(seed, spread, slow_rank(bad, times))))
        assert location.ranks == (bad,), (seed, location)
        assert location.gpus == (f"GPU-{bad}",)


def locate_among_three(seconds: Seconds, *links: tuple[int, int]) -> Location:
    """Locate among three GPUs, of which NVML reports NVLinks between these pairs."""
    ends = [(0, 1), (0, 2), (1, 2)]
    run_pass = pass_over_pairs(3, seconds)
    linked = {pair: {"nvlink": "ok" if pair in links else "not_supported"} for pair in ends}
    samples = [
        GpuSample(
            index=rank,
            uuid=uuid,
            at=1.0,
            peer_access={run_pass.plan.gpus[sum(pair) - rank]: linked[pair] for pair in ends if rank in pair},
        )
        for rank, uuid in enumerate(run_pass.plan.gpus)
    ]
    location = locate(run_pass, add_samples({}, samples))
    assert location is not None
    return location


def test_a_slow_rank_or_path_among_three_linked_gpus_is_named() -> None:
    ends = [(0, 1), (0, 2), (1, 2)]
    for seed in range(20):
        bad = seed % 3
        assert locate_among_three(noisy_seconds(seed, 0.2, slow_rank(bad, 2.0)), *ends).ranks == (bad,), seed
        assert locate_among_three(noisy_seconds(seed, 0.2, slow_path(ends[bad], 2.0)), *ends).ranks == ends[bad], seed


@pytest.mark.parametrize("spread", [0.06, 0.2])
def test_noise_among_three_gpus_names_no_rank(spread: float) -> None:
    for seed in range(200):
        location = locate_among_three(noisy_seconds(seed, spread, lambda *_: 1.0), (0, 1), (0, 2), (1, 2))
        assert location.ranks == (), (seed, location)


@pytest.mark.parametrize("links", [((0, 1),), ()])
def test_a_gpu_without_nvlinks_among_three_is_not_named(links: tuple[tuple[int, int], ...]) -> None:
    location = locate_among_three(noisy_seconds(0, 0.05, slow_rank(2, 10.0)), *links)
    assert location.ranks == ()
    assert location.message == f"GPU 2 (GPU-2) is slow with every other{AS_BUILT}."


def test_on_the_cpu_ranks_are_named_by_their_numbers() -> None:
    [plan] = make_plans(replace(PROBES["allreduce"], ranks=4), (), python="python3")
    for seconds, ranks, sentence in (
        (slow_rank(2, 2.0), (2,), "rank 2 is slow with every other."),
        (slow_path((0, 1), 2.0), (0, 1), "Only the path between rank 0 and rank 1 is slow."),
        (usual_seconds, (), f"{NO_PAIR}."),
    ):
        location = location_of(replace(pass_over_pairs(4, seconds), plan=plan))
        assert (location.ranks, location.gpus, location.message) == (ranks, (), sentence)


@pytest.mark.parametrize("times", [2.0, 1.2])
def test_a_slow_path_is_named(times: float) -> None:
    paths = [pair for round_ in rounds(8) for pair in round_]
    for seed, path in enumerate(paths):
        location = location_of(pass_over_pairs(8, noisy_seconds(seed, 0.05, slow_path(path, times))))
        assert location.ranks == path, (seed, location)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_no_rank_is_named_if_no_pair_differs(ranks: int) -> None:
    """Ordinary noise, and pairs that are linked in two ways, name no rank."""
    for seed in range(20):
        for slower in (lambda *_: 1.0, lambda a, b: 1.0 if a // 2 == b // 2 else 4.0):
            location = location_of(pass_over_pairs(ranks, noisy_seconds(seed, 0.1, slower)))
            assert location.ranks == (), (seed, location)
            assert "cannot be located" in location.message


def pair_seconds(times: dict[tuple[int, int], float]) -> Seconds:
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
def test_small_differences_name_no_rank(times: dict[tuple[int, int], float]) -> None:
    """Gradual differences, a rank that is slow in some pairs, and two percent name no rank."""
    location = location_of(pass_over_pairs(4, pair_seconds(times)))
    assert location.ranks == (), location


@pytest.mark.parametrize(
    ("times", "named"),
    [
        ({(0, 3): 110.0, (0, 2): 16.0, (2, 3): 0.5}, (0, 3)),
        ({(0, 3): 110.0, (1, 3): 100.0, (2, 3): 120.0, (0, 2): 30.0, (0, 1): 25.0}, (3,)),
    ],
    ids=["path", "rank"],
)
def test_a_gap_between_healthy_pairs_does_not_hide_a_slow_one(
    times: dict[tuple[int, int], float], named: tuple[int, ...]
) -> None:
    """The slowest path or rank is named even if the widest gap is between healthy pairs."""
    location = location_of(pass_over_pairs(4, pair_seconds(times)))
    assert location.ranks == named, location


def usual_seconds(_a: int, _b: int) -> float:
    return USUAL


def test_a_rank_that_sent_wrong_data_is_named() -> None:
    location = location_of(pass_over_pairs(4, usual_seconds, lambda a, _: int(a == 2), faulty_sender=2))
    assert location.ranks == (2,)
    assert location.message == "Wrong data comes from GPU GPU-2."


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
def test_the_common_end_of_all_wrong_data_is_named(wrong: Wrong, named: tuple[int, ...]) -> None:
    location = location_of(pass_over_pairs(4, usual_seconds, wrong))
    assert location.ranks == named, location
    assert ("cannot be located" in location.message) == (not named)


def test_wrong_sums_without_wrong_pairs_name_no_rank() -> None:
    """Wrong sums name no rank if all pairs exchange correct data, even if a rank is slow."""
    run_pass = pass_over_pairs(4, lambda *two: 9 * USUAL if 2 in two else USUAL)
    [measure] = run_pass.plan.measures
    sizes = {(1, size): Sized(seconds=(USUAL,) * 20, wrong=1) for size in measure.sizes}
    accounts = [replace(account, sizes=sizes) for account in run_pass.accounts]
    location = location_of(replace(run_pass, steps=(*run_pass.steps, measure), accounts=accounts))
    assert (location.ranks, location.message) == ((), f"{PAIRS_CORRECT}.")


def test_a_slow_pair_is_measured_again_before_it_is_named() -> None:
    run_pass = pass_over_pairs(4, lambda a, b: 3 * USUAL if (a, b) in ((0, 1), (2, 3)) else USUAL)
    planned = len(run_pass.plan.measures)
    assert planned == 1
    step = next_step(with_planned_steps(run_pass, planned), JUDGE)
    assert isinstance(step, Pairs)
    assert sorted(pair for round_ in step.rounds for pair in round_) == [(0, 1), (2, 3)]
    for tries in range(2, MAX_TRIES + 1):
        step = next_step(with_planned_steps(run_pass, planned, tries=tries), JUDGE)
        assert (step is None) == (tries == MAX_TRIES)
    assert next_step(with_planned_steps(pass_over_pairs(4, usual_seconds), planned), JUDGE) is None


def test_a_slow_rank_is_measured_twice() -> None:
    run_pass = pass_over_pairs(4, slow_rank(2, 2.0))
    assert next_step(with_planned_steps(run_pass, 1), JUDGE) is not None
    assert next_step(with_planned_steps(run_pass, 1, tries=2), JUDGE) is None


def test_the_fastest_of_several_tries_counts() -> None:
    """The fastest try of a pair determines its bandwidth, and wrong data of every try is counted."""
    fast, slow = (
        pass_over_pairs(3, usual_seconds, lambda a, _: int(a == 0)),
        pass_over_pairs(3, pair_seconds({(0, 1): 5.0})),
    )
    for first, second in ((fast, slow), (slow, fast)):
        accounts = [
            replace(account, pairs={**account.pairs} | {(1, peer): sized for (_, peer), sized in again.pairs.items()})
            for account, again in zip(first.accounts, second.accounts, strict=True)
        ]
        merged = pairs(replace(fast, steps=[*fast.steps, *fast.steps], accounts=accounts))
        assert {pair.ranks: pair.bandwidth_bytes_per_second for pair in merged} == dict.fromkeys(
            [(0, 1), (0, 2), (1, 2)], pytest.approx(BYTES / USUAL)
        )
        assert {pair.ranks: pair.wrong_elements for pair in merged} == {(0, 1): (1, 0), (0, 2): (1, 0), (1, 2): (0, 0)}


def test_an_unexplained_slow_pair_is_measured_until_the_limit() -> None:
    run_pass = pass_over_pairs(4, pair_seconds({(0, 3): 5.0, (1, 3): 5.0, (2, 3): 5.0, (0, 1): 2.0}))
    assert location_of(run_pass).ranks == (3,)
    step = next_step(with_planned_steps(run_pass, 1, tries=2), JUDGE)
    assert isinstance(step, Pairs)
    assert (0, 1) in [pair for round_ in step.rounds for pair in round_]
    assert next_step(with_planned_steps(run_pass, 1, tries=MAX_TRIES), JUDGE) is None


def test_the_fastest_exchange_of_a_pair_counts() -> None:
    """The fastest exchange of a pair counts, because a busy host delays most of them."""
    run_pass = pass_over_pairs(4, slow_rank(2, 2.0))
    delayed = [
        replace(
            account,
            pairs={
                key: replace(sized, seconds=(*(9 * USUAL + second for second in sized.seconds[1:]), sized.seconds[0]))
                for key, sized in account.pairs.items()
            },
        )
        for account in run_pass.accounts
    ]
    assert pairs(replace(run_pass, accounts=delayed)) == pairs(run_pass)


def with_planned_steps(run_pass: Pass, planned: int, tries: int = 1) -> Pass:
    """Return the pass with the planned measurements first and its steps repeated `tries` times."""
    accounts = [
        Account(
            progress=account.progress,
            pairs={(planned + n, peer): sized for (_, peer), sized in account.pairs.items() for n in range(tries)},
        )
        for account in run_pass.accounts
    ]
    return Pass(plan=run_pass.plan, steps=(*run_pass.plan.measures, *list(run_pass.steps) * tries), accounts=accounts)


def copy_pass(*seconds: float, wrong: int | None = None, repeated: bool = True) -> Pass:
    """Return a pass of copies with these seconds for each rank, by default with a repeat."""
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
                    (number, size): Sized(seconds=(duration,) * 20, wrong=int(rank == wrong))
                    for number, step in enumerate(steps)
                    for size in step.sizes
                },
            )
            for rank, duration in enumerate(seconds)
        ],
    )


def test_a_slow_or_wrong_copy_names_its_gpu() -> None:
    """Copies need no pairs: the GPU that is slow or has wrong data is named."""
    assert locate(copy_pass(USUAL, USUAL, 3 * USUAL, repeated=False)) is None
    assert location_of(copy_pass(USUAL, USUAL, 3 * USUAL)).ranks == (2,)
    assert location_of(copy_pass(USUAL, 3 * USUAL, 3 * USUAL)).message == f"{NO_SINGLE_RANK}."
    assert location_of(copy_pass(USUAL, 3 * USUAL)).ranks == (1,)
    assert location_of(copy_pass(USUAL)).message == "Only GPU GPU-0 took part."
    assert location_of(copy_pass(USUAL, USUAL, wrong=1, repeated=False)).ranks == (1,)
    assert next_step(copy_pass(USUAL, USUAL, wrong=1, repeated=False), JUDGE) is None
