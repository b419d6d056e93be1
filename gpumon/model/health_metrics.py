"""Metric table of verdicts. The daemon fills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import agent


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
