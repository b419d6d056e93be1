"""Types of the table of faults: a fault with its steps and its verdict, and a key of the scenario file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from gpumon.health.verdict import Action
from gpumon.model.str_enum import StrEnum
from gpumon_sim.board import Profile
from gpumon_sim.effects import Alter, SimCall
from gpumon_sim.faults.conditions import anywhere
from gpumon_sim.physics import Workload
from gpumon_sim.shapes import Shape

MINUTE = 60.0
FULL = "h100x8"
"""Profile of the rows that name no other. A soak runs on it."""
Use = Literal["page", "soak", "truth"]
"""What reads the faults of a key: golden pages (`make test`), `make soak`, and `make truth`."""
USES: tuple[Use, ...] = get_args(Use)
BUSY: Mapping[str, Any] = {"busy": True}
IDLE: Mapping[str, Any] = {"idle": True}
PORT = "mlx5_1"
"""Port with the faults of ports."""
TEMPERATURE_CALLS = ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature"]
"""Functions of which every poll of a GPU calls one."""
NOW = "now"
"""Placeholder in a value for the time at which the fault begins, in seconds since the start of the node."""


def growing(rate: float, value: float = 0.0) -> dict[str, Any]:
    """Return the scenario of a counter that begins to grow by `rate` per second."""
    return {"value": value, "rate": rate, "from": NOW}


def at_time(value: Any, now: float) -> Any:
    """Return a value of the scenario with the time in place of NOW."""
    if value == NOW:
        return now
    if isinstance(value, Mapping):
        return {key: at_time(inner, now) for key, inner in value.items()}
    return [at_time(inner, now) for inner in value] if isinstance(value, list | tuple) else value


class Act(StrEnum):
    """What happens to the agent or its host in a step, which no scenario can express. `make truth` does it."""

    RESTART = "the agent is killed and started again"
    REBOOT = "the node reboots"
    PLANNED_REBOOT = "the agent is stopped, and the node reboots"
    HOLD_PROCESSES = "SIGKILL does not end processes of the agent"
    LOSE_RECORDS = "the kernel log loses records"
    LOSE_LOG = "the kernel log cannot be read"
    BREAK_CONFIGURATION = "the configuration is reloaded from an invalid file"
    FILL_DISK = "the disk is full"
    GOOD_RUNS = "earlier runs of the all-reduce were good"
    RUN = "the all-reduce runs"
    RUN_SLOW = "the all-reduce runs slowly"
    RUN_SLOW_GPU = "the all-reduce runs slowly on all paths of one GPU"
    RUN_SLOW_PATH = "the all-reduce runs slowly on one path between two GPUs"
    RUN_WITHOUT_SHARP = "the all-reduce runs slowly, except with the ring algorithm"
    RUN_LATE_SMALL = "the all-reduce of a few bytes is slow"
    RUN_WRONG = "the all-reduce returns wrong sums"
    RUN_WRONG_GPU = "one GPU sends wrong data in the all-reduce"
    RUN_BROKEN = "the all-reduce fails during an operation"
    RUN_NOT_BEGUN = "the all-reduce fails before its first operation"
    RUN_LATE = "the all-reduce times out"
    RUN_UNKILLABLE = "the all-reduce times out, and SIGKILL does not end a rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioStep:
    """A scenario that begins `at` seconds after the start of the fault and lasts until the next step."""

    at: float = 0.0
    gpu: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the GPU: see docs/simulation.md."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """Scenario of the node."""
    log: tuple[str, ...] = ()
    """Lines of the kernel log; {bus} is the PCI address of the GPU in the kernel's notation."""
    act: Act | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings with which the agent is killed and started again; empty: it is not."""


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A fault, and what must follow from it.

    Every reader of the table takes what it needs. `make truth` and `make pages` take the rows with a check, golden
    pages and the soak the first step of the rows of a key.
    """

    steps: tuple[ScenarioStep, ...]
    _: KW_ONLY
    name: str = ""
    """Name of the measurement: unique, and not changed afterwards."""
    check: str = ""
    """Check of gpumon that must raise a verdict; empty: `make truth` does not measure the fault alone."""
    where: str = "gpu"
    """Device that the verdict must name: the faulty `gpu`, the `node` (or the agent), a job, or a port."""
    action: Action = Action.INSPECT
    on: Callable[[Profile], bool] = anywhere
    """Returns whether the fault can happen on this profile."""
    within: float | None = None
    """Deadline of the verdict in seconds; None: the delay of the check plus a minute."""
    before: Mapping[str, Any] = field(default_factory=lambda: BUSY)
    """Scenario of the node before and during the fault."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hides: bool = False
    """True if the GPU cannot be read after the last step: its readings must disappear, and hide its other faults."""
    disturbs: float = 0.0
    """Seconds for which other GPUs may have no readings, because the process that reads them has to be replaced."""
    miss: str = ""
    """Reason why the fault is not found, in one sentence."""
    second_notification: str = ""
    """What the two notifications are about, if the fault has two."""
    profile: str = FULL
    """Profile of the golden page."""
    gpu: int = 3
    """GPU of the golden page."""

    @property
    def scenario(self) -> Mapping[str, Any]:
        """Return the first scenario, of the node if it has one, else of the GPU."""
        return self.steps[0].node or self.steps[0].gpu


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioKey:
    """A key of the scenario file: the validator of its value, and the effect.

    The effect is at most one of the functions `refuse` (on calls), `alter` (on GPU states) and `plan` (on workloads).
    """

    key: str
    value: str
    """Allowed values, as text for the documentation."""
    help: str
    """Effect, as text for the documentation."""
    shape: Shape
    gpu: bool = True
    """True if the scenario may set the key for single GPUs."""
    node: bool = False
    """True if the key is allowed at the top of the file, for all calls or the whole node."""
    refuse: Callable[[Any, SimCall], int | None] | None = None
    """Function that delays, hangs or crashes a call, or returns the error code with which the call is to fail. If it
    returns None, the call continues.
    """
    alter: Alter | None = None
    """Function that returns a GPU's state with the key applied, from the value, the state and the time. Applying it
    twice has the same effect as applying it once.
    """
    plan: Callable[[Any, int, int], Workload | None] | None = None
    """Function that returns a GPU's workload, from the value, the seed and the GPU; None if the key sets none."""
    faults: tuple[FaultRow, ...]
    """Faults whose scenario sets this key; the first one is the example of the documentation."""
    without: Mapping[Use, str] = field(default_factory=dict)
    """What does not use the faults, with the reason."""

    def page(self, profile: str) -> Mapping[str, Any]:
        """Return the scenario of a golden page: the first fault of each GPU of this profile, or of the node."""
        rows = [fault for fault in self.faults if fault.profile == profile]
        gpus = {row.gpu: row.scenario for row in reversed(rows) if not row.steps[0].node}
        scenario: Mapping[str, Any] = at_time({"gpus": gpus} if gpus else rows[0].scenario, 0.0)
        return scenario


# Steps


def of_gpu(**scenario: Any) -> tuple[ScenarioStep, ...]:
    """Return one step with a permanent scenario of the GPU."""
    return (ScenarioStep(gpu=scenario),)


def of_node(**scenario: Any) -> tuple[ScenarioStep, ...]:
    """Return one step with a permanent scenario of the node."""
    return (ScenarioStep(node=scenario),)


def kernel_log(*lines: str) -> tuple[ScenarioStep, ...]:
    """Return one step with lines of the kernel log."""
    return (ScenarioStep(log=lines),)


def xid(code: int, text: str, **also: Any) -> tuple[ScenarioStep, ...]:
    """Return an Xid that both NVML and the kernel log report."""
    return (ScenarioStep(gpu={"xids": [code], **also}, log=(f"NVRM: Xid (PCI:{{bus}}): {code}, {text}",)),)


def xids(code: int, text: str, times: int, pause: float) -> tuple[ScenarioStep, ...]:
    """Return several Xids, `pause` seconds apart."""
    line = f"NVRM: Xid (PCI:{{bus}}): {code}, {text}"
    return tuple(ScenarioStep(at=n * pause, gpu={"xids": [code] * (n + 1)}, log=(line,)) for n in range(times))


def after_restart(**fault: Any) -> tuple[ScenarioStep, ...]:
    """Return a fault of node or GPU during which the agent is restarted, so that the GPU is looked up again."""
    return (ScenarioStep(**fault), ScenarioStep(at=1.0, **fault, act=Act.RESTART))


def flaps(times: int, pause: float, **down: Any) -> tuple[ScenarioStep, ...]:
    """Return repeated faults, each active for half of `pause` seconds. `down` is a scenario of node or GPU."""
    return tuple(
        step for n in range(times) for step in (ScenarioStep(at=n * pause, **down), ScenarioStep(at=(n + 0.5) * pause))
    )
