"""The configuration in force: flags over environment over file over defaults, checked all at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gpumon.config import places, yaml_file
from gpumon.config.given import CONFIG_FILE_VARIABLE, Given, Problem, did_you_mean
from gpumon.config.model import Configuration
from gpumon.config.redact import redacted
from gpumon.config.row import NEEDS
from gpumon.config.settings import sections, settings
from gpumon.health.policy import Limit
from gpumon.health.xids import Xid

DEFAULT_FILE = Path("/etc/gpumon/gpumon.yml")


class ConfigurationError(Exception):
    """All that is wrong with the configuration, one problem a line."""

    def __init__(self, problems: Collection[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def configuration_file(given: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: --config.file, GPUMON_CONFIG__FILE, else /etc/gpumon/gpumon.yml when there is one."""
    named = given or environ.get(CONFIG_FILE_VARIABLE)
    if named:
        return Path(named)
    return DEFAULT_FILE if DEFAULT_FILE.exists() else None


def load(
    path: Path | None,
    flags: Mapping[str, str | None],
    environ: Mapping[str, str],
    *,
    versions: Collection[str] | None = None,
    limits: Mapping[str, Limit] | None = None,
    checks: Collection[str] | None = None,
    profiles: Collection[str] | None = None,
    xid_rows: Callable[[Path], tuple[Mapping[int, Xid], Collection[Problem]]] | None = None,
) -> Configuration:
    """Return the configuration in force. Raises ConfigurationError with every problem.

    `flags` maps flag names to values, None if a flag is not given. The allowed names of health.thresholds (`limits`),
    health.versions, health.disabled_checks (`checks`) and simulate.profile are not checked if they are None. `xid_rows`
    reads xids.file, which is not read if it is None.
    """
    given = Given()
    state = places.state_directory(environ, root=os.geteuid() == 0)
    given.put("store", "path", f"{state}/{places.STORE}", "default")
    given.put("web", "token_file", f"{state}/{places.TOKEN}", "default")
    if path is not None:
        given.put_file(path)
    given.put_environment(environ)
    given.put_flags(flags)
    if limits is not None:
        given.check_names("health", "thresholds", limits)
        given.check_limits(limits)
    if versions is not None:
        given.check_names("health", "versions", versions)
    if checks is not None:
        given.check_disabled(checks)
    if profiles is not None:
        given.check_profile(profiles)
    configuration = _checked(given)
    if xid_rows is None or configuration.xids.file is None:
        return configuration
    rows, problems = xid_rows(configuration.xids.file)
    if problems:
        raise ConfigurationError(problems)
    return configuration.with_xid_rows(rows)


def _checked(given: Given) -> Configuration:
    problems = list(given.problems)
    try:
        configuration = Configuration.model_validate(given.values)
    except ValidationError as error:
        problems += [_problem(one, given) for one in error.errors(include_url=False)]
        raise ConfigurationError(problems) from error
    if problems:
        raise ConfigurationError(problems)
    return configuration.with_origins({".".join(key): origin for key, origin in given.origins.items()})


def _problem(error: ErrorDetails, given: Given) -> Problem:
    key = tuple(str(part) for part in error["loc"] if part != "[key]")
    origin, name = given.origin(key), ".".join(key)
    if error["type"] == "extra_forbidden":
        known = sections() if len(key) == 1 else sections()[key[0]].model_fields
        return Problem(origin, name, "is not known", did_you_mean(key[-1], known))
    message = str(error["ctx"]["error"]) if error["type"] == "value_error" else error["msg"]
    wrong = message[:1].lower() + message[1:]
    if error["type"] == NEEDS:
        return Problem(origin, name, wrong, error["ctx"]["remedy"])
    if len(key) == 1:
        return Problem(origin, name, wrong, f"keys of {name}: {', '.join(sections()[name].model_fields)}")
    return Problem(origin, name, f"{wrong}, not {redacted(name, error['input'])!r}"[:300], _example(name, origin))


def _example(name: str, origin: str) -> str:
    row = settings()[".".join(name.split(".")[:2])]
    value = yaml_file.flow(row.example)
    if origin == row.flag:
        return f"for example {row.flag}={value}"
    return f"for example {row.variable}={value}" if origin == row.variable else f"for example {row.key}: {value}"


def reloaded(running: Configuration, read: Configuration) -> Configuration:
    """What a reload puts in force: what was read, but as it runs whatever takes effect at the next start only."""
    kept = [row for row in settings().values() if row.restart]
    merged = {
        name: getattr(read, name).model_copy(
            update={row.key: running.value(row.name) for row in kept if row.section == name}
        )
        for name in sections()
    }
    origins = {row.name: (running if row.restart else read).origin(row.name) for row in settings().values()}
    return read.model_copy(update=merged).with_origins(origins)


class Change(NamedTuple):
    """A setting that a reload found different."""

    name: str
    before: str
    after: str
    restart: bool
    """It takes effect at the next start only."""


def changes(before: Configuration, after: Configuration) -> tuple[Change, ...]:
    """What differs, as it may be shown."""
    return tuple(
        Change(name, _shown(name, before), _shown(name, after), row.restart)
        for name, row in settings().items()
        if before.value(name) != after.value(name)
    )


def show(configuration: Configuration) -> str:
    """The configuration in force as YAML, secrets redacted, each setting with where it came from."""
    lines: list[str] = []
    for name, row in settings().items():
        if f"{row.section}:" not in lines:
            lines.append(f"{row.section}:")
        lines.append(f"  {row.key}: {_shown(name, configuration)}  # {configuration.origin(name)}")
    return "\n".join(lines) + "\n"


def _shown(name: str, configuration: Configuration) -> str:
    return yaml_file.flow(redacted(name, configuration.value(name)))
