"""Each error of NVML and the kernel log is counted once, whenever the agent is killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loops import turn_for, turn_until, turn_until_equal
from stores import StoringAgent

from gpumon.clock import boot_clock
from gpumon.model.error_event import NVML, SXID, XID, ErrorObservation
from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import DriverStatus, GpuReading, PciBus, Snapshot
from gpumon.probe.core.probe_metrics import INITIAL
from gpumon.probe.core.state import ProbeState
from gpumon.runner.rank_process import KilledRanks
from gpumon.services.event_recorder import EventRecorder
from gpumon.services.write_behind import PATIENCE_SECONDS
from gpumon.state.messages import Tick
from gpumon.state.report import Report
from gpumon.store.store import Store

BUS_ID, UUID = "00000000:1B:00.0", "GPU-1"
FALLEN = "79, pid=812, name=python3, GPU has fallen off the bus."
UNNUMBERED = "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"


class KernelLogFile:
    """The kernel log of one boot."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sequence = -1
        self.path.touch()

    def append(self, *texts: str, times: int = 1) -> None:
        lines = []
        for text in texts * times:
            self._sequence += 1
            lines.append(f"4,{self._sequence},{int(boot_clock() * 1e6)},-;{text}\n")
        with self.path.open("a") as log:
            log.writelines(lines)

    def xid(self, text: str = FALLEN, times: int = 1) -> None:
        self.append(f"NVRM: Xid (PCI:0000:1b:00): {text}", times=times)


class EventRecorderOnly(StoringAgent):
    """An agent with only an event recorder, persistence and a Report."""

    def __init__(self, folder: Path, log: Path | None, boot_id: str = "boot-1", *, reports_gpu: bool = True) -> None:
        super().__init__(folder / "gpumon.db", Report(started=0.0, probe=ProbeState(metrics=INITIAL)))
        self.reported_xids: list[tuple[str, int]] = []
        self.killed = KilledRanks()
        self.recorder = EventRecorder(
            self.loop,
            self.persistence.writes,
            log,
            boot_id,
            latest=lambda: self.monitor.latest,
            on_xid=lambda bus_id, xid: self.reported_xids.append((bus_id, xid)),
            is_own=self.killed.has_caused,
        )
        self.persistence.start(on_restored=self.recorder.restore)
        self.recorder.start()
        if reports_gpu:
            self.report_gpu()

    def report_gpu(self) -> None:
        gpu = GpuReading(bus_id=BUS_ID, uuid=UUID, index=0, gpu=Gpu(name="NVIDIA H100", serial="165422"), watched=1.0)
        self.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
        self.monitor.take(DriverStatus(up=True, driver="580.95.05"))
        self.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={"fast": 0.1}, gpus=(gpu,), present=(BUS_ID,)))

    def nvml(self, xid: int = 79) -> None:
        now = boot_clock()
        self.recorder.add_nvml_event(
            ErrorObservation(kind=XID, code=xid, bus_id=BUS_ID, uuid=UUID, at=now, since=now, wall=2e9, source=NVML)
        )

    def counts(self) -> dict[str, float]:
        report = self.monitor.latest
        xids = {f"{code}": count for codes in report.errors.xids.values() for code, (count, _) in codes.items()}
        return xids | dict(report.node.nvswitch_errors_total or {})

    def wait_for_counts(self, counts: dict[str, float]) -> None:
        """Wait until the Report has exactly these counts."""
        turn_until(self.loop, lambda: self.monitor.latest.agent.restored)
        turn_until_equal(self.loop, self.counts, counts)

    def until(self, done: Callable[[], bool]) -> None:
        turn_until(self.loop, done)

    def stop(self) -> None:
        self.loop.call_after(0.2, self.loop.stop)
        self.loop.run()
        self.recorder.stop()
        self.persistence.close()

    def kill(self) -> None:
        """Kill the agent: only what was submitted to the store is stored."""
        self.persistence.close()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals at which a plain file is read and an event is updated."""
    monkeypatch.setattr("gpumon.services.event_recorder.READ_SECONDS", 0.05)
    monkeypatch.setattr("gpumon.services.event_recorder.UPDATE_SECONDS", 0.05)


@pytest.fixture
def log(tmp_path: Path) -> KernelLogFile:
    return KernelLogFile(tmp_path / "kmsg")


@pytest.fixture
def start(tmp_path: Path, log: KernelLogFile) -> Iterator[Callable[..., EventRecorderOnly]]:
    agents: list[EventRecorderOnly] = []

    def begin(path: Path | None = log.path, boot_id: str = "boot-1", *, reports_gpu: bool = True) -> EventRecorderOnly:
        agents.append(EventRecorderOnly(tmp_path, path, boot_id, reports_gpu=reports_gpu))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.recorder.log.close()
        agent.persistence.close()


def test_an_error_of_both_sources_counts_once(start: Callable[..., EventRecorderOnly], log: KernelLogFile) -> None:
    """An error of NVML is counted, its kernel log line adds the text, and a repeat is counted again."""
    agent = start()
    agent.wait_for_counts({})
    agent.nvml()
    agent.wait_for_counts({"79": 1.0})
    log.xid()
    agent.until(lambda: agent.monitor.latest.events[-1].text != "")
    (event,) = agent.monitor.latest.events
    assert (event.count, event.sources, event.uuid) == (1, ("nvml", "kmsg"), UUID)
    assert event.text == "GPU has fallen off the bus."

    log.xid()
    agent.wait_for_counts({"79": 2.0})
    agent.nvml()
    turn_for(agent.loop, 0.5)
    assert agent.counts() == {"79": 2.0}


def test_an_xid_of_nvml_waits_for_its_line(start: Callable[..., EventRecorderOnly], log: KernelLogFile) -> None:
    """The first record of an error has the text of the kernel log, although NVML reports it first."""
    agent = start()
    agent.wait_for_counts({})
    agent.nvml(64)
    log.xid("64, pid='<unknown>', name=<unknown>, Row Remapper: Row is already pending remapping")
    agent.until(lambda: bool(agent.monitor.latest.events))
    assert "already pending" in agent.monitor.latest.events[0].text
    turn_for(agent.loop, 0.5)
    assert agent.counts() == {"64": 1.0}


def test_an_xid_that_waits_for_its_line_is_stored_at_a_stop(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    """The next agent counts it once."""
    agent = start()
    agent.wait_for_counts({})
    agent.nvml(79)
    agent.recorder.stop()
    agent.persistence.close()
    start(log.path).wait_for_counts({"79": 1.0})


def test_xids_of_killed_ranks_are_not_counted(start: Callable[..., EventRecorderOnly], log: KernelLogFile) -> None:
    """Xids that the agent causes by killing a rank are not counted, those of a job on the same GPU are."""
    agent = start()
    agent.wait_for_counts({})
    agent.killed.add(812, UUID)
    agent.nvml(45)
    log.xid("45, pid=812, name=python3, Ch 00000008", times=3)
    log.xid("45, pid=99, name=train, Ch 00000008", times=2)
    log.xid("13, pid=812, name=python3, Graphics Exception")
    agent.wait_for_counts({"45": 2.0, "13": 1.0})


def test_nvml_errors_count_without_a_kernel_log(start: Callable[..., EventRecorderOnly]) -> None:
    agent = start(None)
    agent.wait_for_counts({})
    for xid in (79, 79, 13, 999):
        agent.nvml(xid)
    agent.wait_for_counts({"79": 2.0, "13": 1.0, "999": 1.0})
    assert all(event.sources == ("nvml",) for event in agent.monitor.latest.events)


def test_an_unnumbered_nvml_error_has_the_number_of_the_kernel_log(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    agent = start()
    agent.wait_for_counts({})
    log.xid("201, something new")
    agent.nvml(999)
    agent.wait_for_counts({"201": 1.0})
    turn_for(agent.loop, 0.5)
    assert agent.counts() == {"201": 1.0}


def test_a_message_without_an_xid_counts_once_nvml_loses_the_gpu(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    """A message "off the bus" without an Xid counts when NVML reports the GPU as lost, and not while NVML reads it."""
    agent = start()
    agent.wait_for_counts({})
    log.append(UNNUMBERED)
    log.xid("48, DBE")
    agent.wait_for_counts({"48": 1.0})
    turn_for(agent.loop, 0.2)
    assert agent.counts() == {"48": 1.0}

    lost = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=2.0, wall=2e9, durations={}, gpus=(lost,), present=(BUS_ID,)))
    agent.wait_for_counts({"48": 1.0, "79": 1.0})


def test_a_gpu_that_cannot_be_initialised_counts_once_nvml_fails_to_open_it(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    """The driver's "RmInitAdapter failed!" counts as Xid 143, and does not replace "off the bus" of the same GPU."""
    agent = start()
    agent.wait_for_counts({})
    log.append(UNNUMBERED)
    log.append("NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1784)", times=3)
    log.xid("48, DBE")
    agent.wait_for_counts({"48": 1.0})
    failed = GpuReading(bus_id=BUS_ID, fault="init_failed", error="IRQ issue")
    agent.monitor.take(Snapshot(ended_at=2.0, wall=2e9, durations={}, gpus=(failed,), present=(BUS_ID,)))
    agent.wait_for_counts({"48": 1.0, "79": 1.0, "143": 1.0})


def test_a_message_without_an_xid_is_ignored_if_nvml_reads_the_gpu(
    start: Callable[..., EventRecorderOnly],
    log: KernelLogFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("gpumon.services.event_recorder.WITNESS_SECONDS", 0.0)
    agent = start()
    agent.wait_for_counts({})
    log.append(UNNUMBERED)
    agent.until(lambda: "NVML does not report the GPU as lost" in caplog.text)

    lost = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=2.0, wall=2e9, durations={}, gpus=(lost,), present=(BUS_ID,)))
    turn_for(agent.loop, 0.2)
    assert agent.counts() == {}


def test_each_error_counts_once_despite_kills(start: Callable[..., EventRecorderOnly], log: KernelLogFile) -> None:
    """Kills before and after a line is read, and lines logged while no agent runs, count no error twice."""
    agent = start()
    agent.wait_for_counts({})
    agent.nvml()
    agent.wait_for_counts({"79": 1.0})
    agent.kill()
    log.xid()

    agent = start()
    agent.until(
        lambda: "kmsg" in "".join(agent.monitor.latest.events[-1].sources if agent.monitor.latest.events else ())
    )
    assert agent.counts() == {"79": 1.0}
    agent.kill()
    log.xid("48, DBE", times=3)
    log.append(SWITCH)

    agent = start()
    agent.wait_for_counts({"79": 1.0, "48": 3.0, "00000000:C1:00.0,20034": 1.0})
    agent.stop()

    agent = start()
    turn_for(agent.loop, 0.5)
    agent.wait_for_counts({"79": 1.0, "48": 3.0, "00000000:C1:00.0,20034": 1.0})
    assert len(agent.monitor.latest.events) == 3


def test_lines_from_before_the_installation_are_history(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    log.xid()
    log.append(SWITCH)
    agent = start()
    agent.until(lambda: len(agent.monitor.latest.events) == 2)
    assert all(event.historical for event in agent.monitor.latest.events)
    assert agent.counts() == {}

    log.xid()
    agent.wait_for_counts({"79": 1.0})
    agent.stop()
    agent = start()
    agent.wait_for_counts({"79": 1.0})


def test_lines_of_a_new_boot_are_counted_from_the_first(
    start: Callable[..., EventRecorderOnly], tmp_path: Path
) -> None:
    """An error during the boot is counted, and its event has the stored uuid of the lost GPU."""
    agent = start()
    agent.wait_for_counts({})
    agent.persistence.tick()
    agent.stop()

    booted = KernelLogFile(tmp_path / "kmsg-2")
    booted.xid()
    agent = start(booted.path, "boot-2", reports_gpu=False)
    agent.wait_for_counts({"79": 1.0})
    (event,) = agent.monitor.latest.events
    assert (event.uuid, event.historical) == (UUID, False)

    agent.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
    agent.monitor.take(DriverStatus(up=True, driver="580.95.05"))
    lost = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={}, gpus=(lost,), present=(BUS_ID,)))
    (state,) = agent.monitor.latest.gpus
    assert (state.uuid, state.fault, state.gpu.name, state.gpu.serial) == (UUID, "lost", "NVIDIA H100", "165422")
    assert (state.gpu.xid_errors_total or {})["79"] == 1.0


def test_a_replaced_board_has_its_own_uuid(start: Callable[..., EventRecorderOnly], tmp_path: Path) -> None:
    with Store.open(tmp_path / "gpumon.db"):
        pass
    agent = start(None)
    agent.wait_for_counts({})
    agent.persistence.tick()
    agent.stop()

    agent = start(None, reports_gpu=False)
    agent.wait_for_counts({})
    agent.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
    lost = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={}, gpus=(lost,), present=(BUS_ID,)))
    assert [state.uuid for state in agent.monitor.latest.gpus] == [UUID]

    other = GpuReading(bus_id=BUS_ID, uuid="GPU-2", index=0, gpu=Gpu(name="NVIDIA H200"), watched=1.0)
    agent.monitor.take(Snapshot(ended_at=2.0, wall=2e9, durations={}, gpus=(other,), present=(BUS_ID,)))
    assert [(state.uuid, state.gpu.name, state.gpu.serial) for state in agent.monitor.latest.gpus] == [
        ("GPU-2", "NVIDIA H200", None)
    ]


def test_a_storm_of_errors_is_one_row_for_each_error(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile, tmp_path: Path
) -> None:
    """Many lines of one error are one row, and the loop continues while they are read."""
    agent = start()
    agent.wait_for_counts({})
    log.xid("95, Uncontained: L2TAG (0x2). RST: Yes", times=50_000)
    log.append(*(f"NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=x, Fault at {number:#x}" for number in range(50_000)))
    turns = 0

    def done() -> bool:
        nonlocal turns
        turns += 1
        agent.monitor.take(Tick())
        return agent.counts() == {"95": 50_000.0, "31": 50_000.0}

    agent.until(done)
    agent.stop()

    assert turns >= 25
    size = sum(path.stat().st_size for path in tmp_path.glob("gpumon.db*"))
    assert size < 1_000_000
    with sqlite3.connect(tmp_path / "gpumon.db") as stored:
        assert stored.execute("SELECT count(*) FROM error_events").fetchone() == (2,)


def test_recent_xids_of_the_kernel_log_are_reported(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    """A recent Xid of the kernel log is reported to the supervisor, and history is not."""
    log.xid("119, Timeout waiting for RPC")
    agent = start()
    agent.until(lambda: len(agent.monitor.latest.events) == 1)
    assert agent.reported_xids == []

    log.xid("120, GSP task exception")
    agent.wait_for_counts({"120": 1.0})
    assert agent.reported_xids == [(BUS_ID, 120)]


def test_errors_are_reported_without_a_store(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are reported after the wait for the store; earlier lines are stored later as history."""
    monkeypatch.setattr("gpumon.services.event_recorder.PATIENCE_SECONDS", 0.2)
    assert PATIENCE_SECONDS > 1.0
    log.xid("48, DBE")
    (tmp_path / "gpumon.db").mkdir()
    agent = start()
    agent.nvml()
    agent.until(lambda: agent.counts() == {"79": 1.0})
    log.xid("94, Contained")
    agent.until(lambda: agent.counts() == {"79": 1.0, "94": 1.0})

    (tmp_path / "gpumon.db").rmdir()
    agent.until(lambda: {event.code for event in agent.monitor.latest.events} == {48, 79, 94})
    agent.wait_for_counts({"79": 1.0, "94": 1.0})
    agent.until(lambda: agent.persistence.error is None)
    agent.stop()
    agent = start()
    agent.wait_for_counts({"79": 1.0, "94": 1.0})
    assert sorted((event.code, event.historical) for event in agent.monitor.latest.events) == [
        (48, True),
        (79, False),
        (94, False),
    ]


def test_events_of_switches_are_named_by_their_address(
    start: Callable[..., EventRecorderOnly], log: KernelLogFile
) -> None:
    """The detail lines of an SXid belong to one event."""
    agent = start()
    agent.wait_for_counts({})
    log.append(
        SWITCH, SWITCH.replace("Fatal, Link 48", "Severity 1 Engine instance 48"), SWITCH.replace("Fatal", "Data {")
    )
    agent.wait_for_counts({"00000000:C1:00.0,20034": 1.0})
    (event,) = agent.monitor.latest.events
    assert (event.kind, event.fatal, event.bus_id, event.uuid) == (SXID, True, "00000000:C1:00.0", None)
