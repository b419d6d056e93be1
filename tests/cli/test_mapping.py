"""`gpumon mapping begin` and `end` write and remove the mapping files of a Slurm job, and nothing of other jobs."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sample_reports
from test_health_file import content, write

from gpumon.cli.health_file import CheckError, GpuHealth, NodeHealth
from gpumon.cli.job_gpus import from_job
from gpumon.cli.job_mapping import begin, devices
from gpumon.cli.main import main
from gpumon.clock import boot_clock, boot_id
from gpumon.collectors.host.job_mapping import read_mapping
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.model.allocation import Claim
from gpumon.model.orders import HostOrders

SLURM = {
    "SLURM_JOB_SLUID": "sEKNKTV3WPV500",
    "SLURM_JOB_USER": "kim",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_ACCOUNT": "physics",
    "SLURM_JOB_PARTITION": "gpu",
}


class SlurmHooks:
    """A node whose agent has written its health file, and the commands of its prolog and epilog."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory, self._monkeypatch = folder / "state" / "job-mapping", monkeypatch
        values = json.loads(json.dumps(content(sample_reports.healthy())))
        for number, gpu in enumerate(values["gpus"]):
            gpu["minor"] = str(7 - number)
        self.uuids = [str(gpu["uuid"]) for gpu in values["gpus"]]
        monkeypatch.setenv("GPUMON_HEALTH__FILE", str(write(folder / "health.json", values)))

    def run(self, action: str, job: str, gpus: str = "", **variables: str) -> int:
        for name, value in {"SLURM_JOB_ID": job, "SLURM_JOB_GPUS": gpus, **variables}.items():
            self._monkeypatch.setenv(name, value)
        return main(["mapping", action, "--directory", str(self.directory)])

    @property
    def files(self) -> Mapping[str, str]:
        """Return the content of each mapping file."""
        return {path.name: path.read_text() for path in self.directory.iterdir() if path.is_file()}

    @property
    def described(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "jobs").iterdir())

    def read(self) -> tuple[Claim, ...] | None:
        """Return what the agent reads."""
        turn = Turn("owners", Trees(*[Tree(Path("/"))] * 3), HostOrders(), boot_clock())
        claims = read_mapping(turn, str(self.directory))
        assert not turn.errors.words
        return claims


@pytest.fixture
def hooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmHooks:
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS"):
        monkeypatch.delenv(name, raising=False)
    return SlurmHooks(tmp_path, monkeypatch)


def test_a_job_has_its_files_from_begin_to_end(hooks: SlurmHooks) -> None:
    """Files are named by NVML index, GPUs are found by the minor number, and a file stays empty after the job."""
    assert hooks.run("begin", "17", "0,2", **SLURM) == 0
    assert (hooks.files, hooks.described) == ({"7": "17\n", "5": "17\n"}, ["17.json"])
    side = json.loads((hooks.directory / "jobs" / "17.json").read_text())
    assert abs(side.pop("start") - time.time()) < 3600
    assert side == {
        "job_id": "17",
        "sluid": "sEKNKTV3WPV500",
        "user": "kim",
        "account": "physics",
        "partition": "gpu",
        "boot_id": boot_id(),
        "uuids": [hooks.uuids[7], hooks.uuids[5]],
    }
    [claim] = hooks.read() or ()
    assert (claim.owner.key, claim.owner.user, claim.devices) == ("slurm/17", "kim", (hooks.uuids[7], hooks.uuids[5]))
    assert hooks.run("end", "17") == 0
    assert (hooks.files, hooks.described, hooks.read()) == ({"7": "", "5": ""}, [], ())


def test_the_names_of_users_are_not_public(hooks: SlurmHooks) -> None:
    """dcgm-exporter may read the numbers of jobs, and only the agent's group the rest, whatever the umask is."""
    os.umask(0)
    hooks.run("begin", "17", "0", **SLURM)
    jobs = hooks.directory / "jobs"
    modes = [
        stat.S_IMODE(path.stat().st_mode) for path in (hooks.directory, hooks.directory / "7", jobs, jobs / "17.json")
    ]
    assert modes == [0o755, 0o644, 0o750, 0o640]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another group")
def test_the_group_of_the_agent_reads_the_side_files(hooks: SlurmHooks) -> None:
    """The health file has that group."""
    os.chown(os.environ["GPUMON_HEALTH__FILE"], -1, 54321)
    hooks.run("begin", "17", "0")
    jobs = hooks.directory / "jobs"
    assert [path.stat().st_gid for path in (jobs, jobs / "17.json")] == [54321, 54321]


def test_jobs_share_a_gpu(hooks: SlurmHooks) -> None:
    """Each job has its line, and its end leaves those of the others, also of another prolog."""
    hooks.directory.mkdir(parents=True)
    (hooks.directory / "7").write_text("4")
    for job in ("17", "18", "117"):
        hooks.run("begin", job, "0")
    assert hooks.files == {"7": "4\n17\n18\n117\n"}
    hooks.run("end", "17")
    assert (hooks.files, hooks.described) == ({"7": "4\n18\n117\n"}, ["117.json", "18.json"])


def test_a_requeued_job_leaves_nothing_of_its_first_run(hooks: SlurmHooks) -> None:
    """Also if no epilog ran, or ran twice."""
    hooks.run("begin", "17", "0,1", SLURM_JOB_SLUID="first")
    hooks.run("begin", "17", "1,2", SLURM_JOB_SLUID="second")
    assert hooks.files == {"7": "", "6": "17\n", "5": "17\n"}
    [claim] = hooks.read() or ()
    assert claim.owner.slurm_sluid == "second"
    assert [hooks.run("end", "17"), hooks.run("end", "17")] == [0, 0]
    assert (set(hooks.files.values()), hooks.described) == ({""}, [])


def test_jobs_of_an_earlier_boot_are_removed(hooks: SlurmHooks) -> None:
    """A job that begins on the same GPU does not revive them."""
    hooks.run("begin", "16", "0,1")
    for path in (hooks.directory / "7", hooks.directory / "6", hooks.directory / "jobs" / "16.json"):
        os.utime(path, (time.time() - boot_clock() - 1,) * 2)
    hooks.run("begin", "17", "0")
    assert (hooks.files, hooks.described) == ({"7": "17\n", "6": ""}, ["17.json"])


def test_jobs_begin_at_the_same_time(hooks: SlurmHooks) -> None:
    """A lock keeps each job's line."""
    hooks.run("begin", "1", "0")
    jobs = [str(number) for number in range(2, 30)]
    threads = [
        threading.Thread(target=begin, args=(str(hooks.directory), job, ["7"], {"job_id": job}, os.getgid()))
        for job in jobs
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(hooks.files["7"].split(), key=int) == ["1", *jobs]


@pytest.mark.parametrize("job", ["", "../17", "17.0", "²", "1" * 30])
def test_a_job_id_is_a_number(hooks: SlurmHooks, capsys: pytest.CaptureFixture[str], job: str) -> None:
    """It becomes the name of a file."""
    for action in ("begin", "end"):
        assert hooks.run(action, job, "0") == 2
        assert f"SLURM_JOB_ID is {job!r}, not the id of a job" in capsys.readouterr().err
    assert not hooks.directory.exists()


def test_a_gpu_that_is_not_found_writes_nothing(hooks: SlurmHooks, capsys: pytest.CaptureFixture[str]) -> None:
    assert hooks.run("begin", "17", "0,9") == 2
    assert "SLURM_JOB_GPUS: '9' is no GPU of this node" in capsys.readouterr().err
    assert not hooks.directory.exists()


def test_the_end_of_a_job_without_a_directory_is_no_error(hooks: SlurmHooks) -> None:
    assert hooks.run("end", "17") == 0
    assert not hooks.directory.exists()


@pytest.mark.parametrize("link", ["", "jobs", "7", "jobs/.7.new", "jobs/17.json"])
def test_no_symbolic_link_is_followed(hooks: SlurmHooks, tmp_path: Path, link: str) -> None:
    """Root may write into a directory of the agent's user, who must not make it write elsewhere."""
    target = tmp_path / "target"
    path = hooks.directory / link
    path.parent.mkdir(parents=True)
    if link in {"", "jobs"}:
        target.mkdir()
    else:
        target.write_text("kept")
    path.symlink_to(target)
    hooks.run("begin", "17", "0")
    hooks.run("end", "17")
    assert list(target.iterdir()) == [] if target.is_dir() else target.read_text() == "kept"


MIG = ("MIG-bbbb1111-0000", "MIG-bbbb2222-0000")
GPU = GpuHealth(number=1, uuid="GPU-1", bus_id="00000000:10:00.0", nvml_index=0, migs=MIG, gpu_instances=(3, 11))


@pytest.mark.parametrize(
    ("name", "gpu", "expected"),
    [
        ("MIG-bbbb2222", {}, [(MIG[1], "0.11")]),
        ("mig-bbbb1111-0000,MIG-bbbb1111", {}, [(MIG[0], "0.3")]),
        ("MIG-bbbb1111", {"gpu_instances": ()}, [(MIG[0], None)]),
        ("MIG-bbbb1111", {"nvml_index": None}, [(MIG[0], None)]),
        ("GPU-1", {}, [("GPU-1", "0")]),
        ("GPU-1", {"nvml_index": None}, [("GPU-1", None)]),
    ],
)
def test_a_mapping_file_is_that_of_a_gpu_or_instance(name: str, gpu: dict[str, Any], expected: list[Any]) -> None:
    """A GPU that the driver does not list, and an instance whose id is unknown, have a uuid and no file."""
    health = NodeHealth(gpus=(GPU._replace(**gpu),))
    assert devices(from_job((), {"CUDA_VISIBLE_DEVICES": name}), health) == expected


def test_an_ambiguous_instance_is_refused() -> None:
    with pytest.raises(CheckError, match="'MIG-bbbb' is not exactly one MIG instance of GPU 1"):
        devices(from_job((), {"CUDA_VISIBLE_DEVICES": "MIG-bbbb"}), NodeHealth(gpus=(GPU,)))
