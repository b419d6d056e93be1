"""Become a program whose file system may not answer, in a process that the agent can already kill.

`python -I -S shim.py AGENT DESCRIPTOR PROGRAM ARGUMENTS...`: starting a program waits until its file is opened, which
never ends if the server of its file system is gone. The agent starts this script from its own disk, and only the script
waits. Process, descriptors, environment and parent become the program's. If the program cannot be run, the reason is
written to DESCRIPTOR as a frame of a rank. The script imports next to nothing, because each rank begins with it.
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
    """Run the program. Return only if it cannot be run."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # inherited by the program
    if os.getppid() != agent:  # the agent ended before PDEATHSIG was set
        return NOT_RUN
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python; the program expects the default
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
