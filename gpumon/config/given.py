"""What was given, by whom: values from file, environment and flags laid over each other, before they are checked."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpumon.config import yaml_file
from gpumon.config.row import split
from gpumon.config.settings import CONFIG_FILE, FLAGS, sections, settings
from gpumon.config.yaml_file import Key, YamlError
from gpumon.health.policy import Limit, senseless
from gpumon.model.orders import is_recording

CONFIG_FILE_VARIABLE = "GPUMON_CONFIG__FILE"


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, and what to do about it."""

    origin: str
    """File and line, variable or flag."""
    key: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return ": ".join(part for part in (self.origin, self.key, self.wrong) if part) + f"; {self.remedy}"


class Given:
    """Each `put_...` lies over those before it. Problems are collected, so that all are told at once."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.origins: dict[Key, str] = {}
        self.problems: list[Problem] = []

    def put(self, section: str, key: str, value: Any, origin: str) -> None:
        for covered in [one for one in self.origins if one[:2] == (section, key)]:
            del self.origins[covered]
        self.values.setdefault(section, {})[key] = value
        self.origins[section, key] = origin

    def put_file(self, path: Path) -> None:
        try:
            parsed = yaml_file.parse(path.read_text(encoding="utf-8"))
        except OSError as error:
            self._complain(str(path), (), f"cannot be read ({error.strerror})", f"correct {CONFIG_FILE.name}")
        except UnicodeDecodeError as error:
            self._complain(str(path), (), f"is not UTF-8 at byte {error.start}", "save it as UTF-8")
        except YamlError as error:
            origin = f"{path}:{error.line}" if error.line else str(path)
            self._complain(origin, (), error.wrong, "correct the line")
        else:
            self._put_parsed(parsed, path)

    def _put_parsed(self, parsed: yaml_file.Parsed, path: Path) -> None:
        origins = {key: f"{path}:{line}" for key, line in parsed.lines.items()}
        for key, line in parsed.repeated:
            self._complain(f"{path}:{line}", key, f"stands in line {parsed.lines[key]} too", "delete one of them")
        for section, values in self._mapping(parsed.values, (), origins).items():
            self.values.setdefault(section, {})
            if section in sections():
                for name, value in self._mapping(values, (section,), origins).items():
                    self.put(section, name, value, origins[section, name])
        self.origins |= origins

    def _mapping(self, values: Any, key: Key, origins: Mapping[Key, str]) -> dict[str, Any]:
        if isinstance(values, dict):
            return values
        if values is not None:
            known = ", ".join(sections()[key[0]].model_fields if key else sections())
            self._complain(origins[key], key, "should hold one or more keys and their values", f"known here: {known}")
        return {}

    def put_environment(self, environ: Mapping[str, str]) -> None:
        """Only names with a double underscore are ours: Kubernetes sets GPUMON_PORT for a service named gpumon."""
        misspelt = {row.variable.replace("__", "_"): row.variable for row in settings().values()}
        for variable, text in sorted(environ.items()):
            if not variable.startswith("GPUMON_") or variable == CONFIG_FILE_VARIABLE or not text:
                continue
            section, double, key = variable.removeprefix("GPUMON_").lower().partition("__")
            if double:
                self._put_text(section, key, text, variable)
            elif variable in misspelt:
                self._complain(variable, (), "is not read", f"write {misspelt[variable]}")

    def put_flags(self, flags: Mapping[str, str | None]) -> None:
        for flag in FLAGS:
            text = flags.get(flag.name)
            if flag.setting is not None and text is not None:
                section, _, key = flag.setting.partition(".")
                self._put_text(section, key, text, flag.name)

    def _put_text(self, section: str, key: str, text: str, origin: str) -> None:
        """Lists and mappings are read as YAML; the model makes numbers of other text."""
        row = settings().get(f"{section}.{key}")
        try:
            structured = row is not None and isinstance(row.example, list | dict) and re.match(r"\s*[\[{]", text)
            value = yaml_file.parse(text).values if structured else text
        except YamlError as error:
            self._complain(origin, (), error.wrong, "write [one, two] or {name: value}")
        else:
            self.put(section, key, value, origin)

    def check_names(self, section: str, key: str, known: Collection[str]) -> None:
        """Of a mapping."""
        names = self.values.get(section, {}).get(key)
        for name in names if isinstance(names, dict) else ():
            if name not in known:
                one = (section, key, name)
                self._complain(self.origin(one), one, "is not known", did_you_mean(name, known))

    def check_limits(self, limits: Mapping[str, Limit]) -> None:
        """What is no number at all is for the model to tell."""
        given = self.values.get("health", {}).get("thresholds")
        rows = [(name, value, _number(value)) for name, value in (given.items() if isinstance(given, dict) else ())]
        numbers = {name: one for name, value, one in rows if name in limits and (value is None or one is not None)}
        for name, should in senseless(numbers, limits):
            key, default = ("health", "thresholds", name), limits[name].default
            shipped = "" if default is None else f", {default:.15g}"
            remedy = f"leave it out for the default{shipped}, or write null to switch off what depends on it"
            self._complain(self.origin(key), key, f"{should}, not {numbers[name]:g}", remedy)

    def check_disabled(self, known: Collection[str]) -> None:
        key = ("health", "disabled_checks")
        given = self.values.get("health", {}).get("disabled_checks")
        names = split(given)
        for name in names if isinstance(names, list) else ():
            if isinstance(name, str) and name not in known:
                self._complain(self.origin(key), key, f"no check is named {name!r}", did_you_mean(name, known))

    def check_profile(self, known: Collection[str]) -> None:
        key = ("simulate", "profile")
        name = self.values.get("simulate", {}).get("profile")
        if isinstance(name, str) and name not in known and not is_recording(name):
            self._complain(self.origin(key), key, f"{name!r} is not known", did_you_mean(name, known))

    def origin(self, key: Key) -> str:
        """Where the value at this key came from, what holds it, or else what it holds."""
        holding = (self.origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.origins)
        held = (origin for one, origin in self.origins.items() if one[: len(key)] == key)
        return next(holding, next(held, ""))

    def _complain(self, origin: str, key: Key, wrong: str, remedy: str) -> None:
        self.problems.append(Problem(origin, ".".join(key), wrong, remedy))


def _number(value: object) -> float | None:
    """As the model reads it."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    return None


def did_you_mean(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
