"""Lines of the kernel log that become observations, and reports of the firmware in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.collectors.kernel_log.lines import FirmwareErrors, Line
from gpumon.collectors.kernel_log.watch import MAX_LINES, KernelClock, KernelLogWatch
from gpumon.model.error_event import AER, AER_FATAL, AER_NONFATAL, OVERRUN, XID, ErrorObservation, LogPosition

BOOT, OTHER = "boot-1", "boot-0"
NOW, WALL = 5000.0, 2e9


def line(sequence: int, xid: int = 79, text: str = "GPU has fallen off the bus.", seconds: float = NOW) -> str:
    return f"4,{sequence},{round(seconds * 1e6)},-;NVRM: Xid (PCI:0000:1b:00): {xid}, {text}\n"


class AgentRunOnLog:
    """One run of an agent beside a log that continues."""

    def __init__(self, path: Path) -> None:
        self.now = NOW
        self.observations: tuple[ErrorObservation, ...] = ()
        self.watch = KernelLogWatch(path, BOOT, now=lambda: self.now, wall=lambda: WALL)

    def resume(self, stored: LogPosition | None) -> list[tuple[int, bool]]:
        held = self.watch.resume(stored)
        self.read()
        return self._xids((*held, *self.observations))

    def read(self) -> list[tuple[int, bool]]:
        """Return code and history flag of each Xid in all available records."""
        self.observations = self.watch.read()
        while self.watch.log.more:
            self.observations += self.watch.read()
        self.observations += self.watch.read()
        return self._xids(self.observations)

    def _xids(self, observations: Iterable[ErrorObservation]) -> list[tuple[int, bool]]:
        return [(each.code, each.historical) for each in observations if each.kind == XID]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(line(10, 13) + "6,11,1,-;usb 1-1: new device\n" + line(12, 48))
    return path


@pytest.fixture
def agent_run(path: Path) -> Iterator[AgentRunOnLog]:
    agent_run = AgentRunOnLog(path)
    yield agent_run
    agent_run.watch.close()


def test_at_the_first_start_the_buffer_is_historical(agent_run: AgentRunOnLog, path: Path) -> None:
    assert agent_run.resume(None) == [(13, True), (48, True)]

    with path.open("a") as log:
        log.write(line(13, 79))
    assert agent_run.read() == [(79, False)]
    assert agent_run.watch.position == LogPosition(BOOT, 13)


def test_after_a_restart_only_new_records_are_reported(agent_run: AgentRunOnLog) -> None:
    """After a restart only records above the stored sequence number are reported."""
    assert agent_run.resume(LogPosition(BOOT, 10)) == [(48, False)]


def test_after_a_reboot_the_whole_buffer_is_new(agent_run: AgentRunOnLog) -> None:
    """After a reboot all records of the new boot are new, whatever the stored sequence number."""
    assert agent_run.resume(LogPosition(OTHER, 400_000)) == [(13, False), (48, False)]


def test_no_record_is_read_before_the_position_is_set(agent_run: AgentRunOnLog) -> None:
    """Before the position is set no record is read, because the kernel buffers them."""
    assert agent_run.read() == []
    assert agent_run.watch.position is None


@pytest.mark.parametrize(
    ("stored", "buffered"),
    [(None, [(13, True), (48, True)]), (LogPosition(BOOT, 10), [(48, False)]), (LogPosition(BOOT, 12), [])],
)
def test_a_late_store_does_not_delay_new_records(
    agent_run: AgentRunOnLog, path: Path, stored: LogPosition | None, buffered: list[tuple[int, bool]]
) -> None:
    """New records are reported before the store is read; older records wait for the stored position."""
    agent_run.watch.begin()
    assert agent_run.read() == []
    with path.open("a") as log:
        log.write(line(13, 94))
    assert agent_run.read() == [(94, False)]

    held = agent_run.watch.resume(stored)
    assert [(observation.code, observation.historical) for observation in held] == buffered
    assert agent_run.watch.position == LogPosition(BOOT, 13)


def test_lost_records_are_reported_as_an_overrun(agent_run: AgentRunOnLog, path: Path) -> None:
    assert agent_run.resume(LogPosition(BOOT, 3)) == [(13, False), (48, False)]
    (overrun,) = [observation for observation in agent_run.observations if observation.kind == OVERRUN]
    assert (overrun.times, overrun.text) == (1, "6 records of the kernel log were overwritten before they were read")

    with path.open("a") as log:
        log.write(line(20) + line(30))
    agent_run.read()
    (overrun,) = [observation for observation in agent_run.observations if observation.kind == OVERRUN]
    assert (overrun.times, overrun.text) == (2, "16 records of the kernel log were overwritten before they were read")
    assert agent_run.watch.log.overruns == 3


def test_equal_lines_are_merged(agent_run: AgentRunOnLog, path: Path) -> None:
    """Equal lines become few observations that keep the count and the times of the first and last line."""
    agent_run.resume(LogPosition(BOOT, 12))
    storm = 2 * MAX_LINES
    with path.open("a") as log:
        log.write(line(13))
    agent_run.read()
    with path.open("a") as log:
        log.writelines(line(14 + number, 95, "Uncontained", NOW - 40 + number / 1000) for number in range(storm))
    agent_run.read()

    assert sum(observation.times for observation in agent_run.observations) == storm
    assert len(agent_run.observations) <= 4
    assert [observation.text for observation in agent_run.observations] == ["Uncontained"] * len(agent_run.observations)
    assert agent_run.observations[-1].at - agent_run.observations[0].since == pytest.approx(storm / 1000, abs=0.1)


def test_merged_lines_of_several_instances_have_no_instance(agent_run: AgentRunOnLog, path: Path) -> None:
    """An error of two instances of a GPU names no instance."""
    agent_run.resume(LogPosition(BOOT, 12))
    with path.open("a") as log:
        for sequence, instance in ((13, "02"), (14, "02"), (15, "01 GPU-CI:00")):
            text = f"NVRM: Xid (PCI:0000:1b:00 GPU-I:{instance}): {94 if sequence < 15 else 95}, Contained"
            log.write(f"4,{sequence},{round(NOW * 1e6)},-;{text}\n")
        log.write(f"4,16,{round(NOW * 1e6)},-;NVRM: Xid (PCI:0000:1b:00 GPU-I:02): 95, Uncontained\n")
    agent_run.read()

    assert [
        (observation.code, observation.times, observation.gpu_instance_id) for observation in agent_run.observations
    ] == [(94, 2, 2), (95, 2, None)]


def test_a_line_has_the_time_of_the_kernel(agent_run: AgentRunOnLog, path: Path) -> None:
    """A line has the kernel's time, not the time at which a paused agent reads it."""
    agent_run.resume(LogPosition(BOOT, 12))
    with path.open("a") as log:
        log.write(line(13, seconds=NOW))
    agent_run.read()
    assert (agent_run.observations[0].at, agent_run.observations[0].wall) == (NOW, WALL)

    agent_run.now = NOW + 60
    with path.open("a") as log:
        log.write(line(14, 13, seconds=NOW + 2))
    agent_run.read()
    assert [observation.at for observation in agent_run.observations] == pytest.approx([NOW + 2], abs=0.1)
    assert [observation.wall for observation in agent_run.observations] == pytest.approx([WALL - 58], abs=0.1)


def test_clock_drift_is_corrected() -> None:
    """The drift between the kernel's timestamps and the agent's clock is measured with fresh records."""
    now = [1000.0]
    clock = KernelClock(lambda: now[0])
    clock.measure(1000.0)
    for day in range(1, 100):
        now[0] = 1000 + 86400.0 * day
        clock.measure(now[0] - 3.0 * day)

    assert clock.to_boot_clock(now[0] - 300.0) == pytest.approx(now[0], abs=4.0)
    now[0] += 3600.0
    clock.measure(now[0] - 3600.0 - 297.0)  # read an hour late
    assert clock.to_boot_clock(now[0] - 3600.0 - 297.0) == pytest.approx(now[0] - 3600.0, abs=4.0)


def test_a_host_without_a_log_reports_no_record(tmp_path: Path) -> None:
    agent_run = AgentRunOnLog(tmp_path / "none")
    assert agent_run.resume(None) == []
    assert (agent_run.watch.log.up, agent_run.watch.position) == (None, None)


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
