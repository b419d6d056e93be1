"""The shapes of /api/v1/health."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gpumon.server.schema_release import Maintenance
from gpumon.server.shape import Shape, moment

Word = Literal["ok", "unknown", "warn", "fail"]


class Verdict(Shape):
    """What a check found of one device, and what to do about it."""

    check: str
    level: Word
    title: str = Field(description="What is wrong when this check speaks.")
    device: str | None = Field(description="uuid of a GPU, `device/port` of a port; null for the node.")
    gpu: int | None
    reason: str = Field(description="In words, with the numbers that matter.")
    action: str = Field(description="none, restart, reset, reboot, inspect or replace. none while a repair is proved.")
    action_words: str
    repair: str | None = Field(
        description="reboot, reset: what it asks for, or more, was done since it was last so, and has to prove itself. "
        "Else null."
    )
    repaired: str | None = moment("When that was.")
    evidence: dict[str, float | str]
    active: bool = Field(description="It is so now; false: it was, and stays until something clears it.")
    since: str = moment("When it was raised.")
    seen: str = moment("When it was last so.")


class PrimaryVerdict(Verdict):
    consequences: list[Verdict] = Field(description="What follows from it.")


class GpuLevel(Shape):
    gpu: int = Field(description="NVML index under which it was first seen since boot.")
    nvml_index: int | None = Field(
        description="NVML index that it has now: another one when the driver has been initialised again without a GPU "
        "before it. null while the driver does not list it, or nobody can tell."
    )
    uuid: str
    pci_bus_id: str
    migs: list[str] = Field(description="uuids of its MIG instances.")
    level: Word
    fault: str | None
    released: bool = Field(description="The agent keeps off it: nobody looks.")


class Ruling(Shape):
    """What became of a verdict."""

    time: str = moment("When.")
    change: Literal["raised", "changed", "cleared"]
    way: str | None = Field(description="Why it was cleared.")
    way_words: str
    note: str = Field(description="Of the person who acknowledged it.")
    muted: bool = Field(description="The node was in maintenance.")
    verdict: Verdict


class KeptVerdict(Verdict):
    why: str = Field(description="Why it cannot be acknowledged.")


class Acknowledged(Shape):
    """What became of what was to be acknowledged."""

    acknowledged: list[Verdict]
    kept: list[KeptVerdict] = Field(description="Those that cannot be.")
    stored: bool = Field(description="False: the store is out of order, and is told when it can be written again.")


class Health(Shape):
    """The node's health."""

    level: Word
    judged: str | None = moment("When last, which is every 5 s; null until then after a start of the agent.")
    judged_age_seconds: float | None = Field(
        description="How long ago that was, by a clock that nobody sets: more than a minute, and the agent is stuck."
    )
    score: float | None = Field(description="0 to 100, by the last 30 days: 100 is a node that nothing happened to.")
    verdicts: list[PrimaryVerdict] = Field(description="The worst first.")
    gpus: list[GpuLevel]
    gpus_awaited: int = Field(
        description="GPUs that should be here and that the driver does not count, in the minutes before that is a "
        "verdict too."
    )
    maintenance: Maintenance | None = Field(description="The one in force: what is ruled in it is muted.")
    rulings: list[Ruling] = Field(description="The newest first.")
