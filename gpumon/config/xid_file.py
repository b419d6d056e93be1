"""An operator's file on Xids: what this host is to think of a code, in place of or beside the shipped table.

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
from gpumon.config.given import Problem, did_you_mean
from gpumon.config.yaml_file import Parsed, YamlError
from gpumon.health.xids import XIDS, Class, Severity, Xid, unknown

KEYS = {"name": "name", "severity": "severity", "class": "kind", "action": "action", "if_it_recurs": "if_it_recurs"}
"""As written -> attribute of Xid."""
_CHOICES: Mapping[str, type[Severity | Class]] = {"severity": Severity, "class": Class}
HIGHEST = 999_999


def read(path: Path) -> tuple[Mapping[int, Xid], tuple[Problem, ...]]:
    """The rows it makes, and all that is wrong with it."""
    try:
        parsed = yaml_file.parse(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, (Problem(str(path), "", f"cannot be read ({error.strerror})", "correct xids.file"),)
    except UnicodeDecodeError as error:
        return {}, (Problem(str(path), "", f"is not UTF-8 at byte {error.start}", "save it as UTF-8"),)
    except YamlError as error:
        origin = f"{path}:{error.line}" if error.line else str(path)
        return {}, (Problem(origin, "", error.wrong, "correct the line"),)
    problems = tuple(_problems(parsed, path))
    return ({} if problems else dict(_rows(parsed.values))), problems


def _problems(parsed: Parsed, path: Path) -> Iterator[Problem]:
    for key, line in parsed.repeated:
        wrong = f"stands in line {parsed.lines[key]} too"
        yield Problem(f"{path}:{line}", ".".join(key), wrong, "delete one of them")
    if parsed.values is not None and not isinstance(parsed.values, dict):
        yield Problem(
            f"{path}:1", "", "should hold codes and what to think of each", "for example 79: {severity: warning}"
        )
        return
    for code, row in (parsed.values or {}).items():
        origin = f"{path}:{parsed.lines[code,]}"
        if not code.isdecimal() or int(code) > HIGHEST:
            yield Problem(origin, code, "is not the number of an Xid", "for example 79")
        elif not isinstance(row, dict) or not row:
            yield Problem(
                origin, code, "should hold one or more keys and their values", f"known here: {', '.join(KEYS)}"
            )
        else:
            yield from (
                Problem(f"{path}:{parsed.lines[code, key]}", f"{code}.{key}", *found)
                for key, value in row.items()
                if (found := _wrong(key, value)) is not None
            )


def _wrong(key: str, value: Any) -> tuple[str, str] | None:
    """What is wrong with a value, and the remedy."""
    if key not in KEYS:
        return "is not known", did_you_mean(key, KEYS)
    if not isinstance(value, str) or not value.strip():
        return f"should be text, not {value!r}", f'for example {key}: "..."'
    if key in _CHOICES and value not in {one.value for one in _CHOICES[key]}:
        known = ", ".join(_CHOICES[key])
        return f"{value!r} is not known", f"one of: {known}"
    return None


def _rows(values: Mapping[str, Mapping[str, str]] | None) -> Iterator[tuple[int, Xid]]:
    for code, row in (values or {}).items():
        number = int(code)
        written = {KEYS[key]: _CHOICES[key](text) if key in _CHOICES else text.strip() for key, text in row.items()}
        shipped = XIDS.get(number) or unknown(number)
        yield number, dataclasses.replace(shipped, ordered=frozenset(written), **written)  # type: ignore[arg-type]
