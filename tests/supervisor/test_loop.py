"""The main loop: a callback that is unwatched before its turn is not called."""

from __future__ import annotations

import os
from functools import partial

from gpumon.supervisor.loop import Loop


def test_a_descriptor_unwatched_in_this_turn_is_not_called() -> None:
    """If two descriptors are ready and the first callback unwatches the second, only the first is called."""
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
