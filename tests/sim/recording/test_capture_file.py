"""The file of a recording: whole or not at all, small, and refused in words when it is none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from recorded import recording, stored

from gpumon.sim import SimulationError, capture
from gpumon.sim.capture import Capture, CapturedQuery, Timeline
from gpumon.sim.open_library import open_simulated


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A good recording of a T4."""
    with recording("t4x1") as one:
        one.survey()
        one.polls(1)
        stored(one.capture(), tmp_path)
    return tmp_path / "node.capture"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """All of it, to the last kind of answer; nothing beside the file is left behind."""
    with recording("h100x1") as one:
        one.survey()
        one.polls(2)
        made = one.capture()

    assert stored(made, tmp_path) == made
    assert [path.name for path in tmp_path.iterdir()] == ["node.capture"]


def test_a_value_that_does_not_change_is_stored_once() -> None:
    """An answer holds until another one comes."""
    timeline = Timeline()
    for time, value in enumerate((7, 7, 7, 8, 8, 7)):
        timeline.add(time, (0, value))

    assert timeline.times == [0, 3, 5]
    assert [timeline.at(time)[1] for time in (-1.0, 0.0, 2.9, 3.0, 4.9, 5.0, 99.0)] == [7, 7, 7, 8, 8, 7, 7]


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda whole: whole[: len(whole) // 2], "ends too early"),
        (lambda _: b"gpus: {3: {lost: true}}\n", "not a recording of gpumon"),
        (lambda _: gzip.compress(b'{"some": "thing"}\n'), "not a recording of gpumon"),
        (lambda _: gzip.compress(b""), "not a recording of gpumon"),
        (lambda whole: gzip.compress(b"\n".join(gzip.decompress(whole).split(b"\n")[:5])), "ends too early"),
        (lambda whole: _changed(whole, 0, **{capture.FORMAT: 2}), "of format 2"),
        (lambda whole: _changed(whole, -2, answers=[]), "damaged"),
        (lambda whole: _changed(whole, 1, takes=["what"]), "damaged"),
    ],
)
def test_a_bad_file_is_refused_in_words(good: Path, spoil: object, told: str) -> None:
    """Truncated, foreign, of a later gpumon, damaged: the error names the file and what to do."""
    assert callable(spoil)
    good.write_bytes(spoil(good.read_bytes()))

    with pytest.raises(SimulationError, match=told) as caught:
        open_simulated(str(good), scenario=None, epoch=0.0)
    assert str(good) in str(caught.value)


def test_a_missing_file_and_a_folder_are_refused_in_words(tmp_path: Path) -> None:
    for path in (tmp_path / "none.capture", tmp_path):
        with pytest.raises(SimulationError, match="cannot be read"):
            capture.read(path)


def test_a_file_that_cannot_be_written_leaves_the_one_that_was_there(good: Path) -> None:
    """Writing is all or nothing."""
    before = good.read_bytes()
    broken = capture.read(good)
    broken.answers[CapturedQuery("nvmlDeviceGetName", (object(),))] = Timeline()

    with pytest.raises(TypeError):
        capture.write(broken, good)
    assert good.read_bytes() == before
    assert len(list(good.parent.iterdir())) == 1


def _changed(whole: bytes, line: int, **values: object) -> bytes:
    lines = gzip.decompress(whole).splitlines()
    lines[line] = json.dumps(json.loads(lines[line]) | values).encode()
    return gzip.compress(b"\n".join(lines) + b"\n")


def test_an_empty_recording_is_one() -> None:
    """Of a host on which nothing was asked, nothing is known."""
    with recording("t4x1") as one:
        header = one.capture().header
    assert capture.bus(Capture(header=header), 0.0) == {}
