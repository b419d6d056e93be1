"""Xids on a running agent: NVML and the kernel log, a kill in between, and an overridden table."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import AgentProcess, eventually

from gpumon.clock import boot_clock

pytestmark = pytest.mark.slow

FALLEN = "79, pid=4242, name=secret-job, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"


BEFORE = "nvidia-nvswitch0: SXid (PCI:0000:c0:00.0): 22013, Non-fatal, Link 60 Minion Link DLREQ interrupt"
"""A record from before the installation of the agent."""


class NodeWithKernelLog:
    """An agent and a kernel log of this boot."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "kmsg"
        self._sequence = 0
        self.overrides = folder / "xids.yml"
        self.overrides.write_text("")
        named = {"GPUMON_KERNEL_LOG__PATH": str(self._log), "GPUMON_XIDS__FILE": str(self.overrides)}
        self.agent = AgentProcess(folder, environment=named)
        self.agent.simulate({"idle": True})
        self.log(BEFORE)

    def log(self, *texts: str) -> None:
        with self._log.open("a") as log:
            for text in texts:
                log.write(f"4,{self._sequence},{int(boot_clock() * 1e6)},-;{text}\n")
                self._sequence += 1

    def xid(self, gpu: int, text: str) -> None:
        domain, bus, device = self.bus_id(gpu).lower().split(":")
        self.log(f"NVRM: Xid (PCI:{domain[-4:]}:{bus}:{device[:2]}): {text}")

    def bus_id(self, gpu: int) -> str:
        return str(self.agent.get("/api/v1/gpus")["gpus"][gpu]["pci_bus_id"])

    def count(self, xid: int, gpu: int) -> float | None:
        """Return the count of an Xid. Critical codes have one from the start: 0."""
        counts: dict[str, float] = self.agent.get("/api/v1/gpus")["gpus"][gpu]["xid_errors_total"]
        return counts.get(str(xid))

    def events(self, query: str = "") -> list[dict[str, Any]]:
        """Return the events after the store has answered."""
        found = eventually(lambda: (one := self.agent.get(f"/api/v1/events?{query}"))["complete"] and one)
        return list(found["events"])


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeWithKernelLog]:
    one = NodeWithKernelLog(tmp_path)
    one.agent.start()
    eventually(lambda: one.events("sxid=22013"))  # later records are new
    yield one
    one.agent.stop()


def test_each_error_counts_once_over_a_restart(node: NodeWithKernelLog) -> None:
    """Errors from both sources, and errors logged while no agent ran, are counted once."""
    assert eventually(lambda: node.count(79, 3) == 0.0)
    node.agent.simulate({"idle": True, "gpus": {3: {"xids": [79]}}})
    eventually(lambda: node.count(79, 3) == 1)
    node.xid(3, FALLEN)
    (event,) = eventually(lambda: [each for each in node.events("xid=79") if each["text"]])
    assert (event["count"], event["gpu"], event["sources"]) == (1, 3, ["nvml", "kmsg"])
    assert (event["text"], event["severity"]) == ("GPU has fallen off the bus.", "critical")
    assert node.agent.metrics().value("gpumon_kernel_log_up") == 1

    node.agent.kill()
    node.agent.simulate({"idle": True})
    node.log(SWITCH)
    node.agent.start()
    eventually(lambda: node.agent.metrics().value("gpumon_nvswitch_errors_total", sxid="12028") == 1)
    assert node.count(79, 3) == 1
    assert node.agent.metrics().value("gpumon_nvswitch_errors_total", sxid="22013") is None
    (switch,) = node.events("sxid=12028")
    assert (switch["pci_bus_id"], switch["severity"], switch["gpu"]) == ("00000000:C1:00.0", "warning", None)

    pages = (node.agent.ask(path)[1] for path in ("/", "/metrics", "/api/v1/report", "/api/v1/events"))
    assert not any(b"secret-job" in page or b"4242" in page for page in pages)


def test_the_table_of_the_operator_applies_after_a_reload(node: NodeWithKernelLog) -> None:
    """Zero counters, severity and action follow the file. An invalid file is reported and changes nothing."""
    node.overrides.write_text("13: {severity: critical, action: call the owner of the job}\n")
    node.agent.process.send_signal(signal.SIGHUP)
    eventually(lambda: node.count(13, 0) == 0.0)
    node.xid(0, "13, Graphics SM Warp Exception")
    (event,) = eventually(lambda: node.events("severity=critical"))
    assert (event["xid"], event["action"]) == (13, "call the owner of the job")

    node.overrides.write_text("13: {severity: fatal}\n")
    node.agent.process.send_signal(signal.SIGHUP)
    notices = eventually(lambda: node.agent.get("/api/v1/node")["notices"])
    assert f"{node.overrides}:1: 13.severity: unknown value 'fatal'" in notices[0]["message"]
    assert node.events("severity=critical")
