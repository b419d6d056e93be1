"""Replacement for enum.StrEnum, which Python has only from 3.11 on."""

from __future__ import annotations

from enum import Enum


class StrEnum(str, Enum):
    """An enumeration whose members are strings, and are formatted as their values."""

    __str__ = str.__str__
