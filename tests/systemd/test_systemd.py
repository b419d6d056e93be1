"""What is said to systemd arrives at its socket as it wants to hear it."""

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
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A socket as systemd's, and its address as systemd names it."""
    name = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name if request.param == "path" else "\0" + name)
        receiver.settimeout(60)
        yield receiver, name if request.param == "path" else "@" + name


def test_assignments_arrive_in_one_datagram(listening: tuple[socket.socket, str]) -> None:
    """Each line is one assignment, over a socket in the file system and over an abstract one."""
    receiver, address = listening

    assert systemd.notify("READY=1", "STATUS=8 GPUs", environ={"NOTIFY_SOCKET": address})

    assert receiver.recv(1000) == b"READY=1\nSTATUS=8 GPUs"


def test_reloading_carries_the_time(listening: tuple[socket.socket, str]) -> None:
    """Type=notify-reload asks for the monotonic time at which the reload began."""
    receiver, address = listening
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000

    assert systemd.notify_reloading({"NOTIFY_SOCKET": address})

    told = re.fullmatch(rb"RELOADING=1\nMONOTONIC_USEC=(\d+)", receiver.recv(1000))
    assert told is not None
    assert before <= int(told[1]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000


def test_a_full_socket_does_not_block(listening: tuple[socket.socket, str]) -> None:
    """When systemd does not read, telling it fails instead of waiting."""
    _, address = listening
    told = [systemd.notify("WATCHDOG=1", environ={"NOTIFY_SOCKET": address}) for _ in range(2000)]

    assert told[0]
    assert not told[-1]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": "/nowhere/notify"}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_systemd_nothing_happens(environ: dict[str, str]) -> None:
    """No socket, one that is gone and one of a kind that is not spoken are no errors."""
    assert not systemd.notify("READY=1", environ=environ)


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
def test_watchdog_is_fed_only_when_it_waits_for_us(environ: dict[str, str], seconds: float | None) -> None:
    """The interval is systemd's own, and only for the process that it means."""
    assert systemd.watchdog_interval(environ) == seconds
