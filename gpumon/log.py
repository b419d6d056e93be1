"""The log: one line an event on standard error, logfmt or JSON. A line is rather lost than a reader waited for."""

from __future__ import annotations

import json
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

LINE_LIMIT = 4096
"""Bytes, newline included: a pipe that can be written at all takes this much without blocking."""

_LEVELS = ("debug", "info", "warning", "error")
_NOT_OURS = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "apscheduler", "asyncio")
"""Loggers whose info is of no use to an operator."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r'[^\s"=\\\x00-\x1f\x7f-\x9f]+')

_counts = dict.fromkeys(_LEVELS, 0.0)

Fields = dict[str, Any]


def configure(*, level: str, format: str) -> None:  # noqa: A002 - as the setting is called
    """Send all that is logged to standard error. Called again, it changes level and format."""
    root = logging.getLogger()
    for old in [one for one in root.handlers if isinstance(one, _StandardError)]:
        root.removeHandler(old)
    root.addHandler(_StandardError(_FORMATS[format]))
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in _NOT_OURS:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET if level == "debug" else max(logging.WARNING, root.level))


def counts() -> Mapping[str, float]:
    """Messages by level since the process began, those that nobody could read too; with those of its children."""
    return dict(_counts)


def add(messages: Mapping[str, float]) -> None:
    """Count what a child has logged."""
    for level, more in messages.items():
        _counts[level] += more


def take() -> Mapping[str, float]:
    """What has been counted since this was last called: a child's, to be counted by whoever started it."""
    taken = {level: count for level, count in _counts.items() if count}
    add({level: -count for level, count in taken.items()})
    return taken


class _StandardError(logging.Handler):
    def __init__(self, write_out: Callable[[Fields], str]) -> None:
        super().__init__()
        self._write_out = write_out

    def emit(self, record: logging.LogRecord) -> None:
        _counts[_level(record)] += 1
        line = _within_limit(_fields(record), self._write_out)
        try:
            _write(line)
        except (OSError, ValueError, AttributeError):  # closed, no reader, disk full; None where there never was one
            return


def _write(line: bytes) -> None:
    descriptor = sys.stderr.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0):
        os.write(descriptor, line)


def _fields(record: logging.LogRecord) -> Fields:
    fields: Fields = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": _level(record),
        "logger": record.name,
        "msg": _message(record),
    }
    for key, value in vars(record).items():
        if key not in _STANDARD:
            fields.setdefault(key, _plain(value))
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _level(record: logging.LogRecord) -> str:
    return _LEVELS[min(max(record.levelno // 10 - 1, 0), 3)]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the arguments do not fit the text
        return f"{record.msg} {record.args!r}"


def _plain(value: Any) -> Any:
    """The value, or words for it, as JSON can hold it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return str(value)
    return value


def _logfmt(fields: Fields) -> str:
    return " ".join(f"{key}={_word(value)}" for key, value in fields.items())


def _word(value: Any) -> str:
    text = _text(value)
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(fields: Fields) -> str:
    return json.dumps(fields, ensure_ascii=False)


_FORMATS = {"logfmt": _logfmt, "json": _json}


def _within_limit(fields: Fields, write_out: Callable[[Fields], str]) -> bytes:
    """The line, its longest values cut in the middle until it fits."""
    line = _encoded(write_out(fields))
    while len(line) > LINE_LIMIT:
        longest = max(fields, key=lambda key: len(_text(fields[key])))
        text = _text(fields[longest])
        quarter = len(text) // 4
        if quarter < 16:  # too many fields: what they say comes first
            return line[: LINE_LIMIT - 1] + b"\n"
        fields = fields | {longest: f"{text[:quarter]} ... {text[-quarter:]}"}
        line = _encoded(write_out(fields))
    return line


def _encoded(line: str) -> bytes:
    return line.encode(errors="backslashreplace") + b"\n"
