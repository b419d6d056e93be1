"""Logging to standard error: one line per message, as logfmt or JSON. A line is dropped if writing it would block.

Messages pass through the standard library's `logging`, which the libraries of the daemon use too. The handler is the
agent's own because others wait while a pipe is full, or need a thread and a queue; the two formats are a few lines.
"""

from __future__ import annotations

import json
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

LINE_LIMIT = 4096
"""Maximum length of a line in bytes, including the newline. A pipe that poll() reports as writable accepts this much
without blocking.
"""

_LEVELS = ("debug", "info", "warning", "error")
_LIBRARIES = ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi", "apscheduler", "asyncio")
"""Loggers of libraries. Only their warnings and errors are logged unless the level is debug."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r'[^\s"=\\\x00-\x1f\x7f-\x9f]+')

_counts = dict.fromkeys(_LEVELS, 0.0)

Fields = dict[str, Any]


def configure(*, level: str, format: str) -> None:  # noqa: A002 - the name of the setting
    """Write messages of at least this level to standard error, as logfmt or json. Call it again to change this."""
    root = logging.getLogger()
    for old in [handler for handler in root.handlers if isinstance(handler, _StandardErrorHandler)]:
        root.removeHandler(old)
    root.addHandler(_StandardErrorHandler(_FORMATS[format]))
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True
        logger.setLevel(logging.NOTSET if level == "debug" else max(logging.WARNING, root.level))


def counts() -> Mapping[str, float]:
    """Return the number of messages since the start, by level, including dropped ones and those of child processes."""
    return dict(_counts)


def add_counts(messages: Mapping[str, float]) -> None:
    """Add the message counts by level that a child process reported."""
    for level, more in messages.items():
        _counts[level] += more


def take_counts() -> Mapping[str, float]:
    """Return the counts by level without zeros, and reset them to 0. A child process sends the result to the daemon."""
    taken = {level: count for level, count in _counts.items() if count}
    add_counts({level: -count for level, count in taken.items()})
    return taken


class _StandardErrorHandler(logging.Handler):
    """A logging handler that counts each message by level and writes it to standard error without blocking."""

    def __init__(self, format_fields: Callable[[Fields], str]) -> None:
        super().__init__()
        self._format_fields = format_fields

    def emit(self, record: logging.LogRecord) -> None:
        _counts[_level(record)] += 1
        line = _within_limit(_fields(record), self._format_fields)
        try:
            _write(line)
        except (OSError, ValueError, AttributeError):  # closed, no reader, disk full, or no standard error at all
            return


def _write(line: bytes) -> None:
    descriptor = sys.stderr.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    if poll.poll(0):
        os.write(descriptor, line)


def _fields(record: logging.LogRecord) -> Fields:
    fields: Fields = {
        "time": datetime.fromtimestamp(record.created, timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "level": _level(record),
        "logger": record.name,
        "msg": _message(record),
    }
    for key, value in vars(record).items():
        if key not in _STANDARD:
            fields.setdefault(key, _json_value(value))
    if record.exc_info:
        fields["exception"] = logging.Formatter().formatException(record.exc_info)
    return fields


def _level(record: logging.LogRecord) -> str:
    return _LEVELS[min(max(record.levelno // 10 - 1, 0), 3)]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the arguments do not match the message
        return f"{record.msg} {record.args!r}"


def _json_value(value: Any) -> Any:
    """Return the value if JSON can represent it, else `str(value)`."""
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


def _within_limit(fields: Fields, format_fields: Callable[[Fields], str]) -> bytes:
    """Return the line as bytes, with the longest values shortened in the middle until it has LINE_LIMIT bytes."""
    line = _encode(format_fields(fields))
    while len(line) > LINE_LIMIT:
        longest = max(fields, key=lambda key: len(_text(fields[key])))
        text = _text(fields[longest])
        quarter = len(text) // 4
        if quarter < 16:  # too many fields: keep the first ones
            return line[: LINE_LIMIT - 1] + b"\n"
        fields = fields | {longest: f"{text[:quarter]} ... {text[-quarter:]}"}
        line = _encode(format_fields(fields))
    return line


def _encode(line: str) -> bytes:
    return line.encode(errors="backslashreplace") + b"\n"
