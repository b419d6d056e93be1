"""What the store still knows when the agent starts. Runs in the store's thread."""

from __future__ import annotations

from gpumon.health.standing import MAX_TRANSITIONS, MAX_WEIGHTY
from gpumon.health.verdict import VerdictTransition
from gpumon.model.hold import Hold
from gpumon.model.maintenance import Maintenance
from gpumon.probe.core.state import MOST_RAN, MOST_RESULTS
from gpumon.state.error_counters import MAX_EVENTS
from gpumon.state.messages import StoredState
from gpumon.store.store import Store

MAX_AGENT_RUNS = 50
"""Lives of the agent that are recalled."""


def recall(store: Store, probe: str) -> StoredState:
    """All of it that the Report has room for. Raises StoreError."""
    counters = store.probe_counters(probe)
    return StoredState(
        counters=store.error_counters(),
        events=store.recent_events(MAX_EVENTS),
        gpus=store.boards(),
        ports=store.ports(),
        accepted=store.accepted() is not None,
        verdicts=store.open_verdicts(),
        transitions=_transitions(store),
        cleared=store.cleared_verdicts(),
        pending=store.waiting(),
        agent_runs=store.recent_agent_runs(MAX_AGENT_RUNS),
        maintenances=store.spans(Maintenance),
        holds=store.spans(Hold),
        probe_results=store.known_probe_results(newest=MOST_RESULTS, each=MOST_RAN),
        probe_runs={outcome: float(count) for outcome, count in counters.outcomes.items()},
        probe_skips={reason: float(count) for reason, count in counters.reasons.items()},
    )


def _transitions(store: Store) -> tuple[VerdictTransition, ...]:
    """The newest, and before them those that have weight."""
    newest = store.recent_transitions(0.0, MAX_TRANSITIONS)
    weighty = store.recent_transitions(0.0, MAX_WEIGHTY, weighty=True)
    known = {(one.verdict.key, one.change, one.wall) for one in newest}
    return (*[one for one in weighty if (one.verdict.key, one.change, one.wall) not in known], *newest)
