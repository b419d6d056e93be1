"""Job mapping files are read as dcgm-exporter reads them, and side files beside them, within bounds."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from gpumon_sim.infiniband import FileTree, open_tree

from gpumon.clock import boot_clock, boot_id
from gpumon.collectors.host.__main__ import trees
from gpumon.collectors.host.job_mapping import MAX_FILES, MAX_LINES, read_mapping
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.model.allocation import MAX_NAME, Claim, Owner
from gpumon.model.orders import HostOrders, Simulation

DIRECTORY = "/var/lib/gpumon/job-mapping"
UUID = "GPU-4d283b86-55c1-15d6-bd1b-c4cdfad97691"
SIDE = {"sluid": "sEKNKTV3WPV500", "user": "kim", "account": "physics", "partition": "gpu", "start": 1.5e9}


class Mapped:
    """A host with a folder of mapping files."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.folder = root / DIRECTORY.strip("/")
        (self.folder / "jobs").mkdir(parents=True)

    def write(self, name: str, text: str, age: float = 0.0) -> None:
        path = self.folder / name
        path.write_text(text)
        os.utime(path, (time.time() - age,) * 2)

    def describe(self, job: str, age: float = 0.0, **values: Any) -> None:
        """Write the side file of a job, with these members instead of the usual ones."""
        self.write(f"jobs/{job}.json", json.dumps({**SIDE, "boot_id": boot_id(), "uuids": [UUID], **values}), age)

    def read(self, booted: float = 100.0) -> tuple[tuple[Claim, ...] | None, str]:
        """Return the claims, and the text of the read errors, of a host that was booted so many seconds ago."""
        turn = Turn("owners", Trees(*[Tree(self._root)] * 3), HostOrders(), booted)
        return read_mapping(turn, DIRECTORY), turn.errors.words

    def jobs(self) -> Mapping[str | None, tuple[str, ...]]:
        claims, errors = self.read()
        assert not errors
        return {claim.owner.slurm_job_id: claim.devices for claim in claims or ()}


@pytest.fixture
def mapped(tmp_path: Path) -> Mapped:
    return Mapped(tmp_path)


def test_a_side_file_describes_a_job(mapped: Mapped) -> None:
    """Its uuids and names replace the numbers in the other files, which need not name the job."""
    owner = Owner(slurm_job_id="17", slurm_sluid="sEKNKTV3WPV500", user="kim", account="physics", slurm_partition="gpu")
    mapped.describe("17")
    for text in ("", "17\n"):
        mapped.write("0", text)
        assert mapped.read() == ((Claim(owner=owner, devices=(UUID,), since=1.5e9),), "")


def test_files_of_another_prolog_name_devices_by_number(mapped: Mapped) -> None:
    """Each job has one claim to all its devices; an empty file is that of a free GPU, and other files are not read."""
    for name, text in {"0": "7\n", "1.3": "7\n8_2\n", "2": "", "10": "8_2", "lock": "9", "1.": "9", "-1": "9"}.items():
        mapped.write(name, text)
    mapped.write("jobs/notes", "none")
    assert mapped.jobs() == {"7": ("0", "1.3"), "8_2": ("1.3", "10")}


def test_a_missing_directory_is_no_error(tmp_path: Path) -> None:
    turn = Turn("owners", Trees(*[Tree(tmp_path)] * 3), HostOrders(), 100.0)
    assert (read_mapping(turn, DIRECTORY), turn.errors.words) == (None, "")
    (tmp_path / "var").write_text("")
    assert (read_mapping(turn, DIRECTORY), turn.errors.words) == (None, "")


def test_an_empty_directory_has_no_claims(mapped: Mapped) -> None:
    assert mapped.read() == ((), "")
    (mapped.folder / "jobs").rmdir()
    assert mapped.read() == ((), "")


def test_what_an_earlier_boot_left_is_void(mapped: Mapped) -> None:
    """Files older than the boot, and side files with another boot id, name no job, and are no error."""
    mapped.write("0", "7\n", age=101)
    mapped.write("1", "8\n", age=99)
    mapped.describe("9", age=101)
    mapped.describe("10", boot_id="another")
    assert mapped.jobs() == {"8": ("1",)}


WRONG: dict[str, tuple[Any, ...]] = {
    "start": (None, "soon", float("nan"), 10**400),
    "uuids": (None, 3, [3], [[3]]),
    "user": (3, [3], "x" * 20_000),
}


@each_case(
    "text",
    [
        *("", "{", "[]", "7", "null", "[" * 10_000, "{}", '{"boot_id": "BOOT"}'),
        *(
            json.dumps({**SIDE, "boot_id": "BOOT", "uuids": [UUID], name: value})
            for name, values in WRONG.items()
            for value in values
        ),
    ],
)
def test_an_invalid_side_file_is_an_error(tmp_path: Path, text: str) -> None:
    """The error names the file; its job and others keep the devices of the numbered files."""
    mapped = Mapped(tmp_path)
    mapped.write("jobs/7.json", text.replace("BOOT", boot_id()))
    mapped.write("0", "7\n8\n")
    claims, errors = mapped.read()
    assert [claim.owner.slurm_job_id for claim in claims or ()] == ["7", "8"]
    assert errors == f"{DIRECTORY}/jobs/7.json: is not a side file of `gpumon mapping begin`"


def test_a_file_that_cannot_be_read_is_an_error(mapped: Mapped) -> None:
    """The other files are read."""
    (mapped.folder / "0").mkdir()
    (mapped.folder / "jobs" / "7.json").mkdir()
    mapped.write("1", "8")
    claims, errors = mapped.read()
    assert [claim.devices for claim in claims or ()] == [("1",)]
    assert errors == f"{DIRECTORY}/jobs/7.json: Is a directory, and 1 more file"


def test_names_of_strangers_are_bounded(mapped: Mapped) -> None:
    mapped.describe("7", user="k\n" * 99, account=None, partition="", uuids=[UUID, "", "\x1b" * 99])
    claims, _ = mapped.read()
    [claim] = claims or ()
    assert len(claim.owner.user or "") == len(claim.devices[1]) == MAX_NAME
    assert all(each.isprintable() for each in (claim.owner.user or "", *claim.devices))
    assert (claim.owner.account, claim.owner.slurm_partition, len(claim.devices)) == (None, None, 2)


@each_case("line", ["", "a b", "é", "x" * (MAX_NAME + 1), "../7", "\x1b[2J", "7\r8", "7,8"])
def test_a_line_that_is_no_job_id_is_an_error(tmp_path: Path, line: str) -> None:
    """The other lines of the file name jobs."""
    mapped = Mapped(tmp_path)
    mapped.write("0", f"1.batch\n{line}\n{'x' * MAX_NAME}\n1.batch\n")
    claims, errors = mapped.read()
    assert [claim.owner.slurm_job_id for claim in claims or ()] == ["1.batch", "x" * MAX_NAME]
    assert errors == f"{DIRECTORY}/0: has a line that is no job id"


def test_files_and_lines_are_bounded(mapped: Mapped) -> None:
    """What is above the maximum is an error and is not read."""
    mapped.write("0", "\n".join(map(str, range(MAX_LINES + 1))))
    claims, errors = mapped.read()
    assert (len(claims or ()), errors) == (MAX_LINES, f"{DIRECTORY}/0: has more than 64 lines")
    mapped.write("0", "")
    for number in range(MAX_FILES):
        mapped.write(f"{number + 1}", str(number))
    claims, errors = mapped.read()
    assert (len(claims or ()), errors) == (MAX_FILES - 1, f"{DIRECTORY}: has more than 1024 files")


def test_a_simulated_node_has_the_mapping_of_its_host(mapped: Mapped, tmp_path: Path) -> None:
    """The directory that the configuration names is not simulated."""
    mapped.describe("17")
    orders = HostOrders(root=str(tmp_path), simulation=Simulation(profile="h100x8", epoch=boot_clock()))
    turn = Turn("owners", trees(orders), orders, 100.0)
    assert [claim.devices for claim in read_mapping(turn, DIRECTORY) or ()] == [(UUID,)]
    assert not turn.root.exists(DIRECTORY)


def test_a_file_has_the_time_of_its_last_change(tmp_path: Path) -> None:
    """A simulated file changes all the time, and a missing file is an error in every tree."""
    (tmp_path / "a").write_text("")
    os.utime(tmp_path / "a", (5, 1_000.5))
    assert Tree(tmp_path).modified("a") == 1_000.5
    assert open_tree("h100x8", scenario=None, epoch=0.0).modified("proc/uptime") >= time.time() - 3600
    for tree in (Tree(tmp_path), FileTree()):
        with pytest.raises(FileNotFoundError):
            tree.modified("missing")
