"""CHECKS: results of each probe, as verdicts on the GPU that a run blames, or else on the node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from gpumon.health.check_row import DAY, Check, Latch, Paging, any_device, same
from gpumon.health.facts import Facts, GpuCase
from gpumon.health.verdict import NODE, PASSED, WARN, Action, Finding, Verdict, clear, fail, warn
from gpumon.probe.core.probes import ALL_REDUCE, NEVER, PROBES, Probe, metric_name
from gpumon.probe.core.result import DECISIVE, LIMIT, ProbeResult
from gpumon.probe.core.wording import in_words

_REFERENCES = {
    "baseline": "this host's own median",
    "drift": "reached by this host in runs up to {date}; it has fallen slowly since",
    "expected": "the published figure for this hardware",
}
LASTING_SKIPS = frozenset(
    {
        *("no_scheduler_gate", "scheduler_gate_failed", "held", "released", "maintenance", "disabled"),
        *("single_gpu", "mig", "exclusive_mode", "no_torch"),
    }
)
"""Reasons for a skipped run that persist until the configuration, the hardware or a time window changes."""


def runs_of(facts: Facts, probe: Probe) -> tuple[ProbeResult, ...]:
    """Return the runs of a probe in memory, newest last, without skipped ones."""
    return tuple(run for run in facts.probe.ran if run.probe == probe.name)


def if_scheduled(probe: Probe, checks: Iterable[Check]) -> Iterator[Check]:
    """Yield the checks of a probe. One whose row has no schedule is checked while the operator has set one."""
    for check in checks:
        yield replace(check, probe=probe.name) if probe.schedule == NEVER else check


def is_about(probe: Probe, check: str) -> bool:
    """Return whether a check is one of this probe, by its name."""
    return probe.name in check.split("_")


def _last_measurement(facts: Facts, probe: Probe) -> ProbeResult | None:
    """Return the last complete run: one with the outcome ok, degraded or wrong; None if there is none."""
    return next((run for run in reversed(runs_of(facts, probe)) if run.outcome in DECISIVE), None)


def _blamed_gpu(result: ProbeResult) -> str | None:
    """Return the uuid of the GPU that the run blames for the fault; None if it blames no GPU, or several."""
    gpus = () if result.location is None else result.location.gpus
    return gpus[0] if len(gpus) == 1 else None


def _node_result(facts: Facts, probe: Probe, check: str, outcome: str) -> ProbeResult | Finding | None:
    """Return the last complete run if it has this outcome and blames no single GPU; else PASSED.

    None if it is missing or needs proof (`_needs_proof`), or if it has another outcome and used only some of the GPUs.
    """
    last = _last_measurement(facts, probe)
    if last is None or _needs_proof(last, facts.wall(0.0), facts):
        return None
    if last.ended <= facts.cleared.get((check, NODE), 0.0):
        return PASSED
    if last.outcome == outcome and _blamed_gpu(last) not in {state.uuid for state in facts.gpus}:
        return last
    return PASSED if last.outcome == outcome or last.is_whole else None


def _gpu_result(gpu: GpuCase, probe: Probe, check: str, outcome: str) -> ProbeResult | Finding | None:
    """Return the last complete run if it has this outcome and blames this GPU; else PASSED.

    None if it is missing, needs proof (`_needs_proof`), or did not use this GPU.
    """
    last = _last_measurement(gpu.facts, probe)
    if last is None or gpu.device not in last.conditions.gpus:
        return None
    if _needs_proof(last, gpu.facts.wall(gpu.state.reset_at or 0.0), gpu.facts):
        return None
    blamed = last.outcome == outcome and _blamed_gpu(last) == gpu.device
    return last if blamed and last.ended > (gpu.time_cleared(check) or 0.0) else PASSED


def _needs_proof(last: ProbeResult, repaired: float, facts: Facts) -> bool:
    """Return whether the run ended before a repair, and a later run is due that will show whether it helped."""
    newest = facts.probe.last(last.probe)
    postponed = newest is not None and newest.outcome == "skipped" and newest.reason in LASTING_SKIPS
    return last.ended < repaired and last.probe in facts.probe.next_runs and not postponed


def _slow_finding(last: ProbeResult, whose: str) -> Finding:
    low = [comparison for comparison in last.comparisons if comparison.below_reference]
    if not low:
        return warn(f"{whose} is slow: {last.reason or 'no figure to compare with'}.", Action.INSPECT, at=last.ended)
    of_first_algorithm = [comparison for comparison in low if comparison.algorithm == low[0].algorithm]
    worst = of_first_algorithm[-1]  # as in the result
    value, unit, usual = worst.value, worst.unit, worst.usual or worst.value
    reference = _REFERENCES[worst.below_reference].format(date=worst.best_date)
    where = f" {last.location.message}" if last.location is not None else ""
    reason = (
        f"{whose} ({worst.variant(last.probe)}) measured {in_words(value, unit, '.0f')} twice: {value / usual:.0%} of "
        f"{in_words(usual, unit, '.0f')}, {reference}.{where}"
    )
    evidence = {
        metric_name(worst.quantity, unit): value,
        f"usual_{unit}": usual,
        f"{worst.quantity}_ratio": value / usual,
    }
    return warn(reason, Action.INSPECT, at=last.ended, below_reference=worst.below_reference, **evidence)


def slow_run(facts: Facts, probe: Probe) -> Finding | None:
    """Return a warning if the last complete run was degraded and blames no single GPU. The next one clears it."""
    result = _node_result(facts, probe, f"{probe.name}_slow", "degraded")
    if isinstance(result, ProbeResult):
        return PASSED if result.reason == LIMIT else _slow_finding(result, f"The {probe.title}")
    return result and clear()


def slow_gpu(gpu: GpuCase, probe: Probe) -> Finding | None:
    result = _gpu_result(gpu, probe, f"gpu_{probe.name}_slow", "degraded")
    if isinstance(result, ProbeResult):
        return _slow_finding(result, f"This GPU slows the {probe.title}. It")
    return result and clear()


def explains_slow_run(_verdict: Verdict, _cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return `together`: a cause explains a slow run if both overlap in time. For `Check.inhibited_if`."""
    return together


def wrong_result(facts: Facts, probe: Probe) -> Finding | None:
    result = _node_result(facts, probe, f"{probe.name}_wrong", "wrong")
    if not isinstance(result, ProbeResult):
        return result
    where = f" {result.location.message}" if result.location is not None else ""
    reason = f"The {probe.title} computed wrong results without an error: silent data corruption.{where}"
    return fail(reason, Action.INSPECT, at=result.ended, wrong_elements=float(result.wrong_elements or 0))


def wrong_data(gpu: GpuCase, probe: Probe) -> Finding | None:
    result = _gpu_result(gpu, probe, f"gpu_{probe.name}_wrong", "wrong")
    if not isinstance(result, ProbeResult):
        return result
    reason = f"This GPU sent wrong data in the {probe.title} without an error: silent data corruption."
    return fail(reason, Action.REPLACE, at=result.ended, wrong_elements=float(result.wrong_elements or 0))


FAULTS_OF_ANY_RUN: tuple[str, ...] = (
    *("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "gpu_stuck", "gpu_unreadable"),
    *("fabric_manager_down", "fabric_unhealthy", "nvlink_down", "nvlink_recovery_failed", "gpu_xid_critical"),
)
"""Checks for faults that explain any bad result of a run, in the order of the table of checks."""
_LINKS: tuple[str, ...] = ("nvlink_unstable", "nvlink_crc_high", "nvlink_ber_high", "nvlink_errors", "nvlink_slow")
"""Checks for faults that slow an NVLink, and so the GPUs at both of its ends."""
_SLOWING: tuple[str, ...] = (
    *(
        "pcie_width_degraded",
        "pcie_generation_degraded",
        "gpu_hw_slowdown",
        "gpu_clock_straggler",
        "gpu_thermal_margin_low",
    ),
    *("gpu_memory_temperature_high", "gpu_power_brake", "gpu_power_cap_low"),
)
"""Checks for faults that slow one GPU, and thereby the run on all GPUs. The run then blames that GPU."""


CAUSES_OF_SLOW_RUNS = any_device(*FAULTS_OF_ANY_RUN, *_LINKS, *_SLOWING)


def _first_step(probe: Probe) -> str:
    return f"Fix other faults of the node (links, clocks, PCIe), then run `gpumon probe {probe.name}` on the free node."


def _steps_if_slow(probe: Probe) -> Iterator[str]:
    """Yield the steps of the runbook of a slow run."""
    yield _first_step(probe)
    if "ring" in probe.gpu.algorithms:
        yield (
            "If only `default` is slow and `ring` is not, NVLink SHARP is not in use: check the fabric manager and\n"
            "   /etc/nccl.conf."
        )
    yield (
        "If this result is intended: a new driver, NCCL or setting starts a new median by itself; after any other "
        f'change,\n   `gpumon clear {probe.name}_slow --note "..."` starts it. `probe.min_expected_ratio` is the limit '
        "for published figures."
    )
    yield "If it fell slowly (drift): what has changed since the date in the verdict: dust, heat, clocks, power limits?"
    yield "The next run that is ok clears the verdict."


def _checks(probe: Probe) -> tuple[Check, ...]:
    name, title = probe.name, probe.title
    pages = Paging.NIGHT if probe.name == ALL_REDUCE else Paging.DAY  # one probe that pages for corrupt data is enough
    return (
        Check(
            name=f"gpu_{name}_wrong",
            pages=pages,
            help=f"The GPU sends wrong data in the {title} (silent data corruption).",
            steps=f"""\
1. Drain the node at once. Do not trust what it has computed since the last run that was ok.
2. Run `gpumon probe {name}` on the free node. If it names the same GPU again, replace it.
3. If it names another GPU, or none: reset the GPUs, reboot, and test NVSwitches and memory.
""",
            gpu=partial(wrong_data, probe=probe),
            latch=Latch(quiet=7 * DAY),
        ),
        Check(
            name=f"{name}_wrong",
            pages=pages,
            help=f"The {title} computes wrong results (silent data corruption).",
            steps=f"""\
1. Drain the node at once. Do not trust what it has computed since the last run that was ok.
2. Run `gpumon probe {name}` on the free node. It names the GPU that sends wrong data if it can locate it.
3. Reset the GPUs and reboot. If it happens again, have GPUs, NVSwitches and host memory tested.
4. After the repair: `gpumon clear {name}_wrong --note "..."`.
""",
            node=partial(wrong_result, probe=probe),
            latch=Latch(quiet=7 * DAY),
        ),
        Check(
            name=f"gpu_{name}_slow",
            levels=(WARN,),
            help=f"The GPU slows the node's {title}.",
            steps=f"""\
1. {_first_step(probe)}
2. If its links, clocks and PCIe are ok: drain and reset the GPU, and run the probe again.
3. The next run that is ok clears the verdict. If the GPU is named again, have its seat, bridge and baseboard inspected.
4. If this result is intended: `gpumon clear gpu_{name}_slow --note "..."` starts a new median.
""",
            gpu=partial(slow_gpu, probe=probe),
            latch=Latch(quiet=7 * DAY),
            acceptable=True,
            inhibited_by=any_device(*FAULTS_OF_ANY_RUN, *_LINKS) | same(*_SLOWING),
            inhibited_if=explains_slow_run,
        ),
        Check(
            name=f"{name}_slow",
            levels=(WARN,),
            help=f"The {title} is slower than it should be, and no single GPU is to blame.",
            steps="".join(f"{number}. {step}\n" for number, step in enumerate(_steps_if_slow(probe), 1)),
            node=partial(slow_run, probe=probe),
            latch=Latch(quiet=7 * DAY),
            acceptable=True,
            inhibited_by=CAUSES_OF_SLOW_RUNS,
            inhibited_if=explains_slow_run,
        ),
    )


CHECKS: tuple[Check, ...] = tuple(check for probe in PROBES.values() for check in if_scheduled(probe, _checks(probe)))
