"""CHECKS: the node's history: faults that return after repairs, unexpected reboots, crashes of the agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from gpumon.health.check_row import DAY, HOUR, MINUTE, Check, Latch
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, Limit
from gpumon.health.verdict import FAIL, NODE, PASSED, WARN, Action, Clearance, Finding, warn

NODE_REPAIRS = Limit(
    "node_repairs", 5, "Minimum number of repairs of the node and its GPUs in seven days that raises a verdict.", COUNT
)
GPU_REPAIRS = Limit("gpu_repairs", 3, "Minimum number of repairs of one GPU in 30 days that raises a verdict.", COUNT)
NODE_DAYS, GPU_DAYS = 7, 30
STARTS = Limit(
    "agent_restarts",
    3,
    "Minimum number of agent starts in ten minutes, each after a crash, that raises a verdict.",
    COUNT,
)
TOGETHER = 15 * MINUTE
"""Maximum seconds between the times at which one repair cleared several verdicts of a device."""
_WORDS = {Clearance.RESET: "reset", Clearance.REBOOT: "reboot", Clearance.OPERATOR: "cleared by an operator"}


class Repair(NamedTuple):
    """One repair by an operator: a GPU reset, a reboot, or a verdict that was cleared on request."""

    cleared_by: Clearance
    devices: frozenset[str]
    """All devices whose verdicts a reboot cleared; one device for other repairs."""
    age: float
    """Seconds since the repair."""


def repairs(facts: Facts, *, within: float, after: float = 0.0) -> Iterator[Repair]:
    """Yield the repairs in the last `within` seconds that cleared primary failures, in no particular order.

    If one repair cleared several verdicts, it counts once. Failures that were raised in maintenance, and last active or
    cleared in it, do not count. Nor do repairs up to the time `after`, in seconds since the epoch.
    """
    last: dict[tuple[Clearance, str], Repair] = {}
    for transition in facts.transitions:
        age = facts.age(transition)
        verdict = transition.verdict
        counts = transition.is_repair and verdict.level is FAIL and verdict.inhibited_by is None
        recent = age <= within and facts.now.wall - age > after
        if not counts or not recent or facts.planned_work.was_in_maintenance(transition):
            continue
        cleared_by, device = transition.cleared_by or Clearance.RECOVERED, verdict.device
        key = (cleared_by, transition.time.boot_id if cleared_by is Clearance.REBOOT else device)
        repair = last.get(key)
        if repair is not None and (cleared_by is Clearance.REBOOT or repair.age - age <= TOGETHER):
            last[key] = repair._replace(devices=repair.devices | {device})
            continue
        if repair is not None:
            yield repair
        last[key] = Repair(cleared_by, frozenset({device}), age)
    yield from last.values()


def repeat_offender(facts: Facts) -> Finding | None:
    after = facts.cleared.get(("node_repeat_offender", NODE), 0.0)
    all_repairs = sorted(repairs(facts, within=GPU_DAYS * DAY, after=after), key=lambda repair: -repair.age)
    return _worst_gpu(all_repairs, facts) or _node(all_repairs, facts) or PASSED


def _worst_gpu(all_repairs: list[Repair], facts: Facts) -> Finding | None:
    limit = facts.limit(GPU_REPAIRS)
    for state in facts.gpus:
        own = [repair for repair in all_repairs if state.uuid in repair.devices]
        if limit is not None and len(own) >= limit:
            shared = _gpus_repaired_together(state.uuid, own, all_repairs, facts)
            if shared:
                names = ", ".join(str(index) for index in sorted((state.index, *shared)))
                reason = (
                    f"GPUs {names} had to be repaired together {len(own)} times in {GPU_DAYS} days ({_counts(own)})."
                )
                return _finding(reason, Action.INSPECT, own, facts)
            reason = f"GPU {state.index} had to be repaired {len(own)} times in {GPU_DAYS} days ({_counts(own)})."
            return _finding(reason, Action.REPLACE, own, facts, uuid=state.uuid)
    return None


def _gpus_repaired_together(uuid: str, own: list[Repair], all_repairs: list[Repair], facts: Facts) -> list[int]:
    """Return the indexes of the other GPUs that were repaired at each repair of this GPU: they share the cause."""

    def is_repaired_too(other: str) -> bool:
        ages = [repair.age for repair in all_repairs if other in repair.devices]
        return all(any(abs(age - repair.age) <= TOGETHER for age in ages) for repair in own)

    return [state.index for state in facts.gpus if state.uuid != uuid and is_repaired_too(state.uuid)]


def _node(all_repairs: list[Repair], facts: Facts) -> Finding | None:
    limit = facts.limit(NODE_REPAIRS)
    own = [repair for repair in all_repairs if repair.age <= NODE_DAYS * DAY]
    if limit is None or len(own) < limit:
        return None
    reason = f"The node had to be repaired {len(own)} times in {NODE_DAYS} days ({_counts(own)})."
    return _finding(reason, Action.INSPECT, own, facts)


def _counts(all_repairs: list[Repair]) -> str:
    return ", ".join(
        f"{count} x {_WORDS[cleared_by]}"
        for cleared_by, count in Counter(repair.cleared_by for repair in all_repairs).items()
    )


def _finding(reason: str, action: Action, own: list[Repair], facts: Facts, **evidence: str) -> Finding:
    return warn(reason, action, at=facts.now.wall - own[-1].age, repairs=float(len(own)), **evidence)


def unexpected_reboot(facts: Facts) -> Finding | None:
    """Return a warning if the agent was not stopped regularly before this boot and the node was not in maintenance."""
    booted = facts.wall(0.0)
    runs = facts.agent_runs
    first = next((place for place, run in enumerate(runs) if run.began.boot_id == facts.boot_id), len(runs))
    last = runs[first - 1] if first else None
    if last is None or last.stopped is not None or last.planned:
        return PASSED
    if booted <= facts.cleared.get(("node_unexpected_reboot", NODE), 0.0):
        return PASSED
    down = booted - last.last
    reason = f"The node went down without an orderly shutdown and was booted {_downtime_text(down)}."
    return warn(reason, Action.INSPECT, at=booted, **({"down_seconds": down} if down >= 0 else {}))


def _downtime_text(down: float) -> str:
    """Return how long the node was down, as text. It is unknown (`down` is negative) if the clock was set."""
    if down < 0:
        return "again; the downtime is unknown"
    if down < MINUTE:
        return "less than a minute after it was last alive"
    long = f"{down / HOUR:.0f} h" if down >= 2 * HOUR else f"{down / MINUTE:.0f} min"
    return f"{long} after it was last alive"


def agent_restarting(facts: Facts) -> Finding | None:
    limit = facts.threshold(STARTS)
    crashed = [
        after.began.at
        for before, after in pairwise(run for run in facts.agent_runs if run.began.boot_id == facts.boot_id)
        if before.stopped is None and not before.planned and before.version == after.version
    ]
    in_a_row = [at for at in crashed if crashed[-1] - at <= 10 * MINUTE]
    last = facts.wall(in_a_row[-1]) if in_a_row else 0.0
    if len(in_a_row) < limit or last <= facts.cleared.get(("gpumon_restarting", NODE), 0.0):
        return PASSED
    reason = f"The agent was started {len(in_a_row)} times in ten minutes, each time after a crash or a kill."
    return warn(reason, Action.FIX, at=last, starts=float(len(in_a_row)))


CHECKS: tuple[Check, ...] = (
    Check(
        name="node_unexpected_reboot",
        levels=(WARN,),
        help="The node rebooted without an orderly stop or declared maintenance.",
        steps="""\
1. Check the BMC's event log and `last -x reboot shutdown`: power, watchdog, kernel panic, an operator?
2. `journalctl -b -1 -e` and /api/v1/events: an Xid shortly before names the GPU.
3. Before a planned reboot: `gpumon maintenance start --for 30m --reason ...` or `systemctl stop gpumon.socket gpumon`.
""",
        node=unexpected_reboot,
        latch=Latch(quiet=DAY, repair=False),
    ),
    Check(
        name="node_repeat_offender",
        levels=(WARN,),
        help="A repaired fault keeps coming back.",
        steps="""\
1. `transitions` in /api/v1/health lists past faults and what cleared them, newest first.
2. If the verdict names a GPU, replace it. Otherwise inspect what GPUs share: power, risers, cooling, links, driver.
3. Afterwards run `gpumon clear node_repeat_offender --note "board replaced"`, which restarts the count.
""",
        node=repeat_offender,
        latch=Latch(quiet=NODE_DAYS * DAY, repair=False),
        limits=(NODE_REPAIRS, GPU_REPAIRS),
    ),
    Check(
        name="gpumon_restarting",
        levels=(WARN,),
        help="The agent crashes or is killed repeatedly.",
        steps="""\
1. `journalctl -u gpumon -e` shows why it ended: memory limit (MemoryMax), watchdog, or an internal error.
2. Report it with the log. Verdicts and events are kept; readings in between are lost.
""",
        node=agent_restarting,
        latch=Latch(quiet=HOUR, repair=False),
        limits=(STARTS,),
    ),
)
