"""Notifications that the agent sends itself: to receivers that fail, hang, refuse and accept."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from agents import eventually
from each_case import each_case
from loops import running, turn_until
from servers import Inbox, http_inbox
from unkillable import build, held

from gpumon.config.notifications_section import NotificationsSection
from gpumon.model.records import NotifiedAlert, SentAlert
from gpumon.services import delivery
from gpumon.services.delivery_child import DeliveryChild, Outcome, deliver_now
from gpumon.services.receivers import alertmanagers, message_receivers
from gpumon.services.senders import ALL, MAX_ENDED, AlertmanagerSender, Delays, MessageSender, Sender, Wanted, row_name
from gpumon.store import records
from gpumon.supervisor.child_process import unreaped_pids
from gpumon.supervisor.loop import Loop

LABELS = {"alertname": "GpuLost", "gpu": "3", "instance": "gpu-17:17400", "page": "night", "severity": "critical"}
LOST = SentAlert(
    labels=tuple(sorted(LABELS.items())),
    summary="gpu-17: GPU 3: The GPU fell off the bus. Xid 79.",
    description="It fell off the bus.",
    action="Drain the node and reboot it. If the GPU stays lost, power-cycle it.",
    serial="1650",
    runbook_url="http://gpu-17:17400/runbooks/GpuLost",
    since=1.7e9,
)
OTHER = replace(LOST, labels=tuple(sorted({**LABELS, "gpu": "4"}.items())), since=LOST.since + 1)
WANTED = {LOST.key: LOST}
QUICK = Delays(retry=(0.01, 0.05), again=0.05, lapse=60.0, linger=0.1, forget=60.0)


class Kept:
    """The store of a sender."""

    def __init__(self) -> None:
        self.rows: dict[str, NotifiedAlert] = {}
        self.changes: list[tuple[str, bool]] = []
        """Alerts of which the receiver was notified, and whether they were resolved."""
        self.changed = threading.Condition()

    def __call__(self, work: Any) -> None:
        if work.func is records.replace_notified:
            self.rows = {row.alert.key: row for row in work.keywords["rows"]}
            return
        row: NotifiedAlert = work.keywords["notified"]
        removed = work.func is records.remove_notified
        with self.changed:
            before = self.rows.get(row.alert.key)
            if removed:
                del self.rows[row.alert.key]
            else:
                self.rows[row.alert.key] = row
            if removed or (before is not None and row.delivered and not before.delivered):
                self.changes.append((dict(row.alert.labels).get("alertname", ""), removed))
            self.changed.notify_all()

    def wait_for_changes(self, count: int) -> bool:
        """Wait until this number of changes was stored."""
        return self.wait_for(lambda: len(self.changes) >= count)

    def wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait until the stored rows fulfill a condition."""
        with self.changed:
            return self.changed.wait_for(condition, timeout=60)


@dataclass
class Running:
    """A sender on a loop in another thread."""

    sender: Sender
    call: Callable[[Callable[[], None]], None]

    def update(self, wanted: Wanted) -> None:
        self.call(lambda: self.sender.update(wanted))


@contextlib.contextmanager
def sending(sender: Sender) -> Iterator[Running]:
    """Run a sender."""
    with running(sender._loop) as call:
        call(sender.start)
        try:
            yield Running(sender, call)
        finally:
            call(sender.stop)


def message_sender(
    section: NotificationsSection, *known: SentAlert, delays: Delays = QUICK, paused: Callable[[], bool] = bool
) -> tuple[MessageSender, Kept]:
    """Return the sender of the only receiver, and what it stored."""
    kept = Kept()
    [receiver] = message_receivers(section, source="gpumon://gpu-17:17400")
    kept.rows = {alert.key: NotifiedAlert(row_name(receiver), alert) for alert in known}
    sender = MessageSender(Loop(), receiver, kept, delays, paused)
    sender.restore(kept.rows.values())
    return sender, kept


def webhook(inbox: Inbox) -> NotificationsSection:
    return NotificationsSection(webhook_url=inbox.url)


def states(inbox: Inbox) -> list[tuple[str, str]]:
    """Return GPU and state of each accepted event."""
    return [(event["data"]["labels"]["gpu"], event["data"]["state"]) for event in inbox.received]


def deliver(section: NotificationsSection, alert: SentAlert = LOST, *, ended: float | None = None) -> Outcome:
    """Deliver a message about an alert to the only receiver."""
    [receiver] = message_receivers(section, source="gpumon://gpu-17:17400")
    return deliver_now(receiver.orders(alert, ended=ended))


@contextlib.contextmanager
def trickling_server(repaired: threading.Event) -> Iterator[int]:
    """Run a server that answers a byte now and then, for ever; connections after `repaired` get a complete answer."""
    stopped = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            if repaired.is_set():
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                return
            while not stopped.wait(0.01):
                connection.sendall(b"H")

    def serve(server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        yield server.getsockname()[1]
        stopped.set()
        server.shutdown(socket.SHUT_RDWR)


def test_the_url_of_a_webhook_may_have_a_query() -> None:
    """Logic Apps and Teams sign their URLs in the query."""
    url = "https://events.example.com/flow?sig=a1"
    assert NotificationsSection(webhook_url=url).webhook_url == url
    with pytest.raises(ValueError, match="absolute URL"):
        NotificationsSection(webhook_url="events.example.com")


@pytest.mark.parametrize("url", ["http://kim:s3cret@127.0.0.1:9/", "https://t0k3n@127.0.0.1:9"])
def test_a_url_with_a_user_is_refused(url: str, tmp_path: Path) -> None:
    """No request with it would be sent, so the configuration, or the log for a URL of a file, names a token file."""
    with pytest.raises(ValueError, match="webhook_token_file"):
        NotificationsSection(webhook_url=url)
    with pytest.raises(ValueError, match="name a token file"):
        NotificationsSection(alertmanagers=(url,))
    (tmp_path / "url").write_text(url)
    error = deliver(NotificationsSection(webhook_url_file=tmp_path / "url")).error
    assert error is not None
    assert "token file" in error
    assert url not in error


def test_a_webhook_gets_a_cloud_event_when_an_alert_fires_and_one_when_it_is_resolved(tmp_path: Path) -> None:
    """With labels and texts, and with the token of the file. Each is sent once."""
    (tmp_path / "token").write_text("s3cret\n")
    with http_inbox() as inbox:
        section = NotificationsSection(webhook_url=inbox.url, webhook_token_file=tmp_path / "token")
        sender, kept = message_sender(section)
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            [event] = inbox.wait_for(1)
            on_loop.update({})
            _, resolved = inbox.wait_for(2)
            assert kept.wait_for_changes(2)
    assert {name: event[name] for name in ("specversion", "type", "subject", "source")} == {
        "specversion": "1.0",
        "type": "io.gpumon.alert.firing",
        "subject": "GpuLost",
        "source": "gpumon://gpu-17:17400",
    }
    assert event["data"] == {"state": "firing", "labels": LABELS, "annotations": LOST.annotations}
    assert resolved["type"] == "io.gpumon.alert.resolved"
    assert inbox.headers[0]["Authorization"] == "Bearer s3cret"
    assert inbox.headers[0]["Content-Type"] == "application/cloudevents+json"
    assert (kept.changes, sender.counts) == ([("GpuLost", False), ("GpuLost", True)], {"delivered": 2})


def test_a_failed_message_is_sent_again_until_it_is_delivered(caplog: pytest.LogCaptureFixture) -> None:
    """A server's failure is retried and counted; the failure is logged once, and so is the recovery."""
    with http_inbox(500, 503, 429) as inbox, caplog.at_level("INFO", "gpumon.notifications"):
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert kept.wait_for_changes(1)
            on_loop.update({})
            assert kept.wait_for_changes(2)
    assert sender.counts == {"failed": 3, "delivered": 2}
    assert kept.changes == [("GpuLost", False), ("GpuLost", True)]
    assert [record.levelname for record in caplog.records if record.name == "gpumon.notifications"] == [
        "WARNING",
        "INFO",
    ]


def test_a_refused_message_is_counted_and_not_sent_again() -> None:
    """The next alert is sent all the same. The refusal is a problem while its alert fires."""
    with http_inbox(400) as inbox:
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update({LOST.key: LOST, OTHER.key: OTHER})
            assert kept.wait_for_changes(2)
            assert states(inbox) == [("3", "firing")]
            assert list(sender.problems()) == ["GpuLost was refused: the answer was 400 Bad Request"]
            on_loop.update(WANTED)
            assert list(sender.problems()) == []
    assert sender.counts == {"refused": 1, "delivered": 1}


def test_a_receiver_that_refused_an_alert_does_not_get_its_end() -> None:
    """Neither if the alert ends later, nor after a restart in between."""
    for restarted in (False, True):
        with http_inbox(400) as inbox:
            sender, kept = message_sender(webhook(inbox))
            with sending(sender) as on_loop:
                on_loop.update(WANTED)
                assert kept.wait_for_changes(1)
                if not restarted:
                    on_loop.update({})
            if restarted:
                rows = tuple(kept.rows.values())
                sender, kept = message_sender(webhook(inbox))
                sender.restore(rows)
                with sending(sender) as on_loop:
                    on_loop.update({})
            assert (kept.rows, inbox.received) == ({}, [])


def test_a_restart_neither_repeats_nor_loses_a_message() -> None:
    """An alert that the receiver knows is not sent again; if it ended meanwhile, it is resolved."""
    with http_inbox() as inbox:
        sender, _ = message_sender(webhook(inbox), LOST)
        with sending(sender) as on_loop:
            on_loop.update({LOST.key: LOST, OTHER.key: OTHER})
            inbox.wait_for(1)
            on_loop.update({OTHER.key: OTHER})
            inbox.wait_for(2)
    assert states(inbox) == [("4", "firing"), ("3", "resolved")]


def test_alerts_for_dashboards_are_no_messages() -> None:
    """What never pages is sent to Alertmanagers only."""
    quiet = replace(LOST, labels=tuple(sorted({**LABELS, "page": "never", "gpu": "9"}.items())))
    with http_inbox() as inbox:
        sender, _ = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update({quiet.key: quiet, LOST.key: LOST})
            [event] = inbox.wait_for(1)
    assert event["data"]["labels"] == LABELS


def test_a_service_of_apprise_gets_title_reason_action_and_runbook(tmp_path: Path) -> None:
    """When the alert fires, and a title when it is resolved. The URL, which has secrets, comes from a file."""
    pytest.importorskip("apprise", reason="not in this environment")
    with http_inbox() as inbox:
        (tmp_path / "url").write_text(f"json://127.0.0.1:{inbox.port}/s3cret\n")
        section = NotificationsSection(apprise_urls=(str(tmp_path / "url"),))
        sender, kept = message_sender(section)
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            [message] = inbox.wait_for(1)
            on_loop.update({})
            [_, resolved] = inbox.wait_for(2)
            assert kept.wait_for_changes(2)
    assert (message["title"], message["type"]) == (f"FIRING: {LOST.summary}", "failure")
    assert message["message"].splitlines() == [
        LOST.description,
        f"Do: {LOST.action}",
        "Serial number: 1650",
        f"Runbook: {LOST.runbook_url}",
    ]
    assert (resolved["title"], resolved["type"]) == (f"RESOLVED: {LOST.summary}", "success")
    assert (sender.receiver, sender.counts) == ("apprise url", {"delivered": 2})


def test_an_error_of_apprise_contains_no_part_of_its_url() -> None:
    """Neither of a URL that it does not accept, nor of one that does not answer."""
    pytest.importorskip("apprise", reason="not in this environment")
    for url in (
        "json://kim:s3cret-1@127.0.0.1:9/s3cret-2?+X=s3cret-3",
        "slack://s3cret-1",
        "nothing://s3cret-1/s3cret",
    ):
        error = deliver(NotificationsSection(apprise_urls=(url,))).error
        assert error
        assert "s3cret" not in error
        assert "onnection error" in error or "Apprise does not accept the URL" in error


def test_the_title_has_one_line_and_names_the_cluster() -> None:
    """Because two clusters may have hosts of the same name. The annotations stay those of Prometheus."""
    labels = tuple(sorted({**LABELS, "cluster": "east"}.items()))
    east = replace(LOST, labels=labels, summary="gpu-17:\nGPU 3: The GPU fell off the bus.")
    [receiver] = message_receivers(NotificationsSection(apprise_urls=("slack://a/b/c",)), source="")
    assert receiver.orders(east, ended=None)["title"] == "FIRING: east gpu-17: GPU 3: The GPU fell off the bus."
    assert east.annotations == {**LOST.annotations, "summary": east.summary}


def test_receivers_of_apprise_are_named_without_their_secrets() -> None:
    """By the scheme, or by the file's name, with a number for the second one of a name."""
    urls = ("slack://a/b/c", "mailto://u:p@h", "slack://d/e/f", "/etc/gpumon/a,b.url")
    names = [each.name for each in message_receivers(NotificationsSection(apprise_urls=urls), source="")]
    assert names == ["apprise slack", "apprise mailto", "apprise slack 2", "apprise a_b.url"]


@each_case(("module", "remedy"), [("apprise", "gpumon[notifications]"), ("h2.connection", "gpumon[kubernetes]")])
def test_an_absent_package_is_named(monkeypatch: pytest.MonkeyPatch, module: str, remedy: str) -> None:
    """The packages that only some receivers need are optional dependencies."""
    monkeypatch.setitem(sys.modules, module, None)
    section = NotificationsSection(apprise_urls=("slack://a/b/c",), nvsentinel_socket=Path("/no/socket"))
    receivers = message_receivers(section, source="")
    outcomes = [delivery.outcome(receiver.orders(LOST, ended=None)) for receiver in receivers]
    assert f"install {remedy}" in outcomes[module != "apprise"]["error"]


def test_a_message_that_always_fails_holds_up_no_other() -> None:
    """The other alerts of the receiver are delivered, and the failing one is a problem all the same."""
    with http_inbox() as inbox:
        inbox.failing = lambda event: event["data"]["labels"]["gpu"] == "4"
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update({LOST.key: LOST, OTHER.key: OTHER})
            assert kept.wait_for(lambda: bool(kept.rows[LOST.key].delivered and kept.rows[OTHER.key].failing_since))
            on_loop.update({OTHER.key: OTHER})
            assert kept.wait_for(lambda: LOST.key not in kept.rows)
    assert states(inbox) == [("3", "firing"), ("3", "resolved")]
    assert kept.rows[OTHER.key].failing_since is not None


def test_no_number_of_failed_attempts_ends_the_notifications() -> None:
    """An Alertmanager that is away reaches 1,100 in four hours. A message that is too long fails like others."""
    endless = replace(OTHER, description="x" * 2_000_000)
    with http_inbox(500) as inbox:
        sender, kept = message_sender(webhook(inbox))
        sender._retries = {LOST.key: (1_100, 0.0)}
        with sending(sender) as on_loop:
            on_loop.update({LOST.key: LOST, endless.key: endless})
            assert kept.wait_for_changes(1)
            eventually(lambda: sender.problem == "the message is too long")
    assert states(inbox) == [("3", "firing")]


def test_what_began_and_ended_while_the_receiver_was_away_is_sent_after_a_restart() -> None:
    """A receiver that was away gets both messages, from a sender that knows only what is stored."""
    with http_inbox() as inbox:
        inbox.failing = lambda _: True
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert kept.wait_for(lambda: kept.rows[LOST.key].failing_since is not None)
            on_loop.update({})
        assert not kept.rows[LOST.key].delivered
        inbox.failing = lambda _: False
        rows = tuple(kept.rows.values())
        again, kept = message_sender(webhook(inbox))
        again.restore(rows)
        with sending(again) as on_loop:
            on_loop.update({})
            assert kept.wait_for(lambda: not kept.rows)
    assert states(inbox) == [("3", "firing"), ("3", "resolved")]


def test_a_failing_receiver_still_fails_after_a_restart() -> None:
    """The time of the first failure is stored, so that its alert does not resolve, and forgotten after a success."""
    with http_inbox() as inbox:
        sender, kept = message_sender(webhook(inbox))
        kept.rows = {LOST.key: NotifiedAlert(sender.row_name, LOST, delivered=False, failing_since=1.0)}
        sender.restore(kept.rows.values())
        assert len(list(sender.problems())) == 1
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert kept.wait_for_changes(1)
            assert list(sender.problems()) == []


def test_a_receiver_that_hangs_is_killed_at_the_deadline_and_blocks_no_other() -> None:
    """It sends a byte now and then. The other receiver on the loop is notified; a repaired one is too."""
    repaired, loop = threading.Event(), Loop()
    with trickling_server(repaired) as port, http_inbox() as inbox:
        section = NotificationsSection(
            webhook_url=f"http://127.0.0.1:{port}/", apprise_urls=(f"json://127.0.0.1:{inbox.port}",)
        )
        kept = [Kept(), Kept()]
        senders = [
            MessageSender(loop, receiver, rows, replace(QUICK, attempt=seconds), bool)
            for receiver, rows, seconds in zip(message_receivers(section, source=""), kept, (1.0, 60.0), strict=True)
        ]
        for sender in senders:
            sender.start()
            sender.update(WANTED)
        turn_until(loop, lambda: senders[0].counts["failed"] > 1 and bool(senders[1].counts["delivered"]))
        assert senders[0].problem == "there was no complete answer within 1 s"
        repaired.set()
        turn_until(loop, lambda: bool(senders[0].counts["delivered"]))
        assert len(senders[0]._late) <= 1
        turn_until(loop, lambda: not unreaped_pids)
    assert [rows.changes for rows in kept] == [[("GpuLost", False)]] * 2


def test_a_child_that_sigkill_does_not_end_is_a_failure_too(tmp_path: Path) -> None:
    """The outcome is reported at the deadline, and the child counts as running until it ends."""
    loop, outcomes = Loop(), list[Outcome]()
    with trickling_server(threading.Event()) as port:
        section = NotificationsSection(webhook_url=f"http://127.0.0.1:{port}/")
        [receiver] = message_receivers(section, source="")
        attempt = DeliveryChild(loop, receiver.orders(LOST, ended=None), 2.0, outcomes.append)
        assert attempt.child is not None
        with held(build(tmp_path), attempt.child.pid):
            turn_until(loop, lambda: bool(outcomes))
            assert (outcomes[0].error, attempt.child.ended) == ("there was no complete answer within 2 s", False)
        turn_until(loop, lambda: attempt.child is not None and attempt.child.ended)
    assert len(outcomes) == 1


def test_a_paused_sender_sends_nothing() -> None:
    """It does not send what waits for its receiver either, until the pause ends."""
    paused, asked = threading.Event(), threading.Semaphore(0)

    def is_paused() -> bool:
        asked.release()
        return paused.is_set()

    with http_inbox() as inbox:
        sender, kept = message_sender(webhook(inbox), paused=is_paused)
        paused.set()
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert all(asked.acquire(timeout=60) for _ in range(5))
            assert inbox.received == []
            paused.clear()
            assert kept.wait_for_changes(1)


def test_rows_are_stored_again_when_the_store_can_be_written_again() -> None:
    """All of the receiver: those whose write failed, and those that the reopened store lacks."""
    with http_inbox() as inbox:
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert kept.wait_for_changes(1)
            rows, kept.rows = kept.rows, {}
            on_loop.call(lambda: sender.restore(()))
            assert kept.rows == rows
            on_loop.update(WANTED)
    assert states(inbox) == [("3", "firing")]


def test_rows_that_are_read_late_do_not_replace_newer_ones() -> None:
    """A store that was read after the first message has older rows of this alert, and the only rows of others."""
    with http_inbox() as inbox:
        sender, kept = message_sender(webhook(inbox))
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            assert kept.wait_for_changes(1)
            name = sender.row_name
            late = [NotifiedAlert(name, LOST, delivered=False), NotifiedAlert(name, OTHER)]
            on_loop.call(lambda: sender.restore(late))
            on_loop.update(WANTED)
            assert kept.wait_for(lambda: OTHER.key not in kept.rows)
    assert states(inbox) == [("3", "firing"), ("4", "resolved")]


def test_of_too_many_ended_alerts_the_oldest_mild_ones_are_dropped() -> None:
    """They are counted as dropped. Critical alerts and newer ones are kept."""
    mild = {"severity": "warning"}
    alerts = [
        replace(LOST, labels=tuple(sorted({**LABELS, **more, "gpu": str(number)}.items())), since=float(number))
        for number in range(MAX_ENDED + 3)
        for more in [mild if number else {}]
    ]
    sender, kept = message_sender(NotificationsSection(webhook_url="http://127.0.0.1:9/"))
    sender.update({alert.key: alert for alert in alerts})
    sender.update({})
    assert sender.counts == {"dropped": 3}
    assert [alert.key not in kept.rows for alert in alerts] == [number in {1, 2, 3} for number in range(len(alerts))]


def test_a_retried_event_has_the_same_id_and_a_resolved_one_its_own_time() -> None:
    """A receiver that answers too late can recognise the repetition."""
    [receiver] = message_receivers(NotificationsSection(webhook_url="http://127.0.0.1:9/"), source="")
    first, repeated, resolved = (receiver.orders(LOST, ended=ended)["body"] for ended in (None, None, LOST.since + 60))
    assert first["id"] == repeated["id"] != resolved["id"]
    assert (first["time"], resolved["time"]) == ("2023-11-14T22:13:20.000Z", "2023-11-14T22:14:20.000Z")


def test_another_url_is_another_receiver_in_the_store() -> None:
    """It is notified of what fires. The name in the store does not contain the URL."""
    urls = ("http://one.example/s3cret", "http://two.example/s3cret")
    names = {row_name(message_receivers(NotificationsSection(webhook_url=url), source="")[0]) for url in urls}
    assert len(names) == 2
    assert not any("s3cret" in name for name in names)


def test_the_name_in_the_store_does_not_need_the_secret(tmp_path: Path) -> None:
    """The rows are found although the file of the URL is unreadable at the start."""
    [receiver] = message_receivers(NotificationsSection(apprise_urls=(str(tmp_path / "url"),)), source="")
    missing = row_name(receiver)
    (tmp_path / "url").write_text("slack://a/b/s3cret")
    assert missing == row_name(receiver) != receiver.name


def alertmanager_sender(inbox: Inbox, delays: Delays = QUICK) -> tuple[AlertmanagerSender, Kept]:
    [receiver] = alertmanagers(NotificationsSection(alertmanagers=(inbox.url.removesuffix("/hook"),)))
    kept = Kept()
    return AlertmanagerSender(Loop(), receiver, kept, delays), kept


def test_an_alertmanager_that_failed_before_the_restart_fails_until_it_answers() -> None:
    """It is tried though nothing fires."""
    with http_inbox() as inbox:
        sender, kept = alertmanager_sender(inbox)
        kept.rows = {ALL.key: NotifiedAlert(sender.row_name, ALL, failing_since=1.0)}
        sender.restore(kept.rows.values())
        assert len(list(sender.problems())) == 1
        with sending(sender) as on_loop:
            on_loop.update({})
            assert inbox.wait_for(1) == [[]]
            assert kept.wait_for(lambda: not kept.rows)
        assert list(sender.problems()) == []


def test_an_alertmanager_is_tried_again_before_it_resolves_alerts() -> None:
    """However long the delays of other receivers are, and also if it has refused the alerts."""
    with http_inbox(500, 400) as inbox:
        sender, _ = alertmanager_sender(inbox, replace(QUICK, retry=(600.0, 600.0)))
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            inbox.wait_for(1)
    assert sender.counts["failed"] == 2


def test_an_alertmanager_gets_alerts_again_and_then_as_resolved() -> None:
    """A firing alert is sent at an interval with an end in the future; an ended one some time later with its end."""
    with http_inbox(500) as inbox:
        sender, _ = alertmanager_sender(inbox)
        with sending(sender) as on_loop:
            on_loop.update(WANTED)
            first, again = inbox.wait_for(2)[:2]
            on_loop.update({})
            eventually(lambda: [alert["endsAt"] for alert in inbox.received[-1]][-1] < first[0]["endsAt"])
            [resolved] = inbox.received[-1]
    assert [alert["labels"] for alert in (*first, *again)] == [LABELS] * 2
    assert first[0]["annotations"] == LOST.annotations
    assert first[0]["startsAt"] == again[0]["startsAt"] < resolved["endsAt"] < first[0]["endsAt"]
    assert sender.counts["failed"] == 1


def test_an_alertmanager_gets_many_alerts_at_once() -> None:
    """More than a pipe holds by default."""
    alerts = [replace(LOST, labels=(*LOST.labels, ("z", str(number))), description="x" * 1000) for number in range(200)]
    with http_inbox() as inbox:
        sender, _ = alertmanager_sender(inbox)
        with sending(sender) as on_loop:
            on_loop.update({alert.key: alert for alert in alerts})
            assert len(inbox.wait_for(1)[0]) == len(alerts)


@each_case(("content", "words"), [("\n", "secret is empty"), (None, "secret cannot be read")])
def test_an_empty_or_unreadable_secret_is_an_error_that_names_its_file(
    tmp_path: Path, content: str | None, words: str
) -> None:
    """It is retried, because the file may be written later."""
    if content is not None:
        (tmp_path / "secret").write_text(content)
    outcome = deliver(NotificationsSection(webhook_url="http://127.0.0.1:9/", webhook_token_file=tmp_path / "secret"))
    assert words in (outcome.error or "")
    assert not outcome.refused
    (tmp_path / "secret").unlink(missing_ok=True)
