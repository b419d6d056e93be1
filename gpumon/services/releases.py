"""Who asked for a release, until when, and whether it has come true: windows by API or command, and the marker file."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path

from gpumon.clock import boot_clock
from gpumon.model.bus_id import parsed
from gpumon.model.release import NODE, Answer, Holder, Release, Window
from gpumon.model.time_window import ASK_FOR_LESS, wrong_length
from gpumon.probe.runner.runs import ProbeRuns
from gpumon.services.release_marker import Done, MarkerWatch
from gpumon.state.report import Report
from gpumon.supervisor import device_nodes
from gpumon.supervisor.loop import Loop
from gpumon.supervisor.sampler_supervisor import SamplerSupervisor

log = logging.getLogger("gpumon.model.release")

LOOK_SECONDS, HASTE_SECONDS = 0.5, 0.1
"""How often windows and holders are looked at, and how often while somebody waits."""
ANSWER_SECONDS = 15.0
"""Longest that somebody waits. A child is gone, or known not to go, within GRACE_SECONDS and KILL_PATIENCE."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STOPPING = Answer(refused="The agent is stopping.", remedy="Ask again when it has started.")

Key = tuple[bool, str]
"""By the marker or not, and the bus id: what one window replaces another by."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    bus_id: str
    give_up_at: float
    future: Future[Answer]


class Releasing:
    """Use from the loop's thread, but for `request` and `end`."""

    def __init__(
        self,
        loop: Loop,
        *,
        most: float,
        marker: Path,
        record: Path,
        samplers: SamplerSupervisor,
        probing: ProbeRuns,
        latest: Callable[[], Report],
        tell: Callable[[Release], None],
    ) -> None:
        self._loop = loop
        self.most = most
        """Seconds; longest release."""
        self._record = record
        self._samplers = samplers
        self._probing = probing
        self._latest = latest
        self._tell = tell
        self._marker = MarkerWatch(marker)
        self._done = Done(marker)
        self._asked: dict[str, Window] = {}
        """By API or command, by bus id."""
        self._ended_by: dict[str, str] = {}
        self._told = Release()
        self._complained: set[int] = set()
        self._let_go = False
        """Of what is released now, nothing was held any more at some time."""
        self._waiting: list[_Waiting] = []
        self._stopping = False

    def start(self) -> None:
        """Before the first sampler: a release goes on over a restart of the agent."""
        self._recall()
        self._loop.every(LOOK_SECONDS, self._look)

    def apply(self, max_seconds: float) -> None:
        """Limit the releases that are requested from now on."""
        self.most = max_seconds

    def stop(self) -> None:
        """Who waits is told. Windows stay on record."""
        self._stopping = True
        for one in self._waiting:
            one.future.set_result(_STOPPING)
        self._waiting.clear()

    @property
    def notice(self) -> str | None:
        """What an operator should know, in words."""
        held = [one.words for one in self._told.holders if one.pid in self._complained]
        return f"released, but still held by {'; '.join(held)}" if held else self._marker.problem or None

    def request(self, bus_id: str, seconds: float, by: str) -> Future[Answer]:
        """From any thread: release this GPU, or NODE. The answer comes when nothing is held, or will not be let go."""
        return self._post(lambda future: self._begin(bus_id, seconds, by, future))

    def end(self, bus_id: str | None, by: str) -> Future[Answer]:
        """From any thread: end one window, None: all but the marker's, at once."""
        return self._post(lambda future: self._end(bus_id, by, future))

    # What is asked for

    def _post(self, work: Callable[[Future[Answer]], None]) -> Future[Answer]:
        future: Future[Answer] = Future()
        future.set_running_or_notify_cancel()  # from now on nobody but us ends it
        self._loop.post(lambda: future.set_result(_STOPPING) if self._stopping else work(future))
        return future

    def _begin(self, bus_id: str, seconds: float, by: str, future: Future[Answer]) -> None:
        if refused := wrong_length(seconds, self.most, "release.max_seconds"):
            future.set_result(Answer(refused=refused, remedy=ASK_FOR_LESS))
            return
        wall, boot = time.time(), boot_clock()
        self._asked[bus_id] = Window(bus_id=bus_id, by=by, since=wall, until=wall + seconds, deadline=boot + seconds)
        self._keep_record()
        self._waiting.append(_Waiting(bus_id, boot + ANSWER_SECONDS, future))
        if len(self._waiting) == 1:
            self._hurry()
        else:
            self._look()

    def _end(self, bus_id: str | None, by: str, future: Future[Answer]) -> None:
        for one in tuple(self._asked) if bus_id is None else (bus_id,):
            if self._asked.pop(one, None) is not None:
                self._ended_by[one] = by
        self._keep_record()
        self._look()
        future.set_result(Answer())

    # What is so

    def _look(self) -> None:
        if self._stopping:
            return
        self._marker.look(self.most, self._find)
        before, windows = self._told.windows, self._windows()
        bus_ids = Release(windows=windows).bus_ids
        self._samplers.release(bus_ids)
        holders = self._holders(bus_ids)
        self._let_go = not holders or (self._let_go and bus_ids == self._told.bus_ids)
        self._complain(holders)
        if (windows, holders) != (before, self._told.holders):
            self._told = Release(windows=windows, holders=holders)
            self._tell(self._told)
        self._note(_by_key(before), _by_key(windows))
        self._done.say(done=not holders and any(window.by == "marker" for window in windows))
        self._answer()

    def _windows(self) -> tuple[Window, ...]:
        now = boot_clock()
        ended = [bus_id for bus_id, window in self._asked.items() if window.deadline <= now]
        for bus_id in ended:
            del self._asked[bus_id]
        if ended:
            self._keep_record()
        marked = self._marker.window
        return (*self._asked.values(), *((marked,) if marked is not None and marked.deadline > now else ()))

    def _holders(self, bus_ids: frozenset[str]) -> tuple[Holder, ...]:
        if not bus_ids:
            return ()
        known = (*self._samplers.holders(bus_ids), *self._probing.holders())
        return (*known, *self._found(bus_ids, {one.pid for one in known}))

    def _found(self, bus_ids: frozenset[str], known: set[int]) -> Iterable[Holder]:
        """What only the kernel knows of."""
        minors = {bus_id: one.gpu.minor for bus_id in bus_ids if (one := self._latest().gpu(bus_id))}
        own = {f"{device_nodes.NODES}{minor}" for minor in minors.values() if minor is not None}
        for pid in sorted(device_nodes.family() - known):
            opened = device_nodes.opened(pid)
            held = sorted(opened if NODE in bus_ids else opened & own)
            if held:
                yield Holder(pid=pid, words=f"process {pid} of the agent, which has {', '.join(held)} open")

    def _complain(self, holders: tuple[Holder, ...]) -> None:
        """Of what SIGKILL does not end, and of what took hold again."""
        wrong = {one.pid: one.words for one in holders if one.stuck or self._let_go}
        for pid in wrong.keys() - self._complained:
            log.error("released, and yet held", extra={"holder": wrong[pid]})
        self._complained = set(wrong)

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            holders = self._holders(frozenset({one.bus_id}))
            if all(holder.stuck for holder in holders) or boot_clock() > one.give_up_at:
                one.future.set_result(Answer(holders=holders))
            else:
                self._waiting.append(one)

    def _hurry(self) -> None:
        self._look()
        if self._waiting:
            self._loop.call_after(HASTE_SECONDS, self._hurry)

    def _find(self, name: str) -> str | None:
        """What nobody has read yet can still be named by its address."""
        report = self._latest()
        found = report.gpu(name)
        return found.bus_id if found is not None else None if report.gpus else parsed(name)

    def _note(self, before: Mapping[Key, Window], after: Mapping[Key, Window]) -> None:
        for key, window in after.items():
            if before.get(key) != window:
                message = "the release goes on" if key in before else "released: the agent keeps off"
                log.info(message, extra=self._words(window) | {"seconds": round(window.deadline - boot_clock())})
        for key, window in before.items():
            if key not in after:
                log.info("the release has ended", extra=self._words(window) | {"ended": self._why_ended(window)})
        self._ended_by.clear()

    def _words(self, window: Window) -> dict[str, object]:
        found = self._latest().gpu(window.bus_id) if window.bus_id else None
        gpu = window.bus_id or "all" if found is None else f"{found.index} ({found.uuid})"
        return {"by": window.by, "gpu": gpu}

    def _why_ended(self, window: Window) -> str:
        if window.deadline <= boot_clock():
            return "time is up"
        return "marker is gone" if window.by == "marker" else f"by {self._ended_by.get(window.bus_id, window.by)}"

    # What outlives the agent

    def _keep_record(self) -> None:
        """So that an agent that is restarted in a window keeps off as well; a reboot of the host ends it."""
        windows = [asdict(window) for window in self._asked.values()]
        try:
            if windows:
                beside = self._record.with_suffix(".new")
                beside.write_text(json.dumps({"boot": _boot_id(), "windows": windows}), encoding="ascii")
                beside.replace(self._record)
            else:
                self._record.unlink(missing_ok=True)
        except OSError as error:
            hint = "a restart of the agent would end the release"
            log.error("the release is not on record", extra={"error": str(error), "hint": hint})  # noqa: TRY400

    def _recall(self) -> None:
        try:
            record = json.loads(self._record.read_text(encoding="ascii"))
            windows = [Window(**one) for one in record["windows"]] if record["boot"] == _boot_id() else []
            self._asked = {one.bus_id: one for one in windows if boot_clock() < one.deadline < boot_clock() + self.most}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("a release from before the restart is not known", extra={"error": str(error)})


def _by_key(windows: Iterable[Window]) -> dict[Key, Window]:
    return {(window.by == "marker", window.bus_id): window for window in windows}


def _boot_id() -> str:
    return BOOT_ID.read_text(encoding="ascii").strip()
