"""`gpumon usage`."""

from __future__ import annotations

from typing import Any

import pytest

from gpumon.fleet.usage import NONE, added_up
from gpumon.outputs.formatting import HOUR
from gpumon.outputs.node_text import IDLE


def use(job: str, *, user: str | None = None, gpu: int = 0, **held: float) -> Any:
    """Return an allocation of ten hours, of which `held` has the use, as the API returns it."""
    unused = dict.fromkeys(("busy_seconds", *IDLE, "energy_joules"), 0.0)
    place = {"gpu": gpu, "uuid": f"GPU-{gpu}", "since": "2026-01-01T00:00:00.000Z"}
    return {
        "job": job,
        "owner": {"user": user, "account": None, "pod_namespace": None},
        "allocation": {**place, "held_seconds": HOUR, **unused, **held},
        "until": "2026-01-01T10:00:00.000Z",
    }


USES = (
    use("slurm/1", user="ann", no_process_seconds=HOUR),
    use("slurm/2", user="ann", gpu=1, cold_seconds=HOUR / 2, busy_seconds=HOUR / 2, energy_joules=3.6e6),
    use("slurm/3", gpu=1, busy_seconds=HOUR),
)
EARLIEST = 0.0


def test_uses_are_added_up_by_each_kind_of_name() -> None:
    """The GPU hours of all allocations with the same user, job or GPU are added up, the most idle first."""
    by = {
        kind: [(each.name, each.gpu_hours, each.idle_hours) for each in added_up(USES, kind, EARLIEST)]
        for kind in ("user", "job", "gpu", "account")
    }
    assert by == {
        "user": [("ann", 2.0, 1.5), (NONE, 1.0, 0.0)],
        "job": [("slurm/1", 1.0, 1.0), ("slurm/2", 1.0, 0.5), ("slurm/3", 1.0, 0.0)],
        "gpu": [("0", 1.0, 1.0), ("1", 2.0, 0.5)],
        "account": [(NONE, 3.0, 1.5)],
    }
    (ann, _) = added_up(USES, "user", EARLIEST, price=2.5)
    assert (ann.kwh, ann.cost) == (1.0, 5.0)


def test_only_the_part_of_an_allocation_in_the_time_counts() -> None:
    """Of an allocation of ten hours, three of which are in the time, three tenths of its use count."""
    from_seven = 1767250800.0  # 2026-01-01T07:00:00Z
    (whole,) = added_up([use("slurm/1", held_seconds=10 * HOUR, energy_joules=3.6e7)], "job", from_seven)
    assert whole.gpu_hours == pytest.approx(3.0)
    assert whole.kwh == pytest.approx(3.0)
