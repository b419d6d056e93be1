"""The page of a broken GPU while its agent is away: a real agent, Prometheus, Alertmanager and a webhook receiver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agents import AgentProcess, eventually
from alert_stack import AlertStack

pytestmark = pytest.mark.slow

LOST = {"idle": True, "gpus": {1: {"lost": True}}}
HEALTHY = {"idle": True}
FIRING = 'ALERTS{alertname="GpuLost", alertstate="firing"}'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_BOOT_ID": "boot-1"})
    yield one
    one.stop()


def start(agent: AgentProcess, stack: AlertStack) -> None:
    """Start the agent and wait until Prometheus has scraped it and has evaluated its rules."""
    scraped = scraped_at(stack)
    agent.start()
    alerts = agent.get("/api/v1/alerts?state=firing")["alerts"]
    assert "GpuLost" in {alert["rule"] for alert in alerts}, "the agent's own alerts agree from the start"
    eventually(lambda: scraped_at(stack) > scraped)
    eventually(lambda: stack.query('ALERTS{alertname="GpumonDown"}') == [])
    assert firing(stack), "the agent that is back has the verdict from its store"


def scraped_at(stack: AlertStack) -> float:
    """Return the time of the last poll of which Prometheus knows."""
    newest = stack.query("max_over_time(gpumon_snapshot_timestamp_seconds[1h])")
    return float(newest[0]["value"][1]) if newest else 0.0


def firing(stack: AlertStack) -> bool:
    return bool(stack.query(FIRING))


def down(stack: AlertStack, times: int) -> None:
    """Wait until GpumonDown has been notified as firing this many times."""
    eventually(lambda: stack.notifications_of("GpumonDown").count("firing") >= times)
    assert firing(stack)


@pytest.mark.parametrize("before", [HEALTHY, LOST], ids=["lost later", "lost before the first start"])
def test_no_resolved_is_sent_while_the_gpu_is_lost(
    agent: AgentProcess, tmp_path: Path, before: dict[str, object]
) -> None:
    """One page while the agent is killed, stopped, upgraded and rebooted, and one resolved after the repair."""
    agent.simulate(before)
    agent.start()
    agent.simulate(LOST)
    with AlertStack(tmp_path, agent.port).up() as stack:
        eventually(lambda: stack.notifications_of("GpuLost") == ["firing"])

        agent.kill()
        down(stack, 1)
        start(agent, stack)

        assert agent.stop() == 0
        down(stack, 2)
        start(agent, stack)

        assert agent.stop() == 0  # an upgrade that takes less than GpumonDown waits
        start(agent, stack)

        agent.kill()
        agent.environment["GPUMON_BOOT_ID"] = "boot-2"
        down(stack, 3)
        start(agent, stack)
        assert list(stack.notified_by_labels("GpuLost").values()) == [["firing"]]

        agent.simulate(HEALTHY)
        eventually(lambda: agent.post("/api/v1/clear?check=gpu_lost&note=reseated")[0] == 200)
        # A GPU that was lost before the first start has another uuid from now on.
        eventually(lambda: all("resolved" in each for each in stack.notified_by_labels("GpuLost").values()))
        eventually(lambda: stack.notifications_of("GpumonDown").count("resolved") == 3)
        by_labels = stack.notified_by_labels("GpuLost")
        assert all(statuses == ["firing", "resolved"] for statuses in by_labels.values()), by_labels
        assert len(by_labels) <= (2 if before == LOST else 1), by_labels


def test_the_page_survives_the_removal_of_the_target(agent: AgentProcess, tmp_path: Path) -> None:
    """A target that is taken out of the configuration of Prometheus resolves nothing; the repaired node does."""
    agent.simulate(HEALTHY)
    agent.start()
    agent.simulate(LOST)
    with AlertStack(tmp_path, agent.port).up() as stack:
        eventually(lambda: stack.notifications_of("GpuLost") == ["firing"])
        stack.scrape()
        stack.reload()
        eventually(lambda: stack.query("up") == [])
        evaluated = "instance:gpumon_health_check:last offset 5s unless on () gpumon_build_info offset 5s"
        eventually(lambda: stack.query(evaluated))
        assert firing(stack)

        agent.simulate(HEALTHY)
        eventually(lambda: agent.post("/api/v1/clear?check=gpu_lost&note=reseated")[0] == 200)
        stack.scrape(agent.port)
        stack.reload()
        eventually(lambda: stack.notifications_of("GpuLost") == ["firing", "resolved"])
