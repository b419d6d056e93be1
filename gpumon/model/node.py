"""TABLE: what is known of the node and of the agent itself. The daemon fills these rows; none is a GPU's getter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gpumon.model.reading import AGENT, agent, identity

UNITS = {"fabric_manager_up": "nvidia-fabricmanager.service", "imex_up": "nvidia-imex.service"}
"""Rows of Node, and the units of systemd that they are about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """The running agent."""

    PREFIX: ClassVar[str] = "gpumon_build_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    version: str | None = identity("Version of gpumon.", AGENT)
    python: str | None = identity("Version of Python.", AGENT)
    revision: str | None = identity("Source revision of the build.", AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The driver that the sampler loaded; all None without one."""

    PREFIX: ClassVar[str] = "gpumon_driver_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    driver: str | None = identity("Version of the kernel driver.", AGENT)
    nvml: str | None = identity("Version of NVML.", AGENT)
    cuda: str | None = identity("CUDA version that the driver supports.", AGENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The node and the agent."""

    PREFIX: ClassVar[str] = "gpumon_"
    LABELS: ClassVar[tuple[str, ...]] = ()

    simulated: float | None = agent("1 when the node is simulated.")
    nvml_up: float | None = agent(
        "1 when the last fast poll reached the driver.",
        note="Absent on a host that has no NVIDIA GPU and expects none.",
    )
    nvml_stuck_seconds: float | None = agent("How long the current driver call has not returned; 0 when none.")
    gpus_expected: float | None = agent(
        "GPUs that should be here: configured, accepted, as the product has, or learned."
    )
    gpus_visible: float | None = agent("GPUs that NVML counts.", note="nvmlDeviceGetCount_v2")
    gpus_on_pci_bus: dict[str, float] | None = agent(
        "NVIDIA GPUs on the PCI bus by the driver they are bound to.",
        label="driver",
        note="Classes 0300 and 0302 of /sys/bus/pci: no NVSwitches, no audio. Drivers: nvidia, vfio-pci, none.",
    )
    kernel_log_up: float | None = agent("1 when the kernel log can be read.")
    kernel_log_overruns_total: float | None = agent("Times the kernel log was overwritten before it was read.")
    collector_denied: dict[str, float] | None = agent(
        "1 where permission is missing: what this agent cannot see.", label="collector"
    )
    snapshot_timestamp_seconds: float | None = agent("When the last complete poll ended.")
    poll_duration_seconds: dict[str, float] | None = agent("How long the last poll of this tier took.", label="tier")
    poll_success: dict[str, float] | None = agent("1 when the last poll of this tier read every GPU.", label="tier")
    polls_total: dict[str, float] | None = agent("Polls of this tier.", label="tier")
    poll_errors_total: dict[str, float] | None = agent(
        "Driver calls and fields that failed.",
        label=("tier", "error"),
        note="By NVML's names; also Implausible (cannot be true) and SilentZero (engines idle while kernels run). Not "
        "counted: what a GPU does not support, and what is denied.",
    )
    sampler_restarts_total: dict[str, float] | None = agent("Replacements of the sampler.", label="reason")
    release_end_timestamp_seconds: float | None = agent(
        "When the agent takes the GPUs up again that it let go of; absent when it holds them."
    )
    maintenance_end_timestamp_seconds: float | None = agent(
        "When the maintenance of the node ends, in seconds since the epoch; 0 while there is none.",
        note="No alert pages until then.",
    )
    fabric_manager_up: float | None = agent(
        "1 when the NVIDIA fabric manager runs.", note="Absent where its unit is not installed: GB200 needs none."
    )
    imex_up: float | None = agent(
        "1 when the NVIDIA IMEX daemon runs.",
        note="Absent where its unit is not installed, or disabled and not running.",
    )
    service_stops_total: dict[str, float] | None = agent(
        "Times a service that the links need was seen to have ended, or to have been started anew.",
        label="service",
        note="Services: fabric_manager, imex. Looked at every 5 s, since the agent's start.",
    )
    nvswitch_errors_total: dict[str, float] | None = agent(
        "SXid errors of the NVSwitches, counted over restarts of the agent.",
        label=("nvswitch", "sxid"),
        note="From the kernel log; the switch is named by its PCI address, as `peer` of gpumon_nvlink_peer_info is.",
    )
    abandoned_children: float | None = agent("Children that SIGKILL did not end.")
    driver_calls_total: float | None = agent("Entries into NVML since the agent's start.")
    store_up: float | None = agent("1 when events and results can be written to disk.")
    exposed_series: float | None = agent("Series on this page.")
    dropped_series_total: dict[str, float] | None = agent("Series that a cap cut.", label="reason")
    log_messages_total: dict[str, float] | None = agent("Log messages by level.", label="level")
    alerts: dict[str, float] | None = agent(
        "Alerts of the agent, pending or firing.", label=("rule", "severity", "state")
    )
