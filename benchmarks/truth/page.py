"""The page docs/truth.md, which reports the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from benchmarks.truth.fault import Disturbance, Fault
from benchmarks.truth.measure import CalmOutcome, Outcome
from benchmarks.truth.pairs import PairOutcome
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import FAIL

INTRODUCTION = """\
# How accurate the verdicts are

`make truth` measures three things on simulated nodes and writes this page: every fault of the simulation on every node
on which it can happen, pairs of faults, and disturbances of healthy nodes that are no faults. A complete run takes most
of an hour on two cores.

**No real hardware was measured.** The nodes are simulated ([simulation.md](simulation.md)) below an unmodified NVML
binding. The agent is the real daemon with its sampler, links child, store and kernel log reader; only the clock and the
processes of its host are replaced, so that an hour passes in seconds. The figures show that the agent reports the right
verdict for what it can read. They do not show what real boards report when they fail. The results of the ranks of an
all-reduce are generated; everything after them is the agent's own code.

| column | meaning |
| --- | --- |
| found | nodes with a verdict on the right device before the deadline: the check's own delay plus a minute |
| after | median time in seconds from the fault to the verdict |
| action | action of the verdict; in brackets the expected action if it differs |
| also raised | other verdicts that are not inhibited by the expected one; fewer are better |
| inhibited | verdicts that are inhibited by another one |

Misses are explained below the table.
"""


PARTLY = "This page is incomplete"
"""Marks a page with missing measurements."""
MIXED = "These results come from several versions of the code"


def page(
    results: Iterable[Outcome | PairOutcome | CalmOutcome],
    faults: Sequence[Fault],
    disturbances: Sequence[Disturbance],
    pieces: int,
    states: int = 1,
) -> str:
    """Return the whole page. `pieces`: number of results of a complete measurement.

    `states`: number of versions of the code with which the results were measured.
    """
    known = tuple(results)
    outcomes = {
        fault.name: [one for one in known if isinstance(one, Outcome) and one.fault == fault.name] for fault in faults
    }
    calms = {
        one.name: [calm for calm in known if isinstance(calm, CalmOutcome) and calm.name == one.name]
        for one in disturbances
    }
    both = [one for one in known if isinstance(one, PairOutcome)]
    parts = [
        INTRODUCTION,
        *_caveats(len(known), pieces, states),
        *_summary(outcomes, both, disturbances, calms),
        *_faults(faults, outcomes),
        *_misses(faults, outcomes),
    ]
    return "\n".join([*parts, *_pairs(both), *_calms(disturbances, calms)])


def _caveats(known: int, pieces: int, states: int) -> Iterator[str]:
    """Yield nothing if everything was measured with one version of the code."""
    if known < pieces:
        yield (
            f"\n**{PARTLY}: {known} of {pieces} measurements; `make truth` adds the rest.** A disturbance that was\n"
            "measured on one node was measured on the node that is fastest to simulate, often the smallest."
        )
    if states > 1:
        yield f"\n**{MIXED}**, {states} in all: some were measured before the last change."
    if known < pieces or states > 1:
        yield ""


def missed(one: Outcome) -> bool:
    """Return whether the fault was not found, or also found on a wrong device."""
    return one.seconds is None or not one.right_device


def false(one: Disturbance, calm: CalmOutcome) -> tuple[tuple[str, str], ...]:
    """Return check and level of each false verdict."""
    return tuple(
        (check, level)
        for check, level in calm.verdicts_raised
        if level == FAIL.word or check not in one.expected_verdicts
    )


def missing_verdicts(one: Disturbance, calm: CalmOutcome) -> list[str]:
    """Return the expected checks without a verdict."""
    return sorted(one.expected_verdicts.keys() - {check for check, _ in calm.verdicts_raised})


def _summary(
    outcomes: dict[str, list[Outcome]],
    both: Sequence[PairOutcome],
    disturbances: Sequence[Disturbance],
    calms: dict[str, list[CalmOutcome]],
) -> Iterator[str]:
    every = [one for found in outcomes.values() for one in found]
    hours = sum(calm.hours for found in calms.values() for calm in found)
    said = [level for one in disturbances for calm in calms[one.name] for _, level in false(one, calm)]
    pages = said.count(FAIL.word)
    yield "## Summary\n"
    yield "| | |\n| --- | --- |"
    yield f"| faults | {len(outcomes)} |"
    yield f"| faults measured (fault and node) | {len(every)} |"
    yield f"| found, on the right device | {sum(not missed(one) for one in every)} of {len(every)} |"
    right = sum(one.right for one in both)
    yield f"| pairs of faults | {len(both)}, of which {right} were both found, or one hid the other |"
    yield f"| disturbances without a fault | {len(calms)}, for {hours:g} node-hours |"
    for words, number in (("false verdicts of level fail", pages), ("false verdicts of any level", len(said))):
        rate = 1000 * number / max(hours, 1e-9)
        yield f"| {words} | {number}: {rate:.0f} per thousand node-hours |"
    if hours and not pages:
        yield f"| upper limit at 95 % confidence | {3000 / hours:.0f} per thousand node-hours of level fail |"
    yield (
        "\nDisturbances occur every ten or twenty minutes here; on a node in service they occur once a day or a month."
    )


def _faults(faults: Sequence[Fault], outcomes: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "\n## Faults\n"
    yield "| fault | check | found | after | level | action | also raised | inhibited |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for fault in faults:
        yield _row(fault, outcomes[fault.name])


def _row(fault: Fault, found: Sequence[Outcome]) -> str:
    right = [one for one in found if not missed(one)]
    seconds = [one.seconds for one in right if one.seconds is not None]
    after = f"{median(seconds):.0f} s" if seconds else ""
    cells = (
        fault.name,
        f"`{fault.check}`",
        f"{len(right)} of {len(found)}",
        after,
        _alike(one.level + (f", inhibited by `{one.inhibited_by}`" if one.inhibited_by else "") for one in right),
        _actions(fault, right),
        _counted(said for one in found for said in {_check(each) for each in (*one.others, *one.elsewhere)}),
        _counted(said for one in found for said in {_check(each) for each in one.folded}),
    )
    return f"| {' | '.join(cells)} |"


def _check(said: str) -> str:
    return said.partition(" (")[0]


def _alike(words: Iterable[str]) -> str:
    return "; ".join(sorted(set(words)))


def _actions(fault: Fault, right: Sequence[Outcome]) -> str:
    told = {one.action for one in right}
    return _alike(told) + (f" ({fault.action})" if told - {fault.action.value} else "")


def _counted(checks: Iterable[str]) -> str:
    known = list(checks)
    return ", ".join(f"{known.count(check)} x `{check}`" for check in sorted(set(known)))


def _misses(faults: Sequence[Fault], outcomes: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "\n## Misses\n"
    told = [(fault, [one for one in outcomes[fault.name] if missed(one)]) for fault in faults]
    rows = [(fault, lost) for fault, lost in told if lost]
    if not rows:
        yield "None."
    for fault, lost in rows:
        where = ", ".join(f"`{one.profile}`" for one in lost)
        yield f"- **{fault.name}** ({where}): {fault.miss or 'not explained yet.'}"


def _pairs(both: Sequence[PairOutcome]) -> Iterator[str]:
    yield "\n## Pairs\n"
    yield "Two faults begin at the same moment, on two GPUs or on the same one. *Hidden*: the other fault makes the GPU"
    yield "unreadable, so this one cannot be detected.\n"
    yield "| profile | | pairs | both found | one hidden by the other | one inhibited by the other | not found |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for profile in dict.fromkeys(one.profile for one in both):
        for same, words in ((False, "different GPUs"), (True, "the same GPU")):
            mine = [one for one in both if one.profile == profile and one.same_gpu == same]
            found = sum(all(one.found) for one in mine)
            hidden = sum(one.right and not all(one.found) for one in mine)
            under = sum(any(one.inhibited) for one in mine)
            lost = sum(not one.right for one in mine)
            yield f"| `{profile}` | {words} | {len(mine)} | {found} | {hidden} | {under} | {lost} |"
    wrong = [one for one in both if not one.right]
    yield from (f"\n- not found on `{one.profile}`: {_lost(one)}" for one in wrong)


def _lost(one: PairOutcome) -> str:
    place = "on the same GPU" if one.same_gpu else "on another GPU"
    lost = [name for name, found, hidden in zip(one.names, one.found, one.hidden, strict=True) if not (found or hidden)]
    return f"{' and '.join(lost)}, of {one.names[0]} and {one.names[1]} {place}"


def _calms(disturbances: Sequence[Disturbance], calms: dict[str, list[CalmOutcome]]) -> Iterator[str]:
    yield "\n## Disturbances without a fault\n"
    yield "| disturbance | nodes | node-hours | false, level fail | false, other levels | verdicts |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in disturbances:
        found = calms[one.name]
        wrong = [each for calm in found for each in false(one, calm)]
        pages = sum(level == FAIL.word for _, level in wrong)
        said = _counted(check for calm in found for check, _ in calm.verdicts_raised)
        hours = sum(calm.hours for calm in found)
        yield f"| {one.name} | {len(found)} | {hours:g} | {pages} | {len(wrong) - pages} | {said} |"
    true = [
        f"- **{one.name}**: `{check}` {why}" for one in disturbances for check, why in one.expected_verdicts.items()
    ]
    yield from (["\nExpected verdicts:\n", *true] if true else [])
    yield ""


def problems_of(
    results: Iterable[Outcome | PairOutcome | CalmOutcome], faults: Sequence[Fault], disturbances: Sequence[Disturbance]
) -> list[str]:
    """Return misses without a reason, false verdicts and missing expected verdicts."""
    reasons = {fault.name: fault.miss for fault in faults}
    rows = {one.name: one for one in disturbances}
    wrong = []
    for one in results:
        if isinstance(one, Outcome) and missed(one) and not reasons[one.fault]:
            wrong.append(f"missed on {one.profile}: {one.fault}")
        elif isinstance(one, PairOutcome) and not one.right:
            wrong.append(f"missed on {one.profile}: {_lost(one)}")
        elif isinstance(one, CalmOutcome):
            row, where = rows[one.name], f"on {one.profile}"
            wrong += [f"false {where}: {check} ({level}) of {one.name}" for check, level in false(row, one)]
            wrong += [f"not raised {where}: {check} of {one.name}" for check in missing_verdicts(row, one)]
    wrong += [f"no such check: {fault.check}" for fault in faults if fault.check not in BY_NAME]
    return wrong
