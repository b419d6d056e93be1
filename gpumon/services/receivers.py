"""Receivers of alerts: Alertmanager, a webhook, Slack and programs with compatible webhooks, e-mail, and NVSentinel."""

from __future__ import annotations

import contextlib
import html
import http.client
import json
import os
import re
import smtplib
import ssl
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from gpumon import __version__
from gpumon.config.notifications_section import NotificationsSection
from gpumon.model.notified_alert import SentAlert
from gpumon.outputs.formatting import rfc3339
from gpumon.services.delivery_error import DeliveryError
from gpumon.services.limited_smtp import LimitedSmtp, LimitedSmtpTls
from gpumon.services.nvsentinel import NvSentinel

TIMEOUT_SECONDS = 30.0
_REFUSED = frozenset({400, 413, 422})
"""HTTP statuses with which a receiver rejects the message itself, which is then not sent again. After other statuses,
such as 401, the message is sent again, because the operator can correct the cause.
"""


class MessageReceiver(Protocol):
    """A receiver that gets one message when an alert fires, and one when it is resolved."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> Secret | None: ...

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        """Send a message about an alert. Raise DeliveryError if it is not delivered.

        `ended`: seconds since the epoch at which it was resolved; None if it fires.
        """


@dataclass(frozen=True, slots=True)
class Secret:
    """A configured URL, token or password: its value, or the path of a file that is read for each message."""

    value: str | None
    file: Path | None

    def read(self) -> str:
        """Return the secret; "" if none is configured. Raise DeliveryError if its file is empty or unreadable."""
        if self.file is None:
            return self.value or ""
        try:
            secret = self.file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DeliveryError(f"{self.file} cannot be read: {error}") from error
        if not secret:
            raise DeliveryError(f"{self.file} is empty")
        return secret


@dataclass(frozen=True, slots=True)
class Webhook:
    """Sends alerts to a URL as CloudEvents 1.0, in structured JSON. `source` names the agent."""

    url: Secret
    token: Secret
    source: str
    name: str = "webhook"

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        state = "firing" if ended is None else "resolved"
        event = {
            "specversion": "1.0",
            "id": _message_id(alert, resolved=ended is not None),
            "source": self.source,
            "type": f"io.gpumon.alert.{state}",
            "subject": alert.name,
            "time": rfc3339(alert.since if ended is None else ended),
            "datacontenttype": "application/json",
            "data": {"state": state, "labels": dict(alert.labels), "annotations": alert.annotations},
        }
        post(self.url.read(), event, self.token.read(), "application/cloudevents+json")


@dataclass(frozen=True, slots=True)
class Slack:
    """Sends alerts to an incoming webhook of Slack, Mattermost or Rocket.Chat."""

    url: Secret
    name: str = "slack"

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        text = "\n".join(_lines(alert, resolved=ended is not None))
        post(self.url.read(), {"text": html.escape(text, quote=False)})


@dataclass(frozen=True, slots=True)
class Mail:
    """Sends alerts by e-mail through an SMTP server. `tls`: starttls, tls or none."""

    server: str
    sender: str
    recipients: tuple[str, ...]
    user: str | None
    password: Secret
    tls: str
    name: str = "email"
    url: None = None

    def deliver(self, alert: SentAlert, *, ended: float | None) -> None:
        try:
            message = self._message(alert, resolved=ended is not None)
            with self._connect() as server:
                refusals = server.send_message(message)
        except smtplib.SMTPResponseException as error:
            words = f"the mail server answered {error.smtp_code} {error.smtp_error!r}"[:300]
            if error.smtp_code < 0:
                words = "the answer is not valid SMTP"
            # Only an answer to the whole mail is about the mail. A login, a sender or a mailbox can be repaired.
            refused = isinstance(error, smtplib.SMTPDataError) and error.smtp_code >= 500
            raise DeliveryError(words, refused=refused) from error
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryError(f"{self.server}: {error}"[:300]) from error
        except ValueError as error:  # its text may contain a character of the password
            raise DeliveryError(
                "an address, the user or the password has characters that SMTP does not allow"
            ) from error
        if refusals:  # not sent again, because the other recipients would get the message twice
            raise DeliveryError(f"the mail server refused some recipients: {refusals}"[:300], refused=True, partly=True)

    def _message(self, alert: SentAlert, *, resolved: bool) -> EmailMessage:
        message = EmailMessage()
        message["From"], message["To"] = self.sender, ", ".join(self.recipients)
        message["Date"], message_id = formatdate(localtime=True), _message_id(alert, resolved=resolved)
        message["Message-ID"] = f"<{message_id}@gpumon>"
        title, *lines = _lines(alert, resolved=resolved)
        message["Subject"] = " ".join(title.split())
        message.set_content("\n".join((*lines, "", *(f"{name}: {value}" for name, value in alert.labels))))
        return message

    @contextlib.contextmanager
    def _connect(self) -> Iterator[smtplib.SMTP]:
        host, _, port = self.server.rpartition(":")
        address, context = (host.strip("[]"), int(port)), ssl.create_default_context()
        if self.tls == "tls":
            server: smtplib.SMTP = LimitedSmtpTls(*address, timeout=TIMEOUT_SECONDS, context=context)
        else:
            server = LimitedSmtp(*address, timeout=TIMEOUT_SECONDS)
        try:
            if self.tls == "starttls":
                server.starttls(context=context)
            if self.user is not None and (password := self.password.read()):
                server.login(self.user, password)
            yield server
            with contextlib.suppress(OSError, smtplib.SMTPException):
                server.putcmd("quit")  # the server has the message: an answer that does not come would repeat it
        finally:
            server.close()


@dataclass(frozen=True, slots=True)
class Alertmanager:
    """Sends alerts to one Alertmanager. Firing alerts must be sent repeatedly, as Prometheus does."""

    url: str
    token: Secret

    @property
    def name(self) -> str:
        return f"alertmanager {urlsplit(self.url).netloc.rpartition('@')[2]}"

    def post(self, alerts: Iterable[tuple[SentAlert, float]]) -> None:
        """Send alerts, each with the Unix time in seconds at which Alertmanager resolves it unless it is sent again.

        Raise DeliveryError if that fails.
        """
        body = [
            {
                "labels": dict(alert.labels),
                "annotations": alert.annotations,
                "startsAt": rfc3339(alert.since),
                "endsAt": rfc3339(ends),
            }
            for alert, ends in alerts
        ]
        post(f"{self.url.rstrip('/')}/api/v2/alerts", body, self.token.read())


def message_receivers(section: NotificationsSection, source: str) -> list[MessageReceiver]:
    """Return the configured receivers other than Alertmanagers. `source`: attribute `source` of CloudEvents."""
    receivers: list[MessageReceiver] = []
    if section.webhook_url is not None or section.webhook_url_file is not None:
        token = Secret(None, section.webhook_token_file)
        receivers.append(Webhook(Secret(section.webhook_url, section.webhook_url_file), token, source))
    if section.slack_url_file is not None:
        receivers.append(Slack(Secret(None, section.slack_url_file)))
    if section.smtp_server is not None:
        password = Secret(None, section.smtp_password_file)
        sender, to = section.smtp_from, section.smtp_to
        receivers.append(Mail(section.smtp_server, sender, to, section.smtp_user, password, section.smtp_tls))
    if section.nvsentinel_socket is not None:
        node = section.nvsentinel_node or os.uname().nodename.lower()
        receivers.append(NvSentinel(section.nvsentinel_socket, node, section.nvsentinel_strategy, TIMEOUT_SECONDS))
    return receivers


def alertmanagers(section: NotificationsSection) -> list[Alertmanager]:
    """Return the configured Alertmanagers."""
    return [Alertmanager(url, Secret(None, section.alertmanager_token_file)) for url in section.alertmanagers]


def post(url: str, body: object, token: str = "", kind: str = "application/json") -> None:
    """Send `body` as JSON by HTTP POST. Raise DeliveryError unless the response has a status of 200 to 299.

    `token`: bearer token; empty for none. `kind`: content type.
    """
    headers = {"Content-Type": kind, "User-Agent": f"gpumon/{__version__}", **_authorization(token)}
    if not re.match(r"https?://[^/?#@]*(?![^/?#])", url):
        raise DeliveryError("the URL does not begin with http:// or https://, or has a user: use a token file for that")
    try:
        request = urllib.request.Request(url, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - checked
        _OPENER.open(request, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        words = f"the answer was {error.code} {error.reason}"[:300]
        raise DeliveryError(words, refused=error.code in _REFUSED) from error
    except (ValueError, http.client.InvalidURL) as error:  # the text of these errors contains a secret URL or token
        raise DeliveryError("the URL or the token has characters that HTTP does not allow: correct it") from error
    except http.client.HTTPException as error:
        raise DeliveryError(f"the answer is not valid HTTP ({type(error).__name__})") from error
    except OSError as error:
        cause = getattr(error, "reason", error)  # URLError contains the error of the connection
        raise DeliveryError(getattr(cause, "strerror", None) or str(cause)) from error


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: their target would get the token, and a GET request that lacks the alert."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirects)


def _authorization(token: str) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {token}"} if token else {}


def _message_id(alert: SentAlert, *, resolved: bool) -> str:
    """Return an id that is the same when the message is sent again."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{alert.key} {alert.since} {resolved}"))


def _lines(alert: SentAlert, *, resolved: bool) -> Iterator[str]:
    """Yield the lines of a message: the title and, if the alert fires, reason, action, serial number and runbook."""
    cluster = "".join(f"{value} " for name, value in alert.labels if name == "cluster")
    yield f"{'RESOLVED' if resolved else 'FIRING'}: {cluster}{alert.summary}"
    if not resolved:
        yield alert.description
        yield f"Do: {alert.action}"
        if alert.serial:
            yield f"Serial number: {alert.serial}"
        if alert.runbook_url:
            yield f"Runbook: {alert.runbook_url}"


def example(labels: Mapping[str, Any]) -> SentAlert:
    """Return the alert that `gpumon notify test` sends. `labels`: the configured `notifications.labels`.

    Unless `labels` has another `page`, it has page=day, because an alert with page=never is not sent to a person.
    """
    host = os.uname().nodename
    own = {"alertname": "GpumonTest", "class": "agent", "instance": host, "page": "day", "severity": "info", **labels}
    return SentAlert(
        labels=tuple(sorted((name, str(value)) for name, value in own.items())),
        summary=f"{own['instance']}: this is a test of notifications.",
        description=f"`gpumon notify test` was run on {host}. Nothing is wrong.",
        action="none.",
        since=0.0,
    )
