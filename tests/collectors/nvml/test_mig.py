"""MIG: instances are enumerated anew, layouts change under us, and what a parent cannot tell is absent."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from polled import Poll, polled

from gpumon.model.gpu import Gpu
from gpumon.model.reading import FAST
from gpumon.model.snapshot import GpuReading, MigReading

PARTED = "gpus: {0: {mig: [3g.40gb, 2g.20gb, 1g.10gb]}}"


def slow(poll: Poll) -> GpuReading:
    """GPU 0, read in all tiers, when time for another sample has passed."""
    return poll.poll_later(all_tiers=True).gpus[0]


def profiles(migs: tuple[MigReading, ...]) -> list[str]:
    return sorted(one.profile for one in migs)


def test_instances_have_names_numbers_and_memory(tmp_path: Path) -> None:
    """Each with a uuid of its own; its memory is a part of its GPU's."""
    with polled("h100x1", PARTED, folder=tmp_path) as poll:
        migs = slow(poll).migs

    assert profiles(migs) == ["1g.10gb", "2g.20gb", "3g.40gb"]
    assert len({one.uuid for one in migs}) == len({one.gpu_instance_id for one in migs}) == 3
    assert all(one.uuid.startswith("MIG-") for one in migs)
    sizes = {one.profile: one.mig.memory_total_bytes or 0 for one in migs}
    assert sizes["1g.10gb"] < sizes["2g.20gb"] < sizes["3g.40gb"] < 85e9


def test_compute_instances_share_what_is_sampled_of_their_gpu_instance(tmp_path: Path) -> None:
    """Two halves of one GPU instance: one pair of samples, the same activity, and a profile that says so."""
    text = "gpus: {0: {busy: true, mig: [{profile: 3g.40gb, compute: [1, 2]}]}}"
    with polled("h100x1", text, folder=tmp_path) as poll:
        slow(poll)
        one, other = slow(poll).migs

    assert profiles((one, other)) == ["1c.3g.40gb", "2c.3g.40gb"]
    assert (one.gpu_instance_id, one.compute_instance_id) != (other.gpu_instance_id, other.compute_instance_id)
    assert one.mig.sm_active_ratio is not None
    assert one.mig.sm_active_ratio == other.mig.sm_active_ratio


@pytest.mark.parametrize("changed", [True, False])
def test_the_first_instance_takes_away_what_the_last_one_gives_back(tmp_path: Path, *, changed: bool) -> None:
    """With MIG on and no instance the GPU tells of remapped rows, with one it does not; that is no error for long."""
    with polled("h100x1", "gpus: {0: {mig: []}}", folder=tmp_path) as poll:

        def readings(text: str) -> list[Gpu]:
            poll.simulation.edit(text)
            if changed:
                poll.node.events.take()
            seen = [poll.poll_later(all_tiers=True) for _ in range(3)]
            assert "slow,NotSupported" not in seen[-1].errors
            assert "slow,NotSupported" not in seen[0].errors or not changed
            return [one.gpus[0].gpu or Gpu() for one in seen]

        readings("gpus: {0: {mig: []}}")
        assert readings("gpus: {0: {mig: [1g.10gb]}}")[-1].rows_remapped_total is None
        assert readings("gpus: {0: {mig: []}}")[-1].rows_remapped_total is not None


def test_a_gpu_that_is_cut_anew_shows_the_new_instances(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The next slow reading has them, and samples of the instances that were there before are given back."""
    with polled("h100x1", PARTED, folder=tmp_path) as poll, caplog.at_level(logging.INFO):
        before = slow(poll).migs
        slow(poll)
        poll.simulation.edit("gpus: {0: {mig: [7g.80gb]}}")
        changed = slow(poll).migs
        slow(poll)
        sampled = slow(poll).migs
        samples = len(poll.simulation.node._node.samples)

    assert not {one.uuid for one in before} & {one.uuid for one in changed}
    assert profiles(changed) == ["7g.80gb"]
    assert (changed[0].mig.sm_active_ratio, sampled[0].mig.sm_active_ratio is not None) == (None, True)
    assert samples == 4  # of the GPU and of its one instance
    assert [record.message for record in caplog.records].count("the MIG layout changed") == 1


def test_a_change_that_is_announced_is_seen_at_once(tmp_path: Path) -> None:
    """No slow reading is due, but the driver tells of the change."""
    with polled("h100x1", PARTED, folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {0: {mig: [7g.80gb]}}")
        poll.simulation.now += 1.0
        poll.node.events.take()
        migs = poll.poll().gpus[0].migs

    assert profiles(migs) == ["7g.80gb"]


def test_what_a_parted_gpu_cannot_tell_is_absent_and_no_error(tmp_path: Path) -> None:
    """Also where MIG is switched on while the agent runs; and it is back when MIG is off."""
    with polled("h100x1", folder=tmp_path) as poll:
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


def _facts(seen: GpuReading) -> tuple[bool, bool, int, int]:
    gpu = seen.gpu or Gpu()
    known = [link for link in seen.links.values() if link.up is not None]
    return gpu.utilization_ratio is not None, gpu.ecc_errors_total is not None, len(known), len(seen.migs)


def test_a_gpu_whose_mig_is_on_may_have_no_instance() -> None:
    """It is read like any other; it has nothing to show below it."""
    with polled("h100migx8") as poll:
        snapshot = poll.poll_later(all_tiers=True)

    *parted, empty = snapshot.gpus
    assert empty.migs == ()
    assert empty.gpu is not None
    assert empty.gpu.mig_mode == 1
    assert all(one.migs for one in parted)
    assert snapshot.errors == {}


def test_an_instance_that_goes_while_it_is_asked_is_left_out(tmp_path: Path) -> None:
    """Its handle is dead: no error of the GPU, and nothing of the reading before."""
    gone = '{"nvmlDeviceGetComputeInstanceId": NOT_FOUND}'
    with polled("h100x1", PARTED, folder=tmp_path) as poll:
        slow(poll)
        poll.simulation.edit(f"gpus: {{0: {{mig: [3g.40gb], fail: {gone}}}}}")
        snapshot = poll.poll_later(all_tiers=True)

    assert (snapshot.gpus[0].migs, snapshot.gpus[0].fault, snapshot.errors) == ((), None, {})


def test_nothing_of_instances_is_asked_at_every_poll() -> None:
    """A full node has 56 of them, each worth several calls."""
    with polled("h100migx8") as poll:
        poll.poll_later(all_tiers=True)
        before = poll.page.calls
        poll.node._due = dict.fromkeys(poll.node._due, float("inf")) | {FAST: 0.0}
        poll.poll_later()

        assert poll.page.calls - before <= 1 + 8 * 6
