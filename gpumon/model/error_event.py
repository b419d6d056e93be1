"""Errors of GPUs and NVSwitches: one sighting in one source, and the burst that sightings of both sources make."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

XID, SXID, OVERRUN, AER, NIC = "xid", "sxid", "overrun", "aer", "nic"
MAX_TEXTS = 3
"""Different lines that are kept of one error, beside the newest."""
KINDS = (XID, SXID, OVERRUN, AER, NIC)
"""Of a GPU; of an NVSwitch; records of the kernel log that were lost, and Xids perhaps with them; of a PCIe device, by
the kernel's Advanced Error Reporting; of a network adapter, by its driver."""
NVML, KMSG = "nvml", "kmsg"
SOURCES = (NVML, KMSG)

UNNAMED = "pci-"
"""Prefix of the stand-in for the uuid of a GPU that has never reported its own; its bus id follows, in lower case."""
AER_FATAL = 1
"""The kernel's number for PCIe errors that are neither corrected nor survived."""
FALLEN_OFF = 79
"""The Xid of a GPU that has fallen off the bus."""
FIRMWARE_SILENT = frozenset({119, 120})
"""Xids after which the GPU's own processor answers no more: the next call on it may hang."""
CANCELLED_BY = {163: 162}
"""Xid -> the one that says of the same GPU that it is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorObservation:
    """What one source said, `times` times over."""

    kind: str
    code: int
    """Of an overrun: 0."""
    bus_id: str
    """A GPU's as NVML writes it, an NVSwitch's as the kernel does, "" for an overrun."""
    at: float
    """Boot clock, of the last time."""
    since: float
    """Boot clock, of the first time."""
    wall: float
    """Seconds since the epoch, of the last time."""
    source: str
    times: int = 1
    text: str = ""
    """The kernel's words, of the last time; names no process."""
    texts: tuple[str, ...] = ()
    """Different words of the times before it, the first ones."""
    numbered: bool = True
    """False: the kernel said in words alone that the GPU fell off the bus, and may say it with its number too."""
    uuid: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    fatal: bool | None = None
    """Of an NVSwitch, where the line says it."""
    historical: bool = False
    """It stood in the kernel log before the agent was ever installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """One error of one device, for as long as it recurs without a pause of three minutes.

    Both sources report the same errors, so each is counted separately and the higher count is right.
    """

    id: str
    kind: str
    code: int
    bus_id: str
    uuid: str | None
    boot_id: str
    first_at: float
    last_at: float
    """Boot clock of that boot."""
    first_wall: float
    last_wall: float
    nvml: int = 0
    """Events of NVML."""
    kmsg: int = 0
    """Lines of the kernel log."""
    unnumbered: bool = False
    """Whether it came from a line without a number."""
    texts: tuple[str, ...] = ()
    """The first of the different lines."""
    text: str = ""
    """The newest line."""
    fatal: bool | None = None
    historical: bool = False
    """It is on record, and neither counted nor news."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    cancelled_wall: float | None = None
    """When another Xid said that it is over: not stored, but derived from the other's time."""

    @property
    def count(self) -> int:
        return max(self.nvml, self.kmsg, int(self.unnumbered))

    @property
    def device(self) -> str:
        """The name under which it is counted: a GPU's uuid or its stand-in, an NVSwitch's PCI address."""
        return self.uuid or f"{UNNAMED}{self.bus_id.lower()}" if self.kind == XID else self.bus_id

    @property
    def sources(self) -> tuple[str, ...]:
        heard = {NVML: self.nvml, KMSG: self.kmsg or self.unnumbered}
        return tuple(source for source in SOURCES if heard[source])


def common(instances: Iterable[int | None]) -> int | None:
    """Return the MIG instance if all observations with an instance agree; None for several: an error of the GPU."""
    named = set(instances) - {None}
    return named.pop() if len(named) == 1 else None


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """A burst as it is now, and by how much more than before it counts."""

    event: ErrorEvent
    gained: int


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position up to which the kernel log has been reported."""

    boot_id: str
    sequence: int
