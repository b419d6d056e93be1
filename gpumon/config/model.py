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
    BeforeValidator,
    PrivateAttr,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from gpumon import DEFAULT_PORT
from gpumon.config.probe import Probe
from gpumon.config.setting import NEEDS, Section, SomePath, check_address, check_gpu, setting, split
from gpumon.health.xids import Xid
from gpumon.model.series_limits import MAX_SERIES


class Web(Section):
    """The HTTP server."""

    listen_address: Annotated[str, AfterValidator(check_address)] = setting(
        f"127.0.0.1:{DEFAULT_PORT}",
        f"Where to serve. `:{DEFAULT_PORT}` is every address of the host, port 0 a free one.",
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


class Store(Section):
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


class Log(Section):
    """What goes to standard error."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info",
        "Least severity that is written. A reload reaches the sampler when it is next replaced, all else at once.",
        flag="--log.level",
    )
    format: Literal["logfmt", "json"] = setting("logfmt", "Form of a line.", flag="--log.format")


class Poll(Section):
    """Reading the GPUs."""

    interval_seconds: float = setting(
        1, "How often the fast readings are taken.", flag="--poll.interval", ge=0.1, le=60
    )
    gpm: bool = setting(
        default=True,
        meaning="Whether to read GPU performance monitoring (Hopper and later): two driver calls more a GPU and poll.",
    )


class Processes(Section):
    """The processes on the GPUs."""

    max_per_gpu: int = setting(
        0,
        "How many of each GPU to show with pid, name and memory, the largest first. "
        "0 shows none: names of processes are not for everyone.",
        ge=0,
        le=MAX_SERIES["processes"],
    )


class Gpus(Section):
    """The GPUs of this host."""

    expected_count: int | None = setting(
        None,
        "How many there should be: docs/inventory.md.",
        default_in_words="accepted, or learned",
        example=8,
        ge=0,
        le=1024,
    )
    exclude: Annotated[tuple[Annotated[str, BeforeValidator(check_gpu)], ...], BeforeValidator(split)] = setting(
        (),
        "GPUs that are never opened: uuid, PCI bus id or index.",
        example=["GPU-4d2f7c1e-5d0b-6a0e-8c1f-2b3a4c5d6e7f", "0000:18:00.0"],
    )


class Metrics(Section):
    """The page for Prometheus."""

    detailed: bool = setting(
        default=False,
        meaning="Whether `/metrics` shows the details too, which the API always shows: about a third more series.",
        restart=True,
    )


class Simulate(Section):
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


class Health(Section):
    """The checks, and the verdicts that they give: docs/health.md."""

    thresholds: Mapping[str, float | None] = setting(
        {},
        "Thresholds of the checks that differ from the shipped ones, by name. Null switches off what depends on one.",
        example={"core_celsius": 80},
    )
    disabled_checks: Annotated[tuple[str, ...], BeforeValidator(split)] = setting(
        (), "Checks that are not made, by name.", example=["gpu_persistence_off"]
    )
    boot_grace_seconds: float = setting(
        300, "Time after a boot in which links may train and daemons start. On a simulated node 0.", ge=0, le=86400
    )
    file: SomePath | None = setting(
        None,
        "File to which the verdicts are written for `gpumon check` and other programs: docs/check.md.",
        flag="--health.file",
        default_in_words="`health.json` in systemd's runtime directory, else `gpumon.db.health.json` beside the store",
        example="/run/gpumon/health.json",
        restart=True,
    )
    versions: Mapping[str, str] = setting(
        {},
        "Versions that this host should have, by name: docs/inventory.md lists them.",
        example={"driver": "580.105.08"},
    )


class Release(Section):
    """Letting go of GPUs for maintenance: docs/release.md."""

    marker: SomePath = setting(
        Path("/run/gpumon/release"),
        "File that releases the node, or what it names, while it exists and is young enough.",
        restart=True,
    )
    max_seconds: float = setting(
        1800, "Longest release, and age from which a marker file no longer counts.", ge=1, le=86400
    )


class Maintenance(Section):
    """A while in which nothing pages: docs/maintenance.md."""

    max_seconds: float = setting(86400, "Longest maintenance.", ge=1, le=7 * 86400)


class KernelLog(Section):
    """The kernel's messages, which tell of Xids and of errors of NVSwitches."""

    path: SomePath = setting(
        Path("/dev/kmsg"),
        "Device to read. On a simulated node the host's is not read unless it is named.",
        restart=True,
    )


class Xids(Section):
    """What the codes of the driver's errors mean."""

    file: SomePath | None = setting(
        None,
        "File with rows in place of or beside the shipped ones, see docs/xids.md. Read again at each reload.",
        default_in_words="none",
        example="/etc/gpumon/xids.yml",
    )


class Pci(Section):
    """The PCI bus."""

    sysfs: SomePath = setting(Path("/sys"), "Where sysfs is mounted.", restart=True)


class Links(Section):
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


class Configuration(Section):
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
