"""TABLE: what a scenario can do to the simulated node. One row a fault.

A row refuses calls, alters what GPUs answer, or plans their work; `docs/simulation.md` shows each in use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpumon.sim import effects, shapes, workload
from gpumon.sim.arrivals import Xid
from gpumon.sim.codes import Code
from gpumon.sim.effects import Alter, Call
from gpumon.sim.fields import NAMES, TYPES
from gpumon.sim.gpm import METRICS
from gpumon.sim.mig import Wanted
from gpumon.sim.physics import Workload
from gpumon.sim.ports import PORTS_SHAPE, SERVICES_SHAPE
from gpumon.sim.state import QUANTITIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A key of the scenario."""

    key: str
    help: str
    shape: shapes.Shape
    gpu: bool = True
    """May stand under a GPU."""
    node: bool = False
    """May stand at the top of the file, for every call or the whole node."""
    refuse: Callable[[Any, Call], int | None] | None = None
    """The code that the call answers at once, or None to go on."""
    alter: Alter | None = None
    """Another state at this time. Replaces by what the scenario says, so that doing it twice is doing it once."""
    plan: Callable[[Any, int, int], Workload | None] | None = None
    """From seed and GPU, its workload; None for the usual one."""


_INSTANCE = shapes.whole(0, 255, "number of an instance")
_TIME = shapes.number(0, 1e12, "seconds after the epoch")
_XID = shapes.whole(1, 2**31, "an Xid")
_XID_FIELDS = shapes.fields(
    {
        "xid": _XID,
        "at": _TIME,
        "until": _TIME,
        "rate": shapes.number(0, 1e5, "Xids a second"),
        "gpu_instance": _INSTANCE,
        "compute_instance": _INSTANCE,
    }
)


def _xid(value: Any, path: shapes.Path) -> Xid:
    if not isinstance(value, dict):
        return Xid(_XID(value, path))
    parts = _XID_FIELDS(value, path)
    if "xid" not in parts:
        raise shapes.ShapeError(path, "needs a key 'xid'")
    return Xid(**parts)


_RUN = shapes.fields(
    {
        "start": _TIME,
        "end": _TIME,
        "load": shapes.number(0, 1),
        "memory": shapes.number(0, 1, "share of the GPU's memory"),
        "gpus": shapes.listing(shapes.whole(0, 1023, "index")),
    }
)


def _run(value: Any, path: shapes.Path) -> workload.Run:
    run = workload.Run(**_RUN(value, path))
    if run.end <= run.start:
        raise shapes.ShapeError(path, "ends before it starts")
    return run


def _text(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str):
        raise shapes.ShapeError(path, "must be the name of a MIG profile, such as 3g.40gb")
    return value


_WANTED = shapes.fields({"profile": _text, "compute": shapes.listing(shapes.whole(1, 7, "compute slices"))})


def _instance(value: Any, path: shapes.Path) -> Wanted:
    if not isinstance(value, dict):
        return Wanted(_text(value, path))
    parts = _WANTED(value, path)
    if "profile" not in parts:
        raise shapes.ShapeError(path, "needs a key 'profile'")
    return Wanted(**parts)


def _field(value: Any, path: shapes.Path) -> str:
    if value not in NAMES:
        raise shapes.ShapeError(path, f"unknown field {value!r}; known are " + ", ".join(sorted(NAMES)))
    return str(value)


def _type(value: Any, path: shapes.Path) -> int:
    return TYPES[shapes.one_of(*TYPES)(value, path)]


def _version(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str) or not all(part.isdigit() for part in value.split(".")):
        raise shapes.ShapeError(path, "must be a driver version in quotes, such as '580.65.06'")
    return value


_PATTERNS = shapes.listing(shapes.functions)
_ECC, _set_ecc = effects.section("ecc_")
_REMAP, _set_remap = effects.section("remap_")
_PCIE_ERRORS, _set_pcie_errors = effects.section("pcie_errors_")
_ANY_NUMBER = shapes.optional(shapes.moving(shapes.any_number))

FAULTS: Mapping[str, Fault] = {
    fault.key: fault
    for fault in (
        Fault(
            key="crash",
            help="Functions that end the process with SIGSEGV.",
            shape=_PATTERNS,
            node=True,
            refuse=effects.crash,
        ),
        Fault(
            key="hang",
            help="Functions that return once this row is gone.",
            shape=_PATTERNS,
            node=True,
            refuse=effects.hang,
        ),
        Fault(
            key="hang_forever",
            help="Functions that never return.",
            shape=_PATTERNS,
            node=True,
            refuse=effects.hang_forever,
        ),
        Fault(
            key="delay",
            help="Seconds that functions take longer.",
            shape=shapes.by_key(shapes.functions, shapes.number(0, 86400, "s")),
            node=True,
            refuse=effects.delay,
        ),
        Fault(
            key="fail",
            help="Codes that functions answer.",
            shape=shapes.by_key(shapes.functions, shapes.code),
            node=True,
            refuse=effects.fail,
        ),
        Fault(
            key="driver",
            help="absent: no library; not_loaded: no kernel module; mismatch: library and module differ.",
            shape=shapes.one_of(*effects.DRIVERS),
            gpu=False,
            node=True,
            refuse=effects.driver,
        ),
        Fault(
            key="root",
            help="false: the caller is not root, and functions for root alone answer 4.",
            shape=shapes.flag,
            gpu=False,
            node=True,
            refuse=effects.root,
        ),
        Fault(
            key="lost",
            help="The GPU fell off the bus: lookups and getters answer 15; it is still counted.",
            shape=shapes.flag,
            alter=lambda lost, state, _: replace(state, lost=lost),
        ),
        Fault(
            key="uncounted",
            help="NVML's count and indices leave the GPU out; the PCI bus still has it.",
            shape=shapes.flag,
            alter=lambda uncounted, state, _: replace(state, counted=not uncounted),
        ),
        Fault(
            key="absent",
            help="The GPU is gone, from the PCI bus too.",
            shape=shapes.flag,
            alter=lambda absent, state, _: replace(state, on_bus=not absent),
        ),
        Fault(
            key="bound",
            help="The GPU belongs to vfio-pci or to no driver: NVML does not see it, the PCI bus does.",
            shape=shapes.one_of("nvidia", "vfio-pci", "none"),
            alter=lambda driver, state, _: replace(state, bound="" if driver == "none" else driver),
        ),
        Fault(
            key="lookup",
            help="Code that looking up the GPU's handle answers. A handle that is held goes on working.",
            shape=shapes.code,
            alter=lambda code, state, _: replace(state, lookup_code=code),
        ),
        Fault(
            key="reset_required",
            help="Looking up the GPU's handle answers 16, and the recovery action is a reset.",
            shape=shapes.flag,
            alter=lambda on, state, _: (
                replace(state, lookup_code=Code.RESET_REQUIRED, recovery_action=1) if on else state
            ),
        ),
        Fault(
            key="mig",
            help="The GPU's MIG instances, in the order of their creation; [] for MIG on and none; null for MIG off.",
            shape=shapes.optional(shapes.listing(_instance)),
        ),
        Fault(
            key="set",
            help="Quantities by name; null for what the GPU does not support.",
            shape=shapes.fields({name: effects.growable(name) for name in QUANTITIES}),
            alter=effects.set_numbers,
        ),
        Fault(
            key="garbage",
            help="Quantities again, with numbers that they cannot have.",
            shape=shapes.fields(dict.fromkeys(QUANTITIES, shapes.moving(shapes.any_number))),
            alter=effects.set_garbage,
        ),
        Fault(
            key="gpm",
            help="Metrics of performance monitoring by name or '*', in %; null for what the GPU does not support.",
            shape=shapes.fields(dict.fromkeys(("*", *METRICS), _ANY_NUMBER)),
            alter=effects.set_gpm,
        ),
        Fault(key="ecc", help="ECC errors.", shape=_ECC, alter=_set_ecc),
        Fault(key="remap", help="Row remapping.", shape=_REMAP, alter=_set_remap),
        Fault(key="pcie_errors", help="Errors of the PCIe link.", shape=_PCIE_ERRORS, alter=_set_pcie_errors),
        Fault(
            key="nvlinks",
            help="By link or '*': its state (down, active, sleep) and error counts.",
            shape=shapes.by_key(effects.link_number, effects.LINK),
            alter=effects.nvlinks,
        ),
        Fault(
            key="c2c_links",
            help="By chip-to-chip link or '*': down or active.",
            shape=shapes.by_key(effects.link_number, shapes.one_of("down", "active")),
            alter=effects.c2c_links,
        ),
        Fault(
            key="fabric",
            help="The NVLink fabric: state, status, clique, summary and checks of its health.",
            shape=effects.FABRIC,
            alter=effects.fabric,
        ),
        Fault(
            key="fail_fields",
            help="Codes that single fields of a batch answer, by name.",
            shape=shapes.by_key(_field, shapes.code),
            alter=lambda codes, state, _: replace(state, field_codes={**state.field_codes, **codes}),
        ),
        Fault(
            key="field_types",
            help="Types of value that single fields of a batch answer with, by name.",
            shape=shapes.by_key(_field, _type),
            alter=lambda types, state, _: replace(state, field_types={**state.field_types, **types}),
        ),
        Fault(
            key="ports",
            help="By InfiniBand device or '*': state, rate, counters; unreadable, hanging or absent.",
            shape=PORTS_SHAPE,
            gpu=False,
            node=True,
        ),
        Fault(
            key="services",
            help="fabric_manager, imex: running, stopped or not_installed.",
            shape=SERVICES_SHAPE,
            gpu=False,
            node=True,
        ),
        Fault(key="xids", help="Xids, each delivered once, or many a second.", shape=shapes.listing(_xid)),
        Fault(
            key="idle",
            help="No process, ever.",
            shape=shapes.flag,
            node=True,
            plan=lambda on, _seed, _gpu: workload.IDLE if on else None,
        ),
        Fault(
            key="busy",
            help="One process a GPU, always.",
            shape=shapes.flag,
            node=True,
            plan=lambda on, seed, _gpu: workload.busy(seed) if on else None,
        ),
        Fault(
            key="jobs",
            help="These jobs and no others.",
            shape=shapes.listing(_run),
            gpu=False,
            node=True,
            plan=lambda runs, _seed, gpu: workload.listed(runs, gpu),
        ),
        Fault(
            key="seed",
            help="Another node of the same kind: other serial numbers, other jobs.",
            shape=shapes.whole(0, 2**31),
            gpu=False,
            node=True,
        ),
        Fault(
            key="driver_version",
            help="Another driver: what functions and fields there are, and the fields' numbers.",
            shape=_version,
            gpu=False,
            node=True,
        ),
    )
}
