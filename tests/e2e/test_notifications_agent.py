"""Alerts of an agent that is away, and of one that sends them itself: real Prometheus, Alertmanager and receivers."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from agents import AgentProcess, eventually
from alert_stack import AlertStack
from servers import http_inbox

pytestmark = pytest.mark.slow


LOST = {"idle": True, "gpus": {1: {"lost": True}}}
HEALTHY = {"idle": True}
FIRING = 'ALERTS{alertname="GpuLost", alertstate="firing"}'


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_BOOT_ID": "boot-1"})
    one.simulate(HEALTHY)
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
        eventually(lambda: stack.notifications_of("GpumonDown")[-1] == "resolved")  # once more if a start was slow
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


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a small disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path) -> Path:
    """Write a file that takes the whole disk."""
    filler = disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    return filler


def configure(agent: AgentProcess, **notifications: object) -> str:
    """Write these settings, and return the flag that names the file."""
    labels = {"instance": f"127.0.0.1:{agent.port}"}
    file = agent.folder / "gpumon.yml"
    file.write_text(yaml.safe_dump({"notifications": {"labels": labels, **notifications}}))
    return f"--config.file={file}"


def test_alertmanager_takes_both_alerts_for_one(agent: AgentProcess, tmp_path: Path) -> None:
    """The agent and Prometheus send the same alert, which is notified once, and resolved once after the repair."""
    stack = AlertStack(tmp_path, agent.port)
    agent.start(configure(agent, alertmanagers=[f"http://127.0.0.1:{stack.alertmanager}"]))
    with stack.up():
        agent.simulate(LOST)
        eventually(lambda: agent.metrics().value("gpumon_notifications_total", outcome="delivered"))
        eventually(lambda: stack.query('ALERTS{alertname="GpuLost", alertstate="firing"}'))
        eventually(lambda: stack.notifications_of("GpuLost"))
        [labels] = stack.notified_by_labels("GpuLost")
        assert dict(labels)["instance"] == f"127.0.0.1:{agent.port}"
        assert stack.notifications_of("GpuLost") == ["firing"]


def test_an_alertmanager_that_restarts_notifies_once(agent: AgentProcess, tmp_path: Path) -> None:
    """It forgets the alert and not the notification. The agent sends the alert again."""
    stack = AlertStack(tmp_path, agent.port)
    stack.scrape()
    agent.start(configure(agent, alertmanagers=[f"http://127.0.0.1:{stack.alertmanager}"]))
    with stack.up(scraping=False):
        agent.simulate(LOST)
        eventually(lambda: stack.notifications_of("GpuLost") == ["firing"])
    with stack.up(scraping=False):
        assert eventually(stack.firing, within=120) == {("GpuLost", "1")}
        agent.simulate({"idle": True, "gpus": {0: {"lost": True}, 1: {"lost": True}}})
        eventually(lambda: len(stack.notified_by_labels("GpuLost")) == 2)
    assert stack.notifications_of("GpuLost") == ["firing", "firing"], "one for each GPU"


def test_a_restarted_agent_neither_repeats_nor_resolves_an_alert(agent: AgentProcess) -> None:
    """A webhook gets one message for an alert that fires before and after a restart."""
    with http_inbox() as inbox:
        flag = configure(agent, webhook_url=inbox.url)
        agent.start(flag)
        agent.simulate(LOST)
        [event] = inbox.wait_for(1)
        assert event["subject"] == "GpuLost"
        # An end between delivery and writing would repeat the message.
        eventually(lambda: agent.metrics().value("gpumon_notifications_total", outcome="delivered"))
        agent.stop()
        agent.start(flag)
        eventually(lambda: agent.get("/api/v1/alerts?state=firing")["alerts"])
        agent.simulate({"idle": True, "gpus": {1: {"lost": True}, 0: {"lost": True}}})
        events = inbox.wait_for(2)
    assert [(event["data"]["state"], event["data"]["labels"]["gpu"]) for event in events] == [
        ("firing", "1"),
        ("firing", "0"),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_an_agent_with_a_full_disk_sends_and_later_stores_what_it_sent(agent: AgentProcess, disk: Path) -> None:
    """Whether the disk is full at the start or later: after space is freed, a restart repeats no message."""
    database = disk / "gpumon.db"
    with http_inbox() as inbox:
        filler = fill(disk)
        agent.launch(configure(agent, webhook_url=inbox.url), f"--store.path={database}")
        agent.simulate(LOST)
        inbox.wait_for(1)
        filler.unlink()
        eventually(lambda: agent.log.read_text().count("the store can be written again") == 1, within=120)
        filler = fill(disk)
        agent.simulate({"idle": True, "gpus": {1: {"lost": True}, 0: {"lost": True}}})
        events = inbox.wait_for(2)
        eventually(lambda: agent.metrics().value("gpumon_store_up") == 0)
        filler.unlink()
        eventually(lambda: agent.log.read_text().count("the store can be written again") == 2, within=120)
        agent.stop()
    assert [event["data"]["labels"]["gpu"] for event in events] == ["1", "0"]
    with contextlib.closing(sqlite3.connect(database)) as connection:
        documents = connection.execute("SELECT json_extract(document, '$.delivered') FROM notified").fetchall()
    assert documents == [(1,), (1,)]
