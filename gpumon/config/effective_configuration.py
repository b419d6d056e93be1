"""Compares and prints configurations, and merges a reloaded configuration into the running one."""

from __future__ import annotations

from typing import NamedTuple

from gpumon.config import yaml_file
from gpumon.config.model import Configuration
from gpumon.config.redact import redact
from gpumon.config.settings_table import sections, settings


class Change(NamedTuple):
    """A setting whose value a reload changes, with its values before and after as text."""

    name: str
    before: str
    after: str
    restart: bool
    """True if the change takes effect only after a restart."""


def merge_reloaded(running: Configuration, read: Configuration) -> Configuration:
    """Return the configuration `read` at a reload, but with the running values of settings that need a restart."""
    fixed = [row for row in settings().values() if row.restart]
    merged = {
        name: getattr(read, name).model_copy(
            update={row.key: running.value(row.name) for row in fixed if row.section == name}
        )
        for name in sections()
    }
    origins = {row.name: (running if row.restart else read).origin(row.name) for row in settings().values()}
    return read.model_copy(update=merged).with_origins(origins)


def changes(before: Configuration, after: Configuration) -> tuple[Change, ...]:
    """Return the settings whose values differ between two configurations. Secrets in the values are redacted."""
    return tuple(
        Change(name, _text(name, before), _text(name, after), row.restart)
        for name, row in settings().items()
        if before.value(name) != after.value(name)
    )


def show(configuration: Configuration) -> str:
    """Return the configuration as YAML, with secrets redacted, and with the origin of each setting as a comment."""
    lines: list[str] = []
    for name, row in settings().items():
        if f"{row.section}:" not in lines:
            lines.append(f"{row.section}:")
        lines.append(f"  {row.key}: {_text(name, configuration)}  # {configuration.origin(name)}")
    return "\n".join(lines) + "\n"


def _text(name: str, configuration: Configuration) -> str:
    return yaml_file.flow(redact(name, configuration.value(name)))
