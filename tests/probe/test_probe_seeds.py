"""Real ranks, one of which is slow or wrong, and is to be named."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.frames import Account
from gpumon.probe.core.locate import locate
from gpumon.probe.core.next_step import next_step
from gpumon.probe.core.passes import Pass
from gpumon.probe.core.plan import Measure, Misbehave, Pairs, Step, make_plans
from gpumon.probe.core.probes import KIB, PROBES
from gpumon.probe.core.result import Location
from gpumon.probe.runner.ranks import Ranks
from gpumon.supervisor.loop import Loop

pytestmark = pytest.mark.slow


SEEDS = 20
RANKS = 4
ALL_REDUCE = PROBES["allreduce"]
SMALL = replace(ALL_REDUCE, cpu=replace(ALL_REDUCE.cpu, sizes=(256 * KIB,), deadline=300.0))
JUDGE = Judge(probe="allreduce", backend="gloo", expected=lambda _: (1e12, "more than any machine reaches"))
"""So that every measuring is a drop, and it is for the pairs to say where."""
SECONDS = (0.1, 0.15)
"""A slow operation takes so much longer: far more than one waits for a core of a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What goes wrong, and who is to be named."""

    fault: str
    named: tuple[int, ...]


def orders() -> Iterator[Order]:
    """Slow, wrong, and slow with one other alone, by turns; rank and length drawn by the seed."""
    for seed in range(SEEDS):
        generator = random.Random(seed)  # noqa: S311 - the same every time
        bad, peer = generator.sample(range(RANKS), 2)
        seconds = generator.uniform(*SECONDS)
        kind = ("sleep", "corrupt", "link")[seed % 3]
        if kind == "corrupt":
            yield Order(fault=f"corrupt:{bad}", named=(bad,))
        elif kind == "sleep":
            yield Order(fault=f"sleep:{bad}:{seconds}", named=(bad,))
        else:
            yield Order(fault=f"link:{bad}:{peer}:{seconds}", named=(min(bad, peer), max(bad, peer)))


@dataclass
class Trials:
    """A course for ranks that run as many probes as there are orders, each after it was told what goes wrong."""

    orders: list[Order]
    located: list[Location | None] = field(default_factory=list)
    begun: int = 0
    """Number of the first step of the present trial."""

    def next_step(self, one: Pass) -> Step | None:
        """What the probe itself would do next; at its end the next trial."""
        if one.steps:
            trial = since(one, self.begun)
            step = next_step(trial, JUDGE)
            if step is not None:
                return brief(step)
            self.located.append(locate(trial))
        if len(self.located) == len(self.orders):
            return None
        self.begun = len(one.steps) + 1
        return Misbehave(fault=self.orders[len(self.located)].fault)


def brief(step: Step) -> Step:
    """With few operations, since each of a slow rank takes so long."""
    match step:
        case Measure():
            return replace(step, warm_ups=1, operations=1)
        case Pairs():
            return replace(step, warm_ups=0, operations=2)
    return step


def since(one: Pass, begun: int) -> Pass:
    """As if the steps from this one on were all."""
    return replace(one, steps=one.steps[begun:], accounts=[_since(account, begun) for account in one.accounts])


def _since(account: Account, begun: int) -> Account:
    sizes = {(step - begun, size): sized for (step, size), sized in account.sizes.items() if step >= begun}
    pairs = {(step - begun, peer): sized for (step, peer), sized in account.pairs.items() if step >= begun}
    return replace(account, sizes=sizes, pairs=pairs)


@pytest.fixture(scope="module")
def trials() -> Trials:
    """All of them on one set of ranks: to import torch takes longer than to find out who is to blame."""
    loop, trials = Loop(), Trials(list(orders()))
    ended: list[Pass] = []
    [plan] = make_plans(SMALL, (), python=sys.executable, cpu_ranks=RANKS)

    def end(one: Pass) -> None:
        ended.append(one)
        loop.stop()

    Ranks(loop).start(plan, trials.next_step, lambda _: None, end)
    loop.run()
    assert [account.error for account in ended[0].accounts] == [""] * RANKS
    return trials


def test_the_rank_or_path_to_blame_is_named_in_every_trial(trials: Trials) -> None:
    """20 of 20, whoever it is and whatever it does."""
    named = [() if one is None else one.ranks for one in trials.located]
    wanted = [order.named for order in trials.orders]
    assert named == wanted, list(zip(trials.orders, trials.located, strict=False))
