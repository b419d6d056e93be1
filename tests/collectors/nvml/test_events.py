"""The event set: what is asked for, what is told, and what a driver that answers nonsense costs."""

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
from polled import Poll, polled

DATA = struct.Struct("<QQQII")  # nvmlEventData_t: device, type, datum, GPU instance, compute instance
XID, CLOCK, MIG, UNAVAILABLE, RECOVERY = 0x8, 0x10, 0x100, 0x4000, 0x8000
ALL_ONES = 0xFFFFFFFF
NO_PERMISSION, TIMEOUT, UNKNOWN = 4, 10, 999


def answers(*events: tuple[int, ...], then: int = TIMEOUT) -> Callable[..., int]:
    """A wait that gives these events in turn, and then this code for ever."""
    left = list(events)

    def wait(_set: int, out: int, _milliseconds: int) -> int:
        if not left:
            return then
        ctypes.memmove(out, DATA.pack(*left.pop(0)), DATA.size)
        return 0

    return wait


def address(poll: Poll, index: int) -> int:
    """The handle of a GPU, as the driver writes it into an event."""
    bus_id = sorted(poll.simulation.node.pci_functions())[index].encode()
    return ctypes.cast(pynvml.nvmlDeviceGetHandleByPciBusId(bus_id), ctypes.c_void_p).value or 0


@pytest.mark.parametrize(("profile", "asked"), [("h100x8", XID | MIG), ("t4x1", XID)])
def test_only_what_a_gpu_supports_is_asked_for(profile: str, asked: int) -> None:
    """One unsupported type, and the driver registers none at all."""
    registered: list[int] = []

    def register(_handle: int, types: int, _set: int) -> int:
        registered.append(types)
        return 0

    with polled(profile) as poll, overlaid({"nvmlDeviceRegisterEvents": register}):
        poll.poll()

    assert set(registered) == {asked}


def test_xids_are_told_where_the_rest_is_refused() -> None:
    """Some events may be for root alone; Xids are asked for by themselves then."""
    registered: list[int] = []

    def register(_handle: int, types: int, _set: int) -> int:
        registered.append(types)
        return 0 if types == XID else NO_PERMISSION

    with polled("h100x1") as poll, overlaid({"nvmlDeviceRegisterEvents": register}):
        poll.poll()

    assert registered == [XID | MIG, XID]


def test_an_xid_tells_its_instance_where_the_driver_knows_it() -> None:
    """All ones stand for "cannot tell"."""
    with polled() as poll:
        poll.poll()
        gpu = address(poll, 3)
        with overlaid({"nvmlEventSetWait_v2": answers((gpu, XID, 31, 2, 1), (gpu, XID, 79, ALL_ONES, ALL_ONES))}):
            told = poll.node.events.take()

    assert [(one.xid, one.gpu_instance_id, one.compute_instance_id) for one in told] == [(31, 2, 1), (79, None, None)]


@pytest.mark.parametrize("kind", [MIG, UNAVAILABLE, RECOVERY])
def test_what_is_announced_is_read_at_once(tmp_path: Path, kind: int) -> None:
    """The GPU's slow readings are taken with the next poll, those of its neighbours when they are due."""
    with polled(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit('gpus: {"*": {set: {pcie_width: 4}}}')
        with overlaid({"nvmlEventSetWait_v2": answers((address(poll, 3), kind, 0, ALL_ONES, ALL_ONES))}):
            told = poll.node.events.take()
        gpus = [seen.gpu for seen in poll.poll().gpus]

    assert told == []
    assert [gpu and gpu.pcie_link_width for gpu in gpus] == [16, 16, 16, 4, 16, 16, 16, 16]


def calls_of(poll: Poll, wait: Callable[..., int], looks: int) -> Counter[str]:
    """How often a wait is called in so many looks."""
    counted: Counter[str] = Counter()

    def counting(the_set: int, out: int, milliseconds: int) -> int:
        counted["wait"] += 1
        return wait(the_set, out, milliseconds)

    with overlaid({"nvmlEventSetWait_v2": counting}):
        for _ in range(looks):
            poll.node.events.take()
    return counted


@pytest.mark.parametrize("kind", [XID, MIG, CLOCK])
def test_a_storm_costs_a_bounded_number_of_calls(kind: int) -> None:
    """A driver that has another event at every call does not keep the readings waiting."""
    with polled() as poll:
        poll.poll()
        event: tuple[Any, ...] = (address(poll, 3), kind, 0, 0, 0)

        def storm(_set: int, out: int, _milliseconds: int) -> int:
            ctypes.memmove(out, DATA.pack(*event), DATA.size)
            return 0

        assert calls_of(poll, storm, looks=2) == {"wait": 128}


def test_a_wait_that_fails_is_not_asked_again_at_once() -> None:
    """Any error but a timeout comes back at once, every time: without a pause that would spin."""
    with polled() as poll:
        poll.poll()

        assert calls_of(poll, answers(then=UNKNOWN), looks=50) == {"wait": 1}
