"""TABLE: the meaning of each register bit in the log text of Xid 74 (NVLink errors up to Hopper).

The meanings paraphrase NVIDIA's workflow for Xid 74. Example of a text:

NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


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

TABLE: Mapping[int, Mapping[int, BitFinding]] = {
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
"""Meaning by register (counted from 1) and bit. The meaning of all other bits is UNEXPECTED."""

_LINE = re.compile(r"\blink\s+(?P<link>\d+)\s*\((?P<registers>\s*0x[^)]*)\)", re.IGNORECASE)


def decode(text: str) -> BitFinding | None:
    """Return the meaning of all registers in the log text of an Xid 74, with the action for the worst bit that is set.

    None for a text without registers.
    """
    match = _LINE.search(text)
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
                yield register, bit, TABLE.get(register, {}).get(bit, UNEXPECTED)
