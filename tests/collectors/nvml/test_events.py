"""The event set: registered types, delivered events, and the cost of invalid answers of a driver."""

from __future__ import annotations

import ctypes
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from overlay import overlaid
from polled import Poll, open_poll

DATA = struct.Struct("<QQQII")  # nvmlEventData_t: device, type, datum, GPU instance, compute instance
XID, CLOCK, MIG, UNAVAILABLE, RECOVERY = 0x8, 0x10, 0x100, 0x4000, 0x8000
ALL_ONES = 0xFFFFFFFF
NO_PERMISSION, TIMEOUT, UNKNOWN = 4, 10, 999


def answers(*events: tuple[int, ...], then: int = TIMEOUT) -> Callable[..., int]:
    """Return a wait function that returns these events in turn, and then always this code."""
    left = list(events)

    def wait(_set: int, out: int, _milliseconds: int) -> int:
        if not left:
            return then
        ctypes.memmove(out, DATA.pack(*left.pop(0)), DATA.size)
        return 0

    return wait


def address(poll: Poll, index: int) -> int:
    """Return the handle of a GPU, as the driver writes it into an event."""
    bus_id = sorted(poll.simulation.node.pci_functions())[index].encode()
    return ctypes.cast(pynvml.nvmlDeviceGetHandleByPciBusId(bus_id), ctypes.c_void_p).value or 0


@pytest.mark.parametrize(("profile", "asked"), [("h100x8", XID | MIG | UNAVAILABLE | RECOVERY), ("t4x1", XID)])
def test_only_supported_event_types_are_registered(profile: str, asked: int) -> None:
    """Only supported types are registered, because one unsupported type makes the driver register none."""
    registered: list[int] = []

    def register(_handle: int, types: int, _set: int) -> int:
        registered.append(types)
        return 0

    with open_poll(profile) as poll, overlaid({"nvmlDeviceRegisterEvents": register}):
        poll.poll()

    assert set(registered) == {asked}


def test_xids_are_registered_alone_if_other_events_are_denied() -> None:
    registered: list[int] = []

    def register(_handle: int, types: int, _set: int) -> int:
        registered.append(types)
        return 0 if types == XID else NO_PERMISSION

    with open_poll("h100x1") as poll, overlaid({"nvmlDeviceRegisterEvents": register}):
        poll.poll()

    assert registered == [XID | MIG | UNAVAILABLE | RECOVERY, XID]


def test_an_xid_has_its_instance_if_the_driver_reports_it() -> None:
    """An instance of all ones is absent."""
    with open_poll() as poll:
        poll.poll()
        gpu = address(poll, 3)
        with overlaid({"nvmlEventSetWait_v2": answers((gpu, XID, 31, 2, 1), (gpu, XID, 79, ALL_ONES, ALL_ONES))}):
            events = poll.node.events.take()

    assert [(event.code, event.gpu_instance_id, event.compute_instance_id) for event in events] == [
        (31, 2, 1),
        (79, None, None),
    ]


@pytest.mark.parametrize("kind", [MIG, UNAVAILABLE, RECOVERY])
def test_a_gpu_with_an_announced_change_is_read_at_once(tmp_path: Path, kind: int) -> None:
    """The next poll reads the slow fields of the announced GPU; other GPUs keep their interval."""
    with open_poll(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit('gpus: {"*": {set: {pcie_width: 4}}}')
        with overlaid({"nvmlEventSetWait_v2": answers((address(poll, 3), kind, 0, ALL_ONES, ALL_ONES))}):
            events = poll.node.events.take()
        gpus = [reading.gpu for reading in poll.poll().gpus]

    assert events == []
    assert [gpu and gpu.pcie_link_width for gpu in gpus] == [16, 16, 16, 4, 16, 16, 16, 16]


def calls_of(poll: Poll, wait: Callable[..., int], polls: int) -> Counter[str]:
    """Return how often a wait is called in this number of polls."""
    counted: Counter[str] = Counter()

    def counting(the_set: int, out: int, milliseconds: int) -> int:
        counted["wait"] += 1
        return wait(the_set, out, milliseconds)

    with overlaid({"nvmlEventSetWait_v2": counting}):
        for _ in range(polls):
            poll.node.events.take()
    return counted


@pytest.mark.parametrize("kind", [XID, MIG, CLOCK])
def test_an_event_storm_has_a_max_number_of_calls(kind: int) -> None:
    """A driver with a new event at every call delays the poll by a limited number of calls."""
    with open_poll() as poll:
        poll.poll()
        event: tuple[Any, ...] = (address(poll, 3), kind, 0, 0, 0)

        def storm(_set: int, out: int, _milliseconds: int) -> int:
            ctypes.memmove(out, DATA.pack(*event), DATA.size)
            return 0

        assert calls_of(poll, storm, polls=2) == {"wait": 128}


def test_a_failed_wait_is_not_repeated_at_once() -> None:
    with open_poll() as poll:
        poll.poll()

        assert calls_of(poll, answers(then=UNKNOWN), polls=50) == {"wait": 1}
