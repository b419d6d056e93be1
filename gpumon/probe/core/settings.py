"""The settings of probe runs, and the timetables of scheduled runs, from the configuration.

A timetable is an interval or crontab text, with jitter. It makes a trigger of APScheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpumon.model import durations
from gpumon.probe.core.baseline import Floors
from gpumon.probe.core.probes import ALL_REDUCE, NEVER, Probe, Setting

NCCL_CONF = Path("/etc/nccl.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSettings:
    """The settings in the section `probe` of the configuration. They may change while the agent runs."""

    python: str
    enabled: bool = True
    deadline: float | None = None
    """Max seconds of a run; None uses the deadline of the probe."""
    dtypes: tuple[str, ...] = ()
    """Element types in which bandwidths are measured, beside those of the probe."""
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


FORMS = "an interval such as 6h, crontab text such as '0 3 * * sun', or never"
MIN_INTERVAL, MAX_INTERVAL = 10, 366 * 86400
_FIELDS = ("minute", "hour", "day", "month", "day_of_week")
_FIRST = datetime(2028, 1, 1, tzinfo=timezone.utc)
"""Time from which the fire times of crontab text are compared: any, but always the same."""
_COMPARED = 14
"""Number of fire times that are compared: two weeks of weekdays, or a year of months."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timetable:
    """Times of the scheduled runs of one probe: every `interval` seconds, or by `cron` in the time zone of the host.

    `jitter`: max random delay of a run in seconds. `initial_delay`: seconds until the first run, with an interval.
    """

    interval: float | None = None
    cron: str = ""
    jitter: float = 0.0
    initial_delay: float = 0.0

    @property
    def max_interval(self) -> float:
        """Return the max seconds between two runs, without jitter."""
        if self.interval is not None:
            return self.interval
        return max((after - before).total_seconds() for before, after in pairwise(_fire_times(_cron(self.cron, None))))

    def trigger(self) -> Any:
        if self.interval is None:
            return _cron(self.cron, self.jitter)
        from apscheduler.triggers.interval import IntervalTrigger  # noqa: PLC0415 - as below

        return IntervalTrigger(seconds=self.interval, jitter=self.jitter, timezone=timezone.utc)


def parse_schedule(text: str) -> Timetable:
    """Return the timetable of a text that `check_schedule` accepts, except never."""
    interval = durations.seconds(text)
    return Timetable(cron=text) if interval is None else Timetable(interval=interval)


def check_schedule(text: str) -> str:
    """Return a valid schedule, one of FORMS, unchanged. Raise ValueError for any other text."""
    seconds = durations.seconds(text)
    if text == NEVER or (seconds is not None and MIN_INTERVAL <= seconds <= MAX_INTERVAL):
        return text
    if seconds is not None:
        raise ValueError(f"must be an interval from {MIN_INTERVAL}s to 366d")
    if len(text.split()) != len(_FIELDS):
        raise ValueError(f"must be {FORMS}")
    if any(character.isdigit() for character in text.rsplit(maxsplit=1)[-1]):
        raise ValueError("must name weekdays (sun, mon-fri): programs count them differently")
    try:
        fires = len(list(_fire_times(_cron(text, None)))) == _COMPARED
    except ValueError as error:
        raise ValueError(f"must be {FORMS} ({error})") from None
    if not fires:
        raise ValueError("must be a time that recurs")
    return text


def _cron(text: str, jitter: float | None) -> Any:
    from apscheduler.triggers.cron import CronTrigger  # noqa: PLC0415 - commands that need no schedule start faster

    return CronTrigger(**dict(zip(_FIELDS, text.split(), strict=True)), jitter=jitter)


def _fire_times(trigger: Any) -> Iterator[datetime]:
    at = None
    for _ in range(_COMPARED):
        at = trigger.get_next_fire_time(at, at or _FIRST)
        if at is None:
            return
        yield at
