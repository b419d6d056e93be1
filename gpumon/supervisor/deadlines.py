"""Time limits and intervals of the supervisors, in seconds. Tests shorten them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines and intervals, in seconds, of sampler, trials and host child. `kill` applies to other children too."""

    poll: float = 0.5
    """Interval at which a supervisor inspects its children."""
    grace: float = 3.0
    """Maximum time that a child may take to close the driver and end after END was sent. It is killed after that."""
    kill: float = 2.0
    """Time after SIGKILL until a child that has not ended counts as abandoned. An abandoned child is blocked in the
    kernel, where no signal reaches it.
    """
    silence: float = 60.0
    """Maximum time without a frame (one line with a message) while the child is stopped or in no call."""
    first_restart: float = 0.5
    """Delay of the restart after the first crash. The delay doubles with each further crash."""
    last_restart: float = 30.0
    """Maximum delay of a restart."""
    steady: float = 60.0
    """If a child was older than this when it ended, the next restart delay is `first_restart` again: its end is a new
    fault.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDeadlines(Deadlines):
    """Deadlines and intervals, in seconds, of the sampler and of trials of quarantined GPUs."""

    call: float = 2.0
    """Maximum time of one driver call, except the calls that `opening` is for."""
    opening: float = 60.0
    """Maximum time to initialise NVML, or to look up the handle of a GPU for the first time. Without persistence mode,
    opening a GPU takes 1 to 3 s.
    """
    silence: float = 90.0
    """It exceeds the longest pause of a sampler, a poll interval of 60 s."""
    first_trial: float = 5.0
    """Delay of the first trial of a quarantined GPU."""
    early_trial: float = 10.0
    """Interval between trials of a GPU that has been quarantined for less than `early` seconds."""
    late_trial: float = 60.0
    """Interval between trials of a GPU that has been quarantined for `early` seconds or longer."""
    early: float = 600.0
    gave_up: float = 600.0
    """Delay of the next start of a sampler while too many children are abandoned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostDeadlines(Deadlines):
    """Deadlines and intervals, in seconds, of the host child, which reads files of sysfs, procfs and systemd."""

    read: float = 10.0
    """Maximum time to read one file. A read may query a device's firmware, for which the kernel itself allows 60 s."""
    first_retry: float = 60.0
    """Delay of the first retry of a quarantined device. The delay doubles with each failed retry."""
    last_retry: float = 600.0
    """Maximum delay of a retry."""


SAMPLER_DEADLINES = SamplerDeadlines()
HOST_DEADLINES = HostDeadlines()
