"""The real agent, killed at random moments while faults come and go: no verdict is lost, doubled, or comes back."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, eventually
from stores import read

from gpumon.health.verdict import Key, VerdictChange
from gpumon.store import verdicts
from gpumon.store.store import Store

pytestmark = pytest.mark.slow

KILLS = 4
RANDOM = random.Random(20)  # noqa: S311 - no secret: the same story each time
SCENARIOS: tuple[dict[str, Any], ...] = (
    {"gpus": {0: {"remap": {"failed": 1}}}},
    {"gpus": {0: {"remap": {"failed": 1}}, 1: {"lost": True}}},
    {"gpus": {1: {"lost": True}}},
    {},
    {"gpus": {1: {"remap": {"failed": 1}}}},
)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    one = Agent(tmp_path, profile="h100pciex2", environment={"GPUMON_BOOT_ID": "boot-1"})
    yield one
    one.stop()


def shown(agent: Agent) -> set[tuple[str, str | None]]:
    """Check and device of every verdict, whatever it follows from."""
    document = agent.get("/api/v1/health")
    assert document["evaluated"]
    found = [one for top in document["verdicts"] for one in (top, *top["consequences"])]
    return {(one["check"], one["device"]) for one in found}


def named(key: Key) -> tuple[str, str | None]:
    """As documents have it: the node has no name."""
    return key[0], key[1] or None


def transitions(agent: Agent) -> list[tuple[tuple[str, str | None], VerdictChange]]:
    """Of the agent's store, while the agent does not run; the oldest first."""
    with Store.open(agent.folder / "gpumon.db") as store:
        known = [(named(one.verdict.key), one.change) for one in read(store, verdicts.read_transitions, 100_000)]
        there = {named(one.key) for one in read(store, verdicts.read_open)}
    alternate: set[tuple[str, str | None]] = set()
    for key, change in known:
        assert (change is VerdictChange.RAISED) == (key not in alternate), (key, change)
        alternate = alternate - {key} if change is VerdictChange.CLEARED else alternate | {key}
    assert alternate == there
    return known


def judged(agent: Agent) -> set[tuple[str, str | None]]:
    """What is shown at the first moment at which it has judged."""
    return eventually(lambda: shown(agent) or {("", "")})


def test_kills_at_random_moments(agent: Agent) -> None:
    """What was shown is there after the restart, unless its clearing is on record; each change is recorded once.

    Then the host is rebooted under it, which is told, as is an agent that was killed so often. What is acknowledged
    is gone for good, at once.
    """
    before: set[tuple[str, str | None]] = set()
    for _ in range(KILLS):
        agent.simulate(RANDOM.choice(SCENARIOS))
        agent.launch()
        now = judged(agent)
        threading.Event().wait(RANDOM.uniform(0.0, 4.0))
        now |= shown(agent)
        agent.kill()
        known = transitions(agent)
        cleared = {key for key, change in known if change is VerdictChange.CLEARED}
        assert before - cleared <= now
        before = {key for key, change in known if change is VerdictChange.RAISED and key not in cleared}

    assert ("gpumon_restarting", None) in before
    agent.environment["GPUMON_BOOT_ID"] = "boot-2"
    agent.simulate({"gpus": {1: {"lost": True}}})
    agent.start()
    expected = before | {("node_unexpected_reboot", None)}
    eventually(lambda: expected <= (verdicts := shown(agent)) and "gpu_lost" in str(verdicts))
    page = agent.metrics()
    assert page.value("gpumon_health_check", check="gpu_lost", gpu="1") == 3
    assert page.value("gpumon_health_check", check="node_unexpected_reboot") == 2
    assert agent.post("/api/v1/health/ack?check=gpu_lost")[0] == 409

    agent.simulate({})
    eventually(lambda: agent.post("/api/v1/health/ack?check=gpu_lost&note=reseated")[0] == 200)
    agent.kill()
    transitions(agent)
    agent.start()
    after = judged(agent)
    assert not [one for one in after if one[0] == "gpu_lost"]
    assert ("node_unexpected_reboot", None) in after
