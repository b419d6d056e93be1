"""PCIe errors that the firmware of the host reports are assembled from several records of the kernel log."""

from __future__ import annotations

from pathlib import Path

from each_case import each_case

from gpumon.collectors.kernel_log.lines import FirmwareErrors, Line
from gpumon.collectors.kernel_log.watch import KernelLogWatch
from gpumon.model.error_event import AER, AER_FATAL, AER_NONFATAL, ErrorObservation, LogPosition

GPU = "00000000:1B:00.0"


def report(severity: str, *, number: int = 1, device: str = "0000:1b:00.0", kind: str = "PCIe error") -> list[str]:
    """Return the records of a report, as Linux logs them (drivers/firmware/efi/cper.c, drivers/acpi/apei/ghes.c)."""
    lines = (
        "Hardware error from APEI Generic Hardware Error Source: 1",
        f"event severity: {severity}",
        f" Error 0, type: {severity}",
        f"  section_type: {kind}",
        "  port_type: 0, PCIe end point",
        "  version: 3.0",
        "  command: 0x0546, status: 0xc110",
        f"  device_id: {device}",
        "  slot: 9",
        "  secondary_bus: 0x00",
        "  vendor_id: 0x10de, device_id: 0x2330",
        "  class_code: 030200",
    )
    return [f"{{{number}}}[Hardware Error]: {line}" for line in lines]


def errors(records: list[str]) -> list[Line]:
    reader = FirmwareErrors()
    return [line for record in records if (line := reader.read(record)) is not None]


@each_case(("severity", "code"), [("recoverable", AER_NONFATAL), ("fatal", AER_FATAL)])
def test_an_uncorrected_error_is_one_error_of_its_device(severity: str, code: int) -> None:
    """A report of many records is one error, with the severity of its section and the device."""
    assert errors(report(severity)) == [
        Line(
            kind=AER,
            code=code,
            bus_id=GPU,
            text=f"The firmware reported a {severity} PCIe error",
            fatal=severity == "fatal",
        )
    ]


@each_case(
    "records",
    [
        report("corrected"),
        report("info"),
        report("recoverable", kind="memory error"),
        report("recoverable")[4:],
        [record.partition("}")[2] for record in report("fatal")],  # of the boot before, from the table BERT
        [f"  {record}" for record in report("fatal")],
        ["\n".join(report("fatal"))],
        [f"a.out[7]: segfault at 0 in {record}" for record in report("fatal")],
    ],
)
def test_other_reports_are_no_errors(records: list[str]) -> None:
    """Corrected errors, errors of memory, incomplete reports, and text of processes are ignored."""
    assert not errors(records)


def test_reports_of_two_processors_may_alternate() -> None:
    """Each report is assembled by its number; several sections of one report are several errors."""
    one, other = report("recoverable", number=7), report("fatal", number=8, device="0000:2b:00.0")
    alternating = [record for pair in zip(one, other, strict=True) for record in pair]
    assert [line.code for line in errors(alternating)] == [AER_NONFATAL, AER_FATAL]
    sections = [*one, *(record.replace("Error 0", "Error 1") for record in report("fatal", number=7)[2:])]
    assert [line.code for line in errors(sections)] == [AER_NONFATAL, AER_FATAL]


def test_reports_without_an_end_are_forgotten() -> None:
    """Reports that never name a device do not add up, and do not keep a later one from being read."""
    endless = [record for number in range(5000) for record in report("fatal", number=number)[:4]]
    assert [line.bus_id for line in errors([*endless, *report("fatal", number=5001)])] == [GPU]


def test_a_report_across_two_reads_of_the_log_is_reported(tmp_path: Path) -> None:
    """The watch reports an error whose records the kernel writes in two parts."""
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;usb 1-1: new device\n")
    watch = KernelLogWatch(path, "boot")
    watch.resume(LogPosition("boot", 0))
    assert watch.read() == ()
    lines = [f"3,{number},{number},-;{text}\n" for number, text in enumerate(report("recoverable"), start=2)]
    observations: list[ErrorObservation] = []
    for part in (lines[:5], lines[5:]):
        with path.open("a") as log:
            log.writelines(part)
        observations += watch.read()
    watch.close()
    assert [(each.kind, each.code, each.bus_id, each.times) for each in observations] == [(AER, AER_NONFATAL, GPU, 1)]
