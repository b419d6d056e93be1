"""Location of a slow or wrong rank in real runs."""

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
from gpumon.runner.ranks import Ranks
from gpumon.supervisor.loop import Loop

pytestmark = pytest.mark.slow


SEEDS = 20
RANKS = 4
ALL_REDUCE = PROBES["allreduce"]
SMALL = replace(ALL_REDUCE, cpu=replace(ALL_REDUCE.cpu, sizes=(256 * KIB,), deadline=300.0))
JUDGE = Judge(probe="allreduce", backend="gloo", expected=lambda _: (1e12, "more than any machine reaches"))
"""An expectation that no measurement reaches, so that the pairs are always measured."""
SECONDS = (0.1, 0.15)
"""Range of the added seconds of a slow operation, far above the wait for a core of a busy machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A fault, and the ranks that must be named."""

    fault: str
    named: tuple[int, ...]


def orders() -> Iterator[Order]:
    """Yield slow ranks, wrong ranks and slow paths in turn; the seed determines ranks and delay."""
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
    """Steps for ranks that run one probe for each order, each with the fault of its order."""

    orders: list[Order]
    locations: list[Location | None] = field(default_factory=list)
    first_step: int = 0
    """Number of the first step of the current trial."""

    def next_step(self, run_pass: Pass) -> Step | None:
        """Return the next step of the probe, or the first step of the next trial."""
        if run_pass.steps:
            trial = steps_since(run_pass, self.first_step)
            step = next_step(trial, JUDGE)
            if step is not None:
                return shorten(step)
            self.locations.append(locate(trial))
        if len(self.locations) == len(self.orders):
            return None
        self.first_step = len(run_pass.steps) + 1
        return Misbehave(fault=self.orders[len(self.locations)].fault)


def shorten(step: Step) -> Step:
    """Return the step with few operations, because each operation of a slow rank takes long."""
    match step:
        case Measure():
            return replace(step, warm_ups=1, operations=1)
        case Pairs():
            return replace(step, warm_ups=0, operations=2)
    return step


def steps_since(run_pass: Pass, first_step: int) -> Pass:
    """Return the pass without the steps before this one."""
    return replace(
        run_pass,
        steps=run_pass.steps[first_step:],
        accounts=[_account_since(account, first_step) for account in run_pass.accounts],
    )


def _account_since(account: Account, first_step: int) -> Account:
    sizes = {(step - first_step, size): sized for (step, size), sized in account.sizes.items() if step >= first_step}
    pairs = {(step - first_step, peer): sized for (step, peer), sized in account.pairs.items() if step >= first_step}
    return replace(account, sizes=sizes, pairs=pairs)


@pytest.fixture(scope="module")
def trials() -> Trials:
    """Run all trials on one set of ranks, because the import of torch takes longer than a trial."""
    loop, trials = Loop(), Trials(list(orders()))
    ended: list[Pass] = []
    [plan] = make_plans(replace(SMALL, ranks=RANKS), (), python=sys.executable)

    def end(run_pass: Pass) -> None:
        ended.append(run_pass)
        loop.stop()

    Ranks(loop).start(plan, trials.next_step, lambda _: None, end)
    loop.run()
    assert [account.error for account in ended[0].accounts] == [""] * RANKS
    return trials


def test_the_faulty_rank_or_path_is_named_in_every_trial(trials: Trials) -> None:
    named = [() if location is None else location.ranks for location in trials.locations]
    wanted = [order.named for order in trials.orders]
    assert named == wanted, list(zip(trials.orders, trials.locations, strict=False))
