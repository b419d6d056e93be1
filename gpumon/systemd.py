"""Notifications to systemd (sd_notify), its watchdog, and socket activation.

If the process was not started by systemd, the functions have no effect and return False, None or an empty list.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

_FIRST = 3
"""Number of the first file descriptor that systemd passes (SD_LISTEN_FDS_START)."""


def notify(*lines: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Send assignments such as "READY=1" to systemd without blocking. Return True if systemd was reached."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    if address.startswith("@"):  # the abstract namespace
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(lines).encode(), address)
    except OSError:
        return False
    return True


def notify_reloading(environ: Mapping[str, str] = os.environ) -> bool:
    """Notify systemd that a reload has begun. READY=1 ends the reload. Return True if systemd was reached."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    return notify("RELOADING=1", f"MONOTONIC_USEC={now}", environ=environ)


def listening_sockets(environ: Mapping[str, str] = os.environ) -> list[socket.socket]:
    """Return the listening sockets that systemd passed (sd_listen_fds); empty without socket activation.

    Child processes do not inherit the sockets.
    """
    count, process = environ.get("LISTEN_FDS", ""), environ.get("LISTEN_PID")
    if not count.isdecimal() or process != str(os.getpid()):
        return []
    sockets = [socket.socket(fileno=_FIRST + number) for number in range(int(count))]
    for held in sockets:
        held.set_inheritable(False)
    return sockets


def watchdog_interval(environ: Mapping[str, str] = os.environ) -> float | None:
    """Return the maximum seconds between two WATCHDOG=1 notifications; None if systemd's watchdog is off."""
    microseconds, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdecimal() or int(microseconds) == 0 or process not in ("", str(os.getpid())):
        return None
    return int(microseconds) / 1e6
