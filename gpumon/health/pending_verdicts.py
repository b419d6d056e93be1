"""Pending findings as rows of the store, so that the time that they have lasted survives an agent restart. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gpumon.health.node_health import Health, Pending
from gpumon.health.verdict import Key, Level
from gpumon.model.instant import Now


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingVerdict:
    """A Pending as it is stored. Its time is on the boot clock, which a restart of the agent does not reset."""

    check: str
    device: str
    level: Level
    lasted: Mapping[Level, float]
    patience: float
    seen_at: float
    """Boot clock time of the last of the pending findings."""
    boot_id: str


def pending_to_store(health: Health, boot_id: str) -> Iterator[PendingVerdict]:
    """Yield the pending findings as rows for the store; none before the first evaluation."""
    if health.evaluated_at is None or health.evaluated_uptime is None:
        return
    offset = health.evaluated_at - health.evaluated_uptime
    for (check, device), pending in health.pending.items():
        yield PendingVerdict(
            check=check,
            device=device,
            level=pending.level,
            lasted=pending.lasted,
            patience=pending.patience,
            seen_at=pending.seen + offset,
            boot_id=boot_id,
        )


def restore_pending(stored: Iterable[PendingVerdict], now: Now, boot_id: str) -> dict[Key, Pending]:
    """Return the stored pending findings of this boot that are still valid, by key.

    The time in which no agent ran is not added to the time that the findings have lasted.
    """
    valid = {}
    for row in stored:
        last_seen = now.uptime - (now.at - row.seen_at)
        pending = Pending(row.level, row.lasted, last_seen, row.patience)
        if row.boot_id == boot_id and pending.is_valid(now.uptime):
            valid[row.check, row.device] = pending
    return valid
