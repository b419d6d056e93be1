"""The log is one line an event, for people and for machines, and never in the way."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import textwrap

import pytest

LEAD = "import logging; from gpumon import log; log.configure(level={level!r}, format={format!r})\n"


def logged(code: str, *, level: str = "info", form: str = "logfmt") -> list[str]:
    """What a process that runs this code writes to standard error."""
    program = LEAD.format(level=level, format=form) + textwrap.dedent(code)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return ended.stderr.splitlines()


def untimed(line: str) -> str:
    return re.sub(r"^time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", "", line)


def test_an_event_is_one_line_of_logfmt() -> None:
    """Time, level, logger and message come first, then the extras; what is not one bare word is quoted."""
    (line,) = logged(
        """
        logging.getLogger("gpumon.store").warning(
            "lost %d rows", 3, extra={"path": "/a b", "uuid": "GPU-1", "ratio": 0.5, "why": None, "said": 'a="b"\\nc'})
        """
    )

    assert untimed(line) == (
        'level=warning logger=gpumon.store msg="lost 3 rows" path="/a b" uuid=GPU-1 ratio=0.5 why=null '
        r'said="a=\"b\"\nc"'
    )
    assert untimed(line) != line


def test_an_event_is_one_object_of_json() -> None:
    """The same fields are keys of a JSON object, whatever was given as an extra."""
    (line,) = logged(
        """
        import pathlib
        logging.getLogger("gpumon").error("gone", extra={
            "path": pathlib.Path("/x"), "n": float("nan"), "map": {(1, 2): 3}, "level": "mine", "raw": "\\udc80"})
        """,
        form="json",
    )

    told = json.loads(line)
    time = told.pop("time")
    assert told == {
        "level": "error",
        "logger": "gpumon",
        "msg": "gone",
        "path": "/x",
        "n": "nan",
        "map": "{(1, 2): 3}",
        "raw": "\udc80",
    }
    assert time.endswith("Z")


def test_an_exception_stays_on_the_line() -> None:
    """A traceback is a field, not lines of its own."""
    (line,) = logged(
        """
        try:
            {}["key"]
        except KeyError:
            logging.getLogger("gpumon").exception("failed")
        """,
        form="json",
    )

    assert json.loads(line)["exception"].endswith("KeyError: 'key'")


def test_long_values_are_cut_in_the_middle() -> None:
    """A line is at most 4096 bytes, so that no pipe blocks on it, and both ends of what was said are kept."""
    (line,) = logged(
        'logging.getLogger("gpumon").info("begin " + "\\x1b" * 9000 + " end", extra={"log": "x" * 5000 + "tail"})',
        form="json",
    )

    told = json.loads(line)
    assert len(line.encode()) < 4096
    assert told["msg"].startswith("begin ")
    assert told["msg"].endswith(" end")
    assert told["log"].endswith("tail")


def test_a_mistaken_call_is_logged_all_the_same() -> None:
    """Arguments that do not fit their text are told beside it."""
    (line,) = logged('logging.getLogger("gpumon").info("%d GPUs", "eight")')

    assert "msg=\"%d GPUs ('eight',)\"" in line


def test_level_is_kept_and_others_are_quieter() -> None:
    """Below the level nothing is written; servers and schedulers speak from warning on, unless all is asked for."""
    code = """
        for name in ("gpumon", "uvicorn.error", "apscheduler.scheduler"):
            logging.getLogger(name).debug("d")
            logging.getLogger(name).info("i")
            logging.getLogger(name).warning("w")
        """

    assert [untimed(line) for line in logged(code)] == [
        "level=info logger=gpumon msg=i",
        "level=warning logger=gpumon msg=w",
        "level=warning logger=uvicorn.error msg=w",
        "level=warning logger=apscheduler.scheduler msg=w",
    ]
    assert len(logged(code, level="debug")) == 9
    assert len(logged(code, level="error")) == 0


def test_messages_are_counted_by_level() -> None:
    """Every level has its count from the start, over a change of the configuration too."""
    lines = logged(
        """
        import sys
        print(log.counts(), file=sys.stderr)
        logging.getLogger("gpumon").info("i")
        log.configure(level="error", format="json")
        logging.getLogger("gpumon").info("i")
        logging.getLogger("gpumon").critical("c")
        print(log.counts(), file=sys.stderr)
        """
    )

    assert lines[0] == "{'debug': 0.0, 'info': 0.0, 'warning': 0.0, 'error': 0.0}"
    assert lines[-1] == "{'debug': 0.0, 'info': 1.0, 'warning': 0.0, 'error': 1.0}"
    assert len(lines) == 4


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2>/dev/null"])
def test_an_unusable_standard_error_does_no_harm(redirection: str) -> None:
    """Closed at start or on a full disk, the program goes on, and the message counts."""
    program = (
        LEAD.format(level="info", format="logfmt") + 'logging.getLogger("a").error("x"); print(log.counts()["error"])'
    )
    ended = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert ended.stdout == "1.0\n"


def test_a_reader_that_does_not_read_keeps_nobody_waiting() -> None:
    """Once the pipe is full lines are lost instead of blocking; each line that arrives is whole."""
    program = LEAD.format(level="info", format="json") + textwrap.dedent(
        """
        for number in range(200):
            logging.getLogger("a").info("x" * 3000, extra={"number": number})
        print("done")
        """
    )
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 64 * 1024)
    with os.fdopen(reader, "rb") as unread:
        ended = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=writer, text=True, check=True, timeout=60
        )
        os.close(writer)
        lines = unread.read().splitlines()

    assert ended.stdout == "done\n"
    assert [json.loads(line)["number"] for line in lines] == list(range(len(lines)))
    assert 10 < len(lines) < 30
