"""`gpumon explain`: its output, exit codes and bundle."""

from __future__ import annotations

import json
import os
import pwd
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.cli.explain import document, mask, text
from gpumon.cli.hang.evidence import CodeLine, Evidence, RankEvidence, Unread
from gpumon.cli.hang.judge import conclude
from gpumon.cli.main import main

RECORDINGS = Path(__file__).parent / "hang" / "recordings"


def unpack(file: Path) -> dict[str, str]:
    """Return the members of a bundle."""
    with tarfile.open(file) as archive:
        texts = {Path(member.name).name: archive.extractfile(member) for member in archive}
        return {name: stream.read().decode() for name, stream in texts.items() if stream is not None}


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    """A folder with the dumps of a recorded job."""
    folder = tmp_path / "dumps"
    folder.mkdir()
    for rank, content in json.loads((RECORDINGS / "sleeping_in_pairs.json").read_text()).items():
        (folder / f"rank{rank}.json").write_text(json.dumps(content))
    return folder


def test_the_conclusion_comes_first(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then the evidence, in the fewest lines."""
    assert main(["explain", "--from", str(dumps)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{dumps}: held up by rank 2"
    assert lines[1] == "  rank 2:"
    assert lines[2].startswith("    it did not enqueue gloo:all_reduce ")
    assert lines[3].startswith("  The others wait in gloo:all_reduce ")
    assert lines[4] == "Evidence:"
    assert len(lines) == 9


def test_json_is_read_again(dumps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output of a host is evidence for --from on another one."""
    assert main(["explain", "--from", str(dumps), "--json"]) == 0
    shown = capsys.readouterr().out
    (job,) = json.loads(shown)["jobs"]
    assert [each["rank"] for each in job["conclusion"]["suspects"]] == [2]
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "n1.json").write_text(shown)
    assert main(["explain", "--from", str(tmp_path / "again"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"][0]["evidence"]["ranks"] == job["evidence"]["ranks"]


def test_no_suspect_is_exit_code_1(dumps: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The dump of the culprit is missing: it is named as not read, not as the culprit."""
    for rank in (2, 3):
        (dumps / f"rank{rank}.json").unlink()
    assert main(["explain", "--from", str(dumps)]) == 1
    assert ": no rank can be named: " in capsys.readouterr().out


@each_case(
    "arguments, message",
    [
        (["--from", "/no/folder"], "--from /no/folder: it is no folder"),
        (["4711", "--from", "/"], "give JOB or --from, not both"),
        (["no-such-container"], "no rank of job 'no-such-container' runs on this host: give the id of a process of"),
        (["pod/ml/no-such-pod"], "(gpumon explain PID), or no JOB for all jobs on this host"),
        (["--from", str(Path(__file__).parents[1] / "config")], "no dump of a flight recorder can be read (test_"),
        (["--from", "/proc/1/net", "--bundle", "/proc/x"], "--bundle /proc/x: "),
    ],
)
def test_nothing_to_explain_is_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the reason."""
    assert main(["explain", *arguments]) == 2
    output = capsys.readouterr()
    assert (message in output.err, output.out) == (True, "")


def test_the_bundle_masks_user_names(dumps: Path, tmp_path: Path) -> None:
    """Those in home directories, and those of the users of the job; an existing file is not overwritten."""
    file = tmp_path / "case.tar.gz"
    stack = [{"file": "/home/alice/train.py", "line": 3, "function": "step"}]
    rank = {"rank": 0, "host": "n1", "pid": 4711, "stack": stack}
    output = {"jobs": [{"evidence": {"job": "job", "ranks": [rank]}}]}
    (dumps / "n1.json").write_text(json.dumps(output))
    assert main(["explain", "--from", str(dumps), "--bundle", str(file)]) == 0
    contents = unpack(file)
    assert set(contents) == {"explain.json", "explain.txt"}
    assert all("alice" not in content and "/home/USER/train.py" in content for content in contents.values())
    assert main(["explain", "--from", str(dumps), "--bundle", str(file)]) == 2
    own = pwd.getpwuid(0).pw_name
    assert mask(f"/scratch/{own}/x {own}er", [own]) == f"/scratch/USER/x {own}er"


@each_case(
    ("user", "shown", "masked"),
    [
        ("ann@corp.org", "/data/corp.org/ann/train.py", "/data/corp.org/USER/train.py"),
        ("CORP\\ann", json.dumps("by CORP\\ann"), '"by USER"'),
        ("ann", "/scratch/ann_runs/x /scratch/anna/x", "/scratch/USER_runs/x /scratch/anna/x"),
        ("@corp.org", "/data/x", "/data/x"),
        ("jörg", json.dumps("/data/jörg/x"), '"/data/USER/x"'),
    ],
)
def test_each_form_of_a_user_name_is_masked(user: str, shown: str, masked: str) -> None:
    """With its domain or without, in JSON or not, also as a part of a folder's name."""
    assert mask(shown, [user]) == masked


@each_case("arguments", [["--ras", "nonsense"], ["--ras", "4711"], ["--ras", "n1:http"], ["4711", "--ras=:28028"]])
def test_an_address_of_ras_has_a_host_and_a_port(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A JOB after --ras is not taken for an address."""
    with pytest.raises(SystemExit) as exited:
        main(["explain", *arguments])
    assert exited.value.code == 2
    remedy = "is not HOST:PORT, such as localhost:28028. JOB comes before it: gpumon explain 4711 --ras"
    assert remedy in capsys.readouterr().err


@each_case("output", [False, True])
def test_the_bundle_of_a_folder_masks_the_user_of_the_job(dumps: Path, tmp_path: Path, *, output: bool) -> None:
    """An output names the user. The user of a job with dumps only is the owner of their files."""
    user = "plantedmallory" if output else pwd.getpwuid(os.getuid()).pw_name
    file, stack = tmp_path / "case.tar.gz", (CodeLine(f"/scratch/{user}/train.py", 3, "step"),)
    live = Evidence("job", (RankEvidence(0, "n1", 4711, "S", stack=stack),), user=user)
    content = json.loads((dumps / "rank0.json").read_text())
    content["entries"][-1]["frames"] = [{"filename": stack[0].file, "line": 3, "name": "step"}]
    (dumps / "rank0.json").write_text(json.dumps(content))
    if output:
        (dumps / "n1.json").write_text(json.dumps(document([live], [conclude(live)])))
    assert main(["explain", "--from", str(dumps), "--bundle", str(file)]) == 0
    contents = unpack(file)
    assert all(user not in content and "/scratch/USER/train.py" in content for content in contents.values())


def test_an_output_of_several_jobs_is_read_as_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A healthy job on the host of a stopped one remains apart from it, and its ranks are not named."""
    healthy = Evidence("b", tuple(RankEvidence(each, "n1", 40 + each, "S") for each in range(4)), size=4)
    stopped = Evidence("a", (RankEvidence(0, "n1", 50, "T"), RankEvidence(1, "n1", 51, "S")), size=2)
    other = Evidence("b", (RankEvidence(4, "n2", 44, "S"),), size=5)
    jobs = [stopped, healthy]
    (tmp_path / "n1.json").write_text(json.dumps(document(jobs, [conclude(job) for job in jobs])))
    (tmp_path / "n2.json").write_text(json.dumps(document([other], [conclude(other)])))
    assert main(["explain", "--from", str(tmp_path), "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["jobs"]
    assert [(each["rank"], each["pid"]) for each in first["conclusion"]["suspects"]] == [(0, 50)]
    assert len(first["evidence"]["ranks"]) == 2
    assert second["conclusion"]["suspects"] == []
    assert [(each["rank"], each["host"]) for each in second["evidence"]["ranks"]][3:] == [(3, "n1"), (4, "n2")]


def test_what_was_not_read_and_what_to_set_come_last() -> None:
    """And a long list is cut."""
    ranks = tuple(RankEvidence(each, "n1", each, "S") for each in range(70))
    job = Evidence("job", ranks, (Unread("rank 3", "worker server: timed out"),))
    lines = list(text(job, conclude(job)))
    assert lines[0] == "job: no rank can be named: no flight recorder was read"
    assert lines[66:69] == ["  and 6 more: see --json", "Not read:", "  rank 3: worker server: timed out"]
    assert lines[69] == "Next time:"
    assert any("worker server" in line for line in lines[70:])


def test_a_suspect_is_shown_with_its_place() -> None:
    stopped = RankEvidence(1, "n7", 4711, "T", gpu="GPU-a", stack=(CodeLine("/job/train.py", 9, "step"),))
    job = Evidence("job", (RankEvidence(0, "n7", 4710, "S"), stopped))
    assert list(text(job, conclude(job)))[:4] == [
        "job: held up by rank 1, whose process is stopped",
        "  rank 1, host n7, pid 4711, GPU GPU-a:",
        "    it is stopped (state T: SIGSTOP, or a frozen job)",
        "    at /job/train.py:9 in step",
    ]
    moved = replace(job, ranks=(replace(stopped, state="S"),))
    assert conclude(moved).suspects == ()
