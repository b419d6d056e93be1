"""Read from the driver, on request only, whether the two GPUs of each pair can access each other's memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import Device
from gpumon.collectors.nvml.library import NvmlError

CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
"""NVML's number of each peer-to-peer capability. Some of pynvml's constants for them are wrong."""
STATUSES = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
}
TURN_SECONDS = 0.1
"""Seconds per poll for reading peer access. With many GPUs, reading all pairs takes longer than a poll may."""

Access = dict[str, dict[str, str]]
"""NVML's peer access status of one GPU, by UUID of the other GPU and by capability."""


class PeerAccess:
    """Reads the peer access of all pairs of GPUs, some pairs at each poll."""

    def __init__(self) -> None:
        self._access: dict[str, Access] = {}
        self._steps: Iterator[None] = iter(())

    def begin(self, devices: Mapping[str, Device]) -> None:
        """Begin a new reading of all pairs of these GPUs, which calls of `take` carry out. `devices` is by UUID."""
        self._access = {uuid: {} for uuid in devices}
        self._steps = self._read(list(devices.items()))

    def take(self) -> Mapping[str, Access]:
        """Continue reading for about TURN_SECONDS.

        The call that completes the reading returns the peer access of all GPUs, by UUID. Other calls return an empty
        mapping.
        """
        until = boot_clock() + TURN_SECONDS
        for _ in self._steps:
            if boot_clock() > until:
                return {}
        access, self._access = self._access, {}
        return access

    def _read(self, devices: Sequence[tuple[str, Device]]) -> Iterator[None]:
        for (uuid, device), (other_uuid, other) in combinations(devices, 2):
            access: dict[str, str] = {}
            for capability, number in CAPABILITIES.items():
                status = _status(device, other, number)
                if status is not None:
                    access[capability] = status
                yield
            if access:
                self._access[uuid][other_uuid] = self._access[other_uuid][uuid] = access


def _status(device: Device, other: Device, number: int) -> str | None:
    """Return the peer access status of two GPUs for the capability with this number; None if unknown."""
    arguments = "nvmlDeviceGetP2PStatus", device.handle, other.handle, number
    try:
        return STATUSES.get(device.library.call(*arguments, bus_id=device.bus_id))
    except NvmlError:
        return None
