"""The agent, killed at random times while faults come and go: no verdict is lost, duplicated or raised again."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, eventually
from stores import read

from gpumon.health.verdict import Key, VerdictChange
from gpumon.store import verdicts
from gpumon.store.store import Store

pytestmark = pytest.mark.slow

KILLS = 4
RANDOM = random.Random(20)  # noqa: S311 - not a secret: the same sequence each time
SCENARIOS: tuple[dict[str, Any], ...] = (
    {"gpus": {0: {"remap": {"failed": 1}}}},
    {"gpus": {0: {"remap": {"failed": 1}}, 1: {"lost": True}}},
    {"gpus": {1: {"lost": True}}},
    {},
    {"gpus": {1: {"remap": {"failed": 1}}}},
)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_BOOT_ID": "boot-1"})
    yield one
    one.stop()


def shown_verdicts(agent: AgentProcess) -> set[tuple[str, str | None]]:
    """Return check and device of every verdict, inhibited ones too."""
    document = agent.get("/api/v1/health")
    assert document["evaluated"]
    found = [each for top in document["verdicts"] for each in (top, *top["consequences"])]
    return {(each["check"], each["device"]) for each in found}


def document_key(key: Key) -> tuple[str, str | None]:
    """Return the key as API documents show it: the device of the node is None."""
    return key[0], key[1] or None


def transitions(agent: AgentProcess) -> list[tuple[tuple[str, str | None], VerdictChange]]:
    """Return the transitions in the store of a stopped agent, oldest first, and check that they alternate."""
    with Store.open(agent.folder / "gpumon.db") as store:
        known = [
            (document_key(each.verdict.key), each.change) for each in read(store, verdicts.read_transitions, 100_000)
        ]
        there = {document_key(each.key) for each in read(store, verdicts.read_open)}
    alternate: set[tuple[str, str | None]] = set()
    for key, change in known:
        assert (change is VerdictChange.RAISED) == (key not in alternate), (key, change)
        alternate = alternate - {key} if change is VerdictChange.CLEARED else alternate | {key}
    assert alternate == there
    return known


def first_verdicts(agent: AgentProcess) -> set[tuple[str, str | None]]:
    """Return the verdicts at the first evaluation of the checks."""
    return eventually(lambda: shown_verdicts(agent) or {("", "")})


def test_kills_at_random_moments(agent: AgentProcess) -> None:
    """Each verdict is there after a restart unless its clearing is recorded, and each transition is recorded once.

    A reboot and frequent restarts have verdicts of their own. A cleared verdict does not return.
    """
    before: set[tuple[str, str | None]] = set()
    for _ in range(KILLS):
        agent.simulate(RANDOM.choice(SCENARIOS))
        agent.launch()
        now = first_verdicts(agent)
        threading.Event().wait(RANDOM.uniform(0.0, 4.0))
        now |= shown_verdicts(agent)
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
    eventually(lambda: expected <= (verdicts := shown_verdicts(agent)) and "gpu_lost" in str(verdicts))
    page = agent.metrics()
    assert page.value("gpumon_health_check", check="gpu_lost", gpu="1") == 3
    assert page.value("gpumon_health_check", check="node_unexpected_reboot") == 2
    assert agent.post("/api/v1/clear?check=gpu_lost")[0] == 409

    agent.simulate({})
    eventually(lambda: agent.post("/api/v1/clear?check=gpu_lost&note=reseated")[0] == 200)
    agent.kill()
    transitions(agent)
    agent.start()
    after = first_verdicts(agent)
    assert not [each for each in after if each[0] == "gpu_lost"]
    assert ("node_unexpected_reboot", None) in after
