"""Errors of GPUs, NVSwitches and PCIe devices: observations of one source, and the burst that they are counted as."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

XID, SXID, OVERRUN, AER, NIC = "xid", "sxid", "overrun", "aer", "nic"
MAX_TEXTS = 3
"""Maximum number of different lines to keep of one error, besides the newest."""
KINDS = (XID, SXID, OVERRUN, AER, NIC)
"""xid: of a GPU. sxid: of an NVSwitch. overrun: lost records of the kernel log, possibly with Xids. aer: of a PCIe
device, from the kernel's Advanced Error Reporting. nic: of a network adapter, from its driver."""
NVML, KMSG = "nvml", "kmsg"
SOURCES = (NVML, KMSG)

UNNAMED = "pci-"
"""Prefix of the substitute for the uuid of a GPU that has never reported one. The bus id in lower case follows."""
AER_FATAL = 1
"""The kernel's number for fatal PCIe errors."""
FALLEN_OFF = 79
"""The Xid of a GPU that has fallen off the bus."""
FIRMWARE_SILENT = frozenset({119, 120})
"""Xids after which the GPU's system processor (GSP) no longer answers. The next driver call on the GPU may hang."""
CANCELLED_BY = {163: 162}
"""Xid that ends another Xid of the same GPU, by the code of the latter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorObservation:
    """An error that one source reported `times` times."""

    kind: str
    code: int
    """Xid or SXid; 0 for an overrun."""
    bus_id: str
    """PCI address: of a GPU in NVML's format, of an NVSwitch in the kernel's, "" for an overrun."""
    at: float
    """Boot clock of the last occurrence."""
    since: float
    """Boot clock of the first occurrence."""
    wall: float
    """Wall time of the last occurrence."""
    source: str
    times: int = 1
    text: str = ""
    """The kernel's latest message, without process names."""
    texts: tuple[str, ...] = ()
    """The first different messages before it."""
    numbered: bool = True
    """False if the kernel reported that the GPU fell off the bus without an Xid. A line with the Xid may follow."""
    uuid: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    fatal: bool | None = None
    """Whether the error of an NVSwitch is fatal; None if the line does not contain it."""
    historical: bool = False
    """True if the record is older than the installation of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """A burst: one error of one device, until it has not recurred for three minutes.

    Both sources report the same errors, so each is counted separately and the higher count is used.
    """

    id: str
    kind: str
    code: int
    bus_id: str
    uuid: str | None
    boot_id: str
    first_at: float
    last_at: float
    """Boot clock of the boot `boot_id`."""
    first_wall: float
    last_wall: float
    nvml: int = 0
    """Number of NVML events."""
    kmsg: int = 0
    """Number of lines in the kernel log."""
    unnumbered: bool = False
    """Whether a line without an Xid reported the error."""
    texts: tuple[str, ...] = ()
    """The first of the different lines."""
    text: str = ""
    """The newest line."""
    fatal: bool | None = None
    historical: bool = False
    """True if the event is listed but not counted and raises no alert."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    cancelled_wall: float | None = None
    """Wall time of the Xid that ended this one. Derived, not stored."""

    @property
    def count(self) -> int:
        return max(self.nvml, self.kmsg, int(self.unnumbered))

    @property
    def device(self) -> str:
        """Return the label of its counter: the uuid of a GPU or its substitute, or the PCI address of an NVSwitch."""
        return self.uuid or f"{UNNAMED}{self.bus_id.lower()}" if self.kind == XID else self.bus_id

    @property
    def sources(self) -> tuple[str, ...]:
        counts = {NVML: self.nvml, KMSG: self.kmsg or self.unnumbered}
        return tuple(source for source in SOURCES if counts[source])


def common(instances: Iterable[int | None]) -> int | None:
    """Return the MIG instance if all observations with an instance agree; None for several: an error of the GPU."""
    named = set(instances) - {None}
    return named.pop() if len(named) == 1 else None


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """The new state of a burst, and the increase of its count."""

    event: ErrorEvent
    gained: int


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position up to which the kernel log has been reported."""

    boot_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounter:
    """Number of errors of one device and code since the store was created."""

    kind: str
    device: str
    """As ErrorEvent.device names it."""
    code: int
    count: int
    last_wall: float
    """Seconds since the epoch."""
