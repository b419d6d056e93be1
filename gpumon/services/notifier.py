"""Sends the agent's firing alerts to the configured receivers, such as a webhook. Each receiver has its own queue."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from gpumon import JOB
from gpumon.config.notifications_section import NotificationsSection
from gpumon.health.alert import FIRING, Alert
from gpumon.health.alert_texts import runbook_url
from gpumon.model.reading import Labels
from gpumon.model.records import NotifiedAlert, SentAlert
from gpumon.services.receivers import alertmanagers, message_receivers
from gpumon.services.senders import AlertmanagerSender, Delays, MessageSender, Sender, Write
from gpumon.state.report import Report
from gpumon.store import records
from gpumon.supervisor.loop import Loop

STORE_GRACE_SECONDS = 30.0
"""Seconds for which a store that failed at the start is waited for: a full disk must not suppress a message."""


class Notifier:
    """Service that notifies all receivers of the alerts that fire. Use from the loop's thread.

    It sends nothing before the stored verdicts are restored and the checks evaluated, because until then the alerts of
    these verdicts would seem to have ended. If the store failed, it sends without them, and repeats old messages.
    """

    def __init__(
        self,
        loop: Loop,
        section: NotificationsSection,
        address: str,
        runbooks: str,
        *,
        latest: Callable[[], Report],
        write: Write,
        delays: Delays | None = None,
    ) -> None:
        """Create the service. `address`: host and port of the agent. `runbooks`: URL of the folder with the runbooks.

        `write` runs a function in the store's thread.
        """
        self._labels = {"job": JOB, "instance": address} | dict(section.labels)
        self._runbooks = runbooks
        self._latest = latest
        self._fired: set[Labels] | None = None
        """Identities of the alerts that fired at the previous tick outside of a maintenance; None before the first."""
        self._write = write
        delays = delays or Delays()
        receivers = message_receivers(section, source=f"gpumon://{self._labels['instance']}")
        self._senders: list[Sender] = [AlertmanagerSender(loop, each, write, delays) for each in alertmanagers(section)]
        self._senders += [
            MessageSender(loop, each, write, delays, lambda: bool(latest().maintenance)) for each in receivers
        ]

    def restore(self, notified: Iterable[NotifiedAlert]) -> None:
        """Pass stored rows to the senders, which store all rows again. Delete those of receivers not configured."""
        by_receiver: dict[str, list[NotifiedAlert]] = {}
        for row in notified:
            by_receiver.setdefault(row.receiver, []).append(row)
        for sender in self._senders:
            sender.restore(by_receiver.pop(sender.row_name, ()))
        for row in (row for rows in by_receiver.values() for row in rows):
            self._write(partial(records.remove_notified, notified=row))

    def tick(self) -> None:
        """Pass the alerts that fire now to the senders; during a maintenance, only to those of Alertmanagers.

        An alert is passed from the second tick on, so that a cause that is read a moment later can inhibit it. Do
        nothing before the stored verdicts are restored and the checks evaluated, or while an open verdict is not
        exported yet (Report.hides_verdicts). A store that failed is not waited for after STORE_GRACE_SECONDS.
        """
        report = self._latest()
        evaluated = report.health.evaluated
        failed = report.node.store_up == 0 and evaluated is not None and evaluated.uptime >= STORE_GRACE_SECONDS
        if evaluated and (report.agent.restored or failed) and not report.hides_verdicts:
            before = self._fired
            firing = [alert for alert in report.alerts if alert.state == FIRING]
            if report.maintenance is None:
                self._fired = {alert.identity for alert in firing}
            settled = (alert for alert in firing if before is None or alert.identity in before)
            sent = (sent_alert(alert, report, self._labels, self._runbooks) for alert in settled)
            wanted = {alert.key: alert for alert in sent}
            for sender in self._senders:
                # A maintenance ends alerts although nothing is repaired: a message "resolved" would be false. An
                # Alertmanager gets the same end of the alerts from Prometheus.
                if report.maintenance is None or isinstance(sender, AlertmanagerSender):
                    sender.update(wanted)

    def start(self) -> None:
        for sender in self._senders:
            sender.start()

    def stop(self) -> None:
        for sender in self._senders:
            sender.stop()

    @property
    def counts(self) -> dict[str, float]:
        """Return the number of notifications by `receiver,outcome`, such as "webhook,delivered"."""
        return {
            f"{sender.receiver},{outcome}": float(count)
            for sender in self._senders
            for outcome, count in {"delivered": 0, "failed": 0, **sender.counts}.items()
        }

    @property
    def notice(self) -> str:
        """Return which receivers have failed for FAILING_SECONDS or refused an alert, and why; empty if none has."""
        return "; ".join(f"{sender.receiver}: {text}" for sender in self._senders for text in sender.problems())


def sent_alert(alert: Alert, report: Report, labels: Mapping[str, str], runbooks: str) -> SentAlert:
    """Return a firing alert of the report with the labels and texts that it has in Prometheus.

    `labels`: the labels that Prometheus adds for the scrape target, such as job and instance. `runbooks`: the URL of
    the folder with the runbooks.
    """
    host = re.sub(":[0-9]+$", "", labels["instance"])
    state = report.gpu(dict(alert.labels).get("uuid", ""))
    return SentAlert(
        labels=tuple(sorted({**labels, **dict(alert.identity)}.items())),
        summary=f"{host}: {alert.summary}",
        description=alert.description,
        action=alert.action,
        serial="" if state is None else state.gpu.serial or "",
        runbook_url=runbook_url(alert.runbook_url.rpartition("/")[2], runbooks),
        since=alert.firing_since or alert.since,
    )
