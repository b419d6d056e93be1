"""Execute a program whose file system may hang, in a process that the agent has already started and can kill.

`python -I -S exec_shim.py AGENT DESCRIPTOR PROGRAM ARGUMENTS...`: AGENT is the pid of the agent. exec waits until the
program's file is opened, which takes for ever if the server of its file system is gone. The agent starts this script
from its own disk, so only the script waits. The program inherits process, descriptors, environment and parent. If it
cannot be executed, the script writes the reason to DESCRIPTOR as a JSON line, like a message from a rank of a probe.
The script imports few modules, because each rank starts with it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
NOT_RUN = 127
"""Exit status if the program cannot be executed; shells use the same status."""


def main(agent: int, descriptor: int, command: list[str]) -> int:
    """Execute `command` (program, arguments) in this process, which the kernel kills when process `agent` ends.

    Return NOT_RUN if the agent has ended. If the program cannot be executed, write the reason to `descriptor`, and
    return NOT_RUN too.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the program inherits this setting
    if os.getppid() != agent:  # the agent ended before PDEATHSIG was set
        return NOT_RUN
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python; the program expects the default
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        import json  # noqa: PLC0415 - imported only on failure, to start faster

        os.write(
            descriptor, json.dumps({"error": f"it cannot be run: {error.strerror}: {command[0]!r}"}).encode() + b"\n"
        )
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
