"""Loads the configuration: flags override the environment, which overrides the file, which overrides the defaults."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpumon.config import default_paths, xid_file, yaml_file
from gpumon.config.configuration_error import ConfigurationError, ConfigurationProblem, describe_error, did_you_mean
from gpumon.config.configuration_sources import CONFIG_FILE_VARIABLE, ConfigurationSources
from gpumon.config.model import Configuration
from gpumon.config.notifications_section import REPLACED_KEYS
from gpumon.config.redact import redact, redact_text
from gpumon.config.setting import NEEDS, split
from gpumon.config.settings_table import sections, settings
from gpumon.config.yaml_file import Key
from gpumon.health.checks.versions import VERSIONS
from gpumon.health.policy import invalid_thresholds
from gpumon.health.table import BY_NAME, LIMITS
from gpumon.model.orders import is_recording

DEFAULT_FILE = Path("/etc/gpumon/gpumon.yml")


def configuration_file(flag: str | None, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the configuration file, from `flag` (--config.file) or the variable GPUMON_CONFIG__FILE.

    If neither is set, return /etc/gpumon/gpumon.yml if it exists, else None.
    """
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

    `path`: the configuration file. `flags` maps flag names to values, None if a flag is not given. `profiles` returns
    the names of all simulated profiles, and is called only if simulate.profile names a profile. If `profiles` is None,
    that name is not checked.
    """
    sources = ConfigurationSources()
    state = default_paths.state_directory(environ, root=os.geteuid() == 0)
    sources.add_default("store", "path", f"{state}/{default_paths.STORE}")
    sources.add_default("web", "token_file", f"{state}/{default_paths.TOKEN}")
    if path is not None:
        sources.add_file(path)
    sources.add_environment(environ)
    sources.add_flags(flags)
    check_names(sources, profiles)
    configuration = _validate(sources)
    if configuration.xids.file is None:
        return configuration
    rows, problems = xid_file.read(configuration.xids.file)
    if problems:
        raise ConfigurationError(problems)
    return configuration.with_xid_rows(rows)


def _validate(sources: ConfigurationSources) -> Configuration:
    problems = list(sources.problems)
    try:
        configuration = Configuration.model_validate(sources.values)
    except ValidationError as error:
        problems += [_problem(details, sources) for details in error.errors(include_url=False)]
        raise ConfigurationError(problems) from error
    if problems:
        raise ConfigurationError(problems)
    return configuration.with_origins({".".join(key): origin for key, origin in sources.origins.items()})


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
    return ConfigurationProblem(
        origin, name, f"{wrong}, not {redact(name, error['input'])!r}"[:300], _example(name, origin)
    )


def _example(name: str, origin: str) -> str:
    """Return an example of a valid value in the syntax of `origin`: flag, environment variable or file."""
    row = settings()[".".join(name.split(".")[:2])]
    value = yaml_file.flow(row.example)
    if origin == row.flag:
        return f"for example {row.flag}={value}"
    return f"for example {row.variable}={value}" if origin == row.variable else f"for example {row.key}: {value}"


THRESHOLDS = ("health", "thresholds")


def check_names(sources: ConfigurationSources, profiles: Callable[[], Collection[str]] | None) -> None:
    """Add a problem to `sources` for each unknown name of a check, threshold, version or profile.

    Also add one for each threshold that is out of range. `profiles` returns the names of all simulated profiles. If it
    is None, the profile is not checked.
    """
    _check_keys(sources, THRESHOLDS, LIMITS)
    _check_ranges(sources)
    _check_keys(sources, ("health", "versions"), VERSIONS)
    names = split(sources.get("health", "disabled_checks"))
    for name in names if isinstance(names, list) else ():
        _check_name(sources, ("health", "disabled_checks"), name, BY_NAME)
    profile = sources.get("simulate", "profile")
    if profiles is not None and isinstance(profile, str) and not is_recording(profile):
        _check_name(sources, ("simulate", "profile"), profile, profiles())


def _check_keys(sources: ConfigurationSources, key: Key, valid: Collection[str]) -> None:
    entries = sources.get(*key)
    for name in entries if isinstance(entries, dict) else ():
        if name not in valid:
            sources.report(sources.origin((*key, name)), (*key, name), "unknown name", did_you_mean(name, valid))


def _check_name(sources: ConfigurationSources, key: Key, name: object, valid: Collection[str]) -> None:
    if isinstance(name, str) and name not in valid:
        sources.report(sources.origin(key), key, f"unknown name {name!r}", did_you_mean(name, valid))


def _check_ranges(sources: ConfigurationSources) -> None:
    """Add a problem to `sources` for each threshold out of range. The model reports those that are not numbers."""
    entries = sources.get(*THRESHOLDS)
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
