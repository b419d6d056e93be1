"""Evidence in a folder: dumps and outputs of several hosts."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

from each_case import each_case

from gpumon.cli.explain import document
from gpumon.cli.hang.dump import load
from gpumon.cli.hang.evidence import Evidence, RankEvidence
from gpumon.cli.hang.folder import read_folder
from gpumon.cli.hang.judge import conclude

RECORDINGS = Path(__file__).with_name("recordings")


def write_dumps(folder: Path) -> None:
    """Write the dumps of a recorded job of two hosts, as pickles and as JSON, beside files that are no dumps."""
    for rank, content in json.loads((RECORDINGS / "sleeping_in_pairs.json").read_text()).items():
        host = folder / f"n{int(rank) // 2}"
        host.mkdir(exist_ok=True)
        (host / f"comm_lib_trace_rank_{rank}").write_bytes(pickle.dumps(content, protocol=2))
    (folder / "n0" / "comm_lib_trace_rank_0").rename(folder / "n0" / "rank0.json")
    (folder / "n0" / "rank0.json").write_text(json.dumps(load((folder / "n0" / "rank0.json").read_bytes())))
    (folder / "job.log").write_text("loss 3.2")
    os.mkfifo(folder / "dump.pipe3")


def test_dumps_of_several_hosts_are_one_job(tmp_path: Path) -> None:
    """Folders are names of hosts; a log is named as unread, and a pipe is not opened."""
    write_dumps(tmp_path)
    [job], unread = read_folder(tmp_path)
    assert [(each.rank, each.host) for each in job.ranks] == [(0, "n0"), (1, "n0"), (2, "n1"), (3, "n1")]
    assert [each.subject for each in unread] == [each.subject for each in job.unread] == ["job.log"]
    assert [each.rank for each in conclude(job).suspects] == [2]


def test_an_output_in_json_completes_a_dump(tmp_path: Path) -> None:
    """It has the process; the dump has the recording."""
    write_dumps(tmp_path)
    live = Evidence("job", (RankEvidence(2, "n1", 4711, "T"),), size=4)
    (tmp_path / "explain.json").write_text(json.dumps(document([live], [conclude(live)])))
    [job], _ = read_folder(tmp_path)
    (rank,) = (each for each in job.ranks if each.rank == 2)
    assert (rank.pid, rank.state, rank.recording is not None, job.size) == (4711, "T", True, 4)


def test_dumps_beside_outputs_of_several_jobs_are_a_job_of_their_own(tmp_path: Path) -> None:
    """Nothing in a dump names its job."""
    write_dumps(tmp_path)
    jobs = [Evidence(name, (RankEvidence(2, "n1", 4711, "T"),)) for name in "ab"]
    (tmp_path / "explain.json").write_text(json.dumps(document(jobs, [conclude(job) for job in jobs])))
    read = {job.job: len(job.ranks) for job in read_folder(tmp_path)[0]}
    assert read == {str(tmp_path): 4, "a": 1, "b": 1}


@each_case("dumps", [1, 2])
def test_two_dumps_of_a_rank_are_not_judged(tmp_path: Path, dumps: int) -> None:
    """Nor are three: all but one are of earlier hangs."""
    write_dumps(tmp_path)
    for name in ("old_2", "older_2")[:dumps]:
        (tmp_path / "n0" / name).write_bytes((tmp_path / "n1" / "comm_lib_trace_rank_2").read_bytes())
    [job], _ = read_folder(tmp_path)
    assert "rank 2" in [each.subject for each in job.unread]
    assert conclude(job).suspects == ()
