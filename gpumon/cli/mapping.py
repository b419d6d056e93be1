"""`gpumon mapping`: write which GPUs a Slurm job holds, in its prolog, and remove that, in its epilog."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from gpumon.cli import job_mapping
from gpumon.cli.check import add_health_flags, health_path
from gpumon.cli.command_parser import CommandParser, UserError
from gpumon.cli.health_file import CheckError, read_health
from gpumon.cli.job_gpus import SLURM_JOB, from_job
from gpumon.clock import boot_id
from gpumon.config import default_paths

MAX_DIGITS = 20
MEMBERS = {
    "sluid": ("SLURM_JOB_SLUID",),
    "user": ("SLURM_JOB_USER", "SLURM_JOB_UID"),
    "account": ("SLURM_JOB_ACCOUNT",),
    "partition": ("SLURM_JOB_PARTITION",),
}
"""Members of a side file, and the variables of Slurm with their value; the first that is set counts."""


def add(parser: CommandParser) -> None:
    parser.set_examples("gpumon mapping begin", "gpumon mapping end")
    begin = parser.add_action(
        "begin",
        "write which GPUs the job of this prolog holds (Slurm's variables name both)",
        "gpumon mapping begin",
        "gpumon mapping begin --directory /var/lib/dcgm-exporter/job-mapping",
    )
    add_health_flags(begin)
    end = parser.add_action(
        "end",
        "remove what begin has written for this job",
        "gpumon mapping end",
        "gpumon mapping end --directory /var/lib/dcgm-exporter/job-mapping",
    )
    for action in (begin, end):
        action.add_argument(
            "--directory",
            default=default_paths.JOB_MAPPING,
            metavar="PATH",
            help=f"directory of the job mapping files ({default_paths.JOB_MAPPING})",
        )


def run(args: argparse.Namespace) -> int:
    job = os.environ.get(SLURM_JOB, "")
    if not (job.isascii() and job.isdecimal() and len(job) <= MAX_DIGITS):
        raise UserError(f"{SLURM_JOB} is {job!r}, not the id of a job: run this in a prolog or epilog of Slurm.")
    os.umask(0o022)  # the agent and dcgm-exporter read the directory
    try:
        if args.action == "begin":
            _begin(args, job)
        else:
            job_mapping.end(args.directory, job)
    except CheckError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{args.directory}: {error.strerror}: {error.filename or job}") from error
    return 0


def _begin(args: argparse.Namespace, job: str) -> None:
    path = health_path(args)
    devices = job_mapping.devices(from_job((), os.environ), read_health(path))
    document = {
        "job_id": job,
        **_members(os.environ),
        "start": time.time(),
        "boot_id": boot_id(),
        "uuids": [device.uuid for device in devices],
    }
    files = [device.file for device in devices if device.file is not None]
    job_mapping.begin(args.directory, job, files, document, group=Path(path).stat().st_gid)


def _members(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return what Slurm's variables state about a job; None for what this version of Slurm does not."""
    return {
        member: next(filter(None, (environ.get(name) for name in names)), None) for member, names in MEMBERS.items()
    }
