"""Reads job mapping files: which Slurm jobs hold which GPUs, as a prolog has written it."""

from __future__ import annotations

import errno
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any

from gpumon.clock import boot_id
from gpumon.collectors.host.reader import Turn, list_names
from gpumon.model.allocation import MAX_NAME, Claim, Owner, clipped
from gpumon.model.job_mapping import DEVICE, SIDE_FILES, SUFFIX

MAX_FILES = 1024
MAX_LINES = 64
JOB_ID = re.compile(rf"[A-Za-z0-9_.-]{{1,{MAX_NAME}}}")
INVALID = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Exceptions for a side file that is not JSON, or has other members or values than `gpumon mapping begin` writes."""


def read_mapping(turn: Turn, directory: str) -> tuple[Claim, ...] | None:
    """Return what the mapping files in `directory` state; None if the directory does not exist or cannot be read.

    A file from before the boot is void, because no epilog runs when a node loses power.
    """
    folder = directory.strip("/")
    try:
        names = turn.settings.names(folder)
    except OSError as error:
        turn.errors.note(f"/{folder}", error)
        return None
    booted = time.time() - turn.at
    described = dict(_described(turn, f"{folder}/{SIDE_FILES}", booted))
    numbered: dict[str, list[str]] = {}
    for device in _first(turn, folder, sorted(filter(DEVICE.fullmatch, names))):
        for job in _jobs(turn, f"{folder}/{device}", booted):
            numbered.setdefault(job, []).append(device)
    others = numbered.keys() - described.keys()
    return (
        *described.values(),
        *(Claim(owner=Owner(slurm_job_id=job), devices=tuple(numbered[job])) for job in sorted(others)),
    )


def _described(turn: Turn, folder: str, booted: float) -> Iterator[tuple[str, Claim]]:
    """Yield the job id and the claim of each side file of this boot."""
    jobs = [name[: -len(SUFFIX)] for name in list_names(turn.settings, folder, turn.errors) if name.endswith(SUFFIX)]
    for job in _first(turn, folder, sorted(filter(JOB_ID.fullmatch, jobs))):
        path = f"{folder}/{job}{SUFFIX}"
        text = _current_text(turn, path, booted)
        if text is None:
            continue
        try:
            document = json.loads(text)
            if document["boot_id"] == boot_id():
                yield job, _claim(job, document)
        except INVALID:
            turn.errors.note(f"/{path}", OSError(errno.EBADMSG, "is not a side file of `gpumon mapping begin`"))


def _claim(job: str, document: Mapping[str, Any]) -> Claim:
    """Return the claim in a side file. Raise an exception in INVALID if it lacks a member or has a wrong one."""
    sluid, user, account, partition = (
        clipped(document[name] or "") for name in ("sluid", "user", "account", "partition")
    )
    since = float(document["start"])
    if not math.isfinite(since):
        raise ValueError(since)
    return Claim(
        owner=Owner(slurm_job_id=job, slurm_sluid=sluid, user=user, account=account, slurm_partition=partition),
        devices=tuple(filter(None, map(clipped, document["uuids"]))),
        since=since,
    )


def _jobs(turn: Turn, path: str, booted: float) -> Iterator[str]:
    """Yield the job ids in a mapping file of this boot."""
    text = _current_text(turn, path, booted)
    lines = text.split("\n") if text else []
    if len(lines) > MAX_LINES:
        turn.errors.note(f"/{path}", OSError(errno.E2BIG, f"has more than {MAX_LINES} lines"))
    for line in dict.fromkeys(lines[:MAX_LINES]):
        if JOB_ID.fullmatch(line):
            yield line
        else:
            turn.errors.note(f"/{path}", OSError(errno.EBADMSG, "has a line that is no job id"))


def _current_text(turn: Turn, path: str, booted: float) -> str | None:
    """Return the content of a file; None if it is from before the boot, gone, or unreadable, which is then noted."""
    try:
        return None if turn.settings.modified(path) < booted else turn.settings.read(path)
    except OSError as error:
        turn.errors.note(f"/{path}", error)
        return None


def _first(turn: Turn, folder: str, names: list[str]) -> list[str]:
    if len(names) > MAX_FILES:
        turn.errors.note(f"/{folder}", OSError(errno.E2BIG, f"has more than {MAX_FILES} files"))
    return names[:MAX_FILES]
