"""The kernel's messages are read as they arrive, from the device or from a file or FIFO."""

from __future__ import annotations

import errno
import os
import selectors
from pathlib import Path

import pytest
from each_case import each_case

from gpumon.collectors.kernel_log.watch import MAX_LINES, KernelLog, Record, _parse

XID = b"4,812,9001234567,-;NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\n"
READ = Record(812, 9001.234567, "NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.")


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def record(sequence: int, text: str = "x") -> bytes:
    return b"4,%d,9001000000,-;%s\n" % (sequence, text.encode())


def sequences(log: KernelLog) -> list[int]:
    return [record.sequence for record in log.read()]


def test_each_record_is_read_once_from_the_oldest(tmp_path: Path) -> None:
    """Records from before the open come first, and the reader reports when it has read all of them."""
    path = tmp_path / "kmsg"
    path.write_bytes(XID)
    log = KernelLog(path)
    assert not log.caught_up
    assert log.read() == (READ,)
    assert log.caught_up

    append(path, b"6,813,9001300000,-;usb 1-1: new device\n")

    assert log.read() == (Record(813, 9001.3, "usb 1-1: new device"),)
    assert log.read() == ()
    assert (log.up, log.denied, log.overruns, log.last, log.fileno()) == (True, False, 0, 813, None)
    log.close()


def test_kernel_escapes_are_decoded(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(rb"4,1,1,-;NVRM: fallen\x0aNVRM: off \xc3\xa9 \x5cx" + b"\n")
    log = KernelLog(path)
    (record_read,) = log.read()

    assert record_read.text == "NVRM: fallen\nNVRM: off \u00e9 \\x"
    log.close()


def test_a_gap_is_an_overrun(tmp_path: Path) -> None:
    """Missing sequence numbers are lost records; intentionally filtered records are not."""
    path = tmp_path / "kmsg"
    path.write_bytes(record(1) + record(2) + record(5) + record(6) + record(9))
    log = KernelLog(path)
    log.last = 1

    assert sequences(log) == [2, 5, 6, 9]
    assert (log.overruns, log.lost) == (2, 4)
    log.close()


def test_no_log_is_neither_up_nor_denied() -> None:
    """Without a path no file is opened."""
    log = KernelLog(None)
    assert (log.read(), log.up, log.denied, log.caught_up, log.fileno()) == ((), None, False, False, None)


def test_a_folder_is_an_unreadable_log(tmp_path: Path) -> None:
    """A wrong path makes the kernel log unavailable and does not affect the agent."""
    log = KernelLog(tmp_path)
    assert (log.read(), log.up, log.denied, log.fileno()) == ((), False, False, None)


def test_partial_records_wait_for_their_end(tmp_path: Path) -> None:
    """A partial record waits for its end; continuation lines and malformed lines are ignored."""
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)

    append(path, XID[:30])
    assert log.read() == ()
    append(path, XID[30:] + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\nnot a record\n")

    assert log.read() == (READ,)
    log.close()


def test_a_selector_wakes_for_a_record_of_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = KernelLog(path)
    descriptor = log.fileno()
    assert descriptor is not None
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        append(path, XID)

        assert selector.select(60)
        assert log.read() == (READ,)
        assert not selector.select(0)
    log.close()


def test_a_storm_is_read_in_several_reads(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    append(path, b"".join(record(number) for number in range(3 * MAX_LINES)))

    pieces = [log.read() for _ in range(4)]

    assert [line.sequence for piece in pieces for line in piece] == list(range(3 * MAX_LINES))
    assert len(pieces[0]) < 1.5 * MAX_LINES
    log.close()


@pytest.mark.parametrize("content", [b"Nov 20 17:00:00 host kernel: usb\n" * 10 * MAX_LINES, b"\0" * (1 << 25)])
def test_a_file_that_is_not_a_kernel_log_is_read_in_pieces(content: bytes, tmp_path: Path) -> None:
    """A read of any other file is limited in size, and nothing of the file is kept."""
    path = tmp_path / "syslog"
    path.write_bytes(content)
    log = KernelLog(path)

    assert log.read() == ()
    assert log.more
    while log.more:
        log.read()
    append(path, b"\n" + XID)
    assert log.read() == (READ,)
    log.close()


def test_a_missing_log_is_not_denied(tmp_path: Path) -> None:
    """A missing log is neither up nor denied, and is read as soon as it exists."""
    path = tmp_path / "kmsg"
    log = KernelLog(path)
    assert (log.up, log.denied, log.read()) == (None, False, ())

    path.touch()
    log.read()
    append(path, XID)

    assert log.read() == (READ,)
    assert log.up
    log.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_missing_permission_for_the_log_is_reported(tmp_path: Path) -> None:
    """A log without permission is down and denied, and is read after permission is granted."""
    path = tmp_path / "kmsg"
    path.touch(mode=0o600)
    tmp_path.chmod(0o700)
    os.setegid(65534)
    os.seteuid(65534)
    try:
        log = KernelLog(path)
        assert (log.up, log.denied, log.read()) == (False, True, ())
    finally:
        os.seteuid(0)
        os.setegid(0)

    log.read()
    assert (log.up, log.denied) == (True, False)
    log.close()


@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="the kernel log cannot be written")
def test_a_record_of_a_process_in_the_real_device_has_no_text() -> None:
    """What a process writes to /dev/kmsg is a record with a sequence number, and is not read as the kernel's."""
    log = KernelLog(Path("/dev/kmsg"))
    read_all(log)
    with Path("/dev/kmsg").open("wb", buffering=0) as kernel:
        kernel.write(b"gpumon test\n")
        kernel.write(b"<3>gpumon test\n")

    records = read_all(log)

    assert len(records) >= 2
    assert not any("gpumon test" in record.text for record in records)
    log.close()


def read_all(log: KernelLog) -> list[Record]:
    records = list(log.read())
    while log.more:  # the buffer of the host may be large
        records += log.read()
    return records


@each_case("priority", [8, 11, 12, 15, 191])
def test_records_of_other_facilities_are_not_the_kernels(priority: int) -> None:
    """A record with another facility than the kernel's keeps its place in the log, and its text is not read."""
    assert _parse(b"%d,812,9001234567,-;NVRM: Xid (PCI:0000:18:00): 79, x" % priority) == Record(812, 9001.234567, "")


def test_an_overrun_is_counted_and_reading_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EPIPE, the kernel's error for overwritten records, is counted, and the remaining records are read."""
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)
    append(path, record(700))
    assert sequences(log) == [700]
    answers: list[bytes | OSError] = [
        BrokenPipeError(errno.EPIPE, "overwritten"),
        XID,
        BlockingIOError(errno.EAGAIN, "no more"),
    ]

    def read(_descriptor: int, _most: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    with monkeypatch.context() as kernel:
        kernel.setattr(os, "read", read)
        records = log.read()

    assert (records, log.overruns, log.lost, log.up) == ((READ,), 1, 111, True)
    log.close()


def test_a_failed_device_is_reopened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read error closes the log, which is down until the next read reopens it."""
    path = tmp_path / "kmsg"
    path.touch()
    log = KernelLog(path)

    def read(_descriptor: int, _most: int) -> bytes:
        raise OSError(errno.EIO, "failed")

    with monkeypatch.context() as kernel:
        kernel.setattr(os, "read", read)
        assert log.read() == ()
        assert log.up is False

    log.read()
    append(path, XID)
    assert log.read() == (READ,)
    log.close()
