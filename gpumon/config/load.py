"""Loads the configuration: flags override the environment, which overrides the file, which overrides the defaults.

pydantic validates the merged values. pydantic-settings would merge them too, but loses the line of a mistake, and its
import takes 80 ms in every command.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpumon.config import default_paths, xid_file, yaml_file
from gpumon.config.configuration_error import ConfigurationError, ConfigurationProblem, describe_error, did_you_mean
from gpumon.config.model import Configuration
from gpumon.config.notifications_section import REPLACED_KEYS
from gpumon.config.redact import redact, redact_text
from gpumon.config.setting import NEEDS, split
from gpumon.config.settings_table import CONFIG_FILE, FLAGS, sections, settings
from gpumon.config.yaml_file import Key, YamlError
from gpumon.health.checks.versions import VERSIONS
from gpumon.health.policy import invalid_thresholds
from gpumon.health.table import BY_NAME, LIMITS
from gpumon.model.orders import is_recording

DEFAULT_FILE = Path("/etc/gpumon/gpumon.yml")


def configuration_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the path from `flag` (--config.file) or GPUMON_CONFIG__FILE, else DEFAULT_FILE if it exists, else None."""
    named = flag or environ.get(CONFIG_FILE_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def load(
    path: Path | None,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    profiles: Callable[[], Collection[str]] | None = None,
) -> Configuration:
    """Return the validated configuration. Raise ConfigurationError with all problems that were found.

    `flags`: values by name of the flag, None if not given. `profiles` returns the names of all simulated profiles;
    None: they are not checked.
    """
    sources = ConfigurationSources()
    state = default_paths.state_directory(environ, root=os.geteuid() == 0)
    sources.put("store", "path", f"{state}/{default_paths.STORE}", "default")
    sources.put("web", "token_file", f"{state}/{default_paths.TOKEN}", "default")
    if path is not None:
        sources.add_file(path)
    sources.add_environment(environ)
    sources.add_flags(flags)
    check_names(sources, profiles)
    try:
        configuration = Configuration.model_validate(sources.values)
    except ValidationError as error:
        problems = [_problem(details, sources) for details in error.errors(include_url=False)]
        raise ConfigurationError([*sources.problems, *problems]) from error
    if sources.problems:
        raise ConfigurationError(sources.problems)
    configuration = configuration.with_origins({".".join(key): origin for key, origin in sources.origins.items()})
    if configuration.xids.file is None:
        return configuration
    rows, problems = xid_file.read(configuration.xids.file)
    if problems:
        raise ConfigurationError(problems)
    return configuration.with_xid_rows(rows)


def _problem(error: ErrorDetails, sources: ConfigurationSources) -> ConfigurationProblem:
    key = tuple(str(part) for part in error["loc"] if part != "[key]")
    origin, name = sources.origin(key), redact_text(".".join(key))
    if error["type"] == "extra_forbidden":
        if key[0] == "notifications" and key[1] in REPLACED_KEYS:
            return ConfigurationProblem(origin, name, "is replaced", f"write {REPLACED_KEYS[key[1]]}")
        valid = sections() if len(key) == 1 else sections()[key[0]].model_fields
        return ConfigurationProblem(origin, name, "unknown key", did_you_mean(key[-1], valid))
    wrong = describe_error(error)
    if error["type"] == NEEDS:
        return ConfigurationProblem(origin, name, wrong, error["ctx"]["remedy"])
    row = settings()[".".join(name.split(".")[:2])]
    place = f"{origin}=" if origin in {row.flag, row.variable} else f"{row.key}: "
    remedy = f"for example {place}{yaml_file.flow(row.example)}"
    return ConfigurationProblem(origin, name, f"{wrong}, not {redact(name, error['input'])!r}"[:300], remedy)


THRESHOLDS = ("health", "thresholds")
RENAMED_THRESHOLDS = {"allreduce_failures": "probe_failures"}
"""New name of each threshold that was renamed."""


def check_names(sources: ConfigurationSources, profiles: Callable[[], Collection[str]] | None) -> None:
    """Add a problem to `sources` for each unknown name, and for each threshold that is out of range."""
    _check_thresholds(sources)
    _check_keys(sources, ("health", "versions"), VERSIONS)
    names = split(sources.get("health", "disabled_checks"))
    for name in names if isinstance(names, list) else ():
        _check_name(sources, ("health", "disabled_checks"), name, BY_NAME)
    profile = sources.get("simulate", "profile")
    if profiles is not None and isinstance(profile, str) and not is_recording(profile):
        _check_name(sources, ("simulate", "profile"), profile, profiles())


def _check_keys(
    sources: ConfigurationSources, key: Key, valid: Collection[str], renamed: Mapping[str, str] | None = None
) -> None:
    entries, new_names = sources.get(*key), renamed or {}
    for name in entries if isinstance(entries, dict) else ():
        if name in new_names:
            sources.report(sources.origin((*key, name)), (*key, name), "is renamed", f"write {new_names[name]}")
        elif name not in valid:
            sources.report(sources.origin((*key, name)), (*key, name), "unknown name", did_you_mean(name, valid))


def _check_name(sources: ConfigurationSources, key: Key, name: object, valid: Collection[str]) -> None:
    if isinstance(name, str) and name not in valid:
        sources.report(sources.origin(key), key, f"unknown name {name!r}", did_you_mean(name, valid))


def _check_thresholds(sources: ConfigurationSources) -> None:
    _check_keys(sources, THRESHOLDS, LIMITS, RENAMED_THRESHOLDS)
    entries = sources.get(*THRESHOLDS)  # the model reports those that are not numbers
    rows = [(name, value, _number(value)) for name, value in (entries.items() if isinstance(entries, dict) else ())]
    numbers = {name: number for name, value, number in rows if name in LIMITS and (value is None or number is not None)}
    for name, should in invalid_thresholds(numbers, LIMITS):
        key, default = (*THRESHOLDS, name), LIMITS[name].default
        shipped = "" if default is None else f", {default:.15g}"
        remedy = f"leave it out for the default{shipped}, or write null to disable what depends on it"
        sources.report(sources.origin(key), key, f"{should}, not {numbers[name]:g}", remedy)


def _number(value: object) -> float | None:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    return None


CONFIG_FILE_VARIABLE = "GPUMON_CONFIG__FILE"


class ConfigurationSources:
    """Merges the values of all sources before validation. A value overrides an earlier value of the same setting."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Any]] = {}
        self.origins: dict[Key, str] = {}
        self.problems: list[ConfigurationProblem] = []
        """Problems of all sources. They are collected so that one error reports all of them."""

    def add_file(self, path: Path) -> None:
        """Add the values of a YAML file, and a problem for each mistake in it."""
        parsed, problems = yaml_file.read(path, CONFIG_FILE.name)
        self.problems += problems
        origins = {key: f"{path}:{line}" for key, line in parsed.lines.items()}
        for section, values in self._mapping(parsed.values, (), origins).items():
            self.values.setdefault(section, {})
            if section in sections():
                for name, value in self._mapping(values, (section,), origins).items():
                    self.put(section, name, value, origins[section, name])
        self.origins |= origins

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Add the settings in environment variables GPUMON_SECTION__KEY.

        Empty and other variables are ignored, because Kubernetes sets GPUMON_PORT for a service named gpumon. Add a
        problem for one that is named like a setting, but with one underscore instead of two.
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
        for flag in FLAGS:
            text = flags.get(flag.name)
            if flag.setting is not None and text is not None:
                section, _, key = flag.setting.partition(".")
                self._put_text(section, key, text, flag.name)

    def get(self, section: str, key: str) -> Any:
        return self.values.get(section, {}).get(key)

    def origin(self, key: Key) -> str:
        """Return "file:line", variable, flag or "default" of a value, or of one around or inside it; else ""."""
        holding = (self.origins[key[:n]] for n in range(len(key), 0, -1) if key[:n] in self.origins)
        held = (origin for other, origin in self.origins.items() if other[: len(key)] == key)
        return next(itertools.chain(holding, held), "")

    def report(self, origin: str, key: Key, wrong: str, remedy: str) -> None:
        self.problems.append(ConfigurationProblem(origin, ".".join(key), wrong, remedy))

    def put(self, section: str, key: str, value: Any, origin: str) -> None:
        """Set a value, and forget the origins of an overridden one."""
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
            self.put(section, key, value, origin)

    def _mapping(self, values: Any, key: Key, origins: Mapping[Key, str]) -> dict[str, Any]:
        if isinstance(values, dict):
            return values
        if values is not None:
            valid = ", ".join(sections()[key[0]].model_fields if key else sections())
            self.report(origins[key], key, "must be a mapping of keys to values", f"valid keys: {valid}")
        return {}
