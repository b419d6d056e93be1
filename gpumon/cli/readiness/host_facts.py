"""Gathers the facts about this host from which the checks of `gpumon doctor` determine their answers."""

from __future__ import annotations

import contextlib
import ctypes
import grp
import importlib.metadata
import json
import os
import pwd
import re
import resource
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, NamedTuple

from gpumon.cli.client import Client, ClientError
from gpumon.cli.config_arguments import local_socket, web_problem
from gpumon.cli.once import SingleReading, report_document
from gpumon.clock import boot_clock
from gpumon.collectors.host.reader import Tree, Trees, Turn
from gpumon.collectors.host.schedulers import read_schedulers
from gpumon.collectors.kernel_log.watch import KernelLog
from gpumon.config.component_settings import kernel_log_path, probe_settings
from gpumon.config.model import Configuration
from gpumon.config.redact import redact_text
from gpumon.health.verdict import Level
from gpumon.model.orders import HostOrders
from gpumon.outputs import terminal
from gpumon.outputs.responses.base import Document
from gpumon.runner.containment import SHARED_MEMORY
from gpumon.store.store import examine
from gpumon.store.store_error import StoreError

TORCH_SECONDS = 60.0
TORCH_REPORT = Path(__file__).parents[2] / "probe" / "worker" / "torch_report.py"
RELEASED = "the GPUs are released"
UNREADABLE = "this user may not read it"
UNIT, SOCKET_UNIT = "gpumon.service", "gpumon.socket"
PROPERTIES = (
    "LoadState,ActiveState,User,Group,SupplementaryGroups,LimitMEMLOCK,Delegate,AmbientCapabilities,"
    "MainPID,Environment,EnvironmentFiles,StateDirectory,Listen"
)
COMMAND_SECONDS = 10.0  # for the agent, systemctl and nv-fabricmanager, which do not open the driver
KILLED_SECONDS = 1.0
"""Maximum seconds to wait for the end of a killed child process. A child that is blocked in the kernel is abandoned."""


class UnitFacts(NamedTuple):
    """The agent's service and socket unit."""

    properties: Mapping[str, str] = {}  # of the service; empty without systemd or unit
    listeners: Sequence[str] = ()  # addresses on which systemd listens for the agent
    environment: Mapping[str, str] = {}  # of the running agent, if this user may read it, else what the unit sets
    error: str = ""  # why systemd, which runs, does not report the units


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """Facts about this host and its agent, for the checks of `gpumon doctor`."""

    configuration: Configuration
    """The configuration of this host; the defaults if it is invalid."""
    report: Document
    """The agent's `/api/v1/report`; if no agent answers, a report in the same format from a single reading."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """Error by subject: configuration, web, agent, reading, torch, port, store or unit. One without is absent."""
    invalid_file: Path | None = None  # the configuration file, if the configuration is invalid
    agent: Path = Path()  # its unix socket
    python: str = ""
    """Path of the Python interpreter that runs probes: probe.python or the agent's own."""
    torch: Mapping[str, Any] = field(default_factory=dict)
    """Versions and GPUs of PyTorch, as probe/worker/torch_report.py prints them; empty if they could not be read."""
    pynvml: bool = False
    """Whether the package pynvml is installed in the agent's own environment."""
    unit: Mapping[str, str] = field(default_factory=dict)
    """Properties of the agent's systemd unit; empty if there is no systemd or no such unit."""
    listeners: Sequence[str] = ()  # addresses on which systemd listens for the agent
    kernel_log: bool | None = None
    """Whether this user can read the kernel log; None if there is none."""
    shared_memory: os.statvfs_result | None = None
    memlock: int = resource.RLIM_INFINITY
    """Maximum bytes of locked memory of this process."""
    cgroup2: bool = True
    clock_error: float | None = 0.0
    """Maximum error of the clock in seconds by the kernel's estimate; None if unknown."""
    schedulers: tuple[str, ...] | None = ()
    fabric_manager: str = ""
    """Output of `nv-fabricmanager --version`; empty if the program is not installed."""
    visible_devices: str | None = None
    agent_devices: str | None = None  # CUDA_VISIBLE_DEVICES in the environment of the agent

    @property
    def node(self) -> Any:
        return self.report["node"]

    @property
    def gpus(self) -> Any:
        return self.report["gpus"]

    @property
    def has_gpus(self) -> bool:
        return bool(self.gpus or sum((self.node["gpus_on_pci_bus"] or {}).values()))

    def notice(self, subject: str) -> str:
        """Return the notice of the agent about a problem with this subject, such as "store"; empty without one."""
        return next((each["message"].rstrip(".") for each in self.node["notices"] if each["subject"] == subject), "")


def read_units() -> UnitFacts:
    output = run_bounded(["systemctl", "show", f"--property={PROPERTIES}", UNIT, SOCKET_UNIT], COMMAND_SECONDS)
    service, _, listener = output.text.partition("\n\n")
    properties = dict(line.split("=", 1) for line in service.splitlines() if "=" in line)
    if properties.get("LoadState") != "loaded":
        return UnitFacts(error=output.error if Path("/run/systemd/system").exists() else "")
    listeners = re.findall(r"^Listen=(\S+) \(Stream\)", listener, re.MULTILINE)
    files = re.findall(r"^EnvironmentFiles=(\S+) \(", service, re.MULTILINE)
    environment = {"STATE_DIRECTORY": f"/var/lib/{properties.get('StateDirectory') or 'gpumon'}"}
    for assignment in _assignments(properties.pop("Environment", ""), properties.get("MainPID", ""), files):
        name, _, value = assignment.partition("=")
        if re.match(r"GPUMON_|CUDA_VISIBLE_DEVICES$|STATE_DIRECTORY$", name):
            environment[name] = value
    return UnitFacts(properties, listeners if "ActiveState=active" in listener.splitlines() else (), environment)


def _assignments(environment: str, pid: str, files: Sequence[str]) -> Sequence[str]:
    """Return NAME=VALUE of the running agent; of its unit if it is stopped, or if this user may not read them."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_text(errors="surrogateescape").split("\0")
    assignments: list[str] = []
    for file in (None, *map(Path, files)):
        with contextlib.suppress(OSError, ValueError):
            text = environment if file is None else file.read_text(errors="replace")
            assignments += shlex.split(re.sub(r"(?m)^\s*[#;].*", "", text))
    return assignments


def gather(configuration: Configuration, wrong: str, unit: UnitFacts) -> HostFacts:
    """Return the facts. Only child processes open the driver or PyTorch. `wrong`: why the configuration is invalid."""
    errors, address = {"configuration": wrong, "unit": unit.error}, local_socket(configuration)
    errors["web"] = web_problem(configuration)
    try:
        report = Client(address, timeout=COMMAND_SECONDS).get("/api/v1/report", terminal.STATUS)
    except ClientError as error:
        errors["agent"] = getattr(error.__cause__, "strerror", None) or str(error.__cause__ or error)
        reading = SingleReading(configuration)
        report, errors["reading"] = report_document(reading.run()), reading.failure or ""
    python, torch = probe_settings(configuration).python, dict[str, Any]()
    if report["node"]["releases"]:  # PyTorch would open the GPUs
        errors["torch"] = RELEASED
    else:
        torch, errors["torch"] = torch_report(python, unit.properties)
    if errors.get("agent"):
        errors["store"] = _store_error(configuration.store.path)
    if not unit.listeners:
        errors["port"] = _port_error(configuration.web.address)
    log = KernelLog(kernel_log_path(configuration))
    log.close()
    tree = Tree(configuration.links.root)
    turn = Turn("schedulers", Trees(tree, tree, tree), HostOrders(), boot_clock())
    manager = "nv-fabricmanager"
    return HostFacts(
        configuration=configuration,
        report=report,
        errors={
            name: error if name == "configuration" else redact_text(error) for name, error in errors.items() if error
        },
        agent=address,
        python=python,
        torch=torch,
        pynvml=any(str(each.metadata["Name"]).lower() == "pynvml" for each in importlib.metadata.distributions()),
        unit=unit.properties,
        listeners=unit.listeners,
        kernel_log=log.up,
        shared_memory=os.statvfs(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else None,
        memlock=resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        cgroup2=Path("/sys/fs/cgroup/cgroup.controllers").exists(),
        clock_error=_clock_error(),
        schedulers=read_schedulers(turn).names,
        fabric_manager=run_bounded([manager, "--version"], COMMAND_SECONDS).text if shutil.which(manager) else "",
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        agent_devices=unit.environment.get("CUDA_VISIBLE_DEVICES"),
    )


def torch_report(python: str, unit: Mapping[str, str]) -> tuple[dict[str, Any], str]:
    """Return (report of torch_report.py about PyTorch, ""), or ({}, error) if the program prints no report."""
    try:
        output = run_bounded([python, "-I", str(TORCH_REPORT)], TORCH_SECONDS, **_user(unit))
        return json.loads(output.text.splitlines()[-1]), ""
    except (IndexError, ValueError):
        return {}, output.error or "it printed no report"
    except KeyError as error:  # no such user or group
        return {}, f"{UNIT}: {error.args[0]}"


def _user(unit: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the user and groups that systemd gives the agent, as arguments of Popen; nothing without root."""
    if os.geteuid() != 0 or not unit.get("User"):
        return {}  # root must not run an interpreter that other users may change
    user = pwd.getpwnam(unit["User"])
    group = grp.getgrnam(unit["Group"]).gr_gid if unit.get("Group") else user.pw_gid
    more = [grp.getgrnam(name).gr_gid for name in unit.get("SupplementaryGroups", "").split()]
    return {"user": user.pw_uid, "group": group, "extra_groups": [*os.getgrouplist(user.pw_name, group), *more]}


def _port_error(address: tuple[str, int]) -> str:
    try:
        socket.create_server(address, family=socket.AF_INET6 if ":" in address[0] else socket.AF_INET).close()
    except OSError as error:
        return (error.strerror or str(error)).partition(" (while")[0]
    return ""


def _store_error(path: Path) -> str:
    try:
        if (copy := examine(path)) is not None:
            copy.close()
    except (StoreError, OSError) as error:
        denied = isinstance(error if isinstance(error, OSError) else error.__cause__, PermissionError)
        return UNREADABLE if denied else f"{getattr(error, 'problem', error)}; {getattr(error, 'remedy', '')}"
    return ""


def _clock_error() -> float | None:
    timex = (ctypes.c_long * 64)()  # larger than C's struct timex, whose member modes is 0, so that nothing is changed
    return float(timex[3]) / 1e6 if ctypes.CDLL(None).adjtimex(timex) >= 0 else None


ABSENT = None
"""Value of `Readiness.level` if the question does not apply to this host."""


class Readiness(NamedTuple):
    """The answer to one question about this host."""

    level: Level | None
    detail: str
    remedy: str = ""
    """Commands to paste into a shell; empty if nothing is to be done."""

    @property
    def word(self) -> str:
        return "absent" if self.level is None else self.level.word


class ReadinessCheck(NamedTuple):
    """A row of the table of checks, from which docs/doctor.md is generated."""

    name: str
    question: str
    answer: Callable[[HostFacts], Readiness]


def count(number: float, noun: str = "GPU") -> str:
    return f"{number:.0f} {noun}{'s' * (number != 1)}"


class ChildOutput(NamedTuple):
    """Standard output of a command (`text`), and why the command failed (`error`): empty if the exit code is 0."""

    text: str
    error: str


def run_bounded(command: Sequence[str], deadline: float, **user: Any) -> ChildOutput:
    """Run a command as `user` (see Popen) and return its output. Kill it if it takes longer than `deadline` seconds."""
    try:
        child = subprocess.Popen(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, text=True, errors="replace", **user)
    except OSError as error:
        return ChildOutput("", f"{command[0]}: {error.strerror or error}")
    try:
        text, errors = child.communicate(timeout=deadline)
    except subprocess.TimeoutExpired:
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=KILLED_SECONDS)
        return ChildOutput("", f"no answer within {deadline:g} s")
    last = next(reversed(errors.strip().splitlines()), "")
    return ChildOutput(text, f"exit code {child.returncode}: {last[:300]}" if child.returncode else "")
