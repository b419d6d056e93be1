"""How a row of the table of settings is written, and what its values may look like."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

NEEDS: Final = "needs"
"""Type of pydantic's error for a setting that is good only with another one; its context holds the remedy."""

_LISTEN_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]*):(?P<port>\d{1,5})")
_NCCL = re.compile(r"NCCL_\w+", re.ASCII)
_GPU = re.compile(r"\d{1,3}|GPU-[0-9a-fA-F-]+|(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")


class Section(BaseModel):
    """Rows that belong together."""

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
    """Write a row. `restart`: a reload does not change it. Limits are pydantic's: gt, ge, le."""
    row = {"flag": flag, "default_in_words": default_in_words, "example": example, "restart": restart}
    return Field(default, description=meaning, json_schema_extra=row, **limits)  # type: ignore[call-overload]


def checked_address(text: str) -> str:
    match = _LISTEN_ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise ValueError("should be HOST:PORT, [IPV6]:PORT or :PORT for every address")
    return text


def checked_gpu(value: object) -> object:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or _GPU.fullmatch(text) is None:
        raise ValueError("should be a GPU's uuid (GPU-...), PCI bus id (0000:18:00.0) or index")
    return text


def split(value: object) -> object:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def number_as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def split_command(value: object) -> object:
    """As a shell parts words; no shell runs it."""
    return shlex.split(value) if isinstance(value, str) else value


def checked_nccl_name(name: str) -> str:
    if _NCCL.fullmatch(name) is None:
        raise ValueError("should be the name of a variable of NCCL, NCCL_...")
    return name


def checked_word(text: str) -> str:
    """No program is started with a zero byte, or half a character, in its arguments or environment."""
    if "\0" in text:
        raise ValueError("should be without a zero byte")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise ValueError("should be text that can be written: it has half a character") from None
    return text


def checked_command(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and not words[0]:
        raise ValueError("should begin with a program")
    return words


def _expanded(path: Path) -> Path:
    checked_word(str(path))
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError("should begin with the name of a user who is known here, after ~") from None


def checked_program(path: Path | None) -> Path | None:
    if path is not None and not path.name.strip():
        raise ValueError("should name a program")
    return path


SomePath = Annotated[Path, AfterValidator(_expanded)]
