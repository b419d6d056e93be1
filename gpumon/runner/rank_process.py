"""Starts one rank process of a pass, collects its frames, and recognizes the Xids that killing a rank causes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from gpumon.clock import boot_clock
from gpumon.model.error_event import XID, ErrorObservation
from gpumon.probe.core.conclusion import LOG_LIMIT
from gpumon.probe.core.frames import Account, Progress, fold_frame
from gpumon.probe.core.plan import Plan, Step
from gpumon.runner.containment import environment
from gpumon.supervisor import exec_shim
from gpumon.supervisor.child_process import PYTHON, ChildCommand, ChildProcess, LineSplitter
from gpumon.supervisor.loop import Loop

FRAME_LIMIT = 64 * 1024
FRAMES, FRAMES_A_SECOND = 2000, 20
"""Max frames of a rank: FRAMES, plus FRAMES_A_SECOND for each second of the deadline."""
_SHIM = (*PYTHON, "-S", exec_shim.__file__)
"""Command that executes that of the rank from the agent's disk: probe.python may be on a slow network file system."""


class RankProcess:
    """A process that runs one rank, and the Account of everything that the rank has reported."""

    def __init__(
        self,
        loop: Loop,
        plan: Plan,
        number: int,
        steps: Sequence[Step],
        rendezvous: int,
        *,
        grace: float,
        patience: float,
        on_started: Callable[[int], None],
        on_frame: Callable[[RankProcess], None],
        on_end: Callable[[RankProcess, int], None],
        on_abandoned: Callable[[RankProcess], None],
    ) -> None:
        """Start rank `number`. Raise OSError or ValueError if that fails.

        `steps`: steps that the ranks were ordered to take; the pass appends to it. `rendezvous`: descriptor of the file
        through which ranks find each other. `grace`, `patience`: as in ChildCommand. Callbacks: `on_started` before the
        process gets its orders; `on_frame` also after an invalid frame; `on_end` with the status.
        """
        self.settled = False
        """True if the process has ended or was abandoned as unkillable."""
        self.gpu = plan.gpus[number] if plan.gpus else ""
        """UUID of the GPU that this rank uses; empty if the rank runs on the CPU."""
        self._plan = plan
        self._steps = steps
        self._on_frame = on_frame
        self._frames = 0
        frames, result = os.pipe2(os.O_CLOEXEC)
        take_long_frame = partial(self._take_frame, b"a line that is too long")
        command = ChildCommand(
            name=f"rank {number}",
            arguments=(*_SHIM, str(os.getpid()), str(result), *plan.command),
            orders=plan.orders(number, parent=os.getpid(), result=result, rendezvous=rendezvous),
            environment={**plan.environment, **environment()},
            descriptors=(result, rendezvous),
            outputs={frames: LineSplitter(FRAME_LIMIT, self._take_frame, take_long_frame).feed},
            on_started=on_started,
            on_output=self._take_output,
            on_error_output=self._take_output,
            on_exit=lambda status: on_end(self, status),
            on_abandoned=lambda: on_abandoned(self),
            ask=ChildProcess.terminate,
            grace=grace,
            patience=patience,
        )
        try:
            self.child = ChildProcess(loop, command)
        except (OSError, ValueError):
            os.close(frames)
            raise
        finally:
            os.close(result)
        self.account = Account(progress=Progress(rank=number), pid=self.child.pid)

    def _take_output(self, printed: bytes) -> None:
        tail = LOG_LIMIT // self._plan.ranks
        self.account = replace(self.account, output=(self.account.output + printed)[-tail:])

    def _take_frame(self, line: bytes) -> None:
        self._frames += 1
        if self._frames > FRAMES + FRAMES_A_SECOND * self._plan.deadline:
            if not self.account.error:
                self.account = replace(self.account, error="it sends too many frames")
                self._on_frame(self)
            return
        self.account = fold_frame(self.account, line, self._steps)
        self._on_frame(self)


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
        """Return whether the driver reports this Xid because a rank was killed, and log that if so.

        The kernel log names the process of an Xid, NVML only the GPU. `same_pids`: False in a PID namespace of its own.
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
