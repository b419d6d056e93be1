"""TABLE: what a scenario can do to the simulated node. One row a fault.

A row refuses calls, alters what GPUs answer, or plans their work; `docs/simulation.md` shows each in use.
"""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpumon.sim import shapes, workload
from gpumon.sim.codes import Code
from gpumon.sim.fields import NAMES
from gpumon.sim.physics import Workload
from gpumon.sim.state import LINK_ACTIVE, LINK_ASLEEP, LINK_DOWN, QUANTITIES, Link, State

RECHECK = 0.05
"""Seconds between two looks at the scenario of a call that hangs."""


class Call(NamedTuple):
    """A call that has been entered and not yet been answered."""

    function: str
    still: Callable[[], Iterable[tuple[Fault, Any]]]
    """What is in force for it by now."""


class Xid(NamedTuple):
    """An Xid of the scenario; `at` in seconds after the epoch, None for when the file is seen to have it."""

    xid: int
    at: float | None = None


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
    alter: Callable[[Any, State, float], State] | None = None
    """Another state at this time. Replaces by what the scenario says, so that doing it twice is doing it once."""
    plan: Callable[[Any, int, int], Workload | None] | None = None
    """From seed and GPU, its workload; None for the usual one."""


def _matches(patterns: Iterable[str], function: str) -> bool:
    return any(fnmatchcase(function, pattern) for pattern in patterns)


def _hang(_: Any, call: Call) -> None:
    while any(fault.key == "hang" and _matches(value, call.function) for fault, value in call.still()):
        time.sleep(RECHECK)


def _hang_forever(patterns: tuple[str, ...], call: Call) -> None:
    while _matches(patterns, call.function):
        time.sleep(3600)


def _delay(seconds: Mapping[str, float], call: Call) -> None:
    time.sleep(max((s for pattern, s in seconds.items() if fnmatchcase(call.function, pattern)), default=0.0))


def _fail(codes: Mapping[str, int], call: Call) -> int | None:
    return next((code for pattern, code in codes.items() if fnmatchcase(call.function, pattern)), None)


def _crash(patterns: tuple[str, ...], call: Call) -> None:
    if _matches(patterns, call.function):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # many crashes of a demo must not fill the disk
        signal.raise_signal(signal.SIGSEGV)


_DRIVERS = {
    "absent": Code.LIBRARY_NOT_FOUND,
    "not_loaded": Code.DRIVER_NOT_LOADED,
    "mismatch": Code.LIB_RM_VERSION_MISMATCH,
}


def _driver(condition: str, call: Call) -> int | None:
    # A process that has the library keeps it when its file goes or changes; an unloaded module is gone for all.
    concerns_all = condition == "not_loaded" and call.function != "nvmlShutdown"
    return _DRIVERS[condition] if concerns_all or call.function.startswith("nvmlInit") else None


def _set(values: Mapping[str, shapes.Growth | None], state: State, now: float) -> State:
    if "power" in values:
        supported = (name for name in ("power_now", "power_average") if getattr(state, name) is not None)
        values = {**dict.fromkeys(supported, values["power"]), **values}
    numbers: dict[str, Any] = {name: _value(name, growth, now) for name, growth in values.items()}
    return replace(state, **numbers)


def _value(name: str, growth: shapes.Growth | None, now: float) -> float | None:
    if growth is None:
        return None
    allowed = QUANTITIES[name]
    return min(max(growth.at(now), allowed.low), allowed.high)


def _section(prefix: str) -> tuple[shapes.Shape, Callable[[Any, State, float], State]]:
    """The quantities whose names start alike, as a key of their own."""
    known = {name.removeprefix(prefix): growable(name) for name in QUANTITIES if name.startswith(prefix)}

    def alter(values: Mapping[str, Any], state: State, now: float) -> State:
        return _set({prefix + name: value for name, value in values.items()}, state, now)

    return shapes.fields(known), alter


def growable(name: str) -> shapes.Shape:
    """What a quantity may be set to; null takes it away."""
    return shapes.optional(shapes.growing(QUANTITIES[name].low, QUANTITIES[name].high, QUANTITIES[name].unit))


_LINK_STATES = {"down": LINK_DOWN, "active": LINK_ACTIVE, "sleep": LINK_ASLEEP}
_LINK = shapes.fields(
    {"state": shapes.one_of(*_LINK_STATES)} | dict.fromkeys(("replay", "recovery", "crc"), shapes.growing(0, 2**53))
)


def _link_number(value: Any, path: shapes.Path) -> int | str:
    number = shapes.whole(0, 35, "number of an NVLink, or '*'")
    return "*" if value == "*" else int(number(value, path))


def _nvlinks(wanted: Mapping[int | str, Mapping[str, Any]], state: State, now: float) -> State:
    return replace(
        state,
        links=tuple(
            _link(link, {**wanted.get("*", {}), **wanted.get(number, {})}, now)
            for number, link in enumerate(state.links)
        ),
    )


def _link(link: Link, wanted: Mapping[str, Any], now: float) -> Link:
    counts = {name: int(value.at(now)) for name, value in wanted.items() if name != "state"}
    return link._replace(state=_LINK_STATES[wanted["state"]] if "state" in wanted else link.state, **counts)


def _xid(value: Any, path: shapes.Path) -> Xid:
    number = shapes.whole(1, 2**31, "an Xid")
    if not isinstance(value, dict):
        return Xid(number(value, path))
    parts = shapes.fields({"xid": number, "at": shapes.number(0, 1e12)})(value, path)
    if "xid" not in parts:
        raise shapes.ShapeError(path, "needs a key 'xid'")
    return Xid(parts["xid"], parts.get("at"))


_RUN = shapes.fields(
    {
        "start": shapes.number(0, 1e12, "seconds after the epoch"),
        "end": shapes.number(0, 1e12, "seconds after the epoch"),
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


def _field(value: Any, path: shapes.Path) -> str:
    if value not in NAMES:
        raise shapes.ShapeError(path, f"unknown field {value!r}; known are " + ", ".join(sorted(NAMES)))
    return str(value)


def _version(value: Any, path: shapes.Path) -> str:
    if not isinstance(value, str) or not all(part.isdigit() for part in value.split(".")):
        raise shapes.ShapeError(path, "must be a driver version in quotes, such as '580.65.06'")
    return value


_PATTERNS = shapes.listing(shapes.functions)
_ECC, _set_ecc = _section("ecc_")
_REMAP, _set_remap = _section("remap_")

FAULTS: Mapping[str, Fault] = {
    fault.key: fault
    for fault in (
        Fault(
            key="crash", help="Functions that end the process with SIGSEGV.", shape=_PATTERNS, node=True, refuse=_crash
        ),
        Fault(
            key="hang", help="Functions that return once this row is gone.", shape=_PATTERNS, node=True, refuse=_hang
        ),
        Fault(
            key="hang_forever", help="Functions that never return.", shape=_PATTERNS, node=True, refuse=_hang_forever
        ),
        Fault(
            key="delay",
            help="Seconds that functions take longer.",
            shape=shapes.by_key(shapes.functions, shapes.number(0, 86400, "s")),
            node=True,
            refuse=_delay,
        ),
        Fault(
            key="fail",
            help="Codes that functions answer.",
            shape=shapes.by_key(shapes.functions, shapes.code),
            node=True,
            refuse=_fail,
        ),
        Fault(
            key="driver",
            help="absent: no library; not_loaded: no kernel module; mismatch: library and module differ.",
            shape=shapes.one_of(*_DRIVERS),
            gpu=False,
            node=True,
            refuse=_driver,
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
            key="set",
            help="Quantities by name; null for what the GPU does not support.",
            shape=shapes.fields({name: growable(name) for name in QUANTITIES}),
            alter=_set,
        ),
        Fault(key="ecc", help="ECC errors since the driver was loaded.", shape=_ECC, alter=_set_ecc),
        Fault(key="remap", help="Row remapping.", shape=_REMAP, alter=_set_remap),
        Fault(
            key="nvlinks",
            help="By link or '*': its state (down, active, sleep) and error counts.",
            shape=shapes.by_key(_link_number, _LINK),
            alter=_nvlinks,
        ),
        Fault(
            key="fail_fields",
            help="Codes that single fields of a batch answer, by name.",
            shape=shapes.by_key(_field, shapes.code),
            alter=lambda codes, state, _: replace(state, field_codes={**state.field_codes, **codes}),
        ),
        Fault(key="xids", help="Xids, each delivered once.", shape=shapes.listing(_xid)),
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
