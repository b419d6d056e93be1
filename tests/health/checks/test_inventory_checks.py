"""GPUs that are not here, fewer than there should be, and versions that differ."""

from __future__ import annotations

from dataclasses import replace

import example_parts
import pytest
from changed_report import changed
from each_case import each_case
from judging import Ward

from gpumon.health.policy import Policy
from gpumon.health.products import Basis, Expectation
from gpumon.health.verdict import Action, Clearance, Level, Verdict
from gpumon.model.records import StoredGpu
from gpumon.model.snapshot import CONTAINER, GUEST, SANDBOX, PciBus
from gpumon.state.gpu_inventory import Removal, RemovedGpu

DRIVER, VBIOS = "580.95.05", "96.00.89.00.01"
QUARTER = 15 * 60.0


def board(index: int, boot_id: str = "boot-1") -> StoredGpu:
    return StoredGpu(
        uuid=example_parts.uuid(index),
        bus_id=example_parts.bus_id(index),
        serial="S1",
        name="H100",
        first_wall=0.0,
        last_wall=1.0,
        boot_id=boot_id,
    )


def expect(ward: Ward, expectation: Expectation, *, visible: int) -> None:
    ward.report = changed(ward.report, expectation=expectation)
    ward.node(gpus_expected=float(expectation.count), gpus_visible=float(visible))


def test_a_missing_gpu_is_one_verdict() -> None:
    """A missing GPU inhibits the count mismatch and asks for a reboot."""
    ward = Ward(gpus=8)
    expect(ward, Expectation(count=8), visible=7)
    ward.gpu(3, state={"stored": board(3)})
    ward.fault(3, "missing", "no longer on the PCI bus")
    ward.go_on(90)

    verdict = ward.verdict("gpu_missing", 3)
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.REBOOT)
    assert "It is no longer on the PCI bus." in verdict.reason
    assert verdict.evidence["serial"] == "S1"
    assert ward.active_checks() == ["gpu_missing"]


@pytest.mark.parametrize(("fault", "check"), [("missing", "gpu_missing"), ("init_failed", "gpu_init_failed")])
def test_the_reason_quotes_a_driver_that_could_not_initialise_the_gpu(fault: str, check: str) -> None:
    """The driver's message is part of the reason, and its Xid is inhibited by the verdict on the GPU."""
    ward = Ward(gpus=8)
    message = "GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1784)"
    ward.event(3, 143, count=0, unnumbered=True, text=message)
    ward.gpu(3, state={"stored": board(3)})
    ward.fault(3, fault, "no longer listed")
    verdict = ward.go_on(90).verdict(check, 3)
    assert verdict is not None
    assert verdict.reason.endswith(f"The driver logged: {message}.")
    assert [each.check for each in ward.report.health.primary] == [check]


def test_a_gpu_that_is_missing_since_an_earlier_boot_asks_for_an_inspection() -> None:
    ward = Ward(gpus=8)
    ward.gpu(3, state={"stored": board(3, "boot-0")})
    ward.fault(3, "missing")
    verdict = ward.go_on(90).verdict("gpu_missing", 3)

    assert verdict is not None
    assert verdict.action is Action.INSPECT


def test_gpus_that_appear_one_by_one_after_a_reload_raise_no_verdict() -> None:
    ward = Ward(gpus=8)
    ward.fault(7, "missing")
    ward.go_on(40)
    ward.fault(7, None)

    assert not ward.go_on(300).verdicts


def test_verdicts_of_a_removed_gpu_are_cleared() -> None:
    ward = Ward(gpus=8)
    ward.fault(7, "missing")
    uuid = ward.report.gpus[7].uuid
    assert ward.go_on(90).verdict("gpu_missing", 7)
    removed = {uuid: RemovedGpu(Removal.ACCEPTED, example_parts.bus_id(7))}
    inventory = replace(ward.report.inventory, removed=removed, states=ward.report.gpus[:7])
    ward.report = replace(ward.report, inventory=inventory)

    assert not ward.go_on(10).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.GONE


def test_seven_of_eight_at_a_first_boot_is_a_fault() -> None:
    """A GPU that was never present is missing if the product has more, and the reason names its PCI address."""
    ward = Ward(gpus=7)
    wanted = Expectation(count=8, basis=Basis.PRODUCT)
    expect(ward, wanted, visible=7)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.INSPECT)
    assert verdict.reason == "The driver reports 7 GPUs; expected are 8, as on other hosts with this product."

    expect(ward, Expectation(count=8), visible=8)
    assert not ward.go_on(300).verdicts
    expect(ward, replace(wanted, unlisted=("00000000:50:00.0",)), visible=7)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert verdict.action is Action.REBOOT
    assert verdict.reason.endswith("On the PCI bus but not reported by the driver: 00000000:50:00.0.")
    message = "GPU 0000:50:00.0: RmInitAdapter failed! (0x62:0x65:1784)"
    ward.event(3, 143, bus_id="00000000:50:00.0", uuid=None, count=0, unnumbered=True, text=message)
    verdict = ward.go_on(30).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert verdict.reason.endswith(f"00000000:50:00.0. The driver logged: {message}.")
    bus = PciBus(functions={"00000000:50:00.0": "nvidia"})
    inventory = replace(ward.report.inventory, bus=bus)
    ward.report = replace(ward.report, inventory=inventory)
    ward.go_on(300)
    assert ward.active_checks() == ["gpu_count_mismatch", "xid_unplaced"]
    assert [each.check for each in ward.report.health.primary] == ["gpu_count_mismatch"]


def test_a_lost_gpu_inhibits_the_count_mismatch() -> None:
    """A lost GPU is the only primary verdict if the driver counts one GPU too few."""
    ward = Ward(gpus=8)
    expect(ward, Expectation(count=8), visible=7)
    ward.fault(3, "lost")
    ward.go_on(90)

    assert [each.check for each in ward.report.health.primary] == ["gpu_lost"]
    assert ward.active_checks() == ["gpu_count_mismatch", "gpu_lost"]


def test_a_guest_with_fewer_gpus_than_the_product_is_unknown() -> None:
    """A guest with fewer GPUs than the product is unknown, but a configured count must be present."""
    ward = Ward(gpus=2)
    given = Expectation(count=2, may=4, may_basis=Basis.PRODUCT, place=GUEST)
    expect(ward, given, visible=2)
    verdict = ward.go_on(90).verdict("gpu_count_mismatch")
    assert verdict is not None
    assert verdict.level is Level.UNKNOWN
    assert "this guest may have been given fewer" in verdict.reason

    expect(ward, replace(given, count=3), visible=2)
    assert ward.go_on(90).level("gpu_count_mismatch") is Level.FAIL


def missing_gpu_after_restart(
    ward: Ward, expectation: Expectation, *, recalled: bool = True, on_bus: int = 8
) -> Verdict:
    """Return the verdict of the sixth GPU after a restart with four GPUs."""
    bus = PciBus(functions={example_parts.bus_id(index): "nvidia" for index in range(on_bus)})
    ward.report = replace(ward.report, inventory=replace(ward.report.inventory, bus=bus))
    expect(ward, expectation, visible=4)
    for index in (4, 5):
        ward.gpu(index, state={"stored": board(index), "restored": recalled})
        ward.fault(index, "missing", "on the PCI bus, but the driver does not list it")
    verdict = ward.go_on(90).verdict("gpu_missing", 5)
    assert verdict is not None
    return verdict


def test_a_container_restarted_with_fewer_gpus_is_unknown() -> None:
    """GPUs on the host's bus may be assigned to another container, so the verdict is unknown."""
    ward = Ward(gpus=6)
    verdict = missing_gpu_after_restart(ward, Expectation(count=6, may=8, place=CONTAINER))

    assert (verdict.level, verdict.action) == (Level.UNKNOWN, Action.NONE)
    assert "This container may have been given fewer GPUs than before" in verdict.reason
    assert "`gpumon inventory accept`" in verdict.reason
    assert ward.report.health.level is Level.UNKNOWN


@each_case(
    ("expectation", "recalled", "on_bus"),
    [
        (Expectation(count=6, place=GUEST), True, 8),
        (Expectation(count=6), True, 8),
        (Expectation(count=6, place=CONTAINER), False, 8),
        (Expectation(count=6, place=CONTAINER), True, 4),
        (Expectation(count=6, basis=Basis.CONFIGURED, place=CONTAINER), True, 8),
        (Expectation(count=6, basis=Basis.ACCEPTED, place=CONTAINER), True, 8),
    ],
    ids=["guest", "host", "seen-since-start", "not-on-the-bus", "configured", "accepted"],
)
def test_a_gpu_that_cannot_be_unassigned_is_missing(expectation: Expectation, *, recalled: bool, on_bus: int) -> None:
    """A GPU is missing if it was present since the start, is off the bus, or is configured or accepted."""
    verdict = missing_gpu_after_restart(Ward(gpus=6), expectation, recalled=recalled, on_bus=on_bus)
    assert (verdict.level, verdict.action) == (Level.FAIL, Action.REBOOT)


def test_gpus_are_not_counted_while_one_is_released() -> None:
    ward = Ward(gpus=8)
    expect(ward, Expectation(count=8), visible=7)
    ward.gpu(2, state={"released": True})

    assert not ward.go_on(300).verdicts


def test_a_driver_other_than_configured_is_a_warning() -> None:
    """The versions of the driver and of NCCL must be those in the configuration."""
    ward = Ward(policy=Policy(versions={"driver": "580.105.08", "nccl": "2.30.7"}))
    assert not ward.go_on(QUARTER - 60, every=30.0).verdicts
    verdict = ward.go_on(120).verdict("node_version_drift")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.FIX)
    assert verdict.reason == f"The driver is {DRIVER}; 580.105.08 is expected."

    ward.terms = replace(ward.terms, policy=Policy(versions={"driver": DRIVER, "nccl": "2.27.3"}))
    verdict = ward.go_on(60).verdict("node_version_drift")
    assert verdict is not None
    assert verdict.reason == "NCCL is 2.30.7; 2.27.3 is expected."
    ward.terms = replace(ward.terms, policy=Policy(versions={"driver": DRIVER}))
    assert not ward.go_on(300).verdicts


def test_a_gpu_with_another_firmware_than_most_is_a_warning() -> None:
    """A GPU is compared only with GPUs of the same product."""
    ward = Ward(gpus=8)
    ward.gpu(5, vbios="96.00.A5.00.03", gsp=None)
    verdict = ward.go_on(QUARTER + 60, every=30.0).verdict("gpu_version_drift", 5)
    assert verdict is not None
    assert verdict.reason == (f"Its VBIOS is 96.00.A5.00.03; 7 of 8 GPUs of this product have {VBIOS}.")
    assert ward.active_checks() == ["gpu_version_drift"]

    ward.gpu(5, name="NVIDIA L40S")
    assert not ward.go_on(300).verdicts


def test_a_tie_of_versions_is_a_verdict_of_the_node() -> None:
    """Without a majority the node has the verdict; a configured version moves it to the GPUs that differ."""
    other = "96.00.A5.00.03"
    ward = Ward(gpus=8)
    for index in range(4, 8):
        ward.gpu(index, vbios=other)
    verdict = ward.go_on(QUARTER + 60, every=30.0).verdict("node_version_drift")
    assert verdict is not None
    assert (verdict.level, verdict.action) == (Level.WARN, Action.FIX)
    assert verdict.reason == (
        f"The VBIOS is {VBIOS} on GPUs 0, 1, 2, 3 and {other} on GPUs 4, 5, 6, 7, without a majority."
    )
    assert ward.active_checks() == ["node_version_drift"]

    ward.terms = replace(ward.terms, policy=Policy(versions={"vbios": other}))
    ward.go_on(QUARTER + 60, every=30.0)
    assert [ward.level("gpu_version_drift", n) is Level.WARN for n in range(8)] == [True] * 4 + [False] * 4
    assert ward.active_checks() == ["gpu_version_drift"]


def test_a_tie_needs_two_responding_gpus_of_one_product() -> None:
    pair = Ward(gpus=2)
    pair.gpu(1, vbios="96.00.A5.00.03", name="NVIDIA L40S")
    assert not pair.go_on(QUARTER + 60, every=30.0).verdicts
    pair.gpu(1, name=pair.report.gpus[0].gpu.name)
    assert pair.go_on(QUARTER + 60, every=30.0).active_checks() == ["node_version_drift"]
    pair.fault(1, "stuck")
    pair.gpu(1, name=None, vbios=None)
    assert "node_version_drift" not in pair.go_on(300).active_checks()


def test_a_configured_firmware_applies_to_every_gpu() -> None:
    """Every responding GPU that differs from the configured version has the verdict, even if all GPUs agree."""
    ward = Ward(gpus=3, policy=Policy(versions={"vbios": "97.00"}))
    ward.fault(2, "stuck")
    ward.go_on(QUARTER + 60, every=30.0)

    assert [ward.level("gpu_version_drift", n) for n in range(3)] == [Level.WARN, Level.WARN, Level.OK]
    verdict = ward.verdict("gpu_version_drift", 0)
    assert verdict is not None
    assert verdict.reason == f"Its VBIOS is {VBIOS}; 97.00 is expected."


def test_accepting_the_count_clears_the_verdict_at_the_next_evaluation() -> None:
    """An accepted number of GPUs clears the mismatch within five seconds."""
    ward = Ward(gpus=7, ports=0)
    expect(ward, Expectation(count=8, basis=Basis.PRODUCT), visible=7)
    assert ward.go_on(90).active_checks() == ["gpu_count_mismatch"]
    expect(ward, Expectation(count=7, basis=Basis.ACCEPTED), visible=7)
    assert not ward.go_on(5).verdicts
    assert ward.transitions[-1].cleared_by is Clearance.GONE


def test_a_count_mismatch_clears_after_a_minute() -> None:
    """The mismatch clears only after the expected number of GPUs is present for more than 30 seconds."""
    ward = Ward(gpus=7, ports=0)
    expect(ward, Expectation(count=7, basis=Basis.ACCEPTED), visible=6)
    assert ward.go_on(90).active_checks() == ["gpu_count_mismatch"]
    ward.node(gpus_visible=7.0)
    assert ward.go_on(30).verdicts
    assert not ward.go_on(60).verdicts


def test_gpus_that_the_driver_counts_and_cannot_open_are_a_failure() -> None:
    """Without a PCI bus in sight a lost GPU has no name; NVML still counts it."""
    ward = Ward(gpus=4)
    bus = PciBus(functions={state.bus_id: "nvidia" for state in ward.report.gpus})
    inventory = replace(ward.report.inventory, bus=bus)
    ward.report = replace(ward.report, inventory=inventory)
    ward.report = changed(ward.report, expectation=replace(ward.report.expectation, place=SANDBOX))
    assert ward.go_on(120).level("gpu_count_mismatch") is Level.OK
    ward.node(gpus_visible=5.0)
    assert ward.go_on(120).level("gpu_count_mismatch") is Level.FAIL
