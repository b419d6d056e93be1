"""The section `jobs` of the configuration: from where the agent knows who holds a GPU, and who may know it too."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator

from gpumon.config import default_paths
from gpumon.config.setting import ConfigurationSection, SomePath, setting, split
from gpumon.model.allocation import OWNER_LABELS


class JobsSection(ConfigurationSection):
    """Settings of the owners of GPUs."""

    labels: Annotated[tuple[Literal[OWNER_LABELS], ...], BeforeValidator(split)] = setting(  # type: ignore[valid-type]
        ("slurm_job_id", "slurm_partition", "pod_namespace", "pod_name", "container_name", "systemd_unit"),
        "Names of an owner that every reader may know: they are labels on /metrics, and on the page and in the API for "
        "clients without credentials. Clients with the token, and the agent's group on this host, read all names.",
    )
    mapping_directory: SomePath = setting(
        Path(default_paths.JOB_MAPPING),
        "Folder in which the prolog of Slurm writes which job got which GPU, as for dcgm-exporter: docs/jobs.md.",
        restart=True,
    )
    kubelet_socket: SomePath = setting(
        Path("/var/lib/kubelet/pod-resources/kubelet.sock"),
        "Socket of the kubelet that lists the devices of pods.",
        restart=True,
    )
