"""Reads the evidence in a folder: dumps of the flight recorder, and outputs of `gpumon explain --json`."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gpumon.cli.hang.dump import MAX_BYTES, load, recording, safe_text
from gpumon.cli.hang.evidence import Evidence, RankEvidence, ReadError, Unread
from gpumon.cli.hang.processes import user_name

MAX_FILES = 8192
_RANK = re.compile(r"(\d{1,6})(?:\.\w+)?$")
"""Matches the end of the name of a dump: comm_lib_trace_rank_3, or rank3.json."""
_EVIDENCE = TypeAdapter(Evidence)


def read_folder(folder: Path) -> tuple[list[Evidence], list[Unread]]:
    """Return the evidence about each job in the files of a folder, and the files that cannot be read.

    Outputs name their job. Dumps do not: they are those of the only job with an output, else a job of their own. The
    names of subfolders are taken as names of hosts.
    """
    jobs: dict[str, list[Evidence]] = defaultdict(list)
    unread = []
    for path in sorted(itertools.islice(folder.rglob("*"), MAX_FILES)):
        try:
            for part in _read(path, folder) if path.is_file() else ():  # not a pipe or a device
                jobs[part.job].append(part)
        except (ReadError, OSError) as error:
            name = safe_text(str(path.relative_to(folder)))
            unread.append(Unread(name, getattr(error, "strerror", None) or str(error)))
    if dumps := jobs.pop("", []):
        jobs[next(iter(jobs)) if len(jobs) == 1 else safe_text(str(folder))] += dumps
    return [_merged(name, parts, unread) for name, parts in sorted(jobs.items())], unread


def _merged(job: str, parts: Sequence[Evidence], files: Sequence[Unread]) -> Evidence:
    """Return the evidence about a job from its outputs and, after them, its dumps."""
    rows: dict[int, list[RankEvidence]] = defaultdict(list)
    for each in (each for part in parts for each in part.ranks):
        rows[each.rank].append(each)
    ranks, unread = [], [*files, *(each for part in parts for each in part.unread)]
    for rank, own in sorted(rows.items()):
        recordings = [each.recording for each in own if each.recording]
        ranks.append(replace(own[0], recording=recordings[0] if len(recordings) == 1 else None))
        if len(recordings) > 1:
            unread.append(Unread(f"rank {rank}", "it has several dumps: keep the files of one hang only"))
    size = max((part.size for part in parts if part.size is not None), default=None)
    user = next((part.user for part in parts if part.user), None)
    return Evidence(job, tuple(ranks), tuple(unread), size, user, ending=any(part.ending for part in parts))


def _read(path: Path, folder: Path) -> list[Evidence]:
    with path.open("rb") as file:
        document = load(file.read(MAX_BYTES + 1))
    if isinstance(document, dict) and isinstance(document.get("jobs"), list):  # an output of --json
        try:
            return [_EVIDENCE.validate_python(job["evidence"]) for job in document["jobs"]]
        except (ValidationError, LookupError, TypeError) as error:
            raise ReadError("it is no output of this version of gpumon") from error
    if (match := _RANK.search(path.name)) is None:
        raise ReadError("its name does not end with the number of a rank")
    host = path.relative_to(folder).parts[0] if path.parent != folder else ""
    rank = RankEvidence(int(match[1]), safe_text(host), recording=recording(document))
    return [Evidence("", (rank,), user=user_name(path.stat().st_uid))]
