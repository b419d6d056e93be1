"""Reads the operator's Xid file, which overrides and extends the shipped Xid table. An example of a file follows.

79:
  severity: warning
  action: page the hardware team
901: {name: "Firmware of our own", severity: critical, class: firmware, action: reset the GPU}
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpumon.config import yaml_file
from gpumon.config.configuration_error import ConfigurationProblem, did_you_mean
from gpumon.config.yaml_file import Parsed
from gpumon.health.xids import XIDS, Class, Severity, Xid, unknown

KEYS = {"name": "name", "severity": "severity", "class": "kind", "action": "action", "if_it_recurs": "if_it_recurs"}
"""Attribute of the class Xid, by key of a row in the file."""
_CHOICES: Mapping[str, type[Severity | Class]] = {"severity": Severity, "class": Class}
HIGHEST = 999_999


def read(path: Path) -> tuple[Mapping[int, Xid], list[ConfigurationProblem]]:
    """Return the rows of the file by Xid code, and the problems of the file. If there is a problem, return no rows."""
    parsed, problems = yaml_file.read(path, "xids.file")
    problems += _problems(parsed, path)
    rows = {} if problems else parsed.values or {}
    return {int(code): _xid(int(code), row) for code, row in rows.items()}, problems


def _problems(parsed: Parsed, path: Path) -> Iterator[ConfigurationProblem]:
    if parsed.values is not None and not isinstance(parsed.values, dict):
        yield ConfigurationProblem(
            f"{path}:1", "", "must be a mapping of Xid codes to rows", "for example 79: {severity: warning}"
        )
        return
    for code, row in (parsed.values or {}).items():
        origin = f"{path}:{parsed.lines[code,]}"
        if not (code.isdecimal() and len(code) <= len(str(HIGHEST))):
            yield ConfigurationProblem(origin, code, "is not an Xid code", "for example 79")
        elif not isinstance(row, dict) or not row:
            yield ConfigurationProblem(
                origin, code, "must be a mapping of keys to values", f"valid keys: {', '.join(KEYS)}"
            )
        else:
            yield from (
                ConfigurationProblem(f"{path}:{parsed.lines[code, key]}", f"{code}.{key}", *wrong)
                for key, value in row.items()
                if (wrong := _problem(key, value)) is not None
            )


def _problem(key: str, value: Any) -> tuple[str, str] | None:
    if key not in KEYS:
        return "unknown key", did_you_mean(key, KEYS)
    if not isinstance(value, str) or not value.strip():
        return f"must be text, not {value!r}", f'for example {key}: "..."'
    if key in _CHOICES and value not in {choice.value for choice in _CHOICES[key]}:
        return f"unknown value {value!r}", f"valid values: {', '.join(_CHOICES[key])}"
    return None


def _xid(code: int, row: Mapping[str, str]) -> Xid:
    written = {KEYS[key]: _CHOICES[key](text) if key in _CHOICES else text.strip() for key, text in row.items()}
    shipped = XIDS.get(code) or unknown(code)
    return dataclasses.replace(shipped, ordered=frozenset(written), **written)  # type: ignore[arg-type]
