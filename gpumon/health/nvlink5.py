"""TABLE: what Xids 144 to 150 ask for, which only their text can tell: NVLink 5, Blackwell and later.

    145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x00000000 0x00100000 0x00000004)

The first register says which unit and, for a link that went down, why; the second is the unit's error status. Where the
unit stands in the first register differs between drivers before and since R575. As the text names the unit too, and the
two codings of no unit look alike, the line itself tells which it is: nobody has to know the driver of that time.

From NVIDIA's decode table, in our words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpumon.health.xids import NOTHING, RESET, SUPPORT, Severity

FOLLOW_154 = "do what the Xid 154 beside it says; when there is none, restart the application"
READ_IT = "it is not in the table of this version: read the line, and ask the vendor"

ALONE = "follow the errors beside it; when there are none, open a case with the vendor"
CABLES = "look for a bad cable, transceiver or seat, and at its temperature"
DAILY = "open a case with the vendor when it comes more than once a day"
HOST = "look into the other logs of the host: something acted on the GPU, perhaps from outside"
LINK_FAILURE = "look for a link that went down in the 30 s before; when there is none, open a case with the vendor"
PEER = "look at the GPU or switch at the other end of the link: it took the link down"
SIGNAL = "inspect the link's signal path"
SOFTWARE = "find out which software or user took the link down"
SOFTWARE_OR_SIGNAL = f"{SOFTWARE}; nobody did: {SIGNAL}"

Outcome = tuple[str, str]
"""What to do at once, and if it recurs."""
_OVER: Outcome = (NOTHING, NOTHING)
_NOTED: Outcome = (NOTHING, SUPPORT)
_RESET: Outcome = (RESET, SUPPORT)
PROMOTED = _RESET
"""Of an error that the driver has made a fatal one, where the unit has a bit that says so."""
_HANDLED: Outcome = (FOLLOW_154, NOTHING)
_STOPPED: Outcome = (FOLLOW_154, SUPPORT)
_LINK: Outcome = (FOLLOW_154, LINK_FAILURE)
_SPURIOUS = {0x8000_0000: _NOTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A part of the NVLink engine."""

    xid: int
    names: tuple[str, ...]
    """As the text has them, before and after R575."""
    before: int
    """Its subcode before R575: bits 5 to 9 of the first register."""
    since: tuple[int, ...]
    """Its subcodes since: bits 0 to 6."""
    by_status: Mapping[int, Outcome]
    """The whole second register -> outcome."""
    by_reason: Mapping[int, Outcome] | None = None
    """Bits 20 to 25 of the first register -> outcome, whatever the status. None: they have to be 0."""
    promoted: frozenset[int] = frozenset()
    """Statuses that ask for a reset when the driver has made the error a fatal one."""

    @property
    def group(self) -> int:
        """Bits 0 to 4 of the first register before R575."""
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
    """What a text says, and what it asks for."""

    words: str
    severity: Severity
    action: str
    if_it_recurs: str


_LINE = re.compile(
    r"(?P<unit>[A-Za-z]\w*(?: Degraded)?)\s+(?P<fatal>Fatal|Non-?fatal)\s+XC\s*\d+\s+i\s*\d+\s+Link\s+(?P<link>-?\d+)"
    r"\s*[(\[](?P<registers>[^)\]]*)[)\]]",
    re.IGNORECASE,
)
_REGISTER = re.compile(r"0x([0-9a-f]{1,8})\b", re.IGNORECASE)


def decode(xid: int, text: str) -> DecodedEvent | None:
    """What a text says; None when it has not this form."""
    match = _LINE.search(text)
    if match is None:
        return None
    registers = [int(one, 16) for one in _REGISTER.findall(match["registers"])]
    fatal = match["fatal"].lower() == "fatal"
    where = "" if match["link"].startswith("-") else f" of link {int(match['link'])}"
    words = f"{match['unit']}{where}: {'fatal' if fatal else 'not fatal'}."
    action, if_it_recurs = _outcome(xid, match["unit"], registers) or (READ_IT, SUPPORT)
    return DecodedEvent(words, _severity(action, fatal=fatal), action, if_it_recurs)


def _outcome(xid: int, name: str, registers: list[int]) -> Outcome | None:
    info, status = (*registers, 0, 0)[:2]
    named = (unit for unit in TABLE if unit.xid == xid and name.upper() in (one.upper() for one in unit.names))
    for unit in named:
        if promoted_bit := _promoted_bit(unit, info):
            return _of_unit(unit, info >> 20 & 0x3F, status, promoted=bool(info >> promoted_bit & 1))
    return None


def _promoted_bit(unit: Unit, info: int) -> int | None:
    """The bit that says whether the error was made a fatal one; None when the register is not this unit's."""
    if info & 0x7F in unit.since:
        return 7
    return 10 if info & 0x3FF == unit.before << 5 | unit.group else None


def _of_unit(unit: Unit, reason: int, status: int, *, promoted: bool) -> Outcome | None:
    if unit.by_reason is not None:
        return unit.by_reason.get(reason)
    if reason:
        return None
    return PROMOTED if promoted and status in unit.promoted else unit.by_status.get(status)


def _severity(action: str, *, fatal: bool) -> Severity:
    if action == RESET or (action == READ_IT and fatal):
        return Severity.CRITICAL
    return Severity.WARNING if fatal or action in {FOLLOW_154, READ_IT} else Severity.INFO
