"""TABLE: every fault that is injected, where it can happen, and what has to be said of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from gpumon.health.terms import Action
from gpumon.sim.board import Profile
from truth import allreduce
from truth.fault import NOW, PORT, SILENT, Fault, Step, growing, once
from truth.world import World

UNSUPPORTED = 0
"""Fabric state of a board without a fabric: the driver answers, and there is no registration that could go wrong."""
HANGING = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]
"""One of them is called in every poll of every GPU."""
MINUTE, HOUR = 60.0, 3600.0
ADA = 8
"""NVML's number; boards from it on count errors of PCIe by their kind."""
MANY = 8
"""GPUs of which none is slow, and all together are."""


def _several(profile: Profile) -> bool:
    return len(profile.bus_ids) > 1


def _linked(profile: Profile) -> bool:
    """Its NVLinks are up and in use."""
    return bool(profile.board.links) and profile.links_active and not profile.mig


def _nvlink4(profile: Profile) -> bool:
    return _linked(profile) and not profile.board.nvlink5


def _nvlink5(profile: Profile) -> bool:
    return _linked(profile) and profile.board.nvlink5


def _fabric(profile: Profile) -> bool:
    return profile.fabric is not None and profile.fabric.state != UNSUPPORTED and not profile.guest


def _managed(profile: Profile) -> bool:
    return "fabric_manager" in profile.services


def _imex(profile: Profile) -> bool:
    return "imex" in profile.services


def _c2c(profile: Profile) -> bool:
    return bool(profile.board.c2c_links)


def _whole(profile: Profile) -> bool:
    """MIG is off: GPUs that are divided have no volatile ECC counts, no utilization and no clocks of their own."""
    return not profile.mig


def _remaps(profile: Profile) -> bool:
    return profile.board.remap_banks is not None and not profile.mig


def _retires(profile: Profile) -> bool:
    return profile.board.remap_banks is None


def _advises(profile: Profile) -> bool:
    """Its driver tells what it would have done."""
    return int(profile.driver.partition(".")[0]) >= 570


def _ported(profile: Profile) -> bool:
    return profile.ports is not None


def _hot_memory(profile: Profile) -> bool:
    return profile.board.memory_temperature_idle is not None and profile.board.thresholds_told


def _xid(code: int, text: str, **also: Any) -> tuple[Step, ...]:
    """An Xid that both NVML and the kernel log tell of."""
    return (Step(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def _xids(code: int, text: str, times: int, pause: float) -> tuple[Step, ...]:
    """Several, with so many seconds between them."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(Step(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def _restarted(**gpu: Any) -> tuple[Step, ...]:
    """So that the GPU is looked up anew."""
    return (Step(gpu=gpu), Step(at=1.0, gpu=gpu, act=World.restart))


def _port(**fault: Any) -> tuple[Step, ...]:
    return (Step(node={"ports": {PORT: fault}}),)


def _counter(**counters: Any) -> tuple[Step, ...]:
    return _port(counters=counters)


def _flaps(times: int, pause: float, down: Mapping[str, Any]) -> tuple[Step, ...]:
    """Down for half of each pause."""
    return tuple(step for n in range(times) for step in (Step(at=n * pause, node=down), Step(at=(n + 0.5) * pause)))


def _rows() -> Iterator[Fault]:
    yield from _unreadable()
    yield from _told_by_xids()
    yield from _memory()
    yield from _heat_and_power()
    yield from _links()
    yield from _buses_and_ports()
    yield from _work()
    yield from allreduce.rows()
    yield from _agent()


def _unreadable() -> Iterator[Fault]:
    """GPUs and drivers that do not answer."""
    lost = "GPU has fallen off the bus."
    yield Fault(
        name="fell off the bus: Xid 79, and lost to NVML",
        check="gpu_lost",
        action=Action.REBOOT,
        steps=_xid(79, lost, lost=True),
        hides=True,
    )
    yield Fault(name="lost to NVML without an Xid", check="gpu_lost", action=Action.REBOOT, steps=once(lost=True))
    yield Fault(
        name="fell off the bus in words alone, without a number",
        check="xid_critical",
        action=Action.REBOOT,
        steps=(Step(log=("NVRM: GPU at PCI:{bus}: GPU has fallen off the bus.",)),),
    )
    yield Fault(
        name="vanished from the PCI bus", check="gpu_missing", action=Action.REBOOT, steps=once(absent=True), hides=True
    )
    yield Fault(
        name="on the PCI bus, and no driver bound to it",
        check="gpu_missing",
        action=Action.REBOOT,
        steps=once(bound="none"),
        hides=True,
    )
    yield Fault(
        name="on the PCI bus, but not counted by NVML", check="gpu_count", where="node", steps=once(uncounted=True)
    )
    yield Fault(
        name="gone after a reboot",
        check="gpu_missing",
        action=Action.INSPECT,
        steps=(Step(gpu={"absent": True}, act=World.reboot),),
        within=6 * MINUTE,
        miss="where the only GPU is gone the driver does not start: `driver_down` says so instead.",
    )
    alone = "where the only GPU is gone the driver does not start: `driver_down` says so instead."
    for now, check, step, miss in (
        ("missing", "gpu_missing", {"absent": True}, alone),
        ("cannot be opened", "gpu_init_failed", {"lookup": "IRQ_ISSUE"}, ""),
    ):
        yield Fault(
            name=f"lost, rebooted, and {now}",
            check=check,
            action=Action.INSPECT,
            steps=(*_xid(79, lost, lost=True), Step(at=MINUTE, gpu=step, act=World.planned_reboot)),
            within=9 * MINUTE,
            hides=True,
            miss=miss,
        )
    yield Fault(
        name="needs a reset",
        check="gpu_reset_required",
        action=Action.RESET,
        steps=_restarted(reset_required=True),
        hides=True,
    )
    yield Fault(
        name="cannot be opened",
        check="gpu_init_failed",
        action=Action.RESET,
        steps=_restarted(lookup="IRQ_ISSUE"),
        hides=True,
    )
    yield Fault(
        name="may not be opened", check="gpu_denied", action=Action.NONE, steps=_restarted(lookup="NO_PERMISSION")
    )
    yield Fault(
        name="a driver call on it does not return",
        check="gpu_stuck",
        action=Action.REBOOT,
        steps=once(hang=HANGING),
        hides=True,
    )
    yield Fault(
        name="a driver call never returns, and its process cannot be killed",
        check="gpu_stuck",
        action=Action.REBOOT,
        steps=(Step(gpu={"hang_forever": HANGING}, act=_unkillable),),
    )
    yield Fault(
        name="opening it does not return",
        check="gpu_stuck",
        action=Action.REBOOT,
        steps=_restarted(hang=["nvmlDeviceGetHandleByPciBusId*"]),
        within=2 * MINUTE,
    )
    yield Fault(
        name="the library crashes on it", check="gpu_unreadable", action=Action.RESET, steps=once(crash=HANGING)
    )
    yield Fault(
        name="every call on it answers an unknown error",
        check="gpu_init_failed",
        action=Action.RESET,
        steps=once(fail={"nvmlDeviceGet*": 999}),
        hides=True,
    )
    yield Fault(
        name="one call on it answers an unknown error",
        check="poll_errors",
        where="node",
        steps=once(fail={"nvmlDeviceGetUtilizationRates": 999}),
        on=lambda profile: not profile.mig,  # with MIG on it is not asked
    )
    yield Fault(
        name="one field of it answers an unknown error",
        check="poll_errors",
        where="node",
        steps=once(fail_fields={"TOTAL_ENERGY_CONSUMPTION": 999}),
        on=lambda profile: not profile.guest,
    )
    yield Fault(
        name="every driver call takes long",
        check="poll_slow",
        where="node",
        steps=(Step(node={"delay": {"nvmlDeviceGet*": 0.02}}),),
        settings={"poll": {"interval_seconds": 1.0}},
        on=lambda profile: len(profile.bus_ids) >= MANY,
    )
    yield Fault(
        name="driver calls on one GPU take long",
        check="poll_slow",
        where="node",
        steps=once(delay={"nvmlDeviceGet*": 0.15}),
        settings={"poll": {"interval_seconds": 1.0}},
        miss="a GPU that answers slowly is read in turns, so that no poll is slow; its readings are older, and true.",
    )
    yield Fault(
        name="the kernel module is gone",
        check="driver_down",
        where="node",
        steps=(Step(node={"driver": "not_loaded"}),),
    )
    yield Fault(
        name="library and kernel module differ",
        check="driver_down",
        where="node",
        steps=(Step(node={"driver": "mismatch"}), Step(at=1.0, node={"driver": "mismatch"}, act=World.restart)),
    )
    yield Fault(
        name="the driver's library is not installed",
        check="driver_down",
        where="node",
        steps=(Step(node={"driver": "absent"}), Step(at=1.0, node={"driver": "absent"}, act=World.restart)),
    )
    yield Fault(
        name="initialising the driver does not return",
        check="driver_down",
        where="node",
        action=Action.REBOOT,
        steps=(
            Step(node={"hang": ["nvmlInit*"]}),
            Step(at=1.0, node={"hang": ["nvmlInit*"]}, act=World.restart),
        ),
        within=3 * MINUTE,
    )
    yield Fault(
        name="a driver call for the whole node does not return",
        check="driver_down",
        where="node",
        action=Action.REBOOT,
        steps=(Step(node={"hang": ["nvmlDeviceGetCount*"]}),),
        within=3 * MINUTE,
    )
    yield Fault(
        name="the library crashes at every start",
        check="driver_down",
        where="node",
        steps=(Step(node={"crash": ["nvmlDeviceGetCount*"]}),),
        within=3 * MINUTE,
    )


def _unkillable(world: World) -> None:
    world.host.unkillable = True


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
    79: ("fell off the bus, and answers all the same", "GPU has fallen off the bus.", Action.REBOOT),
    95: ("an uncontained memory error", "Uncontained ECC error", Action.RESET),
    110: ("a security fault", "Security fault", Action.RESET),
    140: ("an unrecovered ECC error", "Unrecovered ECC error", Action.RESET),
    143: ("the GPU could not be initialised", "GPU initialization error", Action.RESET),
    155: ("an NVLink error defined by software", "NVLink: SW defined error", Action.RESET),
    156: ("a resource is retired", "Resource retirement event", Action.RESET),
    157: ("a resource could not be retired", "Resource retirement failure", Action.INSPECT),
    158: ("a fatal timeout", "GPU fatal timeout", Action.RESET),
    167: ("a fatal timeout of PCIe", "PCIe fatal timeout", Action.REBOOT),
    169: ("the security processor halted", "SEC2 micro-controller halt", Action.REBOOT),
}


_WARNINGS = (
    (92, "many corrected errors", "High single-bit ECC error rate", Action.NONE),
    (94, "a contained memory error", "Contained memory error", Action.RESTART),
    (163, "power smoothing lost", "Power smoothing lost", Action.NONE),
)
_STICKING = (
    (13, "Graphics SM Warp Exception on (GPC 3, TPC 2, SM 1): Out Of Range Address", Action.INSPECT),
    (31, "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ 0x7f54_1a000000", Action.INSPECT),
    (109, "CTX SWITCH TIMEOUT, Info 0x3c046", Action.RESET),
)


def _told_by_xids() -> Iterator[Fault]:
    for code, (words, text, action) in _CRITICAL.items():
        yield Fault(name=f"Xid {code}: {words}", check="xid_critical", action=action, steps=_xid(code, text))
    for code in (119, 120):
        yield Fault(
            name=f"Xid {code}: the GPU's own processor is silent",
            check="gpu_stuck",
            action=Action.RESET,
            steps=_xid(code, "Timeout after 6s of waiting for RPC response from GPU0 GSP!", hang=HANGING),
        )
    yield Fault(
        name="Xid 136: an NVLink could not be trained",
        check="xid_critical",
        action=Action.RESET,
        steps=_xid(136, "NVLink: link training failed"),
        on=_linked,
    )
    yield Fault(
        name="Xid 149: an NVLink 5 is down",
        check="xid_critical",
        action=Action.RESET,
        steps=_xid(
            149,
            "NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x004505c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)",
        ),
        on=_nvlink5,
    )
    yield Fault(
        name="Xid 154: the driver asks for a reset",
        check="recovery_action",
        on=_advises,
        action=Action.RESET,
        steps=_xid(
            154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", set={"recovery_action": 1}
        ),
    )
    yield Fault(
        name="Xid 154: the driver asks for a reboot",
        check="recovery_action",
        on=_advises,
        action=Action.REBOOT,
        steps=_xid(
            154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", set={"recovery_action": 2}
        ),
    )
    for code, words, text, action in _WARNINGS:
        yield Fault(name=f"Xid {code}: {words}", check="xid_warning", action=action, steps=_xid(code, text))
    yield Fault(
        name="Xid 94 twice within a quarter of an hour",
        check="xid_warning",
        action=Action.RESET,
        steps=_xids(94, "Contained memory error", 2, 10 * MINUTE),
    )
    yield Fault(
        name="Xid 48 comes five times",
        check="xid_recurring",
        steps=_xids(48, "An uncorrectable double bit error (DBE)", 5, 4 * MINUTE),
    )
    for code, text, action in _STICKING:
        yield Fault(
            name=f"Xid {code} comes back to one GPU alone",
            check="xid_app_repeated",
            action=action,
            steps=_xids(code, text, 2, 10 * MINUTE),
        )
    yield Fault(
        name="Xid 31 on two GPUs",
        check="xid_app_everywhere",
        where="node",
        action=Action.RESTART,
        steps=(Step(gpu={"xids": [31]}, node={"gpus": {0: {"xids": [31]}}}),),
        on=_several,
    )
    yield Fault(
        name="Xid 79 of a GPU that was never seen",
        check="xid_unplaced",
        where="node",
        action=Action.REBOOT,
        before={"busy": True, "gpus": {1: {"absent": True}}},
        steps=(Step(log=("NVRM: Xid (PCI:{bus}): 79, GPU has fallen off the bus.",)),),
        on=_several,
    )
    yield Fault(
        name="an Xid that no catalogue knows",
        check="xid_unknown",
        action=Action.NONE,
        steps=_xid(999_001, "Something new"),
    )
    yield Fault(
        name="2000 Xids a second",
        check="xid_storm",
        action=Action.RESET,
        steps=(Step(gpu={"xids": [{"xid": 94, "at": "now", "rate": 2000}]}),),
        within=5 * MINUTE,
    )
    yield Fault(
        name="an NVSwitch reports a fatal error",
        check="nvswitch_error",
        action=Action.REBOOT,
        where="node",
        steps=(Step(log=("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",)),),
        on=lambda profile: bool(profile.switches),
    )


def _memory() -> Iterator[Fault]:
    yield Fault(
        name="an uncorrectable error in memory",
        check="ecc_uncorrectable",
        action=Action.RESET,
        steps=once(ecc={"uncorrected_dram": 1, "lifetime_uncorrected_dram": 1}),
        on=_whole,
    )
    yield Fault(
        name="an uncorrectable error in SRAM",
        check="ecc_uncorrectable",
        action=Action.RESET,
        steps=once(ecc={"uncorrected_sram": 1, "lifetime_uncorrected_sram": 1}),
        on=_whole,
    )
    yield Fault(
        name="more uncorrectable errors in SRAM than a board may have",
        check="ecc_sram_threshold",
        action=Action.REPLACE,
        steps=once(ecc={"threshold_exceeded": 1}),
        on=lambda profile: profile.board.architecture >= 7 and not profile.mig,
        within=7 * MINUTE,
    )
    yield Fault(
        name="corrected errors in a storm: 500 a second",
        check="ecc_corrected_storm",
        action=Action.RESET,
        steps=once(ecc={"corrected_dram": growing(500)}),
        on=_whole,
        within=10 * MINUTE,
    )
    yield Fault(
        name="30 million corrected errors in memory",
        check="ecc_corrected_high",
        action=Action.RESET,
        steps=once(ecc={"corrected_dram": 3e7}),
        on=_whole,
        within=20 * MINUTE,
    )
    yield Fault(
        name="a row that waits to be remapped",
        check="row_remap_pending",
        action=Action.RESET,
        steps=once(remap={"uncorrectable": 1, "pending": 1}),
        on=_remaps,
        within=20 * MINUTE,
    )
    yield Fault(
        name="a row that could not be remapped",
        check="row_remap_failed",
        action=Action.REPLACE,
        steps=once(remap={"failed": 1}),
        on=_remaps,
        within=6 * MINUTE,
    )
    yield Fault(
        name="512 rows remapped",
        check="row_remap_many",
        action=Action.REPLACE,
        steps=once(remap={"uncorrectable": 512}),
        on=_remaps,
        within=6 * MINUTE,
    )
    yield Fault(
        name="a bank without spare rows",
        check="row_remap_banks",
        action=Action.INSPECT,
        steps=once(remap={"banks_none": 1}),
        on=_remaps,
        within=6 * MINUTE,
    )
    yield Fault(
        name="20 pages retired",
        check="retired_pages",
        action=Action.INSPECT,
        steps=once(set={"retired_uncorrected": 20}),
        on=_retires,
        within=6 * MINUTE,
    )
    yield Fault(
        name="a page that waits to be retired",
        check="page_retirement_pending",
        action=Action.REBOOT,
        steps=once(set={"retired_pending": 1}),
        on=_retires,
        within=25 * MINUTE,
    )
    yield Fault(
        name="63 pages retired",
        check="retired_pages",
        action=Action.REPLACE,
        steps=once(set={"retired_uncorrected": 63}),
        on=_retires,
        within=6 * MINUTE,
    )


def _heat_and_power() -> Iterator[Fault]:
    yield Fault(
        name="as hot as it may be",
        check="thermal_margin_low",
        steps=once(set={"temperature": 94}),
    )
    yield Fault(
        name="its memory is too hot",
        check="memory_temperature_high",
        steps=once(set={"memory_temperature": 110}),
        on=_hot_memory,
    )
    yield Fault(
        name="slowed down by its hardware",
        check="hw_slowdown",
        steps=once(set={"clock_events": 0x8 | 0x40, "hw_thermal_seconds": growing(1.0)}),
        within=12 * MINUTE,
    )
    yield Fault(
        name="a power brake holds it back",
        check="power_brake",
        steps=once(set={"clock_events": 0x8 | 0x80, "hw_power_brake_seconds": growing(1.0)}),
    )
    yield Fault(
        name="its power limit was set to half",
        check="power_cap",
        action=Action.NONE,
        steps=once(set={"power_limit": 200, "power_limit_requested": 200}),
        on=lambda profile: profile.board.power_limit > 300,
        within=40 * MINUTE,
    )
    yield Fault(
        name="draws 2 W under load",
        check="power_implausible",
        steps=once(set={"power": 2}),
        on=_whole,
    )
    yield Fault(
        name="its clock is half of its neighbours'",
        check="clock_straggler",
        steps=once(set={"sm_clock": 700, "graphics_clock": 700}),
        action=Action.RESET,
        on=lambda profile: len(profile.bus_ids) > 2 and _whole(profile),  # of two, nobody can tell who is slow
        within=15 * MINUTE,
    )


def _links() -> Iterator[Fault]:
    down = {"state": "down"}
    yield Fault(
        name="one NVLink is down",
        check="nvlink_down",
        action=Action.RESET,
        steps=once(nvlinks={3: down}),
        on=_linked,
    )
    yield Fault(
        name="all NVLinks of a GPU are down",
        check="nvlink_down",
        action=Action.RESET,
        steps=once(nvlinks={"*": down}),
        on=_linked,
    )
    for counter in ("replay", "recovery"):
        yield Fault(
            name=f"an NVLink counts a {counter} now and then",
            check="nvlink_errors",
            steps=once(nvlinks={3: {counter: growing(0.1)}}),
            on=_nvlink4,
            within=10 * MINUTE,
        )
    yield Fault(
        name="an NVLink counts CRC errors: 10 a second",
        check="nvlink_crc_high",
        steps=once(nvlinks={3: {"crc": growing(10)}}),
        on=_nvlink4,
        within=10 * MINUTE,
    )
    yield Fault(
        name="an NVLink counts CRC errors: 500 a second",
        check="nvlink_crc_high",
        steps=once(nvlinks={3: {"crc": growing(500)}}),
        on=_nvlink4,
        within=10 * MINUTE,
    )
    yield Fault(
        name="an NVLink recovers again and again",
        check="nvlink_errors",
        steps=once(nvlinks={3: {"recovered": growing(0.1)}}),
        on=_nvlink5,
        within=10 * MINUTE,
    )
    yield Fault(
        name="an NVLink loses too many bits",
        check="nvlink_ber_high",
        steps=once(nvlinks={3: {"effective_ber": 2e-11}}),
        on=_nvlink5,
        within=12 * MINUTE,
    )
    yield Fault(
        name="an NVLink could not be trained again",
        check="nvlink_recovery_failed",
        action=Action.RESET,
        steps=once(nvlinks={3: {"recovery_failed": 1}}),
        on=_nvlink5,
    )
    yield Fault(
        name="an NVLink has errors for 20 minutes",
        check="nvlink_unstable",
        steps=once(nvlinks={3: {"replay": growing(0.1)}}),
        on=_nvlink4,
        within=25 * MINUTE,
    )
    yield Fault(
        name="an NVLink runs at half its speed",
        check="nvlink_speed",
        action=Action.RESET,
        steps=once(nvlinks={3: {"speed": 12000}}),
        on=_linked,
        within=10 * MINUTE,
    )
    yield Fault(
        name="the fabric manager has stopped",
        check="fabric_manager_down",
        action=Action.RESTART,
        where="node",
        steps=(Step(node={"services": {"fabric_manager": "stopped"}}),),
        on=_managed,
    )
    yield Fault(
        name="the fabric manager starts again and again",
        check="fabric_manager_flapping",
        where="node",
        steps=_flaps(4, 2 * MINUTE, {"services": {"fabric_manager": "stopped"}}),
        on=_managed,
    )
    yield Fault(
        name="the GPU's registration with the fabric does not end",
        check="fabric_unhealthy",
        action=Action.RESET,
        steps=once(fabric={"state": 2}),
        on=_fabric,
        within=12 * MINUTE,
    )
    yield Fault(
        name="the GPU's registration with the fabric failed",
        check="fabric_unhealthy",
        action=Action.RESET,
        steps=once(fabric={"status": 999}),
        on=_fabric,
        within=12 * MINUTE,
    )
    yield Fault(
        name="the fabric runs with less bandwidth",
        check="fabric_unhealthy",
        action=Action.RESET,
        steps=once(fabric={"health": {"degraded_bandwidth": 1}, "summary": 2}),
        on=lambda profile: _fabric(profile) and profile.fabric is not None and bool(profile.fabric.health),
        within=12 * MINUTE,
    )
    yield Fault(
        name="IMEX has stopped",
        check="imex_unhealthy",
        action=Action.RESTART,
        where="node",
        steps=(Step(node={"services": {"imex": "stopped"}}),),
        on=_imex,
        within=12 * MINUTE,
    )
    yield Fault(
        name="a chip-to-chip link is down",
        check="c2c_down",
        action=Action.REBOOT,
        steps=once(c2c_links={0: "down"}),
        on=_c2c,
    )


def _buses_and_ports() -> Iterator[Fault]:
    yield Fault(
        name="half of its PCIe lanes are gone",
        check="pcie_width",
        steps=once(set={"pcie_width": 8}),
        within=10 * MINUTE,
    )
    yield Fault(
        name="PCIe of the first generation under load",
        check="pcie_generation",
        steps=once(set={"pcie_generation": 1}),
        within=15 * MINUTE,
        miss="a GPU that is cut by MIG does not tell how busy it is, and an idle one lowers its PCIe by design.",
    )
    yield Fault(
        name="100 PCIe replays a second",
        check="pcie_replays",
        steps=once(set={"pcie_replays": growing(100)}),
        on=lambda profile: not profile.guest,
        within=10 * MINUTE,
    )
    yield Fault(
        name="a fatal error of the PCIe link",
        check="pcie_errors",
        steps=once(pcie_errors={"fatal": 1}),
        on=lambda profile: profile.board.architecture > ADA and not profile.guest,  # Hopper and later count them
        within=10 * MINUTE,
    )
    yield Fault(
        name="the kernel reports a fatal PCIe error",
        check="pcie_aer",
        action=Action.REBOOT,
        steps=(Step(log=("pcieport 0000:00:01.0: AER: Uncorrectable (Fatal) error message received from {bus}",)),),
    )
    port = partial(Fault, where="port", on=_ported)
    yield port(name="a port is down", check="ib_port_down", steps=_port(state="down"), within=6 * MINUTE)
    yield port(
        name="a port has a link and no subnet manager",
        check="ib_port_down",
        steps=_port(state="init"),
        within=6 * MINUTE,
    )
    yield port(
        name="a port runs at a fraction of its speed",
        check="ib_rate_low",
        steps=_port(rate=50),
        within=10 * MINUTE,
    )
    yield port(
        name="an adapter is gone",
        check="ib_device_missing",
        action=Action.REBOOT,
        steps=_port(absent=True),
        within=6 * MINUTE,
    )
    yield port(
        name="a rail does not come back after a reboot",
        check="ib_port_down",
        steps=(Step(node={"ports": {PORT: SILENT}}, act=World.reboot),),
        within=12 * MINUTE,  # of which the boot and its grace take seven
    )
    yield port(
        name="an adapter does not come back after a reboot",
        check="ib_device_missing",
        steps=(Step(node={"ports": {PORT: {"absent": True}}}, act=World.reboot),),
        within=12 * MINUTE,
    )
    yield port(
        name="a port goes down again and again",
        check="ib_port_flapping",
        steps=_flaps(4, 3 * MINUTE, {"ports": {PORT: {"state": "down"}}}),
        within=6 * MINUTE,
    )
    yield port(
        name="a port was down for moments",
        check="ib_port_flapping",
        steps=_counter(link_downed=growing(0.02)),
        within=10 * MINUTE,
    )
    yield port(
        name="a port overran its buffers",
        check="ib_fatal_counter",
        steps=_counter(excessive_buffer_overrun_errors=1),
        within=6 * MINUTE,
    )
    yield port(
        name="a port counts symbol errors: 20 a second",
        check="ib_symbol_errors",
        steps=_counter(symbol_error=growing(20)),
        within=10 * MINUTE,
    )
    yield port(
        name="a port counts receive errors: 50 a second",
        check="ib_error_rates",
        steps=_counter(port_rcv_errors=growing(50)),
        within=10 * MINUTE,
    )
    yield port(
        name="the firmware of a network adapter does not answer",
        check="nic_driver_fatal",
        action=Action.REBOOT,
        steps=(Step(log=("mlx5_core 0001:11:00.0: poll_health:955:(pid 0): device's health compromised",)),),
    )
    yield port(
        name="a port discards 500 packets a second",
        check="roce_stress",
        steps=_counter(port_xmit_discards=growing(500)),
        within=15 * MINUTE,
    )
    yield Fault(
        name="files of a port answer with errors",
        check="links_unread",
        steps=_port(unreadable=["state", "rate"]),
        where="node",
        on=_ported,
        within=10 * MINUTE,
    )
    yield Fault(
        name="files of a port do not answer",
        check="links_unread",
        steps=_port(hang=True),
        where="node",
        on=_ported,
        within=10 * MINUTE,
    )


def _work() -> Iterator[Fault]:
    idle = {"idle": True}
    yield Fault(
        name="12 GB of memory held, and no process",
        check="memory_orphaned",
        action=Action.RESET,
        before=idle,
        steps=once(set={"memory_used": 12e9}),
        on=lambda profile: _whole(profile) and not profile.numa_nodes,  # else the kernel may hold it
        within=10 * MINUTE,
    )
    yield Fault(
        name="busy, and doing nothing",
        check="gpu_spin",
        action=Action.RESTART,
        steps=once(set={"utilization": 100, "power": 120}, gpm={"*": 0}),
        on=lambda profile: profile.board.power_limit > 500 and not profile.mig,
        within=20 * MINUTE,
    )
    yield Fault(
        name="a process that holds it does not come back from the kernel",
        check="process_stuck",
        where="node",
        action=Action.REBOOT,
        steps=(Step(node={"stuck_processes": [{"gpus": [0], "since": NOW}]}),),
        within=8 * MINUTE,
    )
    yield Fault(
        name="a change of ECC waits for a reset, and is forgotten",
        check="settings_pending",
        action=Action.RESET,
        steps=once(ecc={"pending": 0}),
        on=lambda profile: len(profile.bus_ids) < MANY,
        within=70 * MINUTE,
    )
    yield Fault(
        name="persistence mode is off",
        check="persistence_off",
        action=Action.NONE,
        steps=once(set={"persistence_mode": 0}),
        within=25 * MINUTE,
    )
    yield Fault(
        name="another driver than the expected one",
        check="version_drift",
        where="node",
        steps=(Step(act=lambda world: world.restart(health={"versions": {"driver": "999.1"}})),),
        within=25 * MINUTE,
    )
    yield Fault(
        name="another VBIOS than the expected one",
        check="gpu_version_drift",
        steps=(Step(act=lambda world: world.restart(health={"versions": {"vbios": "1.2.3"}})),),
        on=lambda profile: not _several(profile),
        within=25 * MINUTE,
    )


def _agent() -> Iterator[Fault]:
    yield Fault(
        name="a process of the agent cannot be ended",
        check="children_abandoned",
        where="node",
        action=Action.REBOOT,
        steps=(Step(gpu={"hang_forever": HANGING}, act=_unkillable),),
    )
    yield Fault(
        name="the library crashes now and then",
        check="sampler_restarting",
        where="node",
        steps=tuple(
            step
            for n in range(5)
            for step in (Step(at=60.0 * n, node={"crash": ["nvmlDeviceGetCount*"]}), Step(at=60.0 * n + 6))
        ),
    )
    yield Fault(
        name="the agent crashes three times in a row",
        check="agent_restarting",
        where="node",
        steps=tuple(Step(at=90.0 * n, act=World.restart) for n in range(4)),
    )
    yield Fault(
        name="the kernel log was overwritten before it was read",
        check="kernel_log_lost",
        where="node",
        steps=(Step(act=World.lose_records),),
    )
    yield Fault(
        name="what was reset three times fails again",
        check="repeat_offender",
        where="node",
        action=Action.REPLACE,
        steps=tuple(
            step
            for n in range(3)
            for step in (
                Step(at=1000.0 * n, gpu={"xids": [95]}),
                Step(at=1000.0 * n + 240, gpu={"set": {"energy": growing(300)}}),
            )
        ),
        on=lambda profile: not profile.guest,
        within=5 * MINUTE,
    )
    yield Fault(
        name="the kernel log cannot be read",
        check="kernel_log_down",
        where="node",
        steps=(Step(act=World.lose_log),),
        within=5 * MINUTE,
    )
    yield Fault(
        name="the configuration on disk is not good",
        check="configuration_not_reloaded",
        where="node",
        steps=(Step(act=lambda world: world.reload(good=False)),),
    )
    yield Fault(
        name="the disk of the store is full",
        check="store_down",
        where="node",
        steps=(Step(act=World.fill_disk),),
        within=10 * MINUTE,
    )
    yield Fault(
        name="the node was rebooted by nobody",
        check="unexpected_reboot",
        where="node",
        steps=(Step(act=World.reboot),),
        within=5 * MINUTE,
    )


FAULTS: tuple[Fault, ...] = tuple(_rows())
