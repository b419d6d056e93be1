"""CHECKS: NVLinks that are down or slow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpumon.health.catalogue import RECOVERY_ACTION
from gpumon.health.check_row import MINUTE, Check, Latch, Paging, Where, XidCause, any_device, began_together
from gpumon.health.checks.xid import LINKS, sxid_events
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.policy import SHARE, Limit
from gpumon.health.products import link_speed
from gpumon.health.sample_windows import CounterGrowth, SampleWindow
from gpumon.health.verdict import PASSED, Action, Finding, Level, clear, fail, warn
from gpumon.health.xid_texts import LINK_DOWN, Scope

_ELSEWHERE = frozenset({108, 121, 137, 159, 173})
"""Link Xids that point to the GPU at the other end of the link, and Xids of chip-to-chip links."""
LINK_XIDS = LINKS - {RECOVERY_ACTION} - _ELSEWHERE
"""Xids with which the driver reports a failed NVLink."""
RECOVERIES = SampleWindow("gpumon_nvlink_recoveries_total", 5 * MINUTE)

SPEED = Limit(
    "min_nvlink_speed_ratio",
    0.95,
    "Minimum speed of an NVLink, as a share of its product's and its neighbours'.",
    SHARE,
)

_TRAINING_BEFORE, _TRAINING_AFTER = MINUTE, 3 * MINUTE
"""Seconds before and after the detection of a GPU reset in which its links may be down or in training."""

_LOST: Mapping[str, Where | XidCause] = {
    "gpu_lost": "peer",
    "gpu_missing": "peer",
    "gpu_xid_critical": XidCause("same", LINK_XIDS),
}


def links_down(gpu: GpuCase) -> Finding | None:
    """Return a failure if NVLinks are down that should be up: for others the reading `up` is not 0 (products.py)."""
    links = gpu.state.links
    if not can_evaluate(gpu):
        return None
    down = [link for link, state in links.items() if state.up == 0]
    if not down:
        return None if _is_unreported(gpu) else PASSED
    subject = f"NVLink {', '.join(down)}" if len(down) < len(links) else "Each NVLink"
    reason = f"{subject} of {len(links)} {'is' if len(down) in {1, len(links)} else 'are'} down."
    return fail(reason, Action.RESET, links_down=len(down), links=len(links), down=",".join(down))


def _is_unreported(gpu: GpuCase) -> bool:
    """Return whether a link of the open verdict has no state, as after a restart of the agent."""
    verdict = gpu.facts.open.get(("nvlink_down", gpu.state.uuid))
    if verdict is None or gpu.now.mig_mode:
        return False
    were_down = str(verdict.evidence.get("down", "")).split(",")
    return any(state.up is None for link, state in gpu.state.links.items() if link in were_down)


def recovery_failed(gpu: GpuCase) -> Finding | None:
    if not can_evaluate(gpu):
        return None
    cleared = gpu.time_cleared("nvlink_recovery_failed")
    grown = [
        growth for growth in link_growth(gpu, RECOVERIES, since=cleared) if growth.labels.get("result") == "failed"
    ]
    if not grown:
        return PASSED
    links = ", ".join(sorted({growth.labels["link"] for growth in grown}, key=int))
    at = gpu.facts.wall(max(growth.last_at for growth in grown))
    return fail(f"NVLink {links} could not be retrained after errors.", Action.RESET, at=at, links=links)


def slow_link(gpu: GpuCase) -> Finding | None:
    share, speed = gpu.facts.threshold(SPEED), gpu.now.nvlink_speed_bytes_per_second
    if speed is None or gpu.now.mig_mode or not can_evaluate(gpu):
        return None
    others = (other.gpu.nvlink_speed_bytes_per_second for other in gpu.facts.gpus if other.gpu.name == gpu.now.name)
    best = max([link_speed(gpu.now.name) or 0.0, *filter(None, others)])
    if speed >= share * best:
        return PASSED
    reason = f"The slowest NVLink runs at {speed / 1e9:.1f} GB/s in each direction; expected are {best / 1e9:.1f} GB/s."
    return warn(reason, Action.RESET, nvlink_speed_bytes_per_second=speed, best_bytes_per_second=best)


def can_evaluate(gpu: GpuCase) -> bool:
    """Return whether the GPU has links and no GPU is released, whose reset would take down the links of its peers."""
    return bool(gpu.state.links) and not any(other.released for other in gpu.facts.gpus)


def link_growth(gpu: GpuCase, window: SampleWindow, *, since: float | None = None) -> Iterator[CounterGrowth]:
    """Yield the NVLink counters that increased in the window, without errors from link training after a GPU reset."""
    growths = gpu.growth(window, since=since)
    if not growths:
        return
    resets = [state.reset_at for state in gpu.facts.gpus if state.reset_at is not None]
    trainings = [(at - _TRAINING_BEFORE, at + _TRAINING_AFTER) for at in resets]
    for growth in growths:
        steps = tuple(step for step in growth.steps if not any(begin < step[0] < end for begin, end in trainings))
        if steps:
            yield CounterGrowth(growth.labels, steps)


def switch_link_down(facts: Facts) -> Finding | None:
    """Return a failure for a link of an NVSwitch that failed in this boot and was not repaired.

    The log line does not name the GPU behind the link. The link counts as repaired once all NVLinks of the node are up,
    no GPU has a fault and, for an SXid that is not in LINK_DOWN, a GPU was reset after the error.
    """
    last_reset = max((facts.wall(state.reset_at) for state in facts.gpus if state.reset_at is not None), default=0.0)
    events = sxid_events(facts, "nvswitch_link_down", Scope.LINK)
    if not events:
        return PASSED
    if any(state.released for state in facts.gpus):
        return None
    links = [link.up for state in facts.gpus for link in state.links.values()]
    if links and all(links) and not any(state.fault for state in facts.gpus):
        events = [event for event in events if event.code not in LINK_DOWN and event.last.wall > last_reset]
    if not events:
        return clear()
    last = max(events, key=lambda event: event.last.wall)
    words = f"A link of NVSwitch {last.bus_id} {'went down' if last.code in LINK_DOWN else 'failed'}: SXid {last.code}."
    return fail(words, Action.RESET, at=last.last.wall, sxid=last.code, nvswitch=last.bus_id)


FAILED_LINK: Mapping[str, Where | XidCause] = {**_LOST, "nvlink_down": "same", "nvlink_recovery_failed": "same"}

CHECKS = (
    Check(
        name="nvlink_down",
        pages=Paging.NIGHT,
        help="An NVLink that should be up is down.",
        steps="""\
1. `nvidia-smi nvlink -s` and `dmesg | grep -i xid` (74, or 144 to 150 from Blackwell on).
2. With NVSwitches: does the fabric manager run, in the driver's version? Check its log.
3. Drain the node and reset the GPU; without NVSwitches, reset all GPUs that share links with it.
4. If it recurs: reseat or replace the board, the bridge or the tray.
""",
        gpu=links_down,
        after=2 * MINUTE,
        grace=True,
        inhibited_by={**_LOST, "fabric_manager_down": "node", "nvswitch_error": "node"},
    ),
    Check(
        name="nvlink_recovery_failed",
        help="An NVLink had errors and could not be retrained.",
        steps="""\
1. Drain the node and reset the GPU. The link is down or about to fail.
2. Without NVSwitches: drain the node and reset all GPUs that share links with it.
3. If it recurs: reseat or replace the board, the cartridge or the cable.
""",
        gpu=recovery_failed,
        latch=Latch(),
        windows=(RECOVERIES,),
        inhibited_by={**_LOST, "nvlink_down": "same"},
    ),
    Check(
        name="nvlink_slow",
        levels=(Level.WARN,),
        help="An NVLink is slower than its product's speed, or than its neighbours.",
        steps="""\
1. `nvidia-smi nvlink -s` names the link.
2. Drain the node and reset the GPU, which trains its links; without NVSwitches, also the GPUs that share links with it.
3. If it stays slow: reseat or replace the board or the peer.
""",
        gpu=slow_link,
        after=5 * MINUTE,
        grace=True,
        limits=(SPEED,),
        inhibited_by=FAILED_LINK,
    ),
    Check(
        name="nvswitch_link_down",
        help="An NVSwitch reported that a link to a GPU went down or had a fatal error.",
        steps="""\
1. Drain the node and reset the GPU. It is the GPU behind the link: `nvidia-smi nvlink -s` shows whose link is down.
2. If none is down: the SXid's line in the kernel log names the link of the switch, the fabric manager's log its GPU.
3. The verdict ends when all NVLinks of the node are up; for SXids other than 20034 and 22012, after a GPU reset too.
4. If it recurs: check the seating of the GPU, the baseboard and the NVLink cartridge.
""",
        node=switch_link_down,
        after=MINUTE,
        inhibited_by=any_device("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "nvlink_down")
        | {"gpu_xid_critical": XidCause("any", LINK_XIDS), "nvswitch_error": "node"},
        inhibited_if=began_together,
    ),
)
