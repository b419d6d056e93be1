"""The section `notifications` of the configuration: whom the agent itself notifies of its alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, model_validator
from pydantic_core import PydanticCustomError

from gpumon.config.setting import Section, SomePath, check_url, setting, split

_Url = Annotated[str, AfterValidator(check_url)]


def _check_server(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("must be HOST:PORT, such as smtp.example.com:587")
    return text


class NotificationsSection(Section):
    """Settings of the notifications that the agent sends itself, without a Prometheus. None are sent by default."""

    labels: Mapping[str, str] = setting(
        {},
        "Labels that your Prometheus adds to this node's series, so that Alertmanager counts both as one alert.",
        default_in_words="`job: gpumon`, and `instance`: host and port of the agent",
        example={"instance": "gpu-17:17400", "cluster": "a"},
        restart=True,
    )
    alertmanagers: Annotated[tuple[_Url, ...], BeforeValidator(split)] = setting(
        (),
        "URLs of Alertmanagers, each of which gets every alert. Name all of a cluster, and no load balancer.",
        example=["http://alertmanager-1:9093", "http://alertmanager-2:9093"],
        restart=True,
    )
    alertmanager_token_file: SomePath | None = setting(
        None,
        "File with the bearer token for the Alertmanagers.",
        example="/etc/gpumon/alertmanager.token",
        restart=True,
    )
    webhook_url: _Url | None = setting(
        None, "URL that gets each alert as a CloudEvent.", example="https://events.example.com/gpumon", restart=True
    )
    webhook_url_file: SomePath | None = setting(
        None, "File with that URL, if it is secret.", example="/etc/gpumon/webhook.url", restart=True
    )
    webhook_token_file: SomePath | None = setting(
        None, "File with the bearer token for the webhook.", example="/etc/gpumon/webhook.token", restart=True
    )
    slack_url_file: SomePath | None = setting(
        None,
        "File with the URL of an incoming webhook of Slack, Mattermost or Rocket.Chat.",
        example="/etc/gpumon/slack.url",
        restart=True,
    )
    smtp_server: Annotated[str, AfterValidator(_check_server)] | None = setting(
        None, "Mail server as HOST:PORT.", example="smtp.example.com:587", restart=True
    )
    smtp_tls: Literal["starttls", "tls", "none"] = setting(
        "starttls", "Encryption of the connection to the mail server.", restart=True
    )
    smtp_user: str | None = setting(None, "User at the mail server.", example="gpumon", restart=True)
    smtp_password_file: SomePath | None = setting(
        None, "File with that user's password.", example="/etc/gpumon/smtp.password", restart=True
    )
    smtp_from: str = setting("gpumon@localhost", "Sender of the mails.", restart=True)
    smtp_to: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (), "Recipients of the mails.", example=["oncall@example.com"], restart=True
    )

    @model_validator(mode="after")
    def _check_recipients(self) -> Self:
        if self.smtp_server is not None and not self.smtp_to:
            raise PydanticCustomError("needs", "smtp_server needs recipients: set notifications.smtp_to")
        return self

    @property
    def configured(self) -> bool:
        """Whether there is a receiver."""
        urls = (self.webhook_url, self.webhook_url_file, self.slack_url_file, self.smtp_server)
        return bool(self.alertmanagers) or any(url is not None for url in urls)
