"""Frames transfer every snapshot completely, and unchanged parts as the same objects."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from polled import open_poll as simulated_poll
from reduced_reports import gpu_reading, lost_reading, snapshot

from gpumon.model import call_progress
from gpumon.model.frame import Decoder, Encoder, FrameError
from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import Snapshot


@pytest.mark.parametrize("profile", ["h100x8", "b200x8", "h100migx8"])
def test_a_sequence_of_snapshots_arrives_as_it_was_sent(profile: str) -> None:
    encoder, decoder = Encoder(), Decoder()
    with simulated_poll(profile) as poll:
        for number in range(6):
            sent = poll.poll_later(all_tiers=number % 3 == 2)
            assert decoder.decode(encoder.encode(sent)) == Decoder().decode(Encoder().encode(sent))


def test_unchanged_parts_are_the_same_objects() -> None:
    """Unchanged parts are the same objects, so that they need no comparison."""
    encoder, decoder = Encoder(), Decoder()
    first, second = (decoder.decode(encoder.encode(snapshot(gpu_reading(0), at=at))) for at in (100.0, 101.0))
    assert isinstance(first, Snapshot)
    assert isinstance(second, Snapshot)
    assert second.gpus[0].gpu is first.gpus[0].gpu
    assert second.gpus[0].links is first.gpus[0].links


def test_rows_and_gpus_that_disappear_and_come_back() -> None:
    encoder, decoder = Encoder(), Decoder()
    warm = gpu_reading(0)
    for reading in (
        warm,
        replace(warm, gpu=Gpu(name="NVIDIA H100"), links={}),
        lost_reading(0),
        warm,
        gpu_reading(1),
        warm,
    ):
        sent = snapshot(reading)
        assert decoder.decode(encoder.encode(sent)) == sent


def test_a_frame_that_depends_on_one_never_received_is_an_error() -> None:
    encoder = Encoder()
    encoder.encode(snapshot(gpu_reading(0)))
    with pytest.raises(FrameError):
        Decoder().decode(encoder.encode(snapshot(gpu_reading(0))))


def test_a_deeply_nested_line_is_an_error() -> None:
    """It ends the child that sent it, not the daemon."""
    with pytest.raises(FrameError):
        Decoder().decode(b'{"frame":' + b"[" * 100_000)


def test_names_in_shared_memory_may_be_any_bytes() -> None:
    """A child that writes no text into the page of its calls cannot end the daemon."""
    with call_progress.page_descriptor() as descriptor:
        os.pwrite(descriptor, b"\xff" * call_progress.SIZE, 0)
        assert call_progress.Reader(descriptor).read().call.startswith("\N{REPLACEMENT CHARACTER}")
