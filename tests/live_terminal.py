"""Runs a command with a live view in a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios

from gpumon.cli.live_view import LEAVE


class Terminal:
    """A command in a terminal of its own."""

    def __init__(self, *command: str) -> None:
        self._fd, self.keyboard = pty.openpty()
        self.before = termios.tcgetattr(self.keyboard)
        self._process = subprocess.Popen(
            command, stdin=self.keyboard, stdout=self.keyboard, stderr=self.keyboard, start_new_session=True
        )
        self.shown = ""

    def wait_for(self, text: str, times: int = 1) -> None:
        """Read until the command has shown this text so often. Fail after 30 s without output."""
        while self.shown.count(text) < times:
            ready, _, _ = select.select([self._fd], [], [], 30)
            assert ready, self.shown
            self.shown += os.read(self._fd, 65536).decode()

    def press(self, key: str) -> int:
        """Press a key and return the exit code."""
        os.write(self._fd, key.encode())
        self.wait_for(LEAVE)
        return self._process.wait(30)
