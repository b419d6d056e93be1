"""CHECKS: the NVIDIA driver of the node."""

from __future__ import annotations

from gpumon.health.check_row import MINUTE, Check, Paging
from gpumon.health.checks.gpu import nvlink_message
from gpumon.health.facts import Facts
from gpumon.health.sample_windows import SampleWindow
from gpumon.health.verdict import Action, Finding, clear, fail

SOFTWARE_ERRORS = ("LibraryNotFound", "DriverNotLoaded", "LibRmVersionMismatch", "NoPermission", "SimulationError")
"""Names of NVML errors, with which the notice about the driver begins, that no hardware causes."""
STUCK = SampleWindow("gpumon_nvml_stuck_seconds", 5 * MINUTE)


def driver_down(facts: Facts) -> Finding | None:
    """Return a failure if the driver does not answer, else OK; None if the agent does not query the driver.

    The agent does not query it during a release, or on a host without GPUs.
    """
    if facts.node.nvml_up is None:
        return None
    if facts.node.nvml_up:
        return clear()  # a driver that answers needs no window of samples
    stuck = facts.node.nvml_stuck_seconds or 0.0
    # While the sampler is replaced no call is in progress, so earlier samples count too.
    hangs = facts.node.abandoned_children or any(max(series.values) > 0 for series in facts.series(STUCK))
    silent = "a call into it does not return" if hangs else "no cause is reported"
    words = facts.notices.get("driver", silent).rstrip(".")
    software = words.startswith(SOFTWARE_ERRORS) and not facts.node.abandoned_children
    action = Action.FIX if software else Action.REBOOT if hangs else Action.INSPECT
    return fail(f"The NVIDIA driver cannot be used: {words}.{nvlink_message(facts)}", action, nvml_stuck_seconds=stuck)


CHECKS: tuple[Check, ...] = (
    Check(
        name="gpu_driver_down",
        pages=Paging.NIGHT,
        help="The NVIDIA driver does not respond: no reading of the GPUs is current.",
        steps="""\
1. `lsmod | grep nvidia` and `dmesg | grep -i nvrm` show whether the module is loaded and what it logged.
2. The reason names the error: driver not loaded, versions that differ, no permission, or the call that
   hangs, and since when.
3. Versions differ after a driver update without a reboot: reload the kernel modules or reboot.
4. Calls hang: drain and reboot the node; a process in state D cannot be killed.
""",
        node=driver_down,
        windows=(STUCK,),
        notice="driver",
        after=MINUTE,
        grace=True,
    ),
)
