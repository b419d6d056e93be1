"""The check of health from before the start of the agent, while it cannot be read."""

from __future__ import annotations

from dataclasses import replace

from changed_report import changed
from judging import Ward, clear

from gpumon.health.verdict import FAIL, OK, UNKNOWN


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
    """Current faults have verdicts of their own beside it."""
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
