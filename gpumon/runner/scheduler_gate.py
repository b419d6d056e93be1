"""Runs the operator's scheduler gate command in a child process. The command answers whether the node is free."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from gpumon.probe.core.preflight import REFUSED, Skip
from gpumon.runner.containment import environment as marked_environment
from gpumon.supervisor.child_process import PYTHON, ChildCommand, ChildProcess
from gpumon.supervisor.loop import Loop

TAIL = 4096
"""Max bytes of the command's output that are kept in memory, counted from the end of the output."""
LINE = 300
END_SECONDS = 3.0
"""Seconds that the subreaper has to end all processes of the command. Then the subreaper is killed."""

NO = 1
"""Exit code by which the command refuses the node."""


OnAnswer = Callable[[Skip | None], None]
"""Callback that receives None if the node is free, otherwise the Skip with which the run ends."""


class Question:
    """One run of the gate command. `on_answer` is called once, within `seconds`, unless `withdraw` was called."""

    def __init__(
        self,
        loop: Loop,
        command: Sequence[str],
        seconds: float,
        environment: Mapping[str, str],
        on_answer: OnAnswer,
    ) -> None:
        self._on_answer: OnAnswer | None = on_answer
        self._name = command[0]
        self._seconds = seconds
        self._output = b""
        self._child: ChildProcess | None = None
        self._loop = loop
        self._trouble = b""
        self._child = self._start(command, environment)
        if self._child is None:
            loop.call_after(0.0, lambda: self._on_exit(1))

    def withdraw(self) -> None:
        self._on_answer = None
        if self._child is not None:
            self._child.stop()

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> ChildProcess | None:
        """Start the command below a new subreaper process, and return that process; None if it cannot be started."""
        trouble, writer = os.pipe2(os.O_CLOEXEC)
        program = (*PYTHON, "-m", "gpumon.supervisor.subreaper", str(os.getpid()), str(writer), *command)
        child = ChildCommand(
            name="scheduler gate",
            arguments=program,
            environment={**os.environ, **environment, **marked_environment()},
            descriptors=(writer,),
            outputs={trouble: self._take_trouble},
            on_output=self._take_output,
            on_error_output=self._take_output,
            on_exit=self._on_exit,
            on_deadline=self._on_timeout,
            deadline=self._seconds,
            ask=ChildProcess.close_input,  # the subreaper then ends every process of the command
            grace=END_SECONDS,
        )
        try:
            return ChildProcess(self._loop, child)
        except OSError as error:
            self._trouble = (error.strerror or str(error)).encode()
            os.close(trouble)
            return None
        finally:
            os.close(writer)

    def _take_trouble(self, why: bytes) -> None:
        self._trouble += why

    def _take_output(self, output: bytes) -> None:
        self._output = (self._output + output)[-TAIL:]

    def _on_exit(self, code: int) -> None:
        if self._trouble:
            why = self._trouble.decode(errors="replace")
            remedy = "Set it to a program that the agent's user may run."
            hint = f"probe.scheduler_gate: {self._name} cannot be run: {why}. {remedy}"
            self._answer(Skip(reason="scheduler_gate_failed", hint=hint))
        else:
            self._answer(None if code == 0 else self._refusal(code))

    def _refusal(self, code: int) -> Skip:
        lines = [line for line in self._output.decode(errors="replace").splitlines() if line.strip()]
        words = "".join(each if each.isprintable() else " " for each in lines[-1].strip()[:LINE]) if lines else ""
        if code == NO:
            return Skip(reason="busy", hint=f"{REFUSED} (probe.scheduler_gate): {words or 'no output'}")
        how = f"code {code}" if code > 0 else f"signal {-code}"
        hint = f"probe.scheduler_gate: {self._name} ended with {how}, which means neither yes (0) nor no ({NO}): "
        return Skip(reason="scheduler_gate_failed", hint=hint + (words or "no output"))

    def _on_timeout(self) -> None:
        hint = (
            f"probe.scheduler_gate: {self._name} did not answer within {self._seconds:g} s. Find out why, or "
            "raise probe.scheduler_gate_timeout_seconds."
        )
        self._answer(Skip(reason="scheduler_gate_failed", hint=hint))

    def _answer(self, skip: Skip | None) -> None:
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            on_answer(skip)
