"""Children of processes, and the files that a process has open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gpumon.supervisor.process_tree import children, open_files


def test_open_files_are_found(tmp_path: Path) -> None:
    """Open files of a child are listed by path; a process that has ended or is not readable has none."""
    first, second = tmp_path / "nvidia3", tmp_path / "else"
    for path in (first, second):
        path.touch()
    program = "import sys; files = [open(path) for path in sys.argv[1:]]; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, str(first), str(second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert {str(first), str(second)} <= open_files(child.pid)
        assert child.pid in children(os.getpid())
        child.kill()
    assert open_files(child.pid) == set()
