"""MIG: instances are enumerated after each layout change, and fields that MIG disables are absent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from polled import Poll, open_poll

from gpumon.model.gpu import Gpu
from gpumon.model.reading import FAST
from gpumon.model.snapshot import GpuReading, MigReading

PARTED = "gpus: {0: {mig: [3g.40gb, 2g.20gb, 1g.10gb]}}"


def slow(poll: Poll) -> GpuReading:
    """Return GPU 0 of a poll of all tiers that is late enough for another sample."""
    return poll.poll_later(all_tiers=True).gpus[0]


def profiles(migs: tuple[MigReading, ...]) -> list[str]:
    return sorted(mig.profile for mig in migs)


def test_instances_have_names_numbers_and_memory(tmp_path: Path) -> None:
    """Each instance has its own UUID, and its memory is a part of its GPU's memory."""
    with open_poll("h100x1", PARTED, folder=tmp_path) as poll:
        migs = slow(poll).migs

    assert profiles(migs) == ["1g.10gb", "2g.20gb", "3g.40gb"]
    assert len({mig.uuid for mig in migs}) == len({mig.gpu_instance_id for mig in migs}) == 3
    assert all(mig.uuid.startswith("MIG-") for mig in migs)
    sizes = {mig.profile: mig.mig.memory_total_bytes or 0 for mig in migs}
    assert sizes["1g.10gb"] < sizes["2g.20gb"] < sizes["3g.40gb"] < 85e9


def test_compute_instances_share_the_samples_of_their_gpu_instance(tmp_path: Path) -> None:
    text = "gpus: {0: {busy: true, mig: [{profile: 3g.40gb, compute: [1, 2]}]}}"
    with open_poll("h100x1", text, folder=tmp_path) as poll:
        slow(poll)
        first, second = slow(poll).migs

    assert profiles((first, second)) == ["1c.3g.40gb", "2c.3g.40gb"]
    assert (first.gpu_instance_id, first.compute_instance_id) != (second.gpu_instance_id, second.compute_instance_id)
    assert first.mig.sm_active_ratio is not None
    assert first.mig.sm_active_ratio == second.mig.sm_active_ratio


@pytest.mark.parametrize("changed", [True, False])
def test_fields_that_disappear_with_the_first_instance_return_with_the_last(tmp_path: Path, *, changed: bool) -> None:
    """A field that the driver stops supporting with the first instance is absent, and errors stop soon."""
    with open_poll("h100x1", "gpus: {0: {mig: []}}", folder=tmp_path) as poll:

        def readings(text: str) -> list[Gpu]:
            poll.simulation.edit(text)
            if changed:
                poll.node.events.take()
            readings = [poll.poll_later(all_tiers=True) for _ in range(3)]
            assert "slow,NotSupported" not in readings[-1].errors
            assert "slow,NotSupported" not in readings[0].errors or not changed
            return [reading.gpus[0].gpu or Gpu() for reading in readings]

        readings("gpus: {0: {mig: []}}")
        assert readings("gpus: {0: {mig: [1g.10gb]}}")[-1].rows_remapped_total is None
        assert readings("gpus: {0: {mig: []}}")[-1].rows_remapped_total is not None


def test_a_new_layout_lists_the_new_instances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next slow poll has the new instances, and the samples of the old instances are freed."""
    with open_poll("h100x1", PARTED, folder=tmp_path) as poll, caplog.at_level(logging.INFO):
        before = slow(poll).migs
        slow(poll)
        poll.simulation.edit("gpus: {0: {mig: [7g.80gb]}}")
        changed = slow(poll).migs
        slow(poll)
        sampled = slow(poll).migs
        samples = len(poll.simulation.node._node.samples)

    assert not {instance.uuid for instance in before} & {instance.uuid for instance in changed}
    assert profiles(changed) == ["7g.80gb"]
    assert (changed[0].mig.sm_active_ratio, sampled[0].mig.sm_active_ratio is not None) == (None, True)
    assert samples == 4  # one of the GPU and one of its instance
    assert [record.message for record in caplog.records].count("the MIG layout changed") == 1


def test_an_announced_change_is_read_at_once(tmp_path: Path) -> None:
    """A layout change that the driver announces is read at once, without a due slow poll."""
    with open_poll("h100x1", PARTED, folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {0: {mig: [7g.80gb]}}")
        poll.simulation.now += 1.0
        poll.node.events.take()
        migs = poll.poll().gpus[0].migs

    assert profiles(migs) == ["7g.80gb"]


def test_fields_that_mig_disables_are_absent_without_an_error(tmp_path: Path) -> None:
    """MIG that is switched on at run time makes these fields absent; they return when MIG is off."""
    with open_poll("h100x1", folder=tmp_path) as poll:
        whole = slow(poll)
        poll.simulation.edit(PARTED)
        slow(poll)
        snapshot = poll.poll_later(all_tiers=True)
        parted = snapshot.gpus[0]
        poll.simulation.edit("")
        slow(poll)
        again = slow(poll)

    assert _facts(whole) == _facts(again) == (True, True, 18, 0)
    assert _facts(parted) == (False, False, 0, 3)
    assert snapshot.errors == {}


def _facts(readings: GpuReading) -> tuple[bool, bool, int, int]:
    gpu = readings.gpu or Gpu()
    active_links = [link for link in readings.links.values() if link.up is not None]
    return gpu.utilization_ratio is not None, gpu.ecc_errors_total is not None, len(active_links), len(readings.migs)


def test_a_gpu_whose_mig_is_on_may_have_no_instance() -> None:
    with open_poll("h100migx8") as poll:
        snapshot = poll.poll_later(all_tiers=True)

    *parted, empty = snapshot.gpus
    assert empty.migs == ()
    assert empty.gpu is not None
    assert empty.gpu.mig_mode == 1
    assert all(reading.migs for reading in parted)
    assert snapshot.errors == {}


def test_an_instance_that_disappears_while_read_is_omitted(tmp_path: Path) -> None:
    """An instance that disappears has no readings and does not cause an error of the GPU."""
    gone = '{"nvmlDeviceGetComputeInstanceId": NOT_FOUND}'
    with open_poll("h100x1", PARTED, folder=tmp_path) as poll:
        slow(poll)
        poll.simulation.edit(f"gpus: {{0: {{mig: [3g.40gb], fail: {gone}}}}}")
        snapshot = poll.poll_later(all_tiers=True)

    assert (snapshot.gpus[0].migs, snapshot.gpus[0].fault, snapshot.errors) == ((), None, {})


def test_instances_add_no_calls_to_a_fast_poll() -> None:
    """A fast poll has no call for instances, because a full node has 56 of them."""
    with open_poll("h100migx8") as poll:
        poll.poll_later(all_tiers=True)
        before = poll.page.calls
        poll.node._due = dict.fromkeys(poll.node._due, float("inf")) | {FAST: 0.0}
        poll.poll_later()

        assert poll.page.calls - before <= 1 + 8 * 6
