"""Find the owner of a process in its cgroups: /proc/PID/cgroup, which every user may read."""

from __future__ import annotations

import re

from gpumon.model.allocation import Owner, clipped

_POD = re.compile(r"[-/]pod([0-9a-f]{8}(?:[-_]?[0-9a-f]{4}){3}[-_]?[0-9a-f]{12})(?![0-9a-z_-])")
"""Matches the uid of a pod; that of a static pod has no dashes."""
_CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_JOB = re.compile(
    r"(?:/slurm(?:_[^/]+)?/uid_[0-9]+|[/_]slurmstepd\.scope)/(?:job_(?P<job>[0-9]{1,20})|(?P<sluid>s[0-9A-Z]{13}))\b"
)
_UNIT = re.compile(r"/([^/]+\.(?:service|scope))(?=/|$)")
_USERS = re.compile(r"/(?:user(?:-[0-9]+)?\.slice|user@[0-9]+\.service|session-[0-9a-z]+\.scope)(?=/|$)")
"""Matches the part of a path below which users name cgroups as they like, also as jobs of others."""
_MONITOR = re.compile(r"/(?:crio|libpod)-conmon-")
"""Matches the process that waits for a container: it is not the workload."""


def owner_of(cgroup: str) -> Owner:
    """Return the owner that the content of /proc/PID/cgroup names, of v1, v2 or both; without names if there is none.

    The innermost of nested containers is named. A systemd unit is named only if it is neither a job nor a container.
    """
    paths = [path for line in cgroup.split("\n") if (path := "".join(line.split(":", 2)[2:]))]
    if any(_MONITOR.search(path) for path in paths):
        return Owner()
    on_host = [path for path in paths if not _USERS.search(path)]
    job = next((match for path in on_host if (match := _JOB.search(path))), None)
    pod, container = (_innermost(pattern, paths) for pattern in (_POD, _CONTAINER))
    unit = None if job or pod or container else next((match for path in on_host if (match := _UNIT.search(path))), None)
    return Owner(
        slurm_job_id=job and job["job"],
        slurm_sluid=job and job["sluid"],
        pod_uid=pod and pod.replace("_", "-"),
        container_id=container,
        systemd_unit=unit and clipped(unit[1]),
    )


def _innermost(pattern: re.Pattern[str], paths: list[str]) -> str | None:
    """Return the last match in the path with the most matches; the hierarchies of v1 may have different depths."""
    matches: list[str] = max((pattern.findall(path) for path in paths), key=len, default=[])
    return matches[-1] if matches else None
