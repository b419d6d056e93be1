"""Time limits and intervals of the supervisors, in seconds. Tests shorten them."""

from __future__ import annotations

from dataclasses import dataclass

from gpumon.model.call_progress import CallInProgress

OPENING_CALLS = frozenset({"nvmlInit", "nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByIndex"})
"""Driver calls with a longer deadline, because they initialise NVML or open a GPU. A lookup that is repeated after a
fault has the usual deadline: its name ends in AGAIN and therefore is not in this set.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """Deadlines and intervals, in seconds, of one kind of children. The defaults are those of the sampler."""

    poll: float = 0.5
    """Interval at which a supervisor inspects its children."""
    call: float = 2.0
    """Maximum time of one call, except the calls that `opening` is for."""
    opening: float = 60.0
    """Maximum time to initialise NVML or to open a GPU, which takes 1 to 3 s without persistence mode."""
    silence: float = 90.0
    """Maximum time without a frame while stopped or in no call. It exceeds the longest poll interval, 60 s."""
    grace: float = 3.0
    """Maximum time that a child may take to close the driver and end after END was sent. It is killed after that."""
    kill: float = 2.0
    """Time after SIGKILL until a child that still runs, because it is blocked in the kernel, counts as abandoned."""
    first_restart: float = 0.5
    """Delay of the restart after the first crash. The delay doubles with each further crash."""
    last_restart: float = 30.0
    """Maximum delay of a restart."""
    steady: float = 60.0
    """If a child was older than this when it ended, its end is a new fault: the delay is `first_restart` again."""
    gave_up: float | None = 600.0
    """Delay of the next start while too many children are abandoned; None to wait until one of them has ended."""
    first_trial: float = 5.0
    """Delay of the first trial of a quarantined subject."""
    early_trial: float | None = 10.0
    """Interval of trials in the first `early` seconds; None if it doubles with each trial, up to `late_trial`."""
    early: float = 600.0
    late_trial: float = 60.0
    """Maximum interval between trials."""

    def of_call(self, call: CallInProgress) -> float:
        """Return the seconds after which a call is late: `opening` for OPENING_CALLS, `call` for all others."""
        return self.opening if call.call in OPENING_CALLS else self.call

    def pause(self, before: float, age: float) -> float:
        """Return the seconds until the next trial, for a quarantine of this age. `before`: the last pause."""
        if self.early_trial is None:
            return min(2 * before, self.late_trial)
        return self.early_trial if age < self.early else self.late_trial
