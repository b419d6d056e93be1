"""Which alerts of a Report are passed to the senders, and when."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import sample_reports as reports
from agents import eventually
from changed_report import changed
from loops import running
from receivers import Inbox, http_inbox
from sample_windows import MAINTENANCE, window

from gpumon.config.notifications_section import NotificationsSection
from gpumon.services.notifier import STORE_GRACE_SECONDS, Notifier
from gpumon.services.senders import Delays
from gpumon.state.report import Report
from gpumon.supervisor.loop import Loop

QUICK = Delays(retry=(0.01, 0.05), again=0.05)
LOST = reports.lost()


def in_maintenance(report: Report) -> Report:
    started = window(MAINTENANCE, start=reports.STAMP.wall, start_at=reports.STAMP.boot, seconds=600.0)
    return replace(report, windows=(started,))


def unread(report: Report, *, uptime: float) -> Report:
    """Return the report of an agent that could not read its store."""
    health = replace(report.health, evaluated_uptime=uptime)
    node = replace(report.node, store_up=0.0)
    return changed(report, health=health, node=node, restored=False)


@contextlib.contextmanager
def notifying(webhook: Inbox, alertmanager: Inbox, shown: list[Report]) -> Iterator[Ticking]:
    """Run a notifier of two receivers for the last of the shown reports."""
    urls: dict[str, Any] = {"webhook_url": webhook.url, "alertmanagers": (alertmanager.url.removesuffix("/hook"),)}
    loop = Loop()
    notifier = Notifier(
        loop,
        NotificationsSection(**urls),
        "gpu-17:17400",
        "https://wiki.example.com/gpumon/",
        latest=lambda: shown[-1],
        write=lambda _: None,
        delays=QUICK,
    )
    with running(loop) as call:
        call(notifier.start)
        try:
            yield Ticking(notifier, call)
        finally:
            call(notifier.stop)


@dataclass
class Ticking:
    """A notifier on a loop in another thread."""

    notifier: Notifier
    call: Callable[[Callable[[], None]], None]

    def tick(self) -> None:
        self.call(self.notifier.tick)


def test_a_runbook_link_has_no_double_slash() -> None:
    """Whether or not `alerts.runbook_url` ends with a slash."""
    with http_inbox() as webhook, http_inbox() as alertmanager, notifying(webhook, alertmanager, [LOST]) as notifier:
        notifier.tick()
        [event] = webhook.wait_for(1)
    assert event["data"]["annotations"]["runbook_url"] == "https://wiki.example.com/gpumon/GpuLost"


def test_in_maintenance_alerts_are_sent_to_alertmanagers_only() -> None:
    """A message that waits for its receiver waits until the end of the maintenance too."""
    shown = [LOST]
    away = [503] * 10_000
    with http_inbox(*away) as webhook, http_inbox() as other, notifying(webhook, other, shown) as notifier:
        notifier.tick()
        eventually(lambda: notifier.notifier.counts["webhook,failed"])
        shown.append(in_maintenance(LOST))
        other.wait_for(len(other.received) + 3)  # an attempt that began before has ended
        webhook.answers.clear()
        other.wait_for(len(other.received) + 5)
        assert webhook.received == []
        shown.append(LOST)
        webhook.wait_for(1)


def test_the_end_of_a_maintenance_resolves_nothing() -> None:
    """A fault that was notified before is still present; the next message is about another one."""
    shown = [LOST]
    both = reports.with_verdicts(reports.with_fault(LOST, 5, "lost", "NVML: GPU is lost"))
    with http_inbox() as webhook, http_inbox() as alertmanager, notifying(webhook, alertmanager, shown) as notifier:
        notifier.tick()
        webhook.wait_for(1)
        for report in (in_maintenance(LOST), LOST, both, both):
            shown.append(report)
            notifier.tick()
            if not report.maintenance:
                alertmanager.wait_for(len(alertmanager.received) + 3)  # a message would have left by now
        second = webhook.wait_for(2)[1]
    assert (second["data"]["labels"]["gpu"], second["data"]["state"]) == ("5", "firing")


def test_a_store_that_cannot_be_read_delays_a_message_and_does_not_suppress_it() -> None:
    """After the grace the alerts that fire now are sent, without those of the time before."""
    shown = [unread(reports.lost(5), uptime=STORE_GRACE_SECONDS - 1)]
    with http_inbox() as webhook, http_inbox() as alertmanager, notifying(webhook, alertmanager, shown) as notifier:
        notifier.tick()
        shown.append(unread(LOST, uptime=STORE_GRACE_SECONDS))
        notifier.tick()
        [event] = webhook.wait_for(1)
        notifier.call(lambda: notifier.notifier.restore(()))
        shown.append(unread(reports.healthy(), uptime=STORE_GRACE_SECONDS))
        notifier.tick()
        resolved = webhook.wait_for(2)[1]
    events = [(each["data"]["labels"]["gpu"], each["data"]["state"]) for each in (event, resolved)]
    assert events == [("3", "firing"), ("3", "resolved")]
