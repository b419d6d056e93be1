from __future__ import annotations

from each_case import each_case

from gpumon.supervisor.child_process import LineSplitter

TOO_LONG = b"too long"


@each_case("at_once", [1, 3, 11, 1000])
@each_case(
    ("received", "lines"),
    [
        (b"one\ntwo\n\nwithout an end", [b"one", b"two", b"", TOO_LONG]),
        (b"just a ten\nmore than ten\nshort\n", [b"just a ten", TOO_LONG, b"short"]),
        (b"x" * 1000 + b"\nnext\n" + b"y" * 1000 + b"\n", [TOO_LONG, b"next", TOO_LONG]),
        (b"x" * 15 + b" tail\nnext\nre", [TOO_LONG, b"next"]),
    ],
)
def test_a_line_over_the_limit_is_dropped_whole(received: bytes, lines: list[bytes], at_once: int) -> None:
    """A line over the limit is dropped and reported once, however its bytes arrive."""
    split: list[bytes] = []
    splitter = LineSplitter(10, split.append, lambda: split.append(TOO_LONG))
    for begin in range(0, len(received), at_once):
        splitter.feed(received[begin : begin + at_once])
    assert split == lines
