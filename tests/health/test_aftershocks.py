"""A consequence ends with its cause: no alert of its own follows after the cause was cleared."""

from __future__ import annotations

from judging import EVERY, Ward, clear

from gpumon.health.verdict import Clearance, Level, VerdictChange


def failing_calls(ward: Ward, seconds: float) -> None:
    """Let a driver call fail at each evaluation for this time."""
    for _ in range(int(seconds / EVERY)):
        before = (ward.report.node.poll_errors_total or {}).get("slow,GpuIsLost", 0.0)
        ward.node(poll_errors_total={"slow,GpuIsLost": before + 1.0})
        ward.go_on(EVERY)


def primary_since(ward: Ward, seconds: float) -> set[str]:
    """Return the checks that have a verdict of their own at some time in these seconds."""
    checks: set[str] = set()
    for _ in range(int(seconds / EVERY)):
        ward.go_on(EVERY)
        checks |= {verdict.check for verdict in ward.report.health.primary}
    return checks


def test_failed_calls_end_with_the_lost_gpu() -> None:
    """Calls that failed while the GPU was lost are no verdict, and no pending one, after that was cleared."""
    for minutes in (8, 12, 30):  # before, when and long after the check has counted enough of them
        ward = Ward(gpus=2, ports=0)
        ward.node(poll_errors_total={"slow,GpuIsLost": 0.0})
        ward.go_on(60)
        ward.fault(1, "lost")
        failing_calls(ward, minutes * 60)
        assert [verdict.check for verdict in ward.report.health.primary] == ["gpu_lost"]
        assert (ward.verdict("gpumon_poll_errors") is not None) == (minutes > 10)
        ward.fault(1, None)
        ward.go_on(EVERY)
        assert "gpu_lost" in {verdict.check for verdict in clear(ward, "gpu_lost")}
        assert not ward.verdicts
        assert not primary_since(ward, 1200)


def test_calls_that_still_fail_are_a_verdict_of_their_own() -> None:
    """What goes on after the cause was cleared is found again from then on."""
    ward = Ward(gpus=2, ports=0)
    ward.node(poll_errors_total={"slow,GpuIsLost": 0.0})
    ward.go_on(60)
    ward.fault(1, "lost")
    failing_calls(ward, 900)
    ward.fault(1, None)
    ward.go_on(EVERY)
    clear(ward, "gpu_lost")
    failing_calls(ward, 500)
    assert not ward.verdicts
    failing_calls(ward, 200)
    assert [verdict.check for verdict in ward.report.health.primary] == ["gpumon_poll_errors"]


def test_replaced_samplers_end_with_the_outage_of_the_driver() -> None:
    """Samplers that crashed while the driver was down are no verdict after it answers."""
    ward = Ward(gpus=2, ports=0)
    ward.node(sampler_restarts_total={"crash": 0.0})
    ward.go_on(60)
    ward.node(nvml_up=0.0, sampler_restarts_total={"crash": 9.0})
    ward.go_on(120)
    assert [verdict.check for verdict in ward.report.health.primary] == ["gpu_driver_down"]
    assert ward.level("gpumon_sampler_restarting") is Level.WARN
    ward.node(nvml_up=1.0)
    assert primary_since(ward, 1200) == {"gpu_driver_down"}
    ends = [each for each in ward.transitions if each.change is VerdictChange.CLEARED]
    assert [each.verdict.check for each in ends] == ["gpu_driver_down", "gpumon_sampler_restarting"]
    assert {each.time for each in ends} == {ends[0].time}
    assert {each.cleared_by for each in ends} == {Clearance.RECOVERED}


def test_a_consequence_that_has_passed_waits_no_minute_of_its_own() -> None:
    """A consequence without a window that is over when its cause is cleared is cleared with it."""
    ward = Ward(gpus=2, ports=0)
    ward.node(nvml_up=0.0)
    for index in (0, 1):
        ward.fault(index, "unknown", "DriverNotLoaded")
    ward.go_on(180)
    assert ward.level("gpu_unreadable", 1) is Level.FAIL
    ward.node(nvml_up=1.0)
    ward.go_on(40)
    for index in (0, 1):
        ward.fault(index, None)
    assert primary_since(ward, 120) == {"gpu_driver_down"}


def test_a_fabric_manager_that_keeps_exiting_is_found_although_each_exit_was_a_verdict() -> None:
    """A check that counts repetitions of its cause outlives the cause."""
    ward = Ward(gpus=2, ports=0)
    ward.node(fabric_manager_up=1.0, service_stops_total={"fabric_manager": 0.0})
    ward.go_on(60)
    for stops in (1.0, 2.0, 3.0):
        ward.node(fabric_manager_up=0.0, service_stops_total={"fabric_manager": stops})
        ward.go_on(70)
        ward.node(fabric_manager_up=1.0)
        ward.go_on(70)
    assert "fabric_manager_flapping" in {verdict.check for verdict in ward.report.health.primary}


def test_a_driver_that_answers_after_a_restart_of_the_agent_is_up_after_a_minute() -> None:
    """A stored outage of the driver ends as fast after a restart as without one, while hung calls filled its window."""
    for restart in (False, True):
        ward = Ward(gpus=2, ports=0)
        ward.node(nvml_up=0.0, nvml_stuck_seconds=70.0)
        ward.go_on(180)
        assert ward.level("gpu_driver_down") is Level.FAIL
        if restart:
            ward.restart()
        ward.node(nvml_up=1.0, nvml_stuck_seconds=0.0)
        assert ward.go_on(60).level("gpu_driver_down") is Level.FAIL
        assert ward.go_on(20).level("gpu_driver_down") is Level.OK
