"""CHECKS: the PCIe link of a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from gpumon.health.check_row import DAY, HOUR, MINUTE, Check, Latch, Where
from gpumon.health.device_case import GpuCase
from gpumon.health.policy import COUNT, SHARE, Limit, Range
from gpumon.health.sample_windows import CounterGrowth, SampleWindow
from gpumon.health.verdict import OFF, PASSED, Action, Finding, Level, fail, warn
from gpumon.model.error_event import AER, ErrorEvent

REPLAYS = SampleWindow("gpumon_gpu_pcie_replays_total", 5 * MINUTE)
ERRORS = SampleWindow("gpumon_gpu_pcie_errors_total", HOUR)
BUSY = SampleWindow("gpumon_gpu_utilization_ratio", 10 * MINUTE)
GENERATION = SampleWindow("gpumon_gpu_pcie_link_generation", 10 * MINUTE)

REPLAY_SHARE = Limit(
    "pcie_replay_ratio",
    1.0,
    "Maximum rate of PCIe replays, as a multiple of what is normal for its generation.",
    Range(0, 100, open_below=True),
)
BUSY_SHARE = Limit(
    "pcie_busy_ratio", 0.1, "Minimum busy share at which a GPU must run its PCIe link at full speed.", SHARE
)
NON_FATAL = Limit(
    "pcie_non_fatal_errors_per_hour",
    3,
    "Minimum number of non-fatal PCIe errors of a GPU in an hour that is a warning without a message of the kernel.",
    COUNT,
)
RECENT = 5 * MINUTE
"""Seconds for which an error is active."""
FULL = 255
"""Maximum of the driver's counters of fatal and of non-fatal errors."""
REPLAYS_A_LANE = 0.48
"""Normal PCIe replays a minute and lane at generation 3, doubled for each later one, as in DCGM (up to 5)."""
_THIRD = 3
_SLACK = 30.0
"""Seconds that may be missing from a window of samples: readings are 15 s apart."""


def width(gpu: GpuCase) -> Finding | None:
    now, most = gpu.now.pcie_link_width, gpu.now.pcie_link_width_max
    if not now or not most:
        return None
    if now >= most:
        return PASSED
    reason = f"The PCIe link has {now:.0f} of {most:.0f} lanes."
    return fail(reason, Action.INSPECT, pcie_link_width=now, pcie_link_width_max=most)


def generation(gpu: GpuCase) -> Finding | None:
    """Return a warning if a busy GPU has a lower PCIe generation than GPU and slot support.

    Idle GPUs lower it by design.
    """
    now, most = gpu.now.pcie_link_generation, gpu.now.pcie_link_generation_max
    busy = gpu.facts.limit(BUSY_SHARE)
    if busy is None:
        return OFF
    if not now or not most:
        return None
    if now >= most:
        return PASSED
    load, generations = gpu.series(BUSY), gpu.series(GENERATION)
    if (
        not load
        or not generations
        or load[0].mean < busy
        or min(load[0].covered, generations[0].covered) < BUSY.seconds - _SLACK
    ):
        return None if gpu.has_verdict("pcie_generation_degraded") else PASSED
    if max(generations[0].values) >= most:
        return PASSED
    reason = f"The PCIe link ran at generation {now:.0f} of {most:.0f} through ten minutes of work."
    return warn(reason, Action.INSPECT, pcie_link_generation=now, pcie_link_generation_max=most)


def replays(gpu: GpuCase) -> Finding | None:
    share, lanes, of = gpu.facts.limit(REPLAY_SHARE), gpu.now.pcie_link_width, gpu.now.pcie_link_generation_max
    if share is None:
        return OFF
    if not lanes or not of or gpu.now.pcie_replays_total is None:
        return None
    most = math.ceil(share * REPLAYS_A_LANE * 2 ** (max(of, _THIRD) - _THIRD) * lanes)
    rate = sum(growth.gain for growth in gpu.growth(REPLAYS)) / (REPLAYS.seconds / MINUTE)
    if rate <= most:
        return PASSED
    reason = f"The PCIe link sends {rate:.0f} packets a minute again; up to {most} are normal for its kind."
    return warn(reason, Action.INSPECT, replays_per_minute=rate, normal_per_minute=float(most))


def errors(gpu: GpuCase) -> Finding | None:
    """Return a failure for a fatal error, and a warning for non-fatal errors that the kernel saw too or that recur."""
    if gpu.now.pcie_errors_total is None:
        return None
    growths = gpu.growth(ERRORS, since=gpu.cleared("pcie_errors"))
    grown = {each.labels["kind"]: each for each in growths if gpu.facts.now.at - each.last_at <= RECENT}
    if growth := grown.get("fatal"):
        return _errors(gpu, growth, "The PCIe link had {} fatal errors in an hour{}.", fail)
    most, growth = gpu.facts.limit(NON_FATAL), grown.get("non_fatal")
    if growth and (any(_kernel_events(gpu, since=gpu.facts.now.wall - HOUR)) or growth.gain >= (most or math.inf)):
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
    """Yield the PCIe errors of the GPU that the kernel reported after `since`, in seconds since the epoch.

    Errors of a port that leads only to this GPU count too.
    """
    own = {gpu.state.bus_id, gpu.state.port_above}
    for event in gpu.facts.events:
        if event.kind == AER and event.bus_id in own and not event.historical and event.last_wall > since:
            yield event


def aer(gpu: GpuCase) -> Finding:
    """Return a failure if the kernel reported a fatal PCIe error (AER) of the GPU.

    Errors of a port that leads only to this GPU count too.
    """
    events = [event for event in _kernel_events(gpu, gpu.cleared("pcie_fatal_error") or 0.0) if event.fatal]
    if not events:
        return PASSED
    where = "the GPU" if events[-1].bus_id == gpu.state.bus_id else f"the port above it ({events[-1].bus_id})"
    reason = f"The kernel reported a fatal PCIe error of {where}: {events[-1].text}"
    return fail(reason.rstrip(".") + ".", Action.REBOOT, at=events[-1].last_wall, pci_bus_id=events[-1].bus_id)


_GONE: dict[str, Where] = {"gpu_lost": "same", "gpu_missing": "same"}

CHECKS: tuple[Check, ...] = (
    Check(
        name="pcie_fatal_error",
        help="The kernel reported a fatal error of the GPU's PCIe link.",
        steps="""\
1. Drain the node: such errors precede the loss of a GPU.
2. `journalctl -k -g AER` shows the port and the error. Drain and reboot the node.
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
1. Fatal errors: drain and reboot the node. Non-fatal ones may include corrected errors: watch whether they recur.
2. `journalctl -k -g AER` shows the port and the error.
3. If they recur: reseat the board or its riser; update the firmware of board and host.
4. The driver's counters of both are full at 255: the kernel log shows later errors.
""",
        gpu=errors,
        latch=Latch(quiet=DAY),
        windows=(ERRORS,),
        limits=(NON_FATAL,),
        inhibited_by={**_GONE, "pcie_fatal_error": "same"},
    ),
    Check(
        name="pcie_width_degraded",
        help="The GPU's PCIe link has fewer lanes than GPU and slot support.",
        steps="""\
1. Drain the node: copies between host and GPU are slow, and so are whole jobs.
2. Reboot it: links are trained at boot.
3. If it stays narrow: reseat the board, the riser or the cable; check for dirt and bent pins.
""",
        gpu=width,
        after=5 * MINUTE,
        inhibited_by={**_GONE, "pcie_fatal_error": "same"},
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
        windows=(BUSY, GENERATION),
        limits=(BUSY_SHARE,),
        inhibited_by={**_GONE, "pcie_fatal_error": "same", "pcie_width_degraded": "same"},
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
        inhibited_by={**_GONE, "pcie_fatal_error": "same", "pcie_errors": "same", "pcie_width_degraded": "same"},
    ),
)
