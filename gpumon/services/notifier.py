"""Sends the agent's firing alerts to the configured receivers, such as Slack. Each receiver has its own thread."""

from __future__ import annotations

import logging
import random
import re
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpumon.config.notifications_section import NotificationsSection
from gpumon.health.alert import FIRING
from gpumon.health.check_row import Paging
from gpumon.health.last_verdicts import JOB
from gpumon.model.notified_alert import NotifiedAlert, SentAlert
from gpumon.services.delivery_error import DeliveryError
from gpumon.services.receivers import Alertmanager, MessageReceiver, alertmanagers, message_receivers
from gpumon.state.report import Report
from gpumon.store import notified as store_notified

log = logging.getLogger("gpumon.notifications")

FAILING_SECONDS = 180.0
"""Seconds since the first of consecutive failed attempts after which a receiver is reported as failing."""
Wanted = Mapping[str, SentAlert]
"""The alerts that fire now, by their labels as JSON text (SentAlert.key)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays and intervals of a Sender, in seconds. Tests shorten them."""

    retry: tuple[float, float] = (1.0, 300.0)
    """Minimum and maximum delay, before jitter, until a failed message is sent again. The delay doubles with each
    failure.
    """
    again: float = 60.0
    """Interval at which alerts that still fire are sent to an Alertmanager again."""
    lapse: float = 240.0
    """Time after which an Alertmanager resolves an alert that is not sent again: four times `again`."""
    linger: float = 90.0
    """Time from the end of an alert until it is sent to an Alertmanager as resolved. A Prometheus that sends the same
    alert may detect this end up to a minute later, and until then would make the alert fire again.
    """
    forget: float = 300.0
    """Time after `linger` in which an ended alert is repeatedly sent to an Alertmanager as resolved."""


class Sender(threading.Thread):
    """A thread that notifies one receiver of the alerts that fire. `name` is the name of the receiver."""

    def __init__(self, name: str, delays: Delays) -> None:
        super().__init__(name=f"notify-{name}", daemon=True)
        self.receiver = name
        self.counts = Counter[str]()
        """Notifications by outcome: delivered, refused or failed."""
        self.failing_since: float | None = None
        """Monotonic clock at the first failed attempt since the last successful one; None after a success."""
        self.problem = ""
        self.refusals: Mapping[str, str] = {}
        """By SentAlert.key: why the receiver refused the message about an alert that still fires. The mapping is
        replaced, never changed, because another thread reads it.
        """
        self._delays = delays
        self._changed = threading.Condition()
        self._wanted: Wanted | None = None
        self._version = 0
        self._stopped = False
        self._attempts = 0

    def update(self, wanted: Wanted) -> None:
        """Pass the alerts that fire now to the thread, and return at once."""
        with self._changed:
            if wanted != self._wanted:
                self._wanted, self._version = dict(wanted), self._version + 1
                self._changed.notify()

    def stop(self) -> None:
        """Make the thread end, without waiting for a message that is being sent."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        while not self._stopped:
            version, wanted = self._version, self._wanted
            pause = None if wanted is None else self._attempt(wanted)
            with self._changed:
                if not self._stopped and (version == self._version or self._attempts):
                    self._changed.wait(pause)

    def step(self, wanted: Wanted) -> float | None:
        """Send messages that are due. Raise DeliveryError if one is not delivered.

        Return the seconds until the next call, which a change of the alerts brings forward; None to wait for a change.
        """
        raise NotImplementedError

    def _attempt(self, wanted: Wanted) -> float | None:
        try:
            pause = self.step(wanted)
        except DeliveryError as error:
            return self._fail(error)
        except Exception as error:
            log.exception("a notification failed in a way that was not foreseen", extra={"receiver": self.receiver})
            return self._fail(DeliveryError(f"{type(error).__name__}: see the log"))
        if self.failing_since is not None:
            log.info("notifications are delivered again", extra={"receiver": self.receiver})
        self.failing_since, self._attempts = None, 0
        return pause

    def problems(self) -> Iterator[str]:
        """Yield why all attempts of the last FAILING_SECONDS failed, and why messages about firing alerts were refused.

        Yield nothing without such a problem.
        """
        since = self.failing_since
        if since is not None and time.monotonic() - since >= FAILING_SECONDS:
            yield self.problem
        yield from self.refusals.values()

    def _fail(self, error: DeliveryError) -> float:
        self.counts["failed"] += 1
        self.problem = str(error)
        if self.failing_since is None:
            self.failing_since = time.monotonic()
            log.warning("a notification failed and is retried", extra={"receiver": self.receiver, "error": str(error)})
        least, most = self._delays.retry
        self._attempts += 1
        return min(most, least * 2.0 ** (self._attempts - 1)) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter


class MessageSender(Sender):
    """Sends one message when an alert begins to fire, and one when it is resolved.

    Alerts with the label page=never are not sent. The alerts of which the receiver was notified are stored, so that
    comparing them with the firing alerts shows which messages are due, also after a restart.
    """

    def __init__(
        self,
        receiver: MessageReceiver,
        known: Iterable[SentAlert],
        store: Callable[[NotifiedAlert, bool], None],
        delays: Delays,
    ) -> None:
        """Create the thread. `known`: firing alerts of which the receiver was notified before the start.

        `store` is called after each notification, with True if the alert is resolved.
        """
        super().__init__(receiver.name, delays)
        self._receiver = receiver
        self._known = {alert.key: alert for alert in known}
        self._store = store

    def step(self, wanted: Wanted) -> float | None:
        wanted = {key: alert for key, alert in wanted.items() if dict(alert.labels)["page"] != Paging.NEVER}
        for key, alert in wanted.items():
            if key not in self._known:
                self._deliver(alert, resolved=False)
                self._known[key] = alert
                return 0.0
        self.refusals = {key: text for key, text in self.refusals.items() if key in wanted}
        for key, alert in self._known.items():
            if key not in wanted:
                self._deliver(alert, resolved=True)
                del self._known[key]
                return 0.0
        return None

    def _deliver(self, alert: SentAlert, *, resolved: bool) -> None:
        try:
            self._receiver.deliver(alert, resolved=resolved)
        except DeliveryError as error:
            if not error.refused:
                raise
            self.counts["refused"] += 1
            if (
                not resolved and dict(alert.labels).get("class") != "agent"
            ):  # the agent's own alert about refusals would keep firing because of its own refusal
                self.refusals = {**self.refusals, alert.key: f"{alert.name} was refused: {error}"}
            details = {"receiver": self.receiver, "alert": alert.name, "error": str(error)}
            log.error("a notification was refused and is not sent again", extra=details)  # noqa: TRY400 - no traceback
        else:
            self.counts["delivered"] += 1
        self._store(NotifiedAlert(self.receiver, alert), resolved)


class AlertmanagerSender(Sender):
    """Repeatedly sends all firing alerts, and for some time the resolved ones, to an Alertmanager, as Prometheus does.

    Sent alerts are not stored, because Alertmanager resolves an alert that is not sent again.
    """

    def __init__(self, receiver: Alertmanager, delays: Delays) -> None:
        super().__init__(receiver.name, delays)
        self._receiver = receiver
        self._sent: dict[str, SentAlert] = {}
        self._ended: dict[str, tuple[SentAlert, float]] = {}
        """Alerts that were sent and have ended, and the Unix time of their end, by SentAlert.key."""

    def step(self, wanted: Wanted) -> float | None:
        now, delays = time.time(), self._delays
        self._ended.update({key: (alert, now) for key, alert in self._sent.items() if key not in wanted})
        self._ended = {
            key: (alert, end)
            for key, (alert, end) in self._ended.items()
            if key not in wanted and now < end + delays.linger + delays.forget
        }
        self._sent = dict(wanted)
        firing = [(alert, now + delays.lapse) for alert in wanted.values()]
        resolved = [(alert, end) for alert, end in self._ended.values() if now >= end + delays.linger]
        if firing or resolved:
            try:
                self._receiver.post([*firing, *resolved])
            except DeliveryError as error:
                raise DeliveryError(str(error)) from error  # retried even if refused: a reload there may change that
            self.counts["delivered"] += len(firing) + len(resolved)
        return delays.again if firing or self._ended else None


class Notifier:
    """Service that notifies all receivers of the alerts that fire. Use from the loop's thread.

    It sends nothing before the stored verdicts are restored and the checks evaluated, because until then the alerts of
    these verdicts would seem to have ended.
    """

    def __init__(
        self,
        section: NotificationsSection,
        address: str,
        runbooks: str,
        *,
        latest: Callable[[], Report],
        write: Callable[[Callable[[sqlite3.Connection], object]], None],
        delays: Delays | None = None,
    ) -> None:
        """Create the service. `address`: host and port of the agent. `runbooks`: URL of the folder with the runbooks.

        `write` runs a function in the store's thread.
        """
        self._labels = {"job": JOB, "instance": address} | dict(section.labels)
        self._runbooks = runbooks
        self._section = section
        self._delays = delays or Delays()
        self._latest = latest
        self._write = write
        self._senders: list[Sender] = []

    def restore(self, notified: Iterable[NotifiedAlert]) -> None:
        """Start the senders. `notified`: stored alerts of which receivers were notified before the agent started."""
        known = list(notified)
        self._senders = [AlertmanagerSender(receiver, self._delays) for receiver in alertmanagers(self._section)]
        for receiver in message_receivers(self._section, source=f"gpumon://{self._labels['instance']}"):
            alerts = [each.alert for each in known if each.receiver == receiver.name]
            self._senders.append(MessageSender(receiver, alerts, self._store, self._delays))
        for sender in self._senders:
            sender.start()

    def tick(self) -> None:
        """Pass the alerts that fire now to the senders; during a maintenance, only to those of Alertmanagers.

        Do nothing before the stored verdicts are restored and the checks evaluated, or while an open verdict is not
        exported yet (Report.hides_verdicts).
        """
        report = self._latest()
        if self._senders and report.health.evaluated and report.internal.restored and not report.hides_verdicts:
            wanted = {alert.key: alert for alert in sent_alerts(report, self._labels, self._runbooks)}
            for sender in self._senders:
                # A maintenance ends alerts although nothing is repaired: a message "resolved" would be false. An
                # Alertmanager gets the same end of the alerts from Prometheus.
                if report.maintenance is None or isinstance(sender, AlertmanagerSender):
                    sender.update(wanted)

    def stop(self) -> None:
        for sender in self._senders:
            sender.stop()

    def _store(self, notified: NotifiedAlert, resolved: bool) -> None:  # noqa: FBT001 - a callback
        change = store_notified.remove if resolved else store_notified.put
        self._write(lambda connection: change(connection, notified))

    @property
    def counts(self) -> dict[str, float]:
        """Return the number of notifications by `receiver,outcome`, such as "slack,delivered"."""
        return {
            f"{sender.receiver},{outcome}": float(count)
            for sender in self._senders
            for outcome, count in {"delivered": 0, "failed": 0, **sender.counts}.items()
        }

    @property
    def notice(self) -> str:
        """Return which receivers have failed for FAILING_SECONDS or refused an alert, and why; empty if none has."""
        return "; ".join(f"{sender.receiver}: {text}" for sender in self._senders for text in sender.problems())


def sent_alerts(report: Report, labels: Mapping[str, str], runbooks: str) -> Iterator[SentAlert]:
    """Yield the firing alerts with the labels and texts that they have in Prometheus.

    `labels`: the labels that Prometheus adds for the scrape target, such as job and instance. `runbooks`: the URL of
    the folder with the runbooks.
    """
    host = re.sub(":[0-9]+$", "", labels["instance"])
    for alert in report.alerts:
        if alert.state == FIRING:
            state = report.gpu(dict(alert.labels).get("uuid", ""))
            yield SentAlert(
                labels=tuple(sorted({**labels, **dict(alert.identity)}.items())),
                summary=f"{host}: {alert.summary}",
                description=alert.description,
                action=alert.action,
                serial="" if state is None else state.gpu.serial or "",
                runbook_url=f"{runbooks}/{alert.runbook_url.rpartition('/')[2]}",
                since=alert.firing_since or alert.since,
            )
