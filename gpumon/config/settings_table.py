"""The table of all settings, derived from the classes in model.py. The loader, flags and documentation use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, cast

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gpumon.config.model import Configuration


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
        """Return the name of the setting's environment variable."""
        return f"GPUMON_{self.section}__{self.key}".upper()


@cache
def sections() -> Mapping[str, type[BaseModel]]:
    """Return the pydantic model of each section by name, in the order of the documented configuration file."""
    return {name: cast("type[BaseModel]", field.annotation) for name, field in Configuration.model_fields.items()}


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
        restart=bool(extra["restart"]),
    )


class Flag(NamedTuple):
    """A command line flag that sets a setting or names the configuration file."""

    name: str
    setting: str | None
    """Name of the flag's setting; None for --config.file."""
    help: str


CONFIG_FILE = Flag("--config.file", None, "Configuration file.")
FLAGS = (CONFIG_FILE, *(Flag(row.flag, row.name, row.meaning) for row in settings().values() if row.flag))
