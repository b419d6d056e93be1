"""Redacts secrets: values whose names indicate a secret, and passwords and tokens in URLs and other texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REDACTED = "<redacted>"
_WORDS = r"(?:passw\w*|passphrase|token|secret|credentials?|api[-_]?key|(?<![^\W_])(?:key|pass|pwd|auth)(?![^\W_]))"
_FLAG = rf"(?<![\w-])--?(?:[\w-]*[-_])?{_WORDS}(?![\w-])"
_SECRET_NAME = re.compile(rf"{_WORDS}|^-u$", re.IGNORECASE)
_FILE_NAME = re.compile(r"[-_](?:file|path)$", re.IGNORECASE)
_INDEX = re.compile(r"(?:\.\d+)+$")
_WITH_PATH = ("webhook_url", "alertmanagers")
"""Settings with URLs whose path may be a secret."""
_URL_PATH = re.compile(r"^((?:\w+://)?[^/\s]+)/.+")
_VALUE = r"""(?:(?P<quote>["'])(?:\\.|(?!(?P=quote)).)*(?:(?P=quote)|$)|\\["'].*?(?:\\["']|$)|\S*[^\s"'\])},;])"""
_IN_TEXT = tuple(
    (re.compile(rf"(?P<name>{before}){value}", re.IGNORECASE | re.MULTILINE), replacement)
    for before, value, replacement in (
        (r"(?<=://)(?:[^/@\s:?#]*:)?", r"[^/?#\s]+(?=@)", rf"\g<name>{REDACTED}"),
        (r"://[^\s?#]+\?", r"[^\s\"'#]+", rf"\g<name>{REDACTED}"),
        (r"Bearer |Authorization: ?\w+ ", r"[^\s\"']+", rf"\g<name>{REDACTED}"),
        (r"(?<![\w-])-u[\"']?[\s,]*(?:- +)?[\"']?[^\s:\"']*:", r"[^\s\"']+", rf"\g<name>{REDACTED}"),
        (rf"{_FLAG}[\"']?[\s,]+(?:- +)?", _VALUE, rf"\g<name>\g<quote>{REDACTED}\g<quote>"),
        (rf"{_WORDS}\\?[\"']?[ \t]*[=:]+[ \t]*", _VALUE, rf"\g<name>\g<quote>{REDACTED}\g<quote>"),
    )
)
"""Secrets in a text: password and query of a URL, an HTTP header, `-u NAME:`, `--token`, `token=`, `token:`."""
_IN_FILE = (
    (re.compile(r"(?:^|(?<=\s))#.*", re.MULTILINE), ""),
    (re.compile(rf"({_FLAG}|(?<![\w-])-u(?!\w)).*(?:\n\s*- +[^-\n].*)*", re.IGNORECASE), rf"\1 {REDACTED}"),
    (re.compile(rf"^(\s*)(.*{_WORDS}[\"']?:).*(?:\n\1\s+.*)*", re.IGNORECASE | re.MULTILINE), rf"\1\2 {REDACTED}"),
    (re.compile(r"(://[^/\s\"']+|\b[\w-]+(?:\.[\w-]+)+(?::\d+)?)/[^\"',\]}\n]+"), rf"\1/{REDACTED}"),
)
"""Comments, words after a secret flag, values of a secret key, and paths of URLs in a file that may not be YAML."""


def redact(name: str, value: Any) -> Any:
    """Return the value of a setting with secrets replaced by REDACTED.

    `name` is the name of the setting or, inside a mapping, the key of an entry. A value is secret if its name indicates
    that. The secrets that redact_text finds in a value, and the path of webhook_url, are replaced too.
    """
    last = _INDEX.sub("", name).rpartition(".")[2]
    if isinstance(value, Mapping):
        return {key: redact(str(key), entry) for key, entry in value.items()}
    if _is_secret(last):
        return None if value is None else REDACTED
    if isinstance(value, list | tuple):
        return list(_redact_words(name, value))
    if not isinstance(value, str):  # a URL where the name of a file belongs is a webhook
        return REDACTED if isinstance(value, Path) and value.parts[:1] in {("http:",), ("https:",)} else value
    text = redact_text(value)
    return _URL_PATH.sub(rf"\1/{REDACTED}", text) if last in _WITH_PATH else text


def redact_text(text: str) -> str:
    """Return a text, such as a log, in which passwords and tokens are replaced by REDACTED."""
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def redact_file(text: str) -> str:
    """Return a configuration file, also one that is not valid, without comments and secrets."""
    for pattern, replacement in _IN_FILE:
        text = pattern.sub(replacement, text)
    return redact_text(text)


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not _FILE_NAME.search(name)


def _redact_words(name: str, words: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Yield the words of a list. After a flag such as --token, all words up to the next flag are secret."""
    before, hidden = "", False
    for word in words:
        hidden = (before.startswith("-") and _is_secret(before)) or (hidden and not str(word).startswith("-"))
        yield REDACTED if hidden else redact(name, word)
        before = str(word)
