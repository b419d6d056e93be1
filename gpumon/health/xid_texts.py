"""What the log text of an error adds to its code: variants and registers of Xids, recovery actions, scopes of SXids.

Sources: NVIDIA/open-gpu-kernel-modules 595.45.04, and its files under src/nvidia/src/kernel/events of driver 615; for
SXids its files under src/common/nvswitch, NVIDIA's Fabric Manager user guide (v1.3), and NVIDIA/NVSentinel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpumon.health.nvlink5 import FOLLOW_154
from gpumon.health.verdict import Action, Finding, fail, warn
from gpumon.health.xids import NOTHING, REBOOT, RESET, SUPPORT, XIDS, Severity, Xid
from gpumon.model.str_enum import StrEnum

_PENDING = r"already pending remapping|due to pending (?:row remap|bank remap|LTS swap)"
_RESET_FLAG = r"\bRST: Yes"
"""The driver requires a GPU reset, at once (RST) or when its jobs are drained (D-RST): kern_gpu_error_cont_ga100.c."""
VARIANTS = tuple(
    (re.compile(pattern, re.IGNORECASE), row)
    for pattern, row in (
        (_PENDING, replace(XIDS[63], code=64, name="Memory is already marked for repair")),
        (r"failed to train link \d+ to remote", replace(XIDS[136], code=74)),
        (
            r"GSP-RISCV .*fatal error",
            replace(XIDS[94], name="Fatal error of the GSP", severity=Severity.CRITICAL, action=RESET),
        ),
        (
            _RESET_FLAG,
            replace(
                XIDS[94],
                name="Contained memory error, after which the driver requires a reset",
                severity=Severity.CRITICAL,
                action=RESET,
                if_it_recurs=SUPPORT,
            ),
        ),
        (r"\bNon-?fatal\b", replace(XIDS[155], severity=Severity.WARNING, action=FOLLOW_154)),
    )
)
"""The row that applies to an Xid instead of its own, after a pattern that its log text must contain."""


def row_for(row: Xid, text: str) -> Xid:
    """Return the row that applies to this log text. Fields that the operator set in `row` keep their values."""
    for pattern, variant in VARIANTS:
        if variant.code == row.code and pattern.search(text):
            return replace(variant, ordered=row.ordered, **{name: getattr(row, name) for name in row.ordered})
    return row


@dataclass(frozen=True, slots=True)
class BitFinding:
    """The meaning of one register bit, or of all registers of an Xid 74, and what the operator should do."""

    words: str
    action: str


CONNECTION = BitFinding(
    "possible hardware fault of the link", "check the link's connections and reseat; run diagnostics"
)
SIGNAL = BitFinding(
    "marginal signal integrity",
    "resolve other errors of this GPU first; if there are none, check the link's connections and run diagnostics",
)
PARITY = BitFinding(
    "an ECC or parity error in the link's hardware", "replace the GPU if it occurs a third time on this link"
)
DIAGNOSE = BitFinding("harmful if it recurs", "run diagnostics and open a case with the vendor if it recurs")
REPORT = BitFinding("harmful if it recurs", "open a case with the vendor if it recurs")
UNEXPECTED = BitFinding("not expected in production", "open a case with the vendor")
FABRIC = BitFinding(
    "follows another error", "resolve the other error, then drain the node and reset all GPUs and NVSwitches together"
)
SECONDARY = BitFinding(
    "follows another error", "resolve the other error; if there is none, open a case with the vendor"
)
THRESHOLD = BitFinding("corrected errors exceeded a threshold", "nothing; run diagnostics when convenient")
HARMLESS = BitFinding("harmless", "nothing")

WORST_FIRST = (
    CONNECTION, PARITY, SIGNAL, UNEXPECTED, DIAGNOSE, REPORT, FABRIC, SECONDARY, THRESHOLD, HARMLESS,
)  # fmt: skip

REGISTERS: Mapping[int, Mapping[int, BitFinding]] = {
    1: {
        **dict.fromkeys((0, 23, 30), HARMLESS),
        **dict.fromkeys((1, 20), SECONDARY),
        **dict.fromkeys((4, 5), PARITY),
        **dict.fromkeys((8, 9, 12, 16, 17, 24, 28), CONNECTION),
        **dict.fromkeys((21, 22), SIGNAL),
        **dict.fromkeys((27, 29), REPORT),
    },
    3: {
        **dict.fromkeys((0, 1, 2, 6), PARITY),
        **dict.fromkeys((16, 19), DIAGNOSE),
        **dict.fromkeys((17, 18), REPORT),
    },
    4: {16: SECONDARY, 17: SECONDARY, 18: FABRIC},
    5: {
        **dict.fromkeys((18, 19, 21, 22, 24, 25, 27, 28), PARITY),
        **dict.fromkeys((20, 23, 26, 29), THRESHOLD),
    },
}
"""Meaning by register (counted from 1) and bit, after NVIDIA's workflow for Xid 74. All other bits are UNEXPECTED.

Example: NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
"""

_REGISTERS_LINE = re.compile(r"\blink\s+(?P<link>\d+)\s*\((?P<registers>\s*0x[^)]*)\)", re.IGNORECASE)


def decode_registers(text: str) -> BitFinding | None:
    """Return the meaning of the registers in the text of an Xid 74, with the action for the worst bit."""
    match = _REGISTERS_LINE.search(text)
    if match is None:
        return None
    findings = list(_findings(match["registers"]))
    if not findings:
        return BitFinding(f"Link {match['link']}: no bit is set.", UNEXPECTED.action)
    words = "; ".join(f"register {register}, bit {bit}: {finding.words}" for register, bit, finding in findings)
    worst = min((finding for _, _, finding in findings), key=WORST_FIRST.index)
    return BitFinding(f"Link {match['link']}: {words}.", worst.action)


def _findings(registers: str) -> Iterator[tuple[int, int, BitFinding]]:
    for register, text in enumerate(re.findall(r"0x([0-9a-f]{1,8})\b", registers, re.IGNORECASE), 1):
        for bit in range(32):
            if int(text, 16) >> bit & 1:
                yield register, bit, REGISTERS.get(register, {}).get(bit, UNEXPECTED)


class Recovery(NamedTuple):
    """One recovery action that the driver requests, and what an operator does about it."""

    words: str
    """Completes "The driver requests ..."."""
    severity: Severity
    """CRITICAL: the GPU fails while the action is requested. WARNING: it warns."""
    next_step: str
    """What an operator does, in the words of the Xid table."""
    action: Action
    hint: str = ""
    """Additional information for the operator."""
    of_node: bool = False
    """Whether the driver requests it on all GPUs, though none is at fault: then a check of the node reports it."""


DRAIN = "stop the jobs that use this GPU's links"
RECOVERY: Mapping[int, Recovery] = {
    0: Recovery("nothing", Severity.INFO, NOTHING, Action.NONE),
    1: Recovery("a reset of the GPU", Severity.CRITICAL, RESET, Action.RESET),
    2: Recovery(
        "a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT, "the operating system may be affected too"
    ),
    3: Recovery(
        "the end of all peer-to-peer traffic",
        Severity.CRITICAL,
        DRAIN,
        Action.RESTART,
        "end the applications that use it; the driver then reports the next step",
    ),
    4: Recovery("draining and then resetting the GPU", Severity.CRITICAL, f"{DRAIN}, then reset it", Action.RESET),
    5: Recovery(
        "recovery of the IMEX domain",
        Severity.WARNING,
        "restart nvidia-imex and end the jobs that use the IMEX domain",
        Action.RESTART,
        "restart nvidia-imex and end the jobs that use the domain",
        of_node=True,
    ),
    6: Recovery(
        "a reset of the GPU's PCIe bus",
        Severity.CRITICAL,
        REBOOT,
        Action.REBOOT,
        "nvidia-smi cannot reset the bus, a reboot does",
    ),
    7: Recovery("a reboot of the node", Severity.CRITICAL, REBOOT, Action.REBOOT),
}


def recovery_of(number: float) -> Recovery:
    """Return the recovery action with this NVML number. A newer driver may have more: the action is then INSPECT."""
    words = f"an action that is not in the table of this version (action {number:.0f})"
    unknown = Recovery(words, Severity.CRITICAL, "perform the action that it names", Action.INSPECT)
    return RECOVERY.get(int(number), unknown)


def request_finding(number: float) -> Finding:
    """Return the finding for a GPU, or a node, on which the driver requests this recovery action."""
    request = recovery_of(number)
    hint = f": {request.hint}" if request.hint else ""
    grade = fail if request.severity is Severity.CRITICAL else warn
    return grade(f"The driver asks for {request.words}{hint}.", request.action, recovery_action=number)


class Scope(StrEnum):
    """What an SXid affects. It decides the severity and the repair."""

    HARMLESS = "harmless"
    MINOR = "minor"
    LINK = "link"
    """One link: the repair is a reset of the GPU behind it."""
    FABRIC = "fabric"
    """A whole NVSwitch, or all of them: the repair is a reboot of the node."""


LINK_DOWN = frozenset({20034, 22012})
"""SXids for a link that went down; with "Fatal" in the line even if a reset of the GPU took the link down."""
_ALWAYS_FATAL = frozenset(
    {10003, 12020, 22003, 22011, *range(23001, 23018)}  # fatal to the whole fabric, by the guide
    | {10006, 10007, 10008, 10009}  # the switch is too hot and off, or its firmware does not work
    | {22010}  # watchdog of a MINION, which serves several links: the driver marks the whole switch
    | {*range(26001, 26006), 26006, 26008}  # the switch's own processor did not start, halted, or its watchdog fired
)
"""SXids for errors of a whole switch or fabric, even if the line has no severity or names a link."""
_THERMAL = frozenset({10004, 10005})
"""SXids for the begin and end of a thermal event. By the guide they are not fatal, whatever severity the line has."""
_HARMLESS = frozenset(
    {22013}  # logged for each link when the driver is loaded
    | {11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 24001, 24002, 24003}
    | {19049, 19055, 19057, 19059, 19062, 19065, 19068, 19071}
)
"""SXids that need no action by the guide, unless the line contains "Fatal". All but the first: corrected ECC errors."""
_NAMES_LINK = re.compile(r"Fatal, Link \d", re.IGNORECASE)


def scope(code: int, texts: Iterable[str], *, fatal: bool | None) -> Scope:
    """Return what an SXid affects.

    `texts`: the text of each of its kernel log lines. `fatal`: severity in the lines; None if they have none. By the
    guide, any other fatal error of a link affects only the jobs of one GPU, if the port leads to a GPU.
    """
    if code in LINK_DOWN:
        return Scope.LINK
    if code in _ALWAYS_FATAL:
        return Scope.FABRIC
    if code in _THERMAL or not fatal:
        return Scope.HARMLESS if code in _HARMLESS else Scope.MINOR
    fatal_texts = [text for text in texts if text.lower().startswith("fatal")]
    return Scope.LINK if fatal_texts and all(map(_NAMES_LINK.match, fatal_texts)) else Scope.FABRIC
