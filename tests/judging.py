"""A node whose readings a test sets and whose checks are evaluated in virtual time, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import example_node as example
import example_parts
from changed_report import changed, with_transitions
from reader_turns import host_snapshot
from sample_windows import MAINTENANCE, RELEASE, window
from typing_extensions import Self

from gpumon.health import evaluation, table
from gpumon.health.clear_request import ClearRequest, requested_clearance
from gpumon.health.node_health import Health, PendingVerdict, pending_to_store, restore_pending
from gpumon.health.policy import Policy
from gpumon.health.sample_windows import SampleHistory
from gpumon.health.verdict import Clearance, Level, Verdict, VerdictChange, VerdictTransition
from gpumon.model import time_window
from gpumon.model.error_event import NVML, XID, ErrorEvent
from gpumon.model.gpu_state import GpuState
from gpumon.model.instant import Instant, Now
from gpumon.model.nvlink import Nvlink
from gpumon.model.reading import Labels, Sample, Table, samples
from gpumon.model.snapshot import StuckProcess
from gpumon.model.time_window import WindowsEnded
from gpumon.state import health_section
from gpumon.state.section import ReducerSettings
from gpumon.state.sections import tables

WALL = 1.8e9
LOOK = 5.0
"""Seconds between two evaluations of the daemon."""
EVERY = 10.0
"""Seconds between two evaluations in tests of minutes and hours, because an evaluation is slow."""
WINDOWS = table.recorded_windows()


class Ward:
    """Four busy GPUs on a node booted a day ago. `go_on` lets time pass."""

    def __init__(self, *, gpus: int = 4, ports: int = 2, policy: Policy | None = None, uptime: float = 86400.0) -> None:
        base = example.report()
        self.report = changed(
            base,
            boot_id="boot-1",
            gpus=tuple(example_parts.gpu(index) for index in range(gpus)),
            ports=tuple(example_parts.port(number) for number in range(ports)),
            node=replace(base.node, gpus_expected=float(gpus), gpus_visible=float(gpus)),
            events=(),
            health=type(base.health)(),
            restored=True,
            samples=SampleHistory(windows=WINDOWS),
        )
        self.terms = ReducerSettings(policy=policy or Policy())
        self.at = uptime
        self._booted = WALL
        self._idle = 0.0
        """Boot clock at the start of the agent."""
        self._made: dict[tuple[int, Labels], tuple[Table, tuple[Sample, ...]]] = {}
        self.processes()

    @property
    def wall(self) -> float:
        return self._booted + self.at

    @property
    def moment(self) -> Now:
        return Now(self.at, self.wall, self.at - self._idle)

    # Inputs of a test

    def gpu(self, index: int, *, state: Mapping[str, Any] | None = None, **readings: Any) -> None:
        """Set readings of one GPU, and with `state` the rest of its state."""
        self._change(index, lambda each: replace(each, gpu=replace(each.gpu, **readings), **dict(state or {})))

    def fault(self, index: int, fault: str | None, detail: str = "") -> None:
        """Set the fault of a GPU that does not answer; None ends it."""
        self.gpu(index, state={"fault": fault, "detail": detail})

    def link(self, index: int, link: int, **readings: Any) -> None:
        """Set readings of one NVLink of a GPU."""
        links = self.report.gpus[index].links
        self.gpu(index, state={"links": {**links, str(link): replace(links.get(str(link), Nvlink()), **readings)}})

    def node(self, **rows: Any) -> None:
        self.report = changed(self.report, node=replace(self.report.node, **rows))

    def notice(self, subject: str, words: str | None) -> None:
        """Set a problem of the agent itself; None ends it."""
        others = {name: text for name, text in self.report.notices.items() if name != subject}
        self.report = changed(self.report, notices=others | ({subject: words} if words else {}))

    def port(self, number: int, *, link: Mapping[str, Any] | None = None, **counts: Any) -> None:
        """Set link readings and counters of one port."""
        ports = list(self.report.ports)
        one = ports[number]
        ports[number] = replace(one, link=replace(one.link, **dict(link or {})), counts=replace(one.counts, **counts))
        self.report = changed(self.report, ports=tuple(ports))

    def processes(self, *, stuck: tuple[StuckProcess, ...] | None = (), contained: bool | None = False) -> None:
        """Set what the host child reports about processes; by default no problem."""
        self._links = host_snapshot(self.at, stuck=stuck, contained=contained)

    def event(self, index: int, code: int, *, kind: str = XID, count: int = 1, text: str = "", **values: Any) -> None:
        """Add an error event of a GPU at the current time."""
        state = self.report.gpus[index]
        event = ErrorEvent(
            id=f"{index}-{code}-{self.at}",
            kind=kind,
            code=code,
            first=Instant(self.report.boot_id, self.at, self.wall),
            last=Instant(self.report.boot_id, self.at, self.wall),
            text=text,
            **{
                "bus_id": state.bus_id,
                "uuid": state.uuid,
                "texts": (text,) if text else (),
                NVML: count,
                **values,
            },
        )
        self.report = changed(self.report, events=(*self.report.events, event))

    def ecc(self, index: int, **errors: float) -> None:
        """Increase ECC counters by severity and location: corrected_dram, uncorrected_sram, ..."""
        state = self.report.gpus[index]
        more = {name.replace("_", ","): count for name, count in errors.items()}
        total, volatile = (
            {key: count + more.get(key, 0.0) for key, count in (counts or {}).items()}
            for counts in (state.gpu.ecc_errors_total, state.ecc_volatile)
        )
        self.gpu(index, state={"ecc_volatile": volatile}, ecc_errors_total=total)

    def reset(self, index: int) -> None:
        """Reset the counters of a GPU."""
        volatile = dict.fromkeys(self.report.gpus[index].ecc_volatile or {}, 0.0)
        self.gpu(index, state={"fault": None, "detail": "", "reset_at": self.at, "ecc_volatile": volatile})

    def reboot(self, boot_id: str = "boot-2") -> None:
        """Reboot the node; the boot clock restarts."""
        wall = self.wall
        self.report = replace(self.report, boot_id=boot_id)
        self.report = replace(self.report, samples=SampleHistory(windows=WINDOWS))
        self.at = 0.0
        self.restart(waiting=())
        self._booted = wall

    def step(self, seconds: float) -> None:
        """Step the wall clock."""
        self._booted += seconds

    def maintain(self, seconds: float) -> None:
        """Start a maintenance window."""
        one = window(
            MAINTENANCE,
            start=self.wall,
            start_at=self.at,
            seconds=seconds,
            boot_id=self.report.boot_id,
            reason="new DIMMs",
        )
        self.report = replace(self.report, windows=time_window.start(self.report.windows, one))

    def release(self, index: int, seconds: float) -> None:
        """Start a release of one GPU."""
        bus_id, boot_id = self.report.gpus[index].bus_id, self.report.boot_id
        one = window(RELEASE, start=self.wall, start_at=self.at, seconds=seconds, bus_id=bus_id, boot_id=boot_id)
        self.report = replace(self.report, windows=time_window.start(self.report.windows, one))

    def end_windows(self) -> None:
        """End all windows before their deadline."""
        ids = frozenset(each.id for each in self.report.windows)
        message = WindowsEnded(ids=ids, by="api", time=Instant("", self.at, self.wall))
        self.report = replace(self.report, windows=time_window.end(self.report.windows, message))

    def pause(self, seconds: float) -> None:
        """Suspend the host, or stop the agent, for some time."""
        self.at += seconds
        self._idle += seconds

    def restart(self, *, waiting: tuple[PendingVerdict, ...] | None = None) -> None:
        """Restart the agent with the content of its store only."""
        if waiting is None:
            waiting = tuple(pending_to_store(self.report.health, self.report.boot_id))
        health = Health(open=self.report.health.open, history=self.transitions, cleared=self.report.health.cleared)
        verdicts = evaluation.restored_verdicts(health.open.values(), self.report.boot_id)
        known = {verdict.key: verdict._replace(active=False) for verdict in verdicts}
        gpus = tuple(
            replace(gpu, reset_at=None, gpu=replace(gpu.gpu, ecc_errors_total=dict(gpu.ecc_volatile or {}) or None))
            for gpu in self.report.gpus
        )
        self.report = changed(
            self.report, health=replace(health, open=known), gpus=gpus, samples=SampleHistory(windows=WINDOWS)
        )
        self._idle = self.at
        resumed_ = restore_pending(waiting, self.moment, self.report.boot_id)
        self.report = replace(self.report, health=replace(self.report.health, pending=resumed_))

    def _change(self, index: int, change: Any) -> None:
        gpus: list[GpuState] = list(self.report.gpus)
        gpus[index] = change(gpus[index])
        self.report = changed(self.report, gpus=tuple(gpus))

    # Results

    def go_on(self, seconds: float = LOOK, *, every: float = EVERY) -> Self:
        """Evaluate the checks for this time. Transitions are stored at once."""
        end = self.at + seconds
        while self.at < end:
            self.at = min(self.at + every, end)
            self.look()
        return self

    def look(self) -> Self:
        """Evaluate the checks once."""
        history = self.report.samples.add(self._samples(), self.at)
        host = replace(self.report.host, snapshot=self._links, read_at=self.moment.uptime, is_current=True)
        windows = time_window.advance(self.report.windows, self.moment, self.report.boot_id)
        self.report = replace(self.report, samples=history, host=host, windows=windows)
        self.report = health_section.evaluate(self.report, self.moment, self.terms)
        self.rule(self.report.health.due)
        return self

    def _samples(self) -> Iterator[Sample]:
        """Yield the samples for the windows of checks. Unchanged readings are not computed again."""
        before, self._made = self._made, {}
        for one, labels in tables(self.report):
            known = before.get((id(one), labels))
            if known is None:
                found = samples(one, labels, detailed=self.report.detailed)
                known = one, tuple(sample for sample in found if sample.name in WINDOWS)
            self._made[id(one), labels] = known
            yield from known[1]

    def rule(self, due: tuple[VerdictTransition, ...]) -> None:
        """Apply the due transitions, as after they were stored."""
        self.report = with_transitions(self.report, due)

    @property
    def verdicts(self) -> dict[tuple[str, str], Verdict]:
        return dict(self.report.health.open)

    def verdict(self, check: str, index: int | None = None) -> Verdict | None:
        """Return the verdict of a GPU, or without one of the node or the only device that has it."""
        found = [verdict for verdict in self.verdicts.values() if verdict.check == check]
        if index is not None:
            found = [each for each in found if each.device == self.report.gpus[index].uuid]
        assert len(found) <= 1, found
        return found[0] if found else None

    def level(self, check: str, index: int | None = None) -> Level:
        one = self.verdict(check, index)
        return Level.OK if one is None else one.level

    @property
    def transitions(self) -> tuple[VerdictTransition, ...]:
        return self.report.health.history

    def active_checks(self) -> Iterable[str]:
        """Return the names of the checks that have a verdict."""
        return sorted({check for check, _ in self.verdicts})


def clear(ward: Ward, check: str) -> tuple[Verdict, ...]:
    """Clear a check as `gpumon clear CHECK` does."""
    health = ward.report.health
    answer = requested_clearance(ClearRequest(check=check), health, {state.uuid for state in ward.report.gpus})
    told = tuple(
        VerdictTransition(
            verdict=each,
            change=VerdictChange.CLEARED,
            time=Instant(ward.report.boot_id, ward.at, ward.wall),
            cleared_by=Clearance.OPERATOR,
        )
        for each in answer.cleared
    )
    ward.rule(told)
    return answer.cleared
