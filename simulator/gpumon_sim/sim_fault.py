"""Types of the rows in the table of faults: a key of the scenario file, its effect, and what follows from the row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any, Literal, get_args

from gpumon.health.verdict import Action
from gpumon_sim.board import BLACKWELL, Profile
from gpumon_sim.effects import Alter, SimCall
from gpumon_sim.physics import Workload
from gpumon_sim.shapes import Shape

MINUTE = 60.0
FULL = "h100x8"
"""Profile of the examples that name no other. A soak runs on it."""
Use = Literal["page", "soak", "truth"]
"""What reads the examples: golden pages (`make test`), `make soak`, and `make truth`."""
USES: tuple[Use, ...] = get_args(Use)
BUSY: Mapping[str, Any] = {"busy": True}
IDLE: Mapping[str, Any] = {"idle": True}
PORT = "mlx5_1"
"""Port with the faults of ports."""
NOW = "now"
"""Placeholder in a value for the time at which the fault begins, in seconds since the start of the node."""
ADA = 8
"""NVML's architecture number; boards after it count errors of PCIe by their kind."""
MANY = 8
"""Number of GPUs from which slow calls make a poll slow."""
UNSUPPORTED = 0
"""Fabric state of a board without a fabric, which has no registration that could fail."""


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


# Where a fault can happen


def anywhere(_: Profile) -> bool:
    return True


def several(profile: Profile) -> bool:
    return len(profile.bus_ids) > 1


def has_nvlinks(profile: Profile) -> bool:
    """Return whether NVLinks are up and in use."""
    return bool(profile.board.links) and profile.links_active and not profile.mig


def nvlink4(profile: Profile) -> bool:
    return has_nvlinks(profile) and not profile.board.nvlink5


def nvlink5(profile: Profile) -> bool:
    return has_nvlinks(profile) and profile.board.nvlink5


def fabric(profile: Profile) -> bool:
    return profile.fabric is not None and profile.fabric.state != UNSUPPORTED and not profile.guest


def fabric_health(profile: Profile) -> bool:
    """Return whether the driver reports the health of the fabric."""
    return fabric(profile) and profile.fabric is not None and bool(profile.fabric.health)


def has_fabric_manager(profile: Profile) -> bool:
    return "fabric_manager" in profile.services


def imex(profile: Profile) -> bool:
    return "imex" in profile.services


def whole(profile: Profile) -> bool:
    """Return whether MIG is disabled. Partitioned GPUs have no volatile ECC counts, utilization or clocks."""
    return not profile.mig


def remaps(profile: Profile) -> bool:
    return profile.board.remap_banks is not None and not profile.mig


def retires(profile: Profile) -> bool:
    return profile.board.remap_banks is None


def has_recovery_action(profile: Profile) -> bool:
    """Return whether the driver reports a recovery action."""
    return int(profile.driver.partition(".")[0]) >= 570


def blackwell(profile: Profile) -> bool:
    return profile.board.architecture >= BLACKWELL


def counts_pcie_errors(profile: Profile) -> bool:
    return profile.board.architecture > ADA and not profile.guest


def has_ports(profile: Profile) -> bool:
    return profile.ports is not None


def hot_memory(profile: Profile) -> bool:
    return profile.board.memory_temperature_idle is not None and profile.board.thresholds_reported


@dataclass(frozen=True, slots=True)
class Example:
    """A valid value of a key, and what must follow from it.

    The first example of each GPU of a profile is on the golden page of the profile.
    """

    value: Any
    gpu: int | None = 3
    """GPU of the golden page; None: the value is at the top of the file."""
    _: KW_ONLY
    profile: str = FULL
    hides: bool = False
    """True if the GPU cannot be read while the fault is active: its readings must disappear."""
    disturbs: float = 0.0
    """Seconds for which other GPUs may have no readings, because the process that reads them has to be replaced."""
    check: str = ""
    """Check of gpumon that must raise a verdict; empty: `make truth` does not measure the example alone."""
    name: str = ""
    """Name of that measurement: unique, and not changed afterwards."""
    action: Action = Action.INSPECT
    about: str = ""
    """Device of the verdict if it is not the GPU or the node with the fault: `node`, or a port."""
    within: float | None = None
    """Deadline of the verdict in seconds; None: the delay of the check plus a minute."""
    on: Callable[[Profile], bool] = anywhere
    """Returns whether the fault can happen on this profile."""
    before: Mapping[str, Any] = field(default_factory=lambda: BUSY)
    """Scenario of the node before and during the fault."""
    restarts: bool = False
    """True if the verdict needs a restart of the agent after the fault, so that GPUs are looked up again."""


on_node = partial(Example, gpu=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimFault:
    """A fault: a key of the scenario file, the validator of the key's value, and the effect.

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
    """Function that returns a GPU's state with the fault applied, from the value, the state and the time. Applying it
    twice has the same effect as applying it once.
    """
    plan: Callable[[Any, int, int], Workload | None] | None = None
    """Function that returns a GPU's workload, from the value, the seed and the GPU; None if the fault sets none."""
    examples: tuple[Example, ...]
    without: Mapping[Use, str] = field(default_factory=dict)
    """What does not use the examples, with the reason."""

    def examples_on(self, profile: str) -> tuple[Example, ...]:
        return tuple(example for example in self.examples if example.profile == profile)

    def scenario(self, profile: str) -> Mapping[str, Any]:
        """Return the scenario of a golden page: the first example of each GPU of this profile, or of the node."""
        first = {example.gpu: at_time(example.value, 0.0) for example in reversed(self.examples_on(profile))}
        gpus = {gpu: {self.key: value} for gpu, value in first.items() if gpu is not None}
        return {"gpus": gpus} if gpus else {self.key: first[None]}
