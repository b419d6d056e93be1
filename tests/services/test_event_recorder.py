"""Each error of NVML and the kernel log is counted once, whenever the agent is killed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loops import turn_for, turn_until, turn_until_equal

from gpumon.clock import boot_clock
from gpumon.model.error_event import SXID
from gpumon.model.gpu import Gpu
from gpumon.model.snapshot import DriverStatus, GpuReading, PciBus, Snapshot, XidEvent
from gpumon.probe.core.metrics import INITIAL
from gpumon.probe.core.state import ProbeState
from gpumon.services.event_recorder import EventRecorder
from gpumon.services.persistence import Persistence
from gpumon.services.write_behind import PATIENCE_SECONDS
from gpumon.state.messages import Tick
from gpumon.state.monitor import Monitor
from gpumon.state.reducer_settings import ReducerSettings
from gpumon.state.report import Report
from gpumon.store.retention import Retention
from gpumon.store.store import Store
from gpumon.supervisor.loop import Loop

BUS_ID, UUID = "00000000:1B:00.0", "GPU-1"
FALLEN = "79, pid=812, name=python3, GPU has fallen off the bus."
SWITCH = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 48 LTSSM Fault Up"


class Log:
    """A kernel log of one boot."""

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


class Agent:
    """An agent with nothing but its event recorder, its persistence and its Report."""

    def __init__(self, folder: Path, log: Path | None, boot_id: str = "boot-1", *, sees_gpu: bool = True) -> None:
        self.loop = Loop()
        self.monitor = Monitor(Report(started=0.0, probe=ProbeState(metrics=INITIAL)), ReducerSettings())
        self.silent: list[tuple[str, int]] = []
        self.persistence = Persistence(
            self.loop,
            folder / "gpumon.db",
            Retention(),
            "allreduce",
            publish=self.monitor.take,
            latest=lambda: self.monitor.latest,
        )
        self.recorder = EventRecorder(
            self.loop,
            self.persistence.writes,
            log,
            boot_id,
            latest=lambda: self.monitor.latest,
            on_xid=lambda bus_id, xid: self.silent.append((bus_id, xid)),
        )
        self.persistence.start(on_restored=self.recorder.restore)
        self.recorder.start()
        if sees_gpu:
            self.see_gpu()

    def see_gpu(self) -> None:
        gpu = GpuReading(bus_id=BUS_ID, uuid=UUID, index=0, gpu=Gpu(name="NVIDIA H100", serial="165422"), watched=1.0)
        self.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
        self.monitor.take(DriverStatus(up=True, driver="580.95.05"))
        self.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={"fast": 0.1}, gpus=(gpu,), present=(BUS_ID,)))

    def nvml(self, xid: int = 79) -> None:
        self.recorder.add_nvml_event(XidEvent(xid=xid, bus_id=BUS_ID, uuid=UUID, at=boot_clock(), wall=2e9))

    def counts(self) -> dict[str, float]:
        report = self.monitor.latest
        xids = {f"{code}": count for codes in report.internal.xids.values() for code, (count, _) in codes.items()}
        return xids | dict(report.node.nvswitch_errors_total or {})

    def reports(self, counts: dict[str, float]) -> None:
        """Wait until the Report has exactly these counts."""
        turn_until(self.loop, lambda: self.monitor.latest.internal.restored)
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
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "kmsg")


@pytest.fixture
def start(tmp_path: Path, log: Log) -> Iterator[Callable[..., Agent]]:
    agents: list[Agent] = []

    def begin(path: Path | None = log.path, boot_id: str = "boot-1", *, sees_gpu: bool = True) -> Agent:
        agents.append(Agent(tmp_path, path, boot_id, sees_gpu=sees_gpu))
        return agents[-1]

    yield begin
    for agent in agents:
        agent.recorder.log.close()
        agent.persistence.close()


def test_both_sources_tell_of_one_error(start: Callable[..., Agent], log: Log) -> None:
    """The error of NVML counts, the line of the kernel log adds its text, and a repeat counts again."""
    agent = start()
    agent.reports({})
    agent.nvml()
    agent.reports({"79": 1.0})
    log.xid()
    agent.until(lambda: agent.monitor.latest.events[-1].text != "")
    (event,) = agent.monitor.latest.events
    assert (event.count, event.sources, event.uuid) == (1, ("nvml", "kmsg"), UUID)
    assert event.text == "GPU has fallen off the bus."

    log.xid()
    agent.reports({"79": 2.0})
    agent.nvml()
    turn_for(agent.loop, 0.5)
    assert agent.counts() == {"79": 2.0}


def test_without_a_kernel_log_nvml_counts_alone(start: Callable[..., Agent]) -> None:
    """NVML's errors are counted, with repeats and with Xids that NVML has no number for."""
    agent = start(None)
    agent.reports({})
    for xid in (79, 79, 13, 999):
        agent.nvml(xid)
    agent.reports({"79": 2.0, "13": 1.0, "999": 1.0})
    assert all(event.sources == ("nvml",) for event in agent.monitor.latest.events)


def test_the_kernel_has_the_number_that_nvml_has_not(start: Callable[..., Agent], log: Log) -> None:
    """An error that NVML cannot name is counted once, with the number of the kernel log."""
    agent = start()
    agent.reports({})
    log.xid("201, something new")
    agent.nvml(999)
    agent.reports({"201": 1.0})
    turn_for(agent.loop, 0.5)
    assert agent.counts() == {"201": 1.0}


def test_killed_anywhere_it_counts_once(start: Callable[..., Agent], log: Log) -> None:
    """Kills before and after the line is read, and lines logged while no agent runs, count no error twice."""
    agent = start()
    agent.reports({})
    agent.nvml()
    agent.reports({"79": 1.0})
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
    agent.reports({"79": 1.0, "48": 3.0, "00000000:C1:00.0,20034": 1.0})
    agent.stop()

    agent = start()
    turn_for(agent.loop, 0.5)
    agent.reports({"79": 1.0, "48": 3.0, "00000000:C1:00.0,20034": 1.0})
    assert len(agent.monitor.latest.events) == 3


def test_the_first_installation_finds_history(start: Callable[..., Agent], log: Log) -> None:
    """Lines from before the installation are stored and not counted; a repeat is counted."""
    log.xid()
    log.append(SWITCH)
    agent = start()
    agent.until(lambda: len(agent.monitor.latest.events) == 2)
    assert all(event.historical for event in agent.monitor.latest.events)
    assert agent.counts() == {}

    log.xid()
    agent.reports({"79": 1.0})
    agent.stop()
    agent = start()
    agent.reports({"79": 1.0})


def test_a_reboot_is_news_from_its_first_line_on(start: Callable[..., Agent], tmp_path: Path) -> None:
    """A GPU that fell off the bus during the boot has its stored uuid in the event and in the Report."""
    agent = start()
    agent.reports({})
    agent.persistence.tick()
    agent.stop()

    booted = Log(tmp_path / "kmsg-2")
    booted.xid()
    agent = start(booted.path, "boot-2", sees_gpu=False)
    agent.reports({"79": 1.0})
    (event,) = agent.monitor.latest.events
    assert (event.uuid, event.historical) == (UUID, False)

    agent.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
    agent.monitor.take(DriverStatus(up=True, driver="580.95.05"))
    lost = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={}, gpus=(lost,), present=(BUS_ID,)))
    (state,) = agent.monitor.latest.gpus
    assert (state.uuid, state.fault, state.gpu.name, state.gpu.serial) == (UUID, "lost", "NVIDIA H100", "165422")
    assert (state.gpu.xid_errors_total or {})["79"] == 1.0


def test_a_board_in_the_place_of_another_tells_its_own_name(start: Callable[..., Agent], tmp_path: Path) -> None:
    """The stored uuid is replaced by the one that the GPU reports."""
    with Store.open(tmp_path / "gpumon.db"):
        pass
    agent = start(None)
    agent.reports({})
    agent.persistence.tick()
    agent.stop()

    agent = start(None, sees_gpu=False)
    agent.reports({})
    agent.monitor.take(PciBus(functions={BUS_ID: "nvidia"}))
    seen = GpuReading(bus_id=BUS_ID, fault="lost", error="GPU is lost")
    agent.monitor.take(Snapshot(ended_at=1.0, wall=2e9, durations={}, gpus=(seen,), present=(BUS_ID,)))
    assert [state.uuid for state in agent.monitor.latest.gpus] == [UUID]

    other = GpuReading(bus_id=BUS_ID, uuid="GPU-2", index=0, gpu=Gpu(name="NVIDIA H200"), watched=1.0)
    agent.monitor.take(Snapshot(ended_at=2.0, wall=2e9, durations={}, gpus=(other,), present=(BUS_ID,)))
    assert [(state.uuid, state.gpu.name, state.gpu.serial) for state in agent.monitor.latest.gpus] == [
        ("GPU-2", "NVIDIA H200", None)
    ]


def test_a_storm_is_counted_and_not_stored_line_by_line(start: Callable[..., Agent], log: Log, tmp_path: Path) -> None:
    """Many lines of one error are one row, and the loop continues while they are read."""
    agent = start()
    agent.reports({})
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


def test_what_the_kernel_says_just_now_is_passed_on(start: Callable[..., Agent], log: Log) -> None:
    """A recent Xid of the kernel log is reported to the supervisor, history is not."""
    log.xid("119, Timeout waiting for RPC")
    agent = start()
    agent.until(lambda: len(agent.monitor.latest.events) == 1)
    assert agent.silent == []

    log.xid("120, GSP task exception")
    agent.reports({"120": 1.0})
    assert agent.silent == [(BUS_ID, 120)]


def test_a_store_that_cannot_be_opened_keeps_no_error_back(
    start: Callable[..., Agent], log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors are reported after the wait for the store; earlier lines are held, and stored as history."""
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
    agent.reports({"79": 1.0, "94": 1.0})
    agent.until(lambda: agent.persistence.error is None)
    agent.stop()
    agent = start()
    agent.reports({"79": 1.0, "94": 1.0})
    assert sorted((event.code, event.historical) for event in agent.monitor.latest.events) == [
        (48, True),
        (79, False),
        (94, False),
    ]


def test_events_of_switches_are_named_by_their_address(start: Callable[..., Agent], log: Log) -> None:
    """The detail lines of an SXid belong to one event."""
    agent = start()
    agent.reports({})
    log.append(
        SWITCH, SWITCH.replace("Fatal, Link 48", "Severity 1 Engine instance 48"), SWITCH.replace("Fatal", "Data {")
    )
    agent.reports({"00000000:C1:00.0,20034": 1.0})
    (event,) = agent.monitor.latest.events
    assert (event.kind, event.fatal, event.bus_id, event.uuid) == (SXID, True, "00000000:C1:00.0", None)
