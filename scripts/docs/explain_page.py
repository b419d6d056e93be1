"""The generated section of docs/explain.md: versions of NCCL that a query of RAS can crash."""

from __future__ import annotations

from collections.abc import Mapping

from gpumon.cli.hang.ras import KNOWN_CRASHES


def sections() -> Mapping[str, str]:
    """Return the text of the section, by its name."""
    lines = ["| NCCL | known trouble |", "| --- | --- |"]
    for first, last, crash in KNOWN_CRASHES:
        begin, end = (".".join(map(str, version)) for version in (first, last))
        lines.append(f"| {begin if begin == end else f'{begin} to {end}'} | {crash} |")
    return {"crashes": "\n".join(lines) + "\n"}
