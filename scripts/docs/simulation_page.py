"""Generates the tables of docs/simulation.md from the code's tables."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping

import yaml
from gpumon_sim.effects import HEALTH
from gpumon_sim.gpm import METRICS
from gpumon_sim.profiles import PROFILES
from gpumon_sim.quantities import QUANTITIES, Link
from gpumon_sim.sim_faults import FAULTS

_WITH_KEYS_OF_THEIR_OWN = ("ecc_", "remap_", "pcie_errors_", "fabric_")
"""Quantities with their own scenario keys."""


def sections() -> Mapping[str, str]:
    """Return each table's text, by its name in the page."""
    return {
        "profiles": _table(("profile", "GPUs", "NVLinks each", "driver", "worth knowing"), _profiles()),
        "faults": _table(("at the top", "below a GPU", "value", "example", "effect"), _faults()),
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


def _faults() -> Iterable[tuple[str, ...]]:
    for fault in FAULTS.values():
        key, example = f"`{fault.key}`", f"`{_flow(fault.examples[0].value)}`"
        shown = "" if example in fault.value else example
        yield key if fault.node else "", key if fault.gpu else "", fault.value, shown, fault.help


def _flow(value: object) -> str:
    """Return the value as YAML on one line."""
    return yaml.safe_dump([value], default_flow_style=True, sort_keys=False, width=math.inf)[1:-2]


def _quantities() -> Iterable[tuple[str, str]]:
    by_unit = defaultdict(list)
    for name, quantity in QUANTITIES.items():
        if not name.startswith(_WITH_KEYS_OF_THEIR_OWN):
            by_unit[quantity.unit or "number"].append(f"`{name}`")
    return ((unit, ", ".join(names)) for unit, names in by_unit.items())
