"""Generates the table of docs/doctor.md from the table of checks."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.cli.doctor import CHECKS


def sections() -> Mapping[str, str]:
    """Return the text of each section by its name in the page."""
    rows = "".join(f"| `{check.name}` | {check.question} |\n" for check in CHECKS)
    return {"checks": f"| check | question |\n| --- | --- |\n{rows}"}
