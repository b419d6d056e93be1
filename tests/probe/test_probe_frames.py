"""Validation of the frames that a rank sends: an invalid frame fails the run and nothing more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from each_case import each_case

from gpumon.probe.core.frames import MAX_TEXT, Account, Progress, fold_frame
from gpumon.probe.core.plan import Measure, Pairs, Step, rounds

STEPS = (Measure(operation="all_reduce", sizes=(1024, 4096)), Pairs(bytes=4096, rounds=rounds(4)))
SIZED = {"step": 0, "size": 1024, "seconds": [1e-3] * 20, "wrong": 0}
PAIR = {
    "step": 1,
    "peer": 3,
    "bytes": 4096,
    "seconds": [1e-3] * 8,
    "wrong": 0,
    "wrong_send_elements": 2,
    "direct": True,
}
PLACE = {"stage": "measure", "step": 0, "index": 1, "sizes": 2, "size": 4096, "operation": 10, "operations": 20}
HUGE = 10**3999


def encode(frame: dict[str, Any]) -> bytes:
    return json.dumps(frame).encode()


def fold(*frames: dict[str, Any] | bytes, rank: int = 0, steps: Sequence[Step] = STEPS) -> Account:
    account = Account(progress=Progress(rank=rank))
    for frame in frames:
        account = fold_frame(account, frame if isinstance(frame, bytes) else encode(frame), steps)
    return account


def test_frames_in_order_make_the_account_of_a_rank() -> None:
    """Frames for every size, every peer and the end make a complete account."""
    pairs = [PAIR | {"peer": peer} for peer in (1, 2, 3)]
    account = fold(
        {"stage": "import"},
        {"versions": {"torch": "2.13.0"}},
        PLACE,
        SIZED,
        SIZED | {"size": 4096, "seconds": [1]},
        {"stepped": 1},
        *pairs,
        {"stepped": 2},
        {"done": True},
    )
    assert account.error == ""
    assert (account.done, account.stepped, account.versions) == (True, 2, {"torch": "2.13.0"})
    assert account.progress == Progress(rank=0, stage="measure", step=0, size=4096, ratio=0.75)
    assert {place: sized.seconds for place, sized in account.sizes.items()} == {
        (0, 1024): (1e-3,) * 20,
        (0, 4096): (1.0,),
    }
    assert [(*place, sized.wrong_send_elements, sized.direct) for place, sized in account.pairs.items()] == [
        (1, peer, 2, True) for peer in (1, 2, 3)
    ]


INVALID: dict[str, dict[str, Any] | bytes] = {
    "no JSON": b"garbage",
    "no UTF-8": b"\xff\xfe\xfd",
    "a list": b"[]",
    "a text": b'"text"',
    "nested without end": b"[" * 60_000,
    "an unknown key": {"what": 1},
    "a stage that is none": {"stage": "\x1b[2J"},
    "a stage that is no text": {"stage": []},
    "a place without its parts": {"stage": "measure", "index": 1},
    "no sizes": PLACE | {"index": 0, "sizes": 0},
    "a size past the last": PLACE | {"index": 2},
    "no operations": PLACE | {"operations": 0},
    "an operation past the last": PLACE | {"operation": 21},
    "an operation that is no number": PLACE | {"operation": float("nan")},
    "a step that is a word": PLACE | {"step": "x"},
    "a step that is a list": PLACE | {"step": [1]},
    "a step that is huge": PLACE | {"step": HUGE},
    "a step that was not ordered": PLACE | {"step": 2},
    "a size that is huge": PLACE | {"index": HUGE, "sizes": HUGE + 1},
    "no seconds": SIZED | {"seconds": []},
    "seconds that are a number": SIZED | {"seconds": 1},
    "seconds that are words": SIZED | {"seconds": ["1"]},
    "zero seconds": SIZED | {"seconds": [0.0]},
    "negative seconds": SIZED | {"seconds": [-1.0]},
    "time too short for a bandwidth": SIZED | {"seconds": [1e-320]},
    "time that is no number": SIZED | {"seconds": [float("nan")]},
    "infinite seconds": b'{"step": 0, "size": 1024, "wrong": 0, "seconds": [1e999]}',
    "time that is huge": SIZED | {"seconds": [HUGE]},
    "time that is true": SIZED | {"seconds": [True]},
    "more operations than were ordered": SIZED | {"seconds": [1e-3] * 21},
    "an infinite number of wrong elements": SIZED | {"wrong": float("inf")},
    "wrong that is huge": SIZED | {"wrong": HUGE},
    "a negative number of wrong elements": SIZED | {"wrong": -5},
    "wrong that is true": SIZED | {"wrong": True},
    "a size that was not ordered": SIZED | {"size": 2048},
    "a size of a step that was not ordered": SIZED | {"step": 2},
    "the rank itself as a peer": PAIR | {"peer": 0},
    "a peer that is none": PAIR | {"peer": 4},
    "a peer that is reached by a word": PAIR | {"direct": "yes"},
    "more steps than there are": {"stepped": 3},
    "steps without end": b'{"stepped": 1e999}',
    "a step that was not reported": {"stepped": 1},
    "the end before the end": {"done": True},
    "versions that are a list": {"versions": ["2.13.0"]},
    "versions without end": {"versions": {str(number): "1" for number in range(100)}},
    "a version that is a number": {"versions": {"torch": 2}},
    "an error that is a number": {"error": 1},
}


@each_case("frame", INVALID.values(), ids=INVALID)
def test_an_invalid_frame_is_an_error_of_its_rank(frame: dict[str, Any] | bytes) -> None:
    """An invalid frame sets a short printable error and changes nothing else in the account."""
    account = fold(frame)
    assert account.error.startswith("it sent an invalid frame: ")
    assert account.error.isprintable()
    assert len(account.error) < 1500
    assert account == Account(progress=Progress(rank=0), error=account.error)


def test_frames_after_an_error_are_ignored() -> None:
    account = fold(b"garbage", SIZED, {"error": "another"}, {"done": True})
    assert account == fold(b"garbage")


@pytest.mark.parametrize("frame", [SIZED, PAIR])
def test_a_repeated_measurement_is_an_error(frame: dict[str, Any]) -> None:
    """A measurement that a rank reports again is an error, and the first one is kept."""
    account = fold(frame, frame | {"wrong": 1})
    assert "reported before" in account.error
    assert [sized.wrong for sized in (*account.sizes.values(), *account.pairs.values())] == [0]


def test_a_frame_of_a_step_that_was_not_ordered_is_an_error() -> None:
    for frame in (SIZED, PAIR, PLACE, {"stepped": 1}):
        assert fold(frame, steps=()).error


def test_texts_of_a_rank_are_printable_and_bounded() -> None:
    assert (
        fold({"error": "\x1b]0;owned\x07no\nroute \ud800\u202e" + "x" * 60_000}).error
        == ("]0;owned no route " + "x" * 60_000)[:MAX_TEXT]
    )
    assert fold({"error": "\x1b"}).error == "?"
    account = fold({"versions": {"to\x1brch": "\x1b[2J" + "9" * 5000}}, {"absent": "tor\x07ch"})
    assert account.versions == {"to rch": "[2J" + "9" * 97}
    assert account.absent == "tor ch"
