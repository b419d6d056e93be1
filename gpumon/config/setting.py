"""Declares the settings of the configuration, and validates their values."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpumon.model.bus_id import parse_bus_id

NEEDS: Final = "needs"
"""Type of the pydantic error for a setting whose value does not fit another setting. Its context holds the remedy."""

_LISTEN_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*):(?P<port>[0-9]{1,5})")
_GPU = re.compile(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]+")


class ConfigurationSection(BaseModel):
    """Base class of the sections of the configuration: immutable, and an unknown key is an error."""

    RESTART: ClassVar[bool] = False
    """Whether a change of any setting of the section takes effect only at a restart, not at a reload."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


def setting(
    default: Any,
    meaning: str,
    *,
    flag: str = "",
    default_in_words: str = "",
    example: object = None,
    restart: bool = False,
    **limits: float,
) -> Any:
    """Return the pydantic field that declares a setting.

    The parameters are the attributes of SettingRow (settings_table.py). `limits`: gt, ge and le of pydantic's Field.
    """
    row = {"flag": flag, "default_in_words": default_in_words, "example": example, "restart": restart}
    return Field(default, description=meaning, json_schema_extra=row, **limits)  # type: ignore[call-overload]


def check_address(text: str) -> str:
    """Return a valid listen address, such as :17400, unchanged; raise ValueError for any other text."""
    match = _LISTEN_ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("must be HOST:PORT, [IPV6]:PORT, or :PORT for every address")
    return text


def matching(pattern: str, wrong: str) -> AfterValidator:
    """Return a validator that accepts a text if the whole of it matches the pattern. `wrong` states what it must be."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(wrong)
        return text

    return AfterValidator(check)


Url = Annotated[
    str,
    matching(
        r"https?://[^\s/?#@]+(?:/[^\s?#]*)?",
        "must be an absolute URL without query, user and password (name a token file), such as https://am.example.com",
    ),
]


def check_gpu(value: object) -> object:
    """Return the uuid, PCI bus id or index of a GPU as text; raise ValueError for anything else."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or (_GPU.fullmatch(text) is None and parse_bus_id(text) is None):
        raise ValueError("must be the uuid of a GPU (GPU-...), its PCI bus id (0000:18:00.0) or its index")
    return text


def check_argument(text: str) -> str:
    """Return a text that can be an argument or environment variable of a process; raise ValueError for another."""
    if "\0" in text:
        raise ValueError("must not contain a zero byte")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("must not contain a lone surrogate") from None
    return text


def check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command; raise ValueError if the first word, the program, is empty."""
    if words and not words[0]:
        raise ValueError("must begin with a program")
    return words


def check_program(path: Path | None) -> Path | None:
    """Return None, or a path with a file name, unchanged; raise ValueError for a path without file name, such as /."""
    if path is not None and not path.name.strip():
        raise ValueError("must name a program")
    return path


def split(value: object) -> object:
    """Split text at commas. Return a value that is not text unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def split_command(value: object) -> object:
    """Split text into words by the rules of a shell, without running one. Return a value that is not text unchanged."""
    return shlex.split(value) if isinstance(value, str) else value


def number_to_text(value: object) -> object:
    """Convert a number to text, because values of environment variables are text. Return other values unchanged."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _expand_user(path: Path) -> Path:
    check_argument(str(path))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("must name an existing user after ~") from None


SomePath = Annotated[Path, AfterValidator(_expand_user)]
