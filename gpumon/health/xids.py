"""TABLE: the Xids, the driver's numbers for what went wrong on a GPU, and what to do about each.

The severity follows the first action: reset, reboot, a look at the hardware or a failed repair is critical; an
application to restart is a warning; nothing to do is info. What is decided only by the event's own text, and what is
not known, is a warning. Names and actions are NVIDIA's catalogue in our words.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Severity(enum.StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Class(enum.StrEnum):
    """Where the cause is to be sought first."""

    APPLICATION = "application"
    DRIVER = "driver"
    HARDWARE = "hardware"
    LINK = "link"
    FIRMWARE = "firmware"
    OTHER = "other"


CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
APPLICATION, DRIVER, HARDWARE, LINK, FIRMWARE, OTHER = Class


@dataclass(frozen=True, slots=True)
class Xid:
    """One code."""

    code: int
    name: str
    severity: Severity
    kind: Class
    action: str
    """What to do at once."""
    if_it_recurs: str
    """What to do when it comes again on the same GPU."""
    ordered: frozenset[str] = frozenset()
    """What an operator has written: it stands, whatever the text of a line says."""


NOTHING = "nothing"
RESTART = "restart the application"
RESET = "reset the GPU"
REBOOT = "reboot the node"
REPLACE = "replace the GPU"
SUPPORT = "open a case with the vendor"
CHECK_APPLICATION = "check the application and its CUDA version"
CHECK_SOFTWARE = "check driver and firmware versions"
DECODE = "read the event's text: some of its forms need a reset"


def _rows(  # noqa: PLR0917 - a row
    codes: Iterable[int], name: str, severity: Severity, kind: Class, action: str, if_it_recurs: str
) -> tuple[Xid, ...]:
    return tuple(Xid(code, name, severity, kind, action, if_it_recurs) for code in codes)


TABLE = (
    *_rows((8,), "GPU stopped processing: it idled too long", WARNING, DRIVER, RESTART, SUPPORT),
    *_rows((11, 25), "Broken command stream", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows(
        (13,),
        "Graphics engine exception",
        WARNING,
        APPLICATION,
        RESTART,
        "run diagnostics: the same GPC and TPC each time means hardware",
    ),
    *_rows(
        (31,),
        "Memory page fault: an address that is not mapped",
        WARNING,
        APPLICATION,
        RESTART,
        "the same GPU again within a day: run diagnostics; several GPUs: correct the application",
    ),
    *_rows((32,), "Command stream corrupted on its way over PCIe", WARNING, DRIVER, RESTART, CHECK_APPLICATION),
    *_rows((37,), "Firmware met a method it does not implement", INFO, DRIVER, NOTHING, CHECK_APPLICATION),
    *_rows((38,), "Watchdog of the driver's firmware", WARNING, DRIVER, NOTHING, SUPPORT),
    *_rows(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        "Copy engine error",
        WARNING,
        APPLICATION,
        RESTART,
        SUPPORT,
    ),
    *_rows((43,), "The GPU ended an application's channel", INFO, APPLICATION, NOTHING, SUPPORT),
    *_rows((44,), "Fault while switching contexts", WARNING, DRIVER, NOTHING, SUPPORT),
    *_rows(
        (45,),
        "Channels of an application cleaned up early",
        INFO,
        APPLICATION,
        "follow the Xid beside it; when there is none, restart the fabric manager",
        SUPPORT,
    ),
    *_rows((46,), "GPU timeout", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows(
        (48,),
        "Uncorrectable memory error (double bit)",
        CRITICAL,
        HARDWARE,
        RESET,
        "read the SRAM threshold flag and the Xid 171 or 172 beside it; set: replace the GPU",
    ),
    *_rows((54,), "Auxiliary power is not connected", CRITICAL, HARDWARE, "check power cables and seating", SUPPORT),
    *_rows((55,), "Not used by current drivers", WARNING, OTHER, SUPPORT, SUPPORT),
    *_rows((56,), "Display engine error", WARNING, HARDWARE, NOTHING, SUPPORT),
    *_rows((57,), "Frame buffer link training failed (older GPUs)", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((58,), "Frame buffer memory error (older GPUs)", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((59,), "Internal micro-controller error (older GPUs)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((60,), "Video or security engine exception", WARNING, DRIVER, RESTART, CHECK_SOFTWARE),
    *_rows((61,), "Internal micro-controller breakpoint (older GPUs)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((62,), "Internal micro-controller halted", CRITICAL, FIRMWARE, RESET, SUPPORT),
    *_rows(
        (63,),
        "A memory row was remapped, or a page retired",
        INFO,
        HARDWARE,
        "reset the GPU when it is idle, if a remapping is pending",
        SUPPORT,
    ),
    *_rows((64,), "A memory row could not be remapped, or a page not retired", CRITICAL, HARDWARE, RESET, REPLACE),
    *_rows((65, 73, 142), "Video encoder error", WARNING, APPLICATION, SUPPORT, SUPPORT),
    *_rows((66, 67), "The driver touched a register it may not", WARNING, DRIVER, NOTHING, CHECK_SOFTWARE),
    *_rows((68, 83, 84, 88, 89, 96, 97, 98), "Video decoder error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows((69,), "Graphics engine class error", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows((74,), "NVLink error", CRITICAL, LINK, "inspect the link: the event's registers say which and how", SUPPORT),
    *_rows((78,), "A virtual GPU could not start", WARNING, DRIVER, "update the vGPU software", SUPPORT),
    *_rows(
        (79,),
        "The GPU has fallen off the bus",
        CRITICAL,
        HARDWARE,
        REBOOT,
        "check power, riser, seating and PCIe errors; open a case with the vendor",
    ),
    *_rows((80,), "Command stream checksum mismatch", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows((81, 87, 90, 91, *range(111, 119), 138), "Not used by current drivers", WARNING, OTHER, SUPPORT, SUPPORT),
    *_rows((82, *range(99, 106)), "JPEG engine error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows((86, 139), "Optical flow engine error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows((92,), "Corrected memory errors come often", WARNING, HARDWARE, "watch ECC and remapping", SUPPORT),
    *_rows((93,), "InfoROM is near its wear limit", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows(
        (94,),
        "Contained memory error: only the application that met it is harmed",
        WARNING,
        HARDWARE,
        RESTART,
        "drain the node and reset the GPU",
    ),
    *_rows((95,), "Uncontained memory error: any application may be harmed", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((106, 107), "Test message of the management bus", INFO, OTHER, NOTHING, SUPPORT),
    *_rows((108,), "NVLink remote translation error", WARNING, LINK, NOTHING, SUPPORT),
    *_rows((109,), "Context switch timed out", WARNING, APPLICATION, RESET, SUPPORT),
    *_rows((110,), "Security fault", CRITICAL, FIRMWARE, RESET, CHECK_SOFTWARE),
    *_rows((119,), "The GPU's system processor (GSP) did not answer", CRITICAL, FIRMWARE, RESET, CHECK_SOFTWARE),
    *_rows((120,), "The GPU's system processor (GSP) failed", CRITICAL, FIRMWARE, RESET, CHECK_SOFTWARE),
    *_rows((121,), "Chip-to-chip (C2C) link error", WARNING, LINK, NOTHING, SUPPORT),
    *_rows((122, 123, 124), "Firmware flash could not be read, written or erased", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((125,), "InfoROM file system error", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((136,), "NVLink training failed", CRITICAL, LINK, RESET, "inspect the link's signal path"),
    *_rows(
        (137,),
        "NVLink peer access without the right to",
        WARNING,
        LINK,
        "look for a fault on the peer GPU first",
        CHECK_APPLICATION,
    ),
    *_rows((140,), "Memory error that could not be recovered", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((141,), "Error on CUDA's fast path", INFO, APPLICATION, NOTHING, SUPPORT),
    *_rows((143,), "The GPU failed to initialise", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((144,), "NVLink 5 error (SAW)", WARNING, LINK, DECODE, SUPPORT),
    *_rows((145,), "NVLink 5 error (RLW)", WARNING, LINK, DECODE, SUPPORT),
    *_rows((146,), "NVLink 5 error (TLW)", WARNING, LINK, DECODE, SUPPORT),
    *_rows((147,), "NVLink 5 event (TREX)", INFO, LINK, NOTHING, SUPPORT),
    *_rows((148,), "NVLink 5 control event (NVLPW)", INFO, LINK, NOTHING, SUPPORT),
    *_rows((149,), "NVLink 5 link went down (NETIR)", WARNING, LINK, DECODE, "check cables and cartridges"),
    *_rows((150,), "NVLink 5 management engine error (MSE)", CRITICAL, LINK, RESET, SUPPORT),
    *_rows(
        (151,),
        "Key rotation failed (confidential computing)",
        CRITICAL,
        FIRMWARE,
        "restart the virtual machine",
        SUPPORT,
    ),
    *_rows((152, 153), "Deep learning accelerator error", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows(
        (154,),
        "The driver's advice on recovery has changed",
        INFO,
        OTHER,
        "do what the event's text says",
        "see the Xid that caused it",
    ),
    *_rows((155,), "NVLink fault defined by software", CRITICAL, LINK, RESET, CHECK_SOFTWARE),
    *_rows((156,), "A faulty part was retired", CRITICAL, HARDWARE, RESET, NOTHING),
    *_rows((157,), "A faulty part could not be retired", CRITICAL, HARDWARE, SUPPORT, REPLACE),
    *_rows((158,), "The GPU stopped for good: fatal timeout", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows(
        (159,),
        "Coherent link (CHI) error",
        WARNING,
        LINK,
        "follow the Xid beside it; when there is none, open a case with the vendor",
        SUPPORT,
    ),
    *_rows((160,), "A memory channel was retired", INFO, HARDWARE, NOTHING, CHECK_SOFTWARE),
    *_rows((161,), "A memory channel could not be retired", WARNING, HARDWARE, NOTHING, CHECK_SOFTWARE),
    *_rows((162,), "Power smoothing works again", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows((163,), "Power smoothing is lost", WARNING, HARDWARE, "wait for Xid 162, which cancels it", SUPPORT),
    *_rows((164,), "Power smoothing is near the end of its life", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows((165,), "Power smoothing is worn out", WARNING, HARDWARE, NOTHING, SUPPORT),
    *_rows((166, 170), "NVLink encryption error (confidential computing)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((167,), "PCIe fatal timeout", CRITICAL, HARDWARE, REBOOT, SUPPORT),
    *_rows(
        (168,),
        "The GPU came up with less memory",
        WARNING,
        HARDWARE,
        "compare its memory with its neighbours'",
        SUPPORT,
    ),
    *_rows((169,), "Security micro-controller halted", CRITICAL, FIRMWARE, REBOOT, SUPPORT),
    *_rows((171,), "Detail of an Xid 48: the error was in DRAM", INFO, HARDWARE, "see Xid 48", "see Xid 48"),
    *_rows((172,), "Detail of an Xid 48: the error was in SRAM", CRITICAL, HARDWARE, REBOOT, REPLACE),
    *_rows((173,), "Chip-to-chip (C2C) link failed for good", CRITICAL, LINK, REBOOT, SUPPORT),
)
XIDS = {xid.code: xid for xid in TABLE}
CRITICAL_XIDS = frozenset(xid.code for xid in TABLE if xid.severity is CRITICAL)


def unknown(code: int) -> Xid:
    """What stands in for the row of a code that is not in the table: a newer driver has it."""
    return Xid(code, "Not known to this version", WARNING, OTHER, "look it up in NVIDIA's Xid catalogue", SUPPORT)
