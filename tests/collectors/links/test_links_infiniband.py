"""Ports from sysfs: read from real files where a kernel's can be written, else from the simulated node's."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from sysfs import add_port, write

from gpumon.collectors.links.files import ReadErrors, Tree
from gpumon.collectors.links.infiniband import COLLECTOR, MAX_PORTS, PortReader
from gpumon.model.snapshot import PortReading
from gpumon.sim.infiniband import open_tree


def reader(sysfs: Path, *quarantined: str) -> PortReader:
    return PortReader(lambda _: Tree(sysfs), quarantined)


def looked(sysfs: Path) -> tuple[PortReading, ...]:
    return reader(sysfs).poll(counting=True)


def names(ports: tuple[PortReading, ...]) -> list[str]:
    return [f"{port.device}/{port.port}" for port in ports]


def test_an_active_port_is_read(tmp_path: Path) -> None:
    """State, speed in bytes, traffic in bytes, errors by the names of their files."""
    add_port(
        tmp_path, counters={"port_rcv_data": "25", "port_xmit_data": "50", "symbol_error": "3", "link_downed": "2"}
    )

    (port,) = looked(tmp_path)

    assert (port.device, port.port, port.link_layer) == ("mlx5_0", "1", "InfiniBand")
    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (1.0, 50e9)
    assert (port.counts.receive_bytes_total, port.counts.transmit_bytes_total) == (100.0, 200.0)
    assert (port.counts.errors_total, port.counts.link_downs_total) == ({"symbol_error": 3.0}, 2.0)


@pytest.mark.parametrize(
    ("state", "physical"),
    [
        ("1: DOWN", "2: Polling"),
        ("1: DOWN", "3: Disabled"),
        ("2: INIT", "5: LinkUp"),
        ("4: ACTIVE", "6: LinkErrorRecovery"),
    ],
)
def test_a_port_that_carries_nothing_is_down_and_has_no_speed(tmp_path: Path, state: str, physical: str) -> None:
    """What it would be trained to is not its speed: 10 Gb/s in the file of a port that is down."""
    add_port(tmp_path, files={"state": state, "phys_state": physical, "rate": "10 Gb/sec (4X SDR)"})

    (port,) = looked(tmp_path)

    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (0.0, None)


@pytest.mark.parametrize("state", ["", "garbage", ": ", "ACTIVE"])
def test_a_state_that_says_nothing_is_absent_and_not_down(tmp_path: Path, state: str) -> None:
    """What cannot be understood is not known."""
    add_port(tmp_path, files={"state": state})

    (port,) = looked(tmp_path)

    assert port.link.port_up is None


def test_ports_come_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    """Several devices, one of them a bond, one with two ports."""
    for device in ("mlx5_10", "mlx5_9", "mlx5_bond_0"):
        add_port(tmp_path, device)
    add_port(tmp_path, "mlx5_9", "2", files={"link_layer": "Ethernet"})

    assert names(looked(tmp_path)) == ["mlx5_9/1", "mlx5_9/2", "mlx5_10/1", "mlx5_bond_0/1"]


def test_virtual_functions_are_left_to_their_physical_one(tmp_path: Path) -> None:
    """On the host that has both; a guest that was given the virtual function alone sees a device like any other."""
    add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")
    (tmp_path / "class/infiniband/mlx5_1/device/physfn").mkdir(parents=True)

    assert names(looked(tmp_path)) == ["mlx5_0/1"]


def test_missing_files_are_absent_readings(tmp_path: Path) -> None:
    """No counters, no hw_counters, no rate: each is absent, and nobody need hear of it."""
    folder = add_port(tmp_path, counters={})
    (folder / "counters").rmdir()
    (folder / "rate").unlink()

    reading = reader(tmp_path)
    (port,) = reading.poll(counting=True)

    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (1.0, None)
    assert (port.counts.receive_bytes_total, port.counts.errors_total, port.counts.link_downs_total) == (None,) * 3
    assert reading.read_errors.words == ""


def test_a_port_without_counters_says_so_in_words(tmp_path: Path) -> None:
    """Some kernels answer "N/A (no PMA)": that is no number."""
    add_port(tmp_path, counters={"port_rcv_data": "N/A (no PMA)", "symbol_error": "N/A (no PMA)"})

    (port,) = looked(tmp_path)

    assert (port.counts.receive_bytes_total, port.counts.errors_total) == (None, None)


def test_hardware_counters_tell_of_roce_and_of_efa(tmp_path: Path) -> None:
    """Names are the driver's; EFA counts octets and has no counters of the architecture."""
    add_port(tmp_path, "mlx5_0", files={"link_layer": "Ethernet"}, hardware={"out_of_sequence": "7", "lifespan": "10"})
    efa = {"rx_bytes": "123", "tx_bytes": "456", "rx_drops": "1", "lifespan": "12"}
    folder = add_port(tmp_path, "rdmap0s6", counters={}, hardware=efa)
    (folder / "counters").rmdir()

    roce, efa_port = looked(tmp_path)

    assert roce.counts.errors_total == {"symbol_error": 0.0, "out_of_sequence": 7.0}
    assert (efa_port.counts.receive_bytes_total, efa_port.counts.transmit_bytes_total) == (123.0, 456.0)
    assert efa_port.counts.errors_total == {"rx_drops": 1.0}


def test_a_counter_that_is_full_is_absent_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It would stand still for ever, as if nothing happened; after a reset it counts again."""
    full = {"link_downed": "255", "symbol_error": "65535", "port_rcv_data": str(2**32 - 1), "port_xmit_data": "9"}
    folder = add_port(tmp_path, counters=full)
    reading = reader(tmp_path)

    with caplog.at_level(logging.INFO, "gpumon.collectors.links"):
        reading.poll(counting=True)
        (port,) = reading.poll(counting=True)
        assert (port.counts.link_downs_total, port.counts.errors_total, port.counts.receive_bytes_total) == (None,) * 3
        assert port.counts.transmit_bytes_total == 36.0
        assert len(caplog.records) == 3
        write(folder / "counters", {"link_downed": "1"})
        (port,) = reading.poll(counting=True)

    assert port.counts.link_downs_total == 1.0
    assert [record.levelname for record in caplog.records[3:]] == ["INFO"]


def test_counters_wider_than_the_architecture_asks_are_numbers(tmp_path: Path) -> None:
    """Traffic is counted with 64 bits nowadays."""
    add_port(tmp_path, counters={"port_rcv_data": str(2**40), "link_downed": "256"})

    (port,) = looked(tmp_path)

    assert (port.counts.receive_bytes_total, port.counts.link_downs_total) == (2**42, 256.0)


def test_states_are_read_at_every_look_and_counters_when_they_are_due(tmp_path: Path) -> None:
    """A look in between shows what was counted last; a port that has just come is counted at once."""
    folder = add_port(tmp_path)
    reading = reader(tmp_path)
    reading.poll(counting=True)
    write(folder, {"state": "1: DOWN"})
    write(folder / "counters", {"link_downed": "1"})
    add_port(tmp_path, "mlx5_1", counters={"link_downed": "5"})

    first, second = reading.poll(counting=False)
    assert (first.link.port_up, first.counts.link_downs_total, second.counts.link_downs_total) == (0.0, 0.0, 5.0)
    first, _ = reading.poll(counting=True)
    assert first.counts.link_downs_total == 1.0


def test_more_ports_than_anybody_watches_are_left_out(tmp_path: Path) -> None:
    """A host of many representors does not flood the page; how many are left out is told."""
    for number in range(MAX_PORTS + 3):
        add_port(tmp_path, "mlx5_0", str(number), counters={})
    reading = reader(tmp_path)

    assert len(reading.poll(counting=True)) == MAX_PORTS
    assert reading.left_out == 3


def test_a_host_without_any_is_well(tmp_path: Path) -> None:
    """No module, no folder, no port, no trouble."""
    reading = reader(tmp_path)

    assert reading.poll(counting=True) == ()
    assert reading.read_errors.words == ""


def test_one_port_that_fails_hides_no_other(tmp_path: Path) -> None:
    """EIO from one state file: that reading is absent and told, its others and its neighbours are there."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("ports: {mlx5_3: {unreadable: [state, link_downed]}, mlx5_5: {absent: true}}")
    reading = PortReader(lambda _: open_tree("h100x8", scenario=scenario, epoch=0.0))

    ports = reading.poll(counting=True)

    assert names(ports) == [f"mlx5_{n}/1" for n in (0, 1, 2, 3, 4, 6, 7)]
    assert [port.device for port in ports if port.link.port_up is None] == ["mlx5_3"]
    assert ports[3].counts.link_downs_total is None
    assert ports[3].counts.receive_bytes_total is not None
    assert reading.read_errors.words == "class/infiniband/mlx5_3/ports/1/state: Input/output error, and 1 more file"
    assert not reading.read_errors.denied


def test_what_is_left_aside_is_not_touched(tmp_path: Path) -> None:
    """Its files may hang for ever."""
    add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")

    assert names(reader(tmp_path, "mlx5_0").poll(counting=True)) == ["mlx5_1/1"]
    assert names(reader(tmp_path, COLLECTOR).poll(counting=True)) == []


def test_a_lack_of_permission_is_told_apart() -> None:
    """It is the one trouble that an operator can take away."""
    read_errors = ReadErrors()
    read_errors.note("state", OSError(errno.EIO, "Input/output error"))
    assert not read_errors.denied

    read_errors.note("rate", OSError(errno.EACCES, "Permission denied"))
    assert read_errors.denied


def test_a_port_knows_its_card_and_where_that_is(tmp_path: Path) -> None:
    """One function of it, as the kernel's log names it; without the files it is on no PCI bus."""
    add_port(tmp_path)
    add_port(tmp_path, "mlx5_1")
    card = tmp_path / "class" / "infiniband" / "mlx5_1"
    write(card, {"board_id": "MT_0000000838", "node_guid": "5c25:7303:00f0:0001", "fw_ver": "28.43.1014"})
    write(card / "device", {"uevent": "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_SLOT_NAME=0000:86:00.1\n"})

    bare, known = looked(tmp_path)
    assert (bare.bus_id, bare.board, bare.guid, bare.firmware) == ("", "", "", "")
    assert (known.bus_id, known.board) == ("00000000:86:00.1", "MT_0000000838")
    assert (known.guid, known.firmware) == ("5c25:7303:00f0:0001", "28.43.1014")


def test_a_guid_of_zeros_names_no_card(tmp_path: Path) -> None:
    """A virtual function that was given none, or a device of EFA."""
    add_port(tmp_path)
    write(tmp_path / "class" / "infiniband" / "mlx5_0", {"node_guid": "0000:0000:0000:0000"})
    assert looked(tmp_path)[0].guid == ""
