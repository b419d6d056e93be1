"""CHECKS: the NVIDIA driver, GPUs that cannot be read (one check for each fault), and fewer GPUs than expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gpumon.health.check_row import HOUR, MINUTE, Check, Latch, Paging, any_device
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.products import BASES, Basis
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import NODE, PASSED, Action, Clearance, Finding, Level, clear, fail, unknown
from gpumon.model.driver_errors import NVLINK_DISCOVERY
from gpumon.model.error_event import DRIVER, FIRMWARE_SILENT, INIT_FAILED, XID
from gpumon.model.snapshot import CONTAINER, SANDBOX


@dataclass(frozen=True, slots=True)
class Advice:
    """The check of a fault, its meaning and what an operator does about it."""

    check: str
    meaning: str
    action: str


FAULTS: Mapping[str, Advice] = {
    "lost": Advice(
        "gpu_lost",
        "It fell off the bus: the driver can no longer reach it.",
        "Drain the node and reboot it. If the GPU stays lost, power-cycle the node. Look for Xid 79 in the kernel log. "
        "If it falls off again, reseat or replace the GPU.",
    ),
    "missing": Advice(
        "gpu_missing",
        "It was present before, and the driver no longer lists it.",
        "Drain the node and reboot it. If `lspci -d 10de:` does not list the GPU, power-cycle the node instead.",
    ),
    "reset_required": Advice(
        "gpu_reset_required",
        "It does not work until it is reset.",
        "Drain the node and reset the GPU. If `nvidia-smi --gpu-reset -i <uuid>` is refused, reboot the node.",
    ),
    "no_permission": Advice(
        "gpu_denied",
        "The agent has no permission to open it; its state is unknown.",
        "Check the permissions of /dev/nvidia* and the unit's DeviceAllow and groups.",
    ),
    "stuck": Advice(
        "gpu_stuck",
        "A driver call on it does not return. The other GPUs are still monitored.",
        "Drain the node and reboot it. After Xid 119 or 120, first try a GPU reset. Do not `kill -9` processes on this "
        "GPU: they may not exit, and keep the driver open.",
    ),
    "init_failed": Advice(
        "gpu_init_failed",
        "The driver could not start it.",
        "Drain the node and reset the GPU. If a reset fails, reboot the node. `journalctl -k -g NVRM` shows the cause.",
    ),
    "unknown": Advice(
        "gpu_unreadable",
        "It cannot be read.",
        "Drain the node and reset the GPU. If a reset fails, reboot the node. `journalctl -k -g NVRM` shows the cause.",
    ),
}
"""The meaning of each GPU fault and the operator's action, by fault."""

_BY_OPERATOR = frozenset({Basis.ACCEPTED, Basis.CONFIGURED})
"""Bases of the expected number of GPUs that an operator has set."""


def _fault_check(fault: str, action: Action, level: Level = Level.FAIL) -> Callable[[GpuCase], Finding | None]:
    def evaluate(gpu: GpuCase) -> Finding | None:
        state = gpu.state
        if state.fault == fault:
            detail = f" {state.detail.rstrip('.')}." if state.detail else ""
            reason = FAULTS[fault].meaning + detail + _message(gpu.facts, XID, INIT_FAILED, (state.bus_id,))
            return unknown(reason, action) if level is Level.UNKNOWN else fail(reason, action, pci_bus_id=state.bus_id)
        return None if state.fault is not None or state.released else PASSED

    return evaluate


def stuck_gpu(gpu: GpuCase) -> Finding | None:
    """Return a failure for a GPU whose driver call does not return. If its firmware is silent, a reset may suffice."""
    finding = _fault_check("stuck", Action.REBOOT)(gpu)
    silent = any(event.code in FIRMWARE_SILENT for event in gpu.events("gpu_stuck"))
    if finding is None or not finding.level:
        return finding
    finding = finding._replace(reason=finding.reason + nvlink_message(gpu.facts))
    return finding._replace(action=Action.RESET) if silent else finding


def missing_gpu(gpu: GpuCase) -> Finding | None:
    """Return a failure for a GPU that was present, or unknown if this container may lack it on purpose."""
    state = gpu.state
    if state.fault != "missing":
        return None if state.fault is not None or state.released else PASSED
    board = state.stored
    rebooted = board is not None and board.boot_id != gpu.facts.boot_id
    where = {"pci_bus_id": state.bus_id} if board is None else {"pci_bus_id": board.bus_id, "serial": board.serial}
    evidence: dict[str, Any] = {name: value for name, value in where.items() if value}
    reason = (
        f"{FAULTS['missing'].meaning} It is {state.detail}.{_message(gpu.facts, XID, INIT_FAILED, (state.bus_id,))}"
    )
    if _may_be_withheld(gpu):
        given = "This container may have been given fewer GPUs than before"
        return unknown(f"{reason} {given}: if this is intended, run `gpumon inventory accept`.", **evidence)
    action = Action.INSPECT if rebooted else Action.REBOOT
    return fail(reason, action, **evidence)


def nvlink_message(facts: Facts) -> str:
    """Return the driver's last message in this boot that it cannot discover NVLinks, after a space.

    A driver that repeats it for hours blocks its callers: https://github.com/leptonai/gpud/pull/1271.
    """
    return _message(facts, DRIVER, NVLINK_DISCOVERY, ("",))


def _message(facts: Facts, kind: str, code: int, bus_ids: tuple[str, ...]) -> str:
    """Return the driver's last message of this kind in this boot about one of these GPUs, after a space; or ""."""
    texts = [
        event.text.rstrip(".")
        for event in facts.events
        if (event.kind, event.code, event.last.boot_id) == (kind, code, facts.boot_id)
        and event.bus_id in bus_ids
        and event.text
    ]
    return f" The driver logged: {texts[-1]}." if texts else ""


def _may_be_withheld(gpu: GpuCase) -> bool:
    """Return whether this container may have been restarted without this GPU, which is still on the host's bus."""
    facts, expected = gpu.facts, gpu.facts.expectation
    if expected.place != CONTAINER or not gpu.state.restored or gpu.state.bus_id not in (facts.bus or {}):
        return False
    return expected.basis not in _BY_OPERATOR or (facts.node.gpus_visible or 0) >= expected.count


def count(facts: Facts) -> Finding | None:
    """Return a failure if the driver reports fewer GPUs than expected or, in a sandbox, more than can be opened.

    Unknown if this guest or container may have been given fewer GPUs. Missing GPUs have verdicts of their own.
    """
    expected, visible = facts.expectation, facts.node.gpus_visible
    if visible is None or any(state.released for state in facts.gpus):
        return None
    lacking = expected.count - visible - sum(state.fault == "missing" for state in facts.gpus)
    words = f"The driver reports {visible:.0f} GPU{'' if visible == 1 else 's'}"
    if lacking > 0:
        reason = f"{words}; expected are {expected.count}, {BASES[expected.basis]}."
        if expected.unlisted:
            reason += f" On the PCI bus but not reported by the driver: {', '.join(expected.unlisted)}."
        reason += _message(facts, XID, INIT_FAILED, expected.unlisted)
        action = Action.REBOOT if expected.unlisted else Action.INSPECT
        return fail(reason, action, gpus_visible=visible, gpus_expected=expected.count)
    if expected.place == SANDBOX and facts.bus is not None and visible > (opened := len(facts.bus)):
        reason = f"{words}, but only {opened} can be opened; without the PCI bus the others have no name."
        return fail(reason, Action.INSPECT, gpus_visible=visible, gpus_opened=opened)
    if expected.may is not None and expected.may > visible:
        more = f"expected may be {expected.may}, {BASES[expected.may_basis]}"
        given = f"this {expected.place} may have been given fewer"
        remedy = "Set gpus.expected_count, or run `gpumon inventory accept`"
        return unknown(f"{words}; {more}, but {given}. {remedy}.", gpus_visible=visible)
    return clear(Clearance.GONE) if _is_expectation_newer(facts) else PASSED


def _is_expectation_newer(facts: Facts) -> bool:
    """Return whether the operator has set the expected number since the verdict was raised."""
    verdict, expected = facts.open.get(("gpu_count_mismatch", NODE)), facts.expectation
    return (
        verdict is not None
        and expected.basis in _BY_OPERATOR
        and verdict.evidence.get("gpus_expected") != expected.count
    )


def _steps(fault: str) -> str:
    return f"1. {FAULTS[fault].action}\n2. If it recurs: run the vendor's diagnostics, replace the board.\n"


SOFTWARE_ERRORS = ("LibraryNotFound", "DriverNotLoaded", "LibRmVersionMismatch", "NoPermission", "SimulationError")
"""Names of NVML errors, with which the notice about the driver begins, that no hardware causes."""
STUCK = SampleWindow("gpumon_nvml_stuck_seconds", 5 * MINUTE)


def driver_down(facts: Facts) -> Finding | None:
    """Return a failure if the driver does not answer; None if it is not queried: in a release, or without GPUs."""
    if facts.node.nvml_up is None:
        return None
    if facts.node.nvml_up:
        return clear()  # a driver that answers needs no window of samples
    stuck = facts.node.nvml_stuck_seconds or 0.0
    # While the sampler is replaced no call is in progress, so earlier samples count too.
    hangs = facts.node.abandoned_children or any(max(series.values) > 0 for series in facts.series(STUCK))
    silent = "a call into it does not return" if hangs else "no cause is reported"
    words = facts.notices.get("driver", silent).rstrip(".")
    software = words.startswith(SOFTWARE_ERRORS) and not facts.node.abandoned_children
    action = Action.FIX if software else Action.REBOOT if hangs else Action.INSPECT
    return fail(f"The NVIDIA driver cannot be used: {words}.{nvlink_message(facts)}", action, nvml_stuck_seconds=stuck)


CHECKS = (
    Check(
        name="gpu_lost",
        pages=Paging.NIGHT,
        help="The GPU fell off the bus.",
        steps=_steps("lost"),
        gpu=_fault_check("lost", Action.REBOOT),
        latch=Latch(),
    ),
    Check(
        name="gpu_missing",
        help="A GPU that was present is missing.",
        steps=_steps("missing"),
        gpu=missing_gpu,
        after=MINUTE,  # a reloaded driver initialises one GPU after the other
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_reset_required",
        help="The GPU does not work until it is reset.",
        steps=_steps("reset_required"),
        gpu=_fault_check("reset_required", Action.RESET),
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_init_failed",
        help="The driver could not initialise the GPU.",
        steps=_steps("init_failed"),
        gpu=_fault_check("init_failed", Action.RESET),
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_stuck",
        pages=Paging.NIGHT,
        help="A driver call on the GPU does not return.",
        steps=_steps("stuck"),
        gpu=stuck_gpu,
        after=15.0,
        latch=Latch(quiet=HOUR),
        inhibited_by={"gpu_lost": "same"},
    ),
    Check(
        name="gpu_unreadable",
        help="The GPU cannot be read, and the driver reports no cause.",
        steps=_steps("unknown"),
        gpu=_fault_check("unknown", Action.RESET),
        after=2 * MINUTE,  # without persistence mode the driver opens the GPUs one by one, each in up to 3 s
        grace=True,  # as for `gpu_driver_down`: without a driver no GPU can be read
        inhibited_by={"gpu_driver_down": "node", "gpu_lost": "same"},
    ),
    Check(
        name="gpu_denied",
        levels=(),
        help="The agent has no permission to open the GPU.",
        steps=_steps("no_permission"),
        gpu=_fault_check("no_permission", Action.NONE, Level.UNKNOWN),
    ),
    Check(
        name="gpu_count_mismatch",
        help="There are fewer GPUs than expected.",
        steps="""\
1. `gpumon inventory` lists the GPUs that are present, the expected number and its basis.
2. `lspci -d 10de:` and `journalctl -k -g NVRM`: is one on the bus that the driver could not initialise (RmInitAdapter)?
   Drain and reboot the node.
3. If it is not on the bus: drain and power-cycle the node, then check seating, riser, power and the BMC's list.
4. If the number is intended: `gpumon inventory accept`, or set `gpus.expected_count`.
""",
        node=count,
        after=MINUTE,
        grace=True,
        inhibited_by={"gpu_driver_down": "node", **any_device("gpu_lost", "gpu_init_failed", "gpu_stuck")},
        # A GPU that could never be opened is another one than the lost GPU.
        inhibited_if=lambda verdict, _cause, together: together and "gpus_opened" not in verdict.evidence,
    ),
)

DRIVER_CHECKS = (
    Check(
        name="gpu_driver_down",
        pages=Paging.NIGHT,
        help="The NVIDIA driver does not respond: no reading of the GPUs is current.",
        steps="""\
1. `lsmod | grep nvidia` and `dmesg | grep -i nvrm` show whether the module is loaded and what it logged.
2. The reason names the error: driver not loaded, versions that differ, no permission, or the call that
   hangs, and since when.
3. Versions differ after a driver update without a reboot: reload the kernel modules or reboot.
4. Calls hang: drain and reboot the node; a process in state D cannot be killed.
""",
        node=driver_down,
        windows=(STUCK,),
        notice="driver",
        after=MINUTE,
        grace=True,
    ),
)
