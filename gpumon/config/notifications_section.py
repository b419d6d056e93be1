"""The section `notifications` of the configuration: the receivers that the agent itself notifies of its alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gpumon.config.setting import NEEDS, Section, SomePath, Url, matching, number_to_text, setting, split

_Hook = Annotated[
    str,
    matching(r"https?://[^\s/?#@]+([/?][^\s#]*)?", "must be an absolute URL without user (use webhook_token_file)"),
]
_Server = Annotated[
    str, matching(r"[^@]+:\d+", "must be HOST:PORT, without user and password (smtp_user, smtp_password_file)")
]


class NotificationsSection(Section):
    """Settings of the notifications that the agent sends directly, without Prometheus. By default it sends none."""

    labels: Mapping[str, Annotated[str, BeforeValidator(number_to_text)]] = setting(
        {},
        "Labels that your Prometheus adds to this node's series, so that Alertmanager counts both as one alert.",
        default_in_words="`job: gpumon`, and `instance`: host and port of the agent",
        example={"instance": "gpu-17:17400", "cluster": "a"},
        restart=True,
    )
    alertmanagers: Annotated[tuple[Url, ...], BeforeValidator(split)] = setting(
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
    webhook_url: _Hook | None = setting(
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
    smtp_server: _Server | None = setting(
        None, "Mail server as HOST:PORT.", example="smtp.example.com:587", restart=True
    )
    smtp_tls: Literal["starttls", "tls", "none"] = setting(
        "starttls", "Encryption of the connection to the mail server: starttls, tls or none.", restart=True
    )
    smtp_user: str | None = setting(None, "User at the mail server.", example="gpumon", restart=True)
    smtp_password_file: SomePath | None = setting(
        None, "File with that user's password.", example="/etc/gpumon/smtp.password", restart=True
    )
    smtp_from: str = setting("gpumon@localhost", "Sender of the mails.", restart=True)
    smtp_to: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (), "Recipients of the mails.", example=["oncall@example.com"], restart=True
    )
    nvsentinel_socket: SomePath | None = setting(
        None,
        "Unix socket of NVSentinel's platform connector on this node, which gets each alert as a health event.",
        example="/var/run/nvsentinel/nvsentinel.sock",
        restart=True,
    )
    nvsentinel_strategy: Literal["store_only", "execute_remediation"] = setting(
        "store_only",
        "Whether NVSentinel only stores these events, or may cordon, drain and repair the node because of them.",
        restart=True,
    )
    nvsentinel_node: str | None = setting(
        None,
        "Name of this node in Kubernetes.",
        default_in_words="the host's name in lower case",
        example="gpu-17",
        restart=True,
    )

    @field_validator("smtp_to")
    @classmethod
    def _server_needs_recipients(cls, recipients: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        if not recipients and info.data.get("smtp_server") is not None:
            remedy = "name them, or leave notifications.smtp_server out"
            raise PydanticCustomError(NEEDS, "smtp_server requires recipients", {"remedy": remedy})
        return recipients
