"""Runs whose ranks hang, crash or flood the agent: each ends in time with its outcome and leaves nothing behind."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import mmap
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from loops import turn_until
from rank_runs import JUDGE, QUICK, STARTED, Probing, have_ended, make_plan, make_script_plan, start_run

import gpumon
from gpumon.probe.core.frames import SETUP_STAGES, Progress
from gpumon.probe.core.plan import Plan, Run
from gpumon.probe.core.preflight import Skip
from gpumon.probe.core.result import ProbeResult
from gpumon.runner.containment import sweep
from gpumon.runner.probe_host import read_nccl_conf
from gpumon.runner.ranks import Ranks
from gpumon.supervisor.loop import Loop

pytestmark = pytest.mark.slow


STAGES = ("start", "import", "join", "allocate", "warm_up", "measure", "check", "locate", "end")
ARRIVE = """
stage = {stage!r}
print("NCCL WARN the last words at " + stage, flush=True)
if stage in ("allocate", "warm_up", "measure", "check"):
    send(stage=stage, index=0, sizes=1, size=1024)
elif stage != "start":
    send(stage=stage)
"""
GOOD = """
for line in sys.stdin:
    step = json.loads(line)
    for size in step.get("sizes", ()):
        send(step=step["number"], size=size, seconds=[1e-3], wrong=0)
    if step["do"] == "end":
        send(done=True)
        break
    send(stepped=step["number"] + 1)
"""
BAD = 'if orders["rank"] == 1:\n    send(stage="measure", step="x")\n'
NOBODY = 65534
WAIT = "time.sleep(600)\n"
CRASH = "if orders['rank'] == 1:\n    os.kill(os.getpid(), signal.SIGSEGV)\n" + WAIT
SHARE = """
import mmap, tempfile
descriptor, path = tempfile.mkstemp(prefix="nccl-", dir="/dev/shm")
os.truncate(descriptor, 4096)
shared = mmap.mmap(descriptor, 4096)
os.close(descriptor)
print(path, flush=True)
"""


@pytest.fixture
def probing() -> Probing:
    return Probing()


@pytest.fixture
def torchless(tmp_path: Path) -> str:
    """Return an interpreter with a stub of torch whose first use hangs."""
    folder = tmp_path / "stub" / "torch"
    (folder / "distributed").mkdir(parents=True)
    (folder / "__init__.py").write_text('import time\n__version__ = "2.6.0"\ndef device(*_): time.sleep(600)\n')
    (folder / "distributed" / "__init__.py").touch()
    path = tmp_path / "python"
    packages = shlex.quote(str(folder.parent))
    path.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={packages} exec {shlex.quote(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def results(plans: Mapping[str, Plan]) -> Mapping[str, ProbeResult]:
    """Return the results of one run for each plan, all in parallel, because the runs mostly wait."""
    loop, finished = Loop(), dict[str, ProbeResult]()
    for name, plan in plans.items():
        run = Run(id=name, trigger="request", started=time.time())
        start_run(Ranks(loop), run, [plan], JUDGE, on_result=lambda result: finished.update({result.id: result}))
    turn_until(loop, lambda: len(finished) == len(plans))
    return finished


def at_every_stage(folder: Path, end: str, deadline: float) -> Mapping[str, ProbeResult]:
    return results(
        {
            stage: make_script_plan(folder / f"{stage}.py", ARRIVE.format(stage=stage) + end, deadline=deadline)
            for stage in STAGES
        }
    )


def test_a_hang_at_any_stage_is_a_timeout_that_names_it(tmp_path: Path) -> None:
    """Hanging ranks are ended at the deadline; the hint has the stage and the log the last output."""
    for stage, result in at_every_stage(tmp_path, WAIT, STARTED).items():
        assert (result.outcome, result.reason) == ("timeout", stage)
        assert f"rank 1: {stage}" in result.hint
        assert f"the last words at {stage}" in result.log


def test_a_crash_at_any_stage_is_a_failure_that_names_rank_and_stage(tmp_path: Path) -> None:
    """A crash ends the run at once as a failure of the setup, or of the ranks from the first operation on."""
    for stage, result in at_every_stage(tmp_path, CRASH, 120.0).items():
        assert (result.outcome, result.reason) == ("failed", "setup" if stage in SETUP_STAGES else "ranks")
        assert result.hint.startswith(f"Rank 1 at {stage}")
        assert f"signal {signal.SIGSEGV.value}" in result.hint
        assert f"the last words at {stage}" in result.log


def test_too_many_frames_end_the_run(probing: Probing, tmp_path: Path) -> None:
    flood = 'n = 0\nwhile orders["rank"]:\n    n += 1\n    send(stage="measure", index=0, sizes=n, size=n)\n' + WAIT
    result = probing.run(make_script_plan(tmp_path / "worker.py", flood, deadline=100.0))
    assert (result.outcome, result.reason) == ("failed", "ranks")
    assert "too many frames" in result.hint
    assert have_ended(probing.pids)


@pytest.mark.parametrize("script", [BAD + GOOD, GOOD + BAD], ids=["first", "last"])
def test_an_invalid_frame_fails_the_run(probing: Probing, tmp_path: Path, script: str) -> None:
    result = probing.run(make_script_plan(tmp_path / "worker.py", script))
    assert result.outcome == "failed"
    assert "Rank 1 at start: it sent an invalid frame" in result.hint
    assert have_ended(probing.pids)


@pytest.mark.parametrize("end", ["hang", "crash", "abort"])
def test_the_agent_deletes_shared_memory_of_ended_ranks(probing: Probing, tmp_path: Path, end: str) -> None:
    last = {"hang": WAIT, "crash": CRASH, "abort": WAIT}[end]
    plan = make_script_plan(tmp_path / "worker.py", SHARE + 'send(stage="measure")\n' + last, deadline=STARTED)
    mapped_paths: set[str] = set()

    def record_mapped(_: Progress) -> None:
        mapped_paths.update(mapped_files(probing.ranks.pids))
        if end == "abort":
            probing.ranks.abort(Skip(reason="busy", hint="a job has come"))

    result = probing.run(plan, record_mapped)
    assert result.outcome == {"hang": "timeout", "crash": "failed", "abort": "skipped"}[end]
    paths = {line for line in result.log.splitlines() if line.startswith("/dev/shm/")} | mapped_paths
    assert paths
    assert not [path for path in paths if Path(path).exists()]


def mapped_files(pids: Iterable[int]) -> Iterator[str]:
    """Yield the NCCL files in /dev/shm that these processes have mapped."""
    for pid in pids:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            path = line.partition("/dev/shm/nccl-")
            if path[1]:
                yield path[1] + path[2]


def test_foreign_shared_memory_is_not_deleted(tmp_path: Path) -> None:
    """Files that are open, mapped, older than the run, links or not of NCCL are not deleted."""
    for name in ("nccl-open", "nccl-mapped", "nccl-left", "torch_12_left", "other"):
        (tmp_path / name).write_bytes(bytes(4096))
    (tmp_path / "nccl-link").symlink_to(tmp_path / "other")
    created = (tmp_path / "nccl-left").stat().st_ctime
    with (tmp_path / "nccl-mapped").open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 4096)
    with (tmp_path / "nccl-open").open("r+b"), mapping:
        assert sweep(tmp_path, since=created + 3600) == ()
        assert sweep(tmp_path, since=created - 3600) == ("nccl-left",)
    assert {path.name for path in tmp_path.iterdir()} == {
        "nccl-open",
        "nccl-mapped",
        "nccl-link",
        "torch_12_left",
        "other",
    }


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_shared_memory_of_a_killed_agent_is_deleted_unless_root_owns_it() -> None:
    """The next agent deletes all NCCL files of its own user, except if that user is root."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        folder = Path(shared)
        folder.chmod(0o777)
        for name, owner in (("nccl-root", 0), ("nccl-own", NOBODY)):
            (folder / name).write_bytes(bytes(4096))
            os.chown(folder / name, owner, owner)
        assert sweep(folder) == ()
        os.seteuid(NOBODY)
        try:
            swept = sweep(folder)
        finally:
            os.seteuid(0)
        assert swept == ("nccl-own",)
        assert [path.name for path in folder.iterdir()] == ["nccl-root"]


NO_SPACE = """
NCCL WARN Error while creating shared memory segment /dev/shm/nccl-7cPTYr (size 9637888), error: No space left on device (28)
"""  # noqa: E501 - a message of NCCL


def test_a_full_dev_shm_is_named_with_its_remedy(probing: Probing, tmp_path: Path) -> None:
    """NCCL's message about a full /dev/shm is in the log, and the hint states the remedy."""
    script = f'send(stage="join")\nprint({NO_SPACE!r}, flush=True)\nsend(error="ncclSystemError")\nsys.exit(1)'
    result = probing.run(make_script_plan(tmp_path / "worker.py", script))
    assert (result.outcome, result.reason) == ("failed", "setup")
    assert "ncclSystemError. Enlarge /dev/shm" in result.hint
    assert NO_SPACE.strip() in result.log


def test_nccl_settings_are_recorded(tmp_path: Path) -> None:
    """The settings have the given variables and the host's nccl.conf under its path, not the user's file."""
    conf = tmp_path / "nccl.conf"
    conf.write_text("# of the site\n\nNCCL_IB_HCA=mlx5\n NCCL_P2P_LEVEL=NVL \n")
    plan = make_plan(QUICK, (), python="python", environment={"NCCL_ALGO": "Tree"}, nccl_conf=read_nccl_conf(conf))
    assert plan.settings["NCCL_ALGO"] == "Tree"
    assert plan.settings["NCCL_CONF_FILE"] == "/dev/null"
    assert plan.settings[str(conf)] == "NCCL_IB_HCA=mlx5\nNCCL_P2P_LEVEL=NVL"
    assert "PATH" not in plan.settings
    assert read_nccl_conf(tmp_path / "absent") == {}
    assert list(read_nccl_conf(tmp_path).values()) == ["# not readable: Is a directory"]


MEET = """
import errno, os
with open(orders["rendezvous"], "r+b") as file:
    file.seek(orders["rank"])
    file.write(b"x")
    file.flush()
    while len(content := os.pread(file.fileno(), 100, 0).strip(bytes(1))) < 2:
        time.sleep(0.01)
print("met", len(content), flush=True)
rank = os.getpid()
if os.fork() == 0:
    os.setuid(65534)
    try:
        os.open(orders["rendezvous"].replace("self", str(rank)), os.O_RDWR)
        print("opened", flush=True)
    except OSError as error:
        print(errno.errorcode[error.errno], flush=True)
    os._exit(0)
os.wait()
send(error="the end")
time.sleep(600)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_ranks_meet_where_no_other_user_can_reach_them(tmp_path: Path) -> None:
    """Each rank writes into the file that both inherit, and a process of another user cannot open it."""
    [result] = results({"1": make_script_plan(tmp_path / "worker.py", MEET)}).values()
    assert result.log.count("met 2") == 2, result.log
    assert result.log.count("EACCES") == 2
    assert "opened" not in result.log


# The worker itself


def test_a_rank_is_the_first_that_the_kernel_kills_for_memory(probing: Probing, torchless: str) -> None:
    """Ranks have the highest oom_score_adj, so the kernel kills them first."""
    scores: set[str] = set()

    def record_scores(progress: Progress) -> None:
        if progress.stage == "import":
            scores.update(Path(f"/proc/{pid}/oom_score_adj").read_text().strip() for pid in probing.ranks.pids)
            probing.ranks.abort(Skip(reason="busy", hint=""))

    probing.run(make_plan(QUICK, (), python=torchless, fault="hang:0:import"), record_scores)
    assert "1000" in scores


GROUPS = Path("/sys/fs/cgroup/memory" if Path("/sys/fs/cgroup/memory").is_dir() else "/sys/fs/cgroup")
LIMIT = {"memory.limit_in_bytes", "memory.max"}
AGENT = """
import os, sys, time
from pathlib import Path
(Path(sys.argv[1]) / "cgroup.procs").write_text(str(os.getpid()))
from gpumon.probe.core.baseline import Judge
from gpumon.probe.core.plan import Run, make_plans
from gpumon.probe.core.probes import PROBES
from gpumon.supervisor.loop import Loop
from gpumon.runner.ranks import Ranks
from gpumon.runner.run import Prepared, ProbeRun, Surroundings
largest = bytearray(b"x") * (120 << 20)
loop = Loop()
plans = make_plans(PROBES["allreduce"], (), python=sys.argv[2])
judge = Judge(probe="allreduce", backend="gloo")
def print_result(result):
    print(result.outcome, result.hint)
    loop.stop()
run = Run(id="one", trigger="request", started=time.time())
surroundings = Surroundings(prepare=lambda: Prepared(plans, judge), on_result=print_result)
ProbeRun(Ranks(loop), run, PROBES["allreduce"], surroundings).start()
loop.run()
"""
EATER = """
eaten = []
while True:
    eaten.append(bytearray(b"x") * (8 << 20))
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """Yield a cgroup with a small memory limit."""
    group = GROUPS / f"gpumon-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip("no control group can be made")
    limits = [path for path in group.iterdir() if path.name in LIMIT]
    try:
        if not limits:
            pytest.skip("the memory of control groups cannot be limited")
        limits[0].write_text(str(250 << 20))
        yield group
    finally:
        for _ in range(100):  # a group is busy for a moment after its last process
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.05)


def test_the_agent_outlives_ranks_that_take_all_memory(small_group: Path, torchless: str, tmp_path: Path) -> None:
    """The kernel kills a rank rather than the larger agent, and the run fails with that cause."""
    (tmp_path / "stub" / "torch" / "__init__.py").write_text(EATER)
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    environment = os.environ | {"PYTHONPATH": str(Path(gpumon.__file__).parents[1])}
    command = [sys.executable, str(script), str(small_group), torchless]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("failed Rank")
    assert "by the kernel if memory ran out" in ran.stdout


def test_ranks_of_torch_that_ignore_sigterm_or_crash_are_ended() -> None:
    faults = {"deaf": "hang:1:measure", "crash": "crash:1:measure"}
    plans = {
        name: make_plan(QUICK, (), python=sys.executable, fault=fault, deadline={"deaf": 12.0}.get(name, 100.0))
        for name, fault in faults.items()
    }
    finished = results(plans)
    assert finished["deaf"].outcome == "timeout"
    assert (finished["crash"].outcome, finished["crash"].reason) == ("failed", "ranks")
    assert finished["crash"].hint.startswith("Rank 1 at measure of ")
    assert f"signal {signal.SIGSEGV.value}" in finished["crash"].hint


@pytest.fixture
def blocked_program(tmp_path: Path) -> Iterator[str]:
    """Yield a program whose open blocks, because another descriptor holds a lease and does not release it."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield str(path)
    except OSError:
        pytest.skip("this file system has no leases")
    finally:
        os.close(descriptor)
        signal.signal(signal.SIGIO, before)


def test_an_interpreter_on_a_hung_file_system_ends_in_a_timeout(probing: Probing, blocked_program: str) -> None:
    """The loop continues, the deadline ends the ranks, and the hint names the file system."""
    turned: list[bool] = []
    probing.loop.call_after(0.0, lambda: turned.append(probing.ranks.running))
    result = probing.run(make_plan(QUICK, (), python=blocked_program, deadline=STARTED))
    assert turned == [True]
    assert (result.outcome, result.reason) == ("timeout", "start"), result
    assert (
        f"Check that the file system of probe.python and its PyTorch answers. Try `{blocked_program} -I" in result.hint
    )
    assert not probing.ranks.pids


NEWER_ARGUMENTS = {"strict", "slots", "kw_only", "encoding_errors", "delete_on_close"}
"""Names of arguments that the standard library has only since Python 3.10 or later."""


def test_the_worker_runs_on_python_3_9() -> None:
    for path in sorted(QUICK.worker.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
        nodes = list(ast.walk(tree))
        passed = {node.arg for node in nodes if isinstance(node, ast.keyword)}
        assert not passed & NEWER_ARGUMENTS, path
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "__future__" in imported or not any(isinstance(node, ast.arg) and node.annotation for node in nodes), (
            path
        )
