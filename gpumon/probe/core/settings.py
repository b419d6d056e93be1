"""The configuration of probes, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpumon.probe.core.baseline import Floors

NCCL_CONF = Path("/etc/nccl.conf")
"""The system-wide configuration of NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """Settings of probes, which may change while the agent runs."""

    python: str
    enabled: bool = True
    deadline: float | None = None
    """Seconds; None: the probe's own."""
    dtypes: tuple[str, ...] = ("float32",)
    environment: Mapping[str, str] = field(default_factory=dict)
    nccl_conf: Path = NCCL_CONF
    floors: Mapping[str, Floors] = field(default_factory=dict)
    """By backend; others have the defaults."""
    idle_seconds: float = 0.0
    """Min idle seconds of the GPUs before a scheduled run."""
    partial: bool = False
    """Whether a run may leave out GPUs that are in use."""
    algorithms: tuple[str, ...] = ()
    """NCCL algorithms for a run on all GPUs; empty: the probe's own."""
    gate: tuple[str, ...] = ()
    """Command that asks the scheduler for the node; empty: none."""
    gate_seconds: float = 10.0
    fault: str = ""
    """For tests: what one rank does wrong."""
