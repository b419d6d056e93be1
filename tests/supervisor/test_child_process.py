"""Children: started by exec, read, killed with their group, reaped, and abandoned when SIGKILL does not end them."""

from __future__ import annotations

import os
import select
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from agents import eventually
from loops import turn_until
from unkillable import build, held

from gpumon.supervisor.child_process import ChildCommand, ChildProcess
from gpumon.supervisor.loop import Loop


class Told:
    """What a child's callbacks told."""

    def __init__(self) -> None:
        self.output = b""
        self.codes: list[int] = []
        self.abandoned = 0

    def command(self, script: str, *, orders: bytes = b"") -> ChildCommand:
        return ChildCommand(
            name="test",
            arguments=(sys.executable, "-c", script),
            orders=orders,
            on_output=self._take,
            on_exit=self.codes.append,
            on_abandoned=self._left,
        )

    def _take(self, received: bytes) -> None:
        self.output += received

    def _left(self) -> None:
        self.abandoned += 1


def test_orders_go_in_and_output_comes_out() -> None:
    """A child reads its orders as a line and what it prints is taken to the last byte."""
    loop, told = Loop(), Told()
    ChildProcess(loop, told.command("print(input()[::-1])", orders=b"nomupg\n"))

    turn_until(loop, lambda: bool(told.codes))

    assert (told.output, told.codes) == (b"gpumon\n", [0])


def test_a_child_ends_when_its_input_closes() -> None:
    """Standard input stays open until the daemon closes it, or is gone."""
    loop, told = Loop(), Told()
    child = ChildProcess(loop, told.command("import sys; print('up', flush=True); sys.stdin.read()"))
    turn_until(loop, lambda: told.output == b"up\n")
    assert not told.codes

    child.close_input()
    turn_until(loop, lambda: bool(told.codes))

    assert told.codes == [0]


def test_kill_takes_the_whole_group() -> None:
    """SIGKILL reaches what the child itself has started."""
    loop, told = Loop(), Told()
    script = "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
    child = ChildProcess(loop, told.command(script))
    turn_until(loop, lambda: told.output.endswith(b"\n"))
    grandchild = int(told.output)

    child.kill()
    turn_until(loop, lambda: bool(told.codes))

    assert told.codes == [-signal.SIGKILL]
    turn_until(loop, lambda: _is_gone(grandchild))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_what_sigkill_does_not_end_is_abandoned_and_its_late_end_still_told(tmp_path: Path) -> None:
    """A child held in the kernel is given up after the patience; when it ends after all, that is told too."""
    loop, told = Loop(), Told()
    child = ChildProcess(loop, told.command("import sys; print('up', flush=True); sys.stdin.read()"))
    turn_until(loop, lambda: told.output == b"up\n")

    with held(build(tmp_path), child.pid):
        child.kill()
        turn_until(loop, lambda: told.abandoned == 1)
        assert child.abandoned
        assert not told.codes

    turn_until(loop, lambda: bool(told.codes))
    assert told.codes == [-signal.SIGKILL]


def test_a_child_may_be_given_more_time_to_end(tmp_path: Path) -> None:
    """One whose memory the kernel gives back for long is not given up with the others."""
    loop, told, hasty = Loop(), Told(), Told()
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    patient = ChildProcess(loop, replace(told.command(script), patience=600.0))
    other = ChildProcess(loop, replace(hasty.command(script), patience=0.1))
    turn_until(loop, lambda: told.output == hasty.output == b"up\n")

    (tmp_path / "a").mkdir()
    program = build(tmp_path / "a")
    with held(program, patient.pid), held(program, other.pid):
        patient.kill()
        other.kill()
        turn_until(loop, lambda: hasty.abandoned == 1)
        assert not patient.abandoned

    turn_until(loop, lambda: bool(told.codes and hasty.codes))
    assert told.abandoned == 0


def test_a_missing_program_is_an_error_that_leaves_no_descriptor_open() -> None:
    """A program that is not there raises, and nothing of the attempt stays behind."""
    loop = Loop()
    before = set(Path("/proc/self/fd").iterdir())

    with pytest.raises(FileNotFoundError):
        ChildProcess(loop, ChildCommand(name="test", arguments=("/nonexistent/gpumon",)))

    # A thread of an earlier test may look something up right now.
    eventually(lambda: set(Path("/proc/self/fd").iterdir()) <= before)


def test_what_a_child_leaves_in_its_group_ends_with_it() -> None:
    """Also when it ends by itself, and in good order: nobody else would end that."""
    loop, told = Loop(), Told()
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    child = ChildProcess(loop, told.command(script))
    turn_until(loop, lambda: told.output.endswith(b"\n"))
    left = os.pidfd_open(int(told.output))

    child.write(b"end\n")
    turn_until(loop, lambda: bool(told.codes))

    assert told.codes == [0]
    assert select.select([left], [], [], 60)[0]
    os.close(left)
