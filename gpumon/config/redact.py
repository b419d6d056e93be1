"""Redacts secrets: values whose names indicate a secret, and passwords and tokens in URLs and other texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "<redacted>"
_WORDS = r"(?:passw|token|secret|credential|(?<![^\W_])key(?![^\W_]))"
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_FILE_NAME = re.compile(r"_(?:file|path)$", re.IGNORECASE)
_HOOK_PATH = re.compile(r"(?<=://)([^/\s]+)/.+")
_IN_TEXT = (
    (re.compile(r"(?<=://)([^/@\s:]*):[^/@\s]+(?=@)"), rf"\1:{REDACTED}"),
    (re.compile(r"(?<=://)[^/@\s:]+(?=@)"), REDACTED),
    (re.compile(r"(://[^\s?#]+\?)[^\s\"'#]+"), rf"\1{REDACTED}"),
    (re.compile(r"(Bearer |Authorization: ?\w+ )[^\s\"']+", re.IGNORECASE), rf"\1{REDACTED}"),
    (re.compile(rf"({_WORDS}(?:ord)?[\"']?[=:] ?[\"']?)[^\s\"',;]+", re.IGNORECASE), rf"\1{REDACTED}"),
)
"""Patterns of secrets in a text, with their replacements: in a URL the password, a user without password, and the
query; credentials in an HTTP header; and the value after a name such as `token=` or `token:`.
"""


def redact(name: str, value: Any) -> Any:
    """Return the value of a setting with secrets replaced by REDACTED.

    `name` is the name of the setting or, inside a mapping, the key of an entry. A value is secret if its name indicates
    that. The secrets that redact_text finds in a value, and the path of webhook_url, are replaced too.
    """
    last = name.rpartition(".")[2]
    if isinstance(value, Mapping):
        return {key: redact(str(key), entry) for key, entry in value.items()}
    if value is None:
        return None
    if _SECRET_NAME.search(last) and not _FILE_NAME.search(last):
        return REDACTED
    if isinstance(value, list | tuple):
        flags = ("", *map(str, value))  # the word after --token is secret
        return [
            redact(flag if flag.startswith("-") else name, entry) for flag, entry in zip(flags, value, strict=False)
        ]
    if not isinstance(value, str):
        return value
    text = redact_text(value)
    return _HOOK_PATH.sub(rf"\1/{REDACTED}", text) if last == "webhook_url" else text


def redact_text(text: str) -> str:
    """Return a text, such as a log, in which passwords and tokens are replaced by REDACTED."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text
