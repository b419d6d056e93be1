"""The links child as a process of its own: frames out, tied to its parent, the same simulated node in every one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sysfs import add_port

from gpumon.clock import boot_clock
from gpumon.model import call_progress, frame
from gpumon.model.orders import LinksOrders, Simulation
from gpumon.model.snapshot import Hello, LinksSnapshot

EPOCH = boot_clock() - 600


@contextmanager
def child(**orders: object) -> Iterator[subprocess.Popen[bytes]]:
    with call_progress.created() as page:
        told = LinksOrders(page=page, parent=os.getpid(), **orders)  # type: ignore[arg-type]
        process = subprocess.Popen(
            [sys.executable, "-m", "gpumon.collectors.links"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(page,),
        )
    with process:
        assert process.stdin is not None
        process.stdin.write(told.encode())
        process.stdin.flush()
        try:
            yield process
        finally:
            process.kill()


def first_look(process: subprocess.Popen[bytes]) -> LinksSnapshot:
    assert process.stdout is not None
    assert isinstance(frame.decode(process.stdout.readline()), Hello)
    seen = frame.decode(process.stdout.readline())
    assert isinstance(seen, LinksSnapshot)
    return seen


def simulation(profile: str = "h100x8") -> Simulation:
    return Simulation(profile=profile, epoch=EPOCH)


def test_it_greets_looks_and_ends_when_its_input_closes() -> None:
    """The first frame is Hello, the next is a look at all of it."""
    with child(simulation=simulation()) as process:
        seen = first_look(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0

    assert [port.device for port in seen.ports] == [f"mlx5_{n}" for n in range(8)]
    assert {port.link.port_up for port in seen.ports} == {1.0}
    assert seen.services == {"nvidia-fabricmanager.service": True}
    assert (seen.errors, seen.denied, seen.left_out) == ({}, (), 0)


def test_traffic_goes_on_from_one_child_to_the_next() -> None:
    """A child that replaces another sees counters that have not fallen, and that move with the load."""
    found = []
    for _ in range(2):
        with child(simulation=simulation()) as process:
            found.append(first_look(process).ports[0].counts.receive_bytes_total or 0.0)

    assert 1e12 < found[0] <= found[1]


def test_faults_of_the_driver_are_no_mistake_to_it(tmp_path: Path) -> None:
    """It has none of the driver's functions: a scenario that names some is good all the same."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("hang: ['nvmlInit*']\nports: {mlx5_3: {state: down}}\n")
    with child(simulation=Simulation(profile="h100x8", epoch=EPOCH, scenario=str(scenario))) as process:
        seen = first_look(process)

    assert {port.device for port in seen.ports if not port.link.port_up} == {"mlx5_3"}


def test_it_reads_the_host_that_it_is_told_to_read(tmp_path: Path) -> None:
    """Where sysfs and the root of the host are mounted is the operator's to say."""
    add_port(tmp_path / "host" / "sys", "mlx5_7")
    with child(sysfs=str(tmp_path / "host" / "sys"), root=str(tmp_path / "host")) as process:
        seen = first_look(process)

    assert [port.device for port in seen.ports] == ["mlx5_7"]
    assert seen.services == {}
