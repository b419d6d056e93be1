"""Replays tapes to Prometheus and Alertmanager, counts the notifications of each fault, and renders docs/pages.md."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

from agents import AgentProcess

from benchmarks.pages.stack import Notified, stack
from benchmarks.pages.tape import Place, Tape
from gpumon import DEFAULT_PORT
from gpumon.health.alert_texts import SINGLE_SECONDS, alert_texts

SETTLE = 45.0
"""Seconds in which the fleet is healthy before the first fault."""
AFTER_STORM = SINGLE_SECONDS + 180.0
"""Seconds after the begin of a storm in which notifications are counted, also those of GpumonDown."""
AFTERWARDS = 100.0
"""Seconds after the last verdict in which further notifications are counted."""


@dataclass(frozen=True, slots=True)
class NotificationOutcome:
    """What left Alertmanager because of one case."""

    title: str
    faults: int
    """Number of injected faults: 1 or 2."""
    second: str
    """What a second notification of the fault is about; empty if none is due."""
    alerts: tuple[Place, ...]
    """Alerts of the faults."""
    inhibited: tuple[tuple[str, str], ...]
    """Alerts of the faults that were not notified, each with the notified alert that inhibits it."""
    pages: int
    """Notifications in which an alert of the node fires for the first time."""
    expected: int
    """Notifications that are due: one for each alert of the faults; two GPUs with the same alert at once are one."""
    delays: tuple[float, ...]
    """Seconds from each alert's verdict to its notification."""
    others: tuple[str, ...]
    """Other alerts in these notifications."""
    announced: int
    """How many of these others are of a milder check, which the fault's own verdict then inhibits."""
    receivers: tuple[str, ...]
    lacking: tuple[str, ...]
    """What is missing: a fault's alert, or in a notification host, reason, action, a GPU's serial number, runbook."""
    example: Notified | None

    @property
    def exact(self) -> bool:
        """Return whether exactly the notifications that are due were sent, with all texts."""
        return self.pages == self.expected and not self.lacking

    @property
    def right(self) -> bool:
        """Return whether those due were sent, and one more only if it is announced or the fault has a second one."""
        return self.pages - self.announced == self.expected + bool(self.second) and not self.lacking


@dataclass(frozen=True, slots=True)
class Storm:
    """Many nodes with one cause. `begins`: seconds after the start of the replay."""

    title: str
    nodes: tuple[str, ...]
    page: Callable[[float, float], str | None]
    """Returns /metrics of each node, for the seconds since the storm began (below 0: before) and the wall time."""
    begins: float


def measure(
    tapes: Sequence[Tape],
    storms: Sequence[Storm] = (),
    *,
    interval: float = 15.0,
    apart: float = 4.0,
    settle: float = SETTLE,
    afterwards: float = AFTERWARDS,
) -> tuple[list[NotificationOutcome], dict[str, list[Notified]]]:
    """Return the outcome of each tape, and the notifications of each storm by its title.

    `apart`: seconds between the faults of two nodes. `settle`, `afterwards`: seconds in which the fleet is healthy
    before the first fault, and in which further notifications are counted after the last verdict.
    """
    names = {f"gpu-{number:03}": tape for number, tape in enumerate(tapes)}
    begin = time.time() + settle
    starts = {name: begin + apart * number for number, name in enumerate(names)}

    def page(name: str) -> str:
        wall = time.time()
        return names[name].page_at(max(0.0, wall - starts[name]), wall)

    def storm_page(storm: Storm) -> str | None:
        wall = time.time()
        return storm.page(wall - begin - storm.begins, wall)

    pages: dict[str, Callable[[], str | None]] = {name: partial(page, name) for name in names}
    pages |= {node: partial(storm_page, storm) for storm in storms for node in storm.nodes}
    ends = [starts[name] + max(tape.raised.values(), default=0.0) + afterwards for name, tape in names.items()]
    end = max(*ends, *(begin + storm.begins + AFTER_STORM for storm in storms), begin)
    with tempfile.TemporaryDirectory(prefix="gpumon-pages-") as folder:
        with stack(Path(folder), pages, interval=interval) as received:
            time.sleep(max(0.0, end - time.time()))
        served = served_runbooks(Path(folder), received)
    outcomes = [outcome_of(name, tape, starts[name], received, served) for name, tape in names.items()]
    return outcomes, {storm.title: _of(received, storm.nodes, storm.title) for storm in storms}


def _of(received: Iterable[Notified], nodes: Sequence[str], title: str) -> list[Notified]:
    """Return the notifications about these nodes, and those about the fleet."""
    instances = {f"{node}:{DEFAULT_PORT}" for node in nodes}
    return [
        each
        for each in received
        if each.labels.get("instance") in instances
        or (each.labels["alertname"] == "GpumonManyDown" and "agents" in title)
    ]


def newly_firing(received: Iterable[Notified]) -> Iterator[Notified]:
    """Yield each alert when it first fires, and again each time that it fires after it was resolved."""
    firing = set[tuple[tuple[str, str], ...]]()
    for each in received:
        identity = tuple(sorted(each.labels.items()))
        if each.status == "firing" and identity not in firing:
            firing.add(identity)
            yield each
        elif each.status == "resolved":
            firing.discard(identity)


def served_runbooks(folder: Path, received: Iterable[Notified]) -> frozenset[str]:
    """Return the paths of runbooks in these notifications that an agent serves. Each agent serves all."""
    paths = {urlsplit(each.annotations.get("runbook_url", "")).path for each in received}
    agent = AgentProcess(folder, profile="t4x1").start()
    try:
        return frozenset(path for path in paths if path and agent.status(path) == HTTPStatus.OK)
    finally:
        agent.stop()


def outcome_of(
    name: str, tape: Tape, start: float, received: Iterable[Notified], served: frozenset[str]
) -> NotificationOutcome:
    """Return the outcome of a tape that the node `name` replayed from the time `start`."""
    new = list(newly_firing(each for each in received if each.labels.get("instance") == f"{name}:{DEFAULT_PORT}"))
    first: dict[Place, Notified] = {}
    for each in new:
        device = each.labels.get("gpu", each.labels.get("device", ""))
        first.setdefault((each.labels["alertname"], device), each)
    alerts = tuple(sorted(tape.expected, key=lambda place: tape.raised[place]))
    due = {(alert, tape.raised[alert, device]) for alert, device in alerts}  # the same alert of two GPUs is one
    notified = {alert for alert, _ in first}
    silent = {alert: _inhibitor(alert, notified) for alert, _ in alerts if alert not in notified}
    return NotificationOutcome(
        title=tape.case.title,
        faults=len(tape.case.names),
        second=tape.case.second_notification,
        alerts=alerts,
        inhibited=tuple((alert, cause) for alert, cause in silent.items() if cause),
        pages=len({each.notification for each in new}),
        expected=len(due),
        delays=tuple(first[place].at - start - tape.raised[place] for place in alerts if place in first),
        others=tuple(sorted(notified - {alert for alert, _ in alerts} - set(silent.values()))),
        announced=sum(_is_announcement(other, alerts) for other in notified - {alert for alert, _ in alerts}),
        receivers=tuple(sorted({each.receiver for each in new})),
        lacking=(
            *(f"{alert}: notification" for alert, cause in silent.items() if not cause),
            *_lacking(name, new, served),
        ),
        example=first.get(alerts[0]) if alerts else None,
    )


def _inhibitor(alert: str, notified: Iterable[str]) -> str:
    """Return the notified alert whose check inhibits that of `alert`; empty if there is none."""
    checks = {rule.name: rule.check for rule in alert_texts()}
    check = checks[alert]
    causes = () if check is None else check.inhibited_by
    return next((other for other in sorted(notified) if (cause := checks[other]) and cause.name in causes), "")


def _is_announcement(other: str, alerts: Iterable[Place]) -> bool:
    """Return whether the check of the other alert is one that the checks of these alerts inhibit."""
    checks = {rule.name: rule.check for rule in alert_texts()}
    check, causes = checks[other], {cause.name for alert, _ in alerts if (cause := checks[alert])}
    return check is not None and not causes.isdisjoint(check.inhibited_by)


def _lacking(name: str, new: Iterable[Notified], served: frozenset[str]) -> Iterator[str]:
    for each in new:
        texts, alert = each.annotations, each.labels["alertname"]
        if not texts["summary"].startswith(f"{name}: "):
            yield f"{alert}: host"
        if not texts.get("description") or "`gpumon status`" in texts["description"]:
            yield f"{alert}: reason"
        if not texts.get("action"):
            yield f"{alert}: action"
        if "gpu" in each.labels and not texts.get("serial"):
            yield f"{alert}: serial number"
        if urlsplit(texts.get("runbook_url", "")).path not in served:
            yield f"{alert}: runbook"


# The page

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


def _cases(outcomes: Sequence[NotificationOutcome]) -> Iterator[str]:
    yield "## Faults\n"
    yield "| fault | alert | receiver | notifications | after | also |\n| --- | --- | --- | --- | --- | --- |"
    for each in outcomes:
        count = str(each.pages) if each.pages == each.expected else f"{each.pages} for {each.expected}"
        causes = {alert: f" (inhibited by {cause})" for alert, cause in each.inhibited}
        cells = (
            each.title,
            ", ".join(alert + causes.get(alert, "") for alert, _ in each.alerts),
            ", ".join(each.receivers),
            count + (f"; lacks {', '.join(each.lacking)}" if each.lacking else ""),
            ", ".join(f"{delay:.0f} s" for delay in each.delays),
            each.second or ", ".join(each.others),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
