"""Child processes, their output and their files."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import eventually
from each_case import each_case
from loops import turn_until
from unkillable import build, held

from gpumon.supervisor.child_process import ChildCommand, ChildProcess, LineSplitter
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.process_tree import children, open_files


class ChildCallbacks:
    """Output, exit codes and abandonments that the callbacks of a child reported."""

    def __init__(self) -> None:
        self.output = b""
        self.codes: list[int] = []
        self.abandoned = 0

    def command(self, script: str, *, orders: bytes = b"") -> ChildCommand:
        return ChildCommand(
            name="test",
            arguments=(sys.executable, "-c", script),
            orders=orders,
            on_output=self._add_output,
            on_exit=self.codes.append,
            on_abandoned=self._count_abandoned,
        )

    def _add_output(self, received: bytes) -> None:
        self.output += received

    def _count_abandoned(self) -> None:
        self.abandoned += 1


def test_a_child_reads_its_orders_and_its_output_is_read() -> None:
    """A child reads its orders as a line, and its output is read to the last byte."""
    loop, callbacks = Loop(), ChildCallbacks()
    ChildProcess(loop, callbacks.command("print(input()[::-1])", orders=b"nomupg\n"))

    turn_until(loop, lambda: bool(callbacks.codes))

    assert (callbacks.output, callbacks.codes) == (b"gpumon\n", [0])


def test_a_child_ends_when_its_input_closes() -> None:
    """Standard input of a child stays open until the agent closes it."""
    loop, callbacks = Loop(), ChildCallbacks()
    child = ChildProcess(loop, callbacks.command("import sys; print('up', flush=True); sys.stdin.read()"))
    turn_until(loop, lambda: callbacks.output == b"up\n")
    assert not callbacks.codes

    child.close_input()
    turn_until(loop, lambda: bool(callbacks.codes))

    assert callbacks.codes == [0]


def test_kill_ends_the_whole_process_group() -> None:
    """SIGKILL ends a child and the processes that it has started."""
    loop, callbacks = Loop(), ChildCallbacks()
    script = "import subprocess; p = subprocess.Popen(['sleep', '1000']); print(p.pid, flush=True); p.wait()"
    child = ChildProcess(loop, callbacks.command(script))
    turn_until(loop, lambda: callbacks.output.endswith(b"\n"))
    grandchild = int(callbacks.output)

    child.kill()
    turn_until(loop, lambda: bool(callbacks.codes))

    assert callbacks.codes == [-signal.SIGKILL]
    turn_until(loop, lambda: _is_gone(grandchild))


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def test_an_unkillable_child_is_abandoned_and_its_exit_is_reported(tmp_path: Path) -> None:
    loop, callbacks = Loop(), ChildCallbacks()
    child = ChildProcess(loop, callbacks.command("import sys; print('up', flush=True); sys.stdin.read()"))
    turn_until(loop, lambda: callbacks.output == b"up\n")

    with held(build(tmp_path), child.pid):
        child.kill()
        turn_until(loop, lambda: callbacks.abandoned == 1)
        assert child.abandoned
        assert not callbacks.codes

    turn_until(loop, lambda: bool(callbacks.codes))
    assert callbacks.codes == [-signal.SIGKILL]


def test_a_child_with_more_patience_is_not_abandoned_early(tmp_path: Path) -> None:
    loop, callbacks, impatient = Loop(), ChildCallbacks(), ChildCallbacks()
    script = "import sys; print('up', flush=True); sys.stdin.read()"
    patient = ChildProcess(loop, replace(callbacks.command(script), patience=600.0))
    other = ChildProcess(loop, replace(impatient.command(script), patience=0.1))
    turn_until(loop, lambda: callbacks.output == impatient.output == b"up\n")

    (tmp_path / "a").mkdir()
    program = build(tmp_path / "a")
    with held(program, patient.pid), held(program, other.pid):
        patient.kill()
        other.kill()
        turn_until(loop, lambda: impatient.abandoned == 1)
        assert not patient.abandoned

    turn_until(loop, lambda: bool(callbacks.codes and impatient.codes))
    assert callbacks.abandoned == 0


def test_a_stopped_child_is_asked_before_it_is_killed() -> None:
    """A child is asked to end at its deadline, and killed after `grace` seconds if it still runs."""
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); signal.pause()"
    obedient = "import sys; print('up', flush=True); sys.stdin.read()"

    def exit_code(script: str, **row: Any) -> tuple[int, int]:
        """Return the exit code of a child with these columns, and how often its deadline passed."""
        loop, callbacks, late = Loop(), ChildCallbacks(), list[None]()
        command = replace(callbacks.command(script), on_deadline=lambda: late.append(None), **row)
        child = ChildProcess(loop, command)
        turn_until(loop, lambda: bool(callbacks.codes or callbacks.output))
        if command.deadline is None:
            child.stop()
            child.stop()
        turn_until(loop, lambda: bool(callbacks.codes))
        assert callbacks.abandoned == 0
        return callbacks.codes[0], len(late)

    close, terminate = ChildProcess.close_input, ChildProcess.terminate
    assert exit_code(obedient, ask=close, grace=600.0, deadline=0.0) == (0, 1)
    assert exit_code(obedient, deadline=0.0) == (-signal.SIGKILL, 1)
    assert exit_code(obedient, ask=close, grace=600.0) == (0, 0)
    assert exit_code(obedient, ask=terminate, grace=600.0) == (-signal.SIGTERM, 0)
    assert exit_code(stubborn, ask=terminate, grace=0.1) == (-signal.SIGKILL, 0)


def test_a_missing_program_is_an_error_that_leaves_no_descriptor_open() -> None:
    loop = Loop()
    before = set(Path("/proc/self/fd").iterdir())

    with pytest.raises(FileNotFoundError):
        ChildProcess(loop, ChildCommand(name="test", arguments=("/nonexistent/gpumon",)))

    # A thread of an earlier test may have a file open.
    eventually(lambda: set(Path("/proc/self/fd").iterdir()) <= before)


def test_processes_of_a_group_end_with_the_child() -> None:
    """The processes of a child's group are killed even if the child exits by itself."""
    loop, callbacks = Loop(), ChildCallbacks()
    script = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); input()"
    child = ChildProcess(loop, callbacks.command(script))
    turn_until(loop, lambda: callbacks.output.endswith(b"\n"))
    leftover = os.pidfd_open(int(callbacks.output))

    child.write(b"end\n")
    turn_until(loop, lambda: bool(callbacks.codes))

    assert callbacks.codes == [0]
    assert select.select([leftover], [], [], 60)[0]
    os.close(leftover)


TOO_LONG = b"too long"


@each_case("at_once", [1, 3, 11, 1000])
@each_case(
    ("received", "lines"),
    [
        (b"one\ntwo\n\nwithout an end", [b"one", b"two", b"", TOO_LONG]),
        (b"just a ten\nmore than ten\nshort\n", [b"just a ten", TOO_LONG, b"short"]),
        (b"x" * 1000 + b"\nnext\n" + b"y" * 1000 + b"\n", [TOO_LONG, b"next", TOO_LONG]),
        (b"x" * 15 + b" tail\nnext\nre", [TOO_LONG, b"next"]),
    ],
)
def test_a_line_over_the_limit_is_dropped_whole(received: bytes, lines: list[bytes], at_once: int) -> None:
    """A line over the limit is dropped and reported once, however its bytes arrive."""
    split: list[bytes] = []
    splitter = LineSplitter(10, split.append, lambda: split.append(TOO_LONG))
    for begin in range(0, len(received), at_once):
        splitter.feed(received[begin : begin + at_once])
    assert split == lines


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
