"""TABLE: actions for Xids 144 to 150 (NVLink 5, Blackwell and later), by unit and status in their log text.

    145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)

The first register contains the unit and, for a link that went down, the reason; the second is the unit's error status.
Drivers before and since R575 encode the unit in the first register at different places. The text names the unit too,
and no unit but that of Xid 150 has two equal codings, so the line itself shows which coding is used.

From NVIDIA's decode table, paraphrased.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpumon.health.xids import NOTHING, RESET, SUPPORT, Severity

FOLLOW_154 = "perform the action of the Xid 154 reported with it; if there is none, restart the application"
READ_IT = "not in the table of this version: read the line and ask the vendor"

ALONE = "see the errors reported with it; if there are none, open a case with the vendor"
CABLES = "check cable, transceiver, seating and temperature"
DAILY = "open a case with the vendor if it occurs more than once a day"
HOST = "check the other logs of the host for an action on the GPU, perhaps out of band"
LINK_FAILURE = "find the link that went down in the 30 s before; if there is none, open a case with the vendor"
PEER = "check the GPU or switch at the other end of the link, which took the link down"
SIGNAL = "inspect the link's signal path"
SOFTWARE = "find the software or user that took the link down"
SOFTWARE_OR_SIGNAL = f"{SOFTWARE}; if there is none: {SIGNAL}"

Outcome = tuple[str, str]
"""The first action, and the action if the error recurs on the same GPU."""
_OVER: Outcome = (NOTHING, NOTHING)
_NOTED: Outcome = (NOTHING, SUPPORT)
_RESET: Outcome = (RESET, SUPPORT)
PROMOTED = _RESET
"""Outcome of an error that the driver promoted to fatal, as a bit of the first register shows."""
_HANDLED: Outcome = (FOLLOW_154, NOTHING)
_STOPPED: Outcome = (FOLLOW_154, SUPPORT)
_LINK: Outcome = (FOLLOW_154, LINK_FAILURE)
_SPURIOUS = {0x8000_0000: _NOTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One unit of the NVLink engine: how a log line encodes the unit and its errors, and the action for each error."""

    xid: int
    names: tuple[str, ...]
    """Names of the unit in the log text of drivers before R575 and of drivers since R575."""
    before: int
    """Code of the unit in bits 5 to 9 of the first register, if the driver is older than R575."""
    since: tuple[int, ...]
    """Codes of the unit in bits 0 to 6 of the first register, if the driver is R575 or newer."""
    by_status: Mapping[int, Outcome]
    """Outcome by the value of the second register."""
    by_reason: Mapping[int, Outcome] | None = None
    """Outcome by bits 20 to 25 of the first register, whatever the second register is. None: these bits must be 0."""
    promoted: frozenset[int] = frozenset()
    """Values of the second register that require a GPU reset if the driver promoted the error to fatal."""

    @property
    def group(self) -> int:
        """Return the value of bits 0 to 4 of the first register, if the driver is older than R575."""
        return 0 if self.xid == 150 else self.xid - 143


_STORAGE = {0x1: _OVER, 0x2: _RESET, 0x1_0000: _OVER, 0x2_0000: _RESET, 0x10_0000: _RESET} | _SPURIOUS
_TRANSLATION = {0x1: _OVER, 0x2: _NOTED, 0x4: _RESET} | _SPURIOUS
_DOWN: Mapping[int, Outcome] = {
    0b000000: (RESET, ALONE),
    0b000001: (RESET, DAILY),
    **dict.fromkeys((0b000010, 0b000100, 0b001010), (RESET, SIGNAL)),
    **dict.fromkeys((0b001111, 0b010001, 0b010110), (RESET, SOFTWARE)),
    **dict.fromkeys((0b010000, 0b010010), (RESET, SOFTWARE_OR_SIGNAL)),
    **dict.fromkeys((0b010101, *range(0b100000, 0b100110)), (RESET, PEER)),
    0b100110: (NOTHING, SOFTWARE),
    0b101000: (NOTHING, HOST),
    **dict.fromkeys((0b101010, 0b101011), (RESET, CABLES)),
}

TABLE = (
    Unit(
        xid=144,
        names=("SAW_MVB",),
        before=1,
        since=(1,),
        by_status={0x1: _NOTED, 0x2: _RESET, 0x4: _OVER, 0x8: _NOTED, 0x10: _RESET, 0x20: _OVER},
    ),
    Unit(xid=145, names=("RLW_CTRL",), before=3, since=(3,), by_status=_SPURIOUS),
    Unit(
        xid=145,
        names=("RLW_REMAP",),
        before=4,
        since=(4,),
        by_status={
            **dict.fromkeys((0x1, 0x2), _STOPPED),
            **dict.fromkeys((0x4, 0x8, 0x10, 0x20), _LINK),
            **dict.fromkeys((0x40, 0x80), _RESET),
            **dict.fromkeys((0x100, 0x200), _OVER),
            **_SPURIOUS,
        },
    ),
    Unit(xid=145, names=("RLW_RSPCOL",), before=5, since=(5,), by_status={0x1: _OVER, 0x2: _RESET} | _SPURIOUS),
    Unit(
        xid=145,
        names=("RLW_RXPIPE",),
        before=6,
        since=(6,),
        by_status=dict.fromkeys((0x1, 0x2, 0x4, 0x8), _NOTED) | _SPURIOUS,
        promoted=frozenset({0x1, 0x2, 0x4}),
    ),
    Unit(
        xid=145,
        names=("RLW_SRC_TRACK",),
        before=7,
        since=(7,),
        by_status={0x1: _RESET, 0x2: _OVER, 0x4: _HANDLED, 0x8: _HANDLED, 0x10: _RESET, 0x20: _RESET} | _SPURIOUS,
    ),
    Unit(xid=145, names=("RLW_TAGSTATE",), before=8, since=(8,), by_status=_STORAGE),
    Unit(xid=146, names=("TLW_CTRL",), before=9, since=(9,), by_status=_TRANSLATION),
    Unit(
        xid=146,
        names=("TLW_RX", "TLW_RX_PIPE0", "TLW_RX_PIPE1"),
        before=10,
        since=(10, 11),
        by_status=_TRANSLATION,
    ),
    Unit(
        xid=146,
        names=("TLW_TX", "TLW_TX_PIPE0", "TLW_TX_PIPE1"),
        before=11,
        since=(12, 13),
        by_status=_TRANSLATION,
    ),
    Unit(xid=147, names=("TREX",), before=12, since=(14,), by_status={0x1: _NOTED} | _SPURIOUS),
    Unit(xid=148, names=("NVLPW_CTRL", "NVLPW"), before=0, since=(15,), by_status=_SPURIOUS),
    Unit(xid=149, names=("NETIR", "NETIR_INT"), before=0, since=(24,), by_status={0x0: (RESET, ALONE)}),
    Unit(
        xid=149,
        names=("NETIR_LINK_EVT", "NETIR_LINK_DOWN"),
        before=14,
        since=(17,),
        by_status={},
        by_reason=_DOWN,
    ),
    Unit(
        xid=149,
        names=("NETIR_BER_EVENT",),
        before=17,
        since=(19,),
        by_status=dict.fromkeys(range(4), (NOTHING, CABLES)),
    ),
    Unit(
        xid=149,
        names=("NETIR_MFDE_EVENT",),
        before=18,
        since=(20,),
        by_status={0x3: _OVER} | dict.fromkeys((0x1, 0x4, 0x5, 0x7), _RESET),
    ),
    Unit(
        xid=150,
        names=("MSE_WATCHDOG", "MSE Degraded", "MSE"),
        before=0,
        since=(0,),
        by_status=dict.fromkeys((0x0, 0xFFFF_FFFF), _RESET),
    ),
)
CODES = frozenset(unit.xid for unit in TABLE)


@dataclass(frozen=True, slots=True)
class DecodedEvent:
    """The decoded log text of an NVLink 5 Xid: its meaning, severity and actions."""

    words: str
    severity: Severity
    action: str
    if_it_recurs: str


_LINE = re.compile(
    r"(?P<unit>[A-Za-z]\w*(?: Degraded)?)\s+(?P<fatal>Fatal|Non-?fatal)\s+XC\s*\d+\s+i\s*\d+\s+Link\s+(?P<link>-?\d+)"
    r"(?:\s*[(\[](?P<registers>[^)\]]*)[)\]])?",
    re.IGNORECASE,
)
_REGISTER = re.compile(r"0x([0-9a-f]{1,8})\b", re.IGNORECASE)


def decode(xid: int, text: str) -> DecodedEvent | None:
    """Return the decoded log text of an Xid from 144 to 150. A fatal error may be logged without registers."""
    match = _LINE.search(text)
    fatal = match is not None and match["fatal"].lower() == "fatal"
    if match is None or (match["registers"] is None and not fatal):
        return None
    registers = [int(number, 16) for number in _REGISTER.findall(match["registers"] or "")]
    where = "" if match["link"].startswith("-") else f" of link {int(match['link'])}"
    words = f"{match['unit']}{where}: {'fatal' if fatal else 'not fatal'}."
    action, if_it_recurs = _outcome(xid, match["unit"], registers) or (READ_IT, SUPPORT)
    return DecodedEvent(words, _severity(action, fatal=fatal), action, if_it_recurs)


def _outcome(xid: int, name: str, registers: list[int]) -> Outcome | None:
    info, status = (*registers, 0, 0)[:2]
    units = (unit for unit in TABLE if unit.xid == xid and name.upper() in map(str.upper, unit.names))
    reason = info >> 20 & 0x3F
    for unit in units:
        if info & 0x7F in unit.since:
            promoted_bit = 7
        elif info & 0x3FF == unit.before << 5 | unit.group:
            promoted_bit = 10
        else:
            continue
        if unit.by_reason is not None:
            return unit.by_reason.get(reason)
        if reason:
            return None
        promoted = info >> promoted_bit & 1 and status in unit.promoted
        return PROMOTED if promoted else unit.by_status.get(status)
    return None


def _severity(action: str, *, fatal: bool) -> Severity:
    if action == RESET or (action == READ_IT and fatal):
        return Severity.CRITICAL
    return Severity.WARNING if fatal or action in {FOLLOW_154, READ_IT} else Severity.INFO
