"""Explains error events by the shipped Xid table, the operator's own rows, and details decoded from the log line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gpumon.health import nvlink5, xid_texts, xids
from gpumon.health.verdict import ACTIONS, Action
from gpumon.health.xid_texts import LINK_DOWN, RECOVERY, Scope, recovery_of, scope
from gpumon.health.xids import NOTHING, REBOOT, SUPPORT, XIDS, Severity, Xid, unknown
from gpumon.model.driver_errors import driver_error, nic_error
from gpumon.model.error_event import AER, AER_FATAL, CANCELLED_BY, DRIVER, NIC, OVERRUN, SXID, ErrorEvent

_WORST_FIRST = (Severity.CRITICAL, Severity.WARNING, Severity.INFO)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The meaning of an error event for an operator: name, severity, actions and decoded details."""

    name: str
    severity: Severity
    action: str
    if_it_recurs: str
    verdict_action: Action
    """Action of the verdict that the event raises."""
    is_own_action: bool = False
    """Whether `action` is a text of the operator (xids.file) that is not in the shipped table."""
    detail: str = ""
    """Details decoded from the line's registers and numbers, in sentences; empty if there are none."""


@dataclass(frozen=True)
class Catalogue:
    """The Xid table of this host by code: the shipped rows, and the operator's rows that override or extend them."""

    rows: Mapping[int, Xid]

    @cached_property
    def critical(self) -> frozenset[int]:
        return frozenset(code for code, row in self.rows.items() if row.severity is Severity.CRITICAL)

    def xid(self, code: int) -> Xid:
        """Return the row of an Xid. For a code that is not in the table, return a row of severity warning."""
        return self.rows.get(code) or unknown(code)

    def with_rows(self, rows: Mapping[int, Xid]) -> Catalogue:
        """Return a copy of the catalogue in which these rows override or extend its rows."""
        return Catalogue({**self.rows, **rows})

    def explain(self, event: ErrorEvent) -> Explanation:
        """Return the explanation of an event, taken from the most severe of its log lines.

        An Xid 154 (recovery action changed) is explained by its newest line alone. An event that a later Xid cancelled
        (ErrorEvent.cancelled_wall) has severity info and needs no action.
        """
        texts = (event.text,) if event.code == RECOVERY_ACTION else event.all_texts
        read = self.read(event.kind, event.code, texts, fatal=event.fatal)
        if event.cancelled_wall is None:
            return read
        return replace(
            read,
            severity=Severity.INFO,
            action=NOTHING,
            verdict_action=Action.NONE,
            detail=f"{read.detail} Xid {CANCELLED_BY[event.code]} cleared it.".lstrip(),
        )

    def read(self, kind: str, code: int, texts: Sequence[str] = ("",), *, fatal: bool | None = None) -> Explanation:
        """Return the explanation of an error code. For an Xid it is taken from the most severe of its log lines.

        `kind`: XID, SXID, OVERRUN, AER, NIC or DRIVER. `texts`: what follows the code in each line. `fatal`: whether an
        NVSwitch error is fatal; None if its line does not state it.
        """
        if kind == SXID:
            return _sxid(code, texts, fatal=fatal)
        if kind == OVERRUN:
            return OVERRUN_EXPLAINED
        if kind == AER:
            return AER_EXPLAINED if code == AER_FATAL else AER_NONFATAL_EXPLAINED
        if kind == NIC:
            return _nic(code)
        if kind == DRIVER:
            return _driver(code)
        row = self.xid(code)
        return min(
            (explain(row, text) for text in texts), key=lambda explanation: _WORST_FIRST.index(explanation.severity)
        )


SHIPPED = Catalogue(XIDS)

_TEXTS: Mapping[Action, tuple[str, ...]] = {
    Action.NONE: (
        NOTHING,
        xid_texts.THRESHOLD.action,
        "monitor ECC counters and row remapping",
        "wait for Xid 162, which clears it",
        "update the vGPU software",
    ),
    Action.RESTART: (xids.RESTART, nvlink5.FOLLOW_154),
    Action.RESET: (xids.RESET, "reset the GPU"),
    Action.REBOOT: (REBOOT, "reboot the node", "restart the virtual machine"),
    Action.INSPECT: (
        SUPPORT,
        xids.DECODE,
        nvlink5.READ_IT,
        *(bit.action for bit in xid_texts.WORST_FIRST if bit not in {xid_texts.THRESHOLD, xid_texts.HARMLESS}),
        "check power cables and seating",
        "check the peer GPU for a fault first",
        "compare its memory size with that of the other GPUs",
        "inspect the link that the event's registers name",
        unknown(0).action,
        "perform the action that the event's text names",
        "reset the GPU when it is idle, if a remapping is pending",
        "see Xid 48",
        xids.ACTIVATE_REPAIR,
        "see the Xid reported with it; if there is none, open a case with the vendor",
        "see the Xid reported with it; if there is none, restart the fabric manager",
    ),
    Action.REPLACE: (xids.REPLACE, xids.REPLACE_SOON),
}
XID_ACTIONS: Mapping[str, Action] = {text: action for action, texts in _TEXTS.items() for text in texts}
"""Verdict action by the text of an Xid's first action. Contains the texts of all shipped rows and decoders."""

RECOVERY_ACTION, NVLINK, FOLLOWER = 154, 74, 45
"""Xids whose log text is decoded, in addition to those of nvlink5.CODES and xid_texts.VARIANTS."""


@lru_cache(1024)
def explain(row: Xid, text: str) -> Explanation:
    """Return the explanation of an Xid. `text` is what follows the code in the kernel log.

    Fields that the operator set in `row` take precedence over details decoded from the text.
    """
    row = xid_texts.row_for(row, text)
    plain = Explanation(
        name=row.name,
        severity=row.severity,
        action=row.action,
        if_it_recurs=row.if_it_recurs,
        verdict_action=XID_ACTIONS.get(row.action, Action.INSPECT),
    )
    read = plain
    if row.code == RECOVERY_ACTION:
        read = _recovery(plain, text)
    elif row.code == NVLINK and (bits := xid_texts.decode_registers(text)) is not None:
        read = replace(plain, detail=bits.words, action=bits.action, verdict_action=XID_ACTIONS[bits.action])
    elif row.code in nvlink5.CODES and (link := nvlink5.decode(row.code, text)) is not None:
        read = replace(
            plain,
            detail=link.words,
            severity=link.severity,
            action=link.action,
            if_it_recurs=link.if_it_recurs,
            verdict_action=XID_ACTIONS[link.action],
        )
    elif row.code == FOLLOWER and (cause := _CAUSE.search(text)) is not None:
        read = replace(plain, detail=f"It follows Xid {cause[1]}.", action=f"see Xid {cause[1]} of this GPU")
    if "action" in row.ordered:
        read = replace(read, verdict_action=plain.verdict_action, is_own_action=row.action not in XID_ACTIONS)
    return replace(read, **{name: getattr(row, name) for name in row.ordered if name in _ORDERED})


_ORDERED = frozenset({"severity", "action", "if_it_recurs"})
_CAUSE = re.compile(r"caused by previous Xid (\d{1,6})")
_CHANGED = re.compile(r"\bto 0x([0-9a-f]{1,8})\s*(?:\(([^)]{1,60})\))?", re.IGNORECASE)


def _recovery(plain: Explanation, text: str) -> Explanation:
    match = _CHANGED.search(text)
    if match is None:
        return plain
    number, words = int(match[1], 16), match[2] or "without a name"
    requested = recovery_of(number)
    action = requested.next_step if number in RECOVERY else f"{requested.next_step}: {words}"
    return replace(
        plain,
        severity=Severity.INFO if requested.of_node else requested.severity,
        action=action,
        verdict_action=requested.action,
        detail=f"The driver now requests: {words}.",
    )


def _sxid(code: int, texts: Sequence[str], *, fatal: bool | None) -> Explanation:
    explanation = _SXIDS[scope(code, texts, fatal=fatal)]
    if code in LINK_DOWN:
        return replace(explanation, name="A link of an NVSwitch went down")
    unknown_severity = explanation is _SXIDS[Scope.MINOR] and fatal is None
    return replace(explanation, name="NVSwitch error, of unknown severity") if unknown_severity else explanation


_SXIDS: Mapping[Scope, Explanation] = {
    Scope.HARMLESS: Explanation(
        name="NVSwitch error, harmless",
        severity=Severity.INFO,
        action=NOTHING,
        verdict_action=Action.NONE,
        if_it_recurs=NOTHING,
    ),
    Scope.MINOR: Explanation(
        name="NVSwitch error, not fatal",
        severity=Severity.WARNING,
        action="monitor the NVLinks of all GPUs",
        verdict_action=Action.NONE,
        if_it_recurs=SUPPORT,
    ),
    Scope.LINK: Explanation(
        name="A link of an NVSwitch failed",
        severity=Severity.CRITICAL,
        action="reset the GPU behind the link, unless it was reset or lost at that time",
        verdict_action=Action.RESET,
        if_it_recurs="check the GPU's seating, the baseboard and the NVLink cartridge",
    ),
    Scope.FABRIC: Explanation(
        name="NVSwitch error, fatal",
        severity=Severity.CRITICAL,
        action="drain the node and reboot it: its GPUs and NVSwitches must be reset together",
        verdict_action=Action.REBOOT,
        if_it_recurs=SUPPORT,
    ),
}


OVERRUN_EXPLAINED = Explanation(
    name="Records of the kernel log were lost",
    severity=Severity.WARNING,
    action="find Xids of that time in the journal: journalctl -k -g 'Xid|SXid'",
    verdict_action=Action.INSPECT,
    if_it_recurs="enlarge the kernel's buffer: boot with log_buf_len=4M",
)


AER_EXPLAINED = Explanation(
    name="Fatal PCIe error",
    severity=Severity.CRITICAL,
    action=REBOOT,
    verdict_action=Action.REBOOT,
    if_it_recurs="reseat the board or its riser; check power",
)
AER_NONFATAL_EXPLAINED = Explanation(
    name="PCIe error that is not fatal",
    severity=Severity.WARNING,
    action=NOTHING,
    verdict_action=Action.NONE,
    if_it_recurs=AER_EXPLAINED.if_it_recurs,
)


def _driver(code: int) -> Explanation:
    """Return the explanation of an error that names no device. It raises no verdict: Xids and NVML report the GPU."""
    error = driver_error(code)
    return Explanation(
        name=error.meaning,
        severity=Severity.WARNING,
        action=error.action,
        verdict_action=Action.NONE,
        if_it_recurs="update the driver",
    )


def _nic(code: int) -> Explanation:
    error = nic_error(code)
    action = Action(error.action)
    return Explanation(
        name=error.meaning,
        severity=Severity.CRITICAL if error.fatal else Severity.WARNING,
        action=NOTHING if action is Action.NONE else ACTIONS[action],
        verdict_action=action,
        if_it_recurs="update the adapter's firmware, then replace it",
    )
