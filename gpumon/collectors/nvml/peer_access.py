"""Whether each two GPUs of the host reach each other's memory, as the driver says: asked when somebody watches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from gpumon.clock import boot_clock
from gpumon.collectors.nvml.device import Device
from gpumon.collectors.nvml.library import NvmlError

CAPABILITIES = {"read": 0, "write": 1, "nvlink": 2, "atomics": 3}
"""NVML's numbers: those of the bindings are wrong in part."""
STATUSES = {
    0: "ok",
    1: "chipset_not_supported",
    2: "gpu_not_supported",
    3: "topology_not_supported",
    4: "disabled_by_regkey",
    5: "not_supported",
}
TURN_SECONDS = 0.1
"""Of each poll, at most: of many GPUs there are many pairs, and of a slow driver each question takes its time."""

Access = dict[str, dict[str, str]]
"""Of one GPU, by UUID of the other and capability."""


class PeerAccess:
    """The matrix, read in turns."""

    def __init__(self) -> None:
        self._found: dict[str, Access] = {}
        self._steps: Iterator[None] = iter(())

    def begin(self, devices: Mapping[str, Device]) -> None:
        """Ask anew, of these, by UUID."""
        self._found = {uuid: {} for uuid in devices}
        self._steps = self._read(list(devices.items()))

    def take(self) -> Mapping[str, Access]:
        """A turn. Once all is asked, what was answered, by UUID; until then, and from then on, nothing."""
        until = boot_clock() + TURN_SECONDS
        for _ in self._steps:
            if boot_clock() > until:
                return {}
        found, self._found = self._found, {}
        return found

    def _read(self, devices: Sequence[tuple[str, Device]]) -> Iterator[None]:
        for (uuid, device), (other_uuid, other) in combinations(devices, 2):
            told: dict[str, str] = {}
            for capability, number in CAPABILITIES.items():
                status = _status(device, other, number)
                if status is not None:
                    told[capability] = status
                yield
            if told:
                self._found[uuid][other_uuid] = self._found[other_uuid][uuid] = told


def _status(device: Device, other: Device, number: int) -> str | None:
    """A GPU that does not answer at all is found out when it is read itself."""
    asked = "nvmlDeviceGetP2PStatus", device.handle, other.handle, number
    try:
        return STATUSES.get(device.library.call(*asked, bus_id=device.bus_id))
    except NvmlError:
        return None
