"""The commands that ask the agent: what a real one answers, and what anything else on its port does."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import example_node as example
import pytest
import sample_reports as samples
from each_case import each_case
from servers import http_server
from serving import TOKEN, ServedNode, serving

from gpumon.cli.client import MAX_BODY, Client, ClientError
from gpumon.cli.main import main
from gpumon.outputs.terminal import STATUS
from gpumon.probe.core.result import ProbeRequest
from gpumon.probe.core.state import ProbeState, end_run
from gpumon.state.report import Report

OK = b"HTTP/1.1 200 OK\r\nContent-Length: "
STRANGERS = {
    "an SSH server": b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
    "one that ends early": OK + b"100\r\n\r\n{",
    "one of other JSON": OK + b"2\r\n\r\n{}",
    "one of a JSON list": OK + b"2\r\n\r\n[]",
    "one of JSON without end": OK + b"100000\r\n\r\n" + b"[" * 100_000,
    "one of too much": OK + b"%d\r\n\r\n" % (MAX_BODY + 1) + b"[" * (MAX_BODY + 1),
    "one of HTML": OK + b"6\r\n\r\n<html>",
    "one of other errors": b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\n[]",
    "one of errors without a remedy": b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}",
}


@contextlib.contextmanager
def stranger(says: bytes, path: Path | None = None) -> Iterator[int]:
    """Run a server that sends this to its first client, and hangs up: on a port, or on the unix socket of this path."""
    with socket.socket(socket.AF_INET if path is None else socket.AF_UNIX) as listener:
        listener.bind(("127.0.0.1", 0) if path is None else str(path))
        listener.listen()

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):  # a client may end before it has read all
                connection.recv(65536)
                connection.sendall(says)

        thread = threading.Thread(target=answer)
        thread.start()
        yield listener.getsockname()[1] if path is None else 0
        thread.join(10)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN, encoding="ascii")
    return path


def flags(port: int, token_file: Path) -> list[str]:
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={token_file}"]


@each_case("says", STRANGERS.values(), ids=STRANGERS)
@each_case("command", [["status"], ["status", "--json"], ["probe", "allreduce"]])
def test_other_server_is_an_error(
    command: list[str], says: bytes, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line has the address and the remedy."""
    with stranger(says) as port:
        code = main(
            [*command, *(flags(port, token_file) if "probe" in command else [f"--url=http://127.0.0.1:{port}"])]
        )
    shown = capsys.readouterr()
    assert (code, shown.out, shown.err.count("\n")) == (2, "", 1)
    assert f"127.0.0.1:{port} is not gpumon" in shown.err


FOREIGN: list[tuple[list[str], dict[str, object]]] = [
    (["maintenance"], {"windows": [{}]}),
    (["maintenance", "start", "--for=5m", "--reason=x"], {"windows": [{}], "stored": True}),
    (["release"], {"windows": [{}]}),
    (["inventory"], {"gpus_expected": 1, "gpus": [{}], "ports": [], "former_gpus": []}),
    (["clear", "--all"], {"cleared": [{}], "refused": [], "stored": True}),
    (["probe", "history"], {"probes": [{}]}),
    (["probe", "hold"], {"windows": [], "stored": True}),
    (["status"], dict.fromkeys(STATUS)),
]


@each_case(("command", "document"), FOREIGN)
def test_an_answer_of_another_version_is_an_error(
    command: list[str], document: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command that cannot read the answer prints one line with the remedy, no traceback, and no success."""
    body = json.dumps(document).encode()
    with stranger(OK + f"{len(body)}\r\n\r\n".encode() + body, tmp_path / "s"):
        code = main([*command, f"--socket={tmp_path / 's'}"])
    shown = capsys.readouterr()
    assert code in {1, 2}, shown
    assert shown.err.count("\n") == 1
    assert "estart the agent" in shown.err


def test_missing_agent_is_an_error(token_file: Path) -> None:
    """The error has the address and how to start the agent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ClientError, match=rf"no agent answers at http://127\.0\.0\.1:{port} .*systemctl start gpumon"):
        Client(f"http://127.0.0.1:{port}", token_file).get("/api/v1/node", ())


def test_refused_probe_is_a_skipped_result(
    node: ServedNode, port: int, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The skipped run is printed, and the exit code is its own."""
    skipped = replace(example.run(), id="run-7", outcome="skipped", reason="busy", measurements=())
    node.report = replace(samples.healthy(), probe=replace(samples.healthy().probe, history=(skipped,)))
    node.answer = ProbeRequest(id="run-7", accepted=False, reason="busy", hint="GPU 0 has a process.")
    assert main(["probe", "allreduce", "--json", *flags(port, token_file)]) == 3
    result = json.loads(capsys.readouterr().out)
    assert (result["id"], result["outcome"], result["reason"]) == ("run-7", "skipped", "busy")


def test_command_waits_for_the_record_of_a_refused_probe(
    node: ServedNode, port: int, token_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run can be read only after its row is stored."""
    skipped = replace(example.run(), id="run-7", outcome="skipped", reason="busy", measurements=())
    known = replace(samples.healthy(), probe=replace(samples.healthy().probe, history=(skipped,)))
    node.answer = ProbeRequest(id="run-7", accepted=False, reason="busy", hint="GPU 0 has a process.")
    written = threading.Timer(0.4, setattr, (node, "report", known))
    written.start()
    assert main(["probe", "allreduce", "--json", *flags(port, token_file)]) == 3
    written.join()
    assert json.loads(capsys.readouterr().out)["id"] == "run-7"


def test_wrong_token_is_an_error(port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The answer of the agent is shown with its remedy."""
    wrong = tmp_path / "token"
    wrong.write_text("a-token-of-another-test", encoding="ascii")
    assert main(["probe", "allreduce", "--json", *flags(port, wrong)]) == 2
    assert "The token does not match. Send `Authorization" in capsys.readouterr().err


@dataclass
class Running(ServedNode):
    """Shows a run in progress at first, then its result."""

    reports: list[Report] = field(default_factory=list)

    def latest(self) -> Report:
        return self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]


def test_run_in_progress_is_a_bar_on_a_terminal(
    token_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar shows the stage; after the run it is replaced by the table."""
    during = replace(samples.healthy(), probe=example.measuring())
    after = replace(samples.healthy(), probe=end_run(ProbeState(), example.run()))
    node = Running(reports=[during, after], answer=ProbeRequest(id=example.run().id, accepted=True))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with serving(node) as port:
        assert main(["probe", "allreduce", *flags(port, token_file)]) == 0
    shown = capsys.readouterr()
    assert "\r\x1b[K[#############.................]  42% warming up 1 GiB (ring)" in shown.err
    assert shown.err.endswith("\r\x1b[K")
    assert shown.out.startswith("# all-reduce, nccl, 8 ranks")


def test_history_comes_from_the_agent(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As lines or as JSON; the agent applies the filters."""
    given = [f"--url=http://127.0.0.1:{port}"]
    assert main(["probe", "history", "--since", "2h30m", "--probe", "allreduce", *given]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in lines[1:]] == [example.run(hours).id for hours in range(3)]
    assert main(["probe", "history", "--json", "--since", "2h30m", *given]) == 0
    assert [load["id"] for load in json.loads(capsys.readouterr().out)] == [example.run(hours).id for hours in range(3)]


def test_history_that_cannot_be_read_is_an_error(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, with the remedy."""
    assert main(["probe", "history", "--since", "yesterday", f"--url=http://127.0.0.1:{port}"]) == 2
    assert "since='yesterday' is invalid" in capsys.readouterr().err


def foreign(**answers: object) -> contextlib.AbstractContextManager[int]:
    """Return a server that answers every request like the agent, with its own content. It yields its port."""
    return http_server(lambda _: (200, json.dumps(answers).encode()))


def test_a_hold_by_another_server_is_an_error(token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A document with the members of the agent's, and other content, is an error with a remedy."""
    with foreign(windows=[{"until": "x"}], stored=True) as port:
        assert main(["probe", "hold", *flags(port, token_file)]) == 2
    assert "not that of this version of gpumon: restart the agent" in capsys.readouterr().err


def test_an_answer_does_not_control_the_terminal(token_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and characters that reverse the order of a text are replaced before they are printed."""
    holder = {"until": "2026-11-20T22:16:33Z", "remaining_seconds": 60, "by": "\x1b]0;me\x07", "owner": "\u202etxt"}
    with foreign(windows=[holder | {"reason": "\x9b2J"}], stored=True) as port:
        assert main(["probe", "hold", *flags(port, token_file)]) == 0
    shown = capsys.readouterr().out
    assert "]0;me" in shown
    assert shown.replace("\n", "").isprintable()


def test_an_answer_that_ends_early_is_an_error() -> None:
    """A part of a document is not taken for the whole, even if it is valid JSON."""
    with stranger(OK + b'100\r\n\r\n{"verdicts": []}') as port, pytest.raises(ClientError, match="IncompleteRead"):
        Client(f"http://127.0.0.1:{port}", timeout=30.0).get("/api/v1/health", ["verdicts"])


def test_an_answer_without_end_is_an_error() -> None:
    """A server that keeps sending a little within each timeout does not keep a command from ending."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.settimeout(0.05)
                while True:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                    with contextlib.suppress(TimeoutError):  # a little later, unless the client has ended
                        connection.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(ClientError):
            Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=0.5).get("/api/v1/health", ["verdicts"])
        thread.join(10)
        assert not thread.is_alive()
