"""Reads the evidence in a folder: dumps of the flight recorder, and outputs of `gpumon explain --json`."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gpumon.cli.hang.dump import MAX_BYTES, load, recording, safe_text
from gpumon.cli.hang.evidence import Evidence, RankEvidence, ReadError, Unread

MAX_FILES = 8192
_RANK = re.compile(r"(\d{1,6})(?:\.\w+)?$")
"""Matches the end of the name of a dump: comm_lib_trace_rank_3, or rank3.json."""
_EVIDENCE = TypeAdapter(Evidence)


def read_folder(folder: Path) -> Evidence:
    """Return the evidence in the files of a folder and its subfolders, whose names are taken as names of hosts."""
    parts: list[Evidence] = []
    for path in sorted(itertools.islice(folder.rglob("*"), MAX_FILES)):
        try:
            if path.is_file():  # not a pipe or a device
                parts += _read(path, folder)
        except (ReadError, OSError) as error:
            name = safe_text(str(path.relative_to(folder)))
            parts.append(Evidence("", unread=(Unread(name, getattr(error, "strerror", None) or str(error)),)))
    ranks: dict[int, RankEvidence] = {}
    unread = [each for part in parts for each in part.unread]
    for each in (each for part in parts for each in part.ranks):
        before = ranks.get(each.rank)
        if before is not None and before.recording and each.recording:
            unread.append(Unread(f"rank {each.rank}", "it has several dumps: keep the files of one hang only"))
            ranks[each.rank] = replace(before, recording=None)
        elif before is not None and each.pid is None:  # a dump, after an output of --json
            ranks[each.rank] = replace(before, recording=before.recording or each.recording)
        else:
            ranks[each.rank] = replace(each, recording=each.recording or (before.recording if before else None))
    sizes = [part.size for part in parts if part.size is not None]
    ending = any(part.ending for part in parts)
    rows = tuple(ranks[rank] for rank in sorted(ranks))
    return Evidence(safe_text(str(folder)), rows, tuple(unread), max(sizes, default=None), ending=ending)


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
    return [Evidence("", (RankEvidence(int(match[1]), safe_text(host), recording=recording(document)),))]
