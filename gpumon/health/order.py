"""Which verdict comes first, and which stands under which. Pure; imports next to nothing, for `gpumon check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpumon.health.verdict import Key, Verdict


def worst_first(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Then the oldest."""
    return tuple(sorted(verdicts, key=lambda one: (-one.level, one.since, one.key)))


def primary(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those that follow from no other, in their order."""
    return tuple(one for one in verdicts if one.under is None)


def following(one: Verdict, verdicts: Iterable[Verdict]) -> Iterator[Verdict]:
    """All that follows from this one, directly or not."""
    for other in verdicts:
        if other.under == one.key:
            yield other
            yield from following(other, verdicts)


def on_their_own(known: Mapping[Key, Verdict]) -> dict[Key, Verdict]:
    """What stood under a verdict that is no more stands by itself, at once: nothing is out of sight in between."""
    lone = {key: one._replace(under=None) for key, one in known.items() if one.under not in known and one.under}
    return {**known, **lone}
