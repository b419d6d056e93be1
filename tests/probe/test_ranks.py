"""Real runs with the agent's loop, rank processes, and torch with gloo on the CPU."""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from loops import turn_until
from rank_runs import (
    ALL_REDUCE,
    HANG,
    JUDGE,
    KILLING,
    QUICK,
    STARTED,
    Probing,
    have_ended,
    make_plan,
    make_script_plan,
    start_run,
)
from unkillable import build, held

import gpumon
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.conclusion import LOG_LIMIT
from gpumon.probe.core.frames import Progress
from gpumon.probe.core.plan import CHECKS, Plan, Run
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.remedies import torch_installation
from gpumon.probe.core.result import Measurement, ProbeResult
from gpumon.runner import ranks
from gpumon.runner.containment import SubreaperContainment, environment


@pytest.fixture
def probing() -> Probing:
    return Probing()


@pytest.fixture
def worker(tmp_path: Path) -> Callable[..., Plan]:
    """Return a factory of plans whose ranks run a script that implements the protocol without torch."""

    def make(script: str, *, deadline: float = 20.0) -> Plan:
        return make_script_plan(tmp_path / "worker.py", script, deadline=deadline)

    return make


@pytest.fixture
def interpreter(tmp_path: Path) -> Callable[[str], str]:
    """Return a factory of interpreters: shell scripts in which PYTHON is the interpreter of the tests."""

    def make(script: str) -> str:
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\nPYTHON={shlex.quote(sys.executable)}\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture(scope="module")
def complete() -> tuple[Probing, ProbeResult]:
    """Return the result of a whole run on a node without GPUs."""
    probing = Probing()
    return probing, probing.run(make_plan(ALL_REDUCE, (), python=sys.executable))


def test_rank_ends_with_an_error_after_an_invalid_step() -> None:
    """It does not wait for the deadline of the pass."""
    plan = make_plan(ALL_REDUCE, (), python=sys.executable)
    output, result = os.pipe()
    command = [sys.executable, "-I", str(plan.probe.worker)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[result]) as rank:
        assert rank.stdin is not None
        rank.stdin.write(plan.orders(0, parent=os.getpid(), result=result, rendezvous=result) + b"{\n")
        rank.stdin.flush()
        assert rank.wait(KILLING) == 1
    os.close(result)
    with os.fdopen(output) as frames:
        assert "the agent sent an invalid step" in frames.read()


def test_a_run_measures_every_size_and_checks_its_data(complete: tuple[Probing, ProbeResult]) -> None:
    """Two ranks reduce over gloo: every size is timed, and no element is wrong."""
    _, result = complete
    assert (result.outcome, result.backend, result.ranks, result.wrong_elements) == ("ok", "gloo", 2, 0), result
    assert tuple(measurement.size for measurement in result.measurements) == ALL_REDUCE.cpu.sizes
    assert result.versions["torch"].startswith("2.")
    for measurement in result.measurements:
        assert measurement.iterations == 20
        assert measurement.raw_value == pytest.approx(measurement.size / measurement.latency_seconds["p50"])
        assert measurement.value == pytest.approx(measurement.raw_value)  # 2(n-1)/n is 1 for two ranks
        assert (
            0
            < measurement.latency_seconds["p50"]
            <= measurement.latency_seconds["p95"]
            <= measurement.latency_seconds["p99"]
        )


def test_a_process_that_a_rank_leaves_in_another_session_ends_with_the_run(
    probing: Probing, worker: Callable[..., Plan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cgroup the agent inherits and kills the process, even if it has dropped its environment."""
    monkeypatch.setattr(ranks, "make_containment", SubreaperContainment)
    leave = """
import subprocess, pathlib
leftover = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True, stdin=subprocess.DEVNULL)
pathlib.Path(__file__).with_name(f"leftover-{orders['rank']}").write_text(str(leftover.pid))
"""
    assert probing.run(worker(leave)).outcome == "failed"
    assert have_ended({int((tmp_path / f"leftover-{rank}").read_text()) for rank in range(2)})


def test_a_run_reports_its_progress(complete: tuple[Probing, ProbeResult]) -> None:
    """Progress starts before torch is imported and never decreases."""
    probing, _ = complete
    stages = dict.fromkeys(progress.stage for progress in probing.progress if progress.stage != "start")
    assert list(stages)[:3] == ["import", "join", "allocate"]
    ratios = [progress.ratio for progress in probing.progress]
    assert ratios == sorted(ratios)
    assert ratios[-1] == 1.0


def test_a_run_leaves_no_process(complete: tuple[Probing, ProbeResult]) -> None:
    """All ranks are reaped when the result arrives."""
    probing, _ = complete
    assert len(probing.pids) == 2
    assert have_ended(probing.pids)
    assert not probing.ranks.pids


@pytest.mark.slow
def test_a_corrupt_element_is_counted_on_every_rank(probing: Probing) -> None:
    """A wrong element of one rank is counted on each rank at each size, and on the peer of its pair."""
    result = probing.run(make_plan(QUICK, (), python=sys.executable, fault="corrupt:1"))
    assert (result.outcome, result.wrong_elements) == ("wrong", 2 * CHECKS * len(QUICK.cpu.sizes) + 1), result
    assert [measurement.wrong_elements for measurement in result.measurements] == [2 * CHECKS] * 2
    assert result.location is not None
    assert result.location.ranks == (1,)


@pytest.mark.slow
def test_one_corrupt_operation_among_many_is_found(probing: Probing) -> None:
    """A rank that sends one wrong element in a single operation is found: a fault of the hardware may come and go."""
    result = probing.run(make_plan(QUICK, (), python=sys.executable, fault="corrupt:1:13"))
    assert (result.outcome, result.wrong_elements) == ("wrong", 2), result


@pytest.mark.slow
def test_an_error_of_the_judge_fails_only_the_run(probing: Probing, caplog: pytest.LogCaptureFixture) -> None:
    """An exception of the judge fails the run with the error as hint, and the agent continues."""

    def fail(_: Measurement) -> None:
        raise IndexError("a mistake of ours")

    judge = Judge(probe="allreduce", backend="gloo", expected=fail)
    result = probing.run(make_plan(QUICK, (), python=sys.executable), judge=judge)
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert "a mistake of ours" in result.hint
    assert [record.exc_info is not None for record in caplog.records if "cannot judge" in record.message] == [True]
    assert have_ended(probing.pids)


@pytest.mark.slow
def test_gpus_without_cuda_fail_in_setup(probing: Probing) -> None:
    """A torch that cannot use the GPUs fails the run in the setup with torch's error."""
    result = probing.run(make_plan(QUICK, ("GPU-a", "GPU-b"), python=sys.executable))
    assert (result.outcome, result.reason, result.backend) == ("failed", "setup", "nccl"), result
    assert "CUDA" in result.hint
    assert "Traceback" in result.log


PARENT = """
import sys, time
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import PROBES
from gpumon.supervisor.loop import Loop
from gpumon.runner.ranks import Ranks
from gpumon.runner.run import Prepared, ProbeRun, Surroundings
loop = Loop()
ranks = Ranks(loop)
def print_pids(progress):
    if progress.stage == "warm_up":
        print(*ranks.pids, flush=True)
plans = make_plans(PROBES["allreduce"], (), python=sys.executable, fault="sleep:1:60")
judge = Judge(probe="allreduce", backend="gloo")
run = Run(id="one", trigger="request", started=time.time())
surroundings = Surroundings(prepare=lambda: Prepared(plans, judge), on_progress=print_pids, on_result=print)
ProbeRun(ranks, run, PROBES["allreduce"], surroundings).start()
loop.run()
"""


def test_ranks_listen_on_loopback_alone_and_die_with_the_agent(tmp_path: Path) -> None:
    """Ranks listen only on the loopback address, and SIGKILL of the agent ends them."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = os.environ | {"PYTHONPATH": str(Path(gpumon.__file__).parents[1])}
    with subprocess.Popen([sys.executable, script], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        ends = [os.pidfd_open(pid) for pid in pids]
        listening = set.union(*(listening_addresses(pid) for pid in pids))
        parent.kill()
    assert len(pids) == 2
    assert listening == {"0100007F"}
    for end in ends:
        assert select.select([end], [], [], 60)[0], "a rank outlived the agent"
        os.close(end)


def listening_addresses(pid: int) -> set[str]:
    """Return the local addresses, in the kernel's hexadecimal notation, on which a process listens."""
    links = (entry.readlink() for entry in Path(f"/proc/{pid}/fd").iterdir())
    sockets = {str(link).strip("socket:[]") for link in links if str(link).startswith("socket:")}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in sockets}


@pytest.mark.slow
@pytest.mark.parametrize("stopped", [False, True])
def test_a_rank_that_ignores_sigterm_is_killed(probing: Probing, worker: Callable[..., Plan], *, stopped: bool) -> None:
    def stop(_: Progress) -> None:
        for pid in probing.ranks.pids:
            os.kill(pid, signal.SIGSTOP)

    deaf = worker("signal.signal(signal.SIGTERM, signal.SIG_IGN)" + HANG, deadline=STARTED)
    result = probing.run(deaf, stop if stopped else lambda _: None)
    assert result.outcome == "timeout"
    assert have_ended(probing.pids)


@pytest.mark.slow
def test_a_rank_that_cannot_be_killed_is_abandoned_and_named(
    probing: Probing, worker: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The result names an unkillable rank without waiting for it; its pid remains listed until it ends."""
    monkeypatch.setattr(ranks, "KILL_PATIENCE", 0.2)
    program = build(tmp_path)
    with ExitStack() as holders:

        def hold(_: Progress) -> None:
            for pid in probing.ranks.pids - held_pids:
                holders.enter_context(held(program, pid))
                held_pids.add(pid)

        held_pids: set[int] = set()
        result = probing.run(worker(HANG, deadline=STARTED), hold)
        assert (result.outcome, result.reason) == ("timeout", "unkillable")
        stuck = probing.ranks.unkillable
        assert set(stuck) == held_pids == probing.ranks.pids
        assert all(str(pid) in result.hint for pid in stuck)
        assert len(stuck) == 2
    turn_until(probing.loop, lambda: not probing.ranks.unkillable)
    assert len(probing.results) == 1


def test_a_killed_rank_is_named_and_the_others_are_ended(probing: Probing, worker: Callable[..., Plan]) -> None:
    result = probing.run(
        worker("""
send(stage="measure", index=0, sizes=1, size=1024)
if orders["rank"] == 1:
    os.kill(os.getpid(), signal.SIGKILL)
send(error="connection closed by peer")
time.sleep(60)
""")
    )
    assert (result.outcome, result.reason) == ("failed", "ranks")
    assert "Rank 1 at measure of 1024 bytes: it was killed (SIGKILL)" in result.hint
    assert have_ended(probing.pids)


def test_a_flood_of_output_is_cut_to_its_tail(probing: Probing, worker: Callable[..., Plan]) -> None:
    """Only the end of a long output is kept."""
    result = probing.run(
        worker("""
for _ in range(512):
    print("x" * 65536)
print("last words", flush=True)
sys.exit(1)
""")
    )
    assert result.outcome == "failed"
    assert len(result.log) < LOG_LIMIT + 100
    assert result.log.endswith("last words")


def test_a_result_line_without_end_fails_the_run(probing: Probing, worker: Callable[..., Plan]) -> None:
    result = probing.run(worker('os.write(orders["result"], b"x" * 200_000)\nsys.exit(0)'))
    assert result.outcome == "failed"
    assert "invalid frame" in result.hint


PRINT_ENVIRONMENT = """#!/bin/sh
tr '\\0' '\\n' < /proc/$$/environ
grep SigIgn /proc/$$/status
ls /proc/$$/fd
exit 1
"""
SHELL_DESCRIPTOR = "10"
"""Descriptor from which the shell reads its script."""


def test_an_interpreter_inherits_only_the_given_environment(
    probing: Probing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter has only the given variables and descriptors, and ignores no signal."""
    python = tmp_path / "python"
    python.write_text(PRINT_ENVIRONMENT)
    python.chmod(0o755)
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    plan = make_plan(QUICK, (), python=str(python))
    log = probing.run(plan).log
    for output in log.removeprefix("rank 0:\n").split("\nrank 1:\n"):
        lines = output.splitlines()
        given = dict(line.split("=", 1) for line in lines if "=" in line)
        assert given == {**plan.environment, **environment()}
        ignored = int(next(line for line in lines if line.startswith("SigIgn")).split()[1], 16)
        assert not ignored & sum(1 << number - 1 for number in (signal.SIGPIPE, signal.SIGXFSZ))
        descriptors = {line for line in lines if line.isdigit()} - {"0", "1", "2", SHELL_DESCRIPTOR}
        assert len(descriptors) == 2, descriptors


def test_a_run_leaves_no_descriptor(probing: Probing, worker: Callable[..., Plan]) -> None:
    before = open_files()
    probing.run(worker('send(error="no")\nsys.exit(1)'))
    assert not open_files() - before


def open_files() -> set[str]:
    """Return the open files of this process, without the descriptor of the listing itself."""
    return {str(entry.readlink()) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()}


def test_an_abort_ends_the_run_as_a_skip(probing: Probing, worker: Callable[..., Plan]) -> None:
    """An aborted run is a skip with the given reason; no second run can start during a run."""
    plan = worker(HANG)

    def interrupt(_: Progress) -> None:
        assert probing.current is not None
        with pytest.raises(RuntimeError, match="in progress"):
            start_run(probing.ranks, Run(id="two", trigger="request", started=0.0), [plan], JUDGE, on_result=print)
        probing.current.abort(Skip(reason="busy", hint="a job has come"))

    result = probing.run(plan, interrupt)
    assert (result.outcome, result.reason, result.hint) == ("skipped", "busy", "a job has come")
    assert have_ended(probing.pids)


def test_an_interpreter_without_torch_is_a_skip(probing: Probing, interpreter: Callable[[str], str]) -> None:
    """A run without torch is skipped, and the hint names the key and the install command."""
    python = interpreter('exec "$PYTHON" -S "$@"')
    result = probing.run(make_plan(QUICK, (), python=python))
    assert (result.outcome, result.reason, result.ranks) == ("skipped", "no_torch", 0), result
    assert f"{python} -m pip install 'torch>=" in result.hint
    assert "probe.python" in result.hint


def test_torch_is_not_installed_with_a_pip_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of the package has no pip: the hint creates another environment."""
    monkeypatch.setattr("gpumon.probe.core.remedies.find_spec", lambda _: None)
    assert torch_installation(sys.executable).startswith("sudo python3 -m venv /opt/torch && ")
    assert torch_installation("/opt/torch/bin/python").startswith("/opt/torch/bin/python -m pip")


def test_a_broken_torch_is_a_failure_in_setup(
    probing: Probing, interpreter: Callable[[str], str], tmp_path: Path
) -> None:
    """A torch that cannot be imported fails the run with the error and a command that shows it."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('raise OSError("libcudart.so.12: cannot open")')
    python = interpreter(f'shift\nPYTHONPATH={shlex.quote(str(tmp_path))} exec "$PYTHON" -S "$@"')
    result = probing.run(make_plan(QUICK, (), python=python))
    assert (result.outcome, result.reason) == ("failed", "setup"), result
    assert "libcudart.so.12" in result.hint
    assert "-I -c 'import torch'" in result.hint


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ("/nonexistent/python", "No such file or directory: '/nonexistent/python'. Set probe.python to"),
        ("/usr/bin/\0", "embedded null byte"),
        ("/", "Permission denied: '/'. Set probe.python to"),
        (
            "/bin/true",
            "probe.python must be Python 3.9 or later with PyTorch: try `/bin/true -I --version`.",
        ),
        ("/bin/cat", "ended with status 1 without a result. probe.python must be Python 3.9 or later"),
    ],
)
def test_an_invalid_interpreter_is_a_failure_in_setup(probing: Probing, python: str, words: str) -> None:
    """A probe.python that is absent, a folder or another program fails the run, and the hint names the problem."""
    result = probing.run(make_plan(QUICK, (), python=python))
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert words in result.hint


def test_a_limit_of_threads_is_named(probing: Probing, worker: Callable[..., Plan]) -> None:
    """A rank that cannot start a thread has a valid interpreter, although it ends before its first stage."""
    result = probing.run(worker('print("RuntimeError: can\'t start new thread", flush=True)\nsys.exit(1)'))
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert "TasksMax" in result.hint
    assert "probe.python" not in result.hint


def test_an_old_torch_is_named_in_the_failure(probing: Probing, worker: Callable[..., Plan]) -> None:
    failing = 'send(versions={"torch": "2.5.1+cu124"})\nsend(stage="join")\nsend(error="TypeError: no")\nsys.exit(1)'
    result = probing.run(worker(failing))
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert "TypeError: no. PyTorch 2.5.1+cu124 is older than the 2.6 that the probe needs." in result.hint


def test_an_interpreter_that_does_not_exec_is_refused(probing: Probing, interpreter: Callable[[str], str]) -> None:
    """A rank whose parent is not the agent ends at once, because it could outlive the agent."""
    python = interpreter('"$PYTHON" "$@"\nexit $?')
    result = probing.run(make_plan(QUICK, (), python=python))
    assert (result.outcome, result.reason) == ("failed", "setup"), result
    assert "must exec" in result.hint
