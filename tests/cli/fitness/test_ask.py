"""The running agent is asked with a deadline for all of it, and believed only if it is one."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import example_node as example
import pytest

from gpumon.cli.fitness import ask_agent
from gpumon.cli.fitness.node_health import Unknowable
from gpumon.outputs.responses.verdicts import HealthResponse

DOCUMENT = json.dumps(HealthResponse.from_report(example.report(), example.STAMP.boot).document())
OK = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
LONG = 60.0
"""Seconds for which a server that hangs does so, at most."""


@contextlib.contextmanager
def server(*answers: str, pause: float = 0.0, host: str = "127.0.0.1") -> Iterator[int]:
    """One connection is answered with these pieces, a pause before each; then it is closed. Gives its port."""
    with socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        ended = threading.Event()

        def serve() -> None:
            with contextlib.suppress(OSError), listener.accept()[0] as connection:
                connection.recv(4096)
                for piece in answers:
                    if ended.wait(pause):
                        return
                    connection.sendall(piece.encode())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            thread.join(LONG)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_the_agent_says_is_understood(host: str) -> None:
    """The document of /api/v1/health, whole, over both families."""
    with server(OK + DOCUMENT[:100], DOCUMENT[100:], host=host) as port:
        known = ask_agent.ask(host, port)
    told = json.loads(DOCUMENT)
    assert known.source == "agent"
    assert [gpu.uuid for gpu in known.gpus] == [one["uuid"] for one in told["gpus"]]
    assert [fault.verdict["check"] for fault in known.faults] == [one["check"] for one in told["verdicts"]]
    assert known.level.word == told["level"]


@pytest.mark.parametrize(
    ("judged", "age", "words"),
    [
        ("2026-11-20T20:02:34.344Z", 4.9, ""),
        ("1970-01-01T00:00:12.000Z", 4.9, ""),
        ("2099-01-01T00:00:12.000Z", 4.9, ""),
        ("2026-11-20T20:02:34.344Z", 3600.0, "judged nothing for 3600 s: it is stuck"),
        (None, None, "just started, and has judged nothing yet"),
    ],
    ids=["now", "clock-set-forth", "clock-set-back", "stuck", "new"],
)
def test_what_was_judged_long_ago_is_not_of_now(judged: str | None, age: float | None, words: str) -> None:
    """An agent that only answers, and one that has just started, say so; what the wall clock says is no reason."""
    document = json.loads(DOCUMENT) | {"judged": judged, "judged_age_seconds": age}
    with server(OK + json.dumps(document)) as port:
        trouble = ask_agent.ask("127.0.0.1", port).trouble
    assert words in trouble
    assert bool(words) is bool(trouble)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "SSH-2.0-OpenSSH_9.2\r\n",
        OK + "<html>",
        OK + "[]",
        OK + "{}",
        OK + '{"level": "ok", "judged_age_seconds": null, "maintenance": null, "verdicts": [{}], "gpus": []}',
        OK + '{"level": "fine", "judged_age_seconds": null, "maintenance": null, "verdicts": [], "gpus": []}',
        OK + DOCUMENT[:-2],
        "HTTP/1.1 404 Not Found\r\n\r\n" + DOCUMENT,
    ],
    ids=["nothing", "ssh", "html", "list", "empty", "no-verdict", "no-level", "torn", "not-found"],
)
def test_nonsense_is_no_answer(answer: str) -> None:
    """What another program says, or half of what an agent says, is told as such."""
    with server(answer) as port, pytest.raises(Unknowable, match=f"127.0.0.1:{port} is no gpumon"):
        ask_agent.ask("127.0.0.1", port)


@pytest.mark.parametrize(("pieces", "pause"), [([OK], LONG), (list(OK + DOCUMENT), 0.05)], ids=["silent", "slow"])
def test_one_that_hangs_is_not_waited_for(pieces: list[str], pause: float) -> None:
    """Neither is one that sends a byte now and then: the deadline is for all of it."""
    began = time.monotonic()
    with server(*pieces, pause=pause) as port:
        with pytest.raises(Unknowable, match=r"did not answer within 0\.5 s"):
            ask_agent.ask("127.0.0.1", port, seconds=0.5)
        assert time.monotonic() - began < LONG / 2


def test_nobody_there_is_told_with_the_remedy() -> None:
    """Refused: the address, and how to start the agent or name another."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(Unknowable, match=f"no agent answers at 127.0.0.1:{port} .*start it.*--web.listen-address"):
        ask_agent.ask("127.0.0.1", port)
