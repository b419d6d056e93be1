"""`promtool test rules`: the real Prometheus engine as the oracle for our evaluator."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumon.model.reading import Labels

Values = Sequence[float | None]
"""One value a step, None where the series is absent."""


@dataclass(frozen=True, slots=True)
class Series:
    """One series of a test, step by step."""

    name: str
    labels: Labels
    values: Values


def selector(name: str, labels: Labels) -> str:
    """A series as PromQL writes it."""
    return name + "{" + ",".join(f"{label}={json.dumps(value)}" for label, value in labels) + "}"


def group(step: int, series: Iterable[Series], **tests: list[dict[str, Any]]) -> dict[str, Any]:
    """One group: `alert_rule_test` and `promql_expr_test` over the same series, a value every `step` seconds."""
    written = [{"series": selector(item.name, item.labels), "values": _written(item.values)} for item in series]
    return {"interval": f"{step}s", "input_series": written} | tests


def pack_groups(groups: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same tests in fewer groups, each of which costs Prometheus every rule: none has two courses of one series."""
    packs: list[tuple[dict[str, str], dict[str, Any]]] = []
    for each in groups:
        courses = {row["series"]: row["values"] for row in each["input_series"]}
        for known, pack in packs:
            if all(known.get(name, values) == values for name, values in courses.items()):
                pack["input_series"] += [row for row in each["input_series"] if row["series"] not in known]
                pack["alert_rule_test"] += each["alert_rule_test"]
                known.update(courses)
                break
        else:
            packs.append((courses, each))
    return [pack for _, pack in packs]


def _written(values: Values) -> str:
    """A series that goes away leaves a staleness marker, as it does when a scrape no longer shows it."""
    words: list[str] = []
    previous: float | None = None
    for value in values:
        words.append("stale" if value is None and previous is not None else "_" if value is None else repr(value))
        previous = value
    return " ".join(words)


def check(folder: Path, rules: str, groups: list[dict[str, Any]], step: int = 60) -> None:
    """Fail with promtool's output if Prometheus does not return what the groups expect."""
    (folder / "rules.yml").write_text(rules)
    # JSON is YAML, and written much faster.
    tests = {"rule_files": ["rules.yml"], "evaluation_interval": f"{step}s", "tests": groups}
    (folder / "tests.yml").write_text(json.dumps(tests))
    ran = subprocess.run(
        ["promtool", "test", "rules", "tests.yml"], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, (ran.stdout + ran.stderr)[:8000]
