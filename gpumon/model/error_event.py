"""Errors of GPUs, NVSwitches, PCIe devices and network adapters: observations, and the bursts that group them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpumon.model.frame import Frame
from gpumon.model.instant import Instant

XID, SXID, OVERRUN, AER, NIC, DRIVER = "xid", "sxid", "overrun", "aer", "nic", "driver"
MAX_TEXTS = 3
"""Maximum number of different kernel messages to keep for one error, in addition to the newest message."""
KINDS = (XID, SXID, OVERRUN, AER, NIC, DRIVER)
"""Kinds of errors. xid: error of a GPU. sxid: error of an NVSwitch. overrun: records of the kernel log were lost,
possibly with Xids. aer: error of a PCIe device, from the kernel's Advanced Error Reporting or the firmware. nic: error
of a network adapter, from the adapter's driver. driver: error in a line of NVIDIA's driver that names no device.
"""
NVML, KMSG = "nvml", "kmsg"
SOURCES = (NVML, KMSG)

UNNAMED = "pci-"
"""Prefix of the substitute for the uuid of a GPU whose uuid has not been read yet. The bus id in lower case follows."""
AER_NONFATAL, AER_FATAL = 0, 1
"""Codes of aer errors, as numbered by the kernel."""
FALLEN_OFF = 79
"""The Xid of a GPU that has fallen off the bus."""
INIT_FAILED = 143
"""The Xid of a GPU that the driver could not initialise."""
FIRMWARE_SILENT = frozenset({119, 120})
"""Xids after which the GPU's system processor (GSP) no longer answers. The next driver call on the GPU may hang."""
CANCELLED_BY = {163: 162}
"""Maps an Xid to the Xid by which the driver reports, on the same GPU, that the condition has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorObservation(Frame):
    """An error that one source (NVML or the kernel log) reported `times` times for one device, or without a device."""

    kind: str
    code: int
    """Xid or SXid; AER_FATAL or AER_NONFATAL for `aer`; a key of NIC_ERRORS for `nic`, of DRIVER_ERRORS for
    `driver`; 0 for `overrun`.
    """
    bus_id: str
    """PCI address of the device: in the kernel's format for an NVSwitch, else in NVML's; "" if none is named."""
    at: float
    """Boot clock of the last occurrence in seconds."""
    since: float
    """Boot clock of the first occurrence in seconds."""
    wall: float
    """Wall time of the last occurrence."""
    source: str
    times: int = 1
    text: str = ""
    """Newest kernel message, without process names."""
    texts: tuple[str, ...] = ()
    """The first kernel messages about the error that differ from each other; at most MAX_TEXTS."""
    numbered: bool = True
    """False if the kernel message has no Xid and `code` is inferred from its text. A line with the Xid may follow."""
    uuid: str | None = None
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    fatal: bool | None = None
    """True if an error of kind sxid, aer or nic is fatal; None if that is not reported."""
    historical: bool = False
    """True if the kernel log record is from before the first start of the agent on this host."""
    pid: int | None = None
    """Id of the process that the kernel log names; None if none is named. It is neither stored nor exported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """A burst of one error of one device. The burst ends when the error has not recurred for three minutes.

    NVML and the kernel log report the same errors. Therefore the agent counts the reports of each source separately,
    and `count` is the higher number, at least 1.
    """

    id: str
    kind: str
    code: int
    bus_id: str
    uuid: str | None
    first: Instant
    last: Instant
    """Time of the last occurrence. `first` and `last` are in the same boot."""
    nvml: int = 0
    """Number of times that NVML reported the error."""
    kmsg: int = 0
    """Number of lines about the error in the kernel log. A line without an Xid does not count (see `unnumbered`)."""
    unnumbered: bool = False
    """True if the kernel log has a line about this error that names no Xid."""
    texts: tuple[str, ...] = ()
    """The first kernel messages about the error that differ from each other; at most MAX_TEXTS."""
    text: str = ""
    """The newest kernel message."""
    fatal: bool | None = None
    historical: bool = False
    """True if the error is from before the agent's first start on this host: it is not counted and causes no alert."""
    gpu_instance_id: int | None = None
    compute_instance_id: int | None = None
    cancelled_wall: float | None = None
    """Wall time of the Xid that reported the end of this error (CANCELLED_BY); None if none did. Derived, not stored.
    """

    @property
    def count(self) -> int:
        return max(self.nvml, self.kmsg, int(self.unnumbered))

    @property
    def all_texts(self) -> tuple[str, ...]:
        """Return the kernel messages that were kept, the newest last."""
        return (*self.texts, self.text)

    @property
    def device(self) -> str:
        """Return the `ErrorCounter.device` under which it is counted: the GPU's uuid for an Xid, else the address."""
        return self.uuid or f"{UNNAMED}{self.bus_id.lower()}" if self.kind == XID else self.bus_id

    @property
    def sources(self) -> tuple[str, ...]:
        counts = {NVML: self.nvml, KMSG: self.kmsg or self.unnumbered}
        return tuple(source for source in SOURCES if counts[source])


def common(instances: Iterable[int | None]) -> int | None:
    """Return the MIG instance id that several errors of one GPU have in common.

    `instances`: id of each error, None for an error without an id, which is ignored. Return None if no error has an id,
    or if the ids differ: the errors then concern the whole GPU.
    """
    named = set(instances) - {None}
    return named.pop() if len(named) == 1 else None


@dataclass(frozen=True, slots=True)
class ErrorChange:
    """An error event that began or changed, and the number of errors that this adds to the counter of its device."""

    event: ErrorEvent
    increase: int


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Position in the kernel log: boot id and sequence number of the last record that the agent processed."""

    boot_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounter:
    """Number of errors of one kind and code on one device since the store was created."""

    kind: str
    device: str
    """Value of ErrorEvent.device: uuid of the GPU (or the substitute for the uuid) for an Xid, else the PCI address."""
    code: int
    count: int
    last_wall: float
    """Unix time of the last error."""
