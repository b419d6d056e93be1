"""The socket of the socket unit: used instead of web.listen_address, and inherited by no child."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

from agents import AgentProcess, eventually


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
