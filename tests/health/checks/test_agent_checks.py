"""Checks of the agent itself, and of the driver."""

from __future__ import annotations

from dataclasses import replace

from changed_report import changed
from each_case import each_case
from judging import Ward, clear

from gpumon.health.verdict import FAIL, OK, UNKNOWN, Action, Level
from gpumon.model.driver_errors import NVLINK_DISCOVERY
from gpumon.model.error_event import DRIVER, OVERRUN


def test_driver_that_does_not_answer_is_the_one_fault() -> None:
    """Its GPUs cannot be read because of it; when it comes back, all is well."""
    ward = Ward(gpus=2)
    ward.node(nvml_up=0.0)
    ward.notice("driver", "DriverNotLoaded: load it")
    for index in (0, 1):
        ward.fault(index, "unknown", "DriverNotLoaded")
    assert not ward.go_on(50).verdicts
    ward.go_on(120)
    assert [each.check for each in ward.report.health.primary] == ["gpu_driver_down"]
    assert ward.level("gpu_unreadable", 1) is Level.FAIL
    ward.node(nvml_up=1.0)
    ward.notice("driver", None)
    for index in (0, 1):
        ward.fault(index, None)
    assert not ward.go_on(120).verdicts


def test_driver_that_is_loaded_minutes_after_a_boot_is_no_fault() -> None:
    """It is built then, or brought by a container; until then no GPU can be read."""
    ward = Ward(gpus=1, uptime=0.0)
    ward.node(nvml_up=0.0)
    ward.fault(0, "unknown", "DriverNotLoaded")
    assert not ward.go_on(290).verdicts
    assert ward.go_on(150).level("gpu_unreadable", 0) is Level.FAIL
    assert [each.check for each in ward.report.health.primary] == ["gpu_driver_down"]


@each_case(
    ("stuck_seconds", "notice", "action"),
    [
        (70.0, "the driver call nvmlInit does not return", Action.REBOOT),
        (0.0, "DriverNotLoaded: modprobe nvidia", Action.FIX),
        (0.0, "Unknown: see dmesg", Action.INSPECT),
        (0.0, None, Action.INSPECT),
    ],
)
def test_action_depends_on_why_the_driver_does_not_answer(
    stuck_seconds: float, notice: str | None, action: Action
) -> None:
    """A hang requires a reboot, missing software a fix of it, and only an error without a cause an inspection."""
    ward = Ward()
    ward.node(nvml_up=0.0, nvml_stuck_seconds=stuck_seconds)
    ward.notice("driver", notice)
    verdict = ward.go_on(90).verdict("gpu_driver_down")
    assert verdict is not None
    assert verdict.action is action


def test_an_error_of_the_software_now_takes_precedence_over_a_hang_that_has_ended() -> None:
    """A driver that is no longer loaded needs a fix, but a reboot if a process of the agent is still blocked in it."""
    ward = Ward()
    ward.node(nvml_up=0.0, nvml_stuck_seconds=70.0)
    assert ward.go_on(90).level("gpu_driver_down") is Level.FAIL
    ward.node(nvml_stuck_seconds=0.0)
    ward.notice("driver", "DriverNotLoaded: modprobe nvidia")
    for abandoned, action in ((0.0, Action.FIX), (1.0, Action.REBOOT)):
        ward.node(abandoned_children=abandoned)
        verdict = ward.go_on(30).verdict("gpu_driver_down")
        assert verdict is not None
        assert verdict.action is action


def test_a_driver_that_does_not_answer_is_quoted() -> None:
    """The message about NVLinks, which a driver that blocks its callers repeats, is in the reason, and is no fault."""
    ward = Ward()
    message = "knvlinkDiscoverPostRxDetLinks_GH100: Getting peer0's postRxDetLinkMask failed!"
    ward.event(0, NVLINK_DISCOVERY, kind=DRIVER, bus_id="", uuid=None, text=message)
    assert not ward.go_on(90).verdicts
    ward.fault(1, "stuck", "it does not return")
    stuck = ward.go_on(30).verdict("gpu_stuck", 1)
    ward.node(nvml_up=0.0, nvml_stuck_seconds=70.0)
    down = ward.go_on(90).verdict("gpu_driver_down")
    assert stuck is not None
    assert down is not None
    assert stuck.reason.endswith(f"The driver logged: {message}.")
    assert down.reason.endswith(f"The driver logged: {message}.")


@each_case(
    ("check", "rows", "notice", "lasting", "action"),
    [
        ("gpumon_store_down", {"store_up": 0.0}, ("store", "the disk is full"), 330, Action.FIX),
        ("gpumon_kernel_log_down", {"kernel_log_up": 0.0}, None, 150, Action.FIX),
        ("gpumon_poll_slow", {"poll_duration_seconds": {"fast": 0.8}}, None, 660, Action.FIX),
        ("gpumon_child_abandoned", {"abandoned_children": 1.0}, None, 5, Action.REBOOT),
        ("gpumon_reload_failed", {}, ("configuration", "not reloaded: no such key"), 5, Action.FIX),
        ("gpumon_links_unread", {}, ("links", "mlx5_3 is quarantined"), 330, Action.INSPECT),
    ],
)
def test_what_the_agent_lacks_is_a_warning(
    check: str, rows: dict[str, float], notice: tuple[str, str] | None, lasting: float, action: Action
) -> None:
    """It makes no node unfit for work, has the action of its cause, and is cleared when it is over."""
    ward = Ward()
    before = ward.report.node
    ward.node(store_up=1.0, abandoned_children=0.0)
    assert not ward.go_on(30).verdicts
    ward.node(**rows)
    if notice:
        ward.notice(*notice)
    verdict = ward.go_on(lasting, every=15).verdict(check)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, action)
    assert ward.active_checks() == [check]
    ward.node(store_up=1.0, abandoned_children=0.0, kernel_log_up=1.0)
    ward.node(poll_duration_seconds=before.poll_duration_seconds)
    if notice:
        ward.notice(notice[0], None)
    assert not ward.go_on(90).verdicts


def test_kernel_log_that_may_not_be_read_is_no_fault() -> None:
    """It is a setting, which gpumon_collector_denied shows."""
    ward = Ward()
    ward.node(kernel_log_up=0.0, collector_denied={"kernel_log": 1.0})
    assert not ward.go_on(600, every=15).verdicts


def test_lost_lines_are_forgiven_after_an_hour() -> None:
    ward = Ward()
    ward.event(0, 0, kind=OVERRUN, bus_id="", uuid=None)
    assert ward.go_on().level("gpumon_kernel_log_lost") is Level.WARN
    assert ward.go_on(3000, every=30).level("gpumon_kernel_log_lost") is Level.WARN
    assert not ward.go_on(700, every=30).verdicts


def test_calls_that_go_on_failing_are_told_with_the_error() -> None:
    ward = Ward()
    ward.node(poll_errors_total={"slow,Unknown": 0.0})
    ward.go_on(60)
    ward.node(poll_errors_total={"slow,Unknown": 3.0})
    assert not ward.go_on(900, every=15).verdicts
    for step in range(80):
        ward.node(poll_errors_total={"slow,Unknown": 4.0 + step})
        ward.go_on(15, every=15)
    verdict = ward.verdict("gpumon_poll_errors")
    assert verdict is not None
    assert "Unknown" in verdict.reason


def test_sampler_that_is_replaced_on_purpose_is_well() -> None:
    """Three crashes in ten minutes are a verdict, ten releases are none."""
    ward = Ward()
    ward.node(sampler_restarts_total={"crash": 0.0, "release": 0.0})
    ward.go_on(60)
    ward.node(sampler_restarts_total={"crash": 2.0, "release": 10.0})
    assert not ward.go_on(60).verdicts
    ward.node(sampler_restarts_total={"crash": 3.0, "release": 10.0})
    assert ward.go_on(60).level("gpumon_sampler_restarting") is Level.WARN
    assert not ward.go_on(800, every=15).verdicts


def test_gpu_whose_firmware_is_silent_asks_for_a_reset() -> None:
    """One that hangs without that Xid asks for a reboot."""
    ward = Ward()
    ward.event(3, 119)
    for index in (3, 1):
        ward.fault(index, "stuck", "it does not return")
    ward.go_on(60)
    actions = [verdict.action for index in (3, 1) if (verdict := ward.verdict("gpu_stuck", index))]
    assert actions == [Action.RESET, Action.REBOOT]


def test_a_node_whose_stored_health_cannot_be_read_is_not_ok() -> None:
    """The first evaluation raises the verdict and reading the store clears it; the store has no second verdict."""
    ward = Ward()
    ward.report = replace(ward.report, agent=replace(ward.report.agent, restored=False))
    ward.node(store_up=0.0)
    ward.notice("store", "/var/lib/gpumon/gpumon.db: it belongs to a newer version.")
    ward.go_on(20)
    [verdict] = ward.verdicts.values()
    assert (verdict.check, verdict.level, ward.report.health.level) == ("gpumon_history_unread", UNKNOWN, UNKNOWN)
    assert verdict.reason.endswith("healthy: /var/lib/gpumon/gpumon.db: it belongs to a newer version.")
    ward.go_on(600, every=60)
    assert ward.active_checks() == ["gpumon_history_unread"]
    ward.report = replace(ward.report, agent=replace(ward.report.agent, restored=True))
    ward.node(store_up=1.0)
    assert ward.go_on().report.health.level is OK


def test_current_faults_are_reported_beside_it() -> None:
    ward = Ward()
    ward.report = replace(ward.report, agent=replace(ward.report.agent, restored=False))
    ward.fault(3, "lost")
    assert ward.go_on(60).report.health.level is FAIL


def test_a_store_that_was_lost_leaves_the_node_unknown_until_an_operator_clears_it() -> None:
    """A damaged store takes its verdicts with it: the node is not healthy, and alert rules keep the last verdicts."""
    ward = Ward()
    ward.report = changed(ward.report, lost_to="/var/lib/gpumon/gpumon.db.corrupt")
    ward.go_on(600, every=60)
    verdict = ward.verdict("gpumon_history_unread")
    assert verdict is not None
    assert (verdict.level, verdict.active, ward.report.health.level) == (UNKNOWN, False, UNKNOWN)
    assert "gpumon.db.corrupt" in verdict.reason
    assert ward.report.lost_history
    ward.report = replace(ward.report, agent=replace(ward.report.agent, lost_to=""))  # after the next start
    ward.go_on(600, every=60)
    assert ward.report.lost_history
    clear(ward, "gpumon_history_unread")
    assert ward.go_on().report.health.level is OK
    assert not ward.report.lost_history
