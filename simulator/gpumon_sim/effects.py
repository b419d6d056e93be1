"""Functions that apply a scenario's faults: they delay, hang, fail or crash NVML calls, or change GPU states."""

from __future__ import annotations

import resource
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from gpumon_sim import shapes
from gpumon_sim.codes import Code
from gpumon_sim.quantities import (
    EVENT_HW_SLOWDOWN,
    EVENT_POWER_BRAKE,
    LINK_ACTIVE,
    LINK_ASLEEP,
    LINK_DOWN,
    LINK_WITHOUT_TRAFFIC,
    QUANTITIES,
    Link,
    State,
)

RECHECK = 0.05
"""Interval in seconds at which a hanging call checks whether the scenario still has the fault."""
ROOT_ONLY = frozenset({"nvmlDeviceGetSramEccErrorStatus"})


class SimCall(NamedTuple):
    """An NVML call of a client that is in progress in the simulated library."""

    function: str
    hanging: Callable[[], Iterable[str]]
    """Function that returns the patterns of the functions that hang at present. A hanging call uses it to return when
    the fault is removed from the scenario.
    """


# Calls


def _matches(patterns: Iterable[str], function: str) -> bool:
    return any(fnmatchcase(function, pattern) for pattern in patterns)


def hang(_: Any, call: SimCall) -> None:
    while _matches(call.hanging(), call.function):
        time.sleep(RECHECK)


def hang_forever(patterns: tuple[str, ...], call: SimCall) -> None:
    while _matches(patterns, call.function):
        time.sleep(3600)


def delay(seconds: Mapping[str, float], call: SimCall) -> None:
    time.sleep(max((s for pattern, s in seconds.items() if fnmatchcase(call.function, pattern)), default=0.0))


def fail(codes: Mapping[str, int], call: SimCall) -> int | None:
    return next((code for pattern, code in codes.items() if fnmatchcase(call.function, pattern)), None)


def crash(patterns: tuple[str, ...], call: SimCall) -> None:
    if _matches(patterns, call.function):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # repeated crashes of a demo must not fill the disk
        signal.raise_signal(signal.SIGSEGV)


DRIVERS = {
    "absent": Code.LIBRARY_NOT_FOUND,
    "not_loaded": Code.DRIVER_NOT_LOADED,
    "mismatch": Code.LIB_RM_VERSION_MISMATCH,
}


def driver(condition: str, call: SimCall) -> int | None:
    # A library that is absent or of another version fails initialisation only; without the kernel module, calls fail.
    concerns_all = condition == "not_loaded" and call.function != "nvmlShutdown"
    return DRIVERS[condition] if concerns_all or call.function.startswith("nvmlInit") else None


def root(is_root: bool, call: SimCall) -> int | None:  # noqa: FBT001 - the value of a fault
    return None if is_root or call.function not in ROOT_ONLY else Code.NO_PERMISSION


# Numbers

Numbers = Mapping[str, shapes.Growth | None]


def set_numbers(values: Numbers, state: State, now: float) -> State:
    def number(name: str, growth: shapes.Growth) -> float:
        allowed = QUANTITIES[name]
        return min(max(growth.at(now), allowed.low), allowed.high)

    return _replace_values(values, state, number)


def set_garbage(values: Numbers, state: State, now: float) -> State:
    garbled = replace(state, garbled=state.garbled | values.keys())
    return _replace_values(values, garbled, lambda _, growth: growth.at(now))


def _replace_values(values: Numbers, state: State, number: Callable[[str, shapes.Growth], float]) -> State:
    if "power" in values:
        supported = (name for name in ("power_now", "power_average") if getattr(state, name) is not None)
        values = {**dict.fromkeys(supported, values["power"]), **values}
    numbers: dict[str, Any] = {name: growth and number(name, growth) for name, growth in values.items()}
    return replace(state, **numbers)


Alter = Callable[[Any, State, float], State]


def section(prefix: str) -> tuple[str, shapes.Shape, Alter]:
    """Return description, validator and effect of a scenario key that sets the quantities beginning with `prefix`.

    The value of the key maps names of simulated quantities, without the prefix, to numbers. The effect is a function
    that returns a State with these numbers.
    """
    shape_by_name = {name.removeprefix(prefix): growable(name) for name in QUANTITIES if name.startswith(prefix)}

    def alter(values: Mapping[str, Any], state: State, now: float) -> State:
        return set_numbers({prefix + name: value for name, value in values.items()}, state, now)

    words = ", ".join(f"`{name}`" for name in shape_by_name) + ": number"
    return words, shapes.fields(shape_by_name), alter


def growable(name: str) -> shapes.Shape:
    """Return a validator of values of a quantity: a fixed or growing number in its bounds, or null (not supported)."""
    return shapes.optional(shapes.growing_number(QUANTITIES[name].low, QUANTITIES[name].high, QUANTITIES[name].unit))


def set_gpm(values: Numbers, state: State, now: float) -> State:
    return replace(state, gpm={**state.gpm, **{name: growth and growth.at(now) for name, growth in values.items()}})


# Power

POWER_BRAKE = shapes.fields({"seconds": shapes.number(0, 3600, "s"), "every": shapes.number(0.1, 3600, "s")})
_BRAKE_BEGIN = 0.05
"""Seconds after the epoch at which the first brake begins: between two samples, so that short ones are only counted."""


def power_brake(settings: Mapping[str, float], state: State, now: float) -> State:
    seconds, every = settings.get("seconds", 0.0), settings.get("every", 60.0)
    cycles, phase = divmod(max(0.0, now - _BRAKE_BEGIN), every)
    events = EVENT_HW_SLOWDOWN | EVENT_POWER_BRAKE if phase < seconds else 0
    return replace(
        state,
        clock_events=int(state.clock_events or 0) | events,
        hw_power_brake_seconds=cycles * seconds + min(phase, seconds),
    )


# Links

LINK_STATES = {"down": LINK_DOWN, "active": LINK_ACTIVE, "sleep": LINK_ASLEEP, "no_traffic": LINK_WITHOUT_TRAFFIC}
_ERROR_RATES = ("effective_ber", "symbol_ber")
LINK = shapes.fields(
    {"state": shapes.one_of(*LINK_STATES)}
    | {name: shapes.growing_number(0, 1 if name in _ERROR_RATES else 2**53) for name in Link._fields if name != "state"}
)


def link_number(value: Any, path: shapes.Path) -> int | str:
    number = shapes.whole(0, 35, "number of a link, or '*'")
    return "*" if value == "*" else int(number(value, path))


def nvlinks(settings: Mapping[int | str, Mapping[str, Any]], state: State, now: float) -> State:
    return replace(
        state,
        links=tuple(
            _link(link, {**settings.get("*", {}), **settings.get(number, {})}, now)
            for number, link in enumerate(state.links)
        ),
    )


def _link(link: Link, settings: Mapping[str, Any], now: float) -> Link:
    counts = {name: value.at(now) for name, value in settings.items() if name != "state"}
    return link._replace(state=LINK_STATES[settings["state"]] if "state" in settings else link.state, **counts)


def c2c_links(settings: Mapping[int | str, str], state: State, _: float) -> State:
    return replace(
        state,
        c2c_links=tuple(
            int(settings.get(number, settings.get("*", "active")) == "active") for number in range(len(state.c2c_links))
        ),
    )


# Peer access

CAPABILITIES = ("read", "write", "nvlink", "atomics", "pci")
"""NVML's capabilities of peer access between GPUs. The index of a capability here, and of a status in
ACCESS_STATUSES, is its number in NVML.
"""
ACCESS_STATUSES = (
    *("ok", "chipset_not_supported", "gpu_not_supported", "topology_not_supported"),
    *("disabled_by_regkey", "not_supported", "unknown"),
)
PEER_ACCESS = shapes.by_key(
    shapes.whole(0, 255, "number of the other GPU"),
    shapes.fields(dict.fromkeys(CAPABILITIES, shapes.one_of(*ACCESS_STATUSES))),
)


def peer_access(settings: Mapping[int, Mapping[str, str]], state: State, _: float) -> State:
    before = state.peer_access
    altered = {other: {**before.get(other, {}), **statuses} for other, statuses in settings.items()}
    return replace(state, peer_access={**before, **altered})


# The NVLink fabric

HEALTH = {
    "degraded_bandwidth": (0, 2),
    "route_recovery": (2, 2),
    "route_unhealthy": (4, 2),
    "access_timeout_recovery": (6, 2),
    "incorrect_configuration": (8, 4),
    "partition_assigned": (12, 2),
    "manager_connected": (14, 2),
}
"""Bits (shift, width) of each check in NVML's mask of fabric health. The value of a check is 0 for not supported, 1 for
true and 2 for false. `incorrect_configuration` is 1 if the configuration is correct; each higher value is a reason.
"""

FABRIC = shapes.fields(
    {name: growable(f"fabric_{name}") for name in ("state", "status", "summary", "clique")}
    | {"health": shapes.by_key(shapes.one_of(*HEALTH), shapes.whole(0, 15, "0 not supported, 1 true, 2 false"))}
)


def fabric(settings: Mapping[str, Any], state: State, now: float) -> State:
    mask = int(state.fabric_health or 0)
    for check, value in settings.get("health", {}).items():
        shift, width = HEALTH[check]
        mask = mask & ~((1 << width) - 1 << shift) | value << shift
    numbers = {f"fabric_{name}": value for name, value in settings.items() if name != "health"}
    return replace(set_numbers(numbers, state, now), fabric_health=mask)
