"""TABLE: the keys that a scenario can set, called faults, one row for each.

A fault delays or fails NVML calls, changes the state of GPUs, or sets their workload. Faults without an effect here,
such as `ports`, are applied by other modules. docs/simulation.md describes all faults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumon.model.snapshot import PLACES
from gpumon_sim import effects, entries, shapes, stuck, workload
from gpumon_sim.codes import Code
from gpumon_sim.effects import Alter, SimCall
from gpumon_sim.gpm import METRICS
from gpumon_sim.nic_kinds import NIC_KINDS
from gpumon_sim.physics import Workload
from gpumon_sim.port_counters import NICS_SHAPE, PORTS_SHAPE, SERVICES_SHAPE
from gpumon_sim.quantities import QUANTITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFault:
    """A fault: a key of the scenario file, the validator of the key's value, and the effect.

    The effect is at most one of the functions `refuse` (on calls), `alter` (on GPU states) and `plan` (on workloads).
    """

    key: str
    value: str
    """Allowed values, as text for the documentation."""
    help: str
    """Effect, as text for the documentation."""
    shape: shapes.Shape
    gpu: bool = True
    """True if the scenario may set the key for single GPUs."""
    node: bool = False
    """True if the key is allowed at the top of the file, for all calls or the whole node."""
    refuse: Callable[[Any, SimCall], int | None] | None = None
    """Function that delays, hangs or crashes a call, or returns the error code with which the call is to fail. If it
    returns None, the call continues.
    """
    alter: Alter | None = None
    """Function that returns a GPU's state with the fault applied, from the value, the state and the time. Applying it
    twice has the same effect as applying it once.
    """
    plan: Callable[[Any, int, int], Workload | None] | None = None
    """Function that returns a GPU's workload, from the value, the seed and the GPU; None if the fault sets none."""


def _on_call(key: str, effect: str, refuse: Callable[[Any, SimCall], int | None]) -> SimFault:
    """Return a fault whose value is a list of patterns.

    It affects the calls of NVML functions whose names match one of the patterns.
    """
    return SimFault(
        key=key, value="functions", help=effect, shape=shapes.listing(shapes.functions), node=True, refuse=refuse
    )


_ECC_KEYS, _ECC, _set_ecc = effects.section("ecc_")
_REMAP_KEYS, _REMAP, _set_remap = effects.section("remap_")
_REPAIR_KEYS, _REPAIR, _set_repair = effects.section("repair_")
_PCIE_KEYS, _PCIE_ERRORS, _set_pcie_errors = effects.section("pcie_errors_")
_ANY_NUMBER = shapes.optional(shapes.growth(shapes.any_number))

FAULTS: Mapping[str, SimFault] = {
    fault.key: fault
    for fault in (
        _on_call("crash", "the process dies of SIGSEGV", effects.crash),
        _on_call("hang", "the call returns when this row is removed", effects.hang),
        _on_call("hang_forever", "the call never returns", effects.hang_forever),
        SimFault(
            key="delay",
            value="functions: seconds",
            help="the call takes this much longer",
            shape=shapes.by_key(shapes.functions, shapes.number(0, 86400, "s")),
            node=True,
            refuse=effects.delay,
        ),
        SimFault(
            key="fail",
            value="functions: code",
            help="the call returns this code (`15` or `GPU_IS_LOST`)",
            shape=shapes.by_key(shapes.functions, shapes.code),
            node=True,
            refuse=effects.fail,
        ),
        SimFault(
            key="driver",
            value="`absent`, `not_loaded`, `mismatch`",
            help="initialisation returns 12, 9 or 18; without a kernel module all calls return 9",
            shape=shapes.one_of(*effects.DRIVERS),
            gpu=False,
            node=True,
            refuse=effects.driver,
        ),
        SimFault(
            key="root",
            value="`false`",
            help="the caller is not root: functions that need root (SRAM state) return 4",
            shape=shapes.flag,
            gpu=False,
            node=True,
            refuse=effects.root,
        ),
        SimFault(
            key="lost",
            value="`true`, or seconds after the epoch",
            help="lookups and getters return 15, as do all lookups by uuid; NVML still counts the GPU",
            shape=shapes.either(shapes.number(0, math.inf, "s"), shapes.flag),
            alter=lambda lost, state, now: replace(state, lost=lost if isinstance(lost, bool) else now >= lost),
        ),
        SimFault(
            key="uncounted",
            value="`true`",
            help="missing from NVML's count and indexes, but on the PCI bus",
            shape=shapes.flag,
            alter=lambda uncounted, state, _: replace(state, counted=not uncounted),
        ),
        SimFault(
            key="absent",
            value="`true`",
            help="missing from the PCI bus too",
            shape=shapes.flag,
            alter=lambda absent, state, _: replace(state, on_bus=not absent),
        ),
        SimFault(
            key="bound",
            value="`vfio-pci`, `none`",
            help="bound to another driver or none: on the PCI bus, but not in NVML",
            shape=shapes.one_of("nvidia", "vfio-pci", "none"),
            alter=lambda driver, state, _: replace(state, bound="" if driver == "none" else driver),
        ),
        SimFault(
            key="lookup",
            value="code",
            help="the handle lookup returns this code; existing handles still work",
            shape=shapes.code,
            alter=lambda code, state, _: replace(state, lookup_code=code),
        ),
        SimFault(
            key="reset_required",
            value="`true`",
            help="the handle lookup returns 16, and the recovery action is 1 (reset)",
            shape=shapes.flag,
            alter=lambda on, state, _: (
                replace(state, lookup_code=Code.RESET_REQUIRED, recovery_action=1) if on else state
            ),
        ),
        SimFault(
            key="mig",
            value="list of MIG profiles; `null`",
            help="the GPU has these MIG instances, or MIG is disabled; see below",
            shape=shapes.optional(shapes.listing(entries.instance)),
        ),
        SimFault(
            key="set",
            value="quantity: number",
            help="readings, see below",
            shape=shapes.fields({name: effects.growable(name) for name in QUANTITIES}),
            alter=effects.set_numbers,
        ),
        SimFault(
            key="garbage",
            value="quantity: number",
            help="the same without bounds: values that no GPU can have, within the C type",
            shape=shapes.fields(dict.fromkeys(QUANTITIES, shapes.growth(shapes.any_number))),
            alter=effects.set_garbage,
        ),
        SimFault(
            key="gpm",
            value='metric or `"*"`: %',
            help="performance monitoring independent of the load, see below",
            shape=shapes.fields(dict.fromkeys(("*", *METRICS), _ANY_NUMBER)),
            alter=effects.set_gpm,
        ),
        SimFault(key="ecc", value=_ECC_KEYS, help="ECC errors and mode", shape=_ECC, alter=_set_ecc),
        SimFault(key="remap", value=_REMAP_KEYS, help="row remapping", shape=_REMAP, alter=_set_remap),
        SimFault(  # nvmlDeviceGetRepairStatus (580), UnrepairableMemoryFlag_v1 (590), fields 306 and 307 (615)
            key="repair", value=_REPAIR_KEYS, help="repair of memory and TPCs", shape=_REPAIR, alter=_set_repair
        ),
        SimFault(
            key="pcie_errors",
            value=_PCIE_KEYS,
            help="errors of the PCIe link",
            shape=_PCIE_ERRORS,
            alter=_set_pcie_errors,
        ),
        SimFault(
            key="nvlinks",
            value='link or `"*"`: see below',
            help="state and counters of NVLinks",
            shape=shapes.by_key(effects.link_number, effects.LINK),
            alter=effects.nvlinks,
        ),
        SimFault(
            key="c2c_links",
            value='link or `"*"`: `down`, `active`',
            help="chip-to-chip links of Grace hosts",
            shape=shapes.by_key(effects.link_number, shapes.one_of("down", "active")),
            alter=effects.c2c_links,
        ),
        SimFault(
            key="peer_access",
            value="other GPU: `read`, `write`, `nvlink`, `atomics`, `pci`: `ok`, `not_supported`, ...",
            help="whether it and another GPU reach each other's memory",
            shape=effects.PEER_ACCESS,
            alter=effects.peer_access,
        ),
        SimFault(
            key="fabric",
            value="`state`, `status`, `clique`, `summary`, `health`",
            help="the NVLink fabric, see below",
            shape=effects.FABRIC,
            alter=effects.fabric,
        ),
        SimFault(
            key="fail_fields",
            value="field: code",
            help="single fields of a batch fail",
            shape=shapes.by_key(entries.field, shapes.code),
            alter=lambda codes, state, _: replace(state, field_codes={**state.field_codes, **codes}),
        ),
        SimFault(
            key="field_types",
            value="field: type",
            help="single fields of a batch answer with another type: `double`, `unsigned_int`, ...",
            shape=shapes.by_key(entries.field, entries.field_type),
            alter=lambda types, state, _: replace(state, field_types={**state.field_types, **types}),
        ),
        SimFault(
            key="ports",
            value='device or `"*"`: see below',
            help="InfiniBand ports",
            shape=PORTS_SHAPE,
            gpu=False,
            node=True,
        ),
        SimFault(
            key="nics",
            value="list of " + ", ".join(f"`{kind}`" for kind in NIC_KINDS),
            help="network adapters beside the fabric ports: sim/nic_kinds.py",
            shape=NICS_SHAPE,
            gpu=False,
            node=True,
        ),
        SimFault(
            key="services",
            value="`fabric_manager`, `imex`: `running`, `stopped`, `restarting`, `not_installed`, `container`",
            help="services of the host",
            shape=SERVICES_SHAPE,
            gpu=False,
            node=True,
        ),
        SimFault(  # Datura-ai/lium-io#1140, #1142: B200, RTX PRO 6000, drivers 580 to 595
            key="latched_utilization",
            value="`true`",
            help="utilization stays at 100 % without a process, as after SIGKILL inside a kernel; GPM reports zeros",
            shape=shapes.flag,
            alter=lambda on, state, _: (
                replace(state, utilization=100, own_utilization=100) if on and not state.processes else state
            ),
        ),
        SimFault(  # NVIDIA/NVSentinel#1666: half of the nodes of a GB200 cluster brake, many for single polls
            key="power_brake",
            value="`seconds`, `every`",
            help="the power brake is active for this time in each period; a few ms show only in the counter",
            shape=effects.POWER_BRAKE,
            alter=effects.power_brake,
        ),
        SimFault(  # NVIDIA/open-gpu-kernel-modules 595.45.04: imex_session_api.c, gpu.c (gpuSetRecoveryAction)
            key="imex_crashed",
            value="`true`",
            help="nvidia-imex ended while memory was exported: recovery action 5 on all GPUs, until the row is removed",
            shape=shapes.flag,
            gpu=False,
            node=True,
            alter=lambda on, state, _: replace(state, recovery_action=5) if on else state,
        ),
        SimFault(
            key="stuck_processes",
            value="list of `gpus`, `since`, `until`, `waits_in`",
            help="processes that hold these GPUs and do not return from the kernel",
            shape=shapes.listing(stuck.entry),
            gpu=False,
            node=True,
        ),
        SimFault(
            key="xids",
            value="list of Xids",
            help="each is delivered once, see below",
            shape=shapes.listing(entries.xid),
        ),
        SimFault(
            key="idle",
            value="`true`",
            help="no process at any time",
            shape=shapes.flag,
            node=True,
            plan=lambda on, _seed, _gpu: workload.IDLE if on else None,
        ),
        SimFault(
            key="busy",
            value="`true`",
            help="one process a GPU at all times",
            shape=shapes.flag,
            node=True,
            plan=lambda on, seed, _gpu: workload.busy(seed) if on else None,
        ),
        SimFault(
            key="jobs",
            value="list of `start`, `end`, `load`, `memory`, `gpus`",
            help="only these jobs",
            shape=shapes.listing(entries.job),
            gpu=False,
            node=True,
            plan=lambda runs, _seed, gpu: workload.of_jobs(runs, gpu),
        ),
        SimFault(
            key="seed",
            value="number",
            help="another node of the same kind: other uuids, other jobs",
            shape=shapes.whole(0, 2**31),
            gpu=False,
            node=True,
        ),
        SimFault(
            key="driver_version",
            value='`"580.65.06"`',
            help="another driver: other functions, fields and field ids, see below",
            shape=entries.driver_version,
            gpu=False,
            node=True,
        ),
        SimFault(
            key="place",
            value="`host`, `guest`, `container`, `sandbox`",
            help="the system that the agent's children detect when they start, see below",
            shape=shapes.one_of(*PLACES),
            gpu=False,
            node=True,
        ),
    )
}
