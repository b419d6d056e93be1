"""The catalogue of Xids, and what the text of one adds to it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from each_case import each_case
from hypothesis import given
from hypothesis import strategies as st
from sample_events import error_event

from gpumon.collectors.nvml.table_reader import ARCHITECTURES
from gpumon.health import nvlink5, xid_texts
from gpumon.health.catalogue import SHIPPED, Explanation, explain
from gpumon.health.products import RANKS
from gpumon.health.xids import (
    ACTIVATE_REPAIR,
    NOTHING,
    REBOOT,
    REPLACE_SOON,
    RESET,
    RESTART,
    TABLE,
    XIDS,
    Class,
    Severity,
    possible_xids,
)
from gpumon.model.driver_errors import DRIVER_ERRORS
from gpumon.model.error_event import AER, AER_FATAL, AER_NONFATAL, DRIVER, NIC, OVERRUN, SXID, XID

CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


def read(code: int, text: str) -> Explanation:
    return SHIPPED.read(XID, code, (text,))


def severity_and_action(code: int, text: str) -> tuple[Severity, str]:
    means = read(code, text)
    return means.severity, means.action


@each_case(
    ("to", "severity", "action"),
    [
        ("0x0 (None)", INFO, NOTHING),
        ("0x1 (GPU Reset Required)", CRITICAL, RESET),
        ("0x1 (PF FLR)", CRITICAL, RESET),
        ("0x2 (Node Reboot Required)", CRITICAL, REBOOT),
        ("0x2 (OS Reboot)", CRITICAL, REBOOT),
        ("0x3 (Drain P2P)", CRITICAL, "stop the jobs that use this GPU's links"),
        ("0x4 (Drain and Reset)", CRITICAL, "stop the jobs that use this GPU's links, then reset it"),
        ("0x5 (Recover IMEX Domain)", INFO, "restart nvidia-imex and end the jobs that use the IMEX domain"),
        ("0x9 (Sing To It)", CRITICAL, "perform the action that it names: Sing To It"),
    ],
)
def test_a_recovery_action_is_identified_by_its_number(to: str, severity: Severity, action: str) -> None:
    """The number decides the action because its name differs between drivers; an unknown name is quoted."""
    assert severity_and_action(154, f"GPU recovery action changed from 0x0 (None) to {to}") == (severity, action)
    assert severity_and_action(154, "something else") == (INFO, XIDS[154].action)


def test_the_newest_recovery_action_counts() -> None:
    changed = "GPU recovery action changed from"
    texts = (f"{changed} 0x0 (None) to 0x1 (GPU Reset Required)", f"{changed} 0x1 (GPU Reset Required) to 0x0 (None)")
    advice = error_event(1, 154, texts=texts, text=texts[0])

    assert SHIPPED.explain(advice).severity is CRITICAL
    assert SHIPPED.explain(replace(advice, text=texts[1])).severity is INFO


def nvlink(*values: int) -> str:
    return f"NVLink: fatal error detected on link 14({', '.join(hex(value) for value in values)})"


@each_case(
    ("values", "finding"),
    [
        ((1 << 8, 0, 0, 0, 0, 0, 0), xid_texts.CONNECTION),
        ((1 << 4, 0, 0, 0, 0, 0, 0), xid_texts.PARITY),
        ((1 << 21, 0, 0, 0, 0, 0, 0), xid_texts.SIGNAL),
        ((1 << 30, 0, 0, 0, 0, 0, 0), xid_texts.HARMLESS),
        ((0, 0, 1 << 16, 0, 0, 0, 0), xid_texts.DIAGNOSE),
        ((0, 0, 1 << 13, 0, 0, 0, 0), xid_texts.UNEXPECTED),
        ((0, 0, 0, 1 << 18, 0, 0, 0), xid_texts.FABRIC),
        ((0, 0, 0, 0, 1 << 20, 0, 0), xid_texts.THRESHOLD),
        ((0, 0x1, 0, 0, 0, 0, 0), xid_texts.UNEXPECTED),
        ((1 << 30 | 1 << 20, 0, 0, 1 << 16, 1 << 27, 0, 0), xid_texts.PARITY),
    ],
)
def test_nvlink_registers_select_the_action(values: tuple[int, ...], finding: xid_texts.BitFinding) -> None:
    """The most severe bit selects the action, and the reason names each link, register and meaning."""
    means = read(74, nvlink(*values))

    assert (means.severity, means.action) == (CRITICAL, finding.action)
    assert means.detail.startswith("Link 14: register ")
    assert finding.words in means.detail


def test_every_bit_has_one_finding_and_every_finding_a_rank() -> None:
    used = {finding for bits in xid_texts.REGISTERS.values() for finding in bits.values()}
    assert used | {xid_texts.UNEXPECTED} == set(xid_texts.WORST_FIRST)
    assert all(0 <= bit < 32 for bits in xid_texts.REGISTERS.values() for bit in bits)


@each_case(
    ("code", "text", "severity", "action"),
    [
        # Driver 615, src/nvidia/src/kernel/events/gpu/ras/ras_events.c.
        (
            64,
            "Row Remapper: (0xabcdef) - Attempting to remap a row that is already pending remapping. Remapping will",
            INFO,
            XIDS[63].action,
        ),
        (64, "DRAM Retirement failed due to pending bank remap at 0x0000000000abcdef", INFO, XIDS[63].action),
        (64, "Row Remapper Error: (0x0000000000abcdef) - Row Remapping table is full", CRITICAL, RESET),
        (
            160,
            "Marking LTS 3 in FPB 2 along with its pair for repair. Perform node reboot to activate repair.",
            INFO,
            ACTIVATE_REPAIR,
        ),
        (161, "Repairing Channel failed as there are no more spare channels.", WARNING, REPLACE_SOON),
        (177, "Bank Remapper: New bank marked for remapping, reset gpu to activate.", INFO, ACTIVATE_REPAIR),
        # kernel_nvlink.c: the line has no registers.
        (74, "NVLink: failed to train link 3 to remote PCI:0000:2b:00", CRITICAL, RESET),
        # kern_gpu_error_cont_ga100.c, kernel_gsp_gb100.c
        (94, "Contained: SM (0x1). RST: No, D-RST: No", WARNING, RESTART),
        (94, "Contained: LTC RSTG (0x1, 0x0). RST: No, D-RST: Yes", CRITICAL, RESET),
        (94, "GSP-RISCV instance 0 fatal error", CRITICAL, RESET),
        # nvlink_events.c
        (148, "NVLPW_CTRL Fatal XC0 i0 Link 05", CRITICAL, nvlink5.READ_IT),
        (148, "NVLPW_CTRL Nonfatal XC0 i0 Link 05", INFO, NOTHING),
        (155, "NVLINK Nonfatal XC0 i0 Link 05 : Link Down While Active.", WARNING, nvlink5.FOLLOW_154),
        (155, "NVLINK Fatal XC0 i0 Link 05 : Link Down While Active.", CRITICAL, RESET),
    ],
)
def test_words_in_the_text_decide_the_severity(code: int, text: str, severity: Severity, action: str) -> None:
    assert severity_and_action(code, text) == (severity, action)


def test_what_the_operator_set_takes_precedence_over_the_words_in_the_text() -> None:
    """A row of xids.file keeps its severity, and the rest follows the text."""
    ours = SHIPPED.with_rows({94: replace(XIDS[94], severity=INFO, ordered=frozenset({"severity"}))})
    means = ours.read(XID, 94, ("GSP-RISCV instance 0 fatal error",))
    assert (means.severity, means.action) == (INFO, RESET)


# NVLink 5


def line(unit: str, info: int, status: int = 0, *, fatal: bool = False, link: str = "13") -> str:
    words = f"{info:#010x} {status:#010x} 0x00000001 0x00000000 0x00100000 0x00000004"
    return f"{unit} {'Fatal' if fatal else 'Nonfatal'} XC0 i0 Link {link} ({words})"


@each_case(
    ("code", "text", "severity", "action"),
    [
        (144, "SAW_MVB Nonfatal XC0 i0 Link 0 (0x00000001 0x00000008 0x00000000)", INFO, NOTHING),
        (145, "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x00000001 0x0)", INFO, NOTHING),
        (145, line("RLW_REMAP", 4, 0x40, fatal=True), CRITICAL, RESET),
        (145, line("RLW_REMAP", 4, 0x1), WARNING, nvlink5.FOLLOW_154),
        (145, line("RLW_RXPIPE", 6, 0x1), INFO, NOTHING),
        (145, line("RLW_RXPIPE", 6 | 1 << 7, 0x1, fatal=True), CRITICAL, RESET),
        (145, line("RLW_RXPIPE", 6 << 5 | 2 | 1 << 10, 0x1, fatal=True), CRITICAL, RESET),
        (146, line("TLW_RX_PIPE1", 11, 0x4, fatal=True), CRITICAL, RESET),
        (146, line("TLW_RX", 10 << 5 | 3, 0x4, fatal=True), CRITICAL, RESET),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000 0x00000000)", CRITICAL, RESET),
        (149, "NETIR_LINK_EVT  Fatal   XC0 i0 Link 01 (0x021425c6 0x00000000 0x00000000)", CRITICAL, RESET),
        (149, line("NETIR_LINK_DOWN", 0b101010 << 20 | 17, fatal=True), CRITICAL, RESET),
        (149, line("NETIR_LINK_DOWN", 0b101000 << 20 | 17, fatal=True), WARNING, NOTHING),
        (149, line("NETIR_BER_EVENT", 19, 2), INFO, NOTHING),
        (150, line("MSE_WATCHDOG", 0, 0, fatal=True), CRITICAL, RESET),
        (149, "NETIR_LINK_EVT Fatal XC 1 i 2 Link 01 [0x000001c6]", CRITICAL, RESET),
        # What the table does not have
        (145, line("RLW_REMAP", 4, 0x1000), WARNING, nvlink5.READ_IT),
        (145, line("RLW_REMAP", 4, 0x1000, fatal=True), CRITICAL, nvlink5.READ_IT),
        (145, line("RLW_NEWPART", 44, 0x1), WARNING, nvlink5.READ_IT),
        (145, line("RLW_REMAP", 77, 0x1), WARNING, nvlink5.READ_IT),
        (145, line("RLW_REMAP", 1 << 20 | 4, 0x1), WARNING, nvlink5.READ_IT),
        (149, line("NETIR_LINK_DOWN", 0b111111 << 20 | 17), WARNING, nvlink5.READ_IT),
    ],
)
def test_nvlink_5_lines_are_decoded(code: int, text: str, severity: Severity, action: str) -> None:
    """Both codings, before and since R575, are decoded; a line that matches no rule is a warning."""
    assert severity_and_action(code, text) == (severity, action)


def test_a_decoded_nvlink_5_line_includes_link_and_severity() -> None:
    """The explanation contains the link, if there is one, and the severity that the driver reports."""
    assert read(145, line("RLW_REMAP", 4, 0x40, fatal=True)).detail == "RLW_REMAP of link 13: fatal."
    assert read(149, line("NETIR", 24, link="-1")).detail == "NETIR: not fatal."


def test_an_unrecognized_text_keeps_the_catalogue_row() -> None:
    """Without a text that can be decoded, as from NVML, the row of the catalogue applies."""
    for text in ("", "NVLink error"):
        assert read(149, text).action == XIDS[149].action
        assert read(74, text).action == XIDS[74].action


def test_no_line_has_two_meanings() -> None:
    """No register value matches different outcomes in both codings, so the driver version is not needed."""
    for unit in nvlink5.TABLE:
        old = unit.before << 5 | unit.group
        assert old & 0x7F not in unit.since or (unit.xid == 150 and not unit.promoted)


def test_the_table_has_the_size_of_nvidias_decode_table() -> None:
    """Each Xid has as many rules as in NVIDIA's decode table, except where one unit became two."""
    rules = dict.fromkeys(nvlink5.CODES, 0)
    for unit in nvlink5.TABLE:
        rules[unit.xid] += len(unit.by_reason or unit.by_status) * len(unit.since)
    assert rules == {144: 6, 145: 33, 146: 20, 147: 2, 148: 1, 149: 31, 150: 2}


@given(st.sampled_from([45, 74, 144, 145, 146, 147, 148, 149, 150, 154]), st.text())
def test_malformed_lines_are_explained_without_an_error(code: int, text: str) -> None:
    start = {74: "link 1(0x1", 154: "to 0x", 45: "caused by previous Xid "}.get(
        code, "RLW_CTRL Fatal XC0 i0 Link 1 (0x3 "
    )
    for each in (text, start + text, start + text + ")"):
        assert explain(XIDS[code], each).action


# What follows, what is over, and what is no Xid


def test_an_xid_caused_by_another_is_information() -> None:
    means = read(45, "Ch 00000001 caused by previous Xid 149")
    assert (means.severity, means.action) == (INFO, "see Xid 149 of this GPU")
    assert read(45, "Ch 00000001").severity is INFO


def test_an_xid_can_be_cancelled_by_another() -> None:
    lost = error_event(1, 163)
    assert SHIPPED.explain(lost).severity is WARNING
    over = SHIPPED.explain(replace(lost, cancelled_wall=2.0))
    assert (over.severity, over.action, over.detail) == (INFO, NOTHING, "Xid 162 cleared it.")


def test_the_most_severe_line_of_a_burst_sets_its_severity() -> None:
    """A harmless line before or after it changes nothing."""
    harmless, bad = line("RLW_CTRL", 3, 0x8000_0000), line("RLW_RSPCOL", 5, 0x2, fatal=True)
    for texts in ((harmless, bad), (bad, harmless)):
        assert SHIPPED.explain(error_event(1, 145, texts=texts, text=harmless)).action == RESET


@each_case(
    ("code", "fatal", "text", "severity", "name"),
    [
        (12022, True, "Fatal, Link 30 egress error", CRITICAL, "A link of an NVSwitch failed"),
        (20034, True, "Fatal, Link 30 LTSSM Fault Up", CRITICAL, "A link of an NVSwitch went down"),
        (10007, True, "Fatal, IO failure", CRITICAL, "NVSwitch error, fatal"),
        (12028, False, "Non-fatal, Link 30 PRIV error", WARNING, "NVSwitch error, not fatal"),
        (26007, None, "SOE EXTERR", WARNING, "NVSwitch error, of unknown severity"),
        (22013, False, "Non-fatal, Link 30 Minion Link DLREQ interrupt", INFO, "NVSwitch error, harmless"),
    ],
)
def test_the_line_sets_the_severity_of_an_nvswitch_error(
    code: int, text: str, severity: Severity, name: str, *, fatal: bool | None
) -> None:
    """Only a fatal NVSwitch error is critical; a link failed only if the line names a link."""
    means = SHIPPED.explain(error_event(1, code, kind=SXID, fatal=fatal, text=text))
    assert (means.severity, means.name) == (severity, name)


@each_case("code", [*DRIVER_ERRORS, 999])
def test_errors_of_the_driver_are_explained(code: int) -> None:
    """They are warnings, because NVML or an Xid reports the fault itself; unknown codes are explained too."""
    means = SHIPPED.explain(error_event(1, code, kind=DRIVER))
    assert means.severity is WARNING
    assert means.name
    assert means.action


def test_lost_records_are_a_warning() -> None:
    """Lost kernel log records are a warning because they may include an Xid."""
    assert SHIPPED.explain(error_event(1, 0, kind=OVERRUN)).severity is WARNING


@pytest.mark.parametrize(("code", "severity"), [(1, CRITICAL), (4, WARNING), (77, WARNING)])
def test_events_of_network_drivers_are_explained(code: int, severity: Severity) -> None:
    """Events that only a later version has are explained too."""
    assert SHIPPED.explain(error_event(1, code, kind=NIC)).severity is severity


def test_a_fatal_error_of_pcie_is_critical() -> None:
    """A PCIe error that is not fatal is a warning: the device recovers from it."""
    assert SHIPPED.explain(error_event(1, AER_FATAL, kind=AER)).severity is CRITICAL
    assert SHIPPED.explain(error_event(1, AER_NONFATAL, kind=AER)).severity is WARNING


def test_a_row_of_the_operator_has_precedence() -> None:
    """A value from the operator's file has precedence over the line; other values come from the line."""
    ordered = replace(XIDS[149], severity=INFO, ordered=frozenset({"severity"}))
    means = SHIPPED.with_rows({149: ordered}).read(XID, 149, (line("NETIR_LINK_DOWN", 17, fatal=True),))
    assert (means.severity, means.action) == (INFO, RESET)


def test_each_code_has_one_row() -> None:
    assert len(TABLE) == len(XIDS)


def test_every_code_that_drivers_have_is_there() -> None:
    """All codes of NVIDIA's catalogue are described, retired ones too, and those of driver 615."""
    assert set(XIDS) == set(range(1, 178))
    assert SHIPPED.xid(14).name.startswith("Retired")


def test_severity_follows_the_first_action() -> None:
    """What asks for a reset or a reboot is critical, except the context switch timeout, which a job can cause."""
    heavy = re.compile(r"reset it$|reboot")

    assert {xid.code for xid in TABLE if heavy.search(xid.action)} - {109} <= SHIPPED.critical
    assert not [xid for xid in TABLE if xid.severity is Severity.INFO and heavy.search(xid.action)]
    assert not [xid for xid in TABLE if xid.severity is Severity.CRITICAL and xid.action == NOTHING]


def test_what_a_job_can_cause_is_not_critical() -> None:
    """A faulty application must not take a node out of service."""
    application = {xid.code for xid in TABLE if xid.kind is Class.APPLICATION}
    assert {13, 31, 43, 45, 68, 109} <= application
    assert not application & SHIPPED.critical


def test_the_worst_are_critical() -> None:
    """Codes that other exporters agree to be fatal are critical."""
    assert {46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 156, 158, 175} <= SHIPPED.critical


def test_an_unknown_code_is_a_warning() -> None:
    """A code from a newer driver is neither hidden nor critical, and keeps its number."""
    assert SHIPPED.xid(79).severity is Severity.CRITICAL
    assert SHIPPED.xid(100_000).severity is Severity.WARNING
    assert SHIPPED.xid(100_000).code == 100_000


def of(architecture: str | None, *, chip_to_chip: bool = False) -> set[int]:
    return set(possible_xids(SHIPPED.critical, architecture, chip_to_chip=chip_to_chip))


@pytest.mark.parametrize(
    ("architecture", "never"),
    [
        ("Turing", {95, 110, 136, 143, 150, 151, 155, 156, 167, 169, 173}),
        ("Ampere", {57, 58, 110, 136, 143, 150, 151, 155, 156, 167, 169, 173}),
        ("Hopper", {57, 58, 150, 155, 173}),
        ("Blackwell", {57, 58, 74, 136, 173}),
    ],
)
def test_codes_that_cannot_happen_are_not_counted(architecture: str, never: set[int]) -> None:
    """By NVIDIA's catalogue; everything else that is critical is there."""
    assert SHIPPED.critical - of(architecture) == never


def test_gpus_beside_a_grace_cpu_can_lose_that_link() -> None:
    """On Hopper and on Blackwell."""
    for architecture in ("Hopper", "Blackwell"):
        assert of(architecture, chip_to_chip=True) - of(architecture) == {173}


def test_unknown_architecture_can_have_everything() -> None:
    """A GPU newer than this table misses no alert."""
    assert of("Tomorrow", chip_to_chip=True) == SHIPPED.critical
    assert of("Rubin") == SHIPPED.critical - {173}


def test_gpu_that_was_never_opened_counts_what_every_gpu_can_have() -> None:
    """So that no counter vanishes when its architecture becomes known."""
    for architecture in ARCHITECTURES.values():
        assert of(None) <= of(architecture)
    assert {48, 62, 79} <= of(None)


def test_ranks_are_of_architectures_that_are_read() -> None:
    """A spelling mistake would make a row mean nothing."""
    assert set(RANKS) <= set(ARCHITECTURES.values())
