"""Metric tables of verdicts, which the daemon fills."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import AGENT, agent, identity


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthMetrics:
    """Verdicts as metric values: 0 ok, 1 unknown, 2 warn, 3 fail."""

    PREFIX: ClassVar[str] = "gpumon_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    health_check: dict[str, float] | None = agent(
        "Verdict that is not ok: 1 unknown, 2 warn, 3 fail.",
        label=("check", "gpu", "uuid", "device", "port"),
        note="Only verdicts that are not inhibited. For a GPU with gpu and uuid, for a port with device and port.",
    )
    node_health: float | None = agent("Worst verdict of the node: 0 ok, 1 unknown, 2 warn, 3 fail.")


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictInfo:
    """Action, code and reason of a verdict that is not inhibited, for the text of its alert.

    The reason is the text at the verdict's last transition, so that the label does not change with each poll.
    """

    PREFIX: ClassVar[str] = "gpumon_health_check_"
    LABELS: ClassVar[tuple[str, ...]] = ("check", "gpu", "uuid", "device", "port")

    action: str | None = identity("What to do: none, restart, reset, reboot, inspect or replace.", AGENT)
    action_text: str | None = identity("The sentence that `gpumon status` shows for it; may be empty.", AGENT)
    code: str | None = identity("Error that raised the verdict, such as Xid 79; empty if none did.", AGENT)
    reason: str | None = identity("Reason, with the readings at the time of the last transition.", AGENT)
