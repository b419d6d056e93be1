"""Redacts secrets: values whose names indicate a secret, and passwords and tokens in URLs and other texts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REDACTED = "<redacted>"
MAX_LINE = 2000
"""Maximum number of characters of a line of a text. The time of the patterns below grows with the square of it."""
_WORDS = (
    r"(?:passw\w{0,40}(?<!_file)|passphrase|token|secret|credentials?|api[-_]?key|cookie|bearer"
    r"|(?:(?<!com|sur)(?<!by)pass|(?<!mon|pub|hot)(?<!public)key|(?<![^\W_])(?:pwd?|auth))(?![^\W_]))"
)
_SECRET_NAME = re.compile(rf"{_WORDS}|^-[ub]$|^--(?:proxy-)?user$", re.IGNORECASE)
_VALUE = r"""(?:(?P<quote>["'])(?:\\.|(?!(?P=quote)).)*(?:(?P=quote)|$)|\\["'].*?(?:\\["']|$)|\S*[^\s"'\])},;])"""
_BETWEEN = r"[\"']?[\s,=]*(?:- +)?[\"']?"
_IN_TEXT = tuple(
    (
        re.compile(rf"(?P<name>{before}){value}", re.IGNORECASE | re.MULTILINE),
        rf"\g<name>\g<quote>{REDACTED}\g<quote>" if value is _VALUE else rf"\g<name>{REDACTED}",
    )
    for before, value in (
        (r"(?<=://)(?:[^/@\s:?#]*:)?", r"[^/?#\s]+(?=@)"),
        (r"://[^\s?#]+\?", r"[^\s\"'#]+"),
        (r"(?<![\w.+/:-])[\w.+-]+:(?!//)", r"[^\s\"']+(?=@)"),
        (r"Authorization[\"']?: *[\"']?", r"(?:\w+ +)?[^\s\"']+"),
        (r"Cookie[\"']?: *[\"']?", r"[^\"'\n]+"),
        (r"hooks\.slack\.com/\w+/", r"[^\s\"'<>]+"),
        (r"apprise[-_]urls[\"']?[ \t]*[=: \t][ \t\[\"']*", r"(?:/[^\n]*)?[^\s/]*://[^\n]*"),
        (r"(?<![a-z\d])x(?:ox[a-z]|app)-", r"[\w.-]+"),
        (r"(?<![a-z\d])(?:gh[pousr]_|hf_|glpat-|AKIA)", r"(?=[^\W_]{16}|[\w-]*\d)[\w-]{8,}"),
        (r"(?<![\w/.-])token[ \t]+(?=[^\s/]*\d)", _VALUE),
        (r"(?<![\w-])eyJ", r"[\w-]{8,}\.[\w-]+[\w.=-]*"),
        (r"(?<![\w/.-])(?:pwd|passwd|password)[ \t]+(?!(?:is|was|for|of|file|has|from|to)\b)", _VALUE),
        (r"Bearer |\$2[aby]\$\d\d\$", r"[^\s\"']+"),
        (rf"(?<![\w-])(?:-[ub]|--(?:proxy-)?user){_BETWEEN}(?![-=])[^\s:=\"']*[:=]", r"[^\s\"']+"),
        (rf"(?<![\w-])--?(?:[\w-]*[-_])?{_WORDS}(?![\w-])[\"']?[\s,]+(?:- +)?", _VALUE),
        (rf"{_WORDS}\\?[\"']?[ \t]*[=:]+[ \t]*", _VALUE),
    )
)
"""Secrets in a text: password and query of a URL, `NAME:password@`, HTTP headers, webhooks and tokens of Slack, Apprise
URLs, tokens of GitHub, GitLab, Hugging Face and AWS, JSON web tokens, `passwd X`, `-u NAME:`, `--token`, `token=`.
"""
_PRIVATE_KEY = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_LONG_LINE = re.compile(rf"^(.{{{MAX_LINE}}}).+", re.MULTILINE)


def redact(name: str, value: Any) -> Any:
    """Return the value of a setting with secrets replaced by REDACTED, as its name or `redact_text` shows them.

    `name` is the name of the setting or, inside a mapping, the key of an entry.
    """
    last = re.sub(r"(\.\d+)+$", "", name).rpartition(".")[2]
    if last.endswith("_file") and isinstance(value, Mapping | list | tuple):  # perhaps the secret instead of its file
        return REDACTED
    if isinstance(value, Mapping):
        return {key: redact(str(key), entry) for key, entry in value.items()}
    if _is_secret(last):
        return None if value is None else REDACTED
    if isinstance(value, list | tuple):
        return list(_redact_words(name, value))
    if not isinstance(value, str):  # a URL where the name of a file belongs is a webhook
        return REDACTED if isinstance(value, Path) and value.parts[:1] in {("http:",), ("https:",)} else value
    if last == "apprise_urls" and not value.startswith("/"):
        value = re.sub(r"^(\w+://)?.+", rf"\1{REDACTED}", value, flags=re.DOTALL)
    if last in {"webhook_url", "alertmanagers"}:
        value = re.sub(r"^((?:\w+://)?[^/\s]+)/.+", rf"\1/{REDACTED}", value)
    return redact_text(value)


def redact_text(text: str) -> str:
    """Return a text, such as a log, in which passwords, tokens and private keys are replaced by REDACTED.

    A line is cut at MAX_LINE before its last word: half a secret may not be recognized as one.
    """
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _LONG_LINE.sub(lambda line: re.sub(r"(?<!\S)\S+$", "", line[1]) + f"<cut at {MAX_LINE} characters>", text)
    for pattern, replacement in _IN_TEXT:
        text = pattern.sub(replacement, text)
    return text


def redact_file(text: str) -> str:
    """Return the keys of a configuration file, which may not be YAML, with numbers and switches, and nothing else."""
    plain = re.compile(r"(?P<key>[\s-]*[\w.]+):\s*(?:[\d.]+|true|false|)\s*|\s*")
    return "\n".join(
        line
        if (match := plain.fullmatch(line)) and not _is_secret(match["key"] or "")
        else re.sub(r"^([\s-]*[\w.]+: ?)?.*", rf"\1{REDACTED}", line)
        for line in text.splitlines()
    )


def _is_secret(name: str) -> bool:
    return bool(_SECRET_NAME.search(name)) and not name.lower().endswith(("_file", "-file", "_path", "-path"))


def _redact_words(name: str, words: list[Any] | tuple[Any, ...]) -> Iterator[Any]:
    """Yield the words of a list. After a flag such as --token, all words up to the next flag are secret."""
    hidden = False
    for before, word in zip(("", *map(str, words)), words, strict=False):
        hidden = (before.startswith("-") and _is_secret(before)) or (hidden and not str(word).startswith("-"))
        yield REDACTED if hidden else redact(name, word)
