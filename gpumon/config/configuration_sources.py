"""Merges the sources of the configuration (defaults, file, environment, flags) and keeps the origin of each value.

pydantic validates the merged values. pydantic-settings would merge them too, but loses the line of a mistake, and its
import takes 80 ms in every command.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpumon.config import yaml_file
from gpumon.config.configuration_error import ConfigurationProblem
from gpumon.config.settings_table import CONFIG_FILE, FLAGS, sections, settings
from gpumon.config.yaml_file import Key, YamlError

CONFIG_FILE_VARIABLE = "GPUMON_CONFIG__FILE"


class ConfigurationSources:
    """Merges the values of all sources before validation. A value overrides an earlier value of the same setting."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.origins: dict[Key, str] = {}
        self.problems: list[ConfigurationProblem] = []
        """Problems of all sources. They are collected so that one error reports all of them."""

    def add_default(self, section: str, key: str, value: Any) -> None:
        """Add a default that depends on the host."""
        self._put(section, key, value, "default")

    def add_file(self, path: Path) -> None:
        """Add the values of a YAML file. Add a problem for each mistake in it, or if it cannot be read or parsed."""
        parsed, problems = yaml_file.read(path, CONFIG_FILE.name)
        self.problems += problems
        self._add_parsed(parsed, path)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add the settings in environment variables GPUMON_SECTION__KEY.

        Other variables that begin with GPUMON_ are ignored, because Kubernetes sets GPUMON_PORT for a service named
        gpumon. If such a variable is named like a setting, but with one underscore instead of two, add a problem.
        Variables with an empty value are ignored too.
        """
        misspelt = {row.variable.replace("__", "_"): row.variable for row in settings().values()}
        for variable, text in sorted(environ.items()):
            if not variable.startswith("GPUMON_") or variable == CONFIG_FILE_VARIABLE or not text:
                continue
            section, separator, key = variable.removeprefix("GPUMON_").lower().partition("__")
            if separator:
                self._put_text(section, key, text, variable)
            elif variable in misspelt:
                self.report(variable, (), "is not a setting", f"use {misspelt[variable]}")

    def add_flags(self, flags: Mapping[str, str | None]) -> None:
        """Add the flags of the command line. The value of a flag that is not given is None."""
        for flag in FLAGS:
            text = flags.get(flag.name)
            if flag.setting is not None and text is not None:
                section, _, key = flag.setting.partition(".")
                self._put_text(section, key, text, flag.name)

    def get(self, section: str, key: str) -> Any:
        """Return the merged value of a setting; None if no source sets it."""
        return self.values.get(section, {}).get(key)

    def origin(self, key: Key) -> str:
        """Return the origin of a value: "file:line", variable, flag or "default"; empty if it has none.

        If no origin is recorded for the value, use the origin of the value that contains it, or of a value inside it.
        """
        holding = (self.origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.origins)
        held = (origin for other, origin in self.origins.items() if other[: len(key)] == key)
        return next(itertools.chain(holding, held), "")

    def report(self, origin: str, key: Key, wrong: str, remedy: str) -> None:
        """Add a problem. `load` raises one error with all problems."""
        self.problems.append(ConfigurationProblem(origin, ".".join(key), wrong, remedy))

    def _put(self, section: str, key: str, value: Any, origin: str) -> None:
        if (section, key) in self.origins:
            for overridden in [other for other in self.origins if other[:2] == (section, key)]:
                del self.origins[overridden]
        self.values.setdefault(section, {})[key] = value
        self.origins[section, key] = origin

    def _put_text(self, section: str, key: str, text: str, origin: str) -> None:
        """Set a value from the text of a variable or flag. A list or mapping in brackets or braces is YAML."""
        row = settings().get(f"{section}.{key}")
        try:
            structured = row is not None and isinstance(row.example, list | dict) and re.match(r"\s*[\[{]", text)
            value = yaml_file.parse(text).values if structured else text
        except YamlError as error:
            self.report(origin, (), error.wrong, "write [one, two] or {name: value}")
        else:
            self._put(section, key, value, origin)

    def _add_parsed(self, parsed: yaml_file.Parsed, path: Path) -> None:
        origins = {key: f"{path}:{line}" for key, line in parsed.lines.items()}
        for section, values in self._mapping(parsed.values, (), origins).items():
            self.values.setdefault(section, {})
            if section in sections():
                for name, value in self._mapping(values, (section,), origins).items():
                    self._put(section, name, value, origins[section, name])
        self.origins |= origins

    def _mapping(self, values: Any, key: Key, origins: Mapping[Key, str]) -> dict[str, Any]:
        if isinstance(values, dict):
            return values
        if values is not None:
            valid = ", ".join(sections()[key[0]].model_fields if key else sections())
            self.report(origins[key], key, "must be a mapping of keys to values", f"valid keys: {valid}")
        return {}
