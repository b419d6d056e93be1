"""Runs one attempt to deliver a notification in a child process, which is killed at its deadline."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from gpumon.services.receivers import Orders
from gpumon.supervisor.child_process import MAX_ORDERS, PYTHON, ChildCommand, ChildProcess, LineSplitter
from gpumon.supervisor.loop import Loop

TIMEOUT_SECONDS = 30.0
"""Maximum duration of an attempt to send a message."""
MAX_OUTPUT = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """Why a message was not delivered; None if it was. `refused`: it must not be sent again."""

    error: str | None = None
    refused: bool = False


class DeliveryChild:
    """One attempt, which the constructor starts. Use it from the loop's thread.

    `on_outcome` is called once, from the loop, at the latest at the deadline: also for a child that cannot be started,
    and for one that SIGKILL does not end.
    """

    def __init__(self, loop: Loop, orders: Orders, seconds: float, on_outcome: Callable[[Outcome], None]) -> None:
        self.timed_out = False
        self._on_outcome: Callable[[Outcome], None] | None = on_outcome
        self.child: ChildProcess | None = None
        """The process, which ends a moment after the outcome, or later if SIGKILL does not end it; None without one."""

        def report(error: str | None, *, refused: bool = False) -> None:
            self._report(Outcome(error, refused))

        command = ChildCommand(
            name="delivery",
            arguments=(*PYTHON, "-m", "gpumon.services.delivery"),
            orders=json.dumps({**orders, "parent": os.getpid()}, default=str).encode() + b"\n",
            on_output=LineSplitter(MAX_OUTPUT, lambda line: report(**json.loads(line)), lambda: None).feed,
            on_exit=lambda code: report(f"the process that sent it ended with status {code} and no outcome"),
            on_deadline=lambda: self._time_out(seconds),
            deadline=seconds,
        )
        if len(command.orders) > MAX_ORDERS:
            loop.post(lambda: report("the message is too long"))
            return
        try:
            self.child = ChildProcess(loop, command)
        except OSError as error:
            problem = f"no process can be started to send it: {error}"
            loop.post(lambda: report(problem))

    def kill(self) -> None:
        """End the attempt. `on_outcome` is not called any more."""
        self._on_outcome = None
        if self.child is not None:
            self.child.kill()

    def _time_out(self, seconds: float) -> None:
        self.timed_out = True
        self._report(Outcome(f"there was no complete answer within {seconds:g} s"))

    def _report(self, outcome: Outcome) -> None:
        on_outcome, self._on_outcome = self._on_outcome, None
        if on_outcome is not None:
            on_outcome(outcome)


def deliver_now(orders: Orders) -> Outcome:
    """Deliver a message, and return the outcome: for commands, which have no loop."""
    loop = Loop()
    outcomes: list[Outcome] = []
    attempt = DeliveryChild(loop, orders, TIMEOUT_SECONDS, outcomes.append)
    while not outcomes:
        loop.turn()
    attempt.kill()
    while attempt.child is not None and not (attempt.child.ended or attempt.child.abandoned):
        loop.turn()
    return outcomes[0]
