"""The section `notifications` of the configuration: the receivers that the agent itself notifies of its alerts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator

from gpumon.config.setting import ConfigurationSection, SomePath, Url, matching, number_to_text, setting, split

_Hook = Annotated[
    str,
    matching(r"https?://[^\s/?#@]+([/?][^\s#]*)?", "must be an absolute URL without user (use webhook_token_file)"),
]
_AppriseUrl = Annotated[
    str,
    matching(r"/.*|\w+://\S+", "must be an Apprise URL, such as slack://..., or the absolute path of a file with one"),
]
_MAIL = "notifications.apprise_urls: ['mailtos://USER:PASSWORD@HOST:PORT?from=ADDRESS&to=ADDRESS']"
REPLACED_KEYS = {
    "slack_url_file": "notifications.apprise_urls: [/path/of/that/file]; for Mattermost or Rocket.Chat the URL in the "
    "file becomes mmosts://HOST/TOKEN or rockets://TOKEN@HOST",
    **dict.fromkeys(("smtp_server", "smtp_tls", "smtp_user", "smtp_password_file", "smtp_from", "smtp_to"), _MAIL),
}
"""What to write instead of a key of the receivers that apprise_urls has replaced."""


class NotificationsSection(ConfigurationSection):
    """Settings of the notifications that the agent sends directly, without Prometheus. By default it sends none."""

    RESTART = True

    labels: Mapping[str, Annotated[str, BeforeValidator(number_to_text)]] = setting(
        {},
        "Labels that your Prometheus adds to this node's series, so that Alertmanager counts both as one alert.",
        default_in_words="`job: gpumon`, and `instance`: host and port of the agent",
        example={"instance": "gpu-17:17400", "cluster": "a"},
    )
    alertmanagers: Annotated[tuple[Url, ...], BeforeValidator(split)] = setting(
        (),
        "URLs of Alertmanagers, each of which gets every alert. Name all of a cluster, and no load balancer.",
        example=["http://alertmanager-1:9093", "http://alertmanager-2:9093"],
    )
    alertmanager_token_file: SomePath | None = setting(
        None,
        "File with the bearer token for the Alertmanagers.",
        example="/etc/gpumon/alertmanager.token",
    )
    webhook_url: _Hook | None = setting(
        None, "URL that gets each alert as a CloudEvent.", example="https://events.example.com/gpumon"
    )
    webhook_url_file: SomePath | None = setting(
        None, "File with that URL, if it is secret.", example="/etc/gpumon/webhook.url"
    )
    webhook_token_file: SomePath | None = setting(
        None, "File with the bearer token for the webhook.", example="/etc/gpumon/webhook.token"
    )
    apprise_urls: Annotated[tuple[_AppriseUrl, ...], BeforeValidator(split)] = setting(
        (),
        "Apprise URLs of services that get each alert as a text, such as Slack, e-mail or PagerDuty; or paths of files "
        "with one such URL, because it contains secrets. Needs the package apprise.",
        example=["/etc/gpumon/slack.url", "mailtos://gpumon:PASSWORD@smtp.example.com?to=oncall@example.com"],
    )
    nvsentinel_socket: SomePath | None = setting(
        None,
        "Unix socket of NVSentinel's platform connector on this node, which gets each alert as a health event.",
        example="/var/run/nvsentinel/nvsentinel.sock",
    )
    nvsentinel_strategy: Literal["store_only", "execute_remediation"] = setting(
        "store_only",
        "Whether NVSentinel only stores these events, or may cordon, drain and repair the node because of them.",
    )
    nvsentinel_node: str | None = setting(
        None,
        "Name of this node in Kubernetes.",
        default_in_words="the host's name in lower case",
        example="gpu-17",
    )
