"""Reports of a node whose GPUs have owners."""

from __future__ import annotations

from dataclasses import replace

from reduced_reports import TERMS, reduce_all

from gpumon.model.allocation import Claim, HolderProcess, Owner, OwnerReadings
from gpumon.model.snapshot import HostSnapshot
from gpumon.state.report import Report

SLURM = Owner(slurm_job_id="4711", user="alice", account="physics")
POD = Owner(pod_namespace="ml", pod_name="train-0", container_name="main")
SETTINGS = replace(TERMS, owner_names=frozenset({"slurm_job_id", "pod_namespace", "pod_name"}))


def owners(
    report: Report,
    at: float = 110.0,
    *,
    mapped: tuple[Claim, ...] | None = None,
    pods: tuple[Claim, ...] | None = None,
    processes: dict[str, HolderProcess] | None = None,
    silent: bool = False,
) -> Report:
    """Return the Report after a turn of the reader `owners`."""
    values = {"owners": OwnerReadings(mapped=mapped, pods=pods, processes=processes or {}, silent=silent)}
    return reduce_all(HostSnapshot(ended_at=at, values=values), at=at, report=report, terms=SETTINGS)


def claim(owner: Owner, *devices: str, since: float | None = None) -> Claim:
    return Claim(owner=owner, devices=devices, since=since)
