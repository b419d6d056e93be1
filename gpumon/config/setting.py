"""Declares the settings of the configuration, and validates their values."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpumon.model.bus_id import parse_bus_id

NEEDS: Final = "needs"
"""Type of the pydantic error for a setting whose value does not fit another setting. Its context holds the remedy."""

_HOOK = re.compile(r"https?://[^\s/?#]+[^\s#]*")
_URL = re.compile(r"https?://[^\s/?#]+[^\s?#]*")
_LISTEN_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*):(?P<port>[0-9]{1,5})")
_NCCL = re.compile(r"NCCL_\w+", re.ASCII)
_ADAPTER = re.compile(r"[\w.:*?\[\]!-]{1,100}", re.ASCII)
_GPU = re.compile(r"[0-9]{1,3}|GPU-[0-9a-fA-F-]+")


class Section(BaseModel):
    """Base class of the sections of the configuration: immutable, and an unknown key is an error."""

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

    `meaning` describes the setting in the documentation. With `restart`, a change takes effect only at a restart, not
    at a reload. `limits`: the arguments gt, ge and le of pydantic's Field. The other parameters are those of SettingRow
    (settings_table.py).
    """
    row = {"flag": flag, "default_in_words": default_in_words, "example": example, "restart": restart}
    return Field(default, description=meaning, json_schema_extra=row, **limits)  # type: ignore[call-overload]


def check_address(text: str) -> str:
    """Return a valid listen address, such as :17400, unchanged; raise ValueError for any other text."""
    match = _LISTEN_ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("must be HOST:PORT, [IPV6]:PORT, or :PORT for every address")
    return text


def check_url(text: str) -> str:
    """Return an absolute http or https URL unchanged.

    Raise ValueError for any other text, and for a URL with a query or fragment.
    """
    if _URL.fullmatch(text) is None:
        raise ValueError("must be an absolute URL without a query, such as https://wiki.example.com/gpumon")
    return text


def check_hook(text: str) -> str:
    """Return an absolute http or https URL unchanged, also one with a query; raise ValueError for any other text."""
    if _HOOK.fullmatch(text) is None:
        raise ValueError("must be an absolute URL, such as https://events.example.com/gpumon")
    return text


def check_gpu(value: object) -> object:
    """Return the uuid, PCI bus id or index of a GPU as text; raise ValueError for anything else."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or (_GPU.fullmatch(text) is None and parse_bus_id(text) is None):
        raise ValueError("must be the uuid of a GPU (GPU-...), its PCI bus id (0000:18:00.0) or its index")
    return text


def check_adapter(text: str) -> str:
    """Return the name of a network adapter, or a pattern of names, unchanged; raise ValueError for any other text."""
    if _ADAPTER.fullmatch(text) is None or not text.strip("*?"):
        raise ValueError(
            "must be a device (mlx5_3), a PCI address (0000:86:00.0), a board id (MT_0000000838), "
            "or a pattern of one with * and ? (mlx5_an*), without a port number"
        )
    return text


def check_nccl_name(name: str) -> str:
    """Return the name of an NCCL variable unchanged; raise ValueError for any other text."""
    if _NCCL.fullmatch(name) is None:
        raise ValueError("must be the name of an NCCL variable, NCCL_...")
    return name


def check_argument(text: str) -> str:
    """Return the text unchanged if it can be an argument or an environment variable of a process.

    Raise ValueError if it contains a zero byte or a lone surrogate.
    """
    if "\0" in text:
        raise ValueError("must not contain a zero byte")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("must not contain a lone surrogate") from None
    return text


def check_command(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command unchanged. Raise ValueError if the first word, the program, is empty."""
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
