"""CHECKS: the PCIe link of a GPU."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

from gpumon.health.check_row import DAY, HOUR, MINUTE, Check, Latch, same
from gpumon.health.facts import GpuCase
from gpumon.health.policy import SHARE, Limit, Range
from gpumon.health.sample_windows import CounterGrowth, SampleWindow
from gpumon.health.verdict import PASSED, Action, Finding, Level, fail, warn
from gpumon.model.error_event import AER, ErrorEvent

REPLAYS = SampleWindow("gpumon_gpu_pcie_replays_total", 5 * MINUTE)
ERRORS = SampleWindow("gpumon_gpu_pcie_errors_total", HOUR)
BUSY = SampleWindow("gpumon_gpu_utilization_ratio", 10 * MINUTE)
SM_BUSY = SampleWindow("gpumon_gpu_sm_active_ratio", 10 * MINUTE)
"""Window that replaces BUSY for a GPU in MIG mode, which does not report utilization."""
GENERATION = SampleWindow("gpumon_gpu_pcie_link_generation", 10 * MINUTE)
WIDTH = SampleWindow("gpumon_gpu_pcie_link_width", 10 * MINUTE)

REPLAY_SHARE = Limit(
    "max_pcie_replay_ratio",
    1.0,
    "Maximum rate of PCIe replays, as a multiple of what is normal for its generation.",
    Range(0, 100, open_below=True),
)
BUSY_SHARE = Limit(
    "pcie_busy_ratio", 0.1, "Minimum busy share at which a GPU must run its PCIe link at full speed.", SHARE
)
SEVERAL = 3
"""Minimum number of non-fatal errors in an hour for a warning if the kernel reported no PCIe error of the GPU."""
RECENT = 5 * MINUTE
"""Seconds for which an error counts as recent. Older errors raise no verdict."""
FULL = 255
"""Maximum of the driver's counters of fatal and of non-fatal errors."""
REPLAYS_A_LANE = 0.48
"""Normal PCIe replays per minute and lane at generation 3. The number doubles with each generation, as in DCGM."""
_THIRD = 3
_SLACK = 30.0
"""Seconds that may be missing from a window of samples: readings are 15 s apart."""


def width(gpu: GpuCase) -> Finding | None:
    """Return a finding if a busy GPU uses fewer PCIe lanes than GPU and slot support, or than an operator accepted.

    It is a failure if the GPU used more lanes before, or if most other GPUs of the product do; else a warning.
    """
    busy, now, max_width = gpu.facts.threshold(BUSY_SHARE), gpu.now.pcie_link_width, gpu.now.pcie_link_width_max
    if not now or not max_width:
        return None
    stored = gpu.state.stored
    before, accepted = (0.0, False) if stored is None else (stored.lanes or 0.0, stored.lanes_accepted)
    enough = before if accepted else max_width
    lanes = now if now >= enough else _highest_under_load(gpu, WIDTH, busy)
    if lanes is None:
        return None if gpu.has_verdict("pcie_width_degraded") else PASSED
    if lanes >= enough:
        return PASSED
    usual = _usual_lanes(gpu) or 0.0
    make = fail if lanes < max(before, usual) else warn
    had = f"it had {before:.0f} before" if lanes < before else f"most GPUs of its kind here have {usual:.0f}"
    reason = f"The PCIe link had {lanes:.0f} of {max_width:.0f} lanes through ten minutes of work; "
    reason += f"{had}." if make is fail else "it was never wider here."
    return make(reason, Action.INSPECT, pcie_link_width=lanes, pcie_link_width_max=max_width)


def _usual_lanes(gpu: GpuCase) -> float | None:
    """Return the number of PCIe lanes that most other GPUs of the product have, if at least two have it."""
    others = [
        other.stored.lanes
        for other in gpu.facts.gpus
        if other.uuid != gpu.device and other.gpu.name == gpu.now.name and other.stored and other.stored.lanes
    ]
    if not others:
        return None
    [(lanes, count)] = Counter(others).most_common(1)
    return lanes if count > 1 and count > len(others) / 2 else None


def _highest_under_load(gpu: GpuCase, window: SampleWindow, busy: float) -> float | None:
    """Return the highest value in the window; None if the GPU was not busy: a link without load may slow down."""
    values, load = gpu.series(window), gpu.series(BUSY) or gpu.series(SM_BUSY)
    if not load or not values or load[0].mean < busy:
        return None
    covered = min(load[0].covered_seconds, values[0].covered_seconds) >= window.seconds - _SLACK
    return max(values[0].values) if covered else None


def generation(gpu: GpuCase) -> Finding | None:
    """Return a warning if a busy GPU runs its link below its PCIe generation. Idle GPUs lower it by design."""
    busy = gpu.facts.threshold(BUSY_SHARE)
    now, max_generation = gpu.now.pcie_link_generation, gpu.now.pcie_link_generation_max
    if not now or not max_generation:
        return None
    if now >= max_generation:
        return PASSED
    highest = _highest_under_load(gpu, GENERATION, busy)
    if highest is None:
        return None if gpu.has_verdict("pcie_generation_degraded") else PASSED
    if highest >= max_generation:
        return PASSED
    reason = f"The PCIe link ran at generation {now:.0f} of {max_generation:.0f} through ten minutes of work."
    return warn(reason, Action.INSPECT, pcie_link_generation=now, pcie_link_generation_max=max_generation)


def replays(gpu: GpuCase) -> Finding | None:
    share, lanes, of = gpu.facts.threshold(REPLAY_SHARE), gpu.now.pcie_link_width, gpu.now.pcie_link_generation_max
    if not lanes or not of or gpu.now.pcie_replays_total is None:
        return None
    normal = math.ceil(share * REPLAYS_A_LANE * 2 ** (max(of, _THIRD) - _THIRD) * lanes)
    rate = sum(growth.gain for growth in gpu.growth(REPLAYS)) / (REPLAYS.seconds / MINUTE)
    if rate <= normal:
        return PASSED
    reason = f"The PCIe link sends {rate:.0f} packets a minute again; up to {normal} are normal for its kind."
    return warn(reason, Action.INSPECT, replays_per_minute=rate, normal_per_minute=float(normal))


def errors(gpu: GpuCase) -> Finding | None:
    """Return a failure for fatal PCIe errors, a warning for several non-fatal ones or one that the kernel confirms."""
    if gpu.now.pcie_errors_total is None:
        return None
    growths = gpu.growth(ERRORS, since=gpu.time_cleared("pcie_errors"))
    grown = {each.labels["kind"]: each for each in growths if gpu.facts.now.at - each.last_at <= RECENT}
    if growth := grown.get("fatal"):
        return _errors(gpu, growth, "The PCIe link had {} fatal errors in an hour{}.", fail)
    growth = grown.get("non_fatal")
    if growth and (growth.gain >= SEVERAL or any(_kernel_events(gpu, since=gpu.facts.now.wall - HOUR))):
        text = "The GPU counted {} non-fatal PCIe errors in an hour, which may include corrected ones{}."
        return _errors(gpu, growth, text, warn)
    return PASSED


def _errors(gpu: GpuCase, growth: CounterGrowth, text: str, make: Callable[..., Finding]) -> Finding:
    kind = growth.labels["kind"]
    is_full = (gpu.now.pcie_errors_total or {}).get(kind) == FULL
    full = f"; the driver's counter is full at {FULL} and counts no more" if is_full else ""
    reason = text.format(f"{growth.gain:.0f}", full)
    return make(reason, Action.INSPECT, at=gpu.facts.wall(growth.last_at), errors=growth.gain, kind=kind)


def _kernel_events(gpu: GpuCase, since: float) -> Iterator[ErrorEvent]:
    """Yield the PCIe errors of the GPU, and of a port that leads only to it, that the kernel reported after `since`."""
    own, facts = {gpu.state.bus_id, gpu.state.port_above}, gpu.facts
    for event in facts.events_since(AER, since):
        if event.bus_id in own and not facts.planned_work.contains(event, gpu.state.bus_id):
            yield event


def aer(gpu: GpuCase) -> Finding:
    """Return a failure if the kernel reported a fatal PCIe error of the GPU, or disabled its link after an error."""
    events = [event for event in _kernel_events(gpu, gpu.time_cleared("pcie_fatal_error") or 0.0) if event.fatal]
    if not events:
        return PASSED
    where = "the GPU" if events[-1].bus_id == gpu.state.bus_id else f"the port above it ({events[-1].bus_id})"
    reason = f"The kernel reported a fatal PCIe error of {where}: {events[-1].text}"
    return fail(reason.rstrip(".") + ".", Action.REBOOT, at=events[-1].last.wall, pci_bus_id=events[-1].bus_id)


_GONE = same("gpu_lost", "gpu_missing")

CHECKS: tuple[Check, ...] = (
    Check(
        name="pcie_fatal_error",
        help="The kernel reported a fatal error of the GPU's PCIe link.",
        steps="""\
1. Drain the node: such errors precede the loss of a GPU.
2. `journalctl -k -g 'AER|DPC|Hardware Error'` shows the port and the error. Drain and reboot the node.
3. If it recurs: reseat the board or its riser; check power.
""",
        gpu=aer,
        latch=Latch(),
        inhibited_by=_GONE,
    ),
    Check(
        name="pcie_errors",
        levels=(Level.WARN, Level.FAIL),
        help="The GPU counted fatal PCIe errors, or repeated non-fatal ones.",
        steps="""\
1. `journalctl -k -g 'AER|DPC|Hardware Error'` shows the port and the error.
2. Fatal errors: drain and reboot the node. Non-fatal ones may include corrected errors: watch whether they recur.
3. If they recur: reseat the board or its riser; update the firmware of board and host.
4. Both driver counters stop at 255; only the kernel log shows later errors.
""",
        gpu=errors,
        latch=Latch(quiet=DAY),
        windows=(ERRORS,),
        inhibited_by=_GONE | same("pcie_fatal_error"),
    ),
    Check(
        name="pcie_width_degraded",
        levels=(Level.WARN, Level.FAIL),
        help="The PCIe link of a busy GPU has fewer lanes than GPU and slot support.",
        steps="""\
1. Drain the node: copies between host and GPU are slow, and so are whole jobs.
2. Reboot it: links are trained at boot.
3. If it stays narrow: reseat the board, the riser or the cable; check for dirt and bent pins.
4. The level is warn if the link was never wider. If slot or riser have fewer lanes: `gpumon inventory accept <uuid>`.
""",
        gpu=width,
        windows=(BUSY, SM_BUSY, WIDTH),
        limits=(BUSY_SHARE,),
        inhibited_by=_GONE | same("pcie_fatal_error"),
    ),
    Check(
        name="pcie_generation_degraded",
        levels=(Level.WARN,),
        help="The GPU's PCIe link stays below its speed under load.",
        steps="""\
1. `nvidia-smi -q -d PERFORMANCE,CLOCK` and `lspci -vv`: compare LnkSta with LnkCap, also on the port above the GPU.
2. Drain and reboot the node; check the slot's BIOS setting.
3. If it stays slow: reseat the board, the riser or the cable.
""",
        gpu=generation,
        windows=(BUSY, SM_BUSY, GENERATION),
        limits=(BUSY_SHARE,),
        inhibited_by=_GONE | same("pcie_fatal_error", "pcie_width_degraded"),
    ),
    Check(
        name="pcie_replays",
        levels=(Level.WARN,),
        help="The GPU's PCIe link repeats more packets than is normal for its generation.",
        steps="""\
1. One GPU alone has a bad link; if all GPUs of the node are affected, they share a cause. When did it begin?
2. Reseat the board, the riser or the cable at the next maintenance; watch for Xid 79.
""",
        gpu=replays,
        windows=(REPLAYS,),
        limits=(REPLAY_SHARE,),
        inhibited_by=_GONE | same("pcie_fatal_error", "pcie_errors", "pcie_width_degraded"),
    ),
)
