"""Becomes a program that may lie where nobody answers, in a process that the agent can already see and kill.

`python -I -S shim.py AGENT DESCRIPTOR PROGRAM ARGUMENTS...`: who starts a program waits until its file was opened; on
a file system whose server is gone, for ever. So the agent starts this, from its own disk, and only this waits. Process,
descriptors, environment and parent become the program's as they are. Why it cannot be run is written to DESCRIPTOR, as
a frame of a rank. It is a script that imports next to nothing, since each rank begins with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_RUN = 127
"""Exit status, as of a shell."""


def main(agent: int, descriptor: int, command: list[str]) -> int:
    """Returns only where there is no such program."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # is the program's too
    if os.getppid() != agent:  # it went before we were tied
        return NOT_RUN
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python, for which the program need not be made
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        import json  # noqa: PLC0415 - only now there is time for it

        os.write(
            descriptor, json.dumps({"error": f"it cannot be run: {error.strerror}: {command[0]!r}"}).encode() + b"\n"
        )
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
