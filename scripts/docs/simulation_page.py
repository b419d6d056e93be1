"""Generates the tables of docs/simulation.md from the code's tables."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping

import yaml
from gpumon_sim.effects import HEALTH
from gpumon_sim.faults.keys import KEYS
from gpumon_sim.faults.row import BUSY, FaultRow, ScenarioStep
from gpumon_sim.faults.table import FAULTS
from gpumon_sim.gpm import METRICS
from gpumon_sim.profiles import PROFILES
from gpumon_sim.quantities import QUANTITIES, Link

_WITH_KEYS_OF_THEIR_OWN = ("ecc_", "remap_", "pcie_errors_", "fabric_")
"""Quantities with their own scenario keys."""
_SHOWN_STEPS = 3


def sections() -> Mapping[str, str]:
    """Return each table's text, by its name in the page."""
    return {
        "profiles": _table(("profile", "GPUs", "NVLinks each", "driver", "worth knowing"), _profiles()),
        "keys": _table(("at the top", "below a GPU", "value", "example", "effect"), _keys()),
        "faults": _table(("fault", "steps", "verdict", "action"), _faults()),
        "quantities": _table(("unit", "quantities"), _quantities()),
        "counters": _names(name for name in Link._fields if name not in {"state", "speed", "carried"}),
        "metrics": _names(METRICS),
        "health": _names(HEALTH),
    }


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "".join(f"| {' | '.join(line)} |\n".replace("|  |", "| |") for line in lines)


def _names(names: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{name}`" for name in names), width=119) + "\n"


def _profiles() -> Iterable[tuple[str, ...]]:
    for profile in PROFILES.values():
        board = profile.board
        gpus = f"{len(profile.bus_ids)} {board.product.removeprefix('NVIDIA ')}"
        yield f"`{profile.name}`", gpus, str(board.links or "none"), profile.driver, profile.note


def _keys() -> Iterable[tuple[str, ...]]:
    for row in KEYS.values():
        key, example = f"`{row.key}`", f"`{_flow(row.faults[0].scenario[row.key])}`"
        shown = "" if example in row.value else example
        yield key if row.node else "", key if row.gpu else "", row.value, shown, row.help


def _faults() -> Iterable[tuple[str, ...]]:
    for fault in FAULTS:
        if fault.check:
            yield fault.name, "; ".join(_story(fault)), f"`{fault.check}`", fault.action.value


def _story(fault: FaultRow) -> Iterable[str]:
    """Yield the steps of a fault in words."""
    if fault.before != BUSY:
        yield f"before: {_settings(fault.before)}"
    if fault.settings:
        yield f"configuration: {_settings(fault.settings)}"
    current: Mapping[str, object] = {}
    for step in fault.steps[:_SHOWN_STEPS]:
        scenario = _scenario(step)
        began = [_settings(scenario) if scenario else "healthy"] if scenario != current else []
        current = scenario
        yield (f"after {step.at:g} s: " if step.at else "") + ", ".join([*began, *_beside_scenario(step)])
    if len(fault.steps) > _SHOWN_STEPS:
        yield f"... ({len(fault.steps)} steps)"


def _scenario(step: ScenarioStep) -> Mapping[str, object]:
    """Return the scenario of a step, with its GPU at index 1."""
    gpus = {**step.node.get("gpus", {}), **({1: dict(step.gpu)} if step.gpu else {})}
    return {**step.node, **({"gpus": gpus} if gpus else {})}


def _beside_scenario(step: ScenarioStep) -> Iterable[str]:
    if step.log:
        yield "kernel log " + ", ".join(f"`{line}`" for line in step.log)
    if step.act is not None:
        yield step.act.value
    if step.settings:
        yield f"the agent is started again with {_settings(step.settings)}"


def _settings(values: Mapping[str, object]) -> str:
    """Return a mapping as YAML on one line, without its braces."""
    return f"`{_flow(dict(values))[1:-1]}`"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the same for all values
        return True


def _flow(value: object) -> str:
    """Return the value as YAML on one line."""
    return yaml.dump([value], Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf)[1:-2]


def _quantities() -> Iterable[tuple[str, str]]:
    by_unit = defaultdict(list)
    for name, quantity in QUANTITIES.items():
        if not name.startswith(_WITH_KEYS_OF_THEIR_OWN):
            by_unit[quantity.unit or "number"].append(f"`{name}`")
    return ((unit, ", ".join(names)) for unit, names in by_unit.items())
