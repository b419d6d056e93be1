"""`gpumon explain`: explain why a distributed PyTorch job hangs: the rank, the collective and the line of code."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.hang import ras
from gpumon.cli.hang.collect import read_jobs
from gpumon.cli.hang.evidence import Evidence, RankEvidence
from gpumon.cli.hang.folder import read_folder
from gpumon.cli.hang.judge import Conclusion, conclude, line_of_code
from gpumon.cli.support_bundle import add_members, new_bundle
from gpumon.model.printable import printable
from gpumon.outputs.responses.base import Document

NAMED, NONE_NAMED = 0, 1
_REMEDY = ": give the id of a process of the job (gpumon explain PID), or no JOB for all jobs on this host"
MAX_ROWS = 64
"""Maximum number of ranks, and of other lines of a section, in the text output."""
_HOME = re.compile(r"(/(?:home|users)/)[^/\s\"':]+", re.IGNORECASE)


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon explain 4711", "gpumon explain --from /tmp/dumps --json")
    parser.add_argument("job", nargs="?", metavar="JOB", help="Slurm job, container or process id; default: all")
    parser.add_argument("--from", dest="folder", type=Path, metavar="DIR", help="read dumps and --json outputs in DIR")
    parser.add_argument("--json", action="store_true", help="print conclusion and evidence as JSON")
    parser.add_argument("--bundle", type=Path, metavar="FILE", help="write a tar.gz for a vendor, user names masked")
    text = f"ask NCCL's RAS service once (default: {ras.ADDRESS}); this can crash the job: see docs/explain.md"
    parser.add_argument("--ras", nargs="?", type=ras.address, const=ras.ADDRESS, metavar="HOST:PORT", help=text)


def run(args: argparse.Namespace) -> int:
    with contextlib.nullcontext() if args.bundle is None else _bundle(args.bundle) as archive:
        jobs = _read(args)
        conclusions = [conclude(job) for job in jobs]
        ras_lines = () if args.ras is None else ras.query(args.ras)
        shown = json.dumps(document(jobs, conclusions, ras_lines), indent=1)
        lines = "\n\n".join("\n".join(text(*pair)) for pair in zip(jobs, conclusions, strict=True))
        lines += "".join(f"\n{line}" for line in _section("RAS", ras_lines))
        lines = "\n".join(map(printable, lines.split("\n")))
        print(shown if args.json else lines)
        if archive is not None:
            users = {job.user for job in jobs if job.user}
            add_members(archive, {"explain.json": mask(shown, users), "explain.txt": mask(lines, users)})
            print(f"gpumon: wrote {args.bundle}. Read it before you send it: it names hosts.", file=sys.stderr)
    return NAMED if any(each.suspects for each in conclusions) else NONE_NAMED


@contextlib.contextmanager
def _bundle(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with new_bundle(path) as archive:
            yield archive
    except OSError as error:
        raise UserError(f"--bundle {path}: {error.strerror}") from error


def _read(args: argparse.Namespace) -> Sequence[Evidence]:
    if args.folder is None:
        jobs, unread = read_jobs(args.job)
        missing = "no rank of a job runs on this host"
        if args.job is not None:
            missing = f"no rank of job {args.job!r} runs on this host{_REMEDY}"
    elif args.job is not None:
        raise UserError("give JOB or --from, not both")
    elif not args.folder.is_dir():
        raise UserError(f"--from {args.folder}: it is no folder")
    else:
        jobs, unread = read_folder(args.folder)
        missing = f"--from {args.folder}: no dump of a flight recorder can be read"
    if not jobs:
        reasons = "; ".join(f"{each.subject}: {each.reason}" for each in unread[:3])
        raise UserError(f"{missing}{f' ({reasons})' if reasons else ''}")
    return jobs


def mask(shown: str, users: Iterable[str]) -> str:
    """Return a text without the names of these users, and without those in paths of home directories."""
    for user in users:
        # of CORP\ann or ann@corp.example.com, paths may have the short name alone; JSON escapes some characters
        short = re.split(r"[\\/]", user)[-1].partition("@")[0] or user
        for name in (user, json.dumps(user)[1:-1], short, json.dumps(short)[1:-1]):
            shown = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", "USER", shown)
    return _HOME.sub(r"\1USER", shown)


def document(jobs: Sequence[Evidence], conclusions: Sequence[Conclusion], ras_lines: Sequence[str] = ()) -> Document:
    """Return the JSON object that --json prints, and that --from reads."""
    rows = [
        {"conclusion": dataclasses.asdict(conclusion), "evidence": dataclasses.asdict(job)}
        for job, conclusion in zip(jobs, conclusions, strict=True)
    ]
    return {"jobs": rows, "ras": list(ras_lines)}


def text(job: Evidence, conclusion: Conclusion) -> Iterator[str]:
    """Yield the lines of the text output: the conclusion, the evidence, what was not read, and what to set."""
    yield f"{job.job}: {conclusion.summary}"
    for suspect in conclusion.suspects:
        places = (("host", suspect.host), ("pid", suspect.pid), ("GPU", suspect.gpu))
        yield f"  rank {suspect.rank}{''.join(f', {name} {value}' for name, value in places if value)}:"
        yield from (f"    {reason}" for reason in suspect.reasons)
        yield from [] if suspect.line is None else [f"    at {suspect.line}"]
    if conclusion.collective:
        yield f"  The others wait in {conclusion.collective}{f' ({conclusion.sizes})' if conclusion.sizes else ''}"
    yield from _section("Evidence", [_rank(each) for each in job.ranks])
    yield from _section("Not read", [f"{each.subject}: {each.reason}" for each in job.unread])
    yield from _section("Next time", conclusion.next_time)


def _section(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}:"
    yield from (f"  {line}" for line in lines[:MAX_ROWS])
    if len(lines) > MAX_ROWS:
        yield f"  and {len(lines) - MAX_ROWS} more: see --json"


def _rank(rank: RankEvidence) -> str:
    parts = [] if rank.state is None else [f"state {rank.state}{f' in {rank.wchan}' if rank.wchan else ''}"]
    if rank.recording is None:
        parts.append("no recording")
    else:
        pending, count = rank.recording.pending, len(rank.recording.operations)
        parts.append(f"{count} operations, {f'{pending[0]} pending' if pending else 'none pending'}")
    line = line_of_code(rank)
    return f"rank {rank.rank}: {', '.join(parts)}{'' if line is None else f', at {line}'}"
