"""/api/v1/inventory and `gpumon inventory`: of the running agent, and what a person accepts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import example_parts
import pytest
import sample_reports as samples
from changed_report import changed
from serving import BEARER, TOKEN, ServedNode, ask, is_problem

from gpumon.cli.inventory import GPU_COLUMNS, render_inventory
from gpumon.cli.main import main
from gpumon.health.products import Basis, Expectation
from gpumon.model.records import PortRecord, StoredGpu
from gpumon.model.request import RequestResult
from gpumon.model.snapshot import GUEST
from gpumon.outputs.responses.devices import InventoryResponse
from gpumon.state.gpu_inventory import Removal, RemovedGpu
from gpumon.state.report import Report

PATH, ACCEPT = "/api/v1/inventory", "/api/v1/inventory/accept"
WALL = samples.STAMP.wall


def board(index: int, **values: object) -> StoredGpu:
    known = StoredGpu(
        uuid=example_parts.uuid(index),
        bus_id=example_parts.bus_id(index),
        serial=f"S{index}",
        name="NVIDIA H100 80GB HBM3",
        first_wall=WALL - 90 * 86400,
        last_wall=WALL,
        gpu=index,
        vbios="96.00.89.00.01",
        nvlinks=18,
    )
    return replace(known, **values)  # type: ignore[arg-type]


def seven() -> Report:
    """GPU 3 is missing; another was replaced."""
    report = samples.healthy()
    gpus = [replace(gpu, stored=board(gpu.index)) for gpu in report.gpus]
    gpus[3] = replace(gpus[3], fault="missing", detail="no longer on the PCI bus", gpu=replace(gpus[3].gpu, up=0.0))
    removed = {"GPU-old": RemovedGpu(Removal.REPLACED, example_parts.bus_id(5))}
    return changed(
        report,
        inventory=replace(report.inventory, removed=removed),
        gpus=tuple(gpus),
        expectation=Expectation(count=8, basis=Basis.PRODUCT),
        node=replace(report.node, gpus_visible=7.0),
    )


@pytest.fixture
def flags(port: int, tmp_path: Path) -> list[str]:
    (tmp_path / "token").write_text(TOKEN, encoding="ascii")
    return [f"--url=http://127.0.0.1:{port}", f"--token-file={tmp_path / 'token'}"]


def test_reading_the_inventory_needs_no_token(node: ServedNode, port: int) -> None:
    """The inventory has the expected count and its source, each GPU with its details, and the removed ones."""
    node.report = seven()
    answer = ask(port, PATH).document
    assert (answer["gpus_expected"], answer["gpus_visible"], answer["basis"]) == (8, 7, "product")
    missing = answer["gpus"][3]
    assert missing["state"] == "missing"
    assert (missing["uuid"], missing["nvlinks"]) == (example_parts.uuid(3), 18)
    assert missing["first_seen"] == "2025-08-22T12:00:00.000Z"
    assert answer["former_gpus"] == [
        {"uuid": "GPU-old", "pci_bus_id": example_parts.bus_id(5), "reason": "replaced", "message": "was replaced"}
    ]


def test_accepting_needs_the_token(node: ServedNode, port: int) -> None:
    """Only a GPU count that can be read and stored is accepted; a refusal has the remedy."""
    assert ask(port, ACCEPT, method="POST").status == 401
    assert not node.asked
    assert ask(port, ACCEPT, method="POST", headers=BEARER).status == 200
    assert len(node.asked) == 1

    node.let_go = RequestResult(refused="It cannot be stored: the disk is full.", remedy="Free space.")
    refusal = ask(port, ACCEPT, method="POST", headers=BEARER)
    assert is_problem(refusal, 409)
    assert refusal.document["remedy"] == "Free space."


def test_the_command_shows_the_inventory(
    node: ServedNode, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The command prints a table, or the JSON document."""
    node.report = seven()
    assert main(["inventory", flags[0]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "8 GPUs expected, as on other hosts with this product; the driver counts 7."
    assert lines[2].split() == " ".join(GPU_COLUMNS.values()).split()
    assert "missing" in lines[6]
    assert lines[-1] == f"GPU-old at {example_parts.bus_id(5)} was replaced."

    assert main(["inventory", "--json", flags[0]]) == 0
    assert json.loads(capsys.readouterr().out) == InventoryResponse.from_report(node.report).document()
    assert main(["inventory", "accept", *flags]) == 0
    assert len(node.asked) == 1


def test_one_part_can_be_accepted_alone(node: ServedNode, port: int, flags: list[str]) -> None:
    """Named parts are accepted alone, over HTTP and from the command line."""
    assert main(["inventory", "accept", "GPU-3", "mlx5_3/1", *flags]) == 0
    assert main(["inventory", "accept", *flags]) == 0
    assert ask(port, f"{ACCEPT}?part=GPU-5", method="POST", headers=BEARER).status == 200
    assert ask(port, f"{ACCEPT}?gpu=GPU-5", method="POST", headers=BEARER).status == 422
    assert node.asked == [(["GPU-3", "mlx5_3/1"],), ([],), (["GPU-5"],)]


def test_the_inventory_of_a_guest_has_the_possible_count() -> None:
    """The inventory of a guest shows its own GPUs and how many the product has."""
    report = changed(samples.healthy(), expectation=Expectation(count=2, may=8, may_basis=Basis.PRODUCT, place=GUEST))
    shown = InventoryResponse.from_report(report).document()
    assert (shown["place"], shown["gpus_expected"], shown["gpus_possible"]) == ("guest", 2, 8)


def test_port_speeds_are_bytes_in_the_api_and_gigabits_in_the_table() -> None:
    """The API has bytes per second; the table has Gbit/s, and n/a for a port that was never up."""
    record = PortRecord(
        identity="a/1",
        device="mlx5_20",
        port="1",
        bus_id="",
        guid="",
        link_layer="InfiniBand",
        board="",
        firmware="",
        first_wall=WALL,
        last_wall=WALL,
        expected=True,
    )
    report = samples.healthy()
    ports = replace(report.host.inventory, records={"a/1": replace(record, speed=50e9), "b/1": record})
    document = InventoryResponse.from_report(replace(report, host=replace(report.host, inventory=ports))).document()
    assert [port["port_speed_bytes_per_second"] for port in document["ports"]] == [50_000_000_000, None]
    assert [line.split()[5] for line in render_inventory(document).splitlines()[-2:]] == ["400", "n/a"]
