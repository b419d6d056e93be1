"""What waits to become a verdict, or to end one, over restarts of the agent: what is stored of it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpumon.health.standing import Health, Pending
from gpumon.health.terms import Level
from gpumon.health.verdict import Key
from gpumon.model.now import Now


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVerdict:
    """A Pending on clocks that mean something to the next life of the agent."""

    check: str
    device: str
    level: Level
    lasted: Mapping[Level, float]
    patience: float
    seen_at: float
    """When one was last seen, on CLOCK_BOOTTIME."""
    boot_id: str


def waited(health: Health, boot_id: str) -> Iterator[PendingVerdict]:
    """What is to be stored."""
    if health.judged_at is None or health.looked_at is None:
        return
    offset = health.judged_at - health.looked_at
    for (check, device), one in health.pending.items():
        yield PendingVerdict(
            check=check,
            device=device,
            level=one.level,
            lasted=one.lasted,
            patience=one.patience,
            seen_at=one.seen + offset,
            boot_id=boot_id,
        )


def resumed(stored: Iterable[PendingVerdict], now: Now, boot_id: str) -> dict[Key, Pending]:
    """What goes on waiting: that of this boot which nobody missed for too long. The gap itself does not count."""
    found = {}
    for one in stored:
        seen = now.uptime - (now.at - one.seen_at)
        pending = Pending(one.level, one.lasted, seen, one.patience)
        if one.boot_id == boot_id and pending.counts(now.uptime):
            found[one.check, one.device] = pending
    return found
