"""Messages to the notification socket of systemd."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from each_case import each_case

from gpumon import systemd


@pytest.fixture(params=["path", "abstract"])
def notify_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """Yield a datagram socket and its address in systemd's notation."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name if request.param == "path" else "\0" + name)
        receiver.settimeout(60)
        yield receiver, name if request.param == "path" else "@" + name


def test_assignments_arrive_in_one_datagram(notify_socket: tuple[socket.socket, str]) -> None:
    receiver, address = notify_socket

    assert systemd.notify("READY=1", "STATUS=8 GPUs", environ={"NOTIFY_SOCKET": address})

    assert receiver.recv(1000) == b"READY=1\nSTATUS=8 GPUs"


def test_a_reload_message_has_the_monotonic_time(notify_socket: tuple[socket.socket, str]) -> None:
    receiver, address = notify_socket
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    assert systemd.notify_reloading({"NOTIFY_SOCKET": address})

    message = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)", receiver.recv(1000))
    assert message is not None
    assert before <= int(message[1]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_a_full_socket_does_not_block(notify_socket: tuple[socket.socket, str]) -> None:
    _, address = notify_socket
    sent = [systemd.notify("WATCHDOG=1", environ={"NOTIFY_SOCKET": address}) for _ in range(2000)]

    assert sent[0]
    assert not sent[-1]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/notify"}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_systemd_nothing_happens(environ: dict[str, str]) -> None:
    """A missing, deleted or unsupported socket is not an error."""
    assert not systemd.notify("READY=1", environ=environ)


@each_case("count", ["many", "-1", "", "1.5"])
def test_an_invalid_number_of_sockets_is_ignored(count: str) -> None:
    """The agent then opens its own socket, as without socket activation."""
    assert systemd.listening_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": count}) == []


@each_case(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_interval_applies_only_to_its_process(environ: dict[str, str], seconds: float | None) -> None:
    """The watchdog interval is that of systemd, and None for another process or an invalid value."""
    assert systemd.watchdog_interval(environ) == seconds
