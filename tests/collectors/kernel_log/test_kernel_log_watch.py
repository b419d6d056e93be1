"""Each line of the kernel log counts once, over restarts and reboots; what was there before the agent is history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpumon.collectors.kernel_log.log_time import KernelClock
from gpumon.collectors.kernel_log.reader import MAX_LINES
from gpumon.collectors.kernel_log.watch import KernelLogWatch
from gpumon.model.error_event import OVERRUN, XID, ErrorObservation, LogPosition

BOOT, OTHER = "boot-1", "boot-0"
NOW, WALL = 5000.0, 2e9


def line(sequence: int, xid: int = 79, text: str = "GPU has fallen off the bus.", seconds: float = NOW) -> str:
    return f"4,{sequence},{round(seconds * 1e6)},-;NVRM: Xid (PCI:0000:1b:00): {xid}, {text}\n"


class AgentRunOnLog:
    """One life of an agent, beside a log that goes on."""

    def __init__(self, path: Path) -> None:
        self.told: list[ErrorObservation] = []
        self.now = NOW
        self.watch = KernelLogWatch(path, BOOT, self.told.extend, now=lambda: self.now, wall=lambda: WALL)

    def resumed(self, told: LogPosition | None) -> list[tuple[int, bool]]:
        self.watch.resume(told)
        return self.read()

    def read(self) -> list[tuple[int, bool]]:
        """Xid, and whether it is history, of what is told by all there is to read."""
        self.told.clear()
        self.watch.read()
        while self.watch.log.more:
            self.watch.read()
        self.watch.read()
        return [(one.code, one.historical) for one in self.told if one.kind == XID]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(line(10, 13) + "6,11,1,-;usb 1-1: new device\n" + line(12, 48))
    return path


@pytest.fixture
def life(path: Path) -> Iterator[AgentRunOnLog]:
    life = AgentRunOnLog(path)
    yield life
    life.watch.close()


def test_at_first_installation_the_ring_is_history(life: AgentRunOnLog, path: Path) -> None:
    """It is told as history; what comes after is news."""
    assert life.resumed(None) == [(13, True), (48, True)]

    with path.open("a") as log:
        log.write(line(13, 79))
    assert life.read() == [(79, False)]
    assert life.watch.position == LogPosition(BOOT, 13)


def test_after_a_restart_only_what_came_meanwhile_is_told(life: AgentRunOnLog) -> None:
    """By sequence: what the agent before told is not told again, what it did not is news."""
    assert life.resumed(LogPosition(BOOT, 10)) == [(48, False)]


def test_after_a_reboot_the_whole_ring_is_news(life: AgentRunOnLog) -> None:
    """The faults of the boot itself included, whatever the sequence was in the boot before."""
    assert life.resumed(LogPosition(OTHER, 400_000)) == [(13, False), (48, False)]


def test_nothing_is_read_before_it_is_known_where_to_go_on(life: AgentRunOnLog) -> None:
    """The kernel keeps what waits."""
    assert life.read() == []
    assert life.watch.position is None


@pytest.mark.parametrize(
    ("told", "ring"),
    [(None, [(13, True), (48, True)]), (LogPosition(BOOT, 10), [(48, False)]), (LogPosition(BOOT, 12), [])],
)
def test_a_store_that_is_late_keeps_no_news_back(
    life: AgentRunOnLog, path: Path, told: LogPosition | None, ring: list[tuple[int, bool]]
) -> None:
    """What comes is told; what stood there waits until it is known whether it was told before."""
    life.watch.begin()
    assert life.read() == []
    with path.open("a") as log:
        log.write(line(13, 94))
    assert life.read() == [(94, False)]

    life.told.clear()
    life.watch.resume(told)
    assert [(one.code, one.historical) for one in life.told] == ring
    assert life.watch.position == LogPosition(BOOT, 13)


def test_lost_records_are_told_as_an_overrun(life: AgentRunOnLog, path: Path) -> None:
    """Those overwritten while it ran, and those overwritten while no agent did."""
    assert life.resumed(LogPosition(BOOT, 3)) == [(13, False), (48, False)]
    (overrun,) = [one for one in life.told if one.kind == OVERRUN]
    assert (overrun.times, overrun.text) == (1, "6 records of the kernel log were overwritten before they were read")

    with path.open("a") as log:
        log.write(line(20) + line(30))
    life.read()
    (overrun,) = [one for one in life.told if one.kind == OVERRUN]
    assert (overrun.times, overrun.text) == (2, "16 records of the kernel log were overwritten before they were read")
    assert life.watch.log.overruns == 3


def test_equal_lines_are_told_together(life: AgentRunOnLog, path: Path) -> None:
    """A storm costs little more than its reading, and loses neither count nor the time of its ends."""
    life.resumed(LogPosition(BOOT, 12))
    storm = 2 * MAX_LINES
    with path.open("a") as log:
        log.write(line(13))
    life.read()
    with path.open("a") as log:
        log.writelines(line(14 + number, 95, "Uncontained", NOW - 40 + number / 1000) for number in range(storm))
    life.read()

    assert sum(one.times for one in life.told) == storm
    assert len(life.told) <= 4
    assert [one.text for one in life.told] == ["Uncontained"] * len(life.told)
    assert life.told[-1].at - life.told[0].since == pytest.approx(storm / 1000, abs=0.1)


def test_lines_of_several_instances_name_none(life: AgentRunOnLog, path: Path) -> None:
    """An error of two parts of a GPU is not pinned on one of them."""
    life.resumed(LogPosition(BOOT, 12))
    with path.open("a") as log:
        for sequence, instance in ((13, "02"), (14, "02"), (15, "01 GPU-CI:00")):
            text = f"NVRM: Xid (PCI:0000:1b:00 GPU-I:{instance}): {94 if sequence < 15 else 95}, Contained"
            log.write(f"4,{sequence},{round(NOW * 1e6)},-;{text}\n")
        log.write(f"4,16,{round(NOW * 1e6)},-;NVRM: Xid (PCI:0000:1b:00 GPU-I:02): 95, Uncontained\n")
    life.read()

    assert [(one.code, one.times, one.gpu_instance_id) for one in life.told] == [(94, 2, 2), (95, 2, None)]


def test_a_line_is_dated_by_the_kernel(life: AgentRunOnLog, path: Path) -> None:
    """Not by when it was read: a paused agent reads late."""
    life.resumed(LogPosition(BOOT, 12))
    with path.open("a") as log:
        log.write(line(13, seconds=NOW))
    life.read()
    assert (life.told[0].at, life.told[0].wall) == (NOW, WALL)

    life.now = NOW + 60
    with path.open("a") as log:
        log.write(line(14, 13, seconds=NOW + 2))
    life.read()
    assert [one.at for one in life.told] == pytest.approx([NOW + 2], abs=0.1)
    assert [one.wall for one in life.told] == pytest.approx([WALL - 58], abs=0.1)


def test_the_clocks_may_come_apart() -> None:
    """NTP corrects ours and not the kernel's stamps: over months that is minutes, and is learnt from fresh records."""
    now = [1000.0]
    clock = KernelClock(lambda: now[0])
    clock.measure(1000.0)
    for day in range(1, 100):
        now[0] = 1000 + 86400.0 * day
        clock.measure(now[0] - 3.0 * day)

    assert clock.at(now[0] - 300.0) == pytest.approx(now[0], abs=4.0)
    now[0] += 3600.0
    clock.measure(now[0] - 3600.0 - 297.0)  # read an hour late
    assert clock.at(now[0] - 3600.0 - 297.0) == pytest.approx(now[0] - 3600.0, abs=4.0)


def test_a_host_without_a_log_is_quiet(tmp_path: Path) -> None:
    """Nothing is told, and no position is made up."""
    life = AgentRunOnLog(tmp_path / "none")
    assert life.resumed(None) == []
    assert (life.watch.log.up, life.watch.position) == (None, None)
