"""Facts for docs/metrics.md: the numbers of NVML fields, and the simulated nodes that have a metric."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from gpumon_sim.profiles import PROFILES

from gpumon.collectors.nvml.fields import FIELD_IDS
from gpumon.collectors.nvml.gpm import METRICS
from gpumon.model.reading import rows
from scripts.simulated_reports import gpu_rows, rows_by_profile


def field_numbers() -> Mapping[str, str]:
    """Return the number of each field by driver version, such as `(251, 575+; 269, 580.82+)`."""
    numbers: dict[str, list[str]] = {}
    for row in FIELD_IDS:
        since = f", {'.'.join(map(str, row.since))}+" if row.since else ""
        numbers.setdefault(f"field {row.name}", []).append(f"{row.number}{since}")
    fields = {name: f"({'; '.join(each)})" for name, each in numbers.items()}
    return fields | {f"GPM {name}": f"({number})" for name, number in METRICS.items()}


def nodes_with_metric() -> Mapping[str, str]:
    """Return by metric the kinds of node that have it, or those that lack it if they are fewer."""
    present = rows_by_profile()
    kinds_by_metric: dict[str, set[str]] = {}
    for table, name in gpu_rows():
        metric = table.PREFIX + ("info" if rows(table)[name].identity else name)
        kinds_by_metric.setdefault(metric, set()).update(
            kind(profile) for profile in PROFILES if (table, name) in present[profile]
        )
    return {metric: _compact(kinds) for metric, kinds in kinds_by_metric.items()}


def kind(profile: str) -> str:
    """Return the kind of a node: its profile without the number of GPUs."""
    return re.sub(r"x\d+$", "", profile)


def _compact(having: Collection[str]) -> str:
    kinds = list(dict.fromkeys(kind(profile) for profile in PROFILES))
    lacking = [name for name in kinds if name not in having]
    if not lacking:
        return "all"
    if not having:
        return "none"
    if len(lacking) < len(having):
        return f"all but {', '.join(lacking)}"
    return ", ".join(name for name in kinds if name in having)
