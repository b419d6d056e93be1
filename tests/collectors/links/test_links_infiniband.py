"""PortReader reads ports from sysfs files or from the simulated node."""

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


def read_ports(sysfs: Path) -> tuple[PortReading, ...]:
    return reader(sysfs).poll(counting=True)


def names(ports: tuple[PortReading, ...]) -> list[str]:
    return [f"{port.device}/{port.port}" for port in ports]


def test_an_active_port_is_read(tmp_path: Path) -> None:
    """A port has its state, its speed and traffic in bytes, and errors by the names of their files."""
    add_port(
        tmp_path, counters={"port_rcv_data": "25", "port_xmit_data": "50", "symbol_error": "3", "link_downed": "2"}
    )

    (port,) = read_ports(tmp_path)

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
def test_a_port_without_traffic_is_down_and_has_no_speed(tmp_path: Path, state: str, physical: str) -> None:
    """A port that is down has no speed, although its rate file has 10 Gb/s."""
    add_port(tmp_path, files={"state": state, "phys_state": physical, "rate": "10 Gb/sec (4X SDR)"})

    (port,) = read_ports(tmp_path)

    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (0.0, None)


@pytest.mark.parametrize("state", ["", "garbage", ": ", "ACTIVE"])
def test_an_invalid_state_is_absent_and_not_down(tmp_path: Path, state: str) -> None:
    """A state that cannot be parsed is absent."""
    add_port(tmp_path, files={"state": state})

    (port,) = read_ports(tmp_path)

    assert port.link.port_up is None


def test_ports_are_in_numerical_order(tmp_path: Path) -> None:
    """Ports are in numerical order with several devices, a bond and a device with two ports."""
    for device in ("mlx5_10", "mlx5_9", "mlx5_bond_0"):
        add_port(tmp_path, device)
    add_port(tmp_path, "mlx5_9", "2", files={"link_layer": "Ethernet"})

    assert names(read_ports(tmp_path)) == ["mlx5_9/1", "mlx5_9/2", "mlx5_10/1", "mlx5_bond_0/1"]


def test_virtual_functions_are_omitted_beside_their_physical_function(tmp_path: Path) -> None:
    """A virtual function is omitted if its physical function is on the same host."""
    add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")
    (tmp_path / "class/infiniband/mlx5_1/device/physfn").mkdir(parents=True)

    assert names(read_ports(tmp_path)) == ["mlx5_0/1"]


def test_missing_files_are_absent_readings(tmp_path: Path) -> None:
    """Missing counters, hw_counters and rate files are absent readings without an error."""
    folder = add_port(tmp_path, counters={})
    (folder / "counters").rmdir()
    (folder / "rate").unlink()

    port_reader = reader(tmp_path)
    (port,) = port_reader.poll(counting=True)

    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (1.0, None)
    assert (port.counts.receive_bytes_total, port.counts.errors_total, port.counts.link_downs_total) == (None,) * 3
    assert port_reader.read_errors.words == ""


def test_counters_with_text_are_absent(tmp_path: Path) -> None:
    """A counter file with "N/A (no PMA)" is an absent reading."""
    add_port(tmp_path, counters={"port_rcv_data": "N/A (no PMA)", "symbol_error": "N/A (no PMA)"})

    (port,) = read_ports(tmp_path)

    assert (port.counts.receive_bytes_total, port.counts.errors_total) == (None, None)


def test_hardware_counters_of_roce_and_efa_are_read(tmp_path: Path) -> None:
    """RoCE has the counter names of its driver; EFA counts octets and has no standard counters."""
    add_port(tmp_path, "mlx5_0", files={"link_layer": "Ethernet"}, hardware={"out_of_sequence": "7", "lifespan": "10"})
    efa = {"rx_bytes": "123", "tx_bytes": "456", "rx_drops": "1", "lifespan": "12"}
    folder = add_port(tmp_path, "rdmap0s6", counters={}, hardware=efa)
    (folder / "counters").rmdir()

    roce, efa_port = read_ports(tmp_path)

    assert roce.counts.errors_total == {"symbol_error": 0.0, "out_of_sequence": 7.0}
    assert (efa_port.counts.receive_bytes_total, efa_port.counts.transmit_bytes_total) == (123.0, 456.0)
    assert efa_port.counts.errors_total == {"rx_drops": 1.0}


def test_a_saturated_counter_is_absent_and_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A counter at its maximum is absent until a reset, and logged once at each change."""
    full = {"link_downed": "255", "symbol_error": "65535", "port_rcv_data": str(2**32 - 1), "port_xmit_data": "9"}
    folder = add_port(tmp_path, counters=full)
    port_reader = reader(tmp_path)

    with caplog.at_level(logging.INFO, "gpumon.collectors.links"):
        port_reader.poll(counting=True)
        (port,) = port_reader.poll(counting=True)
        assert (port.counts.link_downs_total, port.counts.errors_total, port.counts.receive_bytes_total) == (None,) * 3
        assert port.counts.transmit_bytes_total == 36.0
        assert len(caplog.records) == 3
        write(folder / "counters", {"link_downed": "1"})
        (port,) = port_reader.poll(counting=True)

    assert port.counts.link_downs_total == 1.0
    assert [record.levelname for record in caplog.records[3:]] == ["INFO"]


def test_counters_wider_than_the_specification_are_read(tmp_path: Path) -> None:
    """64-bit traffic counters are read, although the specification has 32 bits."""
    add_port(tmp_path, counters={"port_rcv_data": str(2**40), "link_downed": "256"})

    (port,) = read_ports(tmp_path)

    assert (port.counts.receive_bytes_total, port.counts.link_downs_total) == (2**42, 256.0)


def test_states_are_read_at_every_poll_and_counters_when_due(tmp_path: Path) -> None:
    """Between due times ports keep their last counters; a new port's counters are read at once."""
    folder = add_port(tmp_path)
    port_reader = reader(tmp_path)
    port_reader.poll(counting=True)
    write(folder, {"state": "1: DOWN"})
    write(folder / "counters", {"link_downed": "1"})
    add_port(tmp_path, "mlx5_1", counters={"link_downed": "5"})

    first, second = port_reader.poll(counting=False)
    assert (first.link.port_up, first.counts.link_downs_total, second.counts.link_downs_total) == (0.0, 0.0, 5.0)
    first, _ = port_reader.poll(counting=True)
    assert first.counts.link_downs_total == 1.0


def test_ports_above_the_limit_are_omitted(tmp_path: Path) -> None:
    """Ports above the maximum are omitted and counted."""
    for number in range(MAX_PORTS + 3):
        add_port(tmp_path, "mlx5_0", str(number), counters={})
    port_reader = reader(tmp_path)

    assert len(port_reader.poll(counting=True)) == MAX_PORTS
    assert port_reader.left_out == 3


def test_a_host_without_ports_has_no_errors(tmp_path: Path) -> None:
    """A host without ports has no readings and no error."""
    port_reader = reader(tmp_path)

    assert port_reader.poll(counting=True) == ()
    assert port_reader.read_errors.words == ""


def test_a_failing_port_affects_no_other_port(tmp_path: Path) -> None:
    """After EIO on one state file that reading is absent; other readings and other ports remain."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("ports: {mlx5_3: {unreadable: [state, link_downed]}, mlx5_5: {absent: true}}")
    port_reader = PortReader(lambda _: open_tree("h100x8", scenario=scenario, epoch=0.0))

    ports = port_reader.poll(counting=True)

    assert names(ports) == [f"mlx5_{n}/1" for n in (0, 1, 2, 3, 4, 6, 7)]
    assert [port.device for port in ports if port.link.port_up is None] == ["mlx5_3"]
    assert ports[3].counts.link_downs_total is None
    assert ports[3].counts.receive_bytes_total is not None
    assert port_reader.read_errors.words == "class/infiniband/mlx5_3/ports/1/state: Input/output error, and 1 more file"
    assert not port_reader.read_errors.denied


def test_quarantined_ports_are_not_read(tmp_path: Path) -> None:
    """A quarantined device or collector is not read, because its files may hang."""
    add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")

    assert names(reader(tmp_path, "mlx5_0").poll(counting=True)) == ["mlx5_1/1"]
    assert names(reader(tmp_path, COLLECTOR).poll(counting=True)) == []


def test_missing_permission_is_distinguished() -> None:
    """Missing permission is distinguished from other errors, because an operator can fix it."""
    read_errors = ReadErrors()
    read_errors.note("state", OSError(errno.EIO, "Input/output error"))
    assert not read_errors.denied

    read_errors.note("rate", OSError(errno.EACCES, "Permission denied"))
    assert read_errors.denied


def test_a_port_has_its_card_and_pci_address(tmp_path: Path) -> None:
    """A port has the PCI address and identity of its card; without the files they are empty."""
    add_port(tmp_path)
    add_port(tmp_path, "mlx5_1")
    card = tmp_path / "class" / "infiniband" / "mlx5_1"
    write(card, {"board_id": "MT_0000000838", "node_guid": "5c25:7303:00f0:0001", "fw_ver": "28.43.1014"})
    write(card / "device", {"uevent": "DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_SLOT_NAME=0000:86:00.1\n"})

    bare, identified = read_ports(tmp_path)
    assert (bare.bus_id, bare.board, bare.guid, bare.firmware) == ("", "", "", "")
    assert (identified.bus_id, identified.board) == ("00000000:86:00.1", "MT_0000000838")
    assert (identified.guid, identified.firmware) == ("5c25:7303:00f0:0001", "28.43.1014")


def test_a_guid_of_zeros_is_absent(tmp_path: Path) -> None:
    """A GUID of zeros, as of a virtual function or an EFA device, is absent."""
    add_port(tmp_path)
    write(tmp_path / "class" / "infiniband" / "mlx5_0", {"node_guid": "0000:0000:0000:0000"})
    assert read_ports(tmp_path)[0].guid == ""
