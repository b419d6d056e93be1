"""The sampler supervisor with real children on a simulated node: hangs, silent firmware and crash loops."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from agents import command_line, descendants, unreaped_children
from loops import turn_for, turn_until
from unkillable import build, held

from gpumon.clock import boot_clock
from gpumon.model.frame import Frame
from gpumon.model.orders import SamplerOrders, Simulation
from gpumon.model.snapshot import PciBus, SamplerStatus, Snapshot
from gpumon.supervisor.child_supervisor import RestartDelay
from gpumon.supervisor.deadlines import Deadlines
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import MAX_EVENT_FAILURES, SAMPLER, SamplerSupervisor

HANG = "nvmlDeviceGetUtilizationRates"
DEADLINES = replace(
    Deadlines(**{name: seconds / 10 for name, seconds in asdict(SAMPLER.deadlines).items()}),
    call=1.0,
    opening=60.0,
    silence=90.0,
    grace=3.0,
    early=600.0,
)
"""One tenth of the default deadlines, except for those that depend on the child's processor time."""


class SupervisedNode:
    """A supervisor with its loop, and the messages and states that it published."""

    def __init__(self, folder: Path, gpus: object = None, **node: object) -> None:
        self.loop = Loop()
        self.scenario = folder / "scenario.yml"
        self.simulate(gpus or {}, **node)
        self.state = SamplerStatus()
        self.snapshots: list[Snapshot] = []
        self.bus = PciBus(functions={})
        self.xids: list[int] = []
        self._last: set[int] = set()
        self._answered: set[int] = set()
        self._partial = False
        self.simulation = Simulation(profile="h100x8", epoch=boot_clock(), scenario=str(self.scenario))
        self.supervisor = SamplerSupervisor(
            self.loop,
            SamplerOrders(simulation=self.simulation, log_level="error"),
            on_message=self._take,
            on_state=self._set_state,
            on_error=lambda error: self.xids.append(error.code),
            program=replace(SAMPLER, deadlines=DEADLINES),
        )
        self.supervisor.start()

    def simulate(self, gpus: object, **node: object) -> None:
        written = self.scenario.with_suffix(".new")
        written.write_text(yaml.safe_dump({"idle": True, "gpus": gpus, **node}))
        written.rename(self.scenario)

    def gpus_with_readings(self) -> set[int]:
        """Return the GPUs with readings in the last poll."""
        return self._last

    def holders(self) -> set[int]:
        """Return the GPUs that have processes in the last complete poll."""
        return {reading.index for reading in self.snapshots[-1].gpus if reading.pids and reading.index is not None}

    def until(self, done: object, seconds: float = 90.0) -> None:
        assert callable(done)
        turn_until(self.loop, lambda: bool(done()), seconds)

    def stop(self, unreaped_before: set[int]) -> None:
        self.supervisor.stop()
        self.until(lambda: not self.supervisor.running and unreaped_children() <= unreaped_before)

    def _take(self, message: Frame) -> None:
        if isinstance(message, PciBus):
            self.bus = message
        elif isinstance(message, Snapshot):
            answers = {
                reading.index for reading in message.gpus if reading.gpu is not None and reading.index is not None
            }
            self._answered = answers | (self._answered if self._partial else set())
            self._partial = not message.complete
            if message.complete:
                self.snapshots.append(message)
                self._last = self._answered

    def _set_state(self, state: SamplerStatus) -> None:
        self.state = state


def samplers() -> set[int]:
    """Return the pids of the samplers that this process has started."""
    return {pid for pid in descendants(os.getpid()) if b"gpumon.collectors.sampler" in command_line(pid)}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SupervisedNode]:
    before = unreaped_children()
    created = SupervisedNode(tmp_path)
    created.until(lambda: len(created.gpus_with_readings()) == 8)
    yield created
    created.stop(before)


def test_excluded_names_of_no_gpu_are_reported(node: SupervisedNode) -> None:
    """The sampler opens no GPU that an index or uuid names, and reports the names that no GPU has."""
    node.until(lambda: len(node.snapshots[-1].gpus) == 8)  # the first ones lack GPUs that were sent before
    uuids = {reading.index: reading.uuid for reading in node.snapshots[-1].gpus}
    orders = SamplerOrders(simulation=node.simulation, log_level="error")
    node.supervisor.apply(replace(orders, exclude=("42", "1", str(uuids[2]), "GPU-x", "0000:ff:00.0")))
    node.until(lambda: node.gpus_with_readings() == {0, 3, 4, 5, 6, 7})
    node.until(lambda: node.bus.unmatched == ("42", "GPU-x", "0000:ff:00.0"))


@pytest.mark.slow
def test_a_gpu_of_an_unkillable_child_is_not_tried(node: SupervisedNode, tmp_path: Path) -> None:
    """A new sampler runs without the GPU, which is tried again only when the abandoned child has ended."""
    (sampler,) = samplers()
    with held(build(tmp_path), sampler):
        node.simulate({5: {"hang": [HANG]}})
        node.until(lambda: node.state.abandoned)
        assert HANG in node.state.abandoned[0]
        node.until(lambda: node.gpus_with_readings() == {0, 1, 2, 3, 4, 6, 7})
        node.simulate({})
        turn_for(node.loop, 2 * DEADLINES.first_trial)  # a trial would be due
        assert len(node.state.quarantined) == 1

    node.until(lambda: not node.state.abandoned)
    node.until(lambda: len(node.gpus_with_readings()) == 8)
    assert not node.state.quarantined


@pytest.mark.slow
def test_no_sampler_is_started_after_the_maximum_of_abandoned_children(node: SupervisedNode, tmp_path: Path) -> None:
    """The supervisor gives up for some time after the maximum number of abandoned children."""
    program = build(tmp_path)
    held_pids: set[int] = set()
    with ExitStack() as holders:
        for gpu in range(SAMPLER.max_abandoned):
            node.until(lambda left=gpu: len(node.gpus_with_readings()) == 8 - left)
            (pid,) = samplers() - held_pids
            held_pids.add(pid)
            holders.enter_context(held(program, pid))
            node.simulate({n: {"hang": [HANG]} for n in range(gpu + 1)})
            node.until(lambda left=gpu: len(node.state.abandoned) == left + 1)
        node.until(lambda: node.state.gave_up)
        count = len(node.snapshots)
        turn_for(node.loop, 3.0)
        assert len(node.snapshots) == count
        node.simulate({})

    node.until(lambda: len(node.gpus_with_readings()) == 8)


def test_silent_firmware_quarantines_a_gpu_at_once(node: SupervisedNode) -> None:
    """After Xid 119 no call is made on the GPU until a trial succeeds."""
    node.simulate({2: {"xids": [119], "hang": [HANG]}})
    node.until(lambda: node.state.quarantined)
    (quarantine,) = node.state.quarantined.values()
    assert quarantine.detail == "Firmware silent since Xid 119"
    node.until(lambda: node.gpus_with_readings() == {0, 1, 3, 4, 5, 6, 7})

    node.simulate({2: {"xids": [119]}})
    node.until(lambda: len(node.gpus_with_readings()) == 8)
    node.until(lambda: node.state.restarts["readmit"] == 1)


def test_restarts_after_crashes_are_delayed_exponentially() -> None:
    """Each crash doubles the delay before the next start, up to a limit, until a child has run for long."""
    delay = RestartDelay(Deadlines(first_restart=0.5, last_restart=3.0, steady=60.0))
    assert [delay.take() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    delay.note_age(59.0)
    assert delay.take() == 3.0
    delay.note_age(61.0)
    assert delay.take() == 0.5


@pytest.mark.slow
def test_a_child_that_crashes_is_restarted_until_it_works(node: SupervisedNode) -> None:
    node.simulate({}, crash=["nvmlDeviceGetCount*"])
    node.until(lambda: node.state.restarts.get("crash", 0) >= 4)
    node.simulate({})
    node.until(lambda: len(node.gpus_with_readings()) == 8)


def test_xids_that_arrive_with_silent_firmware_are_published(node: SupervisedNode) -> None:
    """Xids that the sampler sent before its end are published, also those of other GPUs."""
    node.simulate({4: {"xids": [119, 79], "hang": [HANG]}, 6: {"xids": [94]}})
    node.until(lambda: node.state.quarantined)
    node.until(lambda: len(node.gpus_with_readings()) == 7)

    assert sorted(node.xids) == [79, 94, 119]


@pytest.mark.slow
def test_a_hung_event_set_stops_events_and_not_readings(node: SupervisedNode) -> None:
    """After the maximum number of hangs the sampler waits for no more events and continues to poll."""
    node.simulate({}, hang=["nvmlEventSetWait*"])
    node.until(lambda: node.state.restarts["deadline"] == MAX_EVENT_FAILURES)
    count = len(node.snapshots)
    node.until(lambda: len(node.snapshots) > count + 3)

    assert node.state.restarts["deadline"] == MAX_EVENT_FAILURES


@pytest.mark.slow
def test_hangs_of_the_event_set_that_sigkill_does_not_end_count_too(node: SupervisedNode, tmp_path: Path) -> None:
    """The sampler that is started after the maximum number of hangs waits for no events, so it is not abandoned."""
    program, held_pids = build(tmp_path), set[int]()
    with ExitStack() as holders:
        for _ in range(MAX_EVENT_FAILURES):
            node.until(lambda: samplers() - held_pids)
            (pid,) = samplers() - held_pids
            held_pids.add(pid)
            holders.enter_context(held(program, pid))
            node.simulate({}, hang=["nvmlEventSetWait*"])
            node.until(lambda: len(node.state.abandoned) == len(held_pids))
        count = len(node.snapshots)
        node.until(lambda: len(node.snapshots) > count + 3)  # the hang is still simulated
        assert len(node.state.abandoned) == MAX_EVENT_FAILURES


def test_a_hang_names_the_call_and_its_begin_until_the_driver_answers(node: SupervisedNode) -> None:
    """The time is that of the first call that did not return, although later children wait in other calls."""
    node.simulate({}, hang=["nvml*"])
    node.until(lambda: node.state.hang)
    first = node.state.hang
    assert re.fullmatch(
        r"the driver call nvml\w+( on [-:.\w]+)? does not return \(a hang since [-\d]+ [:\d]+ UTC\)", first
    )
    node.until(lambda: node.state.restarts["deadline"] >= 1)
    assert node.state.hang == first
    count = len(node.snapshots)
    node.simulate({})
    node.until(lambda: len(node.snapshots) > count and not node.state.hang)


def test_a_slow_initialisation_is_no_hang(node: SupervisedNode) -> None:
    """The driver may take seconds to initialise a GPU without persistence mode."""
    hangs: list[str] = []

    def is_read_again() -> bool:
        hangs.append(node.state.hang)
        return len(node.snapshots) > count + 1

    node.simulate({}, delay={"nvmlInit*": 3 * DEADLINES.call})
    count = len(node.snapshots)
    node.supervisor.replace("configuration")
    node.until(is_read_again)
    assert node.state.restarts["configuration"] == 1
    assert not any(hangs)


def test_close_watching_reads_processes_at_every_poll(node: SupervisedNode) -> None:
    """Close watching reports new processes within a few polls, also after a restart of the sampler."""
    node.supervisor.watch(closely=True)
    node.until(lambda: len(node.snapshots) > 1)
    assert polls_until(node, {3}) <= SOON

    node.supervisor.replace("configuration")
    node.until(lambda: node.state.restarts["configuration"] == 1)
    node.until(lambda: len(node.gpus_with_readings()) == 8 and "rare" not in node.snapshots[-1].durations)
    assert polls_until(node, {3, 5}) <= SOON


SOON = 5
"""Number of polls that include one in progress and the delay of a scenario change."""


def polls_until(node: SupervisedNode, busy: set[int]) -> int:
    """Return the number of polls until these GPUs are reported as in use."""
    node.simulate({gpu: {"busy": True} for gpu in busy})
    before = len(node.snapshots)
    node.until(lambda: node.holders() == busy)
    return len(node.snapshots) - before


@pytest.mark.slow
def test_without_a_pci_bus_a_hanging_lookup_hides_no_other_gpu(tmp_path: Path) -> None:
    """A GPU whose lookup by index hangs is left out until a trial of it succeeds; the others are read meanwhile."""
    before = unreaped_children()
    node = SupervisedNode(tmp_path, {4: {"hang": ["nvmlDeviceGetPciInfo*"]}}, place="sandbox")
    try:
        node.until(lambda: node.gpus_with_readings() == {0, 1, 2, 3, 5, 6, 7})
        assert node.state.restarts["deadline"] == 1
        assert not node.state.quarantined
        node.simulate({}, place="sandbox")
        node.until(lambda: len(node.gpus_with_readings()) == 8)
    finally:
        node.stop(before)
