"""Servers in a job: the worker server of PyTorch and the RAS service of NCCL, here stand-ins that may misbehave."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.cli.hang import ras
from gpumon.cli.hang.evidence import ReadError
from gpumon.cli.hang.worker_server import ask, main_stack

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
NEVER = b"never"
"""Makes the server send nothing and keep the connection open."""


@contextlib.contextmanager
def serving(listener: socket.socket, answer: bytes) -> Iterator[list[bytes]]:
    """Answer one connection, and yield the list in which its requests are collected."""
    requests: list[bytes] = []
    over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            requests.append(connection.recv(65536))
            if answer == NEVER:
                over.wait(30)
            else:
                connection.sendall(answer)

    with listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield requests
        finally:
            over.set()
            thread.join(30)


@each_case(
    "answer, message",
    [
        (OK + b"{", "no complete response"),
        (OK + b"{}{}", "no complete response"),
        (b"HTTP/1.1 500 No\r\n\r\n", "500 No"),
        (b"\x1b[2J", "no complete response .\N{REPLACEMENT CHARACTER}"),
        (NEVER, "timed out"),
    ],
    ids=["short", "long", "status", "escape", "silent"],
)
def test_an_incomplete_answer_is_an_error(answer: bytes, message: str, tmp_path: Path) -> None:
    """Also that of a server that accepts and never answers."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    with serving(listener, answer), pytest.raises(ReadError, match=message):
        ask(tmp_path / "s", "POST", "fr_trace_json", timeout=0.2)


def test_a_socket_in_a_deep_folder_answers(tmp_path: Path) -> None:
    """A path in the mount namespace of a container is longer than the 107 bytes that connect() takes."""
    folder = tmp_path / ("d" * 120)
    folder.mkdir()
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(folder) if hasattr(contextlib, "chdir") else pytest.MonkeyPatch.context() as patch:
        if patch is not None:
            patch.chdir(folder)
        listener.bind("s")
    listener.listen()
    with serving(listener, OK + b"{}") as requests:
        assert ask(folder / "s", "POST", "ping") == b"{}"
    assert requests[0].startswith(b"POST /handler/ping HTTP/1.0\r\n")


def test_the_main_thread_is_the_last_of_a_traceback() -> None:
    """The worker server's own thread comes first."""
    text = (
        "Current thread 0x00007f9b (most recent call first):\n  <no Python frame>\n\n"
        'Thread 0x00007f9c (most recent call first):\n  File "/job/a b.py", line 3 in step\n'
        '  File "/job/t.py", line 9 in <module>\n'
    )
    assert [str(line) for line in main_stack(text)] == ["/job/a b.py:3 in step", "/job/t.py:9 in <module>"]
    assert main_stack("") == ()


MISSING = (
    '{"rank": 1, "host": "10.0.0.5", "pid": 45, "cuda_dev": 1, "nvml_dev": 1%s '
    '"status": {"unresponsive": true, "considered_dead": %s}}'
)
COMMUNICATOR = (
    '{"hash": "0xae94", "secondary_hash": "0x1:0x2", "size": 2, "ranks": [{"rank": 0, "collective_counts": '
    '{"AllReduce": 7}}], "missing_ranks": [%s]}'
)
STATUS = 'SERVER PROTOCOL 2\nOK\nOK\n{"nccl_version": "%s", "communicators": [%s]}\n'
SILENT = "communicator 0xae94 of 2 ranks: rank 1 (process 45 on 10.0.0.5) does not respond"
TEXT = """SERVER PROTOCOL 2
OK
ERROR: Unknown command
NCCL version 2.26.2 compiled with CUDA 12.2

INCOMPLETE
    Missing communicator data from 1 job process
    Process 3487984 on node 172.16.64.213 managing GPU 5
  #0-0 (cf264af53edbe986) INCOMPLETE
    The missing rank: 21
"""


DEAD, EQUAL = SILENT.replace("does not respond", "is considered dead"), "all ranks respond, collective counts are equal"
PROCESS, RANK = "Process 3487984 on node 172.16.64.213 managing GPU 5", "The missing rank: 21"
CRASHES = [crash for _, _, crash in ras.KNOWN_CRASHES]


def status(version: str, *communicators: str) -> str:
    return STATUS % (version, ",".join(communicators))


@each_case(
    "answer, lines",
    [
        (status("2.29.2", COMMUNICATOR % (MISSING % (",", "false"))), ["NCCL 2.29.2", CRASHES[2], SILENT]),
        (status("2.32.3", COMMUNICATOR % (MISSING % ("", "false"))), ["NCCL 2.32.3", SILENT]),
        (status("2.32.3", COMMUNICATOR % (MISSING % (",", "true"))), ["NCCL 2.32.3", DEAD]),
        (status("2.32.3", *[COMMUNICATOR % ""] * 3), ["NCCL 2.32.3", f"communicator 0xae94 of 2 ranks: {EQUAL}"]),
        (TEXT, ["NCCL 2.26.2", *CRASHES[:2], PROCESS, RANK]),
        ("", ["NCCL of unknown version"]),
    ],
    ids=["json", "without comma", "dead", "repeated", "text", "empty"],
)
def test_ras_is_asked_once(answer: str, lines: list[str]) -> None:
    """The version comes with its known crashes; a communicator that several ranks report is shown once."""
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, answer.encode()) as requests:
        shown = ras.query(f"127.0.0.1:{listener.getsockname()[1]}")
    assert [line.removeprefix("known trouble of this version: ") for line in shown] == lines
    assert requests == [b"CLIENT PROTOCOL 2\nTIMEOUT 10\nSET FORMAT json\nVERBOSE STATUS\n"]


@each_case("answer", ["{", '{"communicators": [3]}', '{"nccl_version": "2.29.2"}', '{"communicators": [{"hash": []}]}'])
def test_an_answer_of_ras_that_is_not_understood_is_shown_as_such(answer: str) -> None:
    """It is no reason to fail: the other evidence remains."""
    listener = socket.create_server(("127.0.0.1", 0))
    with serving(listener, answer.encode()):
        (line,) = ras.query(f"127.0.0.1:{listener.getsockname()[1]}")
    assert line.startswith("the answer from 127.0.0.1:")


def test_no_ras_service_is_shown_as_such() -> None:
    assert ras.query("127.0.0.1:1")[0].startswith("no answer from 127.0.0.1:1: ")
