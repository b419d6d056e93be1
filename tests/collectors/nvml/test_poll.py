"""Polls: readings, number of calls, and failures that affect only their GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each_case import each_case
from gpumon_sim.profiles import PROFILES
from polled import Poll, open_poll

from gpumon.collectors.nvml.gpu_reader import Extent
from gpumon.collectors.nvml.library import ERROR_NAMES, NvmlError
from gpumon.model.gpu import Gpu
from gpumon.model.reading import SLOW, rows
from gpumon.model.snapshot import GpuReading
from gpumon.outputs.metric_catalogue import AGENT_SOURCE, catalogue
from scripts.metric_facts import kind
from scripts.missing_metrics import missing

FAST_CALLS_H100X8 = 42
"""Five per GPU, the device count, and one wait on the event set."""

BY_THE_DRIVER = {
    entry.name
    for entry in catalogue()
    if not any(source == AGENT_SOURCE or source.startswith("integral of") for source in entry.sources)
}


@each_case("profile", PROFILES)
def test_rows_are_read_where_the_product_supports_them(profile: str) -> None:
    """Each kind of node has exactly its supported rows; an unsupported row is not an error."""
    with open_poll(profile) as poll:
        poll.poll()
        snapshot = poll.poll_later()
        gpu = snapshot.gpus[0].gpu

    assert gpu is not None
    read = {Gpu.PREFIX + name: getattr(gpu, name) for name in rows(Gpu) if Gpu.PREFIX + name in BY_THE_DRIVER}
    assert {metric for metric, value in read.items() if value is None} == missing(kind(profile), read)
    assert (snapshot.errors, snapshot.denied, snapshot.visible) == ({}, (), len(snapshot.gpus))


def test_fields_that_an_old_gpu_lacks_are_absent_without_an_error() -> None:
    """A T4 has no NVLink, no row remapping and no memory temperature: the readings are absent and not 0."""
    with open_poll("t4x1") as poll:
        snapshot = poll.poll()
        gpu = snapshot.gpus[0].gpu

    assert gpu is not None
    assert gpu.memory_temperature_celsius is None
    assert gpu.rows_remapped_total is None
    assert not snapshot.gpus[0].links
    assert gpu.power_watts is not None
    assert gpu.temperature_celsius is not None
    assert snapshot.errors == {}


def test_while_watching_every_poll_reads_the_processes(tmp_path: Path) -> None:
    """Without watching the process lists wait for the slow tier, because they are the slowest calls."""
    with open_poll(text="jobs: [{start: 110, gpus: [2]}]", folder=tmp_path) as poll:
        first = poll.poll_later(all_tiers=True).gpus[2]
        poll.node._due = dict.fromkeys(poll.node._due, float("inf"))
        poll.simulation.now = 111.0
        unwatched = poll.poll_later().gpus[2]
        poll.node.watching = True
        watched = poll.poll_later().gpus

    assert (unwatched.gpu and unwatched.gpu.processes, unwatched.pids) == (0.0, ())
    assert [reading.gpu and reading.gpu.processes for reading in watched] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert [len(reading.pids or ()) for reading in watched] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert first.pids_at == unwatched.pids_at != watched[2].pids_at


@pytest.mark.parametrize("profile", ["h100x8", "b200x8"])
def test_while_watching_every_poll_reads_the_bytes_of_each_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    """Link bytes are read in KiB up to Hopper and in bytes from Blackwell; a link that is down has 0."""
    monkeypatch.setattr("gpumon.collectors.nvml.poll.CLOSE_SECONDS", 3600.0)
    text = "gpus: {0: {nvlinks: {3: {carried: 1000}, 4: {state: down}}, set: {nvlink_received: 5000000}}}"
    with open_poll(profile, text=text, folder=tmp_path) as poll:
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


def test_peer_access_is_read_once_when_watching_starts(tmp_path: Path) -> None:
    """Peer access is the same from both GPUs of a pair."""
    with open_poll(text="gpus: {1: {peer_access: {3: {nvlink: disabled_by_regkey}}}}", folder=tmp_path) as poll:
        before = poll.poll().gpus
        poll.node.watching = True
        watched = [poll.poll().gpus for _ in range(20)]

    polls_with_access = [gpus for gpus in watched if any(reading.peer_access for reading in gpus)]
    assert not any(reading.peer_access for reading in before)
    [gpus] = polls_with_access
    ok = {"read": "ok", "write": "ok", "nvlink": "ok", "atomics": "ok"}
    uuids = {reading.index: reading.uuid for reading in gpus}
    for reading in gpus:
        apart = {1: 3, 3: 1}.get(reading.index or 0)
        assert reading.peer_access == {
            uuid: {**ok, "nvlink": "disabled_by_regkey"} if index == apart else ok
            for index, uuid in uuids.items()
            if index != reading.index
        }


@pytest.mark.parametrize(
    ("profile", "nvlink"), [("t4x1", None), ("l40sx4", "not_supported"), ("h100migx8", "not_supported")]
)
def test_gpus_without_nvlink_have_peer_access_over_pcie_or_none(profile: str, nvlink: str | None) -> None:
    with open_poll(profile) as poll:
        poll.poll()
        poll.node.watching = True
        readings = [gpu for _ in range(20) for gpu in poll.poll().gpus if gpu.peer_access]

    assert bool(readings) is (nvlink is not None)
    assert {access["nvlink"] for gpu in readings for access in gpu.peer_access.values()} == ({nvlink} - {None})


def test_a_long_slow_tier_keeps_its_interval_while_watching(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_poll("t4x1") as poll:
        poll.node.watching = True
        poll.poll_later(all_tiers=True)
        poll.node._due = dict.fromkeys(poll.node._due, float("inf"))
        for longest, tiers in ((0.0, {"fast"}), (3600.0, {"fast", "slow"})):
            monkeypatch.setattr("gpumon.collectors.nvml.poll.CLOSE_SECONDS", longest)
            assert {*poll.poll().durations} == tiers


def test_a_fast_poll_takes_five_calls_per_gpu() -> None:
    """Unsupported calls are made once and fields are read in one batch; GPM is not counted."""
    with open_poll(extent=Extent(gpm=False)) as poll:
        poll.poll()
        before = poll.page.calls
        poll.node.events.take()
        poll.poll()

        assert poll.page.calls - before == FAST_CALLS_H100X8


def test_unsupported_calls_are_not_repeated() -> None:
    with open_poll("t4x1") as poll:
        poll.poll_all_tiers()
        first = poll.page.calls
        poll.poll_all_tiers()
        second = poll.page.calls - first
        poll.poll_all_tiers()

        assert poll.page.calls - first - second == second < first


@each_case("code", sorted(ERROR_NAMES))
def test_a_gpu_that_cannot_be_opened_affects_no_other_gpu(tmp_path: Path, code: int) -> None:
    with open_poll(text=f"gpus: {{3: {{lookup: {code}}}}}", folder=tmp_path) as poll:
        snapshot = poll.poll()

    read = {reading.index for reading in snapshot.gpus if reading.gpu is not None}
    assert read == {0, 1, 2, 4, 5, 6, 7}
    assert all(reading.fault for reading in snapshot.gpus if reading.gpu is None)


@each_case("code", sorted(ERROR_NAMES))
def test_a_gpu_whose_calls_fail_affects_no_other_gpu(tmp_path: Path, code: int) -> None:
    with open_poll(text=f'gpus: {{3: {{fail: {{"nvmlDeviceGet[!H]*": {code}}}}}}}', folder=tmp_path) as poll:
        snapshot = poll.poll()

    read = {
        reading.index
        for reading in snapshot.gpus
        if reading.gpu is not None and reading.gpu.utilization_ratio is not None
    }
    assert read >= {0, 1, 2, 4, 5, 6, 7}


@pytest.mark.parametrize(
    ("scenario", "fault"),
    [("lost: true", "lost"), ("reset_required: true", "reset_required"), ("lookup: 4", "no_permission")],
)
def test_a_fault_has_its_name(tmp_path: Path, scenario: str, fault: str) -> None:
    with open_poll(text=f"gpus: {{3: {{{scenario}}}}}", folder=tmp_path) as poll:
        assert poll.gpu(3).fault == fault


def test_a_gpu_lost_between_polls_recovers(tmp_path: Path) -> None:
    """A GPU lost between polls has a fault with NVML's message, and is read with the same identity after recovery."""
    with open_poll(folder=tmp_path) as poll:
        uuid = poll.gpu(3).uuid
        poll.simulation.edit("gpus: {3: {lost: true}}")
        lost = poll.gpu(3)
        poll.simulation.edit("")
        healed = poll.gpu(3)

    assert (lost.fault, lost.gpu, lost.uuid) == ("lost", None, uuid)
    assert "GpuIsLost" in lost.error
    assert (healed.fault, healed.uuid) == (None, uuid)
    assert healed.gpu is not None


def test_indices_shift_when_a_gpu_is_no_longer_listed(tmp_path: Path) -> None:
    """The indices shift as in CUDA and nvidia-smi."""
    with open_poll(folder=tmp_path) as poll:
        before = [poll.gpu(place).index for place in (2, 7)]
        poll.simulation.edit("gpus: {3: {uncounted: true}}")
        after = [poll.gpu(place).index for place in (2, 7)]
        poll.simulation.edit("")
        healed = [poll.gpu(place).index for place in (2, 7)]

    assert (before, after, healed) == ([2, 7], [2, 6], [2, 7])


def test_one_failing_call_affects_one_row(tmp_path: Path) -> None:
    """A transient error of the temperature affects no other row, and is counted by tier and error."""
    with open_poll(text='gpus: {3: {fail: {"nvmlDeviceGetTemperatureV": 999}}}', folder=tmp_path) as poll:
        snapshot = poll.poll()
        gpu = snapshot.gpus[3].gpu

    assert gpu is not None
    assert gpu.temperature_celsius is None
    assert gpu.utilization_ratio is not None
    assert set(snapshot.errors) == {"fast,Unknown"}


def test_a_gpu_on_which_every_call_fails_has_a_fault(tmp_path: Path) -> None:
    getters = '{"nvmlDeviceGetUtil*": 999, "nvmlDeviceGet[!HUI]*": 999}'
    with open_poll(folder=tmp_path, text=f"gpus: {{1: {{fail: {getters}}}}}") as poll:
        faults = [gpu.fault for gpu in poll.poll().gpus]

    assert faults[1] == "unknown"
    assert not any(faults[:1] + faults[2:])


def test_a_denied_call_names_its_row(tmp_path: Path) -> None:
    with open_poll(text='gpus: {"*": {fail: {"nvmlDeviceGetComputeRunningProcesses*": 4}}}', folder=tmp_path) as poll:
        poll.poll()
        snapshot = poll.poll()  # a fast poll, which does not repeat the call

    assert snapshot.denied == ("processes",)
    assert all(reading.gpu is not None and reading.gpu.processes is None for reading in snapshot.gpus)


def test_one_failing_field_of_a_batch_is_absent(tmp_path: Path) -> None:
    """In a successful batch the undefined value of a failed field is not read."""
    with open_poll(text="gpus: {3: {fail_fields: {MEMORY_TEMP: 999}}}", folder=tmp_path) as poll:
        gpu = poll.gpu(3).gpu

    assert gpu is not None
    assert gpu.memory_temperature_celsius is None
    assert gpu.energy_joules_total is not None


def test_quarantined_gpus_are_not_accessed(tmp_path: Path) -> None:
    """A quarantined GPU gets no call, not even a lookup."""
    with open_poll() as poll:
        aside = sorted(poll.simulation.node.pci_functions())[5]
    text = 'gpus: {5: {crash: ["nvmlDevice*"]}}'
    with open_poll(text=text, folder=tmp_path, do_not_open=(aside,)) as poll:
        assert len(poll.poll().gpus) == 7


def test_gpus_bound_to_vfio_are_never_opened(tmp_path: Path) -> None:
    with open_poll(text="gpus: {2: {bound: vfio-pci}}", folder=tmp_path) as poll:
        assert len(poll.poll().gpus) == 7


@pytest.mark.parametrize(
    ("change", "error"), [("driver: not_loaded", "DriverNotLoaded"), ('driver_version: "610.43.02"', "Unknown")]
)
def test_an_unloaded_or_upgraded_driver_ends_the_poll(tmp_path: Path, change: str, error: str) -> None:
    """The poll raises and releases its handles, and no GPU has a fault."""
    with open_poll(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit(change)
        with pytest.raises(NvmlError, match=error):
            poll.poll()


def test_an_xid_is_reported_once_with_its_gpu(tmp_path: Path) -> None:
    """An Xid after the first poll is reported once, with PCI address and UUID."""
    with open_poll(folder=tmp_path) as poll:
        reading = poll.poll().gpus[3]
        poll.simulation.edit("gpus: {3: {xids: [79]}}")
        poll.simulation.now += 1.0
        events = poll.node.events.take()

        assert [(event.code, event.bus_id, event.uuid) for event in events] == [(79, reading.bus_id, reading.uuid)]
        assert poll.node.events.take() == []


def test_a_lost_gpu_does_not_block_xids_of_other_gpus(tmp_path: Path) -> None:
    """An event set with a lost GPU returns only errors, and is created again without the GPU."""
    with open_poll(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {3: {lost: true}}")
        poll.poll()
        poll.simulation.edit("gpus: {3: {lost: true}, 4: {xids: [48]}}")
        poll.simulation.now += 1.0

        assert [event.code for event in poll.node.events.take()] == [48]


def test_link_states_and_errors_are_read(tmp_path: Path) -> None:
    """A link that is down reads 0 and a sleeping link 1; errors are counted by kind."""
    text = "gpus: {3: {nvlinks: {4: {state: down}, 5: {state: sleep}, 6: {crc: 7}}}}"
    with open_poll(text=text, folder=tmp_path) as poll:
        links = poll.gpu(3).links

    assert (links["4"].up, links["5"].up, links["6"].up) == (0.0, 1.0, 1.0)
    assert (links["6"].errors_total or {})["crc"] == 7.0


def test_simulated_values_are_read_unchanged(tmp_path: Path) -> None:
    """Values pass structs and batches unchanged, in base units."""
    text = "gpus: {3: {set: {temperature: 91, utilization: 37, power: 650}, ecc: {uncorrected_dram: 3}}}"
    with open_poll(text=text, folder=tmp_path) as poll:
        gpu = poll.gpu(3).gpu

    assert gpu is not None
    assert (gpu.temperature_celsius, gpu.utilization_ratio, gpu.power_watts) == (91, 0.37, 650.0)
    assert (gpu.ecc_errors_total or {})["uncorrected,dram"] == 3.0


def test_slow_fields_are_read_again_soon_after_an_error(tmp_path: Path) -> None:
    """A name and a link count that fail at the first read are read by the next slow poll."""
    trouble = "{nvmlDeviceGetName: 999, nvmlDeviceGetSerial: 999}"
    text = f"gpus: {{3: {{fail: {trouble}, fail_fields: {{NVLINK_LINK_COUNT: 999}}}}}}"
    with open_poll(text=text, folder=tmp_path) as poll:
        before = poll.poll().gpus[3]
        poll.simulation.edit("")
        poll.node._due[SLOW] = 0.0
        after = poll.poll().gpus[3]

    assert before.gpu is not None
    assert after.gpu is not None
    assert (before.gpu.name, before.links) == (None, {})
    assert (after.gpu.name, len(after.links)) == ("NVIDIA H100 80GB HBM3", 18)


def test_a_transient_not_supported_is_retried(tmp_path: Path) -> None:
    with open_poll(folder=tmp_path) as poll:
        poll.poll()
        poll.simulation.edit("gpus: {3: {fail: {nvmlDeviceGetUtilizationRates: 3}}}")
        without = poll.poll().gpus[3].gpu
        poll.simulation.edit("")
        again = poll.poll().gpus[3].gpu

    assert without is not None
    assert again is not None
    assert (without.utilization_ratio, again.utilization_ratio is not None) == (None, True)


def test_a_gpu_whose_calls_are_slow_is_read_over_several_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other GPUs are read in every poll, and all tiers of the slow GPU are read over several polls."""
    with open_poll(extent=Extent(gpm=False)) as poll:
        whole = poll.poll().gpus[3]
    with open_poll(extent=Extent(gpm=False), patience=0.5) as poll:
        clock = SlowCalls(poll, SLOW_BUS_ID, seconds=0.2)
        for module in ("poll", "gpu_reader"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: clock.now)
        clock.poll()  # opening it is slow too: the next poll opens the GPUs after it on the bus
        polls = [clock.poll() for _ in range(150)]

    assert all({gpu.index for gpu in gpus if gpu.gpu is not None} >= {0, 1, 2, 4, 5, 6, 7} for gpus, _ in polls)
    assert max(seconds for _, seconds in polls) <= 12 * clock.seconds
    slow_gpu = [gpu for gpus, _ in polls for gpu in gpus if gpu.index == 3]
    assert len(slow_gpu) > 50
    assert all(gpu.gpu is not None and gpu.gpu.temperature_celsius is not None for gpu in slow_gpu)
    assert slow_gpu[-1].gpu == whole.gpu
    assert slow_gpu[-1].links == whole.links


def test_a_suspend_during_a_read_does_not_make_the_gpu_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU is in the poll that the suspend interrupted, and in the next poll."""
    with open_poll(patience=0.5) as poll:
        clock = SlowCalls(poll, SLOW_BUS_ID, seconds=0.0)
        for module in ("poll", "gpu_reader"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: clock.now)
        clock.poll()
        clock.sleep_at("nvmlDeviceGetUtilizationRates", 3600.0)
        asleep, slept = clock.poll()
        awake, _ = clock.poll()

    assert slept == 3600.0
    assert [[gpu.index for gpu in gpus if gpu.gpu is not None] for gpus in (asleep, awake)] == [list(range(8))] * 2


def test_slow_gpus_are_opened_one_per_poll(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without persistence mode each open takes seconds, so that each poll opens one GPU and reads the open GPUs."""
    with open_poll(patience=0.5) as poll:
        now = 1000.0
        look_up = poll.library.call

        def slowly(function: str, *arguments: Any, **more: Any) -> Any:
            nonlocal now
            now += 3.0 if function == "nvmlDeviceGetHandleByPciBusId" else 0.0
            return look_up(function, *arguments, **more)

        monkeypatch.setattr(poll.library, "call", slowly)
        for module in ("poll", "gpu_reader"):
            monkeypatch.setattr(f"gpumon.collectors.nvml.{module}.boot_clock", lambda: now)
        polls = [poll.poll() for _ in range(9)]

    read = [{gpu.index for gpu in one_poll.gpus if gpu.gpu is not None} for one_poll in polls]
    assert read == [set(range(most + 1)) for most in range(8)] + [set(range(8))]
    assert [one_poll.complete for one_poll in polls] == [False] * 7 + [True, True]


SLOW_BUS_ID = "00000000:61:00.0"


class SlowCalls:
    """A clock that advances by these seconds per call on one GPU, and by one second between polls."""

    def __init__(self, poll: Poll, bus_id: str, seconds: float) -> None:
        self.now = 1000.0
        self.seconds = seconds
        self._poll, self._bus_id = poll, bus_id
        self._sleeps: dict[str, float] = {}
        self._enter = poll.page.enter
        poll.page.enter = self._slow_enter  # type: ignore[method-assign]

    def poll(self) -> tuple[tuple[GpuReading, ...], float]:
        """Return the readings of a poll and its duration."""
        self.now += 1.0
        began = self.now
        return self._poll.poll().gpus, self.now - began

    def sleep_at(self, call: str, seconds: float) -> None:
        """Suspend the host once, in this call on the GPU."""
        self._sleeps[call] = seconds

    def _slow_enter(self, call: str, bus_id: str) -> None:
        if bus_id == self._bus_id:
            self.now += self.seconds + self._sleeps.pop(call, 0.0)
        self._enter(call, bus_id)


@each_case(("scenario", "expected"), [("", 0), ("gpus: {0: {set: {vgpu_licensed: 1}}}", 1)])
def test_a_vgpu_license_is_read(scenario: str, expected: int, tmp_path: Path) -> None:
    """A GPU that needs no license has 0, as in DCGM."""
    with open_poll("h100x1", scenario, folder=tmp_path) as poll:
        gpu = poll.poll_all_tiers().gpus[0].gpu
    assert gpu is not None
    assert gpu.vgpu_licensed == expected
