"""The captures of this repository are readable and name their source."""

from __future__ import annotations

from pathlib import Path

import pytest
from gpumon_sim import capture
from gpumon_sim.profiles import PROFILES
from recorded import BEGAN, poll_of, replay_capture

FOLDER = Path(__file__).parents[3] / "tests" / "captures"
FILES = sorted(FOLDER.glob("*.capture"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_shipped_capture_is_readable_and_names_its_source(path: Path) -> None:
    """A capture is small, masked, complete and listed, and a poll reads all of its GPUs with power and name."""
    recorded = capture.read(path)

    assert recorded.header.masked
    assert not recorded.header.remarks
    assert recorded.header.simulated is None or recorded.header.simulated in PROFILES
    assert f"| `{path.name}` |" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert path.stat().st_size < 500_000
    with replay_capture(recorded) as node:
        gpus = poll_of(node).poll_all_tiers().gpus
        assert len(gpus) == len(node.node.pci_functions())
        assert all(gpu.gpu is not None and gpu.gpu.name for gpu in gpus)


def test_the_lost_gpu_of_a_shipped_capture_is_lost() -> None:
    """The GPU is lost after ten seconds, with an Xid for every set that registered before."""
    with replay_capture(capture.read(FOLDER / "h100x8-lost.capture")) as node:
        poll = poll_of(node)
        before = poll.poll_all_tiers()
        node.now = BEGAN + 30
        after, xids = poll.poll_all_tiers(), [(each.code, each.bus_id) for each in poll.node.events.take()]

    lost = after.gpus[3]
    assert [gpu.fault for gpu in before.gpus] == [None] * 8
    assert [gpu.fault for gpu in after.gpus] == [None] * 3 + ["lost"] + [None] * 4
    assert xids == [(79, lost.bus_id)]


def test_a_real_h100_in_training_is_read_as_nvidia_smi_showed_it() -> None:
    """Power at the limit of 700 W, the clock event that explains it, one process, no NVLink, margins from T.limit."""
    with replay_capture(capture.read(FOLDER / "h100x1-580.159.04-train.capture")) as node:
        poll = poll_of(node)
        poll.poll_all_tiers()
        node.now = BEGAN + 10
        snapshot = poll.poll_all_tiers()

    (reading,) = snapshot.gpus
    gpu = reading.gpu
    assert gpu is not None
    assert gpu.power_watts is not None
    assert 650 < gpu.power_watts < 720
    assert (gpu.power_limit_watts, gpu.processes, gpu.performance_state) == (700.0, 1.0, 0.0)
    assert (gpu.clock_event_active or {})["sw_power_cap"] == 1.0
    assert (gpu.temperature_slowdown_celsius, gpu.memory_temperature_max_celsius) == (89.0, 95.0)
    assert not reading.links
    assert not snapshot.errors
