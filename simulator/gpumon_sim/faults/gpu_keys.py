"""TABLE: the keys of a scenario that change the state of a GPU, with their faults. Each is a row of `keys.KEYS`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from gpumon.health.verdict import Action
from gpumon_sim import effects, entries, shapes
from gpumon_sim.board import Profile
from gpumon_sim.codes import Code
from gpumon_sim.faults.conditions import (
    MANY,
    blackwell,
    counts_pcie_errors,
    fabric,
    fabric_health,
    has_nvlinks,
    hot_memory,
    nvlink4,
    nvlink5,
    remaps,
    retires,
    whole,
)
from gpumon_sim.faults.row import IDLE, MINUTE, FaultRow, ScenarioKey, after_restart, growing, of_gpu
from gpumon_sim.gpm import METRICS
from gpumon_sim.quantities import QUANTITIES

_ECC_KEYS, _ECC, _set_ecc = effects.section("ecc_")
_REMAP_KEYS, _REMAP, _set_remap = effects.section("remap_")
_REPAIR_KEYS, _REPAIR, _set_repair = effects.section("repair_")
_PCIE_KEYS, _PCIE_ERRORS, _set_pcie_errors = effects.section("pcie_errors_")
_ecc = partial(FaultRow, action=Action.RESET, on=whole)
_remap = partial(FaultRow, action=Action.REPLACE, on=remaps, within=6 * MINUTE)
_retired = partial(FaultRow, gpu=0, profile="t4x1", on=retires, within=6 * MINUTE)
_fabric = partial(FaultRow, check="fabric_unhealthy", on=fabric, within=12 * MINUTE)
_ANY_NUMBER = shapes.optional(shapes.growth(shapes.any_number))


def _counting(counter: str, name: str, on: Callable[[Profile], bool]) -> FaultRow:
    """Return the fault of an NVLink that counts an error each ten seconds."""
    links = {3: {counter: growing(0.1)}}
    return FaultRow(of_gpu(nvlinks=links), name=name, check="nvlink_errors", on=on, within=10 * MINUTE)


def _unstable(counter: str, name: str, on: Callable[[Profile], bool]) -> FaultRow:
    return replace(_counting(counter, name, on), check="nvlink_unstable", within=25 * MINUTE)


ROWS = (
    ScenarioKey(
        key="lost",
        value="`true`, or seconds after the epoch",
        help="lookups and getters return 15, as do all lookups by uuid; NVML still counts the GPU",
        shape=shapes.either(shapes.number(0, math.inf, "s"), shapes.flag),
        alter=lambda lost, state, now: replace(state, lost=lost if isinstance(lost, bool) else now >= lost),
        faults=(
            FaultRow(
                of_gpu(lost=True),
                hides=True,
                name="lost to NVML without an Xid",
                check="gpu_lost",
                action=Action.REBOOT,
            ),
            FaultRow(of_gpu(lost=True), gpu=1, profile="h100guestx2"),
            FaultRow(of_gpu(lost=True), profile="h100migx8"),
        ),
    ),
    ScenarioKey(
        key="uncounted",
        value="`true`",
        help="missing from NVML's count and indexes, but on the PCI bus",
        shape=shapes.flag,
        alter=lambda uncounted, state, _: replace(state, counted=not uncounted),
        faults=(
            FaultRow(
                of_gpu(uncounted=True),
                gpu=7,
                name="on the PCI bus, but not counted by NVML",
                check="gpu_count_mismatch",
                where="node",
            ),
        ),
    ),
    ScenarioKey(
        key="absent",
        value="`true`",
        help="missing from the PCI bus too",
        shape=shapes.flag,
        alter=lambda absent, state, _: replace(state, on_bus=not absent),
        faults=(
            FaultRow(
                of_gpu(absent=True),
                gpu=7,
                hides=True,
                name="vanished from the PCI bus",
                check="gpu_missing",
                action=Action.REBOOT,
            ),
        ),
    ),
    ScenarioKey(
        key="bound",
        value="`vfio-pci`, `none`",
        help="bound to another driver or none: on the PCI bus, but not in NVML",
        shape=shapes.one_of("nvidia", "vfio-pci", "none"),
        alter=lambda driver, state, _: replace(state, bound="" if driver == "none" else driver),
        faults=(
            FaultRow(of_gpu(bound="vfio-pci"), gpu=7, hides=True),
            FaultRow(
                of_gpu(bound="none"),
                gpu=7,
                hides=True,
                name="on the PCI bus, and no driver bound to it",
                check="gpu_missing",
                action=Action.REBOOT,
            ),
        ),
    ),
    ScenarioKey(
        key="lookup",
        value="code",
        help="the handle lookup returns this code; existing handles still work",
        shape=shapes.code,
        alter=lambda code, state, _: replace(state, lookup_code=code),
        faults=(
            FaultRow(
                after_restart(gpu={"lookup": "NO_PERMISSION"}),
                hides=True,
                name="permission to open it is denied",
                check="gpu_denied",
                action=Action.NONE,
            ),
            FaultRow(of_gpu(lookup="UNKNOWN")),
            FaultRow(
                after_restart(gpu={"lookup": "IRQ_ISSUE"}),
                hides=True,
                name="cannot be opened",
                check="gpu_init_failed",
                action=Action.RESET,
            ),
        ),
    ),
    ScenarioKey(
        key="reset_required",
        value="`true`",
        help="the handle lookup returns 16, and the recovery action is 1 (reset)",
        shape=shapes.flag,
        alter=lambda on, state, _: replace(state, lookup_code=Code.RESET_REQUIRED, recovery_action=1) if on else state,
        faults=(
            FaultRow(
                after_restart(gpu={"reset_required": True}),
                hides=True,
                name="needs a reset",
                check="gpu_reset_required",
                action=Action.RESET,
            ),
        ),
    ),
    ScenarioKey(
        key="mig",
        value="list of MIG profiles; `null`",
        help="the GPU has these MIG instances, or MIG is disabled; see below",
        shape=shapes.optional(shapes.listing(entries.instance)),
        faults=(
            *(FaultRow(of_gpu(mig=layout)) for layout in (["3g.40gb", "3g.40gb"], ["1g.10gb"] * 3, [])),
            FaultRow(of_gpu(mig=["4g.40gb", "2g.20gb"]), profile="a100x8"),
        ),
        without={"truth": "is no fault: see benign.py"},
    ),
    ScenarioKey(
        key="set",
        value="quantity: number",
        help="readings, see below",
        shape=shapes.fields({name: effects.growable(name) for name in QUANTITIES}),
        alter=effects.set_numbers,
        faults=(
            FaultRow(of_gpu(set={"temperature": 91, "pcie_width": 8, "recovery_action": 1, "fan_speed": 60})),
            FaultRow(of_gpu(set={"temperature": 30, "power": 700, "utilization": 0})),
            FaultRow(of_gpu(set={"temperature": 95, "power": 80, "utilization": 100})),
            FaultRow(
                of_gpu(set={"retired_pending": 1, "retired_uncorrected": 2, "power": 69, "temperature": 94}),
                gpu=0,
                profile="t4x1",
            ),
            _retired(of_gpu(set={"retired_uncorrected": 20}), name="20 pages retired", check="gpu_retired_pages"),
            _retired(
                of_gpu(set={"retired_pending": 1}),
                name="a page that waits to be retired",
                check="gpu_page_retirement_pending",
                action=Action.REBOOT,
                within=25 * MINUTE,
            ),
            _retired(
                of_gpu(set={"retired_uncorrected": 63}),
                name="63 pages retired",
                check="gpu_retired_pages",
                action=Action.REPLACE,
            ),
            FaultRow(
                of_gpu(set={"memory_used": 12e9}),
                name="12 GB of memory in use without a process",
                check="gpu_memory_orphaned",
                action=Action.RESET,
                before=IDLE,
                on=lambda profile: whole(profile) and not profile.numa_nodes,  # else the kernel may hold it
                within=10 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"persistence_mode": 0}),
                name="persistence mode is off",
                check="gpu_persistence_off",
                action=Action.NONE,
                within=25 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"temperature": 94}), name="GPU temperature at its maximum", check="gpu_thermal_margin_low"
            ),
            FaultRow(
                of_gpu(set={"memory_temperature": 110}),
                name="GPU memory is too hot",
                check="gpu_memory_temperature_high",
                on=hot_memory,
            ),
            FaultRow(
                of_gpu(set={"clock_events": 0x8 | 0x40, "hw_thermal_seconds": growing(1.0)}),
                name="clocks reduced by a hardware slowdown",
                check="gpu_hw_slowdown",
                within=12 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"clock_events": 0x8 | 0x80, "hw_power_brake_seconds": growing(1.0)}),
                name="clocks reduced by a power brake",
                check="gpu_power_brake",
                within=6 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"power_limit": 200, "power_limit_requested": 200}),
                name="power limit set to half",
                check="gpu_power_cap_low",
                action=Action.NONE,
                on=lambda profile: profile.board.power_limit > 300,
                within=40 * MINUTE,
            ),
            FaultRow(of_gpu(set={"power": 2}), name="draws 2 W under load", check="gpu_power_implausible", on=whole),
            FaultRow(
                of_gpu(set={"sm_clock": 700, "graphics_clock": 700}),
                name="clock at half of the other GPUs' clocks",
                check="gpu_clock_straggler",
                action=Action.RESET,
                # with two GPUs the slow one cannot be identified
                on=lambda profile: len(profile.bus_ids) > 2 and whole(profile),
                within=15 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"pcie_width": 8}),
                name="half of its PCIe lanes are gone",
                check="pcie_width_degraded",
                within=15 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"pcie_generation": 1}),
                name="PCIe of the first generation under load",
                check="pcie_generation_degraded",
                within=15 * MINUTE,
            ),
            FaultRow(
                of_gpu(set={"pcie_replays": growing(100)}),
                name="100 PCIe replays a second",
                check="pcie_replays",
                on=lambda profile: not profile.guest,
                within=10 * MINUTE,
            ),
        ),
    ),
    ScenarioKey(
        key="garbage",
        value="quantity: number",
        help="the same without bounds: values that no GPU can have, within the C type",
        shape=shapes.fields(dict.fromkeys(QUANTITIES, shapes.growth(shapes.any_number))),
        alter=effects.set_garbage,
        faults=(
            FaultRow(of_gpu(garbage={"utilization": 300, "temperature": 65535})),
            FaultRow(of_gpu(garbage={"power": 4294967295, "energy": -5, "memory_used": 1e30})),
            FaultRow(of_gpu(garbage={"sm_clock": 1e30, "pcie_replays": -5, "margin": 65535})),
        ),
        without={"truth": "implausible values are dropped in the sampler: tests/collectors/nvml"},
    ),
    ScenarioKey(
        key="gpm",
        value='metric or `"*"`: %',
        help="performance monitoring independent of the load, see below",
        shape=shapes.fields(dict.fromkeys(("*", *METRICS), _ANY_NUMBER)),
        alter=effects.set_gpm,
        faults=(FaultRow(of_gpu(gpm={"*": 0}), gpu=2), FaultRow(of_gpu(gpm={"sm_util": 300, "any_tensor_util": None}))),
    ),
    ScenarioKey(
        key="ecc",
        value=_ECC_KEYS,
        help="ECC errors and mode",
        shape=_ECC,
        alter=_set_ecc,
        faults=(
            FaultRow(
                of_gpu(ecc={"uncorrected_dram": 2, "corrected_sram": 7, "lifetime_uncorrected_dram": 3, "pending": 0})
            ),
            FaultRow(of_gpu(ecc={"corrected_dram": 40, "corrected_sram": 2})),
            FaultRow(of_gpu(ecc={"uncorrected_dram": 2, "lifetime_uncorrected_dram": 3}), profile="h100migx8"),
            _ecc(
                of_gpu(ecc={"uncorrected_dram": 1, "lifetime_uncorrected_dram": 1}),
                name="an uncorrectable error in memory",
                check="gpu_ecc_uncorrectable",
            ),
            _ecc(
                of_gpu(ecc={"uncorrected_sram": 1, "lifetime_uncorrected_sram": 1}),
                name="an uncorrectable error in SRAM",
                check="gpu_ecc_uncorrectable",
            ),
            FaultRow(
                of_gpu(ecc={"pending": 0}),
                name="an ECC change that waits for a reset",
                check="gpu_settings_pending",
                action=Action.RESET,
                on=lambda profile: len(profile.bus_ids) < MANY,
                within=70 * MINUTE,
            ),
            FaultRow(
                of_gpu(ecc={"threshold_exceeded": 1}),
                name="uncorrectable errors in SRAM above the board's threshold",
                check="gpu_ecc_sram_threshold",
                action=Action.REPLACE,
                on=lambda profile: profile.board.architecture >= 7 and whole(profile),
                within=7 * MINUTE,
            ),
            _ecc(
                of_gpu(ecc={"corrected_dram": growing(500)}),
                name="corrected errors in a storm: 500 a second",
                check="gpu_ecc_corrected_storm",
                within=10 * MINUTE,
            ),
            _ecc(
                of_gpu(ecc={"corrected_dram": 3e7}),
                name="30 million corrected errors in memory",
                check="gpu_ecc_corrected_high",
                within=20 * MINUTE,
            ),
        ),
    ),
    ScenarioKey(
        key="remap",
        value=_REMAP_KEYS,
        help="row remapping",
        shape=_REMAP,
        alter=_set_remap,
        faults=(
            FaultRow(of_gpu(remap={"uncorrectable": 1, "pending": 1, "failed": 1, "banks_none": 1, "banks_max": 2559})),
            _remap(
                of_gpu(remap={"uncorrectable": 1, "pending": 1}),
                name="a row that waits to be remapped",
                check="gpu_row_remap_pending",
                action=Action.RESET,
                within=20 * MINUTE,
            ),
            _remap(of_gpu(remap={"failed": 1}), name="a row that could not be remapped", check="gpu_row_remap_failed"),
            _remap(of_gpu(remap={"uncorrectable": 512}), name="512 rows remapped", check="gpu_row_remap_many"),
            _remap(
                of_gpu(remap={"banks_none": 1}),
                name="a bank without spare rows",
                check="gpu_row_remap_banks",
                action=Action.INSPECT,
            ),
        ),
    ),
    ScenarioKey(  # nvmlDeviceGetRepairStatus (580), UnrepairableMemoryFlag_v1 (590), fields 306 and 307 (615)
        key="repair",
        value=_REPAIR_KEYS,
        help="repair of memory and TPCs",
        shape=_REPAIR,
        alter=_set_repair,
        faults=(
            FaultRow(
                of_gpu(repair={"channel": 1}),
                name="a memory channel that waits to be repaired",
                check="gpu_row_remap_pending",
                action=Action.RESET,
                within=25 * MINUTE,
                on=lambda profile: profile.board.architecture >= 7 and profile.driver >= "580",
            ),
            FaultRow(of_gpu(repair={"tpc": 1})),
            FaultRow(
                of_gpu(repair={"impossible": 1}),
                name="memory that cannot be repaired",
                check="gpu_memory_unrepairable",
                action=Action.REPLACE,
                within=10 * MINUTE,
                on=lambda profile: profile.board.architecture >= 9 and profile.driver >= "580.159",
            ),
        ),
        without={"page": "is a detail, and reported by verdicts"},
    ),
    ScenarioKey(
        key="pcie_errors",
        value=_PCIE_KEYS,
        help="errors of the PCIe link",
        shape=_PCIE_ERRORS,
        alter=_set_pcie_errors,
        faults=(
            FaultRow(of_gpu(pcie_errors={"correctable": 5, "fatal": 1, "l0_to_recovery": 9})),
            FaultRow(
                of_gpu(pcie_errors={"fatal": 1}),
                name="a fatal error of the PCIe link",
                check="pcie_errors",
                on=counts_pcie_errors,
                within=10 * MINUTE,
            ),
        ),
    ),
    ScenarioKey(
        key="nvlinks",
        value='link or `"*"`: see below',
        help="state and counters of NVLinks",
        shape=shapes.by_key(effects.link_number, effects.LINK),
        alter=effects.nvlinks,
        faults=(
            FaultRow(of_gpu(nvlinks={4: {"state": "down"}, 5: {"state": "sleep"}, 7: {"crc": 12, "replay": 3}})),
            FaultRow(
                of_gpu(nvlinks={"*": {"state": "down"}}),
                name="all NVLinks of a GPU are down",
                check="nvlink_down",
                action=Action.RESET,
                on=has_nvlinks,
            ),
            FaultRow(of_gpu(nvlinks={4: {"state": "down"}, 7: {"crc": 12, "recovery": 3}}), profile="a100x8"),
            FaultRow(of_gpu(nvlinks={4: {"state": "down"}, 7: {"symbol": 12, "recovery_failed": 1}}), profile="b200x8"),
            FaultRow(of_gpu(nvlinks={4: {"state": "down"}}), profile="h100migx8"),
            FaultRow(of_gpu(nvlinks={"*": {"state": "down"}}), gpu=0, profile="h100pciex2"),
            FaultRow(
                of_gpu(nvlinks={3: {"state": "down"}}),
                name="one NVLink is down",
                check="nvlink_down",
                action=Action.RESET,
                on=has_nvlinks,
            ),
            *(
                _counting(counter, f"an NVLink counts a {counter} now and then", on=nvlink4)
                for counter in ("replay", "recovery")
            ),
            *(
                FaultRow(
                    of_gpu(nvlinks={3: {"crc": growing(rate)}}),
                    name=f"an NVLink counts CRC errors: {rate} a second",
                    check="nvlink_crc_high",
                    on=nvlink4,
                    within=10 * MINUTE,
                )
                for rate in (10, 500)
            ),
            _counting("recovered", "an NVLink recovers again and again", on=nvlink5),
            *(
                _counting(
                    counter,
                    f"an NVLink of Blackwell counts {counter.replace('_', ' ')} errors now and then",
                    on=nvlink5,
                )
                for counter in ("symbol", "effective", "receive_remote")
            ),
            FaultRow(
                of_gpu(nvlinks={3: {"effective_ber": 2e-11}}),
                name="an NVLink loses too many bits",
                check="nvlink_ber_high",
                on=nvlink5,
                within=12 * MINUTE,
            ),
            FaultRow(
                of_gpu(nvlinks={3: {"recovery_failed": 1}}),
                name="an NVLink could not be trained again",
                check="nvlink_recovery_failed",
                action=Action.RESET,
                on=nvlink5,
            ),
            _unstable("replay", "an NVLink has errors for 20 minutes", on=nvlink4),
            _unstable("symbol", "an NVLink of Blackwell has symbol errors for 20 minutes", on=nvlink5),
            # marin-community/marin#9086 and #8934: 505 recoveries since the driver was loaded, all other counters 0,
            # and five days later Xid 149.
            FaultRow(
                of_gpu(nvlinks={3: {"recovered": growing(3 / (21 * MINUTE))}}),
                name="an NVLink of Blackwell recovers three times in 21 minutes, for hours, without another error",
                check="nvlink_recovering",
                on=nvlink5,
                within=160 * MINUTE,
            ),
            FaultRow(
                of_gpu(nvlinks={3: {"speed": 12000}}),
                name="an NVLink runs at half its speed",
                check="nvlink_slow",
                action=Action.RESET,
                on=has_nvlinks,
                within=10 * MINUTE,
            ),
        ),
    ),
    ScenarioKey(
        key="c2c_links",
        value='link or `"*"`: `down`, `active`',
        help="chip-to-chip links of Grace hosts",
        shape=shapes.by_key(effects.link_number, shapes.one_of("down", "active")),
        alter=effects.c2c_links,
        faults=(
            FaultRow(
                of_gpu(c2c_links={0: "down"}),
                gpu=1,
                profile="gb200x4",
                name="a chip-to-chip link is down",
                check="c2c_link_down",
                action=Action.REBOOT,
                on=lambda profile: bool(profile.board.c2c_links),
            ),
        ),
    ),
    ScenarioKey(
        key="peer_access",
        value="other GPU: `read`, `write`, `nvlink`, `atomics`, `pci`: `ok`, `not_supported`, ...",
        help="whether it and another GPU reach each other's memory",
        shape=effects.PEER_ACCESS,
        alter=effects.peer_access,
        faults=(
            FaultRow(of_gpu(peer_access={0: {"nvlink": "not_supported"}})),
            FaultRow(of_gpu(peer_access={5: {"read": "disabled_by_regkey"}})),
        ),
        without={
            "page": "is reported by the result of a probe",
            "truth": "adds evidence to a slow run, and raises no verdict: tests/probe",
        },
    ),
    ScenarioKey(
        key="fabric",
        value="`state`, `status`, `clique`, `summary`, `health`",
        help="the NVLink fabric, see below",
        shape=effects.FABRIC,
        alter=effects.fabric,
        faults=(
            _fabric(of_gpu(fabric={"state": 2}), gpu=1, name="the GPU's registration with the fabric does not end"),
            _fabric(
                of_gpu(fabric={"status": 999}),
                gpu=2,
                name="the GPU's registration with the fabric failed",
                action=Action.RESET,
            ),
            FaultRow(of_gpu(fabric={"state": 1}), gpu=3),
            FaultRow(of_gpu(fabric={"state": 2}), gpu=1, profile="gb200x4"),
            FaultRow(of_gpu(fabric={"clique": 7, "health": {"degraded_bandwidth": 1}}), gpu=2, profile="gb200x4"),
            _fabric(
                of_gpu(fabric={"health": {"degraded_bandwidth": 1}, "summary": 3}),
                name="the fabric runs with less bandwidth",
                on=fabric_health,
            ),
            _fabric(
                of_gpu(fabric={"summary": 2}),
                name="the driver reports the fabric as unhealthy without a cause",
                action=Action.RESET,
                on=fabric_health,
            ),
        ),
    ),
    ScenarioKey(
        key="fail_fields",
        value="field: code",
        help="single fields of a batch fail",
        shape=shapes.by_key(entries.field, shapes.code),
        alter=lambda codes, state, _: replace(state, field_codes={**state.field_codes, **codes}),
        faults=(
            FaultRow(of_gpu(fail_fields={"TOTAL_ENERGY_CONSUMPTION": 999, "MEMORY_TEMP": "NOT_SUPPORTED"})),
            FaultRow(of_gpu(fail_fields={"NVLINK_LINK_COUNT": 999})),
            FaultRow(of_gpu(fail_fields={"TOTAL_ENERGY_CONSUMPTION": "NOT_SUPPORTED"}), gpu=0, profile="t4x1"),
            FaultRow(
                of_gpu(fail_fields={"TOTAL_ENERGY_CONSUMPTION": 999}),
                name="one field of it answers an unknown error",
                check="gpumon_poll_errors",
                action=Action.FIX,
                where="node",
                on=lambda profile: not profile.guest,
            ),
        ),
    ),
    ScenarioKey(
        key="field_types",
        value="field: type",
        help="single fields of a batch answer with another type: `double`, `unsigned_int`, ...",
        shape=shapes.by_key(entries.field, entries.field_type),
        alter=lambda types, state, _: replace(state, field_types={**state.field_types, **types}),
        faults=(
            FaultRow(of_gpu(field_types={"POWER_AVERAGE": "double"})),
            FaultRow(of_gpu(field_types={"MEMORY_TEMP": "double", "POWER_AVERAGE": "unsigned_short"})),
        ),
        without={"truth": "the poll reads any type: tests/collectors/nvml"},
    ),
    ScenarioKey(  # Datura-ai/lium-io#1140, #1142: B200, RTX PRO 6000, drivers 580 to 595
        key="latched_utilization",
        value="`true`",
        help="utilization stays at 100 % without a process, as after SIGKILL inside a kernel; GPM reports zeros",
        shape=shapes.flag,
        alter=lambda on, state, _: (
            replace(state, utilization=100, own_utilization=100) if on and not state.processes else state
        ),
        faults=(
            FaultRow(
                of_gpu(latched_utilization=True),
                name="utilization latched at 100 % on an idle GPU",
                check="gpu_utilization_latched",
                action=Action.NONE,
                before=IDLE,
                on=blackwell,
                within=7 * MINUTE,
            ),
        ),
        without={"page": "shows only on an idle node, whose page differs in most lines"},
    ),
    ScenarioKey(  # NVIDIA/NVSentinel#1666: half of the nodes of a GB200 cluster brake, many for single polls
        key="power_brake",
        value="`seconds`, `every`",
        help="the power brake is active for this time in each period; a few ms show only in the counter",
        shape=effects.POWER_BRAKE,
        alter=effects.power_brake,
        faults=(
            FaultRow(
                of_gpu(power_brake={"seconds": 40, "every": 60}),
                name="clocks reduced by a power brake for 40 seconds of each minute",
                check="gpu_power_brake",
                within=6 * MINUTE,
            ),
            FaultRow(of_gpu(power_brake={"seconds": 0.005, "every": 60})),
        ),
    ),
    ScenarioKey(
        key="xids",
        value="list of Xids",
        help="each is delivered once, see below",
        shape=shapes.listing(entries.xid),
        faults=(FaultRow(of_gpu(xids=[79])),),
        without={"page": "is reported by events, not by polls", "soak": "is sent one by one: the list only grows"},
    ),
)
