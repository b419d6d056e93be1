"""The settings of probes from the configuration, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpumon.probe.core.baseline import Floors

NCCL_CONF = Path("/etc/nccl.conf")
"""The system-wide configuration of NCCL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """The settings in the section `probe` of the configuration. They may change while the agent runs."""

    python: str
    enabled: bool = True
    deadline: float | None = None
    """Max seconds of a run; None uses the deadline of the probe."""
    dtypes: tuple[str, ...] = ("float32",)
    environment: Mapping[str, str] = field(default_factory=dict)
    nccl_conf: Path = NCCL_CONF
    floors: Mapping[str, Floors] = field(default_factory=dict)
    """Limits below which a bandwidth is too low, by backend (nccl, gloo). A backend that is missing has the defaults.
    """
    min_idle_seconds: float = 0.0
    """Seconds for which the GPUs must have been idle before a scheduled run."""
    partial: bool = False
    """Whether a run may leave out GPUs that are in use."""
    algorithms: tuple[str, ...] = ()
    """NCCL algorithms for a run on all GPUs; empty uses those of the probe."""
    gate: tuple[str, ...] = ()
    """Command and arguments that ask the scheduler whether the node is free; empty if no gate is configured."""
    gate_seconds: float = 10.0
    fault: str = ""
    """Misbehavior of one rank, for tests. The worker's Fault class parses it."""
