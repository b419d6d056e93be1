"""Redacts secrets: values whose names indicate a secret, and passwords in URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SECRET_NAME = re.compile(r"passw|token|secret|credential|(?:^|_)key(?:_|$)", re.IGNORECASE)
_FILE_NAME = re.compile(r"_(?:file|path)$", re.IGNORECASE)
_URL_PASSWORD = re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)")

REDACTED = "<redacted>"


def redact(name: str, value: Any) -> Any:
    """Return the value of a setting with secrets replaced by REDACTED.

    `name` is the name of the setting or, inside a mapping, the key of an entry. A value is secret if its name indicates
    that. Passwords in URLs are secret too.
    """
    last = name.rpartition(".")[2]
    if isinstance(value, Mapping):
        return {key: redact(str(key), entry) for key, entry in value.items()}
    if value is None:
        return None
    if _SECRET_NAME.search(last) and not _FILE_NAME.search(last):
        return REDACTED
    if isinstance(value, list | tuple):
        return [redact(name, entry) for entry in value]
    return _URL_PASSWORD.sub(rf"\1:{REDACTED}", value) if isinstance(value, str) else value
