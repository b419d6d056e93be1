"""Recognizes the Xids that the driver reports because the agent has killed a rank in the middle of an operation."""

from __future__ import annotations

import logging
from typing import NamedTuple

from gpumon.clock import boot_clock
from gpumon.model.error_event import XID, ErrorObservation

log = logging.getLogger("gpumon.probe")

CLEANUP = frozenset({43, 45})
"""Xids that the driver may report when it removes the channels of a process that was killed while its kernels ran."""
KEPT_SECONDS = 60.0
"""Seconds after a kill in which the driver may report the Xids in CLEANUP. Freeing tens of GiB of a GPU takes long."""
TOLERANCE = 0.5
"""Max seconds by which the time of an Xid may be earlier than the kill that caused it."""
_ANOTHER_CAUSE = "caused by previous Xid"


class _KilledRank(NamedTuple):
    pid: int
    gpu: str
    at: float
    """Time on the boot clock at which the agent sent the first signal to end."""


class KilledRanks:
    """The ranks that the agent has killed recently. Use from the loop's thread."""

    def __init__(self) -> None:
        self._killed: dict[int, _KilledRank] = {}

    def add(self, pid: int, gpu: str) -> None:
        """Record that the agent sends a rank a signal to end. `gpu`: UUID of the rank's GPU; empty on the CPU."""
        now = boot_clock()
        self._killed = {rank.pid: rank for rank in self._killed.values() if now - rank.at < KEPT_SECONDS}
        self._killed.setdefault(pid, _KilledRank(pid, gpu, now))

    def has_caused(self, observation: ErrorObservation, *, same_pids: bool = True) -> bool:
        """Return whether this is an Xid that the driver reports because a rank was killed, and log that if so.

        The kernel log names the process of an Xid. NVML names only the GPU. `same_pids`: False if the agent runs in a
        PID namespace of its own, whose pids differ from those in the kernel log.
        """
        if observation.kind != XID or observation.code not in CLEANUP or _ANOTHER_CAUSE in observation.text:
            return False
        named = observation.pid if same_pids else None
        own = any(
            rank.at - TOLERANCE <= observation.since and observation.at <= rank.at + KEPT_SECONDS
            for rank in self._killed.values()
            if (rank.gpu == observation.uuid if named is None else rank.pid == named)
        )
        if own:
            log.info(
                "not counted: the driver removes the channels of a rank that was killed",
                extra={"gpu": observation.uuid, "xid": observation.code, "times": observation.times},
            )
        return own
