"""An agent that sends its alerts itself, beside a real Prometheus and to a real Alertmanager."""

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


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    one = AgentProcess(tmp_path, profile="h100pciex2", environment={"GPUMON_BOOT_ID": "boot-1"})
    one.simulate({"idle": True})
    yield one
    one.stop()


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
