"""SMTP clients that limit the answers of a server. Those of smtplib keep an answer in memory however long it is."""

from __future__ import annotations

import io
import smtplib
from typing import Any

MAX_LINES = 1000
"""Maximum number of lines that a server may send before or after STARTTLS. A line has at most 8 KiB."""


class _LimitedLines(io.BufferedReader):
    _left = MAX_LINES

    def readline(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise OSError(f"the mail server sent more than {MAX_LINES} lines")
        return super().readline(size)


class LimitedSmtp(smtplib.SMTP):
    """Client without TLS, or with STARTTLS. It disconnects from a server that sends more than MAX_LINES."""

    sock: Any
    file: Any

    def getreply(self) -> tuple[int, bytes]:
        if self.file is None:
            self.file = _LimitedLines(self.sock.makefile("rb", buffering=0))
        return super().getreply()


class LimitedSmtpTls(LimitedSmtp, smtplib.SMTP_SSL):
    """Client with TLS from the start, and the same limit."""
