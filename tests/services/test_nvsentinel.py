"""Health events for NVSentinel: sent by a real agent, and read by a real gRPC server."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from agents import AgentProcess, eventually
from each_case import each_case
from test_senders import LABELS, LOST, WANTED, deliver, message_sender, sending

from gpumon.config.notifications_section import NotificationsSection

grpc, _, _ = (pytest.importorskip(name, reason="not in this environment") for name in ("grpc", "google.protobuf", "h2"))
platform_connector = pytest.importorskip("platform_connector").platform_connector

GPU = replace(LOST, labels=tuple(sorted({**LABELS, "uuid": "GPU-3", "check": "gpu_lost", "class": "hardware"}.items())))
FIRING = {GPU.key: GPU}
STORE_ONLY, REMEDIATE = 2, 1


@pytest.fixture
def socket() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # a socket needs a short path
        yield Path(folder) / "nvsentinel.sock"


def section(socket: Path, **values: Any) -> NotificationsSection:
    return NotificationsSection(nvsentinel_socket=socket, nvsentinel_node="gpu-17", **values)


def test_an_alert_is_an_unhealthy_event_and_then_a_healthy_one(socket: Path) -> None:
    """Check, node and entities are the same in both, so that NVSentinel finds what has cleared."""
    with platform_connector(socket) as connector:
        sender, kept = message_sender(section(socket))
        with sending(sender) as on_loop:
            on_loop.update(FIRING)
            connector.wait_for(1)
            on_loop.update({})
            bad, good = connector.wait_for(2)
            eventually(lambda: len(kept.changes) == 2)
    for event in (bad, good):
        assert (event.version, event.agent, event.componentClass, event.checkName) == (1, "gpumon", "GPU", "GpuLost")
        assert (event.nodeName, event.processingStrategy) == ("gpu-17", STORE_ONLY)
        entities = [(entity.entityType, entity.entityValue) for entity in event.entitiesImpacted]
        assert entities == [("GPU", "3"), ("GPU_UUID", "GPU-3")]
    assert (bad.isHealthy, bad.isFatal, bad.recommendedAction) == (False, True, 24)
    assert (bad.message, bad.generatedTimestamp.seconds) == ("It fell off the bus.", 1_700_000_000)
    assert {pair.key: pair.value for pair in bad.metadata}["check"] == "gpu_lost"
    assert (good.isHealthy, good.isFatal, good.recommendedAction) == (True, False, 0)
    assert kept.changes == [("GpuLost", False), ("GpuLost", True)]


@each_case(
    ("labels", "expected"),
    [
        ({"severity": "warning", "uuid": "GPU-3"}, ("GPU", False)),
        ({"severity": "critical", "class": "job", "uuid": "GPU-3"}, ("GPU", False)),
        ({"severity": "critical", "class": "network", "device": "mlx5_0", "port": "1"}, ("NIC", True)),
        ({"severity": "critical", "class": "node"}, ("Node", True)),
    ],
)
def test_only_failed_hardware_is_fatal(labels: dict[str, str], expected: tuple[str, bool]) -> None:
    """NVSentinel takes a node out of service for fatal events."""
    alert = replace(LOST, labels=tuple(sorted({"alertname": "Some", "page": "night", **labels}.items())))
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, platform_connector(Path(folder) / "s") as connector:
        assert deliver(section(Path(folder) / "s", nvsentinel_strategy="execute_remediation"), alert).error is None
        [event] = connector.wait_for(1)
    assert (event.componentClass, event.isFatal, event.processingStrategy) == (*expected, REMEDIATE)


def test_no_repair_is_recommended_while_one_is_being_verified(socket: Path) -> None:
    """NVSentinel must not repeat a reboot whose success is not known yet."""
    with platform_connector(socket) as connector:
        deliver(section(socket), replace(GPU, action="If it recurs, drain the node and reboot it."))
        [event] = connector.wait_for(1)
    assert event.recommendedAction == 0


def test_a_connector_that_starts_later_gets_the_event(socket: Path) -> None:
    """A missing socket and the status UNAVAILABLE are failures that are retried."""
    sender, kept = message_sender(section(socket))
    with sending(sender) as on_loop:
        on_loop.update(FIRING)
        eventually(lambda: sender.counts["failed"])
        assert str(socket) in sender.problem
        with platform_connector(socket) as connector:
            connector.refusals = [grpc.StatusCode.UNAVAILABLE]
            connector.wait_for(1)
            eventually(lambda: kept.changes == [("GpuLost", False)])
            assert sender.problem == f"{socket}: gRPC status 14: not now: 100 %"


def test_an_invalid_event_is_dropped(socket: Path) -> None:
    """The status INVALID_ARGUMENT would be the same the next time."""
    with platform_connector(socket) as connector:
        connector.refusals = [grpc.StatusCode.INVALID_ARGUMENT]
        sender, _ = message_sender(section(socket))
        with sending(sender) as on_loop:
            on_loop.update(FIRING)
            eventually(lambda: sender.counts["refused"] == 1)
            on_loop.update(FIRING | WANTED)
            [event] = connector.wait_for(1)
    assert event.componentClass == "Node"


@pytest.mark.slow
def test_a_maintenance_makes_no_gpu_healthy(socket: Path, tmp_path: Path) -> None:
    """It ends the alerts of a lost GPU, but neither its failure nor that of the next one is reported as cleared."""
    configuration = tmp_path / "gpumon.yml"
    values = {"nvsentinel_socket": str(socket), "nvsentinel_node": "gpu-17"}
    configuration.write_text(yaml.safe_dump({"notifications": values}))
    agent = AgentProcess(tmp_path)
    with platform_connector(socket) as connector:
        try:
            agent.start(f"--config.file={configuration}")
            agent.simulate({"gpus": {3: {"lost": True}}})
            connector.wait_for(1)
            agent.post("/api/v1/windows?kind=maintenance&for_seconds=600&reason=DIMMs")
            eventually(lambda: [each["state"] for each in agent.get("/api/v1/alerts")["alerts"]] == [])
            agent.post("/api/v1/windows?kind=maintenance", method="DELETE")
            agent.simulate({"gpus": {3: {"lost": True}, 4: {"lost": True}}})
            connector.wait_for(2)
        finally:
            agent.stop()
    assert [(event.entitiesImpacted[0].entityValue, event.isHealthy) for event in connector.events] == [
        ("3", False),
        ("4", False),
    ]
