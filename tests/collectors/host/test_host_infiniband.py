"""PortReader reads ports from sysfs files or from the simulated node."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from gpumon_sim.infiniband import SimulatedTree, open_tree
from gpumon_sim.scenario import ScenarioFile
from reader_turns import Turns
from sysfs import add_port, write

from gpumon.collectors.host.infiniband import MAX_PORTS, PortReader
from gpumon.collectors.host.reader import ReadErrors, Tree
from gpumon.model.infiniband import BOND, SWITCH
from gpumon.model.snapshot import PortReading, PortReadings


def reader(sysfs: Path, *quarantined: str) -> Turns[PortReadings]:
    return Turns(PortReader(), Tree(sysfs), orders={"quarantined": quarantined})


def read_ports(sysfs: Path) -> tuple[PortReading, ...]:
    return reader(sysfs).poll().ports


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
    add_port(tmp_path, files={"state": state})

    (port,) = read_ports(tmp_path)

    assert port.link.port_up is None


def test_ports_are_in_numerical_order(tmp_path: Path) -> None:
    for device in ("mlx5_10", "mlx5_9", "mlx5_bond_0"):
        add_port(tmp_path, device)
    add_port(tmp_path, "mlx5_9", "2", files={"link_layer": "Ethernet"})

    assert names(read_ports(tmp_path)) == ["mlx5_9/1", "mlx5_9/2", "mlx5_10/1", "mlx5_bond_0/1"]


def test_virtual_functions_are_omitted_beside_their_physical_function(tmp_path: Path) -> None:
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
    (port,) = port_reader.poll().ports

    assert (port.link.port_up, port.link.port_speed_bytes_per_second) == (1.0, None)
    assert (port.counts.receive_bytes_total, port.counts.errors_total, port.counts.link_downs_total) == (None,) * 3
    assert port_reader.errors.words == ""


def test_counters_with_text_are_absent(tmp_path: Path) -> None:
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
    """A counter that has stopped at its maximum is reported once, then absent until a reset; each change is logged."""
    full = {"link_downed": "255", "symbol_error": "65535", "port_rcv_data": str(2**32 - 1), "port_xmit_data": "9"}
    folder = add_port(tmp_path, counters=full)
    port_reader = reader(tmp_path)

    with caplog.at_level(logging.INFO, "gpumon.collectors.host"):
        (port,) = port_reader.poll().ports
        assert port.counts.link_downs_total == 255.0
        (port,) = port_reader.poll().ports
        assert (port.counts.link_downs_total, port.counts.errors_total, port.counts.receive_bytes_total) == (None,) * 3
        assert port.counts.transmit_bytes_total == 36.0
        assert len(caplog.records) == 3
        write(folder / "counters", {"link_downed": "1"})
        (port,) = port_reader.poll().ports

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
    port_reader.poll()
    write(folder, {"state": "1: DOWN"})
    write(folder / "counters", {"link_downed": "1"})
    add_port(tmp_path, "mlx5_1", counters={"link_downed": "5"})

    first, second = port_reader.poll(after=1.0).ports
    assert (first.link.port_up, first.counts.link_downs_total, second.counts.link_downs_total) == (0.0, 0.0, 5.0)
    first, _ = port_reader.poll().ports
    assert first.counts.link_downs_total == 1.0


def test_ports_above_the_limit_are_omitted(tmp_path: Path) -> None:
    for number in range(MAX_PORTS + 3):
        add_port(tmp_path, "mlx5_0", str(number), counters={})
    port_reader = reader(tmp_path)

    polled = port_reader.poll()
    assert (len(polled.ports), polled.left_out) == (MAX_PORTS, 3)


def test_a_host_without_ports_has_no_errors(tmp_path: Path) -> None:
    port_reader = reader(tmp_path)

    assert port_reader.poll().ports == ()
    assert port_reader.errors.words == ""


def test_a_failing_port_affects_no_other_port(tmp_path: Path) -> None:
    """After EIO on one state file that reading is absent; other readings and other ports remain."""
    scenario = tmp_path / "scenario.yml"
    scenario.write_text("ports: {mlx5_3: {unreadable: [state, link_downed]}, mlx5_5: {absent: true}}")
    port_reader = Turns[PortReadings](PortReader(), open_tree("h100x8", scenario=scenario, epoch=0.0))

    ports = port_reader.poll().ports

    assert names(ports) == [f"mlx5_{n}/1" for n in (0, 1, 2, 3, 4, 6, 7)]
    assert [port.device for port in ports if port.link.port_up is None] == ["mlx5_3"]
    assert ports[3].counts.link_downs_total is None
    assert ports[3].counts.receive_bytes_total is not None
    assert port_reader.errors.words == "class/infiniband/mlx5_3/ports/1/state: Input/output error, and 1 more file"
    assert not port_reader.errors.denied


def test_quarantined_ports_are_not_read(tmp_path: Path) -> None:
    """A quarantined device is not read, because its files may hang."""
    add_port(tmp_path, "mlx5_0")
    add_port(tmp_path, "mlx5_1")

    assert names(reader(tmp_path, "mlx5_0").poll().ports) == ["mlx5_1/1"]


def test_missing_permission_is_distinguished() -> None:
    """Missing permission is distinguished from other errors, because an operator can fix it."""
    errors = ReadErrors()
    errors.note("state", OSError(errno.EIO, "Input/output error"))
    assert not errors.denied

    errors.note("rate", PermissionError(errno.EACCES, "Permission denied"))
    assert errors.denied


def test_a_port_has_its_card_and_pci_address(tmp_path: Path) -> None:
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


def simulated_reader(folder: Path, text: str, **orders: tuple[str, ...]) -> tuple[Turns[PortReadings], SimulatedTree]:
    """Return a reader of the simulated h100x8 with this scenario, and its files."""
    (folder / "scenario.yml").write_text(text)
    tree = open_tree("h100x8", scenario=folder / "scenario.yml", epoch=0.0)
    return Turns(PortReader(), tree, orders=orders), tree


def test_a_counter_that_answers_einval_is_read_once(tmp_path: Path) -> None:
    """The counters of a limited function are read once, because each read makes the driver log a line."""
    port_reader, tree = simulated_reader(tmp_path, "nics: [limited_pf]")
    ports = port_reader.poll().ports
    lines = len(tree.kernel_lines)
    for _ in range(4):
        assert [port.restricted for port in port_reader.poll().ports] == [port.restricted for port in ports]

    assert len(tree.kernel_lines) == lines
    assert lines <= 13
    assert [port.device for port in ports if port.restricted] == ["mlx5_20"]
    assert port_reader.errors.words == ""


def test_the_files_of_a_replaced_device_are_read_again(tmp_path: Path) -> None:
    """A device with another GUID, or one that was absent, is read as a new one."""
    port_reader, tree = simulated_reader(tmp_path, "nics: [limited_pf]")
    port_reader.poll()
    for text in ("{replaced: true}", "{absent: true}", "{}"):
        lines = len(tree.kernel_lines)
        (tmp_path / "scenario.yml").write_text(f"nics: [limited_pf]\nports: {{mlx5_20: {text}}}")
        tree._file = ScenarioFile(tmp_path / "scenario.yml", tree._profile)
        port_reader.poll()
        assert (len(tree.kernel_lines) > lines) == (text != "{absent: true}"), text


def test_a_pattern_that_matches_no_adapter_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pattern without an adapter is logged once, with its setting and all adapters, a minute after the start."""
    patterns = {"exclude": ("mlx5_an*", "0000:05:00.0"), "fabric": ("mlx5_[0-7]", "ibp*")}
    port_reader, _ = simulated_reader(tmp_path, "nics: [azure_vf]", **patterns)
    for _ in range(4):
        port_reader.poll()
        port_reader.poll(after=1.0)
    assert not caplog.records
    for _ in range(10):
        port_reader.poll()
    logged = [vars(record) for record in caplog.records]
    assert [(each["setting"], each["pattern"]) for each in logged] == [
        ("links.exclude", "0000:05:00.0"),
        ("links.fabric", "ibp*"),
    ]
    assert "mlx5_an0" in logged[0]["adapters"]


def test_one_counter_that_answers_einval_leaves_the_others(tmp_path: Path) -> None:
    """A port with other counters is not restricted."""
    folder = add_port(tmp_path)
    (folder / "counters" / "VL15_dropped").write_text("0\n")
    tree = Refusing(tmp_path, "VL15_dropped")
    port_reader = Turns[PortReadings](PortReader(), tree)

    for _ in range(3):
        (port,) = port_reader.poll().ports
    assert (tree.refused, port.restricted, port.counts.errors_total) == (1, False, {"symbol_error": 0.0})


def test_a_counter_that_answered_before_is_read_again(tmp_path: Path) -> None:
    """A failing adapter answers EINVAL for a while; its counters are back when it answers again."""
    add_port(tmp_path)
    tree = Refusing(tmp_path, "counters/symbol_error", after=1)
    port_reader = Turns[PortReadings](PortReader(), tree)

    counts = [port_reader.poll().ports[0].counts.errors_total for _ in range(3)]
    tree.name = "no such file"
    counts.append(port_reader.poll().ports[0].counts.errors_total)
    assert counts == [{"symbol_error": 0.0}, None, None, {"symbol_error": 0.0}]


class Refusing(Tree):
    """Files of which one may not be read."""

    def __init__(self, root: Path, name: str, after: int = 0) -> None:
        super().__init__(root)
        self.name = name
        self.after = after
        self.refused = 0

    def read(self, path: str) -> str:
        if path.endswith(self.name):
            self.after -= 1
        if path.endswith(self.name) and self.after < 0:
            self.refused += 1
            raise OSError(errno.EINVAL, "Invalid argument")
        return super().read(path)


def test_excluded_adapters_are_not_read(tmp_path: Path) -> None:
    """An adapter is excluded by device name, PCI address or board id, or a pattern; no file of a port is read."""
    patterns = ("mlx5_20", "0002:10:*", "SIM_MT41692", "0001:10:00.0")
    port_reader, tree = simulated_reader(tmp_path, "nics: [limited_pf, azure_vf, bluefield, bond]", exclude=patterns)

    assert names(port_reader.poll().ports) == [*(f"mlx5_{n}/1" for n in range(1, 8)), "mlx5_bond_0/1"]
    assert tree.kernel_lines == []


def test_a_port_has_the_gpu_below_the_same_pcie_switch(tmp_path: Path) -> None:
    """The GPU is found by the common bridges of the paths in sysfs."""
    port_reader, _ = simulated_reader(tmp_path, "nics: [storage, azure_vf]")
    ports = {port.device: port.placement for port in port_reader.poll().ports}

    assert ports["mlx5_2"].position == SWITCH
    assert ports["mlx5_2"].gpus == ("00000000:52:00.0",)
    assert (ports["mlx5_21"].position, ports["mlx5_21"].gpus) == ("numa", ())
    assert ports["mlx5_an0"].kind.startswith("its network interface belongs to a virtual machine's")


@pytest.mark.parametrize(("uevent", "kind"), [("DEVTYPE=bond", BOND), ("DEVTYPE=vrf", ""), ("DEVTYPE=bridge", "")])
def test_only_a_leg_of_a_bond_has_its_kind(tmp_path: Path, uevent: str, kind: str) -> None:
    """A rail of the fabric may be in a VRF or a bridge."""
    add_port(tmp_path, "mlx5_0", counters={})
    add_netdev(tmp_path, "mlx5_0", {})
    write(tmp_path / "class/infiniband/mlx5_0/device/net/eth0/master", {"uevent": f"{uevent}\nINTERFACE=one"})

    assert read_ports(tmp_path)[0].placement.kind == kind


def add_netdev(sysfs: Path, device: str, files: dict[str, str]) -> None:
    write(sysfs / "class/infiniband" / device / "device/net/eth0", {"dev_port": "0"} | files)


@pytest.mark.parametrize(("operstate", "up"), [("up", 1.0), ("down", 0.0), ("unknown", None), (None, None)])
def test_the_state_of_an_efa_port_is_that_of_its_interface(
    tmp_path: Path, operstate: str | None, up: float | None
) -> None:
    """The driver reports every EFA port as active; without a network interface its state is absent."""
    efa = {"rx_bytes": "123", "tx_bytes": "456", "rx_drops": "1"}
    folder = add_port(tmp_path, "rdmap0s6", files={"link_layer": "Unknown"}, counters={}, hardware=efa)
    device = folder.parents[1]
    write(device / "device", {"uevent": "DRIVER=efa\nPCI_SLOT_NAME=0000:86:00.0"})
    write(device / "hw_counters", {"no_completion_cmds": "2", "cmds_err": "3"})
    if operstate is not None:
        add_netdev(tmp_path, "rdmap0s6", {"operstate": operstate, "carrier_down_count": "3"})

    (port,) = read_ports(tmp_path)

    assert (port.link.port_up, port.used) == (up, True)
    assert port.counts.link_downs_total == (None if operstate is None else 3.0)
    assert port.counts.errors_total == {"rx_drops": 1.0, "no_completion_cmds": 2.0, "cmds_err": 3.0}


@pytest.mark.parametrize(
    ("files", "downs"),
    [({"carrier_down_count": "7"}, 7.0), ({"carrier_changes": "5"}, 2.0), ({"carrier_down_count": "0"}, 1.0)],
)
def test_a_roce_port_counts_the_carrier_losses_of_its_interface(
    tmp_path: Path, files: dict[str, str], downs: float
) -> None:
    """A link that goes down and up between two polls is counted, although link_downed of RoCE often stays 0."""
    add_port(tmp_path, files={"link_layer": "Ethernet"}, counters={"link_downed": "1"})
    add_netdev(tmp_path, "mlx5_0", files)

    (port,) = read_ports(tmp_path)

    assert port.counts.link_downs_total == downs
