"""Run an operator's command so that no process that it starts outlives the command, its time limit, or the agent.

`python -m gpumon.supervisor.subreaper AGENT DESCRIPTOR COMMAND...` ends when the command ends, when standard input
closes, on SIGTERM, or when the process with the id AGENT ends. If the command cannot be executed, the reason is written
to DESCRIPTOR. Background processes of the command become children of this process, even if they changed their group or
session, and are killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from gpumon.supervisor.exec_shim import PR_SET_PDEATHSIG
from gpumon.supervisor.process_tree import become_subreaper, descendants

PATIENCE = 2.0
"""Maximum seconds to wait for processes after SIGKILL. One that remains is blocked, or belongs to another user."""
POLL_INTERVAL = 0.02


def main(arguments: Sequence[str]) -> int:
    """Run the command in `arguments` (AGENT, DESCRIPTOR, COMMAND...), kill what it leaves, return its exit status.

    Return 1 if it cannot be executed or the agent has ended. If a signal ended the command, end by the same signal.
    """
    agent, trouble, *command = arguments
    woken = _wake_on_signals()
    libc = ctypes.CDLL(None)
    become_subreaper()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(agent):  # the agent ended before PDEATHSIG was set
        return 1
    own = os.getpid()

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != own:
            os._exit(1)

    try:
        # preexec_fn is safe without threads, and another program can be tied to its parent only between fork and exec
        started = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=tie)  # noqa: PLW1509
    except OSError as error:
        os.write(int(trouble), (error.strerror or str(error)).encode())
        return 1
    status = _wait(started.pid, woken)
    started.returncode = 0  # reaped here, not by subprocess
    _end_descendants(woken)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:  # end by the same signal, without a core dump
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # no handler can be set for SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(own, -code)
    return code if code >= 0 else 128 - code


def _wake_on_signals() -> int:
    """Return a file descriptor from which the numbers of received signals (SIGCHLD, SIGTERM) can be read."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    return woken


def _wait(command: int, woken: int) -> int:
    """Wait until the process `command` ends and return its wait status. `woken` is the result of `_wake_on_signals`.

    If SIGTERM arrives or standard input closes first, return the wait status of a process that ended by SIGKILL.
    """
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        signals = os.read(woken, 4096) if woken in ready else b""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == command:
                    return ended[1]
        if signal.SIGTERM in signals or (0 in ready and not os.read(0, 4096)):
            return signal.SIGKILL


def _end_descendants(woken: int) -> None:
    """Kill all descendants until none is left, at most for PATIENCE seconds. A signal in `woken` shortens the pauses.

    A descendant that loses its parent meanwhile becomes a child of this process.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        if select.select([woken], [], [], POLL_INTERVAL)[0]:
            os.read(woken, 4096)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
