"""Notifications that the agent sends itself: to webhooks, chats and mail servers that fail, refuse and accept."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from email import message_from_string
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest
from agents import eventually
from certificates import Authority
from pydantic import ValidationError
from receivers import http_inbox, mail_inbox

from gpumon.config.notifications_section import NotificationsSection
from gpumon.model.notified_alert import NotifiedAlert, SentAlert
from gpumon.services.delivery_error import DeliveryError
from gpumon.services.limited_smtp import LimitedSmtp, LimitedSmtpTls
from gpumon.services.receivers import alertmanagers, message_receivers
from gpumon.services.senders import (
    ALL,
    MAX_ABANDONED,
    MAX_ENDED,
    AlertmanagerSender,
    Delays,
    MessageSender,
    Sender,
    row_name,
)
from gpumon.store import notified

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
        if work.func is notified.replace_all:
            self.rows = {row.alert.key: row for row in work.keywords["rows"]}
            return
        row: NotifiedAlert = work.keywords["notified"]
        removed = work.func is notified.remove
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


@contextlib.contextmanager
def sending(sender: Sender) -> Iterator[Sender]:
    """Run a sender."""
    sender.start()
    try:
        yield sender
    finally:
        sender.stop()
        sender.join(timeout=30)


def message_sender(section: NotificationsSection, *known: SentAlert) -> tuple[MessageSender, Kept]:
    """Return the sender of the only receiver, and what it stored."""
    kept = Kept()
    [receiver] = message_receivers(section, source="gpumon://gpu-17:17400")
    kept.rows = {alert.key: NotifiedAlert(row_name(receiver), alert) for alert in known}
    sender = MessageSender(receiver, kept, QUICK, bool)
    sender.restore(kept.rows.values())
    return sender, kept


@contextlib.contextmanager
def greeting_server(greeting: bytes) -> Iterator[int]:
    """Run a server that greets its first client, and yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(greeting)

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]


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


def mails(port: int, *to: str) -> NotificationsSection:
    """Return the settings for a mail server of the tests."""
    return NotificationsSection(smtp_server=f"127.0.0.1:{port}", smtp_tls="none", smtp_to=to)


def test_a_mail_server_with_a_certificate_of_an_unknown_authority_gets_no_mail(tmp_path: Path) -> None:
    """With `smtp_tls: tls` the certificate is verified before the password is sent."""
    authority = Authority.create(tmp_path / "ca")
    authority.sign("mail", "IP:127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.folder / "mail.crt", authority.folder / "mail.key")
    with socket.create_server(("127.0.0.1", 0)) as listener, context.wrap_socket(listener, server_side=True) as server:

        def answer() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                connection.sendall(b"220 ready\r\n")

        threading.Thread(target=answer, daemon=True).start()
        section = mails(server.getsockname()[1], "ops@example.com").model_copy(update={"smtp_tls": "tls"})
        [receiver] = message_receivers(section, source="gpumon://n")
        with pytest.raises(DeliveryError, match="certificate verify failed"):
            receiver.deliver(LOST, ended=None)


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
    [receiver] = message_receivers(NotificationsSection(webhook_url_file=tmp_path / "url"), source="gpumon://n")
    with pytest.raises(DeliveryError, match="token file") as raised:
        receiver.deliver(LOST, ended=None)
    assert url not in str(raised.value)


def test_a_webhook_gets_a_cloud_event_when_an_alert_fires_and_one_when_it_is_resolved(tmp_path: Path) -> None:
    """With labels and texts, and with the token of the file. Each is sent once."""
    (tmp_path / "token").write_text("s3cret\n")
    with http_inbox() as inbox:
        section = NotificationsSection(webhook_url=inbox.url, webhook_token_file=tmp_path / "token")
        sender, kept = message_sender(section)
        with sending(sender):
            sender.update(WANTED)
            [event] = inbox.wait_for(1)
            sender.update({})
            _, resolved = inbox.wait_for(2)
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
        sender, kept = message_sender(NotificationsSection(webhook_url=inbox.url))
        with sending(sender):
            sender.update(WANTED)
            inbox.wait_for(1)
            sender.update({})
            inbox.wait_for(2)
    assert sender.counts == {"failed": 3, "delivered": 2}
    assert kept.changes == [("GpuLost", False), ("GpuLost", True)]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_a_refused_message_is_counted_and_not_sent_again() -> None:
    """The next alert is sent all the same."""
    other = replace(LOST, labels=tuple(sorted({**LABELS, "gpu": "4"}.items())))
    with http_inbox(400) as inbox:
        sender, _ = message_sender(NotificationsSection(webhook_url=inbox.url))
        with sending(sender):
            sender.update({LOST.key: LOST, other.key: other})
            [event] = inbox.wait_for(1)
    assert event["data"]["labels"]["gpu"] == "4"
    assert sender.counts == {"refused": 1, "delivered": 1}


def test_a_receiver_that_refused_an_alert_does_not_get_its_end() -> None:
    """Neither if the alert ends later, nor after a restart in between."""
    for restarted in (False, True):
        with http_inbox(400) as inbox:
            sender, kept = message_sender(NotificationsSection(webhook_url=inbox.url))
            with sending(sender):
                sender.update(WANTED)
                assert kept.wait_for_changes(1)
                if restarted:
                    sender.stop()
                    rows = tuple(kept.rows.values())
                    sender, kept = message_sender(NotificationsSection(webhook_url=inbox.url))
                    sender.restore(rows)
                sender.update({})
            assert (kept.rows, inbox.received) == ({}, [])


def test_a_restart_neither_repeats_nor_loses_a_message() -> None:
    """An alert that the receiver knows is not sent again; if it ended meanwhile, it is resolved."""
    with http_inbox() as inbox:
        section = NotificationsSection(webhook_url=inbox.url)
        other = replace(LOST, labels=tuple(sorted({**LABELS, "gpu": "4"}.items())))
        sender, _ = message_sender(section, LOST)
        with sending(sender):
            sender.update({LOST.key: LOST, other.key: other})
            [event] = inbox.wait_for(1)
            assert (event["data"]["labels"]["gpu"], event["data"]["state"]) == ("4", "firing")
            sender.update({other.key: other})
            event = inbox.wait_for(2)[1]
            assert (event["data"]["labels"]["gpu"], event["data"]["state"]) == ("3", "resolved")


def test_alerts_for_dashboards_are_no_messages() -> None:
    """What never pages is sent to Alertmanagers only."""
    quiet = replace(LOST, labels=tuple(sorted({**LABELS, "page": "never", "gpu": "9"}.items())))
    with http_inbox() as inbox:
        sender, _ = message_sender(NotificationsSection(webhook_url=inbox.url))
        with sending(sender):
            sender.update({quiet.key: quiet, LOST.key: LOST})
            [event] = inbox.wait_for(1)
    assert event["data"]["labels"] == LABELS


def test_slack_gets_reason_action_and_runbook(tmp_path: Path) -> None:
    """In one text. The URL, which is the secret, comes from a file."""
    with http_inbox() as inbox:
        (tmp_path / "url").write_text(f"{inbox.url}\n")
        sender, _ = message_sender(NotificationsSection(slack_url_file=tmp_path / "url"))
        with sending(sender):
            sender.update(WANTED)
            [message] = inbox.wait_for(1)
    assert message["text"].splitlines() == [
        f"FIRING: {LOST.summary}",
        LOST.description,
        f"Do: {LOST.action}",
        "Serial number: 1650",
        f"Runbook: {LOST.runbook_url}",
    ]


def test_the_title_names_the_cluster_if_the_alert_has_that_label(tmp_path: Path) -> None:
    """Because two clusters may have hosts of the same name. The annotations stay those of Prometheus."""
    east = replace(LOST, labels=tuple(sorted({**LABELS, "cluster": "east"}.items())))
    with http_inbox() as inbox, mail_inbox() as mailbox:
        (tmp_path / "url").write_text(inbox.url)
        for section in (NotificationsSection(slack_url_file=tmp_path / "url"), mails(mailbox.port, "a@example.com")):
            [receiver] = message_receivers(section, source="")
            receiver.deliver(east, ended=None)
        [message], [mail] = inbox.wait_for(1), mailbox.wait_for(1)
    title = "FIRING: east gpu-17: GPU 3: The GPU fell off the bus. Xid 79."
    assert message["text"].splitlines()[0] == title
    assert f"Subject: {title}" in mail.replace("\r\n ", " ")
    assert east.annotations == LOST.annotations


def test_a_mail_has_a_date_and_an_id_that_a_repetition_shares() -> None:
    """Mail programs show one of two mails with the same id. The mail about the end has another."""
    with mail_inbox() as inbox:
        [receiver] = message_receivers(mails(inbox.port, "oncall@example.com"), source="")
        for ended in (None, None, LOST.since + 60):
            receiver.deliver(LOST, ended=ended)
        first, repeated, resolved = (message_from_string(mail) for mail in inbox.wait_for(3))
    assert first["Message-ID"] == repeated["Message-ID"] != resolved["Message-ID"]
    assert re.fullmatch(r"<[0-9a-f-]{36}@gpumon>", first["Message-ID"])
    assert parsedate_to_datetime(first["Date"]).tzinfo is not None


def test_a_mail_is_retried_after_a_passing_refusal_and_dropped_after_a_lasting_one() -> None:
    """451 is passing, 550 lasts. A mail has title, reason, action and labels; a failed one holds up no other."""
    with mail_inbox(451, 550) as inbox:
        sender, _ = message_sender(mails(inbox.port, "oncall@example.com"))
        other = replace(LOST, labels=tuple(sorted({**LABELS, "gpu": "4"}.items())))
        with sending(sender):
            sender.update({LOST.key: LOST, other.key: other})
            [mail] = inbox.wait_for(1)
    assert sender.counts == {"failed": 1, "refused": 1, "delivered": 1}
    assert f"Subject: FIRING: {LOST.summary}" in mail.replace("\r\n ", " ")
    assert f"Do: {LOST.action}" in mail
    assert "gpu: 3" in mail


def test_a_mail_that_one_recipient_does_not_get_is_sent_once_and_reported() -> None:
    """The others have it. The agent's own check names the recipient for as long as the alert fires."""
    with mail_inbox() as inbox:
        sender, kept = message_sender(mails(inbox.port, "gone@example.com", "oncall@example.com"))
        with sending(sender):
            sender.update(WANTED)
            assert kept.wait_for_changes(1)
            [problem] = sender.problems()
            sender.update({})
            assert kept.wait_for_changes(2)
            assert list(sender.problems()) == []
    assert "gone@example.com" in problem
    assert len(inbox.received) == 2
    assert sender.counts == {"refused": 2}


def test_a_refused_alert_is_a_problem_while_it_fires() -> None:
    """The problem names the alert and what the receiver answered."""
    with mail_inbox(554) as inbox:
        sender, kept = message_sender(mails(inbox.port, "oncall@example.com"))
        with sending(sender):
            sender.update(WANTED)
            assert kept.wait_for_changes(1)
            [problem] = sender.problems()
    assert "GpuLost was refused" in problem
    assert "554" in problem


def test_a_mail_without_any_recipient_left_is_sent_again() -> None:
    """An administrator can add the mailbox; until then the receiver fails."""
    with mail_inbox() as inbox:
        [receiver] = message_receivers(mails(inbox.port, "gone@example.com"), source="")
        with pytest.raises(DeliveryError, match="550") as raised:
            receiver.deliver(LOST, ended=None)
    assert not raised.value.refused


def test_a_summary_of_two_lines_is_one_subject() -> None:
    """A header cannot have a second line."""
    with mail_inbox() as inbox:
        [receiver] = message_receivers(mails(inbox.port, "oncall@example.com"), source="")
        receiver.deliver(replace(LOST, summary="gpu-17:\nGPU 3"), ended=None)
        [mail] = inbox.wait_for(1)
    assert "Subject: FIRING: gpu-17: GPU 3" in mail


def test_an_error_that_nobody_foresaw_does_not_end_the_notifications(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged with its traceback, counted and retried."""

    class Odd:
        name = "odd"
        url = None
        errors = 1

        def deliver(self, alert: SentAlert, *, ended: float | None) -> None:  # noqa: ARG002 - the protocol's names
            if self.errors:
                self.errors -= 1
                raise KeyError("odd")

    kept = Kept()
    sender = MessageSender(Odd(), kept, QUICK, bool)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for_changes(1)
    assert sender.counts == {"failed": 1, "delivered": 1}
    assert [record.levelname for record in caplog.records if record.exc_info] == ["ERROR"]


OTHER = replace(LOST, labels=tuple(sorted({**LABELS, "gpu": "4"}.items())), since=LOST.since + 1)


class Receiver:
    """A receiver whose messages fail or hang while the test wants it."""

    name = "receiver"
    url = None

    def __init__(self) -> None:
        self.away = threading.Event()
        self.hangs, self.released = False, threading.Event()
        self.failing = set[str]()
        """GPUs whose messages fail."""
        self.got: list[tuple[str, bool]] = []
        self.attempts = 0

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        self.attempts += 1
        if self.hangs:
            self.released.wait()
        gpu = dict(alert.labels)["gpu"]
        if self.away.is_set() or gpu in self.failing:
            raise DeliveryError("500")
        self.got.append((gpu, ended is not None))


def test_a_message_that_always_fails_holds_up_no_other() -> None:
    """The other alerts of the receiver are delivered, and the failing one is a problem all the same."""
    receiver, kept = Receiver(), Kept()
    receiver.failing = {"4"}
    sender = MessageSender(receiver, kept, QUICK, bool)
    with sending(sender):
        sender.update({LOST.key: LOST, OTHER.key: OTHER})
        assert kept.wait_for(lambda: bool(kept.rows[LOST.key].delivered and kept.rows[OTHER.key].failing_since))
        sender.update({OTHER.key: OTHER})
        assert kept.wait_for(lambda: LOST.key not in kept.rows)
    assert receiver.got == [("3", False), ("3", True)]
    assert kept.rows[OTHER.key].failing_since is not None


def test_a_receiver_that_was_away_for_days_gets_what_fires_when_it_answers(tmp_path: Path) -> None:
    """No number of failed attempts ends the thread: an Alertmanager reaches 1,100 of them in four hours."""
    url = tmp_path / "url"
    [receiver] = message_receivers(NotificationsSection(slack_url_file=url), source="")
    sender = MessageSender(receiver, Kept(), replace(QUICK, retry=(1e-6, 1e-6)), bool)
    with sending(sender), http_inbox() as inbox:
        sender.update(WANTED)
        eventually(lambda: sender.counts["failed"] > 1_100)
        url.write_text(inbox.url)
        assert "GPU 3" in inbox.wait_for(1)[0]["text"]


def test_what_began_and_ended_while_the_receiver_was_away_is_sent_after_a_restart() -> None:
    """A receiver that was away gets both messages, from a sender that knows only what is stored."""
    receiver, kept = Receiver(), Kept()
    receiver.away.set()
    sender = MessageSender(receiver, kept, QUICK, bool)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for(lambda: kept.rows[LOST.key].failing_since is not None)
        sender.update({})
    assert not kept.rows[LOST.key].delivered
    receiver.away.clear()
    again = MessageSender(receiver, kept, QUICK, bool)
    again.restore(tuple(kept.rows.values()))
    with sending(again):
        again.update({})
        assert kept.wait_for(lambda: not kept.rows)
    assert receiver.got == [("3", False), ("3", True)]


def test_a_failing_receiver_still_fails_after_a_restart() -> None:
    """The time of the first failure is stored, so that its alert does not resolve, and forgotten after a success."""
    receiver, kept = Receiver(), Kept()
    row = NotifiedAlert(row_name(receiver), LOST, delivered=False, failing_since=1.0)
    kept.rows = {LOST.key: row}
    sender = MessageSender(receiver, kept, QUICK, bool)
    sender.restore((row,))
    assert len(list(sender.problems())) == 1
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for_changes(1)
        assert list(sender.problems()) == []


def test_an_alertmanager_that_failed_before_the_restart_fails_until_it_answers() -> None:
    """It is tried though nothing fires."""
    with http_inbox() as inbox:
        [receiver] = alertmanagers(NotificationsSection(alertmanagers=(inbox.url.removesuffix("/hook"),)))
        kept, row = Kept(), NotifiedAlert(receiver.name, ALL, failing_since=1.0)
        kept.rows = {ALL.key: row}
        sender = AlertmanagerSender(receiver, kept, QUICK)
        sender.restore((row,))
        assert len(list(sender.problems())) == 1
        with sending(sender):
            sender.update({})
            assert inbox.wait_for(1) == [[]]
            assert kept.wait_for(lambda: not kept.rows)
        assert list(sender.problems()) == []


def test_an_attempt_that_does_not_end_is_a_failure() -> None:
    """A receiver that never completes its answer fails; the attempts that have not ended are bounded."""
    receiver, kept = Receiver(), Kept()
    receiver.hangs = True
    sender = MessageSender(receiver, kept, replace(QUICK, attempt=0.01), bool)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for(lambda: kept.rows[LOST.key].failing_since is not None)
        eventually(lambda: sender.problem == f"{MAX_ABANDONED} attempts have not ended")
        assert receiver.attempts == MAX_ABANDONED
        receiver.hangs = False
        receiver.released.set()
        assert kept.wait_for_changes(1)


def test_attempts_that_got_a_byte_now_and_then_do_not_block_a_repaired_receiver() -> None:
    """An attempt that is abandoned ends, so that any number may follow."""
    repaired = threading.Event()
    with trickling_server(repaired) as port:
        [receiver] = message_receivers(NotificationsSection(webhook_url=f"http://127.0.0.1:{port}/"), source="")
        kept = Kept()
        sender = MessageSender(receiver, kept, replace(QUICK, attempt=0.1), bool)
        with sending(sender):
            sender.update(WANTED)
            eventually(lambda: sender.counts["failed"] > MAX_ABANDONED)
            repaired.set()
            assert kept.wait_for_changes(1)


def test_a_paused_sender_sends_nothing() -> None:
    """It does not send what waits for its receiver either, until the pause ends."""
    receiver, kept, paused = Receiver(), Kept(), threading.Event()
    receiver.away.set()
    asked = threading.Semaphore(0)

    def is_paused() -> bool:
        asked.release()
        return paused.is_set()

    sender = MessageSender(receiver, kept, QUICK, is_paused)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for(lambda: kept.rows[LOST.key].failing_since is not None)
        paused.set()
        while asked.acquire(blocking=False):
            pass
        assert all(asked.acquire(timeout=60) for _ in range(2))  # an attempt that began before has ended
        receiver.away.clear()
        assert all(asked.acquire(timeout=60) for _ in range(5))
        assert receiver.got == []
        paused.clear()
        assert kept.wait_for_changes(1)


def test_rows_are_stored_again_when_the_store_can_be_written_again() -> None:
    """All of the receiver: those whose write failed, and those that the reopened store lacks."""
    receiver, kept = Receiver(), Kept()
    sender = MessageSender(receiver, kept, QUICK, bool)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for_changes(1)
        rows, kept.rows = kept.rows, {}
        sender.restore(())
        assert kept.rows == rows
        sender.update(WANTED)
    assert receiver.got == [("3", False)]


def test_rows_that_are_read_late_do_not_replace_newer_ones() -> None:
    """A store that was read after the first message has older rows of this alert, and the only rows of others."""
    receiver, kept = Receiver(), Kept()
    sender = MessageSender(receiver, kept, QUICK, bool)
    with sending(sender):
        sender.update(WANTED)
        assert kept.wait_for_changes(1)
        name = row_name(receiver)
        sender.restore([NotifiedAlert(name, LOST, delivered=False), NotifiedAlert(name, OTHER)])
        sender.update(WANTED)
        assert kept.wait_for(lambda: OTHER.key not in kept.rows)
    assert receiver.got == [("3", False), ("4", True)]


def test_of_too_many_ended_alerts_the_oldest_mild_ones_are_dropped() -> None:
    """They are counted as dropped. Critical alerts and newer ones are kept."""
    mild = {"severity": "warning"}
    alerts = [
        replace(LOST, labels=tuple(sorted({**LABELS, **more, "gpu": str(number)}.items())), since=float(number))
        for number in range(MAX_ENDED + 3)
        for more in [mild if number else {}]
    ]
    receiver, kept = Receiver(), Kept()
    sender = MessageSender(receiver, kept, QUICK, bool)
    sender.update({alert.key: alert for alert in alerts})
    sender.update({})
    assert sender.counts == {"dropped": 3}
    assert [alert.key not in kept.rows for alert in alerts] == [number in {1, 2, 3} for number in range(len(alerts))]


def test_a_retried_event_has_the_same_id_and_a_resolved_one_its_own_time() -> None:
    """A receiver that answers too late can recognise the repetition."""
    with http_inbox() as inbox:
        [receiver] = message_receivers(NotificationsSection(webhook_url=inbox.url), source="gpumon://gpu-17:17400")
        for ended in (None, None, LOST.since + 60):
            receiver.deliver(LOST, ended=ended)
        first, repeated, resolved = inbox.wait_for(3)
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
    [receiver] = message_receivers(NotificationsSection(slack_url_file=tmp_path / "url"), source="")
    missing = row_name(receiver)
    (tmp_path / "url").write_text("http://one.example/s3cret")
    assert missing == row_name(receiver) != receiver.name


def test_an_alertmanager_is_tried_again_before_it_resolves_alerts() -> None:
    """However long the delays of other receivers are."""
    with http_inbox(500) as inbox:
        [receiver] = alertmanagers(NotificationsSection(alertmanagers=(inbox.url.removesuffix("/hook"),)))
        sender = AlertmanagerSender(receiver, Kept(), replace(QUICK, retry=(600.0, 600.0)))
        with sending(sender):
            sender.update(WANTED)
            inbox.wait_for(1)
    assert sender.counts["failed"] == 1


def test_an_alertmanager_gets_alerts_again_and_then_as_resolved() -> None:
    """A firing alert is sent at an interval with an end in the future; an ended one some time later with its end."""
    with http_inbox(500) as inbox:
        [receiver] = alertmanagers(NotificationsSection(alertmanagers=(inbox.url.removesuffix("/hook"),)))
        sender = AlertmanagerSender(receiver, Kept(), QUICK)
        with sending(sender):
            sender.update(WANTED)
            first, again = inbox.wait_for(2)[:2]
            sender.update({})
            seen = len(inbox.received)
            [resolved] = inbox.wait_for(seen + 1)[-1]
    assert [alert["labels"] for alert in (*first, *again)] == [LABELS] * 2
    assert first[0]["annotations"] == LOST.annotations
    assert first[0]["startsAt"] == again[0]["startsAt"] < resolved["endsAt"] < first[0]["endsAt"]
    assert sender.counts["failed"] == 1


def test_an_empty_secret_is_an_error(tmp_path: Path) -> None:
    """An empty token is not sent as `Bearer` without a token."""
    (tmp_path / "token").write_text("\n")
    section = NotificationsSection(webhook_url="http://127.0.0.1:9/", webhook_token_file=tmp_path / "token")
    [receiver] = message_receivers(section, source="")
    with pytest.raises(DeliveryError, match="token is empty"):
        receiver.deliver(LOST, ended=None)


def test_slack_shows_characters_of_its_markup_as_they_are(tmp_path: Path) -> None:
    """A reason may contain `<`, `>` and `&`, which would begin a link or a mention."""
    with http_inbox() as inbox:
        (tmp_path / "url").write_text(inbox.url)
        [receiver] = message_receivers(NotificationsSection(slack_url_file=tmp_path / "url"), source="")
        receiver.deliver(replace(LOST, description="<!channel> & 1 > 0"), ended=None)
        [message] = inbox.wait_for(1)
    assert "&lt;!channel&gt; &amp; 1 &gt; 0" in message["text"]


def test_a_mail_server_that_speaks_no_smtp_is_an_error_in_words() -> None:
    """The text has no number of the library."""
    with greeting_server(b"hello, this is a server of something else\r\n") as port:
        [receiver] = message_receivers(mails(port, "oncall@example.com"), source="")
        with pytest.raises(DeliveryError, match="the answer is not valid SMTP"):
            receiver.deliver(LOST, ended=None)


def test_an_endless_answer_of_a_mail_server_is_an_error() -> None:
    """It ends after a limit instead of filling the memory, also with TLS."""
    with greeting_server(b"220-ready\r\n" * 2_000) as port:
        [receiver] = message_receivers(mails(port, "ops@example.com"), source="")
        with pytest.raises(DeliveryError, match="more than 1000 lines"):
            receiver.deliver(LOST, ended=None)
    assert LimitedSmtpTls.getreply is LimitedSmtp.getreply


def test_a_mail_server_that_does_not_answer_quit_gets_a_mail_once() -> None:
    """The mail is delivered when the server has accepted it, and is not sent again."""
    with mail_inbox() as inbox:
        [receiver] = message_receivers(mails(inbox.port, "ops@example.com"), source="")
        sender = MessageSender(receiver, Kept(), replace(QUICK, attempt=2.0), bool)
        sender.update(WANTED)
        sender.step(WANTED)
    assert sender.counts == {"delivered": 1}


def test_an_unreadable_secret_is_an_error_that_names_its_file(tmp_path: Path) -> None:
    """It is retried, because the file may be created later."""
    [receiver] = message_receivers(NotificationsSection(slack_url_file=tmp_path / "url"), source="")
    with pytest.raises(DeliveryError, match=f"{tmp_path}/url cannot be read") as raised:
        receiver.deliver(LOST, ended=None)
    assert not raised.value.refused


def test_a_mail_server_without_recipients_is_an_error() -> None:
    """The error names the setting that is missing."""
    with pytest.raises(ValidationError, match="smtp_server requires recipients"):
        NotificationsSection(smtp_server="smtp.example.com:25")
