"""Checks names and thresholds in the configuration against the tables of the checks and of the simulation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection

from gpumon.config.configuration_sources import ConfigurationSources
from gpumon.config.setting import split
from gpumon.config.suggestion import did_you_mean
from gpumon.config.yaml_file import Key
from gpumon.health.checks.versions import VERSIONS
from gpumon.health.policy import invalid_thresholds
from gpumon.health.table import BY_NAME, LIMITS
from gpumon.model.orders import is_recording

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
    """Return the value as a number, as the model parses it; None if it is not a number."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    return None
