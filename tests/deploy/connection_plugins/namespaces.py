"""Connection of Ansible to a cloned root: runs commands in the namespaces of the process `ansible_host`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from ansible.plugins.connection import ConnectionBase

DOCUMENTATION = """
name: namespaces
short_description: Run commands in the namespaces of a process.
description: The host's address is the id of the process.
author: gpumon
options: {}
"""
NAMESPACES = ("--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup")


class Connection(ConnectionBase):  # type: ignore[misc]
    """Runs each command below nsenter."""

    transport = "namespaces"
    has_pipelining = False

    def _connect(self) -> Connection:
        self._connected = True
        return self

    def _run(self, command: list[str], content: bytes | None) -> tuple[int, bytes, bytes]:
        enter = ["nsenter", f"--target={self._play_context.remote_addr}", *NAMESPACES, "--root", "env", "--chdir=/"]
        ran = subprocess.run([*enter, *command], input=content, capture_output=True, check=False)
        return ran.returncode, ran.stdout, ran.stderr

    def exec_command(self, cmd: str, in_data: bytes | None = None, sudoable: bool = True) -> Any:  # noqa: FBT001, FBT002
        super().exec_command(cmd, in_data=in_data, sudoable=sudoable)
        return self._run(["/bin/sh", "-c", cmd], in_data)

    def put_file(self, in_path: str, out_path: str) -> None:
        super().put_file(in_path, out_path)
        code, _, error = self._run(["/bin/sh", "-c", 'cat > "$0"', out_path], Path(in_path).read_bytes())
        if code:
            raise OSError(error.decode())

    def fetch_file(self, in_path: str, out_path: str) -> None:
        super().fetch_file(in_path, out_path)
        Path(out_path).write_bytes(self._run(["cat", in_path], None)[1])

    def close(self) -> None:
        self._connected = False
