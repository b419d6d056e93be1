"""TABLE: the Xids, the error codes that the driver reports for a GPU, with severity and actions.

As a rule, an Xid is critical if its first action is a reset, a reboot or an inspection of cables or links, and
info only if it needs no action of its own. All others are warnings, and so are unlisted codes. The log text of an Xid
144 to 150 or 154 can change the severity (catalogue.py). Names and actions paraphrase NVIDIA's Xid catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpumon.health.products import RANKS
from gpumon.health.verdict import ACTIONS, Action
from gpumon.model.str_enum import StrEnum


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Class(StrEnum):
    """The most likely origin of the error."""

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
    """One row of the Xid table: an error code of the driver, its severity, and what to do about it."""

    code: int
    name: str
    severity: Severity
    kind: Class
    action: str
    """The first action."""
    if_it_recurs: str
    """The action if the Xid recurs on the same GPU."""
    ordered: frozenset[str] = frozenset()
    """Names of the fields that the operator configured. They take precedence over details decoded from the log text."""


NOTHING = "nothing"
RESTART = "restart the application"
RESET, REBOOT = ACTIONS[Action.RESET], ACTIONS[Action.REBOOT]
REPLACE = "replace the GPU"
SUPPORT = "open a case with the vendor"
CHECK_APPLICATION = "check the application and its CUDA version"
CHECK_SOFTWARE = "check driver and firmware versions"
ACTIVATE_REPAIR = "when the GPU is idle, perform the action that the event's text names: it activates the repair"
REPLACE_SOON = "plan the replacement of the GPU"
POWER_CYCLE = "if the GPU does not return after a reboot, turn the node off and on; then open a case with the vendor"
DECODE = "read the event's text: some events need a reset"


def _rows(  # noqa: PLR0917 - a row
    codes: Iterable[int], name: str, severity: Severity, kind: Class, action: str, if_it_recurs: str
) -> tuple[Xid, ...]:
    return tuple(Xid(code, name, severity, kind, action, if_it_recurs) for code in codes)


RETIRED = (
    *(*range(1, 8), 9, 10, 12, *range(14, 25), *range(26, 31), *range(33, 37), 42, 47, *range(49, 54), 55),
    *(81, 87, 90, 91, *range(111, 119), 138),
)
"""Codes that NVIDIA's catalogue lists as unused. Older drivers reported some of them."""

TABLE = (
    *_rows((8,), "GPU stopped processing", WARNING, DRIVER, RESTART, SUPPORT),
    *_rows((11, 25), "Invalid or corrupted push buffer stream", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows(
        (13,),
        "Graphics engine exception",
        WARNING,
        APPLICATION,
        RESTART,
        "run diagnostics: always the same GPC and TPC indicates a hardware fault",
    ),
    *_rows(
        (31,),
        "GPU memory page fault",
        WARNING,
        APPLICATION,
        RESTART,
        "on the same GPU within a day: run diagnostics; on several GPUs: fix the application",
    ),
    *_rows((32,), "Push buffer stream corrupted on PCIe", WARNING, DRIVER, RESTART, CHECK_APPLICATION),
    *_rows((37,), "Driver firmware error: unimplemented method", INFO, DRIVER, NOTHING, CHECK_APPLICATION),
    *_rows((38,), "Driver firmware watchdog timeout", WARNING, DRIVER, NOTHING, SUPPORT),
    *_rows(
        (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
        "Copy engine error",
        WARNING,
        APPLICATION,
        RESTART,
        SUPPORT,
    ),
    *_rows((43,), "GPU stopped processing of an application's channel", INFO, APPLICATION, NOTHING, SUPPORT),
    *_rows((44,), "Graphics engine fault during context switch", WARNING, DRIVER, NOTHING, SUPPORT),
    *_rows(
        (45,),
        "Preemptive cleanup of channels, due to previous errors",
        INFO,
        APPLICATION,
        "see the Xid reported with it; if there is none, restart the fabric manager",
        SUPPORT,
    ),
    *_rows((46,), "GPU timeout", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows(
        (48,),
        "Uncorrectable (double bit) ECC error",
        CRITICAL,
        HARDWARE,
        RESET,
        "check Xid 171 or 172 and the SRAM threshold flag; replace the GPU if the flag is set",
    ),
    *_rows((54,), "Auxiliary power is not connected", CRITICAL, HARDWARE, "check power cables and seating", SUPPORT),
    *_rows((56,), "Display engine error", WARNING, HARDWARE, NOTHING, SUPPORT),
    *_rows((57,), "Framebuffer link training failed (older GPUs)", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((58,), "Framebuffer memory error (older GPUs)", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((59,), "Internal micro-controller error (older GPUs)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((60,), "Video or security engine exception", WARNING, DRIVER, RESTART, CHECK_SOFTWARE),
    *_rows((61,), "Internal micro-controller breakpoint (older GPUs)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((62,), "Internal micro-controller halted", CRITICAL, FIRMWARE, RESET, POWER_CYCLE),
    *_rows(
        (63,),
        "Memory row remapped, or page retired",
        INFO,
        HARDWARE,
        "reset the GPU when it is idle, if a remapping is pending",
        SUPPORT,
    ),
    *_rows((64,), "Row remapping or page retirement failed", CRITICAL, HARDWARE, RESET, REPLACE),
    *_rows((65, 73, 142), "Video encoder error", WARNING, APPLICATION, SUPPORT, SUPPORT),
    *_rows((66, 67), "Illegal register access by the driver", WARNING, DRIVER, NOTHING, CHECK_SOFTWARE),
    *_rows((68, 83, 84, 88, 89, 96, 97, 98), "Video decoder error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows((69,), "Graphics engine class error", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows((74,), "NVLink error", CRITICAL, LINK, "inspect the link that the event's registers name", SUPPORT),
    *_rows((78,), "vGPU start error", WARNING, DRIVER, "update the vGPU software", SUPPORT),
    *_rows(
        (79,),
        "The GPU has fallen off the bus",
        CRITICAL,
        HARDWARE,
        REBOOT,
        "check power, riser, seating and PCIe errors; open a case with the vendor",
    ),
    *_rows((80,), "Push buffer checksum mismatch", WARNING, APPLICATION, RESTART, CHECK_APPLICATION),
    *_rows((82, *range(99, 106)), "JPEG engine error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows((86, 139), "Optical flow engine error", WARNING, APPLICATION, RESTART, SUPPORT),
    *_rows(
        (92,),
        "High rate of corrected (single bit) ECC errors",
        WARNING,
        HARDWARE,
        "monitor ECC counters and row remapping",
        SUPPORT,
    ),
    *_rows((93,), "InfoROM is near its erase limit", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows(
        (94,),
        "Contained memory error: only one application is affected",
        WARNING,
        HARDWARE,
        RESTART,
        RESET,
    ),
    *_rows((95,), "Uncontained memory error: any application may be affected", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((106, 107), "SMBPBI test message", INFO, OTHER, NOTHING, SUPPORT),
    *_rows((108,), "NVLink remote translation error", WARNING, LINK, NOTHING, SUPPORT),
    *_rows((109,), "Context switch timed out", WARNING, APPLICATION, RESET, SUPPORT),
    *_rows((110,), "Security fault", CRITICAL, FIRMWARE, RESET, CHECK_SOFTWARE),
    *_rows((119,), "GSP RPC timeout", CRITICAL, FIRMWARE, RESET, CHECK_SOFTWARE),
    *_rows((120,), "GSP error", CRITICAL, FIRMWARE, RESET, POWER_CYCLE),
    *_rows((121,), "Chip-to-chip (C2C) link error", WARNING, LINK, NOTHING, SUPPORT),
    *_rows((122, 123, 124), "SPI flash read, write or erase failed", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((125,), "InfoROM file system error", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((136,), "NVLink training failed", CRITICAL, LINK, RESET, "inspect the link's signal path"),
    *_rows(
        (137,),
        "NVLink privilege error on peer access",
        WARNING,
        LINK,
        "check the peer GPU for a fault first",
        CHECK_APPLICATION,
    ),
    *_rows((140,), "Unrecovered ECC error", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((141,), "Error in the CUDA fast path", INFO, APPLICATION, NOTHING, SUPPORT),
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
        "GPU recovery action changed",
        INFO,
        OTHER,
        "perform the action that the event's text names",
        "see the Xid that caused the change",
    ),
    *_rows((155,), "Software-defined NVLink fault", CRITICAL, LINK, RESET, CHECK_SOFTWARE),
    *_rows((156,), "Resource retired", CRITICAL, HARDWARE, RESET, NOTHING),
    *_rows((157,), "Resource retirement failed", WARNING, HARDWARE, NOTHING, SUPPORT),
    *_rows((158,), "GPU fatal timeout", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows(
        (159,),
        "Coherent link (CHI) error",
        WARNING,
        LINK,
        "see the Xid reported with it; if there is none, open a case with the vendor",
        SUPPORT,
    ),
    *_rows((160,), "Memory channel or L2 slice marked for repair", INFO, HARDWARE, ACTIVATE_REPAIR, SUPPORT),
    *_rows(
        (161,), "Memory channel or L2 slice not repaired: no spare is left", WARNING, HARDWARE, REPLACE_SOON, SUPPORT
    ),
    *_rows((162,), "Power smoothing restored", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows((163,), "Power smoothing unavailable", WARNING, HARDWARE, "wait for Xid 162, which clears it", SUPPORT),
    *_rows((164,), "Power smoothing hardware is near its end of life", INFO, HARDWARE, NOTHING, SUPPORT),
    *_rows((165,), "Power smoothing hardware is at its end of life", WARNING, HARDWARE, NOTHING, SUPPORT),
    *_rows((166, 170), "NVLink encryption error (confidential computing)", WARNING, FIRMWARE, NOTHING, SUPPORT),
    *_rows((167,), "PCIe fatal timeout", CRITICAL, HARDWARE, REBOOT, SUPPORT),
    *_rows(
        (168,),
        "GPU initialised with reduced memory",
        WARNING,
        HARDWARE,
        "compare its memory size with that of the other GPUs",
        SUPPORT,
    ),
    *_rows((169,), "Security micro-controller halted", CRITICAL, FIRMWARE, REBOOT, SUPPORT),
    # The driver logs 171 and 172 with the Xid that requires the action: kernel_gsp_ecc_gb100.c.
    *_rows((171,), "Uncorrectable DRAM error (details of Xid 48)", INFO, HARDWARE, "see Xid 48", "see Xid 48"),
    *_rows((172,), "Uncorrectable SRAM error (details of Xid 48)", INFO, HARDWARE, "see Xid 48", "see Xid 48"),
    *_rows((173,), "Chip-to-chip (C2C) fatal link failure", CRITICAL, LINK, REBOOT, SUPPORT),
    # Not in NVIDIA's catalogue of October 2025. Sources: names in nverror.h, and messages of the driver (595, 615).
    *_rows((174,), "The driver ended a process", INFO, APPLICATION, NOTHING, CHECK_APPLICATION),
    *_rows((175,), "GPU memory subsystem timeout", CRITICAL, HARDWARE, RESET, SUPPORT),
    *_rows((176,), "Corrected PCIe errors", WARNING, HARDWARE, NOTHING, "reseat the board or its riser"),
    *_rows((177,), "Memory bank marked for remapping", INFO, HARDWARE, ACTIVATE_REPAIR, SUPPORT),  # ras_events.c (615)
    *_rows(RETIRED, "Retired code, which no supported driver reports", WARNING, OTHER, SUPPORT, SUPPORT),
)
XIDS = {xid.code: xid for xid in TABLE}


def unknown(code: int) -> Xid:
    """Return a row of severity warning for a code that is not in the table. Newer drivers may report such codes."""
    return Xid(
        code, "Not in the table of this version", WARNING, OTHER, "look it up in NVIDIA's Xid catalogue", SUPPORT
    )


_TURING, _AMPERE, _HOPPER, _BLACKWELL = 6, 7, 9, 10

SINCE: Mapping[int, int] = {
    **dict.fromkeys((119, 120), _TURING),
    95: _AMPERE,
    **dict.fromkeys((110, 136, 143, 151, 156, 167, 169), _HOPPER),
    **dict.fromkeys((150, 155), _BLACKWELL),
}
"""Lowest rank (RANKS) of an architecture that can report the Xid, by the columns "applies to" of NVIDIA's catalogue."""
UNTIL: Mapping[int, int] = {57: _TURING, 58: _TURING, 74: _HOPPER, 136: _HOPPER}
"""Highest rank of an architecture that can report the Xid."""
CHIP_TO_CHIP = frozenset({173})
"""Xids that only GPUs with a chip-to-chip link to a Grace CPU can report."""


def possible_xids(xids: Iterable[int], architecture: str | None, *, chip_to_chip: bool) -> Iterable[int]:
    """Yield those of `xids` that a GPU of this architecture can report: their counters are exported, starting at 0.

    An unlisted architecture can report all. It is None until the GPU has been opened: then only the Xids of every
    architecture are yielded. `chip_to_chip`: whether the GPU has links to a Grace CPU.
    """
    rank = RANKS.get(architecture or "")
    for xid in xids:
        if xid in CHIP_TO_CHIP:
            can = chip_to_chip
        elif architecture is None:
            can = xid not in SINCE and xid not in UNTIL
        else:
            can = rank is None or SINCE.get(xid, rank) <= rank <= UNTIL.get(xid, rank)
        if can:
            yield xid
