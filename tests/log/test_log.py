"""The log: one line for each event, as logfmt or JSON, without ever blocking the agent."""

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


def logged_lines(code: str, *, level: str = "info", form: str = "logfmt") -> list[str]:
    """Return the lines that a process with this code writes to standard error."""
    program = LEAD.format(level=level, format=form) + textwrap.dedent(code)
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return process.stderr.splitlines()


def without_time(line: str) -> str:
    return re.sub(r"^time=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", "", line)


def test_an_event_is_one_line_of_logfmt() -> None:
    """Time, level, logger and message precede the extras, and values that are not one plain word are quoted."""
    (line,) = logged_lines(
        """
        logging.getLogger("gpumon.store").warning(
            "lost %d rows", 3, extra={"path": "/a b", "uuid": "GPU-1", "ratio": 0.5, "why": None, "said": 'a="b"\\nc'})
        """
    )

    assert without_time(line) == (
        'level=warning logger=gpumon.store msg="lost 3 rows" path="/a b" uuid=GPU-1 ratio=0.5 why=null '
        r'said="a=\"b\"\nc"'
    )
    assert without_time(line) != line


def test_an_event_is_one_object_of_json() -> None:
    """The same fields are keys of a JSON object, for any type of extra."""
    (line,) = logged_lines(
        """
        import pathlib
        logging.getLogger("gpumon").error("gone", extra={
            "path": pathlib.Path("/x"), "n": float("nan"), "map": {(1, 2): 3}, "level": "mine", "raw": "\\udc80"})
        """,
        form="json",
    )

    fields = json.loads(line)
    time = fields.pop("time")
    assert fields == {
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
    """A traceback is a field of the same line."""
    (line,) = logged_lines(
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
    """A line has at most 4096 bytes, and long values keep both ends."""
    (line,) = logged_lines(
        'logging.getLogger("gpumon").info("begin " + "\\x1b" * 9000 + " end", extra={"log": "x" * 5000 + "tail"})',
        form="json",
    )

    fields = json.loads(line)
    assert len(line.encode()) < 4096
    assert fields["msg"].startswith("begin ")
    assert fields["msg"].endswith(" end")
    assert fields["log"].endswith("tail")


def test_a_call_with_wrong_arguments_is_logged() -> None:
    (line,) = logged_lines('logging.getLogger("gpumon").info("%d GPUs", "eight")')

    assert "msg=\"%d GPUs ('eight',)\"" in line


def test_libraries_log_from_warning_on() -> None:
    """Libraries log from warning on, unless the level is debug or error."""
    code = """
        for name in ("gpumon", "uvicorn.error", "apscheduler.scheduler"):
            logging.getLogger(name).debug("d")
            logging.getLogger(name).info("i")
            logging.getLogger(name).warning("w")
        """

    assert [without_time(line) for line in logged_lines(code)] == [
        "level=info logger=gpumon msg=i",
        "level=warning logger=gpumon msg=w",
        "level=warning logger=uvicorn.error msg=w",
        "level=warning logger=apscheduler.scheduler msg=w",
    ]
    assert len(logged_lines(code, level="debug")) == 9
    assert len(logged_lines(code, level="error")) == 0


def test_messages_are_counted_by_level() -> None:
    """Every level has a count from the start, which survives a change of the configuration."""
    lines = logged_lines(
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
def test_an_unusable_standard_error_is_ignored(redirection: str) -> None:
    """The program continues and counts its messages if standard error is closed or its disk is full."""
    program = (
        LEAD.format(level="info", format="logfmt") + 'logging.getLogger("a").error("x"); print(log.counts()["error"])'
    )
    process = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )

    assert process.stdout == "1.0\n"


def test_a_full_pipe_does_not_block() -> None:
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
        process = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=writer, text=True, check=True, timeout=60
        )
        os.close(writer)
        lines = unread.read().splitlines()

    assert process.stdout == "done\n"
    assert [json.loads(line)["number"] for line in lines] == list(range(len(lines)))
    assert 10 < len(lines) < 30
