"""The main loop: what is ready together, and no longer watched when its turn comes."""

from __future__ import annotations

import os
from functools import partial

from gpumon.supervisor.loop import Loop


def test_what_was_unwatched_in_this_turn_is_not_called() -> None:
    """Of two that are ready at once the first closes the other, as the end of a child closes its pipes."""
    loop, called = Loop(), list[int]()
    pipes = [os.pipe(), os.pipe()]
    readers = [reader for reader, _ in pipes]

    def close_the_other(own: int) -> None:
        called.append(own)
        for reader in readers:
            loop.unwatch(reader)
            os.close(reader)

    for reader, writer in pipes:
        loop.watch(reader, partial(close_the_other, reader))
        os.write(writer, b"x")
    loop.turn()

    assert len(called) == 1
    for _, writer in pipes:
        os.close(writer)
