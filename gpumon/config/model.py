"""TABLE: what can be configured. A setting is added by adding a row.

Section and attribute are its name everywhere: `web.listen_address` in words, two levels in the file,
GPUMON_WEB__LISTEN_ADDRESS in the environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from gpumon.config.row import (
    NEEDS,
    SomePath,
    checked_address,
    checked_command,
    checked_gpu,
    checked_nccl_name,
    checked_program,
    checked_url,
    checked_word,
    number_as_text,
    setting,
    split,
    split_command,
)
from gpumon.health.xids import Xid
from gpumon.probe.probes import ALL_REDUCE, PROBES
from gpumon.snapshot.caps import MOST


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


class Web(_Section):
    """The HTTP server."""

    listen_address: Annotated[str, AfterValidator(checked_address)] = setting(
        "127.0.0.1:10400",
        "Where to serve. `:10400` is every address of the host, port 0 a free one.",
        flag="--web.listen-address",
        restart=True,
    )
    token_file: SomePath = setting(
        ...,
        "File with the token that writes ask for. Made at the first start, mode 0640.",
        flag="--web.token-file",
        default_in_words="`token` in the state directory",
        example="/var/lib/gpumon/token",
        restart=True,
    )

    allowed_hosts: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (),
        "Names by which clients may ask for the agent, besides IP addresses and the host's own names; `*` is any name.",
        example=["gpu-17.monitoring.example.com"],
        restart=True,
    )

    @property
    def address(self) -> tuple[str, int]:
        """Host (without brackets, empty for every address) and port."""
        host, _, port = self.listen_address.rpartition(":")
        return host.strip("[]"), int(port)


class Store(_Section):
    """What must survive a restart."""

    path: SomePath = setting(
        ...,
        "SQLite file for events, counters, verdicts, the inventory and probe results. Its folder must exist.",
        flag="--store.path",
        default_in_words="`gpumon.db` in the state directory",
        example="/var/lib/gpumon/gpumon.db",
        restart=True,
    )
    retention_days: float = setting(
        90, "Age at which events and results are deleted. Counters stay.", gt=0, restart=True
    )
    retention_rows: int = setting(
        100_000, "Most events, and most results, that are kept. Counters stay.", ge=1, restart=True
    )


class Log(_Section):
    """What goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "Least severity that is written. A reload reaches the sampler when it is next replaced, all else at once.",
        flag="--log.level",
    )
    format: Literal["logfmt", "json"] = setting("logfmt", "Form of a line.", flag="--log.format")


class Poll(_Section):
    """Reading the GPUs."""

    interval_seconds: float = setting(
        1, "How often the fast readings are taken.", flag="--poll.interval", ge=0.1, le=60
    )
    gpm: bool = setting(
        default=True,
        meaning="Whether to read GPU performance monitoring (Hopper and later): two driver calls more a GPU and poll.",
    )


class Processes(_Section):
    """The processes on the GPUs."""

    largest: int = setting(
        0,
        "How many of each GPU to show with pid, name and memory, the largest first. "
        "0 shows none: names of processes are not for everyone.",
        ge=0,
        le=MOST["processes"],
    )


class Gpus(_Section):
    """The GPUs of this host."""

    expected_count: int | None = setting(
        None,
        "How many there should be: docs/inventory.md.",
        default_in_words="accepted, or learned",
        example=8,
        ge=0,
        le=1024,
    )
    exclude: Annotated[tuple[Annotated[str, BeforeValidator(checked_gpu)], ...], BeforeValidator(split)] = setting(
        (),
        "GPUs that are never opened: uuid, PCI bus id or index.",
        example=["GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f", "0000:18:00.0"],
    )


class Metrics(_Section):
    """The page for Prometheus."""

    detailed: bool = setting(
        default=False,
        meaning="Whether `/metrics` shows the details too, which the API always shows: about a third more series.",
        restart=True,
    )


class Simulate(_Section):
    """A simulated node in place of this host's GPUs."""

    profile: str | None = setting(
        None,
        "Name of the profile, path of a recording (`./node.capture`), or none for the real GPUs.",
        flag="--simulate",
        default_in_words="none",
        example="h100x8",
        restart=True,
    )
    scenario: SomePath | None = setting(
        None,
        "File that says what happens on the simulated node. Read again whenever it changes.",
        flag="--simulate.scenario",
        default_in_words="the profile's own",
        example="scenario.yml",
        restart=True,
    )

    @field_validator("scenario")
    @classmethod
    def _scenario_needs_profile(cls, scenario: Path | None, info: ValidationInfo) -> Path | None:
        if scenario is not None and info.data.get("profile", "") is None:
            raise PydanticCustomError(NEEDS, "needs a profile", {"remedy": "set simulate.profile (--simulate) too"})
        return scenario


class Probe(_Section):
    """The all-reduce probe."""

    enabled: bool = setting(default=True, meaning="Whether it may run, by itself or on request.")
    python: Annotated[SomePath | None, AfterValidator(checked_program)] = setting(
        None,
        "Python interpreter that has torch.",
        default_in_words="the agent's own",
        example="/opt/torch/bin/python",
    )
    interval_seconds: float | None = setting(
        None, "Time between runs.", default_in_words="the probe's own: 21600", example=21600, ge=10
    )
    jitter_seconds: float | None = setting(
        None,
        "Time by which each run is moved at random, at most.",
        default_in_words="the probe's own: 600",
        example=600,
        ge=0,
    )
    first_after_seconds: float | None = setting(
        None,
        "Time from start to the first run.",
        default_in_words="the probe's own: 60, on a simulated node 5",
        example=60,
        ge=0,
    )
    idle_seconds: float | None = setting(
        None,
        "Time for which nobody may have used the GPUs before a run by schedule; a run that is due waits for it.",
        default_in_words="the probe's own: 600, on a simulated node 0",
        example=600,
        ge=0,
    )
    partial: bool = setting(
        default=False,
        meaning="Whether a run may leave out GPUs that are in use, if two or more are not. It measures the ring alone.",
    )
    algorithms: Annotated[tuple[Literal["default", "ring"], ...], BeforeValidator(split)] = setting(
        (),
        "Which of NCCL's algorithms a run on all GPUs measures: `default` is its own choice, `ring` is without "
        "NVLink SHARP.",
        default_in_words="both; in a fabric of several nodes the ring",
        example=["default", "ring"],
    )
    deadline_seconds: float | None = setting(
        None, "Time after which a run is killed.", default_in_words="the probe's own: 300, on CPU 60", example=300, ge=1
    )
    dtypes: Annotated[tuple[Literal["float32", "bfloat16"], ...], BeforeValidator(split)] = setting(
        ("float32",),
        "Types of the elements, float32 always among them: it alone is exported. Each more takes as long again.",
        example=["float32", "bfloat16"],
    )
    hold_max_seconds: float = setting(7 * 86400, "Longest hold: `gpumon probe hold`.", ge=1, le=30 * 86400)
    least_baseline_ratio: float | None = setting(
        None,
        "Share of this host's own median bandwidth below which a run is degraded. 0: none is.",
        default_in_words="the probe's own: 0.9, on CPU 0.5",
        example=0.9,
        ge=0,
        le=1,
    )
    least_baseline_spreads: float = setting(
        4, "And by how many spreads of its earlier runs it has to lie below that median.", ge=0
    )
    least_expected_ratio: float = setting(
        0.85, "The same share of the figure that is published for this hardware: docs/probe.md.", ge=0, le=1
    )
    least_fleet_ratio: float = setting(
        0.85, "The same share of the median of the other hosts, where `fleet_prometheus` tells it.", ge=0, le=1
    )
    fleet_prometheus: Annotated[str | None, AfterValidator(checked_url)] = setting(
        None,
        "Prometheus that scrapes the other hosts: it is asked once an hour what hosts with the same GPUs come to.",
        default_in_words="none",
        example="http://prometheus.example:9090",
    )
    scheduler_gate: Annotated[
        tuple[Annotated[str, AfterValidator(checked_word)], ...],
        BeforeValidator(split_command),
        AfterValidator(checked_command),
    ] = setting(
        (),
        "Command that asks the scheduler whether the node is free: exit code 0 is yes. No shell runs it. Where slurmd "
        "or a kubelet is found, nothing runs by schedule without it: docs/probe.md.",
        default_in_words="none",
        example=["/etc/gpumon/slurm-gate"],
    )
    scheduler_gate_seconds: float = setting(10, "Time in which that command must have answered.", gt=0, le=300)
    nccl_environment: Mapping[
        Annotated[str, AfterValidator(checked_nccl_name)],
        Annotated[str, BeforeValidator(number_as_text), AfterValidator(checked_word)],
    ] = setting(
        {}, "NCCL's variables for the ranks; those of the agent are not passed on.", example={"NCCL_DEBUG": "WARN"}
    )

    @field_validator("jitter_seconds")
    @classmethod
    def _jitter_fits_interval(cls, jitter: float | None, info: ValidationInfo) -> float | None:
        """The probe's own is cut to a short interval; what is configured is not changed in silence."""
        interval = info.data.get("interval_seconds") or PROBES[ALL_REDUCE].interval
        if jitter is not None and "interval_seconds" in info.data and jitter > interval:
            words = {"interval": f"{interval:g}", "remedy": f"set it to {interval:g} at most, or the interval to more"}
            raise PydanticCustomError(NEEDS, "is longer than the interval of {interval} s", words)
        return jitter


class Alerts(_Section):
    """The agent's own evaluation of the rules, and the rules it renders for Prometheus."""

    thresholds: Mapping[str, float | None] = setting(
        {},
        "Thresholds of the rules that differ from the shipped ones, by name. Null switches off what depends on one.",
        example={"idle_busy_ratio": 0.1},
    )


class Health(_Section):
    """The checks, and the verdicts that they give: docs/health.md."""

    thresholds: Mapping[str, float | None] = setting(
        {},
        "Thresholds of the checks that differ from the shipped ones, by name. Null switches off what depends on one.",
        example={"core_celsius": 80},
    )
    disabled: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (), "Checks that are not made, by name.", example=["persistence_off"]
    )
    boot_grace_seconds: float = setting(
        300, "Time after a boot in which links may train and daemons start. On a simulated node 0.", ge=0, le=86400
    )
    versions: Mapping[str, str] = setting(
        {},
        "Versions that this host should have, by name: docs/inventory.md lists them.",
        example={"driver": "580.105.08"},
    )


class Release(_Section):
    """Letting go of GPUs for maintenance: docs/release.md."""

    marker: SomePath = setting(
        Path("/run/gpumon/release"),
        "File that releases the node, or what it names, while it exists and is young enough.",
        restart=True,
    )
    max_seconds: float = setting(
        1800, "Longest release, and age from which a marker file no longer counts.", ge=1, le=86400
    )


class Maintenance(_Section):
    """A while in which nothing pages: docs/maintenance.md."""

    max_seconds: float = setting(86400, "Longest maintenance.", ge=1, le=7 * 86400)


class KernelLog(_Section):
    """The kernel's messages, which tell of Xids and of errors of NVSwitches."""

    path: SomePath = setting(
        Path("/dev/kmsg"),
        "Device to read. On a simulated node the host's is not read unless it is named.",
        restart=True,
    )


class Xids(_Section):
    """What the codes of the driver's errors mean."""

    file: SomePath | None = setting(
        None,
        "File with rows in place of or beside the shipped ones, see docs/xids.md. Read again at each reload.",
        default_in_words="none",
        example="/etc/gpumon/xids.yml",
    )


class Pci(_Section):
    """The PCI bus."""

    sysfs: SomePath = setting(Path("/sys"), "Where sysfs is mounted.", restart=True)


class Links(_Section):
    """InfiniBand and RoCE ports, and the services that NVLink needs."""

    sysfs: SomePath | None = setting(
        None,
        "Where sysfs is mounted.",
        default_in_words="as for the PCI bus",
        example="/host/sys",
        restart=True,
    )
    root: SomePath = setting(
        Path("/"), "Where the host's root is mounted: its units of systemd say what is installed.", restart=True
    )


class Configuration(_Section):
    """Everything that can be configured, in force and checked."""

    web: Web
    store: Store
    log: Log = Log()
    poll: Poll = Poll()
    processes: Processes = Processes()
    gpus: Gpus = Gpus()
    metrics: Metrics = Metrics()
    simulate: Simulate = Simulate()
    probe: Probe = Probe()
    alerts: Alerts = Alerts()
    health: Health = Health()
    release: Release = Release()
    maintenance: Maintenance = Maintenance()
    kernel_log: KernelLog = KernelLog()
    xids: Xids = Xids()
    pci: Pci = Pci()
    links: Links = Links()
    _origins: Mapping[str, str] = PrivateAttr(default_factory=dict)
    _xid_rows: Mapping[int, Xid] = PrivateAttr(default_factory=dict)

    def with_origins(self, origins: Mapping[str, str]) -> Self:
        """The same, knowing where each setting came from."""
        told = self.model_copy()
        told._origins = dict(origins)  # noqa: SLF001 - its own
        return told

    @property
    def xid_rows(self) -> Mapping[int, Xid]:
        """What xids.file holds."""
        return self._xid_rows

    def with_xid_rows(self, rows: Mapping[int, Xid]) -> Self:
        """The same, knowing what xids.file holds."""
        told = self.model_copy()
        told._xid_rows = dict(rows)  # noqa: SLF001 - its own
        return told

    def origin(self, name: str) -> str:
        """Where a setting came from: file and line, variable, flag or "default"."""
        return self._origins.get(name, "default")

    def value(self, name: str) -> Any:
        """Value of a setting by its name, as in "web.listen_address"."""
        section, _, key = name.partition(".")
        return getattr(getattr(self, section), key)
