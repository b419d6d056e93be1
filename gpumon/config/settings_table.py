"""The table of all settings, derived from the classes in model.py, and what compares, merges and prints by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

from pydantic_core import PydanticUndefined

from gpumon.config import yaml_file
from gpumon.config.model import Configuration
from gpumon.config.redact import redact
from gpumon.config.setting import ConfigurationSection


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingRow:
    """One setting: its name, meaning, default, example, flag, and whether a change requires a restart."""

    section: str
    key: str
    meaning: str
    default: object
    """Default value; None if there is no fixed default. `default_in_words` then describes the default."""
    default_in_words: str
    example: object
    flag: str
    restart: bool

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        return f"GPUMON_{self.section}__{self.key}".upper()


@cache
def sections() -> Mapping[str, type[ConfigurationSection]]:
    """Return the pydantic model of each section by name, in the order of the documented configuration file."""
    fields = Configuration.model_fields.items()
    return {name: cast("type[ConfigurationSection]", field.annotation) for name, field in fields}


@cache
def settings() -> Mapping[str, SettingRow]:
    """Return all settings by name, in the order of the documented configuration file."""
    rows = (_row(section, key) for section, model in sections().items() for key in model.model_fields)
    return {row.name: row for row in rows}


def _row(section: str, key: str) -> SettingRow:
    field = sections()[section].model_fields[key]
    extra = field.json_schema_extra
    assert isinstance(extra, dict)  # noqa: S101 - every row is declared by setting()
    default = None if field.default is PydanticUndefined else field.default
    return SettingRow(
        section=section,
        key=key,
        meaning=field.description or "",
        default=default,
        default_in_words=str(extra["default_in_words"]),
        example=default if extra["example"] is None else extra["example"],
        flag=str(extra["flag"]),
        restart=sections()[section].RESTART or bool(extra["restart"]),
    )


class Flag(NamedTuple):
    """A command line flag that sets a setting or names the configuration file."""

    name: str
    setting: str | None
    """Name of the flag's setting; None for --config.file."""
    help: str


CONFIG_FILE = Flag("--config.file", None, "Configuration file.")
FLAGS = (CONFIG_FILE, *(Flag(row.flag, row.name, row.meaning) for row in settings().values() if row.flag))


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
