"""What docs/metrics.md says besides the tables: numbers of fields, and which simulated nodes have a metric."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gpumon.collectors.nvml.field_ids import FIELD_IDS, Version
from gpumon.collectors.nvml.gpm import METRICS
from gpumon.model.reading import rows
from gpumon.outputs.catalogue import Findings
from gpumon.sim.profiles import PROFILES
from scripts.profiles import of_gpus, read_on


def findings() -> Findings:
    return Findings(numbers=numbers(), seen_on=seen_on())


def numbers() -> Mapping[str, str]:
    """Of each field, on which drivers: `251 from 575, 269 from 580.82`."""
    found: dict[str, list[str]] = {}
    for row in FIELD_IDS:
        since = f" from {_words(row.since)}" if row.since else ""
        found.setdefault(f"field {row.name}", []).append(f"{row.number}{since}")
    of_fields = {name: f"({', '.join(each)})" for name, each in found.items()}
    return of_fields | {f"GPM {name}": f"({number})" for name, number in METRICS.items()}


def seen_on() -> Mapping[str, str]:
    """By metric: the kinds of node that have it, or those that have not where they are fewer."""
    known = read_on()
    found: dict[str, set[str]] = {}
    for table, name in of_gpus():
        metric = table.PREFIX + ("info" if rows(table)[name].identity else name)
        found.setdefault(metric, set()).update(kind(one) for one in PROFILES if (table, name) in known[one])
    return {metric: _compact(kinds) for metric, kinds in found.items()}


def kind(profile: str) -> str:
    """Nodes that differ in the number of their GPUs only are of one kind."""
    return re.sub(r"x\d+$", "", profile)


def _compact(having: Collection[str]) -> str:
    kinds = list(dict.fromkeys(kind(one) for one in PROFILES))
    lacking = [one for one in kinds if one not in having]
    if not lacking:
        return "all"
    if not having:
        return "none"
    if len(lacking) < len(having):
        return f"all but {', '.join(lacking)}"
    return ", ".join(one for one in kinds if one in having)


def _words(version: Version) -> str:
    return ".".join(map(str, version))
