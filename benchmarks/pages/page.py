"""Writer of docs/pages.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles

from benchmarks.pages.measure import NotificationOutcome, newly_firing
from benchmarks.pages.stack import Notified

_INTRODUCTION = """\
# What reaches a person

`make pages` measures it and writes this page; a run takes about twenty minutes on two cores. Each fault of the
simulation is injected into one node of a simulated fleet, in virtual time. The pages of `/metrics` around its verdict
are replayed to a real Prometheus (15 s between scrapes, and between evaluations) with `alert_rules/gpumon.yml`, and a
real Alertmanager with the routes of `deploy/alertmanager/alertmanager.yml`. What leaves Alertmanager is counted. No
real hardware was measured.

A notification counts for a node if an alert of that node fires in it for the first time. *After*: seconds from the
verdict on `/metrics` to the notification. Each runbook in a notification is fetched from an agent. Only alerts about a
GPU have a serial number: gpumon reads none of adapters and nodes. An alert that another one inhibits is not notified:
the table names the one that is.

One notification is due for each fault. For two faults it is one if a GPU each has the same alert, or if one inhibits
the other. The column *notifications* shows "2 for 1" if one was due and two were sent.
"""


def page(outcomes: Sequence[NotificationOutcome], storms: Mapping[str, Sequence[Notified]]) -> str:
    """Return the page."""
    return "\n".join((_INTRODUCTION, *_summary(outcomes), *_storms(storms), *_example(outcomes), *_cases(outcomes)))


def _summary(outcomes: Sequence[NotificationOutcome]) -> Iterator[str]:
    delays = sorted(delay for outcome in outcomes for delay in outcome.delays)
    single = [outcome for outcome in outcomes if outcome.faults == 1]
    yield "## Summary\n"
    yield "| | |\n| --- | --- |"
    yield f"| faults and pairs of faults | {len(outcomes)} |"
    exact, excused = sum(each.exact for each in outcomes), [each for each in outcomes if each.right and not each.exact]
    announced = sum(bool(each.announced) for each in excused)
    yield f"| exactly those due, with host, reason, action, runbook and a GPU's serial number | {exact} |"
    yield f"| one more: a milder alert was sent before, which the fault's own verdict then inhibits | {announced} |"
    yield f'| one more, for the reason in the column "also" | {len(excused) - announced} |'
    yield f"| anything else: `make pages` fails | {sum(not each.right for each in outcomes)} |"
    with_one = sum(each.pages == 1 for each in single)
    yield f"| single faults with exactly one notification | {with_one} of {len(single)} |"
    yield f"| median after the verdict | {median(delays):.0f} s |"
    yield f"| 95 of 100 after | {quantiles(delays, n=20)[-1]:.0f} s |\n"


def _storms(storms: Mapping[str, Sequence[Notified]]) -> Iterator[str]:
    yield "## Many nodes, one cause\n"
    yield "| cause | notifications | alerts in them |\n| --- | --- | --- |"
    for title, received in storms.items():
        new = list(newly_firing(received))
        names = ", ".join(sorted({each.labels["alertname"] for each in new}))
        yield f"| {title} | {len({each.notification for each in new})} | {len(new)} x {names} |"
    yield ""


def _example(outcomes: Sequence[NotificationOutcome]) -> Iterator[str]:
    example = next((each.example for each in outcomes if each.example and "Xid 48" in each.title), None)
    if example is not None:
        yield "## A notification\n\n```yaml"
        yield from (f"{name}: {text}" for name, text in sorted({**example.labels, **example.annotations}.items()))
        yield "```\n"


def _with_inhibitor(alert: str, inhibited: Mapping[str, str]) -> str:
    return f"{alert} (inhibited by {inhibited[alert]})" if alert in inhibited else alert


def _cases(outcomes: Sequence[NotificationOutcome]) -> Iterator[str]:
    yield "## Faults\n"
    yield "| fault | alert | receiver | notifications | after | also |\n| --- | --- | --- | --- | --- | --- |"
    for each in outcomes:
        count = str(each.pages) if each.pages == each.expected else f"{each.pages} for {each.expected}"
        cells = (
            each.title,
            ", ".join(_with_inhibitor(alert, dict(each.inhibited)) for alert, _ in each.alerts),
            ", ".join(each.receivers),
            count + (f"; lacks {', '.join(each.lacking)}" if each.lacking else ""),
            ", ".join(f"{delay:.0f} s" for delay in each.delays),
            each.second or ", ".join(each.others),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
