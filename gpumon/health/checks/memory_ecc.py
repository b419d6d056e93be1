"""CHECKS: ECC errors of a GPU's memory and caches: uncorrectable ones, and too many corrected ones."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, Latch, Paging, covers, same
from gpumon.health.checks.xid import MEMORY, codes
from gpumon.health.clearing import is_repaired
from gpumon.health.facts import GpuCase
from gpumon.health.policy import AMOUNT, Limit
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import FAIL, PASSED, WARN, Action, Clearance, Finding, Verdict, clear, fail, warn

RATE = Limit("max_ecc_corrected_per_second", 100, "Maximum rate of corrected ECC errors a second.", AMOUNT)
SRAM = Limit(
    "max_ecc_corrected_sram", 10_000, "Maximum number of corrected ECC errors in SRAM since the last reset.", AMOUNT
)
DRAM = Limit(
    "max_ecc_corrected_dram", 20_000_000, "Maximum number of corrected ECC errors in DRAM since the last reset.", AMOUNT
)

_COUNTS = "gpumon_gpu_ecc_errors_total"
_GAINED = SampleWindow(_COUNTS, 3 * MINUTE)
_RATE = SampleWindow(_COUNTS, MINUTE)
_SHORTEST = MINUTE / 2
"""Minimum seconds of the last minute that samples must cover, so that a rate can be computed."""
_WHERE = {"dram": "memory (DRAM)", "sram": "caches and registers (SRAM)"}


def uncorrectable(gpu: GpuCase) -> Finding | None:
    """Return a failure for new uncorrectable errors, or a warning for those counted before the agent started."""
    volatile = gpu.state.ecc_volatile
    verdict = gpu.facts.open.get(("gpu_ecc_uncorrectable", gpu.state.uuid))
    if volatile is None or gpu.now.ecc_errors_total is None:
        # With MIG enabled the driver reports no counts: only a reset or reboot shows that the errors are over.
        return PASSED if gpu.now.mig_mode and verdict is not None and is_repaired(verdict, gpu.facts) else None
    counted = {place: volatile.get(f"uncorrected,{place}", 0.0) for place in _WHERE}
    cleared, booted = gpu.time_cleared("gpu_ecc_uncorrectable") or 0.0, gpu.facts.wall(0.0)
    gained = {
        series.labels["location"]: series
        for series in gpu.series(_GAINED)
        if series.labels["severity"] == "uncorrected" and series.gain and gpu.facts.wall(series.changed_at) > cleared
    }
    if gained:
        at = gpu.facts.wall(max(series.changed_at for series in gained.values()))
        return _uncorrected_errors({place: series.gain for place, series in gained.items()}, at, "had")
    if any(counted.values()):
        finding = _uncorrected_errors(counted, booted, "had, before the agent started,")
        return PASSED if cleared > booted else finding._replace(level=WARN)
    return clear(Clearance.RESET) if verdict is not None and _was_reset(verdict, gpu) else PASSED


def _was_reset(verdict: Verdict, gpu: GpuCase) -> bool:
    """Return whether the counters of the verdict's errors are 0 again probably because of a GPU reset.

    An operator can clear them too. An agent that has run since would have detected a reset by the energy counter.
    """
    now = gpu.facts.now
    watched = gpu.now.energy_joules_total is not None and now.uptime >= now.at - verdict.last_active.at
    return verdict.last_active.boot_id == gpu.facts.boot_id and not watched


def _uncorrected_errors(errors: dict[str, float], at: float, had: str) -> Finding:
    named = {place: count for place, count in sorted(errors.items()) if count}
    parts = " and ".join(f"{count:.0f} in its {_WHERE[place]}" for place, count in named.items())
    what = "uncorrectable error" if sum(named.values()) == 1 else "uncorrectable errors"
    words = f"The GPU {had} {parts.replace(' in', f' {what} in', 1)}: do not trust results since then."
    return fail(words, Action.RESET, at=at, **{f"uncorrected_{place}": count for place, count in named.items()})


def corrected_storm(gpu: GpuCase) -> Finding | None:
    limit = gpu.facts.threshold(RATE)
    if gpu.now.ecc_errors_total is None:
        return None
    series = [each for each in gpu.series(_RATE) if each.labels["severity"] == "corrected"]
    if not series:
        return PASSED
    covered = max(each.covered_seconds for each in series)
    if covered < _SHORTEST:
        return None
    rate = sum(each.gain for each in series) / covered
    if rate <= limit:
        return PASSED
    reason = f"ECC corrects {rate:.0f} errors a second: part of the memory is about to fail."
    return fail(reason, Action.RESET, corrected_per_second=round(rate, 1))


def corrected_high(gpu: GpuCase) -> Finding | None:
    """Return a warning if ECC corrected more errors in SRAM or DRAM than the limit since the last load or reset."""
    volatile = gpu.state.ecc_volatile
    limits = dict(zip(("sram", "dram"), gpu.facts.any_threshold(SRAM, DRAM), strict=True))
    if volatile is None:
        return None
    many = {
        place: count
        for place, limit in limits.items()
        if limit is not None and (count := volatile.get(f"corrected,{place}", 0.0)) > limit
    }
    if not many:
        return PASSED
    parts = " and ".join(f"{count:.0f} errors in its {_WHERE[place]}" for place, count in many.items())
    counts = {f"corrected_{place}": count for place, count in many.items()}
    return warn(f"ECC has corrected {parts} since the last reset.", Action.RESET, **counts)


FAULTS = same("gpu_lost", "gpu_missing", "gpu_reset_required", "gpu_init_failed", "gpu_stuck")
SPENT = same("gpu_row_remap_failed", "gpu_memory_unrepairable", "gpu_ecc_sram_threshold")
XIDS = same("gpu_xid_recurring", "gpu_xid_critical")


def of_memory(verdict: Verdict, cause: Verdict, together: bool) -> bool:  # noqa: FBT001 - see Check.inhibited_if
    """Return whether the cause is about memory and its action includes the verdict's. For `Check.inhibited_if`."""
    if cause.check in {"gpu_xid_critical", "gpu_xid_recurring"} and not codes(cause) & MEMORY:
        return False
    return (together or cause.check in SPENT) and covers(verdict, cause)


CHECKS = (
    Check(
        name="gpu_ecc_uncorrectable",
        pages=Paging.NIGHT,
        levels=(FAIL, WARN),
        help="The GPU's memory had uncorrectable ECC errors.",
        steps="""\
1. Do not trust the results of jobs that ran on this GPU. Drain it.
2. Drain and reset the GPU (`nvidia-smi --gpu-reset -i <uuid>`), so that bad rows are replaced by spares.
3. Errors in SRAM, or again after a reset: run the vendor's diagnostics and replace the board.
""",
        gpu=uncorrectable,
        latch=Latch(),
        inhibited_by=SPENT | XIDS,
        inhibited_if=of_memory,
        windows=(_GAINED,),
    ),
    Check(
        name="gpu_ecc_corrected_storm",
        help="ECC corrects errors at a rate that precedes a memory failure.",
        steps="""\
1. Drain the node: the driver is busy with the errors, and uncorrectable errors follow.
2. Reset the GPU, and check whether a row was replaced (`gpumon_gpu_rows_remapped_total`).
3. If it recurs: run the vendor's diagnostics and replace the board.
""",
        gpu=corrected_storm,
        after=5 * MINUTE,
        inhibited_by=SPENT | XIDS | same("gpu_ecc_uncorrectable"),
        inhibited_if=of_memory,
        windows=(_RATE,),
        limits=(RATE,),
    ),
    Check(
        name="gpu_ecc_corrected_high",
        levels=(WARN,),
        help="ECC has corrected many errors since the last reset.",
        steps="""\
1. Drain the node and reset the GPU. Jobs are not affected: this can wait until the GPU is idle.
2. If it recurs within days: run the vendor's diagnostics.
""",
        gpu=corrected_high,
        after=15 * MINUTE,
        inhibited_by=SPENT | XIDS | same("gpu_ecc_uncorrectable", "gpu_ecc_corrected_storm"),
        inhibited_if=of_memory,
        limits=(SRAM, DRAM),
    ),
)
