"""List GPUs by the driver's index, in a container, a sandbox or WSL whose sysfs shows no NVIDIA GPU."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from gpumon.collectors.nvml.library import Library, NvmlError
from gpumon.model.orders import INDEX_PREFIX

log = logging.getLogger("gpumon.collectors.nvml")


class DriverList:
    """Bus ids of the GPUs that the driver has listed. A GPU stays in the list after it has failed.

    `bus_ids`: bus ids that earlier child processes listed. They are in the list without a driver call, because a call
    for a GPU that hangs does not return. A name such as "index 4" among them is the index of a GPU whose lookup hung;
    that index is not looked up.
    """

    def __init__(self, library: Library, bus_ids: Iterable[str]) -> None:
        self._library = library
        names = set(bus_ids)
        self._hanging = {name for name in names if name.startswith(INDEX_PREFIX)}
        self._drivers = dict.fromkeys(names - self._hanging, "nvidia")

    def read(self) -> Mapping[str, str]:
        """Return the driver of each listed GPU, which is "nvidia", by bus id.

        If the driver counts more GPUs than those listed and those whose lookup hung, first look up every index whose
        lookup has not hung.
        """
        try:
            count = int(self._library.call("nvmlDeviceGetCount"))
        except NvmlError:  # not initialised, or the driver is gone
            return self._drivers
        if count > len(self._drivers) + len(self._hanging):
            for index in range(count):
                if f"{INDEX_PREFIX}{index}" not in self._hanging:
                    self.look_up(index)
        return self._drivers

    def look_up(self, index: int) -> None:
        """Add the bus id of the GPU with this index. If the lookup fails, log it and add nothing."""
        name = f"{INDEX_PREFIX}{index}"
        try:
            handle = self._library.call("nvmlDeviceGetHandleByIndex", index, bus_id=name)
            bus_id = self._library.call("nvmlDeviceGetPciInfo", handle, bus_id=name).busId
        except NvmlError as error:
            log.debug("a GPU cannot be listed", extra={"index": index, "error": error.name})
            return
        self._drivers[bus_id.decode() if isinstance(bus_id, bytes) else bus_id] = "nvidia"
