"""Which alerts are sent when, and how one is delivered."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sample_reports as reports
from agents import eventually, free_port
from changed_report import changed
from each_case import each_case
from loops import running
from sample_windows import MAINTENANCE, window
from servers import Inbox, http_inbox

from gpumon.config.notifications_section import NotificationsSection
from gpumon.model.instant import Now
from gpumon.services.delivery import DeliveryError, post
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
    health = replace(report.health, evaluated=Now(at=0.0, wall=0.0, uptime=uptime))
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


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server that gives every connection this answer, and the requests that it gets."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", requests
        server.shutdown(socket.SHUT_RDWR)


@each_case(
    ("answer", "words", "refused"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not valid HTTP", False),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "401", False),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "404", False),
        (b"HTTP/1.1 502 " + b"x" * 60_000 + b"\r\n\r\n", r"502 x{280,290}$", False),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "400", True),
    ],
)
def test_an_odd_answer_is_a_failed_delivery(answer: bytes, words: str, refused: bool) -> None:  # noqa: FBT001 - a case
    """Only an answer that blames the request itself ends its repetition."""
    with answering(answer) as (url, _), pytest.raises(DeliveryError, match=words) as raised:
        post(url, {})
    assert raised.value.refused is refused


def test_a_receiver_that_does_not_listen_is_an_error_in_plain_words() -> None:
    """The text is that of the operating system, without the type of the error."""
    with pytest.raises(DeliveryError) as raised:
        post(f"http://127.0.0.1:{free_port()}/", {})
    assert str(raised.value) == "Connection refused"


def test_a_redirect_is_not_followed() -> None:
    """The target of a redirect gets neither the token nor a request."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as (target, requests):
        redirect = f"HTTP/1.1 302 Found\r\nLocation: {target}/\r\nContent-Length: 0\r\n\r\n".encode()
        with answering(redirect) as (url, _), pytest.raises(DeliveryError, match="302"):
            post(url, {}, "secret")
        assert requests == []


@each_case(("url", "token"), [("hooks.example/secret", ""), ("http://h/ secret", ""), ("http://h/", "a\nsecret")])
def test_an_error_does_not_quote_a_secret(url: str, token: str) -> None:
    """An invalid URL or token is not in the text of the error, which is logged and exported."""
    with pytest.raises(DeliveryError) as raised:
        post(url, {}, token)
    assert "secret" not in str(raised.value)
