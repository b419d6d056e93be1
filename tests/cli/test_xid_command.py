"""`gpumon xid`: codes and lines of the kernel log in words, for people and programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpumon.cli.main import main
from gpumon.health.xids import RETIRED, XIDS

LINE = "NVRM: Xid (PCI:0000:1b:00): 149, pid=812, name=python3, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"


@pytest.fixture(autouse=True)
def _own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPUMON_CONFIG__FILE", str(tmp_path / "gpumon.yml"))
    (tmp_path / "gpumon.yml").write_text("")


def output_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["xid", *arguments]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    return json.loads(output_of(capsys, *arguments, "--json"))


def test_a_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """What it is, how grave, and what to do now and when it comes again."""
    assert output_of(capsys, "79") == (
        "Xid 79: The GPU has fallen off the bus\n"
        "  Severity:       critical\n"
        "  Class:          hardware\n"
        "  Do at once:     drain the node and reboot it\n"
        "  If it recurs:   check power, riser, seating and PCIe errors; open a case with the vendor\n"
    )


def test_an_unknown_code_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Severity:       warning" in output_of(capsys, "4242")
    explanation = document(capsys, "4242")
    assert (explanation["xid"], explanation["known"], explanation["severity"]) == (4242, False, "warning")


@pytest.mark.parametrize(
    "arguments", [["--text", LINE], ["149", "--text", LINE], ["149", "--text", LINE.partition("149, ")[2]]]
)
def test_a_line_is_decoded(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    """Whole or from the number on; the process it names is not repeated."""
    explanation = document(capsys, *arguments)

    assert (explanation["xid"], explanation["severity"], explanation["action"]) == (
        149,
        "critical",
        "drain the node and reset the GPU",
    )
    assert explanation["detail"] == "NETIR_LINK_EVT of link 0: fatal."
    assert explanation["text"] == "NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x025001c6 0x0)"


def test_a_line_of_a_switch_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    """It has no code of a GPU."""
    line = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"
    assert output_of(capsys, "--text", line).startswith(
        "SXid 20034: A link of an NVSwitch went down\n  Severity:       critical\n"
    )
    assert document(capsys, "--text", line)["sxid"] == 20034


def test_all_codes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """One a line, in order; retired codes, which no supported driver reports, come last."""
    lines = output_of(capsys).splitlines()
    listed = [int(line.split()[0]) for line in lines]
    assert listed == sorted(set(XIDS) - set(RETIRED)) + sorted(RETIRED)
    assert "  79  critical  hardware     The GPU has fallen off the bus. Do: drain the node and reboot it" in lines
    assert [each["xid"] for each in document(capsys)] == listed


def test_the_operators_file_is_in_force(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The output names what comes from it."""
    (tmp_path / "xids.yml").write_text("79: {action: page the hardware team}\n")
    (tmp_path / "gpumon.yml").write_text(f"xids: {{file: {tmp_path}/xids.yml}}\n")

    assert "  Do at once:     page the hardware team\n" in output_of(capsys, "79")
    assert "  From xids.file: action\n" in output_of(capsys, "79")
    assert document(capsys, "79")["changed"] == ["action"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["seventy-nine"], "'seventy-nine' is not the number of an Xid: give a number, as in `gpumon xid 79`"),
        (["79", "--text", LINE], "the line contains 149, not 79: omit one of them"),
        (["--text", "usb 1-1: new device"], "the line contains no error code: give it too"),
    ],
)
def test_a_question_without_an_answer_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    """With what to ask instead."""
    assert main(["xid", *arguments]) == 2
    assert message in capsys.readouterr().err
