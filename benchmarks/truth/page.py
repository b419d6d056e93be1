"""docs/truth.md: what was measured, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from benchmarks.truth.fault import Disturbance, Fault
from benchmarks.truth.measure import Calm, Outcome
from benchmarks.truth.pairs import Both
from gpumon.health.table import BY_NAME
from gpumon.health.verdict import FAIL

INTRODUCTION = """\
# How true the verdicts are

What `make truth` measured: every fault of the simulation alone, on every simulated node on which it can happen; pairs
of faults; and what happens on healthy nodes all the time and is no fault. It takes most of an hour on two
processors, and writes this page.

**No hardware was harmed, and none was asked.** The nodes are simulated ([simulation.md](simulation.md)), below an
unmodified NVML binding. The agent on them is the daemon itself with its sampler, links child, store and kernel log;
only the clocks and processes of its host are stand-ins, so that an hour passes in seconds. What is true here is that
the agent says the right thing of what it can see. What real boards do when they fail, this page cannot know. Of the
all-reduce no rank runs: what ranks would tell is made up, and all that follows from it is the agent's own.

**How to read it.** *Found* counts the nodes on which the check of the row had a verdict on the right part before its
deadline, which is what the check waits for and a minute. *After* is the median in seconds since the fault began.
*Action* is what the verdict asks for, and in brackets what it should have asked for where that differs. *Also said*
are other verdicts that stood beside it, not under it: the fewer, the better. *Under it* are those that were folded. A
row that is not found on each node is a miss, and says why.
"""


PARTLY = "Not all of it has been measured"
"""Words by which a page says so of itself."""
MIXED = "What is here was measured in several states of the code"


def page(
    results: Iterable[Outcome | Both | Calm],
    faults: Sequence[Fault],
    disturbances: Sequence[Disturbance],
    pieces: int,
    states: int = 1,
) -> str:
    """The whole page. `pieces`: how many results there are when everything has been measured.

    `states`: of the code in which these were measured.
    """
    known = tuple(results)
    outcomes = {
        fault.name: [one for one in known if isinstance(one, Outcome) and one.fault == fault.name] for fault in faults
    }
    calms = {
        one.name: [calm for calm in known if isinstance(calm, Calm) and calm.name == one.name] for one in disturbances
    }
    both = [one for one in known if isinstance(one, Both)]
    parts = [
        INTRODUCTION,
        *_caveats(len(known), pieces, states),
        *_summary(outcomes, both, disturbances, calms),
        *_faults(faults, outcomes),
        *_misses(faults, outcomes),
    ]
    return "\n".join([*parts, *_pairs(both), *_calms(disturbances, calms)])


def _caveats(known: int, pieces: int, states: int) -> Iterator[str]:
    """Nothing when all of it is of one state of the code."""
    if known < pieces:
        yield (
            f"\n**{PARTLY}: {known} of {pieces} pieces; `make truth` measures the rest.** A disturbance that was\n"
            "measured on one node only was measured on the one that is quickest to simulate, often the smallest."
        )
    if states > 1:
        yield f"\n**{MIXED}**, {states} of them: it was kept from several runs, and the code changed between them."
    if known < pieces or states > 1:
        yield ""


def missed(one: Outcome) -> bool:
    """Not found, or found on the wrong part too."""
    return one.seconds is None or not one.well_blamed


def false(one: Disturbance, calm: Calm) -> tuple[tuple[str, str], ...]:
    """Check and level of what was said and is not true."""
    return tuple((check, level) for check, level in calm.said if level == FAIL.word or check not in one.says)


def unsaid(one: Disturbance, calm: Calm) -> list[str]:
    """Checks that had to speak, and did not."""
    return sorted(one.says.keys() - {check for check, _ in calm.said})


def _summary(
    outcomes: dict[str, list[Outcome]],
    both: Sequence[Both],
    disturbances: Sequence[Disturbance],
    calms: dict[str, list[Calm]],
) -> Iterator[str]:
    every = [one for found in outcomes.values() for one in found]
    hours = sum(calm.hours for found in calms.values() for calm in found)
    said = [level for one in disturbances for calm in calms[one.name] for _, level in false(one, calm)]
    pages = said.count(FAIL.word)
    yield "## In short\n"
    yield "| | |\n| --- | --- |"
    yield f"| faults | {len(outcomes)} |"
    yield f"| fault on a node | {len(every)} |"
    yield f"| found, on the right part | {sum(not missed(one) for one in every)} of {len(every)} |"
    right = sum(one.right for one in both)
    yield f"| pairs of faults | {len(both)}, of which {right} were found as two, or hid each other |"
    yield f"| disturbances that are no fault | {len(calms)}, for {hours:g} node-hours |"
    for words, number in (("false verdicts that page (fail)", pages), ("false verdicts in all", len(said))):
        rate = 1000 * number / max(hours, 1e-9)
        yield f"| {words} | {number}: {rate:.0f} per thousand node-hours |"
    if hours and not pages:
        yield f"| what that proves | with none in {hours:g} hours, fewer than {3000 / hours:.0f} per thousand at 95 % |"
    yield ("\nThe disturbances come every ten or twenty minutes here; on a node in service, once a day or a month.")


def _faults(faults: Sequence[Fault], outcomes: dict[str, list[Outcome]]) -> Iterator[str]:
    yield "\n## Faults\n"
    yield "| fault | check | found | after | level | action | also said | under it |"
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
        _alike(one.level + (f", under `{one.inhibited_by}`" if one.inhibited_by else "") for one in right),
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
        yield f"- **{fault.name}** ({where}): {fault.miss or 'nobody has explained this yet.'}"


def _pairs(both: Sequence[Both]) -> Iterator[str]:
    yield "\n## Pairs\n"
    yield "Two faults at the same moment, on two GPUs and on the same one. *Hidden*: of a GPU that cannot be read"
    yield "nothing else can be known.\n"
    yield "| profile | | pairs | both found | one hidden by the other | one under the other | not found |"
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


def _lost(one: Both) -> str:
    place = "on the same GPU" if one.same_gpu else "on another GPU"
    lost = [name for name, found, hidden in zip(one.names, one.found, one.hidden, strict=True) if not (found or hidden)]
    return f"{' and '.join(lost)}, of {one.names[0]} and {one.names[1]} {place}"


def _calms(disturbances: Sequence[Disturbance], calms: dict[str, list[Calm]]) -> Iterator[str]:
    yield "\n## What is no fault\n"
    yield "| disturbance | nodes | node-hours | paging | other false | said |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for one in disturbances:
        found = calms[one.name]
        wrong = [each for calm in found for each in false(one, calm)]
        pages = sum(level == FAIL.word for _, level in wrong)
        said = _counted(check for calm in found for check, _ in calm.said)
        hours = sum(calm.hours for calm in found)
        yield f"| {one.name} | {len(found)} | {hours:g} | {pages} | {len(wrong) - pages} | {said} |"
    true = [f"- **{one.name}**: `{check}` {why}" for one in disturbances for check, why in one.says.items()]
    yield from (["\nWhat is said and is true:\n", *true] if true else [])
    yield ""


def unexplained(
    results: Iterable[Outcome | Both | Calm], faults: Sequence[Fault], disturbances: Sequence[Disturbance]
) -> list[str]:
    """Why this page is not good enough: misses without a reason, and verdicts that page for nothing."""
    reasons = {fault.name: fault.miss for fault in faults}
    rows = {one.name: one for one in disturbances}
    wrong = []
    for one in results:
        if isinstance(one, Outcome) and missed(one) and not reasons[one.fault]:
            wrong.append(f"missed on {one.profile}: {one.fault}")
        elif isinstance(one, Both) and not one.right:
            wrong.append(f"missed on {one.profile}: {_lost(one)}")
        elif isinstance(one, Calm):
            row, where = rows[one.name], f"on {one.profile}"
            wrong += [f"false {where}: {check} ({level}) of {one.name}" for check, level in false(row, one)]
            wrong += [f"not said {where}: {check} of {one.name}" for check in unsaid(row, one)]
    wrong += [f"no such check: {fault.check}" for fault in faults if fault.check not in BY_NAME]
    return wrong
