"""The audit: every write that was authorized, with its client, its reason and its answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, eventually
from each_case import each_case
from serving import BEARER, ServedNode, ask, is_problem, serving

from gpumon.cli.client import Client
from gpumon.model.request import AuditEntry
from gpumon.store import records
from gpumon.store.store import Store


@pytest.fixture
def node() -> ServedNode:
    return ServedNode()


@pytest.fixture
def port(node: ServedNode) -> Iterator[int]:
    with serving(node) as port:
        yield port


def test_writes_over_tcp_are_recorded_with_their_answer(node: ServedNode, port: int) -> None:
    """Reads and refused requests are not, and an audit can be read by those who may write."""
    refused = ask(port, "/api/v1/audit")
    assert (refused.status, json.loads(refused.body)["detail"]) == (401, "This request needs the token.")
    ask(port, "/api/v1/node")
    assert (
        ask(port, "/api/v1/windows?kind=maintenance&for_seconds=60", "POST", {"Authorization": "Bearer wrong"}).status
        == 401
    )
    answer = ask(port, "/api/v1/windows?kind=maintenance&for_seconds=60&reason=new+fan", "POST", BEARER)
    [entry] = ask(port, "/api/v1/audit", headers=BEARER).document["entries"]
    assert entry["request"] == "POST /api/v1/windows?kind=maintenance&for_seconds=60&reason=new+fan"
    assert (entry["reason"], entry["client"], entry["uid"]) == ("new fan", "127.0.0.1", None)
    assert entry["status"] == answer.status
    assert node.refusals.counts["token"] == 1


@each_case(
    ("method", "path"),
    [
        ("POST", "/api/v1/windows?kind=release&for_seconds=60&reason=why"),
        ("DELETE", "/api/v1/windows?kind=release&reason=why"),
        ("DELETE", "/api/v1/windows/1?reason=why"),
        ("POST", "/api/v1/probes/hold?for_seconds=60&reason=why"),
        ("DELETE", "/api/v1/probes/hold?reason=why"),
        ("POST", "/api/v1/inventory/accept?reason=why"),
        ("POST", "/api/v1/clear?all=true&note=why"),
        ("POST", "/probe/allreduce?reason=why"),
    ],
)
def test_every_change_takes_a_reason(node: ServedNode, port: int, method: str, path: str) -> None:
    """Each change that HTTP offers is recorded with the reason that was given."""
    assert ask(port, path, method, BEARER).status != 422
    assert [entry.reason for entry in node.changes][-1:] == ["why"]


def test_a_long_reason_is_cut(node: ServedNode, port: int) -> None:
    """The store keeps thousands of entries, so that none may be large."""
    ask(port, f"/api/v1/windows?kind=maintenance&for_seconds=60&reason={'x' * 20_000}", "POST", BEARER)
    assert [len(entry.reason) for entry in node.changes] == [500]


def test_a_refused_change_is_recorded_too(node: ServedNode, port: int) -> None:
    """A request that was authorized and failed may have changed something."""
    node.answer = None
    assert ask(port, "/probe/allreduce?unknown=1", "POST", BEARER).status == 422
    assert [entry.status for entry in node.changes] == [422]


def test_local_writes_have_the_user_and_the_reason(tmp_path: Path) -> None:
    """They are in the store, in the log and in the API, and survive a restart; a reload is recorded too."""
    agent = AgentProcess(
        tmp_path, profile="t4x1", environment={"GPUMON_RELEASE__MARKER": str(tmp_path / "marker")}
    ).start()
    try:
        client = Client(tmp_path / "gpumon.db.sock")
        client.change("POST", "/api/v1/windows?kind=maintenance&for_seconds=60&reason=new+fan", ("windows",))
        agent.process.send_signal(1)
        (tmp_path / "marker").write_text("for=1m")
        eventually(lambda: len(client.get("/api/v1/audit", ("entries",))["entries"]) == 3)
        agent.stop()
        agent.start()
        entries = {entry["client"]: entry for entry in client.get("/api/v1/audit", ("entries",))["entries"]}
        marker, reload, maintenance = entries["marker"], entries["signal"], entries["local"]
        assert (marker["request"], marker["uid"]) == (str(tmp_path / "marker"), os.geteuid())
        assert (reload["request"], reload["client"]) == ("SIGHUP", "signal")
        assert (maintenance["client"], maintenance["uid"], maintenance["reason"]) == ("local", os.geteuid(), "new fan")
        assert "change requested" in agent.log.read_text()
        assert 'reason="new fan"' in agent.log.read_text()
    finally:
        agent.stop()


LOGGED_IN = """
import socket, sys
with open("/proc/self/loginuid", "w") as login:
    login.write("4242")
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
client.sendall(b"DELETE /api/v1/probes/hold HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\n\\r\\n")
"""


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/self/loginuid").exists(), reason="the kernel records no login, or no root"
)
def test_a_client_that_does_not_wait_is_recorded_with_its_login(tmp_path: Path) -> None:
    """Who logged in is recorded though the client ended before the answer, and logged though only warnings are."""
    agent = AgentProcess(tmp_path, profile="t4x1").start("--log.level=warning")
    try:
        client = Client(tmp_path / "gpumon.db.sock")
        subprocess.run([sys.executable, "-c", LOGGED_IN, str(tmp_path / "gpumon.db.sock")], check=True)
        [entry] = eventually(lambda: client.get("/api/v1/audit", ("entries",))["entries"])
        assert (entry["uid"], entry["login_uid"]) == (0, 4242)
        assert "change requested" in agent.log.read_text()
    finally:
        agent.stop()


def test_the_audit_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest entries are deleted."""
    monkeypatch.setattr(records, "MAX_AUDIT_ENTRIES", 5)
    with Store.open(tmp_path / "gpumon.db") as store:
        for number in range(8):
            with store.writing() as connection:
                records.put_audit_entry(connection, AuditEntry(wall=float(number), request=f"POST /{number}"))
        with store.reading() as connection:
            assert [entry.wall for entry in records.read_audit_entries(connection, 100)] == [7.0, 6.0, 5.0, 4.0, 3.0]


def test_a_long_path_is_not_repeated() -> None:
    """An answer to an unknown path has the beginning of it."""
    with serving(ServedNode()) as port:
        answer = ask(port, "/" + "x" * 20_000)
        assert is_problem(answer, 404)
        assert len(answer.body) < 2000


@pytest.mark.parametrize("seconds", ["0", "5e-324", "0.5"])
def test_a_window_lasts_at_least_a_second(port: int, seconds: str) -> None:
    """A shorter one would end before the processes have closed the GPUs."""
    assert ask(port, f"/api/v1/windows?kind=release&for_seconds={seconds}", "POST", BEARER).status == 422
