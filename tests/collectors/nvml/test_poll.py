"""Polling: what is read, what it costs, and how a failure stays where it happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from polled import Poll, polled

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.collectors.nvml.library import ERROR_NAMES, NvmlError
from gpumon.model.gpu import Gpu
from gpumon.model.reading import SLOW, rows
from gpumon.model.snapshot import GpuReading
from gpumon.outputs.metric_catalogue import AGENT_SOURCE, catalogue
from gpumon.sim.profiles import PROFILES
from scripts.metric_facts import kind
from scripts.missing_metrics import missing

FAST_CALLS_H100X8 = 42
"""Five a GPU, the count, and one look at the event set."""

BY_THE_DRIVER = {
    entry.name
    for entry in catalogue()
    if not any(source == AGENT_SOURCE or source.startswith("integral of") for source in entry.sources)
}


@each_case("profile", PROFILES)
def test_every_row_is_read_where_it_exists_and_absent_elsewhere(profile: str) -> None:
    """As decided for each kind of node; and what is absent for good is no error. What the daemon adds is apart."""
    with polled(profile) as poll:
        poll.poll()
        snapshot = poll.poll_later()
        gpu = snapshot.gpus[0].gpu

    assert gpu is not None
    read = {Gpu.PREFIX + name: getattr(gpu, name) for name in rows(Gpu) if Gpu.PREFIX + name in BY_THE_DRIVER}
    assert {metric for metric, value in read.items() if value is None} == missing(kind(profile), read)
    assert (snapshot.errors, snapshot.denied, snapshot.visible) == ({}, (), len(snapshot.gpus))


def test_what_an_old_board_lacks_is_absent_and_no_error() -> None:
    """A T4 has no NVLink, no row remapping and no memory temperature: absent, never 0."""
    with polled("t4x1") as poll:
        snapshot = poll.poll()
        gpu = snapshot.gpus[0].gpu

    assert gpu is not None
    assert gpu.memory_temperature_celsius is None
    assert gpu.rows_remapped_total is None
    assert not snapshot.gpus[0].links
    assert gpu.power_watts is not None
    assert gpu.temperature_celsius is not None
    assert snapshot.errors == {}


def test_while_it_watches_every_poll_reads_who_holds_the_gpus(tmp_path: Path) -> None:
    """Else the lists of processes wait for the slow tier: they are the slowest of the driver's calls."""
    with polled(text="jobs: [{start: 110, gpus: [2]}]", folder=tmp_path) as poll:
        first = poll.poll_later(all_tiers=True).gpus[2]
        poll.node._due = dict.fromkeys(poll.node._due, float("inf"))
        poll.simulation.now = 111.0
        unwatched = poll.poll_later().gpus[2]
        poll.node.watching = True
        watched = poll.poll_later().gpus

    assert (unwatched.gpu and unwatched.gpu.processes, unwatched.pids) == (0.0, ())
    assert [seen.gpu and seen.gpu.processes for seen in watched] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [len(seen.pids or ()) for seen in watched] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert first.pids_at == unwatched.pids_at != watched[2].pids_at


@pytest.mark.parametrize("profile", ["h100x8", "b200x8"])
def test_while_it_watches_every_poll_reads_what_each_link_has_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Up to Hopper in KiB, from Blackwell on in bytes; a link that is down has moved nothing, and is there."""
    monkeypatch.setattr("gpumon.collectors.nvml.poll.CLOSE_SECONDS", 3600.0)
    text = "gpus: {0: {nvlinks: {3: {carried: 1000}, 4: {state: down}}, set: {nvlink_received: 5000000}}}"
    with polled(profile, text=text, folder=tmp_path) as poll:
        poll.poll_later(all_tiers=True)
        unwatched = poll.poll().gpus[0]
        poll.node.watching = True
        poll.node._due = dict.fromkeys(poll.node._due, float("inf"))
        watched = poll.poll().gpus[0]

    assert (unwatched.gpu is not None, unwatched.link_bytes) == (True, {})
    assert watched.gpu is not None
    usual = watched.link_bytes["0"]
    assert usual > 5e6 * 1024
    assert watched.link_bytes == {str(n): {3: 2000.0 * 1024, 4: 0.0}.get(n, usual) for n in range(18)}
    both = watched.gpu.nvlink_receive_bytes_total or 0.0, watched.gpu.nvlink_transmit_bytes_total or 0.0
    assert sum(watched.link_bytes.values()) == pytest.approx(sum(both), rel=0.01)


def test_when_it_begins_to_watch_it_asks_once_who_reaches_whose_memory(tmp_path: Path) -> None:
    """Of each two GPUs, the same from either end."""
    with polled(text="gpus: {1: {peer_access: {3: {nvlink: disabled_by_regkey}}}}", folder=tmp_path) as poll:
        before = poll.poll().gpus
        poll.node.watching = True
        watched = [poll.poll().gpus for _ in range(20)]

    told = [gpus for gpus in watched if any(seen.peer_access for seen in gpus)]
    assert not any(seen.peer_access for seen in before)
    [gpus] = told
    ok = {"read": "ok", "write": "ok", "nvlink": "ok", "atomics": "ok"}
    uuids = {seen.index: seen.uuid for seen in gpus}
    for seen in gpus:
        apart = {1: 3, 3: 1}.get(seen.index or 0)
        assert seen.peer_access == {
            uuid: {**ok, "nvlink": "disabled_by_regkey"} if index == apart else ok
            for index, uuid in uuids.items()
            if index != seen.index
        }


@pytest.mark.parametrize(
    ("profile", "nvlink"), [("t4x1", None), ("l40sx4", "not_supported"), ("h100migx8", "not_supported")]
)
def test_gpus_without_nvlink_reach_each_other_over_pcie_or_not_at_all(profile: str, nvlink: str | None) -> None:
    """One GPU has no other to reach."""
    with polled(profile) as poll:
        poll.poll()
        poll.node.watching = True
        seen = [one for _ in range(20) for one in poll.poll().gpus if one.peer_access]

    assert bool(seen) is (nvlink is not None)
    assert {access["nvlink"] for one in seen for access in one.peer_access.values()} == ({nvlink} - {None})


def test_a_slow_tier_that_takes_long_waits_for_its_time_while_it_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has come to the GPUs must be seen at every poll."""
    with polled("t4x1") as poll:
        poll.node.watching = True
        poll.poll_later(all_tiers=True)
        poll.node._due = dict.fromkeys(poll.node._due, float("inf"))
        for longest, tiers in ((0.0, {"fast"}), (3600.0, {"fast", "slow"})):
            monkeypatch.setattr("gpumon.collectors.nvml.poll.CLOSE_SECONDS", longest)
            assert {*poll.poll().durations} == tiers


def test_a_fast_poll_costs_five_calls_a_gpu() -> None:
    """What a GPU does not support is asked once, and fields go in one batch; performance monitoring is apart."""
    with polled(extent=Extent(gpm=False)) as poll:
        poll.poll()
        before = poll.page.calls
        poll.node.events.take()
        poll.poll()

        assert poll.page.calls - before == FAST_CALLS_H100X8


def test_unsupported_calls_are_not_asked_again() -> None:
    """The second poll of a T4 makes fewer calls than the first."""
    with polled("t4x1") as poll:
        poll.poll_all_tiers()
        first = poll.page.calls
        poll.poll_all_tiers()
        second = poll.page.calls - first
        poll.poll_all_tiers()

        assert poll.page.calls - first - second == second < first


@each_case("code", sorted(ERROR_NAMES))
def test_a_gpu_that_cannot_be_opened_hides_no_other(tmp_path: Path, code: int) -> None:
    """Whatever code the handle lookup of GPU 3 answers, the other seven are read."""
    with polled(text=f"gpus: {{3: {{lookup: {code}}}}}", folder=tmp_path) as poll:
        snapshot = poll.poll()

    read = {seen.index for seen in snapshot.gpus if seen.gpu is not None}
    assert read == {0, 1, 2, 4, 5, 6, 7}
    assert all(seen.fault for seen in snapshot.gpus if seen.gpu is None)


@each_case("code", sorted(ERROR_NAMES))
def test_a_gpu_whose_getters_fail_hides_no_other(tmp_path: Path, code: int) -> None:
    """Whatever code all getters of GPU 3 answer, the other seven are read and polling goes on."""
    with polled(text=f'gpus: {{3: {{fail: {{"nvmlDeviceGet[!H]*": {code}}}}}}}', folder=tmp_path) as poll:
        snapshot = poll.poll()

    read = {seen.index for seen in snapshot.gpus if seen.gpu is not None and seen.gpu.utilization_ratio is not None}
    assert read >= {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [("lost: true", "lost"), ("reset_required: true", "reset_required"), ("lookup: 4", "no_permission")],
)
def test_a_fault_has_its_name(tmp_path: Path, scenario: str, fault: str) -> None:
    """NVML's codes for a whole GPU are told apart."""
    with polled(text=f"gpus: {{3: {{{scenario}}}}}", folder=tmp_path) as poll:
        assert poll.gpu(3).fault == fault


def test_a_gpu_lost_between_polls_comes_back_by_itself(tmp_path: Path) -> None:
    """Lost while polling: a fault with NVML's words; healed: read again, with the same identity."""
    with polled(folder=tmp_path) as poll:
        uuid = poll.gpu(3).uuid
        poll.simulation.edit("gpus: {3: {lost: true}}")
        lost = poll.gpu(3)
        poll.simulation.edit("")
        healed = poll.gpu(3)

    assert (lost.fault, lost.gpu, lost.uuid) == ("lost", None, uuid)
    assert "GpuIsLost" in lost.error
    assert (healed.fault, healed.uuid) == (None, uuid)
    assert healed.gpu is not None


def test_those_behind_a_gpu_that_is_not_listed_any_more_move_up(tmp_path: Path) -> None:
    """As CUDA and nvidia-smi count them from then on."""
    with polled(folder=tmp_path) as poll:
        before = [poll.gpu(place).index for place in (2, 7)]
        poll.simulation.edit("gpus: {3: {uncounted: true}}")
        after = [poll.gpu(place).index for place in (2, 7)]
        poll.simulation.edit("")
        healed = [poll.gpu(place).index for place in (2, 7)]

    assert (before, after, healed) == ([2, 7], [2, 6], [2, 7])


def test_one_failing_getter_costs_one_row(tmp_path: Path) -> None:
    """A transient failure of the temperature leaves the rest, and is counted by tier and error."""
    with polled(text='gpus: {3: {fail: {"nvmlDeviceGetTemperatureV": 999}}}', folder=tmp_path) as poll:
        snapshot = poll.poll()
        gpu = snapshot.gpus[3].gpu

    assert gpu is not None
    assert gpu.temperature_celsius is None
    assert gpu.utilization_ratio is not None
    assert set(snapshot.errors) == {"fast,Unknown"}


def test_a_gpu_on_which_every_getter_fails_does_not_answer(tmp_path: Path) -> None:
    """Errors that each cost a row only are, all together, a GPU that nobody can read; its neighbours are read."""
    getters = '{"nvmlDeviceGetUtil*": 999, "nvmlDeviceGet[!HUI]*": 999}'
    with polled(folder=tmp_path, text=f"gpus: {{1: {{fail: {getters}}}}}") as poll:
        faults = [gpu.fault for gpu in poll.poll().gpus]

    assert faults[1] == "unknown"
    assert not any(faults[:1] + faults[2:])


def test_missing_permission_is_told_by_what_cannot_be_seen(tmp_path: Path) -> None:
    """A call that is denied names its row among the denied, and its reading is absent."""
    with polled(text='gpus: {"*": {fail: {"nvmlDeviceGetComputeRunningProcesses*": 4}}}', folder=tmp_path) as poll:
        poll.poll()
        snapshot = poll.poll()  # a fast one, which does not ask again

    assert snapshot.denied == ("processes",)
    assert all(seen.gpu is not None and seen.gpu.processes is None for seen in snapshot.gpus)


def test_one_failing_field_of_a_batch_is_absent(tmp_path: Path) -> None:
    """The call succeeds, one field does not: its undefined value is not read."""
    with polled(text="gpus: {3: {fail_fields: {MEMORY_TEMP: 999}}}", folder=tmp_path) as poll:
        gpu = poll.gpu(3).gpu

    assert gpu is not None
    assert gpu.memory_temperature_celsius is None
    assert gpu.energy_joules_total is not None


def test_gpus_left_aside_are_never_touched(tmp_path: Path) -> None:
    """Not even by a lookup: the first call on it would end this process."""
    with polled() as poll:
        aside = sorted(poll.simulation.node.pci_functions())[5]
    text = 'gpus: {5: {crash: ["nvmlDevice*"]}}'
    with polled(text=text, folder=tmp_path, do_not_open=(aside,)) as poll:
        assert len(poll.poll().gpus) == 7


def test_gpus_bound_to_vfio_are_never_opened(tmp_path: Path) -> None:
    """They are no part of the poll."""
    with polled(text="gpus: {2: {bound: vfio-pci}}", folder=tmp_path) as poll:
        assert len(poll.poll().gpus) == 7


def test_a_driver_that_goes_away_ends_the_poll(tmp_path: Path) -> None:
    """Not loaded any more: no GPU is to blame, the poll raises and its handles are given up."""
    with polled(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("driver: not_loaded")
        with pytest.raises(NvmlError, match="DriverNotLoaded"):
            poll.poll()


def test_a_driver_that_knows_nothing_any_more_ends_the_poll(tmp_path: Path) -> None:
    """Upgraded under its library, every call fails, the count of GPUs too: that is no fault of eight GPUs."""
    with polled(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit('driver_version: "610.43.02"')
        with pytest.raises(NvmlError, match="Unknown"):
            poll.poll()


def test_an_xid_is_told_once_with_its_gpu(tmp_path: Path) -> None:
    """An Xid that appears after the first poll arrives with bus id and uuid, and only once."""
    with polled(folder=tmp_path) as poll:
        seen = poll.poll().gpus[3]
        poll.simulation.edit("gpus: {3: {xids: [79]}}")
        poll.simulation.now += 1.0
        events = poll.node.events.take()

        assert [(event.xid, event.bus_id, event.uuid) for event in events] == [(79, seen.bus_id, seen.uuid)]
        assert poll.node.events.take() == []


def test_a_lost_gpu_does_not_silence_the_xids_of_others(tmp_path: Path) -> None:
    """An event set with a lost GPU answers only errors: it is built again without it."""
    with polled(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {3: {lost: true}}")
        poll.poll()
        poll.simulation.edit("gpus: {3: {lost: true}, 4: {xids: [48]}}")
        poll.simulation.now += 1.0

        assert [event.xid for event in poll.node.events.take()] == [48]


def test_links_down_and_erring_are_seen(tmp_path: Path) -> None:
    """A link that is down reads 0, one asleep 1, and errors are counted by kind."""
    text = "gpus: {3: {nvlinks: {4: {state: down}, 5: {state: sleep}, 6: {crc: 7}}}}"
    with polled(text=text, folder=tmp_path) as poll:
        links = poll.gpu(3).links

    assert (links["4"].up, links["5"].up, links["6"].up) == (0.0, 1.0, 1.0)
    assert (links["6"].errors_total or {})["crc"] == 7.0


def test_what_is_set_is_what_is_read(tmp_path: Path) -> None:
    """Values go through structs and batches unchanged, in base units."""
    text = "gpus: {3: {set: {temperature: 91, utilization: 37, power: 650}, ecc: {uncorrected_dram: 3}}}"
    with polled(text=text, folder=tmp_path) as poll:
        gpu = poll.gpu(3).gpu

    assert gpu is not None
    assert (gpu.temperature_celsius, gpu.utilization_ratio, gpu.power_watts) == (91, 0.37, 650.0)
    assert (gpu.ecc_errors_total or {})["uncorrected,dram"] == 3.0


def test_what_is_read_seldom_is_read_again_soon_after_an_error(tmp_path: Path) -> None:
    """A name and a count of links that fail while the GPU is opened are there with the next slow poll."""
    trouble = "{nvmlDeviceGetName: 999, nvmlDeviceGetSerial: 999}"
    text = f"gpus: {{3: {{fail: {trouble}, fail_fields: {{NVLINK_LINK_COUNT: 999}}}}}}"
    with polled(text=text, folder=tmp_path) as poll:
        before = poll.poll().gpus[3]
        poll.simulation.edit("")
        poll.node._due[SLOW] = 0.0
        after = poll.poll().gpus[3]

    assert before.gpu is not None
    assert after.gpu is not None
    assert (before.gpu.name, before.links) == (None, {})
    assert (after.gpu.name, len(after.links)) == ("NVIDIA H100 80GB HBM3", 18)


def test_a_passing_refusal_is_not_remembered(tmp_path: Path) -> None:
    """A call that has worked and then says "not supported" works again when the driver does."""
    with polled(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {3: {fail: {nvmlDeviceGetUtilizationRates: 3}}}")
        without = poll.poll().gpus[3].gpu
        poll.simulation.edit("")
        again = poll.poll().gpus[3].gpu

    assert without is not None
    assert again is not None
    assert (without.utilization_ratio, again.utilization_ratio is not None) == (None, True)


def test_a_gpu_whose_calls_are_slow_is_read_over_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours are read at every poll, and wait for few of its calls; in the end every tier of it is read."""
    with polled(extent=Extent(gpm=False)) as poll:
        whole = poll.poll().gpus[3]
    with polled(extent=Extent(gpm=False), patience=0.5) as poll:
        clock = SlowCalls(poll, SLOW_BUS_ID, seconds=0.2)
        for module in ("poll", "turns"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: clock.now)
        clock.poll()  # opening it takes long as well: those after it on the bus are opened by the next poll
        seen = [clock.poll() for _ in range(150)]

    assert all({one.index for one in gpus if one.gpu is not None} >= {0, 1, 2, 4, 5, 6, 7} for gpus, _ in seen)
    assert max(seconds for _, seconds in seen) <= 12 * clock.seconds
    told = [one for gpus, _ in seen for one in gpus if one.index == 3]
    assert len(told) > 50
    assert all(one.gpu is not None and one.gpu.temperature_celsius is not None for one in told)
    assert told[-1].gpu == whole.gpu
    assert told[-1].links == whole.links


def test_a_gpu_that_was_being_read_when_the_host_slept_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told with the poll that the sleep interrupted, and read again with the next one."""
    with polled(patience=0.5) as poll:
        clock = SlowCalls(poll, SLOW_BUS_ID, seconds=0.0)
        for module in ("poll", "turns"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: clock.now)
        clock.poll()
        clock.sleep_at("nvmlDeviceGetUtilizationRates", 3600.0)
        asleep, slept = clock.poll()
        awake, _ = clock.poll()

    assert slept == 3600.0
    assert [[one.index for one in gpus if one.gpu is not None] for gpus in (asleep, awake)] == [list(range(8))] * 2


def test_gpus_that_take_long_to_open_are_opened_one_a_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode each takes seconds: what is open is read meanwhile; the last one completes the poll."""
    with polled(patience=0.5) as poll:
        now = 1000.0
        look_up = poll.library.call

        def slowly(function: str, *arguments: Any, **more: Any) -> Any:
            nonlocal now
            now += 3.0 if function == "nvmlDeviceGetHandleByPciBusId" else 0.0
            return look_up(function, *arguments, **more)

        monkeypatch.setattr(poll.library, "call", slowly)
        for module in ("poll", "turns"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: now)
        polls = [poll.poll() for _ in range(9)]

    read = [{one.index for one in one_poll.gpus if one.gpu is not None} for one_poll in polls]
    assert read == [set(range(most + 1)) for most in range(8)] + [set(range(8))]
    assert [one_poll.complete for one_poll in polls] == [False] * 7 + [True, True]


SLOW_BUS_ID = "00000000:61:00.0"


class SlowCalls:
    """A clock that goes on by so many seconds with each call on one GPU, and by a second from poll to poll."""

    def __init__(self, poll: Poll, bus_id: str, seconds: float) -> None:
        self.now = 1000.0
        self.seconds = seconds
        self._poll, self._bus_id = poll, bus_id
        self._sleeps: dict[str, float] = {}
        self._enter = poll.page.enter
        poll.page.enter = self._slow_enter  # type: ignore[method-assign]

    def poll(self) -> tuple[tuple[GpuReading, ...], float]:
        """What a poll told, and how long it took."""
        self.now += 1.0
        began = self.now
        return self._poll.poll().gpus, self.now - began

    def sleep_at(self, call: str, seconds: float) -> None:
        """The host sleeps once, in this call on the GPU."""
        self._sleeps[call] = seconds

    def _slow_enter(self, call: str, bus_id: str) -> None:
        if bus_id == self._bus_id:
            self.now += self.seconds + self._sleeps.pop(call, 0.0)
        self._enter(call, bus_id)
