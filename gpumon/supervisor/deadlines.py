"""Deadlines of the supervisors, in seconds. Tests run them shortened."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines that apply to every child."""

    poll: float = 0.5
    """Interval at which a supervisor inspects its children."""
    grace: float = 3.0
    """Time for a child to close the driver after END was sent."""
    kill: float = 2.0
    """Time after SIGKILL until a child counts as abandoned: it is in the kernel, where no signal reaches it."""
    first_restart: float = 0.5
    """Delay of the restart after a crash. It doubles with each crash."""
    last_restart: float = 30.0
    """Longest delay of a restart."""
    steady: float = 60.0
    """Age from which the end of a child is a new fault, for which the delay starts again at `first_restart`."""

    def scale_value(self, factor: float) -> Self:
        """Return these deadlines, each multiplied by `factor`."""
        return type(self)(**{field.name: getattr(self, field.name) * factor for field in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDeadlines(Deadlines):
    """Deadlines of the sampler and of the trials."""

    call: float = 2.0
    """Time for one driver call."""
    opening: float = 60.0
    """Time for an initialisation or a first handle lookup. Without persistence mode a GPU takes 1 to 3 s to come up."""
    silence: float = 90.0
    """Time without a frame outside of driver calls: three times the longest pause of a sampler."""
    first_trial: float = 5.0
    """Delay of the first trial of a quarantined GPU."""
    early_trial: float = 10.0
    """Interval of its trials while the quarantine is younger than `early`."""
    late_trial: float = 60.0
    """Interval of its trials after that."""
    early: float = 600.0
    gave_up: float = 600.0
    """Delay of the next start after too many children were abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinksDeadlines(Deadlines):
    """Deadlines of the links child."""

    read: float = 10.0
    """Time to read one file. The read may query the firmware of the device, for which the kernel allows a minute."""
    silence: float = 60.0
    """Time without a frame outside of reads."""
    first_retry: float = 60.0
    """Delay of the first retry of a quarantined device. It doubles with each failure."""
    last_retry: float = 600.0
    """Longest delay of a retry."""


SAMPLER_DEADLINES = SamplerDeadlines()
LINKS_DEADLINES = LinksDeadlines()
