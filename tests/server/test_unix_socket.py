"""The unix socket: every local user may read; root, the agent's user and members of its group may change state."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from agents import AgentProcess, eventually
from serving import ServedNode

from gpumon.cli.client import Client, ClientError, NoAgentError, RefusedError
from gpumon.server import connections
from gpumon.server.app import create_app
from gpumon.server.listener import ListenError, Server, listen_locally

HOLD = "/api/v1/probes/hold?for_seconds=60"
ASK = """
import os, socket, sys
path, groups, gid, uid = sys.argv[1], eval(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
os.setgroups(groups); os.setgid(gid); os.setuid(uid)
with socket.socket(socket.AF_UNIX) as agent:
    agent.connect(path)
    agent.sendall(sys.argv[5].encode() + b" HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    print(b"".join(iter(lambda: agent.recv(65536), b"")).decode())
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Path in a folder that every user may enter, longer than the name of a socket can be."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    folder = tmp_path / ("folder-" * 16)
    folder.mkdir(mode=0o755)
    return folder / "gpumon.sock"


@contextlib.contextmanager
def serve(path: Path, node: ServedNode) -> Iterator[None]:
    server = Server(create_app(node.sources()), node.refusals, node.access)
    server.start([listen_locally(path)])
    try:
        yield
    finally:
        server.stop()


def ask_as(path: Path, request: str, *, uid: int, gid: int, groups: tuple[int, ...] = ()) -> str:
    """Return the answer to a process of this user."""
    with contextlib.ExitStack() as stack:
        folder = os.open(path.parent, os.O_PATH)
        stack.callback(os.close, folder)
        name = f"/proc/self/fd/{folder}/{path.name}"
        command = [sys.executable, "-I", "-S", "-c", ASK, name, str(list(groups)), str(gid), str(uid), request]
        return subprocess.run(command, check=True, capture_output=True, text=True, pass_fds=[folder], timeout=60).stdout


def test_the_agents_user_needs_no_token(path: Path) -> None:
    """A client in the agent's user reads and writes."""
    node = ServedNode(token=None)
    with serve(path, node):
        assert Client(path).get("/api/v1/health", ("level",))
        assert Client(path).change("POST", "/api/v1/windows?kind=maintenance&for_seconds=60&reason=test", ("windows",))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
def test_other_users_may_read_and_not_write(path: Path) -> None:
    """A member of the agent's group may write, whether the group is its first or another."""
    node, group = ServedNode(), os.getegid()
    with serve(path, node):
        assert "200 OK" in ask_as(path, "GET /api/v1/node", uid=65534, gid=65534)
        refused = ask_as(path, f"POST {HOLD}", uid=65534, gid=65534)
        assert "403 Forbidden" in refused
        assert "Run as root, or as a member of the group" in refused
        assert node.refusals.counts["user"] == 1
        for gid, groups in ((group, ()), (65534, (group,))):
            assert "403" not in ask_as(path, f"POST {HOLD}", uid=65534, gid=gid, groups=groups)


def test_refusal_names_the_remedy(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command prints the sentence of the agent."""
    monkeypatch.setattr(connections.Peer, "may_write", False)
    with (
        serve(path, ServedNode()),
        pytest.raises(RefusedError, match=r"uid .* may not change the state .* Run as root"),
    ):
        Client(path).change("POST", HOLD, ())


def test_network_clients_do_not_use_up_its_connections(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle local clients close each other, and a new one is served."""
    monkeypatch.setattr(connections, "MAX_LOCAL_CONNECTIONS", 4)
    node = ServedNode()
    with serve(path, node), contextlib.ExitStack() as stack:
        folder = os.open(path.parent, os.O_PATH)
        stack.callback(os.close, folder)
        for _ in range(8):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(f"/proc/self/fd/{folder}/{path.name}")
        assert Client(path).get("/api/v1/health", ("level",))
        assert node.refusals.counts["connections"] >= 4


HOLD_CONNECTIONS = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
held = [socket.socket(socket.AF_UNIX) for _ in range(12)]
for one in held:
    one.connect(sys.argv[1])
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_cannot_use_up_the_places_of_root(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection of root, opened first, outlives more connections of an unprivileged user than there may be."""
    monkeypatch.setattr(connections, "MAX_LOCAL_CONNECTIONS", 4)
    node = ServedNode()
    with serve(path, node), contextlib.ExitStack() as stack:
        folder = os.open(path.parent, os.O_PATH)
        stack.callback(os.close, folder)
        name = f"/proc/self/fd/{folder}/{path.name}"
        mine = stack.enter_context(socket.socket(socket.AF_UNIX))
        mine.settimeout(60)
        mine.connect(name)
        crowd = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", HOLD_CONNECTIONS, name],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[folder],
            )
        )
        assert crowd.stdout
        assert crowd.stdout.readline() == b"connected\n"
        assert Client(path).get("/api/v1/health", ("level",))
        assert node.refusals.counts["connections"] >= 8
        mine.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert mine.recv(4096).startswith(b"HTTP/1.1 200")
        crowd.communicate()


def test_a_full_listen_queue_is_waited_for(tmp_path: Path) -> None:
    """A local user may fill it faster than the agent accepts; a command waits within its timeout."""
    path = tmp_path / "gpumon.sock"
    body = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler = stack.enter_context(socket.socket(socket.AF_UNIX))
                filler.settimeout(0)
                filler.connect(str(path))
        answer = pool.submit(Client(path).get, "/", ())
        assert not wait([answer], 0.3).done
        stack.close()  # the queue's clients end, and the command is served after them
        while not answer.done():
            with listener.accept()[0] as accepted, contextlib.suppress(ConnectionError):
                if accepted.recv(4096):
                    accepted.sendall(body)
                    answer.result(60)
        assert answer.result() == {}


def test_a_queue_that_stays_full_is_an_error(tmp_path: Path) -> None:
    """The command does not wait longer than its timeout."""
    path = tmp_path / "gpumon.sock"
    with socket.socket(socket.AF_UNIX) as listener, contextlib.ExitStack() as stack:
        listener.bind(str(path))
        listener.listen(0)
        with contextlib.suppress(BlockingIOError):
            while True:
                filler = stack.enter_context(socket.socket(socket.AF_UNIX))
                filler.settimeout(0)
                filler.connect(str(path))
        with pytest.raises(ClientError, match="no agent answers"):
            Client(path, timeout=0.2).get("/", ())


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_folder_of_another_user_is_refused(path: Path) -> None:
    """Its owner could replace the socket by a link while the agent starts."""
    os.chown(path.parent, 65534, 65534)
    with pytest.raises(ListenError, match=r"its folder belongs to uid 65534.*--web\.socket"):
        listen_locally(path)


def test_every_user_may_connect_whatever_the_umask(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is set by the bind itself: a chmod afterwards could reach another file through a link."""
    monkeypatch.delattr(Path, "chmod")
    monkeypatch.delattr(os, "chmod")
    before = os.umask(0o077)
    try:
        with listen_locally(path):
            assert os.umask(0o077) == 0o077
            assert path.stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)


def test_the_socket_of_a_killed_agent_is_replaced(path: Path) -> None:
    """That of a running agent is not, nor a file of another kind."""
    listen_locally(path).close()
    with pytest.raises(NoAgentError, match="no agent answers"):
        Client(path).get("/api/v1/node", ())
    with listen_locally(path), pytest.raises(ListenError, match="another agent listens there"):
        listen_locally(path)
    path.unlink()
    victim = path.with_name("victim")
    for plant in (lambda: path.write_text("x"), path.mkdir, lambda: path.symlink_to(victim)):
        plant()
        with pytest.raises(ListenError, match=r"a file that is no socket has this name; remove it.*--web\.socket"):
            listen_locally(path)
        path.rmdir() if path.is_dir() else path.unlink()
    assert not victim.exists()


def test_documents_over_the_socket_are_those_over_tcp(path: Path) -> None:
    """The API is the same."""
    with serve(path, ServedNode()):
        assert json.dumps(Client(path).get("/api/v1/health", ("level",)))


def test_the_agent_serves_on_the_socket_that_it_was_given(tmp_path: Path) -> None:
    """A connection that was made before the agent started is answered; the log names the unused address."""
    agent = AgentProcess(tmp_path, profile="t4x1")
    with socket.create_server(("127.0.0.1", 0)) as held, socket.socket() as early:
        early.settimeout(60)
        early.connect(held.getsockname())
        early.sendall(b"GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n")
        script = f'exec 3<&{held.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
        agent.launcher = ["bash", "-c", script, "bash", sys.executable, "-m", "gpumon"]
        agent.inherited = (held.fileno(),)
        unused, agent.port = agent.port, held.getsockname()[1]
        agent.launch(f"--web.listen-address=127.0.0.1:{unused}")
        try:
            assert early.recv(4096).startswith(b"HTTP/1.1 200")
            assert "web.listen_address is not used" in agent.log.read_text()
            sampler = min(eventually(lambda: agent.children("gpumon.collectors.sampler")))
            assert f"socket:[{os.fstat(held.fileno()).st_ino}]" not in open_files(sampler)
        finally:
            agent.stop()


def open_files(pid: int) -> set[str]:
    """Return what a process has open, without what it closes meanwhile."""
    names = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.add(str(path.readlink()))
    return names
