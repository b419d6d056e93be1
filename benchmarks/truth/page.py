"""The page docs/truth.md, which reports the measurements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

from gpumon_sim.faults.row import FaultRow

from benchmarks.truth.benign import DISTURBANCES
from benchmarks.truth.measure import CalmOutcome, FaultOutcome
from benchmarks.truth.pairs import PairOutcome
from benchmarks.truth.rows import MEASURED_FAULTS, Disturbance
from benchmarks.truth.work import ResultStore, all_pieces
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import FAIL

PAGE = Path(__file__).parents[2] / "docs" / "truth.md"
INTRODUCTION = """\
# How accurate the verdicts are

`make truth` measures on simulated nodes and writes this page: every fault of the simulation on every node on which it
can happen, pairs of faults, and disturbances of healthy nodes. A run takes most of an hour on two cores.

**No real hardware was measured.** The nodes are simulated ([simulation.md](simulation.md)) below an unmodified NVML
binding; the results of the ranks of an all-reduce are generated. The agent is the real daemon with a replaced clock and
replaced host processes. The figures show that it reports the right verdict for what it can read, not what real boards
report when they fail.

| column | meaning |
| --- | --- |
| found | nodes with a verdict on the right device before the deadline: the check's own delay plus a minute |
| after | median time in seconds from the fault to the verdict |
| action | action of the verdict; in brackets the expected action if it differs |
| also raised | other verdicts that are not inhibited by the expected one; fewer are better |
| inhibited | verdicts that are inhibited by another one |
"""


PARTLY = "This page is incomplete"
"""Marks a page with missing measurements."""
MIXED = "These results come from several versions of the code"
UNMEASURED = "not yet measured"


def page_of(store: ResultStore) -> str:
    """Return the page of the stored results."""
    pieces = list(all_pieces())
    return page(store.results(pieces), MEASURED_FAULTS, DISTURBANCES, len(pieces), store.states(pieces))


def page(
    results: Iterable[FaultOutcome | PairOutcome | CalmOutcome],
    faults: Sequence[FaultRow],
    disturbances: Sequence[Disturbance],
    pieces: int,
    states: int = 1,
) -> str:
    """Return the whole page. `pieces`: number of results of a complete measurement.

    `states`: number of versions of the code with which the results were measured.
    """
    known = tuple(results)
    outcomes = {
        fault.name: [outcome for outcome in known if isinstance(outcome, FaultOutcome) and outcome.fault == fault.name]
        for fault in faults
    }
    calms = {
        disturbance.name: [calm for calm in known if isinstance(calm, CalmOutcome) and calm.name == disturbance.name]
        for disturbance in disturbances
    }
    both = [outcome for outcome in known if isinstance(outcome, PairOutcome)]
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
        yield (f"\n**{PARTLY}: {known} of {pieces} measurements.** `make truth ARGS='--only NAME'` measures a row.")
    if states > 1:
        yield f"\n**{MIXED}**, {states} in all: some were measured before the last change."
    if known < pieces or states > 1:
        yield ""


def is_missed(outcome: FaultOutcome) -> bool:
    """Return whether the fault was not found, or also found on a wrong device."""
    return outcome.seconds is None or bool(outcome.elsewhere)


def false(disturbance: Disturbance, calm: CalmOutcome) -> tuple[tuple[str, str], ...]:
    """Return check and level of each false verdict."""
    return tuple(
        (check, level)
        for check, level in calm.verdicts_raised
        if level == FAIL.word or check not in disturbance.expected_verdicts
    )


def missing_verdicts(disturbance: Disturbance, calm: CalmOutcome) -> list[str]:
    """Return the expected checks without a verdict."""
    return sorted(disturbance.expected_verdicts.keys() - {check for check, _ in calm.verdicts_raised})


def _summary(
    outcomes: dict[str, list[FaultOutcome]],
    both: Sequence[PairOutcome],
    disturbances: Sequence[Disturbance],
    calms: dict[str, list[CalmOutcome]],
) -> Iterator[str]:
    every = [outcome for found in outcomes.values() for outcome in found]
    hours = sum(calm.hours for found in calms.values() for calm in found)
    verdicts = [
        level
        for disturbance in disturbances
        for calm in calms[disturbance.name]
        for _, level in false(disturbance, calm)
    ]
    pages = verdicts.count(FAIL.word)
    yield "## Summary\n"
    yield "| | |\n| --- | --- |"
    yield f"| faults | {len(outcomes)} |"
    yield f"| faults measured (fault and node) | {len(every)} |"
    yield f"| found, on the right device | {sum(not is_missed(each) for each in every)} of {len(every)} |"
    right = sum(outcome.right for outcome in both)
    yield f"| pairs of faults | {len(both)}, of which {right} were both found, or one hid the other |"
    yield f"| disturbances without a fault | {len(calms)}, for {hours:g} node-hours |"
    for words, number in (("false verdicts of level fail", pages), ("false verdicts of any level", len(verdicts))):
        rate = 1000 * number / max(hours, 1e-9)
        yield f"| {words} | {number}: {rate:.0f} per thousand node-hours |"
    if hours and not pages:
        yield f"| upper limit at 95 % confidence | {3000 / hours:.0f} per thousand node-hours of level fail |"
    yield (
        "\nDisturbances occur every ten or twenty minutes here; on a node in service they occur once a day or a month."
    )


def _faults(faults: Sequence[FaultRow], outcomes: dict[str, list[FaultOutcome]]) -> Iterator[str]:
    yield "\n## Faults\n"
    yield "| fault | check | found | after | level | action | also raised | inhibited |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for fault in faults:
        yield _row(fault, outcomes[fault.name])


def _row(fault: FaultRow, found: Sequence[FaultOutcome]) -> str:
    right = [outcome for outcome in found if not is_missed(outcome)]
    seconds = [outcome.seconds for outcome in right if outcome.seconds is not None]
    after = f"{median(seconds):.0f} s" if seconds else ""
    cells = (
        fault.name,
        f"`{fault.check}`",
        f"{len(right)} of {len(found)}" if found else UNMEASURED,
        after,
        _alike(one.level + (f", inhibited by `{one.inhibited_by}`" if one.inhibited_by else "") for one in right),
        _actions(fault, right),
        _count(
            verdict for outcome in found for verdict in {_check(each) for each in (*outcome.others, *outcome.elsewhere)}
        ),
        _count(verdict for outcome in found for verdict in {_check(each) for each in outcome.folded}),
    )
    return f"| {' | '.join(cells)} |"


def _check(verdict: str) -> str:
    return verdict.partition(" (")[0]


def _alike(words: Iterable[str]) -> str:
    return "; ".join(sorted(set(words)))


def _actions(fault: FaultRow, right: Sequence[FaultOutcome]) -> str:
    actions = {outcome.action for outcome in right}
    return _alike(actions) + (f" ({fault.action})" if actions - {fault.action.value} else "")


def _count(checks: Iterable[str]) -> str:
    known = list(checks)
    return ", ".join(f"{known.count(check)} x `{check}`" for check in sorted(set(known)))


def _misses(faults: Sequence[FaultRow], outcomes: dict[str, list[FaultOutcome]]) -> Iterator[str]:
    yield "\n## Misses\n"
    missed_by_fault = [(fault, [outcome for outcome in outcomes[fault.name] if is_missed(outcome)]) for fault in faults]
    rows = [(fault, lost) for fault, lost in missed_by_fault if lost]
    if not rows:
        yield "None."
    for fault, lost in rows:
        where = ", ".join(f"`{each.profile}`" for each in lost)
        yield f"- **{fault.name}** ({where}): {fault.miss or 'not explained yet.'}"


def _pairs(both: Sequence[PairOutcome]) -> Iterator[str]:
    yield "\n## Pairs\n"
    yield "Two faults begin at the same moment, on two GPUs or on the same one. *Hidden*: the other fault makes the GPU"
    yield "unreadable, so this one cannot be detected.\n"
    yield "| profile | | pairs | both found | one hidden by the other | one inhibited by the other | not found |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for profile in dict.fromkeys(outcome.profile for outcome in both):
        for same, words in ((False, "different GPUs"), (True, "the same GPU")):
            mine = [outcome for outcome in both if outcome.profile == profile and outcome.same_gpu == same]
            found = sum(all(outcome.found) for outcome in mine)
            hidden = sum(outcome.right and not all(outcome.found) for outcome in mine)
            under = sum(any(outcome.inhibited) for outcome in mine)
            lost = sum(not outcome.right for outcome in mine)
            yield f"| `{profile}` | {words} | {len(mine)} | {found} | {hidden} | {under} | {lost} |"
    wrong = [outcome for outcome in both if not outcome.right]
    yield from (f"\n- not found on `{each.profile}`: {_lost(each)}" for each in wrong)


def _lost(outcome: PairOutcome) -> str:
    place = "on the same GPU" if outcome.same_gpu else "on another GPU"
    lost = [
        name
        for name, found, hidden in zip(outcome.names, outcome.found, outcome.hidden, strict=True)
        if not (found or hidden)
    ]
    return f"{' and '.join(lost)}, of {outcome.names[0]} and {outcome.names[1]} {place}"


def _calms(disturbances: Sequence[Disturbance], calms: dict[str, list[CalmOutcome]]) -> Iterator[str]:
    yield "\n## Disturbances without a fault\n"
    yield "| disturbance | nodes | node-hours | false, level fail | false, other levels | verdicts |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for disturbance in disturbances:
        found = calms[disturbance.name]
        wrong = [each for calm in found for each in false(disturbance, calm)]
        pages = sum(level == FAIL.word for _, level in wrong)
        verdicts = _count(check for calm in found for check, _ in calm.verdicts_raised)
        hours, nodes = sum(calm.hours for calm in found), len(found) or UNMEASURED
        yield f"| {disturbance.name} | {nodes} | {hours:g} | {pages} | {len(wrong) - pages} | {verdicts} |"
    reasons: dict[str, list[str]] = {}
    for disturbance in disturbances:
        for check, why in disturbance.expected_verdicts.items():
            reasons.setdefault(f"`{check}` {why}", []).append(f"**{disturbance.name}**")
    yield from ["\nExpected verdicts:\n"] if reasons else []
    yield from (f"- {'; '.join(names)}: {reason}" for reason, names in reasons.items())
    yield ""


def problems_of(
    results: Iterable[FaultOutcome | PairOutcome | CalmOutcome],
    faults: Sequence[FaultRow],
    disturbances: Sequence[Disturbance],
) -> list[str]:
    """Return misses without a reason, false verdicts and missing expected verdicts."""
    reasons = {fault.name: fault.miss for fault in faults}
    rows = {disturbance.name: disturbance for disturbance in disturbances}
    wrong = []
    for result in results:
        if isinstance(result, FaultOutcome) and is_missed(result) and not reasons[result.fault]:
            wrong.append(f"missed on {result.profile}: {result.fault}")
        elif isinstance(result, PairOutcome) and not result.right:
            wrong.append(f"missed on {result.profile}: {_lost(result)}")
        elif isinstance(result, CalmOutcome):
            row, where = rows[result.name], f"on {result.profile}"
            wrong += [f"false {where}: {check} ({level}) of {result.name}" for check, level in false(row, result)]
            wrong += [f"not raised {where}: {check} of {result.name}" for check in missing_verdicts(row, result)]
    wrong += [f"no such check: {fault.check}" for fault in faults if fault.check not in BY_NAME]
    return wrong
