"""The host child as a separate process: it sends frames, ends with its parent, and reads the same simulated node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sysfs import add_port

from gpumon.clock import boot_clock
from gpumon.collectors.host.__main__ import HostChild
from gpumon.collectors.host.reader import HostReader, Tree, Trees, Turn
from gpumon.model import call_progress, frame
from gpumon.model.frame import Frame
from gpumon.model.orders import HostOrders, Simulation
from gpumon.model.snapshot import Hello, HostSnapshot, PortReadings, ServiceReadings

EPOCH = boot_clock() - 600


@contextmanager
def child(**orders: object) -> Iterator[subprocess.Popen[bytes]]:
    with call_progress.page_descriptor() as page:
        orders_frame = HostOrders(page=page, parent=os.getpid(), **orders)  # type: ignore[arg-type]
        process = subprocess.Popen(
            [sys.executable, "-m", "gpumon.collectors.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(page,),
        )
    with process:
        assert process.stdin is not None
        process.stdin.write(orders_frame.encode())
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def first_snapshot(process: subprocess.Popen[bytes]) -> HostSnapshot:
    assert process.stdout is not None
    assert isinstance(frame.Decoder().decode(process.stdout.readline()), Hello)
    snapshot = frame.Decoder().decode(process.stdout.readline())
    assert isinstance(snapshot, HostSnapshot)
    return snapshot


def simulation(profile: str = "h100x8") -> Simulation:
    return Simulation(profile=profile, epoch=EPOCH)


def test_the_child_sends_hello_and_a_snapshot_and_ends_with_its_input() -> None:
    with child(simulation=simulation()) as process:
        snapshot = first_snapshot(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0

    assert [port.device for port in snapshot.value(PortReadings).ports] == [f"mlx5_{n}" for n in range(8)]
    assert {port.link.port_up for port in snapshot.value(PortReadings).ports} == {1.0}
    assert snapshot.value(ServiceReadings).running == {"nvidia-fabricmanager.service": True}
    assert (snapshot.errors, snapshot.denied) == ({}, ())


def test_traffic_continues_in_the_next_child() -> None:
    """In the next child the counters of the simulated node continue and follow the load."""
    received = []
    for _ in range(2):
        with child(simulation=simulation()) as process:
            received.append(first_snapshot(process).value(PortReadings).ports[0].counts.receive_bytes_total or 0.0)

    assert 1e12 < received[0] <= received[1]


def test_scenario_faults_of_the_driver_are_valid(tmp_path: Path) -> None:
    """The host child accepts a scenario that names functions of the driver."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("hang: ['nvmlInit*']\nports: {mlx5_3: {state: down}}\n")
    with child(simulation=Simulation(profile="h100x8", epoch=EPOCH, scenario=str(scenario))) as process:
        snapshot = first_snapshot(process)

    assert {port.device for port in snapshot.value(PortReadings).ports if not port.link.port_up} == {"mlx5_3"}


def test_the_child_reads_the_configured_paths(tmp_path: Path) -> None:
    add_port(tmp_path / "host" / "sys", "mlx5_7")
    with child(sysfs=str(tmp_path / "host" / "sys"), root=str(tmp_path / "host")) as process:
        snapshot = first_snapshot(process)

    assert [port.device for port in snapshot.value(PortReadings).ports] == ["mlx5_7"]
    assert snapshot.value(ServiceReadings).running == {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Host(Frame):
    """Value of a reader of this test."""

    name: str | None = None


def read_name(turn: Turn) -> Host:
    return Host(name=turn.root.read("etc/hostname"))


def test_a_reader_is_one_row(tmp_path: Path) -> None:
    """A row is enough for turns, errors and quarantine, and its value arrives as it was sent."""
    now, trees = 0.0, Trees(*[Tree(tmp_path)] * 3)
    orders = HostOrders(page=call_progress.create(), quarantined=("asleep",))
    rows = [HostReader("name", read_name, 60.0), HostReader("asleep", read_name, 5.0)]
    host = HostChild(orders, trees, rows, clock=lambda: now)
    missing = host.poll()
    (tmp_path / "etc" / "hostname").mkdir(parents=True)
    now = host.due
    assert (now, host.poll().values) == (5.0, {"asleep": None})
    now = 60.0
    broken = host.poll()
    (tmp_path / "etc" / "hostname").rmdir()
    (tmp_path / "etc" / "hostname").write_text("node17\n")
    now = 120.0
    sent = host.poll()

    assert (missing.values, missing.errors) == ({"name": None, "asleep": None}, {})
    assert (broken.values, broken.errors) == (missing.values, {"name": "name: Is a directory"})
    assert sent.value(Host) == Host(name="node17")
    assert not sent.errors
    assert frame.Decoder().decode(frame.Encoder().encode(sent)) == sent
