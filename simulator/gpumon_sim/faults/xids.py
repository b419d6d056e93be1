"""Rows for faults that are reported by Xids alone, or by Xids first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumon.health.verdict import Action
from gpumon_sim.faults.conditions import has_nvlinks, has_recovery_action, nvlink5, several
from gpumon_sim.faults.row import MINUTE, TEMPERATURE_CALLS, FaultRow, ScenarioStep, kernel_log, of_gpu, xid, xids

_CRITICAL: Mapping[int, tuple[str, str, Action]] = {
    46: ("the GPU stopped processing", "GPU stopped processing", Action.RESET),
    48: (
        "an uncorrectable error in memory",
        "An uncorrectable double bit error (DBE) has been detected.",
        Action.RESET,
    ),
    54: ("the power cable is missing", "Auxiliary power is not connected to the GPU board.", Action.INSPECT),
    62: ("the micro-controller halted", "Internal micro-controller halt", Action.RESET),
    64: ("a row could not be remapped", "Failed to persist row remap table", Action.RESET),
    74: (
        "an NVLink error",
        "NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)",
        Action.INSPECT,
    ),
    79: ("fell off the bus, and still answers", "GPU has fallen off the bus.", Action.REBOOT),
    95: ("an uncontained memory error", "Uncontained ECC error", Action.RESET),
    110: ("a security fault", "Security fault", Action.RESET),
    140: ("an unrecovered ECC error", "Unrecovered ECC error", Action.RESET),
    143: ("the GPU could not be initialised", "GPU initialization error", Action.RESET),
    155: ("an NVLink error defined by software", "NVLink: SW defined error", Action.RESET),
    156: ("a resource is retired", "Resource retirement event", Action.RESET),
    158: ("a fatal timeout", "GPU fatal timeout", Action.RESET),
    167: ("a fatal timeout of PCIe", "PCIe fatal timeout", Action.REBOOT),
    175: ("the memory does not answer", "GPU memory subsystem timeout (type 2) detected", Action.RESET),
    169: ("the security processor halted", "SEC2 micro-controller halt", Action.REBOOT),
}
_WARNINGS = (
    (157, "a resource could not be retired", "Resource retirement failure", Action.NONE),
    (92, "many corrected errors", "High single-bit ECC error rate", Action.NONE),
    (94, "a contained memory error", "Contained memory error", Action.RESTART),
    (163, "power smoothing lost", "Power smoothing lost", Action.NONE),
    (161, "no spare channel", "Repairing Channel failed as there are no more spare channels.", Action.REPLACE),
)
_DEAD_SWITCH = (
    ("is too hot and turns itself off", "10006, TSENSE OVERT is asserted. Shutting Down"),
    ("reports a fatal error without a link", "10001, Fatal, Unexpected PRI error"),
    ("could not be initialised", "26002, Failed to boot SOE(1)"),
)
"""Lines of the driver about a whole NVSwitch (therm_ls10.c, intr_ls10.c and soe_ls10.c of NVIDIA's open kernel module).
"""
_STICKING = (
    (13, "Graphics SM Warp Exception on (GPC 3, TPC 2, SM 1): Out Of Range Address", Action.INSPECT),
    (31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f54_1a000000", Action.INSPECT),
    (109, "CTX SWITCH TIMEOUT, Info 0x3c046", Action.RESET),
)


def rows() -> Iterator[FaultRow]:
    for code, (words, text, action) in _CRITICAL.items():
        yield FaultRow(name=f"Xid {code}: {words}", check="gpu_xid_critical", action=action, steps=xid(code, text))
    # kernel_gsp_gb100.c of NVIDIA's open kernel module: all channels are lost, and the GPU needs a reset.
    yield FaultRow(
        name="Xid 94: the GPU's system processor failed",
        check="gpu_xid_critical",
        action=Action.RESET,
        steps=xid(94, "GSP-RISCV instance 0 fatal error"),
    )
    # kernel_gsp_ecc_gb100.c: Xid 172 comes with the Xid that requires the action.
    yield FaultRow(
        name="Xid 48 with its details as Xid 172",
        check="gpu_xid_critical",
        action=Action.RESET,
        steps=(
            *xid(48, "An uncorrectable double bit error (DBE) has been detected."),
            *xid(172, "An uncorrectable ECC error detected in SRAM"),
        ),
    )
    for code in (119, 120):
        yield FaultRow(
            name=f"Xid {code}: the GPU's firmware does not answer",
            check="gpu_stuck",
            action=Action.RESET,
            steps=xid(code, "Timeout after 6s of waiting for RPC response from GPU0 GSP!", hang=TEMPERATURE_CALLS),
        )
    yield FaultRow(
        name="Xid 136: an NVLink could not be trained",
        check="gpu_xid_critical",
        action=Action.RESET,
        steps=xid(136, "NVLink: link training failed"),
        on=has_nvlinks,
    )
    yield FaultRow(
        name="Xid 149: an NVLink 5 is down",
        check="gpu_xid_critical",
        action=Action.RESET,
        steps=xid(
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        ),
        on=nvlink5,
    )
    yield FaultRow(
        name="Xid 154: the driver asks for a reset",
        check="gpu_recovery_action",
        on=has_recovery_action,
        action=Action.RESET,
        steps=xid(
            154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", set={"recovery_action": 1}
        ),
    )
    yield FaultRow(
        name="Xid 154: the driver asks for a reboot",
        check="gpu_recovery_action",
        on=has_recovery_action,
        action=Action.REBOOT,
        steps=xid(
            154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", set={"recovery_action": 2}
        ),
    )
    for code, words, text, action in _WARNINGS:
        yield FaultRow(name=f"Xid {code}: {words}", check="gpu_xid", action=action, steps=xid(code, text))
    yield FaultRow(
        name="Xid 94 twice within a quarter of an hour",
        check="gpu_xid",
        action=Action.RESET,
        steps=xids(94, "Contained memory error", 2, 10 * MINUTE),
    )
    yield FaultRow(
        name="Xid 48 occurs five times",
        check="gpu_xid_recurring",
        steps=xids(48, "An uncorrectable double bit error (DBE)", 5, 4 * MINUTE),
    )
    for code, text, action in _STICKING:
        yield FaultRow(
            name=f"Xid {code} recurs on one GPU only",
            check="gpu_xid_app_repeated",
            action=action,
            steps=xids(code, text, 2, 10 * MINUTE),
        )
    yield FaultRow(
        name="Xid 31 on two GPUs",
        check="xid_app_everywhere",
        where="node",
        action=Action.RESTART,
        steps=(ScenarioStep(gpu={"xids": [31]}, node={"gpus": {0: {"xids": [31]}}}),),
        on=several,
    )
    yield FaultRow(
        name="Xid 79 of an unknown GPU",
        check="xid_unplaced",
        where="node",
        action=Action.REBOOT,
        before={"busy": True, "gpus": {1: {"absent": True}}},
        steps=kernel_log("NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus."),
        on=several,
    )
    yield FaultRow(
        name="an Xid that is not in the catalogue",
        check="gpu_xid_unknown",
        action=Action.NONE,
        steps=xid(999_001, "Something new"),
    )
    yield FaultRow(
        name="2000 Xids a second",
        check="gpu_xid_storm",
        action=Action.RESET,
        steps=of_gpu(xids=[{"xid": 94, "at": "now", "rate": 2000}]),
        within=5 * MINUTE,
        second_notification="the first Xid, and then that they flood the kernel log",
    )
    yield FaultRow(
        name="an NVSwitch reports a fatal error of one link",
        check="nvswitch_link_down",
        action=Action.RESET,
        where="node",
        steps=kernel_log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 24007, Fatal, Link 28 sourcetrack timeout error"),
        on=lambda profile: bool(profile.switches),
    )
    for words, line in _DEAD_SWITCH:
        yield FaultRow(
            name=f"an NVSwitch {words}",
            check="nvswitch_error",
            action=Action.REBOOT,
            where="node",
            steps=kernel_log(f"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): {line}"),
            on=lambda profile: bool(profile.switches),
        )
    yield FaultRow(
        name="an NVSwitch reports a fatal error",
        check="nvswitch_error",
        action=Action.REBOOT,
        where="node",
        steps=kernel_log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12020, Fatal, Link 30 egress sequence ID error"),
        on=lambda profile: bool(profile.switches),
    )
