"""`gpumon jobs`: show who holds the GPUs of this node."""

from __future__ import annotations

import argparse
import json

from gpumon.cli.command_parser import CommandParser
from gpumon.cli.config_arguments import add_client_flags, client
from gpumon.model.printable import printable
from gpumon.outputs.formatting import ABSENT, columns, share
from gpumon.outputs.node_text import idle_share, motion, sources
from gpumon.outputs.responses.base import Document
from gpumon.probe.core.wording import index_ranges

PATH, MEMBERS = "/api/v1/jobs", ("jobs", "free", "unknown", "conflicts")


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon jobs", "gpumon jobs --json")
    add_client_flags(parser)


def run(args: argparse.Namespace) -> int:
    document = client(args).get(PATH, MEMBERS)
    print(json.dumps(document, indent=2) if args.json else table(document))
    return 0


def table(document: Document) -> str:
    """Return a line for each owner of GPUs, then one for the GPUs that are free or whose owner is unknown."""
    lines = [("JOB", "USER", "ACCOUNT", "GPUS", "MOTION", "IDLE", "SINCE", "SOURCE")]
    for job in document["jobs"]:
        owner = job["owner"]
        idle, since = share(idle_share(job)), f"{job['since'][:10]} {job['since'][11:19]}"
        names = (printable(name or ABSENT) for name in (job["id"], owner["user"], owner["account"]))
        lines.append((*names, ",".join(map(str, job["gpus"])), motion(job) or ABSENT, idle, since, sources(job)))  # type: ignore[arg-type]
    text = columns(lines) if document["jobs"] else ["No owner of a GPU is known."]
    for title, gpus in (("Free", document["free"]), ("Unknown", document["unknown"])):
        text += [f"{title}: GPU {index_ranges(gpus)}."] if gpus else []
    indexes = {each["uuid"]: each["gpu"] for job in document["jobs"] for each in job["allocations"]}
    text += [f"GPU {indexes.get(uuid, uuid)}: {printable(words)}." for uuid, words in document["conflicts"].items()]
    return "\n".join(text)
