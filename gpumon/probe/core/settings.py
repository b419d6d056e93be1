"""The settings of probes from the configuration, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gpumon.probe.core.baseline import Floors
from gpumon.probe.core.probes import ALL_REDUCE, Probe, Setting

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
    min_baseline_ratio: float | None = None
    """Limit for comparisons with the host's own median; None uses that of the probe."""
    min_baseline_spreads: float = 4.0
    min_expected_ratio: float = 0.85
    limits: Mapping[str, float | None] = field(default_factory=dict)
    """Configured minimum of the best all-reduce bandwidth of each algorithm in bytes per second, by backend."""
    min_idle_seconds: float | None = 0.0
    """Seconds for which the GPUs must have been idle before a scheduled run; None uses those of the probe."""
    partial: bool = False
    """Whether a run may leave out GPUs that are in use."""
    algorithms: tuple[str, ...] = ()
    """NCCL algorithms for a run on all GPUs; empty uses those of the probe."""
    gate: tuple[str, ...] = ()
    """Command and arguments that ask the scheduler whether the node is free; empty if no gate is configured."""
    gate_seconds: float = 10.0
    fault: str = ""
    """Misbehavior of one rank, for tests. The worker's Fault class parses it."""

    def floors(self, probe: Probe, setting: Setting) -> Floors:
        """Return the limits from which a value of this probe is degraded, with one of its settings."""
        return Floors(
            baseline=setting.min_baseline_ratio if self.min_baseline_ratio is None else self.min_baseline_ratio,
            spreads=self.min_baseline_spreads,
            expected=self.min_expected_ratio,
            limit=self.limits.get(setting.backend) if probe.name == ALL_REDUCE else None,
        )
