"""Notifies receivers of the alerts that fire, each with its own queue and retries."""

from __future__ import annotations

import hashlib
import logging
import random
import sqlite3
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from gpumon.health.alert_texts import SEVERITIES
from gpumon.health.check_row import Paging
from gpumon.model.records import NotifiedAlert, SentAlert
from gpumon.services.delivery_child import TIMEOUT_SECONDS, DeliveryChild, Outcome
from gpumon.services.receivers import Alertmanager, MessageReceiver, Orders
from gpumon.store import records
from gpumon.supervisor.loop import Loop, Timer

log = logging.getLogger("gpumon.notifications")

FAILING_SECONDS = 180.0
"""Seconds since the first of consecutive failed attempts after which a receiver is reported as failing."""
Wanted = Mapping[str, SentAlert]
"""The alerts that fire now, by their labels as JSON text (SentAlert.key)."""
Write = Callable[[Callable[[sqlite3.Connection], object]], object]
"""Runs a function in the store's thread."""
MAX_ENDED = 500
"""Maximum number of ended alerts for a receiver that was not yet notified that they fired."""
MAX_ABANDONED = 3
"""Maximum number of attempts of a receiver that SIGKILL has not ended."""
MAX_DOUBLINGS = 60
"""Number of failures after which the delay no longer doubles: a power of two above 1023 is no floating-point number."""
ALL = SentAlert(labels=(), summary="", description="", action="", since=0.0)
"""Stands for all alerts of an Alertmanager, in the row that keeps since when it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """Delays and intervals of a Sender, in seconds. Tests shorten them."""

    retry: tuple[float, float] = (1.0, 300.0)
    """Minimum and maximum delay, before jitter, until a failed message is sent again. The delay doubles with each
    failure.
    """
    attempt: float = TIMEOUT_SECONDS
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


class Sender(ABC):
    """Notifies one receiver of the alerts that fire, with one attempt at a time. Use from the loop's thread."""

    REFUSABLE: ClassVar[bool] = True
    """Whether a message that the receiver refuses is not sent again."""

    def __init__(self, loop: Loop, name: str, row_name: str, write: Write, delays: Delays) -> None:
        """Create the sender for the receiver `name`, in the store `row_name`. `write` stores each change of a row."""
        self.receiver = name
        self.row_name = row_name
        self.counts = Counter[str]()
        """Notifications by outcome: delivered, refused, failed or dropped."""
        self.problem = "the last attempts before the agent was restarted failed"
        self.refusals: dict[str, str] = {}
        """By SentAlert.key: why the receiver refused the message about an alert that still fires."""
        self._loop = loop
        self._delays = delays
        self._rows: dict[str, NotifiedAlert] = {}
        self._write = write
        self._retries: dict[str, tuple[int, float]] = {}
        """Number of failed attempts, and monotonic clock of the next one, by SentAlert.key."""
        self._attempt: DeliveryChild | None = None
        self._late: list[DeliveryChild] = []
        """Attempts that did not end in time and are still running."""
        self._wanted: Wanted | None = None
        self._timer: Timer | None = None
        self._started = False

    def restore(self, rows: Iterable[NotifiedAlert]) -> None:
        """Add stored rows of the receiver, unless the alert has a row already, which is newer. Store all rows again."""
        self._rows = {row.alert.key: row for row in rows} | self._rows
        self._wanted = None  # the next update compares the alerts with these rows
        self._write(partial(records.replace_notified, receiver=self.row_name, rows=tuple(self._rows.values())))

    def start(self) -> None:
        self._started = True
        self._turn()

    def update(self, wanted: Wanted) -> None:
        """Replace the alerts that fire now."""
        if wanted != self._wanted:
            self._wanted = dict(wanted)
            self._turn()

    def stop(self) -> None:
        """Begin no further attempt, and end the one in progress."""
        self._started = False
        if self._attempt is not None:
            self._attempt.kill()

    def _turn(self) -> None:
        """Begin the attempt that is due, or wait for its time. The end of an attempt is followed by another turn."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._started and self._attempt is None and self._wanted is not None:
            pause = self.step(self._wanted)
            if pause is not None:
                self._timer = self._loop.call_after(pause, self._turn)

    @abstractmethod
    def step(self, wanted: Wanted) -> float | None:
        """Begin an attempt to send what is due, and return the seconds until the next call.

        Return None to wait for a change of the alerts or the end of the attempt. `wanted`: the alerts that fire now.
        """

    def problems(self) -> Iterator[str]:
        """Yield the last error if a message has failed for FAILING_SECONDS, and why firing alerts were refused.

        Refused alerts about the agent itself (class=agent) are left out.
        """
        since = min((row.failing_since for row in self._rows.values() if row.failing_since), default=None)
        if since is not None and time.time() - since >= FAILING_SECONDS:
            yield self.problem
        yield from self.refusals.values()

    def _begin(self, row: NotifiedAlert, orders: Orders, on_delivered: Callable[[], None]) -> None:
        """Begin an attempt. Call `on_delivered` if the message is delivered, or refused for good."""
        self._late = [each for each in self._late if each.child is not None and not each.child.ended]
        if len(self._late) >= MAX_ABANDONED:
            self._fail(row, f"{MAX_ABANDONED} attempts have not ended")
            self._loop.post(self._turn)
            return
        conclude = partial(self._conclude, row, on_delivered)
        self._attempt = DeliveryChild(self._loop, orders, self._delays.attempt, conclude)

    def _conclude(self, row: NotifiedAlert, on_delivered: Callable[[], None], outcome: Outcome) -> None:
        if self._attempt is not None and self._attempt.timed_out:
            self._late.append(self._attempt)
        self._attempt = None
        if outcome.error is not None and not (outcome.refused and self.REFUSABLE):
            self._fail(row, outcome.error)
        else:
            if outcome.error is None:
                self.counts["delivered"] += 1
            else:
                self._refuse(row, outcome.error)
            if self._retries.pop(row.alert.key, None) and not self._retries:
                log.info("notifications are delivered again", extra={"receiver": self.receiver})
            on_delivered()
        self._turn()

    def _refuse(self, row: NotifiedAlert, error: str) -> None:
        alert = row.alert
        self.counts["refused"] += 1
        if not row.delivered:
            self._change(row, refused=True)
            if dict(alert.labels).get("class") != "agent":  # that alert would keep itself alive
                self.refusals[alert.key] = f"{alert.name} was refused: {error}"
        details = {"receiver": self.receiver, "alert": alert.name, "error": error}
        log.error("a notification was refused and is not sent again", extra=details)

    def _fail(self, row: NotifiedAlert, error: str) -> None:
        self.counts["failed"] += 1
        self.problem = error
        if not self._retries:
            log.warning("a notification failed and is retried", extra={"receiver": self.receiver, "error": error})
        min_delay, max_delay = self._delays.retry
        attempts, _ = self._retries.get(row.alert.key, (0, 0.0))
        doubled = min_delay * 2.0 ** min(attempts, MAX_DOUBLINGS)
        pause = min(max_delay, doubled) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter
        self._retries[row.alert.key] = attempts + 1, time.monotonic() + pause
        if row.failing_since is None:
            self._change(row, failing_since=time.time())

    def _change(self, row: NotifiedAlert, **fields: Any) -> None:
        """Change fields of the current row, or of `row` if there is none any more, and store it."""
        row = replace(self._rows.get(row.alert.key, row), **fields)
        self._rows[row.alert.key] = row
        self._write(partial(records.put_notified, notified=row))

    def _remove(self, row: NotifiedAlert) -> None:
        self._rows.pop(row.alert.key, None)
        self._write(partial(records.remove_notified, notified=row))

    def _delay(self, row: NotifiedAlert) -> float:
        """Return the seconds until the next attempt for this row."""
        return max(0.0, self._retries.get(row.alert.key, (0, 0.0))[1] - time.monotonic())


class MessageSender(Sender):
    """Sends one message when an alert begins to fire, and one when it is resolved.

    Alerts with the label page=never are not sent. The store has a row for each alert from its start until its last
    message is sent, so that an alert that began and ended while the receiver was away is sent later, also after a
    restart (at most MAX_ENDED such alerts). While `paused` returns True, no attempt begins.
    """

    def __init__(
        self, loop: Loop, receiver: MessageReceiver, write: Write, delays: Delays, paused: Callable[[], bool]
    ) -> None:
        super().__init__(loop, receiver.name, row_name(receiver), write, delays)
        self._receiver = receiver
        self._paused = paused

    def update(self, wanted: Wanted) -> None:
        """Record which alerts began to fire, and which ended."""
        wanted = {key: alert for key, alert in wanted.items() if dict(alert.labels)["page"] != Paging.NEVER}
        if wanted == self._wanted:
            return
        for key, alert in wanted.items():
            row = self._rows.get(key)
            if row is None or row.ended is not None:
                self._change(row or NotifiedAlert(self.row_name, alert, delivered=False), alert=alert, ended=None)
        for key, row in list(self._rows.items()):
            if key not in wanted and row.refused:
                self._remove(row)
            elif key not in wanted and row.ended is None:
                self._change(row, ended=time.time())
        self.refusals = {key: text for key, text in self.refusals.items() if key in wanted}
        waiting = sorted((row for row in self._rows.values() if row.ended and not row.delivered), key=_worst_first)
        for row in waiting[MAX_ENDED:]:
            self._remove(row)
            self.counts["dropped"] += 1
            log.error("a notification was dropped", extra={"receiver": self.receiver, "alert": row.alert.name})
        super().update(wanted)

    def step(self, wanted: Wanted) -> float | None:  # noqa: ARG002 - the rows have it
        waiting = (row for row in self._rows.values() if not row.delivered or row.ended is not None)
        pending = sorted(waiting, key=_worst_first)
        due = next((row for row in pending if not self._delay(row)), None)
        if due is None:
            return min(map(self._delay, pending), default=None)
        if self._paused():
            return self._delays.retry[0]
        ended = due.ended if due.delivered else None
        self._begin(due, self._receiver.orders(due.alert, ended=ended), partial(self._record, due, ended))
        return None

    def _record(self, row: NotifiedAlert, ended: float | None) -> None:
        """Record that the receiver has, or refused, the message about the alert or, with `ended`, about its end."""
        current = self._rows.get(row.alert.key, row)  # the alert may have ended, or fire again, since
        if current.ended is not None and (ended is not None or current.refused):
            self._remove(current)
        else:
            self._change(current, delivered=ended is None, failing_since=None)


def _worst_first(row: NotifiedAlert) -> tuple[int, float]:
    """Return a key that sorts by severity, the worst first, and then by age, the newest first."""
    return SEVERITIES.index(dict(row.alert.labels)["severity"]), -row.alert.since


def row_name(receiver: MessageReceiver) -> str:
    """Return the name by which the store has the rows of a receiver, with a hash of the URL or of its file's path.

    The file may be unreadable now. A receiver with another URL has no rows, and is notified of all firing alerts.
    """
    url = receiver.url and str(receiver.url.file or receiver.url.value)
    return f"{receiver.name} {hashlib.sha256(url.encode()).hexdigest()[:16]}" if url else receiver.name


class AlertmanagerSender(Sender):
    """Repeatedly sends all firing alerts, and for some time the resolved ones, to an Alertmanager, as Prometheus does.

    The store has no rows of alerts, because Alertmanager resolves an alert that is not sent again. While sending fails,
    the store has one row, with the time of the first failure.
    """

    REFUSABLE = False  # an Alertmanager that refuses alerts today may accept them after a reload

    def __init__(self, loop: Loop, receiver: Alertmanager, write: Write, delays: Delays) -> None:
        # After a failure it must soon get the alerts again, because it resolves them after `lapse`.
        retry = delays.retry[0], min(delays.retry[1], delays.again / 4)
        super().__init__(loop, receiver.name, receiver.name, write, replace(delays, retry=retry))
        self._receiver = receiver
        self._sent: dict[str, SentAlert] = {}
        self._ended: dict[str, tuple[SentAlert, float]] = {}
        """Alerts that were sent and have ended, and the Unix time of their end, by SentAlert.key."""
        self._again: tuple[Wanted, float | None] | None = None
        """The alerts that were delivered last, and the monotonic clock of their repetition; None if it needs none."""

    def step(self, wanted: Wanted) -> float | None:
        now, delays = time.time(), self._delays
        if self._again is not None and self._again[0] is wanted:
            pause = None if self._again[1] is None else self._again[1] - time.monotonic()
            if pause is None or pause > 0:
                return pause
        self._ended.update({key: (alert, now) for key, alert in self._sent.items() if key not in wanted})
        self._ended = {
            key: (alert, end)
            for key, (alert, end) in self._ended.items()
            if key not in wanted and now < end + delays.linger + delays.forget
        }
        self._sent = dict(wanted)
        row = self._rows.get(ALL.key) or NotifiedAlert(self.receiver, ALL)
        if pause := self._delay(row):
            return pause
        firing = [(alert, now + delays.lapse) for alert in wanted.values()]
        resolved = [(alert, end) for alert, end in self._ended.values() if now >= end + delays.linger]
        if firing or resolved or row.failing_since:
            record = partial(self._record, wanted, len(firing) + len(resolved))
            self._begin(row, self._receiver.orders([*firing, *resolved]), record)
            return None
        return delays.again if self._ended else None

    def _record(self, wanted: Wanted, count: int) -> None:
        self.counts["delivered"] += count - 1  # the attempt counts one
        again = time.monotonic() + self._delays.again if wanted or self._ended else None
        self._again = wanted, again
        row = self._rows.get(ALL.key)
        if row is not None and row.failing_since:
            self._remove(row)
