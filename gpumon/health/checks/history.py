"""CHECKS: the node's own history: repairs that do not last, reboots that nobody asked for, an agent that restarts."""

from __future__ import annotations

from collections import Counter

from gpumon.health import agent_runs
from gpumon.health.check import DAY, HOUR, MINUTE, Check, Latch
from gpumon.health.facts import Facts
from gpumon.health.policy import COUNT, Limit
from gpumon.health.repairs import TOGETHER, Repair, repairs
from gpumon.health.verdict import NODE, OFF, PASSED, WARN, Action, Finding, Way, warn

NODE_REPAIRS = Limit("node_repairs", 5, "Repairs of the node and its GPUs in seven days that are a verdict.", COUNT)
GPU_REPAIRS = Limit("gpu_repairs", 3, "Repairs of one GPU in 30 days that are a verdict.", COUNT)
NODE_DAYS, GPU_DAYS = 7, 30
STARTS = Limit(
    "agent_restarts", 3, "Starts of the agent in ten minutes, each after a crash, that are a verdict.", COUNT
)
_WORDS = {Way.RESET: "reset", Way.REBOOT: "reboot", Way.ACKNOWLEDGED: "acknowledged"}


def repeat_offender(facts: Facts) -> Finding | None:
    after = facts.cleared.get(("node_repeat_offender", NODE), 0.0)
    known = sorted(repairs(facts, within=GPU_DAYS * DAY, after=after), key=lambda one: -one.age)
    return _worst_gpu(known, facts) or _node(known, facts) or PASSED


def _worst_gpu(known: list[Repair], facts: Facts) -> Finding | None:
    most = facts.limit(GPU_REPAIRS)
    for state in facts.gpus:
        own = [one for one in known if state.uuid in one.devices]
        if most is not None and len(own) >= most:
            shared = _others(state.uuid, own, known, facts)
            if shared:
                names = ", ".join(str(one) for one in sorted((state.index, *shared)))
                reason = f"GPUs {names} had to be repaired together {len(own)} times in {GPU_DAYS} days ({_ways(own)})."
                return _finding(reason, Action.INSPECT, own, facts)
            reason = f"GPU {state.index} had to be repaired {len(own)} times in {GPU_DAYS} days ({_ways(own)})."
            return _finding(reason, Action.REPLACE, own, facts, uuid=state.uuid)
    return None


def _others(uuid: str, own: list[Repair], known: list[Repair], facts: Facts) -> list[int]:
    """Other GPUs that were repaired each time that it was: then it is something that they share."""

    def with_it(other: str) -> bool:
        ages = [one.age for one in known if other in one.devices]
        return all(any(abs(age - one.age) <= TOGETHER for age in ages) for one in own)

    return [state.index for state in facts.gpus if state.uuid != uuid and with_it(state.uuid)]


def _node(known: list[Repair], facts: Facts) -> Finding | None:
    most = facts.limit(NODE_REPAIRS)
    own = [one for one in known if one.age <= NODE_DAYS * DAY]
    if most is None or len(own) < most:
        return None
    reason = f"The node had to be repaired {len(own)} times in {NODE_DAYS} days ({_ways(own)})."
    return _finding(reason, Action.INSPECT, own, facts)


def _ways(known: list[Repair]) -> str:
    return ", ".join(f"{count} x {_WORDS[way]}" for way, count in Counter(one.way for one in known).items())


def _finding(reason: str, action: Action, own: list[Repair], facts: Facts, **evidence: str) -> Finding:
    return warn(reason, action, at=facts.now.wall - own[-1].age, repairs=float(len(own)), **evidence)


def unexpected_reboot(facts: Facts) -> Finding | None:
    """Who stops the agent in order, as every shutdown does, or has declared maintenance, expects it."""
    booted = facts.now.wall - facts.uptime
    last = agent_runs.last_before_boot(facts.agent_runs, facts.boot_id)
    if last is None or last.stopped is not None or last.planned:
        return PASSED
    if booted <= facts.cleared.get(("node_unexpected_reboot", NODE), 0.0):
        return PASSED
    down = booted - last.last
    reason = f"The node went down without an orderly stop, and was booted {_after(down)}."
    return warn(reason, Action.INSPECT, at=booted, **({"down_seconds": down} if down >= 0 else {}))


def _after(down: float) -> str:
    """How long after it was last seen; nobody knows that where the clock was set in between, or is still to be set."""
    if down < 0:
        return "again; for how long it was down the clock does not tell"
    if down < MINUTE:
        return "less than a minute after it was last seen"
    long = f"{down / HOUR:.0f} h" if down >= 2 * HOUR else f"{down / MINUTE:.0f} min"
    return f"{long} after it was last seen"


def agent_restarting(facts: Facts) -> Finding | None:
    most = facts.limit(STARTS)
    if most is None:
        return OFF
    crashed = list(agent_runs.restarts(facts.agent_runs, facts.boot_id))
    in_a_row = [at for at in crashed if crashed[-1] - at <= 10 * MINUTE]
    last = facts.now.wall - (facts.now.at - in_a_row[-1]) if in_a_row else 0.0
    if len(in_a_row) < most or last <= facts.cleared.get(("gpumon_restarting", NODE), 0.0):
        return PASSED
    reason = (
        f"The agent was started {len(in_a_row)} times in ten minutes, each time after it had crashed or been killed."
    )
    return warn(reason, Action.INSPECT, at=last, starts=float(len(in_a_row)))


CHECKS: tuple[Check, ...] = (
    Check(
        name="node_unexpected_reboot",
        levels=(WARN,),
        help="The node was rebooted, and nobody had stopped it in order or declared maintenance.",
        steps="""\
1. The BMC's event log and `last -x reboot shutdown` tell what happened: power, watchdog, kernel panic, a person.
2. `journalctl -b -1 -e` and /api/v1/events tell what was wrong before: an Xid in its last minutes names the GPU.
3. Before a planned reboot: `gpumon maintenance start 30m --reason ...`, or `systemctl stop gpumon`.
""",
        node=unexpected_reboot,
        latch=Latch(quiet=DAY, repair=False),
    ),
    Check(
        name="node_repeat_offender",
        levels=(WARN,),
        help="What was repaired fails again and again.",
        steps="""\
1. What was wrong, and what ended it, stands in /api/v1/health under `transitions`, the newest first.
2. A GPU is named: have it replaced; more resets will not help. Else inspect what its GPUs share: power, risers,
   cooling, links, driver.
3. When it is done: `gpumon ack node_repeat_offender --note "board replaced"`; counting begins anew.
""",
        node=repeat_offender,
        latch=Latch(quiet=NODE_DAYS * DAY, repair=False),
        limits=(NODE_REPAIRS, GPU_REPAIRS),
    ),
    Check(
        name="gpumon_restarting",
        levels=(WARN,),
        help="The agent crashes, or is killed, again and again.",
        steps="""\
1. `journalctl -u gpumon -e` tells why it ended: killed for memory (MemoryMax), by the watchdog, or by its own mistake.
2. Verdicts and events are not lost by it; readings are, in between.
3. Report it, with the log.
""",
        node=agent_restarting,
        latch=Latch(quiet=HOUR, repair=False),
        limits=(STARTS,),
    ),
)
