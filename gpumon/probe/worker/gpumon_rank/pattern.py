"""Fills buffers with a pattern, and checks the pattern in received buffers.

The pattern consists of whole numbers so small that the data type holds their sums exactly.
"""

from __future__ import annotations

from typing import Any

PERIOD = 1021
"""Number of float32 elements after which the pattern repeats. It is a prime, so that a block in the wrong place is
detected.
"""
TILE_ELEMENTS = 1 << 20
EXACT_BFLOAT16 = 256
"""Largest number up to which bfloat16 holds every whole number."""
LARGEST = 1e38
"""Max value in a buffer that is reduced repeatedly. It is near the largest number of float32 and bfloat16."""


class Pattern:
    """The pattern for buffers of one data type on one device.

    `summed`: whether the collective adds up the buffers of all ranks.
    """

    def __init__(self, torch: Any, dtype: str, device: Any, ranks: int, *, summed: bool) -> None:
        self.dtype = getattr(torch, dtype)
        self.width: int = torch.empty(0, dtype=self.dtype).element_size()
        """Bytes of one element."""
        self._ranks = ranks
        self._marks, period = self._marks_and_period(ranks, narrow=dtype != "float32", summed=summed)
        self.largest = period + self._marks
        copies = max(1, TILE_ELEMENTS // period)
        self._tile = torch.arange(period, dtype=self.dtype, device=device).repeat(copies)
        self.turn = 0
        """Number of the checked operation. It changes the pattern, so that data of an earlier operation is detected as
        wrong.
        """

    @staticmethod
    def _marks_and_period(ranks: int, *, narrow: bool, summed: bool) -> tuple[int, int]:
        """Return the number of different values that `mark` returns, and the period of the pattern in elements.

        `narrow`: whether the data type is not float32. `summed`: whether the buffers of all ranks are added up.
        """
        if not narrow:
            return PERIOD, PERIOD
        if summed:
            return 2, _prime((EXACT_BFLOAT16 - ranks // 2) // ranks + 1)
        return EXACT_BFLOAT16 // 2, _prime(EXACT_BFLOAT16 // 2)

    def mark(self, number: int) -> int:
        """Return the number that `fill` adds to the pattern of the sender `number`.

        It lets a rank distinguish the data of different senders. For
        all-to-all, `number` stands for a pair of sender and receiver.
        """
        return (number + self.turn) % self._marks

    def fill(self, elements: Any, number: int) -> None:
        for chunk in elements.split(len(self._tile)):
            chunk.copy_(self._tile[: len(chunk)]).add_(self.mark(number))

    def count_wrong(self, elements: Any, number: int) -> int:
        """Return the number of elements that differ from what `fill` writes for this sender."""
        return self._count_differing(elements, self._tile + self.mark(number))

    def count_wrong_sums(self, elements: Any) -> int:
        """Return the number of elements that differ from the sum of what `fill` writes on all ranks."""
        marks = sum(self.mark(rank) for rank in range(self._ranks))
        return self._count_differing(elements, self._tile * self._ranks + marks)

    def _count_differing(self, elements: Any, expected: Any) -> int:
        return sum(int((chunk != expected[: len(chunk)]).sum()) for chunk in elements.split(len(expected)))


def _prime(limit: int) -> int:
    """Return the largest prime up to `limit`, but at least 2."""
    return next((n for n in range(limit, 2, -1) if all(n % divisor for divisor in range(2, n))), 2)
