"""Calls a reader of the host child at chosen times, and snapshots with its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar, cast

from gpumon.collectors.host.reader import Files, ReadErrors, ReadFunction, Trees, Turn
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders
from gpumon.model.reading import SLOW
from gpumon.model.snapshot import (
    HostSnapshot,
    PortReading,
    PortReadings,
    ProcessReadings,
    SchedulerReadings,
    ServiceReadings,
    StuckProcess,
)

ValueT = TypeVar("ValueT", bound=Frame)


class Turns(Generic[ValueT]):
    """Calls a reader, by default after 15 s, in which every counter is due."""

    def __init__(
        self,
        read: ReadFunction,
        sysfs: Files,
        root: Files | None = None,
        orders: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.at = 1000.0
        self.errors = ReadErrors()
        self._read = read
        self._trees = Trees(sysfs, root or sysfs, root or sysfs)
        self._orders = HostOrders(**orders or {})  # type: ignore[arg-type]

    def poll(self, after: float = SLOW.value) -> ValueT:
        self.at += after
        turn = Turn("reader", self._trees, self._orders, self.at)
        self.errors = turn.errors
        return cast("ValueT", self._read(turn))


def host_snapshot(
    at: float = 0.0,
    *,
    ports: tuple[PortReading, ...] = (),
    left_out: int = 0,
    services: dict[str, bool] | None = None,
    ended: tuple[str, ...] = (),
    stuck: tuple[StuckProcess, ...] | None = None,
    contained: bool | None = None,
    fabric_manager: bool | None = None,
    schedulers: tuple[str, ...] | None = None,
    errors: dict[str, str] | None = None,
    denied: tuple[str, ...] = (),
) -> HostSnapshot:
    """Return a snapshot in which each reader had its turn."""
    values = {
        "infiniband": PortReadings(ports=ports, left_out=left_out),
        "services": ServiceReadings(running=services or {}, ended=ended),
        "processes": ProcessReadings(stuck=stuck, contained=contained, fabric_manager=fabric_manager),
        "schedulers": SchedulerReadings(names=schedulers),
    }
    return HostSnapshot(ended_at=at, values=values, errors=errors or {}, denied=denied)
